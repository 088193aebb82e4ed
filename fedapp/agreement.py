"""What all clients must lay out alike although each knows its own part only: labels, categories, words.

A client announces the names that it holds, as JSON; the server unites what all announce and sends every client the
union, as settings that it lays its data out by. Names come in one order: whole numbers by value, then by letter.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from typing import Any

from fedapp.config import SettingError

LABELS, CATEGORIES, COLUMNS, NUMBERS, WORDS = "label-names", "categories", "columns", "numbers", "words"
MOST_DIGITS = 100  # what is longer is no number, and int() refuses thousands of digits


def sort_names(names: Iterable[str]) -> tuple[str, ...]:
    """Return the distinct names, whole numbers by value first, then the others by letter.

    Example:
        >>> sort_names(["10", "dog", "9", "cat", "dog"])
        ('9', '10', 'cat', 'dog')
    """
    return tuple(sorted(set(names), key=lambda name: (not _is_number(name), _is_number(name) and int(name), name)))


def _is_number(name: str) -> bool:
    return name.isascii() and name.isdigit() and len(name) <= MOST_DIGITS


def announce(
    labels: Iterable[str],
    categories: Mapping[str, Iterable[str]],
    columns: Iterable[str],
    numbers: Iterable[str] = (),
    words: Iterable[str] = (),
) -> str:
    """Return what a client announces; "" if there is nothing.

    Args:
        labels: Names of the classes it holds; none if the user has named them.
        categories: What it holds in columns with categories; none if the user has listed them all.
        columns: Its input columns in order; they must be the same on all clients.
        numbers: Those in which it holds numbers.
        words: Those in which it holds categories or texts; on no other client they may hold numbers.

    Example:
        >>> announce(["dog", "cat"], {}, [])
        '{"label-names": ["cat", "dog"]}'
    """
    said: dict[str, Any] = {
        LABELS: sort_names(labels),
        CATEGORIES: {column: sort_names(values) for column, values in categories.items()},
        COLUMNS: list(columns),
        NUMBERS: list(numbers),
        WORDS: list(words),
    }
    filled = {key: value for key, value in said.items() if value}
    return json.dumps(filled) if filled else ""


def unite(announced: Mapping[str, str]) -> str:
    r"""Return the settings that all clients lay their data out by, as a JSON object; "" if none announces anything.

    Args:
        announced: What each client announces.

    Raises:
        SettingError: If a client's announcement cannot be read, or input columns differ, by name or by kind.

    Example:
        >>> unite({"a": announce(["dog"], {}, []), "b": announce(["cat"], {}, [])})
        '{"label-names": "[\\"cat\\", \\"dog\\"]"}'
    """
    said = {client: _read(client, text) for client, text in announced.items() if text}
    layouts = {client: one[COLUMNS] for client, one in said.items() if COLUMNS in one}
    first = next(iter(layouts), "")
    for client, columns in layouts.items():
        if columns != layouts[first]:
            raise SettingError(
                f"clients {first} and {client} have other input columns ({', '.join(layouts[first])}; "
                f"{', '.join(columns)}); name those that all have with columns"
            )
    _check_kinds(said)
    labels = sort_names(name for one in said.values() for name in one.get(LABELS, []))
    values: dict[str, list[str]] = {}
    for one in said.values():
        for column, names in one.get(CATEGORIES, {}).items():
            values.setdefault(column, []).extend(names)
    settings = {}
    if labels:
        settings[LABELS] = json.dumps(labels)
    if values:
        settings[CATEGORIES] = json.dumps({column: sort_names(names) for column, names in sorted(values.items())})
    return json.dumps(settings) if settings else ""


def _check_kinds(said: Mapping[str, Mapping[str, Any]]) -> None:
    """Check that no column holds numbers on one client and words on another."""
    numbers = {column: client for client, one in said.items() for column in one.get(NUMBERS, [])}
    for client, one in said.items():
        for column in filter(numbers.__contains__, one.get(WORDS, [])):
            raise SettingError(
                f"column {column!r} holds numbers on client {numbers[column]} and words on client {client}; mend it, "
                f'make it one with categories everywhere (categories = {{"{column}": []}}), or leave it out of columns'
            )


def settled(agreed: str) -> dict[str, Any]:
    """Return the agreed settings by key.

    Example:
        >>> settled('{"label-names": "cat,dog"}'), settled("")
        ({'label-names': 'cat,dog'}, {})
    """
    settings: dict[str, Any] = json.loads(agreed) if agreed else {}
    return settings


def _read(client: str, text: str) -> dict[str, Any]:
    """Read what a client announces; nothing that comes over the wire is trusted."""
    try:
        said = json.loads(text)
        lists = [*(said.get(key, []) for key in (LABELS, COLUMNS, NUMBERS, WORDS)), *said.get(CATEGORIES, {}).values()]
        if not all(isinstance(name, str) for names in lists for name in names):
            raise ValueError("names must be texts")
    except (ValueError, TypeError, AttributeError) as error:
        raise SettingError(f"client {client} announces what cannot be read ({error}); update its fedapp") from None
    return dict(said)
