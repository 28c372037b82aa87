"""The order of a query's rows (behaviour.md 4.4): `/price DESC, /symbol`.

All values are in one order, so that any two rows can be compared: NULL, then NaN, then numbers,
then texts. A text that is a number counts as a number, as in expressions; of equal ones the shorter
text is first. With the hint TEXT (`/id TEXT`) all values but NULL count as texts. An array counts
as its first element. Rows that are equal in all fields are in the order of their SOW keys.

`SortedRows` takes rows a few at a time and returns them a few at a time, so that no call takes
long: rows are sorted in portions, which are merged as rows are taken out.
"""

from __future__ import annotations

import heapq
import sys
from collections.abc import Callable, Iterator
from itertools import islice
from typing import Any, NamedTuple

from raylay.services.errors import ExpressionError, RemoteProtocolError
from raylay.services.expressions import values
from raylay.services.expressions.lexer import Token, steps_of, words
from raylay.services.expressions.values import Steps, Value
from raylay.services.messages.types.trees import Tree

TERMS_MAX = 32
_DIRECTIONS = frozenset(("ASC", "DESC"))
PORTION_ROWS = 1_000
"""Number of rows that are sorted at once: about half a millisecond."""
_CUT_ROWS_MAX = 4_000
"""Number of wanted rows up to which surplus rows are dropped as they arrive."""
_CUT_BYTES = 1024 * 1024
"""Bytes of the kept rows above which surplus rows are dropped before `_CUT_ROWS_MAX`."""
_SHOWN_CHARACTERS_MAX = 200
_ROW_MEMORY_BYTES = 400
"""Memory of a kept row, in addition to its bytes and the texts of its place."""

Place = tuple[Any, ...]
"""Sort key of a row: places compare as their rows do."""


class SortTerm(NamedTuple):
    """A field by which rows are ordered, its direction, and whether its values are texts."""

    steps: Steps
    is_descending: bool
    is_text: bool = False


class DescendingText:
    """A text that compares in descending order."""

    __slots__ = ("text",)

    def __init__(self, text: str) -> None:
        self.text = text

    def __lt__(self, other: DescendingText) -> bool:
        return other.text < self.text

    def __eq__(self, other: object) -> bool:
        return isinstance(other, DescendingText) and other.text == self.text


def read_order(text: str) -> tuple[SortTerm, ...]:
    """Parses an order: the fields by which rows are ordered, the first one first.

    Raises:
        RemoteProtocolError: it is no order; with reason `bad_order_by`, the column and what to do.
    """
    try:
        found = _terms(list(words(text)))
    except ExpressionError as error:
        raise RemoteProtocolError(
            f"{text[:_SHOWN_CHARACTERS_MAX]!r} is no order: {error}", "bad_order_by"
        ) from None
    return found


def _terms(found: list[Token]) -> tuple[SortTerm, ...]:
    terms: list[SortTerm] = []
    at = 0
    while True:
        field = found[at]
        if field.kind == "path":
            steps = steps_of(field)
        elif field.kind == "bracket" and field.text.startswith("[/"):
            steps = tuple(field.text[2:-1].split("/"))
        else:
            raise ExpressionError("expected a field, such as /price", field.column)
        at += 1
        hints = [word.text.upper() for word in found[at : at + 2] if word.kind == "name"]
        direction = hints.pop(0) if hints and hints[0] in _DIRECTIONS else ""
        at += bool(direction)
        is_text = bool(hints) and hints[0] == "TEXT"
        if is_text:
            at += 1
        elif hints and found[at].kind == "name":
            expected = "TEXT or a comma" if direction else "ASC, DESC, TEXT or a comma"
            raise ExpressionError(f"expected {expected}, got {found[at].text!r}", found[at].column)
        terms.append(SortTerm(steps, direction == "DESC", is_text))
        if len(terms) > TERMS_MAX:
            raise ExpressionError(f"it has more than {TERMS_MAX} fields", field.column)
        if found[at].kind == "end":
            return tuple(terms)
        if found[at].text != ",":
            raise ExpressionError(
                f"expected a comma and the next field, got {found[at].text!r}", found[at].column
            )
        at += 1


