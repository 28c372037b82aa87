"""services/messages/types/base.py: the limits and the errors that all types share."""

from __future__ import annotations

import struct
from collections.abc import Callable, Sequence
from typing import Any

import pytest

from raylay.services.errors import MessageTooLarge, MessageTypeError, RaylayError
from raylay.services.messages.records import RECORD_BYTES_MAX
from raylay.services.messages.types.abilities import Ability
from raylay.services.messages.types.base import (
    BODY_BYTES_MAX,
    DEPTH_MAX,
    SHOWN_CHARACTERS_MAX,
    SLOW_BODY_BYTES_MAX,
    MessageType,
    shown,
)
from raylay.services.messages.types.binary import Binary
from raylay.services.messages.types.composite import CompositeLocal
from raylay.services.messages.types.json import Json
from raylay.services.messages.types.registry import message_type

pytestmark = pytest.mark.covers("Message types", "depth, claimed lengths")


def test_every_body_that_a_record_can_have_may_be_parsed() -> None:
    assert BODY_BYTES_MAX >= RECORD_BYTES_MAX


def test_a_body_above_the_limit_is_not_looked_at() -> None:
    kind = Json()
    kind.bounded(bytes(BODY_BYTES_MAX))
    with pytest.raises(MessageTypeError, match="limit is 16,777,216"):
        kind.parse(b"{" + bytes(BODY_BYTES_MAX))


