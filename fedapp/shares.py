"""Keeps with a run who held which samples: index lists into the data set, in ``partition.npz``.

The file holds ``client_<i>_train``, ``_test`` and ``_validation`` for every client, int64 indices into the pool, and
under ``pool`` a fingerprint of what they point into, and under ``classes`` the names of the classes. A run that is
continued checks that all are as they were.
"""

from __future__ import annotations

import hashlib
import io
import json
import logging
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedapp import datasets, paths
from fedapp.config import DataSettings, SettingError
from fedapp.memory import write_atomically
from fedapp.strategies import PayloadStrategy
from fedapp.strategies.records import RoundRecord

FILE, POOL, CLASSES = "partition.npz", "pool", "classes"
READ_WHOLE = 16 * 2**20  # bytes of inputs; of a larger pool, rows at even distances make the fingerprint

logger = logging.getLogger(__name__)


class ShareKeeper:
    """Writes the index lists of a simulated run when its clients are known.

    Args:
        folder: The run's folder.
        settings: The data settings.
    """

    def __init__(self, folder: Path, settings: DataSettings) -> None:
        self.path = folder / FILE
        self.settings = settings

    def check(self) -> None:
        """Check, before anybody is asked, that the data are those that the run to be continued began with.

        Raises:
            SettingError: If they are others, or the file is damaged.
        """
        before = _read(self.path).get(POOL) if self.path.exists() else None
        if before is None:
            logger.warning("%s does not tell with which data this run began; they are taken as they are", self.path)
            return
        try:
            pool = datasets.load_pool(self._settings())
        except SettingError:  # nobody trains without data; on_start says it where only the server lacks them
            return
        if str(before) != fingerprint(pool):
            raise SettingError(
                f"{self.settings.dataset}: samples, labels or their names are not those that this run began with "
                f"({self.path} holds another fingerprint); restore the data, or start a new run"
            )

    def on_start(self, strategy: PayloadStrategy) -> None:
        """Write the lists, or compare them with those of the run that is continued.

        Raises:
            SettingError: If the data are shared out otherwise than they were, or the lists are damaged.
        """
        clients = max((info.num_clients for info in strategy.clients.values()), default=0)
        try:
            settings = self._settings()
            lists = _lists(datasets.load_shares(settings, clients))
            pool = datasets.load_pool(settings)
        except SettingError as error:  # the clients found their data: where the server cannot, only the file is missed
            logger.warning("who holds what is not kept: %s", error)
            return
        if not self.path.exists():
            sink = io.BytesIO()
            np.savez_compressed(sink, **{**lists, POOL: fingerprint(pool), CLASSES: pool.class_names})
            write_atomically(self.path, sink.getvalue())
        elif differ := _differences(lists, load(self.path)):
            raise SettingError(
                f"the data are not shared out as {self.path} says ({differ[0]} and {len(differ) - 1} more differ) "
                "since the data set has changed; restore it, or start a new run"
            )

    def on_round(self, strategy: PayloadStrategy, record: RoundRecord) -> None:
        """Do nothing."""

    def on_end(self, strategy: PayloadStrategy, digests: Mapping[str, str]) -> None:
        """Do nothing."""

    def _settings(self) -> DataSettings:
        return replace(self.settings, data_root=paths.existing(self.settings.data_root, "data-root"))


def load(path: Path) -> dict[str, NDArray[np.int64]]:
    """Return the index lists of a file by their names.

    Raises:
        SettingError: If it is not there or damaged.
    """
    return _of_clients(_read(path))


def fingerprint(pool: datasets.Pool) -> str:
    """Return a SHA-256 of a pool: names, labels, domains, clients and inputs, of a large pool a sample of the inputs.

    Example:
        >>> pool = datasets.Pool(np.zeros((2, 3), np.float32), np.array([0, 1]), ("a", "b"))
        >>> other = replace(pool, inputs=np.array([[0, 0, 0], [0, 0, 1]], np.float32))
        >>> fingerprint(pool) == fingerprint(replace(pool)), fingerprint(pool) == fingerprint(other)
        (True, False)
    """
    named = [pool.class_names, pool.domain_names, pool.client_names, pool.columns, sorted(pool.categories.items())]
    digest = hashlib.sha256(json.dumps([named, pool.inputs.shape, str(pool.inputs.dtype)]).encode())
    step = max(1, -(-pool.inputs.nbytes // READ_WHOLE))
    for array in (pool.labels, pool.domains, pool.clients, pool.is_test, pool.inputs[::step]):
        digest.update(b"-" if array is None else np.ascontiguousarray(array).tobytes())
    return digest.hexdigest()


def _read(path: Path) -> dict[str, Any]:
    try:
        with np.load(path, allow_pickle=False) as kept:
            return dict(kept)
    except Exception as error:  # of a damaged file zipfile and zlib raise much, NotImplementedError among it
        raise SettingError(f"{path} cannot be read ({error}); restore it, or start a new run") from error


def _of_clients(kept: Mapping[str, Any]) -> dict[str, Any]:
    return {name: array for name, array in kept.items() if name.startswith("client_")}


def _lists(shares: tuple[datasets.Share, ...]) -> dict[str, Any]:
    return {
        f"client_{client}_{part}": rows for client, share in enumerate(shares) for part, rows in vars(share).items()
    }


def _differences(lists: Mapping[str, Any], kept: Mapping[str, Any]) -> list[str]:
    return [name for name in {**lists, **kept} if not np.array_equal(lists.get(name, -1), kept.get(name, -2))]
