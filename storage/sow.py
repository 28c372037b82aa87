"""The records of SOW topics on disk: one store for an instance, by topic and key.

The store has nothing that the journal does not have: each topic is the fold of the journal up to a
transaction id, which the store keeps and changes together with the records in one LMDB transaction.
Records that a crash takes from the store are folded again from the journal.

    key    b"\\0" + topic name                 u32 number of the topic, big-endian
    key    b"\\1" + number                     u64 transaction id up to which the topic is folded
    key    b"\\2" + number + u32 of a block    records with generated keys (storage/sow_blocks.py)
    key    b"\\3" + number + key of an entry   its value

services/sow/state.py defines the keys and values of entries. Records whose key the instance makes
of key fields are in blocks; records with other keys, histories, tombstones and counts are entries.
"""

from __future__ import annotations

import struct
import threading
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from heapq import merge
from itertools import islice, takewhile
from pathlib import Path
from typing import Any, Protocol

import lmdb
from xxhash import xxh3_128_digest

from raylay.services.errors import SowDamaged, StorageError
from raylay.services.messages.sorted_entries import SortedEntries
from raylay.storage.environment import CutShortError, LastingEnvironment, Transaction
from raylay.storage.files import fault_point
from raylay.storage.sow_blocks import (
    BLOCK,
    NUMBER,
    BlockPlan,
    Place,
    TopicBlocks,
    blocks_of,
    generated,
    generated_all,
    split_entries,
)
from raylay.storage.state import KEY_BYTES_MAX, explained, open_store

MAP_BYTES_DEFAULT = 64 * 1024**3
"""The address space of the file, in bytes: the most that all topics together may hold. Address
space costs neither memory nor disk."""
_DAMAGES = (
    CutShortError,
    lmdb.CorruptedError,
    lmdb.InvalidError,
    lmdb.PageNotFoundError,
    lmdb.VersionMismatchError,
)
CACHE_BYTES_DEFAULT = 64 * 1024 * 1024
ENTRY_BYTES = 160
"""The bytes that the cache counts for an entry in addition to its key and value."""
COMPACT_WAIT_S = 10.0
"""Time, in seconds, that queries have to end when a compacted file is to take the file's place."""
DROPPED_AT_ONCE = 1_000
READ_AT_ONCE = 1_000
BLOCKS_MOVED = 16
"""Number of blocks whose records a compaction moves at once."""
_NAME, _VALID, _ENTRY = b"\0", b"\1", b"\3"
_NUMBER = struct.Struct(">I")
_TXID = struct.Struct("<Q")
_FRONT_BYTES = 1 + _NUMBER.size

Changes = Mapping[bytes, bytes | None]
"""New values of entries by key; None removes an entry."""


class TopicStore(Protocol):
    """One topic of a SOW store, which a `SowState` reads as its `StoreReader`."""

    @property
    def txid(self) -> int:
        """The transaction id up to which the topic is folded; 0: the topic is new."""

    def get(self, key: bytes) -> bytes | None:
        """Returns the value of an entry; None when there is none."""

    def get_many(self, keys: Sequence[bytes]) -> list[bytes | None]:
        """Returns what `get` returns for each key."""

    def last(self, start: bytes, end: bytes) -> bytes | None:
        """Returns the last key from `start` to before `end`; None when there is none."""

    def scan(self, start: bytes, end: bytes) -> Iterator[tuple[bytes, bytes]]:
        """Yields (key, value) from `start` to before `end`, in the order of keys, as they are when
        the first pair is read. The caller exhausts or closes the iterator before it calls another
        method of the store."""

    def chunk(self, start: bytes, end: bytes, most: int) -> list[tuple[bytes, bytes]]:
        """Returns the first `most` pairs of `scan`."""


class SowStore(Protocol):
    """The SOW topics of an instance.

    Every `commit` is all or nothing, and on disk when it returns.
    """

    def topic(self, name: str) -> TopicStore:
        """Returns a topic, which is made if it is new.

        Raises:
            StorageError: the file cannot be used.
        """

    def commit(self, changes: Mapping[str, tuple[Changes, int]]) -> None:
        """Writes the changes of topics, each with the transaction id up to which the topic is then
        folded.

        Raises:
            StorageFull: no space; nothing was written.
            StorageError: the file cannot be used; nothing was written.
        """

    def drop(self, name: str) -> None:
        """Removes all entries of a topic, which is new afterwards (`txid` 0). A crash in between
        leaves a new topic with some of its entries; another `drop` removes these.

        Raises:
            StorageError: the file cannot be used.
        """

    def close(self) -> None:
        """Closes the store."""


