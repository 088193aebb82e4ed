"""A small federation in this process: tiny models, random signed data, a grid that can be tampered with."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from flwr.app import ArrayRecord, ConfigRecord, Message
from flwr.serverapp.strategy import Result
from torch import Tensor, nn

from fedapp.config import ServerSettings, TrainingSettings
from fedapp.local_grid import FIRST_NODE, LocalGrid
from fedapp.memory import ClientMemory, digest
from fedapp.node import Setup, client_app
from fedapp.payload import ClientInfo, layout
from fedapp.seeds import derive
from fedapp.strategies import METHODS, PayloadStrategy
from fedapp.strategies.records import Failure, RoundRecord
from tests.strategies.convolutional import CLASSES, FEATURES, INPUTS, ConvNet, Pixel

QUICK = TrainingSettings(learning_rate=0.1, batch_size=8, local_epochs=2, device="cpu")


@dataclass(frozen=True)
class Samples:
    x: Tensor
    y: Tensor


class Net(nn.Module):
    def __init__(self, features: nn.Module, head: nn.Module) -> None:
        super().__init__()
        self.features, self.head = features, head


def plain() -> Net:
    return Net(nn.Sequential(nn.Linear(INPUTS, FEATURES), nn.Tanh()), nn.Linear(FEATURES, CLASSES))


def batch_norm() -> Net:
    extractor = nn.Sequential(nn.Linear(INPUTS, 6), nn.BatchNorm1d(6), nn.Tanh(), nn.Linear(6, FEATURES))
    return Net(extractor, nn.Linear(FEATURES, CLASSES))


def deep_head() -> Net:
    head = nn.Sequential(nn.Linear(FEATURES, 3), nn.Tanh(), nn.Linear(3, CLASSES))
    return Net(nn.Sequential(nn.Linear(INPUTS, FEATURES), nn.Tanh()), head)


def linear() -> Net:
    """Scores x W^T: no parameter in the extractor, so that one step is easily worked by hand."""
    return Net(nn.Identity(), nn.Linear(INPUTS, CLASSES, bias=False))


def bilinear() -> Net:
    """Scores (x A^T) W^T, likewise with a trainable extractor."""
    return Net(nn.Linear(INPUTS, FEATURES, bias=False), nn.Linear(FEATURES, CLASSES, bias=False))


MODELS: dict[str, Callable[[], Any]] = {
    "plain": plain,
    "batch-norm": batch_norm,
    "deep-head": deep_head,
    "linear": linear,
    "bilinear": bilinear,
    "conv": ConvNet,
    "pixel": Pixel,
}
CONVOLUTIONAL = ("fedsap",)
"""Methods that need convolutions."""


def samples(count: int, seed: int, classes: Sequence[int] = range(CLASSES)) -> Samples:
    """Random signed samples; labels run through ``classes`` so that each of them occurs."""
    generator = torch.Generator().manual_seed(1000 + seed)
    labels = torch.tensor([classes[index % len(classes)] for index in range(count)], dtype=torch.int64)
    return Samples(torch.randn(count, INPUTS, generator=generator) + 0.5 * labels[:, None].sin(), labels)


def kinds_for(name: str) -> tuple[str, ...]:
    """Three clients' models, as unlike as the method allows."""
    if name in CONVOLUTIONAL:
        return ("conv",) * 3
    requires = METHODS[name].strategy.requires
    if "equal-models" in requires:
        return ("batch-norm",) * 3
    return ("plain", "batch-norm", "plain") if "equal-heads" in requires else ("plain", "batch-norm", "deep-head")


@dataclass
class Watcher:
    """Keeps what observers are told."""

    records: list[RoundRecord] = field(default_factory=list)
    digests: dict[str, str] = field(default_factory=dict)

    def on_start(self, strategy: PayloadStrategy) -> None:
        self.clients = list(strategy.clients)

    def on_round(self, strategy: PayloadStrategy, record: RoundRecord) -> None:
        self.records.append(record)

    def on_end(self, strategy: PayloadStrategy, digests: Mapping[str, str]) -> None:
        self.digests = dict(digests)


class TamperedGrid(LocalGrid):
    """A grid that remembers every message and may change, drop or repeat replies.

    ``tamper`` gets (client, reply) for each reply to a training or evaluation message and returns what arrives;
    ``arrange`` reorders all replies of a phase.
    """

    def __init__(self, federation: Federation, *, serialise: bool = False) -> None:
        super().__init__(federation.app, len(federation.clients), serialise=serialise)
        self.federation = federation
        self.tamper: Callable[[str, Message], list[Message]] = lambda client, reply: [reply]
        self.arrange: Callable[[list[Message]], list[Message]] = list
        self.sent: list[Message] = []
        self.received: list[Message] = []

    def client_of(self, node: int) -> str:
        return self.federation.clients[node - FIRST_NODE]

    def push_messages(self, messages):
        messages = list(messages)
        self.sent += messages
        return super().push_messages(messages)

    def pull_messages(self, message_ids):
        replies = list(super().pull_messages(message_ids))
        arrived = []
        for reply in replies:
            asked = reply.metadata.message_type in ("train", "evaluate")
            client = self.client_of(reply.metadata.src_node_id)
            arrived += self.tamper(client, reply) if asked else [reply]
        self.received += arrived
        return self.arrange(arrived)


