"""The messages that have ever been in a queue, and the position from which it can be rebuilt (rules
7 and 9).

A queue owner keeps little on its disk: it reads the journal again from the oldest message that is
still in the queue, and begins with the stored state as of that position: the messages that had ever
been in the queue, and the early records, whose messages had not come yet. The position is the
floor. It lies before an arrival, and moves on when all of the oldest arrival's messages have left
the queue.
"""

from __future__ import annotations

from array import array
from bisect import bisect_right
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice
from typing import Any

import msgpack

from raylay.services.errors import CorruptRecord
from raylay.services.messages.ranges import PublisherRanges, Range
from raylay.services.queues.decisions import MessageLease
from raylay.services.queues.transfer.early_records import Covers, EarlyRecords

JOINED_US = 100_000
"""The age, in microseconds, below which an arrival still takes further runs in."""
JOINED_MAX = 1_024
"""The number of transaction ids that an arrival of several runs spans at most."""
ARRIVALS_MAX = 1_024
"""The number of arrivals behind the floor above which empty arrivals are merged. The bound is this,
plus twice the number that the last merge left."""
USED_MAX = 4_096
"""The number of early entries behind the floor above which used ones are forgotten. The bound is
this, plus an eighth of the number of arrivals, plus twice the number of entries that the last time
left."""


class Arrival:
    """Messages that were received shortly after one another.

    Attributes:
        live: the number of its messages that are still in the queue.
        received_us: the time at which its first message came to this instance, in microseconds
            since 1970.
        stretches: its messages, as a flat array of publisher, first sequence, last sequence,
            publisher, ….
    """

    __slots__ = ("first_txid", "last_txid", "live", "received_us", "stretches")

    def __init__(self, first_txid: int, received_us: int) -> None:
        self.first_txid = first_txid
        self.last_txid = first_txid - 1
        self.received_us = received_us
        self.live = 0
        # A flat array is compact: with many publishers, each message is a stretch of its own.
        self.stretches = array("Q")

    def add(self, publisher: int, ranges: list[Range], last_txid: int) -> None:
        self.last_txid = last_txid
        stretches = self.stretches
        for first, last in ranges:
            if stretches and stretches[-3] == publisher and stretches[-1] + 1 == first:
                stretches[-1] = last
            else:
                stretches.extend((publisher, first, last))

    def parts(self) -> Iterator[tuple[int, list[Range]]]:
        for publisher, first, last in zip(*[iter(self.stretches)] * 3, strict=True):
            yield publisher, [(first, last)]

    def covers(self, publisher: int, first: int, last: int) -> bool:
        return any(
            each == publisher and begin <= first and last <= end
            for each, begin, end in zip(*[iter(self.stretches)] * 3, strict=True)
        )


@dataclass(slots=True)
class QueueCheckpoint:
    """The state from which a queue is rebuilt.

    Attributes:
        after_txid: the transaction id behind which the journal is to be read.
        folded_txid: the transaction id up to which the journal had been read. Watchers that heard
            of those records do not hear of them again.
        early, held: the early records, and the messages that had ever been in the queue, as of
            `after_txid`.
        names: the name of the instance that bears each incarnation.
    """

    after_txid: int = 0
    folded_txid: int = 0
    early: dict[str, Any] = field(default_factory=lambda: {"removals": [], "moves": []})
    held: PublisherRanges = field(default_factory=PublisherRanges)
    names: Mapping[int, str] = field(default_factory=dict)

    def to_bytes(self) -> bytes:
        packed: bytes = msgpack.packb(
            {
                "after": self.after_txid,
                "folded": self.folded_txid,
                "early": self.early,
                "held": self.held.to_wire(),
                "names": dict(self.names),
            }
        )
        return packed

    @classmethod
    def from_bytes(cls, stored: bytes) -> QueueCheckpoint:
        """The inverse of `to_bytes`.

        Raises:
            CorruptRecord: the bytes are no snapshot.
        """
        try:
            said = msgpack.unpackb(stored, strict_map_key=False)
            EarlyRecords.from_wire(said["early"], 0)
            return cls(
                said["after"],
                said["folded"],
                said["early"],
                PublisherRanges.from_wire(said["held"]),
                said["names"],
            )
        except Exception as error:  # whatever the bytes bring it to raise
            raise CorruptRecord(f"the bytes are no snapshot of a queue: {error}") from None


@dataclass(slots=True)
class RecoveryStart:
    """The start state of a queue's machine.

    Attributes:
        fence_txid: the transaction id up to which every draft of the previous owner is committed or
            has failed. The machine decides nothing before it has read that far.
        life: the number of this start of the instance or of its queue owner. No number is used
            twice under one incarnation, so the tags of this machine's drafts are its own.
        leases: the leases that consumers hold, of sessions that still last.
        is_serving: whether the instance already serves (rule 12). Otherwise `QueueMachine.serves`
            is called later.
    """

    snapshot: QueueCheckpoint = field(default_factory=QueueCheckpoint)
    fence_txid: int = 0
    life: int = 0
    leases: Sequence[MessageLease] = ()
    is_serving: bool = True


