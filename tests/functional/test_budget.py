"""FedSAP's budgets: importance, water-filling (Eq. 2), whole channels, and the second budget in cost."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedapp.functional.budget import BudgetTooSmallError, fit_cost, keep_ratios, layer_importance, whole_channels

NAN = float("nan")
RESNET10 = np.array([64, 64, 64, 128, 128, 128, 256, 256, 256, 512, 512, 512])
KEEP = st.floats(0.01, 1.0)


def ints(*values):
    return np.array(values, dtype=np.int64)


def bounds(keep_ratio):
    """The paper's clip bounds; below 0.05 the lower one is the keep ratio itself."""
    return min(keep_ratio, max(0.05, 0.15 * keep_ratio)), min(1.0, keep_ratio + 0.5)


@st.composite
def networks(draw, tied=False):
    """Importances, sizes and members of up to eight layers."""
    count = draw(st.integers(1, 8))
    importance = draw(st.lists(st.floats(-3, 3), min_size=count, max_size=count))
    sizes = draw(st.lists(st.integers(1, 64), min_size=count, max_size=count))
    members = draw(st.lists(st.integers(1, 4 if tied else 1), min_size=count, max_size=count))
    return np.array(importance), ints(*sizes), ints(*members)


def test_importance_is_the_mean_over_clients_of_the_mean_over_what_each_observed():
    utilities = np.array([[0.2, 0.4, 0.5], [0.7, NAN, NAN], [NAN, NAN, 0.1]])
    importance = layer_importance(utilities, [slice(0, 2), slice(2, 3)])
    # layer 0: clients give 0.3 and 0.7, mean 0.5 (a mean over entries would be 1.3 / 3); layer 1: 0.5 and 0.1
    np.testing.assert_allclose(importance, [0.5, 0.3], atol=1e-12)


def test_a_layer_that_nobody_observed_gets_the_mean_of_the_others():
    utilities = np.array([[0.2, 0.4, NAN, 0.9]])
    importance = layer_importance(utilities, [slice(0, 2), slice(2, 3), slice(3, 4)])
    np.testing.assert_allclose(importance, [0.3, 0.6, 0.9], atol=1e-12)


@pytest.mark.parametrize(
    ("utilities", "message"),
    [
        ([[NAN, NAN, NAN]], "no client observed any utility"),
        ([[0.1, np.inf, 0.2]], "NaN where a channel was not observed"),
        ([[0.1, 0.2]], "layers up to 3 for 2 channels"),
    ],
)
def test_utilities_that_say_nothing_or_do_not_fit_are_refused(utilities, message):
    with pytest.raises(ValueError, match=message):
        layer_importance(np.array(utilities), [slice(0, 2), slice(2, 3)])


def test_equation_2_worked_by_hand_for_two_layers():
    # softmax(ln 3, 0) = (3/4, 1/4), so k = (3a, a); 10 * 3a + 30 * a = 0.5 * 40 gives a = 1/3, below the upper bound 1
    ratios = keep_ratios(np.array([np.log(3.0), 0.0]), ints(10, 30), 0.5)
    np.testing.assert_allclose(ratios, [1.0, 1 / 3], atol=1e-9)
    # at kappa 0.3 the first would get 0.6 and the second 0.2: within [0.05, 0.8]
    np.testing.assert_allclose(keep_ratios(np.array([np.log(3.0), 0.0]), ints(10, 30), 0.3), [0.6, 0.2], atol=1e-9)


def test_what_a_bound_cuts_off_flows_to_the_other_layers():
    # kappa 0.2: bounds [0.05, 0.7]; ratios 8 : 1 : 1 over 10 channels each want (0.48, 0.06, 0.06)
    importance = np.log([8.0, 1.0, 1.0])
    np.testing.assert_allclose(keep_ratios(importance, ints(10, 10, 10), 0.2), [0.48, 0.06, 0.06], atol=1e-9)
    # 80 : 1 : 1 would leave 0.6 / 82 < 0.05 each: both get the floor and the first 0.6 - 0.1
    importance = np.log([80.0, 1.0, 1.0])
    np.testing.assert_allclose(keep_ratios(importance, ints(10, 10, 10), 0.2), [0.5, 0.05, 0.05], atol=1e-9)
    # with sizes (4, 10, 10) the first layer reaches 0.7; the others share 0.2 * 24 - 2.8 = 2.0
    np.testing.assert_allclose(keep_ratios(importance, ints(4, 10, 10), 0.2), [0.7, 0.1, 0.1], atol=1e-9)


