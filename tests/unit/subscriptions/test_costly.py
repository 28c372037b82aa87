"""What is told of filters that work too much."""

from __future__ import annotations

from unit.expressions.test_work import forget

from raylay.services.expressions.work import EvaluationAccount, give_up
from raylay.services.subscriptions.costly import (
    given_up,
    given_up_count,
)


def test_what_is_told_of_each_filter() -> None:
    forget()
    before = given_up_count()
    one, other = (
        EvaluationAccount("/a LIKE 'x'"),
        EvaluationAccount("/b LIKE 'y'"),
    )
    for _ in range(3):
        give_up(one)
    give_up(other)
    assert given_up_count() == before + 4
    assert given_up() == {one.text: 3, other.text: 1} and given_up() == {}
    forget()
