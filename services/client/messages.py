"""Messages as a subscriber gets them: batches of records as they arrived, decoded only where asked.

Every loop here ends after the number of records that the delivery names, which `record_count`
compares with the bytes that came. Damaged lengths raise an error or give wrong bodies, but all
bodies of a delivery together take little more memory than the delivery.
`decode_record(verify=True)` on
`Message.record.raw` checks a record's own checksum.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Any, ClassVar, Generic, Protocol

from raylay.services.client.body_decoder import (
    BodyDecoder,
    Value,
    any_json,
    body_problem,
    decode_value,
)
from raylay.services.client.fabric_types import NO_TYPES
from raylay.services.errors import BodyTypeError, RemoteProtocolError
from raylay.services.messages.bookmarks import format_bookmark
from raylay.services.messages.records import Record, decode_record
from raylay.services.messages.trace_context import traceparent
from raylay.services.protocol.frames import Header

# The parts of a record header (services/messages/records.py) that each loop needs: unpacking fewer
# fields is faster.
_BODY = struct.Struct("<I10xBBHHH")  # length, type, trace, topic, key and correlation lengths
_IDENTITY = struct.Struct("<I24xQQ")  # length, publisher, sequence
_TRACE = struct.Struct("<I11xB")  # length, trace length
_LENGTH = struct.Struct("<I")
_ORIGIN = struct.Struct("<I40xQ")  # length, origin time
_HEADER_BYTES = 60

LEASE_PART = 0.9
"""Share of a lease after which messages that no handler was given are given back."""
SequenceRange = tuple[int, int, int]
"""Publisher, first sequence and last sequence of consecutive messages."""


def record_count(header: Header, payload: bytes) -> int:
    """Returns the number of records that a frame names.

    Raises:
        ValueError: so many records do not fit into its payload. A loop over them would never end.
        TypeError: it is no number.
    """
    count: int = header.get("n") or 0
    if not 0 <= count * _HEADER_BYTES <= len(payload):
        raise ValueError(f"{count} records in {len(payload)} bytes")
    return count


def identities(payload: bytes, count: int) -> Iterator[tuple[int, int, int, int]]:
    """Yields (start, end, publisher, sequence) of each record; start and end are byte offsets."""
    offset = 0
    unpack = _IDENTITY.unpack_from
    for _ in range(count):
        length, publisher, sequence = unpack(payload, offset)
        yield offset, offset + length, publisher, sequence
        offset += length


def ranges_of(payload: bytes, count: int) -> list[SequenceRange]:
    """Returns the identities of a payload's first `count` records, in as few ranges as possible.

    Publishers that alternate do not make a range for each message: a publisher's range stays open
    until its own sequence jumps.
    """
    ranges: list[SequenceRange] = []
    open_first: dict[int, int] = {}
    open_last: dict[int, int] = {}
    current = first = 0
    last = -2
    offset = 0
    unpack = _IDENTITY.unpack_from
    for _ in range(count):
        length, publisher, sequence = unpack(payload, offset)
        offset += length
        if sequence == last + 1 and publisher == current:
            last = sequence
            continue
        if publisher != current:
            if current:
                open_first[current], open_last[current] = first, last
            current = publisher
            last = open_last.get(publisher, -2)
            first = open_first.get(publisher, sequence)
        if sequence != last + 1:
            if last >= 0:
                ranges.append((publisher, first, last))
            first = sequence
        last = sequence
    if current:
        open_first[current], open_last[current] = first, last
        ranges.extend((key, open_first[key], open_last[key]) for key in open_first)
    return ranges


def last_origin_time_us(payload: bytes, count: int, walk: bool = True) -> int:
    """Returns the origin time of a payload's last record, in microseconds since 1970; 0 where the
    payload is empty.

    Args:
        walk: whether to find the last record by going through all, where their lengths differ.
            Without it, the first record's time is returned then.
    """
    if not count:
        return 0
    length, origin_us = _ORIGIN.unpack_from(payload)
    if count == 1:
        return int(origin_us)
    # Records of one feed often have equal lengths: then the last one's place is known.
    at = len(payload) - length
    if length * count != len(payload) or _LENGTH.unpack_from(payload, at)[0] != length:
        if not walk:
            return int(origin_us)
        at = 0
        unpack = _LENGTH.unpack_from
        for _ in range(count - 1):
            at += unpack(payload, at)[0]
    return int(_ORIGIN.unpack_from(payload, at)[1])


def latest_origin_time_us(payload: bytes, count: int) -> int:
    """Returns the latest origin time of a payload's records, in microseconds since 1970; 0 without
    any."""
    latest = offset = 0
    unpack = _ORIGIN.unpack_from
    for _ in range(count):
        length, origin_us = unpack(payload, offset)
        offset += length
        if origin_us > latest:
            latest = origin_us
    return latest


class SpanMaker(Protocol):
    """Makes the application's OpenTelemetry spans; application_spans.py has one."""

    def context_of(self, trace: bytes) -> Any:
        """Returns the OpenTelemetry context of the span that published a message."""

    def handling_span(
        self,
        name: str,
        topic: str,
        traces: Sequence[bytes],
        attributes: Mapping[str, Any],
        *,
        is_batch: bool,
    ) -> AbstractContextManager[Any]:
        """Makes a span in which the application handles messages."""


