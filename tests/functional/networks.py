"""Networks as a foreign project might write them, with random BatchNorm and random masks."""

import math

import numpy as np
import torch
from torch import nn
from torch.nn import functional as F


class PreactivationBlock(nn.Module):
    """BatchNorm and ReLU before each convolution; the addition is neither normalised nor activated."""

    def __init__(self, width, wider, stride):
        super().__init__()
        self.bn1, self.conv1 = nn.BatchNorm2d(width), nn.Conv2d(width, wider, 3, stride, 1, bias=False)
        self.bn2, self.conv2 = nn.BatchNorm2d(wider), nn.Conv2d(wider, wider, 3, 1, 1, bias=False)
        if stride != 1 or width != wider:
            self.shortcut = nn.Conv2d(width, wider, 1, stride, bias=False)

    def forward(self, x):
        out = F.relu(self.bn1(x))
        shortcut = self.shortcut(out) if hasattr(self, "shortcut") else x
        out = self.conv1(out)
        out = self.conv2(F.relu(self.bn2(out)))
        out += shortcut
        return out


class PreactivationNet(nn.Module):
    """Three convolutions write the first stream; functions instead of modules; the head is a method."""

    def __init__(self):
        super().__init__()
        self.conv1 = nn.Conv2d(3, 8, 3, 1, 1, bias=False)
        self.body = nn.Sequential(
            PreactivationBlock(8, 8, 1), PreactivationBlock(8, 8, 1), PreactivationBlock(8, 12, 2)
        )
        self.linear = nn.Linear(4 * 12, 10)

    def features(self, x):
        out = F.avg_pool2d(F.relu(self.body(self.conv1(x))), 4)
        return out.view(out.size(0), -1)

    def head(self, z):
        return self.linear(z)


class Block(nn.Module):
    def __init__(self, width, wider=None):
        super().__init__()
        wider = wider or width
        self.conv1, self.bn1 = nn.Conv2d(width, wider, 3, padding=1), nn.BatchNorm2d(wider)
        self.conv2, self.bn2 = nn.Conv2d(wider, wider, 3, padding=1, bias=False), nn.BatchNorm2d(wider)
        self.shortcut = nn.Sequential()
        if wider != width:
            self.shortcut = nn.Sequential(nn.Conv2d(width, wider, 1), nn.BatchNorm2d(wider))
        self.relu = nn.ReLU(inplace=True)

    def forward(self, x):
        return self.relu(self.bn2(self.conv2(self.relu(self.bn1(self.conv1(x))))) + self.shortcut(x))


class DeepNet(nn.Module):
    """Seven convolutions write one stream; both halves are submodules; ReLUs in place; the head begins with dropout."""

    def __init__(self, width=24, blocks=6):
        super().__init__()
        stem = [nn.Conv2d(3, width, 3, padding=1), nn.BatchNorm2d(width), nn.ReLU(inplace=True)]
        blocks = [Block(width) for _ in range(blocks)]
        self.features = nn.Sequential(*stem, *blocks, Block(width, width + 4), nn.AdaptiveAvgPool2d(2), nn.Flatten())
        self.head = nn.Sequential(nn.Dropout(0.0), nn.Linear(4 * (width + 4), 16), nn.Sigmoid(), nn.Linear(16, 10))


class PlainNet(nn.Module):
    """Convolutions with and without bias and BatchNorm, normalised inputs, pooled features, no addition."""

    def __init__(self):
        super().__init__()
        self.register_buffer("mean", torch.tensor([0.1, 0.2, 0.3]).view(3, 1, 1))
        self.conv1, self.norm1 = nn.Conv2d(3, 6, 3, padding="same"), nn.BatchNorm2d(6)
        self.conv2 = nn.Conv2d(6, 9, (3, 2), stride=(1, 2), padding=(1, 0), bias=False)
        self.conv3, self.norm3 = nn.Conv2d(9, 7, 3, padding=1, dilation=1), nn.BatchNorm2d(7, affine=False)
        self.pool = nn.AdaptiveAvgPool1d(5)
        self.classifier = nn.Linear(5, 10)

    def features(self, x):
        x = F.max_pool2d(torch.relu(self.norm1(self.conv1((x - self.mean) / 0.5))), 2)
        x = F.dropout(F.leaky_relu(self.conv2(x), 0.1), 0.0, self.training)
        return self.pool(self.norm3(self.conv3(x)).tanh().mean(dim=(2, 3)))

    def head(self, z):
        return self.classifier(z)


def randomised(model, seed=0):
    """The model in float64, in training mode, with signed BatchNorm weights and random running statistics."""
    generator = torch.Generator().manual_seed(seed)
    for norm in model.double().modules():
        if isinstance(norm, nn.BatchNorm2d):
            tensors = [norm.running_mean, norm.weight, norm.bias] if norm.affine else [norm.running_mean]
            for tensor in tensors:
                tensor.data.copy_(torch.randn(tensor.shape, generator=generator, dtype=torch.float64))
            norm.running_var.uniform_(0.5, 1.5, generator=generator)
    return model.train()


def random_mask(graph, keep, seed=0, coupling="none"):
    """Each set of coupled layers keeps a share of its channels, rounded up, drawn at random."""
    rng = np.random.default_rng(seed)
    active = np.zeros(graph.total, bool)
    for layers in graph.coupled(coupling):
        channels = graph.layers[layers[0]].channels
        chosen = rng.permutation(channels)[: max(1, math.ceil(keep * channels - 1e-9))]
        for layer in layers:
            active[graph.slices[layer].start + chosen] = True
    return active
