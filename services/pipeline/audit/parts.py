"""The audit's view of one stretch of a journal, and the sum of stretches. Values in, values out.

A stretch is read once, by whichever worker has it, in any order. What comes of it is small and
loses nothing that the judgement asks for: exact sets of sequences, a checksum of the contents for
each block of 4,096 sequences, and, for the order, which sequences stand above all that the stretch
had before and which do not. So what comes before a stretch can be taken into account when the
stretches of a log are put together (`HeldPart.append`), in their order, and the result is that of
one pass over the whole log.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np

from raylay.services.messages.ranges import CHUNK, PublisherRanges, SequenceSet

BLOCK = CHUNK
"""Sequences that have one checksum."""
TIMES_MAX = 512
"""Most steps of a timeline. A longer one joins each two steps to one."""
# splitmix64: spreads sequence and digest over all 64 bits before they are added up.
_GOLDEN = np.uint64(0x9E3779B97F4A7C15)
_FIRST = np.uint64(0xBF58476D1CE4E5B9)
_SECOND = np.uint64(0x94D049BB133111EB)
_WRAP = (1 << 64) - 1


class RunProperties(NamedTuple):
    """The fields that all records of a run share.

    Attributes:
        origin: the incarnation where they were published, 16 hex digits; empty: at this instance.
        late: whether they are flagged late.
    """

    publisher: int
    topic: str
    message_type: str
    origin: str
    late: bool


@dataclass(slots=True)
class Timeline:
    """Messages by time of receipt, in steps of a power of two of seconds.

    Invariant: `counts` has at most TIMES_MAX steps. A step's number is its time divided by its
    width.
    """

    width_s: int = 1
    counts: dict[int, int] = field(default_factory=dict)

    def add(self, seconds: Mapping[int, int], width_s: int = 1) -> None:
        while self.width_s < width_s:
            self._coarsen()
        ratio = self.width_s // width_s
        for step, count in seconds.items():
            number = step // ratio
            self.counts[number] = self.counts.get(number, 0) + count
        while len(self.counts) > TIMES_MAX:
            self._coarsen()

    def _coarsen(self) -> None:
        self.width_s *= 2
        coarse: dict[int, int] = defaultdict(int)
        for number, count in self.counts.items():
            coarse[number // 2] += count
        self.counts = dict(coarse)

    def update(self, other: Timeline) -> None:
        self.add(other.counts, other.width_s)


@dataclass(slots=True)
class StretchPart:
    """The messages of one publisher on one topic in one stretch.

    Attributes:
        messages: the number of copies.
        held, repeated: the sequences in the stretch, and the sequences that it has more than once.
        origins: the sequences by (message type, origin).
        ascending: the sequences of first copies, not flagged late, that are above all sequences
            before them.
        behind: the sequences of the other first copies that are not flagged late.
        late: the sequences of copies that are flagged late.
        sums: a checksum of sequences and digests for each block.
    """

    publisher: int
    topic: str
    messages: int
    held: SequenceSet
    repeated: SequenceSet
    origins: dict[tuple[str, str], SequenceSet]
    ascending: SequenceSet
    behind: SequenceSet
    late: SequenceSet
    late_messages: int
    sums: dict[int, int]


@dataclass(slots=True)
class StretchParts:
    """The summary of one stretch.

    Attributes:
        received_us: the latest time of receipt, by the incarnation where the messages were
            published; under the empty text, for messages that were published here.
        spans: the first and the last transaction id, by the same keys.
        last_us: the time at which the last message was received.
        senders: the incarnations that sent messages here, and their groups.
        unavailable, conflicting: the sequences that its notes name.
        damaged: a sentence for each place that was left out.
    """

    instance: str
    first_txid: int
    parts: list[StretchPart] = field(default_factory=list)
    times: Timeline = field(default_factory=Timeline)
    received_us: dict[str, int] = field(default_factory=dict)
    spans: dict[str, tuple[int, int]] = field(default_factory=dict)
    last_us: int = 0
    senders: set[tuple[str, str]] = field(default_factory=set)
    unavailable: PublisherRanges = field(default_factory=PublisherRanges)
    conflicting: PublisherRanges = field(default_factory=PublisherRanges)
    damaged: list[str] = field(default_factory=list)


# -- one stretch ---------------------------------------------------------------------------------
def set_of(sequences: Any) -> SequenceSet:
    """Returns the set of ascending sequences, which may be repeated."""
    if not len(sequences):
        return SequenceSet()
    cuts = np.flatnonzero(np.diff(sequences) > 1)
    firsts = sequences[np.concatenate([[0], cuts + 1])]
    lasts = sequences[np.concatenate([cuts, [len(sequences) - 1]])]
    return SequenceSet(zip(firsts.tolist(), lasts.tolist(), strict=True))


def content_numbers(headers: Any) -> Any:
    """Returns one number for the content of each record, uint64: its digest, combined with
    everything that two records of one identity have in common besides
    (`services/messages/content_digest.py::content_keys`).

    Args:
        headers: the records' headers, as columns.RECORD.
    """
    beside = (
        headers["command"].astype(np.uint64)
        | headers["type_length"].astype(np.uint64) << np.uint64(8)
        | headers["key_length"].astype(np.uint64) << np.uint64(16)
        | headers["correlation_length"].astype(np.uint64) << np.uint64(32)
        | headers["topic_length"].astype(np.uint64) << np.uint64(48)
    )
    expiration = headers["expiration_s"].astype(np.uint64)
    return headers["digest"] + beside * _FIRST + expiration * _SECOND


def sums_of(sequences: Any, digests: Any) -> dict[int, int]:
    """Returns the checksum of each block. It is the same for the same records in whatever order,
    and the sums of parts add up.

    Args:
        sequences: ascending, int64.
        digests: the digest of each, uint64.
    """
    if not len(sequences):
        return {}
    mixed = digests + sequences.view(np.uint64) * _GOLDEN
    mixed ^= mixed >> np.uint64(30)
    mixed *= _FIRST
    mixed ^= mixed >> np.uint64(27)
    mixed *= _SECOND
    mixed ^= mixed >> np.uint64(31)
    blocks = sequences // BLOCK
    starts = np.concatenate([[0], np.flatnonzero(np.diff(blocks)) + 1])
    sums = np.add.reduceat(mixed, starts)
    return dict(zip(blocks[starts].tolist(), sums.tolist(), strict=True))


def parts_of(
    kinds: list[RunProperties], codes: Any, sequences: Any, digests: Any
) -> list[StretchPart]:
    """Returns the parts of a stretch.

    Args:
        kinds: each kind of run in the stretch.
        codes: the number of each message's kind, in the order of the log.
        sequences, digests: one value for each message, int64 and uint64.
    """
    groups: dict[tuple[int, str], list[int]] = defaultdict(list)
    for code, kind in enumerate(kinds):
        groups[kind.publisher, kind.topic].append(code)
    group_of = np.empty(len(kinds), np.int64)
    for number, members in enumerate(groups.values()):
        group_of[members] = number
    rows: dict[int, Any] = {0: slice(None)}
    if len(groups) > 1:
        numbers = group_of[codes]
        order = np.argsort(numbers, kind="stable")
        cuts = np.flatnonzero(np.diff(numbers[order])) + 1
        rows = {int(numbers[each[0]]): each for each in np.split(order, cuts)}
    return [
        _part(key, kinds, codes[rows[at]], sequences[rows[at]], digests[rows[at]])
        for at, key in enumerate(groups)
    ]


def _part(
    key: tuple[int, str], kinds: list[RunProperties], codes: Any, sequences: Any, digests: Any
) -> StretchPart:
    used = np.unique(codes).tolist()
    late = np.isin(codes, [code for code in used if kinds[code].late])
    repeated = behind = SequenceSet()
    if (sequences[1:] > sequences[:-1]).all():
        distinct = sequences
        ascending = set_of(sequences[~late])
        by_sequence: Any = slice(None)
    else:
        distinct, first, counts = np.unique(sequences, return_index=True, return_counts=True)
        repeated = set_of(distinct[counts > 1])
        above = np.maximum.accumulate(np.concatenate([[0], sequences[:-1]])) < sequences
        ascending = set_of(distinct[(above & ~late)[first]])
        behind = set_of(distinct[(~above & ~late)[first]])
        by_sequence = np.argsort(sequences, kind="stable")
    return StretchPart(
        *key,
        messages=len(sequences),
        held=set_of(distinct),
        repeated=repeated,
        origins=_origins(used, kinds, codes[by_sequence], sequences[by_sequence]),
        ascending=ascending,
        behind=behind,
        late=set_of(np.unique(sequences[late])),
        late_messages=int(late.sum()),
        sums=sums_of(sequences[by_sequence], digests[by_sequence]),
    )


def _origins(
    used: list[int], kinds: list[RunProperties], codes: Any, sequences: Any
) -> dict[tuple[str, str], SequenceSet]:
    made: dict[tuple[str, str], SequenceSet] = {}
    for code in used:
        mine = sequences if len(used) == 1 else sequences[codes == code]
        found = made.setdefault((kinds[code].message_type, kinds[code].origin), SequenceSet())
        found.update(set_of(mine))
    return made


# -- stretches put together ----------------------------------------------------------------------
@dataclass(slots=True)
class HeldPart:
    """The messages of one publisher on one topic at one instance: as `StretchPart`, but for the
    whole log.

    Attributes:
        highest: the highest sequence so far.
        out_of_order: sequences whose first copy stands behind a higher one and is not flagged late.
    """

    messages: int = 0
    held: SequenceSet = field(default_factory=SequenceSet)
    repeated: SequenceSet = field(default_factory=SequenceSet)
    origins: dict[tuple[str, str], SequenceSet] = field(default_factory=dict)
    out_of_order: SequenceSet = field(default_factory=SequenceSet)
    late: SequenceSet = field(default_factory=SequenceSet)
    late_messages: int = 0
    highest: int = 0
    sums: dict[int, int] = field(default_factory=dict)

    def append(self, part: StretchPart) -> None:
        behind = part.behind.copy()
        lowest = part.ascending.first()
        if lowest is not None and lowest < self.highest:
            for first, last in part.ascending.within(lowest, self.highest - 1):
                behind.add(first, last)
        # A second copy is a duplicate, wherever it stands.
        behind.difference_update(self.held)
        self.out_of_order.update(behind)
        self.repeated.update(part.repeated)
        self.repeated.update(part.held.intersection(self.held))
        self.held.update(part.held)
        self.messages += part.messages
        self.late.update(part.late)
        self.late_messages += part.late_messages
        self.highest = max(self.highest, part.held.last() or 0)
        for name, sequences in part.origins.items():
            self.origins.setdefault(name, SequenceSet()).update(sequences)
        for block, checksum in part.sums.items():
            self.sums[block] = (self.sums.get(block, 0) + checksum) & _WRAP


@dataclass(slots=True)
class LogContents:
    """The contents of one instance's journal.

    Attributes:
        topics: the messages by (publisher, topic).
        received_us, spans, last_us, senders: the values of all stretches, as in `StretchParts`.
        removed: sequences that were held once and are in no segment any more.
    """

    instance: str
    topics: dict[tuple[int, str], HeldPart] = field(default_factory=dict)
    times: Timeline = field(default_factory=Timeline)
    received_us: dict[str, int] = field(default_factory=dict)
    spans: dict[str, tuple[int, int]] = field(default_factory=dict)
    last_us: int = 0
    senders: set[tuple[str, str]] = field(default_factory=set)
    removed: PublisherRanges = field(default_factory=PublisherRanges)
    unavailable: PublisherRanges = field(default_factory=PublisherRanges)
    conflicting: PublisherRanges = field(default_factory=PublisherRanges)
    damaged: list[str] = field(default_factory=list)

    def append(self, stretch: StretchParts) -> None:
        for part in stretch.parts:
            self.topics.setdefault((part.publisher, part.topic), HeldPart()).append(part)
        self.times.update(stretch.times)
        for origin, time_us in stretch.received_us.items():
            self.received_us[origin] = max(time_us, self.received_us.get(origin, 0))
        for origin, span in stretch.spans.items():
            self.spans[origin] = joined(self.spans.get(origin), *span)
        self.last_us = stretch.last_us or self.last_us
        self.senders |= stretch.senders
        self.unavailable.update(stretch.unavailable)
        self.conflicting.update(stretch.conflicting)
        # A damaged block is met by each stretch that begins in it.
        self.damaged += [place for place in stretch.damaged if place not in self.damaged]


def joined(span: tuple[int, int] | None, first: int, last: int) -> tuple[int, int]:
    """Joins a span of transaction ids with one that follows."""
    return (span[0] if span is not None else first, last)


def logs_of(instances: Iterable[str], stretches: Iterable[StretchParts]) -> dict[str, LogContents]:
    """Returns the contents of these instances' journals, from their stretches in whatever order."""
    logs = {name: LogContents(name) for name in instances}
    for stretch in sorted(stretches, key=lambda each: each.first_txid):
        logs[stretch.instance].append(stretch)
    return logs


