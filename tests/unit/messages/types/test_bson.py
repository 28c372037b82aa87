"""services/messages/types/bson.py against hand-written bodies."""

from __future__ import annotations

import struct
import sys
from typing import Any

import pytest
from support.message_type_cases import check_deltas, check_fuzz, check_whatever_comes

from raylay.services.errors import MessageTypeError
from raylay.services.messages.types.bson import Bson

pytestmark = pytest.mark.covers("Message types", "every type against hand-written bodies")

BSON = Bson()


def document(*elements: bytes) -> bytes:
    """A document of elements that are written by hand."""
    inside = b"".join(elements)
    return struct.pack("<i", len(inside) + 5) + inside + b"\0"


INT32, INT64 = b"\x10i\0\x01\0\0\0", b"\x12l\0\x01" + bytes(7)
DATE = b"\x09d\0" + struct.pack("<q", -(10**15))
OBJECT_ID, DECIMAL = b"\x07o\0" + b"\xab" * 12, b"\x13n\0" + b"\x01" + bytes(13) + b"\x40\x30"
BODIES = [
    document(),
    document(INT32, INT64, DATE, OBJECT_ID),
    document(INT32, b"\x02s\0\x04\0\0\0IBM\0", b"\x01f\0" + struct.pack("<d", 1.5)),
    document(b"\x03m\0" + document(INT32, DATE), b"\x04a\0" + document(b"\x100\0\x05\0\0\0")),
    document(b"\x03m\0" + document(INT64), b"\x0an\0", b"\x08b\0\x01"),
]


@pytest.mark.parametrize(
    ("body", "tree"),
    [
        (document(), {}),
        (document(INT32, INT64), {"i": 1, "l": 1}),
        (document(b"\x01f\0" + struct.pack("<d", 1.5)), {"f": 1.5}),
        (document(b"\x02s\0\x03\0\0\0\xc3\xa4\0"), {"s": "ä"}),
        (document(b"\x03m\0" + document(INT32)), {"m": {"i": 1}}),
        (document(b"\x04a\0" + document(b"\x100\0\x05\0\0\0", b"\x0a1\0")), {"a": [5, None]}),
        (document(b"\x05b\0\x02\0\0\0\0\xff\x00"), {"b": b"\xff\0"}),
        (document(b"\x05b\0\x02\0\0\0\x80\xff\x00"), {"b": b"\xff\0"}),
        (document(OBJECT_ID), {"o": "ab" * 12}),
        (document(b"\x08b\0\x01", b"\x0an\0"), {"b": True, "n": None}),
        (document(DATE), {"d": -(10**15)}),
        (document(b"\x0br\0a+\0i\0"), {"r": "a+"}),
        (document(b"\x0dc\0\x02\0\0\0x\0"), {"c": "x"}),
        (document(b"\x11t\0\x02\0\0\0\x01\0\0\0"), {"t": (1 << 32) | 2}),
        (document(DECIMAL), {"n": "1"}),
        (document(b"\xffm\0", b"\x7fM\0"), {"m": "MinKey", "M": "MaxKey"}),
    ],
)
def test_parse(body: bytes, tree: dict[str, Any]) -> None:
    found = BSON.parse(body)
    assert found == tree and [type(each) for each in found.values()] == [
        type(each) for each in tree.values()
    ]
    assert BSON.parse(memoryview(b"xx" + body)[2:]) == tree
    # What a delta leaves as it is keeps its type.
    assert BSON.merge(body, document()) == body


def nested(depth: int) -> bytes:
    body = document()
    for _ in range(depth):
        body = document(b"\x03a\0" + body)
    return body


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"\x05\0\0\0",
        b"\x06\0\0\0\0",
        b"\xff\xff\xff\x7f\0",
        document(INT32)[:-1] + b"\x01",
        document(b"\x02s\0\xff\xff\xff\x7fx\0"),
        document(b"\x02s\0\x02\0\0\0\xff\0"),
        document(b"\x20x\0"),
        nested(101),
        nested(30_000),
    ],
    ids=range(10),
)
def test_what_is_no_bson_is_refused(body: bytes) -> None:
    with pytest.raises(MessageTypeError, match=r"no message of type bson: ."):
        BSON.parse(body)
    BSON.parse(nested(90))


@pytest.mark.parametrize("value", [2**64, "\udcff", object(), {1: 2}, {"a\0": 1}])
def test_what_bson_cannot_say_is_refused(value: object) -> None:
    with pytest.raises(MessageTypeError, match="BSON cannot say this"):
        BSON.serialize({"a": value})


def test_a_delta_keeps_types() -> None:
    stored = document(INT32, INT64, DATE)
    changed = document(b"\x10i\0\x02\0\0\0", INT64, DATE)
    delta = BSON.difference(stored, changed, [("l",)])
    assert delta == document(b"\x10i\0\x02\0\0\0", INT64)
    assert BSON.merge(stored, delta) == changed
    assert BSON.difference(document(INT32, INT64), document(INT32)) == document(b"\x0al\0")


@pytest.mark.covers("Message types", "types by name, of a configuration")
def test_without_the_library_one_line_says_how_to_install_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(sys.modules, "bson", None)
    with pytest.raises(MessageTypeError) as caught:
        Bson()
    assert str(caught.value) == (
        "message type bson needs the library pymongo, which is not installed: "
        "pip install 'raylay[bson]'"
    )


@pytest.mark.covers("Message types", "deltas: what is lacking stays")
def test_deltas_lead_where_they_should() -> None:
    check_deltas(BSON, BODIES, None)


@pytest.mark.covers("Message types", "no body harms a parser")
def test_no_body_harms_it() -> None:
    read, refused = check_fuzz(BSON, BODIES)
    assert read > 20 and refused > 500


def test_no_bytes_are_answered_with_another_error() -> None:
    assert check_whatever_comes(BSON, BODIES) > 100
