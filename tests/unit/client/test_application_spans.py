"""The application's own OpenTelemetry spans: publishes join their trace, and consumers continue it
(services/client/application_spans.py)."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import Any

import pytest
from support.fake_server import FakeServer
from unit.client.test_client import client_of, run
from unit.client.test_sync import ServerThread
from unit.client.test_sync import there as there

from raylay.services.client import SyncClient
from raylay.services.client.application_spans import LINKS_MAX, span_reader
from raylay.services.client.messages import Message, MessageBatch
from raylay.services.messages.records import Record, RecordBuilder, decode_record
from raylay.services.messages.trace_context import packed
from raylay.services.telemetry.client_traces import ClientTracer
from raylay.services.telemetry.span_export import FinishedSpan, SpanQueue
from raylay.services.telemetry.tracing import Tracing, TracingOptions, new_context

pytest.importorskip("opentelemetry.sdk.trace")

from opentelemetry import baggage, context, trace
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import SpanKind, StatusCode


@pytest.fixture
def spans(monkeypatch: pytest.MonkeyPatch) -> Iterator[InMemorySpanExporter]:
    """The exporter of an application that has a tracer provider."""
    provider, exporter = TracerProvider(), InMemorySpanExporter()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    # A process can set its provider only once.
    monkeypatch.setattr(trace, "_TRACER_PROVIDER", provider)
    yield exporter
    provider.shutdown()


def tracer() -> trace.Tracer:
    return trace.get_tracer("the application")


def context_of(span: Any) -> bytes:
    found = span.get_span_context()
    return packed(found.trace_id, found.span_id)


def published(server: Any) -> list[Record]:
    """The records that a server got, in their order."""
    found: list[Record] = []
    for session in server.sessions:
        for header, payload in session.frames:
            offset = 0
            while header["c"] == "pb" and offset < len(payload):
                found.append(decode_record(payload, offset))
                offset += int.from_bytes(payload[offset : offset + 4], "little")
    return found


def batch_of(*traces: bytes, topics: tuple[str, ...] = ("orders",)) -> MessageBatch:
    records = [
        RecordBuilder(7, topics[number % len(topics)], "json").build(number + 1, b"four", 5, given)
        for number, given in enumerate(traces)
    ]
    return MessageBatch("s1", len(records), b"".join(records), traced=any(traces))


def message(given: bytes, **options: Any) -> Message:
    return next(batch_of(given, **options).messages())


class Finished:
    """Keeps the spans of Raylay's own tracing."""

    def __init__(self) -> None:
        self.spans: list[FinishedSpan] = []

    def export(self, spans: Any) -> None:
        self.spans += spans

    def close(self) -> None:
        """Has nothing to end."""


# -- publishing --------------------------------------------------------------------------------


@run
async def test_a_publish_in_a_span_carries_its_context(spans: InMemorySpanExporter) -> None:
    server = await FakeServer().start()
    server.auto_ack = True
    async with client_of(server) as client:
        await client.publish("t", b"before")
        with tracer().start_as_current_span("order") as span:
            await client.publish("t", b"in it")
            with trace.use_span(trace.INVALID_SPAN):
                await client.publish("t", b"in none")
            unsampled = trace.SpanContext(1, 2, False, trace.TraceFlags(0))
            with trace.use_span(trace.NonRecordingSpan(unsampled)):
                await client.publish("t", b"unsampled")
        await client.publish("t", b"behind")
        await client.flush()
        assert {each.body: each.trace for each in published(server)} == {
            b"before": b"",
            b"in it": context_of(span),
            b"in none": b"",
            b"unsampled": b"",
            b"behind": b"",
        }
    await server.stop()


@run
async def test_raylays_span_of_a_publish_is_below_the_applications(
    spans: InMemorySpanExporter,
) -> None:
    server = await FakeServer().start()
    server.auto_ack = True
    finished = Finished()
    queue = SpanQueue(lambda: finished, 60.0)
    tracing = Tracing("desk", TracingOptions(sampling_ratio=0.0, console=True), [queue])
    given: Any = {"tracer": ClientTracer(tracing, "desk"), "sampling_ratio": 0.0}
    async with client_of(server, **given) as client:
        with tracer().start_as_current_span("order") as span:
            await client.publish("t", b"in it")
        await client.publish("t", b"behind")
        await client.flush()
        inside, behind = published(server)
    await server.stop()
    tracing.close()
    (found,) = finished.spans
    assert found.name == "publish"
    assert found.context == inside.trace
    assert found.context[:16] + found.parent_id == context_of(span)[:24]
    assert found.context[16:24] != found.parent_id
    assert behind.trace == b""


