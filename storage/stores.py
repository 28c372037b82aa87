"""Stores of a client: publishes that are not durable yet, and the messages that a subscription has
seen.

A publish store's file holds one batch for each flush, with the records packed back to back under
one key, because a key for each record would cost five times as much. All numbers are little-endian,
except in keys.

    key   8 bytes big-endian: the batch's first sequence; it sorts behind `meta`
    value per record: u64 sequence, u32 length, the record
    key   b"\\0meta"
    value u64 highest sequence ever put, u64 acknowledged (all up to it are gone), then a
          SequenceSet (services/messages/ranges.py) of what is gone above that

A bookmark store's file holds one SequenceSet for each subscription and publisher, under
BLAKE2b of the subscription id (16 bytes) and the publisher (8 bytes big-endian).
"""

from __future__ import annotations

import builtins
import struct
from collections import deque
from collections.abc import Iterable, Iterator
from itertools import islice
from pathlib import Path
from typing import Generic, Protocol, TypeVar

import lmdb

from raylay.services.errors import (
    CorruptRecord,
    PublishStoreFull,
    RemoteProtocolError,
    StorageError,
    StorageLocked,
)
from raylay.services.messages.digests import SUBSCRIPTION, digest
from raylay.services.messages.ranges import PublisherRanges, Range, SequenceSet
from raylay.storage.files import holders_of, try_exclusive
from raylay.storage.state import VERSION_KEY, StoreFile, explained

MESSAGES_MAX_DEFAULT = 1_000_000
BYTES_MAX_DEFAULT = 1024 * 1024 * 1024

BOOKMARK_KEY_BYTES = 24
"""Size, in bytes, of a bookmark store's keys: subscription and publisher."""
KEYS_LOOKED_AT = 8
"""Number of keys that are read to recognize the file of a bookmark store."""

_KEY = struct.Struct(">Q")
_ENTRY = struct.Struct("<QI")
_META = struct.Struct("<QQ")
_META_KEY = b"\0meta"
_WORDS_KEY = b"\0words"


class ClientFile(StoreFile):
    """The LMDB environment of a client's store. One store uses it at a time: two clients would give
    the same sequences to different messages, and remove the messages of each other.

    Raises:
        StorageLocked: a store of another process uses the file.
        StorageError: the file cannot be opened, or a store of this process uses it.
    """

    def __init__(self, path: Path) -> None:
        super().__init__(path)
        try:
            # The lock ends with this file object, also where a store is collected unclosed.
            self._owned = path.open("rb")
            if not try_exclusive(self._owned.fileno()):
                self._owned.close()
                by = ", ".join(map(str, holders_of(path)))
                raise StorageLocked(
                    f"{path} is in use by another client{f' (pid {by})' if by else ''}: give each "
                    "client a store of its own",
                    str(path),
                )
        except BaseException:
            super().close()
            raise

    def close(self) -> None:
        super().close()
        self._owned.close()


def _other_store(path: Path, wanted: str) -> StorageError:
    return StorageError(
        f"{path} is another store of Raylay's and no {wanted}: give each store a file of its own",
        str(path),
    )


