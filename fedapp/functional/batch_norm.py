"""BatchNorm statistics: re-estimated from data, pooled over clients, averaged with the variance between them.

Averaged running statistics do not fit a network of which each client trained other channels. One pass without
gradients re-estimates them: on a device for its own model, or for the common model from the moments that clients send.
Means and variances are pooled by the law of total variance: the moments of the union, exactly.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm


@dataclass(frozen=True, eq=False)
class Moments:
    """What a BatchNorm layer saw.

    Attributes:
        count: Values that each channel was averaged over: samples times positions.
        mean: (C,) float64.
        variance: (C,) float64, of the population: the sum of squares is divided by ``count``.
    """

    count: float
    mean: NDArray[np.float64]
    variance: NDArray[np.float64]


def moments(model: nn.Module, batches: Iterable[Tensor]) -> dict[str, Moments]:
    """Measure what reaches every BatchNorm layer while each layer normalises by its batch.

    One pass of ``model.features`` without gradients. BatchNorm layers are in training mode and everything else in
    evaluation mode: statistics are re-estimated for evaluation, where there is no dropout. A layer to which a batch
    brings a single value a channel (one sample, one position) cannot normalise by it and takes its running statistics
    for this batch; the value counts. Empty batches are skipped. The model's statistics and modes and the random state
    of torch are left as they were.

    Args:
        model: A model with ``features``; its BatchNorm layers with running statistics are measured.
        batches: Images (B, channels, height, width), on the device of the model.

    Returns:
        Path of a layer -> its moments over all batches. Layers that ``features`` does not call are left out.

    Raises:
        ValueError: If there is no image.

    Example:
        >>> model = nn.Module()
        >>> model.features = nn.BatchNorm1d(1)
        >>> seen = moments(model, [torch.tensor([[1.0], [3.0]]), torch.tensor([[5.0]])])["features"]
        >>> seen.count, seen.mean.tolist(), seen.variance.round(4).tolist()
        (3.0, [3.0], [2.6667])
    """
    layers = _layers(model)
    seen: dict[str, list[Moments]] = {path: [] for path in layers}
    images = 0
    with torch.no_grad(), torch.random.fork_rng(_devices(model)), _restored(model, layers), _observed(layers, seen):
        for batch in batches:
            images += len(batch)
            if len(batch):
                model.features(batch)  # type: ignore[operator]
    if images == 0:
        raise ValueError("BatchNorm statistics need at least one image to be estimated from, got none")
    return {path: _pool(parts) for path, parts in seen.items() if parts}


def pooled(parts: Sequence[Mapping[str, Moments]]) -> dict[str, Moments]:
    """Pool the moments of several clients: those of all their data together.

    Args:
        parts: One mapping a client, with equal paths and, under one path, equally many channels.

    Returns:
        Path -> moments, in the order of the first client.

    Raises:
        ValueError: If there is no client or they do not agree on the layers.

    Example:
        >>> one, other = Moments(1, np.array([2.0]), np.array([0.0])), Moments(3, np.array([6.0]), np.array([4.0]))
        >>> both = pooled([{"bn": one}, {"bn": other}])["bn"]
        >>> both.count, both.mean.tolist(), both.variance.tolist()
        (4.0, [5.0], [6.0])
    """
    if not parts:
        raise ValueError("moments can be pooled of at least one client, got none")
    for client, part in enumerate(parts):
        if part.keys() != parts[0].keys():
            differing = sorted(part.keys() ^ parts[0].keys())
            raise ValueError(f"all clients must measure the same layers; client {client} and client 0: {differing}")
    return {path: _pool([part[path] for part in parts]) for path in parts[0]}


def install(model: nn.Module, measured: Mapping[str, Moments]) -> None:
    """Write moments into the running statistics of the model, in place.

    As in torch, the running variance is the unbiased one, variance * count / (count - 1). A layer whose count is below
    2 keeps its statistics: one value tells nothing of a spread.

    Args:
        model: A model that has a BatchNorm layer at every path; its other layers are left alone.
        measured: Path -> moments.

    Raises:
        ValueError: If there is no such layer, or its channels do not fit.

    Example:
        >>> layer = nn.BatchNorm1d(1)
        >>> install(layer, {"": Moments(4, np.array([5.0]), np.array([6.0]))})
        >>> layer.running_mean.tolist(), layer.running_var.tolist()
        ([5.0], [8.0])
    """
    layers = _layers(model)
    for path, part in measured.items():
        if path not in layers or part.mean.shape != (layers[path].num_features,):
            size = f"{layers[path].num_features} channels" if path in layers else f"no such layer among {list(layers)}"
            raise ValueError(f"moments of {path!r} must fit the model, got {part.mean.shape} for {size}")
    for path, part in measured.items():
        mean, variance = layers[path].running_mean, layers[path].running_var
        if part.count >= 2 and mean is not None and variance is not None:
            mean.copy_(torch.from_numpy(part.mean))
            variance.copy_(torch.from_numpy(part.variance * (part.count / (part.count - 1))))


def total_variance(
    means: NDArray[Any], variances: NDArray[Any], weights: NDArray[Any]
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Average means and variances of K clients channel by channel, with the variance between the clients.

    m = sum_k n_k m_k / sum_k n_k and v = sum_k n_k (v_k + (m_k - m)^2) / sum_k n_k (law of total variance), over the
    clients that have the channel. The plain mean of variances leaves the second term out, and is too small as soon as
    the clients' means differ.

    Args:
        means: (K, C); NaN where a client does not have the channel.
        variances: (K, C), >= 0; NaN at the same places.
        weights: (K,) n_k > 0.

    Returns:
        m and v, (C,) each; NaN where no client has the channel.

    Raises:
        ValueError: If shapes do not fit, a weight or variance is bad, or a value is infinite or NaN in one of the two.

    Example:
        >>> m, v = total_variance(np.array([[2.0], [6.0]]), np.array([[0.0], [4.0]]), np.array([1.0, 3.0]))
        >>> m.tolist(), v.tolist()
        ([5.0], [6.0])
    """
    means, variances, weights = (np.asarray(array, dtype=np.float64) for array in (means, variances, weights))
    _check(means, variances, weights)
    active = ~np.isnan(means)
    counts = np.where(active, weights[:, np.newaxis], 0.0)  # (K, C)
    total = np.where(active.any(axis=0), counts.sum(axis=0), np.nan)
    mean = (counts * np.where(active, means, 0.0)).sum(axis=0) / total
    spread = np.where(active, variances + (means - mean) ** 2, 0.0)
    return mean, (counts * spread).sum(axis=0) / total


