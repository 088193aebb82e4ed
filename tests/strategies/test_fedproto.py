"""FedProto, and what all methods of prototypes share: recording, construction, evaluation, bytes."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import nn

from fedapp.client_update import Local
from fedapp.config import SettingError
from fedapp.payload import Downlink, Uplink
from fedapp.strategies.fedproto import FedProto, FedProtoParams, FedProtoUpdate
from fedapp.strategies.fedsaf import FedSAFParams
from tests.strategies.federation import (
    CLASSES,
    FEATURES,
    MODELS,
    QUICK,
    Federation,
    array_bytes,
    arrays_of_samples,
    assert_close,
    class_means,
    cross_entropy,
    doubled,
    drive,
    first_weights,
    info,
    met,
    samples,
    step,
    worked,
)

KNOWN = np.array([0, 1, 3, 4, 6], np.int32)


def rows(seed, count, width=FEATURES):
    return np.random.default_rng(seed).normal(size=(count, width)).astype(np.float32)


def uplink(client, prototypes, num_examples=1):
    """An uplink of {class: (row, count)}."""
    classes = sorted(prototypes)
    arrays = {
        "rows": np.array([prototypes[label][0] for label in classes], np.float32),
        "classes": np.array(classes, np.int32),
        "counts": np.array([prototypes[label][1] for label in classes], np.int32),
    }
    return Uplink(client, num_examples, arrays)


# ---- equations --------------------------------------------------------------------------------------


def test_loss_and_gradient_follow_the_formula_and_unknown_classes_count_in_the_mean():
    torch.manual_seed(0)
    model, held = MODELS["bilinear"](), samples(16, 0)
    update = FedProtoUpdate(FedProtoParams(proto_weight=3.0), Local("0", model, CLASSES))
    prototypes = rows(1, len(KNOWN))
    update.receive(Downlink({"rows": prototypes, "classes": KNOWN}))
    loss = update.loss(held.x, held.y)
    loss.backward()
    x, y = arrays_of_samples(held)
    weights = doubled(model.state_dict())
    z = x @ weights["features.weight"].T
    targets = {int(label): prototypes[index] for index, label in enumerate(KNOWN)}
    gaps = np.array([row - targets.get(int(label), row) for row, label in zip(z, y, strict=True)])
    expected = cross_entropy(z @ weights["head.weight"].T, y) + 3 * (gaps**2).sum() / (16 * FEATURES)
    assert float(loss.detach()) == pytest.approx(expected, abs=1e-6)
    after = step(weights, held, rate=1.0, pull=lambda z, y: 3 * 2 * gaps / gaps.size)
    gradient = weights["features.weight"] - after["features.weight"]
    np.testing.assert_allclose(model.features.weight.grad.numpy(), gradient, atol=1e-6)


@pytest.mark.parametrize(("weighting", "expected"), [("uniform", 2.0), ("samples", 3.0)])
def test_global_prototypes_are_means_over_the_holders(weighting, expected):
    strategy = met(FedProto(FedProtoParams(proto_weighting=weighting)), info("0"), info("1"), info("2"))
    zero, four, other = np.zeros(FEATURES), np.full(FEATURES, 4.0), np.full(FEATURES, -1.5)
    strategy.aggregate([uplink("0", {2: (zero, 1)}), uplink("1", {2: (four, 3), 5: (other, 7)}), Uplink("2", 0)])
    construction = strategy.construction
    np.testing.assert_array_equal(construction.prototypes[2], np.full(FEATURES, expected, np.float32))
    np.testing.assert_array_equal(construction.prototypes[5], other)
    assert construction.known.nonzero()[0].tolist() == [2, 5]


def test_a_class_that_nobody_sends_keeps_its_last_prototype():
    strategy = met(FedProto(), info("0"), info("1"))
    strategy.aggregate([uplink("0", {1: (np.ones(FEATURES), 2)}), uplink("1", {3: (np.full(FEATURES, -2), 2)})])
    strategy.aggregate([uplink("0", {1: (np.full(FEATURES, 9), 2)})])
    sent = strategy.downlink(info("0"))
    assert sent.arrays["classes"].tolist() == [1, 3]
    np.testing.assert_array_equal(sent.arrays["rows"], [[9] * FEATURES, [-2] * FEATURES])


def test_a_client_that_is_absent_in_a_round_leaves_its_class_alone(tmp_path):
    made = Federation(tmp_path, train=(samples(8, 0, [0, 1]), samples(8, 1, [1, 2]), samples(8, 2, [2, 3])))
    strategy, grid = made.strategy("fedproto"), made.grid()
    drive(strategy, grid, (1,))
    first = strategy.state()["prototypes"]
    grid.tamper = lambda client, reply: [] if client == "2" else [reply]
    drive(strategy, grid, (2,))
    second = strategy.state()["prototypes"]
    np.testing.assert_array_equal(second[3], first[3])
    assert (second[:3] != first[:3]).any(axis=1).all()


# ---- rounds by hand ---------------------------------------------------------------------------------


def test_two_clients_for_two_rounds_by_hand(tmp_path):
    made = worked(tmp_path, "bilinear")
    outcome = made.run("fedproto", FedProtoParams(proto_weight=2.0), num_rounds=2)
    weights = {client: first_weights(client, "bilinear") for client in made.clients}
    prototypes, known = np.zeros((CLASSES, FEATURES)), np.zeros(CLASSES, bool)
    for _ in range(2):
        sums, holders = np.zeros((CLASSES, FEATURES)), np.zeros(CLASSES)

        def pull(z, y, prototypes=prototypes, known=known):
            return 2.0 * 2 * (z - prototypes[y]) * known[y][:, None] / z.size

        for client, held in zip(made.clients, made.train, strict=True):
            x, y = arrays_of_samples(held)
            means, counts = class_means(x @ weights[client]["features.weight"].T, y)  # seen while it trains
            sums, holders = sums + means, holders + (counts > 0)
            weights[client] = step(weights[client], held, rate=0.5, pull=pull)
        prototypes, known = sums / np.maximum(holders, 1)[:, None], holders > 0
    for client in made.clients:
        assert_close(made.model(outcome.strategy, client), weights[client])
    assert_close(outcome.strategy.state(), {"prototypes": prototypes, "known": known})


def test_it_equals_fedsaf_with_mse_at_the_instance_level_when_every_class_is_known(tmp_path):
    train = tuple(samples(16, index) for index in range(3))  # every client holds every class
    made = Federation(tmp_path, train=train)
    proto = made.run("fedproto", FedProtoParams(proto_weight=0.7), num_rounds=3).strategy
    params = FedSAFParams(alignment="mse", proto_weight=0.0, inst_weight=0.7)
    saf = made.run("fedsaf", params, num_rounds=3).strategy
    alone = made.run("local", num_rounds=3).strategy
    assert proto.state()["known"].all()
    assert_close(saf.state(), proto.state())
    for client in made.clients:
        assert_close(made.model(saf, client), made.model(proto, client))
        gaps = [
            (made.model(proto, client)[name] - value).abs().max() for name, value in made.model(alone, client).items()
        ]
        assert max(gaps) > 1e-3  # the term did something


# ---- recording --------------------------------------------------------------------------------------


def recorded(source, model, held, epochs=3):
    training = replace(QUICK, local_epochs=epochs, batch_size=100, shuffle=False)
    update = FedProtoUpdate(FedProtoParams(proto_source=source), Local("0", model, CLASSES, training))
    return update.train(Downlink(), held).arrays


@pytest.mark.parametrize(("source", "steps"), [("last-epoch", [2]), ("all-epochs", [0, 1, 2]), ("final-pass", [3])])
def test_prototypes_average_the_features_of_the_epochs_asked_for(source, steps):
    torch.manual_seed(0)
    model, held = MODELS["bilinear"](), samples(11, 0, [1, 2, 6])
    weights = [doubled(model.state_dict())]
    for _ in range(3):
        weights.append(step(weights[-1], held, rate=0.1))
    x, y = arrays_of_samples(held)
    z = np.concatenate([x @ weights[index]["features.weight"].T for index in steps])
    means, counts = class_means(z, np.tile(y, len(steps)))
    found = recorded(source, model, held)
    assert found["classes"].tolist() == [1, 2, 6]
    np.testing.assert_allclose(found["rows"], means[[1, 2, 6]], atol=1e-6)
    np.testing.assert_array_equal(found["counts"], counts[[1, 2, 6]])


def test_all_sources_agree_for_a_frozen_extractor_without_batch_norm():
    torch.manual_seed(0)
    model, held = MODELS["plain"](), samples(11, 0)
    for parameter in model.features.parameters():
        parameter.requires_grad_(False)
    last, every, final = (
        recorded(source, model, held)["rows"] for source in ("last-epoch", "all-epochs", "final-pass")
    )
    np.testing.assert_allclose(every, last, atol=1e-6)
    np.testing.assert_allclose(final, last, atol=1e-6)


def test_a_pass_after_training_uses_the_running_statistics_of_batch_norm():
    torch.manual_seed(0)
    model, held = MODELS["batch-norm"](), samples(11, 0)
    found = recorded("final-pass", model, held)
    model.eval()
    with torch.no_grad():
        means, counts = class_means(model.features(held.x).double().numpy(), held.y.numpy())
    np.testing.assert_allclose(found["rows"], means[counts > 0], atol=1e-6)


# ---- predicting -------------------------------------------------------------------------------------


class Answering(nn.Module):
    """Features are the inputs; the head always answers class 0."""

    def features(self, x):
        return x[:, :2]

    def head(self, z):
        return torch.nn.functional.one_hot(torch.zeros(len(z), dtype=torch.int64), CLASSES).float()


def shares(evaluate_by, downlink):
    x = torch.tensor([[9.0, 0, 0, 0, 0], [0, 9.0, 0, 0, 0], [8.0, 1, 0, 0, 0], [1.0, 0, 0, 0, 0]])
    held = type(samples(1, 0))(x, torch.tensor([3, 5, 3, 0]))
    update = FedProtoUpdate(FedProtoParams(evaluate_by=evaluate_by), Local("0", Answering(), CLASSES))
    metrics = update.evaluate(downlink, held).metrics
    return {name: value for name, value in metrics.items() if name != "loss"}


@pytest.mark.parametrize(
    ("evaluate_by", "expected"),
    [
        ("head", {"accuracy": 0.25}),
        ("prototype", {"accuracy": 0.75}),
        ("both", {"accuracy": 0.25, "prototype-accuracy": 0.75}),
    ],
)
def test_head_prototypes_or_both_predict(evaluate_by, expected):
    sent = Downlink({"rows": np.array([[9, 0], [0, 9]], np.float32), "classes": np.array([3, 5], np.int32)})
    assert shares(evaluate_by, sent) == expected
    assert shares(evaluate_by, Downlink()) == {"accuracy": 0.25}  # before there are prototypes the head predicts


@pytest.mark.parametrize("evaluate_by", ["head", "prototype", "both"])
def test_prototypes_are_sent_for_an_evaluation_only_if_they_predict(tmp_path, evaluate_by):
    outcome = Federation(tmp_path).run("fedproto", FedProtoParams(evaluate_by=evaluate_by))
    for record in outcome.records:
        down = {record.traffic["evaluate", client].payload_down for client in ("0", "1", "2")}
        assert down == ({0} if evaluate_by == "head" else {CLASSES * FEATURES * 4 + CLASSES * 4})
        assert {"prototype-accuracy" in reply.metrics for reply in record.evaluated} == {evaluate_by == "both"}


# ---- bytes and checks -------------------------------------------------------------------------------


def test_bytes_are_rows_ids_and_counts_up_and_rows_and_ids_down(tmp_path):
    train = (samples(9, 0, [1, 2, 5]), samples(8, 1, [2, 7]), samples(5, 2, [4]))
    outcome = Federation(tmp_path, train=train).run("fedproto")
    held = {"0": 3, "1": 2, "2": 1}
    for record in outcome.records:
        known = 0 if record.round == 1 else 5  # classes 1, 2, 4, 5, 7
        for client, count in held.items():
            flow = record.traffic["train", client]
            assert flow.payload_up == count * FEATURES * 4 + count * 4 + count * 4
            assert flow.payload_down == known * FEATURES * 4 + known * 4
    sent = [array_bytes(message) for message in outcome.grid.sent if message.metadata.message_type == "train"]
    came = [array_bytes(message) for message in outcome.grid.received if message.metadata.message_type == "train"]
    assert sent == [0, 0, 0] + [5 * (FEATURES + 1) * 4] * 3
    assert came == [count * (FEATURES + 2) * 4 for count in held.values()] * 2


@pytest.mark.parametrize(
    ("spoil", "rule"),
    [
        (lambda a: a | {"classes": np.array([1, 1], np.int32)}, "distinct"),
        (lambda a: a | {"classes": np.array([1, CLASSES], np.int32)}, "distinct and in"),
        (lambda a: a | {"classes": np.array([-1, 1], np.int32)}, "distinct and in"),
        (lambda a: a | {"counts": np.array([0, 1], np.int32)}, "counts must be > 0"),
        (lambda a: {"rows": a["rows"], "classes": a["classes"]}, "belong together"),
    ],
)
def test_prototypes_that_make_no_sense_are_rejected(spoil, rule):
    strategy = met(FedProto(), info("0"))
    good = uplink("0", {1: (np.ones(FEATURES), 2), 4: (np.ones(FEATURES), 3)})
    strategy.check_uplink(good)
    with pytest.raises(ValueError, match=rule):
        strategy.check_uplink(replace(good, arrays=spoil(dict(good.arrays))))


def test_an_unknown_construction_is_named():
    with pytest.raises(SettingError, match="unknown prototype construction 'median'"):
        FedProtoParams(proto_construction="median")
