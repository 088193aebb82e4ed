"""Deadlines, thresholds and misfits: what a server does when clients are late, few, or not what they say."""

from __future__ import annotations

import time
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import nn

from fedapp.client_update import ClientUpdate
from fedapp.config import ServerSettings, SettingError, TrainingSettings
from fedapp.local_grid import LocalGrid
from fedapp.node import Setup, client_app
from fedapp.strategies import METHODS, FedAvg, FedSAF, LGFedAvg, Local
from fedapp.strategies.base import PayloadStrategy
from fedapp.strategies.roster import NodesMissingError


class Samples:
    def __init__(self, y: torch.Tensor) -> None:
        self.x = torch.randn(len(y), 4, generator=torch.Generator().manual_seed(0))
        self.y = y


class Net(nn.Module):
    def __init__(self, classes: int = 3) -> None:
        super().__init__()
        self.features = nn.Linear(4, 5)
        self.head = nn.Linear(5, classes)


class HeadIsAMethod(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.features, self.scores = nn.Linear(4, 5), nn.Linear(5, 3)

    def head(self, z: torch.Tensor) -> torch.Tensor:
        return self.scores(z)


class Doubled(nn.Module):
    """What a user writes who is used to a DataLoader, which hands out copies."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x.mul_(2)


class InPlace(Net):
    def __init__(self) -> None:
        super().__init__()
        self.features = nn.Sequential(Doubled(), self.features)


class TooWide(Net):
    def __init__(self) -> None:
        super().__init__()
        self.head = nn.Linear(7, 3)


def grid(tmp_path: Any, clients: int = 3, **values: Any) -> LocalGrid:
    labels = torch.tensor([0, 1, 2, 0, 1, 2])

    def load(context: Any) -> Setup:
        own = {"model": Net, "train": Samples(labels), "test": Samples(labels), "num_classes": 3, "memory": tmp_path}
        training = TrainingSettings(local_epochs=1, batch_size=3)
        return Setup(client=str(context.node_config["partition-id"]), training=training, **{**own, **values})

    return LocalGrid(client_app(load), clients)


def run(strategy: PayloadStrategy, on: LocalGrid, rounds: int = 1) -> PayloadStrategy:
    strategy.start(on, num_rounds=rounds)
    return strategy


def test_a_client_that_misses_the_deadline_is_named_and_the_others_go_on(
    tmp_path: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Slow(ClientUpdate):
        def begin(self) -> None:
            time.sleep(1.7 if self.local.client == "1" else 0.0)

    on = grid(tmp_path)
    run(Local(), on)  # the first training step of a process takes its time: torch imports what it needs
    monkeypatch.setitem(METHODS, "local", replace(METHODS["local"], update=Slow))
    strategy = run(Local(settings=ServerSettings(round_timeout=1.5)), on)
    assert [reply.client for reply in strategy.record.trained] == ["0", "2"]
    assert [(f.client, f.kind) for f in strategy.record.failures] == [("1", "NoReply")]


@pytest.mark.parametrize("method", ["local", "fedproto", "fedavg"])
def test_a_model_that_works_in_place_leaves_the_samples_as_they_are(tmp_path: Any, method: str) -> None:
    held = Samples(torch.tensor([0, 1, 2, 0, 1, 2]))
    before = held.x.clone()
    built = {"build": lambda info, name: InPlace()}
    strategy = METHODS[method].strategy(None, **built)
    run(strategy, grid(tmp_path, model=InPlace, train=held, test=held), rounds=2)
    assert len(strategy.record.trained) == 3
    assert torch.equal(held.x, before)


def test_more_replies_than_can_ever_come_are_refused_before_the_first_round(tmp_path: Any) -> None:
    settings = ServerSettings(min_replies=3, fraction_train=0.5)
    with pytest.raises(SettingError, match="min-replies = 3 can never be reached: 2 of 3 clients train in a round"):
        run(Local(settings=settings), grid(tmp_path))


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"model": TooWide}, r"model 'model' fails on one sample of shape \(4,\): RuntimeError: mat1 and mat2 .*1x5"),
        ({"num_classes": 2}, r"must give features .* scores \(N, 2\), got \(1, 5\) and \(1, 3\)"),
        ({"train": Samples(torch.tensor([0, 7]))}, r"labels of the train samples must be in \[0, 3\), got 0 to 7"),
        ({"test": Samples(torch.tensor([0, 1]).int())}, r"labels of the test samples must be int64, got torch.int32"),
    ],
)
def test_what_does_not_fit_is_said_once_before_anything_trains(values: Any, message: str, tmp_path: Any) -> None:
    with pytest.raises(NodesMissingError, match=message) as error:
        run(FedSAF(), grid(tmp_path, **values))
    assert str(error.value).count("clients 0, 1, 2:") == 1


def test_a_head_that_is_a_method_cannot_travel_and_says_so_at_the_start(tmp_path: Any) -> None:
    with pytest.raises(SettingError, match=r"its head is no nn\.Module"):
        run(LGFedAvg(), grid(tmp_path, model=HeadIsAMethod))
    assert len(run(FedSAF(), grid(tmp_path, model=HeadIsAMethod)).record.trained) == 3


class Tampering(LocalGrid):
    """Changes the reply of client 1 to training messages."""

    def tamper(self, content: Any) -> None:
        raise NotImplementedError

    def push_messages(self, messages: Any) -> Any:
        identifiers = super().push_messages(messages)
        for message, identifier in zip(messages, identifiers, strict=True):
            train = message.metadata.message_type == "train"
            if train and self.contexts[message.metadata.dst_node_id].node_config["partition-id"] == 1:
                self.tamper(self._replies[identifier].content)
        return identifiers


def test_a_reply_that_claims_more_samples_than_the_client_has_is_rejected(tmp_path: Any) -> None:
    class Boaster(Tampering):
        def tamper(self, content: Any) -> None:
            content.config_records["about"]["num_examples"] = 10**12

    strategy = FedAvg(build=lambda info, name: Net())
    run(strategy, Boaster(grid(tmp_path).app, 3))
    assert [reply.client for reply in strategy.record.trained] == ["0", "2"]
    assert "at most the 6 samples that it said it holds" in strategy.record.failures[0].reason


def test_a_reply_without_the_prototypes_it_owes_is_rejected(tmp_path: Any) -> None:
    class Forgetful(Tampering):
        def tamper(self, content: Any) -> None:
            del content["arrays"]

    strategy = run(FedSAF(), Forgetful(grid(tmp_path).app, 3))
    assert [reply.client for reply in strategy.record.trained] == ["0", "2"]
    assert "sent no prototypes" in strategy.record.failures[0].reason


def test_a_batch_norm_buffer_that_overflows_is_divergence_and_the_good_model_stays(tmp_path: Any) -> None:
    class Overflowing(ClientUpdate):
        def after_step(self) -> None:
            self.model.features[1].running_var.fill_(float("inf"))

    class Normed(Net):
        def __init__(self) -> None:
            super().__init__()
            self.features = nn.Sequential(nn.Linear(4, 5), nn.BatchNorm1d(5))

    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(METHODS, "local", replace(METHODS["local"], update=Overflowing))
        strategy = run(Local(), grid(tmp_path, model=Normed))
    assert {failure.kind for failure in strategy.record.failures} == {"DivergedError"}
    assert not list(tmp_path.rglob("*.safetensors"))
