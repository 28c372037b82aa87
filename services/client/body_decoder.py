"""The bodies of messages as values: JSON, parsed into the type that a subscription was given.

A decoder is made once for a subscription. A body that does not fit its type is an error of that one
message, raised where the application asks for the value; the subscription goes on.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import cache
from typing import TYPE_CHECKING, Any, NamedTuple, get_args

from raylay.services.errors import LocalProtocolError

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
        decode: parses a body. Raises whatever its library raises; see `body_problem`.
        type_name: the name of the type for people.
    """

    __slots__ = ("decode", "type_name")

    def __init__(self, decode: Callable[[bytes], Any], type_name: str) -> None:
        self.decode = decode
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
        decode = _pydantic(body_type) if _is_pydantic(body_type) else _msgspec(body_type)
    except Exception as error:  # whatever a library says of a type that it cannot take
        raise LocalProtocolError(
            f"{where}: JSON cannot be parsed into the type {name}: {error}. Give a msgspec Struct, "
            "a dataclass, a TypedDict or a pydantic model"
        ) from error
    return BodyDecoder(decode, name)


@cache
def any_json() -> BodyDecoder:
    """Returns the decoder of subscriptions without a type."""
    # Most programs read bytes: nothing is imported for them.
    import msgspec

    return BodyDecoder(msgspec.json.Decoder().decode, "JSON")


def _is_pydantic(body_type: Any) -> bool:
    """Returns whether a type is a model or a dataclass of pydantic, or a container of one."""
    if getattr(body_type, "__pydantic_validator__", None) is not None:
        return True
    return any(_is_pydantic(each) for each in get_args(body_type))


def _pydantic(body_type: Any) -> Callable[[bytes], Any]:
    from pydantic import TypeAdapter

    return TypeAdapter(body_type).validate_json


def _msgspec(body_type: Any) -> Callable[[bytes], Any]:
    import msgspec
    from msgspec.inspect import CustomType, type_info

    if isinstance(type_info(body_type), CustomType):
        # Every body would be refused.
        raise TypeError("the class declares no fields")
    return msgspec.json.Decoder(body_type).decode


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
