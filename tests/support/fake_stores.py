"""The smallest stores that keep the client's contract, for tests that look inside them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from raylay.services.errors import PublishStoreFull, StorageError
from raylay.services.messages.ranges import PublisherRanges


class DictPublishStore:
    """A publish store whose records can be read."""

    def __init__(self, messages_max: int = 1 << 30) -> None:
        self.records: dict[int, bytes] = {}
        self.highest = 0
        self.words = b""
        self.messages_max = messages_max
        self.failure: StorageError | None = None

    def put(self, sequence: int, record: bytes) -> None:
        assert sequence > self.highest
        if self.full:
            raise PublishStoreFull("the store is full")
        self.records[sequence] = record
        self.highest = sequence

    def flush(self) -> None:
        if self.failure is not None:
            raise self.failure

    def acknowledge(self, upto: int) -> None:
        for sequence in [sequence for sequence in self.records if sequence <= upto]:
            del self.records[sequence]

    def drop(self, ranges: Iterable[tuple[int, int]]) -> None:
        for first, last in ranges:
            for sequence in [n for n in self.records if first <= n <= last]:
                del self.records[sequence]

    def advance(self, highest: int) -> None:
        self.highest = max(self.highest, highest)

    def replay(self, first: int = 0) -> Iterator[tuple[int, bytes]]:
        return iter([pair for pair in self.records.items() if pair[0] >= first])

    @property
    def lowest(self) -> int:
        return next(iter(self.records), 0)

    @property
    def messages(self) -> int:
        return len(self.records)

    @property
    def full(self) -> bool:
        return len(self.records) >= self.messages_max


class DictBookmarkStore:
    """A bookmark store that can be read."""

    def __init__(self) -> None:
        self.ranges: dict[str, PublisherRanges] = {}
        self.flushes = 0

    def seen(self, subscription: str, publisher: int, first: int, last: int) -> None:
        self.ranges.setdefault(subscription, PublisherRanges()).add(publisher, first, last)

    def persisted(self, subscription: str, ranges: PublisherRanges) -> None:
        self.ranges.setdefault(subscription, PublisherRanges()).update(ranges)

    def load(self, subscription: str) -> PublisherRanges:
        return self.ranges.get(subscription, PublisherRanges()).copy()

    def discard(self, subscription: str) -> None:
        self.ranges.pop(subscription, None)

    def flush(self) -> None:
        self.flushes += 1
