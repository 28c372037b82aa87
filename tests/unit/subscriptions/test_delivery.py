"""Runs into deliveries."""

from __future__ import annotations

from raylay.services.messages.records import (
    Command,
    Kind,
    RecordBuilder,
    Run,
    iterate_records,
    run_of,
    scan,
)
from raylay.services.subscriptions.delivery import (
    DELIVERY_BYTES_MAX,
    deliveries_of,
    live_deliveries,
    prefix_of,
)
from raylay.services.subscriptions.matching import LiveSubscription, SubscriptionTable, topic_filter


def made(
    topic: str, sequences: list[int], txid: int, body: bytes = b"x", command: int = Command.PUBLISH
) -> Run:
    builder = RecordBuilder(5, topic, "json")
    payload = b"".join(builder.build(number, body, 1, command=command) for number in sequences)
    run = run_of(scan(payload)[0], payload)
    run.first_txid = txid
    run.receive_time_us = 1_000 + txid
    return run


def numbers(bodies: list[bytes]) -> list[int]:
    return [record.sequence for body in bodies for record in iterate_records(body)]


def table_of(*topics: str) -> SubscriptionTable:
    table = SubscriptionTable()
    for number, topic in enumerate(topics):
        table.add(LiveSubscription(number, topic, topic_filter(topic, "")))
    return table


def test_runs_of_the_same_subscribers_share_a_delivery() -> None:
    table = table_of("a", "b")
    runs = [
        made("a", [1, 2], 1),
        made("a", [3], 3),
        made("b", [4], 4),
        made("none", [5], 5),
        made("b", [6], 6),
    ]
    found = [
        ([item.id for item in subscribers], delivery.first_txid, numbers(delivery.bodies))
        for subscribers, delivery in live_deliveries(runs, table)
    ]
    assert found == [(["a"], 1, [1, 2, 3]), (["b"], 4, [4]), (["b"], 6, [6])]


def test_a_note_between_runs_ends_a_delivery() -> None:
    # Its transaction id lies between theirs: record n of a delivery has the id first_txid + n.
    note = Run(5, 1, 1, 1, b"", kind=int(Kind.WAITER), first_txid=2)
    runs = [made("a", [1], 1), note, made("a", [2], 3)]
    found = [delivery.first_txid for _, delivery in live_deliveries(runs, table_of("a"))]
    assert found == [1, 3]


def test_what_is_no_message_is_delivered_to_nobody() -> None:
    runs = [
        made("a", [1, 2], 1),
        made("a", [3], 3, command=Command.DELETE),
        made("a", [4], 4, command=Command.DELTA_PUBLISH),
        made("a", [5], 5),
        made("a", [6], 6, command=Command.TRANSFER),
    ]
    found = [
        (delivery.first_txid, numbers(delivery.bodies))
        for _, delivery in live_deliveries(runs, table_of("a"))
    ]
    assert found == [(1, [1, 2]), (4, [4, 5])]


def test_a_large_run_is_cut_between_records() -> None:
    run = made("a", list(range(1, 9)), 10, bytes(300_000))
    deliveries = deliveries_of(run)
    assert all(item.size_bytes <= DELIVERY_BYTES_MAX for item in deliveries)
    assert [item.first_txid for item in deliveries] == [10, 13, 16]
    assert [numbers(item.bodies) for item in deliveries] == [[1, 2, 3], [4, 5, 6], [7, 8]]
    assert [item.count for item in deliveries] == [3, 3, 2]
    alone = made("a", [1], 10, bytes(2 * DELIVERY_BYTES_MAX))
    assert [item.count for item in deliveries_of(alone)] == [1]
    assert deliveries_of(run, journaled=False)[0].first_txid == 0


def test_a_prefix_keeps_what_is_true_of_it() -> None:
    run = made("a", [1, 2, 3, 7, 8], 10)
    assert prefix_of(run, 5) is run
    part = prefix_of(run, 3)
    assert (part.count, part.last_sequence, part.last_txid) == (3, 3, 12)
    assert part.contiguous and part.ranges() == [(1, 3)]
    part = prefix_of(run, 4)
    assert not part.contiguous and part.ranges() == [(1, 3), (7, 7)]
