"""A query in turns: records of SOW topics into rows, a millisecond or two at a time.

Each turn takes some records as they were when the query began (record_scan.py), reads them once,
asks the filter, and cuts what passes to frames of rows. Rows without an order go out as they are
found. With one they are kept until all are in (ordering.py), so that what they take of memory is
bounded.
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
from raylay.services.messages.records import RecordBuilder
from raylay.services.messages.types.base import MessageType
from raylay.services.messages.types.trees import Tree
from raylay.services.sow.query.as_of import AsOf
from raylay.services.sow.query.ordering import SortedRows, SortTerm, placing
from raylay.services.sow.query.planning import around_record
from raylay.services.sow.query.projection import Projection
from raylay.services.sow.query.record_scan import Entries
from raylay.services.sow.records import NEVER, SowRecord, bodies_of, body_of, decoded, encoded

FRAME_BYTES_MAX = 1024 * 1024
"""Bytes of the rows in one frame; a row that is larger is in one of its own."""
HELD_BYTES_MAX = 64 * 1024 * 1024
LOOKED_AT_ONCE = 128
"""Records between two looks at the clock, at most."""
_LOOKED_BYTES = 128 * 1024
_ROWS_AT_ONCE = 256
_BUILDERS_MAX = 1_024

Row = bytes


class RecordSource(Protocol):
    """The records of a topic, taken in turns (`RecordScan`)."""

    done: bool
    saved_bytes: int
    """Bytes of the records that it keeps for whoever takes them, since they were changed
    meanwhile."""

    def take(self, most: int) -> Entries:
        """The next ones, and none before `done`: there may be more."""

    def close(self) -> None:
        """No more will be taken."""


class VersionSource:
    """The records of a moment as a source: the last version of each key that had come by then.

    Args:
        versions: of a history, by key and time (state.SowState.versions).
        past: the moment.
        keys: of these records; None: of all.
    """

    def __init__(
        self, versions: Iterator[SowRecord], past: AsOf, keys: frozenset[bytes] | None = None
    ) -> None:
        self._versions = versions
        self._past = past
        self._keys = keys
        self._last: SowRecord | None = None
        """Last version of the key that is being looked at."""
        self.done = False
        self.saved_bytes = 0
        # The first one fixes of when they are.
        self._next = next(versions, None)

    def take(self, most: int) -> Entries:
        """The next ones. A key may have many versions: that many of those are looked at."""
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
        """No more will be taken."""
        self.done = True
        self._next = self._last = None
        self._versions = iter(())


@dataclass(slots=True)
class QueryPart:
    """One topic of a query.

    Attributes:
        name: of the topic, where its records say none.
        kind: the type of its messages.
        source: its records.
        count: how many there are, where all are asked for; None: nobody knows.
        wants: whether records of a logical topic are asked for; None: there is one topic.
        now_us: what expires up to then is gone; 0: nothing expires.
    """

    name: bytes
    kind: MessageType
    source: RecordSource
    count: int | None = None
    wants: Callable[[bytes], bool] | None = None
    now_us: int = 0


@dataclass(frozen=True, slots=True)
class ReplacedFocus:
    """The focus of a subscription whose filter is replaced.

    Attributes:
        filter: None: it was true of all.
        keys: of these records; None: of all.
        had_rows: whether it was given what was in its focus: rows are then what is new in it.
    """

    filter: Expression | None = None
    keys: frozenset[bytes] | None = None
    had_rows: bool = True

    def had(self, key: bytes, tree: Tree, around: EvalContext) -> bool:
        """Returns whether a record was in it."""
        if self.keys is not None and key not in self.keys:
            return False
        return self.filter is None or self.filter.matches(tree, around)


@dataclass(frozen=True, slots=True)
class QueryTerms:
    """The terms of a query on the records.

    Attributes:
        filter: None: all.
        select: the select list; empty: all fields.
        order: the fields that rows are ordered by; none: they come by SOW key.
        top: so many rows at most; None: all.
        skip: so many are left out before.
        batch: rows in a frame, at most.
        instance, group: names of the instance that is asked.
        now_us: by the clock on the wall.
        held_bytes_max: of rows that wait for their order.
        keys: of these records; None: of all.
        replaced: the focus of the subscription that gets this one; None: there is none.
        budget: of who asks, for what the filter works; None: it may take what it takes.
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


def _filters(terms: QueryTerms) -> list[Expression]:
    before = None if terms.replaced is None else terms.replaced.filter
    return [each for each in (terms.filter, before) if each is not None]


