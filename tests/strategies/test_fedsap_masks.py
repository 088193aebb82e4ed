"""FedSAP: how many channels a client holds, which, and when that changes."""

import itertools
from dataclasses import replace

import numpy as np
import pytest

from fedapp.config import SettingError
from fedapp.functional.submodel import costs, plan
from fedapp.strategies.fedsap import FedSAPParams
from tests.strategies.rounds_of_submodels import EAST, NORTH, SIZES, TOTAL, Rounds, asked, grouped, measured

D, G, P = 0, 1, 2


# ---- budgets and masks (Eq. 2) ----------------------------------------------------------------------


@pytest.mark.parametrize("coupling", ["none", "shortcut", "stage"])
@pytest.mark.parametrize("rounding", ["largest-remainder", "ceil"])
def test_channels_sum_to_the_budget_before_and_after_the_first_assignment(coupling, rounding):
    assignment = asked(keep_ratios="1,0.6,0.4,0.3", coupling=coupling, rounding=rounding, adaptive=True)
    for assigned in (False, True):
        if assigned:
            grouped(assignment, 1, dict.fromkeys("0123", EAST))
        for member in assignment.members.values():
            held, budget = int((member.roles != D).sum()), round(member.keep_ratio * TOTAL)
            most = len(SIZES) - 1 if rounding == "ceil" else 0
            least = 0 if coupling == "none" or rounding == "ceil" else 3
            assert budget - least <= held <= budget + most
            assert all((member.roles[part] != D).any() for part in assignment.graph.slices)
            for tied in assignment.graph.coupled(coupling):
                masks = {(member.roles[assignment.graph.slices[layer]] != D).tobytes() for layer in tied}
                assert len(masks) == 1


def test_a_layer_that_is_worth_more_keeps_more():
    def counts(adaptive):
        assignment = asked(
            keep_ratios="0.5", adaptive=adaptive, temperature=0.2, grouping=False, normalisation="global-minmax"
        )
        found = measured(1)
        last = assignment.graph.slices[-1]
        found.activation[last] += 5
        assignment.observe(1, {"0": found})
        return [(assignment.members["0"].roles[part] != D).sum() for part in assignment.graph.slices]

    assert counts(True)[-1] > counts(False)[-1] == 4
    assert sum(counts(True)) == sum(counts(False)) == round(0.5 * TOTAL)


@pytest.mark.parametrize("metric", ["macs", "params", "train-bytes"])
def test_a_budget_in_cost_is_kept(metric):
    assignment = asked(keep_ratios="1,0.6,0.4,0.3", metric=metric)
    for assigned in (False, True):
        if assigned:
            grouped(assignment, 1, dict.fromkeys("0123", EAST))
        full = costs(assignment.graph, None)
        for member in assignment.members.values():
            own = costs(assignment.graph, plan(assignment.graph, member.roles != D))
            attribute = {"macs": "macs", "params": "parameters"}.get(metric)
            if attribute:
                assert getattr(own, attribute) <= member.keep_ratio * getattr(full, attribute)
            else:
                both = [3 * one.parameters + 64 * one.activations for one in (own, full)]
                assert both[0] <= member.keep_ratio * both[1]
            assert (member.roles != D).sum() > member.keep_ratio * TOTAL - 8 or member.keep_ratio < 1


def test_exempt_layers_keep_all_channels_and_the_others_pay():
    assignment = asked(keep_ratios="0.6", exempt="conv1, layer3.0")
    grouped(assignment, 1, dict.fromkeys("0123", EAST))
    roles = assignment.members["0"].roles
    counts = [int((roles[part] != D).sum()) for part in assignment.graph.slices]
    names = [layer.name for layer in assignment.graph.layers]
    exempt = [names.index("conv1"), names.index("layer3.0")]
    assert [counts[number] for number in exempt] == [SIZES[number] for number in exempt]
    assert sum(counts) == round(0.6 * TOTAL)
    with pytest.raises(SettingError, match=r"no convolution is called 'conv9'; valid names: .*did you mean"):
        asked(exempt="conv9")
    with pytest.raises(SettingError, match=r"'conv2' may be any of layer1.conv2, layer2.conv2; write the whole name"):
        asked(exempt="conv2")


def test_dropped_channels_have_their_turn_if_asked_to():
    def held(explore):
        assignment = asked(keep_ratios="0.4", explore=explore, grouping=False)
        ever = np.zeros(TOTAL, bool)
        for number in range(1, 40):
            now = assignment.members["0"].roles != D
            assignment.observe(number, {c: measured(1, held=m.roles != D) for c, m in assignment.members.items()})
            ever |= now
        return ever.mean()

    assert held(0.3) == 1
    assert held(0.0) < 1


