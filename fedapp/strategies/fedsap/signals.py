"""What a FedSAP client measures: how channels respond and learn (Eq. 5, 6), and its domain's signal (Eq. 4)."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

from fedapp.client_update import LabelledSamples, in_order
from fedapp.config import SettingError
from fedapp.functional.channels import ChannelGraph
from fedapp.functional.submodel import Plan

Floats = npt.NDArray[np.float32]


class ActivationMeter:
    """Mean magnitude of every held channel's activation over samples and positions (r of Eq. 5, μ of Eq. 6).

    Args:
        model: The client's network, compact or masked.
        graph: The full model's channels.
        plan: The channels held.
        site: "post-relu", "post-bn" or "pre-bn".
        compact: Whether ``model`` holds the planned channels alone.
    """

    def __init__(self, model: nn.Module, graph: ChannelGraph, plan: Plan, site: str, compact: bool) -> None:
        self.model = model
        self.site = site
        self.places = [layer.name if site == "pre-bn" else layer.norm or layer.name for layer in graph.layers]
        self.rows = [None if compact else torch.from_numpy(rows) for rows in plan.rows]
        self.sums: list[Any] = [0.0] * len(self.places)
        self.counts = [0] * len(self.places)

    @contextmanager
    def attached(self) -> Iterator[None]:
        """Measure every forward pass while the context lasts."""
        handles = [
            self.model.get_submodule(place).register_forward_hook(self._hook(position))
            for position, place in enumerate(self.places)
        ]
        try:
            yield
        finally:
            for handle in handles:
                handle.remove()

    def _hook(self, position: int) -> Callable[[nn.Module, Any, Tensor], None]:
        rows = self.rows[position]

        def measure(module: nn.Module, inputs: Any, output: Tensor) -> None:
            values = output.detach() if rows is None else output.detach()[:, rows.to(output.device)]
            magnitude = values.clamp(min=0) if self.site == "post-relu" else values.abs()
            dims = [0, *range(2, values.ndim)]
            self.sums[position] = self.sums[position] + magnitude.sum(dim=dims, dtype=torch.float64)
            self.counts[position] += values.numel() // values.shape[1]

        return measure

    def means(self) -> Floats:
        """Return the means of all held channels, layer after layer in the plan's order, float32."""
        parts = [total / count for total, count in zip(self.sums, self.counts, strict=True)]
        return torch.cat(parts).float().cpu().numpy()


class GradientMeter:
    """Mean magnitude of every held channel's weight gradient over batches (h of Eq. 5).

    Args:
        model: The client's network, compact or masked.
        graph: The full model's channels.
        plan: The channels held.
        kind: "l2" (norm over the channel's weights / sqrt(their number)), "mean-abs", "abs-mean" or "taylor" (|mean
            of weight times gradient|, with the weight as the step left it).
        compact: Whether ``model`` holds the planned channels alone.
    """

    def __init__(self, model: nn.Module, graph: ChannelGraph, plan: Plan, kind: str, compact: bool) -> None:
        self.weights: list[Any] = [model.get_submodule(layer.name).weight for layer in graph.layers]
        self.kept = [_kept(plan, f"{layer.name}.weight", compact) for layer in graph.layers]
        self.kind = kind
        self.sums: list[Any] = [0.0] * len(self.weights)
        self.steps = 0

    @torch.no_grad()
    def observe(self) -> None:
        """Add the gradients of the last backward pass."""
        self.steps += 1
        for position, (weight, kept) in enumerate(zip(self.weights, self.kept, strict=True)):
            gradient = _part(weight.grad, weight, kept).flatten(1)
            if self.kind == "taylor":
                gradient = gradient * _part(weight, weight, kept).flatten(1)
            magnitude = {
                "l2": lambda g: g.norm(dim=1) / g.shape[1] ** 0.5,
                "mean-abs": lambda g: g.abs().mean(dim=1),
            }.get(self.kind, lambda g: g.mean(dim=1).abs())(gradient)
            self.sums[position] = self.sums[position] + magnitude

    def means(self) -> Floats:
        """Return the means of all held channels, layer after layer in the plan's order, float32."""
        return (torch.cat(self.sums) / self.steps).float().cpu().numpy()


def _kept(plan: Plan, entry: str, compact: bool) -> tuple[Any, Any]:
    """Return the planned rows and columns of a weight, in the plan's order; None = all, as they lie."""
    first, second = (None, None) if compact else plan.index[entry][:2]
    return tuple(None if part is None else torch.from_numpy(part) for part in (first, second))  # type: ignore[return-value]


def _part(values: Tensor | None, weight: Tensor, kept: tuple[Any, Any]) -> Tensor:
    """Return the planned part of a convolution's values (O, I, ...), zeros if there are none."""
    if values is None:
        values = torch.zeros_like(weight)
    for axis, index in enumerate(kept):
        if index is not None:
            values = values.index_select(axis, index.to(values.device))
    return values


@torch.no_grad()
def pass_over(features: Callable[[Tensor], Any], samples: LabelledSamples, device: torch.device) -> None:
    """Show all samples to a network."""
    for x, _ in in_order(samples, device):
        features(x)


# ---- the domain's signal ---------------------------------------------------------------------------


