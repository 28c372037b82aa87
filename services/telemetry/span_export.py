"""The way of finished spans out of a process: a queue for each exporter, and a thread that empties
it.

Nothing waits for an exporter while a program runs, and only briefly when it ends: a collector that
is away, or that takes a connection and never answers, costs `COLLECTOR_WAIT_S` at the end, once.
The OpenTelemetry SDK's own batch processor waits up to 30 s there, and its flush has no limit.
"""

from __future__ import annotations

import json
import os
import sys
import threading
import time
import weakref
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple, Protocol

from raylay.services.telemetry.bounded_files import BoundedFile

QUEUE_SPANS_MAX = 16_384
EXPORT_SPANS_MAX = 512
EXPORT_INTERVAL_MS = 400
DISK_WAIT_S = 5.0
"""Most seconds that the end of a process waits for its trace file or its stderr."""
COLLECTOR_WAIT_S = 0.5
"""Most seconds that the end of a process waits for a collector. A collector that is there takes the
spans of the last `EXPORT_INTERVAL_MS` within milliseconds."""

Attributes = Mapping[str, str | int | float | bool]


class FinishedSpan(NamedTuple):
    """A span that has ended."""

    name: str
    context: bytes
    """The span's own context: 25 bytes (tracing.py)."""
    parent_id: bytes
    """The 8 bytes of the parent's span id; empty: the span has no parent."""
    start_ns: int
    end_ns: int
    attributes: Attributes


class SpanExporter(Protocol):
    """A target of finished spans. Its queue's thread calls it."""

    def export(self, spans: Sequence[FinishedSpan]) -> None:
        """Passes spans on. An error loses them."""

    def close(self) -> None:
        """Ends the exporter."""


class SpanQueue:
    """Finished spans that wait for one exporter, and the thread that passes them on.

    A full queue drops its oldest span. The thread starts with the first span, so that a process
    without spans has none that wakes up for them. A forked child begins with an empty queue, a
    thread and an exporter of its own: the parent passes on the spans of before.

    Args:
        make: makes the exporter; called at once, and again in a forked child.
        wait_s: most seconds that `close` waits for the exporter.
    """

    def __init__(self, make: Callable[[], SpanExporter], wait_s: float) -> None:
        self._make = make
        self.wait_s = wait_s
        self._begin()
        self._exporter: SpanExporter | None = make()
        _queues.add(self)

    def _begin(self) -> None:
        self._spans: deque[FinishedSpan] = deque(maxlen=QUEUE_SPANS_MAX)
        self._awake = threading.Event()
        self._flushes: deque[threading.Event] = deque()
        self._starting = threading.Lock()
        self._thread: threading.Thread | None = None
        self._closing = False
        self._given_up = False
        self._is_late = False
        """Whether somebody has waited for the exporter in vain, and it has finished nothing
        since."""

    def forked(self) -> None:
        """Begins anew, in a forked child."""
        was_closing = self._closing
        self._begin()
        self._closing = was_closing
        self._exporter = None

    def add(self, span: FinishedSpan) -> None:
        """Appends a span, without waiting. Does nothing after `close`."""
        if self._closing:
            return
        self._spans.append(span)
        if self._thread is None:
            self._start()
        elif len(self._spans) >= EXPORT_SPANS_MAX and not self._awake.is_set():
            self._awake.set()

    def _start(self) -> None:
        with self._starting:
            if self._thread is None:
                thread = threading.Thread(target=self._work, name="raylay spans", daemon=True)
                # The interpreter starts no thread once it ends: the span is lost then.
                with suppress(RuntimeError):
                    thread.start()
                    self._thread = thread

    def _work(self) -> None:
        while not self._closing:
            self._awake.wait(EXPORT_INTERVAL_MS / 1_000)
            self._awake.clear()
            self._pass_on()
        self._pass_on()
        self._end()

    def _pass_on(self) -> None:
        flushes = [self._flushes.popleft() for _ in range(len(self._flushes))]
        waiting = self._spans
        while waiting and not self._given_up:
            spans = [waiting.popleft() for _ in range(min(EXPORT_SPANS_MAX, len(waiting)))]
            # Whatever an exporter raises, the next spans may pass.
            with suppress(Exception):
                if self._exporter is None:
                    self._exporter = self._make()
                self._exporter.export(spans)
            self._is_late = False
        for flush in flushes:
            flush.set()

    def _end(self) -> None:
        exporter, self._exporter = self._exporter, None
        if exporter is not None:
            with suppress(Exception):
                exporter.close()

    def flush(self, timeout_s: float | None = None) -> bool:
        """Waits until the exporter has the spans that wait now.

        Args:
            timeout_s: most seconds; None: as many as `close` waits, or 0 where the last wait was
                in vain.

        Returns:
            Whether it has them.
        """
        thread = self._thread
        if thread is None or not thread.is_alive():
            return True
        done = threading.Event()
        self._flushes.append(done)
        self._awake.set()
        default_s = 0.0 if self._is_late else self.wait_s
        is_done = done.wait(default_s if timeout_s is None else timeout_s)
        self._is_late = not is_done
        return is_done

    def close(self) -> Callable[[float], None]:
        """Takes no more spans, and lets the thread pass on those that wait.

        Returns:
            A wait until the exporter has ended, or until this time by `time.monotonic`.
        """
        self._closing = True
        thread = self._thread
        if thread is None:
            self._end()
            return lambda _: None
        self._awake.set()

        def wait(until_s: float) -> None:
            thread.join(0.0 if self._is_late else max(0.0, until_s - time.monotonic()))
            self._given_up = True

        return wait


