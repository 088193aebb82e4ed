"""Layer budgets of FedSAP: from a client's keep ratio to whole channels in every layer (Eq. 2)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, get_args

import numpy as np
from numpy.typing import NDArray

from ._checks import check_choice, check_finite, check_layers, check_not_infinite

if TYPE_CHECKING:
    from jaxtyping import Float, Int

FloatArray = NDArray[np.float64]
IntArray = NDArray[np.int64]

Reading = Literal["ratio", "share"]
Rounding = Literal["largest-remainder", "ceil"]

_BISECTIONS = 100  # more than double precision can use
_SCALES = 30  # a thousand-millionth of the keep ratio: finer than any single channel
_SLACK = 1e-9  # a product such as 0.2 * 15 may miss the integer it stands for by its rounding


class BudgetTooSmallError(ValueError):
    """A budget that cannot hold one channel per layer."""


def layer_importance(utilities: Float[np.ndarray, "K U"], slices: Sequence[slice]) -> Float[np.ndarray, " L"]:
    """Average the channel utilities to one importance for each layer (FedSAP, text before Eq. 6).

    I_l = mean over clients of the mean over the layer's channels; only what was observed counts, each client equally.
    A layer that nobody observed gets the mean of the others.

    Args:
        utilities: (K, U), utilities u of K clients; NaN where a client did not observe the channel.
        slices: L slices, where each layer lies among the U channels.

    Returns:
        (L,), in the unit of the utilities.

    Raises:
        ValueError: If nothing at all was observed, a utility is infinite, or the slices do not cover the channels.

    Example:
        >>> utilities = np.array([[0.2, 0.4, 0.5], [0.7, np.nan, 0.1]])
        >>> layer_importance(utilities, [slice(0, 2), slice(2, 3)]).round(3).tolist()
        [0.5, 0.3]
    """
    check_layers(utilities.shape[1], slices)
    check_not_infinite("utilities", utilities)
    importance = np.array([_observed_mean([_observed_mean(row) for row in utilities[:, layer]]) for layer in slices])
    if np.isnan(importance).all():
        raise ValueError("no client observed any utility; keep every layer at the keep ratio until one does")
    return np.where(np.isnan(importance), np.nanmean(importance), importance)


def keep_ratios(
    importance: Float[np.ndarray, " L"],
    sizes: Int[np.ndarray, " L"],
    keep_ratio: float,
    *,
    temperature: float = 1.0,
    reading: Reading = "ratio",
    members: Int[np.ndarray, " L"] | None = None,
) -> Float[np.ndarray, " L"]:
    """Share a client's keep ratio κ out over the layers by importance, Eq. 2: sum_l C_l κ_l = κ sum_l C_l.

    κ_l = clip(a r_l, max(0.05, 0.15 κ), min(1, κ + 0.5)) with r_l = softmax(I / T)_l; the scale a is found by
    bisection, so bounds and budget hold together. (To clip first and normalise afterwards, as the paper's text says,
    breaks its own bounds.) Below κ = 0.05 the lower bound is κ itself, or no ratios would do.

    Args:
        importance: (L,), layer importance I, finite.
        sizes: (L,), channels C of each layer, >= 1.
        keep_ratio: The client's keep ratio κ, in (0, 1].
        temperature: T of the softmax, > 0; higher is more even.
        reading: What the softmax shares out: "ratio", the keep ratios, or "share", the channels (r_l = s_l / C_l),
            which starves wide layers.
        members: (L,), how many convolutions share the mask of each layer, >= 1; None: one each.

    Returns:
        (L,), keep ratios κ_l.

    Raises:
        ValueError: If an argument is out of range, or shapes differ.

    Example:
        >>> keep_ratios(np.array([0.9, 0.1]), np.array([10, 30]), 0.5).round(4).tolist()
        [0.8518, 0.3827]
    """
    check_choice("reading", reading, get_args(Reading))
    check_finite("importance", importance)
    check_keep_ratio(keep_ratio)
    sizes, members = _checked_layers(sizes, members)
    if importance.shape != sizes.shape:
        raise ValueError(f"importance (L,) and sizes (L,) must agree, got {importance.shape} and {sizes.shape}")
    if not temperature > 0:
        raise ValueError(f"temperature must be > 0, got {temperature}")
    logits = importance / temperature - (np.log(sizes) if reading == "share" else 0.0)
    return np.ones(len(sizes)) if keep_ratio == 1 else _water_fill(logits, members * sizes, keep_ratio)


def whole_channels(
    ratios: Float[np.ndarray, " L"],
    sizes: Int[np.ndarray, " L"],
    keep_ratio: float,
    *,
    rounding: Rounding = "largest-remainder",
    multiple_of: int = 1,
    members: Int[np.ndarray, " L"] | None = None,
) -> Int[np.ndarray, " L"]:
    """Round keep ratios to whole channels, at least one a layer and at most all.

    "ceil" is the paper's n_l = ceil(κ_l C_l), up to L - 1 channels above the budget κ sum C. "largest-remainder"
    meets round(κ sum C) exactly: floors first, then one channel after the other to the layer that misses most; where
    the floors of one channel already cost too much, the largest layers give back. With tied layers (members > 1) or
    multiples it never exceeds the budget, and falls short by less than the largest step.

    Args:
        ratios: (L,), keep ratios κ_l in [0, 1], see :func:`keep_ratios`.
        sizes: (L,), channels C of each layer, >= 1.
        keep_ratio: The client's keep ratio κ, in (0, 1].
        rounding: "largest-remainder" or "ceil".
        multiple_of: Channels come in multiples of this, or all of them; 1: any number.
        members: (L,), how many convolutions share the mask of each layer, >= 1; None: one each.

    Returns:
        (L,) int64, channels to keep.

    Raises:
        BudgetTooSmallError: If the budget cannot hold one channel (or one multiple) per layer.
        ValueError: If an argument is out of range, or shapes differ.

    Example:
        >>> whole_channels(np.array([0.8518, 0.3827]), np.array([10, 30]), 0.5).tolist()
        [9, 11]
    """
    check_choice("rounding", rounding, get_args(Rounding))
    check_keep_ratio(keep_ratio)
    grid = _Grid.of(sizes, multiple_of, members)
    if ratios.shape != sizes.shape or not ((ratios >= 0) & (ratios <= 1 + _SLACK)).all():
        raise ValueError(f"ratios must be {len(sizes)} numbers in [0, 1], got {ratios.tolist()}")
    budget = round(keep_ratio * grid.cost(grid.sizes))
    grid.check_feasible(budget, keep_ratio)
    wanted = ratios * sizes
    if rounding == "ceil":
        return grid.up(wanted - _SLACK)
    return grid.spend(grid.take_back(grid.down(wanted + _SLACK), budget), wanted, budget)


def fit_cost(
    counts_at: Callable[[float], Int[np.ndarray, " L"]],
    cost: Callable[[Int[np.ndarray, " L"]], float],
    limit: float,
    keep_ratio: float,
) -> Int[np.ndarray, " L"]:
    """Shrink a budget in channels until what it costs (MACs, parameters, bytes) keeps a second limit.

    Bisects on a scale s in (0, 1]: the channels at the largest κ s whose cost is within the limit. Eq. 2 counts
    channels, whose cost differs by layer, so a device's limit needs this second budget.

    Args:
        counts_at: Channels of each layer at a keep ratio, as :func:`whole_channels` gives them; may raise
            :class:`BudgetTooSmallError`.
        cost: Cost of such channels, rising with them.
        limit: Highest cost, > 0.
        keep_ratio: The client's keep ratio κ, in (0, 1].

    Returns:
        (L,) int64, channels to keep.

    Raises:
        BudgetTooSmallError: If even the smallest network costs more, or the keep ratio itself is too small.
        ValueError: If an argument is out of range.

    Example:
        >>> sizes = np.array([10, 30])
        >>> fit_cost(lambda k: whole_channels(np.full(2, k), sizes, k), lambda n: float(n[0] * n[1]), 50, 0.5).tolist()
        [4, 12]
    """
    check_keep_ratio(keep_ratio)
    if not limit > 0:
        raise ValueError(f"limit must be > 0, got {limit}")
    best, least = _within(counts_at(keep_ratio), cost, limit)
    low, high = 0.0, 1.0
    for _ in range(_SCALES if best is None else 0):
        middle = (low + high) / 2
        try:
            counts = counts_at(keep_ratio * middle)
        except BudgetTooSmallError:  # this scale lies below the smallest network
            low = middle
            continue
        fits, least = _within(counts, cost, limit)
        low, high, best = (low, middle, best) if fits is None else (middle, high, fits)
    if best is None:
        raise BudgetTooSmallError(
            f"the smallest network costs {least:.6g}, the limit is {limit:.6g}; raise the limit, "
            "or give this client a smaller model"
        )
    return best


def check_keep_ratio(keep_ratio: float) -> None:
    """Refuse a keep ratio κ outside (0, 1].

    Raises:
        ValueError: With the value, the rule and the way out.
    """
    if not 0 < keep_ratio <= 1:
        raise ValueError(f"keep ratio must be in (0, 1], got {keep_ratio}; it is the share of channels to keep")


@dataclass(frozen=True)
class _Grid:
    """The numbers of channels that each layer may keep: multiples of a step, at least one of them, or all."""

    sizes: IntArray
    least: IntArray
    step: int
    members: IntArray

    @classmethod
    def of(cls, sizes: IntArray, step: int, members: IntArray | None) -> _Grid:
        if step < 1:
            raise ValueError(f"multiple_of must be >= 1, got {step}")
        sizes, members = _checked_layers(sizes, members)
        return cls(sizes, np.minimum(step, sizes), step, members)

    def cost(self, counts: IntArray) -> int:
        return int(self.members @ counts)

    def check_feasible(self, budget: int, keep_ratio: float) -> None:
        if self.cost(self.least) > budget:
            needed = self.cost(self.least) / self.cost(self.sizes)
            each = "one channel" if self.step == 1 else f"{self.step} channels"
            raise BudgetTooSmallError(
                f"keep ratio {keep_ratio:g} gives {budget} channels, a budget that cannot hold {each} per layer; "
                f"raise it to at least {np.ceil(needed * 1e4) / 1e4:g} or give this client a wider model"
            )

    def up(self, wanted: FloatArray) -> IntArray:
        steps = np.ceil(wanted / self.step).astype(np.int64)
        return np.clip(steps * self.step, self.least, self.sizes)

    def down(self, wanted: FloatArray) -> IntArray:
        steps = np.floor(wanted / self.step).astype(np.int64)
        return np.where(wanted >= self.sizes, self.sizes, np.clip(steps * self.step, self.least, self.sizes))

    def take_back(self, counts: IntArray, budget: int) -> IntArray:
        counts = counts.copy()
        while self.cost(counts) > budget:
            layer = int(np.argmax(np.where(counts > self.least, counts, 0)))
            counts[layer] = max(self.least[layer], (counts[layer] - 1) // self.step * self.step)
        return counts

    def spend(self, counts: IntArray, wanted: FloatArray, budget: int) -> IntArray:
        counts = counts.copy()
        while True:
            more = np.minimum(counts + self.step, self.sizes)
            affordable = (more > counts) & (self.members * (more - counts) <= budget - self.cost(counts))
            if not affordable.any():
                return counts
            layer = int(np.argmax(np.where(affordable, wanted - counts, -np.inf)))
            counts[layer] = more[layer]


def _water_fill(logits: FloatArray, weights: IntArray, keep_ratio: float) -> FloatArray:
    """Return clip(exp(t + logits), bounds) with the t at which the weighted mean is the keep ratio."""
    floor = np.log(min(keep_ratio, max(0.05, 0.15 * keep_ratio)))
    ceiling = np.log(min(1.0, keep_ratio + 0.5))
    budget = keep_ratio * weights.sum()
    low, high = floor - logits.max(), ceiling - logits.min()  # all at the floor, all at the ceiling
    for _ in range(_BISECTIONS):
        middle = (low + high) / 2
        if weights @ np.exp(np.clip(logits + middle, floor, ceiling)) < budget:
            low = middle
        else:
            high = middle
    return np.asarray(np.exp(np.clip(logits + high, floor, ceiling)))


def _within(counts: IntArray, cost: Callable[[IntArray], float], limit: float) -> tuple[IntArray | None, float]:
    """Return the channels if they keep the limit, else None, and what they cost."""
    value = float(cost(counts))
    if np.isnan(value):
        raise ValueError(f"cost must be a number, got NaN for {counts.tolist()} channels")
    return (counts if value <= limit else None), value


def _checked_layers(sizes: IntArray, members: IntArray | None) -> tuple[IntArray, IntArray]:
    members = np.ones_like(sizes) if members is None else members
    for name, values in (("sizes", sizes), ("members", members)):
        if values.shape != sizes.shape or values.ndim != 1 or len(values) == 0 or (values < 1).any():
            raise ValueError(f"{name} must be (L,) integers >= 1, one for each layer, got {values.tolist()}")
    return sizes.astype(np.int64), members.astype(np.int64)


def _observed_mean(values: Sequence[float] | FloatArray) -> float:
    """Return the mean of what is not NaN; NaN if nothing is left."""
    observed = np.asarray(values, dtype=np.float64)
    observed = observed[~np.isnan(observed)]
    return float(observed.mean()) if len(observed) else float("nan")
