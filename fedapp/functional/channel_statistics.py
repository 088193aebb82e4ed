"""What FedSAP knows of each channel: normalised magnitudes, utilities (Eq. 5), group means and dispersion (Eq. 6).

Per-channel arrays are flat, (U,) over all layers; ``slices`` says where each layer lies. NaN means "not observed".
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Literal, get_args

import numpy as np
from numpy.typing import NDArray

from ._checks import check_choice, check_layers, check_not_infinite

if TYPE_CHECKING:
    from jaxtyping import Float, Int

FloatArray = NDArray[np.float64]

Normalisation = Literal["per-layer-minmax", "per-layer-max", "per-layer-rank", "global-minmax", "zscore"]
BetaOn = Literal["old", "new"]


def normalise(
    values: Float[np.ndarray, " U"], slices: Sequence[slice], how: Normalisation = "per-layer-minmax"
) -> Float[np.ndarray, " U"]:
    """Normalise channel magnitudes before they are mixed (the tilde of FedSAP, Eq. 5, which leaves open how).

    "per-layer-minmax" maps a layer to [0, 1]; "per-layer-max" divides by its largest magnitude; "per-layer-rank" takes
    ranks in [0, 1], ties sharing theirs; "global-minmax" and "zscore" (mean 0, deviation 1) go over all layers at
    once. Where all values are equal there is nothing to tell apart: 0.5. NaN stay NaN and are left out.

    Args:
        values: (U,), one client's activation or gradient magnitudes; NaN where not observed.
        slices: L slices, where each layer lies.
        how: One of the five.

    Returns:
        (U,).

    Raises:
        ValueError: If a value is infinite, the slices do not cover the channels, or ``how`` is unknown.

    Example:
        >>> normalise(np.array([1.0, 3.0, 2.0, 7.0]), [slice(0, 3), slice(3, 4)]).tolist()
        [0.0, 1.0, 0.5, 0.5]
    """
    check_choice("how", how, get_args(Normalisation))
    check_layers(len(values), slices)
    check_not_infinite("values", values)
    result = np.full(len(values), np.nan)
    for part in slices if how.startswith("per-layer") else [slice(None)]:
        observed = np.flatnonzero(~np.isnan(values[part])) + (part.start or 0)
        if len(observed):
            result[observed] = _normalised(values[observed].astype(np.float64), how)
    return result


def utility(
    activation: Float[np.ndarray, " U"],
    gradient: Float[np.ndarray, " U"],
    activation_weight: float = 0.5,
    gradient_weight: float = 0.5,
) -> Float[np.ndarray, " U"]:
    """Mix normalised activation and gradient magnitudes to utilities: u = λ_a r + λ_g h (FedSAP, Eq. 5).

    Args:
        activation: (U,), normalised activation magnitudes r; NaN where not observed.
        gradient: (U,), normalised gradient magnitudes h; NaN where not observed.
        activation_weight: λ_a >= 0.
        gradient_weight: λ_g >= 0.

    Returns:
        (U,), NaN where one of the two is.

    Raises:
        ValueError: If shapes differ, a value is infinite, a weight is negative or both are 0.

    Example:
        >>> utility(np.array([0.2, 1.0]), np.array([0.4, 0.0])).round(3).tolist()
        [0.3, 0.5]
    """
    if activation.shape != gradient.shape:
        raise ValueError(f"activation and gradient must agree, got {activation.shape} and {gradient.shape}")
    if not (activation_weight >= 0 and gradient_weight >= 0 and 0 < activation_weight + gradient_weight < np.inf):
        raise ValueError(f"weights must be >= 0 and not both 0, got {activation_weight} and {gradient_weight}")
    check_not_infinite("activation", activation)
    check_not_infinite("gradient", gradient)
    return np.asarray(activation_weight * activation + gradient_weight * gradient)


def fill_missing(
    utilities: Float[np.ndarray, "K U"], last: Float[np.ndarray, "K U"], slices: Sequence[slice]
) -> Float[np.ndarray, "K U"]:
    """Fill in utilities that nobody measured this round, as those of dropped channels, which the paper leaves open.

    In this order: the client's own last value; the mean over the clients that have one (fresh or last); the median of
    the client's layer; 0.5.

    Args:
        utilities: (K, U), utilities u of K clients; NaN where not observed.
        last: (K, U), what each client had before; NaN where it never had any.
        slices: L slices, where each layer lies.

    Returns:
        (K, U), without NaN.

    Raises:
        ValueError: If shapes differ, a value is infinite, or the slices do not cover the channels.

    Example:
        >>> nan = float("nan")
        >>> utilities, last = np.array([[0.8, nan, nan], [nan, nan, nan]]), np.array([[nan, 0.4, nan], [nan] * 3])
        >>> fill_missing(utilities, last, [slice(0, 3)]).round(3).tolist()
        [[0.8, 0.4, 0.6], [0.8, 0.4, 0.6]]
    """
    if utilities.shape != last.shape:
        raise ValueError(f"utilities and last must agree, got {utilities.shape} and {last.shape}")
    check_layers(utilities.shape[1], slices)
    check_not_infinite("utilities", utilities)
    check_not_infinite("last", last)
    filled = np.where(np.isnan(utilities), last, utilities).astype(np.float64)
    known = ~np.isnan(filled)
    means = _ratio(np.where(known, filled, 0.0).sum(axis=0), known.sum(axis=0))
    filled = np.where(known, filled, means)
    for layer in slices:
        part = filled[:, layer]
        unknown = np.isnan(part)
        if unknown.all():
            part[...] = 0.5
        elif unknown.any():  # the same channels for every client
            part[...] = np.where(unknown, np.nanmedian(part, axis=1, keepdims=True), part)
    return filled


def smooth(
    previous: NDArray[np.floating[Any]], value: NDArray[np.floating[Any]], beta: float, beta_on: BetaOn = "old"
) -> FloatArray:
    """Smooth statistics over rounds: s_t = β s_(t-1) + (1 - β) x_t, an exponential moving average.

    The paper does not say on which side β stands; "new" swaps the two (at its β = 0.5 they are the same). A first
    value is taken as it is; what was not observed this round keeps its previous value.

    Args:
        previous: Any shape, s_(t-1); NaN where there is none yet.
        value: Same shape, x_t; NaN where not observed.
        beta: β in [0, 1].
        beta_on: Whether β weighs the "old" or the "new" value.

    Returns:
        s_t, NaN where both are.

    Raises:
        ValueError: If shapes differ, a value is infinite, ``beta`` is out of range or ``beta_on`` unknown.

    Example:
        >>> smooth(np.array([1.0, np.nan, 3.0]), np.array([2.0, 5.0, np.nan]), 0.75).tolist()
        [1.25, 5.0, 3.0]
    """
    check_choice("beta_on", beta_on, get_args(BetaOn))
    if not 0 <= beta <= 1:
        raise ValueError(f"beta must be in [0, 1], got {beta}")
    if previous.shape != value.shape:
        raise ValueError(f"previous and value must agree, got {previous.shape} and {value.shape}")
    check_not_infinite("previous", previous)
    check_not_infinite("value", value)
    kept = beta if beta_on == "old" else 1 - beta
    mixed = kept * previous + (1 - kept) * value
    return np.where(np.isnan(previous), value, np.where(np.isnan(value), previous, mixed)).astype(np.float64)


def group_means(
    activations: Float[np.ndarray, "K U"], groups: Int[np.ndarray, " K"], weights: Float[np.ndarray, " K"]
) -> Float[np.ndarray, "G U"]:
    """Average the activation magnitudes of each pseudo-domain group: μ of FedSAP, Eq. 6, weighted by sample counts.

    Args:
        activations: (K, U), mean activation magnitudes of K clients; NaN where a client did not have the channel.
        groups: (K,), the group of each client.
        weights: (K,), sample counts n, finite and >= 0.

    Returns:
        (G, U), one row for each group that occurs, in ascending order of its number; NaN where no member (of weight
        above 0) had the channel.

    Raises:
        ValueError: If shapes do not fit, an activation is infinite, or a weight is out of range.

    Example:
        >>> activations = np.array([[1.0, 2.0], [5.0, np.nan], [3.0, np.nan]])
        >>> group_means(activations, np.array([4, 4, 7]), np.array([3.0, 1.0, 2.0])).tolist()
        [[2.0, 2.0], [3.0, nan]]
    """
    if groups.shape != activations.shape[:1] or weights.shape != groups.shape:
        raise ValueError(f"one group and weight a client, got {groups.shape}, {weights.shape}, {activations.shape}")
    if not (np.isfinite(weights) & (weights >= 0)).all():
        raise ValueError(f"weights must be finite and >= 0, got {weights.tolist()}")
    check_not_infinite("activations", activations)
    member = np.unique(groups)[:, None] == groups  # (G, K)
    shares = member * weights.astype(np.float64)
    observed = ~np.isnan(activations)
    return _ratio(shares @ np.where(observed, activations, 0.0), shares @ observed)


def dispersion(means: Float[np.ndarray, "G U"], *, ddof: int = 0, epsilon: float = 1e-8) -> Float[np.ndarray, " U"]:
    """Measure how differently groups use a channel: d = Var_k(μ_k) / ((mean_k μ_k)^2 + ε) (FedSAP, Eq. 6).

    Each group counts once. The paper does not name the variance; ``ddof`` 0, the population's, bounds d by K - 1, so a
    threshold means different things for different numbers of groups. A channel that is dead everywhere gets 0.

    Args:
        means: (G, U), mean activation magnitudes μ of the groups; NaN where a group does not have the channel.
        ddof: 0 or 1; the variance divides by the number of groups less this.
        epsilon: ε > 0.

    Returns:
        (U,); NaN where fewer than two groups have the channel, so that there is nothing to compare.

    Raises:
        ValueError: If an argument is out of range or a mean infinite.

    Example:
        >>> dispersion(np.array([[1.0, 0.0, 1.0], [3.0, 0.0, np.nan]])).round(6).tolist()
        [0.25, 0.0, nan]
    """
    if means.ndim != 2 or ddof not in (0, 1) or not epsilon > 0:
        raise ValueError(f"means must be (G, U), ddof 0 or 1, epsilon > 0, got {means.shape}, {ddof}, {epsilon}")
    check_not_infinite("means", means)
    observed = ~np.isnan(means)
    groups = observed.sum(axis=0)
    mean = _ratio(np.where(observed, means, 0.0).sum(axis=0), groups)
    variance = _ratio(np.where(observed, np.square(means - mean), 0.0).sum(axis=0), groups - ddof)
    return np.where(groups >= 2, variance / (np.square(mean) + epsilon), np.nan)


def _normalised(values: FloatArray, how: Normalisation) -> FloatArray:
    low, high = values.min(), values.max()
    if low == high:
        return np.full(len(values), 0.5)
    if how == "zscore":
        return np.asarray((values - values.mean()) / values.std())
    if how == "per-layer-max":
        return np.asarray(values / np.abs(values).max())
    if how == "per-layer-rank":
        _, inverse, counts = np.unique(values, return_inverse=True, return_counts=True)
        middle = np.cumsum(counts) - (counts + 1) / 2  # mean rank of equal values, from 0
        return np.asarray(middle[inverse] / (len(values) - 1))
    return np.asarray((values - low) / (high - low))


def _ratio(total: NDArray[Any], count: NDArray[Any]) -> FloatArray:
    """Return total / count, NaN where there is nothing to divide by."""
    return np.asarray(np.divide(total, count, out=np.full(total.shape, np.nan), where=count > 0))
