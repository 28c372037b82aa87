"""A whole fabric in one process: a clock that only events move, links that delay and break,
instances that crash and lose what was not synced. One seeded random source decides everything.

What is simulated are the shells; the machines inside are the production ones:

    InstanceMachine + MemoryJournal       in an Instance (one life), on a Disk that outlives it
    OutboundLink                          in a LinkProcess, beside its instance
    ClientMachine                         in a SimClient

Between an instance and its links there is an ordered local channel; between hosts there are
Connections: ordered each, but not against one another, and what was sent before a break may still
arrive after the next connection was made.
"""

from __future__ import annotations

import heapq
import random
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, cast

from raylay.services.client.machine import ClientMachine
from raylay.services.client.publishing.outbox import PublishOutbox
from raylay.services.core.commit_cycle import CommitCycle
from raylay.services.core.compose import FeatureClasses
from raylay.services.core.conflation import ConflationFeature
from raylay.services.core.connection_order import LinkSetup, UpstreamCycle
from raylay.services.core.effect_loop import EffectLoop
from raylay.services.core.feature import FeatureRegistry
from raylay.services.core.queues import Queues
from raylay.services.core.sow import SowFeature
from raylay.services.core.views import ViewFeature
from raylay.services.messages.records import Run, iterate_records
from raylay.services.messages.topic_book import TopicBook
from raylay.services.messages.topics import (
    TopicRule,
)
from raylay.services.replication.commit_notifications import TOLD_LATER_US, CommitNotifications
from raylay.services.replication.commit_thread import SLOW_COMMIT_NS, CommitThreadPolicy
from raylay.services.replication.downgrade import DowngradePolicy
from raylay.services.replication.inbound_queue import InboundQueue
from raylay.services.replication.instance import InstanceMachine, MachineParts
from raylay.services.replication.instance.self_publisher import SelfPublisher
from raylay.services.replication.link.content import FilterLanguage
from raylay.services.replication.link.direct_link import DirectLink, DirectLinkPolicy
from raylay.services.replication.link.outbound import OutboundLink
from raylay.services.replication.link.resync_plan import ResyncPlan
from raylay.services.replication.membership.peers import PeerBook
from raylay.services.replication.membership.placement import InstancePlacement, Placements
from raylay.services.replication.publisher_names import NamesTold
from raylay.services.replication.recovery import RecoveryLog
from raylay.services.replication.run_lookup import RunLookup
from raylay.services.sow.book import SowBook
from raylay.services.sow.staging import SowStaging
from raylay.services.sow.state import SowState
from raylay.services.subscriptions.bookmark import BookmarkSubscription
from raylay.services.subscriptions.conflated_subscriptions import ConflatedSubscriptions
from raylay.services.subscriptions.durability import PendingMessages
from raylay.services.subscriptions.pages import PagedSubscriptions
from raylay.services.verification.history import (
    DestinationDebt,
    FinalLog,
    HistoryMember,
    InstanceMoved,
    MessagesPublished,
    NemesisFault,
    RunHistory,
    Topology,
)
from raylay.services.views.aggregated import AggregatedViews
from raylay.services.views.building import TopicBuild
from raylay.services.views.conflated_topic import ConflatedTopic
from raylay.services.views.view import View
from raylay.storage.memory_front import MemoryFront
from raylay.storage.memory_journal import MemoryJournal
from raylay.storage.sow_blocks import TopicBlocks
from sim import filtering
from sim.client import SimClient, SimStore
from sim.copying import copy_log
from sim.instance import Absent, Disk, Instance, former_name
from sim.network import Connection
from sim.queues import QueueMachines, SimQueues
from sim.salvage import SalvagedDisk
from sim.stateful import LastOfTopic, behind
from sim.view_followers import SimAggregated, SimBuild


