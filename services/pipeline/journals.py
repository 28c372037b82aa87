"""The journals and the parts of them that a query reads, and the reading of one stretch.

Everything is read while instances run: with shared locks on segment files, with read transactions
that end with each read, and without work for the instance. A read sees what was committed when it
was planned, whatever is written, sealed, compressed or archived meanwhile.
"""

from __future__ import annotations

import itertools
import logging
import os
from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

import lmdb
import msgpack
from xxhash import xxh3_64_intdigest as checksum64

from raylay.services.configuration.files import load_fabric
from raylay.services.configuration.model import FabricSettings
from raylay.services.errors import ConfigurationError, CorruptRecord, StorageError
from raylay.services.fabric.plan import FABRIC_FILE, FabricRecord, data_directory
from raylay.services.fabric.records import registry
from raylay.services.messages.bookmarks import Point
from raylay.services.messages.ranges import PublisherRanges
from raylay.services.messages.records import Kind, Run, iterate_records
from raylay.services.pipeline.selection import place_of, time_us_of
from raylay.services.pipeline.tables.predicates import Predicate
from raylay.storage.environment import CutShortError, read_only
from raylay.storage.front import FrontReader
from raylay.storage.journal_reader import LmdbJournalReader
from raylay.storage.read_holds import hold_read
from raylay.storage.segment_index import SegmentIndex, read_header
from raylay.storage.segments import (
    OpenSegment,
    SegmentFile,
    block_last_txid,
    list_segments,
    open_segment,
)
from raylay.storage.state import check_version

log = logging.getLogger("raylay.pipeline")

JOURNAL_DIRECTORY = "journal"
STATE_FILE = "state.lmdb"
PEER_PREFIX = b"peer/"
PARTITION_BYTES_DEFAULT = 32 * 1024 * 1024
READ_BYTES = 4 * 1024 * 1024
WHOLE_SEGMENT_BYTES = 1 << 62
TXID_MAX = (1 << 63) - 1
COMPRESSION_RATIO = 4
"""Ratio by which a compressed segment is assumed to be larger once it is uncompressed, when it is
divided."""
LISTINGS_MAX = 64

TOLD_BY = ("txid", "publisher", "sequence", "digest", "receive_time")
"""Columns that tell a message from another one with the same transaction id."""

OnCorrupt = Literal["stop", "skip"]
"""Effect of a damaged record."""
LostRecords = Callable[[str, int, bytes], None]
"""Takes what `skip` leaves out: why and where, the first transaction id that may be missing, and
the bytes that could be read."""


@dataclass(frozen=True, slots=True)
class JournalPlace:
    """The journal of one instance.

    Attributes:
        fabric: the name of the instance's fabric; empty: unknown.
    """

    instance: str
    group: str
    journal: str
    archive: str | None = None
    fabric: str = ""

    def files(self) -> list[SegmentFile]:
        """Returns the journal's segments, oldest first."""
        archive = Path(self.archive) if self.archive else None
        return list_segments(Path(self.journal), archive)

    def reader(self) -> LmdbJournalReader:
        return LmdbJournalReader(self.journal, self.archive)

    def incarnation(self) -> str:
        """Returns the incarnation of the data directory, 16 hex digits; empty where the journal has
        no instance state beside it.

        Raises:
            StorageError: the state cannot be read.
        """
        value = self._state(b"incarnation").get(b"incarnation")
        return f"{int.from_bytes(value, 'big'):016x}" if value else ""

    def peers(self) -> dict[str, str]:
        """Returns the instances to which this one sends, as it last knew them: the name of each
        incarnation, 16 hex digits.

        Raises:
            StorageError: the state cannot be read.
        """
        values = [msgpack.unpackb(value) for value in self._state(PEER_PREFIX).values()]
        return {f"{incarnation:016x}": name for incarnation, name, *_ in values}

    def _state(self, prefix: bytes) -> dict[bytes, bytes]:
        """Returns the entries of the instance's state whose keys have a prefix; an empty dict where
        there is no state."""
        path = Path(self.journal).parent / STATE_FILE
        if not path.is_file():
            return {}
        found = {}
        try:
            with read_only(path) as transaction, transaction.cursor() as cursor:
                check_version(transaction, path)
                at = cursor.set_range(prefix)
                while at and cursor.key().startswith(prefix):
                    found[cursor.key()] = cursor.value()
                    at = cursor.next()
        except (lmdb.Error, CutShortError) as error:
            raise StorageError(f"{path} cannot be read: {error}", str(path)) from None
        return found


