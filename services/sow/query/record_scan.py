"""A query's records: those of one transaction, taken in turns while others are folded."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from raylay.services.messages.sorted_entries import SortedEntries

Entries = list[tuple[bytes, bytes]]
"""(key, value) of the store, by key."""
_SAVED_BYTES = 200
"""Approximate memory that an entry takes beside its bytes."""
Chunk = Callable[[bytes, bytes, int], Entries]
"""The entries from a key on and before another one, so many at most, as they are now."""


class RecordScan:
    """The records of a topic as they were when the query began.

    Nothing is copied for it but what changes before it comes there.

    Invariant: `_saved` has, for each key from `_next` on that was changed since, what it was then.
    Owner: who folds the topic. Lifecycle: until everything was taken, or `close`.

    Args:
        chunk: reads the topic.
        start, end: the keys that are asked for.
        txid: of the last transaction that is folded.
        closed: is told when no more changes are of interest.
    """

    __slots__ = ("_chunk", "_closed", "_end", "_next", "_saved", "done", "saved_bytes", "txid")

    def __init__(
        self,
        chunk: Chunk,
        start: bytes,
        end: bytes,
        txid: int,
        closed: Callable[[RecordScan], None],
    ) -> None:
        self._chunk = chunk
        self._next = start
        self._end = end
        self._closed = closed
        self._saved: SortedEntries[bytes | None] = SortedEntries()
        self.saved_bytes = 0
        """Bytes of the records that were changed before it came there."""
        self.txid = txid
        """The transaction whose records it gives."""
        self.done = False
        """Everything was taken, or it was closed."""

    def take(self, most: int) -> Entries:
        """The next records, by key.

        Args:
            most: that are looked at, 1 or more. There may be fewer, and none before `done`: those
                that came since the query began are not given.
        """
        if self.done:
            return []
        entries = self._chunk(self._next, self._end, most)
        until = self._end if len(entries) < most else entries[-1][0] + b"\0"
        saved = self._saved.keys(b"", until, len(self._saved)) if self._saved else []
        if saved:
            then = dict(entries)
            for key in saved:
                value = self._saved.pop(key)
                self.saved_bytes -= _size(key, value)
                if value is None:
                    then.pop(key, None)
                else:
                    then[key] = value
            entries = sorted(then.items())
        self._next = until
        if until == self._end:
            self.close()
        return entries

    def changed(self, key: bytes, previous: bytes | None) -> None:
        """An entry is about to be changed.

        Args:
            previous: what it is until then; None: there is none.
        """
        if key >= self._next and key not in self._saved:
            self._saved[key] = previous
            self.saved_bytes += _size(key, previous)

    def close(self) -> None:
        """No more will be taken."""
        if not self.done:
            self.done = True
            self._saved = SortedEntries()
            self.saved_bytes = 0
            self._closed(self)


class KeyScan:
    """The records of some keys as they were when the query began; else as `RecordScan`.

    Invariant: `_saved` has, for each key of `_keys` that was changed since, what it was then.
    Owner: who folds the topic. Lifecycle: until everything was taken, or `close`.

    Args:
        get: reads the entry of a key, as it is now.
        keys: that are asked for, of the store.
        txid: of the last transaction that is folded.
        closed: is told when no more changes are of interest.
    """

    __slots__ = ("_closed", "_get", "_keys", "_order", "_saved", "done", "saved_bytes", "txid")

    def __init__(
        self,
        get: Callable[[bytes], bytes | None],
        keys: Iterable[bytes],
        txid: int,
        closed: Callable[[KeyScan], None],
    ) -> None:
        self._get = get
        # From the end, which is cheap to take off.
        self._order = sorted(keys, reverse=True)
        self._keys = set(self._order)
        self._closed = closed
        self._saved: dict[bytes, bytes | None] = {}
        self.saved_bytes = 0
        """Bytes of the records that were changed before it came there."""
        self.txid = txid
        """The transaction whose records it gives."""
        self.done = False
        """Everything was taken, or it was closed."""

    def take(self, most: int) -> Entries:
        """The next records, by key.

        Args:
            most: keys that are looked at, 1 or more. There may be fewer records, and none before
                `done`.
        """
        entries: Entries = []
        order = self._order
        while order and most > 0 and not self.done:
            most -= 1
            key = order.pop()
            self._keys.discard(key)
            if key in self._saved:
                value = self._saved.pop(key)
                self.saved_bytes -= _size(key, value)
            else:
                value = self._get(key)
            if value is not None:
                entries.append((key, value))
        if not order:
            self.close()
        return entries

    def changed(self, key: bytes, previous: bytes | None) -> None:
        """An entry is about to be changed.

        Args:
            previous: what it is until then; None: there is none.
        """
        if key in self._keys and key not in self._saved:
            self._saved[key] = previous
            self.saved_bytes += _size(key, previous)

    def close(self) -> None:
        """No more will be taken."""
        if not self.done:
            self.done = True
            self._saved.clear()
            self.saved_bytes = 0
            self._keys.clear()
            self._closed(self)


def _size(key: bytes, value: bytes | None) -> int:
    return len(key) + len(value or b"") + _SAVED_BYTES
