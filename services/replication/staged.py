"""Runs that an instance has staged and its journal has not committed yet, in the journal's order;
and the last committed runs, for copies that arrive by another path a moment later."""

from __future__ import annotations

from bisect import bisect_right
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import NamedTuple

from raylay.services.messages.ranges import Range, SequenceSet
from raylay.services.messages.records import Run
from raylay.services.replication.acknowledgment import Route, route_of
from raylay.services.replication.effects import Ranges, Rooted
from raylay.services.replication.link.content import DestinationFilters

RECENT_BYTES_MAX = 4 * 1024 * 1024
"""Bytes of the last committed runs that a server keeps in memory."""
RECENT_RUNS_MAX = 4_096


@dataclass(slots=True)
class RunStaged:
    """Records on their way to the disk; `sender` is an incarnation, or CLIENT."""

    txid: int
    run: Run
    root: int
    sender: int


class RoutedMessages(NamedTuple):
    """Messages of one run, or of several with the same route, and where they are routed."""

    route: Route
    first_txid: int
    """First transaction id of the runs that hold the messages."""
    ranges: SequenceSet


def routes_of(
    run: Run, sender: int, ranges: list[Range], contents: DestinationFilters
) -> list[tuple[Route, list[Range]]]:
    """Returns the routes of these messages of a run; the run needs its records where a content
    filter looks at them."""
    route = route_of(run, sender)
    if not contents.looks_at(run.topic, run.message_type):
        return [(route, ranges)]
    return [
        (route._replace(passed=passed), theirs)
        for passed, theirs in contents.verdicts(run, ranges)
        if theirs
    ]


@dataclass(slots=True)
class NoteStaged:
    """A note on its way to the disk: `sender` waits for the messages of the note, for `root`."""

    txid: int
    run: Run
    root: int
    sender: int
    publisher: int
    ranges: list[Range]
    routes: list[RoutedMessages] = field(default_factory=list)
    """Routes of the messages of the note, as far as the journal has them."""


@dataclass(slots=True)
class BatchStaged:
    """An upstream's batch; it counts as stored when everything up to `txid` is committed."""

    txid: int
    connection: int
    number: int
    touched: Rooted
    caught_up: bool
    conflicts: Ranges = field(default_factory=dict)
    """Messages of the batch that are held here with other content."""


Entry = RunStaged | NoteStaged | BatchStaged


