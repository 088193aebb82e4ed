"""Proposition 1 of FedSAP on a separable quadratic whose excess risks are enumerated exactly (Eq. 10 to 13)."""

from itertools import product

import numpy as np
import pytest

from fedapp.functional.role_theory import prefers_global, private_bias, sharing_bias

WEIGHTS = np.array([0.5, 0.3, 0.2])
GROUPS = [0, 0, 1]  # domains 0 and 1 share a group


def theta(spread, seed=0):
    """Optimal parameters of three domains, two entries each."""
    return spread * np.random.default_rng(seed).normal(size=(3, 2))


def group_average(values, groups=GROUPS):
    """For each domain the weighted mean over the domains of its group."""
    groups = np.array(groups)
    return np.stack([WEIGHTS[groups == g] @ values[groups == g] / WEIGHTS[groups == g].sum() for g in groups])


def expected(function, noise):
    """The exact expectation over estimates θ_k ± noise_k, every sign of every entry equally likely."""
    signs = np.array(list(product([-1.0, 1.0], repeat=6))).reshape(-1, 3, 2)
    return np.mean([function(sign * noise[:, None]) for sign in signs], axis=0)


def excess_risk(theta, estimates, curvature):
    """Eq. 10 less the domains' own optima, averaged over domains."""
    return sum(q * curvature / 2 * np.sum((w - t) ** 2) for q, w, t in zip(WEIGHTS, estimates, theta, strict=True))


def pooled(values):
    return np.broadcast_to(WEIGHTS @ values, values.shape)


def risks_and_terms(theta, noise, curvature, average):
    """The expected excess risk of a role's estimates, and the variance of these estimates."""
    risk = expected(lambda e: excess_risk(theta, average(theta + e), curvature), noise)
    variance = expected(lambda e: excess_risk(average(theta), average(theta + e), curvature), noise)
    return risk, variance


@pytest.mark.parametrize("spread", [0.0, 0.3, 2.0])
@pytest.mark.parametrize("curvature", [0.5, 3.0])
def test_excess_risk_is_bias_plus_variance_in_both_roles(spread, curvature):
    own, noise = theta(spread), np.array([0.2, 0.5, 0.9])
    risk, variance = risks_and_terms(own, noise, curvature, pooled)
    assert sharing_bias(own, WEIGHTS, curvature) + variance == pytest.approx(risk, abs=1e-12)
    risk, variance = risks_and_terms(own, noise, curvature, group_average)
    assert private_bias(own, group_average(own), WEIGHTS, curvature) + variance == pytest.approx(risk, abs=1e-12)


def test_the_role_of_equation_13_is_the_one_with_the_smaller_risk():
    chosen = []
    for seed, spread in product(range(6), [0.05, 0.3, 0.6, 2.0]):
        own, noise = theta(spread, seed), np.random.default_rng(seed).uniform(0.1, 1, size=3)
        shared, shared_variance = risks_and_terms(own, noise, 1.7, pooled)
        private, private_variance = risks_and_terms(own, noise, 1.7, group_average)
        biases = sharing_bias(own, WEIGHTS, 1.7), private_bias(own, group_average(own), WEIGHTS, 1.7)
        assert prefers_global(*biases, shared_variance, private_variance) == (shared <= private)
        chosen.append(shared <= private)
    assert any(chosen)
    assert not all(chosen)


def test_both_biases_worked_by_hand():
    own, weights = np.array([[1.0, 0.0], [3.0, 2.0]]), np.array([0.5, 0.5])
    # mean (2, 1): both lie sqrt(2) away, 4/2 * (0.5 * 2 + 0.5 * 2)
    assert sharing_bias(own, weights, 4.0) == pytest.approx(4.0, abs=1e-12)
    assert private_bias(own, own, weights, 4.0) == 0
    assert private_bias(own, own[[0, 0]], weights, 4.0) == pytest.approx(8.0, abs=1e-12)


def test_one_group_for_all_is_sharing():
    own = theta(1.0)
    assert private_bias(own, pooled(own), WEIGHTS, 2.0) == pytest.approx(sharing_bias(own, WEIGHTS, 2.0), abs=1e-12)


def test_a_tie_is_global():
    assert prefers_global(0.5, 0.25, 0.25, 0.5)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: sharing_bias(theta(1), np.array([0.5, 0.5, 0.5]), 1.0), "divide them by their sum"),
        (lambda: sharing_bias(theta(1), WEIGHTS, 0.0), "curvature must be > 0, got 0.0"),
        (lambda: sharing_bias(np.full((3, 2), np.nan), WEIGHTS, 1.0), "theta must be finite"),
        (lambda: private_bias(theta(1), theta(1)[:2], WEIGHTS, 1.0), r"\(3, 2\), \(2, 2\), \(3,\)"),
        (lambda: prefers_global(float("nan"), 0, 0, 0), "must be finite"),
        (lambda: prefers_global(0, 0, -1, 0), "must be >= 0"),
    ],
)
def test_terms_that_make_no_sense_are_refused(call, message):
    with pytest.raises(ValueError, match=message):
        call()
