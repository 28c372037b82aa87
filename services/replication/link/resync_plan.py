"""The plan of a resync: what is unacknowledged by the destination, and what clients published here,
compared with what the destination holds.

With 100,000 publishers the comparison takes half a second, so it is worked off a slice of
publishers at a time, and the instance goes on meanwhile. What changes in between is seen when the
maps are looked at again, and compared once more; the last look and the beginning are one step.
"""

from __future__ import annotations

from raylay.services.messages.ranges import PublisherRanges, SequenceSet
from raylay.services.replication.acknowledgment import UNAWAITED, RootedRanges
from raylay.services.replication.effects import Ranges

SLICE_PUBLISHERS = 500
"""About 2 ms of work."""


class ResyncPlan:
    """The comparison at one logon of a link.

    Invariant: with nothing left, `notice`, `mark` and `stranded` are what the whole comparison
    gives for the maps as they were at the last look.
    Owner: the instance's event loop. Lifecycle: from a link's logon until it begins.

    Args:
        held: what is stored at the destination; not changed any more.
        waited: what of it this instance waits for there, in the destination's words.

    Attributes:
        notice: what is awaited, and there: asked for in a notice.
        mark: what is awaited, and not there: marked when it is sent.
        stranded: what clients published here and is not there.
    """

    def __init__(self, held: PublisherRanges, waited: RootedRanges) -> None:
        self.held = held
        self.waited = waited
        self.notice = RootedRanges()
        self.mark = RootedRanges()
        self.stranded = PublisherRanges()
        self._owed = RootedRanges()
        self._published = PublisherRanges()
        self._left: dict[int, None] = {}

    def look(self, owed: RootedRanges, published: PublisherRanges) -> int:
        """Looks at what has changed; returns how many publishers are to be compared.

        Args:
            owed: by the destination.
            published: all that clients ever published here.
        """
        left = self._left
        left.update(dict.fromkeys(published.changed_since(self._published)))
        nothing = PublisherRanges()
        for root in {**owed.roots, **self._owed.roots}:
            before = self._owed.roots.get(root, nothing)
            left.update(dict.fromkeys(owed.roots.get(root, nothing).changed_since(before)))
        self._owed, self._published = owed.copy(), published.copy()
        return len(left)

    def work(self, publishers_max: int | None = None) -> Ranges:
        """Compares so many publishers, or all that are left. Returns what is answered by being
        there: nobody waits for it at the destination."""
        left = self._left
        count = len(left) if publishers_max is None else min(len(left), publishers_max)
        answered: Ranges = {}
        for _ in range(count):
            publisher, _ = left.popitem()
            self._compare(publisher, answered)
        return answered

    @property
    def left(self) -> int:
        """The number of publishers that are to be compared."""
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
        for root, owing in self._owed.roots.items():
            owed = owing.get(publisher)
            if not owed:
                continue
            there = owed.intersection(theirs) if theirs is not None else SequenceSet()
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
            absent = owed.copy()
            absent.difference_update(there)
            if absent:
                self.mark.of(root).sets[publisher] = absent
