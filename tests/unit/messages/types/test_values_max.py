"""How many values a body may have: counted before any is made, in each type."""

from __future__ import annotations

import random
import struct
from typing import Any

import msgspec
import orjson
import pytest
from support.protobuf_cases import descriptors

from raylay.services.errors import MessageTooLarge
from raylay.services.messages.types import bson as bson_type
from raylay.services.messages.types import json as json_type
from raylay.services.messages.types import msgpack as msgpack_type
from raylay.services.messages.types.base import VALUES_MAX, MessageType
from raylay.services.messages.types.composite import CompositeLocal, join
from raylay.services.messages.types.protobuf import protobuf_type
from raylay.services.messages.types.registry import message_type

pytestmark = pytest.mark.covers(
    "Filters by content", "a body has 65,536 values at most where it is read"
)

bson = pytest.importorskip("bson")
JSON, MSGPACK, BSON, XML = map(message_type, ("json", "msgpack", "bson", "xml"))
FIX, NVFIX = message_type("fix"), message_type("nvfix")
QUOTE = protobuf_type("quote", descriptors("proto2"), "market.Quote")
TWO = CompositeLocal("two", [JSON, MSGPACK])
HALF = VALUES_MAX // 2


def json_of(count: int, each: bytes = b"1") -> bytes:
    return b'{"a":[' + b",".join([each] * count) + b"]}"


def msgpack_of(count: int, each: Any = 1) -> bytes:
    return msgspec.msgpack.encode({"a": [each] * count})


def quote_of(legs: int, **more: Any) -> bytes:
    return b"\x2a\x02\x08\x01" * legs


