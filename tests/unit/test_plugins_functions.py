"""Functions that somebody installed, by their entry points."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pytest

from raylay.services.errors import ConfigurationError
from raylay.services.expressions.expression import REPLICATION, ExpressionError, expression
from raylay.services.expressions.functions import BUILT_IN
from raylay.services.expressions.functions.registry import NOWHERE
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


def test_an_installed_function_can_be_called() -> None:
    found = with_installed([Entry("Spread", spread), Entry("typed", typed)])
    message = {"bid": 1.5, "ask": 4}
    assert expression("spread(/bid, /ask) = 2.5", functions=found).matches(message, NOWHERE)
    assert expression("TYPED('1.5') = 8.5", functions=found).matches(message, NOWHERE)
    assert expression("TYPED(/none) IS NULL", functions=found).matches(message, NOWHERE)


def test_only_what_is_called_deterministic_may_decide_where_messages_go() -> None:
    found = with_installed([Entry("Spread", spread), Entry("typed", typed)])
    expression("TYPED(1, 2) = 1", REPLICATION, found)
    with pytest.raises(ExpressionError, match="something else each time"):
        expression("SPREAD(1, 2) = 1", REPLICATION, found)


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


def test_any_number_of_arguments() -> None:
    found = with_installed([Entry("MINE", lambda *values: len(values))])
    assert expression("MINE(1, 2, 3) = 3", functions=found).matches({}, NOWHERE)


def test_without_any_there_are_the_built_in_ones() -> None:
    assert with_installed([]) is BUILT_IN
    assert BUILT_IN.keys() <= functions().keys()
