"""The compiled function gives what a straightforward interpreter gives, and shares nothing."""

from __future__ import annotations

import math
import random
from typing import Any

import pytest
from support.expressions_interpreter import interpreted, truth

from raylay.services.expressions.compiler import compiled_filter, compiled_value
from raylay.services.expressions.functions import BUILT_IN
from raylay.services.expressions.functions.registry import NO_CONTEXT
from raylay.services.expressions.parser import parse

VALUES: tuple[Any, ...] = (
    *(None, "", True, False, 0, 1, -3, 7, 2.0, 2.5, math.nan, math.inf, 1 << 63),
    *("a", "b", "abc", "2", "2.0", "007", "x2", "é", b"abc", b"\xff", "-3"),
)
LITERALS = ("1", "0", "7", "-3", "2.0", "2.5", "'a'", "'abc'", "'2'", "'2.0'", "''", "'x2'", "'é'")
FIELDS = ("/a", "/b", "/c", "/o/a", "/o/b", "/o/b/a", "/l", "/l[0]", "/l[1]/a", "/l/a", "/nothing")


def a_value(chance: random.Random, depth: int = 0) -> Any:
    """A value of a message."""
    kind = chance.random()
    if depth < 3 and kind < 0.15:
        return [a_value(chance, depth + 1) for _ in range(chance.randint(0, 3))]
    if depth < 3 and kind < 0.3:
        return {name: a_value(chance, depth + 1) for name in chance.sample("ab", 2)} | (
            {"#text": a_value(chance, depth + 1)} if chance.random() < 0.2 else {}
        )
    return chance.choice(VALUES)


def a_message(chance: random.Random) -> dict[str, Any]:
    """A message."""
    found = {name: a_value(chance) for name in "abcol" if chance.random() < 0.9}
    if chance.random() < 0.5:
        found["o"] = {name: a_value(chance, 1) for name in "ab"}
        found["l"] = [a_value(chance, 1) for _ in range(chance.randint(0, 4))]
    return found


def a_term(chance: random.Random, depth: int) -> str:
    """An expression that has a value."""
    kind = chance.random()
    if depth <= 0 or kind < 0.6:
        return chance.choice(FIELDS if chance.random() < 0.6 else LITERALS)
    one, two = a_term(chance, depth - 1), a_term(chance, depth - 1)
    if kind < 0.75:
        return f"({one} {chance.choice('+-*/%')} {two})"
    if kind < 0.8:
        return f"- ({one})"
    if kind < 0.9:
        return f"IF({a_condition(chance, depth - 1)}, {one}, {two})"
    return chance.choice(
        (f"CONCAT({one}, {two})", f"LENGTH({one})", f"COALESCE({one}, {two})", f"ABS({one})")
    )


def a_condition(chance: random.Random, depth: int) -> str:
    """An expression that is true, false or NULL."""
    kind = chance.random()
    one, two = a_term(chance, depth - 1), a_term(chance, depth - 1)
    if depth > 0 and kind < 0.3:
        parts = [a_condition(chance, depth - 1) for _ in range(chance.randint(2, 4))]
        return "(" + f" {chance.choice(('AND', 'OR'))} ".join(parts) + ")"
    if depth > 0 and kind < 0.38:
        return f"NOT {a_condition(chance, depth - 1)}"
    if kind < 0.65:
        return f"{one} {chance.choice(('=', '!=', '<', '<=', '>', '>='))} {two}"
    if kind < 0.7:
        return f"{one} BETWEEN {two} AND {a_term(chance, 0)}"
    if kind < 0.8:
        options = ", ".join(a_term(chance, 0) for _ in range(chance.randint(1, 4)))
        return f"{one} {chance.choice(('', 'NOT '))}IN ({options})"
    if kind < 0.85:
        return f"{one} LIKE '{chance.choice(('a', '^2', '.', 'c$'))}'"
    if kind < 0.9:
        return f"{one} {chance.choice(('BEGINS', 'ENDS'))} WITH ({two}, 'a')"
    if kind < 0.95:
        return f"{one} IS {chance.choice(('', 'NOT '))}{chance.choice(('NULL', 'NAN'))}"
    return one


def same(found: Any, wanted: Any) -> bool:
    """Whether two values are the same; NaN is itself."""
    return repr(found) == repr(wanted) or found == wanted


@pytest.mark.covers("Filters by content", "the compiled function gives what an interpreter")
@pytest.mark.parametrize("seed", range(30))
def test_compiled_and_interpreted_agree(seed: int) -> None:
    chance = random.Random(seed)
    for _ in range(20):
        text = a_condition(chance, 4)
        tree = parse(text, BUILT_IN)
        passes, value = compiled_filter(tree), compiled_value(tree)
        for _ in range(6):
            message = a_message(chance)
            wanted = interpreted(tree, message)
            assert same(value(message, NO_CONTEXT), wanted), (text, message)
            assert passes(message, NO_CONTEXT) is (truth(wanted) is True), (text, message)


def test_no_text_of_an_expression_gets_into_the_code() -> None:
    hostile = "/a'); __import__('os').abort() #"
    tree = parse("[/x'\"]=1 OR /a = \"') or 1 #\" OR /b IN ('\\'')", BUILT_IN)
    passes = compiled_filter(tree)
    assert passes({"a": "') or 1 #"}, NO_CONTEXT)
    assert passes({"x'\"": 1}, NO_CONTEXT)
    assert not passes({"a": hostile}, NO_CONTEXT)


def test_the_function_knows_no_builtins() -> None:
    passes = compiled_filter(parse("/a = 1", BUILT_IN))
    assert passes.__globals__["__builtins__"] == {}  # type: ignore[attr-defined]
