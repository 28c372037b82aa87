"""Content filters on the production machines: what of a run goes nowhere, waits for nobody and is
asked of nobody, whatever else happens."""

from __future__ import annotations

from dataclasses import replace

import pytest

from raylay.services.messages.topics import TopicRule
from raylay.services.replication.link.routing import DestinationRoute
from raylay.services.replication.recovery import RecoveryLog
from raylay.services.verification import checkers
from raylay.services.verification.history import HistoryMember, Topology
from sim import filtering, nemesis, plans
from sim.client import SimClient
from sim.mistakes import MISTAKES
from sim.test_scenarios import Play, acked_at_us, journaled_at_us

pytestmark = pytest.mark.covers(
    "Replication", "a content filter lets some records of a run through"
)

EVEN = "02468"
"""Of a body that is a digit, as clients publish them: its byte is 48 and the digit."""


def to(name: str, *filters: str, sync: bool = True) -> DestinationRoute:
    topics = tuple(TopicRule(".*", filter=text) for text in filters or ("",))
    return plans.destination(name, "g", sync=sync, topics=topics)


def play_of(planted: str = "", **destinations: tuple[DestinationRoute, ...]) -> Play:
    members = {name: HistoryMember(name, "g", found) for name, found in destinations.items()}
    topology = Topology("filtered", members, passes=filtering.passes)
    return Play(topology, machines=MISTAKES[planted] if planted else None)


def laws(play: Play) -> set[str]:
    return {violation.law for violation in checkers.check_all(play.end(check=False))}


def there(play: Play, instance: str, client: SimClient) -> list[int]:
    return [sequence for sequence in range(1, 10) if play.had(instance, client, sequence)]


@pytest.mark.parametrize("planted", ["", "owed what is beside", "durable with its run"])
def test_a_publisher_waits_for_what_passes_and_for_nothing_beside(planted: str) -> None:
    """`b` is away: of one batch the odd ones are durable, the even ones wait for it."""
    play = play_of(planted, a=(to("b", EVEN),), b=())
    client = play.client("p", "a")
    play.until(50)
    play.world.crash("b")
    client.publish(["orders"] * 5)
    play.until(100)
    waits = {"owed what is beside": 5, "durable with its run": 0}.get(planted, 4)
    assert client.store.messages == waits, "1 is acknowledged, 3 stands behind 2"
    play.world.restart("b")
    found = laws(play)
    assert found == ({*mistaken(planted)} if planted else set())
    if not planted:
        assert there(play, "b", client) == [2, 4]


def mistaken(planted: str) -> set[str]:
    return {"owed what is beside": {"liveness"}, "durable with its run": {"acknowledged"}}[planted]


@pytest.mark.parametrize("planted", ["", "sends what is beside"])
def test_a_resync_brings_what_passes(planted: str) -> None:
    play = play_of(planted, a=(to("b", EVEN, sync=False),), b=())
    client = play.client("p", "a")
    play.until(50)
    play.world.crash("b")
    client.publish(["orders"] * 7)
    play.until(100)
    play.world.restart("b")
    found = laws(play)
    assert found == ({"routing"} if planted else set())
    assert there(play, "b", client) == ([1, 2, 3, 4, 5, 6, 7] if planted else [2, 4, 6])
    ledger = play.world.instances["a"].machine.destinations["to-b"]
    assert ledger.stored_txid == play.world.instances["a"].machine.committed_txid


@pytest.mark.parametrize("planted", ["", "verdicts not kept"])
def test_an_upgraded_link_is_asked_for_what_passes(planted: str) -> None:
    """`d` is away, so that all waits; `b` answered the even ones while its link was async, when its
    own partner `c` had nothing."""
    play = play_of(planted, a=(to("b", EVEN), to("d")), b=(to("c"),), c=(), d=())
    client = play.client("p", "a")
    play.until(50)
    play.world.crash("c")
    play.world.crash("d")
    instance = play.world.instances["a"]
    instance.downgrade("to-b")
    client.publish(["orders"] * 4)
    play.until(80)
    instance.upgrade("to-b")
    unacked = instance.machine.destinations["to-b"].unacked.of(instance.machine.own_root)
    asked = list(unacked.of(client.machine.outbox.publisher))
    assert asked == ([] if planted else [(2, 2), (4, 4)])
    play.world.restart("d")
    play.until(400)
    assert client.store.messages == (0 if planted else 3)
    history = play.end(check=False)
    found = {violation.law for violation in checkers.check_all(history)}
    assert found == ({"acknowledged"} if planted else set())
    if not planted:
        assert acked_at_us(history, client, 2) > journaled_at_us(history, "c", client, 2)


