"""Metrics: accuracy over clients and domains, over rounds, and the dimension that a set of vectors really fills.

What was not measured is NaN, never 0: a client without test samples, a round without evaluation.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    from jaxtyping import Float, Int


def pooled_accuracy(correct: Int[np.ndarray, " K"], counts: Int[np.ndarray, " K"]) -> float:
    """Return the sample-weighted accuracy over all clients, sum of correct / sum of counts.

    What the papers call average test accuracy, as their code computes it.

    Args:
        correct: (K,), correctly classified test samples of every client, 0 <= correct <= counts.
        counts: (K,), test samples of every client, >= 0.

    Returns:
        Accuracy in [0, 1]; NaN without any sample.

    Raises:
        ValueError: If shapes differ or a value is out of range.

    Example:
        >>> pooled_accuracy(np.array([1, 6]), np.array([2, 6]))
        0.875
    """
    _check_counts(correct, counts)
    total = int(np.sum(counts))
    return int(np.sum(correct)) / total if total else float("nan")


def client_mean(correct: Int[np.ndarray, " K"], counts: Int[np.ndarray, " K"]) -> float:
    """Return the mean of the clients' accuracies, each client counting once.

    Args:
        correct: (K,), see :func:`pooled_accuracy`.
        counts: (K,); clients without test samples are left out.

    Returns:
        Accuracy in [0, 1]; NaN without any sample.

    Raises:
        ValueError: If shapes differ or a value is out of range.

    Example:
        >>> client_mean(np.array([1, 6, 0]), np.array([2, 6, 0]))
        0.75
    """
    accuracies = _client_accuracies(correct, counts)
    return float(accuracies.mean()) if len(accuracies) else float("nan")


def client_std(correct: Int[np.ndarray, " K"], counts: Int[np.ndarray, " K"]) -> float:
    """Return the standard deviation of the clients' accuracies (over the clients there are: divided by K).

    Args:
        correct: (K,), see :func:`pooled_accuracy`.
        counts: (K,); clients without test samples are left out.

    Returns:
        Standard deviation in [0, 0.5]; NaN without any sample.

    Raises:
        ValueError: If shapes differ or a value is out of range.

    Example:
        >>> client_std(np.array([1, 6, 0]), np.array([2, 6, 0]))
        0.25
    """
    accuracies = _client_accuracies(correct, counts)
    return float(accuracies.std()) if len(accuracies) else float("nan")


def client_worst(correct: Int[np.ndarray, " K"], counts: Int[np.ndarray, " K"]) -> float:
    """Return the accuracy of the client that is worst off.

    Args:
        correct: (K,), see :func:`pooled_accuracy`.
        counts: (K,); clients without test samples are left out.

    Returns:
        Accuracy in [0, 1]; NaN without any sample.

    Raises:
        ValueError: If shapes differ or a value is out of range.

    Example:
        >>> client_worst(np.array([1, 6, 0]), np.array([2, 6, 0]))
        0.5
    """
    accuracies = _client_accuracies(correct, counts)
    return float(accuracies.min()) if len(accuracies) else float("nan")


def by_domain(
    correct: Int[np.ndarray, " K"], counts: Int[np.ndarray, " K"], domains: Sequence[str]
) -> dict[str, float]:
    """Return the pooled accuracy of every domain.

    Args:
        correct: (K,), see :func:`pooled_accuracy`.
        counts: (K,), see :func:`pooled_accuracy`.
        domains: K names, the domain of every client.

    Returns:
        Domain -> accuracy in [0, 1], sorted by name; NaN for a domain without any sample.

    Raises:
        ValueError: If lengths differ or a value is out of range.

    Example:
        >>> by_domain(np.array([1, 6, 1]), np.array([2, 6, 2]), ["sketch", "photo", "photo"])
        {'photo': 0.875, 'sketch': 0.5}
    """
    _check_counts(correct, counts)
    if len(domains) != len(counts):
        raise ValueError(f"one domain for each client, got {len(domains)} for {len(counts)} clients")
    names = np.asarray(domains, dtype=str)
    return {
        name: pooled_accuracy(correct[names == name], counts[names == name]) for name in sorted(set(names.tolist()))
    }


class Rounds(NamedTuple):
    """A metric over rounds: its highest value (the papers' way), its last, and the mean of the last few."""

    best: float
    last: float
    tail_mean: float


def best_last_tail(values: Sequence[float], tail: int = 10) -> Rounds:
    """Return the best value over rounds, the last one, and the mean of the last ``tail``.

    Args:
        values: One value for each round, higher is better; NaN in a round without evaluation, which is passed over.
        tail: How many evaluations the mean takes, >= 1; with fewer, all of them.

    Returns:
        best, last and tail_mean; all NaN if nothing was evaluated.

    Raises:
        ValueError: If ``tail`` is below 1.

    Example:
        >>> best_last_tail([0.25, 1.0, float("nan"), 0.5], tail=2)
        Rounds(best=1.0, last=0.5, tail_mean=0.75)
    """
    if tail < 1:
        raise ValueError(f"tail must be >= 1, got {tail}")
    array = np.asarray(values, dtype=np.float64)
    evaluated = array[~np.isnan(array)]
    if len(evaluated) == 0:
        return Rounds(float("nan"), float("nan"), float("nan"))
    return Rounds(float(evaluated.max()), float(evaluated[-1]), float(evaluated[-tail:].mean()))


def effective_dimension(rows: Float[np.ndarray, "n d"], energy: float = 0.90) -> int:
    """Return the number of principal directions that hold ``energy`` of the variance (FedSAF, Fig. 1).

    Rows are l2-normalised, centred and decomposed: min {k : sum_(j<=k) s_j^2 / sum s_j^2 >= energy}, as in the
    first author's code. Rows that are all equal fill no dimension: 0.

    Args:
        rows: (n, d), the local prototypes of all clients and classes, one below the other.
        energy: Share of the variance in (0, 1].

    Returns:
        k, at most min(n - 1, d).

    Raises:
        ValueError: If ``rows`` is not 2-D or ``energy`` is out of range.

    Example:
        >>> square = np.array([[1.0, 0.0], [-1.0, 0.0], [0.0, 1.0], [0.0, -1.0]])
        >>> effective_dimension(square), effective_dimension(square[:2])
        (2, 1)
    """
    return dimensions(rows, energy).effective


def participation_ratio(rows: Float[np.ndarray, "n d"]) -> float:
    """Return (sum s_j^2)^2 / sum s_j^4 of the normalised, centred rows: k if k directions share the variance equally.

    Args:
        rows: (n, d), see :func:`effective_dimension`.

    Returns:
        A value in [1, min(n - 1, d)]; 0 if all rows are equal.

    Raises:
        ValueError: If ``rows`` is not 2-D.

    Example:
        >>> round(participation_ratio(np.array([[1.0, 0.0], [-1.0, 0.0], [0.0, 1.0], [0.0, -1.0]])), 4)
        2.0
    """
    return dimensions(rows).participation


def entropy_rank(rows: Float[np.ndarray, "n d"]) -> float:
    """Return exp(-sum p_j log p_j) with p_j = s_j^2 / sum s_j^2 of the normalised, centred rows.

    Args:
        rows: (n, d), see :func:`effective_dimension`.

    Returns:
        A value in [1, min(n - 1, d)]; 0 if all rows are equal.

    Raises:
        ValueError: If ``rows`` is not 2-D.

    Example:
        >>> round(entropy_rank(np.array([[1.0, 0.0], [-1.0, 0.0], [0.0, 1.0], [0.0, -1.0]])), 4)
        2.0
    """
    return dimensions(rows).entropy


class Dimensions(NamedTuple):
    """How many directions rows fill, counted in three ways."""

    effective: int
    participation: float
    entropy: float


def dimensions(rows: Float[np.ndarray, "n d"], energy: float = 0.90) -> Dimensions:
    """Return :func:`effective_dimension`, :func:`participation_ratio` and :func:`entropy_rank` of one decomposition.

    Args:
        rows: (n, d), see :func:`effective_dimension`.
        energy: Share of the variance in (0, 1].

    Raises:
        ValueError: If ``rows`` is not 2-D or ``energy`` is out of range.

    Example:
        >>> dimensions(np.array([[1.0, 0.0], [-1.0, 0.0]]))
        Dimensions(effective=1, participation=1.0, entropy=1.0)
    """
    if not 0 < energy <= 1:
        raise ValueError(f"energy must be in (0, 1], got {energy}")
    shares = _variance_shares(rows)
    if not len(shares):
        return Dimensions(0, 0.0, 0.0)
    cumulated, positive = np.cumsum(shares), shares[shares > 0]
    # The slack lets 9 of 10 equal shares reach 0.9 although their sum rounds to slightly less.
    effective = min(int(np.searchsorted(cumulated, energy - 1e-12)) + 1, len(cumulated))
    entropy = float(np.exp(-(positive * np.log(positive)).sum()))
    return Dimensions(effective, float(1 / np.square(shares).sum()), entropy)


def _variance_shares(rows: NDArray[np.floating]) -> NDArray[np.float64]:
    """Return the squared singular values of the normalised, centred rows over their sum; empty if all are 0."""
    if rows.ndim != 2:
        raise ValueError(f"rows must be (n, d), got {rows.shape}")
    if len(rows) == 0:
        return np.empty(0)
    values = rows.astype(np.float64)
    norms = np.linalg.norm(values, axis=1, keepdims=True)
    unit = values / np.where(norms > 0, norms, 1.0)
    squares = np.square(np.linalg.svd(unit - unit.mean(axis=0), compute_uv=False))
    rounding = len(rows) * (16 * np.finfo(np.float64).eps) ** 2
    return squares / squares.sum() if squares.sum() > rounding else np.empty(0)


def _client_accuracies(correct: NDArray[np.integer], counts: NDArray[np.integer]) -> NDArray[np.float64]:
    _check_counts(correct, counts)
    tested = counts > 0
    return np.asarray(correct[tested] / counts[tested], dtype=np.float64)


def _check_counts(correct: NDArray[np.integer], counts: NDArray[np.integer]) -> None:
    if correct.ndim != 1 or correct.shape != counts.shape:
        raise ValueError(f"correct (K,) and counts (K,) must agree, got {correct.shape} and {counts.shape}")
    if ((correct < 0) | (correct > counts)).any():
        raise ValueError(f"0 <= correct <= counts must hold, got {correct.tolist()} of {counts.tolist()}")
