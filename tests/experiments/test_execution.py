"""Sweeps that are cut, broken, repeated: what is done stays, what was cut goes on, what breaks stops nothing else."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml
from typer.testing import CliRunner

from fedapp import checkpoints, runner
from fedapp.cli import app
from fedapp.config import RunConfig, SettingError
from fedapp.experiments import execution, grid

from .conftest import QUICK, plan


def silent(line: str) -> None:
    """Say nothing."""


def call(*words: str) -> tuple[int, str]:
    result = CliRunner().invoke(app, list(words))
    return result.exit_code, result.output


def statuses(folder: Path) -> dict[str, str]:
    return {cell["settings"]["method"]: cell["status"] for cell in execution.read_state(folder)["cells"]}


def rounds(folder: Path) -> list[dict[str, Any]]:
    lines = [json.loads(line) for line in (folder / "rounds.jsonl").read_text().splitlines()]
    return [{key: value for key, value in line.items() if not key.endswith("seconds")} for line in lines]


def waited_for(condition: Callable[[], bool], seconds: float = 60.0) -> bool:
    deadline = time.monotonic() + seconds
    while not condition() and time.monotonic() < deadline:
        time.sleep(0.02)
    return condition()


def break_on(monkeypatch: pytest.MonkeyPatch, method: str) -> list[RunConfig]:
    """Break every run of a method, and return the runs that are asked for."""
    asked: list[RunConfig] = []
    run = runner.run_local

    def run_local(config: RunConfig, clients: int, progress: Any = None) -> Path:
        asked.append(config)
        if config.method == method:
            raise MemoryError("the machine is too small\nand more")
        return run(config, clients, progress)

    monkeypatch.setattr(runner, "run_local", run_local)
    return asked


def test_cells_land_under_stable_names_and_a_second_start_skips_them(tmp_path: Path) -> None:
    sweep = grid.build(plan(), "s")
    execution.execute(sweep, tmp_path / "s", silent)
    summaries = {path: path.stat().st_mtime_ns for path in sorted(tmp_path.glob("s/*/summary.json"))}
    assert [path.parent.name for path in summaries] == sorted(cell.name for cell in sweep.cells)
    said: list[str] = []
    outcomes = execution.execute(grid.build(plan(), "s"), tmp_path / "s", said.append)
    assert sum("skipped" in line for line in said) == 2
    assert {outcome.status for outcome in outcomes.values()} == {"done"}
    assert {path: path.stat().st_mtime_ns for path in summaries} == summaries


def test_a_new_seed_adds_runs_and_keeps_those_there_are(tmp_path: Path) -> None:
    execution.execute(grid.build(plan(), "s"), tmp_path / "s", silent)
    said: list[str] = []
    execution.execute(grid.build(plan(seeds=[0, 1]), "s"), tmp_path / "s", said.append)
    assert sum("skipped" in line for line in said) == 2
    assert len(list(tmp_path.glob("s/*/summary.json"))) == 4


def test_other_seeds_of_earlier_calls_stay_in_the_tables(tmp_path: Path) -> None:
    for seed in (0, 1):
        execution.execute(grid.build(plan(seeds=[seed]), "s"), tmp_path / "s", silent)
    cells = execution.read_state(tmp_path / "s")["cells"]
    assert sorted((cell["seed"], cell["status"]) for cell in cells) == [(0, "done")] * 2 + [(1, "done")] * 2
    assert len({cell["name"] for cell in cells}) == 4


def test_a_broken_cell_is_recorded_and_the_rest_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "night.yaml").write_text(yaml.safe_dump(plan()))
    break_on(monkeypatch, "fedproto")
    code, output = call("sweep", "night.yaml", "--out", "results")
    folder = tmp_path / "results" / "night"
    assert code == 1, output
    assert statuses(folder) == {"fedproto": "broken", "local": "done"}
    broken = execution.read_state(folder)["cells"][0]
    assert broken["cause"] == "MemoryError: the machine is too small\nand more"
    assert f"{broken['name']}: MemoryError: the machine is too small" in output.splitlines()[-1].strip()
    assert "in run_local" in (folder / f"{broken['name']}.error.txt").read_text()
    assert f"broken: {broken['name']}" in (folder / "table.md").read_text()


def test_a_broken_cell_is_tried_again_and_only_that(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    sweep = grid.build(plan(), "s")
    with monkeypatch.context() as patch:
        break_on(patch, "fedproto")
        execution.execute(sweep, tmp_path / "s", silent)
    asked = break_on(monkeypatch, "none")
    outcomes = execution.execute(sweep, tmp_path / "s", silent)
    assert [config.method for config in asked] == ["fedproto"]
    assert execution.broken(outcomes) == {}
    assert statuses(tmp_path / "s") == {"fedproto": "done", "local": "done"}


@pytest.mark.timeout(120)
def test_a_sweep_killed_in_the_middle_of_a_cell_goes_on_and_ends_as_if_it_had_not_been(tmp_path: Path) -> None:
    long = plan(base={**QUICK, "num-server-rounds": 20})
    (tmp_path / "cut.yaml").write_text(yaml.safe_dump(long))
    sweep = grid.load(tmp_path / "cut.yaml")
    first, second = (tmp_path / "cut" / cell.name for cell in sweep.cells)
    code = "from fedapp.cli import main; main()"
    words = [sys.executable, "-c", code, "sweep", "cut.yaml", "--out", str(tmp_path)]
    process = subprocess.Popen(words, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, cwd=tmp_path)
    try:
        assert waited_for(lambda: len(checkpoints.found(second / "checkpoints")) == 2)
    finally:
        os.kill(process.pid, signal.SIGKILL)
        process.wait()
    assert not (second / "summary.json").exists()
    assert statuses(tmp_path / "cut") == {"fedproto": "done", "local": "running"}
    untouched = (first / "summary.json").stat().st_mtime_ns

    said: list[str] = []
    outcomes = execution.execute(sweep, tmp_path / "cut", said.append)
    assert (first / "summary.json").stat().st_mtime_ns == untouched
    assert outcomes[second.name].status == "done"
    assert outcomes[second.name].continued
    assert any("goes on from its last checkpoint" in line for line in said)
    uncut = grid.build({**long, "grid": {"method": "local"}}, "whole")
    execution.execute(uncut, tmp_path / "whole", silent)
    assert rounds(second) == rounds(tmp_path / "whole" / second.name)
    digests = [runner.summary(folder)["model_sha256"] for folder in (second, tmp_path / "whole" / second.name)]
    assert digests[0] == digests[1]


def test_a_cell_cut_before_its_first_checkpoint_is_moved_aside_and_run_again(tmp_path: Path) -> None:
    sweep = grid.build(plan(), "s")
    left = tmp_path / "s" / sweep.cells[0].name
    left.mkdir(parents=True)
    (left / "config.yaml").write_text("run: cut\nsett")
    execution.execute(sweep, tmp_path / "s", silent)
    assert (left / "summary.json").exists()
    assert (tmp_path / "s" / f"{left.name}.aside-1" / "config.yaml").read_text() == "run: cut\nsett"


def test_a_finished_run_with_other_settings_is_not_taken_for_the_cell(tmp_path: Path) -> None:
    sweep = grid.build(plan(), "s")
    execution.execute(sweep, tmp_path / "s", silent)
    config = tmp_path / "s" / sweep.cells[0].name / "config.yaml"
    config.write_text(config.read_text().replace("local-epochs: 1", "local-epochs: 3"))
    said: list[str] = []
    execution.execute(sweep, tmp_path / "s", said.append)
    assert sum("skipped" in line for line in said) == 1
    assert (tmp_path / "s" / f"{sweep.cells[0].name}.aside-1" / "summary.json").exists()


def test_two_sweeps_do_not_share_a_folder_at_once(tmp_path: Path) -> None:
    (tmp_path / "s").mkdir()
    with checkpoints.alone_in(tmp_path / "s"), pytest.raises(SettingError, match="still going on"):
        execution.execute(grid.build(plan(), "s"), tmp_path / "s", silent)
    assert not (tmp_path / "s" / "sweep.json").exists()


def test_an_unknown_key_ends_with_code_2_before_anything_runs(tmp_path: Path) -> None:
    (tmp_path / "slip.yaml").write_text(yaml.safe_dump(plan(grid={"method": ["local", "lokal"]})))
    code, output = call("sweep", "slip.yaml", "--out", "results")
    assert code == 2, output
    assert "slip.yaml: unknown method 'lokal'" in output
    assert not (tmp_path / "results").exists()


def test_the_list_tells_what_is_done_and_runs_nothing(tmp_path: Path) -> None:
    (tmp_path / "s.yaml").write_text(yaml.safe_dump(plan()))
    sweep = grid.load(tmp_path / "s.yaml")
    execution.execute(grid.build(plan(grid={"method": ["local"]}), "s"), tmp_path / "s", silent)
    code, output = call("sweep", "s.yaml", "--out", str(tmp_path), "--list")
    assert code == 0, output
    assert output.splitlines() == [f"waiting {sweep.cells[0].name}", f"done    {sweep.cells[1].name}"]


def test_a_state_is_replaced_whole_or_not_at_all(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "sweep.json"
    execution.replace_text(path, "old")

    def full(descriptor: int) -> None:
        raise OSError("no space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="no space"):
        execution.replace_text(path, "new")
    assert path.read_text() == "old"
