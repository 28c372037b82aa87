"""Totals of the topics of a whole journal, of the seals of its segments and the indexes of those
that are not sealed yet.

Nothing is read for a message. The seals are read once after the start, in the background; a segment
that retention removed is taken off, and of the segments behind it only those are read in which its
topics are next.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable, Mapping
from itertools import islice
from pathlib import Path

from raylay.services.errors import CorruptRecord, StorageLocked
from raylay.services.messages.topic_totals import (
    COUNTED_MAX,
    MESSAGES,
    NEWEST,
    OLDEST,
    TopicTotal,
    TopicTotals,
    add_totals,
)
from raylay.services.messages.topics import TopicKey
from raylay.storage.files import FileLock
from raylay.storage.maintenance import MAINTENANCE_LOCK
from raylay.storage.segment_index import SegmentIndex
from raylay.storage.segments import OpenedSegment, SegmentFile, list_segments

KEPT = 16
"""The number of the oldest segments whose totals are kept in memory: they are removed next."""


class JournalTopics:
    """See the file's docstring.

    Invariants: each segment is counted once: among the closed ones as `_known` names them, or among
    the live ones. `_closed` is replaced and never changed.
    Owner: `LmdbJournal`. Threads: `refresh` on any thread at a time; `opened` on the thread that
    commits; reading on any.
    """

    def __init__(self, directory: Path, archive: Path | None) -> None:
        self._directory = directory
        self._archive = archive
        self._refreshing = threading.Lock()
        self._lock = threading.Lock()
        self._closed = TopicTotals()
        self._closed_messages = 0
        self._known: dict[int, int] = {}
        """The time of the oldest message of each closed segment that is counted, by its first
        transaction id."""
        self._kept: dict[int, TopicTotals] = {}
        self._live: dict[int, SegmentIndex] = {}
        self._seen: dict[int, int] = {}
        """The number of topics of each live segment that are among `_keys`."""
        self._keys: dict[TopicKey, None] = {}
        """Every topic that is counted separately, in the order of their first messages."""
        self._removed: dict[TopicKey, int] = {}
        """The messages of each topic that were removed, less those found in closed segments at the
        start: with them a count only rises."""
        self.is_counted = False
        """Whether all closed segments that were there at the start are counted."""

    # -- what the journal does ---------------------------------------------------------------
    def opened(self, indexes: Mapping[int, SegmentIndex]) -> None:
        """Takes the indexes of segments that are not sealed yet, by their first transaction id."""
        with self._lock:
            for first_txid, index in indexes.items():
                self._live[first_txid] = index
                self._seen[first_txid] = 0

    def refresh(self) -> None:
        """Brings the totals into line with the segments that are there. Does nothing while another
        process removes or replaces segments, which must not find them in use.

        Raises:
            StorageError: a segment cannot be read; the totals stay as they are.
        """
        try:
            with self._refreshing, FileLock(self._directory / MAINTENANCE_LOCK):
                self._refresh()
        except (StorageLocked, FileNotFoundError):
            return  # the next refresh finds what this one missed
        self.is_counted = True

    def is_current(self, first_txid: int) -> bool:
        """Returns whether the oldest counted segment is the one with this first transaction id, or
        none is counted."""
        known = self._known
        return self.is_counted and (not known or next(iter(known)) == first_txid)

    def _refresh(self) -> None:
        files = {
            file.first_txid: file
            for file in list_segments(self._directory, self._archive)
            if file.suffix != ".live"
        }
        gone = [first_txid for first_txid in self._known if first_txid not in files]
        added = [first_txid for first_txid in files if first_txid not in self._known]
        if not gone and not added:
            return
        known = {first: oldest for first, oldest in self._known.items() if first in files}
        closed = self._without(gone, known, files) if gone else self._closed.copy()
        if closed is None:
            closed, known, added = TopicTotals(), {}, list(files)
        found: dict[int, TopicTotals] = {}
        for first_txid in added:
            totals = self._totals(files[first_txid])
            closed.update(totals)
            known[first_txid] = _oldest(totals)
            if len(found) < KEPT:
                found[first_txid] = totals
        order = sorted(known)
        kept = {first: (found.get(first) or self._totals(files[first])) for first in order[:KEPT]}
        with self._lock:
            before = self._sums(self._closed, self._live.values())
            self._closed, self._kept = closed, kept
            self._closed_messages = closed.messages
            self._known = {first: known[first] for first in order}
            for first_txid in [each for each in self._live if each in known]:
                del self._live[first_txid], self._seen[first_txid]
            if closed.others[MESSAGES] and len(self._keys) >= COUNTED_MAX:
                self._keys.clear()
            self._take_keys(closed.by_topic)
            self._note_keys()
            after = self._sums(closed, self._live.values())
            self._removed = {
                key: self._removed.get(key, 0) + before.get(key, 0) - after.get(key, 0)
                for key in self._keys
            }

    def _without(
        self, gone: list[int], known: Mapping[int, int], files: Mapping[int, SegmentFile]
    ) -> TopicTotals | None:
        """Returns the totals without those of removed segments; None where they must be counted
        anew."""
        if self._closed.others[MESSAGES] or any(first not in self._kept for first in gone):
            return None
        closed = self._closed.copy()
        left: set[TopicKey] = set()
        for first_txid in gone:
            for key, less in self._kept[first_txid].by_topic.items():
                entry = closed.by_topic[key]
                for place in (0, 1):
                    entry[place] -= less[place]
                left.add(key)
                if entry[MESSAGES] and less[MESSAGES] and less[NEWEST] == entry[NEWEST]:
                    return None  # a clock was set back
        for key in left:
            entry = closed.by_topic[key]
            entry[OLDEST] = 0
            if not entry[MESSAGES]:
                entry[NEWEST] = 0
        self._find_oldest(closed, {k for k in left if closed.by_topic[k][MESSAGES]}, known, files)
        for key in left:
            if not any(closed.by_topic[key]):
                del closed.by_topic[key]
        return closed

    def _find_oldest(
        self,
        closed: TopicTotals,
        wanted: set[TopicKey],
        known: Mapping[int, int],
        files: Mapping[int, SegmentFile],
    ) -> None:
        """Sets the oldest times of topics. The search ends where no later segment is older."""
        behind: dict[int, int] = {}
        oldest = 0
        for first_txid in sorted(known, reverse=True):
            behind[first_txid] = oldest
            oldest = min(filter(None, (oldest, known[first_txid])), default=0)
        for first_txid in sorted(known):
            if not wanted:
                return
            by_topic = self._totals(files[first_txid]).by_topic
            for key in list(wanted):
                entry, more = closed.by_topic[key], by_topic.get(key)
                if more is not None and more[MESSAGES]:
                    entry[OLDEST] = min(filter(None, (entry[OLDEST], more[OLDEST])))
                if entry[OLDEST] and not 0 < behind[first_txid] < entry[OLDEST]:
                    wanted.discard(key)

    def _totals(self, file: SegmentFile) -> TopicTotals:
        """Returns the totals of a closed segment, of memory or of its seal; none of a segment with
        a damaged seal, which a verification reports."""
        first_txid = file.first_txid
        live, kept = self._live.get(first_txid), self._kept.get(first_txid)
        if live is not None:
            return live.topic_totals()
        if kept is not None:
            return kept
        try:
            with OpenedSegment(file) as segment:
                return segment.topic_totals()
        except CorruptRecord:
            return TopicTotals()

    @staticmethod
    def _sums(closed: TopicTotals, live: Iterable[SegmentIndex]) -> dict[TopicKey, int]:
        found = {key: entry[MESSAGES] for key, entry in closed.by_topic.items()}
        for index in live:
            for key, entry in index.topic_totals().by_topic.items():
                found[key] = found.get(key, 0) + entry[MESSAGES]
        return found

    def _note_keys(self) -> None:
        """Takes the topics that are new among the live segments."""
        for first_txid, index in self._live.items():
            seen = self._seen[first_txid]
            if len(index.totals.by_topic) > seen:
                new = index.topics_from(seen)
                self._seen[first_txid] = seen + len(new)
                self._take_keys(new)

    def _take_keys(self, keys: Iterable[TopicKey]) -> None:
        for key in keys:
            if len(self._keys) >= COUNTED_MAX:
                return
            self._keys.setdefault(key)

    # -- reading -----------------------------------------------------------------------------
    def page(self, first: int, count_max: int) -> list[TopicTotal]:
        """Returns the totals of some topics, in the order in which they came.

        Args:
            first: number of topics before the page.
        """
        with self._lock:
            self._note_keys()
            keys = list(islice(self._keys, first, first + count_max))
            closed, live, removed = self._closed, [*self._live.values()], self._removed
        return [_total(key, closed, live, removed) for key in keys]

    def most(self, count_max: int) -> list[TopicTotal]:
        """Returns the totals of the topics with most messages, those first."""
        with self._lock:
            self._note_keys()
            keys = list(self._keys)
            closed, live, removed = self._closed, [*self._live.values()], self._removed
        found = [_total(key, closed, live, removed) for key in keys]
        found.sort(key=lambda each: (-each.messages, each.topic, each.message_type))
        return [each for each in found if each.bytes][:count_max]

    @property
    def messages(self) -> int:
        """Returns the number of messages in the journal."""
        with self._lock:
            return self._closed_messages + sum(index.messages for index in self._live.values())

    @property
    def messages_of_others(self) -> int:
        """Returns the number of messages on topics that are not counted separately."""
        with self._lock:
            closed, live, keys = self._closed, [*self._live.values()], self._keys
            count = closed.others[MESSAGES] + sum(each.totals.others[MESSAGES] for each in live)
            if len(keys) >= COUNTED_MAX:
                sums = self._sums(closed, live)
                count += sum(messages for key, messages in sums.items() if key not in keys)
        return count


def _oldest(totals: TopicTotals) -> int:
    return min((entry[OLDEST] for _, entry in totals.items() if entry[MESSAGES]), default=0)


def _total(
    key: TopicKey,
    closed: TopicTotals,
    live: Iterable[SegmentIndex],
    removed: Mapping[TopicKey, int],
) -> TopicTotal:
    entry = [0, 0, 0, 0]
    for totals in (closed, *(index.totals for index in live)):
        more = totals.by_topic.get(key)
        if more is not None:
            add_totals(entry, more)
    topic, kind = (each.decode("utf-8", "replace") for each in key)
    messages, size_bytes, oldest_us, newest_us = entry
    logged = messages + removed.get(key, 0)
    return TopicTotal(topic, kind, messages, size_bytes, oldest_us, newest_us, logged)
