"""Images changed once, before the data set is split: a habit of the FedSAF paper's code, kept for its tables alone."""

from __future__ import annotations

import math

import numpy as np

from fedapp.datasets.base import Bytes
from fedapp.datasets.cache import Arrays

SEED = 1
PART = 0.8
LEAST_AREA = 0.75
WIDEST = 4 / 3
TRIES = 10


def augmented_once(arrays: Arrays) -> Arrays:
    """Change the training part once, or a random 80 % where there is none, and forget which part that was.

    Each such image is replaced by torchvision's RandomResizedCrop, area 75 to 100 % and aspect 3/4 to 4/3, mirrored
    half of the time (public code of the FedSAF paper for PACS and DomainNet, a seed of our own). **Questionable**: the
    clients split afterwards, so that test images are changed ones too, and no training image is ever seen as it is.

    Args:
        arrays: The fields of :func:`fedapp.datasets.hub.decode`. The images are changed in place: DomainNet's are
            too many to copy.

    Returns:
        The same fields; no sample is in a test part any more.
    """
    rng = np.random.RandomState(SEED)
    size = len(arrays["labels"])
    chosen = np.flatnonzero(~arrays["is_test"])
    if len(chosen) == size:
        chosen = rng.permutation(size)[: int(PART * size)]
    images = np.asarray(arrays["images"])
    for row in chosen:
        images[row] = _changed(images[row], rng)
    return {**arrays, "is_test": np.zeros(size, dtype=np.bool_)}


def _window(width: int, height: int, rng: np.random.RandomState) -> tuple[int, int]:
    """Draw the width and height of a crop, again while it does not fit; the whole image after ten tries."""
    for _ in range(TRIES):
        area = rng.uniform(LEAST_AREA, 1) * height * width
        aspect = math.exp(rng.uniform(-math.log(WIDEST), math.log(WIDEST)))
        across, down = round(math.sqrt(area * aspect)), round(math.sqrt(area / aspect))
        if across <= width and down <= height:
            return across, down
    return width, height


def _changed(image: Bytes, rng: np.random.RandomState) -> Bytes:
    """Return one image cropped, resized to its size, and maybe mirrored."""
    from PIL import Image

    height, width = image.shape[:2]
    across, down = _window(width, height, rng)
    left, top = rng.randint(width - across + 1), rng.randint(height - down + 1)
    cropped = Image.fromarray(image[top : top + down, left : left + across])
    changed = np.asarray(cropped.resize((width, height), Image.Resampling.BILINEAR))
    return changed[:, ::-1] if rng.uniform() < 0.5 else changed
