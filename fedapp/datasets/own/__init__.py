"""The user's own data: a folder of images, tables, a data set on disk, or whatever a function of the user's returns."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from fedapp import agreement
from fedapp.config import OwnDataSettings, SettingError
from fedapp.datasets.base import Pool, Source
from fedapp.datasets.own import folder, function, tables
from fedapp.datasets.own.reading import categories_of

SOURCES: dict[str, Source] = {source.name: source for source in (folder.SOURCE, *tables.SOURCES, function.SOURCE)}


def announce(pool: Pool, own: OwnDataSettings) -> str:
    """Return what a device with data of its own announces: the names that the user has not given for all of them.

    Args:
        pool: Its data.
        own: The settings that they were read by.

    Raises:
        SettingError: If columns are to be scaled by the rows of all devices, which none of them can see.
    """
    if own.scaling == "global" and pool.scaled is not None and pool.scaled.any():
        raise SettingError(
            "scaling = global needs the rows of all clients, and a device sees its own only; set client or none"
        )
    given = {column: values for column, values in categories_of(own.categories).items() if values}
    told = own.vocabulary and pool.vocabulary  # the words of the texts
    found = {column: names for column, names in pool.categories.items() if column not in given and not told}
    if found:  # what is agreed takes the place of the whole setting, which all devices have alike
        found |= given
    labels = () if own.label_names else pool.class_names
    return agreement.announce(labels, found, pool.columns, _numbers(pool), pool.categories)


def _numbers(pool: Pool) -> list[str]:
    """Return the columns of a table that hold numbers; one without any cell may be of either kind."""
    if pool.scaled is None:
        return []
    held: Any = np.isfinite(pool.inputs[:, pool.scaled]).any(axis=0)
    names = [column for column in pool.columns if column not in pool.categories]
    return [column for column, any_cell in zip(names, held, strict=True) if any_cell]


def described(source: Source, pool: Pool) -> Source:
    """Return a row of the registry with what only the data tell: classes, shape and token ids.

    Args:
        source: The row.
        pool: Its data.
    """
    shape = pool.inputs.shape[1:]
    if pool.inputs.dtype == np.uint8 and not pool.vocabulary:
        shape = (shape[2], *shape[:2])  # (H, W, C) -> (C, H, W)
    return replace(source, classes=len(pool.class_names), shape=tuple(shape), vocabulary=pool.vocabulary)