# -- publish stores ------------------------------------------------------------------------------
class PublishStore(Protocol):
    """Publishes that are not known to be durable, in the order published.

    A client puts a record before it sends it, sends it only after a `flush` that covers it, and
    takes it out when it is acknowledged. Sequences ascend; gaps are allowed.
    """

    @property
    def messages(self) -> int:
        """The number of records in the store."""

    @property
    def bytes(self) -> int:
        """The bytes of the records in the store."""

    @property
    def lowest(self) -> int:
        """The lowest sequence in it; 0 when it is empty."""

    @property
    def highest(self) -> int:
        """The highest sequence ever put, also when the store is empty; 0 when none was ever put."""

    @property
    def full(self) -> bool:
        """Returns whether a `put` would be refused."""

    def put(self, sequence: int, record: builtins.bytes) -> None:
        """Adds a record, whose sequence is above `highest`. Durable from the next `flush` on.

        Raises:
            PublishStoreFull: a limit is reached; nothing was added.
        """

    def flush(self) -> None:
        """Makes every record put so far durable, in one synced write; a store in memory does
        nothing.

        Raises:
            StorageFull: no space; the records stay in the store, and the next flush tries again.
        """

    def advance(self, highest: int) -> None:
        """Raises `highest` without a record: numbering continues behind it."""

    def acknowledge(self, upto: int) -> None:
        """Drops every record up to this sequence. The next `flush` writes that to disk, which is
        early enough: records that a crash brings back are sent again and recognised as
        duplicates."""

    def drop(self, ranges: Iterable[Range]) -> None:
        """Drops the inclusive ranges of sequences."""

    def replay(self, first: int = 0) -> Iterator[tuple[int, builtins.bytes]]:
        """Yields (sequence, record) from `first` on, in order, as the store is at the call."""

    @property
    def words(self) -> builtins.bytes:
        """Reports to its client about where it may fail over to, kept beside the publishes: set
        before the acks that depend on it, on disk with the next `flush`."""

    @words.setter
    def words(self, value: builtins.bytes) -> None: ...

    def close(self) -> None:
        """Flushes and closes the store."""


Entry = TypeVar("Entry")


class _EntryCounts(Generic[Entry]):
    """The counts of a store's entries: a sequence first in each, ascending."""

    __slots__ = ("_entries", "bytes", "bytes_max", "messages_max")

    def __init__(self, messages_max: int, bytes_max: int) -> None:
        self.messages_max = messages_max
        self.bytes_max = bytes_max
        self.bytes = 0
        self._entries: deque[tuple[int, Entry]] = deque()

    @property
    def messages(self) -> int:
        return len(self._entries)

    @property
    def lowest(self) -> int:
        """The lowest sequence in it; 0 when it is empty."""
        return self._entries[0][0] if self._entries else 0

    @property
    def full(self) -> bool:
        """Returns whether a `put` would be refused."""
        return self.bytes >= self.bytes_max or len(self._entries) >= self.messages_max


class MemoryPublishStore(_EntryCounts[bytes]):
    """A PublishStore in memory: it outlives connections, not the process.

    Invariant: `bytes` is the sum of the lengths of the records in it.
    Owner: one client, on its event loop.
    """

    __slots__ = ("highest", "words")

    def __init__(
        self,
        messages_max: int = MESSAGES_MAX_DEFAULT,
        bytes_max: int = BYTES_MAX_DEFAULT,
    ) -> None:
        super().__init__(messages_max, bytes_max)
        self.highest = 0
        self.words = b""

    def put(self, sequence: int, record: bytes) -> None:
        """Adds a record, whose sequence is above `highest`.

        Raises:
            PublishStoreFull: a limit is reached; nothing was added.
            ValueError: the sequence is not above `highest`; nothing was added.
        """
        if self.bytes >= self.bytes_max or len(self._entries) >= self.messages_max:
            raise _full(self)
        if sequence <= self.highest:
            raise _not_ascending(sequence, self.highest)
        self._entries.append((sequence, record))
        self.bytes += len(record)
        self.highest = sequence

    def flush(self) -> None:
        """Nothing to do."""

    def advance(self, highest: int) -> None:
        """Raises `highest` without a record: numbering continues behind it."""
        if highest > self.highest:
            self.highest = highest

    def acknowledge(self, upto: int) -> None:
        """Drops every record up to this sequence."""
        entries = self._entries
        dropped_bytes = 0
        while entries and entries[0][0] <= upto:
            dropped_bytes += len(entries.popleft()[1])
        self.bytes -= dropped_bytes

    def drop(self, ranges: Iterable[Range]) -> None:
        """Drops the records of these inclusive ranges of sequences."""
        gone = _above_prefix(self, ranges)
        if gone:
            self._entries = deque(entry for entry in self._entries if entry[0] not in gone)
            self.bytes = sum(len(record) for _, record in self._entries)

    def replay(self, first: int = 0) -> Iterator[tuple[int, bytes]]:
        """Returns an iterator of (sequence, record) from `first` on, in order, as the store is at
        the call."""
        return iter([entry for entry in self._entries if entry[0] >= first])

    def close(self) -> None:
        """Nothing to give back."""


