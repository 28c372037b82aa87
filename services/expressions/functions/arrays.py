"""Functions that make one value from an array. Any other value counts as an array of one
element."""

from __future__ import annotations

from raylay.services.expressions.functions.registry import FunctionGroup
from raylay.services.expressions.values import TEXT_CHARACTERS_MAX, Value, number, parsed, text

ARRAYS = FunctionGroup()


def _ordered(array: list[Value]) -> list[Value]:
    """Returns the elements without NULL, in the order of the language: texts by their bytes; in
    comparisons with numbers, texts that are no numbers are greatest."""
    found = [each for each in array if each is not None]
    if all(each.__class__ is str for each in found):
        return sorted(found)

    def key(value: Value) -> tuple[bool, float, str]:
        if value.__class__ is not str:
            return False, value, ""
        said = parsed(value)
        return (False, said, "") if said == said else (True, 0, value)

    return sorted(found, key=key)


@ARRAYS.add("ARRAY_COUNT", "array", takes_null=True)
def array_count(array: list[Value]) -> int:
    """Returns the number of elements."""
    return len(array)


@ARRAYS.add("ARRAY_MAX", "array")
def array_max(array: list[Value]) -> Value:
    """Returns the greatest element."""
    found = _ordered(array)
    return found[-1] if found else None


@ARRAYS.add("ARRAY_MIN", "array")
def array_min(array: list[Value]) -> Value:
    """Returns the least element."""
    found = _ordered(array)
    return found[0] if found else None


@ARRAYS.add("ARRAY_SUM", "array")
def array_sum(array: list[Value]) -> Value:
    """Returns the sum of all elements."""
    found = [said for each in array if (said := number(each)) is not None]
    return sum(found) if found else None


@ARRAYS.add("ARRAY_TO_STRING", "array text text", takes_null=True)
def array_to_string(array: list[Value], between: str | None, null: str | None) -> str | None:
    """Returns the elements as one text, with `between` between them and `null` for each NULL."""
    shown = [null or "" if each is None else text(each) or "" for each in array]
    size = sum(map(len, shown)) + len(between or "") * len(shown)
    return (between or "").join(shown) if size <= TEXT_CHARACTERS_MAX else None
