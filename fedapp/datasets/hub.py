"""Image classification sets in the layout of the Hugging Face hub: a local copy first, then the hub.

A local copy is a folder ``<data_root>/<repository id>`` with parquet files named after their split, at any depth:
``train.parquet``, or the hub's own ``plain_text/train-00000-of-00001.parquet``. It is read without any network access
and without the library's own cache; images are decoded once into fedapp's cache, file by file and batch by batch, so
that a set may be larger than memory.
"""

from __future__ import annotations

import hashlib
import logging
import os
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from fedapp.config import DataSettings, SettingError
from fedapp.datasets.base import Bytes, Ints, Pool
from fedapp.datasets.cache import Arrays, Empty, drafted_arrays, in_memory
from fedapp.datasets.pictures import picture
from fedapp.datasets.splits import Splits, from_library, from_parquet

if TYPE_CHECKING:
    import pyarrow as pa

VERSION = 1
SPLITS = ("train", "test")
CHUNK = 250
MOST_THREADS = 4
PROBES, PROBE_SECONDS, PAUSE_SECONDS = 2, 10.0, 1.0
REMEMBERED_SECONDS = 120.0

_asking = threading.Lock()
_failed: dict[str, tuple[float, str]] = {}
"""Repository id -> when the hub failed to give it, and why: the clients of a process need not all wait for that."""

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class Repository:
    """A data set repository of the hub.

    Attributes:
        name: Name of the data set here.
        id: Repository id on the hub, and folder under ``data_root``.
        label: Column of the labels.
        classes: Number of classes C.
        shape: (H, W, channels) of one image; one channel means grey. () where the inputs are no images.
        splits: The splits to read, in order; the first trains.
        resize: Whether images of another size are resized, bilinearly; else they are an error.
        domain: Column that names the domain of a sample, or "".
        domains: The domains in order, if there is such a column.
        client: Column that says whose a sample is, or "".
        config: The repository's configuration on the hub, if it has several, and maybe a folder of the local copy.
        on_hub: Whether the hub has it; ``local/...`` is only ever a local copy.
    """

    name: str
    id: str
    label: str
    classes: int
    shape: tuple[int, ...] = ()
    splits: tuple[str, ...] = SPLITS
    resize: bool = False
    domain: str = ""
    domains: tuple[str, ...] = ()
    client: str = ""
    config: str = ""
    on_hub: bool = True


def load(
    repository: Repository, settings: DataSettings, finish: Callable[[Arrays], Arrays] = lambda arrays: arrays
) -> Pool:
    """Return the pool of a repository of images: the training split, then the test split.

    Args:
        repository: Which repository.
        settings: The data settings; ``data_root`` is tried before the hub.
        finish: What to do with the arrays of :func:`decode` before they are cached; it may change them in place.

    Raises:
        SettingError: If neither place has it, or a file cannot be read.
    """
    key = f"{repository.name}-v{VERSION}-{identity([repository], settings.data_root)}"
    arrays = drafted_arrays(key, lambda empty: finish(decode(repository, settings.data_root, empty)))
    return pool_of(repository, arrays, arrays["images"])


def pool_of(repository: Repository, arrays: Arrays, inputs: Any, **more: Any) -> Pool:
    """Return the pool of some inputs and the fields of :func:`facts`.

    Args:
        repository: Where they are from.
        arrays: The fields.
        inputs: As :class:`Pool` has them.
        **more: Further fields of the pool.
    """
    return Pool(
        inputs=inputs,
        labels=arrays["labels"],
        class_names=tuple(map(str, arrays["class_names"])),
        domains=arrays.get("domains"),
        domain_names=repository.domains,
        clients=arrays.get("clients"),
        client_names=tuple(map(str, arrays.get("client_names", ()))),
        is_test=arrays["is_test"] if arrays["is_test"].any() else None,
        **more,
    )


def identity(repositories: Sequence[Repository], data_root: str) -> str:
    """Return what tells local copies apart, for the name of a cache entry: a digest of their files, or hub.

    Raises:
        SettingError: If a copy lacks a split.
    """
    found = [local_files(repository, data_root) for repository in repositories]
    paths = [path for files in found for parts in files.values() for path in parts]
    return digest(paths) if paths else "hub"


def fetch(repository: Repository, data_root: str) -> Splits:
    """Return the splits of a repository, the local copy's or the hub's.

    Args:
        repository: Which repository.
        data_root: Folder with local copies, or "".

    Raises:
        SettingError: If neither place has it, a file cannot be read, or a column is missing.
    """
    files = local_files(repository, data_root)
    local: Splits = {split: from_parquet(paths) for split, paths in files.items()}
    splits = local or _download(repository, data_root)
    for column in filter(None, (repository.label, repository.domain, repository.client)):
        _check_column(repository, splits, column)
    return splits


