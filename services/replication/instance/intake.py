"""The intake of the machine: decides whether a message is known, late, or different from the
content that is here, and keeps what goes to the journal, which may fail to write it.

Before it hands runs in, the shell asks `asks` what must be read from the journal, has that read in
a thread, and passes the answers to `begin`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from raylay.services.errors import RaylayError
from raylay.services.messages.ranges import PublisherRanges, Range, SequenceSet
from raylay.services.messages.records import Flag, Kind, Run, path_through
from raylay.services.messages.stateful import PreparedRun, Stateful, WritePermission
from raylay.services.messages.suspects import Suspects
from raylay.services.replication.acknowledgment import CLIENT, UNAWAITED
from raylay.services.replication.effects import Append, Ranges, Rooted
from raylay.services.replication.instance.durability import Durability
from raylay.services.replication.instance.effect_list import EffectList
from raylay.services.replication.journal_lookup import (
    NOTHING_ASKED,
    LookupPlanner,
    LookupRequest,
    LookupResult,
    RunComparison,
    RunOverlap,
)
from raylay.services.replication.link.content import DestinationFilters
from raylay.services.replication.notes import encode_note
from raylay.services.replication.staged import (
    BatchStaged,
    Entry,
    NoteStaged,
    RoutedMessages,
    RunStaged,
    StagedLog,
    routes_of,
)
from raylay.services.replication.unavailable import UnavailableMessages
from raylay.services.replication.values import Counters

TOPICS_KNOWN_MAX = 100_000
"""Number of pairs of a publisher and a topic whose highest sequence is kept in memory, about 170
bytes each. Above that number they are forgotten, and the journal is asked again when a message
arrives late."""


class Intake:
    """Decides on every message that arrives, and stages those that are new.

    Invariants: known = held (committed) + staged; transaction ids are given in the order of
    `staged`, and `next_txid` is the next one.
    Owner: the instance's machine. Lifecycle: as long as the machine.

    Args:
        next_txid, known: the next transaction id, and the known messages, as recovered from the
            journal.
        missing: messages that no upstream has any more.
        recent_bytes_max: bytes of the last committed runs that are kept in memory, to answer
            instead of the journal.
        contents: the content filters of all destinations.
        states: the states of all topics that have one.
        suspects: messages during which earlier processes crashed; None: no crash is recorded.

    Attributes:
        known: all messages that are on disk here or staged; other parts only read it.
        highest: the highest sequence of each publisher; other parts only read it.
        staged: entries on their way to the disk; the machine removes committed ones.
        wall_offset_us: microseconds by which the wall clock is ahead of `now_us`. `now_us` is
            steady and measures ages; records carry wall-clock times.
    """

    __slots__ = (
        "_answers",
        "_asking",
        "_contents",
        "_counters",
        "_durability",
        "_out",
        "_states",
        "_topic_highest",
        "_topics_kept",
        "_topics_known",
        "highest",
        "known",
        "missing",
        "next_txid",
        "staged",
        "suspects",
        "wall_offset_us",
    )

    def __init__(
        self,
        durability: Durability,
        out: EffectList,
        counters: Counters,
        *,
        next_txid: int = 1,
        known: PublisherRanges,
        missing: UnavailableMessages,
        recent_bytes_max: int = 0,
        contents: DestinationFilters | None = None,
        states: Iterable[Stateful] = (),
        suspects: Suspects | None = None,
    ) -> None:
        self._durability = durability
        self._states = tuple(states)
        self._contents = contents if contents is not None else DestinationFilters()
        self._out = out
        self._counters = counters
        self.next_txid = next_txid
        self.known = known
        self.missing = missing
        self.wall_offset_us = 0
        self.suspects = Suspects() if suspects is None else suspects
        self.highest: dict[int, int] = {}
        for publisher, ranges in known.sets.items():
            last = ranges.last()
            if last is not None:
                self.highest[publisher] = last
        self._topic_highest: dict[int, dict[bytes, int]] = {}
        self._topics_known = self._topics_kept = 0
        self.staged = StagedLog(recent_bytes_max)
        self._asking = LookupPlanner(
            known, self.highest, self._topic_highest, self.staged, self._contents
        )
        self._answers = LookupResult()
        """Answers to the look-up for the arrival that is being taken."""

    # -- asking ------------------------------------------------------------------------------
    def asks(
        self, runs: Sequence[Run], answers: LookupResult, noted: Rooted | None
    ) -> LookupRequest:
        """Returns what must be read from the journal before these runs are taken, beyond what
        `answers` already holds."""
        if self._topics_known > self._topics_kept + TOPICS_KNOWN_MAX:
            # Forgotten here, before a look-up is asked for, and never between a look-up and the use
            # of its answers.
            self._out.is_changing = True
            self._forget_topics()
            self._out.is_changing = False
        if not noted and self._asking.are_new(runs):
            return NOTHING_ASKED
        questions = self._asking.of(runs, answers)
        for root, asked in (noted or {}).items():
            for publisher, ranges in asked.items():
                news = self._durability.not_awaited(root, publisher, ranges)
                acceptable = self._durability.acceptable(publisher, news)
                self._asking.routes(questions, publisher, acceptable, answers)
        return questions

    def request(self) -> LookupRequest:
        """Returns a look-up that asks for nothing yet."""
        return self._asking.request()

    def begin(self, answers: LookupResult) -> None:
        """Takes what the shell has read for the arrival that is taken next."""
        self._answers = answers

    # -- what comes in -----------------------------------------------------------------------
    def prepared(
        self, state: Stateful, run: Run, now_us: int, permission: WritePermission | None
    ) -> PreparedRun:
        """Returns what a client published on a topic with state, as that would have it journaled.

        Args:
            permission: the client's write permission; None: the client may write everything.
        """
        return self.in_hand(
            run, lambda each: state.prepare(each, now_us + self.wall_offset_us, now_us, permission)
        )

    def in_hand(self, run: Run, work: Callable[[Run], PreparedRun]) -> PreparedRun:
        """Returns the result of work on a client's run, which is not journaled. Meanwhile the
        messages are written down as suspects: if the process crashes, the next one knows them."""
        suspects = self.suspects
        suspects.begin(run)
        try:
            made = work(run)
        except RaylayError:
            suspects.end()  # A disk fault is not the fault of a message.
            raise
        suspects.end()
        return made

    def append(self, run: Run, root: int, sender: int, now_us: int, state: Stateful | None) -> None:
        """Takes a new run: its messages are known from here on, and go to the journal.

        Args:
            state: state of the run's topic, which is told the value as it is staged.
        """
        publisher = run.publisher
        run.first_txid = self.next_txid
        run.receive_time_us = now_us + self.wall_offset_us
        self.next_txid += run.count
        highest = self.highest.get(publisher, 0)
        if run.first_sequence <= highest:
            self._mark_late(run)
        if run.last_sequence > highest:
            self.highest[publisher] = run.last_sequence
        topics = self._topic_highest.get(publisher)
        if topics is None:
            topics = self._topic_highest[publisher] = {}
        before = topics.get(run.topic, 0)
        if run.last_sequence > before:
            topics[run.topic] = run.last_sequence
            self._topics_known += not before
        if run.flags & Flag.CONTIGUOUS:
            self.known.of(publisher).add(run.first_sequence, run.last_sequence)
            self._durability.stage(root, publisher, run.first_sequence, run.last_sequence)
        else:
            ranges = run.ranges()
            self.known.add_ranges(publisher, ranges)
            self._durability.stage_ranges(root, publisher, ranges)
        self.staged.append(RunStaged(self.next_txid - 1, run, root, sender))
        if state is not None:
            state.staged(run)
        self._out.emit(Append(run))

    def _forget_topics(self) -> None:
        """Forgets the highest sequences on topics, except those with a run in memory: the journal
        is not asked for those, and their runs may be late themselves."""
        known = self._topic_highest.copy()
        self._topic_highest.clear()
        for run in self.staged.in_memory():
            highest = known.get(run.publisher, {}).get(run.topic)
            if highest is not None:
                self._topic_highest.setdefault(run.publisher, {})[run.topic] = highest
        self._topics_known = self._topics_kept = sum(map(len, self._topic_highest.values()))
        # Earlier answers of the journal may be older than runs whose sequences are forgotten now.
        self._asking.failures += 1

    def _mark_late(self, run: Run) -> None:
        """Flags a run as late when a higher sequence of its publisher is known on its topic (law
        3)."""
        topics = self._topic_highest.setdefault(run.publisher, {})
        highest = topics.get(run.topic)
        if highest is None:
            # Unknown since the start or a failed commit: asks the journal.
            highest = topics[run.topic] = self._highest_in_journal(run)
            self._topics_known += 1
        if run.first_sequence < highest:
            run.flags |= Flag.LATE
            self._counters.late += run.count
            self._out.report(
                "late",
                topic=run.topic.decode("utf-8", "replace"),
                publisher=run.publisher,
                first=run.first_sequence,
                last=run.last_sequence,
            )

    def _highest_in_journal(self, run: Run) -> int:
        """Returns the publisher's highest journaled sequence on the run's topic, as far as it lies
        above the run. In removed segments the topic of a sequence is unknown, so a sequence there
        counts: a message flagged late for nothing is better than a late one that is not flagged."""
        publisher, topic = run.publisher, run.topic
        found = self._answers.highest_on(publisher, topic)
        if found is None:
            behind = [(run.first_sequence, self.highest[publisher])]
            if self._asking.on_disk(publisher, behind):
                raise _unread(f"the highest on {topic!r}", publisher)
            return 0  # The higher sequences are in memory, on other topics.
        return found

    def note(
        self, root: int, sender: int, publisher: int, ranges: list[Range], now_us: int
    ) -> None:
        """Takes an awaited arrival of messages that are known. Where this instance was not awaited
        for them for this root, a note goes to disk, and the sender becomes their waiter."""
        news = self._durability.not_awaited(root, publisher, ranges)
        if not news:
            return
        news = list(SequenceSet(news))
        run = encode_note(root, sender, publisher, news)
        run.first_txid = self.next_txid
        run.receive_time_us = now_us + self.wall_offset_us
        self.next_txid += 1
        self._durability.stage_ranges(root, publisher, news)
        routes = self.routes_of(sender, publisher, news)
        self.staged.append(NoteStaged(run.first_txid, run, root, sender, publisher, news, routes))
        self._out.emit(Append(run))

    def routes_of(self, sender: int, publisher: int, ranges: list[Range]) -> list[RoutedMessages]:
        """Returns the routes of these messages, as far as they are staged or in the journal."""
        wanted = SequenceSet(ranges)
        found = []
        for run in self.staged.runs(publisher, *_span(ranges)):
            part = SequenceSet(run.ranges()).intersection(wanted)
            if part:
                routes = routes_of(run, sender, list(part), self._contents)
                found += [
                    RoutedMessages(route, run.first_txid, SequenceSet(theirs))
                    for route, theirs in routes
                ]
        on_disk = self._asking.on_disk(publisher, ranges)
        if on_disk:
            found += self._answers.routes(publisher, sender, on_disk)
            if self._answers.not_routed(publisher, on_disk):
                raise _unread("the routes", publisher)
        return found

    def batch(
        self, connection: int, number: int, touched: Rooted, caught_up: bool, contested: Ranges
    ) -> None:
        """Notes that all of an upstream's batch came in: the batch counts as stored when everything
        that is staged now is on disk."""
        # The differing content may itself only be staged: nothing is told of it before its commit,
        # either.
        last_txid = self.next_txid - 1
        self.staged.append(
            BatchStaged(last_txid, connection, number, touched, caught_up, contested)
        )

    def conflicts(self, run: Run, old: list[Range]) -> list[Range]:
        """Returns the sequences of `old` that are held here with other content than the run's
        records have."""
        on_disk = self._asking.on_disk(run.publisher, old)
        found = SequenceSet()
        if on_disk:
            found.update(self._answers.differing(run))
            if self._answers.not_compared(run, on_disk):
                raise _unread("the contents", run.publisher)
        staged = self.staged.runs(run.publisher, *_span(old))
        if staged:
            comparison = RunComparison(RunOverlap(run, SequenceSet(old)))
            comparison.look(staged)
            found.update(comparison.differing)
        refused = self._durability.refused.get(run.publisher)
        if refused is not None:
            # The content here equals the run's, and differs from a destination's: it is
            # acknowledged to nobody.
            for a, b in old:
                for piece in refused.within(a, b):
                    found.add(*piece)
        return list(found)

    def keep_conflict(
        self, run: Run, ranges: list[Range], upstream: int, group: str, now_us: int
    ) -> None:
        """Journals a note about messages that an upstream brought with other content than is held
        here."""
        part = run.select(ranges)
        assert part is not None
        note = Run(
            run.publisher,
            part.first_sequence,
            part.last_sequence,
            1,
            part.payload,
            run.topic,
            run.message_type,
            path_through(run.path, upstream),
            group,
            0,
            Kind.CONFLICT,
            self.next_txid,
            now_us,
        )
        self.next_txid += 1
        self.staged.append(NoteStaged(note.first_txid, note, UNAWAITED, CLIENT, run.publisher, []))
        self._out.emit(Append(note))

    def report_conflict(self, source: str, publisher: int, ranges: list[Range]) -> None:
        """Counts and reports messages that a source (a client or an instance) has with other
        content."""
        self._counters.conflicts += sum(b - a + 1 for a, b in ranges)
        self._out.report("conflict", source=source, publisher=publisher, ranges=ranges[:8])

    def judge_missing(self) -> None:
        """Journals notes about missing messages that no upstream can bring any more."""
        for run in self.missing.judged():
            run.first_txid = self.next_txid
            self.next_txid += 1
            note = NoteStaged(run.first_txid, run, UNAWAITED, CLIENT, run.publisher, [])
            self.staged.append(note)
            self._out.emit(Append(run))

    # -- what did not come to the disk -------------------------------------------------------
    def undo(self) -> list[Entry]:
        """Forgets all that is staged, because the journal could not write it, and returns it. The
        highest sequences on topics are read from the journal from then on."""
        self._asking.failures += 1
        undone = list(self.staged)
        self.staged.clear()
        self.next_txid = self._durability.committed_txid + 1
        for entry in undone:
            if isinstance(entry, NoteStaged):
                if entry.run.kind == Kind.UNAVAILABLE:
                    self.missing.not_noted(entry.run)
                # The ranges of a note were not awaited before it, so undoing them loses nothing.
                self._durability.undo(entry.root, entry.publisher, entry.ranges)
            elif isinstance(entry, RunStaged):
                publisher, ranges = entry.run.publisher, entry.run.ranges()
                self.known.remove_ranges(publisher, ranges)
                self._durability.undo(entry.root, publisher, ranges)
                known = self.known.get(publisher)
                last = known.last() if known is not None else None
                self.highest[publisher] = last or 0
                self._topics_known -= len(self._topic_highest.pop(publisher, ()))
        for state in self._states:
            state.failed(self._durability.committed_txid)
        return undone

    # -- questions ---------------------------------------------------------------------------
    def held(self) -> PublisherRanges:
        """Returns every sequence that is on disk here, as a copy."""
        held = self.known.copy()
        for entry in self.staged:
            if isinstance(entry, RunStaged):
                held.remove_ranges(entry.run.publisher, entry.run.ranges())
        return held

    @property
    def messages_on_disk(self) -> int:
        """Returns the number of sequences in `held`, without copying it: each is a message of the
        log, or was one before its segment was removed."""
        staged = sum(entry.run.count for entry in self.staged if isinstance(entry, RunStaged))
        return self.known.count - staged

    def known_of(self, theirs: Ranges) -> Ranges:
        """Returns the part of the ranges that is known here. Other messages cannot have been sent
        from here."""
        found: Ranges = {}
        for publisher, ranges in theirs.items():
            known = self.known.get(publisher)
            pieces = [piece for a, b in ranges for piece in known.within(a, b)] if known else []
            if pieces:
                found[publisher] = pieces
        return found

    def lacked(self, theirs: Ranges) -> PublisherRanges:
        """Returns the ranges that are not known here."""
        found = PublisherRanges()
        for publisher, ranges in theirs.items():
            known = self.known.get(publisher)
            for a, b in ranges:
                found.add_ranges(publisher, known.missing(a, b) if known else [(a, b)])
        return found


def _span(ranges: list[Range]) -> Range:
    return ranges[0][0], ranges[-1][1]


def _unread(what: str, publisher: int) -> RuntimeError:
    """Returns an error of the shell, which did not read what `asks` returned. The machine cannot go
    on: it is in the middle of a step."""
    return RuntimeError(f"{what} of publisher {publisher} were not read before it came in")
