"""The submodels of a run as its last round left them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from statistics import fmean

from fedapp.report.records import Line, Records


@dataclass(frozen=True)
class Last:
    """The submodels after the last round that tells of them.

    Attributes:
        records: The run.
    """

    records: Records

    @cached_property
    def state(self) -> Line:
        """What was recorded."""
        found: Line = self.records.submodels[-1]["analysis"]["submodels"]
        return found

    @property
    def round(self) -> int:
        """That round."""
        return int(self.records.submodels[-1]["round"])

    @property
    def params(self) -> Line:
        """The method's settings."""
        found: Line = self.records.config.get("method-params") or {}
        return found

    @cached_property
    def key(self) -> str:
        """Its place in the records."""
        return f"round.{self.round}.analysis.submodels"

    @cached_property
    def clients(self) -> list[str]:
        """The clients by group, in a group the largest budget first."""
        held = self.state["clients"]
        return sorted(held, key=lambda client: (held[client]["group"], -held[client]["keep_ratio"]))

    @cached_property
    def names(self) -> list[str]:
        """Names of the layers, without what all of them start with."""
        return short_names([layer["name"] for layer in self.state["layers"]])

    @cached_property
    def channels(self) -> list[int]:
        """Channels of every layer in the full model."""
        return [layer["channels"] for layer in self.state["layers"]]

    def domain(self, client: str) -> str:
        """Return a client's true domain, empty if it is not known."""
        return str(self.records.clients.get(client, {}).get("domain") or "")


def short_names(names: Sequence[str]) -> list[str]:
    """Return dotted names without the first parts that all share.

    Example:
        >>> short_names(["extractor.conv1", "extractor.layer1.conv1"])
        ['conv1', 'layer1.conv1']
    """
    parts = [name.split(".") for name in names]
    while all(len(own) > 1 for own in parts) and len({own[0] for own in parts}) == 1:
        parts = [own[1:] for own in parts]
    return [".".join(own) for own in parts]


def kept_shares(state: Line, keep_ratio: float) -> list[float]:
    """Return the share of every layer's channels that the clients of a budget keep on average.

    Example:
        >>> own = {"keep_ratio": 0.5, "global": [1, 2], "private": [0, 2]}
        >>> kept_shares({"layers": [{"channels": 2}, {"channels": 8}], "clients": {"0": own}}, 0.5)
        [0.5, 0.5]
    """
    held = [own for own in state["clients"].values() if own["keep_ratio"] == keep_ratio]
    return [
        fmean(own["global"][i] + own["private"][i] for own in held) / layer["channels"]
        for i, layer in enumerate(state["layers"])
    ]
