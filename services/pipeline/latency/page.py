"""The report of the job `latency` as a page."""

from __future__ import annotations

import datetime as dt
from collections.abc import Sequence

from raylay.services.pipeline.latency.job import Latency, LatencyRow
from raylay.services.reports import Page
from raylay.services.reports.charts import Series, lines

LINES_MAX = 8
"""Lines in one chart: those of the largest p99; the table has all."""
COLUMNS = ("messages", "p50 ms", "p95 ms", "p99 ms", "max ms", "min ms", "negative")
PARTS = (
    ("links", "Replication lag by link", "From the upstream's journal to the instance's."),
    ("regions", "Replication lag by region", "From where it was published, by any way."),
    ("acks", "Acknowledgments by region", "publish() to its persisted acknowledgment, traced."),
    ("stored", "Stored acknowledgments by link", "Read by the link to stored there, one clock."),
    ("publish", "From the publisher to its instance", "By two clocks: the publisher's, and ours."),
    ("publishers", "Replication lag by publisher", "To any instance."),
    ("acks_by_publisher", "Acknowledgments by publisher", "As above."),
)
CHARTED = frozenset(("links", "regions", "acks", "stored"))


def page_of(found: Latency, source: str, made_by: str) -> Page:
    """The page."""
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
            [[each.target, each.source, each.low_ms, each.high_ms] for each in found.clocks],
            "By the smallest lags of both directions: no message comes before it was sent. Where "
            "the least is above the most, a clock was set meanwhile.",
        )
    if found.unknown:
        page.table(
            "Without an upstream",
            ("instance", "messages"),
            [list(each) for each in found.unknown.items()],
            "The instance that they came from is not read, or does not hold them any more.",
        )
    if not found.traced:
        page.text("Acknowledgments", "No trace files were read: journals do not tell of them.")
    return page


def _values(row: LatencyRow) -> list[float | int]:
    times = (row.p50_ms, row.p95_ms, row.p99_ms, row.max_ms, row.min_ms)
    return [row.messages, *(round(each, 3) for each in times), row.negative]


def _chart(rows: Sequence[LatencyRow]) -> str:
    slowest = sorted(rows, key=lambda row: row.p99_ms, reverse=True)[:LINES_MAX]
    return lines(
        [
            Series(
                row.name,
                [dt.datetime.fromtimestamp(each[0], dt.UTC) for each in row.windows],
                # A logarithm has no place for what is not above 0; the table has it.
                [each[4] if each[4] > 0 else None for each in row.windows],
                "line" if len(row.windows) > 1 else "points",
            )
            for row in slowest
        ],
        y_label="p99, ms",
        log_y=True,
    )
