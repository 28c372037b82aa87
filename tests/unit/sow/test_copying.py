"""services/sow/copying.py: what a log does not reach back to is copied beside it."""

from __future__ import annotations

import random

import pytest
from support.sow_given import P, Q

from raylay.services.errors import RemoteProtocolError
from raylay.services.sow.copying import START, TopicCopy, older_entries, topics_of
from raylay.services.sow.state import NEVER, RecordAuthor, SowRecord, SowRules, SowState
from raylay.storage.sow import MemorySowStore

pytestmark = pytest.mark.covers(
    "SOW", "a bootstrap copies of SOW topics what the log does not reach back"
)


@pytest.mark.parametrize("seed", range(20))
def test_the_copy_and_the_rest_of_the_log_are_the_whole(seed: int) -> None:
    chance = random.Random(seed)
    rules = SowRules(window_us=1_000)
    source, steps = SowState(rules), []
    for txid in range(1, 60):
        key = b"%d" % chance.randrange(8)
        steps.append((txid, key, chance.choice((P, Q)), txid, chance.random() < 0.3))

    def fold(state: SowState, txid: int, key: bytes, by: int, sequence: int, gone: bool) -> None:
        if gone:
            state.delete(key, txid, txid, by=RecordAuthor(txid, by, sequence))
        else:
            body = b"%d" % txid
            state.put(SowRecord(key, txid, by, sequence, txid, NEVER, body, txid))

    for step in steps:
        fold(source, *step)
    first_txid = chance.randrange(1, 60)
    store, copy = MemorySowStore(), TopicCopy()
    start = START
    while start:
        older, looked_bytes, start = older_entries(
            source, start, first_txid, chance.randrange(1, 9)
        )
        assert looked_bytes or not older
        store.commit({"t": (copy.take(older), 0)})
    store.commit({"t": (copy.end(), 0)})
    made = SowState(rules, store.topic("t"))
    assert made.count == copy.records == sum(1 for _ in made.records())
    assert all(each.txid == 0 for each in made.records())
    for step in steps:
        if step[0] >= first_txid:
            fold(made, *step)
    said = {each.key: (each.author, each.body) for each in made.records()}
    assert said == {each.key: (each.author, each.body) for each in source.records()}
    assert (made.count, made.tombstones) == (source.count, source.tombstones)
    for at_us in range(60):
        there, here = (
            {each.key: each.body for each in state.as_of(at_us, 60)} for state in (source, made)
        )
        assert there == here


@pytest.mark.parametrize(
    "entry",
    [
        (b"", b""),
        (b"v", bytes(60)),
        (b"f1", bytes(60)),
        (b"c1", bytes(60)),
        (b"v1", b"short"),
        (b"v1", bytes(51)),
        (b"h1", bytes(60)),
        (b"d1", bytes(51)),
        (b"v" + bytes(500), bytes(60)),
    ],
)
def test_what_is_no_entry_is_refused(entry: tuple[bytes, bytes]) -> None:
    with pytest.raises(RemoteProtocolError):
        TopicCopy().take([entry])


@pytest.mark.covers("Configuration", "a copy is given the topics that its user may bring")
def test_the_topics_of_a_pattern_are_told() -> None:
    state = SowState(SowRules())
    for txid, topic in enumerate((b"", b"ticks/a", b"ticks/b", b"ticks/a"), 1):
        record = SowRecord(b"%d" % txid, txid, P, txid, txid, NEVER, b"{}", txid, topic)
        state.put(record)
    state.delete(b"3", 5, 5, by=RecordAuthor(5, P, 5))
    older, _, _ = older_entries(state, START, 9, 100)
    assert topics_of(b"ticks", older) == {b"ticks", b"ticks/a"} and topics_of(b"t", []) == {b"t"}
