"""Residual networks of BasicBlocks: HtFLlib's ResNet-4 to 10, FedSAP's ResNets with a CIFAR stem, and a small one.

Submodules carry torchvision's names (``conv1``, ``bn1``, ``layer1.0.conv1``, ...).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from torch import Tensor, nn

from fedapp.models.split import SplitModel, initialise_for_relu, with_linear_head

if TYPE_CHECKING:
    from jaxtyping import Float


@dataclass(frozen=True)
class Layout:
    """What tells one network of this family from another; the defaults are torchvision's (the ImageNet stem).

    Attributes:
        widths: Channels of each stage; stages after the first halve the image.
        blocks: BasicBlocks in each stage.
        kernel: Side of the stem's kernel.
        stride: Stride of the stem.
        maxpool: Whether 3x3 max pooling with stride 2 follows the stem.
        fan_out: Whether convolutions start from He's normal, fan-out initialisation; else from torch's default.
    """

    widths: tuple[int, ...]
    blocks: int = 1
    kernel: int = 7
    stride: int = 2
    maxpool: bool = True
    fan_out: bool = True


_WIDTHS = (64, 128, 256, 512)
LAYOUTS = {
    "resnet4": Layout(_WIDTHS[:1]),
    "resnet6": Layout(_WIDTHS[:2]),
    "resnet8": Layout(_WIDTHS[:3]),
    "resnet10": Layout(_WIDTHS),
    # As in the public code FedSAP builds on, down to torch's default initialisation.
    "resnet10-cifar": Layout(_WIDTHS, kernel=3, stride=1, maxpool=False, fan_out=False),
    "resnet18-cifar": Layout(_WIDTHS, blocks=2, kernel=3, stride=1, maxpool=False, fan_out=False),
    "resnet10-cifar-quarter": Layout((16, 32, 64, 128), kernel=3, stride=1, maxpool=False, fan_out=False),
    "small-resnet": Layout((16, 32, 64), kernel=5),
}


def build(name: str, num_classes: int, input_shape: tuple[int, int, int], feature_dim: int) -> SplitModel:
    """Build a network of ``LAYOUTS``; arguments as for :func:`fedapp.models.build`."""
    return with_linear_head(ResNet(LAYOUTS[name], input_shape[0]), num_classes, feature_dim)


class BasicBlock(nn.Module):
    """Two 3x3 convolutions with BatchNorm beside a shortcut, which is projected where the shape changes."""

    def __init__(self, in_channels: int, channels: int, stride: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(in_channels, channels, 3, stride=stride, padding=1, bias=False)
        self.bn1 = nn.BatchNorm2d(channels)
        self.relu = nn.ReLU()
        self.conv2 = nn.Conv2d(channels, channels, 3, padding=1, bias=False)
        self.bn2 = nn.BatchNorm2d(channels)
        self.downsample: nn.Module = nn.Identity()
        if stride != 1 or in_channels != channels:
            projection = nn.Conv2d(in_channels, channels, 1, stride=stride, bias=False)
            self.downsample = nn.Sequential(projection, nn.BatchNorm2d(channels))

    def forward(self, x: Float[Tensor, "B in_channels height width"]) -> Float[Tensor, "B channels rows columns"]:
        """Return the block's output; its rows and columns are the input's divided by the stride."""
        residual = self.bn2(self.conv2(self.relu(self.bn1(self.conv1(x)))))
        activated: Tensor = self.relu(residual + self.downsample(x))
        return activated


class ResNet(nn.Sequential):
    """Stem, stages of BasicBlocks and global average pooling: images to native features.

    Args:
        layout: The network's layout.
        channels: Channels of the images.
    """

    def __init__(self, layout: Layout, channels: int) -> None:
        super().__init__()
        width, kernel = layout.widths[0], layout.kernel
        self.conv1 = nn.Conv2d(channels, width, kernel, stride=layout.stride, padding=kernel // 2, bias=False)
        self.bn1 = nn.BatchNorm2d(width)
        self.relu = nn.ReLU()
        if layout.maxpool:
            self.maxpool = nn.MaxPool2d(3, stride=2, padding=1)
        for stage, wider in enumerate(layout.widths, start=1):
            first = BasicBlock(width, wider, stride=1 if stage == 1 else 2)
            others = [BasicBlock(wider, wider, stride=1) for _ in range(layout.blocks - 1)]
            self.add_module(f"layer{stage}", nn.Sequential(first, *others))
            width = wider
        self.avgpool = nn.AdaptiveAvgPool2d(1)
        self.flatten = nn.Flatten()
        if layout.fan_out:
            initialise_for_relu(self, "fan_out")
