"""A tiny model and tiny samples, so that the app's parts can be tested without data sets and model families."""

import os

os.environ.setdefault("OMP_NUM_THREADS", "1")  # two test processes share the machine's cores

from dataclasses import dataclass

import pytest
import torch
from flwr.app import ConfigRecord, Context, Message, RecordDict
from torch import nn

from fedapp import paths
from fedapp.client_update import Local
from fedapp.config import TrainingSettings
from fedapp.local_grid import LocalGrid
from fedapp.node import Setup, client_app, client_id

CLASSES, INPUTS, WIDTH = 3, 4, 5


@pytest.fixture(autouse=True)
def users_directory_is_the_working_directory(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let no test hand the user's directory, which a run remembers for its process, to the next."""
    monkeypatch.setattr(paths, "_base", None)


@dataclass(frozen=True, eq=False)
class Samples:
    x: torch.Tensor
    y: torch.Tensor


class TinyModel(nn.Module):
    """Features of width 5 and a linear head; ``norm`` puts a BatchNorm into the extractor."""

    def __init__(self, norm: bool = False) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Linear(INPUTS, WIDTH), nn.BatchNorm1d(WIDTH) if norm else nn.Identity())
        self.head = nn.Linear(WIDTH, CLASSES)

    def features(self, x: torch.Tensor) -> torch.Tensor:
        return torch.tanh(self.body(x))


def samples(count: int, seed: int = 0) -> Samples:
    """Signed inputs and labels that depend on the seed only."""
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(count, INPUTS, generator=generator)
    return Samples(x, torch.randint(CLASSES, (count,), generator=generator))


def tiny(seed: int = 0, *, norm: bool = False) -> TinyModel:
    """A tiny model with the weights of a seed, whatever the process's random stream."""
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        return TinyModel(norm)


def local(model: nn.Module, **changes) -> Local:
    training = {"batch_size": 4, "local_epochs": 1, "learning_rate": 0.1, "device": "cpu"}
    own = {key: changes.pop(key) for key in list(changes) if key in TrainingSettings.__dataclass_fields__}
    return Local("7", model, CLASSES, training=TrainingSettings(**(training | own)), **changes)


def setup(client: str = "0", *, train: int = 9, test: int = 7, norm: bool = False, **changes) -> Setup:
    """A node by hand: its samples depend on its id, which may be any name."""
    offset = sum(client.encode())
    training = TrainingSettings(batch_size=4, local_epochs=2, learning_rate=0.1, device="cpu")
    standard = {
        "client": client,
        "model": lambda: TinyModel(norm),
        "train": samples(train, offset),
        "test": samples(test, 1000 + offset),
        "num_classes": CLASSES,
        "model_name": "tiny",
        "training": training,
    }
    return Setup(**(standard | changes))


def context(**node_config) -> Context:
    return Context(run_id=1, node_id=5, node_config=node_config, state=RecordDict(), run_config={})


@pytest.fixture
def grid_of():
    """Make a LocalGrid of tiny clients; ``load`` and options may be replaced."""

    def make(count: int = 2, load=None, *, serialise: bool = False, **options) -> LocalGrid:
        app = client_app(load or (lambda context: setup(client_id(context), **options)))
        return LocalGrid(app, count, serialise=serialise)

    return make


def message(kind: str, content: RecordDict | None = None, node: int = 1000) -> Message:
    """A message as a ServerApp makes it; needs a LocalGrid to have been made before."""
    return Message(content or RecordDict({"empty": ConfigRecord()}), node, kind)