def test_early_heavy_utilities_that_break_the_bounds_when_clipped_once_do_not_here():
    keep_ratio, importance = 0.8, np.linspace(2.0, 0.0, len(RESNET10))
    shares = np.exp(importance) / np.exp(importance).sum()
    once = np.clip(keep_ratio * len(RESNET10) * shares, *bounds(keep_ratio))
    once *= keep_ratio * RESNET10.sum() / (RESNET10 @ once)
    assert once.max() > 1.2  # the paper's text, taken in that order, keeps more channels than there are
    ratios = keep_ratios(importance, RESNET10, keep_ratio)
    assert ratios.max() <= 1
    assert RESNET10 @ ratios == pytest.approx(keep_ratio * RESNET10.sum(), abs=1e-9)


def test_the_share_reading_gives_layers_of_equal_importance_equal_channels():
    ratios = keep_ratios(np.zeros(2), ints(10, 20), 0.3, reading="share")
    np.testing.assert_allclose(ratios * [10, 20], [4.5, 4.5], atol=1e-9)


def test_a_tied_layer_weighs_as_often_as_it_has_members():
    # (2 * 10) * 3a + 30 * a = 0.3 * 50 gives a = 1/6
    ratios = keep_ratios(np.array([np.log(3.0), 0.0]), ints(10, 30), 0.3, members=ints(2, 1))
    np.testing.assert_allclose(ratios, [0.5, 1 / 6], atol=1e-9)


def test_a_low_temperature_neither_overflows_nor_loses_the_budget():
    ratios = keep_ratios(np.array([1.0, 0.0, -1.0]), ints(10, 90, 50), 0.2, temperature=1e-4)
    np.testing.assert_allclose(ratios, [0.7, (0.2 * 150 - 7 - 2.5) / 90, 0.05], atol=1e-9)


def test_a_keep_ratio_of_one_keeps_every_channel_whatever_the_importance():
    ratios = keep_ratios(np.array([5.0, 0.0, -5.0]), ints(64, 3, 7), 1.0)
    assert ratios.tolist() == [1.0, 1.0, 1.0]
    for rounding in ("largest-remainder", "ceil"):
        assert whole_channels(ratios, ints(64, 3, 7), 1.0, rounding=rounding).tolist() == [64, 3, 7]


@settings(max_examples=60, deadline=None)
@given(networks(tied=True), KEEP, st.sampled_from(["ratio", "share"]), st.sampled_from([0.05, 1.0, 10.0]))
def test_ratios_meet_the_budget_within_the_bounds(network, keep_ratio, reading, temperature):
    importance, sizes, members = network
    ratios = keep_ratios(importance, sizes, keep_ratio, temperature=temperature, reading=reading, members=members)
    low, high = bounds(keep_ratio)
    assert (ratios >= low - 1e-9).all()
    assert (ratios <= high + 1e-9).all()
    total = members @ sizes
    assert (members * sizes) @ ratios == pytest.approx(keep_ratio * total, abs=1e-9 * total)


@settings(max_examples=40, deadline=None)
@given(networks(), KEEP, KEEP)
def test_ratios_rise_with_the_keep_ratio_and_with_importance(network, first, second):
    importance, sizes, _ = network
    less = keep_ratios(importance, sizes, min(first, second))
    more = keep_ratios(importance, sizes, max(first, second))
    assert (less <= more + 1e-9).all()
    assert (np.diff(more[np.argsort(importance)]) >= -1e-9).all()


@settings(max_examples=60, deadline=None)
@given(networks(), KEEP)
def test_whole_channels_meet_the_budget_exactly_and_stay_within_one_of_the_ratio(network, keep_ratio):
    importance, sizes, _ = network
    budget = round(keep_ratio * sizes.sum())
    ratios = keep_ratios(importance, sizes, keep_ratio)
    if budget < len(sizes):
        with pytest.raises(BudgetTooSmallError):
            whole_channels(ratios, sizes, keep_ratio)
        return
    counts = whole_channels(ratios, sizes, keep_ratio)
    assert counts.sum() == budget
    assert (counts >= 1).all()
    assert (counts <= sizes).all()
    if (ratios * sizes >= 1).all():  # no floor of one channel had to be paid for
        assert (np.abs(counts - ratios * sizes) < 1 + 1e-6).all()


