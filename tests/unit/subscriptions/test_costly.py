"""What is told of filters that work too much."""

from __future__ import annotations

from unit.expressions.test_work import forget

from raylay.services.expressions.work import BURST_STEPS, STEPS_PER_S, EvaluationAccount, give_up
from raylay.services.subscriptions.costly import (
    given_up,
    given_up_count,
    newly_exhausted,
)


def test_what_is_told_of_each_filter() -> None:
    forget()
    before = given_up_count()
    one, other = (
        EvaluationAccount("/a LIKE 'x'", is_limited=True),
        EvaluationAccount("/b LIKE 'y'", is_limited=True),
    )
    for _ in range(3):
        give_up(one)
    give_up(other)
    assert given_up_count() == before + 4
    assert given_up() == {one.text: 3, other.text: 1} and given_up() == {}
    assert not newly_exhausted(0)
    one.worked(BURST_STEPS + 1)
    assert newly_exhausted(1) == {one} and not newly_exhausted(2), "once"
    assert one.is_exhausted and not other.is_exhausted
    newly_exhausted(2 + BURST_STEPS * 1_000_000 // STEPS_PER_S)
    assert not one.is_exhausted
    forget()
