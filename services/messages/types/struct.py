"""The type `struct`: the fields of a fixed layout, as in Python's struct module (behaviour.md 6).

A field is `/name = [order][count]code`. The order is `<`, `>` or `=` without padding, or `@` (or
none) with the padding of C. `l` and `L` have 4 bytes, `n`, `N` and `P` 8. `x` is padding. A count
of `s`, `S` and `p` is the length of a text; of other codes it is the length of a list. The
documents name `S` without an explanation: here it is a text that ends at its first zero byte.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, NamedTuple

from raylay.services.errors import ConfigurationError
from raylay.services.messages.types.abilities import Ability
from raylay.services.messages.types.base import BODY_BYTES_MAX, MessageType, shown
from raylay.services.messages.types.trees import (
    ABSENT,
    FieldPath,
    Tree,
    field_path,
    value_at,
)

_FIELD = re.compile(r"\s*(/\S+)\s*=\s*([@=<>]?)(\d{0,8})([xcbB?hHiIlLqQnNfdsSp])\s*")
_SAME_AS = {"l": "i", "L": "I", "n": "q", "N": "Q", "S": "s"}
_TEXTS = "sSp"


class Field(NamedTuple):
    """The position of a field.

    Attributes:
        path: path of the field's value in the tree.
        offset: bytes from the body's start to the field.
        layout: the struct of one value, or of the values of a list.
        code: the code as configured.
        is_list: whether the field is a list, because its code has a count.
    """

    path: FieldPath
    offset: int
    layout: struct.Struct
    code: str
    is_list: bool


class StructType(MessageType):
    """Bodies of one fixed layout.

    Args:
        name: name of the type in messages.
        fields: the fields in order, each as `/name = [order][count]code`.

    Raises:
        ConfigurationError: a field cannot be read, or two have one name.
    """

    kind = "struct"
    lacks: ClassVar[Mapping[Ability, str]] = {
        Ability.DELTA: "every field of a layout is always there; publish the whole message",
        Ability.VIEW: "give the view another message type",
        Ability.EVENTS: "take events as another message type",
    }

    def __init__(self, name: str, fields: Sequence[str]) -> None:
        super().__init__(name)
        self._fields: list[Field] = []
        self.size_bytes = 0
        """Length of every body in bytes."""
        for text in fields:
            self._add(text)
        if not self._fields:
            raise ConfigurationError(f"message type {self.name} has no field: give it some")

    def _add(self, text: str) -> None:
        found = _FIELD.fullmatch(text)
        if found is None:
            raise ConfigurationError(
                f"message type {self.name}: expected a field such as '/price = <d', got {text!r}"
            )
        identifier, order, digits, code = found.groups()
        count = int(digits) if digits else 1
        packed = _SAME_AS.get(code, code)
        if order in ("", "@") and code not in "xcs":
            item = struct.calcsize(packed)
            self.size_bytes += -self.size_bytes % (1 if code in _TEXTS else item)
        layout = struct.Struct(f"{'=' if order in ('', '@') else order}{count}{packed}")
        offset = self.size_bytes
        self.size_bytes += layout.size
        if self.size_bytes > BODY_BYTES_MAX:
            raise ConfigurationError(f"message type {self.name}: its fields are too long together")
        if code == "x":
            return
        path = field_path(identifier)
        if any(path[: len(field.path)] == field.path[: len(path)] for field in self._fields):
            raise ConfigurationError(
                f"message type {self.name}: {identifier} is there twice, or within another field"
            )
        is_list = bool(digits) and code not in _TEXTS
        self._fields.append(Field(path, offset, layout, code, is_list))

    def parse(self, body: bytes | memoryview) -> Tree:
        if len(body) != self.size_bytes:
            raise self.wrong(
                f"expected {self.size_bytes:,} bytes, got {len(body):,}",
                min(len(body), self.size_bytes),
            )
        tree: Tree = {}
        for field in self._fields:
            values = [_plain(field, each) for each in field.layout.unpack_from(body, field.offset)]
            node = tree
            for name in field.path[:-1]:
                node = node.setdefault(name, {})
            node[field.path[-1]] = values if field.is_list else values[0]
        return tree

    def serialize(self, tree: Tree) -> bytes:
        """Returns the body with the values of a tree, which must have all of them."""
        body = bytearray(self.size_bytes)
        for field in self._fields:
            value = value_at(tree, field.path)
            identifier = "/" + "/".join(field.path)
            if value is ABSENT or value is None:
                raise self.wrong(f"{identifier} has no value")
            values = value if field.is_list else [value]
            try:
                packed = [_packed(field, each) for each in values]
                field.layout.pack_into(body, field.offset, *packed)
            except (struct.error, OverflowError, TypeError, ValueError):
                raise self.wrong(
                    f"{identifier} cannot be {shown(value)} in its {field.layout.size} bytes"
                ) from None
        return bytes(body)


def _plain(field: Field, value: Any) -> Any:
    if type(value) is not bytes:
        return value
    if field.code == "S":
        value = value.partition(b"\0")[0]
    return value.decode("utf-8", "surrogateescape")


def _packed(field: Field, value: Any) -> Any:
    if field.code == "?" or not isinstance(value, str | bytes):
        return value
    raw = value.encode("utf-8", "surrogateescape") if isinstance(value, str) else value
    room = field.layout.size - (field.code == "p")
    if field.code in _TEXTS and len(raw) > room:
        raise ValueError  # struct would truncate the text.
    return raw
