"""A conflated topic: the records of another topic, each given at most once an interval
(behaviour.md 4.5).

The first change of a key begins the key's interval. Until its end the conflated topic has the key
as it was; then it takes the value that the topic underneath has.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from raylay.services.errors import ExpressionError, MessageTypeError
from raylay.services.expressions.expression import Expression, ExpressionUse, expression
from raylay.services.expressions.functions import BUILT_IN
from raylay.services.expressions.functions.registry import NO_CONTEXT, Functions
from raylay.services.messages.types.abilities import Ability
from raylay.services.messages.types.base import MessageType, MessageTypeTable, ParsedBody
from raylay.services.messages.types.trees import field_path
from raylay.services.sow.definition import SowTopicDefinition
from raylay.services.sow.enrichment import Enrichment, written
from raylay.services.sow.query.record_scan import Entries
from raylay.services.sow.records import SowRecord, decoded
from raylay.services.sow.state import RecordChange, SowRules, SowState
from raylay.services.sow.topic import SowChange, SowTopic
from raylay.services.subscriptions.conflation import Conflator
from raylay.services.views.building import TopicBuild
from raylay.services.views.definition import ConflatedTopicDefinition
from raylay.services.views.sources import SourceTopic
from raylay.services.views.view import VIEW_FILTER

CONFLATED_ENRICHMENT = ExpressionUse(
    "the enrichment of a conflated topic", frozenset(), deterministic=True
)


class ConflatedPlan(NamedTuple):
    """A conflated topic as it is compiled, before any topic is opened.

    Attributes:
        filter: filter of the records of the topic under it; None: all count.
        enrichment: sets fields of the records that pass, when they are given; None: none.
    """

    definition: ConflatedTopicDefinition
    filter: Expression | None
    enrichment: Enrichment | None


def conflated_plan(
    definition: ConflatedTopicDefinition,
    kinds: MessageTypeTable,
    known: Mapping[SourceTopic, str],
    functions: Functions = BUILT_IN,
) -> ConflatedPlan:
    """Compiles a conflated topic.

    Args:
        known: the topics that may be under it, each with its pattern or an empty text: SOW topics,
            views, and conflated topics before it.

    Raises:
        ExpressionError: one of its expressions cannot be read, or there is no such topic.
        MessageTypeError: messages of the type have no fields that could be filtered, or cannot be
            written so.
    """
    under = SourceTopic(definition.message_type, definition.topic)
    if under not in known:
        raise ExpressionError(
            f"there is no SOW topic or view {under.message_type}/{under.topic}, which conflated "
            f"topic {definition.name} is over: define it before",
            1,
            definition.topic,
        )
    if bool(known[under]) != bool(definition.topic_format):
        problem = (
            f"has a pattern: give conflated topic {definition.name} a topic_format, such as "
            f"{definition.name}/%n"
            if known[under]
            else f"has no pattern: leave out the topic_format of conflated topic {definition.name}"
        )
        raise ExpressionError(f"{definition.topic} {problem}", 1, definition.topic)
    kind = kinds[definition.message_type]
    passes = enrichment = None
    if definition.filter:
        kind.require(Ability.FIELDS)
        passes = expression(definition.filter, VIEW_FILTER, functions)
    if definition.enrichment:
        enrichment = Enrichment(definition.enrichment, kind, functions, CONFLATED_ENRICHMENT)
    return ConflatedPlan(definition, passes, enrichment)


class ConflatedTopic:
    """See the file's docstring.

    Owner: the instance's loop. Lifecycle: one life of the instance.

    Args:
        plan: the compiled topic.
        under: the topic under it.

    Attributes:
        topic: the conflated records, as a topic that can be queried and followed.
        taken: number of changes of the topic under it that pass the filter.
        inserted, updated, deleted: number of changes that were given.
        executions: number of times at which changes were given.
        spent_us: time that giving them took, in microseconds.
    """

    def __init__(self, plan: ConflatedPlan, under: SowTopic) -> None:
        definition = self.definition = plan.definition
        self.under = under
        below = under.definition
        set_here = set() if plan.enrichment is None else set(plan.enrichment.paths)
        # Keys cannot be made from fields that the enrichment sets.
        keys = () if set_here.intersection(map(field_path, below.keys)) else below.keys
        own = SowTopicDefinition(
            definition.name,
            definition.message_type,
            # With a pattern, keys are never made from fields.
            keys=below.keys if definition.pattern else keys,
            # The keys are those of the topic under it.
            key_domain=(below.key_domain or below.name) if keys and not definition.pattern else "",
            key_generator=below.key_generator if definition.pattern else "",
            pattern=definition.pattern,
            transient=True,
            hash_indexes=definition.hash_indexes,
        )
        self._kind: MessageType = under.type
        self._passes = plan.filter
        self._enrichment = plan.enrichment
        self.topic = SowTopic(own, under.type, SowState(SowRules(), kept=False))
        # There are no records yet: the indexes get each change.
        self.topic.index()
        self._conflator: Conflator[SowRecord] = Conflator(definition.interval_us, _size_of)
        self.taken = self.inserted = self.updated = self.deleted = 0
        self.executions = self.spent_us = 0

    def _passing(self, record: SowRecord | None) -> SowRecord | None:
        """Returns a record if it passes the filter."""
        if record is None or self._passes is None:
            return record
        try:
            tree = self._kind.parse(record.body or b"")
        except MessageTypeError:
            return None
        return record if self._passes.matches(tree, NO_CONTEXT) else None

    def _given(self, record: SowRecord) -> SowRecord:
        """Returns a record as it is given: with its topic here, and with the computed fields. One
        that cannot be read has none."""
        if self.definition.topic_format:
            record = record._replace(topic=self.definition.topic_of(record.topic))
        if self._enrichment is None:
            return record
        body = record.body or b""
        try:
            tree = self._kind.parse(body)
            made = written(self._kind, ParsedBody(body, tree), self._enrichment(tree))
        except MessageTypeError:
            return record
        return record._replace(body=made)

    def take(self, change: RecordChange, now_us: int) -> None:
        """Takes a change of the topic under it.

        Args:
            now_us: time by a clock that is never set back.
        """
        if self.topic.refusal:
            return
        before = self._passing(change.previous)
        now = self._passing(change.current)
        if before is not None or now is not None:
            self.taken += 1
            self._conflator.change(change.key, before, now, now_us, change.reason)

    def look_under(self) -> None:
        """Goes out of service if the topic under it has."""
        if self.under.refusal and not self.topic.refusal:
            self.topic.refusal = (
                f"conflated topic {self.definition.name} is over another one: {self.under.refusal}"
            )
            self.topic.state = SowState(SowRules(), kept=False)
            self.topic.indexes = None
            self._conflator.all()

    @property
    def next_due_us(self) -> int | None:
        """Returns the time at which the next key is due; None: none is pending."""
        return self._conflator.next_due_us

    def due(self, now_us: int, most: int) -> list[SowChange]:
        """Returns the changes of keys whose interval has ended, a limited number."""
        found = []
        for each in self._conflator.due(now_us, most):
            if each.now is None:
                change = self.topic.state.delete(each.key, 0, 0, _gone(each.reason))
            else:
                change = self.topic.state.put_computed(self._given(each.now))
            if change is None:
                continue
            if self.topic.indexes is not None:
                self.topic.indexes.changed(change)
            if change.previous is None:
                self.inserted += 1
            elif change.current is None:
                self.deleted += 1
            else:
                self.updated += 1
            shown = change.current or change.previous
            assert shown is not None
            found.append(SowChange(self.topic, shown.topic or self.topic.name, change, None))
        if found:
            self.executions += 1
        return found

    def build(self) -> None:
        """Takes all present records of the topic under it at once."""
        TopicBuild((self,)).take(lambda: False)

    @property
    def sources(self) -> tuple[SowTopic, ...]:
        """Returns the topic under it."""
        return (self.under,)

    def load(self, number: int, entries: Entries) -> None:
        """Takes present records of the topic under it.

        Raises:
            SowDamaged: an entry is no record.
        """
        self.look_under()
        if self.topic.refusal:
            return
        for key, value in entries:
            pending = self._conflator.pending(key[1:])
            if pending is not None:
                # Its change is given when it is due; until then the key is as it was before.
                record = pending.before
            else:
                record = self._passing(decoded(key[1:], value))
            if record is None:
                continue
            change = self.topic.state.put_computed(self._given(record))
            if self.topic.indexes is not None:
                self.topic.indexes.changed(change)

    def status(self) -> Mapping[str, int]:
        """Returns the topic's part of the instance's status."""
        return {
            "records": self.topic.state.count,
            "pending": len(self._conflator),
            "pending_bytes": self._conflator.pending_bytes,
            "conflated": self._conflator.replaced,
            "taken": self.taken,
            "updates": self.inserted + self.updated + self.deleted,
            "inserted": self.inserted,
            "updated": self.updated,
            "deleted": self.deleted,
            "executions": self.executions,
            "spent_us": self.spent_us,
        }


def _size_of(record: SowRecord) -> int:
    return len(record.body or b"") + 200


def _gone(reason: str) -> str:
    """Returns the reason with which a record leaves: one that left the filter is deleted here."""
    return reason if reason in ("deleted", "expired") else "deleted"
