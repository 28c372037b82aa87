"""The changes of a SOW topic from the runs of a log, without a journal, a disk or Spark."""

from __future__ import annotations

import random

import pytest
from support.changing_topic import TOPIC, Change, ChangingLog, changing_log, ordered

from raylay.services.messages.records import RecordBuilder, Run
from raylay.services.pipeline.changes.fold import TopicChange, TopicFold
from raylay.services.pipeline.changes.table import row_batches
from raylay.storage.sow import MemorySowStore


def fold_of(made: ChangingLog, store: MemorySowStore) -> TopicFold:
    return TopicFold((made.definition(),), (), made.definition().stored_as, store)


def noted(change: TopicChange) -> Change:
    before, after = (None if e is None else e.body for e in (change.before, change.after))
    return change.txid, change.row_kind, change.reason, change.key.decode(), before, after


@pytest.mark.parametrize("lifetime_s", [0, 4], ids=["for ever", "expiring"])
@pytest.mark.parametrize("seed", range(20))
def test_changes_in_parts_are_those_of_the_whole(seed: int, lifetime_s: int) -> None:
    """Parts end anywhere, within a run too, and each is folded from what the one before stored."""
    made, chance = changing_log(seed, lifetime_s, runs=40), random.Random(seed)
    store, last = MemorySowStore(), 0
    found: list[TopicChange] = []
    while last < made.txid:
        last = min(made.txid, last + chance.randint(1, 25))
        fold = fold_of(made, store)
        for run in made.runs:
            found += fold.changes(run, last)
        assert fold.txid == last
        fold.save()
    assert ordered([noted(each) for each in found]) == ordered(made.changes)
    kept = {each.key: each.after.body for each in fold_of(made, store).records() if each.after}
    assert kept == {key: body for key, (body, _) in made.held.items()}
    rows = [row for rows in row_batches("Chicago-1", "json", found) for row in rows.to_pylist()]
    assert len(rows) == len(found)
    for row, change in zip(rows, found, strict=True):
        assert (row["bookmark"] is None) == (change.reason == "expired")


def test_records_without_a_key_change_nothing() -> None:
    made = ChangingLog()
    builder = RecordBuilder(7, TOPIC, "json")
    bodies = (b'{"price": 1}', b"no json", b'{"id": 1}')
    payload = b"".join(builder.build(n, body, 1) for n, body in enumerate(bodies, 1))
    run = Run(7, 1, 3, 3, payload, TOPIC.encode(), b"json", first_txid=1, receive_time_us=5)
    fold = fold_of(made, MemorySowStore())
    assert [each.txid for each in fold.changes(run, 3)] == [3]
    assert fold.txid == 3
