"""Queues of simulated instances: the production doors and machines, in shells of their own.

Beside an instance lives one owner of each queue, a process: it reads its instance's journal and is
told and says what it decides over ordered channels, crashes and starts again by itself. What a
world with queues draws besides comes from a generator of its own.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import msgpack

from raylay.services.core.feature import CommitBatch
from raylay.services.core.queues import Queues
from raylay.services.errors import StorageError
from raylay.services.expressions.functions.registry import NO_CONTEXT
from raylay.services.messages.records import Command, Flag, Kind, Record, Run, iterate_records
from raylay.services.processes.queue_owner.bodies import Bodies
from raylay.services.queues.checkpoint import QueueCheckpoint, RecoveryStart
from raylay.services.queues.clock_steps import ClockSteps
from raylay.services.queues.decisions import (
    Consumer,
    ConsumerSubscription,
    DeliverLeased,
    DeliverOnce,
    Expiration,
    QueueRecordDraft,
    TransferRequest,
)
from raylay.services.queues.definition import QueueDefinition
from raylay.services.queues.frontend import QueueFrontend, RoutedRequest
from raylay.services.queues.machine import QueueMachine
from raylay.services.queues.message import AVAILABLE
from raylay.services.queues.records import UNDONE, Keys
from raylay.services.queues.replicated_state import ReplicatedQueueState
from raylay.services.verification.queue_history import (
    QueueDelivered,
    QueueHolds,
    QueueRecorded,
    QueueReturned,
    SharedQueue,
)
from raylay.storage.queue import MemoryQueueStore, StoredQueue
from sim.queue_watch import BARRIER_SORT, Watch, is_of_sort
from sim.sow import Words

if TYPE_CHECKING:
    from sim.instance import Disk, Instance
    from sim.world import World

TAKEN_AT_ONCE = 8
SAVE_US = (20_000, 150_000)
SAVE_FAILS = 0.1
LOCAL_US = (10, 300)
TAKEN_OVER_LATE_US = 2_000_000
"""So long after its time a claim may still come to a disk."""
START_US = (500, 20_000)
"""Of an owner's process."""


@dataclass(slots=True)
class QueueMachines:
    """What is under test; the planted mistakes replace one of them."""

    queues: type[Queues] = Queues
    state: type[ReplicatedQueueState] = ReplicatedQueueState
    machine: type[QueueMachine] = QueueMachine
    manager: type[QueueHost] = field(default_factory=lambda: QueueHost)
    owner: type[Owner] = field(default_factory=lambda: Owner)


@dataclass(slots=True)
class SimQueues:
    """The queues of a world.

    Attributes:
        definition: of the one queue that there is.
        instances: that have it.
        consumers: (name, servers, group, filter, backlog) of each.
        owner_crashes: (time in milliseconds, name of the instance) of owners that crash.
        takeovers: (time in milliseconds, name of an instance, milliseconds) that takes messages of
            instances over that it cannot reach.
        barriers: messages that are some, as they are journaled.
        expired: messages of which a consumer has said expire, as it is journaled.
        done: messages that a consumer has acknowledged, as it is journaled.
        letters: bookmarks of the dead letters that were journaled.
        written: publisher and sequence of the letter that an instance wrote, by its incarnation and
            the bookmark.
        said: bodies of the acknowledgments that were journaled, by publisher and sequence.
    """

    definition: QueueDefinition
    instances: tuple[str, ...]
    consumers: list[tuple[str, list[str], str, str, int]] = field(default_factory=list)
    owner_crashes: list[tuple[int, str]] = field(default_factory=list)
    takeovers: list[tuple[int, str, int]] = field(default_factory=list)
    barriers: set[tuple[int, int]] = field(default_factory=set)
    expired: set[tuple[int, int]] = field(default_factory=set)
    done: set[tuple[int, int]] = field(default_factory=set)
    letters: set[str] = field(default_factory=set)
    written: dict[tuple[int, str], tuple[int, int]] = field(default_factory=dict)
    said: dict[tuple[int, int], bytes] = field(default_factory=dict)

    def shared(self) -> SharedQueue:
        """For the laws."""
        of = self.definition
        what = of.name, of.topic, self.instances, of.initial_owner, of.at_most_once
        return SharedQueue(*what, self.barriers)


