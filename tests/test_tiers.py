"""Simulated device tiers: what the setting means, and what a tier does to a round."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch import nn

from fedapp import node, tiers
from fedapp.client_update import ClientUpdate
from fedapp.config import SettingError
from fedapp.local_grid import LocalGrid
from fedapp.memory import ClientMemory, digest
from fedapp.node import client_app, client_id
from fedapp.payload import Instruction
from fedapp.strategies import FedAvg
from fedapp.tiers import MIB, DroppedOutError, MemoryCapError, Need, Tier
from tests.conftest import CLASSES, INPUTS, WIDTH, Samples, local, setup, tiny


@pytest.fixture(autouse=True)
def _own_process(monkeypatch):
    monkeypatch.setattr(node, "_skeletons", {})
    monkeypatch.setattr(tiers, "_activations", {})


def instruction(round_number: int = 1) -> Instruction:
    return Instruction("local", run="run", round=round_number, num_rounds=4)


class Watch:
    """Keep every round's record and the digests."""

    def __init__(self):
        self.records, self.digests = [], {}

    def on_start(self, strategy):
        pass

    def on_round(self, strategy, record):
        self.records.append(record)

    def on_end(self, strategy, digests):
        self.digests = dict(digests)


def federate(folder, device_tiers: str, rounds: int = 2, count: int = 4) -> Watch:
    app = client_app(lambda context: setup(client_id(context), memory=folder))
    watch = Watch()
    server = FedAvg(run="r", build=lambda client, name: tiny(), observers=[watch])
    server.start(LocalGrid(app, count, {"device-tiers": device_tiers}), num_rounds=rounds)
    return watch


# ---- the setting -----------------------------------------------------------------------------------


def test_no_setting_means_the_machine_itself():
    assert tiers.of_node({}, {"partition-id": 3, "tier": "pi"}) is None
    assert tiers.of_node({"device-tiers": " ; "}, {}) is None
    assert Tier() == Tier("", 1.0, 0.0, 0.0)


def test_a_trailing_semicolon_and_any_spacing_are_read():
    assert list(tiers.read("fast ;pi   slowdown=2;")) == ["fast", "pi"]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("pi slowdwn=4", "unknown option of tier pi 'slowdwn'.*did you mean slowdown"),
        ("pi slowdown=0.5", "device-tiers, pi: slowdown must be at least 1, got 0.5"),
        ("pi drop-out=1.5", "drop-out must be at most 1"),
        ("pi memory-mib=much", "memory-mib must be a number, got 'much'"),
        ("pi; pi", "'pi' is given twice"),
        ("pi slow", "not of the form key=value"),
        ("slowdown=4", "does not begin with a tier's name"),
    ],
)
def test_a_wrong_setting_says_what_to_write(text, message):
    with pytest.raises(SettingError, match=message):
        tiers.read(text)


def test_an_unknown_tier_of_a_node_lists_the_tiers():
    with pytest.raises(SettingError, match=r"unknown device tier 'p'; valid names: fast, pi"):
        tiers.of_node({"device-tiers": "fast; pi"}, {"tier": "p"})
    with pytest.raises(SettingError, match="neither tier nor partition-id"):
        tiers.of_node({"device-tiers": "fast; pi"}, {"client-id": "garage"})


# ---- slowdown --------------------------------------------------------------------------------------


def test_a_slow_device_waits_for_the_rest_of_its_time_and_reports_it(tmp_path, monkeypatch):
    clock, waited = [0.0], []
    monkeypatch.setattr(node.time, "perf_counter", lambda: clock[0])
    monkeypatch.setattr(Tier.wait, "__defaults__", (waited.append,))
    train = ClientUpdate.train

    def two_seconds(self, *args):
        clock[0] += 2.0
        return train(self, *args)

    monkeypatch.setattr(ClientUpdate, "train", two_seconds)
    uplink = node.train(instruction(), setup(memory=tmp_path, tier=Tier("pi", slowdown=4)))
    assert waited == [6.0]
    assert uplink.metrics["tier-pi-seconds"] == 8.0
    assert uplink.metrics["train-seconds"] == 2.0


def test_a_device_of_full_speed_does_not_wait():
    def never(seconds):
        raise AssertionError

    assert Tier("fast").wait(3.0, never) == {"tier-fast-seconds": 3.0}
    assert Tier().wait(3.0, never) == {}


# ---- drop-out --------------------------------------------------------------------------------------


def drops(tier: Tier, seed: int, round_number: int, client: str) -> bool:
    try:
        tier.drop(seed, round_number, client)
    except DroppedOutError:
        return True
    return False


def test_drop_out_has_its_probability_and_depends_on_seed_round_and_client():
    tier = Tier("pi", drop_out=0.3)
    draws = [drops(tier, 1, r, str(c)) for r in range(100) for c in range(100)]
    assert sum(draws) / len(draws) == pytest.approx(0.3, abs=0.02)
    assert draws == [drops(tier, 1, r, str(c)) for r in range(100) for c in range(100)]
    assert draws != [drops(tier, 2, r, str(c)) for r in range(100) for c in range(100)]
    assert not any(drops(Tier("fast"), 1, r, "0") for r in range(100))
    assert all(drops(Tier("off", drop_out=1), 1, r, "0") for r in range(100))


