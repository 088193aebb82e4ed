"""Pseudo-domain groups of FedSAP: which clients' signals are alike (Eq. 4), and their groups over the rounds (DGA)."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import TYPE_CHECKING, Literal, get_args

import numpy as np
from numpy.typing import NDArray

from ._checks import check_choice, check_finite

if TYPE_CHECKING:
    from jaxtyping import Bool, Float, Int

FloatArray = NDArray[np.float64]
IntArray = NDArray[np.int64]
BoolArray = NDArray[np.bool_]

Linkage = Literal["components", "complete", "average"]
Count = Literal["threshold", "silhouette"]

_ROUNDING = 1e-6  # a signal that differs from the mean by less than this share of itself differs by rounding only


def similarity(
    signals: Float[np.ndarray, "K n"], active: Bool[np.ndarray, "K n"] | None = None, *, center: bool = False
) -> Float[np.ndarray, "K K"]:
    """Return the cosine similarity of the clients' signals: S_ij = <g_i, g_j> / (|g_i| |g_j|) (FedSAP, Eq. 4).

    Product and norms run over the entries that both clients have active. A signal of zeros has no direction (0 / 0):
    its similarity is 0 to all others and 1 to itself, so it ends up in a group of its own.

    Args:
        signals: (K, n), one signal a client, such as the gradient g of the first convolution; finite where active.
        active: (K, n), which entries a client has; None: all.
        center: Whether to subtract from each entry its mean over the clients that have it (zero signals apart), which
            takes out what all share. Signals that are equal anyway stay as they are, and all alike.

    Returns:
        (K, K), symmetric, in [-1, 1], ones on the diagonal.

    Raises:
        ValueError: If an active entry is NaN or infinite, or shapes do not fit.

    Example:
        >>> similarity(np.array([[1.0, 0.0], [3.0, 4.0], [0.0, 0.0]])).round(3).tolist()
        [[1.0, 0.6, 0.0], [0.6, 1.0, 0.0], [0.0, 0.0, 1.0]]
    """
    held = np.ones(signals.shape, dtype=np.bool_) if active is None else active
    if signals.ndim != 2 or held.shape != signals.shape:
        raise ValueError(f"signals and active must be (K, n), got {signals.shape} and {held.shape}")
    check_finite("active entries of signals", signals[held])
    values = np.where(held, signals, 0.0).astype(np.float64)
    held = held & values.any(axis=1, keepdims=True)
    return _cosines(_centred(values, held) if center else values, held)


def relative_spread(signals: Float[np.ndarray, "K n"], active: Bool[np.ndarray, "K n"]) -> float:
    """Return how far signals lie apart for their size, sqrt(Σ|s_i - mean|² / Σ|s_i|²), over active entries.

    Clusters can always be found; with statistics of one domain this is near 0, and they mean nothing.

    Args:
        signals: (K, n), one signal a client; read only where active.
        active: (K, n), which entries each client has.

    Returns:
        In [0, 1]; 0 if all signals are zero.

    Example:
        >>> relative_spread(np.array([[1.0, 1.0], [1.0, 1.0]]), np.ones((2, 2), dtype=bool))
        0.0
        >>> relative_spread(np.array([[1.0, 0.0], [-1.0, 0.0]]), np.ones((2, 2), dtype=bool))
        1.0
    """
    values = np.where(active, signals, 0.0)
    count = active.sum(axis=0)
    mean = np.divide(values.sum(axis=0), count, out=np.zeros(values.shape[1]), where=count > 0)
    size = float(np.square(values).sum())
    return float(np.sqrt(np.square(np.where(active, values - mean, 0.0)).sum() / size)) if size else 0.0


def cluster(
    similarity: Float[np.ndarray, "K K"],
    *,
    linkage: Linkage = "components",
    threshold: float = 0.5,
    count: Count = "threshold",
    max_groups: int = 0,
) -> Int[np.ndarray, " K"]:
    """Group clients by similarity: Domain-Guided Assignment of FedSAP.

    "components" are the connected components of S_ij >= τ_sim (the paper's way; one pair may chain two groups into
    one). "complete" and "average" merge agglomeratively on 1 - S while the groups' least or mean similarity is at
    least τ_sim. With ``count`` "silhouette" no threshold but the highest mean silhouette picks the number of groups,
    from 2 up; where it is not positive, or fewer than three clients are left to compare, nothing separates them: one
    group. It always finds something in noise, so similarities should come from signals that do differ. A client with
    similarity 0 to all others has a group of its own, whatever the count.

    Args:
        similarity: (K, K), see :func:`similarity`.
        linkage: "components", "complete" or "average".
        threshold: τ_sim in [-1, 1].
        count: "threshold" or "silhouette".
        max_groups: Most groups among clients that are similar to anybody; 0: no limit.

    Returns:
        (K,) int64, group numbers from 0 in the order of their first members.

    Raises:
        ValueError: If the matrix is not square, symmetric and finite, or an argument is out of range.

    Example:
        >>> chain = np.array([[1.0, 0.6, 0.1], [0.6, 1.0, 0.6], [0.1, 0.6, 1.0]])
        >>> cluster(chain).tolist(), cluster(chain, linkage="complete").tolist()
        ([0, 0, 0], [0, 0, 1])
    """
    check_choice("linkage", linkage, get_args(Linkage))
    check_choice("count", count, get_args(Count))
    if not -1 <= threshold <= 1 or max_groups < 0:
        raise ValueError(f"threshold must be in [-1, 1] and max_groups >= 0, got {threshold} and {max_groups}")
    _check_similarity(similarity)
    connected = np.flatnonzero((similarity - np.diag(np.diag(similarity))).any(axis=1))
    labels = len(similarity) + np.arange(len(similarity))  # each its own, apart from the numbers of the connected
    if len(connected):
        distances = np.clip(1 - similarity[np.ix_(connected, connected)], 0, 2)
        np.fill_diagonal(distances, 0)
        labels[connected] = _agglomerated(
            distances, linkage, 1 - threshold if count == "threshold" else None, max_groups
        )
    return _canonical(labels)


def merge_small(
    labels: Int[np.ndarray, " K"], similarity: Float[np.ndarray, "K K"], min_size: int
) -> Int[np.ndarray, " K"]:
    """Let groups with too few members join the group that is nearest by mean similarity, the smallest first.

    Args:
        labels: (K,), group numbers.
        similarity: (K, K), see :func:`similarity`.
        min_size: Fewest members, >= 1; fewer clients than this make one group.

    Returns:
        (K,) int64, group numbers from 0 in the order of their first members.

    Raises:
        ValueError: If shapes do not fit or ``min_size`` is below 1.

    Example:
        >>> merge_small(np.array([0, 0, 1]), np.array([[1.0, 0.6, 0.1], [0.6, 1.0, 0.6], [0.1, 0.6, 1.0]]), 2).tolist()
        [0, 0, 0]
    """
    if min_size < 1 or labels.shape != similarity.shape[:1]:
        raise ValueError(f"min_size must be >= 1 and labels (K,), got {min_size}, {labels.shape}, {similarity.shape}")
    _check_similarity(similarity)
    labels = _canonical(labels)
    while len(labels) and labels.any() and np.bincount(labels).min() < min_size:
        small = labels == np.argmin(np.bincount(labels))
        labels[small] = nearest_group(similarity[small].mean(axis=0), np.where(small, -1, labels))
        labels = _canonical(labels)
    return labels


def relabel(
    old: Int[np.ndarray, " K"], new: Int[np.ndarray, " K"], taken: Collection[int] = ()
) -> Int[np.ndarray, " K"]:
    """Rename new groups so that they keep the numbers of the old groups they overlap with most (Hungarian method).

    A group that overlaps with no old one, or lost its number to a better match, gets the lowest number that no old
    group has and nobody else.

    Args:
        old: (K,), each client's group before; -1 for a client that had none.
        new: (K,), each client's group now, >= 0.
        taken: Numbers that others hold, such as the groups of clients that are absent; fresh numbers avoid them.

    Returns:
        (K,) int64, the same groups as ``new``.

    Raises:
        ValueError: If shapes differ or a new group is negative.

    Example:
        >>> relabel(np.array([0, 0, 1, 1, 3]), np.array([1, 1, 0, 0, 2])).tolist()
        [0, 0, 1, 1, 3]
    """
    from scipy.optimize import linear_sum_assignment  # here, as every import of scipy takes its time

    if old.shape != new.shape or (new < 0).any():
        raise ValueError(f"one old and one new group >= 0 a client, got {old.tolist()} and {new.tolist()}")
    before, now = np.unique(old[old >= 0]), np.unique(new)
    overlap = np.array([[((old == b) & (new == n)).sum() for n in now] for b in before]).reshape(len(before), len(now))
    names: dict[int, int] = {}
    for row, column in zip(*linear_sum_assignment(overlap, maximize=True), strict=True):
        if overlap[row, column] > 0:
            names[int(now[column])] = int(before[row])
    used = {*before.tolist(), *(int(number) for number in taken)}
    for group in now.tolist():
        if group not in names:
            names[group] = next(number for number in range(len(used) + 1) if number not in used)
            used.add(names[group])
    return np.array([names[int(group)] for group in new], dtype=np.int64)


def nearest_group(similarity_row: Float[np.ndarray, " K"], labels: Int[np.ndarray, " K"]) -> int:
    """Return the group whose members a newcomer resembles most, by mean similarity; ties go to the lower number.

    Args:
        similarity_row: (K,), similarity of the newcomer to each client.
        labels: (K,), each client's group; -1 leaves a client out, such as the newcomer itself.

    Raises:
        ValueError: If shapes differ, a similarity is NaN, or no client has a group.

    Example:
        >>> nearest_group(np.array([0.1, 0.5, 0.4, 1.0]), np.array([0, 0, 1, -1]))
        1
    """
    if similarity_row.shape != labels.shape:
        raise ValueError(f"one similarity and one group a client, got {similarity_row.shape} and {labels.shape}")
    groups = np.unique(labels[labels >= 0])
    if len(groups) == 0:
        raise ValueError("no client has a group to join yet; cluster the clients first")
    check_finite("similarities", similarity_row[labels >= 0])
    return int(groups[np.argmax([similarity_row[labels == group].mean() for group in groups])])


def adjusted_rand(labels: Sequence[int] | Int[np.ndarray, " K"], truth: Sequence[object]) -> float:
    """Compare groups with the true domains: the adjusted Rand index, 1 if they agree, about 0 by chance.

    Args:
        labels: K group numbers.
        truth: K domains, numbers or names.

    Returns:
        A value in [-0.5, 1]; names of groups do not matter.

    Raises:
        ValueError: If lengths differ or there is no client.

    Example:
        >>> adjusted_rand([0, 0, 1, 1], ["mnist", "mnist", "usps", "usps"])
        1.0
    """
    from sklearn.metrics import adjusted_rand_score  # here, because it takes a second

    if len(labels) != len(truth) or len(truth) == 0:
        raise ValueError(f"one group and one domain for each client, got {len(labels)} and {len(truth)}")
    return float(adjusted_rand_score([str(domain) for domain in truth], labels))


def _centred(values: FloatArray, held: BoolArray) -> FloatArray:
    count = held.sum(axis=0)
    mean = np.divide(values.sum(axis=0), count, out=np.zeros(values.shape[1]), where=count > 0)
    centred = np.where(held, values - mean, 0.0)
    lengths = np.linalg.norm(centred, axis=1), np.linalg.norm(values, axis=1)
    centred[lengths[0] <= _ROUNDING * lengths[1]] = 0.0
    return centred if centred.any() else values


def _cosines(values: FloatArray, held: BoolArray) -> FloatArray:
    largest = np.abs(values).max(axis=1, initial=0.0, keepdims=True)
    values = np.divide(values, largest, out=np.zeros_like(values), where=largest > 0)  # squares of 1e-200 would be 0
    lengths = np.sqrt(np.square(values) @ held.T.astype(np.float64))  # (i, j): of i where j is active too
    norms = lengths * lengths.T
    cosines = np.divide(values @ values.T, norms, out=np.zeros_like(norms), where=norms > 0)
    cosines = np.clip((cosines + cosines.T) / 2, -1.0, 1.0)
    np.fill_diagonal(cosines, 1.0)
    return np.asarray(cosines)


def _agglomerated(distances: FloatArray, linkage: Linkage, cut: float | None, max_groups: int) -> IntArray:
    """Cut the tree of merges at a distance, or where the silhouette is highest; at most ``max_groups`` (0: any)."""
    from scipy.cluster import hierarchy
    from scipy.spatial.distance import squareform

    if len(distances) < 2:
        return np.zeros(len(distances), dtype=np.int64)
    # Connected components at a threshold are single linkage cut there.
    tree = hierarchy.linkage(squareform(distances), "single" if linkage == "components" else linkage)
    limit = max_groups or len(distances)
    if cut is None:
        return _best_silhouette([hierarchy.fcluster(tree, k, "maxclust") for k in range(2, limit + 1)], distances)
    labels = hierarchy.fcluster(tree, cut, "distance")
    return np.asarray(labels if labels.max() <= limit else hierarchy.fcluster(tree, limit, "maxclust"))


def _best_silhouette(candidates: Sequence[IntArray], distances: FloatArray) -> IntArray:
    from sklearn.metrics import silhouette_score

    best, score = np.zeros(len(distances), dtype=np.int64), 0.0
    for labels in candidates:
        if 2 <= len(np.unique(labels)) < len(labels):
            value = float(silhouette_score(distances, labels, metric="precomputed"))
            best, score = (labels, value) if value > score + _ROUNDING else (best, score)
    return best


def _canonical(labels: IntArray) -> IntArray:
    _, first, inverse = np.unique(labels, return_index=True, return_inverse=True)
    return np.asarray(np.argsort(np.argsort(first))[inverse], dtype=np.int64)


def _check_similarity(similarity: FloatArray) -> None:
    if similarity.ndim != 2 or similarity.shape[0] != similarity.shape[1]:
        raise ValueError(f"similarity must be (K, K), got {similarity.shape}")
    check_finite("similarity", similarity)
    if not np.allclose(similarity, similarity.T, rtol=0, atol=1e-6):
        raise ValueError("similarity must be symmetric; compare each pair of clients once")
