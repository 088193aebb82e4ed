"""Data sets: the registry, the pool of a data set, and the data of one node.

Importing this package is cheap: torch, datasets, scikit-learn and matplotlib are imported when data is loaded.
"""

from __future__ import annotations

import functools
import threading
from collections import deque
from collections.abc import Sequence
from typing import Any

import numpy as np

from fedapp.config import DataSettings, SettingError, lookup
from fedapp.datasets import (
    ag_news,
    amazon_review,
    cifar10,
    cifar100,
    digits,
    digits4,
    digits_offline,
    domainnet,
    fashion_mnist,
    femnist,
    mnist,
    office_caltech,
    own,
    pacs,
    scaling,
    shakespeare,
    sharing,
    tiny_imagenet,
)
from fedapp.datasets.base import Floats, Ints, NodeData, Pool, Samples, Source
from fedapp.datasets.node_cache import NodeCache
from fedapp.datasets.partition import Share

__all__ = [
    "DATASETS",
    "NodeData",
    "Pool",
    "Samples",
    "Share",
    "Source",
    "forget",
    "load_node",
    "load_pool",
    "load_shares",
    "register",
]

DATASETS: dict[str, Source] = {
    "digits4": digits4.SOURCE,
    "digits-offline": digits_offline.SOURCE,
    "digits": digits.SOURCE,
    "office-caltech10": office_caltech.SOURCE,
    "pacs": pacs.SOURCE,
    "pacs-augmented-once": pacs.AUGMENTED_ONCE,
    "domainnet": domainnet.SOURCE,
    "domainnet-augmented-once": domainnet.AUGMENTED_ONCE,
    "amazon-review": amazon_review.BAGS,
    "amazon-review-text": amazon_review.TEXTS,
    "mnist": mnist.SOURCE,
    "fashion-mnist": fashion_mnist.SOURCE,
    "cifar10": cifar10.SOURCE,
    "cifar100": cifar100.SOURCE,
    "tiny-imagenet": tiny_imagenet.SOURCE,
    "ag-news": ag_news.SOURCE,
    "shakespeare": shakespeare.SOURCE,
    "femnist": femnist.SOURCE,
    **own.SOURCES,
}

SCALED = (np.arange(256, dtype=np.float32) / 255 - 0.5) / 0.5
BLOCK = 64  # images that are converted at a time, so that they stay in the processor's cache

_nodes = NodeCache()
_shared: deque[tuple[Ints, Samples]] = deque(maxlen=4)
_shared_lock = threading.Lock()


def register(name: str, source: Source) -> None:
    """Add a data set; plugins call it when they are imported. Registering the same source again changes nothing.

    Args:
        name: The name users give as ``dataset``.
        source: The data set.

    Raises:
        SettingError: If another source has this name.
    """
    if DATASETS.setdefault(name, source) != source:
        raise SettingError(f"data set {name!r} is registered already ({DATASETS[name].summary}); choose another name")


def load_pool(settings: DataSettings) -> Pool:
    """Return all samples of the data set ``settings.dataset``; the last few pools are kept in this process.

    Args:
        settings: The data settings.

    Raises:
        SettingError: If the data set is unknown or cannot be found.
    """
    return _pool(lookup(DATASETS, settings.dataset, "data set"), _of_pool(settings))


def load_shares(settings: DataSettings, num_clients: int) -> tuple[Share, ...]:
    """Return who holds which samples of the pool, K shares of indices; kept in this process.

    One random stream, seeded by ``partition_seed``, partitions the pool and then splits the clients' shares in order,
    as the papers' code does: every node computes the same shares on its own.

    Args:
        settings: The data settings.
        num_clients: K, the number of clients.

    Raises:
        SettingError: If the data set lacks what the settings ask for, or the partition is not feasible.
    """
    return _shares(lookup(DATASETS, settings.dataset, "data set"), settings, num_clients)


