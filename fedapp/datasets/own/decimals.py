"""Decimal commas: in a file whose fields are not separated by commas, 1,5 is a number.

A column is read so if more than half of its cells are whole numbers or have one comma before their decimals, and no
cell has a point or several commas: those separate thousands, and the column stays as it is.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Mapping, Sequence

from fedapp.config import SettingError
from fedapp.datasets.own.columns import Column
from fedapp.datasets.own.reading import WHOLE, shown

FileRows = tuple[str, slice]  # what separates the fields of a file, and which rows are its own
NUMBER = re.compile(r"[+-]?(?:[0-9]+|[0-9]*,[0-9]+)(?:[eE][+-]?[0-9]+)?")
SEPARATED = re.compile(r"[+-]?[0-9][0-9.,]*")
THOUSANDS = re.compile(r"[+-]?[1-9][0-9]{0,2},[0-9]{3}")

logger = logging.getLogger(__name__)


def with_points(columns: Mapping[str, Column], files: Sequence[FileRows]) -> dict[str, Column]:
    """Return columns with points for decimal commas, and log which they were; every file is looked at on its own.

    Args:
        columns: Cells as texts by column, None where one is missing.
        files: The delimiter and the rows of each file; where the comma separates fields nothing is changed.

    Raises:
        SettingError: If a comma may as well separate thousands: every one stands before three digits, and fields are
            not separated by semicolons, which spreadsheets choose where the comma is the decimal point.

    Example:
        >>> import numpy as np
        >>> columns = {"x": np.array(["1,5", "-2"], object), "y": np.array(["1,234.5", "1,5"], object)}
        >>> with_points(columns, [(";", slice(0, 2))])
        {'x': array(['1.5', '-2'], dtype=object), 'y': array(['1,234.5', '1,5'], dtype=object)}
    """
    made = dict(columns)
    decimal: dict[str, str] = {}
    for name, column in columns.items():
        for delimiter, rows in files:
            first = "" if delimiter == "," else _first_decimal(column[rows])
            if not first:
                continue
            _refuse_thousands(name, column[rows], delimiter, first)
            made[name] = column.copy() if name not in decimal else made[name]
            made[name][rows] = _pointed(column[rows])
            decimal.setdefault(name, first)
    if decimal:
        first = next(iter(decimal.values()))
        told = f"{first!r} is {first.replace(',', '.')}"
        logger.warning("a comma is the decimal point in the columns %s (%s)", shown([*decimal]), told)
    return made


def with_whole_names(column: Column, files: Sequence[FileRows]) -> Column:
    """Return a column of names with points for the commas of whole numbers: 1,0 is 1.0 then, and so 1.

    Commas stay where they separate fields, and those that may separate thousands, as in 1,000 between tabs.

    Args:
        column: Cells as texts, None where one is missing.
        files: As :func:`with_points`.

    Example:
        >>> import numpy as np
        >>> with_whole_names(np.array(["1,0", "1,5", "cat", "1,000"], object), [("|", slice(0, 4))]).tolist()
        ['1.0', '1,5', 'cat', '1,000']
    """
    made = column.copy()
    for delimiter, rows in files:
        for row in range(rows.start, rows.stop) if delimiter != "," else ():
            cell = column[row]
            if cell is None or cell.count(",") != 1 or (delimiter != ";" and THOUSANDS.fullmatch(cell)):
                continue
            pointed = cell.replace(",", ".")
            made[row] = pointed if WHOLE.fullmatch(pointed) else cell
    return made


def _refuse_thousands(name: str, column: Column, delimiter: str, first: str) -> None:
    """Check that not every comma of a file's column may separate thousands."""
    commas = [cell for cell in column if cell is not None and "," in cell and NUMBER.fullmatch(cell)]
    if delimiter != ";" and all(map(THOUSANDS.fullmatch, commas)):
        raise SettingError(
            f"column {name!r} holds {first!r}, which may be {first.replace(',', '.')} or {first.replace(',', '')}; "
            "write decimals with a point and thousands without a comma, or leave the column out of columns"
        )


def _first_decimal(column: Column) -> str:
    """Return the first number with a decimal comma, "" if commas of the column are none."""
    cells = [cell for cell in column if cell is not None]
    if not any("," in cell for cell in cells):
        return ""
    numbers = [bool(NUMBER.fullmatch(cell)) for cell in cells]
    others = (cell for cell, number in zip(cells, numbers, strict=True) if not number)
    if sum(numbers) * 2 <= len(cells) or any(map(SEPARATED.fullmatch, others)):
        return ""
    return next((cell for cell, number in zip(cells, numbers, strict=True) if number and "," in cell), "")


def _pointed(column: Column) -> Column:
    pointed = column.copy()
    rows = [row for row, cell in enumerate(column) if cell is not None and "," in cell and NUMBER.fullmatch(cell)]
    pointed[rows] = [column[row].replace(",", ".") for row in rows]
    return pointed