@run
async def test_sampling_goes_on_beside_the_applications_spans(
    spans: InMemorySpanExporter,
) -> None:
    server = await FakeServer().start()
    server.auto_ack = True
    finished = Finished()
    tracing = Tracing("desk", TracingOptions(console=True), [SpanQueue(lambda: finished, 60.0)])
    given: Any = {"tracer": ClientTracer(tracing, "desk"), "sampling_ratio": 0.1}
    async with client_of(server, **given) as client:
        for _ in range(30):
            await client.publish("t", b"x")
        await client.flush()
        sampled = [at for at, each in enumerate(published(server)) if each.trace]
    await server.stop()
    tracing.close()
    assert sampled == [sampled[0], sampled[0] + 10, sampled[0] + 20]


class Raising(trace.NonRecordingSpan):
    """A span of a library that is broken."""

    def get_span_context(self) -> trace.SpanContext:
        raise ValueError("broken")


@run
async def test_no_span_keeps_a_publish_from_its_way(spans: InMemorySpanExporter) -> None:
    """However broken or large the application's context is, a record has 25 bytes of it."""
    server = await FakeServer().start()
    server.auto_ack = True
    async with client_of(server) as client:
        token = context.attach(trace.set_span_in_context(Raising(trace.INVALID_SPAN_CONTEXT)))
        await client.publish("t", b"broken")
        context.detach(token)
        for ids in ((1 << 128, 1), (1, 1 << 64), (0, 1), (1, 0)):
            beyond = trace.SpanContext(*ids, False, trace.TraceFlags(1))
            with trace.use_span(trace.NonRecordingSpan(beyond)):
                await client.publish("t", b"beyond")
        token = context.attach(baggage.set_baggage("huge", "x" * 1_000_000))
        with tracer().start_as_current_span("order"):
            await client.publish("t", b"huge")
        context.detach(token)
        await client.flush()
        sizes = {each.body: len(each.trace) for each in published(server)}
    await server.stop()
    assert sizes == {b"broken": 0, b"beyond": 0, b"huge": 25}


def test_without_a_provider_nothing_is_looked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    for provider in (None, trace.ProxyTracerProvider(), trace.NoOpTracerProvider()):
        monkeypatch.setattr(trace, "_TRACER_PROVIDER", provider)
        assert span_reader() is None

    def raising() -> Any:
        raise StopIteration  # as for an OTEL_PYTHON_TRACER_PROVIDER that there is not

    monkeypatch.setattr(trace, "get_tracer_provider", raising)
    assert span_reader() is None
    monkeypatch.delitem(__import__("sys").modules, "opentelemetry.trace")
    assert span_reader() is None


