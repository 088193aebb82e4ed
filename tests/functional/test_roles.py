"""FedSAP's roles: active sets, Selective Global Protection, roles decided once for all, and how roles travel."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedapp.functional.roles import (
    DROPPED,
    GLOBAL,
    PRIVATE,
    assign_roles,
    pack_roles,
    rotating_channels,
    select_active,
    unpack_roles,
)

NAN = float("nan")
D, G, P = DROPPED, GLOBAL, PRIVATE
LAYERS = [slice(0, 4), slice(4, 7)]


def truths(*values):
    return np.array(values, dtype=np.bool_)


def one_layer(spread, **options):
    """Roles of one layer in which every channel is active."""
    return assign_roles(np.ones(len(spread), dtype=np.bool_), np.array(spread), [slice(0, len(spread))], **options)


@st.composite
def layers_with_roles(draw):
    """Random layers, active channels and dispersions."""
    sizes = draw(st.lists(st.integers(1, 12), min_size=1, max_size=4))
    stops = np.cumsum(sizes).tolist()
    slices = [slice(stop - size, stop) for size, stop in zip(sizes, stops, strict=True)]
    generator = np.random.default_rng(draw(st.integers(0, 1000)))
    spread = generator.choice([0.0, 0.01, 0.05, 0.2, 1.3], size=stops[-1])
    return generator.random(stops[-1]) < 0.7, spread, slices


def test_the_best_channels_of_each_layer_are_active_and_ties_go_by_index():
    utilities = np.array([0.3, 0.9, 0.3, -0.1, 0.2, 0.2, 0.2])
    active = select_active(utilities, np.array([2, 1]), LAYERS)
    assert active.tolist() == [True, True, False, False, True, False, False]


def test_layers_that_share_a_mask_rank_by_the_mean_of_their_utilities():
    utilities = np.array([0.9, 0.1, 0.5, 0.5, 0.5, 0.0, 0.8, 0.6])
    slices = [slice(0, 3), slice(3, 5), slice(5, 8)]
    # means of layers 0 and 2: 0.45, 0.45, 0.55; alone, layer 0 would keep channel 0 and layer 2 channel 1
    active = select_active(utilities, np.array([1, 1, 1]), slices, sets=[[0, 2]])
    assert active.tolist() == [False, False, True, True, False, False, False, True]


def test_explored_channels_come_first_and_the_rest_of_the_budget_goes_by_utility():
    utilities = np.array([0.9, 0.8, 0.7, 0.1])
    active = select_active(utilities, np.array([2]), [slice(0, 4)], explore=truths(0, 0, 0, 1))
    assert active.tolist() == [True, False, False, True]
    active = select_active(utilities, np.array([1]), [slice(0, 4)], explore=truths(0, 1, 1, 0))
    assert active.tolist() == [False, True, False, False]


def test_exploration_gives_every_channel_its_turn_and_takes_its_fraction_on_average():
    counts, slices = np.array([8, 3]), [slice(0, 16), slice(16, 21)]
    turns = np.array([rotating_channels(counts, slices, 0.25, t) for t in range(1, 9)])
    assert turns[:, :16].sum(axis=1).tolist() == [2] * 8  # 0.25 * 8 a round: 16 channels in 8 rounds
    assert turns[:, :16].sum(axis=0).tolist() == [1] * 16
    assert turns[:, 16:].sum() == 6  # 0.75 a round
    assert turns[:, 16:].any(axis=0).all()
    assert not rotating_channels(counts, slices, 0.0, 3).any()


@settings(max_examples=40, deadline=None)
@given(st.integers(0, 1000), st.floats(0, 1), st.integers(1, 50))
def test_active_sets_have_the_size_of_the_budget_whatever_is_explored(seed, fraction, round_number):
    generator = np.random.default_rng(seed)
    slices, counts = [slice(0, 5), slice(5, 10), slice(10, 17)], generator.integers(1, 5, size=3)
    counts[1] = counts[0]
    explore = rotating_channels(counts, slices, fraction, round_number)
    active = select_active(generator.normal(size=17), counts, slices, sets=[[0, 1]], explore=explore)
    assert [int(active[layer].sum()) for layer in slices] == counts.tolist()
    assert (active[slices[0]] == active[slices[1]]).all()
    assert all(explore[layer].sum() <= count for layer, count in zip(slices, counts, strict=True))
    assert active[explore].all()


def test_stable_channels_are_global_and_the_others_private():
    roles = one_layer([0.0, 0.05, 0.06, 0.2], global_target=0.5)
    assert roles.tolist() == [G, G, P, P]


def test_the_floor_promotes_the_calmest_of_the_unstable_until_the_target_is_met():
    # round(0.75 * 4) = 3 must be Global, one is stable: 0.1 and 0.3 join it
    assert one_layer([0.9, 0.1, 0.01, 0.3], global_target=0.75).tolist() == [P, G, G, G]
    # more than the target are stable: they stay
    assert one_layer([0.01, 0.02, 0.03, 0.9], global_target=0.25).tolist() == [G, G, G, P]


def test_exact_meets_the_target_from_both_sides_and_the_cap_spares_what_does_not_differ():
    spread = [0.0, 0.02, 0.0, 0.9]
    assert one_layer(spread, global_target=0.25, mode="exact").tolist() == [G, P, P, P]
    assert one_layer(spread, global_target=0.25, mode="floor-cap").tolist() == [G, P, G, P]
    for mode in ("exact", "floor-cap"):
        assert one_layer(spread, global_target=0.75, mode=mode).tolist() == [G, G, G, P]


def test_a_single_group_leaves_everything_global_except_where_the_target_is_exact():
    for mode, private in (("floor", 0), ("floor-cap", 0), ("exact", 1)):
        roles = one_layer([0.0] * 10, mode=mode)
        assert (roles == PRIVATE).sum() == private


@pytest.mark.parametrize(("active", "private"), [(1, 0), (4, 0), (5, 1), (10, 1), (15, 1), (16, 2), (25, 3)])
def test_nine_tenths_of_the_active_set_are_rounded_half_to_even(active, private):
    # 0.9, 3.6, 4.5, 9, 13.5, 14.4, 22.5 must be Global: 1, 4, 4, 9, 14, 14, 22
    assert (one_layer([1.0] * active) == PRIVATE).sum() == private


def test_dropped_channels_and_their_dispersion_have_no_say():
    active = truths(1, 0, 1, 0)
    roles = assign_roles(active, np.array([0.4, NAN, 0.3, 0.0]), [slice(0, 4)], global_target=0.5)
    assert roles.tolist() == [P, D, G, D]
    assert roles.dtype == np.uint8
    assert assign_roles(truths(0, 0), np.array([NAN, NAN]), [slice(0, 2)]).tolist() == [D, D]


@settings(max_examples=40, deadline=None)
@given(layers_with_roles(), st.sampled_from(["floor", "exact", "floor-cap"]))
def test_a_target_of_one_makes_every_active_channel_global(network, mode):
    active, spread, slices = network
    roles = assign_roles(active, spread, slices, tau=0.0, global_target=1.0, mode=mode)
    np.testing.assert_array_equal(roles, np.where(active, GLOBAL, DROPPED))


@settings(max_examples=60, deadline=None)
@given(layers_with_roles(), st.floats(0, 1), st.floats(0, 1.5))
def test_each_layer_meets_the_target_and_private_channels_vary_more_than_global_ones(network, target, tau):
    active, spread, slices = network
    roles = assign_roles(active, spread, slices, tau=tau, global_target=target)
    np.testing.assert_array_equal(roles != DROPPED, active)
    for layer in slices:
        shared, private = spread[layer][roles[layer] == GLOBAL], spread[layer][roles[layer] == PRIVATE]
        assert len(shared) == max(round(target * active[layer].sum()), (spread[layer][active[layer]] <= tau).sum())
        if len(shared) and len(private):
            assert shared.max() <= private.min()
            assert private.min() > tau


@settings(max_examples=50, deadline=None)
@given(st.lists(st.sampled_from([D, G, P]), max_size=70))
def test_roles_come_back_from_two_bits_a_channel(values):
    roles = np.array(values, dtype=np.uint8)
    packed = pack_roles(roles)
    assert packed.nbytes == (len(roles) + 3) // 4
    np.testing.assert_array_equal(unpack_roles(packed, len(roles)), roles)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (
            lambda: select_active(np.array([0.1, NAN]), np.array([1]), [slice(0, 2)]),
            "utilities must be finite, got nan",
        ),
        (lambda: select_active(np.ones(2), np.array([3]), [slice(0, 2)]), r"got \[3\] of \[2\]"),
        (lambda: select_active(np.ones(2), np.array([0]), [slice(0, 2)]), r"got \[0\] of \[2\]"),
        (lambda: select_active(np.ones(7), np.array([1, 1]), LAYERS, sets=[[0, 1]]), "share a mask"),
        (lambda: select_active(np.ones(7), np.array([1, 1]), LAYERS, sets=[[0], [0]]), "must not share a layer"),
        (lambda: rotating_channels(np.array([1]), [slice(0, 2)], 1.5, 1), "got 1.5 in round 1"),
        (lambda: rotating_channels(np.array([1]), [slice(0, 2)], 0.5, 0), "in round 0"),
        (lambda: one_layer([0.1, NAN]), r"dispersion of active channels .* got nan at 1"),
        (lambda: one_layer([0.1], tau=-1.0), "tau must be >= 0"),
        (lambda: one_layer([0.1], global_target=1.1), "got 0.05 and 1.1"),
        (lambda: one_layer([0.1], mode="cap"), "mode must be one of floor, exact, floor-cap"),
        (lambda: assign_roles(truths(1), np.ones(2), [slice(0, 1)]), r"\(1,\) and \(2,\)"),
        (lambda: pack_roles(np.array([3], dtype=np.uint8)), r"roles must be 0, 1 or 2, got \[3\]"),
        (lambda: unpack_roles(np.array([3], dtype=np.uint8), 1), r"got \[0, 3\]"),
        (lambda: unpack_roles(np.array([1, 1], dtype=np.uint8), 4), "4 roles take 1 bytes"),
        (lambda: unpack_roles(np.array([0b0101], dtype=np.uint8), 1), "bits after role 1"),
    ],
)
def test_what_cannot_be_a_role_or_decide_one_is_refused(call, message):
    with pytest.raises(ValueError, match=message):
        call()
