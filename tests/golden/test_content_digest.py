"""What two records of one identity have in common, whatever release wrote them."""

from __future__ import annotations

from typing import Any

import pytest

from raylay.services.messages.content_digest import content_keys
from raylay.services.messages.records import SEQUENCE_MAX, Command, RecordBuilder, decode_record

TRACE = bytes(range(25))


def test_what_two_records_of_one_identity_have_in_common() -> None:
    """The record is as it always was, and what earlier releases journaled is compared like it."""
    raw = RecordBuilder(7, "orders", "json").build(
        5, b"{}", 1, TRACE, command=Command.DELETE, expiration_s=60, key=b"k1", correlation=b"c-9"
    )
    (content,) = content_keys(raw, 0, SEQUENCE_MAX).values()
    record = decode_record(raw)
    assert content == (
        record.digest,
        record.expiration_s,
        record.command,
        len(record.message_type),
        len(record.topic),
        len(record.key),
        len(record.correlation),
    )


SAME = {"topic": "ab", "message_type": "json", "key": b"kk", "correlation": b"c", "body": b"x"}


@pytest.mark.covers("Clients and protocol", "a sequence that comes again with another command")
@pytest.mark.parametrize(
    "other",
    [
        {"command": Command.DELETE},
        {"expiration_s": 9},
        {"body": b"y"},
        {"topic": "a", "message_type": "bjson"},
        {"key": b"k", "correlation": b"kc"},
        {"key": b"kkc", "correlation": b""},
        {"correlation": b"", "body": b"cx"},
    ],
)
def test_a_record_that_says_something_else_is_another_one(other: dict[str, Any]) -> None:
    def made(**values: Any) -> bytes:
        topic, kind, body = (values.pop(name) for name in ("topic", "message_type", "body"))
        when_us = values.pop("when_us", 1)
        return RecordBuilder(7, topic, kind).build(5, body, when_us, **values)

    same = content_keys(made(**SAME), 5, 5)
    assert same == content_keys(made(**SAME, when_us=2, trace=TRACE), 5, 5), "published again"
    assert same != content_keys(made(**SAME | other), 5, 5)


def test_those_of_a_span_are_asked_for() -> None:
    build = RecordBuilder(7, "orders", "json").build
    payload = b"".join(build(number, b"%d" % number, 1) for number in (1, 3, 4, 7))
    assert list(content_keys(payload, 2, 4)) == [3, 4]
