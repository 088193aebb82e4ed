"""Runs experiments and tells the truth about how they ended: through Flower's simulation, or in this process.

``flwr run`` exits 0 even when the run failed, and runs on whichever SuperLink owns the port. Here every call has a
SuperLink of its own on a free port, with its own ``FLWR_HOME``, and ends it; a run that failed raises with the cause.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fedapp.config import RunConfig, flatten
from fedapp.paths import resolve, set_base

CONNECTION = "fedapp"
SUPERLINK_SECONDS = 60.0
STOP_SECONDS = 20.0
POLL_SECONDS = 0.2
Progress = Callable[[dict[str, Any]], None]


class RunFailedError(RuntimeError):
    """The run did not end well; the message is the cause, and names the log."""


@dataclass(frozen=True)
class SuperLink:
    """A SuperLink that this process started.

    Attributes:
        home: Its ``FLWR_HOME``, which also holds its log.
        environment: Environment in which ``flwr`` talks to it.
    """

    home: Path
    environment: dict[str, str]


def run(config: RunConfig, clients: int, engine: str = "flower", progress: Progress | None = None) -> Path:
    """Run one experiment and return its results folder.

    Args:
        config: Every setting.
        clients: Number of simulated clients.
        engine: "flower" for Flower's Ray simulation, "local" for this process.
        progress: Called with every line of rounds.jsonl as it is written.

    Raises:
        RunFailedError: If the run failed; the message is the cause.
        SettingError: If a setting is wrong.
    """
    if engine == "local":
        return run_local(config, clients, progress)
    with superlink() as link:
        return run_on(link, config, clients, progress)


def run_local(config: RunConfig, clients: int, progress: Progress | None = None) -> Path:
    """Run one experiment in this process and return its results folder."""
    from fedapp import client_app, server_app
    from fedapp.local_grid import LocalGrid

    config = absolute(config)
    recorder = server_app.run(LocalGrid(client_app.app, clients, flatten(config)), config, base=str(Path.cwd()))
    for line in recorder.rounds if progress else ():
        progress(line)  # type: ignore[misc]
    return recorder.folder


def absolute(config: RunConfig) -> RunConfig:
    """Return ``config`` with paths absolute from the current directory, and a definite run name."""
    set_base(str(Path.cwd()))
    data = dataclasses.replace(config.data, data_root=resolve(config.data.data_root))
    stamp = time.strftime("%Y%m%d-%H%M%S")
    name = config.run_name or f"{config.method}-{config.data.dataset}-s{config.seed}-{stamp}-{os.getpid()}"
    return dataclasses.replace(config, data=data, out=resolve(config.out), run_name=name)


@contextlib.contextmanager
def superlink() -> Iterator[SuperLink]:
    """Start a SuperLink on a free port for the time of the ``with`` block, and end it with everything below it.

    Raises:
        RunFailedError: If it does not come up.
    """
    home = Path(tempfile.mkdtemp(prefix="fedapp-flower-"))
    port = _free_port()
    connection = f'[superlink]\ndefault = "{CONNECTION}"\n[superlink.{CONNECTION}]\naddress = "127.0.0.1:{port}"\n'
    (home / "config.toml").write_text(connection + "insecure = true\n", encoding="utf-8")
    link = SuperLink(home, _environment(home))
    command = [_program("flower-superlink"), "--insecure", "--simulation", "--host", "127.0.0.1", "--port", str(port)]
    command += ["--disable-runtime-dependency-installation"]
    with (home / "superlink.log").open("wb") as log:
        process = subprocess.Popen(
            command, stdout=log, stderr=subprocess.STDOUT, env=link.environment, start_new_session=True
        )
    try:
        _await_health(process, port, home / "superlink.log")
        yield link
    finally:
        _end(process)
        shutil.rmtree(home, ignore_errors=True)


def run_on(
    link: SuperLink, config: RunConfig, clients: int, progress: Progress | None = None, workers: int = 0
) -> Path:
    """Run one experiment on a SuperLink and return its results folder.

    Args:
        link: The SuperLink.
        config: Every setting.
        clients: Number of simulated clients.
        progress: Called with every line of rounds.jsonl as it is written.
        workers: Clients that train at once; 0 = one a core.

    Raises:
        RunFailedError: If Flower does not report the run as completed; the message is the cause.
    """
    from fedapp import server_app

    config = absolute(config)
    server_app.check(config)
    folder = Path(config.out) / config.run_name
    if folder.exists():
        raise RunFailedError(
            f"{folder} exists already and is not overwritten; choose another run-name, or move it away"
        )
    app = _write_app(link.home / "app", config)
    log = link.home / "run.log"
    federation = f"num-supernodes={clients} client-resources-num-cpus=1"
    federation += f" init-args-num-cpus={workers}" if workers else ""
    command = [_program("flwr"), "run", str(app), CONNECTION, "--stream", "--federation-config", federation]
    with log.open("wb") as sink:
        process = subprocess.Popen(
            command, stdout=sink, stderr=subprocess.STDOUT, env=link.environment, start_new_session=True
        )
    try:
        _follow(process, folder / "rounds.jsonl", progress)
    finally:
        _end(process)
    text = log.read_text(encoding="utf-8", errors="replace")
    if folder.is_dir():
        (folder / "flower.log").write_text(text, encoding="utf-8")
    if (status := _status(link)) != "finished:completed" or not (folder / "summary.json").is_file():
        where = folder if folder.is_dir() else _keep_log(text, config)
        raise RunFailedError(f"{_cause(text, status)}\nFlower's log is in {where}")
    return folder


def summary(folder: Path) -> dict[str, Any]:
    """Return the summary of a finished run."""
    loaded: dict[str, Any] = json.loads((folder / "summary.json").read_text(encoding="utf-8"))
    return loaded


# ---- parts ---------------------------------------------------------------------------------------


def _follow(process: subprocess.Popen[bytes], rounds: Path, progress: Progress | None) -> None:
    """Wait for ``flwr run --stream``, handing on every complete line of rounds.jsonl."""
    seen = 0
    while True:
        ended = process.poll() is not None
        lines = rounds.read_text(encoding="utf-8").split("\n")[:-1] if rounds.is_file() else []
        for line in lines[seen:]:
            if progress:
                progress(json.loads(line))
        seen = len(lines)
        if ended:
            return
        time.sleep(POLL_SECONDS)


def _write_app(folder: Path, config: RunConfig) -> Path:
    """Write a thin Flower app whose defaults are this run's settings; it imports the installed fedapp."""
    shutil.rmtree(folder, ignore_errors=True)
    package = folder / "fedapp_run"
    package.mkdir(parents=True)
    (package / "__init__.py").write_text("")
    for half in ("server_app", "client_app"):
        (package / f"{half}.py").write_text(f"from fedapp.{half} import app\n\n__all__ = ['app']\n")
    settings = "\n".join(f"{key} = {json.dumps(value)}" for key, value in flatten(config).items())
    (folder / "pyproject.toml").write_text(
        '[project]\nname = "fedapp-run"\nversion = "1.0.0"\ndescription = ""\nlicense = "Apache-2.0"\n'
        "dependencies = []\n"
        '[tool.flwr.app]\npublisher = "fedapp"\n'
        '[tool.flwr.app.components]\nserverapp = "fedapp_run.server_app:app"\nclientapp = "fedapp_run.client_app:app"\n'
        f"[tool.flwr.app.config]\n{settings}\n",
        encoding="utf-8",
    )
    return folder


