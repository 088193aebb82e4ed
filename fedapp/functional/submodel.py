"""Physically small submodels: one index plan that cuts a network to its active channels and writes them back.

FedSAP's masks are independent for each convolution: y = m * BN(conv(x)) before the activation or the addition. A
channel owns its convolution's row and its BatchNorm's entries; the columns of what reads it follow. A compact network
computes, and trains, exactly what the masked one does.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, fx, nn

from fedapp.functional._activations import activations
from fedapp.functional._compact import extracted, with_tensors
from fedapp.functional._flow import Positions, flow
from fedapp.functional._survey import HALVES
from fedapp.functional.channels import ChannelGraph

Arrays = Mapping[str, npt.NDArray[Any]]
Index = tuple[Positions | None, ...]


@dataclass(frozen=True, eq=False)
class Plan:
    """Which part of each entry a submodel holds.

    Attributes:
        active: The active channels of all layers, (U,).
        index: For each entry of the graph, the kept positions on its first two axes, in the order in which the
            submodel holds them: small[i, j] = full[index0[i], index1[j]]; None = the whole axis.
        rows: The kept channels of each layer, in that order.
        shapes: Shape of each entry in the submodel.
    """

    active: npt.NDArray[np.bool_]
    index: Mapping[str, Index]
    rows: tuple[Positions, ...]
    shapes: Mapping[str, tuple[int, ...]]


@dataclass(frozen=True)
class Costs:
    """What one network costs.

    Attributes:
        macs: Multiply-accumulates of the convolutions and linear layers, for one sample forward.
        parameters: Trainable numbers.
        activations: Numbers that one sample keeps for the backward pass, each counted once (an estimate).
    """

    macs: int
    parameters: int
    activations: int

    @property
    def bytes(self) -> int:
        """Bytes of the parameters in float32."""
        return 4 * self.parameters


def plan(graph: ChannelGraph, active: npt.ArrayLike) -> Plan:
    """Plan the submodel of some active channels.

    Args:
        graph: The model's graph.
        active: Booleans (U,), the layers' channels one after the other.

    Raises:
        ValueError: If the shape or the type is wrong, or a layer has no active channel.

    Example:
        >>> from fedapp.functional.channels import trace
        >>> model = nn.Module()
        >>> model.features = nn.Sequential(nn.Conv2d(3, 4, 1), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten())
        >>> model.head = nn.Linear(4, 2)
        >>> chosen = plan(trace(model, (3, 8, 8)), [True, False, False, True])
        >>> chosen.shapes["features.0.weight"], chosen.shapes["head.weight"]
        ((2, 3, 1, 1), (2, 2))
    """
    active = _checked(graph, active)
    flowing = flow(graph, active)
    index: dict[str, Index] = {name: (None,) * min(len(shape), 2) for name, shape in graph.entries.items()}
    for node in _weighted(graph):
        read, held = flowing.read(node), flowing.kept[node]
        first = held if node.meta["kind"] == "conv" else read if node.meta["kind"] == "norm" else None
        for name in (f"{node.target}.{suffix}" for suffix in ("weight", "bias", "running_mean", "running_var")):
            if name in index:
                index[name] = tuple(map(_narrowed, graph.entries[name], (first, read)))[: len(index[name])]
    shapes = {name: _cut(shape, index[name]) for name, shape in graph.entries.items()}
    return Plan(active, index, flowing.rows, shapes)


def _checked(graph: ChannelGraph, active: npt.ArrayLike) -> npt.NDArray[np.bool_]:
    mask = np.array(active)
    mask.setflags(write=False)
    if mask.shape != (graph.total,) or mask.dtype != bool:
        raise ValueError(
            f"active must be {graph.total} booleans, one a channel of the {len(graph.layers)} convolutions, got shape "
            f"{mask.shape} of {mask.dtype}"
        )
    for layer, part in zip(graph.layers, graph.slices, strict=True):
        if not mask[part].any():
            raise ValueError(
                f"layer {layer.name} has no active channel of {layer.channels}; keep at least one in every layer"
            )
    return mask


def _weighted(graph: ChannelGraph) -> list[fx.Node]:
    nodes = [node for half in HALVES for node in graph.halves[half].nodes]
    return [node for node in nodes if node.meta["kind"] in ("conv", "norm", "linear")]


def _narrowed(side: int, kept: Positions | None) -> Positions | None:
    """Return the kept positions of an axis, None if they are all of it in their own order."""
    return None if kept is None or np.array_equal(kept, np.arange(side)) else kept


def _cut(shape: tuple[int, ...], index: Index) -> tuple[int, ...]:
    sizes = [side if kept is None else len(kept) for side, kept in zip(shape, index, strict=False)]
    return (*sizes, *shape[len(sizes) :])


def gather(plan: Plan, arrays: Arrays) -> dict[str, npt.NDArray[Any]]:
    """Take the submodel's part out of a full model's arrays; an array that is whole in the plan is not copied.

    Raises:
        ValueError: If an array's name is not in the plan.
    """
    _check_names(plan, arrays)
    return {name: _gathered(array, plan.index[name]) for name, array in arrays.items()}


def _gathered(array: npt.NDArray[Any], index: Index) -> npt.NDArray[Any]:
    for axis, kept in enumerate(index):
        if kept is not None:
            array = array.take(kept, axis=axis)
    return array


def scatter(plan: Plan, small: Arrays, full: Arrays) -> dict[str, npt.NDArray[Any]]:
    """Return copies of a full model's arrays in which the submodel's part is replaced; inverse of :func:`gather`.

    Raises:
        ValueError: If a small array does not fit the plan, or its full array is missing.
    """
    _check_names(plan, small)
    result = {name: array.copy() for name, array in full.items()}
    for name, array in small.items():
        if name not in full or array.shape != plan.shapes[name]:
            raise ValueError(
                f"{name} of shape {array.shape} does not fit its plan {plan.shapes[name]}"
                + ("" if name in full else ", and the full model's array is missing")
            )
        result[name][_selector(plan.index[name], full[name].shape)] = array
    return result


def _check_names(plan: Plan, arrays: Arrays) -> None:
    unknown = [name for name in arrays if name not in plan.index]
    if unknown:
        raise ValueError(f"{unknown[0]} is no entry of the plan; leave out what is not a floating entry of the model")


def _selector(index: Index, shape: tuple[int, ...]) -> Any:
    """Return what selects a plan's part of an array, on its first two axes."""
    axes = [np.arange(side) if kept is None else kept for side, kept in zip(shape, index, strict=False)]
    if all(kept is None for kept in index):
        return ...
    return np.ix_(*axes)


