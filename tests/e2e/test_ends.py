"""How runs end when something goes wrong: killed, interrupted, a worker lost. Nothing is left behind."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from fedapp import runner
from fedapp.checkpoints import alone_in
from fedapp.config import RunConfig, SettingError, parse

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(280)]

SLOW = """
import time
from dataclasses import replace

import fedapp.strategies
from fedapp.strategies.fedsaf import METHOD, FedSAF, FedSAFUpdate


class SlowUpdate(FedSAFUpdate):
    def begin(self):
        time.sleep(0.5)
        super().begin()


class Slow(FedSAF):
    name = "slow"


fedapp.strategies.register(replace(METHOD, strategy=Slow, update=SlowUpdate))
"""
DEADLY = SLOW.replace("time.sleep(0.5)", "import os; self.local.client == '1' and os._exit(7)").replace(
    "slow", "deadly"
)
SETTINGS = {
    "method": "slow", "plugins": "slow_plugin", "num-server-rounds": 8, "local-epochs": 1, "batch-size": 16,
    "samples-per-client": 40, "models": "small-cnn,mlp", "feature-dim": 32, "fraction-train": 0.5, "report": False,
    "out": "results", "run-name": "one",
}  # fmt: skip


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "slow_plugin.py").write_text(SLOW)
    (tmp_path / "deadly_plugin.py").write_text(DEADLY)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    return tmp_path


def start(project: Path) -> subprocess.Popen[str]:
    """Start ``fedapp run`` as a user does; everything it starts inherits a mark."""
    words = [word for key, value in SETTINGS.items() for word in ("--set", f"{key}={value}")]
    environment = {**os.environ, "FEDAPP_TEST": str(project)}
    command = [sys.executable, "-m", "fedapp.cli", "run", "--clients", "4", *words]
    return subprocess.Popen(
        command,
        cwd=project,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),  # a background job begins deaf to Ctrl-C
    )


def wait_for_rounds(project: Path, process: subprocess.Popen[str], count: int) -> None:
    path = project / "results/one/rounds.jsonl"
    while not path.exists() or path.read_text().count("\n") < count:
        assert process.poll() is None, process.stdout.read() if process.stdout else ""
        time.sleep(0.1)


def left_behind(project: Path) -> list[str]:
    """Return the command lines of processes whose environment carries this test's mark."""
    mark = f"FEDAPP_TEST={project}".encode()
    found = []
    for process in Path("/proc").iterdir():
        try:
            if process.name.isdigit() and mark in (process / "environ").read_bytes().split(b"\0"):
                found.append((process / "cmdline").read_text().replace("\0", " ")[:100])
        except OSError:
            continue
    return [line for line in found if line]


def assert_nothing_left(project: Path) -> None:
    deadline = time.monotonic() + 90
    while left_behind(project) and time.monotonic() < deadline:
        time.sleep(0.3)
    assert left_behind(project) == []


def wait_until_free(folder: Path) -> None:
    """Wait until the ServerApp of a killed command has noticed, and let go of the run."""
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        try:
            with alone_in(folder):
                return
        except SettingError:
            time.sleep(0.2)
    raise AssertionError("the run went on without the command that started it")


def outcome(folder: Path) -> tuple[Any, ...]:
    lines = [json.loads(line) for line in (folder / "rounds.jsonl").read_text().splitlines()]
    plain = [{key: value for key, value in line.items() if not key.endswith("seconds")} for line in lines]
    return plain, runner.summary(folder)["model_sha256"]


def test_a_killed_run_leaves_nothing_and_resumes_to_the_bits_of_an_uncut_run(project: Path) -> None:
    process = start(project)
    wait_for_rounds(project, process, 2)
    process.kill()
    process.wait()
    wait_until_free(project / "results/one")
    assert not (project / "results/one/summary.json").exists()
    folder = runner.resume(Path("results/one"))
    uncut = runner.run_local(parse(RunConfig, {**SETTINGS, "out": "uncut"}), clients=4)
    assert outcome(folder) == outcome(uncut)
    assert_nothing_left(project)


def test_an_interrupted_run_says_how_to_go_on_and_leaves_nothing(project: Path) -> None:
    process = start(project)
    wait_for_rounds(project, process, 1)
    process.send_signal(signal.SIGINT)
    output, _ = process.communicate(timeout=60)
    assert process.returncode == 130, output
    assert "fedapp run --resume" in output
    assert_nothing_left(project)


def test_a_lost_worker_ends_the_run_with_its_cause(project: Path) -> None:
    values = {**SETTINGS, "method": "deadly", "plugins": "deadly_plugin", "fraction-train": 1.0}
    with pytest.raises(runner.RunFailedError, match="a worker process of the simulation died"):
        runner.run(parse(RunConfig, values), clients=4)
