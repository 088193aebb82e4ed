"""What alignment and prototypes share: rows in full precision, normalised, centred, checked; never a NaN gradient.

The operators that touch whole batches have their gradient written out: it saves a quarter of a cost that is paid in
every training step, and leaves no 0 * inf to guard against. They can be differentiated once, not twice.
"""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

_SPREAD_EPSILONS = 16
"""Rows that differ by no more than this many rounding errors of their norm count as equal."""

_ZERO_NORM = 1e-12
"""A row this short has no direction (the eps of torch.nn.functional.normalize)."""


class _UnitRows(torch.autograd.Function):
    """u = p / |p| for every row; backward: (g - u <u, g>) / |p|, and 0 for a row without direction."""

    @staticmethod
    def forward(ctx: Any, p: Tensor) -> Tensor:
        norms = torch.linalg.vector_norm(p, dim=1, keepdim=True)
        inverse = torch.where(norms <= _ZERO_NORM, 0.0, norms.reciprocal())
        unit = p * inverse
        ctx.save_for_backward(unit, inverse)
        return unit

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        unit, inverse = ctx.saved_tensors
        along = (unit * gradient).sum(dim=1, keepdim=True)
        return torch.addcmul(gradient, unit, along, value=-1).mul_(inverse)


class _CentredGram(torch.autograd.Function):
    """K = R R^T with R = p - mean; backward: (G + G^T) R, centred; both are 0 if R is nothing but rounding."""

    @staticmethod
    def forward(ctx: Any, p: Tensor) -> Tensor:
        mean = p.mean(dim=0)
        rows = p - mean
        gram = rows @ rows.T
        collapsed = _only_rounding(gram.trace(), len(p), mean)
        ctx.save_for_backward(rows, collapsed)
        return gram.masked_fill_(collapsed, 0.0)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        rows, collapsed = ctx.saved_tensors
        with full_precision(rows):  # backward() may be called inside autocast
            both = (gradient + gradient.T).masked_fill_(collapsed, 0.0)
            pull: Tensor = both.sub_(both.mean(dim=0)) @ rows
        return pull


def _only_rounding(spread: Tensor, n: int, mean: Tensor) -> Tensor:
    """Return whether n rows with this mean and this sum of squared distances from it are equal up to rounding."""
    tolerance = n * (_SPREAD_EPSILONS * torch.finfo(mean.dtype).eps) ** 2
    # A comparison with NaN is false: rows that are not finite do not pass as equal.
    return spread <= tolerance * torch.dot(mean, mean)


class _PairDistances(torch.autograd.Function):
    """d_ij = K_ii + K_jj - 2 K_ij for i < j; backward: g_ij to K_ii and K_jj, -2 g_ij to K_ij."""

    @staticmethod
    def forward(ctx: Any, gram: Tensor) -> Tensor:
        n, squares = len(gram), gram.diagonal()
        row, column = torch.triu_indices(n, n, offset=1, device=gram.device)
        position = row.mul_(n).add_(column)
        distances = torch.sub(squares.unsqueeze(1) + squares, gram, alpha=2).view(-1)[position].clamp_(min=0)
        ctx.save_for_backward(position)
        ctx.n = n
        return distances

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        (position,) = ctx.saved_tensors
        upper = gradient.new_zeros(ctx.n * ctx.n)
        upper[position] = gradient
        upper = upper.view(ctx.n, ctx.n)
        ends = upper.sum(dim=0) + upper.sum(dim=1)
        upper.mul_(-2).diagonal().copy_(ends)
        return upper


