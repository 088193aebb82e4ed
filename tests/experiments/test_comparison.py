"""Comparisons: same seeds and data for all, every number in the files, nothing overwritten, nothing broken hidden."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import yaml
from typer.testing import CliRunner

from fedapp import runner
from fedapp.cli import app
from fedapp.config import RunConfig, SettingError, parse
from fedapp.experiments import comparison, grid, records, statistics
from fedapp.experiments.comparison import Comparison

from .conftest import QUICK
from .records_by_hand import write_run

WORDS = ["--engine", "local", "--clients", "2", "--rounds", "2"]
WORDS += [word for key, value in QUICK.items() for word in ("--set", f"{key}={value}")]


def call(*words: str) -> tuple[int, str]:
    result = CliRunner().invoke(app, list(words))
    return result.exit_code, result.output


def by_hand(folder: Path, curves: dict[str, list[list[float]]]) -> Comparison:
    """A comparison of runs with these accuracies, by method and seed."""
    runs = {
        label: {
            seed: records.read(write_run(folder / f"{label}-{seed}", {"method": label, "seed": seed}, accuracies))
            for seed, accuracies in enumerate(seeds)
        }
        for label, seeds in curves.items()
    }
    seeds = tuple(range(max(len(seeds) for seeds in curves.values())))
    sweep = grid.build({"grid": {"method": list(curves)}, "seeds": list(seeds), "clients": 2}, "c")
    return Comparison(folder, tuple(curves), sweep, runs, seeds, {}, ())


def test_three_seeds_give_paired_differences_with_an_interval(tmp_path: Path) -> None:
    curves = {"local": [[0.50], [0.60], [0.70]], "fedproto": [[0.51], [0.62], [0.76]]}
    found = by_hand(tmp_path, curves)
    value = found.difference("fedproto", "best")
    assert value is not None
    assert value.differences == pytest.approx((1.0, 2.0, 6.0), abs=1e-9)  # as in test_statistics
    assert (value.mean, value.low, value.high) == pytest.approx((3.0, -3.57241, 9.57241), abs=1e-4)
    (line,) = comparison.differences(found).body
    assert line[:2] == ("fedproto", "+3.00 [-3.57, +9.57]")
    entry = comparison.described(found)["differences"][0]
    assert (entry["method"], entry["to"], entry["metric"], entry["level"]) == ("fedproto", "local", "best", 0.95)
    assert entry["low"] == value.low


def test_two_seeds_give_no_interval_and_say_so(tmp_path: Path) -> None:
    found = by_hand(tmp_path, {"local": [[0.50], [0.60]], "fedproto": [[0.51], [0.62]]})
    table = comparison.differences(found)
    assert table.body[0][1] == "+1.50"
    assert table.notes == ("fewer than 3 seeds: no interval of confidence is given",)
    assert comparison.described(found)["differences"][0]["low"] is None


def test_the_table_by_hand(tmp_path: Path) -> None:
    table = comparison.table(by_hand(tmp_path, {"local": [[0.5, 0.25], [0.75, 0.5]]}))
    cells = dict(zip(table.header, table.body[0], strict=True))
    assert cells["best"] == "62.50 ± 17.68"  # 50 and 75: 25 / sqrt(2)
    assert cells["last"] == "37.50 ± 17.68"
    assert cells["MiB up"] == "3.50"
    assert cells["client CPU s"] == "3.0"
    assert cells["worst client"] == "25.00"


def test_a_comparison_of_seeds_and_methods_writes_all_its_numbers(tmp_path: Path) -> None:
    code, output = call("compare", "fedproto", "local", *WORDS, "--seeds", "0,1,2", "--out", "results", "--name", "c")
    assert code == 0, output
    folder = tmp_path / "results" / "c"
    written = json.loads((folder / "comparison.json").read_text())
    assert written["same_client_data"] is True
    assert (written["seeds"], written["clients"], written["broken"]) == ([0, 1, 2], 2, {})
    assert written["settings"] == QUICK
    best: dict[str, list[float]] = {"fedproto": [], "local": []}
    partitions = set()
    for run in written["runs"]:
        summary = runner.summary(folder / run["folder"])
        assert summary["seed"] == run["seed"]
        assert run["best"] == 100 * summary["accuracy"]["best"]
        best[run["method"]].append(run["best"])
        partitions.add(records.read(folder / run["folder"]).settings["partition-seed"])
    assert partitions == {1}
    for label, values in best.items():
        expected = statistics.spread(values)
        assert expected is not None
        assert written["methods"][label]["best"] == {"mean": expected.mean, "std": expected.std, "n": 3}
        assert f"{expected.mean:.2f}" in (folder / "comparison.md").read_text()
        assert f"{expected.mean:.2f}" in output
    for name in ("comparison.svg", "comparison.png", "report.html"):
        assert (folder / name).stat().st_size > 1000


def test_settings_come_from_a_file_and_words_win(tmp_path: Path) -> None:
    values = {**QUICK, "method": "fedproto", "method-params": {"proto-weight": 3}, "local-epochs": 7}
    (tmp_path / "mine.yaml").write_text(yaml.safe_dump(values))
    words = ["--engine", "local", "--clients", "2", "--config", "mine.yaml", "--set", "local-epochs=1"]
    code, output = call("compare", "fedproto", *words, "--out", "results", "--name", "c")
    assert code == 0, output
    (run,) = (records.read(path.parent) for path in tmp_path.glob("results/c/*/summary.json"))
    assert (run.settings["local-epochs"], run.settings["method-params.proto-weight"]) == (1, 3.0)


def test_a_method_may_be_compared_with_itself_under_other_settings(tmp_path: Path) -> None:
    found = compare(tmp_path, ["fedsaf alignment=rcsa", "fedsaf  alignment=mse"])
    assert found.labels == ("fedsaf alignment=rcsa", "fedsaf alignment=mse")
    used = [run.settings["method-params.alignment"] for label in found.labels for run in found.runs[label].values()]
    assert used == ["rcsa", "mse"]


def compare(out: Path, methods: list[str], **values: Any) -> Comparison:
    config = parse(RunConfig, {**QUICK, "num-server-rounds": 1, "out": str(out)})
    return comparison.compare(methods, config, 2, engine="local", say=lambda line: None, **values)


def test_a_finished_comparison_is_never_overwritten(tmp_path: Path) -> None:
    found = compare(tmp_path, ["local"], name="c")
    before = (found.folder / "comparison.json").read_bytes()
    with pytest.raises(SettingError, match="exists already and is not overwritten"):
        compare(tmp_path, ["local"], name="c")
    assert (found.folder / "comparison.json").read_bytes() == before


def test_an_unfinished_comparison_goes_on_under_its_name(tmp_path: Path) -> None:
    found = compare(tmp_path, ["local"], name="c", seeds=(0, 1))
    (found.folder / "comparison.json").unlink()
    times = {path: path.stat().st_mtime_ns for path in found.folder.glob("*/summary.json")}
    with pytest.raises(SettingError, match="holds another comparison"):
        compare(tmp_path, ["fedproto"], name="c")
    compare(tmp_path, ["local"], name="c", seeds=(0, 1))
    assert {path: path.stat().st_mtime_ns for path in times} == times
    assert (found.folder / "comparison.json").exists()


def test_a_broken_run_is_named_and_the_rest_is_compared(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = runner.run_local

    def run_local(config: RunConfig, clients: int, progress: Any = None) -> Path:
        if config.method == "local" and config.seed == 1:
            raise RuntimeError("boom")
        return run(config, clients, progress)

    monkeypatch.setattr(runner, "run_local", run_local)
    code, output = call("compare", "fedproto", "local", *WORDS, "--seeds", "0,1", "--name", "c")
    assert code == 1, output
    (name,) = json.loads((tmp_path / "fedapp-runs" / "c" / "comparison.json").read_text())["broken"]
    assert (name.split("-")[0], name.split("-")[-1]) == ("local", "s1")
    assert "1/2" in output
    assert f"{name}: RuntimeError: boom" in output


def test_unequal_client_data_is_an_error_after_everything_is_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = runner.run_local

    def run_local(config: RunConfig, clients: int, progress: Any = None) -> Path:
        folder = run(config, clients, progress)
        if config.method == "local":
            described = yaml.safe_load((folder / "config.yaml").read_text())
            described["clients"]["1"]["train-examples"] += 1
            (folder / "config.yaml").write_text(yaml.safe_dump(described))
        return folder

    monkeypatch.setattr(runner, "run_local", run_local)
    code, output = call("compare", "fedproto", "local", *WORDS, "--name", "c")
    assert code == 1, output
    assert "did not hold the same data" in output
    written = json.loads((tmp_path / "fedapp-runs" / "c" / "comparison.json").read_text())
    assert written["same_client_data"] is False
    assert any("client 1" in warning for warning in written["warnings"])


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["fedproto", "lokal"], "did you mean local?"),
        (["local", "local"], "local given twice"),
        (["fedproto proto-weight=1", "fedproto proto-weight=1.0"], "mean the same settings"),
        (["fedproto proto-wight=1"], "unknown fedproto parameter"),
        (["fedproto", "--set", "method-params=proto-weight=1"], "method-params belong to fedsaf"),
        (["local", "--seeds", "0,x"], "--seeds takes whole numbers"),
        (["local", "--name", "../c"], "cannot name a folder"),
        (["local", "--config", "none.yaml"], "none.yaml cannot be read"),
        (["local", "--set", "local-epochs"], "--set takes key=value"),
    ],
)
def test_a_slip_ends_with_code_2_before_anything_runs(tmp_path: Path, words: list[str], message: str) -> None:
    code, output = call("compare", *words, *WORDS)
    assert code == 2, output
    assert message in output
    assert not (tmp_path / "fedapp-runs").exists()
