"""What `fedapp run` adds to Flower's own `flwr run . --stream`.

Measured: wall time of both commands with the same settings (two clients, two short rounds of FedSAF), in turns. Plain
`flwr run` is timed twice: the first call of a user, which starts the local SuperLink, and a further call, which finds
it running. `fedapp run` starts a SuperLink for every call and ends it, asks how the run ended and reads its records.
Flower's processes get a port and an `FLWR_HOME` of their own, and only they are ended.

Wall time is what a user waits, and means something on a machine where nothing else runs. CPU time (Linux only) is that
of all processes that a command starts, daemons included: this process adopts them when their parents are gone.

Target: at most 3 s.
"""

from __future__ import annotations

import ctypes
import os
import resource
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path

from measure import HEADER, print_table, start

REPOSITORY = Path(__file__).resolve().parents[1]
SETTINGS = {"num-server-rounds": 2, "local-epochs": 1, "batch-size": 32, "samples-per-client": 60}
FEDERATION = "num-supernodes=2 client-resources-num-cpus=1"
FIRST, FURTHER, OURS = "flwr run, first call", "flwr run, further call", "fedapp run"
END_SECONDS = 30.0
PR_SET_CHILD_SUBREAPER = 36


def free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        port: int = listener.getsockname()[1]
        return port


def environment(**more: str) -> dict[str, str]:
    """Return the environment of a user without a network."""
    quiet = {
        "PATH": os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", "")]),
        "FLWR_TELEMETRY_ENABLED": "0",
        "FLWR_DISABLE_UPDATE_CHECK": "1",
        "RAY_USAGE_STATS_ENABLED": "0",
        "HF_HUB_OFFLINE": "1",
        "UV_OFFLINE": "1",
    }
    return {**os.environ, **quiet, **more}


@contextmanager
def local_superlink() -> Iterator[dict[str, str]]:
    """Hand out an environment in which `flwr run` starts a SuperLink of its own; end that SuperLink."""
    port = str(free_port())
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as home:
        ports = {"FLWR_LOCAL_SUPERLINK_HTTP_API_PORT": port, "FLWR_LOCAL_CONTROL_API_PORT": str(free_port())}
        try:
            yield environment(FLWR_HOME=home, **ports)
        finally:
            deadline = time.monotonic() + END_SECONDS
            while (found := daemons(port, home)) and time.monotonic() < deadline:
                for pid in found:
                    os.kill(pid, signal.SIGTERM)
                time.sleep(1)
            assert not daemons(port, home), "the SuperLink did not end"


def daemons(port: str, home: str) -> list[int]:
    """Return the SuperLinks that serve this port out of this home."""
    listing = subprocess.run(["ps", "-eo", "pid=,args="], capture_output=True, text=True, check=True).stdout
    rows = [line.split(maxsplit=1) for line in listing.splitlines() if line.strip()]
    return [
        int(pid)
        for pid, command in (row for row in rows if len(row) == 2)
        if "flower-superlink" in command and f"--port {port}" in command and home in command
    ]


def wall_seconds(command: list[str], folder: Path, name: str, variables: Mapping[str, str]) -> float:
    """Return the wall time of a command that leaves a finished run in `folder`."""
    before = time.perf_counter()
    done = subprocess.run(command, cwd=folder, env=variables, capture_output=True, text=True, check=False)
    spent = time.perf_counter() - before
    assert (folder / name / "summary.json").exists(), done.stdout + done.stderr
    return spent


def adopt() -> None:
    """Become the parent of processes whose own parents end."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1)


def cpu_seconds() -> float:
    """Wait for everything that was started, and return the CPU time of all of it so far."""
    deadline = time.monotonic() + END_SECONDS
    with suppress(ChildProcessError):
        while time.monotonic() < deadline:
            if os.waitpid(-1, os.WNOHANG) == (0, 0):
                time.sleep(0.2)
    spent = resource.getrusage(resource.RUSAGE_CHILDREN)
    return spent.ru_utime + spent.ru_stime


def plain(folder: Path, name: str) -> list[str]:
    settings = [f"{key}={value}" for key, value in SETTINGS.items()] + [f"out='{folder}'", f"run-name='{name}'"]
    command = ["flwr", "run", str(REPOSITORY), "--stream", "--run-config", " ".join(settings)]
    return [*command, "--federation-config", FEDERATION]


def ours(folder: Path, name: str) -> list[str]:
    pairs = [f"{key}={value}" for key, value in SETTINGS.items()] + [f"out={folder}", f"run-name={name}"]
    return ["fedapp", "run", "--clients", "2", *(word for pair in pairs for word in ("--set", pair))]


class Commands:
    """The commands to time, each run once by its method; seconds by name."""

    def __init__(self) -> None:
        self.wall: dict[str, list[float]] = {name: [] for name in (FIRST, FURTHER, OURS)}
        self.cpu: dict[str, list[float]] = {name: [] for name in (FIRST, OURS)}

    def first(self, folder: Path) -> None:
        """Time `flwr run` where no SuperLink runs, up to the end of the SuperLink it starts."""
        before = cpu_seconds()
        with local_superlink() as variables:
            self.wall[FIRST].append(wall_seconds(plain(folder, "first"), folder, "first", variables))
        self.cpu[FIRST].append(cpu_seconds() - before)

    def further(self, folder: Path) -> None:
        """Time `flwr run` on the SuperLink of an earlier call."""
        with local_superlink() as variables:
            wall_seconds(plain(folder, "before"), folder, "before", variables)
            self.wall[FURTHER].append(wall_seconds(plain(folder, "further"), folder, "further", variables))

    def ours(self, folder: Path) -> None:
        """Time `fedapp run`."""
        before = cpu_seconds()
        self.wall[OURS].append(wall_seconds(ours(folder, "ours"), folder, "ours", environment()))
        self.cpu[OURS].append(cpu_seconds() - before)


def added(seconds: Mapping[str, list[float]], base: str, clock: str, limit: str) -> tuple[str, ...]:
    """Return the row of the table that says what `fedapp run` adds to `base`."""
    pairs = [own - other for own, other in zip(seconds[OURS], seconds[base], strict=True)]
    low = min(seconds[OURS]) - min(seconds[base])
    return f"added to {base}, {clock} s", f"{low:+.1f}", f"{statistics.median(pairs):+.1f}", limit


def main() -> None:
    quick = start(__doc__)
    adopt()
    commands = Commands()
    for number in range(1 if quick else 5):
        turn = [commands.first, commands.further, commands.ours]
        for run in turn if number % 2 == 0 else reversed(turn):
            with tempfile.TemporaryDirectory() as folder:
                run(Path(folder))
    rows = [
        (f"{name}, {clock} s", f"{min(spent):.1f}", f"{statistics.median(spent):.1f}", "")
        for clock, seconds in (("wall", commands.wall), ("CPU", commands.cpu))
        for name, spent in seconds.items()
    ]
    rows.append(added(commands.wall, FIRST, "wall", "<= 3.0"))
    rows.append(added(commands.wall, FURTHER, "wall", "<= 3.0"))
    rows.append(added(commands.cpu, FIRST, "CPU", ""))
    print_table(HEADER, rows)


if __name__ == "__main__":
    main()
