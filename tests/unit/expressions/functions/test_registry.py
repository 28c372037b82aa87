"""How functions take their arguments, and that none of them ends who asks."""

from __future__ import annotations

import pytest
from support.expressions_given import NAN

from raylay.services.errors import ExpressionError
from raylay.services.expressions.compiler import compiled_value
from raylay.services.expressions.expression import expression
from raylay.services.expressions.functions import BUILT_IN, LOADABLE
from raylay.services.expressions.functions.registry import NO_CONTEXT, of_python, signature
from raylay.services.expressions.parser import parse

NAMES = """
INSTR INSTR_I STREQUAL_I LENGTH CONCAT UPPER LOWER REPLACE REGEXP_REPLACE REGEXP_MATCH SUBSTR TRIM
LTRIM RTRIM LEFT RIGHT REVERSE UNIX_TIMESTAMP STRFTIME STRPTIME ARRAY_COUNT ARRAY_MAX ARRAY_MIN
ARRAY_SUM ARRAY_TO_STRING ABS GREATEST LEAST CEILING FLOOR EXP LN LOG2 LOG10 POWER SQRT MD5
RADIANS DEGREES SIGN ROUND UUID7 WIDTH_BUCKET ACOS ASIN ATAN ATAN2 COS COSH COT SIN SINH TAN TANH
CRC32 CRC64 GEO_DISTANCE MESSAGE_SIZE CORRELATION_ID LAST_UPDATED TOPIC_NAME BOOKMARK LAST_LEASED
LEASE_COUNT SOW_KEY SOW_KEY_HASH LAST_READ CLIENT_NAME USER REMOTE_ADDRESS CLIENT_VERSION
CONNECTION_NAME COALESCE AMPS_INSTANCE_NAME AMPS_GROUP_NAME TRUE_VALUE FALSE_VALUE NAN_VALUE
CHAR_VALUE SUM AVG COUNT MIN MAX ANY COUNT_DISTINCT GROUP_CONCAT STDDEV_POP STDDEV_SAMP UNIQUE
"""
REFERENCE = NAMES.split()


@pytest.mark.covers("Filters by content", "every function of the reference is known")
def test_every_function_of_the_reference_is_there() -> None:
    assert sorted(BUILT_IN) == sorted(REFERENCE)
    assert not LOADABLE & BUILT_IN.keys()


@pytest.mark.covers("Filters by content", "every function of the reference is known")
@pytest.mark.parametrize("name", [name for name in REFERENCE if BUILT_IN[name].is_aggregate])
def test_aggregates_are_for_views(name: str) -> None:
    with pytest.raises(ExpressionError, match="only views"):
        expression(f"{name}(/a) > 1")


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ("", ((), 0, False)),
        ("text number", (("text", "number"), 2, False)),
        ("text [integer", (("text", "integer"), 1, False)),
        ("value...", (("value",), 1, True)),
    ],
)
def test_signatures(text: str, wanted: object) -> None:
    assert signature(text) == wanted


def raising(error: Exception) -> object:
    raise error


@pytest.mark.parametrize(
    ("error", "wanted"),
    [
        (ValueError(), NAN),
        (ZeroDivisionError(), NAN),
        (OverflowError(), float("inf")),
        (RuntimeError("mine"), None),
    ],
)
def test_an_installed_function_that_raises_gives_a_value(error: Exception, wanted: object) -> None:
    mine = of_python("mine", lambda _: raising(error), "value", True)
    found = compiled_value(parse("MINE(1)", {"MINE": mine}))({}, NO_CONTEXT)
    assert repr(found) == repr(wanted)


def test_an_installed_function_takes_what_its_signature_says() -> None:
    mine = of_python("twice", lambda text, count: text * count, "text integer", True)
    found = expression("Twice(/a, '2') = '77'", functions={**BUILT_IN, "TWICE": mine})
    assert found.matches({"a": 7}, NO_CONTEXT)
    assert not found.matches({"a": None}, NO_CONTEXT)
