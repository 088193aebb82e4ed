"""Tiny convolutional models over the test federation's five inputs, seen as a row of pixels."""

from __future__ import annotations

import torch
from torch import Tensor, nn

INPUTS, FEATURES, CLASSES = 5, 4, 8


class Residual(nn.Module):
    """A residual block: two convolutions, and a projection or the identity beside them."""

    def __init__(self, width_in: int, width: int) -> None:
        super().__init__()
        self.conv1, self.bn1 = convolution(width_in, width), nn.BatchNorm2d(width)
        self.conv2, self.bn2 = convolution(width, width), nn.BatchNorm2d(width)
        same = width_in == width
        self.shortcut = nn.Identity() if same else nn.Sequential(nn.Conv2d(width_in, width, 1), nn.BatchNorm2d(width))

    def forward(self, x: Tensor) -> Tensor:
        y = self.bn2(self.conv2(torch.relu(self.bn1(self.conv1(x)))))
        return torch.relu(y + self.shortcut(x))


class ConvNet(nn.Module):
    """A tiny ResNet over the five inputs as a row of pixels: one projection, one identity block, then a convolution."""

    def __init__(self) -> None:
        super().__init__()
        self.conv1, self.bn1 = convolution(1, 5), nn.BatchNorm2d(5)
        self.layer1, self.layer2 = Residual(5, 6), Residual(6, 6)
        self.layer3 = nn.Sequential(convolution(6, 8), nn.BatchNorm2d(8), nn.ReLU())
        self.head = nn.Linear(8, CLASSES)

    def features(self, x: Tensor) -> Tensor:
        y = torch.relu(self.bn1(self.conv1(x.reshape(-1, 1, 1, INPUTS))))
        return self.layer3(self.layer2(self.layer1(y))).mean(dim=(2, 3))


class Pixel(nn.Module):
    """Scores w mean(x) W^T of one 1x1 convolution w with four channels: FedSAP's rounds by hand."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(1, FEATURES, 1, bias=False)
        self.head = nn.Linear(FEATURES, CLASSES, bias=False)

    def features(self, x: Tensor) -> Tensor:
        return self.conv(x.reshape(-1, 1, 1, INPUTS)).mean(dim=(2, 3))


def convolution(width_in: int, width: int) -> nn.Conv2d:
    return nn.Conv2d(width_in, width, (1, 3), padding=(0, 1), bias=False)
