"""Multilayer perceptrons on the flat sample: for demos, for bags of words, for tables."""

from __future__ import annotations

import math
from dataclasses import dataclass
from itertools import pairwise

from torch import nn

from fedapp.models.split import SplitModel, initialise_for_relu, with_linear_head


@dataclass(frozen=True)
class Layout:
    """What tells one perceptron from another.

    Attributes:
        widths: Units of each layer; the last one's are the native features. A ReLU follows each.
        he: Whether weights start from He's normal, fan-in initialisation; else from torch's default.
    """

    widths: tuple[int, ...]
    he: bool = True


LAYOUTS = {
    "mlp": Layout((256, 128)),
    # HtFLlib's AmazonMLPs: 100 features after the hidden layers that the name tells.
    "bow-linear": Layout((100,), he=False),
    "bow-200": Layout((200, 100), he=False),
    "bow-500": Layout((500, 100), he=False),
    "bow-1000-500": Layout((1000, 500, 100), he=False),
    "bow-1000-500-200": Layout((1000, 500, 200, 100), he=False),
    "tabular-wide": Layout((256,)),
    "tabular-medium": Layout((128, 128)),
    "tabular-deep": Layout((64, 64, 64, 64)),
}


def build(name: str, num_classes: int, input_shape: tuple[int, ...], feature_dim: int) -> SplitModel:
    """Build a perceptron of ``LAYOUTS``; arguments as for :func:`fedapp.models.build`."""
    layout = LAYOUTS[name]
    extractor = nn.Sequential(nn.Flatten())
    for inputs, units in pairwise((math.prod(input_shape), *layout.widths)):
        extractor.extend([nn.Linear(inputs, units), nn.ReLU()])
    if layout.he:
        initialise_for_relu(extractor, "fan_in")
    return with_linear_head(extractor, num_classes, feature_dim)
