"""FedSAP without Flower: its server and its clients in plain calls, so that a test can look at both ends of a round."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import torch

from fedapp.client_update import Local
from fedapp.config import TrainingSettings
from fedapp.functional.roles import DROPPED
from fedapp.payload import Downlink, Uplink
from fedapp.strategies.fedsap import FedSAP, FedSAPParams, FedSAPUpdate
from fedapp.strategies.fedsap.assignment import Assignment, Measured
from fedapp.strategies.records import RoundRecord
from fedapp.wire import check_arrays
from tests.strategies.federation import CLASSES, MODELS, Samples, info, met, samples

ONE_STEP = TrainingSettings(learning_rate=0.1, batch_size=100, local_epochs=1, shuffle=False, device="cpu")


@dataclass
class Rounds:
    """Clients "0", "1", ... with a common kind of model; ``round`` runs one round over some of them."""

    params: FedSAPParams
    train: Sequence[Samples] = tuple(samples(8 + 2 * index, index) for index in range(3))
    training: TrainingSettings = ONE_STEP
    kind: str = "conv"
    seed: int = 0
    domains: Sequence[str] = ()
    states: dict[str, dict[str, Any]] = field(default_factory=dict)
    downlinks: dict[str, Downlink] = field(default_factory=dict)
    uplinks: dict[str, Uplink] = field(default_factory=dict)
    tamper: Callable[[Uplink], Uplink] = lambda uplink: uplink

    def __post_init__(self) -> None:
        self.clients = [str(index) for index in range(len(self.train))]
        self.server = self.fresh_server()

    def fresh_server(self, **options: Any) -> Any:
        def build(info: Any, kind: str) -> Any:
            torch.manual_seed(self.seed + 77)
            return MODELS[kind or info.model]()

        strategy = FedSAP(self.params, seed=self.seed, build=build, **options)
        return met(strategy, *(self.info(client) for client in self.clients))

    def info(self, client: str) -> Any:
        domain = self.domains[int(client)] if self.domains else ""
        return replace(info(client, self.kind, len(self.train[int(client)].y)), domain=domain)

    def update(self, client: str, number: int = 1) -> FedSAPUpdate:
        torch.manual_seed(int(client))
        local = Local(client, MODELS[self.kind](), CLASSES, self.training, number, 9, self.seed)
        local.samples = lambda: self.train[int(client)]
        local.state = self.states.get(client, {})
        return FedSAPUpdate(self.params, local)

    def round(self, number: int, clients: Sequence[str] = ()) -> dict[str, Uplink]:
        """Run a round and return what its clients uploaded."""
        self.server.record = RoundRecord(number)
        self.downlinks = {
            client: self.server.downlink(self.server.clients[client]) for client in clients or self.clients
        }
        self.uplinks = {}
        for client, downlink in self.downlinks.items():
            update = self.update(client, number)
            uplink = self.tamper(update.train(downlink, self.train[int(client)]))
            self.states[client] = update.local.state
            check_arrays(uplink.arrays, self.server.uplink_specs(self.server.clients[client]), client)
            self.server.check_uplink(uplink)
            self.uplinks[client] = uplink
        self.server.aggregate(list(self.uplinks.values()))
        return self.uplinks

    def run(self, num_rounds: int) -> Rounds:
        for number in range(1, num_rounds + 1):
            self.round(number)
        return self

    # ---- what the server holds -------------------------------------------------------------------

    @property
    def members(self) -> Mapping[str, Any]:
        return self.server.assignment.members

    @property
    def weights(self) -> dict[str, np.ndarray]:
        """W_G by entry."""
        return self.server.shared.arrays

    def active(self, client: str) -> np.ndarray:
        return self.members[client].roles != DROPPED

    def channels(self, client: str) -> list[int]:
        """Count a client's channels, layer by layer."""
        return [int(self.active(client)[part].sum()) for part in self.server.graph.slices]

    def laid_out(self, client: str, name: str) -> np.ndarray:
        """Return an entry that a client uploaded in full width, NaN where it trained nothing."""
        plan = self.server._sent[client].plan
        full = np.full(self.server.graph.entries[name], np.nan)
        axes = [np.arange(s) if kept is None else kept for s, kept in zip(full.shape, plan.index[name], strict=False)]
        full[np.ix_(*axes)] = self.uplinks[client].arrays[name]
        return full


def with_arrays(uplink: Uplink, **arrays: np.ndarray) -> Uplink:
    return replace(uplink, arrays={**uplink.arrays, **arrays})


# ---- an assignment alone ----------------------------------------------------------------------------

SIZES = (5, 6, 6, 6, 6, 6, 8)
TOTAL = sum(SIZES)
"""Channels of the model "conv", layer by layer."""
EAST, NEAR_EAST, NORTH = [1.0, 0.0, 0.1, 0.0], [0.9, 0.1, 0.1, 0.0], [0.0, 1.0, 0.0, 0.1]
"""Signals of domains."""


def asked(**changes):
    """A server's assignment alone, for clients "0", "1", ... that all hold everything unless ratios say otherwise."""
    params = FedSAPParams(**{"warmup": 0, "min_spread": 0.0, "min_group": 1, **changes})
    rounds = Rounds(params, train=tuple(samples(4, index) for index in range(4)))
    assignment = rounds.server.assignment
    assert isinstance(assignment, Assignment)
    return assignment


def measured(seed, signal=None, held=None, scale=1.0):
    generator = np.random.default_rng(seed)
    activation, gradient = generator.random(TOTAL) * scale, generator.random(TOTAL)
    for values in (activation, gradient):
        values[~held if held is not None else slice(0, 0)] = np.nan
    return Measured(activation, gradient, 10, None if signal is None else np.asarray(signal, float))


def groups_of(assignment):
    return [member.group for member in assignment.members.values()]


def grouped(assignment, round_number, signals):
    found = {client: measured(int(client), signal) for client, signal in signals.items()}
    assignment.observe(round_number, found)
    return groups_of(assignment)
