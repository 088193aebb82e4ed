"""The local training loop, once. A method changes it through hooks only. No Flower.

Order of the hooks in one round: ``receive`` (install what was sent), ``begin``, then for every batch ``loss``
and ``after_step``, then ``end`` (what to upload). ``predictions`` says how a client answers on test samples.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, ClassVar, Protocol

import numpy as np
import numpy.typing as npt
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fedapp.augment import augment
from fedapp.augment import parse as parse_augmentation
from fedapp.config import TrainingSettings
from fedapp.payload import Arrays, Downlink, Uplink
from fedapp.seeds import derive

if TYPE_CHECKING:
    from jaxtyping import Float, Int, Shaped

EVALUATION_BATCH = 256


class LabelledSamples(Protocol):
    """Samples in memory: inputs ``x`` (N, ...) and labels ``y`` (N,)."""

    @property
    def x(self) -> Tensor:
        """Inputs, first axis N."""

    @property
    def y(self) -> Tensor:
        """Labels (N,), int64."""


class SplitModel(Protocol):
    """What every model offers: features (B, D) and class scores (B, C)."""

    def features(self, x: Tensor) -> Tensor:
        """Map inputs to features (B, D)."""

    def head(self, z: Tensor) -> Tensor:
        """Map features to class scores (B, C)."""


class DivergedError(RuntimeError):
    """Local training produced values that are not finite; the client keeps its last good model."""


@dataclass
class Local:
    """What one client holds while it handles a message.

    Attributes:
        client: Stable id of the client.
        model: Its model, an ``nn.Module`` with ``features`` and ``head``.
        num_classes: Classes of the task, C.
        training: The common training settings.
        round: Current round, from 1; 0 before any training.
        num_rounds: Rounds of the run, for schedules.
        seed: Seed of the run.
        build: Builds a further model by name (methods with an auxiliary model).
        samples: Returns its training samples, for methods that measure on them before training or evaluation.
        state: What the method keeps between rounds beside the model; saved with it.
    """

    client: str
    model: Any
    num_classes: int
    training: TrainingSettings = field(default_factory=TrainingSettings)
    round: int = 1
    num_rounds: int = 1
    seed: int = 0
    build: Callable[[str], Any] | None = None
    samples: Callable[[], LabelledSamples] | None = None
    state: dict[str, Tensor] = field(default_factory=dict)

    @property
    def device(self) -> torch.device:
        """Where the client trains."""
        wanted = self.training.device
        if wanted == "auto":
            wanted = "cuda" if torch.cuda.is_available() else "cpu"
        return torch.device(wanted)

    def companion(self, name: str) -> Any:
        """Build an auxiliary model by name, on the client's device.

        Raises:
            RuntimeError: If this client was set up without a way to build models.
        """
        if self.build is None:
            raise RuntimeError(
                f"the method needs an auxiliary model {name!r}; give Setup a `companion` function that builds it"
            )
        return self.build(name).to(self.device)


class ClientUpdate:
    """One client's share of a round; the base is plain local training with cross-entropy.

    Attributes:
        own_shapes: True if the model that the client keeps has the shapes of the one that was built for it; False if
            :meth:`receive` puts another in its place, which is then kept, and not loaded into the one built.
        adapts: True if a client that takes no part can train on what the method sends it; False if what is sent is the
            answer itself.
        epoch: The current pass over the samples, from 0.
        epochs: Passes of this round.
    """

    own_shapes: ClassVar[bool] = True
    adapts: ClassVar[bool] = True

    def __init__(self, params: Any, local: Local) -> None:
        self.params = params
        self.local = local
        self.model = local.model.to(local.device)
        self.epoch, self.epochs = 0, local.training.local_epochs
        self.metrics: dict[str, float] = {}

    # ---- what a method changes -------------------------------------------------------------------

    def receive(self, downlink: Downlink) -> None:
        """Install what the server sent; called before training and before evaluation."""

    def begin(self) -> None:
        """Prepare for training, after :meth:`receive`."""

    def modules(self) -> list[nn.Module]:
        """Return the modules that the optimiser trains; gradient norms are clipped for each by itself."""
        return [self.model]

    def loss(self, x: Shaped[Tensor, "B ..."], y: Int[Tensor, " B"]) -> Float[Tensor, ""]:
        """Return the objective on one batch, a scalar."""
        _, logits = self.forward(self.model, x)
        return F.cross_entropy(logits, y)

    def after_step(self) -> None:
        """Run after every optimiser step."""

    def end(self, samples: LabelledSamples) -> Arrays:
        """Return what to upload, after the last step. ``samples`` are the local training samples."""
        return {}

    def predictions(self, z: Float[Tensor, "B D"], logits: Float[Tensor, "B C"]) -> dict[str, Int[Tensor, " B"]]:
        """Return predicted labels by name of the metric they make; ``accuracy`` is the headline."""
        return {"accuracy": logits.argmax(dim=1)}

    # ---- what stays ------------------------------------------------------------------------------

    def forward(self, model: SplitModel, x: Tensor) -> tuple[Tensor, Tensor]:
        """Return features (B, D) and class scores (B, C) in float32, under the precision asked for."""
        enabled = self.local.training.precision == "bf16"
        with torch.autocast(self.local.device.type, dtype=torch.bfloat16, enabled=enabled):
            z = model.features(x)
            logits = model.head(z)
        return (z.float(), logits.float()) if enabled else (z, logits)

    def train(self, downlink: Downlink, samples: LabelledSamples, ready: Callable[[], None] = lambda: None) -> Uplink:
        """Train for one round and return the uplink.

        Args:
            downlink: What the server sent.
            samples: The client's training samples.
            ready: Called once the model that is going to be trained stands; may refuse.

        Raises:
            DivergedError: If a loss, or a weight or buffer at the end of the round, is not finite.
        """
        self.receive(downlink)
        ready()
        for module in self.modules():
            set_to_train(module)
        self.begin()
        mean_loss = self._descend(samples)
        if len(samples.y):
            self.metrics["loss"] = mean_loss
        return Uplink(self.local.client, len(samples.y), self.end(samples), self.metrics)

    def _descend(self, samples: LabelledSamples) -> float:
        settings, local = self.local.training, self.local
        parameters = [p for module in self.modules() for p in module.parameters() if p.requires_grad]
        optimizer = make_optimizer(parameters, settings, round_rate(settings, local.round, local.num_rounds))
        generator = torch.Generator().manual_seed(derive(local.seed, local.round, local.client, "batches"))
        changes = parse_augmentation(settings.augment)
        noise = torch.Generator().manual_seed(derive(local.seed, local.round, local.client, "augment"))
        total, steps = torch.zeros((), device=local.device), 0
        self.epochs = epochs = epochs_for(len(samples.y), settings)
        for self.epoch in range(epochs):
            for rows in batches(len(samples.y), settings, generator):
                x = augment(samples.x[rows], changes, noise).to(local.device)
                y = samples.y[rows].to(local.device)
                optimizer.zero_grad(set_to_none=True)
                with frozen_batch_norm(self.modules() if len(rows) == 1 else []):
                    loss = self.loss(x, y)
                loss.backward()  # type: ignore[no-untyped-call]
                for module in self.modules() if settings.clip_norm else []:
                    nn.utils.clip_grad_norm_(module.parameters(), settings.clip_norm)
                optimizer.step()
                self.after_step()
                total, steps = total + loss.detach(), steps + 1
        mean_loss = float(total) / max(steps, 1)
        buffers = [b for module in self.modules() for b in module.buffers() if b.is_floating_point()]
        if not math.isfinite(mean_loss) or not all(bool(t.isfinite().all()) for t in (*parameters, *buffers)):
            raise DivergedError(
                f"client {local.client!r} diverged in round {local.round} (mean loss {mean_loss}); "
                "lower learning-rate, or set clip-norm"
            )
        return mean_loss

    @torch.no_grad()
    def evaluate(self, downlink: Downlink, samples: LabelledSamples) -> Uplink:
        """Evaluate on ``samples``; metrics are shares of correct answers, and the mean cross-entropy ``loss``."""
        self.receive(downlink)
        if len(samples.y):
            self.metrics.update(self.measure(self.model, samples))
        return Uplink(self.local.client, len(samples.y), {}, self.metrics)

    @torch.no_grad()
    def measure(self, model: Any, samples: LabelledSamples) -> dict[str, float]:
        """Return shares of correct answers by name and the mean cross-entropy of a model on at least one sample."""
        model.eval()
        correct: dict[str, int] = {}
        loss = 0.0
        for x, y in in_order(samples, self.local.device):
            z, logits = self.forward(model, x)
            loss += float(F.cross_entropy(logits, y, reduction="sum"))
            for name, labels in self.predictions(z, logits).items():
                correct[name] = correct.get(name, 0) + int((labels == y).sum())
        return {**{name: hits / len(samples.y) for name, hits in correct.items()}, "loss": loss / len(samples.y)}


def in_order(samples: LabelledSamples, device: torch.device) -> Iterator[tuple[Tensor, Tensor]]:
    """Yield batches of samples in order, on a device; inputs are copies, which a model may change in place.

    Args:
        samples: All of them.
        device: Where a batch goes.
    """
    for start in range(0, len(samples.y), EVALUATION_BATCH):
        rows = slice(start, start + EVALUATION_BATCH)
        yield samples.x[rows].to(device, copy=True), samples.y[rows].to(device)


def batches(num_samples: int, settings: TrainingSettings, generator: torch.Generator) -> list[Tensor]:
    """Split row numbers into batches.

    A last batch of one sample joins the batch before it, because BatchNorm cannot train on one sample;
    ``drop_last`` leaves out the last incomplete batch, but never the only one.

    Args:
        num_samples: N.
        settings: ``batch_size``, ``shuffle`` and ``drop_last``.
        generator: Source of the order when shuffling.

    Returns:
        Row numbers, one int64 tensor a batch.

    Example:
        >>> settings = TrainingSettings(batch_size=10, shuffle=False)
        >>> [len(rows) for rows in batches(21, settings, torch.Generator())]
        [10, 11]
    """
    rows = torch.randperm(num_samples, generator=generator) if settings.shuffle else torch.arange(num_samples)
    parts = list(torch.split(rows, settings.batch_size)) if num_samples else []
    if len(parts) > 1 and len(parts[-1]) < settings.batch_size:
        last = parts.pop()
        if len(last) == 1 and not settings.drop_last:
            parts[-1] = torch.cat([parts[-1], last])
        elif not settings.drop_last:
            parts.append(last)
    return parts


def epochs_for(num_samples: int, settings: TrainingSettings) -> int:
    """Return how many passes a round takes: ``local_epochs``, or what ``min_local_steps`` needs if that is more.

    Example:
        >>> settings = TrainingSettings(batch_size=10, local_epochs=2, min_local_steps=7)
        >>> epochs_for(20, settings), epochs_for(100, settings)
        (4, 2)
    """
    steps = len(batches(num_samples, replace(settings, shuffle=False), torch.Generator()))
    return max(settings.local_epochs, math.ceil(settings.min_local_steps / steps)) if steps else settings.local_epochs


def set_to_train(module: nn.Module) -> None:
    """Put a module into training mode, but BatchNorm layers with none but frozen parameters into evaluation mode.

    What is frozen stays as it is: such a layer normalises by its running statistics and does not change them.
    """
    module.train()
    for layer in module.modules():
        frozen = [not parameter.requires_grad for parameter in layer.parameters(recurse=False)]
        if isinstance(layer, nn.modules.batchnorm._BatchNorm) and frozen and all(frozen):
            layer.eval()


@contextlib.contextmanager
def frozen_batch_norm(modules: list[nn.Module]) -> Iterator[None]:
    """Run the BatchNorm layers of ``modules`` on their running statistics: for batches of one sample."""
    layers = [
        layer
        for module in modules
        for layer in module.modules()
        if isinstance(layer, nn.modules.batchnorm._BatchNorm) and layer.training
    ]
    for layer in layers:
        layer.eval()
    try:
        yield
    finally:
        for layer in layers:
            layer.train()


def make_optimizer(parameters: list[nn.Parameter], settings: TrainingSettings, rate: float) -> torch.optim.Optimizer:
    """Return a new local optimiser; like the papers' code, it keeps no state between rounds."""
    if settings.optimizer == "sgd":
        return torch.optim.SGD(parameters, lr=rate, momentum=settings.momentum, weight_decay=settings.weight_decay)
    adaptive = torch.optim.AdamW if settings.optimizer == "adamw" else torch.optim.Adam
    return adaptive(parameters, lr=rate, weight_decay=settings.weight_decay)


