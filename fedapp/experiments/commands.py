"""What ``fedapp compare``, ``sweep``, ``table`` and ``plot`` do; the command line only names their options."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import yaml

from fedapp.config import RunConfig, SettingError, join_pairs, lookup, parse
from fedapp.experiments import execution, grid, results, tables
from fedapp.experiments.execution import Say
from fedapp.experiments.records import PARAMS
from fedapp.runner import RunFailedError

WIDTH = 160


def settings_of(words: Sequence[str], file: str | None = None) -> dict[str, Any]:
    """Return the settings of a YAML file and of words key=value; the words win.

    Args:
        words: Settings as on the command line.
        file: A YAML mapping of settings; those of the method as text or as a mapping.

    Raises:
        SettingError: If the file cannot be read, or a word is not of the form key=value.

    Example:
        >>> settings_of(["seed=3", "method-params.alignment=rcsa"])
        {'seed': '3', 'method-params': 'alignment=rcsa'}
    """
    merged = grid.merge(_mapping(file) if file else {}, _pairs(words))
    params = {key.removeprefix(f"{PARAMS}."): value for key, value in merged.items() if key.startswith(f"{PARAMS}.")}
    flat = {key: value for key, value in merged.items() if not key.startswith(f"{PARAMS}.")}
    return {**flat, PARAMS: join_pairs(params)} if params else flat


def seeds_of(text: str | None) -> tuple[int, ...] | None:
    """Return the seeds of a text, None for none.

    Raises:
        SettingError: If it is not a list of whole numbers.

    Example:
        >>> seeds_of("0, 1,2"), seeds_of(None)
        ((0, 1, 2), None)
    """
    if text is None:
        return None
    try:
        seeds = tuple(int(word) for word in text.split(","))
    except ValueError:
        raise SettingError(f"--seeds takes whole numbers separated by commas, got {text!r}") from None
    if min(seeds) < 0:
        raise SettingError(f"--seeds must be at least 0, got {text!r}")
    return seeds


def compare(
    methods: Sequence[str],
    values: Mapping[str, Any],
    clients: int,
    seeds: Sequence[int],
    engine: str = "flower",
    name: str = "",
    say: Say = print,
) -> None:
    """Compare methods and show the tables.

    Raises:
        SettingError: If a setting is wrong.
        RunFailedError: If a run broke or clients held other data, after everything else is done and written.
    """
    from fedapp.experiments import comparison

    config = parse(RunConfig, values)
    found = comparison.compare(methods, config, clients, seeds=seeds, engine=engine, name=name, say=say)
    show(comparison.table(found))
    if len(found.labels) > 1:
        show(comparison.differences(found))
    say(f"Results: {found.folder}")
    if (found.folder / "report.html").exists():
        say(f"Report:  {found.folder / 'report.html'}")
    _fail_if_broken(found.broken, found.folder)
    if not found.same_data:
        raise RunFailedError("the clients did not hold the same data in all runs: nothing here can be compared")


def sweep(
    file: str,
    *,
    words: Sequence[str] = (),
    seeds: Sequence[int] | None = None,
    out: str = "fedapp-runs",
    engine: str | None = None,
    only_list: bool = False,
    say: Say = print,
) -> None:
    """Run what a file's grid spans and is not done yet, and show the table.

    Raises:
        SettingError: If the file or a setting is wrong; nothing has run then.
        RunFailedError: If cells broke, naming them, after all others are done.
    """
    plan = grid.load(grid.find(file), _pairs(words), seeds)
    plan = replace(plan, engine=lookup(grid.ENGINES, engine, "engine")) if engine else plan
    folder = Path(out).expanduser().resolve() / plan.name
    if only_list:
        for cell in plan.cells:
            say(f"{'done   ' if execution.is_done(folder / cell.name, cell) else 'waiting'} {cell.name}")
        return
    try:
        outcomes = execution.execute(plan, folder, say)
    except KeyboardInterrupt:
        say("interrupted; the same command goes on from here")
        raise
    table(str(folder), say=say)
    _fail_if_broken(execution.broken(outcomes), folder)


def table(
    folder: str,
    by: Sequence[str] = (),
    columns: Sequence[str] = (),
    metrics: Sequence[str] = ("best",),
    say: Say = print,
) -> None:
    """Show the table of a folder, and write it as table.md and table.csv.

    Raises:
        SettingError: If there is nothing to read, or for an unknown setting or metric.
    """
    found = results.load(Path(folder))
    shown = [tables.pivot(found, by, columns, metric) for metric in metrics] if columns else []
    shown = shown or [tables.long_table(found, by, metrics)]
    for one in shown:
        show(one)
    for path in tables.write(shown, found, (*by, *columns) if by else (), metrics):
        say(f"Written: {path}")


def plot(folder: str, by: Sequence[str] = (), metric: str = "best", say: Say = print) -> None:
    """Draw the figures of a folder.

    Raises:
        SettingError: If there is nothing to draw, or for an unknown setting or metric.
    """
    from fedapp.experiments import plots

    for path in plots.plot(results.load(Path(folder)), by, metric):
        say(f"Written: {path}")


def show(table: tables.Table) -> None:
    """Print a table to the screen."""
    from rich.console import Console
    from rich.table import Table

    shown = Table(*table.header, title=table.title, title_justify="left")
    for line in table.body:
        shown.add_row(*line)
    console = Console(width=None if sys.stdout.isatty() else WIDTH, markup=False, highlight=False)
    console.print(shown)
    for note in table.notes:
        console.print(f"  {note}", soft_wrap=True)


# ---- parts ---------------------------------------------------------------------------------------


def _pairs(words: Sequence[str]) -> dict[str, str]:
    pairs = {}
    for word in words:
        key, equals, value = word.partition("=")
        if not equals:
            raise SettingError(f"--set takes key=value, got {word!r}")
        pairs[key] = value
    return pairs


def _mapping(file: str) -> dict[str, Any]:
    try:
        loaded = yaml.safe_load(Path(file).read_text(encoding="utf-8"))
    except (OSError, ValueError, yaml.YAMLError) as error:
        raise SettingError(f"{file} cannot be read: {error}") from error
    if not isinstance(loaded, Mapping):
        raise SettingError(f"{file} must hold a mapping of settings, got {loaded!r}")
    return {str(key): value for key, value in loaded.items()}


def _fail_if_broken(causes: Mapping[str, str], folder: Path) -> None:
    if causes:
        lines = [f"{name}: {cause.splitlines()[0]}" for name, cause in causes.items()]
        many = f"{len(lines)} runs" if len(lines) > 1 else "1 run"
        raise RunFailedError("\n  ".join([f"{many} in {folder} broke (traces beside them):", *lines]))
