"""Aggregation of what clients upload: the weighted mean of named arrays."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

Arrays = Mapping[str, NDArray[Any]]


def weighted_mean(arrays: Sequence[Arrays], weights: Sequence[float]) -> dict[str, NDArray[Any]]:
    """Average the arrays of K clients name by name: FedAvg, sum_k n_k w_k / sum_k n_k.

    Accumulates in float64 in the order given, so a fixed order of clients gives fixed bits. Integer arrays, such as
    BatchNorm's ``num_batches_tracked``, get the mean rounded half to even. A client of weight 0 is not read: not even
    a NaN of it counts. Beyond arguments and result, two float64 buffers of the largest array are needed, whatever K.

    Args:
        arrays: K mappings with equal names; under one name, equal shape and dtype (floating or integer).
        weights: K weights (n_k), finite and >= 0, not all 0; usually sample counts.

    Returns:
        Name -> mean, in the dtype of the inputs and the order of names of the first client.

    Raises:
        ValueError: If there is no client, a weight is bad or all are 0, or names, shapes or dtypes do not agree.

    Example:
        >>> mean = weighted_mean([{"w": np.array([1.0, 2.0])}, {"w": np.array([5.0, 2.0])}], [3, 1])
        >>> mean["w"].tolist()
        [2.0, 2.0]
    """
    weights = _checked(weights, len(arrays))
    for index, client in enumerate(arrays):
        _check_alike(arrays[0], client, index)
    return {name: _mean([client[name] for client in arrays], weights) for name in arrays[0]}


def _mean(values: list[NDArray[Any]], weights: list[float]) -> NDArray[Any]:
    total = np.zeros(values[0].shape, dtype=np.float64)
    scaled = np.empty_like(total)
    for value, weight in zip(values, weights, strict=True):
        if weight > 0:
            np.multiply(value, weight, out=scaled, dtype=np.float64)
            total += scaled
    total /= sum(weights)
    if np.issubdtype(values[0].dtype, np.integer):
        np.rint(total, out=total)
    return total.astype(values[0].dtype)


def _checked(weights: Sequence[float], num_clients: int) -> list[float]:
    values = [float(weight) for weight in weights]
    if num_clients == 0 or len(values) != num_clients:
        raise ValueError(f"one weight for each of at least one client, got {len(values)} for {num_clients} clients")
    if not all(math.isfinite(value) and value >= 0 for value in values):
        raise ValueError(f"weights must be finite and >= 0, got {values}")
    if sum(values) == 0:
        raise ValueError("weights must not all be 0; for a plain mean give every client the weight 1")
    return values


def _check_alike(first: Arrays, client: Arrays, index: int) -> None:
    if first.keys() != client.keys():
        differing = sorted(first.keys() ^ client.keys())
        raise ValueError(f"all clients must send the same names; client {index} and client 0 differ in {differing}")
    for name, array in client.items():
        expected = first[name]
        if array.shape != expected.shape or array.dtype != expected.dtype:
            raise ValueError(
                f"{name!r} must be alike on all clients, got {array.shape} {array.dtype} from client {index} "
                f"and {expected.shape} {expected.dtype} from client 0"
            )
        if not np.issubdtype(array.dtype, np.floating) and not np.issubdtype(array.dtype, np.integer):
            raise ValueError(f"{name!r} must be floating or integer to be averaged, got {array.dtype}")
