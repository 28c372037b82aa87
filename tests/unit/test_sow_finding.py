"""What a delete by filter finds, a part at a time, while the topic goes on."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest
from unit.sow_given import ORDERS, P, Q, book, delete, put

from raylay.services.core.feature import Batch
from raylay.services.core.sow import SowFeature
from raylay.services.expressions.expression import expression
from raylay.services.sow.finding import Finding
from raylay.services.sow.staging import DELETE


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
        feature.fold(Batch([run], txid))

    for _ in range(60):
        fold()
    finding = Finding(topic, b"", expression("/n = 1", DELETE), 0)
    looks = 0
    while not finding.done:
        finding.take(7)
        looks += 1
        for _ in range(rng.randrange(4)):
            fold()
    wanted = sorted(each.key for each in topic.state.records() if b'"n": 1}' in (each.body or b""))
    assert looks > 2 and finding.keys(topic.state.get, ()) == wanted
    finding.close()
    assert topic.state._queries == [], "it hears of no change any more"


def test_what_is_staged_is_judged_as_it_is_staged() -> None:
    there = book()
    (topic,) = there.topics
    SowFeature(there).fold(Batch([put(1, b'{"id": 1, "n": 1}', b'{"id": 2, "n": 1}')], 2))
    one, two = sorted(each.key for each in topic.state.records())
    finding = Finding(topic, b"", expression("/n = 1", DELETE), 0)
    finding.take(10)
    assert finding.done
    assert finding.keys(lambda key: None, [one]) == [two]
    later = topic.state.get(two)
    assert later is not None
    changed = later._replace(body=b'{"n": 2}')
    assert finding.keys({two: changed}.get, [two]) == [one]
    found = finding.keys({two: later, b"new": later}.get, [two, b"new"])
    assert found == sorted([one, two, b"new"]), "asked again, it judges again"


def test_what_cannot_be_read_is_found_by_nothing_and_others_know_more_than_the_body() -> None:
    there = book(replace(ORDERS, name="fx", pattern="^fx/"))
    (topic,) = there.topics
    bodies = (b'{"id": 1}', b'{"id": 2}')
    feature = SowFeature(there)
    feature.fold(Batch([put(1, *bodies, publisher=P, topic="fx/a")], 2))
    feature.fold(Batch([put(3, *bodies, publisher=Q, topic="fx/b")], 4))
    for text, logical, count in (
        ("1 = 1", b"", 4),
        ("1 = 1", b"fx/a", 2),
        (f"BOOKMARK() LIKE '^{Q}[|]'", b"", 2),
        ("1 = 2", b"", 0),
    ):
        finding = Finding(topic, logical, expression(text, DELETE), 0)
        finding.take(10)
        assert len(finding.keys(topic.state.get, ())) == count
        finding.close()
