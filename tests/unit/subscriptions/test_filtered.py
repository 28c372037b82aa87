"""Ordinary subscriptions with a content filter: each gets what passes, in order, parsed once."""

from __future__ import annotations

import pytest

from raylay.services.errors import RemoteProtocolError
from raylay.services.expressions.functions import BUILT_IN
from raylay.services.messages.records import (
    Command,
    RecordBuilder,
    Run,
    iterate_records,
    run_of,
    scan,
)
from raylay.services.messages.types.base import MessageType
from raylay.services.messages.types.registry import message_type
from raylay.services.subscriptions.delivery import DELIVERY_BYTES_MAX
from raylay.services.subscriptions.filtered import FilteredSubscriptions
from raylay.services.subscriptions.matching import FilterOwner, LiveSubscription, topic_filter

pytestmark = pytest.mark.covers(
    "Filters by content", "a subscription with a filter gets what passes"
)


class Counting(dict[str, MessageType]):
    """The types, which count what they parse."""

    parsed = 0

    def __missing__(self, name: str) -> MessageType:
        types, found = self, message_type(name)

        class Counted(type(found)):  # type: ignore[misc]
            def parse(self, body: bytes | memoryview) -> dict[str, object]:
                types.parsed += 1
                parsed: dict[str, object] = found.parse(body)
                return parsed

        counted: MessageType = Counted()
        return counted


def table(types: Counting | None = None) -> FilteredSubscriptions:
    return FilteredSubscriptions(
        Counting() if types is None else types, BUILT_IN, "London-1", "London"
    )


def added(
    to: FilteredSubscriptions, name: str, text: str, topic: str = "orders"
) -> LiveSubscription:
    made = LiveSubscription(1, name, topic_filter(topic, ""), text)
    to.add(made)
    return made


def run(
    *bodies: str,
    topic: str = "orders",
    txid: int = 1,
    first: int = 1,
    command: int = Command.PUBLISH,
) -> Run:
    builder = RecordBuilder(0x11, topic, "json")
    payload = b"".join(
        builder.build(number, body.encode(), 0, command=command)
        for number, body in enumerate(bodies, first)
    )
    made = run_of(scan(payload)[0], payload)
    made.first_txid, made.receive_time_us = txid, 7_000_000
    return made


def given(
    to: FilteredSubscriptions, *runs: Run, journaled: bool = True
) -> list[tuple[str, int, list[str]]]:
    """(subscription, first transaction id, bodies) of each delivery."""
    return [
        (
            subscription.id,
            delivery.first_txid,
            [each.body.decode() for each in iterate_records(b"".join(delivery.bodies))],
        )
        for subscription, delivery in to.deliveries(runs, journaled=journaled)
    ]


A, B = '{"x": "a"}', '{"x": "b"}'


def test_each_gets_what_passes_in_stretches_of_the_log() -> None:
    to = table()
    added(to, "a", "/x = 'a'")
    added(to, "all", "/x IS NOT NULL")
    found = given(to, run(A, A, B, A), run(A, txid=5, first=5), run(A, txid=9, first=6))
    # Each for itself in the order of the log.
    assert [each[1:] for each in found if each[0] == "a"] == [(1, [A, A]), (4, [A, A]), (9, [A])]
    assert [each[1:] for each in found if each[0] == "all"] == [(1, [A, A, B, A, A]), (9, [A])]


def test_what_is_no_message_passes_no_filter() -> None:
    to = table()
    added(to, "a", "/x = 'a'")
    delta = run(A, txid=3, first=3, command=Command.DELTA_PUBLISH)
    found = given(to, run(A), run(A, txid=2, first=2, command=Command.DELETE), delta)
    assert found == [("a", 1, [A]), ("a", 3, [A])]


