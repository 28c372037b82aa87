"""The judgement over the journals of a fabric: which messages are missing or wrong, where, and why.

Pure functions. An instance *should* hold every message that the fabric's configuration brings to it
for certain, from each instance where messages were published (routes.py). Each message that it
lacks has a reason:

    removed       it was held, and its segment was removed since
    unavailable   the instance noted that no upstream has it any more
    conflicting   the instance refused it: it holds the same sequence with another content
    in_flight     it is missing for no longer than a message may be on its way
    owed          it is missing for longer, and it stands above all that the instance has from where
                  it was published: it can still come, as behind a link that is down
    lost          none of these: later messages of the same way are here

The verdict is bad if a message is `lost`, or `owed` for longer than a bound. Messages that the
configuration does not bring to an instance are listed apart, with the reason in the configuration,
and do no harm.

`judge` finds all reasons but the last three. These depend on how long a message has been missing,
which a second pass over the journals finds (ages.py); `settle` takes its answers.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from raylay.services.messages.ranges import PublisherRanges, SequenceSet
from raylay.services.pipeline.audit.ages import Age, AgeQuestion
from raylay.services.pipeline.audit.origins import UNKNOWN, Origin
from raylay.services.pipeline.audit.parts import HeldPart, LogContents, Timeline

RANGES_MAX = 10
"""Most ranges that an entry names; the entry counts all."""
EXAMPLES_MAX = 10
REASONS = ("lost", "owed", "in_flight", "conflicting", "unavailable", "removed")
"""Reasons why messages are missing, the worst first."""
MAX_OWED_S_DEFAULT = 60.0
"""Default of the most time that a link may owe a message: enough for a link to reconnect after a
restart and to bring what it owes."""


class Expectation(Protocol):
    """Returns where a message should be."""

    def __call__(
        self, origin: str, topic: str, message_type: str, former: bool = False
    ) -> Mapping[str, str] | None:
        """Returns, by instance, the reason why a message need not be there; an instance that is not
        named should have it. None: where the message should be is not known.

        Args:
            origin: the instance where the message was published; empty: unknown.
            former: whether the message was published before the instance lost its data or was
                moved.
        """


@dataclass(slots=True)
class Share:
    """The messages of one topic at one instance.

    Attributes:
        expected: number of messages that the instance should hold.
        held: number of distinct messages that it holds, expected or not.
        lacking: number of expected messages that it lacks, by reason.
        not_expected: number of messages that it lacks and need not hold, by reason.
    """

    expected: int = 0
    held: int = 0
    lacking: dict[str, int] = field(default_factory=dict)
    not_expected: dict[str, int] = field(default_factory=dict)


@dataclass(slots=True)
class Audit:
    """The result of an audit.

    Attributes:
        instances: the numbers of messages, duplicates, out_of_order and late of each instance.
        messages: number of copies, at all instances.
        published: number of distinct messages.
        unknown_origin: number of the distinct messages whose place of publish is unknown, so that
            the instances that should have them are not known.
        missing: messages that an instance should hold and lacks, by publisher, topic and reason;
            for `owed` with the seconds since it is owed, `for_s`.
        not_expected: messages that an instance lacks because the configuration does not bring them
            there.
        out_of_order, late, duplicates, conflicts_found: entries by publisher (and instance, topic),
            with ranges.
        conflicts: sequences that exist with different contents.
        sow: the comparison of the instances' SOW topics, a dict for each topic (sow.py). It does
            not change the verdict, because two publishers may have written one key at once.
        damaged: a sentence for each place that could not be read and was left out.
        not_checked: a few words for each question that could not be answered, because an instance
            does not tell its clients (network.py). None where journals are read.
        matrix: shares by (topic, message type), by instance.
        times: messages by time of receipt, by instance.
        max_owed_s: most time that a message may be owed before the verdict is bad.
    """

    instances: dict[str, dict[str, int]] = field(default_factory=dict)
    messages: int = 0
    published: int = 0
    publishers: int = 0
    unknown_origin: int = 0
    missing: list[dict[str, Any]] = field(default_factory=list)
    not_expected: list[dict[str, Any]] = field(default_factory=list)
    out_of_order: list[dict[str, Any]] = field(default_factory=list)
    late: list[dict[str, Any]] = field(default_factory=list)
    duplicates: list[dict[str, Any]] = field(default_factory=list)
    conflicts: int = 0
    conflicts_found: list[dict[str, Any]] = field(default_factory=list)
    damaged: list[str] = field(default_factory=list)
    not_checked: list[str] = field(default_factory=list)
    sow: list[dict[str, Any]] = field(default_factory=list)
    matrix: dict[tuple[str, str], dict[str, Share]] = field(default_factory=dict)
    times: dict[str, Timeline] = field(default_factory=dict)
    max_owed_s: float = MAX_OWED_S_DEFAULT
    seconds: float = 0.0

    @property
    def lost(self) -> int:
        """Returns the number of messages that an instance should hold and whose absence nothing
        explains."""
        return self.lacking("lost")

    def lacking(self, reason: str) -> int:
        """Returns the number of messages that instances should hold and lack for this reason."""
        return sum(name["messages"] for name in self.missing if name["reason"] == reason)

    def count(self, name: str) -> int:
        """Returns the sum of a figure of `instances`."""
        return sum(instance[name] for instance in self.instances.values())

    def owed(self) -> dict[str, tuple[int, float]]:
        """Returns, for each instance, how many messages are owed to it, and the seconds since the
        first one is."""
        found: dict[str, tuple[int, float]] = {}
        for name in self.missing:
            if name["reason"] == "owed":
                messages, for_s = found.get(name["instance"], (0, 0.0))
                for_s = max(for_s, name["for_s"])
                found[name["instance"]] = messages + name["messages"], for_s
        return found

    def owed_notes(self, *, overdue: bool) -> list[str]:
        """Describes the owed messages, a few words for each instance.

        Args:
            overdue: whether those are described that are owed for longer than allowed, or the
                others.
        """
        return [
            f"{messages:,} owed for up to {for_s:,.0f} s at {instance}"
            for instance, (messages, for_s) in self.owed().items()
            if (for_s > self.max_owed_s) is overdue
        ]

    @property
    def valid(self) -> bool:
        """Returns whether every message is where it should be, or is not owed for long, once, in
        order, with one content."""
        return not self.faults()

    def faults(self) -> list[str]:
        """Returns a few words for each fault that makes the verdict bad."""
        found = [
            (self.lost, "lost"),
            (self.count("duplicates"), "held more than once"),
            (self.count("out_of_order"), "out of order"),
            (self.conflicts, "with different contents"),
        ]
        told = [f"{count:,} {what}" for count, what in found if count]
        told += self.owed_notes(overdue=True)
        if self.damaged:
            told.append(f"{len(self.damaged):,} damaged places left out")
        return told

    def to_json(self) -> dict[str, Any]:
        return {
            "valid": self.valid,
            "messages": self.messages,
            "published": self.published,
            "publishers": self.publishers,
            "lost": self.lost,
            "owed": {
                instance: {"messages": messages, "for_s": for_s}
                for instance, (messages, for_s) in self.owed().items()
            },
            "in_flight": self.lacking("in_flight"),
            "duplicates": self.count("duplicates"),
            "out_of_order": self.count("out_of_order"),
            "conflicts": self.conflicts,
            "late": self.count("late"),
            "unknown_origin": self.unknown_origin,
            "instances": self.instances,
            "missing": self.missing,
            "not_expected": self.not_expected,
            "found": {
                "duplicates": self.duplicates,
                "out_of_order": self.out_of_order,
                "conflicts": self.conflicts_found,
                "late": self.late,
            },
            "damaged": self.damaged,
            "not_checked": self.not_checked,
            "sow": self.sow,
            "seconds": round(self.seconds, 1),
        }


@dataclass(frozen=True, slots=True)
class UnexplainedGap:
    """Messages that an instance lacks, and whose absence nothing in the journals explains.

    Attributes:
        reason: `owed` or `lost`, where they are not on their way.
    """

    instance: str
    publisher: int
    topic: str
    message_type: str
    reason: str
    sequences: SequenceSet

    @property
    def question(self) -> AgeQuestion:
        return AgeQuestion(self.publisher, self.sequences)


def judge(
    logs: Mapping[str, LogContents], why: Expectation, origins: Mapping[str, Origin]
) -> tuple[Audit, list[UnexplainedGap]]:
    """Judges the journals.

    Args:
        logs: the contents of each instance's journal.
        why: tells where a message should be.
        origins: the origin of each incarnation, 16 hex digits (origins.py).

    Returns: / the result, and the gaps that `settle` has to fill in. `conflicting` fills in
    contents.
    """
    found = Audit()
    keys: set[tuple[int, str]] = set()
    distinct: dict[int, SequenceSet] = defaultdict(SequenceSet)
    for name, log in logs.items():
        found.instances[name] = _instance(log, found)
        found.times[name] = log.times
        found.damaged += log.damaged
        keys |= log.topics.keys()
        for (publisher, _), held in log.topics.items():
            distinct[publisher].update(held.held)
    found.messages = found.count("messages")
    found.published = sum(each.count for each in distinct.values())
    found.publishers = len(distinct)
    left: list[UnexplainedGap] = []
    for key in sorted(keys):
        here = {name: log.topics[key] for name, log in logs.items() if key in log.topics}
        for message_type, published in sorted(_published(here, origins).items()):
            topic = _PublisherTopic(key, message_type, here, published, origins)
            left += _judge_topic(topic, logs, why, found)
    _sort(found)
    return found, left


def settle(found: Audit, left: Sequence[UnexplainedGap], ages: Mapping[int, Age]) -> None:
    """Adds the missing messages without an explanation to the audit: old ones by their reason, and
    recent ones as still on their way.

    Args:
        ages: the old messages of each gap, and their ages, by the gap's index in `left`.
    """
    on_the_way: dict[tuple[str, int, str, str], SequenceSet] = defaultdict(SequenceSet)
    for number, each in enumerate(left):
        age = ages.get(number, Age())
        what = each.instance, each.publisher, each.topic, each.message_type
        old = each.sequences.intersection(age.old)
        new = each.sequences.copy()
        new.difference_update(old)
        if new:
            on_the_way[what].update(new)
        if old:
            more = {"for_s": round(age.age_us / 1e6, 1)} if each.reason == "owed" else {}
            _add_missing(found, what, each.reason, old, more)
    for what, new in on_the_way.items():
        _add_missing(found, what, "in_flight", new, {})
    _sort(found)


def _sort(found: Audit) -> None:
    found.missing.sort(key=lambda each: REASONS.index(each["reason"]))


def _add_missing(
    found: Audit,
    what: tuple[str, int, str, str],
    reason: str,
    sequences: SequenceSet,
    more: Mapping[str, Any],
) -> None:
    instance, _, topic, message_type = what
    lacking = found.matrix[topic, message_type][instance].lacking
    lacking[reason] = lacking.get(reason, 0) + sequences.count
    found.missing.append({**_entry(*what, reason), **ranges_named(sequences), **more})


def _instance(log: LogContents, found: Audit) -> dict[str, int]:
    """Returns the numbers of messages, duplicates, and messages out of order or late at one
    instance. Adds their sequences, by publisher and topic, to the lists of `found`."""
    counts = {"messages": 0, "duplicates": 0, "out_of_order": 0, "late": 0}
    identities = PublisherRanges()
    for (publisher, topic), held in sorted(log.topics.items()):
        where = {"instance": log.instance, "publisher": publisher, "topic": topic}
        # The same identity on another topic is a second copy, too.
        known = identities.of(publisher)
        repeated = held.held.intersection(known)
        repeated.update(held.repeated)
        known.update(held.held)
        counts["messages"] += held.messages
        counts["out_of_order"] += held.out_of_order.count
        counts["late"] += held.late_messages
        for entries, sequences in (
            (found.duplicates, repeated),
            (found.out_of_order, held.out_of_order),
            (found.late, held.late),
        ):
            if sequences:
                entries.append(where | ranges_named(sequences))
    counts["duplicates"] = counts["messages"] - identities.count
    return counts


def _published(
    here: Mapping[str, HeldPart], origins: Mapping[str, Origin]
) -> dict[str, dict[Origin, SequenceSet]]:
    """Returns, by message type and origin, the sequences that were published there, as far as the
    journal of any instance shows them."""
    made: dict[str, dict[Origin, SequenceSet]] = defaultdict(lambda: defaultdict(SequenceSet))
    for instance, held in here.items():
        for (message_type, incarnation), sequences in held.origins.items():
            made[message_type][_origin(instance, incarnation, origins)].update(sequences)
    for by_origin in made.values():
        unknown = by_origin.pop(UNKNOWN, None)
        if unknown is None:
            continue
        for sequences in by_origin.values():
            unknown.difference_update(sequences)
        if unknown:
            by_origin[UNKNOWN] = unknown
    return made


def _origin(instance: str, incarnation: str, origins: Mapping[str, Origin]) -> Origin:
    """Returns the origin that an instance reports for a publish; without an incarnation it was
    published at the instance itself."""
    return origins.get(incarnation, UNKNOWN) if incarnation else Origin((instance,))


@dataclass(slots=True)
class _PublisherTopic:
    """The messages of one publisher and message type on one topic, at all instances."""

    key: tuple[int, str]
    message_type: str
    here: Mapping[str, HeldPart]
    published: Mapping[Origin, SequenceSet]
    origins: Mapping[str, Origin]

    def held(self, instance: str) -> SequenceSet:
        """Returns the sequences that an instance holds of the publisher's messages on the topic,
        whatever their message type."""
        found = self.here.get(instance)
        return found.held if found is not None else SequenceSet()

    def highest(self, instance: str, origin: Origin) -> int:
        """Returns the highest sequence that an instance holds of this message type, among the
        messages that were published at this origin or at an unknown one. Another message type may
        come over another link."""
        found = self.here.get(instance)
        if found is None:
            return 0
        return max(
            (
                sequences.last() or 0
                for (message_type, incarnation), sequences in found.origins.items()
                if message_type == self.message_type
                and _origin(instance, incarnation, self.origins) in (UNKNOWN, origin)
            ),
            default=0,
        )

    def to_come(self, instance: str, lacking: SequenceSet) -> SequenceSet:
        """Returns the missing sequences above the instance's highest one from the same origin:
        still in flight, not lost. None where the messages were published at the instance itself,
        which never gets them again."""
        found = SequenceSet()
        for origin, sequences in self.published.items():
            if origin == Origin((instance,)):
                continue
            first = self.highest(instance, origin) + 1
            last = lacking.last() or 0
            if first <= last:
                above = SequenceSet(lacking.within(first, last))
                found.update(above.intersection(sequences))
        return found


def _judge_topic(
    topic: _PublisherTopic, logs: Mapping[str, LogContents], why: Expectation, found: Audit
) -> Iterator[UnexplainedGap]:
    publisher, name = topic.key
    wanted: dict[str, SequenceSet] = defaultdict(SequenceSet)
    excused: dict[tuple[str, str], SequenceSet] = defaultdict(SequenceSet)
    sources: dict[tuple[str, str], set[str]] = defaultdict(set)
    for origin, sequences in topic.published.items():
        reasons = _reasons(origin, name, topic.message_type, why)
        if reasons is None:
            found.unknown_origin += sequences.count
            continue
        for instance in logs:
            reason = reasons.get(instance, "")
            if not reason:
                wanted[instance].update(sequences)
            else:
                excused[instance, reason].update(sequences)
                sources[instance, reason].add(str(origin))
    shares = found.matrix.setdefault((name, topic.message_type), {})
    everything = SequenceSet()
    for sequences in topic.published.values():
        everything.update(sequences)
    for instance in logs:
        share = shares.setdefault(instance, Share())
        share.held += everything.intersection(topic.held(instance)).count
        share.expected += wanted[instance].count
        what = instance, publisher, name, topic.message_type
        lacking = wanted[instance].copy()
        lacking.difference_update(topic.held(instance))
        for reason, explained in _explained(lacking, publisher, logs[instance]):
            _add_missing(found, what, reason, explained, {})
            lacking.difference_update(explained)
        to_come = topic.to_come(instance, lacking)
        lacking.difference_update(to_come)
        for reason, unexplained in (("owed", to_come), ("lost", lacking)):
            if unexplained:
                yield UnexplainedGap(*what, reason, unexplained)
    for (instance, reason), sequences in excused.items():
        # What another instance published as well is expected, whoever was first.
        sequences.difference_update(wanted[instance])
        sequences.difference_update(topic.held(instance))
        if sequences:
            share = shares[instance]
            count = sequences.count
            share.not_expected[reason] = share.not_expected.get(reason, 0) + count
            entry = _entry(instance, publisher, name, topic.message_type, reason)
            entry |= ranges_named(sequences)
            found.not_expected.append(entry | {"published_at": sorted(sources[instance, reason])})


def _reasons(
    origin: Origin, topic: str, message_type: str, why: Expectation
) -> Mapping[str, str] | None:
    """Returns the reasons as `Expectation` does. Where the origin is one of several instances,
    returns the reasons that apply for any of them."""
    found: dict[str, str] = {}
    for name in origin.names or ("",):
        reasons = why(name, topic, message_type, origin.former)
        if reasons is None:
            return None
        found = {**reasons, **found}
    return found


def _explained(
    lacking: SequenceSet, publisher: int, log: LogContents
) -> Iterator[tuple[str, SequenceSet]]:
    """Yields the missing sequences that the instance's journal explains, by reason. The caller
    takes each out."""
    for reason, noted in (
        ("removed", log.removed),
        ("unavailable", log.unavailable),
        ("conflicting", log.conflicting),
    ):
        sequences = noted.get(publisher)
        explained = lacking.intersection(sequences) if sequences is not None else None
        if explained:
            yield reason, explained


def _entry(
    instance: str, publisher: int, topic: str, message_type: str, reason: str
) -> dict[str, Any]:
    return {
        "instance": instance,
        "publisher": publisher,
        "topic": topic,
        "message_type": message_type,
        "reason": reason,
    }


def ranges_named(sequences: SequenceSet) -> dict[str, Any]:
    """Returns the number of sequences, and the first of their ranges."""
    ranges = list(sequences)
    return {
        "messages": sequences.count,
        "ranges": [list(each) for each in ranges[:RANGES_MAX]],
        "ranges_in_all": len(ranges),
    }


def conflicting(found: Audit, sequences: PublisherRanges) -> None:
    found.conflicts = sequences.count
    found.conflicts_found = [
        {"publisher": publisher} | ranges_named(each)
        for publisher, each in sorted(sequences.sets.items())
        if each
    ]
