"""The plan of a resync: compares the destination's unacknowledged messages, and the messages that
clients published here, with what the destination holds.

With 100,000 publishers the comparison takes half a second, so it is done a slice of publishers at a
time, and the instance goes on meanwhile. Publishers whose messages change in between are compared
once more when the maps are looked at again. The last look and the begin of the link are one step.
"""

from __future__ import annotations

from raylay.services.messages.ranges import PublisherRanges, SequenceSet
from raylay.services.replication.acknowledgment import UNAWAITED, RootedRanges
from raylay.services.replication.effects import Ranges

SLICE_PUBLISHERS = 500
"""Number of publishers compared in one slice: about 2 ms of work."""


class ResyncPlan:
    """The comparison at one logon of a link.

    Invariant: with no publisher left, `notice`, `mark` and `stranded` equal the result of a whole
    comparison of the maps as they were at the last look.
    Owner: the instance's event loop. Lifecycle: from a link's logon until the link begins.

    Args:
        held: messages stored at the destination; not changed any more.
        waited: the messages stored there for which this instance waits at the destination, by the
            destination's report.

    Attributes:
        notice: awaited messages that the destination holds: a notice asks for their answers.
        mark: awaited messages that the destination lacks: they are marked when they are sent.
        stranded: messages that clients published here and the destination lacks.
    """

    def __init__(self, held: PublisherRanges, waited: RootedRanges) -> None:
        self.held = held
        self.waited = waited
        self.notice = RootedRanges()
        self.mark = RootedRanges()
        self.stranded = PublisherRanges()
        self._unacked = RootedRanges()
        self._published = PublisherRanges()
        self._left: dict[int, None] = {}

    def look(self, unacked: RootedRanges, published: PublisherRanges) -> int:
        """Notes which publishers' messages have changed since the last look; returns how many
        publishers are to be compared.

        Args:
            owed: messages that the destination has not acknowledged.
            published: all messages that clients ever published here.
        """
        left = self._left
        left.update(dict.fromkeys(published.changed_since(self._published)))
        nothing = PublisherRanges()
        for root in {**unacked.roots, **self._unacked.roots}:
            before = self._unacked.roots.get(root, nothing)
            left.update(dict.fromkeys(unacked.roots.get(root, nothing).changed_since(before)))
        self._unacked, self._published = unacked.copy(), published.copy()
        return len(left)

    def work(self, publishers_max: int | None = None) -> Ranges:
        """Compares up to `publishers_max` publishers; None: all that are left. Returns the
        messages that count as answered because the destination holds them and nobody waits for
        them there."""
        left = self._left
        count = len(left) if publishers_max is None else min(len(left), publishers_max)
        answered: Ranges = {}
        for _ in range(count):
            publisher, _ = left.popitem()
            self._compare(publisher, answered)
        return answered

    @property
    def left(self) -> int:
        """Returns the number of publishers that are still to be compared."""
        return len(self._left)

    def _compare(self, publisher: int, answered: Ranges) -> None:
        for sets in (self.stranded, *self.notice.roots.values(), *self.mark.roots.values()):
            sets.sets.pop(publisher, None)
        theirs = self.held.get(publisher)
        published = self._published.get(publisher)
        if published and published != theirs:
            absent = published.copy()
            if theirs is not None:
                absent.difference_update(theirs)
            if absent:
                self.stranded.sets[publisher] = absent
        for root, unacked_of in self._unacked.roots.items():
            unacked = unacked_of.get(publisher)
            if not unacked:
                continue
            there = unacked.intersection(theirs) if theirs is not None else SequenceSet()
            if root == UNAWAITED:
                for waits in self.waited.roots.values():
                    waiting = waits.get(publisher)
                    if waiting is not None:
                        there.difference_update(waiting)
                if there:
                    answered[publisher] = list(there)
                continue
            if there:
                self.notice.of(root).sets[publisher] = there
            absent = unacked.copy()
            absent.difference_update(there)
            if absent:
                self.mark.of(root).sets[publisher] = absent
