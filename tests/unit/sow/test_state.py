"""services/sow/state.py: records by key, expiration, history, and what goes to disk."""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping

import pytest

from raylay.services.errors import CorruptRecord
from raylay.services.sow.state import (
    NEVER,
    RecordAuthor,
    RecordChange,
    SowRecord,
    SowRules,
    SowState,
    encoded,
)

pytestmark = pytest.mark.covers("SOW", "records by key")

S = 1_000_000
LATE_US = 1 << 62


def record(
    key: bytes,
    txid: int,
    body: bytes = b"x",
    *,
    at_us: int = 0,
    expires_us: int = NEVER,
    publisher: int = 1,
    sequence: int = 0,
) -> SowRecord:
    return SowRecord(key, txid, publisher, sequence or txid, at_us, expires_us, body)


class Disk:
    """What a store has, for `SowState` to read."""

    def __init__(self) -> None:
        self.entries: dict[bytes, bytes] = {}
        self.txid = 0

    def get(self, key: bytes) -> bytes | None:
        return self.entries.get(key)

    def last(self, start: bytes, end: bytes) -> bytes | None:
        return max((key for key in self.entries if start <= key < end), default=None)

    def scan(self, start: bytes, end: bytes) -> Iterator[tuple[bytes, bytes]]:
        return iter(sorted((k, v) for k, v in self.entries.items() if start <= k < end))

    def chunk(self, start: bytes, end: bytes, most: int) -> list[tuple[bytes, bytes]]:
        return list(self.scan(start, end))[:most]

    def commit(self, pending: tuple[Mapping[bytes, bytes | None], int]) -> None:
        changes, self.txid = pending
        for key, value in changes.items():
            if value is None:
                self.entries.pop(key, None)
            else:
                self.entries[key] = value


@pytest.mark.covers("SOW", "a plain publish replaces the record")
def test_insert_update_delete() -> None:
    state = SowState(SowRules())
    first, second = record(b"a", 5, b"1"), record(b"a", 6, b"2")
    assert state.put(first) == RecordChange(b"a", None, first, "inserted")
    assert state.put(second) == RecordChange(b"a", first, second, "updated")
    assert state.get(b"a") == second and state.count == 1 and state.txid == 6
    assert state.delete(b"a", 7, 0) == RecordChange(b"a", second, None, "deleted")
    assert state.delete(b"a", 8, 0) is None and state.delete(b"b", 9, 0) is None
    assert state.get(b"a") is None and state.count == 0 and state.txid == 9
    assert list(state.records()) == []


def test_what_comes_late_of_a_publisher_changes_nothing() -> None:
    state = SowState(SowRules())
    state.put(record(b"a", 5, b"new", publisher=1, sequence=9))
    assert state.put(record(b"a", 6, b"late", publisher=1, sequence=8)) is None
    held = state.get(b"a")
    assert held is not None and held.body == b"new" and state.txid == 6
    assert state.put(record(b"a", 7, b"other", publisher=2, sequence=1)) is not None


@pytest.mark.covers("SOW", "expiration of topic and message")
@pytest.mark.covers("SOW", "expiration of message and topic")
def test_expirations_of_topic_and_message() -> None:
    state = SowState(SowRules(expires=True, lifetime_us=10 * S))
    assert state.expiration_us(None, 5 * S) == 15 * S
    assert state.expiration_us(2, 5 * S) == 7 * S
    assert state.expiration_us(0, 5 * S) == NEVER
    by_message = SowState(SowRules(expires=True))
    assert by_message.expiration_us(None, 5 * S) == NEVER
    assert by_message.expiration_us(2, 5 * S) == 7 * S


@pytest.mark.covers("SOW", "expiration of topic and message")
@pytest.mark.covers("SOW", "expiration of message and topic")
def test_records_expire_in_their_order_and_a_publish_sets_it_anew() -> None:
    state = SowState(SowRules(expires=True))
    state.put(record(b"a", 1, expires_us=20))
    state.put(record(b"b", 2, expires_us=10))
    state.put(record(b"c", 3))
    state.put(record(b"a", 4, b"y", expires_us=30))
    assert state.is_due(10) and not state.is_due(9)
    assert state.expire(9) == []
    (change,) = state.expire(25)
    assert (change.key, change.reason, change.current) == (b"b", "expired", None)
    assert change.previous is not None and change.previous.body == b"x"
    assert state.is_due(30) and not state.is_due(29) and state.get(b"a") is not None
    assert [each.key for each in state.expire(30)] == [b"a"]
    assert not state.is_due(LATE_US) and state.count == 1 and state.txid == 4


