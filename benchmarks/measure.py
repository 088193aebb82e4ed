"""What the benchmarks share: CPU time of variants that take turns, the table they print, and their one option."""

from __future__ import annotations

import argparse
import gc
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import torch

HEADER = ("", "minimum", "median", "target")


def start(doc: str | None) -> bool:
    """Read the command line, hold torch to one thread, and return whether only a smoke run is wanted."""
    parser = argparse.ArgumentParser(description=doc, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="a smoke run of a few seconds; its figures mean nothing")
    quick: bool = parser.parse_args().quick
    torch.set_num_threads(1)
    return quick


@dataclass(frozen=True)
class Timing:
    """CPU seconds of the variants, one entry a repetition; entry i of all variants was measured side by side."""

    seconds: Mapping[str, Sequence[float]]

    def ratio(self, name: str, base: str) -> tuple[float, float]:
        """Return what ``name`` costs relative to ``base``: of their minima, and the median over the repetitions."""
        ours, bare = self.seconds[name], self.seconds[base]
        paired = [own / other for own, other in zip(ours, bare, strict=True)]
        return min(ours) / min(bare), statistics.median(paired)

    def milliseconds(self, name: str) -> tuple[float, float]:
        """Return the minimum and the median of ``name``."""
        return 1e3 * min(self.seconds[name]), 1e3 * statistics.median(self.seconds[name])


def take_turns(variants: Mapping[str, Callable[[], object]], repeats: int, warmups: int = 1) -> Timing:
    """Measure the CPU time of each variant, one after the other in every repetition, every second time backwards.

    CPU time, because other processes share the machine; turns, because its clock rate and its caches drift.
    """
    for _ in range(warmups):
        for run in variants.values():
            run()
    gc.collect()
    gc.freeze()  # what was imported need not be searched again in the middle of a measurement
    seconds: dict[str, list[float]] = {name: [] for name in variants}
    for repetition in range(repeats):
        names = list(variants)
        for name in names if repetition % 2 == 0 else reversed(names):
            before = time.process_time()
            variants[name]()
            seconds[name].append(time.process_time() - before)
    return Timing(seconds)


def print_table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """Print rows of text in columns, the first to the left and the others to the right."""
    widths = [max(len(row[column]) for row in (header, *rows)) for column in range(len(header))]
    for row in (header, ["-" * width for width in widths], *rows):
        cells = [
            text.ljust(width) if column == 0 else text.rjust(width)
            for column, (text, width) in enumerate(zip(row, widths, strict=True))
        ]
        print("  ".join(cells).rstrip())
