"""The interface of message types, and the limits on every body (behaviour.md 6).

The tree of a message is a dict whose leaves are str, int, float, bool, None and bytes, and whose
other values are lists and dicts of these. What follows from it for each type is said there.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from functools import wraps
from typing import Any, ClassVar, NamedTuple, NoReturn, Protocol

from raylay.services.errors import MessageTooLarge, MessageTypeError, RaylayError
from raylay.services.messages.types.abilities import Ability
from raylay.services.messages.types.results import WrongResult, checked_body, checked_tree
from raylay.services.messages.types.trees import (
    FieldPath,
    Tree,
    TreeTooDeep,
    changes,
    check_depth,
    merged,
)

DEPTH_MAX = 100
"""Depth to which values may be nested; the tree itself is the first level. Code that walks through
a tree may recurse once per level."""
BODY_BYTES_MAX = 16 * 1024 * 1024
"""Longest body that is parsed. No record is longer (records.RECORD_BYTES_MAX)."""
SLOW_BODY_BYTES_MAX = 512 * 1024
"""Longest body that is parsed of types that take 0.1 to 0.3 µs a byte: some 0.1 s of an instance's
loop."""
VALUES_MAX = 65_536
"""Number of fields, elements, objects and arrays in a body that is parsed: some 25 ms of an
instance's loop where each takes a byte or two."""
SHOWN_CHARACTERS_MAX = 60


class ParsedBody(NamedTuple):
    """A body and the tree that was parsed from it.

    Attributes:
        tree: the fields of the body.
    """

    body: bytes | memoryview
    tree: Tree


_BUILT_IN_TYPES = f"{__name__.rpartition('.')[0]}."
"""Begin of the names of the modules with the types whose results need no check."""
_BODIES = frozenset(("serialize", "merge", "difference", "_spliced"))
"""Methods that return a body."""


def _refusing(method: Callable[..., Any], check: Callable[..., Any] | None) -> Callable[..., Any]:
    """Turns every exception of a method of a type into a MessageTypeError of that type: foreign
    bytes decide which errors a library raises, and the instance must go on with the next message.

    Args:
        check: checks the result; None: it needs no check.
    """

    @wraps(method)
    def refusing(self: MessageType, *args: Any, **keywords: Any) -> Any:
        try:
            found = method(self, *args, **keywords)
            return found if check is None else check(found)
        except (RaylayError, KeyboardInterrupt):
            raise
        except BaseException as error:  # SystemExit would end the instance.
            raise self.failed(error) from error

    return refusing


def _refusing_parsers(
    method: Callable[..., Callable[[bytes], Tree]], check: Callable[..., Any] | None
) -> Callable[..., Any]:
    """Turns every exception of the parsers that a type's `parser_of` returns into a
    MessageTypeError of that type, as `_refusing` does for a method."""

    @wraps(method)
    def parser_of(self: MessageType, names: frozenset[str]) -> Callable[[bytes], Tree]:
        parse = method(self, names)
        return lambda body: refusing(self, parse, body)

    def called(self: MessageType, parse: Callable[[bytes], Tree], body: bytes) -> Tree:
        return parse(body)

    refusing = _refusing(called, check)
    return parser_of


def _refusing_reader(method: Callable[..., Any]) -> Callable[..., Any]:
    """Checks the results of the readers that `reader_of` of an installed type returns. Where a
    reader raises, or its results are wrong, every tree of the bodies is None."""

    @wraps(method)
    def reader_of(
        self: MessageType, names: frozenset[str]
    ) -> Callable[[Sequence[bytes]], list[Tree | None]]:
        read = method(self, names)

        def checked(bodies: Sequence[bytes]) -> list[Tree | None]:
            found = list(read(bodies))
            if len(found) != len(bodies):
                raise WrongResult(f"{len(found):,} trees came for {len(bodies):,} bodies")
            return [None if tree is None else _tree(tree) for tree in found]

        guarded = _refusing(lambda _, bodies: checked(bodies), None)

        def refusing(bodies: Sequence[bytes]) -> list[Tree | None]:
            try:
                found: list[Tree | None] = guarded(self, bodies)
            except RaylayError:
                return [None] * len(bodies)
            return found

        return refusing

    return reader_of


def _tree(found: Any) -> Tree:
    return checked_tree(found, DEPTH_MAX)