class MemorySowStore:
    """A SowStore in memory: transient topics, the simulator, tests.

    Every `commit` counts as synced; `fail_next` is how a disk fails.
    """

    def __init__(self) -> None:
        self._topics: dict[str, MemoryTopic] = {}
        self._fail_next: Exception | None = None

    def topic(self, name: str) -> MemoryTopic:
        """Returns a topic; makes it where there is none."""
        _topic_key(name)
        return self._topics.setdefault(name, MemoryTopic())

    def commit(self, changes: Mapping[str, tuple[Changes, int]]) -> None:
        """Writes the changes of topics, all or none."""
        if self._fail_next is not None:
            error, self._fail_next = self._fail_next, None
            raise error
        for entries, _ in changes.values():
            for key in entries:
                _check(key)
        for name, (entries, txid) in changes.items():
            self.topic(name).take(entries, txid)

    def drop(self, name: str) -> None:
        self.topic(name).clear()

    def fail_next(self, error: Exception) -> None:
        """Makes the next `commit` raise this error and write nothing."""
        self._fail_next = error

    def crash(self) -> MemorySowStore:
        other = MemorySowStore()
        for name, topic in self._topics.items():
            other.topic(name).take(dict(topic.scan(b"", b"\xff")), topic.txid)
        return other

    def close(self) -> None:
        """Nothing to give back."""


class MemoryTopic:
    """One topic of a SOW store in memory."""

    def __init__(self) -> None:
        self._entries: SortedEntries[bytes] = SortedEntries()
        self._txid = 0

    @property
    def txid(self) -> int:
        """The transaction id up to which the topic is folded; 0: the topic is new."""
        return self._txid

    def get(self, key: bytes) -> bytes | None:
        return self._entries.get(key)

    def get_many(self, keys: Sequence[bytes]) -> list[bytes | None]:
        return list(map(self._entries.get, keys))

    def last(self, start: bytes, end: bytes) -> bytes | None:
        """Returns the last key from `start` to before `end`; None when there is none."""
        return self._entries.last(start, end)

    def scan(self, start: bytes, end: bytes) -> Iterator[tuple[bytes, bytes]]:
        """Yields (key, value) from `start` to before `end`, in the order of keys, as they are when
        the first pair is asked for."""
        yield from self.chunk(start, end, len(self._entries))

    def chunk(self, start: bytes, end: bytes, most: int) -> list[tuple[bytes, bytes]]:
        """Returns the first `most` pairs of `scan`."""
        return [(key, self._entries[key]) for key in self._entries.keys(start, end, most)]

    def take(self, entries: Changes, txid: int) -> None:
        """Writes changes of entries, and the transaction id up to which the topic is folded with
        them."""
        self._txid = txid
        for key, value in entries.items():
            if value is not None:
                self._entries[key] = bytes(value)
            else:
                self._entries.pop(key)

    def clear(self) -> None:
        self._entries = SortedEntries()
        self._txid = 0


