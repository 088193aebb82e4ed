"""MNIST: 70,000 handwritten digits of 28x28 in grey, local copy or hub.

LeCun, Bottou, Bengio and Haffner, Gradient-based learning applied to document recognition, Proc. IEEE 86 (1998); the
licence is not stated with certainty (CC BY-SA 3.0 on the author's later pages). On the hub ``ylecun/mnist``, columns
``image`` (28x28 grey) and ``label``, 60,000 + 10,000. A sample is float32 (1, 28, 28).
"""

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
