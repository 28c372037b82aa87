"""A violation of a law in a history, and the names of messages in it."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

Key = tuple[int, int]
"""(publisher, sequence)."""
VIOLATIONS_MAX = 20
SHOWN_MAX = 5


@dataclass(frozen=True, slots=True)
class Violation:
    """A violation of a law by a history."""

    law: str
    text: str
    separate: bool = False
    """Whether the violation is a known one, which is reported and does not make the run fail: see
    `acknowledged` in checkers.py."""


def named(key: Key) -> str:
    """Returns the name of a message as status and logs show it."""
    return f"sequence {key[1]} of publisher {key[0]}"


def listed(keys: Iterable[Key]) -> str:
    """Returns the names of the first messages, and how many more there are."""
    every = sorted(keys)
    more = f" and {len(every) - SHOWN_MAX} more" if len(every) > SHOWN_MAX else ""
    return ", ".join(map(named, every[:SHOWN_MAX])) + more


def at(time_us: int) -> str:
    return f"at {time_us / 1000:.3f} ms"
