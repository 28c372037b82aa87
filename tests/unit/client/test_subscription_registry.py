"""All subscriptions of a client by themselves: what is asked of each server, and its answers. With
connections: test_machine.py."""

from __future__ import annotations

from typing import Any

import pytest

from raylay.services.client.events import (
    Effect,
    PauseAnswered,
    PauseWanted,
    ReplaceAnswered,
    ReplaceWanted,
    ResumeWanted,
    SendFrame,
    SubscriptionAccepted,
    SubscriptionCompleted,
    SubscriptionFailed,
    SubscriptionUnwanted,
    SubscriptionWanted,
)
from raylay.services.client.subscriptions.queries import PendingQuery, QuerySubscription
from raylay.services.client.subscriptions.subscription_registry import SubscriptionRegistry
from raylay.services.client.subscriptions.subscription_state import SubscriptionState
from raylay.services.errors import CommandFailed, LocalProtocolError


class Bench:
    """Some that are wanted before there is a connection."""

    def __init__(self, *names: str, **options: Any) -> None:
        self.all = SubscriptionRegistry()
        for name in names:
            self.all.wanted(
                SubscriptionWanted(SubscriptionState(name, "t", bookmark="0", **options)), []
            )

    def begin(self) -> list[dict[str, Any]]:
        """A server took the client. What it is asked."""
        effects: list[Effect] = []
        self.all.begin(effects)
        return frames(effects)

    def answer(self, **header: Any) -> tuple[bool, list[Effect]]:
        effects: list[Effect] = []
        return self.all.answered({"c": "ack", "a": "processed", **header}, b"", effects), effects


def frames(effects: list[Effect]) -> list[dict[str, Any]]:
    return [effect.header for effect in effects if isinstance(effect, SendFrame)]


def test_each_server_is_asked_for_all_of_them() -> None:
    bench = Bench("a", "b")
    assert [frame["sub"] for frame in bench.begin()] == ["a", "b"]
    bench.all.lose([])
    effects: list[Effect] = []
    bench.all.unwanted(SubscriptionUnwanted("a"), effects)
    assert not effects, "nobody is there to be told"
    assert [frame["sub"] for frame in bench.begin()] == ["b"]
    with pytest.raises(LocalProtocolError, match="in use"):
        bench.all.wanted(SubscriptionWanted(SubscriptionState("b", "t")), [])


def test_an_answer_belongs_to_the_command_of_this_connection() -> None:
    bench = Bench("a")
    (first,) = bench.begin()
    assert bench.answer(cid=first["cid"])[1] == [SubscriptionAccepted("a", None)]
    bench.all.lose([])
    (second,) = bench.begin()
    assert second["cid"] != first["cid"]
    assert bench.answer(cid=first["cid"]) == (False, []), "of a connection that is gone"
    assert bench.answer(cid="-", status="failure") == (False, [])
    mine, effects = bench.answer(sub="a", status="failure", reason="bad_topic", text="no")
    (failed,) = (each for each in effects if isinstance(each, SubscriptionFailed))
    assert mine and failed.subscription_id == "a" and str(failed.error) == "no"
    assert not bench.all.by_id


def test_a_pause_that_was_asked_is_answered_when_the_connection_ends_and_holds() -> None:
    bench = Bench("a")
    (asked,) = bench.begin()
    bench.answer(cid=asked["cid"])
    effects: list[Effect] = []
    bench.all.pause_wanted(PauseWanted(5, ("a",)), effects)
    (pause,) = frames(effects)
    assert pause["o"] == {"pause": True} and pause["sub"] == ["a"]
    lost: list[Effect] = []
    bench.all.lose(lost)
    assert lost == [PauseAnswered(5)]
    bench.all.lose(lost)
    assert len(lost) == 1, "once"
    (again,) = bench.begin()
    assert again["o"]["pause"] is True


def test_those_resumed_together_go_on_together_elsewhere_when_all_are_accepted() -> None:
    bench = Bench("a", "b", paused=True)
    for frame in bench.begin():
        bench.answer(cid=frame["cid"])
    bench.all.resume_wanted(ResumeWanted(1, ("a", "b")), [])
    bench.all.lose([])
    one, other = bench.begin()
    assert one["o"]["pause"] and other["o"]["pause"]
    assert not frames(bench.answer(cid=one["cid"])[1])
    (resume,) = frames(bench.answer(cid=other["cid"])[1])
    assert resume["o"] == {"resume": True} and resume["sub"] == ["a", "b"]


def test_one_that_is_paused_leaves_those_it_was_resumed_with() -> None:
    bench = Bench("a", "b", paused=True)
    for frame in bench.begin():
        bench.answer(cid=frame["cid"])
    bench.all.resume_wanted(ResumeWanted(1, ("a", "b")), [])
    bench.all.pause_wanted(PauseWanted(2, ("a",)), [])
    bench.all.lose([])
    one, other = bench.begin()
    resumed = [
        name
        for frame in (other, one)
        for asked in frames(bench.answer(cid=frame["cid"])[1])
        for name in asked["sub"]
    ]
    assert resumed == ["b"], "nobody wants the other one to go on"


def test_what_cannot_be_paused_or_resumed_changes_nothing() -> None:
    bench = Bench("a")
    bench.all.wanted(SubscriptionWanted(SubscriptionState("plain", "t")), [])
    for wanted in (("a", "plain"), ("a", "gone")):
        with pytest.raises(LocalProtocolError):
            bench.all.pause_wanted(PauseWanted(1, wanted), [])
    with pytest.raises(LocalProtocolError, match="not paused"):
        bench.all.resume_wanted(ResumeWanted(1, ("a",)), [])
    assert not bench.all.by_id["a"].paused


