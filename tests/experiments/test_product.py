import json

import pytest

from fedapp import datasets, models
from fedapp.config import SettingError
from fedapp.experiments import product
from tests.models.sources import SOURCES


@pytest.fixture(autouse=True)
def tiny_data_sets(monkeypatch):
    for source in SOURCES.values():
        monkeypatch.setitem(datasets.DATASETS, source.name, source)


def lines(folder):
    return [json.loads(line) for line in (folder / product.FILE).read_text().splitlines()]


def test_the_product_pairs_groups_with_data_sets_of_their_kind_only():
    tiny = [source.name for source in SOURCES.values()]
    groups = {name: [pair.group for pair in product.pairs((), [name])] for name in tiny}
    assert set(groups["tiny-texts"]) == {"htfe6-txt", "htfe6-txt-legacy", "small3-txt"}
    assert set(groups["tiny-rows"]) == {"mlp-bow", "tabular3"}
    assert {*groups["tiny-images"], *groups["tiny-texts"], *groups["tiny-rows"]} == set(models.GROUPS)
    assert len(product.pairs()) >= len(models.GROUPS)


@pytest.mark.parametrize(("groups", "names"), [(["small44"], []), ([], ["digits44"])])
def test_an_unknown_name_is_refused(groups, names):
    with pytest.raises(SettingError, match="did you mean"):
        product.pairs(groups, names)


def test_two_pairs_run_and_are_skipped_the_next_time_unless_the_settings_change(tmp_path, capsys):
    words = [f"out={tmp_path}", "groups=tabular3,small3-txt", "datasets=tiny-rows,tiny-texts", "feature-dim=64"]
    assert product.main(words) == 0
    said = capsys.readouterr().out.splitlines()
    assert [line.split()[:3] for line in said] == [
        ["tiny-rows", "tabular3", "done"],
        ["tiny-texts", "small3-txt", "done"],
    ]
    assert all(0 <= line["accuracy"] <= 1 and line["bytes"] > 0 for line in lines(tmp_path))
    assert [path.name for path in tmp_path.iterdir()] == [product.FILE]  # no weights stay behind

    with (tmp_path / product.FILE).open("a") as file:
        file.write('{"group": "tabu')  # killed while it wrote
    assert product.main(words) == 0
    assert capsys.readouterr().out == ""
    assert product.main([*words[:1], "groups=tabular3", "datasets=tiny-rows", "feature-dim=32"]) == 0
    assert len(capsys.readouterr().out.splitlines()) == 1


def test_what_is_absent_does_not_fit_or_breaks_is_said_and_the_rest_goes_on(tmp_path, monkeypatch, capsys):
    def absent(settings):
        raise SettingError("data set far is nowhere")

    images = SOURCES["images"]
    monkeypatch.setitem(datasets.DATASETS, "far", datasets.Source("far", absent, "far", 3, (3, 32, 32)))
    monkeypatch.setitem(datasets.DATASETS, "flat", datasets.Source("flat", images.load, "flat", 3, (3, 32, 8)))
    chosen = [product.Pair("small4", "far"), product.Pair("htfe2", "flat"), product.Pair("tabular3", "tiny-rows")]
    settings = {"out": str(tmp_path), "learning-rate": 1e30}
    found = product.run(settings, chosen)
    assert [line["status"] for line in found] == ["absent", "misfit", "broken"]
    assert "far is nowhere" in found[0]["why"]
    assert "at least 16x16" in found[1]["why"]
    assert "diverged" in found[2]["why"]
    assert len(capsys.readouterr().out.splitlines()) == 3
    assert [line["status"] for line in product.run(settings, chosen)] == ["absent", "broken"]


def test_a_single_model_or_data_set_is_asked_for_by_the_words_that_choose() -> None:
    with pytest.raises(SettingError, match="models = small4: a product has many; choose with groups=small4"):
        product.main(["models=small4"])
    with pytest.raises(SettingError, match="dataset = mnist: a product has many; choose with datasets=mnist"):
        product.main(["dataset=mnist"])
