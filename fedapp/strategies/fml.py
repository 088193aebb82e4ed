"""FML (Shen et al., Federated Mutual Learning, 2020): a small shared model learns beside every client's own.

Local objectives on the same batch, p = own model, g = shared model:
  own:    α CE(p) + (1 - α) KL(g || p)      shared: β CE(g) + (1 - β) KL(p || g)
KL is ``functional.distillation.kl_divergence`` (batchmean, the other side detached), as in deep mutual learning; the
public HtFLlib code averages over classes too (C times smaller) and does not detach. Server: the mean of the shared
models, BatchNorm statistics included; unweighted by default as in HtFLlib.

Travels: the shared model's ``state_dict``. At α = 1 own models equal ``local``, at β = 1 the shared model is FedAvg.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import torch.nn.functional as F
from torch import Tensor, nn

from fedapp.client_update import ClientUpdate, LabelledSamples, Local, arrays_of, load_arrays
from fedapp.config import check, setting
from fedapp.functional.distillation import kl_divergence
from fedapp.payload import Arrays, ClientInfo, Downlink, Uplink
from fedapp.strategies.base import Method, require_model
from fedapp.strategies.fedavg import FedAvg
from fedapp.strategies.held_out import is_newcomer


@dataclass(frozen=True)
class FMLParams:
    """Parameters of FML."""

    alpha: float = setting(0.5, "share (α) of cross-entropy in the own model's loss", low=0, high=1)
    beta: float = setting(0.5, "share (β) of cross-entropy in the shared model's loss", low=0, high=1)
    shared_model: str = setting("", "architecture of the shared model; empty = the first client's")
    weighting: str = setting(
        "uniform", "weight of a client's shared model: the same for all, or its samples", choices=("uniform", "samples")
    )

    def __post_init__(self) -> None:
        check(self)


class FMLUpdate(ClientUpdate):
    """Train the own and the shared model on the same batches, each a teacher of the other."""

    def __init__(self, params: Any, local: Local) -> None:
        super().__init__(params, local)
        self.shared: Any = None

    def receive(self, downlink: Downlink) -> None:
        """Build the shared model and load what was sent; of evaluations only a newcomer's needs it."""
        if downlink.arrays:
            self.shared = self.local.companion(str(downlink.settings["shared-model"]))
            load_arrays(self.shared, downlink.arrays)

    def modules(self) -> list[nn.Module]:
        """Train both models."""
        return [self.model, self.shared]

    def loss(self, x: Tensor, y: Tensor) -> Tensor:
        """Return the sum of both objectives; detached targets keep their gradients apart."""
        _, own = self.forward(self.model, x)
        _, shared = self.forward(self.shared, x)
        alpha, beta = self.params.alpha, self.params.beta
        own_loss: Tensor = alpha * F.cross_entropy(own, y) + (1 - alpha) * kl_divergence(own, shared)
        shared_loss: Tensor = beta * F.cross_entropy(shared, y) + (1 - beta) * kl_divergence(shared, own)
        return own_loss + shared_loss

    def end(self, samples: LabelledSamples) -> Arrays:
        """Upload the shared model."""
        return arrays_of(self.shared)

    def evaluate(self, downlink: Downlink, samples: LabelledSamples) -> Uplink:
        """Evaluate the own model; for a newcomer, whose own is untrained, the shared one answers."""
        if is_newcomer(downlink):
            self.receive(downlink)
            self.model, downlink = self.shared, Downlink()
        return super().evaluate(downlink, samples)


class FML(FedAvg):
    """The server of FML: FedAvg of the shared model; clients are evaluated on their own models."""

    name: ClassVar[str] = "fml"
    params_type: ClassVar[type[Any]] = FMLParams
    requires: ClassVar[tuple[str, ...]] = ("equal-classes",)

    def begin(self) -> None:
        """Start from the arrays given, else from a newly built shared model."""
        self.model = self.model or arrays_of(require_model(self, self.shared_model))

    @property
    def shared_model(self) -> str:
        """Architecture of the shared model."""
        return str(self.params.shared_model or self.first_client.model)

    def downlink(self, client: ClientInfo) -> Downlink:
        """Send the shared model and the name of its architecture."""
        return Downlink(self.model, {"shared-model": self.shared_model})

    def evaluate_downlink(self, client: ClientInfo) -> Downlink:
        """Send nothing: the own models are evaluated."""
        return Downlink()


METHOD = Method(
    strategy=FML,
    update=FMLUpdate,
    paper="Shen et al., Federated Mutual Learning, 2020",
    summary="own model and a small shared model teach each other",
    travels="the shared model",
)
