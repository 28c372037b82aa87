"""The message types by name: the built-in ones, and those of a configuration."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache

from raylay.services.errors import MessageTypeError
from raylay.services.messages.types.base import MessageType
from raylay.services.messages.types.binary import Binary
from raylay.services.messages.types.bson import Bson
from raylay.services.messages.types.fix import Fix, Nvfix
from raylay.services.messages.types.json import Json
from raylay.services.messages.types.msgpack import Msgpack
from raylay.services.messages.types.xml import Xml

BUILT_IN: dict[str, Callable[[], MessageType]] = {
    each.kind: each
    for each in (
        Json,
        Fix,
        Nvfix,
        Xml,
        Bson,
        Msgpack,
        Binary,
    )
}


@cache
def message_type(name: str) -> MessageType:
    """A built-in type.

    Raises:
        MessageTypeError: there is none of this name.
    """
    if name not in BUILT_IN:
        raise MessageTypeError(
            f"no message type is called {name!r}, so nothing can be read from such messages: "
            f"the built-in ones are {', '.join(sorted(BUILT_IN))}",
            name,
        )
    return BUILT_IN[name]()
