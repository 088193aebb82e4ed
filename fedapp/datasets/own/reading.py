"""What the kinds of own data share: rows as they were read, bad rows, and the way from names to a pool."""

from __future__ import annotations

import json
import logging
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedapp.agreement import sort_names
from fedapp.config import DataSettings, OwnDataSettings, SettingError, json_of, listed_names
from fedapp.datasets.base import Bools, Pool

Names = Sequence[str]
Where = Callable[[int], str]
MOST_NAMED = 5
WHOLE = re.compile(r"-?(0)\.0+|(-?[1-9][0-9]*)\.0+")

logger = logging.getLogger(__name__)


@dataclass
class BadRows:
    """What could not be read: under ``bad-rows = stop`` the first one ends all, under ``skip`` they are counted."""

    policy: str
    found: list[str] = field(default_factory=list)

    def add(self, where: str, why: str) -> None:
        """Note one bad row or file.

        Raises:
            SettingError: If bad rows stop.
        """
        if self.policy == "stop":
            raise SettingError(f"{where}: {why}; mend it, or set bad-rows = skip")
        self.found.append(f"{where}: {why}")

    def log(self, what: str) -> None:
        """Log how many were skipped, and the first ones by name."""
        if self.found:
            more = [f"and {len(self.found) - MOST_NAMED} more"] * (len(self.found) > MOST_NAMED)
            named = "; ".join(self.found[:MOST_NAMED] + more)
            logger.warning("%s: %s bad rows or files were skipped: %s", what, len(self.found), named)


@dataclass(frozen=True)
class Rows:
    """What was read, row by row, before labels and domains become numbers.

    Attributes:
        inputs: One sample a row, (N, ...), of a dtype that :class:`Pool` knows.
        labels: Label of every row; "" where there is none.
        where: Says where a row was read, for messages.
        names: The names of all classes, where the source declares them.
        clients: Whose each row is, or None.
        domains: Of which domain each row is, or None.
        is_test: Whether a row is in the source's own test part, or None if it has no such part.
        scaled: As :attr:`Pool.scaled`.
        categories: As :attr:`Pool.categories`.
        vocabulary: As :attr:`Pool.vocabulary`.
        columns: As :attr:`Pool.columns`.
    """

    inputs: NDArray[Any]
    labels: Names
    where: Where
    names: Names = ()
    clients: Names | None = None
    domains: Names | None = None
    is_test: Bools | None = None
    scaled: Bools | None = None
    categories: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    vocabulary: int = 0
    columns: tuple[str, ...] = ()


def to_pool(rows: Rows, own: OwnDataSettings, bad: BadRows) -> Pool:
    """Return the pool of rows: labels by the names given, else declared, else found.

    Args:
        rows: What was read.
        own: The settings; ``label_names`` wins over the names that the rows bring.
        bad: Where rows without a label, client or domain, or with an unknown label, are noted.

    Raises:
        SettingError: If no row is left, or a bad row stops.
    """
    kept = _owned(rows, bad)
    found = sort_names(label for label, good in zip(rows.labels, kept, strict=True) if good and label)
    given = cells_of(names_of(own.label_names, "label-names"), "label-names")
    names = given or cells_of(rows.names, "the data set") or found
    number = {name: position for position, name in enumerate(names)}
    for row in np.flatnonzero(kept).tolist():
        label = rows.labels[row]
        if label not in number:
            kept[row] = False
            bad.add(rows.where(row), f"label {label!r} is not among {shown(names)}" if label else "it has no label")
    if not kept.any():
        raise SettingError(f"no row with a label of {len(kept)} is left; check label-column and label-names")
    labels = np.asarray([number[label] for label in np.asarray(rows.labels, dtype=object)[kept]], dtype=np.int64)
    clients, domains = (_numbered(column, kept) for column in (rows.clients, rows.domains))
    return Pool(
        inputs=rows.inputs if kept.all() else rows.inputs[kept],
        labels=labels,
        class_names=names,
        domains=None if domains is None else domains[0],
        domain_names=() if domains is None else domains[1],
        clients=None if clients is None else clients[0],
        client_names=() if clients is None else clients[1],
        is_test=None if rows.is_test is None else rows.is_test[kept],
        native_split_only=rows.is_test is not None,
        scaled=rows.scaled,
        categories=rows.categories,
        vocabulary=rows.vocabulary,
        columns=rows.columns,
    )


