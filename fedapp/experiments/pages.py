"""What the pages under results/ share: tables, accuracies in few words, and what ran where."""

from __future__ import annotations

import os
import platform
import statistics
import subprocess
from collections.abc import Sequence
from importlib.metadata import version
from pathlib import Path

TAIL = 5


def summed_up(values: Sequence[float]) -> str:
    """Return best, last and the mean of the last ``TAIL`` in per cent.

    Example:
        >>> summed_up([0.5, 0.75, 0.625])
        '75.0 / 62.5 / 62.5'
    """
    best, last, tail = max(values), values[-1], statistics.mean(values[-TAIL:])
    return " / ".join(f"{100 * value:.1f}" for value in (best, last, tail))


def table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Return a Markdown table.

    Example:
        >>> print(table(["a", "b"], [["1", "2"]]))
        | a | b |
        | --- | --- |
        | 1 | 2 |
    """
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def machine() -> str:
    """Return what ran it: processors and their kind."""
    return f"{os.cpu_count()} processors ({platform.machine()}), one thread a client, torch {version('torch')}"


def commit() -> str:
    """Return the commit of the sources, "unknown" outside a clone."""
    found = subprocess.run(["git", "rev-parse", "--short", "HEAD"], cwd=Path(__file__).parent, capture_output=True,
                           text=True, check=False)  # fmt: skip
    return found.stdout.strip() or "unknown"


def notes(page: Path) -> str:
    """Return the remarks beside a page, the text of ``NAME.notes.md``; "" if there are none."""
    path = page.with_suffix(".notes.md")
    return path.read_text(encoding="utf-8") if path.is_file() else ""
