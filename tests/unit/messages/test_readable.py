"""services/messages/readable.py: of a damaged run each fold takes what is readable, and goes on."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest
from unit.core.test_live import Bench
from unit.messages.test_lying_runs import HONEST, P, record, run
from unit.queues.test_enqueue_rules import entrance
from unit.queues.test_machine import ONE, Instance, delivered
from unit.replication.link.test_content import Words
from unit.subscriptions.test_replay_filters import filters, sequences

from raylay.services.core.queues import Queues, QueueState
from raylay.services.messages.readable import REMEMBERED_MAX, UNREADABLE, UnreadableRuns
from raylay.services.messages.records import Command, Flag, Run
from raylay.services.messages.topics import TopicRule
from raylay.services.queues.definition import QueueDefinition
from raylay.services.replication.link.content import DestinationFilters
from raylay.services.replication.values import Identity
from raylay.services.subscriptions.delivery import DELIVERY_BYTES_MAX, deliveries_of
from raylay.services.subscriptions.follow_terms import FollowTerms
from raylay.services.subscriptions.matching import LiveSubscription, topic_filter

pytestmark = pytest.mark.covers("Configuration", "a run whose header is not what its records say")

GARBAGE = b"\xff" * 70
DAMAGED = {
    "no lengths that fit": replace(HONEST, payload=record(1) + GARBAGE, first_txid=5),
    "lengths of nought": replace(HONEST, payload=record(1) + bytes(70), first_txid=5),
    "cut short": replace(HONEST, payload=HONEST.payload[:-1], first_txid=5),
    "fewer records": replace(HONEST, payload=record(1), first_txid=5),
}


def after() -> Run:
    """Makes the run that follows in the journal."""
    return replace(run(record(3)), first_txid=7)


def live(content: str, follows: bool = False) -> Callable[[Run], list[int]]:
    def fold(damaged: Run) -> list[int]:
        bench = Bench()
        terms = FollowTerms() if follows else None
        bench.live.add(LiveSubscription(1, "s", topic_filter("orders", ""), content, 0, terms))
        return [
            txid + at for _, txid, count in bench.commit(damaged, after()) for at in range(count)
        ]

    return fold


def enqueued(damaged: Run, **definition: str) -> list[int]:
    rules = entrance(**definition)
    return [
        run.first_txid + coming.at for run in (damaged, after()) for coming in rules.each(run, 1)
    ]


def routed(damaged: Run) -> list[int]:
    contents = DestinationFilters([TopicRule("orders", filter="{")], Words())
    found = []
    for each in (damaged, after()):
        for first, last in contents.passing(
            each, ["{"], [(each.first_sequence, each.last_sequence)]
        ):
            found += [each.first_txid + n - each.first_sequence for n in range(first, last + 1)]
    return found


def replayed(damaged: Run) -> list[int]:
    made = filters()
    return [
        each.first_txid + sequence - each.first_sequence
        for each in (damaged, after())
        for sequence in sequences(made, "/n IS NULL", each)
    ]


FOLDS: dict[str, Callable[[Run], list[int]]] = {
    "a subscription with a filter": live("/n IS NULL"),
    "a subscription that follows records": live("", follows=True),
    "a queue": enqueued,
    "a queue with a filter": lambda damaged: enqueued(damaged, filter="/n IS NULL"),
    "a destination with a filter": routed,
    "a replay with a filter": replayed,
}


@pytest.mark.parametrize("how", DAMAGED)
@pytest.mark.parametrize("what", FOLDS)
def test_each_fold_takes_what_is_readable_and_goes_on(what: str, how: str) -> None:
    assert FOLDS[what](DAMAGED[how]) == [5, 7]


def test_a_queue_reads_no_run_at_once_that_is_not_sound() -> None:
    rules = entrance()
    assert rules.plain(HONEST) == [1, 2]
    for damaged in DAMAGED.values():
        assert rules.plain(damaged) is None
    twice = replace(HONEST, payload=record(1) + record(1), first_txid=5)
    beyond = replace(HONEST, payload=record(1) + record(9), first_txid=5)
    for lies in (twice, beyond):
        assert rules.plain(lies) is None and enqueued(lies) == [5, 7]


@pytest.mark.parametrize("how", DAMAGED)
def test_acknowledgments_of_a_damaged_run_are_passed_over(how: str) -> None:
    """Where they are staged, and where they are folded; what follows counts."""
    queues = Queues([QueueDefinition("work", "json")], Identity("a", "g", 0xA, life=7))
    (frontend,) = queues.frontends.values()
    damaged = replace(DAMAGED[how], topic=b"work", flags=HONEST.flags | Flag.COMMANDS)
    QueueState(queues, frontend).staged(damaged)
    frontend.fold(damaged)
    frontend.fold(replace(run(record(3, "work", command=Command.TRANSFER)), first_txid=7))


@pytest.mark.parametrize("how", DAMAGED)
def test_the_owner_of_a_queue_delivers_what_is_readable_and_goes_on(how: str) -> None:
    here = Instance()
    here.join()
    here.commit(replace(DAMAGED[how], publisher=P))
    commands = replace(DAMAGED[how], topic=b"q", flags=HONEST.flags | Flag.COMMANDS)
    here.commit(replace(commands, publisher=P + 1))
    here.publish(3, publisher=P)
    assert delivered(here.take()) == {ONE: [1, 3]}


@pytest.mark.parametrize("how", DAMAGED)
@pytest.mark.timeout(30)
def test_a_large_run_is_delivered_up_to_the_first_that_cannot_be_read(how: str) -> None:
    front = run(record(1), record(2))
    many = b"".join(record(n) for n in range(1, 2 + DELIVERY_BYTES_MAX // len(record(1))))
    count = len(many) // len(record(1))
    damaged = replace(
        front,
        payload=many + DAMAGED[how].payload[len(record(1)) :],
        count=count + 1,
        last_sequence=count + 1,
        first_txid=5,
    )
    assert sum(each.count for each in deliveries_of(damaged)) == count
    nothing = replace(damaged, payload=bytes(2 * DELIVERY_BYTES_MAX))
    assert deliveries_of(nothing) == []
    bench = Bench()
    bench.subscribe("s")
    got = bench.commit(nothing, replace(after(), first_txid=damaged.last_txid + 1))
    assert [(first, n) for _, first, n in got] == [(damaged.last_txid + 1, 1)]


def test_a_run_is_told_once_and_counted_once_however_many_come_by_it() -> None:
    damaged = replace(DAMAGED["fewer records"], publisher=P + 1000)
    before = UNREADABLE.count
    UNREADABLE.take()
    enqueued(damaged)
    routed(damaged)
    assert UNREADABLE.count == before + 1
    text = UNREADABLE.take()
    assert "transactions 5 to 6" in text and "topic 'orders'" in text and "1 of 2" in text
    assert UNREADABLE.take() == ""


def test_so_many_are_remembered() -> None:
    made = UnreadableRuns()
    for number in range(1, REMEMBERED_MAX + 3):
        made.note(replace(HONEST, first_txid=2 * number), "damaged")
    assert made.count == REMEMBERED_MAX + 2 and len(made._known) == REMEMBERED_MAX
