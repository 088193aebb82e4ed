"""FedGH: the server trains one head on the clients' prototypes."""

import numpy as np
import pytest
import torch
from torch import nn

from fedapp.config import SettingError
from fedapp.payload import Uplink
from fedapp.strategies.fedgh import FedGH, FedGHParams
from tests.strategies import federation
from tests.strategies.federation import (
    CLASSES,
    FEATURES,
    Federation,
    Net,
    array_bytes,
    arrays_of_samples,
    assert_close,
    class_means,
    first_weights,
    info,
    met,
    samples,
    server_weights,
    softmax,
    step,
    worked,
)


def head_step(weight, z, y, rate):
    """One step of the server: all (prototype, class) pairs, mean cross-entropy."""
    errors = (softmax(z @ weight.T) - np.eye(CLASSES)[y]) / len(y)
    return weight - rate * errors.T @ z


def uplink(client, classes, seed):
    rows = np.random.default_rng(seed).normal(size=(len(classes), FEATURES)).astype(np.float32)
    arrays = {"rows": rows, "classes": np.array(classes, np.int32), "counts": np.ones(len(classes), np.int32)}
    return Uplink(client, 1, arrays)


def test_server_descends_the_cross_entropy_of_all_uploaded_pairs():
    torch.manual_seed(0)
    head = nn.Linear(FEATURES, CLASSES, bias=False)
    weight = head.weight.detach().double().numpy()
    strategy = met(FedGH(FedGHParams(server_rate=0.3, server_epochs=7), head=head), info("0"), info("1"), info("2"))
    first, second = uplink("0", [1, 4], 1), uplink("1", [4, 5, 7], 2)
    strategy.aggregate([first, second, Uplink("2", 0)])
    z = np.concatenate([first.arrays["rows"], second.arrays["rows"]]).astype(np.float64)
    for _ in range(7):
        weight = head_step(weight, z, np.array([1, 4, 4, 5, 7]), 0.3)
    np.testing.assert_allclose(strategy.state()["weight"], weight, atol=1e-6)


def test_small_batches_on_the_server_use_every_pair_once_an_epoch():
    torch.manual_seed(0)
    head = nn.Linear(FEATURES, CLASSES, bias=False)
    weight = head.weight.detach().double().numpy()
    params = FedGHParams(server_rate=1e-4, server_epochs=1, server_batch=1)
    strategy = met(FedGH(params, head=head), info("0"))
    sent = uplink("0", [0, 2, 3, 6], 1)
    strategy.aggregate([sent])
    # At a tiny rate four steps of one pair are one step of four pairs at four times the rate.
    expected = head_step(weight, sent.arrays["rows"].astype(np.float64), np.array([0, 2, 3, 6]), 4e-4)
    np.testing.assert_allclose(strategy.state()["weight"], expected, atol=1e-6)


def test_nothing_uploaded_changes_nothing():
    strategy = met(FedGH(head=nn.Linear(FEATURES, CLASSES)), info("0"))
    before = strategy.state()
    strategy.aggregate([Uplink("0", 0)])
    assert_close(strategy.state(), before, atol=0)


def test_a_frozen_head_is_refused_in_words_because_nothing_is_left_to_train_on_the_server():
    head = nn.Linear(FEATURES, CLASSES).requires_grad_(False)
    with pytest.raises(SettingError, match="fedgh trains the head on the server, and freeze leaves nothing of it"):
        met(FedGH(head=head), info("0"))


def test_two_clients_for_two_rounds_by_hand(tmp_path):
    made = worked(tmp_path, "bilinear")
    outcome = made.run("fedgh", FedGHParams(server_rate=0.2, server_epochs=3), num_rounds=2)
    own = {client: first_weights(client, "bilinear") for client in made.clients}
    head = server_weights("bilinear")["head.weight"]
    for _ in range(2):
        pairs, labels = [], []
        for client, held in zip(made.clients, made.train, strict=True):
            own[client] = step({**own[client], "head.weight": head}, held, rate=0.5)
            x, y = arrays_of_samples(held)
            means, counts = class_means(x @ own[client]["features.weight"].T, y)  # in a pass after training
            pairs.append(means[counts > 0])
            labels.append(np.flatnonzero(counts))
        for _ in range(3):
            head = head_step(head, np.concatenate(pairs), np.concatenate(labels), 0.2)
    assert_close(outcome.strategy.state(), {"weight": head, "server-steps": np.array(2)})
    for client in made.clients:
        assert_close(made.model(outcome.strategy, client), own[client])


def test_without_server_epochs_a_round_is_local_training_from_the_common_head(tmp_path, monkeypatch):
    torch.manual_seed(3)
    common = nn.Linear(FEATURES, CLASSES).state_dict()

    def build():
        model = federation.plain()
        model.head.load_state_dict(common)
        return Net(model.features, model.head)

    monkeypatch.setitem(federation.MODELS, "common-head", build)
    made = Federation(tmp_path, kinds=("common-head",) * 3)
    params = FedGHParams(server_epochs=0)
    outcome = made.run("fedgh", params, num_rounds=1)
    assert outcome.digests == made.run("local", num_rounds=1).digests
    # The head never changes on the server, so in the second round everybody starts from it again.
    second = made.run("fedgh", params, num_rounds=2)
    assert second.digests != made.run("local", num_rounds=2).digests
    assert_close(second.strategy.state(), {**common, "server-steps": np.array(2)}, atol=0)


def test_bytes_are_prototypes_up_and_the_head_down(tmp_path):
    train = (samples(9, 0, [1, 2, 5]), samples(8, 1, [2, 7]), samples(5, 2, [4]))
    outcome = Federation(tmp_path, kinds=("plain", "batch-norm", "plain"), train=train).run("fedgh")
    head = 4 * (4 * 8 + 8)
    for record in outcome.records:
        for client, held in {"0": 3, "1": 2, "2": 1}.items():
            assert record.traffic["train", client].payload_up == held * (FEATURES + 2) * 4
            assert record.traffic["train", client].payload_down == head
            assert record.traffic["evaluate", client].payload_down == head
    real = sum(array_bytes(message) for message in (*outcome.grid.sent, *outcome.grid.received))
    assert real == 2 * (6 * (FEATURES + 2) * 4 + 2 * 3 * head)


def test_a_server_without_a_head_says_what_to_pass(tmp_path):
    made = Federation(tmp_path, kinds=("plain",) * 3)
    with pytest.raises(SettingError, match="head"):
        made.run("fedgh", build=None)
    assert made.run("fedgh", build=None, head=nn.Linear(FEATURES, CLASSES)).failures == []
