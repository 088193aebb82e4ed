import json
import re

import numpy as np
import pytest

from fedapp.config import SettingError
from fedapp.report import write_comparison
from fedapp.report.comparison import grouped
from fedapp.report.records import load
from tests.report.folders import make
from tests.report.reading import Page

METHODS, SEEDS = ("fedsaf", "local"), (0, 1, 2)


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """Two methods with three seeds, in the order of the command; one client fails in one of them."""
    root = tmp_path_factory.mktemp("runs")
    return {
        (method, seed): make(
            5, 6, seed=seed, method=method, gain=0.1 * (method == "fedsaf"), analysed=method == "fedsaf",
            failing=[(2, "4")] if (method, seed) == ("local", 1) else (),
        ).write(root / f"{method}-{seed}")
        for method in METHODS
        for seed in SEEDS
    }  # fmt: skip


@pytest.fixture(scope="module")
def text(runs, tmp_path_factory):
    return write_comparison(list(runs.values()), tmp_path_factory.mktemp("out") / "all.html").read_text()


@pytest.fixture(scope="module")
def page(text):
    return Page(text)


def summaries(runs, method):
    return [json.loads((runs[method, seed] / "summary.json").read_text()) for seed in SEEDS]


def test_every_run_s_numbers_are_its_summary_s(runs, page):
    for i, folder in enumerate(runs.values()):
        summary = json.loads((folder / "summary.json").read_text())
        expected = {f"run.{i}.{name}": summary["accuracy"][name] for name in ("best", "last", "last_ten")}
        expected |= {f"run.{i}.client_mean": summary["clients"]["mean"], f"run.{i}.worst": summary["clients"]["worst"]}
        expected |= {f"run.{i}.client_std": summary["clients"]["std"], f"run.{i}.seconds": summary["seconds"]["run"]}
        for way in ("up", "down"):
            expected[f"run.{i}.{way}"] = sum(summary["bytes"][f"{p}payload_{way}"] for p in ("", "evaluate_"))
        assert {key: page.values()[key] for key in expected} == {key: repr(value) for key, value in expected.items()}


def test_means_and_deviations_are_over_the_seeds(runs, page):
    for method in METHODS:
        found = summaries(runs, method)
        for name in ("best", "last", "last_ten"):
            values = [summary["accuracy"][name] for summary in found]
            mean, std = (float(page.values()[f"method.{method}.{name}.{part}"]) for part in ("mean", "std"))
            assert mean == pytest.approx(np.mean(values), rel=1e-12)
            assert std == pytest.approx(np.std(values, ddof=1), rel=1e-9)


def test_domains_are_means_over_the_seeds(runs, page):
    for method in METHODS:
        found = summaries(runs, method)
        for domain in ("optical", "mnist", "mnistm", "rendered"):
            mean = np.mean([summary["domains"][domain]["last"] for summary in found])
            shown = float(page.values()[f"method.{method}.domains.{domain}.last.mean"])
            assert shown == pytest.approx(mean, rel=1e-12)


def test_the_method_that_ends_highest_comes_first_in_words(page):
    assert "the models trained with fedsaf classify" in page.text
    assert "ahead of local with" in page.text


def test_each_method_has_its_curve_and_band(text, page):
    assert sum("band is one standard deviation" in words for words in re.findall("<figcaption>.*?</fig", text)) >= 3
    first = re.search(r"<svg.*?</svg>", text).group()
    assert first.count('fill-opacity="0.15"') == len(METHODS)
    assert all(f">{method}</text>" in first for method in METHODS)
    assert "Effective dimension" in page.text


def test_failures_name_run_and_client(page):
    assert "local-s124trainNoReplyno reply within 60 s (round 2)" in page.text


def test_commands_and_versions_are_there(page):
    assert page.text.count("fedapp run --clients 5") == 6
    assert "--set method=local --set num-server-rounds=6 --set seed=1" in page.text
    assert "Versions: python 3.11.7, fedapp 0.1.0" in page.text


def test_nothing_is_loaded_from_outside(text):
    for word in ("http", "//", "url(", "@import", "src=", "<link", "<script"):
        assert word not in text.lower()


def test_settings_that_differ_tell_runs_of_one_method_apart(tmp_path):
    folders = []
    for i, rate in enumerate((0.01, 0.05)):
        folders.append(make(3, 3, settings={"learning-rate": rate}).write(tmp_path / str(i)))
    groups = grouped([load(folder) for folder in folders])
    assert [group.full for group in groups] == ["fedsaf learning-rate=0.01", "fedsaf learning-rate=0.05"]
    assert [group.label for group in groups] == ["fedsaf 1", "fedsaf 2"]
    page = Page(write_comparison(folders, tmp_path).read_text())
    assert "2 variants on digits4" in page.text
    assert (tmp_path / "report.html").is_file()
    assert "fedsaf 2: fedsaf learning-rate=0.05" in page.text


def test_only_the_seed_and_the_place_differ_between_repetitions(runs):
    assert [len(group.runs) for group in grouped([load(folder) for folder in runs.values()])] == [3, 3]


def test_one_seed_has_no_deviation(tmp_path, runs):
    text = write_comparison([runs["fedsaf", 0], runs["local", 0]], tmp_path / "c.html").read_text()
    assert "±" not in text
    assert "band is one standard" not in text


def test_an_unfinished_run_and_one_without_evaluation_are_compared_all_the_same(tmp_path):
    first = make(3, 4, finished=False).write(tmp_path / "a")
    second = make(3, 4, method="local", evaluated=False, analysed=False).write(tmp_path / "b")
    page = Page(write_comparison([first, second], tmp_path / "c.html").read_text())
    assert "fedsaf-s0: not finished, 4 rounds are recorded" in page.text
    assert "not measured" in page.text
    silent = Page(write_comparison([second], tmp_path / "d.html").read_text())
    assert "No accuracy was measured in any of these runs." in silent.text


def test_a_method_that_is_hostile_text_is_escaped(tmp_path):
    made = make(3, 2)
    made.config["settings"]["method"] = made.summary["method"] = "<script>x"
    made.config["run"] = "<b onclick=y>"
    page = Page(write_comparison([made.write(tmp_path / "a")], tmp_path).read_text())
    assert not page.of("script")
    assert not page.of("b") or all("onclick" not in attributes for attributes in page.of("b"))
    assert "<script>x" in page.text


def test_nothing_to_compare_is_refused(tmp_path):
    with pytest.raises(SettingError, match="nothing to compare"):
        write_comparison([], tmp_path)
