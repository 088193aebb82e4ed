"""FedAvg: one averaged model."""

import numpy as np
import pytest
import torch
from flwr.app import ArrayRecord

from fedapp.config import SettingError
from fedapp.payload import Uplink
from fedapp.strategies.fedavg import FedAvg, FedAvgParams
from tests.strategies.federation import (
    MODELS,
    Federation,
    array_bytes,
    assert_close,
    fingerprint,
    info,
    met,
    server_weights,
    step,
    worked,
)

BATCH_NORM = {f"features.1.{name}" for name in ("weight", "bias", "running_mean", "running_var", "num_batches_tracked")}


def arrays(seed, kind="batch-norm"):
    """Random signed arrays in the shape of a model."""
    generator = np.random.default_rng(seed)
    state = {name: tensor.numpy() for name, tensor in MODELS[kind]().state_dict().items()}
    return {
        name: generator.normal(size=value.shape).astype(np.float32) if value.dtype.kind == "f" else np.array(7 * seed)
        for name, value in state.items()
    }


def server(params=None, *infos):
    strategy = FedAvg(params)
    strategy.load_state(arrays(9))
    return met(strategy, *(infos or (info("0", "batch-norm"), info("1", "batch-norm"))))


@pytest.mark.parametrize(("weighting", "weights"), [("samples", (3, 5)), ("uniform", (1, 1))])
def test_server_averages_by_the_formula(weighting, weights):
    strategy = server(FedAvgParams(weighting=weighting))
    first, second = arrays(1), arrays(2)
    strategy.aggregate([Uplink("0", 3, first), Uplink("1", 5, second)])
    for name, value in strategy.state().items():
        assert value.dtype == first[name].dtype
        expected = np.average([first[name], second[name]], axis=0, weights=weights)
        expected = np.rint(expected) if value.dtype.kind == "i" else expected
        np.testing.assert_allclose(value, expected, atol=1e-6)


def test_running_means_of_0_and_10_become_5_and_step_counts_stay_whole_numbers():
    strategy = server()
    first, second = arrays(1), arrays(2)
    first["features.1.running_mean"][:], second["features.1.running_mean"][:] = 0, 10
    first["features.1.num_batches_tracked"], second["features.1.num_batches_tracked"] = np.array(4), np.array(10)
    strategy.aggregate([Uplink("0", 2, first), Uplink("1", 2, second)])
    np.testing.assert_array_equal(strategy.state()["features.1.running_mean"], np.full(6, 5, np.float32))
    assert strategy.state()["features.1.num_batches_tracked"] == 7
    assert strategy.state()["features.1.num_batches_tracked"].dtype == np.int64


@pytest.mark.parametrize("weighting", ["samples", "uniform"])
def test_clients_without_samples_have_no_weight(weighting):
    strategy = server(FedAvgParams(weighting=weighting))
    strategy.aggregate([Uplink("0", 0, arrays(1)), Uplink("1", 4, arrays(2))])
    assert fingerprint(strategy.state()) == fingerprint(arrays(2))
    strategy.aggregate([Uplink("0", 0, arrays(1))])
    assert fingerprint(strategy.state()) == fingerprint(arrays(2))


def test_one_client_is_plain_gradient_descent(tmp_path):
    made = worked(tmp_path, "bilinear", epochs=3)
    made.clients = ("0",)
    outcome = made.run("fedavg", num_rounds=2)
    weights = server_weights("bilinear")
    for _ in range(2 * 3):
        weights = step(weights, made.train[0], rate=0.5)
    assert_close(outcome.strategy.state(), weights)


def test_two_clients_for_two_rounds_by_hand(tmp_path):
    made = worked(tmp_path, "bilinear")
    outcome = made.run("fedavg", num_rounds=2)
    weights = server_weights("bilinear")
    for _ in range(2):
        six, ten = (step(weights, held, rate=0.5) for held in made.train)
        weights = {name: (6 * six[name] + 10 * ten[name]) / 16 for name in weights}
    assert_close(outcome.strategy.state(), weights)


