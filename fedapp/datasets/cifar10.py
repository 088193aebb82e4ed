"""CIFAR-10: 60,000 photographs of 32x32 in 10 classes, local copy or hub.

Krizhevsky, Learning multiple layers of features from tiny images, technical report, University of Toronto, 2009; no
licence stated: for research. On the hub ``uoft-cs/cifar10``, columns ``img`` (32x32 RGB) and ``label``,
50,000 + 10,000. A sample is float32 (3, 32, 32).
"""

from __future__ import annotations

import functools

from fedapp.datasets import hub
from fedapp.datasets.base import Source

REPOSITORY = hub.Repository(name="cifar10", id="uoft-cs/cifar10", label="label", classes=10, shape=(32, 32, 3))
SOURCE = Source(
    name="cifar10",
    load=functools.partial(hub.load, REPOSITORY),
    summary="60,000 photographs of 32x32 in 10 classes, local copy or hub",
    classes=10,
    shape=(3, 32, 32),
)
