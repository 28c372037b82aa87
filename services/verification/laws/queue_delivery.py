"""The laws of a drill's queue load: the deliveries to consumers, compared with the publishers' own
record and the journals of the instances. Nothing here is shared with the queues of instances.

    lost        every message that was acknowledged to its publisher was delivered to a consumer,
                and is in the journal of every instance that has the queue
    left over   it has left the queue at every one of them, by an acknowledgment of a consumer, and
                no instance reports that something is left
    again       no instance delivers a message that has left the queue by its own journal
    owner       an instance delivers only messages that it owns by its own journal
    unpublished no consumer receives a message that nobody published

Queues promise delivery at least once, so a message that is delivered twice before it is
acknowledged violates nothing.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from raylay.services.verification.violation import VIOLATIONS_MAX, Key, Violation, listed, named

KNOWN_US = 1_000_000
"""Most time between a record's arrival at an instance, which its journal records, and the moment at
which it is on disk and in the queue. A delivery within this time after an acknowledgment is no
violation."""


class HandedMessage(NamedTuple):
    """A message that arrived at a consumer.

    Attributes:
        sent_us: the earliest time at which the instance can have sent it: not before the consumer's
            session began there.
    """

    time_us: int
    sent_us: int
    key: Key
    instance: str
    consumer: str
    region: str


class ArrivalSpan(NamedTuple):
    """Messages of one publisher in a journal, from `first` to `last`, that arrived at one time.

    Attributes:
        why: the reason why they leave the queue: `ack`, `expire`, or the reason of a removal;
            empty: they do not.
        owner: the instance that owns or brought them; empty: unknown.
    """

    time_us: int
    publisher: int
    first: int
    last: int
    why: str = ""
    owner: str = ""


@dataclass(slots=True)
class QueueJournal:
    """The records of a queue in the journal of one instance, in its order.

    Attributes:
        messages: the messages that arrived, with their first owner.
        gone: the messages that left the queue.
        moves: the messages that another instance took over.
    """

    messages: list[ArrivalSpan] = field(default_factory=list)
    gone: list[ArrivalSpan] = field(default_factory=list)
    moves: list[ArrivalSpan] = field(default_factory=list)


class ProducerRecord(NamedTuple):
    """The publishes of one publisher on the queue, and those of them that were acknowledged.

    Attributes:
        times_us: the time of each publish, by sequence.
    """

    publisher: int
    region: str
    times_us: Mapping[int, int]
    persisted: int

    def every(self) -> set[Key]:
        return {(self.publisher, sequence) for sequence in self.times_us}

    def owed(self) -> set[Key]:
        return {(self.publisher, n) for n in self.times_us if n <= self.persisted}


class ExcusedPeriod(NamedTuple):
    """A period in which an instance could not act on what it knew: it was stopped, its disk was
    full, or its clock was off."""

    instance: str
    since_us: int
    until_us: int


@dataclass(slots=True)
class QueueEvidence:
    """The evidence by which a queue load is judged.

    Attributes:
        given: the deliveries in order of time.
        acked: the messages that a consumer acknowledged.
        journals: the journals of the instances that have the queue.
        left: the number of messages that each instance's queue reports in the end.
        new: the instances that lost a disk; their journals lack everything before.
        excuses: see `ExcusedPeriod`.
    """

    produced: Sequence[ProducerRecord]
    given: Sequence[HandedMessage]
    acked: Collection[Key]
    journals: Mapping[str, QueueJournal]
    left: Mapping[str, int]
    new: Collection[str] = ()
    excuses: Sequence[ExcusedPeriod] = ()


def violations(found: QueueEvidence) -> list[Violation]:
    published = {key for record in found.produced for key in record.every()}
    owed = {key for record in found.produced for key in record.owed()}
    broken = [
        *_lost(found, owed),
        *_left_over(found, owed),
        *_again(found, published),
        *_owners(found, published),
        *_unpublished(found, published),
    ]
    return broken[:VIOLATIONS_MAX]


def keys_of(spans: Iterable[ArrivalSpan], wanted: Collection[Key]) -> dict[Key, ArrivalSpan]:
    """Returns the first span of each of these messages."""
    by_publisher: dict[int, list[int]] = {}
    for publisher, sequence in wanted:
        by_publisher.setdefault(publisher, []).append(sequence)
    for sequences in by_publisher.values():
        sequences.sort()
    found: dict[Key, ArrivalSpan] = {}
    for span in spans:
        sequences = by_publisher.get(span.publisher, [])
        # Whatever a record says it covers: only what is wanted is looked at.
        for sequence in sequences[
            bisect_left(sequences, span.first) : bisect_right(sequences, span.last)
        ]:
            found.setdefault((span.publisher, sequence), span)
    return found


def _lost(found: QueueEvidence, owed: set[Key]) -> Iterable[Violation]:
    never = owed - {delivery.key for delivery in found.given}
    if never:
        text = "were acknowledged to their publisher and delivered to no consumer"
        yield Violation("queue lost", f"{len(never):,} messages {text}: {listed(never)}")
    for name, journal in found.journals.items():
        if missing := owed - keys_of(journal.messages, owed).keys():
            text = f"{len(missing):,} messages are not in the journal of {name}: {listed(missing)}"
            yield Violation("queue lost", text)


def _left_over(found: QueueEvidence, owed: set[Key]) -> Iterable[Violation]:
    law = "queue left over"
    for name, journal in found.journals.items():
        gone = keys_of(journal.gone, owed)
        waiting = keys_of(journal.messages, owed).keys() - gone.keys()
        if waiting:
            text = f"{len(waiting):,} messages have not left the queue, by the journal of {name}"
            yield Violation(law, f"{text}: {listed(waiting)}")
        for why in sorted({span.why for span in gone.values()} - {"ack"}):
            undone = {key for key, span in gone.items() if span.why == why}
            text = (
                f"{len(undone):,} messages left the queue of {name} without an acknowledgment "
                f"({why})"
            )
            yield Violation(law, f"{text}: {listed(undone)}")
        if unsaid := {key for key, span in gone.items() if span.why == "ack"} - set(found.acked):
            text = f"{name} has acknowledgments that no consumer made"
            yield Violation(law, f"{text}: {listed(unsaid)}")
    for name, count in found.left.items():
        if count:
            yield Violation(law, f"{name} reports that {count:,} messages are still in its queue")


def _again(found: QueueEvidence, published: set[Key]) -> Iterable[Violation]:
    gone = {name: keys_of(each.gone, published) for name, each in found.journals.items()}
    for delivery in found.given:
        left = gone.get(delivery.instance, {}).get(delivery.key)
        if left is None:
            continue
        late_us = delivery.sent_us - _known_us(delivery, left.time_us, found.excuses)
        if late_us > 0:
            behind_ms = (delivery.sent_us - left.time_us) / 1000
            yield Violation(
                "queue again",
                f"{delivery.instance} delivered {named(delivery.key)} to {delivery.consumer} "
                f"{behind_ms:.0f} ms or more after its journal had it leave ({left.why})",
            )


def _known_us(each: HandedMessage, time_us: int, excuses: Iterable[ExcusedPeriod]) -> int:
    """Returns the latest time at which an instance's queue knows a record that arrived at the
    instance at `time_us`."""
    until_us = time_us
    for excuse in excuses:
        on = time_us < excuse.until_us and excuse.since_us <= each.time_us
        if excuse.instance == each.instance and on:
            until_us = max(until_us, excuse.until_us)
    return until_us + KNOWN_US


def _owners(found: QueueEvidence, published: set[Key]) -> Iterable[Violation]:
    for name, journal in found.journals.items():
        if name in found.new:
            continue
        given = {delivery.key: delivery for delivery in found.given if delivery.instance == name}
        own = {
            key
            for spans in (journal.messages, journal.moves)
            for key in keys_of((s for s in spans if s.owner in (name, "")), given)
        }
        for key in sorted((given.keys() & published) - own):
            text = (
                f"{name} delivered {named(key)} to {given[key].consumer}, which by its journal "
                "was never"
            )
            yield Violation("queue owner", f"{text} its own")


def _unpublished(found: QueueEvidence, published: set[Key]) -> Iterable[Violation]:
    ours = {record.publisher for record in found.produced}
    for delivery in found.given:
        if delivery.key[0] in ours and delivery.key not in published:
            text = f"{delivery.consumer} received {named(delivery.key)} from {delivery.instance}"
            yield Violation("queue unpublished", f"{text}: nobody published it")


# -- what it came to ------------------------------------------------------------------------------
class Kill(NamedTuple):
    """The consumers of a region were killed, and replaced later."""

    region: str
    began_us: int
    ended_us: int
    held: int
    """Messages that the consumers held and had not acknowledged."""


@dataclass(slots=True)
class Takeover:
    """The takeover of a region's messages by other regions while its consumers were away. Times in
    milliseconds.

    Attributes:
        first_ms: time from the kill until a consumer elsewhere had the first message of the region;
            None: no consumer ever had one.
        moved: number of messages of the region that consumers elsewhere received meanwhile.
        published: number of messages that were published in the region meanwhile.
        p50_ms, longest_ms: time from the publish of these messages until a consumer had them; 0:
            there were none.
    """

    region: str
    held: int
    first_ms: float | None = None
    moved: int = 0
    published: int = 0
    p50_ms: float = 0.0
    longest_ms: float = 0.0


def taken_over(
    kill: Kill, produced: Sequence[ProducerRecord], given: Sequence[HandedMessage]
) -> Takeover:
    """Measures how other regions took over a region's messages.

    Args:
        given: the deliveries in order of time.
    """
    found = Takeover(kill.region, kill.held)
    first = first_given(given)
    own = [record for record in produced if record.region == kill.region]
    keys = {key for each in own for key in each.every()}
    elsewhere = [
        delivery
        for delivery in given
        if delivery.key in keys
        and delivery.region != kill.region
        and kill.began_us < delivery.time_us <= kill.ended_us
    ]
    if elsewhere:
        found.first_ms = (elsewhere[0].time_us - kill.began_us) / 1000
        found.moved = len({delivery.key for delivery in elsewhere})
    waits_ms = sorted(
        (first[each.publisher, sequence].time_us - time_us) / 1000
        for each in own
        for sequence, time_us in each.times_us.items()
        if kill.began_us < time_us <= kill.ended_us and (each.publisher, sequence) in first
    )
    found.published = len(waits_ms)
    if waits_ms:
        found.p50_ms, found.longest_ms = waits_ms[len(waits_ms) // 2], waits_ms[-1]
    return found


def first_given(given: Iterable[HandedMessage]) -> dict[Key, HandedMessage]:
    """Returns the first delivery of each message to a consumer."""
    found: dict[Key, HandedMessage] = {}
    for delivery in given:
        found.setdefault(delivery.key, delivery)
    return found


@dataclass(slots=True)
class RegionTally:
    """The messages of one region's consumers.

    Attributes:
        given: number of deliveries to its consumers, including repeated ones.
        taken: number of these deliveries whose message was published in another region.
        acknowledged: number of messages that its consumers acknowledged.
    """

    published: int = 0
    given: int = 0
    taken: int = 0
    acknowledged: int = 0


@dataclass(slots=True)
class QueueVerdict:
    """The findings on the drills' queue.

    Attributes:
        published, persisted: the messages that were published, and those that were acknowledged to
            their publishers.
        moved: messages that were first delivered in another region than the one of their publish.
        again: messages that were delivered more than once.
        places: the instances whose journals and queues were judged.
        why: the reason why nothing was judged; empty: the queue was judged.
        notes: remarks on regions that had no part in it.
    """

    published: int = 0
    persisted: int = 0
    given: int = 0
    moved: int = 0
    again: int = 0
    places: list[str] = field(default_factory=list)
    regions: dict[str, RegionTally] = field(default_factory=dict)
    takeovers: list[Takeover] = field(default_factory=list)
    why: str = ""
    notes: list[str] = field(default_factory=list)
    broken: list[Violation] = field(default_factory=list)

    @property
    def sentence(self) -> str:
        if self.why:
            return f"Queues were not judged: {self.why}."
        wrong = len(self.broken)
        found = (
            f"{wrong:,} violation{'' if wrong == 1 else 's'} of the laws queue …"
            if wrong
            else (
                f"each was delivered to a consumer, has left the queue at all {len(self.places)} "
                "instances by an acknowledgment, and was not delivered again after it"
            )
        )
        notes = "".join(f" {note}" for note in self.notes)
        return (
            f"The queue took {self.persisted:,} messages that were acknowledged to their "
            f"publishers: {found}. {_were(self.moved)} first delivered in another region than the "
            f"one of their publish, and {_were(self.again)} delivered more than once, which a "
            f"queue of at-least-once delivery allows.{notes}"
        )


def _were(count: int) -> str:
    return f"{count:,} {'was' if count == 1 else 'were'}"


def verdict_of(
    found: QueueEvidence, done: Mapping[str, int], kills: Iterable[Kill], notes: Sequence[str] = ()
) -> QueueVerdict:
    """Judges a load on a queue.

    Args:
        done: number of messages that the consumers of a region acknowledged, by region. The
            verdict has the regions in this order.
    """
    region_of = {record.publisher: record.region for record in found.produced}
    given = [delivery for delivery in found.given if delivery.key[0] in region_of]
    verdict = QueueVerdict(
        sum(len(record.times_us) for record in found.produced),
        sum(len(record.owed()) for record in found.produced),
        len(given),
        places=list(found.journals),
        notes=list(notes),
        broken=violations(found),
        regions={region: RegionTally(acknowledged=count) for region, count in done.items()},
    )
    first = first_given(given)
    verdict.moved = sum(each.region != region_of[each.key[0]] for each in first.values())
    times: dict[Key, int] = {}
    for delivery in given:
        times[delivery.key] = times.get(delivery.key, 0) + 1
        tally = verdict.regions.setdefault(delivery.region, RegionTally())
        tally.given += 1
        tally.taken += delivery.region != region_of[delivery.key[0]]
    verdict.again = sum(count > 1 for count in times.values())
    for of in found.produced:
        verdict.regions.setdefault(of.region, RegionTally()).published += len(of.times_us)
    verdict.takeovers = [taken_over(kill, found.produced, given) for kill in kills]
    return verdict
