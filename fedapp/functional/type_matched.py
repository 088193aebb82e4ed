"""Type-matched aggregation and composition (FedSAP, Eq. 8 and 9), for one named entry of a model at a time.

An entry is a convolution's weight (C, I, k, k), a vector of BatchNorm (C,), a linear layer's weight (O, I): axis 0
counts its channels (*rows*), axis 1 their inputs (*columns*), if there is one. The rows that all clients share lie in
one full-width array, W_G. Every pseudo-domain group k has a pool of Private rows, W_{k,P}, held sparsely; a row that
the pool lacks reads the shared one, so that a channel which turns Private starts from where it stood.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, get_args

import numpy as np
from numpy.typing import NDArray

from ._checks import check_choice
from ._count_mean import Part, count_mean, divided, is_whole

Matching = Literal["entry", "row"]


@dataclass(frozen=True, eq=False)
class Rows:
    """What the Private pool of one group holds of an entry.

    Attributes:
        index: (R,) channels, ascending.
        values: (R, ...) their rows, in full width.

    Raises:
        ValueError: If the index does not ascend or the lengths differ.
    """

    index: NDArray[np.int64]
    values: NDArray[Any]

    def __post_init__(self) -> None:
        if self.index.ndim != 1 or len(self.index) != len(self.values):
            raise ValueError(f"a pool needs one row a channel, got {self.values.shape} for {self.index.shape} channels")
        if (self.index[1:] <= self.index[:-1]).any() or (self.index[:1] < 0).any():
            raise ValueError(f"the channels of a pool must ascend from 0 or later, got {self.index.tolist()}")


@dataclass(frozen=True, eq=False)
class Upload:
    """What one client sends of an entry: the rows and columns it trained, compact.

    Attributes:
        values: (r, c, ...), or (r,) for a vector.
        rows: (r,) positions on axis 0, in any order; None: all of them in order.
        columns: (c,) positions on axis 1, in any order; None: all of them in order, or there is no axis 1.
        private: (r,) True: the row belongs to the pool of ``group``; False: it is Global.
        group: The client's pseudo-domain group, k = pi(i).
        weight: Its weight, > 0; the paper's is the number of its samples n_i.
        sent: (r, ...) the rows in full width as they were broadcast; only read if ``matching`` is ``row``.
    """

    values: NDArray[Any]
    rows: NDArray[np.int64] | None
    columns: NDArray[np.int64] | None
    private: NDArray[np.bool_]
    group: int
    weight: float
    sent: NDArray[Any] | None = None


def type_matched_mean(
    shared: NDArray[Any], pools: Mapping[int, Rows], uploads: Sequence[Upload], matching: Matching = "entry"
) -> tuple[NDArray[Any], dict[int, Rows]]:
    """Average every channel among those who hold it in the same role: FedSAP, Eq. 8.

    w_c = sum_i n_i w_{i,c} / sum_i n_i, over the clients that trained c as Global for the shared row, and over the
    clients of group k that trained c as Private for the row of pool k. Nothing crosses between the two, nor between
    groups. What nobody trained keeps its value; a row new to a pool starts from the shared row before this call.

    The paper does not say what of a row a client counts for that had only some of its inputs. ``entry``: each element
    is averaged over those who trained it, as in HeteroFL. ``row``: the whole row counts, untrained elements with the
    value that was broadcast; it moves less where fewer train.

    Sums are accumulated in float64 in the order given, so a fixed order of clients gives fixed bits.

    Args:
        shared: (C, ...) W_G, floating.
        pools: Group -> W_{k,P}; a group may lack one.
        uploads: One a client; may be empty.
        matching: ``entry`` or ``row``.

    Returns:
        The new W_G and the new pools, in the dtype of ``shared``. A pool holds its old rows and those trained now.

    Raises:
        ValueError: If an upload or a pool does not fit the entry, a weight is not positive, or a value is not finite.

    Example:
        >>> shared = np.array([0.0, 0.0, 9.0], dtype=np.float32)
        >>> first = Upload(np.array([1.0, 5.0]), np.array([0, 1]), None, np.array([False, True]), group=0, weight=3)
        >>> second = Upload(np.array([2.0, 7.0]), np.array([0, 1]), None, np.array([False, True]), group=1, weight=1)
        >>> mean, pools = type_matched_mean(shared, {}, [first, second])
        >>> mean.tolist(), {k: (pool.index.tolist(), pool.values.tolist()) for k, pool in pools.items()}
        ([1.25, 0.0, 9.0], {0: ([1], [5.0]), 1: ([1], [7.0])})
    """
    _check_entry(shared, pools)
    check_choice("matching", matching, get_args(Matching))
    parts = [_part(shared, upload, number, matching) for number, upload in enumerate(uploads)]
    indices = _trained_pools(shared, pools, parts, uploads)
    # One mean over the shared rows and, below them, the rows of every pool that somebody trained.
    old = np.concatenate([shared, *(_seen(shared, pools.get(group), index) for group, index in indices.items())])
    starts, end = {}, len(shared)
    for group, index in indices.items():
        starts[group], end = end, end + len(index)
    for number, upload in enumerate(uploads):
        if upload.group in indices:
            rows = parts[number].put
            own = starts[upload.group] + indices[upload.group].searchsorted(rows)
            parts[number] = parts[number]._replace(put=np.where(upload.private, own, rows))
    mean = count_mean(old, parts)
    moved = {group: Rows(index, mean[starts[group] :][: len(index)]) for group, index in indices.items()}
    return mean[: len(shared)], {**pools, **moved}


def compose(
    shared: NDArray[Any],
    pool: Rows | None,
    private: NDArray[np.bool_],
    rows: NDArray[np.int64] | None = None,
    columns: NDArray[np.int64] | None = None,
) -> NDArray[Any]:
    """Put a client's entry together from what all share and what its group holds: FedSAP, Eq. 9.

    W_i = M_{i,G} * W_G + M_{i,P} * W_{k,P} with k = pi(i); Dropped rows, which do not leave the server, stay those of
    W_G. A Private row that the pool lacks reads the shared one. With ``rows`` and ``columns`` only the compact part of
    a submodel is put together, without a full copy.

    Args:
        shared: (C, ...) W_G.
        pool: W_{k,P} of the client's group; None if it has none yet.
        private: (C,) True where the client holds the channel as Private.
        rows: (r,) positions wanted of axis 0, in the order wanted; None: all.
        columns: (c,) likewise of axis 1.

    Returns:
        A new array (C, ...) or (r, c, ...).

    Raises:
        ValueError: If pool, mask or positions do not fit the entry.

    Example:
        >>> pool = Rows(np.array([1, 2]), np.array([5.0, 6.0]))
        >>> compose(np.array([1.0, 2.0, 3.0]), pool, np.array([False, True, False])).tolist()
        [1.0, 5.0, 3.0]
        >>> compose(np.array([1.0, 2.0, 3.0]), pool, np.array([False, True, False]), rows=np.array([2, 1])).tolist()
        [3.0, 5.0]
    """
    _check_entry(shared, {} if pool is None else {0: pool})
    _check_mask(shared, private, "private")
    if columns is not None:
        columns = _checked(columns, _width(shared), "columns")
    entry = _taken(shared, None if rows is None else _checked(rows, len(shared), "rows"), columns)
    if pool is not None:
        wanted = np.zeros(len(shared), dtype=np.bool_)
        wanted[pool.index] = private[pool.index]
        held = np.flatnonzero(wanted if rows is None else wanted[rows])
        channels = held if rows is None else rows[held]
        entry[held] = _taken(pool.values, pool.index.searchsorted(channels), columns)
    return entry


def consensus(
    shared: NDArray[Any],
    pools: Mapping[int, Rows],
    weights: Mapping[int, NDArray[Any]],
    is_global: NDArray[np.bool_],
) -> NDArray[Any]:
    """Make one full-width entry for everybody: the shared row, or the mean of the pools where no client shares it.

    The paper returns W_G and the pools and does not say which model it tests; this is the one to compare with methods
    that have a single model.

    Args:
        shared: (C, ...) W_G.
        pools: Group -> W_{k,P}.
        weights: Group -> (C,) weight of its row, >= 0, such as the samples of the clients that hold it as Private. A
            pool without a row, or of weight 0, has no say in it.
        is_global: (C,) True where any client held the channel as Global at the last aggregation.

    Returns:
        A new array (C, ...) in the dtype of ``shared``.

    Raises:
        ValueError: If pools, weights or mask do not fit the entry, or a weight is negative or not finite.

    Example:
        >>> pools = {0: Rows(np.array([1]), np.array([4.0])), 1: Rows(np.array([1]), np.array([8.0]))}
        >>> weights = {0: np.array([0.0, 3.0]), 1: np.array([0.0, 1.0])}
        >>> consensus(np.array([1.0, 2.0]), pools, weights, np.array([True, False])).tolist()
        [1.0, 5.0]
    """
    _check_entry(shared, pools)
    _check_mask(shared, is_global, "is_global")
    total, counts = np.zeros(shared.shape, dtype=np.float64), np.zeros(len(shared))
    for group, pool in pools.items():
        if group not in weights or weights[group].shape != shared.shape[:1]:
            raise ValueError(f"pool {group} needs a weight for each of {len(shared)} channels; see `weights`")
        weight = np.where(is_global, 0.0, weights[group])[pool.index]
        if not np.isfinite(weight).all() or (weight < 0).any():
            raise ValueError(f"the weights of pool {group} must be finite and >= 0, got {weights[group].tolist()}")
        total[pool.index] += weight.reshape(-1, *(1,) * (shared.ndim - 1)) * pool.values
        counts[pool.index] += weight
    return divided(total, counts, shared)


def remap(pools: Mapping[int, Rows], shared: NDArray[Any], moves: Mapping[int, Mapping[int, float]]) -> dict[int, Rows]:
    """Carry the Private pools over to new groups: each row becomes the mean of what the members saw before.

    The paper is silent. Every member keeps its say through the row of its old group, or the shared row where that
    group's pool lacks it; groups whose members all come from one old group keep its rows bit for bit. So labels need
    not be matched between two clusterings.

    Args:
        pools: Old group -> W_{k,P}; a group may lack one.
        shared: (C, ...) W_G.
        moves: New group -> old group -> total weight of the members that come from it, > 0.

    Returns:
        New group -> pool. A row that none of the old pools held stays absent, and so does an empty pool.

    Raises:
        ValueError: If a pool does not fit the entry or a weight is not positive.

    Example:
        >>> pools = {0: Rows(np.array([1]), np.array([4.0]))}
        >>> new = remap(pools, np.array([1.0, 2.0]), {7: {0: 1.0, 1: 1.0}})
        >>> new[7].index.tolist(), new[7].values.tolist()
        ([1], [3.0])
    """
    _check_entry(shared, pools)
    moved: dict[int, Rows] = {}
    for new, olds in moves.items():
        for old, weight in olds.items():
            _check_weight(weight, f"the members of group {new} from group {old}")
        held = [pools[old] for old in olds if old in pools]
        if len(olds) == len(held) == 1:
            moved[new] = held[0]
        elif held:
            index = _union(len(shared), *(pool.index for pool in held))
            seen = [(_seen(shared, pools.get(old), index), weight) for old, weight in olds.items()]
            total = sum(np.multiply(rows, weight, dtype=np.float64) for rows, weight in seen)
            moved[new] = Rows(index, (total / sum(olds.values())).astype(shared.dtype))
    return moved


def _trained_pools(
    shared: NDArray[Any], pools: Mapping[int, Rows], parts: Sequence[Part], uploads: Sequence[Upload]
) -> dict[int, NDArray[np.int64]]:
    """Return the channels that each pool will hold, for the groups that trained Private rows, in ascending order."""
    held: dict[int, list[NDArray[np.int64]]] = {}
    for part, upload in zip(parts, uploads, strict=True):
        if upload.private.any():
            held.setdefault(upload.group, []).append(part.put[upload.private])
    for group in held.keys() & pools.keys():
        held[group].append(pools[group].index)
    return {group: _union(len(shared), *held[group]) for group in sorted(held)}


def _part(shared: NDArray[Any], upload: Upload, number: int, matching: Matching) -> Part:
    """Check an upload and flatten its values to (r, c, rest)."""
    rows = _checked(upload.rows, len(shared), f"rows of upload {number}")
    width = shared.shape[1] if shared.ndim > 1 else 1
    columns = upload.columns
    if columns is not None:
        columns = _checked(columns, _width(shared), f"columns of upload {number}")
    expected = (len(rows), *(shared.shape[1:] if columns is None else (len(columns), *shared.shape[2:])))
    if upload.values.shape != expected or upload.private.shape != expected[:1]:
        raise ValueError(
            f"upload {number} must have values {expected} and roles {expected[:1]} for its rows and columns of an "
            f"entry {shared.shape}, got {upload.values.shape} and {upload.private.shape}"
        )
    _check_weight(upload.weight, f"upload {number}")
    values = upload.values
    if matching == "row" and columns is not None and len(columns) < width:
        values, columns = _completed(shared, upload, number), None
    flat = values.reshape(len(rows), width if columns is None else len(columns), -1)
    return Part(number, flat, rows, columns, float(upload.weight))


def _completed(shared: NDArray[Any], upload: Upload, number: int) -> NDArray[Any]:
    """Return the rows of an upload in full width, as they were broadcast where they were not trained."""
    expected = (len(upload.values), *shared.shape[1:])
    if upload.sent is None or upload.sent.shape != expected:
        got = None if upload.sent is None else upload.sent.shape
        raise ValueError(f"matching='row' needs the rows of upload {number} as they were sent, {expected}, got {got}")
    rows = upload.sent.astype(np.result_type(upload.sent, upload.values))
    rows[:, upload.columns] = upload.values
    return rows


def _seen(shared: NDArray[Any], pool: Rows | None, index: NDArray[np.int64]) -> NDArray[Any]:
    """Return rows as a group sees them: of its pool, or the shared ones where that lacks them."""
    rows = shared[index]
    if pool is not None:
        inside = np.zeros(len(shared), dtype=np.bool_)
        inside[pool.index] = True
        held = inside[index]
        rows[held] = pool.values[pool.index.searchsorted(index[held])]
    return rows


def _taken(entry: NDArray[Any], rows: NDArray[np.int64] | None, columns: NDArray[np.int64] | None) -> NDArray[Any]:
    """Copy some rows and columns; one take along one axis is several times faster than indexing two."""
    rows = None if rows is None or is_whole(rows, len(entry)) else rows
    columns = None if columns is None or is_whole(columns, entry.shape[1]) else columns
    if columns is None:
        return entry.copy() if rows is None else entry.take(rows, axis=0)
    if rows is None:
        return entry.take(columns, axis=1)
    flat = entry.reshape(-1, *entry.shape[2:])
    taken: NDArray[Any] = flat.take(rows[:, np.newaxis] * entry.shape[1] + columns, axis=0)
    return taken


def _union(size: int, *indices: NDArray[np.int64]) -> NDArray[np.int64]:
    inside = np.zeros(size, dtype=np.bool_)
    for index in indices:
        inside[index] = True
    return np.flatnonzero(inside)


def _width(shared: NDArray[Any]) -> int:
    if shared.ndim < 2:
        raise ValueError(f"an entry of shape {shared.shape} has no columns; leave them None")
    width: int = shared.shape[1]
    return width


def _checked(index: NDArray[np.int64] | None, size: int, name: str) -> NDArray[np.int64]:
    """Return positions of an axis of ``size``, all of them for None."""
    if index is None:
        return np.arange(size)
    if index.ndim != 1 or index.dtype.kind not in "iu":
        raise ValueError(f"{name} must be a list of positions, got {index.dtype} of shape {index.shape}")
    ordered = np.sort(index)
    if len(index) and (ordered[0] < 0 or ordered[-1] >= size):
        raise ValueError(f"{name} must be in [0, {size}), got {int(ordered[0])} to {int(ordered[-1])}")
    repeated = ordered[1:] == ordered[:-1]
    if repeated.any():
        raise ValueError(f"{name} must not repeat, got {ordered[1:][repeated].tolist()} again")
    return index


def _check_entry(shared: NDArray[Any], pools: Mapping[int, Rows]) -> None:
    if shared.ndim < 1 or shared.dtype.kind != "f":
        raise ValueError(f"an entry needs an axis of channels and floats, got {shared.dtype} of shape {shared.shape}")
    for group, pool in pools.items():
        if pool.values.shape[1:] != shared.shape[1:] or (len(pool.index) and pool.index[-1] >= len(shared)):
            raise ValueError(
                f"pool {group} must hold rows of an entry {shared.shape}, got {pool.values.shape} for the channels "
                f"{pool.index.tolist()}"
            )


def _check_mask(shared: NDArray[Any], mask: NDArray[np.bool_], name: str) -> None:
    if mask.shape != shared.shape[:1] or mask.dtype != np.bool_:
        raise ValueError(f"{name} must be {len(shared)} booleans, got {mask.dtype} of shape {mask.shape}")


def _check_weight(weight: float, name: str) -> None:
    if not (math.isfinite(weight) and weight > 0):
        raise ValueError(f"the weight of {name} must be finite and > 0, got {weight}")
