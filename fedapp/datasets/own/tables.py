"""The data sets ``csv``, ``parquet`` and ``hf-disk``: rows with named columns, labels among them.

``data-root`` is one file, or a folder of files, of which :mod:`parts` says what the test part is. An hf-disk is what
``save_to_disk`` of the ``datasets`` library wrote. The columns become inputs as :mod:`columns` says.
"""

from __future__ import annotations

import functools
import logging
import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from fedapp.config import DataSettings, OwnDataSettings, SettingError
from fedapp.datasets.base import Bools, Ints, Pool, Source
from fedapp.datasets.own import csv_files
from fedapp.datasets.own.columns import Column, Encoded, as_number, encode, is_picture
from fedapp.datasets.own.decimals import FileRows, with_points, with_whole_names
from fedapp.datasets.own.files import files_in, readable
from fedapp.datasets.own.parts import part_of, part_within, train_first
from fedapp.datasets.own.pictures import Origin, pixels
from fedapp.datasets.own.reading import BadRows, Rows, as_text, categories_of, names_of, root_of, shown, to_pool

if TYPE_CHECKING:
    import datasets

MISSING = {"", "NA", "N/A", "NaN", "nan", "null", "NULL", "None", "?"}
FEW_NUMBERS, MANY_NUMBERS = 20, 1000  # of different labels

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class Table:
    """The columns of one or several files, one below the other.

    Attributes:
        columns: The cells by column; None where one is missing.
        files: What they were read from.
        file: From which file each row is, int (N,).
        line: Which line, the first one of a row of several, or which row from 0, of its file it is, int (N,).
        unit: What ``line`` counts.
        tests: Whether each file is of the test part, bool (files,).
        delimiters: What separates the fields of each file, if they are texts.
        names: The names of the classes, if the files declare them.
    """

    columns: Mapping[str, Column]
    files: Sequence[Path]
    file: Ints
    line: Ints
    unit: str
    tests: Bools
    delimiters: Sequence[str] = ()
    names: Sequence[str] = ()

    def where(self, row: int) -> str:
        """Name a row."""
        return f"{self.files[self.file[row]]}, {self.unit} {self.line[row]}"

    def texts(self) -> list[FileRows]:
        """Return the delimiter of every file of texts, and which rows are its own."""
        ends = np.cumsum(np.bincount(self.file, minlength=len(self.files))).tolist()
        return [
            (delimiter, slice(start, end))
            for delimiter, start, end in zip(self.delimiters, [0, *ends], ends, strict=False)
        ]


def load(kind: str, settings: DataSettings) -> Pool:
    """Return the pool of a table.

    Args:
        kind: csv, parquet or hf-disk.
        settings: The data settings.

    Raises:
        SettingError: If there is no such table, it lacks a column, or a bad row stops.
    """
    bad = BadRows(settings.own.bad_rows)
    root = root_of(settings)
    table = _read_csv(root, bad) if kind == "csv" else _read_features(kind, root, settings.own.label_column, bad)
    pool = to_pool(_rows(table, settings.own, bad), settings.own, bad)
    bad.log(settings.dataset)
    return pool


def _rows(table: Table, own: OwnDataSettings, bad: BadRows) -> Rows:
    """Make inputs of the input columns, and name whose rows they are."""
    special = {"label-column": own.label_column, "client-column": own.client_column, "domain-column": own.domain_column}
    inputs = _inputs(table, special, own, bad)
    rows = np.flatnonzero(inputs.kept)
    texts = table.texts()
    columns = {key: _names(with_whole_names(table.columns[name], texts), rows) for key, name in special.items() if name}
    if not own.label_names and not table.names:
        _warn_of_quantities(columns["label-column"], own.label_column)
    is_test = table.tests[table.file[rows]]
    return Rows(
        inputs=inputs.values,
        labels=columns["label-column"],
        where=lambda row: table.where(int(rows[row])),
        names=table.names,
        clients=columns.get("client-column"),
        domains=columns.get("domain-column"),
        is_test=is_test if is_test.any() and not is_test.all() else None,
        scaled=inputs.scaled,
        categories=inputs.categories,
        vocabulary=inputs.vocabulary,
        columns=tuple(_picked(table, special, own)),
    )


