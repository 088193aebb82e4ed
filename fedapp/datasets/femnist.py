"""FEMNIST (LEAF): handwritten digits and letters in 62 classes, by writer, local copy or hub.

Caldas et al., LEAF: a benchmark for federated settings, arXiv 1812.01097, from NIST's special database 19; BSD
2-Clause. On the hub ``flwrlabs/femnist``, one split of 814,277 rows, columns ``image`` (28x28 grey), ``writer_id``,
``hsf_id`` (unused) and ``character``. Writers, about 3,600, are the natural clients; there is no test part.
"""

from __future__ import annotations

import functools

from fedapp.datasets import hub
from fedapp.datasets.base import Source

REPOSITORY = hub.Repository(
    name="femnist",
    id="flwrlabs/femnist",
    label="character",
    classes=62,
    shape=(28, 28, 1),
    splits=("train",),
    client="writer_id",
)
SOURCE = Source(
    name="femnist",
    load=functools.partial(hub.load, REPOSITORY),
    summary="handwritten digits and letters of 28x28 in 62 classes, by writer (LEAF), local copy or hub",
    classes=62,
    shape=(1, 28, 28),
)
