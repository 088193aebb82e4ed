"""What the families share: a network split into features and head, and the pooling of features."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import TYPE_CHECKING, Literal

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from fedapp.config import SettingError

if TYPE_CHECKING:
    from jaxtyping import Float, Shaped


class FeaturePool(nn.AdaptiveAvgPool1d):
    """``AdaptiveAvgPool1d`` over a feature vector, with a backward pass that is deterministic on GPUs too.

    The windows of adaptive pooling from n to D repeat gcd(n, D) times, so pooling is one small matrix product;
    torch's own kernel adds gradients atomically when windows overlap or repeat, and thus refuses to run under
    ``torch.use_deterministic_algorithms``.

    Example:
        >>> FeaturePool(4)(torch.tensor([[1.0, 3.0]]))
        tensor([[1., 1., 3., 3.]])
        >>> FeaturePool(1)(torch.tensor([[1.0, 3.0]]))
        tensor([[2.]])
    """

    def forward(self, input: Float[Tensor, "B n"]) -> Float[Tensor, "B D"]:
        """Return the pooled features."""
        native_dim, feature_dim = input.shape[-1], int(self.output_size)  # type: ignore[arg-type]
        periods = math.gcd(native_dim, feature_dim)
        identity = torch.eye(native_dim // periods, dtype=input.dtype, device=input.device)
        windows = F.adaptive_avg_pool1d(identity, feature_dim // periods)  # (n / periods, D / periods)
        return (input.reshape(-1, periods, len(windows)) @ windows).flatten(1)


class SplitModel(nn.Module):
    """A network in two halves: ``head(features(x))``.

    Args:
        extractor: Maps samples (B, ...) to native features (B, n).
        head: Maps features (B, D) to logits (B, C).
        feature_dim: D; the native features are pooled to it.
    """

    def __init__(self, extractor: nn.Module, head: nn.Module, feature_dim: int) -> None:
        super().__init__()
        self.extractor = extractor
        self.pool = FeaturePool(feature_dim)
        self.head = head

    def features(self, x: Shaped[Tensor, "B ..."]) -> Float[Tensor, "B D"]:
        """Return the pooled features of samples."""
        pooled: Tensor = self.pool(self.extractor(x))
        return pooled

    def forward(self, x: Shaped[Tensor, "B ..."]) -> Float[Tensor, "B C"]:
        """Return the logits of samples."""
        logits: Tensor = self.head(self.features(x))
        return logits


def with_linear_head(extractor: nn.Module, num_classes: int, feature_dim: int) -> SplitModel:
    """Return a model whose head is one linear layer."""
    return SplitModel(extractor, nn.Linear(feature_dim, num_classes), feature_dim)


def without(network: nn.Module, classifier: str) -> nn.Module:
    """Return the network with its submodule ``classifier`` replaced by the identity, in place."""
    setattr(network, classifier, nn.Identity())
    return network


def initialise_for_relu(network: nn.Module, mode: Literal["fan_in", "fan_out"]) -> None:
    """Draw the weights of convolutions and linear layers from He's normal distribution, in place."""
    for module in network.modules():
        if isinstance(module, nn.Conv2d | nn.Linear):
            nn.init.kaiming_normal_(module.weight, mode=mode, nonlinearity="relu")


def require_side(name: str, input_shape: tuple[int, int, int], least: int) -> None:
    """Check that images are large enough for a model.

    Raises:
        SettingError: If the height or the width is below ``least``.

    Example:
        >>> require_side("fedavgcnn", (3, 8, 8), 16)
        Traceback (most recent call last):
        fedapp.settings.SettingError: model 'fedavgcnn' needs images of at least 16x16, got input shape (3, 8, 8); ...
    """
    if min(input_shape[1:]) < least:
        raise SettingError(
            f"model {name!r} needs images of at least {least}x{least}, got input shape {input_shape}; "
            "choose another model or larger images"
        )


def adapt_channels(first: nn.Conv2d, channels: int, initialise: Callable[[Tensor], object]) -> nn.Conv2d:
    """Return a first convolution like ``first`` for images of ``channels`` channels.

    Args:
        first: A network's first convolution; returned as it is if it takes so many channels.
        channels: Channels of the images.
        initialise: Fills the new weight in place, by the network's own rule; the bias becomes 0.
    """
    if first.in_channels == channels:
        return first
    options = {name: getattr(first, name) for name in ("kernel_size", "stride", "padding")}
    adapted = nn.Conv2d(channels, first.out_channels, bias=first.bias is not None, **options)
    initialise(adapted.weight)
    if adapted.bias is not None:
        nn.init.zeros_(adapted.bias)
    return adapted
