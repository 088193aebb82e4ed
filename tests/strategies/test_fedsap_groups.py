"""FedSAP: which clients form a pseudo-domain group, what it holds, and the roles that follow."""

from dataclasses import replace

import numpy as np
import pytest

from fedapp.strategies.fedsap import FedSAPParams
from fedapp.strategies.fedsap.assignment import Assignment
from tests.strategies.rounds_of_submodels import (
    EAST,
    NEAR_EAST,
    NORTH,
    SIZES,
    TOTAL,
    Rounds,
    asked,
    grouped,
    groups_of,
    measured,
    with_arrays,
)

D, G, P = 0, 1, 2


# ---- groups (Eq. 4) ---------------------------------------------------------------------------------


def test_clients_with_like_signals_form_groups_from_round_1_on():
    found = grouped(asked(), 1, {"0": EAST, "1": NORTH, "2": NEAR_EAST, "3": NORTH})
    assert found[0] == found[2] != found[1] == found[3]


def test_group_numbers_go_on_when_labels_come_permuted(monkeypatch):
    def outcome(permute):
        assignment = asked(regroup_every=1)
        if permute:
            cluster = Assignment._cluster
            monkeypatch.setattr(Assignment, "_cluster", lambda self, clients: 1 - cluster(self, clients))
        grouped(assignment, 1, {"0": EAST, "1": NORTH, "2": EAST, "3": NORTH})
        monkeypatch.undo()
        if permute:
            monkeypatch.setattr(Assignment, "_cluster", lambda self, clients: 1 - cluster(self, clients))
        grouped(assignment, 2, {"0": EAST, "1": NORTH, "2": NORTH, "3": NORTH})
        monkeypatch.undo()
        return groups_of(assignment), {client: m.roles.tobytes() for client, m in assignment.members.items()}

    (plain, roles), (permuted, same) = outcome(False), outcome(True)
    assert [a == b for a in plain for b in plain] == [a == b for a in permuted for b in permuted]
    assert roles == same


def test_pools_go_on_over_a_regrouping_that_only_renames():
    rounds = Rounds(FedSAPParams(warmup=0, grouping=False, tau=0.0, global_target=0.1)).run(2)
    before = {name: dict(pools) for name, pools in rounds.server.shared.pools.items() if pools}
    rounds.server.shared.move_pools({7: {0: 3.0}, 1: {1: 2.0}, 0: {2: 1.0}})
    for name, pools in before.items():
        after = rounds.server.shared.pools[name]
        for new, old in ((7, 0), (1, 1), (0, 2)):
            assert after[new].values.tobytes() == pools[old].values.tobytes()


def test_a_merged_group_begins_from_the_mean_of_what_its_members_saw():
    rounds = Rounds(FedSAPParams(warmup=0, grouping=False, tau=0.0, global_target=0.1, role_scope="client")).run(2)
    shared, before = rounds.weights["conv1.weight"], dict(rounds.server.shared.pools["conv1.weight"])
    rounds.server.shared.move_pools({0: {0: 3.0, 1: 1.0}, 2: {2: 1.0}})
    merged = rounds.server.shared.pools["conv1.weight"][0]

    def seen(group, row):
        place = np.flatnonzero(before[group].index == row)
        return before[group].values[place[0]] if len(place) else shared[row]

    for row, values in zip(merged.index, merged.values, strict=True):
        np.testing.assert_allclose(values, 0.75 * seen(0, row) + 0.25 * seen(1, row), atol=1e-6)


def test_a_newcomer_joins_the_nearest_group_and_gets_a_plan():
    assignment = asked(regroup_every=5)
    grouped(assignment, 1, {"0": EAST, "1": NORTH, "2": EAST})
    assert assignment.members["3"].group == -1
    assignment.admit("9", 0.5)
    assert (assignment.members["9"].roles == G).sum() == round(0.5 * TOTAL)
    assert not (assignment.members["9"].roles == P).any()
    for client in ("3", "9"):
        assert assignment.wants_signal(client, 2)
    assert not assignment.wants_signal("0", 2)
    assignment.observe(2, {"3": measured(3, NORTH), "9": measured(9, NEAR_EAST)})
    assert assignment.members["3"].group == assignment.members["1"].group
    assert assignment.members["9"].group == assignment.members["0"].group


