"""Local prototypes in the plane (t-SNE), and how far they keep together by client and by class (silhouettes)."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from fedapp.report.records import Prototypes

SEED = 42
PERPLEXITY = 30
ROWS = 600
"""Rows drawn at most; beyond, t-SNE takes seconds and the points cover one another."""


@dataclass(frozen=True)
class Embedding:
    """Prototypes in the plane.

    Attributes:
        points: (M, 2).
        client: (M,), position of the client.
        label: (M,), the class.
        by_client: Silhouette of the raw prototypes by client, None if it is not defined.
        by_class: The same by class.
        total: Prototypes there were, of which M were drawn.
    """

    points: NDArray[np.float64]
    client: NDArray[np.int64]
    label: NDArray[np.int64]
    by_client: float | None
    by_class: float | None
    total: int


def embed(found: Prototypes) -> Embedding | None:
    """Return the raw prototypes in the plane: t-SNE with perplexity min(30, n - 1), started from their PCA.

    Returns:
        None where there is nothing to lay out: fewer than four prototypes, one dimension, or all the same.
    """
    chosen = sample(len(found.rows), ROWS)
    rows, client, label = found.rows[chosen], found.client[chosen], found.label[chosen]
    if len(rows) < 4 or rows.shape[1] < 2 or not np.ptp(rows, axis=0).any():
        return None
    from sklearn.manifold import TSNE  # here, because it takes a second

    perplexity = min(PERPLEXITY, len(rows) - 1)
    points = TSNE(perplexity=perplexity, init="pca", random_state=SEED).fit_transform(rows)
    if not np.isfinite(points).all():
        return None
    scores = silhouette(rows, client), silhouette(rows, label)
    return Embedding(points.astype(np.float64), client, label, *scores, total=len(found.rows))


def sample(count: int, limit: int) -> NDArray[np.int64]:
    """Return ``limit`` of ``count`` positions in order, always the same ones; all of them if they are not more.

    Example:
        >>> sample(3, 5).tolist(), len(sample(100, 5))
        ([0, 1, 2], 5)
    """
    if count <= limit:
        return np.arange(count)
    return np.sort(np.random.default_rng(SEED).choice(count, limit, replace=False))


def silhouette(rows: NDArray[np.float32], member: NDArray[np.int64]) -> float | None:
    """Return the mean silhouette of groups in Euclidean distance: 1 far apart, 0 mixed, below 0 torn apart.

    Returns:
        A value in [-1, 1]; None unless there are at least two groups and fewer groups than rows.

    Example:
        >>> rows = np.array([[0.0], [0.0], [9.0], [9.0]], dtype=np.float32)
        >>> silhouette(rows, np.array([0, 0, 1, 1])), silhouette(rows, np.zeros(4, dtype=np.int64))
        (1.0, None)
    """
    if not 2 <= len(np.unique(member)) < len(rows):
        return None
    from sklearn.metrics import silhouette_score

    return float(silhouette_score(rows.astype(np.float64), member))
