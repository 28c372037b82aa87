"""The section of a drill's report on clients that a step kept from reading."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import asdict
from typing import Any

from raylay.services.drills.evidence import DrillResult
from raylay.services.drills.judgement import RunJudgement
from raylay.services.drills.loads.load import LoadSubscriber
from raylay.services.drills.measure import delivery_ms, rates
from raylay.services.drills.reports.report_charts import short_name
from raylay.services.drills.reports.report_words import first_fault_us, many, seconds
from raylay.services.hosts.latency import quantile
from raylay.services.messages.units import about_bytes
from raylay.services.reports import Page, charts
from raylay.services.verification.laws.slow_clients import ClientPath, SlowVerdict

STEP_US = 500_000


def add_slow(page: Page, result: DrillResult) -> None:
    """Adds the section on slow clients: the path of each client that a step kept from reading. Adds
    nothing where there was none."""
    judgement = result.judgement
    verdict = judgement.slow if judgement is not None else None
    if verdict is None or result.crowd is None:
        return
    page.text("Slow clients", *map(told, verdict.ways), *verdict.unshown)
    _bytes(page, result, verdict)
    _given(page, result, verdict)
    origin_us = first_fault_us(result)
    page.table(
        "",
        ("at s", "client", "what happened"),
        [
            [round((time_us - origin_us) / 1e6, 1), short_name(way.stall.client), text]
            for way in verdict.ways
            for time_us, text in _moments(way)
        ],
    )
    _others(page, result, verdict)


def told(way: ClientPath) -> str:
    """Describes the path of one client in words."""
    stall = way.stall

    def after(time_us: int) -> str:
        return seconds((time_us - stall.began_us) / 1000)

    text = f"A subscriber in {stall.region} read nothing for {after(stall.ended_us)}."
    if not (way.offline_us or way.ended_us):
        return f"{text} It did not go offline."
    if way.offline_us:
        text += (
            f" {after(way.offline_us)} later {about_bytes(way.offline_bytes)} waited for it in "
            f"the memory of {way.instance}, and it went offline: from then on the messages that "
            f"it did not take went to the disk, {about_bytes(way.disk_most_bytes)} at most, and "
            f"the memory used for slow clients was {about_bytes(way.memory_most_bytes)} at most."
        )
    if way.ended_us:
        text += (
            f" {after(way.ended_us)} after it had stopped reading it was disconnected: {way.why}."
        )
        if way.removed_us:
            text += (
                f" Within {seconds((way.removed_us - way.ended_us) / 1000)} nothing was left of "
                "it there."
            )
        if way.back_us:
            text += (
                f" It was connected again, to {way.back_at}, and went on from its bookmark: "
                f"{many(way.resumed, 'message')} arrived there."
            )
    elif way.left_us and not way.online_us:
        text += f" Before it was online again its connection ended: {way.left_for}."
    elif way.online_us:
        drained_ms = max(0, way.online_us - stall.ended_us) / 1000
        text += (
            f" When it read again, {many(way.drained, 'message')} arrived in order within "
            f"{seconds(drained_ms)}: then nothing was left on the disk, and it was online again."
        )
    return text


def _moments(way: ClientPath) -> Iterator[tuple[int, str]]:
    stall = way.stall
    limits = [
        f"{about_bytes(size)} {where}"
        for size, where in ((stall.memory_bytes, "of memory"), (stall.disk_bytes, "on disk"))
        if size
    ]
    found = [
        (stall.began_us, "stops reading" + (f"; limit: {', '.join(limits)}" if limits else "")),
        (way.offline_us, f"offline at {way.instance}: {about_bytes(way.offline_bytes)} in memory"),
        (way.ended_us, f"disconnected by {way.instance}, limit {way.limit}: {way.why}"),
        (way.removed_us, f"nothing of it is left at {way.instance}"),
        (way.back_us, f"connected again, to {way.back_at}, with its bookmark"),
        (way.left_us, f"its connection ended: {way.left_for}"),
        (stall.ended_us, "reads on"),
        (way.online_us, f"online again: {many(way.drained, 'message')} came since it reads"),
    ]
    return iter(sorted(each for each in found if each[0]))


def _marks(result: DrillResult, verdict: SlowVerdict) -> dict[str, Any]:
    origin_us = first_fault_us(result)

    def at(time_us: int) -> float:
        return (time_us - origin_us) / 1e6

    named: list[charts.MomentMark] = []
    for way in verdict.ways:
        if way.offline_us:
            named.append(charts.MomentMark(at(way.offline_us), "offline", "warn"))
        if way.ended_us:
            named.append(charts.MomentMark(at(way.ended_us), "disconnected", "bad"))
        if way.online_us:
            named.append(charts.MomentMark(at(way.online_us), "online", "good"))
    return {
        "x_label": "seconds from the first fault",
        "marks": named,
        "bands": [
            charts.Band(at(way.stall.began_us), at(way.stall.ended_us), "reads nothing", "")
            for way in verdict.ways
        ],
        "x_range": (at(result.began_us), at(result.ended_us)),
    }


def _bytes(page: Page, result: DrillResult, verdict: SlowVerdict) -> None:
    origin_us = first_fault_us(result)
    series = []
    for name in dict.fromkeys(way.instance for way in verdict.ways if way.instance):
        own = [
            (sample.time_us, sample.waiting)
            for sample in result.samples
            if sample.instance == name and sample.waiting and sample.time_us >= result.began_us
        ]
        xs = [(time_us - origin_us) / 1e6 for time_us, _ in own]
        memory = [waiting.memory_bytes / 2**20 for _, waiting in own]
        disk = [waiting.disk_bytes / 2**20 for _, waiting in own]
        series.append(charts.Series(f"in memory, {name}", xs, memory, "area"))
        series.append(charts.Series(f"on disk, {name}", xs, disk, "area"))
    if series:
        page.chart(
            "",
            charts.lines(series, y_label="MiB", **_marks(result, verdict)),
            "The bytes that wait for slow clients. Bytes on their way to the disk are in memory "
            "too.",
        )


def _normal(result: DrillResult) -> list[LoadSubscriber]:
    assert result.crowd is not None
    return [
        subscriber
        for subscriber in result.crowd.subscribers
        if not subscriber.name.endswith("-slow")
    ]


def _given(page: Page, result: DrillResult, verdict: SlowVerdict) -> None:
    crowd = result.crowd
    assert crowd is not None
    began, ended, origin = result.began_us, result.ended_us, first_fault_us(result)
    steps = max(1, -(-(ended - began) // STEP_US))
    xs = [(began + (number + 0.5) * STEP_US - origin) / 1e6 for number in range(steps)]
    slow = {way.stall.client for way in verdict.ways}
    regions = {way.stall.region for way in verdict.ways}
    shown = [subscriber for subscriber in crowd.subscribers if subscriber.name in slow]
    shown += [each for each in _normal(result) if each.group in regions][: len(shown)]
    series = [
        charts.Series(
            short_name(each.name),
            xs,
            rates(
                (
                    (time_us, last - first + 1)
                    for time_us, _, _, first, last in (
                        each.recorder.stretches if each.recorder else ()
                    )
                ),
                began,
                ended,
                STEP_US,
            ),
        )
        for each in shown
    ]
    page.chart(
        "",
        charts.lines(series, y_label="messages/s", **_marks(result, verdict)),
        "The messages that arrived at it, and at a subscriber of its region that reads all the "
        "time.",
    )


def latencies(result: DrillResult) -> list[tuple[int, float]]:
    """Returns (time, milliseconds since the publish) of the deliveries to subscribers that read all
    the time."""
    assert result.crowd is not None
    published = [
        (notice.publisher, notice.first, notice.last, notice.time_us)
        for notice in result.crowd.notices
        if notice.kind == "published"
    ]
    return [
        point
        for each in _normal(result)
        if each.recorder is not None
        for point in delivery_ms(
            published, ((stretch[0], stretch[2], stretch[4]) for stretch in each.recorder.stretches)
        )
    ]


def _phases(result: DrillResult, verdict: SlowVerdict) -> Iterator[tuple[str, int, int]]:
    stalls = [way.stall for way in verdict.ways]
    yield "before", result.began_us, min(each.began_us for each in stalls)
    for way in verdict.ways:
        stall = way.stall
        step = f"step {stall.number}, "
        behind_us = way.offline_us or way.ended_us or stall.ended_us
        yield step + "it waits in memory", stall.began_us, min(behind_us, stall.ended_us)
        if way.offline_us and way.offline_us < stall.ended_us:
            over_us = way.ended_us or stall.ended_us
            yield step + "it waits on disk", way.offline_us, over_us
        if way.ended_us and way.ended_us < stall.ended_us:
            yield step + "it is disconnected", way.ended_us, stall.ended_us
        if way.online_us > stall.ended_us:
            yield step + "it takes the waiting messages", stall.ended_us, way.online_us
    last_us = max(max(way.stall.ended_us, way.online_us) for way in verdict.ways)
    yield "behind it", last_us, result.quiet_us


def _others(page: Page, result: DrillResult, verdict: SlowVerdict) -> None:
    """Adds the latencies of deliveries to the other subscribers meanwhile."""
    points, origin_us = latencies(result), first_fault_us(result)
    if not points:
        return
    began, ended = result.began_us, result.ended_us
    steps = max(1, -(-(ended - began) // STEP_US))
    by_step: list[list[float]] = [[] for _ in range(steps)]
    for time_us, value_ms in points:
        at = (time_us - began) // STEP_US
        if 0 <= at < steps:
            by_step[at].append(value_ms)
    xs = [(began + (number + 0.5) * STEP_US - origin_us) / 1e6 for number in range(steps)]
    series = [
        charts.Series(name, xs, [quantile(ms, share) if ms else None for ms in by_step], "points")
        for name, share in (("p50", 0.5), ("p99", 0.99))
    ]
    page.chart(
        "",
        charts.lines(series, y_label="ms", log_y=True, **_marks(result, verdict)),
        "The time from the publish to the delivery, for subscribers that read all the time, "
        "between regions too: of each half second.",
    )
    rows = [
        [name, len(found), *(seconds(quantile(found, share)) for share in (0.5, 0.99, 1.0))]
        for name, since_us, until_us in _phases(result, verdict)
        if (found := _within(points, since_us, until_us))
    ]
    page.table("", ("to the others", "deliveries", "p50", "p99", "longest"), rows, folded=False)


def _within(points: Iterable[tuple[int, float]], since_us: int, until_us: int) -> list[float]:
    return [value_ms for time_us, value_ms in points if since_us <= time_us < until_us]


def tiles(judgement: RunJudgement) -> Iterator[tuple[str, Any, str]]:
    """Yields a tile for each slow subscriber: how much waited for it, and how soon it was taken."""
    verdict = judgement.slow
    for way in verdict.ways if verdict is not None else ():
        if way.online_us:
            yield (
                "Online again",
                seconds(max(0, way.online_us - way.stall.ended_us) / 1000),
                f"{about_bytes(way.disk_most_bytes)} had waited on disk",
            )
        elif way.ended_us:
            yield (
                "Disconnected",
                seconds((way.ended_us - way.stall.began_us) / 1000),
                f"after it stopped reading, limit {way.limit}",
            )


def as_json(result: DrillResult) -> dict[str, Any] | None:
    judgement = result.judgement
    found = judgement.slow if judgement is not None else None
    if found is None:
        return None
    points = latencies(result) if result.crowd is not None else []
    return {
        "ways": [{**asdict(way), "stall": way.stall._asdict()} for way in found.ways],
        "not_shown": found.unshown,
        "wrong": len(found.broken),
        "others_ms": [
            {
                "phase": name,
                "p50": quantile(within, 0.5),
                "p99": quantile(within, 0.99),
                "deliveries": len(within),
            }
            for name, since_us, until_us in _phases(result, found)
            if (within := _within(points, since_us, until_us))
        ],
    }
