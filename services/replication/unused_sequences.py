"""The sequences that a client without a publish store left unused, for its next life.

Such a client begins to number at the clock in microseconds, since an instance that it does not ask
may have seen higher sequences than the one that it asks. Each of its lives would add a range of its
own to every set of sequences, for good. So a client that ends in good order hands over the
sequences that it did not use, and the next life of its name continues there: both lives are one
range.

Nobody else uses these sequences, by the two facts that also let a client begin at the clock: lives
of one name follow one another, and a life begins at its clock or above all sequences that it hears
of.

- A life before it used only sequences below its first one: each life gives fewer sequences than it
  lasts microseconds.
- A life after it begins at a clock that is later than its end, and the sequences that it hands over
  end there.
- The sequences are handed over to one instance, the one where the life ended, and given once. They
  are in memory only: a restart forgets them, and the next life begins at the clock.

A life must also be numbered above every earlier one, or its values would pass for older ones.
Higher sequences of the publisher at this instance show that a later life was elsewhere: then the
handed-over ones are void. While a link is down, such a life may be unknown here: then nothing is
taken or given.
"""

from __future__ import annotations

from raylay.services.messages.ranges import Range


class UnusedSequences:
    """Keeps the handed-over sequences of each publisher.

    Invariant: nothing is kept of a publisher that never published.
    Owner: the instance's machine. Lifecycle: as long as the machine.
    """

    __slots__ = ("_of",)

    def __init__(self) -> None:
        self._of: dict[int, Range] = {}

    def __len__(self) -> int:
        return len(self._of)

    def hand_over(self, publisher: int, unused: Range, highest: int, now_us: int) -> None:
        """Takes the sequences that a life that ends has not used.

        Args:
            highest: the publisher's highest sequence known here; 0: none.
            now_us: the wall clock here. Sequences above it are not taken: the client's own clock is
                ahead, and a later life may begin there.
        """
        first, last = unused
        last = min(last, now_us)
        if 0 < highest < first <= last:
            self._of[publisher] = first, last

    def take(self, publisher: int, highest: int) -> Range | None:
        """Removes and returns the sequences with which the next life continues; None: it begins at
        the clock.

        Args:
            highest: the highest sequence, as in `hand_over`.
        """
        unused = self._of.pop(publisher, None)
        return unused if unused is not None and unused[0] > highest else None

    def clear(self) -> None:
        """Forgets everything, because a life unknown here may have been at another instance."""
        self._of.clear()
