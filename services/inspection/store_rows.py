"""The rows of an instance's stores: SOW records, acknowledgments of clients and of queues.

The stores are read in one transaction, so the rows are those of one moment, whatever the instance
writes meanwhile. A long reading keeps the pages of that moment: the file grows by what is written
until it ends.
"""

from __future__ import annotations

import json
import os
import struct
from collections.abc import Iterator
from contextlib import contextmanager
from heapq import merge
from pathlib import Path
from typing import Any

import lmdb

from raylay.services.errors import CorruptRecord, RaylayError
from raylay.services.inspection.identification import HEAD_BYTES, open_regular
from raylay.services.inspection.journal_rows import Row, body_text, key_text, ranges_row, time_text
from raylay.services.messages.ranges import PublisherRanges
from raylay.services.messages.sequence_set import SequenceSet
from raylay.services.queues.checkpoint import QueueCheckpoint
from raylay.services.replication.recovery import PREFIX, RecoveryLog, RecoveryPoint
from raylay.services.sow.records import NEVER, decoded, decoded_tombstone
from raylay.services.sow.state import TOMBSTONE, VALUE, VERSION
from raylay.storage.environment import CutShortError, read_only
from raylay.storage.journal_reader import LmdbJournalReader
from raylay.storage.lmdb_pages import starts_like_lmdb
from raylay.storage.queue import _KEY as QUEUE_KEY
from raylay.storage.queue import _read as read_queue
from raylay.storage.sow import _ENTRY, _FRONT_BYTES, _NAME, _NUMBER, _TXID, _VALID, scanned_blocks
from raylay.storage.sow import MAP_BYTES_DEFAULT as SOW_MAP_BYTES
from raylay.storage.sow_reading import loaded_blocks
from raylay.storage.state import MAP_BYTES, check_version, explained

_TIME = struct.Struct(">Q")
_BYTES_SHOWN = 64


@contextmanager
def _opened(path: Path, map_bytes: int, *, buffers: bool = False) -> Iterator[Any]:
    _check(path)
    try:
        with read_only(path, buffers=buffers, map_size=map_bytes) as transaction:
            check_version(transaction, path)
            yield transaction
    except (lmdb.Error, CutShortError) as error:
        raise explained(error, path) from error


def _check(path: Path) -> None:
    """Refuses what LMDB would wait for, or make a lock table beside.

    Raises:
        StorageError: the path is no regular file, or no LMDB file.
        OSError: it cannot be read.
    """
    descriptor = open_regular(path)
    try:
        if not starts_like_lmdb(os.pread(descriptor, HEAD_BYTES, 0)):
            raise CorruptRecord(f"{path} is damaged, or is no store: it has no LMDB meta page")
    finally:
        os.close(descriptor)


def _pairs(transaction: Any, start: bytes, path: Path) -> Iterator[tuple[bytes, bytes]]:
    """Yields the keys and values that begin with `start`.

    Raises:
        CorruptRecord: the keys do not ascend. A damaged page could lead in circles.
    """
    last = b""
    with transaction.cursor() as cursor:
        found = cursor.set_range(start) if start else cursor.first()
        while found:
            key = bytes(cursor.key())
            if not key.startswith(start):
                return
            if last and key <= last:
                raise CorruptRecord(f"{path} is damaged: its keys do not ascend", str(path))
            last = key
            yield key, bytes(cursor.value())
            found = cursor.next()