@dataclass
class Federation:
    """Who takes part: ids, models and data by position; node i is client i."""

    memory: Path
    kinds: Sequence[str] = ("plain", "batch-norm", "deep-head")
    clients: Sequence[str] = ("0", "1", "2")
    train: Sequence[Samples] = tuple(samples(8 + 2 * index, index) for index in range(3))
    test: Sequence[Samples] = tuple(samples(6 + index, 50 + index) for index in range(3))
    training: TrainingSettings = QUICK
    shared_init: bool = False
    domains: Sequence[str] = ()
    refuse: Callable[[str, str], None] = lambda client, phase: None

    def load(self, context: Any) -> Setup:
        index = int(context.node_config["partition-id"])
        client = self.clients[index]
        self.refuse(client, "load")
        return Setup(
            client=client,
            model=MODELS[self.kinds[index]],
            train=self.train[index],
            test=self.test[index],
            num_classes=CLASSES,
            model_name=self.kinds[index],
            companion=lambda name: MODELS[name](),
            training=self.training,
            shared_init=self.shared_init,
            domain=self.domains[index] if self.domains else "",
            memory=self.memory,
        )

    def app(self, message: Message, context: Any) -> Message:
        self.refuse(self.clients[int(context.node_config["partition-id"])], message.metadata.message_type)
        return client_app(self.load)(message, context)

    def grid(self, **options: Any) -> TamperedGrid:
        return TamperedGrid(self, **options)

    def strategy(self, name: str, params: Any = None, *, seed: int = 0, **options: Any) -> PayloadStrategy:
        def build(info: ClientInfo, kind: str) -> Any:
            torch.manual_seed(seed + 77)
            return MODELS[kind or info.model]()

        options = {"settings": ServerSettings(node_timeout=20.0), "build": build, **options}
        return METHODS[name].strategy(params, seed=seed, **options)

    def run(
        self, name: str, params: Any = None, *, num_rounds: int = 2, grid: TamperedGrid | None = None, **options: Any
    ) -> Outcome:
        """Run a method from the start."""
        strategy = self.strategy(name, params, **options)
        watcher = Watcher()
        strategy.observers.append(watcher)
        grid = grid or self.grid()
        result = strategy.start(grid, num_rounds=num_rounds)
        return Outcome(strategy, grid, result, watcher)

    def kept(self, strategy: PayloadStrategy, client: str) -> dict[str, Tensor]:
        """Return what a client keeps on its disk after the last round."""
        return ClientMemory(self.memory, strategy.run, client).load(before=10**6) or {}

    def model(self, strategy: PayloadStrategy, client: str) -> dict[str, Tensor]:
        """Return the weights of a client's own model."""
        kept = self.kept(strategy, client)
        return {name.removeprefix("model/"): tensor for name, tensor in kept.items() if name.startswith("model/")}


@dataclass
class Outcome:
    """A run that has ended."""

    strategy: Any
    grid: TamperedGrid
    result: Result
    watcher: Watcher

    @property
    def records(self) -> list[RoundRecord]:
        return self.watcher.records

    @property
    def digests(self) -> dict[str, str]:
        return self.watcher.digests

    @property
    def failures(self) -> list[Failure]:
        return [failure for record in self.records for failure in record.failures]

    def metrics(self, *clients: str) -> list[Any]:
        """Return (round, phase, client, metrics without seconds) of every usable reply, of ``clients`` only if any."""
        return [
            (record.round, phase, reply.client, reply.num_examples, untimed(reply.metrics))
            for record in self.records
            for phase, replies in (("train", record.trained), ("evaluate", record.evaluated))
            for reply in replies
            if not clients or reply.client in clients
        ]

    def bits(self, *clients: str) -> tuple[Any, ...]:
        """Return everything that must be equal in equal runs: state, models and metrics, of ``clients`` only if any."""
        digests = {client: sha for client, sha in self.digests.items() if not clients or client in clients}
        return fingerprint(without_records_of_others(self.strategy.state(), clients)), digests, self.metrics(*clients)


def without_records_of_others(state: Mapping[str, Any], clients: Sequence[str]) -> dict[str, Any]:
    """Leave out what a server notes of single other clients under ``clients/<id>/``: it may know that they exist."""
    return {
        name: array
        for name, array in state.items()
        if not clients or not name.startswith("clients/") or name.split("/")[1] in clients
    }


def untimed(metrics: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in metrics.items() if not name.endswith("-seconds")}


def fingerprint(arrays: Mapping[str, Any]) -> str:
    """Return the SHA-256 of named arrays, in the order of the names."""
    return digest({name: torch.from_numpy(np.asarray(array)) for name, array in arrays.items()})


def copied(arrays: Mapping[str, Any]) -> dict[str, Any]:
    return {name: np.array(array) for name, array in arrays.items()}


