"""Regular expressions over fields of messages, matched by RE2 in a time linear in the text.

They are parsed like those over topics (`messages/topic_pattern.py`): what RE2 lacks is refused with
the reason. RE2 reads UTF-8, so `.` is one character; a byte that is no UTF-8 is matched by `\\C`
alone.
"""

from __future__ import annotations

import re
from typing import Any

import re2

from raylay.services.errors import ExpressionError
from raylay.services.expressions.work import SHORT_STEPS, Meter, charge
from raylay.services.messages.lossless_text import bytes_of, text_of
from raylay.services.messages.topic_pattern import MEMORY_BYTES_MAX, PatternError, TopicPattern

PATTERN_CHARACTERS_MAX = 4096
_OPTIONS = re2.Options()
_OPTIONS.max_mem = MEMORY_BYTES_MAX
_OPTIONS.log_errors = False
MATCH_STEPS = 2_000
"""Number of steps (work.py) to replace a match."""
REFERENCE_STEPS = 600
"""Number of steps for each reference in the replacement."""
GROUPS_TIMES = 12
"""Cost of finding the groups of a match, relative to finding whether there is a match."""
_REFERENCE = re.compile(rb"\\(\d)|\\(.)", re.DOTALL)


class _TooLongError(Exception):
    """The result of a replacement is too long."""


class Pattern:
    """A compiled regular expression, unanchored; `(?i)` and the like at its begin.

    Args:
        column: column of the literal, for errors.

    Attributes:
        uncounted: length of a text up to which matching takes so little that it is not counted
            (work.py).

    Raises:
        ExpressionError: the text is no regular expression, or RE2 does not support it.
    """

    __slots__ = ("_compiled", "_topic", "text", "uncounted")

    def __init__(self, text: str, column: int) -> None:
        self.text = text
        if len(text) > PATTERN_CHARACTERS_MAX:
            raise ExpressionError(
                f"the regular expression is longer than {PATTERN_CHARACTERS_MAX:,} characters: "
                "use IN (…) for many values",
                column,
            )
        try:
            self._topic = TopicPattern(text)
        except PatternError as error:
            raise ExpressionError(f"not a regular expression: {error}", column) from None
        self.uncounted = SHORT_STEPS // self._topic.weight
        self._compiled: Any = None

    @property
    def weight(self) -> int:
        """Returns the number of steps for a character of a text (work.py)."""
        return self._topic.weight

    def matches(self, text: str, meter: Meter | None = None) -> bool:
        if len(text) > self.uncounted:
            charge(meter, self._topic.weight * len(text))
        try:
            return self._topic.search(text)
        except UnicodeEncodeError:
            return False

    def for_places(self, column: int) -> Pattern:
        """Returns the pattern, prepared for `first` and `replaced`.

        Raises:
            ExpressionError: with a look-ahead it says whether, not where.
        """
        try:
            self._compiled = re2.compile(self.text, _OPTIONS)
        except re2.error:
            raise ExpressionError(
                "a look-ahead cannot be used where the place of a match counts: leave it out",
                column,
            ) from None
        return self

    def _charge(self, meter: Meter | None, text: str) -> None:
        # The position of the match is needed, and those of its groups.
        times = GROUPS_TIMES if self._compiled.groups else 2
        if times * len(text) > self.uncounted:
            charge(meter, times * self._topic.weight * len(text))

    def first(self, text: str, meter: Meter | None = None) -> str | None:
        """Returns the first match in a text; None where nothing matches."""
        self._charge(meter, text)
        found = self._compiled.search(bytes_of(text))
        return None if found is None else text_of(found[0])

    def replaced(
        self, text: str, replacement: str, bytes_max: int, meter: Meter | None = None
    ) -> str | None:
        """Returns the text with each match replaced; `\\1` to `\\9` stand for the groups, `\\0` for
        the whole match.

        Returns:
            None: it would be longer than that.
        """
        self._charge(meter, text)
        data, added = bytes_of(replacement), 0
        steps = MATCH_STEPS + len(data) + REFERENCE_STEPS * data.count(b"\\")

        def by(found: Any) -> bytes:
            nonlocal added
            charge(meter, steps)
            new = _REFERENCE.sub(lambda each: _meant(each, found), data) if b"\\" in data else data
            added += len(new)
            charge(meter, len(new))
            if added > bytes_max:
                raise _TooLongError
            return new

        try:
            return text_of(self._compiled.sub(by, bytes_of(text)))
        except _TooLongError:
            return None


def _meant(reference: re.Match[bytes], found: Any) -> bytes:
    if reference[1] is None:
        return reference[2]
    number = int(reference[1])
    return (found[number] or b"") if number <= len(found.groups()) else b""
