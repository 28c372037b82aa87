"""services/messages/types/msgpack.py against hand-written bodies."""

from __future__ import annotations

import struct
import time
from typing import Any

import pytest
from support.message_type_cases import check_deltas, check_fuzz, check_whatever_comes

from raylay.services.errors import MessageTypeError
from raylay.services.messages.types.msgpack import Msgpack
from raylay.services.sow.keys import key_of

pytestmark = pytest.mark.covers("Message types", "every type against hand-written bodies")

MSGPACK = Msgpack()
TIMESTAMP = b"\xd6\xff\x00\x00\x00\x01"
BODIES = [
    b"\x80",
    b"\x83\xa2id\x01\xa2px\xcb\x3f\xf8\x00\x00\x00\x00\x00\x00\xa3sym\xa3IBM",
    b"\x84\xa2id\x02\xa4legs\x92\x01\x02\xa4desk\x82\xa4name\xa2fx\xa5floor\x03\xa1n\xc0",
    b"\x83\xa2id\x02\xa4desk\x81\xa4name\xa3a\xc3\xa4\xa4blob\xc4\x02\xff\x00",
]
S_MAX = 5.0


@pytest.mark.parametrize(
    ("body", "tree"),
    [
        (b"\x80", {}),
        (b"\x82\xa1a\x01\xa1b\xff", {"a": 1, "b": -1}),
        (b"\x81\xa1a\xcf" + b"\xff" * 8, {"a": 2**64 - 1}),
        (b"\x81\xa1a\xca\x3f\xc0\x00\x00", {"a": 1.5}),
        (b"\x83\xa1a\xc0\xa1b\xc2\xa1c\xc3", {"a": None, "b": False, "c": True}),
        (b"\x81\xa1a\x92\x81\xa1b\x01\x90", {"a": [{"b": 1}, []]}),
        (b"\x81\xa1a\xc4\x02\xff\x00", {"a": b"\xff\0"}),
        (b"\x81\xa1a\xd4\x05x", {"a": b"x"}),
        (b"\x82\xa1a" + TIMESTAMP + b"\xa1b\x91" + TIMESTAMP,
         {"a": b"\0\0\0\x01", "b": [b"\0\0\0\x01"]}),
        (b"\xde\x00\x01\xd9\x01a\xd9\x01x", {"a": "x"}),
    ],
)  # fmt: skip
def test_parse(body: bytes, tree: dict[str, Any]) -> None:
    assert MSGPACK.parse(body) == tree
    assert MSGPACK.parse(memoryview(b"xx" + body)[2:]) == tree


@pytest.mark.parametrize(
    "head",
    [b"\xd6\xff", b"\xd7\xff", b"\xc7\x08\xff", b"\xc7\x0c\xff", b"\xc8\x00\x04\xff"],
    ids=repr,
)
def test_a_timestamp_is_its_bytes_to_the_nanosecond(head: bytes) -> None:
    """Between other values that have the same bytes."""
    size = {0xD6: 4, 0xD7: 8, 0xC7: head[1], 0xC8: 4}[head[0]]
    found = []
    for nanoseconds in range(3):
        data = bytes((0, 0, 0, nanoseconds)).ljust(size, b"\0")
        if size == 8:
            data = struct.pack(">Q", nanoseconds << 34 | 5)
        body = b"\x84\xa2ab\xc4\x02\xd6\xff\xa1i" + head + data
        body += b"\xa1j\x92\xd4\x05\x00\x81\xa1k" + head + data + b"\xa1l\xcc\xff"
        tree = MSGPACK.parse(body)
        assert tree == {"ab": b"\xd6\xff", "i": data, "j": [b"\0", {"k": data}], "l": 255}
        found.append(key_of(tree, ("/i",), "t"))
    assert len(set(found)) == 3, "three keys"


@pytest.mark.parametrize(
    ("body", "offset", "why"),
    [
        (b"", None, "truncated"),
        (b"\x01", None, "Expected `object`, got `int`"),
        (b"\x81\xa1a", None, "truncated"),
        (b"\x81\xa1a\x01\x01", 4, "trailing characters"),
        (b"\x81\xa1a\xc1", 3, "invalid opcode"),
        (b"\x81\xa1a\xa1\xff", None, "not UTF-8"),
        (b"\x81\x01\x02", None, "Expected `str`, got `int`"),
        (b"\x81\xa1a\x81\x01\x02", None, "expected texts as names of fields"),
        (b"\x81\xa1a\xdb\xff\xff\xff\xff", None, "truncated"),
        (b"\x81\xa1a\xd7\xff" + b"\xff" * 8, None, "timestamp"),
        (b"\x81\xa1a" + b"\x91" * 100 + b"\xc0", None, "nested more than 100 deep"),
        (b"\x81\xa1a" + b"\x91" * 60_000, None, "nested too deep"),
    ],
)
def test_what_is_no_map_is_refused(body: bytes, offset: int | None, why: str) -> None:
    with pytest.raises(MessageTypeError) as caught:
        MSGPACK.parse(body)
    assert why in str(caught.value) and caught.value.offset == offset


@pytest.mark.covers("Message types", "depth, claimed lengths")
@pytest.mark.parametrize("depth", [1, 900])
def test_a_length_that_is_not_there_costs_nothing(depth: int) -> None:
    size = 1_000_000
    body = b"\x81\xa1a" + (b"\xdd" + struct.pack(">I", size // 2)) * depth + b"\xc0" * (size // 4)
    began = time.thread_time()
    with pytest.raises(MessageTypeError):
        MSGPACK.parse(body)
    assert time.thread_time() - began < S_MAX


@pytest.mark.parametrize("value", [2**64, "\udcff", object()])
def test_what_msgpack_cannot_say_is_refused(value: object) -> None:
    with pytest.raises(MessageTypeError, match="MessagePack cannot say this"):
        MSGPACK.serialize({"a": value})


def test_a_delta_leaves_the_rest_byte_for_byte() -> None:
    # A float of 32 bits, a whole number in more bytes than it needs, an ext, names of numbers.
    kept = b"\xa1f\xca\x3f\xc0\x00\x00\xa1i\xce\x00\x00\x00\x01\xa1e\xd4\x05x\xa1m\x81\x01\x02"
    stored = b"\x85" + kept + b"\xa1q\x01"
    plain = b"\x84" + kept.replace(b"\xa1m\x81\x01\x02", b"") + b"\xa1q\x01"
    delta = b"\x81\xa1q\x02"
    assert MSGPACK.merge(plain, delta) == plain[:-1] + b"\x02"
    assert MSGPACK.difference(plain, plain[:-1] + b"\x02", [("i",)]) == (
        b"\x82\xa1i\xce\x00\x00\x00\x01\xa1q\x02"
    )
    with pytest.raises(MessageTypeError, match="expected texts"):
        MSGPACK.merge(stored, delta)


def test_what_is_gone_is_nil_in_a_delta() -> None:
    assert MSGPACK.difference(b"\x82\xa1a\x01\xa1b\x02", b"\x81\xa1a\x01") == b"\x81\xa1b\xc0"


@pytest.mark.covers("Message types", "deltas: what is lacking stays")
def test_deltas_lead_where_they_should() -> None:
    check_deltas(MSGPACK, BODIES, None)


@pytest.mark.covers("Message types", "no body harms a parser")
def test_no_body_harms_it() -> None:
    read, refused = check_fuzz(MSGPACK, BODIES)
    assert read > 50 and refused > 500


def test_no_bytes_are_answered_with_another_error() -> None:
    assert check_whatever_comes(MSGPACK, BODIES) > 100
