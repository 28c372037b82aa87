"""Finds committed runs by their publisher and sequences.

It is asked for what comes again, what is asked for again, what is late (journal_lookup.py). A run
is found by the ranges of its sequences, never by its first and last: what fills its holes is in
other runs, which may stand anywhere in the log.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import deque
from itertools import islice
from typing import NamedTuple, Protocol

from raylay.services.messages.ranges import SequenceSet
from raylay.services.messages.records import Kind, Run

STRETCH_BYTES = 256 * 1024
STRETCHES_KEPT = 8
"""Reads of so many stretches of the log: two links that both resync are in different places."""


class RunSource(Protocol):
    """The reads of a journal; `storage.journal.JournalReader` has the meaning of the answers."""

    @property
    def first_txid(self) -> int:
        """The oldest transaction id still here."""

    def read(self, after_txid: int, bytes_max: int) -> list[Run]:
        """Committed runs behind `after_txid`, in order, about `bytes_max` of them."""

    def find_sequence(self, publisher: int, sequence: int) -> int | None:
        """The transaction id of a message, or None when it is not here."""

    def first_held(self, publisher: int, first: int, last: int) -> int | None:
        """The lowest sequence in first..last that is here; None when none of them is."""

    def highest_on_topic(self, publisher: int, topic: bytes, wanted: SequenceSet) -> int:
        """The highest of `wanted` that is on the topic, or in no segment any more; 0: none."""


class _Piece(NamedTuple):
    """Sequences without a gap, and the run that holds them."""

    first: int
    last: int
    run: Run


_Stretch = dict[int, list[_Piece]]
"""Publisher to its pieces in one stretch of the log, in the order of their sequences."""


class RunLookup:
    """Looks committed runs up.

    Invariant: each stretch holds whole pieces of committed runs. Those never change. They may be
    removed, so that no link can send them any more: `look_anew` forgets such stretches.
    Owner: one thread at a time; it reads. Lifecycle: one life of the instance.

    Args:
        source: the instance's journal.
        stretch_bytes: how much is read at once.
    """

    def __init__(self, source: RunSource, *, stretch_bytes: int = STRETCH_BYTES) -> None:
        self._source = source
        self._stretch_bytes = stretch_bytes
        self._stretches: deque[_Stretch] = deque(maxlen=STRETCHES_KEPT)
        self._first_txid = 0
        self.reads = 0
        """Number of times that it has read the log."""

    def look_anew(self) -> None:
        """Forgets, before `part` is asked, what was read of segments that were removed since. Who
        is asked for a message would ask its destinations for it, and could send it to none of them.

        Raises:
            StorageError: the journal cannot be read.
        """
        first_txid = self._source.first_txid
        if first_txid != self._first_txid:
            self._first_txid = first_txid
            kept = [each for each in self._stretches if _first_txid_of(each) >= first_txid]
            self._stretches = deque(kept, STRETCHES_KEPT)

    def part(self, publisher: int, wanted: SequenceSet) -> list[Run]:
        """Committed runs that hold some of `wanted`, in the order of the log, as far as one stretch
        of it has them; takes out of `wanted`, which is not empty, what it has found and what is not
        here. Of a run the part before the first one asked for may be cut off.

        A message is looked up, then the log is read on from there: a publisher's runs mostly follow
        one another. What the last reads brought is looked through first: a link that sends again
        what is held asks for run after run of the same stretch.

        Raises:
            StorageError: the journal cannot be read.
        """
        found: dict[int, Run] = {}
        sequence, last = wanted.first(), wanted.last()
        assert sequence is not None and last is not None
        place = self._place_of(publisher, sequence)
        if place is None:
            # Staged, or in a segment that was removed.
            here = self._source.first_held(publisher, sequence + 1, last)
            wanted.remove(sequence, last if here is None else here - 1)
            return []
        pieces, at = place
        for piece in islice(pieces, at, None):
            if piece.first > last:
                break
            if wanted.touches(piece.first, piece.last):
                wanted.remove(piece.first, piece.last)
                found[piece.run.last_txid] = piece.run
        return [found[txid] for txid in sorted(found)]

    def highest_on_topic(self, publisher: int, topic: bytes, wanted: SequenceSet) -> int:
        """See `RunSource`."""
        self.reads += 1
        return self._source.highest_on_topic(publisher, topic, wanted)

    def _place_of(self, publisher: int, sequence: int) -> tuple[list[_Piece], int] | None:
        """The publisher's pieces in one stretch of the log, and which of them holds the sequence;
        None where it is not to be had."""
        for stretch in self._stretches:
            place = _place_in(stretch, publisher, sequence)
            if place is not None:
                return place
        stretch = self._stretch_at(publisher, sequence)
        place = _place_in(stretch, publisher, sequence)
        if place is not None:
            self._stretches.appendleft(stretch)
        return place

    def _stretch_at(self, publisher: int, sequence: int) -> _Stretch:
        self.reads += 1
        stretch: _Stretch = {}
        txid = self._source.find_sequence(publisher, sequence)
        if txid is None:
            return stretch
        for run in self._source.read(txid - 1, self._stretch_bytes):
            if run.kind == Kind.RECORDS:
                pieces = stretch.setdefault(run.publisher, [])
                pieces += [_Piece(first, last, run) for first, last in run.ranges()]
        for pieces in stretch.values():
            pieces.sort(key=_first)
        return stretch


def _place_in(stretch: _Stretch, publisher: int, sequence: int) -> tuple[list[_Piece], int] | None:
    pieces = stretch.get(publisher)
    if pieces is None:
        return None
    at = bisect_right(pieces, sequence, key=_first) - 1
    return (pieces, at) if at >= 0 and pieces[at].last >= sequence else None


def _first_txid_of(stretch: _Stretch) -> int:
    return min(piece.run.first_txid for pieces in stretch.values() for piece in pieces)


def _first(piece: _Piece) -> int:
    return piece.first
