"""Plain convolutional networks without BatchNorm: HtFLlib's FedAvgCNN and a smaller one for demos."""

from __future__ import annotations

from torch import nn

from fedapp.models.split import SplitModel, initialise_for_relu, require_side, with_linear_head


def build(name: str, num_classes: int, input_shape: tuple[int, int, int], feature_dim: int) -> SplitModel:
    """Build "fedavgcnn" or "small-cnn"; arguments as for :func:`fedapp.models.build`."""
    least, extractor = {"fedavgcnn": (16, _fedavg_extractor), "small-cnn": (1, _small_extractor)}[name]
    require_side(name, input_shape, least)
    return with_linear_head(extractor(*input_shape), num_classes, feature_dim)


def _fedavg_extractor(channels: int, height: int, width: int) -> nn.Sequential:
    """Return two unpadded 5x5 convolutions, each halved by pooling, and a hidden layer of 512."""
    # A side of n pixels becomes n - 4, half of it, that less 4, and half of it again.
    rows, columns = (((side - 4) // 2 - 4) // 2 for side in (height, width))
    return nn.Sequential(
        nn.Conv2d(channels, 32, 5),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Conv2d(32, 64, 5),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Linear(64 * rows * columns, 512),
        nn.ReLU(),
    )


def _small_extractor(channels: int, height: int, width: int) -> nn.Sequential:
    """Return two strided convolutions and a hidden layer of 128."""
    rows, columns = (-(-side // 4) for side in (height, width))  # halved twice, rounded up
    extractor = nn.Sequential(
        nn.Conv2d(channels, 16, 5, stride=2, padding=2),
        nn.ReLU(),
        nn.Conv2d(16, 32, 3, stride=2, padding=1),
        nn.ReLU(),
        nn.Flatten(),
        nn.Linear(32 * rows * columns, 128),
        nn.ReLU(),
    )
    initialise_for_relu(extractor, "fan_in")
    return extractor
