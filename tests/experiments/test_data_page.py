"""results/data.md: the page is made of what runs left and says what is absent; the command runs what is not done."""

from pathlib import Path

import pytest

from fedapp import datasets
from fedapp.config import SettingError
from fedapp.experiments import data_page
from fedapp.experiments.data_page import Facts
from fedapp.experiments.records import Run
from fedapp.experiments.results import Entry

CLIENTS = {
    "0": {"model": "mlp", "train-examples": 30, "test-examples": 10, "label-counts": [24, 6]},
    "1": {"model": "small-cnn", "train-examples": 20, "test-examples": 30, "label-counts": [10, 10]},
}
GRID = """
base: {num-server-rounds: 1, local-epochs: 1, samples-per-client: 24, models: mlp, feature-dim: 16}
grid: {compared: [{method: local}, {method: fedsaf}]}
clients: 2
engine: local
"""


def run(dataset, method, curve, seed=0):
    settings = {"dataset": dataset, "method": method, "seed": seed, "clients": 2, "num-server-rounds": 2}
    rounds = [{"accuracy": value, "client_seconds": {"train": 2.0, "cpu": 1.25}} for value in curve]
    traffic = {"payload_down": 4000, "payload_up": 2000}
    summary = {"rounds": len(curve), "seconds": {"run": 3.5}, "bytes": traffic}
    return Run(Path(), {**settings, "samples-per-client": 40}, CLIENTS, rounds, summary)


def entry(made, status="done", cause=""):
    return Entry("one", 0, {}, status, cause, made)


def test_a_row_holds_every_methods_accuracies_beside_the_majority():
    runs = [run("digits4", "fedsap", [0.5, 0.25]), run("digits4", "local", [0.25, None, 0.75])]
    assert data_page.majority(runs[0]) == pytest.approx((10 * 0.8 + 30 * 0.5) / 40)  # = 57.5 %
    row = data_page.accuracies(runs).splitlines()[2]
    assert row == "| digits4 | 0 | 57.5 | 75.0 / 75.0 / 50.0 |  | 50.0 / 25.0 / 37.5 |"


def test_costs_are_counted_a_round_and_processor_time_over_all_of_them():
    row = data_page.costs([run("mnist", "local", [0.5, 0.5])]).splitlines()[2]
    assert row == "| mnist | local | 0 | mlp, small-cnn | 3.5 | 2.5 | 2,000 | 1,000 |"


def test_the_verdict_counts_who_is_ahead_by_the_mean_of_the_last_evaluations_and_who_learnt_nothing():
    runs = [
        *(run("digits4", "local", [0.6], seed) for seed in (0, 1)),
        *(run("digits4", "fedsaf", [value], seed) for seed, value in enumerate((0.6, 0.85))),
        run("digits4", "fedsap", [0.5]),
        *(run("mnist", "local", [0.9, 0.3]), run("mnist", "fedsaf", [0.2, 0.2])),
        *(run("cifar10", "local", [0.6]), run("cifar10", "fedsaf", [0.6004])),
        run("pacs", "local", [0.6]),
    ]
    said = data_page.verdict(runs)
    assert (
        "FedSAF against `local`: ahead on 1 (digits4 +12.5), behind on 1 (mnist -40.0), level on 1 (cifar10 +0.0)."
        in said
    )
    assert "FedSAP, with another network, against `local`: ahead on 0, behind on 1 (digits4 -10.0), level on 0." in said
    assert "No better than the majority: digits4 fedsap, mnist fedsaf." in said  # 57.5 %; mnist local: 60 %


def test_the_page_shows_what_is_here_what_is_absent_and_what_broke():
    runs = [run("digits4", "local", [0.5, 0.25]), run("shakespeare", "local", [0.5])]
    present = {"digits4": Facts(8797, 10, 4, 0), "shakespeare": Facts(90345, 80, 1, 99)}
    entries = [*map(entry, runs), entry(None, "broken", "SettingError: no such\ntrace")]
    page = data_page.page_of(entries, present, {"femnist": "found neither here nor there"})
    assert "| digits4 | images | 10 | 4 domains | 8,797 | 2 | 50 | 40 |" in page
    assert "| shakespeare | tokens | 80 | 99 natural clients | 90,345 | 2 | 50 | 40 |" in page
    assert "| femnist | found neither here nor there |" in page
    assert "- one: broken SettingError: no such\n" in page
    assert "## Not done" not in data_page.page_of(entries[:2], present, {})


def test_a_set_that_cannot_be_loaded_is_absent_for_a_reason_that_names_no_path_of_this_machine(tmp_path, monkeypatch):
    def load(settings):
        raise SettingError(f"far was not found in {settings.data_root}/<far>; put it there\nor not")

    monkeypatch.setitem(datasets.DATASETS, "far", datasets.Source("far", load, "far", 3, (3, 32, 32)))
    present, absent = data_page.survey(["digits4", "far"], str(tmp_path))
    assert absent == {"far": "far was not found in DATA-ROOT/\\<far>"}
    assert list(present) == ["digits4"]
    assert (present["digits4"].classes, present["digits4"].domains) == (10, 4)


def test_the_command_runs_what_is_not_done_and_writes_the_page(tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    (tmp_path / "tiny.yaml").write_text(GRID)
    page = tmp_path / "results" / "data.md"
    words = [f"--data-root={tmp_path}", f"--out={tmp_path}/runs", f"--page={page}", f"--grid={tmp_path}/tiny.yaml"]
    data_page.main(words)
    first, said = page.read_text(), capsys.readouterr().out
    assert said.count("starting") == 2
    assert "1 rounds, at most 24 samples of a client" in first
    assert str(tmp_path) not in first
    assert "| mnist | not in the grid: " in first
    (tmp_path / "results" / "data.notes.md").write_text("Remarkable.\n")
    data_page.main(words)
    said = capsys.readouterr().out
    assert said.count("done before, skipped") == 2
    head, body = first.split("## Who is ahead")
    assert page.read_text() == f"{head}Remarkable.\n\n## Who is ahead{body}"