def round_rate(settings: TrainingSettings, round_number: int, num_rounds: int) -> float:
    """Return the learning rate of a round under ``settings.schedule``.

    ``cosine`` and ``linear`` fall from the full rate in round 1 towards 0 after the last round; ``step``
    divides by ten at half and at three quarters of the rounds.

    Example:
        >>> settings = TrainingSettings(learning_rate=1.0, schedule="linear")
        >>> [round_rate(settings, r, 4) for r in (1, 2, 3, 4)]
        [1.0, 0.75, 0.5, 0.25]
    """
    progress = (max(round_number, 1) - 1) / max(num_rounds, 1)
    factor = {
        "constant": 1.0,
        "linear": 1.0 - progress,
        "cosine": 0.5 * (1.0 + float(torch.cos(torch.tensor(progress * torch.pi, dtype=torch.float64)))),
        "step": 0.1 ** (int(progress >= 0.5) + int(progress >= 0.75)),
    }[settings.schedule]
    return settings.learning_rate * factor


def arrays_of(module: nn.Module) -> dict[str, npt.NDArray[Any]]:
    """Return a module's parameters and buffers as numpy arrays by name.

    Raises:
        TypeError: If ``module`` is not an ``nn.Module``, e.g. a head that is a plain method.
    """
    if not isinstance(module, nn.Module):
        raise TypeError(f"only an nn.Module can travel, got {type(module).__name__}; make the model's head a submodule")
    return {name: tensor.detach().cpu().numpy() for name, tensor in module.state_dict().items()}


def load_arrays(module: nn.Module, arrays: Arrays) -> None:
    """Load arrays into the entries of a module that bear their names; other entries stay.

    Raises:
        ValueError: If a name is unknown, or a shape differs (naming both).
    """
    state = module.state_dict()
    for name, array in arrays.items():
        if name not in state or tuple(state[name].shape) != array.shape:
            have = tuple(state[name].shape) if name in state else "no such entry"
            raise ValueError(f"{name} of shape {array.shape} does not fit this client's model ({have})")
    with torch.no_grad():
        for name, array in arrays.items():
            state[name].copy_(torch.from_numpy(np.asarray(array)))
