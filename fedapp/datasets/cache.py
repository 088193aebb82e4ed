"""Arrays kept on disk between processes, so that a data set is decoded or drawn once per machine."""

from __future__ import annotations

import json
import logging
import os
import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

Arrays = dict[str, NDArray[Any]]

INDEX = "index.json"
MAPPED_BYTES = 1_000_000

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
    try:
        entry = cache_folder() / name
        if entry.exists():
            return _read(entry)
    except RuntimeError as error:  # no home folder
        logger.warning("no cache folder (%s): %s is kept in memory only; set FEDAPP_CACHE", error, name)
        return build()
    except (OSError, ValueError, KeyError) as error:
        logger.warning("the cache entry %s is broken (%s) and is built anew", entry, error)
        shutil.rmtree(entry, ignore_errors=True)
    arrays = build()
    try:
        _write(entry, arrays)
        return _read(entry)
    except (OSError, ValueError, KeyError) as error:
        logger.warning("%s could not be cached (%s) and is kept in memory only; set FEDAPP_CACHE", entry, error)
        return arrays


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


def _write(entry: Path, arrays: Arrays) -> None:
    """Write the entry beside its place and move it there; the process that comes first wins."""
    entry.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=entry.parent, prefix=f"{entry.name}.", ignore_cleanup_errors=True) as scratch:
        draft = Path(scratch) / entry.name
        draft.mkdir()
        for name, array in arrays.items():
            np.save(draft / f"{name}.npy", array, allow_pickle=False)
        index = {name: [array.dtype.str, list(array.shape)] for name, array in arrays.items()}
        (draft / INDEX).write_text(json.dumps(index), encoding="utf-8")
        try:
            draft.rename(entry)
        except OSError:
            if not entry.exists():
                raise
