"""Coalesces a link's reports to its instance. Answers that a publisher waits for go at once. The
rest is sent together soon after, because each frame of a link wakes the instance."""

from __future__ import annotations

from collections.abc import Callable

from raylay.services.messages.ranges import PublisherRanges
from raylay.services.replication.acknowledgment import UNAWAITED
from raylay.services.replication.effects import (
    LinkAnswered,
    LinkLacks,
    LinkProgress,
    LinkReport,
    ranges_of,
)

SOON_S = 0.25


class ReportCoalescer:
    """Coalesces the reports of one link.

    Invariant: reports that were held back are sent before any report that goes at once.
    Owner: the link, or the instance that has taken over its connection. Lifecycle: as long as the
    owner; `disconnected` begins anew.

    Args:
        tell: takes a report, and the time at which the destination answered, in ns.
        call_later: calls a function after a number of seconds; without effect where `flush` is
            called regularly.
        waited_for: whether persisted acks wait for the destination, or may again.
    """

    def __init__(
        self,
        tell: Callable[[LinkReport, int], None],
        call_later: Callable[[float, Callable[[], None]], object],
        *,
        waited_for: bool,
    ) -> None:
        self._tell = tell
        self._call_later = call_later
        self._waited_for = waited_for
        self._answers = PublisherRanges()
        """Answers that no publisher waits for, held back until the next report."""
        self._stored: int | None = None
        self._skipped = 0
        self._is_due = False

    def answered(self, effect: LinkAnswered, at_ns: int) -> None:
        unawaited = effect.persisted.get(UNAWAITED)
        if self._waited_for or effect.conflicts or len(effect.persisted) != 1 or not unawaited:
            self._tell_answers()
            self._tell(effect, at_ns)
            return
        for publisher, ranges in unawaited.items():
            self._answers.add_ranges(publisher, ranges)
        self._soon()

    def progress(self, effect: LinkProgress) -> None:
        """Takes progress. Messages that are sent again, and a finished resync, are reported at
        once; stored messages soon."""
        self._skipped += effect.skipped
        if effect.resending or effect.caught_up:
            self._tell_progress(
                LinkProgress(effect.stored_txid, effect.resending, effect.caught_up, self._skipped)
            )
            return
        self._stored = effect.stored_txid
        self._soon()

    def lacks(self, effect: LinkLacks) -> None:
        """Reports messages that the destination will never get from here."""
        self._tell_answers()
        self._tell(effect, 0)

    def disconnected(self) -> None:
        """Drops the answers that were held back, because the comparison at the next connect shows
        them, and the progress, because it does not hold for the next connection."""
        self._answers = PublisherRanges()
        self._stored = None

    def _soon(self) -> None:
        if not self._is_due:
            self._is_due = True
            self._call_later(SOON_S, self.flush)

    def flush(self) -> None:
        self._is_due = False
        self._tell_answers()
        stored, self._stored = self._stored, None
        if stored is not None:
            self._tell_progress(LinkProgress(stored, {}, False, self._skipped))

    def _tell_answers(self) -> None:
        if self._answers:
            answers, self._answers = self._answers, PublisherRanges()
            self._tell(LinkAnswered({UNAWAITED: ranges_of(answers)}, {}), 0)

    def _tell_progress(self, progress: LinkProgress) -> None:
        self._skipped = 0
        self._tell_answers()
        self._tell(progress, 0)
