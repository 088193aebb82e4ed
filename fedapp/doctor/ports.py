"""Check: is a stranger on the ports of Flower's local SuperLink?

``flwr run .`` uses whichever SuperLink answers on the port, with that one's packages, folder and environment. What
holds a port is read from /proc; elsewhere than on Linux, and of other users' processes, less can be told.
"""

from __future__ import annotations

import os
import pwd
import socket
import sys
from dataclasses import dataclass
from pathlib import Path

from fedapp.doctor.base import Case, Finding, UnwellError

PORTS = {"FLWR_LOCAL_SUPERLINK_HTTP_API_PORT": 39091, "FLWR_LOCAL_CONTROL_API_PORT": 39093}
LISTENING = "0A"
SUPERLINK = "flower-superlink"


@dataclass(frozen=True)
class Holder:
    """The process that listens on a port, as far as it can be told.

    Attributes:
        pid: Its process id; 0 if unknown.
        user: Its user.
        command: Its command line; empty if unknown.
    """

    pid: int
    user: str
    command: tuple[str, ...]

    @property
    def is_superlink(self) -> bool:
        """Whether it is a SuperLink."""
        return any(Path(word).name == SUPERLINK for word in self.command[:3])

    @property
    def is_ours(self) -> bool:
        """Whether it is a SuperLink of this user and this environment."""
        program = Path(self.command[0]) if self.command else Path()
        return self.is_superlink and self.user == _user(os.getuid()) and program.parent == Path(sys.executable).parent

    def __str__(self) -> str:
        """Return who it is, in words."""
        if not self.pid:
            return f"a process of user {self.user}" if self.user else "a process that cannot be told"
        words = " ".join(self.command)
        what = "a SuperLink of another environment" if self.is_superlink else "a stranger"
        return f"{what}, pid {self.pid} of user {self.user} ({words[:80]}{'...' if len(words) > 80 else ''})"


def look(case: Case) -> str:
    """Try both ports."""
    well, findings = [], []
    for variable, default in PORTS.items():
        port = number(os.environ.get(variable, ""), default)
        if not 0 < port < 65536:
            text = f"{variable} = {os.environ[variable]!r} is not a port"
            findings.append(Finding(text, f"set it to a number below 65536, or unset it for {default}"))
        elif not taken(port):
            well.append(f"{port} is free")
        elif (holder := holder_of(port)).is_ours:
            well.append(f"{port} is this environment's own SuperLink (pid {holder.pid})")
        else:
            findings.append(Finding(f"port {port} is held by {holder}", _cure(variable, holder)))
    if findings:
        raise UnwellError(*findings)
    return ", ".join(well)


def _cure(variable: str, holder: Holder) -> str:
    end = f"end it (kill {holder.pid})" if holder.pid else "end it"
    return (
        f"`fedapp run` is not affected, it takes a free port; before a plain `flwr run .` {end}, or set {variable} "
        "to a free port"
    )


def number(text: str, default: int) -> int:
    """Return the port that a variable names, ``default`` if it is empty, -1 if it is none.

    Example:
        >>> number("", 39091), number("40000", 39091), number("http", 39091)
        (39091, 40000, -1)
    """
    return int(text) if text.isascii() and text.isdigit() else (-1 if text else default)


def taken(port: int) -> bool:
    """Return whether somebody listens on a port of this machine."""
    with socket.socket() as trial:
        trial.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            trial.bind(("127.0.0.1", port))
        except OSError:
            return True
    return False


def holder_of(port: int) -> Holder:
    """Return who listens on a port."""
    for table in ("/proc/net/tcp", "/proc/net/tcp6"):
        try:
            rows = [line.split() for line in Path(table).read_text(encoding="ascii").splitlines()[1:]]
        except OSError:
            continue
        for row in rows:
            if row[3] == LISTENING and int(row[1].rpartition(":")[2], 16) == port:
                return _process(f"socket:[{row[9]}]", _user(int(row[7])))
    return Holder(0, "", ())


def _process(link: str, user: str) -> Holder:
    """Return the process that has a socket open."""
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            if any(str(file.readlink()) == link for file in (entry / "fd").iterdir()):
                command = (entry / "cmdline").read_bytes().decode(errors="replace").split("\0")
                return Holder(int(entry.name), user, tuple(word for word in command if word))
        except OSError:  # gone by now, or another user's
            continue
    return Holder(0, user, ())


def _user(uid: int) -> str:
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return str(uid)
