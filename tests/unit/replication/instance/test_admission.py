"""Who is let in, decided apart from the rest of the machine. Links that log on are in
test_admission.py, moved instances in test_placement_machine.py."""

from __future__ import annotations

from typing import Any

import pytest

from raylay.services.errors import AdmissionRefused
from raylay.services.messages.ranges import PublisherRanges, SequenceSet
from raylay.services.replication.acknowledgment import DestinationLedger
from raylay.services.replication.effects import (
    BecameReady,
    EventReport,
    InstanceRetirement,
    PlacementsChanged,
)
from raylay.services.replication.instance.admission import InstanceAdmission
from raylay.services.replication.instance.effect_list import EffectList
from raylay.services.replication.link.routing import DestinationRoute
from raylay.services.replication.membership.placement import InstancePlacement, Placements
from raylay.services.replication.values import Identity

P = 7


class Bench:
    """An instance `own` of group `g` with a destination in its group and one in another."""

    def __init__(self, *, ready: bool = False) -> None:
        self.out = EffectList()
        peer = DestinationRoute("peer", "g", True, pass_through=".*", addresses=("peer",))
        far = DestinationRoute("far", "f", True, pass_through=".*", addresses=("far",))
        self.peer, self.far = DestinationLedger(peer), DestinationLedger(far)
        ledgers = {"peer": self.peer, "far": self.far}
        identity = Identity("own", "g", 0xA, 1)
        self.admission = InstanceAdmission(identity, Placements(), ledgers, self.out, ready=ready)

    def peer_held(self, last: int) -> None:
        self.peer.connected = True
        self.peer.at_connect = PublisherRanges({P: SequenceSet([(1, last)])})

    def refused(self, **named: Any) -> tuple[str, str] | None:
        words: dict[str, Any] = {"incarnation": 0xB, "epoch": 2, "connected_as": None}
        words |= named
        return self.admission.refuse_upstream(
            "up", "g", words.pop("incarnation"), "to-own", words.pop("epoch"), 1, **words
        )


def held(last: int) -> PublisherRanges:
    return PublisherRanges({P: SequenceSet([(1, last)])})


def test_clients_are_told_once_that_they_are_let_in() -> None:
    bench = Bench()
    bench.admission.become_ready()
    bench.admission.become_ready()
    assert bench.admission.ready and bench.out.take() == [BecameReady()]


@pytest.mark.parametrize(
    ("peer_held", "here", "senders", "risk"),
    [
        (None, 3, (), "peer of group g is not connected"),
        (4, 3, (), "peer holds 1 messages that are not here"),
        (3, 3, ("peer", "stranger"), "stranger of group g replicates to it"),
        (3, 3, ("peer",), ""),
    ],
)
def test_by_hand_it_is_said_what_may_be_missing(
    peer_held: int | None, here: int, senders: tuple[str, ...], risk: str
) -> None:
    bench = Bench()
    bench.peer.servers.add("peer")
    if peer_held is not None:
        bench.peer_held(peer_held)
    assert bench.admission.risk(senders, held(here))[: len(risk) or None] == risk
    if risk:
        with pytest.raises(AdmissionRefused, match="own may lack acknowledged messages"):
            bench.admission.admit(senders, held(here), force=False)
        assert not bench.admission.ready and bench.out.take() == []
    bench.admission.admit(senders, held(here), force=True)
    report, ready = bench.out.take()
    assert isinstance(report, EventReport) and report.details["forced"] is bool(risk)
    assert ready == BecameReady()


@pytest.mark.parametrize(
    ("named", "reason"),
    [
        ({}, None),
        ({"epoch": 1}, "stale_epoch"),
        ({"incarnation": 0xA}, "self"),
        ({"connected_as": "to-own"}, None),
        ({"connected_as": "elsewhere"}, "already_connected"),
        ({"salvages": True}, "not_retired"),
    ],
)
def test_an_upstream_is_refused_with_a_reason(named: dict[str, Any], reason: str | None) -> None:
    refused = Bench().refused(**named)
    assert (refused[0] if refused else None) == reason


def test_an_incarnation_that_is_over_lets_nobody_in() -> None:
    bench = Bench()
    news = bench.admission.learn({"own": InstancePlacement(2, "there:1", "there:2")})
    report, changed = bench.out.take()
    assert isinstance(report, EventReport) and changed == PlacementsChanged(news)
    text = bench.admission.moved_by(news)
    assert "own" in text
    bench.admission.retire(text)
    assert bench.out.take()[-1] == InstanceRetirement(text)
    assert bench.refused() == ("moved", text)
    assert bench.admission.learn({"up": InstancePlacement(3, "up:1", "up:2")}) == {}
    assert bench.out.take() == []


def test_news_of_others_end_nothing_here() -> None:
    bench = Bench()
    news = bench.admission.learn({"up": InstancePlacement(1, "up:1", "up:2")})
    assert news and bench.admission.moved_by(news) == ""
    refused = bench.refused()
    assert refused is not None and refused[0] == "retired"
    bench.admission.go_back("an old copy")
    assert bench.refused() == ("not_ready", "an old copy")
