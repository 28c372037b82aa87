"""Functions that somebody installed, by their entry points."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from datetime import UTC, datetime
from decimal import Decimal
from typing import Any

import pytest

from raylay.services.errors import ConfigurationError
from raylay.services.expressions.expression import REPLICATION, ExpressionError, expression
from raylay.services.expressions.functions import BUILT_IN
from raylay.services.expressions.functions.registry import NO_CONTEXT
from raylay.services.plugins.functions import functions, with_installed


@dataclass
class Entry:
    """An entry point that loads this."""

    name: str
    loaded: Any
    value: str = "mine.filters:function"

    def load(self) -> Any:
        """What was given, or its error."""
        if isinstance(self.loaded, Exception):
            raise self.loaded
        return self.loaded


def spread(bid: float, ask: float) -> float:
    """The difference."""
    return ask - bid


def typed(bid: float, ask: float = 10) -> float:
    """The difference, of numbers."""
    return ask - bid


typed.takes = "number [number"  # type: ignore[attr-defined]
typed.deterministic = True  # type: ignore[attr-defined]


@pytest.mark.covers("Filters by content", "functions from entry points")
def test_an_installed_function_can_be_called() -> None:
    found = with_installed([Entry("Spread", spread), Entry("typed", typed)])
    message = {"bid": 1.5, "ask": 4}
    assert expression("spread(/bid, /ask) = 2.5", functions=found).matches(message, NO_CONTEXT)
    assert expression("TYPED('1.5') = 8.5", functions=found).matches(message, NO_CONTEXT)
    assert expression("TYPED(/none) IS NULL", functions=found).matches(message, NO_CONTEXT)


def test_only_what_is_called_deterministic_may_decide_where_messages_go() -> None:
    found = with_installed([Entry("Spread", spread), Entry("typed", typed)])
    expression("TYPED(1, 2) = 1", REPLICATION, found)
    with pytest.raises(ExpressionError, match="something else each time"):
        expression("SPREAD(1, 2) = 1", REPLICATION, found)


@pytest.mark.covers("Filters by content", "functions from entry points")
@pytest.mark.parametrize(
    ("name", "loaded", "problem"),
    [
        ("LENGTH", spread, "has the name of a built-in one"),
        ("if", spread, "has the name of a built-in one"),
        ("a b", spread, "has no name"),
        ("MINE", ImportError("no module"), "cannot be loaded .ImportError: no module"),
        ("MINE", 7, "is no function"),
        ("MINE", lambda *, only: only, "only can be given by its name only"),
    ],
)
def test_what_cannot_be_used_is_refused(name: str, loaded: Any, problem: str) -> None:
    with pytest.raises(ConfigurationError, match=problem) as told:
        with_installed([Entry(name, loaded)])
    assert "mine.filters:function" in str(told.value)


class Hostile:
    """Something that nobody can compare."""

    def __eq__(self, other: object) -> bool:
        raise RuntimeError("not comparable")

    __hash__ = None  # type: ignore[assignment]


class Count(int):
    """A whole number of a type of its own."""


def circle() -> list[Any]:
    found: list[Any] = []
    found.append(found)
    return found


@pytest.mark.parametrize(
    "gives",
    [
        1j,
        Hostile(),
        object(),
        Decimal("1.5"),
        {1, 2},
        datetime(2026, 1, 1, tzinfo=UTC),
        [1, Hostile(), "x"],
        (1j, 2),
        {"a": Hostile(), 7: 1j},
        circle(),
        10**5_000,
        -(1 << 64),
        Count(7),
        "\ud800",
        b"\xff",
    ],
    ids=lambda each: type(each).__name__,
)
def test_no_filter_raises_whatever_an_installed_function_gives(gives: Any) -> None:
    found = with_installed([Entry("ODD", lambda: gives)])
    for text in (
        *(f"ODD() {operator} 1" for operator in ("=", "!=", "<", "<=", ">", ">=")),
        *("'x' < ODD()", "ODD() + 1 > 0", "-ODD() % 3 = 1", "ODD() IN (1, 'x')", "NOT ODD()"),
        *("ODD() LIKE 'x'", "ODD() BEGINS WITH ('x')", "ODD() BETWEEN 1 AND 'x'", "ODD() IS NAN"),
        *("LENGTH(ODD()) = 1", "/a = ODD()", "ODD() = ODD()", "ARRAY_MAX(ODD()) > 1"),
        *("CONCAT(ODD(), 'a') = 'x'", "IF(ODD(), ODD(), 2) = ODD()", "FLOOR(ODD()) = 1"),
    ):
        matches = expression(text, functions=found).matches
        assert matches({"a": [1, "x", b"y", 2.5, True]}, NO_CONTEXT) in (True, False)


def test_a_function_that_would_end_the_process_gives_null() -> None:
    def end() -> None:
        sys.exit(3)

    found = with_installed([Entry("FINISH", end)])
    assert expression("FINISH() IS NULL", functions=found).matches({}, NO_CONTEXT)


def test_only_the_keyboard_interrupts_a_function() -> None:
    def interrupt() -> None:
        raise KeyboardInterrupt

    found = with_installed([Entry("STOP", interrupt)])
    with pytest.raises(KeyboardInterrupt):
        expression("STOP() = 1", functions=found).matches({}, NO_CONTEXT)


def test_a_number_of_another_type_is_a_number() -> None:
    found = with_installed([Entry("SEVEN", lambda: Count(7)), Entry("ODD", lambda: 1j)])
    assert expression("SEVEN() = 7 AND ODD() IS NULL", functions=found).matches({}, NO_CONTEXT)


def test_any_number_of_arguments() -> None:
    found = with_installed([Entry("MINE", lambda *values: len(values))])
    assert expression("MINE(1, 2, 3) = 3", functions=found).matches({}, NO_CONTEXT)


def test_without_any_there_are_the_built_in_ones() -> None:
    assert with_installed([]) is BUILT_IN
    assert BUILT_IN.keys() <= functions().keys()
