"""Digits without SVHN and SYN: MNIST, USPS, MNIST-M and rendered digits, ten classes in four domains, 32x32 RGB.

A relative of the papers' Digits benchmark for machines without a network; figures on it are not the papers'.

* ``mnist``: LeCun et al., Gradient-based learning applied to document recognition, Proc. IEEE 86 (1998), 28x28 grey;
  the licence is not stated with certainty (CC BY-SA 3.0 on the author's later pages). 60,000 + 10,000 on the hub.
* ``usps``: Hull, A database for handwritten text recognition research, TPAMI 16 (1994), 16x16 grey; no licence stated.
  7,291 + 2,007.
* ``mnistm``: Ganin and Lempitsky, Unsupervised domain adaptation by backpropagation, ICML 2015, 32x32 colour: MNIST
  digits over photographs of BSDS500; no licence stated. At most the first 5,000 + 1,000 are used.
* ``rendered``: drawn here from matplotlib's fonts by the recipe of SYN (:mod:`fedapp.datasets.rendered`),
  4,000 + 1,000, fonts apart. It is not the SYN data set.

Smaller images are enlarged bilinearly, as the papers' code does; grey is repeated over the channels.

**MNIST-M's digits are MNIST's.** Copies of MNIST-M that are about show digits of MNIST's test part in their training
part. So every MNIST-M image is matched to the digit of MNIST's test part that it shows (:func:`shown_digits`), and
``mnist`` tests on none of those: no digit trains in one domain and tests in another.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from fedapp.config import DataSettings
from fedapp.datasets import digits, hub, rendered
from fedapp.datasets.base import Bools, Bytes, Ints, Pool, Source
from fedapp.datasets.cache import Arrays, cached_arrays
from fedapp.datasets.digits import CLASSES, SIDE

VERSION = 1
SEED = 5
DOMAINS = ("mnist", "usps", "mnistm", "rendered")
MOST = {False: 5_000, True: 1_000}
RENDERED = {False: 400, True: 100}
AMBIGUOUS = 0.15

MNIST = hub.Repository("mnist", "ylecun/mnist", "label", CLASSES, (28, 28, 1))
USPS = hub.Repository("usps", "flwrlabs/usps", "label", CLASSES, (SIDE, SIDE, 3), resize=True)
MNISTM = hub.Repository("mnist-m", "Mike0307/MNIST-M", "label", CLASSES, (SIDE, SIDE, 3))


def load(settings: DataSettings) -> Pool:
    """Return the pool, from ``data_root`` or the hub, each source by itself.

    Args:
        settings: The data settings.

    Raises:
        SettingError: If neither place has one of the sources.
    """
    key = hub.identity([MNIST, USPS, MNISTM], settings.data_root)
    arrays = cached_arrays(f"digits-offline-v{VERSION}-{key}", lambda: build(settings.data_root))
    return digits.pool_of(arrays, DOMAINS)


def build(data_root: str) -> Arrays:
    """Make the whole set anew; the fields of :func:`fedapp.datasets.digits.joined`."""
    mnist, blended = hub.decode(MNIST, data_root), _first(hub.decode(MNISTM, data_root))
    tests = np.flatnonzero(mnist["is_test"])
    shown = shown_digits(blended["images"], blended["labels"], mnist["images"][tests, ..., 0], mnist["labels"][tests])
    kept = np.ones(len(mnist["labels"]), dtype=np.bool_)
    kept[tests[shown]] = False
    plain = {name: mnist[name][kept] for name in ("images", "labels", "is_test")}
    plain["images"] = np.stack([_enlarged(image[..., 0]) for image in plain["images"]])
    parts = (plain, hub.decode(USPS, data_root), blended, _rendered())
    return digits.joined(dict(zip(DOMAINS, parts, strict=True)))


def shown_digits(images: Bytes, labels: Ints, candidates: Bytes, candidate_labels: Ints) -> Bools:
    """Return which MNIST digits the images of MNIST-M show.

    MNIST-M inverts a patch b of a photograph where the digit has ink, s = -1, and leaves it where it has none, s = 1:
    with m = image - 127.5, s·m is the patch, which is smooth. Over neighbouring pixels p and q,
    Σ (s_p m_p - s_q m_q)² = const - 2 Σ (s_p s_q)(m_p m_q): the smoothest candidate has the largest inner product.
    Digits of 28x28 sit in the middle of 32x32. Candidates close behind the best count as shown too.

    Args:
        images: Images of MNIST-M, uint8 (N, 32, 32, 3).
        labels: Their digits, int64 (N,).
        candidates: MNIST images, uint8 (M, 28, 28).
        candidate_labels: Their digits, int64 (M,).

    Returns:
        bool (M,).
    """
    ink = np.pad(candidates, ((0, 0), (2, 2), (2, 2))) > 0
    signs = np.where(ink, np.float32(-1), np.float32(1))[..., None]
    shown = np.zeros(len(candidates), dtype=np.bool_)
    for label in np.unique(labels):
        rows, among = np.flatnonzero(labels == label), np.flatnonzero(candidate_labels == label)
        if not len(among):
            continue
        fit = _pairs(images[rows].astype(np.float32) - 127.5) @ _pairs(signs[among]).T  # (rows, among)
        best, usual = fit.max(axis=1, keepdims=True), np.median(fit, axis=1, keepdims=True)
        shown[among] = (fit >= best - AMBIGUOUS * (best - usual)).any(axis=0)
    return shown


def _pairs(values: NDArray[np.float32]) -> NDArray[np.float32]:
    """Return the products of vertical and horizontal neighbours, summed over channels: (N, H, W, C) to (N, P)."""
    down = (values[:, 1:] * values[:, :-1]).sum(axis=-1)
    across = (values[:, :, 1:] * values[:, :, :-1]).sum(axis=-1)
    return np.concatenate([down.reshape(len(values), -1), across.reshape(len(values), -1)], axis=1)


def _first(arrays: Arrays) -> Arrays:
    """Keep the first images of both parts."""
    parts = [np.flatnonzero(arrays["is_test"] == is_test)[:most] for is_test, most in MOST.items()]
    return {name: arrays[name][np.concatenate(parts)] for name in ("images", "labels", "is_test")}


def _enlarged(grey: Bytes) -> Bytes:
    from PIL import Image

    large = np.asarray(Image.fromarray(grey).resize((SIDE, SIDE), Image.Resampling.BILINEAR))
    return np.repeat(large[..., None], 3, axis=-1)


def _rendered() -> Arrays:
    rng = np.random.RandomState([SEED, 0])
    labels = [np.repeat(np.arange(CLASSES), RENDERED[is_test]) for is_test in (False, True)]
    faces = (rendered.TRAIN_FONTS, rendered.TEST_FONTS)
    images = [rendered.render(part, fonts, rng)[0] for part, fonts in zip(labels, faces, strict=True)]
    return {
        "images": np.concatenate(images),
        "labels": np.concatenate(labels),
        "is_test": np.repeat([False, True], [len(part) for part in labels]),
    }


SOURCE = Source(
    name="digits-offline",
    load=load,
    summary="digits in four domains (mnist, usps, mnistm, rendered), local copies or hub; a relative of Digits",
    classes=CLASSES,
    shape=(3, SIDE, SIDE),
    has_domains=True,
)
