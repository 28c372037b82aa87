"""Clients' commands on queues: checked, and handed to the parts that perform them. See
docs/protocol.md, "Queues"."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Protocol

import msgpack

from raylay.services.errors import RemoteProtocolError
from raylay.services.messages.records import Run
from raylay.services.messages.spelling import queue_hint
from raylay.services.messages.stateful import PreparedRun
from raylay.services.protocol.client.codec import Codec
from raylay.services.protocol.client.commands import (
    QueueAck,
    QueueCancel,
    QueueStatus,
    SowCommand,
    Subscribe,
)
from raylay.services.server.clients.connection_limit import SessionShares
from raylay.services.server.queues.deliveries import QueueDeliveries
from raylay.services.server.queues.manager import QueueManager
from raylay.services.server.runtime import InstanceRuntime

if TYPE_CHECKING:
    # Most instances have no queues.
    from raylay.services.protocol.child.queue_control import QueueAnswer
    from raylay.services.queues.decisions import Consumer, ConsumerSubscription
    from raylay.services.queues.definition import QueueDefinition
    from raylay.services.queues.frontend import QueueFrontend
    from raylay.services.queues.records import Keys

SHOWN_CHARACTERS = 200
NAMED_MAX = 8
"""Number of queues that a refusal names."""

_UNKNOWN = {"queue_depth": None}
"""Status values of a queue whose owner has reported nothing yet."""


def _whole(status: Mapping[str, Any], definition: QueueDefinition) -> dict[str, Any]:
    """Adds the topic of the dead letters, and fills in None for the values of a status that the
    owner has not reported, behind the others: readers show the values in this order."""
    unknown = {key: value for key, value in _UNKNOWN.items() if key not in status}
    return {**status, "dead_letters": definition.dead_letters, **unknown}


class QueueClient(Protocol):
    """A client's connection (`ClientConnection`)."""

    number: int
    client_name: str
    publisher: int
    codec: Codec
    is_open: bool
    may_write: bool
    messages_out: int
    message_types: frozenset[bytes]

    @property
    def readable(self) -> Callable[[bytes], bool] | None:
        """Returns the test whether the client may read a topic, and so a queue; None: it may read
        all."""

    def send(self, frame: bytes) -> None:
        """Sends a frame at the end of the turn."""

    def send_parts(self, parts: Sequence[bytes], size_bytes: int) -> None:
        """Sends a frame that lies in several pieces."""


