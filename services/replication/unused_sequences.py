"""The sequences that a client without a publish store left unused, for its next life.

Such a client begins at the clock in microseconds, since an instance that it does not ask may have
seen more than the one that it asks. Each of its lives would be a range of its own in every set of
sequences, for good. So a client that ends in good order hands over what it did not use, and the
next life of its name goes on there: both are one range.

Nobody else uses these sequences, by the same two facts that let a client begin at the clock at all:
lives of one name follow one another, and a life begins at its clock or behind all that it hears of.

- Whatever came before the life lies below its first sequence: each life gives fewer sequences than
  it lasts microseconds.
- Whatever comes behind it begins at a clock that is later than its end. What it hands over ends
  there.
- What it hands over lies at one instance, the one where it ended, and is given once. It is in
  memory only: a restart forgets it, and the next life begins at the clock.

A life must also be numbered above every earlier one, or its values would pass for older ones.
What lies above the sequences here shows that a life was elsewhere meanwhile: then they are void.
While a link is down, such a life may be unknown here: then nothing is taken or given.
"""

from __future__ import annotations

from raylay.services.messages.ranges import Range


class UnusedSequences:
    """See the file's docstring.

    Invariant: of a publisher that never published nothing is kept.
    Owner: the instance's machine. Lifecycle: as long as that.
    """

    __slots__ = ("_of",)

    def __init__(self) -> None:
        self._of: dict[int, Range] = {}

    def __len__(self) -> int:
        return len(self._of)

    def hand_over(self, publisher: int, unused: Range, highest: int, now_us: int) -> None:
        """Takes what a life that ends has not used.

        Args:
            highest: the highest sequence known here of the publisher; 0: none is.
            now_us: the wall clock here. What lies behind it is not taken: the client's own clock is
                ahead, and a later life may begin there.
        """
        first, last = unused
        last = min(last, now_us)
        if 0 < highest < first <= last:
            self._of[publisher] = first, last

    def take(self, publisher: int, highest: int) -> Range | None:
        """Takes out the sequences that the next life goes on with; None: it begins at the clock.

        Args:
            highest: as in `hand_over`.
        """
        unused = self._of.pop(publisher, None)
        return unused if unused is not None and unused[0] > highest else None

    def clear(self) -> None:
        """Another instance may have had a life that is unknown here."""
        self._of.clear()
