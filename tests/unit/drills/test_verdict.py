"""The checkers demand a false verdict of broken histories."""

from __future__ import annotations

import pytest

from raylay.services.drills.verdict import (
    PublishRecord,
    SequenceStretch,
    check_place,
    judge,
    stretches_of_run,
)
from raylay.services.messages.records import RecordBuilder, Run

P, Q = 7, 9


def record(last: int = 10, persisted: int = 10) -> PublishRecord:
    made = PublishRecord()
    made.add(P, 1, last, persisted)
    return made


def test_a_whole_place_is_valid() -> None:
    verdict = judge({"A": [SequenceStretch(P, 1, 4), SequenceStretch(P, 5, 10)]}, record())
    assert verdict.valid
    assert (verdict.published, verdict.persisted) == (10, 10)
    assert verdict.places[0].messages == 10


@pytest.mark.parametrize(
    ("stretches", "fault", "count"),
    [
        ([SequenceStretch(P, 1, 4), SequenceStretch(P, 6, 10)], "lost", 1),
        ([SequenceStretch(P, 1, 9)], "lost", 1),
        ([], "lost", 10),
        ([SequenceStretch(P, 1, 10), SequenceStretch(P, 3, 4)], "duplicated", 2),
        ([SequenceStretch(P, 1, 6), SequenceStretch(P, 5, 10)], "duplicated", 2),
        (
            [SequenceStretch(P, 1, 3), SequenceStretch(P, 6, 10), SequenceStretch(P, 4, 5)],
            "out_of_order",
            2,
        ),
        (
            [SequenceStretch(P, 2, 2), SequenceStretch(P, 1, 1), SequenceStretch(P, 3, 10)],
            "out_of_order",
            1,
        ),
        ([SequenceStretch(P, 1, 11)], "unexpected", 1),
        ([SequenceStretch(P, 1, 10), SequenceStretch(Q, 1, 3)], "unexpected", 3),
    ],
)
def test_a_broken_place_is_not(stretches: list[SequenceStretch], fault: str, count: int) -> None:
    verdict = check_place("A", stretches, record())
    found = {
        name: getattr(verdict, name)
        for name in ("lost", "duplicated", "out_of_order", "unexpected")
    }
    assert found == {**dict.fromkeys(found, 0), fault: count}
    assert not verdict.valid
    assert verdict.examples and verdict.examples[0].startswith(fault)


def test_a_publish_without_an_ack_may_be_there_or_not() -> None:
    unknown = record(last=10, persisted=8)
    assert check_place("A", [SequenceStretch(P, 1, 8)], unknown).valid
    assert check_place("A", [SequenceStretch(P, 1, 10)], unknown).valid
    assert check_place("A", [SequenceStretch(P, 1, 7)], unknown).lost == 1


def test_order_is_kept_per_publisher_and_topic() -> None:
    two = PublishRecord()
    two.add(P, 1, 4, 4)
    two.add(Q, 1, 2, 2)
    topics = [
        SequenceStretch(P, 3, 4, b"x"),
        SequenceStretch(Q, 1, 2, b"x"),
        SequenceStretch(P, 1, 2, b"y"),
    ]
    assert check_place("A", topics, two).valid


def test_one_bad_place_makes_the_verdict_false() -> None:
    verdict = judge({"A": [SequenceStretch(P, 1, 10)], "B": [SequenceStretch(P, 1, 9)]}, record())
    assert not verdict.valid
    assert verdict.lost == 1


def test_no_place_proves_nothing() -> None:
    assert not judge({}, record()).valid


def test_a_run_with_gaps_is_cut_where_they_are() -> None:
    builder = RecordBuilder(P, "t", "json")
    payload = b"".join(builder.build(n, b"{}", 1) for n in (1, 2, 4, 5, 9))
    run = Run(P, 1, 9, 5, payload, topic=b"t", message_type=b"json", flags=0)
    assert list(stretches_of_run(run)) == [
        SequenceStretch(P, 1, 2, b"t"),
        SequenceStretch(P, 4, 5, b"t"),
        SequenceStretch(P, 9, 9, b"t"),
    ]


def test_a_run_of_several_topics_is_cut_where_they_change() -> None:
    payload = b"".join(
        RecordBuilder(P, topic, "json").build(n, b"{}", 1)
        for n, topic in ((1, "t"), (2, "t"), (3, "u"))
    )
    run = Run(P, 1, 3, 3, payload)
    assert list(stretches_of_run(run)) == [
        SequenceStretch(P, 1, 2, b"t"),
        SequenceStretch(P, 3, 3, b"u"),
    ]


def test_a_run_of_one_topic_without_gaps_is_not_walked() -> None:
    run = Run(P, 5, 900, 896, b"", topic=b"t", message_type=b"json")
    assert list(stretches_of_run(run)) == [SequenceStretch(P, 5, 900, b"t")]
