"""The subscriptions that a topic reaches. Answers are kept per topic, so a run costs one
look-up."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple

from raylay.services.errors import RemoteProtocolError
from raylay.services.messages.topic_pattern import PatternError, TopicPattern
from raylay.services.messages.topics import (
    RESERVED,
    TOPIC_CACHE_MAX,
    is_regex,
    not_of_transport,
)

if TYPE_CHECKING:
    # Most instances have no filters, and need not load their language.
    from raylay.services.expressions.budgets import FilterBudget

ANSWERS_KEPT_MAX = 1024
PATTERN_US = 4
"""Approximate time to ask one of the small patterns for one topic, in microseconds."""
PLACES_MAX = 16_000_000
"""Places of subscriptions in what is known of topics, of 8 bytes each: above it all of it is found
out anew. 10,000 expressions that meet 65,536 topics would have 5 GB."""
CHANGES_MAX = 1024
"""Changes of a table: with more, all that is known of topics is found out anew."""


@dataclass(slots=True, eq=False)
class TopicFilter:
    """One subscription's topic and message types; none: any type. What its pattern says of a topic
    is kept: a replay asks for run after run of the same few."""

    topic: bytes
    message_types: frozenset[bytes] = frozenset()
    pattern: TopicPattern | None = None
    reserved: bool = False
    """Whether the pattern may meet Raylay's own topics: it names them."""
    readable: Callable[[bytes], bool] | None = None
    """Test of the topics that the pattern may meet; None: all. Who asks for a name was asked for it
    before."""
    _answers: dict[bytes, bool] = field(default_factory=dict)

    def matches(self, topic: bytes, message_type: bytes) -> bool:
        """Returns whether messages of this topic and type are wanted."""
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
        """Estimates what `matches` takes, in microseconds; 0: the answer is kept."""
        if self.pattern is None or topic in self._answers:
            return 0
        return cost_us(self.pattern)

    def judges(self, topic: bytes, message_type: bytes) -> bool:
        """Returns whether messages of this topic and type are wanted, for who keeps the answer."""
        if self.message_types and message_type not in self.message_types:
            return False
        if self.pattern is None:
            return self.topic == topic
        return self._is_met(self.pattern, topic)

    def _is_met(self, pattern: TopicPattern, topic: bytes) -> bool:
        text = topic.decode("utf-8", "replace")
        # Who subscribes to everything wants his own data, and none of a drill's.
        if not self.reserved and text.startswith(RESERVED):
            return False
        return pattern.search(text) and (self.readable is None or self.readable(topic))


def cost_us(pattern: TopicPattern) -> int:
    """Estimates what it takes to ask a pattern for a topic that is new, in microseconds."""
    return PATTERN_US + pattern.weight


def topic_filter(
    topic: str,
    message_type: str,
    *,
    literal: bool = False,
    allowed: frozenset[bytes] = frozenset(),
    readable: Callable[[bytes], bool] | None = None,
) -> TopicFilter:
    """The filter of a subscribe command. A topic with regular expression characters is a regular
    expression, unanchored, unless `literal`. It meets Raylay's own topics only where it begins with
    their `raylay/`.

    Args:
        message_type: empty: any.
        allowed: the types of the transport that the client uses; none: all.
        readable: which topics a regular expression may meet; None: all.

    Raises:
        RemoteProtocolError: with reason `bad_regex`, or `bad_message_type` of one not allowed.
    """
    if message_type and allowed and message_type.encode() not in allowed:
        raise RemoteProtocolError(not_of_transport(message_type, allowed), "bad_message_type")
    types = frozenset((message_type.encode(),)) if message_type else allowed
    pattern = None
    if not literal and is_regex(topic):
        try:
            pattern = TopicPattern(topic)
        except PatternError as error:
            raise RemoteProtocolError(
                f"{topic[:200]!r} cannot be used as a regular expression: {error}", "bad_regex"
            ) from None
    reserved = topic.lstrip("^").startswith(RESERVED)
    return TopicFilter(topic.encode(), types, pattern, reserved, readable)


@dataclass(frozen=True, slots=True)
class FollowTerms:
    """The terms of a subscription that follows records (sow_subscriptions.py).

    Attributes:
        select: the select list; empty: all fields.
        oof: what leaves its focus.
        delta: of a record in its focus, what has changed.
        no_empties: of what a record lost, a delta says nothing.
        no_sowkey: a delta carries no SOW key.
        keys: of these records; None: of all.
        began_with_rows: it was given the records that were in its focus.
        keeps_back: it may see no more than its filter passes: what left is told as it was.
    """

    select: str = ""
    oof: bool = False
    delta: bool = False
    no_empties: bool = False
    no_sowkey: bool = False
    keys: frozenset[bytes] | None = None
    began_with_rows: bool = False
    keeps_back: bool = False


class FilterOwner(NamedTuple):
    """The client that has a filter, with the properties that the filter may read.

    Attributes:
        address: of its side of the connection.
        budget: pays for what the filter works; None: it may take what it takes.
    """

    client_name: str = ""
    user: str = ""
    address: str = ""
    budget: FilterBudget | None = None


def nobody(_: int) -> FilterOwner:
    """Returns that nothing is known of any session."""
    return FilterOwner()


@dataclass(slots=True, eq=False)
class LiveSubscription:
    """One ordinary subscription of one session. `content`: its filter by content, empty: none.
    `following`: None: it asks for messages as they are. `release`: called when it ends."""

    session: int
    id: str
    filter: TopicFilter
    content: str = ""
    delivered: int = 0
    following: FollowTerms | None = None
    release: Callable[[], None] | None = None


class _TopicAnswer:
    """The subscriptions that want a topic and type, as of so many changes of the table."""

    __slots__ = ("found", "upto")

    def __init__(self, found: tuple[LiveSubscription, ...], upto: int) -> None:
        self.found = found
        self.upto = upto


class SubscriptionTable:
    """All ordinary subscriptions of an instance.

    What a change means for a topic is found out when that topic comes next: only what has changed
    is looked at, so that who subscribes again and again costs others little.

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
        """The last ones: what was added (true) or removed."""
        self._upto = 0
        """Number of all changes so far."""
        self._count = 0
        self._places = 0
        """Places in the answers, together."""
        self.cost_us = 0
        """Approximate time that `matching` takes for a topic that is new, in microseconds."""

    def __len__(self) -> int:
        return self._count

    def add(self, subscription: LiveSubscription) -> None:
        """Adds one."""
        pattern = subscription.filter.pattern
        if pattern is None:
            self._literals.setdefault(subscription.filter.topic, {})[subscription] = None
        else:
            self._patterns[subscription] = None
            self.cost_us += cost_us(pattern)
        self._count += 1
        self._changed(subscription, True)

    def remove(self, subscription: LiveSubscription) -> None:
        """Takes one out that was added."""
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
        """The subscriptions that want messages of this topic and type."""
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
        found = tuple([each for each in candidates if each.filter.judges(topic, message_type)])
        if len(self._answers) >= TOPIC_CACHE_MAX or self._places > PLACES_MAX:
            self._forget()
        if not self._answers:
            self._changes.clear()
        self._places += len(found)
        self._answers[topic, message_type] = _TopicAnswer(found, self._upto)
        return found

    def unknown_us(self, topic: bytes, message_type: bytes) -> int:
        """Estimates what `matching` takes for this topic and type, in microseconds."""
        answer = self._answers.get((topic, message_type))
        if answer is None:
            return self.cost_us
        return (self._upto - answer.upto) * PATTERN_US