# -- which journals ------------------------------------------------------------------------------
def places(
    path: str = "",
    fabric: str = "",
    directory: str = "",
    instances: Iterable[str] = (),
    group: str = "",
    archive: str = "",
) -> list[JournalPlace]:
    """Returns the journals that the options name, in the order of their declaration.

    Args:
        path: a journal, an instance's data directory, or a fabric's directory or file; several are
            separated by commas.
        fabric: a fabric's directory, the name of a fabric that runs here, or its file together with
            `directory`.
        instances: the instances to read; none: all.
        group: the group to read; empty: all.
        archive: the directory of archived segments, where the journal itself does not name it.

    Raises:
        ConfigurationError: nothing or too much is named, or there is no such instance.
        StorageError: a directory holds no journal.
    """
    wanted = [name for name in instances if name]
    if bool(path) == bool(fabric):
        raise ConfigurationError(
            "give either `path` (a data directory) or `fabric` (a fabric's file, directory or name)"
        )
    if fabric:
        found = _of_fabric(fabric, directory)
    else:
        found = [place for each in path.split(",") for place in _of_path(Path(each.strip()))]
    if archive and len(found) > 1:
        raise ConfigurationError(
            f"`archive` names the archive of one journal, but {len(found)} journals are "
            "selected: name one instance"
        )
    known = {place.instance for place in found}
    for name in wanted:
        if name not in known:
            raise ConfigurationError(
                f"there is no instance {name}: choose from {', '.join(sorted(known))}"
            )
    found = [
        replace(each, archive=archive or None)
        for each in found
        if (not wanted or each.instance in wanted) and (not group or each.group == group)
    ]
    if not found:
        raise ConfigurationError(f"no instance is in group {group}")
    # Of those that are wanted: a host has the journals of its own instances only.
    for each in found:
        if not Path(each.journal).is_dir():
            raise StorageError(
                f"{each.journal} does not exist: instance {each.instance} never ran, or its data "
                "is elsewhere; name the instances that are here",
                each.journal,
            )
    return found


def places_of(source: str, instances: Iterable[str] = ()) -> list[JournalPlace]:
    """Returns the journals of a command's source: a fabric's directory, file or name, or data
    directories or journals, separated by commas.

    Raises:
        ConfigurationError, StorageError: as `places`.
    """
    if all(Path(each.strip()).exists() for each in source.split(",")):
        return places(path=source, instances=instances)
    return places(fabric=source, instances=instances)


def record_of(source: str, directory: str = "") -> FabricRecord | None:
    """Returns the record of a fabric, by its directory, its file or the name of a fabric that runs
    here; None where the source is something else.

    Args:
        directory: the directory of the fabric's data, where the source is a fabric's file; empty:
            the directory of the fabric with that name that runs here.

    Raises:
        ConfigurationError: the source is a file, and the directory of its fabric's data is unknown.
        FabricError: the record cannot be read.
    """
    if Path(source).is_file():
        return _record_of_file(source, directory)
    entry = registry.find(source) if not Path(source).exists() else None
    record = FabricRecord.load(entry.directory if entry is not None else source)
    if record is not None and entry is None:
        # A directory that was copied or moved says where it was.
        record.directory = source
    return record


def _record_of_file(file: str, directory: str) -> FabricRecord:
    settings = load_fabric([file])
    if not directory:
        entry = registry.find(settings.name)
        directory = entry.directory if entry is not None else ""
    if not directory:
        raise ConfigurationError(
            f"fabric {settings.name} does not run here: give its data directory in place of "
            f"{file} (a read from Spark takes both, the data directory as option `directory`)"
        )
    record = FabricRecord.load(directory)
    if record is None:
        return FabricRecord(settings.name, directory, settings.to_json())
    if record.name != settings.name:
        raise ConfigurationError(
            f"{directory} holds fabric {record.name}, but {file} declares {settings.name}"
        )
    # It knows where instances were moved to, and what runs.
    record.directory = directory
    return record


