"""What is owed by destinations and who waits for what (design.md 4, "Two acknowledgments").

*stored* is: on disk at the destination. *persisted* is: durable there, on disk and persisted at
every sync destination to which it was routed from there. A sync link waits for persisted.

Whose answer waits? An instance is *awaited* for a message when a client published it here or when
it came marked awaited. The first awaited arrival makes its sender the message's *waiter*; until
there is one, the first sender is. Only the waiter's answer waits for durability; every other
sender is answered when the message is stored. A waiter was awaited before the instance it waits
for, so waits cannot close a circle.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable

from raylay.services.replication.effects import Ranges
from raylay.services.replication.ranges import PublisherRanges, Range, SequenceSet
from raylay.services.replication.routing import Destination, Router

CLIENT = 0
"""The sender of what a client published here. No incarnation is 0."""

AGE_BUCKET_US = 50_000
"""Ages are kept per bucket of 50 ms, so that a day of outage is a list and not a log."""


class AgeLog:
    """How old the oldest outstanding message is, in time and in transaction ids.

    Buckets hold, for each publisher, the span of sequences that became outstanding in it. The
    oldest bucket goes when nothing in its spans is outstanding any more.
    """

    __slots__ = ("_buckets",)

    def __init__(self) -> None:
        # (time_us, [lowest txid], {publisher: [first, last]})
        self._buckets: deque[tuple[int, list[int], dict[int, list[int]]]] = deque()

    def add(self, time_us: int, txid: int, publisher: int, a: int, b: int) -> None:
        """a..b of the publisher became outstanding; none has a transaction id below `txid`."""
        buckets = self._buckets
        if not buckets or time_us - buckets[-1][0] >= AGE_BUCKET_US:
            buckets.append((time_us, [txid], {publisher: [a, b]}))
            return
        _, lowest, spans = buckets[-1]
        if txid < lowest[0]:
            lowest[0] = txid
        span = spans.get(publisher)
        if span is None:
            spans[publisher] = [a, b]
        else:
            span[0] = min(span[0], a)
            span[1] = max(span[1], b)

    def oldest(self, outstanding: PublisherRanges) -> tuple[int, int] | None:
        """(time in microseconds, lowest transaction id) of the oldest bucket that still has
        something outstanding; None when nothing is."""
        buckets = self._buckets
        while buckets:
            time_us, lowest, spans = buckets[0]
            for publisher in list(spans):
                a, b = spans[publisher]
                found = outstanding.get(publisher)
                if found is not None and found.touches(a, b):
                    return time_us, lowest[0]
                del spans[publisher]
            buckets.popleft()
        return None


class DestinationLedger:
    """What one destination owes this instance.

    Invariants: owed holds only what is committed here and routed there; a withdrawn answer stays
    owed until an answer comes that was given after the notice of the withdrawal was seen.
    """

    __slots__ = (
        "_ages",
        "_withdrawn",
        "caught_up",
        "connected",
        "destination",
        "downgraded_at_us",
        "further_on",
        "incarnation",
        "owed",
        "prove_txid",
        "proved",
        "router",
        "skipped",
        "stored_txid",
        "sync",
        "withdrawal",
    )

    def __init__(self, destination: Destination, incarnation: int = 0) -> None:
        self.destination = destination
        self.router = Router(destination)
        self.sync = destination.sync
        """Whether persisted acks wait for it now."""
        self.incarnation = incarnation
        """Of the server last connected, 0 while unknown."""
        self.owed = PublisherRanges()
        self.connected = False
        self.caught_up = False
        self.proved = False
        self.prove_txid = 0
        self.stored_txid = 0
        self.skipped = 0
        self.withdrawal = 0
        self.further_on = False
        self.downgraded_at_us = 0
        self._withdrawn: list[tuple[int, int, list[Range]]] = []
        self._ages = AgeLog()

    @property
    def safe(self) -> bool:
        """Whether a client may fail over to it: everything acked here is persisted there."""
        return self.sync and self.proved

    def owe(self, publisher: int, ranges: Iterable[Range], time_us: int, txid: int = 1) -> None:
        """These are committed here, from `txid` on, and routed there. Without a `txid`: a resync
        found them missing there."""
        owed = self.owed.of(publisher)
        for a, b in ranges:
            owed.add(a, b)
            self._ages.add(time_us, txid, publisher, a, b)

    def withdraw(self, publisher: int, ranges: list[Range], time_us: int) -> None:
        """Answers held for these count no more; they belong to the notice `withdrawal`."""
        self.owe(publisher, ranges, time_us)
        self._withdrawn.append((self.withdrawal, publisher, ranges))

    def answered(self, answers: Ranges, withdrawal: int) -> Ranges:
        """Takes answers given after the notice `withdrawal` was seen; returns what they settled."""
        if self._withdrawn:
            self._withdrawn = [entry for entry in self._withdrawn if entry[0] > withdrawal]
        settled: Ranges = {}
        for publisher, ranges in answers.items():
            owed = self.owed.get(publisher)
            if owed is None:
                continue
            if self._withdrawn:
                ranges = self._not_withdrawn(publisher, ranges)
            found = [piece for a, b in ranges for piece in owed.within(a, b)]
            if found:
                self.owed.remove_ranges(publisher, found)
                settled[publisher] = found
        return settled

    def _not_withdrawn(self, publisher: int, ranges: list[Range]) -> list[Range]:
        left = SequenceSet(ranges)
        for _, of, withdrawn in self._withdrawn:
            if of == publisher:
                for a, b in withdrawn:
                    left.remove(a, b)
        return list(left)

    def oldest_owed(self) -> tuple[int, int] | None:
        """(time in microseconds, first transaction id) of the oldest message owed."""
        return self._ages.oldest(self.owed)

    def must_prove(self, last_txid: int) -> None:
        """After an upgrade, reconnect or restart: safe again when everything up to `last_txid` is
        persisted there."""
        self.proved = False
        self.prove_txid = last_txid

    def update_proof(self) -> bool:
        """Whether it became proved by this look."""
        if self.proved or not (self.caught_up and self.connected):
            return False
        oldest = self.oldest_owed()
        if oldest is not None and oldest[1] <= self.prove_txid:
            return False
        self.proved = True
        return True


class WaiterTable:
    """Who waits for which pending messages. Holds only what is on disk and not durable."""

    __slots__ = ("_waits",)

    def __init__(self) -> None:
        self._waits: dict[int, PublisherRanges] = {}

    def assign(self, sender: int, publisher: int, ranges: Iterable[Range]) -> None:
        """Makes the sender the waiter of these."""
        waits = self._waits.get(sender)
        if waits is None:
            waits = self._waits[sender] = PublisherRanges()
        waits.add_ranges(publisher, ranges)

    def reassign(
        self, sender: int, publisher: int, ranges: list[Range]
    ) -> list[tuple[int, list[Range]]]:
        """Makes the sender the waiter in place of others; returns what those others waited for."""
        freed = []
        for other, waits in self._waits.items():
            found = waits.get(publisher)
            if other == sender or found is None:
                continue
            theirs = [piece for a, b in ranges for piece in found.within(a, b)]
            if theirs:
                waits.remove_ranges(publisher, theirs)
                freed.append((other, theirs))
        self.assign(sender, publisher, ranges)
        return freed

    def settle(self, publisher: int, ranges: list[Range]) -> list[tuple[int, list[Range]]]:
        """These are durable: (sender, what it waited for) of each waiter, taken off the table."""
        answers = []
        for sender, waits in self._waits.items():
            found = waits.get(publisher)
            if found is None:
                continue
            theirs = [piece for a, b in ranges for piece in found.within(a, b)]
            if theirs:
                waits.remove_ranges(publisher, theirs)
                answers.append((sender, theirs))
        return answers

    def waited_by(self, sender: int) -> PublisherRanges:
        """What this sender waits for."""
        return self._waits.get(sender) or PublisherRanges()

    def not_waited(self, sender: int, publisher: int, ranges: list[Range]) -> list[Range]:
        """Those of `ranges` that this sender does not wait for: it is answered for them now."""
        waits = self._waits.get(sender)
        found = waits.get(publisher) if waits is not None else None
        if found is None:
            return ranges
        return [piece for a, b in ranges for piece in found.missing(a, b)]