def signal_layers(graph: ChannelGraph, signal: str) -> list[int]:
    """Return the layers whose gradients or statistics are the signal, by their numbers.

    Raises:
        SettingError: If the model has no layer of the stage that the signal names.
    """
    if signal in ("bn_stats", "conv1_grad"):
        return [0]
    stage = signal.removesuffix("_grad")
    found = [number for number, layer in enumerate(graph.layers) if stage in layer.name.split(".")]
    if not found:
        names = ", ".join(layer.name for layer in graph.layers)
        raise SettingError(
            f"dga.signal = {signal} needs convolutions in a submodule called {stage!r}, the model has {names}; use "
            "bn_stats or conv1_grad"
        )
    return found


class _SeenError(Exception):
    """Ends a forward pass behind the layer that was asked for."""


def first_layer_statistics(
    model: Any, layer: str, weight: Tensor, bias: Tensor | None, samples: LabelledSamples
) -> Floats:
    """Return mean and standard deviation (2·C,) of every channel of the first convolution over samples and positions.

    Args:
        model: The client's network; whatever it does to its inputs before that convolution is done here, too.
        layer: Path of the convolution; its own weights are not used.
        weight: Weights (C, I, k, k).
        bias: Biases (C,), if it has them.
        samples: The samples.
    """
    totals = torch.zeros(2, len(weight), dtype=torch.float64, device=weight.device)
    count = 0

    def measure(conv: Any, inputs: tuple[Tensor, ...]) -> None:
        nonlocal count
        y = conv._conv_forward(inputs[0], weight, bias).transpose(0, 1).flatten(1).double()
        totals.add_(torch.stack([y.sum(dim=1), y.square().sum(dim=1)]))
        count += y.shape[1]
        raise _SeenError

    def features(x: Tensor) -> None:
        with suppress(_SeenError):
            model.features(x)

    handle = model.get_submodule(layer).register_forward_pre_hook(measure)
    try:
        pass_over(features, samples, weight.device)
    finally:
        handle.remove()
    mean, square = totals / count
    deviation = (square - mean.square()).clamp(min=0).sqrt()
    return torch.cat([mean, deviation]).float().cpu().numpy()


def running_statistics(norm: Any, rows: Tensor | None) -> Floats:
    """Return running mean and standard deviation of a BatchNorm layer's held channels, (2·held,)."""
    parts = [norm.running_mean, norm.running_var.clamp(min=0).sqrt()]
    parts = [part if rows is None else part[rows.to(part.device)] for part in parts]
    return torch.cat(parts).float().cpu().numpy()


def mean_gradients(
    loss: Callable[[Tensor, Tensor], Tensor],
    weights: Sequence[tuple[nn.Parameter, tuple[Any, Any]]],
    samples: LabelledSamples,
    device: torch.device,
) -> Floats:
    """Return the gradient of the mean loss over all samples for the planned part of some weights, flat and joined.

    Weights that do not train have one, too.
    """
    measured = [weight for weight, _ in weights]
    frozen = [weight for weight in measured if not weight.requires_grad]
    totals = [torch.zeros_like(weight) for weight in measured]
    for weight in frozen:
        weight.requires_grad_(True)
    for x, y in in_order(samples, device):
        found = torch.autograd.grad(loss(x, y), measured)
        totals = [total + len(y) * gradient for total, gradient in zip(totals, found, strict=True)]
    for weight in frozen:
        weight.requires_grad_(False)
    parts = [_part(t, w, kept).flatten() for t, (w, kept) in zip(totals, weights, strict=True)]
    return (torch.cat(parts) / max(len(samples.y), 1)).float().cpu().numpy()


def planned_weights(
    model: nn.Module, graph: ChannelGraph, plan: Plan, layers: Sequence[int], compact: bool
) -> list[tuple[nn.Parameter, tuple[Any, Any]]]:
    """Return the weights of some layers beside their planned rows and columns."""
    names = [graph.layers[number].name for number in layers]
    weights: list[Any] = [model.get_submodule(name).weight for name in names]
    return [(weight, _kept(plan, f"{name}.weight", compact)) for weight, name in zip(weights, names, strict=True)]


def length(params: Any, graph: ChannelGraph, plan: Plan) -> int:
    """Return how many numbers the signal of a client with this plan has."""
    if params.signal == "bn_stats":
        return 2 * (graph.layers[0].channels if params.at == "received-model" else len(plan.rows[0]))
    names = [f"{graph.layers[number].name}.weight" for number in signal_layers(graph, params.signal)]
    return sum(int(np.prod(plan.shapes[name])) for name in names)


def laid_out(signal: Floats, params: Any, graph: ChannelGraph, plan: Plan) -> npt.NDArray[np.float64]:
    """Return a client's signal laid out over the full model's entries (n,), NaN where it held none of them."""
    if params.signal == "bn_stats":
        full = np.full((2, graph.layers[0].channels), np.nan)
        full[:, slice(None) if params.at == "received-model" else plan.rows[0]] = signal.reshape(2, -1)
        return full.ravel()
    parts, start = [], 0
    for number in signal_layers(graph, params.signal):
        name = f"{graph.layers[number].name}.weight"
        full, shape = np.full(graph.entries[name], np.nan), plan.shapes[name]
        axes = [np.arange(s) if kept is None else kept for s, kept in zip(full.shape, plan.index[name], strict=False)]
        size = int(np.prod(shape))
        full[np.ix_(*axes)] = signal[start : start + size].reshape(shape)
        start += size
        parts.append(full.ravel())
    return np.concatenate(parts)