def _environment(home: Path) -> dict[str, str]:
    """Return the environment for Flower's programs: this interpreter's folder first, nothing phoned home."""
    quiet = {
        "FLWR_HOME": str(home),
        "FLWR_TELEMETRY_ENABLED": "0",
        "FLWR_DISABLE_UPDATE_CHECK": "1",
        "RAY_USAGE_STATS_ENABLED": "0",
        "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",
        "PYTHONUNBUFFERED": "1",
    }
    search = {
        "PATH": os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", "")]),
        "PYTHONPATH": os.pathsep.join(filter(None, [str(Path.cwd()), os.environ.get("PYTHONPATH", "")])),
    }
    return {**os.environ, **quiet, **search}


def _program(name: str) -> str:
    beside = Path(sys.executable).parent / name
    found = str(beside) if beside.exists() else shutil.which(name)
    if not found:
        raise RunFailedError(f"{name} is not installed beside {sys.executable}; pip install 'flwr[simulation]'")
    return found


def _free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        port: int = listener.getsockname()[1]
        return port


def _await_health(process: subprocess.Popen[bytes], port: int, log: Path) -> None:
    deadline = time.monotonic() + SUPERLINK_SECONDS
    while time.monotonic() < deadline and process.poll() is None:
        with contextlib.suppress(OSError), urllib.request.urlopen(f"http://127.0.0.1:{port}/health", timeout=2):
            return
        time.sleep(POLL_SECONDS)
    tail = "\n".join(log.read_text(errors="replace").splitlines()[-5:])
    raise RunFailedError(f"the SuperLink did not come up on port {port} within {SUPERLINK_SECONDS:g} s:\n{tail}")


def _end(process: subprocess.Popen[bytes]) -> None:
    """End a process that was started here with a session of its own, and all that still runs in that session."""
    if process.poll() is None:
        process.terminate()
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(STOP_SECONDS)
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


def _status(link: SuperLink) -> str:
    command = [_program("flwr"), "list", CONNECTION, "--format", "json"]
    result = subprocess.run(command, env=link.environment, capture_output=True, text=True, timeout=60, check=False)
    try:
        runs = json.loads(result.stdout)["runs"]
        return str(max(runs, key=lambda run: run["pending-at"])["status"]) if runs else "never submitted"
    except (ValueError, KeyError):
        return f"unknown ({result.stdout.strip() or result.stderr.strip()})"


def _cause(text: str, status: str) -> str:
    """Return the line of Flower's log that says why, else the status."""
    plain = re.sub(r"\x1b\[[0-9;]*m", "", text)
    lines = [line.strip() for line in plain.splitlines() if line.strip()]
    errors = [line for line in lines if re.match(r"(?:[\w.]+\.)?\w*(?:Error|Exception)\b", line)]
    for error in errors:
        if "CannotRunError: " in error or "MissingPackageError: " in error:
            return error.split("Error: ", 1)[1]
    return errors[-1] if errors else f"the run ended as {status}; last line: {lines[-1] if lines else 'none'}"


def _keep_log(text: str, config: RunConfig) -> Path:
    path = Path(tempfile.gettempdir()) / f"{config.run_name}.log"
    path.write_text(text, encoding="utf-8")
    return path
