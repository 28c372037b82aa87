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
from collections import Counter, deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from typing import Any

from raylay.services.client.failover import Server
from raylay.services.client.machine import (
    ClientMachine,
    ClientOptions,
    Connect,
    Connected,
    ConnectionEnded,
    ConnectionOpened,
    Disconnect,
    Fail,
    FrameReceived,
    PublishFailed,
    SendFrame,
    SendPublishes,
    SubscriptionWanted,
    Tell,
    TimePassed,
    WaitingForSafeInstance,
)
from raylay.services.client.machine import Started as ClientStarted
from raylay.services.client.resumption import Resumption
from raylay.services.errors import StorageError
from raylay.services.messages.records import Flag, Kind, Run
from raylay.services.replication.effects import (
    AckClient,
    AckUpstream,
    Append,
    BecameReady,
    CloseSession,
    CloseUpstream,
    Committed,
    LinkAnswered,
    LinkProgress,
    NotifyLink,
    Report,
    SafetyChanged,
    SendBatch,
    SetLinkMode,
)
from raylay.services.replication.instance import (
    DowngradePolicy,
    Identity,
    InstanceMachine,
    UpstreamAnswer,
    decode_note,
)
from raylay.services.replication.outbound import OutboundLink
from raylay.services.replication.ranges import PublisherRanges, Range
from raylay.services.replication.routing import Destination, TopicMatcher, TopicRule
from raylay.storage.memory_journal import MemoryJournal

from sim.history import (
    Acked,
    Crashed,
    Delivered,
    Failed,
    Fault,
    FinalLog,
    Heard,
    History,
    Journaled,
    Linked,
    Member,
    ModeSet,
    Noted,
    Published,
    Removed,
    Seen,
    Started,
    ToldSafety,
    Topology,
    Used,
)

JOURNALED = TopicMatcher((TopicRule(".*"),))
FOREVER_US = 1 << 60
SHOWN_EVENTS = frozenset(
    (
        "late",
        "conflict",
        "upstream_refused",
        "link_caught_up",
        "downgraded",
        "upgraded",
        "storage_failed",
    )
)


@dataclass(slots=True)
class Timing:
    """How slow things are, in microseconds. Each delay is drawn between the two values."""

    network_us: tuple[int, int] = (200, 4_000)
    local_us: tuple[int, int] = (10, 300)
    commit_us: tuple[int, int] = (100, 2_500)
    notice_us: tuple[int, int] = (1_000, 200_000)
    """Until a side notices that its connection is dead."""
    restart_us: tuple[int, int] = (30_000, 600_000)
    tick_us: int = 50_000
    hint_us: int = 150_000
    """How often the durable floor is written down."""
    dial_us: int = 60_000
    """How long a link waits for a logon answer."""
    pause_us: tuple[int, int] = (10_000, 160_000)
    """A link's growing pauses: first and longest."""


@dataclass(slots=True)
class Machines:
    """What is under test; the planted mistakes replace one of them."""

    instance: type[InstanceMachine] = InstanceMachine
    link: type[OutboundLink] = OutboundLink
    incarnation_by_name: bool = False
    """Mistake: a lost disk gets the incarnation that its name had."""
    durable_is_highest: bool = False
    """Mistake: a client is told one number at its logon."""


class World:
    """The clock, the hosts and the history of one run."""

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
        encode: bool = False,
        check_every: int = 1,
    ) -> None:
        self.rng = random.Random(seed)
        self.topology = topology
        self.timing = timing or Timing()
        self.machines = machines or Machines()
        self.policy = policy or DowngradePolicy()
        self.window_bytes = window_bytes
        self.segment_bytes = segment_bytes
        self.encode = encode
        self.check_every = check_every
        self.now_us = 0
        self.history = History(topology)
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
        self.clients: dict[str, SimClient] = {}
        self.name_of: dict[int, str] = {}
        for member in topology.members.values():
            self.disks[member.name] = Disk(self, member)
        for name, disk in self.disks.items():
            self.instances[name] = Instance(self, disk, ready=True)

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
        self.log(Fault(self.now_us, what))

    def crash(self, name: str, down_us: int = 0, *, lose_disk: bool = False) -> None:
        """Kills an instance with its links; it restarts after a while, or by `restart`."""
        instance = self.instances.get(name)
        if instance is not None and instance.alive:
            self.fault(f"crash {name}" + (" and its disk" if lose_disk else ""))
            instance.crash(lose_disk)
        if down_us:
            self.after(down_us, self.restart, name)

    def restart(self, name: str) -> None:
        """Starts an instance that is down."""
        if not self.instances[name].alive:
            disk = self.disks[name]
            # It can only wait for a peer that is sure to connect: one that has it in a list of
            # servers may stay at another one for ever.
            ready = disk.was_ready or not any(
                destination.addresses == (name,)
                for other in self.topology.members.values()
                if other.group == disk.member.group and other.name != name
                for destination in other.destinations
            )
            self.instances[name] = Instance(self, disk, ready=ready)

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
        if any(any(c.dead) and any(c.open) for c in self.connections.values()):
            return False  # Somebody has still to notice it.
        return all(client.quiet() for client in self.clients.values())

    def finish(self) -> History:
        """Writes down how everything ended."""
        history = self.history
        for name, instance in self.instances.items():
            disk = self.disks[name]
            machine = instance.machine
            first = disk.journal.first_txid
            history.final[name] = FinalLog(
                disk.incarnation,
                frozenset(key for key, run in disk.index.items() if run.first_txid >= first),
                frozenset(disk.index),
                {link.destination.name: link.server for link in instance.links.values()},
                sum(len(ledger.owed) for ledger in machine.destinations.values() if ledger.sync),
                len(machine.pending),
            )
        for client in self.clients.values():
            history.unacked[client.name] = client.store.messages
            if client.subscription is not None:
                history.subscribed[client.name] = (
                    client.machine.instance,
                    client.subscription.topic,
                )
        return history


