"""LIKE and the other regular expressions, by RE2."""

from __future__ import annotations

import time

import pytest
from support.expressions_given import is_true

from raylay.services.expressions.patterns import Pattern

GIVEN = {
    "s": "Order 66 of café",
    "list": ["fig", "pear"],
    "n": 1234,
    "none": None,
    "raw": b"a\xffb",
}


@pytest.mark.covers("Filters by content", "`LIKE`, by RE2")
@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ("/s LIKE 'Order'", True),
        ("/s LIKE 'order'", False),
        ("/s LIKE '(?i)order'", True),
        ("/s LIKE '^66'", False),
        (r"/s LIKE r'\d\d of'", True),
        ("/s LIKE 'caf.$'", True),
        ("/s LIKE '^(?!Order)'", False),
        ("/s NOT LIKE '^x'", True),
        ("/list LIKE '^p'", True),
        ("/list LIKE '^x'", False),
        ("/n LIKE '^12'", True),
        ("/none LIKE '.*'", False),
        ("/none NOT LIKE 'x'", True),
        (r"/raw LIKE r'^a\C'", True),
    ],
)
def test_like(text: str, wanted: bool) -> None:
    assert is_true(text, GIVEN) is wanted


@pytest.mark.covers("Filters by content", "`LIKE`, by RE2")
def test_a_hostile_pattern_takes_linear_time() -> None:
    pattern = Pattern("(a*)*(a|aa)*b$", 1)
    begin = time.thread_time()
    assert not pattern.matches("a" * 200_000)
    assert time.thread_time() - begin < 5


def test_a_text_that_is_no_text_does_not_match() -> None:
    assert not Pattern("x+", 1).matches("x\ud800")
