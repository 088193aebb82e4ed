"""The execution of a network in which each convolution holds only some of its channels."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor, fx, nn
from torch.autograd.function import once_differentiable
from torch.nn import functional as F

from fedapp.functional import _lean
from fedapp.functional._flow import Flow, Positions
from fedapp.functional._survey import HALVES
from fedapp.functional.channels import ChannelGraph

MOST_SEGMENTS = 16
"""Additions that fall into more pieces gather channel by channel."""


def with_tensors(model: nn.Module, tensors: Mapping[int, Tensor]) -> Any:
    """Return a copy of a model that holds other tensors in place of those with the given ids."""
    memo: dict[int, Any] = dict(tensors)
    return copy.deepcopy(model, memo)


def extracted(model: nn.Module, graph: ChannelGraph, flow: Flow, arrays: Mapping[str, Tensor]) -> nn.Module:
    """Return a copy of a model that holds ``arrays`` and computes with the channels of ``flow``."""
    tensors: dict[int, Tensor] = {}
    for name, tensor in model.state_dict(keep_vars=True).items():
        if name in arrays and isinstance(tensor, nn.Parameter):
            tensors[id(tensor)] = nn.Parameter(arrays[name], requires_grad=tensor.requires_grad)
        elif name in arrays:
            tensors[id(tensor)] = arrays[name]
    compact = with_tensors(model, tensors)
    for module in compact.modules():
        if isinstance(module, nn.Conv2d):
            module.out_channels, module.in_channels = module.weight.shape[:2]
        elif isinstance(module, nn.Linear):
            module.out_features, module.in_features = module.weight.shape
    _resize_norms(compact, graph, flow)
    for half in HALVES:
        _install(compact, half, graph.halves[half], flow)
    compact.train()
    network: nn.Module = compact
    return network


def _resize_norms(compact: nn.Module, graph: ChannelGraph, flow: Flow) -> None:
    for half in HALVES:
        for node in graph.halves[half].nodes:
            held = flow.read(node) if node.meta["kind"] == "norm" else None
            if held is not None:
                norm: Any = compact.get_submodule(str(node.target))
                norm.num_features = len(held)


def _install(compact: Any, half: str, graph: fx.Graph, flow: Flow) -> None:
    """Let a half follow its rewritten graph, if the original code does not fit the smaller layers."""
    original = getattr(compact, half)
    submodule = isinstance(original, nn.Module)
    owner = original if submodule else compact
    prefix = f"{half}." if submodule else ""
    rewritten = _Rewriter(graph, flow, prefix)
    if not rewritten.edits:
        return
    device = next(compact.parameters()).device
    for name, positions in rewritten.positions.items():
        owner.register_buffer(name, torch.from_numpy(positions).to(device), persistent=False)

    def run(self: nn.Module, x: Tensor) -> Tensor:
        result: Tensor = _Runner(self, graph=rewritten.graph).run(x)
        return result

    owner.__dict__.pop(half, None)
    base = type(owner)
    owner.__class__ = type(f"Compact{base.__name__}", (base,), {"forward" if submodule else half: run})


class _Runner(fx.Interpreter):
    """Runs a rewritten graph; dropout that was called as a function follows the module's training flag."""

    def call_function(self, target: Any, args: Any, kwargs: Any) -> Any:
        if isinstance(target, _Chain):
            return self._chain(target.modules, *args)
        if target in (F.dropout, F.dropout2d):
            kwargs = {**kwargs, "training": self.module.training}
        return super().call_function(target, args, kwargs)

    def _chain(self, paths: tuple[str, ...], x: Tensor) -> Tensor:
        modules = tuple(self.fetch_attr(path) for path in paths)
        if _lean.applies(modules, x):
            return _lean.norm_relu_conv(modules[0], modules[-1], x)
        for module in modules:
            x = module(x)
        return x


@dataclass(frozen=True)
class _Chain:
    """Names a BatchNorm, a ReLU and a convolution that are called one after the other and read by nothing else."""

    modules: tuple[str, ...]

    def __call__(self, x: Tensor) -> Tensor:
        raise TypeError("a chain is called by the runner, which knows the modules")


def chain_before(conv: fx.Node) -> list[fx.Node]:
    """Return the BatchNorm and the ReLU before a convolution if it alone reads them; else nothing."""
    (relu,) = conv.all_input_nodes
    if relu.meta.get("op") != "ReLU" or len(relu.users) > 1:
        return []
    (norm,) = relu.all_input_nodes
    return [norm, relu] if norm.meta["kind"] == "norm" and len(norm.users) == 1 else []


