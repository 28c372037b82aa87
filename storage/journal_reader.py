"""Reads a journal from any process, beside the instance that writes it.

The reader follows the live segment, the front log, rotation, sealing, compression, archiving and
removal by looking at the directory; it asks the instance nothing.
"""

from __future__ import annotations

import os
from bisect import bisect_right
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType
from typing import Protocol

from raylay.services.errors import CorruptRecord, StorageError
from raylay.services.messages.ranges import PublisherRanges, Range, SequenceSet
from raylay.services.messages.records import Flag, Kind, Run, decode_run
from raylay.storage.front import Blocks, FrontReader
from raylay.storage.journal import BLOCK_BYTES_MAX, SegmentInfo
from raylay.storage.segment_index import (
    EXTENT_BYTES,
    HEADER_KEY,
    HELD_PREFIX,
    RunHeader,
    SegmentIndex,
    ranges_from_entries,
)
from raylay.storage.segments import (
    STATE_OF,
    OpenSegment,
    SegmentFile,
    list_segments,
    open_segment,
    run_at,
)

OPEN_SEGMENTS_MAX = 4
INDEXES_MAX = 256
"""Indexes of sealed segments kept in memory; one is some kilobytes."""
LISTINGS_MAX = 64
"""Number of times that the directory may change under the reader in one call before it gives up."""


def _is_live(segment: OpenSegment) -> bool:
    """Returns whether the writer still appends to a segment: it is renamed when it is sealed."""
    return segment.file.suffix == ".live" and os.path.exists(segment.file.path)


def _part_of(ranges: list[Range], begin: int, end: int) -> list[Range]:
    """Returns the sequences at the positions from `begin` up to `end`, exclusive."""
    found = []
    at = 0
    for first, last in ranges:
        low, high = max(begin, at), min(end, at + last - first + 1)
        if low < high:
            found.append((first + low - at, first + high - at - 1))
        at += last - first + 1
    return found


class FrontSource(Protocol):
    """The commits that are in the front log and not in the store yet; see `front.FrontReader`."""

    def blocks(self, txid: int, bytes_max: int, stored: Callable[[], int]) -> Blocks | None:
        """Returns the blocks from the one that holds `txid` on; None: the store has that one by
        now."""

    def last_txid(self, stored_txid: int) -> int:
        """Returns the last durable transaction id."""

    def close(self) -> None:
        """Closes the files."""


