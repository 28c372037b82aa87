"""Entries by key, in order: a dict whose keys can be found by ranges as well."""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import ItemsView, Iterator, ValuesView
from itertools import chain
from typing import Generic, TypeVar

Value = TypeVar("Value")

LEAF_KEYS_MAX = 1024
"""Number of keys above which a list is split in two: an insertion moves all keys behind it."""


class SortedEntries(Generic[Value]):
    """A dict of entries that also keeps its keys in order. Inserting, finding and removing a key
    cost about the same however many there are.

    Invariants: `_leaves` has all keys in order, each list sorted and not empty, except when there
    is only one list; `_firsts` has the first key of each list.
    """

    __slots__ = ("_entries", "_firsts", "_leaves")

    def __init__(self) -> None:
        self._entries: dict[bytes, Value] = {}
        self._leaves: list[list[bytes]] = [[]]
        self._firsts: list[bytes] = [b""]

    def __len__(self) -> int:
        return len(self._entries)

    def __iter__(self) -> Iterator[bytes]:
        """Yields the keys in order; none may be added or removed meanwhile."""
        return chain.from_iterable(self._leaves)

    def __contains__(self, key: bytes) -> bool:
        return key in self._entries

    def __getitem__(self, key: bytes) -> Value:
        return self._entries[key]

    def get(self, key: bytes) -> Value | None:
        """Returns the value of a key; None: there is none."""
        return self._entries.get(key)

    def items(self) -> ItemsView[bytes, Value]:
        """Returns all entries, in no order."""
        return self._entries.items()

    def values(self) -> ValuesView[Value]:
        """Returns all values, in no order."""
        return self._entries.values()

    @property
    def entries(self) -> dict[bytes, Value]:
        return self._entries

    def __setitem__(self, key: bytes, value: Value) -> None:
        if key not in self._entries:
            at = self._leaf_of(key)
            leaf = self._leaves[at]
            insort(leaf, key)
            if len(leaf) > LEAF_KEYS_MAX:
                half = len(leaf) // 2
                self._leaves.insert(at + 1, leaf[half:])
                self._firsts.insert(at + 1, leaf[half])
                del leaf[half:]
        self._entries[key] = value

    def pop(self, key: bytes) -> Value | None:
        """Removes a key and returns its value; None: there was none."""
        if key not in self._entries:
            return None
        at = self._leaf_of(key)
        leaf = self._leaves[at]
        del leaf[bisect_left(leaf, key)]
        if not leaf and len(self._leaves) > 1:
            del self._leaves[at], self._firsts[at]
            self._firsts[0] = b""
        return self._entries.pop(key)

    def _leaf_of(self, key: bytes) -> int:
        """Returns the index of the list that has the key, or is to have it. The first list covers
        all lower keys."""
        at = bisect_left(self._firsts, key)
        return at if at < len(self._firsts) and self._firsts[at] == key else at - 1 if at else 0

    def keys(self, start: bytes, end: bytes, most: int) -> list[bytes]:
        """Returns the first `most` keys from `start` on and before `end`, in order."""
        at = self._leaf_of(start)
        found: list[bytes] = []
        while at < len(self._leaves) and len(found) < most:
            leaf = self._leaves[at]
            begin, stop = bisect_left(leaf, start), bisect_left(leaf, end)
            found += leaf[begin : min(stop, begin + most - len(found))]
            if stop < len(leaf):
                break
            at += 1
        return found

    def last(self, start: bytes, end: bytes) -> bytes | None:
        """Returns the last key from `start` on and before `end`; None: there is none."""
        at = self._leaf_of(end)
        while at >= 0:
            leaf = self._leaves[at]
            place = bisect_left(leaf, end) - 1
            if place >= 0:
                return leaf[place] if leaf[place] >= start else None
            at -= 1
        return None
