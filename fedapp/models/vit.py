"""torchvision's ViT-B from scratch for small images, with HtFLlib's two-layer head."""

from __future__ import annotations

import math
from functools import partial

from torch import nn
from torchvision import models

from fedapp.config import SettingError
from fedapp.models.split import SplitModel, adapt_channels, without

PATCH_SIDES = {"vit-b-16": 16, "vit-b-32": 32}
HIDDEN_DIM = 768


def build(name: str, num_classes: int, input_shape: tuple[int, int, int], feature_dim: int) -> SplitModel:
    """Build a vision transformer of ``PATCH_SIDES``; arguments as for :func:`fedapp.models.build`.

    Raises:
        SettingError: If images are not square or their side is not a multiple of the patch's.
    """
    channels, height, width = input_shape
    patch = PATCH_SIDES[name]
    if height != width or height % patch:
        raise SettingError(
            f"model {name!r} needs square images with a side divisible by {patch}, got input shape {input_shape}; "
            "resize the images or choose another model"
        )
    maker = {16: models.vit_b_16, 32: models.vit_b_32}[patch]
    network = maker(image_size=height, num_classes=1)
    spread = math.sqrt(1 / (channels * patch**2))  # torchvision's rule: 1 / fan-in
    network.conv_proj = adapt_channels(network.conv_proj, channels, partial(nn.init.trunc_normal_, std=spread))
    head = nn.Sequential(nn.Linear(feature_dim, HIDDEN_DIM), nn.Tanh(), nn.Linear(HIDDEN_DIM, num_classes))
    return SplitModel(without(network, "heads"), head, feature_dim)
