"""What a drill came to, as a page that anybody can read and as JSON for programs."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from raylay.services.drills.drill import Result
from raylay.services.drills.judging import COPIES_MAX, Judgement
from raylay.services.drills.load import Crowd
from raylay.services.drills.measure import (
    Failover,
    Injected,
    Recovery,
    Sample,
    percentile,
    rates,
    worst,
)
from raylay.services.errors import ConfigurationError, RaylayError
from raylay.services.reports import Page, charts
from raylay.services.reports.page import Cell
from raylay.services.telemetry.trace_report import Span, TraceFiles, tree, where_of

STEP_US = 250_000
TRACES_MAX = 4
TRACED_WITHIN_US = 2_000_000
"""Of messages that were published so soon after a fault, the one that waited longest is shown."""
EVENTS_MAX = 400
LINKS_MAX = 4
SHOWN_MORE_MS = 100.0
"""Of a trace, what begins as long after the publish had its ack, or in four times as long."""
UNJUDGED_LAWS = (
    f"The history has more than {COPIES_MAX:,} copies: its places were judged, and not by the laws."
)
JSON_NAME = "report.json"
PAGE_NAME = "report.html"


def make_place(directory: Path) -> None:
    """Makes the directory of a report, and knows whether files can be written there.

    Raises:
        ConfigurationError: they cannot.
    """
    try:
        directory.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=directory):
            pass
    except OSError as error:
        raise ConfigurationError(
            f"no report can be written into {directory}: {error.strerror}: choose another "
            "directory (`--output`)"
        ) from None


def write(result: Result, directory: Path) -> Path:
    """Writes the page and the JSON into a directory. Returns the page.

    Raises:
        ConfigurationError: there can be no such directory, or the extra `reports` is not installed;
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


# -- words ---------------------------------------------------------------------------------------
def seconds(value_ms: float | None) -> str:
    """A duration for people."""
    if value_ms is None:
        return "never"
    if value_ms < 1000:
        return f"{value_ms:.0f} ms"
    return f"{value_ms / 1000:.2f} s" if value_ms < 10_000 else f"{value_ms / 1000:.1f} s"


def verdict_sentence(result: Result) -> str:
    """The verdict in one or two sentences."""
    judgement = result.judgement
    assert judgement is not None
    verdict = judgement.verdict
    kind = "journaled" if result.scenario.own_load else "acknowledged"
    journals = sum(1 for place in verdict.places if place.place.startswith("journal"))
    others = len(verdict.places) - journals
    if judgement.valid:
        all_told = judgement.laws_judged and not result.scenario.own_load
        late = f" {judgement.late:,} came late and are flagged so." if judgement.late else ""
        return (
            f"All {verdict.persisted:,} {kind} messages are in every journal they belong in "
            f"({journals})"
            + (f" and at every subscriber ({others})" if others else "")
            + ", once and in order"
            + ("; every ack owed was given." if all_told else ".")
            + late
            + ("" if judgement.laws_judged else f" {UNJUDGED_LAWS}")
        )
    if not verdict.persisted and verdict.valid and not judgement.broken:
        return f"Could not judge: no message was {kind}."
    wrong = [
        f"{count:,} {word}"
        for count, word in (
            (verdict.lost, "lost"),
            (verdict.duplicated, "duplicated"),
            (verdict.out_of_order, "out of order"),
            (verdict.unexpected, "never published"),
            (len(judgement.broken), "laws broken"),
            (len(judgement.complaints), "complaints"),
        )
        if count
    ]
    return f"Of {verdict.persisted:,} {kind} messages: {', '.join(wrong)}."


