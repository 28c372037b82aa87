"""Traces of sampled messages through every instance (docs/tracing.md).

A sampled publish carries its trace context in its record: 25 bytes, the trace id (16), the span id
of the publish span (8) and the trace flags (1), big-endian. Each process that handles the record
adds spans to that trace. The bytes of a record never change on their way, so a hop cannot write its
own span id into it; instead the ids of the hops' spans are *derived* from the trace id, the span's
name and the places (`derived`): the process that continues the trace computes its parent's id and
needs nothing from the wire. That makes one tree of spans that are written in many processes:

    publish                      client          publish() to persisted acknowledgment
     ├─ commit                   instance        received from the client to synced
     │   ├─ delivery             client          committed to handed to the consumer
     │   └─ link send            link            read from the journal to stored acknowledgment
     │       ├─ remote commit    instance there  received to synced, and so on from there
     │       └─ persisted ack    …               answered there to known here
     └─ persisted ack            instance        answered here to written to the client

and below the commit of each instance that has a queue of it:

    enqueue                      queue's owner   received to in the queue there
     ├─ transfer                 queue's owner   granted, or asked for, to in force
     ├─ lease                    queue's owner   decided to ended
     │   └─ delivery             instance        decided to written to the client
     │       └─ delivery         client          sent to handed to the consumer
     │           └─ acknowledgment  client       acknowledge() to persisted
     ├─ acknowledgment           queue's owner   received to in force there
     └─ removal                  queue's owner   received to out of the queue there

Spans are finished when they are reported: start and end are given as nanoseconds since 1970
(`time.time_ns`). They go to a queue for each exporter (span_export.py), whose thread alone makes
the OpenTelemetry SDK's spans of them for a collector (otlp.py). Unsampled messages come here never:
callers ask `Flag.TRACED` of a run and a countdown at the publisher.

Ray's own tracing hooks are not used: they would put a span around every actor call.
"""

from __future__ import annotations

import atexit
import os
import struct
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

from xxhash import xxh3_64_intdigest as hash64

from raylay.services.errors import ConfigurationError
from raylay.services.messages.records import TRACE_BYTES
from raylay.services.messages.trace_context import SAMPLED
from raylay.services.telemetry.span_export import (
    COLLECTOR_WAIT_S,
    DISK_WAIT_S,
    Attributes,
    ConsoleExporter,
    FileExporter,
    FinishedSpan,
    SpanQueue,
    close_all,
)

SAMPLING_RATIO_DEFAULT = 0.001
FILE_BYTES_MAX_DEFAULT = 64 * 1024 * 1024
PROCESS_BYTES_MAX_DEFAULT = 4 * FILE_BYTES_MAX_DEFAULT
OUTSTANDING_MAX_DEFAULT = 10_000

PUBLISH = "publish"
COMMIT = "commit"
REMOTE_COMMIT = "remote commit"
LINK_SEND = "link send"
PERSISTED_ACK = "persisted ack"
DELIVERY = "delivery"
ENQUEUE = "enqueue"
LEASE = "lease"
TRANSFER = "transfer"
ACKNOWLEDGMENT = "acknowledgment"
REMOVAL = "removal"

_LENGTHS = struct.Struct("<14xBBHHH")  # of type, trace, topic, key and correlation id
_LENGTH = struct.Struct("<I")
_PUBLISHER_SEQUENCE = struct.Struct("<QQ")
_TRACE_LENGTH_AT = 15
_PUBLISHER_AT = 28
_TOPIC_AT = 60


class TracedMessage(NamedTuple):
    """A sampled message, with the values that its spans need."""

    context: bytes
    """The 25 bytes that the record carries."""
    publisher: int
    sequence: int
    topic: str
    body_bytes: int = 0

    @property
    def bookmark(self) -> str:
        """Returns the message's bookmark `publisher|sequence|`, which is the same on every
        instance."""
        return f"{self.publisher}|{self.sequence}|"


