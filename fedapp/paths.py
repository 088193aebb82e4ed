"""Relative paths mean the user's directory, not the daemon's.

Flower's local SuperLink is a daemon that outlives the command which started it, so the working directory of the
ServerApp is wherever the first ``flwr run`` ever happened. The directory of the ``flwr run`` that waits for this run
is found among the user's processes instead; where that cannot be told, the home directory stands in.
"""

from __future__ import annotations

import logging
import os
from pathlib import Path

from fedapp.config import SettingError

_base: Path | None = None


def set_base(folder: str) -> None:
    """Let relative paths mean ``folder`` in this process; an empty text changes nothing."""
    global _base
    if folder:
        _base = Path(folder)


def base() -> Path:
    """Return the directory that relative paths mean."""
    return _base or Path.cwd()


def resolve(path: str) -> str:
    """Return ``path`` made absolute: ``~`` is the home directory, relative is to :func:`base`; "" stays.

    Example:
        >>> resolve("")
        ''
    """
    try:
        return str((base() / Path(path).expanduser()).resolve()) if path else ""
    except RuntimeError as error:  # no such user
        raise SettingError(f"{path!r} names no folder: {error}; give an absolute path") from None


def directory_of_user() -> str:
    """Return the directory of the one ``flwr run`` of this user and ``FLWR_HOME``, else the home directory."""
    found = {folder for pid in _processes() if (folder := _directory_if_flwr_run(pid))}
    if len(found) == 1:
        return found.pop()
    text = (
        "cannot tell which directory you ran from (%s `flwr run` at work): relative paths mean your home directory %s"
    )
    logging.getLogger("flwr").warning(text, len(found) or "no", Path.home())
    return str(Path.home())


def _processes() -> list[Path]:
    try:
        return [entry for entry in Path("/proc").iterdir() if entry.name.isdigit()]
    except OSError:  # not Linux
        return []


def _directory_if_flwr_run(process: Path) -> str:
    try:
        if process.stat().st_uid != os.getuid():
            return ""
        words = (process / "cmdline").read_bytes().decode(errors="replace").split("\0")
        names = [Path(word).name for word in words[:3]]
        if "flwr" not in names or words[names.index("flwr") + 1 :][:1] != ["run"]:
            return ""
        if _flower_home((process / "environ").read_bytes().split(b"\0")) != _own_flower_home():
            return ""  # it waits for another SuperLink
        folder = (process / "cwd").readlink()
        return str(folder) if folder.is_dir() else ""
    except (OSError, AttributeError, IndexError):  # gone by now, or another user's
        return ""


def _flower_home(environment: list[bytes]) -> bytes:
    return next((entry for entry in environment if entry.startswith(b"FLWR_HOME=")), b"FLWR_HOME=")


def _own_flower_home() -> bytes:
    return f"FLWR_HOME={os.environ.get('FLWR_HOME', '')}".encode()


def existing(path: str, setting: str) -> str:
    """Return ``path`` resolved.

    Raises:
        SettingError: If it is given but nothing is there.
    """
    resolved = resolve(path)
    if resolved and not Path(resolved).exists():
        raise SettingError(f"{setting} = {path!r} is not there ({resolved}); give its absolute path")
    return resolved
