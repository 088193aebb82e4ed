"""Class prototypes: class means with their counts, and their weighted mean over clients (FedSAF, Eq. 3 and 15).

Client functions work on tensors, server functions on arrays. Counts travel with means: a class is held exactly
when its count is positive, so an absent class needs no sentinel.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal, get_args

import numpy as np
import torch

from ._rows import check_labelled, full_precision, upcast

if TYPE_CHECKING:
    from jaxtyping import Bool, Float, Int
    from torch import Tensor

Weighting = Literal["uniform", "samples"]


def class_sums(
    features: Float[Tensor, "n d"], labels: Int[Tensor, " n"], num_classes: int
) -> tuple[Float[Tensor, "C d"], Int[Tensor, " C"]]:
    """Sum the features of every class; sums and counts of several batches may simply be added up.

    Args:
        features: (n, d), any floating dtype.
        labels: (n,), int64, in [0, num_classes).
        num_classes: C, the number of classes.

    Returns:
        Sums (C, d), float64, and counts (C,), int64. An absent class has a row of zeros and count 0.

    Raises:
        ValueError: If the shapes do not fit together.

    Example:
        >>> sums, counts = class_sums(torch.tensor([[1.0], [2.0], [5.0]]), torch.tensor([0, 0, 2]), 3)
        >>> sums.flatten().tolist(), counts.tolist()
        ([3.0, 0.0, 5.0], [2, 0, 1])
    """
    check_labelled(features, labels)
    sums = torch.zeros(num_classes, features.shape[1], dtype=torch.float64, device=features.device)
    return sums.index_add(0, labels, features.double()), torch.bincount(labels, minlength=num_classes)


def class_means(
    features: Float[Tensor, "n d"], labels: Int[Tensor, " n"], num_classes: int
) -> tuple[Float[Tensor, "C d"], Int[Tensor, " C"]]:
    """Return the prototype (P_i^c) of every class: the mean of its features, accumulated in float64.

    Args:
        features: (n, d), any floating dtype.
        labels: (n,), int64, in [0, num_classes).
        num_classes: C, the number of classes.

    Returns:
        Means (C, d) in the dtype of ``features`` and counts (C,), int64. An absent class has a row of zeros and
        count 0.

    Raises:
        ValueError: If the shapes do not fit together.

    Example:
        >>> means, counts = class_means(torch.tensor([[1.0], [2.0], [5.0]]), torch.tensor([0, 0, 2]), 3)
        >>> means.flatten().tolist(), counts.tolist()
        ([1.5, 0.0, 5.0], [2, 0, 1])
    """
    sums, counts = class_sums(features, labels, num_classes)
    return (sums / counts.clamp(min=1).unsqueeze(1)).to(features.dtype), counts


def batch_prototypes(
    features: Float[Tensor, "n d"], labels: Int[Tensor, " n"]
) -> tuple[Float[Tensor, "k d"], Int[Tensor, " k"]]:
    """Return the batch-wise local prototypes (P_i) of FedSAF, Eq. 15; the gradient flows to every feature.

    Args:
        features: (n, d), any floating dtype; n may be 0.
        labels: (n,), int64, not negative.

    Returns:
        Prototypes (k, d), float32 or better whatever the autocast, and the k classes of the batch, int64, ascending.

    Raises:
        ValueError: If the shapes do not fit together.

    Example:
        >>> prototypes, classes = batch_prototypes(torch.tensor([[1.0], [2.0], [5.0]]), torch.tensor([4, 4, 2]))
        >>> prototypes.flatten().tolist(), classes.tolist()
        ([5.0, 1.5], [2, 4])
    """
    check_labelled(features, labels)
    features = upcast(features)
    classes, position, counts = torch.unique(labels, return_inverse=True, return_counts=True)
    sums = features.new_zeros(len(classes), features.shape[1]).index_add(0, position, features)
    return sums / counts.unsqueeze(1), classes


def nearest_prototype(
    features: Float[Tensor, "n d"], prototypes: Float[Tensor, "C d"], known: Bool[Tensor, " C"]
) -> Int[Tensor, " n"]:
    """Classify every feature by its nearest known prototype in squared Euclidean distance.

    Args:
        features: (n, d), any floating dtype; distances are computed in float32 or better.
        prototypes: (C, d); rows of unknown classes are never read.
        known: (C,), bool; True where the class has a prototype.

    Returns:
        Labels (n,), int64; of equally near classes the lowest.

    Raises:
        ValueError: If no class is known or the shapes do not fit together.

    Example:
        >>> prototypes = torch.tensor([[0.0, 0.0], [9.0, 9.0], [4.0, 0.0]])
        >>> nearest_prototype(torch.tensor([[3.0, 1.0], [8.0, 8.0]]), prototypes, torch.tensor([True, False, True]))
        tensor([2, 2])
    """
    if features.ndim != 2 or prototypes.ndim != 2 or features.shape[1] != prototypes.shape[1]:
        raise ValueError(
            "features (n, d) and prototypes (C, d) must agree in d, "
            f"got {tuple(features.shape)} and {tuple(prototypes.shape)}"
        )
    classes = known.nonzero().flatten()
    if len(classes) == 0:
        raise ValueError("known must mark at least one class, got none; classify with the head before the first round")
    with full_precision(features):
        dtype = torch.promote_types(torch.promote_types(features.dtype, prototypes.dtype), torch.float32)
        rows, centres = features.detach().to(dtype), prototypes.detach()[classes].to(dtype)
        # The squared norm of the feature is the same for all classes and left out.
        distances = centres.square().sum(dim=1) - 2 * rows @ centres.T
    return classes[distances.argmin(dim=1)]


def weighted_mean(
    prototypes: Float[np.ndarray, "K C D"], counts: Int[np.ndarray, "K C"], weighting: Weighting
) -> tuple[Float[np.ndarray, "C D"], Bool[np.ndarray, " C"]]:
    """Average prototypes over the clients that hold the class: FedSAF, Eq. 3.

    The weight (ω_i) is 1 for every holder ("uniform", as FedProto's code does) or the holder's sample count of the
    class ("samples", the paper's example; then splitting data over clients changes nothing). Accumulates in float64
    in the order of the clients given, so a fixed order gives fixed bits. What a non-holder sent is never read.

    Args:
        prototypes: (K, C, D), float; one slice for each of K clients; K may be 0.
        counts: (K, C), integer, >= 0; 0 where the client does not hold the class.
        weighting: "uniform" or "samples".

    Returns:
        Means (C, D), float32, with rows of zeros for classes that nobody holds, and known (C,), bool.

    Raises:
        ValueError: If shapes do not fit, a count is negative, or ``weighting`` is unknown.

    Example:
        >>> prototypes = np.array([[[1.0], [7.0]], [[5.0], [0.0]]])
        >>> means, known = weighted_mean(prototypes, np.array([[3, 0], [1, 0]]), "samples")
        >>> means.ravel().tolist(), known.tolist()
        ([2.0, 0.0], [True, False])
    """
    if prototypes.ndim != 3 or prototypes.shape[:2] != counts.shape:
        raise ValueError(
            f"prototypes (K, C, D) and counts (K, C) must agree, got {prototypes.shape} and {counts.shape}"
        )
    if (counts < 0).any():
        raise ValueError(f"counts must be >= 0, got {counts.min()}")
    if weighting not in get_args(Weighting):
        raise ValueError(f'weighting must be "uniform" or "samples", got {weighting!r}')
    weights = (counts > 0 if weighting == "uniform" else counts).astype(np.float64)
    total = np.zeros(prototypes.shape[1:], dtype=np.float64)
    for rows, client_weights in zip(prototypes, weights, strict=True):
        holds = client_weights > 0
        total[holds] += rows[holds] * client_weights[holds, None]
    weight_sums = weights.sum(axis=0)
    known = weight_sums > 0
    return (total / np.where(known, weight_sums, 1.0)[:, None]).astype(np.float32), known


def merge_previous(
    means: Float[np.ndarray, "C D"],
    known: Bool[np.ndarray, " C"],
    previous: Float[np.ndarray, "C D"],
    previous_known: Bool[np.ndarray, " C"],
) -> tuple[Float[np.ndarray, "C D"], Bool[np.ndarray, " C"]]:
    """Let classes that nobody sent this round keep their last global prototype.

    Args:
        means: (C, D), this round's prototypes.
        known: (C,), bool; classes that somebody held this round.
        previous: (C, D), the prototypes before this round.
        previous_known: (C,), bool; classes known before this round.

    Returns:
        Means (C, D) in the dtype of ``means`` and known (C,), bool; a class known in neither has a row of zeros.

    Raises:
        ValueError: If the shapes differ.

    Example:
        >>> old, new = np.array([[1.0], [2.0]]), np.array([[9.0], [0.0]])
        >>> means, known = merge_previous(new, np.array([True, False]), old, np.array([True, True]))
        >>> means.ravel().tolist(), known.tolist()
        ([9.0, 2.0], [True, True])
    """
    if means.shape != previous.shape or known.shape != previous_known.shape or known.shape != means.shape[:1]:
        raise ValueError(
            "means and previous (C, D), known and previous_known (C,) must agree, "
            f"got {means.shape}, {previous.shape}, {known.shape}, {previous_known.shape}"
        )
    kept = np.where(previous_known[:, None], previous, 0.0)
    return np.where(known[:, None], means, kept).astype(means.dtype), known | previous_known


def held(
    means: Float[np.ndarray, "C D"], counts: Int[np.ndarray, " C"]
) -> tuple[Float[np.ndarray, "H D"], Int[np.ndarray, " H"], Int[np.ndarray, " H"]]:
    """Keep the rows of the H classes held, which is what a client uploads; the inverse of :func:`dense`.

    Args:
        means: (C, D), one row for each class.
        counts: (C,), integer, in [0, 2^31); a class is held where it is positive.

    Returns:
        Rows (H, D) in the dtype of ``means``, class ids (H,), int32, ascending, and counts (H,), int32.

    Raises:
        ValueError: If the shapes do not agree.

    Example:
        >>> rows, classes, counts = held(np.array([[1.0], [0.0], [3.0]]), np.array([2, 0, 5]))
        >>> rows.ravel().tolist(), classes.tolist(), counts.tolist()
        ([1.0, 3.0], [0, 2], [2, 5])
    """
    if means.ndim != 2 or counts.shape != means.shape[:1]:
        raise ValueError(f"means (C, D) and counts (C,) must agree, got {means.shape} and {counts.shape}")
    classes = np.flatnonzero(counts > 0)
    return means[classes], classes.astype(np.int32), counts[classes].astype(np.int32)


def dense(
    rows: Float[np.ndarray, "H D"], classes: Int[np.ndarray, " H"], counts: Int[np.ndarray, " H"], num_classes: int
) -> tuple[Float[np.ndarray, "C D"], Int[np.ndarray, " C"]]:
    """Lay the rows of the H classes held out over all C classes; the inverse of :func:`held`.

    Args:
        rows: (H, D), float.
        classes: (H,), integer, distinct, in [0, num_classes), in any order.
        counts: (H,), integer, > 0.
        num_classes: C, the number of classes.

    Returns:
        Means (C, D) in the dtype of ``rows`` and counts (C,), int64; both are zero where the class is not held.

    Raises:
        ValueError: If shapes do not agree, a class is out of range or comes twice, or a count is not positive.

    Example:
        >>> means, counts = dense(np.array([[3.0], [1.0]]), np.array([2, 0]), np.array([5, 2]), 3)
        >>> means.ravel().tolist(), counts.tolist()
        ([1.0, 0.0, 3.0], [2, 0, 5])
    """
    if rows.ndim != 2 or classes.shape != rows.shape[:1] or counts.shape != rows.shape[:1]:
        raise ValueError(
            "rows (H, D), classes (H,) and counts (H,) must agree, "
            f"got {rows.shape}, {classes.shape} and {counts.shape}"
        )
    if len(np.unique(classes)) != len(classes) or ((classes < 0) | (classes >= num_classes)).any():
        raise ValueError(f"classes must be distinct and in [0, {num_classes}), got {classes.tolist()}")
    if (counts <= 0).any():
        raise ValueError(f"counts must be > 0 for a class that is held, got {counts.tolist()}")
    means = np.zeros((num_classes, rows.shape[1]), dtype=rows.dtype)
    dense_counts = np.zeros(num_classes, dtype=np.int64)
    means[classes], dense_counts[classes] = rows, counts
    return means, dense_counts
