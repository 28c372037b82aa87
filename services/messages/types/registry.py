"""The message types by name: the built-in ones, and those of a configuration.

A type of a configuration has a name, a kind, and options of that kind. Kinds besides the built-in
ones come from Python's entry points (group `raylay.message_types`): the code that starts an
instance loads them and passes them in.
"""

from __future__ import annotations

from base64 import b64decode
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cache
from typing import Any

from raylay.services.errors import ConfigurationError, MessageTypeError
from raylay.services.messages.types.base import MessageType
from raylay.services.messages.types.binary import Binary
from raylay.services.messages.types.bson import Bson
from raylay.services.messages.types.composite import CompositeGlobal, CompositeLocal
from raylay.services.messages.types.definitions import REFUSED, TypeDefinition
from raylay.services.messages.types.fix import SOH, Fix, Nvfix
from raylay.services.messages.types.json import Json
from raylay.services.messages.types.msgpack import Msgpack
from raylay.services.messages.types.protobuf import protobuf_type
from raylay.services.messages.types.struct import StructType
from raylay.services.messages.types.xml import Xml

BUILT_IN: dict[str, Callable[[], MessageType]] = {
    each.kind: each for each in (Json, Fix, Nvfix, Xml, Bson, Msgpack, Binary)
}
"""Built-in types that need no options, by name."""
Factory = Callable[[str, Mapping[str, Any]], MessageType]
"""Makes a type with a name from the options of a configuration."""


@cache
def message_type(name: str) -> MessageType:
    """Returns a built-in type.

    Raises:
        MessageTypeError: there is none of this name, or it needs a library that is not installed.
    """
    if name in BUILT_IN:
        return BUILT_IN[name]()
    raise _unknown(name, BUILT_IN)


class MessageTypes:
    """The message types of an instance.

    Args:
        definitions: types that the configuration defines. A type may have the name of a built-in
            one, which it replaces. A composite may name types defined before it.
        plugins: kinds from entry points.

    Raises:
        ConfigurationError: a definition cannot be used; with its name.
        MessageTypeError: a library is not installed.
    """

    def __init__(
        self,
        definitions: Iterable[TypeDefinition] = (),
        plugins: Mapping[str, Factory] | None = None,
    ) -> None:
        self._defined: dict[str, MessageType] = {}
        self._definitions, self._plugins = tuple(definitions), dict(plugins or {})
        for definition in self._definitions:
            if definition.name in self._defined:
                raise ConfigurationError(f"message type {definition.name} is defined twice")
            self._defined[definition.name] = self._made(definition, self._plugins)

    def __reduce__(self) -> tuple[Any, ...]:
        # Another process makes the types anew: it cannot import the classes of protobuf messages.
        return MessageTypes, (self._definitions, self._plugins)

    def __getitem__(self, name: str) -> MessageType:
        """Returns the type of a name.

        Raises:
            MessageTypeError: no type has this name, or it needs a library that is not installed.
        """
        found = self._defined.get(name)
        if found is not None:
            return found
        if name in BUILT_IN:
            return message_type(name)
        raise _unknown(name, {**BUILT_IN, **self._defined})

    def _made(self, definition: TypeDefinition, plugins: Mapping[str, Factory]) -> MessageType:
        name, kind = definition.name, definition.kind
        if kind in plugins:
            made = plugins[kind](name, definition.options)
            if not isinstance(made, MessageType):
                raise ConfigurationError(
                    f"message type {name}: the entry point {kind} gave no MessageType"
                )
            return made
        if kind in REFUSED:
            raise ConfigurationError(f"message type {name}: there is no {kind}: {REFUSED[kind]}")
        if kind not in KINDS:
            known = ", ".join(sorted({**KINDS, **plugins}))
            raise ConfigurationError(
                f"message type {name}: no kind is called {kind!r}: expected one of {known}"
            )
        options = dict(definition.options)
        unknown = sorted(options.keys() - _OPTIONS.get(kind, set()))
        if unknown:
            expected = ", ".join(sorted(_OPTIONS.get(kind, set()))) or "none"
            raise ConfigurationError(
                f"message type {name}: {kind} has no option {unknown[0]!r}: expected {expected}"
            )
        return KINDS[kind](self, name, options)

    def _composite(
        self, name: str, options: dict[str, Any], of: type[CompositeLocal]
    ) -> MessageType:
        parts = []
        for each in _texts(name, "parts", options.get("parts", ())):
            try:
                parts.append(self[each])
            except MessageTypeError as error:
                raise ConfigurationError(f"message type {name}: {error}") from None
        return of(name, parts)