# -- SOW topics ----------------------------------------------------------------------------------
def sow_rows(path: Path, topic: str = "", key: bytes = b"", history: bool = False) -> Iterator[Row]:
    """Yields a row for each topic, and behind it one for each of its records.

    Args:
        topic: only this topic, by its name with or without the message type before it.
        key: only records of this SOW key.
        history: whether earlier versions and deletions are shown, too.

    Raises:
        CorruptRecord: the file is damaged.
        StorageError: it cannot be read.
    """
    with _opened(path, SOW_MAP_BYTES, buffers=True) as transaction:
        for name_key, number in _pairs(transaction, _NAME, path):
            stored_as = key_text(name_key[1:])
            message_type, _, name = stored_as.partition("/")
            if topic and topic not in (stored_as, name):
                continue
            if len(number) != _NUMBER.size:
                yield {"row": "damage", "text": f"topic {stored_as} has no number"}
                continue
            valid = transaction.get(_VALID + number)
            front = _ENTRY + number
            counts = transaction.get(front + b"c") or b""
            records, deleted = struct.unpack("<QQ", counts) if len(counts) == 16 else (None, None)
            yield {
                "row": "topic",
                "topic": name,
                "message_type": message_type,
                "txid": _TXID.unpack(valid)[0] if valid and len(valid) == 8 else 0,
                "records": records,
                "deleted": deleted,
            }
            kinds = (TOMBSTONE, VERSION, VALUE) if history else (VALUE,)
            for kind in kinds:
                pairs = _pairs(transaction, front + kind + key, path)
                stored = ((entry[_FRONT_BYTES:], value) for entry, value in pairs)
                if kind == VALUE:
                    blocks = loaded_blocks(transaction, number)
                    end = VALUE + key + b"\xff"
                    made = scanned_blocks(transaction, number, blocks, VALUE + key, end)
                    stored = merge(stored, made)
                for entry, value in stored:
                    row = _sow_row(name, kind, entry[1:], value, key)
                    if row is not None:
                        yield row


def _sow_row(topic: str, kind: bytes, key: bytes, value: bytes, wanted: bytes) -> Row | None:
    at_us = None
    if kind == VERSION:
        if len(key) < _TIME.size:
            return {"row": "damage", "topic": topic, "text": f"version {key!r} has no time"}
        at_us = _TIME.unpack(key[-_TIME.size :])[0]
        key = key[: -_TIME.size]
    if wanted and key != wanted:
        return None
    try:
        if kind == TOMBSTONE:
            gone = decoded_tombstone(key, value)
            return {
                "row": "deletion",
                "topic": topic,
                "key": key_text(key),
                "txid": gone.txid,
                "bookmark": f"{gone.author.publisher}|{gone.author.sequence}|",
                "time": time_text(gone.updated_us),
            }
        record = decoded(key, value)
    except CorruptRecord as error:
        return {"row": "damage", "topic": topic, "key": key_text(key), "text": str(error)}
    row: Row = {
        "row": "version" if kind == VERSION else "record",
        "topic": key_text(record.topic) if record.topic else topic,
        "key": key_text(key),
        "txid": record.txid,
        "bookmark": f"{record.publisher}|{record.sequence}|",
        "time": time_text(record.updated_us if at_us is None else at_us),
    }
    if record.expires_us != NEVER:
        row["expires"] = time_text(record.expires_us)
    if record.body is None:
        return row | {"deleted": True}
    return row | body_text(record.body)


# -- acknowledgments of clients ------------------------------------------------------------------
def client_rows(
    state: Path | None, journal: Path | None, archive: Path | None = None, publisher: int = 0
) -> Iterator[Row]:
    """Yields a row about the instance, and one for each publisher: the sequences that were ever
    journaled here, and those of them that wait for something.

    Args:
        state: the instance's state store; None: there is none.
        journal: the journal's directory; None: there is none.
        publisher: only this publisher; 0: all.

    Raises:
        CorruptRecord: a file is damaged.
        StorageError: a file cannot be read.
    """
    stored: dict[str, bytes] = {}
    names = 0
    if state is not None:
        with _opened(state, MAP_BYTES) as transaction:
            for key, value in _pairs(transaction, b"", state):
                # There may be millions of names.
                if key.startswith(b"name/"):
                    names += 1
                else:
                    stored[key_text(key)] = value
    point = _point(stored, state)
    yield _instance_row(stored, point) | {"names": names}
    held = PublisherRanges()
    if journal is not None:
        with LmdbJournalReader(journal, archive) as reader:
            held = reader.ever_held()
    parts: dict[str, dict[int, SequenceSet]] = {
        "refused": dict(point.refused.sets),
        "unavailable": dict(point.unavailable.sets),
        "awaited": {},
        "waiting": {},
    }
    for each in point.waiting:
        parts["waiting"].setdefault(each.publisher, SequenceSet()).update(each.ranges)
    for sets in point.awaited.roots.values():
        for number, ranges in sets.sets.items():
            parts["awaited"].setdefault(number, SequenceSet()).update(ranges)
    known = set(held.sets).union(*parts.values())
    for number in sorted(known):
        if publisher and number != publisher:
            continue
        row: Row = {"row": "client", "publisher": str(number)}
        row |= ranges_row(held.get(number) or SequenceSet())
        for name, ranges_by in parts.items():
            found = ranges_by.get(number)
            row[name] = ranges_row(found)["ranges"] if found else ""
        yield row


