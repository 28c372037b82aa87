"""Reads of messages over the client protocol, as the driver and the tasks of a query do them."""

from __future__ import annotations

import logging
import re
import threading
import time
import uuid
from collections import deque
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

from raylay.services.client.events import ClientEvent, MessagesMissing
from raylay.services.client.messages import MessageBatch, SequenceRange
from raylay.services.client.sync import SyncClient, SyncSubscription
from raylay.services.errors import (
    BookmarkNotFound,
    CommandFailed,
    ConfigurationError,
    RaylayError,
    StorageError,
)
from raylay.services.messages.bookmarks import EPOCH, NOW, parse_position
from raylay.services.messages.ranges import PublisherRanges, SequenceSet
from raylay.services.messages.types.registry import BUILT_IN, MessageTypes
from raylay.services.pipeline.network.offsets import (
    covers,
    first_of_each,
    new_in,
    told_as_held,
)
from raylay.services.pipeline.tables.topics import TOPICS_NAMED_MAX, not_held
from raylay.services.sow.records import NEVER, SowRecord

TO_THE_END = f"[{EPOCH}:{NOW})"
PERSISTED_MS = 20
LEFT_LOOKED_AT_S = 0.1
"""Seconds without a delivery after which a reader looks whether anything is left to come."""
PAUSE_S, PAUSE_MAX_S = 0.05, 0.5
"""Pauses, in seconds, between two questions to an instance that lacks messages of a micro-batch."""
TAKEN_BYTES = 8 * 1024 * 1024
"""Bytes of deliveries that become one batch of rows."""
TOPICS_WAIT_S = 5.0
"""Seconds for which an instance may look for a topic of which it seems to have no message, and for
those of which it has some."""
READER_CONNECT_WAIT_S = 3.0
"""Seconds to look for a server that is to be told a reader's place."""
ROWS_A_QUERY = 1_000
"""Most records of a SOW topic in a frame."""
_NAMED_MAX = 3

log = logging.getLogger("raylay.pipeline")


class ReadingStore:
    """The bookmark store of one reader: what its subscriptions hold, and what one of them still
    wants.

    Owner: the client's loop thread; the reader's thread calls `want`, `given` and `is_done`.
    """

    def __init__(self) -> None:
        self._have: dict[str, PublisherRanges] = {}
        self._left: dict[int, SequenceSet] = {}
        self._reading = ""
        self._lock = threading.Lock()

    def want(self, subscription: str, have: PublisherRanges, portion: PublisherRanges) -> None:
        """Begins the reading of a portion by a subscription that holds `have`."""
        self._have[subscription] = have
        self._reading = subscription
        self._left = {key: each.copy() for key, each in portion.sets.items() if each}

    def hold(self, subscription: str, have: PublisherRanges) -> None:
        """Lets a subscription that is to begin hold these messages."""
        self._have[subscription] = have

    def given(self, ranges: Iterable[SequenceRange]) -> None:
        """Notes messages that the reader was given."""
        with self._lock:
            for publisher, first, last in ranges:
                self._remove(publisher, first, last)

    @property
    def is_done(self) -> bool:
        """Returns whether every message of the portion was given or passed over."""
        return not self._left

    def _remove(self, publisher: int, first: int, last: int) -> None:
        left = self._left.get(publisher)
        if left is not None:
            left.remove(first, last)
            if not left:
                del self._left[publisher]

    def _of(self, subscription: str) -> PublisherRanges:
        return self._have.setdefault(subscription, PublisherRanges())

    def seen(self, subscription: str, publisher: int, first: int, last: int) -> None:
        self._of(subscription).add(publisher, first, last)

    def persisted(self, subscription: str, ranges: PublisherRanges) -> None:
        self._of(subscription).update(ranges)
        if subscription == self._reading:
            self.given((publisher, first, last) for publisher, (first, last) in ranges.items())

    def load(self, subscription: str) -> PublisherRanges:
        return self._of(subscription).copy()

    def discard(self, subscription: str) -> None:
        self._have.pop(subscription, None)

    def flush(self) -> None:
        """Nothing to do."""


