"""What docs/ says holds: the tutorial runs as it stands, equations are where it says, no setting is left out."""

from __future__ import annotations

import ast
import importlib
import os
import re
import subprocess
import sys
from functools import cache
from pathlib import Path

import pytest

import fedapp
from fedapp import plugins
from fedapp.strategies import METHODS

REPOSITORY = Path(__file__).parents[1]
DOCS = REPOSITORY / "docs"
TUTORIAL = (DOCS / "adding-a-method.md").read_text(encoding="utf-8")
EQUATIONS = (DOCS / "equations.md").read_text(encoding="utf-8")
IN_TREE = "fedapp.strategies.fedprox"


# ---- adding-a-method.md -----------------------------------------------------------------------------


def block(title):
    found = re.findall(rf"```python\n# {re.escape(title)}\n(.*?)```", TUTORIAL, flags=re.DOTALL)
    assert len(found) == 1, title
    return found[0]


def command(beginning):
    found = [text for text in re.findall(r"```bash\n(.*?)```", TUTORIAL, flags=re.DOTALL) if beginning in text]
    assert len(found) == 1, beginning
    return found[0]


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """The reader's folder, with the plugin of the tutorial in it; the method is forgotten afterwards."""
    (tmp_path / "my_fedprox.py").write_text(block("my_fedprox.py"), encoding="utf-8")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.chdir(tmp_path)
    plugins.load.cache_clear()
    yield tmp_path
    plugins.load.cache_clear()
    METHODS.pop("fedprox", None)
    sys.modules.pop("my_fedprox", None)


def test_the_plugin_equals_fedavg_at_mu_0_and_differs_above(folder):
    small = {"models": "small-cnn", "local_epochs": 2, "samples_per_client": 40, "batch_size": 10, "learning_rate": 0.1}
    small |= {"clients": 2, "rounds": 2, "feature_dim": 32, "report": False}

    def digests(method, **params):
        name = "-".join([method, *map(str, params.values())])
        made = fedapp.run(method, plugins="my_fedprox", method_params=params, run_name=name, **small)
        assert made.failures == []
        assert len(made.rounds) == 2
        return made.summary["model_sha256"]

    plain = digests("fedavg")
    assert len(plain) == 2
    assert digests("fedprox", mu=0) == plain
    pulled = digests("fedprox", mu=0.1)
    assert all(pulled[client] != plain[client] for client in plain)


def test_the_command_of_the_tutorial_runs_in_the_readers_folder(folder):
    search = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
    environment = {**os.environ, "PATH": search}
    environment.pop("PYTHONPATH", None)
    text = command("--set plugins=my_fedprox")
    finished = subprocess.run(
        ["bash", "-ec", text], cwd=folder, env=environment, capture_output=True, text=True, timeout=200, check=False
    )
    assert finished.returncode == 0, finished.stderr
    assert "fedprox, seed 0: 4 clients, 2 rounds" in finished.stdout


@pytest.mark.parametrize(("params", "method"), [("mu=-1", "fedprox"), ("nu=1", "fedprox")])
def test_the_messages_of_the_tutorial_are_the_real_ones(folder, params, method):
    quoted = re.search(rf'`method-params="{re.escape(params)}"`: `(.*?)`[;.]', TUTORIAL)
    with pytest.raises(ValueError, match=re.escape(quoted[1])):
        fedapp.run(method, plugins="my_fedprox", method_params=params)


def in_tree(text):
    """The plugin as section 3 says to change it."""
    lines = [
        line for line in text.splitlines() if line not in ("from fedapp.strategies import register", "register(METHOD)")
    ]
    assert len(lines) == len(text.splitlines()) - 2
    return "\n".join(lines)


@pytest.fixture
def moved(monkeypatch):
    """The method in the tree: an entry of METHODS, and a module under its own name."""
    module = type(sys)(IN_TREE)
    monkeypatch.setitem(sys.modules, IN_TREE, module)
    exec(compile(in_tree(block("my_fedprox.py")), "fedprox.py", "exec"), module.__dict__)
    monkeypatch.setitem(METHODS, "fedprox", module.METHOD)


def test_the_tests_of_the_tutorial_pass_and_fail_without_the_pull(moved, tmp_path, monkeypatch):
    namespace = {"__name__": "test_fedprox"}
    exec(compile(block("tests/strategies/test_fedprox.py"), "test_fedprox.py", "exec"), namespace)
    tests = [value for name, value in namespace.items() if name.startswith("test_")]
    assert len(tests) == 3

    def run(test, name):
        arguments = {"tmp_path": tmp_path / name / test.__name__} if test.__code__.co_argcount else {}
        test(**arguments)

    for test in tests:
        run(test, "with")
    update = METHODS["fedprox"].update
    monkeypatch.setattr(update, "loss", super(update, update).loss)
    for test in (tests[0], tests[2]):
        with pytest.raises(AssertionError):
            run(test, "without")


