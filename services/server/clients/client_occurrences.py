"""The occurrences of clients, for actions and event topics (services/server/occurrences.py):
connections, logons, subscriptions, queries, deletes and refusals.

The variables of a subscription are read from the subscription itself when somebody wants to know,
so that an instance without listeners keeps and computes nothing for it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from raylay.services.messages.records import (
    COMMAND_AT,
    Command,
    Record,
    Run,
    iterate_records,
)
from raylay.services.protocol.client.commands import SowCommand, Subscribe
from raylay.services.security.permissions import Permissions, unrestricted
from raylay.services.server.clients.transport import ClientTransport
from raylay.services.server.runtime import InstanceRuntime
from raylay.services.subscriptions.bookmark import BookmarkSubscription
from raylay.services.subscriptions.matching import LiveSubscription

CONNECT, LOGON, DISCONNECT = "connect-client", "logon-client", "disconnect-client"
SUBSCRIBE, UNSUBSCRIBE = "subscribe", "unsubscribe"
QUERY, DELETE = "sow", "sow-delete"
OFFLINE_START, OFFLINE_STOP = "offline-start", "offline-stop"
AUTHENTICATION_FAILURE, ENTITLEMENT_FAILURE = "authentication-failure", "entitlement-failure"
CONNECTION_CLOSED = "connection closed"
"""Reason of a disconnect that the client began, or the network."""
TEXT_CHARACTERS_MAX = 16_384
"""Characters of a client's text in a variable: a bookmark may be a list of any length."""


class ObservedClient(Protocol):
    """A client's connection (`ClientConnection`)."""

    number: int
    client_name: str
    user_id: str
    peer: str
    connected_us: int
    permissions: Permissions | None
    accepted_by: ClientTransport


