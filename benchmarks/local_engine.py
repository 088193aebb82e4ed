"""What the in-process engine costs by itself, and whether it grows.

Measured: CPU milliseconds per client and round of `LocalGrid` with clients that do nothing, at 10 to 10,000 clients;
the messages are built anew every round, as a strategy does. Then, over 50 rounds of 300 clients, the growth per round
of the resident set (Linux only) and of what Python's allocator holds (tracemalloc), by a line through the last 40.
The same with our `local` strategy in front, which also checks, counts bytes and keeps records, for comparison.

Target: at most 0.2 ms per client and round, and less than 1 MB growth a round.
"""

from __future__ import annotations

import gc
import logging
import os
import statistics
import time
import tracemalloc
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from flwr.app import ConfigRecord, Context, Message, MessageType, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from measure import HEADER, print_table, start

from fedapp.config import ServerSettings
from fedapp.local_grid import LocalGrid
from fedapp.payload import ClientInfo, Uplink
from fedapp.strategies.local import Local
from fedapp.wire import pack_info, pack_uplink

SETTLING = 10
MEGABYTE = 1e6
Rounds = Callable[[int, Callable[[], None]], None]


def idle_app() -> ClientApp:
    """Return a ClientApp that answers with one number."""
    app = ClientApp()

    @app.train()
    def train(message: Message, context: Context) -> Message:
        return Message(RecordDict({"metrics": MetricRecord({"num-examples": 1})}), reply_to=message)

    return app


def grid_rounds(num_clients: int) -> Rounds:
    """Return what runs rounds of the grid alone: build messages, send them, read the replies."""
    grid = LocalGrid(idle_app(), num_clients)

    def run(rounds: int, after_round: Callable[[], None]) -> None:
        for number in range(1, rounds + 1):
            messages = [
                Message(RecordDict({"config": ConfigRecord({"round": number})}), node, MessageType.TRAIN)
                for node in grid.get_node_ids()
            ]
            replies = list(grid.send_and_receive(messages))
            assert len(replies) == num_clients
            assert not replies[-1].has_error()
            after_round()

    return run


def idle_client() -> ClientApp:
    """Return a ClientApp that takes part in a method of ours and does nothing."""
    app = ClientApp()

    @app.query()
    def query(message: Message, context: Context) -> Message:
        return Message(pack_info(ClientInfo(name(context), "none", num_classes=2, num_examples=1)), reply_to=message)

    @app.train()
    def train(message: Message, context: Context) -> Message:
        return Message(pack_uplink(Uplink(name(context), 1)), reply_to=message)

    def name(context: Context) -> str:
        return str(context.node_config["partition-id"])

    return app


class AfterRound:
    """An observer that calls a function after every round."""

    def __init__(self, call: Callable[[], None]) -> None:
        self.call = call

    def on_start(self, strategy: Any) -> None:
        """Call: round 1 begins."""
        self.call()

    def on_round(self, strategy: Any, record: Any) -> None:
        """Call: a round is over."""
        self.call()

    def on_end(self, strategy: Any, digests: Any) -> None:
        """Do nothing."""


def strategy_rounds(num_clients: int) -> Rounds:
    """Return what runs rounds of training of our `local` strategy."""

    def run(rounds: int, after_round: Callable[[], None]) -> None:
        settings = ServerSettings(fraction_evaluate=0)
        strategy = Local(settings=settings, observers=[AfterRound(after_round)])
        strategy.start(LocalGrid(idle_client(), num_clients), num_rounds=rounds)

    return run


def cost(rounds_of: Callable[[int], Rounds], num_clients: int, rounds: int) -> tuple[float, float]:
    """Return CPU milliseconds per client and round, minimum and median over the rounds after the first."""
    stamps: list[float] = []
    rounds_of(num_clients)(rounds + 1, lambda: stamps.append(time.process_time()))
    spent = np.diff(stamps)[-rounds:] * 1e3 / num_clients
    return float(spent.min()), statistics.median(spent)


def growth(rounds_of: Callable[[int], Rounds], num_clients: int, rounds: int, sample: Callable[[], float]) -> float:
    """Return the slope of ``sample`` in MB a round, without the first rounds."""
    samples: list[float] = []
    rounds_of(num_clients)(rounds, lambda: samples.append(sample() / MEGABYTE))
    settled = samples[min(SETTLING, rounds // 2) :]
    return float(np.polyfit(np.arange(len(settled)), settled, 1)[0])


def resident() -> float:
    """Return the resident set in bytes."""
    gc.collect()
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGESIZE")


def traced() -> float:
    """Return the bytes that Python's allocator holds."""
    gc.collect()
    return float(tracemalloc.get_traced_memory()[0])


def main() -> None:
    quick = start(__doc__)
    logging.getLogger("flwr").setLevel(logging.WARNING)
    sizes = {10: 3, 100: 3} if quick else {10: 200, 100: 40, 1_000: 8, 10_000: 2}
    num_clients, rounds = (20, 6) if quick else (300, 50)
    engines = {"grid": (grid_rounds, "<= 0.2", "< 1"), "grid + local strategy": (strategy_rounds, "", "")}
    rows = []
    for engine, (rounds_of, limit, _) in engines.items():
        for size, repeats in sizes.items():
            low, middle = cost(rounds_of, size, repeats)
            text = f"{engine}, {size:,} clients: ms per client and round"
            rows.append((text, f"{low:.3f}", f"{middle:.3f}", limit))
    for engine, (rounds_of, _, limit) in engines.items():
        if Path("/proc/self/statm").exists():
            slope = growth(rounds_of, num_clients, rounds, resident)
            rows.append((f"{engine}, {num_clients:,} clients: resident MB a round", "", f"{slope:+.3f}", limit))
        tracemalloc.start()
        slope = growth(rounds_of, num_clients, rounds, traced)
        tracemalloc.stop()
        rows.append((f"{engine}, {num_clients:,} clients: allocated MB a round", "", f"{slope:+.3f}", limit))
    print_table(HEADER, rows)


if __name__ == "__main__":
    main()