def _inputs(table: Table, special: Mapping[str, str], own: OwnDataSettings, bad: BadRows) -> Encoded:
    """Make inputs of the chosen columns: the images of one, or numbers of all."""
    chosen = names_of(own.columns, "columns")
    for key, column in (*special.items(), *(("columns", column) for column in chosen)):
        if column and column not in table.columns:
            raise SettingError(f"{key} = {column!r} is no column of {table.files[0]}; it has {shown([*table.columns])}")
    picked = _picked(table, special, own)
    pictures = [column for column in picked if is_picture(table.columns[column])]
    if not pictures:
        given, texts = categories_of(own.categories), table.texts()
        pointed = with_points({column: table.columns[column] for column in picked if column not in given}, texts)
        cells = {column: with_whole_names(pointed.get(column, table.columns[column]), texts) for column in picked}
        return encode(cells, own, table.where, bad)
    if len(pictures) > 1 or len(chosen) > 1:
        raise SettingError(f"columns {shown(chosen or pictures)} hold several inputs; name one image column in columns")
    origin = Origin(table.files, pictures[0])
    return Encoded(*pixels(table.columns[pictures[0]].tolist(), origin, own.image_size, table.where, bad))


def _picked(table: Table, special: Mapping[str, str], own: OwnDataSettings) -> list[str]:
    """Return the input columns: those chosen, else all others by name."""
    others = [column for column in sorted(table.columns) if column not in special.values()]
    return list(names_of(own.columns, "columns")) or others


def _names(column: Column, rows: Ints) -> list[str]:
    return [as_text(value) for value in column[rows].tolist()]


def _warn_of_quantities(labels: Sequence[str], column: str) -> None:
    """Log if labels look like numbers to predict, for each would be a class of its own."""
    numbers = sum(not math.isnan(as_number(label.replace(",", "."))) for label in set(labels))
    if numbers > MANY_NUMBERS or (numbers > FEW_NUMBERS and numbers * 2 > len(labels)):
        logger.warning(
            "label-column = %r holds %s different numbers in %s rows, and each is a class of its own; if it is a "
            "quantity, put it into a few ranges first",
            *(column, numbers, len(labels)),
        )


def _files(root: Path, suffix: str) -> dict[Path, bool]:
    """Return the one file, or the files of a folder, training parts first, and whether each is of the test part."""
    if root.is_file():
        return {root: False}
    found = files_in(root, {suffix})
    if not found:
        raise SettingError(f"{root} holds no *{suffix}; say where your data lie with data-root")
    return train_first({path: part_within(*path.relative_to(root).parts) for path in found}, str(root))


def _check_columns(path: Path, own: Collection[str], first: Path, columns: Collection[str]) -> None:
    """Check that a file has the columns of the first one, in whatever order."""
    if set(own) != set(columns):
        raise SettingError(f"{path} has the columns {shown([*own])}, {first} has {shown([*columns])}; make them equal")


