"""What FedSAP knows of each channel: normalisation and utilities (Eq. 5), missing values, EMA, dispersion (Eq. 6)."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from fedapp.functional.channel_statistics import dispersion, fill_missing, group_means, normalise, smooth, utility

NAN = float("nan")
LAYERS = [slice(0, 3), slice(3, 5)]
HOWS = ["per-layer-minmax", "per-layer-max", "per-layer-rank", "global-minmax", "zscore"]


def test_each_normalisation_worked_by_hand():
    values = np.array([1.0, 5.0, 3.0, 9.0, 1.0])
    expected = {
        "per-layer-minmax": [0, 1, 0.5, 1, 0],
        "per-layer-max": [0.2, 1, 0.6, 1, 1 / 9],
        "per-layer-rank": [0, 1, 0.5, 1, 0],
        "global-minmax": [0, 0.5, 0.25, 1, 0],
        # mean 3.8, squared deviations 7.84 + 1.44 + 0.64 + 27.04 + 7.84 = 44.8, deviation sqrt(8.96)
        "zscore": np.array([-2.8, 1.2, -0.8, 5.2, -2.8]) / np.sqrt(8.96),
    }
    assert list(expected) == HOWS
    for how, values_normalised in expected.items():
        np.testing.assert_allclose(normalise(values, LAYERS, how), values_normalised, atol=1e-12)


@pytest.mark.parametrize("how", HOWS)
def test_what_was_not_observed_stays_nan_and_changes_nothing_else(how):
    values = np.array([1.0, NAN, 5.0, 3.0, NAN, 9.0, 1.0])
    layers = [slice(0, 4), slice(4, 7)]
    result = normalise(values, layers, how)
    assert np.isnan(result[[1, 4]]).all()
    np.testing.assert_allclose(result[[0, 2, 3, 5, 6]], normalise(values[[0, 2, 3, 5, 6]], LAYERS, how), atol=1e-12)


@pytest.mark.parametrize("how", HOWS)
def test_where_all_values_are_equal_each_is_one_half(how):
    assert normalise(np.full(5, 2.5), LAYERS, how).tolist() == [0.5] * 5
    assert normalise(np.array([NAN, 0.0, NAN, NAN, NAN]), LAYERS, how)[1] == 0.5


def test_equal_values_share_their_rank():
    random = np.random.default_rng(0).integers(-3, 3, size=40).astype(float)
    expected = (stats.rankdata(random) - 1) / 39
    np.testing.assert_allclose(normalise(random, [slice(0, 40)], "per-layer-rank"), expected, atol=1e-12)


def test_equation_5_mixes_by_the_two_weights():
    activation, gradient = np.array([0.2, 1.0, NAN, 0.3]), np.array([0.8, 0.5, 0.1, NAN])
    np.testing.assert_allclose(utility(activation, gradient), [0.5, 0.75, NAN, NAN], atol=1e-12)
    np.testing.assert_allclose(utility(activation, gradient, 0.25, 0.75), [0.65, 0.625, NAN, NAN], atol=1e-12)


def test_missing_utilities_come_from_oneself_then_from_others_then_from_the_layer():
    utilities = np.array([[0.8, NAN, NAN, 0.2, 0.6, NAN], [NAN, 0.4, NAN, NAN, NAN, NAN], [NAN] * 6])
    last = np.array([[0.1, 0.6, NAN, NAN, NAN, NAN], [0.2, NAN, NAN, NAN, NAN, NAN], [NAN] * 6])
    filled = fill_missing(utilities, last, [slice(0, 3), slice(3, 5), slice(5, 6)])
    expected = [
        [0.8, 0.6, 0.7, 0.2, 0.6, 0.5],  # own last 0.6; median of 0.8 and 0.6; a layer nobody knows
        [0.2, 0.4, 0.3, 0.2, 0.6, 0.5],  # own last 0.2; the other's 0.2 and 0.6
        [0.5, 0.5, 0.5, 0.2, 0.6, 0.5],  # means over the two: (0.8 + 0.2) / 2 and (0.6 + 0.4) / 2
    ]
    np.testing.assert_allclose(filled, expected, atol=1e-12)
    assert np.isnan(utilities[0, 1])  # the argument is as it was


def test_smoothing_weighs_the_old_or_the_new_value():
    previous, value = np.array([1.0, -2.0]), np.array([2.0, 4.0])
    np.testing.assert_allclose(smooth(previous, value, 0.9), [1.1, -1.4], atol=1e-12)
    np.testing.assert_allclose(smooth(previous, value, 0.9, "new"), [1.9, 3.4], atol=1e-12)
    np.testing.assert_array_equal(smooth(previous, value, 0.5), smooth(previous, value, 0.5, "new"))


def test_smoothing_takes_the_first_value_and_keeps_what_was_not_observed():
    result = smooth(np.array([[NAN, 1.0, NAN]]), np.array([[3.0, NAN, NAN]]), 0.3)
    np.testing.assert_array_equal(result, [[3.0, 1.0, NAN]])


def test_group_means_are_weighted_over_the_members_that_observed_the_channel():
    activations = np.array([[1.0, 4.0, NAN], [2.0, NAN, NAN], [5.0, 6.0, 1.0], [7.0, NAN, NAN]])
    means = group_means(activations, np.array([2, 0, 2, 0]), np.array([1.0, 1.0, 3.0, 0.0]))
    # group 0: only client 1 counts; group 2: (1 + 15) / 4, (4 + 18) / 4, 1
    np.testing.assert_allclose(means, [[2.0, NAN, NAN], [4.0, 5.5, 1.0]], atol=1e-12)


def test_a_client_that_observed_infinity_times_no_weight_is_still_refused():
    with pytest.raises(ValueError, match="got infinity"):
        group_means(np.array([[np.inf]]), np.array([0]), np.array([0.0]))


def test_equation_6_worked_by_hand():
    means = np.array([[1.0, 2.0], [3.0, 2.0], [2.0, 2.0]])
    # mean 2, squared deviations 1 + 1 + 0: 2/3 over 4, or 1 over 4 with ddof 1
    np.testing.assert_allclose(dispersion(means), [1 / 6, 0.0], atol=1e-8)
    np.testing.assert_allclose(dispersion(means, ddof=1), [1 / 4, 0.0], atol=1e-8)
    np.testing.assert_allclose(dispersion(means, epsilon=4.0), [1 / 12, 0.0], atol=1e-12)


@pytest.mark.parametrize("groups", [2, 3, 5])
def test_dispersion_is_at_most_the_number_of_groups_less_one(groups):
    one_only = np.zeros((groups, 1))
    one_only[0] = 3.0
    assert dispersion(one_only)[0] == pytest.approx(groups - 1, abs=1e-6)
    random = np.random.default_rng(groups).exponential(size=(groups, 200)) ** 4
    assert dispersion(random).max() <= groups - 1


def test_channels_of_fewer_than_two_groups_have_no_dispersion_and_dead_ones_none_to_speak_of():
    means = np.array([[1.0, NAN, 0.0, 1e-9], [NAN, NAN, 0.0, 5e-9], [NAN, NAN, 0.0, NAN]])
    result = dispersion(means)
    assert np.isnan(result[:2]).all()
    assert result[2] == 0
    assert result[3] < 1e-8
    assert np.isnan(dispersion(means[:1])).all()


@settings(max_examples=30, deadline=None)
@given(st.permutations(range(4)), st.integers(0, 100))
def test_names_of_groups_do_not_matter(names, seed):
    generator = np.random.default_rng(seed)
    activations = generator.exponential(size=(9, 12))
    activations[generator.random((9, 12)) < 0.4] = NAN
    groups, weights = generator.integers(0, 4, size=9), generator.integers(1, 50, size=9).astype(float)
    renamed = np.array(names)[groups] * 10
    np.testing.assert_allclose(
        dispersion(group_means(activations, renamed, weights)),
        dispersion(group_means(activations, groups, weights)),
        rtol=1e-9,
    )


@settings(max_examples=30, deadline=None)
@given(st.integers(0, 1000), st.sampled_from(HOWS))
def test_normalising_keeps_the_order_within_a_layer(seed, how):
    values = np.random.default_rng(seed).normal(size=12)
    layers = [slice(0, 7), slice(7, 12)]
    result = normalise(values, layers, how)
    for layer in layers:
        np.testing.assert_array_equal(np.argsort(result[layer]), np.argsort(values[layer]))
    if how.endswith("minmax") or how.endswith("rank"):
        assert result.min() == 0
        assert result.max() == 1


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: normalise(np.array([1.0, np.inf, 1.0]), [slice(0, 3)]), "got infinity"),
        (lambda: normalise(np.ones(3), [slice(0, 2)]), "up to 2 for 3 channels"),
        (lambda: normalise(np.ones(3), [slice(0, 2), slice(1, 3)]), "without gap"),
        (lambda: normalise(np.ones(3), [slice(0, 3)], "per-layer-minmix"), "did you mean 'per-layer-minmax'"),
        (lambda: utility(np.ones(3), np.ones(1)), r"\(3,\) and \(1,\)"),
        (lambda: utility(np.ones(3), np.ones(3), 0.0, 0.0), "not both 0"),
        (lambda: utility(np.ones(3), np.ones(3), NAN, 1.0), "got nan and 1.0"),
        (lambda: utility(np.array([np.inf]), np.ones(1)), "activation must be finite"),
        (lambda: fill_missing(np.ones((2, 3)), np.ones((1, 3)), [slice(0, 3)]), r"\(2, 3\) and \(1, 3\)"),
        (lambda: fill_missing(np.ones((1, 1)), np.full((1, 1), np.inf), [slice(0, 1)]), "last must be finite"),
        (lambda: smooth(np.ones(2), np.ones(1), 0.5), r"\(2,\) and \(1,\)"),
        (lambda: smooth(np.ones(1), np.ones(1), 1.5), r"beta must be in \[0, 1\], got 1.5"),
        (lambda: smooth(np.ones(1), np.ones(1), 0.5, "older"), "beta_on must be one of old, new"),
        (lambda: smooth(np.ones(1), np.array([np.inf]), 0.5), "value must be finite"),
        (lambda: group_means(np.ones((2, 3)), np.zeros(1, dtype=int), np.ones(2)), "one group and weight a client"),
        (lambda: group_means(np.ones((1, 3)), np.zeros(1, dtype=int), np.array([-1.0])), r"got \[-1.0\]"),
        (lambda: dispersion(np.ones((2, 3)), ddof=2), "ddof 0 or 1"),
        (lambda: dispersion(np.ones((2, 3)), epsilon=0.0), "epsilon > 0"),
        (lambda: dispersion(np.array([[np.inf], [1.0]])), "got infinity"),
    ],
)
def test_statistics_that_are_no_numbers_or_do_not_fit_are_refused(call, message):
    with pytest.raises(ValueError, match=message):
        call()
