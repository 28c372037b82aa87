"""One connection's order, whatever has to be read for what came over it."""

from __future__ import annotations

import pytest
from support.held_runs import HeldRuns

from raylay.services.messages.ranges import SequenceSet
from raylay.services.messages.records import Run
from raylay.services.replication.inbound_queue import InboundQueue
from raylay.services.replication.journal_lookup import LookupRequest, LookupResult, RunOverlap

pytestmark = pytest.mark.covers("Journal", "a serving instance reads no journal on its event loop")

RUN = Run(7, 1, 1, 1, b"")


class Taker:
    """Takes words, and must read first for those that begin with a question mark: once for each
    of their question marks."""

    def __init__(self) -> None:
        self.taken: list[str] = []
        self.decoded = 0
        self.arrivals = InboundQueue(self.take)

    def take(self, what: str, answers: LookupResult) -> LookupRequest | None:
        asked = answers.decoded or 0
        self.decoded += answers.decoded is None
        if asked < what.count("?"):
            answers.decoded = asked + 1
            questions = LookupRequest()
            questions.compared.append(RunOverlap(RUN, SequenceSet([(1, 1)])))
            return questions
        self.taken.append(what)
        return None


def test_what_asks_nothing_is_taken_at_once() -> None:
    taker = Taker()
    assert [taker.arrivals.came(each) for each in "ab"] == [None, None]
    assert taker.taken == ["a", "b"] and not taker.arrivals


def test_what_comes_behind_a_question_waits_and_is_taken_in_order() -> None:
    taker = Taker()
    arrivals = taker.arrivals
    fetch = arrivals.came("?a", 10)
    assert fetch is not None and fetch.step(HeldRuns())
    assert [arrivals.came(each, 100) for each in ("b", "??c", "d")] == [None] * 3
    assert taker.taken == [] and len(arrivals) == 4 and arrivals.waiting_bytes == 310
    second = arrivals.fetched()
    assert second is not None and second is not fetch
    assert taker.taken == ["?a", "b"] and arrivals.waiting_bytes == 200
    assert arrivals.fetched() is not None, "it asks again: something was committed meanwhile"
    assert arrivals.came("e") is None
    assert arrivals.fetched() is None
    assert taker.taken == ["?a", "b", "??c", "d", "e"]
    assert not arrivals and arrivals.waiting_bytes == 0
    assert taker.decoded == 5, "what waits is decoded once"


def test_the_answers_to_one_are_not_those_to_the_next() -> None:
    taker = Taker()
    taker.arrivals.came("?a")
    taker.arrivals.came("?b")
    assert taker.arrivals.fetched() is not None
    assert taker.arrivals.fetched() is None
    assert taker.taken == ["?a", "?b"] and taker.decoded == 2


def test_what_is_decoded_and_taken_at_once_is_not_taken_for_the_next() -> None:
    taken: list[str] = []

    def take(what: str, answers: LookupResult) -> LookupRequest | None:
        if answers.decoded is None:
            answers.decoded = what
        taken.append(answers.decoded)
        return None

    arrivals = InboundQueue(take)
    assert arrivals.came("a") is None and arrivals.came("b") is None
    assert taken == ["a", "b"]


def test_a_connection_that_ends_in_the_middle_of_it_takes_nothing_more() -> None:
    taken: list[str] = []

    def take(what: str, answers: LookupResult) -> LookupRequest | None:
        if answers.decoded is None and what == "?a":
            answers.decoded = True
            questions = LookupRequest()
            questions.compared.append(RunOverlap(RUN, SequenceSet([(1, 1)])))
            return questions
        taken.append(what)
        arrivals.clear()
        return None

    arrivals = InboundQueue(take)
    arrivals.came("?a", 1)
    arrivals.came("b", 1)
    assert arrivals.fetched() is None
    assert taken == ["?a"] and arrivals.waiting_bytes == 0


class Looking:
    """Something that takes so many looks."""

    def __init__(self, looks: int) -> None:
        self.left = looks
        self.closed = 0

    @property
    def done(self) -> bool:
        return self.left <= 0

    def take(self, most: int) -> None:
        self.left -= most

    def close(self) -> None:
        self.closed += 1


def asking(*looking: Looking) -> InboundQueue:
    """One that is asked for all of these, as long as they are not done."""

    def take(what: str, answers: LookupResult) -> LookupRequest | None:
        questions = LookupRequest()
        questions.looking += answers.looks(looking)
        return questions if questions else None

    return InboundQueue(take)


def test_what_is_looked_for_is_taken_in_turns_and_closed_behind_the_arrival() -> None:
    first, second = Looking(5), Looking(3)
    arrivals = asking(first, second)
    fetch = arrivals.came("a")
    assert fetch is not None and fetch.step(HeldRuns()) and not fetch.look(0)
    looks = 1
    while not fetch.look(2):
        looks += 1
        assert second.left == 3 or first.done, "one behind the other"
    assert looks == 5 and (first.closed, second.closed) == (0, 0)
    assert arrivals.fetched() is None
    assert (first.closed, second.closed) == (1, 1) and not arrivals


def test_what_is_looked_for_is_closed_with_its_connection() -> None:
    looking = Looking(5)
    arrivals = asking(looking)
    arrivals.came("a")
    arrivals.clear()
    assert looking.closed == 1
