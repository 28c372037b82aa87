"""The blocks in which a SOW store keeps the records of generated keys, and the index that finds
them.

A generated key is a digest, so its place among the others is random. In a tree, each new record
would therefore rewrite a page of its own, 4 KiB for 400 bytes. Instead, each commit appends its
records together, as blocks of about a mebibyte, and memory has an index of 28 bytes a record:

    u32 number of records, u32 number of kills, both little-endian
    16 bytes for each record: its key
    u32 for each record: the length of its value
    u32, u32 for each kill: a block, and the offset of a value in it that is dead from now on;
        offset 0: the whole block is dead
    the values, one after the other; an empty one takes a byte, so that each has an offset of its
        own

A block is never changed. The record that replaces or deletes another one kills it. The index is
read from the heads of the blocks at the start: a record that no block kills is a present one.
Blocks that are small or mostly dead are copied into a new one, which kills them; the next commit
removes them.
"""

from __future__ import annotations

import struct
from binascii import hexlify, unhexlify
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from heapq import nsmallest
from itertools import accumulate
from typing import Any, NamedTuple

from raylay.services.errors import SowDamaged

BLOCK = b"\2"
"""Prefix of the blocks' keys in the file; the numbers of the topic and of the block follow. They
are before the entries, so that no reader of entries runs into them."""
NUMBER = struct.Struct(">I")
BLOCK_BYTES = 1024 * 1024
"""Bytes of values from which a commit begins another block."""
SMALL_BLOCKS_MAX, MERGED_AT_ONCE = 64, 32
"""Number of blocks of less than half of `BLOCK_BYTES` above which a commit merges the smallest of
them, and how many."""
DEAD_BYTES_MIN = 16 * 1024 * 1024
"""Dead bytes that a topic may have in addition to as many as it has live ones."""
BUCKET_RECORDS_MAX = 64
"""Number of keys above which a bucket of the index is split in two."""
APPLIED_AT_ONCE = 500
"""Number of keys for which the index is locked while a commit changes it."""

Place = tuple[int, int, int]
"""Block, offset in it, and length of a value."""
_PLACE = struct.Struct("<III")
_ENTRY = struct.Struct("<16sIII")
_KILL = struct.Struct("<II")
_HEAD = struct.Struct("<II")
_KEY_BYTES, _ENTRY_BYTES = 16, 28
_RECORD_BYTES = 20
"""Bytes of a record in the head of its block."""
_VALUE, _VALUE_END = b"v", b"w"
_STORED_BYTES = 1 + 2 * _KEY_BYTES


def generated(key: bytes) -> bytes | None:
    """Returns the digest in the entry key of a record; None: the entry has another kind of key and
    is kept in the tree."""
    if len(key) != _STORED_BYTES or key[:1] != _VALUE:
        return None
    text = key[1:]
    try:
        found = unhexlify(text)
    except ValueError:
        return None
    return found if hexlify(found) == text else None


def generated_all(keys: Sequence[bytes]) -> list[bytes] | None:
    """Returns the digests in the entry keys of records; None: some have another kind of key."""
    text = b"".join(keys).replace(_VALUE, b"")
    if len(text) != 2 * _KEY_BYTES * len(keys):
        return None
    try:
        joined = unhexlify(text)
    except ValueError:
        return None
    # No digest has the letter that begins a key, and as many of them are gone as there are keys.
    is_each = set(map(len, keys)) == {_STORED_BYTES} and {key[0] for key in keys} == set(_VALUE)
    if not is_each or hexlify(joined) != text:
        return None
    return [joined[at : at + _KEY_BYTES] for at in range(0, len(joined), _KEY_BYTES)]