def test_many_expire_in_turns() -> None:
    state = SowState(SowRules(expires=True))
    for number in range(1, 11):
        state.put(record(b"%d" % number, number, expires_us=number))
    assert len(state.expire(100, most=4)) == 4
    assert len(state.expire(100, most=4)) == 4
    assert len(state.expire(100, most=4)) == 2 and state.count == 0


def test_a_record_that_is_put_off_again_and_again_is_looked_at_seldom() -> None:
    state = SowState(SowRules(expires=True))
    for number in range(1, 5_001):
        state.put(record(b"a", number, at_us=number, expires_us=number + 10_000))
    assert len(state._expirations) == 1
    assert state.expire(14_999) == []
    assert state.is_due(15_000) and not state.is_due(14_999)
    state.put(record(b"a", 5_001))
    assert state.expire(99_999) == [] and state.get(b"a") is not None, "it expires no more"


def test_what_is_gone_of_a_topic_without_a_store_leaves_no_trace() -> None:
    state = SowState(SowRules(), kept=False)
    for number in range(1, 100):
        state.put(record(b"%d" % number, number))
        state.delete(b"%d" % number, number, number, by=RecordAuthor(0, 9, number))
    state.put(record(b"x", 100, b"stays"))
    assert state.forget(100, 1_000) == 99
    assert dict(state.chunk(b"", b"z", 9)) == {b"vx": encoded(record(b"x", 100, b"stays"))}
    assert len(state._unsaved) == 1 and state.pending_bytes == 0


def test_what_is_added_has_as_much_looked_at_that_may_go() -> None:
    """Else histories and tombstones grow for ever where more comes than one tick looks at."""
    history = SowState(SowRules(window_us=100))
    for number in range(1, 501):
        history.put(record(b"a", number, at_us=number))
    assert history.is_due(0)
    history.prune(0, 600)
    assert history.is_due(0)
    history.prune(0, 400)
    assert not history.is_due(0)
    deleted = SowState(SowRules(expires=True))
    for number in range(1, 501):
        deleted.delete(b"%d" % number, number, 0, by=RecordAuthor(0, 9, number))
    deleted.forget(0, 0, 600)
    assert deleted.is_due(0)
    deleted.forget(0, 0, 400)
    assert not deleted.is_due(0)
    deleted.put(record(b"z", 501, expires_us=10))
    assert deleted.is_due(10) and not deleted.is_due(9)


@pytest.mark.covers("SOW", "`disabled` keeps what messages say and never acts")
def test_a_topic_that_does_not_expire_keeps_what_messages_say() -> None:
    state = SowState(SowRules())
    state.put(record(b"a", 1, expires_us=20))
    assert state.expire(100) == [] and not state.is_due(LATE_US)
    held = state.get(b"a")
    assert held is not None and held.expires_us == 20


def test_history_and_expiration_exclude_one_another() -> None:
    with pytest.raises(ValueError, match="leave out one"):
        SowRules(expires=True, window_us=1)


def bodies(state: SowState, time_us: int, now_us: int) -> dict[bytes, bytes | None]:
    return {each.key: each.body for each in state.as_of(time_us, now_us)}


@pytest.mark.covers("SOW", "history: what there was at an instant")
@pytest.mark.covers("SOW", "it is journaled")
def test_history_says_what_there_was() -> None:
    state = SowState(SowRules(window_us=100 * S))
    state.put(record(b"a", 1, b"1", at_us=10 * S))
    state.put(record(b"ab", 2, b"other", at_us=15 * S))
    state.put(record(b"a", 3, b"2", at_us=20 * S))
    state.delete(b"a", 4, 30 * S)
    state.put(record(b"a", 5, b"3", at_us=40 * S))
    now = 50 * S
    assert bodies(state, 9 * S, now) == {}
    assert bodies(state, 10 * S, now) == {b"a": b"1"}
    assert bodies(state, 19 * S, now) == {b"a": b"1", b"ab": b"other"}
    assert bodies(state, 25 * S, now) == {b"a": b"2", b"ab": b"other"}
    assert bodies(state, 35 * S, now) == {b"ab": b"other"}
    assert bodies(state, now, now) == {b"a": b"3", b"ab": b"other"}
    assert bodies(state, 25 * S, 126 * S) == {}, "before the window there is nothing"
    assert bodies(SowState(SowRules()), now, now) == {}


