"""Content filters of a simulated fabric: said once for the machines, in a language of their own,
and once for those who judge them.

A filter is written as digits: the last one of the sum of a body's bytes must be among them.
"""

from __future__ import annotations

from raylay.services.errors import ConfigurationError
from raylay.services.messages.records import Record, Run, iterate_records


# -- for the machines --------------------------------------------------------------------------
class Digits:
    """The language (services/replication/link/content.py)."""

    def compiled(self, text: str, where: str) -> DigitFilter:
        """The filter of these digits."""
        if not text.isdigit():
            raise ConfigurationError(f"{where}: {text!r} is not written in digits")
        return DigitFilter(text)


class DigitFilter:
    """A filter as the machines run it."""

    def __init__(self, text: str) -> None:
        self._bits = sum(1 << digit for digit in set(map(int, text)))

    def passes(self, record: Record) -> bool:
        """Whether its digit is among them."""
        return bool(self._bits >> sum(record.body) % 10 & 1)


class DigitContent(DigitFilter):
    """A filter as a bookmark subscription asks it (services/subscriptions/bookmark.py)."""

    def __init__(self, text: str) -> None:
        super().__init__(text)
        self.text = text
        self.has_given_up = False

    def admits(self, run: Run) -> bool:
        return False

    def passing(self, run: Run) -> list[tuple[int, int, int, int]]:
        """Where the records are that pass."""
        found, begin = [], 0
        for before, record in enumerate(iterate_records(run.payload)):
            end = begin + len(record.raw)
            if self.passes(record):
                found.append((before, begin, end, record.sequence))
            begin = end
        return found


# -- for the checkers --------------------------------------------------------------------------
def seen(body: bytes) -> str:
    """What a history tells of a message's body: the last digit of the sum of its bytes."""
    return str(sum(body))[-1]


def passes(text: str, content: str) -> bool:
    """The rule in a sentence: one of the digits of the filter is that of the content."""
    return any(digit == content for digit in text)
