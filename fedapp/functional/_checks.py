"""Checks that several files of the mathematics share."""

from __future__ import annotations

import difflib
from collections.abc import Collection, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray


def check_choice(name: str, value: str, choices: Collection[str]) -> None:
    """Refuse a value that is not one of the choices, with the list and the closest."""
    if value not in choices:
        closest = difflib.get_close_matches(value, choices, n=1)
        hint = f"; did you mean {closest[0]!r}?" if closest else ""
        raise ValueError(f"{name} must be one of {', '.join(choices)}, got {value!r}{hint}")


def check_layers(total: int, slices: Sequence[slice]) -> None:
    """Refuse slices that do not follow each other from channel 0 to the last of ``total``, one or more a layer."""
    start = 0
    for layer in slices:
        if layer.start != start or layer.stop <= start or layer.step not in (None, 1):
            raise ValueError(f"slices must follow each other without gap or empty layer, got {layer} after {start}")
        start = layer.stop
    if start != total:
        raise ValueError(f"slices must cover all channels, got layers up to {start} for {total} channels")


def check_finite(name: str, values: NDArray[Any]) -> None:
    """Refuse NaN and infinity where a number is needed."""
    bad = np.flatnonzero(~np.isfinite(values))
    if len(bad):
        raise ValueError(f"{name} must be finite, got {values.flat[bad[0]]} at {bad[0]} ({len(bad)} such values)")


def check_not_infinite(name: str, values: NDArray[Any]) -> None:
    """Refuse infinity, where NaN means "not observed"."""
    if np.isinf(values).any():
        raise ValueError(f"{name} must be finite, or NaN where a channel was not observed, got infinity")