class Message(Generic[Value]):
    """One message of a batch. Fields are decoded when they are read.

    Attributes:
        batch: the batch to which the message belongs.
    """

    __slots__ = ("_end", "_offset", "_record", "batch")

    def __init__(self, batch: MessageBatch[Value], offset: int, end: int) -> None:
        self.batch = batch
        self._offset = offset
        self._end = end
        self._record: Record | None = None

    @property
    def record(self) -> Record:
        """Returns the whole record, decoded."""
        record = self._record
        if record is None:
            record = self._record = decode_record(self.batch.payload, self._offset, verify=False)
        return record

    @property
    def is_sampled(self) -> bool:
        """Returns whether the message carries a trace context. Does not read the record where none
        of its batch does."""
        batch = self.batch
        return batch.traced and _TRACE.unpack_from(batch.payload, self._offset)[1] != 0

    @property
    def kind(self) -> str:
        """Returns `publish`; for a row of a query `sow`; for a notice that a record left the focus
        `oof`."""
        return self.batch.kind

    @property
    def reason(self) -> str:
        """Returns the reason of an `oof`: `deleted`, `expired`, `match` or `entitlement`; otherwise
        empty."""
        return self.batch.reason

    @property
    def body(self) -> bytes:
        """Returns the bytes that the publisher published."""
        at = self._offset
        payload = self.batch.payload
        _, typ, trace, topic, key, correlation = _BODY.unpack_from(payload, at)
        return payload[at + _HEADER_BYTES + topic + typ + key + correlation : self._end - trace]

    def json(self) -> Value:
        """Returns the body as a value of the type that the subscription was given (`type`);
        without a type, as dicts, lists, texts and numbers. Each call parses the body.

        Raises:
            BodyTypeError: the body does not fit; names the message, its topic and the field. The
                subscription goes on.
        """
        decoder = self.batch.decoder or any_json()
        body = self.body
        try:
            value: Value = decoder.decode(body)
        except Exception as error:
            # A type's own checks may raise anything.
            raise self._misfit(error, body, decoder.type_name) from error
        return value

    @property
    def value(self) -> Value:
        """Returns the body, read by the message type: as a value of the type that the subscription
        was given (`type`); without a type, of `json` the same as `json`, of `binary` the bytes,
        and of the other types, those that the fabric defines included, the fields as a dict. Each
        use parses the body.

        Raises:
            BodyTypeError: the body is none of its message type, does not fit the type, or the
                client cannot read its message type; names the message, its topic and the field. The
                subscription goes on.
        """
        decoder = self.batch.decoder
        body, message_type = self.body, self.message_type
        try:
            value: Value = decode_value(decoder, body, message_type, self.batch.types)
        except Exception as error:
            expected = decoder.type_name if decoder is not None else f"{message_type} value"
            raise self._misfit(error, body, expected) from error
        return value

    def _misfit(self, error: Exception, body: bytes, expected: str) -> BodyTypeError:
        path, text = body_problem(error, body)
        return BodyTypeError(self.bookmark, self.topic, path, text, expected, self.message_type)

    @property
    def topic(self) -> str:
        """Returns the topic of the message."""
        return self.record.topic

    @property
    def message_type(self) -> str:
        """Returns the message type, such as `json`."""
        return self.record.message_type

    @property
    def publisher(self) -> int:
        """Returns the publisher id."""
        return self.record.publisher

    @property
    def sequence(self) -> int:
        """Returns the publisher's sequence of the message."""
        return self.record.sequence

    def identity(self) -> tuple[int, int]:
        """Returns publisher id and sequence."""
        _, publisher, sequence = _IDENTITY.unpack_from(self.batch.payload, self._offset)
        return publisher, sequence

    @property
    def bookmark(self) -> str:
        """Returns `publisher|sequence|`, the same on every instance."""
        _, publisher, sequence = _IDENTITY.unpack_from(self.batch.payload, self._offset)
        return format_bookmark(publisher, sequence)

    @property
    def origin_time_us(self) -> int:
        """Returns the publish time, in microseconds since 1970, by the publisher's clock."""
        return self.record.origin_time_us

    @property
    def timestamp_us(self) -> int:
        """Returns the time at which this instance received the message, in microseconds since
        1970."""
        return self.batch.timestamp_us

    @property
    def key(self) -> bytes:
        """Returns the SOW key; empty: the message has none."""
        return self.record.key

    @property
    def correlation(self) -> bytes:
        """Returns the correlation id; empty: the message has none."""
        return self.record.correlation

    @property
    def trace(self) -> bytes:
        """Returns the trace context of the publish, 25 bytes; empty: the message is not sampled."""
        return self.record.trace

    @property
    def traceparent(self) -> str:
        """Returns the trace context of the publish as the W3C's `traceparent`; empty: the message
        carries none."""
        return traceparent(self.trace)

    @property
    def trace_context(self) -> Any:
        """Returns the OpenTelemetry context in which the span that published the message is the
        current one; the present context where the message carries no trace context. For spans
        below it: `tracer.start_as_current_span("price", context=message.trace_context)`."""
        return self.batch.spans.context_of(self.trace)

    def span(
        self, name: str = "", attributes: Mapping[str, Any] | None = None
    ) -> AbstractContextManager[Any]:
        """Makes a span of the application's in which it handles the message: `with message.span():`

        It continues the trace of the publish, by the application's own tracer provider, and has the
        attributes of OpenTelemetry's conventions. A message without a trace context gets a span
        below the current one.

        Args:
            name: name of the span; default: `process TOPIC`.
            attributes: further attributes.
        """
        of_message = {
            "messaging.message.id": self.bookmark,
            "messaging.message.body.size": len(self.body),
            **self.batch.span_attributes(),
            **(attributes or {}),
        }
        make = self.batch.spans.handling_span
        return make(name, self.topic, [self.trace], of_message, is_batch=False)

    @property
    def subscription_id(self) -> str:
        """Returns the id of the subscription to which the message was delivered."""
        return self.batch.subscription_id

    def __repr__(self) -> str:
        return f"Message({self.topic} {self.bookmark} {self.body[:60]!r})"


