"""Client sessions: what each session published, the numbering for clients that do not number, and
what each client is told.

A client's message is never acknowledged as a duplicate: a message that is sent again is
acknowledged when it is durable here.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Protocol

from raylay.services.errors import LocalProtocolError, RemoteProtocolError
from raylay.services.messages.ranges import Range, SequenceSet
from raylay.services.messages.records import (
    COMMAND_AT,
    PUBLISHED,
    RECORD_BYTES_MAX,
    SEQUENCE_MAX,
    Chunk,
    Flag,
    Run,
    publisher_id,
    run_of,
    scan,
    unnumbered_publisher_id,
)
from raylay.services.messages.stateful import PreparedRun, RefusedRecords, Stateful, WritePermission
from raylay.services.messages.topic_book import ClaimingQueue, TopicBook
from raylay.services.messages.topics import not_of_transport
from raylay.services.replication import gap_limit
from raylay.services.replication.acknowledgment import CLIENT
from raylay.services.replication.effects import AckClient, CloseSession, RefuseClient
from raylay.services.replication.instance.batch_scan import BatchScan, Gaps
from raylay.services.replication.instance.durability import Durability
from raylay.services.replication.instance.effect_list import EffectList
from raylay.services.replication.instance.intake import Intake
from raylay.services.replication.instance.pending_replies import DestinationRefusal, PendingReplies
from raylay.services.replication.journal_lookup import NOTHING_ASKED, LookupRequest, LookupResult
from raylay.services.replication.publisher_names import (
    NO_CLIENT,
    PUBLISHER_CONFLICT,
    PublisherNames,
    name_digest,
    read_names,
)
from raylay.services.replication.staged import NoteStaged, RunStaged
from raylay.services.replication.unused_sequences import UnusedSequences
from raylay.services.replication.values import Counters, Identity, LogonAnswer

_COMMANDS = int(Flag.COMMANDS)
Resent = str | None
"""Name of the instance to which a client sent these records first; empty: the client does not know
it. None: the client sends them for the first time."""


class Judge(WritePermission, Protocol):
    """The judge of what a client may publish."""

    def __call__(self, run: Run, *, by_record: bool = False) -> PreparedRun:
        """Returns the parts of a run that the client may publish, and those that it may not.

        Args:
            by_record: whether the topic's state judges each message, because the permission depends
                on the record that the message changes (`Stateful.prepare`).
        """


@dataclass(slots=True)
class _Session:
    number: int
    client: str
    publisher: int
    name: bytes
    """Digest of the client's name (publisher_names.py)."""
    is_named: bool = False
    """Whether the publisher id is remembered for that name."""
    received: int = 0
    acked: int = 0
    counted: int = 0
    """Sequence up to which the session's publishes are in the counter of persisted messages."""
    failures: dict[int, tuple[str, str]] = field(default_factory=dict)
    unjournaled: SequenceSet = field(default_factory=SequenceSet)
    """Sequences that were delivered to live subscribers only, and are not acknowledged yet."""
    refused: SequenceSet = field(default_factory=SequenceSet)
    """Sequences that were refused and that no acknowledgment covers yet: for their topic, by the
    topic's state, or because the session may not publish them."""
    has_aside: bool = False
    """Whether `unjournaled` or `refused` may hold any sequence."""
    judge: Judge | None = None
    user: str = ""
    """User as an authentication module knows the client; empty: unknown."""
    pieces_max: int = 0
    """Number of pieces in which the session's sequences may lie before its gaps are checked."""


