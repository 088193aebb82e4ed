"""MNIST: 70,000 handwritten digits of 28x28 in grey, local copy or hub."""

from __future__ import annotations

import functools

from fedapp.datasets import hub
from fedapp.datasets.base import Source

REPOSITORY = hub.Repository(name="mnist", id="ylecun/mnist", label="label", classes=10, shape=(28, 28, 1))
SOURCE = Source(
    name="mnist",
    load=functools.partial(hub.load, REPOSITORY),
    summary="70,000 handwritten digits of 28x28 in grey, local copy or hub",
    classes=10,
    shape=(1, 28, 28),
)
