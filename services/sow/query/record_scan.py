"""A query's records: the state after one transaction, taken in turns while later ones are
folded."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from raylay.services.messages.sorted_entries import SortedEntries

Entries = list[tuple[bytes, bytes]]
"""(key, value) of the store, by key."""
_SAVED_BYTES = 200
"""Approximate memory of an entry, in addition to its bytes."""
Chunk = Callable[[bytes, bytes, int], Entries]
"""Returns the entries from one key on and before another one, a limited number, as they are now."""


class RecordScan:
    """The records of a topic as they were when the query began.

    Nothing is copied, except records that change before the scan reaches them.

    Invariant: `_saved` has, for each key from `_next` on that was changed since the scan began, its
    record at the beginning.
    Owner: who folds the topic. Lifecycle: until everything was taken, or `close`.

    Args:
        chunk: reads entries of the topic.
        start, end: range of the wanted keys.
        txid: last folded transaction.
        closed: called when the scan no longer needs changes.
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
        """Bytes of records that were changed before the scan reached them."""
        self.txid = txid
        """Transaction after which the records are as the scan returns them."""
        self.done = False
        """Whether everything was taken, or the scan was closed."""

    def take(self, most: int) -> Entries:
        """Returns the next records, by key.

        Args:
            most: number of records to look at, 1 or more. Fewer may be returned, even none before
                `done`: records that came after the query began are left out.
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
        """Notes that an entry is about to be changed.

        Args:
            previous: value of the entry until then; None: there is none.
        """
        if key >= self._next and key not in self._saved:
            self._saved[key] = previous
            self.saved_bytes += _size(key, previous)

    def close(self) -> None:
        """Ends the scan: no more records will be taken."""
        if not self.done:
            self.done = True
            self._saved = SortedEntries()
            self.saved_bytes = 0
            self._closed(self)


class PresentScan:
    """The records of a topic as they are when they are taken, in turns while later commits are
    folded.

    A record that changes behind the place that the scan has reached is not taken again: who takes
    the records also takes every change since the scan began. A record may be taken after a change
    of it was.

    Args:
        chunk: reads entries of the topic.
        start, end: range of the wanted keys.
    """

    __slots__ = ("_chunk", "_end", "_next", "done")

    def __init__(self, chunk: Chunk, start: bytes, end: bytes) -> None:
        self._chunk = chunk
        self._next = start
        self._end = end
        self.done = False
        """Whether everything was taken."""

    def take(self, most: int) -> Entries:
        """Returns the next records, by key, as they are now.

        Args:
            most: number of records, 1 or more.
        """
        if self.done:
            return []
        entries = self._chunk(self._next, self._end, most)
        if len(entries) < most:
            self.done = True
        else:
            self._next = entries[-1][0] + b"\0"
        return entries


class KeyScan:
    """The records of some keys as they were when the query began; otherwise like `RecordScan`.

    Invariant: `_saved` has, for each key of `_keys` that was changed since the scan began, its
    record at the beginning.
    Owner: who folds the topic. Lifecycle: until everything was taken, or `close`.

    Args:
        get: reads the present entry of a key.
        keys: the wanted keys of the store.
        txid: last folded transaction.
        closed: called when the scan no longer needs changes.
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
        # In reverse, because removal from the end is cheap.
        self._order = sorted(keys, reverse=True)
        self._keys = set(self._order)
        self._closed = closed
        self._saved: dict[bytes, bytes | None] = {}
        self.saved_bytes = 0
        """Bytes of records that were changed before the scan reached them."""
        self.txid = txid
        """Transaction after which the records are as the scan returns them."""
        self.done = False
        """Whether everything was taken, or the scan was closed."""

    def take(self, most: int) -> Entries:
        """Returns the next records, by key.

        Args:
            most: number of keys to look at, 1 or more. Fewer records may be returned, even none
                before `done`.
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
        """Notes that an entry is about to be changed.

        Args:
            previous: value of the entry until then; None: there is none.
        """
        if key in self._keys and key not in self._saved:
            self._saved[key] = previous
            self.saved_bytes += _size(key, previous)

    def close(self) -> None:
        """Ends the scan: no more records will be taken."""
        if not self.done:
            self.done = True
            self._saved.clear()
            self.saved_bytes = 0
            self._keys.clear()
            self._closed(self)


def _size(key: bytes, value: bytes | None) -> int:
    return len(key) + len(value or b"") + _SAVED_BYTES
