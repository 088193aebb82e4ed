"""Runs the cells of a sweep into one folder: skips what is done, goes on after a broken cell, survives being killed.

``sweep.json`` holds the plan and what became of each cell; it is replaced atomically. The truth about a finished cell
is its own folder: it is done when its summary is there and its recorded settings are the wanted ones.
"""

from __future__ import annotations

import contextlib
import json
import os
import time
import traceback
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import Any

from fedapp import runner
from fedapp.config import RunConfig, SettingError, flatten
from fedapp.experiments import records
from fedapp.experiments.grid import PLACES, Cell, Sweep, same
from fedapp.experiments.records import PARAMS

STATE = "sweep.json"
FORMAT = 1
SECONDS_BETWEEN_LINES = 10.0
NOT_COMPARED = (*PLACES, "out", "run-name", "resume", PARAMS)

Say = Callable[[str], None]


@dataclass
class Outcome:
    """What became of one cell.

    Attributes:
        status: "waiting", "running", "done" or "broken".
        cause: Why it broke.
        seconds: How long it ran; of a continued run, since it went on.
        continued: Whether it went on from a checkpoint of a run that was cut.
    """

    status: str = "waiting"
    cause: str = ""
    seconds: float = 0.0
    continued: bool = False


@dataclass
class State:
    """The plan and the outcomes, as ``sweep.json`` holds them."""

    sweep: Sweep
    outcomes: dict[str, Outcome] = field(default_factory=dict)
    kept: list[dict[str, Any]] = field(default_factory=list)

    def write(self, folder: Path) -> None:
        """Replace ``sweep.json`` atomically."""
        text = json.dumps(self._described(), indent=1, allow_nan=False)
        replace_text(folder / STATE, text + "\n")

    def _described(self) -> dict[str, Any]:
        sweep = self.sweep
        return {
            "format": FORMAT,
            "name": sweep.name,
            "title": sweep.title,
            "engine": sweep.engine,
            "varied": list(sweep.varied),
            "overridden": sweep.overridden,
            "expected": [asdict(entry) for entry in sweep.expected],
            "heat-map": asdict(sweep.heat_map) if sweep.heat_map else None,
            "cells": [
                {
                    "name": cell.name,
                    "group": cell.group,
                    "seed": cell.config.seed,
                    **asdict(self.outcomes.get(cell.name, Outcome())),
                    "settings": cell.settings,
                }
                for cell in sweep.cells
            ]
            + self.kept,
        }


def execute(sweep: Sweep, folder: Path, say: Say) -> dict[str, Outcome]:
    """Run every cell that is not done yet and return what became of each.

    Args:
        sweep: The plan.
        folder: The sweep's folder; a cell's run folder lies in it under the cell's name.
        say: Called with one line of progress after another.

    Raises:
        SettingError: If the folder cannot be written, or another process is at work in it.
    """
    from fedapp.checkpoints import alone_in

    _make(folder)
    with alone_in(folder), _Engine(sweep.engine) as engine:
        state = State(
            sweep, {name: Outcome(**was) for name, was in previous(folder).items()}, _other_seeds(sweep, folder)
        )
        say(f"{sweep.name}: {len(sweep.cells)} runs into {folder}")
        for index, cell in enumerate(sweep.cells, start=1):
            label = f"[{index}/{len(sweep.cells)}] {cell.name}"
            before = state.outcomes.get(cell.name, Outcome())
            if before.status != "broken" and is_done(folder / cell.name, cell):
                state.outcomes[cell.name] = replace(before, status="done", cause="")
                say(f"{label}: done before, skipped")
                continue
            continued = can_continue(folder / cell.name, cell, before)
            state.outcomes[cell.name] = Outcome("running", continued=continued)
            state.write(folder)
            state.outcomes[cell.name] = _attempt(engine, cell, folder, continued, partial(_say, say, label))
            state.write(folder)
        state.write(folder)
        return {cell.name: state.outcomes[cell.name] for cell in sweep.cells}


def _other_seeds(sweep: Sweep, folder: Path) -> list[dict[str, Any]]:
    """Return the cells of earlier calls that differ from today's in their seed alone; they stay in the tables."""
    if not (folder / STATE).is_file():
        return []
    names, groups = {cell.name for cell in sweep.cells}, {cell.group for cell in sweep.cells}
    return [cell for cell in read_state(folder)["cells"] if cell["name"] not in names and cell["group"] in groups]


def is_done(folder: Path, cell: Cell) -> bool:
    """Return whether a folder holds the finished run of a cell, with records that can be read."""
    try:
        return not other_settings(records.read(folder).settings, cell)
    except SettingError:
        return False


def can_continue(folder: Path, cell: Cell, before: Outcome) -> bool:
    """Return whether the run of a cell was cut after a checkpoint; one that broke when continued starts anew."""
    from fedapp import checkpoints

    if before.status == "broken" and before.continued:
        return False
    try:
        alike = not other_settings(records.begun(folder)[0], cell)
    except SettingError:
        return False
    return alike and bool(checkpoints.found(folder / "checkpoints")) and not (folder / "summary.json").exists()