def _point(stored: dict[str, bytes], state: Path | None) -> RecoveryPoint:
    try:
        return RecoveryLog({k: v for k, v in stored.items() if k.startswith(PREFIX)}).point
    except RaylayError as error:
        raise CorruptRecord(f"{state} is damaged: {error}", str(state)) from None


def _instance_row(stored: dict[str, bytes], point: RecoveryPoint) -> Row:
    row: Row = {
        "row": "instance",
        "incarnation": stored.get("incarnation", b"").hex(),
        "generation": int.from_bytes(stored.get("generation", b"")[:8], "big"),
        "admits_clients": "ready" in stored,
        "is_copy": "restored" in stored,
        "committed_txid": point.committed_txid,
        "durable_txid": point.durable_txid,
    }
    others = {
        key: value
        for key, value in stored.items()
        if not key.startswith((PREFIX, "epoch/"))
        and key not in ("incarnation", "generation", "ready", "restored", "version")
    }
    row["others"] = {key: value[:_BYTES_SHOWN].hex() for key, value in others.items()}
    return row


# -- acknowledgments of queues -------------------------------------------------------------------
def queue_rows(path: Path, publisher: int = 0) -> Iterator[Row]:
    """Yields a row about the queue, one for each publisher whose messages have been in it, and one
    for each removal and transfer that is known before its message.

    Args:
        publisher: only this publisher; 0: all.

    Raises:
        CorruptRecord: the file is damaged.
        StorageError: it cannot be read.
    """
    with _opened(path, MAP_BYTES) as transaction:
        value = transaction.get(QUEUE_KEY)
        value = None if value is None else bytes(value)
    if value is None:
        return
    stored = read_queue(value)
    if stored is None:
        raise CorruptRecord(f"{path} is damaged: what it holds fails its checksum", str(path))
    found = QueueCheckpoint.from_bytes(stored.snapshot)
    message_type, _, name = _queue_name(stored.rules).partition("/")
    yield {
        "row": "queue",
        "queue": name,
        "message_type": message_type,
        "after_txid": found.after_txid,
        "folded_txid": found.folded_txid,
        "messages": found.held.count,
        "publishers": len(found.held.sets),
        "early_removals": len(found.early["removals"]),
        "early_transfers": len(found.early["moves"]),
        "owners": {f"{incarnation:016x}": owner for incarnation, owner in found.names.items()},
    }
    for number in sorted(found.held.sets):
        if publisher in (0, number):
            row = ranges_row(found.held.sets[number])
            yield {"row": "queue_client", "queue": name, "publisher": str(number), **row}
    for number, first, last, at_us in found.early["removals"]:
        if publisher in (0, number):
            yield {
                "row": "early_removal",
                "queue": name,
                "publisher": str(number),
                "first": first,
                "last": last,
                "time": time_text(at_us),
            }
    for number, first, last, generation, owner in found.early["moves"]:
        if publisher in (0, number):
            yield {
                "row": "early_transfer",
                "queue": name,
                "publisher": str(number),
                "first": first,
                "last": last,
                "generation": generation,
                "owner": f"{owner:016x}" if isinstance(owner, int) else str(owner),
            }


def _queue_name(rules: bytes) -> str:
    try:
        name = json.loads(rules)[1]
    except (ValueError, LookupError, TypeError, RecursionError):
        return "/?"
    return name if isinstance(name, str) else "/?"