class LmdbPublishStore(_EntryCounts[int]):
    """A PublishStore on disk: it outlives the process.

    Invariants: what a returned `flush` covered is found again until it was acknowledged or dropped;
    memory holds the sequences and lengths, the records only until their flush.
    Owner: one client, on one thread.

    Raises:
        StorageError: the file cannot be used; CorruptRecord: it is damaged.
    """

    def __init__(
        self,
        path: str | Path,
        messages_max: int = MESSAGES_MAX_DEFAULT,
        bytes_max: int = BYTES_MAX_DEFAULT,
    ) -> None:
        super().__init__(messages_max, bytes_max)  # of each in it, flushed or not, the length
        self._path = Path(path)
        self.highest = 0
        self._acknowledged = 0
        self._words = b""
        self._gone = SequenceSet()
        self._pending: deque[tuple[int, bytes]] = deque()
        # (first, last sequence) of each batch on disk.
        self._batches: deque[tuple[int, int]] = deque()
        self._surplus: list[int] = []
        """The first sequences of batches that are wholly acknowledged but still on disk."""
        self._meta_changed = False
        self._file = ClientFile(self._path)
        try:
            self._load()
        except BaseException:
            self._file.close()
            raise

    def _load(self) -> None:
        try:
            with self._file.begin() as transaction:
                meta = transaction.get(_META_KEY)
                if meta is not None:
                    self.highest, self._acknowledged = _META.unpack_from(meta)
                    self._gone = SequenceSet.from_bytes(meta[_META.size :])
                self._words = transaction.get(_WORDS_KEY) or b""
                with transaction.cursor() as cursor:
                    for key, value in cursor.iternext():
                        if key in (VERSION_KEY, _META_KEY, _WORDS_KEY):
                            continue
                        if len(key) != _KEY.size:
                            raise _other_store(self._path, "publish store")
                        first = last = _KEY.unpack(key)[0]
                        alive = False
                        for sequence, record in _unpack(value):
                            last = sequence
                            if sequence > self._acknowledged and sequence not in self._gone:
                                self._entries.append((sequence, len(record)))
                                self.bytes += len(record)
                                alive = True
                        if alive:
                            self._batches.append((first, last))
                        else:
                            self._surplus.append(first)
                        self.highest = max(self.highest, last)
        except lmdb.Error as error:
            raise explained(error, self._path) from error
        except (struct.error, RemoteProtocolError) as error:
            raise CorruptRecord(
                f"{self._path} is damaged, or is no publish store: {error}", str(self._path)
            ) from None

    def put(self, sequence: int, record: bytes) -> None:
        """Adds a record, whose sequence is above `highest`. Durable from the next `flush` on.

        Raises:
            PublishStoreFull: a limit is reached; nothing was added.
            ValueError: the sequence is not above `highest`; nothing was added.
        """
        length = len(record)
        if self.bytes >= self.bytes_max or len(self._entries) >= self.messages_max:
            raise _full(self)
        if sequence <= self.highest:
            raise _not_ascending(sequence, self.highest)
        self._pending.append((sequence, record))
        self._entries.append((sequence, length))
        self.bytes += length
        self.highest = sequence

    def flush(self) -> None:
        """Makes every record put so far, and what was dropped, durable in one synced write. Does
        nothing where nothing changed.

        Raises:
            StorageError: no space, or the file cannot be written; the records stay in the store,
                and the next flush tries again.
        """
        pending = self._pending
        if not (pending or self._meta_changed or self._surplus):
            return
        meta = _META.pack(self.highest, self._acknowledged) + self._gone.to_bytes()
        try:
            with self._file.begin(write=True) as transaction:
                for first in self._surplus:
                    transaction.delete(_KEY.pack(first))
                transaction.put(_META_KEY, meta)
                if self._words:
                    transaction.put(_WORDS_KEY, self._words)
                if pending:
                    parts: list[bytes] = []
                    for sequence, record in pending:
                        parts += (_ENTRY.pack(sequence, len(record)), record)
                    transaction.put(_KEY.pack(pending[0][0]), b"".join(parts))
        except lmdb.Error as error:
            raise explained(error, self._path) from error
        if pending:
            self._batches.append((pending[0][0], pending[-1][0]))
            pending.clear()
        self._surplus.clear()
        self._meta_changed = False

    @property
    def words(self) -> builtins.bytes:
        """Returns the reports of instances about where the client may fail over to, as they were
        set last; empty: none yet. On disk with the next `flush`."""
        return self._words

    @words.setter
    def words(self, value: builtins.bytes) -> None:
        self._words = value
        self._meta_changed = True

    def advance(self, highest: int) -> None:
        """Raises `highest` without a record: numbering continues behind it."""
        if highest > self.highest:
            self.highest = highest
            self._meta_changed = True

    def acknowledge(self, upto: int) -> None:
        """Drops every record up to this sequence; on disk with the next `flush`."""
        entries = self._entries
        upto = min(upto, self.highest)  # what is put later was not meant
        if upto <= self._acknowledged:
            return
        self._acknowledged = upto
        dropped_bytes = 0
        while entries and entries[0][0] <= upto:
            dropped_bytes += entries.popleft()[1]
        self.bytes -= dropped_bytes
        pending = self._pending
        while pending and pending[0][0] <= upto:
            pending.popleft()
        batches = self._batches
        while batches and batches[0][1] <= upto:
            self._surplus.append(batches.popleft()[0])
        if self._gone:
            self._gone.remove(0, upto)
        self._meta_changed = True

    def drop(self, ranges: Iterable[Range]) -> None:
        """Drops the records of these inclusive ranges of sequences; on disk with
        the next `flush`."""
        gone = _above_prefix(self, ranges)
        if not gone:
            return
        self._entries = deque(entry for entry in self._entries if entry[0] not in gone)
        self._pending = deque(entry for entry in self._pending if entry[0] not in gone)
        self.bytes = sum(length for _, length in self._entries)
        self._gone.update(gone)
        self._meta_changed = True

    def replay(self, first: int = 0) -> Iterator[tuple[int, bytes]]:
        """See PublishStore. Records on disk are read batch by batch as the iterator goes."""
        wanted = {sequence for sequence, _ in self._entries if sequence >= first}
        batches = [key for key, last in self._batches if last >= first]
        pending = [entry for entry in self._pending if entry[0] in wanted]
        return self._replay(wanted, batches, pending)

    def _replay(
        self, wanted: set[int], batches: list[int], pending: list[tuple[int, bytes]]
    ) -> Iterator[tuple[int, bytes]]:
        for key in batches:
            try:
                with self._file.begin() as transaction:
                    value = transaction.get(_KEY.pack(key))
            except lmdb.Error as error:
                raise explained(error, self._path) from error
            # None: the batch was acknowledged and removed by a flush since the call.
            for sequence, record in _unpack(value or b""):
                if sequence in wanted:
                    yield sequence, record
        yield from pending

    def close(self) -> None:
        """Flushes and closes the store, and lets another client use its file.

        Raises:
            StorageError: the last flush failed; the file is closed all the same.
        """
        try:
            self.flush()
        finally:
            self._file.close()


