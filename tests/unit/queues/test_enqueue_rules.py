"""services/queues/enqueue_rules.py: what a queue asks of a message that comes in."""

from __future__ import annotations

import json
from typing import Any

import pytest

from raylay.services.errors import ConfigurationError, MessageTypeError
from raylay.services.expressions.functions import BUILT_IN
from raylay.services.messages.records import EXPIRATION_S_MAX, RecordBuilder, Run
from raylay.services.messages.topics import TOPIC_CACHE_MAX
from raylay.services.messages.types.registry import MessageTypes
from raylay.services.queues.definition import QueueDefinition
from raylay.services.queues.enqueue_rules import EnqueueRules
from raylay.services.queues.entry import PRIORITY_MAX

P = 1
S_US = 1_000_000


def entrance(**changes: Any) -> EnqueueRules:
    """Of a queue with these differences."""
    definition = QueueDefinition("q", "json", **{"underlying": "orders", **changes})
    return EnqueueRules(definition, MessageTypes(), BUILT_IN)


def run(*bodies: Any, expiration_s: int = 0) -> Run:
    """Messages that say these; bytes are taken as they are."""
    builder = RecordBuilder(P, "orders", "json")
    payload = b"".join(
        builder.build(
            sequence,
            body if isinstance(body, bytes) else json.dumps(body).encode(),
            0,
            expiration_s=expiration_s,
        )
        for sequence, body in enumerate(bodies, 1)
    )
    return Run(P, 1, len(bodies), len(bodies), payload, b"orders", b"json", receive_time_us=S_US)


def test_a_topic_or_an_expression_of_one_type() -> None:
    assert entrance().takes(b"orders", b"json")
    assert not entrance().takes(b"orders", b"fix")
    assert not entrance().takes(b"orders/eu", b"json")
    assert entrance(underlying="").takes(b"q", b"json")
    regex = entrance(underlying="^orders", publish_target="orders")
    for _ in range(2):
        assert regex.takes(b"orders/eu", b"json")
        assert not regex.takes(b"eu/orders", b"json")
    for number in range(TOPIC_CACHE_MAX + 1):
        assert regex.takes(b"orders/%d" % number, b"json")
    assert len(regex._knows) <= TOPIC_CACHE_MAX


def test_where_nothing_is_to_be_known_only_sequences_are_read() -> None:
    assert entrance().plain(run({}, {}, {})) == [1, 2, 3]
    assert entrance().plain(run({}, expiration_s=4)) is None
    assert entrance(expiration_model="queue").plain(run({}, expiration_s=4)) == [1]
    assert entrance(expiration_us=S_US).plain(run({})) is None
    assert entrance(filter="/a = 1").plain(run({})) is None


def test_the_filter_lets_in_what_it_fits_and_nothing_that_cannot_be_read() -> None:
    found = entrance(filter="/a = 1").each(run({"a": 1}, {"a": 2}, b"{", {"a": 1}), S_US)
    assert [(each.at, each.sequence) for each in found] == [(0, 1), (3, 4)]


@pytest.mark.covers("Queues", "`Priority`: unsigned 64 bits")
@pytest.mark.parametrize(
    ("value", "priority"),
    [(7, 7), (2.9, 2), (-1, 0), (None, 0), ("9", 9), ("x", 0), (1e30, PRIORITY_MAX), (True, 1)],
)
def test_a_priority_is_an_unsigned_number_of_64_bits(value: Any, priority: int) -> None:
    (found,) = entrance(priority="/p").each(run({"p": value}), S_US)
    assert found.priority == priority


def test_what_cannot_be_read_has_the_lowest_priority_and_is_no_barrier() -> None:
    (found,) = entrance(priority="/p").each(run(b"{"), S_US)
    assert found.priority == 0
    found, barrier = entrance(barrier="/b = 1").each(run(b"{", {"b": 1}), S_US)
    assert (found.priority, found.is_barrier, barrier.is_barrier) == (None, False, True)


def test_an_expression_may_ask_for_what_stands_beside_the_body() -> None:
    wanted = entrance(filter="MESSAGE_SIZE() > 5 AND BOOKMARK() LIKE '1.2'")
    assert [each.sequence for each in wanted.each(run({}, {"a": 1}, {"a": 1}), S_US)] == [2]


@pytest.mark.parametrize(
    ("model", "own_s", "queue_s", "expires_s"),
    [
        ("default", 0, 0, 0),
        ("default", 0, 9, 9),
        ("default", 5, 9, 5),
        ("default", EXPIRATION_S_MAX, 9, 0),
        ("queue", 5, 0, 0),
        ("latest", 5, 9, 9),
        ("latest", 5, 0, 0),
        ("latest", EXPIRATION_S_MAX, 9, 0),
        ("earliest", 5, 9, 5),
        ("earliest", 5, 0, 5),
        ("earliest", EXPIRATION_S_MAX, 9, 9),
    ],
)
def test_the_model_says_when_it_expires(
    model: str, own_s: int, queue_s: int, expires_s: int
) -> None:
    made = entrance(expiration_us=queue_s * S_US, expiration_model=model)
    (found,) = made.each(run({}, expiration_s=own_s), S_US)
    assert found.expires_us == (expires_s + 1) * S_US * (expires_s > 0)


def test_expressions_that_are_none_or_that_instances_would_answer_differently_are_refused() -> None:
    for part in ("filter", "priority", "barrier"):
        for text in ("/a >", "UNIX_TIMESTAMP() > 5"):
            with pytest.raises(ConfigurationError, match=f"queue q: {part}: "):
                entrance(**{part: text})
    with pytest.raises(MessageTypeError):
        EnqueueRules(QueueDefinition("q", "none", filter="/a = 1"), MessageTypes(), BUILT_IN)
