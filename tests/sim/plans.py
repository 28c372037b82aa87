"""What a seed stands for: a topology, a workload and a nemesis script, all of them data."""

from __future__ import annotations

import random
from dataclasses import dataclass, field, replace
from typing import Any

from raylay.services.messages.topics import TopicRule
from raylay.services.queues.definition import QueueDefinition
from raylay.services.replication.downgrade import AgeCheck, DowngradePolicy
from raylay.services.replication.link.routing import DestinationRoute
from raylay.services.replication.timetable import Occasion
from raylay.services.verification.history import HistoryMember, Topology
from sim import filtering
from sim.client import Part
from sim.queue_watch import BARRIER_SORT, PRIORITY_SORT
from sim.queues import SimQueues
from sim.world import Timing

TOPICS = ("orders", "trades")
TRANSIENT = "ticks"
"""Of seeds that journal only the other two: a topic that is in no transaction log."""
ALL = (TopicRule(".*"),)

Step = tuple[int, str, tuple[Any, ...]]
"""(time in milliseconds, action of the nemesis, its arguments)."""


@dataclass(slots=True)
class Plan:
    """All that a run needs beside its seed."""

    topology: Topology
    clients: list[tuple[str, list[str], str, str]]
    """(name, servers, group, topic it subscribes to or empty)."""
    publishes: list[tuple[int, str, list[str]]]
    """(time in milliseconds, client, topics)."""
    script: list[Step]
    end_ms: int
    timing: Timing = field(default_factory=Timing)
    policy: DowngradePolicy = field(default_factory=DowngradePolicy)
    window_bytes: int = 4_000
    segment_bytes: int = 6_000
    encode: bool = False
    check_every: int = 8
    fully_durable: frozenset[str] = frozenset()
    """The subscribers that are."""
    resolves: bool = False
    """Whether clients look their servers up by name."""
    retention_bytes: int | None = None
    parts: dict[str, Part] = field(default_factory=dict)
    """Of the clients that publish a part of a publisher's sequences."""
    journaled: tuple[TopicRule, ...] = ALL
    """What all instances have in their transaction logs."""
    commands: list[tuple[int, str, str]] = field(default_factory=list)
    """(time in milliseconds, client, topic) of publishes that the instance numbers."""
    twins: dict[str, str] = field(default_factory=dict)
    """A client to the other one whose name it bears, with contents of its own."""
    stateful: tuple[TopicRule, ...] = ()
    """Topics that have a state."""
    filters: dict[str, str] = field(default_factory=dict)
    """Of subscribers their content filters."""
    queues: SimQueues | None = None
    """The queue that there is."""
    deletes: bool = False
    """Whether publishers delete records of SOW topics."""
    lives: frozenset[str] = frozenset()
    """The publishers whose lives follow one another, each without the publish store of the last."""


# -- topologies --------------------------------------------------------------------------------
def destination(
    to: str | tuple[str, ...],
    group: str,
    *,
    sync: bool = True,
    pass_through: str | None = ".*",
    topics: tuple[TopicRule, ...] = ALL,
    own_group_only: bool = False,
    resync_pass_through: str | None = None,
) -> DestinationRoute:
    """A destination named after the first server in its list."""
    addresses = (to,) if isinstance(to, str) else to
    return DestinationRoute(
        f"to-{addresses[0]}",
        group,
        sync,
        topics,
        pass_through,
        addresses,
        own_group_only=own_group_only,
        resync_pass_through=resync_pass_through,
    )


def mesh(size: int) -> Topology:
    """Every instance replicates to every other one, sync, passing everything on."""
    names = [f"m{i}" for i in range(1, size + 1)]
    members = {
        name: HistoryMember(
            name, "mesh", tuple(destination(other, "mesh") for other in names if other != name)
        )
        for name in names
    }
    return Topology(f"mesh of {size}", members, uniform=True)


def regions(*, own_group_only: bool = True, resync_pass_through: str | None = None) -> Topology:
    """The published three regions: sync inside, async across with failover lists.

    `own_group_only`: as `connect_regions` makes them, every link carrying all that was published
    in its region and nothing else; else by PassThrough alone, which lets a part of it go round.
    `resync_pass_through`: of the links across. What a resync lets on besides comes by another path
    than what follows it, so order is not promised then.
    """
    groups = ("chicago", "newyork", "london")
    members = {}
    for group in groups:
        for i in (1, 2):
            name = f"{group}{i}"
            found = [destination(f"{group}{3 - i}", group)]
            for other in groups:
                if other != group:
                    found.append(
                        destination(
                            (f"{other}1", f"{other}2"),
                            other,
                            sync=False,
                            pass_through=group,
                            own_group_only=own_group_only,
                            resync_pass_through=resync_pass_through,
                        )
                    )
            members[name] = HistoryMember(name, group, tuple(found))
    return Topology(
        "three regions", members, uniform=own_group_only and resync_pass_through is None
    )


