"""services/telemetry/tracing.py with real files, processes and an OTLP collector's HTTP port."""

from __future__ import annotations

import json
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any, ClassVar

import pytest

from raylay.services.errors import ConfigurationError
from raylay.services.messages.records import RecordBuilder, decode_record, publisher_id
from raylay.services.telemetry.client_traces import ClientTracer
from raylay.services.telemetry.span_export import EXPORT_INTERVAL_MS
from raylay.services.telemetry.tracing import (
    NoTracing,
    OutstandingSamples,
    TracedMessage,
    Tracing,
    TracingOptions,
    derived,
    new_context,
    start_tracing,
    traced,
)

PUBLISHER = publisher_id("pub")


def message(sequence: int = 7, publisher: int = PUBLISHER) -> TracedMessage:
    return TracedMessage(new_context(), publisher, sequence, "flights")


def spans_in(directory: Path) -> list[dict[str, Any]]:
    found = []
    for path in sorted(directory.glob("*.jsonl")):
        found += [json.loads(line) for line in path.read_text().splitlines()]
    return found


@contextmanager
def tracing_to(directory: Path, name: str = "A1", **options: Any) -> Iterator[Tracing]:
    made = start_tracing(name, TracingOptions(file_directory=str(directory), **options))
    try:
        yield made
    finally:
        made.close()


# -- options -----------------------------------------------------------------------------------


def test_without_an_exporter_nothing_is_imported_or_started() -> None:
    program = (
        "import sys, threading\n"
        "from raylay.services.telemetry.tracing import start_tracing\n"
        "tracing = start_tracing('A1')\n"
        "tracing.commit([], 1, 2, instance='A1'); tracing.flush(); tracing.close()\n"
        "print(tracing.enabled, tracing.sample_every,\n"
        "      any(name.startswith('opentelemetry') for name in sys.modules),\n"
        "      threading.active_count())\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=True
    )
    assert done.stdout.split() == ["False", "0", "False", "1"]


def test_a_disabled_client_tracer_still_gives_a_context() -> None:
    tracer = ClientTracer(start_tracing("client"), "pub")
    assert tracer.sample_every == 0
    assert len(tracer.publish_started(1, "t", {})) == 25
    tracer.publish_persisted(1)
    tracer.close()


@pytest.mark.parametrize(
    ("ratio", "every"), [(1.0, 1), (0.5, 2), (0.001, 1000), (0.0, 0), (0.75, 1)]
)
def test_sampling_ratio_becomes_a_countdown(ratio: float, every: int) -> None:
    assert TracingOptions(sampling_ratio=ratio, console=True).sample_every == every


@pytest.mark.parametrize(
    "wrong", [{"sampling_ratio": 1.5}, {"sampling_ratio": -0.1}, {"file_bytes_max": 0}]
)
def test_wrong_options_are_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(ConfigurationError):
        TracingOptions(**wrong)


def test_a_directory_that_cannot_be_made_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(ConfigurationError, match="file/traces"):
        start_tracing("A1", TracingOptions(file_directory=str(tmp_path / "file" / "traces")))


# -- contexts ----------------------------------------------------------------------------------


def test_a_context_is_25_bytes_of_a_sampled_trace() -> None:
    context = new_context()
    assert len(context) == 25
    assert context[24] == 1
    assert any(context[:16])
    assert any(context[16:24])
    assert new_context() != context


def test_derived_contexts_are_the_same_everywhere_and_differ_by_place() -> None:
    context = bytes(range(1, 25)) + b"\x01"
    # Golden: XXH3-64 of the trace id and b"commit\0A1", big-endian; every version derives it.
    assert derived(context, "commit", "A1").hex() == (
        "0102030405060708090a0b0c0d0e0f10" + "1c82594fc76adcd4" + "01"
    )
    ids = {
        derived(context, "commit", "A1"),
        derived(context, "commit", "A2"),
        derived(context, "link send", "A1", "A2", 1),
        derived(context, "link send", "A1", "A2", 2),
        derived(context, "link send", "A2", "A1", 1),
        derived(new_context(), "commit", "A1"),
    }
    assert len(ids) == 6


