"""DomainNet: pictures in 345 classes and six domains, 64x64, local copy or hub.

Peng, Bai, Xia, Huang, Saenko and Wang, Moment matching for multi-source domain adaptation, ICCV 2019; fair use notice,
for research. On the hub ``wltjr1007/DomainNet``, columns ``image`` (any size), ``label`` and ``domain``, splits
``train`` (409,832) and ``test`` (176,743): the official ones. Decoded they are a file of 7.2 GB in fedapp's cache,
mapped into memory and never read as a whole.

Resized bilinearly to 64x64 as in the FedSAF paper's code; that code leaves pixels in [0, 1], here all images are in
[-1, 1]. ``domainnet-augmented-once`` repeats that code's augmentation (:mod:`fedapp.datasets.augmented_once`).
"""

from __future__ import annotations

import dataclasses
import functools

from fedapp.datasets import hub
from fedapp.datasets.augmented_once import augmented_once
from fedapp.datasets.base import Source

REPOSITORY = hub.Repository(
    name="domainnet",
    id="wltjr1007/DomainNet",
    label="label",
    classes=345,
    shape=(64, 64, 3),
    resize=True,
    domain="domain",
    domains=("clipart", "infograph", "painting", "quickdraw", "real", "sketch"),
)
SOURCE = Source(
    name="domainnet",
    load=functools.partial(hub.load, REPOSITORY),
    summary="586,575 pictures of 64x64 in 345 classes and six domains, local copy or hub",
    classes=345,
    shape=(3, 64, 64),
    has_domains=True,
)
ONCE = dataclasses.replace(REPOSITORY, name="domainnet-augmented-once")
AUGMENTED_ONCE = dataclasses.replace(
    SOURCE,
    name=ONCE.name,
    load=functools.partial(hub.load, ONCE, finish=augmented_once),
    summary="DomainNet with its training part changed once before the split, as in the FedSAF paper; for its table",
)
