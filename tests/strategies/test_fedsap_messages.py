"""FedSAP: what travels, how many bytes of it, and what is refused."""

import re
from dataclasses import replace

import numpy as np
import pytest
from flwr.app import Array, ArrayRecord
from torch import nn

from fedapp.config import SettingError
from fedapp.strategies.fedsap import FedSAPParams
from fedapp.wire import ARRAYS
from tests.strategies import federation
from tests.strategies.federation import CLASSES, INPUTS, Federation, array_bytes, samples
from tests.strategies.rounds_of_submodels import SIZES, TOTAL, Rounds, with_arrays

FIVE = {"kinds": ("conv",) * 5, "clients": tuple("01234"), "train": tuple(samples(8, i) for i in range(5)),
        "test": tuple(samples(5, 50 + i) for i in range(5))}  # fmt: skip


def test_bytes_of_a_client_that_keeps_a_fifth_are_counted_by_hand(tmp_path):
    outcome = Federation(tmp_path, **FIVE).run("fedsap", num_rounds=2)
    strategy = outcome.strategy
    for client in ("0", "4"):
        active = strategy.assignment.members[client].roles > 0  # the warm-up: the same in both rounds
        stem, a, b, shortcut, c, d, last = (set(np.flatnonzero(active[part])) for part in strategy.graph.slices)
        first, second = b | shortcut, b | shortcut | d
        weights = 3 * (len(stem) + len(stem) * len(a) + len(a) * len(b) + len(first) * len(c) + len(c) * len(d))
        weights += 3 * len(second) * len(last) + len(stem) * len(shortcut) + len(shortcut)  # 1x1, with a bias
        channels = int(active.sum())
        model = weights + 4 * channels + CLASSES * len(last) + CLASSES
        if client == "4":
            assert channels == round(0.2 * TOTAL)
            assert 4 * model < 0.1 * 4 * 2000
        for number, record in enumerate(outcome.records, 1):
            signal = number == 1  # means and deviations of the five channels of the stem
            traffic = record.traffic["train", client]
            assert traffic.payload_up == 4 * (model + 2 * channels + 10 * signal)
            assert traffic.payload_down == 4 * (model + 15 * signal) + -(-TOTAL // 4)
            assert record.traffic["evaluate", client].payload_up == 0
    total = sum(sum(t.payload_up + t.payload_down for t in record.traffic.values()) for record in outcome.records)
    assert total == sum(array_bytes(message) for message in (*outcome.grid.sent, *outcome.grid.received))


# ---- uploads that cannot be used --------------------------------------------------------------------


def spoiled(path, change):
    """Run a round in which client 1's arrays are changed; return why it was rejected."""
    made = Federation(path, kinds=("conv",) * 3)
    grid = made.grid()

    def tamper(client, reply):
        if client == "1" and reply.metadata.message_type == "train":
            record = reply.content.array_records[ARRAYS]
            arrays = change({name: array.numpy().copy() for name, array in record.items()})
            reply.content[ARRAYS] = ArrayRecord({name: Array(array) for name, array in arrays.items()})
        return [reply]

    grid.tamper = tamper
    outcome = made.run("fedsap", num_rounds=2, grid=grid)
    assert [(f.client, f.kind) for f in outcome.failures] == [("1", "RejectedMessage")] * 2
    assert all(record.aggregated for record in outcome.records)
    return outcome.failures[0].reason


def changed(name, change):
    return lambda arrays: {**arrays, name: change(arrays[name])}


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (changed("conv1.weight", lambda a: np.repeat(a, 2, axis=0)), r"conv1.weight must have shape"),
        (changed("head.weight", lambda a: np.zeros((CLASSES, 8), np.float32)), r"head.weight must have shape"),
        (changed("statistics/activation", lambda a: a[:-1].copy()), r"statistics/activation must have shape"),
        (changed("statistics/activation", lambda a: np.full_like(a, np.nan)), r"activation holds values that"),
        (changed("statistics/gradient", lambda a: np.full_like(a, np.inf)), r"gradient holds values that"),
        (changed("statistics/gradient", lambda a: -a), r"statistics/gradient must be at least 0, got -"),
        (changed("bn1.running_var", lambda a: -a), r"bn1.running_var must be at least 0, got -"),
        (changed("signal", lambda a: a[:-1].copy()), r"signal must have shape \(10,\)"),
        (lambda arrays: {n: a for n, a in arrays.items() if n != "head.bias"}, "trained, but did not send head.bias"),
    ],
    ids=["rows", "columns", "short", "nan", "infinite", "negative", "variance", "signal", "missing"],
)  # fmt: skip
def test_uploads_off_the_plan_or_out_of_range_are_rejected_and_the_run_goes_on(change, reason, tmp_path):
    found = spoiled(tmp_path, change)
    assert "'1'" in found
    assert re.search(reason, found), found


