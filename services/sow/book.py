"""All SOW topics of an instance, in the order of its configuration."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Protocol

from raylay.services.messages.stateful import Stateful
from raylay.services.messages.topics import TOPIC_CACHE_MAX, TopicKey, TopicRule, is_regex
from raylay.services.sow.topic import SowTopic

if TYPE_CHECKING:
    from raylay.services.expressions.expression import Expression, ExpressionUse, RowLimits


class QueryWish(Protocol):
    """The topics that a query asks for (subscriptions/matching.py)."""

    topic: bytes
    message_types: frozenset[bytes]
    readable: Callable[[bytes], bool] | None
    """Returns whether all of a topic may be read that a pattern matches; None: all may be read."""
    rows: RowLimits | None
    """The row filters of topics of which only some records may be read; None: there are none."""

    @property
    def pattern(self) -> object | None:
        """Returns the expression, if the query has one; None: it asks for a topic by name."""

    def matches(self, topic: bytes, message_type: bytes) -> bool:
        """Returns whether all messages of this topic and type are wanted."""

    def wants(self, topic: bytes, message_type: bytes) -> bool:
        """Returns whether messages of this topic and type are wanted, all of them or some."""

    def limits(self, topic: bytes, message_type: bytes, use: ExpressionUse) -> Expression | None:
        """Returns the filter of the messages that may be read of a topic that a pattern matches;
        None: all may be read (`matches`), or none."""


class SowBook:
    """The SOW topics of an instance, to be found by topic or query.

    Owner: the instance's loop. Lifecycle: one life of the instance.

    Args:
        topics: the topics whose messages are journaled.
        computed: topics whose records the instance computes from others: its views.

    Attributes:
        every: all of them, in the order of the configuration.
    """

    __slots__ = ("_found", "computed", "every", "topics")

    def __init__(self, topics: Sequence[SowTopic] = (), computed: Sequence[SowTopic] = ()) -> None:
        self.topics = tuple(topics)
        self.computed = tuple(computed)
        self.every = (*self.topics, *self.computed)
        self._found: dict[TopicKey, SowTopic | None] = {}

    def __len__(self) -> int:
        return len(self.topics)

    def find(self, topic: bytes, message_type: bytes) -> SowTopic | None:
        """Returns the first SOW topic that keeps messages of this topic and type; None: none
        does."""
        key = topic, message_type
        try:
            return self._found[key]
        except KeyError:
            if len(self._found) >= TOPIC_CACHE_MAX:
                self._found.clear()
            # Nobody publishes to names that a computed topic has by a pattern.
            computed = [each for each in self.computed if each.definition.pattern]
            every = (*computed, *self.every)
            fitting = (each for each in every if each.fits(topic, message_type))
            found = self._found[key] = next(fitting, None)
            return found

    def find_kept(self, topic: bytes, message_type: bytes) -> SowTopic | None:
        """Returns the first SOW topic whose records are messages of this topic and type; None: none
        is. Messages with the name of a view are not its records: they were journaled before the
        view was declared, or came from an instance that has no such view."""
        found = self.find(topic, message_type)
        return None if found in self.computed else found

    def matching(self, wanted: QueryWish) -> tuple[SowTopic, ...]:
        """Returns the SOW topics that a query asks for. Where one has a pattern, only some of its
        records may be wanted: each record has its topic.

        Args:
            wanted: the query's topics: a name asks for the first SOW topic of each message type
                that keeps it, or for a physical topic; an expression for all that it matches.
        """
        if wanted.pattern is None:
            return self._named(wanted)
        found = []
        for topic in self.every:
            if topic.definition.pattern:
                fits = not wanted.message_types or topic.type_name in wanted.message_types
            else:
                fits = wanted.wants(topic.name, topic.type_name)
            if fits:
                found.append(topic)
        return tuple(found)

    def _named(self, wanted: QueryWish) -> tuple[SowTopic, ...]:
        kinds = wanted.message_types or {topic.type_name for topic in self.every}
        found = {id(self.find(wanted.topic, kind)) for kind in kinds}
        return tuple(
            topic
            for topic in self.every
            if id(topic) in found or (topic.name == wanted.topic and topic.type_name in kinds)
        )

    def computes_any(self, wanted: QueryWish) -> bool:
        """Returns whether a subscription asks for a topic to which no messages come, because its
        records are computed."""
        return any(is_wanted(each, wanted) for each in self.computed)

    def refusal_of(self, wanted: QueryWish) -> str:
        """Returns why a wanted topic can be neither queried nor followed: it is out of service.
        Empty: all can be used."""
        found = (each.refusal for each in self.computed if each.refusal)
        if not any(found):
            return ""
        return next((each.refusal for each in self.matching(wanted) if each.refusal), "")

    def stateful(self) -> list[tuple[TopicRule, Stateful]]:
        """Returns the preparations before the append, in order, for `TopicBook`."""
        return [(_rule(topic), topic.staging) for topic in self.topics if topic.staging is not None]


def is_wanted(topic: SowTopic, wanted: QueryWish) -> bool:
    """Returns whether a subscription may ask for records of a topic. An expression may ask for any
    topics of a pattern."""
    if wanted.wants(topic.name, topic.type_name):
        return True
    if wanted.message_types and topic.type_name not in wanted.message_types:
        return False
    if wanted.pattern is None:
        return topic.fits(wanted.topic, topic.type_name)
    return bool(topic.definition.pattern)


def _rule(topic: SowTopic) -> TopicRule:
    definition = topic.definition
    name = definition.name
    if definition.pattern:
        # Unanchored, as every pattern, even if the text looks like a name.
        name = f"(?:{definition.pattern})"
    elif is_regex(name):
        name = f"^{re.escape(name)}$"
    return TopicRule(name, definition.message_type)
