"""The tallies of a group, from which its aggregates are computed (behaviour.md 5.3, aggregates).

A tally takes the values that come into a group and gives back what leaves it, so that an update
costs the same however many members a group has. No result depends on the order of the changes:
instances that fold the same messages agree in every bit, and so does a recovery. Sums are therefore
exact, and rounded once when they are read.

NULL and the empty string are never given to a tally. Of an array its first element counts.
"""

from __future__ import annotations

import math
from bisect import bisect_left, insort
from fractions import Fraction
from typing import Any

from raylay.services.expressions.values import (
    INTEGER_MAX,
    INTEGER_MIN,
    NAN,
    Value,
    parsed,
)
from raylay.services.messages.sorted_blocks import SortedBlocks
from raylay.services.sow.query.ordering import Place, place_of

SCALE_BITS = 200
"""Doubles are added as integer multiples of 2 to the power of minus this."""
SMALLEST, LARGEST = 2.0**-148, 2.0**824
"""Magnitudes between which a double is an exact multiple that fits in a double when it is scaled.
Others are added as fractions."""
CONCAT_BYTES_MAX = 64 * 1024
"""Longest result of GROUP_CONCAT; instead of a longer one it is NULL."""
ORDER_KEPT_FROM = 64
"""Number of different values from which GROUP_CONCAT keeps them in order."""
CHANGES_MAX = 256
"""Number of changed values that are put into a kept order one by one."""
_SCALE = 2.0**SCALE_BITS
_UNIT = 1 << SCALE_BITS
_ZERO = Fraction(0)


def number_of(value: Value) -> int | float:
    """Returns a value that is not NULL as a number; NaN for a text that is no number."""
    if value.__class__ is str:
        return parsed(value)
    number: int | float = value
    return number


