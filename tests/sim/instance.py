"""A simulated instance: the disk that outlives it, and one life of the shell around its machine."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any

from raylay.services.core.commit_cycle import notify_links
from raylay.services.core.compose import Composition, compose, folding
from raylay.services.core.connection_order import (
    ClientIdentity,
    LinkSetup,
    ReachedServer,
    log_client_on,
)
from raylay.services.core.effect_loop import TURN_S, EffectTable
from raylay.services.core.fold_backlog import FoldBacklog, weight
from raylay.services.core.sow import SowFeature, SowPending
from raylay.services.errors import AdmissionRefused, DowngradeRefused
from raylay.services.messages.bookmarks import parse_position
from raylay.services.messages.ranges import PublisherRanges, Range, SequenceSet
from raylay.services.messages.records import (
    Flag,
    Kind,
    RecordBuilder,
    Run,
    iterate_records,
    run_of,
    scan,
)
from raylay.services.messages.topics import TopicRule
from raylay.services.protocol.client.answers import OVERTAKEN, ranges_ack
from raylay.services.protocol.frames import first_frame
from raylay.services.queues.frontend import RoutedRequest
from raylay.services.replication.acknowledgment import RootedRanges
from raylay.services.replication.effects import (
    AckClient,
    AckUpstream,
    Append,
    BecameReady,
    CloseSession,
    CloseUpstream,
    EventReport,
    InstanceRetirement,
    LinkAnswered,
    LinkReport,
    NotifyLink,
    PlacementsChanged,
    RefuseClient,
    RemovalBound,
    RunsCommitted,
    SafetyChanged,
    SendBatch,
    SetLinkMode,
    StaleCopyDetected,
)
from raylay.services.replication.inbound_queue import InboundQueue
from raylay.services.replication.instance import (
    Identity,
    InstanceMachine,
    decode_note,
)
from raylay.services.replication.instance.self_publisher import PendingRecord
from raylay.services.replication.instance.tick_policy import TickPolicy
from raylay.services.replication.journal_lookup import LookupRequest, LookupResult, LookupTask
from raylay.services.replication.link.resync_plan import ResyncPlan
from raylay.services.replication.membership.admission import LinkRefused
from raylay.services.replication.membership.connection_sharing import SharedConnection, choose
from raylay.services.replication.membership.placement import InstancePlacement, Placements
from raylay.services.replication.publisher_names import PublisherNames
from raylay.services.replication.recovery import RecoveryPoint
from raylay.services.replication.run_lookup import RunLookup
from raylay.services.replication.unavailable import decode_unavailable
from raylay.services.replication.values import LogonAnswer
from raylay.services.sow.book import SowBook
from raylay.services.subscriptions.bookmark import BookmarkSubscription, resolve
from raylay.services.subscriptions.matching import topic_filter
from raylay.services.subscriptions.replay_group import ReplayGroup, ReplayTerms
from raylay.services.verification import history
from raylay.services.verification.history import (
    AckGiven,
    BatchReturned,
    BatchTaken,
    CatchUpEnded,
    EventSeen,
    FiltersChanged,
    HistoryMember,
    InstanceCrashed,
    InstanceReady,
    InstanceRecovered,
    InstanceStarted,
    LackNoted,
    LinkConnected,
    LinkModeSet,
    LinkReached,
    MessagesApplied,
    MessagesOffered,
    MessagesPublished,
    MessagesUndone,
    MoveKnown,
    OldCopyHeld,
    PublishRefused,
    RecordsDrafted,
    ResumeRead,
    RunJournaled,
    SafetySent,
    SegmentsRemoved,
    SowDiffers,
    WaiterNoted,
)
from raylay.storage.queue import MemoryQueueStore
from raylay.storage.sow import MemorySowStore
from sim import queues, sow, stateful, views
from sim.connections import AdmittedLink, EnteringClient, Session, SetUpLink
from sim.features import Replays, State, Writes, follow_everything
from sim.filtering import DigitContent
from sim.link import LinkLogon, LinkProcess, Placed, Stale, Welcome
from sim.network import Carried, Connection
from sim.runtime import SimRuntime
from sim.sow_store import BlockSowStore

if TYPE_CHECKING:
    from sim.world import World


FOREVER_US = 1 << 60
LOOKED_AT_ONCE = 2
"""Records of a topic with state."""
MOVE_US = 20_000
"""After a commit in front, until it is moved into the store."""
HINT_WRITE_US = (100, 20_000)
HINT_FAILS = 0.1
"""As on a disk that is full for a moment."""
SOW_US = 120_000
"""Between two commits of the SOW store."""
FOLD_LATER_US = 2_000
"""Between two turns that fold, at most."""
SLICED_CHANCE = 0.5
"""Of a comparison of a link's logon being long."""
SLICE_US = (1, 20_000)
LOOKUP_BYTES = 1_000
"""Little, so that a look-up takes several reads."""
HEADERS = 7
"""Read at once by a restart: few, so that one takes several reads."""
SHOWN_EVENTS = frozenset(
    (
        "late",
        "conflict",
        "upstream_refused",
        "downgraded",
        "upgraded",
        "storage_failed",
        "topic_passed_over",
    )
)


