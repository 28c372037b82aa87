"""The instance's machine and moved instances; whole fabrics of them are in tests/sim."""

from __future__ import annotations

from typing import Any

import pytest
from unit.replication.instance.test_machine import Bench, destination

from raylay.services.messages.records import RecordBuilder, publisher_id, run_of, scan
from raylay.services.replication.effects import (
    CloseSession,
    CloseUpstream,
    EventReport,
    InstanceRetirement,
    PlacementsChanged,
)
from raylay.services.replication.journal_lookup import LookupResult
from raylay.services.replication.membership.placement import InstancePlacement, Placements

pytestmark = pytest.mark.covers("Moved instances", "a retired incarnation is refused")

OLD, NEW = 0xC, 0xD
MOVED = {"up": InstancePlacement(1, "new:1", "new:2")}


def refusal(bench: Bench, **named: Any) -> tuple[str, str] | None:
    return bench.machine.refuse_upstream("up", "g", OLD, "to-own", 2, 1, **named)


def connect(bench: Bench, connection: int = 1, **named: Any) -> None:
    bench.take(
        bench.machine.upstream_logged_on(connection, "up", "g", OLD, "to-own", 2, **named)[0]
    )


def test_a_retired_incarnation_is_refused_and_told_what_to_do() -> None:
    bench = Bench(destination())
    assert refusal(bench) is None
    (told, changed) = bench.take(bench.machine.placed(MOVED))
    assert isinstance(told, EventReport) and told.event == "instance_moved"
    assert changed == PlacementsChanged(MOVED)
    refused = refusal(bench)
    assert refused is not None and refused[0] == "retired"
    assert "lives at new:1 as generation 1" in refused[1] and "salvage" in refused[1]
    assert refusal(bench, generation=1) is None
    assert bench.machine.refuse_downstream("up", "up", OLD, 1) == ""
    assert bench.machine.refuse_downstream("up", "up", OLD, 0).startswith("retired: up was moved")
    assert bench.machine.refuse_downstream("up", "other", 7, 0) == ""


def test_one_that_followed_its_host_goes_on_as_what_it_was() -> None:
    bench = Bench(destination())
    connect(bench)
    news = {"up": InstancePlacement(0, "new:1", "new:2", 7)}
    (told, changed) = bench.take(bench.machine.placed(news))
    assert isinstance(told, EventReport) and told.event == "instance_readdressed"
    assert changed == PlacementsChanged(news)
    assert [incarnation for _, _, incarnation in bench.machine.upstreams()] == [OLD]
    assert refusal(bench, salvages=True) is not None, "nothing of it is retired"
    assert bench.machine.refuse_downstream("up", "up", OLD, 0) == ""


def test_what_is_known_of_an_earlier_life_counts() -> None:
    bench = Bench(destination(), placements=Placements(MOVED))
    assert refusal(bench) is not None
    assert bench.take(bench.machine.placed(MOVED)) == [], "it is no news"


def test_a_connected_one_is_closed_when_it_is_retired_and_its_successor_is_not() -> None:
    bench = Bench(destination())
    connect(bench, 1)
    bench.take(bench.machine.upstream_logged_on(2, "up", "g", NEW, "to-own", 1, generation=1)[0])
    effects = bench.take(bench.machine.placed(MOVED))
    closed = [effect for effect in effects if isinstance(effect, CloseUpstream)]
    assert [(effect.connection, effect.reason) for effect in closed] == [(1, "retired")]
    assert [incarnation for _, _, incarnation in bench.machine.upstreams()] == [NEW]


def test_who_hears_that_it_was_moved_ends_its_sessions_and_takes_nothing_more() -> None:
    bench = Bench(destination())
    bench.log_on()
    connect(bench)
    effects = bench.take(bench.machine.placed({"own": InstancePlacement(2, "new:1", "new:2")}))
    assert [type(effect) for effect in effects if not isinstance(effect, EventReport)] == [
        PlacementsChanged,
        CloseSession,
        CloseUpstream,
        InstanceRetirement,
    ]
    assert {e.reason for e in effects if isinstance(e, CloseSession)} == {"retired"}
    assert bench.machine.sessions() == 0 and bench.machine.upstreams() == []
    refused = bench.machine.refuse_upstream("other", "g", 5, "to-own", 2, 1, generation=9)
    assert refused is not None and refused[0] == "moved"
    assert bench.take(bench.machine.placed(MOVED)) == [], "whatever it hears: it is over"


def test_its_own_placement_retires_nobody() -> None:
    bench = Bench(destination(), generation=2)
    bench.take(bench.machine.placed({"own": InstancePlacement(2, "here:1", "here:2")}))
    assert not bench.machine.retired


def test_only_what_is_retired_is_salvaged() -> None:
    bench = Bench(destination())
    refused = refusal(bench, salvages=True)
    assert refused is not None and refused[0] == "not_retired"
    bench.take(bench.machine.placed(MOVED))
    assert refusal(bench, salvages=True) is None


@pytest.mark.parametrize("salvages", [False, True])
def test_a_directory_that_is_salvaged_is_no_peer_to_catch_up_with(salvages: bool) -> None:
    """And no server of a destination that bears its name."""
    bench = Bench(destination(), ready=False)
    name = "peer" if salvages else "up"
    bench.take(bench.machine.upstream_logged_on(1, name, "g", OLD, "x", 1, salvages=salvages)[0])
    builder = RecordBuilder(publisher_id("elsewhere"), "orders", "json")
    payload = builder.build(1, b"x", 0)
    runs = [run_of(chunk, payload) for chunk in scan(payload)]
    bench.take(bench.machine.upstream_batch(1, 1, runs, False, {}, True, 0, LookupResult()))
    bench.commit()
    assert bench.machine.ready is not salvages
    assert bench.machine.destinations["peer"].incarnation == 0
    assert bench.machine.known.of(publisher_id("elsewhere")).covers(1, 1)