class QueueClients:
    """See the file's docstring.

    Owner: the instance's event loop. Lifecycle: one life of the instance.

    Args:
        deliveries: sends clients the messages that the owners of queues give them.
        counted: the user or connection that each subscription is counted for.
    """

    def __init__(
        self,
        runtime: InstanceRuntime,
        manager: QueueManager,
        deliveries: QueueDeliveries,
        counted: SessionShares,
    ) -> None:
        self._runtime = runtime
        self._manager = manager
        self._deliveries = deliveries
        self._subscribed = deliveries.subscribed
        self._consumers = 0
        self._counted = counted

    # -- finding a queue -----------------------------------------------------------------------
    def find(self, topic: str, message_type: str) -> QueueFrontend | None:
        """Returns the queue of a name; of any message type where none is given."""
        queues = self._manager.queues
        if queues is None:
            return None
        for frontend in queues.frontends.values():
            definition = frontend.definition
            if definition.name == topic and message_type in ("", definition.message_type):
                return frontend
        return None

    def _named(self, topic: str, message_type: str, client: QueueClient) -> QueueFrontend:
        frontend = self.find(topic, message_type)
        if frontend is None or (
            client.message_types and frontend.message_type not in client.message_types
        ):
            raise RemoteProtocolError(self.no_queue(topic, message_type, client), "no_queue")
        return frontend

    def no_queue(self, topic: str, message_type: str, client: QueueClient) -> str:
        """Returns the sentence that says that a name is no queue here, with the queue that was
        probably meant, or the queues that there are. It names only queues that the client may
        read."""
        instance = self._runtime.config.name
        queues = sorted(
            (frontend.definition.name, frontend.definition.message_type)
            for frontend in self._offered(client).values()
        )
        names = list(dict.fromkeys(name for name, _ in queues))
        more = f" and {len(names) - NAMED_MAX} more" if names[NAMED_MAX:] else ""
        shown = topic[:SHOWN_CHARACTERS]
        hint = queue_hint(shown, message_type, queues)
        there = f"its queues are {', '.join(names[:NAMED_MAX])}{more}" if names else "it has none"
        return f"{shown!r} is no queue of {instance}: {hint or there}"

    # -- subscriptions -------------------------------------------------------------------------
    def has(self, client: QueueClient, name: str) -> bool:
        """Returns whether the client has a queue subscription of this id."""
        return name in self._subscribed.get(client.number, ())

    def subscribe(self, client: QueueClient, command: Subscribe, frontend: QueueFrontend) -> None:
        """Begins a queue subscription, or replaces the filter or backlog of one; its leases remain.

        Raises:
            RemoteProtocolError: an option does not apply to queues, or the id belongs to a
                subscription of another queue.
        """
        from raylay.services.queues.decisions import ConsumerSubscription

        for given, option in ((command.oof, "oof"), (command.select, "select")):
            if given:
                raise RemoteProtocolError(
                    f"{option} is no option of a queue: leave it out", "not_supported"
                )
        of_session = self._subscribed.setdefault(client.number, {})
        before = of_session.get(command.subscription)
        if before is not None and before[0] is not frontend:
            raise RemoteProtocolError(
                "replace gives a subscription another filter or backlog, not another queue",
                "bad_command",
            )
        consumer = self._numbered(client, command.subscription) if before is None else before[1]
        of_session[command.subscription] = frontend, consumer
        each = ConsumerSubscription(
            consumer, client.client_name, command.filter, command.max_backlog or 1
        )
        self._tell(frontend, self._deliveries.terms(client, each))

    def _numbered(self, client: QueueClient, name: str) -> Consumer:
        """Returns a new consumer id. A client that subscribes again under the same id is a new
        consumer, so that earlier decisions of the owner do not apply to it."""
        self._consumers += 1
        consumer = client.number, f"{self._consumers}:{name}"
        user = self._counted.user_of(client.number)
        self._counted.subscriptions.add(consumer, user, None)
        return consumer

    def _tell(self, frontend: QueueFrontend, each: ConsumerSubscription) -> None:
        """Tells the owner, and any owner that is started later, the terms of a consumer."""
        self._manager.controls[frontend.definition.stored_as].consumes(each)

    def unsubscribe(
        self,
        client: QueueClient,
        name: str,
        *,
        begun: Keys | None = None,
        is_cancel: bool = False,
    ) -> bool:
        """Ends a queue subscription; returns whether there was one. The owner is told in one step
        that the consumer leaves and what becomes of its messages, so that it serves the consumer
        none of them again.

        Args:
            begun, is_cancel: see `Unsubscribe`.
        """
        of_session = self._subscribed.get(client.number)
        found = of_session.pop(name, None) if of_session else None
        if found is None:
            return False
        self._deliveries.ended(client.number, name)
        self._left(*found, begun=begun, is_cancel=is_cancel)
        return True

    def terms(self, client: QueueClient, name: str) -> tuple[QueueDefinition, str, int] | None:
        """Returns the queue of a subscription, its filter and its backlog; None: the client has no
        queue subscription of this id."""
        found = self._subscribed.get(client.number, {}).get(name)
        if found is None:
            return None
        frontend, consumer = found
        each = frontend.consumers.get(consumer)
        return frontend.definition, *(("", 0) if each is None else (each.filter, each.backlog_max))

    def count(self, client: QueueClient) -> int:
        return len(self._subscribed.get(client.number, ()))

    def names(self, client: QueueClient) -> list[str]:
        return list(self._subscribed.get(client.number, ()))

    def gone(self, client: QueueClient) -> None:
        for found in self._subscribed.pop(client.number, {}).values():
            self._left(*found)
        self._deliveries.left(client.number)

    def _left(
        self,
        frontend: QueueFrontend,
        consumer: Consumer,
        *,
        begun: Keys | None = None,
        is_cancel: bool = False,
    ) -> None:
        from raylay.services.protocol.child import queue_control

        self._counted.subscriptions.remove(consumer)
        frontend.left(consumer)
        frame = queue_control.left(consumer, begun=begun, is_cancel=is_cancel)
        self._manager.controls[frontend.definition.stored_as].say(frame)

    # -- full sockets --------------------------------------------------------------------------
    def went_offline(self, client: QueueClient) -> None:
        """Stops deliveries to a client whose socket has taken nothing for long, whatever was sent
        to it last."""
        for name in self.names(client):
            found = self._deliveries.filled(client, name)
            if found is not None:
                self._tell(*found)

    def writable(self, client: QueueClient) -> None:
        for frontend, each in self._deliveries.emptied(client):
            self._tell(frontend, each)

    # -- acknowledgments and cancels -----------------------------------------------------------
    def cancel(self, client: QueueClient, command: QueueCancel) -> None:
        try:
            frontend = self._named(command.topic, command.message_type, client)
            count = self._manager.cancelled(
                frontend, client.number, command.keys, unseen=command.unseen
            )
        except RemoteProtocolError as error:
            self._refuse(client, command.command_id, error)
            return
        self._answer(client, command.command_id, count)

    def acknowledge(self, client: QueueClient, command: QueueAck) -> None:
        from raylay.services.protocol.child.queue_control import QueueQuestion

        count = 0

        def told(answer: QueueAnswer) -> None:
            nonlocal count
            count += self._found(client, command, frontend, answer)
            if client.is_open and not answer.more and not answer.error:
                self._answer(client, command.command_id, count)

        try:
            frontend = self._named(command.topic, command.message_type, client)
            control = self._manager.controls[frontend.definition.stored_as]
            control.ask(QueueQuestion("keys", command.filter), told)
        except RemoteProtocolError as error:
            self._refuse(client, command.command_id, error)

    def _found(
        self, client: QueueClient, command: QueueAck, frontend: QueueFrontend, answer: QueueAnswer
    ) -> int:
        """Performs the command on a part of the messages that the owner found; returns on how
        many."""
        from raylay.services.queues.records import Acknowledgment, parts_of

        if not client.is_open:
            return 0
        if answer.error:
            self._refuse(
                client, command.command_id, RemoteProtocolError(answer.error, answer.reason)
            )
            return 0
        flat = msgpack.unpackb(answer.body, strict_map_key=False)
        keys = {
            publisher: list(zip(each[::2], each[1::2], strict=True))
            for publisher, each in flat.items()
        }
        if command.how == "cancel":
            holder = client.number if frontend.definition.strict else None
            return self._manager.cancelled(frontend, holder, keys)
        said = Acknowledgment(keys, command.how)
        said = frontend.without_others(said, client.publisher, self._manager.steady_us())
        return sum(self._manager.acknowledge(frontend, each) for each in parts_of(said))

    def _answer(self, client: QueueClient, command_id: str, count: int) -> None:
        if command_id:
            client.send(client.codec.acknowledgment("processed", command_id, n=count))

    def _refuse(self, client: QueueClient, command_id: str, error: RemoteProtocolError) -> None:
        client.send(
            client.codec.acknowledgment("processed", command_id or "-", error.reason, str(error))
        )

    def held_only(self, run: Run) -> PreparedRun:
        """Returns the part of a client's acknowledgments that names messages which it holds."""
        from raylay.services.core.queues import held_only

        queues = self._manager.queues
        frontend = None if queues is None else queues.find(run.topic, run.message_type)
        if queues is None or frontend is None:
            return PreparedRun((run,))
        return held_only(queues, frontend, run, self._runtime.now_us())

    # -- questions -----------------------------------------------------------------------------
    def status(self, client: QueueClient, command: QueueStatus) -> None:
        """Sends the status of a queue, as its owner reports it now, or of all queues as of half a
        second ago."""
        from raylay.services.protocol.child.queue_control import QueueQuestion

        found = self._manager.status().get("queues", {})
        try:
            if not command.topic:
                self._say_status(client, command, self._shown(client, found))
                return
            frontend = self._named(command.topic, command.message_type, client)
        except RemoteProtocolError as error:
            self._refuse(client, command.command_id, error)
            return
        name = frontend.definition.stored_as
        control = self._manager.controls[name]

        def told(answer: QueueAnswer) -> None:
            if not answer.error:
                control.counts = json.loads(answer.body)
            if client.is_open:
                self._say_status(client, command, _whole(control.status(), frontend.definition))

        try:
            if control.counts:
                control.ask(QueueQuestion("status"), told)
            else:
                # Nothing is known of the queue: an instance that has just started waits for the
                # owner.
                control.ask_when_started(QueueQuestion("status"), told)
        except RemoteProtocolError:
            # The owner cannot be asked: its last report is sent.
            self._say_status(client, command, _whole(found[name], frontend.definition))

    def _shown(self, client: QueueClient, found: Mapping[str, Any]) -> dict[str, Any]:
        """Returns the status of the queues that the client may read."""
        return {name: found[name] for name in self._offered(client) if name in found}

    def _offered(self, client: QueueClient) -> dict[str, QueueFrontend]:
        """Returns the queues that the client may read, as far as its transport admits their message
        type."""
        queues, readable, types = self._manager.queues, client.readable, client.message_types
        if queues is None:
            return {}
        return {
            name: frontend
            for name, frontend in queues.frontends.items()
            if (readable is None or readable(frontend.topic))
            and (not types or frontend.message_type in types)
        }

    def _say_status(
        self, client: QueueClient, command: QueueStatus, found: Mapping[str, Any]
    ) -> None:
        body = msgpack.packb(found)
        client.send(client.codec.acknowledgment("processed", command.command_id or "-", body=body))

    def sow(self, client: QueueClient, command: SowCommand, frontend: QueueFrontend) -> None:
        """Sends the messages that no consumer holds, as they are now.

        Raises:
            RemoteProtocolError: an option does not apply to queues, or the owner does not answer
                now.
        """
        from raylay.services.protocol.child.queue_control import QueueQuestion

        for given, why in (
            (command.keys is not None, "keys: messages of a queue have none: give a filter"),
            (command.as_of, "as_of: a queue keeps no history: replay its underlying topic"),
        ):
            if given:
                raise RemoteProtocolError(why, "not_supported")
        question = QueueQuestion(
            "sow", command.filter, command.select, command.order_by, command.top_n, command.skip_n
        )
        rows = _Rows(client, command)
        self._manager.controls[frontend.definition.stored_as].ask(question, rows.told)


