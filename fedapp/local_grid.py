"""A Flower grid that runs ClientApps in this process: tests, notebooks, small runs; bit-reproducible.

The ServerApp and the ClientApp stay unmodified. With ``serialise=True`` every message goes through Flower's own
serialisation in both directions, as in a deployment.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping
from typing import Any, cast
from uuid import uuid4

from flwr.app import Context, Error, Message, RecordDict
from flwr.serverapp import Grid
from flwr.supercore.inflatable.inflatable_object import get_all_nested_objects
from flwr.supercore.inflatable.inflatable_utils import inflate_object_from_contents
from flwr.supercore.run import Run
from flwr.supercore.task_identity import TaskIdentity

ClientFunction = Callable[[Message, Context], Message]
CLIENT_APP_RAISED = 2
FIRST_NODE = 1000


class LocalGrid(Grid):
    """Flower's grid, in one process; clients run one after the other, when messages are pushed.

    Args:
        app: The ClientApp.
        num_clients: Nodes; node i has partition-id i.
        run_config: The run config that the ClientApp sees.
        serialise: True to pass every message through Flower's serialisation.
    """

    def __init__(
        self,
        app: ClientFunction,
        num_clients: int,
        run_config: Mapping[str, Any] | None = None,
        *,
        serialise: bool = False,
    ) -> None:
        TaskIdentity.run_id = TaskIdentity.task_id = TaskIdentity.node_id = 1
        self.app = app
        self.serialise = serialise
        self.contexts = {
            FIRST_NODE + index: Context(
                run_id=1,
                node_id=FIRST_NODE + index,
                node_config={"partition-id": index, "num-partitions": num_clients, "local-engine": True},
                state=RecordDict(),
                run_config=dict(run_config or {}),
            )
            for index in range(num_clients)
        }
        self._replies: dict[str, Message] = {}

    def set_run(self, run: Run) -> None:
        """Do nothing: there is one run."""

    @property
    def run(self) -> Run:
        """The run's description."""
        return Run.create_empty(1)

    def create_message(
        self, content: RecordDict, message_type: str, dst_node_id: int, group_id: str, ttl: float | None = None
    ) -> Message:
        """Return a message to a node."""
        return Message(content, dst_node_id, message_type, ttl=ttl, group_id=group_id)

    def get_node_ids(self) -> Iterable[int]:
        """Return the ids of all nodes."""
        return list(self.contexts)

    def push_messages(self, messages: Iterable[Message]) -> Iterable[str]:
        """Run the ClientApp on each message; replies wait for :meth:`pull_messages`."""
        identifiers = []
        for message in messages:
            identifier = uuid4().hex
            message.metadata.__dict__["_message_id"] = identifier
            self._replies[identifier] = self._answer(message)
            identifiers.append(identifier)
        return identifiers

    def pull_messages(self, message_ids: Iterable[str]) -> Iterable[Message]:
        """Return the replies to the given messages, once."""
        return [self._replies.pop(identifier) for identifier in message_ids if identifier in self._replies]

    def send_and_receive(self, messages: Iterable[Message], *, timeout: float | None = None) -> Iterable[Message]:
        """Run the ClientApp on each message and return the replies.

        Clients run one after the other but stand for clients side by side: a reply that took a client longer than
        ``timeout`` seconds is lost, as it would be for a server that waits no longer.
        """
        replies: list[Message] = []
        for message in messages:
            started = time.perf_counter()
            answered = self.pull_messages(self.push_messages([message]))
            if timeout is None or time.perf_counter() - started <= timeout:
                replies.extend(answered)
        return replies

    def _answer(self, message: Message) -> Message:
        received = self._through_the_wire(message) if self.serialise else message
        try:
            reply = self.app(received, self.contexts[message.metadata.dst_node_id])
            return self._through_the_wire(reply) if self.serialise else reply
        except Exception as error:  # as Flower does: an error reply, and the run goes on
            return Message(Error(CLIENT_APP_RAISED, f"{type(error)}:<'{error}'>"), reply_to=received)

    def _through_the_wire(self, message: Message) -> Message:
        contents = {key: nested.deflate() for key, nested in get_all_nested_objects(message).items()}
        inflated = cast(Message, inflate_object_from_contents(message.object_id, contents))
        inflated.metadata.__dict__["_message_id"] = message.metadata.message_id
        return inflated