def test_who_drops_out_is_counted_as_a_failure_and_evaluated_all_the_same(tmp_path):
    watch = federate(tmp_path, "fast; off drop-out=1")
    for number, record in enumerate(watch.records, start=1):
        assert [reply.client for reply in record.trained] == ["0", "2"]
        assert [reply.client for reply in record.evaluated] == ["0", "1", "2", "3"]
        assert [(f.client, f.phase, f.kind) for f in record.failures] == [
            ("1", "train", "DroppedOutError"), ("3", "train", "DroppedOutError")
        ]  # fmt: skip
        assert f"client '1' (tier off) dropped out of round {number}" in record.failures[0].reason


# ---- memory ----------------------------------------------------------------------------------------

WEIGHTS = 4 * (INPUTS * WIDTH + WIDTH + WIDTH * CLASSES + CLASSES)  # bytes of the tiny model, float32
KEPT = 4 * (INPUTS + WIDTH + CLASSES) + 8  # kept per sample: input, tanh's output, log-probabilities, the label


def test_the_estimate_of_a_small_model_is_what_one_counts_by_hand():
    update = ClientUpdate(None, local(tiny(), momentum=0.9))
    need = tiers.estimate(update, torch.randn(1, INPUTS), rows=50)
    assert need == Need(WEIGHTS, WEIGHTS, WEIGHTS, 50 * KEPT)
    adam = ClientUpdate(None, local(tiny(), optimizer="adam"))
    assert tiers.estimate(adam, torch.randn(1, INPUTS), rows=50).optimizer == 2 * WEIGHTS


def test_a_frozen_part_has_no_gradients():
    model = tiny()
    model.body.requires_grad_(False)
    need = tiers.estimate(ClientUpdate(None, local(model)), torch.randn(1, INPUTS), rows=4)
    assert need.parameters == WEIGHTS
    assert need.gradients == 4 * (WIDTH * CLASSES + CLASSES)


def test_the_estimate_agrees_with_the_backward_passs_own_memory_of_a_convolution():
    class Conv(nn.Module):
        def __init__(self):
            super().__init__()
            self.conv, self.head = nn.Conv2d(3, 8, 3, padding=1), nn.Linear(8 * 6 * 6, CLASSES)

        def features(self, x):
            return torch.relu(self.conv(x)).flatten(1)

    update = ClientUpdate(None, local(Conv()))
    kept = 4 * (3 * 6 * 6 + 8 * 6 * 6 + CLASSES) + 8  # input, relu's output (the head's input too), log-probabilities
    assert tiers.estimate(update, torch.randn(5, 3, 6, 6), rows=10).activations == 10 * kept


def test_measuring_changes_neither_weights_nor_statistics_nor_the_random_stream():
    update = ClientUpdate(None, local(tiny(norm=True)))
    update.model.eval()
    before, stream = digest(update.model.state_dict()), torch.get_rng_state()
    tiers.estimate(update, torch.randn(1, INPUTS, generator=torch.Generator().manual_seed(1)), rows=50)
    assert digest(update.model.state_dict()) == before
    assert not update.model.training
    assert torch.equal(torch.get_rng_state(), stream)


def test_clients_of_one_architecture_share_a_measurement(monkeypatch):
    measured = []
    real = tiers.activation_bytes
    monkeypatch.setattr(tiers, "activation_bytes", lambda *args: measured.append(args[2]) or real(*args))
    needs = [tiers.estimate(ClientUpdate(None, local(tiny())), torch.randn(1, INPUTS), 9, "tiny") for _ in range(3)]
    assert measured == list(tiers.PROBE)
    assert needs[0] == needs[2]


def test_a_model_too_big_for_its_device_is_refused_before_training(tmp_path):
    needed = (2 * WEIGHTS + 4 * KEPT) / MIB  # batches of four, plain sgd
    owner = setup(memory=tmp_path, tier=Tier("pi", memory_mib=needed * 0.99))
    with pytest.raises(
        MemoryCapError, match=r"client '0' \(tier pi\) needs about .* MiB to train tiny on batches of 4"
    ):
        node.train(instruction(), owner)
    assert not ClientMemory(tmp_path, "run", "0").rounds()
    node.train(instruction(), replace(owner, tier=Tier("pi", memory_mib=needed * 1.01)))
    assert ClientMemory(tmp_path, "run", "0").rounds() == [1]


def test_a_client_without_samples_needs_nothing():
    empty = Samples(torch.empty(0, INPUTS), torch.empty(0, dtype=torch.int64))
    Tier("pi", memory_mib=1e-9).fit(ClientUpdate(None, local(tiny())), empty, "tiny")


# ---- a whole run -----------------------------------------------------------------------------------


def test_slow_and_capped_devices_compute_the_same_bits(tmp_path):
    plain = federate(tmp_path / "plain", "")
    tiered = federate(tmp_path / "tiered", "fast memory-mib=100; pi slowdown=1.5 memory-mib=50")
    assert tiered.digests == plain.digests
    metrics = [reply.metrics for reply in tiered.records[0].trained]
    assert [[name for name in each if name.startswith("tier-")] for each in metrics] == [
        ["tier-fast-seconds"], ["tier-pi-seconds"], ["tier-fast-seconds"], ["tier-pi-seconds"]
    ]  # fmt: skip
    assert metrics[1]["tier-pi-seconds"] == 1.5 * metrics[1]["train-seconds"]
    assert not any(record.failures for record in tiered.records)


def test_a_setup_may_bring_its_own_tier(tmp_path):
    app = client_app(lambda context: setup(client_id(context), memory=tmp_path, tier=Tier("off", drop_out=1)))
    watch = Watch()
    FedAvg(run="r", build=lambda client, name: tiny(), observers=[watch]).start(LocalGrid(app, 1), num_rounds=1)
    assert [failure.kind for failure in watch.records[0].failures] == ["DroppedOutError"]
