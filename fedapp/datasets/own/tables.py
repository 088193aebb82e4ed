"""The data sets ``csv``, ``parquet`` and ``hf-disk``: rows with named columns, labels among them.

``data-root`` is one file, or a folder of files, of which :mod:`parts` says what the test part is. An hf-disk is what
``save_to_disk`` of the ``datasets`` library wrote. The columns become inputs as :mod:`columns` says.
"""

from __future__ import annotations

import csv
import functools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from fedapp.config import DataSettings, OwnDataSettings, SettingError
from fedapp.datasets.base import Bools, Ints, Pool, Source
from fedapp.datasets.own.columns import Column, Encoded, encode, is_picture
from fedapp.datasets.own.decimals import with_points
from fedapp.datasets.own.parts import part_of, part_within, train_first
from fedapp.datasets.own.pictures import Origin, pixels
from fedapp.datasets.own.reading import BadRows, Rows, as_text, categories_of, names_of, root_of, shown, to_pool

if TYPE_CHECKING:
    import datasets

DELIMITERS = ",;\t|"
MISSING = {"", "NA", "N/A", "NaN", "nan", "null", "NULL", "None", "?"}


@dataclass(frozen=True)
class Table:
    """The columns of one or several files, one below the other.

    Attributes:
        columns: The cells by column; None where one is missing.
        files: What they were read from.
        file: From which file each row is, int (N,).
        line: Which line, or row from 0, of its file it is, int (N,).
        unit: What ``line`` counts.
        tests: Whether each file is of the test part, bool (files,).
        delimiters: What separates the fields of the files, if they are texts.
        names: The names of the classes, if the files declare them.
    """

    columns: Mapping[str, Column]
    files: Sequence[Path]
    file: Ints
    line: Ints
    unit: str
    tests: Bools
    delimiters: frozenset[str] = frozenset()
    names: Sequence[str] = ()

    def where(self, row: int) -> str:
        """Name a row."""
        return f"{self.files[self.file[row]]}, {self.unit} {self.line[row]}"


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
    table = _read_csv(root, bad) if kind == "csv" else _read_features(kind, root, settings.own.label_column)
    pool = to_pool(_rows(table, settings.own, bad), settings.own, bad)
    bad.log(settings.dataset)
    return pool


def _rows(table: Table, own: OwnDataSettings, bad: BadRows) -> Rows:
    """Make inputs of the input columns, and name whose rows they are."""
    special = {"label-column": own.label_column, "client-column": own.client_column, "domain-column": own.domain_column}
    inputs = _inputs(table, special, own, bad)
    rows = np.flatnonzero(inputs.kept)
    columns = {key: _names(table.columns[name], rows) for key, name in special.items() if name}
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
        cells = {column: table.columns[column] for column in picked}
        if table.delimiters:
            numeric = {column: cells[column] for column in picked if column not in categories_of(own.categories)}
            cells |= with_points(numeric, table.delimiters)
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


def _files(root: Path, suffix: str) -> dict[Path, bool]:
    """Return the one file, or the files of a folder, training parts first, and whether each is of the test part."""
    if root.is_file():
        return {root: False}
    found = sorted(root.rglob(f"*{suffix}"))
    if not found:
        raise SettingError(f"{root} holds no *{suffix}; say where your data lie with data-root")
    return train_first({path: part_within(*path.relative_to(root).parts) for path in found}, str(root))


