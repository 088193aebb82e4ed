"""Fashion-MNIST: 70,000 pictures of clothes, 28x28 grey, in 10 classes; local copy, Debian's package, or hub.

Xiao, Rasul and Vollgraf, Fashion-MNIST: a novel image dataset for benchmarking machine learning algorithms, arXiv
1708.07747; MIT. On the hub ``zalando-datasets/fashion_mnist``, columns ``image`` and ``label``, 60,000 + 10,000.
Without a local copy, the files of Debian's package ``dataset-fashion-mnist`` are read where it is installed.
"""

from __future__ import annotations

import gzip
from pathlib import Path

import numpy as np

from fedapp.config import DataSettings, SettingError
from fedapp.datasets import hub
from fedapp.datasets.base import Bytes, Pool, Source
from fedapp.datasets.cache import Arrays, cached_arrays

VERSION = 1
PACKAGE = Path("/usr/share/datasets/fashion-mnist")
PARTS = ("train", "t10k")
CLASSES = (
    *("T-shirt/top", "Trouser", "Pullover", "Dress", "Coat"),
    *("Sandal", "Shirt", "Sneaker", "Bag", "Ankle boot"),
)

REPOSITORY = hub.Repository("fashion-mnist", "zalando-datasets/fashion_mnist", "label", 10, (28, 28, 1))


def load(settings: DataSettings) -> Pool:
    """Return the pool, the training part first.

    Args:
        settings: The data settings; ``data_root`` is tried first, then Debian's package, then the hub.

    Raises:
        SettingError: If no place has it, or a file cannot be read.
    """
    if hub.local_files(REPOSITORY, settings.data_root) or not PACKAGE.is_dir():
        return hub.load(REPOSITORY, settings)
    arrays = cached_arrays(f"{REPOSITORY.name}-v{VERSION}-package", _packaged)
    return hub.pool_of(REPOSITORY, arrays, arrays["images"])


def _packaged() -> Arrays:
    images = [_idx(f"{part}-images-idx3-ubyte.gz", 16).reshape(-1, 28, 28, 1) for part in PARTS]
    labels = [_idx(f"{part}-labels-idx1-ubyte.gz", 8) for part in PARTS]
    return {
        "images": np.concatenate(images),
        "labels": np.concatenate(labels).astype(np.int64),
        "is_test": np.repeat([False, True], [len(part) for part in labels]),
        "class_names": np.asarray(CLASSES),
    }


def _idx(name: str, header: int) -> Bytes:
    """Return the bytes of an IDX file behind its header."""
    try:
        return np.frombuffer(gzip.decompress((PACKAGE / name).read_bytes()), dtype=np.uint8)[header:]
    except (OSError, EOFError) as error:
        raise SettingError(
            f"{PACKAGE / name} cannot be read: {error}; install dataset-fashion-mnist again, or set data-root to a copy"
        ) from error


SOURCE = Source(
    name="fashion-mnist",
    load=load,
    summary="70,000 pictures of clothes of 28x28 in grey in 10 classes, local copy or hub",
    classes=10,
    shape=(1, 28, 28),
)
