"""services/fabric/ask_all.py: many are asked at once, and one time holds for all answers."""

from __future__ import annotations

import threading
import time

import pytest

from raylay.services.fabric.ask_all import RepeatedAsk, answers, ask_all


def test_all_are_asked_at_once_and_told_in_order() -> None:
    all_asked = threading.Barrier(5, timeout=60)

    def ask(name: str) -> str:
        all_asked.wait()
        return name.upper()

    assert [*ask_all("edcba", ask, None).items()] == [(each, each.upper()) for each in "edcba"]
    assert ask_all([], ask, 0.0) == {}


def test_those_that_are_late_are_left_out_after_one_time_for_all() -> None:
    ended = threading.Event()

    def ask(name: str) -> str | None:
        if name != "here":
            ended.wait(60)
        return None

    began_s = time.monotonic()
    try:
        assert ask_all(["late", "here", "later", "latest"], ask, 1.0) == {"here": None}
        assert time.monotonic() - began_s < 30
    finally:
        ended.set()


def test_answers_come_as_they_are_given() -> None:
    second_came = threading.Event()

    def ask(name: str) -> str:
        if name == "first":
            assert second_came.wait(60)
        return name

    found = answers(["first", "second"], ask, None)
    assert next(found) == ("second", "second")
    second_came.set()
    assert [*found] == [("first", "first")]


def test_an_error_is_raised_where_the_answers_are_awaited() -> None:
    def ask(name: str) -> str:
        raise ValueError(f"{name} cannot be asked")

    with pytest.raises(ValueError, match="A cannot be asked"):
        ask_all(["A"], ask, 60.0)


def test_one_that_is_late_is_waited_for_once_and_its_answer_is_taken_later() -> None:
    ended = threading.Event()
    asked: list[str] = []

    def ask(name: str) -> int:
        asked.append(name)
        if name == "late" and not ended.is_set():
            assert ended.wait(60)
        return len(asked)

    asking = RepeatedAsk(ask, 0.2)
    assert [*asking.round(["late", "here"])] == ["here"]
    asking_at_length = RepeatedAsk(ask, 60.0)
    asking_at_length._pending, asking_at_length._late = asking._pending, asking._late
    assert [*asking_at_length.round(["late", "here"])] == ["here"], "the other is not waited for"
    assert asked.count("late") == 1, "it is not asked a second time"
    ended.set()
    asking_at_length._pending["late"].result(60)
    assert {*asking_at_length.round(["late"])} == {"late"}


def test_an_error_of_a_round_is_raised() -> None:
    def ask(name: str) -> int:
        raise ValueError(f"{name} cannot be asked")

    with pytest.raises(ValueError, match="A cannot be asked"):
        RepeatedAsk(ask, 60.0).round(["A"])