def split_entries(
    entries: Mapping[bytes, bytes | None],
) -> tuple[dict[bytes, bytes | None], Mapping[bytes, bytes | None]]:
    """Returns the entries of records with generated keys, by digest, and all others."""
    keys = [key for key in entries if len(key) == _STORED_BYTES and key[:1] == _VALUE]
    if not keys:
        return {}, entries
    digests = generated_all(keys)
    if digests is not None:
        made = dict(zip(digests, map(entries.__getitem__, keys), strict=True))
        if len(keys) == len(entries):
            return made, {}
        return made, {key: entries[key] for key in entries.keys() - set(keys)}
    made, rest = {}, {}
    for key, value in entries.items():
        digest = generated(key)
        if digest is None:
            rest[key] = value
        else:
            made[digest] = value
    return made, rest


class KeyIndex:
    """The places of values by the digests of their keys, in order.

    Invariants: `_firsts` ascends, and a bucket has the keys from its first on and before the next
        bucket's; the entries of a bucket are in no order. A bucket that was split is empty.
    """

    __slots__ = ("_buckets", "_firsts", "count")

    def __init__(self) -> None:
        self._firsts: list[bytes] = [b""]
        self._buckets: list[bytearray] = [bytearray()]
        self.count = 0
        """Number of keys."""

    def find(self, key: bytes) -> Place | None:
        bucket, at = self.locate(key)
        if at < 0:
            return None
        block, offset, length = _PLACE.unpack_from(bucket, at + _KEY_BYTES)
        return block, offset, length

    def locate(self, key: bytes) -> tuple[bytearray, int]:
        """Returns the bucket that has the key, or is to have it, and the key's offset in it; below
        0: it has none."""
        bucket = self._buckets[bisect_right(self._firsts, key) - 1]
        at = bucket.find(key)
        while at > 0 and at % _ENTRY_BYTES:
            at = bucket.find(key, at + 1)
        return bucket, at

    def put(self, key: bytes, place: bytes, bucket: bytearray | None = None, at: int = -1) -> None:
        """Sets the place of a key.

        Args:
            place: the encoded place.
            bucket, at: where `locate` found the key; the index may have changed since.
        """
        if not bucket or (at >= 0 and bucket[at : at + _KEY_BYTES] != key):
            bucket, at = self.locate(key)
        if at >= 0:
            bucket[at + _KEY_BYTES : at + _ENTRY_BYTES] = place
            return
        bucket += key
        bucket += place
        self.count += 1
        if len(bucket) > BUCKET_RECORDS_MAX * _ENTRY_BYTES:
            self._split(bisect_right(self._firsts, key) - 1)

    def _split(self, number: int) -> None:
        bucket = self._buckets[number]
        entries = sorted(
            bytes(bucket[at : at + _ENTRY_BYTES]) for at in range(0, len(bucket), _ENTRY_BYTES)
        )
        half = len(entries) // 2
        self._firsts.insert(number + 1, entries[half][:_KEY_BYTES])
        self._buckets[number : number + 1] = (
            bytearray(b"".join(entries[:half])),
            bytearray(b"".join(entries[half:])),
        )
        bucket.clear()

    def remove(self, key: bytes) -> None:
        bucket, at = self.locate(key)
        if at >= 0:
            bucket[at : at + _ENTRY_BYTES] = bucket[-_ENTRY_BYTES:]
            del bucket[-_ENTRY_BYTES:]
            self.count -= 1

    def entries(self, start: bytes, end: bytes, most: int) -> tuple[list[bytes], list[Place]]:
        """Returns the first `most` keys of entries from `start` on and before `end`, in order, and
        their places."""
        if start >= _VALUE_END or end <= _VALUE:
            return [], []
        number = bisect_right(self._firsts, _lowest(start)) - 1
        # The first bucket also has keys before `start`.
        wanted = most + len(self._buckets[number]) // _ENTRY_BYTES
        rows: list[tuple[bytes, int, int, int]] = []
        for at in range(number, len(self._buckets)):
            rows += sorted(_ENTRY.iter_unpack(self._buckets[at]))
            if len(rows) >= wanted or (rows and _VALUE + hexlify(rows[-1][0]) >= end):
                break
        if not rows:
            return [], []
        digests = b"".join([row[0] for row in rows])
        text = _VALUE + hexlify(digests, _VALUE, _KEY_BYTES)
        keys = [text[at : at + _STORED_BYTES] for at in range(0, len(text), _STORED_BYTES)]
        low = bisect_left(keys, start)
        high = min(bisect_left(keys, end), low + most)
        return keys[low:high], [row[1:] for row in rows[low:high]]

    def last(self, start: bytes, end: bytes) -> bytes | None:
        """Returns the last key of an entry from `start` on and before `end`; None: there is
        none."""
        if start >= _VALUE_END or end <= _VALUE:
            return None
        number = len(self._firsts) - 1
        if end < _VALUE_END:
            # The digests before `end` that begin as it does are in the bucket of their beginning,
            # or in a later one.
            number = bisect_right(self._firsts, _lowest(end) + b"\xff" * _KEY_BYTES) - 1
        while number >= 0:
            keys: list[bytes] = [
                b"v" + key.hex().encode() for key, *_ in _ENTRY.iter_unpack(self._buckets[number])
            ]
            within: list[bytes] = [key for key in keys if start <= key < end]
            if within:
                return max(within)
            if keys and min(keys) < start:
                return None
            number -= 1
        return None