class ArrivalLog:
    """See the file's docstring.

    Invariants: `_arrivals` are all that came behind the floor, in order, and the first one has a
        message in the queue. `_held_then` are the messages that had ever been in the queue at the
        floor, `held` the messages that have been in it until now.
    Owner: the queue's machine.
    """

    __slots__ = (
        "_advanced",
        "_arrivals",
        "_held_then",
        "_looked_at",
        "early",
        "folded_txid",
        "held",
    )

    def __init__(self, snapshot: QueueCheckpoint, early_kept_us: int) -> None:
        self.folded_txid = snapshot.after_txid
        self.early = EarlyRecords.from_wire(snapshot.early, early_kept_us)
        self.held = snapshot.held.copy()
        self._held_then = snapshot.held.copy()
        self._arrivals: deque[Arrival] = deque()
        self._looked_at = 0
        self._advanced = self.folded_txid
        """The floor at the last `advance`: records up to this transaction id may be gone from the
        journal."""

    @property
    def floor_txid(self) -> int:
        """The transaction id behind which the journal suffices to rebuild the queue."""
        return self._arrivals[0].first_txid - 1 if self._arrivals else self.folded_txid

    @property
    def oldest(self) -> Arrival | None:
        """The arrival that holds the oldest message of the queue, or None if the queue is empty."""
        return self._arrivals[0] if self._arrivals else None

    def behind(self, txid: int, most: int) -> list[Arrival]:
        """Returns the next arrivals that begin behind this transaction id and have messages in the
        queue. They span about `most` transactions; at least one is returned if there is any."""
        arrivals, found, spanned = self._arrivals, [], 0
        at = bisect_right(arrivals, txid, key=lambda each: each.first_txid)
        for arrival in islice(arrivals, at, None):
            if arrival.live:
                found.append(arrival)
                spanned += arrival.last_txid - arrival.first_txid + 1
                if spanned >= most:
                    break
        return found

    def arrived(
        self,
        publisher: int,
        ranges: list[Range],
        first_txid: int,
        last_txid: int,
        received_us: int,
    ) -> Arrival:
        """Records received messages, in a new arrival or in the last one. Returns that arrival. The
        caller counts in `live` the messages that it puts into the queue."""
        self.held.add_ranges(publisher, ranges)
        last = self._arrivals[-1] if self._arrivals else None
        if (
            last is None
            or not last.live
            or received_us - last.received_us >= JOINED_US
            or last_txid - last.first_txid >= JOINED_MAX
        ):
            last = Arrival(first_txid, received_us)
            self._arrivals.append(last)
        last.add(publisher, ranges, last_txid)
        return last

    def reaches_back(self, arrival: Arrival, txid: int) -> bool:
        """Returns whether the journal keeps the record `txid` for as long as a message of this
        arrival, the last one, is in the queue. Moves the beginning of the arrival back to the
        record if no other arrival lies between them."""
        if arrival.first_txid <= txid:
            return True
        before = self._arrivals[-2].last_txid if len(self._arrivals) > 1 else 0
        if txid <= max(before, self._advanced):
            return False
        arrival.first_txid = txid
        return True

    def advance(self) -> None:
        """Moves the floor past arrivals without messages. To be called once everything read has
        been folded."""
        passed: list[tuple[int, list[Range]]] = []
        arrivals = self._arrivals
        while arrivals and not arrivals[0].live:
            arrival = arrivals.popleft()
            for publisher, ranges in arrival.parts():
                self._held_then.add_ranges(publisher, ranges)
                passed.append((publisher, ranges))
        self._advanced = self.floor_txid
        self.early.floor_reached(self._advanced, passed)
        if len(arrivals) > 2 * self._looked_at + ARRIVALS_MAX:
            self._put_together()
        if self.early.is_long(USED_MAX + len(arrivals) // 8):
            self._forget_used()

    def _forget_used(self) -> None:
        """Forgets early records whose messages have come and left the queue, where no floor can
        need them. The floor always lies before an arrival with messages, or behind the whole series
        of empty arrivals that follows one."""
        self._put_together()
        found: list[tuple[int, Covers]] = []
        since_txid = 0
        for arrival in self._arrivals:
            if arrival.live:
                since_txid = arrival.first_txid
            else:
                found.append((since_txid, arrival.covers))
        self.early.forget_used(found)

    def _put_together(self) -> None:
        """Merges neighbouring arrivals without messages. Otherwise one message that stays for ever
        would keep an object for each arrival that followed it."""
        found: deque[Arrival] = deque()
        for arrival in self._arrivals:
            before = found[-1] if found else None
            if arrival.live or before is None or before.live:
                found.append(arrival)
                continue
            if not isinstance(before, _EmptyArrivals):
                before = found[-1] = _EmptyArrivals(before)
            before.take(arrival)
        self._arrivals = found
        self._looked_at = len(found)

    def snapshot(self, names: Mapping[int, str]) -> QueueCheckpoint:
        """Returns the state from which the queue can be rebuilt."""
        return QueueCheckpoint(
            self.floor_txid, self.folded_txid, self.early.to_wire(), self._held_then, names
        )


class _EmptyArrivals(Arrival):
    """Consecutive arrivals that have no message left in the queue, merged into one."""

    __slots__ = ("ranges",)

    def __init__(self, first: Arrival) -> None:
        super().__init__(first.first_txid, first.received_us)
        self.ranges = PublisherRanges()
        self.take(first)

    def take(self, other: Arrival) -> None:
        self.last_txid = other.last_txid
        for publisher, ranges in other.parts():
            self.ranges.add_ranges(publisher, ranges)

    def parts(self) -> Iterator[tuple[int, list[Range]]]:
        return ((publisher, list(ranges)) for publisher, ranges in self.ranges.sets.items())

    def covers(self, publisher: int, first: int, last: int) -> bool:
        return self.ranges.covers(publisher, [(first, last)])