class Line:
    """One direction between an instance and an owner: ordered, delayed, no losses."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.last_us = 0

    def send(self, call: Callable[..., None], *arguments: Any) -> None:
        """Calls there a little later."""
        world = self.world
        time_us = max(self.last_us, world.now_us + world.queue_rng.randint(*LOCAL_US))
        self.last_us = time_us
        world.at(time_us, call, *arguments)


class Contents:
    """Reads what a filter asks for from the journal."""

    def __init__(self, instance: Instance) -> None:
        self._instance = instance

    def tree(self, txid: int) -> dict[str, Any] | None:
        """The words of a message; None: it was removed."""
        for run in self._instance.journal.read(txid - 1, 1):
            if run.first_txid <= txid <= run.last_txid:
                record = list(iterate_records(run.payload))[txid - run.first_txid]
                return Words("json").parse(record.body)
        return None

    def around(self, txid: int) -> Any:
        """Nobody asks."""
        return NO_CONTEXT


class Owner:
    """One life of a queue's owner."""

    def __init__(self, manager: QueueHost, frontend: QueueFrontend) -> None:
        self.manager = manager
        self.world = manager.world
        self.instance = manager.instance
        self.definition = frontend.definition
        self.alive = True
        self.inbox, self.outbox = Line(self.world), Line(self.world)
        self.machine: QueueMachine | None = None
        self.read_txid = self.told_txid = 0
        self._is_due = False
        self.is_proxied = False
        self.decisions: Counter[tuple[int, int]] = Counter()
        self.acknowledged: set[tuple[int, int]] = set()
        self.letters: list[tuple[str, bytes, Sequence[int]]] = []
        """The letters of the removal that its instance is told of next."""
        self.store = manager.instance.disk.queue_stores.setdefault(
            self.definition.stored_as, MemoryQueueStore()
        )
        self.outbox.send(manager.greeted, self)

    # -- what it is told ---------------------------------------------------------------------
    def begin(
        self,
        start: RecoveryStart,
        consumers: list[ConsumerSubscription],
        last_txid: int,
        names: Any,
        clock_steps: list[tuple[int, int]],
    ) -> None:
        """How it begins."""
        if not self.alive:
            return
        stored = self.store.load()
        start.snapshot = self.snapshot(None if stored is None else stored.snapshot)
        start.life = self.world.number()
        if start.snapshot.after_txid:
            self.world.probes["queue made again from its store"] += 1
        instance = self.instance
        state = self.world.machines.queues.state(
            self.definition,
            self.manager.own_name,
            instance.disk.incarnation,
            Contents(instance),
            start,
            types={"json": Words("json")},  # type: ignore[arg-type]
        )
        self.machine = self.world.machines.queues.machine(state)
        for step in clock_steps:
            state.clock_set(*step)
        state.named(names)
        self.read_txid, self.told_txid = start.snapshot.after_txid, last_txid
        for each in consumers:
            self.machine.subscribed(each)
        self.world.after(self.world.queue_rng.randint(*SAVE_US), self._save)
        self.soon()

    def snapshot(self, stored: bytes | None) -> QueueCheckpoint:
        """What it is made again with."""
        return QueueCheckpoint() if stored is None else QueueCheckpoint.from_bytes(stored)

    def hear(self, what: str, *said: Any) -> None:
        """The instance says something to the machine."""
        if self.alive and self.machine is not None:
            machine = self.machine
            machine.at(self.now_us)
            of_state = what in ("clock_set", "named")
            getattr(machine.state if of_state else machine, what)(*said)
            if what == "done":
                self.manager.watch.acknowledged(self, *said)
            self.soon()

    def told(self, last_txid: int) -> None:
        """The instance has committed."""
        if self.alive:
            self.told_txid = max(self.told_txid, last_txid)
            self.soon()

    # -- what it does ------------------------------------------------------------------------
    @property
    def now_us(self) -> int:
        """By the steady clock of its instance."""
        return self.manager.now_us

    def soon(self) -> None:
        """A turn of its loop is to come."""
        if not self._is_due and self.machine is not None:
            self._is_due = True
            world = self.world
            world.after(world.queue_rng.randint(*LOCAL_US), self._turn)

    def _turn(self) -> None:
        self._is_due = False
        machine, world = self.machine, self.world
        if not self.alive or machine is None:
            return
        now_us = self.now_us
        if self.is_proxied or self.manager.is_proxied:
            self.is_proxied = self.manager.is_proxied
            machine.proxied(self.is_proxied, self.manager.reachable())
        runs = [
            run
            for run in self.instance.journal.read(self.read_txid, world.queue_rng.randint(1, 2_000))
            if run.last_txid <= self.told_txid
        ]
        if runs:
            machine.fold(runs, now_us)
            self.read_txid = runs[-1].last_txid
        machine.tick(now_us)
        said = machine.take(now_us, TAKEN_AT_ONCE)
        self.manager.watch.decided(self, said)
        for decision in said:
            self._write_letters(machine, decision)
            if not self.alive:
                return
            self.outbox.send(self.manager.decided, self, decision)
        if (runs and self.read_txid < self.told_txid) or any(
            isinstance(each, DeliverLeased) for each in said
        ):
            self.soon()
        next_us = machine.next_us(now_us)
        if next_us:
            world.after(max(next_us - now_us, 1), self._wake, next_us)

    def _write_letters(self, machine: QueueMachine, decision: Any) -> None:
        if not isinstance(decision, QueueRecordDraft):
            return
        reason, left = machine.state.drafts.letters(decision.tag)
        if left:
            txids, deliveries = [list(each) for each in zip(*left, strict=True)]
            try:
                records, count = Bodies(self.instance.journal, None).records(txids, 1 << 40)
            except StorageError as error:
                text = f"{self.instance.name} writes no letter: {error}"
                self.world.queue_faults.append(("queue journal", text))
                self.crash()
                return
            assert count == len(txids)
            self.outbox.send(self.manager.letters, self, reason, b"".join(records), deliveries)

    def _wake(self, _: int) -> None:
        if self.alive:
            self.soon()

    def _save(self) -> None:
        machine, world = self.machine, self.world
        if not self.alive or machine is None:
            return
        if world.queue_rng.random() < SAVE_FAILS and not world.healed:
            world.probes["queue not saved"] += 1
        elif machine.state.folded_txid:
            self.store.save(StoredQueue(machine.state.floor_txid, b"", machine.state.stored()))
            self.outbox.send(self.manager.floor, self, machine.state.floor_txid)
        world.after(world.queue_rng.randint(*SAVE_US), self._save)

    def crash(self) -> None:
        """Dies; what it has said is read before its end is noticed."""
        if not self.alive:
            return
        if self.machine is not None and self.machine.status()["drafts"]:
            self.world.probes["queue owner crashed between decision and commit"] += 1
        self.world.probes["queue owner crashed"] += 1
        self.alive = False
        self.outbox.send(self.manager.lost, self)

    @property
    def is_idle(self) -> bool:
        """Whether nothing is under way."""
        machine, world = self.machine, self.world
        if not self.alive or machine is None or not machine.state.is_ready:
            return False
        on_their_way = max(self.inbox.last_us, self.outbox.last_us) > world.now_us
        is_behind = machine.state.folded_txid < self.instance.machine.committed_txid
        return not (on_their_way or is_behind or machine.status()["drafts"])


