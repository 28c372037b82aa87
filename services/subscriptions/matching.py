"""Which subscriptions a topic reaches. Answers are kept per topic, so a run costs one look-up."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import NamedTuple

from raylay.services.errors import RemoteProtocolError
from raylay.services.messages.topic_pattern import PatternError, TopicPattern
from raylay.services.messages.topics import (
    RESERVED,
    TOPIC_CACHE_MAX,
    is_regex,
    not_of_transport,
)

ANSWERS_KEPT_MAX = 1024


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
    """Which topics the pattern may meet; None: all. Who asks for a name was asked for it before."""
    _answers: dict[bytes, bool] = field(default_factory=dict)

    def matches(self, topic: bytes, message_type: bytes) -> bool:
        """Whether messages of this topic and type are wanted."""
        if self.message_types and message_type not in self.message_types:
            return False
        if self.pattern is None:
            return self.topic == topic
        found = self._answers.get(topic)
        if found is None:
            text = topic.decode("utf-8", "replace")
            # Who subscribes to everything wants his own data, and none of a drill's.
            found = (self.reserved or not text.startswith(RESERVED)) and self.pattern.search(text)
            if self.readable is not None:
                found = found and self.readable(topic)
            if len(self._answers) >= ANSWERS_KEPT_MAX:
                self._answers.clear()
            self._answers[topic] = found
        return found


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
    """What a subscription asks for that follows records (sow_subscriptions.py).

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
    """What a filter may ask of the client that has it. `address`: of its side of the connection."""

    client_name: str = ""
    user: str = ""
    address: str = ""


def nobody(_: int) -> FilterOwner:
    """Of no session anything is known."""
    return FilterOwner()


@dataclass(slots=True, eq=False)
class LiveSubscription:
    """One ordinary subscription of one session. `content`: its filter by content, empty: none.
    `following`: None: it asks for messages as they are."""

    session: int
    id: str
    filter: TopicFilter
    content: str = ""
    delivered: int = 0
    following: FollowTerms | None = None


class SubscriptionTable:
    """All ordinary subscriptions of an instance.

    Invariant: while nothing is added or removed, `matching` gives the same tuple object for the
    same topic and type, so that consecutive runs can be compared by identity.
    Owner: the instance. Lifecycle: as long as the instance.
    """

    __slots__ = ("_cache", "_literals", "_patterns")

    def __init__(self) -> None:
        self._literals: dict[bytes, list[LiveSubscription]] = {}
        self._patterns: list[LiveSubscription] = []
        self._cache: dict[tuple[bytes, bytes], tuple[LiveSubscription, ...]] = {}

    def __len__(self) -> int:
        return len(self._patterns) + sum(map(len, self._literals.values()))

    def add(self, subscription: LiveSubscription) -> None:
        """Adds one."""
        if subscription.filter.pattern is None:
            self._literals.setdefault(subscription.filter.topic, []).append(subscription)
        else:
            self._patterns.append(subscription)
        self._cache.clear()

    def remove(self, subscription: LiveSubscription) -> None:
        """Takes one out that was added."""
        if subscription.filter.pattern is None:
            topic = subscription.filter.topic
            kept = self._literals[topic]
            kept.remove(subscription)
            if not kept:
                del self._literals[topic]
        else:
            self._patterns.remove(subscription)
        self._cache.clear()

    def matching(self, topic: bytes, message_type: bytes) -> tuple[LiveSubscription, ...]:
        """The subscriptions that want messages of this topic and type."""
        key = (topic, message_type)
        found = self._cache.get(key)
        if found is None:
            candidates = (*self._literals.get(topic, ()), *self._patterns)
            found = tuple(item for item in candidates if item.filter.matches(topic, message_type))
            if len(self._cache) >= TOPIC_CACHE_MAX:
                self._cache.clear()
            self._cache[key] = found
        return found
