"""Verifies the checksums, lengths and order of a journal, and goes on behind damage."""

from __future__ import annotations

import mmap
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import lmdb

from raylay.services.errors import CorruptRecord, StorageError
from raylay.services.messages import records
from raylay.services.messages.records import Kind, Run, check_records, decode_record, decode_run
from raylay.services.messages.topic_totals import run_has_messages
from raylay.storage.compressed import Container
from raylay.storage.front import END_NAME, FRONT_NAMES, FrontReader, recovered
from raylay.storage.journal import BLOCK_BYTES_MAX
from raylay.storage.segment_index import (
    HELD_PREFIX,
    SegmentIndex,
    check_header,
    ranges_from_entries,
)
from raylay.storage.segments import (
    SegmentFile,
    list_segments,
    open_environment,
    read_meta,
)

FRONT_LOOKS = 3
"""Number of times that a damaged front log is read again: its writer may be writing just then, and
real damage is found each time."""
_KEY_BYTES = 8
_KEY_MAX = (1 << 8 * _KEY_BYTES) - 1


@dataclass(frozen=True, slots=True)
class Damage:
    """A place of a journal that is not as it was written."""

    path: Path
    offset: int
    """Offset from the start of the file, in bytes, or that of the enclosing block; 0: the whole
    file."""
    text: str


@dataclass(frozen=True, slots=True)
class _Block:
    """A block of a segment, and its place in the file."""

    key: int
    content: bytes
    file_offset: int | None
    """Offset in the file, in bytes; in a compressed segment that of the group. None: not known, so
    the file is searched for the block."""
    inner: bool
    """Whether an offset inside the block is also one in the file: not if the block is
    compressed."""


@dataclass(slots=True)
class VerifyResult:
    """The result of a verification.

    Attributes:
        records: number of records, those of a queue's own included.
        messages: number of records that are messages.
    """

    segments: int = 0
    runs: int = 0
    records: int = 0
    messages: int = 0


def verify_journal(
    directory: Path,
    archive: Path | None,
    verified: VerifyResult,
    only: frozenset[Path] | None = None,
) -> Iterator[Damage]:
    """Yields the damage of all segments, the oldest first. A live segment is verified as far as it
    was committed.

    Args:
        archive: the directory of archived segments; None: there is none.
        verified: counts the verified segments, runs, records and messages.
        only: the files to verify; None: all.
    """
    expected: int | None = None
    for file in list_segments(directory, archive):
        if only is not None and file.path not in only:
            expected = None
            continue
        if expected is not None and file.first_txid != expected:
            yield Damage(
                file.path, 0, f"transaction ids {expected} to {file.first_txid - 1} are missing"
            )
        verified.segments += 1
        expected = None
        try:
            for item in _verify_segment(file, verified):
                if isinstance(item, Damage):
                    yield item
                else:
                    expected = item
        except FileNotFoundError:
            continue  # renamed, moved or removed by someone meanwhile: not damage
        except CorruptRecord as error:
            yield Damage(file.path, error.offset, str(error))
        except (StorageError, lmdb.Error) as error:
            yield Damage(file.path, 0, str(error))
    if expected is not None:
        yield from _verify_front(directory, expected, verified)


def _verify_front(directory: Path, expected: int, verified: VerifyResult) -> Iterator[Damage]:
    """Verifies the front log behind the newest segment, which ends before `expected`."""
    reader = FrontReader(directory)
    path = directory / END_NAME
    file = SegmentFile(expected, ".live", False, path)
    stored_txid = expected - 1
    try:
        # None: it was moved meanwhile, and is verified in the segment the next time.
        while blocks := reader.blocks(expected, BLOCK_BYTES_MAX, lambda: stored_txid):
            for key, content in blocks:
                for result in _verify_block(file, _Block(key, content, 0, False), verified):
                    if isinstance(result, Damage):
                        yield result
                        return
                    expected = result[0].last_txid + 1
    finally:
        reader.close()
    lost = [recovered(directory, stored_txid).lost_after_txid for _ in range(FRONT_LOOKS)]
    if min(lost):
        text = f"what followed transaction id {lost[-1]} was there and is damaged"
        yield Damage(directory / FRONT_NAMES[0], 0, text)


def _verify_segment(file: SegmentFile, verified: VerifyResult) -> Iterator[Damage | int]:
    """Yields the damage of a segment, and at last the transaction id behind the segment, if that is
    known."""
    entries: dict[bytes, bytes] = {}
    found = SegmentIndex()
    expected = file.first_txid
    sound = True
    for item in _blocks_of(file, entries):
        if isinstance(item, Damage):
            sound = False
            yield item
            expected = 0
            continue
        if expected and item.key != expected:
            sound = False
            yield _damage(file, item, 0, f"block {item.key} where {expected} was due")
        expected = item.key
        for result in _verify_block(file, item, verified):
            if isinstance(result, Damage):
                sound = False
                expected = 0
                yield result
            elif expected:
                run, length = result
                if run.first_txid != expected:
                    sound = False
                    text = f"run of transaction id {run.first_txid} where {expected} was due"
                    yield _damage(file, item, 0, text)
                expected = run.last_txid + 1
                found.add(run, run.ranges(), length, run_has_messages(run))
    if entries:
        path = str(file.path)
        check_header(entries, file.first_txid, path)
        ranges_from_entries(entries, HELD_PREFIX, path)
        index = SegmentIndex.from_entries(entries, path)
        if index is not None and sound and index.summary != found.summary:
            yield Damage(file.path, 0, "the summary is not what the segment holds")
        if index is not None and sound and index.totals != found.totals:
            yield Damage(file.path, 0, "the totals of the topics are not what the segment holds")
        if index is not None and sound and index.last_txid != found.last_txid:
            text = f"ends at transaction id {found.last_txid}, sealed at {index.last_txid}"
            yield Damage(file.path, 0, text)
    elif found.runs:
        yield Damage(file.path, 0, "there is no segment header")
    if sound and found.runs:
        yield found.last_txid + 1


