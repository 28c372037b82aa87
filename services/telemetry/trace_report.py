"""Prints the path of one message from the trace files of all processes (docs/tracing.md).

The report shows what is there; spans whose parent is missing stand below the publish, or at the top
where that is missing too.

Times are those of the hosts that wrote them: between hosts an offset is as good as their clocks.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any, TextIO

import typer

from raylay.services.errors import ConfigurationError, RaylayError
from raylay.services.messages.plain_text import json_line, plain
from raylay.services.telemetry.trace_files import (
    TraceFiles,
    TraceSpan,
    TraceSummary,
    tree,
    where_of,
)

BESIDE_MAX = 40
"""Most spans of one parent that are shown: half of them the first, half the last. A message of a
queue may be delivered again and again."""
LAST_DEFAULT = 20
"""Number of traces that the list shows by default; JSON has all."""


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