def _pool(parts: Sequence[Moments]) -> Moments:
    counts = np.array([part.count for part in parts])
    means, variances = (np.stack([getattr(part, field) for part in parts]) for field in ("mean", "variance"))
    return Moments(float(counts.sum()), *total_variance(means, variances, counts))


def _check(means: NDArray[np.float64], variances: NDArray[np.float64], weights: NDArray[np.float64]) -> None:
    if means.ndim != 2 or variances.shape != means.shape or weights.shape != means.shape[:1]:
        raise ValueError(
            "means and variances must be (clients, channels) and weights (clients,), got "
            f"{means.shape}, {variances.shape} and {weights.shape}"
        )
    if not (np.isfinite(weights).all() and (weights > 0).all()):
        raise ValueError(f"weights must be finite and > 0, got {weights.tolist()}")
    if np.isinf(means).any() or np.isinf(variances).any() or (variances < 0).any():
        raise ValueError("means must be finite and variances finite and >= 0; leave the client out that sent others")
    if (np.isnan(means) != np.isnan(variances)).any():
        raise ValueError("a channel that a client does not have must be NaN in both means and variances")


def _layers(model: nn.Module) -> dict[str, _BatchNorm]:
    """Return the BatchNorm layers with running statistics by their path."""
    return {
        path: module
        for path, module in model.named_modules()
        if isinstance(module, _BatchNorm) and module.running_mean is not None and module.running_var is not None
    }


def _devices(model: nn.Module) -> list[torch.device]:
    """Return the devices whose random state has to be kept beside the processor's."""
    return sorted({p.device for p in model.parameters() if p.device.type == "cuda"}, key=str)


@contextmanager
def _restored(model: nn.Module, layers: Mapping[str, _BatchNorm]) -> Iterator[None]:
    """Put back modes, momenta and statistics, also after an error."""
    modes = {module: module.training for module in model.modules()}
    kept = {layer: (layer.momentum, [buffer.clone() for buffer in layer.buffers()]) for layer in layers.values()}
    try:
        model.eval()
        yield
    finally:
        for module, training in modes.items():
            module.training = training
        for layer, (momentum, buffers) in kept.items():
            layer.momentum = momentum
            for buffer, before in zip(layer.buffers(), buffers, strict=True):
                buffer.copy_(before)


@contextmanager
def _observed(layers: Mapping[str, _BatchNorm], seen: Mapping[str, list[Moments]]) -> Iterator[None]:
    """Let every layer note the moments of each batch that it normalises by."""
    hooks = []
    for path, layer in layers.items():
        observer = _Observer(layer, seen[path])
        hooks += [layer.register_forward_pre_hook(observer.before), layer.register_forward_hook(observer.after)]
    try:
        yield
    finally:
        for hook in hooks:
            hook.remove()


class _Observer:
    """Reads a batch's moments off the layer itself: with a momentum of 1, its running statistics are the batch's."""

    def __init__(self, layer: _BatchNorm, seen: list[Moments]) -> None:
        self.seen = seen
        self.received = [buffer.clone() for buffer in layer.buffers()]

    def before(self, layer: nn.Module, inputs: tuple[Tensor, ...]) -> None:
        """Choose what the layer normalises by."""
        assert isinstance(layer, _BatchNorm)
        layer.momentum = 1.0
        layer.training = inputs[0].numel() > layer.num_features
        if layer.training:
            layer.reset_running_stats()  # 0 * NaN would survive a momentum of 1
        else:
            for buffer, received in zip(layer.buffers(), self.received, strict=True):
                buffer.copy_(received)

    def after(self, layer: nn.Module, inputs: tuple[Tensor, ...], _: Tensor) -> None:
        """Note the moments of the batch."""
        assert isinstance(layer, _BatchNorm)
        count = inputs[0].numel() // layer.num_features
        if count == 1:
            mean = _numpy(inputs[0].reshape(-1))
            self.seen.append(Moments(1.0, mean, np.zeros_like(mean)))
        elif layer.running_mean is not None and layer.running_var is not None:
            unbiased = _numpy(layer.running_var)
            self.seen.append(Moments(float(count), _numpy(layer.running_mean), unbiased * ((count - 1) / count)))


def _numpy(tensor: Tensor) -> NDArray[np.float64]:
    array: NDArray[np.float64] = tensor.detach().cpu().to(torch.float64, copy=True).numpy()
    return array
