"""The order of messages."""

from __future__ import annotations

from support.queues_given import message

from raylay.services.queues.entry import PRIORITY_MAX


def test_the_order_is_that_of_priorities_and_then_of_transaction_ids() -> None:
    ordered = [message(9, PRIORITY_MAX), message(2, 7), message(3, 7), message(1, 0)]
    assert sorted(ordered[::-1], key=lambda each: each.order) == ordered
    assert [each.priority for each in ordered] == [PRIORITY_MAX, 7, 7, 0]
    assert message(5).order < message(6).order


def test_a_message_says_its_key_and_shares_its_transaction_id() -> None:
    one = message(1 << 40)
    assert one.key == (7, 1 << 40) and repr(one) == f"<QueueEntry {1 << 40}>"
    assert one.order is one.txid