def test_gradients_of_zero_make_no_trouble():
    rounds = Rounds(FedSAPParams(signal="conv1_grad", warmup=0, min_group=1, center=False))
    dead = ("signal", "statistics/gradient")
    rounds.tamper = lambda uplink: with_arrays(
        uplink, **{name: np.zeros_like(uplink.arrays[name]) for name in dead if name in uplink.arrays}
    )
    rounds.run(2)
    assert all(np.isfinite(member.utility).all() for member in rounds.members.values() if member.keep_ratio == 1)


# ---- clients and models that cannot take part -------------------------------------------------------


def test_a_budget_that_does_not_hold_one_channel_a_layer_names_the_client(tmp_path):
    with pytest.raises(
        SettingError, match=r"client 1 \(keep ratio 0.1\): .*cannot hold one channel per layer; raise it"
    ):
        Federation(tmp_path, kinds=("conv",) * 3).run("fedsap", FedSAPParams(keep_ratios="1,0.1"))


def test_a_budget_in_cost_that_is_too_small_names_the_client(tmp_path):
    params = FedSAPParams(keep_ratios="1,0.02", metric="macs")
    with pytest.raises(SettingError, match=r"client 1 \(keep ratio 0.02\): .*smallest network costs"):
        Federation(tmp_path, kinds=("conv",) * 3).run("fedsap", params)


def test_a_client_that_comes_late_with_too_small_a_budget_is_left_out_by_name():
    rounds = Rounds(FedSAPParams())
    late = replace(rounds.info("1"), client="9", keep_ratio=0.1)
    assert "client 9 (keep ratio 0.1)" in rounds.server.refuse(late)
    before = dict(rounds.server.clients)
    rounds.server.roster.clients["9"], rounds.server.roster.nodes["9"] = late, 9
    rounds.server._leave_out_misfits(before)
    assert "9" not in rounds.server.clients
    assert "cannot hold one channel" in rounds.server.roster.failures[-1].reason
    rounds.round(1)


@pytest.mark.parametrize("kind", ["plain", "batch-norm", "linear"])
def test_a_model_without_convolutions_is_refused(kind, tmp_path):
    with pytest.raises(SettingError, match=rf"fedsap cannot prune {kind}: Net has no Conv2d"):
        Federation(tmp_path, kinds=(kind,) * 3).run("fedsap")


class Grouped(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.second = nn.Conv2d(1, 4, 1), nn.Conv2d(4, 4, 1, groups=2)
        self.head = nn.Linear(4, CLASSES)

    def features(self, x):
        return self.second(self.first(x.reshape(-1, 1, 1, INPUTS))).mean(dim=(2, 3))


def test_a_grouped_convolution_is_refused_by_name(tmp_path, monkeypatch):
    monkeypatch.setitem(federation.MODELS, "grouped", Grouped)
    with pytest.raises(SettingError, match=r"fedsap cannot prune grouped: second is a convolution in 2 groups"):
        Federation(tmp_path, kinds=("grouped",) * 3).run("fedsap")


def test_arrays_of_another_model_are_refused_by_name():
    rounds = Rounds(FedSAPParams())
    server = rounds.server
    with pytest.raises(
        SettingError, match=r"initial_arrays: conv1.weight has shape \(9, 1, 1, 3\), the clients' model"
    ):
        server.load_state({**rounds.weights, "conv1.weight": np.zeros((9, 1, 1, 3), np.float32)})


def test_a_run_may_start_from_the_arrays_of_a_model(tmp_path):
    made = Federation(tmp_path, kinds=("conv",) * 3)
    state = federation.MODELS["conv"]().state_dict()
    strategy = made.strategy("fedsap")
    strategy.start(made.grid(), ArrayRecord(state), num_rounds=0)
    for name, array in strategy.shared.arrays.items():
        np.testing.assert_array_equal(array, state[name].numpy())


def test_partial_participation_leaves_the_absent_as_they_are(tmp_path):
    rounds = Rounds(FedSAPParams(warmup=0, min_group=1, min_spread=0.0, keep_ratios="1,0.6,0.4"))
    rounds.run(1)
    kept = replace(rounds.members["2"])
    rounds.round(2, ("0", "1"))
    after = rounds.members["2"]
    np.testing.assert_array_equal(after.utility, kept.utility)
    assert after.group == kept.group
    assert sum(rounds.channels("2")) == round(0.4 * sum(SIZES))
    assert rounds.round(3).keys() == {"0", "1", "2"}
