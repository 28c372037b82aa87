"""All subscriptions of a client by themselves: what is asked of each server, and its answers. With
connections: test_client_machine.py."""

from __future__ import annotations

from typing import Any

import pytest

from raylay.services.client.events import (
    Effect,
    PauseAnswered,
    PauseWanted,
    ResumeWanted,
    SendFrame,
    SubscriptionAccepted,
    SubscriptionFailed,
    SubscriptionUnwanted,
    SubscriptionWanted,
)
from raylay.services.client.resumption import Resumption
from raylay.services.client.resumptions import Resumptions
from raylay.services.errors import LocalProtocolError


class Bench:
    """Some that are wanted before there is a connection."""

    def __init__(self, *names: str, **options: Any) -> None:
        self.all = Resumptions()
        for name in names:
            self.all.wanted(SubscriptionWanted(Resumption(name, "t", bookmark="0", **options)), [])

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
        bench.all.wanted(SubscriptionWanted(Resumption("b", "t")), [])


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


def test_what_cannot_be_paused_or_resumed_changes_nothing() -> None:
    bench = Bench("a")
    bench.all.wanted(SubscriptionWanted(Resumption("plain", "t")), [])
    for wanted in (("a", "plain"), ("a", "gone")):
        with pytest.raises(LocalProtocolError):
            bench.all.pause_wanted(PauseWanted(1, wanted), [])
    with pytest.raises(LocalProtocolError, match="not paused"):
        bench.all.resume_wanted(ResumeWanted(1, ("a",)), [])
    assert not bench.all.by_id["a"].paused