def test_the_tutorials_file_is_short_and_keeps_the_style(tmp_path):
    for name, text in {
        "fedprox.py": in_tree(block("my_fedprox.py")), "test_fedprox.py": block("tests/strategies/test_fedprox.py"),
    }.items():  # fmt: skip
        assert len(text.splitlines()) <= 250
        assert max(map(len, text.splitlines())) <= 120, name


def test_every_hook_is_named_in_the_tutorial():
    from fedapp.client_update import ClientUpdate
    from fedapp.strategies import PayloadStrategy

    hooks = {"receive", "begin", "loss", "after_step", "modules", "end", "predictions"}
    hooks |= {
        "downlink",
        "evaluate_downlink",
        "uplink_specs",
        "check_uplink",
        "aggregate",
        "state",
        "load_state",
        "analyse",
    }
    named = set(re.findall(r"`(\w+)\([a-z, ]*\)`", TUTORIAL))
    assert hooks <= named
    assert all(hasattr(ClientUpdate, hook) or hasattr(PayloadStrategy, hook) for hook in named - {"register"})


# ---- equations.md -----------------------------------------------------------------------------------


def rows(method=""):
    """Return the cells of all rows, or of one method's."""
    text = EQUATIONS.split(f"## {method}")[1].split("\n## ")[0] if method else EQUATIONS
    lines = [line for line in text.splitlines() if line.startswith("| ") and not line.startswith("| ---")]
    cells = [[cell.strip() for cell in line.strip("|").split(" |")] for line in lines]
    return [row for row in cells if row[0] != "equation"]


def names(cell):
    return re.findall(r"`([^`]+)`", cell)


@cache
def functions_of(path):
    tree = ast.parse((REPOSITORY / "tests" / path).read_text(encoding="utf-8"))
    return {node.name for node in tree.body if isinstance(node, ast.FunctionDef)}


def imported(dotted):
    """Import the longest module of a dotted name and take the rest as attributes."""
    parts = f"fedapp.{dotted}".split(".")
    for size in range(len(parts), 0, -1):
        try:
            found = importlib.import_module(".".join(parts[:size]))
        except ModuleNotFoundError:
            continue
        for part in parts[size:]:
            found = getattr(found, part)
        return found
    raise AssertionError(dotted)


@pytest.mark.parametrize("row", rows(), ids=lambda row: row[0])
def test_every_equation_has_its_function_and_its_test(row):
    assert len(row) == 4, row
    _, _, functions, tests = row
    if functions.startswith("no code: "):
        assert not tests
        return
    assert names(functions)
    found = [imported(name) for name in names(functions)]
    if tests == "its doctest":
        assert all(">>>" in function.__doc__ for function in found)
        return
    assert names(tests)
    for test in names(tests):
        path, name = test.split("::")
        assert name in functions_of(path), test


@pytest.mark.parametrize(("method", "equations", "propositions"), [("FedSAF", 36, 3), ("FedSAP", 14, 1)])
def test_no_equation_of_the_papers_is_left_out(method, equations, propositions):
    labels = [row[0] for row in rows(method)]
    numbers = set()
    for first, last in re.findall(r"Eq\. (\d+)(?:-(\d+))?", " ".join(labels)):
        numbers |= set(range(int(first), int(last or first) + 1))
    assert numbers == set(range(1, equations + 1))
    for number in range(1, propositions + 1):
        assert any(f"Prop. {number}" in label for label in labels)


def test_every_method_has_its_equations():
    titles = re.findall(r"^## (\S+)", EQUATIONS, flags=re.MULTILINE)
    assert {title.lower() for title in titles} == set(METHODS)


# ---- settings.md ------------------------------------------------------------------------------------


def test_settings_are_what_the_code_says():
    command = [sys.executable, "-m", "fedapp.experiments.settings_doc"]
    environment = {**os.environ, "PYTHONIOENCODING": "utf-8"}
    printed = subprocess.run(command, capture_output=True, env=environment, check=True, timeout=100).stdout.decode()
    written = (DOCS / "settings.md").read_text(encoding="utf-8")
    assert written == printed, "run: python -m fedapp.experiments.settings_doc > docs/settings.md"


def test_every_setting_and_parameter_stands_in_the_page():
    from fedapp.config import RunConfig, keys

    written = (DOCS / "settings.md").read_text(encoding="utf-8")
    for cls in (RunConfig, *(method.strategy.params_type for method in METHODS.values())):
        for key, field in keys(cls).items():
            assert f"| `{key}` |" in written
            assert field.metadata["doc"] in written
