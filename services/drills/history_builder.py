"""The History of real processes, which the simulator's checkers judge.

Where each operation comes from:

    Started, ModeSet, Linked   the log files of the instances (each line is written before what it
                               tells of takes effect outside)
    Journaled, Noted           the journals, read at the end, and before a disk is thrown away
    Published, Acked, Heard, ToldSafety, Used, Failed, Offered, Delivered    the clients
    Crashed                    the driver, where a disk goes with it

The processes share one clock, but nobody sees the moment at which something takes effect in
another one. So each time errs to the side that accuses nobody: a record is written down when it was
received (it was on disk later), an acknowledgment and a delivery when the client had it (it was
given earlier).

What the checkers make of it (services/verification/checkers.py): all laws are judged but one.
`removal` finds nothing to judge: no journal is asked to remove segments, because the journals are
the record.
`store` sees a publish store through what its client was told, so it cannot catch a store that
forgets in silence; `unacked` at the end can. After a downgrade or a restart what an ack could still
rely on is excused more widely than in the simulator, which knows each instance's pending messages.
"""

from __future__ import annotations

import json
import random
import re
import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, NamedTuple

from raylay.services.client.events import (
    ClientEvent,
    Connected,
    PeerBecameSafe,
    PeerBecameUnsafe,
    PublishFailed,
)
from raylay.services.client.machine import ClientMachine
from raylay.services.client.messages import MessageBatch, ranges_of
from raylay.services.messages.ranges import PublisherRanges
from raylay.services.messages.records import Flag, Kind, Run
from raylay.services.replication.instance import decode_note
from raylay.services.replication.link.routing import DestinationRoute
from raylay.services.verification.history import (
    AckGiven,
    FinalLog,
    HistoryMember,
    InstanceCrashed,
    InstanceStarted,
    LinkConnected,
    LinkModeSet,
    MessagesDelivered,
    MessagesOffered,
    MessagesPublished,
    NemesisFault,
    Operation,
    PublishesDropped,
    PublishRefused,
    RunHistory,
    RunJournaled,
    SafetySent,
    ServerUsed,
    Topology,
    WaiterNoted,
)

_EVENTS = frozenset(("started", "link_connected", "downgraded", "upgraded"))
ALARMS = frozenset(("fatal", "conflict", "unavailable"))
"""Events of an instance that never happen when all is well."""
CLOCK_SLACK_US = 2_000_000
"""Most time between the moment at which an instance's clock is set and the moments at which the
instance and the drill record that."""
SAME_US = 2_000
"""Most time between an event's two records, in the instance's memory and in its log."""
TXID_MAX = (1 << 63) - 1
_STAMP = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{6}Z")


def now_us() -> int:
    """Returns the time in microseconds since 1970, as instances count it."""
    return time.time_ns() // 1000


class ClientNotice(NamedTuple):
    """One notice that a client received. Its fields are plain values, because notices also come
    from other processes."""

    kind: str
    """`published`, `acked`, `failed`, `safe` or `used`."""
    time_us: int
    client: str
    publisher: int
    instance: str
    session: int
    first: int = 0
    last: int = 0
    names: tuple[str, ...] = ()


class ClientRecorder:
    """Listens to one client, and passes on each notice that the client receives. Owner: the
    client's event loop.

    recorder = ClientRecorder(emit) client = Client(…, on_event=recorder.event,
    on_persisted=recorder.persisted) recorder.machine = client.machine
    """

    def __init__(self, emit: Callable[[ClientNotice], None]) -> None:
        self.machine: ClientMachine | None = None
        self._emit = emit
        # Connections of two clients are two sessions, of whichever process and life.
        self._life = random.getrandbits(40) << 20
        self._upto = 0
        self._instance = ""
        self._used = ""
        self._safe: defaultdict[str, dict[str, bool]] = defaultdict(dict)

    def _say(
        self,
        kind: str,
        first: int = 0,
        last: int = 0,
        names: tuple[str, ...] = (),
        time_us: int = 0,
    ) -> None:
        machine = self.machine
        assert machine is not None
        self._emit(
            ClientNotice(
                kind,
                time_us or now_us(),
                machine.options.client_name,
                machine.outbox.publisher,
                machine.instance or self._instance,
                self._life + machine.connection,
                first,
                last,
                names,
            )
        )

    def event(self, event: ClientEvent) -> None:
        """`on_event` of the client."""
        if isinstance(event, PeerBecameSafe | PeerBecameUnsafe):
            self._safe[event.by][event.instance] = isinstance(event, PeerBecameSafe)
            if event.by == self._instance:
                self._say_safe()
        elif isinstance(event, Connected):
            machine = self.machine
            assert machine is not None
            self._instance = event.instance
            if not self._upto:
                # What is settled at the first logon was not published by this client.
                self._upto = machine.outbox.settled_upto
            if self._used != event.instance:
                self._say("used", names=(self._used,))
                self._used = event.instance
            self._say_safe()
        elif isinstance(event, PublishFailed):
            self._say("failed", event.sequence, event.sequence, (event.error.reason,))

    def _say_safe(self) -> None:
        words = self._safe[self._instance]
        self._say("safe", names=tuple(sorted(name for name, safe in words.items() if safe)))

    def published(self, first: int, last: int, began_us: int) -> None:
        """Notes that the program published first..last from `began_us` on."""
        self._say("published", first, last, time_us=began_us)

    def persisted(self, upto: int) -> None:
        """`on_persisted` of the client."""
        if upto > self._upto:
            self._say("acked", self._upto + 1, upto)
            self._upto = upto


