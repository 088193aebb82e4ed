"""How channels flow through a convolutional network: traced once, for physically small submodels under any masks.

A channel of a convolution that has been dropped is exactly 0 behind its BatchNorm, and stays 0 through everything
that is allowed here. What cannot promise that is refused by name.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import fx, nn

from fedapp.functional._survey import HALVES, WAY_OUT, Found, Survey, UnprunableError, on_meta, refuse_tied, traced

__all__ = ["COUPLINGS", "ChannelGraph", "Layer", "UnprunableError", "trace"]

COUPLINGS = ("none", "shortcut", "stage")


@dataclass(frozen=True)
class Layer:
    """One convolution, whose output channels can be dropped.

    Attributes:
        name: Its module path in the full model.
        channels: C_l, its output channels.
        norm: Module path of the BatchNorm that alone reads it; "" if there is none.
        entries: The state-dict entries that a channel owns along axis 0: the convolution's and the BatchNorm's.
    """

    name: str
    channels: int
    norm: str
    entries: tuple[str, ...]


@dataclass(frozen=True, eq=False)
class ChannelGraph:
    """How channels flow through a model: what planning, costs and execution need.

    Attributes:
        layers: The L convolutions in forward order.
        entries: Shape of every floating state-dict entry of the full model, in the order of its state dict.
        trainable: The entries that are parameters, not buffers.
        streams: The layers that are added up in one residual stream, each layer in exactly one set.
        pinned: The streams (by position) to which something is added that no mask reaches.
        meeting: The pairs of layers that meet directly at one addition.
        halves: The traced ``features`` and ``head``.
    """

    layers: tuple[Layer, ...]
    entries: Mapping[str, tuple[int, ...]]
    trainable: frozenset[str]
    streams: tuple[tuple[int, ...], ...]
    pinned: frozenset[int]
    meeting: tuple[tuple[int, int], ...]
    halves: Mapping[str, fx.Graph]

    @property
    def total(self) -> int:
        """U, the number of all channels."""
        return sum(layer.channels for layer in self.layers)

    @property
    def slices(self) -> tuple[slice, ...]:
        """Where each layer's channels lie in a flat array (U,)."""
        ends, end = [], 0
        for layer in self.layers:
            end += layer.channels
            ends.append(end)
        return tuple(slice(end - layer.channels, end) for end, layer in zip(ends, self.layers, strict=True))

    def coupled(self, coupling: str) -> tuple[tuple[int, ...], ...]:
        """Return the sets of layers (by position) that share one mask, every layer in exactly one set, in order.

        Args:
            coupling: "none": each layer by itself; "shortcut": a projection shortcut with the last convolution of
                its block, i.e. two convolutions that meet directly at one addition; "stage": all convolutions that
                write one residual stream, which leaves an ordinary narrower network.

        Raises:
            ValueError: If the coupling is unknown.
        """
        if coupling not in COUPLINGS:
            raise ValueError(f"coupling must be one of {', '.join(COUPLINGS)}, got {coupling!r}")
        if coupling == "stage":
            return self.streams
        return _joined(len(self.layers), self.meeting if coupling == "shortcut" else ())


def trace(model: nn.Module, input_shape: tuple[int, ...]) -> ChannelGraph:
    """Trace how channels flow through a model; the model and the global random state stay as they are.

    Args:
        model: A module with ``features(x) -> (B, D)`` and ``head(z) -> (B, C)``, as methods or submodules.
        input_shape: Shape of one input, (channels, height, width).

    Returns:
        The graph of its convolutions. Linear layers keep all their rows; their columns follow what they read.

    Raises:
        UnprunableError: If there is no convolution, or what is done with the channels of one cannot be pruned:
            grouped and transposed convolutions, concatenation, operations that are not known to keep zeros, control
            flow in Python that depends on the data. Names the layer.

    Example:
        >>> model = nn.Module()
        >>> model.features = nn.Sequential(nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.ReLU(), nn.Flatten())
        >>> model.head = nn.Linear(8 * 36, 10)
        >>> graph = trace(model, (3, 8, 8))
        >>> [(layer.name, layer.channels, layer.norm) for layer in graph.layers]
        [('features.0', 8, 'features.1')]
    """
    refuse_tied(model)
    survey = Survey(on_meta(model))
    value: Any = torch.empty(2, *input_shape, device="meta")
    graphs = {}
    before: fx.Node | None = None
    for half in HALVES:
        graphs[half] = traced(model, half)
        before, value = survey.walk(graphs[half], before, value)
    found = survey.found
    if not found.convs:
        raise UnprunableError(f"{type(model).__name__} has no Conv2d whose channels could be dropped; {WAY_OUT}")
    if before is not None and before.meta["writers"]:
        last = found.convs[max(before.meta["writers"])].target
        raise UnprunableError(f"the class scores come from convolution {last} itself; end the head in a Linear layer")
    return _assemble(model, found, graphs)


def _assemble(model: nn.Module, found: Found, graphs: Mapping[str, fx.Graph]) -> ChannelGraph:
    entries = {name: tuple(t.shape) for name, t in model.state_dict().items() if t.is_floating_point()}
    layers = []
    for node in found.convs:
        readers = list(node.users)
        norm = str(readers[0].target) if len(readers) == 1 and readers[0].meta["kind"] == "norm" else ""
        own = [name for name in entries if name.rpartition(".")[0] in {str(node.target), norm or str(node.target)}]
        layers.append(Layer(str(node.target), node.meta["shape"][0], norm, tuple(own)))
    streams = _joined(len(layers), tuple((min(s), layer) for s, _ in found.additions for layer in s))
    pinned = {min(writers) for writers, dense in found.additions if dense}
    return ChannelGraph(
        layers=tuple(layers),
        entries=entries,
        trainable=frozenset(name for name, _ in model.named_parameters()),
        streams=streams,
        pinned=frozenset(i for i, stream in enumerate(streams) if pinned & set(stream)),
        meeting=tuple(found.meeting),
        halves=graphs,
    )


def _joined(count: int, pairs: tuple[tuple[int, int], ...]) -> tuple[tuple[int, ...], ...]:
    """Return the sets into which pairs join the numbers below ``count``."""
    sets = {i: {i} for i in range(count)}
    for a, b in pairs:
        union = sets[a] | sets[b]
        sets.update(dict.fromkeys(union, union))
    return tuple(tuple(sorted(members)) for i, members in sets.items() if min(members) == i)