class LmdbSowStore:
    """A SowStore in one LMDB file, with an index of the records in blocks, and a cache of the other
    entries that were read or written last.

        Invariants: a cached entry is equal to the entry on disk; the cache counts no more than
        `cache_bytes_max`. Each block that the index names is in the file, for every transaction
        that begins: a commit removes only blocks that the one before it has emptied.
    Owner: one process. One thread reads and one writes: no entry is read from the store while it is
    being written (`SowState` has it in memory then). A scan has a transaction of its own.

    Args:
        path: the path of the file.
        map_bytes: the bytes that the file may hold at most.
        cache_bytes_max: the limit of the cache; 0: no cache.
        loaded: called while the index of a topic is read, with the topic's name and the number of
            its records so far.

    Raises:
        StorageError: the file cannot be opened; the message names the file.
    """

    def __init__(
        self,
        path: str | Path,
        *,
        map_bytes: int = MAP_BYTES_DEFAULT,
        cache_bytes_max: int = CACHE_BYTES_DEFAULT,
        loaded: Callable[[str, int], None] = lambda _, __: None,
    ) -> None:
        self._path = Path(path)
        self._loaded = loaded
        self._map_bytes = map_bytes
        self.cache_bytes_max = cache_bytes_max
        self.cache_bytes = 0
        self._cache: OrderedDict[bytes, bytes] = OrderedDict()
        self._cache_lock = threading.Lock()
        self._index_lock = threading.Lock()
        """Guards the indexes, and the four attributes below."""
        self._held: Transaction | None = None
        """The read transaction that is kept open between two commits, so that the read of a record
        begins none."""
        self._held_transaction: Any = None
        self._views: dict[bytes, dict[int, Any]] = {}
        """Blocks as `_held` sees them, by topic and number."""
        self._may_hold = True
        """Whether a read transaction may stay open: not while the file is rewritten, or must be
        opened again after a failed write."""
        self._topics: dict[str, LmdbTopic] = {}
        self._file = LastingEnvironment(self._open)

    def _open(self) -> Any:
        try:
            return open_store(self._path, self._map_bytes)
        except StorageError as error:
            if isinstance(error.__cause__, _DAMAGES):
                raise _explained(error.__cause__, self._path) from error
            raise

    def topic(self, name: str) -> LmdbTopic:
        """Returns a topic, which is made if it is new.

        Raises:
            StorageError: the file cannot be used.
        """
        found = self._topics.get(name)
        if found is None:
            found = self._topics[name] = LmdbTopic(self, self._number(name))
            self._load(found, name)
        return found

    def _load(self, topic: LmdbTopic, name: str) -> None:
        try:
            with self._file.begin(buffers=True) as transaction:
                topic.blocks.load(
                    list(blocks_of(transaction, topic.number)),
                    lambda records: self._loaded(name, records),
                )
        except lmdb.Error as error:
            raise _explained(error, self._path) from error

    def _number(self, name: str) -> bytes:
        key = _topic_key(name)
        number = self.read(key)
        try:
            if number is None:
                with self._file.begin(write=True) as transaction, transaction.cursor() as cursor:
                    found = cursor.set_range(_NAME)
                    names = takewhile(_is_name, cursor.iternext(values=False)) if found else ()
                    number = _NUMBER.pack(sum(1 for _ in names))
                    transaction.put(key, number)
            return number
        except lmdb.Error as error:
            raise _explained(error, self._path) from error

    def commit(self, changes: Mapping[str, tuple[Changes, int]]) -> None:
        """Writes the changes of topics, each with the transaction id up to which the topic is then
        folded.

        Raises:
            StorageFull: no space; nothing was written.
            StorageError: the file cannot be used; nothing was written.
        """
        topics = [(self.topic(name), entries, txid) for name, (entries, txid) in changes.items()]
        for _, entries, _ in topics:
            for key in entries:
                _check(key)
        fault_point("sow.begin")
        self._write([(topic, txid, *self._planned(topic, each)) for topic, each, txid in topics])

    def _write(self, written: list[tuple[LmdbTopic, int, BlockPlan, Changes]]) -> None:
        try:
            with self._file.begin(write=True) as transaction:
                for topic, txid, plan, rest in written:
                    for key in sorted(rest):
                        value = rest[key]
                        if value is None:
                            transaction.delete(topic.front + key)
                        else:
                            transaction.put(topic.front + key, value)
                    for number in plan.removed:
                        transaction.delete(topic.block_key(number))
                    for number, block in plan.blocks.items():
                        transaction.put(topic.block_key(number), block)
                    transaction.put(_VALID + topic.number, _TXID.pack(txid))
        except lmdb.Error as error:
            self._let_go(may_hold=False)
            raise _explained(error, self._path) from error
        fault_point("sow.synced")
        self._let_go(may_hold=True)
        for topic, txid, plan, rest in written:
            topic.blocks.apply(plan, self._index_lock)
            for key, value in rest.items():
                self.remember(topic.front + key, value)
            topic.now_valid_for(txid)

    def _planned(
        self, topic: LmdbTopic, entries: Changes, moved: Iterable[int] = ()
    ) -> tuple[BlockPlan, Changes]:
        """Returns the changes of the topic's blocks, and the entries of the tree."""
        made, rest = split_entries(entries)
        try:
            with self._file.begin(buffers=True) as transaction:

                def read(number: int) -> Any:
                    return transaction.get(topic.block_key(number))

                return topic.blocks.plan(made, read, moved), rest
        except lmdb.Error as error:
            raise _explained(error, self._path) from error

    def _let_go(self, *, may_hold: bool) -> None:
        """Ends the read transaction that is kept open: it does not see what was written since.

        Args:
            may_hold: whether another one may be kept open.
        """
        with self._index_lock:
            self._may_hold = may_hold
            self._end_held()

    def _end_held(self) -> None:
        held, self._held, self._held_transaction = self._held, None, None
        self._views.clear()
        if held is not None:
            held.__exit__(None, None, None)

    def read_places(self, topic: LmdbTopic, places: Iterable[Place]) -> list[bytes]:
        """Returns values of a topic's blocks. To be called with the index locked.

        Raises:
            StorageError: the file cannot be used.
        """
        views, found = self._views.get(topic.number), []
        if views is None:
            views = self._views[topic.number] = {}
        try:
            for number, offset, length in places:
                view = views.get(number)
                if view is None:
                    view = views[number] = self._block(topic.block_key(number))
                found.append(bytes(view[offset : offset + length]))
            return found
        except lmdb.Error as error:
            raise _explained(error, self._path) from error
        finally:
            if not self._may_hold:
                self._end_held()

    def _block(self, key: bytes) -> Any:
        if self._held is None:
            held = self._file.begin(buffers=True)
            self._held_transaction, self._held = held.__enter__(), held
        block = self._held_transaction.get(key)
        if block is None:
            raise SowDamaged(f"{self._path} lacks a block of records", str(self._path))
        return block

    @property
    def index_lock(self) -> threading.Lock:
        return self._index_lock

    def drop(self, name: str) -> None:
        """Removes all entries of a topic, which is new afterwards.

        Raises:
            StorageError: the file cannot be used.
        """
        topic = self.topic(name)
        with self._cache_lock:
            self._cache.clear()
            self.cache_bytes = 0
        self._let_go(may_hold=True)
        topic.now_valid_for(0)
        topic.blocks = TopicBlocks()
        try:
            for front in (topic.front, topic.block_front):
                left = True
                while left:
                    with self._file.begin(write=True) as writing, writing.cursor() as cursor:
                        writing.delete(_VALID + topic.number)
                        left = cursor.set_range(front)
                        for _ in range(DROPPED_AT_ONCE):
                            left = left and cursor.key().startswith(front)
                            if not left:
                                break
                            left = cursor.delete()
        except lmdb.Error as error:
            raise _explained(error, self._path) from error

    def compact(self) -> tuple[int, int]:
        """Rewrites the file without the space that deleted and replaced records left. Nothing may
        be written meanwhile; entries can be read. Blocks.

        Returns:
            the bytes of the file before and after.

        Raises:
            StorageFull: no space for a second file; nothing was changed.
            StorageError: the file cannot be rewritten; nothing was changed.
        """
        before = self._path.stat().st_size
        for topic in list(self._topics.values()):
            self._move_records(topic)
        self._let_go(may_hold=False)
        try:
            return before, self._file.rewrite(self._path, COMPACT_WAIT_S)[1]
        except TimeoutError:
            raise StorageError(
                f"{self._path} is not compacted: queries read it for longer than "
                f"{COMPACT_WAIT_S:g} s; nothing was changed: try again"
            ) from None
        except (lmdb.Error, OSError) as error:
            raise _explained(error, self._path) from error
        finally:
            self._let_go(may_hold=True)

    def _move_records(self, topic: LmdbTopic) -> None:
        """Writes blocks with dead records anew, without them."""
        wasteful = topic.blocks.wasteful()
        # The last one only removes the blocks that the one before it has emptied.
        for first in range(0, len(wasteful) + BLOCKS_MOVED, BLOCKS_MOVED):
            part = wasteful[first : first + BLOCKS_MOVED]
            self._write([(topic, topic.txid, *self._planned(topic, {}, part))])

    def value(self, key: bytes) -> bytes | None:
        """Returns the value of a key of the file, from the cache if it is there; None when there is
        none.

        Raises:
            StorageError: the file cannot be used.
        """
        with self._cache_lock:
            found = self._cache.get(key)
            if found is not None:
                self._cache.move_to_end(key)
                return found
        value = self.read(key)
        if value is not None:
            self.remember(key, value)
        return value

    def read(self, key: bytes) -> bytes | None:
        """The value of a key of the file.

        Raises:
            StorageError: the file cannot be used.
        """
        try:
            with self._file.begin() as transaction:
                value: bytes | None = transaction.get(key)
                return value
        except lmdb.Error as error:
            raise _explained(error, self._path) from error

    def remember(self, key: bytes, value: bytes | None) -> None:
        """Puts an entry that is on disk into the cache, and evicts the least recently used entries.
        A `value` of None removes the entry from the cache."""
        with self._cache_lock:
            self._remember(key, value)

    def _remember(self, key: bytes, value: bytes | None) -> None:
        held = self._cache.pop(key, None)
        if held is not None:
            self.cache_bytes -= len(key) + len(held) + ENTRY_BYTES
        size_bytes = 0 if value is None else len(key) + len(value) + ENTRY_BYTES
        if value is None or size_bytes > self.cache_bytes_max:
            return
        self._cache[key] = value
        self.cache_bytes += size_bytes
        while self.cache_bytes > self.cache_bytes_max:
            oldest, gone = self._cache.popitem(last=False)
            self.cache_bytes -= len(oldest) + len(gone) + ENTRY_BYTES

    def last(self, start: bytes, end: bytes) -> bytes | None:
        """Returns the last key of the file from `start` to before `end`; None when there is none.

        Raises:
            StorageError: the file cannot be used.
        """
        try:
            with self._file.begin() as transaction, transaction.cursor() as cursor:
                found = cursor.prev() if cursor.set_range(end) else cursor.last()
                key = bytes(cursor.key())
                return key if found and key >= start else None
        except lmdb.Error as error:
            raise _explained(error, self._path) from error

    def scan(self, topic: LmdbTopic, start: bytes, end: bytes) -> Iterator[tuple[bytes, bytes]]:
        """Yields (key, value) of a topic from `start` to before `end`, all of one transaction.

        Raises:
            StorageError: the file cannot be used.
        """
        try:
            with self._file.begin(buffers=True) as transaction, transaction.cursor() as cursor:
                yield from merge(
                    scanned_tree(cursor, topic.front, start, end),
                    scanned_blocks(transaction, topic.number, topic.blocks, start, end),
                )
        except lmdb.Error as error:
            raise _explained(error, self._path) from error

    def chunk(self, start: bytes, end: bytes, most: int) -> list[tuple[bytes, bytes]]:
        """Returns the first `most` entries of the tree from `start` to before `end`, with the
        topic's prefix removed from their keys.

        Raises:
            StorageError: the file cannot be used.
        """
        try:
            with self._file.begin() as transaction, transaction.cursor() as cursor:
                if not cursor.set_range(start) or cursor.key() >= end:
                    return []
                entries = list(islice(cursor.iternext(), most))
                if entries[-1][0] >= end:
                    entries = [each for each in entries if each[0] < end]
                return [(key[_FRONT_BYTES:], value) for key, value in entries]
        except lmdb.Error as error:
            raise _explained(error, self._path) from error

    def close(self) -> None:
        self._let_go(may_hold=False)
        self._file.close()