class QueueHost:
    """The queues of one life of an instance (services/server/queues/manager.py)."""

    name = "queues"
    may_be_ahead = False

    def __init__(self, instance: Instance, queues: SimQueues | None) -> None:
        self.instance = instance
        self.world = instance.world
        disk = instance.disk
        self.definitions = []
        if queues is not None and disk.member.name in queues.instances:
            self.definitions = [queues.definition]
        identity = replace(disk.identity(), name=self.own_name)
        self.queues = self.world.machines.queues.queues(
            self.definitions, identity, lambda _, keys: self.tell("done", keys)
        )
        self.owners: dict[str, Owner] = {}
        self.floors: dict[str, int] = {}
        self.names: dict[int, str] = {}
        self.clock_steps = ClockSteps(disk.clock_steps)
        self.behind_us = self.clock_steps.behind_us
        self.watch = Watch(self)
        self._is_authoring = False

    def owner_name(self, name: str, incarnation: int) -> str:
        """By which an instance owns messages."""
        return name

    @property
    def own_name(self) -> str:
        """That of this one."""
        disk = self.instance.disk
        return self.owner_name(disk.member.name, disk.incarnation)

    @property
    def is_serving(self) -> bool:
        """Whether owners may decide."""
        return self.instance.machine.ready

    def run(self) -> None:
        """Says who bears this incarnation, and starts the owners."""
        if not self.definitions:
            return
        disk = self.instance.disk
        self.clock_steps.failed(self.instance.machine.next_txid - 1)
        self.clock_is(0)
        disk.numbered[self.queues._author.publisher] = self.instance.name
        for name, frontend in self.queues.frontends.items():
            frontend.behind_us = self.behind_us
            frontend.is_announced = frontend.is_announced or disk.incarnation in disk.announced
            self.floors[name] = 0
            self._start(name)
        self.instance.folds.enlist(self, True)
        if self.queues.announcement(self.world.now_us):
            self._author_soon()

    @property
    def now_us(self) -> int:
        """The steady clock of the queues, which goes on over a restart."""
        return self.instance.now_us - self.behind_us

    def clock_is(self, offset_us: int) -> None:
        """The wall clock is so far ahead of the steady one of the instance from now on."""
        after_txid = self.instance.machine.next_txid - 1
        offset_us += self.behind_us
        if self.definitions and self.clock_steps.note(after_txid, offset_us):
            self.instance.disk.clock_steps = self.clock_steps.all()
            self.tell("clock_set", after_txid, offset_us)

    def _start(self, name: str) -> None:
        if self.instance.alive:
            self.owners[name] = self.world.machines.queues.owner(self, self.queues.frontends[name])

    # -- owners ------------------------------------------------------------------------------
    def greeted(self, owner: Owner) -> None:
        """An owner has connected: its predecessor's socket is closed."""
        if not self._hears(owner):
            return
        machine = self.instance.machine
        begin = self.frontend(owner).owner_came(machine.next_txid - 1, self.now_us)
        start = RecoveryStart(
            QueueCheckpoint(), begin.fence_txid, 0, begin.leases, is_serving=self.is_serving
        )
        if begin.leases:
            self.world.probes["queue owner told of live leases"] += 1
        owner.inbox.send(
            owner.begin,
            start,
            begin.consumers,
            machine.committed_txid,
            dict(self.names),
            self.clock_steps.all(),
        )

    def lost(self, owner: Owner) -> None:
        """An owner is gone."""
        if self._hears(owner):
            self.frontend(owner).owner_left()
            world = self.world
            world.after(world.queue_rng.randint(*START_US), self._start, owner.definition.stored_as)

    def _hears(self, owner: Owner) -> bool:
        return self.instance.alive and self.owners.get(owner.definition.stored_as) is owner

    def frontend(self, owner: Owner) -> QueueFrontend:
        """The door of its queue."""
        return self.queues.frontends[owner.definition.stored_as]

    def decided(self, owner: Owner, decision: Any) -> None:
        """An owner has decided."""
        if not self._hears(owner):
            return
        world = self.world
        if isinstance(decision, DeliverLeased | DeliverOnce):
            self._deliver(owner, decision)
        elif isinstance(decision, QueueRecordDraft):
            self.watch.drafted(owner, decision)
            letters, owner.letters = owner.letters, []
            for each in letters:
                self.queues.letters(self.frontend(owner), *each, world.now_us)
            self.queues.draft(self.frontend(owner), decision, world.now_us)
            if decision.command == Command.TRANSFER:
                world.probes["queue transfer granted"] += 1
                index = self.instance.disk.index
                if any((each[0], each[1]) not in index for each in _moves(decision.body)):
                    world.probes["queue message let go that is not here"] += 1
                if owner.machine is not None and owner.machine.state.requests.is_waiting:
                    world.probes["queue grants cross"] += 1
            self._author_soon()
        elif isinstance(decision, TransferRequest):
            self._pass_on(self.queues.flood.made(owner.definition.stored_as, decision))
        else:
            assert isinstance(decision, Expiration)

    def letters(self, owner: Owner, reason: str, records: bytes, deliveries: Sequence[int]) -> None:
        """Dead letters are to be journaled."""
        if self._hears(owner):
            owner.letters.append((reason, records, deliveries))

    def _deliver(self, owner: Owner, decision: DeliverLeased | DeliverOnce) -> None:
        instance, world, consumer = self.instance, self.world, decision.consumer
        self.catch_up()
        decided = self.frontend(owner).decide(decision, self.now_us)
        if decided.send:
            session = instance.sessions[consumer[0]]
            keys = tuple(each.key for each in decided.send)
            until_us = decided.send[0].until_us
            if until_us:
                # The history has one clock for all.
                until_us += world.now_us - self.now_us
            is_sent = isinstance(decision, DeliverOnce)
            of = instance.name, owner.definition.name, session.client, session.number
            world.log(QueueDelivered(world.now_us, *of, keys, until_us, is_sent))
            session.connection.send(1, ({"c": "queue", "sub": consumer[1], "keys": keys}, b""))
            if not is_sent:
                self.watch.leased(session.client_name, consumer[0], decided.send)
        if decided.bounced:
            self.watch.bounced.update(key for key, _ in decided.bounced)
            world.probes["queue decision bounced"] += 1
            owner.inbox.send(owner.hear, "bounced", consumer, decided.bounced)

    def catch_up(self) -> None:
        """Before a decision is judged: all that is on disk is folded."""
        self.instance.catch_up_commits()
        behind = self.instance.folds.behind()
        while behind is not None and not behind.done:
            behind.take(100)

    def _author_soon(self) -> None:
        if not self._is_authoring:
            self._is_authoring = True
            self.world.after(self.world.queue_rng.randint(*LOCAL_US), self._author)

    def _author(self) -> None:
        self._is_authoring = False
        if self.instance.alive:
            runs = self.queues.runs()
            self.instance.perform(self.instance.machine.authored(runs, self.instance.now_us))

    def floor(self, owner: Owner, floor_txid: int) -> None:
        """What is below an owner does not need."""
        if self._hears(owner):
            self.floors[owner.definition.stored_as] = floor_txid
            self.instance.release()

    def tell(self, what: str, *said: Any) -> None:
        """Tells all owners."""
        for owner in self.owners.values():
            owner.inbox.send(owner.hear, what, *said)

    def named(self, names: dict[int, str]) -> None:
        """A link's logon said who bears these incarnations."""
        names = {each: self.owner_name(name, each) for each, name in names.items()}
        if self.definitions and self.names | names != self.names:
            self.names |= names
            self.tell("named", dict(names))

    @property
    def is_proxied(self) -> bool:
        """Whether it takes messages over of those that it cannot reach."""
        return self.world.takes_over(self.instance.disk.member.name)

    def reachable(self) -> frozenset[str]:
        """Names of the instances that its links are connected to."""
        links = self.instance.links.values()
        return frozenset(link.server for link in links if link.machine.is_connected and link.server)

    # -- requests ----------------------------------------------------------------------------
    def _pass_on(self, asked: RoutedRequest) -> None:
        for link in self.instance.links.values():
            link.queue_request(asked)

    def asked(self, asked: RoutedRequest) -> None:
        """A request came over a link."""
        if not self.queues.flood.is_new(asked):
            return
        owner = self.owners.get(asked.queue)
        if owner is not None:
            owner.inbox.send(owner.hear, "requested", asked.name, asked.count, asked.wanted)
        if all(each.owner != self.own_name for each in asked.wanted):
            self.world.probes["queue request passed on by a third instance"] += 1
        self._pass_on(asked)

    # -- a feature, for the folds ------------------------------------------------------------
    def fold(self, batch: CommitBatch) -> None:
        """Folds what was committed, and tells the owners of it."""
        if not self.instance.alive:
            return
        self.queues.fold(batch)
        self.watch.folded(batch.runs)
        for owner in self.owners.values():
            owner.inbox.send(owner.told, batch.last_txid)
        if all(frontend.is_announced for frontend in self.queues.frontends.values()):
            self.instance.disk.announced.add(self.instance.disk.incarnation)

    def failed(self, committed_txid: int) -> None:
        """Nothing staged behind this transaction id comes to the disk."""
        found = self.queues.failed(committed_txid)
        self.clock_steps.failed(committed_txid)
        for name, owner in self.owners.items():
            if found.get(name):
                self.world.probes["draft of a queue failed"] += 1
            owner.inbox.send(owner.hear, "failed", found.get(name, ()), committed_txid)
        if self.queues.announcement(self.world.now_us):
            self._author_soon()

    # -- clients -----------------------------------------------------------------------------
    def subscribed(self, session: Any, header: dict[str, Any]) -> None:
        """A client asks for messages."""
        consumer: Consumer = (session.number, header["sub"])
        each = ConsumerSubscription(
            consumer, session.client_name, header["filter"], header["backlog"]
        )
        frontend = self.queues.find(header["t"].encode(), b"json")
        if frontend is not None:
            frontend.subscribed(each)
            self.tell("subscribed", each)

    def session_left(self, session: int) -> None:
        """A client is gone, or wants no more."""
        self.watch.left(session)
        for frontend in self.queues.frontends.values():
            for consumer in frontend.session_left(session):
                now_us, name = self.world.now_us, frontend.definition.name
                self.world.log(QueueReturned(now_us, self.instance.name, name, session))
                self.tell("left", consumer)

    def cancelled(self, session: int, topic: str, keys: Keys) -> None:
        """A client gives messages back."""
        frontend = self.queues.find(topic.encode(), b"json")
        if frontend is None:
            return
        for consumer, leases in frontend.cancelled(session, keys).items():
            of = self.instance.name, topic, session, tuple(key for key, _ in leases)
            self.world.log(QueueReturned(self.world.now_us, *of))
            self.watch.cancelled(key for key, _ in leases)
            self.world.probes["queue messages given back"] += 1
            self.tell("cancelled", consumer, leases)

    # -- the end -----------------------------------------------------------------------------
    def die(self) -> None:
        """The instance dies, and its owners with it."""
        for owner in self.owners.values():
            owner.alive = False

    @property
    def is_idle(self) -> bool:
        """Whether nothing is under way."""
        idle = all(owner.is_idle for owner in self.owners.values())
        return idle and not self._is_authoring and not self.queues._author

    def log_holds(self, *, is_last: bool) -> None:
        """Tells the history what the queues hold."""
        for owner in self.owners.values():
            machine = owner.machine
            if machine is None:
                continue
            if not is_last:
                self.watch.rests(owner)
            self.world.probes["queue lease ended"] += machine.status()["expired_leases"]
            registers = tuple(
                (*key, generation, _bearer(owner_name))
                for key, (generation, owner_name) in machine.state.registers().items()
            )
            stuck = tuple(each.key for each in machine.state.found() if each.state != AVAILABLE)
            of = self.instance.name, owner.definition.name
            self.world.log(QueueHolds(self.world.now_us, *of, registers, stuck, is_last))

    @property
    def keys(self) -> set[tuple[int, int]]:
        """Messages in all queues."""
        machines = [owner.machine for owner in self.owners.values()]
        return {
            key for machine in machines if machine is not None for key in machine.state.registers()
        }

    @property
    def depth(self) -> int:
        """How many there are."""
        machines = [owner.machine for owner in self.owners.values()]
        return sum(machine.state.depth for machine in machines if machine is not None)


