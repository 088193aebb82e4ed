"""Alignment losses of FedSAF (arXiv 2605.05959, section III): coordinate (mse, cosine) and structural (gcsa, rcsa).

Every loss maps two sets of n rows, P (n, d) and Q (n, d'), to a scalar that is differentiable in both. It is
computed in float32 or better, whatever the autocast and the dtype given. A loss that carries no signal is an exact
0 with a zero gradient. Rows that hold a NaN do not count as collapsed: the loss is then NaN, for the caller to see.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, NamedTuple

import torch
from torch import Tensor

from ._rows import (
    centred_gram,
    check_labelled,
    check_rows,
    check_same_rows,
    check_same_shape,
    compare,
    full_precision,
    pair_distances,
    repeated_gram,
    unit_rows,
    upcast,
    zero,
)
from .procrustes import procrustes_split as procrustes_split
from .prototypes import batch_prototypes

if TYPE_CHECKING:
    from jaxtyping import Bool, Float, Int

Alignment = Callable[[Tensor, Tensor], Tensor]
Structure = Callable[[Tensor], Tensor]

_STRUCTURAL_ROWS = 3
"""Two centred rows are opposite and two rows have one distance: GCSA and RCSA of two rows are 0 for any P and Q."""


def structure_gram(p: Float[Tensor, "n d"]) -> Float[Tensor, "n n"]:
    """Return the centred Gram matrix K_P = P_c P_c^T of Eq. 13 (rows are centred, not normalised).

    Rows that are equal up to rounding give an exact zero matrix and a zero gradient.

    Args:
        p: (n, d), n >= 1, any floating dtype.

    Returns:
        (n, n), float32 or better, symmetric positive semi-definite.

    Raises:
        ValueError: If ``p`` is not 2-D or has no rows.

    Example:
        >>> structure_gram(torch.tensor([[1.0, 0.0], [3.0, 0.0]])).tolist()
        [[1.0, -1.0], [-1.0, 1.0]]
    """
    check_rows(p)
    with full_precision(p):
        return centred_gram(upcast(p))


def structure_rdm(p: Float[Tensor, "n d"]) -> Float[Tensor, " m"]:
    """Return vec(RDM_P) of Eq. 14: squared distances of the l2-normalised rows, strict upper triangle row by row.

    A zero row stays zero and gets a zero gradient. Rows whose directions are equal up to rounding give an exact
    zero vector and a zero gradient.

    Args:
        p: (n, d), n >= 1, any floating dtype.

    Returns:
        (n (n - 1) / 2,), float32 or better, in [0, 4].

    Raises:
        ValueError: If ``p`` is not 2-D or has no rows.

    Example:
        >>> structure_rdm(torch.tensor([[2.0, 0.0], [0.0, 5.0], [-1.0, 0.0]])).tolist()
        [2.0, 4.0, 2.0]
    """
    check_rows(p)
    with full_precision(p):
        # Centring leaves distances alone and makes the Gram identity cancel less; torch.cdist has no gradient at 0.
        return pair_distances(centred_gram(unit_rows(upcast(p))))


def cosine_discrepancy(a: Float[Tensor, "*shape"], b: Float[Tensor, "*shape"]) -> Float[Tensor, ""]:
    """Return 1 - <a, b> / (|a| |b|), the discrepancy (D) of Eq. 13 and 14, over all elements.

    Computed as half the squared distance of the unit descriptors: the same number, but never negative and accurate
    near 0. If either descriptor is zero, the result is an exact 0 with a zero gradient.

    Args:
        a: Descriptor of any shape.
        b: Descriptor of the same shape.

    Returns:
        Scalar in [0, 2]; in [0, 1] for Gram matrices and RDMs.

    Raises:
        ValueError: If the shapes differ.

    Example:
        >>> cosine_discrepancy(torch.tensor([1.0, 0.0]), torch.tensor([0.0, 2.0])).item()
        1.0
    """
    return _compare(a, b).loss


def structural(
    p: Float[Tensor, "n d"],
    q: Float[Tensor, "n e"],
    structure: Structure,
    discrepancy: Alignment,
    min_rows: int = 2,
) -> Float[Tensor, ""]:
    """Return D(S(P), S(Q)), Eq. 12, for any structure operator (S, Eq. 11) and discrepancy (D).

    Args:
        p: (n, d), local rows.
        q: (n, e), global rows; e may differ from d if ``structure`` allows it.
        structure: (n, d) -> descriptor whose shape depends on n alone.
        discrepancy: Two descriptors -> scalar.
        min_rows: With fewer rows the loss is an exact 0; >= 1.

    Returns:
        Scalar.

    Raises:
        ValueError: If ``p`` or ``q`` is not 2-D or their numbers of rows differ.

    Example:
        >>> p = torch.eye(3)
        >>> structural(p, 2 * p, lambda rows: rows @ rows.T, lambda a, b: (a - b).square().mean()).item()
        3.0
    """
    check_same_rows(p, q)
    if len(p) < min_rows:
        return zero(p, q)
    with full_precision(p):
        return discrepancy(structure(upcast(p)), structure(upcast(q)))


def gcsa(p: Float[Tensor, "n d"], q: Float[Tensor, "n e"]) -> Float[Tensor, ""]:
    """Gram-cosine structural alignment, Eq. 13: 1 - linear CKA. Invariant to scale, rotation and shift (Prop. 2).

    Not invariant to the norms of single rows. An exact 0 with a zero gradient if n < 3 (two rows give 0 for any P
    and Q) or if all rows of P or all rows of Q are equal (a batch of one class, collapsed features).

    Args:
        p: (n, d), local rows.
        q: (n, e), global rows; e may differ from d.

    Returns:
        Scalar in [0, 1].

    Raises:
        ValueError: If ``p`` or ``q`` is not 2-D or their numbers of rows differ.

    Example:
        >>> p = torch.tensor([[0.0, 0.0], [1.0, 0.0], [0.0, 1.0]])
        >>> gcsa(p, 3 * p + 5).item() < 1e-6, round(gcsa(p, p[[1, 0, 2]]).item(), 4)
        (True, 0.3)
    """
    return structural(p, q, structure_gram, cosine_discrepancy, min_rows=_STRUCTURAL_ROWS)


def rcsa(p: Float[Tensor, "n d"], q: Float[Tensor, "n e"]) -> Float[Tensor, ""]:
    """RDM-cosine structural alignment, Eq. 14. Invariant to rotation (Prop. 3) and to the norm of every row.

    Not invariant to a shift. An exact 0 with a zero gradient if n < 3 (two rows have a single distance) or if all
    rows of P or all rows of Q have the same direction.

    Args:
        p: (n, d), local rows.
        q: (n, e), global rows; e may differ from d.

    Returns:
        Scalar in [0, 1].

    Raises:
        ValueError: If ``p`` or ``q`` is not 2-D or their numbers of rows differ.

    Example:
        >>> p = torch.tensor([[1.0, 0.0], [0.0, 1.0], [-1.0, 0.0]])
        >>> rcsa(p, 3 * p).item() < 1e-6, round(rcsa(p, p[[1, 0, 2]]).item(), 4)
        (True, 0.1667)
    """
    return structural(p, q, structure_rdm, cosine_discrepancy, min_rows=_STRUCTURAL_ROWS)


def mse(p: Float[Tensor, "n d"], q: Float[Tensor, "n d"]) -> Float[Tensor, ""]:
    """Squared error, the l2 loss of Eq. 6, as the mean over all n * d elements (1 / d of the paper's row norm).

    The mean over elements is what the first author's code and HtFLlib use. No rows: an exact 0.

    Args:
        p: (n, d), local rows.
        q: (n, d), global rows.

    Returns:
        Scalar >= 0.

    Raises:
        ValueError: If the shapes differ or are not 2-D.

    Example:
        >>> mse(torch.tensor([[1.0, 2.0]]), torch.tensor([[3.0, 2.0]])).item()
        2.0
    """
    check_same_shape(p, q, "mse")
    if len(p) == 0:
        return zero(p, q)
    with full_precision(p):
        return (upcast(p) - upcast(q)).square().mean()


def cosine(p: Float[Tensor, "n d"], q: Float[Tensor, "n d"]) -> Float[Tensor, ""]:
    """Cosine loss of Eq. 6: the mean over rows of 1 - cos. No rows: an exact 0.

    A zero row has no direction: it counts as 1 (cos = 0) and gets a zero gradient.

    Args:
        p: (n, d), local rows.
        q: (n, d), global rows.

    Returns:
        Scalar in [0, 2].

    Raises:
        ValueError: If the shapes differ or are not 2-D.

    Example:
        >>> cosine(torch.tensor([[2.0, 0.0], [0.0, 1.0]]), torch.tensor([[1.0, 0.0], [0.0, -3.0]])).item()
        1.0
    """
    check_same_shape(p, q, "cosine")
    if len(p) == 0:
        return zero(p, q)
    with full_precision(p):
        return 1 - (unit_rows(upcast(p)) * unit_rows(upcast(q))).sum(dim=1).mean()


ALIGNMENTS: dict[str, Alignment] = {"gcsa": gcsa, "rcsa": rcsa, "mse": mse, "cosine": cosine}
"""The alignment losses by name."""


class _Operator(NamedTuple):
    """A structure operator in two steps: S(P) = descriptor(centred Gram of rows(P))."""

    rows: Callable[[Tensor], Tensor]
    descriptor: Callable[[Tensor], Tensor]

    def gram(self, p: Tensor) -> Tensor:
        """Return the centred Gram of the rows that S looks at."""
        return centred_gram(self.rows(upcast(p)))

    def compare(self, p: Tensor, gram: Tensor) -> Aligned:
        """Compare S(P) with S(Q), where Q is given by its :meth:`gram`."""
        return _compare(self.descriptor(self.gram(p)), self.descriptor(gram))


_OPERATORS = (
    (gcsa, _Operator(rows=lambda p: p, descriptor=lambda gram: gram)),
    (rcsa, _Operator(rows=unit_rows, descriptor=pair_distances)),
)


def _operator(alignment: Alignment) -> _Operator | None:
    return next((operator for loss, operator in _OPERATORS if loss is alignment), None)


class Aligned(NamedTuple):
    """A loss and whether it could pull at anything."""

    loss: Float[Tensor, ""]
    active: Bool[Tensor, ""]


def align(
    p: Float[Tensor, "n d"], q: Float[Tensor, "n e"], alignment: Alignment, min_rows: int | None = None
) -> Aligned:
    """Return ``alignment(p, q)`` and whether it carries a signal, at the cost of the loss alone.

    :func:`gcsa` and :func:`rcsa` are active with >= 3 rows when neither structure has collapsed, :func:`mse`,
    :func:`cosine` and a loss of your own with >= ``min_rows`` rows. Fewer rows: an exact 0, and not active.

    Args:
        p: (n, d), local rows.
        q: (n, e), global rows.
        alignment: (P, Q) -> scalar.
        min_rows: Rows needed, >= 1; None: 3 for gcsa and rcsa, 1 for every other loss.

    Returns:
        The loss, and active as a bool scalar on the device of ``p`` (reading it there costs no wait).

    Raises:
        ValueError: If ``p`` or ``q`` is not 2-D or their numbers of rows differ.

    Example:
        >>> align(torch.eye(3), torch.ones(3, 3), gcsa)
        Aligned(loss=tensor(0.), active=tensor(False))
    """
    check_same_rows(p, q)
    operator = _operator(alignment)
    if min_rows is None:
        min_rows = _STRUCTURAL_ROWS if operator else 1
    if len(p) < min_rows:
        return _silent(p, q)
    if operator is None:
        return Aligned(alignment(p, q), torch.ones((), dtype=torch.bool, device=p.device))
    with full_precision(p):
        return operator.compare(p, operator.gram(q))


def _silent(p: Tensor, q: Tensor) -> Aligned:
    return Aligned(zero(p, q), torch.zeros((), dtype=torch.bool, device=p.device))


class TwoLevel(NamedTuple):
    """The two alignment terms of Eq. 19 for one batch, unweighted, and whether each was active."""

    proto: Float[Tensor, ""]
    inst: Float[Tensor, ""]
    proto_active: Bool[Tensor, ""]
    inst_active: Bool[Tensor, ""]


def two_level(
    features: Float[Tensor, "B d"],
    labels: Int[Tensor, " B"],
    prototypes: Float[Tensor, "C e"],
    known: Bool[Tensor, " C"],
    alignment: Alignment,
    min_rows: int | None = None,
) -> TwoLevel:
    """Return FedSAF's prototype-level loss (Eq. 15-17) and instance-level loss (Eq. 18) of one batch.

    Samples whose class has no global prototype are left out at both levels. The global prototypes are constants.
    With gcsa or rcsa the prototype level needs three classes; the instance level needs two, because the samples of
    a class still differ.

    Args:
        features: (B, d), the batch (z); the gradient flows to them.
        labels: (B,), int64, in [0, C).
        prototypes: (C, e), the global prototypes (P_g); rows of unknown classes are never read.
        known: (C,), bool; True where the class has a global prototype.
        alignment: (P, Q) -> scalar, one of :data:`ALIGNMENTS` or your own.
        min_rows: Rows a level needs, see :func:`align`.

    Returns:
        Both losses, float32 or better, and both activities. A level that is not active is an exact 0.

    Raises:
        ValueError: If the shapes do not fit together.

    Example:
        >>> features, labels = torch.eye(4), torch.tensor([0, 1, 1, 2])
        >>> level = two_level(features, labels, torch.eye(4), torch.tensor([True, True, False, True]), gcsa)
        >>> level.proto.item(), level.proto_active.item(), level.inst_active.item()
        (0.0, False, True)
    """
    if prototypes.ndim != 2 or known.shape != prototypes.shape[:1]:
        raise ValueError(
            f"prototypes (C, d) and known (C,) must agree in C, got {tuple(prototypes.shape)} and {tuple(known.shape)}"
        )
    check_labelled(features, labels)
    kept = known[labels].nonzero().flatten()
    if len(kept) < len(labels):
        features, labels = features.index_select(0, kept), labels[kept]
    with full_precision(features):
        local, classes = batch_prototypes(features, labels)
        targets = prototypes.detach().index_select(0, classes)
        position = torch.searchsorted(classes, labels.contiguous())
        operator = _operator(alignment)
        if operator is None:
            proto = align(local, targets, alignment, min_rows)
            inst = align(features, targets.index_select(0, position), alignment, min_rows)
        else:
            # The samples' targets repeat the k rows of the prototype level, and so do their relations.
            needed, gram = min_rows or _STRUCTURAL_ROWS, operator.gram(targets)
            proto = operator.compare(local, gram) if len(local) >= needed else _silent(local, gram)
            repeated = repeated_gram(gram, position)
            inst = operator.compare(features, repeated) if len(features) >= needed else _silent(features, gram)
    return TwoLevel(proto.loss, inst.loss, proto.active, inst.active)


def _compare(a: Tensor, b: Tensor) -> Aligned:
    """Return :func:`cosine_discrepancy` and whether neither descriptor is zero."""
    if a.shape != b.shape:
        raise ValueError(f"descriptors must have the same shape, got {tuple(a.shape)} and {tuple(b.shape)}")
    if a.numel() == 0:
        return _silent(a, b)
    with full_precision(a):
        return Aligned(*compare(upcast(a), upcast(b)))
