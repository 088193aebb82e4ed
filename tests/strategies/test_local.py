"""Local training: nothing travels."""

import pytest
import torch

from fedapp.client_update import ClientUpdate
from fedapp.client_update import Local as Held
from fedapp.strategies.fedproto import FedProtoParams
from fedapp.strategies.fedsaf import FedSAFParams
from tests.strategies.federation import (
    MODELS,
    Federation,
    array_bytes,
    arrays_of_samples,
    assert_close,
    cross_entropy,
    doubled,
    first_weights,
    samples,
    step,
    worked,
)


def test_loss_is_the_mean_cross_entropy():
    torch.manual_seed(0)
    model, held = MODELS["bilinear"](), samples(9, 0)
    loss = ClientUpdate(None, Held("0", model, 8)).loss(held.x, held.y)
    x, y = arrays_of_samples(held)
    weights = doubled(model.state_dict())
    expected = cross_entropy(x @ weights["features.weight"].T @ weights["head.weight"].T, y)
    assert float(loss.detach()) == pytest.approx(expected, abs=1e-6)


def test_two_clients_for_two_rounds_by_hand(tmp_path):
    made = worked(tmp_path, "bilinear", epochs=2)
    outcome = made.run("local", num_rounds=2)
    for client, held in zip(made.clients, made.train, strict=True):
        weights = first_weights(client, "bilinear")
        for _ in range(2 * 2):
            weights = step(weights, held, rate=0.5)
        assert_close(made.model(outcome.strategy, client), weights)


@pytest.mark.parametrize(
    ("name", "params"),
    [
        ("fedsaf", FedSAFParams(proto_weight=0.0, inst_weight=0.0)),
        ("fedproto", FedProtoParams(proto_weight=0.0)),
        ("fedproto", FedProtoParams(proto_weight=0.0, proto_source="final-pass")),
    ],
)
def test_methods_of_prototypes_equal_it_at_zero_weights_bit_for_bit(tmp_path, name, params):
    made = Federation(tmp_path)
    alone, together = made.run("local", num_rounds=3), made.run(name, params, num_rounds=3)
    assert together.digests == alone.digests
    for mine, theirs in zip(alone.metrics(), together.metrics(), strict=True):
        assert mine[:4] == theirs[:4]
        assert mine[4].items() <= theirs[4].items()


def test_no_array_ever_travels(tmp_path):
    outcome = Federation(tmp_path).run("local")
    assert sum(array_bytes(message) for message in (*outcome.grid.sent, *outcome.grid.received)) == 0
    assert outcome.strategy.state() == {}
    flows = [flow for record in outcome.records for flow in record.traffic.values()]
    assert {(flow.payload_down, flow.payload_up) for flow in flows} == {(0, 0)}
