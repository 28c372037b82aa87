"""Every interleaving that design.md names, scripted, on the production machines."""

from __future__ import annotations

import re
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import replace
from functools import partial
from typing import Any

import pytest

from raylay.services.client.publishing import outbox as outbox_module
from raylay.services.errors import (
    AdmissionRefused,
    CorruptRecord,
    RemoteProtocolError,
    StorageError,
    StorageFull,
)
from raylay.services.messages.ranges import SequenceSet
from raylay.services.messages.records import (
    SEQUENCE_HELD_MAX,
    SEQUENCE_MAX,
    Command,
    Kind,
    RecordBuilder,
    scan,
)
from raylay.services.messages.topics import TopicRule
from raylay.services.replication import gap_limit
from raylay.services.replication.commit_thread import SLOW_COMMIT_NS
from raylay.services.replication.downgrade import DowngradePolicy
from raylay.services.replication.instance import publishers as publishers_module
from raylay.services.replication.link.routing import DestinationRoute
from raylay.services.replication.recovery import RecoveryLog
from raylay.services.verification import checkers
from raylay.services.verification.history import (
    AckGiven,
    EventSeen,
    HistoryMember,
    InstanceReady,
    LinkConnected,
    LinkModeSet,
    LinkReached,
    MessagesDelivered,
    MissingHeard,
    Operation,
    PublishRefused,
    RunHistory,
    RunJournaled,
    SafetySent,
    ServerUsed,
    Topology,
    WaiterNoted,
)
from sim import instance as instance_module
from sim import nemesis, plans
from sim.client import Part, SimClient
from sim.instance import Instance
from sim.link import LinkProcess, Welcome
from sim.mistakes import MISTAKES, SHOWN_BY_A_SCENARIO
from sim.network import Carried, Connection
from sim.world import Machines, Timing, World

pytestmark = pytest.mark.covers("Replication", "what one region published does not come back")

STEADY = Timing(
    network_us=(1_000, 1_000),
    local_us=(10, 10),
    commit_us=(500, 500),
    notice_us=(5_000, 5_000),
    maintenance_us=(100, 100),
    told_later_us=20_000,
    busy_us=(0, 0),
)
"""Every delay is the same: what happens is what the scenario says."""


class Play:
    """A world and its script."""

    def __init__(
        self,
        topology: Topology,
        *,
        window_bytes: int = 4_000,
        policy: DowngradePolicy | None = None,
        retention_bytes: int | None = None,
        machines: Machines | None = None,
        recent_bytes_max: int | None = None,
        timing: Timing = STEADY,
        contents: bool = False,
        commits_here: bool = False,
        stateful: tuple[TopicRule, ...] = (),
        sow: bool = False,
        views: bool = False,
        keyed: bool = False,
        journaled: tuple[TopicRule, ...] = (TopicRule(".*"),),
    ) -> None:
        """
        Args:
            commits_here: instances commit at the end of a turn themselves, where they may.
        """
        self.world = World(
            1,
            topology,
            timing=timing,
            machines=machines,
            retention_bytes=retention_bytes,
            policy=policy,
            window_bytes=window_bytes,
            segment_bytes=3_000,
            recent_bytes_max=recent_bytes_max,
            contents=contents,
            slow_commit_ns=SLOW_COMMIT_NS if commits_here else 0,
            stateful=stateful,
            sow=sow,
            views=views,
            keyed=keyed,
            journaled=journaled,
        )

    def client(
        self,
        name: str,
        *servers: str,
        subscribe: str = "",
        as_: str = "",
        fully_durable: bool = False,
        part: Part | None = None,
    ) -> SimClient:
        group = self.world.topology.members[servers[0]].group
        return SimClient(
            self.world,
            name,
            list(servers),
            group,
            subscribe=subscribe,
            fully_durable=fully_durable,
            client_name=as_,
            part=part,
        )

    def until(self, time_ms: int) -> None:
        self.world.run_until(time_ms * 1000)

    def end(self, *, check: bool = True) -> RunHistory:
        """Heals, lets everything settle, and asks the checkers."""
        world = self.world
        world.everything_heals()
        for _ in range(100):
            world.run_until(world.now_us + 50_000)
            if world.settled():
                break
        world.run_until(world.now_us + 50_000)
        history = world.finish()
        if check:
            found = checkers.check_all(history)
            assert not found, f"{found[0]}\n{history.tail(80)}"
        return history

    def had(self, instance: str, client: SimClient, sequence: int) -> bool:
        return (client.machine.outbox.publisher, sequence) in self.world.disks[instance].index


def to(
    *names: str, sync: bool = True, passing: str | None = ".*", topic: str = ".*"
) -> DestinationRoute:
    return plans.destination(
        names, "g", sync=sync, pass_through=passing, topics=(TopicRule(topic),)
    )


def fabric(uniform: bool = True, **destinations: tuple[DestinationRoute, ...]) -> Topology:
    """Instances of one group `g`."""
    members = {name: HistoryMember(name, "g", found) for name, found in destinations.items()}
    return Topology("scenario", members, uniform=uniform)


def first(history: RunHistory, wanted: Callable[[Operation], bool]) -> Operation:
    return next(operation for operation in history.operations if wanted(operation))


def acked_at_us(history: RunHistory, client: SimClient, sequence: int) -> int:
    return first(
        history,
        lambda op: (
            isinstance(op, AckGiven)
            and op.publisher == client.machine.outbox.publisher
            and sequence in op.sequences
        ),
    )[0]


def journaled_at_us(history: RunHistory, instance: str, client: SimClient, sequence: int) -> int:
    return first(
        history,
        lambda op: (
            isinstance(op, RunJournaled)
            and op.instance == instance
            and op.publisher == client.machine.outbox.publisher
            and sequence in op.sequences
        ),
    )[0]


