"""What is asked of the journal, what is read for it, and what is told. The look-up itself is in
tests/storage/test_run_lookup.py; whole instances are in tests/sim."""

from __future__ import annotations

import gc
from collections.abc import Sequence
from typing import Any

import pytest
from support.journal_cases import a_run

from raylay.services.messages.ranges import SequenceSet
from raylay.services.messages.records import Run
from raylay.services.messages.topic_book import TopicBook
from raylay.services.messages.topics import (
    TopicRule,
)
from raylay.services.replication.effects import AckClient, Append
from raylay.services.replication.instance import Identity, InstanceMachine, intake
from raylay.services.replication.journal_lookup import (
    READS_IN_STEP,
    LookupRequest,
    LookupResult,
    LookupTask,
    RunOverlap,
    read_all,
)
from raylay.services.replication.run_lookup import RunLookup
from raylay.storage.memory_journal import MemoryJournal

pytestmark = pytest.mark.covers("Journal", "a serving instance reads no journal on its event loop")

UP, OTHER = 0xC, 0xD
P = 7


class Bench:
    """A machine, the journal behind it, and two upstreams."""

    def __init__(self) -> None:
        self.journal = MemoryJournal()
        self.journal.start(self._committed, lambda first, error: None)
        self.lookup = RunLookup(self.journal, stretch_bytes=1)
        self.machine = InstanceMachine(
            Identity("own", "g", 0xA), (), TopicBook((TopicRule(".*"),)), lookup=self.lookup
        )
        for connection, incarnation in ((1, UP), (2, OTHER)):
            name = f"up{connection}"
            self.machine.upstream_logged_on(connection, name, "g", incarnation, "own", 1)
        self.numbers = {1: 0, 2: 0}
        self.staged: list[Run] = []

    def _committed(self, last_txid: int, _: int) -> None:
        self.machine.committed(last_txid, 0)

    def asks(self, answers: LookupResult, *runs: Run) -> LookupRequest:
        return self.machine.asks(runs, answers)

    def take(self, connection: int, answers: LookupResult, *runs: Run) -> list[Any]:
        self.numbers[connection] += 1
        number = self.numbers[connection]
        effects = self.machine.upstream_batch(
            connection, number, list(runs), False, {}, False, 0, answers
        )
        for effect in effects:
            if isinstance(effect, Append):
                self.journal.stage(effect.run)
                self.staged.append(effect.run)
        return effects

    def late(self) -> list[tuple[int, ...]]:
        return [
            tuple(range(run.first_sequence, run.last_sequence + 1))
            for run in self.staged
            if run.flags & 2
        ]


def run(*sequences: int, topic: str = "orders", body_bytes: int = 16) -> Run:
    made = a_run(0, list(sequences), publisher=P, topic=topic, body_bytes=body_bytes)
    made.path = ()
    return made


def asked(questions: LookupRequest) -> list[list[tuple[int, int]]]:
    return [list(each.wanted) for each in questions.compared]


def test_what_is_new_asks_nothing() -> None:
    bench = Bench()
    answers = LookupResult()
    assert not bench.asks(answers, run(1, 2))
    bench.take(1, answers, run(1, 2))
    assert not bench.asks(answers, run(3)), "staged, and behind what is staged"
    bench.journal.commit()
    assert not bench.asks(answers, run(3))


def test_what_is_staged_is_compared_in_memory_and_what_is_on_disk_is_asked() -> None:
    bench = Bench()
    bench.take(1, LookupResult(), run(1, 2, 3))
    again = run(2, 3, 4)
    answers = LookupResult()
    assert not bench.asks(answers, again)
    bench.journal.commit()
    questions = bench.asks(answers, again)
    assert asked(questions) == [[(2, 3)]]
    LookupTask(questions, answers).step(bench.lookup)
    assert not bench.asks(answers, again)
    bench.take(2, answers, again)
    assert bench.machine.counters.duplicates == 2


def test_what_is_committed_while_it_is_read_is_asked_again() -> None:
    bench = Bench()
    bench.take(1, LookupResult(), run(1, 2))
    bench.journal.commit()
    bench.take(1, LookupResult(), run(3, 4))
    again, answers = run(1, 2, 3, 4, 5), LookupResult()
    first = bench.asks(answers, again)
    assert asked(first) == [[(1, 2)]]
    bench.journal.commit()
    LookupTask(first, answers).step(bench.lookup)
    second = bench.asks(answers, again)
    assert asked(second) == [[(3, 4)]]
    LookupTask(second, answers).step(bench.lookup)
    assert not bench.asks(answers, again)
    bench.take(2, answers, again)
    assert bench.machine.counters.duplicates == 4 and bench.machine.counters.conflicts == 0


