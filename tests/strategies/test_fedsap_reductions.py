"""FedSAP where it becomes something simpler: FedAvg, one-path averaging, width-scaled averaging."""

import numpy as np
import pytest

from fedapp.config import TrainingSettings
from fedapp.strategies.fedsap import FedSAPParams
from tests.strategies.federation import Federation, samples
from tests.strategies.rounds_of_submodels import Rounds

TRAINING = TrainingSettings(
    learning_rate=0.1, momentum=0.9, weight_decay=0.01, batch_size=8, local_epochs=2, device="cpu"
)
FULL = {"keep_ratios": "1", "weighting": "samples", "penalty": 0.0, "recalibrate": False, "warmup": 0}


@pytest.fixture(scope="module")
def averaged(tmp_path_factory):
    """FedAvg's model after two rounds."""
    made = Federation(tmp_path_factory.mktemp("fedavg"), kinds=("conv",) * 3, training=TRAINING)
    return made.run("fedavg").strategy.state()


@pytest.mark.parametrize(
    "changes",
    [
        {"global_target": 1.0, "grouping": False, "bn_stats": "mean"},
        {"global_target": 1.0, "min_group": 1, "min_spread": 0.0, "matching": "row"},
        {"tri_state": False, "grouping": False, "role_scope": "client"},
    ],
    ids=["all-global", "all-global-in-groups", "one-path"],
)
def test_with_full_budgets_and_all_channels_global_it_is_fedavg(changes, averaged, tmp_path):
    made = Federation(tmp_path, kinds=("conv",) * 3, training=TRAINING)
    outcome = made.run("fedsap", FedSAPParams(**{**FULL, **changes}))
    assert outcome.failures == []
    entries = {name for name, array in averaged.items() if array.dtype.kind == "f"}
    assert outcome.strategy.shared.arrays.keys() == entries
    for name in entries:
        np.testing.assert_allclose(outcome.strategy.shared.arrays[name], averaged[name], atol=1e-6, err_msg=name)


def test_private_channels_take_it_away_from_fedavg(averaged, tmp_path):
    made = Federation(tmp_path, kinds=("conv",) * 3, training=TRAINING)
    params = FedSAPParams(**FULL, grouping=False, global_target=0.1, tau=0.0)
    found = made.run("fedsap", params).strategy.shared.arrays
    assert max(np.abs(found[name] - averaged[name]).max() for name in found) > 1e-3


def one_group(**changes):
    return FedSAPParams(max_groups=1, warmup=0, weighting="samples", keep_ratios="1,0.6,0.4", **changes)


def test_one_group_is_the_average_over_all_who_trained_an_entry():
    rounds = Rounds(one_group())
    for number in (1, 2, 3):
        before = {name: array.copy() for name, array in rounds.weights.items()}
        rounds.round(number)
        assert not any(rounds.server.shared.pools.values())
        for name, old in before.items():
            total, count = np.zeros(old.shape), np.zeros(old.shape)
            for client in rounds.clients:
                full = rounds.laid_out(client, name)
                held = rounds.uplinks[client].num_examples
                total += np.where(np.isnan(full), 0, held * full)
                count += np.where(np.isnan(full), 0, held)
            expected = np.where(count > 0, total / np.maximum(count, 1), old)
            np.testing.assert_allclose(rounds.weights[name], expected, atol=1e-6, err_msg=name)


def test_whole_rows_count_with_what_was_sent_in_the_gaps():
    rounds = Rounds(one_group(matching="row"), train=(samples(8, 0), samples(10, 1), samples(6, 2))).run(1)
    before = {name: array.copy() for name, array in rounds.weights.items()}
    rounds.round(2)
    for name, old in before.items():
        total, count = np.zeros(old.shape), np.zeros(len(old))
        for client in rounds.clients:
            full, held = rounds.laid_out(client, name), rounds.uplinks[client].num_examples
            rows = ~np.isnan(full).reshape(len(old), -1).all(axis=1)
            total[rows] += held * np.where(np.isnan(full), old, full)[rows]
            count[rows] += held
        wide = count.reshape(-1, *(1,) * (old.ndim - 1))
        expected = np.where(wide > 0, total / np.maximum(wide, 1), old)
        np.testing.assert_allclose(rounds.weights[name], expected, atol=1e-6, err_msg=name)


def test_stage_coupling_with_common_utilities_is_width_scaled_averaging():
    """In the order of the common ranking every client's part is a corner of the weights, as in HeteroFL."""
    params = one_group(coupling="stage", utility_scope="global", adaptive=False)
    rounds = Rounds(params).run(1)
    rounds.round(2)
    graph = rounds.server.graph
    sent = {client: rounds.server._sent[client].plan.active for client in rounds.clients}
    order = [
        np.argsort(-sum(sent[client][part].astype(int) for client in sent), kind="stable") for part in graph.slices
    ]
    reads = {"conv1": None, "layer1.conv1": 0, "layer1.conv2": 1, "layer1.shortcut.0": 0, "layer2.conv1": 2,
             "layer2.conv2": 4, "layer3.0": 5, "head": 6}  # fmt: skip
    names = [layer.name for layer in graph.layers]
    for layer, source in reads.items():
        first = order[names.index(layer)] if layer in names else np.arange(8)
        second = np.arange(1) if source is None else order[source]
        total = count = 0
        for client in rounds.clients:
            full = rounds.laid_out(client, f"{layer}.weight")[first][:, second]
            held = ~np.isnan(full)
            rows, columns = (
                int(held.reshape(len(full), full.shape[1], -1).any(axis=(axis, 2)).sum()) for axis in (1, 0)
            )
            corner = np.zeros_like(held)
            corner[:rows, :columns] = True
            np.testing.assert_array_equal(held, corner)
            weight = rounds.uplinks[client].num_examples * corner
            total, count = total + weight * np.nan_to_num(full), count + weight
        found = rounds.weights[f"{layer}.weight"][first][:, second]
        np.testing.assert_allclose(found[count > 0], (total / np.maximum(count, 1))[count > 0], atol=1e-6)
