"""Publish store of a replay: staged rows that a client publishes one after another, each when it is
due."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

from raylay.services.errors import ConfigurationError, StorageError
from raylay.services.messages.ranges import Range
from raylay.services.pipeline.publishing.staged_rows import PendingWrite, StagedRows
from raylay.storage.files import fault_point

UNSETTLED_MAX = 50_000
UNSETTLED_BYTES_MAX = 64 * 1024 * 1024


class PacedRows:
    """A publish store (`client.PublishStore`) over the rows of a pending write, which a client gets
    one by one. A row is *released* when it was put, or when a server had it before.

    At its logon a client learns which rows the servers have, and sends those again that are
    released and not durable. The rows behind them are put in order.

    Invariant: the released rows are those up to `highest`.
    Owner: one client. `take` may be called from another thread while nothing is unsettled.
    """

    words = b""

    def __init__(self, publisher: str, pending: PendingWrite) -> None:
        self.publisher = publisher
        self._rows = StagedRows(publisher, pending)
        # A client with an empty store, unknown to every server, would number by the clock: the very
        # first row is released from the start.
        self._released = max(1, self._rows.first - 1)
        self._kept: dict[int, bytes] = {}
        self._kept_bytes = 0
        self._seen = 0
        self.known_rows: int | None = None
        """Number of the first write's rows that were durable when the client first logged on."""

    def take(self, pending: PendingWrite) -> None:
        """Goes on with the next write, which begins behind the last row of this one.

        Raises:
            StorageError: it begins at another sequence.
        """
        if pending.first_sequence != self._released + 1:
            raise StorageError(
                f"sequence {pending.first_sequence} does not follow {self._released}: the staging "
                "directory belongs to another replay"
            )
        self._rows.take(pending)

    @property
    def full(self) -> bool:
        """Returns whether a limit of the rows that are not durable is reached."""
        return len(self._kept) >= UNSETTLED_MAX or self._kept_bytes >= UNSETTLED_BYTES_MAX

    @property
    def messages(self) -> int:
        """Returns the number of rows that are released and not known durable."""
        return max(0, self._released - self._rows.first + 1 - self._rows.durable)

    @property
    def bytes(self) -> int:
        """Returns the size of the staged files in bytes."""
        return self._rows.bytes

    @property
    def lowest(self) -> int:
        """Returns the lowest sequence that is not known durable; 0: all are durable."""
        return self._rows.lowest

    @property
    def highest(self) -> int:
        """Returns the sequence of the last row that is released."""
        return self._released

    def put(self, sequence: int, record: Any) -> None:
        """See PublishStore.

        Raises:
            StorageError: `sequence` is not that of the next row.
        """
        if sequence != self._released + 1 or sequence > self._rows.last:
            raise StorageError(
                f"sequence {sequence} does not follow {self._released}: another client publishes "
                f"as {self.publisher}"
            )
        self._released = sequence
        self._kept[sequence] = record
        self._kept_bytes += len(record)
        fault_point("replay.put")

    def flush(self) -> None:
        """Nothing to do: the rows are on disk."""

    def advance(self, highest: int) -> None:
        """Releases the rows that a server has seen before."""
        self._seen = max(self._seen, highest)
        if self.known_rows is None:
            self.known_rows = self._rows.durable
        self._released = max(self._released, min(highest, self._rows.last))

    def check(self) -> None:
        """Checks that no server has seen more rows than this replay has come to.

        Raises:
            ConfigurationError: a server has: the staging directory is an older one.
        """
        if self._seen > self._rows.last:
            raise ConfigurationError(
                f"a server knows sequence {self._seen} of {self.publisher}, but this replay has "
                f"come to {self._rows.last}: its staging directory was restored to an older "
                "state; begin a new job"
            )

    def acknowledge(self, upto: int) -> None:
        self.drop([(self._rows.first, upto)])

    def drop(self, ranges: Iterable[Range]) -> None:
        ranges = list(ranges)
        self._rows.drop(ranges)
        kept = self._kept
        for first, last in ranges:
            if kept and first <= next(iter(kept)):
                while kept and (lowest := next(iter(kept))) <= last:
                    self._kept_bytes -= len(kept.pop(lowest))
            else:
                for sequence in [each for each in kept if first <= each <= last]:
                    self._kept_bytes -= len(kept.pop(sequence))

    def replay(self, first: int = 0) -> Iterator[tuple[int, Any]]:
        """See PublishStore. A row that was put comes as it was put, the others from the files."""
        for sequence, record in self._rows.replay(first):
            if sequence > self._released:
                return
            yield sequence, self._kept.get(sequence, record)

    def close(self) -> None:
        """Nothing to give back."""
