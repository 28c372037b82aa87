"""Entries by key, in order: a dict whose keys can be found by ranges as well."""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import ItemsView, Iterator, Mapping, ValuesView
from itertools import chain
from typing import Generic, TypeVar

Value = TypeVar("Value")

LEAF_KEYS_MAX = 1024
"""Number of keys above which a list is split in two: an insertion moves all keys behind it."""


class SortedEntries(Generic[Value]):
    """A dict of entries that also keeps its keys in order. Inserting, finding and removing a key
    cost about the same however many there are.

    Args:
        added_max: number of new keys that may wait to be put in their places until somebody asks
            for a range, who then waits for that, about a microsecond for each. A dict of which
            nobody asks a range costs little more than a dict.

    Invariants: `_leaves` has all keys but those of `_added` in order, each list sorted and not
    empty, except when there is only one list; `_firsts` has the first key of each list.
    """

    __slots__ = ("_added", "_added_max", "_entries", "_firsts", "_leaves")

    def __init__(self, added_max: int = 0) -> None:
        self._added_max = added_max
        self._entries: dict[bytes, Value] = {}
        self._leaves: list[list[bytes]] = [[]]
        self._firsts: list[bytes] = [b""]
        self._added: list[bytes] = []

    def __len__(self) -> int:
        return len(self._entries)

    def __iter__(self) -> Iterator[bytes]:
        """Yields the keys in order; none may be added or removed meanwhile."""
        self._order()
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
            self._added.append(key)
            if len(self._added) > self._added_max:
                self._order()
        self._entries[key] = value

    def update(self, entries: Mapping[bytes, Value]) -> None:
        """Sets many entries."""
        held = self._entries
        self._added += [key for key in entries if key not in held]
        held.update(entries)
        if len(self._added) > self._added_max:
            self._order()

    def _order(self) -> None:
        """Puts the added keys in their places."""
        added = self._added
        if not added:
            return
        self._added = []
        if 4 * len(added) > len(self._entries):
            # Merging two sorted lists is a matter of one pass.
            keys = [*chain.from_iterable(self._leaves), *sorted(added)]
            keys.sort()
            half = LEAF_KEYS_MAX // 2
            self._leaves = [keys[at : at + half] for at in range(0, len(keys), half)]
            self._firsts = [b"", *[leaf[0] for leaf in self._leaves[1:]]]
            return
        for key in added:
            at = self._leaf_of(key)
            leaf = self._leaves[at]
            insort(leaf, key)
            if len(leaf) > LEAF_KEYS_MAX:
                half = len(leaf) // 2
                self._leaves.insert(at + 1, leaf[half:])
                self._firsts.insert(at + 1, leaf[half])
                del leaf[half:]

    def pop(self, key: bytes) -> Value | None:
        """Removes a key and returns its value; None: there was none."""
        if key not in self._entries:
            return None
        self._order()
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
        self._order()
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
        self._order()
        at = self._leaf_of(end)
        while at >= 0:
            leaf = self._leaves[at]
            place = bisect_left(leaf, end) - 1
            if place >= 0:
                return leaf[place] if leaf[place] >= start else None
            at -= 1
        return None
