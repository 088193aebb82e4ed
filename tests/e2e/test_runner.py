"""The runner around ``flwr run``: its own SuperLink, plugins in Ray workers, the same bits in every engine."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from fedapp import runner
from fedapp.config import RunConfig, SettingError, parse

from .conftest import REPOSITORY

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(280)]

PLUGIN = """
from dataclasses import replace

import torch
from torch import nn

import fedapp.models
import fedapp.strategies
from fedapp.strategies import FedSAF
from fedapp.strategies.fedsaf import METHOD, FedSAFUpdate


class Tiny(nn.Module):
    def __init__(self, num_classes, input_shape, feature_dim):
        super().__init__()
        channels, height, width = input_shape
        self.features = nn.Sequential(nn.Flatten(), nn.Linear(channels * height * width, feature_dim), nn.ReLU())
        self.head = nn.Linear(feature_dim, num_classes)


class TouchyUpdate(FedSAFUpdate):
    def begin(self):
        if self.local.client == "1":
            raise RuntimeError("boom")
        super().begin()


class Touchy(FedSAF):
    name = "touchy"


fedapp.models.register("tiny", Tiny)
fedapp.strategies.register(replace(METHOD, strategy=Touchy, update=TouchyUpdate))
"""


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A user's directory with a plugin, from which everything here is run."""
    folder = tmp_path_factory.mktemp("project")
    (folder / "my_plugin.py").write_text(PLUGIN)
    previous = Path.cwd()
    os.chdir(folder)
    sys.path.insert(0, str(folder))
    yield folder
    os.chdir(previous)
    sys.path.remove(str(folder))


def config(**values: Any) -> RunConfig:
    quick = {"num-server-rounds": 2, "local-epochs": 1, "batch-size": 16, "samples-per-client": 60, "out": "results"}
    quick["report"] = False
    user = {"plugins": "my_plugin", "models": "tiny,small-resnet", "method": "touchy", "feature-dim": 64}
    return parse(RunConfig, {**quick, **user, **{key.replace("_", "-"): value for key, value in values.items()}})


def outcome(folder: Path) -> tuple[Any, ...]:
    """Everything that must not depend on engine, workers or order: metrics of all rounds, and all models."""
    lines = [json.loads(line) for line in (folder / "rounds.jsonl").read_text().splitlines()]
    kept = [{key: value for key, value in line.items() if not key.endswith("seconds")} for line in lines]
    return kept, runner.summary(folder)["model_sha256"]


def test_plugins_failing_clients_and_equal_bits_with_1_2_and_4_workers_and_in_the_local_engine(project: Path) -> None:
    local = runner.run_local(config(run_name="local"), clients=4)
    with runner.superlink() as link:
        home = link.home
        folders = [
            runner.run_on(link, config(run_name=f"ray-{workers}", workers=workers), clients=4) for workers in (1, 2, 4)
        ]
    assert not home.exists()
    for folder in folders:
        assert folder.parent == project / "results"
        assert outcome(folder) == outcome(local)
    summary = runner.summary(folders[0])
    assert [(f["client"], f["kind"], f["reason"]) for f in summary["failures"]] == [("1", "RuntimeError", "boom")] * 2
    assert summary["rounds"] == 2
    assert len(summary["model_sha256"]) == 4


def test_a_run_that_fails_raises_with_the_cause_and_leaves_no_superlink(project: Path) -> None:
    with runner.superlink() as link, pytest.raises(runner.RunFailedError, match="lower min-nodes"):
        runner.run_on(link, config(run_name="short", min_nodes=3, node_timeout=3.0), clients=2)
    listing = subprocess.run(["ps", "-wweo", "args="], capture_output=True, text=True, check=True).stdout
    assert str(link.home) not in listing


def test_a_run_that_does_not_begin_is_given_up_also_when_it_is_resumed(tmp_path: Path) -> None:
    (tmp_path / "config.yaml").write_text("of the run before it was cut")
    os.utime(tmp_path / "config.yaml", (1, 1))
    waiting = subprocess.Popen(["sleep", "60"], start_new_session=True)
    try:
        with pytest.raises(runner.RunFailedError, match="has not begun after 1 s"):
            runner._follow(waiting, tmp_path, None, patience=1.0)
    finally:
        waiting.kill()
        waiting.wait()


def test_a_wrong_name_is_reported_before_anything_starts(project: Path) -> None:
    link = runner.SuperLink(project / "no-such-home", {})
    with pytest.raises(SettingError, match="did you mean small-resnet"):
        runner.run_on(link, config(models="small-resnt"), clients=2)


def test_an_existing_run_is_not_overwritten(project: Path) -> None:
    runner.run_local(config(run_name="taken", num_server_rounds=0), clients=2)
    before = (project / "results" / "taken" / "summary.json").read_bytes()
    with pytest.raises(SettingError, match="not overwritten"):
        runner.run_local(config(run_name="taken", num_server_rounds=0), clients=2)
    assert (project / "results" / "taken" / "summary.json").read_bytes() == before


def test_the_wheel_builds_and_works_outside_the_clone(tmp_path: Path) -> None:
    build = [sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", str(tmp_path), str(REPOSITORY)]
    subprocess.run(build, check=True, capture_output=True)
    (wheel,) = tmp_path.glob("*.whl")
    site = tmp_path / "site"
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(site)
    environment = {**os.environ, "PYTHONPATH": str(site)}
    words = ["run", "--engine", "local", "--clients", "2", "--rounds", "1", "--set", "local-epochs=1"]
    words += ["--set", "samples-per-client=40", "--out", "results"]
    where = "import fedapp, sys; sys.stderr.write(fedapp.__file__); from fedapp.cli import main; main()"
    done = subprocess.run(
        [sys.executable, "-c", where, *words],
        cwd=tmp_path,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert str(site) in done.stderr
    assert len(list((tmp_path / "results").glob("*/summary.json"))) == 1
