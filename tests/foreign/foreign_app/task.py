"""Somebody else's task: two sensors each see two of three blobs, and each has a model of its own."""

from dataclasses import dataclass

import torch
from torch import nn

from fedapp.config import TrainingSettings
from fedapp.node import Setup, client_id

CENTRES = torch.tensor([[2.0, 0.0], [-2.0, 1.0], [0.0, -2.0]])


@dataclass(frozen=True)
class Readings:
    x: torch.Tensor
    y: torch.Tensor


class SensorNet(nn.Module):
    """A model that was not written for fedapp, but has its two halves."""

    def __init__(self, hidden: int) -> None:
        super().__init__()
        self.encoder = nn.Sequential(nn.Linear(2, hidden), nn.ReLU(), nn.Linear(hidden, 4))
        self.head = nn.Linear(4, 3)

    def features(self, x: torch.Tensor) -> torch.Tensor:
        return self.encoder(x)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(self.features(x))


def readings(seed: int, labels: tuple[int, ...], count: int = 24) -> Readings:
    y = torch.tensor(labels).repeat(count // len(labels))
    noise = torch.randn(len(y), 2, generator=torch.Generator().manual_seed(seed))
    return Readings(CENTRES[y] + 0.3 * noise, y)


def setup(context, hidden: int) -> Setup:
    index = int(context.node_config["partition-id"])
    labels = ((0, 1), (1, 2), (0, 2))[index % 3]
    return Setup(
        client=client_id(context),
        model=lambda: SensorNet(hidden),
        train=readings(index, labels),
        test=readings(100 + index, labels),
        num_classes=3,
        model_name=f"sensor-{hidden}",
        training=TrainingSettings(learning_rate=0.3, batch_size=12, local_epochs=2, device="cpu"),
    )