def settings_of(source: str) -> FabricSettings | None:
    """Returns the settings in a fabric's record (see `record_of`)."""
    record = record_of(source)
    return FabricSettings.from_json(record.settings) if record is not None else None


def check_fabric(fabric: str) -> None:
    """Checks that there is such a fabric, without its data: it may be on other hosts.

    Raises:
        ConfigurationError: it is neither a file nor a fabric's directory nor a fabric that runs
            here.
    """
    if Path(fabric).is_dir():
        if not (Path(fabric) / FABRIC_FILE).is_file():
            raise ConfigurationError(
                f"{fabric} has no {FABRIC_FILE}: it is not a fabric's directory"
            )
    elif not Path(fabric).is_file() and registry.find(fabric) is None:
        raise ConfigurationError(
            f"{fabric} is neither a file nor a directory nor a fabric that runs here: start it, or "
            "read its journals by their directories, with `path`"
        )


def _of_fabric(fabric: str, directory: str) -> list[JournalPlace]:
    record = record_of(fabric, directory)
    if record is not None:
        return _of_record(record, FabricSettings.from_json(record.settings))
    check_fabric(fabric)
    raise ConfigurationError(f"{fabric} has no record of a fabric: name the fabric's directory")


def _of_record(record: FabricRecord, settings: FabricSettings) -> list[JournalPlace]:
    found = []
    for instance in settings.instances:
        journal = data_directory(record, instance) / JOURNAL_DIRECTORY
        found.append(
            JournalPlace(instance.name, instance.group, str(journal), fabric=settings.name)
        )
    return found


def _of_path(path: Path) -> list[JournalPlace]:
    if path.is_file():
        return _of_fabric(str(path), "")
    if not path.is_dir():
        raise StorageError(f"{path} does not exist", str(path))
    if (path / FABRIC_FILE).is_file():
        return _of_fabric(str(path), "")
    # Without the archive: what is archived does not tell what this directory is.
    journal = path / JOURNAL_DIRECTORY if (path / JOURNAL_DIRECTORY).is_dir() else path
    if not list_segments(journal, None):
        raise StorageError(f"{journal} is not a journal", str(journal))
    home = journal.parent if journal.name == JOURNAL_DIRECTORY else journal
    name, group, fabric = home.resolve().name, "", ""
    record = record_of(str(home.parent))
    if record is not None:
        settings = FabricSettings.from_json(record.settings)
        for instance in settings.instances:
            if data_directory(record, instance).resolve() == home.resolve():
                name, group, fabric = instance.name, instance.group, settings.name
    return [JournalPlace(name, group, str(journal), fabric=fabric)]


# -- where to begin and end ----------------------------------------------------------------------
def last_txid(place: JournalPlace, on_corrupt: OnCorrupt = "stop") -> int:
    """Returns the newest committed transaction id; 0 where there is none.

    Args:
        on_corrupt: the effect of damage at the end of the journal: `stop` raises; `skip` returns
            the newest transaction id before the damage, so that the read meets it.

    Raises:
        CorruptRecord: see `on_corrupt`.
        StorageError: the journal cannot be read.
    """
    reader = place.reader()
    try:
        return reader.last_txid
    except CorruptRecord:
        if on_corrupt == "stop":
            raise
    finally:
        reader.close()
    return _last_sound_txid(place)


def _last_sound_txid(place: JournalPlace) -> int:
    file = place.files()[-1]
    reader = StretchReader(
        JournalStretch(place, file.first_txid, file.first_txid, TXID_MAX), "skip"
    )
    last = file.first_txid
    try:
        for blocks in reader.blocks(to_the_end=False):
            key, block = blocks[-1]
            last = max(last, key, *(run.last_txid for run in sound_runs(block)))
    finally:
        reader.close()
    return last


def sound_runs(block: bytes) -> Iterator[Run]:
    """Yields the headers of the runs of a block before the first damaged one."""
    offset = 0
    while offset < len(block):
        try:
            header = read_header(block, offset)
        except CorruptRecord:
            return
        yield header.run
        offset += header.length_bytes


