"""The bodies of publishes as bytes: texts, and the values that a message type can write.

A dictionary, a mapping, a msgspec Struct, a dataclass, an attrs class or a pydantic model becomes
the object of its message type: of a built-in one, or of one that the fabric defines and that the
instance has told the client.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import cache
from typing import Any, ClassVar, Protocol

from raylay.services.client.fabric_types import NO_TYPES, FabricTypes
from raylay.services.errors import MessageTypeError

_OBJECTS = ("__struct_fields__", "__dataclass_fields__", "__attrs_attrs__", "model_dump")
"""Attributes by which the objects are known that are written field by field."""
_INSTEAD = "or the body as bytes"


class StructBody(Protocol):
    """A msgspec Struct."""

    __struct_fields__: ClassVar[tuple[str, ...]]


class DataclassBody(Protocol):
    """A dataclass."""

    __dataclass_fields__: ClassVar[dict[str, Any]]


class AttrsBody(Protocol):
    """An object of an attrs class."""

    __attrs_attrs__: ClassVar[Any]


class ModelBody(Protocol):
    """A pydantic model."""

    def model_dump(self) -> dict[str, Any]:
        """Returns the fields."""


Body = (
    bytes
    | bytearray
    | memoryview
    | str
    | Mapping[str, object]
    | StructBody
    | DataclassBody
    | AttrsBody
    | ModelBody
)
"""A body that a client publishes: bytes as they are, a text in UTF-8, or an object with fields,
which is written by its message type."""


def body_bytes(
    body: object,
    topic: str,
    message_type: str,
    types: FabricTypes = NO_TYPES,
    number: int | None = None,
) -> bytes:
    """Returns the body of a publish as bytes.

    Args:
        types: the message types that the fabric defines.
        number: place of the body in a list of them, from 0 on, for errors; None: it is a single
            one.

    Raises:
        TypeError: it is no body, such as a number or a list.
        MessageTypeError: the message type cannot write it.
    """
    if isinstance(body, bytes | bytearray | memoryview):
        return bytes(body)
    which = "the body" if number is None else f"body {number} of the list"
    of = f"publish to {topic}: {which} is of type {type(body).__name__}"
    if isinstance(body, type):
        raise TypeError(
            f"publish to {topic}: {which} is the class {body.__name__}, and has to be an object of "
            "it"
        )
    if not isinstance(body, str | Mapping) and not _has_fields(body):
        hint = ""
        if isinstance(body, list | tuple):
            hint = "; publish_many takes a list of bodies, a message is one object"
        raise TypeError(
            f"{of}, and has to be bytes, a text, a dictionary, a Struct, a dataclass or a pydantic "
            f"model{hint}"
        )
    try:
        return body.encode() if isinstance(body, str) else _written(body, message_type, types)
    except Exception as error:  # whatever a library says of a value that it cannot take
        raise MessageTypeError(
            f"{of}, and no message of type {message_type} can be made of it: {error}: give values "
            f"that the type has, {_INSTEAD}",
            message_type,
        ) from error


def _has_fields(body: object) -> bool:
    return any(getattr(body, each, None) is not None for each in _OBJECTS)


def bodies_bytes(
    bodies: Iterable[object], topic: str, message_type: str, types: FabricTypes = NO_TYPES
) -> list[bytes]:
    """Returns the bodies of several publishes as bytes, with the errors of `body_bytes`.

    Raises:
        TypeError: it is one body, and no list of them.
    """
    single = isinstance(bodies, str | bytes | bytearray | memoryview | Mapping)
    if single or not isinstance(bodies, Iterable):
        raise TypeError(
            f"publish_many to {topic}: the bodies are of type {type(bodies).__name__}, and have to "
            "be a list of bodies; publish takes one"
        )
    found: list[bytes] = []
    for body in bodies:
        if not isinstance(body, bytes):
            body = body_bytes(body, topic, message_type, types, len(found))
        found.append(body)
    return found


def _written(body: Any, message_type: str, types: FabricTypes) -> bytes:
    """Returns an object with fields as a body. Raises whatever the libraries raise."""
    own = types.find(message_type)
    if own is None and message_type == "json":
        written: bytes = _json_encoder()(body)
        if not written.startswith(b"{"):
            raise ValueError("it is no object with fields")
        return written
    # Most programs write bytes or JSON: nothing else is imported for them.
    import msgspec

    from raylay.services.messages.types.registry import BUILT_IN
    from raylay.services.messages.types.registry import message_type as built_in

    if own is None and message_type not in BUILT_IN:
        known = ", ".join((*sorted(BUILT_IN), *types.names()))
        raise ValueError(f"the fabric defines no such type, and there are {known}")
    tree = msgspec.to_builtins(
        body, builtin_types=(bytes, bytearray), str_keys=True, enc_hook=_plain
    )
    if type(tree) is not dict:
        raise ValueError("it is no object with fields")
    return (own or built_in(message_type)).serialize(tree)


@cache
def _json_encoder() -> Any:
    import msgspec

    return msgspec.json.Encoder(enc_hook=_plain).encode


def _plain(value: Any) -> Any:
    """Returns a value that msgspec does not know as one that it knows."""
    if isinstance(value, Mapping):
        return dict(value)
    dump = getattr(value, "model_dump", None)
    if dump is None or isinstance(value, type):
        raise TypeError(f"a value of type {type(value).__name__} cannot be written")
    # A model reads itself again by the aliases of its fields.
    return dump(by_alias=True)