def _unknown(name: str, known: Iterable[str]) -> MessageTypeError:
    if name in REFUSED:
        return MessageTypeError(f"there is no message type {name}: {REFUSED[name]}", name)
    return MessageTypeError(
        f"no message type is called {name[:200]!r}, so nothing can be read from such messages: "
        f"expected one of {', '.join(sorted(known))}",
        name,
    )


def _plain(of: Callable[[str], MessageType]) -> Callable[..., MessageType]:
    return lambda types, name, options: of(name)


def _fix(of: type[Nvfix]) -> Callable[..., MessageType]:
    def made(types: MessageTypes, name: str, options: dict[str, Any]) -> MessageType:
        codes = {each: _code(name, each, value) for each, value in options.items()}
        if len(set(codes.values())) < len(codes):
            raise ConfigurationError(f"message type {name}: two separators are the same")
        return of(name, field_separator=codes.get("field_separator", SOH))

    return made


def _protobuf(types: MessageTypes, name: str, options: dict[str, Any]) -> MessageType:
    descriptors, message = options.get("descriptors"), options.get("message")
    if type(descriptors) is str:  # A str in a configuration file.
        try:
            descriptors = b64decode(descriptors, validate=True)
        except ValueError:
            raise ConfigurationError(
                f"message type {name}: its descriptors are no Base64"
            ) from None
    if type(descriptors) is not bytes or type(message) is not str:
        raise ConfigurationError(
            f"message type {name} needs descriptors, what protoc --include_imports "
            "--descriptor_set_out=FILE writes, and message, its full name"
        )
    return protobuf_type(name, descriptors, message)


def _struct(types: MessageTypes, name: str, options: dict[str, Any]) -> MessageType:
    return StructType(name, _texts(name, "fields", options.get("fields", ())))


def _texts(name: str, option: str, value: Any) -> Sequence[str]:
    if not isinstance(value, list | tuple) or not all(type(each) is str for each in value):
        raise ConfigurationError(f"message type {name}: expected a list of texts as {option}")
    return value


def _code(name: str, option: str, value: Any) -> int:
    if isinstance(value, str) and value.strip().isdecimal():
        value = int(value)
    if type(value) is not int:
        raise ConfigurationError(
            f"message type {name}: expected the ASCII code of a character as {option}, such as 1 "
            f"or 124, got {value!r}"
        )
    return value


KINDS: dict[str, Callable[[MessageTypes, str, dict[str, Any]], MessageType]] = {
    "json": _plain(Json),
    "xml": _plain(Xml),
    "bson": _plain(Bson),
    "msgpack": _plain(Msgpack),
    "binary": _plain(Binary),
    "fix": _fix(Fix),
    "nvfix": _fix(Nvfix),
    "composite-local": lambda types, name, options: types._composite(name, options, CompositeLocal),
    "composite-global": lambda types, name, options: types._composite(
        name, options, CompositeGlobal
    ),
    "protobuf": _protobuf,
    "struct": _struct,
}
"""Kinds that a definition may have, each with the function that makes the type."""
_SEPARATORS = {"field_separator", "header_separator", "message_separator"}
"""Bytes that legacy protocols use as separators. The last two separate messages, and never occur
within a body."""
_OPTIONS = {
    "fix": _SEPARATORS,
    "nvfix": _SEPARATORS,
    "composite-local": {"parts"},
    "composite-global": {"parts"},
    "protobuf": {"descriptors", "message"},
    "struct": {"fields"},
}
