"""The types `composite-local` and `composite-global`: several bodies in one (behaviour.md 6).

Each part is preceded by its length, four bytes in network order; bytes behind the last part are a
payload that nothing reads. The documents do not say how parts are separated: this format is
Raylay's own (docs/deviations.md). A part without bytes has no fields.

Local: the fields of part n are under the name n. Global: the fields of all parts are together; a
field that several parts have is the list of its values.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

from raylay.services.errors import ConfigurationError, MessageTooLarge, MessageTypeError
from raylay.services.messages.types.abilities import Ability
from raylay.services.messages.types.base import MessageType, ParsedBody
from raylay.services.messages.types.trees import FieldPath, Tree

PARTS_MAX = 64
_LENGTH = struct.Struct(">I")


def join(parts: Sequence[bytes | memoryview], payload: bytes | memoryview = b"") -> bytes:
    pieces: list[bytes | memoryview] = []
    for part in parts:
        pieces += (_LENGTH.pack(len(part)), part)
    return b"".join((*pieces, payload))


class CompositeLocal(MessageType):
    """Bodies of several parts, whose fields are told apart by the number of their part.

    Args:
        name: name of the type in messages.
        parts: the types of the parts.

    Raises:
        ConfigurationError: no parts, or too many.
    """

    kind = "composite-local"
    lacks: ClassVar[Mapping[Ability, str]] = {Ability.EVENTS: "take events as another message type"}

    def __init__(self, name: str, parts: Sequence[MessageType]) -> None:
        super().__init__(name)
        if not 1 <= len(parts) <= PARTS_MAX:
            raise ConfigurationError(
                f"message type {self.name}: expected 1 to {PARTS_MAX} parts, got {len(parts)}"
            )
        self.parts = tuple(parts)

    def split(self, body: bytes | memoryview) -> tuple[list[memoryview], memoryview]:
        """Returns the parts of a body, and its payload.

        Raises:
            MessageTypeError: it ends within a part.
        """
        self.bounded(body)
        return self._split(body)

    def count_values(self, body: bytes | memoryview) -> int:
        found, _ = self._split(body)
        return sum(
            kind.count_values(part)
            for kind, part in zip(self.parts, found, strict=True)
            if len(part) > kind.value_bytes_min
        )

    def _split(self, body: bytes | memoryview) -> tuple[list[memoryview], memoryview]:
        view = memoryview(body)
        found, at = [], 0
        for number in range(len(self.parts)):
            end = at + _LENGTH.size
            if end <= len(view):
                end += _LENGTH.unpack_from(view, at)[0]
            if at + _LENGTH.size > len(view) or end > len(view):
                raise self.wrong(
                    f"it ends within part {number} of {len(self.parts)}, which needs "
                    f"{end - at:,} bytes",
                    at,
                )
            found.append(view[at + _LENGTH.size : end])
            at = end
        return found, view[at:]

    def parse(self, body: bytes | memoryview) -> Tree:
        """Returns the fields of each part, under the part's number."""
        return {str(number): tree for number, tree in self._trees(body)}

    def _trees(self, body: bytes | memoryview) -> list[tuple[int, Tree]]:
        found, _ = self.split(body)
        trees, at = [], 0
        for number, (kind, part) in enumerate(zip(self.parts, found, strict=True)):
            at += _LENGTH.size
            if len(part) and Ability.FIELDS not in kind.lacks:
                try:
                    trees.append((number, kind.parse(part)))
                except MessageTooLarge as error:
                    raise MessageTooLarge(f"part {number}: {error}", self.name) from None
                except MessageTypeError as error:
                    offset = None if error.offset is None else at + error.offset
                    raise self.wrong(f"part {number}: {error}; of the whole", offset) from None
            at += len(part)
        return trees

    def serialize(self, tree: Tree) -> bytes:
        """Returns the body with the parts that have these fields, without a payload; a part without
        fields has no bytes."""
        parts = []
        known = {str(number) for number in range(len(self.parts))}
        if not known >= tree.keys():
            raise self.wrong(f"expected the numbers of its parts, 0 to {len(self.parts) - 1}")
        for number, kind in enumerate(self.parts):
            fields = tree.get(str(number))
            if fields is not None and not isinstance(fields, dict):
                raise self.wrong(f"part {number} has no fields but a value")
            parts.append(b"" if fields is None else kind.serialize(fields))
        return join(parts)

    def rewritten(self, tree: Tree, *known: ParsedBody) -> bytes:
        """Returns the body rewritten part by part, without a payload; a part without fields has no
        bytes."""
        parts = []
        split = [(self.split(each.body)[0], each.tree) for each in known]
        for number, kind in enumerate(self.parts):
            fields = tree.get(str(number))
            if type(fields) is not dict:
                parts.append(b"")
                continue
            there = [
                ParsedBody(bodies[number], trees[str(number)])
                for bodies, trees in split
                if str(number) in trees
            ]
            parts.append(kind.rewritten(fields, *there))
        return join(parts)

    def merge(self, stored: bytes | memoryview, delta: bytes | memoryview) -> bytes:
        """Returns the stored body merged part by part. A part of the delta without bytes leaves the
        stored part as it is, and the same holds for the payload. A part whose type has no deltas is
        replaced as a whole."""
        (before, payload), (change, new_payload) = self.split(stored), self.split(delta)
        parts = []
        for kind, one, other in zip(self.parts, before, change, strict=True):
            if not len(other) or (len(one) and Ability.DELTA not in kind.lacks):
                parts.append(kind.merge(one, other) if len(other) else one)
            else:
                parts.append(other)
        return join(parts, new_payload if len(new_payload) else payload)

    def difference(
        self,
        before: bytes | memoryview,
        after: bytes | memoryview,
        keys: Sequence[FieldPath] = (),
        *,
        empties: bool = True,
    ) -> bytes:
        """Returns the delta part by part: an unchanged part has no bytes."""
        (old, payload), (new, new_payload) = self.split(before), self.split(after)
        parts: list[bytes | memoryview] = []
        for number, kind in enumerate(self.parts):
            one, other = old[number], new[number]
            wanted = [path[1:] for path in keys if path[:1] == (str(number),) and len(path) > 1]
            if one == other and (not wanted or not len(one)):
                parts.append(b"")
            elif len(one) and len(other) and Ability.DELTA not in kind.lacks:
                parts.append(kind.difference(one, other, wanted, empties=empties))
            else:
                parts.append(other)
        return join(parts, b"" if payload == new_payload else new_payload)


