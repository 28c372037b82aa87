"""The messages that one subscription has received, and how it continues after a reconnect.

A bookmark subscription keeps the exact ranges of its messages, by publisher: those before its
start, those delivered, and those in its instance's persisted acks. After a reconnect, to whichever
instance, it requests the rest (`have`), and leaves out any message that nevertheless arrives a
second time. An ordinary subscription keeps nothing, and begins anew with the next message.

Invariants: a message handed out by `arrived` is in `received`, and no message of a bookmark
subscription is handed out twice; `received` includes everything in the bookmark store.
"""

from __future__ import annotations

from typing import Any, Protocol

import msgpack

from raylay.services.client.messages import (
    MessageBatch,
    SequenceRange,
    identities,
    ranges_of,
    record_count,
)
from raylay.services.errors import LocalProtocolError, RaylayError, RemoteProtocolError
from raylay.services.messages.bookmarks import Position, parse_position
from raylay.services.messages.ranges import PublisherRanges
from raylay.services.protocol.frames import HEADER_BYTES_MAX, Header

GROUPED = frozenset(("sow", "oof", "group_begin", "group_end"))
"""Frames with rows of a query, out-of-focus notices, or the bounds of a query."""
HAVE_IN_HEADER_BYTES_MAX = 32 * 1024
"""Bytes up to which `have` goes into the header; a larger one goes into the body, because a header
ends at 64 KiB."""
SAID_BYTES_MAX = HEADER_BYTES_MAX - 1024
"""Bytes of a header for the requested keys and filters; the rest of a header is names and
numbers."""


def position_of(bookmark: str) -> Position:
    """Returns the position that a bookmark, a list or a range names.

    Raises:
        LocalProtocolError: it names none (`bad_bookmark`).
    """
    try:
        return parse_position(bookmark)
    except RemoteProtocolError as error:
        raise LocalProtocolError(str(error), error.reason) from None


class BookmarkStoreProtocol(Protocol):
    """A store of bookmark subscriptions' state (storage/stores.py)."""

    def seen(self, subscription: str, publisher: int, first: int, last: int) -> None:
        """Adds messages with which the consumer is done."""

    def persisted(self, subscription: str, ranges: PublisherRanges) -> None:
        """Adds durable messages that need no delivery any more."""

    def load(self, subscription: str) -> PublisherRanges:
        """Returns everything that was added."""

    def discard(self, subscription: str) -> None:
        """Forgets a subscription."""

    def flush(self) -> None:
        """Makes everything durable that was added before."""


def read_have(header: Header, body: bytes = b"") -> PublisherRanges | None:
    """Returns the `have` of a frame, from its header or, where it is large, its body.

    Raises:
        RemoteProtocolError: it is no mapping of publishers to sequence sets.
    """
    value = header.get("have")
    if value is None and body:
        try:
            value = msgpack.unpackb(body, strict_map_key=False)
        except Exception:  # msgpack raises many kinds of errors on bad bytes
            raise RemoteProtocolError("ranges are no msgpack", "bad_ranges") from None
    return None if value is None else PublisherRanges.from_wire(value)


