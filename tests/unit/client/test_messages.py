"""Batches and messages: what is decoded, and the ranges of a payload."""

from __future__ import annotations

import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.fake_server import records

from raylay.services.client.messages import MessageBatch, last_origin_time_us, ranges_of
from raylay.services.errors import RemoteProtocolError
from raylay.services.messages.ranges import PublisherRanges
from raylay.services.messages.records import RecordBuilder

TRACE = bytes(range(25))


def batch_of_three() -> MessageBatch:
    orders = RecordBuilder(7, "orders", "json")
    fills = RecordBuilder(8, "fills", "binary")
    payload = (
        orders.build(1, b"one", 111)
        + fills.build(5, b"", 222, TRACE, key=b"k", correlation=b"c")
        + orders.build(2, b"three", 333, TRACE)
    )
    return MessageBatch("s", 3, payload, timestamp_us=99, first_txid=40, traced=True)


def test_bodies_and_messages_agree() -> None:
    batch = batch_of_three()
    assert batch.bodies() == [b"one", b"", b"three"]
    assert [message.body for message in batch] == batch.bodies()
    assert len(batch) == 3


def test_every_field_of_a_message() -> None:
    message = list(batch_of_three().messages())[1]
    assert (message.topic, message.message_type) == ("fills", "binary")
    assert (message.publisher, message.sequence, message.bookmark) == (8, 5, "8|5|")
    assert (message.key, message.correlation, message.trace) == (b"k", b"c", TRACE)
    assert (message.origin_time_us, message.timestamp_us) == (222, 99)
    assert message.subscription_id == "s"


def test_traced_messages_are_found() -> None:
    assert [message.bookmark for message in batch_of_three().traced_messages()] == ["8|5|", "7|2|"]


def test_ranges_of_publishers_that_take_turns_are_one_each() -> None:
    payload = b"".join(
        records(publisher, [sequence]) for sequence in range(10, 20) for publisher in (1, 2)
    )
    assert sorted(ranges_of(payload, 20)) == [(1, 10, 19), (2, 10, 19)]


def test_ranges_of_a_prefix() -> None:
    batch = MessageBatch("s", 4, records(1, [3, 4, 7, 8]))
    assert batch.prefix_ranges(3) == [(1, 3, 4), (1, 7, 7)]
    assert batch.prefix_ranges(0) == []


@given(st.lists(st.tuples(st.integers(1, 3), st.integers(1, 40)), unique=True, max_size=60))
def test_ranges_are_exactly_the_identities(identities: list[tuple[int, int]]) -> None:
    payload = b"".join(records(publisher, [sequence]) for publisher, sequence in identities)
    found = PublisherRanges()
    for publisher, first, last in ranges_of(payload, len(identities)):
        held = found.get(publisher)
        assert held is None or not held.touches(first, last), "no identity twice"
        found.add(publisher, first, last)
    expected = PublisherRanges()
    for publisher, sequence in identities:
        expected.add(publisher, sequence, sequence)
    assert found == expected


def test_a_record_of_no_length_does_not_hang() -> None:
    batch = MessageBatch("s", 3, bytes(300))
    for read in (batch.bodies, lambda: list(batch)):
        with pytest.raises(RemoteProtocolError, match="a record of 0 bytes"):
            read()
    with pytest.raises(struct.error):
        MessageBatch("s", 3, b"short").bodies()


@pytest.mark.parametrize("lengths", [[3], [3, 3, 3], [1, 5, 2], [5, 1, 1], [60, 1, 60]])
def test_the_last_origin_time_is_found_in_records_of_any_length(lengths: list[int]) -> None:
    builder = RecordBuilder(7, "t", "json")
    payload = b"".join(
        builder.build(n, b"x" * length, 100 + n) for n, length in enumerate(lengths, start=1)
    )
    assert last_origin_time_us(payload, len(lengths)) == 100 + len(lengths)
    assert last_origin_time_us(b"", 0) == 0
    of_one_length = len(set(lengths)) == 1
    told = last_origin_time_us(payload, len(lengths), walk=False)
    assert told == (100 + len(lengths) if of_one_length else 101)
