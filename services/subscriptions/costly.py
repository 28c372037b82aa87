"""Filters that work too much: what an instance tells of them, and whose subscriptions end.

How much an evaluation may work is counted in services/expressions/work.py, and how much all filters
of a user in services/expressions/budgets.py.
"""

from __future__ import annotations

from collections.abc import Callable

from raylay.services.expressions.budgets import FilterBudgets
from raylay.services.expressions.work import NEWS, EvaluationAccount

Efforts = set[EvaluationAccount]
FILTER_TOO_COSTLY = "filter_too_costly"
SHOWN_CHARACTERS_MAX = 200


TOO_COSTLY = (
    "its filter works too much: look at shorter texts and arrays, use fewer functions, or filter "
    "in the client"
)
"""Error that its client is told. The filter may have a part that the client's permissions added."""


def filter_budgets(next_turn: Callable[[Callable[[], None]], object]) -> FilterBudgets:
    """The budgets of all users of an instance, for what their filters work.

    Args:
        next_turn: calls what it is given in the next turn of the loop.
    """
    return FilterBudgets(next_turn)


def given_up_count() -> int:
    """Evaluations of filters that were given up, in this process."""
    return NEWS.count


def given_up() -> dict[str, int]:
    """Counts of evaluations that were given up since somebody asked, by the filter's text."""
    return NEWS.take()