def test_a_newcomer_leaves_the_pools_of_all_groups_as_they_are():
    settings = {"warmup": 0, "tau": 0.0, "global_target": 0.2, "keep_ratios": "1", "regroup_every": 50}
    grouping = {"min_group": 1, "min_spread": 0.0, "center": False, "count": "threshold", "linkage": "components"}
    rounds = Rounds(FedSAPParams(**settings, **grouping))

    def tamper(uplink):
        domain = np.array(EAST if uplink.client == "0" else NORTH, np.float32)
        return with_arrays(uplink, signal=np.resize(domain, 10)) if "signal" in uplink.arrays else uplink

    rounds.tamper = tamper
    rounds.round(1, ("0", "1")), rounds.round(2, ("0", "1"))
    assert set(rounds.members["2"].roles) == {G}
    moved = []
    rounds.server.shared.move_pools = moved.append
    rounds.round(3, ("2",))
    assert rounds.members["2"].group == rounds.members["1"].group != rounds.members["0"].group
    assert moved == [
        {rounds.members[client].group: {rounds.members[client].group: n} for client, n in (("0", 8), ("1", 10))}
    ]


def test_a_newcomer_is_ranked_by_what_is_known_of_all_others():
    assignment = asked()
    grouped(assignment, 1, dict.fromkeys("0123", EAST))
    assignment.admit("9", 0.5)
    everybody = np.mean([member.utility for member in assignment.members.values() if member is not None][:4], axis=0)
    held = assignment.members["9"].roles == G
    for part in assignment.graph.slices:
        assert everybody[part][held[part]].min() >= everybody[part][~held[part]].max()


def test_absent_clients_keep_group_utility_and_signal():
    assignment = asked(regroup_every=1)
    grouped(assignment, 1, {"0": EAST, "1": NORTH, "2": EAST, "3": NORTH})
    kept = replace(assignment.members["3"])
    grouped(assignment, 2, {"0": EAST, "1": NORTH})
    after = assignment.members["3"]
    assert after.group == kept.group
    np.testing.assert_array_equal(after.utility, kept.utility)
    np.testing.assert_array_equal(after.signal, kept.signal)


def test_signals_are_asked_for_every_so_many_rounds_from_the_first_on():
    every_five, each = asked(regroup_every=5, grouped="round"), asked(regroup_every=1, grouped="round")
    for assignment in (every_five, each):
        grouped(assignment, 1, dict.fromkeys("0123", EAST))
    assert [number for number in range(1, 13) if every_five.wants_signal("0", number)] == [1, 6, 11]
    assert [number for number in range(1, 5) if each.wants_signal("0", number)] == [1, 2, 3, 4]
    assert not asked(grouping=False).wants_signal("0", 1)


def test_a_client_is_asked_for_its_signal_whenever_its_last_one_is_a_period_old():
    assignment = asked(regroup_every=5)
    assert all(assignment.wants_signal(client, 2) for client in "0123")
    grouped(assignment, 2, dict.fromkeys("01", EAST))
    assert [number for number in range(3, 13) if assignment.wants_signal("0", number)] == [7, 8, 9, 10, 11, 12]
    assert assignment.wants_signal("2", 3)


def test_clients_that_train_in_other_rounds_are_grouped_by_their_last_signals():
    signals = {"0": EAST, "1": NORTH, "2": EAST, "3": NORTH}
    everybody, few = asked(min_group=2, center=False), asked(min_group=2, center=False, grouped="round")
    for assignment in (everybody, few):
        grouped(assignment, 1, signals)
        assert len(set(groups_of(assignment))) == 2
        grouped(assignment, 6, {"0": EAST, "1": NORTH})
    assert groups_of(everybody) == [0, 1, 0, 1]
    first, second, *_ = groups_of(few)
    assert first == second  # two clients of unlike domains make no group of at least two each


def test_a_signal_of_zeros_is_a_group_of_its_own():
    assignment = asked(center=False, count="threshold", linkage="components")
    found = grouped(assignment, 1, {"0": EAST, "1": [0.0] * 4, "2": EAST, "3": [0.0] * 4})
    assert found[0] == found[2]
    assert len(set(found)) == 3


