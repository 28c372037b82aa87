"""Planted mistakes: each breaks one rule that design.md names, and the checkers must see it."""

from __future__ import annotations

from raylay.services.messages.records import Run
from raylay.services.replication.acknowledgment import DestinationLedger
from raylay.services.replication.effects import LinkEffect, Ranges, SendBatch
from raylay.services.replication.instance import InstanceMachine, UpstreamAnswer, _Upstream
from raylay.services.replication.outbound import OutboundLink
from raylay.services.replication.ranges import PublisherRanges, Range, SequenceSet
from sim.world import Machines


class PrefixAcks(InstanceMachine):
    """Answers an upstream only up to the first transaction that is not durable yet."""

    def _flush(self) -> None:
        floor_txid = self.durable_floor()
        kept_back: dict[int, PublisherRanges] = {}
        for connection, upstream in self._upstreams.items():
            back = PublisherRanges()
            for publisher, (a, b) in upstream.persisted.items():
                for run in self._lookup(publisher, a, b):
                    if run.last_txid > floor_txid:
                        for first, last in run.ranges():
                            back.add(publisher, max(a, first), min(b, last))
            upstream.persisted.difference_update(back)
            kept_back[connection] = back
            self._dirty_upstreams.add(connection)
        super()._flush()
        for connection, back in kept_back.items():
            if connection in self._upstreams:
                self._upstreams[connection].persisted.update(back)


class DuplicatesAnsweredAtOnce(InstanceMachine):
    """Answers what it holds already as soon as it comes again, whoever waits for it."""

    def upstream_logged_on(
        self,
        connection: int,
        name: str,
        group: str,
        incarnation: int,
        destination: str,
        epoch: int,
    ) -> tuple[list[object], UpstreamAnswer]:  # type: ignore[override]
        effects, answer = super().upstream_logged_on(
            connection, name, group, incarnation, destination, epoch
        )
        return list(effects), UpstreamAnswer(answer.held, PublisherRanges())

    def _take_replicated(
        self,
        upstream: _Upstream,
        run: Run,
        marked: bool,
        touched: Ranges,
        notes: Ranges,
        now_us: int,
    ) -> None:
        held = self.known.of(run.publisher)
        again = [piece for a, b in run.ranges() for piece in held.within(a, b)]
        self._again().add_ranges(run.publisher, again)
        super()._take_replicated(upstream, run, marked, touched, notes, now_us)

    def _again(self) -> PublisherRanges:
        found: PublisherRanges = self.__dict__.setdefault("came_again", PublisherRanges())
        return found

    def _answer_stored(self, upstream: _Upstream, publisher: int, ranges: list[Range]) -> None:
        super()._answer_stored(upstream, publisher, ranges)
        again = self._again().get(publisher)
        if again is not None:
            answered = [piece for a, b in ranges for piece in again.within(a, b)]
            upstream.persisted.add_ranges(publisher, answered)


class OldAnswersKept(InstanceMachine):
    """When it becomes awaited after it forwarded a message, what was answered stays answered."""

    def _ask_again(
        self, publisher: int, ranges: list[Range], now_us: int, ledgers: list[DestinationLedger]
    ) -> SequenceSet:
        asked = SequenceSet()
        for ledger in ledgers:
            owed = ledger.owed.get(publisher)
            if ledger.sync and owed is not None:
                for a, b in ranges:
                    for first, last in owed.within(a, b):
                        asked.add(first, last)
        for a, b in asked:
            self._pending_ages.add(now_us, 1, publisher, a, b)
        return asked


class HighWaterMark(InstanceMachine):
    """Takes everything below the highest sequence that it has for a duplicate."""

    def _append(self, run: Run, sender: int, now_us: int) -> None:
        super()._append(run, sender, now_us)
        self.known.add(run.publisher, 1, run.last_sequence)


