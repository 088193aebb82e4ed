"""FedSAP's server: sends every client its own small network, joins what comes back by role, and decides anew."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt

from fedapp.client_update import arrays_of
from fedapp.config import SettingError
from fedapp.functional.budget import BudgetTooSmallError
from fedapp.functional.roles import DROPPED, GLOBAL, PRIVATE, pack_roles
from fedapp.functional.submodel import plan
from fedapp.payload import Arrays, ArraySpec, ClientInfo, Downlink, Uplink
from fedapp.strategies.base import PayloadStrategy
from fedapp.strategies.fedsap import description, evaluation, signals
from fedapp.strategies.fedsap.assignment import Assignment, Measured
from fedapp.strategies.fedsap.client import ACTIVATION, CONSENSUS, FIRST, GRADIENT, ROLES, SIGNAL, channels_of
from fedapp.strategies.fedsap.params import FedSAPParams, ratios_of
from fedapp.strategies.fedsap.shared import Joining, Sent, SharedModel, is_statistic
from fedapp.strategies.held_out import LEFT_OUT


class FedSAP(PayloadStrategy):
    """The server of FedSAP: one shared model W_G, and a pool W_{k,P} of Private rows for each group of clients.

    Attributes:
        shared: W_G and the pools.
        assignment: Who holds which channels in which role.
    """

    name: ClassVar[str] = "fedsap"
    params_type: ClassVar[type[FedSAPParams]] = FedSAPParams
    requires: ClassVar[tuple[str, ...]] = ("equal-classes", "equal-models")
    newcomer_metrics: ClassVar[Mapping[str, str]] = {
        LEFT_OUT: "accuracy-averaged",
        LEFT_OUT + evaluation.AGAIN: "accuracy-recalibrated",
    }

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.shared: SharedModel
        self.assignment: Assignment
        self._loaded: Arrays = {}
        self._sent: dict[str, Sent] = {}
        self._evaluator: evaluation.Evaluator | None = None

    # ---- the start -------------------------------------------------------------------------------

    def begin(self) -> None:
        """Trace the model, start from the arrays given or a newly built model, and give every client its channels.

        Raises:
            SettingError: If the model cannot be pruned, or a client's budget cannot hold it.
        """
        if self.build is None:
            raise SettingError(
                "fedsap has to see on the server how channels flow through the model; pass it what builds one: "
                "FedSAP(build=lambda client, name: MyModel())"
            )
        self.network = self.build(self.first_client, "")
        try:
            self.graph = channels_of(self.network, self.first_client.input_shape)
        except ValueError as error:
            raise SettingError(f"fedsap cannot prune {self.first_client.model}: {error}") from None
        signals.signal_layers(self.graph, self.params.signal)
        self._install()
        for client in self.clients.values():
            if reason := self.refuse(client):
                raise SettingError(reason)

    def _install(self) -> None:
        """Begin with what was loaded: a whole state, the entries of a model, or nothing."""
        first = self._first_model()
        self.shared = SharedModel(self.params, self.graph, first)
        self.assignment = Assignment(self.params, self.graph, first, self.seed)
        if "dispersion" in self._loaded:
            self.shared.load_state(self._loaded)
            self.assignment.load_state(self._loaded)

    def _first_model(self) -> dict[str, npt.NDArray[Any]]:
        given = {**arrays_of(self.network), **self._loaded}
        model = {}
        for name, shape in self.graph.entries.items():
            array = given.get(f"global/{name}", given[name])
            if array.shape != tuple(shape):
                raise SettingError(f"initial_arrays: {name} has shape {array.shape}, the clients' model {tuple(shape)}")
            model[name] = np.array(array)
        return model

    def refuse(self, client: ClientInfo) -> str:
        """Return why a client cannot take part: a budget that does not hold one channel in every layer."""
        try:
            self.assignment.admit(client.client, self._keep_ratio(client))
        except (BudgetTooSmallError, ValueError) as error:
            return f"client {client.client} (keep ratio {self._keep_ratio(client):g}): {error}"
        return ""

    def _keep_ratio(self, client: ClientInfo) -> float:
        """Return κ_i: the node's own, else by the client's place among those dealt out cyclically."""
        known = self.assignment.members.get(client.client)
        ratios = ratios_of(self.params.keep_ratios)
        if client.keep_ratio or known is None:
            place = int(client.client) if client.client.isdigit() else list(self.clients).index(client.client)
            return client.keep_ratio or ratios[place % len(ratios)]
        return known.keep_ratio

    # ---- down ------------------------------------------------------------------------------------

    def downlink(self, client: ClientInfo) -> Downlink:
        """Send a client its composed submodel (Eq. 9), and what it takes to measure its domain's signal if due."""
        name = client.client
        self.assignment.admit(name, self._keep_ratio(client))
        asks = self.assignment.wants_signal(name, self.record.round)
        sent = self._sent[name] = replace(self._held(name), asks=asks)
        arrays, settings = self._packed(sent), {"input-shape": _text(client.input_shape)}
        if sent.asks:
            arrays |= self._first_layer()
            return Downlink(arrays, {**settings, "signal": True})
        return Downlink(arrays, settings)

    def evaluate_downlink(self, client: ClientInfo) -> Downlink:
        """Send a client its submodel; where the server has no data, full devices evaluate the consensus as well."""
        self.assignment.admit(client.client, self._keep_ratio(client))
        arrays = self._packed(self._held(client.client))
        if self._consensus_on_devices and self.assignment.members[client.client].keep_ratio == 1:
            arrays |= {CONSENSUS + name: array for name, array in self.consensus().items()}
        settings = {"input-shape": _text(client.input_shape), "recalibrate": self.params.recalibrate}
        return Downlink(arrays, settings)

    def newcomer_downlink(self, client: ClientInfo) -> Downlink:
        """Send a client that never took part the consensus: every channel, all of them Global."""
        arrays = self._traveling(self.consensus())
        roles = pack_roles(np.full(self.graph.total, GLOBAL, np.uint8))
        settings = {"input-shape": _text(client.input_shape), "recalibrate": self.params.recalibrate}
        return Downlink({ROLES: roles, **arrays}, settings)

    @property
    def _consensus_on_devices(self) -> bool:
        """Whether full devices evaluate the consensus: where the server has no data, and statistics to send."""
        return self.held is None and self.params.bn_stats != "local"

    def _held(self, client: str) -> Sent:
        roles = self.assignment.members[client].roles
        return Sent(plan(self.graph, roles != DROPPED), roles.copy(), self.assignment.group_of(client))

    def _packed(self, held: Sent) -> dict[str, npt.NDArray[Any]]:
        return {ROLES: pack_roles(held.roles), **self._traveling(self.shared.composed(held))}

    def _traveling(self, arrays: Arrays) -> Arrays:
        """Return the entries that travel: running statistics may be each client's own."""
        local = self.params.bn_stats == "local"
        return {name: array for name, array in arrays.items() if not (local and is_statistic(name))}

    def _first_layer(self) -> dict[str, npt.NDArray[Any]]:
        """Return W_G's whole first convolution, so that all clients measure through the same filters."""
        if self.params.signal != "bn_stats" or self.params.at != "received-model":
            return {}
        first = self.graph.layers[0].name
        parts = {part: self.shared.arrays.get(f"{first}.{part}") for part in ("weight", "bias")}
        return {FIRST + part: array for part, array in parts.items() if array is not None}

    # ---- up --------------------------------------------------------------------------------------

    def uplink_specs(self, client: ClientInfo) -> dict[str, ArraySpec]:
        """The entries of the submodel that was sent, and the measurements of its channels."""
        sent = self._sent[client.client]
        local = self.params.bn_stats == "local"
        held = sum(len(rows) for rows in sent.plan.rows)
        specs = {
            name: ArraySpec(tuple(sent.plan.shapes[name]), str(array.dtype), optional=True)
            for name, array in self.shared.arrays.items()
            if not (local and is_statistic(name))
        }
        measured = {name: ArraySpec((held,), "float32", optional=True) for name in (ACTIVATION, GRADIENT)}
        if sent.asks:
            length = signals.length(self.params, self.graph, sent.plan)
            measured[SIGNAL] = ArraySpec((length,), "float32", optional=True)
        return {**specs, **measured}

    def check_uplink(self, uplink: Uplink) -> None:
        """Reject an uplink of a client that trained and left something out, and negative magnitudes."""
        if not uplink.num_examples:
            return
        specs = self.uplink_specs(self.clients[uplink.client])
        if missing := sorted(specs.keys() - uplink.arrays.keys()):
            raise ValueError(f"trained, but did not send {', '.join(missing[:4])}")
        for name in (ACTIVATION, GRADIENT):
            if (uplink.arrays[name] < 0).any():
                raise ValueError(f"{name} must be at least 0, got {uplink.arrays[name].min()}")
        for name, array in uplink.arrays.items():
            if name.endswith("running_var") and (array < 0).any():
                raise ValueError(f"{name} must be at least 0, got {array.min()}")

    def aggregate(self, uplinks: Sequence[Uplink]) -> None:
        """Decide groups, masks and roles anew, then join the uploads by role (Algorithm 1, lines 8 to 18)."""
        uplinks = [uplink for uplink in uplinks if uplink.num_examples]
        if not uplinks:
            return
        before = {client: member.group for client, member in self.assignment.members.items() if member.group >= 0}
        self.assignment.observe(self.record.round, {uplink.client: self._measured(uplink) for uplink in uplinks})
        joining = [
            self._joining(uplink, weight) for uplink, weight in zip(uplinks, self._weights(uplinks), strict=True)
        ]
        if self.params.matching == "row":
            joining = [replace(one, rows_sent=self.shared.full(one.sent.roles, one.sent.group)) for one in joining]
        self.shared.move_pools(self._moves(before))
        self.shared.join(joining)

    def _moves(self, before: Mapping[str, int]) -> dict[int, dict[int, float]]:
        """Return new group -> old group -> samples of the members that moved from one to the other, or stayed."""
        moves: dict[int, dict[int, float]] = {}
        for client, old in before.items():
            samples = self.clients[client].num_examples if client in self.clients else 0
            group = moves.setdefault(self.assignment.group_of(client), {})
            group[old] = group.get(old, 0.0) + max(samples, 1)
        return moves

    def _measured(self, uplink: Uplink) -> Measured:
        """Lay out what a client measured over all channels."""
        sent = self._sent[uplink.client]
        places = np.concatenate([s.start + rows for s, rows in zip(self.graph.slices, sent.plan.rows, strict=True)])
        laid = {name: np.full(self.graph.total, np.nan) for name in (ACTIVATION, GRADIENT)}
        for name, array in laid.items():
            array[places] = uplink.arrays[name]
        signal = uplink.arrays.get(SIGNAL)
        if signal is not None:
            signal = signals.laid_out(signal, self.params, self.graph, sent.plan)
        return Measured(laid[ACTIVATION], laid[GRADIENT], uplink.num_examples, signal)

    def _joining(self, uplink: Uplink, weight: float) -> Joining:
        """Say where a client's rows go: by its new role where it still holds the channel, else by the old one."""
        sent, member = self._sent[uplink.client], self.assignment.members[uplink.client]
        keeps = (member.roles != DROPPED) & (self.params.routing == "trained-then-new")
        roles = np.where(keeps, member.roles, sent.roles)
        return Joining(uplink.arrays, sent, roles, self.assignment.group_of(uplink.client), weight)

    def _weights(self, uplinks: Sequence[Uplink]) -> list[float]:
        """Return the clients' weights (α before it is normalised)."""
        samples = np.array([float(uplink.num_examples) for uplink in uplinks])
        if self.params.weighting in ("uniform", "sqrt-samples"):
            return [float(w) for w in (samples**0.5 if self.params.weighting == "sqrt-samples" else samples**0)]
        if self.params.weighting == "samples":
            return [float(w) for w in samples]
        of: Any = self.assignment.group_of if self.params.weighting == "group" else lambda c: self.clients[c].domain
        sets = [of(uplink.client) for uplink in uplinks]
        totals = {one: samples[[other == one for other in sets]].sum() for one in set(sets)}
        return [float(n / totals[one]) for n, one in zip(samples, sets, strict=True)]

    # ---- models and what is told of them ---------------------------------------------------------

    def consensus(self) -> dict[str, npt.NDArray[Any]]:
        """Return one full-width model for everybody, by entry: ``load_state_dict(..., strict=False)`` takes it."""
        holders: dict[int, list[tuple[npt.NDArray[np.uint8], float]]] = {}
        for client, member in self.assignment.members.items():
            samples = self.clients[client].num_examples if client in self.clients else 0
            holders.setdefault(self.assignment.group_of(client), []).append((member.roles, samples))
        return self.shared.consensus(holders)

    def group_model(self, group: int) -> dict[str, npt.NDArray[Any]]:
        """Return W_G in full width with the rows that a group's pool holds in use."""
        held = [m.roles for c, m in self.assignment.members.items() if self.assignment.group_of(c) == group]
        private = np.any([roles == PRIVATE for roles in held], axis=0) if held else np.zeros(self.graph.total, bool)
        roles = np.where(private, PRIVATE, DROPPED).astype(np.uint8)
        return self.shared.full(roles, group)

    def evaluations(self, uplinks: Sequence[Uplink]) -> dict[str, dict[str, float]]:
        """Return accuracies by domain of the consensus, the groups' models and the deployed models."""
        if self._evaluator is None and self.held is not None:
            self._evaluator = evaluation.Evaluator(self.network, self.clients, self.held)
        return {
            **(self._evaluator.evaluate(self) if self._evaluator else {}),
            **evaluation.by_domain(uplinks, self.clients),
        }

    def describe(self) -> dict[str, Any]:
        """Return groups, budgets, roles and costs, for the report."""
        return {"submodels": description.describe(self)}

    # ---- state -----------------------------------------------------------------------------------

    def state(self) -> Arrays:
        """Return W_G, the pools, and all that the assignment knows; before the start, what was loaded."""
        return {**self.shared.state(), **self.assignment.state()} if hasattr(self, "shared") else self._loaded

    def load_state(self, arrays: Arrays) -> None:
        """Take over what :meth:`state` returned, or the entries of a model to start from."""
        self._loaded = {name: np.asarray(array) for name, array in arrays.items()}
        if hasattr(self, "shared"):
            self._install()


def _text(shape: Sequence[int]) -> str:
    return "x".join(map(str, shape))
