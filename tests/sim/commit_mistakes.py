"""Planted mistakes in the order of a commit (services/core/commit_cycle.py)."""

from __future__ import annotations

from raylay.services.core.commit_cycle import CommitCycle
from raylay.services.replication.effects import LinkReport


class AcksBeforeTheCommit(CommitCycle):
    """Takes what was staged for committed at the end of its turn, before the disk has it."""

    def _end_turn(self) -> None:
        runtime, machine = self._runtime, self._instance.machine
        last_txid = machine.next_txid - 1
        if last_txid > machine.committed_txid:
            self._instance.steps.perform(machine.committed(last_txid, runtime.steady_us()))
        super()._end_turn()


class AcksWhileTheDiskWrites(CommitCycle):
    """Says at once what is made while the disk writes."""

    def prepare(self, last_txid: int) -> None:
        super().prepare(last_txid)
        self._runtime.outbox.release()


class LinksBeforeTheCommit(CommitCycle):
    """Wakes links at the end of the turn, and not when the disk has what they are woken for."""

    def _end_turn(self) -> None:
        last_txid = self._instance.machine.next_txid - 1
        for name in sorted(self._notifications.due(last_txid)):
            self._links[name].wake(last_txid)
        self._notifications.failed()
        super()._end_turn()


class FoldsBeforeTheCommit(CommitCycle):
    """Folds what the disk is still writing."""

    def prepare(self, last_txid: int) -> None:
        super().prepare(last_txid)
        self._instance.steps.catch_up()


class FoldsBeforeItIsSaid(CommitCycle):
    """Folds what the disk has, and says it behind that."""

    def durable(self) -> None:
        if self._is_prepared and self._fault is None:
            self._instance.steps.catch_up()
        super().durable()


class FoldsInALaterStep(CommitCycle):
    """Leaves the folds of what was taken while the disk wrote to the step that follows."""

    def _take(self) -> None:
        steps = self._instance.steps
        fold, steps.catch_up = steps.catch_up, lambda: None  # type: ignore[method-assign]
        try:
            super()._take()
        finally:
            steps.catch_up = fold  # type: ignore[method-assign]


class FeaturesHearFirst(CommitCycle):
    """Tells the features of a commit that failed before the machine has undone it."""

    def _take_failed(self, first_txid: int, error: Exception) -> None:
        self._folds.failed(self._instance.machine.committed_txid)
        super()._take_failed(first_txid, error)


class GoesOnAheadOfTheDisk(CommitCycle):
    """Says what the disk could not write, once the machine has taken it."""

    def _give_up(self, error: Exception) -> None:
        self.durable()
        self._is_prepared = False
        self._instance.steps.catch_up()


class ReportsBeforeTheCommit(CommitCycle):
    """Takes what a link reports before the commits that it may be about."""

    def take_report(self, destination: str, report: LinkReport, *, is_direct: bool = False) -> None:
        super().take_report(destination, report, is_direct=True)