class Publishers:
    """Keeps the client sessions: takes their publishes, and tells them what became durable or was
    refused.

    Invariant: a session's `acked` is below every pending sequence of the session.
    Owner: the instance's machine. Lifecycle: as long as the machine; a session lives from its logon
    to its end.

    Args:
        topics: the rules of all topics.
        book: replies due: gives the messages that became durable or were refused.
    """

    __slots__ = (
        "_book",
        "_counters",
        "_durability",
        "_identity",
        "_intake",
        "_out",
        "_session_of",
        "_sessions",
        "_topics",
        "_unnumbered",
        "_unused",
        "dirty",
        "gaps",
        "names",
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
        names: PublisherNames,
    ) -> None:
        self._identity = identity
        self._topics = topics
        self._intake = intake
        self._durability = durability
        self._book = book
        self._out = out
        self._counters = counters
        self._sessions: dict[int, _Session] = {}
        self._session_of: dict[int, _Session] = {}
        self.dirty: set[int] = set()
        """Sessions that may have to be told something when the step ends."""
        self._unnumbered: dict[tuple[int, int], tuple[int, str]] = {}
        """(session, command id) of each publish that was numbered here, by (publisher,
        sequence)."""
        self._unused = UnusedSequences()
        self.gaps = gap_limit.UserGaps()
        self.names = names

    def __len__(self) -> int:
        return len(self._sessions)

    def received_of(self, session: int) -> int:
        """Returns the highest sequence that came over this session; 0 for none, or where the
        session is gone."""
        found = self._sessions.get(session)
        return found.received if found is not None else 0

    # -- names -------------------------------------------------------------------------------
    def name_refusal(self, client: str) -> tuple[str, str] | None:
        """Returns why a client may not log on by this name, if its publisher id belongs to another
        one: the reason, and a sentence."""
        publisher, name = publisher_id(client), name_digest(client)
        held = self.names.get(publisher)
        if held is None:
            session = self._session_of.get(publisher)
            held = None if session is None else session.name
        if held is None or held == name:
            return None
        self._counters.publisher_conflicts += 1
        return PUBLISHER_CONFLICT, _conflict(client, publisher)

    def names_told(self, body: bytes, source: str) -> None:
        """An instance of the fabric tells names that it remembers.

        Args:
            source: its name.

        Raises:
            RemoteProtocolError: these are none; with reason `bad_names`.
        """
        for publisher, name in read_names(body):
            if not self.names.claim(publisher, name):
                self._counters.publisher_conflicts += 1
                self._out.report(
                    PUBLISHER_CONFLICT,
                    peer=source,
                    publisher=f"{publisher:016x}",
                    text=f"another client name published by way of {source} under the publisher id "
                    f"{publisher:016x} than by way of {self._identity.name}: messages of two "
                    "clients may pass for those of one. Nobody finds such a name by chance: look "
                    "for new names in the events `client_connected` of both, and withdraw the "
                    "permission of the user who chose it",
                )
                continue
            session = self._session_of.get(publisher)
            if session is not None and session.name != name:
                self._counters.publisher_conflicts += 1
                self.close(session.number, PUBLISHER_CONFLICT, _conflict(session.client, publisher))

    # -- sessions ----------------------------------------------------------------------------
    def logged_on(
        self,
        session: int,
        client: str,
        low: int,
        judge: Judge | None = None,
        *,
        takes_unused: bool = False,
        user: str = "",
    ) -> LogonAnswer:
        """Logs a client on.

        Args:
            user: the user for whom the client's gaps count, as an authentication module knows it,
                or by address; empty: unknown.
            low: the client's lowest sequence that it does not know to be durable.
            judge: decides which parts of a run the client may publish; None: all.
            takes_unused: whether the client has numbered nothing yet, and may continue with
                sequences that an earlier life left unused.
        """
        publisher = publisher_id(client)
        pieces_max = self.gaps.begins(user, publisher, self._intake.known.get(publisher))
        self._sessions[session] = found = _Session(
            session,
            client,
            publisher,
            name_digest(client),
            judge=judge,
            user=user,
            pieces_max=pieces_max,
        )
        self._session_of[publisher] = found
        if self._intake.known.get(publisher):
            self._remember_name(found)
        highest = self._intake.highest.get(publisher, 0)
        durable: list[Range] = []
        if low and highest >= low:
            durable = self._durability.durable_of(publisher, low, highest)
        unused = self._unused.take(publisher, highest) if takes_unused else None
        return LogonAnswer(publisher, durable, highest, unused)

    def _remember_name(self, session: _Session) -> None:
        """Remembers whom a publisher id belongs to, once it has messages: at its first publish, or
        at a logon where links brought the messages and no name."""
        session.is_named = True
        self.names.claim(session.publisher, session.name)

    def logged_off(self, session: int, unused: Range, now_us: int) -> None:
        """Takes the sequences that a client, which is about to end, has not used."""
        found = self._sessions.get(session)
        if found is None:
            return
        publisher = found.publisher
        highest = self._intake.highest.get(publisher, 0)
        self._unused.hand_over(publisher, unused, highest, now_us + self._intake.wall_offset_us)

    def parted(self) -> None:
        """Drops the unused sequences: a link is down, so clients may publish elsewhere without this
        instance hearing of it."""
        self._unused.clear()

    def left(self, session: int) -> None:
        found = self._sessions.pop(session, None)
        if found is not None and self._session_of.get(found.publisher) is found:
            del self._session_of[found.publisher]
            self.gaps.ends(found.user, found.publisher, self._intake.known.get(found.publisher))
        self.dirty.discard(session)
        if self._unnumbered:
            self._unnumbered = {k: v for k, v in self._unnumbered.items() if v[0] != session}

    def runs(
        self,
        session: int,
        payload: bytes,
        count: int = 0,
        types: frozenset[bytes] = frozenset(),
    ) -> list[Run]:
        """Returns the runs of a client's records that came in, for `client_published`.

        Args:
            count: the number of records that the client announced, if it did.
            types: the message types of the client's transport; none: any.

        Raises:
            CorruptRecord, RemoteProtocolError: nothing of the payload may be taken.
        """
        found = self._sessions[session]
        chunks = scan(payload, record_bytes_max=RECORD_BYTES_MAX, commands=PUBLISHED)
        self._check_chunks(found, chunks, types)
        found_count = 0
        for chunk in chunks:
            found_count += chunk.records
        if count != found_count:
            self._check_count(found, found_count, count)
        topics = self._topics
        runs = [run_of(chunk, payload) for chunk in chunks]
        if topics.has_targets:
            runs = [moved for run in runs for moved in topics.routed(run)]
        known = self._intake.known.get(found.publisher)
        if self._may_have_gaps(found, known, found_count):
            gaps: Gaps = [], [], []
            for run in runs:
                entry = topics[run.topic, run.message_type]
                gaps[0 if entry.journaled else 1 if entry.declared else 2].extend(run.ranges())
            self._check_gaps(found, known, gaps)
        return runs

    def batch_scan(
        self,
        session: int,
        payload: bytes,
        count: int = 0,
        types: frozenset[bytes] = frozenset(),
    ) -> BatchScan:
        """Checks a client's batch as `runs` does, a slice at a time."""
        found = self._sessions[session]

        def check_end(found_count: int, gaps: Gaps) -> None:
            self._check_count(found, found_count, count)
            known = self._intake.known.get(found.publisher)
            if self._may_have_gaps(found, known, found_count):
                self._check_gaps(found, known, gaps)

        return BatchScan(
            payload,
            self._topics,
            lambda chunks: self._check_chunks(found, chunks, types),
            check_end,
        )

    def _check_chunks(
        self, session: _Session, chunks: list[Chunk], types: frozenset[bytes]
    ) -> None:
        publisher, topics = session.publisher, self._topics
        for chunk in chunks:
            if chunk.publisher != publisher:
                raise RemoteProtocolError(
                    f"client {session.client} sent a record of another publisher, "
                    f"{chunk.publisher}: build records with the id from the logon answer",
                    "foreign_publisher",
                )
            if chunk.last_sequence > gap_limit.SEQUENCES_PLAUSIBLE:
                known = self._intake.known.get(publisher)
                self._check_step(session, chunk.last_sequence, known)
            refusal = topics[chunk.topic, chunk.message_type].refusal
            if refusal:
                raise RemoteProtocolError(refusal, "bad_record")
            if types and chunk.message_type not in types:
                raise RemoteProtocolError(
                    not_of_transport(chunk.message_type.decode(), types), "bad_message_type"
                )

    def _check_count(self, session: _Session, found_count: int, count: int) -> None:
        if count and found_count != count:
            raise RemoteProtocolError(
                f"client {session.client} sent {found_count} records and said {count}: "
                "`n` of a publish batch is the number of its records",
                "bad_record",
            )

    def _may_have_gaps(
        self, session: _Session, known: SequenceSet | None, found_count: int
    ) -> bool:
        pieces = 0
        if session.has_aside:
            pieces = session.unjournaled.pieces + session.refused.pieces
        if known is not None:
            pieces += known.pieces
        return found_count + pieces > session.pieces_max

    def _check_step(self, session: _Session, sequence: int, known: SequenceSet | None) -> None:
        # The fault ends the session: sequences ascend within a session, so later ones would lie as
        # high.
        highest = self._intake.highest.get(session.publisher, 0)
        gap_limit.check_step(f"client {session.client}", sequence, highest, known)

    def _check_gaps(self, session: _Session, known: SequenceSet | None, ranges: Gaps) -> None:
        gap_limit.check_gaps(session.client, known, ranges[0])
        # These sets stay until they are acknowledged, which is at once: one batch may have any
        # gaps.
        for held, more in ((session.unjournaled, ranges[1]), (session.refused, ranges[2])):
            if held.pieces >= gap_limit.PIECES_MAX:
                gap_limit.check_gaps(session.client, held, more)
        session.pieces_max = self.gaps.grows(
            session.user, session.client, session.publisher, known, ranges[0]
        )

    def asks(self, runs: Sequence[Run], answers: LookupResult) -> LookupRequest:
        """Returns what must be read from the journal before these runs are published, and what the
        topics' states must look up."""
        questions = self._intake.asks(runs, answers, None)
        for run in runs:
            if run.flags & _COMMANDS:
                session = self._session_of.get(run.publisher)
                judge = None if session is None else session.judge
                if judge is not None and not judge.writes_some(run.topic):
                    continue  # A delete is refused there, and nothing else needs a look-up.
                state = self._topics[run.topic, run.message_type].state_of(run)
                fresh = None if state is None else self._fresh(run)
                if state is not None and fresh is not None:
                    if questions is NOTHING_ASKED:
                        questions = self._intake.request()
                    questions.looking += answers.looks(state.looks_for(fresh, judge))
        return questions

    def _fresh(self, run: Run) -> Run | None:
        """Returns the part of a run that is not known here yet."""
        publisher = run.publisher
        if run.first_sequence > self._intake.highest.get(publisher, 0):
            return run
        known = self._intake.known.of(publisher)
        missing = [piece for a, b in run.ranges() for piece in known.missing(a, b)]
        return run.select(missing) if missing else None

    def published(
        self,
        session: int,
        runs: list[Run],
        now_us: int,
        answers: LookupResult,
        resent: Resent = None,
    ) -> list[Run]:
        """Takes a client's records; everything that `asks` asked for is in `answers`.

        Returns the runs of topics that are declared as not journaled: they are delivered at once
        and count as durable. Messages that nothing would store (`_refusal`), and those that their
        topic's state does not accept, are refused.
        """
        found = self._sessions[session]
        publisher = found.publisher
        topics = self._topics
        self._intake.begin(answers)
        if self._intake.suspects:
            runs = self._isolated(found, runs, answers)
        if found.judge is not None:
            runs = self._judged(found, found.judge, runs, answers, now_us)
        if not found.is_named and runs:
            self._remember_name(found)
        transient: list[Run] = []
        for run in runs:
            if not found.received:
                found.counted = run.first_sequence - 1
            if run.last_sequence > found.received:
                found.received = run.last_sequence
            entry = topics[run.topic, run.message_type]
            if not entry.journaled:
                self.dirty.add(session)
                refused = self._refusal(run)
                if refused is not None:
                    self._refuse(found, (refused,))
                    continue
                run.receive_time_us = now_us + self._intake.wall_offset_us
                found.has_aside = True
                for first, last in run.ranges():
                    found.unjournaled.add(first, last)
                transient.append(run)
                continue
            state = entry.state
            claims = entry.claiming if resent is not None else ()
            if run.flags & _COMMANDS:
                state, claims = entry.state_of(run), ()
                if state is None:
                    refused = self._refusal(run)
                    assert refused is not None
                    self._refuse(found, (refused,))
                    continue
            self._counters.published += run.count
            claim = partial(self._claim, claims, resent or "", now_us) if claims else None
            if run.first_sequence > self._intake.highest.get(publisher, 0):
                self._take(found, run, now_us, state, claim)
            else:
                self._published_again(found, run, now_us, state, claim)
        if not self._intake.staged:
            self.dirty.add(session)
        return transient

    def _judged(
        self, session: _Session, judge: Judge, runs: list[Run], answers: LookupResult, now_us: int
    ) -> list[Run]:
        """Returns the parts of the runs that the session may publish. Messages that are here
        already are not judged again: otherwise they would be called refused although the log has
        them. Messages of topics without a log are always judged, because they are delivered once
        more."""
        left: list[Run] = []
        for run in runs:
            entry = self._topics[run.topic, run.message_type]
            fresh = self._fresh(run) if entry.journaled else run
            if fresh is not None and fresh is not run:
                new = SequenceSet()
                for first, last in fresh.ranges():
                    new.add(first, last)
                known = run.select([p for a, b in run.ranges() for p in new.missing(a, b)])
                if known is not None:
                    answers.hold_for(known, run)
                    left.append(known)
            if fresh is None:
                left.append(run)
                continue
            judged = partial(judge, by_record=entry.judges_records)
            made = self._intake.in_hand(fresh, judged)
            left += made.runs
            self.authored(made.authored, now_us)
            self._refuse_unseen(session, run, made.refused)
        return left

    def _isolated(self, session: _Session, runs: list[Run], answers: LookupResult) -> list[Run]:
        """Splits the runs so that each message that may have crashed an earlier process stands
        alone."""
        left: list[Run] = []
        for run in runs:
            known = self._intake.known.of(run.publisher)
            held = [piece for a, b in run.ranges() for piece in known.within(a, b)]
            parts, refused = self._intake.suspects.isolated(run, held)
            for part in parts:
                if part is not run:
                    answers.hold_for(part, run)
            left += parts
            self._refuse_unseen(session, run, refused)
        return left

    def _refuse_unseen(
        self, session: _Session, run: Run, refused: Sequence[RefusedRecords]
    ) -> None:
        """Refuses records of a run without examining the run any further."""
        if refused:
            if not session.received:
                session.counted = run.first_sequence - 1
            session.received = max(session.received, run.last_sequence)
            self._refuse(session, refused)

    def _refusal(self, run: Run) -> RefusedRecords | None:
        """Returns why a client's run is refused that nothing would store or execute; None where it
        is accepted."""
        entry = self._topics[run.topic, run.message_type]
        if not entry.declared:
            why = self._topics.undeclared(run.topic, run.message_type)
            return RefusedRecords(run.ranges(), *why)
        if run.flags & _COMMANDS and entry.state_of(run) is None:
            command = run.payload[COMMAND_AT]
            why = self._topics.unchanged(run.topic, run.message_type, command)
            return RefusedRecords(run.ranges(), *why)
        return None

    def _claim(self, queues: Iterable[ClaimingQueue], given: str, now_us: int, run: Run) -> None:
        """Journals a claim of ownership ahead of a message that is sent again and is new here:
        another instance may have it as well, as published there. The claim alone does no harm."""
        wall_us = now_us + self._intake.wall_offset_us
        for queue in queues:
            claims = queue.claims(run.publisher, run.ranges(), given, wall_us)
            self.authored(claims, now_us)

    def _refuse(self, session: _Session, refused: Iterable[RefusedRecords]) -> None:
        """Refuses records. The refusals are sent before the ack that covers their sequences."""
        session.has_aside = True
        for ranges, reason, text in refused:
            for first, last in ranges:
                session.refused.add(first, last)
            self._out.emit(RefuseClient(session.number, ranges, reason, text))
        self.dirty.add(session.number)

    def _take(
        self,
        session: _Session,
        run: Run,
        now_us: int,
        state: Stateful | None,
        claim: Callable[[Run], None] | None,
    ) -> None:
        """Journals the new part of a run as its topic's state would have it.

        Args:
            claim: called before each part that is journaled; None: no claim is needed.
        """
        runs: Sequence[Run] = (run,)
        if state is not None:
            runs, refused, authored = self._intake.prepared(state, run, now_us, session.judge)
            if refused:
                self._counters.published -= run.count - sum(left.count for left in runs)
                self._refuse(session, refused)
            self.authored(authored, now_us)
        for left in runs:
            if claim is not None:
                claim(left)
            left.flags |= Flag.AWAITED
            self._intake.append(left, self._durability.own_root, CLIENT, now_us, state)

    def published_unnumbered(
        self, session: int, run: Run, command_id: str, now_us: int
    ) -> RefusedRecords | None:
        """Takes one publish that the server numbered (`number_for`) and that the session's judge
        has allowed. Returns why it is refused; None: it is taken, and answered when it is
        durable."""
        refusal = self._refusal(run)
        if refusal is not None:
            return refusal
        state = self._topics[run.topic, run.message_type].state_of(run)
        if state is not None:
            judge = self._sessions[session].judge
            left, refused, authored = self._intake.prepared(state, run, now_us, judge)
            self.authored(authored, now_us)
            if not left:
                return refused[0]
            (run,) = left
        if run.first_sequence == 1:
            self.names.claim(run.publisher, NO_CLIENT)
        self._counters.published += 1
        if command_id:
            self._unnumbered[(run.publisher, run.first_sequence)] = (session, command_id)
        run.flags |= Flag.AWAITED
        self._intake.append(run, self._durability.own_root, CLIENT, now_us, state)
        return None

    def authored(self, runs: Sequence[Run], now_us: int) -> None:
        """Journals records that the instance itself wrote (self_publisher.py), and waits for them
        as for a client's, but sends no ack. The topic's state adds nothing to them.

        Raises:
            LocalProtocolError: a topic is not in the transaction log; nothing was taken.
        """
        for run in runs:
            if not self._topics[run.topic, run.message_type].journaled:
                raise LocalProtocolError(
                    f"{self._identity.name} wrote a record on topic {run.topic!r}, which is not in "
                    "its transaction log: it would never take effect"
                )
            self.names.claim(run.publisher, NO_CLIENT)
        for run in runs:
            run.flags |= Flag.AWAITED
            state = self._topics[run.topic, run.message_type].state_of(run)
            self._intake.append(run, self._durability.own_root, CLIENT, now_us, state)

    def number_for(self, client: str) -> tuple[int, int]:
        """Returns the publisher id and the next sequence for a client that does not number its
        publishes.

        Each life of the instance has ids of its own: an old copy of the data directory that was put
        back neither knows that it is one, nor which numbers its lost tail used, which peers hold.

        Raises:
            RemoteProtocolError: there is no next one.
        """
        of = self._identity.incarnation, self._identity.life
        publisher = unnumbered_publisher_id(client, *of)
        sequence = self._intake.highest.get(publisher, 0) + 1
        if sequence > SEQUENCE_MAX:
            raise RemoteProtocolError(
                f"client {client} has no sequence left here, the highest is {SEQUENCE_MAX}: number "
                "its publishes, or choose another client name",
                "sequence_exhausted",
            )
        return publisher, sequence

    def _published_again(
        self,
        session: _Session,
        run: Run,
        now_us: int,
        state: Stateful | None,
        claim: Callable[[Run], None] | None,
    ) -> None:
        """Takes a client's run of which a part may be known already. It is not acknowledged as a
        duplicate, but when it is durable here."""
        publisher = run.publisher
        ranges = run.ranges()
        known = self._intake.known.of(publisher)
        fresh = [piece for a, b in ranges for piece in known.missing(a, b)]
        old = [piece for a, b in ranges for piece in known.within(a, b)]
        if old:
            self._counters.duplicates += sum(b - a + 1 for a, b in old)
            conflicts = self._intake.conflicts(run, old)
            if conflicts:
                for a, b in conflicts:
                    for sequence in range(a, b + 1):
                        session.failures[sequence] = (
                            "sequence_conflict",
                            f"sequence {sequence} of {session.client} is held with another content"
                            ", command or expiration: a publisher lost its store, or two clients "
                            "have this name",
                        )
                self.dirty.add(session.number)
                self._intake.report_conflict(session.client, publisher, conflicts)
                unsound = SequenceSet(conflicts)
                old = [piece for a, b in old for piece in unsound.missing(a, b)]
            self._intake.note(self._durability.own_root, CLIENT, publisher, old, now_us)
        if fresh:
            part = run.select(fresh)
            assert part is not None
            self._take(session, part, now_us, state, claim)
        self.dirty.add(session.number)

    # -- ends --------------------------------------------------------------------------------
    def senders_of(self, undone: RunStaged | NoteStaged) -> set[int]:
        """Returns the sessions that sent an entry whose append failed."""
        found: set[int] = set()
        run = undone.run
        session = self._session_of.get(run.publisher)
        if undone.sender == CLIENT and session is not None:
            found.add(session.number)
        if isinstance(undone, RunStaged):
            # A publish that was numbered here: its publisher has no session, but its command has.
            asked = self._unnumbered.pop((run.publisher, run.first_sequence), None)
            if asked is not None:
                found.add(asked[0])
        return found

    def close(self, session: int, reason: str, text: str) -> None:
        self._out.emit(CloseSession(session, reason, text))
        self.left(session)

    def close_all(self, reason: str, text: str) -> None:
        for session in list(self._sessions):
            self.close(session, reason, text)

    def forget(self) -> None:
        self.dirty.clear()

    # -- answers -----------------------------------------------------------------------------
    def flush(self) -> None:
        """Emits what sessions are to be told, once per step."""
        book = self._book
        if book.durable:
            for publisher, ranges in book.durable:
                session = self._session_of.get(publisher)
                if session is not None:
                    self.dirty.add(session.number)
                if self._unnumbered:
                    self._answer_unnumbered(publisher, ranges)
            book.durable.clear()
        if book.refused:
            for refusal in book.refused:
                self._refused(refusal)
            book.refused.clear()
        if self.dirty:
            for number in self.dirty:
                session = self._sessions.get(number)
                if session is not None:
                    self._ack(session)
            self.dirty.clear()

    def _refused(self, refusal: DestinationRefusal) -> None:
        """Tells the publishing sessions that a destination holds other contents under these
        identities."""
        destination, publisher, ranges, undone = refusal
        session = self._session_of.get(publisher)
        if session is not None and session.received:
            # Messages that came on this session and are not answered. A client has forgotten the
            # answers of an earlier session, and messages that it sends again are refused then.
            for a, b in ranges:
                for sequence in range(a, b + 1):
                    if sequence > session.counted:
                        session.failures[sequence] = (
                            "sequence_conflict",
                            f"{destination} holds sequence {sequence} of "
                            f"{session.client} with another content",
                        )
            self.dirty.add(session.number)
        if self._unnumbered:
            self._answer_unnumbered(
                publisher,
                list(undone),
                "sequence_conflict",
                f"{destination} holds another content under the number that "
                f"{self._identity.name} gave it: publish it again",
            )

    def _answer_unnumbered(
        self, publisher: int, ranges: list[Range], reason: str = "", text: str = ""
    ) -> None:
        for a, b in ranges:
            for sequence in range(a, b + 1):
                found = self._unnumbered.pop((publisher, sequence), None)
                if found is not None:
                    self._counters.persisted += not reason
                    self._out.emit(AckClient(found[0], sequence, reason, text, found[1]))

    def _ack(self, session: _Session) -> None:
        pending = self._durability.pending.get(self._durability.own_root, session.publisher)
        if session.failures and pending is not None:
            pending = pending.copy()
            for sequence in session.failures:
                pending.remove(sequence, sequence)
        lowest = pending.first() if pending is not None else None
        settled = session.received if lowest is None else min(lowest - 1, session.received)
        if session.failures:
            for sequence in sorted(session.failures):
                if sequence > settled:
                    break
                reason, text = session.failures.pop(sequence)
                if sequence - 1 > session.acked:
                    self._success(session, sequence - 1)
                self._out.emit(AckClient(session.number, sequence, reason, text))
                session.acked = session.counted = max(session.acked, sequence)
        if settled > session.acked:
            self._success(session, settled)

    def _success(self, session: _Session, upto: int) -> None:
        """Acknowledges everything up to `upto` as durable, except what was refused."""
        unjournaled = aside = 0
        if session.has_aside:
            unjournaled = _taken(session.unjournaled, upto)
            aside = unjournaled + _taken(session.refused, upto)
            session.has_aside = bool(session.unjournaled or session.refused)
        self._counters.persisted += max(upto - session.counted - aside, 0)
        session.counted = max(session.counted, upto)
        session.acked = upto
        self._out.emit(AckClient(session.number, upto, unjournaled=unjournaled))


def _conflict(client: str, publisher: int) -> str:
    return (
        f"client name {client!r} has the publisher id {publisher:016x}, which belongs to another "
        "client name: its messages would pass for that one's. Choose another client name"
    )


def _taken(sequences: SequenceSet, upto: int) -> int:
    """Removes the sequences up to `upto`, and returns their number."""
    if not sequences:
        return 0
    count = sum(b - a + 1 for a, b in sequences.within(1, upto))
    sequences.remove(1, upto)
    return count