def test_statistics_of_batch_norm_are_averaged_by_default(tmp_path):
    made = Federation(tmp_path, kinds=("batch-norm",) * 3)
    strategy = made.run("fedavg").strategy
    models = [made.model(strategy, client) for client in made.clients]
    name = "features.1.running_mean"
    expected = np.average([m[name].numpy() for m in models], axis=0, weights=[len(s.y) for s in made.train])
    np.testing.assert_allclose(strategy.state()[name], expected, atol=1e-6)


def test_local_batch_norm_stays_on_the_clients_and_never_travels(tmp_path):
    made = Federation(tmp_path, kinds=("batch-norm",) * 3)
    outcome = made.run("fedavg", FedAvgParams(bn="local"))
    names = {
        name
        for message in (*outcome.grid.sent, *outcome.grid.received)
        for record in message.content.array_records.values()
        for name in record
    }
    assert names == set(MODELS["batch-norm"]().state_dict()) - BATCH_NORM == set(outcome.strategy.state())
    models = [made.model(outcome.strategy, client) for client in made.clients]
    for name in BATCH_NORM - {"features.1.num_batches_tracked"}:
        assert len({tuple(model[name].tolist()) for model in models}) == 3
    # Their own statistics went on over both rounds: 2 epochs of 1, 2 and 2 batches in each of 2 rounds.
    assert [int(model["features.1.num_batches_tracked"]) for model in models] == [4, 8, 8]


def test_local_batch_norm_of_a_model_without_any_changes_nothing(tmp_path):
    made = Federation(tmp_path, kinds=("plain",) * 3)
    assert made.run("fedavg", FedAvgParams(bn="local")).bits() == made.run("fedavg").bits()


def test_bytes_are_every_entry_of_the_model_in_both_directions(tmp_path):
    outcome = Federation(tmp_path, kinds=("batch-norm",) * 3).run("fedavg")
    # Linear 5x6+6, BatchNorm 4x6, Linear 6x4+4, head 4x8+8: floats of 4 bytes, and one int64 step count.
    by_hand = 4 * (36 + 24 + 28 + 40) + 8
    for record in outcome.records:
        for client in ("0", "1", "2"):
            assert record.traffic["train", client].payload_down == by_hand
            assert record.traffic["train", client].payload_up == by_hand
            assert record.traffic["evaluate", client].payload_down == by_hand
            assert record.traffic["evaluate", client].payload_up == 0
    real = sum(array_bytes(message) for message in (*outcome.grid.sent, *outcome.grid.received))
    assert real == 2 * 3 * 3 * by_hand


def test_a_server_without_any_model_says_what_to_pass(tmp_path):
    made = Federation(tmp_path, kinds=("plain",) * 3)
    with pytest.raises(SettingError, match="initial_arrays"):
        made.run("fedavg", build=None)


def test_initial_arrays_are_where_it_starts(tmp_path):
    made = Federation(tmp_path, kinds=("plain",) * 3)
    torch.manual_seed(5)
    state = MODELS["plain"]().state_dict()
    strategy = made.strategy("fedavg", build=None)
    result = strategy.start(made.grid(), ArrayRecord(state), num_rounds=0)
    assert {name: value.tolist() for name, value in result.arrays.to_torch_state_dict().items()} == {
        name: value.tolist() for name, value in state.items()
    }


@pytest.mark.parametrize("kind", ["batch-norm", "deep-head"])
def test_initial_arrays_of_another_model_stop_the_run_at_once(tmp_path, kind):
    made = Federation(tmp_path, kinds=("plain",) * 3)
    strategy = made.strategy("fedavg", build=None)
    with pytest.raises(SettingError, match=r"initial arrays of fedavg do not fit .* 'plain'.*differ in"):
        strategy.start(made.grid(), ArrayRecord(MODELS[kind]().state_dict()), num_rounds=1)


def test_initial_arrays_may_lack_batch_norm_that_stays_on_the_clients(tmp_path):
    made = Federation(tmp_path, kinds=("batch-norm",) * 3)
    shared = made.run("fedavg", FedAvgParams(bn="local")).result.arrays
    strategy = made.strategy("fedavg", FedAvgParams(bn="local"), build=None)
    strategy.start(made.grid(), shared, num_rounds=1)
    assert strategy.record.aggregated