class SubscriptionState:
    """One subscription, as the client's machine keeps it."""

    command = "subscribe"
    """Command that requests the subscription (docs/protocol.md)."""
    has_consumer = False
    """Whether a consumer of a queue acknowledges its messages."""
    irreplaceable = ""
    """Reason why its filter cannot be replaced; empty: it can, unless the subscription has a
    bookmark."""

    __slots__ = (
        "_store",
        "active",
        "bookmark",
        "bounded",
        "completed",
        "explicit_discard",
        "group",
        "held",
        "id",
        "message_type",
        "missing",
        "options",
        "paused",
        "received",
        "suppressed",
        "topic",
        "undiscarded",
    )

    def __init__(
        self,
        subscription_id: str,
        topic: str,
        message_type: str = "",
        bookmark: str = "",
        options: dict[str, Any] | None = None,
        store: BookmarkStoreProtocol | None = None,
        *,
        explicit_discard: bool = False,
        paused: bool = False,
    ) -> None:
        self.id = subscription_id
        self.topic = topic
        self.message_type = message_type
        self.bookmark = bookmark
        self.options = options or {}
        self.explicit_discard = explicit_discard
        self.paused = paused
        """Whether the application wants the subscription paused."""
        self.group = 0
        """A number that subscriptions share that were resumed together; 0: none."""
        self.held = False
        """Whether the subscription is paused at the present server, by the last command sent."""
        self.active = False
        """Whether the present server has accepted the subscription."""
        self.completed = False
        self.missing: object = None
        """Removed messages that the last instance named and the application was told of."""
        self.suppressed = 0
        """Number of messages that arrived a second time and were left out."""
        self.undiscarded = PublisherRanges() if explicit_discard else None
        """Messages that were handed out and not discarded; None: the application need not do so."""
        self.received: PublisherRanges | None = None
        self.bounded = False
        self._store = store if bookmark else None
        if bookmark:
            self.bounded = position_of(bookmark).bounded
            self.received = PublisherRanges()
            if store is not None:
                self.received.update(store.load(subscription_id))

    @property
    def _acks(self) -> str:
        return "processed,completed,persisted" if self.bookmark else "processed"

    def lost(self) -> RaylayError | None:
        """Handles the end of the connection. Returns the error that ends the subscription with it;
        None: it continues."""
        self.active = False
        return None

    @property
    def takes_replace(self) -> bool:
        """Returns whether the present server accepts another filter now."""
        return self.active

    def replaced(self, options: dict[str, Any]) -> None:
        """Notes that the server took new options, in place of the former ones; they also hold at
        later servers."""
        self.options = options

    def check(self, options: dict[str, Any] | None = None) -> None:
        """Refuses options that no frame's header can carry.

        Args:
            options: new options that are to replace the former ones.

        Raises:
            LocalProtocolError: it is too much, or no text or number of the protocol.
        """
        options = self.options if options is None else options
        said = (self.id, self.topic, self.message_type, self.bookmark, options)
        try:
            size_bytes = len(msgpack.packb(said))
        except (ValueError, TypeError, OverflowError) as error:
            raise LocalProtocolError(
                f"{self.command} of {self.topic[:200]!r}: an option is of no kind that can be "
                f"sent: {error}"
            ) from None
        if size_bytes > SAID_BYTES_MAX:
            raise LocalProtocolError(
                f"{self.command} of {self.topic[:200]!r}: topic and options take {size_bytes:,} "
                f"bytes, and a command has room for {SAID_BYTES_MAX:,}: give fewer keys or a "
                "shorter filter, or ask in parts",
                "too_large",
            )

    def subscribe_frame(self, command_id: str) -> tuple[Header, bytes]:
        """Returns the command that starts or resumes the subscription. One of a group starts
        paused: all of the group are resumed together when the last one is accepted."""
        header = self._header(command_id)
        options = dict(self.options)
        self.held = self.paused or self.group > 0
        if self.held:
            options["pause"] = True
        body = b""
        received = self.received
        if received is not None:
            header["bm"] = self.bookmark
            if received:
                have = received.to_wire()
                if sum(map(len, have.values())) + 16 * len(have) <= HAVE_IN_HEADER_BYTES_MAX:
                    options["have"] = have
                else:
                    body = msgpack.packb(have)
        if options:
            header["o"] = options
        return header, body

    def _header(self, command_id: str) -> Header:
        header: Header = {
            "c": self.command,
            "cid": command_id,
            "sub": self.id,
            "t": self.topic,
            "a": self._acks,
        }
        if self.message_type:
            header["mt"] = self.message_type
        return header

    def replace_frame(self, command_id: str, options: dict[str, Any]) -> Header:
        """Returns the command that replaces the options of the subscription."""
        return {**self._header(command_id), "o": {**options, "replace": True}}

    def accepted(self, have: PublisherRanges | None) -> bool:
        """Notes that the server accepted the subscription. `have`: messages before its start in the
        server's log; None: there are none, or none besides those that this side named.

        Returns whether `have` is still to be stored, by `passed`, once the consumer is done with
        the queued messages: on a resumption it may name messages that were delivered before.
        """
        self.active = True
        if have is None or self.received is None:
            return False
        fresh = not self.received
        self.received.update(have)
        if fresh and self._store is not None:
            self._store.persisted(self.id, have)
        return not fresh

    def arrived(self, header: Header, payload: bytes) -> MessageBatch | None:
        """Returns the batch to hand out; None when all of it was received before."""
        count = record_count(header, payload)
        received = self.received
        if received is None:
            return self._batch(header, count, payload, None)
        ranges = ranges_of(payload, count)
        for publisher, first, last in ranges:
            held = received.get(publisher)
            if held is not None and held.touches(first, last):
                payload, count, ranges = self._without_received(payload, count, received)
                if not count:
                    return None
                break
        for publisher, first, last in ranges:
            received.add(publisher, first, last)
            if self.undiscarded is not None:
                self.undiscarded.add(publisher, first, last)
        return self._batch(header, count, payload, ranges)

    def grouped(self, header: Header, payload: bytes) -> list[MessageBatch]:
        """Returns the batches to hand out for a frame that is no delivery (`GROUPED`)."""
        if header["c"] != "oof":
            return []
        count, reason = record_count(header, payload), str(header.get("r") or "")
        return [MessageBatch(self.id, count, payload, kind="oof", reason=reason)]

    def _batch(
        self, header: Header, count: int, payload: bytes, ranges: list[SequenceRange] | None
    ) -> MessageBatch:
        get = header.get
        return MessageBatch(
            self.id,
            count,
            payload,
            get("ts") or 0,
            get("tx") or 0,
            ranges,
            bool(get("tr")),
            queue=self.topic if get("q") else "",
            lease_s=(get("lp") or 0) / 1000,
            is_last_try=bool(get("last")),
        )

    def _without_received(
        self, payload: bytes, count: int, received: PublisherRanges
    ) -> tuple[bytes, int, list[SequenceRange]]:
        kept: list[bytes] = []
        met: set[tuple[int, int]] = set()
        for start, end, publisher, sequence in identities(payload, count):
            held = received.get(publisher)
            if (held is not None and sequence in held) or (publisher, sequence) in met:
                self.suppressed += 1
                continue
            met.add((publisher, sequence))
            kept.append(payload[start:end])
        payload = b"".join(kept)
        return payload, len(kept), ranges_of(payload, len(kept))

    def named_persisted(self, have: PublisherRanges) -> None:
        """Takes a persisted ack: every matching message in it was delivered before it."""
        if self.received is not None:
            self.received.update(have)

    def taken(self, ranges: list[SequenceRange] | None) -> None:
        """Notes that the consumer is done with these messages."""
        if self._store is not None and ranges:
            for publisher, first, last in ranges:
                if self.undiscarded is not None:
                    self.undiscarded.remove_ranges(publisher, [(first, last)])
                self._store.seen(self.id, publisher, first, last)

    def passed(self, have: PublisherRanges) -> None:
        """Notes that the consumer is done with everything before this persisted ack, but for what
        it has to discard yet."""
        if self._store is None:
            return
        if self.undiscarded is not None:
            have = have.copy()
            have.difference_update(self.undiscarded)
        self._store.persisted(self.id, have)
