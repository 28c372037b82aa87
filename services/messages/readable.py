"""The readable records of journaled runs, and the runs with unreadable ones.

A journaled run stays, and every start and every reader meets it again. So one rule holds for
everything that folds the journal: of a run that is damaged, or differs from its header, the records
before the first unreadable one are folded; the others are passed over, and reported.

Links that have not proved to belong to the fabric, and sources of copies, cannot bring such a run
(`records.check_records`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Final

from raylay.services.errors import CorruptRecord
from raylay.services.messages.records import Record, Run, iterate_records

REMEMBERED_MAX: Final = 1_024
"""Number of unreadable runs that are remembered, so that each counts once, however many folds meet
it."""


class UnreadableRuns:
    """The runs of which a reader in this process passed records over.

    Invariant: at most `REMEMBERED_MAX` runs are remembered.
    Owner: the process. Lifecycle: as long as the process.

    Attributes:
        count: number of such runs.
    """

    __slots__ = ("_first", "_known", "count")

    def __init__(self) -> None:
        self._known: dict[tuple[int, int, int], None] = {}
        self._first = ""
        self.count = 0

    def note(self, run: Run, why: str) -> None:
        """Notes that records of a run were passed over. A run that is folded in parts counts once,
        since its last part ends where the run ends.

        Args:
            why: the records that were passed over, and the reason.
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
        """Returns the description of the first such run since the last call; empty: there is
        none."""
        found, self._first = self._first, ""
        return found


UNREADABLE: Final = UnreadableRuns()


def readable_records(
    run: Run, unreadable: Callable[[str], None] | None = None
) -> Iterator[tuple[int, Record]]:
    """Yields the index and the content of each record of a journaled run, up to the first
    unreadable one.

    Args:
        unreadable: called at the end with the reason where records are left out, in addition to the
            report that every such run gets.
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
    """Returns the description of a run of which only the first records are readable."""
    return f"{readable} of {run.count} records of a run are readable: {why}"