@dataclass(frozen=True, slots=True)
class NetworkPlace:
    """The servers at which a query reads, and the messages that it wants.

    Attributes:
        client: options of the client: servers, group, TLS, credentials.
        topic: name of a topic, or a regular expression.
        filter: content filter; empty: none.
        connect_wait_s: seconds to look for a server.
        read_wait_s: seconds to wait for messages that an instance is to get from others.
    """

    client: dict[str, Any]
    topic: str
    filter: str = ""
    connect_wait_s: float = 30.0
    read_wait_s: float = 60.0

    def __repr__(self) -> str:
        # The client's options have a password.
        return f"NetworkPlace({self.topic!r} at {self.client.get('servers')})"

    def servers(self) -> list[Any]:
        """Returns where the servers are now. A place that is sent to a task afterwards has them."""
        servers = self.client["servers"]
        return list(servers() if callable(servers) else servers)


class ReaderPlaces:
    """The place of a named reader at each server, for which instances keep segments
    (docs/journal.md). Owner: the driver.

    A server that is away is told when it is there again; until then it keeps more than it needs.

    Args:
        name: the reader's name; empty: nothing is told.
    """

    def __init__(self, place: NetworkPlace, name: str, expires_s: int) -> None:
        self._place = place
        self._name = name
        self._expires_s = expires_s
        self._clients: dict[Any, SyncClient] = {}

    def tell(self, held: PublisherRanges) -> None:
        """Says what the reader does not need any more.

        Raises:
            CommandFailed: a server refuses the reader.
        """
        servers = self._place.servers() if self._name else []
        for moved in self._clients.keys() - set(servers):
            self._clients.pop(moved).close(flush=False)
        for server in servers:
            try:
                client = self._client(server)
                client.readers.tell(self._name, self._place.topic, held, expires_s=self._expires_s)
            except CommandFailed:
                raise
            except RaylayError as error:
                log.warning("%s is not told the place of reader %s: %s", server, self._name, error)

    def _client(self, server: Any) -> SyncClient:
        known = self._clients.get(server)
        if known is None:
            options = self._place.client | {"servers": [server]}
            known = self._clients[server] = SyncClient(
                f"spark-{uuid.uuid4().hex[:12]}",
                **options,
                failover="any",
                connect_wait_s=READER_CONNECT_WAIT_S,
            )
        return known

    def close(self) -> None:
        for client in self._clients.values():
            client.close(flush=False)
        self._clients.clear()


