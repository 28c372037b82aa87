"""The subscriptions that want a topic. Answers are kept per topic, so a run costs one look-up."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple

from raylay.services.errors import RemoteProtocolError
from raylay.services.messages.event_topics import EVENTS, is_event_topic
from raylay.services.messages.topic_pattern import PatternError, TopicPattern
from raylay.services.messages.topics import (
    RESERVED,
    TOPIC_CACHE_MAX,
    is_regex,
    not_of_transport,
)
from raylay.services.subscriptions.follow_terms import FollowTerms

if TYPE_CHECKING:
    # Most instances have no filters, and need not load the language.
    from raylay.services.expressions.budgets import FilterBudget
    from raylay.services.expressions.expression import Expression, ExpressionUse, RowLimits

ANSWERS_KEPT_MAX = 1024
PATTERN_US = 4
"""Approximate time to match a small pattern against one topic, in microseconds."""
UNNAMED = b"\xff/"
"""Beginning of the names by which followers find views without a name. Clients write names in
UTF-8, which never has this byte, and no pattern matches such a name."""
EVENT_TYPE = b"json"
"""Message type of events for a subscription that names none."""
PLACES_MAX = 16_000_000
"""Number of subscriptions in all kept answers together, 8 bytes each; above it all answers are
dropped. 10,000 expressions that match 65,536 topics would take 5 GB."""
CHANGES_MAX = 1024
"""Number of changes of the table that are kept; after more, all answers are dropped."""


@dataclass(slots=True, eq=False)
class TopicFilter:
    """The topic and message types that one subscription wants; without message types: any type.
    The answers of its pattern are kept, because a replay asks about the same few topics run
    after run."""

    topic: bytes
    message_types: frozenset[bytes] = frozenset()
    pattern: TopicPattern | None = None
    reserved: bool = False
    """Whether the pattern may match Raylay's own topics: only when it names them."""
    events: bool = False
    """Whether the topic is an event topic, or the pattern may match event topics. A pattern does
    so only if it begins like their names."""
    readable: Callable[[bytes], bool] | None = None
    """Returns whether the client may read every message of a topic that the pattern matches; None:
    it may read all topics. A topic asked for by name was checked before."""
    rows: RowLimits | None = None
    """The row filters of topics that the client may read in part; None: there are no such
    topics."""
    shown_as: bytes = b""
    """Topic as the client subscribed to it, where `topic` is another; empty: it is not."""
    _answers: dict[bytes, bool] = field(default_factory=dict)
    _limits: dict[tuple[bytes, ExpressionUse], Expression | None] = field(default_factory=dict)

    @property
    def written(self) -> bytes:
        """Returns the topic as the client subscribed to it."""
        return self.shown_as or self.topic

    def matches(self, topic: bytes, message_type: bytes) -> bool:
        """Returns whether all messages of this topic and type are wanted; keeps the answer. Topics
        that the client may read in part do not match (`limits`)."""
        if self.message_types and message_type not in self.message_types:
            return False
        if self.pattern is None:
            return self.topic == topic
        found = self._answers.get(topic)
        if found is None:
            found = self._is_met(self.pattern, topic)
            if len(self._answers) >= ANSWERS_KEPT_MAX:
                self._answers.clear()
            self._answers[topic] = found
        return found

    def unknown_us(self, topic: bytes) -> int:
        """Returns an estimate of the time that `matches` takes, in microseconds; 0: the answer is
        kept."""
        if self.pattern is None or topic in self._answers:
            return 0
        return cost_us(self.pattern)

    def judges(self, topic: bytes, message_type: bytes) -> bool:
        """Returns whether messages of this topic and type are wanted; for callers that keep the
        answer themselves."""
        if self.message_types and message_type not in self.message_types:
            return False
        if self.pattern is None:
            return self.topic == topic
        return self._is_met(self.pattern, topic)

    @property
    def is_limited(self) -> bool:
        """Returns whether the pattern may match topics that the client may read in part."""
        return self.pattern is not None and self.rows is not None

    def wants(self, topic: bytes, message_type: bytes) -> bool:
        """Returns whether messages of this topic and type are wanted, all of them or some."""
        if self.matches(topic, message_type):
            return True
        if self.rows is None or not self._names(topic, message_type):
            return False
        return self.rows.restricts(topic)

    def limits(self, topic: bytes, message_type: bytes, use: ExpressionUse) -> Expression | None:
        """Returns the filter of the messages that the client may read of a topic that the pattern
        matches; None: it may read all of them (`matches`), or none. Keeps the answer.

        Args:
            use: the place where the filter is evaluated.
        """
        if self.rows is None or (self.message_types and message_type not in self.message_types):
            return None
        key = topic, use
        if key not in self._limits:
            found = self.rows.of(topic, use) if self._names(topic, message_type) else None
            if len(self._limits) >= ANSWERS_KEPT_MAX:
                self._limits.clear()
            self._limits[key] = found
        return self._limits[key]

    def _names(self, topic: bytes, message_type: bytes) -> bool:
        """Returns whether the pattern matches a topic, whether or not the client may read it."""
        if self.pattern is None:
            return False
        if self.message_types and message_type not in self.message_types:
            return False
        return self._is_found(self.pattern, topic)

    def _is_met(self, pattern: TopicPattern, topic: bytes) -> bool:
        return self._is_found(pattern, topic) and (self.readable is None or self.readable(topic))

    def _is_found(self, pattern: TopicPattern, topic: bytes) -> bool:
        text = topic.decode("utf-8", "replace")
        # A subscription to everything wants the user's own data, not the data of drills, and not
        # the events of the instance.
        if not self.reserved and text.startswith(RESERVED):
            return False
        if (not self.events and text.startswith(EVENTS)) or topic.startswith(UNNAMED):
            return False
        return pattern.search(text)


