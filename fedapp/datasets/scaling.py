"""Columns of numbers, centred and scaled by what the training part holds."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from fedapp.datasets.base import Bools, Floats


@dataclass(frozen=True)
class Scale:
    """Mean and deviation of every column, float32 (F,) each; 0 and 1 for columns that are left alone."""

    mean: Floats
    deviation: Floats


def fit(rows: Floats, scaled: Bools) -> Scale:
    """Return mean and deviation of the columns to scale; missing values (NaN) do not count.

    A column without any value keeps mean 0, a constant one deviation 1.

    Args:
        rows: Training rows, float32 (N, F).
        scaled: Which columns to scale, bool (F,).

    Example:
        >>> import numpy as np
        >>> scale = fit(np.float32([[1, 5], [3, 5], [np.nan, 7]]), np.array([True, False]))
        >>> scale.mean.tolist(), scale.deviation.tolist()
        ([2.0, 0.0], [1.0, 1.0])
    """
    present = ~np.isnan(rows)
    count = np.maximum(present.sum(axis=0), 1)
    values = np.where(present, rows, 0).astype(np.float64)
    mean = values.sum(axis=0) / count
    deviation = np.sqrt((np.where(present, values - mean, 0) ** 2).sum(axis=0) / count)
    mean, deviation = np.where(scaled, mean, 0), np.where(scaled & (deviation > 0), deviation, 1)
    return Scale(mean.astype(np.float32), deviation.astype(np.float32))


def apply(rows: Floats, scale: Scale) -> Floats:
    """Return (rows - mean) / deviation; a missing value becomes 0, the mean.

    Example:
        >>> import numpy as np
        >>> apply(np.float32([[1], [np.nan]]), Scale(np.float32([3]), np.float32([2]))).tolist()
        [[-1.0], [0.0]]
    """
    scaled: Floats = np.nan_to_num((rows - scale.mean) / scale.deviation, nan=0.0, posinf=None, neginf=None)
    return scaled