FEW: list[tuple[MessageType, bytes]] = [
    (JSON, json_of(VALUES_MAX - 9)),
    (JSON, json_of(HALF - 9, b'{"x":1}')),
    (JSON, b'{"a":"' + b"well, [so] {it} is, " * 100_000 + b'"}'),
    (JSON, orjson.dumps({"a": orjson.dumps([{"x": "y\\"}] * 40_000).decode()})),
    (JSON, orjson.dumps({f"a{n}": "b, c" for n in range(HALF)})),
    (MSGPACK, msgpack_of(VALUES_MAX - 9)),
    (MSGPACK, msgspec.msgpack.encode({str(n): n for n in range(VALUES_MAX - 9)})),
    (MSGPACK, msgspec.msgpack.encode({"a": b"\x90" * 1_000_000, "b": "x" * 1_000_000})),
    (MSGPACK, msgpack_of(1_000, {"x": "y" * 300})),
    (BSON, bson.encode({"a": [1] * (VALUES_MAX - 9)})),
    (BSON, bson.encode({"a": bytes(1_000_000), "b": [0.0] * 30_000})),
    (XML, b"<a>" + b"<b/>" * (VALUES_MAX - 9) + b"</a>"),
    (FIX, b"1=\x01" * VALUES_MAX),
    (QUOTE, quote_of(VALUES_MAX // 5 - 9)),
    (QUOTE, b"\x42" + b"\x80\x80\x40" + bytes(1 << 20)),
    (TWO, join([json_of(HALF - 9), msgpack_of(HALF - 9)])),
]
MANY: list[tuple[MessageType, bytes]] = [
    (JSON, json_of(VALUES_MAX + 9)),
    (JSON, json_of(VALUES_MAX + 9, b"[]")),
    (JSON, json_of(HALF + 9, b'{"x":1}')),
    (JSON, json_of(VALUES_MAX + 9, b'"\\""')),
    (JSON, json_of(5 * VALUES_MAX, b'""')),
    (JSON, b"{" + b",".join(b'"%d":1' % n for n in range(VALUES_MAX + 9)) + b"}"),
    (MSGPACK, msgpack_of(VALUES_MAX + 9)),
    (MSGPACK, msgpack_of(VALUES_MAX + 9, [])),
    (MSGPACK, msgpack_of(HALF + 9, {"x": 1})),
    (MSGPACK, msgspec.msgpack.encode({str(n): n for n in range(VALUES_MAX + 9)})),
    # It says that it has more names than there are bytes.
    (MSGPACK, b"\x82\xa1a\xdf\xff\xff\xff\xff" + b"\x90" * 1_000_000),
    (BSON, bson.encode({"a": [1] * (VALUES_MAX + 9)})),
    (BSON, bson.encode({"a": [[]] * (VALUES_MAX + 9)})),
    (BSON, bson.encode({"a": [bson.DBRef("a", 1)] * HALF})),
    (XML, b"<a>" + b"<b/>" * (VALUES_MAX + 9) + b"</a>"),
    (XML, b"<a>" + b"<b c='1'/>" * (HALF + 9) + b"</a>"),
    (FIX, b"1=\x01" * (VALUES_MAX + 9)),
    (NVFIX, b"a=\x01" * (VALUES_MAX + 9)),
    (QUOTE, quote_of(VALUES_MAX // 3)),
    (TWO, join([json_of(HALF + 99), msgpack_of(HALF + 99)])),
]


def named(value: object) -> str:
    if isinstance(value, MessageType):
        return value.name
    return f"{len(value):,}" if isinstance(value, bytes) else ""


@pytest.mark.parametrize(("kind", "body"), FEW, ids=named)
def test_what_has_as_many_values_as_it_may_is_read(kind: MessageType, body: bytes) -> None:
    assert kind.parse(body)


@pytest.mark.parametrize(("kind", "body"), MANY, ids=named)
def test_what_has_more_is_refused_with_what_to_do(
    kind: MessageType, body: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    def made(*_: object) -> None:
        raise AssertionError("its values were made")

    for module, name in (
        (json_type.orjson, "loads"),
        (msgpack_type, "_decode"),
        (bson, "decode"),
    ):
        monkeypatch.setattr(module, name, made)
    with pytest.raises(MessageTooLarge, match=r"more than 65,536 values .* as several messages"):
        kind.parse(body)


@pytest.mark.parametrize("kind", [JSON, MSGPACK, BSON], ids=named)
def test_a_few_fields_are_not_read_of_it_either(kind: MessageType) -> None:
    many = {
        JSON: json_of(VALUES_MAX + 9, b"[]"),
        MSGPACK: msgpack_of(VALUES_MAX + 9),
        BSON: bson.encode({"a": [1] * (VALUES_MAX + 9)}),
    }[kind]
    with pytest.raises(MessageTooLarge):
        kind.parser_of(frozenset(("b",)))(many)
    assert kind.reader_of(frozenset(("b",)))([many, many]) == [None, None]


def values_of(tree: Any) -> int:
    """How many values there are, by the definition."""
    if isinstance(tree, dict):
        return sum(1 + values_of(each) for each in tree.values())
    return sum(1 + values_of(each) for each in tree) if isinstance(tree, list) else 0


def drawn(rng: random.Random, depth: int = 0) -> Any:
    kind = rng.randrange(10 if depth < 4 else 7)
    if kind > 6:
        count = rng.choice((0, 1, 3, 20))
        if kind == 7:
            return [drawn(rng, depth + 1) for _ in range(count)]
        return {f'k"{n},[': drawn(rng, depth + 1) for n in range(count)}
    return [
        None, True, rng.randrange(-(1 << 40), 1 << 40), 1.5,
        'a,"[\\{' * rng.choice((0, 1, 9, 90, 9_000)), rng.randrange(128), "",
    ][kind]  # fmt: skip


@pytest.mark.parametrize("seed", range(20))
def test_counting_comes_near_to_what_there_is(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    rng = random.Random(seed)
    tree = {"a": drawn(rng), "b": [drawn(rng) for _ in range(30)]}
    there = values_of(tree)
    assert there < MSGPACK.count_values(msgspec.msgpack.encode(tree)) <= there + 1
    assert bson_type._count(bson.encode(tree)) == there
    # Outside of strings, though there are few: an empty array or object counts twice.
    monkeypatch.setattr(json_type, "VALUES_MAX", 10)
    found = JSON.count_values(orjson.dumps(tree))
    assert found > 10 if there > 20 else found <= 2 * there + 1


@pytest.mark.parametrize("seed", range(300))
def test_any_bytes_are_counted(seed: int) -> None:
    rng = random.Random(seed)
    body = rng.randbytes(rng.randrange(200)) if seed % 3 else struct.pack("<i", 99) * 9
    for kind in (JSON, MSGPACK, XML, FIX):
        assert kind.count_values(body) >= 0
    assert bson_type._count(body) >= 0
    assert QUOTE.count_values(body) >= 0