class MessageType(ABC):
    """Reads and writes the bodies of one message type. Immutable: one object serves a whole
    instance.

    An exception that `parse`, `serialize`, `merge`, `difference` or a parser from `parser_of` of a
    subclass raises reaches the caller as MessageTypeError. So does a result of an installed type
    that is no tree, or no bytes.

    Attributes:
        name: name of the type in messages.
        kind: the built-in type that this type is, such as `fix` for a type with another name.
    """

    kind = ""
    lacks: ClassVar[Mapping[Ability, str]] = {}
    """Abilities that messages of this type lack, each with what can be done instead."""
    parsed_bytes_max: ClassVar[int] = BODY_BYTES_MAX
    """Longest body of this type that is parsed."""
    value_bytes_min: ClassVar[int] = 1
    """Fewest bytes that one value takes: the values of a short enough body are not counted."""
    empty: Any = ""
    """Value in a delta that stands for a field without a value."""
    parsers_refuse: ClassVar[bool] = False
    """Whether parsers from `parser_of` raise MessageTypeError only, so that they need no guard."""

    def __init__(self, name: str = "") -> None:
        self.name = name or self.kind

    def __init_subclass__(cls, **keywords: Any) -> None:
        super().__init_subclass__(**keywords)
        is_built_in = cls.__module__.startswith(_BUILT_IN_TYPES)
        checks = {"parse": _tree, **dict.fromkeys(_BODIES, checked_body)}
        for name, check in checks.items():
            method = cls.__dict__.get(name)
            if method is not None and not getattr(method, "__isabstractmethod__", False):
                setattr(cls, name, _refusing(method, None if is_built_in else check))
        if "parser_of" in cls.__dict__ and not (
            is_built_in and cls.__dict__.get("parsers_refuse", False)
        ):
            parsers: Any = _refusing_parsers(cls.parser_of, None if is_built_in else _tree)
            cls.parser_of = parsers  # type: ignore[method-assign]
        if "reader_of" in cls.__dict__ and not is_built_in:
            readers: Any = _refusing_reader(cls.reader_of)
            cls.reader_of = readers  # type: ignore[method-assign]

    @abstractmethod
    def parse(self, body: bytes | memoryview) -> Tree:
        """Returns the fields of a body.

        Raises:
            MessageTypeError: it is no body of this type; with the byte where that shows.
        """

    def parse_all(self, bodies: Sequence[bytes]) -> list[Tree]:
        """Returns the fields of each body, as `parse` does.

        Raises:
            MessageTypeError: one of them is no body of this type.
        """
        return list(map(self.parse, bodies))

    def parser_of(self, names: frozenset[str]) -> Callable[[bytes], Tree]:
        """Returns a parser for these top-level fields; it may return other fields as well. Where
        `parse` would refuse the body, it may return the fields that it finds."""
        return self.parse

    def reader_of(self, names: frozenset[str]) -> Callable[[Sequence[bytes]], list[Tree | None]]:
        """Returns a reader of these fields in many bodies at once; it returns None for an
        unreadable body."""
        parse = self.parser_of(names)

        def read(bodies: Sequence[bytes]) -> list[Tree | None]:
            found: list[Tree | None] = []
            for body in bodies:
                try:
                    found.append(parse(body))
                except Exception:  # The parser of an installed type may raise anything.
                    found.append(None)
            return found

        return read

    @abstractmethod
    def serialize(self, tree: Tree) -> bytes:
        """Returns the body that has these fields.

        Raises:
            MessageTypeError: the type cannot represent one of the values.
        """

    def merge(self, stored: bytes | memoryview, delta: bytes | memoryview) -> bytes:
        """Returns the stored body with the fields of a delta merged into it (behaviour.md 4.7).

        A field that the delta lacks stays as it is; a list is replaced whole.

        Raises:
            MessageTypeError: one of the bodies is not valid for this type, or the type has no
                deltas.
        """
        self.require(Ability.DELTA)
        one, other = self.known(stored), self.known(delta)
        return self.joined(one, other, merged(one.tree, other.tree))

    def joined(self, stored: ParsedBody, delta: ParsedBody, tree: Tree) -> bytes:
        """Returns the body that has the fields of both.

        Args:
            tree: the fields of both, merged.

        Raises:
            MessageTypeError: the type cannot represent one of the values.
        """
        return self.rewritten(tree, stored, delta)

    def difference(
        self,
        before: bytes | memoryview,
        after: bytes | memoryview,
        keys: Sequence[FieldPath] = (),
        *,
        empties: bool = True,
    ) -> bytes:
        """Returns the delta that leads from one body to another.

        `merge(before, difference(before, after))` has the fields of `after`, and an empty field for
        each one that `after` lacks, because no delta removes a field.

        Args:
            keys: fields that the delta has in any case, changed or not.
            empties: whether the delta has an empty field for each one that `after` lacks; otherwise
                it has none for them.

        Raises:
            MessageTypeError: one of the bodies is not valid for this type, or the type has no
                deltas.
        """
        self.require(Ability.DELTA)
        one, other = self.known(before), self.known(after)
        found = changes(one.tree, other.tree, keys, self.empty if empties else ...)
        return self.rewritten(found, other)

    def known(self, body: bytes | memoryview) -> ParsedBody:
        """Returns a body together with its fields.

        Raises:
            MessageTypeError: it is no body of this type.
        """
        return ParsedBody(body, self.parse(body))

    def rewritten(self, tree: Tree, *known: ParsedBody) -> bytes:
        """Returns the body that has these fields: a value that one of the known bodies has in the
        same place keeps its bytes from there. The last known body has precedence.

        Raises:
            MessageTypeError: the type cannot represent one of the values.
        """
        # Most clients write bodies exactly as the type does: then writing anew gives their own
        # bytes.
        if all(self._writes(each) for each in known):
            return self.serialize(tree)
        return self._spliced(tree, known)

    def _writes(self, known: ParsedBody) -> bool:
        """Returns whether the type would write these fields as the same bytes."""
        try:
            return self.serialize(known.tree) == known.body
        except MessageTypeError:
            return False

    def _spliced(self, tree: Tree, known: Sequence[ParsedBody]) -> bytes:
        """Writes a tree as `rewritten` describes. Unless a type overrides this, every value is
        written anew."""
        return self.serialize(tree)

    def require(self, ability: Ability) -> None:
        """Refuses an ability that the type lacks.

        Raises:
            MessageTypeError: with what can be done instead.
        """
        if ability in self.lacks:
            raise MessageTypeError(
                f"messages of type {self.name} cannot {ability}: {self.lacks[ability]}", self.name
            )

    def wrong(self, what: str, offset: int | None = None) -> MessageTypeError:
        """Returns the error for a body that is not of this type.

        Args:
            what: the fault, without a full stop.
            offset: bytes from the body's start to the fault.
        """
        where = "" if offset is None else f" at byte {offset:,}"
        return MessageTypeError(
            f"this is no message of type {self.name}: {what}{where}", self.name, offset
        )

    def failed(self, error: BaseException) -> MessageTypeError:
        """Returns the error for a body with which the type met an unexpected exception."""
        return MessageTypeError(
            f"this message of type {self.name} could not be read or written: "
            f"{type(error).__name__}: {str(error)[:200]}",
            self.name,
        )

    def number(self, value: float) -> str:
        """Returns a number as text.

        Raises:
            MessageTypeError: Python writes no numbers of more than 4,300 digits.
        """
        try:
            return repr(value)
        except ValueError:
            raise self.wrong("a number has more than 4,300 digits") from None

    def count_values(self, body: bytes | memoryview) -> int:
        """Returns about how many values a body has, without creating them; counting may end above
        `VALUES_MAX`. For a body that is not of this type the result may be anything."""
        return 0

    def bounded(self, body: bytes | memoryview) -> None:
        """Refuses a body that is longer, or has more values, than the type allows.

        Raises:
            MessageTooLarge: it is, or has.
        """
        if len(body) > self.parsed_bytes_max:
            raise MessageTooLarge(
                f"this message of type {self.name} is not parsed: it has {len(body):,} bytes, the "
                f"limit is {self.parsed_bytes_max:,}",
                self.name,
            )
        if len(body) > VALUES_MAX * self.value_bytes_min and self.count_values(body) > VALUES_MAX:
            raise MessageTooLarge(
                f"this message of type {self.name} is not parsed: it has more than {VALUES_MAX:,} "
                "values (fields, elements, objects and arrays), which is the limit: send them as "
                "several messages, or in one text or binary value",
                self.name,
            )

    def shallow(self, tree: Any, depth_max: int = DEPTH_MAX) -> None:
        """Refuses a tree that is nested too deeply.

        Raises:
            MessageTypeError: it is.
        """
        try:
            check_depth(tree, depth_max)
        except TreeTooDeep:
            raise self.wrong(f"its values are nested more than {depth_max} deep") from None


def shown(value: object) -> str:
    """Returns a value for an error text: never longer than a line."""
    if isinstance(value, str | bytes):
        value = value[: SHOWN_CHARACTERS_MAX + 1]
    elif isinstance(value, list | dict):
        return "an array" if isinstance(value, list) else "an object"
    elif value is None or isinstance(value, bool):
        return {None: "null", True: "true", False: "false"}[value]
    text = repr(value)
    return text if len(text) <= SHOWN_CHARACTERS_MAX else f"{text[:SHOWN_CHARACTERS_MAX]}…"


def missing(message_type: str, library: str, extra: str) -> NoReturn:
    """Raises the error that a library is not installed, with the command that installs it."""
    raise MessageTypeError(
        f"message type {message_type} needs the library {library}, which is not installed: "
        f"pip install 'raylay[{extra}]'",
        message_type,
    ) from None


class MessageTypeTable(Protocol):
    """The message types of an instance."""

    def __getitem__(self, name: str) -> MessageType:
        """Returns the type of a name.

        Raises:
            MessageTypeError: there is none.
        """
