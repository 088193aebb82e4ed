"""Real Flower processes for tests: their own port and FLWR_HOME; only what was started here is ended."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).resolve().parents[2]


def free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return int(listener.getsockname()[1])


@pytest.fixture(scope="session")
def plain_flower(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, str]]:
    """Environment of a user without a network; ends the daemon that the first ``flwr run`` leaves behind."""
    home = tmp_path_factory.mktemp("flwr-home")
    port = str(free_port())
    environment = {
        **os.environ,
        "PATH": os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]]),
        "FLWR_HOME": str(home),
        "FLWR_LOCAL_SUPERLINK_HTTP_API_PORT": port,
        "FLWR_LOCAL_CONTROL_API_PORT": str(free_port()),
        "FLWR_TELEMETRY_ENABLED": "0",
        "FLWR_DISABLE_UPDATE_CHECK": "1",
        "RAY_USAGE_STATS_ENABLED": "0",
        "PYTHONUNBUFFERED": "1",
        "HF_HUB_OFFLINE": "1",
        "UV_OFFLINE": "1",
    }
    environment.pop("FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION", None)
    yield environment
    for pid in _daemons(port, home):
        os.kill(pid, signal.SIGTERM)
    deadline = time.monotonic() + 20
    while _daemons(port, home) and time.monotonic() < deadline:
        time.sleep(0.2)
    assert not _daemons(port, home), "the SuperLink of the tests did not end"


def _daemons(port: str, home: Path) -> list[int]:
    """Return the SuperLinks that serve this port out of this home."""
    listing = subprocess.run(["ps", "-wweo", "pid=,args="], capture_output=True, text=True, check=True).stdout
    rows = (line.strip().split(maxsplit=1) for line in listing.splitlines() if line.strip())
    return [
        int(pid)
        for pid, command in (row for row in rows if len(row) == 2)
        if "flower-superlink" in command and f"--port {port}" in command and str(home) in command
    ]
