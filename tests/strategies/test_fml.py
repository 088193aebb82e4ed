"""FML: an own and a shared model teach each other."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from fedapp.client_update import Local
from fedapp.config import SettingError
from fedapp.payload import Downlink, Uplink
from fedapp.strategies.fedavg import FedAvgParams
from fedapp.strategies.fml import FML, FMLParams, FMLUpdate
from tests.strategies.federation import (
    CLASSES,
    MODELS,
    Federation,
    array_bytes,
    arrays_of_samples,
    assert_close,
    cross_entropy,
    doubled,
    fingerprint,
    first_weights,
    info,
    met,
    samples,
    server_weights,
    softmax,
    step,
    worked,
)


def scores(weights, x):
    extractor = weights.get("features.weight")
    return (x if extractor is None else x @ extractor.T) @ weights["head.weight"].T


def divergence(student, teacher):
    """KL(teacher || student), summed over classes, mean over the batch."""
    p, q = softmax(teacher), softmax(student)
    return float((p * (np.log(p) - np.log(q))).sum(axis=1).mean())


def client(params, kind="bilinear", shared="linear"):
    torch.manual_seed(0)
    update = FMLUpdate(params, Local("0", MODELS[kind](), CLASSES, build=lambda name: MODELS[name]()))
    torch.manual_seed(1)
    sent = {name: tensor.numpy().copy() for name, tensor in MODELS[shared]().state_dict().items()}
    update.receive(Downlink(sent, {"shared-model": shared}))
    return update


def mixed(share, x, y, taught, teacher):
    """Targets whose cross-entropy has the gradient of share CE + (1 - share) KL(teacher || taught)."""
    return share * np.eye(CLASSES)[y] + (1 - share) * softmax(scores(teacher, x))


# ---- equations --------------------------------------------------------------------------------------


def test_both_objectives_and_their_gradients_follow_the_formulas():
    update, held = client(FMLParams(alpha=0.3, beta=0.6)), samples(9, 0)
    loss = update.loss(held.x, held.y)
    loss.backward()
    x, y = arrays_of_samples(held)
    own, shared = doubled(update.model.state_dict()), doubled(update.shared.state_dict())
    p, g = scores(own, x), scores(shared, x)
    expected = 0.3 * cross_entropy(p, y) + 0.7 * divergence(p, g) + 0.6 * cross_entropy(g, y) + 0.4 * divergence(g, p)
    assert float(loss.detach()) == pytest.approx(expected, abs=1e-6)
    for model, before, targets in (
        (update.model, own, mixed(0.3, x, y, own, shared)),
        (update.shared, shared, mixed(0.6, x, y, shared, own)),
    ):
        after = step(before, held, rate=1.0, targets=targets)
        gradients = {name: before[name] - after[name] for name in before}
        assert_close({name: value.grad for name, value in model.named_parameters()}, gradients)


@pytest.mark.parametrize(("weighting", "weights"), [("uniform", (1, 1)), ("samples", (3, 5))])
def test_server_averages_the_shared_models(weighting, weights):
    strategy = FML(FMLParams(weighting=weighting))
    first, second = ({"w": np.full(3, value, np.float32)} for value in (-2, 6))
    strategy.load_state(first)
    met(strategy, info("0"), info("1"))
    strategy.aggregate([Uplink("0", 3, first), Uplink("1", 5, second)])
    np.testing.assert_allclose(strategy.state()["w"], np.average([-2, 6], weights=weights), atol=1e-6)


def test_shares_outside_0_and_1_are_refused():
    for name in ("alpha", "beta"):
        with pytest.raises(SettingError, match=f"{name} must be at most 1, got 1.5"):
            FMLParams(**{name: 1.5})


# ---- rounds by hand and reductions ------------------------------------------------------------------


def test_two_clients_for_two_rounds_by_hand(tmp_path):
    made = worked(tmp_path, "bilinear")
    outcome = made.run("fml", FMLParams(alpha=0.3, beta=0.6, shared_model="linear"), num_rounds=2)
    own = {client: first_weights(client, "bilinear") for client in made.clients}
    shared = server_weights("linear")
    for _ in range(2):
        trained = []
        for client_id, held in zip(made.clients, made.train, strict=True):
            x, y = arrays_of_samples(held)
            before = own[client_id]
            own[client_id] = step(before, held, 0.5, targets=mixed(0.3, x, y, before, shared))
            trained.append(step(shared, held, 0.5, targets=mixed(0.6, x, y, shared, before)))
        shared = {name: (trained[0][name] + trained[1][name]) / 2 for name in shared}
    assert_close(outcome.strategy.state(), shared)
    for client_id in made.clients:
        assert_close(made.model(outcome.strategy, client_id), own[client_id])


def test_own_models_equal_local_training_at_alpha_1_bit_for_bit(tmp_path):
    made = Federation(tmp_path)
    assert made.run("fml", FMLParams(alpha=1.0)).digests == made.run("local").digests


@pytest.mark.parametrize("weighting", ["uniform", "samples"])
def test_the_shared_model_equals_fedavg_at_beta_1_bit_for_bit(tmp_path, weighting):
    made = Federation(tmp_path, kinds=("batch-norm",) * 3)
    mutual = made.run("fml", FMLParams(beta=1.0, weighting=weighting), num_rounds=3)
    average = made.run("fedavg", FedAvgParams(weighting=weighting), num_rounds=3)
    assert fingerprint(mutual.strategy.state()) == fingerprint(average.strategy.state())


def test_gradient_clipping_does_not_couple_the_two_models(tmp_path):
    made = Federation(tmp_path, kinds=("batch-norm",) * 3)
    made.training = replace(made.training, clip_norm=0.2)
    mutual, alone = made.run("fml", FMLParams(alpha=1.0)), made.run("local")
    assert mutual.digests == alone.digests


# ---- what travels -----------------------------------------------------------------------------------


def test_the_shared_model_travels_and_evaluation_needs_nothing(tmp_path):
    outcome = Federation(tmp_path).run("fml")
    by_hand = 4 * (5 * 4 + 4 + 4 * 8 + 8)  # the first client's architecture, "plain"
    for record in outcome.records:
        for client_id in ("0", "1", "2"):
            flow = record.traffic["train", client_id]
            assert flow.payload_down == flow.payload_up == by_hand
            assert record.traffic["evaluate", client_id].payload_down == 0
    real = sum(array_bytes(message) for message in (*outcome.grid.sent, *outcome.grid.received))
    assert real == 2 * 3 * 2 * by_hand


def test_a_client_that_cannot_build_the_shared_model_says_what_it_lacks():
    update = FMLUpdate(FMLParams(), Local("0", MODELS["plain"](), CLASSES))
    with pytest.raises(RuntimeError, match="companion"):
        update.receive(Downlink({"w": np.zeros(1, np.float32)}, {"shared-model": "plain"}))
