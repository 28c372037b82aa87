"""services/admin/fabric_events.py: sentences, levels, and the book of all instances' events."""

from __future__ import annotations

from typing import Any

import pytest

from raylay.services.admin import fabric_events
from raylay.services.admin.fabric_events import (
    MISSED,
    FabricEvent,
    FabricEventBook,
    read_event,
    sentence,
)


def event(number: int, instance: str = "a", **more: Any) -> FabricEvent:
    return read_event(instance, {"number": number, "time_us": number, "event": "late", **more})


@pytest.mark.parametrize(
    ("name", "details", "text"),
    [
        ("downgraded", {"destination": "London", "why": "too old"}, "downgraded London: too old"),
        ("storage_failed", {"text": "no space left"}, "storage failed: no space left"),
        ("control", {"user": "anna", "path": "/amps/x"}, "control /amps/x by anna"),
        ("clock_set", {"by_s": -1.5}, "clock set: back by 1.5 s"),
        ("clock_set", {"by_s": 90}, "clock set: forward by 90 s"),
        ("ready", {}, "ready"),
    ],
)
def test_an_event_is_a_sentence(name: str, details: dict[str, Any], text: str) -> None:
    assert sentence(name, details) == text


def test_an_event_has_a_level_and_bounded_details() -> None:
    raw = {"number": 3, "time_us": 5, "event": "conflict", "ranges": [[1, 2]], "huge": 2**70}
    found = read_event("a", {**raw, "text": "x" * 5_000, "ok": True, "none": None, "n": 7})
    assert (found.level, found.number, found.time_us) == ("act", 3, 5)
    assert found.details["ranges"] == "[[1, 2]]" and found.details["huge"] == str(2**70)
    assert (found.details["ok"], found.details["none"], found.details["n"]) == (True, None, 7)
    assert len(str(found.details["text"])) == 1_000
    assert read_event("a", {"number": 1, "time_us": 1, "event": "new_thing"}).level == "info"
    many = {f"key{at}": at for at in range(100)}
    found = read_event("a", {"number": 1, "time_us": 1, "event": "x", **many})
    assert len(found.details) <= fabric_events.DETAILS_MAX


def test_events_are_learnt_once_and_in_order() -> None:
    book = FabricEventBook()
    book.learn("a", "7", 2, [event(1), event(2)])
    book.learn("a", "7", 3, [event(3), event(2)])
    book.learn("b", "8", 1, [event(1, "b")])
    assert [(at, each.instance, each.number) for at, each in book.after(0)] == [
        (1, "a", 1),
        (2, "a", 2),
        (3, "a", 3),
        (4, "b", 1),
    ]
    assert [each.number for _, each in book.after(2)] == [3, 1]


@pytest.mark.parametrize("events", [[event(9)], []])
def test_a_gap_is_told(events: list[FabricEvent]) -> None:
    book = FabricEventBook()
    book.learn("a", "7", 2, [event(1), event(2)])
    book.learn("a", "7", 9, events)
    missed = [each for _, each in book.after(2) if each.event == MISSED]
    assert [each.details["missed"] for each in missed] == [6 if events else 7]
    assert missed[0].level == "attention"


def test_what_was_before_the_first_look_is_no_gap() -> None:
    book = FabricEventBook()
    book.learn("a", "7", 100, [event(99), event(100)])
    assert [each.number for _, each in book.after(0)] == [99, 100]


def test_numbers_begin_anew_with_a_process() -> None:
    book = FabricEventBook()
    book.learn("a", "7", 100, [event(100)])
    book.learn("a", "8", 2, [event(1), event(2)])
    assert [each.number for _, each in book.after(0)] == [100, 1, 2]


def test_a_number_above_the_newest_is_not_believed() -> None:
    book = FabricEventBook()
    book.learn("a", "7", 2, [event(1), event(2), event(1_000)])
    assert [each.number for _, each in book.after(0)] == [1, 2]


def test_the_book_is_bounded_and_tells_what_it_lost(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fabric_events, "BOOK_EVENTS_MAX", 3)
    book = FabricEventBook()
    book.learn("a", "7", 5, [event(number) for number in range(1, 6)])
    assert [at for at, _ in book.after(0)] == [3, 4, 5]
    assert (book.missed_before(0), book.missed_before(2), book.missed_before(5)) == (2, 0, 0)


def test_the_newest_events_up_to_a_time_are_found() -> None:
    book = FabricEventBook()
    book.learn("a", "7", 5, [event(number) for number in range(1, 6)])
    book.learn("b", "7", 1, [event(1, "b")])
    assert [each.number for each in book.latest("a", 4, 2)] == [4, 3]
    assert book.latest("nowhere", 4, 2) == []


def test_events_that_tell_something_go_before_others() -> None:
    book = FabricEventBook()
    told = [
        event(1, event="link_connected", destination="L"),
        event(2, event="link_connected", destination="M"),
        event(3, event="client_connected", client="c"),
        event(4, event="downgraded", destination="M"),
    ]
    book.learn("a", "7", 4, told)
    assert [each.number for each in book.latest("a", 9, 3, "L")] == [4, 1]
    assert [each.number for each in book.latest("a", 9, 3)] == [4]
    assert [each.number for each in book.latest("a", 3, 3)] == [3, 2, 1]
