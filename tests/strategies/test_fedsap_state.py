"""FedSAP: what the server keeps, and what it tells of it."""

import numpy as np
import pytest

from fedapp.functional.submodel import costs
from fedapp.strategies.fedsap import FedSAPParams, description
from fedapp.strategies.records import RoundRecord
from tests.strategies.federation import MODELS
from tests.strategies.rounds_of_submodels import SIZES, TOTAL, Rounds, asked, with_arrays

# ---- state ------------------------------------------------------------------------------------------


def test_state_survives_a_round_trip_in_any_order_of_names():
    settings = {"warmup": 1, "tau": 0.0, "global_target": 0.2, "signal": "conv1_grad", "min_group": 1}
    params = FedSAPParams(**settings, min_spread=0.0, keep_ratios="1,0.6,0.4", bn_stats="total-variance")
    rounds = Rounds(params).run(2)
    state = rounds.server.state()
    assert any(rounds.server.shared.pools.values())
    assert not any(np.isnan(array).any() for array in state.values() if array.dtype.kind == "f")
    assert all(array.size for array in state.values())
    again = Rounds(params)
    again.server.load_state({name: state[name].copy() for name in sorted(state, reverse=True)})
    restored = again.server.state()
    assert restored.keys() == state.keys()
    for name, array in state.items():
        assert restored[name].tobytes() == array.tobytes(), name
        assert restored[name].dtype == array.dtype, name
    first, second = rounds.round(3), again.round(3)
    for client, uplink in first.items():
        for name, array in uplink.arrays.items():
            assert array.tobytes() == second[client].arrays[name].tobytes(), name
    after, same = rounds.server.state(), again.server.state()
    assert {n: a.tobytes() for n, a in after.items()} == {n: a.tobytes() for n, a in same.items()}


@pytest.mark.parametrize("grouping", [True, False])
def test_clients_that_were_absent_so_far_keep_group_and_first_channels_when_a_run_goes_on(grouping):
    params = FedSAPParams(keep_ratios="0.5,0.4", grouping=grouping)
    rounds = Rounds(params)
    rounds.round(1, ("1", "2"))
    again = Rounds(params)
    again.server.load_state(rounds.server.state())
    for client in again.server.clients.values():
        assert again.server.refuse(client) == ""
    for client, member in rounds.members.items():
        assert again.members[client].group == member.group
        np.testing.assert_array_equal(again.members[client].roles, member.roles)
    assert len({member.group for member in again.members.values()}) == (2 if grouping else 3)


def test_before_anything_was_measured_the_state_names_no_client():
    assert not [name for name in asked(warmup=3).state() if name.startswith("clients/")]


# ---- what is told -----------------------------------------------------------------------------------


def told(rounds, number):
    rounds.server.record = RoundRecord(number)
    return description.describe(rounds.server)


def test_one_group_is_all_global_and_says_so():
    rounds = Rounds(FedSAPParams(warmup=0, max_groups=1, keep_ratios="1,0.5")).run(1)
    found = told(rounds, 1)
    assert found["num_groups"] == 1
    assert all(sum(client["private"]) == 0 for client in found["clients"].values())
    assert [text for text in found["warnings"] if "every active channel is Global" in text.lower() or "Global" in text]
    assert [sum(client["global"]) for client in found["clients"].values()] == [TOTAL, round(TOTAL / 2), TOTAL]


def test_as_many_groups_as_clients_is_said():
    params = FedSAPParams(warmup=0, min_group=1, center=False, count="threshold", threshold=1.0, min_spread=0.0,
                          tau=0.0, linkage="components")  # fmt: skip
    rounds = Rounds(params)

    def tamper(uplink):
        own = np.zeros(10, np.float32)
        own[int(uplink.client)] = 1
        return with_arrays(uplink, signal=own)

    rounds.tamper = tamper
    rounds.run(1)
    found = told(rounds, 1)
    assert found["num_groups"] == 3
    assert [text for text in found["warnings"] if "as many groups as clients" in text]


def test_costs_and_groups_are_told_of_every_client():
    rounds = Rounds(FedSAPParams(keep_ratios="1,0.5", warmup=0), domains=("a", "b", "a")).run(1)
    found = told(rounds, 1)
    full = costs(rounds.server.graph, None)
    assert found["full"]["macs"] == found["clients"]["0"]["macs"] == full.macs
    parameters = sum(p.numel() for p in MODELS["conv"]().parameters())
    assert found["full"]["parameters"] == parameters == found["clients"]["0"]["bytes"] // 4
    assert found["clients"]["1"]["macs"] < 0.5 * full.macs
    assert -1 <= found["adjusted_rand"] <= 1
    assert [layer["channels"] for layer in found["layers"]] == list(SIZES)
