"""One CSV file, split into fields: its delimiter, its header and its rows.

A quote that is never closed would swallow all lines after it. The line where its row begins is broken then, and reading
goes on with the next one.
"""

from __future__ import annotations

import csv
import re
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from fedapp.datasets.own.reading import shown

DELIMITERS = ",;\t|"
QUOTED = re.compile('"[^"]*"')
LONGEST = 2**31 - 1  # characters of a cell: the most that a C long holds on every platform

_limit_lock = threading.Lock()


@dataclass(frozen=True)
class CsvFile:
    """What a file holds.

    Attributes:
        delimiter: What separates its fields.
        header: The names of its columns.
        rows: The fields of every row as many as the header has, and the line that it begins at.
        broken: Which other lines there are, and what is wrong with each.
    """

    delimiter: str
    header: list[str]
    rows: list[tuple[int, list[str]]]
    broken: list[tuple[str, str]]


def read(path: Path) -> CsvFile:
    """Read a file; empty lines are left out.

    Args:
        path: A file in UTF-8.

    Raises:
        OSError: If it is not there.
        ValueError: If it is not in UTF-8, or its first line does not name every column.
    """
    try:
        with path.open(encoding="utf-8-sig", newline="") as file:
            lines = file.readlines()
    except UnicodeDecodeError as error:
        raise ValueError(f"{error}; save it as CSV in UTF-8") from error
    first = QUOTED.sub("", next(filter(str.strip, lines), ""))
    delimiter = max(DELIMITERS, key=first.count)
    with _long_cells():
        (begin, _, header), *split = _split(lines, delimiter) or [(1, 1, "it is empty")]
    if isinstance(header, str) or len(set(header)) < len(header) or not all(header):
        told = header if isinstance(header, str) else f"it begins with {shown(header)!r}"
        raise ValueError(f"line {begin}: {told}; the first line must name every column, each once")
    made = CsvFile(delimiter, header, [], [])
    for line, end, fields in split:
        if not isinstance(fields, str) and len(fields) == len(header):
            made.rows.append((line, fields))
            continue
        why = fields if isinstance(fields, str) else f"it has {len(fields)} fields, the header {len(header)}"
        made.broken.append((f"line {line}" if line == end else f"lines {line} to {end}", why))
    return made


def _split(lines: Sequence[str], delimiter: str) -> list[tuple[int, int, list[str] | str]]:
    """Return the first and the last line of every row, and its fields or what is wrong with it."""
    rows: list[tuple[int, int, list[str] | str]] = []
    start = 0
    while start < len(lines):
        reader = csv.reader((lines[number] for number in range(start, len(lines))), delimiter=delimiter, strict=True)
        line = start + 1
        try:
            for fields in reader:
                end = start + reader.line_num
                rows.append((line, end, [field.strip() for field in fields]))
                line = end + 1
        except csv.Error as error:
            why = f"its fields cannot be told apart ({error}); close every quote, and double one within a quoted field"
            rows.append((line, line, why))
        start = line
    return [row for row in rows if row[2]]


@contextmanager
def _long_cells() -> Iterator[None]:
    """Let cells be as long as they are; the limit is one for the whole process, and stands again afterwards."""
    with _limit_lock:
        before = csv.field_size_limit(LONGEST)
        try:
            yield
        finally:
            csv.field_size_limit(before)
