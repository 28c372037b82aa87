"""The result of a drill, as a page for people and as JSON for programs."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from raylay.services.drills.evidence import DrillResult
from raylay.services.drills.judgement import RunJudgement
from raylay.services.drills.measure import (
    InjectedFault,
    RecoveryTimes,
)
from raylay.services.drills.reports import report_queue, report_slow
from raylay.services.drills.reports.report_charts import add_rates, short_name, timeline
from raylay.services.drills.reports.report_queue import add_queue
from raylay.services.drills.reports.report_slow import add_slow
from raylay.services.drills.reports.report_words import (
    UNJUDGED_LAWS,
    first_fault_us,
    seconds,
    story,
    verdict_sentence,
)
from raylay.services.errors import ConfigurationError, RaylayError
from raylay.services.hosts.latency import quantile
from raylay.services.reports import Page, charts
from raylay.services.reports.page import Cell
from raylay.services.telemetry.trace_files import TraceFiles, TraceSpan, tree, where_of
from raylay.storage.files import make_directory

TRACES_MAX = 4
TRACED_WITHIN_US = 2_000_000
"""Time after a fault. Of the messages published within it, the report shows the one that waited
longest for its ack."""
EVENTS_MAX = 400
SHOWN_MORE_MS = 100.0
"""Part of a trace that is shown: what begins within this time after the publish had its ack, or
within four times the publish's duration."""
JSON_NAME = "report.json"
PAGE_NAME = "report.html"


def make_place(directory: Path) -> None:
    """Makes the directory of a report, and checks that files can be written there.

    Raises:
        ConfigurationError: the directory cannot be written to.
    """
    try:
        make_directory(directory)
        with tempfile.TemporaryFile(dir=directory):
            pass
    except OSError as error:
        raise ConfigurationError(
            f"no report can be written into {directory}: {error.strerror}: choose another "
            "directory (`--output`)"
        ) from None


def write(result: DrillResult, directory: Path) -> Path:
    """Writes the page and the JSON into a directory. Returns the path of the page.

    Raises:
        ConfigurationError: the directory cannot be made, or the extra `reports` is not installed;
            the JSON is written then.
    """
    make_place(directory)
    try:
        traces = in_flight(result)
    except (RaylayError, OSError, ValueError):
        # They are an illustration: no reason to be without a verdict.
        traces = []
    text = json.dumps(as_json(result, traces), indent=1)
    (directory / JSON_NAME).write_text(text + "\n", encoding="utf-8")
    page = directory / PAGE_NAME
    page.write_text(as_page(result, traces).html(), encoding="utf-8")
    return page


def _clock(time_us: int) -> str:
    return datetime.fromtimestamp(time_us / 1e6, UTC).strftime("%H:%M:%S.%f")[:-3]


# -- the page ------------------------------------------------------------------------------------
def as_page(result: DrillResult, traces: Sequence[tuple[InjectedFault, list[TraceSpan]]]) -> Page:
    judgement = result.judgement
    assert judgement is not None
    day = datetime.fromtimestamp(result.began_us / 1e6, UTC)
    page = Page(
        f"Drill: {result.scenario.name}",
        f"Fabric {result.fabric}, {day:%Y-%m-%d %H:%M:%S} UTC, "
        f"{(result.ended_us - result.began_us) / 1e6:.0f} s under load",
        footer=f"raylay drill {result.scenario.name} --fabric {result.fabric} · drill "
        f"{result.number} · topic {result.topic}",
    )
    page.verdict(judgement.valid, verdict_sentence(result))
    page.figures(tiles(result))
    page.text("What happened", *story(result))
    page.chart(
        "Timeline",
        timeline(result),
        "Instances: red, not serving or not answering; orange, a link of theirs has not caught up. "
        "Clients: the instance that each is connected to. Async: a sync link that was downgraded.",
    )
    add_rates(page, result)
    add_slow(page, result)
    add_queue(page, result)
    _recoveries(page, result)
    _traces(page, result, traces)
    _verdicts(page, judgement)
    _details(page, result)
    return page