def _lowest(start: bytes) -> bytes:
    """Returns a digest, or the beginning of one, from which on all keys lie that are not below
    `start`."""
    text = start[1:_STORED_BYTES]
    count = 0
    while count < len(text) and text[count] in b"0123456789abcdef":
        count += 1
    return bytes.fromhex(text[: count - count % 2].decode())


class BlockHead(NamedTuple):
    """The head of a block: its keys, the lengths of its values, the offset of the first one, and
    the kills."""

    keys: list[bytes]
    lengths: tuple[int, ...]
    values_at: int
    kills: list[tuple[int, int]]

    def offsets(self) -> Iterator[int]:
        """Returns the offsets of the values, and the length of the block."""
        return _offsets(self.lengths, self.values_at)


def _offsets(lengths: Sequence[int], begin: int) -> Iterator[int]:
    return accumulate((length or 1 for length in lengths), initial=begin)


def read_head(block: Any) -> BlockHead:
    """Reads the head of a block.

    Raises:
        SowDamaged: the bytes are no block.
    """
    try:
        count, killed = _HEAD.unpack_from(block)
        lengths_at = _HEAD.size + _KEY_BYTES * count
        kills_at = lengths_at + 4 * count
        values_at = kills_at + _KILL.size * killed
        if values_at > len(block):
            raise SowDamaged("a block of the SOW store is cut short")
        keys = bytes(block[_HEAD.size : lengths_at])
        lengths = struct.unpack_from(f"<{count}I", block, lengths_at)
        kills = list(_KILL.iter_unpack(bytes(block[kills_at:values_at])))
    except struct.error:
        raise SowDamaged("a block of the SOW store is cut short") from None
    if values_at + sum(lengths) + lengths.count(0) != len(block):
        raise SowDamaged("a block of the SOW store has lengths that do not fit")
    digests = [keys[at : at + _KEY_BYTES] for at in range(0, len(keys), _KEY_BYTES)]
    return BlockHead(digests, lengths, values_at, kills)


class BlockPlan(NamedTuple):
    """The changes of a commit to a topic's blocks.

    Attributes:
        removed: numbers of the blocks to remove, which an earlier commit has killed.
        blocks: the new blocks, by number.
        puts: key and place of each record in them, with what `KeyIndex.locate` found.
        deleted: keys that are deleted.
        dead: bytes that are dead from now on, by block.
        killed: blocks that are dead from now on.
        live: bytes of the records in each new block.
    """

    removed: list[int]
    blocks: dict[int, bytes]
    puts: list[tuple[bytes, bytes, bytearray | None, int]]
    deleted: list[bytes]
    dead: dict[int, int]
    killed: set[int]
    live: dict[int, int]