class _CosineDiscrepancy(torch.autograd.Function):
    """D = |u - v|^2 / 2 = 1 - <u, v> with u = a/|a|, v = b/|b|; backward: (u - v - D u) / |a|; 0 if a or b is zero."""

    @staticmethod
    def forward(ctx: Any, a: Tensor, b: Tensor) -> tuple[Tensor, Tensor]:
        # Norms in float64: the squares of float32 neither overflow nor vanish, and a product is 0 if a factor is.
        norm_a, norm_b = (torch.linalg.vector_norm(x, dtype=torch.float64) for x in (a, b))
        active = norm_a * norm_b != 0
        norm_a, norm_b = norm_a.masked_fill_(~active, 1.0), norm_b.masked_fill_(~active, 1.0)
        unit_a, unit_b = a / norm_a, b / norm_b
        gap = unit_a - unit_b
        loss = gap.square().sum().mul_(0.5)
        ctx.save_for_backward(unit_a, unit_b, gap, loss, active, norm_a, norm_b)
        ctx.mark_non_differentiable(active)
        return torch.where(active, loss, 0.0), active

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor, _: Tensor) -> tuple[Tensor | None, Tensor | None]:
        unit_a, unit_b, gap, loss, active, norm_a, norm_b = ctx.saved_tensors
        gradient = torch.where(active, gradient, 0.0)
        wanted_a, wanted_b = ctx.needs_input_grad
        pull_a = torch.addcmul(gap, unit_a, loss, value=-1).mul_(gradient / norm_a) if wanted_a else None
        pull_b = torch.addcmul(gap, unit_b, loss).mul_(-gradient / norm_b) if wanted_b else None
        return pull_a, pull_b


def unit_rows(p: Tensor) -> Tensor:
    """Normalise every row; a row without direction becomes zero and passes no gradient."""
    unit: Tensor = _UnitRows.apply(p)
    return unit


def centred_gram(p: Tensor) -> Tensor:
    """Return the Gram matrix of the centred rows; exact zeros without gradient if what is left is rounding."""
    gram: Tensor = _CentredGram.apply(p)
    return gram


def pair_distances(gram: Tensor) -> Tensor:
    """Return the squared distances of the rows with this Gram matrix, strict upper triangle row by row."""
    distances: Tensor = _PairDistances.apply(gram)
    return distances


def compare(a: Tensor, b: Tensor) -> tuple[Tensor, Tensor]:
    """Return 1 - cos of two descriptors of one shape, and whether neither is zero."""
    loss, active = _CosineDiscrepancy.apply(a, b)
    return loss, active


def repeated_gram(gram: Tensor, position: Tensor) -> Tensor:
    """Return the constant that :func:`centred_gram` makes of ``p[position]``, from what it makes of p (k, d)."""
    with torch.no_grad():
        shares = torch.bincount(position, minlength=len(gram)).to(gram.dtype) / len(position)
        shift = gram @ shares
        centred = torch.sub(gram - shift, shift.unsqueeze(1)).add_(torch.dot(shift, shares))
        return centred.index_select(0, position).index_select(1, position)


def zero(p: Tensor, q: Tensor) -> Tensor:
    """Return an exact 0 that can be backpropagated and gives zero gradients, even where p or q is not finite."""
    return upcast(p[:0]).sum() + upcast(q[:0]).sum()


def upcast(p: Tensor) -> Tensor:
    return p.to(torch.promote_types(p.dtype, torch.float32))


def full_precision(p: Tensor) -> AbstractContextManager[None]:
    """Switch autocast off where it is on."""
    if torch.is_autocast_enabled(p.device.type):
        return torch.autocast(device_type=p.device.type, enabled=False)
    return nullcontext()


def check_rows(p: Tensor) -> None:
    if p.ndim != 2 or len(p) == 0:
        raise ValueError(f"rows must be 2-D (n, d) with n >= 1, got {tuple(p.shape)}")


def check_same_rows(p: Tensor, q: Tensor) -> None:
    if p.ndim != 2 or q.ndim != 2 or len(p) != len(q):
        raise ValueError(f"p (n, d) and q (n, e) must be 2-D with equal n, got {tuple(p.shape)} and {tuple(q.shape)}")


def check_same_shape(p: Tensor, q: Tensor, name: str) -> None:
    if p.ndim != 2 or p.shape != q.shape:
        raise ValueError(
            f"{name} compares coordinates: p and q must both be (n, d), got {tuple(p.shape)} and {tuple(q.shape)}; "
            "gcsa and rcsa accept feature dimensions that differ"
        )


def check_labelled(features: Tensor, labels: Tensor) -> None:
    if features.ndim != 2 or labels.shape != features.shape[:1]:
        raise ValueError(
            f"features (n, d) and labels (n,) must agree in n, got {tuple(features.shape)} and {tuple(labels.shape)}"
        )