def focused() -> tuple[Bench, dict[str, Any]]:
    """A sow_and_subscribe that was asked for, and its command."""
    bench = Bench()
    asked = QuerySubscription("f", "t", "json", {"filter": "/a = 1", "keys": [b"k"], "oof": True})
    bench.all.wanted(SubscriptionWanted(asked), [])
    (frame,) = bench.begin()
    return bench, frame


def replace(bench: Bench, number: int, name: str = "f", **focus: Any) -> list[Effect]:
    effects: list[Effect] = []
    bench.all.replace_wanted(ReplaceWanted(number, name, focus), effects)
    return effects


def complete(bench: Bench) -> list[Effect]:
    """The group ends."""
    return bench.answer(sub="f", a="completed")[1]


@pytest.mark.covers("SOW", "`replace`: what comes into focus is sent")
def test_another_filter_is_asked_for_behind_the_group_and_holds_at_the_next_server() -> None:
    bench, frame = focused()
    assert replace(bench, 1, filter="/a = 2") == []
    assert frames(bench.answer(cid=frame["cid"])[1]) == [], "the rows still come"
    (asked,) = frames(complete(bench))
    assert (asked["c"], asked["sub"], asked["t"], asked["mt"]) == (frame["c"], "f", "t", "json")
    assert asked["o"] == {"filter": "/a = 2", "oof": True, "replace": True} and asked["a"]
    assert replace(bench, 2, keys=[]) == [], "one after the other"
    assert bench.answer(cid=asked["cid"], sub="f")[1] == [ReplaceAnswered(1, "f")]
    done, second = complete(bench)
    assert done == SubscriptionCompleted("f", False)
    assert isinstance(second, SendFrame) and second.header["o"]["keys"] == []
    bench.all.lose([])
    (again,) = bench.begin()
    assert again["o"] == {"filter": "/a = 2", "oof": True}, "what was taken"
    bench.answer(cid=again["cid"])
    (second_again,) = frames(complete(bench))
    assert second_again["o"] == {"keys": [], "oof": True, "replace": True}, "what was not answered"
    assert bench.answer(cid=second_again["cid"])[1] == [ReplaceAnswered(2, "f")]


def test_a_filter_that_is_refused_changes_nothing() -> None:
    bench, frame = focused()
    bench.answer(cid=frame["cid"])
    complete(bench)
    (asked,) = frames(replace(bench, 1, filter="/a ="))
    header = {"cid": asked["cid"], "sub": "f", "status": "failure", "reason": "bad_filter"}
    (answered,) = bench.answer(**header)[1]
    assert isinstance(answered, ReplaceAnswered) and isinstance(answered.error, CommandFailed)
    assert (answered.error.command, answered.error.reason) == ("sow_and_subscribe", "bad_filter")
    assert bench.all.by_id["f"].options == {"filter": "/a = 1", "keys": [b"k"], "oof": True}
    assert frames(replace(bench, 2)), "and the next one is asked at once"


def test_an_ordinary_one_takes_another_filter_when_it_is_accepted() -> None:
    bench = Bench()
    bench.all.wanted(SubscriptionWanted(SubscriptionState("s", "t")), [])
    assert replace(bench, 1, "s", filter="/a = 2") == []
    (frame,) = bench.begin()
    (asked,) = frames(bench.answer(cid=frame["cid"])[1])
    assert (asked["c"], asked["o"]) == ("subscribe", {"filter": "/a = 2", "replace": True})
    bench.answer(cid=asked["cid"])
    bench.all.lose([])
    assert bench.begin()[0]["o"] == {"filter": "/a = 2"}


def test_what_can_be_given_no_other_filter_is_said_and_stays_as_it_was() -> None:
    bench = Bench("bookmark")
    bench.all.wanted(SubscriptionWanted(PendingQuery("query", "t", "", {})), [])
    bench.all.wanted(SubscriptionWanted(SubscriptionState("large", "t")), [])
    for name, focus, said in (
        ("bookmark", {}, "it has a bookmark"),
        ("query", {}, "ask a new one"),
        ("gone", {}, "has ended"),
        ("large", {"filter": "x" * 70_000}, "a shorter filter"),
    ):
        with pytest.raises(LocalProtocolError, match=said):
            replace(bench, 1, name, **focus)
        assert [frame.get("o") for frame in bench.begin()] == [None] * 3


def test_a_filter_that_waits_is_answered_when_its_subscription_ends() -> None:
    for end in ("unwanted", "refused"):
        bench, frame = focused()
        bench.answer(cid=frame["cid"])
        complete(bench)
        (asked,) = frames(replace(bench, 1, filter="/a = 2"))
        effects: list[Effect] = []
        if end == "unwanted":
            bench.all.unwanted(SubscriptionUnwanted("f"), effects)
        else:
            effects = bench.answer(sub="f", a="completed", status="failure", reason="x")[1]
        (answered,) = (each for each in effects if isinstance(each, ReplaceAnswered))
        assert answered.number == 1 and "has ended" in str(answered.error)
        # One of the same name, later, is not given the answer of the one before.
        new = QuerySubscription("f", "t", "", {"filter": "/b = 1"})
        bench.all.wanted(SubscriptionWanted(new), [])
        assert bench.answer(cid=asked["cid"], sub="f") == (True, [])
        assert new.options == {"filter": "/b = 1"} and not new.active
