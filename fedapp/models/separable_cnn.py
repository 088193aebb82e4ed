"""A small depthwise-separable network with BatchNorm, for demos and weak devices."""

from __future__ import annotations

from torch import nn

from fedapp.models.split import SplitModel, with_linear_head

# (in channels, out channels, stride) of each separable convolution after the stem.
BLOCKS = ((16, 32, 2), (32, 64, 2), (64, 128, 2))


def build(name: str, num_classes: int, input_shape: tuple[int, int, int], feature_dim: int) -> SplitModel:
    """Build "separable-cnn"; arguments as for :func:`fedapp.models.build`."""
    layers = _activated(nn.Conv2d(input_shape[0], BLOCKS[0][0], 3, stride=2, padding=1, bias=False))
    for in_channels, channels, stride in BLOCKS:
        depthwise = nn.Conv2d(in_channels, in_channels, 3, stride, padding=1, groups=in_channels, bias=False)
        layers += _activated(depthwise) + _activated(nn.Conv2d(in_channels, channels, 1, bias=False))
    extractor = nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten())
    return with_linear_head(extractor, num_classes, feature_dim)


def _activated(convolution: nn.Conv2d) -> list[nn.Module]:
    return [convolution, nn.BatchNorm2d(convolution.out_channels), nn.ReLU()]
