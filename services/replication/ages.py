"""Ages of outstanding messages: those that a destination has not acknowledged, and those that are
not durable (design.md 4)."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence
from heapq import heappop, heappush

from raylay.services.messages.ranges import PublisherRanges

AGAIN_TXID = 0
"""Stands for the transaction id of messages that are asked for again: lower than every real id."""

AGE_BUCKET_US = 50_000
"""Width of a bucket of ages: 50 ms. Even after a day of outage the buckets are a short list."""

Outstanding = Mapping[int, PublisherRanges]
"""Outstanding messages, root by root."""

_Buckets = deque[tuple[int, int, dict[int, list[int]]]]
"""(time_us, lowest txid, {publisher: [first, last]})."""


class _TxidFloor:
    """The lowest transaction id of outstanding messages whose ids do not rise with time."""

    __slots__ = ("_heap",)

    def __init__(self) -> None:
        self._heap: list[tuple[int, int, int, int]] = []
        """(lowest txid, publisher, first, last)."""

    def add(self, txid: int, publisher: int, a: int, b: int) -> None:
        """Adds a..b of a publisher, some of which is outstanding, with transaction ids of at least
        `txid`."""
        heappush(self._heap, (txid, publisher, a, b))

    def settle(self, outstanding: Outstanding) -> None:
        """Drops entries of which nothing is outstanding any more, from the lowest transaction id
        on; see `AgeLog.settle`."""
        heap = self._heap
        while heap and not _touched(outstanding, heap[0][1], heap[0][2:]):
            heappop(heap)

    def lowest(self, default: int) -> int:
        """Returns the lowest transaction id that was outstanding at the last `settle`."""
        return self._heap[0][0] if self._heap else default


class AgeLog:
    """The age of the oldest outstanding message, in time and in transaction ids.

    A bucket holds, for each publisher, the span of sequences that became outstanding in its 50 ms.
    `settle` removes a span when nothing in it is outstanding any more, and a bucket when its last
    span goes. Transaction ids rise from bucket to bucket. Messages that become outstanding again,
    with an old id, are kept in buckets of their own.
    """

    __slots__ = ("_again", "_again_floor", "_buckets")

    def __init__(self) -> None:
        self._buckets: _Buckets = deque()
        self._again: _Buckets = deque()
        self._again_floor = _TxidFloor()

    def add(self, time_us: int, txid: int, publisher: int, a: int, b: int) -> None:
        """Notes that a..b of the publisher became outstanding, with transaction ids of at least
        `txid`, which must not be below the `txid` of any earlier call. With `AGAIN_TXID` the
        messages are outstanding again, with any id."""
        if txid == AGAIN_TXID:
            self.add_again(time_us, txid, publisher, a, b)
        else:
            _add(self._buckets, time_us, txid, publisher, a, b)

    def add_again(self, time_us: int, txid: int, publisher: int, a: int, b: int) -> None:
        """Adds messages as `add` does, with any `txid`, in any order of ids."""
        _add(self._again, time_us, txid, publisher, a, b)
        self._again_floor.add(txid, publisher, a, b)

    def settle(self, outstanding: Outstanding) -> None:
        """Drops messages that are not outstanding any more, from the oldest on. To be called
        whenever something is removed from `outstanding`, so that `oldest` reads few buckets."""
        if self._buckets:
            for ranges in outstanding.values():
                if ranges.sets:
                    _settle(self._buckets, outstanding)
                    break
            else:
                # The usual case, after each single message: nothing is outstanding, so all buckets
                # go.
                self._buckets.clear()
        if self._again:
            _settle(self._again, outstanding)
            self._again_floor.settle(outstanding)

    def oldest(self, outstanding: Outstanding) -> tuple[int, int] | None:
        """Returns (time in microseconds, lowest transaction id) of the oldest outstanding message;
        None when nothing is outstanding. Changes nothing."""
        first = _oldest_bucket(self._buckets, outstanding)
        again = _oldest_bucket(self._again, outstanding)
        if again is None:
            return first
        again = again[0], self._again_floor.lowest(again[1])
        return again if first is None else (min(first[0], again[0]), min(first[1], again[1]))


def _add(buckets: _Buckets, time_us: int, txid: int, publisher: int, a: int, b: int) -> None:
    if not buckets or time_us - buckets[-1][0] >= AGE_BUCKET_US:
        buckets.append((time_us, txid, {publisher: [a, b]}))
        return
    spans = buckets[-1][2]
    span = spans.get(publisher)
    if span is None:
        spans[publisher] = [a, b]
    else:
        span[0] = min(span[0], a)
        span[1] = max(span[1], b)


def _touched(outstanding: Outstanding, publisher: int, span: Sequence[int]) -> bool:
    for ranges in outstanding.values():
        found = ranges.get(publisher)
        if found is not None and found.touches(span[0], span[1]):
            return True
    return False


def _settle(buckets: _Buckets, outstanding: Outstanding) -> None:
    while buckets:
        spans = buckets[0][2]
        while spans:
            publisher, span = spans.popitem()
            if _touched(outstanding, publisher, span):
                spans[publisher] = span
                return
        buckets.popleft()


def _oldest_bucket(buckets: _Buckets, outstanding: Outstanding) -> tuple[int, int] | None:
    for time_us, txid, spans in buckets:
        # In reverse order, from where `settle` stopped.
        for publisher, span in reversed(spans.items()):
            if _touched(outstanding, publisher, span):
                return time_us, txid
    return None
