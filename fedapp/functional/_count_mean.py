"""The kernel of type-matched aggregation: the mean of every element over those parts that carry it.

Rows of a part are compact: full rows are rebuilt block by block and added up while they are in the processor's cache.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

_BLOCK = 1 << 17
"""Elements of an entry that are summed at once: in float64 they fit into a common second-level cache."""


@dataclass(frozen=True, eq=False)
class Part:
    """Rows of an upload on their way into a mean: values[take] belong to the rows ``put`` and to ``columns``.

    Attributes:
        number: Of the upload, for messages.
        values: (r, c, rest).
        take: (n,) positions among the r rows.
        put: (n,) positions among the rows of the mean, ascending.
        columns: (c,) positions on axis 1; None: all of them in order.
        weight: Of the upload, > 0.
    """

    number: int
    values: NDArray[Any]
    take: NDArray[np.int64]
    put: NDArray[np.int64]
    columns: NDArray[np.int64] | None
    weight: float


def count_mean(old: NDArray[Any], parts: Sequence[Part]) -> NDArray[Any]:
    """Average every element over the parts that carry it, in float64 and their order; others keep their old value."""
    width = old.shape[1] if old.ndim > 1 else 1
    rows = old.reshape(len(old), width, -1)
    mean = np.empty(rows.shape, dtype=old.dtype)
    sources = [_source(part, width) for part in parts]
    counts = _counts(len(rows), sources, parts)
    step = max(1, _BLOCK // max(1, rows[:1].size))
    for start in range(0, len(rows), step):
        block = slice(start, start + step)
        total = np.zeros(rows[block].shape)
        with np.errstate(over="ignore", invalid="ignore"):
            for part, source in zip(parts, sources, strict=True):
                _accumulate(total, part, source, start)
        if not np.isfinite(total).all():
            raise ValueError(_not_finite(parts))
        mean[block] = divided(total, counts[block], rows[block])
    return mean.reshape(old.shape)


def divided(total: NDArray[Any], counts: NDArray[Any], old: NDArray[Any]) -> NDArray[Any]:
    """Turn sums into means, in place and then in the dtype of ``old``; where nothing was counted, its value."""
    counts = counts.reshape(*counts.shape, *(1,) * (total.ndim - counts.ndim))
    missing = counts == 0
    np.divide(total, np.where(missing, 1.0, counts), out=total)
    mean = total.astype(old.dtype)
    if missing.any():
        np.copyto(mean, old, where=missing)
    return mean


def _source(part: Part, width: int) -> NDArray[np.int64] | None:
    """Return which compact column each full one is read from; for those without, one past the last.

    None if all are there, in order.
    """
    if part.columns is None or (len(part.columns) == width and (part.columns[1:] > part.columns[:-1]).all()):
        return None
    source = np.full(width, len(part.columns))
    source[part.columns] = np.arange(len(part.columns))
    return source


def _counts(num_rows: int, sources: Sequence[NDArray[np.int64] | None], parts: Sequence[Part]) -> NDArray[np.float64]:
    """Return the weight that each (row, column) is carried with; (R, 1) if all parts carry whole rows."""
    width = next((len(source) for source in sources if source is not None), 1)
    rows, columns = np.zeros((len(parts), num_rows)), np.ones((len(parts), width))
    for number, (part, source) in enumerate(zip(parts, sources, strict=True)):
        rows[number, part.put] = part.weight
        if source is not None:
            columns[number] = source < part.values.shape[1]
    return rows.T @ columns


def _accumulate(total: NDArray[Any], part: Part, source: NDArray[np.int64] | None, start: int) -> None:
    """Add what a part has of a block of rows to its sums (n, width, rest).

    Compact rows are spread to full width first: long contiguous runs are faster than a scatter to (row, column).
    """
    first, last = part.put.searchsorted((start, start + len(total)))
    if first == last:
        return
    put, block = _slice(part.put[first:last] - start), part.values[_slice(part.take[first:last])]
    if source is None:
        total[put] += np.multiply(block, part.weight, dtype=np.float64)
    else:
        scaled = np.zeros((block.shape[0], block.shape[1] + 1, block.shape[2]))
        scaled[:, :-1] = block
        scaled *= part.weight
        total[put] += scaled.take(source, axis=1, mode="clip")


def _slice(index: NDArray[np.int64]) -> NDArray[np.int64] | slice:
    """Return ascending neighbours as a slice, which numpy reads without a copy."""
    first, last = int(index[0]), int(index[-1])
    contiguous = last - first == len(index) - 1 and (index[1:] > index[:-1]).all()
    return slice(first, last + 1) if contiguous else index


def _not_finite(parts: Sequence[Part]) -> str:
    bad = [part.number for part in parts if not np.isfinite(part.values).all()]
    return f"values must be finite, but those of upload {', '.join(map(str, bad))} are not; leave them out"
