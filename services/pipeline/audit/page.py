"""The audit as a page of HTML. Needs the extra `reports`."""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterable, Mapping, Sequence
from itertools import pairwise
from typing import Any, Literal

from raylay.services.pipeline.audit.judgement import REASONS, Audit, Share
from raylay.services.pipeline.audit.parts import Timeline
from raylay.services.pipeline.audit.routes import REASON_TEXTS
from raylay.services.reports import Page
from raylay.services.reports.charts import Series, lines
from raylay.services.reports.page import Cell

ROWS_MAX = 300
RANGES_SHOWN = 3
Tone = Literal["good", "bad", "warn", ""]
LACKING_TEXTS = {
    "lost": "lost",
    "owed": "still owed by a link",
    "in_flight": "still in flight",
    "conflicting": "refused: the instance holds another content",
    "unavailable": "lost: no upstream has it any more",
    "removed": "its segment was removed",
}


def audit_page(found: Audit, title: str, when: dt.datetime, again: str = "") -> str:
    """Returns the page.

    Args:
        title: the audited fabric or journals.
        when: the time of the audit.
        again: the command that makes the report again.

    Raises:
        ConfigurationError: the extra `reports` is not installed.
    """
    page = Page(
        title,
        f"{when:%Y-%m-%d %H:%M:%S %Z}: every message of every journal was checked in "
        f"{found.seconds:.1f} s",
        f"Made again by: {again}" if again else "",
    )
    page.verdict(found.valid, _sentence(found))
    _figures(page, found)
    _matrix(page, found)
    _over_time(page, found.times)
    _instances(page, found)
    _missing(page, found)
    _by_publisher(
        page,
        "Out of order",
        found.out_of_order,
        "Behind a later message of the same publisher and topic, and not flagged late.",
    )
    _by_publisher(
        page, "Held more than once", found.duplicates, "Sequences of which a journal has copies."
    )
    _conflicts(page, found)
    _sow(page, found)
    _not_expected(page, found)
    _by_publisher(
        page,
        "Late",
        found.late,
        "Flagged late on arrival, because another path had brought later messages of the same "
        "publisher and topic before. They are kept and delivered: this is no fault.",
    )
    if found.damaged:
        page.table("Damaged and left out", ["what"], [[place] for place in found.damaged])
    if found.not_checked:
        page.table(
            "Not checked",
            ["what"],
            [[each] for each in found.not_checked],
            "Instances do not tell their clients. The audit of their journals checks it.",
        )
    return page.html()


def _sentence(found: Audit) -> str:
    instances = len(found.instances)
    if found.valid:
        held = "every message that it should hold"
        excused = sum(found.lacking(reason) for reason in REASONS)
        if excused:
            held = f"every message that it should hold, except {excused:,} that are explained below"
        owed = "".join(f" {owed_note}." for owed_note in found.owed_notes(overdue=False))
        once = "" if found.not_checked else "once, in order, "
        return (
            f"{found.published:,} messages of {_publishers(found)}: each of {instances} instances "
            f"holds {held}, {once}with the same content.{owed}"
        )
    return (
        f"{', '.join(found.faults())}, of {found.published:,} messages of "
        f"{_publishers(found)} at {instances} instances."
    )


def _publishers(found: Audit) -> str:
    return f"{found.publishers:,} publisher" + ("s" if found.publishers != 1 else "")


def _figures(page: Page, found: Audit) -> None:
    owed = found.owed().values()
    excused = sum(map(found.lacking, REASONS[2:]))
    tiles = [
        ("messages", found.published, f"{found.messages:,} copies"),
        ("lost", found.lost, f"and {excused:,} explained" if excused else ""),
        (
            "owed",
            sum(messages for messages, _ in owed),
            f"for up to {max(for_s for _, for_s in owed):,.0f} s" if owed else "",
        ),
        ("twice", found.count("duplicates"), ""),
        ("out of order", found.count("out_of_order"), ""),
        ("different contents", found.conflicts, ""),
        ("late", found.count("late"), "flagged on arrival; this is no fault"),
    ]
    if found.unknown_origin:
        tiles.append(("not judged", found.unknown_origin, "published at none of these instances"))
    page.figures(tiles)