def tiles(result: DrillResult) -> list[tuple[str, Any, str]]:
    """Returns the figures that readers want first, as (label, value, remark)."""
    judgement = result.judgement
    assert judgement is not None
    verdict = judgement.verdict
    recoveries = result.recoveries
    gaps = [failover.gap_ms for found in recoveries for failover in found.failovers]
    stood = [ms for found in recoveries for ms in found.acks_stood_ms.values()]
    ready = [found.ready_ms for found in recoveries if found.ready_ms is not None]
    whole = [found.whole_ms for found in recoveries]
    bad = verdict.lost + verdict.duplicated + verdict.out_of_order + verdict.unexpected
    found: list[tuple[str, Any, str]] = [
        ("Lost, duplicated, reordered", bad, f"of {verdict.persisted:,} messages"),
    ]
    if gaps:
        found.append(
            (
                "Failover gap, p50",
                seconds(quantile(gaps, 0.5)),
                f"p95 {seconds(quantile(gaps, 0.95))}, {len(gaps)} clients",
            )
        )
    if stood:
        found.append(("Acks stood still", seconds(max(stood)), "at most, for one publisher"))
    if ready:
        found.append(("Served again", seconds(max(ready)), "after SIGKILL"))
    found += report_slow.tiles(judgement)
    found += report_queue.tiles(judgement)
    if whole:
        worst_ms = None if None in whole else max(ms for ms in whole if ms is not None)
        found.append(("All links caught up", seconds(worst_ms), "after the fault's end"))
    found.append(
        (
            "At risk",
            result.acked_at_risk,
            "acknowledged while a sync link was downgraded",
        )
    )
    return found


def _standing(value_ms: float | None) -> str:
    return "" if value_ms is None else seconds(value_ms)


def _recoveries(page: Page, result: DrillResult) -> None:
    rows: list[list[Any]] = []
    for injected, found in zip(result.injected, result.recoveries, strict=True):
        regions = found.acks_stood_ms or {"": 0.0}
        for number, region in enumerate(regions):
            first = number == 0
            rows.append(
                [
                    f"{injected.number}. {injected.text}" if first else "",
                    region,
                    _standing(found.acks_stood_ms.get(region)),
                    _standing(found.deliveries_stood_ms.get(region)),
                    (seconds(found.ready_ms) if found.ready_ms is not None else "")
                    if first
                    else "",
                    seconds(found.whole_ms) if first else "",
                ]
            )
    page.table(
        "Recovery",
        ("fault", "region", "no ack for", "no delivery for", "served again", "all caught up"),
        rows,
        "The longest time that one publisher got no ack, or one subscriber no message, while there "
        "was something to wait for. Served again: from the SIGKILL. All caught up: from the end of "
        "the fault until every link of every instance was.",
    )
    moved = [failover for failover in result.failovers if failover.left_us]
    if moved:
        page.table(
            "Failovers",
            ("at s", "client", "from", "to", "gap", "sent again", "why"),
            [
                [
                    round((failover.left_us - first_fault_us(result)) / 1e6, 3),
                    short_name(failover.client),
                    failover.before,
                    failover.after,
                    seconds(failover.gap_ms),
                    failover.resent,
                    failover.reason[:60],
                ]
                for failover in sorted(moved, key=lambda each: each.left_us)
            ],
            "Gap: from the moment a client saw its connection end to its logon at the next server.",
        )


def _verdicts(page: Page, judgement: RunJudgement) -> None:
    def cell(value: int) -> Cell:
        return Cell(value, "bad" if value else "")

    page.table(
        "Verdict, place by place",
        ("place", "messages", "lost", "duplicated", "out of order", "never published", "examples"),
        [
            [
                place.place,
                place.messages,
                cell(place.lost),
                cell(place.duplicated),
                cell(place.out_of_order),
                cell(place.unexpected),
                Cell("; ".join(place.examples), code=True),
            ]
            for place in judgement.verdict.places
        ],
        "Every journal and every subscriber against the publishers' own record of what was "
        "acknowledged to them.",
    )
    wrong = [[violation.law, violation.text] for violation in judgement.broken]
    wrong += [["complaint", text] for text in judgement.complaints]
    if wrong:
        page.table("What is wrong", ("law", "what"), wrong, folded=False)
    if judgement.sow is not None:
        page.text("", judgement.sow.sentence)
    if not judgement.laws_judged:
        page.text("", UNJUDGED_LAWS)
    elif judgement.separate:
        page.text(
            "",
            f"{len(judgement.separate)} acks relied on a link that was downgraded or on a disk "
            "that was lost meanwhile: this is known and no failure (docs/deviations.md).",
        )
    else:
        page.text(
            "",
            "The recorded history keeps every law that the simulator checks: acknowledged "
            "messages at every sync destination, once, in order, no loops, safe failover, all "
            "acks given.",
        )


