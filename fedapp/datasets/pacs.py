"""PACS: pictures in 7 classes and four domains (art painting, cartoon, photo, sketch), 64x64, local copy or hub.

Li, Yang, Song and Hospedales, Deeper, broader and artier domain generalization, ICCV 2017; no licence stated: for
research. On the hub ``flwrlabs/pacs``, one split of 9,991 rows (2,048 + 2,344 + 1,670 + 3,929), columns ``image``
(227x227; 64x64 in some copies), ``label`` and ``domain``; no test part.

Resized bilinearly to 64x64 as in the FedSAF paper's code; that code leaves pixels in [0, 1], here all images are in
[-1, 1]. ``pacs-augmented-once`` repeats that code's augmentation (:mod:`fedapp.datasets.augmented_once`).
"""

from __future__ import annotations

import dataclasses
import functools

from fedapp.datasets import hub
from fedapp.datasets.augmented_once import augmented_once
from fedapp.datasets.base import Source

REPOSITORY = hub.Repository(
    name="pacs",
    id="flwrlabs/pacs",
    label="label",
    classes=7,
    shape=(64, 64, 3),
    splits=("train",),
    resize=True,
    domain="domain",
    domains=("art_painting", "cartoon", "photo", "sketch"),
)
SOURCE = Source(
    name="pacs",
    load=functools.partial(hub.load, REPOSITORY),
    summary="9,991 pictures of 64x64 in 7 classes and four domains, local copy or hub",
    classes=7,
    shape=(3, 64, 64),
    has_domains=True,
)
ONCE = dataclasses.replace(REPOSITORY, name="pacs-augmented-once")
AUGMENTED_ONCE = dataclasses.replace(
    SOURCE,
    name=ONCE.name,
    load=functools.partial(hub.load, ONCE, finish=augmented_once),
    summary="PACS with four images of five changed once before the split, as in the FedSAF paper; for its table",
)