def chain(rng: random.Random) -> Topology:
    """One after the other, sync and async mixed, one or both ways."""
    size = rng.randint(3, 5)
    names = [f"c{i}" for i in range(1, size + 1)]
    groups = [f"g{i // 2}" for i in range(size)]
    both = rng.random() < 0.5
    found: dict[str, list[DestinationRoute]] = {name: [] for name in names}
    for i in range(size - 1):
        found[names[i]].append(destination(names[i + 1], groups[i + 1], sync=rng.random() < 0.6))
        if both:
            found[names[i + 1]].append(destination(names[i], groups[i], sync=rng.random() < 0.6))
    members = {n: HistoryMember(n, g, tuple(found[n])) for n, g in zip(names, groups, strict=True)}
    return Topology("chain", members)


def diamond(rng: random.Random) -> Topology:
    """Two ways to the same instance, the async one being shorter, and sync partners behind it and
    beside it: `x` to `a` to `b` sync, `x` to `b` async, `b` to `c` and `x` to `d` sync."""
    members = {
        "x": HistoryMember(
            "x",
            "gx",
            (destination("a", "ga"), destination("b", "gb", sync=False), destination("d", "gd")),
        ),
        "a": HistoryMember("a", "ga", (destination("b", "gb"),)),
        "b": HistoryMember("b", "gb", (destination("c", "gc"),)),
        "c": HistoryMember("c", "gc", (destination("x", "gx", sync=False),) * (rng.random() < 0.3)),
        "d": HistoryMember("d", "gd", ()),
    }
    return Topology("diamond", members)


def _diamond_faults(rng: random.Random, end_ms: int) -> list[Step]:
    """Has `a` become awaited for what it forwarded long before, while what is behind is away."""
    start = rng.randint(50, end_ms)
    back = start + rng.randint(200, 500)
    return [
        (start, "crash", ("c", back - start + 300)),
        (start, "crash", ("d", back - start + rng.randint(-100, 100))),
        (start + 1, "downgrade", ("x", "to-a")),
        (back - rng.randint(0, 150), "upgrade", ("x", "to-a")),
    ]


def list_in_a_group(rng: random.Random) -> Topology:
    """`x` replicates sync to whichever of `a1` and `a2` answers, all of one group: clients of `x`
    may use any of the three. The two replicate to `x`, perhaps to each other, in any mode."""
    found = {"x": [destination(("a1", "a2"), "g")]}
    for name, other in (("a1", "a2"), ("a2", "a1")):
        found[name] = [destination("x", "g", sync=rng.random() < 0.7)]
        if rng.random() < 0.5:
            found[name].append(destination(other, "g", sync=rng.random() < 0.5))
    return Topology(
        "a list in a group",
        {name: HistoryMember(name, "g", tuple(each)) for name, each in found.items()},
    )


def random_topology(rng: random.Random) -> Topology:
    """Any links between 2 to 6 instances, with filters and PassThrough of all kinds."""
    size = rng.randint(2, 6)
    names = [f"r{i}" for i in range(1, size + 1)]
    groups = {name: f"g{rng.randint(1, max(1, size // 2))}" for name in names}
    members = {}
    for name in names:
        found = []
        listed: set[str] = set()
        others = [other for other in names if other != name]
        rng.shuffle(others)
        for other in others:
            if other in listed or rng.random() > (0.9 if size < 4 else 0.5):
                continue
            servers = [other]
            if rng.random() < 0.2:
                servers += [
                    n for n in others if groups[n] == groups[other] and n not in (other, *listed)
                ][:1]
            listed.update(servers)
            topics = ALL if rng.random() < 0.7 else (TopicRule(rng.choice(TOPICS)),)
            pass_through = rng.choice((".*", ".*", ".*", None, groups[name]))
            found.append(
                destination(
                    tuple(servers),
                    groups[other],
                    sync=rng.random() < 0.6,
                    pass_through=pass_through,
                    topics=topics,
                    own_group_only=len(servers) > 1,
                )
            )
            if pass_through == groups[name]:
                found[-1] = replace(found[-1], resync_pass_through=".*")
        members[name] = HistoryMember(name, groups[name], tuple(found))
    return Topology("random", members)


def shared_connections(rng: random.Random, topology: Topology, *, lists: bool = True) -> Topology:
    """The same links, but of some pairs that replicate to each other only one side dials: the other
    one pushes over its connection; and some that dial use a connection that is there. `lists`: also
    those with several servers, which then are at whichever has connected."""
    members = dict(topology.members)
    waiting: set[tuple[str, str]] = set()
    for name, member in members.items():
        found = []
        for each in member.destinations:
            other = each.addresses[0]
            back = [d.addresses for d in topology.members[other].destinations]
            waits = (
                len(each.addresses) == 1
                and back.count((name,)) == 1
                and (other, name) not in waiting
                and rng.random() < 0.5
            )
            if waits:
                waiting.add((name, other))
            shares = not waits and rng.random() < 0.4 and (lists or len(each.addresses) == 1)
            found.append(replace(each, dials=not waits, share_connection=shares))
        members[name] = replace(member, destinations=tuple(found))
    return Topology(f"{topology.name}, connections shared", members, uniform=topology.uniform)