@settings(max_examples=60, deadline=None)
@given(networks(tied=True), KEEP, st.sampled_from([1, 4, 8]))
def test_tied_layers_and_multiples_never_exceed_the_budget_and_miss_less_than_a_step(network, keep_ratio, step):
    importance, sizes, members = network
    budget = round(keep_ratio * (members @ sizes))
    least = np.minimum(sizes, step)
    ratios = keep_ratios(importance, sizes, keep_ratio, members=members)
    if members @ least > budget:
        with pytest.raises(BudgetTooSmallError, match=f"{keep_ratio:g}"):
            whole_channels(ratios, sizes, keep_ratio, members=members, multiple_of=step)
        return
    counts = whole_channels(ratios, sizes, keep_ratio, members=members, multiple_of=step)
    assert budget - step * members.max() < members @ counts <= budget
    assert ((counts % step == 0) | (counts == sizes)).all()
    assert (counts >= least).all()
    assert (counts <= sizes).all()


@settings(max_examples=60, deadline=None)
@given(networks(), KEEP)
def test_the_papers_ceiling_overshoots_by_at_most_one_channel_less_than_there_are_layers(network, keep_ratio):
    importance, sizes, _ = network
    ratios = keep_ratios(importance, sizes, keep_ratio)
    if round(keep_ratio * sizes.sum()) < len(sizes):
        return
    counts = whole_channels(ratios, sizes, keep_ratio, rounding="ceil")
    assert counts.sum() - keep_ratio * sizes.sum() + 1e-6 >= 0
    assert counts.sum() <= np.ceil(keep_ratio * sizes.sum() - 1e-6) + len(sizes) - 1


@pytest.mark.parametrize("keep_ratio", [0.2, 0.4, 0.6, 0.8])
def test_four_layers_of_a_resnet_sum_to_the_budget(keep_ratio):
    sizes, importance = ints(64, 128, 256, 512), np.array([0.7, 0.3, 0.5, 0.4])
    counts = whole_channels(keep_ratios(importance, sizes, keep_ratio), sizes, keep_ratio)
    assert counts.sum() == round(keep_ratio * 960)
    low, high = bounds(keep_ratio)
    assert (counts >= np.floor(low * sizes)).all()
    assert (counts <= np.ceil(high * sizes)).all()


def test_remainders_are_served_from_the_largest_down():
    # wanted 2.6, 2.5, 4.9 of a budget of 10: floors 2 + 2 + 4, two more to .9 and .6
    assert whole_channels(np.array([0.26, 0.25, 0.49]), ints(10, 10, 10), 1 / 3).tolist() == [3, 2, 5]
    # the ceiling takes one for each: 11 = 10 + (L - 1) - 1
    assert whole_channels(np.array([0.26, 0.25, 0.49]), ints(10, 10, 10), 1 / 3, rounding="ceil").tolist() == [3, 3, 5]


def test_a_product_that_misses_its_integer_by_rounding_counts_as_the_integer():
    assert 0.07 * 100 > 7  # 7.000000000000001
    assert whole_channels(np.array([0.07]), ints(100), 0.07, rounding="ceil").tolist() == [7]
    assert 0.29 * 100 < 29  # 28.999999999999996
    assert whole_channels(np.array([0.29]), ints(100), 0.29).tolist() == [29]


def test_every_layer_keeps_a_channel():
    assert whole_channels(np.array([0.05]), ints(4), 0.2).tolist() == [1]
    for rounding in ("largest-remainder", "ceil"):
        counts = whole_channels(np.full(2, 0.05), ints(4, 100), 0.05, rounding=rounding)
        assert counts.tolist() == [1, 4 if rounding == "largest-remainder" else 5]


def test_floors_that_exceed_the_budget_are_paid_by_the_largest_layers():
    # wanted 0.4 three times and 8.8: floors 1 + 1 + 1 + 8 = 11 against a budget of 10
    assert whole_channels(np.full(4, 0.1), ints(4, 4, 4, 88), 0.1).tolist() == [1, 1, 1, 7]