@pytest.mark.covers("Replication", "acks per publisher")
@pytest.mark.covers("The replication chapters", "any instance takes publishes at any time")
def test_three_publishers_in_a_full_sync_mesh_do_not_wait_for_one_another() -> None:
    """With prefix acks all of them wait for ever."""
    play = Play(plans.mesh(3))
    clients = [play.client(f"p{i}", f"m{i}") for i in (1, 2, 3)]
    play.until(50)
    for _ in range(20):
        for client in clients:
            client.publish(["orders", "trades"])
        play.until(play.world.now_us // 1000 + 2)
    play.until(200)
    assert all(client.store.messages == 0 for client in clients)
    play.end()


@pytest.mark.covers("Replication", "the waiter rule")
def test_a_resend_after_a_broken_link_is_not_answered_before_it_is_durable() -> None:
    """`b` has the message, its own sync partner `c` does not, and the link from `a` breaks."""
    play = Play(fabric(a=(to("b"),), b=(to("c"),), c=()))
    client = play.client("p", "a")
    play.until(50)
    play.world.partition({("b", "c")})
    client.publish(["orders"])
    play.until(70)
    assert play.had("b", client, 1) and not play.had("c", client, 1)
    play.world.break_connections("a", "b")
    play.until(200)
    assert play.world.instances["a"].machine.destinations["to-b"].connected
    assert client.store.messages == 1
    history = play.end()
    assert acked_at_us(history, client, 1) > journaled_at_us(history, "c", client, 1)


def test_a_resend_by_the_client_is_acked_when_it_is_durable_not_as_a_duplicate() -> None:
    """The client moves to the peer that has its message, whose own partner has it not."""
    play = Play(fabric(a=(to("b"),), b=(to("c"),), c=()))
    client = play.client("p", "a", "b")
    play.until(50)
    play.world.partition({("b", "c")})
    client.publish(["orders"])
    play.until(70)
    play.world.crash("a")
    play.until(400)
    assert client.machine.instance == "b"
    assert play.world.probes["resend of what is held"] == 1
    assert client.store.messages == 1
    history = play.end()
    assert acked_at_us(history, client, 1) > journaled_at_us(history, "c", client, 1)


@pytest.mark.covers("Replication", "the waiter rule")
@pytest.mark.covers("The replication chapters", "sync and async decide about persisted acks")
def test_an_async_link_that_delivers_first_does_not_answer_for_the_sync_path() -> None:
    """`x` to `b` async is quick; over `a` the same message comes marked, and `c` is away."""
    play = Play(fabric(x=(to("a"), to("b", sync=False)), a=(to("b"),), b=(to("c"),), c=()))
    client = play.client("p", "x")
    play.until(50)
    play.world.partition({("b", "c")})
    play.world.partition({("a", "b")})
    client.publish(["orders"])
    play.until(70)
    assert play.had("b", client, 1)
    play.world.blocked -= {("a", "b"), ("b", "a")}
    play.until(400)
    assert client.store.messages == 1
    history = play.end()
    noted = first(history, lambda op: isinstance(op, WaiterNoted) and op.instance == "b")
    assert isinstance(noted, WaiterNoted)
    assert noted.sender == play.world.disks["a"].incarnation
    assert acked_at_us(history, client, 1) > journaled_at_us(history, "c", client, 1)


@pytest.mark.covers("Replication", "the waiter rule")
def test_becoming_awaited_after_forwarding_withdraws_and_asks_again() -> None:
    """`x` to `a` is downgraded while the message goes by, then upgraded before it is durable."""
    topology = fabric(
        x=(to("a"), to("b", sync=False), to("d")), a=(to("b"),), b=(to("c"),), c=(), d=()
    )
    play = Play(topology)
    client = play.client("p", "x")
    play.until(50)
    play.world.crash("c")
    play.world.crash("d")
    play.world.instances["x"].downgrade("to-a")
    client.publish(["orders"])
    play.until(100)
    # b's waiter is x, over the async link: a's copy was answered when it was stored.
    assert not play.world.instances["a"].machine.destinations["to-b"].unacked
    play.world.instances["x"].upgrade("to-a")
    play.until(150)
    assert play.world.instances["a"].machine.destinations["to-b"].unacked
    play.world.restart("d")
    play.until(400)
    assert client.store.messages == 1
    history = play.end()
    assert acked_at_us(history, client, 1) > journaled_at_us(history, "c", client, 1)
    senders = {op.instance: op.sender for op in history.operations if isinstance(op, WaiterNoted)}
    disks = play.world.disks
    assert senders == {
        "a": disks["x"].incarnation,
        "b": disks["a"].incarnation,
        "c": disks["b"].incarnation,
    }


@pytest.mark.covers("Replication", "downgrade and upgrade by age")
def test_an_upgrade_withdraws_the_answers_that_it_holds() -> None:
    """`b` answered while the link was async, when its partner `c` had nothing."""
    play = Play(fabric(a=(to("b"), to("d")), b=(to("c"),), c=(), d=()))
    client = play.client("p", "a")
    play.until(50)
    play.world.crash("c")
    play.world.crash("d")
    instance = play.world.instances["a"]
    instance.downgrade("to-b")
    client.publish(["orders"])
    play.until(80)
    instance.upgrade("to-b")
    assert instance.machine.destinations["to-b"].unacked
    play.world.restart("d")
    play.until(400)
    assert client.store.messages == 1
    history = play.end()
    assert play.world.probes["upgrade asked again"] == 1
    assert acked_at_us(history, client, 1) > journaled_at_us(history, "c", client, 1)


def test_an_ack_owed_across_a_restart_is_given() -> None:
    play = Play(fabric(a=(to("b"),), b=()))
    client = play.client("p", "a")
    play.until(50)
    play.world.crash("b")
    client.publish(["orders"])
    play.until(80)
    play.world.crash("a")
    play.world.restart("a")
    assert play.world.probes["ack owed across a restart"] == 1
    play.until(300)
    assert client.store.messages == 1
    history = play.end()
    assert acked_at_us(history, client, 1) > journaled_at_us(history, "b", client, 1)


@pytest.mark.covers("The replication chapters", "names and sequences")
def test_a_durable_message_whose_ack_was_lost_is_named_at_the_logon() -> None:
    play = Play(fabric(a=(to("b"),), b=(to("a"),)))
    client = play.client("p", "a", "b")
    play.until(50)
    client.publish(["orders"])
    play.until(54)
    assert play.had("b", client, 1) and client.store.messages == 1
    play.world.crash("a")
    play.until(200)
    history = play.end()
    ack = first(history, lambda op: isinstance(op, AckGiven))
    assert isinstance(ack, AckGiven) and (ack.by, ack.instance) in (("logon", "b"), ("ack", "b"))
    runs = play.world.disks["b"].journal.read(0)
    assert [run.kind for run in runs] == [Kind.RECORDS, Kind.WAITER]


@pytest.mark.covers("Replication", "a restart goes on from what was written down")
@pytest.mark.parametrize("planted", ["", "notes not recovered", "point without what waits"])
@pytest.mark.parametrize("later_ms", [0, 200])
def test_what_waits_by_a_note_waits_on_after_a_crash(later_ms: int, planted: str) -> None:
    """A client that failed over sent again what was there already: that it waits there now is in
    the journal, and, when the instance has written down where recovery may begin, in that."""
    machines = {**MISTAKES, **SHOWN_BY_A_SCENARIO}[planted] if planted else None
    play = Play(fabric(x=(to("z"),), z=(to("y"),), y=()), machines=machines)
    client = play.client("p", "x", "z")
    play.until(50)
    play.world.crash("y")
    client.publish(["orders"])
    play.until(70)
    assert play.had("z", client, 1)
    play.world.crash("x")
    notes = play.world.history.operations
    while not any(isinstance(op, WaiterNoted) and op.instance == "z" for op in notes):
        play.until(play.world.now_us // 1000 + 1)
    play.until(play.world.now_us // 1000 + later_ms)
    point = RecoveryLog(play.world.disks["z"].hints).point
    assert (point.committed_txid == 2) == (later_ms > 0)
    play.world.crash("z")
    play.world.restart("z")
    play.until(play.world.now_us // 1000 + 300)
    assert client.machine.instance == "z"
    seen = planted == ("point without what waits" if later_ms else "notes not recovered")
    assert client.store.messages == (0 if seen else 1)
    history = play.end(check=False)
    found = {violation.law for violation in checkers.check_all(history)}
    assert found == ({"acknowledged"} if seen else set())


@pytest.mark.covers("Replication", "what is held is found by the ranges of its runs")
@pytest.mark.parametrize("planted", ["", "holes taken as held"])
def test_what_fills_the_hole_of_a_run_is_asked_for_again_with_it(planted: str) -> None:
    """One publisher is two processes: 3 to 5 come to `z` from `u`, then {1, 2, 6, 7, 8} as one run
    from `x`. One takes over and sends all of it again to `z`, whose peer has none of it."""
    machines = SHOWN_BY_A_SCENARIO[planted] if planted else None
    topology = fabric(False, u=(to("z"),), x=(to("z"),), z=(to("y"),), y=())
    play = Play(topology, machines=machines, recent_bytes_max=0)
    client = play.client("p", "x", "z", part=Part("p", 3, False))
    other = play.client("q", "u", part=Part("p", 3, True))
    play.until(50)
    play.world.crash("y")
    other.publish(["orders"] * 3)
    play.until(60)
    client.publish(["orders"] * 5)
    play.until(80)
    runs = play.world.disks["z"].journal.read(0)
    assert [run.ranges() for run in runs] == [[(3, 5)], [(1, 2), (6, 8)]]
    client.take_over(other)
    play.world.crash("x")
    play.until(300)
    assert client.machine.instance == "z"
    # What is durable is told at the next logon, and nothing is.
    client.move()
    play.until(400)
    assert bool(play.world.probes["looked up what fills a hole"]) == (not planted)
    assert client.store.messages == (5 if planted else 8)
    history = play.end(check=not planted)
    found = {violation.law for violation in checkers.check_all(history)}
    assert found == ({"acknowledged", "safety"} if planted else set())


@pytest.mark.covers("Replication", "loop protection by incarnation")
@pytest.mark.covers("Resync and bootstrap", "start at the earliest message that the other")
@pytest.mark.covers("The replication chapters", "from the earliest message that the other")
def test_a_lost_disk_gets_its_own_old_messages_back() -> None:
    """And what it numbers itself anew is not mistaken for what it numbered before."""
    play = Play(plans.mesh(2))
    client = play.client("p", "m1")
    play.until(50)
    client.publish(["orders"] * 5)
    play.until(100)
    before = play.world.instances["m1"].machine
    numbered = before.number_for("someone")[0]
    play.world.crash("m1", lose_disk=True)
    play.world.restart("m1")
    assert not play.world.instances["m1"].machine.ready
    play.until(300)
    machine = play.world.instances["m1"].machine
    assert machine.ready
    assert [play.had("m1", client, sequence) for sequence in range(1, 6)] == [True] * 5
    run = play.world.disks["m1"].index[client.machine.outbox.publisher, 1]
    assert run.path == (before.identity.incarnation, play.world.disks["m2"].incarnation)
    assert machine.number_for("someone")[0] != numbered
    client.publish(["orders"])
    play.end()


def test_a_gap_filled_later_is_journaled_and_flagged_late() -> None:
    """Without PassThrough a publisher's stream comes over two paths, one of them cut."""
    play = Play(
        fabric(
            False,
            s1=(to("s2"), to("t", sync=False, passing=None)),
            s2=(to("s1"), to("t", sync=False, passing=None)),
            t=(),
        )
    )
    client = play.client("p", "s1", "s2")
    subscriber = play.client("s", "t", subscribe="orders")
    play.until(50)
    play.world.partition({("s1", "t")})
    client.publish(["orders"] * 3)
    play.until(80)
    client.move()
    play.until(150)
    assert client.machine.instance == "s2"
    client.publish(["orders"] * 2)
    play.until(250)
    assert play.had("t", client, 5) and not play.had("t", client, 1)
    history = play.end()
    late = [op for op in history.operations if isinstance(op, RunJournaled) and op.late]
    assert [(op.instance, op.sequences) for op in late] == [("t", (1, 2, 3))]
    got = [
        s for op in history.operations if isinstance(op, MessagesDelivered) for s in op.sequences
    ]
    assert got == [4, 5, 1, 2, 3]
    assert subscriber.machine.instance == "t"


@pytest.mark.parametrize("own_group_only", [True, False])
def test_what_a_region_published_does_not_come_back_in_part(own_group_only: bool) -> None:
    """PassThrough alone takes what the partner in the region sent for the region's own: London's
    later messages come round by Chicago to the one in London that is cut off, before its partner
    can give it the earlier ones. Found by the soak."""

    def member(name: str, group: str, partner: str, other: str) -> HistoryMember:
        over = plans.destination(
            (f"{other}1", f"{other}2"),
            other,
            sync=False,
            pass_through=f"^{group}$",
            own_group_only=own_group_only,
        )
        return HistoryMember(name, group, (plans.destination(partner, group), over))

    play = Play(
        Topology(
            "two regions",
            {
                "c1": member("c1", "c", "c2", "l"),
                "c2": member("c2", "c", "c1", "l"),
                "l1": member("l1", "l", "l2", "c"),
                "l2": member("l2", "l", "l1", "c"),
            },
            uniform=own_group_only,
        ),
        policy=DowngradePolicy(100),
    )
    client = play.client("p", "l2")
    play.until(50)
    cut = {("l1", "l2"), ("l1", "c1")}
    play.world.partition({*cut, ("l2", "c1")})
    play.until(500)
    client.publish(["orders"] * 3)
    play.until(800)
    assert play.had("c1", client, 3) and not play.had("l1", client, 1)
    play.world.heal()
    play.world.partition(cut)
    play.world.break_connections("l2", "c2")
    play.until(1_000)
    client.publish(["orders"] * 2)
    play.until(1_500)
    assert play.had("c2", client, 5)
    assert play.had("l1", client, 5) is not own_group_only
    history = play.end()
    late = [op for op in history.operations if isinstance(op, RunJournaled) and op.late]
    assert bool(late) is not own_group_only
    assert all(play.had("l1", client, sequence) for sequence in range(1, 6))


@pytest.mark.covers("Replication", "ResyncPassThrough")
@pytest.mark.parametrize("resync_pass_through", [None, "^gx$"])
def test_a_resync_may_bring_more_than_passes_from_then_on(resync_pass_through: str | None) -> None:
    """`t` gets from `s` what came from group gx only while the link catches up after a connect."""
    onward = replace(
        plans.destination("t", "gt", sync=False, pass_through=None),
        resync_pass_through=resync_pass_through,
    )
    play = Play(
        Topology(
            "resync",
            {
                "x": HistoryMember("x", "gx", (plans.destination("s", "gs"),)),
                "s": HistoryMember("s", "gs", (onward,)),
                "t": HistoryMember("t", "gt", ()),
            },
        )
    )
    client = play.client("p", "x")
    play.until(50)
    client.publish(["orders"] * 3)
    play.until(200)
    assert play.had("s", client, 3) and not play.had("t", client, 1)
    play.world.break_connections("s", "t")
    play.until(1_000)
    assert play.had("t", client, 3) is (resync_pass_through is not None)
    client.publish(["orders"])
    play.until(1_200)
    assert play.had("s", client, 4) and not play.had("t", client, 4)
    play.end()


@pytest.mark.parametrize("resync_pass_through", [None, ".*"])
def test_a_region_that_lost_all_its_disks_gets_its_own_messages_back(
    resync_pass_through: str | None,
) -> None:
    """From the other regions, when their links may pass on more while they catch up."""
    play = Play(plans.regions(resync_pass_through=resync_pass_through))
    client = play.client("p", "london1", "london2")
    play.until(50)
    client.publish(["orders"] * 5)
    play.until(300)
    assert play.had("chicago2", client, 5) and client.quiet()
    play.world.crash("london1", 100_000, lose_disk=True)
    play.world.crash("london2", 100_000, lose_disk=True)
    play.until(5_000)
    back = [play.had(name, client, 5) for name in ("london1", "london2")]
    assert back == [resync_pass_through is not None] * 2


@pytest.mark.covers("Replication", "exact ranges, not a high-water mark")
def test_half_of_a_publisher_is_no_reason_to_refuse_the_other_half() -> None:
    """One link carries only one topic: what comes by the other is below the highest and new."""
    play = Play(
        fabric(
            False,
            s=(to("t", topic="orders"), to("u", sync=False)),
            u=(to("t", sync=False),),
            t=(),
        )
    )
    client = play.client("p", "s")
    play.until(50)
    play.world.partition({("s", "u")})
    client.publish(["trades", "orders"] * 3)
    play.until(100)
    assert [play.had("t", client, s) for s in range(1, 7)] == [False, True] * 3
    history = play.end()
    assert all(play.had("t", client, sequence) for sequence in range(1, 7))
    assert not any(isinstance(op, RunJournaled) and op.late for op in history.operations)


@pytest.mark.covers("Replication", "windows are freed by *stored*")
def test_windows_freed_by_stored_do_not_deadlock_a_mesh() -> None:
    """The window takes one record; every instance is full of what waits for the others."""
    play = Play(plans.mesh(3), window_bytes=100)
    clients = [play.client(f"p{i}", f"m{i}") for i in (1, 2, 3)]
    play.until(50)
    for client in clients:
        client.publish(["orders"] * 60)
    play.until(3_000)
    assert all(client.store.messages == 0 for client in clients)
    play.end()


@pytest.mark.covers("The replication chapters", "it relies on the transaction log")
def test_a_duplicate_by_two_paths_is_journaled_once_and_answered() -> None:
    play = Play(plans.mesh(4))
    client = play.client("p", "m1")
    play.until(50)
    client.publish(["orders"] * 10)
    play.until(200)
    assert play.world.probes["duplicate by two paths"] > 0
    assert client.store.messages == 0
    play.end()


@pytest.mark.covers("Replication", "epochs and batch numbers")
def test_a_late_connection_with_an_old_epoch_is_refused() -> None:
    """A logon that the network kept comes behind the next connection's."""
    play = Play(fabric(a=(to("b"),), b=()))
    client = play.client("p", "a")
    play.until(50)
    link = play.world.instances["a"].links["to-b"]
    old = link.connection
    assert old is not None
    play.world.break_connections("a", "b")
    play.until(100)
    assert link.connection is not None and link.connection is not old
    late = Connection(play.world, "a", "b")
    late.open[0] = False
    link._reach(late, 1)
    play.until(105)
    assert play.world.probes["stale epoch refused"] == 1
    client.publish(["orders"])
    play.until(150)
    assert client.store.messages == 0
    play.end()


@pytest.mark.covers("Replication", "epochs and batch numbers")
def test_a_gap_in_a_connection_is_refused_and_sent_again() -> None:
    play = Play(fabric(a=(to("b"),), b=()))
    client = play.client("p", "a")
    play.until(50)
    connection = play.world.instances["a"].links["to-b"].connection
    assert connection is not None
    connection.dead[0] = True
    client.publish(["orders"])
    play.until(60)
    connection.dead[0] = False
    client.publish(["orders"])
    play.until(200)
    assert play.world.probes["gap refused"] == 1
    assert client.store.messages == 0
    play.end()


@pytest.mark.covers("Replication", "one identity, two contents")
def test_one_identity_with_two_contents_is_never_acked() -> None:
    """Two clients of one name at two instances that do not reach each other. When they do, the
    ranges that they exchange are equal: the contents must be compared all the same."""
    play = Play(plans.mesh(2))
    one = play.client("p", "m1")
    play.until(50)
    play.world.partition({("m1", "m2")})
    two = play.client("q", "m2", as_="p")
    play.until(100)
    one.publish(["orders"])
    two.publish(["trades"])
    play.until(200)
    history = play.end(check=False)
    failed = [op for op in history.operations if isinstance(op, PublishRefused)]
    assert sorted(op.instance for op in failed) == ["m1", "m2"]
    assert {op.reason for op in failed} == {"sequence_conflict"}
    assert not any(isinstance(op, AckGiven) for op in history.operations)
    assert one.store.messages == two.store.messages == 0
    assert one.machine.outbox.failures and two.machine.outbox.failures


@pytest.mark.covers("Clients and protocol", "a sequence that comes again with another command")
@pytest.mark.parametrize("again", [{"command": Command.DELTA_PUBLISH}, {"expiration_s": 9}])
def test_one_identity_with_the_same_bytes_and_another_meaning_is_never_acked(
    again: dict[str, int],
) -> None:
    """As above; and what comes again as it was is no conflict."""
    play = Play(plans.mesh(2))
    one = play.client("p", "m1")
    play.until(50)
    play.world.partition({("m1", "m2")})
    two = play.client("q", "m2", as_="p")
    play.until(100)
    one.publish(["orders"] * 2)
    builder = two.machine.outbox._builders["orders", "json"] = _Meaning(
        two.machine.outbox.publisher, again
    )
    two.publish(["orders"])
    builder.again = {}
    two.publish(["orders"])
    play.until(200)
    history = play.end(check=False)
    failed = [op for op in history.operations if isinstance(op, PublishRefused)]
    assert sorted((op.instance, op.sequence) for op in failed) == [
        ("m1", one.machine.outbox.next_sequence - 2),
        ("m2", one.machine.outbox.next_sequence - 2),
    ]
    assert {op.reason for op in failed} == {"sequence_conflict"}


class _Meaning(RecordBuilder):
    """Builds the same bytes with something else to be done with them."""

    def __init__(self, publisher: int, again: dict[str, int]) -> None:
        super().__init__(publisher, "orders", "json")
        self.again = again

    def build(self, *arguments: Any, **values: Any) -> bytes:
        return super().build(*arguments, **values | self.again)


def test_a_second_content_is_not_acked_because_the_first_is_known_to_be_held() -> None:
    """`c` has told `b` by then what it holds, so that `b` need not send it again. But that is the
    content of another client of the same name. Found by seeds in which two clients
    share a name."""
    play = Play(fabric(b=(to("c"),), c=()))
    one = play.client("p", "b")
    two = play.client("q", "c", as_="p")
    play.until(50)
    for _ in range(3):
        two.publish(["orders"])
        play.until(play.world.now_us // 1000 + 20)
        one.publish(["trades"])
        play.until(play.world.now_us // 1000 + 20)
    history = play.end(check=False)
    failed = [op for op in history.operations if isinstance(op, PublishRefused)]
    assert [(op.instance, op.client, op.sequence) for op in failed] == [
        ("b", "p", sequence) for sequence in (1, 2, 3)
    ]
    acked = [op for op in history.operations if isinstance(op, AckGiven)]
    assert {op.client for op in acked} == {"q"}


@pytest.mark.parametrize("planted", ["", "shows what clients published"])
def test_a_second_content_further_on_is_compared_though_a_client_brought_the_first(
    planted: str,
) -> None:
    """The link of `b` is behind when a client of the same name publishes at `c`: what comes from
    `a` is sent there all the same. Found by seeds in which two clients share a name."""
    play = Play(
        fabric(a=(to("b"),), b=(to("c"),), c=()),
        window_bytes=1,
        contents=True,
        machines=SHOWN_BY_A_SCENARIO.get(planted),
    )
    one, other = play.client("p", "a"), play.client("r", "b")
    two = play.client("q", "c", as_="p")
    play.until(50)
    two.publish(["orders"])
    play.until(70)
    one.publish(["trades"])
    play.until(90)
    assert play.world.probes["conflict between instances"], "`c` hears what `b` has no need to send"
    other.publish(["orders"] * 60)
    one.publish(["trades"])
    play.until(95)
    assert play.had("b", one, 2) and not play.had("c", one, 2)
    two.publish(["orders"])
    play.until(300)
    history = play.end(check=False)
    failed = [
        (op.instance, op.sequence) for op in history.operations if isinstance(op, PublishRefused)
    ]
    assert failed == ([("a", 1)] if planted else [("a", 1), ("a", 2)])
    found = {violation.law for violation in checkers.check_all(history)}
    assert found == ({"acknowledged"} if planted else set())


@pytest.mark.parametrize("planted", ["", "conflict told ahead"])
def test_a_content_is_not_refused_for_one_that_never_came_to_be(planted: str) -> None:
    """`b` has staged what a client of the same name sends, when the one of `a` arrives, and its
    commit fails. That client is gone."""
    play = Play(fabric(a=(to("b"),), b=()), machines=SHOWN_BY_A_SCENARIO.get(planted))
    world = play.world
    one = play.client("p", "a")
    two = play.client("q", "b", as_="p")
    play.until(50)
    one.publish(["orders"])
    world.run_until(51_300)
    two.publish(["trades"])
    world.run_until(52_400)
    world.instances["b"].journal.fail_next(StorageFull("no space left", "b"))
    two.crash(400_000)
    play.until(300)
    assert world.probes["conflict between instances"] and world.probes["commit failure"]
    failed = [op for op in world.history.operations if isinstance(op, PublishRefused)]
    assert [op.client for op in failed] == (["p"] if planted else [])
    assert play.had("b", one, 1) and one.store.messages == 0
    play.end(check=False)


def test_what_was_acked_is_not_refused_to_a_client_that_comes_back() -> None:
    """Acked while the link was async; after a restart it is asked for again, and `b` holds another
    content by then. The client has forgotten it. Found by seeds in which two clients share a name.
    """
    play = Play(fabric(a=(to("b"),), b=()))
    one = play.client("p", "a")
    play.until(50)
    play.world.partition({("a", "b")})
    play.world.instances["a"].downgrade("to-b")
    one.publish(["orders"])
    two = play.client("q", "b", as_="p")
    play.until(100)
    two.publish(["trades"])
    play.until(150)
    assert one.store.messages == two.store.messages == 0
    play.world.crash("a")
    play.until(200)
    play.world.restart("a")
    play.until(400)
    assert one.machine.instance == "a"
    one.publish(["orders"])
    play.until(450)
    history = play.end(check=False)
    assert not any(isinstance(op, PublishRefused) for op in history.operations)
    assert any(
        isinstance(op, EventSeen) and op.what.startswith("conflict") for op in history.operations
    )
    assert not one.machine.outbox.failures


@pytest.mark.covers("Replication", "downgrade and upgrade by age")
@pytest.mark.covers("The replication chapters", "the acks that waited come at once")
def test_the_notice_of_a_downgrade_comes_before_the_ack_that_it_releases() -> None:
    play = Play(fabric(a=(to("b"),), b=(to("a"),)))
    client = play.client("p", "a", "b")
    play.until(50)
    play.world.crash("b")
    client.publish(["orders"])
    play.until(80)
    assert client.store.messages == 1
    play.world.instances["a"].downgrade("to-b")
    play.until(100)
    assert client.store.messages == 0
    history = play.world.history
    told = first(
        history, lambda op: isinstance(op, SafetySent) and op.time_us >= 80_000 and not op.safe
    )
    ack = first(history, lambda op: isinstance(op, AckGiven))
    assert history.operations.index(told) < history.operations.index(ack)
    # The instance that said so dies: its word stays, and the client waits.
    play.world.restart("b")
    play.until(110)
    play.world.crash("a")
    play.until(600)
    assert client.machine.instance == ""
    assert play.world.probes["client waited for a safe instance"] > 0
    play.world.restart("a")
    play.until(1_200)
    assert client.machine.instance == "a"
    play.end()


@pytest.mark.covers("Clients and protocol", "a peer is safe only where one sync link carries")
@pytest.mark.covers("The replication chapters", "who may fail over between instances needs")
def test_a_peer_is_safe_only_where_a_sync_link_carries_all_that_is_published_here() -> None:
    """`b` gets trades alone and `c` everything; over `c` orders reach `b` as well, but nobody at
    `a` hears when that link stops."""
    play = Play(
        fabric(a=(to("b", topic="trades"), to("c")), b=(), c=(to("b"),)),
    )
    client = play.client("p", "a", "b", "c")
    play.until(50)
    client.publish(["orders", "trades"])
    play.until(100)
    assert client.store.messages == 0 and play.had("b", client, 1)
    history = play.end()
    told = [op.safe for op in history.operations if isinstance(op, SafetySent)]
    assert told[-1] == ("c",) and not any("b" in safe for safe in told)


@pytest.mark.covers("Clients and protocol", "a peer is safe only where one sync link carries")
def test_a_peer_is_unsafe_while_it_may_lack_what_a_client_published_again() -> None:
    """What `b` has from `a` does not pass on to `c`. The client of `a` moves to `b` and publishes
    it again there: acknowledged by `b`, and not at `c` while `a` is down."""
    play = Play(
        fabric(
            a=(to("b", passing=None), to("c", passing=None)),
            b=(to("a", passing=None), to("c", passing=None)),
            c=(to("a", passing=None), to("b", passing=None)),
        )
    )
    client = play.client("p", "a", "b")
    play.until(50)
    play.world.partition({("a", "c")})
    client.publish(["orders"])
    play.until(70)
    assert play.had("b", client, 1) and not play.had("c", client, 1)
    assert play.world.instances["b"].machine.destinations["to-c"].safe
    play.world.crash("a")
    play.until(500)
    ledger = play.world.instances["b"].machine.destinations["to-c"]
    assert client.machine.instance == "b" and client.store.messages == 0
    assert not ledger.safe and "are not routed to it" in ledger.why_unsafe
    for _ in range(2):
        # That is not forgotten by a restart.
        play.world.crash("b")
        play.world.restart("b")
        play.until(play.world.now_us // 1000 + 300)
        ledger = play.world.instances["b"].machine.destinations["to-c"]
        assert ledger.proved and not ledger.safe
    play.world.heal()
    play.world.restart("a")
    play.until(play.world.now_us // 1000 + 500)
    assert play.had("c", client, 1)
    play.world.break_connections("b", "c")
    play.end()
    assert ledger.safe


@pytest.mark.covers("Replication", "safe again only with everything")
def test_a_destination_that_comes_back_is_safe_only_when_it_has_everything() -> None:
    play = Play(fabric(a=(to("b"),), b=(to("a"),)), policy=DowngradePolicy(100))
    client = play.client("p", "a", "b")
    play.until(50)
    play.world.crash("b")
    client.publish(["orders"] * 20)
    play.until(300)
    assert client.store.messages == 0
    play.world.restart("b")
    play.until(800)
    history = play.end()
    upgraded = first(history, lambda op: isinstance(op, LinkModeSet) and op.sync)
    safe = first(
        history,
        lambda op: (
            isinstance(op, SafetySent)
            and op.instance == "a"
            and op.time_us > 300_000
            and op.safe == ("b",)
        ),
    )
    assert safe[0] >= upgraded[0]
    assert safe[0] > journaled_at_us(history, "b", client, 20)


@pytest.mark.covers("The replication chapters", "by schedule and age")
@pytest.mark.parametrize("comes", [True, False])
def test_the_age_of_a_destination_counts_from_its_first_connection(comes: bool) -> None:
    """Instances that start together wait for one another's links, and not for good."""
    policy = DowngradePolicy(500, by_evidence=False)
    play = Play(fabric(a=(to("b"),), b=(to("a"),)), policy=policy)
    play.world.crash("b")
    client = play.client("p", "a")
    play.until(50)
    client.publish(["orders"])
    play.until(3_000)
    assert client.store.messages == 1, "six times the age"
    if comes:
        play.world.restart("b")
        play.until(4_000)
    else:
        play.until(5_400)
        assert client.store.messages == 1
        play.until(6_000)
    assert client.store.messages == 0
    if not comes:
        play.world.restart("b")
        play.until(7_500)
    history = play.end()
    modes = [op.sync for op in history.operations if isinstance(op, LinkModeSet)]
    assert modes == ([] if comes else [False, True])


def evidence(least: int = 0, grace_ms: int = 0) -> tuple[Play, SimClient]:
    """`a` and `b` replicate to one another; an age alone would never act in time."""
    policy = DowngradePolicy(60_000, None, least, grace_period_ms=grace_ms)
    play = Play(fabric(a=(to("b"),), b=(to("a"),)), policy=policy)
    client = play.client("p", "a")
    play.until(50)
    client.publish(["orders"])
    play.until(100)
    assert client.store.messages == 0
    return play, client


@pytest.mark.covers("Replication", "downgraded at once on evidence")
def test_a_destination_whose_process_has_ended_is_downgraded_at_once() -> None:
    play, client = evidence()
    play.world.crash("b")
    client.publish(["orders"] * 3)
    play.until(400)
    assert client.store.messages == 0, "nobody waited for the age"
    play.world.restart("b")
    play.until(1_500)
    assert play.had("b", client, 4)
    history = play.end()
    modes = [op.sync for op in history.operations if isinstance(op, LinkModeSet)]
    assert modes[:2] == [False, True], "downgraded, and healed when it had everything"


@pytest.mark.covers("Replication", "downgraded at once on evidence")
@pytest.mark.parametrize(("least", "grace_ms"), [(1, 0), (0, 50_000)])
def test_evidence_does_not_pass_the_minimum_or_the_grace_period(least: int, grace_ms: int) -> None:
    play, client = evidence(least, grace_ms)
    play.world.crash("b")
    client.publish(["orders"])
    play.until(600)
    assert client.store.messages == 1
    play.world.restart("b")
    play.until(1_500)
    assert client.store.messages == 0
    play.end()


@pytest.mark.covers("Replication", "downgraded at once on evidence")
def test_evidence_of_a_grace_period_counts_when_it_is_over() -> None:
    """Evidence was told once, when it changed nothing: later publishers waited for the age."""
    play, client = evidence(grace_ms=500)
    play.world.crash("b")
    play.until(1_500)
    client.publish(["orders"])
    play.until(1_600)
    assert client.store.messages == 0
    play.world.restart("b")
    play.until(3_000)
    history = play.end()
    assert [op.sync for op in history.operations if isinstance(op, LinkModeSet)] == [False, True]


@pytest.mark.covers("Replication", "downgraded at once on evidence")
def test_silence_is_no_evidence() -> None:
    play, client = evidence()
    play.world.partition({("a", "b"), ("b", "a")})
    client.publish(["orders"])
    play.until(5_000)
    assert client.store.messages == 1
    play.world.heal()
    play.until(7_000)
    assert client.store.messages == 0
    play.end()


@pytest.mark.covers("Replication", "downgraded at once on evidence")
def test_evidence_of_a_process_that_is_connected_again_changes_nothing() -> None:
    play, _ = evidence()
    a = play.world.hosts["a"]
    assert isinstance(a, Instance)
    a.perform(a.machine.process_ended("to-b", play.world.now_us, "late"))
    assert a.machine.destinations["to-b"].sync
    play.end()


@pytest.mark.covers("Replication", "several addresses in priority order")
@pytest.mark.covers("The replication chapters", "addresses in order")
def test_a_failover_list_moves_to_the_second_server_and_back() -> None:
    play = Play(fabric(False, a=(to("b1", "b2"),), b1=(), b2=()))
    client = play.client("p", "a")
    play.until(50)
    client.publish(["orders"])
    play.until(80)
    play.world.crash("b1")
    play.until(150)
    client.publish(["orders"])
    play.until(250)
    assert client.store.messages == 0
    assert play.had("b2", client, 1) and play.had("b2", client, 2)
    play.world.restart("b1")
    play.world.break_connections("a", "b2")
    play.until(400)
    client.publish(["orders"])
    play.until(500)
    history = play.end()
    servers = [op.server for op in history.operations if isinstance(op, LinkConnected)]
    assert servers == ["b1", "b2", "b1"]
    assert all(play.had("b1", client, sequence) for sequence in (1, 2, 3))
    assert not play.had("b2", client, 3)


def listed(**destinations: tuple[DestinationRoute, ...]) -> Topology:
    """`x` replicates to whichever of `a1` and `a2` answers, in one group."""
    found: dict[str, tuple[DestinationRoute, ...]] = {"x": (to("a1", "a2"),), "a1": (), "a2": ()}
    return fabric(False, **(found | destinations))


def left_behind(play: Play, *servers: str) -> SimClient:
    """`a1` has one of two messages: `x` has gone on to `a2` with the second."""
    client = play.client("p", *(servers or ("x", "a1", "a2")))
    play.until(50)
    client.publish(["orders"])
    play.until(80)
    play.world.crash("a1")
    play.until(150)
    client.publish(["orders"])
    play.until(250)
    play.world.restart("a1")
    play.until(300)
    assert client.store.messages == 0 and not play.had("a1", client, 2)
    return client


def used(history: RunHistory, client: SimClient) -> list[str]:
    return [
        op.instance
        for op in history.operations
        if isinstance(op, ServerUsed) and op.client == client.name
    ]


@pytest.mark.parametrize("crashes", [False, True])
def test_a_server_of_a_list_that_was_left_is_not_failed_over_to(crashes: bool) -> None:
    """Nor by a client that was started again with its store, as soon as its store has the word."""
    play = Play(listed())
    client = left_behind(play)
    play.world.crash("x")
    if crashes:
        client.crash(50_000)
    play.until(1_000)
    assert client.machine.instance == "a2"
    client.publish(["orders"])
    play.until(1_100)
    assert client.store.messages == 0 and play.had("a2", client, 3)
    play.world.restart("x")
    assert used(play.end(), client) == ["x", "a2"]


@pytest.mark.parametrize("crashes", [False, True])
def test_where_no_safe_instance_is_left_a_client_waits_and_says_for_whom(crashes: bool) -> None:
    play = Play(listed())
    client = left_behind(play)
    # On its disk with what is published next.
    client.publish(["orders"])
    play.until(350)
    play.world.crash("a2")
    play.world.crash("x")
    if crashes:
        client.crash(50_000)
    play.until(2_000)
    assert not client.machine.instance and client.machine.waits_for_safe_instance
    reasons = client.machine.chooser.refused()
    assert reasons.keys() == {"a1"} and reasons["a1"].startswith("x ")
    assert play.world.probes["client waited for a safe instance"]
    play.world.restart("a2")
    play.until(3_000)
    assert client.machine.instance == "a2"
    play.world.restart("x")
    assert used(play.end(), client) == ["x", "a2"]


def test_the_word_of_an_instance_counts_although_the_next_one_says_otherwise() -> None:
    """`a2` calls `a1` safe: that is true of what `a2` acknowledged, which passes on nothing."""
    to_a1 = replace(to("a1"), pass_through=None)
    play = Play(listed(a2=(to_a1,)))
    client = left_behind(play)
    play.world.crash("x")
    play.until(1_000)
    assert client.machine.instance == "a2"
    client.publish(["orders"])
    play.until(1_100)
    assert client.store.messages == 0
    told = [
        op
        for op in play.world.history.operations
        if isinstance(op, SafetySent) and op.instance == "a2" and "a1" in op.safe
    ]
    play.world.crash("a2")
    play.until(2_000)
    assert told and not client.machine.instance, "what x had acknowledged a1 lacks still"
    assert client.machine.chooser.refused()["a1"].startswith("x ")
    client.machine.trust("a1")
    play.until(3_000)
    assert client.machine.instance == "a1", "somebody took that upon himself"


@pytest.mark.parametrize("planted", ["", "next server not asked"])
def test_what_waits_elsewhere_waits_for_the_next_server_of_a_list_too(planted: str) -> None:
    """`s1` has answered, `c` has not. The link goes on to `s2`, which has a sync link of its own: a
    client that is acknowledged now may fail over to there, and `s2` may die."""
    play = Play(
        fabric(a=(to("s1", "s2"), to("c")), s1=(), s2=(to("d"),), c=(), d=()),
        machines=SHOWN_BY_A_SCENARIO.get(planted),
    )
    world, client = play.world, play.client("p", "a")
    play.until(50)
    world.partition({("a", "c"), ("s2", "d")})
    client.publish(["orders"])
    play.until(80)
    ledger = world.instances["a"].machine.destinations["to-s1"]
    assert play.had("s1", client, 1) and not ledger.unacked, "it has answered"
    world.crash("s1", 2_000_000)
    play.until(300)
    assert play.had("s2", client, 1) and ledger.connected
    world.blocked -= {("a", "c"), ("c", "a")}
    play.until(800)
    assert play.had("c", client, 1)
    assert client.store.messages == (0 if planted else 1)
    history = play.end(check=not planted)
    if planted:
        assert {found.law for found in checkers.check_all(history)} == {"acknowledged"}
    else:
        assert acked_at_us(history, client, 1) > journaled_at_us(history, "d", client, 1)


def test_a_server_that_the_link_returns_to_is_safe_when_it_has_everything() -> None:
    play = Play(listed())
    client = left_behind(play)
    play.world.break_connections("x", "a2")
    play.until(600)
    assert play.had("a1", client, 2)
    play.world.crash("x")
    play.until(1_500)
    assert client.machine.instance == "a1"
    play.world.restart("x")
    assert used(play.end(), client) == ["x", "a1"]


def test_a_link_between_two_servers_makes_nobody_safe() -> None:
    """While `x` is on its way from `a1` to `a2`, and as long as `a2` lacks something."""
    play = Play(listed())
    client = play.client("p", "x", "a2", "a1")
    play.until(50)
    for _ in range(5):
        client.publish(["orders"] * 20)
    play.until(150)
    assert client.store.messages == 0
    # a2 is reached and gets nothing through: it never catches up.
    play.world.partition({("x", "a2")}, symmetric=False)
    play.world.crash("a1")
    play.until(400)
    play.world.crash("x")
    play.until(1_500)
    assert not client.machine.instance, "a2 has nothing of it"
    play.world.restart("a1")
    play.until(2_500)
    assert client.machine.instance == "a1", "the one it was last proved of"
    play.world.restart("x")
    play.end()


def test_an_instance_that_is_never_named_is_never_failed_over_to() -> None:
    """`z` replicates to `x` and serves the same clients; `x` does not know it."""
    play = Play(listed(z=(to("x"),)))
    client = play.client("p", "x", "z", "a1")
    play.until(50)
    client.publish(["orders"])
    play.until(100)
    play.world.crash("x")
    play.world.crash("a1")
    play.until(1_000)
    assert not client.machine.instance
    assert client.machine.chooser.refused()["z"] == "x has not called it safe to fail over to"
    play.world.restart("a1")
    play.until(1_500)
    assert client.machine.instance == "a1"
    play.world.restart("x")
    play.end()


def test_words_that_a_crash_took_go_with_the_acks_that_came_behind_them() -> None:
    """The client dies before its store was flushed: what it was acknowledged since, it has still,
    and sends it again to whom it might use before."""
    play = Play(listed())
    client = play.client("p", "x", "a1", "a2")
    play.until(50)
    client.publish(["orders"])
    play.until(80)
    play.world.crash("a1")
    client.publish(["orders"])
    play.until(300)
    assert client.store.messages == 0 and play.had("a2", client, 2)
    assert client.machine.chooser.refusal("a1") and not client.machine.chooser.refusal("a2")
    client.crash(50_000)
    play.world.crash("x")
    play.world.restart("a1")
    assert client.store.messages == 1, "the ack came behind the word"
    play.until(1_000)
    assert client.machine.instance == "a1"
    play.until(1_100)
    assert client.store.messages == 0 and play.had("a1", client, 2)
    play.world.restart("x")
    play.end()


@pytest.mark.covers("Replication", "without an address")
@pytest.mark.covers("The replication chapters", "no InetAddr: replicates when the other")
def test_the_side_that_cannot_dial_shares_the_fate_of_the_others_connection() -> None:
    """`a` has no address of `b`: it pushes over the connection of `b`, waits when that is gone."""
    play = Play(fabric(a=(replace(to("b"), dials=False),), b=(to("a"),)))
    world = play.world
    clients = [play.client("p", "a"), play.client("q", "b")]

    def both_publish(at_ms: int) -> None:
        play.until(at_ms)
        for client in clients:
            client.publish(["orders"])
        play.until(at_ms + 150)
        assert all(client.store.messages == 0 for client in clients)

    both_publish(50)
    ways = {(type(each), each.hosts) for each in world.connections.values()}
    assert (Carried, ("a", "b")) in ways and (Connection, ("b", "a")) in ways
    assert (Connection, ("a", "b")) not in ways
    linked = sum(isinstance(op, LinkConnected) for op in world.history.operations)
    for at_ms, break_it in (
        (300, lambda: world.break_connections("a", "b")),
        (600, lambda: world.crash_link("b", "to-a")),
        (900, lambda: world.crash_link("a", "to-b")),
    ):
        play.until(at_ms)
        break_it()
        both_publish(at_ms + 80)
    # Both directions went with the connection and the process that held it, one with its own.
    after = sum(isinstance(op, LinkConnected) for op in world.history.operations)
    assert after - linked == 2 + 2 + 1
    for at_ms, name in ((1_200, "a"), (1_500, "b")):
        play.until(at_ms)
        world.crash(name, 20_000)
        both_publish(at_ms + 120)
    history = play.end()
    assert world.probes["link waited for the other side to connect"] >= 4
    assert sum(isinstance(op, AckGiven) for op in history.operations) >= 12


@pytest.mark.covers("Replication", "one link from an instance to an instance")
@pytest.mark.covers("The replication chapters", "the order of each source is kept")
@pytest.mark.parametrize("dials", [True, False])
def test_one_link_from_an_instance_to_an_instance(dials: bool) -> None:
    """Two destinations with the same servers: the second one takes the next, whether `a` dials them
    or they dial `a`."""
    one, two = (
        replace(to("b1", "b2"), name=name, dials=dials, topics=(TopicRule(name),))
        for name in ("orders", "trades")
    )
    back = () if dials else (to("a", sync=False),)
    play = Play(fabric(False, a=(one, two), b1=back, b2=back))
    client = play.client("p", "a")
    play.until(300)
    client.publish(["orders", "trades"])
    play.until(400)
    history = play.end()
    # Each keeps its server; which of them has the first one is not of interest.
    linked = [op for op in history.operations if isinstance(op, LinkConnected)]
    servers = {op.server for op in linked if op.instance == "a"}
    assert servers == {"b1", "b2"}
    assert {play.had(name, client, 1) for name in servers} == {True, False}
    assert {play.had(name, client, 2) for name in servers} == {True, False}


def test_a_failed_commit_is_sent_again_and_acked_once() -> None:
    play = Play(plans.mesh(2))
    client = play.client("p", "m1", "m2")
    play.until(50)
    play.world.instances["m1"].journal.fail_next(StorageFull("no space left"))
    client.publish(["orders"] * 3)
    play.until(55)
    assert not play.had("m1", client, 1)
    play.end()
    assert play.world.probes["commit failure"] == 1
    assert all(play.had("m1", client, sequence) for sequence in (1, 2, 3))


def at_the_end_of_a_turn(machines: Machines | None = None) -> tuple[Play, SimClient]:
    """One message at a time: nobody waits for the one before, so the loop commits itself."""
    play = Play(plans.mesh(2), commits_here=True, machines=machines)
    client = play.client("p", "m1", "m2")
    play.until(50)
    return play, client


def test_a_single_message_is_committed_at_the_end_of_the_turn() -> None:
    play, client = at_the_end_of_a_turn()
    probes = play.world.probes
    for _ in range(3):
        client.publish(["orders"])
        play.until(play.world.now_us // 1000 + 20)
    assert (client.store.messages, probes["commit handed to the writer thread"]) == (0, 0)
    assert probes["commit at the end of the turn"] == 6, "once at each instance"
    history = play.end()
    for sequence in (1, 2, 3):
        published_us = journaled_at_us(history, "m1", client, sequence)
        assert journaled_at_us(history, "m2", client, sequence) < published_us + 5_000
        assert acked_at_us(history, client, sequence) > published_us + 2_000


def test_what_comes_while_somebody_waits_is_left_to_the_writer_thread() -> None:
    play, client = at_the_end_of_a_turn()
    probes = play.world.probes
    client.publish(["orders"])
    # It has reached m1, and not been answered by m2.
    play.world.run_until(play.world.now_us + 1_500)
    client.publish(["orders"])
    play.world.run_until(play.world.now_us + 1_100)
    assert probes["commit handed to the writer thread"] == 1
    assert play.world.instances["m1"].journal.staged == 1
    play.until(play.world.now_us // 1000 + 20)
    assert client.store.messages == 0
    play.end()


def test_a_commit_that_fails_at_the_end_of_a_turn_is_sent_again_and_acked_once() -> None:
    play, client = at_the_end_of_a_turn()
    play.world.instances["m1"].journal.fail_next(StorageFull("no space left"))
    client.publish(["orders"] * 3)
    play.until(55)
    assert not play.had("m1", client, 1)
    play.end()
    assert play.world.probes["commit failure at the end of a turn"] == 1
    assert all(play.had("m1", client, sequence) for sequence in (1, 2, 3))


def failed_at_the_end_of_a_turn(machines: Machines | None = None) -> set[str]:
    play, client = at_the_end_of_a_turn(machines)
    play.world.instances["m1"].journal.fail_next(StorageFull("no space left"))
    client.publish(["orders"])
    play.until(80)
    return {found.law for found in checkers.check_all(play.end(check=False))}


def test_a_swallowed_error_of_a_commit_shows() -> None:
    assert not failed_at_the_end_of_a_turn()
    assert "liveness" in failed_at_the_end_of_a_turn(MISTAKES["commit error swallowed"])


def failed_ahead_of_the_disk(machines: Machines | None = None) -> tuple[Play, set[str]]:
    """The disk cannot write what the machine has taken already."""
    play, client = at_the_end_of_a_turn(machines)
    m1 = play.world.instances["m1"]
    client.publish(["orders"])
    play.until(80)
    assert play.world.probes["taken while the disk wrote"] == 0, "the first goes to the store"

    m1.journal.fail_next(StorageError("it cannot be written", "m1"))
    client.publish(["orders"])
    play.until(120)
    assert play.world.probes["commit failure ahead of the disk"] == 1
    return play, {found.law for found in checkers.check_all(play.end(check=False))}


@pytest.mark.covers("Journal", "a commit that fails behind that ends the instance")
def test_a_commit_that_fails_ahead_of_the_disk_ends_the_instance_and_loses_nothing() -> None:
    play, broken = failed_ahead_of_the_disk()
    assert not broken
    assert play.world.probes["taken while the disk wrote"] > 1
    client = play.world.clients["p"]
    assert client.store.messages == 0
    assert all(play.had(name, client, 2) for name in ("m1", "m2")), "sent again, and acked"


@pytest.mark.covers("Journal", "a commit that fails behind that ends the instance")
def test_what_was_said_of_a_commit_that_failed_shows() -> None:
    _, broken = failed_ahead_of_the_disk(MISTAKES["goes on ahead of the disk"])
    assert broken


def test_a_crash_before_the_commit_loses_nothing_that_was_acked() -> None:
    play = Play(plans.mesh(2))
    client = play.client("p", "m1", "m2")
    play.until(50)
    client.publish(["orders"])
    play.world.run_until(51_200)
    play.world.crash("m1")
    assert play.world.probes["crash with an unsynced commit"] == 1
    play.until(400)
    assert client.machine.instance == "m2"
    history = play.end()
    assert acked_at_us(history, client, 1) >= journaled_at_us(history, "m2", client, 1)


@pytest.mark.covers("Clients and protocol", "resumption by ranges on another instance")
@pytest.mark.covers("The replication chapters", "a bookmark store")
def test_a_subscriber_that_fails_over_goes_on_with_exact_ranges() -> None:
    """The order of the other instance is another one: a single bookmark would lose messages."""
    play = Play(plans.mesh(2), policy=DowngradePolicy(200))
    one, two = play.client("p", "m1"), play.client("q", "m2")
    subscriber = play.client("s", "m1", "m2", subscribe=".*")
    play.until(50)
    for _ in range(10):
        one.publish(["orders"])
        two.publish(["trades"])
        play.until(play.world.now_us // 1000 + 1)
    # m1 stops in the middle of the stream.
    play.world.crash("m1")
    two.publish(["trades"] * 3)
    play.until(700)
    assert subscriber.machine.instance == "m2"
    history = play.end()
    used = [
        op.instance for op in history.operations if isinstance(op, ServerUsed) and op.client == "s"
    ]
    assert used[:2] == ["m1", "m2"]


@pytest.mark.covers("Laws", "4 safe removal")
@pytest.mark.covers("The replication chapters", "delivery is guaranteed")
def test_a_segment_is_removed_when_every_destination_has_it_and_not_before() -> None:
    play = Play(fabric(a=(to("b"), to("c", sync=False)), b=(), c=()))
    client = play.client("p", "a")
    play.until(50)
    play.world.crash("c")
    for _ in range(10):
        client.publish(["orders"] * 5)
        play.until(play.world.now_us // 1000 + 10)
    instance = play.world.instances["a"]
    instance.remove_segments()
    assert play.world.disks["a"].journal.first_txid == 1
    play.world.restart("c")
    play.until(1_000)
    instance.remove_segments()
    assert play.world.disks["a"].journal.first_txid > 1
    play.world.crash("a")
    play.world.restart("a")
    client.publish(["orders"])
    play.end()


@pytest.mark.covers("The replication chapters", "the table, column for column")
@pytest.mark.parametrize("own_group_only", [False, True])
def test_each_message_crosses_once_to_each_region_of_the_published_table(
    own_group_only: bool,
) -> None:
    """PassThrough alone, as it is printed, or with `own_group_only`: once the links have seen who
    brings what, London's messages come to each other region over one link."""
    play = Play(plans.regions(own_group_only=own_group_only))
    client = play.client("p", "london1", "london2")
    play.until(50)
    published(play, client, 40)
    far = [f"{site}{number}" for site in ("chicago", "newyork") for number in (1, 2)]

    def surplus() -> int:
        return sum(play.world.instances[name].machine.counters.duplicates for name in far)

    before = surplus()
    published(play, client, 100)
    assert surplus() == before
    assert all(play.had(name, client, 140) for name in far)
    play.end()


def two_ways(recent_bytes_max: int | None = None) -> tuple[Play, SimClient]:
    """`a` and `b` are a pair, both replicate to `c`; what is published at `a` is at `c` by both."""
    topology = fabric(
        uniform=False,
        a=(to("b"), to("c", sync=False)),
        b=(to("a"), to("c", sync=False)),
        c=(),
    )
    play = Play(topology, recent_bytes_max=recent_bytes_max)
    client = play.client("p", "a")
    play.until(50)
    published(play, client, 30)
    return play, client


def test_of_two_that_reach_a_site_the_one_that_is_nearer_sends() -> None:
    play, client = two_ways()
    c = play.world.instances["c"].machine.counters
    before = c.duplicates
    assert before < 10, "until it is seen that all comes by `a`"
    published(play, client, 50)
    assert c.duplicates == before
    assert play.world.probes["deferred message skipped"] > 0
    play.end()


@pytest.mark.covers("Journal", "what was committed a moment ago is compared in memory")
@pytest.mark.parametrize("recent_bytes_max", [0, 1_000])
def test_what_came_a_moment_ago_by_another_way_is_not_looked_up_on_disk(
    recent_bytes_max: int,
) -> None:
    """Else the second link hears too late that all comes by the first one."""
    play, _ = two_ways(recent_bytes_max)
    is_kept = recent_bytes_max > 0
    probes, counters = play.world.probes, play.world.instances["c"].machine.counters
    assert bool(probes["contents fetched for a comparison"]) != is_kept
    assert (0 < counters.duplicates < 10) == is_kept
    play.end()


def test_where_the_nearer_one_stops_the_other_one_sends_after_a_moment() -> None:
    play, client = two_ways()
    play.world.partition({("a", "c")})
    client.publish(["orders"])
    play.until(play.world.now_us // 1000 + 200)
    assert not play.had("c", client, 31)
    play.until(play.world.now_us // 1000 + 400)
    assert play.had("c", client, 31)
    for _ in range(8):
        client.publish(["orders"])
        play.until(play.world.now_us // 1000 + 20)
    play.until(play.world.now_us // 1000 + 500)
    assert play.had("c", client, 39)
    client.publish(["orders"])
    play.until(play.world.now_us // 1000 + 20)
    assert play.had("c", client, 40), "now it does not wait any more"
    assert play.world.probes["deferred message sent after all"] == 7
    play.world.heal()
    play.until(play.world.now_us // 1000 + 500)
    published(play, client, 60)
    before = play.world.instances["c"].machine.counters.duplicates
    published(play, client, 20)
    assert play.world.instances["c"].machine.counters.duplicates == before, "and waits again"
    play.end()


def target_came_back(planted: str = "", *, falls_silent: bool = True) -> tuple[int, int]:
    """`a` and `b` are a pair, `c` and `d` another one; both of the first replicate to `c`, which is
    killed and comes back. All publishers are at `a`, and one of them goes on meanwhile.

    Args:
        falls_silent: whether the other one publishes nothing more once `c` is back.

    Returns:
        Milliseconds until `b` owes nothing more of what was there when `c` came back, and how often
        it waited in vain for `a` to bring it.
    """
    far = to("c", sync=False)
    play = Play(
        fabric(uniform=False, a=(to("b"), far), b=(to("a"), far), c=(to("d"),), d=(to("c"),)),
        machines=SHOWN_BY_A_SCENARIO.get(planted),
    )
    world = play.world
    silent, steady = play.client("p", "a"), play.client("q", "a")
    play.until(50)

    def publish_for(time_ms: int, *clients: SimClient) -> None:
        for _ in range(time_ms // 20):
            for client in clients:
                client.publish(["orders"])
            play.until(world.now_us // 1000 + 20)

    publish_for(1_000, silent, steady)
    world.crash("c", down_us=500_000)
    publish_for(500, silent, steady)
    b = world.instances["b"]
    upto, began_us = b.machine.committed_txid, world.now_us
    vain = world.probes["deferred message sent after all"]
    going_on = (steady,) if falls_silent else (silent, steady)
    while b.links["to-c"].machine.stored_txid < upto and world.now_us < began_us + 30_000_000:
        publish_for(20, *going_on)
    took_ms = (world.now_us - began_us) // 1000
    vain = world.probes["deferred message sent after all"] - vain
    play.end()
    return took_ms, vain


@pytest.mark.covers("Resync and bootstrap", "a resync beside another link is over soon")
@pytest.mark.parametrize("falls_silent", [True, False])
def test_beside_another_link_a_resync_is_over_soon_after_its_target_was_killed(
    falls_silent: bool,
) -> None:
    """What the other link brings meanwhile says nothing of what it has not brought."""
    took_ms, vain = target_came_back(falls_silent=falls_silent)
    assert took_ms < 2_000 and vain <= 7


PASSED_OVER = re.compile("topic_passed_over peer=([a-z]+) topic=trades ")


def topic_passed_over(planted: str = "", *, sync: bool) -> tuple[RunHistory, set[str]]:
    """`a` and `b` are a pair and replicate all topics to `c`, which has `orders` in its transaction
    log and not `trades`, and replicates to `d`. Connections break and instances are killed.

    Returns:
        The history, and who is told of at `c` as one that brings `trades`.
    """
    unchecked = (TopicRule(".*", exclude_validation=("txlog",)),)
    far, near = (replace(to("c", sync=each), topics=unchecked) for each in (sync, False))
    topology = fabric(uniform=False, a=(to("b"), far), b=(to("a"), near), c=(to("d"),), d=())
    topology.members["c"] = replace(topology.members["c"], without=("trades",))
    play = Play(
        topology,
        machines=MISTAKES.get(planted),
        journaled=(TopicRule("orders"), TopicRule("trades")),
    )
    clients = [play.client("p", "a"), play.client("q", "b")]
    play.until(50)

    def publish() -> None:
        for number in range(8):
            for client in clients:
                client.publish(["orders", "trades"] if number % 3 else ["trades"])
            play.until(play.world.now_us // 1000 + 5)

    publish()
    play.world.break_connections("a", "c")
    publish()
    for name in ("a", "c"):
        play.world.crash(name, down_us=50_000)
        publish()
    history = play.end(check=False)
    told = {
        found[1]
        for operation in history.operations
        if isinstance(operation, EventSeen) and operation.instance == "c"
        for found in [PASSED_OVER.match(operation.what)]
        if found
    }
    return history, told


def topics_held(history: RunHistory, name: str) -> set[str]:
    return {
        operation.topic
        for operation in history.operations
        if isinstance(operation, RunJournaled) and operation.instance == name
    }


@pytest.mark.covers("Resync and bootstrap", "where `txlog` is left out")
@pytest.mark.parametrize("sync", [False, True])
def test_a_topic_that_the_other_side_lacks_is_told_and_holds_up_no_other_one(sync: bool) -> None:
    """Nobody waits for what is passed over, and all else is there, also what comes again."""
    history, told = topic_passed_over(sync=sync)
    found = checkers.check_all(history)
    assert not found, f"{found[0]}\n{history.tail(80)}"
    assert told == {"a", "b"}
    assert topics_held(history, "c") == topics_held(history, "d") == {"orders"}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("planted", "seen"),
    [
        ("passed over: ends the link", {"liveness"}),
        ("passed over: others with it", {"liveness"}),
        ("passed over: unanswered", {"liveness"}),
    ],
)
def test_where_what_is_passed_over_does_more_harm_it_is_seen(planted: str, seen: set[str]) -> None:
    history, _ = topic_passed_over(planted, sync=True)
    assert {each.law for each in checkers.check_all(history)} == seen


def test_where_news_forgives_a_resync_sends_a_message_every_few_seconds() -> None:
    took_ms, vain = target_came_back("news forgives")
    assert took_ms > 10_000 and vain > 7


def test_two_that_wait_for_each_other_do_not_wait_for_long() -> None:
    """What is published at `x` comes to `c` by `a` and by `b` alike."""
    topology = fabric(
        uniform=False,
        x=(to("a"), to("b")),
        a=(to("c", sync=False),),
        b=(to("c", sync=False),),
        c=(),
    )
    play = Play(topology)
    client = play.client("p", "x")
    play.until(50)
    published(play, client, 60)
    play.until(play.world.now_us // 1000 + 1_000)
    c = play.world.instances["c"].machine.counters
    before = c.duplicates
    for number in range(61, 91):
        client.publish(["orders"])
        play.until(play.world.now_us // 1000 + 30)
        assert play.had("c", client, number), "one of the two sends at once"
    assert c.duplicates == before
    play.end()


def tail_of(play: Play, client: SimClient) -> list[int]:
    """What `m1` lacks of 30 messages."""
    return [n for n in range(1, 31) if not play.had("m1", client, n)]


def put_back(*, in_place: bool, size: int = 2) -> tuple[Play, SimClient]:
    """`m1` acknowledges 30 messages, and gets back a copy of its directory that has 20."""
    play = Play(plans.mesh(size))
    client = play.client("p", "m1", "m2")
    play.until(50)
    published(play, client, 20)
    play.world.keep("m1")
    published(play, client, 10)
    assert client.store.messages == 0
    play.world.put_back("m1", 100_000, in_place=in_place)
    return play, client


@pytest.mark.covers("Replication", "an old copy of a data directory begins anew and takes")
@pytest.mark.parametrize("in_place", [False, True])
def test_an_old_copy_takes_back_its_own_tail(in_place: bool) -> None:
    """Loop protection would keep from `m1` what it once published itself."""
    play, client = put_back(in_place=in_place)
    before = play.world.disks["m1"].incarnation
    assert tail_of(play, client) == list(range(21, 31))
    play.until(play.world.now_us // 1000 + 1_500)
    assert not tail_of(play, client)
    assert play.world.disks["m1"].incarnation != before or not in_place
    assert play.world.probes["old copy found by peers"] == in_place
    assert play.world.probes["took back its own tail"] > 0
    play.end()


def test_an_old_copy_is_started_with_where_others_were_moved_since() -> None:
    """Nobody dials `a2`, who could tell it: seed 940008495, before the simulator's operator gave
    the configuration that the fabric's record has."""
    destinations = {
        "x": (plans.destination(("a1", "a2"), "g"),),
        "a1": (plans.destination("x", "g"),),
        "a2": (plans.destination("x", "g"),),
    }
    members = {name: HistoryMember(name, "g", each) for name, each in destinations.items()}
    play = Play(Topology("a list in a group", members))
    world = play.world
    play.until(50)
    world.keep("a2")
    world.relocate("x", ("a1", "a2"), "a1")
    play.until(world.now_us // 1000 + 500)
    world.put_back("a2", 50_000, in_place=True)
    play.end()


@pytest.mark.parametrize("planted", ["", "numbers forgotten"])
def test_an_old_copy_numbers_no_message_as_its_lost_tail(planted: str) -> None:
    """Before a peer has told it that it is one."""
    play = Play(plans.mesh(2), machines=SHOWN_BY_A_SCENARIO[planted] if planted else None)
    world, client = play.world, play.client("p", "m1")
    play.until(50)
    published(play, client, 20)
    world.keep("m1")
    client.publish_unnumbered("orders")
    play.until(world.now_us // 1000 + 300)
    world.put_back("m1", 30_000, in_place=True)
    world.partition({("m1", "m2")})
    play.until(world.now_us // 1000 + 500)
    client.move()
    play.until(world.now_us // 1000 + 100)
    assert client.machine.instance == "m1"
    client.publish_unnumbered("trades")
    play.until(world.now_us // 1000 + 100)
    world.heal()
    history = play.end(check=not planted)
    assert world.probes["unnumbered publish"] == 2
    assert world.probes["old copy found by peers"] == (not planted)
    found = {violation.law for violation in checkers.check_all(history)}
    assert ("store" in found) == bool(planted)


@pytest.mark.parametrize("planted", ["", "what comes back is its own"])
def test_what_came_back_to_an_old_copy_waits_for_who_brought_it_after_a_restart(
    planted: str,
) -> None:
    """`m3` publishes, and `m2` waits for an answer of `m1`, which is away by then. `m3` is given
    back an old copy, gets its message again from `m2`, which so waits there, too, and restarts.
    Were the message now what clients published at `m3` as it is, it would ask `m1`, that one `m2`,
    and that one `m3`, where `m2` waits."""
    play = Play(plans.mesh(3), machines=SHOWN_BY_A_SCENARIO.get(planted))
    world, client = play.world, play.client("p", "m3")
    play.until(50)
    world.keep("m3")
    world.partition({("m1", "m2")})
    client.publish(["orders"])
    play.until(70)
    assert play.had("m1", client, 1) and play.had("m2", client, 1)
    world.crash("m1")
    client.crash(1_500_000)
    world.put_back("m3", 30_000, in_place=False)
    while not (world.instances["m3"].alive and play.had("m3", client, 1)):
        play.until(world.now_us // 1000 + 5)
    play.until(world.now_us // 1000 + 200)
    machine = world.instances["m3"].machine
    m2 = world.disks["m2"].incarnation
    assert [each.route.sender for each in machine.waiters] == [m2]
    world.crash("m3", 30_000)
    play.until(world.now_us // 1000 + 200)
    history = play.end(check=not planted)
    if planted:
        assert {found.law for found in checkers.check_all(history)} == {"liveness"}


def test_an_old_copy_admits_no_client_before_it_has_caught_up() -> None:
    play, client = put_back(in_place=False)
    play.world.crash("m2")
    late = play.client("q", "m1")
    play.until(play.world.now_us // 1000 + 1_000)
    assert not play.world.instances["m1"].machine.ready
    assert play.world.probes["logon refused, not ready"] > 0 and not late.machine.instance
    play.world.restart("m2")
    play.until(play.world.now_us // 1000 + 1_000)
    assert late.machine.instance == "m1" and not tail_of(play, client)
    play.end()


def test_a_history_names_the_server_when_it_is_compared_and_when_the_link_begins(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The comparison goes on in slices, and may never end: until then acks wait for the server
    before, and that one is called safe."""
    monkeypatch.setattr(instance_module, "SLICED_CHANCE", 1.0)
    play = Play(fabric(a=(to("b"),), b=()))
    machine = play.world.instances["a"].machine
    compared, began, named = machine.compare, machine.link_connected, []

    def seen() -> set[type]:
        return {type(op) for op in play.world.history.operations} & {LinkReached, LinkConnected}

    def compare(*arguments: Any) -> Any:
        named.append(("compare", seen()))
        return compared(*arguments)

    def link_connected(*arguments: Any, **by_name: Any) -> Any:
        named.append(("begin", seen()))
        return began(*arguments, **by_name)

    machine.compare = compare  # type: ignore[method-assign]
    machine.link_connected = link_connected  # type: ignore[method-assign]
    play.until(100)
    assert named == [("compare", {LinkReached}), ("begin", {LinkReached, LinkConnected})]


@pytest.mark.parametrize("step", ["link_connected", "_decide"])
@pytest.mark.parametrize("planted", ["", "link before commits"])
def test_what_is_on_disk_and_not_taken_counts_when_a_peer_connects(planted: str, step: str) -> None:
    """`m1` has committed a message when a link has reached `m2`, or is let in from there, and its
    loop is busy. It is sent before `m2` is ready, and told to be held."""
    machines = MISTAKES[planted] if planted else None
    play = Play(plans.mesh(2), machines=machines)
    client = play.client("p", "m1", "m2")
    play.until(50)
    published(play, client, 3)
    m1 = play.world.instances["m1"]
    reached = getattr(m1, step)

    def busy(call: Callable[..., None], *arguments: object) -> None:
        play.world.after(10_000, call, *arguments)

    def publish_first(*arguments: Any) -> None:
        m1.runtime.loop.call_soon_threadsafe = busy  # type: ignore[method-assign]
        client.publish(["orders"])
        play.world.after(3_000, reached, *arguments)

    setattr(m1, step, publish_first)
    play.world.crash("m2", lose_disk=True)
    play.world.restart("m2")
    m2 = play.world.instances["m2"]
    told: list[SequenceSet] = []
    connected = m2.link_connected

    def hear(link: LinkProcess, connection: Connection, welcome: Welcome) -> None:
        told.append(welcome.answer.held.of(client.machine.outbox.publisher).copy())
        connected(link, connection, welcome)

    m2.link_connected = hear  # type: ignore[method-assign]
    while not (m2.machine.ready if step == "link_connected" else told):
        play.world.run_until(play.world.now_us + 100)
    if step == "link_connected":
        assert play.had("m2", client, 4) == (not planted)
    else:
        assert told == [SequenceSet([(1, 3 if planted else 4)])]
    play.end()


def test_an_old_copy_whose_epochs_were_used_is_found_by_its_links() -> None:
    """Nobody holds more of it than it does: only its epochs went back."""
    play = Play(fabric(uniform=False, m1=(to("m2"),), m2=()))
    client = play.client("p", "m1")
    play.until(50)
    published(play, client, 5)
    play.world.keep("m1")
    for _ in range(3):
        play.world.crash_link("m1", "to-m2")
        play.until(play.world.now_us // 1000 + 200)
    play.world.put_back("m1", 100_000, in_place=True)
    before = play.world.disks["m1"].incarnation
    play.until(play.world.now_us // 1000 + 1_000)
    assert play.world.disks["m1"].incarnation != before
    assert play.world.probes["old copy found by peers"] == 1
    play.end()


def test_an_old_copy_that_is_put_back_still_says_what_nobody_has() -> None:
    """It noted that in a segment that it has removed since."""
    play = Play(plans.mesh(2), retention_bytes=0)
    client = play.client("p", "m2", "m1")
    play.until(50)
    published(play, client, 60)
    play.world.disks["m1"].copies_from = "m2"
    play.world.crash("m1", lose_disk=True)
    play.world.restart("m1")
    published(play, client, 60)
    lacked = unavailable_at(play, "m1", client)
    kinds = {run.kind for run in play.world.disks["m1"].journal.read(0)}
    assert lacked and Kind.UNAVAILABLE not in kinds
    play.world.keep("m1")
    published(play, client, 10)
    play.world.put_back("m1", 100_000, in_place=True)
    play.until(play.world.now_us // 1000 + 1_500)
    assert unavailable_at(play, "m1", client)[:1] == lacked
    play.end()


@pytest.mark.parametrize("planted", ["", "finds what was removed"])
def test_who_has_removed_what_it_is_asked_for_asks_no_server_that_cannot_get_it(
    planted: str,
) -> None:
    """`a1` begins anew with an old copy, older than its first recovery point, and asks `x` for what
    it published. `x` has read that not long ago, has removed it since, and its link has gone on to
    `a2`, which never gets it."""
    topology = listed(a1=(to("x"),), a2=(to("x", sync=False),))
    seldom = replace(STEADY, hint_us=60_000_000)
    machines = SHOWN_BY_A_SCENARIO.get(planted)
    play = Play(topology, machines=machines, recent_bytes_max=0, timing=seldom)
    world, client = play.world, play.client("p", "a1", "x", "a2")
    play.until(50)
    world.crash("a2")
    published(play, client, 40)
    world.keep("a1")
    world.crash("a1", 20_000)
    play.until(world.now_us // 1000 + 700)
    assert world.probes["contents fetched for a comparison"] > 0
    x = world.instances["x"]
    x.remove_segments()
    assert x.journal.first_txid > 1
    world.put_back("a1", 200_000, in_place=False)
    world.restart("a2")
    play.until(world.now_us // 1000 + 1_500)
    assert unavailable_at(play, "a2", client)
    assert bool(world.instances["a1"].machine.pending) == bool(planted)
    history = play.end(check=not planted)
    found = {violation.law for violation in checkers.check_all(history)}
    assert found == ({"liveness"} if planted else set())


@pytest.mark.parametrize("planted", ["", "what came round not shown"])
def test_an_old_copy_is_found_by_what_comes_round_after_the_connect(planted: str) -> None:
    """`a` replicates to `b`, that to `c`, that to `a`. What `a` has lost comes to `c` when its link
    to `a` has connected again; nothing on its way tells `a` of it."""
    machines = SHOWN_BY_A_SCENARIO[planted] if planted else None
    ring = fabric(False, a=(to("b"),), b=(to("c", sync=False),), c=(to("a"),))
    play = Play(ring, machines=machines)
    client = play.client("p", "a")
    play.until(50)
    play.world.keep("a")
    play.world.partition({("b", "c")})
    client.publish(["orders"] * 5)
    play.until(100)
    assert client.store.messages == 0 and not play.had("c", client, 1)
    play.world.put_back("a", 10_000, in_place=True)
    before = play.world.disks["a"].incarnation
    play.until(400)
    assert play.world.instances["c"].machine.destinations["to-a"].caught_up
    assert play.world.disks["a"].incarnation == before
    play.world.heal()
    play.until(1_500)
    assert play.had("a", client, 5) == (not planted)
    history = play.end(check=False)
    found = {violation.law for violation in checkers.check_all(history)}
    assert found == ({"liveness"} if planted else set())


def behind_one_address(*, declared: bool) -> Play:
    """`a` replicates to one address, at which `x` answers now and `y` later; the two are a pair."""
    to_wide = replace(plans.destination(("x", "y"), "g", sync=False), addresses=("wide",))
    topology = fabric(
        uniform=False,
        a=(replace(to_wide, wide_ip=declared),),
        x=(to("y"),),
        y=(to("x"),),
    )
    return Play(replace(topology, wide={"wide": ("x", "y")}))


@pytest.mark.covers("The replication chapters", "wide IP: several servers behind one address")
@pytest.mark.parametrize("restarts", [False, True])
def test_of_several_servers_behind_one_address_persisted_frees_the_journal(restarts: bool) -> None:
    """`x` has stored everything, `y` nothing of it, and then the disk of `x` is lost."""
    play = behind_one_address(declared=True)
    client = play.client("p", "a")
    play.until(50)
    play.world.partition({("x", "y")})
    published(play, client, 60)
    assert play.had("x", client, 60)
    a = play.world.instances["a"]
    assert a.machine.destinations["to-x"].stored_txid >= 60
    a.remove_segments()
    if restarts:
        # What `x` has not answered yet, a restart must not forget.
        play.world.crash("a")
        play.world.restart("a")
        play.until(play.world.now_us // 1000 + 500)
        a = play.world.instances["a"]
        assert a.machine.destinations["to-x"].caught_up
        a.remove_segments()
    assert a.journal.first_txid == 1
    play.world.crash("x", lose_disk=True)
    play.world.point("wide", "y")
    play.until(play.world.now_us // 1000 + 500)
    assert all(play.had("y", client, n) for n in range(1, 61))
    assert play.world.probes["second server behind one address"] == 1
    play.world.restart("x")
    play.end()
    a.remove_segments()
    assert a.journal.first_txid > 1


@pytest.mark.covers("The replication chapters", "wide IP: several servers behind one address")
def test_an_address_that_has_led_to_two_servers_is_taken_for_one_of_several() -> None:
    """Nobody said so; it is found out, and known after a restart."""
    play = behind_one_address(declared=False)
    client = play.client("p", "a")
    play.until(50)
    for server in ("y", "x"):
        play.world.point("wide", server)
        play.world.crash_link("a", "to-x")
        play.until(play.world.now_us // 1000 + 200)
    play.world.crash("a")
    play.world.restart("a")
    play.until(play.world.now_us // 1000 + 500)
    play.world.partition({("x", "y")})
    published(play, client, 60)
    a = play.world.instances["a"]
    assert a.machine.destinations["to-x"].stored_txid >= 60
    a.remove_segments()
    assert a.journal.first_txid == 1
    play.end()


def published(play: Play, client: SimClient, messages: int) -> None:
    """So many messages, over several segments."""
    for _ in range(messages):
        client.publish(["orders"])
        play.until(play.world.now_us // 1000 + 2)
    play.until(play.world.now_us // 1000 + 300)


def come_back_with_less(machines: Machines | None = None) -> tuple[Play, SimClient]:
    """`b` loses its disk while `a`, which has released everything, is restarted: what that life
    released counts no more, and retention waits for `b`."""
    play = Play(fabric(a=(to("b"),), b=()), retention_bytes=1 << 30, machines=machines)
    client = play.client("p", "a")
    play.until(50)
    published(play, client, 60)
    a = play.world.instances["a"]
    assert a.machine.removable_before() > 60 and a.journal.first_txid == 1
    play.world.crash("a")
    play.world.crash("b", lose_disk=True)
    # Its configuration is another one now.
    play.world.retention_bytes = play.world.disks["a"].journal._retention_bytes = 0
    play.world.restart("a")
    play.until(play.world.now_us // 1000 + 500)
    return play, client


@pytest.mark.covers("Laws", "4 safe removal")
def test_nothing_is_removed_by_what_an_earlier_life_released() -> None:
    play, client = come_back_with_less()
    assert play.world.disks["a"].journal.first_txid == 1
    play.world.restart("b")
    play.until(play.world.now_us // 1000 + 1_000)
    assert play.had("b", client, 1)
    assert play.world.disks["a"].journal.first_txid > 1, "it has all of it again"
    play.end()


def lost_its_disk(machines: Machines | None = None) -> tuple[Play, SimClient]:
    """`b` is gone and its disk with it; a rotation follows before `a` has looked again at what may
    be removed."""
    play = Play(fabric(a=(to("b", sync=False),), b=()), retention_bytes=1 << 30, machines=machines)
    client = play.client("p", "a")
    play.until(50)
    published(play, client, 60)
    play.world.retention_bytes = play.world.disks["a"].journal._retention_bytes = 0
    a = play.world.instances["a"]
    while a.machine.destinations["to-b"].connected:
        play.world.crash("b", lose_disk=True)
        play.world.run_until(play.world.now_us + 500)
    before = len(a.journal.segments())
    client.publish(["orders"] * 100)
    play.world.run_until(play.world.now_us + 5_000)
    client.publish(["orders"])
    while len(a.journal.segments()) == before:
        play.world.run_until(play.world.now_us + 500)
    play.world.run_until(play.world.now_us + 500)
    return play, client


@pytest.mark.covers("Laws", "4 safe removal")
def test_a_destination_that_comes_back_with_less_wins_against_retention() -> None:
    play, client = lost_its_disk()
    assert play.world.disks["a"].journal.first_txid == 1
    play.world.restart("b")
    play.until(play.world.now_us // 1000 + 1_000)
    assert play.had("b", client, 1)
    play.end()


def subscribed_after_removal(machines: Machines | None = None) -> tuple[set[int], set[int]]:
    """What a subscriber gets that comes when the oldest segments are removed, and what there is."""
    play = Play(fabric(a=(to("b"),), b=()), machines=machines)
    client = play.client("p", "a")
    play.until(50)
    published(play, client, 60)
    instance = play.world.instances["a"]
    instance.remove_segments()
    kept_from = instance.journal.first_txid
    assert kept_from > 10
    play.client("s", "a", subscribe=".*")
    play.until(play.world.now_us // 1000 + 500)
    got = {
        sequence
        for operation in play.world.history.operations
        if isinstance(operation, MessagesDelivered) and operation.subscriber == "s"
        for sequence in operation.sequences
    }
    return got, set(range(kept_from, 61))


@pytest.mark.covers("Journal", "a subscriber that comes after removal misses nothing")
def test_a_subscriber_that_comes_after_removal_gets_all_that_is_there() -> None:
    got, there = subscribed_after_removal()
    assert got == there
    got, there = subscribed_after_removal(SHOWN_BY_A_SCENARIO["one behind after removal"])
    assert there - got == {min(there)}, "the oldest one"


def away_while_it_is_removed(
    planted: str = "", *, elsewhere: bool = False
) -> tuple[RunHistory, list[MissingHeard], int]:
    """A subscriber is away while retention removes what it has not received. Another publisher has
    published before it came alone.

    Args:
        elsewhere: whether the other instance, which removed nothing, is safe to fail over to.

    Returns:
        The history, what the subscriber was told, and the lowest transaction that is left.
    """
    topology = fabric(a=(to("b", sync=elsewhere),), b=(to("a"),))
    play = Play(topology, machines=MISTAKES.get(planted))
    early, client = play.client("q", "a"), play.client("p", "a")
    play.until(50)
    published(play, early, 10)
    subscriber = play.client("s", "a", subscribe=".*")
    play.until(play.world.now_us // 1000 + 100)
    published(play, client, 20)
    subscriber.go_away(1_000_000)
    published(play, client, 60)
    a = play.world.instances["a"]
    a.remove_segments()
    play.until(play.world.now_us // 1000 + 1_000)
    published(play, client, 5)
    subscriber.move()
    kept_from = play.world.disks["a"].journal.first_txid
    history = play.end(check=False)
    told = [each for each in history.operations if isinstance(each, MissingHeard)]
    return history, told, kept_from


@pytest.mark.covers("Journal", "a subscriber that goes on is told what retention removed")
def test_a_subscriber_that_was_away_is_told_once_what_retention_removed() -> None:
    """It comes back twice, and gets all the rest."""
    history, told, kept_from = away_while_it_is_removed()
    assert not checkers.check_all(history)
    got = {
        (operation.publisher, sequence)
        for operation in history.operations
        if isinstance(operation, MessagesDelivered)
        for sequence in operation.sequences
    }
    assert [(each.subscriber, each.instance) for each in told] == [("s", "a")]
    assert len(got) + told[0].messages == 10 + 85 and 10 < told[0].messages < kept_from


def test_a_subscriber_that_goes_on_where_nothing_is_removed_is_told_nothing() -> None:
    history, told, _ = away_while_it_is_removed(elsewhere=True)
    assert not checkers.check_all(history) and not told


@pytest.mark.parametrize("planted", ["removed: untold", "removed: last untold"])
def test_where_what_retention_removed_is_not_told_it_is_seen(planted: str) -> None:
    history, _, _ = away_while_it_is_removed(planted)
    assert {each.law for each in checkers.check_all(history)} == {"told missing"}


def overtaken(machines: Machines | None = None) -> tuple[RunHistory, list[MissingHeard], int]:
    """A subscriber is connected, and read nothing, while retention removes what it has not got."""
    play = Play(fabric(a=(to("b", sync=False),), b=(to("a"),)), machines=machines)
    client, _ = play.client("p", "a"), play.client("s", "a", subscribe=".*")
    play.until(50)
    published(play, client, 20)
    play.until(play.world.now_us // 1000 + 100)
    a = play.world.instances["a"]
    wake, a._wake = a._wake, lambda session, cursor: None  # type: ignore[method-assign]
    published(play, client, 60)
    a.remove_segments()
    a._wake = wake  # type: ignore[method-assign]
    published(play, client, 5)
    kept_from = play.world.disks["a"].journal.first_txid
    history = play.end(check=False)
    assert play.world.probes["subscriber overtaken by retention"] == (machines is None)
    told = [each for each in history.operations if isinstance(each, MissingHeard)]
    return history, told, kept_from


@pytest.mark.covers(
    "Journal",
    "a subscriber that goes on is told what retention removed",
    note="while it is connected",
)
def test_a_connected_subscriber_that_retention_overtakes_is_told_as_one_that_comes_back() -> None:
    history, told, kept_from = overtaken()
    assert not checkers.check_all(history)
    got = {
        sequence
        for operation in history.operations
        if isinstance(operation, MessagesDelivered)
        for sequence in operation.sequences
    }
    assert [(each.subscriber, each.instance) for each in told] == [("s", "a")]
    assert len(got) + told[0].messages == 85 and 20 < told[0].messages < kept_from


@pytest.mark.covers(
    "Journal",
    "a subscriber that goes on is told what retention removed",
    note="while it is connected",
)
def test_where_a_connected_subscriber_goes_on_behind_a_gap_in_silence_it_is_seen() -> None:
    history, told, _ = overtaken(SHOWN_BY_A_SCENARIO["overtaken untold"])
    assert not told
    assert {each.law for each in checkers.check_all(history)} == {"told missing"}


def sent_ahead_of_an_upgrade(machines: Machines | None = None) -> SimClient:
    """The link is woken for a commit before it hears of the upgrade that came before: it sends
    unmarked what the instance waits for."""
    play = Play(fabric(a=(to("b"),), b=()), machines=machines)
    client = play.client("p", "a")
    play.until(50)
    a = play.world.instances["a"]
    a.downgrade("to-b")
    play.until(100)
    link = a.links["to-b"]
    heard = link.mode_set
    link.mode_set = lambda sync: play.world.after(5_000, heard, sync)  # type: ignore[method-assign]
    a.upgrade("to-b")
    client.publish(["orders"] * 3)
    play.until(600)
    return client


def test_what_a_link_sent_ahead_of_an_upgrade_is_asked_for() -> None:
    assert sent_ahead_of_an_upgrade().store.messages == 0
    assert sent_ahead_of_an_upgrade(SHOWN_BY_A_SCENARIO["unmarked not asked"]).store.messages == 3


def failed_behind_a_commit(machines: Machines | None = None) -> tuple[Play, SimClient]:
    """The writer thread commits, then fails, and the instance's loop hears of both at once."""
    play = Play(fabric(a=(to("b"),), b=()), machines=machines)
    client = play.client("p", "a")
    play.until(50)
    a = play.world.instances["a"]
    client.publish(["orders"] * 3)
    while not a.journal.staged:
        play.world.run_until(play.world.now_us + 10)
    loop = a.runtime.loop
    loop_is_busy = loop.call_soon_threadsafe
    held_back: list[tuple[Callable[..., None], tuple[object, ...]]] = []

    def keep(call: Callable[..., None], *arguments: object) -> None:
        held_back.append((call, arguments))

    loop.call_soon_threadsafe = keep  # type: ignore[method-assign]
    a.journal.commit()
    client.publish(["orders"] * 3)
    while not a.journal.staged:
        play.world.run_until(play.world.now_us + 10)
    a.journal.fail_next(StorageFull("no space left", "a"))
    a.journal.commit()
    loop.call_soon_threadsafe = loop_is_busy  # type: ignore[method-assign]
    # Of the two the failure comes first: it brings the commits ahead of it with it.
    for call, arguments in reversed(held_back):
        call(*arguments)
    play.until(play.world.now_us // 1000 + 500)
    return play, client


@pytest.mark.covers("Journal", "a commit that failed takes nothing with it that was committed")
def test_a_failed_commit_takes_nothing_with_it_that_was_committed_before() -> None:
    play, client = failed_behind_a_commit()
    assert play.world.probes["commit failure behind a commit that is not taken"] == 1
    play.until(play.world.now_us // 1000 + 1_000)
    assert client.store.messages == 0
    play.end()
    with pytest.raises(AssertionError, match="a commit beyond what was staged"):
        failed_behind_a_commit(SHOWN_BY_A_SCENARIO["failure forgets commits"])


@pytest.mark.covers("Laws", "4 safe removal", note="with the mistakes")
@pytest.mark.parametrize(
    ("mistake", "scenario"),
    [("floor of an earlier life", come_back_with_less), ("floor at the tick", lost_its_disk)],
)
def test_retention_that_does_not_wait_shows(
    mistake: str, scenario: Callable[[Machines], tuple[Play, SimClient]]
) -> None:
    play, _ = scenario(SHOWN_BY_A_SCENARIO[mistake])
    assert play.world.disks["a"].journal.first_txid > 1, "what b lacks now is gone"


def unavailable_at(play: Play, name: str, client: SimClient) -> list[tuple[int, int]]:
    missing = play.world.instances[name].machine.missing.ranges.get(client.machine.outbox.publisher)
    return list(missing) if missing is not None else []


@pytest.mark.covers("Resync and bootstrap", "what no upstream has any more is recorded")
@pytest.mark.covers("The replication chapters", "a command whose journal was removed")
def test_what_every_upstream_has_removed_is_recorded_and_replication_goes_on() -> None:
    """`b` loses its disk when `a` has removed the oldest segments."""
    play = Play(fabric(a=(to("b"),), b=(to("a"),)))
    client = play.client("p", "a")
    play.until(50)
    published(play, client, 60)
    a = play.world.instances["a"]
    a.remove_segments()
    kept_from = a.journal.first_txid
    assert kept_from > 10
    play.world.crash("b", lose_disk=True)
    play.until(1_500)
    play.world.restart("b")
    play.until(2_500)
    assert unavailable_at(play, "b", client) == [(1, kept_from - 1)]
    assert a.machine.destinations["to-b"].safe, "what retention removed is missed by nobody"
    assert play.had("b", client, kept_from) and not play.had("b", client, kept_from - 1)
    assert play.world.probes["unavailable recorded"] == 1
    published(play, client, 5)
    assert client.store.messages == 0, "replication goes on"
    for name in ("b", "a"):
        # Over restarts: its own, and those of who tells it.
        play.world.crash(name)
        play.until(play.world.now_us // 1000 + 50)
        play.world.restart(name)
        play.until(play.world.now_us // 1000 + 1_000)
        assert unavailable_at(play, "b", client) == [(1, kept_from - 1)]
    play.end()
    assert play.world.probes["unavailable recorded"] == 1, "one note, however often it is told"


@pytest.mark.covers("Resync and bootstrap", "it waits for who may still bring it")
def test_what_another_upstream_brings_after_all_is_taken_back() -> None:
    """`c` loses its disk and hears `a` alone, which has removed what `b` has still."""
    play = Play(plans.mesh(3))
    client = play.client("p", "m1")
    play.until(50)
    published(play, client, 60)
    play.world.instances["m1"].remove_segments()
    kept_from = play.world.instances["m1"].journal.first_txid
    play.world.partition({("m2", "m3")})
    play.world.crash("m3", lose_disk=True)
    play.until(1_500)
    play.world.restart("m3")
    play.until(2_500)
    assert unavailable_at(play, "m3", client) == [(1, kept_from - 1)]
    play.world.heal()
    play.until(4_000)
    assert unavailable_at(play, "m3", client) == []
    assert play.had("m3", client, 1)
    assert play.world.probes["available after all"]
    play.end()


@pytest.mark.covers("Resync and bootstrap", "it waits for who may still bring it")
def test_nobody_is_called_missing_what_another_upstream_is_about_to_bring() -> None:
    """As before, but both are there: what `b` brings late is waited for."""
    play = Play(plans.mesh(3))
    client = play.client("p", "m1")
    play.until(50)
    published(play, client, 60)
    play.world.instances["m1"].remove_segments()
    play.world.crash("m3", lose_disk=True)
    play.until(1_500)
    play.world.restart("m3")
    play.until(3_500)
    assert play.had("m3", client, 1) and play.world.probes["unavailable recorded"] == 0
    play.end()


def test_a_link_that_is_gone_when_its_logon_is_decided_is_waited_for_by_nobody() -> None:
    """It ends while its epoch is written: taken in, it would catch up never, and nobody would say
    what is missing."""
    play = Play(plans.mesh(3))
    client = play.client("p", "m1")
    play.until(50)
    published(play, client, 60)
    for name in ("m1", "m2"):
        play.world.instances[name].remove_segments()
    kept_from = play.world.instances["m1"].journal.first_txid
    play.world.partition({("m2", "m3")})
    play.world.crash("m3", lose_disk=True)
    play.until(1_500)
    play.world.restart("m3")
    # m2's logon alone gets through, in the middle of what m1 brings.
    play.until(1_501)
    link = play.world.instances["m2"].links["to-m3"]
    ending = Connection(play.world, "m2", "m3")
    used = play.world.disks["m2"].epochs_used
    used["to-m3"] += 1
    link._log_on(ending, used["to-m3"])
    ending.close(0, "given up")
    ending._end(1, "given up")
    play.until(2_500)
    assert play.world.probes["logon of a link that is gone"] == 1
    assert unavailable_at(play, "m3", client) == [(1, kept_from - 1)]
    assert not play.world.instances["m3"].machine.missing.is_judging
    play.end()


@pytest.mark.covers("Resync and bootstrap", "a link that carries a part says how many at most")
def test_of_what_a_link_carries_in_part_nobody_can_say_what_is_missing() -> None:
    """`b` gets trades alone. `a` has removed orders and trades: at most so many are missing."""
    play = Play(fabric(uniform=False, a=(to("b", topic="trades"),), b=()))
    client = play.client("p", "a")
    play.until(50)
    for _ in range(30):
        client.publish(["orders", "trades"])
        play.until(play.world.now_us // 1000 + 2)
    play.until(500)
    play.world.instances["a"].remove_segments()
    play.world.crash("b", lose_disk=True)
    play.until(1_500)
    play.world.restart("b")
    play.until(2_500)
    assert unavailable_at(play, "b", client) == []
    assert play.world.probes["unavailable by a part"] == 1
    play.end()


@pytest.mark.parametrize("planted", ["", "gone and not asked for"])
def test_what_is_removed_and_not_answered_is_asked_for_by_its_name(planted: str) -> None:
    """The answers of `b` are lost with a connection, and what they are for is removed before the
    next one: it cannot be sent once more."""
    machines = SHOWN_BY_A_SCENARIO[planted] if planted else None
    play = Play(fabric(a=(to("b"),), b=()), window_bytes=1 << 20, machines=machines)
    client = play.client("p", "a")
    play.until(50)
    a = play.world.instances["a"]
    connection = a.links["to-b"].connection
    assert connection is not None
    connection.dead[1] = True
    published(play, client, 60)
    assert play.had("b", client, 60) and client.store.messages == 60
    a.remove_segments(force=True)
    assert a.journal.first_txid > 10
    connection.sever()
    play.until(play.world.now_us // 1000 + 500)
    assert client.store.messages == (60 if planted else 0)
    history = play.end(check=False)
    found = {violation.law for violation in checkers.check_all(history)}
    assert found == ({"liveness"} if planted else set())


@pytest.mark.covers("Resync and bootstrap", "what was removed by force keeps nobody waiting")
def test_what_was_removed_by_force_is_not_waited_for_after_a_downgrade() -> None:
    """`b` is down and downgraded when `a` removes by force what `b` lacks."""
    play = Play(fabric(a=(to("b"),), b=()))
    client = play.client("p", "a")
    play.until(50)
    play.world.crash("b")
    play.world.instances["a"].downgrade("to-b")
    published(play, client, 60)
    assert client.store.messages == 0
    play.world.instances["a"].remove_segments(force=True)
    kept_from = play.world.instances["a"].journal.first_txid
    assert kept_from > 10
    play.world.restart("b")
    play.until(play.world.now_us // 1000 + 1_000)
    ledger = play.world.instances["a"].machine.destinations["to-b"]
    assert not ledger.unacked and ledger.stranded.count == kept_from - 1
    assert unavailable_at(play, "b", client) == [(1, kept_from - 1)]
    play.world.instances["a"].upgrade("to-b")
    play.until(play.world.now_us // 1000 + 200)
    assert ledger.sync and not ledger.safe, "what was acknowledged is not there"
    history = play.end(check=False)
    assert {found.law for found in checkers.check_all(history)} == {"removal"}


def test_what_a_downgrade_released_is_not_asked_of_a_server_that_comes_back_without_it() -> None:
    """`m2`, where it was published, loses its disk and comes back as a copy of `m3`. There the
    client has published it again, and nobody waits for it any more: `m1` was taken off by hand, and
    to what `m2` was it was not routed. That `m2` as it is now has a sync link to `m1` of its own is
    no reason to doubt what is durable already."""
    play = Play(plans.mesh(3))
    world, client = play.world, play.client("p", "m2", "m3")
    play.until(50)
    world.partition({("m1", "m2"), ("m1", "m3")})
    client.publish(["orders"])
    play.until(80)
    assert play.had("m3", client, 1)
    world.disks["m2"].copies_from = "m3"
    world.crash("m2", 200_000, lose_disk=True)
    play.until(130)
    assert client.machine.instance == "m3"
    client.crash(170_000)
    play.until(140)
    world.instances["m3"].downgrade("to-m1")
    play.until(299)
    assert play.had("m2", client, 1) and not world.instances["m2"].machine.ready
    play.until(310)
    assert client.store.messages == 0, "its logon at m3 named it durable"
    history = play.end()
    assert acked_at_us(history, client, 1) < journaled_at_us(history, "m1", client, 1)


def test_where_the_source_of_a_copy_waits_for_it_another_one_is_named() -> None:
    """`a` lost its disk and is to be a copy of `b`, which is moved meanwhile, and waits to catch up
    with `a`: nobody else replicates to it. Both tell the operator (end_to_end/test_bootstrap.py),
    who names `c` instead."""
    play = Play(fabric(False, a=(to("b"), to("c")), b=(), c=()))
    world, client = play.world, play.client("p", "a")
    play.until(50)
    published(play, client, 10)
    world.disks["a"].copies_from = "b"
    world.crash("b")
    world.crash("a", 20_000, lose_disk=True)
    world.relocate("b", (), "c")
    play.until(world.now_us // 1000 + 1_000)
    assert not world.instances["a"].alive
    assert world.instances["b"].alive and not world.instances["b"].machine.ready
    play.end()
    assert world.instances["b"].machine.ready and play.had("a", client, 10)


@pytest.mark.covers("Resync and bootstrap", "bootstrap: the log of one source")
def test_an_instance_that_begins_as_a_copy_is_sent_only_what_came_since() -> None:
    """`a` publishes and `b` publishes; `b` loses its disk and copies from `a`, which has removed
    its oldest segments and `c` has not."""
    play = Play(plans.mesh(3))
    clients = [play.client("p1", "m1"), play.client("p2", "m2")]
    play.until(50)
    for client in clients:
        published(play, client, 40)
    play.world.instances["m1"].remove_segments()
    kept_from = play.world.instances["m1"].journal.first_txid
    assert kept_from > 10
    play.world.partition({("m2", "m3")})
    nemesis.perform(play.world, "lose_disk_and_copy", ("m2", 50, "m1"))
    since = play.world.now_us
    clients[0].publish(["orders"])
    play.until(play.world.now_us // 1000 + 2_000)
    machine = play.world.instances["m2"].machine
    assert machine.ready and machine.counters.replicated_in == 0, "all of it was copied"
    assert play.had("m2", clients[1], 40), "what it published itself came back"
    assert len(unavailable_at(play, "m2", clients[0])) == 1
    clients[0].publish(["orders"])
    play.until(play.world.now_us // 1000 + 200)
    assert machine.counters.replicated_in == 1
    play.world.heal()
    play.until(play.world.now_us // 1000 + 2_000)
    assert play.had("m2", clients[0], 1), "another one had it still"
    assert unavailable_at(play, "m2", clients[0]) == []
    history = play.end()
    copied = [
        op for op in history.operations
        if isinstance(op, RunJournaled) and op.instance == "m2" and op[0] > since
    ]  # fmt: skip
    m1 = play.world.disks["m1"].incarnation
    assert {op.path[-1] for op in copied if op[0] == copied[0][0]} == {m1}


@pytest.mark.parametrize("planted", ["", "unsure for ever"])
def test_a_list_owes_nothing_of_what_only_a_copy_behind_it_holds(planted: str) -> None:
    """`a` sends orders to `x` or `y`. `x` begins as a copy of `a`, trades and all, and waits for
    `z` with them; `a`, in its next life, hears that from `x`, which dies. Nobody sends `y` trades:
    were they owed by the list, `y` would never be safe, nor would `a` free its journal.
    (Seed 900010761.)"""
    machines = SHOWN_BY_A_SCENARIO.get(planted)
    play = Play(
        fabric(False, a=(to("x", "y", topic="orders"),), x=(to("z"),), y=(), z=()),
        machines=machines,
    )
    world, client = play.world, play.client("p", "a")
    ledger = lambda: world.instances["a"].machine.destinations["to-x"]  # noqa: E731
    play.until(50)
    client.publish(["orders", "trades"] * 3)
    play.until(100)
    world.crash("z")
    nemesis.perform(world, "lose_disk_and_copy", ("x", 50, "a"))
    world.crash("y")
    play.until(world.now_us // 1000 + 100)
    assert world.instances["x"].alive and play.had("x", client, 2)
    world.crash("a")
    world.restart("a")
    play.until(world.now_us // 1000 + 300)
    assert ledger().connected and ledger().unacked, "x waits for z, and y may be the next"
    world.crash("x")
    world.restart("y")
    play.until(world.now_us // 1000 + 1_000)
    assert ledger().caught_up and all(play.had("y", client, each) for each in (1, 3, 5))
    assert bool(ledger().unacked) == bool(planted)
    assert ledger().proved == (not planted)
    world.restart("x")
    world.restart("z")
    history = play.end(check=not planted)
    found = {violation.law for violation in checkers.check_all(history)}
    assert found == ({"liveness"} if planted else set())


@pytest.mark.covers("Resync and bootstrap", "a new disk whose group never returns is admitted")
def test_an_instance_whose_group_never_returns_is_admitted_by_hand() -> None:
    play = Play(fabric(a=(to("b"),), b=(to("a"),)))
    client = play.client("p", "b", "a")
    play.until(50)
    client.publish(["orders"])
    play.until(100)
    play.world.crash("a")
    play.world.crash("b", lose_disk=True)
    play.until(200)
    play.world.restart("b")
    play.until(1_000)
    b = play.world.instances["b"]
    with pytest.raises(AdmissionRefused, match="to-a of group g is not connected"):
        b.machine.admit(("a",))
    assert not b.machine.ready and not client.machine.instance
    b.perform(b.machine.admit(("a",), force=True))
    b.downgrade("to-a")
    play.until(2_000)
    assert client.machine.instance == "b"
    client.publish(["orders"])
    play.until(2_100)
    assert client.store.messages == 0
    play.world.restart("a")
    history = play.end()
    assert play.had("b", client, 1), "the group came back after all"
    assert any(isinstance(op, InstanceReady) and op.by_hand for op in history.operations)


@pytest.mark.covers("Resync and bootstrap", "a new disk whose group never returns is admitted")
def test_what_every_peer_of_the_group_holds_is_here_so_it_is_admitted_unforced() -> None:
    """`b` reaches `a`, whose own link to `b` is broken: nobody says that it has caught up."""
    play = Play(fabric(a=(to("b"),), b=(to("a"),)))
    client = play.client("p", "a")
    play.until(50)
    play.world.crash("b", lose_disk=True)
    a = play.world.instances["a"]
    a.links["to-b"].die()
    a.perform(a.machine.link_disconnected("to-b", "its process ended"))
    play.world.restart("b")
    play.until(500)
    machine = play.world.instances["b"].machine
    assert not machine.ready and machine.destinations["to-a"].connected
    play.world.instances["b"].perform(machine.admit(("a",)))
    assert machine.ready

    # The same with a message that `b` lacks.
    play.world.instances["a"].downgrade("to-b")
    client.publish(["orders"])
    play.until(600)
    play.world.crash("b", lose_disk=True)
    play.world.restart("b")
    play.until(1_200)
    with pytest.raises(AdmissionRefused, match="to-a holds 1 messages that are not here"):
        play.world.instances["b"].machine.admit(("a",))


@pytest.mark.covers(
    "Resync and bootstrap", "a new disk whose group never returns is admitted", note="planted"
)
@pytest.mark.parametrize("planted", ["", "admits unasked"])
def test_who_only_replicates_to_an_instance_may_hold_what_it_lacks(planted: str) -> None:
    """`a` replicates to `b`, and `b` to `c`: what `a` took while `b` was away only `a` has."""
    machines = SHOWN_BY_A_SCENARIO[planted] if planted else None
    play = Play(fabric(a=(to("b"),), b=(to("c"),), c=()), machines=machines)
    client = play.client("p", "a")
    play.until(50)
    play.world.crash("b", lose_disk=True)
    client.publish(["orders"])
    play.until(100)
    play.world.crash("a")
    play.world.restart("b")
    play.until(1_000)
    b = play.world.instances["b"]
    assert not b.machine.ready and b.machine.destinations["to-c"].connected
    b.admit()
    assert b.machine.ready == bool(planted)
    play.world.restart("a")
    history = play.end(check=not planted)
    found = {violation.law for violation in checkers.check_all(history)}
    assert found == ({"readiness"} if planted else set())


@pytest.mark.covers("Resync and bootstrap", "checkpoints: a quiet instance is known to be up")
def test_a_quiet_instance_is_known_to_be_up_to_date_without_checkpoints() -> None:
    """What checkpoints are for: `m3` knows of each peer that there is nothing more to come, of the
    one that never had anything and of the one whose publisher is silent, and they know it of it."""
    play = Play(plans.mesh(3))
    client = play.client("p", "m1")
    play.until(50)
    client.publish(["orders"])
    play.until(300)
    journaled = len([op for op in play.world.history.operations if isinstance(op, RunJournaled)])
    play.world.crash("m3")
    play.until(400)
    play.world.restart("m3")
    play.until(1_000)
    m3 = play.world.instances["m3"].machine
    assert {upstream.name for upstream in m3._upstreams.values() if upstream.caught_up} == {
        "m1",
        "m2",
    }
    for name in ("m1", "m2"):
        ledger = play.world.instances[name].machine.destinations["to-m3"]
        assert ledger.caught_up and ledger.safe and not ledger.unacked
    history = play.end()
    assert len([op for op in history.operations if isinstance(op, RunJournaled)]) == journaled == 3


@pytest.mark.covers("Clients and protocol", "`fully_durable`")
def test_a_fully_durable_subscriber_waits_until_the_downgrade_and_again_after_the_upgrade() -> None:
    play = Play(plans.mesh(2))
    client = play.client("p", "m1")
    sure = play.client("sure", "m1", subscribe=".*", fully_durable=True)
    plain = play.client("plain", "m1", subscribe=".*")
    world = play.world

    def got(who: SimClient) -> list[int]:
        found = [op for op in world.history.operations if isinstance(op, MessagesDelivered)]
        return [number for op in found if op.subscriber == who.name for number in op.sequences]

    play.until(50)
    client.publish(["orders"] * 3)
    play.until(100)
    assert got(sure) == got(plain) == [1, 2, 3]
    world.crash("m2")
    client.publish(["orders"] * 3)
    play.until(300)
    assert (got(sure), got(plain)) == ([1, 2, 3], [1, 2, 3, 4, 5, 6])
    # It waits across its own reconnect as well, and is given what was durable before, once.
    sure.move()
    play.until(600)
    assert got(sure) == [1, 2, 3]
    world.instances["m1"].downgrade("to-m2")
    play.until(650)
    assert got(sure) == [1, 2, 3, 4, 5, 6]
    client.publish(["orders"])
    play.until(700)
    assert got(sure)[-1] == 7, "nobody is waited for"
    world.instances["m1"].upgrade("to-m2")
    client.publish(["orders"])
    play.until(800)
    assert (got(sure)[-1], got(plain)[-1]) == (7, 8)
    world.restart("m2")
    play.end()
    assert got(sure) == got(plain) == list(range(1, 9))


def batch_of(client: SimClient, *sequences: int) -> bytes:
    builder = RecordBuilder(client.machine.outbox.publisher, "orders", "json")
    return b"".join(builder.build(sequence, b"{}", 1) for sequence in sequences)


@pytest.mark.covers("Clients and protocol", "a sequence that nobody may give is refused")
@pytest.mark.parametrize("planted", ["", "any sequence taken"])
def test_a_sequence_that_nobody_may_give_is_refused_at_the_door(planted: str) -> None:
    machines = SHOWN_BY_A_SCENARIO.get(planted)
    play = Play(fabric(a=(to("b"),), b=(to("a"),)), machines=machines)
    client = play.client("p", "a", "b")
    play.until(50)
    instance = play.world.hosts["a"]
    assert isinstance(instance, Instance)
    (session,) = instance.sessions
    before = instance.machine.next_txid
    with pytest.raises(CorruptRecord, match=str(SEQUENCE_MAX)):
        payload = batch_of(client, SEQUENCE_MAX, SEQUENCE_MAX + 1)
        instance.machine.client_runs(session, payload)
    refusal = pytest.raises(RemoteProtocolError, match="no numbers left")
    with nullcontext() if planted else refusal:
        instance.machine.client_runs(session, batch_of(client, 1, SEQUENCE_MAX))
    assert instance.machine.next_txid == before
    client.publish(["orders"] * 3)
    play.end()
    assert play.had("b", client, 3)


@pytest.mark.covers("Clients and protocol", "a sequence that nobody may give is refused")
def test_a_journal_that_holds_such_a_sequence_stops_no_link(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Earlier releases let it in where it came behind the highest that there is, in one batch."""
    monkeypatch.setattr(publishers_module, "scan", partial(scan, sequence_max=SEQUENCE_HELD_MAX))
    monkeypatch.setattr(outbox_module, "SEQUENCE_MAX", SEQUENCE_HELD_MAX)
    monkeypatch.setattr(gap_limit, "SEQUENCES_PLAUSIBLE", SEQUENCE_HELD_MAX)
    play = Play(fabric(a=(to("b"),), b=(to("a"),)))
    old = play.client("old", "a", "b")
    other = play.client("other", "a", "b")
    play.until(50)
    old.machine.outbox.next_sequence = SEQUENCE_MAX
    old.machine.outbox._tail_first = SEQUENCE_MAX
    old.publish(["orders"] * 2)
    play.until(100)
    other.publish(["orders"] * 3)
    history = play.end()
    assert play.had("b", old, SEQUENCE_MAX + 1) and play.had("b", other, 3)
    links = [
        op for op in history.operations if isinstance(op, LinkConnected) and op.instance == "a"
    ]
    assert len(links) == 1, "the link connected once and stayed"
