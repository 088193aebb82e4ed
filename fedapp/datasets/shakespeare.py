"""Shakespeare (LEAF): the next character after 80, by speaker, local copy or hub.

Caldas et al., LEAF: a benchmark for federated settings, arXiv 1812.01097; BSD 2-Clause. On the hub
``flwrlabs/shakespeare``, one split of 4.2 million rows, columns ``character_id`` (play and speaker), ``x`` (80
characters) and ``y`` (the next).

A sample is a row of 80 token ids, int64; a token is a character of LEAF's alphabet of 80, which is also the list of
classes. Other characters read as unknown; rows whose next character is another one are left out.

The windows of a speaker overlap, so a random split would test on trained text. As in LEAF the last tenth of every
speaker's rows tests, and rows at its start that overlap the last training row are left out. Speakers are the natural
clients.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from fedapp.config import DataSettings, SettingError
from fedapp.datasets import hub, words
from fedapp.datasets.base import Bools, Ints, Pool, Source
from fedapp.datasets.cache import Arrays, cached_arrays

VERSION = 1
LENGTH = 80
TEST_FRACTION = 0.1
OVERLAP = 12
ALPHABET = "\n !\"&'(),-.0123456789:;>?ABCDEFGHIJKLMNOPQRSTUVWXYZ[]abcdefghijklmnopqrstuvwxyz}"

REPOSITORY = hub.Repository(
    name="shakespeare",
    id="flwrlabs/shakespeare",
    label="y",
    classes=len(ALPHABET),
    splits=("train",),
    client="character_id",
)


def load(settings: DataSettings) -> Pool:
    """Return the pool, all speakers' training rows first.

    Args:
        settings: The data settings; ``data_root`` is tried before the hub.

    Raises:
        SettingError: If neither place has it, or the copy is another set.
    """
    key = f"{REPOSITORY.name}-v{VERSION}-{hub.identity([REPOSITORY], settings.data_root)}"
    arrays = cached_arrays(key, lambda: _build(settings.data_root))
    return Pool(
        inputs=arrays["tokens"],
        labels=arrays["labels"],
        class_names=tuple(ALPHABET),
        clients=arrays["clients"],
        client_names=tuple(map(str, arrays["client_names"])),
        is_test=arrays["is_test"],
        native_split_only=True,
        vocabulary=len(ALPHABET) + words.FIRST,
    )


def _build(data_root: str) -> Arrays:
    splits = hub.fetch(REPOSITORY, data_root)
    windows, following, speakers = (hub.cells(REPOSITORY, splits, column) for column in ("x", "y", "character_id"))
    if set(map(len, windows)) - {LENGTH} or set(map(len, following)) - {1}:
        raise SettingError(f"shakespeare: x must be {LENGTH} characters and y one; check the copy")
    tokens = characters(windows).reshape(-1, LENGTH)
    labels = characters(following).astype(np.int64) - words.FIRST
    names, owners = np.unique(np.asarray(speakers), return_inverse=True)
    is_test, kept = split_speakers(owners, windows, following)
    order = np.argsort(is_test, kind="stable")
    order = order[(kept & (labels >= 0))[order]]
    return {
        "tokens": tokens[order],
        "labels": labels[order],
        "clients": owners.astype(np.int64)[order],
        "is_test": is_test[order],
        "client_names": names,
    }


def characters(texts: list[str]) -> NDArray[np.int16]:
    """Return the token ids of all characters of some texts, one after the other, int16.

    Example:
        >>> characters(["a b", "é"]).tolist()
        [55, 3, 56, 1]
    """
    codes = np.frombuffer("".join(texts).encode("utf-32-le"), dtype=np.uint32)
    ids = np.full(int(codes.max(initial=127)) + 1, words.UNKNOWN, dtype=np.int16)
    for code, number in words.numbered(tuple(ALPHABET)).items():
        ids[ord(code)] = number
    return ids[codes]


def split_speakers(owners: Ints, windows: list[str], following: list[str]) -> tuple[Bools, Bools]:
    """Set the last tenth of every speaker's rows aside for testing.

    Args:
        owners: Speaker of every row, int64 (N,).
        windows: The characters of every row.
        following: The next character of every row.

    Returns:
        Which rows test, and which rows are used at all, bool (N,) both.
    """
    is_test, kept = np.zeros(len(owners), dtype=np.bool_), np.ones(len(owners), dtype=np.bool_)
    for rows in np.split(np.argsort(owners, kind="stable"), np.cumsum(np.bincount(owners))[:-1]):
        num_train = len(rows) - int(TEST_FRACTION * len(rows))
        is_test[rows[num_train:]] = True
        trained = windows[rows[num_train - 1]] + following[rows[num_train - 1]]
        for row in rows[num_train : num_train + LENGTH]:
            kept[row] = windows[row][:OVERLAP] not in trained
    return is_test, kept


SOURCE = Source(
    name="shakespeare",
    load=load,
    summary="the next of 80 characters after 80, by speaker (LEAF), local copy or hub",
    classes=len(ALPHABET),
    shape=(LENGTH,),
    vocabulary=len(ALPHABET) + words.FIRST,
    models="char-lstm",  # the others of the kind know no order, or are made for words
)