class Disk:
    """What survives a crash of an instance: its journal and its state store."""

    def __init__(self, world: World, member: HistoryMember, generation: int = 0) -> None:
        self.world = world
        self.member = member
        self.generation = generation
        self.host = former_name(member.name, generation) if generation else member.name
        self.label = member.name
        """What its instance is called in the history: when it was moved, by its former name."""
        self.retired = False
        self.salvages = False
        """Whether it is to be salvaged when its instance is over."""
        self.salvaged = False
        self.incarnation = 0
        self.lives = 0
        self.clock_ahead_us = 0
        """What the wall clock of its host is ahead of the world's."""
        self.was_ready = True
        self.copies_from = ""
        """Where it is filled from before its instance starts; empty: nowhere."""
        self.topics_to_be: dict[str, tuple[TopicRule, ...]] = {}
        """Destinations whose topics are others at the next start."""
        self.kept: dict[str, Any] | None = None
        """A copy of the data directory, put aside."""
        self.is_old_copy = False
        """Whether that was put back, and no peer of its group has brought since what it lacks."""
        self.former: list[int] = []
        self.format()

    def format(self) -> None:
        """Makes the data directory anew: empty, with an incarnation of its own."""
        world = self.world
        self._name_anew()
        self.former = []
        self.journal = world.machines.journal(
            world.segment_bytes,
            encode=world.encode,
            retention_bytes=world.retention_bytes,
            front=world.front(),
        )
        self.epochs_seen: dict[tuple[int, str], int] = {}
        self.epochs_used: dict[str, int] = {}
        self.verdicts: dict[str, dict[int, dict[int, bytes]]] = {}
        """Destination to what its filters left out, by stretch of the journal."""
        self.judged_by: dict[str, tuple[tuple[str, str, str], ...]] = {}
        """Destination to the filters that left it out."""
        self.servers: dict[str, tuple[int, str]] = {}
        """Destination to (incarnation, name) of the server last connected."""
        self.servers_met: dict[str, set[str]] = {}
        self.hints: dict[str, bytes] = {}
        """What is written down of where recovery may begin."""
        self.downgraded: set[str] = set()
        """Destinations for which persisted acks do not wait: a restart returns to sync."""
        self.settled = RootedRanges()
        """What the instance was awaited for then, and was durable."""
        self.placements = world.placements() | self.own_placement()
        self.numbered: dict[int, str] = {}
        """Publisher ids that its instance numbers for, to the clients."""
        self.index: dict[tuple[int, int], Run] = {}
        self.received_us: dict[tuple[int, int], int] = {}
        """When each message was received, whatever the wall clock said."""
        self.clock_steps: list[tuple[int, int]] = []
        """As the state store keeps them."""
        self.lacked: dict[tuple[int, int], None] = {}
        """What the journal has noted that nobody has."""
        self.last: dict[bytes, str] = {}
        """The last message of each topic in the journal."""
        self.sow_store = (
            BlockSowStore(world.machines.sow_blocks) if world.keyed else MemorySowStore()
        )
        self.sow_ledger = sow.Ledger(keyed=world.keyed)
        """What the SOW topics of the journal hold."""
        self.queue_stores: dict[str, MemoryQueueStore] = {}
        self.names: dict[int, bytes] = {}
        """Whom publisher ids belong to."""
        self.announced: set[int] = set()
        """Incarnations of which the journal says to queues who bears them."""

    def _name_anew(self) -> None:
        self.incarnation = self.world.rng.getrandbits(63) | 1
        self.world.name_of[self.incarnation] = self.member.name

    def configured(self) -> Disk:
        """The same, with what the configuration says since the last start."""
        topics, self.topics_to_be = self.topics_to_be, {}
        if topics:
            self.member = replace(
                self.member,
                destinations=tuple(
                    replace(each, topics=topics.get(each.name, each.topics))
                    for each in self.member.destinations
                ),
            )
            self.world.probes["started with other filters"] += 1
            self.world.log(FiltersChanged(self.world.now_us, self.label, self.member.destinations))
        return self

    def identity(self) -> Identity:
        """Of who lives on it from now on."""
        world, member = self.world, self.member
        life = 0 if world.machines.numbers_forgotten else world.now_us
        return Identity(member.name, member.group, self.incarnation, self.generation, life=life)

    def keep(self) -> None:
        """Puts a copy of the data directory aside, as it is on the disk at this moment."""
        self.kept = {name: _copied(getattr(self, name)) for name in _IN_THE_DIRECTORY}
        self.kept["journal"] = self.journal.copied()
        self.kept["sow_store"] = self.sow_store.crash()
        self.kept["queue_stores"] = _crashed(self.queue_stores)

    def put_back(self, *, in_place: bool) -> None:
        """The copy that was put aside is the data directory from now on, while the instance is
        down. `in_place`: as by a snapshot of the disk, so that nobody can tell."""
        assert self.kept is not None
        self.is_old_copy = True
        self._lose()
        for name, value in self.kept.items():
            setattr(self, name, _copied(value))
        self.journal = self.kept["journal"].copied()
        self.sow_store = self.kept["sow_store"].crash()
        self.queue_stores = _crashed(self.kept["queue_stores"])
        if in_place or self.world.machines.copies_are_the_same:
            self._lose()
            self._write_history()
        else:
            self.world.probes["copy began anew"] += 1
            self.begin_anew()

    def begin_anew(self) -> None:
        """Another incarnation, with what the disk holds
        (services/server/data/data_directory.py)."""
        self._lose()
        before = self.incarnation
        self.former.append(before)
        self._name_anew()
        if before in self.settled.roots:
            self.settled.roots[self.incarnation] = self.settled.roots.pop(before)
        self.was_ready = False
        self._write_history()

    def _lose(self) -> None:
        self.world.log(InstanceCrashed(self.world.now_us, self.label, self.incarnation, True))

    def _write_history(self) -> None:
        """What is on the disk, told as if it were written now, behind what it had removed."""
        world, first_txid = self.world, self.journal.first_txid
        for (publisher, sequence), run in self.index.items():
            if run.first_txid < first_txid:
                of = (self.label, self.incarnation, publisher, (sequence,))
                world.log(OldCopyHeld(world.now_us, *of))
        for publisher, sequence in list(self.lacked):
            if (publisher, sequence) not in self.index:
                self.log_lacked(publisher, (sequence,))
        after_txid = first_txid - 1
        while runs := self.journal.read(after_txid):
            after_txid = runs[-1].last_txid
            for run in runs:
                self.log_journaled(run)
                if run.kind == Kind.RECORDS:
                    # The copy may have a commit in its front that nobody was told of yet.
                    for sequence in _expanded(run.ranges()):
                        self.index[run.publisher, sequence] = run
                        self.received_us.setdefault((run.publisher, sequence), world.now_us)

    def log_journaled(self, run: Run) -> None:
        """Tells the history of a run that is on the disk."""
        world, name = self.world, self.label
        self.sow_ledger.journaled(run)
        for text in self.sow_ledger.take_wrong():
            world.log(SowDiffers(world.now_us, name, text))
        if run.kind == Kind.RECORDS:
            self.log_records(run, tuple(_expanded(run.ranges())))
        elif run.kind == Kind.WAITER:
            root, sender, ranges = decode_note(run)
            world.log(
                WaiterNoted(
                    world.now_us,
                    name,
                    self.incarnation,
                    self.incarnation if root in self.former and not sender else root,
                    sender,
                    run.publisher,
                    tuple(_expanded(ranges)),
                )
            )
        elif run.kind == Kind.UNAVAILABLE:
            lacked = tuple(_expanded(list(decode_unavailable(run).of(run.publisher))))
            self.log_lacked(run.publisher, lacked)

    def log_records(self, run: Run, sequences: tuple[int, ...]) -> None:
        """Tells the history of the records of a run, which have these sequences."""
        world = self.world
        stateful.fold(self.last, [run])
        world.log(
            RunJournaled(
                world.now_us,
                self.label,
                self.incarnation,
                run.first_txid,
                run.publisher,
                sequences,
                run.topic.decode(),
                run.path,
                run.group,
                bool(run.flags & Flag.AWAITED),
                bool(run.flags & Flag.LATE),
                world.digests(run, sequences),
                world.contents_of(run, sequences),
                world.behind(run),
            )
        )
        queues.log_recorded(self, run)

    def log_lacked(self, publisher: int, sequences: tuple[int, ...]) -> None:
        """Tells the history of what nobody has, as the journal has noted it."""
        self.lacked.update(((publisher, sequence), None) for sequence in sequences)
        now_us = self.world.now_us
        self.world.log(LackNoted(now_us, self.label, self.incarnation, publisher, sequences))

    def own_placement(self) -> dict[str, InstancePlacement]:
        """Where its instance lives, if it was moved."""
        if not self.generation:
            return {}
        return {self.member.name: InstancePlacement(self.generation, self.host, self.host)}


_IN_THE_DIRECTORY = (
    "clock_steps",
    "received_us",
    "incarnation",
    "former",
    "was_ready",
    "epochs_seen",
    "epochs_used",
    "servers",
    "servers_met",
    "hints",
    "settled",
    "placements",
    "index",
    "lacked",
    "last",
    "sow_ledger",
    "announced",
    "names",
    "verdicts",
    "judged_by",
)


def _crashed(stores: dict[str, MemoryQueueStore]) -> dict[str, MemoryQueueStore]:
    """What is on disk of the stores of queues' owners."""
    return {name: store.crash() for name, store in stores.items()}


def _copied(value: Any) -> Any:
    """A value with no part of its own in common: those within are never changed, but lists, sets
    and maps."""
    if isinstance(value, dict):
        return {key: _copied(item) for key, item in value.items()}
    return value.copy() if hasattr(value, "copy") else value


@dataclass(slots=True)
class Cursor:
    """A bookmark subscription at an instance."""

    subscription: BookmarkSubscription
    replay: ReplayGroup
    command_id: str
    reading: bool = False
    accepted: bool = False


def former_name(name: str, generation: int) -> str:
    """What an instance is called when it is over, and the host where a moved one lives."""
    return f"{name}#{generation}"


class ProbedLookup:
    """The look-up, for one fetch: counts what is looked up."""

    def __init__(self, lookup: RunLookup, world: World) -> None:
        self._lookup = lookup
        self._world = world
        self._found: list[Run] = []

    @property
    def reads(self) -> int:
        return self._lookup.reads

    def look_anew(self) -> None:
        self._lookup.look_anew()

    def part(self, publisher: int, wanted: SequenceSet) -> list[Run]:
        found = self._lookup.part(publisher, wanted)
        self._found += found
        return found

    def count(self) -> None:
        """All of it is read."""
        for run in self._found:
            if not run.contiguous and any(
                run.publisher == other.publisher
                and run.first_sequence < other.first_sequence < run.last_sequence
                for other in self._found
            ):
                self._world.probes["looked up what fills a hole"] += 1
                break

    def highest_on_topic(self, publisher: int, topic: bytes, wanted: SequenceSet) -> int:
        self._world.probes["looked up the highest on a topic"] += 1
        return self._lookup.highest_on_topic(publisher, topic, wanted)


class Absent:
    """An instance that is moved and has not started there yet."""

    alive = False
    machine: InstanceMachine

    def __init__(self, disk: Disk) -> None:
        self.disk = disk
        self.name = disk.label


