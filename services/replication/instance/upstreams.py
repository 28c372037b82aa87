"""Links of upstreams: what they bring, and what they are told.

A batch is answered when all of it is on disk: which messages are stored, which of them nobody waits
for any more, which came here by other paths, and which are here with other content.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, field

from raylay.services.errors import RemoteProtocolError
from raylay.services.messages.ranges import PublisherRanges, Range, SequenceSet
from raylay.services.messages.records import Flag, Kind, Run, commands_flag, path_through
from raylay.services.messages.stateful import Stateful
from raylay.services.messages.topic_book import TopicBook
from raylay.services.replication.acknowledgment import UNAWAITED
from raylay.services.replication.effects import (
    AckUpstream,
    CloseUpstream,
    Ranges,
    Rooted,
    ranges_of,
)
from raylay.services.replication.gap_limit import check_step
from raylay.services.replication.instance.admission import InstanceAdmission
from raylay.services.replication.instance.durability import Durability
from raylay.services.replication.instance.effect_list import EffectList
from raylay.services.replication.instance.intake import Intake
from raylay.services.replication.instance.pending_replies import PendingReplies
from raylay.services.replication.staged import BatchStaged
from raylay.services.replication.values import Counters, Identity

ROOTS_MAX = 1_024
"""Number of roots for which one connection may ask for answers, where its link has not proved to
belong to the fabric. Each root may cost a note of all the messages asked for. An instance adds a
root each time it loses its disk."""
ABSENT_MAX = 10_000
"""Number of names remembered of upstreams that are gone: an upstream may have invented its name."""
HEARING_MAX = 10_000
"""Number of incarnations remembered as wanting to hear what others bring, where they have not
proved to belong to the fabric. Any further one hears it only within the connection in which it
asked."""
TOPICS_TOLD_MAX = 100
"""Number of topics of one connection that are reported as passed over: each is an event."""
_FLAGS_CARRIED_ON = Flag.CONTIGUOUS | Flag.TRACED | Flag.CROSSED


@dataclass(slots=True)
class Upstream:
    """One connection of an upstream's link."""

    connection: int
    name: str
    group: str
    incarnation: int
    destination: str
    epoch: int
    generation: int = 0
    salvages: bool = False
    """Whether the link brings the content of a retired data directory, and is no peer."""
    proven: bool = False
    """Whether the upstream has proved that it belongs to this instance's fabric."""
    doubted: bool = False
    """Whether an unproved claim of the upstream was ignored and that was reported."""
    doubted_lacks: bool = False
    number: int = 0
    stored: int = 0
    told: int = 0
    hears_what_comes: bool = False
    caught_up: bool = False
    held: PublisherRanges = field(default_factory=PublisherRanges)
    persisted: Rooted = field(default_factory=dict)
    """Messages that are to be answered to the upstream: ranges in any order, possibly repeated."""
    conflicts: PublisherRanges = field(default_factory=PublisherRanges)
    contested: PublisherRanges = field(default_factory=PublisherRanges)
    """Messages of the current batch that are held here with other content."""
    touched: Rooted = field(default_factory=dict)
    """Messages that the parts taken so far of the current batch brought or asked for."""
    roots: set[int] = field(default_factory=set)
    """The roots for which the upstream asked for answers, where it has not proved to belong to the
    fabric."""
    told_of: set[bytes] = field(default_factory=set)
    """The topics that the upstream sends and the log here does not take, and that were reported."""
    passed_over: PublisherRanges = field(default_factory=PublisherRanges)
    """The messages of those topics that came over this connection."""

    def answer(self, root: int, publisher: int, ranges: list[Range]) -> None:
        """Notes messages to be answered: they are persisted, or stored where the upstream does not
        wait for persisted."""
        found = self.persisted.get(root)
        if found is None:
            found = self.persisted[root] = {}
        if publisher in found:
            found[publisher] += ranges
        else:
            found[publisher] = ranges.copy()

    def answered(self) -> Rooted:
        """Returns the messages to be answered, as ascending merged ranges, and clears them."""
        persisted, self.persisted = self.persisted, {}
        for ranges_of_root in persisted.values():
            for publisher, ranges in ranges_of_root.items():
                if len(ranges) > 1:
                    ranges_of_root[publisher] = SequenceSet(ranges).ranges()
        return persisted


