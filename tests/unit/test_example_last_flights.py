"""examples/last_flights.py: what an airport publishes when, and how states are compared."""

from __future__ import annotations

import last_flights
import orjson


def flight(tail: str | None, number: int) -> bytes:
    return orjson.dumps({"tailnum": tail, "flight": number})


def test_each_part_has_the_last_flight_of_each_aircraft_since_the_one_before() -> None:
    latest = last_flights.Latest()
    latest.left([flight("N1", 1), flight("N2", 2), flight(None, 3), flight("N1", 4)])
    assert latest.due(0.1) == []
    assert latest.due(0.2) == [flight("N1", 4), flight("N2", 2)]
    latest.left([flight("N2", 5)])
    assert latest.due(0.3) == []
    assert latest.due(1.0) == [flight("N2", 5)]
    assert latest.due(1.0) == []


def test_a_state_that_differs_is_named_with_how_many_do() -> None:
    one = {b"a": (1, 1, b"x"), b"b": (1, 2, b"y")}
    assert last_flights._differences(one, dict(one)) == 0
    assert last_flights._differences(one, {b"a": (1, 1, b"x"), b"c": (1, 3, b"z")}) == 2
    assert last_flights.States(one, {}).valid and not last_flights.States({}, {}).valid
    states = last_flights.States(one, {"London-1": 1})
    assert states.line("state", "aircraft").endswith("2 aircraft: different at London-1: 1  WRONG")
