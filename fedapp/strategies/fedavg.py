"""FedAvg (McMahan et al., AISTATS 2017): one model for all, averaged by sample counts.

Server: W = Σ n_i w_i / Σ n_i -> ``functional.aggregation.weighted_mean``. Local objective: cross-entropy.

Travels: the whole ``state_dict``. ``bn=aggregate`` averages BatchNorm's running statistics like everything else;
``bn=local`` keeps all BatchNorm entries on the clients (FedBN). Equals centralised gradient descent with one client.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from logging import WARNING
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt
from flwr.common.logger import log

from fedapp.client_update import ClientUpdate, LabelledSamples, arrays_of, load_arrays
from fedapp.config import SettingError, check, setting
from fedapp.functional.aggregation import weighted_mean
from fedapp.payload import Arrays, ArraySpec, ClientInfo, Downlink, Uplink, specs_of
from fedapp.strategies.base import Method, PayloadStrategy, require_model


@dataclass(frozen=True)
class FedAvgParams:
    """Parameters of FedAvg."""

    bn: str = setting(
        "aggregate", "BatchNorm entries: averaged, or kept by each client", choices=("aggregate", "local")
    )
    weighting: str = setting(
        "samples",
        "weight of a client's model: its training samples, or the same for all",
        choices=("samples", "uniform"),
    )

    def __post_init__(self) -> None:
        check(self)


def batch_norm_entries(names: Collection[str]) -> set[str]:
    """Return the names that belong to BatchNorm layers: those beside a ``running_mean``.

    Example:
        >>> sorted(batch_norm_entries(["bn.weight", "bn.running_mean", "fc.weight"]))
        ['bn.running_mean', 'bn.weight']
    """
    layers = {name.removesuffix("running_mean") for name in names if name.endswith("running_mean")}
    return {name for name in names if name[: name.rfind(".") + 1] in layers}


class FedAvgUpdate(ClientUpdate):
    """Train the model that was sent."""

    def receive(self, downlink: Downlink) -> None:
        """Load the global model; entries that do not travel keep their own values."""
        load_arrays(self.model, downlink.arrays)

    def end(self, samples: LabelledSamples) -> Arrays:
        """Upload the trained model."""
        arrays = arrays_of(self.model)
        local = batch_norm_entries(arrays) if self.params.bn == "local" else set()
        return {name: array for name, array in arrays.items() if name not in local}


class FedAvg(PayloadStrategy):
    """The server of FedAvg: one global model."""

    name: ClassVar[str] = "fedavg"
    params_type: ClassVar[type[FedAvgParams]] = FedAvgParams
    requires: ClassVar[tuple[str, ...]] = ("equal-classes", "equal-models")

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.model: dict[str, npt.NDArray[Any]] = {}

    def begin(self) -> None:
        """Start from the arrays given, else from a newly built model."""
        model = self.model or arrays_of(require_model(self, ""))
        specs = specs_of(self.first_client.model_layout)
        local = batch_norm_entries(specs) if self.params.bn == "local" else set()
        if self.params.bn == "local" and not local:
            log(WARNING, "bn=local changes nothing: %s has no BatchNorm layers", self.first_client.model)
        self.model = {name: array for name, array in model.items() if name not in local}
        require_fit(self, self.model, {name: spec for name, spec in specs.items() if name not in local})

    def downlink(self, client: ClientInfo) -> Downlink:
        """Send the global model."""
        return Downlink(self.model)

    def uplink_specs(self, client: ClientInfo) -> dict[str, ArraySpec]:
        """Every entry of the global model, in its shape and dtype."""
        return {name: ArraySpec(array.shape, str(array.dtype)) for name, array in self.model.items()}

    def aggregate(self, uplinks: Sequence[Uplink]) -> None:
        """Average the models."""
        self.model = averaged(uplinks, self.params.weighting) or self.model

    def state(self) -> Arrays:
        """Return the global model."""
        return self.model

    def load_state(self, arrays: Arrays) -> None:
        """Take over a global model."""
        self.model = {name: np.asarray(array) for name, array in arrays.items()}


def require_fit(strategy: PayloadStrategy, arrays: Arrays, specs: Mapping[str, ArraySpec]) -> None:
    """Check that the server starts from arrays that the clients can load.

    Raises:
        SettingError: Naming the entries that differ.
    """
    given = {name: ArraySpec(array.shape, str(array.dtype)) for name, array in arrays.items()}
    differing = sorted(name for name in given.keys() | specs.keys() if given.get(name) != specs.get(name))
    if differing:
        raise SettingError(
            f"the initial arrays of {strategy.name} do not fit the clients' model {strategy.first_client.model!r}: "
            f"they differ in {', '.join(differing[:4])}; expected are {', '.join(specs)}"
        )


def averaged(uplinks: Sequence[Uplink], weighting: str) -> dict[str, npt.NDArray[Any]]:
    """Return the mean of the uplinks' arrays, weighted by samples or uniformly; empty if nobody trained on anything."""
    weights = [float(u.num_examples) if weighting == "samples" else float(u.num_examples > 0) for u in uplinks]
    if not sum(weights):
        return {}
    return weighted_mean([uplink.arrays for uplink in uplinks], weights)


METHOD = Method(
    strategy=FedAvg,
    update=FedAvgUpdate,
    paper="McMahan et al., FedAvg, AISTATS 2017",
    summary="average the whole model",
    travels="the model",
    models="small-resnet",
)
