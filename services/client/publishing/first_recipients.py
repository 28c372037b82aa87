"""Record of the instance to which a client sent each of its messages first.

What is sent again to another instance may be at the first one, too, as published there: the
library says so with it, for queues must agree on whose a message is (design law 6).
"""

from __future__ import annotations

from collections import deque

UNKNOWN = ""
"""Sent in an earlier life of the client, which did not write down to whom."""


class FirstRecipients:
    """See the file's docstring. Sequences are sent in their order, each stretch of them first over
    one connection: so there is one entry a connection.

    Owner: the client's machine. Lifecycle: as long as that.
    """

    __slots__ = ("_upto",)

    def __init__(self) -> None:
        self._upto: deque[tuple[int, str]] = deque()
        """Ascending: up to which sequence, to whom."""

    def sent(self, upto: int, instance: str) -> None:
        """Everything up to this sequence was sent; what nobody had before, to this instance."""
        if upto > (self._upto[-1][0] if self._upto else 0):
            self._upto.append((upto, instance))

    def settled(self, upto: int) -> None:
        """Nothing up to this sequence is sent again."""
        while self._upto and self._upto[0][0] <= upto:
            self._upto.popleft()

    def of(self, sequence: int) -> tuple[str | None, int]:
        """Returns the instance that was sent this one first, and up to which sequence that is so;
        None: it was sent to nobody, as all behind it."""
        for upto, instance in self._upto:
            if sequence <= upto:
                return instance, upto
        return None, (1 << 64) - 1