def test_the_first_masks_are_the_largest_rows_of_the_common_start_or_random():
    rounds = Rounds(FedSAPParams(keep_ratios="0.5"))
    part, weights = rounds.server.graph.slices[-1], rounds.weights["layer3.0.weight"]
    largest = np.sort(np.argsort(-np.abs(weights).reshape(8, -1).sum(axis=1))[: rounds.channels("0")[-1]])
    np.testing.assert_array_equal(np.flatnonzero(rounds.active("0")[part]), largest)
    drawn = {
        Rounds(FedSAPParams(keep_ratios="0.5", warmup_init="random"), seed=s).active("0").tobytes() for s in (1, 2)
    }
    again = Rounds(FedSAPParams(keep_ratios="0.5", warmup_init="random"), seed=1).active("0").tobytes()
    assert len(drawn) == 2
    assert again in drawn


# ---- the schedule -----------------------------------------------------------------------------------


def masks_after(assignment, rounds):
    """Return all roles after each of some rounds with new measurements."""
    found = []
    for number in range(1, rounds + 1):
        grouped(assignment, number, {"0": EAST, "1": NORTH, "2": EAST, "3": NORTH})
        for client, member in assignment.members.items():
            member.utility = np.random.default_rng(100 * number + int(client)).random(TOTAL)
        found.append(b"".join(member.roles.tobytes() for member in assignment.members.values()))
    return found


def changes_of(found):
    return [number for number, (old, new) in enumerate(itertools.pairwise(found), 2) if old != new]


def test_masks_change_every_round_after_the_warm_up():
    assignment = asked(warmup=3, keep_ratios="1,0.5", global_target=0.2, tau=0.0)
    first = b"".join(member.roles.tobytes() for member in assignment.members.values())
    found = masks_after(assignment, 5)
    assert found[0] == found[1] == first
    assert changes_of(found) == [3, 4, 5]
    assert [assignment.stage(number) for number in (0, 2, 3, 9)] == ["warm-up", "warm-up", "adaptive", "adaptive"]


def test_masks_may_change_more_seldom_and_be_frozen():
    settings = {"warmup": 2, "keep_ratios": "1,0.5", "global_target": 0.2, "tau": 0.0}
    assert changes_of(masks_after(asked(**settings, every=3), 9)) == [2, 5, 8]
    assert changes_of(masks_after(asked(**settings, freeze_after=4), 7)) == [2, 3, 4]
    assert asked(**settings, freeze_after=4).stage(5) == "frozen"


@pytest.mark.parametrize("mode", ["budgeted", "dense"])
def test_the_warm_up_is_within_budgets_or_dense_and_all_global(mode):
    assignment = asked(warmup=2, warmup_mode=mode, keep_ratios="0.5")
    held = [int((member.roles == G).sum()) for member in assignment.members.values()]
    assert held == [TOTAL if mode == "dense" else round(0.5 * TOTAL)] * 4
    masks_after(assignment, 2)
    assert [int((m.roles != D).sum()) for m in assignment.members.values()] == [round(0.5 * TOTAL)] * 4


def test_a_budget_that_changes_gives_a_new_plan_even_when_masks_are_frozen():
    assignment = asked(warmup=1, freeze_after=1, keep_ratios="1")
    masks_after(assignment, 2)
    utility, others = assignment.members["1"].utility, assignment.members["0"].roles.copy()
    assignment.admit("1", 0.4)
    assert (assignment.members["1"].roles == G).sum() == round(0.4 * TOTAL)
    assert not (assignment.members["1"].roles == P).any()
    np.testing.assert_array_equal(assignment.members["1"].utility, utility)
    np.testing.assert_array_equal(assignment.members["0"].roles, others)


def test_a_node_may_name_its_own_keep_ratio_and_change_it_between_rounds():
    rounds = Rounds(FedSAPParams(keep_ratios="1"))
    rounds.server.clients["1"] = replace(rounds.server.clients["1"], keep_ratio=0.5)
    rounds.round(1)
    assert sum(rounds.channels("0")) == TOTAL
    assert sum(rounds.channels("1")) == round(0.5 * TOTAL)
    rounds.server.clients["1"] = replace(rounds.server.clients["1"], keep_ratio=0.3)
    rounds.round(2)
    assert sum(rounds.channels("1")) == round(0.3 * TOTAL)
    assert rounds.uplinks["1"].arrays["statistics/activation"].shape == (round(0.3 * TOTAL),)
    rounds.server.clients["1"] = replace(rounds.server.clients["1"], keep_ratio=0.0)
    rounds.round(3)
    assert sum(rounds.channels("1")) == round(0.3 * TOTAL)  # what it said last
