"""Simulated device tiers, for research: Flower gives every simulated client the same resources.

The setting ``device-tiers = "fast; pi slowdown=4 memory-mib=512 drop-out=0.1"`` names tiers, separated by semicolons;
client i belongs to tier i mod T, and ``tier`` in a node-config overrides that. A tier acts on training only: what it
models is the device, while evaluation belongs to the experimenter. Results stay the same bits; only seconds change.
"""

from __future__ import annotations

import copy
import re
import time
from collections.abc import Callable, Hashable, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fedapp.config import SettingError, TrainingSettings, check, lookup, parse, setting, split_pairs
from fedapp.seeds import derive, seeded

if TYPE_CHECKING:
    from fedapp.client_update import ClientUpdate

MIB = 2**20
PROBE = (2, 4)
OPTIMIZER_COPIES = {"adam": 2, "adamw": 2}
_activations: dict[Hashable, tuple[float, float]] = {}


class DroppedOutError(RuntimeError):
    """The simulated device dropped out of this round: not a fault, but what was asked for."""


class MemoryCapError(RuntimeError):
    """Training would not fit into the memory of the simulated device."""


@dataclass(frozen=True)
class Tier:
    """One kind of simulated device; the default stands for the machine itself and changes nothing."""

    name: str = ""
    slowdown: float = setting(1.0, "how many times longer than this machine the device trains", low=1)
    memory_mib: float = setting(0.0, "memory in MiB that training may take; 0 = no cap", low=0)
    drop_out: float = setting(0.0, "probability that the device does not reply in a round", low=0, high=1)

    def __post_init__(self) -> None:
        check(self)

    def drop(self, seed: int, round_number: int, client: str) -> None:
        """Drop out of a round with probability ``drop_out``; the draw depends on seed, round and client only.

        Raises:
            DroppedOutError: If the client does not reply in this round.
        """
        drawn = derive(seed, round_number, client, "drop-out") / 2**63
        if drawn < self.drop_out:
            raise DroppedOutError(
                f"client {client!r} (tier {self.name}) dropped out of round {round_number}, as drop-out = "
                f"{self.drop_out:g} asks for"
            )

    def fit(self, update: ClientUpdate, samples: Any, model: str, key: Hashable = None) -> None:
        """Check, before training, that training fits into ``memory_mib``.

        Args:
            update: The client's half of the method, which holds the model and the settings.
            samples: The training samples.
            model: Name of the architecture, for the message.
            key: Clients with the same key share one measurement; None measures anew.

        Raises:
            MemoryCapError: Naming the parts of the estimate and what to change.
        """
        if not self.memory_mib or not len(samples.y):
            return
        rows = min(update.local.training.batch_size, len(samples.y))
        need = estimate(update, samples.x, rows, key)
        if need.total > self.memory_mib * MIB:
            raise MemoryCapError(
                f"client {update.local.client!r} (tier {self.name}) needs about {need.total / MIB:.1f} MiB to train "
                f"{model} on batches of {rows} ({need}), but memory-mib is {self.memory_mib:g}; lower batch-size, "
                "give the client a smaller model, or raise memory-mib"
            )

    def wait(self, train_seconds: float, sleep: Callable[[float], None] = time.sleep) -> dict[str, float]:
        """Sleep as long as the slower device would still have trained, and return the simulated seconds as a metric.

        Args:
            train_seconds: Seconds that training took on this machine.
            sleep: Waits; replaced in tests.

        Returns:
            One metric, named after the tier; empty for the machine itself.

        Example:
            >>> Tier("pi", slowdown=4).wait(2.0, sleep=print)
            6.0
            {'tier-pi-seconds': 8.0}
        """
        if not self.name:
            return {}
        if self.slowdown > 1:
            sleep((self.slowdown - 1) * train_seconds)
        return {f"tier-{self.name}-seconds": self.slowdown * train_seconds}


def read(text: str) -> dict[str, Tier]:
    """Read the setting ``device-tiers`` into tiers by name, in order.

    Raises:
        SettingError: For a malformed or repeated name, an unknown option, or a value that breaks its rule.

    Example:
        >>> tiers = read("fast; pi slowdown=4 memory-mib=512 drop-out=0.1")
        >>> tiers["pi"]
        Tier(name='pi', slowdown=4.0, memory_mib=512.0, drop_out=0.1)
        >>> tiers["fast"].slowdown
        1.0
    """
    tiers: dict[str, Tier] = {}
    for part in filter(None, (part.strip() for part in text.split(";"))):
        name, _, options = part.partition(" ")
        if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9_.-]*", name):
            raise SettingError(
                f"device-tiers: {part!r} does not begin with a tier's name (letters, digits, '.', '_', '-'); write it "
                'as in "fast; pi slowdown=4"'
            )
        if name in tiers:
            raise SettingError(f"device-tiers: {name!r} is given twice; give each tier its own name")
        try:
            tiers[name] = replace(parse(Tier, split_pairs(options), what=f"option of tier {name}"), name=name)
        except SettingError as error:
            raise SettingError(f"device-tiers, {name}: {error}") from None
    return tiers