@dataclass(slots=True)
class Timing:
    """How slow things are, in microseconds. Each delay is drawn between the two values."""

    network_us: tuple[int, int] = (200, 4_000)
    local_us: tuple[int, int] = (10, 300)
    commit_us: tuple[int, int] = (100, 2_500)
    read_us: tuple[int, int] = (20, 6_000)
    """Until the reading thread has come to a part of a look into the journal."""
    busy_us: tuple[int, int] = (500, 20_000)
    """How long an instance's loop is busy at times."""
    maintenance_us: tuple[int, int] = (100, 80_000)
    """Until the journal's maintenance thread has come to a piece of work."""
    notice_us: tuple[int, int] = (1_000, 200_000)
    """Until a side notices that its connection is dead."""
    restart_us: tuple[int, int] = (30_000, 600_000)
    tick_us: int = 50_000
    told_later_us: int = TOLD_LATER_US
    """Until a link hears of a commit of which nothing is routed there."""
    hint_us: int = 150_000
    """How often the durable floor is written down."""
    dial_us: int = 60_000
    """How long a link waits for a logon answer."""
    pause_us: tuple[int, int] = (10_000, 160_000)
    """A link's growing pauses: first and longest."""


PAGE_IS_THERE = 0.3
"""Of a write into the front that a crash met."""


@dataclass(slots=True)
class Machines:
    """What is under test; the planted mistakes replace one of them."""

    instance: type[InstanceMachine] = InstanceMachine
    parts: MachineParts = field(default_factory=MachineParts)
    """Of each instance's machine."""
    link: type[OutboundLink] = OutboundLink
    direct_policy: type[DirectLinkPolicy] = DirectLinkPolicy
    direct_link: type[DirectLink] = DirectLink
    names_told: type[NamesTold] = NamesTold
    durability: type[PendingMessages] = PendingMessages
    journal: type[MemoryJournal] = MemoryJournal
    front: type[MemoryFront] = MemoryFront
    news: type[CommitNotifications] = CommitNotifications
    place: type[CommitThreadPolicy] = CommitThreadPolicy
    commits: type[CommitCycle] = CommitCycle
    upstreams: type[UpstreamCycle] = UpstreamCycle
    setup: type[LinkSetup] = LinkSetup
    subscription: type[BookmarkSubscription] = BookmarkSubscription
    lookup: type[RunLookup] = RunLookup
    plan: type[ResyncPlan] = ResyncPlan
    recovery: type[RecoveryLog] = RecoveryLog
    arrivals: type[InboundQueue] = InboundQueue
    peers: type[PeerBook] = PeerBook
    client: type[ClientMachine] = ClientMachine
    outbox: type[PublishOutbox] = PublishOutbox
    store: type[SimStore] = SimStore
    filters: FilterLanguage = field(default_factory=filtering.Digits)
    """Of topologies with content filters."""
    author: type[SelfPublisher] = SelfPublisher
    state: type[LastOfTopic] = LastOfTopic
    sow: type[SowFeature] = SowFeature
    sow_state: type[SowState] = SowState
    sow_staging: type[SowStaging] = SowStaging
    sow_blocks: type[TopicBlocks] = TopicBlocks
    view: type[View] = View
    views: type[ViewFeature] = ViewFeature
    conflated: type[ConflatedTopic] = ConflatedTopic
    conflation: type[ConflationFeature] = ConflationFeature
    conflated_subscriptions: type[ConflatedSubscriptions] = ConflatedSubscriptions
    pages: type[PagedSubscriptions] = PagedSubscriptions
    aggregated: type[AggregatedViews] = SimAggregated
    build: type[TopicBuild] = SimBuild
    queues: QueueMachines = field(default_factory=QueueMachines)
    folds: type[FeatureRegistry] = FeatureRegistry
    steps: type[EffectLoop] = EffectLoop
    spreads: bool = True
    """False: a mistake: nobody tells another one who was moved."""
    placements_forgotten: bool = False
    """Mistake: a restart knows of no moved instance."""
    numbers_forgotten: bool = False
    """Mistake: what an instance numbers for its clients goes on from what its disk has."""
    copies_are_the_same: bool = False
    """Mistake: a copy of a data directory is taken for the directory."""
    verdicts_outlive_filters: bool = False
    """Mistake: what a filter left out is left out by the one that takes its place."""
    durable_is_highest: bool = False
    """Mistake: a client is told one number at its logon."""

    def kinds(self) -> FeatureClasses:
        """What each instance is composed of."""
        return FeatureClasses(self.instance, self.parts, self.recovery, self.folds, self.steps)


