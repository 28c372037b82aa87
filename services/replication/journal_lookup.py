"""Journal look-ups that the machine needs before it takes a batch: asked on the event loop, read in
a thread, and answered together with the batch.

The machine itself never waits for a disk. What comes again (`InstanceMachine.asks`) makes it want
to know, of messages that are on disk: whether they say the same, where they are routed to, and for
one that came late, what came behind it on its topic. `LookupTask` reads that, a part at a time, and
keeps of it only what is asked: no payload outlives its part.

What was read stays true: committed runs never change, and what is removed never comes back. (But
for what was the highest on a topic; see `InstanceMachine.asks`.)
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any, NamedTuple, Protocol

from raylay.services.messages.content_digest import Content, content_keys
from raylay.services.messages.ranges import PublisherRanges, Range, SequenceSet
from raylay.services.messages.records import Run
from raylay.services.messages.stateful import PendingLookup
from raylay.services.replication.acknowledgment import CLIENT, Route
from raylay.services.replication.link.content import DestinationFilters
from raylay.services.replication.staged import RoutedMessages, StagedLog, routes_of

READS_IN_STEP = 4
"""Stretches of the log that one step reads: others wait for the reading thread, too."""


class RunLookupProtocol(Protocol):
    """The interface of `RunLookup`."""

    @property
    def reads(self) -> int:
        """The number of times that it has read the log."""

    def look_anew(self) -> None:
        """Forgets what was removed since it was read."""

    def part(self, publisher: int, wanted: SequenceSet) -> list[Run]:
        """Committed runs that hold some of `wanted`, which is not empty; takes out of it what it
        has found and what is not here."""

    def highest_on_topic(self, publisher: int, topic: bytes, wanted: SequenceSet) -> int:
        """The highest of `wanted` that is on the topic, or in no segment any more; 0: none."""


class RunOverlap(NamedTuple):
    """A run that came, and those of its sequences that are on disk."""

    run: Run
    wanted: SequenceSet


class LookupRequest:
    """The look-up that an arrival needs. Lifecycle: until a `LookupTask` has been through it.

    Args:
        contents: the filters that say where messages go.
    """

    __slots__ = ("compared", "contents", "looking", "routed", "topics")

    def __init__(self, contents: DestinationFilters | None = None) -> None:
        self.contents = contents if contents is not None else DestinationFilters()
        self.compared: list[RunOverlap] = []
        self.routed = PublisherRanges()
        """Messages of which only the route is asked."""
        self.topics: dict[tuple[int, bytes], SequenceSet] = {}
        """(publisher, topic), and among which sequences the highest on it is asked."""
        self.looking: list[PendingLookup] = []
        """Look-ups of topics with state, outside the journal."""

    def __bool__(self) -> bool:
        return bool(self.compared or self.topics or self.routed.sets or self.looking)


class LookupResult:
    """The result of the look-up for one arrival. Lifecycle: until the machine has taken it."""

    __slots__ = (
        "_compared",
        "_differing",
        "_highest",
        "_looking",
        "_routed",
        "_routes",
        "decoded",
        "failures",
    )

    def __init__(self) -> None:
        self.decoded: Any = None
        """The arrival, as it was decoded when it was asked for."""
        self.failures = 0
        """Number of commits that had failed when it was asked for."""
        self._compared: dict[int, RunOverlap] = {}
        self._differing: dict[int, SequenceSet] = {}
        self._routed = PublisherRanges()
        self._routes: dict[int, dict[Route, RoutedMessages]] = {}
        self._highest: dict[tuple[int, bytes], int] = {}
        self._looking: dict[int, PendingLookup] = {}

    def looks(self, looking: Iterable[PendingLookup]) -> list[PendingLookup]:
        """Takes over what is looked for, until `close`; what of it is not done."""
        found = list(looking)
        for each in found:
            self._looking[id(each)] = each
        return [each for each in found if not each.done]

    def close(self) -> None:
        """The arrival was taken, or never will be."""
        for each in self._looking.values():
            each.close()
        self._looking.clear()

    def clear(self) -> None:
        """Forgets what was read."""
        for each in (self._compared, self._differing, self._routes, self._highest):
            each.clear()
        self._routed = PublisherRanges()

    def not_compared(self, run: Run, wanted: SequenceSet) -> SequenceSet:
        """Takes out of `wanted` what the run was compared with."""
        found = self._compared.get(id(run))
        if found is not None:
            wanted.difference_update(found.wanted)
        return wanted

    def not_routed(self, publisher: int, wanted: SequenceSet) -> SequenceSet:
        """Takes out of `wanted` what was looked for."""
        found = self._routed.get(publisher)
        if found is not None:
            wanted.difference_update(found)
        return wanted

    def hold_for(self, part: Run, whole: Run) -> None:
        """Keeps what was read for a run for a part of it, too: as long as that lives."""
        found = self._compared.get(id(whole))
        if found is not None:
            self._compared[id(part)] = found
            self._differing[id(part)] = self._differing[id(whole)]

    def differing(self, run: Run) -> SequenceSet:
        """Returns the sequences of the run that are on disk with another content."""
        return self._differing.get(id(run)) or SequenceSet()

    def routes(self, publisher: int, sender: int, wanted: SequenceSet) -> Iterable[RoutedMessages]:
        """Returns where those of `wanted` go to that are on disk, for a sender who waits for
        them."""
        for route, found in self._routes.get(publisher, {}).items():
            part = found.ranges.intersection(wanted)
            if part:
                yield RoutedMessages(route._replace(sender=sender), found.first_txid, part)

    def highest_on(self, publisher: int, topic: bytes) -> int | None:
        """The highest of the sequences asked for that is on the topic; None: it was not asked."""
        return self._highest.get((publisher, topic))

    # -- reading -----------------------------------------------------------------------------
    def was_compared(self, asked: RunOverlap, differing: SequenceSet) -> None:
        """The run was compared with all that is on disk of what was asked."""
        at = id(asked.run)
        before = self._compared.get(at)
        if before is None:
            self._compared[at] = asked
            self._differing[at] = differing
        else:
            before.wanted.update(asked.wanted)
            self._differing[at].update(differing)
        self.was_routed(asked.run.publisher, asked.wanted)

    def was_routed(self, publisher: int, wanted: SequenceSet) -> None:
        """All that is on disk of these was looked at."""
        self._routed.of(publisher).update(wanted)

    def route(self, publisher: int, found: list[Run], contents: DestinationFilters) -> None:
        """Notes where these go to. Of one route they are told together, by the lowest transaction
        id: there may be a run for each message."""
        routes = self._routes.setdefault(publisher, {})
        for run in found:
            first_txid = run.first_txid
            for route, theirs in routes_of(run, CLIENT, run.ranges(), contents):
                known = routes.get(route)
                ranges = known.ranges if known is not None else SequenceSet()
                for first, last in theirs:
                    ranges.add(first, last)
                lowest = first_txid if known is None else min(known.first_txid, first_txid)
                routes[route] = RoutedMessages(route, lowest, ranges)

    def highest_is(self, publisher: int, topic: bytes, highest: int) -> None:
        """Notes the highest sequence on a topic."""
        self._highest[publisher, topic] = highest


class LookupPlanner:
    """Says what must be read of the journal. Owner: the machine, whose tables these are.

    Args:
        known: what is held, staged included.
        highest: the highest sequence of each publisher.
        topics: ... on each topic, as far as it is known.
        staged: what is not on disk yet, or just came there, and is compared in memory.
        contents: the filters that say where messages go.
    """

    __slots__ = ("_contents", "_highest", "_known", "_staged", "_topics", "failures")

    def __init__(
        self,
        known: PublisherRanges,
        highest: Mapping[int, int],
        topics: Mapping[int, Mapping[bytes, int]],
        staged: StagedLog,
        contents: DestinationFilters | None = None,
    ) -> None:
        self._contents = contents
        self._known = known
        self._highest = highest
        self._topics = topics
        self._staged = staged
        self.failures = 0
        """Number of commits that failed: then the machine forgets what was the highest on a
        topic."""

    def of(self, runs: Iterable[Run], answers: LookupResult) -> LookupRequest:
        """Returns the look-up that these runs need. None of it, for all that is new."""
        questions = LookupRequest(self._contents)
        if answers.failures != self.failures:
            answers.clear()
            answers.failures = self.failures
        highest = self._highest
        for run in runs:
            if run.first_sequence <= highest.get(run.publisher, 0):
                self._of(run, answers, questions)
        return questions

    def _of(self, run: Run, answers: LookupResult, questions: LookupRequest) -> None:
        publisher, topic = run.publisher, run.topic
        ranges = run.ranges()
        held = self.on_disk(publisher, ranges)
        if held and answers.not_compared(run, held):
            questions.compared.append(RunOverlap(run, held))
        is_known = topic in self._topics.get(publisher, ())
        if is_known or answers.highest_on(publisher, topic) is not None:
            return
        if any(self._known.of(publisher).missing(a, b) for a, b in ranges):
            # A part of it may be late.
            behind = self.on_disk(publisher, [(run.first_sequence, self._highest[publisher])])
            if behind:
                questions.topics.setdefault((publisher, topic), SequenceSet()).update(behind)

    def routes(
        self, questions: LookupRequest, publisher: int, ranges: list[Range], answers: LookupResult
    ) -> None:
        """Adds what is asked of messages that are held and noted."""
        wanted = answers.not_routed(publisher, self.on_disk(publisher, ranges))
        if wanted:
            questions.routed.of(publisher).update(wanted)

    def on_disk(self, publisher: int, ranges: list[Range]) -> SequenceSet:
        """Returns the ranges that are known and not in memory."""
        known = self._known.get(publisher)
        if known is None or not ranges:
            return SequenceSet()
        found = SequenceSet(piece for a, b in ranges for piece in known.within(a, b))
        if found:
            for run in self._staged.runs(publisher, ranges[0][0], ranges[-1][1]):
                for first, last in run.ranges():
                    found.remove(first, last)
        return found


class LookupTask:
    """Reads what was asked for, in bounded parts. Owner: one thread at a time; it touches nothing
    that another one changes. Lifecycle: `step` until it has said that it is done; then `look`, on
    the instance's loop, until that has.

    Args:
        answers: where it notes what it reads.
    """

    def __init__(self, questions: LookupRequest, answers: LookupResult) -> None:
        self._compared = questions.compared[::-1]
        self._routed = list(questions.routed.sets.items())
        self._topics = list(questions.topics.items())
        self._looking = questions.looking
        self._answers = answers
        self._contents = questions.contents
        self._left: SequenceSet | None = None
        self._comparison: RunComparison | None = None

    @property
    def waits_for_turn(self) -> bool:
        """True where it asks for another turn of the loop and for nothing else."""
        is_read = not (self._compared or self._routed or self._topics)
        return is_read and all(each.done for each in self._looking)

    def step(self, lookup: RunLookupProtocol) -> bool:
        """Reads on. Whether all is read.

        Raises:
            StorageError: the journal cannot be read.
        """
        lookup.look_anew()
        before = lookup.reads
        while lookup.reads - before < READS_IN_STEP:
            if self._compared:
                self._compare(lookup)
            elif self._routed:
                self._route(lookup)
            elif self._topics:
                (publisher, topic), wanted = self._topics.pop()
                highest = lookup.highest_on_topic(publisher, topic, wanted)
                self._answers.highest_is(publisher, topic, highest)
            else:
                break
        return not (self._compared or self._routed or self._topics)

    def look(self, most: int) -> bool:
        """Looks on for what topics with state are asked, at so many records at most. Whether all
        is found.

        Raises:
            StorageError: what is on disk cannot be read.
        """
        looking = self._looking
        while looking and looking[0].done:
            looking.pop(0)
        if looking:
            looking[0].take(most)
        return all(each.done for each in looking)

    def _compare(self, lookup: RunLookupProtocol) -> None:
        asked = self._compared[-1]
        if self._comparison is None:
            self._comparison = RunComparison(asked)
        found, is_done = self._part(lookup, asked.run.publisher, asked.wanted)
        self._comparison.look(found)
        if is_done:
            self._answers.was_compared(asked, self._comparison.differing)
            self._comparison = None
            self._compared.pop()

    def _route(self, lookup: RunLookupProtocol) -> None:
        publisher, wanted = self._routed[-1]
        _, is_done = self._part(lookup, publisher, wanted)
        if is_done:
            self._answers.was_routed(publisher, wanted)
            self._routed.pop()

    def _part(
        self, lookup: RunLookupProtocol, publisher: int, wanted: SequenceSet
    ) -> tuple[list[Run], bool]:
        left = self._left
        if left is None:
            left = self._left = wanted.copy()
        found = lookup.part(publisher, left)
        self._answers.route(publisher, found, self._contents)
        if not left:
            self._left = None
        return found, not left


def read_all(questions: LookupRequest, lookup: RunLookupProtocol) -> LookupResult:
    """Reads it all at once. Blocks."""
    answers = LookupResult()
    fetch = LookupTask(questions, answers)
    is_done = False
    while not is_done:
        is_done = fetch.step(lookup)
    return answers


def with_records(
    run: Run, ranges: list[Range], contents: DestinationFilters, lookup: RunLookupProtocol
) -> Iterator[tuple[Run, list[Range]]]:
    """Yields ranges of a committed run of which only the header may have been read, in pieces with
    their records where a content filter looks at them. Blocks."""
    if run.payload or not contents.looks_at(run.topic, run.message_type):
        yield run, ranges
        return
    whole, wanted = SequenceSet(ranges), SequenceSet(ranges)
    while wanted:
        for found in lookup.part(run.publisher, wanted):
            part = SequenceSet(found.ranges()).intersection(whole)
            if part:
                yield found, list(part)


class RunComparison:
    """A run that came, beside those that hold some of the same messages."""

    def __init__(self, asked: RunOverlap) -> None:
        self._run, self._wanted = asked
        self._first = asked.wanted.first() or 0
        self._last = asked.wanted.last() or 0
        self._contents: dict[int, Content] | None = None
        self.differing = SequenceSet()

    def look(self, others: Iterable[Run]) -> None:
        """Notes what others hold with another content."""
        run = self._run
        for other in others:
            first = max(self._first, other.first_sequence)
            last = min(self._last, other.last_sequence)
            # Most come again as they came: then one comparison of bytes tells for all of them.
            if first > last or other.payload == run.payload:
                continue
            contents = self._contents
            if contents is None:
                contents = self._contents = content_keys(run.payload, self._first, self._last)
            for sequence, content in content_keys(other.payload, first, last).items():
                if contents.get(sequence, content) != content and sequence in self._wanted:
                    self.differing.add(sequence, sequence)