def story(result: Result) -> list[str]:
    """What happened, in plain words, a paragraph a fault."""
    judgement = result.judgement
    assert judgement is not None
    load = result.scenario.load
    paragraphs = []
    if result.scenario.about:
        paragraphs.append(result.scenario.about)
    instances = sum(map(len, result.groups.values()))
    if result.scenario.own_load:
        paragraphs.append(
            f"The fabric {result.fabric} has {_many(instances, 'instance')} in "
            f"{_many(len(result.groups), 'region')} and was under its own load: what its journals "
            "show is judged; nobody wrote down what clients were told."
        )
    publishers, subscribers = (n * len(result.groups) for n in (load.publishers, load.subscribers))
    paragraphs += (
        []
        if result.scenario.own_load
        else [
            f"The fabric {result.fabric} has {_many(instances, 'instance')} in "
            f"{_many(len(result.groups), 'region')}. {_many(publishers, 'publisher')} sent "
            f"{load.rate_per_s:g} messages a second each; "
            f"{_many(subscribers, 'durable subscriber')} read everything that reaches their "
            "region."
        ]
    )
    for injected, found in zip(result.injected, result.recoveries, strict=True):
        paragraphs.append(" ".join(_told(result, injected, found)))
    if result.downgrades:
        first = result.downgrades[0]
        risk = (
            f"{_many(result.acked_at_risk, 'message')} had their ack meanwhile: until the upgrade "
            "they were on fewer disks than configured, and clients were told not to fail over "
            "there."
            if result.acked_at_risk
            else "Nothing was acknowledged meanwhile."
        )
        paragraphs.append(
            f"{_many(len(result.downgrades), 'downgrade')} of a sync link let publishers be "
            f"answered without it, {first.instance} to {first.destination} first. {risk}"
        )
    else:
        paragraphs.append(
            "No sync link was downgraded: every acknowledged message was on all disks that its "
            "ack promises, all the time."
        )
    return paragraphs


def _told(result: Result, injected: Injected, found: Recovery) -> Iterator[str]:
    at_s = (injected.began_us - _origin_us(result)) / 1e6
    when = "At the beginning" if at_s < 0.05 else f"After {at_s:.1f} s"
    waiting = _many(injected.unacknowledged, "message")
    seen = "" if result.scenario.own_load else f", while {waiting} waited for an ack"
    yield f"{when}: {injected.text}{seen}."
    lost = [each for each in found.failovers if each.kind == "publisher"]
    others = len(found.failovers) - len(lost)
    if found.failovers:
        gaps = [each.gap_ms for each in found.failovers]
        yield (
            f"{_many(len(lost), 'publisher')} and {_many(others, 'subscriber')} lost their "
            f"connection, and found a server again within {seconds(max(gaps))}."
        )
    standing = sorted(found.acks_stood_ms.items(), key=lambda each: -each[1])
    if standing:
        region, longest_ms = standing[0]
        text = f"The longest that a publisher in {region} waited for an ack was "
        text += seconds(longest_ms)
        rest = [f"{name} {seconds(ms)}" for name, ms in standing[1:]]
        yield text + (f" (elsewhere: {', '.join(rest)})." if rest else ".")
    if found.ready_ms is not None:
        yield f"What was killed served again after {seconds(found.ready_ms)}."
    if found.whole_ms is None:
        yield "The fabric was not whole again."
    else:
        yield f"{seconds(found.whole_ms)} after its end all links had caught up."
    yield from (f"Note: {note}." for note in injected.notes)


def _many(count: int, word: str) -> str:
    return f"{count:,} {word}{'' if count == 1 else 's'}"


def _origin_us(result: Result) -> int:
    return result.injected[0].began_us if result.injected else result.began_us


def _clock(time_us: int) -> str:
    return datetime.fromtimestamp(time_us / 1e6, UTC).strftime("%H:%M:%S.%f")[:-3]


# -- the page ------------------------------------------------------------------------------------
def as_page(result: Result, traces: Sequence[tuple[Injected, list[Span]]]) -> Page:
    """The report."""
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
    _rates(page, result)
    _recoveries(page, result)
    _traces(page, result, traces)
    _verdicts(page, judgement)
    _details(page, result)
    return page


def tiles(result: Result) -> list[tuple[str, Any, str]]:
    """The figures that people ask for first."""
    judgement = result.judgement
    assert judgement is not None
    verdict = judgement.verdict
    recoveries = result.recoveries
    gaps = [each.gap_ms for found in recoveries for each in found.failovers]
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
                seconds(percentile(gaps, 0.5)),
                f"p95 {seconds(percentile(gaps, 0.95))}, {len(gaps)} clients",
            )
        )
    if stood:
        found.append(("Acks stood still", seconds(max(stood)), "at most, for one publisher"))
    if ready:
        found.append(("Served again", seconds(max(ready)), "after SIGKILL"))
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


