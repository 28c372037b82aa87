"""Links of upstreams: what they bring, and what they are told of it.

A batch is answered when all of it is on disk: what is stored, what of it nobody waits for any more,
what came here by other ways, and what is here with another content.
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
"""The roots for which one connection may ask for answers, where its link does not prove to be of
the fabric. Each may cost a note of all that it asks for. An instance is a root, each time that its
disk is lost."""
ABSENT_MAX = 10_000
"""The names that are remembered of upstreams that are gone: one may have invented them."""
HEARING_MAX = 10_000
"""The incarnations that are remembered as hearing what others bring, where they do not prove to be
of the fabric. Another one hears it in the connection in which it turned out, and no later one."""
TOPICS_TOLD_MAX = 100
"""Topics of one connection that are reported as passed over: each is an event."""
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
    """Whether it brings what a retired data directory holds, and is no peer."""
    proven: bool = False
    """Whether it has proved that it is of this instance's fabric."""
    doubted: bool = False
    """Whether its word is not believed, which was reported."""
    doubted_lacks: bool = False
    number: int = 0
    stored: int = 0
    told: int = 0
    hears_what_comes: bool = False
    caught_up: bool = False
    held: PublisherRanges = field(default_factory=PublisherRanges)
    persisted: Rooted = field(default_factory=dict)
    """Messages that it is to be answered: ranges in any order, some perhaps twice."""
    conflicts: PublisherRanges = field(default_factory=PublisherRanges)
    contested: PublisherRanges = field(default_factory=PublisherRanges)
    """Messages that the batch at hand brings with another content than there is here."""
    touched: Rooted = field(default_factory=dict)
    """Messages that the parts of the batch at hand that were taken brought or asked for."""
    roots: set[int] = field(default_factory=set)
    """The roots for which it asked for answers, where it does not prove to be of the fabric."""
    told_of: set[bytes] = field(default_factory=set)
    """The topics that it sends and that are not in the log here, which was reported."""
    passed_over: PublisherRanges = field(default_factory=PublisherRanges)
    """The messages of those topics that it has sent over this connection."""

    def answer(self, root: int, publisher: int, ranges: list[Range]) -> None:
        """Notes that these are persisted, or stored where it does not wait for that."""
        found = self.persisted.get(root)
        if found is None:
            found = self.persisted[root] = {}
        if publisher in found:
            found[publisher] += ranges
        else:
            found[publisher] = ranges.copy()

    def answered(self) -> Rooted:
        """Takes what it is to be answered: ascending ranges, as few as possible."""
        persisted, self.persisted = self.persisted, {}
        for ranges_of_root in persisted.values():
            for publisher, ranges in ranges_of_root.items():
                if len(ranges) > 1:
                    ranges_of_root[publisher] = SequenceSet(ranges).ranges()
        return persisted


