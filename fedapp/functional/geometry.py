"""How the prototypes of different clients lie to each other: what the FedSAF paper's Fig. 1, 7 and Prop. 1 look at."""

from __future__ import annotations

from itertools import combinations
from typing import TYPE_CHECKING

import numpy as np
import torch

from .alignment import gcsa
from .procrustes import procrustes_split

if TYPE_CHECKING:
    from jaxtyping import Bool, Float, Int

MOST_PAIRS = 300
_STRUCTURE_ROWS = 3


def cross_client_cka(prototypes: Float[np.ndarray, "K C D"], counts: Int[np.ndarray, "K C"]) -> float:
    """Return the mean linear CKA (1 - GCSA, Eq. 13) of two clients' prototypes, over pairs of clients.

    A pair is compared on the classes that both hold, if there are at least three. Of many pairs, at most 300 spread
    evenly over all are taken, so that the cost stays bounded.

    Args:
        prototypes: (K, C, D), float; rows of classes that a client does not hold are never read.
        counts: (K, C), integer, 0 = not held.

    Returns:
        Mean in [0, 1]; NaN if no pair shares three classes.

    Example:
        >>> one = np.eye(3)
        >>> cross_client_cka(np.stack([one, 2 * one + 1]), np.ones((2, 3), int))
        1.0
    """
    shared = [
        (first, second, both)
        for first, second in combinations(range(len(counts)), 2)
        if (both := np.flatnonzero((counts[first] > 0) & (counts[second] > 0))).size >= _STRUCTURE_ROWS
    ]
    if not shared:
        return float("nan")
    taken = np.unique(np.linspace(0, len(shared) - 1, min(len(shared), MOST_PAIRS)).astype(int))
    values = []
    for index in taken:
        first, second, both = shared[index]
        rows = (torch.from_numpy(np.ascontiguousarray(prototypes[client, both])).double() for client in (first, second))
        values.append(1.0 - float(gcsa(*rows)))
    return float(np.mean(values))


def shape_and_rigid(
    prototypes: Float[np.ndarray, "C D"],
    counts: Int[np.ndarray, " C"],
    reference: Float[np.ndarray, "C D"],
    known: Bool[np.ndarray, " C"],
) -> tuple[float, float]:
    """Split a client's distance to the global prototypes into shape and rigid part (FedSAF Prop. 1, Eq. 9).

    Args:
        prototypes: (C, D), the client's prototypes.
        counts: (C,), integer, 0 = not held.
        reference: (C, D), the global prototypes.
        known: (C,), bool, classes that have a global prototype.

    Returns:
        The two parts, over the classes held that have a global prototype; NaN twice if there is none.

    Example:
        >>> turned = np.eye(3)[[1, 2, 0]]
        >>> [round(part, 6) + 0.0 for part in shape_and_rigid(turned, np.ones(3, int), np.eye(3), np.ones(3, bool))]
        [0.0, 6.0]
    """
    both = np.flatnonzero((counts > 0) & known)
    if not both.size:
        return float("nan"), float("nan")
    rows = (torch.from_numpy(np.ascontiguousarray(array[both])).double() for array in (prototypes, reference))
    shape, rigid = procrustes_split(*rows)
    return float(shape), float(rigid)
