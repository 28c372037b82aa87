"""The bodies of messages as values: parsed by their message type, and into the type that a
subscription was given.

A decoder is made once for a subscription. A body that does not fit its type is an error of that one
message, raised where the application asks for the value; the subscription goes on.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import cache
from typing import TYPE_CHECKING, Any, NamedTuple, get_args

from raylay.services.client.fabric_types import NO_TYPES, FabricTypes
from raylay.services.errors import LocalProtocolError
from raylay.services.messages.types.trees import Tree

if TYPE_CHECKING:
    from typing_extensions import TypeVar

    Value = TypeVar("Value", default=Any)
else:
    # The default of a type variable is for tools that read types only.
    from typing import TypeVar

    Value = TypeVar("Value")

_PATH = re.compile(r" - at `(\$[^`]*)`$")
"""The end of a message of msgspec that names a field."""


class BodyProblem(NamedTuple):
    """The reason why a body is no value of a type.

    Attributes:
        path: the field, as `$.lines[0].price`; `$`: the whole body.
        text: the problem with it, such as "Expected `int`, got `str`".
    """

    path: str
    text: str


class BodyDecoder:
    """Parses the bodies of one subscription's messages.

    Attributes:
        decode: parses a JSON body. Raises whatever its library raises; see `body_problem`.
        convert: makes the value from the fields of a body of another message type; the second
            argument says whether all values are texts, which are read as numbers where the type has
            numbers. Raises as `decode`.
        type_name: the name of the type for people.
    """

    __slots__ = ("convert", "decode", "type_name")

    def __init__(
        self,
        decode: Callable[[bytes], Any],
        convert: Callable[[Tree, bool], Any],
        type_name: str,
    ) -> None:
        self.decode = decode
        self.convert = convert
        self.type_name = type_name


def body_decoder(body_type: Any, where: str) -> BodyDecoder | None:
    """Returns the decoder for a type: a msgspec Struct, a dataclass, a TypedDict, a pydantic model,
    or a built-in type or a container of these; None where no type is given.

    Args:
        where: the subscription or queue, for errors.

    Raises:
        LocalProtocolError: the type is none that JSON can be parsed into.
    """
    if body_type is None:
        return None
    name = getattr(body_type, "__name__", "") if isinstance(body_type, type) else ""
    name = name or str(body_type)
    try:
        read = _pydantic(body_type) if _is_pydantic(body_type) else _msgspec(body_type)
    except Exception as error:  # whatever a library says of a type that it cannot take
        raise LocalProtocolError(
            f"{where}: JSON cannot be parsed into the type {name}: {error}. Give a msgspec Struct, "
            "a dataclass, a TypedDict or a pydantic model"
        ) from error
    return BodyDecoder(*read, name)


@cache
def any_json() -> BodyDecoder:
    """Returns the decoder of subscriptions without a type."""
    # Most programs read bytes: nothing is imported for them.
    import msgspec

    return BodyDecoder(msgspec.json.Decoder().decode, _unchanged, "JSON")


def _unchanged(tree: Tree, is_text: bool) -> Tree:
    return tree


def decode_value(
    decoder: BodyDecoder | None, body: bytes, message_type: str, types: FabricTypes = NO_TYPES
) -> Any:
    """Returns the value of a body, by its message type.

    Args:
        decoder: the decoder of the subscription; None: the subscription has no type.
        types: the message types that the fabric defines.

    Raises:
        Exception: an error of the library that reads the message type (`body_problem`).
    """
    own = types.find(message_type)
    if own is not None:
        tree: Any = own.parse(body)
    elif message_type == "json":
        return (decoder or any_json()).decode(body)
    elif message_type == "binary":
        tree = body
    else:
        from raylay.services.messages.types.registry import BUILT_IN
        from raylay.services.messages.types.registry import message_type as built_in

        if message_type not in BUILT_IN:
            known = ", ".join((*sorted(BUILT_IN), *types.names()))
            raise ValueError(
                f"the fabric defines no type {message_type}, and there are {known}: take `body`"
            )
        tree = built_in(message_type).parse(body)
    return tree if decoder is None else decoder.convert(tree, types.are_texts(message_type))


def _is_pydantic(body_type: Any) -> bool:
    """Returns whether a type is a model or a dataclass of pydantic, or a container of one."""
    if getattr(body_type, "__pydantic_validator__", None) is not None:
        return True
    return any(_is_pydantic(each) for each in get_args(body_type))


_Reading = tuple[Callable[[bytes], Any], Callable[[Any, bool], Any]]


def _pydantic(body_type: Any) -> _Reading:
    from pydantic import TypeAdapter

    adapter = TypeAdapter(body_type)
    return adapter.validate_json, lambda tree, is_text: adapter.validate_python(tree)


def _msgspec(body_type: Any) -> _Reading:
    import msgspec
    from msgspec.inspect import CustomType, type_info

    if isinstance(type_info(body_type), CustomType):
        # Every body would be refused.
        raise TypeError("the class declares no fields")

    def convert(tree: Any, is_text: bool) -> Any:
        return msgspec.convert(tree, body_type, strict=not is_text)

    return msgspec.json.Decoder(body_type).decode, convert


def body_problem(error: Exception, body: bytes) -> BodyProblem:
    """Returns the reason of an error that `BodyDecoder.decode` raised for a body."""
    if not body:
        return BodyProblem("$", "the body is empty")
    errors = getattr(error, "errors", None)
    if callable(errors):
        first = errors(include_url=False, include_input=False, include_context=False)[0]
        steps = (f"[{at}]" if isinstance(at, int) else f".{at}" for at in first["loc"])
        return BodyProblem("$" + "".join(steps), str(first["msg"]))
    text = str(error) or type(error).__name__
    found = _PATH.search(text)
    if found is None:
        return BodyProblem("$", text)
    return BodyProblem(found[1], text[: found.start()])
