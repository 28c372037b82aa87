"""The index of one segment, known without reading its records: summary, bookmark and time index.

A segment is divided into *extents*, stretches of about 64 KiB. Per extent the index keeps its
first transaction id and the latest receive time in it, per publisher the lowest and highest
sequence in each extent that holds any. A look-up finds the few extents that may hold a message
and reads the run headers of those. The writer keeps one as it commits; a reader of a live segment
builds its own as far as it has looked; sealing writes it into the segment as *meta entries*.

A meta entry is a key (text, and for a publisher its id, 8 bytes big-endian) and a value:

      u64  checksum    XXH3-64 of what follows
      ...  content     little-endian

    header    u16 version (1), u16 0, u32 0, u64 first txid     from the segment's first commit on
    held+p    the publisher's SequenceSet at that moment        from the segment's first commit on
    seal      u64 last txid, u64 records, u64 runs, u64 bytes, u64 first and u64 latest receive
              time in microseconds                              from sealing on, like all below
    extents   per extent u64 first txid, u64 latest receive time
    sum+p     the SequenceSet of the publisher's records in this segment
    idx+p     per extent that holds the publisher u64 extent number, u64 lowest, u64 highest
    earliest  u64 earliest receive time: the first one's, but where the clock was set back
    totals    the totals of topics (services/messages/topic_totals.py): u64 messages, u64 bytes, u64
              receive time of the oldest and u64 of the newest message, first of all beyond 10,000
              topics and of runs that do not say their own (a reader must look where these have
              bytes), then per topic and message type u16 topic length, u8 type length, topic,
              type, and its totals, ascending. Without this entry a seal counts for nothing: the
              index is built from the run headers, as that of a live segment
"""

from __future__ import annotations

import struct
import threading
from collections.abc import Iterable, Mapping, Sequence
from itertools import islice
from typing import NamedTuple

from xxhash import xxh3_64_intdigest as checksum64

from raylay.services.errors import CorruptRecord, RemoteProtocolError, StorageError
from raylay.services.messages import records
from raylay.services.messages.ranges import PublisherRanges, Range, SequenceSet
from raylay.services.messages.records import COMMAND_AT, Flag, Kind, Run, sequences_of
from raylay.services.messages.topic_totals import (
    BYTES,
    TopicTotals,
    has_messages,
    run_has_messages,
)
from raylay.services.messages.topics import TopicKey

SEGMENT_VERSION = 1
EXTENT_BYTES = 64 * 1024

_RECORDS = int(Kind.RECORDS)

HEADER_KEY = b"header"
SEAL_KEY = b"seal"
EXTENTS_KEY = b"extents"
EARLIEST_KEY = b"earliest"
TOTALS_KEY = b"totals"
HELD_PREFIX = b"held"
SUMMARY_PREFIX = b"sum"
INDEX_PREFIX = b"idx"

_U64 = struct.Struct("<Q")
_PUBLISHER = struct.Struct(">Q")
_HEADER = struct.Struct("<HHIQ")
_SEAL = struct.Struct("<QQQQQQ")

# The layout is documented in records.py; only that module and this loop over headers unpack it.
_RUN = records._RUN
_RUN_BYTES = records.RUN_HEADER_BYTES
_CHECKED_FROM = records._RUN_CHECKED_FROM


class RunHeader(NamedTuple):
    """A run's place and sequences, read without touching its records more than needed."""

    length_bytes: int
    run: Run
    """The run, with an empty payload where it holds records; a note keeps its payload, which is
    small."""
    ranges: list[Range]
    is_message: bool
    """Whether the run's records are messages, neither notes nor records of a queue's own."""


