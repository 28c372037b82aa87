"""Bodies of publishes: each kind of value in each message type, and what cannot be written."""

from __future__ import annotations

import datetime
import types
from dataclasses import dataclass
from typing import Any

import msgspec
import pydantic
import pytest

from raylay.services.client.body_decoder import body_decoder, decode_value
from raylay.services.client.publishing.body_writer import bodies_bytes, body_bytes
from raylay.services.errors import MessageTypeError

pytestmark = pytest.mark.covers("Clients and protocol", "a body is published by its message type")


class QuoteStruct(msgspec.Struct):
    symbol: str
    size: int


@dataclass
class QuoteData:
    symbol: str
    size: int


class QuoteModel(pydantic.BaseModel):
    symbol: str
    size: int = pydantic.Field(alias="lots")


class Basket(msgspec.Struct):
    quotes: list[Any]
    at: datetime.date
    raw: bytes = b""


class Pair(msgspec.Struct, array_like=True):
    one: int
    other: int


KINDS = [QuoteStruct("IBM", 3), QuoteData("IBM", 3), QuoteModel(symbol="IBM", lots=3)]


@pytest.mark.parametrize("value", KINDS, ids=lambda value: type(value).__name__)
@pytest.mark.parametrize("message_type", ["json", "msgpack", "bson", "nvfix"])
def test_a_value_comes_back_as_its_type(value: Any, message_type: str) -> None:
    body = body_bytes(value, "quotes", message_type)
    assert decode_value(body_decoder(type(value), "here"), body, message_type) == value


@pytest.mark.parametrize(
    ("value", "message_type", "body"),
    [
        (b"\xff", "json", b"\xff"),
        (bytearray(b"ab"), "binary", b"ab"),
        (memoryview(b"ab"), "json", b"ab"),
        ("\u00fc", "json", b"\xc3\xbc"),
        ("text", "quotes", b"text"),
        ({"a": [1, None, "x"]}, "json", b'{"a":[1,null,"x"]}'),
        (types.MappingProxyType({"a": 1}), "json", b'{"a":1}'),
        (types.MappingProxyType({"a": 1}), "msgpack", b"\x81\xa1a\x01"),
        ({}, "json", b"{}"),
        ({"55": "IBM", "270": [1.5, 1.6]}, "fix", b"55=IBM\x01270=1.5\x01270=1.6\x01"),
        ({"order": {"@id": 7, "leg": ["1", "2"]}}, "xml", None),
        ({"raw": b"\0"}, "msgpack", b"\x81\xa3raw\xc4\x01\0"),
        (
            Basket([QuoteModel(symbol="IBM", lots=3)], datetime.date(2026, 1, 2)),
            "json",
            b'{"quotes":[{"symbol":"IBM","lots":3}],"at":"2026-01-02","raw":""}',
        ),
    ],
)
def test_a_body_is_written_by_its_message_type(
    value: Any, message_type: str, body: bytes | None
) -> None:
    written = body_bytes(value, "quotes", message_type)
    assert written == (body or b'<order id="7"><leg>1</leg><leg>2</leg></order>')


@pytest.mark.parametrize("value", [None, 7, 1.5, True, [1], (1,), {1}, object()])
def test_what_is_no_body_is_a_type_error(value: Any) -> None:
    with pytest.raises(TypeError, match=f"publish to orders: .* type {type(value).__name__}, and"):
        body_bytes(value, "orders", "json")


RECURSIVE: dict[str, Any] = {}
RECURSIVE["self"] = RECURSIVE


@pytest.mark.parametrize(
    ("value", "message_type", "why"),
    [
        ({"a": object()}, "json", "a value of type object cannot be written"),
        ({"a": object()}, "msgpack", "a value of type object cannot be written"),
        (Pair(1, 2), "json", "it is no object with fields"),
        (Pair(1, 2), "msgpack", "it is no object with fields"),
        (RECURSIVE, "json", "recursion"),
        (RECURSIVE, "msgpack", "recursion"),
        ("\ud800", "json", "surrogates not allowed"),
        ({"a": 1 << 70}, "msgpack", "MessagePack cannot say this"),
        ({"a": {"b": 1}}, "fix", "cannot be a tag"),
        ({"a": {"b": 1}}, "nvfix", "has fields of its own"),
        ({"a": 1, "b": 2}, "xml", "one element that holds all others"),
        ({"a": 1}, "binary", "cannot be read field by field"),
        ({"a": 1}, "quotes", "the fabric defines no such type, and there are"),
    ],
)
def test_an_object_that_cannot_be_written_names_topic_type_and_a_way_out(
    value: Any, message_type: str, why: str
) -> None:
    with pytest.raises(MessageTypeError, match=why) as raised:
        body_bytes(value, "orders", message_type)
    text = str(raised.value)
    assert text.startswith(f"publish to orders: the body is of type {type(value).__name__}, and")
    assert f"message of type {message_type}" in text and text.endswith("or the body as bytes")
    assert raised.value.message_type == message_type


@pytest.mark.parametrize("kind", [QuoteStruct, QuoteData, QuoteModel, dict, bytes, int])
def test_a_class_is_told_as_what_it_is(kind: Any) -> None:
    with pytest.raises(TypeError, match=f"the body is the class {kind.__name__}, and has to be an"):
        body_bytes(kind, "orders", "json")
    with pytest.raises(TypeError, match=f"body 1 of the list is the class {kind.__name__}, and"):
        bodies_bytes([b"{}", kind], "orders", "json")


def test_a_list_of_bodies_is_written_and_names_the_one_that_cannot_be() -> None:
    assert bodies_bytes(iter([b"1", "2", {"a": 3}]), "t", "json") == [b"1", b"2", b'{"a":3}']
    with pytest.raises(MessageTypeError, match="publish to t: body 2 of the list is of type dict"):
        bodies_bytes([b"1", "2", {"a": object()}], "t", "json")
    for one in (b"12", "12", bytearray(b"12"), {"a": 1}, 5, None, object()):
        with pytest.raises(TypeError, match=r"publish_many to t: .*publish takes one"):
            bodies_bytes(one, "t", "json")
