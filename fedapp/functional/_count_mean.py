"""The kernel of type-matched aggregation: the mean of every element over those parts that carry it.

Rows of a part are compact: full rows are rebuilt block by block and added up while they are in the processor's cache.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

_BLOCK = 1 << 17
"""Elements of an entry that are summed at once: in float64 they fit into a common second-level cache."""

_WIDE = 1 << 10
"""Elements of a row from which on adding rows one by one is faster than adding them together."""


class Part(NamedTuple):
    """Rows of an upload on their way into a mean.

    Attributes:
        number: Of the upload, for messages.
        values: (r, c, rest).
        put: (r,) positions among the rows of the mean, each at most once.
        columns: (c,) positions on axis 1; None: all of them in order.
        weight: Of the upload, > 0.
    """

    number: int
    values: NDArray[Any]
    put: NDArray[np.int64]
    columns: NDArray[np.int64] | None
    weight: float


def count_mean(old: NDArray[Any], parts: Sequence[Part]) -> NDArray[Any]:
    """Average every element over the parts that carry it, in float64 and their order; others keep their old value."""
    width = old.shape[1] if old.ndim > 1 else 1
    rows = old.reshape(len(old), width, -1)
    mean = np.empty(rows.shape, dtype=old.dtype)
    routes = [_route(part, width) for part in parts]
    counts = _counts(len(rows), routes)
    step = max(1, _BLOCK // max(1, rows[:1].size))
    for start in range(0, len(rows), step):
        block = slice(start, start + step)
        total = np.zeros(rows[block].shape)
        with np.errstate(over="ignore", invalid="ignore"):
            for route in routes:
                _accumulate(total, route, start)
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


def is_whole(index: NDArray[np.int64], size: int) -> bool:
    """Whether valid positions are all of an axis, in order."""
    return len(index) == size and bool((index[1:] > index[:-1]).all())


class _Route(NamedTuple):
    """How a part is read for rows one after the other: values[take] go to ``put``, which ascends."""

    part: Part
    take: NDArray[np.int64]
    put: NDArray[np.int64]
    source: NDArray[np.int64] | None
    """(I,) the compact column each full one is read from, one past the last for those without; None: all in order."""


def _route(part: Part, width: int) -> _Route:
    take, columns, source = part.put.argsort(), part.columns, None
    if columns is not None and not is_whole(columns, width):
        source = np.full(width, len(columns))
        source[columns] = np.arange(len(columns))
    return _Route(part, take, part.put[take], source)


def _counts(num_rows: int, routes: Sequence[_Route]) -> NDArray[np.float64]:
    """Return the weight that each (row, column) is carried with; (R, 1) if all parts carry whole rows."""
    width = next((len(route.source) for route in routes if route.source is not None), 1)
    rows, columns = np.zeros((len(routes), num_rows)), np.ones((len(routes), width))
    for number, route in enumerate(routes):
        rows[number, route.put] = route.part.weight
        if route.source is not None:
            columns[number] = route.source < route.part.values.shape[1]
    return rows.T @ columns


def _accumulate(total: NDArray[Any], route: _Route, start: int) -> None:
    """Add what a part has of a block of rows to its sums (n, width, rest).

    Compact rows are spread to full width first: long contiguous runs are faster than a scatter to (row, column).
    """
    first, last = route.put.searchsorted((start, start + len(total)))
    if first == last:
        return
    put = _slice(route.put[first:last] - start)
    block, weight = route.part.values[_slice(route.take[first:last])], route.part.weight
    if route.source is None:
        _add(total, put, np.multiply(block, weight, dtype=np.float64))
    else:
        scaled = np.zeros((block.shape[0], block.shape[1] + 1, block.shape[2]))
        scaled[:, :-1] = block
        scaled *= weight
        _add(total, put, scaled.take(route.source, axis=1, mode="clip"))


def _add(total: NDArray[Any], put: NDArray[np.int64] | slice, rows: NDArray[Any]) -> None:
    """Add rows where they belong; wide ones one by one, which spares a copy there and back."""
    if isinstance(put, slice) or rows[0].size < _WIDE:
        total[put] += rows
    else:
        for position, row in zip(put.tolist(), rows, strict=True):
            np.add(total[position], row, out=total[position])


def _slice(index: NDArray[np.int64]) -> NDArray[np.int64] | slice:
    """Return ascending neighbours as a slice, which numpy reads without a copy."""
    first, last = int(index[0]), int(index[-1])
    contiguous = last - first == len(index) - 1 and (index[1:] > index[:-1]).all()
    return slice(first, last + 1) if contiguous else index


def _not_finite(parts: Sequence[Part]) -> str:
    bad = [part.number for part in parts if not np.isfinite(part.values).all()]
    if not bad:
        return "a weighted sum of the uploads overflows float64; scale the weights down"
    return f"values must be finite, but those of upload {', '.join(map(str, bad))} are not; leave them out"