def wide_ip(topology: Topology) -> Topology:
    """The same links, but with one address for all servers of a list."""
    members = dict(topology.members)
    wide: dict[str, tuple[str, ...]] = {}
    for name, member in members.items():
        found = []
        for each in member.destinations:
            if len(each.addresses) > 1 and each.dials and not each.share_connection:
                address = "/".join(each.addresses)
                wide[address] = each.addresses
                each = replace(each, addresses=(address,), wide_ip=True)
            found.append(each)
        members[name] = replace(member, destinations=tuple(found))
    if not wide:
        return topology
    return replace(topology, name=f"{topology.name}, wide IP", members=members, wide=wide)


FILTERS = ("02468", "13579", "0123456", "5")


def filtered(rng: random.Random, topology: Topology) -> Topology:
    """The same links, but some of them carry only what passes a content filter: of each topic, of
    one of the two, or what passes one of two filters."""
    members = dict(topology.members)
    for name, member in members.items():
        found = []
        for each in member.destinations:
            text, other = rng.sample(FILTERS, 2)
            narrowed = tuple(replace(rule, filter=text) for rule in each.topics)
            topics = rng.choice(
                (
                    each.topics,
                    narrowed,
                    (*narrowed, *(replace(rule, filter=other) for rule in each.topics)),
                    (TopicRule(TOPICS[0], filter=text), TopicRule(TOPICS[1])),
                )
            )
            found.append(replace(each, topics=topics))
        members[name] = replace(member, destinations=tuple(found))
    return replace(
        topology,
        name=f"{topology.name}, filtered",
        members=members,
        uniform=False,
        passes=filtering.passes,
    )


# -- a seed ------------------------------------------------------------------------------------
PUBLISHES = 200
CRASHES = 5
PARTITIONS = 2


def _topology(rng: random.Random) -> Topology:
    kind = rng.random()
    if kind < 0.15:
        return mesh(2)
    if kind < 0.37:
        return mesh(3)
    if kind < 0.45:
        return mesh(4)
    if kind < 0.55:
        return regions(
            own_group_only=kind < 0.50, resync_pass_through=".*" if kind < 0.47 else None
        )
    if kind < 0.70:
        return chain(rng)
    if kind < 0.80:
        return diamond(rng)
    if kind < 0.86:
        return list_in_a_group(rng)
    return random_topology(rng)


def draw(seed: int) -> Plan:
    """The plan of a seed."""
    rng = random.Random(seed * 2 + 1)
    topology = _topology(rng)
    # Of its own: whether it is drawn changes nothing else of a seed.
    dialling = random.Random(seed * 2)
    if dialling.random() < 0.25:
        topology = shared_connections(dialling, topology)
    if dialling.random() < 0.35:
        topology = wide_ip(topology)
    end_ms = rng.choice((1_200, 2_000, 3_500))
    clients = _clients(rng, topology)
    timing = Timing()
    if rng.random() < 0.3:
        timing.network_us = (200, 25_000)
    if rng.random() < 0.2:
        timing.commit_us = (100, 30_000)
    age_ms = rng.choice((None, 120, 250, 400))
    plan = Plan(
        topology,
        clients,
        _workload(rng, clients, end_ms),
        _nemesis(rng, topology, clients, end_ms),
        end_ms,
        timing,
        DowngradePolicy(age_ms, None, rng.choice((0, 0, 0, 1))),
        rng.choice((300, 2_000, 8_000)),
        rng.choice((2_000, 6_000, 1 << 20)),
        rng.random() < 0.06,
        rng.choice((1, 16, 16, 16)),
        frozenset(("s2",)),
    )
    if age_ms is not None and rng.random() < 0.3:
        plan.policy = replace(
            plan.policy,
            every_ms=rng.choice((0, 60, 200)),
            upgrade_every_ms=rng.choice((None, 30, 300)),
            grace_period_ms=rng.choice((0, 200, 600)),
        )
    if scheduling(seed) < 0.1:
        plan.policy = replace(plan.policy, looks=_looks(random.Random(seed * 2 + (1 << 41))))
    for address, servers in topology.wide.items():
        for _ in range(dialling.randint(0, 3)):
            step = (dialling.randint(20, end_ms), "point", (address, dialling.choice(servers)))
            plan.script.append(step)
    plan.script.sort(key=lambda step: step[:2])
    # Of its own: whether retention removes changes nothing else of a plan.
    keeping = random.Random(seed * 2 + (1 << 42))
    if keeping.random() < 0.35:
        plan.retention_bytes = keeping.choice((0, 4_000, 12_000))
        plan.segment_bytes = keeping.choice((1_000, 2_000, 6_000))
    # Of its own: whether an old copy is put back changes nothing else of a seed.
    copying = random.Random(seed * 2 + (1 << 43))
    if copying.random() < 0.15:
        name = copying.choice(list(topology.members))
        kept_ms, back_ms = sorted(copying.sample(range(20, end_ms), 2))
        plan.script.append((kept_ms, "keep", (name,)))
        step = (name, copying.random() < 0.5, copying.randint(30, 500))
        plan.script.append((back_ms, "put_back", step))
        plan.script.sort(key=lambda step: step[:2])
    # Of its own: whether evidence counts changes nothing else of a plan.
    if random.Random(seed * 2 + (1 << 45)).random() < 0.3:
        plan.policy = replace(plan.policy, by_evidence=False)
    # Of its own: a disk that fails again and again changes nothing else of a plan.
    failing = random.Random(seed * 2 + (1 << 44))
    if failing.random() < 0.25:
        for _ in range(failing.randint(3, 8)):
            name = failing.choice(list(topology.members))
            plan.script.append((failing.randint(20, end_ms), "fail_commit", (name,)))
        plan.script.sort(key=lambda step: step[:2])
    # Of its own: whether something is moved changes nothing else of a seed.
    moving = random.Random(seed * 2 + (1 << 40))
    if moving.random() < 0.2:
        plan.script += _moves(moving, plan)
        plan.script.sort(key=lambda step: step[:2])
        plan.resolves = True
    # Of its own: whether a publisher is two processes changes nothing else of a seed.
    parting = random.Random(seed * 2 + (1 << 47))
    if parting.random() < 0.25:
        _part(parting, plan)
    # Of its own: whether clients crash changes nothing else of a seed.
    crashing = random.Random(seed * 2 + (1 << 43))
    if crashing.random() < 0.5:
        plan.script += _client_crashes(crashing, plan)
        plan.script.sort(key=lambda step: step[:2])
    _beside(seed, plan)
    return plan