def decode(repository: Repository, data_root: str, empty: Empty = in_memory) -> Arrays:
    """Return the images, labels and whatever else a repository of images has, the training split first.

    Args:
        repository: Which repository.
        data_root: Folder with local copies, or "".
        empty: Makes the array ``images``.

    Returns:
        ``images`` uint8 (N, H, W, C), ``labels`` int64 (N,), ``is_test`` bool (N,), ``class_names`` and, where the
        repository has them, ``domains`` and ``clients`` int64 (N,) and ``client_names``.

    Raises:
        SettingError: As :func:`fetch`, and for an image or a label that does not fit.
    """
    splits = fetch(repository, data_root)
    column = _image_column(splits[repository.splits[0]].features)
    _check_column(repository, splits, column)
    known = facts(repository, splits)  # what is wrong with labels shows before the long work
    rows = [splits[split].rows for split in repository.splits]
    images = empty("images", (sum(rows), *repository.shape))
    parts = np.split(np.asarray(images), np.cumsum(rows)[:-1])
    for split, part in zip(repository.splits, parts, strict=True):
        _decode_into(part, splits[split].batches(column), repository)
    return {"images": images, **known}


def facts(repository: Repository, splits: Splits) -> Arrays:
    """Return labels, split, class names, domains and clients of a repository's samples, as :func:`decode` does.

    Raises:
        SettingError: If a label or a domain is not of the repository.
    """
    held = [splits[split] for split in repository.splits]
    parts = [part.to_numpy(zero_copy_only=False) for split in held for part in split.batches(repository.label)]
    labels = np.concatenate(parts).astype(np.int64)
    if labels.min() < 0 or labels.max() >= repository.classes:
        raise SettingError(
            f"{repository.name}: labels run from {labels.min()} to {labels.max()}, "
            f"expected 0 to {repository.classes - 1}; check column {repository.label!r} of the copy"
        )
    known = getattr(splits[repository.splits[0]].features[repository.label], "names", None)
    arrays: Arrays = {
        "labels": labels,
        "is_test": np.repeat([place > 0 for place in range(len(held))], [split.rows for split in held]),
        "class_names": np.asarray(known or list(map(str, range(repository.classes)))),
    }
    if repository.domain:
        arrays["domains"] = _domains(repository, splits)
    if repository.client:
        owners = np.asarray(cells(repository, splits, repository.client))
        arrays["client_names"], arrays["clients"] = np.unique(owners, return_inverse=True)
    return arrays


def cells(repository: Repository, splits: Splits, column: str) -> list[Any]:
    """Return a column of all splits, in order.

    Raises:
        SettingError: If a split has no such column.
    """
    _check_column(repository, splits, column)
    parts = (part for split in repository.splits for part in splits[split].batches(column))
    return [cell for part in parts for cell in part.to_pylist()]


def local_files(repository: Repository, data_root: str) -> dict[str, list[Path]]:
    """Return the parquet files of every split under ``<data_root>/<repository id>``; empty if there is no copy.

    Raises:
        SettingError: If the copy lacks a split.
    """
    if not data_root:
        return {}
    folder = Path(data_root).expanduser() / repository.id
    if repository.config and (folder / repository.config).is_dir():
        folder /= repository.config
    found = {split: sorted(folder.rglob(f"{split}*.parquet")) for split in repository.splits}
    missing = [split for split in repository.splits if not found[split]]
    if len(missing) == len(repository.splits):
        return {}
    if missing:
        raise SettingError(f"{folder} holds no {missing[0]}*.parquet; complete the copy, or move it away for the hub's")
    return found


def digest(paths: Sequence[Path]) -> str:
    """Return what identifies files: a digest of their paths, sizes and times of change."""
    stats = [(path.resolve(), path.stat()) for path in paths]
    text = "\n".join(f"{path} {stat.st_size} {stat.st_mtime_ns}" for path, stat in stats)
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def _download(repository: Repository, data_root: str) -> Splits:
    tried = Path(data_root).expanduser() / repository.id if data_root else "a local copy (data-root is not set)"
    files = " and ".join(f"{split}.parquet" for split in repository.splits)
    way_out = f"put {files} into <data-root>/{repository.id} and set data-root"
    if not repository.on_hub:
        raise SettingError(f"{repository.name} was not found in {tried}, and the hub has no such repository; {way_out}")
    nowhere = f"data set {repository.name} was found neither in {tried} nor on the hub as {repository.id}"
    way_out += ", or allow access to the hub"
    with _asking:
        since, reason = _failed.get(repository.id, (0.0, ""))
        if reason and time.monotonic() - since < REMEMBERED_SECONDS:
            raise SettingError(f"{nowhere} ({reason}); {way_out}")
        logger.warning("%s: not in %s, so %s is taken from the hub", repository.name, tried, repository.id)
        try:
            return _ask(repository)
        except Exception as error:  # whatever the hub's client raises: its HTTP library has changed before
            reason = f"{type(error).__name__}: {str(error).partition(chr(10))[0]}"
            _failed[repository.id] = time.monotonic(), reason
            raise SettingError(f"{nowhere} ({reason}); {way_out}") from error


