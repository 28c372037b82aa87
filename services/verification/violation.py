"""A violation that a law finds in a history, and the names of messages in it."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

Key = tuple[int, int]
"""(publisher, sequence)."""
VIOLATIONS_MAX = 20
SHOWN_MAX = 5


@dataclass(frozen=True, slots=True)
class Violation:
    """A law that a history breaks."""

    law: str
    text: str
    separate: bool = False
    """Known and reported, and no failure: see checkers.py, `acknowledged`."""


def named(key: Key) -> str:
    """A message, as people find it in status and logs."""
    return f"sequence {key[1]} of publisher {key[0]}"


def listed(keys: Iterable[Key]) -> str:
    """Some messages, the first of them by name."""
    every = sorted(keys)
    more = f" and {len(every) - SHOWN_MAX} more" if len(every) > SHOWN_MAX else ""
    return ", ".join(map(named, every[:SHOWN_MAX])) + more


def at(time_us: int) -> str:
    """A moment."""
    return f"at {time_us / 1000:.3f} ms"