def scheduling(seed: int) -> float:
    """Of its own: whether something has a schedule changes nothing else of a seed."""
    return random.Random(seed * 2 + (1 << 42)).random()


def _looks(rng: random.Random) -> tuple[AgeCheck, ...]:
    """Looks at times of the day: the simulated one begins at midnight."""
    age_ms = rng.choice((0, 20, 100))
    when = tuple(Occasion(at=f"00:00:0{rng.randint(1, 3)}Z") for _ in range(rng.randint(1, 2)))
    looks = [AgeCheck(age_ms, None, when, rng.choice((0, 0, 1_500)))]
    if rng.random() < 0.7:
        looks.append(AgeCheck(None, age_ms, (Occasion(rng.choice((50, 300))),)))
    return tuple(looks)


def _part(rng: random.Random, plan: Plan) -> None:
    """Makes one publisher two processes at different instances, which publish in turns: their runs
    have holes, which the other one's runs fill. Later one of them mostly reaches nobody for a
    while, and then takes over from the other one and sends again what both have no ack for."""
    members = list(plan.topology.members)
    names = [client for client in plan.clients if not client[3]]
    name, servers, _, _ = rng.choice(names)
    # Where they meet, one throws the other out, which goes elsewhere.
    others = servers[1:] + servers[:1]
    if len(servers) == 1:
        others = rng.sample([member for member in members if member not in servers], 1)
    other = f"{name}b"
    turn = rng.choice((1, 1, 2, 3))
    plan.clients.append((other, others, plan.topology.members[others[0]].group, ""))
    # What the two publish comes in any order.
    plan.topology = replace(plan.topology, uniform=False)
    plan.parts = {name: Part(name, turn, False), other: Part(name, turn, True)}
    for _ in range(20):
        topics = [rng.choice(TOPICS)] * rng.randint(1, 6)
        plan.publishes.append((rng.randint(5, plan.end_ms), rng.choice((name, other)), topics))
    if rng.random() < 0.8:
        start_ms, away_ms = rng.randint(50, plan.end_ms - 100), rng.randint(10, 150)
        topic = rng.choice(TOPICS)
        for each in (name, other, name, other):
            time_ms = start_ms + rng.randint(1, away_ms)
            plan.publishes.append((time_ms, each, [topic] * rng.randint(1, 8)))
        plan.script.append((start_ms, "go_away", (name, away_ms)))
        plan.script.append((start_ms + away_ms, "take_over", (name, other)))
        # What it sends again it soon sends again elsewhere.
        for _ in range(rng.randint(0, 2)):
            at_ms = start_ms + away_ms + rng.randint(3, 60)
            plan.script.append((at_ms, "move", (name,)))
        plan.script.sort(key=lambda step: step[:2])
    plan.publishes.sort(key=lambda entry: entry[:2])


def _client_crashes(rng: random.Random, plan: Plan) -> list[Step]:
    """Publishers die and start again with their stores: at any time, or with their instance."""
    publishers = [
        (name, servers[0])
        for name, servers, _, topic in plan.clients
        if not topic and name not in plan.parts
    ]
    crashes = [(at_ms, what[0]) for at_ms, action, what in plan.script if action == "crash"]
    publishing = [(at_ms, name) for at_ms, name, _ in plan.publishes]
    found: list[Step] = []
    for _ in range(rng.choice((1, 2, 4))):
        name, first = rng.choice(publishers)
        at_ms = rng.randint(20, plan.end_ms)
        with_it = [at for at, instance in crashes if instance == first]
        if with_it and rng.random() < 0.4:
            at_ms = rng.choice(with_it) + rng.choice((-5, 1, 40))
        elif rng.random() < 0.3:
            # With what it has just published, perhaps before it is on its disk.
            at_ms = rng.choice([at for at, client in publishing if client == name] or [at_ms])
        found.append((max(at_ms, 1), "crash_client", (name, rng.choice((1, 30, 200, 700)))))
    return found


