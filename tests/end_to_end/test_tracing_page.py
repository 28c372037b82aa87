"""The example of docs/tracing.md: an application's own spans and Raylay's are one trace."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from support.instance_processes import Servers, single
from support.instance_processes import servers as servers

from raylay.services.telemetry.tracing import TracingOptions

trace_service_pb2 = pytest.importorskip("opentelemetry.proto.collector.trace.v1.trace_service_pb2")
PAGE = Path(__file__).parents[2] / "docs" / "tracing.md"
TIMEOUT_S = 60


class Collector(ThreadingHTTPServer):
    """An OTLP collector that keeps the spans that it gets, each with the name of its service."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.spans: list[tuple[str, Any]] = []
        self.came = threading.Condition()

    def wait_for(self, names: set[str]) -> dict[str, tuple[str, Any]]:
        """Returns the spans by their names, once these are there."""
        with self.came:
            found: dict[str, tuple[str, Any]] = {}

            def are_there() -> bool:
                found.update({span.name: (service, span) for service, span in self.spans})
                return names <= found.keys()

            assert self.came.wait_for(are_there, TIMEOUT_S), found.keys()
        return found


class _Handler(BaseHTTPRequestHandler):
    server: Collector

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"]))
        request = trace_service_pb2.ExportTraceServiceRequest.FromString(body)
        with self.server.came:
            for each in request.resource_spans:
                values = {a.key: a.value.string_value for a in each.resource.attributes}
                for scope in each.scope_spans:
                    found = [(values["service.name"], span) for span in scope.spans]
                    self.server.spans += found
            self.server.came.notify_all()
        self.send_response(200)
        self.send_header("Content-Length", "0")
        self.end_headers()

    def log_message(self, *_: object) -> None:
        """Keeps the tests' output clean."""


@pytest.fixture
def collector() -> Iterator[Collector]:
    made = Collector()
    thread = threading.Thread(target=made.serve_forever)
    thread.start()
    yield made
    made.shutdown()
    thread.join()
    made.server_close()


def tree_of(spans: dict[str, tuple[str, Any]]) -> list[str]:
    """The lines of the page's tree, for the spans of one trace."""
    by_parent: dict[bytes, list[tuple[str, Any]]] = {}
    for service, span in spans.values():
        by_parent.setdefault(span.parent_span_id, []).append((service, span))
    lines: list[str] = []

    def add(parent: bytes, front: str) -> None:
        below = sorted(by_parent.get(parent, []), key=lambda each: each[1].start_time_unix_nano)
        for at, (service, span) in enumerate(below):
            is_last = at == len(below) - 1
            mark = ("└─ " if is_last else "├─ ") if parent else ""
            lines.append(f"{front}{mark}{span.name}  {service}")
            add(span.span_id, front + (("   " if is_last else "│  ") if parent else ""))

    add(b"", "")
    return lines


@pytest.mark.slow
def test_the_example_shows_one_trace(
    servers: Servers, collector: Collector, tmp_path: Path
) -> None:
    section = PAGE.read_text(encoding="utf-8").split("## See a message in Jaeger")[1]
    script = tmp_path / "orders.py"
    script.write_text(section.split("```python\n")[1].split("```")[0], encoding="utf-8")
    endpoint = f"http://127.0.0.1:{collector.server_port}"
    server = single(servers, tmp_path, tracing=TracingOptions(otlp_endpoint=endpoint))
    done = subprocess.run(
        [sys.executable, script, server.address],
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S,
        check=False,
        env={**os.environ, "OTEL_EXPORTER_OTLP_ENDPOINT": endpoint},
    )
    assert done.returncode == 0, done.stderr
    tree = section.split("one trace shows both:\n\n")[1].split("\n\n")[0]
    shown = [line.strip().split("  ") for line in tree.splitlines()]
    names = {line[0].lstrip("├└│─ ") for line in shown}
    found = {name: each for name, each in collector.wait_for(names).items() if name in names}
    assert len({span.trace_id for _, span in found.values()}) == 1
    expected = [f"{line[0]}  {next(part for part in line[1:] if part).strip()}" for line in shown]
    # The columns apart, they are the lines of the page.
    assert [line.replace(" ", "") for line in tree_of(found)] == [
        line.replace(" ", "") for line in expected
    ]
    printed = done.stdout.strip().split("-")
    assert printed[1] == found["POST /orders"][1].trace_id.hex()
    assert printed[2] == found["POST /orders"][1].span_id.hex()