def test_topics_and_those_who_come_and_go() -> None:
    to = table()
    orders, every = added(to, "orders", "/x = 'a'"), added(to, "every", "/x = 'a'", "^")
    assert {name for name, *_ in given(to, run(A))} == {"orders", "every"}
    assert {name for name, *_ in given(to, run(A, topic="trades"))} == {"every"}
    later = added(to, "later", "/x = 'a'", "trades")
    assert {name for name, *_ in given(to, run(A, topic="trades"))} == {"every", "later"}
    assert later in to and len(to) == 3
    to.remove(every)
    assert {name for name, *_ in given(to, run(A))} == {"orders"}
    to.remove(orders)
    to.remove(later)
    assert not len(to) and given(to, run(A)) == []


def test_a_message_is_parsed_once_for_all_and_not_at_all_for_nobody() -> None:
    types = Counting()
    to = table(types)
    for number in range(50):
        added(to, f"s{number}", f"/x = 'a' AND /y != {number}")
    given(to, run(A, B, "no json"))
    assert types.parsed == 3
    given(to, run(A, topic="trades"))
    assert types.parsed == 3


def test_what_cannot_be_read_passes_nobody() -> None:
    to = table()
    added(to, "null", "/x IS NULL")
    assert given(to, run("no json", "{}")) == [("null", 2, ["{}"])]
    made = run("{}")
    made.message_type = b"of nobody"
    assert given(to, made) == []


def test_what_is_not_journaled_has_no_transaction_ids() -> None:
    to = table()
    added(to, "a", "/x = 'a'")
    assert given(to, run(A, B, A, txid=0), journaled=False) == [("a", 0, [A, A])]


def test_a_delivery_stays_below_its_limit() -> None:
    to = table()
    added(to, "a", "/x = 'a'")
    large = '{"x": "a", "y": "' + "z" * (DELIVERY_BYTES_MAX // 2) + '"}'
    assert [(name, txid) for name, txid, _ in given(to, run(large, large))] == [("a", 1), ("a", 2)]


def test_filters_may_ask_for_what_is_around_a_message() -> None:
    to = table()
    here = added(to, "here", "AMPS_INSTANCE_NAME() = 'London-1' AND UNIX_TIMESTAMP() = 7")
    added(to, "large", "MESSAGE_SIZE() > 1000 OR TOPIC_NAME() = 'x'")
    assert given(to, run(A)) == [("here", 1, [A])]
    to.remove(here)
    assert given(to, run(A)) == []


@pytest.mark.parametrize("text", ["/x = ", "SUM(/x) > 1", "SOW_KEY() = 'x'"])
def test_what_is_no_filter_is_refused_and_nothing_is_added(text: str) -> None:
    to = table()
    with pytest.raises(RemoteProtocolError, match="is no filter: column") as told:
        added(to, "a", text)
    assert told.value.reason == "bad_filter"
    assert not len(to)


@pytest.mark.covers("Filters by content", "the filter of a subscription may ask whose it is")
def test_a_filter_may_ask_whose_it_is() -> None:
    """As of any other value: of 10,000 who ask for their own, each is found by its name."""
    clients = {
        1: FilterOwner("ann", "", "10.0.0.1:99"),
        2: FilterOwner("bob", "", "11.0.0.1:99"),
        3: FilterOwner("c", "sam", "12.0.0.1:99"),
    }
    to = FilteredSubscriptions(Counting(), BUILT_IN, "London-1", "London", clients.__getitem__)
    for session in clients:
        whose = "/desk = CLIENT_NAME() AND USER() IS NULL"
        to.add(LiveSubscription(session, f"whose {session}", topic_filter("orders", ""), whose))
        here = "REMOTE_ADDRESS() BEGINS WITH ('10.') AND CONNECTION_NAME() IS NULL"
        to.add(LiveSubscription(session, f"here {session}", topic_filter("o.*", ""), here))
    found = [(name, txid) for name, txid, _ in given(to, run('{"desk": "bob"}', '{"desk": "c"}'))]
    assert sorted(found) == [("here 1", 1), ("whose 2", 1)]
