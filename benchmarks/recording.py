"""What records cost: the share of a round's time that goes into them.

Measured: a run of the demo's size (FedSAF, 10 clients with four architectures, the built-in digits, three local epochs,
in-process engine). Recording is everything that a run would not need to train: the analysis of the prototypes, and
every observer at the end of a round (rounds.jsonl, clients.csv, prototypes, checkpoint, early stop). The round is all
the time from the end of one round to the end of the next. The first round, in which models are built, does not count.
CPU time, because other processes share the machine; wall time, which includes waiting for the disk, stands beside it.

Target: at most 1 % of the round.
"""

from __future__ import annotations

import logging
import statistics
import tempfile
import time
from collections import defaultdict
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any, ClassVar

import numpy as np
from measure import HEADER, print_table, start

import fedapp
from fedapp.payload import Uplink
from fedapp.strategies import fedsaf, register

CLOCKS = {"CPU": time.process_time, "wall": time.perf_counter}
ROUND, ANALYSIS = "round", "analysis of prototypes"


class Stopwatch:
    """Seconds by part, one entry a round; each entry holds CPU and wall time."""

    def __init__(self) -> None:
        self.spent: dict[str, list[np.ndarray]] = defaultdict(list)
        self.since = self.now()

    def now(self) -> np.ndarray:
        """Return what every clock shows."""
        return np.array([clock() for clock in CLOCKS.values()])

    @contextmanager
    def part(self, name: str) -> Iterator[None]:
        """Note what the block takes."""
        before = self.now()
        yield
        self.spent[name].append(self.now() - before)

    def lap(self) -> None:
        """Note the round that is over and begin the next."""
        now = self.now()
        self.spent[ROUND].append(now - self.since)
        self.since = now


WATCH = Stopwatch()


class Timed:
    """An observer around another one."""

    def __init__(self, observer: Any) -> None:
        self.observer = observer

    def on_start(self, strategy: Any) -> None:
        """Pass on."""
        self.observer.on_start(strategy)

    def on_round(self, strategy: Any, record: Any) -> Any:
        """Pass on, and note the time."""
        assert not record.failures, record.failures
        with WATCH.part(type(self.observer).__name__):
            return self.observer.on_round(strategy, record)

    def on_end(self, strategy: Any, digests: Any) -> None:
        """Pass on."""
        self.observer.on_end(strategy, digests)


class Lap:
    """The last observer: the round is over."""

    def on_start(self, strategy: Any) -> None:
        """Begin the first round."""
        WATCH.since = WATCH.now()

    def on_round(self, strategy: Any, record: Any) -> None:
        """Begin the next."""
        WATCH.lap()

    def on_end(self, strategy: Any, digests: Any) -> None:
        """Do nothing."""


class WatchedFedSAF(fedsaf.FedSAF):
    """FedSAF that notes what its analysis and its observers take."""

    name: ClassVar[str] = "fedsaf-watched"

    def start(self, *args: Any, **kwargs: Any) -> Any:
        """Put a stopwatch around every observer."""
        self.observers = [*map(Timed, self.observers), Lap()]
        return super().start(*args, **kwargs)

    def analyse(self, uplinks: Sequence[Uplink]) -> Any:
        """Note the time."""
        with WATCH.part(ANALYSIS):
            return super().analyse(uplinks)


def main() -> None:
    quick = start(__doc__)
    logging.getLogger("flwr").setLevel(logging.WARNING)
    register(replace(fedsaf.METHOD, strategy=WatchedFedSAF))
    clients, rounds, size = (2, 2, {"samples_per_client": 20}) if quick else (10, 9, {})
    demo = {"local_epochs": 3, "learning_rate": 0.05, "batch_size": 50, "device": "cpu", "report": False}
    with tempfile.TemporaryDirectory() as out:
        fedapp.run("fedsaf-watched", clients=clients, rounds=rounds, out=out, **demo, **size)
    spent = {name: np.stack(entries)[1:] for name, entries in WATCH.spent.items()}
    total = spent.pop(ROUND)
    recording = sum(spent.values(), np.zeros_like(total))
    rows = []
    for column, clock in enumerate(CLOCKS):
        for name, part in {ROUND: total, **spent}.items():
            milliseconds = 1e3 * part[:, column]
            low, middle = min(milliseconds), statistics.median(milliseconds)
            rows.append((f"{name}, {clock} ms", f"{low:.2f}", f"{middle:.2f}", ""))
        shares = recording[:, column] / total[:, column]
        limit = "<= 1 %" if clock == "CPU" else ""
        rows.append((f"recording / round, {clock}", f"{min(shares):.2%}", f"{statistics.median(shares):.2%}", limit))
    print_table(HEADER, rows)


if __name__ == "__main__":
    main()
