"""services/messages/types/protobuf.py against hand-written bodies."""

from __future__ import annotations

import sys
from typing import Any

import pytest
from support.message_type_cases import check_fuzz, check_whatever_comes
from support.protobuf_cases import BODY, descriptors

from raylay.services.errors import ConfigurationError, MessageTooLarge, MessageTypeError
from raylay.services.messages.types.abilities import Ability
from raylay.services.messages.types.base import VALUES_MAX
from raylay.services.messages.types.protobuf import Protobuf, protobuf_type

pytestmark = pytest.mark.covers("Message types", "every type against hand-written bodies")

TWO = protobuf_type("quote", descriptors("proto2"), "market.Quote")
THREE = protobuf_type("quote", descriptors("proto3"), "market.Quote")
TREE: dict[str, Any] = {
    "id": 7, "sym": "IBM", "px": 1.5, "side": "SELL", "legs": [{"id": 1}, {"id": 2}],
    "desk": {"sym": "fx"}, "sizes": {"a": 5}, "blob": b"\xff", "open": True,
}  # fmt: skip
EMPTY = {"id": 0, "sym": "", "px": 0.0, "side": "BUY", "blob": b"", "open": False}
UNKNOWN = b"\xa0\x06\x05"
"""Field 100, of which the file says nothing."""


def test_parse_and_serialize() -> None:
    assert TWO.parse(BODY) == TREE and TWO.parse(memoryview(b"x" + BODY)[1:]) == TREE
    assert TWO.serialize(TREE) == BODY
    assert TWO.parse(b"") == {}
    assert TWO.serialize({"sym": None, "id": 7}) == b"\x08\x07"
    assert TWO.parse(b"\x20\x09") == {}  # version 2 takes no number that the file lacks


def test_version_3_has_the_value_of_what_cannot_be_unset() -> None:
    assert THREE.parse(b"") == EMPTY
    assert THREE.parse(b"\x20\x09") == {**EMPTY, "side": 9}
    assert THREE.parse(BODY)["legs"] == [{**EMPTY, "id": 1}, {**EMPTY, "id": 2}]
    assert THREE.parse(THREE.serialize(THREE.parse(BODY))) == THREE.parse(BODY)


@pytest.mark.parametrize(
    "body",
    [b"\x08", b"\xff" * 20, b"\x12\x7fx", b"\x0f", b"2\x03" * 300],
)
def test_what_is_no_protobuf_is_refused(body: bytes) -> None:
    with pytest.raises(MessageTypeError, match=r"no message of type quote: ."):
        TWO.parse(body)


def test_messages_in_messages_are_no_deeper_than_others() -> None:
    body = b""
    for _ in range(90):
        body = TWO.serialize({}) + b"\x32" + _length(body) + body
    TWO.parse(body)
    for _ in range(3000):
        body = b"\x32" + _length(body) + body
    with pytest.raises(MessageTypeError):
        TWO.parse(body)


def _length(body: bytes) -> bytes:
    number, found = len(body), b""
    while number > 127:
        found += bytes([number & 127 | 128])
        number >>= 7
    return found + bytes([number])


@pytest.mark.parametrize(
    ("tree", "why"),
    [
        ({"nothing": 1}, "market.Quote has no field 'nothing'"),
        ({"id": "x"}, "market.Quote.id cannot be 'x'"),
        ({"id": 1 << 63}, "market.Quote.id cannot be"),
        ({"side": "HOLD"}, "market.Quote.side cannot be 'HOLD'"),
        ({"legs": [1]}, "market.Quote.legs cannot be an array"),
        ({"sizes": {"a": "x"}}, "market.Quote.sizes cannot be an object"),
        ({"desk": 5}, "market.Quote.desk cannot be 5"),
        ({"sym": "\udcff"}, "market.Quote.sym cannot be"),
    ],
)
def test_what_a_message_cannot_hold_is_refused(tree: dict[str, Any], why: str) -> None:
    with pytest.raises(MessageTypeError, match=why):
        TWO.serialize(tree)


def test_a_delta_of_version_2() -> None:
    delta = TWO.serialize({"px": 2.5, "desk": {"id": 3}, "legs": [{"id": 9}], "sizes": {"b": 6}})
    merged = TWO.merge(BODY + UNKNOWN, delta)
    assert TWO.parse(merged) == {
        **TREE, "px": 2.5, "desk": {"sym": "fx", "id": 3}, "legs": [{"id": 9}],
        "sizes": {**TREE["sizes"], "b": 6},
    }  # fmt: skip
    assert merged.endswith(UNKNOWN)
    assert TWO.difference(BODY, TWO.merge(BODY, delta)) == delta
    keyed = TWO.parse(TWO.difference(BODY, TWO.merge(BODY, delta), [("id",), ("desk", "sym")]))
    assert keyed["id"] == 7 and keyed["desk"] == {"sym": "fx", "id": 3}
    assert TWO.merge(BODY, TWO.difference(BODY, BODY)) == BODY


