"""The expiry times of a topic's records: one entry for each key, however often it is published."""

from __future__ import annotations

import heapq

STALE_MAX = 1_000
"""Number of stale entries that are kept, in addition to as many as there are valid ones."""


class RecordExpirations:
    """The expiry times of a topic's records.

    Invariants: for each record that expires, `_due` has an instant not later than its expiration,
    and `_order` has the same instant. Other entries of `_order` are stale.
    Owner: the part that folds the topic. Lifecycle: as long as the topic's state.
    """

    __slots__ = ("_due", "_order")

    def __init__(self) -> None:
        self._due: dict[bytes, int] = {}
        self._order: list[tuple[int, bytes]] = []

    def __len__(self) -> int:
        return len(self._order)

    @property
    def first_us(self) -> int:
        """Returns the time at which the earliest record must be checked; 0: never."""
        return self._order[0][0] if self._order else 0

    def note(self, key: bytes, expires_us: int) -> None:
        """Notes the expiry time of a record. Where it is later than the one noted before, the
        record is still checked at the earlier time, and must then be noted again."""
        due_us = self._due.get(key)
        if due_us is not None and due_us <= expires_us:
            return
        self._due[key] = expires_us
        heapq.heappush(self._order, (expires_us, key))
        if len(self._order) > 2 * len(self._due) + STALE_MAX:
            self._order = [(due_us, key) for key, due_us in self._due.items()]
            heapq.heapify(self._order)

    def forget(self, key: bytes) -> None:
        """Forgets a record: it does not exist, or does not expire."""
        self._due.pop(key, None)

    def take(self, now_us: int) -> bytes | None:
        """Removes and returns the key of a record that must be checked; None: none is due yet. Each
        call costs about the same: for a stale entry, the key is empty."""
        if not self._order or self._order[0][0] > now_us:
            return None
        due_us, key = heapq.heappop(self._order)
        if self._due.get(key) != due_us:
            return b""
        del self._due[key]
        return key
