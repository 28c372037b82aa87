"""A journal that is a list of runs, looked up at once."""

from __future__ import annotations

from raylay.services.messages.ranges import SequenceSet
from raylay.services.messages.records import Kind, Run


class HeldRuns:
    """What `InstanceMachine` is given as its look-up (journal_answers.JournalLookup)."""

    def __init__(self, runs: list[Run] | None = None) -> None:
        self.runs = runs if runs is not None else []
        self.reads = 0

    def look_anew(self) -> None:
        """Does nothing: it keeps nothing that it read."""

    def part(self, publisher: int, wanted: SequenceSet) -> list[Run]:
        """All of it."""
        self.reads += 1
        found = [run for run in self._of(publisher) if wanted.intersection(_sequences(run))]
        wanted.clear()
        return found

    def highest_on_topic(self, publisher: int, topic: bytes, wanted: SequenceSet) -> int:
        """See `JournalReader.highest_on_topic`."""
        self.reads += 1
        gone = wanted.copy()
        for run in self._of(publisher):
            gone.difference_update(_sequences(run))
        lowest = wanted.first() or 0
        found = [run.last_sequence for run in self._of(publisher) if run.topic == topic]
        return max([gone.last() or 0, *(each for each in found if each >= lowest)])

    def _of(self, publisher: int) -> list[Run]:
        return [r for r in self.runs if r.publisher == publisher and r.kind == Kind.RECORDS]


def _sequences(run: Run) -> SequenceSet:
    return SequenceSet(run.ranges())
