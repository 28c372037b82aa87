"""Functions of what is known beside a message's body, and of values that cannot be written out."""

from __future__ import annotations

import pytest
from support.expressions_given import NAN, gives

from raylay.services.expressions.functions.registry import EvalContext

AROUND = EvalContext(
    topic="orders",
    size_bytes=17,
    correlation_id="c-1",
    bookmark="1|2|",
    last_updated=1.5,
    last_leased=2.5,
    lease_count=3,
    last_read=4.5,
    sow_key="k",
    sow_key_hash=99,
    client_name="me",
    user="ann",
    remote_address="10.0.0.1:5",
    client_version="raylay",
    connection_name="c7",
    instance="London-1",
    group="London",
)


@pytest.mark.covers("Filters by content", "message, client and instance functions")
@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ("MESSAGE_SIZE()", 17),
        ("CORRELATION_ID()", "c-1"),
        ("LAST_UPDATED()", 1.5),
        ("TOPIC_NAME()", "orders"),
        ("BOOKMARK()", "1|2|"),
        ("LAST_LEASED()", 2.5),
        ("LEASE_COUNT()", 3),
        ("SOW_KEY()", "k"),
        ("SOW_KEY_HASH()", 99),
        ("LAST_READ()", 4.5),
    ],
)
def test_message_functions(text: str, wanted: object) -> None:
    gives(text, wanted, around=AROUND)
    gives(text, None)


@pytest.mark.covers("Filters by content", "message, client and instance functions")
@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ("CLIENT_NAME()", "me"),
        ("USER()", "ann"),
        ("REMOTE_ADDRESS()", "10.0.0.1:5"),
        ("CLIENT_VERSION()", "raylay"),
        ("CONNECTION_NAME()", "c7"),
    ],
)
def test_client_functions(text: str, wanted: object) -> None:
    gives(text, wanted, around=AROUND)
    gives(text, None)


@pytest.mark.covers("Filters by content", "message, client and instance functions")
def test_instance_functions() -> None:
    gives(
        "CONCAT(AMPS_INSTANCE_NAME(), ' of ', AMPS_GROUP_NAME())",
        "London-1 of London",
        None,
        AROUND,
    )


@pytest.mark.covers("Filters by content", "COALESCE TRUE_VALUE FALSE_VALUE NAN_VALUE")
def test_coalesce() -> None:
    gives("COALESCE(/none, '', 'b', 'c')", "b")
    gives("COALESCE(/a, 3)", 1, {"a": [1, 2]})
    gives("COALESCE(/none)", None)


@pytest.mark.covers("Filters by content", "COALESCE TRUE_VALUE FALSE_VALUE NAN_VALUE")
def test_true_value() -> None:
    gives("TRUE_VALUE()", True)


@pytest.mark.covers("Filters by content", "COALESCE TRUE_VALUE FALSE_VALUE NAN_VALUE")
def test_false_value() -> None:
    gives("FALSE_VALUE()", False)


@pytest.mark.covers("Filters by content", "COALESCE TRUE_VALUE FALSE_VALUE NAN_VALUE")
def test_nan_value() -> None:
    gives("NAN_VALUE()", NAN)


@pytest.mark.covers("Filters by content", "COALESCE TRUE_VALUE FALSE_VALUE NAN_VALUE")
def test_char_value() -> None:
    gives("CHAR_VALUE(65)", "A")
    gives("LENGTH(CHAR_VALUE(255))", 1)
    gives("CONCAT(CHAR_VALUE(195), CHAR_VALUE(169))", "é")
    gives("CHAR_VALUE(256)", None)
