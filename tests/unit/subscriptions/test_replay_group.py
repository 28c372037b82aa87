"""Subscriptions replayed together: log order across them, one rate, and nothing undurable."""

from __future__ import annotations

import random
from bisect import bisect_right

import pytest
from unit.subscriptions.test_bookmark import Divisible, Durable, Log, Message

from raylay.services.messages.rates import parse_rate
from raylay.services.messages.records import iterate_records
from raylay.services.subscriptions.bookmark import BookmarkSubscription
from raylay.services.subscriptions.replay_group import (
    PIECE_BYTES,
    PIECE_RECORDS,
    ReplayGroup,
    ReplayTerms,
    groups_of,
)

pytestmark = [
    pytest.mark.covers("Clients and protocol", "`fully_durable`"),
    pytest.mark.covers("Clients and protocol", "pause, resume; those resumed in one command"),
]

EVERYTHING_DURABLE = Durable()
Got = tuple[str, int, int]
"""Subscription id, publisher, sequence."""


def terms(bookmark: str = "0", rate: str = "", fully_durable: bool = False) -> ReplayTerms:
    return ReplayTerms(bookmark, parse_rate(rate) if rate else None, fully_durable)


def named(made: BookmarkSubscription, name: str) -> BookmarkSubscription:
    made.id = name
    return made


def pump(
    log: Log,
    replay: ReplayGroup,
    now_us: int = 0,
    durable: Durable = EVERYTHING_DURABLE,
    read_bytes: int = 300,
) -> list[Got]:
    """Everything that goes out now."""
    found: list[Got] = []
    while replay.cursor < log.txid - 1 and not replay.ended:
        before = replay.cursor
        runs = log.journal.read(before, read_bytes)
        for member, delivery in replay.take(runs, log.txid - 1, now_us, durable):
            records = [r for body in delivery.bodies for r in iterate_records(body)]
            assert len(records) == delivery.count
            assert delivery.first_txid == log.txid_of(records[0].publisher, records[0].sequence)
            assert delivery.size_bytes == sum(len(r.raw) for r in records)
            found += [(member.id, record.publisher, record.sequence) for record in records]
        if replay.cursor == before:
            break
    return found


def filled(chance: random.Random) -> Log:
    log = Log()
    next_of = {1: 1, 2: 1, 3: 1}
    for _ in range(60):
        publisher = chance.choice((1, 2, 3))
        count = chance.randint(1, 5)
        log.append(
            publisher,
            chance.choice("abc"),
            *range(next_of[publisher], next_of[publisher] + count),
        )
        next_of[publisher] += count
    return log


def in_log_order(log: Log, got: list[Got]) -> bool:
    """Strictly for members that want different messages; a run that several want goes to one of
    them after the other."""
    txids = [log.txid_of(publisher, sequence) for _, publisher, sequence in got]
    apart = [txid for txid, (who, _, _) in zip(txids, got, strict=True) if who != "all"]
    runs = [bisect_right(log.starts, txid) for txid in txids]
    return apart == sorted(apart) and runs == sorted(runs)


@pytest.mark.parametrize("seed", range(20))
def test_members_that_stand_in_different_places_get_theirs_in_the_order_of_the_log(
    seed: int,
) -> None:
    chance = random.Random(seed)
    log = filled(chance)
    members = [named(log.subscribe("0", topic), topic) for topic in "ab"]
    members.append(named(log.subscribe("0", ".*"), "all"))
    before: list[Got] = []
    for member in members:
        # Each was let go on for a while before it was paused, inside a run where it happens so.
        limit = chance.randint(0, log.txid - 1)
        alone = ReplayGroup([member], terms(), 0)
        while alone.cursor < limit:
            for _, delivery in alone.take(
                log.journal.read(alone.cursor), limit, 0, EVERYTHING_DURABLE
            ):
                before += [
                    (member.id, r.publisher, r.sequence)
                    for body in delivery.bodies
                    for r in iterate_records(body)
                ]
    replay = ReplayGroup(members, terms(rate=chance.choice(("", "1000000"))), 0)
    got: list[Got] = []
    now_us = 0
    while replay.cursor < log.txid - 1:
        got += pump(log, replay, now_us, read_bytes=chance.choice((100, 5_000)))
        now_us = replay.due_us or now_us + 1
    assert in_log_order(log, got)
    everything = before + got
    assert len(set(everything)) == len(everything)
    for name, topic in (("a", "a"), ("b", "b")):
        assert [(p, n) for who, p, n in everything if who == name] == log.behind(0, topic)
    wanted = [(p, n) for _, _, p, n in log.messages]
    assert [(p, n) for who, p, n in everything if who == "all"] == wanted