@pytest.mark.parametrize(
    ("kind", "before", "each", "after"),
    [
        ("xml", b"<a>", b"<b>12345678</b>", b"</a>"),
        ("fix", b"", b"1=12345678\x01", b""),
        ("nvfix", b"", b"a=12345678\x01", b""),
    ],
)
def test_what_takes_long_is_parsed_up_to_its_own_limit(
    kind: str, before: bytes, each: bytes, after: bytes
) -> None:
    found = message_type(kind)
    most = found.parsed_bytes_max
    assert most == 512 * 1024 == SLOW_BODY_BYTES_MAX

    def body(size_bytes: int) -> bytes:
        return before + each * ((size_bytes - len(before) - len(after)) // len(each)) + after

    assert found.parse(body(most))
    large = body(most + 5 * len(each))
    with pytest.raises(MessageTooLarge, match="the limit is 524,288"):
        found.parse(large)
    with pytest.raises(MessageTooLarge):
        found.parser_of(frozenset("a"))(large)
    both = CompositeLocal("two", [message_type("json"), found])
    sound = b'{"a":1}'
    parts = (sound, large)
    whole = b"".join(struct.pack(">I", len(part)) + part for part in parts)
    with pytest.raises(MessageTooLarge, match=r"part 1: .* the limit is 524,288"):
        both.parse(whole)


def test_an_error_names_type_fault_and_byte() -> None:
    error = Json("mine").wrong("it is green", 1234)
    assert isinstance(error, RaylayError)
    assert str(error) == "this is no message of type mine: it is green at byte 1,234"
    assert (error.message_type, error.offset) == ("mine", 1234)
    assert "byte" not in str(Json().wrong("it is green"))


def test_a_refusal_says_what_to_do() -> None:
    Json().require(Ability.DELTA)
    with pytest.raises(MessageTypeError, match="type blob cannot be read field by field: publish"):
        Binary("blob").require(Ability.FIELDS)


@pytest.mark.parametrize("value", ["x" * 1000, b"x" * 1000, 10**1000, ["x" * 1000], {"a": 1}])
def test_what_is_shown_fits_a_line(value: object) -> None:
    assert len(shown(value)) <= SHOWN_CHARACTERS_MAX + 1


def test_depth_is_counted_with_the_tree_itself() -> None:
    kind = Json()
    kind.parse(b'{"a":' + b"[" * (DEPTH_MAX - 1) + b"]" * (DEPTH_MAX - 1) + b"}")
    with pytest.raises(MessageTypeError, match="nested more than 100 deep"):
        kind.parse(b'{"a":' + b"[" * DEPTH_MAX + b"]" * DEPTH_MAX + b"}")


class Brittle(MessageType):
    """A type of somebody else, whose parsers raise what they like."""

    kind = "brittle"

    def parse(self, body: bytes | memoryview) -> dict[str, Any]:
        raise KeyError("parse")

    def serialize(self, tree: dict[str, Any]) -> bytes:
        raise OverflowError("serialize")

    def parser_of(self, names: frozenset[str]) -> Callable[[bytes], dict[str, Any]]:
        def parse(body: bytes) -> dict[str, Any]:
            raise ZeroDivisionError("a few fields")

        return parse


def test_whatever_a_type_raises_is_an_error_of_the_message() -> None:
    kind = Brittle()
    with pytest.raises(MessageTypeError, match=r"type brittle could not be read .*KeyError"):
        kind.parse(b"{}")
    with pytest.raises(MessageTypeError, match="OverflowError: serialize"):
        kind.serialize({})
    with pytest.raises(MessageTypeError, match="ZeroDivisionError: a few fields"):
        kind.parser_of(frozenset("a"))(b"{}")
    assert kind.reader_of(frozenset("a"))([b"{}"]) == [None]


class Gives(MessageType):
    """A type of somebody else, which returns whatever it is told to."""

    kind = "gives"

    def __init__(self, found: Any) -> None:
        super().__init__()
        self.found = found

    def parse(self, body: bytes | memoryview) -> Any:
        return self.found

    def serialize(self, tree: dict[str, Any]) -> Any:
        return self.found

    def parser_of(self, names: frozenset[str]) -> Callable[[bytes], Any]:
        return self.parse_inside

    def parse_inside(self, body: bytes) -> Any:
        return self.found

    def reader_of(self, names: frozenset[str]) -> Callable[[Sequence[bytes]], Any]:
        return lambda bodies: [self.found for _ in bodies]


class Named(dict[str, Any]):
    """A dict with a method of its own."""

    def get(self, *_: Any) -> Any:
        raise RuntimeError("get")


def circle() -> dict[str, Any]:
    found: dict[str, Any] = {}
    found["a"] = [found]
    return found


@pytest.mark.parametrize(
    ("found", "why"),
    [
        (None, "its fields came as NoneType, not as a dict"),
        ([1], "its fields came as list"),
        ("text", "its fields came as str"),
        ({1: 2}, "a field has a name of type int"),
        ({"a": {1}}, "a value is of type set"),
        ({"a": [1, object()]}, "a value is of type object"),
        ({"a": 10**5_000}, "a number has more than"),
        (circle(), "TreeTooDeep"),
    ],
    ids=lambda each: type(each).__name__,
)
def test_an_installed_type_that_gives_no_tree_is_an_error_of_the_message(
    found: Any, why: str
) -> None:
    kind = Gives(found)
    for parse in (kind.parse, kind.parser_of(frozenset("a"))):
        with pytest.raises(MessageTypeError, match=why):
            parse(b"{}")
    assert kind.reader_of(frozenset("a"))([b"{}", b"[]"]) == [None, None]
    for write in (kind.merge, kind.difference):
        with pytest.raises(MessageTypeError):
            write(b"{}", b"{}")


def test_a_body_that_is_none_is_an_error_of_the_message() -> None:
    kind = Gives({"a": 1})
    with pytest.raises(MessageTypeError, match="its body came as dict, not as bytes"):
        kind.serialize({"a": 1})
    assert Gives(b"x").serialize({"a": 1}) == b"x"


def test_values_of_types_of_their_own_become_those_of_a_tree() -> None:
    found = Gives(Named(a=(1, True, None), b=Named(c=b"x", d=2.5), e=[{"f": "g"}]))
    tree = found.parse(b"")
    assert tree == {"a": [1, True, None], "b": {"c": b"x", "d": 2.5}, "e": [{"f": "g"}]}
    assert type(tree) is type(tree["b"]) is dict
    assert found.reader_of(frozenset())([b""]) == [tree]


def test_a_reader_that_leaves_bodies_out_has_read_none() -> None:
    class Forgets(Gives):
        def reader_of(self, names: frozenset[str]) -> Callable[[Sequence[bytes]], Any]:
            return lambda bodies: [{"a": 1}]

    assert Forgets({}).reader_of(frozenset("a"))([b"1", b"2"]) == [None, None]
    assert Forgets({}).reader_of(frozenset("a"))([b"1"]) == [{"a": 1}]


def test_a_type_cannot_end_the_process_but_the_keyboard_can() -> None:
    class Ends(Gives):
        def parse(self, body: bytes | memoryview) -> Any:
            raise self.found

    with pytest.raises(MessageTypeError, match="SystemExit: 3"):
        Ends(SystemExit(3)).parse(b"")
    with pytest.raises(KeyboardInterrupt):
        Ends(KeyboardInterrupt()).parse(b"")