@dataclass(slots=True)
class SubscriberRecorder:
    """The messages that one subscriber received, in its order."""

    name: str
    topic: str
    fully_durable: bool
    stretches: list[tuple[int, str, int, int, int]] = field(default_factory=list)
    """(time in microseconds, instance, publisher, first, last)."""
    instance: str = ""
    """The instance to which the subscriber was connected in the end."""

    def came(self, batch: MessageBatch, instance: str) -> None:
        """Notes a batch that comes in from this instance: the consumer may take it when the client
        has moved on."""
        for publisher, first, last in ranges_of(batch.payload, batch.count):
            self.stretches.append((now_us(), instance, publisher, first, last))


@dataclass(slots=True)
class LostDisk:
    """A disk that was taken away, and the content of its journal."""

    time_us: int
    instance: str
    runs: list[Run]
    upto_txid: int = TXID_MAX
    """The last transaction that the disk had committed when all its peers had caught up. Messages
    up to there may have been acknowledged because of this disk."""


class ClockOffset(NamedTuple):
    """A period in which an instance's clock was off by `offset_us`, which shows in the times of its
    journal."""

    instance: str
    since_us: int
    until_us: int
    offset_us: int

    def true_us(self, time_us: int) -> int:
        """Returns the true time of a moment that the instance reported; the earlier one where two
        are possible."""
        without_us = time_us - self.offset_us
        if self.since_us - CLOCK_SLACK_US <= without_us <= self.until_us + CLOCK_SLACK_US:
            return min(time_us, without_us) if self.offset_us > 0 else without_us
        return time_us


