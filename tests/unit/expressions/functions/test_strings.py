"""The string functions, one test each (behaviour.md 5.3; docs/filters.md)."""

from __future__ import annotations

import pytest
from support.expressions_given import gives

from raylay.services.expressions.values import TEXT_CHARACTERS_MAX

CAFE = {"s": "café", "raw": b"caf\xc3\xa9", "none": None, "n": 1234}


@pytest.mark.covers("Filters by content", "string comparison")
def test_instr() -> None:
    gives("INSTR('fandango', 'dan')", 4)
    gives("INSTR('fandango', 'DAN')", 0)
    gives("INSTR(/s, 'é')", 4, CAFE)
    gives("INSTR(CONCAT('é', 'a'), 'a')", 3)
    gives("INSTR(/none, 'a')", 0, CAFE)
    gives("INSTR(/n, 3)", 3, CAFE)


@pytest.mark.covers("Filters by content", "string comparison")
def test_instr_i() -> None:
    gives("INSTR_I('fandango', 'DAN')", 4)
    gives("INSTR_I(/none, 'a')", 0, CAFE)


@pytest.mark.covers("Filters by content", "string comparison")
def test_strequal_i() -> None:
    gives("STREQUAL_I('qed', 'QED')", True)
    gives("STREQUAL_I('qed', 'QEF')", False)
    gives("STREQUAL_I(/none, 'QEF')", False, CAFE)


@pytest.mark.covers("Filters by content", "string manipulation")
def test_length_counts_bytes() -> None:
    gives("LENGTH('abc')", 3)
    gives("LENGTH(/s)", 5, CAFE)
    gives("LENGTH(/raw)", 5, CAFE)
    gives("LENGTH(/none)", 0, CAFE)


@pytest.mark.covers("Filters by content", "string manipulation")
def test_concat() -> None:
    gives("CONCAT('a', 1, 2.5, TRUE_VALUE())", "a12.51")
    gives("CONCAT('a', /none, 'b')", "ab", CAFE)
    gives("CONCAT(/none, '')", None, CAFE)
    gives("CONCAT(LEFT(/s, 4), RIGHT(/s, 1))", "café", CAFE)


@pytest.mark.covers("Filters by content", "string manipulation")
def test_upper() -> None:
    gives("UPPER('aBc')", "ABC")
    gives("UPPER(/s)", "CAFé", CAFE)


@pytest.mark.covers("Filters by content", "string manipulation")
def test_lower() -> None:
    gives("LOWER('aBc')", "abc")
    gives("LOWER(/none)", None, CAFE)


@pytest.mark.covers("Filters by content", "string manipulation")
def test_replace() -> None:
    gives("REPLACE('a.b.c', '.', '--')", "a--b--c")
    gives("REPLACE('a.b.c', '.', '')", "abc")
    gives("REPLACE(/none, '.', '')", None, CAFE)


@pytest.mark.covers("Filters by content", "string manipulation")
def test_regexp_replace() -> None:
    gives(r"REGEXP_REPLACE('2024-05-06', r'(\d+)-(\d+)-(\d+)', r'\3.\2.\1')", "06.05.2024")
    gives("REGEXP_REPLACE('aXbxc', '(?i)x', '')", "abc")
    gives(r"REGEXP_REPLACE('ab', r'(x)?b', r'[\1\2\\\0]')", "a[\\b]")
    gives("REGEXP_REPLACE(/none, 'x', '')", None, CAFE)


@pytest.mark.covers("Filters by content", "string manipulation")
def test_regexp_match() -> None:
    gives(r"REGEXP_MATCH('order 66 of 99', r'\d+')", "66")
    gives("REGEXP_MATCH('abc', 'x')", None)


@pytest.mark.covers("Filters by content", "string manipulation")
def test_substr() -> None:
    gives("SUBSTR('fandango', 5)", "ango")
    gives("SUBSTR('fandango', 4, 3)", "dan")
    gives("SUBSTR('fandango', -3)", "ngo")
    gives("SUBSTR('fandango', -3, 2)", "ng")
    gives("SUBSTR('abc', 9)", None)
    gives("SUBSTR('abc', 1, 0)", None)
    gives("SUBSTR('abc', 0)", "abc")
    gives("SUBSTR(/s, 4)", "é", CAFE)
    gives("SUBSTR('abc', -9)", "abc")
    gives("SUBSTR('abcd', -9, 2)", "ab")
    gives("RIGHT('abc', 9)", "abc")


@pytest.mark.covers("Filters by content", "string manipulation")
def test_left() -> None:
    gives("LEFT('fandango', 3)", "fan")
    gives("LEFT('abc', 9)", "abc")


@pytest.mark.covers("Filters by content", "string manipulation")
def test_right() -> None:
    gives("RIGHT('fandango', 3)", "ngo")
    gives("RIGHT('abc', 9)", "abc")
    gives("RIGHT('abc', 0)", None)


@pytest.mark.covers("Filters by content", "string manipulation")
def test_trim() -> None:
    gives("TRIM('  a b ')", "a b")
    gives("TRIM('--a-b-', '-')", "a-b")
    gives("TRIM(/s, 'cé')", "af", CAFE)


@pytest.mark.covers("Filters by content", "string manipulation")
def test_ltrim() -> None:
    gives("LTRIM('  a ')", "a ")
    gives("LTRIM('xxa', 'x')", "a")
    gives("LTRIM(/s, 'c')", "afé", CAFE)


@pytest.mark.covers("Filters by content", "string manipulation")
def test_rtrim() -> None:
    gives(r"RTRIM(' a \t')", " a")
    gives("RTRIM('axx', 'x')", "a")
    gives("RTRIM(/s, 'é')", "caf", CAFE)


@pytest.mark.covers("Filters by content", "string manipulation")
def test_reverse() -> None:
    gives("REVERSE('abc')", "cba")
    gives("REVERSE(REVERSE(/s))", "café", CAFE)


@pytest.mark.covers("Filters by content", "no message makes a filter long")
def test_a_text_that_grows_too_long_is_null() -> None:
    long = {"s": "a" * (TEXT_CHARACTERS_MAX - 1)}
    gives("LENGTH(CONCAT(/s, 'a'))", TEXT_CHARACTERS_MAX, long)
    gives("CONCAT(/s, 'ab')", None, long)
    gives("REPLACE(/s, 'a', 'aa')", None, long)
    short = {"s": "a" * 3000}
    gives("LENGTH(REPLACE(/s, 'a', 'aa'))", 6000, short)
    gives("REGEXP_REPLACE(/s, 'a', REPLACE(/s, 'a', 'aaa'))", None, short)
