"""Operators over values: types, NULL, arrays (behaviour.md 5.1 and 5.2).

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
from functools import partial
from typing import TYPE_CHECKING, Any

from raylay.services.expressions.work import SHORT_STEPS, Meter, charge
from raylay.services.messages.lossless_text import text_of

if TYPE_CHECKING:
    from raylay.services.expressions.patterns import Pattern

Value = Any
"""Values of an expression: None (NULL), bool, int, float, str, or other values of messages: bytes,
lists, dicts."""
Steps = tuple[str | int, ...]
"""The steps to a field: names, and indices of array elements from 0."""

NAN = math.nan
INTEGER_MAX = (1 << 64) - 1
INTEGER_MIN = -(1 << 63)
TEXT_KEY = "#text"
TEXT_CHARACTERS_MAX = 1 << 24
"""Longest text that a function may make; instead of a longer one it returns NULL."""
LONG_ARRAY = 64
"""Number of elements from which on the summary of an array is kept for the next filter."""
LATELY_MAX = 8
NUMBERS = frozenset((bool, int, float))
COMPLEX = frozenset((list, dict, bytes))
"""Types whose values are converted before they are compared."""
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


ELEMENT_STEPS = 200
"""Number of steps (work.py) to look at an element of an array; converting one takes more."""
BYTE_STEPS = 4
"""Number of steps to read a byte as a string."""


def follow(value: Value, steps: Steps, meter: Meter | None = None) -> Value:
    """Returns the value at the end of the steps; None where there is none. A name asks each object
    of an array, and the results form an array in turn."""
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
            if len(value) < LONG_ARRAY:
                charge_all(meter, value)
                value = _of_each(value, step)
            else:
                value = _made_once(meter, value, step, partial(_of_each, name=step))
        else:
            return None
    return value


def _made_once(
    meter: Meter | None, array: list[Value], what: str | int | None, make: Callable[[Any], Any]
) -> Any:
    """Returns the summary of a long array. An evaluation computes and counts it once, even if it
    was kept from another evaluation: the same message must take the same number of steps
    everywhere."""
    if meter is None:
        return _lately.made(array, what, make)
    if meter[2] is None:
        meter[2] = {}
    found = meter[2].get((id(array), what))
    if found is None:
        charge_all(meter, array)
        # The array is kept alive with the summary, so that no other array gets its identity.
        found = meter[2][id(array), what] = array, _lately.made(array, what, make)
    return found[1]


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
    """Returns the elements of an array, with those of inner arrays in their places, at any
    depth."""
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
    """Returns a value that is no list as NULL, a number, or a string that is not empty."""
    if value.__class__ is str:
        return value or None
    if value.__class__ is dict:
        value = value.get(TEXT_KEY)
    if value.__class__ is bytes:
        value = text_of(value)
    if value.__class__ is list or value.__class__ is dict or value == "":
        return None
    return value


def plains(value: Value) -> list[Value]:
    """Returns all elements of an array, or the one value, without NULL."""
    if value.__class__ is not list:
        value = _plain(value)
        return [] if value is None else [value]
    return [each for each in map(_plain, elements(value)) if each is not None]


def scalar(value: Value) -> Value:
    """Returns the one value that functions and arithmetic use: of an array its first element."""
    if value.__class__ is str:
        return value or None
    return _plain(_first(value) if value.__class__ is list else value)


def _first(array: list[Value]) -> Value:
    """Returns the first element that is no array; None where there is none."""
    waiting = [iter(array)]
    while waiting:
        for each in waiting[-1]:
            if each.__class__ is not list:
                return each
            waiting.append(iter(each))
            break
        else:
            waiting.pop()
    return None


def charge_scalar(meter: Meter | None, value: Value) -> None:
    """Counts the steps of `scalar`, which may look through many inner arrays."""
    if value.__class__ is not list or (value and value[0].__class__ is list):
        charge_all(meter, value)
    elif value and value[0].__class__ in COMPLEX:
        charge_all(meter, value[0])


def charge_all(meter: Meter | None, value: Value, times: int = 1) -> None:
    """Counts the steps of looking `times` times at every element of a value, NULL included."""
    if meter is not None and value.__class__ in COMPLEX:
        charge(meter, times * _weight(value))


def _weight(value: Value) -> int:
    """Returns the steps of looking at a value; 0 for a plain one."""
    if value.__class__ is dict:
        value = value.get(TEXT_KEY)
    if value.__class__ is bytes:
        return BYTE_STEPS * len(value)
    if value.__class__ is not list:
        return ELEMENT_STEPS
    found, waiting = 0, [value]
    while waiting:
        array = waiting.pop()
        found += ELEMENT_STEPS * (1 + len(array))
        kinds = set(map(type, array))
        if list in kinds:
            waiting += [each for each in array if each.__class__ is list]
        if bytes in kinds or dict in kinds:
            found += sum([_weight(each) for each in array if each.__class__ in (bytes, dict)])
    return found


def parsed(text: str) -> int | float:
    """Returns the number that a text represents; NaN where it is no number."""
    if _INTEGER.fullmatch(text) is not None:
        return clipped(int(text))
    return float(text) if _FLOAT.fullmatch(text) is not None else NAN


def clipped(value: int) -> int | float:
    """Returns an integer, or a double where 64 bits do not suffice."""
    return value if INTEGER_MIN <= value <= INTEGER_MAX else float(value)


def number(value: Value) -> int | float | None:
    """Returns the value as a number; NaN for a text that is no number."""
    value = scalar(value)
    return parsed(value) if value.__class__ is str else value


def text(value: Value) -> str | None:
    """Returns the value as a string: TRUE is 1, FALSE is 0."""
    value = scalar(value)
    if value is None or value.__class__ is str:
        return value
    return str(int(value)) if value.__class__ is bool else str(value)


def truth(value: Value, meter: Meter | None = None) -> bool | None:
    """Returns the value as a condition: a number other than 0 is true, an array if any element is;
    a text that is no number is false."""
    if value.__class__ is bool:
        return value
    charge_all(meter, value)
    found = plains(value)
    if not found:
        return None
    for each in found:
        if each.__class__ is str:
            each = parsed(each)
        if each and each == each:
            return True
    return False


def is_null(value: Value, meter: Meter | None = None) -> bool:
    """Returns whether the value, of an array its first element, is NULL."""
    charge_scalar(meter, value)
    return scalar(value) is None


def is_nan(value: Value, meter: Meter | None = None) -> bool:
    charge_scalar(meter, value)
    value = scalar(value)
    return value.__class__ is float and value != value


def _compared(name: str) -> Callable[..., bool]:
    asked = _OPERATORS[name]
    if_greater, if_less = asked(1, 0), asked(0, 1)

    def compared(left: Value, right: Value, meter: Meter | None = None) -> bool:
        if left.__class__ in COMPLEX or right.__class__ in COMPLEX:
            return _any_pair(name, _side(left, meter), _side(right, meter))
        if left is None or right is None or left == "" or right == "":
            return False
        if left.__class__ is str:
            if right.__class__ is str:
                if len(left) > SHORT_STEPS:
                    charge(meter, min(len(left), len(right)) // 4)
                return asked(left, right)
            value = parsed(left)
            return asked(value, right) if value == value else if_greater
        if right.__class__ is str:
            value = parsed(right)
            return asked(left, value) if value == value else if_less
        return asked(left, right)

    return compared


class _Bag:
    """The texts, or the numbers, of one side of a comparison, with summaries that are needed
    repeatedly.

    Attributes:
        items: all values.
        kept: the values that are not NaN, which is unequal to everything, itself included, and
            neither less nor greater than anything.
        has_nan: whether there was a NaN.
    """

    __slots__ = ("_least", "_members", "_most", "has_nan", "items", "kept")

    def __init__(self, items: list[Any]) -> None:
        self._members: set[Any] | None = None
        self._least = self._most = None
        self.items = self.kept = items
        self.has_nan = False
        for each in items:
            if each != each:
                self.kept = [other for other in items if other == other]
                self.has_nan = True
                break

    @property
    def members(self) -> set[Any]:
        """Returns the kept values, each once."""
        if self._members is None:
            self._members = set(self.kept)
        return self._members

    @property
    def least(self) -> Any:
        """Returns the smallest kept value; there must be one."""
        if self._least is None:
            self._least = min(self.kept)
        return self._least

    @property
    def most(self) -> Any:
        """Returns the largest kept value; there must be one."""
        if self._most is None:
            self._most = max(self.kept)
        return self._most


class _Side:
    """One side of a comparison.

    Attributes:
        texts, numbers: None: the side has none.
    """

    __slots__ = ("_said", "numbers", "texts")

    def __init__(self, value: Value) -> None:
        self._said: _Bag | None = None
        found = plains(value)
        texts = [each for each in found if each.__class__ is str]
        self.texts = _Bag(texts) if texts else None
        self.numbers: _Bag | None = None
        if len(texts) < len(found):
            numbers = [each for each in found if each.__class__ is not str] if texts else found
            self.numbers = _Bag(numbers)

    @property
    def said(self) -> _Bag:
        """Returns the numbers that the texts represent; NaN for one that is no number."""
        if self._said is None:
            assert self.texts is not None
            self._said = _Bag([parsed(each) for each in self.texts.items])
        return self._said


class _RecentArrays:
    """Summaries of the last long arrays. Many filters read the same arrays of a message, so a
    summary that one of them computed serves the others.

    Invariant: an array that is kept here is alive, so that no other object has its identity. The
    maker of a tree has finished it before a filter sees it.
    """

    __slots__ = ("_made",)

    def __init__(self) -> None:
        self._made: dict[tuple[int, str | int | None], tuple[list[Value], Any]] = {}

    def made(
        self, array: list[Value], what: str | int | None, make: Callable[[list[Value]], Any]
    ) -> Any:
        key = id(array), what
        found = self._made.get(key)
        if found is None or found[0] is not array:
            made = self._made
            if len(made) >= LATELY_MAX:
                del made[next(iter(made))]
            found = made[key] = array, make(array)
        return found[1]


_lately = _RecentArrays()


def _side(value: Value, meter: Meter | None) -> _Side:
    if value.__class__ is list and len(value) >= LONG_ARRAY:
        side: _Side = _made_once(meter, value, None, _Side)
        return side
    charge_all(meter, value)
    return _Side(value)


def _any_pair(name: str, left: _Side, right: _Side) -> bool:
    """Returns whether any element of one side compares so with any of the other side."""
    texts, numbers, texts_2, numbers_2 = left.texts, left.numbers, right.texts, right.numbers
    return bool(
        (texts and texts_2 and _exists(name, texts, texts_2))
        or (numbers and numbers_2 and _exists(name, numbers, numbers_2))
        or (texts and numbers_2 and _any_text(name, left, numbers_2))
        or (numbers and texts_2 and _any_text(_MIRRORED[name], right, numbers))
    )


def _any_text(name: str, texts: _Side, numbers: _Bag) -> bool:
    """Returns whether any text compares so with any number: by the number that it represents,
    otherwise as greater."""
    said = texts.said
    return _exists(name, said, numbers) or (said.has_nan and _OPERATORS[name](1, 0))


def _exists(name: str, left: _Bag, right: _Bag) -> bool:
    if len(left.items) == len(right.items) == 1:
        return _OPERATORS[name](left.items[0], right.items[0])
    if name == "!=" and (left.has_nan or right.has_nan):
        return True
    if not left.kept or not right.kept:
        return False
    if name == "=":
        small, large = (left, right) if len(left.kept) <= len(right.kept) else (right, left)
        return not large.members.isdisjoint(small.kept)
    if name == "!=":
        return len(left.members) > 1 or left.members != right.members
    if name in ("<", "<="):
        return _OPERATORS[name](left.least, right.most)
    return _OPERATORS[name](left.most, right.least)


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


def between(value: Value, low: Value, high: Value, meter: Meter | None = None) -> bool:
    """Returns whether any element lies between two values, both included."""
    if value.__class__ is list:
        charge_all(meter, value, 3)
        return any(
            greater_equal(each, low, meter) and less_equal(each, high, meter)
            for each in plains(value)
        )
    return greater_equal(value, low, meter) and less_equal(value, high, meter)


def begins(value: Value, options: list[Value], meter: Meter | None = None) -> bool:
    """Returns whether any element begins with one of the texts."""
    return _any_affix(str.startswith, value, options, meter)


def ends(value: Value, options: list[Value], meter: Meter | None = None) -> bool:
    """Returns whether any element ends with one of the texts."""
    return _any_affix(str.endswith, value, options, meter)


def _any_affix(
    has: Callable[[str, tuple[str, ...]], bool],
    value: Value,
    options: list[Value],
    meter: Meter | None,
) -> bool:
    for option in options:
        charge_scalar(meter, option)
    wanted = tuple(filter(None, map(text, options)))
    charge_all(meter, value)
    found = plains(value)
    charge(meter, 20 * len(wanted) * len(found))
    if wanted and max(map(len, wanted)) > SHORT_STEPS:
        charge(meter, sum(map(len, wanted)) // 4 * len(found))
    return bool(wanted) and any(has(text(each) or "", wanted) for each in found)


def like(value: Value, pattern: Pattern, meter: Meter | None = None) -> bool:
    charge_all(meter, value, 2)
    texts = [text(each) or "" for each in plains(value)]
    charge(meter, pattern.weight * sum(map(len, texts)))
    return any(map(pattern.matches, texts))


def _arithmetic(
    name: str, asked: Callable[[Any, Any], int | float]
) -> Callable[..., int | float | None]:
    def computed(left: Value, right: Value, meter: Meter | None = None) -> int | float | None:
        charge_scalar(meter, left)
        charge_scalar(meter, right)
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


def negative(value: Value, meter: Meter | None = None) -> int | float | None:
    charge_scalar(meter, value)
    found = number(value)
    if found is None:
        return None
    found = -found
    return clipped(found) if found.__class__ is int else found
