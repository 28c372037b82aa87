"""The report of the job `latency` as a page."""

from __future__ import annotations

import datetime as dt
from collections.abc import Sequence

from raylay.services.pipeline.latency.job import Latency, LatencyRow
from raylay.services.reports import Page
from raylay.services.reports.charts import Series, lines

LINES_MAX = 8
"""Most lines in one chart: those with the largest p99. The table has all."""
COLUMNS = ("messages", "p50 ms", "p95 ms", "p99 ms", "max ms", "min ms", "negative")
PARTS = (
    ("links", "Replication lag by link", "Time from the upstream's journal to the instance's."),
    (
        "regions",
        "Replication lag by region",
        ("Time from the journal where the message was published, by any path."),
    ),
    (
        "acks",
        "Acknowledgments by region",
        ("Time from publish() to the persisted acknowledgment, from traces."),
    ),
    (
        "stored",
        "Stored acknowledgments by link",
        ("Time from the link's read to the stored acknowledgment, on one clock."),
    ),
    (
        "publish",
        "From the publisher to its instance",
        ("Time between two clocks: the publisher's and the instance's."),
    ),
    ("publishers", "Replication lag by publisher", "To any instance."),
    ("acks_by_publisher", "Acknowledgments by publisher", "As above."),
)
CHARTED = frozenset(("links", "regions", "acks", "stored"))


def page_of(found: Latency, source: str, made_by: str) -> Page:
    page = Page("Latency", source, made_by)
    links, acks = found.rows["links"], found.rows["acks"]
    messages = sum(row.messages for row in links)
    if found.exceeded:
        page.verdict(False, "; ".join(found.exceeded), word="Above the bound.")
    else:
        slowest = max((*links, *acks), key=lambda row: row.p99_ms, default=None)
        most = f"the largest p99 is {slowest.p99_ms:,.3g} ms, {slowest.name}" if slowest else ""
        page.verdict(True, f"{messages:,} messages over {len(links)} links; {most}.", word="Seen.")
    negative = sum(row.negative for row in links)
    page.figures(
        [
            ("links", len(links), f"{messages:,} messages"),
            ("largest p99 of a link", max((row.p99_ms for row in links), default=0.0), "ms"),
            ("largest p99 of acks", max((row.p99_ms for row in acks), default=0.0), "ms"),
            ("negative lags", negative, "clocks differ" if negative else "of links"),
        ]
    )
    for kind, heading, note in PARTS:
        rows = found.rows[kind]
        if not rows:
            continue
        if kind in CHARTED:
            page.chart(heading, _chart(rows), f"{note} p99 of windows of {found.window_ms} ms.")
        named = [[row.name, row.kind, *_values(row)] for row in rows]
        page.table("" if kind in CHARTED else heading, ("", "type", *COLUMNS), named, note)
    if found.clocks:
        page.table(
            "Clocks",
            ("of", "ahead of", "at least ms", "at most ms"),
            [[clock.target, clock.source, clock.low_ms, clock.high_ms] for clock in found.clocks],
            "From the smallest lags of both directions: no message arrives before it was sent. "
            "Where the lower bound is above the upper bound, a clock was set meanwhile.",
        )
    if found.unknown:
        page.table(
            "Without an upstream",
            ("instance", "messages"),
            [list(item) for item in found.unknown.items()],
            "The instance that sent them was not read, or does not hold them any more.",
        )
    if not found.traced:
        page.text(
            "Acknowledgments",
            ("No trace files were read, and journals do not show these latencies."),
        )
    return page


def _values(row: LatencyRow) -> list[float | int]:
    times = (row.p50_ms, row.p95_ms, row.p99_ms, row.max_ms, row.min_ms)
    return [row.messages, *(round(moment, 3) for moment in times), row.negative]


def _chart(rows: Sequence[LatencyRow]) -> str:
    slowest = sorted(rows, key=lambda row: row.p99_ms, reverse=True)[:LINES_MAX]
    return lines(
        [
            Series(
                row.name,
                [dt.datetime.fromtimestamp(window[0], dt.UTC) for window in row.windows],
                # A logarithm has no place for what is not above 0; the table has it.
                [window[4] if window[4] > 0 else None for window in row.windows],
                "line" if len(row.windows) > 1 else "points",
            )
            for row in slowest
        ],
        y_label="p99, ms",
        log_y=True,
    )