def close_all(queues: Iterable[SpanQueue]) -> None:
    """Ends queues, all at the same time. Takes as long as the slowest, at most its `wait_s`."""
    began_s = time.monotonic()
    for wait, queue in [(queue.close(), queue) for queue in queues]:
        wait(began_s + queue.wait_s)


_queues: weakref.WeakSet[SpanQueue] = weakref.WeakSet()


def _after_fork() -> None:
    for queue in _queues:
        queue.forked()


os.register_at_fork(after_in_child=_after_fork)


def span_line(span: FinishedSpan, process_name: str) -> str:
    """Formats a span as one line of JSON, as files and stderr have it."""
    return json.dumps(
        {
            "trace_id": span.context[:16].hex(),
            "span_id": span.context[16:24].hex(),
            "parent_id": span.parent_id.hex() or None,
            "name": span.name,
            "start_ns": span.start_ns,
            "end_ns": span.end_ns,
            "process": process_name,
            "attributes": dict(span.attributes),
        },
        separators=(",", ":"),
        default=str,
    )


class FileExporter:
    """Writes spans as JSON lines into the bounded files of a process. On errors of the disk spans
    are lost, and the broker's work is not disturbed.

    Raises:
        ConfigurationError: the directory cannot be made or written.
    """

    def __init__(
        self, process_name: str, directory: Path, file_bytes_max: int, process_bytes_max: int
    ) -> None:
        self._process_name = process_name
        self._file = BoundedFile(
            directory, process_name, "jsonl", file_bytes_max, process_bytes_max
        )

    def export(self, spans: Sequence[FinishedSpan]) -> None:
        lines = "".join([span_line(span, self._process_name) + "\n" for span in spans])
        self._file.write(lines.encode())

    def close(self) -> None:
        self._file.close()


class ConsoleExporter:
    """Writes spans as JSON lines to stderr."""

    def __init__(self, process_name: str) -> None:
        self._process_name = process_name

    def export(self, spans: Sequence[FinishedSpan]) -> None:
        sys.stderr.write("".join([span_line(span, self._process_name) + "\n" for span in spans]))
        sys.stderr.flush()

    def close(self) -> None:
        """Leaves stderr open, because it is the process's."""