def test_of_one_instant_what_a_transaction_left() -> None:
    state = SowState(SowRules(window_us=100 * S))
    for txid, key in ((1, b"a"), (2, b"b"), (3, b"a"), (4, b"c")):
        state.put(record(key, txid, b"%d" % txid, at_us=10 * S))
    state.delete(b"b", 5, 10 * S)
    found = [
        {each.key: each.body for each in state.as_of(10 * S, 11 * S, txid)} for txid in range(6)
    ]
    assert found == [
        {},
        {b"a": b"1"},
        {b"a": b"1", b"b": b"2"},
        {b"a": b"3", b"b": b"2"},
        {b"a": b"3", b"b": b"2", b"c": b"4"},
        {b"a": b"3", b"c": b"4"},
    ]
    assert not list(state.as_of(10 * S, 111 * S, 5)), "before the window"


def test_what_is_being_read_of_the_past_stays() -> None:
    state = SowState(SowRules(window_us=100 * S))
    for second in (10, 20, 30):
        for key in (b"a", b"b"):
            state.put(record(key, second, b"%d" % second, at_us=second * S))
    then = state.as_of(15 * S, 50 * S)
    assert next(then).body == b"10"
    assert state.prune(200 * S) == 0, "the window has left it meanwhile"
    assert [each.body for each in then] == [b"10"]
    assert state.prune(200 * S) == 4
    left = state.as_of(30 * S, 50 * S)
    next(left)
    left.close()
    assert bodies(state, 100 * S, 200 * S) == {b"a": b"30", b"b": b"30"}
    assert not state._as_of_us


@pytest.mark.covers("SOW", "history: what there was at an instant")
def test_granularity_keeps_the_last_of_each_interval() -> None:
    state = SowState(SowRules(window_us=1_000 * S, granularity_us=10 * S))
    for second in (1, 5, 9, 12, 31):
        state.put(record(b"a", second, b"%d" % second, at_us=second * S))
    assert bodies(state, 8 * S, 40 * S) == {}, "those of before were replaced"
    assert bodies(state, 9 * S, 40 * S) == {b"a": b"9"}
    assert bodies(state, 30 * S, 40 * S) == {b"a": b"12"}
    assert bodies(state, 40 * S, 40 * S) == {b"a": b"31"}


def test_two_versions_of_one_instant_and_a_clock_that_went_back() -> None:
    state = SowState(SowRules(window_us=100 * S))
    for txid, at_us in ((1, 50), (2, 50), (3, 40)):
        state.put(record(b"a", txid, b"%d" % txid, at_us=at_us))
    assert bodies(state, 50, 60) == {b"a": b"1"}
    assert bodies(state, 51, 60) == {b"a": b"2"}
    assert bodies(state, 52, 60) == {b"a": b"3"}


@pytest.mark.covers("SOW", "history: what there was at an instant")
def test_pruning_leaves_what_the_window_needs() -> None:
    disk = Disk()
    state = SowState(SowRules(window_us=100), disk)
    for txid in range(1, 21):
        state.put(record(b"a", txid, b"%d" % txid, at_us=txid * 10))
    state.put(record(b"b", 21, b"b", at_us=15))
    state.delete(b"b", 22, 20)
    before = {at: bodies(state, at, 200) for at in range(100, 201)}
    taken = 0
    for _ in range(20):  # in turns of three
        taken += state.prune(200, most=3)
        disk.commit(state.pending())
        state.saved()
    assert taken == 9 + 2
    assert {at: bodies(state, at, 200) for at in range(100, 201)} == before
    assert sorted(key for key in disk.entries if key[:2] == b"ha")[0][2:] == (100).to_bytes(
        8, "big"
    )


def test_what_is_under_way_is_read_until_the_store_has_it() -> None:
    disk = Disk()
    state = SowState(SowRules(), disk)
    state.put(record(b"a", 1, b"1"))
    pending = state.pending()
    assert pending[1] == 1 and set(pending[0]) == {b"c", b"va"}
    state.put(record(b"b", 2, b"2"))
    state.delete(b"a", 3, 0)
    assert [each.key for each in state.records()] == [b"b"] and state.get(b"a") is None
    disk.commit(pending)
    state.saved()
    assert state.get(b"a") is None and [each.key for each in state.records()] == [b"b"]
    counts = (1).to_bytes(8, "little") + bytes(8)
    entries = {b"vb": encoded(record(b"b", 2, b"2")), b"va": None, b"c": counts}
    assert state.pending() == (entries, 3)
    with pytest.raises(AssertionError):
        state.pending()