class UpstreamTable:
    """Keeps the upstream connections: takes their batches, and answers them.

    Invariant: of each incarnation, only the latest connection counts.
    Owner: the instance's machine. Lifecycle: as long as the machine; an upstream lives from its
    logon to the end of its connection.

    Args:
        topics: the rules of all topics.
        book: replies due: gives the messages that upstreams waited for.
        admission: the admission part, which gets the upstreams that are connected, and those that
            have caught up.
    """

    __slots__ = (
        "_admission",
        "_book",
        "_connected",
        "_counters",
        "_durability",
        "_hearing",
        "_identity",
        "_intake",
        "_of",
        "_out",
        "_topics",
        "absent",
        "dirty",
    )

    def __init__(
        self,
        identity: Identity,
        topics: TopicBook,
        intake: Intake,
        durability: Durability,
        book: PendingReplies,
        out: EffectList,
        counters: Counters,
        admission: InstanceAdmission,
    ) -> None:
        self._identity = identity
        self._topics = topics
        self._intake = intake
        self._durability = durability
        self._admission = admission
        self._book = book
        self._out = out
        self._counters = counters
        self._connected: dict[int, Upstream] = {}
        self.absent: set[str] = set()
        """Names of upstreams that were connected and are not; beyond `ABSENT_MAX` one empty name
        stands for all others, and stays."""
        self._of: dict[int, Upstream] = {}
        """The upstream of each incarnation."""
        self._hearing: set[int] = set()
        """Incarnations that are told which messages others bring."""
        self.dirty: set[int] = set()
        """Connections that may have to be told something when the step ends."""

    def get(self, connection: int) -> Upstream | None:
        """The upstream of a connection; None: it has left."""
        return self._connected.get(connection)

    def values(self) -> Collection[Upstream]:
        return self._connected.values()

    def connected_as(self, incarnation: int, *, proven: bool) -> str | None:
        """Returns the name of the Destination, at the upstream, over whose link this incarnation is
        connected; None: it is not.

        Args:
            proven: whether the asking link has proved to belong to the fabric: connections that
                have not proved it do not keep it out.
        """
        found = self._of.get(incarnation)
        if found is None or (proven and not found.proven):
            return None
        return found.destination

    @property
    def all_caught_up(self) -> bool:
        return all(upstream.caught_up for upstream in self._connected.values())

    # -- connections -------------------------------------------------------------------------
    def logged_on(
        self,
        connection: int,
        name: str,
        group: str,
        incarnation: int,
        destination: str,
        epoch: int,
        *,
        generation: int = 0,
        salvages: bool = False,
        address: str = "",
        proven: bool = False,
    ) -> None:
        """Logs an upstream link on; its epoch is on disk. An older connection of the upstream is
        closed."""
        if proven:
            for other in list(self._connected.values()):
                if not other.proven and name == other.name:
                    self.close(other.connection, "unproven", f"{name} has proved that it is itself")
        older = self._of.get(incarnation)
        if older is not None:
            self._out.emit(CloseUpstream(older.connection, "replaced", f"{name} connected again"))
            self.left(older.connection)
        found = Upstream(
            connection, name, group, incarnation, destination, epoch, generation, salvages, proven
        )
        # Kept from an earlier connection: otherwise it would send those messages again before it is
        # told that it need not.
        found.hears_what_comes = incarnation in self._hearing
        self._connected[connection] = self._of[incarnation] = found
        self.absent.discard(name)
        if not salvages:
            self._admission.meetings.met(
                connection, name, incarnation, generation, address, proven=proven
            )
        self._out.report("upstream_connected", peer=name, group=group, epoch=epoch)

    def left(self, connection: int) -> None:
        found = self._connected.pop(connection, None)
        self._admission.meetings.left(connection)
        if found is not None and self._of.get(found.incarnation) is found:
            del self._of[found.incarnation]
            if not found.salvages:
                self.absent.add(found.name if len(self.absent) < ABSENT_MAX else "")
        self.dirty.discard(connection)

    def close(self, connection: int, reason: str, text: str) -> None:
        self._out.emit(CloseUpstream(connection, reason, text))
        self.left(connection)

    def close_all(self, reason: str, text: str) -> None:
        for connection in list(self._connected):
            self.close(connection, reason, text)

    def close_retired(self) -> None:
        """Closes the connections of upstreams that are known to have moved."""
        admission = self._admission
        for upstream in list(self._connected.values()):
            retired = admission.placements.is_retired(upstream.name, upstream.generation)
            if retired and not upstream.salvages:
                why = admission.refusal_by_placement(upstream.name, salvages=False)
                self.close(upstream.connection, *why)

    def close_sender(self, incarnation: int, reason: str, text: str) -> None:
        """Closes the connection of an upstream that has to send again."""
        upstream = self._of.get(incarnation)
        if upstream is not None:
            self.close(upstream.connection, reason, text)

    # -- what they bring ---------------------------------------------------------------------
    def batch(
        self,
        connection: int,
        number: int,
        runs: list[Run],
        marked: bool,
        awaited: Rooted,
        caught_up: bool,
        now_us: int,
        is_part: bool = False,
    ) -> bool:
        """Takes a batch from an upstream connection. Returns whether it was taken. `SendBatch`
        explains the values.

        Args:
            is_part: whether more of the batch follows. The sender is answered after the last part;
                a connection that ends before it has sent nothing.
        """
        upstream = self._connected.get(connection)
        if upstream is None or not self._take_part(upstream, number, runs, marked, awaited, now_us):
            return False
        if is_part:
            return True
        upstream.number = number
        touched, upstream.touched = upstream.touched, {}
        contested: Ranges = {}
        if upstream.contested.sets:
            contested = ranges_of(upstream.contested)
            upstream.contested = PublisherRanges()
        self._intake.batch(connection, number, touched, caught_up, contested)
        return True

    def _take_part(
        self,
        upstream: Upstream,
        number: int,
        runs: list[Run],
        marked: bool,
        awaited: Rooted,
        now_us: int,
    ) -> bool:
        if number != upstream.number + 1:
            return self._refuse(
                upstream, "gap", f"batch {number} came where {upstream.number + 1} was due"
            )
        taken: list[tuple[Run, Stateful | None]] = []
        passed_over: list[Run] = []
        for run in runs:
            if run.kind != Kind.RECORDS:
                return self._refuse(upstream, "bad_record", f"a run of kind {run.kind} was sent")
            entry = self._topics[run.topic, run.message_type]
            if entry.journaled:
                taken.append((run, entry.state_of(run)))
            else:
                passed_over.append(run)
        if not self._believes(upstream):
            # The upstream may bring these messages, but not use up the numbers of their publishers.
            try:
                self._check_steps(upstream, [run for run, _ in taken])
            except RemoteProtocolError as error:
                return self._refuse(upstream, error.reason, str(error))
        if awaited and not self._believes(upstream):
            if len(upstream.roots | awaited.keys()) > ROOTS_MAX:
                text = f"answers are asked for {ROOTS_MAX} roots and more"
                return self._refuse(upstream, "bad_ranges", text)
            upstream.roots |= awaited.keys()
        self._out.is_changing = True
        sender = upstream.incarnation
        notes: Rooted = {}
        touched = upstream.touched
        for run, state in taken:
            self._take_replicated(upstream, run, marked, touched, notes, now_us, state)
        for run in passed_over:
            self._pass_over(upstream, run, marked, touched)
        for root, asked_of in awaited.items():
            for publisher, ranges in asked_of.items():
                passed = upstream.passed_over.get(publisher)
                if passed is not None:
                    # These messages are never stored here. They were answered when nobody waited
                    # for them, and somebody does now; a link that sends them asks for the answer in
                    # the same batch.
                    there = [piece for a, b in ranges for piece in passed.within(a, b)]
                    if there:
                        touched.setdefault(root, {}).setdefault(publisher, []).extend(there)
                        ranges = [piece for a, b in ranges for piece in passed.missing(a, b)]
                        if not ranges:
                            continue
                known = self._intake.known.get(publisher)
                if known is None or not all(known.covers(a, b) for a, b in ranges):
                    # The upstream cannot send these messages. It asks again when it hears that they
                    # are here.
                    self._tell_what_comes(upstream)
                if known is None:
                    continue
                asked = [piece for a, b in ranges for piece in known.within(a, b)]
                refused = self._durability.refused.get(publisher)
                if refused is not None:
                    theirs = [piece for a, b in asked for piece in refused.within(a, b)]
                    upstream.conflicts.add_ranges(publisher, theirs)
                    self.dirty.add(upstream.connection)
                    asked = self._durability.acceptable(publisher, asked)
                contested = upstream.contested.get(publisher)
                if contested is not None:
                    asked = [piece for a, b in asked for piece in contested.missing(a, b)]
                if asked:
                    notes.setdefault(root, {}).setdefault(publisher, []).extend(asked)
                    touched.setdefault(root, {}).setdefault(publisher, []).extend(asked)
        for root, noted in notes.items():
            if root == self._durability.own_root:
                # Clients of this instance wait for them. An older copy of this directory that was
                # put back has forgotten that, and would wait for the peer that waits for it, in a
                # circle.
                continue
            for publisher, ranges in noted.items():
                self._intake.note(root, sender, publisher, ranges, now_us)
        return True

    def _check_steps(self, upstream: Upstream, runs: list[Run]) -> None:
        for run in runs:
            highest = self._intake.highest.get(run.publisher, 0)
            known = self._intake.known.get(run.publisher)
            check_step(upstream.name, run.last_sequence, highest, known)

    def _take_replicated(
        self,
        upstream: Upstream,
        run: Run,
        marked: bool,
        touched: Rooted,
        notes: Rooted,
        now_us: int,
        state: Stateful | None,
    ) -> None:
        publisher = run.publisher
        count = run.count
        root = self._root_of_arrival(run, upstream) if marked else UNAWAITED
        ranges = run.ranges()
        arrived = touched.setdefault(root, {})
        arrived.setdefault(publisher, []).extend(ranges)
        part: Run | None = run
        if run.first_sequence <= self._intake.highest.get(publisher, 0):
            known = self._intake.known.of(publisher)
            old = [piece for a, b in ranges for piece in known.within(a, b)]
            if old:
                self._tell_what_comes(upstream)
                fresh = [piece for a, b in ranges for piece in known.missing(a, b)]
                part = run.select(fresh) if fresh else None
                self._counters.duplicates += count - (part.count if part else 0)
                conflicts = self._intake.conflicts(run, old)
                if conflicts:
                    upstream.contested.add_ranges(publisher, conflicts)
                    self._intake.report_conflict(upstream.name, publisher, conflicts)
                    by = upstream.incarnation
                    self._intake.keep_conflict(run, conflicts, by, upstream.group, now_us)
                    unsound = SequenceSet(conflicts)
                    old = [piece for a, b in old for piece in unsound.missing(a, b)]
                    arrived[publisher] = [
                        piece for a, b in arrived[publisher] for piece in unsound.missing(a, b)
                    ]
                if root != UNAWAITED and old:
                    notes.setdefault(root, {}).setdefault(publisher, []).extend(old)
        if part is None:
            return
        part = Run(
            publisher,
            part.first_sequence,
            part.last_sequence,
            part.count,
            part.payload,
            part.topic,
            part.message_type,
            path_through(run.path, upstream.incarnation),
            upstream.group,
            (part.flags & _FLAGS_CARRIED_ON)
            | (Flag.AWAITED if root else 0)
            | (Flag.CROSSED if upstream.group != self._identity.group else 0)
            | commands_flag(part.payload),
            payload_checksum=part.payload_checksum,
        )
        self._counters.replicated_in += part.count
        self._intake.append(part, root, upstream.incarnation, now_us, state)

    def _pass_over(self, upstream: Upstream, run: Run, marked: bool, touched: Rooted) -> None:
        """Passes over a run whose topic the log here does not take and that no validation check
        refused (`txlog` is left out). Nothing may wait for messages that are never stored, so they
        count as answered, as if a content filter had left them out."""
        root = self._root_of_arrival(run, upstream) if marked else UNAWAITED
        ranges = run.ranges()
        touched.setdefault(root, {}).setdefault(run.publisher, []).extend(ranges)
        upstream.passed_over.add_ranges(run.publisher, ranges)
        self._counters.passed_over += run.count
        if run.topic not in upstream.told_of and len(upstream.told_of) < TOPICS_TOLD_MAX:
            upstream.told_of.add(run.topic)
            topic = run.topic.decode("utf-8", "replace")
            self._out.report(
                "topic_passed_over",
                peer=upstream.name,
                topic=topic,
                text=f"{upstream.name} sends topic {topic!r}, which is not in the transaction log "
                f"of {self._identity.name}: its messages are not stored here; add it there, or "
                "take it out of the Destination",
            )

    def _root_of_arrival(self, run: Run, upstream: Upstream) -> int:
        if not run.flags & Flag.AWAITED:
            return UNAWAITED
        return run.path[0] if run.path else upstream.incarnation

    def _refuse(self, upstream: Upstream, reason: str, text: str) -> bool:
        self._out.is_changing = True
        self._out.emit(CloseUpstream(upstream.connection, reason, text))
        self._out.report("upstream_refused", peer=upstream.name, reason=reason, text=text)
        self.left(upstream.connection)
        return False

    def lacks(self, connection: int, lacks: PublisherRanges, whole: bool) -> None:
        """Takes messages that an upstream once had, has removed, and believes to be missing here.
        `whole`: everything that the upstream has is routed here."""
        upstream = self._connected.get(connection)
        if upstream is not None and not self._believes(upstream):
            # Otherwise any client could fill the journal with such claims.
            if not upstream.doubted_lacks:
                upstream.doubted_lacks = True
                self._out.report(
                    "lacks_unproven",
                    peer=upstream.name,
                    text=f"{upstream.name} names messages that {self._identity.name} lacks for "
                    "good, without proof that it belongs to the fabric: ignored, and no message is "
                    "noted as unavailable",
                )
        elif upstream is not None:
            name, incarnation = upstream.name, upstream.incarnation
            self._intake.missing.reduce(lacks)
            self._out.is_changing = True
            told = self._intake.missing.upstream_lacks(name, incarnation, lacks, whole)
            if told is not None:
                self._out.emit(told)

    def _believes(self, upstream: Upstream) -> bool:
        """Returns whether the upstream's claims count, beyond the messages that it brings."""
        return upstream.proven or not self._identity.in_fabric

    def shows(self, connection: int, yours: Ranges) -> str:
        """Checks messages that an upstream holds, that passed through this incarnation, and that
        this instance did not name as held when the link connected. Unless they arrived here
        meanwhile, this data directory is an old copy, which would never get its tail back,
        because its own incarnation is in the tail's paths. Returns the proof as text; empty:
        there is none."""
        upstream = self._connected.get(connection)
        if upstream is None or upstream.salvages:
            return ""
        if not self._believes(upstream):
            # Otherwise any client could make this instance begin anew.
            if not upstream.doubted:
                upstream.doubted = True
                self._out.report(
                    "old_copy_unproven",
                    peer=upstream.name,
                    text=f"{upstream.name} claims messages that passed through this data directory "
                    f"of {self._identity.name} and are not in it, without proof that it belongs to "
                    "the fabric: ignored; if the directory may be an old copy, begin it anew "
                    "(docs/operations.md)",
                )
            return ""
        lacking = self._intake.lacked(yours)
        if not lacking:
            return ""
        publisher, (first, last) = next(iter(lacking.items()))
        return (
            f"{upstream.name} has messages that passed through this data directory and are not "
            f"in it, such as {publisher}|{first}| to {publisher}|{last}|"
        )

    # -- what is on disk ---------------------------------------------------------------------
    def stored(self, entry: BatchStaged) -> None:
        upstream = self._connected.get(entry.connection)
        if upstream is None:
            return
        upstream.stored = entry.number
        self.dirty.add(entry.connection)
        for publisher, ranges in entry.conflicts.items():
            upstream.conflicts.add_ranges(publisher, ranges)
        for root, arrived in entry.touched.items():
            for publisher, ranges in arrived.items():
                self._answer_stored(upstream, root, publisher, ranges)
        if entry.caught_up:
            upstream.caught_up = True
            self._out.report("upstream_caught_up", peer=upstream.name)
            is_peer = upstream.group == self._identity.group and not upstream.salvages
            if is_peer and self._believes(upstream):
                self._admission.become_ready()

    def _answer_stored(
        self, upstream: Upstream, root: int, publisher: int, ranges: list[Range]
    ) -> None:
        """Answers the messages of a batch for which its sender does not wait."""
        answered = self._durability.waiters.not_waited(
            root, upstream.incarnation, publisher, ranges
        )
        if answered:
            upstream.answer(root, publisher, answered)

    def _tell_what_comes(self, upstream: Upstream) -> None:
        """Tells an upstream, from now on and in later connections, which messages others bring: it
        sends messages that are here already, or asks for messages that are not."""
        upstream.hears_what_comes = True
        if len(self._hearing) < HEARING_MAX or self._believes(upstream):
            self._hearing.add(upstream.incarnation)

    def came_elsewhere(self, sender: int, publisher: int, ranges: list[Range]) -> None:
        """Notes messages that one sender brought: other upstreams need not send them, and those
        that asked for them in vain may ask again."""
        for upstream in self._connected.values():
            if upstream.hears_what_comes and upstream.incarnation != sender:
                upstream.held.add_ranges(publisher, ranges)
                self.dirty.add(upstream.connection)

    def forget(self) -> None:
        self.dirty.clear()

    # -- answers -----------------------------------------------------------------------------
    def take(self) -> None:
        """Takes the replies that the durability part added for upstreams."""
        book = self._book
        if book.persisted:
            for sender, root, publisher, ranges in book.persisted:
                upstream = self._of.get(sender)
                if upstream is not None:
                    upstream.answer(root, publisher, ranges)
                    self.dirty.add(upstream.connection)
            book.persisted.clear()
        if book.conflicts:
            for sender, publisher, ranges in book.conflicts:
                upstream = self._of.get(sender)
                if upstream is not None:
                    upstream.conflicts.add_ranges(publisher, ranges)
                    self.dirty.add(upstream.connection)
            book.conflicts.clear()
        if book.contested:
            for connection, publisher, ranges in book.contested:
                upstream = self._connected.get(connection)
                if upstream is not None:
                    upstream.conflicts.add_ranges(publisher, ranges)
                    self.dirty.add(connection)
            book.contested.clear()

    def flush(self) -> None:
        """Emits what upstreams are to be told, once per step."""
        book = self._book
        if book.persisted or book.conflicts or book.contested:
            self.take()
        if not self.dirty:
            return
        for connection in self.dirty:
            upstream = self._connected.get(connection)
            if upstream is None:
                continue
            ack = AckUpstream(connection, upstream.stored)
            if upstream.persisted:
                ack.persisted.update(upstream.answered())
            if upstream.held.sets or upstream.conflicts.sets:
                for mine, theirs in (
                    (upstream.held, ack.held),
                    (upstream.conflicts, ack.conflicts),
                ):
                    theirs.update({key: list(value) for key, value in mine.sets.items()})
                    mine.sets.clear()
            if upstream.stored > upstream.told or ack.held or ack.persisted or ack.conflicts:
                upstream.told = upstream.stored
                self._out.emit(ack)
        self.dirty.clear()