def scanned_tree(
    cursor: Any, front: bytes, start: bytes, end: bytes
) -> Iterator[tuple[bytes, bytes]]:
    """Yields (key, value) of the entries of a topic from `start` to before `end` that are in the
    tree."""
    found = cursor.set_range(front + start)
    while found:
        key = bytes(cursor.key())
        if key >= front + end:
            return
        yield key[len(front) :], bytes(cursor.value())
        found = cursor.next()


def scanned_blocks(
    transaction: Any, number: bytes, blocks: TopicBlocks, start: bytes, end: bytes
) -> Iterator[tuple[bytes, bytes]]:
    """Yields (key, value) of the records of a topic from `start` to before `end` that are in
    blocks.

    Args:
        transaction: a read transaction with buffers.
    """
    views: dict[int, Any] = {}
    most = READ_AT_ONCE
    while True:
        keys, places = blocks.index.entries(start, end, most)
        for key, (block, offset, length) in zip(keys, places, strict=True):
            view = views.get(block)
            if view is None:
                view = views[block] = transaction.get(BLOCK + number + NUMBER.pack(block))
            yield key, bytes(view[offset : offset + length])
        if len(keys) < most:
            return
        start = keys[-1] + b"\0"


class LmdbTopic:
    """One topic of a SOW store in LMDB.

    Args:
        store: the store of the topic.
        number: the number of the topic in the store, encoded.
    """

    def __init__(self, store: LmdbSowStore, number: bytes) -> None:
        self._store = store
        self.number = number
        self.front = _ENTRY + number
        """The prefix of all keys of the topic's entries in the file."""
        self.block_front = BLOCK + number
        """The prefix of the keys of the topic's blocks in the file."""
        self.blocks = TopicBlocks()
        held = store.read(_VALID + number)
        if held is not None and len(held) != _TXID.size:
            raise SowDamaged(f"the SOW store says no transaction but {held[:20]!r}")
        self._txid = 0 if held is None else int(_TXID.unpack(held)[0])

    @property
    def txid(self) -> int:
        """The transaction id up to which the topic is folded; 0: the topic is new."""
        return self._txid

    def now_valid_for(self, txid: int) -> None:
        """Notes that the topic on disk is folded up to this transaction id; 0: it was dropped."""
        self._txid = txid

    def block_key(self, number: int) -> bytes:
        return self.block_front + NUMBER.pack(number)

    def get(self, key: bytes) -> bytes | None:
        digest = generated(key)
        if digest is None:
            return self._store.value(self.front + key)
        with self._store.index_lock:
            place = self.blocks.index.find(digest)
            return None if place is None else self._store.read_places(self, (place,))[0]

    def get_many(self, keys: Sequence[bytes]) -> list[bytes | None]:
        """Returns what `get` returns for each key."""
        digests = generated_all(keys)
        if digests is None:
            return list(map(self.get, keys))
        with self._store.index_lock:
            places = list(map(self.blocks.index.find, digests))
            found = self._store.read_places(self, [each for each in places if each is not None])
        if not found:
            return [None] * len(keys)
        values = iter(found)
        return [None if each is None else next(values) for each in places]

    def last(self, start: bytes, end: bytes) -> bytes | None:
        """Returns the last key from `start` to before `end`; None when there is none."""
        found = self._store.last(self.front + start, self.front + end)
        with self._store.index_lock:
            other = self.blocks.index.last(start, end)
        if found is None:
            return other
        key = found[_FRONT_BYTES:]
        return key if other is None else max(key, other)

    def scan(self, start: bytes, end: bytes) -> Iterator[tuple[bytes, bytes]]:
        """Yields (key, value) from `start` to before `end`, in the order of keys, as they are when
        the first pair is asked for."""
        return self._store.scan(self, start, end)

    def chunk(self, start: bytes, end: bytes, most: int) -> list[tuple[bytes, bytes]]:
        """Returns the first `most` pairs of `scan`."""
        found = self._store.chunk(self.front + start, self.front + end, most)
        with self._store.index_lock:
            keys, places = self.blocks.index.entries(start, end, most)
            if not keys:
                return found
            made = list(zip(keys, self._store.read_places(self, places), strict=True))
        return sorted(found + made)[:most] if found else made