class CompositeGlobal(CompositeLocal):
    """Bodies of several parts, whose fields are read as those of one message."""

    kind = "composite-global"
    lacks: ClassVar[Mapping[Ability, str]] = {
        Ability.EVENTS: "take events as another message type",
        Ability.DELTA: "use composite-local, or publish the whole message",
        Ability.VIEW: "give the view another message type",
        Ability.ENRICHMENT: "use composite-local",
    }

    def rewritten(self, tree: Tree, *known: ParsedBody) -> bytes:
        """Writes the tree anew, since a field does not tell its part."""
        return self.serialize(tree)

    def parse(self, body: bytes | memoryview) -> Tree:
        tree: Tree = {}
        for _, fields in self._trees(body):
            _add(tree, fields)
        return tree

    def serialize(self, tree: Tree) -> bytes:
        """Refuses: a field does not tell its part."""
        raise self.wrong("nothing says of which part a field is; use composite-local")

    def merge(self, stored: bytes | memoryview, delta: bytes | memoryview) -> bytes:
        """Refuses: this type has no deltas."""
        self.require(Ability.DELTA)
        raise AssertionError("composite-global lacks DELTA")

    def difference(
        self,
        before: bytes | memoryview,
        after: bytes | memoryview,
        keys: Sequence[FieldPath] = (),
        *,
        empties: bool = True,
    ) -> bytes:
        """Refuses: this type has no deltas."""
        self.require(Ability.DELTA)
        raise AssertionError("composite-global lacks DELTA")


def _add(tree: Tree, fields: Tree) -> None:
    """Adds the fields of a part to those of the parts before it."""
    for name, value in fields.items():
        if name not in tree:
            tree[name] = _copied(value)
        elif isinstance(tree[name], dict) and isinstance(value, dict):
            _add(tree[name], value)
        else:
            tree[name] = [*_listed(tree[name]), *_listed(value)]


def _copied(value: Any) -> Any:
    return {name: _copied(each) for name, each in value.items()} if type(value) is dict else value


def _listed(value: Any) -> list[Any]:
    return value if isinstance(value, list) else [value]