def _beside(seed: int, plan: Plan) -> None:
    """What some seeds do besides, each by chance of its own: whether it is drawn changes nothing
    else of a seed."""
    if random.Random(f"names {seed}").random() < 0.3:
        _name_like_peers(plan)
    transient = random.Random(f"transient {seed}")
    if transient.random() < 0.25:
        plan.journaled = tuple(map(TopicRule, TOPICS))
        for _, _, topics in plan.publishes:
            topics[:] = [TRANSIENT if transient.random() < 0.15 else each for each in topics]
    unnumbered = random.Random(f"unnumbered {seed}")
    if unnumbered.random() < 0.25:
        names = [name for name, _, _, _ in plan.clients]
        for _ in range(unnumbered.choice((5, 20))):
            topic = unnumbered.choice((*TOPICS, TRANSIENT))
            at_ms = unnumbered.randint(5, plan.end_ms)
            plan.commands.append((at_ms, unnumbered.choice(names), topic))
    admits = random.Random(f"admits {seed}")
    if admits.random() < 0.3:
        steps = [(admits.randint(50, plan.end_ms), "admit", ()) for _ in range(20)]
        plan.script[:] = sorted([*plan.script, *steps], key=lambda step: step[:2])
    filters = random.Random(f"filters {seed}")
    if filters.random() < 0.2:
        plan.topology = filtered(filters, plan.topology)
        _other_filters(seed, plan)
    writing = random.Random(f"writing {seed}")
    if writing.random() < 0.2:
        for _ in range(writing.choice((5, 30))):
            name = writing.choice(list(plan.topology.members))
            wrote = [writing.choice(TOPICS) for _ in range(writing.randint(1, 4))]
            at_ms = writing.randint(5, plan.end_ms)
            for topics in (wrote, wrote[:2])[: writing.randint(1, 2)]:
                plan.script.append((at_ms, "write", (name, topics)))
        plan.script.sort(key=lambda step: step[:2])
    state = random.Random(f"state {seed}")
    if state.random() < 0.25:
        plan.stateful = tuple(map(TopicRule, TOPICS[: state.randint(1, 2)]))
    twins = random.Random(f"twins {seed}")
    if twins.random() < 0.2 and not plan.resolves and not plan.parts:
        _make_twins(twins, plan)
    lives = random.Random(f"lives {seed}")
    if lives.random() < 0.3 and not plan.parts and not plan.twins:
        _make_lives(lives, plan)
    subscribers = random.Random(f"content of subscribers {seed}")
    if subscribers.random() < 0.2 and not plan.twins:
        for name, _, _, topic in plan.clients:
            if topic and subscribers.random() < 0.8:
                plan.filters[name] = subscribers.choice(FILTERS)
    deletes = random.Random(f"deletes {seed}").random() < 0.4
    sees = plan.filters or plan.topology.passes is not None
    plan.deletes = deletes and not plan.stateful and not plan.twins and not sees
    _queue(random.Random(f"queues {seed}"), plan)
    if plan.queues is not None:
        _queue_features(random.Random(f"queue features {seed}"), plan, plan.queues)
        _dead_letters(random.Random(f"dead letters {seed}"), plan.queues)
        _lose_a_region(random.Random(f"queues lost {seed}"), plan)
    _lack_a_topic(random.Random(f"lacks a topic {seed}"), plan)
    clocks = random.Random(f"clocks {seed}")
    if clocks.random() < CLOCKS_CHANCE:
        _set_clocks(clocks, plan)


LACKS_CHANCE = 0.08
"""Of the seeds without a queue, in which every publisher is one process, and in which no instance
is copied to another host: the copy would have the topics of its source."""


def _lack_a_topic(rng: random.Random, plan: Plan) -> None:
    """One instance does not have one of the topics in its transaction log, and those that replicate
    to it do not check that (`exclude_validation`). Who publishes the topic does so elsewhere."""
    members = plan.topology.members
    reached = {
        server
        for member in members.values()
        for each in member.destinations
        for server in plan.topology.servers(each)
    }
    if plan.queues is not None or plan.parts or plan.twins or plan.resolves:
        return
    if rng.random() >= LACKS_CHANCE or not reached:
        return
    name, lacked = rng.choice(sorted(reached)), rng.choice(TOPICS)
    other = next(each for each in TOPICS if each != lacked)
    for member in list(members.values()):
        found = tuple(
            replace(each, topics=_unchecked(each.topics))
            if name in plan.topology.servers(each)
            else each
            for each in member.destinations
        )
        without = (lacked,) if member.name == name else ()
        members[member.name] = replace(member, destinations=found, without=without)
    plan.script[:] = [
        (
            at_ms,
            action,
            (*what[:2], {to: _unchecked(rules) for to, rules in what[2].items()})
            if action == "refilter"
            else (what[0], [other if each == lacked else each for each in what[1]])
            if action == "write" and what[0] == name
            else what,
        )
        for at_ms, action, what in plan.script
    ]
    there = set()
    for client, servers, _, _ in plan.clients:
        if name in servers[1:]:
            servers.remove(name)
        if name in servers:
            there.add(client)
    for _, client, topics in plan.publishes:
        if client in there:
            topics[:] = [other if each == lacked else each for each in topics]
    plan.commands[:] = [
        (at_ms, client, other if topic == lacked and client in there else topic)
        for at_ms, client, topic in plan.commands
    ]
    if TopicRule(".*") in plan.journaled:
        plan.journaled = tuple(map(TopicRule, TOPICS))
    if not plan.topology.name.startswith("mesh"):
        # What the instance does not pass on comes to those behind it by other paths, or not.
        plan.topology = replace(plan.topology, uniform=False)


