"""Suggestions for misspelled names."""

from __future__ import annotations

import difflib
from collections.abc import Iterable

CUTOFF = 0.7
"""Likeness, of 1, from which two names are taken for one another: below, a hint would be a
guess."""


def did_you_mean(word: str, known: Iterable[str]) -> str:
    """Returns the hint `did you mean NAME?` with the closest name, whatever the case; empty: no
    name is close."""
    by_fold = {name.casefold(): name for name in known}
    close = difflib.get_close_matches(word.casefold(), by_fold, 1, CUTOFF)
    return f"did you mean {by_fold[close[0]]}?" if close else ""
