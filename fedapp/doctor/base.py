"""What the checks share: the case they look at, and how they say what they found."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from fedapp.config import RunConfig, lookup
from fedapp.datasets import DATASETS, Pool, Source, own
from fedapp.payload import ClientInfo


@dataclass(frozen=True)
class Finding:
    """One thing that is wrong, and what to do about it."""

    problem: str
    cure: str


class UnwellError(Exception):
    """A check has findings."""

    def __init__(self, *findings: Finding) -> None:
        super().__init__("; ".join(finding.problem for finding in findings))
        self.findings = findings


class SkippedError(Exception):
    """A check cannot be made, because of what an earlier one found."""


@dataclass(frozen=True)
class ModelFacts:
    """What a dry run learnt of one model.

    Attributes:
        info: What a client with this model would say of itself.
        nbytes: Bytes of its parameters and buffers.
    """

    info: ClientInfo
    nbytes: int


@dataclass
class Case:
    """What is examined: settings and a number of clients; and what earlier checks learnt.

    Attributes:
        config: Every setting.
        clients: Simulated clients.
        method: The method's row, once the settings proved right.
        pool: The data, once found.
        models: Facts of every model by name, as far as its dry run went well.
        assigned: The model of each client, once the models proved right.
    """

    config: RunConfig
    clients: int
    method: Any = None
    pool: Pool | None = None
    models: dict[str, ModelFacts] = field(default_factory=dict)
    assigned: list[ModelFacts] = field(default_factory=list)

    @property
    def source(self) -> Source:
        """The data set's row; of the user's own data with what the data tell."""
        row = lookup(DATASETS, self.config.data.dataset, "data set")
        if not row.own:
            return row
        if self.pool is None:
            raise SkippedError("skipped: your data were not found, and only they tell their shape and classes")
        return own.described(row, self.pool)

    @property
    def biggest(self) -> ModelFacts:
        """The model with the most bytes."""
        if not self.models:
            raise SkippedError("no model passed its dry run")
        return max(self.models.values(), key=lambda facts: facts.nbytes)


def size(nbytes: float) -> str:
    """Return a number of bytes in words.

    Example:
        >>> size(3 * 2**30), size(1536), size(0)
        ('3.0 GiB', '1.5 KiB', '0 B')
    """
    for unit in ("B", "KiB", "MiB", "GiB"):
        if nbytes < 1024 or unit == "GiB":
            break
        nbytes /= 1024
    return f"{nbytes:.0f} B" if unit == "B" else f"{nbytes:.1f} {unit}"
