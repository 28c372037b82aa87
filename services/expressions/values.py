"""What operators do with values: types, NULL, arrays (behaviour.md 5.1 and 5.2).

A value of a message is None (NULL, as is an empty string), bool, int, float, str, bytes (read as a
string), a list (an array), or a dict: an object, which is NULL itself unless it has a `#text`.

Comparisons look at every element of an array and are true or false, never NULL: with NULL they are
false. Arithmetic and functions take the first element, and NULL makes NULL. Every function here
takes time in proportion to its values: to compare two arrays looks at no pairs.
"""

from __future__ import annotations

import math
import operator
import re
from collections.abc import Callable
from typing import Any

Value = Any
"""None (NULL), bool, int, float, str, or what a message has besides: bytes, lists, dicts."""
Steps = tuple[str | int, ...]
"""The way to a field: names, and the numbers of array elements from 0."""

NAN = math.nan
INTEGER_MAX = (1 << 64) - 1
INTEGER_MIN = -(1 << 63)
TEXT_KEY = "#text"
TEXT_CHARACTERS_MAX = 1 << 24
"""A text that a function would make longer than this is NULL."""
NUMBERS = frozenset((bool, int, float))
COMPLEX = frozenset((list, dict, bytes))
"""Types whose values are not what they are compared as."""
NOT_NUMBERS = frozenset((str, list, dict, bytes))

_INTEGER = re.compile(r"[+-]?\d{1,20}", re.ASCII)
_FLOAT = re.compile(
    r"[+-]?(?:\d{1,400}(?:\.\d{0,400})?|\.\d{1,400})(?:[eE][+-]?\d{1,9})?", re.ASCII
)
_OPERATORS: dict[str, Callable[[Any, Any], bool]] = {
    "=": operator.eq,
    "!=": operator.ne,
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
}
_MIRRORED = {"=": "=", "!=": "!=", "<": ">", "<=": ">=", ">": "<", ">=": "<="}


def follow(value: Value, steps: Steps) -> Value:
    """The field at the end of the way. A name asks each object of an array: what they have makes an
    array in turn. None where there is nothing."""
    for step in steps:
        if value is None:
            return None
        if step.__class__ is int:
            if value.__class__ is list:
                value = value[step] if step < len(value) else None
            elif step:
                return None
        elif value.__class__ is dict:
            value = value.get(step)
        elif value.__class__ is list:
            value = _of_each(value, step)
        else:
            return None
    return value


def _of_each(array: list[Value], name: str | int) -> Value:
    found: list[Value] = []
    for each in elements(array):
        if each.__class__ is dict:
            value = each.get(name)
            if value.__class__ is list:
                found += value
            elif value is not None:
                found.append(value)
    return found or None


def elements(array: list[Value]) -> list[Value]:
    """The elements of an array, those of arrays in it in their places, however deep."""
    if list not in map(type, array):
        return array
    found: list[Value] = []
    waiting = [iter(array)]
    while waiting:
        for each in waiting[-1]:
            if each.__class__ is list:
                waiting.append(iter(each))
                break
            found.append(each)
        else:
            waiting.pop()
    return found


def _plain(value: Value) -> Value:
    """A value that is no list as a NULL, a number or a string that is not empty."""
    if value.__class__ is str:
        return value or None
    if value.__class__ is dict:
        value = value.get(TEXT_KEY)
    if value.__class__ is bytes:
        value = value.decode("utf-8", "surrogateescape")
    if value.__class__ is list or value.__class__ is dict or value == "":
        return None
    return value


def plains(value: Value) -> list[Value]:
    """All elements of an array, or the one value, without NULL."""
    if value.__class__ is not list:
        value = _plain(value)
        return [] if value is None else [value]
    return [each for each in map(_plain, elements(value)) if each is not None]


def scalar(value: Value) -> Value:
    """The one value that functions and arithmetic take: of an array its first element."""
    if value.__class__ is str:
        return value or None
    if value.__class__ is list:
        for each in elements(value):
            return _plain(each)
        return None
    return _plain(value)


def parsed(text: str) -> int | float:
    """The number that a text says, NaN where it says none."""
    if _INTEGER.fullmatch(text) is not None:
        return clipped(int(text))
    return float(text) if _FLOAT.fullmatch(text) is not None else NAN


def clipped(value: int) -> int | float:
    """An integer; a double where 64 bits do not hold it."""
    return value if INTEGER_MIN <= value <= INTEGER_MAX else float(value)


def number(value: Value) -> int | float | None:
    """The value as a number; NaN of a text that says none."""
    value = scalar(value)
    return parsed(value) if value.__class__ is str else value


def text(value: Value) -> str | None:
    """The value as a string: TRUE is 1, FALSE is 0."""
    value = scalar(value)
    if value is None or value.__class__ is str:
        return value
    return str(int(value)) if value.__class__ is bool else str(value)


def truth(value: Value) -> bool | None:
    """The value as a condition: a number other than 0 is true, of an array any element; a text that
    is no number is false."""
    if value.__class__ is bool:
        return value
    found = plains(value)
    if not found:
        return None
    for each in found:
        if each.__class__ is str:
            each = parsed(each)
        if each and each == each:
            return True
    return False


def is_null(value: Value) -> bool:
    """Whether the value, of an array its first element, is NULL."""
    return scalar(value) is None


def is_nan(value: Value) -> bool:
    """Whether the value is a number that is none."""
    value = scalar(value)
    return value.__class__ is float and value != value


