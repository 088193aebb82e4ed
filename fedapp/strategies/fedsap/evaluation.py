"""FedSAP's named evaluations: consensus and group models on the server, deployed models from the clients' answers.

Each is measured twice: with BatchNorm's statistics as they were averaged, and re-estimated in one pass over training
samples ("-recalibrated"): the consensus on those of all clients, a group's model on its members'. In a simulation
the server runs over the simulated clients' samples itself, which gives what their federated sums would give.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from fedapp.client_update import LabelledSamples, in_order, load_arrays
from fedapp.functional import batch_norm
from fedapp.payload import Arrays, ClientInfo, Uplink
from fedapp.strategies import records

if TYPE_CHECKING:
    from fedapp.strategies.fedsap.server import FedSAP

AGAIN = "-recalibrated"


class Evaluator:
    """Evaluates full-width models on the samples of a simulation's clients.

    Args:
        network: A model of the architecture; a copy of it is used.
        clients: The clients.
        held: Returns what a client holds.
    """

    def __init__(
        self, network: nn.Module, clients: Mapping[str, ClientInfo], held: Callable[[ClientInfo], Any]
    ) -> None:
        self.network: Any = copy.deepcopy(network)
        self.held = {client: held(info) for client, info in clients.items()}
        self.domains: dict[str, list[str]] = {}
        for client, info in clients.items():
            if len(self.held[client].test.y):
                self.domains.setdefault(info.domain or "all", []).append(client)

    def evaluate(self, strategy: FedSAP) -> dict[str, dict[str, float]]:
        """Return accuracies by domain of the consensus and of each domain's group model."""
        everybody = [client for client in strategy.clients if client in self.held]
        found: dict[str, dict[str, float]] = {}
        averaged = strategy.params.bn_stats != "local"  # statistics that never travel are nobody's average
        for name, arrays in self._both(strategy.consensus(), everybody, averaged):
            found[f"consensus{name}"] = self._accuracies(arrays, self.domains)
        groups = {domain: _majority(strategy, clients) for domain, clients in self.domains.items()}
        for group in sorted(set(groups.values())):
            members = [client for client in everybody if strategy.assignment.group_of(client) == group]
            domains = {domain: self.domains[domain] for domain, number in groups.items() if number == group}
            for name, arrays in self._both(strategy.group_model(group), members, averaged):
                found.setdefault(f"group{name}", {}).update(self._accuracies(arrays, domains))
        return found

    def _both(self, arrays: Arrays, clients: Sequence[str], averaged: bool) -> Iterable[tuple[str, Arrays]]:
        """Return a model's arrays as they are, and with BatchNorm re-estimated on the clients' training samples."""
        if averaged:
            yield "", arrays
        seen = [self.held[client].train for client in clients if len(self.held[client].train.y)]
        if not seen:
            return
        load_arrays(self.network, arrays)
        found = [batch_norm.moments(self.network, _batches(samples)) for samples in seen]
        batch_norm.install(self.network, batch_norm.pooled(found))
        again = {name: tensor.numpy().copy() for name, tensor in self.network.state_dict().items() if name in arrays}
        yield AGAIN, again

    @torch.no_grad()
    def _accuracies(self, arrays: Arrays, domains: Mapping[str, Sequence[str]]) -> dict[str, float]:
        load_arrays(self.network, arrays)
        self.network.eval()
        return {domain: self._accuracy(clients) for domain, clients in domains.items()}

    def _accuracy(self, clients: Sequence[str]) -> float:
        right = total = 0
        for samples in _distinct([self.held[client].test for client in clients]):
            for x, y in in_order(samples, torch.device("cpu")):
                right += int((self.network.head(self.network.features(x)).argmax(dim=1) == y).sum())
            total += len(samples.y)
        return right / total


def by_domain(uplinks: Sequence[Uplink], clients: Mapping[str, ClientInfo]) -> dict[str, dict[str, float]]:
    """Return what clients measured themselves, by domain and weighted by samples: their deployed models.

    Where full devices evaluated the consensus (a deployment), that as well.
    """
    names = {
        "deployed": "accuracy-averaged",
        f"deployed{AGAIN}": "accuracy-recalibrated",
        "consensus": "consensus-accuracy",
    }
    found = {name: records.by_domain(uplinks, metric, clients) for name, metric in names.items()}
    return {name: accuracies for name, accuracies in found.items() if accuracies}


def _majority(strategy: FedSAP, clients: Sequence[str]) -> int:
    """Return the group most of these clients are in, the lowest number in a tie."""
    groups = [strategy.assignment.group_of(client) for client in clients]
    return max(sorted(set(groups)), key=groups.count)


def _distinct(parts: Sequence[LabelledSamples]) -> list[LabelledSamples]:
    """Leave out samples that several clients of a domain share."""
    kept: list[LabelledSamples] = []
    for part in parts:
        if not any(part.x.shape == other.x.shape and torch.equal(part.x, other.x) for other in kept):
            kept.append(part)
    return kept


def _batches(samples: LabelledSamples) -> Iterable[Tensor]:
    return (x for x, _ in in_order(samples, torch.device("cpu")))
