"""Image files and cells, decoded once to squares of one size."""

from __future__ import annotations

import functools
import hashlib
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from fedapp.datasets.base import Bools, Bytes
from fedapp.datasets.cache import Arrays, cached_arrays
from fedapp.datasets.own.reading import BadRows, Where
from fedapp.datasets.pictures import picture

VERSION = 2
Cell = Path | dict[str, Any] | bytes | None


@dataclass(frozen=True)
class Origin:
    """What images were read from; a change of it is a change of the images.

    Attributes:
        files: The files, or folders of them.
        column: Which column of theirs, if they are tables.
    """

    files: Sequence[Path]
    column: str = ""


def pixels(cells: Sequence[Cell], origin: Origin, side: int, where: Where, bad: BadRows) -> tuple[Bytes, Bools]:
    """Return images as RGB squares and which cells they are; decoded ones are kept in fedapp's cache.

    Args:
        cells: An image each: a file, its bytes, or a cell of the ``datasets`` library, {"bytes", "path"}.
        origin: What the cells were read from.
        side: Side of the square in pixels.
        where: Names a cell.
        bad: Where cells that cannot be read are noted.

    Returns:
        The images that can be read, uint8 (M, side, side, 3), and which they are, bool (N,).

    Raises:
        SettingError: If a cell cannot be read and bad rows stop.
    """
    made = cached_arrays(
        f"own-images-v{VERSION}-{_digest(origin, side)}", lambda: _decode(cells, side, where, bad.policy)
    )
    for position, reason in zip(made["broken"].tolist(), made["reasons"].tolist(), strict=True):
        bad.add(where(position), reason)
    readable = np.ones(len(cells), dtype=np.bool_)
    readable[made["broken"]] = False
    return made["pixels"], readable


def _decode(cells: Sequence[Cell], side: int, where: Where, policy: str) -> Arrays:
    images = np.empty((len(cells), side, side, 3), dtype=np.uint8)
    broken: list[int] = []
    reasons: list[str] = []
    for position, cell in enumerate(cells):
        try:
            images[position - len(broken)] = square(cell, side)
        except Exception as error:  # of corrupt files Pillow raises much, SyntaxError among it
            reason = f"the image cannot be read ({type(error).__name__}: {str(error).partition(chr(10))[0]})"
            BadRows(policy).add(where(position), reason)
            broken.append(position)
            reasons.append(reason)
    return {
        "pixels": images[: len(cells) - len(broken)],
        "broken": np.asarray(broken, dtype=np.int64),
        "reasons": np.asarray(reasons, dtype=np.str_),
    }


def square(cell: Cell, side: int) -> Bytes:
    """Open one image as RGB, turn it upright and resize it."""
    if isinstance(cell, dict):
        cell = cell["bytes"] if cell["bytes"] is not None else Path(cell["path"])
    if cell is None:
        raise ValueError("it is empty")
    return picture(cell, (side, side, 3), upright=True)


def _digest(origin: Origin, side: int) -> str:
    files = [file for path in origin.files for file in (sorted(path.rglob("*")) if path.is_dir() else [path])]
    folders = functools.cache(os.path.realpath)  # of a hundred thousand images few lie in folders of their own
    states = [_state(file, folders(file.parent)) for file in files]
    return hashlib.sha256(repr((side, origin.column, states)).encode()).hexdigest()[:16]


def _state(file: Path, folder: str) -> tuple[str, int, int]:
    """Return what changes with a file in a folder; its place alone where a link leads nowhere."""
    place = os.path.realpath(file) if file.is_symlink() else f"{folder}/{file.name}"
    try:
        stat = file.stat()
    except OSError:
        return place, -1, -1
    return place, stat.st_size, stat.st_mtime_ns