class UpstreamTable:
    """See the file's docstring.

    Invariant: of an incarnation one connection counts, the last one.
    Owner: the instance's machine. Lifecycle: as long as that; an upstream from its logon to the end
    of its connection.

    Args:
        topics: what holds for each of them.
        book: from which it takes what upstreams waited for.
        admission: told who is connected, and that one has caught up.
    """

    __slots__ = (
        "_admission",
        "_book",
        "_connected",
        "_counters",
        "_dirty",
        "_durability",
        "_hearing",
        "_identity",
        "_intake",
        "_of",
        "_out",
        "_topics",
        "absent",
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
        """Names of those that were connected and are not; beyond `ABSENT_MAX` one empty name stands
        for all others, and stays."""
        self._of: dict[int, Upstream] = {}
        """Upstreams by incarnation."""
        self._hearing: set[int] = set()
        """Incarnations that hear what others bring."""
        self._dirty: set[int] = set()
        """Connections that may have to be told something."""

    def get(self, connection: int) -> Upstream | None:
        """The upstream of a connection; None: it has left."""
        return self._connected.get(connection)

    def values(self) -> Collection[Upstream]:
        """All that are connected."""
        return self._connected.values()

    def connected_as(self, incarnation: int, *, proven: bool) -> str | None:
        """The Destination, at the upstream, by which it is connected; None: it is not.

        Args:
            proven: it asks for one who has proved to be of the fabric, whom the others do not keep
                out.
        """
        found = self._of.get(incarnation)
        if found is None or (proven and not found.proven):
            return None
        return found.destination

    @property
    def all_caught_up(self) -> bool:
        """Returns whether each that is connected has brought what it had."""
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
        """An upstream link logged on; its epoch is on disk. An older connection of it ends."""
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
        # It would send them again before it were told what it need not send.
        found.hears_what_comes = incarnation in self._hearing
        self._connected[connection] = self._of[incarnation] = found
        self.absent.discard(name)
        if not salvages:
            self._admission.meetings.met(
                connection, name, incarnation, generation, address, proven=proven
            )
        self._out.report("upstream_connected", peer=name, group=group, epoch=epoch)

    def left(self, connection: int) -> None:
        """An upstream connection ended."""
        found = self._connected.pop(connection, None)
        self._admission.meetings.left(connection)
        if found is not None and self._of.get(found.incarnation) is found:
            del self._of[found.incarnation]
            if not found.salvages:
                self.absent.add(found.name if len(self.absent) < ABSENT_MAX else "")
        self._dirty.discard(connection)

    def close(self, connection: int, reason: str, text: str) -> None:
        """Ends a connection."""
        self._out.emit(CloseUpstream(connection, reason, text))
        self.left(connection)

    def close_all(self, reason: str, text: str) -> None:
        """Ends all connections."""
        for connection in list(self._connected):
            self.close(connection, reason, text)

    def close_retired(self) -> None:
        """Ends the connections of those that are known to be moved by now."""
        admission = self._admission
        for upstream in list(self._connected.values()):
            retired = admission.placements.is_retired(upstream.name, upstream.generation)
            if retired and not upstream.salvages:
                why = admission.refusal_by_placement(upstream.name, salvages=False)
                self.close(upstream.connection, *why)

    def close_sender(self, incarnation: int, reason: str, text: str) -> None:
        """Ends the connection of one that has to send again."""
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
        """A batch came over an upstream connection. Whether it was taken. `SendBatch` tells what
        the values mean.

        Args:
            is_part: more of the batch is to come: its sender is told of it behind the last part,
                and until then it counts as one that did not come.
        """
        upstream = self._connected.get(connection)
        if upstream is None or not self._take_part(upstream, number, runs, marked, awaited, now_us):
            return False
        if is_part:
            return True
        upstream.number = number
        touched, upstream.touched = upstream.touched, {}
        self._intake.batch(connection, number, touched, caught_up, ranges_of(upstream.contested))
        upstream.contested = PublisherRanges()
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
            # It may bring these messages, and not use up the numbers of their publishers.
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
                    # They are never stored here. They were answered as nobody waited for them, and
                    # somebody does by now; a link that sends them asks in the same batch.
                    there = [piece for a, b in ranges for piece in passed.within(a, b)]
                    if there:
                        touched.setdefault(root, {}).setdefault(publisher, []).extend(there)
                        ranges = [piece for a, b in ranges for piece in passed.missing(a, b)]
                        if not ranges:
                            continue
                known = self._intake.known.get(publisher)
                if known is None or not all(known.covers(a, b) for a, b in ranges):
                    # It cannot send these. It asks again when it hears that they are here.
                    self._tell_what_comes(upstream)
                if known is None:
                    continue
                asked = [piece for a, b in ranges for piece in known.within(a, b)]
                refused = self._durability.refused.get(publisher)
                if refused is not None:
                    theirs = [piece for a, b in asked for piece in refused.within(a, b)]
                    upstream.conflicts.add_ranges(publisher, theirs)
                    self._dirty.add(upstream.connection)
                    asked = self._durability.acceptable(publisher, asked)
                contested = upstream.contested.get(publisher)
                if contested is not None:
                    asked = [piece for a, b in asked for piece in contested.missing(a, b)]
                if asked:
                    notes.setdefault(root, {}).setdefault(publisher, []).extend(asked)
                    touched.setdefault(root, {}).setdefault(publisher, []).extend(asked)
        for root, noted in notes.items():
            if root == self._durability.own_root:
                # Clients here wait for it themselves. An older copy of this directory that was put
                # in place has forgotten that: it would wait for who waits for it, in a circle.
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
        """Passes over a run whose topic is not in the transaction log here, which no check has
        refused (`txlog` is left out). Nobody is to wait for what is never stored, nor is the rest
        of the link: it counts as answered, as what no filter lets through."""
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
        """An upstream says what it once had, has removed, and believes to be missing here. `whole`:
        everything that it has is routed here."""
        upstream = self._connected.get(connection)
        if upstream is not None and not self._believes(upstream):
            # Anybody could fill the journal with it.
            if not upstream.doubted_lacks:
                upstream.doubted_lacks = True
                self._out.report(
                    "lacks_unproven",
                    peer=upstream.name,
                    text=f"{upstream.name} says what {self._identity.name} lacks for good, and "
                    "does not prove that it is of the fabric: not believed, nothing is noted as "
                    "unavailable",
                )
        elif upstream is not None:
            name, incarnation = upstream.name, upstream.incarnation
            self._intake.missing.reduce(lacks)
            self._out.is_changing = True
            told = self._intake.missing.upstream_lacks(name, incarnation, lacks, whole)
            if told is not None:
                self._out.emit(told)

    def _believes(self, upstream: Upstream) -> bool:
        """Returns whether its word counts for more than the messages that it brings."""
        return upstream.proven or not self._identity.in_fabric

    def shows(self, connection: int, yours: Ranges) -> str:
        """An upstream holds these, they came by way of this incarnation, and this instance did not
        say that it has them when the link connected. It may have got them meanwhile. Else it was
        given back an old copy of its data: its own path would keep its tail from it. Returns what
        proves that; empty: nothing does."""
        upstream = self._connected.get(connection)
        if upstream is None or upstream.salvages:
            return ""
        if not self._believes(upstream):
            # Anybody could make it begin anew.
            if not upstream.doubted:
                upstream.doubted = True
                self._out.report(
                    "old_copy_unproven",
                    peer=upstream.name,
                    text=f"{upstream.name} says that it holds what went through this data directory"
                    f" of {self._identity.name} and is not in it, and does not prove that it is of "
                    "the fabric: not believed; where the directory may be an old copy, begin it "
                    "anew (docs/operations.md)",
                )
            return ""
        lacking = self._intake.lacked(yours)
        if not lacking:
            return ""
        publisher, (first, last) = next(iter(lacking.items()))
        return (
            f"{upstream.name} has messages that went through this data directory and are not "
            f"in it, {publisher}|{first}| to {publisher}|{last}| among them"
        )

    # -- what is on disk ---------------------------------------------------------------------
    def stored(self, entry: BatchStaged) -> None:
        """All of a batch is on disk."""
        upstream = self._connected.get(entry.connection)
        if upstream is None:
            return
        upstream.stored = entry.number
        self._dirty.add(entry.connection)
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
        """The answer to a batch: all that its sender does not wait for is answered now."""
        answered = self._durability.waiters.not_waited(
            root, upstream.incarnation, publisher, ranges
        )
        if answered:
            upstream.answer(root, publisher, answered)

    def _tell_what_comes(self, upstream: Upstream) -> None:
        """Lets an upstream that sends what is here already, or asks for what is not, hear from now
        on what others bring, in its later connections, too."""
        upstream.hears_what_comes = True
        if len(self._hearing) < HEARING_MAX or self._believes(upstream):
            self._hearing.add(upstream.incarnation)

    def came_elsewhere(self, sender: int, publisher: int, ranges: list[Range]) -> None:
        """A sender brought these: others that would send them need not, and who asked for them in
        vain may ask again."""
        for upstream in self._connected.values():
            if upstream.hears_what_comes and upstream.incarnation != sender:
                upstream.held.add_ranges(publisher, ranges)
                self._dirty.add(upstream.connection)

    def forget(self) -> None:
        """Nobody is to be told anything."""
        self._dirty.clear()

    # -- answers -----------------------------------------------------------------------------
    def take(self) -> None:
        """Takes what durability wrote down for upstreams."""
        book = self._book
        if book.persisted:
            for sender, root, publisher, ranges in book.persisted:
                upstream = self._of.get(sender)
                if upstream is not None:
                    upstream.answer(root, publisher, ranges)
                    self._dirty.add(upstream.connection)
            book.persisted.clear()
        if book.conflicts:
            for sender, publisher, ranges in book.conflicts:
                upstream = self._of.get(sender)
                if upstream is not None:
                    upstream.conflicts.add_ranges(publisher, ranges)
                    self._dirty.add(upstream.connection)
            book.conflicts.clear()
        if book.contested:
            for connection, publisher, ranges in book.contested:
                upstream = self._connected.get(connection)
                if upstream is not None:
                    upstream.conflicts.add_ranges(publisher, ranges)
                    self._dirty.add(connection)
            book.contested.clear()

    def flush(self) -> None:
        """Tells upstreams what there is to tell, once a step."""
        book = self._book
        if book.persisted or book.conflicts or book.contested:
            self.take()
        if not self._dirty:
            return
        for connection in self._dirty:
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
        self._dirty.clear()