class NetworkReader:
    """A client that reads. Owner: one thread.

    Raises:
        RaylayError: no server can be reached, or it refuses this user.
    """

    def __init__(self, place: NetworkPlace) -> None:
        self._place = place
        self._store = ReadingStore()
        self._number = 0
        self._instances: deque[str] = deque()
        """The instance of each delivery that was not taken yet, in order: the client may be
        connected to another one, or to none, when it is taken."""
        self._missing: dict[str, MessagesMissing] = {}
        self._client = SyncClient(
            f"spark-{uuid.uuid4().hex[:12]}",
            **place.client,
            failover="any",
            bookmark_store=self._store,
            connect_wait_s=place.connect_wait_s,
            on_arrival=self._arrived,
            on_event=self._take_event,
        )

    def _take_event(self, event: ClientEvent) -> None:
        if isinstance(event, MessagesMissing):
            self._missing[event.subscription] = event

    def _arrived(self, batch: MessageBatch[Any]) -> None:
        self._instances.append(self.instance)

    @property
    def instance(self) -> str:
        """Returns the name of the instance that is read."""
        return self._client.client.instance

    @property
    def types(self) -> MessageTypes:
        """Returns the message types that the instance told at the logon, and the built-in ones.

        Raises:
            ConfigurationError: this process cannot use a definition.
        """
        return MessageTypes(self._client.client.runtime.machine.types.definitions())

    def close(self) -> None:
        self._client.close(flush=False)

    def held(self, bookmark: str = NOW, *, goes_on: bool = False) -> PublisherRanges:
        """Returns the messages before a bookmark, of all topics, as the instance has them. What
        retention removed is before every bookmark.

        Args:
            goes_on: whether a bookmark whose message retention removed stands for the oldest
                message that is left.

        Raises:
            CommandFailed: the instance refuses the topic or the filter.
            StorageError: it lacks the message of the bookmark.
        """
        try:
            found = self._before(bookmark)
        except BookmarkNotFound as error:
            found = self._before(bookmark, not_found="epoch")
            is_removed = any(
                point.sequence in found.sets.get(point.publisher, ())
                for point in parse_position(bookmark).begin
                if point.kind == "message"
            )
            if not is_removed:
                raise StorageError(f"{self.instance}: {error}", self.instance) from None
            if not goes_on:
                raise _removed(self.instance, error) from None
        if not found and bookmark != NOW:
            # The begin is that of the log. A client is not told what was before it.
            return self._before_the_log()
        return found

    def _before(
        self, bookmark: str, have: PublisherRanges | None = None, *, not_found: str = "fail"
    ) -> PublisherRanges:
        name = self._new_name()
        if have is not None:
            self._store.hold(name, have)
        try:
            self._subscribe(name, bookmark, paused=True, not_found=not_found).unsubscribe()
            return self._store.load(name)
        finally:
            self._store.discard(name)

    def _before_the_log(self) -> PublisherRanges:
        """Returns what retention removed. The instance says that there is some to whoever has
        something older, and all of it to whoever begins behind a message that it removed."""
        older = first_of_each(self.held())
        if not older:
            return older
        self._missing.clear()
        self._before(EPOCH, older, not_found="epoch")
        for missing in self._missing.values():
            for publisher, (_, _, last) in missing.publishers.items():
                return self._before(f"{publisher}|{last}|", not_found="epoch")
        return PublisherRanges()

    def wait_held(self, wanted: PublisherRanges) -> None:
        """Returns as soon as the instance has all of these messages.

        Raises:
            StorageError: it lacks some after `read_wait_s`; names them.
        """
        deadline_s = time.monotonic() + self._place.read_wait_s
        pause_s = PAUSE_S
        while not covers(held := self.held(), wanted):
            if time.monotonic() >= deadline_s:
                raise _lacking(self.instance, new_in(held, wanted), self._place.read_wait_s)
            # Nobody tells when replication brings what is lacking.
            time.sleep(pause_s)
            pause_s = min(2 * pause_s, PAUSE_MAX_S)

    def read(
        self, start: PublisherRanges, end: PublisherRanges, portion: PublisherRanges, *, fails: bool
    ) -> Iterator[tuple[str, list[MessageBatch[Any]]]]:
        """Yields the deliveries of a portion, each list with the instance that gave it.

        An instance that ends meanwhile is followed by another of the servers, which is told what
        came already.

        Args:
            fails: whether messages that retention removed are an error.

        Raises:
            StorageError: the instances lack some of them, or they were removed.
            RaylayError: no server answers any more.
        """
        name = self._new_name()
        self._store.want(name, told_as_held(start, end, portion), portion)
        while True:
            instance = self.instance
            self.wait_held(portion)
            self._instances.clear()
            not_found = "fail" if fails else "epoch"
            try:
                subscription = self._subscribe(name, TO_THE_END, not_found=not_found)
                yield from self._deliveries(subscription)
            except BookmarkNotFound as error:
                raise _removed(self.instance, error) from None
            subscription.unsubscribe()
            if self._store.is_done or self.instance == instance:
                self._store.discard(name)
                return

    def absent_topic(self) -> str:
        """Returns the words for a topic of which the instance holds no message that this user may
        read, with the topics of which it does; empty: it holds one, or does not say so within
        `TOPICS_WAIT_S`.

        Raises:
            ConfigurationError: the instance does not journal the topic; the error names topics of
                which it holds messages.
            CommandFailed: it refuses the topic.
        """
        topic = self._place.topic
        deadline_s = time.monotonic() + TOPICS_WAIT_S
        try:
            if self._first_topics(topic, deadline_s):
                return ""
        except TimeoutError:
            return ""
        except CommandFailed as error:
            if error.reason != "not_journaled":
                raise
            words = not_held(topic, self.instance, self._topics(deadline_s))
            raise ConfigurationError(f"{error}; {words}") from None
        return not_held(topic, self.instance, self._topics(deadline_s))

    def _topics(self, deadline_s: float) -> set[str]:
        """Returns topics of which the instance holds messages that this user may read: all of them
        where they are `TOPICS_NAMED_MAX` at most, and are found in time."""
        found: set[str] = set()
        while len(found) < TOPICS_NAMED_MAX:
            known = "|".join(map(re.escape, sorted(found)))
            try:
                others = self._first_topics(rf"^(?!(?:{known})$)" if found else ".*", deadline_s)
            except (TimeoutError, CommandFailed):
                break
            if not others - found:
                break
            found |= others
        return found

    def _first_topics(self, topic: str, deadline_s: float) -> set[str]:
        """Returns the topics of the first delivery of a topic; none where there is no message.

        Raises:
            TimeoutError: the instance looked through its log until the deadline.
            CommandFailed: the instance refuses the topic.
        """
        name = self._new_name()
        subscription = self._client.subscribe(
            topic, bookmark=TO_THE_END, bookmark_not_found="epoch", subscription_id=name
        )
        try:
            batch = subscription.next_batch(max(0.0, deadline_s - time.monotonic()))
            return set() if batch is None else {each.topic for each in batch.messages()}
        finally:
            subscription.unsubscribe()
            self._store.discard(name)

    def records(self, message_type: str) -> Iterator[list[SowRecord]]:
        """Yields the records of the SOW topic, all of one moment. Their receipt is unknown.

        Raises:
            CommandFailed: the instance refuses the query, or has no such topic.
            ConnectionLost: the connection was lost behind the first records.
        """
        query = self._client.sow(
            self._place.topic, message_type=message_type, batch=ROWS_A_QUERY, non_regex_topic=True
        )
        for batch in query.batches():
            yield [
                SowRecord(
                    each.key,
                    0,
                    *each.identity(),
                    0,
                    NEVER,
                    each.body,
                    each.origin_time_us,
                    each.topic.encode(),
                )
                for each in batch.messages()
            ]

    def _deliveries(
        self, subscription: SyncSubscription[Any]
    ) -> Iterator[tuple[str, list[MessageBatch[Any]]]]:
        taken: list[MessageBatch[Any]] = []
        taken_bytes = 0
        instance = ""
        while not self._store.is_done:
            try:
                batch = subscription.next_batch(LEFT_LOOKED_AT_S)
            except TimeoutError:
                continue
            if batch is None:
                break
            self._store.given(batch.ranges or ())
            origin = self._instances.popleft()
            if taken and (taken_bytes >= TAKEN_BYTES or origin != instance):
                yield instance, taken
                taken, taken_bytes = [], 0
            instance = origin
            taken.append(batch)
            taken_bytes += len(batch.payload)
        if taken:
            yield instance, taken

    def _new_name(self) -> str:
        self._number += 1
        return f"read-{self._number}"

    def _subscribe(
        self, name: str, bookmark: str, *, paused: bool = False, not_found: str = "fail"
    ) -> SyncSubscription[Any]:
        return self._client.subscribe(
            self._place.topic,
            filter=self._place.filter,
            bookmark=bookmark,
            bookmark_not_found=not_found,
            subscription_id=name,
            persisted_ms=PERSISTED_MS,
            pause=paused,
        )


