"""Where an expression may be used, and what it may ask there."""

from __future__ import annotations

import pytest

from raylay.services.errors import ExpressionError
from raylay.services.expressions.expression import (
    ANYWHERE,
    REPLICATION,
    SUBSCRIPTION,
    Use,
    expression,
)
from raylay.services.expressions.functions.registry import Surroundings


@pytest.mark.parametrize(
    ("text", "use", "problem"),
    [
        ("UNIX_TIMESTAMP() > 1", REPLICATION, "something else each time"),
        ("LAST_READ() > 1", REPLICATION, "something else each time"),
        ("UUID7() > 1", REPLICATION, "something else each time"),
        ("CLIENT_NAME() = 'x'", REPLICATION, "not known to a replication filter"),
        ("SOW_KEY() = 'x'", REPLICATION, "not known to"),
        ("UUID7() > 1", SUBSCRIPTION, "not known to the filter of a subscription"),
        ("/a = 1 AND SUM(/a) > 1", ANYWHERE, "only views have"),
    ],
)
def test_what_is_not_to_be_had_is_refused(text: str, use: Use, problem: str) -> None:
    with pytest.raises(ExpressionError, match=problem) as told:
        expression(text, use)
    assert told.value.expression == text


@pytest.mark.parametrize(
    ("text", "use"),
    [
        ("UNIX_TIMESTAMP() > 1", SUBSCRIPTION),
        ("AMPS_INSTANCE_NAME() = 'x'", SUBSCRIPTION),
        ("UUID7() LIKE '-7'", ANYWHERE),
        ("TOPIC_NAME() = 'x' AND MESSAGE_SIZE() > 3", REPLICATION),
    ],
)
def test_what_is_to_be_had_may_be_asked(text: str, use: Use) -> None:
    around = Surroundings(now_s=2, instance="x", topic="x", size_bytes=4)
    around.random_bytes = lambda count: b"\0" * count
    assert expression(text, use).matches({}, around) is True


def test_the_same_filter_is_compiled_once() -> None:
    assert expression("/a = 77") is expression("/a = 77")


def test_a_refusal_is_no_other_time() -> None:
    for _ in range(2):
        with pytest.raises(ExpressionError, match="column 6: ") as told:
            expression("/a = ")
        assert told.value.expression == "/a = "
