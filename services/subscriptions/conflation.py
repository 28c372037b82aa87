"""Conflation: of all changes of a key within an interval a subscriber is given the last one
(behaviour.md 4.5).

The first change of a key begins the key's interval; at its end the key is given as it is then. All
keys of a conflator have one interval, so that they are due in the order in which their intervals
began: no key is waited for longer, and none is looked at before.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from typing import Generic, NamedTuple, TypeVar

Content = TypeVar("Content")

FLUSHED_AT_ONCE = 500
"""Most keys that one call returns; the next call returns the rest."""


class ConflatedChange(NamedTuple, Generic[Content]):
    """The result of a key's interval.

    Attributes:
        first_us: time of the first change of the interval.
        before: content that subscribers were given last; None: there was none, or the topic has no
            state.
        now: the content at the end; None: the key is gone.
        reason: reason of the last change, such as `deleted`.
        received_us: receive time of the first change; 0: unknown.
        first_join, last_join: numbers of the newest subscribers at the first and at the last
            change.
        seen: contents that subscribers found who joined between two changes, in order, each with
            the number of the newest of them.
    """

    key: bytes
    first_us: int
    before: Content | None
    now: Content | None
    reason: str
    received_us: int = 0
    first_join: int = 0
    last_join: int = 0
    seen: tuple[tuple[int, Content | None], ...] = ()

    def known_to(self, number: int) -> Content | None:
        """Returns the content that a subscriber knows, one that joined before the last change.

        Args:
            number: number with which it joined.
        """
        if number <= self.first_join:
            return self.before
        return next(content for last, content in self.seen if number <= last)


class _PendingKey(Generic[Content]):
    __slots__ = (
        "before",
        "first_join",
        "first_us",
        "last_join",
        "now",
        "reason",
        "received_us",
        "seen",
    )

    def __init__(
        self, first_us: int, before: Content | None, received_us: int, first_join: int
    ) -> None:
        self.first_us = first_us
        self.before = before
        self.now: Content | None = None
        self.reason = ""
        self.received_us = received_us
        self.first_join = self.last_join = first_join
        self.seen: tuple[tuple[int, Content | None], ...] = ()


class Conflator(Generic[Content]):
    """The keys that have changed and are not given yet, for all subscribers with the same topic,
    filter, interval and key.

    The content of a key before its first change is the content that subscribers were given last,
    because no change of the key was pending. So nothing is kept of a key between two intervals.

    A subscriber may join while changes are pending: it has the records as they are then. It is told
    of a key only if the key changes after that, and what it knows of the key is the content that it
    found.

    Owner: the subscriptions of an instance. Lifecycle: as long as it has a subscriber.

    Args:
        interval_us: length of the interval, in microseconds.
        size_of: memory of a content.

    Attributes:
        pending_bytes: memory of all that is pending.
        replaced: number of changes that were never given, because a later one came.
    """

    def __init__(self, interval_us: int, size_of: Callable[[Content], int] = lambda _: 0) -> None:
        self.interval_us = interval_us
        self._size_of = size_of
        self._pending: dict[bytes, _PendingKey[Content]] = {}
        self._order: deque[tuple[bytes, _PendingKey[Content]]] = deque()
        """The pending keys by the begin of their intervals, with some that were dropped."""
        self._joins = 0
        """Number of the newest subscriber."""
        self.pending_bytes = 0
        self.replaced = 0

    def __len__(self) -> int:
        return len(self._pending)

    def __contains__(self, key: bytes) -> bool:
        return key in self._pending

    def join(self) -> int:
        """Returns the number of a subscriber that joins now."""
        self._joins += 1
        return self._joins

    def change(
        self,
        key: bytes,
        before: Content | None,
        now: Content | None,
        now_us: int,
        reason: str = "",
        received_us: int = 0,
    ) -> None:
        """Takes a change of a key.

        Args:
            before: content before the change; None: the key was not there, or was outside of the
                filter, or the topic has no state.
            now: content after it; None: the key is gone.
            now_us: time by a clock that is never set back.
            received_us: receive time of the change.
        """
        entry = self._pending.get(key)
        joins = self._joins
        if entry is None:
            entry = self._pending[key] = _PendingKey(now_us, before, received_us, joins)
            self._order.append((key, entry))
            self.pending_bytes += self._bytes(before)
        else:
            self.replaced += 1
            if entry.last_join == joins:
                self.pending_bytes -= self._bytes(entry.now)
            else:
                # Those that joined meanwhile have found this content.
                entry.seen += ((joins, entry.now),)
                entry.last_join = joins
        entry.now = now
        entry.reason = reason
        self.pending_bytes += self._bytes(now)

    def _bytes(self, content: Content | None) -> int:
        return 0 if content is None else self._size_of(content)

    def drop(self, key: bytes) -> None:
        """Forgets the pending change of a key."""
        self.replaced += 1
        self._forget(self._pending.pop(key))

    def _forget(self, entry: _PendingKey[Content]) -> tuple[Content | None, ...]:
        """Stops counting the contents of an entry, and returns them."""
        contents = (entry.before, entry.now, *[content for _, content in entry.seen])
        self.pending_bytes -= sum(map(self._bytes, contents))
        return contents

    def _first(self) -> tuple[bytes, _PendingKey[Content]] | None:
        """Returns the key whose interval began first; None: none is pending."""
        order, pending = self._order, self._pending
        while order:
            key, entry = order[0]
            if pending.get(key) is entry:
                return key, entry
            order.popleft()
        return None

    @property
    def next_due_us(self) -> int | None:
        """Returns the time at which the next key is due; None: none is pending."""
        first = self._first()
        return None if first is None else first[1].first_us + self.interval_us

    def due(self, now_us: int, most: int = FLUSHED_AT_ONCE) -> list[ConflatedChange[Content]]:
        """Returns keys whose interval has ended, and forgets them. A key that came and went within
        its interval is not among them: nobody knew it."""
        found: list[ConflatedChange[Content]] = []
        while len(found) < most:
            first = self._first()
            if first is None or first[1].first_us + self.interval_us > now_us:
                break
            found += self._taken(*first)
        return found

    def all(self) -> list[ConflatedChange[Content]]:
        """Returns all keys that are pending, whether they are due or not, and forgets them."""
        found: list[ConflatedChange[Content]] = []
        while (first := self._first()) is not None:
            found += self._taken(*first)
        return found

    def _taken(self, key: bytes, entry: _PendingKey[Content]) -> Iterator[ConflatedChange[Content]]:
        self._order.popleft()
        del self._pending[key]
        contents = self._forget(entry)
        if all(content is None for content in contents):
            self.replaced += 1
            return
        yield _change_of(key, entry)

    def pending(self, key: bytes) -> ConflatedChange[Content] | None:
        """Returns the pending change of a key; None: there is none, so the topic has the content
        that subscribers were given last."""
        entry = self._pending.get(key)
        return None if entry is None else _change_of(key, entry)

    def changes(self) -> Iterator[ConflatedChange[Content]]:
        """Yields all pending changes, which stay pending."""
        for key, entry in self._pending.items():
            yield _change_of(key, entry)


def _change_of(key: bytes, entry: _PendingKey[Content]) -> ConflatedChange[Content]:
    return ConflatedChange(
        key,
        entry.first_us,
        entry.before,
        entry.now,
        entry.reason,
        entry.received_us,
        entry.first_join,
        entry.last_join,
        entry.seen,
    )
