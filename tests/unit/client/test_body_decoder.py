"""Bodies as values of a type: what fits, and what the errors say of the rest."""

from __future__ import annotations

import struct
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypedDict

import msgspec
import pydantic
import pytest

from raylay.services.client.body_decoder import BodyDecoder, any_json, body_decoder, body_problem
from raylay.services.client.messages import Message, MessageBatch
from raylay.services.errors import BodyTypeError, LocalProtocolError, RemoteProtocolError
from raylay.services.messages.records import RecordBuilder


class Line(msgspec.Struct):
    sku: str
    price: float


class Order(msgspec.Struct):
    id: int
    lines: list[Line] = []


@dataclass
class OrderData:
    id: int


class OrderDict(TypedDict):
    id: int


class OrderModel(pydantic.BaseModel):
    id: int
    tags: list[int] = []


class Checked(msgspec.Struct):
    id: int

    def __post_init__(self) -> None:
        if self.id < 0:
            raise KeyError("no such order")


class Opaque:
    pass


def batch_of(
    decoder: BodyDecoder | None, *bodies: bytes, message_type: str = "json"
) -> MessageBatch[Any]:
    builder = RecordBuilder(7, "orders", message_type)
    payload = b"".join(builder.build(number, body, 5) for number, body in enumerate(bodies, 1))
    batch: MessageBatch[Any] = MessageBatch("sub-1", len(bodies), payload)
    batch.decoder = decoder
    return batch


def first(decoder: BodyDecoder | None, body: bytes, message_type: str = "json") -> Message[Any]:
    return next(batch_of(decoder, body, message_type=message_type).messages())


WRITTEN = {
    "json": b'{"id": 3}',
    "msgpack": b"\x81\xa2id\x03",
    "bson": b"\x0d\0\0\0\x10id\0\x03\0\0\0\0",
    "nvfix": b"id=3\x01",
}
"""The body of an order in several message types."""


@pytest.mark.parametrize("message_type", WRITTEN)
@pytest.mark.parametrize(
    ("of", "value"), [(Order, Order(3)), (OrderData, OrderData(3)), (OrderModel, OrderModel(id=3))]
)
def test_a_value_is_read_by_the_message_type(message_type: str, of: Any, value: object) -> None:
    body = WRITTEN[message_type]
    assert first(body_decoder(of, "queue 'work'"), body, message_type).value == value
    plain = {"id": "3"} if message_type == "nvfix" else {"id": 3}
    assert first(None, body, message_type).value == plain


def test_a_value_of_binary_is_its_bytes_and_of_xml_its_elements() -> None:
    assert first(None, b"\0\1", "binary").value == b"\0\1"
    assert first(None, b"<order><id>3</id></order>", "xml").value == {"order": {"id": "3"}}


@pytest.mark.parametrize(
    ("of", "body", "message_type", "path", "problem"),
    [
        (None, b"{", "json", "$", "Input data was truncated"),
        (None, b"\xc1", "msgpack", "$", "this is no message of type msgpack"),
        (None, b"", "msgpack", "$", "the body is empty"),
        (None, b"x", "quotes", "$", "defines no type quotes, and there are .*take `body`"),
        (Order, b"\x81\xa2id\xa13", "msgpack", "$.id", "Expected `int`, got `str`"),
        (Order, b"id=x\x01", "nvfix", "$.id", "Expected `int`, got `str`"),
        (OrderModel, b"id=x\x01", "nvfix", "$.id", "Input should be a valid integer"),
        (Order, b"\0", "binary", "$", "Expected `object`, got `bytes`"),
    ],
)
def test_a_value_that_does_not_fit_names_its_message(
    of: Any, body: bytes, message_type: str, path: str, problem: str
) -> None:
    message = first(body_decoder(of, "queue 'work'"), body, message_type)
    with pytest.raises(BodyTypeError, match=problem) as raised:
        _ = message.value
    assert (raised.value.bookmark, raised.value.path) == ("7|1|", path)
    assert raised.value.message_type == message_type


