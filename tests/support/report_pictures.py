"""The pictures of reports in the pages, drawn by Chromium from the pages that the production code
writes of generated results, and what they show:

    make pictures      # writes docs/pictures/report-*.png and report.json, too

The file `report.json` has the headings and columns of each report, and
tests/unit/test_report_pictures.py compares these, never pixels.
"""

from __future__ import annotations

import datetime as dt
import json
import math
from collections.abc import Callable
from dataclasses import dataclass
from html.parser import HTMLParser
from pathlib import Path

from unit.pipeline.test_audit import NOW_US, Message, ReadLog, ago, judged, log_of

from raylay.services.drills.evidence import DrillResult
from raylay.services.drills.judgement import RunJudgement
from raylay.services.drills.loads.load import LoadClients
from raylay.services.drills.measure import (
    AckGroup,
    DowngradePeriod,
    FailoverTime,
    InjectedFault,
    LinkSample,
    RecoveryTimes,
    Sample,
)
from raylay.services.drills.reports import report
from raylay.services.drills.scenario import find
from raylay.services.drills.verdict import PlaceVerdict, Verdict
from raylay.services.fabric import Fabric
from raylay.services.pipeline.audit.page import audit_page
from raylay.services.pipeline.audit.parts import Timeline
from support.console_browser import Browser
from support.console_pictures import FOLDER, WIDTH, reduced

PARTS_FILE = FOLDER / "report.json"
REGIONS = ("NewYork", "London", "Tokyo")
INSTANCES = tuple(f"{region}-{number}" for region in REGIONS for number in (1, 2))
T0_US = 1_767_322_845_000_000
FAULT_US = T0_US + 6_000_000
ENDED_US = T0_US + 18_000_000
DEAD = "NewYork-1"
READY_MS = 2_860
"""Time from the fault until the killed instance serves again."""
STEP_MS = 50
PARTS = ("h1", "h2", "th")


# -- a drill -------------------------------------------------------------------------------------
def drill_page() -> str:
    """Returns the report of a drill that killed an instance: its publishers move to its peer, and a
    sync link to it is async until it is back."""
    scenario = find("kill-instance")
    fabric = Fabric("flights", topics=["flights"])
    for region in REGIONS:
        fabric.region(region, instances=2)
    crowd = LoadClients(fabric, scenario.load, "1", "flights")
    moved = [
        FailoverTime(
            each.name,
            kind,
            FAULT_US + 1_000,
            FAULT_US + gap_ms * 1000,
            DEAD,
            "NewYork-2",
            "reset",
            4,
        )
        for kind, gap_ms, each in (
            ("publisher", 34, crowd.publishers[0]),
            ("subscriber", 41, crowd.subscribers[0]),
        )
    ]
    first = [
        FailoverTime(each.name, kind, 0, T0_US, "", f"{each.group}-1", "", 0)
        for kind, some in (("publisher", crowd.publishers), ("subscriber", crowd.subscribers))
        for each in some
    ]
    persisted = 0
    for publisher in crowd.publishers:
        stood_ms = 620 if publisher.group == "NewYork" else 0
        for at_ms in range(STEP_MS, 17_000, STEP_MS):
            wave = 9 + round(2 * math.sin(at_ms / 700 + len(publisher.group)))
            publisher.rates.append((T0_US + at_ms * 1000, wave))
            persisted += wave
            after_ms = at_ms - 6_000
            late_ms = stood_ms - after_ms if 0 <= after_ms < stood_ms else 0
            age_ms = late_ms + 3.0 + 1.5 * math.sin(at_ms / 310 + len(publisher.group))
            time_us = T0_US + (at_ms + late_ms) * 1000
            publisher.acks.append(AckGroup(time_us, wave, age_ms, f"{publisher.group}-1"))
    for subscriber in crowd.subscribers:
        gone = 41 if subscriber.group == "NewYork" else 0
        for publisher in crowd.publishers:
            for time_us, messages in publisher.rates:
                wait_us = gone * 1000 if 0 <= time_us - FAULT_US < gone * 1000 else 0
                subscriber.times.append((time_us + wait_us, messages))
    places = [PlaceVerdict(f"journal {name}", persisted) for name in INSTANCES]
    places += [PlaceVerdict(f"subscriber {each.name}", persisted) for each in crowd.subscribers]
    result = DrillResult(
        "flights", "1", scenario, T0_US, T0_US + 17_000_000, ENDED_US, "flights",
        {region: [f"{region}-1", f"{region}-2"] for region in REGIONS},
        injected=[
            InjectedFault(1, "kill_instance", DEAD, f"SIGKILL of {DEAD}",
                          FAULT_US, FAULT_US + 900, (DEAD,), 7)
        ],
        recoveries=[
            RecoveryTimes(1, {"NewYork": 623.0, "London": 12.0, "Tokyo": 11.0},
                          {"NewYork": 96.0, "London": 14.0, "Tokyo": 15.0},
                          tuple(moved), float(READY_MS), 410.0)
        ],
        downgrades=[
            DowngradePeriod("NewYork-2", DEAD, FAULT_US + 60_000, FAULT_US + READY_MS * 1000)
        ],
        acked_at_risk=512,
        samples=samples(),
        events=[
            {"instance": "NewYork-2", "time_us": FAULT_US + 60_000, "event": "downgraded",
             "peer": DEAD, "number": 1},
            {"instance": "NewYork-2", "time_us": FAULT_US + READY_MS * 1000, "event": "upgraded",
             "peer": DEAD, "number": 2},
        ],
        failovers=[*first, *moved],
        crowd=crowd,
        judgement=RunJudgement(Verdict(places, persisted, persisted)),
    )  # fmt: skip
    return report.as_page(result, []).html()


