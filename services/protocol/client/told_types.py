"""The message types that a fabric defines, as an instance tells its clients: the body of the answer
to a logon.

    [[name, kind, options], …]        options: nil for a type that is not told as a whole
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import msgpack

from raylay.services.messages.types.definitions import KIND_NAMES, TypeDefinition

TOLD_BYTES_MAX = 64 * 1024
"""Most bytes of all definitions together, because the answer to each logon carries them."""


class ToldType(NamedTuple):
    """A message type in the answer to a logon.

    Attributes:
        options: the options of its kind; None: the answer leaves them out, because the kind is an
            entry point of the instance, or because they are too large.
    """

    name: str
    kind: str
    options: dict[str, Any] | None

    @property
    def definition(self) -> TypeDefinition | None:
        """Returns the definition; None: the answer leaves the options out."""
        if self.options is None:
            return None
        return TypeDefinition(self.name, self.kind, self.options)


def pack_types(definitions: Sequence[TypeDefinition]) -> bytes:
    """Encodes definitions; without definitions, no bytes. From the definition on that exceeds
    `TOLD_BYTES_MAX`, the options are left out."""
    told: list[ToldType] = []
    size = 0
    for each in definitions:
        options = dict(each.options) if each.kind in KIND_NAMES else None
        size += len(msgpack.packb(options)) + len(each.name.encode()) + len(each.kind.encode())
        told.append(ToldType(each.name, each.kind, options if size <= TOLD_BYTES_MAX else None))
    packed: bytes = msgpack.packb(told) if told else b""
    return packed


def read_types(body: bytes) -> tuple[ToldType, ...]:
    """Decodes what `pack_types` encodes.

    Raises:
        ValueError: the body is not of that form.
    """
    if not body:
        return ()
    try:
        found = msgpack.unpackb(body)
    except Exception as error:  # msgpack's errors have no other class in common
        raise ValueError(f"the message types are no msgpack: {error}") from None
    if not isinstance(found, list) or not all(_is_told(each) for each in found):
        raise ValueError("the message types are not told as the protocol has them")
    return tuple(ToldType(*each) for each in found)


def _is_told(value: Any) -> bool:
    if not isinstance(value, list) or len(value) != 3:
        return False
    name, kind, options = value
    return (
        isinstance(name, str) and isinstance(kind, str) and isinstance(options, dict | type(None))
    )
