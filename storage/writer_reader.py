"""Reads of a journal by its own writer, from any thread; the front log is read from memory."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path

from raylay.services.errors import StorageError
from raylay.services.messages.ranges import PublisherRanges, SequenceSet
from raylay.services.messages.records import Run
from raylay.storage.front_log import FrontLog, InProcessFront
from raylay.storage.journal import BLOCK_BYTES_MAX, SegmentInfo
from raylay.storage.journal_reader import LmdbJournalReader
from raylay.storage.segment_index import SegmentIndex
from raylay.storage.segments import SegmentFile


class WriterReader(LmdbJournalReader):
    """The writer's own reader. For the live segment it uses the index that the writer keeps.

    Args:
        active_index: returns the writer's index of the segment with this first transaction id;
            None: that segment is not the live one.
    """

    def __init__(
        self,
        directory: Path,
        archive: Path | None,
        front: FrontLog,
        active_index: Callable[[int], SegmentIndex | None],
    ) -> None:
        super().__init__(directory, archive, front=InProcessFront(front))
        self._active_index = active_index

    def _index_of(self, file: SegmentFile) -> SegmentIndex:
        return self._active_index(file.first_txid) or super()._index_of(file)


class WriterReads:
    """All reads of a journal by its writer (interface: `journal.JournalReader`).

    Owner: `LmdbJournal`. Threads: any. Lifecycle: `open` when the journal is recovered, `close`.

    Args:
        active_index: see `WriterReader`.
    """

    def __init__(
        self,
        directory: Path,
        archive: Path | None,
        front: FrontLog,
        active_index: Callable[[int], SegmentIndex | None],
    ) -> None:
        self._directory = directory
        self._archive = archive
        self._front = front
        self._active_index = active_index
        self._lock = threading.RLock()
        self._opened: WriterReader | None = None
        self.last_txid = 0
        """The newest committed transaction id, which the writer sets; 0: there is none."""

    def open(self) -> None:
        """Allows reads. To be called when the recovery has put the files in order."""
        self._opened = WriterReader(self._directory, self._archive, self._front, self._active_index)

    @property
    def _reader(self) -> WriterReader:
        if self._opened is None:
            raise StorageError(f"{self._directory}: the journal is closed", str(self._directory))
        return self._opened

    @property
    def first_txid(self) -> int:
        """Returns the oldest transaction id that the journal still holds; the next one where it
        holds none."""
        with self._lock:
            return self._reader.first_txid

    def read(self, after_txid: int, bytes_max: int = BLOCK_BYTES_MAX) -> list[Run]:
        """Returns committed runs behind `after_txid`; see `JournalReader.read`."""
        if after_txid >= self.last_txid:
            return []
        with self._lock:
            return self._reader.read(after_txid, bytes_max)

    def read_headers(self, after_txid: int, runs_max: int = 4096) -> list[Run]:
        """Returns committed runs without their payloads; see `JournalReader.read_headers`."""
        if after_txid >= self.last_txid:
            return []
        with self._lock:
            return self._reader.read_headers(after_txid, runs_max)

    def find_sequence(self, publisher: int, sequence: int) -> int | None:
        """Returns the transaction id of a message; None: the journal does not hold it."""
        with self._lock:
            return self._reader.find_sequence(publisher, sequence)

    def first_held(self, publisher: int, first: int, last: int) -> int | None:
        """Returns the lowest sequence of first..last that the journal holds; None: it holds
        none."""
        with self._lock:
            return self._reader.first_held(publisher, first, last)

    def highest_on_topic(self, publisher: int, topic: bytes, wanted: SequenceSet) -> int:
        """Returns the highest of the `wanted` sequences that is on the topic, or in no segment; see
        `JournalReader`."""
        with self._lock:
            return self._reader.highest_on_topic(publisher, topic, wanted)

    def find_time(self, time_us: int) -> int:
        """Returns the first transaction id received at or after this time; see `JournalReader`."""
        with self._lock:
            return self._reader.find_time(time_us)

    def segment_summaries(self) -> list[tuple[int, int, PublisherRanges]]:
        """Returns (first transaction id, last transaction id, sequences) of each sealed segment,
        the oldest first."""
        with self._lock:
            return self._reader.segment_summaries()

    def removed(self) -> PublisherRanges:
        """Returns all sequences that were once journaled and are in no segment any more."""
        with self._lock:
            return self._reader.removed()

    def segments(self) -> list[SegmentInfo]:
        """Returns all segments, the oldest first, the live one last."""
        with self._lock:
            return self._reader.segments()

    def reader(self) -> LmdbJournalReader:
        """Returns a new reader for another thread of this process; the caller closes it."""
        return LmdbJournalReader(self._directory, self._archive, front=InProcessFront(self._front))

    def tidy(self) -> None:
        """Closes the sealed segments that were not read since the last call; see
        `LmdbJournalReader.tidy`."""
        with self._lock:
            if self._opened is not None:
                self._opened.tidy()

    @property
    def is_untidy(self) -> bool:
        """Returns whether `tidy` has something to do; may be asked on any thread."""
        reader = self._opened
        return reader is not None and reader.is_untidy

    def release(self) -> None:
        """Closes the open segments, so that they can be compressed, archived and removed."""
        with self._lock:
            if self._opened is not None:
                self._opened.release()

    def close(self) -> None:
        with self._lock:
            if self._opened is not None:
                self._opened.close()
                self._opened = None