class LmdbJournalReader:
    """A cursor over one data directory's journal (interface: `journal.JournalReader`).

    Invariants: no read transaction outlives a call; each open segment has a shared lock. After two
    calls of `tidy` with no other call in between, only the live segment is open, so that an idle
    reader never holds up compression and removal.
    Owner: one thread. Lifecycle: opened at any time, but in the writer's own process only after the
    writer, because a process opens an environment once, and the writer's one must be able to write;
    `close` at the end.

    Args:
        directory: the journal's directory.
        archive_directory: the directory of archived segments; None: there is none.
        verify: whether each run's payload checksum is verified when it is read.
        front: the reader of the front log; None: a reader of the directory's files. In the writer's
            own process it is the journal's.

    Raises:
        StorageError: the directory cannot be read.
    """

    def __init__(
        self,
        directory: str | Path,
        archive_directory: str | Path | None = None,
        *,
        verify: bool = True,
        front: FrontSource | None = None,
    ) -> None:
        self._directory = Path(directory)
        self._archive = Path(archive_directory) if archive_directory is not None else None
        self._stem = f"{self._directory}/journal-"
        self._verify = verify
        self._front: FrontSource = front or FrontReader(self._directory)
        self._files: list[SegmentFile] = []
        self._firsts: list[int] = []
        self._open: dict[int, OpenSegment] = {}
        self._used: set[int] = set()
        self._indexes: dict[int, SegmentIndex] = {}
        # What is left of the last block read, for the read that goes on behind it.
        self._rest_after = -1
        self._rest_key = 0
        self._rest_block = b""
        self._rest_offset = 0
        self._list()

    # -- segments ----------------------------------------------------------------------------
    def _list(self) -> None:
        self._files = list_segments(self._directory, self._archive)
        self._firsts = [file.first_txid for file in self._files]

    def _segment_at(self, txid: int) -> OpenSegment | None:
        """Returns the segment that holds, or would hold, the id; the oldest segment for an id
        before it. None: there is no segment."""
        for _ in range(LISTINGS_MAX):
            if not self._files:
                self._list()
                if not self._files:
                    return None
            at = max(0, bisect_right(self._firsts, txid) - 1)
            try:
                return self._opened(self._files[at])
            except FileNotFoundError:
                self._list()
        raise self._unsettled()

    def _unsettled(self) -> StorageError:
        error = StorageError(
            f"{self._directory} changed {LISTINGS_MAX} times during one read: retry",
            str(self._directory),
        )
        error.retriable = True
        return error

    def _opened(self, file: SegmentFile) -> OpenSegment:
        first_txid = file.first_txid
        self._used.add(first_txid)
        segment = self._open.get(first_txid)
        if segment is None:
            segment = open_segment(file)
            if len(self._open) >= OPEN_SEGMENTS_MAX:
                self._open.pop(next(iter(self._open))).close()
            self._open[first_txid] = segment
        elif len(self._open) > 1:
            # Most recently used last.
            del self._open[first_txid]
            self._open[first_txid] = segment
        return segment

    def _following(self, segment: OpenSegment) -> OpenSegment | None:
        """Returns the next segment; None: `segment` is the newest.

        Raises:
            StorageError: segments are missing behind it.
        """
        last_txid = segment.last_txid()
        for _ in range(LISTINGS_MAX):
            at = bisect_right(self._firsts, segment.first_txid)
            if at < len(self._files):
                file = self._files[at]
                if file.first_txid > last_txid + 1:
                    # It may have grown, and been followed, since the look at its end.
                    last_txid = segment.last_txid()
                    if file.first_txid > last_txid + 1:
                        raise StorageError(
                            f"{self._directory}: the segment that begins at transaction id "
                            f"{last_txid + 1} is missing; the next one is {file.path}",
                            str(self._directory),
                        )
                try:
                    return self._opened(file)
                except FileNotFoundError:
                    self._list()
                    continue
            # The newest one listed. A successor has the next id in its name.
            if os.path.exists(f"{self._stem}{last_txid + 1:016x}.live"):
                if last_txid == 0:
                    return None
            elif os.path.exists(segment.file.path):
                return None
            before = self._files
            self._list()
            if before == self._files:
                return None
        raise self._unsettled()

    def _next_blocks(self, txid: int, bytes_max: int) -> list[tuple[int, bytes]]:
        for _ in range(LISTINGS_MAX):
            blocks = self._stored_blocks(txid, bytes_max)
            if blocks or not self._files:
                return blocks
            in_front = self._front.blocks(txid, bytes_max, self._stored_txid)
            if in_front is not None:
                return in_front
        raise self._unsettled()

    def _stored_blocks(self, txid: int, bytes_max: int) -> list[tuple[int, bytes]]:
        segment = self._segment_at(txid)
        while segment is not None:
            blocks = segment.blocks(txid, bytes_max)
            if blocks:
                return blocks
            following = self._following(segment)
            if following is None:
                if len(self._open) > 1:
                    self._close_all_but(segment)
                return blocks
            # The first one may have got its last commits between the look and the rotation.
            blocks = segment.blocks(txid, bytes_max)
            if blocks:
                return blocks
            segment = following
        return []

    @contextmanager
    def _passing(self) -> Iterator[None]:
        """Closes the segments that are opened inside the `with`: a look-up leaves no lock
        behind."""
        before = set(self._open)
        try:
            yield
        finally:
            for first_txid in self._open.keys() - before:
                self._open.pop(first_txid).close()

    def _close_all_but(self, kept: OpenSegment | None) -> None:
        for first_txid, segment in list(self._open.items()):
            if segment is not kept:
                del self._open[first_txid]
                segment.close()

    def tidy(self) -> None:
        """Closes the segments, except the live one, that were not read since the last call. To be
        called regularly, as a reader cannot know that a segment is not read any more."""
        for first_txid, segment in list(self._open.items()):
            if first_txid not in self._used and not _is_live(segment):
                del self._open[first_txid]
                segment.close()
        self._used.clear()

    @property
    def is_untidy(self) -> bool:
        """Returns whether `tidy` has something to do; may be asked on any thread."""
        if self._used or len(self._open) > 1:
            return True
        # The newest one that this reader knows may have been sealed, and followed, meanwhile.
        return not all(map(_is_live, list(self._open.values())))

    def release(self) -> None:
        """Closes all segments and their locks, until the next call that needs one."""
        self._close_all_but(None)
        self._front.close()
        self._rest_after = -1
        self._rest_block = b""

    # -- reading -----------------------------------------------------------------------------
    def read(self, after_txid: int, bytes_max: int = BLOCK_BYTES_MAX) -> list[Run]:
        """Returns committed runs behind `after_txid`; see `JournalReader.read`.

        Raises:
            CorruptRecord: a run is damaged; the error names the file.
        """
        found: list[Run] = []
        taken_bytes = 0
        if self._rest_after == after_txid:
            taken_bytes = self._take(
                self._rest_key, self._rest_block, self._rest_offset, after_txid, bytes_max, found
            )
            if taken_bytes >= bytes_max:
                return found
            if found:
                after_txid = found[-1].last_txid
        while True:
            blocks = self._next_blocks(after_txid + 1, bytes_max - taken_bytes)
            for key, block in blocks:
                taken_bytes += self._take(key, block, 0, after_txid, bytes_max - taken_bytes, found)
                if taken_bytes >= bytes_max:
                    return found
            if found or not blocks:
                return found
            # A sound block has a later run. A damaged one must not make the caller read for ever.
            raise CorruptRecord(
                f"{self._directory}, block {blocks[0][0]}: holds nothing behind {after_txid}",
                str(self._directory),
            )

    def _take(
        self, key: int, block: bytes, offset: int, after: int, bytes_max: int, found: list[Run]
    ) -> int:
        """Decodes runs of a block from `offset` on, up to `bytes_max`, and keeps the rest for the
        next call. Returns the number of bytes decoded."""
        start = offset
        end = len(block)
        limit = start + bytes_max
        verify = self._verify
        run: Run | None = None
        while offset < end and offset < limit:
            try:
                run = decode_run(block, offset, verify=verify)
            except CorruptRecord as error:
                self._rest_after = -1
                raise self._damaged(key, error) from None
            assert run.raw is not None
            offset += len(run.raw)
            if run.first_txid <= after:
                run = run.after(after)
                if run is None:
                    start = offset
                    limit = start + bytes_max
                    continue
            found.append(run)
        if run is not None and offset < end:
            self._rest_after = run.last_txid
            self._rest_key, self._rest_block, self._rest_offset = key, block, offset
        else:
            self._rest_after = -1
            self._rest_block = b""
        return offset - start

    def _damaged(self, key: int, error: CorruptRecord) -> CorruptRecord:
        segment = self._segment_at(key)
        if segment is not None:
            return segment.damaged(key, error)
        return error

    def _headers(
        self, txid: int, bytes_max: int = BLOCK_BYTES_MAX
    ) -> Iterator[tuple[int, bytes, RunHeader]]:
        """Yields (offset in the block, block, header) of each run from the one that holds `txid`
        on."""
        while True:
            blocks = self._next_blocks(txid, bytes_max)
            if not blocks:
                return
            wanted = txid
            for key, block in blocks:
                segment = self._segment_at(key)
                assert segment is not None
                offset = run_at(block, txid)
                for header in segment.headers(key, block, offset):
                    last_txid = header.run.last_txid
                    if last_txid >= txid:
                        yield offset, block, header
                        txid = last_txid + 1
                    offset += header.length_bytes
            if txid == wanted:
                # The same blocks would come again, and again.
                raise CorruptRecord(
                    f"{self._directory}, block {blocks[-1][0]}: holds nothing from transaction "
                    f"{txid} on",
                    str(self._directory),
                )

    def read_headers(self, after_txid: int, runs_max: int = 4096) -> list[Run]:
        """Returns committed runs without their payloads; see `JournalReader.read_headers`."""
        found: list[Run] = []
        for offset, block, header in self._headers(after_txid + 1):
            run = header.run
            if run.kind == Kind.RECORDS and (
                run.first_txid <= after_txid or not run.flags & Flag.CONTIGUOUS
            ):
                cut = decode_run(block, offset, verify=False).after(after_txid)
                assert cut is not None
                cut.raw = None
                if cut.flags & Flag.CONTIGUOUS:
                    cut.payload = b""
                run = cut
            found.append(run)
            if len(found) >= runs_max:
                break
        return found

    def held_within(self, after_txid: int, last_txid: int) -> PublisherRanges:
        """Returns the sequences of the records behind `after_txid` up to and including
        `last_txid`, from the headers of the runs."""
        found = PublisherRanges()
        for _, _, (_, run, ranges, _) in self._headers(after_txid + 1):
            if run.first_txid > last_txid:
                break
            skipped = max(0, after_txid + 1 - run.first_txid)
            kept = min(run.count, last_txid - run.first_txid + 1)
            if skipped or kept < run.count:
                ranges = _part_of(ranges, skipped, kept)
            if ranges:
                found.add_ranges(run.publisher, ranges)
        return found

    # -- look-up -----------------------------------------------------------------------------
    def _index_of(self, file: SegmentFile) -> SegmentIndex:
        """Returns a segment's index, which is kept in memory if the segment is sealed.

        Raises:
            FileNotFoundError: the file was renamed or removed: list the directory again.
        """
        index = self._indexes.get(file.first_txid)
        if index is None:
            segment = self._opened(file)
            index = segment.index()
            if segment.file.suffix == ".live":
                self._add_front(segment, index)
            else:
                if len(self._indexes) >= INDEXES_MAX:
                    del self._indexes[next(iter(self._indexes))]
                self._indexes[file.first_txid] = index
        return index

    def _add_front(self, segment: OpenSegment, index: SegmentIndex) -> None:
        """Adds the runs of the front log to the index of the live segment."""
        for _ in range(LISTINGS_MAX):
            at = max(segment.first_txid, index.last_txid + 1)
            blocks = self._front.blocks(at, BLOCK_BYTES_MAX, segment.last_txid)
            # Of a segment that has a successor by now nothing is in front.
            newest = list_segments(self._directory, self._archive)[-1]
            if blocks is None or newest.first_txid != segment.first_txid:
                segment.index()  # it grows
                if blocks is None and newest.first_txid == segment.first_txid:
                    continue
                return
            if not blocks:
                return
            for key, block in blocks:
                for header in segment.headers(key, block, run_at(block, at)):
                    index.add(header.run, header.ranges, header.length_bytes, header.is_message)
        raise self._unsettled()

    def _listed_indexes(self, newest_first: bool) -> Iterator[SegmentIndex]:
        """Yields the index of each segment once, even if the directory changes meanwhile."""
        self._list()
        done: set[int] = set()
        for _ in range(LISTINGS_MAX):
            files = self._files[::-1] if newest_first else self._files
            try:
                for file in files:
                    if file.first_txid not in done:
                        index = self._index_of(file)
                        done.add(file.first_txid)
                        yield index
                return
            except FileNotFoundError:
                self._list()
        raise self._unsettled()

    def find_sequence(self, publisher: int, sequence: int) -> int | None:
        """Returns the transaction id of a message; None: the journal does not hold it."""
        with self._passing():
            return self._find_sequence(publisher, sequence)

    def _find_sequence(self, publisher: int, sequence: int) -> int | None:
        for index in self._listed_indexes(newest_first=True):
            for first_txid, end_txid in index.places_of(publisher, sequence):
                for _, _, (_, run, ranges, _) in self._headers(first_txid, EXTENT_BYTES):
                    if run.publisher == publisher and run.kind == Kind.RECORDS:
                        before = 0
                        for first, last in ranges:
                            if first <= sequence <= last:
                                return run.first_txid + before + sequence - first
                            before += last - first + 1
                    if run.last_txid + 1 >= end_txid:
                        break
        return None

    def first_held(self, publisher: int, first: int, last: int) -> int | None:
        """Returns the lowest sequence of first..last that the journal holds; None: it holds
        none."""
        with self._passing():
            found = [
                lowest
                for index in self._listed_indexes(newest_first=True)
                if (lowest := index.first_held(publisher, first, last)) is not None
            ]
        return min(found, default=None)

    def highest_on_topic(self, publisher: int, topic: bytes, wanted: SequenceSet) -> int:
        """Returns the highest of the `wanted` sequences that is on the topic, or in no segment; see
        `JournalReader`."""
        with self._passing():
            return self._highest_on_topic(publisher, topic, wanted)

    def _highest_on_topic(self, publisher: int, topic: bytes, wanted: SequenceSet) -> int:
        lowest = wanted.first()
        if lowest is None:
            return 0
        gone = wanted.copy()
        extents: list[tuple[int, int, int]] = []
        for index in self._listed_indexes(newest_first=True):
            index.take_held(publisher, gone)
            extents += index.extents_above(publisher, topic, lowest)
        highest = gone.last() or 0
        # The search begins at the highest extent, which mostly has the answer.
        for last_sequence, first_txid, end_txid in sorted(extents, reverse=True):
            if last_sequence <= highest:
                break
            for _, _, (_, run, _, _) in self._headers(first_txid, EXTENT_BYTES):
                if run.first_txid >= end_txid:
                    break
                if (
                    run.publisher == publisher
                    and run.kind == Kind.RECORDS
                    and run.topic == topic
                    and run.last_sequence >= lowest
                ):
                    highest = max(highest, run.last_sequence)
        return highest

    def find_time(self, time_us: int) -> int:
        """Returns the first transaction id received at or after this time; see `JournalReader`."""
        with self._passing():
            return self._find_time(time_us)

    def _find_time(self, time_us: int) -> int:
        for index in self._listed_indexes(newest_first=False):
            if index.last_time_us < time_us:
                continue
            first_txid = index.extent_at_time(time_us)
            if first_txid is None:
                continue
            for _, _, (_, run, _, _) in self._headers(first_txid, EXTENT_BYTES):
                if run.receive_time_us >= time_us:
                    return run.first_txid
        return self.last_txid + 1

    def segment_summaries(self) -> list[tuple[int, int, PublisherRanges]]:
        """Returns (first transaction id, last transaction id, sequences) of each sealed segment,
        the oldest first."""
        with self._passing():
            return self._segment_summaries()

    def _segment_summaries(self) -> list[tuple[int, int, PublisherRanges]]:
        self._list()
        for _ in range(LISTINGS_MAX):
            try:
                found = []
                for file in self._files:
                    if file.suffix != ".live":
                        index = self._index_of(file)
                        found.append((file.first_txid, index.last_txid, index.summary))
                return found
            except FileNotFoundError:
                self._list()
        raise self._unsettled()

    @property
    def first_txid(self) -> int:
        """Returns the oldest transaction id that the journal still holds; the next one where it
        holds none."""
        self._list()
        return self._firsts[0] if self._firsts else 1

    @property
    def last_txid(self) -> int:
        """Returns the newest committed transaction id; 0: there is none."""
        stored = self._stored_txid()
        if not self._files:
            return stored
        last = self._front.last_txid(stored)
        # What was in front may have been moved before or while it was looked at: the store has it.
        return max(last, self._stored_txid())

    def _stored_txid(self) -> int:
        """Returns the last transaction id of the newest segment."""
        for _ in range(LISTINGS_MAX):
            if not self._files:
                self._list()
                if not self._files:
                    return 0
            try:
                segment = self._opened(self._files[-1])
            except FileNotFoundError:
                self._list()
                continue
            while (following := self._following(segment)) is not None:
                segment = following
            return segment.last_txid() or segment.first_txid - 1
        raise self._unsettled()

    def removed(self) -> PublisherRanges:
        """Returns all sequences that were once journaled and are in no segment any more."""
        with self._passing():
            # What was held when the oldest one was begun.
            segment = self._segment_at(0)
            if segment is None:
                return PublisherRanges()
            return ranges_from_entries(segment.entries(), HELD_PREFIX, str(segment.file.path))

    def ever_held(self) -> PublisherRanges:
        """Returns all sequences that were ever journaled, those of removed segments included."""
        with self._passing():
            self._list()
            for _ in range(LISTINGS_MAX):
                made = PublisherRanges()
                try:
                    # A segment has its header, and what was held before it, from its first commit
                    # on.
                    for file in reversed(self._files):
                        made.update(self._index_of(file).summary)
                        entries = self._opened(file).entries()
                        if HEADER_KEY in entries:
                            made.update(ranges_from_entries(entries, HELD_PREFIX, str(file.path)))
                            break
                    return made
                except FileNotFoundError:
                    self._list()
            raise self._unsettled()

    def segment_files(self) -> list[SegmentFile]:
        """Lists the segments' files, the oldest first."""
        self._list()
        return list(self._files)

    def indexed(self, file: SegmentFile) -> tuple[SegmentInfo, SegmentIndex]:
        """Returns a segment's summary and index.

        Raises:
            FileNotFoundError: the file was renamed or removed: list the files again.
            CorruptRecord: the segment is damaged.
        """
        with self._passing():
            return self._info(file), self._index_of(file)

    def segments(self) -> list[SegmentInfo]:
        """Returns all segments, the oldest first, the live one last."""
        with self._passing():
            return self._segments()

    def _segments(self) -> list[SegmentInfo]:
        self._list()
        for _ in range(LISTINGS_MAX):
            try:
                return [self._info(file) for file in self._files]
            except FileNotFoundError:
                self._list()
        raise self._unsettled()

    def _info(self, file: SegmentFile) -> SegmentInfo:
        index = self._index_of(file)
        return SegmentInfo(
            first_txid=file.first_txid,
            last_txid=index.last_txid,
            state=STATE_OF[file.suffix],
            archived=file.archived,
            path=file.path,
            bytes_on_disk=os.stat(file.path).st_blocks * 512,
            records=index.records,
            first_time_us=index.first_time_us,
            last_time_us=index.last_time_us,
        )

    def close(self) -> None:
        self.release()
        self._indexes.clear()

    def __enter__(self) -> LmdbJournalReader:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()
