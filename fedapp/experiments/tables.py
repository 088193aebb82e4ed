"""Tables over seeds: ours beside the numbers that a file expects, as markdown, CSV and on the screen. No torch."""

from __future__ import annotations

import csv
import io
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fedapp.config import SettingError, lookup
from fedapp.experiments import results
from fedapp.experiments.execution import replace_text
from fedapp.experiments.records import METRICS
from fedapp.experiments.results import Group, Results
from fedapp.experiments.statistics import Spread, spread

PLUS_MINUS = "±: sample standard deviation over seeds (n - 1)"


@dataclass(frozen=True)
class Row:
    """One metric of one group.

    Attributes:
        key: Values of the settings that groups are made by.
        metric: Name of the metric.
        done: Finished runs.
        planned: All runs.
        ours: Mean and spread over the finished runs that measured it.
        theirs: The expected number.
        theirs_std: Its spread, if reported.
        source: Where the expected number stands.
        mixed: Settings that were averaged over.
    """

    key: tuple[Any, ...]
    metric: str
    done: int
    planned: int
    ours: Spread | None
    theirs: float | None = None
    theirs_std: float | None = None
    source: str = ""
    mixed: tuple[str, ...] = ()

    @property
    def difference(self) -> float | None:
        """Ours minus theirs."""
        return None if self.ours is None or self.theirs is None else self.ours.mean - self.theirs


@dataclass(frozen=True)
class Table:
    """A table to be shown.

    Attributes:
        title: Its heading.
        header: The columns.
        body: Text by row and column.
        notes: Lines below it.
    """

    title: str
    header: tuple[str, ...]
    body: tuple[tuple[str, ...], ...]
    notes: tuple[str, ...] = ()


def rows(found: Results, by: Sequence[str] = (), metrics: Sequence[str] = ("best",)) -> list[Row]:
    """Return the numbers of every group.

    Args:
        found: The runs.
        by: Settings that tell groups apart; all that vary if empty.
        metrics: Names of ``METRICS``.

    Raises:
        SettingError: For an unknown metric or setting.
    """
    for metric in metrics:
        lookup(METRICS, metric, "metric")
    return [_row(found, group, metric) for metric in metrics for group in results.group(found, by)]


def long_table(found: Results, by: Sequence[str] = (), metrics: Sequence[str] = ("best",)) -> Table:
    """Return a table with a line for each group and metric; expected numbers and differences beside ours."""
    chosen = by or found.varied or ("method",)
    lines = rows(found, by, metrics)
    expected = any(row.theirs is not None for row in lines)
    header = (*(short(key) for key in chosen), "seeds", "metric", "ours")
    header += ("expected", "difference", "source") if expected else ()
    body = []
    for row in lines:
        cells = [*map(shown, row.key), f"{row.done}/{row.planned}", METRICS[row.metric].label, _ours(row)]
        if expected:
            cells += [_theirs(row), _signed(row.difference, METRICS[row.metric].digits), row.source]
        body.append(tuple(cells))
    return Table(found.title, header, tuple(body), _notes(found, lines))


def pivot(found: Results, by: Sequence[str], columns: Sequence[str], metric: str = "best") -> Table:
    """Return a table as papers print it: rows by some settings, columns by others; expected numbers in brackets.

    Args:
        found: The runs.
        by: Settings of the rows; all that vary and are not in ``columns`` if empty.
        columns: Settings of the columns.
        metric: A name of ``METRICS``.

    Raises:
        SettingError: For an unknown metric or setting, or one that is to be in rows and columns.
    """
    if both := set(by) & set(columns):
        raise SettingError(f"{', '.join(sorted(both))} cannot make rows and columns at once; give it to one")
    chosen = tuple(by) or tuple(key for key in found.varied if key not in columns)
    lines = rows(found, (*chosen, *columns), (metric,))
    split = len(chosen)
    heads = list(dict.fromkeys(row.key[split:] for row in lines))
    body: dict[tuple[Any, ...], dict[tuple[Any, ...], str]] = {}
    for row in lines:
        beside = f" [{_theirs(row)}]" if row.theirs is not None else ""
        body.setdefault(row.key[:split], {})[row.key[split:]] = _ours(row) + beside
    header = (*(short(key) for key in chosen), *(_heading(columns, head) for head in heads))
    text = tuple((*map(shown, key), *(cells.get(head, "") for head in heads)) for key, cells in body.items())
    notes = _notes(found, lines)
    notes += ("[ ]: the expected number",) if any(row.theirs is not None for row in lines) else ()
    return Table(f"{found.title}: {METRICS[metric].label}", header, text, notes)


