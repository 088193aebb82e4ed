"""FedGH (Yi et al., ACM MM 2023): the server trains one head on the clients' prototypes.

Local objective: cross-entropy through the own extractor and the global head. Clients upload class prototypes, taken
in a pass after training. Server: gradient descent on CE(h(P_i^c), c) over all uploaded pairs, in shuffled batches;
the head persists between rounds.

Travels: up class prototypes, down the head's ``state_dict``. At ``server-epochs=0`` a round equals one of ``local``
that starts from the common first head; later rounds start from that head again.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from fedapp.client_update import arrays_of, load_arrays
from fedapp.config import SettingError, setting
from fedapp.payload import Arrays, ClientInfo, Downlink, Uplink
from fedapp.seeds import derive
from fedapp.strategies.base import Method, require_model
from fedapp.strategies.lg_fedavg import HeadUpdate
from fedapp.strategies.prototypes import PrototypeCollector, PrototypeRecorder, RecorderParams


@dataclass(frozen=True)
class FedGHParams(RecorderParams):
    """Parameters of FedGH."""

    proto_source: str = setting(
        "final-pass",
        "features a local prototype averages: seen in the last local epoch, in all epochs, or in a pass after training",
        choices=("last-epoch", "all-epochs", "final-pass"),
    )
    server_rate: float = setting(0.01, "learning rate of the server's head", above=0)
    server_epochs: int = setting(100, "passes over the uploaded prototypes in a round", low=0)
    server_batch: int = setting(100, "prototypes in a batch on the server", low=1)


class FedGHUpdate(HeadUpdate, PrototypeRecorder):
    """Train through the global head, upload prototypes."""

    def loss(self, x: Tensor, y: Tensor) -> Tensor:
        """Return the cross-entropy, recording features."""
        z, logits = self.forward(self.model, x)
        self.observe(z, y)
        return F.cross_entropy(logits, y)


class FedGH(PrototypeCollector):
    """The server of FedGH: one global head, trained on prototypes."""

    name: ClassVar[str] = "fedgh"
    params_type: ClassVar[type[Any]] = FedGHParams
    requires: ClassVar[tuple[str, ...]] = ("equal-classes", "equal-features", "equal-heads")

    def __init__(self, *args: Any, head: Any = None, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.head = head
        self._loaded: Arrays = {}
        self.steps = 0

    def begin(self) -> None:
        """Start from the head given, else from the head of a newly built model."""
        if self.head is None and self.build is None:
            raise SettingError(
                f"{self.name} trains a head on the server: give the strategy one, head=nn.Linear(features, classes), "
                "or a `build` function"
            )
        self.head = require_model(self, "").head if self.head is None else self.head
        load_arrays(self.head, self._loaded)
        if not any(parameter.requires_grad for parameter in self.head.parameters()):
            raise SettingError(f"{self.name} trains the head on the server, and freeze leaves nothing of it to train")

    def downlink(self, client: ClientInfo) -> Downlink:
        """Send the global head."""
        return Downlink(arrays_of(self.head))

    def aggregate(self, uplinks: Sequence[Uplink]) -> None:
        """Train the head on every (prototype, class) pair."""
        means, counts = self.stacked(uplinks)
        clients, classes = np.nonzero(counts)
        if not len(classes):
            return
        z, y = torch.from_numpy(means[clients, classes]), torch.from_numpy(classes)
        self.steps += 1
        generator = torch.Generator().manual_seed(derive(self.seed, self.steps, "fedgh-server"))
        optimizer = torch.optim.SGD(self.head.parameters(), lr=self.params.server_rate)
        self.head.train()
        for _ in range(self.params.server_epochs):
            for rows in torch.split(torch.randperm(len(y), generator=generator), self.params.server_batch):
                optimizer.zero_grad()
                F.cross_entropy(self.head(z[rows]), y[rows]).backward()  # type: ignore[no-untyped-call]
                optimizer.step()

    def state(self) -> Arrays:
        """Return the head and the number of server updates so far."""
        head = {name: array.copy() for name, array in arrays_of(self.head).items()}  # training goes on in place
        return {**head, "server-steps": np.asarray(self.steps)}

    def load_state(self, arrays: Arrays) -> None:
        """Take over a head; :meth:`begin` loads it into the module."""
        self.steps = int(arrays.get("server-steps", 0))
        self._loaded = {name: array for name, array in arrays.items() if name != "server-steps"}
        if self.head is not None:
            load_arrays(self.head, self._loaded)


METHOD = Method(
    strategy=FedGH,
    update=FedGHUpdate,
    paper="Yi et al., FedGH, ACM MM 2023",
    summary="the server trains one head on the clients' prototypes",
    travels="up class prototypes, down the head",
)
