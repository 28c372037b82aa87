"""What a delete by filter finds, a part at a time, while the topic goes on."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest
from support.sow_given import ORDERS, P, Q, book, delete, put

from raylay.services.core.feature import CommitBatch
from raylay.services.core.sow import SowFeature
from raylay.services.expressions.expression import expression
from raylay.services.sow import delete_scan
from raylay.services.sow.delete_scan import DeleteScan
from raylay.services.sow.staging import DELETE
from raylay.services.sow.topic import SowTopic


@pytest.mark.parametrize("seed", range(10))
def test_what_is_found_is_what_matches_at_the_end(seed: int) -> None:
    rng = random.Random(seed)
    there = book()
    (topic,) = there.topics
    feature = SowFeature(there)
    txid = 0

    def fold() -> None:
        nonlocal txid
        txid += 1
        number = rng.randrange(40)
        run = put(txid, b'{"id": %d, "n": %d}' % (number, rng.randrange(3)))
        if rng.random() < 0.2:
            gone = rng.choice([each.key for each in topic.state.records()] or [b"k"])
            run = delete(txid, gone)
        feature.fold(CommitBatch([run], txid))

    for _ in range(60):
        fold()
    looking = DeleteScan(topic, b"", expression("/n = 1", DELETE), 0)
    looks = 0
    while not looking.done:
        looking.take(7)
        looks += 1
        for _ in range(rng.randrange(4)):
            fold()
    wanted = sorted(each.key for each in topic.state.records() if b'"n": 1}' in (each.body or b""))
    assert looks > 2 and looking.keys(topic.state.get, ()) == wanted
    looking.close()
    assert topic.state._queries == [], "it hears of no change any more"


def test_what_is_staged_is_judged_as_it_is_staged() -> None:
    there = book()
    (topic,) = there.topics
    SowFeature(there).fold(CommitBatch([put(1, b'{"id": 1, "n": 1}', b'{"id": 2, "n": 1}')], 2))
    one, two = sorted(each.key for each in topic.state.records())
    looking = DeleteScan(topic, b"", expression("/n = 1", DELETE), 0)
    looking.take(10)
    assert looking.done
    assert looking.keys(lambda key: None, [one]) == [two]
    later = topic.state.get(two)
    assert later is not None
    changed = later._replace(body=b'{"n": 2}')
    assert looking.keys({two: changed}.get, [two]) == [], "asked again, it judges again"
    found = looking.keys({two: later, b"new": later}.get, [two, b"new"])
    assert found == sorted([two, b"new"])


def test_what_cannot_be_read_is_found_by_nothing_and_others_know_more_than_the_body() -> None:
    there = book(replace(ORDERS, name="fx", pattern="^fx/"))
    (topic,) = there.topics
    bodies = (b'{"id": 1}', b'{"id": 2}')
    feature = SowFeature(there)
    feature.fold(CommitBatch([put(1, *bodies, publisher=P, topic="fx/a")], 2))
    feature.fold(CommitBatch([put(3, *bodies, publisher=Q, topic="fx/b")], 4))
    for text, logical, count in (
        ("1 = 1", b"", 4),
        ("1 = 1", b"fx/a", 2),
        (f"BOOKMARK() LIKE '^{Q}[|]'", b"", 2),
        ("1 = 2", b"", 0),
    ):
        looking = DeleteScan(topic, logical, expression(text, DELETE), 0)
        looking.take(10)
        assert len(looking.keys(topic.state.get, ())) == count
        looking.close()


def a_topic(records: int) -> tuple[SowTopic, SowFeature]:
    there = book()
    feature = SowFeature(there)
    feature.fold(
        CommitBatch([put(1, *(b'{"id": %d, "n": 1}' % n for n in range(records)))], records)
    )
    return there.topics[0], feature


def test_what_changes_while_it_looks_is_judged_again_before_the_end(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(delete_scan, "CHANGED_MAX", 3)
    topic, feature = a_topic(10)
    looking = DeleteScan(topic, b"", expression("/n = 1", DELETE), 0)
    looking.take(5)
    feature.fold(CommitBatch([put(11, *(b'{"id": %d, "n": 2}' % n for n in range(8)))], 18))
    looking.take(10)
    assert not looking.done, "eight are to be judged again"
    looking.take(5)
    assert looking.done and looking.looked == 15
    assert len(looking.keys(topic.state.get, ())) == 2
    looking.close()


def test_what_changes_faster_than_it_is_judged_is_given_up(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(delete_scan, "CHANGED_MAX", 3)
    topic, feature = a_topic(10)
    looking = DeleteScan(topic, b"", expression("/n = 1", DELETE), 0)
    txid = 10
    for _ in range(100):
        looking.take(4)
        feature.fold(CommitBatch([put(txid + 1, *(b'{"id": %d}' % n for n in range(9)))], txid + 9))
        txid += 9
    assert looking.done and "change faster" in looking.given_up
    looking.close()


def test_what_is_too_much_for_one_record_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(delete_scan, "FOUND_MAX", 8)
    topic, _ = a_topic(10)
    looking = DeleteScan(topic, b"", expression("/n = 1", DELETE), 0)
    looking.take(9)
    assert looking.done and "delete in parts" in looking.given_up
    looking.close()


def test_what_is_staged_and_works_too_much_is_given_up() -> None:
    topic, _ = a_topic(1)
    growing = "/s"
    for _ in range(20):
        growing = f"REGEXP_REPLACE({growing}, '7', '77')"
    looking = DeleteScan(topic, b"", expression(f"{growing} = 'x' OR /n = 1", DELETE), 0)
    looking.take(10)
    assert looking.done and not looking.given_up
    ((key, there),) = ((each.key, each) for each in topic.state.records())
    staged = there._replace(body=b'{"s": 7, "n": 1}')
    assert looking.keys({key: staged}.get, [key]) == [] and "works too much" in looking.given_up
    looking.close()
