"""What a bookmark subscription asks for after a reconnect, and what it hands out once."""

from __future__ import annotations

import asyncio
from typing import Any

import msgpack
import pytest
from support.fake_server import records
from support.fake_stores import DictBookmarkStore

from raylay.services.client.messages import MessageBatch
from raylay.services.client.subscriptions.subscription import MESSAGE_OVERHEAD_BYTES, Subscription
from raylay.services.client.subscriptions.subscription_state import SubscriptionState, read_have
from raylay.services.errors import RemoteProtocolError
from raylay.services.messages.bookmarks import EPOCH, NOW
from raylay.services.messages.ranges import PublisherRanges, SequenceSet
from raylay.services.messages.records import sequences_of


def ranges(**sets: list[tuple[int, int]]) -> PublisherRanges:
    """`ranges(p7=[(1, 3)])`."""
    return PublisherRanges({int(name[1:]): SequenceSet(found) for name, found in sets.items()})


def arrive(subscription: SubscriptionState, payload: bytes) -> MessageBatch | None:
    return subscription.arrived({"n": len(sequences_of(payload))}, payload)


def asked(subscription: SubscriptionState) -> tuple[Any, PublisherRanges | None]:
    """(`bm`, `have`) of the subscribe that it would send now."""
    header, body = subscription.subscribe_frame("c1")
    return header.get("bm"), read_have(header.get("o", {}), body)


def test_an_ordinary_subscription_begins_anew() -> None:
    subscription = SubscriptionState("s", "t")
    arrive(subscription, records(7, [1, 2]))
    batch = arrive(subscription, records(7, [1, 2]))
    assert batch is not None and batch.count == 2, "it suppresses nothing"
    assert asked(subscription) == (None, None)


def test_from_the_epoch_it_asks_for_all_but_what_it_received() -> None:
    subscription = SubscriptionState("s", "t", bookmark=EPOCH)
    assert asked(subscription) == (EPOCH, None)
    arrive(subscription, records(7, [1, 2, 5]) + records(8, [3]))
    assert asked(subscription) == (EPOCH, ranges(p7=[(1, 2), (5, 5)], p8=[(3, 3)]))


def test_from_now_it_asks_for_nothing_that_lay_before_its_start() -> None:
    subscription = SubscriptionState("s", "t", bookmark=NOW)
    subscription.accepted(ranges(p7=[(1, 100)]))
    arrive(subscription, records(7, [101, 102]))
    assert asked(subscription) == (NOW, ranges(p7=[(1, 102)]))


def test_where_nothing_lay_before_its_start_it_has_only_what_it_received() -> None:
    subscription = SubscriptionState("s", "t", bookmark=NOW)
    subscription.accepted(None)
    assert asked(subscription) == (NOW, None)
    arrive(subscription, records(7, [5, 6]) + records(8, [9]))
    assert asked(subscription) == (NOW, ranges(p7=[(5, 6)], p8=[(9, 9)]))


def test_a_persisted_ack_makes_have_compact() -> None:
    subscription = SubscriptionState("s", "t", bookmark=EPOCH)
    arrive(subscription, records(7, [2, 4, 6]))
    subscription.named_persisted(ranges(p7=[(1, 6)]))
    assert asked(subscription) == (EPOCH, ranges(p7=[(1, 6)]))


def test_what_comes_again_is_left_out_and_counted() -> None:
    subscription = SubscriptionState("s", "t", bookmark=EPOCH)
    arrive(subscription, records(7, [1, 2, 3]))
    batch = arrive(subscription, records(7, [2, 3, 4, 5]) + records(8, [2]))
    assert batch is not None
    assert [(message.publisher, message.sequence) for message in batch] == [(7, 4), (7, 5), (8, 2)]
    assert (batch.count, subscription.suppressed) == (3, 2)
    assert arrive(subscription, records(7, [1])) is None


def test_a_gap_filled_later_is_handed_out() -> None:
    subscription = SubscriptionState("s", "t", bookmark=EPOCH)
    arrive(subscription, records(7, [1, 4]))
    batch = arrive(subscription, records(7, [2, 3]))
    assert batch is not None and batch.bodies() == [b"2", b"3"]


def test_the_store_knows_only_what_the_consumer_took() -> None:
    store = DictBookmarkStore()
    subscription = SubscriptionState("s", "t", bookmark=EPOCH, store=store)
    batch = arrive(subscription, records(7, [1, 2, 3]))
    assert batch is not None
    assert not store.load("s")
    subscription.taken(batch.prefix_ranges(2))
    again = SubscriptionState("s", "t", bookmark=EPOCH, store=store)
    assert asked(again) == (EPOCH, ranges(p7=[(1, 2)]))


