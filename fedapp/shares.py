"""Keeps with a run who held which samples: index lists into the data set, in ``partition.npz``.

The file holds ``client_<i>_train``, ``_test`` and ``_validation`` for every client, int64 indices into the pool. A run
that is continued checks that the data are still shared out as they were.
"""

from __future__ import annotations

import io
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

FILE = "partition.npz"

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

    def on_start(self, strategy: PayloadStrategy) -> None:
        """Write the lists, or compare them with those of the run that is continued.

        Raises:
            SettingError: If the data are shared out otherwise than they were.
        """
        clients = max((info.num_clients for info in strategy.clients.values()), default=0)
        try:
            settings = replace(self.settings, data_root=paths.existing(self.settings.data_root, "data-root"))
            lists = _lists(datasets.load_shares(settings, clients))
        except SettingError as error:  # the clients found their data: where the server cannot, only the file is missed
            logger.warning("who holds what is not kept: %s", error)
            return
        if not self.path.exists():
            sink = io.BytesIO()
            np.savez_compressed(sink, **lists)
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


def load(path: Path) -> dict[str, NDArray[np.int64]]:
    """Return the index lists of a file by their names."""
    with np.load(path, allow_pickle=False) as kept:
        return dict(kept)


def _lists(shares: tuple[datasets.Share, ...]) -> dict[str, Any]:
    return {
        f"client_{client}_{part}": rows for client, share in enumerate(shares) for part, rows in vars(share).items()
    }


def _differences(lists: Mapping[str, Any], kept: Mapping[str, Any]) -> list[str]:
    return [name for name in {**lists, **kept} if not np.array_equal(lists.get(name, -1), kept.get(name, -2))]
