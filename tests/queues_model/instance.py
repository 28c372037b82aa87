"""An instance of the tiny world: a journal, a production door and a production machine."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from raylay.services.messages.records import Command
from raylay.services.queues.checkpoint import QueueCheckpoint, RecoveryStart
from raylay.services.queues.decisions import (
    Consumer,
    ConsumerSubscription,
    Decision,
    DeliverLeased,
    DeliverOnce,
    Expiration,
    Key,
    MessageLease,
    QueueRecordDraft,
    TransferRequest,
)
from raylay.services.queues.entry import ABSENT
from raylay.services.queues.frontend import Flood, OwnerHandshake, QueueFrontend, RoutedRequest
from raylay.services.queues.machine import QueueMachine
from raylay.services.queues.message import AVAILABLE, FROZEN, GONE, LEASED, QueuedMessage
from raylay.services.queues.records import (
    Acknowledgment,
    Transfer,
    keys_of,
    pack_transfer,
    read_transfer,
)
from raylay.services.queues.replicated_state import ReplicatedQueueState

from .records import STEP_US, Disk, Entry, Rec, command, keys_of_moves, message

if TYPE_CHECKING:
    from .world import World

BACKLOG = 2
AUTHORS = 10_000
"""Publisher ids of instances' own records begin here."""


class ModelState(ReplicatedQueueState):
    """The production state, which is asked about itself."""

    def may_deliver(self) -> set[Key]:
        """Messages that could be sent to a consumer of this instance."""
        if not self.is_ready:
            return set()
        return {
            message.key
            for known in self.known.values()
            for message in known.values()
            if message.state != FROZEN and message.register.owner == self.name
        }

    def early_keys(self) -> list[tuple[int, int, int]]:
        """What is remembered of messages that have not come: publisher, first, last."""
        early = self.history.early
        return [
            (publisher, first, last)
            for book in (early._removals, early._moves)
            for publisher, first, last, _ in book.pieces()  # type: ignore[attr-defined]
        ]

    def wrong(self) -> str:
        """What of the machine's own invariants does not hold."""
        messages = [each for known in self.known.values() for each in known.values()]
        if len(messages) != self.depth:
            return f"depth is {self.depth}, of {len(messages)} messages"
        arrivals = {each.arrival for each in messages}
        if sum(arrival.live for arrival in arrivals) != len(messages):
            return "arrivals do not count what they have"
        leased = {each for each in messages if each.state == LEASED}
        held = {each for consumer in self.leases.consumers() for each in self.leases.of(consumer)}
        if leased != held:
            return f"{leased} are leased, {held} are held"
        sending = sum(
            drafted.why == "sent" and consumers != []
            for drafted in self.drafts._out.values()
            for _, consumers in drafted.receivers
        )
        active = len(held) + len(self.sent) + sending
        if self.dispatcher.active_count != active:
            return f"{self.dispatcher.active_count} places are taken, by {active}"
        for each in messages:
            if not isinstance(each, QueuedMessage) or each.state == GONE:
                return f"{each} is no message"
            is_here = each.state == AVAILABLE and each.register.owner == self.name
            if (each.standing != ABSENT) != is_here:
                return f"{each} with register {each.register} stands {each.standing}"
            waiting = self.requests._by_owner.get(each.register.owner, ())
            if each.state == AVAILABLE and not is_here and each not in waiting:
                return f"{each} with register {each.register} is not to be asked for"
        return ""


class ModelMachine(QueueMachine):
    """The production machine, which asks others only when the schedule says so."""

    state: ModelState
    asks = False

    def _ask(self) -> None:
        if self.asks:
            super()._ask()


