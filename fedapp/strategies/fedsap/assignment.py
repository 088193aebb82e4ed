"""Who holds which channels in which role: what FedSAP's server decides after a round, from what clients measured.

The steps in the order of Algorithm 1: utilities (Eq. 5) -> groups (Eq. 4) -> dispersion (Eq. 6) -> layer budgets
(Eq. 2) -> active channels -> roles (Eq. 3). All state is here, as named arrays.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from fedapp.functional import budget, grouping, roles
from fedapp.functional import channel_statistics as measures
from fedapp.functional.channels import ChannelGraph
from fedapp.functional.submodel import Costs, costs, plan
from fedapp.payload import order
from fedapp.strategies.fedsap import beginning
from fedapp.strategies.fedsap.params import FedSAPParams

Floats = npt.NDArray[np.float64]
Bools = npt.NDArray[np.bool_]
TRAIN_BATCH = 64  # samples whose activations budget.metric=train-bytes counts


@dataclass
class Member:
    """What the server knows of one client.

    Attributes:
        keep_ratio: κ_i.
        roles: (U,) role of every channel.
        group: Number of its pseudo-domain group; -1 before the first grouping that it was part of.
        utility: (U,) smoothed utility, NaN where never measured.
        asked: Round in which it last sent its signal; 0 = never.
        signal: What it was grouped by last, (n,), NaN where it did not hold the entry; empty before that.
    """

    keep_ratio: float
    roles: npt.NDArray[np.uint8]
    group: int
    utility: Floats
    asked: int = 0
    signal: Floats = field(default_factory=lambda: np.zeros(0))


@dataclass(frozen=True)
class Measured:
    """What one client measured in a round, laid out over all channels; NaN where it did not hold them.

    Attributes:
        activation: (U,) mean activation magnitudes.
        gradient: (U,) mean gradient magnitudes.
        samples: Training samples behind them.
        signal: (n,) the domain's signal, if it was asked for.
    """

    activation: Floats
    gradient: Floats
    samples: int
    signal: Floats | None = None


class Assignment:
    """Budgets, masks, roles and groups of all clients.

    Args:
        params: The settings.
        graph: The model's channels.
        weights: The common start's entries by name, for the first masks.
        seed: Seed of the run.

    Attributes:
        members: What is known of every client, by id.
        dispersion: (U,) smoothed dispersion.
    """

    def __init__(self, params: FedSAPParams, graph: ChannelGraph, weights: Mapping[str, Any], seed: int) -> None:
        self.params = params
        self.graph = graph
        self.sets = graph.coupled(params.coupling)
        self.exempt = beginning.exempt_layers(params.exempt, graph)
        self.members: dict[str, Member] = {}
        self.dispersion: Floats = np.zeros(graph.total)
        self._measured: Bools = np.zeros(graph.total, np.bool_)
        self._known: dict[bytes, Costs] = {}
        self._first = beginning.first_utilities(params, graph, weights, seed)

    # ---- clients ---------------------------------------------------------------------------------

    def admit(self, client: str, keep_ratio: float) -> None:
        """Give a new client, or one whose budget changed, its first channels, all Global.

        Raises:
            ValueError: If the budget is not in (0, 1] or cannot hold one channel in every layer.
        """
        known = self.members.get(client)
        if known is not None and known.keep_ratio == keep_ratio:
            return
        ranking = self._first if self._nothing_known else self._ranking_of(client)
        active = self._active(ranking, keep_ratio, None, 1)
        if self.params.warmup_mode == "dense" and known is None:
            active = np.ones(self.graph.total, np.bool_)
        held = np.where(active, roles.GLOBAL, roles.DROPPED).astype(np.uint8)
        if known is not None:
            known.keep_ratio, known.roles = keep_ratio, held
            return
        group = -1 if self.params.grouping else len(self.members)
        self.members[client] = Member(keep_ratio, held, group, np.full(self.graph.total, np.nan))
        self._sort()

    @property
    def _nothing_known(self) -> bool:
        return all(np.isnan(member.utility).all() for member in self.members.values())

    def _sort(self) -> None:
        """Put the members in the order of their ids, so that sums over them do not depend on who came when."""
        self.members = dict(sorted(self.members.items(), key=lambda item: order(item[0])))

    def wants_signal(self, client: str, round_number: int) -> bool:
        """Return whether a client has to send its domain's signal: once in R_d rounds, and newcomers at once."""
        member = self.members[client]
        if self.params.grouped == "all" and member.asked:
            due = round_number - member.asked >= self.params.regroup_every
        else:
            due = self._regroups(round_number) or member.group < 0
        return self.params.grouping and due

    def _regroups(self, round_number: int) -> bool:
        return (round_number - 1) % self.params.regroup_every == 0

    def group_of(self, client: str) -> int:
        """Return a client's group; clients that were not grouped yet share one."""
        return max(self.members[client].group, 0)

    # ---- a round ---------------------------------------------------------------------------------

    def observe(self, round_number: int, measured: Mapping[str, Measured]) -> None:
        """Take in what clients measured and decide groups, budgets, masks and roles of the next round."""
        self._take_utilities(measured)
        if self.params.grouping:
            self._group(round_number, {c: m.signal for c, m in measured.items() if m.signal is not None})
        self._take_dispersion(measured)
        if self._reassigns(round_number):
            self._assign(round_number)

    def stage(self, round_number: int) -> str:
        """Return where a run stands after a round: "warm-up", "adaptive" or "frozen"."""
        if round_number < self.params.warmup:
            return "warm-up"
        return "frozen" if 0 < self.params.freeze_after < round_number else "adaptive"

    def _reassigns(self, round_number: int) -> bool:
        since = round_number - max(self.params.warmup, 1)
        return self.stage(round_number) == "adaptive" and since >= 0 and since % self.params.every == 0

    def _take_utilities(self, measured: Mapping[str, Measured]) -> None:
        how: Any = self.params.normalisation
        for client, found in measured.items():
            activation = measures.normalise(found.activation, self.graph.slices, how)
            gradient = measures.normalise(found.gradient, self.graph.slices, how)
            shares = {
                "activation_weight": self.params.activation_weight,
                "gradient_weight": self.params.gradient_weight,
            }
            fresh = measures.utility(activation, gradient, **shares)
            member = self.members[client]
            beta = self.params.beta if "utility" in self.params.ema_targets else 0.0
            side: Any = self.params.beta_on if beta else "old"
            member.utility = measures.smooth(member.utility, fresh, beta, side)

    def _group(self, round_number: int, signals: Mapping[str, Floats]) -> None:
        for client, signal in signals.items():
            self.members[client].signal, self.members[client].asked = signal, round_number
        everybody = self.params.grouped == "all"
        clients = [client for client, m in self.members.items() if client in signals or (everybody and len(m.signal))]
        if self._regroups(round_number) and clients:
            labels = self._cluster(clients)
            old = np.array([self.members[client].group for client in clients])
            elsewhere = [m.group for c, m in self.members.items() if c not in clients]
            for client, label in zip(clients, grouping.relabel(old, labels, elsewhere), strict=True):
                self.members[client].group = int(label)
            return
        for client in signals:
            self._join_nearest(client)

    def _signals(self, clients: Sequence[str]) -> tuple[Floats, Bools]:
        signals = np.stack([self.members[client].signal for client in clients])
        held = ~np.isnan(signals)
        return np.where(held, signals, 0.0), held

    def _similarity(self, clients: Sequence[str]) -> Floats:
        signals, held = self._signals(clients)
        return grouping.similarity(signals, held if self.params.compare == "joint" else None, center=self.params.center)

    def _cluster(self, clients: Sequence[str]) -> npt.NDArray[np.int64]:
        p: Any = self.params
        if grouping.relative_spread(*self._signals(clients)) < p.min_spread:
            return np.zeros(len(clients), np.int64)
        similarity = self._similarity(clients)
        labels = grouping.cluster(
            similarity, linkage=p.linkage, threshold=p.threshold, count=p.count, max_groups=p.max_groups
        )
        return grouping.merge_small(labels, similarity, p.min_group)

    def _join_nearest(self, client: str) -> None:
        """Let a newcomer join the group whose members' last signals are nearest to its own."""
        others = [c for c, m in self.members.items() if m.group >= 0 and len(m.signal) and c != client]
        if self.members[client].group >= 0 or not others:
            return
        row = self._similarity([client, *others])[0, 1:]
        groups = np.array([self.members[other].group for other in others])
        self.members[client].group = grouping.nearest_group(row, groups)

    def _take_dispersion(self, measured: Mapping[str, Measured]) -> None:
        clients = list(measured)
        activations = np.stack([measured[client].activation for client in clients])
        groups = np.array([self.group_of(client) for client in clients])
        weights = np.array([float(measured[client].samples) for client in clients])
        found = measures.dispersion(measures.group_means(activations, groups, weights), ddof=self.params.ddof)
        side: Any = self.params.beta_on
        self.dispersion = measures.smooth(self.dispersion_or_nan, found, self.params.beta, side)
        self.dispersion = np.where(np.isnan(self.dispersion), 0.0, self.dispersion)
        self._measured = self._measured | ~np.isnan(found)

    @property
    def dispersion_or_nan(self) -> Floats:
        """The dispersion (U,), NaN where it was never measured."""
        return np.where(self._measured, self.dispersion, np.nan)

    @property
    def num_groups(self) -> int:
        """Groups that have a client; clients that were not grouped yet do not make one."""
        return len({member.group for member in self.members.values() if member.group >= 0})

    # ---- masks and roles -------------------------------------------------------------------------

    def _assign(self, round_number: int) -> None:
        rankings = self._rankings()
        utilities = np.stack([member.utility for member in self.members.values()])
        importance = budget.layer_importance(utilities, self.graph.slices) if self.params.adaptive else None
        actives = {
            client: self._active(rankings[client], member.keep_ratio, importance, round_number)
            for client, member in self.members.items()
        }
        common = self._roles(np.any(list(actives.values()), axis=0)) if self.params.role_scope == "global" else None
        for client, active in actives.items():
            decided = self._roles(active) if common is None else common
            if self.members[client].group < 0:
                decided = np.full_like(decided, roles.GLOBAL)
            self.members[client].roles = np.where(active, decided, roles.DROPPED).astype(np.uint8)

    def _roles(self, active: Bools) -> npt.NDArray[np.uint8]:
        if not self.params.tri_state or self.num_groups < 2:
            return np.where(active, roles.GLOBAL, roles.DROPPED).astype(np.uint8)
        target = self.params.global_target if self.params.protection else 0.0
        mode: Any = self.params.target_mode if self.params.protection else "floor"
        return roles.assign_roles(
            active, self.dispersion, self.graph.slices, tau=self.params.tau, global_target=target, mode=mode
        )

    def _ranking_of(self, client: str) -> Floats:
        """Return what a client's channels are ranked by; a newcomer's by what is known of all others."""
        rankings = self._rankings()
        return rankings[client] if client in rankings else np.mean(list(rankings.values()), axis=0)

    def _rankings(self) -> dict[str, Floats]:
        """Return what every member's channels are ranked by, (U,) without gaps."""
        clients = list(self.members)
        known = np.stack([self.members[client].utility for client in clients])
        nothing = np.full_like(known, np.nan)
        if self.params.missing == "chain":
            filled = measures.fill_missing(known, nothing, self.graph.slices)
        else:
            pairs = zip(known, nothing, strict=True)
            filled = np.concatenate([measures.fill_missing(own[None], n[None], self.graph.slices) for own, n in pairs])
        share = {"client": 0.0, "mix": 0.5, "global": 1.0}[self.params.utility_scope]
        everybody = filled.mean(axis=0)
        return {client: share * everybody + (1 - share) * own for client, own in zip(clients, filled, strict=True)}

    def _active(self, ranking: Floats, keep_ratio: float, importance: Floats | None, round_number: int) -> Bools:
        def chosen(counts: npt.NDArray[np.int64]) -> Bools:
            tried = roles.rotating_channels(counts, self.graph.slices, self.params.explore, round_number)
            return roles.select_active(ranking, counts, self.graph.slices, sets=self.sets, explore=tried)

        def counts_at(ratio: float) -> npt.NDArray[np.int64]:
            return self._counts(importance, ratio)

        if self.params.metric == "channels" or keep_ratio == 1:
            return chosen(counts_at(keep_ratio))
        full = self._cost(np.ones(self.graph.total, np.bool_))
        return chosen(budget.fit_cost(counts_at, lambda n: self._cost(chosen(n)), keep_ratio * full, keep_ratio=1.0))

    def _counts(self, importance: Floats | None, keep_ratio: float) -> npt.NDArray[np.int64]:
        """Return channels of each layer (L,) within a keep ratio; tied layers count as one unit of several members."""
        sizes = np.array([layer.channels for layer in self.graph.layers])
        units = [unit for unit in self.sets if not self.exempt.intersection(unit)]
        kept = sizes.copy()
        free = sum(int(sizes[layer]) for unit in units for layer in unit)
        ratio = min((keep_ratio * sizes.sum() - (sizes.sum() - free)) / free, 1.0) if free else 1.0
        if ratio <= 0:
            raise budget.BudgetTooSmallError(
                f"keep ratio {keep_ratio:g} does not even hold the layers of mask.exempt; raise it, or exempt less"
            )
        if not free or ratio == 1.0:
            return kept
        widths = np.array([sizes[unit[0]] for unit in units])
        members = np.array([len(unit) for unit in units])
        ratios = np.full(len(units), ratio)
        if importance is not None:
            reading: Any = self.params.reading
            means = np.array([importance[list(unit)].mean() for unit in units])
            ratios = budget.keep_ratios(
                means, widths, ratio, temperature=self.params.temperature, reading=reading, members=members
            )
        rounding: Any = self.params.rounding
        counts = budget.whole_channels(
            ratios, widths, ratio, rounding=rounding, multiple_of=self.params.multiple_of, members=members
        )
        for unit, count in zip(units, counts, strict=True):
            kept[list(unit)] = count
        return kept

    # ---- costs -----------------------------------------------------------------------------------

    def costs_of(self, active: Bools) -> Costs:
        """Return what a submodel costs; the last ones asked for are remembered."""
        key = active.tobytes()
        if key not in self._known:
            while len(self._known) >= 256:
                self._known.pop(next(iter(self._known)))
            self._known[key] = costs(self.graph, plan(self.graph, active))
        return self._known[key]

    def _cost(self, active: Bools) -> float:
        found = self.costs_of(active)
        memory = 3 * found.parameters + TRAIN_BATCH * found.activations  # weights, gradients, momentum
        return {"macs": found.macs, "params": found.parameters}.get(self.params.metric, 4.0 * memory)

    # ---- state -----------------------------------------------------------------------------------

    def state(self) -> dict[str, npt.NDArray[Any]]:
        """Return everything as named arrays without NaN; before anything was measured clients are admitted again."""
        arrays: dict[str, npt.NDArray[Any]] = {
            "dispersion": self.dispersion,
            "measured": self._measured,
            "first-utilities": self._first,
        }
        for client, member in ({} if self._nothing_known else self.members).items():
            known = ~np.isnan(member.utility)
            held = ~np.isnan(member.signal)
            arrays |= {
                f"clients/{client}/numbers": np.array([member.keep_ratio, member.group, member.asked], np.float64),
                f"clients/{client}/roles": member.roles,
                f"clients/{client}/utility": np.where(known, member.utility, 0.0),
                f"clients/{client}/utility-known": known,
            }
            if len(held):
                signal = np.where(held, member.signal, 0.0)
                arrays |= {f"clients/{client}/signal": signal, f"clients/{client}/signal-held": held}
        return arrays

    def load_state(self, arrays: Mapping[str, npt.NDArray[Any]]) -> None:
        """Take over what :meth:`state` returned."""
        self.dispersion, self._measured = np.asarray(arrays["dispersion"]), np.asarray(arrays["measured"])
        self._first = np.asarray(arrays["first-utilities"])
        self.members = {}
        names = [name for name in arrays if name.startswith("clients/") and name.endswith("/numbers")]
        for name in names:
            client = name.removeprefix("clients/").removesuffix("/numbers")
            prefix = f"clients/{client}/"
            own = {n.removeprefix(prefix): np.asarray(array) for n, array in arrays.items() if n.startswith(prefix)}
            ratio, group, asked = own["numbers"]
            utility = np.where(own["utility-known"], own["utility"], np.nan)
            signal = np.where(own["signal-held"], own["signal"], np.nan) if "signal" in own else np.zeros(0)
            self.members[client] = Member(float(ratio), own["roles"], int(group), utility, int(asked), signal)
        self._sort()
