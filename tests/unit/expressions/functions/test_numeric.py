"""The numeric functions, one test each."""

from __future__ import annotations

import math

import pytest
from support.expressions_given import NAN, gives, value

from raylay.services.expressions.functions.registry import EvalContext


@pytest.mark.covers("Filters by content", "numeric: ABS GREATEST LEAST CEILING FLOOR EXP LN")
def test_abs() -> None:
    gives("ABS(-3)", 3)
    gives("ABS('-2.5')", 2.5)
    gives("ABS('x')", NAN)
    gives("ABS(/none)", None)


@pytest.mark.covers("Filters by content", "numeric: ABS GREATEST LEAST CEILING FLOOR EXP LN")
def test_greatest() -> None:
    gives("GREATEST(1, '7', 2.5)", 7)
    gives("GREATEST(1, /none)", None)
    gives("GREATEST(1, NAN_VALUE(), 3)", NAN)


@pytest.mark.covers("Filters by content", "numeric: ABS GREATEST LEAST CEILING FLOOR EXP LN")
def test_least() -> None:
    gives("LEAST(4, '2', 2.5)", 2)
    gives("LEAST(4, 'x')", NAN)


@pytest.mark.covers("Filters by content", "numeric: ABS GREATEST LEAST CEILING FLOOR EXP LN")
def test_ceiling() -> None:
    gives("CEILING(1.2)", 2)
    gives("CEILING(-1.2)", -1)
    gives("CEILING(1e400)", math.inf)


@pytest.mark.covers("Filters by content", "numeric: ABS GREATEST LEAST CEILING FLOOR EXP LN")
def test_floor() -> None:
    gives("FLOOR(1.8)", 1)
    gives("FLOOR(-1.2)", -2)
    gives("FLOOR(NAN_VALUE())", NAN)


@pytest.mark.covers("Filters by content", "numeric: ABS GREATEST LEAST CEILING FLOOR EXP LN")
def test_exp() -> None:
    gives("EXP(0)", 1.0)
    gives("EXP(1000)", math.inf)


@pytest.mark.covers("Filters by content", "numeric: ABS GREATEST LEAST CEILING FLOOR EXP LN")
def test_ln() -> None:
    gives("ROUND(LN(EXP(2)), 6)", 2.0)
    gives("LN(0)", -math.inf)
    gives("LN(-1)", NAN)


@pytest.mark.covers("Filters by content", "numeric: ABS GREATEST LEAST CEILING FLOOR EXP LN")
def test_log2() -> None:
    gives("LOG2(8)", 3.0)


@pytest.mark.covers("Filters by content", "numeric: ABS GREATEST LEAST CEILING FLOOR EXP LN")
def test_log10() -> None:
    gives("LOG10(1000)", 3.0)


@pytest.mark.covers("Filters by content", "numeric: ABS GREATEST LEAST CEILING FLOOR EXP LN")
def test_power() -> None:
    gives("POWER(2, 10)", 1024.0)
    gives("POWER(10, 400)", math.inf)
    gives("POWER(-1, 0.5)", NAN)


@pytest.mark.covers("Filters by content", "numeric: ABS GREATEST LEAST CEILING FLOOR EXP LN")
def test_sqrt() -> None:
    gives("SQRT(9)", 3.0)
    gives("SQRT(-1)", NAN)


@pytest.mark.covers("Filters by content", "numeric: ABS GREATEST LEAST CEILING FLOOR EXP LN")
def test_md5() -> None:
    gives("MD5('abc')", "900150983cd24fb0d6963f7d28e17f72")


@pytest.mark.covers("Filters by content", "numeric: ABS GREATEST LEAST CEILING FLOOR EXP LN")
def test_radians() -> None:
    gives("RADIANS(180)", math.pi)


@pytest.mark.covers("Filters by content", "numeric: ABS GREATEST LEAST CEILING FLOOR EXP LN")
def test_degrees() -> None:
    gives("DEGREES(ATAN2(0, -1))", 180.0)


@pytest.mark.covers("Filters by content", "numeric: ABS GREATEST LEAST CEILING FLOOR EXP LN")
def test_sign() -> None:
    gives("SIGN(-3)", -1)
    gives("SIGN(0)", 0)
    gives("SIGN('2.5')", 1)
    gives("SIGN('x')", NAN)


@pytest.mark.covers("Filters by content", "numeric: ABS GREATEST LEAST CEILING FLOOR EXP LN")
def test_round() -> None:
    gives("ROUND(2.5)", 3)
    gives("ROUND(-2.5)", -3)
    gives("ROUND(2.345, 2)", 2.35)
    gives("ROUND(1250, -2)", 1300)
    gives("ROUND(7, 3)", 7)
    gives("ROUND('x')", NAN)
    gives("ROUND(2.5, 99)", 2.5)


@pytest.mark.covers("Filters by content", "numeric: ABS GREATEST LEAST CEILING FLOOR EXP LN")
def test_width_bucket() -> None:
    gives("WIDTH_BUCKET(5, 0, 10, 5)", 3)
    gives("WIDTH_BUCKET(-1, 0, 10, 5)", 0)
    gives("WIDTH_BUCKET(10, 0, 10, 5)", 6)
    gives("WIDTH_BUCKET(0, 0, 10, 5)", 1)
    gives("WIDTH_BUCKET(1, 0, 10, 0)", None)


@pytest.mark.covers("Filters by content", "numeric: ABS GREATEST LEAST CEILING FLOOR EXP LN")
def test_uuid7() -> None:
    around = EvalContext(now_s=1_700_000_000.123, random_bytes=lambda count: b"\xff" * count)
    gives("UUID7()", "018bcfe5-687b-7fff-bfff-ffffffffffff", around=around)
    gives("UUID7()", None)


@pytest.mark.covers("Filters by content", "numeric: ABS GREATEST LEAST CEILING FLOOR EXP LN")
@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ("ACOS(0.5)", math.acos(0.5)),
        ("ASIN(0.5)", math.asin(0.5)),
        ("ATAN(0.5)", math.atan(0.5)),
        ("ATAN2(1, 2)", math.atan2(1, 2)),
        ("COS(0.5)", math.cos(0.5)),
        ("COSH(0.5)", math.cosh(0.5)),
        ("COT(0.5)", 1 / math.tan(0.5)),
        ("SIN(0.5)", math.sin(0.5)),
        ("SINH(0.5)", math.sinh(0.5)),
        ("TAN(0.5)", math.tan(0.5)),
        ("TANH(0.5)", math.tanh(0.5)),
    ],
)
def test_trigonometric(text: str, wanted: float) -> None:
    assert value(text) == pytest.approx(wanted)


def test_trigonometric_functions_have_no_value_outside_their_domain() -> None:
    gives("ACOS(2)", NAN)
    gives("COT(0)", math.inf)
    gives("COSH(1e6)", math.inf)
