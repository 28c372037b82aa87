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
(`time.time_ns`). They are made of the OpenTelemetry SDK's `ReadableSpan` and go to its batch
processors directly, because a span that is started and ended through its tracer costs three times
as much. Unsampled messages come here never: callers ask `Flag.TRACED` of a run and a countdown at
the publisher.

Ray's own tracing hooks are not used: they would put a span around every actor call.
"""

from __future__ import annotations

import atexit
import json
import os
import struct
import sys
import threading
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from xxhash import xxh3_64_intdigest as hash64

from raylay.services.errors import ConfigurationError
from raylay.services.messages.records import TRACE_BYTES
from raylay.services.telemetry.bounded_files import BoundedFile

if TYPE_CHECKING:
    from opentelemetry.sdk.trace import ReadableSpan, SpanProcessor
    from opentelemetry.sdk.trace.export import SpanExporter

SAMPLING_RATIO_DEFAULT = 0.001
FILE_BYTES_MAX_DEFAULT = 64 * 1024 * 1024
PROCESS_BYTES_MAX_DEFAULT = 4 * FILE_BYTES_MAX_DEFAULT
OUTSTANDING_MAX_DEFAULT = 10_000
QUEUE_SPANS_MAX = 16_384
EXPORT_SPANS_MAX = 512
# The processor's timer may leave one partial batch for its next turn: two turns stay within 1 s.
EXPORT_INTERVAL_MS = 400
CLOSE_TIMEOUT_MS = 5_000

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

Attributes = Mapping[str, str | int | float | bool]

_RECORD_FRONT = struct.Struct("<I8xBBBBH")
_LENGTH = struct.Struct("<I")
_PUBLISHER_SEQUENCE = struct.Struct("<QQ")
_TRACE_LENGTH_AT = 15
_PUBLISHER_AT = 28
_TOPIC_AT = 60
_SAMPLED = 1


class TracedMessage(NamedTuple):
    """A sampled message, with the values that its spans need."""

    context: bytes
    """The 25 bytes that the record carries."""
    publisher: int
    sequence: int
    topic: str

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
    topic_bytes = _RECORD_FRONT.unpack_from(payload, offset)[5]
    publisher, sequence = _PUBLISHER_SEQUENCE.unpack_from(payload, offset + _PUBLISHER_AT)
    topic = bytes(payload[offset + _TOPIC_AT : offset + _TOPIC_AT + topic_bytes])
    context = bytes(payload[offset + length - TRACE_BYTES : offset + length])
    return TracedMessage(context, publisher, sequence, topic.decode("utf-8", "replace"))


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
    return random + bytes((_SAMPLED,))


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

    All methods may be called from any thread and return without waiting: a span is appended to a
    bounded queue, which a thread of the SDK empties. A full queue drops its oldest span.
    """

    enabled = True

    def __init__(
        self, process_name: str, options: TracingOptions, exporters: Sequence[SpanExporter]
    ) -> None:
        from opentelemetry.sdk.resources import Resource
        from opentelemetry.sdk.trace import ReadableSpan
        from opentelemetry.sdk.util.instrumentation import InstrumentationScope
        from opentelemetry.trace import SpanContext, TraceFlags

        self.process_name = process_name
        self.options = options
        self.sample_every = options.sample_every
        self._span_class = ReadableSpan
        self._context_class = SpanContext
        self._sampled = TraceFlags(TraceFlags.SAMPLED)
        self._scope = InstrumentationScope("raylay")
        self._resource = Resource(
            {
                "service.name": "raylay",
                "service.instance.id": process_name,
                "process.pid": os.getpid(),
            }
        )
        self._exporters, self._starting = list(exporters), threading.Lock()
        self._processors: list[SpanProcessor] = []
        atexit.register(self.close)

    def _start(self) -> None:
        """Starts the processors at the first span, so that a process without spans has no thread
        that wakes up for them."""
        from opentelemetry.sdk.trace.export import BatchSpanProcessor as Batch

        limits = QUEUE_SPANS_MAX, EXPORT_INTERVAL_MS, EXPORT_SPANS_MAX
        with self._starting:
            self._processors += [Batch(exporter, *limits) for exporter in self._exporters]
            self._exporters = []

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
        self, name: str, own: bytes, start_ns: int, end_ns: int, attributes: Attributes | None
    ) -> None:
        """Reports a finished span that has no parent, under its own context."""
        self._report(name, own, b"", start_ns, end_ns, attributes)

    def _report(
        self,
        name: str,
        own: bytes,
        parent_id: bytes,
        start_ns: int,
        end_ns: int,
        attributes: Attributes | None,
    ) -> None:
        if self._exporters:
            self._start()
        trace_id = int.from_bytes(own[:16], "big")
        make = self._context_class
        parent = None
        if parent_id:
            parent = make(trace_id, int.from_bytes(parent_id, "big"), True, self._sampled)
        span = self._span_class(
            name,
            make(trace_id, int.from_bytes(own[16:24], "big"), False, self._sampled),
            parent,
            self._resource,
            attributes,
            start_time=start_ns,
            end_time=end_ns,
            instrumentation_scope=self._scope,
        )
        for processor in self._processors:
            processor.on_end(span)

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

    def flush(self) -> None:
        """Passes all spans to the exporters. Blocks while they write."""
        for processor in self._processors:
            processor.force_flush(CLOSE_TIMEOUT_MS)

    def close(self) -> None:
        """Flushes and ends the tracing. Called at exit too; a second call does nothing."""
        atexit.unregister(self.close)
        ending: list[Any] = [*self._processors, *self._exporters]
        self._processors, self._exporters = [], []
        for each in ending:
            each.shutdown()