def _blocks_of(file: SegmentFile, entries: dict[bytes, bytes]) -> Iterator[_Block | Damage]:
    if file.suffix == ".zst":
        container = Container(file.path)
        try:
            entries.update(container.entries)
            for number, group in enumerate(container.groups):
                try:
                    blocks = container.read_group(number)
                except CorruptRecord as error:
                    yield Damage(file.path, error.offset, str(error))
                    continue
                for key, content in blocks:
                    yield _Block(key, content, group.offset, False)
        finally:
            container.close()
        return
    shared = open_environment(file.path)
    try:
        with shared.begin(buffers=True) as transaction:
            entries.update(read_meta(transaction))
        at = 1
        while at <= _KEY_MAX:
            # A transaction a megabyte: one that is long pins pages of a live segment.
            found: list[tuple[bytes, bytes]] = []
            taken_bytes = 0
            with shared.begin(buffers=True) as transaction:
                cursor = transaction.cursor()
                there = cursor.set_range(at.to_bytes(_KEY_BYTES, "big"))
                while there and taken_bytes < BLOCK_BYTES_MAX:
                    found.append((bytes(cursor.key()), bytes(cursor.value())))
                    taken_bytes += len(found[-1][1])
                    there = cursor.next()
            if not found:
                return
            for found_key, content in found:
                key = int.from_bytes(found_key, "big")
                if len(found_key) != _KEY_BYTES or key < at:
                    # Looked for behind it, the same blocks would come again, and again.
                    text = f"block {found_key.hex()} where {at} or more was due: no more is read"
                    yield Damage(file.path, 0, text)
                    return
                yield _Block(key, content, None, True)
                at = key + 1
    finally:
        shared.close()


def _damage(file: SegmentFile, block: _Block, offset: int, text: str) -> Damage:
    at = block.file_offset
    if at is None:
        at = _place(file.path, block.content)
    return Damage(
        file.path,
        at + offset if block.inner else at,
        f"{text} (block {block.key}, byte {offset} of it)",
    )


def _place(path: Path, content: bytes) -> int:
    """Returns the offset of the block in the file, in bytes; 0: it is not found."""
    with open(path, "rb") as opened, mmap.mmap(opened.fileno(), 0, prot=mmap.PROT_READ) as view:
        return max(0, view.find(content))


def _verify_block(
    file: SegmentFile, block: _Block, verified: VerifyResult
) -> Iterator[Damage | tuple[Run, int]]:
    content = block.content
    offset = 0
    while offset < len(content):
        length = int.from_bytes(content[offset : offset + 4], "little")
        plausible = records.RUN_HEADER_BYTES <= length <= len(content) - offset
        try:
            run = decode_run(content, offset)
        except CorruptRecord as error:
            yield _damage(file, block, offset, str(error))
            if not plausible:
                return
            # The header's lengths hold: say which of its records are hurt.
            try:
                run = decode_run(content, offset, verify=False)
            except CorruptRecord:
                offset += length
                continue
            if run.kind == Kind.RECORDS:
                yield from _verify_records(file, block, offset, run)
        else:
            verified.runs += 1
            if run.kind == Kind.RECORDS:
                damages = list(_verify_records(file, block, offset, run))
                if not damages:
                    damages += _verify_run(file, block, offset, run)
                yield from damages
                verified.records += run.count
                verified.messages += run.count if run_has_messages(run) else 0
                if not damages:
                    yield run, length
            else:
                yield run, length
        offset += length


def _verify_run(file: SegmentFile, block: _Block, offset: int, run: Run) -> Iterator[Damage]:
    """Yields damage where undamaged records contradict the header of their run, as a link may have
    sent them."""
    try:
        check_records(run)
    except CorruptRecord as error:
        yield _damage(file, block, offset, str(error))


def _verify_records(
    file: SegmentFile, block: _Block, run_offset: int, run: Run
) -> Iterator[Damage]:
    assert run.raw is not None
    payload = run.payload
    payload_at = run_offset + len(run.raw) - len(payload)
    offset = count = 0
    first = last = 0
    sound = True
    while offset < len(payload):
        length = int.from_bytes(payload[offset : offset + 4], "little")
        try:
            record = decode_record(payload, offset)
        except CorruptRecord as error:
            sound = False
            yield _damage(file, block, payload_at + offset, f"in a run: {error}")
            if not records.RECORD_HEADER_BYTES <= length <= len(payload) - offset:
                return
        else:
            if record.publisher != run.publisher or record.sequence <= last:
                text = f"record {record.bookmark} does not belong here"
                yield _damage(file, block, payload_at + offset, text)
            first = first or record.sequence
            last = record.sequence
        count += 1
        offset += length
    if sound and (count != run.count or (first, last) != (run.first_sequence, run.last_sequence)):
        text = f"run says {run.count} records, {run.first_sequence} to {run.last_sequence}; "
        yield _damage(file, block, run_offset, f"{text}it holds {count}, {first} to {last}")