def _compared(name: str) -> Callable[[Value, Value], bool]:
    asked = _OPERATORS[name]
    if_greater, if_less = asked(1, 0), asked(0, 1)

    def compared(left: Value, right: Value) -> bool:
        if left.__class__ in COMPLEX or right.__class__ in COMPLEX:
            return _any_pair(name, plains(left), plains(right))
        if left is None or right is None or left == "" or right == "":
            return False
        if left.__class__ is str:
            if right.__class__ is str:
                return asked(left, right)
            value = parsed(left)
            return asked(value, right) if value == value else if_greater
        if right.__class__ is str:
            value = parsed(right)
            return asked(left, value) if value == value else if_less
        return asked(left, right)

    return compared


def _any_pair(name: str, left: list[Value], right: list[Value]) -> bool:
    """Whether any element compares so with any of the other side."""
    texts, numbers = _parted(left)
    texts_2, numbers_2 = _parted(right)
    return (
        _exists(name, texts, texts_2)
        or _exists(name, numbers, numbers_2)
        or bool(numbers_2 and texts and _any_text(name, texts, numbers_2))
        or bool(numbers and texts_2 and _any_text(_MIRRORED[name], texts_2, numbers))
    )


def _parted(values: list[Value]) -> tuple[list[str], list[int | float]]:
    """The texts and the numbers."""
    texts = [each for each in values if each.__class__ is str]
    return texts, [each for each in values if each.__class__ is not str]


def _any_text(name: str, texts: list[str], numbers: list[int | float]) -> bool:
    """Whether any text compares so with any number: by the number that it says, else as greater."""
    said = [parsed(each) for each in texts]
    read = [each for each in said if each == each]
    return _exists(name, read, numbers) or (len(read) < len(said) and _OPERATORS[name](1, 0))


def _exists(name: str, left: list[Any], right: list[Any]) -> bool:
    if not left or not right:
        return False
    if len(left) == len(right) == 1:
        return _OPERATORS[name](left[0], right[0])
    # NaN is unequal to everything, itself included, and neither less nor greater than anything.
    a, b = [x for x in left if x == x], [x for x in right if x == x]
    if name == "!=" and (len(a) < len(left) or len(b) < len(right)):
        return True
    if not a or not b:
        return False
    if name == "=":
        return not set(a).isdisjoint(b)
    if name == "!=":
        return len({*a, *b}) > 1
    if name in ("<", "<="):
        return _OPERATORS[name](min(a), max(b))
    return _OPERATORS[name](max(a), min(b))


equal = _compared("=")
unequal = _compared("!=")
less = _compared("<")
less_equal = _compared("<=")
greater = _compared(">")
greater_equal = _compared(">=")
COMPARISONS = {
    "=": equal,
    "!=": unequal,
    "<": less,
    "<=": less_equal,
    ">": greater,
    ">=": greater_equal,
}


def between(value: Value, low: Value, high: Value) -> bool:
    """Whether any element lies between the two, both included."""
    if value.__class__ is list:
        return any(greater_equal(each, low) and less_equal(each, high) for each in plains(value))
    return greater_equal(value, low) and less_equal(value, high)


def begins(value: Value, options: list[Value]) -> bool:
    """Whether any element begins with one of the texts."""
    wanted = tuple(filter(None, map(text, options)))
    return bool(wanted) and any((text(each) or "").startswith(wanted) for each in plains(value))


def ends(value: Value, options: list[Value]) -> bool:
    """Whether any element ends with one of the texts."""
    wanted = tuple(filter(None, map(text, options)))
    return bool(wanted) and any((text(each) or "").endswith(wanted) for each in plains(value))


def like(value: Value, matches: Callable[[str], bool]) -> bool:
    """Whether the pattern matches in any element."""
    return any(matches(text(each) or "") for each in plains(value))


def _arithmetic(
    name: str, asked: Callable[[Any, Any], int | float]
) -> Callable[[Value, Value], int | float | None]:
    def computed(left: Value, right: Value) -> int | float | None:
        a, b = number(left), number(right)
        if a is None or b is None:
            return None
        try:
            found = asked(a, b)
        except ValueError:
            return NAN
        except OverflowError:
            return math.inf
        return clipped(found) if found.__class__ is int else found

    computed.__name__ = name
    return computed


def _quotient(a: int | float, b: int | float) -> int | float:
    if a.__class__ is not float and b.__class__ is not float:
        if not b:
            return NAN
        found = abs(a) // abs(b)
        return found if (a < 0) == (b < 0) else -found
    if b:
        return a / b
    return NAN if not a or a != a else math.copysign(math.inf, a) * math.copysign(1, b)


def _remainder(a: int | float, b: int | float) -> int | float:
    if a.__class__ is not float and b.__class__ is not float:
        found = abs(a) % abs(b) if b else NAN
        return -found if a < 0 else found
    return math.fmod(a, b)


ARITHMETIC = {
    "+": _arithmetic("plus", operator.add),
    "-": _arithmetic("minus", operator.sub),
    "*": _arithmetic("times", operator.mul),
    "/": _arithmetic("divided", _quotient),
    "%": _arithmetic("modulo", _remainder),
}


def negative(value: Value) -> int | float | None:
    """The value with the other sign."""
    found = number(value)
    if found is None:
        return None
    found = -found
    return clipped(found) if found.__class__ is int else found
