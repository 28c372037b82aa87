"""The age of what is outstanding: what destinations have not acknowledged, what is not durable
(design.md 4)."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence
from heapq import heappop, heappush

from raylay.services.messages.ranges import PublisherRanges

AGAIN_TXID = 0
"""Stands for the transaction id of what is asked for again: below every real one."""

AGE_BUCKET_US = 50_000
"""Ages are kept per bucket of 50 ms, so that a day of outage is a list and not a log."""

Outstanding = Mapping[int, PublisherRanges]
"""Outstanding messages, root by root."""

_Buckets = deque[tuple[int, int, dict[int, list[int]]]]
"""(time_us, lowest txid, {publisher: [first, last]})."""


class _TxidFloor:
    """The lowest transaction id of what is outstanding, where ids do not rise with time."""

    __slots__ = ("_heap",)

    def __init__(self) -> None:
        self._heap: list[tuple[int, int, int, int]] = []
        """(lowest txid, publisher, first, last)."""

    def add(self, txid: int, publisher: int, a: int, b: int) -> None:
        """Something of a..b is outstanding; none of it has a transaction id below `txid`."""
        heappush(self._heap, (txid, publisher, a, b))

    def settle(self, outstanding: Outstanding) -> None:
        """Drops what is not outstanding any more, from the lowest on; see `AgeLog.settle`."""
        heap = self._heap
        while heap and not _touched(outstanding, heap[0][1], heap[0][2:]):
            heappop(heap)

    def lowest(self, default: int) -> int:
        """The lowest transaction id of what was outstanding at the last `settle`."""
        return self._heap[0][0] if self._heap else default


class AgeLog:
    """The age of the oldest outstanding message, in time and in transaction ids.

    Buckets hold, for each publisher, the span of sequences that became outstanding in it. A span
    goes by `settle`, when nothing in it is outstanding any more, and a bucket with its last one.
    Transaction ids rise from bucket to bucket; what becomes outstanding again, with an id of long
    before, is kept apart.
    """

    __slots__ = ("_again", "_again_floor", "_buckets")

    def __init__(self) -> None:
        self._buckets: _Buckets = deque()
        self._again: _Buckets = deque()
        self._again_floor = _TxidFloor()

    def add(self, time_us: int, txid: int, publisher: int, a: int, b: int) -> None:
        """a..b of the publisher became outstanding; none has a transaction id below `txid`, which
        is none below that of any call before. `AGAIN_TXID`: again, with any id."""
        if txid == AGAIN_TXID:
            self.add_again(time_us, txid, publisher, a, b)
        else:
            _add(self._buckets, time_us, txid, publisher, a, b)

    def add_again(self, time_us: int, txid: int, publisher: int, a: int, b: int) -> None:
        """Adds messages as `add` does, with any `txid`."""
        _add(self._again, time_us, txid, publisher, a, b)
        self._again_floor.add(txid, publisher, a, b)

    def settle(self, outstanding: Outstanding) -> None:
        """Drops what is not outstanding any more, from the oldest on: whoever takes something out
        of `outstanding` calls it, so that `oldest` has little to look at."""
        if self._buckets:
            for ranges in outstanding.values():
                if ranges.sets:
                    _settle(self._buckets, outstanding)
                    break
            else:
                # Publishers go with their last sequence: nothing is, as behind each single message.
                self._buckets.clear()
        if self._again:
            _settle(self._again, outstanding)
            self._again_floor.settle(outstanding)

    def oldest(self, outstanding: Outstanding) -> tuple[int, int] | None:
        """(time in microseconds, lowest transaction id) of what is outstanding; None when nothing
        is. Only reads."""
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
        # From behind, where `settle` stopped.
        for publisher, span in reversed(spans.items()):
            if _touched(outstanding, publisher, span):
                return time_us, txid
    return None