class Instance:
    """One life of an instance: the shell around its machine."""

    salvages = False
    _by_hand = False
    _before_txid = 0
    """What is below, links need no more of the journal."""
    _comparing: dict[str, ResyncPlan]
    """Of links that are about to begin."""

    def __init__(self, world: World, disk: Disk, *, ready: bool) -> None:
        self._comparing = {}
        self.world = world
        self.disk = disk.configured()
        self._ahead_us = disk.clock_ahead_us
        world.probes["steady clock began anew"] += bool(disk.lives and self._ahead_us)
        self.name = disk.label
        self.host = disk.host
        self.alive = True
        self.journal = disk.journal
        self.sessions: dict[int, Session] = {}
        self.upstreams: dict[int, AdmittedLink] = {}
        self.incoming: dict[int, SharedConnection] = {}
        """Of these, what others dialled."""
        self._checks = 0
        world.hosts[self.host] = self
        recovered = disk.journal.recovered
        if world.machines.placements_forgotten:
            disk.placements = {}
        self.lookup = world.machines.lookup(disk.journal, stretch_bytes=LOOKUP_BYTES)
        self.arrivals: dict[int, InboundQueue] = {}
        """By connection: what came and is not taken yet, in order."""
        is_slow = world.sow and world.has_slow_folds
        unfolded = FoldBacklog(self._weigh, 1) if is_slow else None
        self.folds = folding(world.machines.kinds(), unfolded)
        self.state = world.machines.state(disk.last)
        self._writes, self._replays = Writes(self), Replays(self)
        self._open_features()
        self.links: dict[str, LinkProcess] = {}
        self._begin_committing()
        composition = Composition(
            disk.identity(),
            disk.member.destinations,
            world.topic_book(disk.member, self.state, self.sow.book, self.queues.queues),
            peers={name: server[0] for name, server in disk.servers.items()},
            servers=disk.servers_met,
            placements=Placements(disk.placements),
            former=disk.former,
            ready=ready,
            policy=world.policy,
            recent_bytes_max=world.recent_bytes_max,
            filters=world.filters,
            sow=self.sow if world.sow else None,
            names=PublisherNames(disk.names.items()),
        )
        machine, self.recovery = compose(
            composition,
            disk.journal,
            self.lookup,
            disk.hints,
            self.now_us,
            kinds=world.machines.kinds(),
            headers_max=HEADERS,
        )
        self.machine, self.looking = machine, TickPolicy(machine)
        self._begin_telling_names()
        self.durability = world.machines.durability(machine.pending)
        self.author = world.machines.author("sim", disk.identity())
        self.peers = world.machines.peers()
        self._add_peers()
        self.peers.moved(machine.placements.items())
        self._txid_at_start = recovered.next_txid - 1
        if recovered.next_txid > 1:
            if machine.pending:
                world.probes["ack owed across a restart"] += 1
            if self.recovery.point.waiting:
                world.probes["waited at the recovery point"] += 1
            if any(each.route.passed for each in self.recovery.point.waiting):
                world.probes["verdict of a filter at the recovery point"] += 1
            self._log_recovered()
        self.journal.later = self._maintain
        self.journal.removed_by_retention = self._removed_up_to
        self.journal.move_later = lambda work: self.world.after(MOVE_US, work)
        self.runtime.journal.start()
        world.log(InstanceStarted(world.now_us, self.name, disk.incarnation, ready))
        for name in sorted(disk.downgraded):
            world.log(LinkModeSet(world.now_us, self.name, name, True))
        disk.downgraded.clear()
        disk.lives += 1
        self._fold()
        for destination in disk.member.destinations:
            self.links[destination.name] = LinkProcess(self, destination)
        self.commits.wakeable_changed()
        world.after(world.drawn((1, world.timing.tick_us)), self._tick)
        world.after(world.drawn((1, world.timing.hint_us)), self._write_hint)
        self.check()
        self._begin_announcing()

    def _begin_committing(self) -> None:
        """Makes the parts that a commit goes through, in the order of production."""
        world = self.world
        self.runtime = runtime = SimRuntime(self)
        self.commits = world.machines.commits(
            runtime,
            runtime,
            self.links,
            self.folds,
            clock_ns=lambda: 0,
            took=lambda commit_ns: None,
            undone=runtime.journal.staged.clear,
            notifications=world.machines.news(),
            policy=world.machines.place(world.slow_commit_ns),
        )
        self.links_in = world.machines.upstreams(
            runtime, runtime, self.commits, self.queues, self._offer_incoming
        )
        effects = EffectTable()
        effects.bind({Append: self._perform_append})
        for kind, method in _PERFORM.items():
            effects.bind({kind: runtime.outbox.saying(partial(method, self))})
        self._folded_s = 0.0
        self._steps = world.machines.steps(
            effects, self.folds, lambda: None, self._fold_later, clock=self._fold_clock
        )

    def _begin_telling_names(self) -> None:
        names, told = self.machine.publisher_names, self.world.machines.names_told
        self.names_told = {each.name: told(names) for each in self.disk.member.destinations}
        self.names_under_way = 0
        self.names_being_written = 0
        """Parts of them that have not arrived anywhere."""

    def _begin_announcing(self) -> None:
        if self.disk.generation and self.world.machines.spreads:
            self._untold = [name for name in self.world.disks if name != self.name]
            self._announce()

    def _open_features(self) -> None:
        self.sow = self._opened_sow()
        self.views = views.SimViews(self, self.sow.book.topics) if self.world.views else None
        self.queues = self.world.machines.queues.manager(self, self.world.queues)

    def _opened_sow(self) -> SowFeature:
        """The SOW topics as the store has them."""
        world, disk = self.world, self.disk
        if not world.sow:
            return world.machines.sow(SowBook())
        kind = world.machines.sow_state
        staging = world.machines.sow_staging
        book = sow.book(
            disk.sow_store, kind, staging, prepares=not world.stateful, keyed=world.keyed
        )
        made = world.machines.sow(book)
        if world.keyed:
            made.wanted_by(lambda topic: False)
        last_txid = disk.journal.recovered.next_txid - 1
        made.begin(disk.journal.first_txid, last_txid)
        stored_txid = made.recovered_txid
        assert stored_txid is not None
        if disk.journal.first_txid > stored_txid + 1:
            disk.sow_ledger.is_excused |= disk.sow_ledger.forced_txid > 0
        if 0 < stored_txid < last_txid:
            world.probes["SOW folded on from its store"] += 1
        return made

    def _fold(self) -> None:
        """Who folds what is committed from the first commit on."""
        world = self.world
        if world.sow:
            self.log_sow()
            self.folds.enlist(self.sow, True)
            if self.views is not None:
                self.views.begin()
            world.after(SOW_US, self._write_sow)
        if world.stateful:
            self.folds.enlist(State(self), True)
            follow_everything(self)
        self.queues.run()

    def _add_peers(self) -> None:
        disk = self.disk
        for destination in disk.member.destinations:
            # Here the names of hosts are their addresses, but for addresses of several.
            name = destination.name
            names = () if destination.wide_ip else destination.addresses
            self.peers.add(name, names, names)
            if name in disk.servers:
                self.peers.reached(name, *disk.servers[name], self.host_of(disk.servers[name][1]))

    def _log_recovered(self) -> None:
        """Tells what was settled when the recovery point was written and waits again."""
        if not set(self.machine.contents.rules) <= set(self.recovery.point.filters):
            # What was durable by other filters waits for whom it goes to now.
            self.world.probes["judged again by other filters"] += 1
            return
        again: list[tuple[int, int, int]] = []
        for root, settled in self.disk.settled.roots.items():
            for publisher, ranges in settled.sets.items():
                pending = self.machine.pending.get(root, publisher)
                if pending is not None:
                    both = _expanded(list(ranges.intersection(pending)))
                    again += [(root, publisher, sequence) for sequence in both]
        self.world.log(InstanceRecovered(self.world.now_us, self.name, tuple(again)))

    # -- what asks for a look into the journal ----------------------------------------------
    def _arrived(self, connection: Connection, what: Any, take: Callable[..., Any]) -> None:
        """Something came over a connection. As the server's connections do it."""
        number = connection.number
        arrivals = self.arrivals.get(number)
        if arrivals is None:
            arrivals = self.arrivals[number] = self.world.machines.arrivals(take)
        fetch = arrivals.came(what)
        if fetch is not None:
            self._read_for(number, arrivals, fetch, ProbedLookup(self.lookup, self.world))
        elif arrivals:
            self.world.probes["frames waited behind a fetch"] += 1

    def _read_for(
        self, number: int, arrivals: InboundQueue, fetch: LookupTask, lookup: ProbedLookup
    ) -> None:
        """The reading thread comes to it a little later, and again for each part."""
        world = self.world
        world.after(world.drawn(world.timing.read_us), self._read, number, arrivals, fetch, lookup)

    def _read(
        self, number: int, arrivals: InboundQueue, fetch: LookupTask, lookup: ProbedLookup
    ) -> None:
        if not self.alive or self.arrivals.get(number) is not arrivals:
            return
        world = self.world
        world.probes["contents fetched for a comparison"] += 1
        if not fetch.step(lookup):
            world.probes["fetched in several parts"] += 1
            self._read_for(number, arrivals, fetch, lookup)
            return
        lookup.count()
        self._look_for(number, arrivals, fetch)

    def _look_for(self, number: int, arrivals: InboundQueue, fetch: LookupTask) -> None:
        """A turn of the loop, and then another one. Before the last of them others come."""
        if not self.alive or self.arrivals.get(number) is not arrivals:
            return
        world = self.world
        if fetch.look(LOOKED_AT_ONCE):
            world.after(world.drawn(world.timing.local_us), self._fetched, number, arrivals)
        else:
            world.probes["looked for in several turns"] += 1
            world.after(world.drawn(world.timing.local_us), self._look_for, number, arrivals, fetch)

    def _drop_arrivals(self, number: int) -> None:
        """The connection is over."""
        arrivals = self.arrivals.pop(number, None)
        if arrivals is not None:
            arrivals.clear()

    def _fetched(self, number: int, arrivals: InboundQueue) -> None:
        """The loop hears of it: other events came between."""
        if self.alive and self.arrivals.get(number) is arrivals:
            fetch = arrivals.fetched()
            if fetch is not None:
                self._read_for(number, arrivals, fetch, ProbedLookup(self.lookup, self.world))

    # -- life --------------------------------------------------------------------------------
    @property
    def now_us(self) -> int:
        """The steady clock: it begins anew with each life, with the clock on the wall of its host,
        and no setting of that moves it (services/server/runtime.py)."""
        return self.world.now_us + self._ahead_us

    def set_clock(self, ahead_us: int) -> None:
        """Sets the wall clock of its host so far ahead of the world's."""
        self.disk.clock_ahead_us = ahead_us
        self.machine.wall_offset_us = ahead_us - self._ahead_us
        self.queues.clock_is(self.machine.wall_offset_us)

    def crash(self, lose_disk: bool) -> None:
        """Dies at once."""
        world = self.world
        self.alive = False
        if self.journal.staged:
            world.probes["crash with an unsynced commit"] += 1
        committed_txid = self.journal.last_txid
        self.disk.journal = self.journal.crash()
        self.disk.sow_store = self.disk.sow_store.crash()
        self.disk.queue_stores = _crashed(self.disk.queue_stores)
        self.queues.die()
        while runs := self.disk.journal.read(committed_txid):
            # The write that the crash met, or one that had failed, was whole: nobody was told, and
            # it is there.
            world.probes["found in front what was not told"] += 1
            for run in runs:
                self.log_on_disk(run)
            committed_txid = runs[-1].last_txid
        world.log(InstanceCrashed(world.now_us, self.name, self.disk.incarnation, lose_disk))
        self.disk.was_ready = self.machine.ready and not lose_disk
        for link in self.links.values():
            link.die()
        for connection in [s.connection for s in self.sessions.values()]:
            connection.close(1, "instance died")
        for upstream in list(self.upstreams.values()):
            upstream.connection.close(1, "instance died")
        if lose_disk:
            self.disk.format()
            self.disk.journal = self.disk.journal.crash()

    # -- moved instances ---------------------------------------------------------------------
    def learn(self, told: dict[str, InstancePlacement]) -> None:
        """Somebody told where instances were moved to: on disk before it is acted upon."""
        if not self.alive:
            return
        world = self.world
        news = self.machine.placements.news(told)
        if news:
            self.disk.placements.update(news)
            for peer, placement in news.items():
                world.log(MoveKnown(world.now_us, self.name, peer, placement.generation))
            world.probes["learnt of a moved instance"] += 1
            self.perform(self.machine.placed(news))

    def _announce(self) -> None:
        """Where it lives now, it tells all of its fabric, and itself where it lived before: there
        nobody may connect any more, nor may that one. Each until it has heard it."""
        world, disk = self.world, self.disk
        if not self.alive:
            return
        name = disk.member.name
        formers = [former_name(name, g) if g else name for g in range(disk.generation)]
        for host in (*map(self.host_of, self._untold), *formers):
            other = world.hosts.get(host)
            cut = world.blocked & {(self.host, host), (host, self.host)}
            if other is not self and isinstance(other, Instance) and other.alive and not cut:
                delay_us = world.drawn(world.timing.network_us)
                world.after(delay_us, self._told, other)
        world.after(world.timing.pause_us[1], self._announce)

    def _told(self, other: Instance) -> None:
        if other.alive:
            other.learn(self.machine.placements.items())
            self.learn(other.machine.placements.items())
            self._untold = [name for name in self._untold if name != other.disk.member.name]

    def told_at_logon(self) -> dict[str, InstancePlacement]:
        """What a link of ours, and one that logs on here, is told."""
        return self.machine.placements.items() if self.world.machines.spreads else {}

    def host_of(self, address: str) -> str:
        """Where an instance lives, as far as it is known here."""
        found = self.machine.placements.get(address)
        return found.address if found is not None else address

    def removed(self) -> PublisherRanges:
        """What was in segments that are gone."""
        return self.journal.removed()

    def _perform_placements_changed(self, effect: PlacementsChanged) -> None:
        for link in self.links.values():
            link.direct_link.abort("instances were moved")
            link.inbox.send(link.placed, effect.news)
        if self.world.machines.spreads:
            for upstream in self.upstreams.values():
                upstream.connection.send(1, Placed(effect.news))
        self.peers.moved(effect.news)
        # Clients are told where the peers are now.
        self._perform_safety_changed(SafetyChanged())

    def _perform_went_back(self, _: StaleCopyDetected) -> None:
        """Its directory gets another incarnation, and it starts again."""
        world, disk = self.world, self.disk
        world.probes["old copy found by peers"] += 1
        self.crash(False)
        disk.begin_anew()
        if world.disks[disk.member.name] is disk:
            world.after(world.drawn(world.timing.restart_us), world.restart, disk.member.name)

    def _perform_retired(self, _: InstanceRetirement) -> None:
        world, disk = self.world, self.disk
        world.probes["former instance retired"] += 1
        world.log(history.RetirementLearnt(world.now_us, self.name, disk.incarnation))
        disk.retired = True
        self.crash(False)

    @property
    def staging(self) -> deque[Run]:
        """Runs that are not on the disk."""
        return self.runtime.journal.staged

    def quiet(self) -> bool:
        """Whether nothing is under way here."""
        machine = self.machine
        if machine.missing.is_judging:
            return False
        if self.names_under_way or any(each.is_behind for each in self.names_told.values()):
            return False
        if machine.publisher_names.unwritten or self.names_being_written:
            return False
        if any(map(len, self.arrivals.values())) or self.folds.unfolded:
            return False
        if self.author or self.staging or self.runtime.loop.calls:
            return False
        if not machine.ready or machine.pending:
            return False
        for name, link in self.links.items():
            ledger = machine.destinations[name]
            if ledger.unacked or not ledger.caught_up or not link.quiet(machine.committed_txid):
                return False
            if ledger.destination.sync and not ledger.proved:
                return False
        return True

    def check(self) -> None:
        """The machine's own invariants."""
        self._checks += 1
        if self._checks % self.world.check_every == 0:
            self.machine.check_invariants()

    def _tick(self) -> None:
        if self.alive:
            world = self.world
            self.commits.catch_up()
            if self.looking.is_due(self.now_us):
                self.perform(self.machine.tick(self.now_us))
            self.sow.tick(self.now_us)
            for link in self.links.values():
                link.direct_link.tick()
            self._look()
            self._keep_names()
            self._tell_persisted()
            world.after(world.timing.tick_us, self._tick)

    def _keep_names(self) -> None:
        """As the server's periodic checks do it: the names of publishers are written down, and told
        to the destinations."""
        world, names = self.world, self.machine.publisher_names
        if names.unwritten:
            taken = names.unwritten.copy()
            names.unwritten.clear()
            self.names_being_written += len(taken)
            world.after(world.names_rng.randint(*HINT_WRITE_US), self._names_written, taken)
        for name, link in self.links.items():
            self.names_told[name].go_on(link.tell_names)

    def _names_written(self, publishers: list[int]) -> None:
        if self.alive:
            names = self.machine.publisher_names
            self.disk.names.update((each, names.get(each) or b"") for each in publishers)
            self.names_being_written -= len(publishers)
        else:
            self.world.probes["died before names were written"] += 1

    def names_arrived(self, connection: Connection, part: bytes) -> None:
        """An upstream tells whom publisher ids belong to."""
        if not self.alive or connection.number not in self.upstreams:
            return
        names = self.machine.publisher_names
        before = len(names)
        effects = self.machine.names_told(part, connection.hosts[0])
        self.world.probes["learnt names of publishers"] += len(names) > before
        if effects:
            self.perform(effects)

    def _look(self) -> None:
        """As status and metrics do, at any moment: what only reads must only read."""
        machine = self.machine
        ledgers = list(machine.destinations.values())
        logs = [machine.durability._ages, *(ledger._ages for ledger in ledgers)]
        before = repr([(log._buckets, log._again) for log in logs])
        machine.fully_durable_txid()
        machine.removable_before()
        for ledger in ledgers:
            ledger.oldest_unacked()
        assert repr([(log._buckets, log._again) for log in logs]) == before, "a look changed ages"

    def _tell_persisted(self) -> None:
        """The persisted acks of bookmark subscriptions."""
        for session in self.sessions.values():
            for cursor in session.subscriptions.values():
                fresh = (
                    cursor.subscription.take_persisted(self.durability) if cursor.accepted else None
                )
                if fresh is not None:
                    header = {"c": "ack", "a": "persisted", "sub": cursor.subscription.id}
                    header |= {"status": "success", "have": fresh.to_wire()}
                    session.connection.send(1, (header, b""))

    def _write_hint(self) -> None:
        """What the shell writes every few seconds: where recovery may begin."""
        if self.alive:
            world = self.world
            point = self.machine.recovery_point()
            settled = point.awaited.copy()
            for root, pending in self.machine.pending.roots.items():
                if root in settled.roots:
                    settled.roots[root].difference_update(pending)
            world.after(world.hint_rng.randint(*HINT_WRITE_US), self._hint_due, point, settled)
            world.after(world.timing.hint_us, self._write_hint)

    def _hint_due(self, point: RecoveryPoint, settled: RootedRanges) -> None:
        """The state's thread writes it: at once, or not at all."""
        world, disk = self.world, self.disk
        if not self.alive:
            world.probes["died before its recovery point was written"] += 1
            return
        values = self.recovery.changes(point)
        if world.hint_rng.random() < HINT_FAILS and not world.healed:
            world.probes["recovery point not written"] += 1
            return
        for key, value in values.items():
            if value is None:
                disk.hints.pop(key, None)
            else:
                disk.hints[key] = value
        disk.settled = settled
        self.recovery.written(point)
        self.perform(self.machine.recovery_written(point))
        if len(values) < 2 + len(disk.hints) // 2:
            world.probes["recovery point written in part"] += 1

    def _write_sow(self) -> None:
        """What the shell does about every second: the store's thread begins a commit."""
        if self.alive:
            world = self.world
            world.after(world.sow_rng.randint(*HINT_WRITE_US), self._sow_due, self.sow.pending())

    def _sow_due(self, pending: SowPending) -> None:
        """The commit is made at once, or not at all."""
        world, disk = self.world, self.disk
        if not self.alive:
            world.probes["died before its SOW was written"] += 1
            return
        if world.sow_rng.random() < HINT_FAILS and not world.healed:
            world.probes["SOW not written"] += 1
            self.sow.not_saved()
        else:
            disk.sow_store.commit(pending)
            self.sow.saved()
            self.release()
        world.after(SOW_US, self._write_sow)

    def log_sow(self) -> None:
        """Tells the history where the SOW topics are not what the journal says."""
        world, ledger = self.world, self.disk.sow_ledger
        if ledger.late:
            world.probes["late for the SOW"] += 1
        if ledger.gone:
            world.probes["deleted from the SOW"] += 1
        if ledger.merged:
            world.probes["merged in the SOW"] += 1
        if ledger.filtered:
            world.probes["deleted by a filter"] += 1
        if not ledger.is_excused:
            for text in sow.differences(self):
                world.log(SowDiffers(world.now_us, self.name, text))

    def remove_segments(self, *, force: bool = False) -> None:
        """By hand: everything that law 4 lets go. By `force`: all that is sealed."""
        outcomes = self.journal.remove(self.machine.next_txid, force=force)
        removed = [outcome.last_txid for outcome in outcomes if outcome.done]
        if removed:
            if force:
                self.disk.sow_ledger.forced_txid = removed[-1]
            self._removed_up_to(removed[-1])

    def _removed_up_to(self, last_txid: int) -> None:
        world = self.world
        world.probes["segment removed"] += 1
        servers = tuple((name, link.server) for name, link in self.links.items())
        world.log(
            SegmentsRemoved(world.now_us, self.name, self.disk.incarnation, last_txid, servers)
        )

    def _maintain(self, work: Callable[[], None]) -> None:
        """The journal's maintenance thread comes to it a little later; until then the floor for
        removal may have moved."""
        world = self.world
        if world.retention_bytes is not None:
            world.after(world.drawn(world.timing.maintenance_us), self._maintained, work)

    def _maintained(self, work: Callable[[], None]) -> None:
        if self.alive:
            before = self.journal.first_txid
            work()
            if self.journal.first_txid > before:
                self.world.probes["removed by retention"] += 1

    def downgrade(self, destination: str) -> None:
        """By hand, without force."""
        try:
            self.perform(self.machine.downgrade(destination, self.now_us))
        except DowngradeRefused:
            self.world.fault(f"{self.name} keeps {destination}: too few would be left")

    def admit(self) -> None:
        """By hand, without force."""
        try:
            self.perform(self.machine.admit(self.world.topology.replicating_to(self.name)))
        except AdmissionRefused:
            self.world.probes["admission by hand refused"] += 1

    def upgrade(self, destination: str) -> None:
        """By hand."""
        self.perform(self.machine.upgrade(destination, self.now_us))

    # -- the journal -------------------------------------------------------------------------
    def log_on_disk(self, run: Run) -> None:
        """Tells the history of a run that the disk has."""
        world, disk = self.world, self.disk
        if run.publisher in disk.numbered and not run.path and run.kind == Kind.RECORDS:
            # Now nobody else gets this number any more.
            sequences = tuple(_expanded(run.ranges()))
            digests = world.digests(run, sequences) or (0,) * len(sequences)
            by, topic = disk.numbered[run.publisher], run.topic.decode()
            for of in zip(sequences, digests, strict=True):
                world.log(MessagesPublished(world.now_us, by, run.publisher, of[0], topic, of[1]))
        disk.log_journaled(run)
        if run.kind == Kind.RECORDS:
            for sequence in _expanded(run.ranges()):
                disk.index[run.publisher, sequence] = run
            if run.flags & Flag.LATE:
                world.probes["late record"] += 1
                world.probes["gap filled later"] += 1
            if not set(disk.former).isdisjoint(run.path):
                world.probes["took back its own tail"] += 1
        elif run.kind == Kind.CONFLICT:
            world.probes["conflict kept"] += 1

    def catch_up_commits(self) -> None:
        """Before anything is taken or asked that may be about a commit not taken yet."""
        self.world.probes["link ahead of its instance"] += self.commits.is_behind
        self.commits.catch_up()

    # -- effects -----------------------------------------------------------------------------
    def perform(self, effects: list[Any]) -> None:
        """Performs effects in order."""
        if len(effects) > 1:
            self._probe(effects)
        self._steps.perform(effects)
        self.check()

    def perform_ahead(self, effects: list[Any]) -> None:
        """Performs those of a commit that the disk is writing; what they say is held."""
        self.world.probes["taken while the disk wrote"] += 1
        self._probe(effects)
        self._steps.perform_ahead(effects)

    def catch_up(self) -> None:
        """The disk has it, and it is said: folds it."""
        self._steps.catch_up()
        self.check()

    def _weigh(self, run: Run) -> int:
        # Its author knows its runs by what they are: they stay whole.
        if run.publisher == self.author.publisher:
            return 0
        return weight(run) if run.topic.decode() in (sow.ARRIVAL, sow.LAST_WRITER) else 0

    def _fold_later(self, work: Callable[[], None]) -> None:
        """Another turn of the loop: others come in between."""
        world = self.world
        world.probes["folded in several turns"] += 1
        world.after(world.sow_rng.randint(1, FOLD_LATER_US), self._fold_on, work)

    def _fold_on(self, work: Callable[[], None]) -> None:
        if self.alive:
            work()

    def _fold_clock(self) -> float:
        """Each slice takes as long as a turn may."""
        self._folded_s += TURN_S
        return self._folded_s

    def wake_replays(self, *, fully_durable: bool) -> None:
        """There may be more for them, or for those that wait until it is durable."""
        for session in self.sessions.values():
            for cursor in session.subscriptions.values():
                if cursor.replay.terms.fully_durable or not fully_durable:
                    self._wake(session, cursor)

    def _probe(self, effects: list[Any]) -> None:
        modes = [effect.sync for effect in effects if type(effect) is SetLinkMode]
        if modes:
            kinds = {type(effect) for effect in effects}
            if not all(modes) and AckClient in kinds:
                self.world.probes["downgrade released acks"] += 1
            if any(modes) and NotifyLink in kinds:
                self.world.probes["upgrade asked again"] += 1

    def _perform_append(self, effect: Append) -> None:
        if effect.run.kind == Kind.RECORDS:
            for sequence in _expanded(effect.run.ranges()):
                self.disk.received_us[effect.run.publisher, sequence] = self.world.now_us
        self.commits.stage(effect.run)

    def _perform_committed(self, effect: RunsCommitted) -> None:
        notify_links(self.links, self.machine.destinations, effect)

    def take_up(self, runs: list[Run]) -> None:
        """What is committed of what it wrote itself takes effect."""
        taken = self.author.committed(runs)
        if taken and self.alive:
            self.world.probes["acted on what it wrote itself"] += 1
            self.world.log(MessagesApplied(self.world.now_us, self.name, *self._written(taken)))
        if not self.author:
            self.folds.enlist(self._writes, False)

    def write(self, topics: list[str]) -> None:
        """Makes records itself, which are handed over at the end of the turn."""
        if not self.alive:
            return
        world, author = self.world, self.author
        handed_over = len(author)
        self.folds.enlist(self._writes, True)
        self.disk.numbered[author.publisher] = self.name
        drafts = [
            author.draft(topic, "json", b"%d" % world.number(), world.now_us) for topic in topics
        ]
        world.log(RecordsDrafted(world.now_us, self.name, author.publisher, tuple(drafts)))
        if handed_over:
            world.probes["wrote before the last was on disk"] += 1
        world.after(world.drawn(world.timing.local_us), self._hand_over)

    def _hand_over(self) -> None:
        if self.alive:
            self.perform(self.machine.authored(self.author.runs(), self.now_us))

    def undo(self, committed_txid: int) -> None:
        """What could not be journaled, its author writes again, by what is true now."""
        undone = self.author.failed(committed_txid)
        if undone:
            self.world.probes["undid what it wrote itself"] += 1
            self.world.log(MessagesUndone(self.world.now_us, self.name, *self._written(undone)))
            self.write([draft.topic for draft in undone])

    def _written(self, drafts: list[PendingRecord]) -> tuple[int, tuple[int, ...]]:
        return self.author.publisher, tuple(draft.sequence for draft in drafts)

    def _perform_refuse_client(self, effect: RefuseClient) -> None:
        session = self.sessions.get(effect.session)
        if session is None:
            return
        world, text = self.world, effect.text
        world.probes[_REFUSED.get(effect.reason, "refused a topic that nobody declared")] += 1
        for first, last in effect.ranges:
            for sequence in (each for each in range(first, last + 1) if each in session.unacked):
                session.unacked.remove(sequence)
                failed = (session.publisher, session.number, sequence, effect.reason)
                world.log(PublishRefused(world.now_us, self.name, session.client, *failed))
                header: dict[str, Any] = {"c": "ack", "a": "persisted", "s": sequence}
                header["status"] = "failure"
                header |= {"reason": effect.reason, "text": text}
                session.connection.send(1, (header, b""))
                text = ""

    def _perform_ack_client(self, effect: AckClient) -> None:
        session = self.sessions.get(effect.session)
        if session is None:
            return
        world = self.world
        if effect.command_id and effect.reason:
            world.probes["unnumbered publish refused"] += 1
            self._answer_command(session, effect.command_id)
            return
        if effect.command_id:
            publisher, _ = self.machine.number_for(session.client_name)
            self._log_acked(session, [effect.sequence], "ack", publisher)
            world.probes["unnumbered publish acked"] += 1
            self._answer_command(session, effect.command_id)
            return
        header: dict[str, Any] = {"c": "ack", "a": "persisted", "s": effect.sequence}
        unacked = session.unacked
        if effect.reason:
            header |= {"status": "failure", "reason": effect.reason, "text": effect.text}
            if effect.sequence in unacked:
                unacked.remove(effect.sequence)
            world.probes["publish refused"] += 1
            world.log(
                PublishRefused(
                    world.now_us,
                    self.name,
                    session.client,
                    session.publisher,
                    session.number,
                    effect.sequence,
                    effect.reason,
                )
            )
        else:
            header["status"] = "success"
            covered = []
            while unacked and unacked[0] <= effect.sequence:
                covered.append(unacked.popleft())
            if covered:
                self._log_acked(session, covered, "ack")
        session.connection.send(1, (header, b""))

    def _answer_command(self, session: Session, command_id: str) -> None:
        header = {"c": "ack", "a": "persisted", "cid": command_id, "status": "success"}
        session.connection.send(1, (header, b""))

    def _log_acked(
        self, session: Session, sequences: list[int], by: str, publisher: int = 0
    ) -> None:
        self.world.log(
            AckGiven(
                self.world.now_us,
                self.name,
                session.client,
                publisher or session.publisher,
                session.number,
                tuple(sequences),
                by,
            )
        )

    def _perform_ack_upstream(self, effect: AckUpstream) -> None:
        link = self.upstreams.get(effect.connection)
        if link is not None:
            link.acknowledge(effect)

    def _perform_close_upstream(self, effect: CloseUpstream) -> None:
        link = self.upstreams.pop(effect.connection, None)
        self._drop_arrivals(effect.connection)
        self.incoming.pop(effect.connection, None)
        if link is not None:
            connection = link.connection
            if effect.reason == "gap":
                self.world.probes["gap refused"] += 1
            if effect.reason == "retired":
                connection.send(1, Placed(self.machine.placements.items()))
            connection.close(1, effect.reason)

    def _perform_close_session(self, effect: CloseSession) -> None:
        session = self.sessions.pop(effect.session, None)
        self._drop_arrivals(effect.session)
        if session is not None:
            self.queues.session_left(effect.session)
            header = {"c": "ack", "status": "failure", "reason": effect.reason, "text": effect.text}
            session.connection.send(1, (header, b""))
            session.connection.close(1, effect.reason)

    def _perform_notify_link(self, effect: NotifyLink) -> None:
        link = self.links[effect.destination]
        self.world.probes["notice sent"] += 1
        if link.later_txid:
            # It must have read all that it is asked about.
            link.told(link.later_txid)
        direct = link.direct_link.direct
        held = (link.machine if direct is None else direct.machine)._held
        if any(
            held.covers(publisher, ranges)
            for asked in effect.awaited.values()
            for publisher, ranges in asked.items()
        ):
            self.world.probes["asked for what is held there"] += 1
        if not link.direct_link.notice(effect):
            link.inbox.send(link.notified, effect)

    def _perform_set_link_mode(self, effect: SetLinkMode) -> None:
        link = self.links[effect.destination]
        pending = self._pending() if effect.sync else ()
        self.world.log(
            LinkModeSet(self.world.now_us, self.name, effect.destination, effect.sync, pending)
        )
        if effect.sync:
            self.disk.downgraded.discard(effect.destination)
        else:
            self.disk.downgraded.add(effect.destination)
        if not link.direct_link.mode(effect.sync):
            link.inbox.send(link.mode_set, effect.sync)

    def _pending(self) -> tuple[tuple[int, int, int], ...]:
        return tuple(
            (root, publisher, sequence)
            for root, ranges in self.machine.pending.roots.items()
            for publisher, pair in ranges.items()
            for sequence in range(pair[0], pair[1] + 1)
        )

    def _perform_safety_changed(self, _: SafetyChanged) -> None:
        peers = self.peers.told(self.machine.destinations)
        for session in self.sessions.values():
            self._log_safety(session, peers)
            session.connection.send(1, ({"c": "safety", "peers": peers}, b""))

    def _perform_removable(self, effect: RemovalBound) -> None:
        self._before_txid = effect.before_txid
        self.release()

    def release(self) -> None:
        """Nobody needs more of the journal than what is not released here."""
        floors = [floor_txid + 1 for floor_txid in self.queues.floors.values()]
        self.journal.removable(min(self.sow.removable(self._before_txid), *floors, 1 << 63))

    def _perform_became_ready(self, _: BecameReady) -> None:
        world = self.world
        world.probes["new incarnation caught up"] += 1
        self.queues.tell("serves")
        world.log(InstanceReady(world.now_us, self.name, self.disk.incarnation, self._by_hand))

    def _perform_report(self, effect: EventReport) -> None:
        event = effect.event
        probe = _PROBE_OF_EVENT.get(event)
        if probe is not None:
            self.world.probes[probe] += 1
        if event == "link_caught_up":
            to = effect.details["destination"]
            incarnation = self.machine.destinations[to].incarnation
            self.world.log(CatchUpEnded(self.world.now_us, self.name, to, incarnation))
        elif event == "upstream_caught_up":
            members = self.world.topology.members
            if members[effect.details["peer"]].group == self.disk.member.group:
                self.disk.is_old_copy = False
        elif event == "admitted":
            self._by_hand = effect.details["forced"]
        elif event == "topic_passed_over":
            self.world.probes["topic passed over"] += 1
        elif event == "conflict":
            source = effect.details["source"]
            if source in self.machine.destinations:
                self.world.probes["conflict told by a destination"] += 1
            elif source in self.world.topology.members:
                self.world.probes["conflict between instances"] += 1
            else:
                self.world.probes["conflict at a client's instance"] += 1
        if event in SHOWN_EVENTS:
            details = " ".join(f"{key}={value}" for key, value in effect.details.items())
            self.world.log(EventSeen(self.world.now_us, self.name, f"{event} {details}"))

    # -- clients -----------------------------------------------------------------------------
    def _log_safety(self, session: Session, peers: list[dict[str, Any]]) -> None:
        safe = tuple(peer["name"] for peer in peers if peer["safe"])
        self.world.log(
            SafetySent(self.world.now_us, self.name, session.client, session.number, safe)
        )

    def client_frame(self, connection: Connection, header: dict[str, Any], body: bytes) -> None:
        """A frame of a client."""
        if self.alive:
            self._arrived(connection, (connection, header, body), self._take_client_frame)

    def _take_client_frame(
        self, frame: tuple[Connection, dict[str, Any], bytes], answers: LookupResult
    ) -> LookupRequest | None:
        connection, header, body = frame
        world = self.world
        command = header["c"]
        session = self.sessions.get(connection.number)
        if command == "logon":
            self._log_on(connection, header)
        elif session is None:
            return None
        elif command == "pb":
            machine = self.machine
            runs = answers.decoded
            if runs is None:
                runs = machine.client_runs(session.number, body)
            questions = machine.asks(runs, answers)
            if questions:
                answers.decoded = runs
                return questions
            sequences = header["sequences"]
            session.unacked.extend(sequences)
            index = self.disk.index
            if any((session.publisher, sequence) in index for sequence in sequences):
                world.probes["resend of what is held"] += 1
            effects, transient = machine.client_published(
                session.number, runs, self.now_us, answers, header.get("r")
            )
            if transient:
                world.probes["transient publish"] += 1
            self.queues.watch.staged(effects, session.client_name)
            self.perform(effects)
        elif command == "logoff":
            first, last = header["unused"]
            self.machine.client_logged_off(session.number, (first, last), self.now_us)
        elif command == "publish":
            self._publish_unnumbered(session, header["cid"], header["t"], body)
        elif command == "subscribe":
            self._subscribe(session, header)
        elif command == "queue_subscribe":
            self.queues.subscribed(session, header)
        elif command == "queue_leave":
            self.queues.session_left(session.number)
        elif command == "queue_cancel":
            self.queues.cancelled(session.number, header["t"], header["keys"])
        return None

    def _publish_unnumbered(
        self, session: Session, command_id: str, topic: str, body: bytes
    ) -> None:
        """As services/server/clients/connection.py does it."""
        world, machine = self.world, self.machine
        publisher, sequence = machine.number_for(session.client_name)
        record = RecordBuilder(publisher, topic, "json").build(sequence, body, world.now_us)
        run = run_of(scan(record)[0], record)
        if not machine.topics[run.topic, run.message_type].journaled:
            world.probes["unnumbered publish of a transient topic"] += 1
            self._answer_command(session, command_id)
            return
        effects, refused = machine.client_published_unnumbered(
            session.number, run, command_id, self.now_us
        )
        if refused is not None:
            world.probes["unnumbered publish refused by a state"] += 1
            self._answer_command(session, command_id)
            return
        world.probes["unnumbered publish"] += 1
        self.disk.numbered[publisher] = session.client
        self.perform(effects)

    def _subscribe(self, session: Session, header: dict[str, Any]) -> None:
        """As the server's replay pump does it (services/server/clients/replay.py)."""
        world, machine, options = self.world, self.machine, header.get("o", {})
        have = options.get("have")
        received = None if have is None else PublisherRanges.from_wire(have)
        if received is not None:
            world.log(ResumeRead(world.now_us, self.name, session.client))
        committed_txid = machine.committed_txid
        subscription = world.machines.subscription(
            session.number,
            header["sub"],
            topic_filter(header["t"], ""),
            resolve(
                parse_position(header["bm"]),
                "now",
                self.journal,
                committed_txid,
                removed=self.journal.removed(),
                have=received,
            ),
            first_txid=self.journal.first_txid,
            committed_txid=committed_txid,
            held=machine.held(),
            have=received,
            content=DigitContent(options["filter"]) if "filter" in options else None,
        )
        terms = ReplayTerms(header["bm"], None, bool(options.get("fully_durable")))
        replay = ReplayGroup([subscription], terms, world.now_us)
        cursor = Cursor(subscription, replay, header["cid"])
        session.subscriptions[subscription.id] = cursor
        self.folds.enlist(self._replays, True)
        if terms.fully_durable:
            self.folds.follow(self._replays, True)
        if have is not None:
            world.probes["subscriber failed over"] += 1
            world.probes["subscriber with a filter failed over"] += "filter" in options
        self._wake(session, cursor)

    def _log_on(self, connection: Connection, header: dict[str, Any]) -> None:
        said = ClientIdentity(
            header["client_name"], header["low"], header.get("takes_unused", False)
        )
        log_client_on(self.machine, EnteringClient(self, connection, header), said)
        self.check()

    def logged_on(self, session: Session, header: dict[str, Any], found: LogonAnswer) -> None:
        """Makes a client one of the sessions, and answers it."""
        world, low = self.world, header["low"]
        durable = found.durable
        if world.machines.durable_is_highest and low and found.highest >= low:
            durable = [(low, found.highest)]
        session.publisher = found.publisher
        self.sessions[session.number] = session
        peers = self.peers.told(self.machine.destinations)
        self._log_safety(session, peers)
        if durable:
            self._log_acked(session, list(_expanded(durable)), "logon")
        answer: dict[str, Any] = {
            "c": "ack",
            "a": "processed",
            "cid": header["cid"],
            "status": "success",
            "v": 1,
            "instance": self.disk.member.name,
            "group": self.disk.member.group,
            "incarnation": self.disk.incarnation,
            "publisher": found.publisher,
            "durable": [list(pair) for pair in durable],
            "highest": found.highest,
            "peers": peers,
            "now": self.now_us + self.machine.wall_offset_us,
        }
        if found.unused is not None:
            answer["unused"] = list(found.unused)
        session.connection.send(1, (answer, b""))

    def client_gone(self, number: int) -> None:
        """A client's connection ended."""
        self._drop_arrivals(number)
        if self.sessions.pop(number, None) is not None and self.alive:
            self.queues.session_left(number)
            self.machine.client_left(number)

    def _wake(self, session: Session, cursor: Cursor) -> None:
        if cursor.reading:
            return
        if cursor.accepted:
            if cursor.replay.cursor >= self.machine.committed_txid:
                return
            if cursor.replay.is_blocked(self.durability):
                self.world.probes["fully durable waited"] += 1
                return
        cursor.reading = True
        world = self.world
        world.after(world.drawn(world.timing.local_us), self._deliver, session, cursor)

    def _deliver(self, session: Session, cursor: Cursor) -> None:
        """Reads on for a subscriber: a step towards its start, or a batch of what it lacks."""
        cursor.reading = False
        if not self.alive or session.number not in self.sessions:
            return
        subscription = cursor.subscription
        if not subscription.prepared:
            if subscription.wants_summaries:
                subscription.skip_segments(self.journal.segment_summaries())
            else:
                headers = self.journal.read_headers(subscription.prepare_after_txid, 16)
                if self._overtakes(session, cursor, headers, subscription.prepare_after_txid):
                    return
                subscription.prepare(headers)
        elif cursor.accepted and not self._read_on(session, cursor):
            return
        if subscription.prepared and not cursor.accepted:
            cursor.accepted = True
            of = subscription.id, subscription.base, cursor.command_id, subscription.missing
            frame = first_frame(ranges_ack("processed", *of))
            assert frame is not None
            session.connection.send(1, frame[0])
        self._wake(session, cursor)

    def _overtakes(
        self, session: Session, cursor: Cursor, runs: list[Run], after_txid: int
    ) -> bool:
        """Whether retention removed what it was to read; then its client is told."""
        subscription = cursor.subscription
        if not runs or runs[0].first_txid <= after_txid + 1:
            return False
        if not subscription.is_overtaken(runs[0].first_txid):
            return False
        self.world.probes["subscriber overtaken by retention"] += 1
        del session.subscriptions[subscription.id]
        header = {"c": "ack", "a": "processed", "cid": cursor.command_id, "sub": subscription.id}
        session.connection.send(1, ({**header, "status": "failure", "reason": OVERTAKEN}, b""))
        return True

    def _read_on(self, session: Session, cursor: Cursor) -> bool:
        """Whether it goes on."""
        world, replay = self.world, cursor.replay
        runs = self.journal.read(replay.cursor, 2_000)
        if self._overtakes(session, cursor, runs, replay.cursor):
            return False
        limit_txid = self.machine.committed_txid
        if replay.judges:
            runs, limit_txid = replay.turn_of(runs, limit_txid)
        for member, delivery in replay.take(runs, limit_txid, world.now_us, self.durability):
            payload = b"".join(delivery.bodies)
            if replay.terms.fully_durable:
                for record in iterate_records(payload):
                    offered = (record.publisher, (record.sequence,))
                    world.log(MessagesOffered(world.now_us, self.name, session.client, *offered))
            header = {"c": "p", "sub": member.id, "n": delivery.count, "tx": delivery.first_txid}
            session.connection.send(1, (header, payload))
        return True

    # -- upstream instances ------------------------------------------------------------------
    def link_logs_on(self, connection: Connection, logon: LinkLogon) -> None:
        """An upstream link has connected."""
        if not self.alive:
            return
        world, disk = self.world, self.disk
        self.learn(logon.placements)
        if logon.generation and not logon.salvages:
            self.learn({logon.name: InstancePlacement(logon.generation, logon.host, logon.host)})
        # Of a link that salvages, each destination has its own running number.
        epochs = disk.epochs_seen
        refused = self.links_in.refusal(logon)
        if refused is not None:
            self._refuse_link(connection, refused)
            return
        seen = epochs.get((logon.incarnation, logon.destination), 0)
        epochs[logon.incarnation, logon.destination] = max(seen, logon.epoch)
        world.after(world.drawn(world.timing.commit_us), self._decide, connection, logon, seen)

    def _refuse_link(self, connection: Connection, refused: LinkRefused) -> None:
        self.world.probes[f"{refused.reason.replace('_', ' ')} refused"] += 1
        if refused.reason in ("retired", "moved") and self.alive:
            connection.send(1, Placed(self.machine.placements.items()))
        if refused.reason == "stale_epoch":
            connection.send(1, Stale())
        connection.close(1, refused.reason)

    def _decide(self, connection: Connection, logon: LinkLogon, epoch_seen: int) -> None:
        """The epoch of a link is on disk."""
        if not self.alive:
            return
        world, disk = self.world, self.disk
        number = connection.number
        ledger = self.machine.destinations.get(logon.name)
        known = ledger is not None and bool(ledger.incarnation)
        world.probes["link ahead of its instance"] += self.commits.is_behind
        link = AdmittedLink(self, connection)
        decided = self.links_in.admit(link, logon, epoch_seen)
        if decided is None:
            world.probes["logon of a link that is gone"] += 1
            return
        if isinstance(decided, LinkRefused):
            self._refuse_link(connection, decided)
            return
        if ledger is not None and ledger.incarnation == logon.incarnation and not known:
            world.probes["incarnation known by the other side's logon"] += 1
        if world.former:
            world.log(BatchTaken(world.now_us, self.name, logon.incarnation, logon.salvages))
        names = self.machine.publisher_names.digest if not logon.salvages else b""
        own = disk.member.name, disk.incarnation, decided.answer, self.name, disk.generation
        connection.send(1, Welcome(*own, self.told_at_logon(), names))
        if not isinstance(connection, Carried) and not logon.salvages:
            self.incoming[number] = SharedConnection(
                number, logon.name, logon.group, logon.incarnation, logon.host
            )
        self.links_in.answered(link)

    def _offer_incoming(self) -> None:
        for link in self.links.values():
            link.arrived()

    def incoming_for(self, link: LinkProcess) -> Connection | None:
        """The connection that another instance made and that a link may use."""
        ledgers = self.machine.destinations
        others = [name for name in self.links if name != link.destination.name]
        destination = link.destination
        if destination.dials:
            addresses = tuple(map(self.host_of, destination.addresses))
            destination = replace(destination, addresses=addresses)
        found = choose(
            destination,
            [each for number, each in self.incoming.items() if self.upstreams[number].is_open],
            {ledgers[name].incarnation for name in others if ledgers[name].connected},
            others,
        )
        return None if found is None else self.upstreams[found.number].connection

    def upstream_frame(
        self, connection: Connection, batch: SendBatch | Placed | RoutedRequest
    ) -> None:
        """A batch came in, or news of moved instances, or a request for messages of a queue."""
        if not self.alive:
            return
        if isinstance(batch, RoutedRequest):
            self.queues.asked(batch)
            return
        if isinstance(batch, Placed):
            self.learn(batch.placements)
            return
        if batch.lacks is not None:
            # A frame of its own, before the batch.
            self._arrived(connection, (connection, (batch.lacks, batch.whole)), self._take_frame)
        self._arrived(connection, (connection, batch), self._take_frame)

    def _take_frame(
        self,
        frame: tuple[Connection, SendBatch | tuple[PublisherRanges, bool]],
        answers: LookupResult,
    ) -> LookupRequest | None:
        connection, said = frame
        link = self.upstreams.get(connection.number)
        if link is None:
            return None
        if not isinstance(said, SendBatch):
            self.links_in.take_lacks(link, said[0].copy(), said[1])
            return None
        world, machine = self.world, self.machine
        upstream = machine._upstreams.get(connection.number)
        before = machine.counters.duplicates
        if upstream is not None and not machine.asks(said.runs, answers, said.awaited):
            of = upstream.incarnation, upstream.salvages
            if world.former:
                world.log(BatchTaken(world.now_us, self.name, *of))
            self._look_at_paths(upstream.incarnation, said.runs)
        questions = self.links_in.take_batch(link, said, said.runs, said.awaited, answers)
        if machine.counters.duplicates > before:
            world.probes["duplicate by two paths"] += 1
        return questions

    def _look_at_paths(self, sender: int, runs: list[Run]) -> None:
        own = self.disk.incarnation
        for run in runs:
            if own in run.path:
                sequences = tuple(_expanded(run.ranges()))
                of = (run.publisher, sequences, run.path)
                self.world.log(BatchReturned(self.world.now_us, self.name, own, sender, *of))

    def upstream_gone(self, number: int) -> None:
        """An upstream connection ended."""
        self.incoming.pop(number, None)
        self._drop_arrivals(number)
        if self.upstreams.pop(number, None) is not None and self.alive:
            self.machine.upstream_left(number)

    # -- its own links -----------------------------------------------------------------------
    def give_epoch(self, link: LinkProcess) -> None:
        """A link asks for the epoch of its next connection: on disk before it is used."""
        self._comparing.pop(link.destination.name, None)
        if self.alive and link.alive:
            used = self.disk.epochs_used
            name = link.destination.name
            used[name] = used.get(name, 0) + 1
            link.inbox.send(link.epoch_given, used[name])

    def epoch_refused(self, link: LinkProcess) -> None:
        """A destination refused a link's epoch."""
        if self.alive:
            self.perform(self.machine.epoch_refused(link.destination.name))

    def link_connected(self, link: LinkProcess, connection: Connection, welcome: Welcome) -> None:
        """A link has connected."""
        if not self.alive or not link.alive:
            return
        self.learn(welcome.placements)
        if not self.alive:
            return
        name = link.destination.name
        plan = self._comparing[name] = self.world.machines.plan(
            welcome.answer.held, welcome.answer.waited
        )
        server = ReachedServer(
            welcome.name,
            welcome.incarnation,
            welcome.generation,
            client_address=self.host_of(welcome.name),
            names=welcome.names,
        )
        setup = self.world.machines.setup(
            self.runtime,
            self.runtime,
            self.commits,
            SetUpLink(self, link, connection, welcome),
            server,
            plan,
        )
        if not setup.goes_on():
            del self._comparing[name]
            return
        self.disk.servers[name] = (welcome.incarnation, welcome.name)
        self.disk.servers_met.setdefault(name, set()).add(welcome.name)
        slices = self.world.hint_rng.random() < SLICED_CHANCE and not self.world.healed
        # What the first slice takes for an answer is of this server already.
        by = name, welcome.called, welcome.incarnation
        self.world.log(LinkReached(self.world.now_us, self.name, *by))
        self._compare(link, setup, plan, slices=slices)

    def _compare(
        self, link: LinkProcess, setup: LinkSetup, plan: ResyncPlan, *, slices: bool
    ) -> None:
        """Works a slice of the comparison off; others come in between."""
        name = link.destination.name
        if not self.alive or not link.alive or self._comparing.get(name) is not plan:
            self.world.probes["comparison given up"] += 1
            return
        more = setup.compare(1)
        if slices and more:
            self.world.probes["comparison in slices"] += 1
            delay_us = self.world.hint_rng.randint(*SLICE_US)
            self.world.after(delay_us, lambda: self._compare(link, setup, plan, slices=True))
            return
        del self._comparing[name]
        if setup.begin() is None:
            self.world.probes["server retired while it is compared"] += 1

    def link_reached(self, name: str, server: ReachedServer, called: str) -> None:
        """A link counts as connected to this server."""
        self.names_told[name].connected(server.names)
        self.peers.reached(name, server.incarnation, server.name, server.client_address)
        if self.world.former:
            self.world.log(BatchTaken(self.world.now_us, self.name, server.incarnation, False))
        before = self.machine.destinations[name].incarnation
        by = name, called, server.incarnation
        self.world.probes["link ahead of its instance"] += self.commits.is_behind
        self.world.log(LinkConnected(self.world.now_us, self.name, *by, self._pending()))
        if self.world.topology.wide and len(self.disk.servers_met[name]) > 1:
            self.world.probes["second server behind one address"] += 1
        if before and before != server.incarnation:
            self.world.probes["link moved to another server or incarnation"] += 1

    def link_disconnected(self, link: LinkProcess, why: str) -> None:
        """A link has lost its connection."""
        self._comparing.pop(link.destination.name, None)
        self.names_told[link.destination.name].disconnected()
        link.direct_link.ended(why)
        if self.alive:
            self.perform(self.machine.link_disconnected(link.destination.name, why))

    def process_ended(self, link: LinkProcess) -> None:
        """A link says that the other side's process has ended."""
        if self.alive:
            before = self.machine.counters.downgrades
            name = link.destination.name
            self.perform(self.machine.process_ended(name, self.world.now_us, "it refuses"))
            self.world.probes["downgraded by evidence"] += self.machine.counters.downgrades > before

    def link_reports(
        self,
        link: LinkProcess,
        report: LinkReport,
        *,
        is_direct: bool = False,
    ) -> None:
        """A link says what its destination has answered, has stored, or will never have."""
        if self.alive:
            world, notices = self.world, self.world.probes["notice sent"]
            world.probes["link ahead of its instance"] += self.commits.is_behind and not is_direct
            self.commits.take_report(link.destination.name, report, is_direct=is_direct)
            if isinstance(report, LinkAnswered) and world.probes["notice sent"] > notices:
                world.probes["asked for what went unmarked"] += 1