def load_node(settings: DataSettings, index: int, num_clients: int) -> NodeData:
    """Return the data of one node as tensors; the same arguments give the same bits in every process.

    Nodes are kept in this process, as many as :func:`fedapp.datasets.node_cache.node_cache_bytes` allows.

    Args:
        settings: The data settings.
        index: Which client, in [0, num_clients).
        num_clients: K, the number of clients.

    Raises:
        SettingError: If the index is out of range, and as :func:`load_shares`.
    """
    if not 0 <= index < num_clients:
        raise SettingError(f"client index must be in [0, {num_clients}), got {index}; check partition-id")
    group = (lookup(DATASETS, settings.dataset, "data set"), settings, num_clients)
    node = _nodes.get(group, index)
    if node is None:
        node = _node(load_pool(settings), load_shares(settings, num_clients), index, settings.own.scaling)
        _nodes.put(group, index, node)
    return node


def forget() -> None:
    """Forget all data kept in this process, so that files that have changed are read anew."""
    _pool.cache_clear()
    _shares.cache_clear()
    _nodes.clear()
    with _shared_lock:
        _shared.clear()


def _of_pool(settings: DataSettings) -> DataSettings:
    """Return the settings that a pool depends on."""
    return DataSettings(dataset=settings.dataset, data_root=settings.data_root, own=settings.own)


@functools.lru_cache(maxsize=4)
def _pool(source: Source, settings: DataSettings) -> Pool:
    return source.load(settings)


@functools.lru_cache(maxsize=8)
def _shares(source: Source, settings: DataSettings, num_clients: int) -> tuple[Share, ...]:
    pool = _pool(source, _of_pool(settings))
    having = [name for name, known in DATASETS.items() if known.has_domains]
    return sharing.share_out(pool, settings, num_clients, having)


def _node(pool: Pool, shares: Sequence[Share], index: int, scope: str) -> NodeData:
    share = shares[index]
    held = np.concatenate([share.train, share.validation, share.test])
    scale = _scale(pool, [share] if scope == "client" else shares, scope)
    train = _samples(pool, share.train, scale)
    return NodeData(
        train=train,
        test=_tests(pool, share.test, scale),
        validation=_samples(pool, share.validation, scale) if len(share.validation) else None,
        num_classes=len(pool.class_names),
        input_shape=tuple(train.x.shape[1:]),
        class_names=pool.class_names,
        domain=pool.domain_of(held),
        owner=pool.owner_of(held),
        label_counts=np.bincount(pool.labels[share.train], minlength=len(pool.class_names)).astype(np.int64),
        vocabulary=pool.vocabulary,
    )


def _scale(pool: Pool, shares: Sequence[Share], scope: str) -> scaling.Scale | None:
    """Return how to scale columns of numbers by the training parts of some shares; None if there are none."""
    if pool.scaled is None:
        return None
    rows: Any = pool.inputs[np.concatenate([share.train for share in shares])]
    return scaling.fit(rows, pool.scaled & (scope != "none"))


def _tests(pool: Pool, indices: Ints, scale: scaling.Scale | None) -> Samples:
    """Return test samples; clients that share them share the tensors."""
    if scale is not None:
        return _samples(pool, indices, scale)
    with _shared_lock:
        for known, samples in _shared:
            if known is indices:
                return samples
    samples = _samples(pool, indices, None)
    with _shared_lock:
        _shared.append((indices, samples))
    return samples


def _samples(pool: Pool, indices: Ints, scale: scaling.Scale | None) -> Samples:
    """Return samples as tensors."""
    import torch

    y = torch.from_numpy(np.asarray(pool.labels[indices]))
    if pool.inputs.dtype == np.uint8 and not pool.vocabulary:
        return Samples(x=torch.from_numpy(_pixels(pool.inputs, indices)), y=y)
    inputs: Any = np.asarray(pool.inputs[indices])
    x = torch.from_numpy(inputs if scale is None else scaling.apply(inputs, scale))
    return Samples(x=x.to(torch.int64) if pool.vocabulary else x, y=y)


def _pixels(images: Any, indices: Ints) -> Floats:
    """Return images (N, C, H, W) as torchvision's ToTensor and Normalize(0.5, 0.5) give them, bit for bit."""
    _, height, width, channels = images.shape
    x = np.empty((len(indices), channels, height, width), dtype=np.float32)
    for start in range(0, len(indices), BLOCK):
        rows = slice(start, start + BLOCK)
        levels = np.ascontiguousarray(images[indices[rows]].transpose(0, 3, 1, 2))
        np.take(SCALED, levels, out=x[rows], mode="clip")  # twice as fast as arithmetic on every pixel
    return x
