"""The count of one connection's publishes that wait for their persisted acks. Above a limit, the
connection is not read until half of them are acknowledged (docs/capacity.md)."""

from __future__ import annotations

from collections import deque

UNNUMBERED_MAX = 10_000
"""Number of publishes without a sequence that one connection may have outstanding: the instance
keeps each of them singly until it is acknowledged, while numbered ones are kept as ranges."""


class OutstandingPublishes:
    """Counts the outstanding publishes of a connection, a batch at a time. Owner: a client's
    connection. Lifecycle: as long as the connection.

    Invariant: a publish is counted from when it is taken until it is acknowledged.

    Args:
        publishes_max: limit on the outstanding publishes; None: numbered ones are not limited.
    """

    __slots__ = ("_batches", "_numbered", "_unnumbered", "counts_numbered", "most")

    def __init__(self, publishes_max: int | None = None) -> None:
        self.counts_numbered = publishes_max is not None
        """Whether numbered publishes are counted, so that `took` must be called."""
        self.most = UNNUMBERED_MAX if publishes_max is None else publishes_max
        self._batches: deque[tuple[int, int]] = deque()
        """(highest sequence, number of publishes) of each batch that was taken and is not yet
        acknowledged."""
        self._numbered = 0
        self._unnumbered = 0

    def __len__(self) -> int:
        return self._numbered + self._unnumbered

    @property
    def is_over(self) -> bool:
        return self._unnumbered > UNNUMBERED_MAX or len(self) > self.most

    @property
    def has_room(self) -> bool:
        """Returns whether so few publishes are outstanding that the connection may be read
        again."""
        return self._unnumbered <= UNNUMBERED_MAX // 2 and len(self) <= self.most // 2

    def took(self, upto: int, count: int) -> None:
        """Notes that a batch was taken.

        Args:
            upto: highest sequence of the batch, above those of all earlier batches.
            count: number of publishes in the batch.
        """
        self._batches.append((upto, count))
        self._numbered += count

    def answered(self, upto: int) -> None:
        """Notes that all publishes up to this sequence are acknowledged, or refused."""
        batches = self._batches
        while batches and batches[0][0] <= upto:
            self._numbered -= batches.popleft()[1]

    def took_unnumbered(self) -> None:
        """Notes that a publish without a sequence was taken."""
        self._unnumbered += 1

    def answered_unnumbered(self) -> None:
        """Notes that a publish without a sequence is acknowledged."""
        self._unnumbered -= 1
