"""Bookmark subscriptions over the in-memory journal: every message behind the start, once."""

from __future__ import annotations

import random

import pytest

from raylay.services.errors import RemoteProtocolError
from raylay.services.messages.bookmarks import parse_position
from raylay.services.messages.ranges import PublisherRanges
from raylay.services.messages.records import (
    Command,
    RecordBuilder,
    Run,
    iterate_records,
    run_of,
    scan,
)
from raylay.services.subscriptions.bookmark import (
    BookmarkSubscription,
    ReplayContent,
    removed_behind,
    resolve,
)
from raylay.services.subscriptions.matching import topic_filter
from raylay.storage.memory_journal import MemoryJournal

pytestmark = pytest.mark.covers("Clients and protocol", "bookmarks: epoch")

Message = tuple[int, int]


class Durable:
    """Everything is durable but `pending`."""

    def __init__(self, *pending: Message) -> None:
        self.pending = PublisherRanges()
        for publisher, sequence in pending:
            self.pending.add(publisher, sequence, sequence)

    def first_pending(self, publisher: int, first: int, last: int) -> int | None:
        return self.pending.of(publisher).first_within(first, last)


class Divisible:
    """A content filter: sequences that a number divides."""

    text = "/n % divisor = 0"
    has_given_up = False

    def __init__(self, divisor: int) -> None:
        self.divisor = divisor

    def admits(self, run: Run) -> bool:
        return False

    def passing(self, run: Run) -> list[tuple[int, int, int, int]]:
        found, offset = [], 0
        for before, record in enumerate(iterate_records(run.payload)):
            end = offset + len(record.raw)
            if record.sequence % self.divisor == 0:
                found.append((before, offset, end, record.sequence))
            offset = end
        return found


class Log:
    """A journal with the messages of two publishers, and what is in it."""

    def __init__(self, segment_bytes: int = 1 << 20) -> None:
        self.journal = MemoryJournal(segment_bytes)
        self.held = PublisherRanges()
        self.messages: list[tuple[int, str, int, int]] = []  # txid, topic, publisher, sequence
        self.starts: list[int] = []
        """Transaction ids with which runs begin."""
        self.txid = 1
        self.time_us = 1_000

    def append(
        self, publisher: int, topic: str, *sequences: int, command: int = Command.PUBLISH
    ) -> None:
        builder = RecordBuilder(publisher, topic, "json")
        payload = b"".join(builder.build(number, b"x", 1, command=command) for number in sequences)
        run = run_of(scan(payload)[0], payload)
        run.first_txid = self.txid
        run.receive_time_us = self.time_us
        for at, number in enumerate(sequences):
            self.messages.append((self.txid + at, topic, publisher, number))
        self.starts.append(self.txid)
        self.txid += len(sequences)
        self.time_us += 10
        self.held.add_ranges(publisher, run.ranges())
        self.journal.stage(run)
        self.journal.commit()

    def subscribe(
        self,
        bookmark: str,
        topic: str = "a",
        have: PublisherRanges | None = None,
        not_found: str = "now",
        content: ReplayContent | None = None,
    ) -> BookmarkSubscription:
        start = resolve(
            parse_position(bookmark),
            not_found,
            self.journal,
            self.txid - 1,
            removed=self.journal.removed(),
            have=have,
        )
        made = BookmarkSubscription(
            1,
            "s",
            topic_filter(topic, ""),
            start,
            first_txid=self.journal.first_txid,
            committed_txid=self.txid - 1,
            held=self.held.copy(),
            have=have,
            content=content,
        )
        steps = 0
        while not made.prepared:
            steps += 1
            assert steps < 1_000
            if made.wants_summaries:
                made.skip_segments(self.journal.segment_summaries())
            else:
                made.prepare(self.journal.read_headers(made.prepare_after_txid, 3))
        return made

    def pump(self, made: BookmarkSubscription, limit_txid: int | None = None) -> list[Message]:
        """Everything that it delivers now."""
        found: list[Message] = []
        limit = self.txid - 1 if limit_txid is None else limit_txid
        while made.cursor < limit and not made.ended:
            before = made.cursor
            for delivery in made.take(self.journal.read(made.cursor, 200), limit):
                records = [r for body in delivery.bodies for r in iterate_records(body)]
                assert len(records) == delivery.count
                assert delivery.first_txid == self.txid_of(
                    records[0].publisher, records[0].sequence
                )
                if made.content is not None:
                    last = records[-1]
                    last_txid = delivery.first_txid + delivery.count - 1
                    assert last_txid == self.txid_of(last.publisher, last.sequence)
                found += [(record.publisher, record.sequence) for record in records]
            if made.cursor == before:
                break
        return found

    def txid_of(self, publisher: int, sequence: int) -> int:
        return next(t for t, _, p, n in self.messages if (p, n) == (publisher, sequence))

    def behind(self, txid: int, topic: str = "a") -> list[Message]:
        return [(p, n) for t, found, p, n in self.messages if t > txid and found == topic]


