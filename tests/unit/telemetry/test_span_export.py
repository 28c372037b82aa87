"""services/telemetry/span_export.py: nothing waits for an exporter longer than it may."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from raylay.services.telemetry.span_export import (
    COLLECTOR_WAIT_S,
    EXPORT_SPANS_MAX,
    QUEUE_SPANS_MAX,
    FinishedSpan,
    SpanQueue,
    close_all,
)
from raylay.services.telemetry.tracing import TracingOptions, new_context, start_tracing

LONG_S = 60.0


def span(number: int = 0) -> FinishedSpan:
    return FinishedSpan("commit", new_context(), b"", number, number, {})


class Exporter:
    """Keeps the spans that it gets, once its gate is open."""

    def __init__(self) -> None:
        self.gate = threading.Event()
        self.gate.set()
        self.began = threading.Event()
        self.got: list[int] = []
        self.failures = 0
        self.closed = threading.Event()

    def export(self, spans: Sequence[FinishedSpan]) -> None:
        self.began.set()
        self.gate.wait(LONG_S)
        if self.failures:
            self.failures -= 1
            raise ValueError("does not take them")
        self.got += [each.start_ns for each in spans]

    def close(self) -> None:
        self.closed.set()


@pytest.fixture
def exporter() -> Iterator[Exporter]:
    made = Exporter()
    yield made
    made.gate.set()


def queue_of(exporter: Exporter, wait_s: float = LONG_S) -> SpanQueue:
    return SpanQueue(lambda: exporter, wait_s)


def test_spans_come_in_their_order_and_before_the_end(exporter: Exporter) -> None:
    queue = queue_of(exporter)
    for number in range(2 * EXPORT_SPANS_MAX + 3):
        queue.add(span(number))
    assert queue.flush()
    queue.add(span(-1))
    close_all([queue])
    assert exporter.got == [*range(2 * EXPORT_SPANS_MAX + 3), -1]
    assert exporter.closed.is_set()
    queue.add(span(7))
    assert queue.flush()
    assert len(exporter.got) == 2 * EXPORT_SPANS_MAX + 4


def test_an_exporter_that_raises_loses_its_spans_and_no_more(exporter: Exporter) -> None:
    queue = queue_of(exporter)
    exporter.failures = 1
    queue.add(span(1))
    assert queue.flush()
    queue.add(span(2))
    close_all([queue])
    assert exporter.got == [2]


def test_a_full_queue_keeps_the_newest_spans(exporter: Exporter) -> None:
    queue = queue_of(exporter)
    exporter.gate.clear()
    queue.add(span(-1))
    assert exporter.began.wait(LONG_S)
    for number in range(QUEUE_SPANS_MAX + 5):
        queue.add(span(number))
    exporter.gate.set()
    close_all([queue])
    assert exporter.got == [-1, *range(5, QUEUE_SPANS_MAX + 5)]


def test_the_end_waits_for_no_exporter_that_hangs(exporter: Exporter) -> None:
    queue = queue_of(exporter, wait_s=0.01)
    exporter.gate.clear()
    queue.add(span())
    assert exporter.began.wait(LONG_S)
    close_all([queue])
    assert not exporter.closed.is_set()
    exporter.gate.set()
    assert exporter.closed.wait(LONG_S)  # Its thread ends by itself.


def test_an_exporter_that_hangs_is_waited_for_once(exporter: Exporter) -> None:
    queue = queue_of(exporter)
    exporter.gate.clear()
    queue.add(span())
    assert exporter.began.wait(LONG_S)
    assert not queue.flush(0.01)
    # These would wait for a minute.
    assert not queue.flush()
    assert not queue.flush()
    exporter.gate.set()
    assert queue.flush(LONG_S)
    assert queue.flush()  # It answers again, so it is waited for again.


def test_after_a_wait_in_vain_the_end_does_not_wait_again(exporter: Exporter) -> None:
    queue = queue_of(exporter)
    exporter.gate.clear()
    queue.add(span())
    assert exporter.began.wait(LONG_S)
    assert not queue.flush(0.01)
    close_all([queue])
    assert not exporter.closed.is_set()


def test_a_forked_child_has_an_exporter_of_its_own_and_ends_at_once(tmp_path: Path) -> None:
    """The child has none of its parent's threads: whatever waited for one would wait in vain."""
    tracing = start_tracing("pub", TracingOptions(file_directory=str(tmp_path)))
    for number in range(100):
        tracing.span("before", new_context(), number, number)
    tracing.flush(LONG_S)
    tracing.span("before", new_context(), 100, 100)
    child = os.fork()
    if not child:
        status = 1
        try:
            tracing.span("in the child", new_context(), 1, 1)
            tracing.close()
            status = 0
        finally:
            os._exit(status)
    assert os.waitpid(child, 0)[1] == 0
    tracing.close()
    names: dict[str, list[str]] = {}
    for path in tmp_path.iterdir():
        names[path.stem] = [json.loads(line)["name"] for line in path.read_text().splitlines()]
    assert names == {
        f"pub-{os.getpid()}": ["before"] * 101,
        f"pub-{child}": ["in the child"],
    }


PROGRAM = """
import sys
from raylay.services.telemetry.tracing import *
tracing = start_tracing("pub", TracingOptions(otlp_endpoint=sys.argv[1]), of_client=True)
for _ in range(2_000):
    tracing.commit([TracedMessage(new_context(), 1, 2, "t")], 1, 2, instance="A1")
print("ran", flush=True)
"""


@pytest.mark.parametrize("is_answering_never", [False, True])
def test_a_collector_that_is_away_delays_no_end(is_answering_never: bool) -> None:
    """The SDK's own batch processor takes 29 s where the port refuses, and 30 s where nobody
    answers."""
    pytest.importorskip("opentelemetry.exporter.otlp.proto.http")
    assert COLLECTOR_WAIT_S < 1.0
    with socket.socket() as port:
        port.bind(("127.0.0.1", 0))
        if is_answering_never:
            port.listen(8)
        endpoint = f"http://127.0.0.1:{port.getsockname()[1]}"
        process = subprocess.Popen(
            [sys.executable, "-c", PROGRAM, endpoint],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        assert process.stdout is not None
        assert process.stdout.readline() == "ran\n"
        began_s = time.monotonic()
        process.communicate(timeout=LONG_S)
        # Wide of the wait itself, for a machine that is busy.
        assert time.monotonic() - began_s < 20 * COLLECTOR_WAIT_S
        assert process.returncode == 0
