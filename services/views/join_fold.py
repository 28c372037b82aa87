"""The fold of a view over several topics that are joined: left outer, by equal texts
(behaviour.md 4.6, `Join`).

The fold keeps the needed fields of each record, and for each join an index from the joined value to
the records on both sides. Joined rows are not kept: a change computes the rows that it touches from
all sides as they were, to take them back, and as they are, to add them. Changes are folded one by
one, so that a commit that changes both sides counts nothing twice.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import msgpack

from raylay.services.expressions import values
from raylay.services.expressions.values import Steps
from raylay.services.messages.types.trees import Tree
from raylay.services.views.group_fold import SourceChange
from raylay.services.views.groups import GroupTable, ViewGroup
from raylay.services.views.projection import ViewProjection
from raylay.services.views.sources import JoinedSource, ViewSources

RECORD_BYTES = 250
"""Approximate memory of a record, besides its fields: it is in an index on each side of a join."""

JoinedValue = tuple["str | None", ...]
JoinedRow = tuple["bytes | None", ...]
"""The keys of the records of a row, topic by topic; None: no record of the topic fits."""

_pack = msgpack.Packer(use_bin_type=True, unicode_errors="surrogatepass").pack


class _Index:
    """The records on one side of a join, by their joined value."""

    __slots__ = ("_found",)

    def __init__(self) -> None:
        self._found: dict[JoinedValue, dict[bytes, None]] = {}

    def add(self, value: JoinedValue | None, key: bytes) -> None:
        if value is not None:
            self._found.setdefault(value, {})[key] = None

    def remove(self, value: JoinedValue | None, key: bytes) -> None:
        if value is None:
            return
        keys = self._found[value]
        del keys[key]
        if not keys:
            del self._found[value]

    def keys(self, value: JoinedValue | None) -> Sequence[bytes]:
        return () if value is None else tuple(self._found.get(value, ()))


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

    Attributes:
        groups: the groups.
        names: names of the fields that are read of each topic's records.
        records_bytes: bytes of all kept fields.
    """

    def __init__(
        self,
        projection: ViewProjection,
        grouping: Sequence[Steps],
        domain: str,
        sources: ViewSources,
        *,
        null_equals: bool = False,
    ) -> None:
        self.groups = GroupTable(projection, grouping, domain)
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
        self.names = tuple(each.names for each in self._topics)
        self.records_bytes = 0

    def change(self, number: int, change: SourceChange) -> tuple[ViewGroup, ...]:
        """Folds a change of a record, and returns the groups that it touched, each once. A group
        without members is gone.

        Args:
            number: number of the record's topic.
        """
        topic, key = self._topics[number], change.key
        before, tree = topic.records.get(key), change.tree
        now = None if tree is None else {name: tree[name] for name in topic.names if name in tree}
        if before is None and now is None:
            return ()
        old = None if before is None else _unpacked(before)
        old_value = None if old is None else self._value(old, topic.source.fields)
        value = None if now is None else self._value(now, topic.source.fields)
        touched: dict[ViewGroup, None] = {}
        gone = list(self._rows(number, key)) if old is not None else []
        if value != old_value and not topic.own.keys(value):
            # The parents' rows without a record of this topic end: the record completes them.
            gone += self._rows_above(number, value)
        for row in gone:
            touched[self.groups.retract(self.groups.member(self._message(row), row))] = None
        self._store(number, key, old, now)
        came = list(self._rows(number, key)) if now is not None else []
        if value != old_value and not topic.own.keys(old_value):
            came += self._rows_above(number, old_value)
        for row in came:
            message = self._message(row)
            group = self.groups.add(self.groups.member(message, row))
            self.groups.latest(group, message, change.txid)
            touched[group] = None
        self.groups.settle(touched)
        return tuple(touched)

    def _value(self, record: Tree, fields: Sequence[Steps]) -> JoinedValue | None:
        """Returns the value by which a record is joined; None: it is joined to none."""
        found = tuple(values.text(values.follow(record, steps)) for steps in fields)
        if not fields or (None in found and not self._null_equals):
            return None
        return found

    def _store(self, number: int, key: bytes, old: Tree | None, now: Tree | None) -> None:
        topic = self._topics[number]
        if old is not None:
            topic.own.remove(self._value(old, topic.source.fields), key)
            self.records_bytes -= len(topic.records[key])
        if now is None:
            del topic.records[key]
        else:
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
    def _rows(self, number: int, key: bytes) -> Iterator[JoinedRow]:
        """Yields the rows that hold a record, each from the root of the joins down: the records
        above that it is joined to, and the records of the other topics that are joined to these."""
        found: list[dict[int, bytes | None]] = [{number: key}]
        at = number
        while self._topics[at].source.parent >= 0:
            topic = self._topics[at]
            parent = topic.source.parent
            found = [
                {**row, parent: above}
                for row in found
                for above in topic.of_parent.keys(self._own_value(at, row[at]))
            ]
            at = parent
        for row in found:
            yield from self._completed(row)

    def _rows_above(self, number: int, value: JoinedValue | None) -> list[JoinedRow]:
        """Returns the rows of the parent topic's records with this joined value, which no record of
        the topic fits at present."""
        parent = self._topics[number].source.parent
        return [
            row
            for above in self._topics[number].of_parent.keys(value)
            for row in self._rows(parent, above)
        ]

    def _completed(self, row: dict[int, bytes | None]) -> Iterator[JoinedRow]:
        """Yields the rows that have these records, filled with the records of the other topics
        that are joined to them."""
        found = [row]
        for number, topic in enumerate(self._topics):
            if number in row:
                continue
            longer = []
            for each in found:
                above = each[topic.source.parent]
                keys: Sequence[bytes | None] = ()
                if above is not None:
                    record = _unpacked(self._topics[topic.source.parent].records[above])
                    keys = topic.own.keys(self._value(record, topic.source.parent_fields))
                longer += [{**each, number: key} for key in keys or (None,)]
            found = longer
        for each in found:
            yield tuple(each[number] for number in range(len(self._topics)))

    def _own_value(self, number: int, key: bytes | None) -> JoinedValue | None:
        assert key is not None, "a row goes up from a record"
        topic = self._topics[number]
        return self._value(_unpacked(topic.records[key]), topic.source.fields)

    def _message(self, row: JoinedRow) -> Tree:
        """Returns the fields of a row as one message: the fields of each topic are below the
        topic's number."""
        return {
            str(number): {} if key is None else _unpacked(topic.records[key])
            for number, (topic, key) in enumerate(zip(self._topics, row, strict=True))
        }

    @property
    def memory_bytes(self) -> int:
        """Returns the approximate memory of records and groups."""
        records = sum(len(each.records) for each in self._topics)
        return records * RECORD_BYTES + self.records_bytes + self.groups.memory_bytes


def _packed(record: Tree) -> bytes:
    """Returns the kept fields of a record as bytes, which cost no garbage collection."""
    try:
        found: bytes = _pack(record)
    except (OverflowError, TypeError, ValueError):
        # An integer of more than 64 bits, which an installed message type may give.
        found = _pack(_plain(record))
    return found


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
