"""What is held behind a query comes out in order, and counts."""

from __future__ import annotations

import pytest

from raylay.services.subscriptions.deferred_deliveries import DeferredDeliveries
from raylay.services.subscriptions.delivery import DeliveryContent

pytestmark = pytest.mark.covers("SOW", "a query's subscription begins at its moment")


class Log:
    def __init__(self) -> None:
        self.got: list[tuple[str, str, int]] = []

    def deliver(self, subscription: str, delivery: DeliveryContent) -> None:
        self.got.append((subscription, "", delivery.first_txid))

    def out_of_focus(self, subscription: str, reason: str, left: DeliveryContent) -> None:
        self.got.append((subscription, reason, left.first_txid))


def delivery(txid: int, size_bytes: int) -> DeliveryContent:
    return DeliveryContent(txid, 5, 1, size_bytes, False, [bytes(size_bytes)])


def test_all_comes_out_in_order_once() -> None:
    behind, log = DeferredDeliveries(), Log()
    behind.deliver("a", delivery(1, 100))
    behind.out_of_focus("b", "match", delivery(2, 10))
    behind.deliver("b", delivery(3, 1))
    assert behind.held_bytes == 111
    behind.release(log)
    assert log.got == [("a", "", 1), ("b", "match", 2), ("b", "", 3)] and not behind.held_bytes
    behind.release(log)
    assert len(log.got) == 3


def test_much_comes_out_in_parts_and_there_is_an_end_whatever_comes_meanwhile() -> None:
    """Each part may take no time at all, and others come faster than that."""
    behind, log, sent = DeferredDeliveries(), Log(), 1_000
    for txid in range(sent):
        behind.deliver("a", delivery(txid, 1))
    parts = 0
    while not behind.release(log, lambda: True):
        parts += 1
        assert len(log.got) <= (parts + 1) * 8, "a part of it at a time"
        for _ in range(6):
            behind.deliver("a", delivery(sent, 1))
            sent += 1
        assert behind.held_bytes == sent - len(log.got)
    assert [txid for _, _, txid in log.got] == list(range(sent))
    assert parts > 100 and not behind.held_bytes


def test_nothing_comes_of_a_subscription_that_has_ended() -> None:
    behind, log = DeferredDeliveries(), Log()
    behind.deliver("a", delivery(1, 100))
    behind.deliver("b", delivery(2, 10))
    behind.forget("a")
    assert behind.held_bytes == 10
    behind.release(log)
    assert log.got == [("b", "", 2)]
