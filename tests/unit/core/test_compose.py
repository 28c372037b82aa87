"""A life of an instance is put together from its journal and its recovery point."""

from __future__ import annotations

from dataclasses import replace

import pytest

from raylay.services.core.compose import Composition, FeatureClasses, InstanceCore, compose
from raylay.services.messages.ranges import PublisherRanges
from raylay.services.messages.records import RecordBuilder, Run, publisher_id, run_of, scan
from raylay.services.messages.topic_book import TopicBook
from raylay.services.messages.topics import TopicRule
from raylay.services.replication.effects import Append
from raylay.services.replication.instance import InstanceMachine, MachineParts
from raylay.services.replication.instance.admission import InstanceAdmission
from raylay.services.replication.journal_lookup import LookupResult, read_all
from raylay.services.replication.link.routing import DestinationRoute
from raylay.services.replication.recovery import RecoveryLog, RecoveryPoint
from raylay.services.replication.run_lookup import RunLookup
from raylay.services.replication.values import Identity
from raylay.storage.memory_journal import MemoryJournal

P = publisher_id("p")
OWN = 0xA
PRODUCTION = FeatureClasses()


def composition() -> Composition:
    peer = DestinationRoute("peer", "g", True, pass_through=".*", addresses=("peer",))
    return Composition(Identity("own", "g", OWN), [peer], TopicBook((TopicRule("orders"),)))


class CountedJournal(MemoryJournal):
    """Counts what a restart reads."""

    header_reads = 0

    def read_headers(self, after_txid: int, runs_max: int = 4096) -> list[Run]:
        """As it is, counted."""
        self.header_reads += 1
        return super().read_headers(after_txid, runs_max)


class Life:
    """One life of an instance that publishes to itself."""

    def __init__(self, journal: MemoryJournal, point: RecoveryPoint | None = None) -> None:
        self.journal = journal
        hints = RecoveryLog({}).changes(point) if point is not None else {}
        self.hints = {key: value for key, value in hints.items() if value}
        self.machine = self.composed().machine
        self.machine.client_logged_on(1, "p", 0)
        journal.start(lambda last_txid, _: None, lambda first_txid, error: None)

    def composed(self, kinds: FeatureClasses = PRODUCTION, headers_max: int = 4096) -> InstanceCore:
        lookup = RunLookup(self.journal)
        return compose(
            composition(),
            self.journal,
            lookup,
            self.hints,
            0,
            kinds=kinds,
            headers_max=headers_max,
        )

    def publish(self, *sequences: int) -> None:
        """Each in a run and a commit of its own."""
        builder = RecordBuilder(P, "orders", "json")
        for sequence in sequences:
            payload = builder.build(sequence, b"x", 0)
            runs = [run_of(chunk, payload) for chunk in scan(payload)]
            questions = self.machine.asks(runs, LookupResult())
            answers = read_all(questions, RunLookup(self.journal))
            for effect in self.machine.client_published(1, runs, 0, answers)[0]:
                if isinstance(effect, Append):
                    self.journal.stage(effect.run)
            self.machine.committed(self.journal.commit(), 0)

    def restarted(self, point: RecoveryPoint | None = None) -> Life:
        return Life(self.journal.crash(), point)

    def waits(self) -> list[tuple[int, int]]:
        return list(self.machine.pending.of(OWN).of(P))


def test_all_of_the_journal_waits_again_where_no_point_was_written() -> None:
    life = Life(MemoryJournal())
    life.publish(1, 2, 3)
    again = life.restarted()
    assert again.waits() == [(1, 3)]
    assert list(again.machine.held().of(P)) == [(1, 3)]
    again.publish(4)
    assert again.journal.read(3, 1000)[0].first_txid == 4


@pytest.mark.parametrize("headers_max", [1, 2, 4096])
def test_headers_are_read_in_parts(headers_max: int) -> None:
    life = Life(CountedJournal())
    life.publish(1, 2, 3, 4, 5)
    again = life.restarted()
    journal = again.journal
    assert isinstance(journal, CountedJournal)
    journal.header_reads = 0
    machine = again.composed(headers_max=headers_max).machine
    assert list(machine.pending.of(OWN).of(P)) == [(1, 5)]
    assert journal.header_reads == -(-5 // headers_max)


def test_what_is_settled_at_the_point_waits_no_more_and_what_is_behind_it_does() -> None:
    life = Life(MemoryJournal())
    life.publish(1, 2, 3)
    settled = replace(life.machine.recovery_point(), waiting=RecoveryPoint().waiting)
    life.publish(4, 5)
    assert life.restarted(settled).waits() == [(4, 5)]


def test_a_point_ahead_of_a_journal_that_lost_its_end_reads_nothing() -> None:
    life = Life(MemoryJournal())
    life.publish(1, 2)
    point = replace(life.machine.recovery_point(), committed_txid=9)
    assert life.restarted(point).waits() == [(1, 2)]


def test_a_point_counts_no_further_than_what_is_held() -> None:
    other = Life(MemoryJournal())
    other.publish(1, 2, 3)
    point = other.machine.recovery_point()
    life = Life(MemoryJournal())
    life.publish(1)
    assert life.restarted(point).waits() == [(1, 1)]


def test_a_planted_class_takes_the_place_of_production_s() -> None:
    class Another(InstanceMachine):
        pass

    class NobodyIsLetIn(InstanceAdmission):
        pass

    class NeverWritten(RecoveryLog):
        pass

    life = Life(MemoryJournal())
    kinds = FeatureClasses(Another, MachineParts(admission=NobodyIsLetIn), NeverWritten)
    core = life.composed(kinds)
    assert type(core.machine) is Another
    assert type(core.machine.admission) is NobodyIsLetIn
    assert type(core.recovery) is NeverWritten


def test_what_was_removed_waits_for_nobody() -> None:
    life = Life(MemoryJournal(1))
    life.publish(1, 2, 3)
    point = life.machine.recovery_point()
    life.journal.removable(3)
    assert life.journal.remove(3)
    removed = life.journal.removed()
    assert isinstance(removed, PublisherRanges) and list(removed.of(P)) == [(1, 2)]
    again = life.restarted(point)
    assert again.waits() == [(3, 3)]
    assert list(again.machine.held().of(P)) == [(1, 3)]
