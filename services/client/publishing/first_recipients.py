"""Record of the instance to which a client sent each of its messages first.

A message that is sent again to another instance may exist at the first one, too, as published
there. The library names the first instance when it sends the message again, because queues must
agree on the owner of a message (design law 6).
"""

from __future__ import annotations

from collections import deque

UNKNOWN = ""
"""Stands for a recipient that is not known: the message was sent in an earlier life of the
client."""


class FirstRecipients:
    """The first recipients of all unsettled messages. Sequences are sent in order, each stretch of
    them first over one connection, so there is one entry for each connection.

    Owner: the client's machine. Lifecycle: as long as the machine.
    """

    __slots__ = ("_upto",)

    def __init__(self) -> None:
        self._upto: deque[tuple[int, str]] = deque()
        """Pairs in ascending order: the sequence up to which messages were sent, and the
        instance."""

    def sent(self, upto: int, instance: str) -> None:
        """Notes that everything up to this sequence was sent; messages not sent before went to this
        instance first."""
        if upto > (self._upto[-1][0] if self._upto else 0):
            self._upto.append((upto, instance))

    def settled(self, upto: int) -> None:
        """Notes that nothing up to this sequence will be sent again."""
        while self._upto and self._upto[0][0] <= upto:
            self._upto.popleft()

    def of(self, sequence: int) -> tuple[str | None, int]:
        """Returns the instance to which this message was sent first, and the last sequence for
        which that holds; None: it and those after it were not sent yet."""
        for upto, instance in self._upto:
            if sequence <= upto:
                return instance, upto
        return None, (1 << 64) - 1
