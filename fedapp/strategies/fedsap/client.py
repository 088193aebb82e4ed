"""FedSAP on a client: receive a small network, measure its channels, train it, send it back."""

from __future__ import annotations

import copy
import time
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from fedapp.client_update import (
    ClientUpdate,
    LabelledSamples,
    Local,
    arrays_of,
    in_order,
    load_arrays,
    set_to_train,
)
from fedapp.functional import batch_norm
from fedapp.functional.channels import ChannelGraph, trace
from fedapp.functional.roles import DROPPED, unpack_roles
from fedapp.functional.submodel import Plan, extract, gather, masked, plan, scatter
from fedapp.payload import Arrays, Downlink, Uplink
from fedapp.strategies.fedsap import signals
from fedapp.strategies.fedsap.shared import STATISTICS

ROLES, CONSENSUS, FIRST = "roles", "consensus/", "first/"
ACTIVATION, GRADIENT, SIGNAL = "statistics/activation", "statistics/gradient", "signal"
_graphs: dict[tuple[type, str, tuple[int, ...]], ChannelGraph] = {}


def channels_of(model: nn.Module, input_shape: tuple[int, ...]) -> ChannelGraph:
    """Return how channels flow through a model; models that look alike are traced once in a process."""
    key = (type(model), repr(model), input_shape)
    if key not in _graphs:
        while len(_graphs) >= 8:
            _graphs.pop(next(iter(_graphs)))
        _graphs[key] = trace(model, input_shape)
    return _graphs[key]


