"""Tiny-ImageNet: 110,000 photographs of 64x64 in 200 classes, local copy or hub.

Le and Yang, Tiny ImageNet visual recognition challenge, Stanford CS 231N, 2015, cut from ImageNet, whose terms allow
non-commercial research and education. On the hub ``zh-plus/tiny-imagenet``, columns ``image`` (some are grey) and
``label``, splits ``train`` (100,000) and ``valid`` (10,000), which is the test part here: the challenge keeps its test
labels. PFLlib partitions the training images alone, the FedSAF paper's code both; both is the rule here.
"""

from __future__ import annotations

import functools

from fedapp.datasets import hub
from fedapp.datasets.base import Source

REPOSITORY = hub.Repository(
    name="tiny-imagenet",
    id="zh-plus/tiny-imagenet",
    label="label",
    classes=200,
    shape=(64, 64, 3),
    splits=("train", "valid"),
)
SOURCE = Source(
    name="tiny-imagenet",
    load=functools.partial(hub.load, REPOSITORY),
    summary="110,000 photographs of 64x64 in 200 classes, local copy or hub",
    classes=200,
    shape=(3, 64, 64),
)
