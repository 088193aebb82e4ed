"""What FedSAP adds to a client's round, phase by phase.

Measured: CPU time of one client with ResNet-10 for 32x32 images (a quarter of its width: the phases scale alike), 256
random images, batch 64, E = 10 local epochs, for a full client and for one that keeps 40 % of its channels. The
yardstick is the local training of that client: ``ClientUpdate``'s loop over the compact network, with Eq. 7's loss.

* activations: one pass over all images in evaluation mode before training (``stats.mode=eval-received``);
* gradients: their magnitudes, noted after every step of the last epoch;
* signal: what clients are grouped by, taken once in R_d = 5 rounds: statistics of the first convolution (``bn_stats``)
  or its gradient (``conv1_grad``); "amortised" is a fifth of it.

Target: all of them together at most 5 % of local training (the paper's figure); ``edge`` uses bn_stats.
"""

from __future__ import annotations

import numpy as np
import torch
from measure import HEADER, Timing, print_table, start, take_turns

from fedapp import models
from fedapp.client_update import Local, arrays_of
from fedapp.config import TrainingSettings
from fedapp.datasets.base import Samples
from fedapp.functional.channels import trace
from fedapp.functional.roles import DROPPED, GLOBAL, pack_roles
from fedapp.functional.submodel import gather, plan
from fedapp.payload import Downlink
from fedapp.strategies.fedsap import FedSAPParams, FedSAPUpdate
from fedapp.strategies.fedsap.client import FIRST, ROLES

IMAGES, EPOCHS, EVERY, SHAPE = 256, 10, 5, (3, 32, 32)
TRAINING = "local training"


def client(keep_ratio: float, signal: str, images: int, model: str = "resnet10-cifar-quarter") -> FedSAPUpdate:
    """Return a client that has received its submodel and is about to train."""
    torch.manual_seed(0)
    width = models.MODELS[model].native_dim or 128
    network = models.build(model, num_classes=10, input_shape=SHAPE, feature_dim=width)
    graph = trace(network, SHAPE)
    generator = np.random.default_rng(1)
    active = np.zeros(graph.total, np.bool_)
    for part in graph.slices:
        size = part.stop - part.start
        active[part.start + generator.permutation(size)[: max(1, round(keep_ratio * size))]] = True
    samples = Samples(torch.randn(images, *SHAPE), torch.randint(10, (images,)))
    settings = TrainingSettings(batch_size=64, local_epochs=EPOCHS, momentum=0.9, weight_decay=5e-4, device="cpu")
    update = FedSAPUpdate(FedSAPParams(signal=signal), Local("0", network, 10, settings, samples=lambda: samples))
    full = {name: array for name, array in arrays_of(network).items() if name in graph.entries}
    first = {FIRST + "weight": full[f"{graph.layers[0].name}.weight"]}
    arrays = {**gather(plan(graph, active), full), **first}
    arrays[ROLES] = pack_roles(np.where(active, GLOBAL, DROPPED).astype(np.uint8))
    update.receive(Downlink(arrays, {"input-shape": "3x32x32", "signal": True}))
    update.begin()
    return update


def measure(keep_ratio: float, repeats: int, images: int) -> list[tuple[str, ...]]:
    """Return the rows of one client."""
    update, by_gradient = client(keep_ratio, "bn_stats", images), client(keep_ratio, "conv1_grad", images)
    samples = update.local.samples() if update.local.samples else None
    timing = take_turns(
        {
            TRAINING: lambda: update.model.train() and update._descend(samples),  # type: ignore[arg-type]
            "activations": update._measure_activations,
            "gradients": lambda: [update._gradient.observe() for _ in range(-(-images // 64))],
            "signal bn_stats": update._take_signal,
            "signal conv1_grad": by_gradient._take_signal,
        },
        repeats,
    )
    return rows_of(f"keep {keep_ratio:g}", timing)


def rows_of(who: str, timing: Timing) -> list[tuple[str, ...]]:
    """Return every phase as a share of local training, and what the two profiles' choices come to."""
    shares = {name: timing.ratio(name, TRAINING) for name in timing.seconds if name != TRAINING}
    rows = [
        (f"{who}: {name} / {TRAINING}", f"{low:.2%}", f"{middle:.2%}", "") for name, (low, middle) in shares.items()
    ]
    for signal in ("bn_stats", "conv1_grad"):
        parts = [shares["activations"], shares["gradients"]]
        low, middle = (sum(part[side] for part in parts) + shares[f"signal {signal}"][side] / EVERY for side in (0, 1))
        target = "<= 5 %" if signal == "bn_stats" else ""
        rows.append((f"{who}: all, {signal} amortised / {TRAINING}", f"{low:.2%}", f"{middle:.2%}", target))
    return rows


def main() -> None:
    """Print the table."""
    quick = start(__doc__)
    repeats, images = (1, 64) if quick else (7, IMAGES)
    print_table(HEADER, [row for ratio in (1.0, 0.4) for row in measure(ratio, repeats, images)])


if __name__ == "__main__":
    main()
