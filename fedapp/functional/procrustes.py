"""What coordinate alignment costs beyond matching the shape: the Procrustes split of FedSAF, Proposition 1."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor

from ._rows import check_same_shape, full_precision, unit_rows, upcast, zero

if TYPE_CHECKING:
    from jaxtyping import Float


def procrustes_split(z: Float[Tensor, "n d"], p: Float[Tensor, "n d"]) -> tuple[Float[Tensor, ""], Float[Tensor, ""]]:
    """Split the coordinate loss of unit rows into shape and rigid, Prop. 1 (Eq. 7-10); |Z - P|^2 = shape + rigid.

    Shape is |Z - P R*|^2 with the best orthogonal R*; rigid = 2 (<Z, P R*> - <Z, P>) is what matching a fixed basis
    costs on top. R* is held constant in the gradient, which is exact because it is optimal. If n < d only its action
    on the row space of P is determined, and only that is used (found from two n x n triangles).

    Args:
        z: (n, d), client rows; normalised here, a zero row stays zero.
        p: (n, d), prototype rows; normalised here, a zero row stays zero.

    Returns:
        Shape and rigid, scalars >= 0 up to rounding, float32 or better.

    Raises:
        ValueError: If the shapes differ or are not 2-D.

    Example:
        >>> z = torch.tensor([[1.0, 0.0], [0.0, 1.0]])
        >>> shape, rigid = procrustes_split(z, z[[1, 0]])
        >>> round(shape.item(), 4), round(rigid.item(), 4)
        (0.0, 4.0)
    """
    check_same_shape(z, p, "procrustes_split")
    if len(p) == 0:
        return zero(z, p), zero(z, p)
    with full_precision(z):
        z, p = unit_rows(upcast(z)), unit_rows(upcast(p))
        rotated = _rotated(p, z)
        return (z - rotated).square().sum(), 2 * (z * (rotated - p)).sum()


def _rotated(p: Tensor, z: Tensor) -> Tensor:
    """Return P R*, where R* maximises <Z, P R> over orthogonal R and is a constant of the gradient."""
    with torch.no_grad():
        if len(p) < p.shape[1]:
            (basis_p, triangle_p), (basis_z, triangle_z) = torch.linalg.qr(p.T), torch.linalg.qr(z.T)
            left, _, right = torch.linalg.svd(triangle_p @ triangle_z.T)
            left, right = basis_p @ left, right @ basis_z.T
        else:
            left, _, right = torch.linalg.svd(p.T @ z)
    rotated: Tensor = p @ left @ right
    return rotated