class WindowFreedByPersisted(OutboundLink):
    """Counts against its window what is not persisted yet, not what is not stored yet."""

    def _unanswered(self) -> dict[int, tuple[int, PublisherRanges]]:
        found: dict[int, tuple[int, PublisherRanges]] = self.__dict__.setdefault("unanswered", {})
        return found

    def connected(self, *arguments, **named) -> list[LinkEffect]:  # type: ignore[no-untyped-def]
        self._unanswered().clear()
        return super().connected(*arguments, **named)

    @property
    def wants(self) -> bool:
        waiting_bytes = sum(size for size, _ in self._unanswered().values())
        return super().wants and waiting_bytes < self.window_bytes

    def _batch(
        self,
        runs: list[Run],
        awaited: PublisherRanges,
        size: int,
        before: int | None = None,
        ends: bool = False,
    ) -> SendBatch:
        if runs:
            sent = PublisherRanges()
            for run in runs:
                sent.add_ranges(run.publisher, run.ranges())
            self._unanswered()[self._number + 1] = (size, sent)
        return super()._batch(runs, awaited, size, before, ends)

    def acked(
        self, number: int, held: Ranges, persisted: Ranges, conflicts: Ranges
    ) -> list[LinkEffect]:
        for batch, (_, waiting) in list(self._unanswered().items()):
            for answers in (persisted, conflicts):
                for publisher, ranges in answers.items():
                    waiting.remove_ranges(publisher, ranges)
            if not waiting:
                del self._unanswered()[batch]
        return super().acked(number, held, persisted, conflicts)


class PathByName(OutboundLink):
    """Takes an instance that lost its disk for the one that it was."""

    name_of: dict[int, str]

    def _routed(self, run: Run) -> bool:
        names = {self.name_of[incarnation] for incarnation in run.path}
        return super()._routed(run) and self.name_of[self._downstream] not in names


# -- what the simulator found in the machines, put back ----------------------------------------
class SkipsWhatItSees(OutboundLink):
    """A resync skips whole segments by what the destination was seen to hold since the connect,
    and never asks for their answers."""

    def skip_segments(self, summaries: list[tuple[int, int, PublisherRanges]]) -> None:
        at_connect, self._at_connect = self._at_connect, self._held
        super().skip_segments(summaries)
        self._at_connect = at_connect


class OwesTheSender(InstanceMachine):
    """What came through a destination's server before its incarnation was known stays owed."""

    def _came_through(self, owed: PublisherRanges, incarnation: int) -> PublisherRanges:
        return PublisherRanges()


class AnswersANoticeEarly(InstanceMachine):
    """An answer to an earlier batch goes out under the number of the batch with the notice."""

    def _commit_note(self, sender: int, publisher: int, ranges: list[Range], now_us: int) -> None:
        waiter = self._upstream_of.get(sender)
        answers = waiter.persisted.copy() if waiter is not None else PublisherRanges()
        super()._commit_note(sender, publisher, ranges, now_us)
        if waiter is not None:
            waiter.persisted.update(answers)


class ForgetsTopics(InstanceMachine):
    """Knows only since its start what came on a topic, and so does not see what is late."""

    def _highest_in_journal(self, run: Run) -> int:
        return 0


MISTAKES: dict[str, Machines] = {
    "prefix acks": Machines(instance=PrefixAcks),
    "duplicates answered at once": Machines(instance=DuplicatesAnsweredAtOnce),
    "old answers kept": Machines(instance=OldAnswersKept),
    "windows freed by persisted": Machines(link=WindowFreedByPersisted),
    "high-water-mark duplicates": Machines(instance=HighWaterMark),
    "path by name": Machines(link=PathByName),
    "one logon number": Machines(durable_is_highest=True),
    "found: skips what it sees": Machines(link=SkipsWhatItSees),
    "found: owes the sender": Machines(instance=OwesTheSender),
    "found: answers a notice early": Machines(instance=AnswersANoticeEarly),
    "found: forgets topics": Machines(instance=ForgetsTopics),
}

CAUGHT_BY: dict[str, frozenset[str]] = {
    "prefix acks": frozenset(("liveness",)),
    "duplicates answered at once": frozenset(("acknowledged",)),
    "old answers kept": frozenset(("acknowledged",)),
    "windows freed by persisted": frozenset(("liveness",)),
    "high-water-mark duplicates": frozenset(("liveness", "acknowledged")),
    "path by name": frozenset(("liveness",)),
    "one logon number": frozenset(("acknowledged",)),
    "found: skips what it sees": frozenset(("liveness",)),
    "found: owes the sender": frozenset(("liveness",)),
    "found: answers a notice early": frozenset(("acknowledged",)),
    "found: forgets topics": frozenset(("order",)),
}
"""The laws that must see each of them."""
