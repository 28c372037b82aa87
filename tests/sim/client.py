"""A simulated client: the shell around the production client machine, and its publish store."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import islice
from typing import TYPE_CHECKING, Any

from raylay.services.client.events import (
    ClientStopped,
    Connect,
    Connected,
    ConnectionEnded,
    ConnectionOpened,
    DropStream,
    Fail,
    FrameReceived,
    MessagesMissing,
    Notify,
    PublishFailed,
    ResolveServers,
    SendFrame,
    SendPublishes,
    ServersResolved,
    StartRequested,
    SubscriptionAccepted,
    SubscriptionWanted,
    TimePassed,
    WaitingForSafeInstance,
)
from raylay.services.client.failover import Server
from raylay.services.client.machine import ClientMachine, ClientOptions, outbox_for
from raylay.services.client.publishing.outbox import GATHERING_S_MAX, PublishFrame, PublishOutbox
from raylay.services.client.subscriptions.subscription_state import SubscriptionState
from raylay.services.messages.ranges import Range
from raylay.services.messages.records import Command, decode_record
from raylay.services.verification.history import (
    ClientCrashed,
    MessagesDelivered,
    MessagesPublished,
    MessagesSent,
    MissingHeard,
    PublishesDropped,
    SafetyHeard,
    ServerUsed,
    StoreState,
    SubscriptionResumed,
)
from sim import instance as sim_instance
from sim import queries, sow
from sim.network import Connection

if TYPE_CHECKING:
    from sim.world import World


@dataclass(frozen=True, slots=True)
class Part:
    """A publisher that is two processes, each of which publishes a part of its sequences, at
    another instance: in turns of so many, it is this one's turn first or second."""

    of: str
    turn: int
    second: bool

    def has(self, sequence: int) -> bool:
        """Whether it is this process that publishes the sequence."""
        return (sequence // self.turn % 2 == 1) == self.second


class PartOutbox(PublishOutbox):
    """Publishes with gaps in its sequences."""

    part: Part | None = None

    def publish(self, *arguments: Any, **named: Any) -> int:
        """Numbers the message with the next sequence of its part."""
        while self.part is not None and not self.part.has(self.next_sequence):
            self.next_sequence += 1
        return super().publish(*arguments, **named)

    def next_batch(self, bytes_max: int) -> PublishFrame | None:
        """As ever; what was sent ends where its records do."""
        batch = super().next_batch(bytes_max)
        if batch is not None:
            self._sent_upto = decode_record(batch.records[-1], verify=False).sequence
        return batch


class SimStore:
    """A publish store that tells the history what left it. Only what was flushed outlives a crash
    of its client: what it took in since, what left it and the words that it was given."""

    def __init__(self, forgotten: Callable[[list[int], bool], None]) -> None:
        self._records: dict[int, bytes] = {}
        self._forgotten = forgotten
        self.highest = 0
        self.words = b""
        self.full = False
        self._on_disk: tuple[dict[int, bytes], int, bytes] = ({}, 0, b"")

    def put(self, sequence: int, record: bytes) -> None:
        """Adds the record of the next sequence."""
        assert sequence > self.highest
        self._records[sequence] = record
        self.highest = sequence

    def flush(self) -> None:
        """Makes durable what it holds."""
        self._on_disk = (dict(self._records), self.highest, self.words)

    @property
    def kept_words(self) -> bytes:
        """The words that are on disk."""
        return self._on_disk[2]

    def crash(self) -> tuple[int, ...]:
        """Goes back to what is on disk. Returns what was put and is gone."""
        before = tuple(self._records)
        records, self.highest, self.words = self._on_disk
        self._records = dict(records)
        return tuple(sequence for sequence in before if sequence > self.highest)

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
        self._forget(gone, acked=True)

    def drop(self, ranges: list[Range]) -> None:
        """Forgets the inclusive ranges."""
        self._forget([s for a, b in ranges for s in range(a, b + 1) if s in self._records])

    def _forget(self, sequences: list[int], *, acked: bool = False) -> None:
        for sequence in sequences:
            del self._records[sequence]
        if sequences:
            self._forgotten(sequences, acked)

    def replay(self, first: int = 0) -> Iterator[tuple[int, bytes]]:
        """(sequence, record) in ascending order, from a sequence on."""
        at = max(1, first, self.lowest)
        while at <= self.highest and self._records:
            record = self._records.get(at)
            if record is not None:
                yield at, record
            at += 1

    def take_over(self, other: SimStore) -> None:
        """Takes what another one holds."""
        self._records = dict(sorted((self._records | other._records).items()))
        self.highest = max(self.highest, other.highest)
        other._records.clear()

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
        self,
        world: World,
        name: str,
        servers: list[str],
        group: str,
        *,
        subscribe: str = "",
        fully_durable: bool = False,
        client_name: str = "",
        part: Part | None = None,
        filter_: str = "",
        owns_store: bool = False,
    ) -> None:
        """
        Args:
            owns_store: nobody has its publish store when it has ended: another life of its name
                knows nothing of what it numbered.
        """
        self.world = world
        self.name = name
        self.store = world.machines.store(self._forgotten)
        self._servers = servers
        self._options = ClientOptions(
            client_name or (name if part is None else part.of),
            tuple(Server(server) for server in servers),
            group=group,
            heartbeat_s=0,
            connect_timeout_s=0.1,
            pause_min_ms=10,
            pause_max_ms=200,
            resolves=world.resolves,
            seed=world.rng.getrandbits(32),
            clock_us=world.now_us if owns_store else 0,
            owns_store=owns_store,
        )
        self._group = group
        self.machine = self._new_machine(world.machines.outbox if part is None else PartOutbox)
        if part is not None:
            assert isinstance(self.machine.outbox, PartOutbox)
            self.machine.outbox.part = part
        self.alive = True
        self.lives = 1
        self.connection: Connection | None = None
        self.subscription: SubscriptionState | None = None
        self._away_until_us = 0
        self._heir: SimClient | None = None
        self._is_over = False
        """Whether it has ended, and its next life is to come or has come."""
        self.failed = ""
        self._waking: float | None = None
        self._last_instance = ""
        self._fresh = True
        """Whether this life of it was connected to nobody yet."""
        self._pumping = self._gathering = False
        self._backlog: list[str] = []
        self.commands: set[str] = set()
        """Publishes without a number that wait for their acks on this connection."""
        self._commands_given = 0
        self._previous: dict[str, int] = {}
        world.clients[name] = self
        if subscribe:
            options: dict[str, Any] = {"fully_durable": True} if fully_durable else {}
            if filter_:
                options["filter"] = filter_
                world.sees_contents = True
            self.subscription = SubscriptionState(f"{name}-sub", subscribe, "", "0", options)
            self.step(SubscriptionWanted(self.subscription))
        self.step(StartRequested())

    def quiet(self) -> bool:
        """Whether everything published is acknowledged, and everything subscribed to is sent."""
        if self.failed:
            return True
        if self._is_over:
            return self._heir is not None
        if not self.alive or self.commands:
            return False
        if self.store.messages or self._backlog or not self.machine.instance:
            return False
        if self.subscription is None:
            return True
        instance = self.world.instances[self.machine.instance]
        cursors = [
            cursor
            for session in instance.sessions.values()
            if session.client == self.name
            for cursor in session.subscriptions.values()
        ]
        # None: the instance has still to read the subscription, or the client that it is cut off.
        return bool(cursors) and all(
            cursor.replay.cursor >= instance.machine.committed_txid for cursor in cursors
        )

    @property
    def _now_s(self) -> float:
        return self.world.now_us / 1e6

    # -- its process -------------------------------------------------------------------------
    def crash(self, down_us: int) -> None:
        """Dies at once; it starts again with its store after a while. Of a publisher only."""
        assert self.subscription is None, "its bookmark store is not simulated"
        assert not isinstance(self.machine.outbox, PartOutbox)
        world, connection = self.world, self.connection
        if not self.alive:
            return
        world.fault(f"crash client {self.name}")
        self.alive = False
        self.commands.clear()
        self._waking = self.connection = None
        self._pumping = self._gathering = False
        if connection is not None:
            connection.receive[0] = connection.closed[0] = lambda _: None
            if world.rng.random() < 0.5:
                connection.close(0, "client died")
            else:
                # With its host: the instance notices when it does.
                connection.sever()
        lost = self.store.crash()
        world.log(ClientCrashed(world.now_us, self.name, self.machine.outbox.publisher, lost))
        if lost:
            world.probes["client crashed before its store was flushed"] += 1
        world.after(down_us, self._restart)

    def _new_machine(self, kind: type[PublishOutbox]) -> ClientMachine:
        outbox = outbox_for(self._options, self.store, kind)
        return self.world.machines.client(self._options, outbox)

    def _restart(self) -> None:
        """Another process with the same store."""
        world = self.world
        self.alive = self._fresh = True
        self.lives += 1
        self.machine = self._new_machine(world.machines.outbox)
        world.probes["client restarted with its store"] += 1
        self.step(StartRequested())

    def next_life(self, down_us: int, *, in_good_order: bool = True) -> None:
        """It ends, if all that it published is acknowledged. Another process of its name, without
        its store, begins after a while, perhaps at another server."""
        if self._heir is not None:
            self._heir.next_life(down_us, in_good_order=in_good_order)
            return
        if self.failed or self._is_over or not self.quiet():
            return
        assert self._options.owns_store and self.subscription is None
        if in_good_order:
            self.step(ClientStopped())
        elif self.connection is not None:
            self.connection.close(0, "client died")
        self.alive, self.connection = False, None
        self._is_over = True
        self.world.after(down_us, self._begin_next_life)

    def _begin_next_life(self) -> None:
        world, servers = self.world, self._servers
        first = world.rng.randrange(len(servers)) if world.rng.random() < 0.3 else 0
        self._heir = heir = SimClient(
            world,
            f"{self.name}'",
            [*servers[first:], *servers[:first]],
            self._group,
            client_name=self._options.client_name,
            owns_store=True,
        )
        heir._backlog, self._backlog = self._backlog, []

    def step(self, event: Any) -> None:
        """Feeds the machine and performs what it says."""
        if not self.alive:
            return
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
        elif isinstance(effect, DropStream):
            if self.connection is not None:
                self.connection.close(0, "client left")
                self.connection = None
                self.commands.clear()
        elif isinstance(effect, SendFrame):
            if self.connection is not None:
                self.connection.send(0, (effect.header, effect.body))
        elif isinstance(effect, ResolveServers):
            world = self.world
            world.after(world.drawn(world.timing.local_us), self._resolve)
        elif isinstance(effect, SendPublishes):
            self._pump_soon()
        elif isinstance(effect, Notify):
            self._told(effect.event)
        elif isinstance(effect, SubscriptionAccepted):
            self.world.log(SubscriptionResumed(self.world.now_us, self.name, self.machine.instance))
        elif isinstance(effect, Fail):
            self.failed = str(effect.error)
            self.world.fault(f"client {self.name} failed: {effect.error}")

    def _told(self, event: Any) -> None:
        world = self.world
        if isinstance(event, Connected):
            if event.instance != self._last_instance or self._fresh:
                self._fresh = False
                world.log(ServerUsed(world.now_us, self.name, event.instance, self._last_instance))
                if self._last_instance not in ("", event.instance):
                    world.probes["client failed over"] += 1
                    if event.resent_messages:
                        world.probes["resend to the survivor"] += 1
                self._last_instance = event.instance
            if self.machine.outbox.took_over:
                world.probes["client went on with what an earlier life left"] += 1
            backlog, self._backlog = self._backlog, []
            if backlog:
                world.after(0, self.publish, backlog)
        elif isinstance(event, WaitingForSafeInstance):
            world.probes["client waited for a safe instance"] += 1
            if self._fresh and self.lives > 1:
                world.probes["restarted client waited for a safe instance"] += 1
        elif isinstance(event, PublishFailed):
            world.probes["publish failed"] += 1
        elif isinstance(event, MessagesMissing):
            world.probes["told what retention removed"] += 1
            publishers = tuple(event.publishers.items())
            told = (self.name, event.instance, event.messages, publishers)
            world.log(MissingHeard(world.now_us, *told))

    def _resolve(self) -> None:
        """As the fabric's record says it."""
        servers = [Server(self.world.disks[name].host, name) for name in self._servers]
        self.step(ServersResolved(servers))

    def _connect(self, effect: Connect) -> None:
        world = self.world
        connection = self.connection = Connection(world, f"client {self.name}", effect.address)
        number = effect.connection
        connection.receive[0] = lambda frame: self._frame(connection, number, frame)
        connection.closed[0] = lambda why: self._ended(connection, number, why)
        world.after(world.drawn(world.timing.network_us), self._reach, connection, number)

    def _reach(self, connection: Connection, number: int) -> None:
        target = self.world.hosts[connection.hosts[1]]
        if not connection.open[0] or connection is not self.connection:
            return
        if self.world.now_us < self._away_until_us:
            connection._end(0, "unreachable")
            return
        if not isinstance(target, sim_instance.Instance) or not target.alive:
            connection._end(0, "refused")
            return
        connection.receive[1] = lambda frame: target.client_frame(connection, *frame)
        connection.closed[1] = lambda why: target.client_gone(connection.number)
        self.step(ConnectionOpened(number))

    def _ended(self, connection: Connection, number: int, why: str) -> None:
        if self.connection is connection:
            self.connection = None
            self.commands.clear()
        self.step(ConnectionEnded(number, why))

    def _frame(
        self, connection: Connection, number: int, frame: tuple[dict[str, Any], bytes]
    ) -> None:
        header, body = frame
        if header.get("cid") in self.commands:
            if header["a"] == "persisted":
                self.commands.discard(header["cid"])
        elif header["c"] == "p":
            if number == self.machine.connection:
                self._delivered(self.machine.arrived(header, body))
            return
        speaks = "peers" in header and connection is self.connection
        was_at = self.machine.instance
        if speaks and was_at:
            self._log_safety(was_at, header)
        self.step(FrameReceived(number, header, body))
        if speaks and not was_at and self.machine.instance == header["instance"]:
            # A logon; of one that it does not use, the words bind it to nothing.
            self._log_safety(self.machine.instance, header)

    def _log_safety(self, speaker: str, header: dict[str, Any]) -> None:
        safe = tuple(peer["name"] for peer in header["peers"] if peer["safe"])
        self.world.log(SafetyHeard(self.world.now_us, self.name, speaker, safe))

    def _delivered(self, batch: Any) -> None:
        if batch is None:
            return
        for publisher, first, last in batch.ranges:
            self.world.log(
                MessagesDelivered(
                    self.world.now_us,
                    self.name,
                    self.machine.instance,
                    publisher,
                    tuple(range(first, last + 1)),
                )
            )

    def _forgotten(self, sequences: list[int], acked: bool) -> None:
        world = self.world
        world.log(
            PublishesDropped(
                world.now_us, self.name, self.machine.outbox.publisher, tuple(sequences)
            )
        )
        # What was refused left the store as well.
        if acked:
            queries.behind_ack(
                world, self.machine.instance, self.machine.outbox.publisher, sequences
            )

    def move(self) -> None:
        """The network between the client and its instance breaks; the instance lives on."""
        if self.connection is not None:
            self.world.fault(f"client {self.name} is cut off from {self.machine.instance}")
            self.connection.sever()

    def go_away(self, away_us: int) -> None:
        """Reaches nobody for so long."""
        self._away_until_us = self.world.now_us + away_us
        self.move()

    def take_over(self, other: SimClient) -> None:
        """Publishes from now on all of what it was a part of, also what the other one had sent and
        has heard no ack for: it connects again, and sends that with its own."""
        assert isinstance(self.machine.outbox, PartOutbox) and isinstance(
            other.machine.outbox, PartOutbox
        )
        self.world.fault(f"{self.name} takes over from {other.name}")
        other.step(ClientStopped())
        other._heir = self
        self._backlog += other._backlog
        other._backlog = []
        self.store.take_over(other.store)
        self.machine.outbox.part = None
        # Until it has connected again it has no number: one may be among what it took over.
        self.machine.outbox.next_sequence = max(
            self.machine.outbox.next_sequence, self.store.highest + 1
        )
        self.machine.outbox._tail.clear()
        self.machine.outbox._tail_bytes = 0
        self.machine.outbox._tail_first = self.machine.outbox.next_sequence
        connection = self.connection
        if connection is not None:
            # It knows of it at once: on this connection it would not send what it took over.
            connection.sever()
            connection._end(0, "takes over")

    def publish(self, topics: list[str]) -> None:
        """Publishes one message on each of the topics."""
        if self._heir is not None:
            self._heir.publish(topics)
            return
        machine, world = self.machine, self.world
        if self.failed:
            return
        if not self.alive or not machine.outbox.next_sequence:
            self._backlog += topics
            return
        for topic in topics:
            body = b"%d" % machine.outbox.next_sequence
            if world.contents:
                body += b" of " + self.name.encode()
            command: int = Command.PUBLISH
            if world.keyed and topic == sow.ARRIVAL:
                body = sow.fielded(self._following())
            if world.deletes:
                changed = sow.change(topic, self._following(), keyed=world.keyed)
                command, body = changed or (command, body)
            sequence = machine.outbox.publish(topic, body, "json", world.now_us, command=command)
            if command == Command.DELETE:
                world.history.deletions.add((machine.outbox.publisher, sequence))
            of = (machine.outbox.publisher, sequence, topic)
            world.log(MessagesPublished(world.now_us, self.name, *of, *self._digest(sequence)))
        self._pump_soon()

    def _following(self) -> int:
        """The sequence of the next message."""
        machine = self.machine
        sequence = machine.outbox.next_sequence
        outbox = machine.outbox
        part = outbox.part if isinstance(outbox, PartOutbox) else None
        while part is not None and not part.has(sequence):
            sequence += 1
        return sequence

    def _pump_soon(self) -> None:
        """In the next turn of its loop."""
        if not self._pumping:
            self._pumping = True
            world = self.world
            world.after(world.drawn(world.timing.local_us), self._pump, self.lives)

    def _pump(self, life: int) -> None:
        """On disk before it is sent."""
        if self.alive and life == self.lives:
            self._pumping = False
            changed = self.store.words != self.store.kept_words
            self.store.flush()
            if changed:
                self.world.log(StoreState(self.world.now_us, self.name))
            self._send()

    def _digest(self, sequence: int) -> tuple[int, ...]:
        if not self.world.contents:
            return ()
        ((_, record),) = islice(self.store.replay(sequence), 1)
        return (decode_record(record, verify=False).digest,)

    def publish_unnumbered(self, topic: str) -> None:
        """Publishes a message that the instance is to number, if there is one to take it."""
        connection, machine = self.connection, self.machine
        if self.failed or connection is None or not machine.instance:
            return
        self._commands_given += 1
        command_id = f"u{self._commands_given}"
        self.commands.add(command_id)
        header = {"c": "publish", "cid": command_id, "t": topic}
        body = f"{command_id} of {self.name}".encode()
        if self.world.keyed and topic == sow.ARRIVAL:
            body = sow.fielded(self._commands_given)
        connection.send(0, (header, body))

    def _send(self) -> None:
        while (batch := self.machine.outbox.next_batch(600)) is not None:
            if self.connection is None:
                return
            payload = b"".join(batch.records)
            sequences = [decode_record(r, verify=False).sequence for r in batch.records]
            self.world.log(
                MessagesSent(
                    self.world.now_us,
                    self.name,
                    self.machine.outbox.publisher,
                    self.connection.number,
                    tuple(sequences),
                )
            )
            header = {"c": "pb", "n": len(batch.records), "sequences": sequences}
            if batch.resent is not None:
                header["r"] = batch.resent
            self.connection.send(0, (header, payload))
        if self.machine.outbox.gathering and not self._gathering:
            self._gathering = True
            self.world.probes["client gathered publishes"] += 1
            self.world.after(int(GATHERING_S_MAX * 1e6), self._gathered, self.lives)

    def _gathered(self, life: int) -> None:
        """No answer may have come for as long as something may be gathered."""
        if life == self.lives:
            self._gathering = False
            if self.alive and self.machine.outbox.gathering:
                self.machine.outbox.hurry()
                self._pump_soon()