def _away(samples: Iterable[Sample]) -> Iterator[tuple[int, int, str]]:
    """(from, until, tone) of the times in which an instance was not as it should be."""
    open_: tuple[int, str] | None = None
    last_us = 0
    for sample in samples:
        tone = "" if sample.whole else ("warn" if sample.ready else "bad")
        if open_ is not None and tone != open_[1]:
            yield open_[0], sample.time_us, open_[1]
            open_ = None
        if tone and open_ is None:
            open_ = sample.time_us, tone
        last_us = sample.time_us
    if open_ is not None:
        yield open_[0], last_us, open_[1]


def timeline(result: Result) -> str:
    """Faults, instances, downgraded links and clients, a lane each."""
    origin_us = _origin_us(result)

    def at(time_us: int) -> float:
        return (time_us - origin_us) / 1e6

    ended = at(result.ended_us)
    rows: list[tuple[str, list[charts.Bar]]] = []
    for injected in result.injected:
        until_us = injected.ended_us if _lasts(injected) else injected.began_us
        bar = charts.Bar(at(injected.began_us), at(until_us), "", "bad")
        rows.append((f"{injected.number}. {injected.fault} {injected.target}"[:34], [bar]))
    for name in (name for names in result.groups.values() for name in names):
        own = [s for s in result.samples if s.instance == name and s.time_us >= result.began_us]
        bars = [
            charts.Bar(at(since), at(until), "", "bad" if tone == "bad" else "warn")
            for since, until, tone in _away(own)
        ]
        rows.append((name, bars))
    for link in dict.fromkeys((each.instance, each.destination) for each in result.downgrades):
        bars = [
            charts.Bar(at(d.since_us), at(d.until_us) if d.until_us else ended, "", "warn")
            for d in result.downgrades
            if (d.instance, d.destination) == link
        ]
        rows.append((f"async: {link[0]} → {link[1]}", bars))
    rows += _client_rows(result, at, ended)
    return charts.lanes(
        rows,
        x_label="seconds from the first fault",
        marks=[charts.Mark(at(each.began_us), tone="bad") for each in result.injected],
        bands=_bands(result, at),
        x_range=(at(result.began_us), ended),
    )


def _lasts(injected: Injected) -> bool:
    return injected.ended_us - injected.began_us > 500_000


def _bands(result: Result, at: Any) -> list[charts.Band]:
    return [
        charts.Band(at(each.began_us), at(each.ended_us), "", "bad")
        for each in result.injected
        if _lasts(each)
    ]


def _client_rows(result: Result, at: Any, ended: float) -> Iterator[tuple[str, list[charts.Bar]]]:
    colors = {
        name: charts.PALETTE[number % len(charts.PALETTE)]
        for number, name in enumerate(n for names in result.groups.values() for n in names)
    }
    by_client: dict[str, list[Failover]] = {}
    for each in result.failovers:
        by_client.setdefault(each.client, []).append(each)
    for client, found in sorted(by_client.items()):
        bars = []
        for number, each in enumerate(found):
            after = found[number + 1 : number + 2]
            until = at(after[0].left_us) if after else ended
            start = max(at(each.back_us), at(result.began_us))
            color = colors.get(each.after, "")
            bars.append(charts.Bar(start, until, each.after, color=color))
        yield _short(client), bars


def _short(client: str) -> str:
    """Without the drill's number."""
    return client.split("-", 2)[2] if client.startswith("drill-") else client