# -- messages by instance --------------------------------------------------------------------------
def _matrix(page: Page, found: Audit) -> None:
    names = list(found.instances)
    several = len({message_type for _, message_type in found.matrix}) > 1
    rows = []
    for (topic, message_type), shares in sorted(found.matrix.items())[:ROWS_MAX]:
        shown = f"{topic} ({message_type})" if several else topic
        rows.append([shown, *(_cell(shares.get(name, Share())) for name in names)])
    note = (
        "Messages held, of those expected; or the reason why the configuration brings none there."
    )
    if len(found.matrix) > ROWS_MAX:
        note += f" The first {ROWS_MAX} of {len(found.matrix):,} topics."
    page.table("Who holds what", ["topic", *names], rows, note)


def _cell(share: Share) -> Cell:
    if not share.expected and share.not_expected:
        reason = max(share.not_expected, key=lambda each: share.not_expected[each])
        extra = f"{share.held:,}; not all: " if share.held else "none: "
        return Cell(extra + REASON_TEXTS.get(reason, reason))
    lacking = sum(share.lacking.values())
    tone: Tone = "bad" if share.lacking.get("lost") else "warn" if lacking else "good"
    if not lacking:
        return Cell(share.held, tone)
    worst = next(reason for reason in REASONS if reason in share.lacking)
    return Cell(
        f"{share.expected - lacking:,} of {share.expected:,} "
        f"({share.lacking[worst]:,} {LACKING_TEXTS[worst]})",
        tone,
    )


def rates_of(times: Mapping[str, Timeline]) -> tuple[list[int], dict[str, list[float]]]:
    """Returns times, in seconds since 1970, and for each instance the messages per second from each
    of these times to the next. A time in which nothing was journaled has a rate of zero, however
    long it is."""
    whole = Timeline()
    for moment in times.values():
        whole.update(moment)
    # A step is drawn on to the next point: behind the last one before an idle time stands a zero.
    steps = sorted({each for step in whole.counts for each in (step, step + 1)})
    found = {}
    for name, each in times.items():
        line = Timeline(whole.width_s)
        line.update(each)
        found[name] = [line.counts.get(step, 0) / whole.width_s for step in steps]
    return [step * whole.width_s for step in steps], found


def _over_time(page: Page, times: Mapping[str, Timeline]) -> None:
    seconds, rates = rates_of(times)
    if not seconds:
        return
    xs = [dt.datetime.fromtimestamp(second, dt.UTC) for second in seconds]
    width_s = min(b - a for a, b in pairwise(seconds))
    page.chart(
        "Journaled over time",
        lines(
            [Series(name, xs, each, "step") for name, each in rates.items()], y_label="messages/s"
        ),
        f"By time of receipt at each instance (UTC), in steps of {width_s:,} s.",
    )


def _instances(page: Page, found: Audit) -> None:
    lacking: dict[str, dict[str, int]] = {name: {} for name in found.instances}
    for each in found.missing:
        here = lacking[each["instance"]]
        here[each["reason"]] = here.get(each["reason"], 0) + each["messages"]
    page.table(
        "By instance",
        ["instance", "copies", "lost", "owed", "twice", "out of order", "late", "accounted for"],
        [
            [
                name,
                counts["messages"],
                _count(lacking[name].get("lost", 0), "bad"),
                _count(*_owed(found, name)),
                _count(counts["duplicates"], "bad"),
                _count(counts["out_of_order"], "bad"),
                _count(counts["late"], "warn"),
                _count(sum(lacking[name].get(reason, 0) for reason in REASONS[2:]), "warn"),
            ]
            for name, counts in found.instances.items()
        ],
    )


def _owed(found: Audit, instance: str) -> tuple[int, Tone]:
    messages, for_s = found.owed().get(instance, (0, 0.0))
    return messages, "bad" if for_s > found.max_owed_s else "warn"


def _count(count: int, tone: Tone) -> Cell:
    return Cell(count, tone if count else "")