def _read_csv(root: Path, bad: BadRows) -> Table:
    """Read CSV files with the same columns; a line with too many or too few fields is a bad row."""
    tests, read = readable(_files(root, ".csv"), csv_files.read, bad)
    files, header = list(tests), read[0].header
    lines: list[list[str]] = []
    place: list[tuple[int, int]] = []
    for position, (path, one) in enumerate(zip(files, read, strict=True)):
        _check_columns(path, one.header, files[0], header)
        order = [one.header.index(name) for name in header]
        for line, why in one.broken:
            bad.add(f"{path}, {line}", why)
        for number, fields in one.rows:
            lines.append(fields if one.header == header else [fields[index] for index in order])
            place.append((position, number))
    if not lines:
        raise SettingError(f"{files[0]} holds no row; fill it, or say where your data lie with data-root")
    cells = np.asarray(lines, dtype=object)
    cells[np.frompyfunc(MISSING.__contains__, 1, 1)(cells).astype(np.bool_)] = None  # a np.str_ array is all as wide
    where = np.asarray(place, dtype=np.int64)
    columns = {name: cells[:, index] for index, name in enumerate(header)}
    parts = np.asarray([*tests.values()], dtype=np.bool_)
    return Table(columns, files, where[:, 0], where[:, 1], "line", parts, [one.delimiter for one in read])


@dataclass(frozen=True)
class Part:
    """What one file or split holds: its cells by column, and the names of the classes if it declares them."""

    cells: Mapping[str, Column]
    names: Sequence[str]


def _read_features(kind: str, root: Path, label: str, bad: BadRows) -> Table:
    """Read what the ``datasets`` library wrote, or parquet files of anyone's."""
    if kind == "hf-disk":
        tests, splits = _load_disk(root)
        parts = [_part(split, label) for split in splits]
    else:
        tests, parts = readable(_files(root, ".parquet"), functools.partial(_read_parquet, label=label), bad)
    files, columns = list(tests), parts[0].cells
    for path, part in zip(files, parts, strict=True):
        _check_columns(path, part.cells, files[0], columns)
    sizes = [len(next(iter(part.cells.values()), ())) for part in parts]
    return Table(
        columns={name: np.concatenate([part.cells[name] for part in parts]) for name in columns},
        files=files,
        file=np.repeat(np.arange(len(sizes)), sizes),
        line=np.concatenate([np.arange(size) for size in sizes]),
        unit="row",
        tests=np.asarray([*tests.values()], dtype=np.bool_),
        names=parts[0].names,
    )


def _read_parquet(path: Path, label: str) -> Part:
    """Read one file; whatever pyarrow says is wrong with it is a ValueError."""
    import datasets
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        return _part(datasets.Dataset(pq.read_table(path)), label)
    except pa.ArrowException as error:
        raise ValueError(str(error)) from error


def _load_disk(root: Path) -> tuple[dict[Path, bool], list[datasets.Dataset]]:
    """Return the folders of the splits, training parts first, whether each is of the test part, and what it holds."""
    import datasets

    try:
        loaded = datasets.load_from_disk(str(root))
    except (OSError, ValueError) as error:
        raise SettingError(
            f"{root} is no data set on disk: {error}; data-root must be the folder that save_to_disk wrote"
        ) from error
    if isinstance(loaded, datasets.Dataset):
        return {root: False}, [loaded]
    tests = train_first({root / split: part_of(split) for split in loaded}, str(root))
    return tests, [loaded[path.name] for path in tests]


def _part(split: datasets.Dataset, label: str) -> Part:
    """Return the columns of a split as Python objects, class numbers as the names of the classes."""
    import datasets

    table = split.with_format("arrow")[:]
    columns = {}
    for name, feature in split.features.items():
        cells = table.column(name).to_pylist()
        if isinstance(feature, datasets.ClassLabel):
            cells = [None if cell is None or cell < 0 else feature.names[cell] for cell in cells]
        columns[name] = np.empty(len(cells), dtype=object)
        columns[name][:] = cells
    return Part(columns, getattr(split.features.get(label), "names", None) or ())


def _source(kind: str, summary: str) -> Source:
    return Source(name=kind, load=functools.partial(load, kind), summary=summary, classes=0, shape=(), own=True)


SOURCES = (
    _source("csv", "your own table: data-root is a .csv file or a folder of them"),
    _source("parquet", "your own table or images: data-root is a .parquet file or a folder of them"),
    _source("hf-disk", "your own data set of the datasets library: data-root is what save_to_disk wrote"),
)
