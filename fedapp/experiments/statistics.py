"""Numbers over seeds: mean and spread, and differences paired by seed with a confidence interval."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

LEVEL = 0.95
LEAST_PAIRS = 3
"""With fewer pairs no interval is given: one from two pairs is 12.7 standard errors wide to either side."""


@dataclass(frozen=True)
class Spread:
    """Mean and spread of one number over seeds.

    Attributes:
        mean: The mean.
        std: The sample standard deviation (divided by n - 1); None for a single value.
        n: How many values there are, at least 1.
    """

    mean: float
    std: float | None
    n: int


@dataclass(frozen=True)
class Paired:
    """The difference of two methods, paired by seed.

    Attributes:
        seeds: The seeds that both have.
        differences: One difference a seed.
        mean: Their mean.
        std: Their sample standard deviation; None for a single pair.
        low: Lower end of the interval of confidence; None with fewer than three pairs.
        high: Its upper end, likewise.
        level: Confidence level of the interval.
    """

    seeds: tuple[int, ...]
    differences: tuple[float, ...]
    mean: float
    std: float | None
    low: float | None
    high: float | None
    level: float = LEVEL


def spread(values: Sequence[float | None]) -> Spread | None:
    """Return mean and sample standard deviation of what was measured; None if nothing was.

    Example:
        >>> spread([1.0, 2.0, None, 3.0])
        Spread(mean=2.0, std=1.0, n=3)
        >>> spread([None])
    """
    measured = np.array([value for value in values if value is not None], dtype=np.float64)
    if not len(measured):
        return None
    std = float(measured.std(ddof=1)) if len(measured) > 1 else None
    return Spread(float(measured.mean()), std, len(measured))


def paired(
    values: Mapping[int, float | None], reference: Mapping[int, float | None], level: float = LEVEL
) -> Paired | None:
    """Return ``values - reference``, seed by seed, with Student's interval for the mean difference.

    The interval is mean ± t(n - 1) · std / sqrt(n): right if the differences are near to normal, and wide with few
    seeds, as it should be.

    Args:
        values: The number of every seed of a method.
        reference: The same for the method compared with; seeds that only one has are left out.
        level: Confidence level, in (0, 1).

    Returns:
        The difference; None if no seed has both numbers.

    Example:
        >>> paired({0: 5.0, 1: 6.0}, {0: 4.0, 1: 3.0, 2: 9.0})
        Paired(seeds=(0, 1), differences=(1.0, 3.0), mean=2.0, std=1.4142135623730951, low=None, high=None, level=0.95)
    """
    pairs = {seed: (value, reference.get(seed)) for seed, value in sorted(values.items())}
    differences = {seed: a - b for seed, (a, b) in pairs.items() if a is not None and b is not None}
    found = spread(list(differences.values()))
    if found is None:
        return None
    low = high = None
    if found.n >= LEAST_PAIRS and found.std is not None:
        half = half_width(found.std, found.n, level)
        low, high = found.mean - half, found.mean + half
    return Paired(tuple(differences), tuple(differences.values()), found.mean, found.std, low, high, level)


def half_width(std: float, n: int, level: float = LEVEL) -> float:
    """Return half the width of Student's interval for a mean: t(n - 1) · std / sqrt(n).

    Args:
        std: Sample standard deviation.
        n: Number of values, at least 2.
        level: Confidence level, in (0, 1).

    Example:
        >>> round(half_width(1.0, 4), 3)  # t(3) = 3.182
        1.591
    """
    from scipy import stats

    return float(stats.t.ppf(0.5 + level / 2, n - 1)) * std / math.sqrt(n)
