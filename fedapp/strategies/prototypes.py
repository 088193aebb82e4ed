"""What methods that exchange class prototypes share: recording them on a client, collecting and building them.

How global prototypes are made is an interface, :class:`Construction`; FedSAF and FedProto do not know which one runs.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Protocol

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from fedapp.client_update import ClientUpdate, LabelledSamples, Local, in_order
from fedapp.config import check, lookup, setting
from fedapp.functional import prototypes as prototype
from fedapp.functional.geometry import cross_client_cka, shape_and_rigid
from fedapp.functional.metrics import dimensions
from fedapp.payload import Arrays, ArraySpec, ClientInfo, Downlink, Uplink
from fedapp.strategies.base import PayloadStrategy
from fedapp.strategies.held_out import is_newcomer

Floats = npt.NDArray[np.float32]


@dataclass(frozen=True)
class RecorderParams:
    """Parameters of every method that uploads prototypes."""

    proto_source: str = setting(
        "last-epoch",
        "features a local prototype averages: seen in the last local epoch, in all epochs, or in a pass after training",
        choices=("last-epoch", "all-epochs", "final-pass"),
    )

    def __post_init__(self) -> None:
        check(self)


@dataclass(frozen=True)
class PrototypeParams(RecorderParams):
    """Parameters of every method that exchanges prototypes."""

    evaluate_by: str = setting(
        "head", "what predicts: the head, the nearest global prototype, or both", choices=("head", "prototype", "both")
    )
    proto_weighting: str = setting(
        "uniform",
        "weight (ω) of a holder's prototype: the same for all, or its samples",
        choices=("uniform", "samples"),
    )
    proto_construction: str = setting("mean", "how the server makes global prototypes")

    def __post_init__(self) -> None:
        super().__post_init__()
        lookup(CONSTRUCTIONS, self.proto_construction, "prototype construction")


class PrototypeRecorder(ClientUpdate):
    """A client that records class prototypes while it trains, and uploads them."""

    def __init__(self, params: Any, local: Local) -> None:
        super().__init__(params, local)
        self.sums: Tensor | None = None
        self.counts = torch.zeros(local.num_classes, dtype=torch.int64)

    def observe(self, z: Tensor, y: Tensor) -> None:
        """Add the features of one training batch to the local prototypes, if this epoch counts."""
        source = self.params.proto_source
        last = self.epoch == self.epochs - 1
        if source == "all-epochs" or (source == "last-epoch" and last):
            self._add(z, y)

    def end(self, samples: LabelledSamples) -> Arrays:
        """Upload the prototypes of the classes held: rows (H, D), class ids (H,), counts (H,)."""
        if self.params.proto_source == "final-pass":
            self._final_pass(samples)
        if self.sums is None:
            return {}
        counts = self.counts.cpu()
        means = (self.sums.cpu() / counts.clamp(min=1)[:, None]).float()
        rows, classes, counts_held = prototype.held(means.numpy(), counts.numpy())
        return {"rows": rows, "classes": classes, "counts": counts_held}

    def _add(self, z: Tensor, y: Tensor) -> None:
        sums, counts = prototype.class_sums(z.detach(), y, self.local.num_classes)
        self.sums = sums if self.sums is None else self.sums + sums
        self.counts = self.counts.to(counts.device) + counts

    @torch.no_grad()
    def _final_pass(self, samples: LabelledSamples) -> None:
        self.model.eval()
        for x, y in in_order(samples, self.local.device):
            z, _ = self.forward(self.model, x)
            self._add(z, y)


class PrototypeUpdate(PrototypeRecorder):
    """A client that also receives global prototypes."""

    def __init__(self, params: Any, local: Local) -> None:
        super().__init__(params, local)
        self.prototypes: Tensor | None = None
        self.known = torch.zeros(local.num_classes, dtype=torch.bool)
        self.evaluate_by = params.evaluate_by

    def receive(self, downlink: Downlink) -> None:
        """Lay the global prototypes out over all classes; a first round brings none."""
        self.evaluate_by = "both" if is_newcomer(downlink) else self.params.evaluate_by
        if "rows" not in downlink.arrays:
            return
        device = self.local.device
        rows = torch.from_numpy(downlink.arrays["rows"]).to(device)
        classes = torch.from_numpy(downlink.arrays["classes"]).to(device, torch.int64)
        self.prototypes = torch.zeros(self.local.num_classes, rows.shape[1], device=device)
        self.prototypes[classes] = rows
        self.known = torch.zeros(self.local.num_classes, dtype=torch.bool, device=device)
        self.known[classes] = True

    def predictions(self, z: Tensor, logits: Tensor) -> dict[str, Tensor]:
        """Predict by head, by nearest prototype or both; by head as long as there are no global prototypes."""
        by_head = {"accuracy": logits.argmax(dim=1)}
        if self.evaluate_by == "head" or self.prototypes is None:
            return by_head
        nearest = prototype.nearest_prototype(z, self.prototypes, self.known)
        if self.evaluate_by == "prototype":
            return {"accuracy": nearest}
        return {**by_head, "prototype-accuracy": nearest}


class Construction(Protocol):
    """How the server makes global prototypes from local ones; owns them, and whatever state it needs."""

    prototypes: Floats
    known: npt.NDArray[np.bool_]

    def begin(self, num_classes: int, feature_dim: int, seed: int) -> None:
        """Allocate ``prototypes`` (C, D) and ``known`` (C,); known ones are sent from the first round on."""

    def update(self, local: Floats, counts: npt.NDArray[np.int64]) -> None:
        """Take in local prototypes (K, C, D) and counts (K, C), 0 = not held, in the order of the client ids."""

    def state(self) -> Arrays:
        """Return everything needed to continue, as named arrays."""

    def load_state(self, arrays: Arrays) -> None:
        """Take over what :meth:`state` returned."""


class MeanPrototypes:
    """FedSAF Eq. 3: the weighted mean over the clients that hold a class; an absent class keeps its last value.

    Args:
        params: ``proto_weighting`` says the weights.
    """

    def __init__(self, params: PrototypeParams) -> None:
        self.weighting: Any = params.proto_weighting
        self.prototypes: Floats = np.zeros((0, 0), np.float32)
        self.known: npt.NDArray[np.bool_] = np.zeros(0, np.bool_)

    def begin(self, num_classes: int, feature_dim: int, seed: int) -> None:
        """Start without any known prototype, unless a state was loaded."""
        if self.prototypes.shape != (num_classes, feature_dim):
            self.prototypes = np.zeros((num_classes, feature_dim), np.float32)
            self.known = np.zeros(num_classes, np.bool_)

    def update(self, local: Floats, counts: npt.NDArray[np.int64]) -> None:
        """Average over the holders."""
        means, known = prototype.weighted_mean(local, counts, self.weighting)
        self.prototypes, self.known = prototype.merge_previous(means, known, self.prototypes, self.known)

    def state(self) -> Arrays:
        """Return the prototypes and which of them are known."""
        return {"prototypes": self.prototypes, "known": self.known}

    def load_state(self, arrays: Arrays) -> None:
        """Take over prototypes (C, D) and known (C,)."""
        self.prototypes, self.known = arrays["prototypes"], arrays["known"]


CONSTRUCTIONS: dict[str, Callable[[PrototypeParams], Construction]] = {"mean": MeanPrototypes}
"""Constructions of global prototypes by name (setting ``proto-construction``); plugins may add theirs."""


class PrototypeCollector(PayloadStrategy):
    """A server that receives prototypes of held classes: rows (H, D), class ids (H,), counts (H,)."""

    requires: ClassVar[tuple[str, ...]] = ("equal-classes", "equal-features")

    def uplink_specs(self, client: ClientInfo) -> dict[str, ArraySpec]:
        """Rows of the width all clients share; a client without samples sends none."""
        return {
            "rows": ArraySpec(("H", client.feature_dim), "float32", optional=True),
            "classes": ArraySpec(("H",), "int32", optional=True),
            "counts": ArraySpec(("H",), "int32", optional=True),
        }

    def check_uplink(self, uplink: Uplink) -> None:
        """Reject class ids out of range or given twice, counts below 1, and arrays that are missing or come alone."""
        if uplink.num_examples and not uplink.arrays:
            raise ValueError(f"trained on {uplink.num_examples} samples, but sent no prototypes")
        if uplink.arrays and len(uplink.arrays) < 3:
            raise ValueError(f"rows, classes and counts belong together, got only {sorted(uplink.arrays)}")
        self.laid_out(uplink)

    def analyse(self, uplinks: Sequence[Uplink]) -> tuple[dict[str, Any], Arrays]:
        """Report how the clients' prototypes lie to each other, and hand out the prototypes themselves."""
        means, counts = self.stacked(uplinks)
        client, held = np.nonzero(counts)
        filled = dimensions(means[client, held])
        numbers = {
            "effective_dimension": filled.effective,
            "participation_ratio": filled.participation,
            "entropy_rank": filled.entropy,
            "cka": cross_client_cka(means, counts),
        }
        order = list(self.clients)
        positions = np.array([order.index(uplink.client) for uplink in uplinks], np.int64)
        rows, classes = means[client, held], held.astype(np.int64)
        return numbers, {"rows": rows, "client": positions[client], "class": classes, "counts": counts[client, held]}

    def laid_out(self, uplink: Uplink) -> tuple[Floats, npt.NDArray[np.int64]]:
        """Return one client's prototypes (C, D) and counts (C,)."""
        num_classes, feature_dim = self.first_client.num_classes, self.first_client.feature_dim
        if not uplink.arrays:
            return np.zeros((num_classes, feature_dim), np.float32), np.zeros(num_classes, np.int64)
        arrays = uplink.arrays
        means, counts = prototype.dense(arrays["rows"], arrays["classes"], arrays["counts"], num_classes)
        return means, counts.astype(np.int64)

    def stacked(self, uplinks: Sequence[Uplink]) -> tuple[Floats, npt.NDArray[np.int64]]:
        """Return prototypes (K, C, D) and counts (K, C) of all uplinks."""
        pairs = [self.laid_out(uplink) for uplink in uplinks]
        return np.stack([means for means, _ in pairs]), np.stack([counts for _, counts in pairs])


