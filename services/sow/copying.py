"""The part of a SOW topic that is older than the log, for an instance that copies the log.

A record whose transaction is in the log is made again from it. Older entries (values, versions and
tombstones) are copied as they are in the store.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable

from raylay.services.errors import CorruptRecord, RemoteProtocolError
from raylay.services.sow.records import decoded, decoded_tombstone
from raylay.services.sow.state import (
    BEGUN,
    TOMBSTONE,
    VALUE,
    VALUE_END,
    VERSION,
    SowState,
    counts_entry,
)

ENTRY_BYTES_MAX = 500
"""Longest key of the store."""
START = TOMBSTONE
"""Key at which a copy begins."""
_KINDS = (TOMBSTONE, VERSION, VALUE)
_TXID = struct.Struct("<Q")
"""The transaction id with which every value of the store begins."""
_TIME_BYTES = 8

Entry = tuple[bytes, bytes]


def older_entries(
    state: SowState, start: bytes, before_txid: int, most: int
) -> tuple[list[Entry], int, bytes]:
    """Returns a stretch of the entries to copy. An entry that is folded meanwhile is not older any
    more, and no longer part of the copy.

    Args:
        start: `START`, or the key at which the last stretch ended.
        before_txid: first transaction of the log.
        most: number of entries that are looked at.

    Returns:
        The entries, the bytes that were looked at, and the key at which the next stretch begins;
            empty: this was the last one.
    """
    looked = state.chunk(start, VALUE_END, most)
    following = looked[-1][0] + b"\0" if len(looked) == most else b""
    older = [
        (key, value)
        for key, value in looked
        if key[:1] in _KINDS and _TXID.unpack_from(value)[0] < before_txid
    ]
    return older, sum(len(value) for _, value in looked), following


def topics_of(name: bytes, entries: Iterable[Entry]) -> set[bytes]:
    """Returns the topics to which entries of a SOW topic's store belong: its own, and those that
    its pattern collects.

    Args:
        name: name of the SOW topic.
    """
    logical = {decoded(key[1:], value).topic for key, value in entries if key[:1] != TOMBSTONE}
    return {name} | logical - {b""}


class TopicCopy:
    """A topic while it is copied. Lifecycle: one copy."""

    def __init__(self) -> None:
        self.records = 0
        self.tombstones = 0

    def take(self, entries: Iterable[Entry]) -> dict[bytes, bytes]:
        """Returns the entries to store for these: their transaction ids do not belong to the
        copying instance's journal.

        Raises:
            RemoteProtocolError: one is no entry; with reason `bad_record`.
        """
        made: dict[bytes, bytes] = {}
        for key, value in entries:
            kind = key[:1]
            if not 2 <= len(key) <= ENTRY_BYTES_MAX or kind not in _KINDS:
                raise RemoteProtocolError(f"{key[:60]!r} is no entry of a SOW topic", "bad_record")
            try:
                if kind == TOMBSTONE:
                    decoded_tombstone(key[1:], value)
                    self.tombstones += 1
                else:
                    if kind == VERSION and len(key) <= _TIME_BYTES + 1:
                        raise CorruptRecord(f"SOW version {key!r} has no time")
                    if decoded(key[1:], value).body is None and kind == VALUE:
                        raise CorruptRecord(f"SOW record {key[:60]!r} has no message")
                    self.records += kind == VALUE
            except CorruptRecord as error:
                raise RemoteProtocolError(str(error), "bad_record") from None
            made[key] = bytes(_TXID.size) + value[_TXID.size :]
        return made

    def end(self) -> dict[bytes, bytes]:
        # A topic's part before the log would be wrong without the part from the log.
        return {BEGUN: b"", **counts_entry(self.records, self.tombstones)}