class World:
    """The clock, the hosts and the history of one run."""

    sees_contents: bool
    """Whether there are content filters: of destinations or of subscribers."""
    consumes = False
    """Whether everything in the queues is to be consumed now."""

    def __init__(
        self,
        seed: int,
        topology: Topology,
        *,
        timing: Timing | None = None,
        machines: Machines | None = None,
        policy: DowngradePolicy | None = None,
        window_bytes: int = 4_000,
        segment_bytes: int = 6_000,
        retention_bytes: int | None = None,
        encode: bool = False,
        check_every: int = 1,
        resolves: bool = False,
        journaled: tuple[TopicRule, ...] = (TopicRule(".*"),),
        contents: bool = False,
        recent_bytes_max: int | None = None,
        slow_commit_ns: int | None = None,
        stateful: tuple[TopicRule, ...] = (),
        direct_links: bool = False,
        sow: bool = False,
        deletes: bool = False,
        views: bool = False,
        keyed: bool = False,
        queues: SimQueues | None = None,
    ) -> None:
        self._begin_drawing(seed)
        self.has_front = seed % 2 == 1
        self.queues = queues
        self.has_letters = queues is not None and bool(queues.definition.dead_letters)
        if queues is not None and TopicRule(".*") not in journaled:
            of_queue = queues.definition.name, queues.definition.dead_letters
            journaled = (*journaled, *(TopicRule(name) for name in of_queue if name))
        self.sow = sow  # Whether instances have SOW topics.
        self.has_slow_folds = seed // 4 % 2 == 1  # Each of their records takes a turn.
        self.deletes = deletes
        """Whether clients delete records of them."""
        self.keyed = keyed
        """Whether the keys of a SOW topic are made of fields, and its store has blocks."""
        self.views = views
        """True if instances have views and conflated topics over their SOW topics."""
        self.direct_links = direct_links
        self.topology = topology
        self.sees_contents = topology.passes is not None
        self.timing = timing or Timing()
        self.machines = machines or Machines()
        # Half of the seeds look all of it up on disk, the others what is older.
        if recent_bytes_max is None:
            recent_bytes_max = 1_000 * (seed % 2)
        self.recent_bytes_max = recent_bytes_max
        # In half of the seeds the writer thread makes all commits: more comes between.
        if slow_commit_ns is None:
            slow_commit_ns = SLOW_COMMIT_NS * (seed // 2 % 2)
        self.slow_commit_ns = slow_commit_ns
        self.policy = policy or DowngradePolicy()
        self.window_bytes = window_bytes
        self.segment_bytes = segment_bytes
        self.retention_bytes = retention_bytes
        self.encode = encode
        self.check_every = check_every
        self.resolves = resolves
        """Whether clients look their servers up in the fabric's record."""
        # What nobody journals is declared so, or it is not and nobody wants it.
        self._unjournaled = () if seed % 2 else None
        self.topics = TopicBook(journaled, unjournaled=self._unjournaled)
        self.stateful = stateful
        self.contents = contents
        self.filters = self.machines.filters if topology.passes is not None else None
        """Whether clients publish different contents under one identity."""
        self.now_us = 0
        """The steady clock. The wall clock of an instance is ahead of it by `wall_offset_us`."""
        self.history = RunHistory(
            replace(topology, members=dict(topology.members)), journaled=journaled
        )
        self.history.queues = () if queues is None else (queues.shared(),)
        self.wide = {address: servers[0] for address, servers in topology.wide.items()}
        """Who answers now at an address of several servers."""
        self.log = self.history.operations.append
        self.probes: Counter[str] = Counter()
        self.steps = 0
        self.blocked: set[tuple[str, str]] = set()
        self.connections: dict[int, Connection] = {}
        self.slow = 1
        self.healed = False
        self._heap: list[tuple[int, int, Callable[..., None], tuple[Any, ...]]] = []
        self._tie = 0
        self._next_id = 0
        self._bits = self.rng.getrandbits
        self._real = self.rng.random
        self.disks: dict[str, Disk] = {}
        self.instances: dict[str, Instance] = {}
        self.hosts: dict[str, Instance | Absent] = {}
        """What lives, or lived last, on each host."""
        self.former: dict[str, Disk] = {}
        """Of instances that were moved, by former name."""
        self.salvages: list[SalvagedDisk] = []
        self.clients: dict[str, SimClient] = {}
        self.name_of: dict[int, str] = {}
        self._begin()

    def _begin_drawing(self, seed: int) -> None:
        """Of their own: what one draws changes nothing of what others draw."""
        self.rng = random.Random(seed)
        self.hint_rng = random.Random(seed)
        self.front_rng = random.Random(seed)
        self.direct_rng = random.Random(seed)
        self.names_rng = random.Random(seed)
        self.evidence_rng = random.Random(seed * 2 + (1 << 46))
        self.sow_rng = random.Random(seed)
        self.ask_rng = random.Random(seed)
        self.queue_rng = random.Random(seed)

    def _begin(self) -> None:
        """All instances start, on empty disks."""
        self.queue_faults: list[tuple[str, str]] = []
        """Law and text, of what a queue's owner or door did that it must not."""
        for member in self.topology.members.values():
            self.disks[member.name] = Disk(self, member)
        for name, disk in self.disks.items():
            self.instances[name] = Instance(self, disk, ready=True)

    def topic_book(
        self, member: HistoryMember, state: LastOfTopic, sow: SowBook, queues: Queues
    ) -> TopicBook:
        """What an instance knows of each topic, with a state of its own."""
        of = [*((rule, state) for rule in self.stateful), *sow.stateful()]
        rules = tuple(rule for rule in self.topics.rules if rule.name not in member.without)
        unjournaled, of_queues = self._unjournaled, queues.topics()
        return TopicBook(rules, unjournaled=unjournaled, stateful=of, queues=of_queues)

    def front(self) -> MemoryFront | None:
        """The front log of a new disk: in half of the seeds."""
        if not self.has_front:
            return None
        return self.machines.front(lambda: self.front_rng.random() < PAGE_IS_THERE)

    # -- the clock ---------------------------------------------------------------------------
    def at(self, time_us: int, call: Callable[..., None], *args: Any) -> None:
        """Calls at this time."""
        self._tie += 1
        heapq.heappush(self._heap, (time_us, self._tie, call, args))

    def after(self, delay_us: int, call: Callable[..., None], *args: Any) -> None:
        """Calls when so much time has passed."""
        self._tie += 1
        heapq.heappush(self._heap, (self.now_us + delay_us, self._tie, call, args))

    def drawn(self, between_us: tuple[int, int]) -> int:
        """A delay between the two values; the shorter ones more often."""
        low, high = between_us
        real = self._real()
        return low + int((high - low) * real * real)

    def run_until(self, time_us: int) -> None:
        """Lets events happen up to this time."""
        heap = self._heap
        pop = heapq.heappop
        while heap and heap[0][0] <= time_us:
            time, _, call, args = pop(heap)
            self.now_us = time
            self.steps += 1
            call(*args)
        self.now_us = max(self.now_us, time_us)

    def number(self) -> int:
        """A number that nothing else has."""
        self._next_id += 1
        return self._next_id

    # -- the nemesis -------------------------------------------------------------------------
    def fault(self, what: str) -> None:
        """Notes what the nemesis does."""
        self.log(NemesisFault(self.now_us, what))

    def crash(self, name: str, down_us: int = 0, *, lose_disk: bool = False) -> None:
        """Kills an instance with its links; it restarts after a while, or by `restart`."""
        instance = self.instances.get(name)
        if instance is not None and instance.alive:
            self.fault(f"crash {name}" + (" and its disk" if lose_disk else ""))
            instance.crash(lose_disk)
        if down_us:
            self.after(down_us, self.restart, name)

    def restart(self, name: str) -> None:
        """Starts an instance that is down, unless it has moved away for good meanwhile."""
        if name in self.instances and not self.instances[name].alive:
            disk = self.disks[name]
            if disk.copies_from:
                if not any(copy_log(disk, self.instances[each]) for each in self._sources(disk)):
                    self.after(self.timing.dial_us, self.restart, name)
                    return
                disk.copies_from = ""
            # It can only wait for a peer that is sure to connect: one that has it in a list of
            # servers may stay at another one for ever.
            ready = disk.was_ready or not any(
                destination.addresses == (name,)
                for other in self.topology.members.values()
                if other.group == disk.member.group and other.name != name
                for destination in other.destinations
            )
            self.instances[name] = Instance(self, disk, ready=ready)

    def relocate(
        self, name: str, reached: Iterable[str], source: str, *, salvages: bool = False
    ) -> str:
        """Moves an instance to another host, where it begins as a copy of a peer, and tells those
        whom the operator reaches. Returns what the former one is called from now on."""
        old = self.disks[name]
        self.fault(f"relocate {name}, telling {sorted(reached)}")
        self.probes["relocated"] += 1
        former = former_name(name, old.generation)
        old.label, old.salvages = former, salvages
        living = self.instances[name]
        living.name = former
        if living.alive:
            self.probes["relocated while it lives"] += 1
        elif old.copies_from:
            self.probes["relocated while it is filled"] += 1
        self.former[former] = old
        members = self.history.topology.members
        members[former] = replace(old.member, name=former)
        self.log(InstanceMoved(self.now_us, name, former, old.incarnation))
        disk = Disk(self, old.member, old.generation + 1)
        disk.copies_from, disk.was_ready = source, False
        self.disks[name] = disk
        self.hosts[disk.host] = absent = Absent(disk)
        self.instances[name] = cast(Instance, absent)
        placement = InstancePlacement(disk.generation, disk.host, disk.host)
        for peer in sorted(reached):
            if self.instances[peer].alive:
                self.instances[peer].learn({name: placement})
        self.after(self.drawn(self.timing.restart_us), self.restart, name)
        return former

    def answering(self, address: str) -> str:
        """The instance that answers at an address."""
        return self.wide.get(address, address)

    def point(self, address: str, server: str) -> None:
        """From now on this one of its servers answers at an address."""
        self.fault(f"{address} is {server}")
        self.wide[address] = server

    def placements(self) -> dict[str, InstancePlacement]:
        """As the fabric's record has them, and a new configuration tells."""
        found: dict[str, InstancePlacement] = {}
        for disk in self.disks.values():
            found |= disk.own_placement()
        return found

    def come_back(self, former: str) -> None:
        """The host of an instance that was moved is back, and Ray starts there what was."""
        disk = self.former[former]
        living = self.hosts.get(disk.host)
        if disk.retired or disk.lives == 0 or (living and living.alive):
            return
        if any(salvage.disk is disk for salvage in self.salvages):
            return  # The command holds its lock.
        self.fault(f"{former} comes back")
        if Placements(disk.placements).is_retired(disk.member.name, disk.generation):
            disk.retired = True
            return
        self.probes["former instance came back"] += 1
        Instance(self, disk, ready=disk.was_ready)

    def _salvage(self) -> None:
        """Salvages retired disks, each when its instance is over."""
        for disk in self.former.values():
            living = self.hosts.get(disk.host)
            if disk.salvages and disk.lives and not (living and living.alive):
                disk.salvages = False
                self.salvages.append(SalvagedDisk(disk))
        if any(disk.salvages and disk.lives for disk in self.former.values()):
            self.after(50_000, self._salvage)

    def _sources(self, disk: Disk) -> list[str]:
        """Where an instance may be filled from: a moved one from any of its group, so has its
        fabric it; another one from whom its operator named. Where that one was moved meanwhile, it
        may wait to catch up with this one in its turn. Both tell so, and the operator names another
        one: at the latest when everything heals."""
        if not disk.generation and not self.healed:
            return [disk.copies_from]
        name, group = disk.member.name, disk.member.group
        members = [each.name for each in self.topology.members.values() if each.group == group]
        return [disk.copies_from, *(each for each in members if each != name)]

    def keep(self, name: str) -> None:
        """Puts a copy of an instance's data directory aside."""
        instance = self.instances[name]
        if instance.alive:
            self.fault(f"keep a copy of the directory of {name}")
            self.disks[name].was_ready = instance.machine.ready
            self.disks[name].keep()

    def put_back(self, name: str, down_us: int, *, in_place: bool) -> None:
        """Puts the copy back and starts the instance with it."""
        instance, disk = self.instances[name], self.disks[name]
        if not instance.alive or disk.kept is None:
            return
        self.fault(f"put back the old directory of {name}{' in place' if in_place else ''}")
        self.probes["old copy put back in place" if in_place else "old copy put back"] += 1
        instance.crash(False)
        disk.put_back(in_place=in_place)
        # Who puts it back starts it, as the fabric's record has it by now.
        placements = Placements(disk.placements)
        placements.learn(self.placements())
        disk.placements = placements.items()
        self.after(down_us, self.restart, name)

    def crash_link(self, name: str, destination: str) -> None:
        """Kills one link of an instance; its instance starts it again."""
        instance = self.instances[name]
        if instance.alive and instance.links[destination].alive:
            self.fault(f"crash link {name} {destination}")
            instance.links[destination].crash()

    def partition(self, pairs: set[tuple[str, str]], *, symmetric: bool = True) -> None:
        """Nothing goes from the first to the second of each pair any more."""
        self.fault(f"partition {sorted(pairs)}{'' if symmetric else ' one way'}")
        new = set(pairs)
        if symmetric:
            new |= {(b, a) for a, b in pairs}
        self.blocked |= new
        for connection in list(self.connections.values()):
            connection.sever_if_blocked()

    def heal(self) -> None:
        """All hosts reach one another again."""
        if self.blocked:
            self.fault("heal")
            self.blocked.clear()

    def break_connections(self, a: str, b: str) -> None:
        """Breaks every connection between two hosts; new ones can be made."""
        for connection in list(self.connections.values()):
            if {a, b} == set(connection.hosts):
                connection.sever()

    def everything_heals(self) -> None:
        """From now on nothing goes wrong any more."""
        self.healed = True
        self.slow = 1
        self.heal()
        if self.former:
            self.after(100_000, self._salvage)
        for name, instance in self.instances.items():
            if not instance.alive:
                self.after(1_000, self.restart, name)
            else:
                for destination, ledger in instance.machine.destinations.items():
                    if ledger.destination.sync and not ledger.sync:
                        instance.upgrade(destination)

    def settled(self) -> bool:
        """Whether there is nothing left to happen but ticks."""
        for instance in self.instances.values():
            if not instance.alive or not instance.quiet():
                return False
            if not instance.queues.is_idle or (self.consumes and instance.queues.depth):
                return False
        if any(self.hosts[disk.host].alive for disk in self.former.values()):
            return False  # It has still to learn that it is over.
        if any(disk.salvages and disk.lives for disk in self.former.values()):
            return False
        if any(salvage.alive for salvage in self.salvages):
            return False
        if any(any(c.dead) and any(c.open) for c in self.connections.values()):
            return False  # Somebody has still to notice it.
        return all(client.quiet() for client in self.clients.values())

    def arrivals_us(self) -> Iterator[int]:
        """When the last frame of each direction of each connection arrives."""
        for connection in self.connections.values():
            yield from connection.last_us

    def digests(self, run: Run, sequences: tuple[int, ...]) -> tuple[int, ...]:
        """Of a run's contents, where it matters whose they are."""
        if not self.contents:
            return ()
        found = {each.sequence: each.digest for each in iterate_records(run.payload)}
        return tuple(found[sequence] for sequence in sequences)

    def takes_over(self, name: str, late_us: int = 0) -> bool:
        """Whether an instance is told to take messages over of those that it cannot reach."""
        return self.queues is not None and any(
            at_ms * 1_000 <= self.now_us <= (at_ms + for_ms) * 1_000 + late_us
            for at_ms, each, for_ms in self.queues.takeovers
            if each == name
        )

    def contents_of(self, run: Run, sequences: tuple[int, ...]) -> tuple[str, ...]:
        """What content filters see of a run's records, where there are any."""
        if not self.sees_contents:
            return ()
        found = {each.sequence: filtering.seen(each.body) for each in iterate_records(run.payload)}
        return tuple(found[sequence] for sequence in sequences)

    def behind(self, run: Run) -> tuple[str, ...] | None:
        """What a run's records say to come before them, where their topic has a state."""
        of_state = any(rule.name.encode() == run.topic for rule in self.stateful)
        return behind(run) if of_state else None

    def finish(self) -> RunHistory:
        """Writes down how everything ended."""
        history = self.history
        history.transient = frozenset(
            operation.topic
            for operation in history.operations
            if isinstance(operation, MessagesPublished)
            and not any(rule.name in (".*", operation.topic) for rule in self.topics.rules)
            # What nobody declared is never acknowledged: the laws of all others hold for it.
            and self.topics[operation.topic.encode(), b"json"].declared
        )
        self._check_names()
        history.unretired = [
            former for former, disk in self.former.items() if self.hosts[disk.host].alive
        ]
        instances: dict[str, Instance | Absent] = {**self.instances}
        for name, instance in instances.items():
            disk = self.disks[name]
            if isinstance(instance, Absent):
                history.unstarted[name] = disk.copies_from
                continue
            machine = instance.machine
            first = disk.journal.first_txid
            history.final[name] = FinalLog(
                disk.incarnation,
                frozenset(key for key, run in disk.index.items() if run.first_txid >= first),
                frozenset(disk.index),
                {link.destination.name: link.server for link in instance.links.values()},
                sum(
                    ledger.unacked.count for ledger in machine.destinations.values() if ledger.sync
                ),
                machine.pending.count,
                frozenset(
                    (publisher, sequence)
                    for publisher, (a, b) in machine.missing.ranges.items()
                    for sequence in range(a, b + 1)
                ),
                tuple(_owing(machine)),
            )
        for instance in instances.values():
            if self.sow and isinstance(instance, Instance) and instance.alive:
                instance.log_sow()
                if instance.views is not None:
                    instance.views.end()
        for client in self.clients.values():
            if client.failed:
                continue  # Another one bears its name.
            history.unacked[client.name] = client.store.messages + len(client.commands)
            history.waiting[client.name] = (
                f"publisher {client.machine.outbox.publisher}, {client.store.messages} sequences "
                f"from {client.store.lowest} on and {len(client.commands)} commands, "
                f"{client.machine.status}"
            )
            if client.subscription is not None:
                history.subscribed[client.name] = (
                    client.machine.instance,
                    client.subscription.topic,
                )
                if text := client.subscription.options.get("filter"):
                    history.passes[client.name] = partial(filtering.passes, text)
        return history

    def _check_names(self) -> None:
        """In the end a destination remembers whom every publisher id belongs to that the instance
        of its link remembers, and the disk has all that an instance remembers."""
        for name, instance in self.instances.items():
            if not instance.alive:
                continue
            names = instance.machine.publisher_names
            theirs = [(f"the disk of {name}", instance.disk.names)]
            for link in instance.links.values():
                host = link.connection.hosts[1] if link.connection is not None else ""
                other = self.hosts.get(host)
                if link.machine.is_connected and other is not None and other.alive:
                    remembered = other.machine.publisher_names
                    theirs.append((other.name, dict(remembered.items())))
            for where, found in theirs:
                missing = [each for each, named in names.items() if found.get(each) != named]
                if missing:
                    text = f"{where} lacks {len(missing)} names that {name} has: {missing[0]}"
                    self.queue_faults.append(("names", text))


def _owing(machine: InstanceMachine) -> Iterator[DestinationDebt]:
    """What is owed and pending, by destination and publisher."""
    kept = [(name, each.unacked) for name, each in machine.destinations.items() if each.sync]
    for name, rooted in (*kept, ("", machine.pending)):
        for ranges in rooted.roots.values():
            for publisher, found in ranges.sets.items():
                first, last = found.first(), found.last()
                if first is not None and last is not None:
                    yield DestinationDebt(name, publisher, found.count, first, last)