def read_header(block: bytes | memoryview, offset: int) -> RunHeader:
    """Returns the header of the run at `offset`; only the header's checksum is verified.

    Raises:
        CorruptRecord: the bytes are no whole, sound run header.
    """
    end = len(block)
    if offset + _RUN_BYTES > end:
        raise CorruptRecord(f"run at byte {offset} is cut short", offset=offset)
    (
        length,
        check,
        version,
        kind,
        flags,
        first_txid,
        receive_time_us,
        publisher,
        first_sequence,
        last_sequence,
        count,
        payload_check,
        topic_length,
        type_length,
        path_length,
        group_length,
    ) = _RUN.unpack_from(block, offset)
    header_length = _RUN_BYTES + topic_length + type_length + 8 * path_length + group_length
    if length < header_length or offset + length > end:
        raise CorruptRecord(f"run at byte {offset} has lengths that do not fit", offset=offset)
    header = bytes(block[offset : offset + header_length])
    if checksum64(header[_CHECKED_FROM:]) != check:
        raise CorruptRecord(f"run at byte {offset} fails its header checksum", offset=offset)
    if version != records.RUN_VERSION:
        raise CorruptRecord(
            f"run at byte {offset} has version {version}, "
            f"this software reads {records.RUN_VERSION}",
            offset=offset,
        )
    if not records.is_plausible_header(
        kind,
        flags,
        first_sequence,
        last_sequence,
        count,
        topic_length + type_length,
        length - header_length,
    ):
        raise records.bad_run_header(
            offset, first_sequence, last_sequence, count, length - header_length
        )
    at = _RUN_BYTES + topic_length
    names_end = at + type_length
    group_at = names_end + 8 * path_length
    run = Run(
        publisher,
        first_sequence,
        last_sequence,
        count,
        b"",
        header[_RUN_BYTES:at],
        header[at:names_end],
        struct.unpack_from(f"<{path_length}Q", header, names_end) if path_length else (),
        header[group_at:].decode("utf-8", "replace"),
        flags,
        kind,
        first_txid,
        receive_time_us,
        payload_check,
    )
    ranges: list[Range] = []
    if kind != Kind.RECORDS:
        run.payload = bytes(block[offset + header_length : offset + length])
    elif flags & Flag.CONTIGUOUS:
        ranges.append((first_sequence, last_sequence))
    else:
        ranges = _ranges_of(block[offset + header_length : offset + length], offset)
    command_at = offset + header_length + COMMAND_AT
    command = block[command_at] if command_at < offset + length else 0
    return RunHeader(length, run, ranges, has_messages(kind, flags, command))


def _ranges_of(payload: bytes | memoryview, offset: int) -> list[Range]:
    ranges: list[Range] = []
    first = last = -1
    try:
        sequences = sequences_of(payload)
    except struct.error:
        raise CorruptRecord(f"run at byte {offset} holds broken records", offset=offset) from None
    for sequence in sequences:
        if sequence == last + 1:
            last = sequence
            continue
        if first >= 0:
            ranges.append((first, last))
        first = last = sequence
    ranges.append((first, last))
    return ranges


