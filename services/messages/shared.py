"""Maps that are copied at once: a copy shares each value until one of the two changes it.

With 100,000 publishers a copy of every set would hold the event loop for 100 ms and more; a copy of
the map alone takes 1 ms. A value that differs between two copies is another object, which shows
what has changed.
"""

from __future__ import annotations

from itertools import compress, islice
from operator import is_, is_not
from typing import Generic, Self, TypeVar

Value = TypeVar("Value")


class SharedMap(Generic[Value]):
    """Values by publisher, never changed in place while a copy shares them.

    Invariant: code that changes a value gets it from `of`, each time anew. Code that only reads may
    use `sets`, or keep a value: the value does not change any more once a copy was made.
    """

    __slots__ = ("_own", "sets")

    def __init__(self, sets: dict[int, Value] | None = None) -> None:
        self.sets: dict[int, Value] = sets if sets is not None else {}
        self._own: set[int] | None = None
        """Publishers whose value is shared with no copy; None: all publishers."""

    def _made(self) -> Value:
        """Returns an empty value."""
        raise NotImplementedError

    def _copied(self, value: Value) -> Value:
        """Returns a value with the same content that shares nothing."""
        raise NotImplementedError

    def of(self, publisher: int) -> Value:
        """Returns the publisher's value, to be changed; creates it where there is none."""
        found = self.sets.get(publisher)
        own = self._own
        if found is not None:
            if own is None or publisher in own:
                return found
            found = self._copied(found)
        else:
            found = self._made()
        self.sets[publisher] = found
        if own is not None:
            own.add(publisher)
        return found

    def get(self, publisher: int) -> Value | None:
        """Returns the publisher's value for reading; None: there is none."""
        return self.sets.get(publisher)

    def copy(self) -> Self:
        """Returns an independent map with the same content."""
        other = type(self)(self.sets.copy())
        other._own, self._own = set(), set()
        return other

    def changed_since(self, before: Self) -> list[int]:
        """Returns the publishers whose value differs from that in `before`, or that are in one of
        the two only. `before` must be a copy of this map, or both copies of one map; then no
        difference is missed."""
        mine, theirs = self.sets, before.sets
        if len(mine) >= len(theirs) and all(map(is_, mine, theirs)):
            # Nothing was removed: compares both maps by a walk that runs in C.
            changed = list(compress(theirs, map(is_not, mine.values(), theirs.values())))
            return changed + list(islice(mine, len(theirs), None))
        changed = [key for key, value in mine.items() if theirs.get(key) is not value]
        return changed + [key for key in theirs if key not in mine]