class Rules:
    """How an instance of the world does what the production shell will do. The methods are what
    mistakes are planted in (mistakes.py)."""

    state: type[ModelState] = ModelState
    machine: type[ModelMachine] = ModelMachine
    announces = True

    expires_locally = False
    leases_end = True

    def owner_name(self, name: str, incarnation: int) -> str:
        """By which name an instance owns messages (rule 2)."""
        return name

    def beginning(self, instance: Instance) -> OwnerHandshake:
        """What a restarted owner is told (rule 9)."""
        instance.from_owner.clear()
        staged_txid = len(instance.disk.journal) + len(instance.staged)
        return instance.frontend.owner_came(staged_txid, instance.now_us)

    def snapshot(self, stored: bytes) -> QueueCheckpoint:
        """What it is made again with."""
        return QueueCheckpoint.from_bytes(stored) if stored else QueueCheckpoint()

    def decide(self, instance: Instance, decision: DeliverLeased | DeliverOnce) -> Any:
        """What of a decision holds (rule 10)."""
        return instance.frontend.decide(decision, instance.now_us)

    def claim(self, instance: Instance, rec: Rec, first_given: str) -> None:
        """Stages a message that was sent again, and whose it is (rule 3)."""
        publisher, sequence = rec.ident
        moves = instance.frontend.claims(publisher, [(sequence, sequence)], first_given)
        if moves:
            instance.author_transfer(moves)
        instance.stage(rec)

    def author(self, instance: Instance) -> int:
        """The publisher id of an instance's own records (rule 11)."""
        return AUTHORS + instance.disk.incarnation * 1_000 + instance.lives

    def passes_on(
        self, asked: RoutedRequest, came_from: str, neighbour: Instance
    ) -> RoutedRequest | None:
        """What of a request goes to a neighbour (rule 4)."""
        return asked

    def authored(self, instance: Instance, tag: int) -> None:
        """A draft has its place."""

    def session(self, world: World) -> int:
        """The number of a consumer's session (rule 10)."""
        world.sessions += 1
        return world.sessions