class SegmentIndex:
    """The contents of one segment, kept run by run.

    Invariants: extents ascend; `summary` holds exactly the sequences of the runs added.
    Owner: the writer thread for its live segment, while other threads look things up in it; a
    reader for its own view of one.
    """

    __slots__ = (
        "_extent_bytes",
        "_lock",
        "bytes_used",
        "earliest_time_us",
        "extent_firsts",
        "extent_times_us",
        "first_time_us",
        "last_time_us",
        "last_txid",
        "messages",
        "places",
        "records",
        "runs",
        "summary",
        "totals",
    )

    def __init__(self) -> None:
        self.last_txid = 0
        self.records = 0
        self.messages = 0
        self.runs = 0
        self.bytes_used = 0
        self.first_time_us = 0
        self.earliest_time_us = 0
        self.last_time_us = 0
        """The latest receive time of any run, which need not be that of the last run."""
        self.summary = PublisherRanges()
        self.extent_firsts: list[int] = []
        self.extent_times_us: list[int] = []
        self.places: dict[int, list[int]] = {}
        """A flat list of (extent number, lowest sequence, highest sequence) for each publisher."""
        self.totals = TopicTotals()
        """The totals of the topics of all records."""
        self._extent_bytes = EXTENT_BYTES
        self._lock = threading.Lock()

    def add(self, run: Run, ranges: Iterable[Range], length_bytes: int, is_message: bool) -> None:
        """Takes the next run of the segment; `ranges` are its sequences, and `is_message` says
        whether its records are messages."""
        with self._lock:
            self._add(run, ranges, length_bytes, is_message)

    def add_all(self, runs: Sequence[Run], lengths: Sequence[int]) -> None:
        """Takes the runs of a commit, with their lengths in bytes."""
        with self._lock:
            for run, length_bytes in zip(runs, lengths, strict=True):
                self._add(run, run.ranges(), length_bytes, run_has_messages(run))

    def _add(self, run: Run, ranges: Iterable[Range], length_bytes: int, is_message: bool) -> None:
        time_us = run.receive_time_us
        if not self.runs:
            self.first_time_us = self.earliest_time_us = time_us
        elif time_us < self.earliest_time_us:
            self.earliest_time_us = time_us
        self.runs += 1
        self.records += run.count
        self.bytes_used += length_bytes
        self.last_txid = run.first_txid + run.count - 1
        if time_us > self.last_time_us:
            self.last_time_us = time_us
        if self._extent_bytes >= EXTENT_BYTES:
            self._extent_bytes = 0
            self.extent_firsts.append(run.first_txid)
            self.extent_times_us.append(time_us)
        elif time_us > self.extent_times_us[-1]:
            self.extent_times_us[-1] = time_us
        self._extent_bytes += length_bytes
        if run.kind != _RECORDS:
            return
        self.totals.add(run, length_bytes, is_message)
        if is_message:
            self.messages += run.count
        publisher = run.publisher
        held = self.summary.of(publisher)
        for first, last in ranges:
            held.add(first, last)
        extent = len(self.extent_firsts) - 1
        places = self.places.get(publisher)
        if places is None:
            self.places[publisher] = [extent, run.first_sequence, run.last_sequence]
        elif places[-3] == extent:
            if run.first_sequence < places[-2]:
                places[-2] = run.first_sequence
            if run.last_sequence > places[-1]:
                places[-1] = run.last_sequence
        else:
            places += (extent, run.first_sequence, run.last_sequence)

    @property
    def topics(self) -> set[TopicKey] | None:
        """Returns the (topic, message type) pairs of all records; None when not all are known."""
        with self._lock:
            return self._topics()

    def _topics(self) -> set[TopicKey] | None:
        return None if self.totals.others[BYTES] else set(self.totals.by_topic)

    def topic_totals(self) -> TopicTotals:
        """Returns a copy of the totals of the topics."""
        with self._lock:
            return self.totals.copy()

    def topics_from(self, first: int) -> list[TopicKey]:
        """Returns the topics that are counted separately, without the first ones."""
        with self._lock:
            return list(islice(self.totals.by_topic, first, None))

    def first_held(self, publisher: int, first: int, last: int) -> int | None:
        """Returns the lowest sequence in first..last that is in this segment; None when there is
        none."""
        with self._lock:
            held = self.summary.get(publisher)
            return held.first_within(first, last) if held is not None else None

    def places_of(self, publisher: int, sequence: int) -> list[tuple[int, int]]:
        """Returns (first transaction id, id behind the end) of the extents that may hold the
        message; an empty list when the segment does not have it."""
        found: list[tuple[int, int]] = []
        with self._lock:
            held = self.summary.get(publisher)
            if held is None or sequence not in held:
                return found
            places = self.places.get(publisher, [])
            firsts = self.extent_firsts
            for at in range(0, len(places), 3):
                if places[at + 1] <= sequence <= places[at + 2]:
                    extent = places[at]
                    end = firsts[extent + 1] if extent + 1 < len(firsts) else self.last_txid + 1
                    found.append((firsts[extent], end))
        return found

    def extents_above(
        self, publisher: int, topic: bytes, sequence: int
    ) -> list[tuple[int, int, int]]:
        """Returns (highest sequence, first transaction id, id behind the end) of the extents that
        may hold messages of the publisher on the topic from `sequence` on."""
        found: list[tuple[int, int, int]] = []
        with self._lock:
            topics = self._topics()
            if topics is not None and all(topic != known for known, _ in topics):
                return found
            places = self.places.get(publisher, [])
            firsts = self.extent_firsts
            for at in range(0, len(places), 3):
                if places[at + 2] >= sequence:
                    extent = places[at]
                    end = firsts[extent + 1] if extent + 1 < len(firsts) else self.last_txid + 1
                    found.append((places[at + 2], firsts[extent], end))
        return found

    def take_held(self, publisher: int, wanted: SequenceSet) -> None:
        """Removes the sequences in this segment from `wanted`."""
        with self._lock:
            held = self.summary.get(publisher)
            if held is not None:
                wanted.difference_update(held)

    def extent_at_time(self, time_us: int) -> int | None:
        """Returns the first transaction id of the first extent with a run received at or after the
        time."""
        with self._lock:
            for first, latest in zip(self.extent_firsts, self.extent_times_us, strict=True):
                if latest >= time_us:
                    return first
        return None

    def seal_entries(self) -> dict[bytes, bytes]:
        flat: list[int] = []
        for first, latest in zip(self.extent_firsts, self.extent_times_us, strict=True):
            flat += (first, latest)
        entries = {
            SEAL_KEY: _SEAL.pack(
                self.last_txid,
                self.records,
                self.runs,
                self.bytes_used,
                self.first_time_us,
                self.last_time_us,
            ),
            EXTENTS_KEY: struct.pack(f"<{len(flat)}Q", *flat),
            EARLIEST_KEY: _U64.pack(self.earliest_time_us),
            TOTALS_KEY: self.totals.to_bytes(),
        }
        for publisher, held in self.summary.sets.items():
            entries[SUMMARY_PREFIX + _PUBLISHER.pack(publisher)] = held.to_bytes()
        for publisher, places in self.places.items():
            entries[INDEX_PREFIX + _PUBLISHER.pack(publisher)] = struct.pack(
                f"<{len(places)}Q", *places
            )
        return {key: with_checksum(value) for key, value in entries.items()}

    @classmethod
    def from_entries(cls, entries: Mapping[bytes, bytes], path: str) -> SegmentIndex | None:
        """Returns the index of a sealed segment; None when the entries are those of a segment that
        is not sealed, or whose seal has no totals of topics.

        Raises:
            CorruptRecord: an entry is damaged.
        """
        if SEAL_KEY not in entries or TOTALS_KEY not in entries:
            return None
        made = cls()
        try:
            (
                made.last_txid,
                made.records,
                made.runs,
                made.bytes_used,
                made.first_time_us,
                made.last_time_us,
            ) = _SEAL.unpack(checked(entries[SEAL_KEY], SEAL_KEY, path))
            flat = _numbers(checked(entries[EXTENTS_KEY], EXTENTS_KEY, path))
            made.extent_firsts = list(flat[::2])
            made.extent_times_us = list(flat[1::2])
            earliest = checked(entries[EARLIEST_KEY], EARLIEST_KEY, path)
            (made.earliest_time_us,) = _U64.unpack(earliest)
            made.totals = TopicTotals.from_bytes(checked(entries[TOTALS_KEY], TOTALS_KEY, path))
            made.messages = made.totals.messages
            for key, value in entries.items():
                if key.startswith(INDEX_PREFIX):
                    publisher = _PUBLISHER.unpack_from(key, len(INDEX_PREFIX))[0]
                    made.places[publisher] = list(_numbers(checked(value, key, path)))
        except (KeyError, struct.error) as error:
            raise CorruptRecord(f"{path} has a broken seal: {error}", path) from None
        made.summary = ranges_from_entries(entries, SUMMARY_PREFIX, path)
        return made


