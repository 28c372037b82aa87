"""The changes of a SOW topic from its records at two moments, without an instance or a disk."""

from __future__ import annotations

import random

import pytest

from raylay.services.pipeline.changes.comparison import changes_between
from raylay.services.sow.records import NEVER, SowRecord, encoded
from raylay.services.sow.state import VALUE
from raylay.storage.sow import MemorySowStore

NAME = "json/prices"
Records = dict[bytes, SowRecord]


def record(key: int, sequence: int, body: bytes = b"{}", topic: bytes = b"prices") -> SowRecord:
    return SowRecord(b"k%d" % key, 0, 7, sequence, 0, NEVER, body, sequence * 10, topic)


def changed(chance: random.Random, records: Records, sequence: int) -> Records:
    """The records after a few messages and deletes."""
    found = dict(records)
    for number in range(chance.randrange(12)):
        key = b"k%d" % chance.randrange(20)
        if chance.random() < 0.3:
            found.pop(key, None)
        else:
            found[key] = record(int(key[1:]), sequence + number, b'{"n": %d}' % number)
    return found


@pytest.mark.covers("Data pipeline", "changes over the network")
@pytest.mark.parametrize("seed", range(20))
def test_the_changes_lead_from_one_moment_to_the_next(seed: int) -> None:
    chance = random.Random(seed)
    store, before = MemorySowStore(), Records()
    for number in range(1, 15):
        after = changed(chance, before, number * 100)
        listed = list(after.values())
        chance.shuffle(listed)
        parts = [listed[at : at + 3] for at in range(0, len(listed), 3)]
        found = list(changes_between(store.topic(NAME), parts, number, is_first=number == 1))
        assert len({each.key for each in found}) == len(found), "one change for each key"
        for each in found:
            assert each.txid == number
            assert (each.before, each.after) == (before.get(each.key), after.get(each.key))
            assert each.before != each.after
        differing = {key for key in {**before, **after} if before.get(key) != after.get(key)}
        assert {each.key for each in found} == differing
        if number == 1:
            assert {each.reason for each in found} <= {"snapshot"}
        kinds = {(each.before is None, each.after is None): each.row_kind for each in found}
        told = {(True, False): "insert", (False, False): "update", (False, True): "delete"}
        assert kinds.items() <= told.items()
        entries = {
            VALUE + each.key: None if each.after is None else encoded(each.after) for each in found
        }
        store.commit({NAME: (entries, number)})
        before = after


@pytest.mark.parametrize(
    "other",
    [record(1, 6), record(1, 5, b'{"n": 1}'), record(1, 5, topic=b"others")],
    ids=["another message", "another body", "another topic"],
)
def test_what_makes_a_record_another_one(other: SowRecord) -> None:
    store, known = MemorySowStore(), record(1, 5)
    store.commit({NAME: ({VALUE + known.key: encoded(known)}, 1)})
    # When and in which transaction an instance received it does not count.
    same = known._replace(txid=9, updated_us=9, stamp_us=0)
    assert not list(changes_between(store.topic(NAME), [[same]], 2, is_first=False))
    (change,) = changes_between(store.topic(NAME), [[other]], 2, is_first=False)
    assert change.reason == "updated"
    assert change.before is not None and change.after is other
    assert change.before.body == known.body


def test_a_deleted_record_has_no_author() -> None:
    store, known = MemorySowStore(), record(1, 5, b'{"n": 1}')
    store.commit({NAME: ({VALUE + known.key: encoded(known)}, 1)})
    (change,) = changes_between(store.topic(NAME), [], 2, is_first=False)
    assert (change.row_kind, change.reason, change.key) == ("delete", "deleted", known.key)
    assert change.before is not None and change.before.body == known.body
    assert change.after is None and not change.origin_us