def _with_own_filters(terms: QueryTerms) -> QueryTerms:
    """Copies the terms: work that others did for the same filter is not taken for this query's."""
    payers = () if terms.budget is None else (QueryPayer(terms.budget),)
    if terms.filter is not None:
        terms = replace(terms, filter=terms.filter.own(*payers))
    before = terms.replaced
    if before is not None and before.filter is not None:
        terms = replace(terms, replaced=replace(before, filter=before.filter.own(*payers)))
    return terms


class _Reader:
    """Reads the records of one topic for one query."""

    __slots__ = ("kind", "parse", "read", "select")

    def __init__(self, part: QueryPart, terms: QueryTerms) -> None:
        self.kind = part.kind
        self.select = Projection(terms.select, part.kind) if terms.select else None
        self.parse: Callable[[bytes], Tree] | None = None
        self.read: Callable[[Sequence[bytes]], list[Tree | None]] | None = None
        """Function that reads bodies where a filter is asked, and of nothing but the bodies."""
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
    """See the file's docstring.

    Owner: who asks. Lifecycle: until `done`, or `close`.

    Args:
        parts: the topics, in order.
        terms: what is asked.

    Attributes:
        sent: rows so far.
        left: where a filter is replaced: what it was true of and the new one is not. Who takes
            it away leaves room for more.
        looked_at: records of the topics that are asked for, whether they passed or not.
        matches: records that passed the filter so far; those that are known without a look, too.

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
        """Taken, and not looked at: to judge those before them took long."""
        self._efforts = [each.effort for each in _filters(terms)]
        """Efforts of its own filters."""
        self._given_up = self._count_given_up()
        self._asks_around = any(each.asks_around for each in _filters(terms))
        self._builders: dict[tuple[int, bytes, str], RecordBuilder] = {}
        self._rows: list[Row] = []
        self._rows_bytes = 0
        self.left: list[Row] = []
        self.sent = 0
        self.matches = 0
        self.looked_at = 0
        self.done = False

    @property
    def must_wait(self) -> bool:
        """Returns whether its user's filters have worked so much that this one waits for a
        while."""
        budget = self._terms.budget
        return budget is not None and budget.is_low and bool(self._efforts)

    @property
    def memory_bytes(self) -> int:
        """Memory that it keeps: of what was changed since it began, and rows that wait for their
        order."""
        ordered = 0 if self._ordered is None else self._ordered.memory_bytes
        return ordered + sum(part.source.saved_bytes for part, _ in self._parts)

    def close(self) -> None:
        """Ends it early."""
        self.done = True
        for part, _ in self._parts:
            part.source.close()

    def turn(self, is_over: Callable[[], bool]) -> list[list[Row]]:
        """Goes on until the turn is over. What it gives is sent as it is, a frame each.

        Raises:
            RemoteProtocolError: more rows wait for their order than may: `too_large`. To judge a
                record takes the filter more than it may: `filter_too_costly`.
            CorruptRecord: what is on disk is no record.
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
            # What takes long to judge is taken one by one.
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
        return sum([each.steps for each in self._efforts])

    def _count_given_up(self) -> int:
        return sum([each.given_up for each in self._efforts])

    def _judge_each(
        self, part: QueryPart, reader: _Reader, entries: Entries, frames: list[list[Row]]
    ) -> int:
        """Judges entries; returns the number of those judged: all, unless it takes long."""
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
            if part.wants is not None and not part.wants(record.topic or part.name):
                # It is not of what was asked: nothing tells that it is there.
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
                # What cannot be read passes no filter, and stands where nothing is.
                if self._terms.filter is not None or self._terms.replaced is not None:
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
        """Judges records where nothing but the bodies is asked: a third less work for each of
        them."""
        read, filter_ = reader.read, self._terms.filter
        assert read is not None and filter_ is not None
        matches, effort = filter_.matches, filter_.effort
        before = effort.steps
        trees = read(bodies_of([value for _, value in entries]))
        for number, (entry, tree) in enumerate(zip(entries, trees, strict=True), 1):
            # What cannot be read passes no filter.
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
        return self._builder(record.publisher, record.topic or part.name, reader.kind.name).build(
            record.sequence, body, record.stamp_us, key=record.key
        )

    def _builder(self, publisher: int, topic: bytes, kind: str) -> RecordBuilder:
        key = (publisher, topic, kind)
        found = self._builders.get(key)
        if found is None:
            if len(self._builders) >= _BUILDERS_MAX:
                self._builders.clear()
            found = self._builders[key] = RecordBuilder(publisher, topic.decode(), kind)
        return found

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
        """Puts, behind the last record, what waits for its order, and the rows of the last
        frame."""
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
            self.done = True