class NumberTally:
    """The number, the exact sum and the exact sum of squares of a group's numbers: for SUM, AVG and
    STDDEV.

    Args:
        has_squares: whether squares are summed, for STDDEV.

    Attributes:
        count: number of values, NaN and infinities included.
    """

    __slots__ = (
        "_double_squares",
        "_doubles",
        "_fraction_squares",
        "_fractions",
        "_has_squares",
        "_integer_squares",
        "_integers",
        "_scaled",
        "_special",
        "count",
    )

    def __init__(self, has_squares: bool = False) -> None:
        self.count = 0
        self._integers = 0
        self._scaled = 0
        self._doubles = 0
        """Number of doubles, of any magnitude."""
        self._special: dict[str, int] | None = None
        """Number of values that are NaN or infinite, by their text; None: there never was one."""
        self._fractions = _ZERO
        self._has_squares = has_squares
        self._integer_squares = 0
        self._double_squares = 0
        self._fraction_squares = _ZERO

    def add(self, value: Value) -> None:
        """Counts a value that has come into the group."""
        self._change(value, 1)

    def retract(self, value: Value) -> None:
        """Takes a value out again that was added."""
        self._change(value, -1)

    def replace(self, old: Value, new: Value) -> None:
        """Takes a value out and counts another; None: there is none."""
        kind = old.__class__
        if kind is new.__class__ and not self._has_squares:
            if kind is float:
                if (SMALLEST <= abs(old) <= LARGEST or not old) and (
                    SMALLEST <= abs(new) <= LARGEST or not new
                ):
                    self._scaled += int(new * _SCALE) - int(old * _SCALE)
                    return
            elif kind is int:
                self._integers += new - old
                return
        if old is not None:
            self._change(old, -1)
        if new is not None:
            self._change(new, 1)

    def _change(self, value: Value, sign: int) -> None:
        self.count += sign
        number: Any = parsed(value) if value.__class__ is str else value
        if number.__class__ is not float:
            self._integers += number * sign
            if self._has_squares:
                self._integer_squares += number * number * sign
            return
        self._doubles += sign
        if SMALLEST <= number <= LARGEST or -LARGEST <= number <= -SMALLEST or not number:
            scaled = int(number * _SCALE)
            self._scaled += scaled * sign
            if self._has_squares:
                self._double_squares += scaled * scaled * sign
        elif math.isfinite(number):
            exact = Fraction(number)
            self._fractions += exact * sign
            if self._has_squares:
                self._fraction_squares += exact * exact * sign
        else:
            special = self._special
            if special is None:
                special = self._special = {}
            special[str(number)] = special.get(str(number), 0) + sign

    def _not_finite(self) -> float | None:
        """Returns the sum where a value is NaN or infinite; None: all are finite."""
        special = self._special
        if special is None or not any(special.values()):
            return None
        up, down = special.get("inf"), special.get("-inf")
        if special.get("nan") or (up and down):
            return NAN
        return math.inf if up else -math.inf

    def _numerator(self) -> int:
        """Returns the sum of integers and usual doubles, in units of 2 to the power of -200."""
        return (self._integers << SCALE_BITS) + self._scaled

    def sum(self) -> int | float | None:
        """Returns the sum: an integer while no double is among the values, and where it has 64
        bits; rounded once. NULL where there is no value."""
        if not self.count:
            return None
        if self._doubles:
            found = None if self._special is None else self._not_finite()
            return found if found is not None else self._over(1)
        total = self._integers
        return total if INTEGER_MIN <= total <= INTEGER_MAX else _quotient(total, 1)

    def average(self) -> float | None:
        """Returns the average, rounded once; NULL where there is no value."""
        if not self.count:
            return None
        found = None if self._special is None else self._not_finite()
        return found if found is not None else self._over(self.count)

    def _over(self, divisor: int) -> float:
        # Most values are usual, and `_ZERO` is told faster than any zero.
        if self._fractions is not _ZERO and self._fractions:
            exact = (self._fractions + Fraction(self._numerator(), _UNIT)) / divisor
            return _quotient(exact.numerator, exact.denominator)
        return _quotient((self._integers << SCALE_BITS) + self._scaled, divisor << SCALE_BITS)

    def deviation(self, is_sample: bool) -> float | None:
        """Returns the standard deviation of a population or a sample; NULL where there is no
        value, and for a sample of one."""
        count = self.count
        if not count or (is_sample and count == 1):
            return None
        if self._not_finite() is not None:
            return NAN
        total = Fraction(self._numerator(), _UNIT) + self._fractions
        squares = self._fraction_squares + Fraction(
            (self._integer_squares << 2 * SCALE_BITS) + self._double_squares, _UNIT * _UNIT
        )
        variance = (count * squares - total * total) / (count * (count - is_sample))
        return math.sqrt(_quotient(variance.numerator, variance.denominator))


def _quotient(numerator: int, denominator: int) -> float:
    """Returns a quotient of integers as the nearest double, which is infinite beyond the range."""
    try:
        return numerator / denominator
    except OverflowError:
        return math.inf if numerator > 0 else -math.inf


