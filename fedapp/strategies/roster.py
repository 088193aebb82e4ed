"""Who is there: node ids change from run to run, so every node is asked for its stable client id."""

from __future__ import annotations

import re
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from flwr.app import Message, MessageType
from flwr.serverapp import Grid

from fedapp.agreement import unite
from fedapp.config import ServerSettings
from fedapp.payload import ClientInfo, Instruction, order
from fedapp.seeds import derive
from fedapp.strategies.records import Failure
from fedapp.wire import RejectedMessage, pack_instruction, unpack_info

POLL_SECONDS = 0.1
EQUAL = {
    "equal-models": ("model_layout", "the same model"),
    "equal-heads": ("head_layout", "heads of the same shape"),
    "equal-features": ("feature_dim", "features of the same width"),
    "equal-classes": ("num_classes", "the same number of classes"),
}


class NodesMissingError(RuntimeError):
    """Not enough nodes came, or none of them can take part."""


class WorkerLostError(RuntimeError):
    """A worker process of the simulation died; its pool would fail at random from here on."""


class Roster:
    """The clients of a run by stable id, and the node that each of them answers on now.

    Attributes:
        clients: Every client that can take part, in the order of the ids.
        nodes: Flower's node id of each client, held-out ones included, renewed when one comes back on another node.
        failures: Nodes that cannot take part.
        agreed: What the clients agreed on: names that each announced and all lay their data out by.
    """

    def __init__(self) -> None:
        self.clients: dict[str, ClientInfo] = {}
        self.nodes: dict[str, int] = {}
        self.failures: list[Failure] = []
        self.agreed = ""
        self._answered: set[int] = set()
        self._unanswered: dict[str, int] = {}
        self._announced = 0

    def gather(self, grid: Grid, hello: Instruction, settings: ServerSettings) -> None:
        """Wait for the nodes and ask each who it is.

        Waits for ``min-nodes``, or for as many as the simulation announces, never longer than ``node-timeout``. Where
        clients announce names that all must agree on, these are united and every node is asked a second time.

        Raises:
            NodesMissingError: If too few nodes answered in time, none of them can take part, or settings, which all
                clients of a simulation have alike, do not suit one of them.
        """
        deadline = time.monotonic() + settings.node_timeout
        while True:
            self.refresh(grid, hello, timeout=max(deadline - time.monotonic(), POLL_SECONDS))
            wanted = settings.min_nodes or max(self._announced, 1)
            if len(self._answered) >= wanted:
                break
            if time.monotonic() >= deadline:
                raise NodesMissingError(
                    f"{len(self._answered)} of {wanted} nodes answered within {settings.node_timeout:g} s; start the "
                    "missing nodes, lower min-nodes, or raise node-timeout" + self._reasons()
                )
            time.sleep(POLL_SECONDS)
        if not self.clients:
            raise NodesMissingError(f"none of {len(self._answered)} nodes can take part" + self._reasons())
        self.agreed = self.agreed or unite({client: info.announced for client, info in self.clients.items()})
        if self.agreed != hello.agreed:  # everybody is asked once more, and answers by what was agreed
            first = {failure.client: failure for failure in self.failures}
            self.clients, self.nodes, self.failures, self._answered = {}, {}, [], set()
            self.gather(grid, replace(hello, agreed=self.agreed), settings)
            self.failures = [first.get(failure.client, failure) for failure in self.failures]
        elif hello.memory and any(failure.kind == "SettingError" for failure in self.failures):
            few = f"{len(self.failures)} of {len(self._answered)} nodes cannot take part"
            raise NodesMissingError(few + self._reasons())

    def refresh(self, grid: Grid, hello: Instruction, timeout: float) -> None:
        """Ask nodes that were not asked yet who they are: newcomers, and clients that came back.

        An answer that comes after the wait is taken when it is there; waiting for it again would cost every phase of
        every round that time.

        Raises:
            NodesMissingError: If two nodes claim the same client id at once.
        """
        present = set(grid.get_node_ids())
        answers = read_answers(grid.pull_messages(list(self._unanswered)), self._unanswered) if self._unanswered else {}
        if newcomers := sorted(present - self._answered - set(self._unanswered.values())):
            found, unanswered = ask(grid, newcomers, hello, timeout)
            answers, self._unanswered = {**answers, **found}, {**self._unanswered, **unanswered}
        self._answered.update(answers)
        self._unanswered = {message: n for message, n in self._unanswered.items() if n in present - self._answered}
        for node, info in sorted(answers.items(), key=lambda item: order(item[1].client)):
            self._announced = max(self._announced, info.num_clients)
            if info.error:
                self.failures.append(Failure(info.client, "start", *split_reason(info.error)))
                continue
            holder = self.nodes.get(info.client)
            if holder is not None and holder in present and holder != node:
                raise NodesMissingError(
                    f"nodes {holder} and {node} both say they are client {info.client!r}; "
                    'give each its own node-config "client-id" or "partition-id"'
                )
            self.nodes[info.client], self.clients[info.client] = node, replace(info, digest="")
        self.clients = dict(sorted(self.clients.items(), key=lambda item: order(item[0])))

    def sample(self, fraction: float, seed: int, server_round: int, phase: str) -> list[str]:
        """Return the clients drawn for one phase of a round, in the order of the ids.

        Args:
            fraction: Share of the clients, rounded half up to at least one; 0 draws nobody.
            seed: Seed of the run.
            server_round: The round.
            phase: "train" or "evaluate"; each draws its own clients.
        """
        everybody = list(self.clients)
        if fraction == 0:
            return []
        count = max(1, int(fraction * len(everybody) + 0.5))
        drawn = np.random.default_rng(derive(seed, server_round, phase)).permutation(len(everybody))[:count]
        return [everybody[index] for index in sorted(drawn)]

    def leave_out(self, client: str, failure: Failure) -> None:
        """Go on without a client."""
        del self.clients[client], self.nodes[client]
        self.failures.append(failure)

    def digests(self, grid: Grid, hello: Instruction, timeout: float) -> dict[str, str]:
        """Return the SHA-256 of every client's current model; clients that do not answer are left out."""
        answers, _ = ask(grid, [node for client, node in self.nodes.items() if client in self.clients], hello, timeout)
        found = {info.client: info.digest for info in answers.values() if info.digest}
        return dict(sorted(found.items(), key=lambda item: order(item[0])))

    def _reasons(self) -> str:
        clients: dict[str, list[str]] = {}
        for failure in self.failures:
            clients.setdefault(f"{failure.kind}: {failure.reason}", []).append(failure.client)
        lines = [
            f"\n  client{'s' * (len(who) > 1)} {', '.join(who[:4] + ['...'] * (len(who) > 4))}: {reason}"
            for reason, who in clients.items()
        ]
        return "".join(lines[:5])