def test_alone_a_run_that_both_want_goes_to_both_one_after_the_other() -> None:
    log = Log()
    log.append(1, "a", 1, 2)
    log.append(2, "a", 1)
    members = [named(log.subscribe("0"), name) for name in "xy"]
    got = pump(log, ReplayGroup(members, terms(), 0))
    assert got == [("x", 1, 1), ("x", 1, 2), ("y", 1, 1), ("y", 1, 2), ("x", 2, 1), ("y", 2, 1)]


def test_only_the_same_terms_are_one_replay() -> None:
    log = Log()
    log.append(1, "a", 1)
    first, second, third, fourth, fifth = (log.subscribe("0") for _ in range(5))
    groups = groups_of(
        [
            (first, terms()),
            (second, terms(rate="2X")),
            (third, terms()),
            (fourth, terms("0|1|")),
            (fifth, terms(fully_durable=True)),
        ]
    )
    assert [members for _, members in groups] == [[first, third], [second], [fourth], [fifth]]


def test_one_member_may_end_before_the_others() -> None:
    log = Log()
    log.append(1, "a", 1, 2, 3)
    log.append(1, "b", 4)
    log.append(1, "a", 5)
    short = named(log.subscribe("[0:1|2|]"), "short")
    long = named(log.subscribe("0"), "long")
    replay = ReplayGroup([short, long], terms(), 0)
    got = pump(log, replay)
    assert [n for who, _, n in got if who == "short"] == [1, 2]
    assert [n for who, _, n in got if who == "long"] == [1, 2, 3, 5]
    assert short.ended and not replay.ended


def test_a_rate_holds_for_all_members_together() -> None:
    log = Log()
    for number in range(1, 101):
        log.append(1, "ab"[number % 2], number)
    members = [named(log.subscribe("0", topic), topic) for topic in "ab"]
    replay = ReplayGroup(members, terms(rate="100"), 0)
    got: list[Got] = []
    now_us = 0
    while replay.cursor < 100:
        got += pump(log, replay, now_us)
        if replay.cursor < 100:
            assert replay.due_us is not None
            now_us = replay.due_us
            assert len(got) <= 2 + now_us / 10_000
    assert [n for _, _, n in got] == list(range(1, 101))
    assert 0.97e6 <= now_us <= 1.0e6


def test_what_does_not_match_costs_nothing_of_the_rate() -> None:
    log = Log()
    log.append(1, "b", *range(1, 500))
    log.append(1, "a", 500)
    replay = ReplayGroup([log.subscribe("0")], terms(rate="1"), 0)
    assert [n for _, _, n in pump(log, replay)] == [500]


# -- fully durable ---------------------------------------------------------------------------------
def test_it_stops_before_the_first_message_that_is_not_durable() -> None:
    log = Log()
    log.append(1, "a", 1, 2, 3, 5)
    log.append(2, "a", 1)
    replay = ReplayGroup([log.subscribe("0")], terms(fully_durable=True), 0)
    assert pump(log, replay, durable=Durable((1, 1))) == []
    assert replay.is_blocked(Durable((1, 1)))
    # 4 lies in a gap of the run, wherever it is: the run is not held up by it.
    assert [m[1:] for m in pump(log, replay, durable=Durable((1, 4), (1, 5)))] == [
        (1, 1),
        (1, 2),
        (1, 3),
    ]
    assert [m[1:] for m in pump(log, replay, durable=Durable((1, 4), (2, 1)))] == [(1, 5)]
    assert not replay.is_blocked(Durable((1, 5)))
    assert [m[1:] for m in pump(log, replay)] == [(2, 1)]


def test_what_does_not_match_holds_it_up_as_well() -> None:
    log = Log()
    log.append(1, "b", 1)
    log.append(1, "a", 2)
    replay = ReplayGroup([log.subscribe("0")], terms(fully_durable=True), 0)
    assert pump(log, replay, durable=Durable((1, 1))) == []
    assert [m[1:] for m in pump(log, replay)] == [(1, 2)]


