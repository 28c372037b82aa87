"""What is told of filters that work too much."""

from __future__ import annotations

from unit.test_work import forget

from raylay.services.expressions.work import BURST_STEPS, STEPS_PER_S, Effort, give_up
from raylay.services.subscriptions.costly import (
    SHOWN_CHARACTERS_MAX,
    costly,
    exhausted,
    given_up,
    given_up_count,
)


def test_what_is_told_of_each_filter() -> None:
    forget()
    before = given_up_count()
    one, other = Effort("/a LIKE 'x'", is_limited=True), Effort("/b LIKE 'y'", is_limited=True)
    for _ in range(3):
        give_up(one)
    give_up(other)
    assert given_up_count() == before + 4
    assert given_up() == {one.text: 3, other.text: 1} and given_up() == {}
    assert exhausted(0) == set()
    one.worked(BURST_STEPS)
    assert exhausted(1) == {one.text} and exhausted(2) == set(), "once"
    assert one.is_exhausted and not other.is_exhausted
    exhausted(2 + BURST_STEPS * 1_000_000 // STEPS_PER_S)
    assert not one.is_exhausted
    forget()


def test_a_long_filter_is_told_of_by_its_beginning() -> None:
    told = costly("x" * 10_000)
    assert "x" * SHOWN_CHARACTERS_MAX in told and len(told) < 2 * SHOWN_CHARACTERS_MAX
