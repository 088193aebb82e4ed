"""One phase of a round: what was sent to whom, and what of the replies can be used."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from logging import WARNING

from flwr.app import Message, MessageType
from flwr.common.logger import log

from fedapp.payload import ArraySpec, ClientInfo, Instruction, Uplink, order
from fedapp.strategies.records import HEADLINE, Failure, RoundRecord, Traffic
from fedapp.strategies.roster import failure_of
from fedapp.wire import Packed, RejectedMessage, header_bytes, pack_instruction, payload_bytes, unpack_uplink

TRAIN, EVALUATE = "train", "evaluate"
Check = Callable[[Uplink], None]


class Exchange:
    """Messages of one phase and their replies; bytes and failures go into the round's record.

    Args:
        phase: "train" or "evaluate".
        record: The round's record.
        timeout: Seconds that the server waits, for the message about clients that did not answer.
    """

    def __init__(self, phase: str, record: RoundRecord, timeout: float) -> None:
        self.phase = phase
        self.record = record
        self.timeout = timeout
        self.sent: dict[str, Message] = {}
        self.sizes: dict[str, int] = {}
        self._packed: Packed = {}

    def send(self, client: ClientInfo, node: int, instruction: Instruction) -> None:
        """Add a message to a client."""
        name = client.client
        self.sizes[name] = client.num_examples if self.phase == TRAIN else client.num_test
        content = pack_instruction(instruction, self._packed)
        self.record.traffic[self.phase, name] = Traffic(
            payload_down=payload_bytes(content), header_down=header_bytes(content)
        )
        kind = MessageType.TRAIN if self.phase == TRAIN else MessageType.EVALUATE
        self.sent[name] = Message(content, node, kind, group_id=str(instruction.round))

    def collect(
        self, replies: Iterable[Message], specs: Callable[[str], Mapping[str, ArraySpec]], check: Check
    ) -> list[Uplink]:
        """Check replies against who was asked and return the usable ones in the order of the client ids.

        Args:
            replies: What came back, in any order.
            specs: Returns what the arrays of a client must look like.
            check: Raises ``ValueError`` for an uplink that cannot be used.
        """
        usable: dict[str, Uplink] = {}
        for client, reply in self._sorted(replies):
            if reply.has_error():
                self.record.failures.append(failure_of(client, self.phase, reply))
                continue
            traffic = self.record.traffic[self.phase, client]
            traffic.payload_up, traffic.header_up = payload_bytes(reply.content), header_bytes(reply.content)
            try:
                uplink = unpack_uplink(reply.content, client, specs(client))
                self._check_size(uplink)
                check(uplink)
            except ValueError as error:
                text = str(error) if isinstance(error, RejectedMessage) else f"client {client!r}: {error}"
                self._fail(client, "RejectedMessage", text)
            else:
                usable[client] = uplink
        self.record.failures.sort(key=lambda failure: (failure.phase != TRAIN, order(failure.client)))
        return [usable[client] for client in self.sent if client in usable]

    def _check_size(self, uplink: Uplink) -> None:
        held = self.sizes[uplink.client]
        if uplink.num_examples > held:
            raise ValueError(
                f"num_examples must be at most the {held} samples that it said it holds, got {uplink.num_examples}"
            )

    def _sorted(self, replies: Iterable[Message]) -> list[tuple[str, Message]]:
        """Return the first reply of every client asked; note what is foreign, double or missing."""
        asked = {message.metadata.message_id: client for client, message in self.sent.items()}
        first: dict[str, Message] = {}
        for reply in replies:
            client = asked.get(reply.metadata.reply_to_message_id)
            if client is None:
                self._fail("unknown", "RejectedMessage", "a reply to a message that was not sent this round")
            elif client in first:
                self._fail(client, "RejectedMessage", f"client {client!r} answered twice; the first counts")
            else:
                first[client] = reply
        for client in self.sent:
            if client not in first:
                self._fail(client, "NoReply", f"no reply from client {client!r} within {self.timeout:g} s")
        return list(first.items())

    def _fail(self, client: str, kind: str, reason: str) -> None:
        log(WARNING, "client %s, %s: %s: %s", client, self.phase, kind, reason)
        self.record.failures.append(Failure(client, self.phase, kind, reason))


def check_accuracy(uplink: Uplink) -> None:
    """Check that the headline metric of an evaluation is a share.

    Raises:
        ValueError: If it is not in [0, 1].
    """
    if not 0 <= uplink.metrics.get(HEADLINE, 0) <= 1:
        raise ValueError(f"{HEADLINE} must be in [0, 1], got {uplink.metrics[HEADLINE]}")
