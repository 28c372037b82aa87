"""The records of journaled runs that can be read, and which runs have others.

What was journaled stays there, and every start and every reader comes by it again. So one rule
holds for whoever folds the journal: of a run that is damaged, or not what its header says, the
records up to the first unreadable one are folded; the others are passed over, and told.

Links that do not prove to be of the fabric, and sources of copies, bring no such run
(`records.check_records`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Final

from raylay.services.errors import CorruptRecord
from raylay.services.messages.records import Record, Run, iterate_records

REMEMBERED_MAX: Final = 1_024
"""Runs that are counted once, however many folds come by them."""


class UnreadableRuns:
    """The runs of which somebody in this process passed records over.

    Invariant: at most `REMEMBERED_MAX` runs are remembered.
    Owner: the process. Lifecycle: as long as that.

    Attributes:
        count: of such runs.
    """

    __slots__ = ("_first", "_known", "count")

    def __init__(self) -> None:
        self._known: dict[tuple[int, int, int], None] = {}
        self._first = ""
        self.count = 0

    def note(self, run: Run, why: str) -> None:
        """Records of a run are passed over. A run that is folded in parts counts once, as the last
        part of it ends where it does.

        Args:
            why: which of them, and the reason.
        """
        key = run.publisher, run.last_sequence, run.last_txid
        if key in self._known:
            return
        self._known[key] = None
        if len(self._known) > REMEMBERED_MAX:
            del self._known[next(iter(self._known))]
        self.count += 1
        if not self._first:
            topic = run.topic.decode("utf-8", "replace")
            self._first = (
                f"transactions {run.first_txid} to {run.last_txid}, messages {run.first_sequence} "
                f"to {run.last_sequence} of publisher {run.publisher} on topic {topic!r}: {why}"
            )

    def take(self) -> str:
        """The first of those that came since the last call; empty: there is none."""
        found, self._first = self._first, ""
        return found


UNREADABLE: Final = UnreadableRuns()


def readable_records(
    run: Run, unreadable: Callable[[str], None] | None = None
) -> Iterator[tuple[int, Record]]:
    """Place and record of each of a journaled run's records, up to the first that cannot be read.

    Args:
        unreadable: called at the end with the reason, where records are left out, beside what is
            told of every run.
    """
    found = 0
    try:
        for at, record in zip(range(run.count), iterate_records(run.payload), strict=False):
            found = at + 1
            yield at, record
    except CorruptRecord as error:
        why = str(error)
    else:
        if found == run.count:
            return
        why = "the run ends before them"
    text = told(run, found, why)
    UNREADABLE.note(run, text)
    if unreadable is not None:
        unreadable(text)


def told(run: Run, readable: int, why: str) -> str:
    """Returns the words on a run of which only so many records are readable."""
    return f"{readable} of {run.count} records of a run are readable: {why}"