_REFUSED = {
    stateful.REASON: "refused by a state",
    "not_supported": "refused a delta",
    "not_leased": "queue acknowledgment refused",
}
"""Probes, by reasons."""

_PERFORM: dict[type[Any], Callable[[Instance, Any], None]] = {
    RunsCommitted: Instance._perform_committed,
    AckClient: Instance._perform_ack_client,
    RefuseClient: Instance._perform_refuse_client,
    AckUpstream: Instance._perform_ack_upstream,
    CloseUpstream: Instance._perform_close_upstream,
    CloseSession: Instance._perform_close_session,
    NotifyLink: Instance._perform_notify_link,
    SetLinkMode: Instance._perform_set_link_mode,
    SafetyChanged: Instance._perform_safety_changed,
    RemovalBound: Instance._perform_removable,
    PlacementsChanged: Instance._perform_placements_changed,
    InstanceRetirement: Instance._perform_retired,
    StaleCopyDetected: Instance._perform_went_back,
    BecameReady: Instance._perform_became_ready,
    EventReport: Instance._perform_report,
}
_PROBE_OF_EVENT = {
    "admitted": "admitted by hand",
    "downgraded": "downgraded",
    "upgraded": "upgraded",
    "conflict": "conflict",
    "link_caught_up": "resync",
    "messages_unavailable": "unavailable recorded",
    "messages_available_again": "available after all",
    "messages_maybe_unavailable": "unavailable by a part",
}


def _expanded(ranges: list[Range]) -> Iterator[int]:
    for first, last in ranges:
        yield from range(first, last + 1)