@pytest.fixture
def log() -> Log:
    made = Log()
    made.append(1, "a", 1, 2, 3)
    made.append(2, "a", 1, 2)
    made.append(1, "b", 4)
    made.append(1, "a", 5, 7)  # 6 comes late
    made.append(2, "a", 3)
    made.append(1, "a", 6)
    return made


@pytest.mark.parametrize(
    ("bookmark", "after_txid"),
    [
        ("0", 0),
        ("0|1|", 10),
        ("1|2|", 2),
        ("2|2|,1|3|", 3),
        ("9|9|,2|3|", 9),
        ("9|9|", 10),
    ],
)
def test_where_a_subscription_starts(log: Log, bookmark: str, after_txid: int) -> None:
    made = log.subscribe(bookmark)
    assert log.pump(made) == log.behind(after_txid)
    log.append(2, "a", 4)
    assert log.pump(made) == [(2, 4)]


def test_what_is_not_found(log: Log) -> None:
    assert log.pump(log.subscribe("9|9|", not_found="epoch")) == log.behind(0)
    with pytest.raises(RemoteProtocolError) as caught:
        log.subscribe("9|9|", not_found="fail")
    assert caught.value.reason == "bookmark_not_found"
    with pytest.raises(RemoteProtocolError):
        log.subscribe("[1|1|:9|9|]", not_found="fail")


@pytest.mark.parametrize(
    ("bookmark", "wanted"),
    [
        ("[1|2|:2|1|]", [(1, 2), (1, 3), (2, 1)]),
        ("(1|2|:2|1|]", [(1, 3), (2, 1)]),
        ("[1|2|:2|1|)", [(1, 2), (1, 3)]),
        ("(1|2|:2|1|)", [(1, 3)]),
        ("[0:1|2|,1|1|]", [(1, 1), (1, 2)]),
        ("[0:9|9|]", None),
    ],
)
def test_ranges_end(log: Log, bookmark: str, wanted: list[Message] | None) -> None:
    made = log.subscribe(bookmark)
    assert log.pump(made) == (log.behind(0) if wanted is None else wanted)
    assert made.take_completed() and not made.take_completed()
    log.append(1, "a", 8)
    assert log.pump(made) == []
    assert made.ended


def test_a_range_ends_at_a_time_that_passes(log: Log) -> None:
    begin = "19700101T000000.001000Z"
    made = log.subscribe(f"[{begin}:19700101T000000.001020Z)")
    assert log.pump(made) == [(1, 1), (1, 2), (1, 3), (2, 1), (2, 2)]
    assert made.ended
    made = log.subscribe(f"[{begin}:19700101T000001Z)")
    assert log.pump(made) == log.behind(0)
    assert not made.take_completed(), "its end time has not come"
    made.end_by_time(999_999)
    assert not made.ended
    made.end_by_time(1_000_001)
    assert made.take_completed()


