"""Shows a run as it goes: a live bar in a terminal, plain lines elsewhere."""

from __future__ import annotations

import sys
import time
from types import TracebackType
from typing import Any

MIB = 2**20


class Display:
    """Shows every round of one run: round, accuracy, bytes so far, failures and the time left.

    Args:
        title: What runs.
        rounds: Rounds that the run will have.
        folder: The results folder, told at the start and when the run is interrupted.
        live: True for a bar that is redrawn; None finds out whether standard output is a terminal.
    """

    def __init__(self, title: str, rounds: int, live: bool | None = None, folder: str = "") -> None:
        self.title = title
        self.rounds = rounds
        self.live = sys.stdout.isatty() if live is None else live
        self.folder = folder
        self.bytes = 0
        self._first: tuple[float, int] | None = None
        self._bar: Any = None
        self._task: Any = None

    def __enter__(self) -> Display:
        """Show that the run is starting."""
        if self.live:
            from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

            words = TextColumn("{task.fields[words]}")
            self._bar = Progress(TextColumn("{task.description}"), BarColumn(), words, TimeElapsedColumn())
            self._bar.start()
            self._task = self._bar.add_task(self.title, total=max(self.rounds, 1), words="starting")
        self._print("starting" + (f"; results in {self.folder}" if self.folder else ""))
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Take the bar away from the cursor."""
        if self._bar is not None:
            self._bar.stop()
        if kind is KeyboardInterrupt and self.folder:
            self._print(f"interrupted; `fedapp run --resume {self.folder}` goes on from the last checkpoint")

    def __call__(self, line: dict[str, Any]) -> None:
        """Show one line of rounds.jsonl."""
        self.bytes += sum(count for name, count in line["bytes"].items() if "payload" in name)
        words = self.words(line, time.monotonic())
        if self._bar is not None:
            self._bar.update(self._task, completed=max(line["round"], 1), words=words)
        else:
            self._print(words)

    def words(self, line: dict[str, Any], now: float) -> str:
        """Return what is said of a round that ended at ``now`` (seconds).

        Example:
            >>> display = Display("fedsaf", 10, live=False)
            >>> display.words({"round": 4, "accuracy": 0.5, "failures": 0}, 100.0)
            'round 4/10, accuracy 0.5000, 0.00 MiB'
            >>> display.words({"round": 6, "accuracy": None, "failures": 2}, 130.0)
            'round 6/10, not evaluated, 0.00 MiB, 2 failures, 1:00 left'
        """
        accuracy = "not evaluated" if line["accuracy"] is None else f"accuracy {line['accuracy']:.4f}"
        words = [f"round {line['round']}/{self.rounds}", accuracy, f"{self.bytes / MIB:.2f} MiB"]
        if line["failures"]:
            words.append(f"{line['failures']} failures")
        if self._first is None:
            self._first = (now, line["round"])
        elif line["round"] > self._first[1]:
            each = (now - self._first[0]) / (line["round"] - self._first[1])
            words.append(f"{_clock(each * (self.rounds - line['round']))} left")
        return ", ".join(words)

    def _print(self, words: str) -> None:
        sys.stdout.write(f"{self.title}: {words}\n")
        sys.stdout.flush()


def _clock(seconds: float) -> str:
    whole = round(seconds)
    hours, rest = divmod(whole, 3600)
    return f"{hours}:{rest // 60:02d}:{rest % 60:02d}" if hours else f"{rest // 60}:{rest % 60:02d}"