def _owned(rows: Rows, bad: BadRows) -> Bools:
    """Return which rows say whose they are, where the data name clients or domains."""
    kept = np.ones(len(rows.labels), dtype=np.bool_)
    for what, column in (("client", rows.clients), ("domain", rows.domains)):
        for row in [row for row, name in enumerate(column or ()) if not name and kept[row]]:
            kept[row] = False
            bad.add(rows.where(row), f"it names no {what}")
    return kept


def _numbered(column: Names | None, kept: Bools) -> tuple[NDArray[np.int64], tuple[str, ...]] | None:
    if column is None:
        return None
    held = np.asarray(column, dtype=object)[kept]
    names = sort_names(held)
    number = {name: position for position, name in enumerate(names)}
    return np.asarray([number[name] for name in held], dtype=np.int64), names


def names_of(text: str, key: str) -> tuple[str, ...]:
    """Return the names in a setting: separated by commas, or a JSON list for names that hold commas.

    Raises:
        SettingError: If a name stands twice, or the list cannot be read.

    Example:
        >>> names_of("cat, dog", "label-names"), names_of('["a,b", "c"]', "label-names")
        (('cat', 'dog'), ('a,b', 'c'))
    """
    names = listed_names(text, key)
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice:
        raise SettingError(f"{key} names {twice[0]!r} twice; name it once")
    return names


def categories_of(text: str) -> dict[str, tuple[str, ...]]:
    """Return the setting ``categories``: the values of every column listed; an empty list leaves them to the data.

    Raises:
        SettingError: If it is not a JSON object of lists of texts.

    Example:
        >>> categories_of('{"colour": ["red", "blue"], "size": []}')
        {'colour': ('red', 'blue'), 'size': ()}
    """
    if not text.strip():
        return {}
    listed = json_of(text, "categories")
    if not isinstance(listed, dict) or not all(isinstance(values, list) for values in listed.values()):
        raise SettingError(f'categories = {text!r} must be like {{"colour": ["red", "blue"]}}')
    names = {column: names_of(json.dumps(values), f"categories of {column}") for column, values in listed.items()}
    return {column: cells_of(values, f"categories of {column}") for column, values in names.items()}


def cells_of(names: Names, key: str) -> tuple[str, ...]:
    """Return given names of labels or categories as those of cells are, see :func:`as_text`.

    Raises:
        SettingError: If two of them are one.

    Example:
        >>> cells_of(["2.0", "cat"], "label-names")
        ('2', 'cat')
    """
    cells: dict[str, str] = {}
    for name in names:
        cell = as_text(name)
        if cell in cells:
            raise SettingError(
                f"{key} names both {cells[cell]!r} and {name!r}, which are one name, {cell!r}; name it once"
            )
        cells[cell] = name
    return tuple(cells)


def as_text(value: Any) -> str:
    """Return a cell as a name: "" for a missing one, 1 and 1.0 alike whether they are numbers or texts.

    Of texts only a fraction of zeros is dropped: 007, 1.5, 1.10 and 1e3 stay as they are.

    Example:
        >>> as_text(1.0), as_text(" cat "), as_text(None), as_text(float("nan")), as_text(float("inf"))
        ('1', 'cat', '', '', 'inf')
        >>> as_text("-3.00"), as_text("007.0"), as_text("1.10")
        ('-3', '007.0', '1.10')
    """
    if value is None or value != value:
        return ""
    if isinstance(value, float | np.floating) and value.is_integer():
        return str(int(value))
    text = str(value).strip()
    whole = WHOLE.fullmatch(text) if text.endswith("0") else None
    return text if whole is None else whole[1] or whole[2]


def shown(names: Names) -> str:
    """Return a few names for a message.

    Example:
        >>> shown(["a", "b"])
        'a, b'
    """
    return ", ".join([*names[:8], *["..."] * (len(names) > 8)])


def root_of(settings: DataSettings) -> Path:
    """Return where the user's data lie.

    Raises:
        SettingError: If no place is given, or nothing is there.
    """
    if not settings.data_root:
        raise SettingError(
            f"data set {settings.dataset} is your own: say where it lies with data-root, or on a device with "
            "data-path in its node-config"
        )
    root = Path(settings.data_root).expanduser()
    if not root.exists():
        raise SettingError(f"data-root = {settings.data_root!r} is not there; give the absolute path of your data")
    return root