def _ask(repository: Repository) -> Splits:
    """Return the splits as the ``datasets`` library has them from the hub, or from its cache of the hub."""
    import datasets

    if not _at_hand(repository):
        _probe()
    loaded = datasets.load_dataset(
        repository.id, repository.config or None, split=list(repository.splits), **_only(repository)
    )
    return {name: from_library(split) for name, split in zip(repository.splits, loaded, strict=True)}


def _at_hand(repository: Repository) -> bool:
    """Return whether the library may have something of a repository without the network, or was told not to use it."""
    import datasets
    import huggingface_hub

    places = [
        Path(repository.id),
        Path(huggingface_hub.constants.HF_HUB_CACHE) / f"datasets--{repository.id.replace('/', '--')}" / "snapshots",
        Path(datasets.config.HF_DATASETS_CACHE) / repository.id.replace("/", "___"),
    ]
    return bool(huggingface_hub.constants.HF_HUB_OFFLINE) or any(place.is_dir() for place in places)


def _probe() -> None:
    """Ask whether the hub is there; without a network the library itself retries for half a minute.

    Raises:
        Exception: What the hub's HTTP library raises if nothing answers, whatever the answer would be.
    """
    import huggingface_hub

    for tries_left in reversed(range(PROBES)):
        try:
            huggingface_hub.get_session().head(huggingface_hub.constants.ENDPOINT, timeout=PROBE_SECONDS)
            return
        except Exception:
            if not tries_left:
                raise
        time.sleep(PAUSE_SECONDS)


def _only(repository: Repository) -> dict[str, Any]:
    """Return what keeps ``load_dataset`` from fetching files of other splits, which a choice of splits does not do."""
    import datasets

    files = datasets.load_dataset_builder(repository.id, repository.config or None).config.data_files or {}
    if set(files) <= set(repository.splits):
        return {}
    wanted = {split: list(files[split]) for split in repository.splits if split in files}
    return {"data_files": wanted, "verification_mode": "no_checks"}  # the checks miss the other splits


def _domains(repository: Repository, splits: Splits) -> Ints:
    """Return the number of every sample's domain; the column holds names, or numbers with names in its feature."""
    names = getattr(splits[repository.splits[0]].features[repository.domain], "names", None)
    values = cells(repository, splits, repository.domain)
    found = [names[value] for value in values] if names else list(map(str, values))
    strange = set(found) - set(repository.domains)
    if strange:
        raise SettingError(
            f"{repository.name}: column {repository.domain!r} holds {min(strange)!r}, "
            f"expected {', '.join(repository.domains)}; check the copy"
        )
    numbers = {name: number for number, name in enumerate(repository.domains)}
    return np.asarray([numbers[name] for name in found], dtype=np.int64)


def _check_column(repository: Repository, splits: Splits, column: str) -> None:
    for split in repository.splits:
        held = splits[split].features if split in splits else {}
        if column not in held:
            raise SettingError(
                f"{repository.name}: no column {column!r} in {split}, only {', '.join(held)}; check the copy"
            )


def _image_column(features: Mapping[str, object]) -> str:
    """Return the name of the image column: hub repositories call it img or image."""
    named = [name for name in ("image", "img") if name in features]
    return named[0] if named else "image"


def _decode_into(images: Bytes, batches: Iterator[pa.Array], repository: Repository) -> None:
    """Decode one split into uint8 (N, H, W, C), on a few threads: the decoders let others run meanwhile."""
    place = 0

    def decode(start: int, encoded: list[bytes]) -> None:
        for position, cell in enumerate(encoded, start):
            images[position] = _picture(repository, cell, position)

    with ThreadPoolExecutor(min(MOST_THREADS, os.cpu_count() or 1)) as pool:
        for batch in batches:
            cells = _encoded(repository, batch)
            starts = range(0, len(cells), CHUNK)
            chunks = [cells[start : start + CHUNK] for start in starts]
            for _ in pool.map(decode, [place + start for start in starts], chunks):
                pass
            place += len(cells)


def _encoded(repository: Repository, batch: pa.Array) -> list[bytes]:
    """Return the bytes of the images in a batch of the image column."""
    try:
        encoded: list[bytes] = batch.field("bytes").to_pylist()
    except (AttributeError, KeyError) as error:
        raise SettingError(f"{repository.name}: images are stored as {batch.type}; check the copy") from error
    return encoded


def _picture(repository: Repository, encoded: bytes, place: int) -> Bytes:
    try:
        return picture(encoded, repository.shape, repository.resize)
    except Exception as error:  # of corrupt images Pillow raises much, SyntaxError among it
        raise SettingError(f"{repository.name}: image {place} cannot be read: {error}; copy it again") from error