def extract(model: nn.Module, graph: ChannelGraph, plan: Plan) -> nn.Module:
    """Return the compact network of a plan, holding the model's present values of its active channels.

    It has the model's module paths and state-dict names, ``features`` (as wide as what is left of them, unless they
    are pooled to a width of their own) and ``head``, and is in training mode. Module hooks of the model are copied.

    Raises:
        ValueError: If the plan is not of this graph.
    """
    _check_plan(graph, plan)
    state = model.state_dict()
    arrays = {name: _taken(state[name], plan.index[name]) for name in graph.entries}
    for name, tensor in state.items():
        if name not in arrays:
            arrays[name] = tensor.clone()
    return extracted(model, graph, flow(graph, plan.active), arrays)


def _check_plan(graph: ChannelGraph, plan: Plan) -> None:
    if plan.active.shape != (graph.total,) or list(plan.shapes) != list(graph.entries):
        raise ValueError(
            f"the plan holds {len(plan.active)} channels and {len(plan.shapes)} entries, the graph {graph.total} "
            f"and {len(graph.entries)}; plan with the graph of this model"
        )


def _taken(tensor: Tensor, index: Index) -> Tensor:
    for axis, kept in enumerate(index):
        if kept is not None:
            tensor = tensor.index_select(axis, torch.from_numpy(kept).to(tensor.device))
    return tensor.clone() if all(kept is None for kept in index) else tensor


def masked(model: nn.Module, graph: ChannelGraph, plan: Plan) -> Any:
    """Return the full model with its channels masked: m * BN(conv(x)), or m * conv(x) where no BatchNorm follows.

    It shares the model's parameters and buffers and has ``features`` and ``head``. ``hold()`` after an optimiser step
    gives every entry off the plan the value it had when the masked model was made, or at the last ``keep()``;
    otherwise weight decay would shrink what takes no part.

    Raises:
        ValueError: If the plan is not of this graph.
    """
    _check_plan(graph, plan)
    network = with_tensors(model, {id(t): t for t in (*model.parameters(), *model.buffers())})
    flowing = flow(graph, plan.active)
    followed = {layer.name for layer in graph.layers if layer.norm}
    for node in _weighted(graph):
        kept = flowing.kept[node]
        if kept is not None and str(node.target) not in followed:
            _mask(network.get_submodule(str(node.target)), kept)
    base = type(network)
    network.__class__ = type(f"Masked{base.__name__}", (_Holding, base), {})
    network.off_plan = _off_plan(network, plan)
    network.keep()
    return network


def _mask(module: Any, kept: Positions) -> None:
    weight: Any = module.weight if module.weight is not None else module.running_mean
    mask = torch.zeros(len(weight), dtype=weight.dtype, device=weight.device)
    mask[torch.from_numpy(kept)] = 1
    module.register_buffer("channel_mask", mask, persistent=False)
    module.register_forward_hook(_masked_output)


def _masked_output(module: Any, _: Any, output: Tensor) -> Tensor:
    mask: Tensor = module.channel_mask
    return output * mask.to(output.dtype).view(-1, *(1,) * (output.ndim - 2))


def _off_plan(network: nn.Module, plan: Plan) -> dict[str, Tensor]:
    """Return, for each entry that is not whole in the plan, which of its numbers are off the plan."""
    off = {}
    for name, tensor in network.state_dict().items():
        if any(kept is not None for kept in plan.index.get(name, ())):
            outside = np.ones(tuple(tensor.shape), bool)
            outside[_selector(plan.index[name], outside.shape)] = False
            off[name] = torch.from_numpy(outside).to(tensor.device)
    return off


class _Holding(nn.Module):
    """Keeps the entries off a plan as they were sent."""

    off_plan: dict[str, Tensor]
    sent: dict[str, Tensor]

    def keep(self) -> None:
        """Take the present values as what was sent."""
        state = self.state_dict()
        self.sent = {name: state[name].clone() for name in self.off_plan}

    def hold(self) -> None:
        """Give every entry off the plan the value that was sent."""
        state = self.state_dict()
        for name, outside in self.off_plan.items():
            tensor = state[name]
            tensor.copy_(torch.where(outside.to(tensor.device), self.sent[name].to(tensor.device), tensor))


def costs(graph: ChannelGraph, plan: Plan | None) -> Costs:
    """Return what the submodel of a plan costs; None for the full model."""
    shapes = graph.entries if plan is None else plan.shapes
    macs = 0
    for node in _weighted(graph):
        if node.meta["kind"] != "norm":
            weight = shapes[f"{node.target}.weight"]
            macs += math.prod(weight) * math.prod(node.meta["shape"][1:])
    parameters = sum(math.prod(shape) for name, shape in shapes.items() if name in graph.trainable)
    flowing = flow(graph, np.ones(graph.total, bool) if plan is None else plan.active)
    return Costs(macs, parameters, activations(graph, flowing, compact=plan is not None))
