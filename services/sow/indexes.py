"""Hash indexes from values to records, so that a query need not read all records.

An index finds candidates, which the query's filter then judges: it finds at least every record of
which a filter could be true. So values are indexed as expressions compare them: 5, 5.0, '5' and
'05' are found together, and each element of an array counts by itself. NULL and NaN equal nothing,
and a record that lacks a field of an index is not in it.

The SOW key is an index over all key fields, too: the key is computed from the values that a filter
names. A message may write a number as a text in another way (`"05"`). As soon as one record has
such a text, numbers in filters are no longer looked up by key.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import product
from math import prod
from typing import Any, Protocol

from raylay.services.errors import MessageTypeError, SowKeyError
from raylay.services.expressions import values
from raylay.services.expressions.values import Steps, Value
from raylay.services.messages.lossless_text import text_of
from raylay.services.messages.types.trees import FieldPath, Tree, field_path
from raylay.services.sow.keys import KeyRule

Parse = Callable[[bytes], Tree]
StoredChange = tuple[bytes, "bytes | None", bytes]
"""Entry key of a record, its stored value before a change, and its body after it (state.py)."""
PLACES_MAX = 64
"""Number of places of one record in one index; a record with more, from long arrays, is always a
candidate."""
ASKED_MAX = 1_024
"""Number of combinations of values that are looked up for one query."""
_INT_MIN, _INT_MAX = -(1 << 63), (1 << 63) - 1
_NO_NUMBER = frozenset("ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz/_")
"""Characters with which no text begins that represents a number."""
_EXACT = 1 << 53
"""Bound below which equal whole and floating-point numbers have one text."""


class IndexedRecord(Protocol):
    """A record in an index (records.SowRecord)."""

    @property
    def key(self) -> bytes:
        """The key of the record."""

    @property
    def body(self) -> bytes | None:
        """Returns the body of the record; None: the record was deleted."""


class IndexedChange(Protocol):
    """The change of an indexed record (`SowChange`)."""

    @property
    def key(self) -> bytes:
        """Returns the key of the changed record."""

    @property
    def previous(self) -> Any:
        """Returns the record before the change; None: there was none."""

    @property
    def current(self) -> Any:
        """Returns the record after the change; None: there is none any more."""


def canonical(value: Value) -> Value:
    """Returns one value for all values that a filter finds equal."""
    if value.__class__ is str:
        said = values.parsed(value)
        return said if said == said else value
    return value


class _HashIndex:
    """The keys of records by their values in some fields."""

    __slots__ = ("_names", "always", "keys", "paths")

    def __init__(self, identifiers: Sequence[str]) -> None:
        self.paths: tuple[FieldPath, ...] = tuple(map(field_path, identifiers))
        names = [path[0] for path in self.paths if len(path) == 1 and type(path[0]) is str]
        self._names = names if len(names) == len(self.paths) else None
        """Names of the fields, where all of them are at the top."""
        self.keys: dict[tuple[Value, ...], bytes | set[bytes]] = {}
        self.always: set[bytes] = set()

    def places(self, tree: Tree) -> list[tuple[Value, ...]] | None:
        """Returns the places of a record; None: the record is a candidate everywhere."""
        found = []
        for path in self.paths:
            plain = _equalled(values.plains(values.follow(tree, path)))
            if not plain:
                return []
            found.append({canonical(each) for each in plain})
        if len(found) == 1 and len(found[0]) == 1:
            return [(next(iter(found[0])),)]
        return list(product(*found)) if prod(map(len, found)) <= PLACES_MAX else None

    def add(self, key: bytes, place: tuple[Value, ...]) -> None:
        there = self.keys.get(place)
        if there is None:
            self.keys[place] = key
        elif type(there) is set:
            there.add(key)
        elif there != key:
            self.keys[place] = {there, key}  # type: ignore[arg-type]

    def discard(self, key: bytes, place: tuple[Value, ...]) -> None:
        there = self.keys.get(place)
        if type(there) is set:
            there.discard(key)
            if len(there) == 1:
                self.keys[place] = there.pop()
        elif there == key:
            del self.keys[place]

    def found(self, place: tuple[Value, ...]) -> Iterable[bytes]:
        there = self.keys.get(place, ())
        return (there,) if type(there) is bytes else there  # type: ignore[return-value]

    def place_of(self, tree: Tree | None) -> tuple[Value, ...] | None:
        """Returns the one place of a record whose fields are plain values; None: `places` tells."""
        if tree is None or self._names is None:
            return None
        found: list[Value] = []
        for name in self._names:
            value = tree.get(name)
            is_text = value.__class__ is str and value and value[0] in _NO_NUMBER
            if not is_text and (value.__class__ is not int or not _INT_MIN <= value <= _INT_MAX):
                return None
            found.append(value)
        return tuple(found)

    def change(self, key: bytes, before: Tree | None, after: Tree | None) -> None:
        place = self.place_of(after)
        if place is not None and (before is None or place == self.place_of(before)):
            # Most messages are new, or leave the field as it is.
            if before is None:
                self.add(key, place)
            return
        was = [] if before is None else self.places(before)
        now = [] if after is None else self.places(after)
        if was == now:
            return
        if was is None:
            self.always.discard(key)
        if now is None:
            self.always.add(key)
        for place in set(was or ()).difference(now or ()):
            self.discard(key, place)
        for place in now or ():
            self.add(key, place)


class SowIndexes:
    """The indexes of one SOW topic.

    Invariant: a record that there is stands in each hash index where its fields say.
    Owner: the code that folds the topic. Lifecycle: that of its state; `load`, then `changed` with
        each change.

    Args:
        hash_indexes: identifiers of the fields of each index.
        parse: parses a body.
        rule: rule of the keys that are made of fields; None: keys are not made of fields.
        read: parses many bodies; None for an unreadable one. None: `parse` is called for each.

    Raises:
        MessageTypeError: an identifier names no field.
    """

    __slots__ = ("_indexes", "_odd", "_parse", "_read", "_rule")

    def __init__(
        self,
        hash_indexes: Iterable[Sequence[str]],
        parse: Parse,
        rule: KeyRule | None = None,
        read: Callable[[Sequence[bytes]], list[Tree | None]] | None = None,
    ) -> None:
        self._indexes = [_HashIndex(hash_index) for hash_index in hash_indexes]
        self._parse = parse
        self._read = read or (lambda bodies: list(map(self._tree, bodies)))
        self._rule = rule
        self._odd = True
        """Whether a text in a key field may be a number in an unusual spelling."""

    def load(self, records: Iterable[IndexedRecord]) -> None:
        self._odd = False
        for index in self._indexes:
            index.keys.clear()
            index.always.clear()
        for record in records:
            if record.body is not None:
                self._change(record.key, None, self._tree(record.body))

    def changed(self, change: IndexedChange, tree: Tree | None = None) -> None:
        """Takes the change of a record.

        Args:
            tree: fields of the record after the change, where they are at hand.
        """
        previous, current = change.previous, change.current
        before = None
        if previous is not None and self._indexes:
            before = self._tree(previous.body)
        after = None
        if current is not None and (self._indexes or (previous is None and not self._odd)):
            after = self._tree(current.body) if tree is None else tree
        self._change(change.key, before, after)

    def changed_run(
        self, changes: Sequence[StoredChange], body_of: Callable[[bytes], bytes]
    ) -> None:
        """Takes the changes of a run of messages, in order, as `changed` takes each.

        Args:
            body_of: returns the body in a stored value.
        """
        if not self._indexes and self._odd:
            return
        after = self._read([body for _, _, body in changes])
        before = iter(
            self._read([body_of(was) for _, was, _ in changes if was is not None])
            if self._indexes
            else ()
        )
        for (entry, was, _), tree in zip(changes, after, strict=True):
            key = entry[1:]
            if was is None:
                self._change(key, None, tree)
            elif self._indexes:
                self._change(key, next(before), tree)

    @property
    def need_bodies(self) -> bool:
        """Returns whether there are hash indexes, which get each change with its records."""
        return bool(self._indexes)

    def key_texts(self, texts: Iterable[str | None]) -> None:
        """Notes the texts of the key fields of a new record of a view, whose body is not made."""
        if not self._odd:
            self._odd = any(text is not None and _is_unusual(text) for text in texts)

    def _change(self, key: bytes, before: Tree | None, after: Tree | None) -> None:
        for index in self._indexes:
            index.change(key, before, after)
        if before is None and after is not None and not self._odd and self._rule is not None:
            self._odd = any(_is_odd(after, path) for path in self._rule.paths)

    def _tree(self, body: bytes | None) -> Tree | None:
        try:
            return None if body is None else self._parse(body)
        except MessageTypeError:
            # An unreadable record is in no index, and no filter is true of it.
            return None

    def candidates(self, wanted: Mapping[Steps, tuple[Value, ...]]) -> set[bytes] | None:
        """Returns the keys of all records that may have one of the wanted values in each of the
        fields, by the index that leaves the fewest; None: no index can tell.

        Args:
            wanted: the values that a filter requires, by field.
        """
        best = self._by_key(wanted)
        for index in self._indexes:
            asked = [wanted.get(path) for path in index.paths]
            if None in asked or prod(len(each or ()) for each in asked) > ASKED_MAX:
                continue
            places = product(*(set(map(canonical, _equalled(each or ()))) for each in asked))
            found = set(index.always)
            for place in places:
                found.update(index.found(place))
                if best is not None and len(found) >= len(best):
                    break
            else:
                best = found
        return best

    def _by_key(self, wanted: Mapping[Steps, tuple[Value, ...]]) -> set[bytes] | None:
        rule = self._rule
        if rule is None or not rule.paths:
            return None
        asked: list[list[Value]] = []
        for path in rule.paths:
            given = wanted.get(path)
            if given is None:
                return None
            said: list[Value] = []
            for value in _equalled(given):
                number = canonical(value)
                if number.__class__ is not str:
                    if abs(number) >= _EXACT or (value.__class__ is not str and self._odd):
                        return None
                    said.append(number)
                if value.__class__ is str:
                    said.append(value)
            asked.append(said)
        if prod(map(len, asked)) > ASKED_MAX:
            return None
        found = set()
        for each in product(*asked):
            try:
                found.add(rule.key_of(_tree_of(rule.paths, each)))
            except SowKeyError:
                return None
        return found


def _equalled(given: Iterable[Value]) -> list[Value]:
    """Returns the values that can equal something: all but NULL and NaN."""
    return [each for each in given if each is not None and each != "" and each == each]


def _is_odd(tree: Tree, path: FieldPath) -> bool:
    value: Any = tree.get(path[0]) if len(path) == 1 else values.follow(tree, path)
    if value.__class__ is int:
        return False
    if value.__class__ is bytes:
        value = text_of(value)
    return value.__class__ is str and _is_unusual(value)


def _is_unusual(value: str) -> bool:
    """Returns whether a text is a number in an unusual spelling."""
    said = values.parsed(value)
    if said != said:
        return False
    return value != (str(int(said)) if said == said // 1 else repr(said))


def _tree_of(paths: Sequence[FieldPath], given: Sequence[Value]) -> Tree:
    tree: Tree = {}
    for path, value in zip(paths, given, strict=True):
        place = tree
        for name in path[:-1]:
            place = place.setdefault(name, {})
        place[path[-1]] = value
    return tree
