"""What a network keeps for its backward pass, counted from its graph the way torch keeps it."""

from __future__ import annotations

import math

from torch import fx

from fedapp.functional._compact import chain_before
from fedapp.functional._flow import Flow
from fedapp.functional._survey import HALVES
from fedapp.functional.channels import ChannelGraph

_SAME_MEMORY = frozenset({"Identity", "contiguous"})
_KEEP_OUTPUT = frozenset({"ReLU", "relu", "relu_", "Tanh", "tanh"})
_KEEP_NOTHING = frozenset({"add", "spatial", "restore", "size", "dense"})
_MAX_POOLS = frozenset({"MaxPool2d", "max_pool2d", "AdaptiveMaxPool2d"})
_DROPOUTS = frozenset({"Dropout", "Dropout2d", "dropout", "dropout2d"})


def activations(graph: ChannelGraph, flow: Flow, compact: bool) -> int:
    """Return how many numbers one sample keeps, each tensor counted once.

    Args:
        graph: The model's graph.
        flow: Its kept channels.
        compact: Whether it runs as a compact network, which does not keep what it can make anew.
    """
    kept: set[fx.Node] = set()
    memory: dict[fx.Node, fx.Node] = {}  # the operation that made what a node returns
    before: fx.Node | None = None
    beside = 0
    for half in HALVES:
        for node in graph.halves[half].nodes:
            source = memory[node.all_input_nodes[0]] if node.all_input_nodes else before or node
            if node.meta["kind"] in ("input", "flatten", "output") or node.meta["op"] in _SAME_MEMORY:
                memory[node] = source
                continue
            memory[node] = node
            kept.update(_held(node, source))
            beside += _beside(node, flow)
            if compact and node.meta["kind"] == "conv":
                kept.difference_update(chain_before(node)[1:])
        before = memory[node]
    return sum(_numbers(node, flow) for node in kept) + beside


def _held(node: fx.Node, source: fx.Node) -> tuple[fx.Node, ...]:
    """Return the node whose result an operation keeps, if any."""
    kind, op = node.meta["kind"], node.meta["op"]
    to_one = op in ("AdaptiveAvgPool2d", "adaptive_avg_pool2d") and math.prod(node.meta["shape"][1:]) == 1
    if kind in _KEEP_NOTHING or op in _DROPOUTS or to_one:
        return ()
    return (node,) if op in _KEEP_OUTPUT else (source,)


def _beside(node: fx.Node, flow: Flow) -> int:
    """Return the numbers that an operation keeps for itself: places of maxima (int64), or a dropout's mask."""
    if node.meta["kind"] == "dense":
        return 0
    op = node.meta["op"]
    return _numbers(node, flow) * (2 if op in _MAX_POOLS else 1 if op in _DROPOUTS else 0)


def _numbers(node: fx.Node, flow: Flow) -> int:
    shape, held = node.meta["shape"], flow.kept[node]
    return math.prod(shape) if held is None else len(held) * math.prod(shape[1:])
