"""What every message type can do, and the limits that no body gets past (behaviour.md 6).

The tree of a message is a dict whose leaves are str, int, float, bool, None and bytes, and whose
other values are lists and dicts of these. What follows from it for each type is said there.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar, NoReturn, Protocol

from raylay.services.errors import MessageTooLarge, MessageTypeError
from raylay.services.messages.types.abilities import Ability
from raylay.services.messages.types.trees import (
    FieldPath,
    Tree,
    TreeTooDeep,
    changes,
    check_depth,
    merged,
)

DEPTH_MAX = 100
"""How deep values may be nested; the tree itself is the first level. Who walks through a tree may
call itself for each level."""
BODY_BYTES_MAX = 16 * 1024 * 1024
"""Of a body that is parsed. No record is longer (records.RECORD_BYTES_MAX)."""
SLOW_BODY_BYTES_MAX = 512 * 1024
"""The same, of types that take 0.1 to 0.3 µs a byte: some 0.1 s of an instance's loop."""
SHOWN_CHARACTERS_MAX = 60


class MessageType(ABC):
    """How bodies of one type are read and written. Immutable: one serves a whole instance.

    Attributes:
        name: as messages carry it.
        kind: the built-in type that it is, such as `fix` for a type of another name.
    """

    kind = ""
    lacks: ClassVar[Mapping[Ability, str]] = {}
    """What cannot be done with messages of this type, and what can be done instead."""
    parsed_bytes_max: ClassVar[int] = BODY_BYTES_MAX
    """No longer body is parsed."""
    empty: Any = ""
    """What a field without a value has in a delta."""

    def __init__(self, name: str = "") -> None:
        self.name = name or self.kind

    @abstractmethod
    def parse(self, body: bytes | memoryview) -> Tree:
        """The fields of a body.

        Raises:
            MessageTypeError: it is no body of this type; with the byte where that shows.
        """

    def parser_of(self, names: frozenset[str]) -> Callable[[bytes], Tree]:
        """What reads these top-level fields of bodies; others it may give, or leave out. Of a body
        that `parse` refuses it may give what there is."""
        return self.parse

    def reader_of(self, names: frozenset[str]) -> Callable[[Sequence[bytes]], list[Tree | None]]:
        """The same of many bodies at a time; None for what cannot be read."""
        parse = self.parser_of(names)

        def read(bodies: Sequence[bytes]) -> list[Tree | None]:
            found: list[Tree | None] = []
            for body in bodies:
                try:
                    found.append(parse(body))
                except MessageTypeError:
                    found.append(None)
            return found

        return read

    @abstractmethod
    def serialize(self, tree: Tree) -> bytes:
        """The body that has these fields.

        Raises:
            MessageTypeError: the type cannot say one of the values.
        """

    def merge(self, stored: bytes | memoryview, delta: bytes | memoryview) -> bytes:
        """The stored body with the fields of a delta in it (behaviour.md 4.7).

        A field that the delta lacks stays as it is; a list is replaced whole.

        Raises:
            MessageTypeError: one of them is no body of this type, or the type knows no deltas.
        """
        self.require(Ability.DELTA)
        return self.serialize(merged(self.parse(stored), self.parse(delta)))

    def difference(
        self,
        before: bytes | memoryview,
        after: bytes | memoryview,
        keys: Sequence[FieldPath] = (),
        *,
        empties: bool = True,
    ) -> bytes:
        """The delta that leads from one body to another.

        `merge(before, difference(before, after))` has the fields of `after`, and an empty one for
        each that `after` lacks: no delta takes a field away.

        Args:
            keys: fields that are in it, changed or not.
            empties: say of a field that `after` lacks that it is empty, rather than nothing.

        Raises:
            MessageTypeError: one of them is no body of this type, or the type knows no deltas.
        """
        self.require(Ability.DELTA)
        return self.serialize(
            changes(self.parse(before), self.parse(after), keys, self.empty if empties else ...)
        )

    def require(self, ability: Ability) -> None:
        """Refuses what the type cannot do.

        Raises:
            MessageTypeError: with what can be done instead.
        """
        if ability in self.lacks:
            raise MessageTypeError(
                f"messages of type {self.name} cannot {ability}: {self.lacks[ability]}", self.name
            )

    def wrong(self, what: str, offset: int | None = None) -> MessageTypeError:
        """The error of a body that is none of this type.

        Args:
            what: is wrong, without a full stop.
            offset: bytes from the body's start to where that shows.
        """
        where = "" if offset is None else f" at byte {offset:,}"
        return MessageTypeError(
            f"this is no message of type {self.name}: {what}{where}", self.name, offset
        )

    def number(self, value: float) -> str:
        """A number as a text.

        Raises:
            MessageTypeError: Python writes no numbers of more than 4,300 digits.
        """
        try:
            return repr(value)
        except ValueError:
            raise self.wrong("a number has more than 4,300 digits") from None

    def bounded(self, body: bytes | memoryview) -> None:
        """Refuses a body that is longer than any of this type may be.

        Raises:
            MessageTooLarge: it is.
        """
        if len(body) > self.parsed_bytes_max:
            raise MessageTooLarge(
                f"this message of type {self.name} is not parsed: it has {len(body):,} bytes, the "
                f"limit is {self.parsed_bytes_max:,}",
                self.name,
            )

    def shallow(self, tree: Any, depth_max: int = DEPTH_MAX) -> None:
        """Refuses a tree that is nested too deep.

        Raises:
            MessageTypeError: it is.
        """
        try:
            check_depth(tree, depth_max)
        except TreeTooDeep:
            raise self.wrong(f"its values are nested more than {depth_max} deep") from None


def shown(value: object) -> str:
    """A value in an error: never longer than a line."""
    if isinstance(value, str | bytes):
        value = value[: SHOWN_CHARACTERS_MAX + 1]
    elif isinstance(value, list | dict):
        return "an array" if isinstance(value, list) else "an object"
    text = repr(value)
    return text if len(text) <= SHOWN_CHARACTERS_MAX else f"{text[:SHOWN_CHARACTERS_MAX]}…"


def missing(message_type: str, library: str, extra: str) -> NoReturn:
    """Says that a library is not installed, and how it is."""
    raise MessageTypeError(
        f"message type {message_type} needs the library {library}, which is not installed: "
        f"pip install 'raylay[{extra}]'",
        message_type,
    ) from None


class Types(Protocol):
    """The message types of an instance."""

    def __getitem__(self, name: str) -> MessageType:
        """The type of a name.

        Raises:
            MessageTypeError: there is none.
        """
