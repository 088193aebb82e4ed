"""What a client of FedSAP saves: time, kept activations and memory of compact networks against the dense ResNet-10.

Measured: CPU time of one training step (forward, backward, SGD with momentum) on a batch of 64 random images of
3x32x32, one thread, with random masks that keep a share of the channels of every convolution: `stage` gives all
convolutions of a residual stream one mask, `none` gives each its own, so that a stream holds the union. Masked is the
full network with masks after BatchNorm. Kept activations are the distinct tensors that autograd saves, without
parameters. Peak memory is what a process of its own needs beyond its imports for three steps, the network included.

Targets: step <= 0.105/0.29/0.55/0.85 with `stage` and <= 0.13/0.37/0.62/0.89 with `none` at keep 0.2/0.4/0.6/0.8;
activations <= 0.21/0.42/0.62/0.82 with both.
"""

from __future__ import annotations

import math
import resource
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch
from measure import HEADER, print_table, start, take_turns
from torch import Tensor, nn

from fedapp import models
from fedapp.functional.channels import ChannelGraph, trace
from fedapp.functional.submodel import Plan, costs, extract, masked, plan

BATCH, SHAPE = 64, (3, 32, 32)
STEP = {"stage": (0.105, 0.29, 0.55, 0.85), "none": (0.13, 0.37, 0.62, 0.89)}
KEPT = (0.21, 0.42, 0.62, 0.82)
KEEPS = (0.2, 0.4, 0.6, 0.8)
DENSE = "dense"


def build(quick: bool) -> nn.Module:
    torch.manual_seed(1)
    name, width = ("resnet10-cifar-quarter", 128) if quick else ("resnet10-cifar", 512)
    return models.build(name, num_classes=10, input_shape=SHAPE, feature_dim=width)


def chosen(graph: ChannelGraph, keep: float, coupling: str) -> Plan:
    """Return the plan of random masks that keep a share of every convolution, rounded up."""
    generator = np.random.default_rng(0)
    active = np.zeros(graph.total, bool)
    for layers in graph.coupled(coupling):
        channels = graph.layers[layers[0]].channels
        kept = generator.permutation(channels)[: math.ceil(keep * channels - 1e-9)]
        for layer in layers:
            active[graph.slices[layer].start + kept] = True
    return plan(graph, active)


def samples() -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(BATCH, *SHAPE, generator=generator)
    return x, torch.randint(10, (BATCH,), generator=generator)


def loss(network: nn.Module, x: Tensor, y: Tensor) -> Tensor:
    return nn.functional.cross_entropy(network.head(network.features(x)), y)


def stepper(network: nn.Module) -> Callable[[], None]:
    """Return one training step of a network; a masked one returns to what was sent off its plan."""
    x, y = samples()
    optimizer = torch.optim.SGD(network.train().parameters(), lr=0.01, momentum=0.9, weight_decay=5e-4)
    hold = getattr(network, "hold", lambda: None)

    def step() -> None:
        optimizer.zero_grad()
        loss(network, x, y).backward()
        optimizer.step()
        hold()

    return step


def kept_bytes(network: nn.Module) -> int:
    """Return the bytes of the distinct tensors, other than parameters, that autograd saves for one step."""
    owned = {parameter.untyped_storage().data_ptr() for parameter in network.parameters()}
    sizes: dict[int, int] = {}

    def pack(tensor: Tensor) -> Tensor:
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in owned:
            sizes[storage.data_ptr()] = storage.nbytes()
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        alive = loss(network.train(), *samples())  # while it lives no storage is used twice
    assert alive.requires_grad
    return sum(sizes.values())


class Tiny(nn.Module):
    """The smallest network that a step takes."""

    def __init__(self) -> None:
        super().__init__()
        self.features = nn.Sequential(nn.Conv2d(3, 1, 3), nn.BatchNorm2d(1), nn.AdaptiveAvgPool2d(1), nn.Flatten())
        self.head = nn.Linear(1, 10)


def peak(keep: float, quick: bool) -> None:
    """Print by how many megabytes three steps of a client raise the peak memory of this process."""
    torch.set_num_threads(1)
    stepper(Tiny())()  # loads what torch imports with the first step
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    network = build(quick)
    if keep < 1:
        graph = trace(network, SHAPE)
        network = extract(network, graph, chosen(graph, keep, "none"))
    step = stepper(network)
    for _ in range(3):
        step()
    print((resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) / 1024)


def peak_in_a_process(keep: float, quick: bool) -> float:
    code = f"from submodel_step import peak; peak({keep}, {quick})"
    finished = subprocess.run(
        [sys.executable, "-c", code], cwd=Path(__file__).parent, capture_output=True, text=True, check=True
    )
    return float(finished.stdout)


def memory_rows(quick: bool) -> list[tuple[str, ...]]:
    repeats = 1 if quick else 3
    megabytes = {
        name: sorted(peak_in_a_process(keep, quick) for _ in range(repeats))
        for name, keep in ((DENSE, 1.0), ("none, keep 0.2", 0.2))
    }
    return [
        (f"peak memory, {name}", f"{found[0]:.0f} MB", f"{found[len(found) // 2]:.0f} MB", "")
        for name, found in megabytes.items()
    ]


def main() -> None:
    quick = start(__doc__)
    memory = memory_rows(quick)  # first: a process begins with the peak of the one that started it
    dense = build(quick)
    graph = trace(dense, SHAPE)
    networks: dict[str, nn.Module] = {DENSE: dense}
    step_targets, kept_targets, parts = {}, {}, {}
    for coupling, targets in STEP.items():
        for keep, target, kept in list(zip(KEEPS, targets, KEPT, strict=True))[: 1 if quick else None]:
            name = f"{coupling}, keep {keep}"
            parts[name] = chosen(graph, keep, coupling)
            networks[name] = extract(dense, graph, parts[name])
            step_targets[name], kept_targets[name] = f"<= {target}", f"<= {kept}"
    networks["masked, keep 0.2"] = masked(build(quick), graph, chosen(graph, 0.2, "none"))

    timing = take_turns({name: stepper(network) for name, network in networks.items()}, repeats=2 if quick else 10)
    low, middle = timing.milliseconds(DENSE)
    rows = [(f"step, {DENSE}", f"{low:.0f} ms", f"{middle:.0f} ms", "")]
    for name in list(networks)[1:]:
        low, middle = timing.ratio(name, DENSE)
        rows.append((f"step, {name} / {DENSE}", f"{low:.3f}", f"{middle:.3f}", step_targets.get(name, "")))
    whole = kept_bytes(dense)
    for name, target in kept_targets.items():
        share = kept_bytes(networks[name]) / whole
        rows.append((f"activations, {name} / {DENSE}", f"{share:.3f}", f"{share:.3f}", target))
    full = costs(graph, None)
    for name, part in parts.items():
        small = costs(graph, part)
        shares = f"{small.macs / full.macs:.3f}", f"{small.parameters / full.parameters:.3f}"
        rows.append((f"MACs; parameters, {name} / {DENSE}", *shares, ""))
    print_table(HEADER, [*rows, *memory])


if __name__ == "__main__":
    main()
