"""Which files of a folder are read, and what becomes of one that cannot be."""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Mapping
from pathlib import Path
from typing import TypeVar

from fedapp.config import SettingError
from fedapp.datasets.own.reading import BadRows

Made = TypeVar("Made")


def files_in(root: Path, suffixes: Collection[str]) -> list[Path]:
    """Return the files below a folder whose names end so, in any case; links that lead nowhere are among them.

    Files and folders whose names begin with a dot are left out: programs keep copies and notes of their own there.
    Linked folders are read, but for those that lead back to where they lie.

    Args:
        root: The folder.
        suffixes: Ends of names in lower case, with their dots.
    """
    found: list[Path] = []
    for top, folders, names in os.walk(root, followlinks=True):
        folders[:] = [folder for folder in folders if folder[0] != "." and not _leads_back(Path(top, folder))]
        found += [Path(top, name) for name in names if name[0] != "." and name.lower().endswith(tuple(suffixes))]
    return sorted(found)


def _leads_back(folder: Path) -> bool:
    """Return whether a folder is a link to one that it lies in."""
    return folder.is_symlink() and folder.parent.resolve().is_relative_to(folder.resolve())


def readable(
    tests: Mapping[Path, bool], read: Callable[[Path], Made], bad: BadRows
) -> tuple[dict[Path, bool], list[Made]]:
    """Read files; one that cannot be read is a bad row.

    Args:
        tests: Whether each file is of the test part.
        read: Reads one; a ValueError or OSError says why it cannot be read.
        bad: Where files that cannot be read are noted.

    Returns:
        The files that can be read, as ``tests``, and what each holds.

    Raises:
        SettingError: If none is left, or none to train on of several parts, or bad rows stop.
    """
    made = {}
    for path in tests:
        try:
            made[path] = read(path)
        except (OSError, ValueError) as error:
            bad.add(str(path), f"it cannot be read ({str(error).partition(chr(10))[0]})")
    kept = {path: tests[path] for path in made}
    if not kept or (all(kept.values()) and not all(tests.values())):
        raise SettingError(f"no file to train on can be read: {bad.found[0]}; mend it")
    return kept, list(made.values())
