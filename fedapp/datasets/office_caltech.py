"""Office-Caltech-10: photographs of ten kinds of objects in four domains, 32x32, from a local copy.

Gong, Shi, Sha and Grauman, Geodesic flow kernel for unsupervised domain adaptation, CVPR 2012; no licence stated: for
research. 2,533 images: amazon 958, caltech10 1,123, dslr 157, webcam 295. The hub has no repository with this layout: a
copy is ``<data-root>/local/office_caltech10`` with the columns ``image``, ``label`` and ``domain``.

Resized bilinearly to 32x32, and split by place, as the code does that the FedSAP paper's baselines come from: in every
domain, sorted by class, of ten images the last two test (224, 190, 58 and 30 images). The domains stand in the order of
that paper's tables.
"""

from __future__ import annotations

import functools

import numpy as np

from fedapp.datasets import hub
from fedapp.datasets.base import Source
from fedapp.datasets.cache import Arrays

REPOSITORY = hub.Repository(
    name="office-caltech10",
    id="local/office_caltech10",
    label="label",
    classes=10,
    shape=(32, 32, 3),
    splits=("train",),
    resize=True,
    domain="domain",
    domains=("caltech10", "amazon", "webcam", "dslr"),
    on_hub=False,
)


def set_aside(arrays: Arrays) -> Arrays:
    """Mark the last two of ten images of every domain, in the order of classes, and sort the test part behind."""
    is_test = np.zeros(len(arrays["labels"]), dtype=np.bool_)
    for domain in np.unique(arrays["domains"]):
        members = np.flatnonzero(arrays["domains"] == domain)
        members = members[np.argsort(arrays["labels"][members], kind="stable")]
        is_test[members[np.arange(len(members)) % 10 > 7]] = True
    order = np.argsort(is_test, kind="stable")
    sorted_fields = {name: arrays[name][order] for name in ("images", "labels", "domains")}
    return {**arrays, **sorted_fields, "is_test": is_test[order]}


SOURCE = Source(
    name="office-caltech10",
    load=functools.partial(hub.load, REPOSITORY, finish=set_aside),
    summary="2,533 photographs of 32x32 in 10 classes and four domains, local copy",
    classes=10,
    shape=(3, 32, 32),
    has_domains=True,
)