class MessageBatch(Generic[Value]):
    """The messages of one delivery, in order.

    Attributes:
        subscription_id: id of the subscription to which the messages were delivered.
        count: number of messages.
        timestamp_us: time at which the instance received the messages, in microseconds since 1970.
        first_txid: the instance's transaction id of the first message; 0 for a topic without a
            journal.
        payload: the records as they arrived (services/messages/records.py).
        ranges: identities of the messages, for a bookmark subscription; otherwise None.
        traced: whether one of the messages may carry a trace context.
        arrival: number of the delivery, counted over all subscriptions of the client.
        kind: kind of all messages, as `Message.kind`.
        reason: reason of all messages, as `Message.reason`.
        queue: name of the queue that delivered the messages; empty: none did.
        lease_s: lease of a queue's messages, in seconds from when they were sent; 0: as long as the
            client is connected.
        is_last_try: whether one of a queue's messages leaves the queue if this delivery is in vain,
            too.
        lease_end_s: time, by `time.monotonic`, at which the client gives back messages that no
            handler was given; 0: never.
        decoder: parses the bodies, where the subscription was given a type.
        types: the message types that the fabric defines.
    """

    __slots__ = (
        "arrival",
        "count",
        "decoder",
        "first_txid",
        "is_last_try",
        "kind",
        "lease_end_s",
        "lease_s",
        "payload",
        "queue",
        "ranges",
        "reason",
        "subscription_id",
        "timestamp_us",
        "traced",
        "types",
    )
    spans: ClassVar[SpanMaker]
    """The maker of the application's spans, which a client brings."""

    def __init__(
        self,
        subscription_id: str,
        count: int,
        payload: bytes,
        timestamp_us: int = 0,
        first_txid: int = 0,
        ranges: list[SequenceRange] | None = None,
        traced: bool = False,
        kind: str = "publish",
        reason: str = "",
        queue: str = "",
        lease_s: float = 0.0,
        is_last_try: bool = False,
    ) -> None:
        self.subscription_id = subscription_id
        self.count = count
        self.payload = payload
        self.timestamp_us = timestamp_us
        self.first_txid = first_txid
        self.ranges = ranges
        self.traced = traced
        self.arrival = 0
        self.kind = kind
        self.reason = reason
        self.queue = queue
        self.lease_s = lease_s
        self.is_last_try = is_last_try
        self.lease_end_s = 0.0
        self.decoder: BodyDecoder | None = None
        self.types = NO_TYPES

    def __len__(self) -> int:
        return self.count

    def is_lease_over(self, now_s: float) -> bool:
        """Returns whether the leases of the messages of a queue have ended.

        Args:
            now_s: time by the steady clock, as `lease_end_s`.
        """
        return 0.0 < self.lease_end_s <= now_s - self.lease_s * (1.0 - LEASE_PART)

    def __repr__(self) -> str:
        return f"MessageBatch({self.subscription_id}, {self.count} messages)"

    def bodies(self) -> list[bytes]:
        """Returns every message's body, in order: the fastest way to read a delivery."""
        payload = self.payload
        found: list[bytes] = []
        append = found.append
        offset = 0
        unpack = _BODY.unpack_from
        for _ in range(self.count):
            length, typ, trace, topic, key, correlation = unpack(payload, offset)
            if length < 60:
                raise _too_short(length)
            body_at = offset + 60 + topic + typ + key + correlation
            offset += length
            append(payload[body_at : offset - trace])
        return found

    def json(self) -> list[Value]:
        """Returns every message's value, in order, as `Message.json`.

        Raises:
            BodyTypeError: a body does not fit. To leave out such messages, call `json` of each.
        """
        decode = (self.decoder or any_json()).decode
        try:
            return [decode(body) for body in self.bodies()]
        except RemoteProtocolError:
            raise
        except Exception:
            # Names the message.
            return [message.json() for message in self.messages()]

    def __iter__(self) -> Iterator[Message[Value]]:
        return self.messages()

    def messages(self) -> Iterator[Message[Value]]:
        """Yields every message, in order."""
        offset = 0
        unpack = _LENGTH.unpack_from
        for _ in range(self.count):
            length = unpack(self.payload, offset)[0]
            if length < _HEADER_BYTES:
                raise _too_short(length)
            following = offset + length
            yield Message(self, offset, following)
            offset = following

    def prefix_ranges(self, count: int) -> list[SequenceRange]:
        """Returns the identities of the first `count` messages."""
        if count >= self.count and self.ranges is not None:
            return self.ranges
        return ranges_of(self.payload, min(count, self.count))

    def span(
        self, name: str = "", attributes: Mapping[str, Any] | None = None
    ) -> AbstractContextManager[Any]:
        """Makes a span of the application's in which it handles the messages together. It is below
        the current span, and has links to the spans that published the messages.

        Args:
            name: name of the span; default: `process TOPIC`.
            attributes: further attributes.
        """
        traces = [each.trace for each in self.traced_messages()] if self.traced else []
        of_batch = {
            "messaging.batch.message_count": self.count,
            **self.span_attributes(),
            **(attributes or {}),
        }
        make = self.spans.handling_span
        return make(name, self._one_topic(), traces, of_batch, is_batch=True)

    def span_attributes(self) -> dict[str, str]:
        """Returns the attributes of a span that handles messages of this delivery."""
        found = {"messaging.destination.subscription.name": self.subscription_id}
        return found | ({"messaging.raylay.queue": self.queue} if self.queue else {})

    def _one_topic(self) -> str:
        """Returns the topic of all messages; empty: they have several."""
        payload, offset = self.payload, 0
        topics = set()
        for _ in range(self.count):
            length, _, _, topic, _, _ = _BODY.unpack_from(payload, offset)
            topics.add(payload[offset + _HEADER_BYTES : offset + _HEADER_BYTES + topic])
            if len(topics) > 1 or length < _HEADER_BYTES:
                return ""
            offset += length
        return topics.pop().decode("utf-8", "replace") if topics else ""

    def traced_messages(self) -> list[Message[Value]]:
        """Returns the messages that carry a trace context."""
        payload = self.payload
        found: list[Message[Value]] = []
        offset = 0
        unpack = _TRACE.unpack_from
        for _ in range(self.count):
            length, trace = unpack(payload, offset)
            if trace:
                found.append(Message(self, offset, offset + length))
            offset += length
        return found


def _too_short(length: int) -> RemoteProtocolError:
    # Records of no length would each have the bytes of the whole delivery for a body.
    return RemoteProtocolError(
        f"the server delivered a record of {length} bytes, fewer than the {_HEADER_BYTES} of a "
        "record's header: nothing behind it can be read",
        "bad_record",
    )