def test_the_sampled_records_of_a_payload_are_found() -> None:
    builder = RecordBuilder(PUBLISHER, "flights/é", "json")
    contexts = {3: new_context(), 4: new_context(), 10: new_context()}
    payload = b"".join(
        builder.build(i, b"body" * i, 1, contexts.get(i, b""), key=b"k" * (i % 3))
        for i in range(1, 11)
    )
    expected = [TracedMessage(contexts[i], PUBLISHER, i, "flights/é", 4 * i) for i in (3, 4, 10)]
    assert traced(payload) == expected
    assert traced(memoryview(payload)) == expected
    assert traced(payload, limit=2) == expected[:2]
    assert traced(b"") == []
    record = decode_record(builder.build(3, b"x", 1, contexts[3]))
    assert (record.trace, record.bookmark) == (contexts[3], expected[0].bookmark)


# -- spans and files ---------------------------------------------------------------------------


def test_one_tree_from_the_spans_of_three_processes(tmp_path: Path) -> None:
    m = message()
    with tracing_to(tmp_path, "A1") as a1:
        a1.commit([m], 10, 20, instance="A1", txid=5)
        a1.link_send([m], 21, 50, instance="A1", destination="A2", epoch=3)
        a1.persisted_ack([m], 51, 60, instance="A1")
    with tracing_to(tmp_path, "A2") as a2:
        a2.commit([m], 30, 40, instance="A2", upstream="A1", epoch=3)
        a2.persisted_ack([m], 41, 45, instance="A2", upstream="A1", epoch=3)
        a2.delivery([m], 30, 44, instance="A2", subscription="s1")
    found = {(span["name"], span["process"]): span for span in spans_in(tmp_path)}
    assert len(found) == 6
    assert {span["trace_id"] for span in found.values()} == {m.context[:16].hex()}
    parents = {key: span["parent_id"] for key, span in found.items()}
    ids = {key: span["span_id"] for key, span in found.items()}
    publish = m.context[16:24].hex()
    assert parents[("commit", "A1")] == publish
    assert parents[("persisted ack", "A1")] == publish
    assert parents[("link send", "A1")] == ids[("commit", "A1")]
    assert parents[("remote commit", "A2")] == ids[("link send", "A1")]
    assert parents[("persisted ack", "A2")] == ids[("link send", "A1")]
    assert parents[("delivery", "A2")] == ids[("remote commit", "A2")]
    commit = found[("commit", "A1")]
    assert (commit["start_ns"], commit["end_ns"]) == (10, 20)
    assert commit["attributes"] == {
        "bookmark": m.bookmark,
        "topic": "flights",
        "body_bytes": 0,
        "instance": "A1",
        "txid": 5,
    }
    assert found[("link send", "A1")]["attributes"]["destination"] == "A2"


def test_span_returns_a_context_to_hang_spans_below(tmp_path: Path) -> None:
    context = new_context()
    with tracing_to(tmp_path) as tracing:
        own = tracing.span("resync", context, 1, 2)
        tracing.span("read", own, 1, 2, {"bytes": 3})
    resync, read = spans_in(tmp_path)
    assert own[:16] == context[:16]
    assert resync["parent_id"] == context[16:24].hex()
    assert read["parent_id"] == resync["span_id"] == own[16:24].hex()


def test_spans_reach_the_file_within_a_second_without_a_flush(tmp_path: Path) -> None:
    assert EXPORT_INTERVAL_MS < 1_000
    with tracing_to(tmp_path) as tracing:
        began = time.monotonic()
        tracing.commit([message()], 1, 2, instance="A1")
        # A file offers nothing to wait on.
        while not spans_in(tmp_path) and time.monotonic() - began < 30.0:
            threading.Event().wait(0.01)
        assert len(spans_in(tmp_path)) == 1


def test_a_process_without_spans_has_no_thread_that_looks_for_some(tmp_path: Path) -> None:
    before = threading.active_count()
    tracing = start_tracing("A", TracingOptions(file_directory=str(tmp_path)))
    assert threading.active_count() == before
    tracing.span("commit", new_context(), 1, 2)
    assert threading.active_count() == before + 1
    tracing.close()
    assert threading.active_count() == before


