"""Spread and paired differences, against numbers worked by hand and against scipy's own test."""

from __future__ import annotations

import math

import numpy as np
import pytest
from scipy import stats

from fedapp.experiments.statistics import half_width, paired, spread


def test_mean_and_sample_standard_deviation_by_hand() -> None:
    # 2, 4, 9: mean 5, squares 9 + 1 + 16 = 26, divided by n - 1 = 2
    found = spread([2.0, 4.0, 9.0])
    assert found is not None
    assert (found.mean, found.n) == (5.0, 3)
    assert found.std == pytest.approx(math.sqrt(13.0), rel=1e-12)


def test_one_value_has_no_spread_and_what_was_not_measured_is_left_out() -> None:
    found = spread([None, 3.0])
    assert found is not None
    assert (found.mean, found.std, found.n) == (3.0, None, 1)
    assert spread([None, None]) is None
    assert spread([]) is None


def test_the_interval_of_three_pairs_by_hand() -> None:
    # Differences 1, 2, 6: mean 3, variance (4 + 1 + 9) / 2 = 7; t(0.975, 2) = 4.302653 from a printed table
    found = paired({0: 11.0, 1: 22.0, 2: 36.0}, {0: 10.0, 1: 20.0, 2: 30.0})
    assert found is not None
    assert found.differences == (1.0, 2.0, 6.0)
    assert found.mean == 3.0
    half = 4.302653 * math.sqrt(7.0 / 3.0)
    assert found.low == pytest.approx(3.0 - half, abs=1e-5)
    assert found.high == pytest.approx(3.0 + half, abs=1e-5)


def test_the_interval_is_that_of_scipys_paired_t_test() -> None:
    generator = np.random.default_rng(7)
    ours, theirs = generator.normal(size=(2, 6))
    found = paired(dict(enumerate(ours)), dict(enumerate(theirs)))
    expected = stats.ttest_rel(ours, theirs).confidence_interval(0.95)
    assert found is not None
    assert (found.low, found.high) == pytest.approx((expected.low, expected.high), rel=1e-9)


def test_pairing_goes_by_seed_not_by_place() -> None:
    found = paired({2: 5.0, 0: 1.0, 7: 9.0}, {0: 1.5, 2: 4.0, 9: 0.0})
    assert found is not None
    assert found.seeds == (0, 2)
    assert found.differences == (-0.5, 1.0)


@pytest.mark.parametrize("seeds", [(0,), (0, 1)])
def test_fewer_than_three_pairs_get_no_interval(seeds: tuple[int, ...]) -> None:
    found = paired({seed: 2.0 * seed + 1.0 for seed in seeds}, dict.fromkeys(seeds, 0.0))
    assert found is not None
    assert found.low is None
    assert found.high is None


def test_no_common_seed_gives_no_difference() -> None:
    assert paired({0: 1.0}, {1: 1.0}) is None
    assert paired({0: None}, {0: 1.0}) is None


def test_a_higher_level_is_wider() -> None:
    assert half_width(1.0, 5, 0.99) > half_width(1.0, 5, 0.95) > 0