def test_who_gives_in_what_was_not_read_ends_the_step() -> None:
    """Never taken for the same: that would acknowledge what is nowhere."""
    bench = Bench()
    bench.take(1, LookupResult(), run(1, 2, 5))
    bench.journal.commit()
    with pytest.raises(RuntimeError, match="contents of publisher 7 were not read"):
        bench.take(2, LookupResult(), run(1, 2))
    bench = Bench()
    bench.take(1, LookupResult(), run(1, 2, 5))
    bench.journal.commit()
    bench.machine.intake._topic_highest.clear()
    with pytest.raises(RuntimeError, match="highest on b'orders' of publisher 7 were not read"):
        bench.take(2, LookupResult(), run(3))


@pytest.mark.parametrize("stretch_bytes", [1, 10_000])
@pytest.mark.parametrize("shape", [[(1, 9)], [(1, 3), (4, 6), (7, 9)], [(1, 1), (2, 9)]])
def test_each_message_with_another_content_is_found(
    shape: Sequence[tuple[int, int]], stretch_bytes: int
) -> None:
    """However the runs were cut when they came first, and however much one read brings."""
    journal = MemoryJournal()
    journal.start(lambda last, ns: None, lambda first, error: None)
    txid = 1
    for first, last in shape:
        journal.stage(a_run(txid, range(first, last + 1)))
        txid += last - first + 1
    journal.commit()
    came = run(*range(1, 10))
    other = run(*(2, 5, 9), body_bytes=17)
    lookup = RunLookup(journal, stretch_bytes=stretch_bytes)
    as_long = run(*range(1, 10), topic="trades")
    for each, wanted, differing in (
        (came, [(1, 9)], []),
        (other, [(2, 2), (5, 5), (9, 9)], None),
        (as_long, [(1, 9)], None),
    ):
        questions = LookupRequest()
        questions.compared.append(RunOverlap(each, SequenceSet(wanted)))
        answers = read_all(questions, lookup)
        assert list(answers.differing(each)) == (wanted if differing is None else differing)
        assert not answers.not_compared(each, SequenceSet(wanted))
        (routed,) = answers.routes(P, 0xE, SequenceSet(wanted))
        assert routed.route.sender == 0xE and list(routed.ranges) == wanted