def _unchecked(rules: tuple[TopicRule, ...]) -> tuple[TopicRule, ...]:
    return tuple(replace(rule, exclude_validation=("txlog",)) for rule in rules)


CLOCKS_CHANCE = 0.25
AHEAD_MS = (400, 60_000, 3_600_000, 86_400_000)


def _set_clocks(rng: random.Random, plan: Plan) -> None:
    """The wall clocks of some instances are set, forward and back."""
    names = list(plan.topology.members)
    for name in rng.sample(names, rng.randint(1, len(names))):
        times_ms = sorted(rng.randint(20, plan.end_ms) for _ in range(rng.randint(2, 5)))
        for number, at_ms in enumerate(times_ms):
            # The first is forward: a world begins in 1970, and no clock goes back behind that.
            ahead_ms = rng.choice(AHEAD_MS)
            if number and rng.random() < 0.6:
                ahead_ms = -rng.choice((0, *AHEAD_MS))
            plan.script.append((at_ms, "set_clock", (name, ahead_ms)))
    plan.script.sort(key=lambda step: step[:2])


QUEUE = "jobs"
LETTERS = "letters"
QUEUES_CHANCE = 0.25
"""Of the seeds whose topology carries everything everywhere, and that have nothing besides that a
queue is no part of."""


def _queue(rng: random.Random, plan: Plan) -> None:
    """A queue over one topic: of one instance, or of all."""
    if rng.random() >= QUEUES_CHANCE:
        return
    members = plan.topology.members
    whole = plan.topology.name.startswith(("mesh", "three regions"))
    if not whole or plan.twins or plan.parts or plan.topology.passes:
        return
    names = list(members)
    kind = rng.choice(("local", "queue", "queue", "group_local"))
    at = (rng.choice(names),) if kind == "local" else tuple(names)
    definition = QueueDefinition(
        QUEUE,
        "json",
        kind,
        TOPICS[0],
        lease_us=rng.choice((30_000, 100_000, 300_000)),
        subscription_backlog_max=8,
        at_most_once=rng.random() < 0.2,
        initial_owner=rng.choice(names) if kind == "group_local" else "",
    )
    found = SimQueues(definition, at)
    for number in range(rng.randint(1, 3)):
        first = members[rng.choice(at)]
        servers = [first.name] if kind == "local" else _servers(rng, plan.topology, first)
        filter_ = f"/sort{rng.randint(0, 2)} = 1" if rng.random() < 0.3 else ""
        name = f"c{number + 1}"
        found.consumers.append((name, servers, first.group, filter_, rng.choice((1, 2, 5))))
        for _ in range(rng.choice((0, 1, 2))):
            at_ms = rng.randint(20, plan.end_ms)
            what = (name, rng.choice((1, 30, 300)))
            step = ("crash_client", what) if rng.random() < 0.5 else ("move", (name,))
            plan.script.append((at_ms, *step))
    for _ in range(rng.choice((0, 2, 4, 8))):
        found.owner_crashes.append((rng.randint(20, plan.end_ms), rng.choice(at)))
    plan.script.sort(key=lambda step: step[:2])
    plan.queues, plan.deletes = found, False


def _queue_features(rng: random.Random, plan: Plan, found: SimQueues) -> None:
    """What a queue may promise besides."""
    is_leased = not found.definition.at_most_once
    changes: dict[str, Any] = {}
    what = rng.random()
    if what < 0.25 and is_leased:
        changes["priority"] = f"/sort{PRIORITY_SORT}"
    elif what < 0.45 and not plan.stateful:
        # Where topics have a state, two instances may take in other contents for one message.
        changes["barrier"] = f"/sort{BARRIER_SORT} = 1"
    if rng.random() < 0.3 and is_leased:
        changes["strict"] = True
    if rng.random() < 0.25:
        changes["expiration_us"] = rng.choice((60_000, 400_000, 1_500_000))
    if rng.random() < 0.2 and is_leased:
        changes["deliveries_max"] = rng.choice((1, 2, 4))
    if rng.random() < 0.2 and is_leased:
        changes["cancels_max"] = rng.choice((1, 2))
    found.definition = replace(found.definition, **changes)
    if rng.random() < 0.3 and found.definition.kind != "local":
        for _ in range(rng.randint(1, 2)):
            at_ms, for_ms = rng.randint(20, plan.end_ms), rng.choice((50, 300, 1_000))
            found.takeovers.append((at_ms, rng.choice(found.instances), for_ms))


