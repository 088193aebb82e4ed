"""Decimal commas: in a table whose fields are not separated by commas, 1,5 is a number.

A column is read so if more than half of its cells are whole numbers or have one comma before their decimals, and no
cell has a point or several commas: those separate thousands, and the column stays as it is.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Collection, Mapping

from fedapp.config import SettingError
from fedapp.datasets.own.columns import Column
from fedapp.datasets.own.reading import shown

NUMBER = re.compile(r"[+-]?(?:[0-9]+|[0-9]*,[0-9]+)(?:[eE][+-]?[0-9]+)?")
SEPARATED = re.compile(r"[+-]?[0-9][0-9.,]*")
THOUSANDS = re.compile(r"[+-]?[1-9][0-9]{0,2},[0-9]{3}")

logger = logging.getLogger(__name__)


def with_points(columns: Mapping[str, Column], delimiters: Collection[str]) -> dict[str, Column]:
    """Return columns with points for decimal commas, and log which they were.

    Args:
        columns: Cells as texts by column, None where one is missing.
        delimiters: What separates the fields of the files; with a comma among them nothing is changed.

    Raises:
        SettingError: If a comma may as well separate thousands: every one stands before three digits, and fields are
            not separated by semicolons, which spreadsheets choose where the comma is the decimal point.

    Example:
        >>> import numpy as np
        >>> with_points({"x": np.array(["1,5", "-2"], object), "y": np.array(["1,234.5", "1,5"], object)}, ";")
        {'x': array(['1.5', '-2'], dtype=object), 'y': array(['1,234.5', '1,5'], dtype=object)}
    """
    if "," in delimiters:
        return dict(columns)
    decimal = {name: first for name, column in columns.items() if (first := _first_decimal(column))}
    for name, first in decimal.items():
        commas = [cell for cell in columns[name] if cell is not None and "," in cell and NUMBER.fullmatch(cell)]
        if set(delimiters) != {";"} and all(map(THOUSANDS.fullmatch, commas)):
            raise SettingError(
                f"column {name!r} holds {first!r}, which may be {first.replace(',', '.')} or "
                f"{first.replace(',', '')}; write decimals with a point and thousands without a comma, or leave the "
                "column out of columns"
            )
    if decimal:
        first = next(iter(decimal.values()))
        told = f"{first!r} is {first.replace(',', '.')}"
        logger.warning("a comma is the decimal point in the columns %s (%s)", shown([*decimal]), told)
    return {name: _pointed(column) if name in decimal else column for name, column in columns.items()}


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
