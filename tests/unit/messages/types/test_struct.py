"""services/messages/types/struct.py against hand-written bodies."""

from __future__ import annotations

from typing import Any

import pytest
from support.message_type_cases import check_whatever_comes, mutated

from raylay.services.errors import ConfigurationError, MessageTypeError
from raylay.services.messages.types.abilities import Ability
from raylay.services.messages.types.struct import StructType

pytestmark = pytest.mark.covers("Message types", "every type against hand-written bodies")


@pytest.mark.parametrize(
    ("fields", "body", "tree"),
    [
        (["/a = <i", "/b = >H"], b"\x01\0\0\0\0\x02", {"a": 1, "b": 2}),
        (["/a=b", "/b=<q"], b"\xff" + b"\x02" + bytes(7), {"a": -1, "b": 2}),
        (["/a = b", "/b = i"], b"\x01\0\0\0\x02\0\0\0", {"a": 1, "b": 2}),
        (["/a = =b", "/b = =i"], b"\x01\x02\0\0\0", {"a": 1, "b": 2}),
        (["/l = <l", "/n = <n"], b"\x01" + bytes(3) + b"\x02" + bytes(7), {"l": 1, "n": 2}),
        (["/a = <2h", "/t = 4s"], b"\x01\0\x02\0ab\0\0", {"a": [1, 2], "t": "ab\0\0"}),
        (["/t = 4S", "/p = 4p"], b"ab\0c\x02xyz", {"t": "ab", "p": "xy"}),
        (["/a = c", "/_ = 2x", "/b = ?"], b"Q\0\0\x01", {"a": "Q", "b": True}),
        (["/o/x = <d", "/o/y = <f"], bytes(6) + b"\xf8\x3f" + b"\0\0\xc0\x3f",
         {"o": {"x": 1.5, "y": 1.5}}),
        (["/t = 2s"], b"\xff\xfe", {"t": "\udcff\udcfe"}),
    ],
)  # fmt: skip
def test_parse_and_serialize(fields: list[str], body: bytes, tree: dict[str, Any]) -> None:
    kind = StructType("quote", fields)
    assert kind.parse(body) == tree and kind.parse(memoryview(body)) == tree
    assert kind.parse(kind.serialize(tree)) == tree
    assert kind.size_bytes == len(body)


@pytest.mark.parametrize(
    ("fields", "why"),
    [
        ([], "has no field"),
        (["/a"], "expected a field such as"),
        (["a = i"], "expected a field such as"),
        (["/a = w"], "expected a field such as"),
        (["/a = i", "/a = b"], "/a is there twice"),
        (["/a = i", "/a/b = b"], "/a/b is there twice, or within"),
        (["/a = 99999999s"], "too long together"),
    ],
)
def test_a_layout_that_cannot_be_is_refused(fields: list[str], why: str) -> None:
    with pytest.raises(ConfigurationError, match=f"message type quote.*{why}"):
        StructType("quote", fields)


@pytest.mark.parametrize(
    ("tree", "why"),
    [
        ({"a": 1}, "/t has no value"),
        ({"a": None, "t": "x"}, "/a has no value"),
        ({"a": 1 << 31, "t": "x"}, "/a cannot be 2147483648"),
        ({"a": "1", "t": "x"}, "/a cannot be '1'"),
        ({"a": 1, "t": "xyz"}, "/t cannot be 'xyz'"),
        ({"a": 1, "t": 5}, "/t cannot be 5"),
    ],
)
def test_what_a_layout_cannot_hold_is_refused(tree: dict[str, Any], why: str) -> None:
    with pytest.raises(MessageTypeError, match=why):
        StructType("quote", ["/a = <i", "/t = 2s"]).serialize(tree)


def test_a_body_of_another_length_is_refused() -> None:
    kind = StructType("quote", ["/a = <i"])
    for body, offset in ((b"", 0), (b"123", 3), (b"12345", 4)):
        with pytest.raises(MessageTypeError, match="expected 4 bytes") as caught:
            kind.parse(body)
        assert caught.value.offset == offset


@pytest.mark.covers("Message types", "which types know no deltas")
def test_there_are_no_deltas() -> None:
    kind = StructType("quote", ["/a = <i"])
    with pytest.raises(MessageTypeError, match="type quote cannot be published or sent as deltas"):
        kind.merge(bytes(4), bytes(4))
    assert set(kind.lacks) == {Ability.DELTA, Ability.VIEW, Ability.EVENTS}


@pytest.mark.covers("Message types", "no body harms a parser")
def test_no_body_harms_it() -> None:
    kind = StructType("quote", ["/a = i", "/d = d", "/t = 8S", "/p = 4p", "/l = 3H", "/c = 2c"])
    for body in mutated([bytes(range(kind.size_bytes))], 1):
        padded = (body + bytes(kind.size_bytes))[: kind.size_bytes]
        kind.serialize(kind.parse(padded))
        if len(body) != kind.size_bytes:
            with pytest.raises(MessageTypeError):
                kind.parse(body)


def test_whatever_comes_is_read_or_refused() -> None:
    kind = StructType("quote", ["/px = <d", "/n = <q", "/flags = 3?", "/sym = 4S", "/raw = 3s"])
    bodies = [kind.serialize({"px": 1.5, "n": 7, "flags": [True] * 3, "sym": "IBM", "raw": "abc"})]
    bodies += [b"\xff" * kind.size_bytes, bytes(kind.size_bytes)]
    assert check_whatever_comes(kind, bodies) > 100
