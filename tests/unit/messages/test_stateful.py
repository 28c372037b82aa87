from __future__ import annotations

import pytest

from raylay.services.messages.content_digest import content_keys
from raylay.services.messages.records import (
    RUN_BYTES_MAX,
    RecordBuilder,
    Run,
    decode_run,
    iterate_records,
    run_of,
    scan,
)
from raylay.services.messages.stateful import RefusedRecords, left_of, on_topic, with_bodies

pytestmark = pytest.mark.covers("Replication", "what a topic's state adds to a message is made")

TRACE = bytes(range(25))


def run(*bodies: bytes, first: int = 1) -> Run:
    builder = RecordBuilder(7, "orders", "json")
    payload = b"".join(
        builder.build(
            sequence,
            body,
            5,
            TRACE if sequence % 2 else b"",
            key=b"k",
            correlation=b"cc",
            expiration_s=9,
        )
        for sequence, body in enumerate(bodies, first)
    )
    return run_of(scan(payload)[0], payload)


def test_a_run_with_other_bodies_is_the_same_messages() -> None:
    came = run(b"a", b"bb", b"")
    came.first_txid, came.payload_checksum, came.raw = 4, 1, b"as it came"
    made = with_bodies(came, [(each, each.body * 3) for each in iterate_records(came.payload)])
    before, after = (list(iterate_records(each.payload, verify=True)) for each in (came, made))
    assert [each.body for each in after] == [b"aaa", b"bbbbbb", b""]
    assert [each._replace(body=b"", raw=b"") for each in after] == [
        each._replace(body=b"", raw=b"") for each in before
    ]
    assert content_keys(made.payload, 1, 3) == content_keys(came.payload, 1, 3)
    assert (made.ranges(), made.flags, made.first_txid) == (came.ranges(), came.flags, 4)
    assert scan(made.payload)[0].records == 3
    again = decode_run(made.encode())
    assert again.payload == made.payload, "nothing of how it came is left"
    assert came.payload == run(b"a", b"bb", b"").payload


def test_what_is_left_of_a_run_is_the_same_messages_in_order() -> None:
    came = run(b"a", b"b", b"c", b"d")
    records = list(iterate_records(came.payload))
    refused = [RefusedRecords([(2, 2)], "bad_message", "2 is none")]
    left = left_of(came, [(each, each.body * 2) for each in records if each.sequence != 2], refused)
    (made,) = left.runs
    assert left.refused is refused
    assert made.ranges() == [(1, 1), (3, 4)] and made.count == 3
    assert scan(made.payload)[0].records == 3
    bodies = [each.body for each in iterate_records(made.payload, verify=True)]
    assert bodies == [b"aa", b"cc", b"dd"]
    assert left_of(came, [], [RefusedRecords([(1, 4)], "bad_message", "all")]).runs == []
    assert left_of(came, [(each, each.body) for each in records], []).runs == [came]


def test_what_becomes_longer_than_a_run_may_be_is_several() -> None:
    came = run(b"a", b"b", b"c", b"d")
    records = list(iterate_records(came.payload))
    whole, small = b"x" * (RUN_BYTES_MAX - 60 - 14 - 25), b"y"
    made = [(each, small if each.sequence == 3 else whole) for each in records]
    runs = left_of(came, made, []).runs
    assert [each.ranges() for each in runs] == [[(1, 1)], [(2, 2)], [(3, 3)], [(4, 4)]]
    assert sum(each.count for each in runs) == 4
    assert max(len(each.payload) for each in runs) <= RUN_BYTES_MAX
    found = [each.body for one in runs for each in iterate_records(one.payload, verify=True)]
    assert found == [whole, whole, small, whole]


def test_on_a_topic_of_a_longer_name_what_is_too_long_for_a_run_is_several() -> None:
    came = run(b"a" * 8_000_000, b"b" * 8_000_000, b"c" * (RUN_BYTES_MAX - 16_000_000 - 3 * 99))
    assert len(came.payload) <= RUN_BYTES_MAX < len(came.payload) + 3 * 1_000
    runs = on_topic(came, b"t" * 1_024)
    assert [each.ranges() for each in runs] == [[(1, 2)], [(3, 3)]]
    assert max(len(each.payload) for each in runs) <= RUN_BYTES_MAX
    records = [each for one in runs for each in iterate_records(one.payload, verify=True)]
    assert [each.body for each in records] == [each.body for each in iterate_records(came.payload)]
    assert {each.topic for each in records} == {"t" * 1_024}
    (short,) = on_topic(came, b"t")
    assert short.ranges() == [(1, 3)] and short.topic == b"t"
