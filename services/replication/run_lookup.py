"""Finds committed runs by their publisher and sequences.

The look-up serves messages that arrive again, are asked for again, or are late (journal_lookup.py).
A run is found by the ranges of its sequences, never by its first and last one: the sequences in its
gaps are in other runs, which may be anywhere in the log.
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
"""Number of stretches of the log that stay in memory after they were read: two links that both
resync are in different places."""


class RunSource(Protocol):
    """The reads of a journal that a look-up needs; `storage.journal.JournalReader` documents the
    answers."""

    @property
    def first_txid(self) -> int:
        """Returns the oldest transaction id in the journal."""

    def read(self, after_txid: int, bytes_max: int) -> list[Run]:
        """Returns committed runs behind `after_txid`, in order, about `bytes_max` bytes of them."""

    def find_sequence(self, publisher: int, sequence: int) -> int | None:
        """Returns the transaction id of a message, or None when the journal lacks it."""

    def first_held(self, publisher: int, first: int, last: int) -> int | None:
        """Returns the lowest sequence in first..last that the journal has; None when it has none of
        them."""

    def highest_on_topic(self, publisher: int, topic: bytes, wanted: SequenceSet) -> int:
        """Returns the highest of `wanted` that is on the topic or in no segment any more; 0:
        none."""


class _Piece(NamedTuple):
    """Consecutive sequences, and the run that holds them."""

    first: int
    last: int
    run: Run


_Stretch = dict[int, list[_Piece]]
"""The pieces of each publisher in one stretch of the log, in the order of their sequences."""


class RunLookup:
    """Looks committed runs up.

    Invariant: each stretch holds whole pieces of committed runs. Those never change. They may be
    removed, so that no link can send them any more: `look_anew` forgets such stretches.
    Owner: one thread at a time; it reads. Lifecycle: one life of the instance.

    Args:
        source: the instance's journal.
        stretch_bytes: number of bytes that are read at once.
    """

    def __init__(self, source: RunSource, *, stretch_bytes: int = STRETCH_BYTES) -> None:
        self._source = source
        self._stretch_bytes = stretch_bytes
        self._stretches: deque[_Stretch] = deque(maxlen=STRETCHES_KEPT)
        self._first_txid = 0
        self.reads = 0
        """Number of times that the log was read."""

    def look_anew(self) -> None:
        """Forgets stretches that were read from segments that have since been removed. To be called
        before `part`: an instance that is asked for a removed message could send it to none of its
        destinations.

        Raises:
            StorageError: the journal cannot be read.
        """
        first_txid = self._source.first_txid
        if first_txid != self._first_txid:
            self._first_txid = first_txid
            kept = [stretch for stretch in self._stretches if _first_txid_of(stretch) >= first_txid]
            self._stretches = deque(kept, STRETCHES_KEPT)

    def part(self, publisher: int, wanted: SequenceSet) -> list[Run]:
        """Returns committed runs that hold some of `wanted`, in the order of the log, as far as one
        stretch of it has them; removes from `wanted`, which is not empty, the sequences that were
        found and those that the journal lacks. Of the first run, the part before the first sequence
        may be cut off.

        A message is looked up, then the log is read on from there, since a publisher's runs mostly
        follow one another. The stretches in memory are searched first: a link that sends again what
        is held here asks for run after run of the same stretch.

        Raises:
            StorageError: the journal cannot be read.
        """
        found: dict[int, Run] = {}
        sequence, last = wanted.first(), wanted.last()
        assert sequence is not None and last is not None
        place = self._place_of(publisher, sequence)
        if place is None:
            # Staged only, or in a removed segment.
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
        self.reads += 1
        return self._source.highest_on_topic(publisher, topic, wanted)

    def _place_of(self, publisher: int, sequence: int) -> tuple[list[_Piece], int] | None:
        """Returns the publisher's pieces in one stretch of the log, and the index of the one that
        holds the sequence; None where the journal lacks it."""
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