def _rates(page: Page, result: Result) -> None:
    crowd = result.crowd
    if crowd is None:
        return
    began, ended, origin = result.began_us, result.ended_us, _origin_us(result)
    xs = [
        (began + (number + 0.5) * STEP_US - origin) / 1e6
        for number in range(max(1, -(-(ended - began) // STEP_US)))
    ]

    def series(name: str, events: Iterable[tuple[int, int]]) -> charts.Series:
        return charts.Series(name, xs, rates(events, began, ended, STEP_US))

    def at(time_us: int) -> float:
        return (time_us - origin) / 1e6

    marks = [
        charts.Mark(at(each.began_us), each.fault.replace("_", " ")) for each in result.injected
    ]
    bands = _bands(result, at)
    if crowd.publishers:
        normal = [s for s in crowd.subscribers if not s.name.endswith("-slow")]
        shown = [
            series("published", (each for p in crowd.publishers for each in p.rates)),
            series(
                "acknowledged", ((a.time_us, a.messages) for p in crowd.publishers for a in p.acks)
            ),
            series("delivered, to all subscribers", (each for s in normal for each in s.times)),
        ]
        note = "What is published is the load's rate; the others dip and then catch up."
    else:
        shown = [series(name, _counted(result, name)) for name in ("published", "delivered")]
        note = "By the counters of the instances."
    page.chart(
        "Messages a second",
        charts.lines(
            shown,
            x_label="seconds from the first fault",
            y_label="messages/s",
            marks=marks,
            bands=bands,
            x_range=(at(began), at(ended)),
        ),
        note,
    )
    if crowd.publishers:
        _ack_times(page, result, crowd, xs, marks, bands)
    _ages(page, result, at, marks, bands)


def _ack_times(
    page: Page,
    result: Result,
    crowd: Crowd,
    xs: Sequence[float],
    marks: list[charts.Mark],
    bands: list[charts.Band],
) -> None:
    """How long publishers waited, by region."""
    began, ended, origin = result.began_us, result.ended_us, _origin_us(result)
    ages = [
        charts.Series(
            region,
            xs,
            worst(
                (
                    (ack.time_us, ack.age_ms)
                    for publisher in crowd.publishers
                    if publisher.group == region
                    for ack in publisher.acks
                ),
                began,
                ended,
                STEP_US,
            ),
            "points",
        )
        for region in result.groups
    ]
    page.chart(
        "How long acks took",
        charts.lines(
            ages,
            x_label="seconds from the first fault",
            y_label="ms",
            marks=marks,
            bands=bands,
            x_range=((began - origin) / 1e6, (ended - origin) / 1e6),
            log_y=True,
        ),
        "The oldest message of each quarter of a second, from publish to persisted, by region.",
    )


def _counted(result: Result, counter: str) -> Iterator[tuple[int, int]]:
    """(time, how many more) of a counter of all instances; a restart begins anew."""
    before: dict[str, tuple[int, int]] = {}
    for sample in result.samples:
        value = int(getattr(sample, counter))
        pid, last = before.get(sample.instance, (0, 0))
        if sample.pid:
            if pid == sample.pid:
                yield sample.time_us, value - last
            before[sample.instance] = sample.pid, value


def _ages(
    page: Page,
    result: Result,
    at: Callable[[int], float],
    marks: list[charts.Mark],
    bands: list[charts.Band],
) -> None:
    """How long each sync link has owed the oldest of what it owes."""
    oldest: dict[tuple[str, str], float] = {}
    for sample in result.samples:
        for name, link in sample.links.items():
            if link.configured_sync:
                link_of = (sample.instance, name)
                oldest[link_of] = max(oldest.get(link_of, 0.0), link.age_ms)
    series = []
    for instance, name in sorted(oldest, key=lambda each: -oldest[each])[:LINKS_MAX]:
        own = [s for s in result.samples if s.instance == instance and name in s.links]
        series.append(
            charts.Series(
                f"{instance} → {name}",
                [at(s.time_us) for s in own],
                [s.links[name].age_ms for s in own],
                "step",
            )
        )
    if series:
        page.chart(
            "What sync links owe",
            charts.lines(
                series,
                x_label="seconds from the first fault",
                y_label="ms",
                marks=marks,
                bands=bands,
                x_range=(at(result.began_us), at(result.ended_us)),
            ),
            "The age of the oldest message that an instance waits for a persisted ack of, by link. "
            "At the age of the downgrade acks are given without it."
            + (f" The {LINKS_MAX} that owed longest." if len(oldest) > LINKS_MAX else ""),
        )


def _standing(value_ms: float | None) -> str:
    return "" if value_ms is None else seconds(value_ms)


def _recoveries(page: Page, result: Result) -> None:
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
    moved = [each for each in result.failovers if each.left_us]
    if moved:
        page.table(
            "Failovers",
            ("at s", "client", "from", "to", "gap", "sent again", "why"),
            [
                [
                    round((each.left_us - _origin_us(result)) / 1e6, 3),
                    _short(each.client),
                    each.before,
                    each.after,
                    seconds(each.gap_ms),
                    each.resent,
                    each.reason[:60],
                ]
                for each in sorted(moved, key=lambda each: each.left_us)
            ],
            "Gap: from the moment a client saw its connection end to its logon at the next server.",
        )


def _verdicts(page: Page, judgement: Judgement) -> None:
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
    wrong = [[each.law, each.text] for each in judgement.broken]
    wrong += [["complaint", text] for text in judgement.complaints]
    if wrong:
        page.table("What is wrong", ("law", "what"), wrong, folded=False)
    if not judgement.laws_judged:
        page.text("", UNJUDGED_LAWS)
    elif judgement.separate:
        page.text(
            "",
            f"{len(judgement.separate)} acks relied on a link that was downgraded or on a disk "
            "that was lost meanwhile: known and no failure (docs/deviations.md).",
        )
    else:
        page.text(
            "",
            "The recorded history keeps every law that the simulator checks: acknowledged "
            "messages at every sync destination, once, in order, no loops, safe failover, all "
            "acks given.",
        )


def _details(page: Page, result: Result) -> None:
    origin_us = _origin_us(result)
    shown = [each for each in result.events if each["time_us"] >= result.began_us]
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
def in_flight(result: Result) -> list[tuple[Injected, list[Span]]]:
    """Of each fault two messages with all their spans: of those that were traced and on their way
    when it happened the one that waited longest, and the same of those published just after."""
    if result.traces is None or not result.traces.exists():
        return []
    # A fabric that runs for long has gigabytes of them.
    files, began_ns = TraceFiles(result.traces), result.began_us * 1000
    chosen: dict[str, Injected] = {}
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
    spans: dict[str, list[Span]] = {trace_id: [] for trace_id in chosen}
    if spans:
        for span in files.spans(*spans, since_ns=began_ns):
            if span.trace_id in spans:
                spans[span.trace_id].append(span)
    return [(chosen[trace_id], found) for trace_id, found in spans.items()]


def _flat(spans: Iterable[Span], depth: int = 0) -> Iterator[tuple[int, Span]]:
    for span in spans:
        yield depth, span
        yield from _flat(span.children, depth + 1)


def _traces(page: Page, result: Result, traces: Sequence[tuple[Injected, list[Span]]]) -> None:
    if not traces:
        page.text(
            "Messages in flight",
            "No message that was on its way was traced. "
            + ("" if result.traces else "The fabric traces nothing: `tracing: {directory: …}`."),
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
                marks=[charts.Mark(mark_ms, "fault")] if mark_ms >= 0 else (),
            ),
            f"Message {publish.attributes.get('bookmark', '')} was "
            + ("on its way when " if mark_ms >= 0 else f"published {-mark_ms:.0f} ms after ")
            + f"this happened: {injected.text}. Spans of a process that was killed may be missing."
            + (f" {later} spans of sending it again later are left out." if later else ""),
        )


def _hue(span: Span) -> str:
    names = ("publish", "commit", "link send", "remote commit", "persisted ack", "delivery")
    at = names.index(span.name) if span.name in names else 0
    return charts.PALETTE[at % len(charts.PALETTE)]


# -- JSON ----------------------------------------------------------------------------------------
def as_json(result: Result, traces: Sequence[tuple[Injected, list[Span]]] = ()) -> dict[str, Any]:
    """The report for programs. Times are microseconds since 1970."""
    judgement = result.judgement
    assert judgement is not None
    verdict = judgement.verdict
    gaps = [each.gap_ms for found in result.recoveries for each in found.failovers]
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
            "laws_broken": [asdict(each) for each in judgement.broken],
            "known": len(judgement.separate),
            "complaints": judgement.complaints,
            "places": [asdict(place) for place in verdict.places],
        },
        "faults": [asdict(each) for each in result.injected],
        "recoveries": [_recovery_json(each) for each in result.recoveries],
        "failover_gap_ms": {
            "p50": percentile(gaps, 0.5),
            "p95": percentile(gaps, 0.95),
            "all": gaps,
        },
        "failovers": [{**each._asdict(), "gap_ms": each.gap_ms} for each in result.failovers],
        "downgrades": [each._asdict() for each in result.downgrades],
        "acknowledged_at_risk": result.acked_at_risk,
        "in_flight": [
            {"fault": injected.number, "trace_id": spans[0].trace_id, "spans": len(spans)}
            for injected, spans in traces
        ],
        "events": [each for each in result.events if each["time_us"] >= result.began_us],
        "kept": result.kept,
    }


def _recovery_json(found: Recovery) -> Mapping[str, Any]:
    return {
        "fault": found.number,
        "acks_stood_ms": found.acks_stood_ms,
        "deliveries_stood_ms": found.deliveries_stood_ms,
        "failovers": len(found.failovers),
        "ready_ms": found.ready_ms,
        "whole_ms": found.whole_ms,
    }
