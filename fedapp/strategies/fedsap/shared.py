"""What FedSAP's server holds of the model: the shared rows W_G, and each group's pool W_{k,P} of Private rows."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from fedapp.functional import type_matched
from fedapp.functional.channels import ChannelGraph
from fedapp.functional.roles import DROPPED, GLOBAL, PRIVATE
from fedapp.functional.submodel import Plan
from fedapp.functional.type_matched import Rows, Upload
from fedapp.payload import Arrays
from fedapp.strategies.fedsap import moments
from fedapp.strategies.fedsap.params import FedSAPParams

Bools = npt.NDArray[np.bool_]
Roles = npt.NDArray[np.uint8]
Positions = npt.NDArray[np.int64] | None
STATISTICS = ("running_mean", "running_var")


@dataclass(frozen=True)
class Sent:
    """What a client was sent: its plan, its roles (U,), the group whose rows it trains, whether its signal is due."""

    plan: Plan
    roles: Roles
    group: int
    asks: bool = False


@dataclass(frozen=True)
class Joining:
    """What of a client's upload goes where.

    Attributes:
        arrays: The upload.
        sent: What it was sent.
        roles: (U,) the role under which each channel that it trained joins.
        group: Its group now.
        weight: Its weight.
        rows_sent: The full model that it was sent a part of, if whole rows join.
    """

    arrays: Arrays
    sent: Sent
    roles: Roles
    group: int
    weight: float
    rows_sent: Mapping[str, npt.NDArray[Any]] | None = None


class SharedModel:
    """W_G and the pools.

    Args:
        params: The settings.
        graph: The model's channels.
        arrays: W_G to start from, by entry.

    Attributes:
        arrays: W_G, full width, by entry.
        pools: Entry -> group -> rows.
        shared_by: (U,) whether any client joined the channel as Global at the last aggregation.
        head_shared: Whether any client joined the classifier as Global then.
    """

    def __init__(self, params: FedSAPParams, graph: ChannelGraph, arrays: Mapping[str, npt.NDArray[Any]]) -> None:
        self.params = params
        self.graph = graph
        self.arrays = dict(arrays)
        self.pools: dict[str, dict[int, Rows]] = {}
        self.shared_by: Bools = np.ones(graph.total, np.bool_)
        self.head_shared = True
        self.owner = {entry: number for number, layer in enumerate(graph.layers) for entry in layer.entries}

    # ---- down ------------------------------------------------------------------------------------

    def composed(self, held: Sent) -> dict[str, npt.NDArray[Any]]:
        """Return a client's compact entries: rows of W_G where Global, of its group's pool where Private (Eq. 9)."""
        return {
            name: type_matched.compose(
                array,
                self.pools.get(name, {}).get(held.group),
                self._private(name, held.roles),
                *self._positions(held.plan, name),
            )
            for name, array in self.arrays.items()
        }

    def full(self, roles: Roles, group: int) -> dict[str, npt.NDArray[Any]]:
        """Return the full-width model of which a client of a group holds a part, under its roles (U,)."""
        return {
            name: type_matched.compose(array, self.pools.get(name, {}).get(group), self._private(name, roles))
            for name, array in self.arrays.items()
        }

    def consensus(self, holders: Mapping[int, Sequence[tuple[Roles, float]]]) -> dict[str, npt.NDArray[Any]]:
        """Return one full-width model for everybody: W_G, and the mean of the pools where nobody shares a channel.

        Args:
            holders: Group -> roles (U,) and samples of each of its members.
        """
        model = dict(self.arrays)
        for name, pools in self.pools.items():
            weights = {
                group: sum(
                    (samples * self._private(name, roles) for roles, samples in holders.get(group, ())),
                    np.zeros(len(model[name])),
                )
                for group in sorted(pools)
            }
            ordered = {group: pools[group] for group in weights}
            model[name] = type_matched.consensus(model[name], ordered, weights, self._shared_rows(name))
        return model

    def _shared_rows(self, name: str) -> Bools:
        """Return which rows (C,) of an entry any client joined as Global at the last aggregation."""
        if name in self.owner:
            return self.shared_by[self.graph.slices[self.owner[name]]]
        return np.full(len(self.arrays[name]), self.head_shared)

    # ---- up --------------------------------------------------------------------------------------

    def move_pools(self, moves: Mapping[int, Mapping[int, float]]) -> None:
        """Carry the pools over to new groups: a new pool's row is the mean of what its members saw.

        Args:
            moves: New group -> old group -> samples of the members that come from it.
        """
        if any(olds.keys() != {new} for new, olds in moves.items()):
            self.pools = {n: type_matched.remap(pools, self.arrays[n], moves) for n, pools in self.pools.items()}

    def join(self, joining: Sequence[Joining]) -> None:
        """Join uploads by role (Eq. 8)."""
        self.shared_by = np.any([(one.sent.roles != DROPPED) & (one.roles == GLOBAL) for one in joining], axis=0)
        self.head_shared = self.params.head == "global" or any(not (one.roles == PRIVATE).any() for one in joining)
        joined = SharedModel(self.params, self.graph, self.arrays)
        for name in self.arrays:
            if all(name in one.arrays for one in joining):
                joined.arrays[name], joined.pools[name] = self._join_entry(name, joining, joined)
        self.arrays, self.pools = joined.arrays, joined.pools

    def _join_entry(
        self, name: str, joining: Sequence[Joining], joined: SharedModel
    ) -> tuple[npt.NDArray[Any], dict[int, Rows]]:
        uploads = [self._upload(name, one) for one in joining]
        if self.params.bn_stats != "total-variance" or not name.endswith("running_var"):
            matching: Any = self.params.matching
            return type_matched.type_matched_mean(self.arrays[name], self.pools.get(name, {}), uploads, matching)
        mean = name.replace("running_var", "running_mean")
        means = [self._upload(mean, one) for one in joining]
        before = moments.Held(self.arrays[mean], self.pools.get(mean, {}), self.arrays[name], self.pools.get(name, {}))
        return moments.pooled_variance(before, (joined.arrays[mean], joined.pools[mean]), means, uploads)

    def _upload(self, name: str, one: Joining) -> Upload:
        rows, columns = self._positions(one.sent.plan, name)
        chosen = slice(None) if rows is None else rows
        sent = one.rows_sent[name][chosen] if one.rows_sent else None
        private = self._private(name, one.roles)[chosen]
        return Upload(one.arrays[name], rows, columns, private, one.group, one.weight, sent)

    def _private(self, name: str, roles: Roles) -> Bools:
        """Return which rows (C,) of an entry belong to a group's pool under these roles."""
        if name in self.owner:
            mixed = self.params.bn_stats == "mean" and is_statistic(name)
            return np.asarray((roles[self.graph.slices[self.owner[name]]] == PRIVATE) & (not mixed))
        by_group = self.params.head == "group" and name.startswith("head.") and bool((roles == PRIVATE).any())
        return np.full(len(self.arrays[name]), by_group)

    def _positions(self, part: Plan, name: str) -> tuple[Positions, Positions]:
        """Return a plan's rows and columns of an entry; None = all, or there are none."""
        rows, columns = (*part.index[name], None, None)[:2]
        return rows, columns

    # ---- state -----------------------------------------------------------------------------------

    def state(self) -> dict[str, npt.NDArray[Any]]:
        """Return everything as named arrays."""
        arrays: dict[str, npt.NDArray[Any]] = {f"global/{name}": array for name, array in self.arrays.items()}
        for name, pools in self.pools.items():
            for group, rows in pools.items():
                arrays |= {f"pool/{group}/index/{name}": rows.index, f"pool/{group}/rows/{name}": rows.values}
        return {**arrays, "shared-by": self.shared_by, "head-shared": np.array([self.head_shared])}

    def load_state(self, arrays: Arrays) -> None:
        """Take over what :meth:`state` returned."""
        self.arrays = {name: np.asarray(arrays[f"global/{name}"]) for name in self.arrays}
        self.shared_by, self.head_shared = np.asarray(arrays["shared-by"]), bool(arrays["head-shared"][0])
        self.pools = {}
        for key in (key for key in arrays if key.startswith("pool/") and "/index/" in key):
            group, name = key.removeprefix("pool/").split("/index/")
            rows = Rows(np.asarray(arrays[key]), np.asarray(arrays[f"pool/{group}/rows/{name}"]))
            self.pools.setdefault(name, {})[int(group)] = rows


def is_statistic(name: str) -> bool:
    """Return whether an entry is one of BatchNorm's running statistics.

    Example:
        >>> is_statistic("bn1.running_var"), is_statistic("bn1.weight")
        (True, False)
    """
    return name.endswith(STATISTICS)
