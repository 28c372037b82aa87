"""Fields that are computed when a message is published: how they read, and what they give."""

from __future__ import annotations

from typing import Any

import pytest

from raylay.services.errors import ExpressionError, MessageTypeError
from raylay.services.expressions.functions import BUILT_IN
from raylay.services.expressions.functions.registry import EvalContext
from raylay.services.messages.records import RecordBuilder, decode_record
from raylay.services.messages.types.composite import CompositeGlobal, CompositeLocal, join
from raylay.services.messages.types.registry import message_type
from raylay.services.messages.types.struct import StructType
from raylay.services.sow.enrichment import ENRICHMENT, PREPROCESSING, Enrichment, tell, written

pytestmark = pytest.mark.covers("SOW", "preprocessing and enrichment")

JSON = message_type("json")


def made(*texts: str, kind: Any = JSON, use: Any = ENRICHMENT) -> Enrichment:
    return Enrichment(texts, kind, BUILT_IN, use)


@pytest.mark.covers("SOW", "preprocessing before the key")
@pytest.mark.parametrize(
    ("texts", "message", "previous", "result"),
    [
        (["/price * /count AS /total"], {"price": 2, "count": 3}, None, {"total": 6}),
        (["UPPER(/a) as /b/c"], {"a": "x", "b": {"d": 1}}, None, {"b": {"d": 1, "c": "X"}}),
        (["/a AS /b"], {"a": 1, "b": [1]}, None, {"b": 1}),
        (["1 AS /b/c"], {"b": 2}, None, {"b": {"c": 1}}),
        (["'x' AS [/a b]"], {}, None, {"a b": "x"}),
        (["[/a b] AS /c"], {"a b": 1}, None, {"c": 1}),
        # NULL is written, unless it is optional: then what is there stays.
        (["/no AS /b"], {"b": 1}, None, {"b": None}),
        (["/no AS /b HINT OPTIONAL"], {"b": 1}, None, {"b": 1}),
        (["/no AS /b HINT OPTIONAL"], {"a": 1}, None, {}),
        # The message before.
        (["/n - /n OF PREVIOUS AS /change"], {"n": 5}, {"n": 3}, {"change": 2}),
        (["/n - /n OF PREVIOUS AS /change"], {"n": 5}, None, {"change": None}),
        (["COALESCE(/n OF PREVIOUS, 0) + 1 AS /n"], {}, {"n": 3}, {"n": 4}),
        (["COALESCE(/n OF PREVIOUS, 0) + 1 AS /n"], {"n": 9}, None, {"n": 1}),
        (["/a/b of current AS /c"], {"a": {"b": 1}}, {"a": {"b": 2}}, {"c": 1}),
        (["/a/b[1] OF PREVIOUS AS /c"], {}, {"a": {"b": [1, 2]}}, {"c": 2}),
        # Each sees the message as it came, or what one before it has set.
        (["/a + 1 AS /a", "/a AS /b"], {"a": 1}, None, {"a": 2, "b": 1}),
        (["/a + 1 AS /a HINT SET_CURRENT", "/a AS /b"], {"a": 1}, None, {"a": 2, "b": 2}),
        (["/x AS /a HINT OPTIONAL, SET_CURRENT", "/a AS /b"], {"a": 1}, None, {"b": 1}),
    ],
)
def test_fields(
    texts: list[str], message: dict[str, Any], previous: Any, result: dict[str, Any]
) -> None:
    before = repr((message, previous))
    assert made(*texts)(message, previous) == {**message, **result}
    assert repr((message, previous)) == before


@pytest.mark.parametrize(
    ("text", "column", "says"),
    [
        ("", 1, "it is empty"),
        ("/a", 3, "expected AS and the field that gets the value, found its end"),
        ("/a AS", 6, "expected the field that gets the value, such as /total, found its end"),
        ("/a AS b", 7, "expected the field that gets the value"),
        ("/a AS /b[0]", 7, "an element of an array cannot be set"),
        ("/a AS /b HINT", 14, "expected OPTIONAL or SET_CURRENT behind HINT"),
        ("/a AS /b HINT OPTIONAL,", 24, "expected OPTIONAL or SET_CURRENT"),
        ("/a AS /b, /c AS /d", 9, "expected the end, or HINT OPTIONAL"),
        ("/a OF NEXT AS /b", 7, "expected CURRENT or PREVIOUS behind OF"),
        ("/a + AS /b", 6, "alone means nothing"),
        ("CLIENT_NAME() AS /who", 1, "is not known to enrichment"),
        ("SUM(/a) AS /b", 1, "only views have"),
        ("NONE(/a) AS /b", 1, "there is no function"),
        ("/a AS /" + "b" * 40_000, 32_769, "more than 32,768 characters"),
    ],
)
def test_what_is_none_is_told_with_its_column(text: str, column: int, says: str) -> None:
    with pytest.raises(ExpressionError, match=says) as caught:
        made(text)
    assert caught.value.column == column
    assert caught.value.expression in (text, "")


