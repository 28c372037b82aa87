"""The part of a drill's report that is about its queue."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

from raylay.services.drills.evidence import DrillResult
from raylay.services.drills.judgement import RunJudgement
from raylay.services.drills.measure import rates, worst
from raylay.services.drills.reports.report_charts import moments
from raylay.services.drills.reports.report_words import first_fault_us, many, seconds
from raylay.services.reports import Page, charts
from raylay.services.verification.laws.queue_delivery import QueueVerdict, Takeover, first_given

STEP_US = 1_000_000
"""Width of a step of the charts: at so few messages a second, narrower steps would give no line."""
WAIT_STEP_US = 250_000


def add_queue(page: Page, result: DrillResult) -> None:
    """Adds the section on the drills' queue; nothing where there was no load on it."""
    judgement = result.judgement
    verdict = judgement.queue if judgement is not None else None
    if verdict is None:
        return
    if verdict.why:
        page.text("Queue", verdict.sentence)
        return
    page.text("Queue", verdict.sentence, *map(told, verdict.takeovers))
    _charts(page, result)
    page.table(
        "",
        ("region", "published", "delivered to its consumers", "of the messages published elsewhere",
         "acknowledged by them"),
        [
            [region, tally.published, tally.given, tally.taken, tally.acknowledged]
            for region, tally in verdict.regions.items()
        ],
        "A message that was delivered more often than acknowledged went to a consumer that "
        "died, or lost its connection, before it acknowledged the message.",
    )  # fmt: skip
    if verdict.takeovers:
        page.table(
            "",
            ("consumers killed in", "they held", (
                "other consumers had the first after"
            ), "taken over",
             "published meanwhile", "waited, p50", "waited, longest"),
            [
                [
                    takeover.region, takeover.held, seconds(takeover.first_ms), takeover.moved,
                    takeover.published, seconds(takeover.p50_ms), seconds(takeover.longest_ms),
                ]
                for takeover in verdict.takeovers
            ],
            "Waited: the time from the publish until a consumer had the message, for messages "
            "published in the region while it had no consumers.",
        )  # fmt: skip


def told(found: Takeover) -> str:
    """Describes in words how other regions took over a region's messages."""
    text = f"The consumers in {found.region} died with {many(found.held, 'message')} in hand."
    if found.first_ms is None:
        return f"{text} No other consumer got any of the region's messages while they were away."
    return (
        f"{text} A consumer elsewhere had the first message of the region "
        f"{seconds(found.first_ms)} later, and {many(found.moved, 'message')} went to others "
        "while they were away. Of the messages published there meanwhile, half were with a "
        f"consumer within {seconds(found.p50_ms)}, and all within {seconds(found.longest_ms)}."
    )


def tiles(judgement: RunJudgement) -> Iterator[tuple[str, Any, str]]:
    """Yields a tile for each takeover: how soon other consumers had the region's messages."""
    verdict = judgement.queue
    for takeover in verdict.takeovers if verdict is not None else ():
        yield (
            "Others took over",
            seconds(takeover.first_ms),
            f"after the consumers in {takeover.region} died",
        )


def _charts(page: Page, result: DrillResult) -> None:
    load = result.queue
    if load is None:
        return
    began, ended, origin = result.began_us, result.ended_us, first_fault_us(result)
    marks, bands = moments(result)
    of_region = {each.publisher: each.region for each in (p.produced() for p in load.producers)}
    given = [delivery for delivery in load.ledger.given if delivery.key[0] in of_region]
    drawn: dict[str, Any] = {
        "x_label": "seconds from the first fault",
        "marks": marks,
        "bands": bands,
        "x_range": ((began - origin) / 1e6, (ended - origin) / 1e6),
    }

    def series(name: str, times_us: Iterable[int]) -> charts.Series:
        values = rates(((time_us, 1) for time_us in times_us), began, ended, STEP_US)
        return charts.Series(name, _middles(began, ended, origin, STEP_US), values)

    page.chart(
        "",
        charts.lines(
            [
                series(f"given, {region}", (e.time_us for e in given if e.region == region))
                for region in load.regions
            ],
            y_label="messages/s",
            **drawn,
        ),
        "Messages that the consumers of each region received.",
    )
    page.chart(
        "",
        charts.lines(
            [
                series(
                    f"acknowledged, {region}",
                    (time_us for time_us, of in load.ledger.acknowledged if of == region),
                )
                for region in load.regions
            ],
            y_label="messages/s",
            **drawn,
        ),
        "Messages that they acknowledged.",
    )
    times_us = {
        (each.publisher, sequence): time_us
        for each in (p.produced() for p in load.producers)
        for sequence, time_us in each.times_us.items()
    }
    waits = [
        (of_region[key[0]], each.time_us, (each.time_us - times_us[key]) / 1000)
        for key, each in first_given(given).items()
        if key in times_us
    ]
    page.chart(
        "",
        charts.lines(
            [
                charts.Series(
                    f"published in {region}",
                    _middles(began, ended, origin, WAIT_STEP_US),
                    worst(
                        ((time_us, ms) for of, time_us, ms in waits if of == region),
                        began,
                        ended,
                        WAIT_STEP_US,
                    ),
                    "points",
                )
                for region in load.regions
            ],
            y_label="ms",
            log_y=True,
            **drawn,
        ),
        "The time that messages waited, from the publish until a consumer first had them: the "
        "longest of each quarter of a second, by the region of the publish.",
    )


def _middles(began_us: int, ended_us: int, origin_us: int, step_us: int) -> list[float]:
    return [
        (began_us + (number + 0.5) * step_us - origin_us) / 1e6
        for number in range(max(1, -(-(ended_us - began_us) // step_us)))
    ]


def as_json(found: QueueVerdict | None) -> dict[str, Any] | None:
    if found is None:
        return None
    return {
        "judged": not found.why,
        "why": found.why,
        "notes": found.notes,
        "published": found.published,
        "persisted": found.persisted,
        "given": found.given,
        "given_again": found.again,
        "done_elsewhere": found.moved,
        "instances": found.places,
        "wrong": len(found.broken),
        "regions": {
            region: {
                "published": tally.published,
                "given": tally.given,
                "published_elsewhere": tally.taken,
                "acknowledged": tally.acknowledged,
            }
            for region, tally in found.regions.items()
        },
        "taken_over": [
            {
                "region": takeover.region,
                "held": takeover.held,
                "first_ms": takeover.first_ms,
                "moved": takeover.moved,
                "published": takeover.published,
                "waited_ms": {"p50": takeover.p50_ms, "longest": takeover.longest_ms},
            }
            for takeover in found.takeovers
        ],
    }