class NoTracing(Tracing):
    """The tracing of a process without an exporter: does nothing, imports nothing."""

    enabled = False

    def __init__(self, process_name: str, options: TracingOptions) -> None:
        self.process_name = process_name
        self.options = options
        self.sample_every = 0
        self._processors, self._exporters = [], []

    def _report(self, *_: Any) -> None:
        """Drops the span."""


def _of(message: TracedMessage, instance: str) -> dict[str, str | int | float | bool]:
    attributes: dict[str, str | int | float | bool] = {
        "bookmark": message.bookmark,
        "topic": message.topic,
    }
    if instance:
        attributes["instance"] = instance
    return attributes


# -- exporters ---------------------------------------------------------------------------------


def span_line(span: ReadableSpan, process_name: str) -> str:
    """Formats a span as one line of JSON, as the file and console exporters write it."""
    context, parent = span.context, span.parent
    assert context is not None
    return json.dumps(
        {
            "trace_id": f"{context.trace_id:032x}",
            "span_id": f"{context.span_id:016x}",
            "parent_id": f"{parent.span_id:016x}" if parent else None,
            "name": span.name,
            "start_ns": span.start_time,
            "end_ns": span.end_time,
            "process": process_name,
            "attributes": dict(span.attributes or {}),
        },
        separators=(",", ":"),
        default=str,
    )


def _file_exporter(process_name: str, options: TracingOptions) -> SpanExporter:
    from opentelemetry.sdk.trace.export import SpanExporter, SpanExportResult

    file = BoundedFile(
        Path(options.file_directory),
        process_name,
        "jsonl",
        options.file_bytes_max,
        options.process_bytes_max,
    )

    class FileSpanExporter(SpanExporter):
        """Writes spans as JSON lines. On disk errors spans are lost, and the broker's work is not
        disturbed."""

        def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
            lines = "".join([span_line(span, process_name) + "\n" for span in spans])
            try:
                file.write(lines.encode())
            except OSError:
                return SpanExportResult.FAILURE
            return SpanExportResult.SUCCESS

        def shutdown(self) -> None:
            file.close()

    return FileSpanExporter()


def _console_exporter(process_name: str) -> SpanExporter:
    from opentelemetry.sdk.trace.export import ConsoleSpanExporter

    return ConsoleSpanExporter(
        out=sys.stderr, formatter=lambda span: span_line(span, process_name) + "\n"
    )


def _otlp_exporter(endpoint: str) -> SpanExporter:
    try:
        from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
    except ImportError as error:
        raise ConfigurationError(
            "traces over OTLP need an extra: pip install 'raylay[otlp]'"
        ) from error
    url = endpoint if "/v1/" in endpoint else endpoint.rstrip("/") + "/v1/traces"
    return OTLPSpanExporter(endpoint=url)


def start_tracing(process_name: str, options: TracingOptions | None = None) -> Tracing:
    """Returns the tracing of this process, named as in the traces: an instance, a link, a client.

    Without an exporter nothing is imported, started or written.

    Raises:
        ConfigurationError: an exporter is not available: its package is missing, or its directory
            cannot be written.
    """
    options = options or TracingOptions()
    if not options.enabled:
        return NoTracing(process_name, options)
    exporters: list[SpanExporter] = []
    if options.file_directory:
        exporters.append(_file_exporter(process_name, options))
    if options.console:
        exporters.append(_console_exporter(process_name))
    if options.otlp_endpoint:
        exporters.append(_otlp_exporter(options.otlp_endpoint))
    return Tracing(process_name, options, exporters)