def test_what_is_no_message_is_passed_over() -> None:
    log = Log()
    log.append(1, "a", 1)
    log.append(1, "a", 2, command=Command.DELETE)
    log.append(1, "a", 3, command=Command.DELTA_PUBLISH)
    log.append(1, "a", 4, command=Command.CHECKPOINT)
    made = log.subscribe("0")
    assert log.pump(made) == [(1, 1), (1, 3)]
    assert made.considered == made.delivered == 2
    # Nobody needs to deliver these to this subscriber, here or elsewhere.
    persisted = made.take_persisted(Durable())
    assert persisted == log.held
    # Who has all messages needs no delete before them.
    have = PublisherRanges()
    have.add(1, 1, 1)
    have.add(1, 3, 3)
    log.append(1, "a", 5)
    resumed = log.subscribe("0", have=have)
    assert resumed.cursor == 4 and log.pump(resumed) == [(1, 5)]
    found = resumed.take_persisted(Durable())
    assert found is not None and found.covers(1, [(2, 2), (4, 5)])


def test_completed_when_the_log_of_the_subscribe_is_through(log: Log) -> None:
    made = log.subscribe("0")
    log.append(1, "a", 8)
    log.pump(made, limit_txid=9)
    assert not made.take_completed()
    log.pump(made)
    assert made.take_completed() and not made.take_completed()


def test_base_is_what_lies_before_the_start(log: Log) -> None:
    assert log.subscribe("0").base is None
    now = log.subscribe("0|1|").base
    assert now == log.held
    base = log.subscribe("2|2|").base
    assert base is not None
    assert list(base.of(1)) == [(1, 3)] and list(base.of(2)) == [(1, 2)]


@pytest.mark.covers("Clients and protocol", "persisted acks of a bookmark subscription")
def test_persisted_ranges_name_what_is_passed_and_durable(log: Log) -> None:
    made = log.subscribe("0")
    log.pump(made)
    assert made.take_persisted(Durable((1, 1))) is None
    first = made.take_persisted(Durable((1, 2)))
    assert first is not None and list(first.items()) == [(1, (1, 1))]
    # (2, 2) is the fifth of the log: what comes behind it waits, whoever published it.
    second = made.take_persisted(Durable((2, 2)))
    assert second is not None and list(second.items()) == [(1, (2, 3)), (2, (1, 1))]
    total = first
    total.update(second)
    rest = made.take_persisted(Durable())
    assert rest is not None and made.take_persisted(Durable()) is None
    total.update(rest)
    # What does not match is in it too: nobody needs to deliver it to this subscriber.
    assert total == log.held


@pytest.mark.covers("Clients and protocol", "persisted acks of a bookmark subscription")
def test_a_publisher_that_never_pauses_does_not_keep_the_persisted_ack_back() -> None:
    log = Log()
    made = log.subscribe("0")
    total = PublisherRanges()
    for number in range(1, 200):
        log.append(1, "a", number)
        log.pump(made)
        # The last ten are on their way to a sync destination, whenever it is looked at.
        fresh = made.take_persisted(Durable(*((1, n) for n in range(max(1, number - 9), 200))))
        if fresh is not None:
            total.update(fresh)
    assert list(total.items()) == [(1, (1, 189))]


@pytest.mark.covers("Clients and protocol", "`live`: before the disk")
def test_what_never_came_to_be_on_disk_is_taken_back() -> None:
    log = Log()
    log.append(1, "a", 1)
    made = log.subscribe("0")
    assert log.pump(made) == [(1, 1)]
    builder = RecordBuilder(1, "a", "json")
    payload = builder.build(2, b"x", 1)
    staged = run_of(scan(payload)[0], payload)
    staged.first_txid = 2
    assert [delivery.count for delivery in made.take([staged], 2)] == [1]
    made.take_back(1)
    assert made.cursor == 1
    persisted = made.take_persisted(Durable())
    assert persisted is None or not persisted.covers(1, [(2, 2)])
    log.append(1, "a", 2)
    assert log.pump(made) == [(1, 2)]


def test_it_goes_on_inside_a_run(log: Log) -> None:
    made = log.subscribe("0")
    assert log.pump(made, limit_txid=2) == [(1, 1), (1, 2)]
    assert made.cursor == 2
    assert log.pump(made) == log.behind(2)


