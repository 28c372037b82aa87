"""Sentences of the replication chapters, one by one, on the production machines. docs/coverage.md
says which is which."""

from __future__ import annotations

from collections import Counter

import pytest

from raylay.services.messages.topics import TopicRule
from raylay.services.verification.history import HistoryMember, RunJournaled, ServerUsed, Topology
from sim import plans
from sim.client import SimClient
from sim.test_scenarios import Play, fabric, to

ORDERS, TRADES = (TopicRule("orders"),), (TopicRule("trades"),)


def pair(*, sync: bool = True) -> Play:
    return Play(fabric(a=(to("b", sync=sync),), b=(to("a", sync=sync),)))


def used(play: Play, *clients: SimClient) -> list[list[str]]:
    """The instances that each client used, in order."""
    operations = [op for op in play.world.history.operations if isinstance(op, ServerUsed)]
    return [[op.instance for op in operations if op.client == client.name] for client in clients]


@pytest.mark.covers("The replication chapters", "it lasts until an upgrade")
def test_a_downgrade_lasts_until_a_restart() -> None:
    """However well the destination does meanwhile: nobody waits for it again without an upgrade.
    The next start is as configured."""
    play = pair()
    world = play.world
    client = play.client("p", "a")
    play.until(50)
    world.instances["a"].downgrade("to-b")
    for at_ms in (500, 5_000, 20_000):
        client.publish(["orders"])
        play.until(at_ms)
        last = client.machine.outbox.next_sequence - 1
        assert client.store.messages == 0 and play.had("b", client, last)
        assert not world.instances["a"].machine.destinations["to-b"].sync
        world.break_connections("a", "b")
    world.crash("b")
    client.publish(["orders"])
    play.until(21_000)
    assert client.store.messages == 0, "acknowledged without b"
    world.crash("a")
    world.restart("a")
    play.until(22_000)
    assert world.instances["a"].machine.destinations["to-b"].sync
    client.publish(["orders"])
    play.until(25_000)
    assert client.store.messages == 1, "it waits for b again"
    world.restart("b")
    play.end()
    assert client.store.messages == 0


@pytest.mark.covers("The replication chapters", "who may fail over between instances needs")
@pytest.mark.parametrize(("sync", "instances"), [(True, ["a", "b"]), (False, ["a", "a"])])
def test_nobody_fails_over_along_a_link_that_does_not_wait(
    sync: bool, instances: list[str]
) -> None:
    """With async acknowledgment between the two, a publisher and a subscriber wait for the one that
    they used, and with sync they go to the other one at once."""
    play = pair(sync=sync)
    world = play.world
    clients = [play.client("p", "a", "b"), play.client("r", "a", "b", subscribe="orders")]
    play.until(50)
    clients[0].publish(["orders"] * 5)
    play.until(200)
    assert clients[0].store.messages == 0 and play.had("b", clients[0], 5)
    world.crash("a")
    play.until(5_000)
    assert used(play, *clients) == [instances[: 1 + sync]] * 2
    world.restart("a")
    play.end()
    assert [each.machine.instance for each in clients] == [instances[-1]] * 2


@pytest.mark.covers("The replication chapters", "no publisher and no bookmark subscriber")
def test_nobody_fails_over_to_a_downgraded_destination() -> None:
    """Neither a publisher nor a bookmark subscriber, whatever it has; both do after the upgrade."""
    play = pair()
    world = play.world
    clients = [play.client("p", "a", "b"), play.client("r", "a", "b", subscribe="orders")]
    play.until(50)
    world.instances["a"].downgrade("to-b")
    clients[0].publish(["orders"] * 5)
    play.until(200)
    assert play.had("b", clients[0], 5)
    world.crash("a")
    play.until(5_000)
    assert used(play, *clients) == [["a"]] * 2
    world.restart("a")
    play.until(8_000)
    assert used(play, *clients) == [["a"]] * 2
    world.crash("a")
    play.until(12_000)
    # Started as configured it was sync, and called safe once b had everything.
    assert used(play, *clients) == [["a", "b"]] * 2
    play.end()


