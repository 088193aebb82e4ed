"""From columns of cells to inputs: numbers and categories side by side, or one column of vectors or of texts.

A column holds categories if the setting ``categories`` names it, or if at most half of its cells are numbers. Every
category becomes one column of 0 and 1; a missing one is a row of zeros. Numbers stay as they are here, NaN where one is
missing: they are scaled for each client by its training rows. Columns come in the order of ``columns``, else by name,
so that all devices lay them out alike. A text alone becomes a row of token ids over the words of ``vocabulary``.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedapp.agreement import sort_names
from fedapp.config import OwnDataSettings, SettingError
from fedapp.datasets import words
from fedapp.datasets.base import Bools, Floats
from fedapp.datasets.own.reading import BadRows, Where, as_text, categories_of, names_of, shown

Column = NDArray[np.object_]
MOST_CATEGORIES = 1000


@dataclass(frozen=True)
class Encoded:
    """Inputs of the rows that can be read.

    Attributes:
        values: One sample a row, (M, ...).
        kept: Which rows they are, bool (N,).
        scaled: Which of F columns are to be scaled, bool (F,), or None.
        categories: The values of every column with categories, the words of one with texts.
        vocabulary: Number of token ids if the values are tokens, else 0.
    """

    values: NDArray[Any]
    kept: Bools
    scaled: Bools | None = None
    categories: dict[str, tuple[str, ...]] = field(default_factory=dict)
    vocabulary: int = 0


def is_picture(column: Column) -> bool:
    """Return whether a column holds images: bytes, or cells of the ``datasets`` library."""
    cell = _first(column)
    return isinstance(cell, bytes) or (isinstance(cell, dict) and set(cell) == {"bytes", "path"})


def encode(columns: Mapping[str, Column], own: OwnDataSettings, where: Where, bad: BadRows) -> Encoded:
    """Return inputs of input columns.

    Args:
        columns: The cells by column, (N,) each.
        own: The settings.
        where: Names a row.
        bad: Where rows that cannot be read are noted.

    Returns:
        Values in float32, (M, F) or (M, ...) for vectors.

    Raises:
        SettingError: If there is no input column, columns do not go together, one has too many categories, or a bad
            row stops.
    """
    if not columns:
        raise SettingError("the table has no column beside labels, clients and domains; name its inputs in columns")
    vectors = [name for name, column in columns.items() if isinstance(_first(column), list)]
    if vectors and len(columns) > 1:
        raise SettingError(f"column {vectors[0]!r} holds lists; name it alone in columns, or leave it out there")
    if vectors:
        return _stacked(columns[vectors[0]], where, bad)
    given = categories_of(own.categories)
    only = next(iter(columns))
    if len(columns) == 1 and not _holds_numbers(columns[only]):
        return _tokens(only, columns[only], given.get(only) or _listed(own.vocabulary), own, where, bad)
    if unknown := sorted(set(given) - set(columns)):
        raise SettingError(f"categories: {unknown[0]!r} is no input column; the inputs are {shown([*columns])}")
    parts, scaled, categories = [], [], {}
    kept = np.ones(len(next(iter(columns.values()))), dtype=np.bool_)
    for name, column in columns.items():
        numbers = _numbers(column)
        present = np.asarray([as_text(cell) != "" for cell in column], dtype=np.bool_)
        if name in given or not _holds_numbers(column):
            categories[name] = given.get(name) or _found(name, column)
            part, broken = _one_hot(column, categories[name])
            why = f"is not among the categories {shown(categories[name])}"
        else:
            part, broken, why = numbers[:, None], present & ~np.isfinite(numbers), "is no number"
        for row in np.flatnonzero(broken & kept).tolist():
            bad.add(where(row), f"{as_text(column[row])!r} in column {name!r} {why}")
        kept &= ~broken
        parts.append(part)
        scaled += [name not in categories] * part.shape[1]
    return Encoded(np.concatenate(parts, axis=1)[kept], kept, np.asarray(scaled, dtype=np.bool_), categories)


def _first(column: Column) -> Any:
    """Return the first cell that is there."""
    return next((cell for cell in column if cell is not None), None)


def _numbers(column: Column) -> Floats:
    """Return a column as numbers, NaN where a cell is none."""
    return np.asarray([_number(cell) for cell in column], dtype=np.float32)


def _holds_numbers(column: Column) -> bool:
    """Return whether more than half of the cells that are there are numbers."""
    present = sum(as_text(cell) != "" for cell in column)
    return bool((~np.isnan(_numbers(column))).sum() * 2 > present)


def _number(cell: Any) -> float:
    try:
        return math.nan if cell is None else float(cell)
    except (TypeError, ValueError):
        return math.nan


def _found(name: str, column: Column) -> tuple[str, ...]:
    found = sort_names(filter(None, map(as_text, column)))
    if len(found) > MOST_CATEGORIES or not found:
        raise SettingError(
            f"column {name!r} holds {len(found)} different texts; name the input columns without it in columns, or "
            f"list its values in categories (at most {MOST_CATEGORIES} are taken from the data)"
        )
    return found


def _one_hot(column: Column, names: tuple[str, ...]) -> tuple[Floats, Bools]:
    """Return a column of 0 and 1 for every category, and which cells are in none."""
    number = {name: position for position, name in enumerate(names)}
    codes = np.asarray([number.get(as_text(cell), -1 if as_text(cell) else -2) for cell in column], dtype=np.int64)
    hot = (codes[:, None] == np.arange(len(names))).astype(np.float32)
    return hot, codes == -1


def _listed(vocabulary: str) -> tuple[str, ...]:
    """Return the words of the setting ``vocabulary``: a file with one a line, or a list."""
    if not vocabulary or vocabulary.lstrip().startswith("["):
        return names_of(vocabulary, "vocabulary")
    try:
        lines = Path(vocabulary).expanduser().read_text(encoding="utf-8").split("\n")
    except (OSError, ValueError) as error:
        raise SettingError(
            f"vocabulary = {vocabulary!r} cannot be read: {error}; give a file of one word a line"
        ) from error
    return tuple(dict.fromkeys(filter(None, map(str.strip, lines))))


def _tokens(
    name: str, column: Column, known: tuple[str, ...], own: OwnDataSettings, where: Where, bad: BadRows
) -> Encoded:
    """Return the texts of a column as rows of token ids."""
    texts = [words.words_of(as_text(cell)) for cell in column]
    kept = np.asarray([bool(text) for text in texts], dtype=np.bool_)
    for row in np.flatnonzero(~kept).tolist():
        bad.add(where(row), f"column {name!r} holds no word")
    known = known or words.most_frequent(texts, own.most_words)
    rows = words.rows_of([text for text in texts if text], words.numbered(known), own.text_length)
    return Encoded(rows, kept, categories={name: known}, vocabulary=len(known) + words.FIRST)


def _stacked(column: Column, where: Where, bad: BadRows) -> Encoded:
    """Stack lists of numbers of the most frequent shape; others are bad rows."""
    vectors = [_vector(cell) for cell in column]
    shapes = [vector.shape for vector in vectors if vector is not None]
    if not shapes:
        raise SettingError("the column of lists holds no list of finite numbers; name another one in columns")
    shape = max(shapes, key=shapes.count)
    kept = np.asarray([vector is not None and vector.shape == shape for vector in vectors], dtype=np.bool_)
    for row in np.flatnonzero(~kept).tolist():
        bad.add(where(row), f"it holds no finite numbers of shape {shape}")
    return Encoded(np.stack([v for v, good in zip(vectors, kept, strict=True) if good and v is not None]), kept)


def _vector(cell: Any) -> Floats | None:
    try:
        vector = np.asarray(cell, dtype=np.float32)
    except (TypeError, ValueError):
        return None
    return vector if vector.ndim and np.isfinite(vector).all() else None
