"""services/server/children/liveness.py: who is asked, and who is given up."""

from __future__ import annotations

import pytest

from raylay.services.server.children.liveness import ASK_S, HUNG_S, LOOK_S_MAX, ChildLiveness

pytestmark = pytest.mark.covers("Filters by content", "a child process that hangs is asked")

EVERY_S = 0.5


def looks(answering: ChildLiveness, from_s: float, heard_s: float, seconds: float) -> list[str]:
    """What is found while it looks, twice a second, and nothing comes."""
    count = int(seconds / EVERY_S)
    return [answering.look(from_s + EVERY_S * (n + 1), heard_s) for n in range(count)]


def test_who_says_something_now_and_then_is_never_asked() -> None:
    answering = ChildLiveness()
    for at in range(100):
        assert answering.look(at, at - ASK_S / 2) == ""


def test_who_is_silent_is_asked_once_and_given_up_if_nothing_comes() -> None:
    answering = ChildLiveness()
    assert answering.look(100.0, 99.0) == ""
    found = looks(answering, 100.0, 99.0, HUNG_S + 1)
    assert found.index("ask") == ASK_S / EVERY_S - 1 and found.count("ask") == 1
    assert found.index("hung") == HUNG_S / EVERY_S - 1


def test_who_answers_is_asked_again_behind_the_next_silence() -> None:
    answering = ChildLiveness()
    now_s = 0.0
    for _ in range(5):
        heard_s = now_s = now_s + 1
        assert answering.look(now_s, heard_s) == ""
        found = looks(answering, now_s, heard_s, ASK_S + EVERY_S)
        assert found.count("ask") == 1 and "hung" not in found
        now_s += ASK_S + EVERY_S


def test_who_stood_still_himself_gives_nobody_up() -> None:
    """The instance was stopped for an hour: what came meanwhile lies unread."""
    answering = ChildLiveness()
    assert answering.look(1.0, 1.0) == ""
    assert answering.look(3_601.0, 1.0) == ""
    assert answering.silent_s == LOOK_S_MAX
    assert answering.look(3_601.5, 3_601.2) == ""
    assert answering.silent_s == 0