@dataclass(frozen=True, slots=True)
class TracingOptions:
    """The sampling and the target of traces. Several exporters may be given; none: no tracing."""

    sampling_ratio: float = SAMPLING_RATIO_DEFAULT
    """Share of the publishes of a client, from 0 (none) to 1 (all)."""
    otlp_endpoint: str = ""
    """An OTLP collector over HTTP, such as `http://127.0.0.1:4318`; needs `raylay[otlp]`."""
    console: bool = False
    """Whether each span is written as one JSON line on stderr."""
    file_directory: str = ""
    """Directory with one file of JSON lines for each process."""
    file_bytes_max: int = FILE_BYTES_MAX_DEFAULT
    """Most bytes of one file; then the next one is begun."""
    process_bytes_max: int = PROCESS_BYTES_MAX_DEFAULT
    """Most bytes of all files of one process name; the oldest files are removed."""

    def __post_init__(self) -> None:
        if not 0.0 <= self.sampling_ratio <= 1.0:
            raise ConfigurationError(
                f"sampling_ratio is {self.sampling_ratio}: give a number from 0 to 1"
            )
        if self.file_bytes_max < 1 or self.process_bytes_max < 1:
            raise ConfigurationError("file_bytes_max and process_bytes_max must be at least 1")

    @property
    def enabled(self) -> bool:
        return bool(self.otlp_endpoint or self.console or self.file_directory)

    @property
    def sample_every(self) -> int:
        """Returns N where one in N publishes is sampled; 0: none is sampled."""
        if not self.enabled or self.sampling_ratio <= 0.0:
            return 0
        return max(1, round(1.0 / self.sampling_ratio))


def traced(payload: bytes | memoryview, limit: int = 64) -> list[TracedMessage]:
    """Returns the sampled messages in a payload of records, at most `limit`.

    Call it only for runs that have `Flag.TRACED`: it walks the whole payload.
    """
    found: list[TracedMessage] = []
    offset, end = 0, len(payload)
    unpack = _LENGTH.unpack_from
    while offset < end:
        (length,) = unpack(payload, offset)
        if payload[offset + _TRACE_LENGTH_AT]:
            found.append(_traced_at(payload, offset, length))
            if len(found) >= limit:
                break
        offset += length
    return found


def _traced_at(payload: bytes | memoryview, offset: int, length: int) -> TracedMessage:
    typ, trace, topic_bytes, key, correlation = _LENGTHS.unpack_from(payload, offset)
    publisher, sequence = _PUBLISHER_SEQUENCE.unpack_from(payload, offset + _PUBLISHER_AT)
    topic = bytes(payload[offset + _TOPIC_AT : offset + _TOPIC_AT + topic_bytes])
    context = bytes(payload[offset + length - TRACE_BYTES : offset + length])
    body_bytes = length - _TOPIC_AT - topic_bytes - typ - key - correlation - trace
    return TracedMessage(context, publisher, sequence, topic.decode("utf-8", "replace"), body_bytes)


def derived(context: bytes, name: str, *places: str | int) -> bytes:
    """Returns the context of the span `name` at these places in the trace of `context`.

    It is the same in every process. The places make the span unique in its trace: an instance's
    name, or for a link both names and the connection's epoch.
    """
    key = "\0".join((name, *map(str, places))).encode()
    return context[:16] + _span_id(context[:16] + key) + context[24:]


def _span_id(key: bytes) -> bytes:
    return (hash64(key) or 1).to_bytes(8, "big")


def new_context() -> bytes:
    random = os.urandom(24)
    if not any(random[:16]) or not any(random[16:]):  # ids of all zeros are invalid (W3C)
        return new_context()
    return random + bytes((SAMPLED,))


class OutstandingSamples:
    """The sampled messages that wait for an acknowledgment, of one link or one instance.

    Bounded: above `messages_max` the oldest is forgotten (its spans are then missing, nothing
    else). Falsy when it is empty, so that callers skip it for nothing.
    """

    __slots__ = ("_items", "_messages_max", "forgotten")

    def __init__(self, messages_max: int = OUTSTANDING_MAX_DEFAULT) -> None:
        self._items: dict[int, dict[int, tuple[TracedMessage, int]]] = {}
        self._messages_max = messages_max
        self.forgotten = 0

    def __bool__(self) -> bool:
        return bool(self._items)

    def __len__(self) -> int:
        return sum(map(len, self._items.values()))

    def add(self, messages: Iterable[TracedMessage], since_ns: int) -> None:
        """Adds messages whose wait began at `since_ns`; a message that is there already stays as it
        is."""
        for message in messages:
            self._items.setdefault(message.publisher, {}).setdefault(
                message.sequence, (message, since_ns)
            )
        while len(self) > self._messages_max:
            publisher = next(iter(self._items))
            kept = self._items[publisher]
            del kept[next(iter(kept))]
            if not kept:
                del self._items[publisher]
            self.forgotten += 1

    def take(
        self, publisher: int, ranges: Iterable[tuple[int, int]]
    ) -> list[tuple[TracedMessage, int]]:
        """Removes the messages of a publisher that were acknowledged.

        Args:
            ranges: first and last sequence of each acknowledged range, both included.

        Returns:
            (message, since_ns) of each removed message: the time is the one given to `add`.
        """
        kept = self._items.get(publisher)
        if not kept:
            return []
        found = [
            sequence for first, last in ranges for sequence in kept if first <= sequence <= last
        ]
        taken = [kept.pop(sequence) for sequence in dict.fromkeys(found)]
        if not kept:
            del self._items[publisher]
        return taken