@pytest.mark.parametrize("seed", range(30))
def test_a_durable_subscriber_gets_exactly_what_it_has_not(seed: int) -> None:
    chance = random.Random(seed)
    log = Log(segment_bytes=chance.choice([300, 2_000, 1 << 20]))
    waiting = {publisher: list(range(1, 60)) for publisher in (1, 2, 3)}
    while waiting:
        publisher = chance.choice(list(waiting))
        count = chance.randint(1, 6)
        numbers, waiting[publisher] = waiting[publisher][:count], waiting[publisher][count:]
        if chance.random() < 0.2 and len(numbers) > 2:
            waiting[publisher].append(numbers.pop(1))
        numbers = sorted(numbers)
        log.append(publisher, chance.choice("aab"), *numbers)
        if not waiting[publisher]:
            del waiting[publisher]
    have = PublisherRanges()
    cut = chance.randint(0, log.txid)
    for txid, _, publisher, number in log.messages:
        if txid < cut or chance.random() < 0.3:
            have.add(publisher, number, number)
    made = log.subscribe("0", have=have)
    wanted = [(p, n) for p, n in log.behind(0) if not have.covers(p, [(n, n)])]
    assert log.pump(made) == wanted
    assert made.take_completed()
    persisted = made.take_persisted(Durable())
    got = have.copy()
    if persisted is not None:
        got.update(persisted)
    assert all(got.covers(p, [(n, n)]) for p, n in log.behind(0))
    assert all(log.held.covers(p, ranges) for p, ranges in got.sets.items())


# -- content filters ---------------------------------------------------------------------------
@pytest.mark.covers("Filters by content", "a bookmark subscription with a filter")
def test_what_does_not_pass_counts_as_passed(log: Log) -> None:
    """Persisted acks name it as they name what is on other topics, up to what is not durable."""
    made = log.subscribe("0", content=Divisible(2))
    assert log.pump(made) == [(p, n) for p, n in log.behind(0) if n % 2 == 0]
    assert (made.delivered, made.considered) == (3, 9)
    acked = made.take_persisted(Durable((2, 3)))
    assert acked is not None
    assert {key: list(value) for key, value in acked.sets.items()} == {
        1: [(1, 5), (7, 7)],
        2: [(1, 2)],
    }
    assert made.take_persisted(Durable((2, 3))) is None
    rest = made.take_persisted(Durable())
    assert rest is not None
    assert {key: list(value) for key, value in rest.sets.items()} == {1: [(6, 6)], 2: [(3, 3)]}


def test_what_passes_nothing_goes_to_the_end_all_the_same(log: Log) -> None:
    made = log.subscribe("[0|1|:1|7|]", content=Divisible(100))
    assert log.pump(made) == [] and made.ended and made.take_completed()
    live = log.subscribe("0", content=Divisible(100))
    assert log.pump(live) == [] and live.cursor == 10 and live.take_completed()


@pytest.mark.covers("Filters by content", "a bookmark subscription with a filter")
@pytest.mark.parametrize("seed", range(30))
def test_a_filtered_subscriber_that_changes_between_instances_gets_what_passes_once(
    seed: int,
) -> None:
    """Each has its own order. What it has is kept by ranges that acks close: what was passed over
    is asked for by nobody."""
    chance = random.Random(seed)
    logs = [Log(), Log()]
    runs = [(publisher, chance.choice("ab"), first) for publisher in (1, 2)
            for first in range(1, 120, 4)]  # fmt: skip
    topic_of = {(p, n): topic for p, topic, first in runs for n in range(first, first + 4)}
    for each in logs:
        waiting = {p: [run for run in runs if run[0] == p] for p in (1, 2)}
        while any(waiting.values()):
            publisher = chance.choice([p for p, left in waiting.items() if left])
            _, topic, first = waiting[publisher].pop(0)
            each.append(publisher, topic, *range(first, first + 4))
    have, got = PublisherRanges(), []
    divisor = chance.choice((1, 2, 3, 7))
    for _ in range(20):
        each = chance.choice(logs)
        made = each.subscribe("0", have=have.copy(), content=Divisible(divisor))
        limit = each.txid - 1 if chance.random() < 0.2 else chance.randint(0, each.txid - 1)
        found = each.pump(made, limit)
        got += found
        for publisher, sequence in found:
            have.add(publisher, sequence, sequence)
        if chance.random() < 0.7:
            have.update(made.take_persisted(Durable()) or PublisherRanges())
    made = logs[0].subscribe("0", have=have, content=Divisible(divisor))
    got += logs[0].pump(made)
    have.update(made.take_persisted(Durable()) or PublisherRanges())
    assert len(got) == len(set(got))
    assert set(got) == {key for key, topic in topic_of.items()
                        if topic == "a" and key[1] % divisor == 0}  # fmt: skip
    again = logs[1].subscribe("0", have=have, content=Divisible(divisor))
    assert logs[1].pump(again) == []