class PrototypeStrategy(PrototypeCollector):
    """A server that sends global prototypes and rebuilds them from the uplinks.

    Args:
        params: The method's parameters.
        *args: As :class:`PayloadStrategy`.
        construction: How global prototypes are made; the one named by ``proto-construction`` if None.
        **kwargs: As :class:`PayloadStrategy`.
    """

    params_type: ClassVar[type[Any]] = PrototypeParams

    def __init__(self, params: Any = None, *args: Any, construction: Construction | None = None, **kwargs: Any) -> None:
        super().__init__(params, *args, **kwargs)
        self.construction = construction or CONSTRUCTIONS[self.params.proto_construction](self.params)

    def begin(self) -> None:
        """Let the construction allocate its prototypes."""
        self.construction.begin(self.first_client.num_classes, self.first_client.feature_dim, self.seed)

    def downlink(self, client: ClientInfo) -> Downlink:
        """Send the known global prototypes: rows (H, D) and class ids (H,)."""
        classes = np.flatnonzero(self.construction.known).astype(np.int32)
        if not len(classes):
            return Downlink()
        return Downlink({"rows": self.construction.prototypes[classes], "classes": classes})

    def evaluate_downlink(self, client: ClientInfo) -> Downlink:
        """Send prototypes only if they predict."""
        return Downlink() if self.params.evaluate_by == "head" else self.downlink(client)

    def analyse(self, uplinks: Sequence[Uplink]) -> tuple[dict[str, Any], Arrays]:
        """Report besides how far every client is from the global prototypes it was sent, in shape and in basis."""
        numbers, arrays = super().analyse(uplinks)
        made = self.construction
        parts = {}
        for uplink in uplinks:
            shape, rigid = shape_and_rigid(*self.laid_out(uplink), made.prototypes, made.known)
            parts[uplink.client] = {"shape": shape, "rigid": rigid}
        return {**numbers, "clients": parts}, arrays

    def aggregate(self, uplinks: Sequence[Uplink]) -> None:
        """Hand the laid-out prototypes to the construction."""
        self.construction.update(*self.stacked(uplinks))

    def state(self) -> Arrays:
        """Return the construction's state."""
        return self.construction.state()

    def load_state(self, arrays: Arrays) -> None:
        """Hand a saved state to the construction."""
        self.construction.load_state(arrays)
