"""The expiry times of a topic's records: one entry for each key, however often it is published."""

from __future__ import annotations

import heapq

STALE_MAX = 1_000
"""Entries that stand for nothing any more, beside as many as there are that do."""


class RecordExpirations:
    """See the file's docstring.

    Invariants: `_due` has, for each record that expires, an instant that is not behind its
        expiration, and `_order` has it as well. What `_order` has beside that stands for nothing.
    Owner: who folds the topic. Lifecycle: that of its state.
    """

    __slots__ = ("_due", "_order")

    def __init__(self) -> None:
        self._due: dict[bytes, int] = {}
        self._order: list[tuple[int, bytes]] = []

    def __len__(self) -> int:
        """Entries, those that stand for nothing among them."""
        return len(self._order)

    @property
    def first_us(self) -> int:
        """The time at which somebody has to look at the earliest; 0: never."""
        return self._order[0][0] if self._order else 0

    def note(self, key: bytes, expires_us: int) -> None:
        """A record expires then. Where that is later than was said before, it is looked at then,
        and `note` is due again."""
        due_us = self._due.get(key)
        if due_us is not None and due_us <= expires_us:
            return
        self._due[key] = expires_us
        heapq.heappush(self._order, (expires_us, key))
        if len(self._order) > 2 * len(self._due) + STALE_MAX:
            self._order = [(due_us, key) for key, due_us in self._due.items()]
            heapq.heapify(self._order)

    def forget(self, key: bytes) -> None:
        """There is no such record, or it does not expire."""
        self._due.pop(key, None)

    def take(self, now_us: int) -> bytes | None:
        """The key of a record that is to be looked at, no longer noted; None: of none yet. Each
        call costs about the same: where an entry stands for nothing, it is empty."""
        if not self._order or self._order[0][0] > now_us:
            return None
        due_us, key = heapq.heappop(self._order)
        if self._due.get(key) != due_us:
            return b""
        del self._due[key]
        return key
