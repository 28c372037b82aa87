"""Numeric functions. Where a function has no value the result is NaN; angles are in radians."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable
from decimal import ROUND_HALF_UP, Decimal
from typing import Any

from raylay.services.expressions.functions.registry import EvalContext, Function, FunctionGroup
from raylay.services.expressions.values import NAN, Value
from raylay.services.messages.lossless_text import bytes_of

Number = int | float

NUMERIC = FunctionGroup()
PLACES_MAX = 30

_PLAIN: dict[str, Callable[[Any], Number]] = {
    "ABS": abs,
    "EXP": math.exp,
    "RADIANS": math.radians,
    "DEGREES": math.degrees,
    "ACOS": math.acos,
    "ASIN": math.asin,
    "ATAN": math.atan,
    "COS": math.cos,
    "COSH": math.cosh,
    "SIN": math.sin,
    "SINH": math.sinh,
    "TAN": math.tan,
    "TANH": math.tanh,
    "SQRT": math.sqrt,
}
for _name, _call in _PLAIN.items():
    NUMERIC[_name] = Function(_name, _call, ("number",), 1)


@NUMERIC.add("GREATEST", "number...")
def greatest(*numbers: Number) -> Number:
    """Returns the greatest argument; NaN if one of them is NaN."""
    return NAN if any(number != number for number in numbers) else max(numbers)


@NUMERIC.add("LEAST", "number...")
def least(*numbers: Number) -> Number:
    """Returns the least argument; NaN if one of them is NaN."""
    return NAN if any(number != number for number in numbers) else min(numbers)


@NUMERIC.add("CEILING", "number")
def ceiling(value: Number) -> Number:
    """Returns the next whole number that is not less."""
    return math.ceil(value) if math.isfinite(value) else value


@NUMERIC.add("FLOOR", "number")
def floor(value: Number) -> Number:
    """Returns the next whole number that is not greater."""
    return math.floor(value) if math.isfinite(value) else value


def _logarithm(value: Number, log: Callable[[Number], float]) -> Number:
    return log(value) if value else -math.inf


@NUMERIC.add("LN", "number")
def ln(value: Number) -> Number:
    """Returns the natural logarithm."""
    return _logarithm(value, math.log)


@NUMERIC.add("LOG2", "number")
def log2(value: Number) -> Number:
    """Returns the logarithm to base 2."""
    return _logarithm(value, math.log2)


@NUMERIC.add("LOG10", "number")
def log10(value: Number) -> Number:
    """Returns the logarithm to base 10."""
    return _logarithm(value, math.log10)


@NUMERIC.add("POWER", "number number")
def power(base: Number, exponent: Number) -> Number:
    """Returns the base to the power of the exponent, as a double."""
    return math.pow(base, exponent)


@NUMERIC.add("ATAN2", "number number")
def atan2(y: Number, x: Number) -> Number:
    """Returns the angle of the point (x, y)."""
    return math.atan2(y, x)


@NUMERIC.add("COT", "number")
def cot(value: Number) -> Number:
    """Returns the cotangent."""
    found = math.tan(value)
    return 1 / found if found else math.inf


@NUMERIC.add("SIGN", "number")
def sign(value: Number) -> Number:
    """Returns -1, 0 or 1."""
    return value if value != value else (value > 0) - (value < 0)


@NUMERIC.add("ROUND", "number [integer")
def round_half_up(value: Number, places: int = 0) -> Number:
    """Rounds to a number of places after the decimal point, or before it if negative; a half is
    rounded away from 0."""
    if not math.isfinite(value) or abs(places) > PLACES_MAX:
        return value if math.isfinite(value) and places > 0 else NAN if value != value else value
    if isinstance(value, int) and places >= 0:
        return value
    # More digits than a double has, for those before the decimal point.
    unit = Decimal(1).scaleb(-places)
    found = (Decimal(repr(value)) / unit).to_integral_value(ROUND_HALF_UP) * unit
    return int(found) if places <= 0 else float(found)


@NUMERIC.add("WIDTH_BUCKET", "number number number integer")
def width_bucket(value: Number, low: Number, high: Number, buckets: int) -> Number | None:
    """Returns the number, from 1, of the bucket of equal width into which the value falls; 0 below
    all, one more above all."""
    if buckets <= 0 or not low < high or value != value:
        return None
    if value < low:
        return 0
    return buckets + 1 if value >= high else int((value - low) * buckets / (high - low)) + 1


@NUMERIC.add("MD5", "text")
def md5(text: str) -> str:
    """Returns the MD5 digest, in hexadecimal."""
    return hashlib.md5(bytes_of(text), usedforsecurity=False).hexdigest()


@NUMERIC.add("UUID7", needs="chance", is_deterministic=False)
def uuid7(around: EvalContext) -> Value:
    """Returns a new UUID of version 7, which begins with the time in milliseconds (RFC 9562,
    5.7)."""
    if around.now_s is None or around.random_bytes is None:
        return None
    chance = int.from_bytes(around.random_bytes(10))
    value = (int(around.now_s * 1000) & ((1 << 48) - 1)) << 80 | chance
    value = value & ~(0xF << 76) | 7 << 76
    value = value & ~(0x3 << 62) | 2 << 62
    digits = f"{value:032x}"
    return "-".join((digits[:8], digits[8:12], digits[12:16], digits[16:20], digits[20:]))
