"""Filters that work too much: what an instance tells of them, and whose subscriptions end.

How much an evaluation may work, and a client's filter in the long run, is counted in
services/expressions/work.py.
"""

from __future__ import annotations

from raylay.services.expressions.work import NEWS, EvaluationAccount

Efforts = set[EvaluationAccount]
FILTER_TOO_COSTLY = "filter_too_costly"
SHOWN_CHARACTERS_MAX = 200


TOO_COSTLY = (
    "its filter works too much: look at shorter texts and arrays, use fewer functions, or filter "
    "in the client"
)
"""What its client is told. The filter may have a part that the client's permissions added."""


def given_up_count() -> int:
    """Evaluations of filters that were given up, in this process."""
    return NEWS.count


def given_up() -> dict[str, int]:
    """Counts of evaluations that were given up since somebody asked, by the filter's text."""
    return NEWS.take()


def newly_exhausted(now_us: int) -> Efforts:
    """Efforts of filters that became exhausted since somebody asked. Lets filters recover.

    Args:
        now_us: by a steady clock, in microseconds.
    """
    found, NEWS.exhausted = NEWS.exhausted, {}
    NEWS.recover(now_us)
    return set(found)
