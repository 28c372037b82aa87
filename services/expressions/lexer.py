"""Lexer from the text of an expression to its words, each with its column.

A division needs white space around it, since `/2` is a field (FIX tag 2). A name of a field ends at
white space, at `/`, at a bracket, a comma, a quote or an operator other than `-`.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import NamedTuple

from raylay.services.errors import ExpressionError
from raylay.services.expressions.values import INTEGER_MAX, Steps, Value
from raylay.services.messages.lossless_text import bytes_of, text_of

SUBSCRIPT_DIGITS_MAX = 9
_NAME = r"[^\s/\[\](),'\"=<>!+*%;]+"
_WORDS = re.compile(
    rf"""(?sx)
      (?P<space> \s+ )
    | (?P<path> (?: / {_NAME} (?: \[ \d+ \] )* )+ )
    | (?P<bracket> \[ [^\]]* \] )
    | (?P<number> (?: \d+ (?: \.\d* )? | \.\d+ ) (?: [eE] [+-]? \d+ )? (?! [\w.] ) )
    | (?P<raw> [rR] (?: ' [^']* ' | " [^"]* " ) )
    | (?P<string> ' (?: [^'\\] | \\. )* ' | " (?: [^"\\] | \\. )* " )
    | (?P<name> [A-Za-z_] \w* )
    | (?P<dot> \. (?= [/\[] ) )
    | (?P<operator> <> | <= | >= | == | != | [-+*/%=<>(),] )
    """
)
_ESCAPE = re.compile(rb"(?s)\\(x[0-9a-fA-F]{1,2}|[0-7]{1,3}|.)")
_ESCAPED = {b"a": b"\a", b"b": b"\b", b"t": b"\t", b"n": b"\n", b"f": b"\f", b"r": b"\r"}
_STEP = re.compile(rf"/({_NAME})|\[(\d+)\]")


class Token(NamedTuple):
    """A word of an expression.

    Attributes:
        kind: `path`, `bracket`, `number`, `string`, `raw`, `name`, `operator` or `end`.
        text: text as written.
        column: column where it begins, from 1.
        value: value of a number or a string.
    """

    kind: str
    text: str
    column: int
    value: Value = None


def words(text: str) -> Iterator[Token]:
    """Yields the words of an expression, and `end` after them.

    Raises:
        ExpressionError: something is no word.
    """
    at = 0
    while at < len(text):
        found = _WORDS.match(text, at)
        if found is None:
            raise _no_word(text, at)
        kind = found.lastgroup or ""
        if kind != "space":
            yield Token(kind, found[0], at + 1, _value(kind, found[0]))
        at = found.end()
    yield Token("end", "", len(text) + 1)


def _value(kind: str, text: str) -> Value:
    if kind == "number":
        return _number(text)
    if kind == "string":
        return unescaped(text[1:-1])
    return text[2:-1] if kind == "raw" else None


def _number(text: str) -> Value:
    # The largest integer of 64 bits has 20 digits: Python would be slow with thousands of digits.
    if text.isdecimal() and len(text) <= 20 and int(text) <= INTEGER_MAX:
        return int(text)
    return float(text)


def unescaped(text: str) -> str:
    """Returns the value of a string literal. Strings are bytes: those that are no UTF-8 become
    surrogates."""
    if "\\" not in text:
        return text
    data = _ESCAPE.sub(_meant, bytes_of(text))
    return text_of(data)


def _meant(found: re.Match[bytes]) -> bytes:
    escape = found[1]
    if escape[:1] == b"x" and len(escape) > 1:
        return bytes([int(escape[1:], 16)])
    if escape.isdigit() and escape[:1] not in b"89":
        return bytes([int(escape, 8) & 0xFF])
    return _ESCAPED.get(escape, escape)


def steps_of(word: Token) -> Steps:
    """Returns the steps of a `path`."""
    steps: list[str | int] = []
    for found in _STEP.finditer(word.text):
        if found[1] is not None:
            steps.append(found[1])
        elif len(found[2]) > SUBSCRIPT_DIGITS_MAX:
            raise ExpressionError("the number of an array element is too large", word.column)
        else:
            steps.append(int(found[2]))
    return tuple(steps)


def _no_word(text: str, at: int) -> ExpressionError:
    column, shown = at + 1, text[at : at + 20]
    if shown[0] in "'\"":
        return ExpressionError(f"the string {shown!r} does not end: add the closing quote", column)
    if shown[0] == "[":
        return ExpressionError(f"the bracket of {shown!r} is not closed: add ]", column)
    if shown[0] == "!":
        return ExpressionError("! alone is no operator: write NOT, or != for unequal", column)
    if shown[0].isdigit() or shown[:1] == ".":
        what = f"{shown.split()[0]!r} is no number: put a string into quotes"
        return ExpressionError(what, column)
    return ExpressionError(f"{shown[0]!r} is not known here: put a string into quotes", column)