def _details(page: Page, result: DrillResult) -> None:
    origin_us = first_fault_us(result)
    shown = [event for event in result.events if event["time_us"] >= result.began_us]
    page.table(
        "Events of the instances",
        ("at s", "time (UTC)", "instance", "event", "details"),
        [
            [
                round((each["time_us"] - origin_us) / 1e6, 3),
                _clock(each["time_us"]),
                each["instance"],
                each["event"],
                Cell(
                    " ".join(
                        f"{key}={value}"
                        for key, value in each.items()
                        if key not in ("number", "time_us", "event", "instance")
                    )[:160],
                    code=True,
                ),
            ]
            for each in shown[:EVENTS_MAX]
        ],
        f"The first {EVENTS_MAX} of {len(shown):,}." if len(shown) > EVENTS_MAX else "",
        folded=True,
    )
    if result.kept:
        page.text("Kept for evidence", *result.kept)


# -- traces --------------------------------------------------------------------------------------
def in_flight(result: DrillResult) -> list[tuple[InjectedFault, list[TraceSpan]]]:
    """Returns two messages for each fault, with all their spans: of the traced messages that were
    on their way when it happened the one that waited longest, and likewise of those published just
    after."""
    if result.traces is None or not result.traces.exists():
        return []
    # A fabric that runs for long has gigabytes of them.
    files, began_ns = TraceFiles(result.traces), result.began_us * 1000
    chosen: dict[str, InjectedFault] = {}
    publishes = [
        span
        for span in files.spans('"publish"', since_ns=began_ns)
        if span.name == "publish"
        and (
            result.scenario.own_load
            or (span.attributes.get("topic") == result.topic and span.start_ns >= began_ns)
        )
    ]
    for injected in result.injected[:TRACES_MAX]:
        moment_ns = injected.began_us * 1000
        until_ns = moment_ns + TRACED_WITHIN_US * 1000
        met = [s for s in publishes if s.end_ns >= moment_ns and s.start_ns <= until_ns]
        flying = [s for s in met if s.start_ns <= moment_ns]
        for some in (flying, met):
            if some:
                longest = max(some, key=lambda s: s.end_ns - s.start_ns)
                chosen.setdefault(longest.trace_id, injected)
    spans: dict[str, list[TraceSpan]] = {trace_id: [] for trace_id in chosen}
    if spans:
        for span in files.spans(*spans, since_ns=began_ns):
            if span.trace_id in spans:
                spans[span.trace_id].append(span)
    return [(chosen[trace_id], found) for trace_id, found in spans.items()]


def _flat(spans: Iterable[TraceSpan], depth: int = 0) -> Iterator[tuple[int, TraceSpan]]:
    for span in spans:
        yield depth, span
        yield from _flat(span.children, depth + 1)


