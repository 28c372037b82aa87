"""Checks what the code of an installed message type returns, so that the rest may rely on it."""

from __future__ import annotations

from typing import Any

from raylay.services.messages.types.trees import Tree, TreeTooDeep

INTEGER_BITS_MAX = 14_280
"""Python writes no numbers of more than 4,300 digits."""


class WrongResult(Exception):
    """A type returned something else than it has to."""


def checked_tree(found: Any, depth_max: int) -> Tree:
    """Returns a tree of the same values, each of exactly one of the types that a tree has.

    Raises:
        WrongResult: it is no tree.
        TreeTooDeep: it is nested too deeply, perhaps because it contains itself.
    """
    if not isinstance(found, dict):
        raise WrongResult(f"its fields came as {type(found).__name__}, not as a dict")
    return _fields(found, depth_max)


def checked_body(found: Any) -> bytes:
    """Returns the body that a type wrote.

    Raises:
        WrongResult: it is none.
    """
    if not isinstance(found, bytes):
        raise WrongResult(f"its body came as {type(found).__name__}, not as bytes")
    return bytes(found)


def _fields(found: dict[Any, Any], depth_max: int) -> Tree:
    fields: Tree = {}
    # The method of `dict` itself is called, because a subclass may have its own.
    for name, value in dict.items(found):
        if not isinstance(name, str):
            raise WrongResult(f"a field has a name of type {type(name).__name__}, not of str")
        fields[str(name)] = _value(value, depth_max - 1)
    return fields


def _value(value: Any, depth_max: int) -> Any:
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, str):
        return str(value)
    if isinstance(value, float):
        return float(value)
    if isinstance(value, bytes):
        return bytes(value)
    if isinstance(value, int):
        if value.bit_length() > INTEGER_BITS_MAX:
            raise WrongResult("a number has more than some 4,300 digits")
        return int(value)
    if isinstance(value, dict | list | tuple):
        if depth_max <= 0:
            raise TreeTooDeep
        if isinstance(value, dict):
            return _fields(value, depth_max)
        return [_value(each, depth_max - 1) for each in value]
    raise WrongResult(f"a value is of type {type(value).__name__}, which no field can have")
