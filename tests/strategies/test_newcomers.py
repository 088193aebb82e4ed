"""Clients that take no part and train for their evaluation alone: worked by hand, and what may go wrong."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from fedapp import node
from fedapp.config import ServerSettings
from fedapp.local_grid import FIRST_NODE
from fedapp.payload import Downlink, Instruction
from fedapp.strategies.fedproto import FedProtoParams
from fedapp.strategies.fml import FMLParams
from fedapp.strategies.held_out import as_newcomer
from fedapp.tiers import Tier
from tests.strategies.federation import (
    CLASSES,
    FEATURES,
    QUICK,
    Federation,
    Samples,
    arrays_of_samples,
    class_means,
    doubled,
    first_weights,
    samples,
    softmax,
    step,
    untimed,
    worked,
)

RATE = 0.5


def leaving(clients, **changes):
    return ServerSettings(leave_clients=clients, node_timeout=20.0, **changes)


def one_newcomer(path, kind="bilinear", epochs=1):
    """Client 0 takes part, client 1 does not; both train in one batch, unshuffled."""
    made = worked(path, kind)
    training = replace(made.training, newcomer_epochs=epochs)
    return replace(made, training=training, test=(samples(5, 2), samples(60, 3)))


def z_of(weights, x):
    return x @ weights["features.weight"].T if "features.weight" in weights else x


def scores(weights, x):
    return z_of(weights, x) @ weights["head.weight"].T


def loss(weights, held):
    x, y = arrays_of_samples(held)
    return float(-np.log(softmax(scores(weights, x))[np.arange(len(y)), y]).mean())


def share(scored, y):
    return float((scored.argmax(axis=1) == y).mean())


def answers(outcome, number=-1):
    return outcome.records[number].left_out[0].metrics


def assert_answers(outcome, weights, held, number=-1):
    """The loss tells weights apart far better than a share of right answers does."""
    found = answers(outcome, number)
    assert found["adapted-loss"] == pytest.approx(loss(weights, held), abs=1e-5)
    x, y = arrays_of_samples(held)
    expected = {"all": pytest.approx(share(scores(weights, x), y), abs=1e-12)}
    assert outcome.records[number].evaluations["left-out-adapted"] == expected


# ---- what it trains, worked by hand ------------------------------------------------------------------


@pytest.mark.parametrize("epochs", [1, 3])
def test_without_anything_shared_it_takes_its_own_steps_from_its_first_weights_in_every_round(tmp_path, epochs):
    made = one_newcomer(tmp_path, epochs=epochs)
    outcome = made.run("local", settings=leaving("1"))
    weights = first_weights("1", "bilinear")
    for _ in range(epochs):
        weights = step(weights, made.train[1], RATE)
    for number in (0, 1):
        assert_answers(outcome, weights, made.test[1], number)


def test_a_global_model_is_what_it_starts_from(tmp_path):
    made = one_newcomer(tmp_path)
    outcome = made.run("fedavg", settings=leaving("1"))
    assert_answers(outcome, step(doubled_arrays(outcome.strategy.state()), made.train[1], RATE), made.test[1])


@pytest.mark.parametrize("method", ["lg-fedavg", "fedgh"])
def test_a_global_head_is_what_it_starts_from_beside_its_own_extractor(tmp_path, method):
    made = one_newcomer(tmp_path)
    outcome = made.run(method, settings=leaving("1"))
    head = doubled_arrays(outcome.strategy.state())["weight"]
    start = {**first_weights("1", "bilinear"), "head.weight": head}
    assert_answers(outcome, step(start, made.train[1], RATE), made.test[1])


@pytest.mark.parametrize("evaluate_by", ["head", "prototype"])
def test_global_prototypes_pull_it_and_answer_for_it_whatever_the_others_are_evaluated_by(tmp_path, evaluate_by):
    made = one_newcomer(tmp_path)
    params = FedProtoParams(proto_weight=3.0, evaluate_by=evaluate_by)
    outcome = made.run("fedproto", params, settings=leaving("1"), num_rounds=1)
    x, y = arrays_of_samples(made.train[0])
    means, counts = class_means(z_of(first_weights("0", "bilinear"), x), y)

    def pull(z, labels):
        return 3 * 2 * (z - means[labels]) * (counts[labels] > 0)[:, None] / (len(z) * FEATURES)

    weights = step(first_weights("1", "bilinear"), made.train[1], RATE, pull=pull)
    assert_answers(outcome, weights, made.test[1])
    x, y = arrays_of_samples(made.test[1])
    distances = np.square(z_of(weights, x)[:, None] - means).sum(axis=2)
    distances[:, counts == 0] = np.inf
    assert outcome.records[0].evaluations["left-out-adapted-prototype"]["all"] == share(-distances, y)


def test_a_shared_model_teaches_it_and_its_own_answers(tmp_path):
    made = one_newcomer(tmp_path)
    outcome = made.run("fml", FMLParams(alpha=0.3, shared_model="linear"), settings=leaving("1"))
    shared, own = doubled_arrays(outcome.strategy.state()), first_weights("1", "bilinear")
    x, y = arrays_of_samples(made.train[1])
    targets = 0.3 * np.eye(CLASSES)[y] + 0.7 * softmax(scores(shared, x))
    assert_answers(outcome, step(own, made.train[1], RATE, targets), made.test[1])


def doubled_arrays(state):
    return doubled({name: torch.from_numpy(np.asarray(array)) for name, array in state.items()})


def test_it_trains_bit_for_bit_as_it_would_have_if_it_took_part(tmp_path):
    training = replace(QUICK, newcomer_epochs=QUICK.local_epochs)
    everybody = Federation(tmp_path, training=training).run("local", num_rounds=1)
    without = Federation(tmp_path, training=training).run("local", settings=leaving("1"), num_rounds=1)
    own = next(reply.metrics for reply in everybody.records[0].evaluated if reply.client == "1")
    trained = {key.removeprefix("adapted-"): v for key, v in answers(without).items() if key.startswith("adapted-")}
    assert trained == untimed(own)


def test_its_batches_are_drawn_anew_in_every_round(tmp_path):
    outcome = Federation(tmp_path).run("local", settings=leaving("1"), num_rounds=2)
    assert answers(outcome, 0)["adapted-loss"] != answers(outcome, 1)["adapted-loss"]
    assert answers(outcome, 0)["loss"] == answers(outcome, 1)["loss"]


# ---- what may go wrong -------------------------------------------------------------------------------


def test_without_test_samples_it_does_not_train(tmp_path):
    made = Federation(tmp_path, test=(samples(6, 50), samples(0, 51), samples(8, 52)))
    outcome = made.run("fedsaf", settings=leaving("1"))
    assert outcome.failures == []
    assert untimed(answers(outcome)) == {}
    assert "newcomer-seconds" not in answers(outcome)


def test_without_training_samples_it_answers_as_it_came(tmp_path):
    made = Federation(tmp_path, train=(samples(8, 0), samples(0, 1), samples(12, 2)))
    outcome = made.run("fedsaf", settings=leaving("1"))
    assert outcome.failures == []
    found = answers(outcome)
    assert found["adapted-loss"] == found["loss"]
    assert found["adapted-prototype-accuracy"] == found["prototype-accuracy"]


def test_one_that_diverges_is_evaluated_as_it_came_and_is_no_failure_of_the_federation(tmp_path, caplog):
    broken = Samples(torch.full((9, Federation.train[1].x.shape[1]), torch.nan), Federation.train[1].y[:9])
    made = Federation(tmp_path, train=(Federation.train[0], broken, Federation.train[2]))
    outcome = made.run("local", settings=leaving("1"))
    for record in outcome.records:
        assert record.failures == []
        assert set(record.evaluations) == {"left-out"}
        assert [reply.client for reply in record.evaluated] == ["0", "2"]
    assert "client 1 is not evaluated as a newcomer that trains: client '1' diverged in round 1" in caplog.text


def test_one_that_has_no_memory_for_training_does_not_train(tmp_path, caplog):
    made = Federation(tmp_path)
    asked = Instruction("local", run="r", downlink=as_newcomer(Downlink()))
    context = made.grid().contexts[FIRST_NODE + 1]
    small = replace(made.load(context), tier=Tier("pi", memory_mib=1e-3))
    assert "adapted-accuracy" in node.evaluate(asked, made.load(context)).metrics
    assert "adapted-accuracy" not in node.evaluate(asked, small).metrics
    assert "tier pi" in caplog.text


def test_one_that_trained_before_it_was_left_out_starts_from_its_first_weights(tmp_path):
    made = one_newcomer(tmp_path)
    earlier = made.run("local", num_rounds=4)
    asked = Instruction("local", run=earlier.strategy.run, round=4, downlink=as_newcomer(Downlink()))
    found = node.evaluate(asked, made.load(earlier.grid.contexts[FIRST_NODE + 1])).metrics
    weights = first_weights("1", "bilinear")
    assert found["adapted-loss"] == pytest.approx(loss(step(weights, made.train[1], RATE), made.test[1]), abs=1e-5)
    assert found["loss"] != pytest.approx(loss(weights, made.test[1]), abs=1e-5)