def _dead_letters(rng: random.Random, found: SimQueues) -> None:
    """Gives the queue dead letters. Its consumers give messages up then."""
    if rng.random() < 0.4 and not found.definition.at_most_once:
        found.definition = replace(found.definition, dead_letters=LETTERS)


def _lose_a_region(rng: random.Random, plan: Plan) -> None:
    """Some messages are in no instance of the region that took them in: the other one is down, and
    nobody waits for it, while the one that has them loses its disk. Other regions have them, and do
    not bring them back."""
    members = plan.topology.members
    if plan.topology.name.startswith("mesh") or rng.random() < 0.2:
        return
    for name in rng.sample(list(members), rng.randint(1, 4)):
        group = members[name].group
        partner = next(each for each in members[name].destinations if each.group == group)
        at_ms = rng.randint(50, plan.end_ms)
        plan.script.append((at_ms, "crash", (partner.addresses[0], 400)))
        for after_ms in (5, 60):
            plan.script.append((at_ms + after_ms, "downgrade", (name, partner.name)))
        plan.script.append((at_ms + rng.randint(150, 350), "lose_disk", (name, 40)))
        for client, servers, _, topic in plan.clients:
            if name in servers and not topic:
                for _ in range(5):
                    found = [TOPICS[0]] * rng.randint(1, 3)
                    plan.publishes.append((at_ms + rng.randint(0, 300), client, found))
    plan.script.sort(key=lambda step: step[:2])
    plan.publishes.sort(key=lambda entry: entry[:2])


def _other_filters(seed: int, plan: Plan) -> None:
    """Some instances of a filtered topology are restarted with other filters."""
    rng = random.Random(f"other filters {seed}")
    narrowed = {
        name: [each for each in member.destinations if any(rule.filter for rule in each.topics)]
        for name, member in plan.topology.members.items()
    }
    names = [name for name, found in narrowed.items() if found]
    if not names or rng.random() < 0.4:
        return
    for _ in range(rng.randint(1, 3)):
        name = rng.choice(names)
        topics = {
            each.name: tuple(
                replace(rule, filter=rng.choice((*FILTERS, ""))) if rule.filter else rule
                for rule in each.topics
            )
            for each in rng.sample(narrowed[name], rng.randint(1, len(narrowed[name])))
        }
        at_ms, down_ms = rng.randint(50, plan.end_ms), rng.choice((1, 20, 200))
        plan.script.append((at_ms, "refilter", (name, down_ms, topics)))
    plan.script.sort(key=lambda step: step[:2])


def _name_like_peers(plan: Plan) -> None:
    """As most people name a Destination: like the instance that it leads to."""
    topology = plan.topology
    topology.members.update(
        {
            name: replace(
                member,
                destinations=tuple(
                    replace(each, name=each.name.removeprefix("to-"))
                    for each in member.destinations
                ),
            )
            for name, member in topology.members.items()
        }
    )
    plan.script[:] = [
        (at_ms, action, (arguments[0], arguments[1].removeprefix("to-")))
        if action in ("downgrade", "upgrade", "crash_link", "break")
        else (at_ms, action, arguments)
        for at_ms, action, arguments in plan.script
    ]


def _make_twins(rng: random.Random, plan: Plan) -> None:
    """Two publishers with one name, which begin at different instances. Where they meet, one throws
    the other out, which ends."""
    publishers = [client for client in plan.clients if not client[3]]
    first, second = rng.sample(publishers, 2)
    if first[1][0] == second[1][0]:
        return
    plan.twins[second[0]] = first[0]
    plan.script[:] = [
        step
        for step in plan.script
        if step[1] != "crash_client" or step[2][0] not in (first[0], second[0])
    ]
    for _, client, topics in plan.publishes:
        if client in (first[0], second[0]):
            topics[:] = [TOPICS[0]] * len(topics)


def _make_lives(rng: random.Random, plan: Plan) -> None:
    """One publisher has many lives, each of which knows nothing of the last."""
    name = rng.choice([client[0] for client in plan.clients if not client[3]])
    plan.lives = frozenset((name,))
    steps: list[Step] = [
        (
            rng.randint(20, plan.end_ms),
            "next_life",
            (name, rng.choice((0, 1, 5, 50)), rng.random() < 0.8),
        )
        for _ in range(rng.choice((5, 30)))
    ]
    kept = [
        step for step in plan.script if step[1] != "crash_client" or step[2][0] not in plan.lives
    ]
    plan.script[:] = sorted([*kept, *steps], key=lambda step: step[:2])