class OrderTally:
    """A group's values in the order of `order_by`: for MIN, MAX and ANY.

    Numbers and texts are kept apart, as most groups have numbers alone, which need no sort key.
    """

    __slots__ = ("_doubles", "_nans", "_numbers", "_texts", "count")

    def __init__(self) -> None:
        self.count = 0
        self._numbers = SortedBlocks()
        self._texts: SortedBlocks | None = None
        """Sort keys of the texts; None: there never was one."""
        self._doubles = 0
        self._nans = 0

    def add(self, value: Value) -> None:
        """Counts a value that has come into the group."""
        self.count += 1
        if value.__class__ is str:
            if self._texts is None:
                self._texts = SortedBlocks()
            self._texts.add(place_of(value))
        elif value != value:
            self._nans += 1
        else:
            if value.__class__ is float:
                self._doubles += 1
            self._numbers.add(value)

    def retract(self, value: Value) -> None:
        """Takes a value out again that was added."""
        self.count -= 1
        if value.__class__ is str:
            assert self._texts is not None, "a text was added before it is retracted"
            self._texts.remove(place_of(value))
        elif value != value:
            self._nans -= 1
        else:
            if value.__class__ is float:
                self._doubles -= 1
            self._numbers.remove(value)

    def replace(self, old: Value, new: Value) -> None:
        """Takes a value out and counts another; None: there is none."""
        kind = old.__class__
        if kind is new.__class__ and (kind is int or (kind is float and old == old and new == new)):
            self._numbers.replace(old, new)
            return
        if old is not None:
            self.retract(old)
        if new is not None:
            self.add(new)

    def least(self) -> Value:
        """Returns the first value: NULL where there is none, NaN where one is NaN. ANY is this one,
        too, so that it does not depend on the order of changes."""
        if self._texts is None and not self._nans:
            blocks = self._numbers.blocks
            return self._shown(blocks[0][0]) if blocks else None
        return self._extreme(is_last=False)

    def greatest(self) -> Value:
        """Returns the last value: NULL where there is none, NaN where one is NaN."""
        if self._texts is None and not self._nans:
            blocks = self._numbers.blocks
            return self._shown(blocks[-1][-1]) if blocks else None
        return self._extreme(is_last=True)

    def _extreme(self, *, is_last: bool) -> Value:
        if self._nans:
            return NAN
        texts, numbers = self._texts, self._numbers
        if not texts:
            return self._shown(numbers.last() if is_last else numbers.first()) if numbers else None
        place: Place = texts.last() if is_last else texts.first()
        if not numbers:
            return place[3]
        number = numbers.last() if is_last else numbers.first()
        comes_first = place < place_of(number)
        return place[3] if comes_first != is_last else self._shown(number)

    def _shown(self, number: int | float) -> int | float:
        """Returns a number as it is shown: which of two equal ones, 5 or 5.0, is found depends on
        the order of changes, so that the type is that of all numbers together."""
        # Either of 0 and 0.0 may be left when the other one is retracted.
        return _as_double(number) if self._doubles else int(number)


