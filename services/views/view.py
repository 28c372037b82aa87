"""One view of an instance: its records, as those of a SOW topic, and the fold that computes them.

A view's records are in memory and made anew at each start. They carry no bookmark: publisher 0, and
as sequence a digest of the body, so that a client compares rows of two instances as those of any
topic.
"""

from __future__ import annotations

import sys
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import islice
from typing import NamedTuple

from raylay.services.errors import ExpressionError, MessageTypeError
from raylay.services.expressions.expression import Expression, ExpressionUse, expression, nodes
from raylay.services.expressions.functions import BUILT_IN
from raylay.services.expressions.functions.registry import Functions
from raylay.services.expressions.parser import parse_assignment
from raylay.services.expressions.tree import Identifier
from raylay.services.expressions.values import Steps
from raylay.services.expressions.work import EvaluationAccount
from raylay.services.messages.types.abilities import Ability
from raylay.services.messages.types.base import MessageType, MessageTypeTable
from raylay.services.messages.types.trees import Tree
from raylay.services.sow.definition import SowTopicDefinition
from raylay.services.sow.query.record_scan import Entries
from raylay.services.sow.records import SowRecord, arrival_of, bodies_of
from raylay.services.sow.state import RecordChange, SowRules, SowState
from raylay.services.sow.topic import SowChange, SowTopic
from raylay.services.views.definition import ViewDefinition
from raylay.services.views.group_fold import GroupFold, SourceChange
from raylay.services.views.group_records import GroupRecords
from raylay.services.views.groups import GroupTable, GroupWatcher, ViewGroup
from raylay.services.views.join_fold import JoinFold, TooManyRowsError
from raylay.services.views.projection import ViewProjection
from raylay.services.views.sources import (
    SourceTopic,
    ViewSources,
    joined_sources,
    one_source,
)

VIEW_FILTER = ExpressionUse("the filter of a view", frozenset(("instance",)), deterministic=True)
FORBIDDEN_KINDS = frozenset(("binary", "protobuf", "struct", "composite-global"))
"""Message types that a view cannot have."""
_tuple_of = tuple.__new__
"""Makes a named tuple of a tuple, in half the time: some are made for each change."""
WAITING_MAX = 4_096
"""Number of changes that may wait behind one of many joined rows: some 4 MiB."""
GIVEN_AT_ONCE = 500
"""Most changes of records that a turn gives of a change of many joined rows."""
WEIGHED_EVERY = 256
"""Number of changes after which the memory of a view is looked at."""


class ViewPlan(NamedTuple):
    """A view as it is compiled, before any topic is opened.

    Attributes:
        sources: the topics under the view.
        grouping: steps of the grouping fields in a member's message.
        projection: the view's fields.
        filter: the filter of records; None: there is none.
        keys: identifiers of the view's own fields that hold the grouping fields; none: not all
            grouping fields are in the view.
    """

    definition: ViewDefinition
    sources: ViewSources
    grouping: tuple[Steps, ...]
    projection: ViewProjection
    filter: Expression | None
    keys: tuple[str, ...]


def view_plan(
    definition: ViewDefinition,
    kinds: MessageTypeTable,
    known: Iterable[SourceTopic],
    functions: Functions = BUILT_IN,
    effort: EvaluationAccount | None = None,
) -> ViewPlan:
    """Compiles a view.

    Args:
        kinds: the message types.
        known: the topics that may be under it: SOW topics, and the views before it.
        effort: account of the work of the projection; None: it is an operator's, and not limited.

    Raises:
        ExpressionError: one of its texts cannot be read, or asks for what views do not have; with
            text and column.
        MessageTypeError: a message type cannot be used in or under a view.
    """
    kind = kinds[definition.message_type]
    if kind.kind in FORBIDDEN_KINDS:
        raise MessageTypeError(
            f"a view cannot have messages of type {kind.name}: give it a type that has fields of "
            "any name, such as json",
            kind.name,
        )
    types: dict[str, list[str]] = {}
    for topic in known:
        types.setdefault(topic.topic, []).append(topic.message_type)
    sources = _sources_of(definition, types)
    for each in sources.joined:
        kinds[each.topic.message_type].require(Ability.FIELDS)
    projection = ViewProjection(definition.projection, kind, functions, sources, effort)
    grouping = tuple(_grouping_steps(text, sources, functions) for text in definition.grouping)
    found = expression(definition.filter, VIEW_FILTER, functions) if definition.filter else None
    copies = [projection.copies.get(steps) for steps in grouping]
    keys = tuple("/" + "/".join(each) for each in copies if each is not None)
    return ViewPlan(
        definition, sources, grouping, projection, found, keys if None not in copies else ()
    )