class FedSAPUpdate(ClientUpdate):
    """One client's share of a round.

    Attributes:
        graph: The full model's channels.
        plan: The channels that this client holds.
    """

    own_shapes = False
    adapts = False

    def __init__(self, params: Any, local: Local) -> None:
        super().__init__(params, local)
        self.full = self.model
        self.graph: ChannelGraph
        self.plan: Plan
        self._sent: Arrays = {}
        self._first: dict[str, Tensor] = {}
        self._wants_signal = self._recalibrated = False
        self._activation: signals.ActivationMeter
        self._uploads: dict[str, Any] = {}

    # ---- what comes ------------------------------------------------------------------------------

    def receive(self, downlink: Downlink) -> None:
        """Build the network that was sent and load its weights; re-estimate BatchNorm if that is asked for.

        With nothing sent, the network that was built before stays.
        """
        if ROLES not in downlink.arrays:
            return
        shape = tuple(int(size) for size in str(downlink.settings["input-shape"]).split("x"))
        self.graph = channels_of(self.full, shape)
        roles = unpack_roles(downlink.arrays[ROLES], self.graph.total)
        self.plan = plan(self.graph, roles != DROPPED)
        self._sent = {name: downlink.arrays[name] for name in self.graph.entries if name in downlink.arrays}
        self._sent = {**self._sent, **self._own_statistics()}
        self._averaged: dict[str, Any] = {}
        self._first = self._under(downlink, FIRST)
        self._consensus = self._under(downlink, CONSENSUS)
        self._wants_signal = bool(downlink.settings.get("signal"))
        self.model = self._network().to(self.local.device)
        self._recalibrated = bool(downlink.settings.get("recalibrate"))
        if self._recalibrated:
            self._recalibrate(self.model)

    def _network(self) -> nn.Module:
        if self.params.execution == "compact":
            compact = extract(self.full, self.graph, self.plan)
            load_arrays(compact, self._sent)
            return compact
        nothing = {name: np.zeros_like(array) for name, array in arrays_of(self.full).items()}
        load_arrays(self.full, {**nothing, **scatter(self.plan, self._sent, nothing)})
        network: nn.Module = masked(self.full, self.graph, self.plan)
        return network

    def _own_statistics(self) -> dict[str, Any]:
        """Return the client's own running statistics of the channels held, if they never travel."""
        if self.params.bn_stats != "local":
            return {}
        kept = {name: shape for name, shape in self.graph.entries.items() if name.endswith(STATISTICS)}
        state = self.local.state
        own = {name: state.get(f"own/{name}", _first_statistics(name, kept[name])).numpy() for name in kept}
        return gather(self.plan, own)

    def _under(self, downlink: Downlink, prefix: str) -> dict[str, Tensor]:
        found = {n.removeprefix(prefix): a for n, a in downlink.arrays.items() if n.startswith(prefix)}
        return {name: torch.from_numpy(np.array(array)).to(self.local.device) for name, array in found.items()}

    @property
    def _samples(self) -> LabelledSamples:
        if self.local.samples is None:
            raise RuntimeError("FedSAP measures on the client's training samples; give Local.samples")
        return self.local.samples()

    # ---- training --------------------------------------------------------------------------------

    def begin(self) -> None:
        """Measure activations, and the domain's signal where it is due, on the model as received."""
        compact = self.params.execution == "compact"
        self._gradient = signals.GradientMeter(self.model, self.graph, self.plan, self.params.gradient, compact)
        self._activation = signals.ActivationMeter(self.model, self.graph, self.plan, self.params.site, compact)
        if self.params.mode == "eval-received":
            self._measure_activations()
        if self._wants_signal and self.params.at == "received-model":
            self._take_signal()
        set_to_train(self.model)

    def loss(self, x: Tensor, y: Tensor) -> Tensor:
        """Return CE + γ times the mean squared norm of the features (Eq. 7)."""
        with self._meter_while_training():
            z, logits = self.forward(self.model, x)
        loss: Tensor = F.cross_entropy(logits, y)
        if not self.params.penalty:
            return loss
        norm = z.square().sum(dim=1) if self.params.penalty_norm == "l2sq" else z.norm(dim=1)
        penalised: Tensor = loss + self.params.penalty * norm.mean()
        return penalised

    def after_step(self) -> None:
        """Note the gradients of the last epoch; hold what is not this client's."""
        if self.epoch == self.epochs - 1:
            self._gradient.observe()
        if self.params.execution == "masked":
            self.model.hold()

    def end(self, samples: LabelledSamples) -> Arrays:
        """Upload the trained channels and what was measured of them."""
        if not len(samples.y):
            return {}
        if self.params.mode == "eval-trained":
            self._measure_activations()
        if self._wants_signal and self.params.at == "after-local":
            self._take_signal()
        trained = arrays_of(self.model)
        trained = {name: trained[name] for name in self.graph.entries}
        if self.params.execution == "masked":
            trained = gather(self.plan, trained)
        if self.params.bn_stats == "local":
            trained = self._keep_statistics(trained)
        measured = {ACTIVATION: self._activation.means(), GRADIENT: self._gradient.means()}
        return {**trained, **measured, **self._uploads}

    def _meter_while_training(self) -> AbstractContextManager[None]:
        """Return a context that measures activations in the last epoch, if that is where they are measured."""
        measures = self.params.mode == "train" and self.model.training and self.epoch == self.epochs - 1
        return self._activation.attached() if measures else nullcontext()

    def _measure_activations(self) -> None:
        started = time.perf_counter()
        self.model.eval()
        with self._activation.attached():
            signals.pass_over(self.model.features, self._samples, self.local.device)
        self.metrics["statistics-seconds"] = time.perf_counter() - started

    def _take_signal(self) -> None:
        """Measure what tells the client's domain (Eq. 4), in evaluation mode."""
        started = time.perf_counter()
        self.model.eval()
        layers = signals.signal_layers(self.graph, self.params.signal)
        first = self.graph.layers[0]
        if self.params.signal != "bn_stats":
            compact = self.params.execution == "compact"
            weights = signals.planned_weights(self.model, self.graph, self.plan, layers, compact)
            found = signals.mean_gradients(self.loss, weights, self._samples, self.local.device)
        elif self.params.at == "received-model" or not first.norm:
            conv = self.model.get_submodule(first.name)
            weight, bias = self._first.get("weight", conv.weight), self._first.get("bias", conv.bias)
            found = signals.first_layer_statistics(self.model, first.name, weight, bias, self._samples)
        else:
            rows = None if self.params.execution == "compact" else torch.from_numpy(self.plan.rows[0])
            found = signals.running_statistics(self.model.get_submodule(first.norm), rows)
        self._uploads[SIGNAL] = found
        self.metrics["dga-seconds"] = time.perf_counter() - started

    def _keep_statistics(self, trained: dict[str, Any]) -> dict[str, Any]:
        """Keep running statistics here, laid out over all channels, and return what travels."""
        kept = {name: array for name, array in trained.items() if name.endswith(STATISTICS)}
        own = {
            name: self.local.state.get(f"own/{name}", _first_statistics(name, self.graph.entries[name])).numpy()
            for name in kept
        }
        part = scatter(self.plan, kept, own)
        self.local.state = {f"own/{name}": torch.from_numpy(array) for name, array in part.items()}
        return {name: array for name, array in trained.items() if name not in kept}

    # ---- evaluation ------------------------------------------------------------------------------

    def evaluate(self, downlink: Downlink, samples: LabelledSamples) -> Uplink:
        """Evaluate with BatchNorm as averaged and re-estimated; the profile says which is the headline."""
        uplink = super().evaluate(downlink, samples)
        if not len(samples.y):
            return uplink
        names = ["accuracy-recalibrated", "accuracy-averaged"]
        if not self._recalibrated:
            names.reverse()
        self.metrics[names[0]] = self.metrics["accuracy"]
        statistics = {n: b.clone() for n, b in self.model.state_dict().items() if n.endswith(STATISTICS)}
        if names[0] == "accuracy-averaged":
            self._recalibrate(self.model)
        else:
            load_arrays(self.model, {name: self._averaged[name] for name in statistics})
        self.metrics[names[1]] = self.measure(self.model, samples)["accuracy"]
        self.model.load_state_dict(statistics, strict=False)
        if self._consensus:
            network = copy.deepcopy(self.full)  # masked execution shares its tensors
            load_arrays(network, {name: tensor.cpu().numpy() for name, tensor in self._consensus.items()})
            self.metrics["consensus-accuracy"] = self.measure(network, samples)["accuracy"]
        return uplink

    def _recalibrate(self, model: nn.Module) -> None:
        """Re-estimate the running statistics on the client's own training samples, if it has any."""
        self._averaged = {n: b.clone().cpu().numpy() for n, b in model.state_dict().items() if n.endswith(STATISTICS)}
        batches = (x for x, _ in in_order(self._samples, self.local.device))
        if len(self._samples.y):
            batch_norm.install(model, batch_norm.moments(model, batches))


def _first_statistics(name: str, shape: tuple[int, ...]) -> Tensor:
    return torch.zeros(shape) if name.endswith("running_mean") else torch.ones(shape)