class Instance:
    """See the file's docstring."""

    def __init__(self, world: World, name: str, number: int) -> None:
        self.world = world
        self.name = name
        self.number = number
        self.up = False
        self.disks = 0
        self.lives = 0
        self.serving = True
        self.catch: dict[str, set[Key] | None] = {}
        self.from_owner: list[Any] = []
        self.staged: list[Entry] = []
        self.new_disk()

    def new_disk(self) -> None:
        """An empty one, under a new incarnation."""
        self.disk = Disk(self.number * 100 + self.disks, self.world.expired)
        self.disks += 1
        self.world.bearers[self.disk.incarnation] = self.name

    @property
    def now_us(self) -> int:
        """The time."""
        return self.world.now * STEP_US + 1

    # -- life ----------------------------------------------------------------------------------
    def start(self) -> None:
        """A life begins."""
        world = self.world
        self.up = True
        self.lives += 1
        self.staged, self.idents = [], set[Key]()
        self.met: dict[int, str] = {}
        self.granted: dict[Key, MessageLease] = {}
        self.authored = 0
        self.flood = Flood(self.name, self.disk.incarnation, self.lives)
        self.frontend = QueueFrontend(world.queue, self.owner_name, self.disk.incarnation)
        for run in self.disk.runs:
            if run.topic == self.frontend.topic:
                self.frontend.fold(run)
        announcement = self.frontend.announcement()
        if announcement and world.rules.announces:
            self.author_record(Command.TRANSFER, announcement)
            self.commit()
        self.attach()

    def attach(self) -> None:
        """A queue owner starts."""
        rules = self.world.rules
        self.to_owner: list[tuple[Any, ...]] = []
        begin = rules.beginning(self)
        snapshot = rules.snapshot(self.disk.stored)
        start = RecoveryStart(
            snapshot, begin.fence_txid, self.world.tags(), begin.leases, is_serving=self.serving
        )
        state = rules.state(
            self.world.queue,
            self.owner_name,
            self.disk.incarnation,
            self.disk,
            start,
            types=self.world.types,
        )
        self.machine = rules.machine(state)
        self.read = snapshot.after_txid
        self.folds = 0
        self.machine.state.named(self.met)
        if not rules.announces:
            self.learn()
        for each in begin.consumers:
            self.machine.subscribed(each)

    @property
    def owner_name(self) -> str:
        """By which name it owns messages."""
        return self.world.rules.owner_name(self.name, self.disk.incarnation)

    def learn(self) -> None:
        """Who bears which incarnation, as links tell at logon."""
        name = self.world.rules.owner_name
        bearers = self.world.bearers.items()
        self.machine.state.named({each: name(bearer, each) for each, bearer in bearers})

    def meets(self, other: Instance) -> None:
        """A link's logon says who the other one is."""
        self.met[other.disk.incarnation] = other.owner_name
        self.machine.state.named(self.met)

    def serve(self) -> None:
        """It has what its peers have."""
        self.serving = True
        self.machine.serves()
        self.take(0, asks=False)

    # -- the journal ---------------------------------------------------------------------------
    def stage(self, rec: Rec, path: tuple[int, ...] = ()) -> None:
        """Puts it on its way to the disk."""
        self.staged.append(Entry(rec, path))
        self.idents.add(rec.ident)

    def has(self, ident: Key) -> bool:
        """Whether it is held, or on its way."""
        return ident in self.disk.held or ident in self.idents

    def author_record(self, number: int, body: bytes) -> Rec:
        """Stages a record of the instance's own."""
        author = self.world.rules.author(self)
        if author % 1_000:
            self.authored += 1
            sequence = self.authored
        else:
            there = (*self.disk.held, *self.idents)
            sequence = 1 + sum(ident[0] == author for ident in there)
        rec = command(author, sequence, number, body)
        self.stage(rec)
        return rec

    def author_transfer(self, moves: Any) -> None:
        """Stages a transfer that nobody waits for."""
        name = self.owner_name
        self.author_record(Command.TRANSFER, pack_transfer(Transfer(name, 0, moves)))

    def publish(self, rec: Rec, again: bool, first_given: str) -> None:
        """A client's message, which it may have sent elsewhere before."""
        if self.has(rec.ident):
            return
        world = self.world
        others = (other for other in world.instances.values() if other is not self)
        is_elsewhere = any(
            rec.ident in other.disk.held or (other.up and rec.ident in other.idents)
            for other in others
        )
        if again and is_elsewhere and world.queue.kind == "queue" and not world.queue.at_most_once:
            world.exempt.add(rec.ident)
        if again:
            world.rules.claim(self, rec, first_given)
        else:
            self.stage(rec)

    def commit(self) -> bool:
        """What was staged is on the disk."""
        for entry in self.staged:
            run = self.disk.add(entry, self.now_us)
            if entry.rec.kind != "pub":
                self.frontend.fold(run)
        count = len(self.staged)
        self.staged, self.idents = [], set()
        if count:
            self.disk.commits.append(len(self.disk.journal))
        return count > 0

    # -- the owner -----------------------------------------------------------------------------
    def fold(self) -> bool:
        """The machine reads one record, or several."""
        runs = self.disk.runs[self.read : self.read + self.world.folded_most]
        if not runs:
            return False
        self.look()
        self.machine.fold(runs, self.now_us)
        self.read += len(runs)
        self.folds += 1
        if self.folds % self.world.store_every == 0:
            self.disk.stored = self.machine.state.stored()
        self.take(0, asks=False)
        return True

    def heed(self) -> bool:
        """The machine is told one thing."""
        if not self.to_owner:
            return False
        self.look()
        what, *said = self.to_owner.pop(0)
        self.machine.at(self.now_us)
        getattr(self.machine, what)(*said)
        self.take(0, asks=False)
        return True

    def look(self) -> None:
        """What the machine is told whenever that changes."""
        on = self.disk.proxied
        reachable = self.world.reachable(self.name) if on else frozenset[str]()
        self.machine.proxied(on, reachable)
        if not self.world.rules.announces:
            self.learn()

    def said(self) -> bool:
        """What the machine has decided is on its way to the instance."""
        return self.decided(self.machine.said())

    def decided(self, said: list[Decision]) -> bool:
        """Decisions are on their way to the instance. Claims of what others own are named
        exceptions to law 6 (rule 13)."""
        own = self.owner_name
        for decision in said:
            if not isinstance(decision, QueueRecordDraft) or decision.command != Command.TRANSFER:
                continue
            if self.disk.proxied:
                owners = self.machine.state.registers()
                keys = keys_of_moves(read_transfer(decision.body).moves)
                ours = {key for key in keys & owners.keys() if owners[key].owner == own}
                self.world.exempt |= keys - ours
        self.from_owner += said
        return bool(said)

    def take(self, messages_max: int, asks: bool) -> bool:
        """The machine decides."""
        self.look()
        self.machine.asks = asks
        said = self.machine.take(self.now_us, messages_max)
        self.machine.asks = False
        return self.decided(said)

    def tick(self) -> bool:
        """The machine looks at the clock."""
        self.look()
        before = self.machine.status()["backlog"]
        self.machine.tick(self.now_us)
        return self.said() or self.machine.status()["backlog"] != before

    def perform(self) -> bool:
        """The instance does what its owner has decided."""
        if not self.from_owner:
            return False
        decision = self.from_owner.pop(0)
        if isinstance(decision, DeliverLeased | DeliverOnce):
            self.deliver(decision)
        elif isinstance(decision, QueueRecordDraft):
            rec = self.author_record(decision.command, decision.body)
            self.world.rules.authored(self, decision.tag)
            if rec.why == "time_limit":
                self.world.expired.update(rec.keys)
        elif isinstance(decision, TransferRequest):
            self.pass_on(self.flood.made(self.world.queue.stored_as, decision), "")
        else:
            assert isinstance(decision, Expiration)
        return True

    def deliver(self, decision: DeliverLeased | DeliverOnce) -> None:
        """Sends what of a decision still holds."""
        world, consumer = self.world, decision.consumer
        send, bounced = world.rules.decide(self, decision)
        if bounced:
            self.to_owner.append(("bounced", consumer, bounced))
        for leased in send:
            if isinstance(decision, DeliverLeased):
                world.check_delivery(self, leased.key, consumer)
                end_us = leased.until_us
                if not world.rules.leases_end:
                    end_us = self.now_us + world.queue.lease_us
                self.granted[leased.key] = MessageLease(leased.key, consumer, leased.number, end_us)
            world.delivered(self, leased.key, consumer)

    def pass_on(self, asked: RoutedRequest, came_from: str) -> None:
        """A request goes to all neighbours but the one that it came from."""
        for (a, b), link in self.world.links.items():
            if a == self.name and link.on and b != came_from:
                part = self.world.rules.passes_on(asked, came_from, self.world.instances[b])
                if part is not None:
                    link.wire.append(part)

    def asked(self, asked: RoutedRequest, came_from: str) -> None:
        """A request comes from a neighbour."""
        if not self.flood.is_new(asked):
            return
        name = self.world.instances[asked.name].owner_name
        self.to_owner.append(("requested", name, asked.count, asked.wanted))
        self.pass_on(asked, came_from)

    # -- consumers -----------------------------------------------------------------------------
    def join(self, each: ConsumerSubscription) -> None:
        """A consumer subscribes."""
        self.frontend.subscribed(each)
        self.to_owner.append(("subscribed", each))

    def hang_up(self, consumer: Consumer) -> None:
        """Its session ends."""
        self.frontend.left(consumer)
        if self.up:
            self.to_owner.append(("left", consumer))

    def take_ack(self, rec: Rec, said: Acknowledgment) -> None:
        """A client's acknowledgment, judged where it comes in (rule 6)."""
        if not self.has(rec.ident) and self.frontend.judged(said, rec.ident[0], self.now_us).keys:
            self.stage(rec)

    def cancel(self, consumer: Consumer, key: Key) -> None:
        """A consumer gives a message back."""
        found = self.frontend.cancelled(consumer[0], keys_of([key]))
        if found:
            self.granted.pop(key, None)
        for of, leases in found.items():
            self.to_owner.append(("cancelled", of, leases))


def sent(world: World, publisher: int, sequence: int, color: int, ttl: int) -> Rec:
    """A publisher's message."""
    rec = message(publisher, sequence, color, ttl)
    if ttl:
        world.ttl[rec.ident] = ttl
    return rec
