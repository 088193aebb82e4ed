"""What a run needs to go on after a crash, written after every round; and which client models are kept for good.

A checkpoint is one safetensors file, ``round-<number>-<checksum>.safetensors``, written beside and moved into place.
The checksum covers the whole file, so that a broken newest checkpoint is passed over for the one before it.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import hashlib
import os
import re
import shutil
from collections.abc import Iterator, Mapping
from logging import WARNING
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from flwr.common.logger import log
from safetensors import SafetensorError
from safetensors.numpy import load as from_bytes
from safetensors.numpy import save as to_bytes

from fedapp.config import SettingError
from fedapp.memory import ClientMemory, write_atomically
from fedapp.strategies.base import PayloadStrategy
from fedapp.strategies.records import RoundRecord

KEPT = 2
SERVER = "_server.safetensors"
"""The server's state beside kept client models; no client's name can begin like this."""
_PATTERN = re.compile(r"round-(\d{8})-([0-9a-f]{64})\.safetensors")


class Checkpointer:
    """An observer that writes a checkpoint after every round and keeps the last two.

    Args:
        folder: The run's folder; checkpoints are in ``checkpoints/`` below it.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder / "checkpoints"

    def on_start(self, strategy: PayloadStrategy) -> None:
        """Make the folder."""
        self.folder.mkdir(exist_ok=True)

    def on_round(self, strategy: PayloadStrategy, record: RoundRecord) -> str | None:
        """Write the server's state as it is after this round."""
        data = _packed(strategy)
        name = f"round-{record.round:08d}-{hashlib.sha256(data).hexdigest()}.safetensors"
        write_atomically(self.folder / name, data)
        kept = {path for _, path in found(self.folder)[-KEPT:]}
        for path in self.folder.iterdir():
            if path not in kept:
                with contextlib.suppress(OSError):
                    path.unlink()
        return None

    def on_end(self, strategy: PayloadStrategy, digests: Mapping[str, str]) -> None:
        """Do nothing: the last checkpoint stays, so that the run can be prolonged."""


def _packed(strategy: PayloadStrategy) -> bytes:
    return to_bytes({name: np.asarray(array, order="C") for name, array in strategy.state().items()})


def found(folder: Path) -> list[tuple[int, Path]]:
    """Return the checkpoints in a folder as (round, path), oldest first, without reading them."""
    paths = sorted(folder.iterdir()) if folder.is_dir() else []
    return [(int(match.group(1)), path) for path in paths if (match := _PATTERN.fullmatch(path.name))]


def newest(run: Path) -> tuple[int, dict[str, npt.NDArray[Any]]]:
    """Return the newest readable checkpoint of a run: its round and the server's state; (0, {}) if there is none."""
    for number, path in reversed(found(run / "checkpoints")):
        match = _PATTERN.fullmatch(path.name)
        data = path.read_bytes()
        if match and hashlib.sha256(data).hexdigest() == match.group(2):
            with contextlib.suppress(SafetensorError):
                return number, from_bytes(data)
        log(WARNING, "checkpoint %s is broken; trying the one before", path.name)
    return 0, {}


@contextlib.contextmanager
def alone_in(folder: Path) -> Iterator[None]:
    """Hold a run's folder for this process, so that a run which is still going on is not continued beside itself.

    Raises:
        SettingError: If another process holds it.
    """
    with (folder / ".lock").open("w") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            if error.errno in (errno.EACCES, errno.EAGAIN):
                raise SettingError(f"{folder} is being written by a run that is still going on; wait for it") from None
        yield  # a file system without locks is no reason not to run


class ModelKeeper:
    """An observer that keeps client models for good: of every k-th evaluated round, and of the best one.

    In a simulation the clients' memory lies below the run's folder, and keeping a model is a hard link.

    Args:
        folder: The run's folder; models go to ``models/round-<number>/`` and ``models/best/`` below it.
        every: k.
        lines: The recorder's round lines, newest last.
    """

    def __init__(self, folder: Path, every: int, lines: list[dict[str, Any]]) -> None:
        self.folder = folder
        self.every = every
        self.lines = lines

    def on_start(self, strategy: PayloadStrategy) -> None:
        """Do nothing yet."""

    def on_round(self, strategy: PayloadStrategy, record: RoundRecord) -> str | None:
        """Keep the models of this round if it is due or the best so far."""
        accuracies = [line["accuracy"] for line in self.lines if line["accuracy"] is not None]
        if not accuracies or self.lines[-1]["accuracy"] is None:
            return None
        if len(accuracies) % self.every == 0:
            self._keep(strategy, record.round, self.folder / "models" / f"round-{record.round:08d}")
        if accuracies[-1] > max(accuracies[:-1], default=-1.0):
            self._keep(strategy, record.round, self.folder / "models" / "best")
        return None

    def on_end(self, strategy: PayloadStrategy, digests: Mapping[str, str]) -> None:
        """Do nothing."""

    def _keep(self, strategy: PayloadStrategy, number: int, target: Path) -> None:
        scratch = target.with_name(f".{target.name}.tmp")
        shutil.rmtree(scratch, ignore_errors=True)
        scratch.mkdir(parents=True)
        for client in strategy.clients:
            source = ClientMemory(self.folder.parent, self.folder.name, client).path(before=number + 1)
            if source is not None:
                _link(source, scratch / f"{client}.safetensors")
        (scratch / SERVER).write_bytes(_packed(strategy))
        shutil.rmtree(target, ignore_errors=True)
        scratch.replace(target)


def _link(source: Path, target: Path) -> None:
    try:
        os.link(source, target)
    except OSError:  # another file system
        shutil.copyfile(source, target)