def test_spans_are_written_when_the_process_ends_by_itself(tmp_path: Path) -> None:
    program = (
        "import sys\n"
        "from raylay.services.telemetry.tracing import *\n"
        "t = start_tracing('A/1 x', TracingOptions(file_directory=sys.argv[1]))\n"
        "m = TracedMessage(new_context(), 1, 1, 't')\n"
        "for _ in range(1200): t.commit([m], 1, 2, instance='A1')\n"
    )
    subprocess.run([sys.executable, "-c", program, str(tmp_path)], timeout=60, check=True)
    spans = spans_in(tmp_path)
    assert len(spans) == 1200
    assert {span["process"] for span in spans} == {"A/1 x"}
    assert [path.name.startswith("A_1_x-") for path in tmp_path.iterdir()] == [True]


def test_files_are_bounded_and_the_newest_spans_stay(tmp_path: Path) -> None:
    with tracing_to(tmp_path, file_bytes_max=2_000, process_bytes_max=6_000) as tracing:
        for number in range(100):
            tracing.commit([message(number)], number, number + 1, instance="A1")
            tracing.flush()  # a write each, so that files of 2,000 bytes can be filled
    sizes = [path.stat().st_size for path in tmp_path.iterdir()]
    assert 2 <= len(sizes) <= 3
    assert sum(sizes) <= 6_000
    assert max(sizes) <= 2_000
    starts = sorted(span["start_ns"] for span in spans_in(tmp_path))
    assert starts == list(range(100 - len(starts), 100))


def test_a_full_queue_drops_spans_and_never_waits(tmp_path: Path) -> None:
    with tracing_to(tmp_path) as tracing:
        m = message()
        for _ in range(40):
            tracing.commit([m] * 1_000, 1, 2, instance="A1")
    assert 0 < len(spans_in(tmp_path)) <= 40_000


def test_close_twice_and_spans_after_it_do_nothing(tmp_path: Path) -> None:
    tracing = start_tracing("A1", TracingOptions(file_directory=str(tmp_path)))
    tracing.close()
    tracing.close()
    tracing.commit([message()], 1, 2, instance="A1")
    tracing.flush()
    assert spans_in(tmp_path) == []


def test_the_console_exporter_writes_lines_to_stderr(tmp_path: Path) -> None:
    program = (
        "from raylay.services.telemetry.tracing import *\n"
        "t = start_tracing('A1', TracingOptions(console=True))\n"
        "t.commit([TracedMessage(new_context(), 1, 2, 't')], 1, 2, instance='A1')\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=True
    )
    (line,) = done.stderr.splitlines()
    assert json.loads(line)["attributes"]["bookmark"] == "1|2|"
    assert done.stdout == ""


# -- OTLP --------------------------------------------------------------------------------------


class Collector(BaseHTTPRequestHandler):
    """Answers as an OTLP collector and keeps what it got."""

    bodies: ClassVar[list[tuple[str, bytes]]] = []

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"]))
        if self.headers.get("Content-Encoding") == "gzip":
            import gzip

            body = gzip.decompress(body)
        self.bodies.append((self.path, body))
        self.send_response(200)
        self.send_header("Content-Length", "0")
        self.end_headers()

    def log_message(self, *_: object) -> None:
        """Keeps the tests' output clean."""


def test_spans_reach_an_otlp_collector() -> None:
    trace_service_pb2 = pytest.importorskip(
        "opentelemetry.proto.collector.trace.v1.trace_service_pb2"
    )
    Collector.bodies = []
    server = HTTPServer(("127.0.0.1", 0), Collector)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        endpoint = f"http://127.0.0.1:{server.server_port}"
        tracing = start_tracing("A1", TracingOptions(otlp_endpoint=endpoint))
        m = message()
        tracing.commit([m], 10, 20, instance="A1")
        tracing.close()
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
    ((path, body),) = Collector.bodies
    assert path == "/v1/traces"
    request = trace_service_pb2.ExportTraceServiceRequest.FromString(body)
    (resource,) = request.resource_spans
    attributes = {a.key: a.value.string_value for a in resource.resource.attributes}
    assert attributes["service.name"] == "raylay"
    assert attributes["service.instance.id"] == "A1"
    (span,) = resource.scope_spans[0].spans
    assert span.trace_id == m.context[:16]
    assert span.parent_span_id == m.context[16:24]
    assert span.span_id == derived(m.context, "commit", "A1")[16:24]
    assert (span.name, span.start_time_unix_nano, span.end_time_unix_nano) == ("commit", 10, 20)


