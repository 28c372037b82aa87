"""The index finds whom each filter by itself finds, and asks few of them."""

from __future__ import annotations

import random
from typing import Any

import pytest
from unit.expressions.test_compiler import a_condition, a_message

from raylay.services.expressions.expression import ANYWHERE, Expression, expression
from raylay.services.expressions.functions.registry import NO_CONTEXT
from raylay.services.expressions.index import FilterIndex, named


def an_equality(chance: random.Random) -> str:
    """A filter that names values of a field."""
    field = chance.choice(("/a", "/b", "/o/a", "/l", "/l/a", "/l[1]"))
    values = ("1", "2.0", "2.5", "-3", "'a'", "'abc'", "'2'", "'2.0'", "'007'", "''", "'é'")
    wanted = chance.choice(values)
    text = chance.choice(
        (
            f"{field} = {wanted}",
            f"{wanted} = {field}",
            f"{field} IN ({wanted}, {chance.choice(values)})",
        )
    )
    return text if chance.random() < 0.6 else f"/c != 1 AND {text} AND {a_condition(chance, 1)}"


@pytest.mark.covers("Filters by content", "10,000 filters for one value each")
@pytest.mark.parametrize("seed", range(10))
def test_the_index_finds_whom_each_filter_finds(seed: int) -> None:
    chance = random.Random(seed)
    index: FilterIndex[int] = FilterIndex()
    held: dict[int, Expression] = {}
    for _ in range(20):
        for _ in range(8):
            key = chance.randrange(60)
            if key in held and chance.random() < 0.5:
                index.discard(key)
                del held[key]
                continue
            text = an_equality(chance) if chance.random() < 0.8 else a_condition(chance, 2)
            held[key] = expression(text, ANYWHERE)
            index.add(key, held[key])
        for _ in range(10):
            message = a_message(chance)
            found = index.matching(message)
            wanted = [key for key, each in held.items() if each.matches(message, NO_CONTEXT)]
            assert sorted(found) == sorted(wanted), message
    for key in list(held):
        index.discard(key)
    assert not len(index)
    assert index._fields == index._others == index._by_text == {}


@pytest.mark.parametrize(
    ("text", "steps", "values", "whole"),
    [
        ("/a = 'x'", ("a",), ("x",), True),
        ("7 == /a/b[0]", ("a", "b", 0), (7,), True),
        ("/a IN (1, 'x')", ("a",), (1, "x"), True),
        ("/c > 1 AND (/a = 1 AND /b = 2)", ("a",), (1,), False),
    ],
)
def test_what_a_filter_names_is_seen(
    text: str, steps: tuple[Any, ...], values: tuple[Any, ...], whole: bool
) -> None:
    found = named(expression(text).tree)
    assert found is not None
    assert (found.steps, found.values, found.whole) == (steps, values, whole)


@pytest.mark.parametrize(
    "text", ["/a > 1", "/a = /b", "NOT /a = 1", "/a = 1 OR /b = 2", "/a IN (1, /b)", "/a != 1"]
)
def test_what_names_no_value_is_asked_itself(text: str) -> None:
    assert named(expression(text).tree) is None


@pytest.mark.covers("Filters by content", "10,000 filters for one value each")
def test_only_those_who_named_the_value_are_asked() -> None:
    asked: list[int] = []
    index: FilterIndex[int] = FilterIndex()
    for number in range(1_000):
        one = expression(f"/id = {number} AND /x = 1", ANYWHERE)

        def passes(message: Any, around: Any, number: int = number) -> bool:
            asked.append(number)
            return True

        index.add(number, Expression(one.text, one.tree, passes))
    assert index.matching({"id": 77, "x": 1}) == [77]
    assert asked == [77]


def test_filters_of_the_same_text_are_asked_once() -> None:
    asked = 0
    one = expression("/x > 1")

    def passes(message: Any, around: Any) -> bool:
        nonlocal asked
        asked += 1
        return True

    index: FilterIndex[str] = FilterIndex()
    for key in "abc":
        index.add(key, Expression(one.text, one.tree, passes))
    assert index.matching({"x": 2}) == ["a", "b", "c"]
    assert asked == 1
    index.add("b", expression("/x = 3"))
    assert index.matching({"x": 2}) == ["a", "c"]