def test_what_could_not_be_written_is_pending_again() -> None:
    state = SowState(SowRules(window_us=100))
    state.put(record(b"a", 1, b"1", at_us=5))
    state.put(record(b"b", 2, b"1", at_us=5))
    state.pending()
    state.put(record(b"a", 3, b"2", at_us=5))
    state.not_saved()
    changes, txid = state.pending()
    assert txid == 3 and len(changes) == 6  # two values, three versions of a time each, the counts
    held = state.get(b"a")
    assert held is not None and held.body == b"2"


@pytest.mark.covers("SOW", "expiration of message and topic")
def test_a_restart_finds_records_and_expirations() -> None:
    disk = Disk()
    rules = SowRules(expires=True)
    state = SowState(rules, disk)
    state.put(record(b"a", 1, expires_us=10))
    state.put(record(b"b", 2))
    disk.commit(state.pending())
    state.put(record(b"lost", 3))
    again = SowState(rules, disk, disk.txid)
    assert (again.txid, again.count) == (2, 2)
    assert again.is_due(10) and not again.is_due(9)
    assert [each.key for each in again.records()] == [b"a", b"b"]
    assert [each.key for each in again.expire(10)] == [b"a"]


@pytest.mark.covers("SOW", "what is folded is read before it is on disk")
@pytest.mark.parametrize("seed", range(20))
def test_it_is_a_dict_whatever_is_committed_meanwhile(seed: int) -> None:
    chance = random.Random(seed)
    disk, model = Disk(), {}
    state = SowState(SowRules(window_us=30), disk)
    versions: list[tuple[int, dict[bytes, bytes | None]]] = []
    pending = None
    for txid in range(1, 200):
        key = b"%d" % chance.randrange(12)
        match chance.randrange(6):
            case 0:
                assert (state.delete(key, txid, txid) is not None) == (key in model)
                model.pop(key, None)
            case 1 if pending is None:
                pending = state.pending()
            case 2 if pending is not None:
                if chance.random() < 0.3:
                    state.not_saved()
                else:
                    disk.commit(pending)
                    state.saved()
                pending = None
            case 3:
                state.prune(txid, chance.randint(1, 20))
            case _:
                state.put(record(key, txid, b"%d" % txid, at_us=txid))
                model[key] = b"%d" % txid
        assert {each.key: each.body for each in state.records()} == model
        assert [each.key for each in state.records()] == sorted(model)
        assert state.count == len(model)
        versions.append((txid, dict(model)))
        asked, expected = chance.choice(versions[-30:])
        assert bodies(state, asked, txid) == expected


P, Q = 1, 2


def by(publisher: int, sequence: int, stamp_us: int = 0) -> RecordAuthor:
    return RecordAuthor(stamp_us, publisher, sequence)


def held(state: SowState, key: bytes = b"a") -> bytes | None:
    found = state.get(key)
    return found.body if found is not None else None


@pytest.mark.covers("SOW", "what comes late behind a deletion does not bring its record back")
def test_what_comes_late_behind_a_deletion_does_not_bring_it_back() -> None:
    disk = Disk()
    state = SowState(SowRules(), disk)
    state.put(record(b"a", 1, publisher=P, sequence=5))
    assert state.delete(b"a", 2, 20, by=by(Q, 3)) is not None and state.tombstones == 1
    for restarted in (False, True):
        if restarted:
            disk.commit(state.pending())
            state = SowState(SowRules(), disk, disk.txid)
            assert (state.count, state.tombstones) == (0, 1)
        assert state.put(record(b"a", 3, publisher=P, sequence=4)) is None, "of who was deleted"
        assert state.put(record(b"a", 4, publisher=Q, sequence=2)) is None, "of who deleted"
    assert state.put(record(b"a", 5, b"new", publisher=P, sequence=6)) is not None
    assert held(state) == b"new" and (state.count, state.tombstones) == (1, 0)


def test_a_late_deletion_leaves_what_its_publisher_wrote_later() -> None:
    state = SowState(SowRules())
    state.put(record(b"a", 1, b"new", publisher=P, sequence=5))
    assert state.delete(b"a", 2, 20, by=by(P, 4)) is None
    assert held(state) == b"new" and state.tombstones == 0
    assert state.delete(b"b", 3, 20, by=by(P, 6)) is None, "there is none yet"
    assert state.put(record(b"b", 4, publisher=P, sequence=5)) is None, "it was deleted since"
    assert state.delete(b"b", 5, 30, by=by(Q, 1)) is None
    assert state.put(record(b"b", 6, publisher=Q, sequence=2)) is not None