class ClientOccurrences:
    """See the file's docstring.

    Owner: the instance's event loop. Lifecycle: one life of the instance.

    Args:
        replay_options: returns the options of a bookmark subscription as a client would write them.
    """

    __slots__ = ("_instance", "_occurrences", "_replay_options")

    def __init__(
        self, runtime: InstanceRuntime, replay_options: Callable[[BookmarkSubscription], str]
    ) -> None:
        self._occurrences = runtime.occurrences
        self._instance = runtime.config.name
        self._replay_options = replay_options

    def wanted(self, kind: str) -> bool:
        """Returns whether anybody listens to a kind."""
        return self._occurrences.wanted(kind)

    # -- connections -------------------------------------------------------------------------
    def connected(self, client: ObservedClient) -> None:
        self._tell(CONNECT, client)

    def logged_on(self, client: ObservedClient) -> None:
        self._tell(LOGON, client)

    def disconnected(self, client: ObservedClient, reason: str) -> None:
        """Tells that a connection has ended, before its subscriptions are told.

        Args:
            reason: the reason, as the client was told it.
        """
        self._tell(DISCONNECT, client, reason=reason.replace("_", " "))

    def went_offline(self, client: ObservedClient) -> None:
        self._tell(OFFLINE_START, client)

    def came_online(self, client: ObservedClient) -> None:
        self._tell(OFFLINE_STOP, client)

    def refused_logon(
        self, client: ObservedClient, name: str, user: str, *, entitled: bool
    ) -> None:
        """Tells that a logon was refused.

        Args:
            name, user: the client name and the user that the logon claimed.
            entitled: False where the user is known, and its permissions have no logon.
        """
        kind = AUTHENTICATION_FAILURE if entitled else ENTITLEMENT_FAILURE
        self._tell(
            kind,
            client,
            reason="auth" if entitled else "entitlement",
            command="logon",
            AMPS_CLIENT_NAME=name,
            AMPS_AUTHENTICATION_ID=user,
        )

    def denied(
        self, client: ObservedClient, command: str, topic: str, message_type: str, text: str
    ) -> None:
        """Tells that a client's permissions did not allow a command.

        Args:
            text: the sentence that the client was given.
        """
        self._tell(
            ENTITLEMENT_FAILURE,
            client,
            reason="entitlement",
            command=command,
            text=text,
            AMPS_TOPIC=topic,
            AMPS_MESSAGE_TYPE=message_type,
        )

    # -- subscriptions -----------------------------------------------------------------------
    def subscribed(
        self,
        client: ObservedClient,
        subscription: LiveSubscription | BookmarkSubscription,
        *,
        replaces: bool = False,
    ) -> None:
        """Tells that a subscription has begun, or has been given another filter."""
        if self._occurrences.wanted(SUBSCRIBE):
            found = self._of_subscription(client, subscription)
            if replaces:
                found["AMPS_OPTIONS"] = _joined("replace", found["AMPS_OPTIONS"])
            self._occurrences.tell(SUBSCRIBE, found)

    def unsubscribed(
        self,
        client: ObservedClient,
        subscription: LiveSubscription | BookmarkSubscription,
        reason: str,
    ) -> None:
        """Tells that a subscription has ended. To be called while the subscription is still known
        to the parts that deliver to it."""
        if self._occurrences.wanted(UNSUBSCRIBE):
            found = self._of_subscription(client, subscription)
            found["reason"] = reason.replace("_", " ")
            self._occurrences.tell(UNSUBSCRIBE, found)

    def subscribed_queue(self, client: ObservedClient, command: Subscribe, queue_type: str) -> None:
        """Tells that a queue subscription has begun, or has been given another filter or backlog.

        Args:
            queue_type: message type of the queue.
        """
        if self._occurrences.wanted(SUBSCRIBE):
            found = self._of_queue(
                client,
                command.subscription,
                command.topic,
                queue_type,
                command.filter,
                command.max_backlog or 1,
            )
            if command.replace:
                found["AMPS_OPTIONS"] = _joined("replace", found["AMPS_OPTIONS"])
            self._occurrences.tell(SUBSCRIBE, found)

    def unsubscribed_queue(
        self,
        client: ObservedClient,
        name: str,
        topic: str,
        message_type: str,
        terms: tuple[str, int],
        reason: str,
    ) -> None:
        """Tells that a queue subscription has ended.

        Args:
            name: id of the subscription.
            terms: filter of the subscription, and its backlog.
        """
        if self._occurrences.wanted(UNSUBSCRIBE):
            found = self._of_queue(client, name, topic, message_type, *terms)
            found["reason"] = reason.replace("_", " ")
            self._occurrences.tell(UNSUBSCRIBE, found)

    def queried(self, client: ObservedClient, command: SowCommand, *, subscribes: bool) -> None:
        """Tells that a query was accepted.

        Args:
            subscribes: whether it is the query of a sow_and_subscribe.
        """
        if not self._occurrences.wanted(QUERY):
            return
        options = [f"top_n={command.top_n}"] if command.top_n is not None else []
        if command.skip_n:
            options.append(f"skip_n={command.skip_n}")
        if command.order_by:
            options.append(f"order_by=[{command.order_by}]")
        if command.select:
            options.append(f"select=[{command.select}]")
        if command.as_of:
            options.append(f"as_of={command.as_of}")
        found = self._of(client)
        restriction = _restriction(client, command.topic)
        found.update(
            query_id=command.query,
            sub_id=command.query if subscribes else "",
            command="sow_and_subscribe" if subscribes else "sow",
            AMPS_TOPIC=command.topic,
            AMPS_MESSAGE_TYPE=command.message_type,
            AMPS_FILTER=unrestricted(command.filter, restriction),
            AMPS_OPTIONS=",".join(options)[:TEXT_CHARACTERS_MAX],
            entitlement_filter=restriction,
        )
        self._occurrences.tell(QUERY, found)

    # -- deletes -----------------------------------------------------------------------------
    def deleted(self, client: ObservedClient, runs: list[Run]) -> None:
        """Tells the deletes in a client's publishes. To be called only if `sow-delete` has a
        listener."""
        for run in runs:
            if run.payload[COMMAND_AT] != Command.DELETE:
                continue
            topic = run.topic.decode("utf-8", "replace")
            message_type = run.message_type.decode("utf-8", "replace")
            for record in iterate_records(run.payload):
                self._tell(
                    DELETE,
                    client,
                    command="sow_delete",
                    AMPS_TOPIC=topic,
                    AMPS_MESSAGE_TYPE=message_type,
                    AMPS_FILTER=_filter_of_delete(record),
                    AMPS_OPTIONS="",
                    entitlement_filter="",
                )

    # -- variables ---------------------------------------------------------------------------
    def _tell(self, kind: str, client: ObservedClient, **further: str) -> None:
        if self._occurrences.wanted(kind):
            found = self._of(client)
            found.update(further)
            self._occurrences.tell(kind, found)

    def _of(self, client: ObservedClient) -> dict[str, str]:
        transport = client.accepted_by.name
        connection = f"{self._instance}-{transport}-{client.number}-{client.connected_us}"
        return {
            # A client that has not logged on has no name but its connection's.
            "AMPS_CLIENT_NAME": client.client_name or connection,
            "AMPS_CONNECTION_NAME": connection,
            "AMPS_AUTHENTICATION_ID": client.user_id,
            "client_address": client.peer,
            "correlation_id": "",
            "transport": transport,
        }

    def _of_subscription(
        self, client: ObservedClient, subscription: LiveSubscription | BookmarkSubscription
    ) -> dict[str, str]:
        wanted = subscription.filter
        topic = wanted.written.decode("utf-8", "replace")
        types = b",".join(sorted(wanted.message_types)).decode("utf-8", "replace")
        restriction = "" if wanted.pattern is not None else _restriction(client, topic)
        is_query = False
        if isinstance(subscription, BookmarkSubscription):
            content = subscription.content
            text = "" if content is None else content.text
            options = self._replay_options(subscription)
        else:
            following, text = subscription.following, subscription.written_filter
            is_query = following is not None and following.began_with_rows
            options = subscription.options
        found = self._of(client)
        found.update(
            sub_id=subscription.id,
            query_id=subscription.id if is_query else "",
            command="sow_and_subscribe" if is_query else "subscribe",
            AMPS_TOPIC=topic,
            AMPS_MESSAGE_TYPE=types,
            AMPS_FILTER=unrestricted(text, restriction),
            AMPS_OPTIONS=options[:TEXT_CHARACTERS_MAX],
            entitlement_filter=restriction,
        )
        return found

    def _of_queue(
        self,
        client: ObservedClient,
        name: str,
        topic: str,
        message_type: str,
        text: str,
        backlog: int,
    ) -> dict[str, str]:
        restriction = _restriction(client, topic)
        found = self._of(client)
        found.update(
            sub_id=name,
            query_id="",
            command="subscribe",
            AMPS_TOPIC=topic,
            AMPS_MESSAGE_TYPE=message_type,
            AMPS_FILTER=unrestricted(text, restriction),
            AMPS_OPTIONS=f"max_backlog={backlog}",
            entitlement_filter=restriction,
        )
        return found


def _restriction(client: ObservedClient, topic: str) -> str:
    """Returns the filter that the client's permissions add on a topic; empty: none."""
    permissions = client.permissions
    return "" if permissions is None else permissions.read(topic.encode()).filter


def _joined(first: str, others: str) -> str:
    return f"{first},{others}" if others else first


def _filter_of_delete(record: Record) -> str:
    """Returns the content filter of a delete; empty: it names keys or a message."""
    # Most instances have no SOW topics, and need not load the filter language.
    from raylay.services.sow.delete_scan import said_by

    found: str = said_by(record).get("filter", "")
    return found
