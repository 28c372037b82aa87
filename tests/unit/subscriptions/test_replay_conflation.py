"""Conflated replays (services/subscriptions/replay_conflation.py), beside a plain recomputation of
the log."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import orjson
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.sow_given import P, book, put

from raylay.services.errors import RemoteProtocolError
from raylay.services.messages.conflation_terms import ConflationTerms
from raylay.services.messages.ranges import PublisherRanges
from raylay.services.messages.records import Record, Run, iterate_records
from raylay.services.messages.types.registry import MessageTypes
from raylay.services.subscriptions.bookmark import BookmarkSubscription, ReplayContent, ReplayStart
from raylay.services.subscriptions.follow_terms import FollowTerms
from raylay.services.subscriptions.matching import topic_filter
from raylay.services.subscriptions.replay_conflation import (
    RESUMED_US,
    STAMPS_APART_US_MAX,
    ReplayConflation,
    replay_conflation,
)

pytestmark = pytest.mark.covers("Views", "conflated replays")

TYPES = MessageTypes()
INTERVAL_US = 1_000_000
HOUR_US = 3_600_000_000


class Clock:
    def __init__(self) -> None:
        self.now_us = 0

    def __call__(self) -> int:
        return self.now_us


def conflation(
    clock: Clock,
    topic: str = "quotes",
    key: tuple[str, ...] = ("/s",),
    interval_us: int = INTERVAL_US,
    resumes: bool = False,
) -> ReplayConflation:
    topics = book()
    terms = FollowTerms(conflation=ConflationTerms(interval_us, key))
    wanted = topic_filter(topic, "")
    return replay_conflation(TYPES, topics.find, topics.matching, wanted, terms, clock, resumes)


def run(txid: int, at_us: int, *bodies: bytes, topic: str = "quotes", **more: Any) -> Run:
    return put(txid, *bodies, at_us=at_us, topic=topic, **more)


def records(run: Run, held: bool = False) -> list[tuple[Record, bool]]:
    return [(record, held) for record in iterate_records(run.payload)]


def bodies(deliveries: Iterable[Any]) -> list[Any]:
    return [
        orjson.loads(record.body) if record.body != b"{" else b"{"
        for delivery in deliveries
        for record in iterate_records(b"".join(delivery.bodies))
    ]


def take(made: ReplayConflation, found: Run, held: bool = False) -> list[Any]:
    return bodies(made.take(found, records(found, held)))


@pytest.mark.covers("Views and conflation, title by title", "a replay is conflated")
def test_the_last_message_of_each_interval_of_the_timeline_is_given() -> None:
    made = conflation(Clock())
    assert take(made, run(1, HOUR_US, b'{"s":"A","p":1}', b'{"s":"B","p":1}')) == []
    assert take(made, run(3, HOUR_US + 900_000, b'{"s":"A","p":2}')) == []
    assert made.oldest_txid == 1 and len(made) == 2 and made.pending_bytes > 0
    found = run(4, HOUR_US + INTERVAL_US, b'{"s":"A","p":3}', trace=bytes(range(1, 26)))
    given = made.take(found, records(found))
    assert bodies(given) == [{"s": "A", "p": 2}, {"s": "B", "p": 1}]
    assert [(each.receive_time_us, each.first_txid) for each in given] == [(HOUR_US, 0)], (
        "the time is that of the first message of the interval"
    )
    assert made.oldest_txid == 4
    (rest,) = made.all()
    assert bodies([rest]) == [{"s": "A", "p": 3}] and rest.traced
    assert made.oldest_txid is None and not made.pending_bytes


def test_keys_that_are_far_apart_do_not_share_a_delivery() -> None:
    made = conflation(Clock())
    take(made, run(1, HOUR_US, b'{"s":"A"}'))
    take(made, run(2, HOUR_US + STAMPS_APART_US_MAX + 1, b'{"s":"B"}'))
    assert len(made.all()) == 2


def test_at_the_end_of_the_log_the_time_goes_on_by_the_clock() -> None:
    clock = Clock()
    made = conflation(clock)
    assert made.wait_us is None
    take(made, run(1, HOUR_US, b'{"s":"A","p":1}'))
    assert made.due(HOUR_US + 100_000) == []
    assert made.wait_us == INTERVAL_US - 100_000
    # The clock of receive times is set back: the interval ends all the same.
    clock.now_us += 500_000
    assert made.due(0) == [] and made.wait_us == INTERVAL_US - 600_000
    assert take(made, run(2, 5, b'{"s":"A","p":2}', b'{"s":"B","p":2}')) == []
    clock.now_us += 400_000
    assert bodies(made.due(0)) == [{"s": "A", "p": 2}]
    clock.now_us += 600_000
    assert bodies(made.due(0)) == [{"s": "B", "p": 2}]


def test_what_is_long_past_is_given_at_once_at_the_end_of_the_log() -> None:
    made = conflation(Clock())
    take(made, run(1, HOUR_US, b'{"s":"A","p":1}'))
    assert bodies(made.due(2 * HOUR_US)) == [{"s": "A", "p": 1}]


def test_messages_without_a_key_come_at_once() -> None:
    made = conflation(Clock())
    assert take(made, run(1, HOUR_US, b"{")) == [b"{"]
    assert take(made, run(2, HOUR_US, b"{"), held=True) == []
    assert take(made, run(3, HOUR_US, b"{}", kind="no_type")) == [{}]
    sow = conflation(Clock(), "orders", ())
    assert take(sow, run(1, HOUR_US, b'{"id":1,"p":1}', b'{"p":1}', topic="orders")) == [{"p": 1}]
    every = conflation(Clock(), "orders|quotes", ())
    assert take(every, run(2, HOUR_US, b'{"p":2}')) == [{"p": 2}], "no SOW topic, and no key"


def test_sow_keys_are_the_keys_of_a_topic_that_has_them() -> None:
    made = conflation(Clock(), "orders", ())
    take(made, run(1, HOUR_US, b'{"id":1,"p":1}', b'{"id":2,"p":1}', topic="orders"))
    take(made, run(3, HOUR_US, b'{"id":1,"p":2}', topic="orders"))
    assert bodies(made.all()) == [{"id": 1, "p": 2}, {"id": 2, "p": 1}]


def test_a_message_whose_successor_the_client_has_is_not_given() -> None:
    made = conflation(Clock())
    take(made, run(1, HOUR_US, b'{"s":"A","p":1}', b'{"s":"B","p":1}'))
    assert take(made, run(3, HOUR_US, b'{"s":"A","p":2}', b'{"s":"C","p":2}'), held=True) == []
    assert made.oldest_txid == 1, "that of B"
    take(made, run(5, HOUR_US + 1, b'{"s":"A","p":3}'))
    assert bodies(made.all()) == [{"s": "B", "p": 1}, {"s": "A", "p": 3}]


def test_the_successor_may_be_farther_away_at_another_instance() -> None:
    made = conflation(Clock(), resumes=True)
    late_us = HOUR_US + INTERVAL_US + RESUMED_US
    assert take(made, run(1, HOUR_US, b'{"s":"A","p":1}', b'{"s":"B","p":1}')) == []
    assert take(made, run(3, late_us - 1, b'{"s":"A","p":2}'), held=True) == []
    assert take(made, run(4, late_us, b'{"s":"C","p":1}')) == [{"s": "B", "p": 1}]
    again = conflation(Clock(), resumes=True)
    take(again, run(1, HOUR_US, b'{"s":"A","p":1}'))
    assert bodies(again.due(HOUR_US + INTERVAL_US)) == [{"s": "A", "p": 1}], "the log ends here"


@pytest.mark.parametrize(
    ("more", "reason", "says"),
    [
        ({"interval_us": 0}, "not_supported", "no conflation=auto"),
        ({"key": ()}, "bad_command", "give conflation_key"),
    ],
)
def test_what_a_replay_cannot_be_is_refused(more: Any, reason: str, says: str) -> None:
    with pytest.raises(RemoteProtocolError, match=says) as refused:
        conflation(Clock(), **more)
    assert refused.value.reason == reason


# -- bookmark subscriptions --------------------------------------------------------------------
class Durable:
    def first_pending(self, publisher: int, first: int, last: int) -> int | None:
        return None


class Positive:
    """A content filter: messages with a positive price."""

    text = "/p > 0"
    has_given_up = False

    def passing(self, run: Run) -> list[tuple[int, int, int, int]]:
        found, offset = [], 0
        for before, record in enumerate(iterate_records(run.payload)):
            end = offset + len(record.raw)
            if orjson.loads(record.body)["p"] > 0:
                found.append((before, offset, end, record.sequence))
            offset = end
        return found

    def admits(self, run: Run) -> bool:
        return False


def subscribe(
    made: ReplayConflation,
    have: PublisherRanges | None = None,
    content: ReplayContent | None = None,
    end_txid: int | None = None,
) -> BookmarkSubscription:
    found = BookmarkSubscription(
        1,
        "s",
        topic_filter("quotes", ""),
        ReplayStart(0, end_txid),
        first_txid=1,
        committed_txid=0,
        held=PublisherRanges(),
        have=have,
        content=content,
        conflation=made,
    )
    while not found.prepared:
        found.skip_segments([])
        found.prepare([])
    return found


def test_persisted_acks_wait_for_what_is_pending() -> None:
    made = conflation(Clock())
    found = subscribe(made)
    runs = [
        run(1, HOUR_US, b'{"s":"A","p":1}'),
        run(2, HOUR_US + 500_000, b'{"s":"B","p":1}'),
        run(3, HOUR_US + 600_000, b'{"s":"A","p":2}'),
        run(4, HOUR_US + INTERVAL_US, b'{"s":"C","p":1}', topic="others"),
        run(5, HOUR_US + INTERVAL_US, b'{"s":"C","p":1}'),
    ]
    assert found.take(runs[:4], 4) == [] and found.take_persisted(Durable()) is None
    assert bodies(found.take(runs[4:], 5)) == [{"s": "A", "p": 2}]
    assert found.delivered == 1
    # All behind B waits, though the messages of A lie there: they are passed when B is given.
    first = found.take_persisted(Durable())
    assert first is None or not first.covers(P, [(2, 2)])
    made.all()
    rest = found.take_persisted(Durable())
    assert rest is not None and rest.covers(P, [(2, 5)])


def test_persisted_acks_go_on_while_messages_never_pause() -> None:
    made = conflation(Clock())
    found = subscribe(made)
    told = 0
    for txid in range(1, 5_001, 50):
        sent = [b'{"s":"%d","p":1}' % number for number in range(txid, txid + 50)]
        found.take([run(txid, HOUR_US + txid * 10_000, *sent)], txid + 49)
        fresh = found.take_persisted(Durable())
        told += 0 if fresh is None else fresh.count
    assert told >= 4_000


def test_a_filter_and_an_end_go_with_conflation() -> None:
    made = conflation(Clock())
    found = subscribe(made, content=Positive(), end_txid=3)
    runs = [
        run(1, HOUR_US, b'{"s":"A","p":1}', b'{"s":"A","p":0}'),
        run(3, HOUR_US, b'{"s":"B","p":0}', b'{"s":"A","p":2}'),
    ]
    assert found.take(runs, 4) == [] and found.ended
    assert bodies(made.all()) == [{"s": "A", "p": 1}]


STEP = st.tuples(st.integers(0, 4), st.sampled_from("AB"), st.booleans())


@settings(max_examples=200, deadline=None)
@given(st.lists(STEP, max_size=40), st.sets(st.integers(1, 40)))
def test_a_replay_gives_what_a_recomputation_of_the_log_gives(
    steps: list[tuple[int, str, bool]], had: set[int]
) -> None:
    made = conflation(Clock())
    have = PublisherRanges()
    for sequence in had:
        have.add(P, sequence, sequence)
    subscription = subscribe(made, have=have or None)
    tick_us = INTERVAL_US // 5
    now_us = HOUR_US
    given: list[int] = []
    expected: list[int] = []
    open_: dict[str, tuple[int, int]] = {}
    """Begin of the interval and last message of each key."""
    runs: list[Run] = []
    for sequence, (ticks, key, _) in enumerate(steps, 1):
        now_us += ticks * tick_us
        for other, (since_us, last) in list(open_.items()):
            if since_us + INTERVAL_US <= now_us:
                expected.append(last)
                del open_[other]
        if sequence in had:
            open_.pop(key, None)
        else:
            open_[key] = open_.get(key, (now_us, 0))[0], sequence
        body = orjson.dumps({"s": key, "p": sequence})
        runs.append(run(sequence, now_us, body))
    expected += [last for _, last in open_.values()]
    for each in runs:
        given += [body["p"] for body in bodies(subscription.take([each], each.last_txid))]
    given += [body["p"] for body in bodies(made.all())]
    assert sorted(given) == sorted(expected)
    assert not any(sequence in had for sequence in given)
    persisted = subscription.take_persisted(Durable())
    assert (persisted is None) == (not steps)
