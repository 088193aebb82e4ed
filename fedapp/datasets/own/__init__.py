"""The user's own data: a folder of images, tables, a data set on disk, or whatever a function of the user's returns."""

from __future__ import annotations

from fedapp.datasets.base import Source
from fedapp.datasets.own import folder, function, tables

SOURCES: dict[str, Source] = {source.name: source for source in (folder.SOURCE, *tables.SOURCES, function.SOURCE)}