def test_a_map_is_merged_entry_by_entry() -> None:
    """With numbers as values, and with messages, which are merged themselves."""
    stored = TWO.serialize(
        {"sizes": {"a": 1, "b": 2}, "by_day": {"3": {"sym": "x", "id": 1}, "5": {"sym": "z"}}}
    )
    delta = TWO.serialize({"sizes": {"b": 3, "c": 4}, "by_day": {"3": {"id": 2}, "4": {"id": 9}}})
    merged = TWO.merge(stored, delta)
    assert TWO.parse(merged) == {
        "sizes": {"a": 1, "b": 3, "c": 4},
        "by_day": {"3": {"sym": "x", "id": 2}, "4": {"id": 9}, "5": {"sym": "z"}},
    }
    assert TWO.parse(TWO.difference(stored, merged)) == TWO.parse(delta)
    assert TWO.merge(stored, TWO.difference(stored, merged)) == merged
    assert TWO.parse(TWO.difference(stored, merged, [("sizes",)]))["sizes"] == {
        "a": 1, "b": 3, "c": 4,
    }  # fmt: skip
    assert TWO.parse(TWO.difference(merged, stored)) == {
        "sizes": {"b": 2}, "by_day": {"3": {"id": 1}},
    }, "that an entry is gone it cannot say"  # fmt: skip


@pytest.mark.covers("Message types", "which types know no deltas")
def test_what_the_versions_lack() -> None:
    with pytest.raises(MessageTypeError, match="version 3 does not say which fields are set"):
        THREE.merge(BODY, BODY)
    with pytest.raises(MessageTypeError, match="version 3 does not say"):
        THREE.difference(BODY, BODY)
    assert Ability.SELECT in TWO.lacks and Ability.DELTA not in TWO.lacks
    assert {Ability.VIEW, Ability.ENRICHMENT, Ability.AGGREGATION} < set(TWO.lacks)


def test_a_definition_that_cannot_be_used() -> None:
    with pytest.raises(ConfigurationError, match="have no message 'Quote': give its full name"):
        protobuf_type("quote", descriptors("proto2"), "Quote")
    with pytest.raises(ConfigurationError, match=r"message type quote: these are no descriptors"):
        protobuf_type("quote", b"\xff\xff", "market.Quote")


def test_without_the_library_one_line_says_how_to_install_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(sys.modules, "google.protobuf", None)
    with pytest.raises(MessageTypeError, match=r"pip install 'raylay\[protobuf\]'"):
        protobuf_type("quote", b"", "market.Quote")


@pytest.mark.covers("Message types", "no body harms a parser")
def test_no_body_harms_it() -> None:
    read, refused = check_fuzz(TWO, [BODY, BODY[:20]])
    assert read > 50 and refused > 500
    assert check_fuzz(THREE, [BODY])[0] > 50


def test_no_bytes_are_answered_with_another_error() -> None:
    assert check_whatever_comes(TWO, [BODY, BODY[:20]]) > 100
    assert check_whatever_comes(THREE, [BODY]) > 100


def _with_extensions() -> Protobuf:
    """A type whose messages have a group and extensions of numbers."""
    from google.protobuf import descriptor_pb2

    repeated, number = descriptor_pb2.FieldDescriptorProto.LABEL_REPEATED, 5
    file = descriptor_pb2.FileDescriptorProto(name="x.proto", package="m", syntax="proto2")
    whole = file.message_type.add(name="Whole")
    whole.extension_range.add(start=100, end=200)
    group = whole.nested_type.add(name="Legs")
    group.field.add(name="ids", number=7, type=number, label=repeated).options.packed = True
    whole.field.add(name="legs", number=1, type=10, label=repeated, type_name=".m.Whole.Legs")
    part = file.message_type.add(name="Part")
    part.field.add(name="ids", number=1, type=number, label=repeated)
    file.extension.add(
        name="part", number=100, type=11, label=repeated, type_name=".m.Part", extendee=".m.Whole"
    )
    file.extension.add(
        name="ids", number=101, type=number, label=repeated, extendee=".m.Whole"
    ).options.packed = True
    files = descriptor_pb2.FileDescriptorSet()
    files.file.append(file)
    return protobuf_type("whole", files.SerializeToString(), "m.Whole")


def _field(number: int, body: bytes) -> bytes:
    tag = number << 3 | 2
    return bytes([tag & 127 | 128, tag >> 7] if tag > 127 else [tag]) + _length(body) + body


def test_numbers_of_extensions_and_groups_are_counted_before_they_are_made() -> None:
    """Three million of them counted as one value, and held the loop for 0.6 s."""
    kind = _with_extensions()
    few, many = b"\1" * 100, b"\1" * (VALUES_MAX + 1)
    bodies = {
        "[m.ids]": lambda numbers: _field(101, numbers),
        "[m.part]": lambda numbers: _field(100, _field(1, numbers)),
        "legs": lambda numbers: b"\x0b" + _field(7, numbers) + b"\x0c",
    }
    for name, made in bodies.items():
        assert list(kind.parse(made(few))) == [name]
        assert kind.count_values(made(few)) >= 100
        with pytest.raises(MessageTooLarge):
            kind.parse(made(many))
    nested = b"\x0b" * 50 + b"\x0c" * 50 + _field(101, many)
    assert kind.count_values(nested) > VALUES_MAX, "what follows a group is counted as its own"
