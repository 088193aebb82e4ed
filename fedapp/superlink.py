"""A SuperLink of our own for the time of a run: on a free port, with its own ``FLWR_HOME``, ended with all below it."""

from __future__ import annotations

import contextlib
import ctypes
import os
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

from fedapp.environment import RunFailedError

CONNECTION = "fedapp"
SUPERLINK_SECONDS = 60.0
STOP_SECONDS = 20.0
POLL_SECONDS = 0.2
ATTEMPTS = 3
PR_SET_PDEATHSIG = 1


@dataclass(frozen=True)
class SuperLink:
    """A SuperLink that this process started.

    Attributes:
        home: Its ``FLWR_HOME``, which also holds its log.
        environment: Environment in which ``flwr`` talks to it.
    """

    home: Path
    environment: dict[str, str]


@contextlib.contextmanager
def superlink(meanwhile: Callable[[], None] | None = None) -> Iterator[SuperLink]:
    """Start a SuperLink on a free port for the time of the ``with`` block, and end it with everything below it.

    Args:
        meanwhile: Called while it starts, which takes it some seconds.

    Raises:
        RunFailedError: If it does not come up.
    """
    home = Path(tempfile.mkdtemp(prefix="fedapp-flower-"))
    link = SuperLink(home, environment(home))
    process = None
    try:
        process = _start(link, meanwhile)
        yield link
    finally:
        if process is not None:
            end(process)
        _end_family(home)
        shutil.rmtree(home, ignore_errors=True)


def _start(link: SuperLink, meanwhile: Callable[[], None] | None, attempts: int = ATTEMPTS) -> subprocess.Popen[bytes]:
    """Start the SuperLink; if somebody took the port that was free a moment ago, try another."""
    port, log = _free_port(), link.home / "superlink.log"
    connection = f'[superlink]\ndefault = "{CONNECTION}"\n[superlink.{CONNECTION}]\naddress = "127.0.0.1:{port}"\n'
    (link.home / "config.toml").write_text(connection + "insecure = true\n", encoding="utf-8")
    command = [program("flower-superlink"), "--insecure", "--simulation", "--host", "127.0.0.1", "--port", str(port)]
    process = spawn([*command, "--disable-runtime-dependency-installation"], log, link.environment)
    try:
        if meanwhile:
            meanwhile()
        _await_health(process, port, log)
    except RunFailedError:
        end(process)
        if attempts == 1:
            raise
        return _start(link, None, attempts - 1)
    return process


def _end_family(home: Path) -> None:
    """End what still runs of a SuperLink that has ended: processes that inherited its own ``FLWR_HOME``.

    Ray starts its agents in sessions of their own; they would linger for a minute after their head is gone.
    """
    mark = f"FLWR_HOME={home}".encode()
    for entry in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            if mark in (entry / "environ").read_bytes().split(b"\0"):
                os.kill(int(entry.name), signal.SIGKILL)


def spawn(command: list[str], log: Path, environment: dict[str, str]) -> subprocess.Popen[bytes]:
    """Start a process in a session of its own that writes to ``log`` and does not outlive this process."""
    with log.open("wb") as sink:
        return subprocess.Popen(
            command,
            stdout=sink,
            stderr=subprocess.STDOUT,
            env=environment,
            start_new_session=True,
            preexec_fn=_end_with_parent if sys.platform == "linux" else None,
        )


def _end_with_parent() -> None:
    """Ask Linux to terminate this process when its parent is gone, even if it was killed."""
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGTERM)


def environment(home: Path) -> dict[str, str]:
    """Return the environment for Flower's programs: this interpreter's folder first, nothing phoned home."""
    quiet = {
        "FLWR_HOME": str(home),
        "FEDAPP_RUNNER": str(os.getpid()),
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


def program(name: str) -> str:
    """Return the path of one of Flower's programs, of this interpreter's environment if it is there.

    Raises:
        RunFailedError: If it is not installed.
    """
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
        answered = False
        with contextlib.suppress(OSError), urllib.request.urlopen(f"http://127.0.0.1:{port}/health", timeout=2):
            answered = True
        time.sleep(POLL_SECONDS)
        if answered and process.poll() is None:  # else a stranger answered on the port, and ours has given up
            return
    tail = "\n".join(log.read_text(errors="replace").splitlines()[-5:])
    raise RunFailedError(f"the SuperLink did not come up on port {port} within {SUPERLINK_SECONDS:g} s:\n{tail}")


def end(process: subprocess.Popen[bytes]) -> None:
    """End a process that was started here with a session of its own, and all that still runs in that session."""
    if process.poll() is None:
        process.terminate()
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(STOP_SECONDS)
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()