def of_node(run_config: Mapping[str, Any], node_config: Mapping[str, Any]) -> Tier | None:
    """Return the tier of a node: node-config ``tier``, else cyclically by ``partition-id``.

    None without the setting ``device-tiers``.

    Raises:
        SettingError: If the node's tier is unknown, or the node says neither its tier nor its partition-id.

    Example:
        >>> settings = {"device-tiers": "fast; pi slowdown=4"}
        >>> [of_node(settings, {"partition-id": index}).name for index in range(3)]
        ['fast', 'pi', 'fast']
        >>> of_node(settings, {"partition-id": 0, "tier": "pi"}).name
        'pi'
    """
    tiers = read(str(run_config.get("device-tiers", "")))
    if not tiers:
        return None
    if "tier" in node_config:
        return lookup(tiers, str(node_config["tier"]), "device tier")
    if "partition-id" not in node_config:
        raise SettingError(
            "device-tiers is set, but this node says neither tier nor partition-id; add one of them to its node-config"
        )
    return list(tiers.values())[int(node_config["partition-id"]) % len(tiers)]


@dataclass(frozen=True)
class Need:
    """What training takes, in bytes; without the process itself, the data and the framework's scratch space.

    Attributes:
        parameters: Parameters and buffers.
        gradients: Gradients of the parameters.
        optimizer: State of the optimiser.
        activations: What the backward pass of one batch keeps.
    """

    parameters: float
    gradients: float
    optimizer: float
    activations: float

    @property
    def total(self) -> float:
        """The sum of the parts."""
        return self.parameters + self.gradients + self.optimizer + self.activations

    def __str__(self) -> str:
        """Return the parts in words."""
        return ", ".join(f"{name} {size / MIB:.1f}" for name, size in vars(self).items())


def estimate(update: ClientUpdate, inputs: Tensor, rows: int, key: Hashable = None) -> Need:
    """Estimate what one client needs for training its own model with cross-entropy.

    A method with an auxiliary model needs more than this: its model is known only once the round has begun.

    Args:
        update: The client's half of the method.
        inputs: Inputs, (N, ...); only the shape of one matters.
        rows: Samples in a batch.
        key: Clients with the same key share one measurement of the activations; None measures anew.
    """
    settings = update.local.training
    weights = [tensor for tensor in update.model.parameters() if tensor.requires_grad]
    trained = sum(nbytes(tensor) for tensor in weights)
    measured = (key, settings.precision)
    if key is None or measured not in _activations:
        few, more = (activation_bytes(update, inputs, count) for count in PROBE)
        _activations[measured] = (few, more)
    held = sum(nbytes(tensor) for tensor in (*update.model.parameters(), *update.model.buffers()))
    return Need(held, trained, trained * optimizer_copies(settings), scaled(*_activations[measured], rows))


def optimizer_copies(settings: TrainingSettings) -> int:
    """Return how many copies of the parameters the optimiser keeps.

    Example:
        >>> [optimizer_copies(TrainingSettings(optimizer=name)) for name in ("sgd", "adam")]
        [0, 2]
        >>> optimizer_copies(TrainingSettings(momentum=0.9))
        1
    """
    return OPTIMIZER_COPIES.get(settings.optimizer, int(settings.momentum > 0))


def scaled(few: float, more: float, rows: int) -> float:
    """Return the activations of a batch of ``rows`` from those of batches of ``PROBE`` sizes.

    What does not grow with the batch (weights that the backward pass refers to) is counted elsewhere and drops out.

    Example:
        >>> scaled(few=1000 + 2 * 8, more=1000 + 4 * 8, rows=100)
        800.0
    """
    return (more - few) / (PROBE[1] - PROBE[0]) * rows


def activation_bytes(update: ClientUpdate, inputs: Tensor, rows: int) -> float:
    """Return the bytes of the distinct tensors that a batch of ``rows`` keeps for its backward pass.

    It runs on a copy of the model and on a random stream of its own, so that the round computes what it always did.
    """
    model: nn.Module = copy.deepcopy(update.model).train()
    x = inputs[:1].to(update.local.device).expand(rows, *inputs.shape[1:]).contiguous()
    labels = torch.zeros(rows, dtype=torch.int64, device=x.device)
    kept: dict[int, Tensor] = {}

    def keep(tensor: Tensor) -> Tensor:
        kept[tensor.untyped_storage().data_ptr()] = tensor
        return tensor

    with seeded(0), torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        _, logits = update.forward(model, x)  # type: ignore[arg-type]
        F.cross_entropy(logits, labels)
    return float(sum(tensor.untyped_storage().nbytes() for tensor in kept.values()))


def nbytes(tensor: Tensor) -> int:
    """Return the bytes of a tensor's elements."""
    return tensor.numel() * tensor.element_size()
