"""Columns of numbers, centred and scaled by what the training part holds."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from fedapp.datasets.base import Bools, Doubles, Floats

LARGEST = float(np.finfo(np.float32).max)  # of a number, since models take float32


@dataclass(frozen=True)
class Scale:
    """Mean and deviation of every column, float64 (F,) each; 0 and 1 for columns that are left alone."""

    mean: Doubles
    deviation: Doubles


def fit(rows: Floats | Doubles, scaled: Bools) -> Scale:
    """Return mean and deviation of the columns to scale; missing values (NaN) do not count.

    A column without any value keeps mean 0, a constant one deviation 1. Sums are of what exceeds the least value, so
    that neither a large one that all rows share nor rounding is taken for a deviation.

    Args:
        rows: Training rows (N, F), N > 0.
        scaled: Which columns to scale, bool (F,).

    Example:
        >>> import numpy as np
        >>> scale = fit(np.float64([[1, 5], [3, 5], [np.nan, 7]]), np.array([True, False]))
        >>> scale.mean.tolist(), scale.deviation.tolist()
        ([2.0, 0.0], [1.0, 1.0])
    """
    present = ~np.isnan(rows)
    count = np.maximum(present.sum(axis=0), 1)
    least = np.where(present.any(axis=0), np.where(present, rows, np.inf).min(axis=0), 0).astype(np.float64)
    above = np.where(present, rows - least, 0)
    mean = above.sum(axis=0) / count
    deviation = np.sqrt((np.where(present, above - mean, 0) ** 2).sum(axis=0) / count)
    return Scale(np.where(scaled, least + mean, 0), np.where(scaled & (deviation > 0), deviation, 1))


def apply(rows: Floats | Doubles, scale: Scale) -> Floats:
    """Return (rows - mean) / deviation in float32, at most its largest number; a missing value becomes 0, the mean.

    Example:
        >>> import numpy as np
        >>> apply(np.float64([[1], [np.nan]]), Scale(np.float64([3]), np.float64([2]))).tolist()
        [[-1.0], [0.0]]
    """
    scaled = np.nan_to_num((rows - scale.mean) / scale.deviation, copy=False, nan=0.0)
    return np.clip(scaled, -LARGEST, LARGEST, out=scaled).astype(np.float32)