def ranges(**of: list[tuple[int, int]]) -> PublisherRanges:
    made = PublisherRanges()
    for name, found in of.items():
        made.add_ranges(int(name[1:]), found)
    return made


def test_missing_is_what_was_removed_behind_the_first_that_a_subscriber_has() -> None:
    removed = ranges(p1=[(1, 50)], p2=[(1, 9)], p3=[(1, 5)])
    have = ranges(p1=[(10, 19), (30, 34)], p2=[(10, 12)], p4=[(1, 1)])
    assert removed_behind(have, removed) == ranges(p1=[(20, 29), (35, 50)])
    assert not removed_behind(ranges(p1=[(1, 60)]), removed).sets, "nobody is named for nothing"


@pytest.fixture
def short_log() -> Log:
    """A log whose front retention removed: of publisher 1, 1 to 6 are gone."""
    made = Log(segment_bytes=200)
    for sequence in range(1, 13):
        made.append(1, "a", sequence)
    made.journal.remove(7, force=True)
    return made


def test_a_durable_subscriber_is_told_what_retention_removed(short_log: Log) -> None:
    gone = short_log.journal.first_txid - 1
    assert gone < 12
    made = short_log.subscribe("0", have=ranges(p1=[(1, 3)]))
    assert made.missing == ranges(p1=[(4, gone)])
    assert short_log.pump(made) == short_log.behind(gone)
    # It has all that was removed.
    assert not short_log.subscribe("0", have=ranges(p1=[(1, gone)]), not_found="fail").missing
    with pytest.raises(RemoteProtocolError, match=f"removed {gone - 3} messages") as caught:
        short_log.subscribe("0", have=ranges(p1=[(1, 3)]), not_found="fail")
    assert caught.value.reason == "bookmark_not_found"
    # The begin is of no use to one who goes on.
    assert not short_log.subscribe("1|2|", have=ranges(p1=[(1, gone)]), not_found="fail").missing


def test_a_bookmark_that_retention_removed_begins_with_the_oldest_left(short_log: Log) -> None:
    gone = short_log.journal.first_txid - 1
    made = short_log.subscribe("1|2|")
    assert made.missing == ranges(p1=[(3, gone)])
    # What lies before it is named, so that no other instance sends it.
    assert made.base == ranges(p1=[(1, gone)])
    assert short_log.pump(made) == short_log.behind(gone)
    with pytest.raises(RemoteProtocolError, match="retention removed the message") as caught:
        short_log.subscribe("1|2|", not_found="fail")
    assert caught.value.reason == "bookmark_not_found"
    assert not short_log.subscribe("0").missing


def test_a_range_ends_where_all_of_it_is_held_already(short_log: Log) -> None:
    """Nothing is left to deliver, as where retention removed the rest: the client is told so."""
    whole = ranges(p1=[(1, 12)])
    made = short_log.subscribe("[0:0|1|)", have=whole)
    assert made.ended and made.take_completed()
    assert not short_log.subscribe("[0:0|1|)", have=ranges(p1=[(1, 11)])).ended


def test_what_was_removed_is_before_the_start_where_a_run_with_gaps_spans_it() -> None:
    """A client that asks for what is left would otherwise miss the removed ones in the gaps."""
    log = Log(segment_bytes=200)
    for sequence in (5, 6, 7, 8, 9, 10):
        log.append(1, "a", sequence)
    log.journal.remove(4, force=True)
    gone = log.journal.removed()
    assert gone.count
    log.append(1, "a", 1, 20)
    assert log.subscribe("1|5|").base == gone
