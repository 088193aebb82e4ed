"""BatchNorm's running variances joined with the spread between clients' means: the variance of the pooled samples."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from fedapp.functional.type_matched import Rows, Upload, type_matched_mean

Pools = Mapping[int, Rows]


@dataclass(frozen=True)
class Held:
    """Running means and variances of a layer before they are joined: shared (C,), and the groups' pools."""

    means: npt.NDArray[Any]
    mean_pools: Pools
    variances: npt.NDArray[Any]
    variance_pools: Pools


def pooled_variance(
    before: Held, after: tuple[npt.NDArray[Any], Pools], means: Sequence[Upload], variances: Sequence[Upload]
) -> tuple[npt.NDArray[Any], dict[int, Rows]]:
    """Join variances by role through second moments: Var = Σ α_i (v_i + m_i²) - (Σ α_i m_i)², the total variance.

    Args:
        before: What the server held.
        after: The means as they were joined: shared (C,), and pools.
        means: The clients' running means.
        variances: Their running variances, in the same order.

    Returns:
        The shared variances (C,) and the pools'; rows that nobody trained keep their bits.
    """
    second = before.variances + np.square(before.means, dtype=np.float64)
    pools = {group: _second(before.mean_pools[group], rows) for group, rows in before.variance_pools.items()}
    uploads = [
        replace(v, values=v.values + np.square(m.values, dtype=np.float64))
        for m, v in zip(means, variances, strict=True)
    ]
    joined, joined_pools = type_matched_mean(second, pools, uploads)
    kind = before.variances.dtype
    shared = (joined - np.square(after[0], dtype=np.float64)).clip(min=0).astype(kind)
    untouched = joined == second
    shared[untouched] = before.variances[untouched]
    found = {}
    for group, rows in joined_pools.items():
        values = (rows.values - np.square(after[1][group].values, dtype=np.float64)).clip(min=0).astype(kind)
        found[group] = Rows(rows.index, values)
    return shared, found


def _second(means: Rows, variances: Rows) -> Rows:
    return Rows(variances.index, variances.values + np.square(means.values, dtype=np.float64))
