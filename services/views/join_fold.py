"""The fold of a view over several topics that are joined: left outer, by equal texts
(behaviour.md 4.6, `Join`).

The fold keeps the needed fields of each record, and for each join an index from the joined value to
the records on both sides. Joined rows are not kept: a change computes the rows that it touches from
all sides as they were, to take them back, and as they are, to add them. Changes are folded one by
one, so that a commit that changes both sides counts nothing twice.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from typing import Any, NamedTuple

import msgpack

from raylay.services.expressions import values
from raylay.services.expressions.values import Steps
from raylay.services.messages.types.trees import Tree
from raylay.services.views.group_fold import SourceChange
from raylay.services.views.groups import UNWATCHED, GroupTable, GroupWatcher, ViewGroup, texts_of
from raylay.services.views.projection import ViewProjection
from raylay.services.views.sources import JoinedSource, ViewSources

RECORD_BYTES = 250
"""Approximate memory of a record, besides its fields: it is in an index on each side of a join."""

ROWS_AT_ONCE = 1_000
"""Number of joined rows in a part of a change: some 2 ms."""
ROWS_MAX = 1_000_000
"""Limit on the rows of one change, taken back and added."""

JoinedValue = tuple["str | None", ...]
JoinedRow = tuple["bytes | None", ...]
"""The keys of the records of a row, topic by topic; None: no record of the topic fits."""

_pack = msgpack.Packer(use_bin_type=True, unicode_errors="surrogatepass").pack


class TooManyRowsError(Exception):
    """A change touches more rows than `ROWS_MAX`. The fold is not usable any more."""


class _Index:
    """The records on one side of a join, by their joined value."""

    __slots__ = ("_found",)

    def __init__(self) -> None:
        self._found: dict[JoinedValue, bytes | dict[bytes, None]] = {}
        """One key, or several."""

    def add(self, value: JoinedValue | None, key: bytes) -> None:
        if value is None:
            return
        found = self._found.get(value)
        if found is None:
            self._found[value] = key
        elif isinstance(found, bytes):
            self._found[value] = {found: None, key: None}
        else:
            found[key] = None

    def remove(self, value: JoinedValue | None, key: bytes) -> None:
        if value is None:
            return
        found = self._found[value]
        if isinstance(found, bytes):
            del self._found[value]
            return
        del found[key]
        if len(found) == 1:
            (self._found[value],) = found

    def keys(self, value: JoinedValue | None) -> Collection[bytes]:
        found = None if value is None else self._found.get(value)
        if found is None:
            return ()
        return (found,) if isinstance(found, bytes) else found


class _JoinStep(NamedTuple):
    """A step from a topic whose record is known to one whose records are to be found.

    Attributes:
        source, target: numbers of the topics.
        is_up: whether the target is the source's parent.
    """

    source: int
    target: int
    is_up: bool


class _JoinedTopic:
    """The records of one topic, and the joins to the topics below it.

    Attributes:
        names: names of the fields that are kept of a record.
        records: kept fields of each record, packed.
        own: records by the value that joins them to their parent's.
        of_parent: records of the parent by the value that joins them to these.
    """

    __slots__ = ("names", "of_parent", "own", "records", "source")

    def __init__(self, source: JoinedSource, names: frozenset[str]) -> None:
        self.source = source
        self.names = names
        self.records: dict[bytes, bytes] = {}
        self.own = _Index()
        self.of_parent = _Index()


class JoinFold:
    """The fold of one view over joined topics.

    Owner: the view's feature, on the instance's loop. Lifecycle: from the view's beginning to the
    instance's end; nothing of it is stored.

    Args:
        projection: the view's fields.
        grouping: steps of the grouping fields, the number of the topic first.
        domain: key domain of the view's SOW keys.
        sources: the joined topics.
        null_equals: whether records without a value are joined to one another
            (`JoinNullEquivalency`).
        watcher: is told of the groups (`GroupTable`).

    Attributes:
        groups: the groups.
        names: names of the fields that are read of each topic's records.
        records_bytes: bytes of all kept fields.
        touched: the groups that the last change touched.
    """

    def __init__(
        self,
        projection: ViewProjection,
        grouping: Sequence[Steps],
        domain: str,
        sources: ViewSources,
        *,
        null_equals: bool = False,
        watcher: GroupWatcher = UNWATCHED,
    ) -> None:
        self.groups = GroupTable(projection, grouping, domain, watcher)
        self._null_equals = null_equals
        reads: list[set[str]] = [set() for _ in sources.joined]
        for number, name, *_ in (*projection.reads, *grouping):
            reads[int(number)].add(str(name))
        for source, names in zip(sources.joined, reads, strict=True):
            names.update(str(steps[0]) for steps in source.fields)
            if source.parent >= 0:
                reads[source.parent].update(str(steps[0]) for steps in source.parent_fields)
        self._topics = tuple(
            _JoinedTopic(source, frozenset(names))
            for source, names in zip(sources.joined, reads, strict=True)
        )
        self._below = tuple(
            tuple(child for child, each in enumerate(sources.joined) if each.parent == number)
            for number in range(len(sources.joined))
        )
        self._child_fields = tuple(
            tuple(sources.joined[child].parent_fields for child in below) for below in self._below
        )
        self._steps = tuple(self._steps_from(number) for number in range(len(sources.joined)))
        self._names = tuple(str(number) for number in range(len(sources.joined)))
        self._plain_steps = tuple(map(self.groups.plain_steps, self._names))
        self.touched: tuple[ViewGroup, ...] = ()
        self._rows_left = ROWS_MAX
        self._read: dict[tuple[int, bytes], dict[str, Any]] = {}
        """Records that the present change has read."""
        self.names = tuple(each.names for each in self._topics)
        self.records_bytes = 0

    def _steps_from(self, number: int) -> tuple[_JoinStep, ...]:
        steps, known = [], {number}
        at = number
        while (parent := self._topics[at].source.parent) >= 0:
            steps.append(_JoinStep(at, parent, True))
            known.add(parent)
            at = parent
        for child, topic in enumerate(self._topics):
            if child not in known:
                steps.append(_JoinStep(topic.source.parent, child, False))
        return tuple(steps)

    def change(self, number: int, change: SourceChange) -> tuple[ViewGroup, ...]:
        """Folds a change of a record, and returns the groups that it touched, each once. A group
        without members is gone.

        Args:
            number: number of the record's topic.

        Raises:
            TooManyRowsError: the fold is not to be used any more.
        """
        for _ in self.folding(number, change):
            pass
        return self.touched

    def folding(self, number: int, change: SourceChange) -> Iterator[None]:
        """Folds a change in parts of `ROWS_AT_ONCE` rows, and yields between two of them. Nothing
        else may be folded before the end; then `touched` has the groups that it touched.

        Raises:
            TooManyRowsError: the fold is not to be used any more.
        """
        self.touched = ()
        self._rows_left = ROWS_MAX
        topic, key = self._topics[number], change.key
        before, tree = topic.records.get(key), change.tree
        now = None
        if tree is not None:
            now = _kept({name: tree[name] for name in topic.names if name in tree})
        if before is None and now is None:
            return
        self._read.clear()
        old = None if before is None else self._record(number, key)
        old_value = None if old is None else self._value(old, topic.source.fields)
        value = None if now is None else self._value(now, topic.source.fields)
        if (
            old is not None
            and now is not None
            and old_value == value
            and all(
                self._value(old, fields) == self._value(now, fields)
                for fields in self._child_fields[number]
            )
        ):
            yield from self._replace(number, key, now, change.txid)
            return
        groups = self.groups
        touched: dict[ViewGroup, None] = {}
        own = number, (key,)
        keys: list[tuple[int, Collection[bytes]]] = [own] if old is not None else []
        if value != old_value and not topic.own.keys(value):
            # The parents' rows without a record of this topic end: the record completes them.
            keys.append(self._above(number, value))
        for rows in self._parts(keys):
            for row in rows:
                touched[groups.retract(groups.member(self._message(row), row))] = None
            if self._is_long(rows):
                yield
        self._store(number, key, old, now)
        keys = [own] if now is not None else []
        if value != old_value and not topic.own.keys(old_value):
            keys.append(self._above(number, old_value))
        for rows in self._parts(keys):
            for row in rows:
                message = self._message(row)
                group = groups.add(groups.member(message, row))
                groups.latest(group, message, change.txid)
                touched[group] = None
            if self._is_long(rows):
                yield
        groups.settle(touched)
        self.touched = tuple(touched)

    def _replace(self, number: int, key: bytes, now: dict[str, Any], txid: int) -> Iterator[None]:
        """Folds a change of a record that stays joined to the same records: each of its rows
        stays, with other fields."""
        groups, name, topic = self.groups, self._names[number], self._topics[number]
        left: dict[ViewGroup, None] = {}
        touched: dict[ViewGroup, None] = {}
        came = [
            (at, values.scalar(values.follow(now, steps)))
            for at, steps in self._plain_steps[number]
        ]
        is_plain = groups.counts_keys_alone
        for rows in self._parts([(number, (key,))]):
            for row in rows:
                if is_plain:
                    touched[groups.patch(texts_of(row), came, txid)] = None
                    continue
                message = self._message(row)
                after = {**message, name: now}
                before, member = groups.member(message, row), groups.member(after, row)
                if before.texts == member.texts:
                    group = groups.replace(before, member)
                else:
                    left[groups.retract(before)] = None
                    group = groups.add(member)
                groups.latest(group, after, txid)
                touched[group] = None
            if self._is_long(rows):
                yield
        self.records_bytes -= len(topic.records[key])
        packed = topic.records[key] = _packed(now)
        self.records_bytes += len(packed)
        # The groups that rows have left come first.
        left.update(touched)
        groups.settle(left)
        self.touched = tuple(left)

    def _is_long(self, rows: Sequence[JoinedRow]) -> bool:
        """Returns whether a part is one of several. Forgets what was read for it."""
        if len(rows) < ROWS_AT_ONCE:
            return False
        self._read.clear()
        return True

    def _value(self, record: Tree, fields: Sequence[Steps]) -> JoinedValue | None:
        """Returns the value by which a record is joined; None: it is joined to none."""
        found = tuple(values.text(values.follow(record, steps)) for steps in fields)
        if not fields or (None in found and not self._null_equals):
            return None
        return found

    def _store(
        self, number: int, key: bytes, old: dict[str, Any] | None, now: dict[str, Any] | None
    ) -> None:
        topic = self._topics[number]
        if old is not None:
            topic.own.remove(self._value(old, topic.source.fields), key)
            self.records_bytes -= len(topic.records[key])
        self._read.pop((number, key), None)
        if now is None:
            del topic.records[key]
        else:
            self._read[number, key] = now
            row = topic.records[key] = _packed(now)
            self.records_bytes += len(row)
            topic.own.add(self._value(now, topic.source.fields), key)
        for child in self._below[number]:
            below = self._topics[child]
            fields = below.source.parent_fields
            if old is not None:
                below.of_parent.remove(self._value(old, fields), key)
            if now is not None:
                below.of_parent.add(self._value(now, fields), key)

    # -- rows ----------------------------------------------------------------------------------
    def _record(self, number: int, key: bytes) -> dict[str, Any]:
        """Returns the kept fields of a record, read once a change."""
        found = self._read.get((number, key))
        if found is None:
            record = self._topics[number].records[key]
            found = self._read[number, key] = _unpacked(record)
        return found

    def _parts(
        self, starts: Sequence[tuple[int, Collection[bytes]]]
    ) -> Iterator[Sequence[JoinedRow]]:
        """Yields the rows that hold a topic's records, in parts of about `ROWS_AT_ONCE`: the
        records above that these are joined to, and the records of the other topics that are joined
        to them.

        Args:
            starts: number of a topic, and keys of its records; more than once.
        """
        for number, keys in starts:
            rows: list[list[bytes | None]] = []
            # What is folded between two parts changes no index.
            for key in keys:
                row: list[bytes | None] = [None] * len(self._topics)
                row[number] = key
                rows.append(row)
                if len(rows) >= ROWS_AT_ONCE:
                    yield from self._walked(rows, number, 0)
                    rows = []
            yield from self._walked(rows, number, 0)

    def _walked(
        self, rows: list[list[bytes | None]], number: int, first: int
    ) -> Iterator[Sequence[JoinedRow]]:
        """Yields rows completed by the steps of a topic from one step on."""
        steps = self._steps[number]
        for at in range(first, len(steps)):
            source, target, is_up = steps[at]
            longer: list[list[bytes | None]] = []
            below = self._topics[source if is_up else target]
            for row in rows:
                held = row[source]
                found: Collection[bytes | None] = ()
                if held is not None:
                    record = self._record(source, held)
                    if is_up:
                        found = below.of_parent.keys(self._value(record, below.source.fields))
                    else:
                        found = below.own.keys(self._value(record, below.source.parent_fields))
                if len(found) == 1:
                    (row[target],) = found
                    longer.append(row)
                elif found:
                    for each in found:
                        copy = row.copy()
                        copy[target] = each
                        longer.append(copy)
                        if len(longer) >= ROWS_AT_ONCE:
                            yield from self._walked(longer, number, at + 1)
                            longer = []
                elif not is_up:
                    longer.append(row)
            rows = longer
        if rows:
            self._rows_left -= len(rows)
            if self._rows_left < 0:
                raise TooManyRowsError(
                    f"a change of one record changes more than {ROWS_MAX:,} joined rows: join by "
                    "fields that fewer records share"
                )
            yield [tuple(row) for row in rows]

    def _above(self, number: int, value: JoinedValue | None) -> tuple[int, Collection[bytes]]:
        """Returns the parent topic and its records with this joined value, which no record of the
        topic fits at present."""
        topic = self._topics[number]
        return topic.source.parent, topic.of_parent.keys(value)

    def _message(self, row: JoinedRow) -> Tree:
        """Returns the fields of a row as one message: the fields of each topic are below the
        topic's number."""
        read = self._record
        return {
            name: {} if key is None else read(number, key)
            for number, (name, key) in enumerate(zip(self._names, row, strict=True))
        }

    @property
    def memory_bytes(self) -> int:
        """Returns the approximate memory of records and groups."""
        records = sum(len(each.records) for each in self._topics)
        return records * RECORD_BYTES + self.records_bytes + self.groups.memory_bytes


def _packed(record: Tree) -> bytes:
    """Returns the kept fields of a record as bytes, which cost no garbage collection."""
    found: bytes = _pack(record)
    return found


def _kept(record: Tree) -> dict[str, Any]:
    """Returns fields as they are read again from bytes: of an integer of more than 64 bits, which
    an installed message type may give, the double."""
    if any(map(_is_wide, record.values())):
        found: dict[str, Any] = _plain(record)
        return found
    return record


def _is_wide(value: Any) -> bool:
    """Returns whether a value may hold an integer of more than 64 bits."""
    if value.__class__ is int:
        return not values.INTEGER_MIN <= value <= values.INTEGER_MAX
    return value.__class__ is dict or value.__class__ is list


def _plain(value: Any) -> Any:
    """Returns a value in which all integers have 64 bits, as expressions count."""
    if isinstance(value, dict):
        return {name: _plain(inner) for name, inner in value.items()}
    if isinstance(value, list):
        return [_plain(inner) for inner in value]
    return values.clipped(value) if value.__class__ is int else value


def _unpacked(record: bytes) -> dict[str, Any]:
    found: dict[str, Any] = msgpack.unpackb(
        record, unicode_errors="surrogatepass", strict_map_key=False
    )
    return found
