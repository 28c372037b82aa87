"""services/sow/keys.py: which record a message belongs to."""

from __future__ import annotations

import itertools
import struct
from typing import Any

import pytest

from raylay.services.errors import MessageTypeError, SowKeyError
from raylay.services.messages.types.registry import message_type
from raylay.services.sow.keys import SOW_KEY_BYTES_MAX, KeyRule, given_key, key_of

pytestmark = pytest.mark.covers("Message types", "SOW keys: simple")


@pytest.mark.covers("SOW", "the key: composite")
def test_golden_keys() -> None:
    # What is written to disks and told to peers: a key must never change.
    assert key_of({"id": 1}, ["/id"], "orders") == b"aa896a03dda76e6df7d2d739ea6318d1"
    assert (
        key_of({"o": {"@id": "7"}, "s": "x"}, ["/o/@id", "/s"], "all")
        == b"e1e70a2481f520d97c6be5be85bd850c"
    )


def test_nobody_finds_values_with_the_key_of_another_record() -> None:
    # With XXH3 both had one key: each is found from the other without a single try.
    low, high = struct.unpack("<QQ", bytes.fromhex("cb79e64eccc0e578825ad07dccff7221"))
    one = struct.pack("<QQ", low, 12_345)
    other = struct.pack("<QQ", (low + 12_345 - high) % (1 << 64), high)
    ones, others = ({"id": b"--" + each + b"-" * 32} for each in (one, other))
    assert key_of(ones, ["/id"], "orders") != key_of(others, ["/id"], "orders")


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ({"id": 1}, {"id": 1, "px": 2}),
        ({"id": 1}, {"id": 1.0}),
        ({"id": 1}, {"id": "1"}),
        ({"id": True}, {"id": 1}),
        ({"id": "a"}, {"id": b"a"}),
        ({"id": 1e300}, {"id": "1e+300"}),
        ({"id": 2**64 - 1}, {"id": "18446744073709551615"}),
    ],
)
def test_the_same_record(one: dict[str, Any], other: dict[str, Any]) -> None:
    assert key_of(one, ["/id"], "d") == key_of(other, ["/id"], "d")


def test_other_values_fields_orders_and_domains_are_other_records() -> None:
    keys = [
        key_of({"a": "1", "b": "2"}, ["/a", "/b"], "d"),
        key_of({"a": "2", "b": "1"}, ["/a", "/b"], "d"),
        key_of({"a": "12", "b": "\x00"}, ["/a", "/b"], "d"),
        key_of({"a": "1", "b": "2\x00"}, ["/a", "/b"], "d"),
        key_of({"a": "1", "b": "2"}, ["/a"], "d"),
        key_of({"a": "1", "b": "2"}, ["/a", "/b"], "e"),
        key_of({"a": 1.5, "b": "2"}, ["/a", "/b"], "d"),
        key_of({"a": float("inf"), "b": "2"}, ["/a", "/b"], "d"),
        key_of({"a": float("nan"), "b": "2"}, ["/a", "/b"], "d"),
    ]
    assert all(one != other for one, other in itertools.combinations(keys, 2))
    assert KeyRule("orders", ["/a"]).key_of({"a": 1}) == key_of({"a": 1}, ["/a"], "orders")
    one, other = KeyRule("orders", ["/a"], "all"), KeyRule("trades", ["/a"], "all")
    assert one.key_of({"a": 1}) == other.key_of({"a": 1})


@pytest.mark.parametrize(
    ("kind", "body", "identifier"),
    [
        ("json", b'{"o":{"id":7}}', "/o/id"),
        ("xml", b'<o id="7"/>', "/o/@id"),
        ("fix", b"55=7\x01", "/55"),
        ("nvfix", b"id=7\x01", "/id"),
        ("msgpack", b"\x81\xa2id\x07", "/id"),
    ],
)
def test_the_same_value_in_every_type(kind: str, body: bytes, identifier: str) -> None:
    tree = message_type(kind).parse(body)
    assert key_of(tree, [identifier], "d") == key_of({"id": 7}, ["/id"], "d")


@pytest.mark.parametrize(
    ("tree", "why"),
    [
        ({}, "/o/id of this one is missing or empty"),
        ({"o": None}, "missing or empty"),
        ({"o": {"id": None}}, "missing or empty"),
        ({"o": {"id": ""}}, "missing or empty"),
        ({"o": {"id": b""}}, "missing or empty"),
        ({"o": {"id": [1]}}, "is an array: a key needs one value"),
        ({"o": [{"id": 1}]}, "is an array"),
        ({"o": {"id": {"x": 1}}}, "is an object"),
    ],
)
def test_a_message_without_its_key_is_refused(tree: dict[str, Any], why: str) -> None:
    with pytest.raises(SowKeyError) as caught:
        KeyRule("orders", ["/o/id", "/s"]).key_of({**tree, "s": 1})
    assert str(caught.value).startswith("topic orders keeps its messages by /o/id, /s, and /o/id")
    assert why in str(caught.value)


def test_a_key_that_is_no_identifier_is_refused() -> None:
    with pytest.raises(MessageTypeError, match="'id' names no field"):
        KeyRule("orders", ["id"])


@pytest.mark.covers("SOW", "the key: composite")
def test_keys_of_publishers() -> None:
    assert given_key(b"aZ09+/-_==", "orders") == b"aZ09+/-_=="
    given_key(b"a" * SOW_KEY_BYTES_MAX, "orders")
    for key, why in (
        (b"", "topic orders has neither Key nor KeyGenerator"),
        (b"a b", "got b'a b'"),
        (b"a" * (SOW_KEY_BYTES_MAX + 1), "at most 255"),
    ):
        with pytest.raises(SowKeyError, match=why):
            given_key(key, "orders")


@pytest.mark.parametrize(
    "values",
    [
        [1, 2, -7, "a", "é"],
        ["a", "07", "b"],
        [1, 1.0, True],
        [1 << 63, 5],
        [(1 << 64) + 1],
        [3, None],
        [3, ""],
        [[1]],
        [],
    ],
)
@pytest.mark.parametrize("identifiers", [("/id",), ("/id", "/id"), ("/o/id",)])
def test_the_keys_of_many_are_the_keys_of_each(values: list[object], identifiers: Any) -> None:
    rule = KeyRule("orders", identifiers)
    trees: Any = [{"id": value, "o": {"id": value}} for value in values]
    try:
        wanted = [rule.key_of(tree) for tree in trees]
    except SowKeyError as error:
        with pytest.raises(SowKeyError) as found:
            rule.keys_of(trees)
        assert str(found.value) == str(error)
    else:
        assert rule.keys_of(trees) == wanted
