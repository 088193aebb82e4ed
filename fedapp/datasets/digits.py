"""Pools of digits from several sources, one domain each, at 32x32 in colour."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from fedapp.datasets.base import Pool
from fedapp.datasets.cache import Arrays

SIDE = 32
CLASSES = 10


def joined(parts: Mapping[str, Arrays]) -> Arrays:
    """Join the domains' images, labels and splits, all training parts before all test parts.

    Args:
        parts: ``images`` uint8 (N, 32, 32, 3), ``labels`` int64 (N,) and ``is_test`` bool (N,) by domain, in order.

    Returns:
        The same arrays for all domains, and ``domains`` int64 (N,).
    """
    sizes = [len(part["labels"]) for part in parts.values()]
    fields = ("images", "labels", "is_test")
    whole: Arrays = {name: np.concatenate([part[name] for part in parts.values()]) for name in fields}
    whole["domains"] = np.repeat(np.arange(len(parts)), sizes)
    order = np.argsort(whole["is_test"], kind="stable")
    return {name: array[order] for name, array in whole.items()}


def pool_of(arrays: Arrays, domain_names: tuple[str, ...]) -> Pool:
    """Return the pool of what :func:`joined` returned; training and test parts stay apart."""
    return Pool(
        inputs=arrays["images"],
        labels=arrays["labels"],
        class_names=tuple(map(str, range(CLASSES))),
        domains=arrays["domains"],
        domain_names=domain_names,
        is_test=arrays["is_test"],
        native_split_only=True,
    )