# -- what differs --------------------------------------------------------------------------------
def _missing(page: Page, found: Audit) -> None:
    if found.missing:
        _table(
            page,
            "What differs",
            ["instance", "topic", "reason", "messages", "publisher|sequence|"],
            found.missing,
            lambda each: [
                each["instance"],
                each["topic"],
                _reason(each, found.max_owed_s),
                each["messages"],
                _bookmarks(each),
            ],
            "Messages that an instance should hold and lacks. `raylay journal grep` finds a "
            "bookmark at another instance.",
        )


def _reason(entry: Mapping[str, Any], max_owed_s: float) -> Cell:
    for_s = entry.get("for_s", 0.0)
    bad = entry["reason"] == "lost" or for_s > max_owed_s
    text = LACKING_TEXTS[entry["reason"]]
    return Cell(f"{text}, {for_s:,.0f} s" if for_s else text, "bad" if bad else "warn")


def _not_expected(page: Page, found: Audit) -> None:
    totals: dict[tuple[str, str, str], tuple[int, set[str]]] = {}
    for each in found.not_expected:
        key = each["instance"], each["topic"], each["reason"]
        count, origins = totals.get(key, (0, set()))
        totals[key] = count + each["messages"], origins | set(each["published_at"])
    if totals:
        _table(
            page,
            "Not expected by the configuration",
            ["instance", "topic", "reason", "messages", "published at"],
            list(totals.items()),
            lambda item: [
                item[0][0],
                item[0][1],
                REASON_TEXTS.get(item[0][2], item[0][2]),
                item[1][0],
                ", ".join(sorted(item[1][1])),
            ],
            "Messages that other instances hold and this one need not. `raylay fabric check` "
            "shows the routes.",
        )


def _by_publisher(page: Page, heading: str, entries: list[dict[str, Any]], note: str) -> None:
    if entries:
        _table(
            page,
            heading,
            ["instance", "topic", "messages", "publisher|sequence|"],
            entries,
            lambda each: [each["instance"], each["topic"], each["messages"], _bookmarks(each)],
            note,
        )


def _conflicts(page: Page, found: Audit) -> None:
    if found.conflicts_found:
        _table(
            page,
            "Different contents",
            ["publisher|sequence|", "messages"],
            found.conflicts_found,
            lambda each: [_bookmarks(each), each["messages"]],
            "Two contents under one identity: a publisher lost its store, or two publishers "
            "have the same name.",
        )


def _sow(page: Page, found: Audit) -> None:
    """Adds a table for each SOW topic with the records of its instances."""
    for each in found.sow:
        name = f"SOW topic {each['topic']} ({each['message_type']})"
        instances = [instance for instance in found.instances if instance in each["records"]]
        note = "Two publishers may have written a key at once." if each["differing"] else ""
        if each["in_flight"]:
            note += f" {each['in_flight']:,} more were on their way."
        for instance, why in each["not_compared"].items():
            note += f" {instance} was not compared: {why}."
        rows: list[Any] = [["records", *(each["records"][instance] for instance in instances)]]
        rows.append(["keys that differ", each["differing"], *[""] * (len(instances) - 1)])
        for key in each["keys"]:
            rows.append([key["key"], *(key["held"][one] or "nothing" for one in instances)])
        page.table(name, ["key", *instances], rows, note.strip())


def _table(
    page: Page, heading: str, columns: list[str], entries: list[Any], row: Any, note: str
) -> None:
    if len(entries) > ROWS_MAX:
        note += f" The first {ROWS_MAX} of {len(entries):,}; the JSON has all."
    page.table(heading, columns, map(row, entries[:ROWS_MAX]), note)


def _bookmarks(entry: Mapping[str, Any]) -> Cell:
    return Cell(
        ", ".join(_shown(entry["publisher"], entry["ranges"][:RANGES_SHOWN]))
        + (
            f" … {entry['ranges_in_all']:,} ranges" if entry["ranges_in_all"] > RANGES_SHOWN else ""
        ),
        code=True,
    )


def _shown(publisher: int, ranges: Iterable[Sequence[int]]) -> Iterable[str]:
    for first, last in ranges:
        yield f"{publisher}|{first}|" + (f" to {last}" if last > first else "")