@pytest.mark.parametrize(
    ("of", "value"),
    [
        (Order, Order(3)),
        (OrderData, OrderData(3)),
        (OrderDict, {"id": 3}),
        (OrderModel, OrderModel(id=3)),
        (dict, {"id": 3}),
        (dict[str, int], {"id": 3}),
    ],
)
def test_a_body_is_parsed_into_each_kind_of_type(of: Any, value: object) -> None:
    assert first(body_decoder(of, "queue 'work'"), b'{"id": 3}').json() == value


def test_containers_of_models_are_parsed_by_pydantic() -> None:
    decoder = body_decoder(list[OrderModel], "queue 'work'")
    assert first(decoder, b'[{"id": 3}]').json() == [OrderModel(id=3)]


def test_without_a_type_values_are_plain() -> None:
    assert body_decoder(None, "queue 'work'") is None
    assert first(None, b'{"id": [3, null, "a"]}').json() == {"id": [3, None, "a"]}
    assert any_json() is any_json()


@pytest.mark.parametrize(
    ("of", "body", "path", "problem"),
    [
        (
            Order,
            b'{"id": 3, "lines": [{"sku": "a", "price": "dear"}]}',
            "$.lines[0].price",
            "Expected `float`, got `str`",
        ),
        (Order, b"{}", "$", "Object missing required field `id`"),
        (Order, b"", "$", "the body is empty"),
        (Order, b"{", "$", "Input data was truncated"),
        (OrderData, b'{"id": null}', "$.id", "Expected `int`, got `null`"),
        (
            OrderModel,
            b'{"id": 1, "tags": [1, "x"]}',
            "$.tags[1]",
            "Input should be a valid integer, unable to parse string as an integer",
        ),
        (Checked, b'{"id": -1}', "$", "'no such order'"),
    ],
)
def test_an_error_names_the_message_and_the_field(
    of: Any, body: bytes, path: str, problem: str
) -> None:
    message = first(body_decoder(of, "queue 'work'"), body)
    with pytest.raises(BodyTypeError) as raised:
        message.json()
    error = raised.value
    assert (error.bookmark, error.topic, error.message_type) == ("7|1|", "orders", "json")
    assert (error.path, error.problem, error.expected) == (path, problem, of.__name__)
    assert str(error) == (
        f"message 7|1| of topic orders (json) is no {of.__name__}: at {path}: {problem}"
    )


def test_json_that_is_nested_without_end_is_an_error_of_its_message() -> None:
    with pytest.raises(BodyTypeError, match="is no JSON"):
        first(None, b"[" * 100_000).json()


def test_an_error_without_a_text_is_named_by_its_class() -> None:
    assert body_problem(KeyError(), b"{}") == ("$", "KeyError")


def test_a_batch_is_read_at_once_and_names_the_message_that_does_not_fit() -> None:
    decoder = body_decoder(Order, "queue 'work'")
    assert batch_of(decoder, b'{"id":1}', b'{"id":2}').json() == [Order(1), Order(2)]
    with pytest.raises(BodyTypeError, match=r"message 7\|2\| of topic orders .json. is no Order"):
        batch_of(decoder, b'{"id":1}', b'{"id":""}').json()


def test_a_damaged_delivery_is_no_fault_of_a_body() -> None:
    batch = batch_of(None, b"1")
    batch.payload = struct.pack("<I", 0) + batch.payload[4:]
    with pytest.raises(RemoteProtocolError, match="a record of 0 bytes"):
        batch.json()


@pytest.mark.parametrize("of", [Opaque, Line | Order, Callable[[], int]])
def test_a_type_without_fields_is_refused_before_anything_is_subscribed(of: Any) -> None:
    with pytest.raises(LocalProtocolError, match="queue 'work': JSON cannot be parsed into"):
        body_decoder(of, "queue 'work'")