def test_a_filter_knows_no_messages_to_be_of() -> None:
    from raylay.services.expressions.parser import parse

    with pytest.raises(ExpressionError, match="expected the end"):
        parse("/a OF PREVIOUS = 1", BUILT_IN)


@pytest.mark.covers("SOW", "preprocessing before the key")
def test_preprocessing_sees_the_message_alone() -> None:
    assert made("CONCAT(/a, '-', /b) AS /id", use=PREPROCESSING)({"a": "x", "b": 1})["id"] == "x-1"
    with pytest.raises(ExpressionError, match="no PREVIOUS message yet") as caught:
        made("1 + /n OF PREVIOUS AS /n", use=PREPROCESSING)
    assert caught.value.column == 5


def test_what_is_known_beside_the_message() -> None:
    around = EvalContext(group="Chicago")
    texts = [
        "TOPIC_NAME() AS /topic",
        "UNIX_TIMESTAMP() AS /at",
        "AMPS_GROUP_NAME() AS /group",
        "MESSAGE_SIZE() AS /bytes",
        "BOOKMARK() AS /bookmark",
    ]
    computed = Enrichment(texts, JSON, BUILT_IN, ENRICHMENT, around)
    assert computed.asks_around and not made("/a AS /b").asks_around
    given = decode_record(RecordBuilder(7, "orders", "json").build(3, b"{}", 0))
    tell(around, given, 12_500_000)
    assert computed({}) == {
        "topic": "orders",
        "at": 12.5,
        "group": "Chicago",
        "bytes": 2,
        "bookmark": "7|3|",
    }


@pytest.mark.parametrize(
    ("kind", "message", "text", "result"),
    [
        ("fix", b"1=a\x01", "/1 AS /2", b"1=a\x012=a\x01"),
        ("nvfix", b"a=1\x01", "/none AS /b", b"a=1\x01b=\x01"),
        ("xml", b"<o><a>2</a></o>", "/o/a * 2 AS /o/b", b"<o><a>2</a><b>4</b></o>"),
        ("msgpack", b"\x81\xa1a\x01", "/a = 1 AS /b", b"\x82\xa1a\x01\xa1b\xc3"),
    ],
)
def test_of_every_type_that_can(kind: str, message: bytes, text: str, result: bytes) -> None:
    found = message_type(kind)
    assert (
        written(found, found.known(message), made(text, kind=found)(found.parse(message))) == result
    )


def test_parts_without_fields_and_the_payload_stay() -> None:
    kind = CompositeLocal("two", [JSON, message_type("binary")])
    body = join([b'{"a":1}', b"\xff\xfe"], b"payload")
    after = written(kind, kind.known(body), made("/0/a + 1 AS /0/b", kind=kind)(kind.parse(body)))
    parts, payload = kind.split(after)
    assert (bytes(parts[0]), bytes(parts[1]), bytes(payload)) == (
        b'{"a":1,"b":2}',
        b"\xff\xfe",
        b"payload",
    )


@pytest.mark.parametrize(
    ("kind", "text", "says"),
    [
        (message_type("fix"), "/1 AS /total", "tags of FIX are numbers"),
        (message_type("nvfix"), "/a AS /b/c", "has fields of its own"),
        (StructType("s", ["/a = <i"]), "/a AS /b", "s has no field /b"),
        (CompositeLocal("c", [JSON]), "/0/a AS /b", "/b is in no part of c"),
        (CompositeLocal("c", [JSON]), "/0/a AS /1/b", "/1/b is in no part of c"),
        (CompositeLocal("c", [message_type("binary")]), "1 AS /0/b", "cannot be read field by"),
    ],
)
def test_a_field_that_the_type_cannot_have(kind: Any, text: str, says: str) -> None:
    with pytest.raises(ExpressionError, match=says):
        made(text, kind=kind)


def test_struct_has_all_of_its_fields() -> None:
    kind = StructType("s", ["/a = <i", "/b = <i"])
    body = kind.serialize({"a": 2, "b": 0})
    assert kind.parse(
        written(kind, kind.known(body), made("/a * 2 AS /b", kind=kind)(kind.parse(body)))
    ) == {
        "a": 2,
        "b": 4,
    }


@pytest.mark.parametrize(
    ("kind", "says"),
    [
        (message_type("binary"), "cannot be read field by field"),
        (CompositeGlobal("g", [JSON]), "cannot be enriched: use composite-local"),
    ],
)
def test_types_that_cannot_are_refused(kind: Any, says: str) -> None:
    with pytest.raises(MessageTypeError, match=says):
        made("1 AS /a", kind=kind)