class DistinctTally:
    """The number of times that a group has each value: for COUNT_DISTINCT, UNIQUE and GROUP_CONCAT.

    Values are equal as in filters: 5, 5.0 and '5' are one value, and so are 5 and '5.0', but not
    the texts '5' and '5.0'. So a number counts only where no text says it.
    """

    __slots__ = (
        "_changed",
        "_characters",
        "_doubles",
        "_nans",
        "_numbers",
        "_order",
        "_placed",
        "_said",
        "_said_numbers",
        "_texts",
        "count",
    )

    def __init__(self) -> None:
        self.count = 0
        self._characters = 0
        """Number of characters of the different texts."""
        self._numbers: dict[int | float, int] = {}
        self._texts: dict[str, int] = {}
        self._said: dict[int | float, int] = {}
        """Number of different texts that stand for a number."""
        self._said_numbers = 0
        """Number of different numbers that a text stands for, too."""
        self._doubles: dict[int | float, int] = {}
        """Number of doubles among the values that equal each number."""
        self._nans = 0
        self._order: list[tuple[Place, str]] | None = None
        """The different values as they were when they were last joined, in order: place and text;
        None: they are few, or too many, or nobody joins them."""
        self._placed: dict[Value, tuple[Place, str]] = {}
        """The place of each value in the order."""
        self._changed: set[Value] = set()
        """Values that may have changed since."""

    def add(self, value: Value) -> None:
        """Counts a value that has come into the group."""
        self.count += 1
        if self._order is not None:
            self._note(value)
        if value.__class__ is str:
            if _counted(self._texts, value, 1) == 1:
                self._characters += len(value)
                if (said := parsed(value)) == said and _counted(self._said, said, 1) == 1:
                    self._said_numbers += said in self._numbers
        elif value != value:
            self._nans += 1
        else:
            if _counted(self._numbers, value, 1) == 1:
                self._said_numbers += value in self._said
            if value.__class__ is float:
                _counted(self._doubles, value, 1)

    def retract(self, value: Value) -> None:
        """Takes a value out again that was added."""
        self.count -= 1
        if self._order is not None:
            self._note(value)
        if value.__class__ is str:
            if not _counted(self._texts, value, -1):
                self._characters -= len(value)
                if (said := parsed(value)) == said and not _counted(self._said, said, -1):
                    self._said_numbers -= said in self._numbers
        elif value != value:
            self._nans -= 1
        else:
            if not _counted(self._numbers, value, -1):
                self._said_numbers -= value in self._said
            if value.__class__ is float:
                _counted(self._doubles, value, -1)

    def replace(self, old: Value, new: Value) -> None:
        """Takes a value out and counts another; None: there is none."""
        if old is not None:
            self.retract(old)
        if new is not None:
            self.add(new)

    def distinct(self) -> int:
        """Returns the number of different values; all NaN count as one."""
        # A followed group is read at each change of a member, however many it has.
        numbers = len(self._numbers) - self._said_numbers
        return numbers + len(self._texts) + bool(self._nans)

    def unique(self) -> Value:
        """Returns the value that all values equal; NULL where they differ or there is none."""
        if self.distinct() != 1:
            return None
        if self._nans:
            return NAN
        if self._numbers:
            return self._shown(next(iter(self._numbers)))
        return next(iter(self._texts))

    def _shown(self, number: int | float) -> int | float:
        return _as_double(number) if number in self._doubles else int(number)

    def joined(self, delimiter: str) -> str | None:
        """Returns the different values as one text, in order; NULL where there is none, or the text
        would be longer than `CONCAT_BYTES_MAX`."""
        if not self.count:
            return None
        # A text that is too long is known without a look at each value, which has a character.
        numbers = len(self._numbers) - self._said_numbers
        delimiters = len(delimiter) * (numbers + len(self._texts) - 1)
        if self._characters + numbers + delimiters > CONCAT_BYTES_MAX:
            self._forget_order()
            return None
        texts = ["nan"] if self._nans else []
        texts += [text for _, text in self._in_order()]
        made = delimiter.join(texts)
        return made if len(made.encode("utf-8", "surrogateescape")) <= CONCAT_BYTES_MAX else None

    def _note(self, value: Value) -> None:
        """Notes that a value changes, and with a text the number that it stands for."""
        changed = self._changed
        if value.__class__ is str:
            changed.add(value)
            value = parsed(value)
        if value == value:
            changed.add(value)
        if len(changed) > CHANGES_MAX:
            self._forget_order()

    def _forget_order(self) -> None:
        self._order = None
        self._placed = {}
        self._changed = set()

    def _in_order(self) -> list[tuple[Place, str]]:
        """Returns the place and the text of the different values, in order. Where they are many,
        only those that have changed are placed anew: a followed group is read at each change."""
        order, placed = self._order, self._placed
        if order is None:
            values = (*self._numbers, *self._texts)
            found = {each: shown for each in values if (shown := self._place(each)) is not None}
            order = sorted(found.values())
            if len(order) >= ORDER_KEPT_FROM:
                self._order, self._placed = order, found
            return order
        for each in self._changed:
            before, now = placed.pop(each, None), self._place(each)
            if before is not None:
                del order[bisect_left(order, before)]
            if now is not None:
                placed[each] = now
                insort(order, now)
        self._changed = set()
        return order

    def _place(self, value: Value) -> tuple[Place, str] | None:
        """Returns the place and the text of a value; None: it is not there, or a text says it."""
        if value.__class__ is str:
            return (place_of(value), value) if value in self._texts else None
        if value not in self._numbers or value in self._said:
            return None
        shown = self._shown(value)
        return place_of(shown), str(shown)


def _as_double(number: int | float) -> int | float:
    """Returns the double that equals a number, or the number itself where no double does. 0 and
    -0.0 become 0.0: they are equal, and which of them is found depends on the order of changes."""
    try:
        double = float(number) + 0.0
    except OverflowError:
        return number
    return double if double == number else number


def _counted(counts: dict[Any, int], value: Any, change: int) -> int:
    """Changes the count of a value, which goes when none is left. Returns the count."""
    count = counts.get(value, 0) + change
    if count:
        counts[value] = count
    else:
        del counts[value]
    return count