# -- the client --------------------------------------------------------------------------------


def test_a_persisted_ack_ends_all_publish_spans_up_to_it(tmp_path: Path) -> None:
    with tracing_to(tmp_path, "client") as tracing:
        tracer = ClientTracer(tracing, "pub")
        contexts = {n: tracer.publish_started(n, "flights", {}) for n in (10, 20, 30)}
        tracer.publish_persisted(9)
        tracing.flush()
        assert spans_in(tmp_path) == []
        tracer.publish_persisted(25)
        tracing.flush()
        spans = spans_in(tmp_path)
        assert [s["span_id"] for s in spans] == [contexts[n][16:24].hex() for n in (10, 20)]
        assert all(s["parent_id"] is None for s in spans)
        assert spans[0]["attributes"] == {
            "bookmark": f"{PUBLISHER}|10|",
            "topic": "flights",
            "client": "pub",
            "outcome": "persisted",
        }
        assert spans[0]["end_ns"] >= spans[0]["start_ns"] > 0
        tracer.publish_failed(11, "bad_topic")
        tracer.publish_failed(30, "bad_topic")
        tracer.publish_persisted(30)
        tracer.publish_started(40, "flights", {})
        tracer.close()
        assert [s["attributes"]["outcome"] for s in spans_in(tmp_path)[2:]] == ["failed", "unknown"]


def test_outstanding_publishes_are_bounded(tmp_path: Path) -> None:
    with tracing_to(tmp_path, "client") as tracing:
        tracer = ClientTracer(tracing, "pub", outstanding_max=2)
        for sequence in range(1, 6):
            tracer.publish_started(sequence, "t", {})
        tracer.publish_persisted(5)
    outcomes = [s["attributes"]["outcome"] for s in spans_in(tmp_path)]
    assert outcomes == ["forgotten"] * 3 + ["persisted"] * 2


def test_a_delivery_hangs_below_the_commit_of_its_instance(tmp_path: Path) -> None:
    context = new_context()
    with tracing_to(tmp_path, "client") as tracing:
        tracer = ClientTracer(tracing, "sub")
        tracer.delivered(context, {"bookmark": "1|2|", "instance": "A2"}, 100, 200)
        tracer.delivered(context, {"bookmark": "1|2|"})
    first, second = spans_in(tmp_path)
    assert first["parent_id"] == derived(context, "commit", "A2")[16:24].hex()
    assert (first["start_ns"], first["end_ns"], first["attributes"]["client"]) == (100, 200, "sub")
    assert second["parent_id"] == context[16:24].hex()
    assert second["start_ns"] == second["end_ns"] > 0


# -- what waits for an acknowledgment ----------------------------------------------------------


def test_outstanding_messages_are_taken_by_ranges() -> None:
    waiting = OutstandingSamples()
    assert not waiting
    waiting.add([message(5), message(7), message(9)], 100)
    waiting.add([message(7, publisher=2)], 150)
    waiting.add([message(5)], 200)
    assert waiting.take(3, [(1, 100)]) == []
    taken = waiting.take(PUBLISHER, [(1, 5), (8, 9), (9, 12)])
    assert [(m.sequence, since) for m, since in taken] == [(5, 100), (9, 100)]
    assert len(waiting) == 2
    assert [m.sequence for m, _ in waiting.take(PUBLISHER, [(7, 7)])] == [7]
    assert [m.publisher for m, _ in waiting.take(2, [(7, 7)])] == [2]
    assert not waiting


def test_outstanding_messages_are_bounded() -> None:
    waiting = OutstandingSamples(messages_max=3)
    waiting.add([message(n) for n in range(10)], 1)
    assert (len(waiting), waiting.forgotten) == (3, 7)
    assert [m.sequence for m, _ in waiting.take(PUBLISHER, [(0, 9)])] == [7, 8, 9]


def test_no_tracing_is_tracing() -> None:
    nothing = NoTracing("x", TracingOptions())
    context = new_context()
    assert nothing.span("a", context, 1, 2)[:16] == context[:16]
