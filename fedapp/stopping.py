"""Observers that end a run: early, as failed, or because nobody is there any more."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

from fedapp.environment import RunFailedError
from fedapp.strategies.base import PayloadStrategy
from fedapp.strategies.records import RoundRecord

BARREN_ROUNDS = 3
DROPPED_OUT = "DroppedOutError"


class Leash:
    """An observer that ends the run when the command that started it is gone, even if it was killed.

    Flower would run on without it, and nobody would be there to say how it ended; the checkpoint lets it go on.

    Args:
        pid: Process id of the command.
    """

    def __init__(self, pid: int) -> None:
        self.pid = pid

    def on_start(self, strategy: PayloadStrategy) -> None:
        """Do nothing."""

    def on_round(self, strategy: PayloadStrategy, record: RoundRecord) -> str | None:
        """Check that the command is there.

        Raises:
            RunFailedError: If it is gone.
        """
        try:
            os.kill(self.pid, 0)
        except ProcessLookupError:
            raise RunFailedError("the command that started this run is gone; resume it with --resume") from None
        return None

    def on_end(self, strategy: PayloadStrategy, digests: Mapping[str, str]) -> None:
        """Do nothing."""


class Stopper:
    """An observer that ends a run early, and as failed when all clients have failed for three rounds.

    Drop-outs of simulated devices are asked for and count as no failures; neither do those before a resume.

    Args:
        patience: Stop when the best accuracy is this many evaluations old; 0 = never.
        max_failures: End the run as failed after this many client failures; 0 = never.
        lines: The recorder's round lines, newest last.
        failures: The recorder's failures.
    """

    def __init__(
        self, patience: int, max_failures: int, lines: list[dict[str, Any]], failures: list[dict[str, Any]]
    ) -> None:
        self.patience = patience
        self.max_failures = max_failures
        self.lines = lines
        self.failures = failures
        self._before = len(failures)

    def on_start(self, strategy: PayloadStrategy) -> None:
        """Do nothing."""

    def on_round(self, strategy: PayloadStrategy, record: RoundRecord) -> str | None:
        """Return the reason to stop, if there is one.

        Raises:
            RunFailedError: If there were too many failures, or nobody trains any more; names the last failure.
        """
        faults = [failure for failure in self.failures[self._before :] if failure["kind"] != DROPPED_OUT]
        last = (
            f"; the last: client {faults[-1]['client']}: {faults[-1]['kind']}: {faults[-1]['reason']}" if faults else ""
        )
        if self.max_failures and len(faults) >= self.max_failures:
            raise RunFailedError(
                f"{len(faults)} client failures by round {record.round}, max-failures is {self.max_failures}{last}"
            )
        recent = [line for line in self.lines if line["round"]][-BARREN_ROUNDS:]
        enough = recent and len(recent) == min(BARREN_ROUNDS, strategy.num_rounds)
        if enough and faults and not any(line["trained"] for line in recent):
            raise RunFailedError(f"no client trained in the last {len(recent)} rounds{last}")
        return self._impatience()

    def _impatience(self) -> str | None:
        accuracies = [line["accuracy"] for line in self.lines if line["accuracy"] is not None]
        if not self.patience or not accuracies:
            return None
        age = len(accuracies) - 1 - accuracies.index(max(accuracies))
        if age < self.patience:
            return None
        return f"the best accuracy {max(accuracies):.4f} is {age} evaluations old (patience {self.patience})"

    def on_end(self, strategy: PayloadStrategy, digests: Mapping[str, str]) -> None:
        """Do nothing."""