# -- for the history -----------------------------------------------------------------------------
def log_recorded(disk: Disk, run: Run) -> None:
    """Tells the history what a queue's records say that are on a disk."""
    world = disk.world
    plan = world.queues
    if plan is None or run.kind != Kind.RECORDS:
        return
    if plan.definition.barrier and run.topic.decode() == plan.definition.topic:
        for record in iterate_records(run.payload):
            if is_of_sort(record.body, BARRIER_SORT):
                plan.barriers.add((record.publisher, record.sequence))
    if plan.definition.dead_letters and run.topic.decode() == plan.definition.dead_letters:
        for record in iterate_records(run.payload):
            bookmark = json.loads(record.correlation)["bookmark"]
            plan.letters.add(bookmark)
            if not run.path:
                _is_first_letter(disk, record, bookmark)
    if not run.flags & Flag.COMMANDS:
        return
    if run.topic.decode() != plan.definition.name or disk.member.name not in plan.instances:
        return
    now_us, of = world.now_us, (disk.label, disk.incarnation, plan.definition.name)
    for record in iterate_records(run.payload):
        world.history.deletions.add((record.publisher, record.sequence))
        said = msgpack.unpackb(record.body, strict_map_key=False)
        if record.command == Command.TRANSFER:
            moves = _moves(record.body)
            is_claim = not said["tag"] and bool(moves)
            is_claim |= world.takes_over(said["by"], TAKEN_OVER_LATE_US)
            world.probes["queue claim"] += is_claim
            world.log(QueueRecorded(now_us, *of, "transfer", (), moves, is_claim))
        elif record.command == Command.QUEUE_ACKNOWLEDGMENT:
            keys = _expanded(said["acks"])
            _is_said_alike(world, disk.label, record)
            if any(key not in disk.index for key in keys):
                world.probes["queue acknowledgment before its message"] += 1
            if said["how"] == "expire" and plan.definition.dead_letters:
                # The owner removes them.
                plan.expired.update(keys)
                continue
            plan.done.update(keys)
            world.log(QueueRecorded(now_us, *of, said["how"], keys))
        else:
            if said["why"] == "left":
                world.probes["queue removal said again"] += 1
            if said["why"] == "barrier" and said["by"] != disk.member.name:
                continue  # Each instance sends it by itself.
            if said["why"] in UNDONE and plan.definition.dead_letters:
                _has_letters(world, disk.label, _expanded(said["gone"]))
            world.log(QueueRecorded(now_us, *of, said["why"], _expanded(said["gone"])))