def test_small_groups_join_the_nearest_if_asked_to():
    signals = {"0": EAST, "1": NORTH, "2": NEAR_EAST, "3": EAST}
    assert len(set(grouped(asked(), 1, signals))) == 2
    assert len(set(grouped(asked(min_group=2), 1, signals))) == 1


def test_signals_that_hardly_spread_make_one_group():
    signals = {client: np.array(EAST) + 10 + 1e-3 * int(client) for client in "0123"}
    assert len(set(grouped(asked(min_spread=0.2), 1, signals))) == 1


# ---- dispersion and roles (Eq. 3, 6) ----------------------------------------------------------------


def test_with_fewer_than_two_groups_the_dispersion_stays_and_all_is_global():
    assignment = asked(max_groups=1, regroup_every=1)
    grouped(assignment, 1, dict.fromkeys("0123", EAST))
    assert np.isnan(assignment.dispersion_or_nan).all()
    assert all(set(member.roles) <= {D, G} for member in assignment.members.values())
    assignment = asked(regroup_every=1)
    grouped(assignment, 1, {"0": EAST, "1": NORTH, "2": EAST, "3": NORTH})
    before = assignment.dispersion.copy()
    grouped(assignment, 2, dict.fromkeys("0123", EAST))
    np.testing.assert_array_equal(assignment.dispersion, before)
    assert all(set(member.roles) <= {D, G} for member in assignment.members.values())


@pytest.mark.parametrize("on", ["old", "new"])
def test_dispersion_and_utility_are_smoothed_from_the_first_value_on(on):
    assignment = asked(beta=0.3, beta_on=on, grouping=False, keep_ratios="1")
    found, utilities = [], []
    for number in (1, 2):
        assignment.observe(number, {"0": measured(number), "1": measured(10 + number)})
        means = np.stack([measured(seed).activation for seed in (number, 10 + number)])
        found.append(means.var(axis=0) / (means.mean(axis=0) ** 2 + 1e-8))
        own = measured(number)
        scaled = [np.empty(TOTAL), np.empty(TOTAL)]
        for part in assignment.graph.slices:
            for values, target in zip((own.activation, own.gradient), scaled, strict=True):
                target[part] = (values[part] - values[part].min()) / np.ptp(values[part])
        utilities.append(0.5 * scaled[0] + 0.5 * scaled[1])
    past = 0.3 if on == "old" else 0.7
    np.testing.assert_allclose(assignment.dispersion, past * found[0] + (1 - past) * found[1], atol=1e-12)
    expected = past * utilities[0] + (1 - past) * utilities[1]
    np.testing.assert_allclose(assignment.members["0"].utility, expected, atol=1e-12)


def test_roles_are_decided_once_for_all_or_for_each_client():
    """Ratios 1 and 0.3: on the union at least half are Global, or at least half of what each one holds."""

    def roles(scope):
        assignment = asked(grouping=False, role_scope=scope, tau=0.0, global_target=0.5, keep_ratios="1,0.3")
        assignment.observe(1, {client: measured(int(client), scale=1 + int(client)) for client in "0123"})
        return [assignment.members[client].roles for client in "01"], assignment.graph.slices

    (full, small), _ = roles("global")
    assert (full[small != D] == small[small != D]).all()
    (full, small), slices = roles("client")
    for one in (full, small):
        assert [(one[part] == G).sum() for part in slices] == [round(0.5 * (one[part] != D).sum()) for part in slices]
    assert (full[small != D] != small[small != D]).any()


def test_without_protection_the_threshold_alone_decides():
    def share(**changes):
        assignment = asked(grouping=False, tau=0.0, keep_ratios="1", **changes)
        assignment.observe(1, {client: measured(int(client)) for client in "0123"})
        return (assignment.members["0"].roles == G).mean()

    assert share(protection=False) == 0
    assert share(tri_state=False) == 1
    assert share(global_target=0.9) == pytest.approx(sum(round(0.9 * size) for size in SIZES) / TOTAL)