def _numbers(value: bytes) -> tuple[int, ...]:
    return struct.unpack(f"<{len(value) // 8}Q", value)


def with_checksum(value: bytes) -> bytes:
    return _U64.pack(checksum64(value)) + value


def checked(stored: bytes, key: bytes, path: str) -> bytes:
    """Returns the content of a meta entry.

    Raises:
        CorruptRecord: its checksum does not fit.
    """
    value = bytes(stored[8:])
    if len(stored) < 8 or _U64.unpack_from(stored)[0] != checksum64(value):
        raise CorruptRecord(f"{path}: the entry {key!r} fails its checksum", path)
    return value


class OpeningEntries:
    """The meta entries of a segment's first commit: its header, and every sequence journaled before
    it.

    Encoding them for 100,000 publishers takes half a second, in which no message is acknowledged:
    so they are encoded in advance on another thread, and the commit encodes only what changed
    since.
    Owner: a journal; any of its threads.

    Args:
        prefix: the prefix of every key.
    """

    def __init__(self, prefix: bytes = b"") -> None:
        self._prefix = prefix
        self._lock = threading.Lock()
        self._of = PublisherRanges()
        self._values: dict[bytes, bytes] = {}

    def prepare(self, held: PublisherRanges) -> None:
        """Encodes what has changed since the last call. `held` is a copy that is never changed."""
        with self._lock:
            self._encode(held)

    def of(self, first_txid: int, held: PublisherRanges) -> list[tuple[bytes, bytes]]:
        """Returns the keys and values for a segment that begins with this transaction id. `held` is
        a copy that is never changed."""
        with self._lock:
            self._encode(held)
            header = with_checksum(_HEADER.pack(SEGMENT_VERSION, 0, 0, first_txid))
            return [(self._prefix + HEADER_KEY, header), *self._values.items()]

    def _encode(self, held: PublisherRanges) -> None:
        for publisher in held.changed_since(self._of):
            key = self._prefix + HELD_PREFIX + _PUBLISHER.pack(publisher)
            ranges = held.get(publisher)
            if ranges:
                self._values[key] = with_checksum(ranges.to_bytes())
            else:
                self._values.pop(key, None)
        self._of = held