def types_for(place: NetworkPlace, message_type: str) -> MessageTypes:
    """Returns message types among which is this one, if the fabric defines it: the server is asked
    where it is not built in.

    Raises:
        RaylayError: no server can be reached, or it refuses this user.
    """
    if message_type in BUILT_IN:
        return MessageTypes()
    reader = NetworkReader(place)
    try:
        return reader.types
    finally:
        reader.close()


def _removed(instance: str, error: BookmarkNotFound) -> StorageError:
    return StorageError(
        f"{instance}: {error}: messages were removed before they were read; begin a new "
        "checkpoint, or set on_data_loss to go_on",
        instance,
    )


def _lacking(instance: str, missing: PublisherRanges, waited_s: float) -> RaylayError:
    named = [
        f"{publisher}|{first}|" + (f" to {last}" if last > first else "")
        for publisher, (first, last) in _some(missing.items())
    ]
    more = " and more" if missing.count > 1 and len(named) == _NAMED_MAX else ""
    return StorageError(
        f"{instance} lacks {missing.count:,} messages of the micro-batch after {waited_s:g} s: "
        f"{', '.join(named)}{more}; another instance had them when the micro-batch was planned: "
        "name that one in `servers`, or wait until replication has brought them (read_wait_s)",
        instance,
    )


def _some(found: Iterable[Any]) -> list[Any]:
    return [each for _, each in zip(range(_NAMED_MAX), found, strict=False)]
