"""From columns of cells to inputs: numbers and categories side by side, or one column of vectors or of texts.

A column holds categories if the setting ``categories`` names it, or if at most half of its cells are numbers; where no
cell is there, it holds numbers that are all missing. Every category becomes one column of 0 and 1; a missing one is a
row of zeros. Numbers stay as they are here, NaN where one is missing: they are scaled for each client by its training
rows, and become float32 only then. Columns come in the order of ``columns``, else by name, so that all devices lay them
out alike. A text alone becomes a row of token ids over the words of ``vocabulary``.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedapp import paths
from fedapp.agreement import sort_names
from fedapp.config import OwnDataSettings, SettingError
from fedapp.datasets import words
from fedapp.datasets.base import Bools, Doubles, Floats
from fedapp.datasets.own.reading import BadRows, Where, as_text, categories_of, names_of, shown
from fedapp.datasets.scaling import LARGEST

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


@dataclass(frozen=True, eq=False)
class Read:
    """The cells of a column as numbers and as names; either is worked out once.

    Attributes:
        cells: What was read, (N,).
        numbers: The cells as numbers, float64 (N,), NaN where one is none.
    """

    cells: Column
    numbers: Doubles

    @functools.cached_property
    def names(self) -> list[str]:
        """The cells as names, "" where one is missing."""
        return [as_text(cell) for cell in self.cells]

    @functools.cached_property
    def present(self) -> Bools:
        """Which cells are there, bool (N,)."""
        there = ~np.isnan(self.numbers)
        return there if there.all() else np.asarray([name != "" for name in self.names], dtype=np.bool_)

    def holds_numbers(self, known: Sequence[str] = ()) -> bool:
        """Return whether more than half of the cells that are there are numbers; if none is, of the known values."""
        numbers = self.numbers[self.present] if self.present.any() else _numbers(np.asarray(known, dtype=object))
        return bool((~np.isnan(numbers)).sum() * 2 > len(numbers)) or not len(numbers)


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
        Values: numbers in float64 (M, F), for large ones that differ by little keep their difference only so until
        they are centred; vectors in float32 (M, ...).

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
    read = {name: Read(column, _numbers(column)) for name, column in columns.items()}
    only = next(iter(read))
    if len(read) == 1 and not read[only].holds_numbers(given.get(only, ())):
        return _tokens(only, read[only], given.get(only) or _listed(own.vocabulary), own, where, bad)
    if unknown := sorted(set(given) - set(columns)):
        raise SettingError(f"categories: {unknown[0]!r} is no input column; the inputs are {shown([*columns])}")
    return _side_by_side(read, given, where, bad)


def _side_by_side(
    columns: Mapping[str, Read], given: Mapping[str, tuple[str, ...]], where: Where, bad: BadRows
) -> Encoded:
    """Return numbers and categories side by side."""
    parts: list[Floats | Doubles] = []
    scaled: list[bool] = []
    categories: dict[str, tuple[str, ...]] = {}
    kept = np.ones(len(next(iter(columns.values())).cells), dtype=np.bool_)
    for name, column in columns.items():
        if name in given or not column.holds_numbers():
            categories[name] = given.get(name) or _found(name, column)
            hot, broken = _one_hot(column, categories[name])
            parts.append(hot)
            why = f"is not among the categories {shown(categories[name])}"
        else:
            parts.append(column.numbers[:, None])
            broken = column.present & ~(np.abs(column.numbers) <= LARGEST)
            why = "is no number"
        for row in np.flatnonzero(broken & kept).tolist():
            bad.add(where(row), f"{column.names[row]!r} in column {name!r} {why}")
        kept &= ~broken
        scaled += [name not in categories] * parts[-1].shape[1]
    values: NDArray[Any] = np.concatenate(parts, axis=1)
    values = values if kept.all() else values[kept]
    return Encoded(values, kept, np.asarray(scaled, dtype=np.bool_), categories)


def _first(column: Column) -> Any:
    """Return the first cell that is there."""
    return next((cell for cell in column if cell is not None), None)


def _numbers(column: Column) -> Doubles:
    """Return a column as numbers, NaN where a cell is none."""
    try:
        return column.astype(np.float64)
    except (TypeError, ValueError, OverflowError):
        return np.asarray([as_number(cell) for cell in column], dtype=np.float64)


def as_number(cell: Any) -> float:
    """Return a cell as a number, NaN if it is none.

    Example:
        >>> as_number("1.5"), as_number("cat"), as_number(None)
        (1.5, nan, nan)
    """
    try:
        return math.nan if cell is None else float(cell)
    except (TypeError, ValueError):
        return math.nan
    except OverflowError:  # a whole number of more digits than a float knows
        return math.inf


def _found(name: str, column: Read) -> tuple[str, ...]:
    found = sort_names(filter(None, set(column.names)))
    if len(found) > MOST_CATEGORIES:
        raise SettingError(
            f"column {name!r} holds {len(found)} different texts; name the input columns without it in columns, or "
            f"list its values in categories (at most {MOST_CATEGORIES} are taken from the data)"
        )
    return found


def _one_hot(column: Read, names: tuple[str, ...]) -> tuple[Floats, Bools]:
    """Return a column of 0 and 1 for every category (one of 0 if there is none), and which cells are in none."""
    number = {"": -2} | {name: position for position, name in enumerate(names)}
    codes = np.asarray([number.get(name, -1) for name in column.names], dtype=np.int64)
    hot = (codes[:, None] == np.arange(max(len(names), 1))).astype(np.float32)
    return hot, codes == -1


def _listed(vocabulary: str) -> tuple[str, ...]:
    """Return the words of the setting ``vocabulary``: a file with one a line, or a list."""
    if not vocabulary or vocabulary.lstrip().startswith("["):
        return names_of(vocabulary, "vocabulary")
    try:
        lines = Path(paths.resolve(vocabulary)).read_text(encoding="utf-8").split("\n")
    except (OSError, ValueError) as error:
        raise SettingError(
            f"vocabulary = {vocabulary!r} cannot be read: {error}; give a file of one word a line"
        ) from error
    return tuple(dict.fromkeys(filter(None, map(str.strip, lines))))


def _tokens(
    name: str, column: Read, known: tuple[str, ...], own: OwnDataSettings, where: Where, bad: BadRows
) -> Encoded:
    """Return the texts of a column as rows of token ids."""
    texts = [words.words_of(name) for name in column.names]
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
