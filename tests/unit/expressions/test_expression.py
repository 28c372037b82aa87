"""Where an expression may be used, and what it may ask there."""

from __future__ import annotations

import pytest

from raylay.services.errors import ExpressionError, RemoteProtocolError
from raylay.services.expressions.expression import (
    ANYWHERE,
    REPLICATION,
    SUBSCRIPTION,
    ExpressionUse,
    expression,
    filter_of,
)
from raylay.services.expressions.functions import BUILT_IN
from raylay.services.expressions.functions.registry import NO_CONTEXT, EvalContext


@pytest.mark.covers("Filters by content", "non-deterministic functions are refused")
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
def test_what_is_not_to_be_had_is_refused(text: str, use: ExpressionUse, problem: str) -> None:
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
def test_what_is_to_be_had_may_be_asked(text: str, use: ExpressionUse) -> None:
    around = EvalContext(now_s=2, instance="x", topic="x", size_bytes=4)
    around.random_bytes = lambda count: b"\0" * count
    assert expression(text, use).matches({}, around) is True


def test_the_same_filter_is_compiled_once() -> None:
    assert expression("/a = 77") is expression("/a = 77")


def test_a_refusal_is_no_other_time() -> None:
    for _ in range(2):
        with pytest.raises(ExpressionError, match="column 6: ") as told:
            expression("/a = ")
        assert told.value.expression == "/a = "


@pytest.mark.covers("Filters by content", "the filter of a subscription may ask whose it is")
def test_what_is_asked_of_the_client_is_written_out() -> None:
    """Wherever it stands: in a list, a function, a negation. Who asks for nothing has the same."""
    text = "/who IN ('x', CLIENT_NAME()) OR (UPPER(USER()) = /user AND 1 = 1)"
    one = expression(text, client=EvalContext(client_name="ann", user="sam"))
    two = expression(text, client=EvalContext(client_name="bob"))
    assert one.text != two.text and one.text.startswith(text)
    assert not one.asks_around
    for message, matching in (
        ({"who": "ann", "user": "a"}, (True, False)),
        ({"who": "bob", "user": "SAM"}, (True, True)),
        ({"who": "x", "user": "a"}, (True, True)),
    ):
        assert (
            bool(one.matches(message, NO_CONTEXT)),
            bool(two.matches(message, NO_CONTEXT)),
        ) == matching
    plain = expression("/a = 1")
    assert expression("/a = 1", client=EvalContext(client_name="ann")) is plain


@pytest.mark.parametrize(
    ("text", "use", "column"),
    [("/a = ", SUBSCRIPTION, 6), ("/a = 1 AND CLIENT_NAME() = 'x'", REPLICATION, 12)],
)
def test_a_client_is_told_of_its_filter_what_is_wrong_with_it_and_where(
    text: str, use: ExpressionUse, column: int
) -> None:
    with pytest.raises(RemoteProtocolError, match=f"is no filter: .*column {column}") as told:
        filter_of(text, use, BUILT_IN, None)
    assert told.value.reason == "bad_filter" and repr(text) in str(told.value)
    assert filter_of("/a = 1", use, BUILT_IN, None) is expression("/a = 1", use)
