"""Suggestions for misspelled names."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Sequence

CUTOFF = 0.7
"""Likeness, of 1, from which two names are taken for one another: below, a hint would be a
guess."""


def did_you_mean(word: str, known: Iterable[str]) -> str:
    """Returns the hint `did you mean NAME?` with the closest name, whatever the case; empty: no
    name is close."""
    by_fold = {name.casefold(): name for name in known}
    close = difflib.get_close_matches(word.casefold(), by_fold, 1, CUTOFF)
    return f"did you mean {by_fold[close[0]]}?" if close else ""


def queue_hint(name: str, message_type: str, queues: Sequence[tuple[str, str]]) -> str:
    """Returns the hint for a name of which there is no queue: the queue of this name that has
    another message type, or the closest name; empty: no name is close.

    Args:
        queues: name and message type of each queue.
    """
    types = [kind for queue, kind in queues if queue == name and kind != message_type]
    if types:
        return f"the queue {name} is of type {' or '.join(types)}"
    return did_you_mean(name, (queue for queue, _ in queues))
