"""Filters that use too much work: the events about them, and the subscriptions that end.

services/expressions/work.py limits the work of one evaluation, and services/expressions/budgets.py
the work of all filters of a user.
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
"""Error that the client gets. The filter may include a part that the client's permissions added."""


def filter_budgets(next_turn: Callable[[Callable[[], None]], object]) -> FilterBudgets:
    """Returns the work budgets for the filters of all users of an instance.

    Args:
        next_turn: calls a function in the next turn of the loop.
    """
    return FilterBudgets(next_turn)


def given_up_count() -> int:
    """Returns the number of evaluations of filters that were given up in this process."""
    return NEWS.count


def given_up() -> dict[str, int]:
    """Returns the number of evaluations given up since the last call, by the filter's text."""
    return NEWS.take()
