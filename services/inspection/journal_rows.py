"""The rows of a journal for the commands: its records, its notes, its segments and its topic
index."""

from __future__ import annotations

import base64
import os
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from raylay.services.errors import ConfigurationError, CorruptRecord, StorageError
from raylay.services.messages.records import FLAG_NAMES, Command, Kind, Record, Run, iterate_records
from raylay.services.messages.sequence_set import SequenceSet
from raylay.storage.journal import SegmentInfo
from raylay.storage.lmdb_journal import LmdbJournalReader
from raylay.storage.segment_index import SegmentIndex
from raylay.storage.segments import SegmentFile, list_segments

RANGES_SHOWN = 20
LOOKS_MAX = 8
"""Number of times that a segment is looked for which changes its name meanwhile."""
Row = dict[str, Any]


@dataclass(frozen=True, slots=True)
class JournalSelection:
    """The directory of a journal, and a range of transaction ids where one segment's file was
    named.

    Attributes:
        only: the file of the one segment; None: all segments.
        end_txid: first transaction id behind the segment; None: there is none.
    """

    directory: Path
    archive: Path | None
    only: frozenset[Path] | None = None
    first_txid: int = 1
    end_txid: int | None = None


def journal_place(path: Path, archive: Path | None) -> JournalSelection:
    """Returns the journal that a path means: its directory, a data directory that has one, or one
    segment's file.

    Raises:
        ConfigurationError: there is no journal.
        StorageError: the directory cannot be read.
    """
    if path.is_file():
        _check_files(path.parent)
        listed = list_segments(path.parent, archive)
        at = [index for index, file in enumerate(listed) if file.path == path]
        if not at:
            raise ConfigurationError(
                f"{path} is not a segment of a journal: give one's file in its journal's directory"
            )
        end = listed[at[0] + 1].first_txid if at[0] + 1 < len(listed) else None
        first = listed[at[0]].first_txid
        return JournalSelection(path.parent, archive, frozenset([path]), first, end)
    if not path.is_dir():
        what = "is no directory and no segment's file" if path.exists() else "does not exist"
        raise ConfigurationError(f"{path} {what}")
    directory = path
    # The archive is left out, because its segments do not show which directory this is.
    if not list_segments(path, None) and (path / "journal").is_dir():
        directory = path / "journal"
    if not list_segments(directory, archive):
        raise ConfigurationError(
            f"{directory} does not hold a journal: give a data directory, or the file of a segment"
        )
    _check_files(directory)
    return JournalSelection(directory, archive)


def _check_files(directory: Path) -> None:
    """Refuses a journal in which a pipe, which would be waited for, has a file's name."""
    with os.scandir(directory) as entries:
        for entry in entries:
            if entry.name.startswith(("journal-", "front-")) and not entry.is_file():
                raise StorageError(f"{entry.path} is no regular file: move it away", entry.path)