def cost_us(pattern: TopicPattern) -> int:
    """Returns an estimate of the time to match a pattern against a new topic, in microseconds."""
    return PATTERN_US + pattern.weight


def topic_filter(
    topic: str,
    message_type: str,
    *,
    literal: bool = False,
    allowed: frozenset[bytes] = frozenset(),
    readable: Callable[[bytes], bool] | None = None,
    rows: RowLimits | None = None,
) -> TopicFilter:
    """Returns the filter of a subscribe command. A topic with regular expression characters is an
    unanchored regular expression, unless `literal`. It matches Raylay's own topics only where it
    begins with their `raylay/`, and event topics only where it begins with their `/AMPS/`. Of
    events, which exist in several types, a client that names no type is given one type only.

    Args:
        message_type: message type; empty: any.
        allowed: message types of the client's transport; empty: all.
        readable: returns whether the client may read every message of a topic; None: it may read
            all topics.
        rows: the row filters of topics that it may read in part; None: there are none.

    Raises:
        RemoteProtocolError: with reason `bad_regex`, or `bad_message_type` of one not allowed.
    """
    if message_type and allowed and message_type.encode() not in allowed:
        raise RemoteProtocolError(not_of_transport(message_type, allowed), "bad_message_type")
    types = frozenset((message_type.encode(),)) if message_type else allowed
    events = is_event_topic(topic)
    if events and len(types) != 1:
        types = frozenset((EVENT_TYPE if EVENT_TYPE in (types or (EVENT_TYPE,)) else min(types),))
    pattern = None
    if not literal and is_regex(topic):
        try:
            pattern = TopicPattern(topic)
        except PatternError as error:
            raise RemoteProtocolError(
                f"{topic[:200]!r} cannot be used as a regular expression: {error}", "bad_regex"
            ) from None
    reserved = topic.lstrip("^").startswith(RESERVED)
    return TopicFilter(topic.encode(), types, pattern, reserved, events, readable, rows)


class FilterOwner(NamedTuple):
    """The client to which a filter belongs, with the properties that the filter may read.

    Attributes:
        address: address of the client's side of the connection.
        budget: pays for the filter's work; None: the work is not limited.
    """

    client_name: str = ""
    user: str = ""
    address: str = ""
    budget: FilterBudget | None = None


def nobody(_: int) -> FilterOwner:
    """Returns an owner with no properties, for any session."""
    return FilterOwner()


@dataclass(slots=True, eq=False)
class LiveSubscription:
    """One ordinary subscription of one session. `content`: its content filter; empty: none.
    `following`: its options if it follows records; None: it wants messages as they are. `release`:
    called when it ends."""

    session: int
    id: str
    filter: TopicFilter
    content: str = ""
    delivered: int = 0
    following: FollowTerms | None = None
    release: Callable[[], None] | None = None

    @property
    def written_filter(self) -> str:
        """Returns the content filter as the client wrote it: that of an aggregation is applied to
        the records under it."""
        following = self.following
        if following is not None and following.aggregation is not None:
            return following.aggregation.filter
        return self.content

    @property
    def options(self) -> str:
        """Returns the options as a client would write them."""
        return "" if self.following is None else self.following.text


