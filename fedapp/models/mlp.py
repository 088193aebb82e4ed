"""A multilayer perceptron on the flat image."""

from __future__ import annotations

import math

from torch import nn

from fedapp.models.split import SplitModel, initialise_for_relu, with_linear_head


def build(name: str, num_classes: int, input_shape: tuple[int, int, int], feature_dim: int) -> SplitModel:
    """Build "mlp"; arguments as for :func:`fedapp.models.build`."""
    extractor = nn.Sequential(
        nn.Flatten(), nn.Linear(math.prod(input_shape), 256), nn.ReLU(), nn.Linear(256, 128), nn.ReLU()
    )
    initialise_for_relu(extractor, "fan_in")
    return with_linear_head(extractor, num_classes, feature_dim)
