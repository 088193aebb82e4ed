"""Which channels each value of a network holds once some are dropped, and in which order."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from torch import fx

from fedapp.functional._survey import HALVES
from fedapp.functional.channels import ChannelGraph

Positions = npt.NDArray[np.int64]


@dataclass(frozen=True)
class Flow:
    """Where dropped channels leave gaps.

    Attributes:
        rows: The kept channels of each layer, in the order in which a compact layer holds them.
        kept: What each traced operation returns: kept positions on axis 1 in their order; None = the whole axis.
    """

    rows: tuple[Positions, ...]
    kept: dict[fx.Node, Positions | None]

    def read(self, node: fx.Node) -> Positions | None:
        """Return the kept positions of what an operation reads first."""
        return self.kept[node.all_input_nodes[0]]


def flow(graph: ChannelGraph, active: npt.NDArray[np.bool_]) -> Flow:
    """Follow the kept channels ``active`` (U,) through a graph; an addition holds the union of what it adds.

    The layers that write one residual stream share one order of its channels, chosen such that those which
    an addition finds on both sides, or on one, lie together.
    """
    parts = [active[part] for part in graph.slices]
    order: dict[int, Positions] = {}
    for i, stream in enumerate(graph.streams):
        shared = (
            np.arange(graph.layers[stream[0]].channels) if i in graph.pinned else _order([parts[m] for m in stream])
        )
        order.update(dict.fromkeys(stream, shared))
    rows = tuple(order[i][part[order[i]]] for i, part in enumerate(parts))
    kept: dict[fx.Node, Positions | None] = {}
    conv, before = 0, None
    for half in HALVES:
        for node in graph.halves[half].nodes:
            if node.meta["kind"] == "conv":
                kept[node] = rows[conv]
                conv += 1
            elif node.meta["kind"] == "input":
                kept[node] = before
            elif node.meta["kind"] == "add":
                kept[node] = _union([kept[n] for n in node.all_input_nodes], order[min(node.meta["writers"])], node)
            else:
                kept[node] = _after(node, kept)
        before = kept[node]
    return Flow(rows, kept)


def _order(masks: Sequence[npt.NDArray[np.bool_]]) -> Positions:
    """Return an order of all channels in which those with the same writers lie together, along a Gray code.

    For two writers a and b: neither, only a, both, only b.
    """
    gray = sum(mask.astype(np.int64) << bit for bit, mask in enumerate(masks[:62]))
    place = np.array(gray)
    for shift in (1, 2, 4, 8, 16, 32):  # the place of a word in the reflected Gray code
        place ^= place >> shift
    return np.argsort(place, kind="stable")


def _union(sides: list[Positions | None], order: Positions, node: fx.Node) -> Positions | None:
    if any(side is None for side in sides):
        return None
    held = np.concatenate([side for side in sides if side is not None])
    present = np.zeros(node.meta["shape"][0], bool)
    present[held] = True
    positions = _spread(order, len(present) // len(order))
    return positions[present[positions]]


def _spread(channels: Positions, each: int) -> Positions:
    """Return the positions of channels that were flattened to ``each`` positions apiece."""
    return (channels[:, None] * each + np.arange(each)).ravel()


def _after(node: fx.Node, kept: dict[fx.Node, Positions | None]) -> Positions | None:
    """Return what an operation that neither begins nor joins channels leaves of them."""
    kind = node.meta["kind"]
    if kind in ("dense", "linear", "size"):
        return None
    source = node.all_input_nodes[0]
    held, width, shape = kept[source], source.meta["shape"], node.meta["shape"]
    if held is None or (kind == "restore" and shape != width):
        return None
    return _spread(held, shape[0] // width[0]) if kind == "flatten" else held
