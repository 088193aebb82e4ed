"""When a channel should be shared by all domains: bias against variance in FedSAP's separable quadratic (App. E.1)."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from ._checks import check_finite

if TYPE_CHECKING:
    from jaxtyping import Float


def sharing_bias(theta: Float[np.ndarray, "K P"], weights: Float[np.ndarray, " K"], curvature: float) -> float:
    """Return what one parameter for all domains costs: B^G = h/2 sum_k q_k |θ_k - θ̄|^2, θ̄ = sum_k q_k θ_k (Eq. 11).

    The risk of domain k is quadratic about its own optimum, R_k(w) = R_k(θ_k) + h/2 |w - θ_k|^2 (Eq. 10).

    Args:
        theta: (K, P), the channel's optimal parameters θ in each domain.
        weights: (K,), evaluation weights q of the domains, >= 0, sum 1.
        curvature: h > 0.

    Raises:
        ValueError: If an argument is out of range or shapes do not fit.

    Example:
        >>> sharing_bias(np.array([[0.0], [4.0]]), np.array([0.75, 0.25]), 2.0)
        3.0
    """
    return private_bias(theta, np.broadcast_to(weights @ theta, theta.shape), weights, curvature)


def private_bias(
    theta: Float[np.ndarray, "K P"],
    group_theta: Float[np.ndarray, "K P"],
    weights: Float[np.ndarray, " K"],
    curvature: float,
) -> float:
    """Return what one parameter for each group costs: B^P = h/2 sum_k q_k |θ_k - θ_π(k)|^2 (Eq. 12).

    It is 0 where every domain has a group of its own, and positive where a group merges domains that differ.

    Args:
        theta: (K, P), see :func:`sharing_bias`.
        group_theta: (K, P), for each domain k the optimal parameters θ_π(k) of the group it is assigned to.
        weights: (K,), see :func:`sharing_bias`.
        curvature: h > 0.

    Raises:
        ValueError: If an argument is out of range or shapes do not fit.

    Example:
        >>> private_bias(np.array([[0.0], [4.0]]), np.array([[0.0], [3.0]]), np.array([0.75, 0.25]), 2.0)
        0.25
    """
    if theta.ndim != 2 or group_theta.shape != theta.shape or weights.shape != theta.shape[:1]:
        raise ValueError(f"theta (K, P) and weights (K,), got {theta.shape}, {group_theta.shape}, {weights.shape}")
    check_finite("theta", theta)
    check_finite("group_theta", group_theta)
    if not (weights >= 0).all() or not np.isclose(weights.sum(), 1):
        raise ValueError(f"weights must be >= 0 and sum to 1, got {weights.tolist()}; divide them by their sum")
    if not 0 < curvature < np.inf:
        raise ValueError(f"curvature must be > 0, got {curvature}")
    return float(curvature / 2 * (weights @ np.square(theta - group_theta).sum(axis=1)))


def prefers_global(global_bias: float, private_bias: float, global_variance: float, private_variance: float) -> bool:
    """Return whether an active channel should be Global rather than Private: B^G - B^P <= V^P - V^G (Eq. 13).

    Proposition 1: excess risk is bias plus variance of the estimate, and this compares the two roles' sums. On a
    network these terms are not observable; dispersion (Eq. 6) stands for the left side.

    Args:
        global_bias: B^G, see :func:`sharing_bias`.
        private_bias: B^P, see :func:`private_bias`.
        global_variance: V^G = h/2 E|ŵ - E ŵ|^2 of the pooled estimate.
        private_variance: V^P, the same of the groups' estimates, averaged over domains by q.

    Raises:
        ValueError: If a term is negative, NaN or infinite.

    Example:
        >>> prefers_global(0.2, 0.0, 0.1, 0.4), prefers_global(0.5, 0.0, 0.1, 0.4)
        (True, False)
    """
    terms = np.array([global_bias, private_bias, global_variance, private_variance])
    check_finite("biases and variances", terms)
    if (terms < 0).any():
        raise ValueError(f"biases and variances must be >= 0, got {terms.tolist()}")
    return global_bias - private_bias <= private_variance - global_variance
