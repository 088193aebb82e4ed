"""What the alignment losses share: rows in full precision, normalised, centred, checked; never a NaN gradient."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext

import torch
from torch import Tensor

_SPREAD_EPSILONS = 16
"""Rows that differ by no more than this many rounding errors of their norm count as equal."""

_ZERO_NORM = 1e-12
"""A row this short has no direction (the eps of torch.nn.functional.normalize)."""


def unit_rows(p: Tensor) -> Tensor:
    """Normalise every row; a row without direction becomes zero and passes no gradient."""
    norms = torch.linalg.vector_norm(p, dim=1, keepdim=True)
    is_zero = norms <= _ZERO_NORM
    # The inner where keeps 1 / 0 out of the backward pass, in which 0 * inf would be NaN.
    return p * torch.where(is_zero, 0.0, torch.where(is_zero, 1.0, norms).reciprocal())


def centred_gram(p: Tensor) -> Tensor:
    """Return the Gram matrix of the centred rows; exact zeros without gradient if what is left is rounding."""
    mean = p.mean(dim=0)
    rows = p - mean
    gram = rows @ rows.T
    spread, level = gram.detach().trace(), len(p) * torch.dot(mean.detach(), mean.detach())
    tolerance = (_SPREAD_EPSILONS * torch.finfo(p.dtype).eps) ** 2
    # A comparison with NaN is false: rows that are not finite do not pass as equal.
    return gram.masked_fill(spread <= tolerance * level, 0.0)


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