def samples() -> list[Sample]:
    """Returns the samples of each instance: the killed one is away, then its peer's link to it
    catches up."""
    found = []
    for at_ms in range(0, 18_000, 200):
        since_ms = at_ms - 6_000
        for name in INSTANCES:
            region, number = name.split("-")
            other = f"{region}-{3 - int(number)}"
            is_away = name == DEAD and 0 <= since_ms < READY_MS
            is_behind = other == DEAD and 0 <= since_ms < READY_MS + 410
            age_ms = float(max(0, since_ms)) if is_behind else 3.0
            link = LinkSample(not is_behind, True, not is_behind, not is_behind, True, 0, age_ms)
            links = {} if is_away else {other: link}
            found.append(Sample(T0_US + at_ms * 1000, name, 1, not is_away, "", links, at_ms))
    return found


# -- an audit ------------------------------------------------------------------------------------
def published(publisher: int, topic: str) -> list[Message]:
    """Returns two messages a second for five minutes, up to the time of the audit."""
    return [
        Message(publisher, topic, number, number, time_us=ago(300 - number / 2))
        for number in range(1, 601)
    ]


def copies(sent: list[Message], origin: str, lag_ms: int) -> list[Message]:
    """Returns the messages as another instance has them."""
    return [each._replace(origin=origin, time_us=each.time_us + lag_ms * 1000) for each in sent]


def audit_of() -> str:
    """Returns the page of an audit: a stretch of one publisher is lost at London-2, and a link owes
    Tokyo-2 the last half a minute."""
    origins = {f"{number:016x}": f"{region}-1" for number, region in enumerate(REGIONS, 1)}
    by_origin = {
        origin: published(number, "flights" if number < 3 else "gates")
        for number, origin in enumerate(origins, 1)
    }
    logs: list[ReadLog] = []
    for place, name in enumerate(INSTANCES):
        held: list[Message] = []
        for origin, own in origins.items():
            sent = by_origin[origin]
            if own == name:
                held += sent
                continue
            is_near = own.partition("-")[0] == name.partition("-")[0]
            got = copies(sent, origin, 1 if is_near else 40 + 30 * place)
            if name == "London-2" and own == "NewYork-1":
                got = [each for each in got if not 212 <= each.sequence <= 223]
            if name == "Tokyo-2" and own == "London-1":
                got = [each for each in got if each.sequence <= 540]
            held += got
        logs.append(log_of(name, sorted(held, key=lambda each: each.time_us)))
    found = judged(*logs, **origins)
    found.seconds = 1.4
    when = dt.datetime(2026, 1, 2, 3, 4, 5, tzinfo=dt.UTC)
    shift_s = int(when.timestamp()) - NOW_US // 1_000_000
    found.times = {
        name: Timeline(1, {second + shift_s: count for second, count in line.counts.items()})
        for name, line in found.times.items()
    }
    again = "raylay pipeline audit data/flights --report audit.html"
    return audit_page(found, "Audit of data/flights", when, again)


# -- the pictures --------------------------------------------------------------------------------
@dataclass(frozen=True)
class ReportPicture:
    """A picture of the beginning of a report.

    Attributes:
        page: returns the report as HTML.
        shown_in: the page of the documentation that shows it.
        height: pixels from the top of the report.
    """

    name: str
    page: Callable[[], str]
    shown_in: str
    height: int

    @property
    def file(self) -> Path:
        return FOLDER / f"report-{self.name}.png"


PICTURES = (
    ReportPicture("drill", drill_page, "drills.md", 1430),
    ReportPicture("audit", audit_of, "pipeline.md", 1720),
)


class PartReader(HTMLParser):
    """Collects the texts of the headings and columns of a page."""

    def __init__(self) -> None:
        super().__init__()
        self.parts: list[str] = []
        self._open = ""

    def handle_starttag(self, tag: str, attrs: object) -> None:
        if tag in PARTS:
            self._open = tag
            self.parts.append(f"{tag} ")

    def handle_endtag(self, tag: str) -> None:
        if tag == self._open:
            self._open = ""

    def handle_data(self, data: str) -> None:
        if self._open:
            self.parts[-1] += data.strip()


def parts(page: str) -> list[str]:
    """Returns the headings and columns of a page, in their order."""
    reader = PartReader()
    reader.feed(page)
    return reader.parts


def main() -> None:
    """Draws all."""
    browser = Browser()
    try:
        for picture in PICTURES:
            png = browser.drawn(picture.page(), WIDTH, picture.height)
            picture.file.write_bytes(reduced(png))
            print(f"{picture.file.name}: {picture.file.stat().st_size:,} bytes")
    finally:
        browser.close()
    found = {picture.name: parts(picture.page()) for picture in PICTURES}
    text = json.dumps(found, indent=1, ensure_ascii=False)
    PARTS_FILE.write_text(f"{text}\n", encoding="utf-8")


if __name__ == "__main__":
    main()
