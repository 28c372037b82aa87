"""The result of a drill as charts over time."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

from raylay.services.drills.evidence import DrillResult
from raylay.services.drills.loads.load import LoadClients
from raylay.services.drills.measure import FailoverTime, InjectedFault, Sample, rates, worst
from raylay.services.drills.reports.report_words import first_fault_us
from raylay.services.reports import Page, charts

STEP_US = 250_000


LINKS_MAX = 4


def _away(samples: Iterable[Sample]) -> Iterator[tuple[int, int, str]]:
    """Yields (from, until, tone) of the periods in which an instance was not ready, or a link was
    down or behind."""
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


def timeline(result: DrillResult) -> str:
    """Returns a chart of faults, instances, downgraded links and clients, a lane each."""
    origin_us = first_fault_us(result)

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
    for link in dict.fromkeys(
        (downgrade.instance, downgrade.destination) for downgrade in result.downgrades
    ):
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
        marks=[charts.MomentMark(at(fault.began_us), tone="bad") for fault in result.injected],
        bands=_bands(result, at),
        x_range=(at(result.began_us), ended),
    )


def _lasts(injected: InjectedFault) -> bool:
    return injected.ended_us - injected.began_us > 500_000


def _bands(result: DrillResult, at: Any) -> list[charts.Band]:
    return [
        charts.Band(at(fault.began_us), at(fault.ended_us), "", "bad")
        for fault in result.injected
        if _lasts(fault)
    ]


def moments(result: DrillResult) -> tuple[list[charts.MomentMark], list[charts.Band]]:
    """Returns the faults as marks and bands, in seconds from the first fault on."""
    origin_us = first_fault_us(result)

    def at(time_us: int) -> float:
        return (time_us - origin_us) / 1e6

    marks = [
        charts.MomentMark(at(fault.began_us), fault.fault.replace("_", " "))
        for fault in result.injected
    ]
    return marks, _bands(result, at)


def _client_rows(
    result: DrillResult, at: Any, ended: float
) -> Iterator[tuple[str, list[charts.Bar]]]:
    colors = {
        name: charts.PALETTE[number % len(charts.PALETTE)]
        for number, name in enumerate(n for names in result.groups.values() for n in names)
    }
    by_client: dict[str, list[FailoverTime]] = {}
    for failover in result.failovers:
        by_client.setdefault(failover.client, []).append(failover)
    for client, found in sorted(by_client.items()):
        bars = []
        for number, each in enumerate(found):
            after = found[number + 1 : number + 2]
            until = at(after[0].left_us) if after else ended
            start = max(at(each.back_us), at(result.began_us))
            color = colors.get(each.after, "")
            bars.append(charts.Bar(start, until, each.after, color=color))
        yield short_name(client), bars


def short_name(client: str) -> str:
    """Returns the name of a client without the drill's number."""
    return client.split("-", 2)[2] if client.startswith("drill-") else client


def add_rates(page: Page, result: DrillResult) -> None:
    """Adds charts of the rates of publishes and deliveries, the age of acks, and what links
    owed."""
    crowd = result.crowd
    if crowd is None:
        return
    began, ended, origin = result.began_us, result.ended_us, first_fault_us(result)
    xs = [
        (began + (number + 0.5) * STEP_US - origin) / 1e6
        for number in range(max(1, -(-(ended - began) // STEP_US)))
    ]

    def series(name: str, events: Iterable[tuple[int, int]]) -> charts.Series:
        return charts.Series(name, xs, rates(events, began, ended, STEP_US))

    def at(time_us: int) -> float:
        return (time_us - origin) / 1e6

    marks, bands = moments(result)
    if crowd.publishers:
        normal = [s for s in crowd.subscribers if not s.name.endswith("-slow")]
        shown = [
            series("published", (rate for p in crowd.publishers for rate in p.rates)),
            series(
                "acknowledged", ((a.time_us, a.messages) for p in crowd.publishers for a in p.acks)
            ),
            series("delivered, to all subscribers", (moment for s in normal for moment in s.times)),
        ]
        note = "The publishes follow the load's rate; the deliveries dip and then catch up."
    else:
        shown = [series(name, _counted(result, name)) for name in ("published", "delivered")]
        note = "From the counters of the instances."
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
    result: DrillResult,
    crowd: LoadClients,
    xs: Sequence[float],
    marks: list[charts.MomentMark],
    bands: list[charts.Band],
) -> None:
    began, ended, origin = result.began_us, result.ended_us, first_fault_us(result)
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
        "Time until the ack",
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


def _counted(result: DrillResult, counter: str) -> Iterator[tuple[int, int]]:
    """Yields (time, increase) of a counter of all instances. The counter of a restarted instance
    begins at 0."""
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
    result: DrillResult,
    at: Callable[[int], float],
    marks: list[charts.MomentMark],
    bands: list[charts.Band],
) -> None:
    """Adds the age of the oldest message that each sync link owes."""
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
            "Age of the oldest message that a sync link owes",
            charts.lines(
                series,
                x_label="seconds from the first fault",
                y_label="ms",
                marks=marks,
                bands=bands,
                x_range=(at(result.began_us), at(result.ended_us)),
            ),
            "The age of the oldest message that an instance waits for a persisted ack of, by "
            "link. At the age of the downgrade the instance acknowledges without that link."
            + (f" The {LINKS_MAX} that owed longest." if len(oldest) > LINKS_MAX else ""),
        )