def record_told(reader: LmdbJournalReader, txid: int) -> list[int] | None:
    """Returns the numbers that tell a journal's record at a transaction id from any other that may
    be there: for a message its columns in `TOLD_BY`, for a note its kind, its time of receipt and a
    checksum. Times are in microseconds. None where nothing is there, or it cannot be read."""
    if txid < 1:
        return None
    try:
        runs = reader.read(txid - 1, 1)
        if not runs or runs[0].first_txid != txid:
            return None
        run = runs[0]
        if run.kind != Kind.RECORDS:
            return [txid, run.kind, run.receive_time_us, checksum64(run.payload)]
        record = next(iterate_records(run.payload, verify=True))
    except CorruptRecord:
        return None
    digest = record.digest - ((record.digest >> 63) << 64)
    return [txid, record.publisher, record.sequence, digest, run.receive_time_us]


def position(place: JournalPlace, text: str, name: str = "starting") -> int:
    """Returns the last transaction id before the position that a bookmark, a list, a time, EPOCH or
    NOW names: a reader starts behind it. A bookmark names the message after it, as for a
    subscriber. A time may also be in ISO 8601, or a number since 1970.

    Args:
        name: the option that gives the position, for errors.

    Raises:
        ConfigurationError: the text is a range, or a message that this journal does not hold.
        ConfigurationError: the text is no position.
    """
    time_us = time_us_of(text)
    if time_us is not None:
        with place.reader() as reader:
            return reader.find_time(max(0, time_us)) - 1
    found = place_of(name, text)
    with place.reader() as reader:
        return min(_position_of(place, reader, point) for point in found.begin)


def _position_of(place: JournalPlace, reader: LmdbJournalReader, point: Point) -> int:
    if point.kind == "epoch":
        return reader.first_txid - 1
    if point.kind == "now":
        return reader.last_txid
    if point.kind == "time":
        return reader.find_time(point.time_us) - 1
    txid = reader.find_sequence(point.publisher, point.sequence)
    if txid is None:
        raise ConfigurationError(
            f"{place.instance} does not hold the message {point.publisher}|{point.sequence}|: "
            "start at 0, at a time, or at a message that it holds"
        )
    return txid


# -- planning ------------------------------------------------------------------------------------
@dataclass(frozen=True, slots=True)
class JournalStretch:
    """The part of a journal that one task reads: transaction ids of one segment, inclusive.

    Attributes:
        read, read_txid: the name under which the whole read is registered, and the transaction id
            from which retention waits for it; empty: retention does not wait.
        messages: the sequences to read, packed, by publisher; None: all.
    """

    place: JournalPlace
    segment: int
    first_txid: int
    last_txid: int
    messages: tuple[tuple[int, bytes], ...] | None = None
    read: str = ""
    read_txid: int = 0


def plan(
    place: JournalPlace,
    after_txid: int,
    last_txid: int,
    predicate: Predicate,
    partition_bytes: int = PARTITION_BYTES_DEFAULT,
    messages: Mapping[int, PublisherRanges | None] | None = None,
) -> list[JournalStretch]:
    """Returns the stretches from `after_txid` (exclusive) to `last_txid` that may hold wanted
    records.

    Args:
        messages: by the first transaction id of each segment: the messages to read of it; None:
            all of them.

    Raises:
        StorageError: a part of them was removed.
    """
    if predicate.nothing or not predicate.texts["instance"].admits(place.instance):
        return []
    wanted = predicate.numbers["txid"]
    first = max(after_txid + 1, wanted.low or 1)
    last = last_txid if wanted.high is None else min(last_txid, wanted.high)
    if first > last or not wanted.meets(first, last):
        return []
    files = place.files()
    firsts = [file.first_txid for file in files]
    if not files or firsts[0] > after_txid + 1:
        raise removed(place, after_txid + 1, firsts[0] if files else None)
    found: list[JournalStretch] = []
    at = bisect_right(firsts, first) - 1
    for number in range(at, len(files)):
        begin = max(first, firsts[number])
        end = min(last, firsts[number + 1] - 1 if number + 1 < len(files) else last)
        if begin > last:
            break
        file = files[number]
        if not predicate.numbers["segment"].admits(file.first_txid) or not wanted.meets(begin, end):
            continue
        if predicate.needs_index and number + 1 < len(files) and not _may_hold(file, predicate):
            continue
        packed = None
        if messages is not None:
            if file.first_txid not in messages:
                raise _unsettled(place)
            few = messages[file.first_txid]
            if few is not None and not few:
                continue
            packed = tuple(few.to_wire().items()) if few is not None else None
        found += _divided(place, file, begin, end, partition_bytes, packed)
    if found:
        name = f"{os.uname().nodename}-{os.getpid()}-{next(_reads)}"
        begins = found[0].first_txid
        found = [replace(each, read=name, read_txid=begins) for each in found]
        hold_read(Path(place.journal), name, begins)
        # Between the list and the note something may have gone.
        now = place.files()
        if not now or now[0].first_txid > found[0].segment:
            raise removed(place, begins, now[0].first_txid if now else None)
    return found


