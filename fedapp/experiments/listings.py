"""What there is: methods, models, data sets and settings, as rows for people and for programs."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from typing import Any

Row = dict[str, Any]


def methods() -> list[Row]:
    """Return every method: what it does, what it needs of the clients, what travels, and its parameters."""
    from fedapp.config import defaults
    from fedapp.strategies import METHODS

    return [
        {
            "name": method.name,
            "summary": method.summary,
            "needs": [need for need in method.strategy.requires if need != "equal-classes"] or ["any models"],
            "travels": method.travels,
            "paper": method.paper,
            "params": defaults(method.strategy.params_type),
        }
        for method in METHODS.values()
    ]


def models() -> list[Row]:
    """Return every model, then every group of models."""
    from fedapp.models import GROUPS, MODELS

    single = [{"name": name, "summary": entry.summary, "takes": list(entry.takes)} for name, entry in MODELS.items()]
    return single + [{"name": name, "summary": "group", "members": list(members)} for name, members in GROUPS.items()]


def datasets() -> list[Row]:
    """Return every data set."""
    from fedapp.datasets import DATASETS

    return [
        {"name": name, "summary": s.summary, "classes": s.classes, "shape": list(s.shape), "domains": s.has_domains}
        for name, s in DATASETS.items()
    ]


def presets() -> list[Row]:
    """Return every data protocol of a paper: its clients, what it copies that is questionable, and its sibling."""
    from fedapp.datasets.presets import PRESETS

    return [
        {"name": name, "summary": p.summary, "clients": p.clients, "habits": list(p.habits), "clean": p.clean}
        for name, p in PRESETS.items()
    ]


def settings() -> list[Row]:
    """Return every setting with its default, its choices and what it means."""
    from fedapp.config import RunConfig, defaults, keys

    values = defaults(RunConfig)
    return [
        {"name": key, "default": values[key], "choices": list(f.metadata["choices"]), "summary": f.metadata["doc"]}
        for key, f in keys(RunConfig).items()
    ]


def show(rows: Iterable[Row], as_json: bool, say: Callable[[str], Any]) -> None:
    """Print rows: one JSON document, or a line each."""
    if as_json:
        say(json.dumps(list(rows), indent=2))
        return
    for row in rows:
        say(line(row))


def line(row: Row) -> str:
    """Return one row as one line.

    Example:
        >>> line({"name": "seed", "default": 0, "choices": [], "summary": "seed of weights"})
        'seed             seed of weights; default: 0'
    """
    more = []
    for key, value in row.items():
        if key in ("name", "summary", "paper") or value in ([], {}, ""):
            continue
        if isinstance(value, dict):
            value = " ".join(f"{name}={item}" for name, item in value.items())
        elif isinstance(value, list):
            value = ", ".join(map(str, value))
        more.append(f"{key}: {value}")
    paper = f" [{row['paper']}]" if "paper" in row else ""
    return f"{row['name']:16} {'; '.join([row['summary'], *more])}{paper}"