def test_the_second_of_two_deletions_remembers_what_the_first_took_away() -> None:
    state = SowState(SowRules())
    state.put(record(b"a", 1, publisher=P, sequence=5))
    state.delete(b"a", 2, 20, by=by(Q, 1))
    state.delete(b"a", 3, 30, by=by(Q, 2))
    assert state.tombstones == 1
    assert state.put(record(b"a", 4, publisher=P, sequence=4)) is None


def test_tombstones_are_forgotten_by_floor_and_age_in_turns() -> None:
    state = SowState(SowRules())
    for txid in range(1, 11):
        state.delete(b"%d" % txid, txid, txid * 10, by=by(P, txid))
    assert state.forget(0, 1_000) == 0, "nobody has them yet"
    assert state.forget(5, 30) == 2, "the others are younger"
    assert state.tombstones == 8
    taken = [state.forget(8, 1_000, most=3) for _ in range(8)]
    assert sum(taken) == 6 and max(taken) <= 3 and state.tombstones == 2
    kept = [txid for txid in range(1, 11) if state.tombstone(b"%d" % txid) is not None]
    assert kept == [9, 10]
    assert state.put(record(b"1", 11, publisher=P, sequence=0)) is not None


def test_a_deletion_that_nobody_made_leaves_nothing() -> None:
    state = SowState(SowRules(expires=True))
    state.put(record(b"a", 1, expires_us=10))
    assert state.expire(10) and state.tombstones == 0


def test_what_has_expired_makes_nothing_late() -> None:
    state = SowState(SowRules(expires=True))
    state.put(record(b"a", 1, publisher=P, sequence=5, expires_us=10))
    assert state.put(record(b"a", 2, publisher=P, sequence=4, at_us=9)) is None
    change = state.put(record(b"a", 3, b"late", publisher=P, sequence=4, at_us=10))
    assert change is not None and change.previous is not None and held(state) == b"late"


@pytest.mark.covers("SOW", "what comes late behind a deletion does not bring its record back")
@pytest.mark.parametrize("seed", range(30))
def test_the_last_writer_is_one_whatever_comes_in_which_order(seed: int) -> None:
    chance = random.Random(seed)
    written = [
        (chance.choice((b"a", b"b")), RecordAuthor(chance.randrange(5), chance.choice((P, Q)), n))
        for n in range(1, 12)
    ]
    deletes = {each for each in written if chance.random() < 0.3}

    def folded() -> dict[bytes, RecordAuthor]:
        disk = Disk()
        state = SowState(SowRules(), disk, last_writer=True)
        for txid, (key, author) in enumerate(chance.sample(written, len(written)), 1):
            if (key, author) in deletes:
                state.delete(key, txid, 0, by=author)
            else:
                stamp_us, publisher, sequence = author
                state.put(SowRecord(key, txid, publisher, sequence, 0, NEVER, b"", stamp_us))
            if chance.random() < 0.3:
                disk.commit(state.pending())
                state = SowState(SowRules(), disk, disk.txid, last_writer=True)
        return {each.key: each.author for each in state.records()}

    last = {key: max(a for k, a in written if k == key) for key, _ in written}
    expected = {key: author for key, author in last.items() if (key, author) not in deletes}
    assert [folded() for _ in range(5)] == [expected] * 5


def test_what_expired_here_is_not_brought_back_where_the_last_writer_counts() -> None:
    state = SowState(SowRules(expires=True), last_writer=True)
    state.put(SowRecord(b"a", 1, P, 9, 0, 10, b"x", 100))
    assert state.expire(10)
    assert state.put(SowRecord(b"a", 2, Q, 1, 20, NEVER, b"older", 90)) is None


def test_counts_that_are_none_are_said() -> None:
    disk = Disk()
    disk.entries[b"c"] = b"x"
    with pytest.raises(CorruptRecord, match="counts"):
        SowState(SowRules(), disk)


def test_pending_bytes_are_those_that_the_store_lacks() -> None:
    state = SowState(SowRules())
    state.put(record(b"a", 1, b"x" * 100))
    assert 100 < state.pending_bytes < 300
    state.pending()
    assert state.pending_bytes == 0
    assert 100 < state.unsaved_bytes < 300, "that is being written"
    state.not_saved()
    assert state.pending_bytes > 100
    # The same again and again is there once, whether or not it could be written between.
    for n in range(2, 50):
        state.put(record(b"a", n, b"x" * 100))
        state.pending()
        state.put(record(b"a", n, b"y" * 100))
        state.not_saved()
    assert 100 < state.pending_bytes == state.unsaved_bytes < 400
    state.pending()
    state.saved()
    assert state.pending_bytes == state.unsaved_bytes == 0