def time_text(time_us: int) -> str:
    """Returns a time in UTC, or its number where that is outside of the calendar's years."""
    if not 0 < time_us < 253_402_300_800_000_000:
        return str(time_us)
    moment = datetime.fromtimestamp(time_us // 1_000_000, UTC)
    return f"{moment:%Y-%m-%dT%H:%M:%S}.{time_us % 1_000_000:06d}Z"


def body_text(body: bytes) -> dict[str, str]:
    """Returns a body as text, or in base64 where it is not UTF-8."""
    try:
        return {"body": body.decode()}
    except UnicodeDecodeError:
        return {"body_base64": base64.b64encode(body).decode()}


def key_text(key: bytes) -> str:
    """Returns a SOW key, or another short value, as text."""
    return key.decode("utf-8", "backslashreplace")


def ranges_row(ranges: SequenceSet) -> Row:
    """Returns a set of sequences: its number, its ends, and its first ranges."""
    shown: list[str] = []
    count = stretches = last = first = 0
    for begin, end in ranges:
        if not stretches:
            first = begin
        count += end - begin + 1
        last = end
        stretches += 1
        if len(shown) < RANGES_SHOWN:
            shown.append(str(begin) if begin == end else f"{begin}-{end}")
    return {
        "first": first,
        "last": last,
        "count": count,
        "stretches": stretches,
        "ranges": ",".join(shown) + (",…" if stretches > len(shown) else ""),
    }


def _name(kind: type[Command] | type[Kind], value: int) -> str:
    try:
        return kind(value).name.lower()
    except ValueError:
        return str(value)


def record_row(txid: int, run: Run, record: Record, body: bool) -> Row:
    """Returns a record's row."""
    row: Row = {
        "txid": txid,
        "bookmark": record.bookmark,
        "command": _name(Command, record.command),
        "topic": record.topic,
        "message_type": record.message_type,
        "origin_time": time_text(record.origin_time_us),
        "receive_time": time_text(run.receive_time_us),
        "path": [f"{incarnation:016x}" for incarnation in run.path],
        "group": run.group,
        "flags": [name for flag, name in FLAG_NAMES.items() if run.flags & flag],
    }
    if record.key:
        row["key"] = key_text(record.key)
    if record.correlation:
        row["correlation"] = key_text(record.correlation)
    if record.expiration_s:
        row["expiration_s"] = record.expiration_s
    if record.trace:
        row["trace_id"] = record.trace[:16].hex()
    if body:
        row |= body_text(record.body)
    return row


def note_row(run: Run) -> Row:
    """Returns the row of a note, which the instance itself wrote."""
    return {
        "txid": run.first_txid,
        "note": _name(Kind, run.kind),
        "receive_time": time_text(run.receive_time_us),
        "bytes": len(run.payload),
    }


def runs_of(reader: LmdbJournalReader, first_txid: int, end_txid: int | None) -> Iterator[Run]:
    """Yields the runs from `first_txid` (inclusive) to `end_txid` (exclusive)."""
    at = first_txid - 1
    while runs := reader.read(at):
        for run in runs:
            if end_txid is not None and run.first_txid >= end_txid:
                return
            yield run
        at = runs[-1].last_txid


def records_of(
    reader: LmdbJournalReader,
    first_txid: int,
    end_txid: int | None,
    wants_run: Callable[[Run], bool] = lambda run: True,
) -> Iterator[tuple[int, Run, Record | None]]:
    """Yields transaction id, run and record; None for the record of a note.

    Args:
        wants_run: whether the records of a run are wanted at all.
    """
    for run in runs_of(reader, first_txid, end_txid):
        if run.kind != Kind.RECORDS:
            yield run.first_txid, run, None
        elif wants_run(run):
            for txid, record in enumerate(iterate_records(run.payload), run.first_txid):
                if end_txid is not None and txid >= end_txid:
                    return
                if txid >= first_txid:
                    yield txid, run, record


def segment_row(segment: SegmentInfo) -> Row:
    """Returns a segment's row."""
    return {
        "segment": segment.path.name,
        "state": segment.state,
        "archived": segment.archived,
        "first_txid": segment.first_txid,
        "last_txid": segment.last_txid,
        "records": segment.records,
        "bytes_on_disk": segment.bytes_on_disk,
        "first_time": time_text(segment.first_time_us),
        "last_time": time_text(segment.last_time_us),
    }


def topic_index_rows(place: JournalSelection, topic: str = "", client: int = 0) -> Iterator[Row]:
    """Yields a row for each segment: the topics in it, its extents and its publishers.

    Args:
        topic: only segments that have, or may have, messages on this topic.
        client: only segments with messages of this publisher; 0: all.
    """
    with LmdbJournalReader(place.directory, place.archive) as reader:
        for file in reader.segment_files():
            try:
                found = _indexed(reader, place, file)
            except CorruptRecord as error:
                yield {"row": "damage", "first_txid": file.first_txid, "text": str(error)}
                continue
            if found is None:
                continue
            segment, index = found
            topics = index.topics
            pairs = (
                None
                if topics is None
                else sorted((key_text(name), key_text(kind)) for name, kind in topics)
            )
            if topic and pairs is not None and all(name != topic for name, _ in pairs):
                continue
            if client and not index.summary.get(client):
                continue
            yield {
                "row": "segment_index",
                **segment_row(segment),
                "extents": len(index.extent_firsts),
                "publishers": len(index.summary.sets),
                "topics": None if pairs is None else [list(pair) for pair in pairs],
            }


def _indexed(
    reader: LmdbJournalReader, place: JournalSelection, file: SegmentFile
) -> tuple[SegmentInfo, SegmentIndex] | None:
    """Returns a segment that may be sealed, compressed or archived meanwhile; None: it was removed,
    or is not asked for."""
    found: SegmentFile | None = file
    for _ in range(LOOKS_MAX):
        if found is None or (place.only is not None and found.path not in place.only):
            return None
        with suppress(FileNotFoundError):
            return reader.indexed(found)
        same = (each for each in reader.segment_files() if each.first_txid == file.first_txid)
        found = next(same, None)
    return None