def log_committed(instance: Instance, last: Run) -> None:
    """A commit of an instance ends with no letter of its own: the removal is in it, too."""
    world = instance.world
    plan = world.queues
    assert plan is not None
    if last.topic.decode() == plan.definition.dead_letters and not last.path:
        text = f"{world.now_us} {instance.name}: a letter is committed without its removal"
        world.queue_faults.append(("queue dead letters", text))


def _is_first_letter(disk: Disk, record: Record, bookmark: str) -> None:
    """An instance writes one letter of a message, whatever ends its processes."""
    world = disk.world
    assert world.queues is not None
    key = record.publisher, record.sequence
    before = world.queues.written.setdefault((disk.incarnation, bookmark), key)
    if before != key and before in disk.index:
        text = f"{world.now_us} {disk.label}: {bookmark} has a second letter"
        world.queue_faults.append(("queue dead letters", text))


def _has_letters(world: World, where: str, keys: Iterable[tuple[int, int]]) -> None:
    """The letter of a message is in a journal before its removal is."""
    assert world.queues is not None
    for publisher, sequence in keys:
        world.probes["queue dead letter"] += 1
        is_done = (publisher, sequence) in world.queues.done
        if not is_done and f"{publisher}|{sequence}|" not in world.queues.letters:
            text = f"{world.now_us} {where}: {publisher}|{sequence}| has left without its letter"
            world.queue_faults.append(("queue dead letters", text))