def _sources_of(definition: ViewDefinition, types: Mapping[str, Sequence[str]]) -> ViewSources:
    if definition.joins:
        return joined_sources(definition.joins, types, definition.message_type)
    known = types.get(definition.topic, ())
    message_type = definition.topic_type or definition.message_type
    if not definition.topic_type and message_type not in known and len(known) == 1:
        message_type = known[0]
    if message_type not in known:
        raise ExpressionError(
            f"there is no SOW topic, view or queue {message_type}/{definition.topic}, which view "
            f"{definition.name} is over: define it before the view",
            1,
            definition.topic,
        )
    return one_source(message_type, definition.topic)


def _grouping_steps(text: str, sources: ViewSources, functions: Functions) -> Steps:
    try:
        found = parse_assignment(f"{text} AS /group", functions, topics=sources.step).value
    except ExpressionError as error:
        error.expression = text
        raise
    if not isinstance(found, Identifier):
        raise ExpressionError("a grouping is a field, such as /carrier", found.column, text)
    return found.steps if sources.is_join else found.steps[1:]


class _LongChange(NamedTuple):
    """A change of many joined rows that is folded in turns.

    Attributes:
        work: the fold, which yields between two parts.
        txid, at_us: transaction and receive time of the change.
        needs_records: whether the records of groups before the change are kept.
    """

    work: Iterator[None]
    txid: int
    at_us: int
    needs_records: bool


