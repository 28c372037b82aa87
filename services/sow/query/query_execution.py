"""A query in turns: turns records of SOW topics into rows, a millisecond or two at a time.

Each turn takes some records as they were when the query began (record_scan.py), parses each once,
applies the filter, and cuts the passing ones to frames of rows. Rows without an order are sent as
they are found. Rows with an order are kept until all are in (ordering.py), so their memory is
limited.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Protocol

from raylay.services.errors import MessageTypeError, RemoteProtocolError
from raylay.services.expressions.budgets import FilterBudget, QueryPayer
from raylay.services.expressions.expression import Expression, nodes
from raylay.services.expressions.functions.registry import NO_CONTEXT, EvalContext
from raylay.services.expressions.tree import Identifier
from raylay.services.messages.record_builders import RecordBuilders
from raylay.services.messages.types.base import MessageType
from raylay.services.messages.types.trees import Tree
from raylay.services.sow.query.as_of import AsOf
from raylay.services.sow.query.ordering import SortedRows, SortTerm, placing
from raylay.services.sow.query.planning import around_record
from raylay.services.sow.query.projection import Projection
from raylay.services.sow.query.record_scan import Entries
from raylay.services.sow.records import NEVER, SowRecord, bodies_of, body_of, decoded, encoded

FRAME_BYTES_MAX = 1024 * 1024
"""Bytes of the rows in one frame; a larger row has a frame of its own."""
HELD_BYTES_MAX = 64 * 1024 * 1024
LOOKED_AT_ONCE = 128
"""Number of records between two reads of the clock, at most."""
_LOOKED_BYTES = 128 * 1024
_ROWS_AT_ONCE = 256

Row = bytes


class RecordSource(Protocol):
    """The records of a topic, taken in turns (`RecordScan`)."""

    done: bool
    saved_bytes: int
    """Bytes of records that the source keeps in their earlier state, because they were changed
    since the query began."""

    def take(self, most: int) -> Entries:
        """Returns the next records; may return none although more follow, until `done`."""

    def close(self) -> None:
        """Ends the source: no more records will be taken."""


class VersionSource:
    """The records of a past moment as a source: the last version of each key at that moment.

    Args:
        versions: versions of a history by key and time (state.SowState.versions).
        past: the moment.
        keys: keys of the wanted records; None: all.
    """

    def __init__(
        self, versions: Iterator[SowRecord], past: AsOf, keys: frozenset[bytes] | None = None
    ) -> None:
        self._versions = versions
        self._past = past
        self._keys = keys
        self._last: SowRecord | None = None
        """Last version so far of the current key."""
        self.done = False
        self.saved_bytes = 0
        # The first `next` fixes the time to which the versions belong.
        self._next = next(versions, None)

    def take(self, most: int) -> Entries:
        """Returns the next records. A key may have many versions; `most` limits the versions."""
        found: Entries = []
        keys, has = self._keys, self._past.has
        for _ in range(most):
            record = self._next
            last = self._last
            if last is not None and (record is None or record.key != last.key):
                if last.body is not None:
                    found.append((b"v" + last.key, encoded(last)))
                self._last = None
            if record is None:
                self.done = True
                break
            if has(record) and (keys is None or record.key in keys):
                self._last = record
            self._next = next(self._versions, None)
        return found

    def close(self) -> None:
        """Ends the source: no more records will be taken."""
        self.done = True
        self._next = self._last = None
        self._versions = iter(())


@dataclass(slots=True)
class QueryPart:
    """One topic of a query.

    Attributes:
        name: name of the topic, for records that do not name theirs.
        kind: type of the topic's messages.
        source: records of the topic.
        count: number of records, where all are wanted; None: unknown.
        wants: returns whether all records of a logical topic are wanted; None: there is one topic,
            and all are.
        now_us: time up to which expired records are left out; 0: none expires.
        limit_of: returns the filter of the wanted records of a logical topic of which not all are;
            None, or no such function: none are.
    """

    name: bytes
    kind: MessageType
    source: RecordSource
    count: int | None = None
    wants: Callable[[bytes], bool] | None = None
    now_us: int = 0
    limit_of: Callable[[bytes], Expression | None] | None = None


@dataclass(frozen=True, slots=True)
class ReplacedFocus:
    """The previous focus of a subscription whose filter is replaced.

    Attributes:
        filter: the previous filter; None: it matched all records.
        keys: keys of the records in the focus; None: all.
        had_rows: whether the client was given the records in the focus: then only records that are
            new in it become rows.
    """

    filter: Expression | None = None
    keys: frozenset[bytes] | None = None
    had_rows: bool = True

    def had(self, key: bytes, tree: Tree, around: EvalContext) -> bool:
        if self.keys is not None and key not in self.keys:
            return False
        return self.filter is None or self.filter.matches(tree, around)


@dataclass(frozen=True, slots=True)
class QueryTerms:
    """The terms of a query on the records.

    Attributes:
        filter: the content filter; None: all records pass.
        select: select list; empty: all fields.
        order: the fields by which rows are ordered; none: by SOW key.
        top: limit on the number of rows; None: no limit.
        skip: number of rows that are left out at the start.
        batch: number of rows in a frame, at most.
        instance, group: name of the instance that is queried, and of its group.
        now_us: time by the wall clock.
        held_bytes_max: limit on the bytes of rows that wait to be ordered.
        keys: keys of the wanted records; None: all.
        replaced: previous focus of the subscription whose filter this query replaces; None: there
            is none.
        budget: budget of the querying user, for the filter's work; None: the work is not limited.
        counted: numbers of records that pass the filter and of those that were looked at, where
            both are known before; None: they are counted.
    """

    filter: Expression | None = None
    select: str = ""
    order: tuple[SortTerm, ...] = ()
    top: int | None = None
    skip: int = 0
    batch: int = 10
    instance: str = ""
    group: str = ""
    now_us: int = 0
    held_bytes_max: int = HELD_BYTES_MAX
    keys: frozenset[bytes] | None = None
    replaced: ReplacedFocus | None = None
    budget: FilterBudget | None = None
    counted: tuple[int, int] | None = None


def _filters(terms: QueryTerms) -> list[Expression]:
    before = None if terms.replaced is None else terms.replaced.filter
    return [each for each in (terms.filter, before) if each is not None]


def _with_own_filters(terms: QueryTerms) -> QueryTerms:
    """Returns a copy of the terms with filters of its own, so that the work of other users of the
    same filter does not count for this query."""
    payers = () if terms.budget is None else (QueryPayer(terms.budget),)
    if terms.filter is not None:
        terms = replace(terms, filter=terms.filter.own(*payers))
    before = terms.replaced
    if before is not None and before.filter is not None:
        terms = replace(terms, replaced=replace(before, filter=before.filter.own(*payers)))
    return terms


class _Reader:
    """Parses and filters the records of one topic for one query."""

    __slots__ = ("kind", "parse", "read", "select")

    def __init__(self, part: QueryPart, terms: QueryTerms) -> None:
        self.kind = part.kind
        self.select = Projection(terms.select, part.kind) if terms.select else None
        self.parse: Callable[[bytes], Tree] | None = None
        self.read: Callable[[Sequence[bytes]], list[Tree | None]] | None = None
        """Function that parses bodies for the filter; None where the filter reads more than the
        bodies."""
        filters = _filters(terms)
        if not filters and not terms.order:
            return
        asked = (node for each in filters for node in nodes(each.tree))
        names = {each.steps[0] for each in asked if isinstance(each, Identifier)}
        names |= {term.steps[0] for term in terms.order}
        fields = frozenset(map(str, names))
        self.parse = part.kind.parser_of(fields)
        if (
            terms.filter is not None
            and terms.replaced is None
            and part.wants is None
            and not part.now_us
            and not terms.filter.asks_around
        ):
            self.read = part.kind.reader_of(fields)


class QueryExecution:
    """Runs one query in turns.

    Owner: the caller that runs the query. Lifecycle: until `done`, or `close`.

    Args:
        parts: the topics, in order.
        terms: the terms of the query.

    Attributes:
        sent: number of rows so far.
        left: where a filter is replaced: records that matched it and do not match the new one.
            Removing them makes room for more.
        looked_at: number of records of the wanted topics that were looked at, whether they passed
            or not.
        matches: number of records that passed the filter so far, including those known without a
            look.

    Raises:
        RemoteProtocolError: messages of one of the types cannot be cut: `not_supported`.
    """

    def __init__(self, parts: Sequence[QueryPart], terms: QueryTerms) -> None:
        terms = self._terms = _with_own_filters(terms)
        self._parts = [(part, _Reader(part, terms)) for part in parts]
        self._at = 0
        self._place = placing(terms.order)
        wanted = None if terms.top is None else terms.top + terms.skip
        self._ordered = SortedRows(wanted) if terms.order else None
        self._left = terms.top
        self._to_skip = terms.skip
        self._most = LOOKED_AT_ONCE
        self._waiting: Entries = []
        """Records that were taken and not judged yet, because judging those before them took
        long."""
        self._efforts = [each.effort for each in _filters(terms)]
        """Work accounts of the query's own filters."""
        self._limits_worked = 0
        """Steps of row filters, whose work no query pays."""
        self._given_up = self._count_given_up()
        self._has_filters = bool(_filters(terms))
        self._asks_around = any(each.asks_around for each in _filters(terms))
        self._builders = RecordBuilders()
        self._rows: list[Row] = []
        self._rows_bytes = 0
        self.left: list[Row] = []
        self.sent = 0
        self.matches = 0
        self.looked_at = 0
        self.done = False

    @property
    def must_wait(self) -> bool:
        """Returns whether the query waits, because the filters of its user have used too much
        work."""
        budget = self._terms.budget
        return budget is not None and budget.is_low and bool(self._efforts)

    @property
    def memory_bytes(self) -> int:
        """Returns the memory that the query keeps: records that were changed since it began, and
        rows that wait to be ordered."""
        ordered = 0 if self._ordered is None else self._ordered.memory_bytes
        return ordered + sum(part.source.saved_bytes for part, _ in self._parts)

    def close(self) -> None:
        self.done = True
        for part, _ in self._parts:
            part.source.close()

    def turn(self, is_over: Callable[[], bool]) -> list[list[Row]]:
        """Continues until the turn is over. Returns the frames of rows to send.

        Raises:
            RemoteProtocolError: more rows wait for their order than may: `too_large`. To judge a
                record takes the filter more than it may: `filter_too_costly`.
            CorruptRecord: an entry on disk is no record.
        """
        frames: list[list[Row]] = []
        while not self.done:
            if self._at < len(self._parts):
                self._look(frames)
            else:
                self._end(frames)
            if is_over():
                break
        return frames

    def _look(self, frames: list[list[Row]]) -> None:
        part, reader = self._parts[self._at]
        entries = self._waiting or part.source.take(self._most)
        before = self._worked()
        if reader.read is not None:
            judged = self._judge_bodies(part, reader, entries, frames)
        else:
            judged = self._judge_each(part, reader, entries, frames)
        self.looked_at += judged
        self._waiting = entries[judged:]
        if self._efforts and self._count_given_up() != self._given_up:
            raise RemoteProtocolError(
                "the filter works too much for one of the records: look at shorter texts and "
                "arrays, use fewer functions, or filter in the client",
                "filter_too_costly",
            )
        if self._worked() != before:
            # Slow judgements are made one by one.
            self._most = 1
        elif entries:
            each_bytes = sum([len(value) for _, value in entries]) // len(entries) + 1
            self._most = max(1, min(LOOKED_AT_ONCE, _LOOKED_BYTES // each_bytes))
        ordered, terms = self._ordered, self._terms
        if ordered is not None and ordered.held_bytes > terms.held_bytes_max:
            raise RemoteProtocolError(
                f"the rows that wait for their order have more than {terms.held_bytes_max} bytes: "
                "ask for fewer, with top_n or a filter, or leave out order_by",
                "too_large",
            )
        if self._waiting:
            return
        if part.source.done:
            self._at += 1
        elif self._left == 0 and ordered is None and self._is_counted():
            counts = (each.count or 0 for each, _ in self._parts)
            self.matches = sum(counts)
            for each, _ in self._parts:
                each.source.close()
            self._at = len(self._parts)

    def _worked(self) -> int:
        return sum([effort.steps for effort in self._efforts], self._limits_worked)

    def _admits(self, part: QueryPart, record: SowRecord) -> bool:
        """Returns whether a record may be noticed by the client at all."""
        name = record.topic or part.name
        if part.wants is None or part.wants(name):
            return True
        limit = None if part.limit_of is None else part.limit_of(name)
        if limit is None:
            return False
        try:
            tree = part.kind.parse(record.body or b"")
        except MessageTypeError:
            return False
        terms, before = self._terms, limit.effort.steps
        around = around_record(record, name, terms.instance, terms.group, terms.now_us)
        passes = bool(limit.matches(tree, around))
        self._limits_worked += limit.effort.steps - before
        return passes

    def _count_given_up(self) -> int:
        return sum([effort.given_up for effort in self._efforts])

    def _judge_each(
        self, part: QueryPart, reader: _Reader, entries: Entries, frames: list[list[Row]]
    ) -> int:
        """Judges entries; returns how many were judged: all, unless judging takes long."""
        before = self._worked()
        for number, (key, value) in enumerate(entries, 1):
            self._judge(part, reader, key[1:], value, frames)
            if self._worked() != before:
                return number
        return len(entries)

    def _is_counted(self) -> bool:
        return all(part.count is not None for part, _ in self._parts)

    def _judge(
        self, part: QueryPart, reader: _Reader, key: bytes, value: bytes, frames: list[list[Row]]
    ) -> None:
        record = None
        if part.wants is not None or part.now_us or self._asks_around:
            record = decoded(key, value)
            if not self._admits(part, record):
                # The record belongs to a topic that was not asked for, or may not be read: the
                # client must not notice it.
                self.looked_at -= 1
                return
            if NEVER < record.expires_us <= part.now_us:
                return
        parse = reader.parse
        tree: Tree = {}
        if parse is not None:
            try:
                tree = parse(body_of(value))
            except MessageTypeError:
                # An unreadable record passes no filter, and is ordered like one without fields.
                if self._has_filters:
                    return
        terms, around = self._terms, NO_CONTEXT
        if self._asks_around and record is not None:
            name = record.topic or part.name
            around = around_record(record, name, terms.instance, terms.group, terms.now_us)
        is_wanted = terms.filter is None or terms.filter.matches(tree, around)
        replaced = terms.replaced
        if replaced is not None:
            is_wanted = is_wanted and (terms.keys is None or key in terms.keys)
            was_wanted = replaced.had(key, tree, around)
            if was_wanted and not is_wanted:
                self.left.append(self._row(part, reader, record or decoded(key, value)))
            is_wanted = is_wanted and not (was_wanted and replaced.had_rows)
        if is_wanted:
            self._passed(part, reader, key, value, tree, frames, record)

    def _judge_bodies(
        self, part: QueryPart, reader: _Reader, entries: Entries, frames: list[list[Row]]
    ) -> int:
        """Judges records where only the bodies are needed: a third less work for each."""
        read, filter_ = reader.read, self._terms.filter
        assert read is not None and filter_ is not None
        matches, effort = filter_.matches, filter_.effort
        before = effort.steps
        trees = read(bodies_of([value for _, value in entries]))
        for number, (entry, tree) in enumerate(zip(entries, trees, strict=True), 1):
            # An unreadable record passes no filter.
            if tree is not None and matches(tree, NO_CONTEXT):
                key, value = entry
                self._passed(part, reader, key[1:], value, tree, frames)
            if effort.steps != before:
                return number
        return len(entries)

    def _passed(
        self,
        part: QueryPart,
        reader: _Reader,
        key: bytes,
        value: bytes,
        tree: Tree,
        frames: list[list[Row]],
        record: SowRecord | None = None,
    ) -> None:
        ordered = self._ordered
        self.matches += 1
        if ordered is None:
            if self._to_skip:
                self._to_skip -= 1
            elif self._left != 0:
                self._put(self._row(part, reader, record or decoded(key, value)), frames)
            return
        place = self._place(tree, key)
        if ordered.takes(place):
            ordered.put(place, self._row(part, reader, record or decoded(key, value)))

    def _row(self, part: QueryPart, reader: _Reader, record: SowRecord) -> Row:
        body = record.body or b""
        if reader.select is not None:
            body = reader.select.of_body(body)
        return self._builders.of(
            record.publisher, record.topic or part.name, reader.kind.name
        ).build(record.sequence, body, record.stamp_us, key=record.key)

    def _put(self, row: Row, frames: list[list[Row]]) -> None:
        if self._left is not None:
            self._left -= 1
        self.sent += 1
        rows = self._rows
        if rows and self._rows_bytes + len(row) > FRAME_BYTES_MAX:
            frames.append(rows)
            rows = self._rows = []
            self._rows_bytes = 0
        rows.append(row)
        self._rows_bytes += len(row)
        if len(rows) >= self._terms.batch:
            frames.append(rows)
            self._rows = []
            self._rows_bytes = 0

    def _end(self, frames: list[list[Row]]) -> None:
        """Adds, after the last record, the rows that waited to be ordered, and the last frame."""
        rows: list[Row] = []
        if self._ordered is not None:
            rows = self._ordered.take(_ROWS_AT_ONCE)
            for row in rows:
                if self._to_skip:
                    self._to_skip -= 1
                else:
                    self._put(row, frames)
        if not rows:
            if self._rows:
                frames.append(self._rows)
                self._rows = []
            if self._terms.counted is not None:
                self.matches, self.looked_at = self._terms.counted
            self.done = True