def removed(place: JournalPlace, txid: int, first_txid: int | None) -> StorageError:
    """Returns the error of a read that begins before the journal does."""
    there = f"it begins at {first_txid}" if first_txid is not None else "it is empty"
    return StorageError(
        f"{place.journal} no longer holds transaction id {txid}, {there}: its segments were "
        "removed; read the archive, or start later",
        place.journal,
    )


def _unsettled(place: JournalPlace) -> StorageError:
    error = StorageError(
        f"the segments of {place.journal} changed again and again during one read: run the query "
        "again",
        place.journal,
    )
    error.retriable = True
    return error


def _divided(
    place: JournalPlace,
    file: SegmentFile,
    begin: int,
    end: int,
    partition_bytes: int,
    messages: tuple[tuple[int, bytes], ...] | None,
) -> Iterator[JournalStretch]:
    try:
        size = os.stat(file.path).st_blocks * 512
    except FileNotFoundError:
        size = 0  # compressed or moved since it was listed
    if file.suffix == ".zst":
        size *= COMPRESSION_RATIO
    count = end - begin + 1
    pieces = max(1, min(count, round(size / partition_bytes)))
    for piece in range(pieces):
        yield JournalStretch(
            place,
            file.first_txid,
            begin + count * piece // pieces,
            begin + count * (piece + 1) // pieces - 1,
            messages,
        )


_reads = itertools.count()
_indexes: dict[tuple[str, int], SegmentIndex | None] = {}
INDEXES_MAX = 4096


def segment_index(file: SegmentFile) -> SegmentIndex | None:
    """Returns the index of a sealed segment; None where it has none. Cached, because it never
    changes."""
    try:
        key = (str(file.path), os.stat(file.path).st_ino)
        if key not in _indexes:
            segment = open_segment(file)
            try:
                found = SegmentIndex.from_entries(segment.entries(), str(file.path))
            finally:
                segment.close()
            if len(_indexes) >= INDEXES_MAX:
                _indexes.clear()
            _indexes[key] = found
        return _indexes[key]
    except (FileNotFoundError, CorruptRecord):
        return None  # who reads the segment finds it, or says what is wrong with it


def _may_hold(file: SegmentFile, predicate: Predicate) -> bool:
    index = segment_index(file)
    if index is None:
        return True
    if not predicate.numbers["receive_time"].meets(index.earliest_time_us, index.last_time_us):
        return False
    publishers, sequences = predicate.numbers["publisher"], predicate.numbers["sequence"]
    if publishers.values is not None and not any(
        _may_hold_sequences(index, publisher, sequences.low, sequences.high, sequences.values)
        for publisher in publishers.values
    ):
        return False
    topics, types = predicate.texts["topic"], predicate.texts["message_type"]
    if index.topics is None:
        return True
    return any(
        topics.admits(topic.decode("utf-8", "replace"))
        and types.admits(message_type.decode("utf-8", "replace"))
        for topic, message_type in index.topics
    )


def _may_hold_sequences(
    index: SegmentIndex,
    publisher: int,
    low: int | None,
    high: int | None,
    values: frozenset[int] | None,
) -> bool:
    held = index.summary.get(publisher)
    if held is None:
        return False
    if values is not None:
        return any(value in held for value in values)
    return (
        index.first_held(publisher, low or 0, (1 << 63) - 1 if high is None else high) is not None
    )