def valid_txids(transaction: Any) -> Iterator[int]:
    """Yields the transaction id up to which each topic of a store is folded."""
    with transaction.cursor() as cursor:
        there = cursor.set_range(_VALID)
        while there and bytes(cursor.key()).startswith(_VALID):
            yield int(_TXID.unpack(cursor.value())[0])
            there = cursor.next()


def _explained(error: Exception, path: Path) -> StorageError:
    """Returns the `StorageError` for an error, as `explained` does, but a `SowDamaged` for damage:
    only then is the store made anew."""
    if isinstance(error, _DAMAGES):
        return SowDamaged(f"{path} is damaged: {error}", str(path))
    return explained(error, path)


def _topic_key(name: str) -> bytes:
    encoded = name.encode("utf-8", "surrogateescape")
    if len(encoded) < KEY_BYTES_MAX:
        return _NAME + encoded
    return _NAME + b"\xff" + xxh3_128_digest(encoded)


def _is_name(key: bytes) -> bool:
    return key.startswith(_NAME)


def _check(key: bytes) -> None:
    if not 1 <= len(key) <= KEY_BYTES_MAX - _FRONT_BYTES:
        raise ValueError(
            f"a key has 1 to {KEY_BYTES_MAX - _FRONT_BYTES} bytes, this one {len(key)}"
        )