def drive(strategy: PayloadStrategy, grid: LocalGrid, rounds: Sequence[int]) -> list[Any]:
    """Run rounds through Flower's own interface, as foreign code that drives a strategy does; return the metrics."""
    measured = []
    for number in rounds:
        messages = strategy.configure_train(number, ArrayRecord(), ConfigRecord(), grid)
        strategy.aggregate_train(number, grid.send_and_receive(messages))
        messages = strategy.configure_evaluate(number, ArrayRecord(), ConfigRecord(), grid)
        measured.append(untimed(strategy.aggregate_evaluate(number, grid.send_and_receive(messages)) or {}))
    return measured


def info(client: str, kind: str = "plain", num_examples: int = 1) -> ClientInfo:
    """Describe a client without asking one."""
    model = MODELS[kind]()
    arrays = {name: tensor.numpy() for name, tensor in model.state_dict().items()}
    head = {name: tensor.numpy() for name, tensor in model.head.state_dict().items()}
    width = INPUTS if kind == "linear" else FEATURES
    return ClientInfo(
        client, kind, CLASSES, width, (INPUTS,), num_examples, model_layout=layout(arrays), head_layout=layout(head)
    )


def met(strategy: PayloadStrategy, *infos: ClientInfo) -> Any:
    """Let a strategy begin as if it had met these clients."""
    strategy.roster.clients = {client.client: client for client in infos}
    strategy.begin()
    return strategy


def worked(memory: Path, kind: str, epochs: int = 1, **changes: Any) -> Federation:
    """Two clients with 6 and 10 samples, all in one batch, unshuffled: rounds that numpy can repeat."""
    training = TrainingSettings(learning_rate=0.5, batch_size=100, local_epochs=epochs, shuffle=False, device="cpu")
    train, test = (samples(6, 0), samples(10, 1)), (samples(5, 2), samples(5, 3))
    return Federation(memory, (kind, kind), ("0", "1"), train, test, **{"training": training, **changes})


def first_weights(client: str, kind: str, seed: int = 0) -> dict[str, np.ndarray]:
    """Return the weights that a client starts from, in float64."""
    torch.manual_seed(derive(seed, "init", client))
    return doubled(MODELS[kind]().state_dict())


def server_weights(kind: str, seed: int = 0) -> dict[str, np.ndarray]:
    """Return the weights that a server model starts from, in float64."""
    torch.manual_seed(seed + 77)
    return doubled(MODELS[kind]().state_dict())


def doubled(state: Mapping[str, Tensor]) -> dict[str, np.ndarray]:
    return {name: tensor.numpy().astype(np.float64) for name, tensor in state.items()}


def arrays_of_samples(held: Samples) -> tuple[np.ndarray, np.ndarray]:
    return held.x.numpy().astype(np.float64), held.y.numpy()


def softmax(scores: np.ndarray) -> np.ndarray:
    powers = np.exp(scores - scores.max(axis=1, keepdims=True))
    return powers / powers.sum(axis=1, keepdims=True)


def cross_entropy(scores: np.ndarray, y: np.ndarray) -> float:
    return float(-np.log(softmax(scores)[np.arange(len(y)), y]).mean())


def step(
    weights: Mapping[str, np.ndarray], held: Samples, rate: float, targets: np.ndarray | None = None, pull: Any = None
) -> dict[str, np.ndarray]:
    """Return the weights of ``linear`` or ``bilinear`` after one full-batch step down the mean cross-entropy.

    ``targets`` (B, C) replace the one-hot labels; ``pull(z, y)`` is a further gradient with respect to features.
    """
    x, y = arrays_of_samples(held)
    head, extractor = weights["head.weight"], weights.get("features.weight")
    z = x if extractor is None else x @ extractor.T
    errors = (softmax(z @ head.T) - (np.eye(CLASSES)[y] if targets is None else targets)) / len(y)
    stepped = {"head.weight": head - rate * errors.T @ z}
    if extractor is not None:
        upstream = errors @ head + (pull(z, y) if pull else 0.0)
        stepped["features.weight"] = extractor - rate * upstream.T @ x
    return stepped


def class_means(z: np.ndarray, y: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return means (C, D), zero where the class is absent, and counts (C,), in float64."""
    means, counts = np.zeros((CLASSES, z.shape[1])), np.bincount(y, minlength=CLASSES)
    for label in np.flatnonzero(counts):
        means[label] = z[y == label].mean(axis=0)
    return means, counts


def assert_close(found: Mapping[str, Any], expected: Mapping[str, np.ndarray], atol: float = 1e-6) -> None:
    assert found.keys() == expected.keys()
    for name, value in expected.items():
        np.testing.assert_allclose(np.asarray(found[name]), value, atol=atol, rtol=0, err_msg=name)


def array_bytes(message: Message) -> int:
    """Count the bytes of a message's arrays from the arrays themselves."""
    records = message.content.array_records.values()
    return sum(array.numpy().nbytes for record in records for array in record.values())
