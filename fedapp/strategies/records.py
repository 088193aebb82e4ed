"""What a strategy reports of a round: plain data for observers (files, progress displays, trackers)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol

import numpy.typing as npt
from flwr.app import MetricRecord

from fedapp.payload import ClientInfo, Uplink

if TYPE_CHECKING:
    from fedapp.strategies.base import PayloadStrategy

HEADLINE = "accuracy"


@dataclass(frozen=True)
class Reply:
    """One usable reply of one client.

    Attributes:
        client: Stable client id.
        num_examples: Samples the reply rests on.
        metrics: What the client measured.
    """

    client: str
    num_examples: int
    metrics: Mapping[str, float]


@dataclass(frozen=True)
class Failure:
    """A client that gave no usable reply.

    Attributes:
        client: Stable client id, or the node's id where the client never said who it is.
        phase: "start", "train" or "evaluate".
        kind: Type of the exception, "RejectedMessage", "NoReply" or "NodeUnavailable".
        reason: First line of the cause.
    """

    client: str
    phase: str
    kind: str
    reason: str


@dataclass
class Traffic:
    """Bytes of one client in one phase of a round; payload is array contents, headers are all the rest."""

    payload_down: int = 0
    payload_up: int = 0
    header_down: int = 0
    header_up: int = 0


@dataclass
class RoundRecord:
    """Everything that happened in one round.

    Attributes:
        round: Number of the round; 0 is an evaluation before any training.
        trained: Usable training replies, in the order of the client ids.
        evaluated: Usable evaluation replies, likewise.
        left_out: Usable evaluation replies of clients that take no part in training, likewise.
        failures: Clients without a usable reply.
        traffic: Bytes by (phase, client).
        seconds: Wall-clock seconds by phase: train, aggregate, evaluate.
        analysis: Numbers that the method reports of the uplinks, if anybody watches.
        artifacts: Arrays behind them, by name.
        evaluations: Accuracies by domain of models that are nobody's own (a consensus model), by their names.
        aggregated: False if the round had fewer usable replies than ``min-replies`` and changed nothing.
    """

    round: int
    trained: list[Reply] = field(default_factory=list)
    evaluated: list[Reply] = field(default_factory=list)
    left_out: list[Reply] = field(default_factory=list)
    failures: list[Failure] = field(default_factory=list)
    traffic: dict[tuple[str, str], Traffic] = field(default_factory=dict)
    seconds: dict[str, float] = field(default_factory=dict)
    analysis: dict[str, Any] = field(default_factory=dict)
    artifacts: dict[str, npt.NDArray[Any]] = field(default_factory=dict)
    evaluations: dict[str, dict[str, float]] = field(default_factory=dict)
    aggregated: bool = False


class Observer(Protocol):
    """Something that watches a run. It must not change the strategy."""

    def on_start(self, strategy: PayloadStrategy) -> None:
        """Run once, after the clients have said who they are."""

    def on_round(self, strategy: PayloadStrategy, record: RoundRecord) -> str | None:
        """Run after every round; a text is the reason to stop the run here."""

    def on_end(self, strategy: PayloadStrategy, digests: Mapping[str, str]) -> None:
        """Run once, after the last round, with the SHA-256 of every client's model."""


def replies_of(uplinks: Sequence[Uplink]) -> list[Reply]:
    """Return uplinks without their arrays."""
    return [Reply(uplink.client, uplink.num_examples, uplink.metrics) for uplink in uplinks]


def in_words(record: RoundRecord, num_rounds: int) -> str:
    """Return what came of a round of ``num_rounds``, in one line."""
    means = {"train loss": weighted_metrics(record.trained).get("loss")}
    means["test accuracy"] = weighted_metrics(record.evaluated).get(HEADLINE)
    numbers = ", ".join(f"{name} {value:.4f}" for name, value in means.items() if value is not None)
    failed = f", {len(record.failures)} failures" if record.failures else ""
    return (
        f"[round {record.round}/{num_rounds}] {len(record.trained)} clients trained, {numbers or 'not evaluated'}"
        f"{failed} ({sum(record.seconds.values()):.1f} s)"
    )


def metric_record(replies: list[Reply]) -> MetricRecord:
    """Return the weighted metrics of replies, and the samples behind them, as Flower's own loop wants them."""
    metrics: dict[str, Any] = {"num-examples": sum(reply.num_examples for reply in replies)}
    return MetricRecord({**metrics, **weighted_metrics(replies)})


def weighted_metrics(replies: list[Reply]) -> dict[str, float]:
    """Return the mean of every metric over replies, weighted by samples.

    Metrics that only some clients report are averaged over those; clients without samples count for nothing.

    Example:
        >>> weighted_metrics([Reply("0", 1, {"accuracy": 0.5}), Reply("1", 3, {"accuracy": 1.0})])
        {'accuracy': 0.875}
    """
    names = dict.fromkeys(name for reply in replies for name in reply.metrics)
    means = {}
    for name in names:
        holders = [reply for reply in replies if name in reply.metrics and reply.num_examples > 0]
        weight = sum(reply.num_examples for reply in holders)
        if weight:
            means[name] = sum(reply.num_examples * reply.metrics[name] for reply in holders) / weight
    return means


def by_domain(uplinks: Sequence[Uplink], metric: str, clients: Mapping[str, ClientInfo]) -> dict[str, float]:
    """Return a metric by domain, weighted by samples; "all" stands for clients without a domain.

    Clients that did not report it, or have no samples, count for nothing.

    Example:
        >>> clients = {name: ClientInfo(name, domain=domain) for name, domain in (("0", "a"), ("1", "a"), ("2", "b"))}
        >>> shares = (("0", 1, 0.5), ("1", 3, 1.0), ("2", 0, 0.0))
        >>> uplinks = [Uplink(name, count, metrics={"right": share}) for name, count, share in shares]
        >>> by_domain(uplinks, "right", clients)
        {'a': 0.875}
    """
    sums: dict[str, tuple[float, int]] = {}
    for uplink in (uplink for uplink in uplinks if metric in uplink.metrics and uplink.num_examples):
        domain = clients[uplink.client].domain or "all"
        right, total = sums.get(domain, (0.0, 0))
        sums[domain] = right + uplink.metrics[metric] * uplink.num_examples, total + uplink.num_examples
    return {domain: right / total for domain, (right, total) in sums.items()}