def test_a_fetch_reads_in_parts_and_keeps_no_payload() -> None:
    journal = MemoryJournal()
    journal.start(lambda last, ns: None, lambda first, error: None)
    sequences = range(1, 101)
    for sequence in sequences:
        journal.stage(a_run(sequence, [sequence], body_bytes=1_000))
    journal.commit()
    lookup = RunLookup(journal, stretch_bytes=1)
    came = run(*sequences, body_bytes=1_000)
    questions, answers = LookupRequest(), LookupResult()
    questions.compared.append(RunOverlap(came, SequenceSet([(1, 100)])))
    fetch = LookupTask(questions, answers)
    steps = 1
    while not fetch.step(lookup):
        steps += 1
    assert steps == -(-100 // READS_IN_STEP)
    assert not answers.differing(came) and not answers.not_compared(came, SequenceSet([(1, 100)]))
    kept = [each for each in _reachable(answers) if isinstance(each, bytes) and len(each) > 900]
    assert kept == [came.payload]


def _reachable(root: object) -> list[object]:
    found: dict[int, object] = {}
    left = [root]
    while left:
        each = left.pop()
        if id(each) not in found and not isinstance(each, type):
            found[id(each)] = each
            left += gc.get_referents(each)
    return list(found.values())


def test_a_message_that_fills_a_hole_is_late_by_what_the_journal_says() -> None:
    bench = Bench()
    bench.take(1, LookupResult(), run(1, 2), run(5, 6), run(8, topic="trades"))
    bench.journal.commit()
    bench.machine.intake._topic_highest.clear()
    for connection, came in ((1, run(7)), (2, run(4)), (1, run(9, topic="rare"))):
        answers = LookupResult()
        questions = bench.asks(answers, came)
        LookupTask(questions, answers).step(bench.lookup)
        bench.take(connection, answers, came)
    assert bench.late() == [(4,)]


def test_many_topics_are_forgotten_and_late_messages_are_late(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A topic for each order, for ever. What is not on the disk yet is not forgotten: the journal
    could not say it."""
    monkeypatch.setattr(intake, "TOPICS_KNOWN_MAX", 50)
    bench = Bench()
    for number in range(1, 400, 2):
        came, answers = run(number, topic=f"order {number % 200}"), LookupResult()
        questions = bench.asks(answers, came)
        if questions:
            LookupTask(questions, answers).step(bench.lookup)
        bench.take(1, answers, came)
        if number % 20 == 1:
            bench.journal.commit()
        known = bench.machine.intake
        assert len(known._topic_highest[P]) == known._topics_known <= 51 + known._topics_kept
    late = []
    monkeypatch.setattr(intake, "TOPICS_KNOWN_MAX", 0)
    for number, topic, is_late in (
        (2, "order 1", True),  # on the disk: order 1 has had 201
        (396, "order 199", True),  # not on the disk: it has had 399
        (398, "order 1", False),
        (4, "another", False),
    ):
        came, answers = run(number, topic=topic), LookupResult()
        questions = bench.asks(answers, came)
        if questions:
            LookupTask(questions, answers).step(bench.lookup)
        bench.take(2, answers, came)
        late += [number] if is_late else []
    bench.journal.commit()
    assert bench.late() == [(number,) for number in late]


def test_what_was_highest_before_topics_were_forgotten_is_asked_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Between the question and its answer others came on the topic, were committed, forgotten."""
    bench = Bench()
    bench.take(1, LookupResult(), run(1), run(9, topic="trades"))
    bench.journal.commit()
    bench.machine.intake._topic_highest.clear()
    late, answers = run(4), LookupResult()
    LookupTask(bench.asks(answers, late), answers).step(bench.lookup)
    assert answers.highest_on(P, b"orders") == 0
    ahead, theirs = run(6), LookupResult()
    LookupTask(bench.asks(theirs, ahead), theirs).step(bench.lookup)
    bench.take(1, theirs, ahead)
    bench.journal.commit()
    bench.machine.committed(bench.journal.last_txid, 0)
    monkeypatch.setattr(intake, "TOPICS_KNOWN_MAX", 0)
    again = bench.asks(answers, late)
    assert again, "the answer was of before"
    LookupTask(again, answers).step(bench.lookup)
    bench.take(2, answers, late)
    assert bench.late() == [(4,)]


def test_what_was_highest_before_a_failed_commit_is_asked_again() -> None:
    """Between the question and its answer others may have come on the topic and be committed, and
    the machine may have forgotten them in a failure."""
    bench = Bench()
    bench.take(1, LookupResult(), run(1), run(2, topic="trades"))
    bench.take(1, LookupResult(), run(9, topic="trades"))
    bench.journal.commit()
    bench.machine.intake._topic_highest.clear()
    late, answers = run(4), LookupResult()
    LookupTask(bench.asks(answers, late), answers).step(bench.lookup)
    assert answers.highest_on(P, b"orders") == 0
    ahead, theirs = run(6), LookupResult()
    LookupTask(bench.asks(theirs, ahead), theirs).step(bench.lookup)
    bench.take(1, theirs, ahead)
    bench.journal.commit()
    bench.take(1, LookupResult(), run(20))
    bench.machine.append_failed(bench.machine.committed_txid + 1, "storage_error", "full", 0)
    bench.journal.crash()
    again = bench.asks(answers, late)
    assert again.topics, "what was read is forgotten"
    LookupTask(again, answers).step(bench.lookup)
    assert answers.highest_on(P, b"orders") == 6


def test_a_client_is_told_of_a_conflict_found_in_the_journal() -> None:
    bench = Bench()
    machine = bench.machine
    publisher = machine.client_logged_on(5, "p", 0).publisher
    effects: list[Any] = []
    for body_bytes in (16, 17):
        payload = a_run(0, [1, 2], publisher=publisher, body_bytes=body_bytes).payload
        runs, answers = machine.client_runs(5, payload), LookupResult()
        LookupTask(machine.asks(runs, answers), answers).step(bench.lookup)
        effects = machine.client_published(5, runs, 0, answers)[0]
        for effect in effects:
            if isinstance(effect, Append):
                bench.journal.stage(effect.run)
        bench.journal.commit()
        if body_bytes == 16:
            machine.client_left(5)
            machine.client_logged_on(5, "p", 0)
    reasons = [each.reason for each in effects if isinstance(each, AckClient)]
    assert reasons == ["sequence_conflict", "sequence_conflict"]
