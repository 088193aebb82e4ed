"""LG-FedAvg: own extractors, one averaged head."""

import numpy as np
import pytest
from flwr.app import Array, ArrayRecord

from fedapp.config import SettingError
from fedapp.payload import Uplink
from fedapp.strategies.lg_fedavg import LGFedAvg
from tests.strategies.federation import (
    MODELS,
    Federation,
    array_bytes,
    assert_close,
    fingerprint,
    first_weights,
    info,
    met,
    server_weights,
    step,
    worked,
)


def head(seed):
    generator = np.random.default_rng(seed)
    return {
        "weight": generator.normal(size=(8, 4)).astype(np.float32),
        "bias": generator.normal(size=8).astype(np.float32),
    }


def test_server_averages_heads_by_samples():
    strategy = met(LGFedAvg(), info("0"), info("1"))
    first, second = head(1), head(2)
    strategy.aggregate([Uplink("0", 3, first), Uplink("1", 5, second)])
    expected = {name: (3 * first[name] + 5 * second[name]) / 8 for name in first}
    assert_close(strategy.state(), expected)
    strategy.aggregate([Uplink("0", 0, first)])
    assert_close(strategy.state(), expected)


def test_two_clients_for_two_rounds_by_hand(tmp_path):
    made = worked(tmp_path, "bilinear")
    outcome = made.run("lg-fedavg", num_rounds=2)
    weights = {client: first_weights(client, "bilinear") for client in made.clients}
    for _ in range(2):
        for client, held in zip(made.clients, made.train, strict=True):
            weights[client] = step(weights[client], held, rate=0.5)
        trained = {client: dict(value) for client, value in weights.items()}
        average = (6 * trained["0"]["head.weight"] + 10 * trained["1"]["head.weight"]) / 16
        for client in made.clients:
            weights[client]["head.weight"] = average
    assert_close(outcome.strategy.state(), {"weight": average})
    for client in made.clients:  # what a client keeps is what it trained; the average comes with the next message
        assert_close(made.model(outcome.strategy, client), trained[client])


def test_it_equals_fedavg_when_the_extractor_has_no_parameters(tmp_path):
    made = Federation(tmp_path, kinds=("linear",) * 3)
    first = server_weights("linear")["head.weight"].astype(np.float32)
    whole, heads = made.strategy("fedavg"), made.strategy("lg-fedavg")
    whole.start(made.grid(), ArrayRecord({"head.weight": Array(first)}), num_rounds=3)
    heads.start(made.grid(), ArrayRecord({"weight": Array(first)}), num_rounds=3)
    assert fingerprint({"weight": whole.state()["head.weight"]}) == fingerprint(heads.state())
    for client in made.clients:
        assert fingerprint(made.model(whole, client)) == fingerprint(made.model(heads, client))


def test_only_the_head_travels_and_not_down_in_the_first_round(tmp_path):
    outcome = Federation(tmp_path, kinds=("plain", "batch-norm", "plain")).run("lg-fedavg")
    by_hand = 4 * (4 * 8 + 8)
    first, second = outcome.records
    for client in ("0", "1", "2"):
        assert (first.traffic["train", client].payload_down, first.traffic["train", client].payload_up) == (0, by_hand)
        assert second.traffic["train", client].payload_down == second.traffic["train", client].payload_up == by_hand
    real = sum(array_bytes(message) for message in (*outcome.grid.sent, *outcome.grid.received))
    assert real == (2 * 3 + 3 + 2 * 3) * by_hand


def test_initial_arrays_of_a_whole_model_stop_the_run_at_once(tmp_path):
    made = Federation(tmp_path, kinds=("plain",) * 3)
    with pytest.raises(SettingError, match=r"initial arrays of lg-fedavg do not fit .* 'plain'.*features.0.weight"):
        made.strategy("lg-fedavg").start(made.grid(), ArrayRecord(MODELS["plain"]().state_dict()), num_rounds=1)
