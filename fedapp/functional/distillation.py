"""Soft-label losses of the distillation methods."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch.nn.functional import kl_div, log_softmax

if TYPE_CHECKING:
    from jaxtyping import Float
    from torch import Tensor


def kl_divergence(
    student_logits: Float[Tensor, "B C"], teacher_logits: Float[Tensor, "B C"], temperature: float = 1.0
) -> Float[Tensor, ""]:
    """Return temperature^2 (τ^2) times KL(teacher || student), summed over classes and averaged over the batch.

    The convention of deep mutual learning (DML), which FML builds on: each network takes the other as a constant, so
    the teacher is detached. HtFLlib's FML differs: it averages over classes too (C times smaller) and lets the
    gradient into both networks; we follow the papers. τ^2 keeps the gradient's scale (Hinton et al., 2015). Computed
    in float32 or better, whatever the autocast. An empty batch gives an exact 0.

    Args:
        student_logits: (B, C), any floating dtype; the gradient flows to them.
        teacher_logits: (B, C), any floating dtype; constant.
        temperature: τ > 0, softens both distributions.

    Returns:
        Scalar >= 0 up to rounding.

    Raises:
        ValueError: If the shapes differ or are not 2-D, or ``temperature`` is not positive.

    Example:
        >>> student, teacher = torch.tensor([[0.0, 0.0]]), torch.tensor([[0.0, 100.0]])
        >>> round(kl_divergence(student, teacher).item(), 4)  # log 2
        0.6931
    """
    if student_logits.ndim != 2 or student_logits.shape != teacher_logits.shape:
        raise ValueError(
            "student_logits and teacher_logits must both be (B, C), "
            f"got {tuple(student_logits.shape)} and {tuple(teacher_logits.shape)}"
        )
    if not temperature > 0:
        raise ValueError(f"temperature must be > 0, got {temperature}; 1 leaves the logits as they are")
    with torch.autocast(device_type=student_logits.device.type, enabled=False):
        dtype = torch.promote_types(student_logits.dtype, torch.float32)
        student = log_softmax(student_logits.to(dtype) / temperature, dim=1)
        teacher = log_softmax(teacher_logits.detach().to(dtype) / temperature, dim=1)
        total = kl_div(student, teacher, reduction="sum", log_target=True)
        return total * (temperature**2 / max(len(student), 1))
