"""The sequences that the content filters of a link left out, so that the link does not read a
message a second time only to leave it out again.

A destination only holds messages that passed. Judged by its holdings alone, a link would have to
read, at each reconnect, every stretch of the journal in which its filters left something out. A
verdict does not change while the filters stay the same. So when the link looks for where to begin,
messages left out count as ones that need not be sent.

The sequences are kept by stretches of the journal, so that they are dropped together with the
removed part of the journal.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from raylay.services.messages.ranges import PublisherRanges, Range, SequenceSet
from raylay.services.messages.records import Run

STRETCH = 1 << 20
"""Width of a stretch in transaction ids. With every second message left out, a stretch takes 128
KiB."""


class FilteredOut:
    """The sequences that a link's filters left out, by stretch of the journal.

    Invariant: all of them were judged by these filters and did not pass.
    Owner: a link's machine. Lifecycle: as long as the filters stay the same; a restart restores
    what `changed` returned (services/processes/link/filtered_out_store.py).
    """

    __slots__ = ("_changed", "_stretches")

    def __init__(self) -> None:
        self._stretches: dict[int, PublisherRanges] = {}
        self._changed: set[int] = set()

    def __bool__(self) -> bool:
        return bool(self._stretches)

    def add(self, run: Run, ranges: list[Range], passed: list[Range]) -> None:
        """Notes that of a run's `ranges` only `passed` passed the filters."""
        rest = SequenceSet(ranges)
        rest.difference_update(SequenceSet(passed))
        number = run.first_txid // STRETCH
        self._of(number).add_ranges(run.publisher, list(rest))
        self._changed.add(number)

    def update(self, number: int, ranges: PublisherRanges) -> None:
        """Adds sequences of one stretch that were judged elsewhere, or in an earlier life."""
        self._of(number).update(ranges)
        self._changed.add(number)

    def _of(self, number: int) -> PublisherRanges:
        return self._stretches.setdefault(number, PublisherRanges())

    def changed(self) -> Iterator[tuple[int, PublisherRanges | None]]:
        """Yields the stretches that were added to, or forgotten (None), since the last call."""
        changed, self._changed = sorted(self._changed), set()
        for number in changed:
            yield number, self._stretches.get(number)

    def taken(self) -> dict[int, PublisherRanges]:
        found, self._stretches = self._stretches, {}
        self._changed.clear()
        return found

    def forget(self, first_txid: int) -> None:
        """Forgets the stretches below the journal's new first transaction id."""
        for number in [
            stretch for stretch in self._stretches if (stretch + 1) * STRETCH <= first_txid
        ]:
            del self._stretches[number]
            self._changed.add(number)

    def settles(
        self,
        held: PublisherRanges | None,
        first_txid: int,
        last_txid: int,
        publisher: int,
        ranges: Iterable[Range],
    ) -> bool:
        """Returns whether each of these messages is held at the destination or was left out. The
        messages lie in the journal from `first_txid` to `last_txid`."""
        theirs = held.get(publisher) if held is not None else None
        if theirs is not None and all(theirs.covers(a, b) for a, b in ranges):
            return True
        if not self._stretches:
            return False
        rest = ranges.copy() if isinstance(ranges, SequenceSet) else SequenceSet(ranges)
        if theirs is not None:
            rest.difference_update(theirs)
        # A run or a segment may extend into the next stretch.
        for number in range(first_txid // STRETCH, last_txid // STRETCH + 1):
            stretch = self._stretches.get(number)
            found = stretch.get(publisher) if stretch is not None else None
            if found is not None:
                rest.difference_update(found)
        return not rest

    def settles_run(self, held: PublisherRanges | None, run: Run) -> bool:
        """Returns whether each message of a run is held at the destination or was left out; the
        run's header is enough."""
        ranges = [(run.first_sequence, run.last_sequence)]
        return self.settles(held, run.first_txid, run.last_txid, run.publisher, ranges)
