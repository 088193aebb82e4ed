"""What a round of FedProto costs beyond its training: messages, checks, memory, prototypes, records.

Measured: CPU time of a round of four clients (FedAvgCNN, GoogLeNet, MobileNetV2, ResNet-18) with 300 training and 75
test samples of 3x32x32 each, batch 100, one epoch. Ours: `FedProto` on `LocalGrid` with `node.client_app`, memory on
disk. The yardstick: a loop in bare PyTorch over the same batches with the same models, cross-entropy only, which loads
each model from a safetensors file, trains it, saves it and evaluates it. Rounds of both take turns; the first, in which
models are built, does not count.

Target: at most 1.10 times the CPU time. The phases are our clients' wall time, for comparison.
"""

from __future__ import annotations

import logging
import statistics
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from flwr.app import Context
from measure import HEADER, Timing, print_table, start
from safetensors.torch import load_file, save_file
from torch import nn

from fedapp import models
from fedapp.client_update import batches
from fedapp.config import TrainingSettings
from fedapp.datasets.base import Samples
from fedapp.local_grid import LocalGrid
from fedapp.node import Setup, client_app
from fedapp.seeds import derive
from fedapp.strategies.fedproto import FedProto

CLASSES, SHAPE, FEATURES = 10, (3, 32, 32), 512
NAMES = models.GROUPS["htfe4"]
PHASES = ("load-seconds", "train-seconds", "save-seconds")


def samples(count: int, seed: int) -> Samples:
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(count, *SHAPE, generator=generator)
    return Samples(x, torch.randint(CLASSES, (count,), generator=generator))


def build(name: str) -> nn.Module:
    return models.build(name, num_classes=CLASSES, input_shape=SHAPE, feature_dim=FEATURES)


@dataclass
class BareLoop:
    """The yardstick; `folder` holds one file a model."""

    folder: Path
    train: list[Samples]
    test: list[Samples]
    settings: TrainingSettings
    models: list[nn.Module] = field(init=False)

    def __post_init__(self) -> None:
        self.models = [build(name) for name in NAMES]
        for name, model in zip(NAMES, self.models, strict=True):
            save_file(model.state_dict(), self.folder / name)

    def round(self, number: int) -> None:
        """Load, train, save and evaluate every model."""
        for client, (name, model) in enumerate(zip(NAMES, self.models, strict=True)):
            model.load_state_dict(load_file(self.folder / name))
            model.train()
            optimizer = torch.optim.SGD(model.parameters(), lr=self.settings.learning_rate)
            generator = torch.Generator().manual_seed(derive(0, number, str(client), "batches"))
            for rows in batches(len(self.train[client].y), self.settings, generator):
                x, y = self.train[client].x[rows], self.train[client].y[rows]
                optimizer.zero_grad(set_to_none=True)
                F.cross_entropy(model.head(model.features(x)), y).backward()
                optimizer.step()
            save_file(model.state_dict(), self.folder / name)
            model.eval()
            with torch.no_grad():
                logits = model.head(model.features(self.test[client].x))
            assert 0 <= float((logits.argmax(dim=1) == self.test[client].y).float().mean()) <= 1


class TakeTurns:
    """An observer that runs a round of the yardstick after each of ours and notes what both cost."""

    def __init__(self, bare: BareLoop) -> None:
        self.bare = bare
        self.seconds: dict[str, list[float]] = {"ours": [], "bare": []}
        self.phases: dict[str, list[float]] = {phase: [] for phase in PHASES}
        self.since = 0.0

    def on_start(self, strategy: Any) -> None:
        """Begin the first round."""
        self.since = time.process_time()

    def on_round(self, strategy: Any, record: Any) -> None:
        """Note our round, run the other, begin the next."""
        assert not record.failures, record.failures
        now = time.process_time()
        self.bare.round(record.round)
        self.seconds["ours"].append(now - self.since)
        self.seconds["bare"].append(time.process_time() - now)
        for phase, seconds in self.phases.items():
            seconds.append(sum(reply.metrics[phase] for reply in record.trained))
        self.since = time.process_time()

    def on_end(self, strategy: Any, digests: Any) -> None:
        """Do nothing."""


def run(folder: Path, rounds: int, num_train: int, num_test: int) -> TakeTurns:
    settings = TrainingSettings(batch_size=num_train // 3, local_epochs=1, device="cpu")
    train = [samples(num_train, seed=client) for client in range(len(NAMES))]
    test = [samples(num_test, seed=100 + client) for client in range(len(NAMES))]

    def load(context: Context) -> Setup:
        client = int(context.node_config["partition-id"])
        return Setup(
            client=str(client),
            model=lambda: build(NAMES[client]),
            train=train[client],
            test=test[client],
            num_classes=CLASSES,
            model_name=NAMES[client],
            model_key=NAMES[client],
            training=settings,
        )

    bare_folder = folder / "bare"
    bare_folder.mkdir()
    turns = TakeTurns(BareLoop(bare_folder, train, test, settings))
    strategy = FedProto(memory=str(folder / "ours"), observers=[turns])
    strategy.start(LocalGrid(client_app(load), len(NAMES)), num_rounds=rounds)
    return turns


def main() -> None:
    quick = start(__doc__)
    logging.getLogger("flwr").setLevel(logging.WARNING)
    with tempfile.TemporaryDirectory() as folder:
        turns = run(Path(folder), *((2, 12, 4) if quick else (7, 300, 75)))
    timing = Timing({name: seconds[1:] for name, seconds in turns.seconds.items()})
    rows = [
        (f"{name}, CPU s a round", *(f"{s / 1e3:.2f}" for s in timing.milliseconds(name)), "") for name in turns.seconds
    ]
    rows.append(("ours / bare", *(f"{ratio:.3f}" for ratio in timing.ratio("ours", "bare")), "<= 1.100"))
    for phase, seconds in turns.phases.items():
        rows.append((f"ours, wall {phase}", f"{min(seconds[1:]):.2f}", f"{statistics.median(seconds[1:]):.2f}", ""))
    print_table(HEADER, rows)


if __name__ == "__main__":
    main()
