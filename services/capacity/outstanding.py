"""The count of publishes of one connection that wait for their persisted acks. Above a limit the
connection is not read until half of them are answered (docs/capacity.md)."""

from __future__ import annotations

from collections import deque

UNNUMBERED_MAX = 10_000
"""Publishes of one connection without a sequence of their own: each of them is known to the
instance by itself until it is answered, where numbered ones are ranges."""


class OutstandingPublishes:
    """Counts, a batch at a time. Owner: a client's connection. Lifecycle: that of the connection.

    Invariant: what was taken is counted until it is answered, and no longer.

    Args:
        publishes_max: at once; None: any number of numbered ones.
    """

    __slots__ = ("_batches", "_numbered", "_unnumbered", "counts_numbered", "most")

    def __init__(self, publishes_max: int | None = None) -> None:
        self.counts_numbered = publishes_max is not None
        """Whether `took` is to be called."""
        self.most = UNNUMBERED_MAX if publishes_max is None else publishes_max
        self._batches: deque[tuple[int, int]] = deque()
        """(highest sequence, how many) of each batch that was taken and is not answered."""
        self._numbered = 0
        self._unnumbered = 0

    def __len__(self) -> int:
        return self._numbered + self._unnumbered

    @property
    def is_over(self) -> bool:
        """Returns whether there are more than there may be."""
        return self._unnumbered > UNNUMBERED_MAX or len(self) > self.most

    @property
    def has_room(self) -> bool:
        """Returns whether so few are left that more may come."""
        return self._unnumbered <= UNNUMBERED_MAX // 2 and len(self) <= self.most // 2

    def took(self, upto: int, count: int) -> None:
        """A batch was taken.

        Args:
            upto: its highest sequence, above those of all before.
            count: how many publishes it has.
        """
        self._batches.append((upto, count))
        self._numbered += count

    def answered(self, upto: int) -> None:
        """All up to this sequence are answered, for good or ill."""
        batches = self._batches
        while batches and batches[0][0] <= upto:
            self._numbered -= batches.popleft()[1]

    def took_unnumbered(self) -> None:
        """One without a sequence was taken."""
        self._unnumbered += 1

    def answered_unnumbered(self) -> None:
        """One of these is answered."""
        self._unnumbered -= 1