@pytest.mark.covers("The replication chapters", "the table, column for column")
def test_on_the_published_table_each_message_is_in_each_log_once() -> None:
    """With its PassThrough and nothing else, whichever instance is published at, and while one is
    down: of all copies that come to a region the first is journaled, and passed on to its mate."""
    play = Play(plans.regions(own_group_only=False))
    world = play.world
    names = list(world.topology.members)
    clients = [play.client(f"at-{name}", name) for name in names]
    play.until(100)
    for at_ms in range(200, 2_200, 100):
        if at_ms == 900:
            world.crash("london1")
        if at_ms == 1_500:
            world.restart("london1")
        for client in clients:
            client.publish(["orders", "trades"])
        play.until(at_ms)
    history = play.end()
    copies: Counter[tuple[str, int, int]] = Counter()
    for operation in history.operations:
        if isinstance(operation, RunJournaled):
            for sequence in operation.sequences:
                copies[operation.instance, operation.publisher, sequence] += 1
    assert set(copies.values()) == {1}
    assert len(copies) == len(names) * len(clients) * 40


def spokes() -> Topology:
    """Ingestion instances and hubs in pairs; one application with a pair and one topic, another
    with one instance and the other topic. Nothing goes back from an application."""
    members = []
    for i in "12":
        mate = "2" if i == "1" else "1"
        hubs = plans.destination((f"hub{i}", f"hub{mate}"), "hub", pass_through=None)
        members.append(HistoryMember(f"in{i}", "in", (plans.destination(f"in{mate}", "in"), hubs)))
        applications = (
            plans.destination(("desk1", "desk2"), "desk", sync=False, topics=ORDERS),
            plans.destination("risk", "risk", sync=False, topics=TRADES),
        )
        to_mate = plans.destination(f"hub{mate}", "hub")
        members.append(HistoryMember(f"hub{i}", "hub", (to_mate, *applications)))
        members.append(
            HistoryMember(f"desk{i}", "desk", (plans.destination(f"desk{mate}", "desk"),))
        )
    members.append(HistoryMember("risk", "risk", ()))
    return Topology("hub and spoke", {member.name: member for member in members})


@pytest.mark.covers("The replication chapters", "a sync pair of applications")
def test_hub_and_spoke_brings_each_application_its_topics_and_nothing_back() -> None:
    """While an ingestion instance, a hub and an instance of the application's pair die in turn."""
    play = Play(spokes())
    world = play.world
    publisher = play.client("p", "in1", "in2")
    desk = play.client("d", "desk1", "desk2")
    reader = play.client("r", "desk1", "desk2", subscribe="orders")
    play.until(100)
    sent = 0
    for at_ms in range(200, 6_200, 200):
        if name := {1_000: "in1", 2_600: "hub1", 4_200: "desk1"}.get(at_ms):
            world.crash(name, down_us=600_000)
        publisher.publish(["orders", "trades"])
        sent += 2
        if at_ms < 4_000:
            desk.publish(["orders"])
        play.until(at_ms)
    play.end()
    orders, trades = range(1, sent + 1, 2), range(2, sent + 1, 2)
    for name in ("in1", "in2", "hub1", "hub2"):
        assert all(play.had(name, publisher, sequence) for sequence in (*orders, *trades))
        assert not play.had(name, desk, 1), "nothing goes back"
    for name, wanted, others in (
        ("desk1", orders, trades),
        ("desk2", orders, trades),
        ("risk", trades, orders),
    ):
        assert all(play.had(name, publisher, sequence) for sequence in wanted), name
        assert not any(play.had(name, publisher, sequence) for sequence in others), name
    last = desk.machine.outbox.next_sequence - 1
    assert all(
        play.had(f"desk{i}", desk, sequence) for i in "12" for sequence in range(1, last + 1)
    )
    assert not play.had("risk", desk, last)
    assert used(play, reader)[0] == ["desk1", "desk2"]
