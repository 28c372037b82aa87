"""The state of one SOW topic: the last value of each key, and its earlier versions.

`SowState` decides; it reads stored entries through `StoreReader` and keeps those that are not
stored yet. Folding commits adds changes; `pending()` returns what the store is to commit, with the
transaction id to which the store then corresponds (storage/sow.py).

Keys of the store: `v` + key is the value, `h` + key + time is a version of the history, `d` + key
is the tombstone of a deleted record, `c` the number of each, `b` marks that the topic has begun.
SOW keys have only letters, digits and some marks, and a time begins with a zero byte: so the
versions of a key are adjacent, before those of longer keys that begin with it.

A deleted record leaves a tombstone, so that a late message from before the deletion does not bring
the record back.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from raylay.services.errors import SowDamaged
from raylay.services.messages.plain_records import PlainRecords
from raylay.services.messages.sorted_entries import SortedEntries
from raylay.services.sow.expirations import RecordExpirations
from raylay.services.sow.query.as_of import AsOf, latest
from raylay.services.sow.query.record_scan import KeyScan, PresentScan, RecordScan
from raylay.services.sow.records import (
    AUTHOR,
    AUTHOR_AT,
    NEVER,
    RECORD,
    RecordAuthor,
    SowRecord,
    Tombstone,
    body_of,
    decoded,
    decoded_tombstone,
    encoded,
    encoded_tombstone,
)
from raylay.services.sow.store_reader import ChangeListener, EmptyStore, StoreReader, entries_of

__all__ = [
    "NEVER",
    "RecordAuthor",
    "RecordChange",
    "EmptyStore",
    "StoreReader",
    "SowRecord",
    "SowRules",
    "SowState",
    "Tombstone",
    "body_of",
    "decoded",
    "encoded",
]

BEGUN, COUNTS, TOMBSTONE, VERSION, VALUE = b"b", b"c", b"d", b"h", b"v"
UNORDERED_MAX = 8_192
"""Number of unsaved keys that are not in order, while nobody queries the topic."""
VALUE_END = b"w"
"""Key above every value."""
_TOMBSTONE_END, _VERSION_END = b"e", b"i"
_TIME = struct.Struct(">Q")
_COUNTS = struct.Struct("<QQ")


StoredChange = tuple[bytes, "bytes | None", bytes]
"""Entry key of a record, its stored value before a change (None: there was none), and its body
after it."""


class RecordChange(NamedTuple):
    """The change of a record.

    Attributes:
        previous: the record before; None: there was none.
        current: the record after; None: there is none any more.
        reason: `inserted`, `updated`, `deleted` or `expired`.
    """

    key: bytes
    previous: SowRecord | None
    current: SowRecord | None
    reason: str


@dataclass(frozen=True, slots=True)
class SowRules:
    """The configuration of a SOW topic.

    Attributes:
        expires: whether records expire at all. Lifetimes in messages are kept in any case.
        lifetime_us: lifetime of a record whose message has none; 0: for ever.
        window_us: time for which versions are kept; 0: there is no history.
        granularity_us: width of an interval of which only the last version is kept; 0: every
            version is kept.

    Raises:
        ValueError: a topic with history expires.
    """

    expires: bool = False
    lifetime_us: int = 0
    window_us: int = 0
    granularity_us: int = 0

    def __post_init__(self) -> None:
        if self.expires and self.window_us:
            raise ValueError("a topic with History cannot have an Expiration: leave out one")


class SowState:
    """The records of one topic.

    Invariants: `txid` never falls. A reader sees all that was folded, on disk or not: an entry
        leaves `_unsaved` and `_taken` only when the store has it. `_newest_us` has the time of the
        last version of each key that has one there; `_older_kept` says whether a version of the key
        at `_pruned_to` was kept before it. `tombstones` is the number of tombstones, so that none
        is looked for where there are none.
    Owner: the code that folds the instance's commits. Lifecycle: as long as the instance serves.

    Args:
        rules: the configured rules.
        reading: the reader of the records on disk, which are valid for `txid`.
        txid: id of the last transaction that is folded into these records.
        last_writer: whether, of the values of one key, the one that was published last counts, in
            whatever order the values arrive; deletions alike. If not, the value that is folded last
            counts.
        kept: whether there is a store. If not, nothing waits to be stored, and a deleted record
            leaves no trace.

    Raises:
        SowDamaged: an entry on disk is no record.
    """

    def __init__(
        self,
        rules: SowRules,
        reading: StoreReader | None = None,
        txid: int = 0,
        *,
        last_writer: bool = False,
        kept: bool = True,
    ) -> None:
        self.rules = rules
        self._kept = kept
        self.txid = txid
        self.last_writer = last_writer
        self._reading: StoreReader = reading or EmptyStore()
        self._unsaved: SortedEntries[bytes | None] = SortedEntries(UNORDERED_MAX)
        self._taken: SortedEntries[bytes | None] = SortedEntries(UNORDERED_MAX)
        self._newest_us: dict[bytes, int] = {}
        self._newest_taken_us: dict[bytes, int] = {}
        self._queries: list[ChangeListener] = []
        self._as_of_us: list[int] = []
        self.whole_from_us = 0
        """Time before which the history is incomplete, and not shown (history_rules.py)."""
        self._pruned_to = VERSION
        self._older_kept = False
        self._to_prune = self._to_forget = 0
        """Number of versions and deletions that are still to be examined. Each addition adds two,
        so that removal keeps pace with growth."""
        self._expirations, self._forgotten_to = RecordExpirations(), TOMBSTONE
        self.pending_bytes = 0
        """Approximate bytes that are not stored yet."""
        self._taken_bytes = 0
        self.count = 0
        """Number of records."""
        self.tombstones = 0
        """Number of deletions that are remembered."""
        counts = self._reading.get(COUNTS)
        if counts is not None:
            if len(counts) != _COUNTS.size:
                raise SowDamaged(f"the SOW store counts {counts[:60]!r}")
            self.count, self.tombstones = _COUNTS.unpack(counts)
        if rules.expires:
            for record in self.records():
                self._note_expiration(record)

    def _note_expiration(self, record: SowRecord) -> None:
        if not self.rules.expires:
            return
        if record.expires_us == NEVER:
            self._expirations.forget(record.key)
        else:
            self._expirations.note(record.key, record.expires_us)

    # -- reading -------------------------------------------------------------------------------
    def get(self, key: bytes) -> SowRecord | None:
        """Returns the record of a key.

        Raises:
            SowDamaged: an entry on disk is no record.
        """
        value = self._value(VALUE + key)
        return None if value is None else decoded(key, value)

    def _value(self, key: bytes) -> bytes | None:
        for held in (self._unsaved, self._taken):
            if key in held:
                return held[key]
        return self._reading.get(key)

    def records(self) -> Iterator[SowRecord]:
        """Yields every record by key, as of the first one; nothing may be folded meanwhile.

        Raises:
            SowDamaged: an entry on disk is no record.
        """
        for key, value in self._entries(VALUE, VALUE_END):
            yield decoded(key[1:], value)

    def query(self) -> RecordScan:
        """Returns a scan of every record as of now, to be taken in turns while later commits are
        folded. Values are in stored form: `body_of` and `decoded` read them; the key's first byte
        is to be removed."""
        query = RecordScan(self.chunk, VALUE, VALUE_END, self.txid, self._queries.remove)
        self._queries.append(query)
        return query

    def present(self) -> PresentScan:
        """Returns a scan of every record as it is when it is taken, for the building of what is
        computed from the records. Values are in stored form, as of `query`."""
        return PresentScan(self.chunk, VALUE, VALUE_END)

    def query_keys(self, keys: Iterable[bytes]) -> KeyScan:
        """Returns a scan, as `query` does, of the records of these keys alone."""
        found = KeyScan(self._value, (VALUE + key for key in keys), self.txid, self._queries.remove)
        self._queries.append(found)
        return found

    def watch(self, watching: ChangeListener) -> Callable[[], None]:
        """Notifies a listener of each change of a value, before it happens. Returns a function that
        ends that."""
        self._queries.append(watching)
        return lambda: self._queries.remove(watching)

    @property
    def is_watched(self) -> bool:
        """Returns whether a query or a listener needs each value before it changes."""
        return bool(self._queries)

    def changing(self, key: bytes, previous: SowRecord | None) -> None:
        """Notes that a record is about to change which is not in this state but behind its reader:
        a record of a view, which is made of its group.

        Args:
            previous: the record until then; None: there is none.
        """
        for query in self._queries:
            query.changed(VALUE + key, None if previous is None else encoded(previous))

    def chunk(self, start: bytes, end: bytes, most: int) -> list[tuple[bytes, bytes]]:
        """Returns the first `most` entries, stored or still to be stored, from `start` on and
        before `end`."""
        found: list[tuple[bytes, bytes]] = []
        while True:
            entries = self._reading.chunk(start, end, most)
            until = end if len(entries) < most else entries[-1][0] + b"\0"
            newer = []
            for held in (self._taken, self._unsaved):
                keys = held.keys(start, until, most)
                if len(keys) == most:
                    until = keys[-1] + b"\0"
                newer.append((held, keys))
            if newer[0][1] or newer[1][1]:
                merged = dict(entries)
                for held, keys in newer:
                    for key in keys:
                        value = held[key]
                        if value is None:
                            merged.pop(key, None)
                        else:
                            merged[key] = value
                entries = sorted(each for each in merged.items() if each[0] < until)
            if not found:
                found = entries
            else:
                found += entries
            if until == end or len(found) >= most:
                return found[:most]
            start = until

    def _entries(self, start: bytes, end: bytes) -> Iterator[tuple[bytes, bytes]]:
        """Yields all entries in a range. Entries that are folded meanwhile are included if they are
        still ahead."""
        return entries_of(self.chunk, start, end)

    def as_of(self, time_us: int, now_us: int, txid: int | None = None) -> Iterator[SowRecord]:
        """Yields the records of a moment (query/as_of.py), by key, as `versions` does."""
        past = AsOf(txid, time_us)
        return latest(self.versions(past, now_us), past)

    def versions(self, past: AsOf, now_us: int) -> Iterator[SowRecord]:
        """Yields every version by key and time, for queries of the past; none where the moment is
        before the history's window, which ends now. The versions are not pruned until the iteration
        ends."""
        window_us = self.rules.window_us
        if not window_us or past.time_us < max(now_us - window_us, self.whole_from_us):
            return
        self._as_of_us.append(past.time_us)
        try:
            for key, value in self._entries(VERSION, _VERSION_END):
                yield decoded(key[1 : -_TIME.size], value)
        finally:
            self._as_of_us.remove(past.time_us)

    # -- folding -------------------------------------------------------------------------------
    def put(self, record: SowRecord) -> RecordChange | None:
        """Applies a published record. Returns the change; None: the record is late, and changes
        nothing.

        Args:
            record: a record with a body; `expires_us` is from `expiration_us`.
        """
        key = record.key
        previous = self.get(key)
        self.txid = max(self.txid, record.txid)
        if self._is_late(record.author, record.updated_us, key, previous):
            return None
        return self._put(record, previous)

    @property
    def takes_runs(self) -> bool:
        """Returns whether `put_run` may be called: no time and no tombstone decides what a message
        does, and no query needs what was there before it."""
        rules = self.rules
        return (
            self._kept
            and not (self.last_writer or self.tombstones or self._queries)
            and not (rules.expires or rules.lifetime_us or rules.window_us)
        )

    def put_run(
        self, keys: Sequence[bytes], plain: PlainRecords, first_txid: int, received_us: int
    ) -> list[StoredChange]:
        """Applies the messages of a run, as `put` does, and returns the changes in stored form.

        Args:
            keys: key of each message.
            first_txid: transaction of the first message; each has one of its own.
            received_us: time at which this instance received them, in microseconds since 1970.
        """
        unsaved, taken = self._unsaved.entries, self._taken.entries
        entries = [VALUE + key for key in keys]
        stored: dict[bytes, bytes | None] = {}
        missing = [entry for entry in entries if entry not in unsaved and entry not in taken]
        if missing:
            stored = dict(zip(missing, self._reading.get_many(missing), strict=True))
        new: dict[bytes, bytes | None] = {}
        changes: list[StoredChange] = []
        inserted = added_bytes = 0
        txid = first_txid - 1
        pack, author_of = RECORD.pack, AUTHOR.unpack_from
        for entry, body, (publisher, sequence, stamp_us) in zip(
            entries, plain.bodies, plain.authors, strict=True
        ):
            txid += 1
            if entry in new:
                previous, is_unsaved = new[entry], True
            elif entry in unsaved:
                previous, is_unsaved = unsaved[entry], True
            else:
                previous = taken[entry] if entry in taken else stored[entry]
                is_unsaved = False
            if previous is None:
                inserted += 1
            else:
                if len(previous) < RECORD.size:
                    decoded(entry[1:], previous)
                # A late one changes nothing.
                before, at = author_of(previous, AUTHOR_AT)
                if before == publisher and at > sequence:
                    continue
            value = pack(txid, publisher, sequence, received_us, NEVER, stamp_us, True, 0) + body
            new[entry] = value
            added_bytes += len(value)
            if is_unsaved:
                added_bytes -= len(previous or b"")
            else:
                added_bytes += len(entry)
            changes.append((entry, previous, body))
        self.txid = max(self.txid, txid)
        self.count += inserted
        self.pending_bytes += added_bytes
        self._unsaved.update(new)
        return changes

    def put_computed(self, record: SowRecord) -> RecordChange:
        """Applies a record that this instance computes, whatever the one before it was."""
        self.txid = max(self.txid, record.txid)
        return self._put(record, self.get(record.key))

    def _put(self, record: SowRecord, previous: SowRecord | None) -> RecordChange:
        key = record.key
        if previous is None:
            self.count += 1
            self._set_tombstone(key, None)
        self._set_value(key, previous, encoded(record))
        self._note_expiration(record)
        self._add_version(record)
        return RecordChange(key, previous, record, "updated" if previous else "inserted")

    def _is_late(
        self, author: RecordAuthor, updated_us: int, key: bytes, previous: SowRecord | None
    ) -> bool:
        """Returns whether the present record or tombstone is later than the author."""
        if previous is None:
            tombstone = self.tombstone(key)
            if tombstone is None:
                return False
            if self.last_writer:
                return author <= tombstone.author
            publisher, sequence = author.publisher, author.sequence
            return (
                publisher == tombstone.author.publisher and sequence < tombstone.author.sequence
            ) or (publisher == tombstone.publisher and sequence < tombstone.sequence)
        if self.last_writer:
            # The same message again, for instance with an old store: the same value, for another
            # transaction.
            return author < previous.author
        if self.rules.expires and NEVER < previous.expires_us <= updated_us:
            # The present record has expired, whether or not it was removed yet.
            return False
        return previous.publisher == author.publisher and previous.sequence > author.sequence

    def delete(
        self,
        key: bytes,
        txid: int,
        now_us: int,
        reason: str = "deleted",
        by: RecordAuthor | None = None,
    ) -> RecordChange | None:
        """Deletes a record; its versions stay. Returns the change; None: there was none, or it is
        later than the deletion.

        Args:
            now_us: time at which this instance received the deletion.
            by: author of the deletion: messages that were published before it and arrive later do
                not bring the record back (until `forget`). None: it was not deleted.
        """
        previous = self.get(key)
        self.txid = max(self.txid, txid)
        if by is not None:
            if self._is_late(by, now_us, key, previous):
                return None
            brought = (0, 0) if previous is None else (previous.publisher, previous.sequence)
            self._set_tombstone(key, Tombstone(txid, now_us, by, *brought))
        if previous is None:
            if by is not None and self.rules.window_us and self._newest(key) is not None:
                # A copy brought the versions along, and the record has been deleted since.
                stamp_us, publisher, sequence = by
                self._add_version(
                    SowRecord(key, txid, publisher, sequence, now_us, NEVER, None, stamp_us)
                )
            return None
        self.count -= 1
        self._expirations.forget(key)
        self._set_value(key, previous, None)
        self._add_version(
            previous._replace(txid=txid, updated_us=now_us, expires_us=NEVER, body=None)
        )
        return RecordChange(key, previous, None, reason)

    def _set_value(self, key: bytes, previous: SowRecord | None, value: bytes | None) -> None:
        for query in self._queries:
            query.changed(VALUE + key, None if previous is None else encoded(previous))
        self._set(VALUE + key, value)

    def _set(self, entry: bytes, value: bytes | None) -> None:
        if self._kept:
            if entry in self._unsaved:
                self.pending_bytes -= len(self._unsaved[entry] or b"")
            else:
                self.pending_bytes += len(entry)
            self._unsaved[entry] = value
            self.pending_bytes += len(value or b"")
        elif value is None:
            self._unsaved.pop(entry)
        else:
            self._unsaved[entry] = value

    # -- tombstones ----------------------------------------------------------------------------
    def tombstone(self, key: bytes) -> Tombstone | None:
        """Returns the tombstone of a key; None: there is none.

        Raises:
            SowDamaged: the entry on disk is no tombstone.
        """
        value = self._value(TOMBSTONE + key) if self.tombstones else None
        return None if value is None else decoded_tombstone(key, value)

    def _set_tombstone(self, key: bytes, tombstone: Tombstone | None) -> None:
        held = self._value(TOMBSTONE + key) if self.tombstones else None
        if tombstone is None:
            if held is not None:
                self.tombstones -= 1
                self._set(TOMBSTONE + key, None)
            return
        self.tombstones += held is None
        self._to_forget += 2
        txid, updated_us, author, publisher, sequence = tombstone
        if held is not None and not publisher:
            # A second deletion: the record that the first one removed stays removed.
            publisher, sequence = decoded_tombstone(key, held)[3:]
        left = Tombstone(txid, updated_us, author, publisher, sequence)
        self._set(TOMBSTONE + key, encoded_tombstone(left))

    def forget(self, floor_txid: int, before_us: int, most: int = 10_000) -> int:
        """Removes tombstones for which nothing can arrive late any more; continues where the last
        call ended.

        Args:
            floor_txid: transaction id up to which every destination has everything.
            before_us: receive time from which on tombstones are kept in any case.
            most: number of tombstones to look at in one call.

        Returns:
            how many versions were removed.
        """
        self._to_forget = max(self._to_forget - most, 0)
        if not self.tombstones:
            return 0
        gone: list[bytes] = []
        last = b""
        for looked, (entry, value) in enumerate(self._entries(self._forgotten_to, _TOMBSTONE_END)):
            tombstone = decoded_tombstone(entry[1:], value)
            if tombstone.txid <= floor_txid and tombstone.updated_us < before_us:
                gone.append(entry)
            if looked + 1 >= most:
                last = entry
                break
        self._forgotten_to = last + b"\0" if last else TOMBSTONE
        for entry in gone:
            self._set(entry, None)
        self.tombstones -= len(gone)
        return len(gone)

    # -- transactions --------------------------------------------------------------------------
    def begin_behind(self, txid: int) -> bool:
        """Leaves out everything that was published up to this transaction id, unless the topic has
        begun already. Returns whether that is new: it must be on disk before anything is folded."""
        if self.txid or self._reading.get(BEGUN) is not None:
            return False
        self.seen(txid)
        self._set(BEGUN, b"")
        return True

    def seen(self, txid: int) -> None:
        """Notes that a transaction was folded that changes nothing here."""
        self.txid = max(self.txid, txid)

    # -- expiration ----------------------------------------------------------------------------
    def expiration_us(self, lifetime_s: int | None, now_us: int) -> int:
        """Returns when a message expires that arrives now.

        Args:
            lifetime_s: lifetime in the message; 0: never expires; None: the message has none.
        """
        if lifetime_s is not None:
            return now_us + lifetime_s * 1_000_000 if lifetime_s else NEVER
        return now_us + self.rules.lifetime_us if self.rules.lifetime_us else NEVER

    def is_due(self, now_us: int) -> bool:
        """Returns whether `expire`, `prune` or `forget` is to be called again at once."""
        first_us = self._expirations.first_us
        return NEVER < first_us <= now_us or bool(self._to_prune or self._to_forget)

    def expire(self, now_us: int, most: int = 10_000) -> list[RecordChange]:
        """Removes expired records; every instance does so by itself.

        Args:
            most: number of records to look at in one call; the next call continues. Some may not
                have expired, because they were published again.
        """
        changes: list[RecordChange] = []
        for _ in range(most):
            key = self._expirations.take(now_us)
            if key is None:
                break
            record = self.get(key) if key else None
            if record is None:
                continue
            if not NEVER < record.expires_us <= now_us:
                self._note_expiration(record)
                continue
            # Another instance may get an earlier message only after the record has expired there.
            by = record.author if self.last_writer else None
            change = self.delete(key, self.txid, now_us, "expired", by)
            assert change is not None
            changes.append(change)
        return changes

    # -- history -------------------------------------------------------------------------------
    def _add_version(self, record: SowRecord) -> None:
        if not self.rules.window_us:
            return
        key, granularity_us = record.key, self.rules.granularity_us
        begin = VERSION + key
        newest_us = self._newest(key)
        time_us = record.updated_us
        if newest_us is not None:
            # Versions are told apart by time alone. With a granularity, the last one of an interval
            # is kept.
            time_us = max(time_us, newest_us if granularity_us else newest_us + 1)
            if granularity_us and newest_us // granularity_us == time_us // granularity_us:
                self._set(begin + _TIME.pack(newest_us), None)
        self._set(begin + _TIME.pack(time_us), encoded(record._replace(updated_us=time_us)))
        self._newest_us[key] = time_us
        self._to_prune += 2

    def _newest(self, key: bytes) -> int | None:
        """Returns the time of the last version of a key; None: there is none."""
        for held in (self._newest_us, self._newest_taken_us):
            if key in held:
                return held[key]
        begin = VERSION + key
        found = self._reading.last(begin + b"\0", begin + b"\1")
        return None if found is None else _time_us(found)

    def prune(self, now_us: int, most: int = 10_000) -> int:
        """Removes versions that are older than the window; continues where the last call ended.

        The last version before the window stays, unless it is a deletion: it is the record at the
        begin of the window.

        Args:
            most: number of versions to look at in one call.

        Returns:
            how many versions were removed.
        """
        self._to_prune = max(self._to_prune - most, 0)
        if not self.rules.window_us:
            return 0
        from_us = min([now_us - self.rules.window_us, *self._as_of_us])
        gone: list[bytes] = []
        before: tuple[bytes, bytes] | None = None
        for looked, entry in enumerate(self._entries(self._pruned_to, _VERSION_END)):
            if before is not None:
                self._prune(before, entry[0], from_us, gone)
            before = entry
            if looked + 1 >= max(most, 2):
                break
        else:
            if before is not None:
                self._prune(before, b"", from_us, gone)
            before = None
        self._pruned_to = before[0] if before else VERSION
        for key in gone:
            self._set(key, None)
        return len(gone)

    def _prune(
        self, entry: tuple[bytes, bytes], following: bytes, from_us: int, gone: list[bytes]
    ) -> None:
        key, value = entry
        is_last = following[: -_TIME.size] != key[: -_TIME.size]
        if not is_last:
            is_past = _time_us(following) <= from_us
        else:
            # A removed deletion must not make an earlier version visible again.
            is_past = (
                not self._older_kept
                and _time_us(key) <= from_us
                and decoded(key[1 : -_TIME.size], value).body is None
            )
        if is_past:
            gone.append(key)
        self._older_kept = not is_last and (self._older_kept or not is_past)

    # -- what goes to disk -----------------------------------------------------------------------
    @property
    def unsaved_bytes(self) -> int:
        """Returns the bytes that are not stored yet, including those being written; each entry
        counts once."""
        return self.pending_bytes + self._taken_bytes

    def pending(self) -> tuple[Mapping[bytes, bytes | None], int]:
        """Returns the entries that the store is to commit (None: remove it), and the transaction to
        which the store then corresponds. Nothing more is returned before `saved` or `not_saved`."""
        assert not self._taken, "a commit is under way"
        if self._unsaved:
            for key, value in counts_entry(self.count, self.tombstones).items():
                self._unsaved[key] = value
        self._taken, self._unsaved = self._unsaved, SortedEntries(UNORDERED_MAX)
        self._taken_bytes, self.pending_bytes = self.pending_bytes, 0
        self._newest_taken_us, self._newest_us = self._newest_us, {}
        return self._taken.entries, self.txid

    def saved(self) -> None:
        self._taken_bytes = 0
        self._taken = SortedEntries(UNORDERED_MAX)
        self._newest_taken_us = {}

    def not_saved(self) -> None:
        """Makes entries that could not be written pending again."""
        for key, value in self._taken.items():
            if key not in self._unsaved:
                self._unsaved[key] = value
                self.pending_bytes += len(key) + len(value or b"")
        self._newest_us = {**self._newest_taken_us, **self._newest_us}
        self.saved()


def counts_entry(records: int, tombstones: int) -> dict[bytes, bytes]:
    """Returns the store's entry with the numbers of records and tombstones."""
    return {COUNTS: _COUNTS.pack(records, tombstones)}


def _time_us(version: bytes) -> int:
    return int(_TIME.unpack_from(version, len(version) - _TIME.size)[0])
