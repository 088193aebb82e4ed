import math

import numpy as np
import pytest

from fedapp.functional.metrics import (
    best_last_tail,
    by_domain,
    client_mean,
    client_std,
    client_worst,
    effective_dimension,
    entropy_rank,
    participation_ratio,
    pooled_accuracy,
)

NAN = float("nan")


def test_accuracy_half_of_one_and_all_of_three_is_seven_eighths_pooled():
    # users.md 2.12: accuracies .5 (n = 1, here 2 samples) and 1.0 (n = 3, here 6).
    correct, counts = np.array([1, 6]), np.array([2, 6])
    assert pooled_accuracy(correct, counts) == 0.875
    assert client_mean(correct, counts) == 0.75
    assert client_std(correct, counts) == 0.25
    assert client_worst(correct, counts) == 0.5


def test_clients_without_test_samples_are_left_out_and_nothing_measured_is_nan():
    correct, counts = np.array([1, 0, 6]), np.array([2, 0, 6])
    assert (pooled_accuracy(correct, counts), client_mean(correct, counts)) == (0.875, 0.75)
    assert client_worst(correct, counts) == 0.5
    none = np.zeros(2, dtype=int)
    for metric in (pooled_accuracy, client_mean, client_std, client_worst):
        assert math.isnan(metric(none, none))


def test_accuracy_by_domain_is_pooled_within_the_domain():
    got = by_domain(np.array([1, 6, 3, 0]), np.array([2, 6, 4, 0]), ["b", "a", "b", "c"])
    assert list(got) == ["a", "b", "c"]
    assert got["a"] == 1.0
    assert got["b"] == pytest.approx(4 / 6)
    assert math.isnan(got["c"])


def test_bad_counts_are_refused():
    with pytest.raises(ValueError, match=r"\[3\] of \[2\]"):
        pooled_accuracy(np.array([3]), np.array([2]))
    with pytest.raises(ValueError, match=r"\(1,\) and \(2,\)"):
        client_mean(np.array([3]), np.array([2, 3]))
    with pytest.raises(ValueError, match="got 1 for 2 clients"):
        by_domain(np.array([1, 1]), np.array([2, 3]), ["a"])


def test_best_last_and_tail_pass_over_rounds_without_evaluation():
    rounds = [0.9, NAN, *[0.1 * k for k in range(10)], NAN]
    best, last, tail = best_last_tail(rounds)
    assert best == 0.9
    assert last == pytest.approx(0.9)
    assert tail == pytest.approx(0.45)
    assert best_last_tail([0.5, 0.25]) == (0.5, 0.25, 0.375)
    assert all(math.isnan(value) for value in best_last_tail([NAN, NAN]))
    assert all(math.isnan(value) for value in best_last_tail([]))
    with pytest.raises(ValueError, match="got 0"):
        best_last_tail([1.0], tail=0)


def spectrum(rows):
    """Variances by the eigenvalues of the covariance, not by an SVD."""
    unit = rows / np.sqrt((rows**2).sum(axis=1, keepdims=True))
    values = np.linalg.eigvalsh(np.cov(unit.T, bias=True))[::-1]
    return np.clip(values, 0, None) / values.sum()


@pytest.mark.parametrize("energy", [0.8, 0.85, 0.9, 0.95, 0.99])
def test_dimensions_agree_with_the_covariance_spectrum(energy):
    rows = np.random.default_rng(3).normal(size=(40, 12)) * np.linspace(3, 0.1, 12)
    shares = spectrum(rows)
    total, k = 0.0, 0
    while total < energy:
        total, k = total + shares[k], k + 1
    assert effective_dimension(rows, energy) == k
    assert participation_ratio(rows) == pytest.approx(1 / (shares**2).sum(), abs=1e-9)
    assert entropy_rank(rows) == pytest.approx(math.exp(-sum(s * math.log(s) for s in shares if s > 0)), abs=1e-9)


def test_opposite_pairs_on_ten_axes_fill_ten_dimensions_and_nine_hold_ninety_percent():
    rows = np.concatenate([np.eye(10), -np.eye(10)]) * np.arange(1, 11)
    assert effective_dimension(rows) == 9
    assert effective_dimension(rows, 1.0) == 10
    assert participation_ratio(rows) == pytest.approx(10)
    assert entropy_rank(rows) == pytest.approx(10)


def test_equal_rows_fill_no_dimension():
    rows = np.full((5, 7), 0.3)
    assert (effective_dimension(rows), participation_ratio(rows), entropy_rank(rows)) == (0, 0.0, 0.0)
    assert effective_dimension(np.zeros((3, 2))) == 0
    assert effective_dimension(np.empty((0, 2))) == 0


def test_bad_energy_and_shape_are_refused():
    with pytest.raises(ValueError, match=r"got 1\.5"):
        effective_dimension(np.eye(3), 1.5)
    with pytest.raises(ValueError, match=r"\(3,\)"):
        participation_ratio(np.ones(3))