def place_of(value: Value, is_descending: bool = False) -> Place:
    value = values.scalar(value)
    text = ""
    rank: int
    number: int | float = 0
    if value is None:
        rank = 0
    elif value.__class__ is str:
        said = values.parsed(value)
        rank, number, text = (2, said, value) if said == said else (3, 0, value)
    elif value != value:
        rank = 1
    else:
        rank, number = 2, value
    if is_descending:
        return -rank, -number, -len(text) if rank == 2 else 0, DescendingText(text)
    return rank, number, len(text) if rank == 2 else 0, text


def _text_place_of(value: Value, is_descending: bool) -> Place:
    text = values.text(value)
    if text is None:
        return 0, 0, 0, ""
    return (-3, 0, 0, DescendingText(text)) if is_descending else (3, 0, 0, text)


def placing(terms: tuple[SortTerm, ...]) -> Callable[[Tree, bytes], Place]:
    """Returns a function that computes the sort key of a row from its fields and its SOW key."""

    def place(tree: Tree, key: bytes) -> Place:
        found: list[Any] = []
        for steps, is_descending, is_text in terms:
            value = values.follow(tree, steps)
            found += (_text_place_of if is_text else place_of)(value, is_descending)
        found.append(key)
        return tuple(found)

    return place


def _memory_of(place: Place, row: bytes) -> int:
    """Returns an estimate of the memory of a row with its sort key, in bytes."""
    size = len(row) + _ROW_MEMORY_BYTES
    for each in place:
        if each.__class__ is str:
            size += sys.getsizeof(each)
        elif each.__class__ is DescendingText:
            size += sys.getsizeof(each.text)
    return size


def _taken_out(portion: list[tuple[Place, bytes]]) -> Iterator[tuple[Place, bytes]]:
    """Yields the rows of a portion, and removes them from memory as it goes."""
    portion.reverse()
    while portion:
        yield portion.pop()


class SortedRows:
    """Sorts rows: first all rows go in, then they come out in order.

    Invariant: a row is only dropped when `wanted` other rows come before it.
    Owner: a query. Lifecycle: as long as the query.

    Args:
        wanted: number of rows that come out at most; None: all.
    """

    __slots__ = (
        "_bound",
        "_cut_at",
        "_few",
        "_merged",
        "_new",
        "_portions",
        "_wanted",
        "held_bytes",
        "memory_bytes",
    )

    def __init__(self, wanted: int | None = None) -> None:
        self._wanted = wanted
        self._few = wanted if wanted is not None and wanted <= _CUT_ROWS_MAX else 0
        self._cut_at = 2 * self._few + 256 if self._few else 0
        self._bound: Place | None = None
        self._new: list[tuple[Place, bytes]] = []
        self._portions: list[list[tuple[Place, bytes]]] = []
        self._merged: Iterator[tuple[Place, bytes]] | None = None
        self.held_bytes = 0
        """Bytes of the kept rows."""
        self.memory_bytes = 0
        """Approximate memory of the kept rows with their sort keys."""

    def takes(self, place: Place) -> bool:
        """Returns whether a row with this sort key may be among the wanted rows."""
        return self._bound is None or place < self._bound

    def put(self, place: Place, row: bytes) -> None:
        new = self._new
        new.append((place, row))
        self.held_bytes += len(row)
        self.memory_bytes += _memory_of(place, row)
        if self._cut_at:
            held = len(new)
            if held >= self._cut_at or (held > 2 * self._few and self.held_bytes > _CUT_BYTES):
                self._cut()
        elif len(new) >= PORTION_ROWS:
            new.sort()
            self._portions.append(new)
            self._new = []

    def _cut(self) -> None:
        new, wanted = self._new, self._wanted
        new.sort()
        self._forget(new[wanted:])
        del new[wanted:]
        self._bound = new[-1][0] if new else ()

    def _forget(self, rows: list[tuple[Place, bytes]]) -> None:
        self.held_bytes -= sum([len(row) for _, row in rows])
        self.memory_bytes -= sum([_memory_of(place, row) for place, row in rows])

    def take(self, most: int) -> list[bytes]:
        """Returns the next rows, `most` at most; none: there are no more. No row may be added any
        more."""
        if self._merged is None:
            self._new.sort()
            # More than islice can count means all.
            wanted = None if self._wanted is None else min(self._wanted, sys.maxsize)
            portions, self._portions, self._new = [*self._portions, self._new], [], []
            self._merged = islice(heapq.merge(*map(_taken_out, portions)), wanted)
        rows = list(islice(self._merged, most))
        self._forget(rows)
        return [row for _, row in rows]