def test_a_budget_below_one_channel_per_layer_says_what_would_do():
    for rounding in ("largest-remainder", "ceil"):
        with pytest.raises(BudgetTooSmallError, match=r"keep ratio 0.05 gives 1 channels.*at least 0.1667"):
            whole_channels(np.full(4, 0.05), ints(6, 6, 6, 6), 0.05, rounding=rounding)
    assert whole_channels(np.full(4, 0.1667), ints(6, 6, 6, 6), 0.1667).tolist() == [1, 1, 1, 1]


def test_the_second_budget_is_the_largest_one_whose_cost_fits():
    sizes = ints(16, 32, 64)

    def counts_at(keep_ratio):
        return whole_channels(np.full(3, keep_ratio), sizes, keep_ratio)

    def cost(counts):
        return float(counts[0] * counts[1] + counts[1] * counts[2])

    limit = 0.25 * cost(sizes)
    counts = fit_cost(counts_at, cost, limit, 0.8)
    assert cost(counts) <= limit
    larger = [counts_at(kept / 112) for kept in range(counts.sum() + 1, 91)]
    assert all(cost(other) > limit for other in larger)
    np.testing.assert_array_equal(fit_cost(counts_at, cost, cost(sizes), 0.8), counts_at(0.8))


def test_a_second_budget_that_the_smallest_network_exceeds_is_refused_with_its_cost():
    sizes = ints(16, 32)

    def counts_at(keep_ratio):
        return whole_channels(np.full(2, keep_ratio), sizes, keep_ratio)

    assert fit_cost(counts_at, lambda counts: float(counts.sum()), 2, 0.5).tolist() == [1, 1]
    with pytest.raises(BudgetTooSmallError, match=r"smallest network costs 2, the limit is 1\.5"):
        fit_cost(counts_at, lambda counts: float(counts.sum()), 1.5, 0.5)


@pytest.mark.parametrize("keep_ratio", [0.0, -0.2, 1.5, NAN])
def test_keep_ratios_out_of_range_are_refused(keep_ratio):
    for function in (keep_ratios, whole_channels):
        with pytest.raises(ValueError, match=rf"must be in \(0, 1\], got {keep_ratio}"):
            function(np.array([0.5]), ints(4), keep_ratio)


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"importance": np.array([NAN, 0.1])}, "importance must be finite, got nan at 0"),
        ({"importance": np.array([0.1])}, r"\(1,\) and \(2,\)"),
        ({"sizes": ints(4, 0)}, r"sizes must be .* got \[4, 0\]"),
        ({"members": ints(1, 0)}, r"members must be .* got \[1, 0\]"),
        ({"temperature": 0.0}, "temperature must be > 0, got 0.0"),
        ({"reading": "ratios"}, "did you mean 'ratio'"),
    ],
)
def test_bad_arguments_of_the_water_filling_are_refused(values, message):
    with pytest.raises(ValueError, match=message):
        keep_ratios(**{"importance": np.zeros(2), "sizes": ints(4, 4), "keep_ratio": 0.5, **values})


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"ratios": np.array([0.5, NAN])}, r"numbers in \[0, 1\], got \[0.5, nan\]"),
        ({"ratios": np.array([0.5, 1.2])}, r"got \[0.5, 1.2\]"),
        ({"rounding": "floor"}, "rounding must be one of largest-remainder, ceil, got 'floor'"),
        ({"multiple_of": 0}, "multiple_of must be >= 1, got 0"),
    ],
)
def test_bad_arguments_of_the_rounding_are_refused(values, message):
    with pytest.raises(ValueError, match=message):
        whole_channels(**{"ratios": np.full(2, 0.5), "sizes": ints(4, 4), "keep_ratio": 0.5, **values})


def test_bad_costs_are_refused():
    for limit in (0.0, NAN):
        with pytest.raises(ValueError, match="limit must be > 0"):
            fit_cost(lambda _: ints(1), lambda _: 1.0, limit, 0.5)
    with pytest.raises(ValueError, match=r"got NaN for \[1\] channels"):
        fit_cost(lambda _: ints(1), lambda _: NAN, 1.0, 0.5)
