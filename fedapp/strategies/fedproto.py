"""FedProto (Tan et al., AAAI 2022): clients exchange class prototypes and pull features towards the global ones.

Local objective: CE + λ · MSE(z, P_g^y), where MSE is the mean over batch and feature elements, as in the public
code (the paper's squared norm is d times larger). Samples whose class has no global prototype add 0 to the sum but
count in the mean, as in the public code. Server: ``functional.prototypes.weighted_mean`` over the holders of a
class (FedSAF Eq. 3), unweighted by default as in the public code.

Travels: prototypes of held classes, rows (H, D) + class ids (H,) + counts (H,). Equals ``local`` at λ = 0, and
FedSAF with ``alignment=mse proto-weight=0`` when every class of the batch has a global prototype.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch.nn.functional as F
from torch import Tensor

from fedapp.config import setting
from fedapp.strategies.base import Method
from fedapp.strategies.prototypes import PrototypeParams, PrototypeStrategy, PrototypeUpdate


@dataclass(frozen=True)
class FedProtoParams(PrototypeParams):
    """Parameters of FedProto."""

    proto_weight: float = setting(1.0, "weight (λ) of the distance to the global prototypes", low=0)


class FedProtoUpdate(PrototypeUpdate):
    """Cross-entropy plus the mean squared distance to the global prototypes."""

    def loss(self, x: Tensor, y: Tensor) -> Tensor:
        """Return CE + λ · MSE(z, P_g^y)."""
        z, logits = self.forward(self.model, x)
        self.observe(z, y)
        loss: Tensor = F.cross_entropy(logits, y)
        if self.prototypes is None or not self.params.proto_weight:
            return loss
        squares = (z.float() - self.prototypes[y]).square() * self.known[y][:, None]
        weight: float = self.params.proto_weight
        return loss + weight * squares.mean()


class FedProto(PrototypeStrategy):
    """The server of FedProto."""

    name: ClassVar[str] = "fedproto"
    params_type: ClassVar[type[FedProtoParams]] = FedProtoParams


METHOD = Method(
    strategy=FedProto,
    update=FedProtoUpdate,
    paper="Tan et al., FedProto, AAAI 2022",
    summary="pull features towards the mean prototype of their class",
    travels="class prototypes",
)
