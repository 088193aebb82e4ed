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
from fedapp.functional.submodel import Plan, gather
from fedapp.functional.type_matched import Rows, Upload
from fedapp.payload import Arrays
from fedapp.strategies.fedsap import moments
from fedapp.strategies.fedsap.params import FedSAPParams

Bools = npt.NDArray[np.bool_]
Roles = npt.NDArray[np.uint8]
STATISTICS = ("running_mean", "running_var")


@dataclass(frozen=True)
class Sent:
    """What a client was sent: its plan, its roles (U,), and the group whose rows it trains."""

    plan: Plan
    roles: Roles
    group: int


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
    """

    def __init__(self, params: FedSAPParams, graph: ChannelGraph, arrays: Mapping[str, npt.NDArray[Any]]) -> None:
        self.params = params
        self.graph = graph
        self.arrays = dict(arrays)
        self.pools: dict[str, dict[int, Rows]] = {}
        self.shared_by: Bools = np.ones(graph.total, np.bool_)
        self.owner = {entry: number for number, layer in enumerate(graph.layers) for entry in layer.entries}

    # ---- down ------------------------------------------------------------------------------------

    def composed(self, held: Sent) -> dict[str, npt.NDArray[Any]]:
        """Return a client's compact entries: rows of W_G where Global, of its group's pool where Private (Eq. 9)."""
        small = gather(held.plan, self.arrays)
        for name, pools in self.pools.items():
            pool, private = pools.get(held.group), self._private(name, held.roles)
            if pool is None or not private.any():
                continue
            rows, columns = self._index(held.plan, name)
            places = np.flatnonzero(private[rows] & np.isin(rows, pool.index))
            own = pool.values[np.searchsorted(pool.index, rows[places])]
            small[name] = np.array(small[name])
            small[name][places] = own if columns is None else own[:, columns]
        return small

    def full(self, held: Sent) -> dict[str, npt.NDArray[Any]]:
        """Return the full-width model of which a client holds a part."""
        return {
            name: type_matched.compose(array, self.pools.get(name, {}).get(held.group), self._private(name, held.roles))
            for name, array in self.arrays.items()
        }

    def consensus(self, pooled: Mapping[int, npt.NDArray[Any]]) -> dict[str, npt.NDArray[Any]]:
        """Return one full-width model for everybody: W_G, and the mean of the pools where nobody shares a channel.

        Args:
            pooled: Group -> (U,) samples behind each channel of its pool.
        """
        nobody = np.zeros(self.graph.total)
        model = dict(self.arrays)
        for name, pools in self.pools.items():
            if name in self.owner and pools:
                part = self.graph.slices[self.owner[name]]
                weights = {group: pooled.get(group, nobody)[part] for group in pools}
                model[name] = type_matched.consensus(model[name], pools, weights, self.shared_by[part])
        return model

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
        rows, columns = self._index(one.sent.plan, name)
        sent = one.rows_sent[name][rows] if one.rows_sent else None
        return Upload(
            one.arrays[name], rows, columns, self._private(name, one.roles)[rows], one.group, one.weight, sent
        )

    def _private(self, name: str, roles: Roles) -> Bools:
        """Return which rows (C,) of an entry belong to a group's pool under these roles."""
        if name in self.owner:
            mixed = self.params.bn_stats == "mean" and is_statistic(name)
            return np.asarray((roles[self.graph.slices[self.owner[name]]] == PRIVATE) & (not mixed))
        by_group = self.params.head == "group" and name.startswith("head.") and bool((roles == PRIVATE).any())
        return np.full(len(self.arrays[name]), by_group)

    def _index(self, part: Plan, name: str) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64] | None]:
        """Return a plan's rows of an entry, and its columns; None = all, or there are none."""
        rows, columns = (*part.index[name], None, None)[:2]
        return (np.arange(len(self.arrays[name])) if rows is None else rows), columns

    # ---- state -----------------------------------------------------------------------------------

    def state(self) -> dict[str, npt.NDArray[Any]]:
        """Return everything as named arrays."""
        arrays: dict[str, npt.NDArray[Any]] = {f"global/{name}": array for name, array in self.arrays.items()}
        for name, pools in self.pools.items():
            for group, rows in pools.items():
                arrays |= {f"pool/{group}/index/{name}": rows.index, f"pool/{group}/rows/{name}": rows.values}
        return {**arrays, "shared-by": self.shared_by}

    def load_state(self, arrays: Arrays) -> None:
        """Take over what :meth:`state` returned."""
        self.arrays = {name: np.asarray(arrays[f"global/{name}"]) for name in self.arrays}
        self.shared_by = np.asarray(arrays["shared-by"])
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
