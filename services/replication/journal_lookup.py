"""Journal look-ups that the machine needs before it takes a batch: asked on the event loop, read in
a thread, and answered together with the batch.

The machine itself never waits for a disk. For messages that arrive again, `InstanceMachine.asks`
names what must be read about the copies on disk: whether their content is the same, where they are
routed to, and, for a late message, the sequences that followed it on its topic. `LookupTask` reads
that, a part at a time, and keeps only what was asked: payloads are dropped after their part.

Answers stay true: committed runs never change, and removed ones never come back. (The exception is
the highest sequence on a topic; see `InstanceMachine.asks`.)
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
"""Number of reads of the log in one step: other tasks wait for the reading thread, too."""


class RunLookupProtocol(Protocol):
    """The interface of `RunLookup`."""

    @property
    def reads(self) -> int:
        """Returns the number of times that the log was read."""

    def look_anew(self) -> None:
        """Forgets stretches that were read before, and removed from the journal since."""

    def part(self, publisher: int, wanted: SequenceSet) -> list[Run]:
        """Returns committed runs that hold some of `wanted`, which is not empty; removes from
        `wanted` the sequences that were found and those that the journal lacks."""

    def highest_on_topic(self, publisher: int, topic: bytes, wanted: SequenceSet) -> int:
        """Returns the highest of `wanted` that is on the topic or in no segment any more; 0:
        none."""


class RunOverlap(NamedTuple):
    """A run that arrived, and those of its sequences that are on disk here."""

    run: Run
    wanted: SequenceSet


class LookupRequest:
    """The look-up that an arrival needs. Lifecycle: until a `LookupTask` has been through it.

    Args:
        contents: the content filters of the destinations, which routes need.
    """

    __slots__ = ("compared", "contents", "looking", "routed", "topics")

    def __init__(self, contents: DestinationFilters | None = None) -> None:
        self.contents = contents if contents is not None else DestinationFilters()
        self.compared: list[RunOverlap] = []
        self.routed = PublisherRanges()
        """Messages whose route alone is asked for."""
        self.topics: dict[tuple[int, bytes], SequenceSet] = {}
        """Sequences, by publisher and topic, among which the highest on the topic is asked
        for."""
        self.looking: list[PendingLookup] = []
        """Look-ups of topics with state, outside the journal."""

    def __bool__(self) -> bool:
        return bool(self.compared or self.topics or self.routed.sets or self.looking)


NOTHING_ASKED = LookupRequest()
"""The look-up of an arrival that needs none; never changed."""


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
        """The arrival in decoded form, so that it is not decoded again when it is taken."""
        self.failures = 0
        """Number of failed commits at the time of the request."""
        self._compared: dict[int, RunOverlap] = {}
        self._differing: dict[int, SequenceSet] = {}
        self._routed = PublisherRanges()
        self._routes: dict[int, dict[Route, RoutedMessages]] = {}
        self._highest: dict[tuple[int, bytes], int] = {}
        self._looking: dict[int, PendingLookup] = {}

    def looks(self, looking: Iterable[PendingLookup]) -> list[PendingLookup]:
        """Takes over look-ups of topics with state, until `close`; returns those that are not
        done."""
        found = list(looking)
        for each in found:
            self._looking[id(each)] = each
        return [each for each in found if not each.done]

    def close(self) -> None:
        """Closes the look-ups: the arrival was taken, or never will be."""
        for each in self._looking.values():
            each.close()
        self._looking.clear()

    def clear(self) -> None:
        for each in (self._compared, self._differing, self._routes, self._highest):
            each.clear()
        self._routed = PublisherRanges()

    def not_compared(self, run: Run, wanted: SequenceSet) -> SequenceSet:
        """Removes from `wanted` the sequences with which the run was compared; returns the rest."""
        found = self._compared.get(id(run))
        if found is not None:
            wanted.difference_update(found.wanted)
        return wanted

    def not_routed(self, publisher: int, wanted: SequenceSet) -> SequenceSet:
        """Removes from `wanted` the sequences whose routes were read; returns the rest."""
        found = self._routed.get(publisher)
        if found is not None:
            wanted.difference_update(found)
        return wanted

    def hold_for(self, part: Run, whole: Run) -> None:
        """Makes the comparison of a whole run count for a part of the run, too."""
        found = self._compared.get(id(whole))
        if found is not None:
            self._compared[id(part)] = found
            self._differing[id(part)] = self._differing[id(whole)]

    def differing(self, run: Run) -> SequenceSet:
        """Returns the sequences of the run that are on disk with other content."""
        return self._differing.get(id(run)) or SequenceSet()

    def routes(self, publisher: int, sender: int, wanted: SequenceSet) -> Iterable[RoutedMessages]:
        """Returns the routes of those messages of `wanted` that are on disk, with `sender` as their
        waiter."""
        for route, found in self._routes.get(publisher, {}).items():
            part = found.ranges.intersection(wanted)
            if part:
                yield RoutedMessages(route._replace(sender=sender), found.first_txid, part)

    def highest_on(self, publisher: int, topic: bytes) -> int | None:
        """Returns the highest of the sequences asked for that is on the topic; None: the topic was
        not asked for."""
        return self._highest.get((publisher, topic))

    # -- reading -----------------------------------------------------------------------------
    def was_compared(self, asked: RunOverlap, differing: SequenceSet) -> None:
        """Notes that a run was compared with everything on disk that was asked for."""
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
        """Notes that the routes of all these messages, as far as they are on disk, were read."""
        self._routed.of(publisher).update(wanted)

    def route(self, publisher: int, found: list[Run], contents: DestinationFilters) -> None:
        """Notes the routes of runs. Messages with the same route are joined under their lowest
        transaction id, since there may be a run for each message."""
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
    """Plans what must be read from the journal. Owner: the machine, to which the tables given here
    belong.

    Args:
        known: all messages held here, staged ones included.
        highest: the highest sequence of each publisher.
        topics: the highest sequence of each publisher on each topic, as far as it is known.
        staged: runs that are not on disk yet, or have just been committed: they are compared in
            memory.
        contents: the content filters of the destinations, which routes need.
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
        """Number of failed commits. After each the machine forgets the highest sequences on
        topics."""

    def are_new(self, runs: Iterable[Run]) -> bool:
        """Returns whether each run lies above all that is known of its publisher, so that it needs
        no look-up: the common case."""
        highest = self._highest
        for run in runs:  # noqa: SIM110 (a generator would be a call for each run)
            if run.first_sequence <= highest.get(run.publisher, 0):
                return False
        return True

    def request(self) -> LookupRequest:
        """Returns a look-up that asks for nothing yet."""
        return LookupRequest(self._contents)

    def of(self, runs: Iterable[Run], answers: LookupResult) -> LookupRequest:
        """Returns the look-up that these runs need; an empty one where all of them are new."""
        questions = self.request()
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
            # A part of the run is new and may be late.
            behind = self.on_disk(publisher, [(run.first_sequence, self._highest[publisher])])
            if behind:
                questions.topics.setdefault((publisher, topic), SequenceSet()).update(behind)

    def routes(
        self, questions: LookupRequest, publisher: int, ranges: list[Range], answers: LookupResult
    ) -> None:
        """Adds messages to the look-up whose routes are needed, because they are held and were
        asked for in a notice."""
        wanted = answers.not_routed(publisher, self.on_disk(publisher, ranges))
        if wanted:
            questions.routed.of(publisher).update(wanted)

    def on_disk(self, publisher: int, ranges: list[Range]) -> SequenceSet:
        """Returns the part of the ranges that is held here and not in memory."""
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
    """Reads what a request asks for, in bounded parts. Owner: one thread at a time; the task
    touches nothing that another thread changes. Lifecycle: `step` in the reading thread until it
    returns True; then `look` on the instance's loop, until it returns True.

    Args:
        answers: takes the answers.
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
        """Returns whether everything is read and found, so that the task only waits for another
        turn of the loop."""
        is_read = not (self._compared or self._routed or self._topics)
        return is_read and all(each.done for each in self._looking)

    def step(self, lookup: RunLookupProtocol) -> bool:
        """Reads the next part. Returns whether everything is read.

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
        """Continues the look-ups of topics with state, over at most `most` records. Returns whether
        all are done.

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
    """Reads everything that a request asks for at once. Blocks."""
    answers = LookupResult()
    fetch = LookupTask(questions, answers)
    is_done = False
    while not is_done:
        is_done = fetch.step(lookup)
    return answers


def with_records(
    run: Run, ranges: list[Range], contents: DestinationFilters, lookup: RunLookupProtocol
) -> Iterator[tuple[Run, list[Range]]]:
    """Yields ranges of a committed run in pieces that have their records where a content filter
    needs them; of the run itself only the header may have been read. Blocks."""
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
    """The comparison of a run that arrived with other runs that hold some of the same messages."""

    def __init__(self, asked: RunOverlap) -> None:
        self._run, self._wanted = asked
        self._first = asked.wanted.first() or 0
        self._last = asked.wanted.last() or 0
        self._contents: dict[int, Content] | None = None
        self.differing = SequenceSet()

    def look(self, others: Iterable[Run]) -> None:
        """Compares other runs, and adds the sequences that they hold with other content to
        `differing`."""
        run = self._run
        for other in others:
            first = max(self._first, other.first_sequence)
            last = min(self._last, other.last_sequence)
            # Most runs arrive again unchanged: then one comparison of bytes settles all their
            # messages.
            if first > last or other.payload == run.payload:
                continue
            contents = self._contents
            if contents is None:
                contents = self._contents = content_keys(run.payload, self._first, self._last)
            for sequence, content in content_keys(other.payload, first, last).items():
                if contents.get(sequence, content) != content and sequence in self._wanted:
                    self.differing.add(sequence, sequence)
