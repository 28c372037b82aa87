"""Reads the trace files of all processes (docs/tracing.md).

The files are JSON lines as tracing.py writes them. A killed process may leave a torn last line, and
its last spans are missing.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from raylay.services.errors import ConfigurationError

_BOOKMARK = re.compile(r"\d+\|\d+\|?")
_TRACE_ID = re.compile(r"[0-9a-f]{32}")
PIECE_BYTES = 1 << 20
"""Bytes of a file that are searched at once for a text, before any line of them is read."""


@dataclass(slots=True)
class TraceSpan:
    """One span, as it was read from a file."""

    trace_id: str
    span_id: str
    parent_id: str
    name: str
    start_ns: int
    end_ns: int
    process: str
    attributes: dict[str, Any]
    children: list[TraceSpan] = field(default_factory=list)

    @property
    def duration_ms(self) -> float:
        return (self.end_ns - self.start_ns) / 1e6


@dataclass(slots=True)
class TraceSummary:
    """One trace in the list of traces."""

    trace_id: str
    bookmark: str = ""
    topic: str = ""
    spans: int = 0
    start_ns: int = 0
    end_ns: int = 0
    publish_ms: float | None = None
    """Milliseconds from publish() to the persisted acknowledgment; None: that span is missing."""
    instances: set[str] = field(default_factory=set)

    @property
    def duration_ms(self) -> float:
        """Returns the milliseconds from the first start to the last end."""
        return (self.end_ns - self.start_ns) / 1e6

    def add(self, span: TraceSpan) -> None:
        self.start_ns = min(self.start_ns, span.start_ns) if self.spans else span.start_ns
        self.end_ns = max(self.end_ns, span.end_ns)
        self.spans += 1
        self.bookmark = self.bookmark or str(span.attributes.get("bookmark", ""))
        self.topic = self.topic or str(span.attributes.get("topic", ""))
        if "instance" in span.attributes:
            self.instances.add(str(span.attributes["instance"]))
        if span.name == "publish":
            self.publish_ms = span.duration_ms


class TraceFiles:
    """The trace files of a path: the file itself, or all `*.jsonl` below a directory.

    Raises:
        ConfigurationError: the path does not exist, or has no trace file.
    """

    def __init__(self, path: Path) -> None:
        if path.is_dir():
            self.paths = sorted(path.rglob("*.jsonl"))
        else:
            self.paths = [path] if path.is_file() else []
        if not self.paths:
            raise ConfigurationError(f"{path} holds no trace file (*.jsonl)")
        self.bad_lines = 0
        """Number of lines that are no span, in the last pass over the files."""

    def spans(self, *containing: str, since_ns: int = 0) -> Iterator[TraceSpan]:
        """Yields, file by file, the spans whose line contains one of the texts, or all where none
        is given.

        Args:
            since_ns: files that were last written before this time are skipped.
        """
        self.bad_lines = 0
        for path in self.paths:
            try:
                if path.stat().st_mtime_ns < since_ns:
                    continue
                yield from self._spans(path, [text.encode() for text in containing])
            except FileNotFoundError:
                continue  # Its process has begun the next one, and removed its oldest.

    def _spans(self, path: Path, containing: list[bytes]) -> Iterator[TraceSpan]:
        for line in _lines(path, containing):
            span = _parse(line)
            if span is not None:
                yield span
            elif line.strip():
                self.bad_lines += 1

    def summaries(self) -> list[TraceSummary]:
        """Returns one summary for each trace, in the order of their starts."""
        found: dict[str, TraceSummary] = {}
        for span in self.spans():
            summary = found.get(span.trace_id)
            if summary is None:
                summary = found[span.trace_id] = TraceSummary(span.trace_id)
            summary.add(span)
        return sorted(found.values(), key=lambda summary: summary.start_ns)

    def traces_of(self, message: str) -> list[list[TraceSpan]]:
        """Returns the spans of each trace of a message, by its bookmark or its trace id.

        A message has several traces where its publisher published it more than once.

        Raises:
            ConfigurationError: the text is neither.
        """
        if _TRACE_ID.fullmatch(message):
            trace_ids = {message}
        elif _BOOKMARK.fullmatch(message):
            bookmark = message if message.endswith("|") else message + "|"
            trace_ids = {
                span.trace_id
                for span in self.spans(f'"{bookmark}"')
                if span.attributes.get("bookmark") == bookmark
            }
        else:
            raise ConfigurationError(
                f"{message!r} is neither a bookmark nor a trace id: give the message's bookmark, "
                "publisher|sequence|, or its trace id"
            )
        traces = ([span for span in self.spans(i) if span.trace_id == i] for i in trace_ids)
        found = [spans for spans in traces if spans]
        return sorted(found, key=lambda spans: min(span.start_ns for span in spans))


def _lines(path: Path, containing: list[bytes]) -> Iterator[bytes]:
    """Yields the lines that contain one of the texts, or all where none is given. Pieces of a file
    without any of the texts are not divided into lines: files may have hundreds of MiB."""
    with path.open("rb") as file:
        rest = b""
        while piece := file.read(PIECE_BYTES):
            whole, newline, end = (rest + piece).rpartition(b"\n")
            rest = end
            if newline:
                yield from _matching(whole, containing)
        yield from _matching(rest, containing)


def _matching(lines: bytes, containing: list[bytes]) -> Iterator[bytes]:
    if containing and not any(text in lines for text in containing):
        return
    for line in lines.split(b"\n"):
        if not containing or any(text in line for text in containing):
            yield line


def _parse(line: bytes) -> TraceSpan | None:
    try:
        values = json.loads(line.decode("utf-8", "replace"))
        return TraceSpan(
            str(values["trace_id"]),
            str(values["span_id"]),
            str(values["parent_id"] or ""),
            str(values["name"]),
            int(values["start_ns"]),
            int(values["end_ns"]),
            str(values["process"]),
            dict(values["attributes"]),
        )
    except (ValueError, KeyError, TypeError):
        return None


def tree(spans: Iterable[TraceSpan]) -> list[TraceSpan]:
    """Returns the roots of a trace, with children below their parents in the order of their ends.

    A span id that was written twice is one parent, the earlier span; both are shown.
    """
    ordered = sorted(spans, key=lambda span: (span.end_ns, span.start_ns))
    by_id: dict[str, TraceSpan] = {}
    for span in ordered:
        span.children = []
        by_id.setdefault(span.span_id, span)
    # The parent of a publish may be a span of the application, which is in no file of ours.
    firsts = (span for span in ordered if span.name == "publish" or not span.parent_id)
    publish = next(firsts, None)
    roots: list[TraceSpan] = []
    for span in ordered:
        parent = by_id.get(span.parent_id) if span.parent_id else None
        if parent is None and span is not publish:
            parent = publish
        if parent is None or _is_below(parent, span):
            roots.append(span)
        else:
            parent.children.append(span)
    return roots


def _is_below(span: TraceSpan, ancestor: TraceSpan) -> bool:
    """Returns whether making `ancestor` the parent of `span`'s subtree would close a circle."""
    waiting = [ancestor]
    while waiting:
        reached = waiting.pop()
        if reached is span:
            return True
        waiting.extend(reached.children)
    return False


def where_of(span: TraceSpan) -> str:
    """Returns the place of a span: an instance, a client, or the two ends of a link."""
    attributes = span.attributes
    if "to" in attributes:
        return f"{attributes.get('from', '?')} → {attributes['to']}"
    if "destination" in attributes:
        return f"{attributes.get('instance', '?')} → {attributes['destination']}"
    if "upstream" in attributes:
        return f"{attributes.get('instance', '?')} ← {attributes['upstream']}"
    where = str(attributes.get("instance", ""))
    if "client" in attributes:
        where = f"{where} → {attributes['client']}" if where else str(attributes["client"])
    return where