class Tracing:
    """The spans of one process. `start_tracing` creates it; `close` flushes and ends it.

    All methods may be called from any thread. Those that report return without waiting: a span is
    appended to a bounded queue, which a thread empties. A full queue drops its oldest span.
    """

    enabled = True

    def __init__(
        self, process_name: str, options: TracingOptions, queues: Sequence[SpanQueue]
    ) -> None:
        self.process_name = process_name
        self.options = options
        self.sample_every = options.sample_every
        self._queues = list(queues)
        atexit.register(self.close)

    def span(
        self,
        name: str,
        context: bytes,
        start_ns: int,
        end_ns: int,
        attributes: Attributes | None = None,
        *,
        own: bytes = b"",
    ) -> bytes:
        """Reports a finished span whose parent is the span of `context`.

        Args:
            own: the span's own context, as `derived` gives it; a random span id without it.

        Returns:
            The span's own context: 25 bytes, for spans below it.
        """
        own = own or context[:16] + os.urandom(8) + context[24:]
        self._report(name, own, context[16:24], start_ns, end_ns, attributes)
        return own

    def root(
        self,
        name: str,
        own: bytes,
        start_ns: int,
        end_ns: int,
        attributes: Attributes | None,
        parent_id: bytes = b"",
    ) -> None:
        """Reports the finished span that is the root of Raylay's part of a trace, under its own
        context.

        Args:
            parent_id: the 8 bytes of the id of the application's span; empty: the trace begins
                here.
        """
        self._report(name, own, parent_id, start_ns, end_ns, attributes)

    def _report(
        self,
        name: str,
        own: bytes,
        parent_id: bytes,
        start_ns: int,
        end_ns: int,
        attributes: Attributes | None,
    ) -> None:
        span = FinishedSpan(name, own, parent_id, start_ns, end_ns, attributes or {})
        for queue in self._queues:
            queue.add(span)

    # -- what the instances and links report ---------------------------------------------------

    def commit(
        self,
        messages: Iterable[TracedMessage],
        start_ns: int,
        end_ns: int,
        *,
        instance: str,
        upstream: str = "",
        epoch: int = 0,
        txid: int = 0,
    ) -> None:
        """Reports that messages were committed: from `start_ns` (received) to `end_ns` (synced).

        With an `upstream` instance and the `epoch` of its connection it is a `remote commit` below
        that link's send, without one a `commit` below the publish.
        """
        for message in messages:
            attributes = _of(message, instance)
            parent = message.context
            if upstream:
                attributes["upstream"] = upstream
                parent = derived(parent, LINK_SEND, upstream, instance, epoch)
            if txid:
                attributes["txid"] = txid
            name = REMOTE_COMMIT if upstream else COMMIT
            own = derived(message.context, COMMIT, instance)
            self.span(name, parent, start_ns, end_ns, attributes, own=own)

    def link_send(
        self,
        messages: Iterable[TracedMessage],
        start_ns: int,
        end_ns: int,
        *,
        instance: str,
        destination: str,
        epoch: int = 0,
    ) -> None:
        """Reports that `destination` stored messages: from read here to its acknowledgment."""
        for message in messages:
            attributes = _of(message, instance)
            attributes["destination"] = destination
            own = derived(message.context, LINK_SEND, instance, destination, epoch)
            parent = derived(message.context, COMMIT, instance)
            self.span(LINK_SEND, parent, start_ns, end_ns, attributes, own=own)

    def persisted_ack(
        self,
        messages: Iterable[TracedMessage],
        start_ns: int,
        end_ns: int,
        *,
        instance: str,
        upstream: str = "",
        epoch: int = 0,
    ) -> None:
        """Reports that `instance`'s persisted answer, given at `start_ns`, has arrived: at the
        `upstream` instance, or without one at the publishing client."""
        for message in messages:
            attributes = _of(message, instance)
            parent = message.context
            if upstream:
                attributes["upstream"] = upstream
                parent = derived(parent, LINK_SEND, upstream, instance, epoch)
            self.span(PERSISTED_ACK, parent, start_ns, end_ns, attributes)

    def delivery(
        self,
        messages: Iterable[TracedMessage],
        start_ns: int,
        end_ns: int,
        *,
        instance: str,
        subscription: str = "",
    ) -> None:
        """Reports that messages which `instance` had at `start_ns` reached a subscriber."""
        for message in messages:
            attributes = _of(message, instance)
            if subscription:
                attributes["subscription"] = subscription
            parent = derived(message.context, COMMIT, instance) if instance else message.context
            self.span(DELIVERY, parent, start_ns, end_ns, attributes)

    def queue_delivery(
        self,
        messages: Iterable[TracedMessage],
        numbers: Mapping[tuple[int, int], int],
        start_us: int,
        sent_us: int,
        *,
        instance: str,
        queue: str,
        client: str,
        subscription: str,
    ) -> None:
        """Reports that messages of a queue were written to a client.

        Args:
            numbers: the numbers of their leases, by publisher and sequence.
            start_us: the time of the decision.
            sent_us: the time in their frame. It is a place of the spans, and the client reports
                below them.
        """
        for message in messages:
            attributes = _of(message, instance)
            attributes |= {"queue": queue, "client": client, "subscription": subscription}
            number = numbers.get((message.publisher, message.sequence), 0)
            parent = derived(message.context, LEASE, instance, queue, number)
            own = derived(message.context, DELIVERY, instance, client, subscription, sent_us)
            end_ns = time.time_ns()
            self.span(DELIVERY, parent, start_us * 1000, end_ns, attributes, own=own)

    # -- the end -------------------------------------------------------------------------------

    def flush(self, timeout_s: float | None = None) -> None:
        """Passes all spans to the exporters. Waits for each: at most `timeout_s`, or without it as
        long as `close` would."""
        for queue in self._queues:
            queue.flush(timeout_s)

    def close(self) -> None:
        """Passes on the last spans and ends the tracing. Waits for a collector `COLLECTOR_WAIT_S`
        at most. Called at exit too; a second call does nothing."""
        atexit.unregister(self.close)
        queues, self._queues = self._queues, []
        close_all(queues)