@dataclass(slots=True)
class HistoryBuilder:
    """The records of a run of real processes, from which its history is built."""

    members: Mapping[str, HistoryMember]
    """Members, with instance names for addresses."""
    logs: Path | None
    """The directory of the instances' log files; None: only `missed` is known."""
    topic: str
    """Topic of the publishers."""
    topics: Mapping[str, str] = field(default_factory=dict)
    """The topic of a client that does not publish on `topic`, by client name."""
    uniform: bool = True
    """Whether no message may be journaled late: see `Topology`."""
    since_us: int = 0
    """Time before which the entries of logs are left out."""
    notices: list[ClientNotice] = field(default_factory=list)
    subscribers: list[SubscriberRecorder] = field(default_factory=list)
    lost: list[LostDisk] = field(default_factory=list)
    faults: list[tuple[int, str]] = field(default_factory=list)
    """(time in microseconds, description) of each fault."""
    clocks: list[ClockOffset] = field(default_factory=list)
    missed: list[dict[str, Any]] = field(default_factory=list)
    """Events that instances reported in answers, for times at which they could not write their
    logs. An event that is in the log as well does no harm."""

    def history(
        self,
        journals: Mapping[str, list[Run]],
        statuses: Mapping[str, Mapping[str, Any]],
        unacked: Mapping[str, int],
    ) -> RunHistory:
        """Builds the history of the whole run.

        Args:
            journals: the content of each instance's journal in the end, headers and notes, in
                order.
            statuses: the last status of each instance.
            unacked: the number of messages left in each publish store, by client.
        """
        history = RunHistory(Topology("recorded", dict(self.members), uniform=self.uniform))
        operations: list[Operation] = []
        lives = self._lives(operations)
        lost_of = {name: [disk for disk in self.lost if disk.instance == name] for name in lives}
        for name, started in lives.items():
            # Each disk in its turn: an incarnation ends with its disk.
            disks = [each.runs for each in lost_of[name]] + [journals[name]]
            incarnations = list(dict.fromkeys(incarnation for _, incarnation in started))
            for number, runs in enumerate(disks):
                incarnation = incarnations[number] if number < len(incarnations) else 0
                clocks = [clock for clock in self.clocks if clock.instance == name]
                operations += journaled(name, incarnation, runs, clocks)
                if number < len(lost_of[name]):
                    gone = lost_of[name][number]
                    operations.append(InstanceCrashed(gone.time_us, name, incarnation, True))
        operations += self._of_clients()
        operations += [NemesisFault(time_us, what) for time_us, what in self.faults]
        # Stable, so that what one place did in one microsecond keeps its order.
        operations.sort(key=lambda operation: (operation[0], _RANKS.get(type(operation), 1)))
        history.operations = operations
        for name, status in statuses.items():
            keys = frozenset(
                (run.publisher, sequence)
                for run in journals[name]
                for first, last in run.ranges()
                for sequence in range(first, last + 1)
            )
            links = status.get("destinations", {})
            last = lives[name][-1][1] if lives[name] else 0
            history.final[name] = FinalLog(
                # One that is silent, or starts, says neither this nor that.
                int(status["incarnation"], 16) if "incarnation" in status else last,
                keys,
                keys,
                {
                    destination: to["peer"] if to["connected"] else ""
                    for destination, to in links.items()
                },
                sum(to["unacked"] for to in links.values()),
                status.get("pending", 0),
            )
        history.unacked = dict(unacked)
        history.subscribed = {
            subscriber.name: (subscriber.instance, subscriber.topic)
            for subscriber in self.subscribers
        }
        return history

    def _lives(self, operations: list[Operation]) -> dict[str, list[tuple[int, int]]]:
        """Returns (time, incarnation) of each start of each instance, and appends the operations
        that the logs show."""
        lives: dict[str, list[tuple[int, int]]] = {name: [] for name in self.members}
        told_of = {name: self._once(name) for name in self.members}
        name_of = {
            int(told["incarnation"], 16): name
            for name, found in told_of.items()
            for _, event, told in found
            if event == "started"
        }
        for name, member in self.members.items():
            sync = [each.name for each in member.destinations if each.sync]
            for time_us, event, told in told_of[name]:
                if event == "started":
                    incarnation = int(told["incarnation"], 16)
                    operations.append(InstanceStarted(time_us, name, incarnation, True))
                    if lives[name]:
                        # A restart brings every link back to its configured type.
                        operations += [LinkModeSet(time_us, name, each, True) for each in sync]
                    lives[name].append((time_us, incarnation))
                elif event == "link_connected":
                    destination = told["destination"]
                    first = next(
                        each.addresses[0]
                        for each in member.destinations
                        if each.name == destination
                    )
                    server = name_of.get(int(told.get("incarnation") or "0", 16), first)
                    operations.append(LinkConnected(time_us, name, destination, server))
                else:
                    operations.append(
                        LinkModeSet(time_us, name, told["destination"], event == "upgraded")
                    )
        return lives

    def _once(self, name: str) -> list[tuple[int, str, dict[str, Any]]]:
        """Returns the events of an instance in order of time. Of an event that both the log and an
        answer hold, the earlier record counts."""
        found: list[tuple[int, str, dict[str, Any]]] = []
        last: dict[tuple[str, str, str], int] = {}
        for each in sorted(self._told(name), key=lambda e: e[0]):
            time_us, event, told = each
            if time_us < self.since_us:
                continue
            place = (event, str(told.get("destination")), str(told.get("incarnation")))
            if time_us - last.get(place, -2 * SAME_US) > SAME_US:
                found.append(each)
            last[place] = time_us
        return found

    def _told(self, name: str) -> Iterator[tuple[int, str, dict[str, Any]]]:
        """Yields the events of an instance, from its log and from its answers. Duplicates do no
        harm."""
        if self.logs is not None:
            yield from _events(self.logs, name)
        for event in self.missed:
            if event["instance"] == name and event["event"] in _EVENTS:
                yield event["time_us"], event["event"], event

    def _of_clients(self) -> Iterator[Operation]:
        refused = PublisherRanges()
        for each in self.notices:
            if each.kind == "failed":
                refused.add(each.publisher, each.first, each.last)
        for notice in self.notices:
            time_us, client, publisher, instance, session = notice[1:6]
            topic = self.topics.get(client, self.topic)
            if notice.kind == "published":
                for sequence in range(notice.first, notice.last + 1):
                    yield MessagesPublished(time_us, client, publisher, sequence, topic)
            elif notice.kind == "acked":
                held = refused.get(publisher)
                sequences = tuple(
                    sequence
                    for sequence in range(notice.first, notice.last + 1)
                    if held is None or not held.covers(sequence, sequence)
                )
                if sequences:
                    yield AckGiven(time_us, instance, client, publisher, session, sequences, "ack")
                    yield PublishesDropped(time_us, client, publisher, sequences)
            elif notice.kind == "failed":
                yield PublishRefused(
                    time_us, instance, client, publisher, session, notice.first, notice.names[0]
                )
            elif notice.kind == "safe":
                yield SafetySent(time_us, instance, client, session, notice.names)
            elif notice.kind == "used":
                yield ServerUsed(time_us, client, instance, notice.names[0])
        for subscriber in self.subscribers:
            for time_us, instance, publisher, first, last in subscriber.stretches:
                sequences = tuple(range(first, last + 1))
                if subscriber.fully_durable:
                    yield MessagesOffered(time_us, instance, subscriber.name, publisher, sequences)
                yield MessagesDelivered(time_us, subscriber.name, instance, publisher, sequences)