def _traces(
    page: Page, result: DrillResult, traces: Sequence[tuple[InjectedFault, list[TraceSpan]]]
) -> None:
    if not traces:
        page.text(
            "Messages in flight",
            "No message on its way was traced. "
            + (
                ""
                if result.traces
                else ("The fabric does not trace: set `tracing: {directory: …}`.")
            ),
        )
        return
    for number, (injected, spans) in enumerate(traces):
        publish = next((span for span in spans if span.name == "publish"), spans[0])
        rows: list[tuple[str, list[charts.Bar]]] = []
        shown_ms = max(4 * publish.duration_ms, publish.duration_ms + SHOWN_MORE_MS)
        later = 0
        for depth, span in _flat(tree(spans)):
            start = (span.start_ns - publish.start_ns) / 1e6
            if start > shown_ms:
                later += 1
                continue
            bar = charts.Bar(
                start, start + span.duration_ms, f"{span.duration_ms:.1f} ms", color=_hue(span)
            )
            rows.append((f"{'  ' * depth}{span.name}  {where_of(span)}", [bar]))
        mark_ms = injected.began_us / 1000 - publish.start_ns / 1e6
        page.chart(
            "Messages in flight" if not number else "",
            charts.lanes(
                rows,
                x_label="ms from the publish",
                marks=[charts.MomentMark(mark_ms, "fault")] if mark_ms >= 0 else (),
            ),
            f"Message {publish.attributes.get('bookmark', '')} was "
            + ("on its way when " if mark_ms >= 0 else f"published {-mark_ms:.0f} ms after ")
            + f"this happened: {injected.text}. Spans of a process that was killed may be missing."
            + (f" {later} spans of later resends are left out." if later else ""),
        )


def _hue(span: TraceSpan) -> str:
    names = ("publish", "commit", "link send", "remote commit", "persisted ack", "delivery")
    at = names.index(span.name) if span.name in names else 0
    return charts.PALETTE[at % len(charts.PALETTE)]


# -- JSON ----------------------------------------------------------------------------------------
def as_json(
    result: DrillResult, traces: Sequence[tuple[InjectedFault, list[TraceSpan]]] = ()
) -> dict[str, Any]:
    """Returns the report for programs. Times are microseconds since 1970."""
    judgement = result.judgement
    assert judgement is not None
    verdict = judgement.verdict
    gaps = [failover.gap_ms for found in result.recoveries for failover in found.failovers]
    return {
        "drill": result.scenario.name,
        "number": result.number,
        "fabric": result.fabric,
        "valid": result.valid,
        "began_us": result.began_us,
        "ended_us": result.ended_us,
        "topic": result.topic,
        "scenario": result.scenario.model_dump(mode="json", by_alias=True),
        "verdict": {
            "published": verdict.published,
            "persisted": verdict.persisted,
            "lost": verdict.lost,
            "duplicated": verdict.duplicated,
            "out_of_order": verdict.out_of_order,
            "unexpected": verdict.unexpected,
            "late": judgement.late,
            "laws_judged": judgement.laws_judged,
            "laws_broken": [asdict(violation) for violation in judgement.broken],
            "known": len(judgement.separate),
            "complaints": judgement.complaints,
            "sow": _sow_json(judgement),
            "queue": report_queue.as_json(judgement.queue),
            "slow_clients": report_slow.as_json(result),
            "places": [asdict(place) for place in verdict.places],
        },
        "faults": [asdict(fault) for fault in result.injected],
        "recoveries": [_recovery_json(recovered) for recovered in result.recoveries],
        "failover_gap_ms": {
            "p50": quantile(gaps, 0.5) if gaps else None,
            "p95": quantile(gaps, 0.95) if gaps else None,
            "all": gaps,
        },
        "failovers": [
            {**failover._asdict(), "gap_ms": failover.gap_ms} for failover in result.failovers
        ],
        "downgrades": [downgrade._asdict() for downgrade in result.downgrades],
        "acknowledged_at_risk": result.acked_at_risk,
        "in_flight": [
            {"fault": injected.number, "trace_id": spans[0].trace_id, "spans": len(spans)}
            for injected, spans in traces
        ],
        "events": [event for event in result.events if event["time_us"] >= result.began_us],
        "kept": result.kept,
    }


def _sow_json(judgement: RunJudgement) -> dict[str, Any] | None:
    sow = judgement.sow
    if sow is None:
        return None
    return {
        "judged": not sow.why,
        "why": sow.why,
        "changes": sow.changes,
        "deletions": sow.deletions,
        "records": sow.records,
        "wrong": len(sow.broken),
    }


def _recovery_json(found: RecoveryTimes) -> Mapping[str, Any]:
    return {
        "fault": found.number,
        "acks_stood_ms": found.acks_stood_ms,
        "deliveries_stood_ms": found.deliveries_stood_ms,
        "failovers": len(found.failovers),
        "ready_ms": found.ready_ms,
        "whole_ms": found.whole_ms,
    }
