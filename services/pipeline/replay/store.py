"""Staged rows that a client publishes one after another, when their time has come."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

from raylay.services.errors import ConfigurationError, StorageError
from raylay.services.messages.ranges import Range, SequenceSet
from raylay.services.pipeline.publishing.staging import PendingWrite, StagedRows
from raylay.storage.files import fault_point

UNSETTLED_MAX = 50_000
UNSETTLED_BYTES_MAX = 64 * 1024 * 1024


class PacedRows(StagedRows):
    """A publish store (`client.PublishStore`) over a pending write, of which some rows are given
    out: those that were put, and those that a server has seen before.

    A client that logs on is told what the servers have of the write, and sends again what was
    given out and is not durable. The rows behind are put in order.

    Invariant: given out are always the rows up to `highest`.
    Owner: one client. `take` may be called from another thread while nothing is unsettled.
    """

    def __init__(self, publisher: str, pending: PendingWrite) -> None:
        super().__init__(publisher, pending)
        # A client whose store holds nothing and which no server knows would number by the clock:
        # the very first row is given out from the start.
        self._given = max(1, self._first - 1)
        self._kept: dict[int, bytes] = {}
        self._kept_bytes = 0
        self._seen = 0
        self.known_rows: int | None = None
        """Number of the first write's rows that were durable when the client first logged on."""

    def take(self, pending: PendingWrite) -> None:
        """Goes on with the next write, which begins behind the last row of this one."""
        if pending.first_sequence != self._given + 1:
            raise StorageError(
                f"sequence {pending.first_sequence} does not follow {self._given}: the staging "
                "directory is not that of this replay"
            )
        self._pending = pending
        self._first = pending.first_sequence
        self._last = pending.first_sequence + pending.rows - 1
        self._gone = SequenceSet()

    @property
    def full(self) -> bool:
        """Returns whether a limit of what is not durable is reached."""
        return len(self._kept) >= UNSETTLED_MAX or self._kept_bytes >= UNSETTLED_BYTES_MAX

    @property
    def messages(self) -> int:
        """Rows that are given out and not known durable."""
        return max(0, self._given - self._first + 1 - self._gone.count)

    @property
    def highest(self) -> int:
        """The last row given out."""
        return self._given

    def put(self, sequence: int, record: Any) -> None:
        """See PublishStore.

        Raises:
            StorageError: it is not the next row.
        """
        if sequence != self._given + 1 or sequence > self._last:
            raise StorageError(
                f"sequence {sequence} is not the row behind {self._given}: another client "
                f"publishes as {self.publisher}"
            )
        self._given = sequence
        self._kept[sequence] = record
        self._kept_bytes += len(record)
        fault_point("replay.put")

    def advance(self, highest: int) -> None:
        """Gives out what a server has seen before."""
        self._seen = max(self._seen, highest)
        if self.known_rows is None:
            self.known_rows = self._gone.count
        self._given = max(self._given, min(highest, self._last))

    def check(self) -> None:
        """Refuses where a server has seen more than there is.

        Raises:
            ConfigurationError: the staging directory is not the one that was published from.
        """
        if self._seen > self._last:
            raise ConfigurationError(
                f"a server knows sequence {self._seen} of {self.publisher}, this replay has come "
                f"to {self._last}: its staging directory was put back to an older state; begin a "
                "new job"
            )

    def drop(self, ranges: Iterable[Range]) -> None:
        """See PublishStore."""
        ranges = list(ranges)
        super().drop(ranges)
        kept = self._kept
        for first, last in ranges:
            if kept and first <= next(iter(kept)):
                while kept and (lowest := next(iter(kept))) <= last:
                    self._kept_bytes -= len(kept.pop(lowest))
            else:
                for sequence in [each for each in kept if first <= each <= last]:
                    self._kept_bytes -= len(kept.pop(sequence))

    def replay(self, first: int = 0) -> Iterator[tuple[int, Any]]:
        """See PublishStore. What was put comes as it was put, the rest from the files."""
        for sequence, record in super().replay(first):
            if sequence > self._given:
                return
            yield sequence, self._kept.get(sequence, record)