# -- reading -------------------------------------------------------------------------------------
class StretchReader:
    """Reads the blocks of one stretch.

    Attributes:
        left_out: a sentence for each place that `skip` passed over and no block reports.

    Owner: one task. Lifecycle: `opened`, `blocks` once, `close`.
    """

    opened_segments = 0
    """Number of segments that this process opened to read rows, for tests and measurements."""

    def __init__(
        self,
        stretch: JournalStretch,
        on_corrupt: OnCorrupt = "stop",
        lost: LostRecords | None = None,
    ) -> None:
        self.left_out: list[str] = []
        self._lost = lost
        self._stretch = stretch
        self._skips = on_corrupt == "skip"
        self._segment: OpenSegment | None = None
        self._front = FrontReader(Path(stretch.place.journal))
        if stretch.read:
            # Planned long ago, perhaps: the rest of the read is waited for as long again.
            hold_read(Path(stretch.place.journal), stretch.read, stretch.read_txid)

    def _open(self) -> OpenSegment | None:
        """Opens the segment in its current form; None where it is damaged and left out."""
        stretch = self._stretch
        for _ in range(LISTINGS_MAX):
            listed = stretch.place.files()
            files = [file for file in listed if file.first_txid == stretch.segment]
            if not files:
                first_txid = listed[0].first_txid if listed else None
                raise removed(stretch.place, stretch.first_txid, first_txid)
            try:
                segment = open_segment(files[0])
            except FileNotFoundError:
                continue
            except CorruptRecord as error:
                if not self._skips:
                    raise
                self._leave_out(f"{error}: the segment is left out", stretch.first_txid)
                return None
            StretchReader.opened_segments += 1
            return segment
        raise _unsettled(stretch.place)

    def blocks(self, *, to_the_end: bool = True) -> Iterator[list[tuple[int, bytes]]]:
        """Yields lists of (first transaction id, block), about 4 MiB each, in order.

        Args:
            to_the_end: whether a segment that ends before the stretch is an error.

        Raises:
            StorageError: the segment was removed, or ends too early.
            CorruptRecord: the segment is damaged, and `on_corrupt` is `stop`; the error names the
                file.
        """
        segment = self._segment = self._open()
        if segment is None:
            return
        at, last = self._stretch.first_txid, self._stretch.last_txid
        damaged = False
        while at <= last:
            try:
                found = self._front.behind(segment, at, READ_BYTES)
            except CorruptRecord as error:
                if not self._skips:
                    raise
                self._leave_out(f"{error}: transaction ids from {at} on are left out", at)
                return
            # Behind damage the end of a segment is unknown.
            if not found and (damaged or not to_the_end):
                return
            if not found:
                raise StorageError(
                    f"{segment.file.path} ends before transaction id {at}, which was there when "
                    f"the read was planned: the segment that begins there is missing",
                    str(segment.file.path),
                )
            while found and found[-1][0] > last:
                found.pop()
            if not found:
                return
            yield found
            key, block = found[-1]
            try:
                at = max(at, block_last_txid(block, segment.file.path)) + 1
            except CorruptRecord as error:
                if not self._skips:
                    raise self.damaged(key, error) from None
                damaged = True
                at = self._behind(segment, key)

    def _behind(self, segment: OpenSegment, key: int) -> int:
        """Returns the key of the block after a damaged one; its runs show which transaction ids are
        lost."""
        try:
            rest = segment.blocks(key + 1, WHOLE_SEGMENT_BYTES)
        except CorruptRecord:
            rest = []  # it is the last one
        return next((each for each, _ in rest if each > key), TXID_MAX)

    def _leave_out(self, text: str, txid: int) -> None:
        log.warning("%s", text)
        self.left_out.append(text)
        if self._lost is not None:
            self._lost(text, txid, b"")

    def damaged(self, key: int, error: CorruptRecord) -> CorruptRecord:
        assert self._segment is not None
        return self._segment.damaged(key, error)

    def close(self) -> None:
        if self._segment is not None:
            self._segment.close()
            self._segment = None
        self._front.close()