class TopicBlocks:
    """The blocks of one topic, and their index.

    Invariant: `live_bytes` has every block that is not dead as a whole, with the bytes of its
        present records; `size_bytes` its length.
    Owner: the store; `load` and `plan` on the thread that writes.
    """

    def __init__(self) -> None:
        self.index = KeyIndex()
        self.live_bytes: dict[int, int] = {}
        self.size_bytes: dict[int, int] = {}
        self._dead_blocks: list[int] = []
        self._next = 1

    def load(
        self, blocks: Iterable[tuple[int, Any]], loaded: Callable[[int], None] = lambda _: None
    ) -> None:
        """Reads the index from the blocks.

        Args:
            blocks: number and bytes of each block, in order; iterated twice.
            loaded: called with the number of records after each block.

        Raises:
            SowDamaged: the bytes are no block.
        """
        killed: dict[int, set[int]] = {}
        for number, block in blocks:
            self._next = number + 1
            for gone, offset in read_head(block).kills:
                killed.setdefault(gone, set()).add(offset)
        index = self.index
        for number, block in blocks:
            dead = killed.get(number, ())
            if 0 in dead:
                self._dead_blocks.append(number)
                continue
            head = read_head(block)
            live_bytes = 0
            for key, offset, length in zip(head.keys, head.offsets(), head.lengths, strict=False):
                if offset not in dead:
                    index.put(key, _PLACE.pack(number, offset, length))
                    live_bytes += length + _RECORD_BYTES
            self.live_bytes[number] = live_bytes
            self.size_bytes[number] = len(block)
            loaded(index.count)

    def wasteful(self) -> list[int]:
        """Returns the numbers of the blocks that have dead bytes, in order."""
        return [
            number
            for number, size_bytes in sorted(self.size_bytes.items())
            if self.live_bytes[number] + _HEAD.size < size_bytes
        ]

    def plan(
        self,
        entries: Mapping[bytes, bytes | None],
        read: Callable[[int], Any],
        moved: Iterable[int] = (),
    ) -> BlockPlan:
        """Returns the changes that write these entries.

        Args:
            entries: new values by digest; None removes a record.
            read: returns the bytes of a block.
            moved: numbers of blocks whose present records are to be written anew in any case.
        """
        locate = self.index.locate
        dead: dict[int, int] = {}
        kills: list[tuple[int, int]] = []
        deleted: list[bytes] = []
        records: list[tuple[bytes, Any, bytearray | None, int]] = []
        for key in sorted(entries):
            bucket, at = locate(key)
            if at >= 0:
                block, offset, length = _PLACE.unpack_from(bucket, at + _KEY_BYTES)
                kills.append((block, offset))
                dead[block] = dead.get(block, 0) + length + _RECORD_BYTES
            value = entries[key]
            if value is not None:
                records.append((key, value, bucket, at))
            elif at >= 0:
                deleted.append(key)
        killed = self._victims(dead).union(each for each in moved if each in self.live_bytes)
        for number in sorted(killed):
            records += self._moved(number, entries, read, kills)
        gone = killed.union(self._dead_blocks)
        kills = [each for each in kills if each[0] not in gone] + [(each, 0) for each in killed]
        if not records and not kills:
            return BlockPlan(self._dead_blocks, {}, [], deleted, dead, killed, {})
        blocks, puts, sizes = self._packed(records, kills)
        return BlockPlan(self._dead_blocks, blocks, puts, deleted, dead, killed, sizes)

    def _victims(self, dead: Mapping[int, int]) -> set[int]:
        """Returns the blocks whose present records are to be written anew."""
        live = {number: held - dead.get(number, 0) for number, held in self.live_bytes.items()}
        found = {number for number, held in live.items() if held <= 0}
        small = [n for n, held in self.size_bytes.items() if held < BLOCK_BYTES // 2]
        if len(small) > SMALL_BLOCKS_MAX:
            found.update(nsmallest(MERGED_AT_ONCE, small, key=self.size_bytes.__getitem__))
        live_sum = sum(live.values())
        surplus = sum(self.size_bytes.values()) - 2 * live_sum - DEAD_BYTES_MIN
        if surplus > 0:
            # As many again as there are dead ones: what is copied frees at least as much.
            for number in sorted(live, key=lambda each: live[each] / self.size_bytes[each]):
                if surplus <= 0:
                    break
                found.add(number)
                surplus -= self.size_bytes[number] - live[number]
        return found

    def _moved(
        self,
        number: int,
        entries: Mapping[bytes, bytes | None],
        read: Callable[[int], Any],
        kills: list[tuple[int, int]],
    ) -> Iterator[tuple[bytes, Any, bytearray | None, int]]:
        """Yields the present records of a block that no entry changes, and adds its kills of blocks
        that still exist to `kills`."""
        block = read(number)
        head = read_head(block)
        kills += [each for each in head.kills if each[0] in self.live_bytes]
        for key, offset, length in zip(head.keys, head.offsets(), head.lengths, strict=False):
            if key in entries:
                continue
            bucket, at = self.index.locate(key)
            if at >= 0 and _PLACE.unpack_from(bucket, at + _KEY_BYTES)[:2] == (number, offset):
                yield key, bytes(block[offset : offset + length]), bucket, at

    def _packed(
        self,
        records: list[tuple[bytes, Any, bytearray | None, int]],
        kills: list[tuple[int, int]],
    ) -> tuple[dict[int, bytes], list[tuple[bytes, bytes, bytearray | None, int]], dict[int, int]]:
        """Returns the blocks, the places of the records, and the bytes of each block's records."""
        blocks: dict[int, bytes] = {}
        sizes: dict[int, int] = {}
        puts: list[tuple[bytes, bytes, bytearray | None, int]] = []
        number, at = self._next, 0
        while at < len(records) or not blocks:
            end, size_bytes = at, 0
            while end < len(records) and size_bytes < BLOCK_BYTES:
                size_bytes += len(records[end][1])
                end += 1
            part = records[at:end]
            values = [each[1] for each in part]
            lengths = list(map(len, values))
            head = _HEAD.size + _RECORD_BYTES * len(part) + _KILL.size * len(kills)
            blocks[number] = b"".join(
                (
                    _HEAD.pack(len(part), len(kills)),
                    *[each[0] for each in part],
                    struct.pack(f"<{len(part)}I", *lengths),
                    *[_KILL.pack(*each) for each in kills],
                    *[value or b"\0" for value in values],
                )
            )
            sizes[number] = sum(lengths) + _RECORD_BYTES * len(part)
            offsets = _offsets(lengths, head)
            puts += [
                (key, _PLACE.pack(number, offset, length), bucket, place)
                for (key, _, bucket, place), offset, length in zip(
                    part, offsets, lengths, strict=False
                )
            ]
            number, at, kills = number + 1, end, []
        return blocks, puts, sizes

    def apply(self, plan: BlockPlan, locked: AbstractContextManager[object]) -> None:
        """Changes the index as the file was changed.

        Args:
            locked: entered while the index is changed, for some records at a time.
        """
        index, puts = self.index, plan.puts
        for first in range(0, len(puts), APPLIED_AT_ONCE):
            with locked:
                for key, place, bucket, at in puts[first : first + APPLIED_AT_ONCE]:
                    index.put(key, place, bucket, at)
        with locked:
            for key in plan.deleted:
                index.remove(key)
        for number, size_bytes in plan.dead.items():
            self.live_bytes[number] -= size_bytes
        for number in plan.killed:
            del self.live_bytes[number], self.size_bytes[number]
        for number, block in plan.blocks.items():
            self.size_bytes[number], self.live_bytes[number] = len(block), plan.live[number]
            self._next = number + 1
        self._dead_blocks = list(plan.killed)


def blocks_of(transaction: Any, number: bytes) -> Iterator[tuple[int, Any]]:
    """Yields the number and the bytes of each block of a topic, in order.

    Args:
        transaction: a read transaction with buffers, or with bytes.
        number: number of the topic in the store, encoded.
    """
    front = BLOCK + number
    with transaction.cursor() as cursor:
        found = cursor.set_range(front)
        while found and bytes(cursor.key()[: len(front)]) == front:
            yield int(NUMBER.unpack_from(cursor.key(), len(front))[0]), cursor.value()
            found = cursor.next()