class _TopicAnswer:
    """The subscriptions that want a topic and type, after a number of changes of the table."""

    __slots__ = ("found", "upto")

    def __init__(self, found: tuple[LiveSubscription, ...], upto: int) -> None:
        self.found = found
        self.upto = upto


class SubscriptionTable:
    """All ordinary subscriptions of an instance.

    The answer for a topic is updated when the topic is published to next, by a look at the changes
    since then, so that a client that subscribes again and again costs others little.

    Invariant: while nothing is added or removed, `matching` gives the same tuple object for the
    same topic and type, so that consecutive runs can be compared by identity.
    Owner: the instance. Lifecycle: as long as the instance.
    """

    __slots__ = (
        "_answers",
        "_changes",
        "_count",
        "_literals",
        "_patterns",
        "_places",
        "_upto",
        "cost_us",
    )

    def __init__(self) -> None:
        self._literals: dict[bytes, dict[LiveSubscription, None]] = {}
        self._patterns: dict[LiveSubscription, None] = {}
        self._answers: dict[tuple[bytes, bytes], _TopicAnswer] = {}
        self._changes: list[tuple[LiveSubscription, bool]] = []
        """The latest changes: the subscription, and whether it was added (True) or removed."""
        self._upto = 0
        """Number of changes that were ever made to the table."""
        self._count = 0
        self._places = 0
        """Number of subscriptions in all answers together."""
        self.cost_us = 0
        """Approximate time that `matching` takes for a new topic, in microseconds."""

    def __len__(self) -> int:
        return self._count

    def add(self, subscription: LiveSubscription) -> None:
        pattern = subscription.filter.pattern
        if pattern is None:
            self._literals.setdefault(subscription.filter.topic, {})[subscription] = None
        else:
            self._patterns[subscription] = None
            self.cost_us += cost_us(pattern)
        self._count += 1
        self._changed(subscription, True)

    def remove(self, subscription: LiveSubscription) -> None:
        pattern = subscription.filter.pattern
        if pattern is None:
            topic = subscription.filter.topic
            kept = self._literals[topic]
            del kept[subscription]
            if not kept:
                del self._literals[topic]
        else:
            del self._patterns[subscription]
            self.cost_us -= cost_us(pattern)
        self._count -= 1
        self._changed(subscription, False)

    def _changed(self, subscription: LiveSubscription, is_added: bool) -> None:
        self._upto += 1
        if len(self._changes) >= CHANGES_MAX:
            self._changes.clear()
            self._forget()
        if self._answers:
            self._changes.append((subscription, is_added))

    def _forget(self) -> None:
        self._answers.clear()
        self._places = 0

    def matching(self, topic: bytes, message_type: bytes) -> tuple[LiveSubscription, ...]:
        """Returns the subscriptions that want messages of this topic and type."""
        answer = self._answers.get((topic, message_type))
        if answer is not None and answer.upto == self._upto:
            return answer.found
        if answer is None:
            return self._looked_up(topic, message_type)
        self._places -= len(answer.found)
        removed = set()
        added: dict[LiveSubscription, None] = {}
        for subscription, is_added in self._changes[answer.upto - self._upto :]:
            if not is_added:
                removed.add(subscription)
                added.pop(subscription, None)
            elif subscription.filter.judges(topic, message_type):
                added[subscription] = None
        if removed and not removed.isdisjoint(answer.found):
            answer.found = tuple([each for each in answer.found if each not in removed])
        if added:
            answer.found = (*answer.found, *added)
        self._places += len(answer.found)
        answer.upto = self._upto
        return answer.found

    def _looked_up(self, topic: bytes, message_type: bytes) -> tuple[LiveSubscription, ...]:
        candidates = (*self._literals.get(topic, ()), *self._patterns)
        found = tuple(
            [candidate for candidate in candidates if candidate.filter.judges(topic, message_type)]
        )
        if len(self._answers) >= TOPIC_CACHE_MAX or self._places > PLACES_MAX:
            self._forget()
        if not self._answers:
            self._changes.clear()
        self._places += len(found)
        self._answers[topic, message_type] = _TopicAnswer(found, self._upto)
        return found

    def unknown_us(self, topic: bytes, message_type: bytes) -> int:
        """Returns an estimate of the time that `matching` takes for this topic and type, in
        microseconds."""
        answer = self._answers.get((topic, message_type))
        if answer is None:
            return self.cost_us
        return (self._upto - answer.upto) * PATTERN_US
