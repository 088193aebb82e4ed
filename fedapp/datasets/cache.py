"""Arrays kept on disk between processes, so that a data set is decoded or drawn once per machine."""

from __future__ import annotations

import contextlib
import json
import logging
import os
import shutil
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

Arrays = dict[str, NDArray[Any]]
Empty = Callable[[str, tuple[int, ...]], NDArray[np.uint8]]

INDEX = "index.json"
MAPPED_BYTES = 1_000_000
ABANDONED_SECONDS = 24 * 3600.0  # no data set takes that long

logger = logging.getLogger(__name__)


def cache_folder() -> Path:
    """Return the cache folder: the variable FEDAPP_CACHE, or ~/.cache/fedapp."""
    chosen = os.environ.get("FEDAPP_CACHE")
    return Path(chosen or "~/.cache/fedapp").expanduser()


def cached_arrays(name: str, build: Callable[[], Arrays]) -> Arrays:
    """Return the arrays that ``build`` makes, from the cache folder if they are there.

    One entry is a folder with an .npy file per array and an index of their shapes; it appears whole or not at all. A
    broken entry is built anew, with a warning; where the cache folder cannot be written, with another, nothing is kept.

    Args:
        name: Name of the entry; it must change with whatever the arrays depend on, the version of the code included.
        build: Makes the arrays.

    Returns:
        The arrays by name; large ones are read-only memory maps.
    """
    return drafted_arrays(name, lambda _: build())


def drafted_arrays(name: str, build: Callable[[Empty], Arrays]) -> Arrays:
    """Return the arrays that ``build`` makes, as :func:`cached_arrays` does, for arrays that may not fit in memory.

    Args:
        name: As there.
        build: Makes the arrays, given what makes an array to fill from its name and shape, uint8: a file of the entry
            mapped into memory. Where there is no room for it, it is in memory. Other arrays may join it.

    Returns:
        The arrays by name; large ones are read-only memory maps.
    """
    try:
        entry = cache_folder() / name
        if entry.exists():
            return _read(entry)
    except RuntimeError as error:  # no home folder
        logger.warning("no cache folder (%s): %s is kept in memory only; set FEDAPP_CACHE", error, name)
        return build(in_memory)
    except (OSError, ValueError, KeyError) as error:
        logger.warning("the cache entry %s is broken (%s) and is built anew", entry, error)
        shutil.rmtree(entry, ignore_errors=True)
    try:
        scratch = _scratch(entry)
    except OSError as error:
        _warn(entry, error)
        return build(in_memory)
    with scratch as folder:
        draft = _Draft(Path(folder) / entry.name)
        arrays = build(draft.empty)
        try:
            draft.publish(arrays, entry)
            return _read(entry)
        except (OSError, ValueError, KeyError) as error:
            _warn(entry, error)
            return arrays


def in_memory(name: str, shape: tuple[int, ...]) -> NDArray[np.uint8]:
    """Return an array to fill, uint8 of this shape, whatever its name."""
    del name
    return np.empty(shape, dtype=np.uint8)


class _Draft:
    """An entry while it is built, beside its place."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._mapped: dict[str, NDArray[np.uint8]] = {}
        folder.mkdir()

    def empty(self, name: str, shape: tuple[int, ...]) -> NDArray[np.uint8]:
        """Return an array to fill that is a file of the entry, or in memory where there is no room for the file."""
        try:
            self._mapped[name] = _mapped(self._folder / f"{name}.npy", shape)
        except OSError as error:
            _warn(self._folder / name, error)
            return in_memory(name, shape)
        return self._mapped[name]

    def publish(self, arrays: Arrays, entry: Path) -> None:
        """Write what is in memory and move the entry to its place; the process that comes first wins."""
        for name, array in arrays.items():
            if array is not self._mapped.get(name):
                whole = self._folder / f"{name}.part"  # never over a file that the array may be a view of
                with whole.open("wb") as file:
                    np.save(file, array, allow_pickle=False)
                whole.replace(self._folder / f"{name}.npy")
        index = {name: [array.dtype.str, list(array.shape)] for name, array in arrays.items()}
        (self._folder / INDEX).write_text(json.dumps(index), encoding="utf-8")
        try:
            self._folder.rename(entry)
        except OSError:
            if not entry.exists():
                raise


def _mapped(path: Path, shape: tuple[int, ...]) -> NDArray[np.uint8]:
    """Make an .npy file of zeros and map it; a full disk is an error now, for later it would end the process."""
    array: NDArray[np.uint8] = np.lib.format.open_memmap(path, mode="w+", dtype=np.uint8, shape=shape)
    with path.open("r+b") as file:
        if hasattr(os, "posix_fallocate"):
            os.posix_fallocate(file.fileno(), 0, path.stat().st_size)
        elif shutil.disk_usage(path).free < path.stat().st_size:
            raise OSError(f"no room for {path.stat().st_size} bytes")
    return array


def _scratch(entry: Path) -> tempfile.TemporaryDirectory[str]:
    """Make a folder beside the entry's place, and clear away those that killed processes left there."""
    entry.parent.mkdir(parents=True, exist_ok=True)
    for left in entry.parent.glob(f"{entry.name}.*"):
        with contextlib.suppress(FileNotFoundError):  # another process clears it away
            if time.time() - left.stat().st_mtime > ABANDONED_SECONDS:
                shutil.rmtree(left, ignore_errors=True)
    return tempfile.TemporaryDirectory(dir=entry.parent, prefix=f"{entry.name}.", ignore_cleanup_errors=True)


def _warn(entry: Path, error: Exception) -> None:
    logger.warning("%s could not be cached (%s) and is kept in memory only; set FEDAPP_CACHE", entry, error)


def _read(entry: Path) -> Arrays:
    index = json.loads((entry / INDEX).read_text(encoding="utf-8"))
    arrays: Arrays = {}
    for name, (dtype, shape) in index.items():
        path = entry / f"{name}.npy"
        array = np.load(path, mmap_mode="r" if path.stat().st_size > MAPPED_BYTES else None, allow_pickle=False)
        if array.dtype.str != dtype or list(array.shape) != shape:
            raise ValueError(f"{path.name} holds {array.dtype.str} {array.shape}, the index says {dtype} {shape}")
        arrays[name] = array
    return arrays