def _full(store: MemoryPublishStore | LmdbPublishStore) -> PublishStoreFull:
    return PublishStoreFull(
        f"the publish store holds {store.messages} messages and {store.bytes} bytes; "
        f"its limits are {store.messages_max} messages and {store.bytes_max} bytes"
    )


def _not_ascending(sequence: int, highest: int) -> ValueError:
    return ValueError(f"sequence {sequence} is not above the highest one, {highest}")


def _above_prefix(
    store: MemoryPublishStore | LmdbPublishStore, ranges: Iterable[Range]
) -> SequenceSet | None:
    """Acknowledges those of the ranges that are a prefix of the store. Returns the other sequences
    to drop, or None."""
    highest = store.highest  # what is put later was not meant
    gone = SequenceSet((first, min(last, highest)) for first, last in ranges if first <= highest)
    for first, last in gone:
        lowest = store.lowest
        if not lowest or first > lowest:
            break
        store.acknowledge(last)
    last_gone = gone.last()
    if not store.lowest or last_gone is None or last_gone < store.lowest:
        return None
    gone.remove(0, store.lowest - 1)
    return gone


def _unpack(value: bytes) -> Iterator[tuple[int, bytes]]:
    at = 0
    end = len(value)
    while at < end:
        sequence, length = _ENTRY.unpack_from(value, at)
        at += _ENTRY.size
        if at + length > end:
            raise struct.error("a record is cut short")
        yield sequence, value[at : at + length]
        at += length


