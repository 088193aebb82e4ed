import sys

import pytest

from fedapp import plugins
from fedapp.config import SettingError


@pytest.fixture
def modules(tmp_path, monkeypatch):
    """Write a plugin module that counts how often it was imported."""
    monkeypatch.syspath_prepend(tmp_path)
    plugins.load.cache_clear()
    made = []

    def write(name, body=""):
        (tmp_path / f"{name}.py").write_text(body)
        made.append(name)

    yield write
    plugins.load.cache_clear()
    for name in made:
        sys.modules.pop(name, None)


@pytest.mark.parametrize("names", ["", " ", ",", " , ,"])
def test_no_names_import_nothing(names):
    before = set(sys.modules)
    plugins.load(names)
    assert set(sys.modules) == before


def test_every_named_module_is_imported_once_in_the_order_given(modules):
    modules("plugin_first", "import builtins\nbuiltins.plugin_order = ['first']")
    modules("plugin_second", "import builtins\nbuiltins.plugin_order.append('second')")
    import builtins

    try:
        for _ in range(2):
            plugins.load(" plugin_first , plugin_second,")
        assert builtins.plugin_order == ["first", "second"]
    finally:
        del builtins.plugin_order


def test_a_module_that_is_not_there_is_named_with_the_cause_and_the_way_out(modules):
    with pytest.raises(SettingError, match=r"plugin 'plugin_nowhere' cannot be imported: No module named .*PYTHONPATH"):
        plugins.load("plugin_nowhere")


def test_an_import_that_fails_inside_a_plugin_names_both(modules):
    modules("plugin_broken", "import missing_dependency_of_mine")
    with pytest.raises(SettingError, match=r"plugin 'plugin_broken'.*missing_dependency_of_mine"):
        plugins.load("plugin_broken")


def test_a_plugin_that_was_missing_is_tried_again(modules):
    with pytest.raises(SettingError):
        plugins.load("plugin_late")
    modules("plugin_late")
    import importlib

    importlib.invalidate_caches()
    plugins.load("plugin_late")
    assert "plugin_late" in sys.modules


def test_an_error_in_a_users_code_is_shown_as_it_is(modules):
    modules("plugin_wrong", "1 / 0")
    with pytest.raises(ZeroDivisionError):
        plugins.load("plugin_wrong")