# What is in force goes before what relies on it, where both are of one microsecond.
_RANKS: dict[type, int] = {
    InstanceStarted: -3,
    LinkModeSet: -2,
    MessagesPublished: -1,
    RunJournaled: 0,
    InstanceCrashed: 2,
}


def journaled(
    name: str, incarnation: int, runs: list[Run], clocks: Iterable[ClockOffset] = ()
) -> Iterator[Operation]:
    """Yields the operations of a journal, in its order. A clock that was set back must not reverse
    the order, so no run counts as later than a run behind it."""
    times_us: list[int] = []
    earliest_us = 1 << 62
    for run in reversed(runs):
        time_us = run.receive_time_us
        for clock in clocks:
            time_us = clock.true_us(time_us)
        earliest_us = min(earliest_us, time_us or earliest_us)
        times_us.append(earliest_us)
    for run, time_us in zip(runs, reversed(times_us), strict=True):
        if run.kind == Kind.RECORDS:
            sequences = tuple(_expanded(run.ranges()))
            yield RunJournaled(
                time_us,
                name,
                incarnation,
                run.first_txid,
                run.publisher,
                sequences,
                run.topic.decode(),
                run.path,
                run.group,
                bool(run.flags & Flag.AWAITED),
                bool(run.flags & Flag.LATE),
            )
        elif run.kind == Kind.WAITER:
            root, sender, ranges = decode_note(run)
            waited = tuple(_expanded(ranges))
            yield WaiterNoted(time_us, name, incarnation, root, sender, run.publisher, waited)


def _expanded(ranges: Iterable[tuple[int, int]]) -> Iterator[int]:
    for first, last in ranges:
        yield from range(first, last + 1)


def _events(directory: Path, name: str) -> Iterator[tuple[int, str, dict[str, Any]]]:
    """Yields (time in microseconds, event, fields) of an instance's events, from the logs of all
    its processes."""
    for _, told in _logged(directory, name, _EVENTS):
        stamp = told["time"]
        if not _STAMP.fullmatch(stamp):
            continue
        moment = datetime.strptime(stamp, "%Y-%m-%dT%H:%M:%S.%fZ").replace(tzinfo=UTC)
        seconds = int(moment.replace(microsecond=0).timestamp())
        yield seconds * 1_000_000 + moment.microsecond, told["event"], told


def alarms(directory: Path, name: str) -> dict[str, dict[str, Any]]:
    """Returns the alarms in the logs of all processes of an instance: the fields of each, by its
    log line."""
    return dict(_logged(directory, name, ALARMS))


def _logged(
    directory: Path, name: str, events: frozenset[str]
) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yields (line, fields) of an instance's events, from the logs of all its processes."""
    texts = [f'"{event}"' for event in events]
    for path in directory.glob(f"{name}-*.log"):
        if not re.fullmatch(rf"{re.escape(name)}-\d+(\.\d+)?\.log", path.name):
            continue
        for line in path.read_text(encoding="utf-8", errors="replace").splitlines():
            if not any(text in line for text in texts):
                continue
            try:
                told = json.loads(line)
            except ValueError:
                continue  # torn by a kill or a full disk
            if told.get("logger") == "instance" and told.get("event") in events:
                yield line, told


def members_of(
    declared: Iterable[tuple[str, str, Iterable[tuple[DestinationRoute, tuple[str, ...]]]]],
) -> dict[str, HistoryMember]:
    """Returns the members of a topology, with instance names for addresses.

    Args:
        declared: (name, group, [(destination, names of its instances), …]) of each instance.
    """
    return {
        name: HistoryMember(
            name,
            group,
            tuple(replace(destination, addresses=to) for destination, to in destinations),
        )
        for name, group, destinations in declared
    }
