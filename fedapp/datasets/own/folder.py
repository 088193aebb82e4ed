"""The data set ``folder``: images under ``<domain or client>/<class>/``, or under ``<class>/``.

Folders named train, val and test at the top, if there are no others, are parts of the data set, see :mod:`parts`. Grey
images become RGB, all are turned upright and resized to ``image-size``. The top folder names the domain, or the client
where ``client-column`` is set.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from pathlib import Path

import numpy as np

from fedapp.config import DataSettings, SettingError
from fedapp.datasets.base import Pool, Source
from fedapp.datasets.own.files import files_in
from fedapp.datasets.own.parts import TRAIN, part_of, train_first
from fedapp.datasets.own.pictures import Origin, pixels
from fedapp.datasets.own.reading import BadRows, Rows, as_text, root_of, to_pool

SUFFIXES = {".png", ".jpg", ".jpeg", ".webp", ".bmp", ".gif", ".tif", ".tiff"}


def load(settings: DataSettings) -> Pool:
    """Return the pool of a folder of images.

    Args:
        settings: The data settings; ``data_root`` is the folder.

    Raises:
        SettingError: If there are no images in that layout, or one cannot be read and bad rows stop.
    """
    root = root_of(settings)
    names = {path: path.relative_to(root).parts for path in files_in(root, SUFFIXES)}
    tests = _parts({parts[0] for parts in names.values()}, str(root))
    files = sorted(names, key=lambda path: tests.get(names[path][0], False))  # training images first
    places = [names[path][bool(tests) : -1] for path in files]
    depths = {len(place): path for path, place in zip(files, places, strict=True)}
    if set(depths) not in ({1}, {2}):
        raise SettingError(_misplaced(root, depths, tests))
    bad = BadRows(settings.own.bad_rows)
    images, readable = pixels(files, Origin(files), settings.own.image_size, lambda row: str(files[row]), bad)
    files = [path for path, good in zip(files, readable, strict=True) if good]
    places = [place for place, good in zip(places, readable, strict=True) if good]
    groups = [as_text(place[0]) for place in places] if 2 in depths else None
    rows = Rows(
        inputs=images,
        labels=[as_text(place[-1]) for place in places],
        where=lambda row: str(files[row]),
        clients=groups if settings.own.client_column else None,
        domains=None if settings.own.client_column else groups,
        is_test=np.asarray([tests[names[path][0]] for path in files]) if tests else None,
    )
    pool = to_pool(rows, settings.own, bad)
    bad.log(settings.dataset)
    return pool


def _parts(tops: Collection[str], root: str) -> dict[str, bool]:
    """Return whether each top folder is of the test part; nothing if they are no parts."""
    parts = {top: part_of(top, whole=True) for top in sorted(tops)}
    kinds = set(parts.values())
    return train_first(parts, root) if TRAIN in kinds and len(kinds) > 1 and "" not in kinds else {}


def _misplaced(root: Path, depths: Mapping[int, Path], tests: Collection[str]) -> str:
    """Say where images lie that do not lie as they should, one for every depth."""
    found = " and ".join(str(path.relative_to(root)) for _, path in sorted(depths.items()))
    held = f"images such as {found}" if found else "no image"
    within = f" within each of {', '.join(tests)}" if tests else ""
    return f"{root} holds {held}; lay images out{within} as <class>/*.png, or all as <domain or client>/<class>/*.png"


SOURCE = Source(
    name="folder",
    load=load,
    summary="your own images: data-root/<domain or client>/<class>/*.png, or data-root/<class>/*.png",
    classes=0,
    shape=(),
    own=True,
)
