"""Image classification sets in the layout of the Hugging Face hub: a local copy first, then the hub.

A local copy is a folder ``<data_root>/<repository id>`` with parquet files named after their split, at any depth:
``train.parquet``, or the hub's own ``plain_text/train-00000-of-00001.parquet``. It is read without any network access
and without the library's own cache; images are decoded once into fedapp's cache.
"""

from __future__ import annotations

import hashlib
import io
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from fedapp.config import DataSettings, SettingError
from fedapp.datasets.base import Bytes, Pool
from fedapp.datasets.cache import Arrays, cached_arrays

if TYPE_CHECKING:
    import datasets

VERSION = 1
SPLITS = ("train", "test")


@dataclass(frozen=True)
class Repository:
    """A data set repository of the hub.

    Attributes:
        name: Name of the data set here.
        id: Repository id on the hub, and folder under ``data_root``.
        label: Column of the labels.
        classes: Number of classes C.
        shape: (H, W, channels) of one image; one channel means grey.
    """

    name: str
    id: str
    label: str
    classes: int
    shape: tuple[int, int, int]


def load(repository: Repository, settings: DataSettings) -> Pool:
    """Return the pool of a repository: the training split, then the test split.

    Args:
        repository: Which repository.
        settings: The data settings; ``data_root`` is tried before the hub.

    Raises:
        SettingError: If neither place has it, or a file cannot be read.
    """
    files = local_files(repository, settings.data_root)
    if files:
        key = f"{repository.name}-v{VERSION}-{_digest(files)}"
        arrays = cached_arrays(key, lambda: _decode(repository, _read(files)))
    else:
        key = f"{repository.name}-v{VERSION}-hub"
        arrays = cached_arrays(key, lambda: _decode(repository, _download(repository, settings.data_root)))
    return Pool(
        inputs=arrays["images"],
        labels=arrays["labels"],
        class_names=tuple(map(str, arrays["class_names"])),
        is_test=arrays["is_test"],
    )


def local_files(repository: Repository, data_root: str) -> dict[str, list[Path]]:
    """Return the parquet files of every split under ``<data_root>/<repository id>``; empty if there is no copy.

    Raises:
        SettingError: If the copy lacks a split.
    """
    if not data_root:
        return {}
    folder = Path(data_root).expanduser() / repository.id
    found = {split: sorted(folder.rglob(f"{split}*.parquet")) for split in SPLITS}
    missing = [split for split in SPLITS if not found[split]]
    if len(missing) == len(SPLITS):
        return {}
    if missing:
        raise SettingError(f"{folder} holds no {missing[0]}*.parquet; complete the copy, or move it away for the hub's")
    return found


def _digest(files: Mapping[str, list[Path]]) -> str:
    """Identify files by path, size and time of change."""
    stats = [(path.resolve(), path.stat()) for paths in files.values() for path in paths]
    text = "\n".join(f"{path} {stat.st_size} {stat.st_mtime_ns}" for path, stat in stats)
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def _read(files: Mapping[str, list[Path]]) -> dict[str, datasets.Dataset]:
    """Read local parquet files into memory; ``load_dataset`` would copy them into its cache first."""
    import datasets
    import pyarrow as pa
    import pyarrow.parquet as pq

    splits = {}
    for split, paths in files.items():
        try:
            splits[split] = datasets.Dataset(pa.concat_tables([pq.read_table(path) for path in paths]))
        except (OSError, ValueError) as error:  # pyarrow's errors are ValueErrors
            raise SettingError(f"cannot read {', '.join(map(str, paths))}: {error}; copy it again") from error
    return splits


def _download(repository: Repository, data_root: str) -> Mapping[str, datasets.Dataset]:
    import datasets

    try:
        loaded: Mapping[str, datasets.Dataset] = datasets.load_dataset(repository.id)
    except Exception as error:  # whatever the hub's client raises: its HTTP library has changed before
        tried = Path(data_root).expanduser() / repository.id if data_root else "a local copy (data-root is not set)"
        raise SettingError(
            f"data set {repository.name} was found neither in {tried} nor on the hub as {repository.id} "
            f"({type(error).__name__}: {str(error).partition(chr(10))[0]}); "
            f"put train.parquet and test.parquet into <data-root>/{repository.id} and set data-root, "
            "or allow access to the hub"
        ) from error
    return loaded


def _decode(repository: Repository, splits: Mapping[str, datasets.Dataset]) -> Arrays:
    """Decode all images into one array, the training split first."""
    features = splits["train"].features
    for column in (repository.label, _image_column(features)):
        if any(column not in splits[split].features for split in SPLITS):
            raise SettingError(f"{repository.name}: no column {column!r}, only {', '.join(features)}; check the copy")
    labels = np.concatenate([np.asarray(splits[split].with_format("numpy")[repository.label]) for split in SPLITS])
    if labels.min() < 0 or labels.max() >= repository.classes:
        raise SettingError(
            f"{repository.name}: labels run from {labels.min()} to {labels.max()}, "
            f"expected 0 to {repository.classes - 1}; check column {repository.label!r} of the copy"
        )
    names = getattr(features[repository.label], "names", None) or list(map(str, range(repository.classes)))
    return {
        "images": np.concatenate([_pixels(repository, splits[split], _image_column(features)) for split in SPLITS]),
        "labels": labels.astype(np.int64),
        "is_test": np.repeat([False, True], [len(splits[split]) for split in SPLITS]),
        "class_names": np.asarray(names),
    }


def _image_column(features: Mapping[str, object]) -> str:
    """Return the name of the image column: hub repositories call it img or image."""
    named = [name for name in ("image", "img") if name in features]
    return named[0] if named else "image"


def _pixels(repository: Repository, split: datasets.Dataset, column: str) -> Bytes:
    """Decode one split, uint8 (N, H, W, C)."""
    from PIL import Image

    mode = "L" if repository.shape[-1] == 1 else "RGB"
    cells = split.with_format("arrow")[:].column(column)
    images = np.empty((len(cells), *repository.shape), dtype=np.uint8)
    for position, cell in enumerate(cells):
        try:
            with Image.open(io.BytesIO(cell.as_py()["bytes"])) as image:
                images[position] = np.asarray(image.convert(mode)).reshape(repository.shape)
        except (OSError, ValueError, TypeError, KeyError) as error:
            raise SettingError(f"{repository.name}: image {position} cannot be read: {error}; copy it again") from error
    return images
