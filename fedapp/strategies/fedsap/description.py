"""What FedSAP's server tells of a round for the report: groups, budgets, roles and costs, as plain data."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from fedapp.functional.budget import layer_importance
from fedapp.functional.grouping import adjusted_rand
from fedapp.functional.roles import DROPPED, GLOBAL, PRIVATE

if TYPE_CHECKING:
    from fedapp.strategies.fedsap.server import FedSAP


def describe(strategy: FedSAP) -> dict[str, Any]:
    """Return the state after a round: for every client its budget, group, roles by layer and costs."""
    assignment, graph = strategy.assignment, strategy.graph
    groups = {client: assignment.group_of(client) for client in assignment.members}
    full = assignment.costs_of(np.ones(graph.total, np.bool_))
    return {
        "stage": assignment.stage(strategy.record.round),
        "layers": [{"name": layer.name, "channels": layer.channels} for layer in graph.layers],
        "num_groups": assignment.num_groups,
        "adjusted_rand": _against_domains(strategy, groups),
        "importance": _importance(strategy),
        "dispersed": [float((assignment.dispersion[part] > strategy.params.tau).mean()) for part in graph.slices],
        "full": _cost(full),
        "clients": {client: _client(strategy, client, group) for client, group in groups.items()},
        "warnings": warnings(strategy, groups),
    }


def warnings(strategy: FedSAP, groups: dict[str, int]) -> list[str]:
    """Return in words where the method has degenerated to something simpler."""
    assignment = strategy.assignment
    if assignment.stage(strategy.record.round) == "warm-up" or not strategy.params.tri_state:
        return []
    held = [member.roles for member in assignment.members.values()]
    found = []
    if not any((roles == PRIVATE).any() for roles in held):
        found.append("Every active channel is Global: this round was plain averaging over one path.")
    if len(groups) > 1 and len(set(groups.values())) == len(groups) and strategy.params.grouping:
        found.append("There are as many groups as clients: Private channels are personal, nothing is shared in groups.")
    return found


def _client(strategy: FedSAP, client: str, group: int) -> dict[str, Any]:
    member, graph = strategy.assignment.members[client], strategy.graph
    counts = {
        name: [int((member.roles[part] == role).sum()) for part in graph.slices]
        for name, role in (("global", GLOBAL), ("private", PRIVATE))
    }
    costs = _cost(strategy.assignment.costs_of(member.roles != DROPPED))
    return {"keep_ratio": member.keep_ratio, "group": group, **counts, **costs}


def _importance(strategy: FedSAP) -> list[float] | None:
    """Return each layer's importance, by which budgets are spread; None before anything was measured."""
    utilities = np.stack([member.utility for member in strategy.assignment.members.values()])
    if np.isnan(utilities).all():
        return None
    return [float(value) for value in layer_importance(utilities, strategy.graph.slices)]


def _cost(costs: Any) -> dict[str, int]:
    return {"macs": costs.macs, "parameters": costs.parameters, "bytes": costs.bytes, "activations": costs.activations}


def _against_domains(strategy: FedSAP, groups: dict[str, int]) -> float | None:
    """Return the adjusted Rand index of groups against the clients' true domains, None where they are not known."""
    known = [client for client in groups if client in strategy.clients and strategy.clients[client].domain]
    domains = [strategy.clients[client].domain for client in known]
    return adjusted_rand([groups[client] for client in known], domains) if len(set(domains)) > 1 else None