class Disk:
    """What survives a crash of an instance: its journal and its state store."""

    def __init__(self, world: World, member: Member) -> None:
        self.world = world
        self.member = member
        self.incarnation = 0
        self.lives = 0
        self.was_ready = True
        self.format()

    def format(self) -> None:
        """Makes the data directory anew: empty, with an incarnation of its own."""
        world = self.world
        if not (self.incarnation and world.machines.incarnation_by_name):
            self.incarnation = world.rng.getrandbits(63) | 1
        world.name_of[self.incarnation] = self.member.name
        self.journal = MemoryJournal(world.segment_bytes, encode=world.encode)
        self.epochs_seen: dict[int, int] = {}
        self.epochs_used: dict[str, int] = {}
        self.servers: dict[str, tuple[int, str]] = {}
        """Destination to (incarnation, name) of the server last connected."""
        self.floor_txid = 0
        self.awaited_at_floor = PublisherRanges()
        self.index: dict[tuple[int, int], Run] = {}
        self.runs: dict[int, list[Run]] = {}
        """Publisher to its committed runs."""

    def lookup(self, publisher: int, first: int, last: int) -> list[Run]:
        """Committed runs that are not removed and hold any of first..last."""
        oldest = self.journal.first_txid
        return [
            run
            for run in self.runs.get(publisher, ())
            if run.first_sequence <= last and run.last_sequence >= first and run.first_txid >= oldest
        ]


class Connection:
    """A stream between two hosts. Side 0 dialed, side 1 accepted."""

    __slots__ = ("closed", "dead", "hosts", "last_us", "number", "open", "receive", "world")

    def __init__(self, world: World, dialer: str, acceptor: str) -> None:
        self.world = world
        self.number = world.number()
        self.hosts = (dialer, acceptor)
        self.open = [True, True]
        self.dead = [False, False]
        """Whether what this side sends is lost."""
        self.last_us = [0, 0]
        self.receive: list[Callable[[Any], None]] = [_ignore, _ignore]
        self.closed: list[Callable[[str], None]] = [_ignore, _ignore]
        world.connections[self.number] = self

    def _arrival_us(self, side: int) -> int:
        world = self.world
        time_us = world.now_us + world.drawn(world.timing.network_us) * world.slow
        if time_us < self.last_us[side]:
            time_us = self.last_us[side]
        self.last_us[side] = time_us
        return time_us

    def send(self, side: int, frame: Any) -> None:
        """Sends a frame to the other side."""
        if self.open[side] and not self.dead[side]:
            self.world.at(self._arrival_us(side), self._arrive, 1 - side, frame)

    def _arrive(self, side: int, frame: Any) -> None:
        if self.open[side]:
            self.receive[side](frame)

    def close(self, side: int, why: str) -> None:
        """This side closes; the other one hears of it behind what was sent."""
        if not self.open[side]:
            return
        self.open[side] = False
        if not self.open[1 - side]:
            self.world.connections.pop(self.number, None)
        elif self.dead[side]:
            self.world.after(self.world.drawn(self.world.timing.notice_us), self._end, 1 - side, why)
        else:
            self.world.at(self._arrival_us(side), self._end, 1 - side, why)

    def _end(self, side: int, why: str) -> None:
        if self.open[side]:
            self.open[side] = False
            if not self.open[1 - side]:
                self.world.connections.pop(self.number, None)
            self.closed[side](why)

    def sever(self) -> None:
        """Nothing sent from now on arrives; each side notices when it does."""
        for side in (0, 1):
            self.dead[side] = True
            if self.open[side]:
                self.world.after(
                    self.world.drawn(self.world.timing.notice_us), self._end, side, "lost"
                )

    def sever_if_blocked(self) -> None:
        """What a partition does to it."""
        a, b = self.hosts
        blocked = ((a, b) in self.world.blocked, (b, a) in self.world.blocked)
        if not any(blocked):
            return
        for side in (0, 1):
            self.dead[side] = self.dead[side] or blocked[side]
            if self.open[side]:
                self.world.after(
                    self.world.drawn(self.world.timing.notice_us), self._end, side, "lost"
                )


def _ignore(_: Any) -> None:
    pass


class Channel:
    """One direction between an instance and a process beside it: ordered, delayed, no losses."""

    __slots__ = ("last_us", "world")

    def __init__(self, world: World) -> None:
        self.world = world
        self.last_us = 0

    def send(self, call: Callable[..., None], *args: Any) -> None:
        """Calls there a little later."""
        world = self.world
        time_us = max(self.last_us, world.now_us + world.drawn(world.timing.local_us))
        self.last_us = time_us
        world.at(time_us, call, *args)


@dataclass(slots=True)
class Session:
    """A client's connection at an instance."""

    number: int
    connection: Connection
    client: str
    publisher: int
    unacked: deque[int] = field(default_factory=deque)
    subscriptions: dict[str, Cursor] = field(default_factory=dict)


@dataclass(slots=True)
class Cursor:
    """A bookmark subscription at an instance: where it reads, what the client has."""

    name: str
    topic: str
    have: PublisherRanges
    txid: int
    reading: bool = False