class StagedLog:
    """A queue of staged entries whose runs can be found by their sequences: an upstream that sends
    messages that another one has just sent needs that for every run.

    The last committed runs can still be found. If they were looked up on disk, the second copy of
    each message would wait for a read, and the link that brings it would be told too late that the
    messages arrive by another path.

    Args:
        recent_bytes_max: payload bytes of the committed runs that are kept; 0: none.

    Attributes:
        entries: entries that are not committed, the oldest first; other parts only read it.
    """

    __slots__ = (
        "_bytes_max",
        "_gone",
        "_recent",
        "_recent_bytes",
        "_runs",
        "_runs_max",
        "_spans",
        "entries",
    )

    def __init__(self, recent_bytes_max: int = 0) -> None:
        self._recent: deque[Run] = deque()
        """Committed runs that are kept, the oldest first."""
        self._recent_bytes = 0
        self._bytes_max = recent_bytes_max
        self._runs_max = RECENT_RUNS_MAX if recent_bytes_max else 0
        self._gone = 0
        """Number of runs that were dropped since the widest runs were last determined."""
        self.entries: deque[Entry] = deque()
        self._runs: dict[int, list[Run]] = {}
        """Runs by publisher, in the order of their first sequences."""
        self._spans: dict[int, int] = {}
        """Width of the widest run of each publisher: last minus first sequence."""

    def append(self, entry: Entry) -> None:
        self.entries.append(entry)
        if isinstance(entry, RunStaged):
            run = entry.run
            publisher = run.publisher
            runs = self._runs.get(publisher)
            span = run.last_sequence - run.first_sequence
            if runs is None:
                self._runs[publisher] = [run]
                self._spans[publisher] = span
                return
            if run.first_sequence > runs[-1].first_sequence:
                runs.append(run)
            else:
                runs.insert(bisect_right(runs, run.first_sequence, key=_first_sequence), run)
            if span > self._spans[publisher]:
                self._spans[publisher] = span

    def in_memory(self) -> Iterator[Run]:
        """Returns all runs that can be found here, including the committed ones that are kept."""
        for runs in self._runs.values():
            yield from runs

    def committed(self, last_txid: int) -> Entry | None:
        """Removes and returns the oldest entry, if all of it is committed at this transaction
        id."""
        if not self.entries or self.entries[0].txid > last_txid:
            return None
        entry = self.entries.popleft()
        if isinstance(entry, RunStaged):
            recent = self._recent
            recent.append(entry.run)
            self._recent_bytes += len(entry.run.payload)
            while len(recent) > self._runs_max or self._recent_bytes > self._bytes_max:
                run = recent.popleft()
                self._recent_bytes -= len(run.payload)
                self._forget(run)
        return entry

    def _forget(self, run: Run) -> None:
        runs = self._runs[run.publisher]
        if len(runs) == 1:
            del self._runs[run.publisher], self._spans[run.publisher]
        elif runs[0] is run:
            del runs[0]
        else:
            at = bisect_right(runs, run.first_sequence, key=_first_sequence) - 1
            while runs[at] is not run:
                at -= 1
            del runs[at]
        self._gone += 1
        if self._gone > RECENT_RUNS_MAX:
            # A wide run lengthens every search for its publisher, so the widths are determined anew
            # from time to time.
            self._gone = 0
            for publisher, found in self._runs.items():
                self._spans[publisher] = max(
                    each.last_sequence - each.first_sequence for each in found
                )

    def refuse(self, publisher: int, refused: SequenceSet) -> list[tuple[int, list[Range]]]:
        """Takes messages that a destination refused for good, and removes them from staged notes
        and batches, so that no note makes anybody wait for them and no batch counts as having
        brought them. Returns (connection, refused messages) of each such batch."""
        told = []
        for entry in self.entries:
            if isinstance(entry, NoteStaged) and entry.publisher == publisher:
                entry.ranges = _without(entry.ranges, refused)
                for routed in entry.routes:
                    routed.ranges.difference_update(refused)
            elif isinstance(entry, BatchStaged):
                for arrived in entry.touched.values():
                    brought = SequenceSet(arrived.get(publisher, ())).intersection(refused)
                    if brought:
                        arrived[publisher] = _without(arrived[publisher], refused)
                        told.append((entry.connection, list(brought)))
        return told

    def clear(self) -> None:
        """Forgets everything, including the committed runs: the highest sequences on topics are
        read from the journal afterwards, which must then cover all of them."""
        self.entries.clear()
        self._recent.clear()
        self._recent_bytes = self._gone = 0
        self._runs.clear()
        self._spans.clear()

    def runs(self, publisher: int, first: int, last: int) -> list[Run]:
        """Returns the runs of a publisher, staged or just committed, that may hold any of
        first..last."""
        runs = self._runs.get(publisher)
        if runs is None:
            return []
        low = bisect_right(runs, first - self._spans[publisher] - 1, key=_first_sequence)
        high = bisect_right(runs, last, key=_first_sequence)
        return [run for run in runs[low:high] if run.last_sequence >= first]

    def __iter__(self) -> Iterator[Entry]:
        return iter(self.entries)

    def __len__(self) -> int:
        return len(self.entries)


def _without(ranges: list[Range], refused: SequenceSet) -> list[Range]:
    return [piece for a, b in ranges for piece in refused.missing(a, b)]


def _first_sequence(run: Run) -> int:
    return run.first_sequence