def ask(
    grid: Grid, nodes: Iterable[int], hello: Instruction, timeout: float
) -> tuple[dict[int, ClientInfo], dict[str, int]]:
    """Send one query to each node; return the answers by node, and the nodes without one by message id."""
    messages = [Message(pack_instruction(hello), node, MessageType.QUERY) for node in nodes]
    replies = list(grid.send_and_receive(messages, timeout=timeout))
    asked = {message.metadata.message_id: message.metadata.dst_node_id for message in messages}
    answers = read_answers(replies, asked)
    return answers, {message: node for message, node in asked.items() if node not in answers}


def read_answers(replies: Iterable[Message], asked: Mapping[str, int]) -> dict[int, ClientInfo]:
    """Return the answers by node; a node that fails answers with ``error`` set."""
    answers: dict[int, ClientInfo] = {}
    for reply in replies:
        node = asked.get(reply.metadata.reply_to_message_id)
        if node is None:
            continue
        if reply.has_error():
            failure = failure_of(str(node), "start", reply)
            answers[node] = ClientInfo(str(node), error=f"{failure.kind}: {failure.reason}")
            continue
        try:
            answers[node] = unpack_info(reply.content)
        except RejectedMessage as error:
            answers[node] = ClientInfo(str(node), error=f"RejectedMessage: {error}")
    return answers


def misfits(name: str, requires: Sequence[str], clients: Mapping[str, ClientInfo]) -> str:
    """Return why the clients do not fit a method together, naming them; "" if they do."""
    for requirement in requires:
        attribute, words = EQUAL[requirement]
        holders: dict[Any, list[str]] = {}
        for client, info in clients.items():
            if not getattr(info, attribute):
                return (
                    f"{name} needs {words}, which client {client} ({info.model}) cannot have: its head is no nn.Module"
                )
            holders.setdefault(getattr(info, attribute), []).append(f"{client} ({info.model})")
        if len(holders) > 1:
            groups = "; ".join(
                (f"{value}: " if isinstance(value, int) else "") + ", ".join(who[:4] + ["..."] * (len(who) > 4))
                for value, who in holders.items()
            )
            return (
                f"{name} needs clients with {words}, got {len(holders)} kinds: {groups}; "
                'choose models that agree (setting "models"), or another method'
            )
    return ""


def failure_of(client: str, phase: str, reply: Message) -> Failure:
    """Turn an error reply into a failure with the exception's type and first line.

    Raises:
        WorkerLostError: If the reply says that a worker process of the simulation died.
    """
    reason = str(reply.error.reason)
    if "ActorDiedError" in reason or "RayActorError" in reason or "WorkerCrashedError" in reason:
        raise WorkerLostError(
            f"a worker process of the simulation died while client {client} was at work (phase {phase}); it may have "
            "run out of memory: use fewer workers at once (fedapp run --set workers=1; client-resources-num-cpus with "
            "flwr run), or smaller models or batches"
        )
    kind, text = split_reason(reason)
    return Failure(client, phase, {5: "NodeUnavailable", 3: "NodeUnavailable"}.get(reply.error.code, kind), text)


def split_reason(reason: str) -> tuple[str, str]:
    """Split what a failed client says into the exception's type and its first line.

    Understands Flower's ``<class 'X'>:<'text'>``, our ``X: text``, and the stack trace that a Ray worker sends.

    Example:
        >>> split_reason("<class 'ValueError'>:<'boom'>")
        ('ValueError', 'boom')
        >>> split_reason("SettingError: unknown data set")
        ('SettingError', 'unknown data set')
    """
    if "RayTaskError" in reason:
        reason = _last_line_of_trace(reason.split("\n\nThe above exception was the direct cause", 1)[0])
    match = re.match(r"<class '(?:[\w.]*\.)?(\w+)'>:<'(.*)'>\s*$", reason, flags=re.DOTALL) or re.match(
        r"(?:[\w.]*\.)?(\w+): (.*)$", reason, flags=re.DOTALL
    )
    kind, text = match.groups() if match else ("Error", reason)
    lines = [line for line in text.replace("\\n", "\n").splitlines() if line.strip()]
    return kind, (lines[0].strip() if lines else kind)


def _last_line_of_trace(trace: str) -> str:
    """Return what stands below the last frame of a stack trace: the exception's type and message."""
    lines = trace.splitlines()
    frames = [index for index, line in enumerate(lines) if line.startswith("  ")]
    return "\n".join(lines[frames[-1] + 1 :]) if frames else trace
