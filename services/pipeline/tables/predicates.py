"""The conditions of a query, as far as a journal can use them to skip records.

A predicate only ever leaves out records that a filter of the query excludes; Spark evaluates every
filter again on the rest. It is built on the driver and pickled to the readers.
"""

from __future__ import annotations

import datetime as dt
from dataclasses import dataclass, field
from decimal import Decimal
from typing import Any

from raylay.services.errors import RemoteProtocolError
from raylay.services.messages.bookmarks import parse_point
from raylay.services.messages.records import FLAG_NAMES, Command
from raylay.services.subscriptions.matching import topic_filter

NUMBERS = ("txid", "segment", "sequence", "publisher", "receive_time", "origin_time")
TEXTS = ("instance", "topic", "message_type", "command", "group")
FLAGS = {name: flag for flag, name in FLAG_NAMES.items() if name != "contiguous"}
OF_ANY_RECORD = "traced"
"""The flag that a run has where any of its records has the property; of the others may lack it."""
COMMANDS: dict[int, str] = {int(command): command.name.lower() for command in Command}

_EPOCH = dt.datetime(1970, 1, 1, tzinfo=dt.UTC)
_MICROSECOND = dt.timedelta(microseconds=1)


@dataclass(slots=True)
class Numbers:
    """The wanted numbers: an inclusive interval and, where given, a set. Times are in microseconds
    since 1970."""

    low: int | None = None
    high: int | None = None
    values: frozenset[int] | None = None

    @property
    def free(self) -> bool:
        return self.low is None and self.high is None and self.values is None

    def admits(self, number: int) -> bool:
        return (
            (self.low is None or number >= self.low)
            and (self.high is None or number <= self.high)
            and (self.values is None or number in self.values)
        )

    def meets(self, first: int, last: int) -> bool:
        """Returns whether any number of first..last may be wanted."""
        if (self.low is not None and last < self.low) or (
            self.high is not None and first > self.high
        ):
            return False
        return self.values is None or any(first <= value <= last for value in self.values)

    def _at_least(self, number: int) -> None:
        self.low = number if self.low is None else max(self.low, number)

    def _at_most(self, number: int) -> None:
        self.high = number if self.high is None else min(self.high, number)

    def _one_of(self, numbers: frozenset[int]) -> None:
        self.values = numbers if self.values is None else self.values & numbers

    def narrow(self, operator: str, value: Any) -> bool:
        """Takes a comparison in. Returns false where the comparison cannot be used."""
        if operator == "In":
            found = [_number(each) for each in value]
            if any(each is None or not exact for each, exact in found):
                return False
            self._one_of(frozenset(each for each, _ in found if each is not None))
            return True
        number, exact = _number(value)
        if number is None:
            return False
        if operator in ("EqualTo", "EqualNullSafe") and exact:
            self._one_of(frozenset((number,)))
        elif operator in ("GreaterThan", "GreaterThanOrEqual"):
            self._at_least(number + 1 if operator == "GreaterThan" or not exact else number)
        elif operator in ("LessThan", "LessThanOrEqual"):
            self._at_most(number - 1 if operator == "LessThan" and exact else number)
        else:
            return False
        return True


def _number(value: Any) -> tuple[int | None, bool]:
    """Returns the value as a whole number, rounded down, and whether it was whole already."""
    if isinstance(value, bool):
        return None, False
    if isinstance(value, dt.datetime):
        if value.tzinfo is None:
            return None, False
        return (value - _EPOCH) // _MICROSECOND, True
    if isinstance(value, int):
        return value, True
    if isinstance(value, float | Decimal):
        try:
            down = int(value // 1)
        except (ValueError, OverflowError, ArithmeticError):
            return None, False
        return down, down == value
    return None, False


@dataclass(slots=True)
class Texts:
    """The wanted texts: every (operator, value) must hold."""

    tests: list[tuple[str, Any]] = field(default_factory=list)

    def narrow(self, operator: str, value: Any) -> bool:
        """Takes a comparison in. Returns false where the comparison cannot be used."""
        usable = operator in _TEXT_TESTS and (
            all(isinstance(each, str) for each in value)
            if operator == "In"
            else isinstance(value, str)
        )
        if usable:
            self.tests.append((operator, value))
        return usable

    def admits(self, text: str) -> bool:
        return all(_TEXT_TESTS[operator](text, value) for operator, value in self.tests)


_TEXT_TESTS: dict[str, Any] = {
    "EqualTo": lambda text, value: text == value,
    "EqualNullSafe": lambda text, value: text == value,
    "In": lambda text, value: text in value,
    "StringStartsWith": str.startswith,
    "StringEndsWith": str.endswith,
    "StringContains": lambda text, value: value in text,
    "Not EqualTo": lambda text, value: text != value,
    "Not In": lambda text, value: text not in value,
    "Subscribed": lambda text, value: value.matches(text.encode(), b""),
}


@dataclass(slots=True)
class Predicate:
    """The conditions of a query, all of which must hold."""

    numbers: dict[str, Numbers] = field(
        default_factory=lambda: {name: Numbers() for name in NUMBERS}
    )
    texts: dict[str, Texts] = field(default_factory=lambda: {name: Texts() for name in TEXTS})
    flags: dict[str, bool] = field(default_factory=dict)
    nothing: bool = False
    """Whether the filters contradict each other."""

    def push(self, column: str, operator: str, value: Any) -> bool:
        """Takes one filter in. Returns false where the filter is left to Spark alone.

        Args:
            operator: the name of Spark's filter class, after `Not ` where it is negated.
        """
        if column == "bookmark":
            return self._push_bookmark(operator, value)
        if column in self.numbers:
            return self.numbers[column].narrow(operator, value)
        if column in self.texts:
            return self.texts[column].narrow(operator, value)
        if column in FLAGS and operator == "EqualTo" and isinstance(value, bool):
            self._flag(column, value)
            return True
        if column in FLAGS and operator == "Not EqualTo" and isinstance(value, bool):
            self._flag(column, not value)
            return True
        return False

    def subscribe(self, topic: str) -> None:
        """Takes only topics that a subscription to this name or expression would match.

        Raises:
            RemoteProtocolError: the topic is no valid regular expression.
        """
        self.texts["topic"].tests.append(("Subscribed", topic_filter(topic, "")))

    def _flag(self, name: str, value: bool) -> None:
        self.nothing = self.nothing or self.flags.get(name, value) is not value
        self.flags[name] = value

    def _push_bookmark(self, operator: str, value: Any) -> bool:
        wanted = value if operator == "In" else (value,)
        if operator not in ("EqualTo", "EqualNullSafe", "In"):
            return False
        points = []
        for text in wanted:
            try:
                point = parse_point(text) if isinstance(text, str) else None
            except RemoteProtocolError:
                point = None
            if point is not None and point.kind == "message":
                points.append(point)
        # A text that is no message's bookmark equals no row's.
        self.nothing = self.nothing or not points
        self.numbers["publisher"].narrow("In", [point.publisher for point in points])
        self.numbers["sequence"].narrow("In", [point.sequence for point in points])
        return True

    def wants_flags(self, flags: int) -> bool:
        """Returns whether a run with these flags may hold wanted records."""
        return not self.nothing and all(
            bool(flags & FLAGS[name]) is value
            for name, value in self.flags.items()
            if name != OF_ANY_RECORD or value
        )

    @property
    def needs_index(self) -> bool:
        """Returns whether a segment's index may show that the segment holds no wanted record."""
        return bool(
            self.texts["topic"].tests
            or self.texts["message_type"].tests
            or not self.numbers["receive_time"].free
            or not self.numbers["publisher"].free
        )
