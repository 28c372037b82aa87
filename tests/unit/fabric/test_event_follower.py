"""services/fabric/event_follower.py: the events of all instances as one stream."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from raylay.services.fabric import event_follower
from raylay.services.fabric.event_follower import EventAnswer, EventCursors, follow_events


def event(number: int, time_us: int) -> dict[str, Any]:
    return {"number": number, "time_us": time_us, "event": "e"}


def test_a_look_that_found_something_is_repeated_at_once_and_in_the_order_of_time() -> None:
    looks: Iterator[list[EventAnswer]] = iter(
        [
            [EventAnswer("a", "1", [event(1, 30), event(2, 50)]), EventAnswer("b", "1", [])],
            [EventAnswer("b", "1", [event(1, 40), event(2, 45)])],
            [],
        ]
    )
    found = follow_events(lambda _: next(looks), follow=False, after_us=30, stop=None)
    assert [(each["instance"], each["time_us"]) for each in found] == [
        ("a", 50),
        ("b", 40),
        ("b", 45),
    ]


def test_a_cursor_is_that_of_one_process() -> None:
    cursors = EventCursors()
    assert cursors.last("a") == ("", 0) and cursors.number_for("a", "1") == 0
    cursors.take(EventAnswer("a", "1", [event(7, 1)]))
    cursors.take(EventAnswer("a", "2", []))
    assert cursors.last("a") == ("1", 7)
    assert cursors.number_for("a", "1") == 7 and cursors.number_for("a", "2") == 0
    cursors.take(EventAnswer("a", "2", [event(1, 1)]))
    assert cursors.number_for("a", "2") == 1 and cursors.number_for("a", "1") == 0


def test_following_ends_when_it_is_stopped_and_asks_again_until_then(
    monkeypatch: Any,
) -> None:
    waits: list[float] = []
    monkeypatch.setattr(event_follower.time, "sleep", waits.append)
    stops = iter((False, False, True))
    looks = iter([[], [], [EventAnswer("a", "1", [event(1, 1)])], []])
    found = list(
        follow_events(lambda _: next(looks), follow=True, after_us=0, stop=lambda: next(stops))
    )
    assert len(found) == 1 and waits == [event_follower.FOLLOW_S] * 2
