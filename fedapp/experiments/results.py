"""The cells of a sweep, or the runs of any folder, as their records tell: planned, done, broken. Imports no torch."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fedapp.config import RunConfig, SettingError, closest, defaults
from fedapp.experiments import records
from fedapp.experiments.execution import STATE, read_state
from fedapp.experiments.grid import Expected, HeatMap, matches
from fedapp.experiments.records import PARAMS, Run

NOT_VARIED = ("seed", "out", "run-name", "resume", "track", "data-root", PARAMS)


@dataclass(frozen=True)
class Entry:
    """One planned run and what became of it.

    Attributes:
        name: Name of its folder.
        seed: Its training seed.
        settings: What the plan gives; all settings where there is no plan.
        status: "waiting", "running", "done" or "broken".
        cause: Why it broke.
        run: Its records, if it is done.
        varied: Settings that the plan varies: what it does not give of them reads the same before and after the run.
    """

    name: str
    seed: int
    settings: dict[str, Any]
    status: str
    cause: str
    run: Run | None
    varied: tuple[str, ...] = ()

    def value(self, key: str) -> Any:
        """Return a setting: as planned, else as recorded, else its default; "" if it has none."""
        if key == "seed":
            return self.seed
        recorded = self.run.settings if self.run and key not in self.varied else {}
        return self.settings.get(key, recorded.get(key, _DEFAULTS.get(key, "")))


@dataclass(frozen=True)
class Results:
    """All of a folder.

    Attributes:
        folder: The folder.
        title: One line for headings.
        varied: Settings that vary.
        entries: The planned runs.
        expected: Numbers to stand beside ours.
        heat_map: The figure over two settings, if one was asked for.
        overridden: Settings that were given in place of the file's.
    """

    folder: Path
    title: str
    varied: tuple[str, ...]
    entries: tuple[Entry, ...]
    expected: tuple[Expected, ...] = ()
    heat_map: HeatMap | None = None
    overridden: Mapping[str, Any] | None = None


@dataclass(frozen=True)
class Group:
    """Entries that differ in nothing named but the seed.

    Attributes:
        key: The values of the settings that the groups are made by.
        entries: Its entries.
        mixed: Settings that vary within it all the same, and are averaged over.
    """

    key: tuple[Any, ...]
    entries: tuple[Entry, ...]
    mixed: tuple[str, ...]

    def numbers(self, metric: str) -> list[float | None]:
        """Return one number of every finished run."""
        return [records.METRICS[metric].value(entry.run) for entry in self.entries if entry.run]


def load(folder: Path) -> Results:
    """Read a sweep, a comparison, or any folder with runs below it.

    Raises:
        SettingError: If there is no run, or the records cannot be read.
    """
    if (folder / STATE).is_file():
        return _of_sweep(folder)
    if not folder.is_dir():
        raise SettingError(f"{folder} is no folder; give that of a sweep, of a comparison or of several runs")
    paths = [folder] if records.finished(folder) else sorted(path for path in folder.iterdir() if path.is_dir())
    runs = [records.read(path) for path in paths if records.finished(path)]
    if not runs:
        raise SettingError(f"{folder} holds neither {STATE} nor a finished run")
    entries = tuple(Entry(run.folder.name, run.seed, run.settings, "done", "", run) for run in runs)
    return Results(folder, folder.resolve().name, _varying(runs), entries)


def group(results: Results, by: Sequence[str] = ()) -> list[Group]:
    """Return the entries grouped by settings, in the order of the plan.

    Args:
        results: The entries.
        by: Settings that tell groups apart; all that vary if empty.

    Raises:
        SettingError: If a setting is unknown to all entries.
    """
    chosen = tuple(by) or results.varied or ("method",)
    known = {*_DEFAULTS, *(key for entry in results.entries for key in entry.settings)}
    known |= {key for entry in results.entries if entry.run for key in entry.run.settings}
    for key in chosen:
        if key not in known:
            raise SettingError(f"no run has a setting {key!r}; {closest(key, known)}")
    found: dict[tuple[Any, ...], list[Entry]] = {}
    for entry in results.entries:
        found.setdefault(tuple(entry.value(key) for key in chosen), []).append(entry)
    return [Group(key, tuple(entries), _mixed(results.varied, entries)) for key, entries in found.items()]


def expected_of(results: Results, group: Group, metric: str) -> Expected | None:
    """Return the number that stands beside a group's: the first that all its entries match."""
    for candidate in results.expected:
        if candidate.metric == metric and all(_matches(entry, candidate.match) for entry in group.entries):
            return candidate
    return None


def warnings(results: Results) -> list[str]:
    """Return what a reader of these results must know: broken and missing runs, other settings, unequal data."""
    found = [
        f"broken: {entry.name}: {_first_line(entry.cause)}" for entry in results.entries if entry.status == "broken"
    ]
    waiting = sum(entry.run is None and entry.status != "broken" for entry in results.entries)
    if waiting:
        found.append(f"{waiting} of {len(results.entries)} runs are not done yet")
    if results.overridden:
        changed = " ".join(f"{key}={value}" for key, value in results.overridden.items())
        found.append(f"run with settings other than the file's: {changed}")
    alike: dict[tuple[Any, ...], list[Run]] = {}
    for entry in results.entries:
        if entry.run:
            alike.setdefault(records.data_settings(entry.run), []).append(entry.run)
    for runs in alike.values():
        found += [f"clients held other data: {line}" for line in records.data_differences(runs)]
    return found


# ---- parts ---------------------------------------------------------------------------------------

_DEFAULTS = defaults(RunConfig)


def _of_sweep(folder: Path) -> Results:
    state = read_state(folder)
    try:
        varied = tuple(state["varied"])
        entries = tuple(_entry(folder, cell, varied) for cell in state["cells"])
        heat_map = HeatMap(**state["heat-map"]) if state["heat-map"] else None
        expected = tuple(Expected(**entry) for entry in state["expected"])
        return Results(folder, state["title"], tuple(state["varied"]), entries, expected, heat_map, state["overridden"])
    except (KeyError, TypeError) as error:
        raise SettingError(f"{folder / STATE} cannot be read: {error!r}") from error


def _entry(folder: Path, cell: Mapping[str, Any], varied: tuple[str, ...]) -> Entry:
    run = None
    if cell["status"] == "done":
        with contextlib.suppress(SettingError):  # a run that was moved away is not done
            run = records.read(folder / cell["name"])
    status = "waiting" if cell["status"] == "done" and run is None else cell["status"]
    return Entry(cell["name"], cell["seed"], cell["settings"], status, cell["cause"], run, varied)


def _varying(runs: Sequence[Run]) -> tuple[str, ...]:
    keys = dict.fromkeys(key for run in runs for key in run.settings if key not in NOT_VARIED)
    return tuple(key for key in keys if len({str(run.settings.get(key, "")) for run in runs}) > 1)


def _mixed(varied: Sequence[str], entries: Sequence[Entry]) -> tuple[str, ...]:
    return tuple(key for key in varied if len({str(entry.value(key)) for entry in entries}) > 1)


def _matches(entry: Entry, match: Mapping[str, Any]) -> bool:
    return matches({key: value for key in match if (value := entry.value(key)) != ""}, match)


def _first_line(text: str) -> str:
    return text.splitlines()[0] if text else "unknown cause"
