"""services/messages/types/registry.py: types by name, and those of a configuration."""

from __future__ import annotations

import base64
import pickle
from collections.abc import Mapping
from typing import Any

import pytest
from support.protobuf_cases import BODY, descriptors

from raylay.services.errors import ConfigurationError, MessageTypeError
from raylay.services.messages.types.definitions import KIND_NAMES, TypeDefinition
from raylay.services.messages.types.json import Json
from raylay.services.messages.types.registry import (
    BUILT_IN,
    KINDS,
    MessageTypes,
    message_type,
)

pytestmark = pytest.mark.covers("Message types", "types by name, of a configuration")


@pytest.mark.parametrize("name", sorted(BUILT_IN))
def test_the_built_in_types_by_name(name: str) -> None:
    found = message_type(name)
    assert found.name == found.kind == name
    assert message_type(name) is found
    assert MessageTypes()[name] is found


@pytest.mark.parametrize(
    ("name", "why"),
    [
        ("jsn", r"'jsn', so nothing can be read .* expected one of .*json"),
        ("bflat", "there is no message type bflat: .*use msgpack or bson"),
        ("x" * 300, "xxx"),
    ],
)
def test_a_type_that_nobody_knows(name: str, why: str) -> None:
    for look_up in (message_type, MessageTypes().__getitem__):
        with pytest.raises(MessageTypeError, match=why) as caught:
            look_up(name)
        assert caught.value.message_type == name


def test_types_that_are_sent_to_another_process() -> None:
    """The class of a protobuf message is made at run time: no other process could find it."""
    options = {
        "descriptors": base64.b64encode(descriptors("proto2")).decode(),
        "message": "market.Quote",
    }
    types = MessageTypes(
        [
            TypeDefinition("quote", "protobuf", options),
            TypeDefinition("pair", "composite-local", {"parts": ("json", "quote")}),
        ]
    )
    sent = pickle.loads(pickle.dumps(types))
    assert sent["quote"].parse(BODY) == types["quote"].parse(BODY)
    assert sent["pair"].kind == "composite-local" and sent["json"] is types["json"]


def test_types_of_a_configuration() -> None:
    types = MessageTypes(
        [
            TypeDefinition("pipes", "fix", {"field_separator": "124", "message_separator": 3}),
            TypeDefinition("quote", "struct", {"fields": ["/px = <d", "/qty = <I"]}),
            TypeDefinition("pair", "composite-local", {"parts": ["json", "pipes"]}),
            TypeDefinition("flat", "composite-global", {"parts": ("json", "binary")}),
            TypeDefinition("json", "json"),
        ]
    )
    assert types["pipes"].parse(b"1=2|") == {"1": "2"}
    assert types["quote"].parse(bytes(12)) == {"px": 0.0, "qty": 0}
    assert types["pair"].parse(b"\0\0\0\x02{}\0\0\0\x041=2|") == {"0": {}, "1": {"1": "2"}}
    assert types["flat"].parse(b"\0\0\0\x02{}\0\0\0\0") == {}
    assert types["json"] is not message_type("json")
    with pytest.raises(MessageTypeError, match="expected one of binary, bson, fix, flat"):
        types["other"]


class Upper(Json):
    """A kind of somebody else."""


def upper(name: str, options: Mapping[str, Any]) -> Json:
    assert options == {"loud": True}
    return Upper(name)


def test_kinds_from_entry_points() -> None:
    definition = TypeDefinition("mine", "upper", {"loud": True})
    found = MessageTypes([definition], {"upper": upper})["mine"]
    assert isinstance(found, Upper) and found.name == "mine"
    nothing: Any = lambda name, options: None  # noqa: E731
    with pytest.raises(ConfigurationError, match="the entry point upper gave no MessageType"):
        MessageTypes([definition], {"upper": nothing})


@pytest.mark.parametrize(
    ("kind", "options", "why"),
    [
        ("jsn", {}, "no kind is called 'jsn': expected one of binary, .*, xml"),
        ("bflat", {}, "there is no bflat"),
        ("json", {"depth": 1}, "json has no option 'depth': expected none"),
        ("fix", {"separator": 1}, "fix has no option 'separator': expected field_separator, h"),
        ("fix", {"field_separator": "|"}, "expected the ASCII code .* got '|'"),
        ("fix", {"field_separator": 300}, "expected an ASCII code from 1 to 127"),
        ("fix", {"field_separator": 1, "message_separator": 1}, "two separators are the same"),
        ("struct", {}, "has no field"),
        ("struct", {"fields": "/a = i"}, "expected a list of texts as fields"),
        ("composite-local", {}, "expected 1 to 64 parts, got 0"),
        ("composite-local", {"parts": ["json", "mine"]}, "no message type is called 'mine'"),
        ("composite-global", {"parts": [1]}, "expected a list of texts as parts"),
        ("protobuf", {}, " needs descriptors"),
        ("protobuf", {"descriptors": b"\xff", "message": "a.B"}, "these are no descriptors"),
    ],
)
def test_a_definition_that_cannot_be_used(kind: str, options: dict[str, Any], why: str) -> None:
    with pytest.raises(ConfigurationError, match=f"message type mine.*{why}"):
        MessageTypes([TypeDefinition("mine", kind, options)])


def test_the_names_of_kinds_are_those_of_the_registry() -> None:
    assert set(KINDS) == KIND_NAMES


def test_a_name_is_defined_once() -> None:
    with pytest.raises(ConfigurationError, match="mine is defined twice"):
        MessageTypes([TypeDefinition("mine", "json")] * 2)
