"""Words of expressions, and what is none."""

from __future__ import annotations

from typing import Any

import pytest

from raylay.services.errors import ExpressionError
from raylay.services.expressions.lexer import steps_of, unescaped, words


@pytest.mark.covers("Filters by content", "literals: numbers")
@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ("/a/b_c", [("path", "/a/b_c", 1)]),
        ("/a/@id", [("path", "/a/@id", 1)]),
        ("/55 = 'IBM'", [("path", "/55", 1), ("operator", "=", 5), ("string", "'IBM'", 7)]),
        ("/a[0]/b[12]", [("path", "/a[0]/b[12]", 1)]),
        ("/a-b - 1", [("path", "/a-b", 1), ("operator", "-", 6), ("number", "1", 8)]),
        ("/a<=/b", [("path", "/a", 1), ("operator", "<=", 3), ("path", "/b", 5)]),
        ("6 / 2", [("number", "6", 1), ("operator", "/", 3), ("number", "2", 5)]),
        ("6 /2", [("number", "6", 1), ("path", "/2", 3)]),
        ("[/Not Xpath Name]", [("bracket", "[/Not Xpath Name]", 1)]),
        ("r'\\d' R\"x\"", [("raw", "r'\\d'", 1), ("raw", 'R"x"', 7)]),
        ("a_1(", [("name", "a_1", 1), ("operator", "(", 4)]),
        ("'it''s'", [("string", "'it'", 1), ("string", "'s'", 5)]),
        ("/größe = 1", [("path", "/größe", 1), ("operator", "=", 8), ("number", "1", 10)]),
    ],
)
def test_words(text: str, wanted: list[tuple[str, str, int]]) -> None:
    found = [word[:3] for word in words(text)]
    assert found == [*wanted, ("end", "", len(text) + 1)]


@pytest.mark.covers("Filters by content", "literals: numbers")
@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("42", 42),
        ("3.14", 3.14),
        (".5", 0.5),
        ("5.", 5.0),
        ("6.022E23", 6.022e23),
        ("18446744073709551615", 18446744073709551615),
        ("18446744073709551616", 18446744073709551616.0),
        ("1" * 5000, float("inf")),
        ("'a\\tb'", "a\tb"),
        ('"a\'b"', "a'b"),
        ("r'a\\tb'", "a\\tb"),
    ],
)
def test_literals(text: str, value: Any) -> None:
    found = next(words(text)).value
    assert (type(found), found) == (type(value), value)


@pytest.mark.covers("Filters by content", "literals: numbers")
@pytest.mark.parametrize(
    ("text", "meant"),
    [
        ("plain", "plain"),
        (r"\a\b\t\n\f\r", "\a\b\t\n\f\r"),
        (r"\x41\x4", "A\x04"),
        (r"\101\60\0", "A0\0"),
        (r"\'\"\\\d\9", "'\"\\d9"),
        (r"\xc3\xa9", "é"),
        (r"\xff", "\udcff"),
        (r"\xg", "xg"),
    ],
)
def test_escapes(text: str, meant: str) -> None:
    assert unescaped(text) == meant


def test_steps() -> None:
    assert steps_of(next(words("/a/@b[0]/55[12]"))) == ("a", "@b", 0, "55", 12)


@pytest.mark.parametrize(
    ("text", "column", "problem"),
    [
        ("/a = 'x", 6, "add the closing quote"),
        ("/a = [x", 6, r"add \]"),
        ("/a ! 1", 4, "write NOT, or !="),
        ("/a = 12abc", 6, "is no number: put a string into quotes"),
        ("/a = 1.5.x", 6, "is no number"),
        ("/a ^ 1", 4, "'\\^' is not known here"),
        ("/a[12345678901]", 1, "too large"),
    ],
)
def test_what_is_no_word_is_refused_with_its_place(text: str, column: int, problem: str) -> None:
    with pytest.raises(ExpressionError, match=problem) as told:
        for word in words(text):
            if word.kind == "path":
                steps_of(word)
    assert told.value.column == column
