"""Reads the trace files of all processes and prints the path of one message (docs/tracing.md).

The files are JSON lines as tracing.py writes them. A killed process may leave a torn last line, and
its last spans are missing. The report shows what is there; spans whose parent is missing stand
below the publish, or at the top where that is missing too.

Times are those of the hosts that wrote them: between hosts an offset is as good as their clocks.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, TextIO

import typer

from raylay.services.errors import ConfigurationError, RaylayError
from raylay.services.messages.plain_text import json_line, plain

_BOOKMARK = re.compile(r"\d+\|\d+\|?")
_TRACE_ID = re.compile(r"[0-9a-f]{32}")
BESIDE_MAX = 40
"""Most spans of one parent that are shown: half of them the first, half the last. A message of a
queue may be delivered again and again."""
LAST_DEFAULT = 20
"""Number of traces that the list shows by default; JSON has all."""


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
            if path.stat().st_mtime_ns < since_ns:
                continue
            with path.open(encoding="utf-8", errors="replace") as lines:
                for line in lines:
                    if containing and not any(text in line for text in containing):
                        continue
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


def _parse(line: str) -> TraceSpan | None:
    try:
        values = json.loads(line)
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
    publish = next((span for span in ordered if not span.parent_id), None)
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


def _note(span: TraceSpan) -> str:
    attributes = span.attributes
    if "to" in attributes:
        return f" [generation {attributes.get('generation', '?')}]"
    outcome = str(attributes.get("outcome", "persisted"))
    if outcome == "persisted" and attributes.get("how"):
        return f" [{attributes['how']}]"
    return "" if outcome == "persisted" else f" [{outcome}]"


def _tree_lines(
    spans: list[TraceSpan], origin_ns: int, indent: str = "", root: bool = True
) -> Iterator[tuple[float | None, float, str, str, str]]:
    left_out = range(0)
    if len(spans) > BESIDE_MAX:
        left_out = range(BESIDE_MAX // 2, len(spans) - BESIDE_MAX // 2)
    for index, span in enumerate(spans):
        if index in left_out:
            if index == left_out[0]:
                text = f"… {len(left_out):,} more (--json shows all)"
                yield None, 0.0, indent + ("" if root else "│  ") + text, "", ""
            continue
        last = index == len(spans) - 1
        branch = "" if root else ("└─ " if last else "├─ ")
        offset_ms = (span.start_ns - origin_ns) / 1e6
        label = indent + branch + span.name + _note(span)
        yield offset_ms, span.duration_ms, label, where_of(span), span.process
        below = indent + ("" if root else ("   " if last else "│  "))
        yield from _tree_lines(span.children, origin_ns, below, root=False)


def print_tree(spans: list[TraceSpan], out: TextIO) -> None:
    """Prints one trace as a tree: offset from the publish and duration in ms, span, place."""
    summary = TraceSummary(spans[0].trace_id)
    for span in spans:
        summary.add(span)
    roots = tree(spans)
    publish = next((span for span in roots if span.name == "publish"), None)
    origin_ns = publish.start_ns if publish else summary.start_ns
    processes = len({span.process for span in spans})
    out.write(
        f"{plain(f'{summary.bookmark}  topic {summary.topic}  trace {summary.trace_id}')}\n"
        f"{summary.spans} spans, {len(summary.instances)} instances, {processes} processes, "
        f"{summary.duration_ms:.3f} ms"
        + (f", persisted after {publish.duration_ms:.3f} ms\n" if publish else "\n")
    )
    lines = [
        (offset_ms, duration_ms, plain(label), plain(where), plain(process))
        for offset_ms, duration_ms, label, where, process in _tree_lines(roots, origin_ns)
    ]
    label_width = max(len(line[2]) for line in lines)
    where_width = max(len(line[3]) for line in lines)
    out.write(f"{'at ms':>11} {'for ms':>10}  {'span':<{label_width}}  ")
    out.write(f"{'where':<{where_width}}  process\n")
    for offset_ms, duration_ms, label, where, process in lines:
        if offset_ms is None:
            out.write(f"{'':24}{label}\n")
            continue
        out.write(f"{offset_ms:11.3f} {duration_ms:10.3f}  {label:<{label_width}}  ")
        out.write(f"{where:<{where_width}}  {process}\n")


def _as_json(span: TraceSpan, origin_ns: int) -> dict[str, Any]:
    return {
        "name": span.name,
        "span_id": span.span_id,
        "parent_id": span.parent_id or None,
        "offset_ms": (span.start_ns - origin_ns) / 1e6,
        "duration_ms": span.duration_ms,
        "process": span.process,
        "attributes": span.attributes,
        "children": [_as_json(child, origin_ns) for child in span.children],
    }


def _print_message(files: TraceFiles, message: str, out: TextIO, as_json: bool) -> None:
    traces = files.traces_of(message)
    if not traces:
        raise ConfigurationError(
            f"there is no trace of {message}: it was not sampled, or its files are elsewhere"
        )
    for index, spans in enumerate(traces):
        if as_json:
            roots = tree(spans)
            origin_ns = min(span.start_ns for span in roots)
            trace = [_as_json(span, origin_ns) for span in roots]
            out.write(json_line({"trace_id": spans[0].trace_id, "spans": trace}) + "\n")
        else:
            out.write("\n" if index else "")
            print_tree(spans, out)


def _print_list(
    files: TraceFiles, out: TextIO, as_json: bool, slowest: int, last: int | None
) -> None:
    summaries = files.summaries()
    total = len(summaries)
    if last is None:
        last = 0 if as_json or slowest else LAST_DEFAULT
    if last:
        del summaries[:-last]
    if slowest:
        # What the publisher waited for; without its publish span a trace counts whole.
        summaries.sort(key=lambda s: s.publish_ms or s.duration_ms, reverse=True)
        del summaries[slowest:]
    if as_json:
        for summary in summaries:
            out.write(
                json_line(
                    {
                        "trace_id": summary.trace_id,
                        "bookmark": summary.bookmark,
                        "topic": summary.topic,
                        "persisted_ms": summary.publish_ms,
                        "duration_ms": summary.duration_ms,
                        "spans": summary.spans,
                        "instances": sorted(summary.instances),
                    }
                )
                + "\n"
            )
        return
    bookmarks = [plain(summary.bookmark) for summary in summaries]
    topics = [plain(summary.topic) for summary in summaries]
    bookmark_width = max([8, *map(len, bookmarks)])
    topic_width = max([5, *map(len, topics)])
    out.write(f"{'bookmark':<{bookmark_width}}  {'topic':<{topic_width}}")
    out.write(f"  {'persisted ms':>12}  {'all ms':>10}  {'spans':>5}  instances\n")
    for summary, bookmark, topic in zip(summaries, bookmarks, topics, strict=True):
        persisted = "-" if summary.publish_ms is None else f"{summary.publish_ms:.3f}"
        out.write(f"{bookmark:<{bookmark_width}}  {topic:<{topic_width}}")
        out.write(f"  {persisted:>12}  {summary.duration_ms:10.3f}  {summary.spans:5}")
        out.write(f"  {len(summary.instances)}\n")
    shown = ""
    if slowest and len(summaries) < total:
        shown = f", the {len(summaries):,} slowest shown"
    elif len(summaries) < total:
        shown = f", the last {len(summaries):,} shown: --last 0 shows all"
    out.write(f"{total:,} traces in {len(files.paths):,} files{shown}\n")


def print_trace(
    path: Path,
    message: str | None,
    out: TextIO,
    *,
    as_json: bool = False,
    slowest: int = 0,
    last: int | None = None,
) -> None:
    """Prints the path of one message, or without a message the list of traces.

    Args:
        path: a trace file, or a directory of the files of all processes.
        message: `publisher|sequence|`, or a trace id.
        as_json: whether to print JSON, one object on each line.
        slowest: most traces of the list, the slowest first; 0: all, in the order of time.
        last: most traces of the list, the newest ones; 0: all. None: 20 as text, all as JSON and
            where the slowest are asked for.

    Raises:
        ConfigurationError: there is no file, or no trace of the message.
    """
    files = TraceFiles(path)
    if message:
        _print_message(files, message, out, as_json)
    else:
        _print_list(files, out, as_json, slowest, last)
    if files.bad_lines and not as_json:
        out.write(f"{files.bad_lines} lines are no spans (torn by a killed process?)\n")


def trace_command(
    path: Annotated[Path, typer.Argument(help="A trace file, or the directory of all of them.")],
    message: Annotated[
        str | None, typer.Option(help="One message: publisher|sequence| or a trace id.")
    ] = None,
    slowest: Annotated[
        int, typer.Option(min=0, help=("List only the N slowest traces; 0: all."))
    ] = 0,
    last: Annotated[
        int | None,
        typer.Option(
            min=0,
            help=f"List only the last N; 0: all. Default: {LAST_DEFAULT}, with --json or --slowest "
            "all.",
        ),
    ] = None,
    as_json: Annotated[
        bool, typer.Option("--json", help=("Print JSON, one object on each line."))
    ] = False,
) -> None:
    """Show the path of one message through all instances, or list the traces."""
    try:
        print_trace(path, message, _stdout(), as_json=as_json, slowest=slowest, last=last)
    except RaylayError as error:
        typer.echo(plain(f"raylay trace: {error}"), err=True)
        raise typer.Exit(1) from error


def _stdout() -> TextIO:
    return typer.get_text_stream("stdout")
