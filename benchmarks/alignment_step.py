"""What FedSAF's alignment adds to a training step.

Measured: CPU time of one training step (forward, backward, SGD) of ResNet-4 on a batch of 100 random images of 3x32x32,
features of width 512, with 10 and with 100 classes. `FedSAFUpdate` knows all global prototypes and runs both levels;
the yardstick is the plain `ClientUpdate`, cross-entropy only. Both run through the loop of `ClientUpdate` as rounds of
one step, so that FedSAF also pays for reading, recording and uploading prototypes in every step.

A busy machine moves the time of a whole step by more than the alignment costs. The rows "added" leave out what both
sides share: they compare the time from the features to their gradient, in which everything that FedSAF adds to a step
takes place, and relate the difference to the yardstick's whole step.

Target: GCSA costs at most 3 % more. The others are printed for comparison.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from functools import partial

import numpy as np
import torch
from measure import HEADER, print_table, start, take_turns
from torch import Tensor, nn

from fedapp import models
from fedapp.client_update import ClientUpdate, Local
from fedapp.config import TrainingSettings
from fedapp.datasets.base import Samples
from fedapp.functional.alignment import ALIGNMENTS
from fedapp.payload import Downlink
from fedapp.strategies.base import NoParams
from fedapp.strategies.fedsaf import FedSAFParams, FedSAFUpdate

BATCH, FEATURES = 100, 512
PLAIN = "cross-entropy"
TARGETS = {"gcsa": 0.03}


def build(num_classes: int, seconds: list[float]) -> nn.Module:
    """Return a ResNet-4 that notes the CPU time from its features to their gradient."""
    torch.manual_seed(1)
    model = models.build("resnet4", num_classes=num_classes, input_shape=(3, 32, 32), feature_dim=FEATURES)
    features: Callable[[Tensor], Tensor] = model.features

    def timed(x: Tensor) -> Tensor:
        z = features(x)
        before = time.process_time()
        z.register_hook(lambda _: seconds.append(time.process_time() - before))
        return z

    model.features = timed
    return model


def compare(num_classes: int, names: list[str], repeats: int) -> list[tuple[str, ...]]:
    """Return the rows of the table for alignments, measured side by side with cross-entropy alone."""
    torch.manual_seed(0)
    samples = Samples(torch.randn(BATCH, 3, 32, 32), torch.randint(num_classes, (BATCH,)))
    settings = TrainingSettings(batch_size=BATCH, local_epochs=1, device="cpu")
    targets = np.random.default_rng(0).normal(size=(num_classes, FEATURES)).astype(np.float32)
    downlink = Downlink({"rows": targets, "classes": np.arange(num_classes, dtype=np.int32)})
    differing: dict[str, list[float]] = {name: [] for name in (PLAIN, *names)}
    updates: dict[str, ClientUpdate] = {}
    for name, seconds in differing.items():
        local = Local("0", build(num_classes, seconds), num_classes, settings)
        plain = name == PLAIN
        updates[name] = ClientUpdate(NoParams(), local) if plain else FedSAFUpdate(FedSAFParams(alignment=name), local)
    timing = take_turns({name: partial(update.train, downlink, samples) for name, update in updates.items()}, repeats)

    rows = []
    steps = timing.seconds[PLAIN]
    for name in names:
        target = f"<= {TARGETS[name]:.1%}" if name in TARGETS else ""
        low, middle = timing.ratio(name, PLAIN)
        rows.append((f"C={num_classes}: {name}, whole step", f"{low - 1:+.1%}", f"{middle - 1:+.1%}", target))
        ours, bare = differing[name][-repeats:], differing[PLAIN][-repeats:]
        low = (min(ours) - min(bare)) / min(steps)
        middle = statistics.median((own - other) / step for own, other, step in zip(ours, bare, steps, strict=True))
        rows.append((f"C={num_classes}: {name}, added", f"{low:+.1%}", f"{middle:+.1%}", target))
    low, middle = timing.milliseconds(PLAIN)
    return [(f"C={num_classes}: {PLAIN}, whole step", f"{low:.1f} ms", f"{middle:.1f} ms", ""), *rows]


def main() -> None:
    quick = start(__doc__)
    others = [name for name in ALIGNMENTS if name not in TARGETS]
    rows = []
    for num_classes in (10, 100):
        rows += compare(num_classes, list(TARGETS), repeats=2 if quick else 100)
        rows += compare(num_classes, others, repeats=2 if quick else 20)
    print_table(HEADER, rows)


if __name__ == "__main__":
    main()