def test_a_store_goes_before_the_bookmark() -> None:
    store = DictBookmarkStore()
    store.seen("s", 7, 1, 9)
    assert asked(SubscriptionState("s", "t", bookmark=NOW, store=store)) == (
        NOW,
        ranges(p7=[(1, 9)]),
    )


def test_what_lay_before_the_start_is_stored_at_once_only_when_nothing_waits() -> None:
    store = DictBookmarkStore()
    fresh = SubscriptionState("s", "t", bookmark=NOW, store=store)
    assert fresh.accepted(ranges(p7=[(1, 5)])) is False
    assert store.load("s") == ranges(p7=[(1, 5)])
    # Resumed with a message that still waits for the consumer: the server's word covers it.
    arrive(fresh, records(7, [6]))
    assert fresh.accepted(ranges(p7=[(1, 6)])) is True
    assert store.load("s") == ranges(p7=[(1, 5)])
    fresh.passed(ranges(p7=[(1, 6)]))
    assert store.load("s") == ranges(p7=[(1, 6)])


def test_with_explicit_discard_an_ack_of_the_server_discards_no_message() -> None:
    store = DictBookmarkStore()
    subscription = SubscriptionState("s", "t", bookmark=EPOCH, store=store, explicit_discard=True)
    arrive(subscription, records(7, [1]))
    subscription.passed(ranges(p7=[(1, 1)]))
    assert not store.load("s")
    # What is no message of the subscription, or was discarded, counts.
    arrive(subscription, records(7, [3]))
    subscription.taken([(7, 1, 1)])
    subscription.passed(ranges(p7=[(1, 4)]))
    assert store.load("s") == ranges(p7=[(1, 2), (4, 4)])


def test_a_have_that_outgrows_the_header_goes_into_the_body() -> None:
    subscription = SubscriptionState("s", "t", bookmark=EPOCH)
    received = subscription.received
    assert received is not None
    for sequence in range(1, 600_000, 2):
        received.add(7, sequence, sequence)
    header, body = subscription.subscribe_frame("c1")
    assert "have" not in header.get("o", {}) and len(body) > 32 * 1024
    assert read_have({}, body) == received


@pytest.mark.parametrize("body", [b"\xc1", msgpack.packb(5), msgpack.packb({1: b"xx"})])
def test_ranges_that_are_none_are_refused(body: bytes) -> None:
    with pytest.raises(RemoteProtocolError):
        read_have({}, body)


def test_a_range_with_an_end_keeps_it_when_it_resumes() -> None:
    subscription = SubscriptionState("s", "t", bookmark="[0:7|9|)")
    assert subscription.bounded
    subscription.accepted(ranges())
    arrive(subscription, records(7, [1]))
    assert asked(subscription) == ("[0:7|9|)", ranges(p7=[(1, 1)]))


def test_an_ack_of_the_server_counts_when_what_came_before_it_was_taken() -> None:
    """Also where that is no longer in the queue, but in the consumer's hands."""

    async def consume() -> None:
        store = DictBookmarkStore()
        resumption = SubscriptionState("s", "t", bookmark=EPOCH, store=store)
        made = Subscription(resumption, 1 << 20, lambda _: None, lambda _: None)
        batch = arrive(resumption, records(7, [1, 2]))
        assert batch is not None
        made.put(batch)
        assert await made.next_batch() is batch
        made.put_persisted(ranges(p7=[(1, 9)]))
        assert not store.load("s"), "after a crash 1 and 2 come again"
        made.put_persisted(ranges(p8=[(1, 1)]))
        another = arrive(resumption, records(7, [11]))
        assert another is not None
        made.put(another)
        assert await made.next_batch() is another
        assert store.load("s") == ranges(p7=[(1, 9)], p8=[(1, 1)])

    asyncio.run(consume())


def test_reading_goes_on_when_half_of_the_queue_is_taken() -> None:
    async def consume() -> None:
        told: list[bool] = []
        resumption = SubscriptionState("s", "t")
        payload = records(7, [1])
        room = 4 * (len(payload) + MESSAGE_OVERHEAD_BYTES)

        def changed(one: Subscription) -> None:
            told.append(one.congested)

        made = Subscription(resumption, room, changed, lambda _: None)
        for count in range(4):
            assert not made.congested, f"there is room for {4 - count}"
            batch = arrive(resumption, payload)
            assert batch is not None
            made.put(batch)
        assert told == [True]
        await made.next_batch()
        assert told == [True]
        await made.next_batch()
        assert told == [True, False]

    asyncio.run(consume())