# -- bookmark stores -----------------------------------------------------------------------------
class BookmarkStore(Protocol):
    """The store of the messages that each subscription has, so that a durable subscriber resumes
    without a gap or a duplicate."""

    def seen(self, subscription: str, publisher: int, first: int, last: int) -> None:
        """Notes that the subscriber has processed the publisher's messages first..last."""

    def persisted(self, subscription: str, ranges: PublisherRanges) -> None:
        """Notes a persisted ack: the subscriber has all of the subscription's messages in `ranges`,
        and they are durable. The ack also covers messages that the subscription does not match, so
        that few ranges remain."""

    def load(self, subscription: str) -> PublisherRanges:
        """Returns a copy of the set of messages that the subscription has."""

    def discard(self, subscription: str) -> None:
        """Forgets the subscription."""

    def flush(self) -> None:
        """Makes everything so far durable, in one synced write.

        Raises:
            StorageFull: no space; the next flush tries again.
        """

    def close(self) -> None:
        """Flushes and closes the store."""


class MemoryBookmarkStore:
    """A BookmarkStore in memory: it outlives connections, not the process."""

    def __init__(self) -> None:
        self._have: dict[str, PublisherRanges] = {}

    def _of(self, subscription: str) -> PublisherRanges:
        have = self._have.get(subscription)
        if have is None:
            have = self._have[subscription] = PublisherRanges()
        return have

    def seen(self, subscription: str, publisher: int, first: int, last: int) -> None:
        """Notes that the subscriber has processed the publisher's messages first..last."""
        self._of(subscription).add(publisher, first, last)

    def persisted(self, subscription: str, ranges: PublisherRanges) -> None:
        """Notes a persisted ack: the subscriber has all of the subscription's messages in `ranges`,
        and they are durable."""
        self._of(subscription).update(ranges)

    def load(self, subscription: str) -> PublisherRanges:
        """Returns a copy of the set of messages that the subscription has."""
        return self._of(subscription).copy()

    def discard(self, subscription: str) -> None:
        """Forgets the subscription."""
        self._have.pop(subscription, None)

    def flush(self) -> None:
        """Nothing to do."""

    def close(self) -> None:
        """Nothing to give back."""


