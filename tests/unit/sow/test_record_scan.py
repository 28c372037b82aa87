"""services/sow/query/record_scan.py: a query in turns gives what there was when it began."""

from __future__ import annotations

import random

import pytest

from raylay.services.sow.query.record_scan import RecordScan
from raylay.services.sow.state import SowRecord, SowRules, SowState, body_of, decoded
from raylay.storage.sow import MemorySowStore

pytestmark = pytest.mark.covers("SOW", "a query in turns gives what there was when it began")


def record(key: bytes, txid: int) -> SowRecord:
    return SowRecord(key, txid, 1, txid, txid, 0, b"%d" % txid)


def taken(query: RecordScan, most: int) -> dict[bytes, bytes]:
    found: dict[bytes, bytes] = {}
    while not query.done:
        found |= {key[1:]: body_of(value) for key, value in query.take(most)}
    return found


def test_what_is_folded_since_is_not_in_it() -> None:
    state = SowState(SowRules())
    for txid, key in enumerate((b"a", b"b", b"c", b"d"), 1):
        state.put(record(key, txid))
    query = state.query()
    (first,) = query.take(1)
    assert decoded(first[0][1:], first[1]) == record(b"a", 1)
    state.put(record(b"a", 5))  # was given
    state.put(record(b"bb", 6))  # is new
    state.put(record(b"c", 7))
    state.put(record(b"c", 8))
    state.delete(b"d", 9, 0)
    state.put(record(b"d", 10))
    state.delete(b"b", 11, 0)
    assert query.saved_bytes > 4 * 200, "of b, bb, c and d"
    assert taken(query, 2) == {b"b": b"2", b"c": b"3", b"d": b"4"}
    assert query.txid == 4 and query.take(1) == []
    assert taken(state.query(), 10) == {b"a": b"5", b"bb": b"6", b"c": b"8", b"d": b"10"}


def test_a_present_scan_gives_records_as_they_are_when_taken() -> None:
    state = SowState(SowRules())
    for txid, key in enumerate((b"a", b"b", b"c", b"d"), 1):
        state.put(record(key, txid))
    scan = state.present()
    first = scan.take(2)
    assert [key[1:] for key, _ in first] == [b"a", b"b"] and not scan.done
    state.put(record(b"a", 5))  # was given
    state.put(record(b"bb", 6))  # is new, and still before the scan
    state.put(record(b"c", 7))
    state.delete(b"d", 8, 0)
    rest = [*scan.take(2), *scan.take(2)]
    assert {key[1:]: body_of(value) for key, value in rest} == {b"bb": b"6", b"c": b"7"}
    assert scan.done and scan.take(1) == []


class Counted(bytes):
    """A key that counts how often it is compared."""

    count = 0

    def __lt__(self, other: bytes) -> bool:
        Counted.count += 1
        return bytes.__lt__(self, other)


def test_a_turn_does_not_look_at_all_that_was_changed() -> None:
    state = SowState(SowRules())
    for number in range(2_000):
        state.put(record(b"%05d" % number, 1))
    query = state.query()
    query.take(1)
    for number in range(1_000, 2_000):
        query.changed(Counted(b"v%05d" % number), b"")
    Counted.count = 0
    for _ in range(100):
        query.take(1)
    assert Counted.count <= 100 * 20
    left = 0
    while not query.done:
        left += len(query.take(100))
    assert left == 1_899


def test_one_that_is_closed_keeps_nothing() -> None:
    state = SowState(SowRules())
    state.put(record(b"a", 1))
    query = state.query()
    query.close()
    query.close()
    state.put(record(b"a", 2))
    assert query.done and query.take(5) == [] and not query._saved and not query.saved_bytes
    assert state._queries == []


def test_nothing_there() -> None:
    query = SowState(SowRules()).query()
    assert query.take(1) == [] and query.done


@pytest.mark.parametrize("seed", range(20))
def test_several_at_once_whatever_is_committed_meanwhile(seed: int) -> None:
    chance = random.Random(seed)
    store = MemorySowStore()
    state = SowState(SowRules(), store.topic("t"))
    model: dict[bytes, bytes] = {}
    open_queries: list[tuple[RecordScan, dict[bytes, bytes], dict[bytes, bytes]]] = []
    finished = 0
    for txid in range(1, 400):
        key = b"%d" % chance.randrange(30)
        match chance.randrange(8):
            case 0 | 1:
                state.delete(key, txid, 0)
                model.pop(key, None)
            case 2:
                store.commit({"t": state.pending()})
                state.saved()
            case 3 if len(open_queries) < 4:
                open_queries.append((state.query(), dict(model), {}))
            case 4 | 5 if open_queries:
                query, expected, found = chance.choice(open_queries)
                given = query.take(chance.randint(1, 6))
                assert [each for each, _ in given] == sorted(each for each, _ in given)
                found |= {each[1:]: body_of(value) for each, value in given}
                if query.done:
                    assert found == expected and not query.saved_bytes
                    open_queries.remove((query, expected, found))
                    finished += 1
            case _:
                state.put(record(key, txid))
                model[key] = b"%d" % txid
    for query, expected, found in open_queries:
        assert {**found, **taken(query, 3)} == expected
    assert finished > 3 and state._queries == []