def other_settings(settings: Mapping[str, Any], cell: Cell) -> list[str]:
    """Return which settings of a run are not the cell's; a setting that is newer than the run has its default."""
    wanted: dict[str, Any] = {**flatten(cell.config), **cell.settings}
    default = flatten(RunConfig())
    found = []
    for key, value in wanted.items():
        recorded = settings.get(key, default.get(key))
        if key not in NOT_COMPARED and not same(recorded, value):
            found.append(f"{key} is {recorded!r}, not {value!r}")
    return found


def previous(folder: Path) -> dict[str, dict[str, Any]]:
    """Return what became of each cell until now, as far as ``sweep.json`` knows.

    Raises:
        SettingError: If the file is there but cannot be read.
    """
    if not (folder / STATE).is_file():
        return {}
    names = Outcome.__dataclass_fields__
    cells = read_state(folder)["cells"]
    return {cell["name"]: {name: cell[name] for name in names if name in cell} for cell in cells}


def read_state(folder: Path) -> dict[str, Any]:
    """Return the contents of ``sweep.json``.

    Raises:
        SettingError: If it is not there, or not ours.
    """
    try:
        state: dict[str, Any] = json.loads((folder / STATE).read_text(encoding="utf-8"))
        if state["format"] == FORMAT and isinstance(state["cells"], list):
            return state
        raise SettingError(f"{folder / STATE} has format {state['format']}, this version reads {FORMAT}")
    except (OSError, ValueError, KeyError, TypeError) as error:
        if isinstance(error, SettingError):
            raise
        raise SettingError(f"{folder / STATE} cannot be read: {error}") from error


def broken(outcomes: Mapping[str, Outcome]) -> dict[str, str]:
    """Return the cause of every broken cell."""
    return {name: outcome.cause for name, outcome in outcomes.items() if outcome.status == "broken"}


def replace_text(path: Path, text: str) -> None:
    """Write a file so that a reader, or a crash, finds the old text or the new one, never a part."""
    part = path.with_name(f".{path.name}.{os.getpid()}")
    with part.open("w", encoding="utf-8") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())
    part.replace(path)


# ---- parts ---------------------------------------------------------------------------------------


class _Engine:
    """Runs cells one after the other; Flower's SuperLink is started when needed, and anew after a failure."""

    def __init__(self, name: str) -> None:
        self.name = name
        self._stack = contextlib.ExitStack()
        self._link: runner.SuperLink | None = None

    def __enter__(self) -> _Engine:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stop()

    def run(self, config: RunConfig, clients: int, progress: runner.Progress) -> Path:
        if self.name == "local":
            return runner.run_local(config, clients, progress)
        if self._link is None:
            self._link = self._stack.enter_context(runner.superlink())
        try:
            return runner.run_on(self._link, config, clients, progress)
        except Exception:
            self._stop()  # a dead worker poisons the pool of every run after it
            raise

    def _stop(self) -> None:
        self._link = None
        self._stack.close()


def _attempt(engine: _Engine, cell: Cell, folder: Path, continued: bool, say: Say) -> Outcome:
    """Run one cell; whatever breaks it is its outcome, and the sweep goes on."""
    config = replace(cell.config, out=str(folder), resume=str(folder / cell.name) if continued else "")
    moved = "" if continued else _move_aside(folder / cell.name)
    say("goes on from its last checkpoint" if continued else f"starting; {moved}" if moved else "starting")
    trace, started = folder / f"{cell.name}.error.txt", time.monotonic()
    trace.unlink(missing_ok=True)
    try:
        done = engine.run(config, cell.clients, _Lines(say))
    except Exception as error:  # of whatever kind: one broken cell must not stop the rest
        cause = f"{type(error).__name__}: {error}"
        trace.write_text(traceback.format_exc(), encoding="utf-8")
        say(f"BROKEN: {cause.splitlines()[0]}")
        return Outcome("broken", cause, time.monotonic() - started, continued)
    seconds = time.monotonic() - started
    best = runner.summary(done)["accuracy"]["best"]
    say(f"done in {seconds:.1f} s, best accuracy " + ("not measured" if best is None else f"{100 * best:.2f} %"))
    return Outcome("done", "", seconds, continued)


def _say(say: Say, label: str, line: str) -> None:
    say(f"{label}: {line}")


class _Lines:
    """Turns the lines of rounds.jsonl into progress, the first and then one every ten seconds."""

    def __init__(self, say: Say) -> None:
        self.say = say
        self._next = 0.0

    def __call__(self, line: dict[str, Any]) -> None:
        if (now := time.monotonic()) < self._next:
            return
        self._next = now + SECONDS_BETWEEN_LINES
        accuracy = "" if line["accuracy"] is None else f", accuracy {100 * line['accuracy']:.2f} %"
        failures = f", {line['failures']} failures" if line["failures"] else ""
        self.say(f"round {line['round']}{accuracy}{failures}")


def _move_aside(folder: Path) -> str:
    """Rename what is in the way of a cell, if anything, and say so; nothing is ever deleted."""
    if not folder.exists():
        return ""
    for number in range(1, 1000):
        aside = folder.with_name(f"{folder.name}.aside-{number}")
        if not aside.exists():
            folder.rename(aside)
            return f"what was left of an earlier run is now {aside.name}"
    raise SettingError(f"{folder.parent} holds a thousand cut runs of {folder.name}; clear them up")


def _make(folder: Path) -> None:
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise SettingError(f"results cannot be written to {folder}: {error}; give another folder with --out") from error