def _read_csv(root: Path, bad: BadRows) -> Table:
    """Read CSV files with one header; a line with too many or too few fields is a bad row."""
    tests = _files(root, ".csv")
    files = list(tests)
    delimiters = set()
    header: list[str] = []
    lines: list[list[str]] = []
    place: list[tuple[int, int]] = []
    for position, path in enumerate(files):
        delimiter, own, reader = _open_csv(path)
        delimiters.add(delimiter)
        header = header or own
        if own != header:
            raise SettingError(f"{path} has the columns {shown(own)}, {files[0]} has {shown(header)}; make them equal")
        for number, fields in reader:
            if len(fields) != len(header):
                bad.add(f"{path}, line {number}", f"it has {len(fields)} fields, the header {len(header)}")
            else:
                lines.append(fields)
                place.append((position, number))
    if not lines:
        raise SettingError(f"{files[0]} holds no row; fill it, or say where your data lie with data-root")
    cells = np.asarray(lines, dtype=object)
    cells[np.frompyfunc(MISSING.__contains__, 1, 1)(cells).astype(np.bool_)] = None  # a np.str_ array is all as wide
    where = np.asarray(place, dtype=np.int64)
    columns = {name: cells[:, index] for index, name in enumerate(header)}
    parts = np.asarray([*tests.values()], dtype=np.bool_)
    return Table(columns, files, where[:, 0], where[:, 1], "line", parts, frozenset(delimiters))


def _open_csv(path: Path) -> tuple[str, list[str], list[tuple[int, list[str]]]]:
    """Return delimiter and header of a file and its other lines, each with its number; empty lines are left out."""
    try:
        with path.open(encoding="utf-8-sig", newline="") as file:
            first = file.readline()
            file.seek(0)
            delimiter = max(DELIMITERS, key=first.count)
            reader = csv.reader(file, delimiter=delimiter)
            numbered = [(reader.line_num, [field.strip() for field in fields]) for fields in reader if fields]
    except (OSError, ValueError, csv.Error) as error:
        raise SettingError(f"{path} cannot be read: {error}; save it as CSV in UTF-8") from error
    header = numbered[0][1] if numbered else []
    if not header or len(set(header)) < len(header) or not all(header):
        raise SettingError(f"{path} begins with {shown(header)!r}; the first line must name every column, each once")
    return delimiter, header, numbered[1:]


def _read_features(kind: str, root: Path, label: str) -> Table:
    """Read what the ``datasets`` library wrote, or parquet files of anyone's."""
    tests, splits = _load_disk(root) if kind == "hf-disk" else _load_parquet(root)
    files = list(tests)
    columns: dict[str, list[Any]] = {}
    for path, split in zip(files, splits, strict=True):
        cells = _cells(split)
        if columns and set(cells) != set(columns):
            raise SettingError(f"{path} has the columns {shown([*cells])}, {files[0]} has {shown([*columns])}")
        for name, column in cells.items():
            columns.setdefault(name, []).append(column)
    sizes = [len(split) for split in splits]
    feature = splits[0].features.get(label)
    return Table(
        columns={name: np.concatenate(parts) for name, parts in columns.items()},
        files=files,
        file=np.repeat(np.arange(len(sizes)), sizes),
        line=np.concatenate([np.arange(size) for size in sizes]),
        unit="row",
        tests=np.asarray([*tests.values()], dtype=np.bool_),
        names=getattr(feature, "names", None) or (),
    )


def _load_parquet(root: Path) -> tuple[dict[Path, bool], list[datasets.Dataset]]:
    """Return the files, as :func:`_files` does, and what each holds."""
    import datasets
    import pyarrow.parquet as pq

    files = _files(root, ".parquet")
    splits = []
    for path in files:
        try:
            splits.append(datasets.Dataset(pq.read_table(path)))
        except (OSError, ValueError) as error:  # pyarrow's errors are ValueErrors
            raise SettingError(f"{path} cannot be read: {error}; copy it again") from error
    return files, splits


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


def _cells(split: datasets.Dataset) -> dict[str, Column]:
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
    return columns


def _source(kind: str, summary: str) -> Source:
    return Source(name=kind, load=functools.partial(load, kind), summary=summary, classes=0, shape=(), own=True)


SOURCES = (
    _source("csv", "your own table: data-root is a .csv file or a folder of them"),
    _source("parquet", "your own table or images: data-root is a .parquet file or a folder of them"),
    _source("hf-disk", "your own data set of the datasets library: data-root is what save_to_disk wrote"),
)