@pytest.mark.parametrize("planted", ["", "headers are enough", "verdicts not kept"])
@pytest.mark.parametrize("later_ms", [0, 300])
def test_what_passes_is_waited_for_across_a_restart(later_ms: int, planted: str) -> None:
    """By its record in the journal, or, when the instance has written down where recovery may
    begin, by the verdict that is in that."""
    play = play_of(planted, a=(to("b", EVEN),), b=())
    client = play.client("p", "a")
    play.until(50)
    play.world.crash("b")
    client.publish(["orders"] * 4)
    play.until(60 + later_ms)
    point = RecoveryLog(play.world.disks["a"].hints).point
    assert (point.committed_txid == 4) == (later_ms > 0)
    play.world.crash("a")
    play.world.restart("a")
    play.until(play.world.now_us // 1000 + 300)
    seen = planted == ("verdicts not kept" if later_ms else "headers are enough")
    assert client.store.messages == (0 if seen else 2)
    assert laws(play) == ({"acknowledged"} if seen else set())


@pytest.mark.covers("Replication", "a restart with other filters")
@pytest.mark.parametrize("planted", ["", "verdicts of other filters"])
def test_what_another_filter_lets_through_comes_after_a_restart(planted: str) -> None:
    """All of it is durable and answered by the first filter, and its link knows what it left out.
    What passes the second one is brought, and what is published from then on waits for that."""
    play = play_of(planted, a=(to("b", EVEN),), b=())
    client = play.client("p", "a")
    play.until(50)
    client.publish(["orders"] * 6)
    play.until(400)
    assert there(play, "b", client) == [2, 4, 6] and not client.store.messages
    play.world.break_connections("a", "b")
    play.until(450)
    refilter(play, "a", "13579")
    play.until(700)
    assert there(play, "b", client) == ([2, 4, 6] if planted else [1, 2, 3, 4, 5, 6])
    play.world.crash("b")
    client.publish(["orders"] * 3)
    play.until(800)
    assert client.store.messages == 3, "7 waits for b, and the others stand behind it"
    play.world.restart("b")
    found = laws(play)
    assert found == ({"liveness"} if planted else set())
    if not planted:
        assert there(play, "b", client) == [1, 2, 3, 4, 5, 6, 7, 9]


@pytest.mark.covers("Replication", "a restart with other filters")
@pytest.mark.parametrize("planted", ["", "waits by other filters"])
def test_what_waits_at_a_restart_waits_for_whom_the_new_filter_sends_it_to(planted: str) -> None:
    """`c` is away, so that 1 waits, though it does not pass the first filter to `b`. It passes the
    second one, and `b` is away when `c` has it."""
    members = {"a": (to("b", EVEN), to("c")), "b": (), "c": ()}
    play = play_of(planted, **members)
    client = play.client("p", "a")
    play.until(50)
    play.world.crash("c")
    client.publish(["orders"])
    play.until(400)
    point = RecoveryLog(play.world.disks["a"].hints).point
    assert point.waiting and point.committed_txid == 1
    play.world.crash("b")
    refilter(play, "a", "13579")
    play.until(500)
    play.world.restart("c")
    play.until(900)
    assert client.store.messages == (0 if planted else 1)
    play.world.restart("b")
    assert laws(play) == ({"acknowledged"} if planted else set())
    assert there(play, "b", client) == [1]


def test_a_rule_without_a_filter_lets_through_what_the_others_left_out() -> None:
    """It is no filter, and changes all the same what the link has to bring."""
    play = play_of(a=(to("b", EVEN),), b=())
    client = play.client("p", "a")
    play.until(50)
    client.publish(["orders"] * 6)
    play.until(400)
    assert there(play, "b", client) == [2, 4, 6]
    play.world.break_connections("a", "b")
    play.until(450)
    refilter(play, "a", EVEN, "")
    play.until(700)
    assert there(play, "b", client) == [1, 2, 3, 4, 5, 6]
    assert laws(play) == set()


def refilter(play: Play, name: str, *texts: str) -> None:
    topics = {"to-b": to("b", *texts).topics}
    nemesis.perform(play.world, "refilter", (name, 20, topics))


def test_what_comes_by_two_ways_is_whole_where_they_meet() -> None:
    """`c` gets the even ones from `a`, and all of it by `b`: each once, none is waited for in
    vain, and nobody is told that something is lacking."""
    play = play_of(a=(to("b"), to("c", EVEN)), b=(to("c"),), c=())
    client = play.client("p", "a")
    play.until(50)
    play.world.partition({("b", "c")})
    client.publish(["orders"] * 8)
    play.until(70)
    assert there(play, "c", client) == [2, 4, 6, 8]
    play.world.heal()
    play.end()
    assert there(play, "c", client) == list(range(1, 9))
    assert play.world.probes["late record"] == 1


def test_an_instance_that_lost_its_disk_gets_what_passes_and_the_rest_from_elsewhere() -> None:
    play = play_of(a=(to("b", EVEN), to("c")), b=(to("a"), to("c")), c=(to("a"), to("b", "13579")))
    client = play.client("p", "a")
    play.until(50)
    client.publish(["orders"] * 6)
    play.until(100)
    play.world.crash("b", lose_disk=True)
    play.world.restart("b")
    play.end()
    assert there(play, "b", client) == [1, 2, 3, 4, 5, 6]


def test_what_was_removed_and_never_was_routed_there_is_not_missed_there() -> None:
    """The link of a part of the log cannot say what of the removed was meant for it."""
    play = play_of(a=(to("b", EVEN),), b=())
    client = play.client("p", "a")
    play.until(50)
    for _ in range(20):
        client.publish(["orders"] * 5)
        play.until(play.world.now_us // 1000 + 10)
    play.world.instances["a"].remove_segments()
    assert play.world.probes["segment removed"]
    play.world.break_connections("a", "b")
    history = play.end()
    assert not history.final["b"].unavailable


def test_a_filter_that_is_on_one_topic_leaves_the_other_whole() -> None:
    narrowed = replace(to("b"), topics=(TopicRule("orders", filter=EVEN), TopicRule("trades")))
    play = play_of(a=(narrowed,), b=())
    client = play.client("p", "a")
    play.until(50)
    client.publish(["orders", "orders", "trades", "trades", "orders", "orders"])
    play.end()
    assert there(play, "b", client) == [2, 3, 4, 6]