@pytest.mark.parametrize("seed", range(20))
def test_nothing_undurable_is_ever_delivered_and_everything_in_the_end(seed: int) -> None:
    chance = random.Random(seed)
    log = filled(chance)
    waiting: list[Message] = [(p, n) for _, _, p, n in log.messages]
    chance.shuffle(waiting)
    rate = chance.choice(("", "500"))
    replay = ReplayGroup([log.subscribe("0", ".*")], terms("0", rate, True), 0)
    got: list[Message] = []
    now_us = 0
    while waiting or replay.cursor < log.txid - 1:
        durable = Durable(*waiting)
        fresh = [m[1:] for m in pump(log, replay, now_us, durable, chance.choice((80, 1_000)))]
        assert not set(fresh) & set(waiting)
        got += fresh
        del waiting[: chance.randint(1, 8)]
        now_us += chance.choice((1_000, 50_000))
    assert got == [(p, n) for _, _, p, n in log.messages]


# -- content filters ---------------------------------------------------------------------------
@pytest.mark.covers("Filters by content", "a bookmark subscription with a filter")
@pytest.mark.parametrize("rate", ["10", "1KB", "2X"])
def test_a_rate_counts_what_passes_and_what_does_not_goes_by(rate: str) -> None:
    log = Log()
    log.append(1, "a", *range(1, 401))
    member = log.subscribe("0", content=Divisible(100))
    replay = ReplayGroup([member], terms(rate=rate), 0)
    got, now_us = pump(log, replay), 0
    if rate == "10":
        # A slice lets one message out: behind it all goes by up to the next that passes.
        assert got == [("s", 1, 100)] and replay.cursor == 199
    while replay.cursor < 400:
        assert replay.due_us is not None and replay.due_us > now_us
        now_us = replay.due_us
        got += pump(log, replay, now_us)
    assert [sequence for _, _, sequence in got] == [100, 200, 300, 400]
    if rate == "10":
        assert 300_000 <= now_us < 320_000


def test_members_with_a_filter_and_without_are_replayed_together() -> None:
    log = filled(random.Random(5))
    every, some = named(log.subscribe("0"), "every"), log.subscribe("0", content=Divisible(3))
    got = pump(log, ReplayGroup([every, some], terms(), 0))
    assert [each[1:] for each in got if each[0] == "every"] == log.behind(0)
    passing = [(p, n) for p, n in log.behind(0) if n % 3 == 0]
    assert [each[1:] for each in got if each[0] == "s"] == passing


@pytest.mark.covers("Filters by content", "a bookmark subscription with a filter")
def test_fully_durable_holds_a_filtered_replay_at_what_does_not_pass() -> None:
    """It may be of another topic, too: the log is delivered up to there."""
    log = Log()
    log.append(1, "a", *range(1, 9))
    replay = ReplayGroup([log.subscribe("0", content=Divisible(2))], terms(fully_durable=True), 0)
    assert pump(log, replay, durable=Durable((1, 5))) == [("s", 1, 2), ("s", 1, 4)]
    assert replay.is_blocked(Durable((1, 5))) and replay.cursor == 4
    assert pump(log, replay) == [("s", 1, 6), ("s", 1, 8)]


@pytest.mark.covers("Filters by content", "a bookmark subscription with a filter")
def test_a_turn_of_judging_is_bounded() -> None:
    log = Log()
    log.append(1, "a", *range(1, PIECE_RECORDS * 3))
    log.append(1, "b", *range(PIECE_RECORDS * 3, PIECE_RECORDS * 6))
    for number in range(20):
        log.append(2, "a", number + 1)
    replay = ReplayGroup([log.subscribe("0", content=Divisible(1))], terms(), 0)
    runs = log.journal.read(0, 1 << 30)
    stops = []
    while replay.cursor < log.txid - 1:
        runs, limit_txid = replay.turn_of(runs, log.txid - 1)
        replay.take(runs, limit_txid, 0, EVERYTHING_DURABLE)
        assert replay.cursor == limit_txid
        stops.append(limit_txid)
    # What is on another topic costs nothing: it goes with what is judged.
    assert stops == [PIECE_RECORDS, PIECE_RECORDS * 2, PIECE_RECORDS * 6, log.txid - 1]
    assert all(each.count <= PIECE_RECORDS and len(each.payload) <= PIECE_BYTES for each in runs)
    ended = ReplayGroup([log.subscribe("0|1|", content=Divisible(1))], terms(), 0)
    assert ended.turn_of(runs, 7)[1] == 7
    assert ended.judges and not ReplayGroup([log.subscribe("0")], terms(), 0).judges