def markdown(table: Table) -> str:
    """Return a table as markdown; a bar within a cell is escaped.

    Example:
        >>> print(markdown(Table("T", ("a", "b"), (("1", "2"),), ("note",))))
        ## T
        <BLANKLINE>
        | a | b |
        | --- | --- |
        | 1 | 2 |
        <BLANKLINE>
        - note
        <BLANKLINE>
    """
    lines = [table.header, tuple("---" for _ in table.header), *table.body]
    text = "\n".join("| " + " | ".join(cell.replace("|", "\\|") for cell in line) + " |" for line in lines)
    notes = "\n".join(f"- {note}" for note in table.notes)
    return f"## {table.title}\n\n{text}\n" + (f"\n{notes}\n" if notes else "")


def comma_separated(found: Results, by: Sequence[str] = (), metrics: Sequence[str] = ("best",)) -> str:
    """Return the numbers as CSV, in full precision; what is not known is empty."""
    sink = io.StringIO()
    writer = csv.writer(sink, lineterminator="\n")
    chosen = tuple(by) or found.varied or ("method",)
    numbers = ("metric", "mean", "std", "n", "planned", "expected", "expected_std", "difference", "source", "mixed")
    writer.writerow((*chosen, *numbers))
    for row in rows(found, by, metrics):
        ours = (row.ours.mean, row.ours.std, row.ours.n) if row.ours else (None, None, 0)
        theirs = (row.theirs, row.theirs_std, row.difference, row.source)
        writer.writerow((*row.key, row.metric, *ours, row.planned, *theirs, " ".join(row.mixed)))
    return sink.getvalue()


def write(written: Sequence[Table], found: Results, by: Sequence[str], metrics: Sequence[str]) -> list[Path]:
    """Write table.md and table.csv beside the runs, in place of earlier ones."""
    paths = [found.folder / "table.md", found.folder / "table.csv"]
    replace_text(paths[0], "\n".join(map(markdown, written)))
    replace_text(paths[1], comma_separated(found, by, metrics))
    return paths


def with_spread(value: Spread | None, digits: int = 2) -> str:
    """Return mean ± std as text.

    Example:
        >>> with_spread(Spread(88.028, 0.131, 3)), with_spread(Spread(1.0, None, 1), 1), with_spread(None)
        ('88.03 ± 0.13', '1.0', '-')
        >>> with_spread(Spread(1.69, 0.0, 3))  # a count that no seed changes
        '1.69'
    """
    if value is None:
        return "-"
    return f"{value.mean:.{digits}f}" + (f" ± {value.std:.{digits}f}" if value.std else "")


def shown(value: Any) -> str:
    """Return a setting's value for a table or figure.

    Example:
        >>> shown(10.0), shown(0.1), shown("gcsa"), shown(True)
        ('10', '0.1', 'gcsa', 'True')
    """
    return f"{value:g}" if isinstance(value, float) else str(value)


def short(key: str) -> str:
    """Return a setting's name for a heading."""
    return key.removeprefix("method-params.")


# ---- parts ---------------------------------------------------------------------------------------


def _row(found: Results, group: Group, metric: str) -> Row:
    done = sum(entry.run is not None for entry in group.entries)
    row = (group.key, metric, done, len(group.entries), spread(group.numbers(metric)))
    theirs = results.expected_of(found, group, metric)
    if theirs is None:
        return Row(*row, mixed=group.mixed)
    return Row(*row, theirs.value, theirs.std, theirs.source, group.mixed)


def _ours(row: Row) -> str:
    return with_spread(row.ours, METRICS[row.metric].digits)


def _theirs(row: Row) -> str:
    if row.theirs is None:
        return ""
    return with_spread(Spread(row.theirs, row.theirs_std, 1), METRICS[row.metric].digits)


def _signed(value: float | None, digits: int) -> str:
    return "" if value is None else f"{value:+.{digits}f}"


def _heading(columns: Sequence[str], head: Sequence[Any]) -> str:
    return ", ".join(f"{short(key)} {shown(value)}" for key, value in zip(columns, head, strict=True))


def _notes(found: Results, lines: Sequence[Row]) -> tuple[str, ...]:
    notes = [PLUS_MINUS] if any(row.ours and row.ours.std is not None for row in lines) else []
    mixed = dict.fromkeys(key for row in lines for key in row.mixed)
    if mixed:
        notes.append(f"means and ± also go over different values of {', '.join(mixed)}: tell them apart with --by")
    return (*notes, *results.warnings(found))
