"""Messages that are on disk here and not durable yet, with their waiters and ages (design.md 4,
"Two acknowledgments"; services/replication/acknowledgment.py explains roots and waiters).

A part that journals a message calls `stage`. After the commit, the destinations call `wait` where a
sync destination must still answer, else `durable`. A destination's answer makes those messages
durable for which no other sync destination must still answer.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from raylay.services.messages.ranges import PublisherRanges, Range, SequenceSet
from raylay.services.replication.acknowledgment import (
    CLIENT,
    UNAWAITED,
    DestinationLedger,
    RootedRanges,
    Route,
    WaiterTable,
)
from raylay.services.replication.ages import AgeLog
from raylay.services.replication.instance.pending_replies import PendingReplies


class Durability:
    """Keeps the messages that are not durable yet, and decides when they become durable.

    Invariants: `pending` holds, over all roots, exactly the staged and the waiting messages;
    `awaited` never shrinks while the instance lives, except for messages whose append failed or
    that were refused; no refused message is awaited.
    Owner: the instance's machine. Lifecycle: as long as the machine.

    Args:
        own_root: the root of messages that clients publish here.
        destinations: the ledgers of the destinations; only read.
        book: the due replies, to which this part adds.
        committed_txid: last transaction id of the recovered journal.
        awaited: messages for which this instance is awaited, by root.
        refused: messages that destinations refused for good.

    Attributes:
        pending: messages that are not durable, by root; other parts only read it.
        settlements: number of times that messages became durable or were
        refused: a change of it means that the recovery point must be written again.
    """

    __slots__ = (
        "_ages",
        "_book",
        "_destinations",
        "awaited",
        "committed_txid",
        "own_root",
        "pending",
        "refused",
        "settlements",
        "waiters",
    )

    def __init__(
        self,
        own_root: int,
        destinations: Mapping[str, DestinationLedger],
        book: PendingReplies,
        *,
        committed_txid: int = 0,
        awaited: RootedRanges | None = None,
        refused: PublisherRanges | None = None,
    ) -> None:
        self.own_root = own_root
        self._destinations = destinations
        self._book = book
        self.committed_txid = committed_txid
        self.pending = RootedRanges()
        self.awaited = awaited if awaited is not None else RootedRanges()
        self.refused = refused if refused is not None else PublisherRanges()
        """Messages that a destination refused for good before they were durable here: they are
        never acknowledged."""
        for publisher, ranges in self.refused.sets.items():
            for root in self.awaited.roots:
                self.awaited.remove_ranges(root, publisher, ranges)
        self.waiters = WaiterTable()
        self.settlements = 0
        self._ages = AgeLog()

    # -- what comes, and what fails ----------------------------------------------------------
    def stage(self, root: int, publisher: int, first: int, last: int) -> None:
        """Notes that first..last is on its way to the disk, and pending from now on."""
        self.pending.of(root).of(publisher).add(first, last)
        if root != UNAWAITED:
            self.awaited.of(root).of(publisher).add(first, last)

    def stage_ranges(self, root: int, publisher: int, ranges: list[Range]) -> None:
        """Notes several ranges as `stage` does. Messages that are on disk already become pending
        for another root."""
        self.pending.of(root).add_ranges(publisher, ranges)
        if root != UNAWAITED:
            self.awaited.of(root).add_ranges(publisher, ranges)

    def undo(self, root: int, publisher: int, ranges: list[Range]) -> None:
        self.awaited.remove_ranges(root, publisher, ranges)
        self.pending.remove_ranges(root, publisher, ranges)

    def acceptable(self, publisher: int, ranges: list[Range]) -> list[Range]:
        """Returns the ranges that no destination refused."""
        refused = self.refused.get(publisher)
        return ranges if refused is None else [p for a, b in ranges for p in refused.missing(a, b)]

    def not_awaited(self, root: int, publisher: int, ranges: list[Range]) -> list[Range]:
        """Returns the ranges for which this instance is not awaited yet."""
        awaited = self.awaited.get(root, publisher)
        return ranges if awaited is None else [p for a, b in ranges for p in awaited.missing(a, b)]

    # -- waiting -----------------------------------------------------------------------------
    def wait(
        self,
        root: int,
        route: Route,
        publisher: int,
        ranges: list[Range],
        time_us: int,
        first_txid: int,
    ) -> None:
        """Notes that messages are on disk here, from `first_txid` on, and that a sync destination
        must still answer for them."""
        self.waiters.assign(root, route, publisher, ranges)
        for a, b in ranges:
            self._ages.add(time_us, first_txid, publisher, a, b)

    def wait_again(
        self,
        root: int,
        route: Route,
        publisher: int,
        ranges: Iterable[Range],
        time_us: int,
        first_txid: int,
    ) -> None:
        """Notes, as `wait` does, messages that were committed before, with transaction ids of at
        least `first_txid`."""
        self.waiters.assign(root, route, publisher, ranges)
        for a, b in ranges:
            self._ages.add_again(time_us, first_txid, publisher, a, b)

    def waiting_for(self, ledger: DestinationLedger) -> RootedRanges:
        """Returns all waiting messages that have a root and are routed to this destination,
        including those that it has answered before."""
        found = RootedRanges()
        for root, publisher, route, ranges in self.waiters:
            if root != UNAWAITED and ledger.router.takes(route, ledger.incarnation):
                found.of(root).of(publisher).update(ranges)
        return found

    # -- durable -----------------------------------------------------------------------------
    def durable(self, root: int, publisher: int, ranges: list[Range]) -> None:
        """Notes that messages are durable for this root: they are on disk here and at every sync
        destination to which they are routed, so the tree of waits from here is complete."""
        self.pending.remove_ranges(root, publisher, ranges)
        self._is_durable(root, publisher, ranges)

    def _is_durable(self, root: int, publisher: int, ranges: list[Range]) -> None:
        self.settlements += 1
        for sender, answered in self.waiters.settle(root, publisher, ranges):
            if sender != CLIENT:
                self._book.persisted.append((sender, root, publisher, answered))
        if root == self.own_root:
            self._book.durable.append((publisher, ranges))

    def answered(self, root: int, publisher: int, candidates: list[Range]) -> None:
        """Takes messages that a sync destination answered: those become durable that are
        unacknowledged by no other sync destination."""
        for ledger in self._destinations.values():
            if ledger.sync and ledger.unacked.get(root, publisher) is not None:
                durable = self._unhindered(root, publisher, candidates)
                if durable:
                    self.durable(root, publisher, durable)
                return
        # No sync destination has anything unacknowledged here; the usual case with one of them.
        durable = self.pending.take(root, publisher, candidates)
        if durable:
            self._is_durable(root, publisher, durable)

    def release(self) -> None:
        """Makes those waiting messages durable that no sync destination has still to answer. To be
        called after a sync destination stopped being one."""
        waiting = [(waiter.root, waiter.publisher, list(waiter.ranges)) for waiter in self.waiters]
        for root, publisher, ranges in waiting:
            self.answered(root, publisher, ranges)

    def _unhindered(self, root: int, publisher: int, candidates: list[Range]) -> list[Range]:
        """Returns the candidates that are pending and that no sync destination has still to
        answer."""
        pending = self.pending.get(root, publisher)
        if pending is None:
            return []
        found = [piece for a, b in candidates for piece in pending.within(a, b)]
        # A single range stays whole where no destination has still to answer for it, as with one
        # message and one sync destination.
        left = SequenceSet(found) if len(found) > 1 else None
        for ledger in self._destinations.values():
            if ledger.sync and found:
                unacked = ledger.unacked.get(root, publisher)
                if unacked is not None:
                    if left is None:
                        left = SequenceSet(found)
                    left.difference_update(unacked)
        return found if left is None else left.ranges()

    def refuse(self, publisher: int, ranges: list[Range]) -> SequenceSet:
        """Takes messages that a destination refused for good. Returns those that were not durable.
        They are removed from the awaited ones as well; otherwise they would pass for durable at a
        logon, and when they come again."""
        self.settlements += 1
        refused = SequenceSet()
        for root in self.pending.roots:
            waiting = self.pending.get(root, publisher)
            if waiting is not None:
                undone = [piece for a, b in ranges for piece in waiting.within(a, b)]
                refused.update(SequenceSet(undone))
                self.awaited.remove_ranges(root, publisher, undone)
            self.pending.remove_ranges(root, publisher, ranges)
            for sender, theirs in self.waiters.settle(root, publisher, ranges):
                self._book.conflicts.append((sender, publisher, theirs))
        self.refused.add_ranges(publisher, refused)
        return refused

    # -- questions ---------------------------------------------------------------------------
    def durable_of(self, publisher: int, low: int, high: int) -> list[Range]:
        """Returns the part of low..high that clients published here and that is durable."""
        awaited = self.awaited.get(self.own_root, publisher)
        if awaited is None:
            return []
        settled = SequenceSet(awaited.within(low, high))
        pending = self.pending.get(self.own_root, publisher)
        if pending is not None:
            settled.difference_update(pending)
        return list(settled)

    def floor_txid(self) -> int:
        """Every record up to this transaction id is durable."""
        oldest = self._ages.oldest(self.pending.roots)
        return self.committed_txid if oldest is None else min(oldest[1] - 1, self.committed_txid)

    def settle_ages(self) -> None:
        """Drops the ages of messages that were answered, released or refused. Functions that read
        ages change nothing."""
        self._ages.settle(self.pending.roots)