class _Rows:
    """The answer to one query, on its way to the client."""

    def __init__(self, client: QueueClient, command: SowCommand) -> None:
        self._client = client
        self._command = command
        self._has_begun = False
        self._sent = 0

    def told(self, answer: QueueAnswer) -> None:
        client, command = self._client, self._command
        if not client.is_open:
            return
        codec, query = client.codec, command.query
        if answer.error and not self._has_begun:
            client.send(
                codec.acknowledgment(
                    "processed", command.command_id, answer.reason, answer.error, sub=query
                )
            )
            return
        if not self._has_begun:
            self._has_begun = True
            if "processed" in command.acks or not command.acks:
                client.send(codec.acknowledgment("processed", command.command_id, sub=query))
            client.send(codec.group_begin(query))
        self._rows(answer)
        if not answer.more:
            client.send(codec.group_end(query, self._sent, answer.matches))
            if "completed" in command.acks:
                client.send(codec.acknowledgment("completed", command.command_id, sub=query))

    def _rows(self, answer: QueueAnswer) -> None:
        command = self._command
        rows: list[bytes] = []
        body, at = answer.body, 0
        while at < len(body):
            end = at + int.from_bytes(body[at : at + 4], "little")
            rows.append(body[at:end])
            if len(rows) == command.batch:
                self._send(rows)
                rows = []
            at = end
        if rows:
            self._send(rows)

    def _send(self, rows: list[bytes]) -> None:
        self._sent += len(rows)
        self._client.send_parts(*self._client.codec.sow(self._command.query, rows))
