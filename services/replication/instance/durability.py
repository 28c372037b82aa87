"""Messages that are on disk here and not durable yet, with their waiters and ages (design.md 4,
"Two acknowledgments"; services/replication/acknowledgment.py has roots and waiters).

Whoever journals says `stage`; whoever finds out, behind the commit, that a sync destination is owed
says `wait`, else `durable`; a destination's answer makes that durable which nothing hinders.
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
    """See the file's docstring.

    Invariants: pending, of all roots, is what is staged and what waits; awaited never shrinks while
    the instance lives, but for what failed or was refused; nothing refused is awaited.
    Owner: the instance's machine. Lifecycle: as long as that.

    Args:
        own_root: the root of what clients publish here.
        destinations: their ledgers; only read.
        book: where it writes who is to be answered.
        committed_txid: of the journal that was recovered.
        awaited: what the instance is awaited for.
        refused: what destinations refused for good.

    Attributes:
        pending: what is not durable; others only read.
        settlements: how often something became durable or was refused: what is written down has
            changed.
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
        """Messages that a destination refused for good before they were durable here: never
        acknowledged."""
        for publisher, ranges in self.refused.sets.items():
            for root in self.awaited.roots:
                self.awaited.remove_ranges(root, publisher, ranges)
        self.waiters = WaiterTable()
        self.settlements = 0
        self._ages = AgeLog()

    # -- what comes, and what fails ----------------------------------------------------------
    def stage(self, root: int, publisher: int, first: int, last: int) -> None:
        """Notes that first..last is on its way to the disk, and not durable before it is there."""
        self.pending.of(root).of(publisher).add(first, last)
        if root != UNAWAITED:
            self.awaited.of(root).of(publisher).add(first, last)

    def stage_ranges(self, root: int, publisher: int, ranges: list[Range]) -> None:
        """Notes several ranges as `stage` does. Where they are on the disk already, another root
        waits for them now."""
        self.pending.of(root).add_ranges(publisher, ranges)
        if root != UNAWAITED:
            self.awaited.of(root).add_ranges(publisher, ranges)

    def undo(self, root: int, publisher: int, ranges: list[Range]) -> None:
        """Undoes messages that never came to the disk."""
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
        """Notes that these are on disk here from `first_txid` on, and a sync destination owes the
        answer."""
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
        """Waits for messages that were committed before, as `wait` does: none of them below
        `first_txid`."""
        self.waiters.assign(root, route, publisher, ranges)
        for a, b in ranges:
            self._ages.add_again(time_us, first_txid, publisher, a, b)

    def waiting_for(self, ledger: DestinationLedger) -> RootedRanges:
        """Returns what somebody is awaited for, and is routed to this destination, whatever it
        answered."""
        found = RootedRanges()
        for root, publisher, route, ranges in self.waiters:
            if root != UNAWAITED and ledger.router.takes(route, ledger.incarnation):
                found.of(root).of(publisher).update(ranges)
        return found

    # -- durable -----------------------------------------------------------------------------
    def durable(self, root: int, publisher: int, ranges: list[Range]) -> None:
        """Notes that these are on disk here and at every sync destination they are routed to, for
        this root: the tree that grew from here is complete."""
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
        """A sync destination answered these: those are durable that nothing keeps from it."""
        for ledger in self._destinations.values():
            if ledger.sync and ledger.owed.get(root, publisher) is not None:
                durable = self._unhindered(root, publisher, candidates)
                if durable:
                    self.durable(root, publisher, durable)
                return
        # It is owed by nobody, as with one sync destination.
        durable = self.pending.take(root, publisher, candidates)
        if durable:
            self._is_durable(root, publisher, durable)

    def release(self) -> None:
        """There is a sync destination less: what waited only for it is durable."""
        waiting = [(each.root, each.publisher, list(each.ranges)) for each in self.waiters]
        for root, publisher, ranges in waiting:
            self.answered(root, publisher, ranges)

    def _unhindered(self, root: int, publisher: int, candidates: list[Range]) -> list[Range]:
        """Returns the candidates that are pending and owed by no sync destination."""
        pending = self.pending.get(root, publisher)
        if pending is None:
            return []
        found = [piece for a, b in candidates for piece in pending.within(a, b)]
        # One range that nobody owes, as with a message and one sync destination, is all of it.
        left = SequenceSet(found) if len(found) > 1 else None
        for ledger in self._destinations.values():
            if ledger.sync and found:
                owed = ledger.owed.get(root, publisher)
                if owed is not None:
                    if left is None:
                        left = SequenceSet(found)
                    left.difference_update(owed)
        return found if left is None else left.ranges()

    def refuse(self, publisher: int, ranges: list[Range]) -> SequenceSet:
        """A destination refused these for good. Returns what of it was not durable: it is off the
        awaited ones, too, or it would pass for durable: at a logon, and when it comes again."""
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
        """Settles the ages after something was answered, released or refused. What asks for ages
        only reads."""
        self._ages.settle(self.pending.roots)
