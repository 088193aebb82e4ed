"""The data set ``folder``: images under ``<domain or client>/<class>/``, or under ``<class>/``.

A folder ``train`` beside a folder ``test`` at the top makes them the data set's own parts. Grey images become RGB, all
are resized to ``image-size``; files and folders whose names begin with a dot are left out. The top folder names the
domain, or the client where ``client-column`` is set.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np

from fedapp.config import DataSettings, SettingError
from fedapp.datasets.base import Pool, Source
from fedapp.datasets.own.pictures import Origin, pixels
from fedapp.datasets.own.reading import BadRows, Rows, root_of, to_pool

SUFFIXES = {".png", ".jpg", ".jpeg", ".webp", ".bmp", ".gif", ".tif", ".tiff"}
PARTS = {"train", "test"}


def load(settings: DataSettings) -> Pool:
    """Return the pool of a folder of images.

    Args:
        settings: The data settings; ``data_root`` is the folder.

    Raises:
        SettingError: If there are no images in that layout, or one cannot be read and bad rows stop.
    """
    root = root_of(settings)
    images_in = [path for path in root.rglob("*") if path.suffix.lower() in SUFFIXES and path.is_file()]
    files = sorted(path for path in images_in if not any(part[0] == "." for part in path.relative_to(root).parts))
    places = [path.relative_to(root).parts[:-1] for path in files]
    parted = {place[0] for place in places if place} == PARTS
    places = [place[parted:] for place in places]
    depths = {len(place) for place in places}
    if depths not in ({1}, {2}):
        found = "no image" if not files else f"images {sorted(depths)} folders deep"
        raise SettingError(
            f"{root} holds {found}; lay images out as <class>/*.png, or all as <domain or client>/<class>/*.png"
        )
    bad = BadRows(settings.own.bad_rows)
    images, readable = pixels(files, Origin(files), settings.own.image_size, lambda row: str(files[row]), bad)
    files = [path for path, good in zip(files, readable, strict=True) if good]
    places = [place for place, good in zip(places, readable, strict=True) if good]
    groups = [place[0] for place in places] if depths == {2} else None
    rows = Rows(
        inputs=images,
        labels=[place[-1] for place in places],
        where=lambda row: str(files[row]),
        clients=groups if settings.own.client_column else None,
        domains=None if settings.own.client_column else groups,
        is_test=np.asarray([_part(root, path) == "test" for path in files]) if parted else None,
    )
    pool = to_pool(rows, settings.own, bad)
    bad.log(settings.dataset)
    return pool


def _part(root: Path, path: Path) -> str:
    return path.relative_to(root).parts[0]


SOURCE = Source(
    name="folder",
    load=load,
    summary="your own images: data-root/<domain or client>/<class>/*.png, or data-root/<class>/*.png",
    classes=0,
    shape=(),
    own=True,
)