def test_each_thread_has_a_span_of_its_own(spans: InMemorySpanExporter, there: Any) -> None:
    """The loop thread sends what many threads published, each in its own span."""
    server: ServerThread = there
    expected: dict[bytes, bytes] = {}
    together = threading.Barrier(4)
    with SyncClient("desk", [server.server.address]) as client:

        def publish(number: int) -> None:
            name = b"%d" % number
            together.wait(60)
            with tracer().start_as_current_span("order") as span:
                expected[name] = context_of(span)
                client.publish("t", name)
            expected[name + b" behind"] = b""
            client.publish("t", name + b" behind")

        threads = [threading.Thread(target=publish, args=(number,)) for number in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        client.flush()
        found = {each.body: each.trace for each in published(server.server)}
    assert found == expected
    assert len({each for each in found.values() if each}) == 4


@run
async def test_acknowledgments_are_in_no_span(spans: InMemorySpanExporter) -> None:
    """A timer publishes them, in the context of any call before."""
    server = await FakeServer().start()
    server.auto_ack = True
    async with client_of(server) as client, client.queue("work", backlog=8) as work:
        name = server.session.commands("subscribe")[-1]["sub"]
        body = RecordBuilder(7, "orders", "json").build(1, b"x", 5)
        server.session.deliver(name, body, q=1)
        with tracer().start_as_current_span("order"):
            (await anext(work)).acknowledge()
            await client.flush()
        (ack,) = published(server)
        assert ack.trace == b""
    await server.stop()


# -- consuming ---------------------------------------------------------------------------------


def only(spans: InMemorySpanExporter, name: str) -> ReadableSpan:
    (found,) = [span for span in spans.get_finished_spans() if span.name == name]
    return found


def test_a_consumers_span_continues_the_trace(spans: InMemorySpanExporter) -> None:
    given = new_context()
    received = message(given)
    with received.span(attributes={"desk": "7"}) as span:
        span.set_attribute("priced", True)
        with tracer().start_as_current_span("price"):
            pass
    found, below = only(spans, "process orders"), only(spans, "price")
    assert found.kind is SpanKind.CONSUMER
    assert found.parent is not None and below.parent is not None and found.context is not None
    assert packed(found.parent.trace_id, found.parent.span_id) == given
    assert found.parent.is_remote
    assert below.parent.span_id == found.context.span_id
    assert found.attributes == {
        "messaging.system": "raylay",
        "messaging.operation.name": "process",
        "messaging.operation.type": "process",
        "messaging.destination.name": "orders",
        "messaging.destination.subscription.name": "s1",
        "messaging.message.id": "7|1|",
        "messaging.message.body.size": 4,
        "desk": "7",
        "priced": True,
    }
    assert found.instrumentation_scope is not None
    assert found.instrumentation_scope.name == "raylay"
    assert found.instrumentation_scope.schema_url
    assert received.traceparent == f"00-{given[:16].hex()}-{given[16:24].hex()}-01"


def test_the_span_around_it_is_linked(spans: InMemorySpanExporter) -> None:
    given = new_context()
    with tracer().start_as_current_span("poll") as around, message(given).span("mine"):
        pass
    found = only(spans, "mine")
    assert found.parent is not None
    assert found.parent.span_id.to_bytes(8, "big") == given[16:24]
    assert [link.context.span_id for link in found.links] == [around.get_span_context().span_id]


def test_a_consumer_that_fails_has_an_error(spans: InMemorySpanExporter) -> None:
    with pytest.raises(KeyError), message(new_context()).span():
        raise KeyError("qty")
    found = only(spans, "process orders")
    assert found.status.status_code is StatusCode.ERROR
    assert found.attributes is not None
    assert found.attributes["error.type"] == "KeyError"


@pytest.mark.parametrize("given", [b"", bytes(25), bytes(16) + b"\1" * 9, b"\1" * 16 + bytes(9)])
def test_a_message_of_no_trace_has_a_span_all_the_same(
    spans: InMemorySpanExporter, given: bytes
) -> None:
    received = message(given)
    assert received.traceparent == ""
    with tracer().start_as_current_span("poll") as around, received.span():
        pass
    found = only(spans, "process orders")
    assert found.parent is not None
    assert found.parent.span_id == around.get_span_context().span_id
    assert received.trace_context == context.get_current()


def test_a_batch_is_linked_to_what_was_published(spans: InMemorySpanExporter) -> None:
    traces = [new_context(), b"", new_context(), bytes(25)]
    with batch_of(*traces).span():
        pass
    found = only(spans, "process orders")
    assert found.parent is None
    assert [packed(each.context.trace_id, each.context.span_id) for each in found.links] == [
        traces[0],
        traces[2],
    ]
    assert found.attributes is not None
    assert found.attributes["messaging.batch.message_count"] == 4


def test_a_batch_of_several_topics_and_very_many_links(spans: InMemorySpanExporter) -> None:
    traces = [new_context() for _ in range(LINKS_MAX + 10)]
    with batch_of(*traces, topics=("orders", "trades")).span():
        pass
    found = only(spans, "process")
    assert len(found.links) == LINKS_MAX
    assert found.attributes is not None
    assert "messaging.destination.name" not in found.attributes
    with batch_of(b"").span(), MessageBatch("s1", 0, b"").span("of none"):
        pass
    assert not only(spans, "process orders").links


def test_without_a_provider_a_span_costs_next_to_nothing_and_tells_nothing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(trace, "_TRACER_PROVIDER", None)
    received = message(new_context())
    with received.span() as span:
        assert not span.is_recording()
        # What is called from here goes on in the trace, all the same.
        assert context_of(trace.get_current_span()) == received.trace
