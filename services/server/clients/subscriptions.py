"""Clients' subscriptions and queries: commands, checked and handed to the parts that perform
them."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from raylay.services.errors import RemoteProtocolError, StorageError
from raylay.services.messages.bookmarks import Position, parse_position
from raylay.services.messages.topics import is_regex
from raylay.services.protocol.client.commands import (
    Pause,
    QueueAck,
    QueueCancel,
    QueueStatus,
    ReaderCommand,
    Resume,
    SowAndSubscribe,
    SowCommand,
    Subscribe,
    Unsubscribe,
)
from raylay.services.security.publishing import NOT_ENTITLED
from raylay.services.security.reading import ReadRequest, RestrictedRead, reading
from raylay.services.security.retained_bytes import RetainedClaim, keys_bytes
from raylay.services.subscriptions.bookmark import BookmarkSubscription, ReplayContent
from raylay.services.subscriptions.follow_terms import FollowTerms
from raylay.services.subscriptions.matching import (
    LiveSubscription,
    TopicFilter,
    topic_filter,
)

if TYPE_CHECKING:
    from raylay.services.messages.topic_pattern import TopicPattern
    from raylay.services.queues.frontend import QueueFrontend
    from raylay.services.server.clients.sessions import ClientSession, ClientSessions

SUBSCRIPTIONS_MAX = 10_000
"""Limit on the subscriptions of one connection."""
UNSUBSCRIBED = "unsubscribe"
"""Reason of the end of a subscription that its client ended."""
_QUEUE_COMMANDS = {
    QueueAck: "queue_ack", QueueCancel: "queue_cancel", QueueStatus: "queue_status"
}  # fmt: skip


class ClientSubscriptions:
    """See the file's docstring.

    Owner: the client's connection. Lifecycle: one connection.
    """

    __slots__ = ("_clients", "_connection")

    def __init__(self, connection: ClientSession, clients: ClientSessions) -> None:
        self._connection = connection
        self._clients = clients

    def _acknowledge(
        self, kind: str, command_id: str, reason: str = "", text: str = "", **extras: Any
    ) -> None:
        connection = self._connection
        if reason == NOT_ENTITLED:
            connection.denied_reads += 1
        connection.send(connection.codec.acknowledgment(kind, command_id, reason, text, **extras))

    def _denied(
        self, command: str, topic: str, message_type: str, error: RemoteProtocolError
    ) -> None:
        """Tells the listeners that a client's permissions did not allow a command; does nothing
        after any other refusal."""
        if error.reason == NOT_ENTITLED:
            self._clients.occurrences.denied(
                self._connection, command, topic, message_type, str(error)
            )

    def subscribe(self, command: Subscribe) -> None:
        """Performs a subscribe, or tells the client why not."""
        connection, name = self._connection, command.subscription
        frontend = self._clients.queued.find(command.topic, command.message_type)
        if frontend is not None and command.bookmark:
            # A queue's messages lie on its underlying topic: a replay takes nothing from the queue.
            of = frontend.definition
            command = replace(
                command, topic=of.topic, message_type=of.message_type, non_regex_topic=False
            )
            frontend = None
        try:
            if connection.permissions is not None:
                command = self._allowed(command, is_queue=frontend is not None)
        except RemoteProtocolError as error:
            self._denied("subscribe", command.topic, command.message_type, error)
            self._acknowledge("processed", command.command_id, error.reason, str(error), sub=name)
            return
        if frontend is not None:
            self._subscribe_queue(command, frontend)
            return
        try:
            if command.max_backlog:
                named = self._clients.queued.no_queue(
                    command.topic, command.message_type, connection
                )
                raise RemoteProtocolError(
                    f"{named}; only a queue has consumers: to read a topic, subscribe to it "
                    "without a backlog",
                    "no_queue",
                )
            self._check_name(name, command.replace)
            if "received" in command.acks:
                self._acknowledge("received", command.command_id, sub=name)
            wanted = topic_filter(
                command.topic,
                command.message_type,
                literal=command.non_regex_topic,
                allowed=connection.message_types,
                readable=connection.readable,
                rows=connection.rows,
            )
            self._check_share(wanted.pattern)
            if wanted.events:
                self._clients.events.check(wanted)
            if command.bookmark:
                self._subscribe_bookmark(command, wanted)
                return
            subscription = LiveSubscription(connection.number, name, wanted, command.filter)
            # To a view come changes of its records, and no messages.
            computed = self._clients.computes_any(wanted)
            if command.oof or command.delta or command.select or command.conflation or computed:
                subscription.following = FollowTerms(
                    command.select,
                    command.oof,
                    command.delta,
                    command.no_empties,
                    command.no_sowkey,
                    keeps_back=connection.keeps_back(wanted),
                    conflation=command.conflation,
                )
            before = connection.subscriptions.get(name)
            if before is not None:
                self._check_replaced(before, wanted)
            self._clients.live.add(subscription)
        except RemoteProtocolError as error:
            self._acknowledge("processed", command.command_id, error.reason, str(error), sub=name)
            return
        if before is not None:
            self._clients.replaced(before)
        connection.subscriptions[name] = subscription
        connection.began(subscription, replaces=before is not None)
        if "processed" in command.acks or not command.acks:
            self._acknowledge("processed", command.command_id, sub=name)
        if "completed" in command.acks:
            self._acknowledge("completed", command.command_id, sub=name)
        if "stats" in command.acks:
            self._acknowledge("stats", command.command_id, sub=name, matches=0, topic_matches=0)

    def _subscribe_queue(self, command: Subscribe, frontend: QueueFrontend) -> None:
        connection, name, queued = self._connection, command.subscription, self._clients.queued
        try:
            if command.conflation is not None:
                raise RemoteProtocolError(
                    f"{command.topic[:200]!r} is a queue, whose messages are given one by one: "
                    "leave conflation out",
                    "not_supported",
                )
            if not queued.has(connection, name):
                self._check_name(name, replaces=False)
            elif not command.replace:
                raise RemoteProtocolError(
                    f"subscription id {name!r} is in use on this connection", "sub_id_in_use"
                )
            if command.filter:
                self._clients.replay_filter(connection, command.filter)
            topic_filter(
                command.topic,
                frontend.definition.message_type,
                literal=True,
                allowed=connection.message_types,
            )
            self._check_share(None)
            queued.subscribe(connection, command, frontend)
        except RemoteProtocolError as error:
            self._acknowledge("processed", command.command_id, error.reason, str(error), sub=name)
            return
        self._clients.occurrences.subscribed_queue(
            connection, command, frontend.definition.message_type
        )
        if "received" in command.acks:
            self._acknowledge("received", command.command_id, sub=name)
        if "processed" in command.acks or not command.acks:
            self._acknowledge("processed", command.command_id, sub=name)
        if "completed" in command.acks:
            self._acknowledge("completed", command.command_id, sub=name)

    def query(self, command: SowCommand | SowAndSubscribe) -> None:
        """Performs a query, or tells the client why not."""
        connection, queries = self._connection, self._clients.queries
        subscribe = None if isinstance(command, SowCommand) else command.subscribe
        sow = command if isinstance(command, SowCommand) else command.sow
        name = sow.query
        try:
            if connection.permissions is not None:
                sow = self._allowed_query(sow, subscribe)
                if subscribe is not None:
                    subscribe = replace(subscribe, filter=sow.filter, select=sow.select)
            if subscribe is None and not sow.projection:
                frontend = self._clients.queued.find(sow.topic, sow.message_type)
                if frontend is not None:
                    self._check_name(name, replaces=False, subscribes=False)
                    self._clients.queued.sow(connection, sow, frontend)
                    self._clients.occurrences.queried(connection, sow, subscribes=False)
                    return
            if subscribe is not None:
                _check_page(sow, subscribe)
            replaces = subscribe is not None and subscribe.replace
            self._check_name(name, replaces, subscribe is not None)
            if subscribe is None:
                queries.ask(connection, sow, claim=self._claim(sow))
                self._clients.occurrences.queried(connection, sow, subscribes=False)
                return
            wanted = topic_filter(
                sow.topic,
                sow.message_type,
                literal=sow.non_regex_topic,
                allowed=connection.message_types,
                readable=connection.readable,
                rows=connection.rows,
            )
            self._check_share(wanted.pattern)
            if wanted.events:
                self._clients.events.check(wanted)
            before = connection.subscriptions.get(name)
            if before is not None:
                self._check_replaced(before, wanted, sow)
            if subscribe.bookmark:
                queries.ask(connection, sow, subscribe, *self._replay(subscribe, wanted))
            else:
                queries.ask(connection, sow, subscribe, claim=self._claim(sow))
            self._clients.occurrences.queried(connection, sow, subscribes=True)
        except RemoteProtocolError as error:
            self._denied(
                "sow" if subscribe is None else "sow_and_subscribe",
                sow.topic,
                sow.message_type,
                error,
            )
            self._acknowledge("processed", sow.command_id, error.reason, str(error), sub=name)

    def _claim(self, sow: SowCommand) -> RetainedClaim | None:
        keys = sow.keys
        return None if keys is None else self._clients.claim(self._connection, keys_bytes(keys))

    # -- permissions -------------------------------------------------------------------------
    def _allowed(self, command: Subscribe, *, is_queue: bool) -> Subscribe:
        """Returns the subscription, restricted to the messages that the client may read.

        Raises:
            RemoteProtocolError: the client may read none of them.
        """
        literal = command.non_regex_topic or is_queue
        if self._is_expression(command.topic, literal):
            return command
        may_select = not (is_queue or command.bookmark)
        filter_, select = self._reading(
            ReadRequest(
                command.topic,
                command.filter,
                command.select,
                may_select=may_select,
                conflation_key=_conflation_key(command),
            )
        )
        return replace(command, filter=filter_, select=select)

    def _allowed_query(self, command: SowCommand, subscribe: Subscribe | None) -> SowCommand:
        literal = command.non_regex_topic or (
            self._clients.queued.find(command.topic, command.message_type) is not None
        )
        if self._is_expression(command.topic, literal):
            return command
        may_select = not command.projection and (subscribe is None or not subscribe.bookmark)
        filter_, select = self._reading(
            ReadRequest(
                command.topic,
                command.filter,
                command.select,
                command.order_by,
                may_select,
                _conflation_key(subscribe),
            )
        )
        return replace(command, filter=filter_, select=select)

    def _is_expression(self, topic: str, literal: bool) -> bool:
        # A SOW topic's name may look like a regular expression: it then names the topic.
        return not literal and is_regex(topic) and not self._clients.names_sow(topic)

    def _reading(self, wish: ReadRequest) -> RestrictedRead:
        connection = self._connection
        assert connection.permissions is not None
        if wish.filter:
            # Checked alone: an invalid filter might become valid between the added parentheses.
            self._clients.replay_filter(connection, wish.filter)
        return reading(connection.permissions, connection.user_id, wish)

    def queue(self, command: QueueCancel | QueueAck | QueueStatus) -> None:
        """Performs a command on a queue, or tells the client why not."""
        connection, queued = self._connection, self._clients.queued
        try:
            # A question for all queues is answered with those that the client may read.
            is_of_all = isinstance(command, QueueStatus) and not command.topic
            if connection.permissions is not None and not is_of_all:
                given = command.filter if isinstance(command, QueueAck) else ""
                found = self._reading(ReadRequest(command.topic, given))
                if isinstance(command, QueueAck):
                    command = replace(command, filter=found.filter)
        except RemoteProtocolError as error:
            self._denied(_QUEUE_COMMANDS[type(command)], command.topic, command.message_type, error)
            self._acknowledge("processed", command.command_id or "-", error.reason, str(error))
            return
        if isinstance(command, QueueCancel):
            queued.cancel(connection, command)
        elif isinstance(command, QueueAck):
            queued.acknowledge(connection, command)
        else:
            queued.status(connection, command)

    def reader(self, command: ReaderCommand) -> None:
        """Takes the place of a named reader, or forgets the reader; tells the client when that is
        on disk, or why not."""
        connection = self._connection
        if not command.name:
            self._clients.runtime.spawn(self._list_readers(command.command_id or "-"))
            return
        try:
            if connection.permissions is not None and not (command.release or command.asks):
                # An expression, too, must be allowed as it is written: what is kept costs disk.
                self._reading(ReadRequest(command.topic, may_select=False))
        except RemoteProtocolError as error:
            self._denied("reader", command.topic, "", error)
            self._acknowledge("processed", command.command_id or "-", error.reason, str(error))
            return
        self._clients.runtime.spawn(self._tell_reader(command))

    async def _list_readers(self, command_id: str) -> None:
        connection = self._connection
        body = await self._clients.reader_holds.listed(
            connection.user_id if connection.permissions is not None else None
        )
        if connection.is_open:
            connection.send(connection.codec.acknowledgment("processed", command_id, body=body))

    async def _tell_reader(self, command: ReaderCommand) -> None:
        connection = self._connection
        reason = text = ""
        place = b""
        try:
            if command.asks:
                place = await self._clients.reader_holds.place(command.name, connection.user_id)
            else:
                await self._clients.reader_holds.tell(command, connection.user_id)
        except RemoteProtocolError as error:
            reason, text = error.reason, str(error)
        except StorageError as error:
            reason, text = "not_ready", f"the reader's place cannot be written: {error}"
        if connection.is_open:
            # A place may be large: it is a body.
            made = connection.codec.acknowledgment
            connection.send(made("processed", command.command_id or "-", reason, text, body=place))

    def _check_name(self, name: str, replaces: bool, subscribes: bool = True) -> None:
        connection = self._connection
        subscriptions, resolving = connection.subscriptions, connection.resolving
        if name in resolving or self._clients.queries.names(connection, name):
            raise RemoteProtocolError(
                f"subscription id {name!r} is in use by what is not answered yet: wait for the end "
                "of its group",
                "sub_id_in_use",
            )
        taken = name in subscriptions or self._clients.queued.has(connection, name)
        if taken and not replaces:
            raise RemoteProtocolError(
                f"subscription id {name!r} is in use on this connection", "sub_id_in_use"
            )
        count = len(subscriptions) + len(resolving) + self._clients.queued.count(connection)
        if subscribes and count >= SUBSCRIPTIONS_MAX:
            raise RemoteProtocolError(
                f"this connection has {SUBSCRIPTIONS_MAX} subscriptions: unsubscribe some, or "
                "name several topics by one regular expression",
                "too_many",
            )

    def _check_share(self, pattern: TopicPattern | None) -> None:
        counted = self._clients.counted
        counted.subscriptions.check(counted.user_of(self._connection.number), pattern)

    def _check_replaced(
        self,
        before: LiveSubscription | BookmarkSubscription,
        wanted: TopicFilter,
        sow: SowCommand | None = None,
    ) -> None:
        if isinstance(before, BookmarkSubscription):
            raise RemoteProtocolError(
                "a bookmark subscription is not replaced: unsubscribe, and subscribe again",
                "not_supported",
            )
        had = before.filter
        self._check_aggregation(before, sow)
        types = (
            wanted.message_types if wanted.message_types or not had.shown_as else had.message_types
        )
        if (had.written, had.message_types, had.pattern is None) != (
            wanted.topic, types, wanted.pattern is None
        ):  # fmt: skip
            topic = had.written.decode("utf-8", "replace")
            raise RemoteProtocolError(
                f"replace gives a subscription another filter, not another topic or message type: "
                f"this one has {topic[:200]!r}",
                "bad_command",
            )
        had_page = before.following is not None and before.following.page is not None
        has_page = sow is not None and sow.top_n is not None
        if had_page != has_page:
            what = "is a page: repeat" if had_page else "is none: leave out"
            raise RemoteProtocolError(
                "replace gives a page another place, filter or order, and this subscription "
                f"{what} top_n and skip_n in a sow_and_subscribe, or unsubscribe first",
                "bad_command",
            )

    def _check_aggregation(self, before: LiveSubscription, sow: SowCommand | None) -> None:
        """Refuses a replacement that aggregates otherwise than the subscription before it."""
        had = None if before.following is None else before.following.aggregation
        asked = () if sow is None else (sow.projection, sow.grouping)
        if had is None and not any(asked):
            return
        if had is None or sow is None or (*asked, sow.filter) != (
            had.projection, had.grouping, had.filter
        ):  # fmt: skip
            raise RemoteProtocolError(
                "replace gives an aggregated subscription another page, and leaves filter, "
                "projection and grouping as they are: repeat them, or unsubscribe, and send "
                "sow_and_subscribe again",
                "not_supported",
            )

    def _subscribe_bookmark(self, command: Subscribe, filter_: TopicFilter) -> None:
        position, content = self._replay(command, filter_)
        clients, have = self._clients, command.have
        claim = None if have is None else clients.claim(self._connection, have.memory_bytes)
        clients.replays.open(self._connection, command, filter_, position, content, claim)

    def _replay(
        self, command: Subscribe, filter_: TopicFilter
    ) -> tuple[Position, ReplayContent | None]:
        instance = self._clients.instance
        topics = instance.machine.topics
        if filter_.pattern is None and self._clients.computes_any(filter_):
            raise RemoteProtocolError(
                f"{command.topic[:200]!r} is computed by {instance.identity.name} and has no "
                "bookmarks: subscribe to it without one, or to the topics under it",
                "not_supported",
            )
        if filter_.events:
            journaled = False
        elif filter_.pattern is None:
            journaled = topics.journals(filter_.topic, command.message_type)
        else:
            journaled = bool(topics.rules)
        if not journaled:
            raise RemoteProtocolError(
                f"topic {command.topic[:200]!r} is not in the transaction log of "
                f"{instance.identity.name}: a bookmark subscription needs one that is",
                "not_journaled",
            )
        self._clients.replays.conflated.check(command, filter_)
        content = self._clients.replay_content(self._connection, filter_, command.filter)
        return parse_position(command.bookmark), content

    def pause_or_resume(self, command: Pause | Resume) -> None:
        """Pauses or resumes all of the named subscriptions, or none of them."""
        try:
            found = [self._bookmark_subscription(name) for name in command.subscriptions]
            if isinstance(command, Pause):
                self._clients.replays.pause(found)
            else:
                self._clients.replays.resume(found)
        except RemoteProtocolError as error:
            self._acknowledge("processed", command.command_id or "-", error.reason, str(error))
            return
        if "processed" in command.acks or not command.acks:
            self._acknowledge("processed", command.command_id)

    def _bookmark_subscription(self, name: str) -> BookmarkSubscription:
        found = self._connection.subscriptions.get(name)
        if isinstance(found, BookmarkSubscription):
            return found
        if found is not None:
            raise RemoteProtocolError(
                f"subscription {name[:200]!r} has no bookmark: only a replay can be paused",
                "bad_command",
            )
        raise RemoteProtocolError(
            f"there is no subscription {name[:200]!r} on this connection: subscribe first, and "
            "wait for its processed ack",
            "no_such_subscription",
        )

    def unsubscribe(self, command: Unsubscribe) -> None:
        """Ends subscriptions and queries. Unknown ids are ignored."""
        connection, queries = self._connection, self._clients.queries
        subscriptions, resolving = connection.subscriptions, connection.resolving
        names = command.subscriptions
        queued = self._clients.queued
        every = (*subscriptions, *resolving, *queued.names(connection))
        for name in every if names is None else names:
            self._clients.unsubscribed_queue(connection, name, UNSUBSCRIBED)
            queued.unsubscribe(connection, name, begun=command.begun, is_cancel=command.is_cancel)
            subscription = subscriptions.pop(name, None)
            resolving.pop(name, None)
            if subscription is not None:
                connection.stopped(subscription, UNSUBSCRIBED)
                self._clients.unsubscribe(subscription)
        if names is None:
            queries.forget_all(connection)
        else:
            queries.forget(connection, names)
        if "processed" in command.acks or not command.acks:
            self._acknowledge("processed", command.command_id)


def _check_page(sow: SowCommand, subscribe: Subscribe) -> None:
    if sow.top_n is not None and subscribe.conflation is not None:
        raise RemoteProtocolError(
            "conflation of a page is not supported: leave out conflation, or subscribe to a page "
            "of a conflated topic",
            "not_supported",
        )


def _conflation_key(subscribe: Subscribe | None) -> tuple[str, ...]:
    if subscribe is None or subscribe.conflation is None:
        return ()
    return subscribe.conflation.key