class NoTracing(Tracing):
    """The tracing of a process without an exporter: does nothing, imports nothing."""

    enabled = False

    def __init__(self, process_name: str, options: TracingOptions) -> None:
        self.process_name = process_name
        self.options = options
        self.sample_every = 0
        self._queues = []

    def _report(self, *_: Any) -> None:
        """Drops the span."""


def _of(message: TracedMessage, instance: str) -> dict[str, str | int | float | bool]:
    attributes: dict[str, str | int | float | bool] = {
        "bookmark": message.bookmark,
        "topic": message.topic,
        "body_bytes": message.body_bytes,
    }
    if instance:
        attributes["instance"] = instance
    return attributes


# -- exporters ---------------------------------------------------------------------------------


def start_tracing(
    process_name: str, options: TracingOptions | None = None, *, of_client: bool = False
) -> Tracing:
    """Returns the tracing of this process, named as in the traces: an instance, a link, a client.

    Without an exporter nothing is imported, started or written.

    Args:
        of_client: whether the process is an application: its spans are those of clients, and its
            service has a name of its own.

    Raises:
        ConfigurationError: an exporter is not available: its package is missing, or its directory
            cannot be written.
    """
    options = options or TracingOptions()
    if not options.enabled:
        return NoTracing(process_name, options)
    queues: list[SpanQueue] = []
    if options.file_directory:
        file = partial(
            FileExporter,
            process_name,
            Path(options.file_directory),
            options.file_bytes_max,
            options.process_bytes_max,
        )
        queues.append(SpanQueue(file, DISK_WAIT_S))
    if options.console:
        queues.append(SpanQueue(partial(ConsoleExporter, process_name), DISK_WAIT_S))
    if options.otlp_endpoint:
        from raylay.services.telemetry.otlp import OtlpExporter

        collector = partial(OtlpExporter, options.otlp_endpoint, process_name, of_client=of_client)
        queues.append(SpanQueue(collector, COLLECTOR_WAIT_S))
    return Tracing(process_name, options, queues)