# -- contents ------------------------------------------------------------------------------------
def conflicts_of(sequences: Any, digests: Any) -> list[int]:
    """Returns the sequences that have more than one digest, ascending."""
    order = np.lexsort((digests, sequences))
    sequences, digests = sequences[order], digests[order]
    differ = (sequences[1:] == sequences[:-1]) & (digests[1:] != digests[:-1])
    found: list[int] = np.unique(sequences[1:][differ]).tolist()
    return found


def open_blocks(logs: Iterable[LogContents]) -> PublisherRanges:
    """Returns the sequences for which two contents are possible: those of the blocks whose
    checksums differ between instances, those that one instance holds twice, and those that stand on
    two topics."""
    sums: dict[tuple[int, str], list[dict[int, int]]] = defaultdict(list)
    topics: dict[int, dict[str, SequenceSet]] = defaultdict(dict)
    found = PublisherRanges()
    for log in logs:
        for (publisher, topic), here in log.topics.items():
            sums[publisher, topic].append(here.sums)
            topics[publisher].setdefault(topic, SequenceSet()).update(here.held)
            for first, last in here.repeated:
                _open(found, publisher, range(first // BLOCK, last // BLOCK + 1))
    for (publisher, _), instances in sums.items():
        known: dict[int, int] = {}
        for instance in instances:
            differing = [
                b for b, checksum in instance.items() if known.setdefault(b, checksum) != checksum
            ]
            _open(found, publisher, differing)
    for publisher, sets in topics.items():
        if len(sets) > 1:
            seen = SequenceSet()
            for sequences in sets.values():
                for first, last in sequences.intersection(seen):
                    _open(found, publisher, range(first // BLOCK, last // BLOCK + 1))
                seen.update(sequences)
    return found


def _open(found: PublisherRanges, publisher: int, blocks: Iterable[int]) -> None:
    for block in blocks:
        found.add(publisher, block * BLOCK, (block + 1) * BLOCK - 1)