def _is_said_alike(world: World, where: str, record: Record) -> None:
    """An acknowledgment says the same in every journal: otherwise instances differ for ever about
    what is left."""
    assert world.queues is not None
    key = record.publisher, record.sequence
    if world.queues.said.setdefault(key, record.body) != record.body:
        text = f"{world.now_us} {where}: acknowledgment {key} says something else elsewhere"
        world.queue_faults.append(("queue split", text))


def _moves(body: bytes) -> tuple[tuple[int, int, int, str], ...]:
    """Publisher, sequence, generation and owner, of all that a transfer says."""
    said = msgpack.unpackb(body, strict_map_key=False)
    return tuple(
        (publisher, sequence, generation, _bearer(owner))
        for publisher, first, last, generation, owner in said["moves"]
        for sequence in range(first, last + 1)
    )


def _bearer(owner: str) -> str:
    """The instance of an owner: a planted mistake may name it otherwise."""
    return owner.partition("@")[0]


def _expanded(said: dict[int, list[int]]) -> tuple[tuple[int, int], ...]:
    return tuple(
        (publisher, sequence)
        for publisher, flat in said.items()
        for first, last in zip(flat[::2], flat[1::2], strict=True)
        for sequence in range(first, last + 1)
    )


def crash_owners(world: World, name: str) -> None:
    """The owners at an instance die; it starts others."""
    instance = world.instances[name]
    if instance.alive:
        world.fault(f"the queue owners of {name} crash")
        for owner in instance.queues.owners.values():
            owner.crash()


def managers(world: World) -> Iterable[QueueHost]:
    """Of all instances that live."""
    return [each.queues for each in world.instances.values() if each.alive]