class Instance:
    """One life of an instance: the shell around its machine."""

    def __init__(self, world: World, disk: Disk, *, ready: bool) -> None:
        self.world = world
        self.disk = disk
        self.name = disk.member.name
        self.alive = True
        self.journal = disk.journal
        self.staging: deque[Run] = deque()
        self.sessions: dict[int, Session] = {}
        self.upstreams: dict[int, Connection] = {}
        self._commit_due = False
        self._told_us = 0
        self._callbacks = 0
        self._checks = 0
        recovered = disk.journal.recovered
        machine = self.machine = world.machines.instance(
            Identity(self.name, disk.member.group, disk.incarnation),
            disk.member.destinations,
            JOURNALED,
            next_txid=recovered.next_txid,
            held=recovered.held,
            awaited=disk.awaited_at_floor.copy(),
            incarnations={name: server[0] for name, server in disk.servers.items()},
            lookup=disk.lookup,
            ready=ready,
            policy=world.policy,
        )
        self._txid_at_start = recovered.next_txid - 1
        if recovered.next_txid > 1:
            floor = max(disk.floor_txid, disk.journal.first_txid - 1)
            runs = []
            while found := disk.journal.read_headers(floor):
                runs += found
                floor = found[-1].last_txid
            machine.recover(runs, world.now_us)
            if machine.pending:
                world.probes["ack owed across a restart"] += 1
        self.journal.start(self._on_disk, self._commit_failed)
        world.log(Started(world.now_us, self.name, disk.incarnation, ready))
        if disk.lives:
            for destination in disk.member.destinations:
                if destination.sync:
                    world.log(ModeSet(world.now_us, self.name, destination.name, True))
        disk.lives += 1
        self.links = {
            destination.name: LinkProcess(self, destination)
            for destination in disk.member.destinations
        }
        world.after(world.drawn((1, world.timing.tick_us)), self._tick)
        world.after(world.drawn((1, world.timing.hint_us)), self._write_hint)
        self.check()

    # -- life --------------------------------------------------------------------------------
    def crash(self, lose_disk: bool) -> None:
        """Dies at once."""
        world = self.world
        self.alive = False
        if self.journal.staged:
            world.probes["crash with an unsynced commit"] += 1
        world.log(Crashed(world.now_us, self.name, self.disk.incarnation, lose_disk))
        self.disk.journal = self.journal.crash()
        self.disk.was_ready = self.machine.ready and not lose_disk
        for link in self.links.values():
            link.die()
        for connection in [s.connection for s in self.sessions.values()]:
            connection.close(1, "instance died")
        for connection in self.upstreams.values():
            connection.close(1, "instance died")
        if lose_disk:
            self.disk.format()
            self.disk.journal = self.disk.journal.crash()

    def quiet(self) -> bool:
        """Whether nothing is under way here."""
        machine = self.machine
        if self.staging or self._callbacks or not machine.ready or machine.pending:
            return False
        for name, link in self.links.items():
            ledger = machine.destinations[name]
            if ledger.owed or not ledger.caught_up or not link.quiet(machine.committed_txid):
                return False
            if ledger.destination.sync and not ledger.safe:
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
            self.perform(self.machine.tick(world.now_us))
            world.after(world.timing.tick_us, self._tick)

    def _write_hint(self) -> None:
        """What the shell writes every few seconds: where recovery may begin."""
        if self.alive:
            floor_txid, awaited = self.machine.recovery_point()
            self.disk.floor_txid, self.disk.awaited_at_floor = floor_txid, awaited
            self.world.after(self.world.timing.hint_us, self._write_hint)

    def remove_segments(self) -> None:
        """Retention: everything that law 4 lets go."""
        before = self.machine.removable_before()
        self.journal.removable(before)
        removed = self.journal.remove(before)
        if removed:
            self.world.probes["segment removed"] += 1
            servers = tuple((name, link.server) for name, link in self.links.items())
            self.world.log(
                Removed(
                    self.world.now_us,
                    self.name,
                    self.disk.incarnation,
                    removed[-1].last_txid,
                    servers,
                )
            )

    def downgrade(self, destination: str) -> None:
        """By hand."""
        self.perform(self.machine.downgrade(destination, self.world.now_us))

    def upgrade(self, destination: str) -> None:
        """By hand."""
        self.perform(self.machine.upgrade(destination, self.world.now_us))

    # -- the journal -------------------------------------------------------------------------
    def _stage(self, run: Run) -> None:
        world = self.world
        self.journal.stage(run)
        self.staging.append(run)
        if not self._commit_due:
            self._commit_due = True
            world.after(world.drawn(world.timing.commit_us), self._commit)

    def _commit(self) -> None:
        self._commit_due = False
        if self.alive:
            self.journal.commit()

    def _on_disk(self, last_txid: int, _: int) -> None:
        world, disk = self.world, self.disk
        staging = self.staging
        now_us = world.now_us
        while staging and staging[0].last_txid <= last_txid:
            run = staging.popleft()
            if run.kind == Kind.RECORDS:
                sequences = tuple(_expanded(run.ranges()))
                world.log(
                    Journaled(
                        now_us,
                        self.name,
                        disk.incarnation,
                        run.first_txid,
                        run.publisher,
                        sequences,
                        run.topic.decode(),
                        run.path,
                        run.group,
                        bool(run.flags & Flag.AWAITED),
                        bool(run.flags & Flag.LATE),
                    )
                )
                for sequence in sequences:
                    disk.index[run.publisher, sequence] = run
                disk.runs.setdefault(run.publisher, []).append(run)
                if run.flags & Flag.LATE:
                    world.probes["late record"] += 1
                    world.probes["gap filled later"] += 1
            elif run.kind == Kind.WAITER:
                sender, ranges = decode_note(run)
                world.log(
                    Noted(
                        now_us,
                        self.name,
                        disk.incarnation,
                        sender,
                        run.publisher,
                        tuple(_expanded(ranges)),
                    )
                )
        self._callback(self._committed, last_txid)

    def _commit_failed(self, _: int, error: Exception) -> None:
        self.world.probes["commit failure"] += 1
        self.staging.clear()
        self._callback(self._failed, str(error))

    def _callback(self, call: Callable[..., None], *args: Any) -> None:
        """The writer thread's callback reaches the loop a little later, in order."""
        world = self.world
        self._told_us = max(self._told_us, world.now_us + world.drawn(world.timing.local_us))
        self._callbacks += 1
        world.at(self._told_us, call, *args)

    def _committed(self, last_txid: int) -> None:
        self._callbacks -= 1
        if self.alive:
            self.perform(self.machine.committed(last_txid, self.world.now_us))

    def _failed(self, text: str) -> None:
        self._callbacks -= 1
        if self.alive:
            # Runs staged since the failure were refused by the journal: gone with the others.
            self.staging.clear()
            self.perform(self.machine.append_failed("storage_error", text))

    # -- effects -----------------------------------------------------------------------------
    def perform(self, effects: list[Any]) -> None:
        """Performs effects in order."""
        for effect in effects:
            _PERFORM[type(effect)](self, effect)
        self.check()

    def _perform_append(self, effect: Append) -> None:
        self._stage(effect.run)

    def _perform_committed(self, effect: Committed) -> None:
        last_txid = effect.last_txid
        for link in self.links.values():
            link.inbox.send(link.told, last_txid)
        for session in self.sessions.values():
            for cursor in session.subscriptions.values():
                self._wake(session, cursor)

    def _perform_ack_client(self, effect: AckClient) -> None:
        session = self.sessions.get(effect.session)
        if session is None:
            return
        world = self.world
        header: dict[str, Any] = {"c": "ack", "a": "persisted", "s": effect.sequence}
        unacked = session.unacked
        if effect.reason:
            header |= {"status": "failure", "reason": effect.reason, "text": effect.text}
            if effect.sequence in unacked:
                unacked.remove(effect.sequence)
            world.probes["publish refused"] += 1
            world.log(
                Failed(
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

    def _log_acked(self, session: Session, sequences: list[int], by: str) -> None:
        self.world.log(
            Acked(
                self.world.now_us,
                self.name,
                session.client,
                session.publisher,
                session.number,
                tuple(sequences),
                by,
            )
        )

    def _perform_ack_upstream(self, effect: AckUpstream) -> None:
        connection = self.upstreams.get(effect.connection)
        if connection is not None:
            connection.send(1, effect)

    def _perform_close_upstream(self, effect: CloseUpstream) -> None:
        connection = self.upstreams.pop(effect.connection, None)
        if connection is not None:
            if effect.reason == "gap":
                self.world.probes["gap refused"] += 1
            connection.close(1, effect.reason)

    def _perform_close_session(self, effect: CloseSession) -> None:
        session = self.sessions.pop(effect.session, None)
        if session is not None:
            header = {"c": "ack", "status": "failure", "reason": effect.reason, "text": effect.text}
            session.connection.send(1, (header, b""))
            session.connection.close(1, effect.reason)

    def _perform_notify_link(self, effect: NotifyLink) -> None:
        link = self.links[effect.destination]
        self.world.probes["notice sent"] += 1
        self.world.probes["answer withdrawn"] += 1
        link.inbox.send(link.notified, effect)

    def _perform_set_link_mode(self, effect: SetLinkMode) -> None:
        link = self.links[effect.destination]
        self.world.log(ModeSet(self.world.now_us, self.name, effect.destination, effect.sync))
        link.inbox.send(link.mode_set, effect.sync)

    def _perform_safety_changed(self, _: SafetyChanged) -> None:
        peers = self._peers()
        for session in self.sessions.values():
            self._log_safety(session, peers)
            session.connection.send(1, ({"c": "safety", "peers": peers}, b""))

    def _perform_became_ready(self, _: BecameReady) -> None:
        self.world.probes["new incarnation caught up"] += 1
        self.world.log(Seen(self.world.now_us, self.name, "ready"))

    def _perform_report(self, effect: Report) -> None:
        event = effect.event
        probe = _PROBE_OF_EVENT.get(event)
        if probe is not None:
            self.world.probes[probe] += 1
        if event in SHOWN_EVENTS:
            details = " ".join(f"{key}={value}" for key, value in effect.details.items())
            self.world.log(Seen(self.world.now_us, self.name, f"{event} {details}"))

    # -- clients -----------------------------------------------------------------------------
    def _peers(self) -> list[dict[str, Any]]:
        members = self.world.topology.members
        peers = []
        for name, ledger in self.machine.destinations.items():
            _, server = self.disk.servers.get(name, (0, ""))
            for address in ledger.destination.addresses:
                peers.append(
                    {
                        "name": address,
                        "group": members[address].group,
                        "addresses": [address],
                        "safe": ledger.safe and address == server,
                    }
                )
        return peers

    def _log_safety(self, session: Session, peers: list[dict[str, Any]]) -> None:
        safe = tuple(peer["name"] for peer in peers if peer["safe"])
        self.world.log(
            ToldSafety(self.world.now_us, self.name, session.client, session.number, safe)
        )

    def client_frame(self, connection: Connection, header: dict[str, Any], body: bytes) -> None:
        """A frame of a client."""
        if not self.alive:
            return
        world = self.world
        command = header["c"]
        session = self.sessions.get(connection.number)
        if command == "logon":
            self._log_on(connection, header)
        elif session is None:
            return
        elif command == "pb":
            sequences = header["sequences"]
            session.unacked.extend(sequences)
            index = self.disk.index
            if any((session.publisher, sequence) in index for sequence in sequences):
                world.probes["resend to the survivor"] += 1
            effects, _ = self.machine.client_published(session.number, body, world.now_us)
            self.perform(effects)
        elif command == "subscribe":
            have = PublisherRanges.from_wire(header.get("o", {}).get("have", {}))
            cursor = Cursor(header["sub"], header["t"], have, self.journal.first_txid - 1)
            session.subscriptions[cursor.name] = cursor
            answer = {"c": "ack", "a": "processed", "cid": header["cid"], "status": "success"}
            connection.send(1, (answer, b""))
            if have:
                world.probes["subscriber failed over"] += 1
            self._wake(session, cursor)

    def _log_on(self, connection: Connection, header: dict[str, Any]) -> None:
        world = self.world
        answer: dict[str, Any] = {
            "c": "ack",
            "a": "processed",
            "cid": header["cid"],
            "v": 1,
            "instance": self.name,
            "group": self.disk.member.group,
            "incarnation": self.disk.incarnation,
        }
        if not self.machine.ready:
            world.probes["logon refused, not ready"] += 1
            connection.send(1, ({**answer, "status": "failure", "reason": "not_ready"}, b""))
            connection.close(1, "not_ready")
            return
        client = header["client_name"]
        for older in list(self.sessions.values()):
            if older.client == client:
                self.client_gone(older.number)
                older.connection.close(1, "name_in_use")
        number = connection.number
        low = header["low"]
        found = self.machine.client_logged_on(number, client, low)
        durable = found.durable
        if world.machines.durable_is_highest and low and found.highest >= low:
            durable = [(low, found.highest)]
        session = Session(number, connection, client, found.publisher)
        self.sessions[number] = session
        peers = self._peers()
        self._log_safety(session, peers)
        if durable:
            self._log_acked(session, list(_expanded(durable)), "logon")
        answer |= {
            "status": "success",
            "publisher": found.publisher,
            "durable": [list(pair) for pair in durable],
            "highest": found.highest,
            "peers": peers,
        }
        connection.send(1, (answer, b""))
        self.check()

    def client_gone(self, number: int) -> None:
        """A client's connection ended."""
        if self.sessions.pop(number, None) is not None and self.alive:
            self.machine.client_left(number)

    def _wake(self, session: Session, cursor: Cursor) -> None:
        if not cursor.reading and cursor.txid < self.machine.committed_txid:
            cursor.reading = True
            world = self.world
            world.after(world.drawn(world.timing.local_us), self._deliver, session, cursor)

    def _deliver(self, session: Session, cursor: Cursor) -> None:
        """Reads on for a subscriber: a batch of what it does not have."""
        cursor.reading = False
        if not self.alive or session.number not in self.sessions:
            return
        limit = self.machine.committed_txid
        for run in self.journal.read(cursor.txid, 2_000):
            if run.last_txid > limit:
                return
            cursor.txid = run.last_txid
            if run.kind != Kind.RECORDS or cursor.topic not in (".*", run.topic.decode()):
                continue
            have = cursor.have.get(run.publisher)
            part: Run | None = run
            if have is not None and have.touches(run.first_sequence, run.last_sequence):
                part = run.select([p for a, b in run.ranges() for p in have.missing(a, b)])
            if part is not None:
                header = {"c": "p", "sub": cursor.name, "n": part.count, "tx": part.first_txid}
                session.connection.send(1, (header, part.payload))
        self._wake(session, cursor)

    # -- upstream instances ------------------------------------------------------------------
    def link_logs_on(self, connection: Connection, logon: LinkLogon) -> None:
        """An upstream link has connected."""
        if not self.alive:
            return
        world, disk, machine = self.world, self.disk, self.machine
        seen = disk.epochs_seen.get(logon.incarnation, 0)
        refusal = machine.refuse_upstream(
            logon.name, logon.group_expected, logon.incarnation, logon.destination, logon.epoch, seen
        )
        if refusal is not None:
            world.probes[f"{refusal[0].replace('_', ' ')} refused"] += 1
            connection.close(1, refusal[0])
            return
        disk.epochs_seen[logon.incarnation] = logon.epoch
        number = connection.number
        effects, answer = machine.upstream_logged_on(
            number, logon.name, logon.group, logon.incarnation, logon.destination, logon.epoch
        )
        self.upstreams[number] = connection
        self.perform(effects)
        connection.send(1, Welcome(self.name, disk.incarnation, answer))

    def upstream_frame(self, connection: Connection, batch: SendBatch) -> None:
        """A batch came in."""
        if not self.alive:
            return
        machine, world = self.machine, self.world
        before = machine.counters.duplicates
        effects = machine.upstream_batch(
            connection.number,
            batch.number,
            batch.runs,
            batch.marked,
            batch.awaited,
            batch.caught_up,
            world.now_us,
        )
        if machine.counters.duplicates > before:
            world.probes["duplicate by two paths"] += 1
        self.perform(effects)

    def upstream_gone(self, number: int) -> None:
        """An upstream connection ended."""
        if self.upstreams.pop(number, None) is not None and self.alive:
            self.machine.upstream_left(number)

    # -- its own links -----------------------------------------------------------------------
    def give_epoch(self, link: LinkProcess) -> None:
        """A link asks for the epoch of its next connection: on disk before it is used."""
        if self.alive and link.alive:
            used = self.disk.epochs_used
            name = link.destination.name
            used[name] = used.get(name, 0) + 1
            link.inbox.send(link.epoch_given, used[name])

    def link_connected(self, link: LinkProcess, connection: Connection, welcome: Welcome) -> None:
        """A link has connected."""
        if not self.alive or not link.alive:
            return
        name = link.destination.name
        self.disk.servers[name] = (welcome.incarnation, welcome.name)
        self.world.log(Linked(self.world.now_us, self.name, name, welcome.name))
        before = self.machine.destinations[name].incarnation
        effects, start = self.machine.link_connected(
            name, welcome.incarnation, welcome.answer.held, welcome.answer.waited, self.world.now_us
        )
        if before and before != welcome.incarnation:
            self.world.probes["link moved to another server or incarnation"] += 1
        link.inbox.send(link.started, connection, welcome, start)
        self.perform(effects)

    def link_disconnected(self, link: LinkProcess, why: str) -> None:
        """A link has lost its connection."""
        if self.alive:
            self.perform(self.machine.link_disconnected(link.destination.name, why))

    def link_answered(self, link: LinkProcess, effect: LinkAnswered) -> None:
        """A destination has answered."""
        if self.alive:
            name = link.destination.name
            self.perform(
                self.machine.link_answered(
                    name, effect.persisted, effect.conflicts, effect.withdrawal
                )
            )

    def link_progressed(self, link: LinkProcess, effect: LinkProgress) -> None:
        """A link tells how far it is."""
        if self.alive:
            self.perform(
                self.machine.link_progressed(
                    link.destination.name,
                    effect.stored_txid,
                    effect.resending,
                    effect.caught_up,
                    effect.skipped,
                    self.world.now_us,
                )
            )


_PERFORM: dict[type[Any], Callable[[Instance, Any], None]] = {
    Append: Instance._perform_append,
    Committed: Instance._perform_committed,
    AckClient: Instance._perform_ack_client,
    AckUpstream: Instance._perform_ack_upstream,
    CloseUpstream: Instance._perform_close_upstream,
    CloseSession: Instance._perform_close_session,
    NotifyLink: Instance._perform_notify_link,
    SetLinkMode: Instance._perform_set_link_mode,
    SafetyChanged: Instance._perform_safety_changed,
    BecameReady: Instance._perform_became_ready,
    Report: Instance._perform_report,
}
_PROBE_OF_EVENT = {
    "downgraded": "downgraded",
    "upgraded": "upgraded",
    "conflict": "conflict",
    "link_caught_up": "resync",
}


@dataclass(frozen=True, slots=True)
class LinkLogon:
    """What a link says when it connects."""

    name: str
    group: str
    group_expected: str
    incarnation: int
    destination: str
    epoch: int


@dataclass(frozen=True, slots=True)
class Welcome:
    """What it is answered."""

    name: str
    incarnation: int
    answer: UpstreamAnswer


class LinkProcess:
    """One life of a DestinationLink: the shell around its machine."""

    def __init__(self, instance: Instance, destination: Destination) -> None:
        world = self.world = instance.world
        self.instance = instance
        self.destination = destination
        self.alive = True
        self.inbox = Channel(world)
        self.outbox = Channel(world)
        self.machine = world.machines.link(destination, world.window_bytes)
        self.connection: Connection | None = None
        self.server = ""
        self._early: list[AckUpstream] = []
        self._address = 0
        self._epoch = 0
        self._pause_us = world.timing.pause_us[0]
        self._pumping = False
        self.outbox.send(instance.give_epoch, self)

    def die(self) -> None:
        """Ends with its instance."""
        self.alive = False
        if self.connection is not None:
            self.connection.close(0, "link died")
            self.connection = None

    def crash(self) -> None:
        """Dies alone: the instance sees its channel close and starts another one."""
        instance, world = self.instance, self.world
        self.die()
        instance.perform(instance.machine.link_disconnected(self.destination.name, "link died"))
        world.probes["link crashed"] += 1
        world.after(world.drawn((1_000, 50_000)), self._replace)

    def _replace(self) -> None:
        if self.instance.alive:
            self.instance.links[self.destination.name] = LinkProcess(
                self.instance, self.destination
            )

    def quiet(self, last_txid: int) -> bool:
        """Whether everything is sent and stored."""
        machine = self.machine
        return (
            self.alive
            and machine.is_connected
            and not machine.resyncing
            and machine.cursor >= last_txid
            and machine.stored_txid >= last_txid
        )

    # -- connecting --------------------------------------------------------------------------
    def epoch_given(self, epoch: int) -> None:
        """The epoch is on disk: dial."""
        if self.alive:
            self._epoch = epoch
            self._dial()

    def _dial(self) -> None:
        world = self.world
        target = self.destination.addresses[self._address]
        connection = self.connection = Connection(world, self.instance.name, target)
        connection.receive[0] = lambda frame: self._frame(connection, frame)
        connection.closed[0] = lambda why: self._lost(connection, why)
        delay_us = world.drawn(world.timing.network_us)
        if self._real() < 0.02 and not world.healed:
            # A logon that the network kept for long: the link has dialed again by then.
            delay_us += world.drawn((20_000, 300_000))
        world.after(delay_us, self._reach, connection, self._epoch)
        world.after(world.timing.dial_us, self._no_answer, connection)

    def _real(self) -> float:
        return self.world.rng.random()

    def _reach(self, connection: Connection, epoch: int) -> None:
        """The logon arrives, though the link may have given up since."""
        world = self.world
        here, there = connection.hosts
        target = world.instances[there]
        if not target.alive or (here, there) in world.blocked or (there, here) in world.blocked:
            connection._end(0, "refused")
            return
        if not connection.open[0]:
            # Its stream is dead, but the other side does not know.
            connection.dead[0] = connection.dead[1] = True
        connection.receive[1] = lambda batch: target.upstream_frame(connection, batch)
        connection.closed[1] = lambda why: target.upstream_gone(connection.number)
        member = self.instance.disk.member
        logon = LinkLogon(
            member.name,
            member.group,
            self.destination.group,
            self.instance.machine.identity.incarnation,
            self.destination.name,
            epoch,
        )
        target.link_logs_on(connection, logon)
        if connection.dead[0]:
            world.after(world.drawn(world.timing.notice_us), connection._end, 1, "lost")

    def _no_answer(self, connection: Connection) -> None:
        if self.connection is connection and not self.server:
            connection.open[0] = False
            if not connection.open[1]:
                self.world.connections.pop(connection.number, None)
            self._lost(connection, "no answer")

    def _frame(self, connection: Connection, frame: Any) -> None:
        if not self.alive or connection is not self.connection:
            return
        if isinstance(frame, Welcome):
            self.server = frame.name
            if self._address:
                self.world.probes["second server of a list"] += 1
            self.outbox.send(self.instance.link_connected, self, connection, frame)
        elif self.machine.is_connected:
            self._acked(frame)
        else:
            self._early.append(frame)

    def started(self, connection: Connection, welcome: Welcome, start: Any) -> None:
        """The instance has said how to begin."""
        if not self.alive or connection is not self.connection:
            return
        self._pause_us = self.world.timing.pause_us[0]
        self._address = 0
        if start.notice:
            self.world.probes["notice at a connect"] += 1
        self._perform(
            self.machine.connected(
                welcome.incarnation,
                welcome.answer.held,
                start,
                self.instance.journal.first_txid,
            )
        )
        for ack in self._early:
            self._acked(ack)
        self._early.clear()
        self._pump_soon()

    def _lost(self, connection: Connection, why: str) -> None:
        if not self.alive or connection is not self.connection:
            return
        world = self.world
        self.connection = None
        self._early.clear()
        was_connected = bool(self.server)
        self.server = ""
        self.machine.disconnected()
        if was_connected:
            self.outbox.send(self.instance.link_disconnected, self, why)
            self._address = 0
        else:
            self._address += 1
        if self._address >= len(self.destination.addresses):
            self._address = 0
            world.after(self._pause_us, self._again)
            self._pause_us = min(2 * self._pause_us, world.timing.pause_us[1])
        else:
            self._again()

    def _again(self) -> None:
        if self.alive:
            self.outbox.send(self.instance.give_epoch, self)

    # -- what the instance says --------------------------------------------------------------
    def told(self, last_txid: int) -> None:
        """The instance has committed."""
        if self.alive:
            self.machine.told(last_txid)
            self._pump_soon()

    def notified(self, effect: NotifyLink) -> None:
        """The instance asks again."""
        if self.alive:
            self._perform(self.machine.notice(effect.withdrawal, effect.awaited))

    def mode_set(self, sync: bool) -> None:
        """What is sent from now on is marked awaited, or not."""
        if self.alive:
            self.machine.set_mode(sync)

    # -- the journal -------------------------------------------------------------------------
    def _pump_soon(self) -> None:
        if not self._pumping and self.machine.wants:
            self._pumping = True
            self.world.after(self.world.drawn(self.world.timing.local_us), self._pump)

    def _pump(self) -> None:
        """Reads one batch behind the cursor and sends what is missing there."""
        self._pumping = False
        machine = self.machine
        if not self.alive or not machine.wants:
            return
        journal = self.instance.journal
        if machine.resyncing:
            before = machine.cursor
            machine.skip_segments(journal.segment_summaries())
            if machine.cursor > before:
                self.world.probes["segments skipped in a resync"] += 1
            while machine.cursor < machine.told_txid:
                headers = [
                    run
                    for run in journal.read_headers(machine.cursor, 16)
                    if run.last_txid <= machine.told_txid
                ]
                if not headers or not machine.skip_headers(headers):
                    break
        runs = [
            run
            for run in journal.read(machine.cursor, self.world.rng.randint(1, 1_200))
            if run.last_txid <= machine.told_txid
        ]
        self._perform(machine.take(runs))
        if self.connection is not None and not self.world.healed and self._real() < 0.001:
            self.connection.dead[0] = True
            self.world.after(3_000, self._unblock, self.connection)
        self._pump_soon()

    def _unblock(self, connection: Connection) -> None:
        """Frames were lost and the stream goes on: what no TCP does, and a gap must show."""
        if connection.open[0] and connection.open[1]:
            connection.dead[0] = False
            self.world.after(self.world.drawn(self.world.timing.notice_us), connection.sever)

    def _acked(self, ack: AckUpstream) -> None:
        self._perform(self.machine.acked(ack.number, ack.held, ack.persisted, ack.conflicts))
        self._pump_soon()

    def _perform(self, effects: list[Any]) -> None:
        for effect in effects:
            if isinstance(effect, SendBatch):
                if self.connection is not None:
                    self.connection.send(0, effect)
            elif isinstance(effect, LinkAnswered):
                self.outbox.send(self.instance.link_answered, self, effect)
            elif isinstance(effect, LinkProgress):
                self.outbox.send(self.instance.link_progressed, self, effect)


class SimStore:
    """A publish store in memory that tells the history what left it."""

    def __init__(self, forgotten: Callable[[list[int]], None]) -> None:
        self._records: dict[int, bytes] = {}
        self._forgotten = forgotten
        self.highest = 0
        self.full = False

    def put(self, sequence: int, record: bytes) -> None:
        """Adds the record of the next sequence."""
        assert sequence > self.highest
        self._records[sequence] = record
        self.highest = sequence

    def flush(self) -> None:
        """Nothing to do in memory."""

    def advance(self, highest: int) -> None:
        """Raises `highest` without a record."""
        self.highest = max(self.highest, highest)

    def acknowledge(self, upto: int) -> None:
        """Forgets every sequence up to `upto`."""
        gone = []
        for sequence in self._records:
            if sequence > upto:
                break
            gone.append(sequence)
        self._forget(gone)

    def drop(self, ranges: list[Range]) -> None:
        """Forgets the inclusive ranges."""
        self._forget([s for a, b in ranges for s in range(a, b + 1) if s in self._records])

    def _forget(self, sequences: list[int]) -> None:
        for sequence in sequences:
            del self._records[sequence]
        if sequences:
            self._forgotten(sequences)

    def replay(self, from_sequence: int) -> Iterator[tuple[int, bytes]]:
        """(sequence, record) in ascending order, from a sequence on."""
        at = from_sequence
        while at <= self.highest:
            record = self._records.get(at)
            if record is not None:
                yield at, record
            at += 1

    @property
    def lowest(self) -> int:
        """The lowest sequence held; 0 when it is empty."""
        return next(iter(self._records), 0)

    @property
    def messages(self) -> int:
        """Records held."""
        return len(self._records)


class SimClient:
    """A publisher, a subscriber or both: the shell around the production client machine."""

    def __init__(
        self, world: World, name: str, servers: list[str], group: str, *, subscribe: str = ""
    ) -> None:
        self.world = world
        self.name = name
        self.store = SimStore(self._forgotten)
        self.machine = ClientMachine(
            ClientOptions(
                name,
                tuple(Server(server) for server in servers),
                group=group,
                heartbeat_s=0,
                connect_timeout_s=0.1,
                pause_min_ms=10,
                pause_max_ms=200,
                seed=world.rng.getrandbits(32),
            ),
            self.store,
        )
        self.connection: Connection | None = None
        self.subscription: Resumption | None = None
        self.failed = ""
        self._waking: float | None = None
        self._last_instance = ""
        self._backlog: list[str] = []
        self._previous: dict[str, int] = {}
        world.clients[name] = self
        if subscribe:
            self.subscription = Resumption(f"{name}-sub", subscribe, bookmark="0")
            self.step(SubscriptionWanted(self.subscription))
        self.step(ClientStarted())

    def quiet(self) -> bool:
        """Whether everything published is acknowledged."""
        if self.store.messages or self._backlog or not self.machine.instance:
            return False
        if self.subscription is None:
            return True
        instance = self.world.instances[self.machine.instance]
        return all(
            cursor.txid >= instance.machine.committed_txid
            for session in instance.sessions.values()
            if session.client == self.name
            for cursor in session.subscriptions.values()
        )

    @property
    def _now_s(self) -> float:
        return self.world.now_us / 1e6

    def step(self, event: Any) -> None:
        """Feeds the machine and performs what it says."""
        for effect in self.machine.step(event, self._now_s):
            self._perform(effect)
        self._wake_later()

    def _wake_later(self) -> None:
        wake_s = self.machine.wake_s
        if wake_s is not None and wake_s != self._waking:
            self._waking = wake_s
            self.world.at(max(self.world.now_us, int(wake_s * 1e6) + 1), self._wake, wake_s)

    def _wake(self, wake_s: float) -> None:
        if self._waking == wake_s:
            self._waking = None
            self.step(TimePassed())

    def _perform(self, effect: Any) -> None:
        if isinstance(effect, Connect):
            self._connect(effect)
        elif isinstance(effect, Disconnect):
            if self.connection is not None:
                self.connection.close(0, "client left")
                self.connection = None
        elif isinstance(effect, SendFrame):
            if self.connection is not None:
                self.connection.send(0, (effect.header, effect.body))
        elif isinstance(effect, SendPublishes):
            self._send()
        elif isinstance(effect, Tell):
            self._told(effect.event)
        elif isinstance(effect, Fail):
            self.failed = str(effect.error)
            self.world.fault(f"client {self.name} failed: {effect.error}")

    def _told(self, event: Any) -> None:
        world = self.world
        if isinstance(event, Connected):
            if event.instance != self._last_instance:
                world.log(Used(world.now_us, self.name, event.instance, self._last_instance))
                if self._last_instance:
                    world.probes["client failed over"] += 1
                self._last_instance = event.instance
            backlog, self._backlog = self._backlog, []
            if backlog:
                world.after(0, self.publish, backlog)
        elif isinstance(event, WaitingForSafeInstance):
            world.probes["client waited for a safe instance"] += 1
        elif isinstance(event, PublishFailed):
            world.probes["publish failed"] += 1

    def _connect(self, effect: Connect) -> None:
        world = self.world
        connection = self.connection = Connection(world, f"client {self.name}", effect.address)
        number = effect.connection
        connection.receive[0] = lambda frame: self._frame(number, frame)
        connection.closed[0] = lambda why: self._ended(connection, number, why)
        world.after(world.drawn(world.timing.network_us), self._reach, connection, number)

    def _reach(self, connection: Connection, number: int) -> None:
        target = self.world.instances[connection.hosts[1]]
        if not connection.open[0]:
            return
        if not target.alive:
            connection._end(0, "refused")
            return
        connection.receive[1] = lambda frame: target.client_frame(connection, *frame)
        connection.closed[1] = lambda why: target.client_gone(connection.number)
        self.step(ConnectionOpened(number))

    def _ended(self, connection: Connection, number: int, why: str) -> None:
        if self.connection is connection:
            self.connection = None
        self.step(ConnectionEnded(number, why))

    def _frame(self, number: int, frame: tuple[dict[str, Any], bytes]) -> None:
        header, body = frame
        if header["c"] == "p":
            if number == self.machine.connection:
                self._delivered(self.machine.arrived(header, body))
        else:
            self.step(FrameReceived(number, header, body))

    def _delivered(self, batch: Any) -> None:
        if batch is None:
            return
        for publisher, first, last in batch.ranges:
            self.world.log(
                Delivered(
                    self.world.now_us,
                    self.name,
                    self.machine.instance,
                    publisher,
                    tuple(range(first, last + 1)),
                )
            )

    def _forgotten(self, sequences: list[int]) -> None:
        world = self.world
        world.log(Heard(world.now_us, self.name, self.machine.publisher, tuple(sequences)))

    def move(self) -> None:
        """The network between the client and its instance breaks; the instance lives on."""
        if self.connection is not None:
            self.world.fault(f"client {self.name} is cut off from {self.machine.instance}")
            self.connection.sever()

    def publish(self, topics: list[str]) -> None:
        """Publishes one message on each of the topics."""
        machine, world = self.machine, self.world
        if not machine.next_sequence:
            self._backlog += topics
            return
        for topic in topics:
            body = b"%d" % machine.next_sequence
            sequence = machine.publish(topic, body, "json", world.now_us)
            world.log(Published(world.now_us, self.name, machine.publisher, sequence, topic))
        self._send()

    def _send(self) -> None:
        while (batch := self.machine.next_batch(600)) is not None:
            if self.connection is None:
                return
            payload = b"".join(batch.records)
            sequences = [record.sequence for record in _decoded(batch.records)]
            header = {"c": "pb", "n": len(batch.records), "sequences": sequences}
            self.connection.send(0, (header, payload))


def _decoded(records: list[bytes]) -> Iterator[Any]:
    from raylay.services.messages.records import decode_record

    return (decode_record(record, verify=False) for record in records)


def _expanded(ranges: list[Range]) -> Iterator[int]:
    for first, last in ranges:
        yield from range(first, last + 1)


__all__ = ["Connection", "Instance", "Machines", "SimClient", "Timing", "World", "replace"]