class LmdbBookmarkStore(MemoryBookmarkStore):
    """A BookmarkStore on disk: it outlives the process.

    A subscription is read from the file when it is first named, then kept in memory; `flush` writes
    the sets that changed since the last one.
    Owner: one client, on one thread.

    Raises:
        StorageError: the file cannot be used.
    """

    def __init__(self, path: str | Path) -> None:
        super().__init__()
        self._path = Path(path)
        self._file = ClientFile(self._path)
        try:
            self._refuse_other()
        except BaseException:
            self._file.close()
            raise
        self._changed: set[tuple[str, int]] = set()
        self._discarded: set[str] = set()

    def _refuse_other(self) -> None:
        """Refuses the file of another kind of store, as far as its first keys show the kind."""
        try:
            with self._file.begin() as transaction, transaction.cursor() as cursor:
                keys = islice(cursor.iternext(values=False), KEYS_LOOKED_AT)
                if any(key != VERSION_KEY and len(key) != BOOKMARK_KEY_BYTES for key in keys):
                    raise _other_store(self._path, "bookmark store")
        except lmdb.Error as error:
            raise explained(error, self._path) from error

    def _of(self, subscription: str) -> PublisherRanges:
        have = self._have.get(subscription)
        if have is None:
            have = self._have[subscription] = PublisherRanges()
            if subscription not in self._discarded:
                self._read(subscription, have)
        return have

    def _read(self, subscription: str, have: PublisherRanges) -> None:
        prefix = _key_of(subscription)
        try:
            with self._file.begin() as transaction, transaction.cursor() as cursor:
                if cursor.set_range(prefix):
                    for key, value in cursor.iternext():
                        if not key.startswith(prefix):
                            break
                        publisher = _KEY.unpack_from(key, len(prefix))[0]
                        have.sets[publisher] = SequenceSet.from_bytes(value)
        except lmdb.Error as error:
            raise explained(error, self._path) from error
        except (struct.error, RemoteProtocolError) as error:
            raise CorruptRecord(f"{self._path} is damaged: {error}", str(self._path)) from None

    def seen(self, subscription: str, publisher: int, first: int, last: int) -> None:
        """Notes that the subscriber has processed the publisher's messages first..last; on disk
        with the next `flush`."""
        self._of(subscription).add(publisher, first, last)
        self._changed.add((subscription, publisher))

    def persisted(self, subscription: str, ranges: PublisherRanges) -> None:
        """Notes a persisted ack: the subscriber has all of the subscription's messages in `ranges`,
        and they are durable. On disk with the next `flush`."""
        self._of(subscription).update(ranges)
        self._changed.update((subscription, publisher) for publisher in ranges.sets)

    def discard(self, subscription: str) -> None:
        """Forgets the subscription; on disk with the next `flush`."""
        self._have.pop(subscription, None)
        self._discarded.add(subscription)
        self._changed = {pair for pair in self._changed if pair[0] != subscription}

    def flush(self) -> None:
        """Makes everything so far durable, in one synced write.

        Raises:
            StorageError: no space, or the file cannot be written; the next flush tries again.
        """
        if not (self._changed or self._discarded):
            return
        try:
            with self._file.begin(write=True) as transaction:
                for subscription in self._discarded:
                    prefix = _key_of(subscription)
                    with transaction.cursor() as cursor:
                        while cursor.set_range(prefix) and cursor.key().startswith(prefix):
                            cursor.delete()
                for subscription, publisher in self._changed:
                    key = _key_of(subscription) + _KEY.pack(publisher)
                    value = self._have[subscription].of(publisher).to_bytes()
                    transaction.put(key, value)
        except lmdb.Error as error:
            raise explained(error, self._path) from error
        self._changed.clear()
        self._discarded.clear()

    def close(self) -> None:
        """Flushes and closes the store, and lets another client use its file.

        Raises:
            StorageError: the last flush failed; the file is closed all the same.
        """
        try:
            self.flush()
        finally:
            self._file.close()


def _key_of(subscription: str) -> bytes:
    return digest(subscription.encode(), SUBSCRIPTION)