def check_header(entries: Mapping[bytes, bytes], first_txid: int, path: str) -> None:
    """Refuses a segment of another version, or whose header has another first transaction id than
    its name.

    Raises:
        CorruptRecord: the header is missing or damaged.
        StorageError: the file has another version, or is another segment.
    """
    stored = entries.get(HEADER_KEY)
    if stored is None:
        raise CorruptRecord(f"{path} has no segment header", path)
    content = checked(stored, HEADER_KEY, path)
    if len(content) < 2:
        raise CorruptRecord(f"{path} has a segment header cut short", path)
    version = int.from_bytes(content[:2], "little")
    if version != SEGMENT_VERSION:
        raise StorageError(
            f"{path} has version {version}, this software reads {SEGMENT_VERSION}", path
        )
    if len(content) != _HEADER.size:
        raise CorruptRecord(f"{path} has a segment header of {len(content)} bytes", path)
    found = _HEADER.unpack(content)[3]
    if found != first_txid:
        raise StorageError(f"{path} holds the segment of transaction id {found}: renamed?", path)


def ranges_from_entries(
    entries: Mapping[bytes, bytes], prefix: bytes, path: str
) -> PublisherRanges:
    """Returns the sets stored under `prefix`, one for each publisher.

    Raises:
        CorruptRecord: one is damaged.
    """
    made = PublisherRanges()
    for key, value in entries.items():
        if key.startswith(prefix) and len(key) == len(prefix) + 8:
            publisher = _PUBLISHER.unpack_from(key, len(prefix))[0]
            try:
                made.sets[publisher] = SequenceSet.from_bytes(checked(value, key, path))
            except RemoteProtocolError as error:
                raise CorruptRecord(f"{path}: the entry {key!r}: {error}", path) from None
    return made