def _moves(rng: random.Random, plan: Plan) -> list[Step]:
    """One to three relocations, some of one instance twice and soon after each other."""
    groups: dict[str, list[str]] = {}
    for member in plan.topology.members.values():
        groups.setdefault(member.group, []).append(member.name)
    movable = [names for names in groups.values() if len(names) > 1]
    found: list[Step] = []
    if not movable:
        return found
    names = rng.choice(movable)
    name = rng.choice(names)
    at_ms = rng.randint(100, plan.end_ms)
    for _ in range(rng.choice((1, 1, 2, 3))):
        source = rng.choice([other for other in names if other != name])
        peers = [other for other in plan.topology.members if other != name]
        reached = frozenset(peer for peer in peers if rng.random() < 0.6)
        how = rng.choice(("down", "down", "cut", "alive"))
        back_ms = rng.choice((0, 50, 300, 1_000))
        moves = (name, how, reached, source, back_ms, rng.random() < 0.6)
        found.append((at_ms, "relocate", moves))
        if how == "cut":
            found.append((at_ms + rng.randint(50, 800), "heal", ()))
        at_ms += rng.choice((40, 200, 900))
        if rng.random() < 0.4:
            name = rng.choice(names)
    return found


def _clients(rng: random.Random, topology: Topology) -> list[tuple[str, list[str], str, str]]:
    members = list(topology.members.values())
    rng.shuffle(members)
    clients = []
    for i in range(rng.randint(3, 4)):
        member = members[i % len(members)]
        clients.append((f"p{i + 1}", _servers(rng, topology, member), member.group, ""))
    member = rng.choice(members)
    clients.append(
        ("s1", _servers(rng, topology, member), member.group, rng.choice((".*", TOPICS[0])))
    )
    member = rng.choice(members)
    clients.append(
        ("s2", _servers(rng, topology, member), member.group, rng.choice((".*", *TOPICS)))
    )
    return clients


def _servers(rng: random.Random, topology: Topology, first: HistoryMember) -> list[str]:
    others = [
        m.name for m in topology.members.values() if m.group == first.group and m is not first
    ]
    rng.shuffle(others)
    return [first.name, *others]


def _workload(
    rng: random.Random, clients: list[tuple[str, list[str], str, str]], end_ms: int
) -> list[tuple[int, str, list[str]]]:
    publishers = [name for name, _, _, topic in clients if not topic]
    found: list[tuple[int, str, list[str]]] = []
    left = PUBLISHES
    while left:
        count = min(left, rng.choice((1, 2, 3, 5)))
        left -= count
        topics = [TOPICS[rng.random() < 0.3] for _ in range(count)]
        found.append((rng.randint(5, end_ms), rng.choice(publishers), topics))
    found.sort(key=lambda entry: entry[:2])
    return found


def _nemesis(
    rng: random.Random,
    topology: Topology,
    clients: list[tuple[str, list[str], str, str]],
    end_ms: int,
) -> list[Step]:
    names = list(topology.members)
    links = [
        (member.name, found.name)
        for member in topology.members.values()
        for found in member.destinations
    ]
    found: list[Step] = []

    def when() -> int:
        return rng.randint(20, end_ms)

    for _ in range(CRASHES):
        found.append((when(), "crash", (rng.choice(names), rng.randint(30, 700))))
    for _ in range(PARTITIONS):
        start = when()
        shuffled = rng.sample(names, len(names))
        cut = rng.randint(1, len(names) - 1)
        pairs = frozenset((a, b) for a in shuffled[:cut] for b in shuffled[cut:])
        found.append((start, "partition", (pairs, rng.random() < 0.7)))
        found.append((start + rng.randint(10, 600), "heal", ()))
    if links:
        for _ in range(rng.randint(0, 3)):
            found.append((when(), "crash_link", rng.choice(links)))
        for _ in range(rng.randint(0, 3)):
            found.append((when(), "break", rng.choice(links)))
        for _ in range(rng.choice((0, 1, 3))):
            link = rng.choice(links)
            start = when()
            found.append((start, "downgrade", link))
            found.append((start + rng.randint(5, 400), "upgrade", link))
    for _ in range(rng.randint(1, 3)):
        found.append((when(), "move", (rng.choice(clients)[0],)))
    for _ in range(rng.choice((0, 0, 1, 2))):
        found.append((when(), "fail_commit", (rng.choice(names),)))
    # What was removed everywhere when a disk is lost, nobody can give back.
    for _ in range(rng.choice((0, 0, 2, 3))):
        found.append((when(), "remove", ()))
    if rng.random() < 0.3:
        found.append((when(), "slow", (rng.randint(3, 10),)))
        found.append((when(), "slow", (1,)))
    if rng.random() < 0.35:
        name, *others = rng.sample(names, len(names))
        down_ms = rng.randint(30, 500)
        if rng.random() < 0.5:
            found.append((when(), "lose_disk", (name, down_ms)))
        else:
            found.append((when(), "lose_disk_and_copy", (name, down_ms, others[0])))
    if rng.random() < 0.2:
        name = rng.choice(names)
        found += [(when(), "set_clock", (name, ahead_ms)) for ahead_ms in (3_600_000, 0, 60_000)]
    if topology.name.startswith("diamond"):
        found += _diamond_faults(rng, end_ms)
    found.sort(key=lambda step: step[:2])
    return found