class View(GroupWatcher):
    """See the file's docstring.

    Owner: the instance's loop. Lifecycle: one life of the instance.

    Args:
        plan: the compiled view.
        kinds: the message types.
        under: the topics under the view, in the order of the plan's sources.

    Attributes:
        topic: the view's records, as a topic that can be queried and followed.
        under: the topics under it.
        given: number of changes of groups, whether anybody followed them or not.
        is_followed: whether somebody needs the changes: `flush` returns none otherwise.
        is_patient: whether a change of many joined rows may be folded in turns (`go_on`).
        is_missed: whether somebody follows the view while it is built, who is given what changes
            meanwhile when it is built.
    """

    def __init__(self, plan: ViewPlan, kinds: MessageTypeTable, under: Sequence[SowTopic]) -> None:
        self._plan = plan
        definition = self.definition = plan.definition
        kind: MessageType = kinds[definition.message_type]
        own = SowTopicDefinition(
            definition.name,
            definition.message_type,
            keys=plan.keys,
            key_domain=(definition.key_domain or definition.name) if plan.keys else "",
            transient=True,
            hash_indexes=definition.hash_indexes,
        )
        self.under = tuple(under)
        self.given = 0
        self.is_followed, self.is_missed, self.is_patient = True, False, False
        self._long: _LongChange | None = None
        """The change that is being folded in turns; None: there is none."""
        self._waiting: deque[tuple[int, SourceChange, int]] = deque()
        """The changes behind it."""
        self._is_going_on = self._is_giving = False
        domain = definition.key_domain or definition.name
        passes = None if plan.filter is None else plan.filter.matches
        self._single: GroupFold | None = None
        self._joined: JoinFold | None = None
        if plan.sources.is_join:
            self._joined = JoinFold(
                plan.projection,
                plan.grouping,
                domain,
                plan.sources,
                null_equals=definition.null_equals,
                watcher=self,
            )
            names = self._joined.names
            groups = self._joined.groups
        else:
            self._single = GroupFold(plan.projection, plan.grouping, domain, passes, self)
            names = (_names_of(plan),)
            groups = self._single.groups
        self._records = GroupRecords(groups, kind)
        self.topic = SowTopic(own, kind, SowState(SowRules(), self._records, kept=False))
        # There are no records yet: the indexes get each change.
        self.topic.index()
        indexes = self.topic.indexes
        self._has_indexes = indexes is not None and indexes.need_bodies
        self._groups = groups
        self._parsers = tuple(
            topic.type.parser_of(each) for topic, each in zip(self.under, names, strict=True)
        )
        self._memory_bytes_max = definition.memory_bytes_max
        self._readers = tuple(
            topic.type.reader_of(each) for topic, each in zip(self.under, names, strict=True)
        )
        self._takes = 0
        self._missed: dict[bytes, None] = {}
        """Groups that have changed while the view is built and followed, by key."""
        self._before: dict[bytes, SowRecord | None] = {}
        """Records of groups as they were before a change that is not given yet, by key; None: there
        was none."""
        self._changed: dict[bytes, ViewGroup] = {}
        """Groups that have changed and are not given yet, by key."""

    # -- folding -------------------------------------------------------------------------------
    def take(
        self, number: int, record: SowRecord | None, key: bytes, txid: int, at_us: int
    ) -> None:
        """Folds a change of a record under the view; `flush` gives what it changed.

        Args:
            number: number of the record's topic.
            record: the record as it is now; None: it is gone.
            txid, at_us: transaction and receive time of the change.
        """
        if self.topic.refusal:
            return
        self._takes += 1
        if not self._takes % WEIGHED_EVERY and self._is_too_large():
            return
        change = _tuple_of(SourceChange, (key, self._tree(number, record), txid))
        if not self.is_behind:
            self._fold(number, change, at_us)
            return
        self._waiting.append((number, change, at_us))
        if len(self._waiting) > WAITING_MAX:
            # Their memory is bounded: from here on the instance waits for the view.
            self._go_on(lambda: False)

    def _is_too_large(self) -> bool:
        """Returns whether the view takes too much memory: it is then out of service."""
        if self.memory_bytes <= self._memory_bytes_max:
            return False
        self.close(
            f"view {self.definition.name} would take more than {self._memory_bytes_max:,} "
            "bytes and is out of service until the next start: group by fewer values, or "
            "allow it more with memory_bytes_max"
        )
        return True

    def _fold(self, number: int, change: SourceChange, at_us: int) -> None:
        """Folds a change of a record under the view, or begins to."""
        topic = self.topic
        needs_records = self.is_followed or self._has_indexes or topic.state.is_watched
        self._groups.is_watched = needs_records
        if self._single is not None:
            self._note(self._single.change(change), change.txid, at_us, needs_records)
            return
        assert self._joined is not None
        is_long = self.is_patient and (topic.is_built or self._is_going_on)
        work = self._joined.folding(number, change)
        try:
            for _ in work:
                if is_long:
                    self._long = _LongChange(work, change.txid, at_us, needs_records)
                    # Who asks the view waits.
                    topic.is_built = False
                    return
        except TooManyRowsError as error:
            self._close_for(error)
            return
        self._note(self._joined.touched, change.txid, at_us, needs_records)

    def _close_for(self, error: TooManyRowsError) -> None:
        name = self.definition.name
        self.close(f"view {name} is out of service until the next start: {error}")

    def _note(
        self, touched: Sequence[ViewGroup], txid: int, at_us: int, needs_records: bool
    ) -> None:
        """Notes the groups that a change touched."""
        state = self.topic.state
        state.count = len(self._groups.by_texts)
        if txid > state.txid:
            state.txid = txid
        for group in touched:
            group.txid, group.at_us = txid, at_us
            if needs_records or self.definition.inline:
                # Changes are given in the order of each group's last change.
                changed, key = self._changed, group.key
                if key in changed:
                    del changed[key]
                changed[key] = group
            else:
                self.given += 1
            if self.is_missed:
                self._missed[group.key] = None

    # -- changes of many joined rows -----------------------------------------------------------
    @property
    def is_behind(self) -> bool:
        """Returns whether a change is being folded in turns, or others wait behind it."""
        return self._long is not None or self._is_giving or bool(self._waiting)

    def go_on(self, is_over: Callable[[], bool]) -> list[SowChange]:
        """Folds on the change of many rows, and those behind it, until the time is over. Returns
        the changes of the view's records, at most `GIVEN_AT_ONCE`: the next turn returns more,
        because those who follow the view need time for each."""
        if not self._is_giving:
            self._go_on(is_over)
            if self.is_behind or self.topic.refusal:
                return []
        found = self._flushed(GIVEN_AT_ONCE)
        self._is_giving = bool(self._changed)
        self.topic.is_built = not self.is_behind
        if self._is_giving:
            return found
        return [*found, *self._given_late()]

    def _go_on(self, is_over: Callable[[], bool]) -> None:
        self._is_going_on = True
        while self._long is not None or self._waiting:
            if self._long is None:
                self._fold(*self._waiting.popleft())
            else:
                self._fold_on(self._long, is_over)
            if is_over():
                break
        self._is_going_on = False
        self.topic.is_built = not self.is_behind

    def _fold_on(self, long: _LongChange, is_over: Callable[[], bool]) -> None:
        assert self._joined is not None
        try:
            for _ in long.work:
                if is_over():
                    return
        except TooManyRowsError as error:
            self._close_for(error)
            return
        self._long = None
        self._note(self._joined.touched, long.txid, long.at_us, long.needs_records)

    def came(self, group: ViewGroup) -> None:
        """Notes the texts of a new group in the indexes."""
        if self.topic.indexes is not None:
            self.topic.indexes.key_texts(group.texts)

    def touching(self, group: ViewGroup) -> None:
        """Keeps the record of a group that is about to change."""
        key = group.key
        if key in self._before:
            return
        previous = self._records.of(group) if group.members else None
        self._before[key] = previous
        self.topic.state.changing(key, previous)

    def close(self, refusal: str) -> None:
        """Takes the view out of service, because its records would be wrong from now on.

        Args:
            refusal: the reason, as a sentence.
        """
        topic = self.topic
        topic.refusal = refusal
        # A query that has begun goes on with the records as they were.
        topic.state = SowState(SowRules(), kept=False)
        topic.indexes = None
        topic.is_built = True
        self._long, self._is_giving = None, False
        self._waiting.clear()
        self._changed.clear()
        self._before.clear()
        self._single = self._joined = None
        self._groups = GroupTable(self._plan.projection, (), "")
        self._records = GroupRecords(self._groups, topic.type)

    def _tree(self, number: int, record: SowRecord | None) -> Tree | None:
        if record is None:
            return None
        try:
            return self._parsers[number](record.body or b"")
        except MessageTypeError:
            # An unreadable record counts as gone.
            return None

    def flush(self) -> list[SowChange]:
        """Returns the changes of the view's records, in order, since the last call."""
        if self._long is not None or self._is_giving:
            return []
        return self._flushed(sys.maxsize)

    def _flushed(self, most: int) -> list[SowChange]:
        """Returns the first changes of the view's records, a limited number."""
        changed, before = self._changed, self._before
        if not changed and not before:
            return []
        if not self.is_followed and not self._has_indexes:
            self._changed, self._before = {}, {}
            self.given += len(changed)
            return []
        if len(changed) <= most:
            self._changed, self._before = {}, {}
        else:
            changed = {key: changed.pop(key) for key in list(islice(changed, most))}
            before = {key: before.pop(key) for key in changed if key in before}
        found = []
        topic = self.topic
        indexes = topic.indexes
        for key, group in changed.items():
            change = self._change(before.get(key), group)
            if change is None:
                continue
            self.given += 1
            if indexes is not None:
                indexes.changed(change)
            if self.is_followed:
                found.append(_tuple_of(SowChange, (topic, topic.name, change, None)))
        return found

    def _change(self, previous: SowRecord | None, group: ViewGroup) -> RecordChange | None:
        """Returns the change of a group; None: it came and went."""
        if group.members:
            current = self._records.of(group)
            reason = "inserted" if previous is None else "updated"
            return _tuple_of(RecordChange, (group.key, previous, current, reason))
        if previous is None:
            return None
        return RecordChange(group.key, previous, None, "deleted")

    # -- beginning -----------------------------------------------------------------------------
    @property
    def sources(self) -> tuple[SowTopic, ...]:
        """Returns the topics under the view."""
        return self.under

    def load(self, number: int, entries: Entries) -> None:
        """Takes present records of a topic under the view, while the view is built."""
        if self.topic.refusal:
            return
        self.is_followed = self.is_missed = False
        trees = self._readers[number](bodies_of(value for _, value in entries))
        for (key, value), tree in zip(entries, trees, strict=True):
            self._takes += 1
            if not self._takes % WEIGHED_EVERY and self._is_too_large():
                return
            txid, at_us = arrival_of(value)
            self._fold(number, _tuple_of(SourceChange, (key[1:], tree, txid)), at_us)
            if self.topic.refusal:
                return
        self.flush()

    def began(self) -> list[SowChange]:
        """Notes that the view is built. Returns the records of groups that changed meanwhile, for
        those who follow the view already: to them each of these is new."""
        self.given = self._takes = 0
        groups = self._groups
        groups.inserted = groups.deleted = 0
        return self._given_late()

    def _given_late(self) -> list[SowChange]:
        groups = self._groups
        missed, self._missed = self._missed, {}
        found = []
        for key in missed:
            group = groups.by_key.get(key)
            if group is not None:
                change = RecordChange(key, None, self._records.of(group), "inserted")
                found.append(SowChange(self.topic, self.topic.name, change, None))
        return found

    # -- status --------------------------------------------------------------------------------
    @property
    def memory_bytes(self) -> int:
        """Returns the approximate memory of the view's fold and records."""
        fold = self._single or self._joined
        if fold is None:
            return 0
        return fold.memory_bytes

    def status(self) -> dict[str, int]:
        """Returns the view's part of the instance's status."""
        groups = self._groups
        return {
            "records": self.topic.state.count,
            "taken": self._takes,
            "updates": self.given,
            "inserted": groups.inserted,
            "updated": max(0, self.given - groups.inserted - groups.deleted),
            "deleted": groups.deleted,
            "backlog": len(self._waiting) + (self._long is not None),
            "memory_bytes": self.memory_bytes,
        }


def _names_of(plan: ViewPlan) -> frozenset[str]:
    """Returns the first steps of all fields that a view over one topic reads."""
    steps = {*plan.projection.reads, *plan.grouping}
    if plan.filter is not None:
        steps |= {each.steps for each in nodes(plan.filter.tree) if isinstance(each, Identifier)}
    return frozenset(str(each[0]) for each in steps)
