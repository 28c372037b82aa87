"""Filters that work too much: what an instance tells of them, and whose subscriptions end.

How much an evaluation may work, and a client's filter in the long run, is counted in
services/expressions/work.py.
"""

from __future__ import annotations

from raylay.services.expressions.work import NEWS

FILTER_TOO_COSTLY = "filter_too_costly"
SHOWN_CHARACTERS_MAX = 200


def costly(text: str) -> str:
    """What to tell who has written a filter that is exhausted."""
    return (
        f"the filter {text[:SHOWN_CHARACTERS_MAX]!r} works too much for too many messages: look at "
        "shorter texts and arrays, use fewer functions, or filter in the client"
    )


def given_up_count() -> int:
    """Evaluations of filters that were given up, in this process."""
    return NEWS.count


def given_up() -> dict[str, int]:
    """How often evaluations of each filter were given up since somebody asked; by its text."""
    return NEWS.take()


def exhausted(now_us: int) -> set[str]:
    """The texts of the filters that became exhausted since somebody asked. Lets filters recover.

    Args:
        now_us: by a steady clock, in microseconds.
    """
    if NEWS.worked:
        NEWS.recover(now_us)
    if not NEWS.exhausted:
        return set()
    found, NEWS.exhausted = NEWS.exhausted, {}
    return {each.text for each in found}