class _Rewriter:
    """A half's graph with additions that unite channels, and with the widths of the full model taken out."""

    def __init__(self, graph: fx.Graph, flow: Flow, prefix: str) -> None:
        self.graph, self.flow, self.prefix = fx.Graph(), flow, prefix
        self.edits = 0
        self.positions: dict[str, Positions] = {}
        self.copies: dict[fx.Node, fx.Node] = {}
        for node in graph.nodes:
            self.copies[node] = self._copy(node)
        for node in reversed(self.graph.nodes):
            if node.op not in ("placeholder", "output") and not node.users:
                self.graph.erase_node(node)

    def _copy(self, node: fx.Node) -> fx.Node:
        inputs = [self.copies[n] for n in node.all_input_nodes]
        kind = node.meta["kind"]
        held = self.flow.kept[node]
        if kind == "add" and held is not None:
            return self._add(node, held)
        if kind == "flatten" and node.op != "call_module" and node.target is not torch.flatten:
            self.edits += 1
            return self.graph.call_function(torch.flatten, (inputs[0], 1))
        if kind == "restore" and held is not None:  # this pooling changes nothing in the full model
            self.edits += 1
            return inputs[0]
        chain = chain_before(node) if kind == "conv" else []
        if chain:
            self.edits += 1
            paths = tuple(str(n.target).removeprefix(self.prefix) for n in (*chain, node))
            source = self.copies[chain[0].all_input_nodes[0]]
            return self.graph.create_node("call_function", _Chain(paths), (source,), name="chain")
        copied = self.graph.node_copy(node, lambda n: self.copies[n])
        if node.op in ("call_module", "get_attr"):
            copied.target = str(node.target).removeprefix(self.prefix)
        read = self.flow.read(node) if kind == "restore" else None
        if read is not None:
            self.edits += 1
            with self.graph.inserting_before(copied):
                width = node.all_input_nodes[0].meta["shape"][0]
                full = self.graph.call_function(_restored, (inputs[0], self._note(read), width))
            copied.replace_input_with(inputs[0], full)
        return copied

    def _add(self, node: fx.Node, union: Positions) -> fx.Node:
        sides: Any = node.args
        inputs = [self.copies[n] for n in sides]
        first, second = (self.flow.kept[n] for n in sides)
        if first is None or second is None:
            raise AssertionError(f"{node} adds to a whole stream and yet is not whole")
        if len(first) == len(second) == len(union):
            return self.graph.call_function(torch.add, tuple(inputs))
        self.edits += 1
        places = np.full(node.meta["shape"][0], -1)
        places[union] = np.arange(len(union))
        first, second = places[first], places[second]
        segments = _segments(first, second, len(union))
        if len(segments) <= MOST_SEGMENTS:
            union_add = _Union(segments, len(union))
            return self.graph.create_node("call_function", union_add, tuple(inputs), name="union")
        return self.graph.call_function(_gathered, (*inputs, self._note(first), self._note(second), len(union)))

    def _note(self, positions: Positions) -> fx.Node:
        name = f"kept_positions_{len(self.positions)}"
        self.positions[name] = positions
        return self.graph.get_attr(name)


def _segments(first: Positions, second: Positions, width: int) -> tuple[tuple[int, int, int, int], ...]:
    """Return (start, length, start in the first, start in the second or -1) of the runs of one kind in a union."""
    sources = np.full((2, width), -1)
    sources[0, first], sources[1, second] = np.arange(len(first)), np.arange(len(second))
    present = sources >= 0
    starts = np.flatnonzero(np.r_[True, (present[:, 1:] != present[:, :-1]).any(axis=0)])
    ends = np.r_[starts[1:], width]
    return tuple(
        (int(s), int(e - s), int(sources[0, s]), int(sources[1, s])) for s, e in zip(starts, ends, strict=True)
    )


def _restored(x: Tensor, positions: Tensor, width: int) -> Tensor:
    """Return features at their native width, with zeros where channels were dropped."""
    return x.new_zeros(len(x), width).index_copy(1, positions, x)


def _gathered(a: Tensor, b: Tensor, first: Tensor, second: Tensor, width: int) -> Tensor:
    """Return the sum of two sets of channels in a union, channel by channel."""
    united = a.new_zeros(len(a), width, *a.shape[2:]).index_copy(1, first, a)
    return united.index_add_(1, second, b)


@dataclass(frozen=True)
class _Union:
    """The sum of two sets of channels that overlap in runs; nothing is kept for the backward pass."""

    segments: tuple[tuple[int, int, int, int], ...]
    width: int

    def __call__(self, a: Tensor, b: Tensor) -> Tensor:
        united: Tensor = _UnionAdd.apply(a, b, self.segments, self.width)
        return united


class _UnionAdd(torch.autograd.Function):
    """Writes each run of the union once; backward: each side picks its runs."""

    @staticmethod
    def forward(ctx: Any, a: Tensor, b: Tensor, segments: tuple[tuple[int, int, int, int], ...], width: int) -> Tensor:
        ctx.segments = segments
        united = a.new_empty(len(a), width, *a.shape[2:])
        for start, length, first, second in segments:
            run = united.narrow(1, start, length)
            if second < 0:
                run.copy_(a.narrow(1, first, length))
            elif first < 0:
                run.copy_(b.narrow(1, second, length))
            else:
                torch.add(a.narrow(1, first, length), b.narrow(1, second, length), out=run)
        return united

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, Tensor | None, None, None]:
        sides = [
            _runs(gradient, [s[:2] for s in ctx.segments if s[2 + side] >= 0]) if ctx.needs_input_grad[side] else None
            for side in (0, 1)
        ]
        return sides[0], sides[1], None, None


def _runs(gradient: Tensor, runs: list[tuple[int, int]]) -> Tensor:
    """Return the channels of runs (start, length), without a copy where they follow each other."""
    start, length = runs[0][0], sum(length for _, length in runs)
    if runs[-1][0] + runs[-1][1] == start + length:
        return gradient.narrow(1, start, length)
    return torch.cat([gradient.narrow(1, *run) for run in runs], dim=1)
