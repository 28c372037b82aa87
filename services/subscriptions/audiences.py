"""The subscriptions that want a topic, and those of them whose filters pass a message.

Subscriptions that want the same topics form a group, with one filter index for all of them. A topic
has an audience: the groups that want it. Topics with the same groups share one audience. So the
tables do not grow with subscriptions times topics, and a subscription that comes or goes only
touches its group: each topic catches up with the changes when it is published to next.

An audience of several groups asks one index after the other. When that has cost as much as a joined
index would, their filters are joined into one, until one of them changes.

A client that subscribes by a regular expression may be allowed only some messages of a topic. On
such a topic its group is a limited one: the row filter is evaluated first, once for all
subscriptions of the group, which are asked about no other message.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, ClassVar, Protocol

from raylay.services.expressions.expression import Expression, ExpressionUse
from raylay.services.expressions.functions.registry import NO_CONTEXT, EvalContext
from raylay.services.expressions.index import OTHERS_IN_WEIGHT, FilterIndex
from raylay.services.expressions.work import FilterPayer
from raylay.services.messages.topics import TOPIC_CACHE_MAX
from raylay.services.subscriptions.costly import Efforts
from raylay.services.subscriptions.matching import (
    PATTERN_US,
    LiveSubscription,
    TopicFilter,
    cost_us,
)

GROUPS_KEPT_MAX = 1_000_000
"""Number of groups in all audiences together; above it all audiences are dropped and made again
when needed."""
JOINED_FILTERS_MAX = 262_144
"""Number of filters in joined indexes of all audiences; above it further audiences ask their groups
one by one."""
COMPARED_US_MAX = 100
"""Time in microseconds up to which a topic is compared with changes when the caller only asks for
an estimate."""
JOIN_COST = 2
"""Cost of joining one filter, in numbers of indexes asked."""


class MessageFilters(Protocol):
    """Filters that can be matched against a message."""

    def matching(
        self, message: dict[str, Any], around: EvalContext = NO_CONTEXT
    ) -> list[LiveSubscription]:
        """Returns the subscriptions whose filters a parsed message passes."""


GroupKey = tuple[bytes, frozenset[bytes], bool, bool, int]


class TopicGroup:
    """Subscriptions that want the same topics.

    Attributes:
        number: number of the group; later groups have higher ones.
        every: the subscriptions without a filter.
        filters: the subscriptions with a filter.
        looks_back: number of subscriptions that also need the previous value of a record
            (sow_subscriptions.py).
        joined_in: audiences that may have this group's filters in a joined index.
    """

    limit: ClassVar[None] = None

    __slots__ = (
        "_limited",
        "every",
        "filter",
        "filters",
        "joined_in",
        "key",
        "looks_back",
        "number",
    )

    def __init__(self, number: int, key: GroupKey, wanted: TopicFilter) -> None:
        self.number = number
        self.key = key
        self.filter = wanted
        self.every: dict[LiveSubscription, None] = {}
        self.filters: FilterIndex[LiveSubscription] = FilterIndex()
        self.looks_back = 0
        self.joined_in: dict[TopicAudience, None] = {}
        self._limited: dict[str, LimitedGroup] = {}

    def __len__(self) -> int:
        return len(self.every) + len(self.filters)

    def limited(self, limit: Expression) -> LimitedGroup:
        """Returns the group as it is on topics with this row filter, the same one each time."""
        found = self._limited.get(limit.text)
        if found is None:
            found = self._limited[limit.text] = LimitedGroup(self, limit)
        return found


class LimitedGroup:
    """A group on topics of which its client may read only some messages.

    Attributes:
        limit: filter of the messages that the client may read.
    """

    __slots__ = ("_group", "every", "filters", "joined_in", "limit", "number")

    def __init__(self, group: TopicGroup, limit: Expression) -> None:
        self._group = group
        self.limit = limit
        self.number = group.number
        self.every = group.every
        self.filters = group.filters
        self.joined_in = group.joined_in

    def __len__(self) -> int:
        return len(self._group)

    @property
    def looks_back(self) -> int:
        return self._group.looks_back


AudienceGroup = TopicGroup | LimitedGroup


class TopicAudience:
    """The groups that want a topic; false when there are none.

    Attributes:
        topics: number of topics that have this audience.
        is_limited: whether there are limited groups, whose filters are never joined.
        joined: the filters of all groups in one index; None: each group's index is asked.
        joined_count: number of filters in the joined index that are copies, not shared with a
            single group.
    """

    __slots__ = (
        "_join_at",
        "_spent",
        "groups",
        "is_limited",
        "joined",
        "joined_count",
        "topics",
    )

    def __init__(self, groups: tuple[AudienceGroup, ...]) -> None:
        self.groups = groups
        self.topics = 0
        self.is_limited = any(group.limit is not None for group in groups)
        self.joined: FilterIndex[LiveSubscription] | None = None
        if len(groups) == 1 and not self.is_limited:
            self.joined = groups[0].filters
        self.joined_count = 0
        self._spent = 0
        self._join_at = 0

    def __bool__(self) -> bool:
        return bool(self.groups)

    @property
    def has_filters(self) -> bool:
        """Returns whether a message must be parsed for this audience."""
        return self.is_limited or any(len(group.filters) for group in self.groups)

    @property
    def looks_back(self) -> bool:
        """Returns whether any subscription needs the previous value of a record."""
        return any(group.looks_back for group in self.groups)

    @property
    def weight(self) -> int:
        """Returns the approximate cost of filtering a message, as a multiple of the usual cost of a
        message; 0: there is no filter. A filter that names a value of a field is only evaluated for
        messages with that value."""
        if not self.has_filters:
            return 0
        asked = [self.joined] if self.joined is not None else [g.filters for g in self.groups]
        return 1 + (sum(each.others_count for each in asked) + len(asked) - 1) // OTHERS_IN_WEIGHT

    def every(self) -> list[LiveSubscription]:
        """Returns the subscriptions that get every message, even one that cannot be read: those
        without a filter, except in limited groups."""
        groups = [each for each in self.groups if each.limit is None]
        return [subscription for each in groups for subscription in each.every]

    def matching(
        self, message: dict[str, Any], around: EvalContext = NO_CONTEXT
    ) -> list[LiveSubscription]:
        """Returns the subscriptions whose filters a parsed message passes, group by group; of a
        limited group also those without a filter, if the message may be read."""
        found: list[LiveSubscription] = []
        verdicts: dict[str, bool] = {}
        for group in self.groups:
            limit = group.limit
            if limit is not None:
                if limit.text not in verdicts:
                    verdicts[limit.text] = bool(limit.matches(message, around))
                if not verdicts[limit.text]:
                    continue
                found += group.every
            found += group.filters.matching(message, around)
        self._spent += len(self.groups)
        return found

    @property
    def has_paid(self) -> bool:
        """Returns whether asking the groups one by one has cost as much as joining them."""
        if self.is_limited or self._spent <= self._join_at:
            return False
        self._join_at = JOIN_COST * sum(group.filters.filter_count for group in self.groups)
        return self._spent > self._join_at

    def join(self) -> None:
        self.joined = FilterIndex.joined(group.filters for group in self.groups)
        self.joined_count = self.joined.filter_count

    def part(self) -> None:
        """Drops the joined index, because a filter came or went."""
        if len(self.groups) > 1:
            self.joined = None
            self.joined_count = self._spent = self._join_at = 0


class _Topic:
    """A topic and message type, with its audience.

    Attributes:
        seen: number of the newest group with which the topic was compared.
        changes: number of changes of expression groups at that time; -1: a group of this very topic
            came or went.
    """

    __slots__ = ("audience", "changes", "seen")

    def __init__(self, audience: TopicAudience) -> None:
        self.audience = audience
        self.seen = 0
        self.changes = -1


class AudienceTable:
    """Finds the audience of each topic.

    Invariants: each group has members; once a topic was compared with all changes, its audience is
    all groups that want it; each audience has a topic. Everything about topics can be dropped at
    any time.
    Owner: the owner of the subscriptions. Lifecycle: as long as the owner.

    Args:
        use: the place where row filters are evaluated; None: the owner gives no messages of topics
            that a client may read in part.
    """

    __slots__ = (
        "_audiences",
        "_changes",
        "_group_of",
        "_groups",
        "_joined_count",
        "_literals",
        "_number",
        "_patterns",
        "_places",
        "_topic_count",
        "_topics",
        "_unknown_us",
        "_use",
    )

    def __init__(self, use: ExpressionUse | None = None) -> None:
        self._use = use
        self._group_of: dict[LiveSubscription, TopicGroup] = {}
        self._groups: dict[GroupKey, TopicGroup] = {}
        self._literals: dict[bytes, dict[TopicGroup, None]] = {}
        self._patterns: dict[TopicGroup, None] = {}
        self._number = 0
        self._changes = 0
        """Number of times that a group of expressions came or went."""
        self._topics: dict[bytes, dict[bytes, _Topic]] = {}
        self._topic_count = 0
        self._audiences: dict[tuple[AudienceGroup, ...], TopicAudience] = {}
        self._places = 0
        """Number of groups in all audiences together."""
        self._joined_count = 0
        self._unknown_us = 0
        """Approximate time to ask all groups about a new topic, in microseconds."""

    def __len__(self) -> int:
        return len(self._group_of)

    def __contains__(self, subscription: LiveSubscription) -> bool:
        return subscription in self._group_of

    # -- who is there ------------------------------------------------------------------------
    def add(
        self,
        subscription: LiveSubscription,
        found: Expression | None,
        looks_back: bool = False,
        payer: FilterPayer | None = None,
    ) -> None:
        """Adds a subscription.

        Args:
            found: the subscription's compiled filter; None: it has none.
            payer: pays for the filter's work; None: the work is not limited.
        """
        key = group_key_of(subscription)
        group = self._groups.get(key)
        if group is None:
            self._number += 1
            group = self._groups[key] = TopicGroup(self._number, key, subscription.filter)
            self._place_of(group)[group] = None
            self._changed(group, 1)
        self._group_of[subscription] = group
        group.looks_back += looks_back
        if found is None:
            group.every[subscription] = None
            return
        version = group.filters.version
        group.filters.add(subscription, found, payer)
        if group.filters.version != version:
            self._part(group)

    def remove(self, subscription: LiveSubscription, looks_back: bool = False) -> None:
        """Removes a subscription that was added with the same `looks_back`."""
        group = self._group_of.pop(subscription)
        group.looks_back -= looks_back
        version = group.filters.version
        if subscription in group.every:
            del group.every[subscription]
        else:
            group.filters.discard(subscription)
        if group.filters.version != version:
            self._part(group)
        if not len(group):
            del self._groups[group.key]
            place = self._place_of(group)
            del place[group]
            if not place and group.filter.pattern is None:
                del self._literals[group.filter.topic]
            self._changed(group, -1)

    def with_efforts(self, efforts: Efforts) -> set[LiveSubscription]:
        """Returns the subscriptions whose filter has one of these work accounts."""
        groups = self._groups.values()
        return {each for group in groups for each in group.filters.with_efforts(efforts)}

    def _place_of(self, group: TopicGroup) -> dict[TopicGroup, None]:
        if group.filter.pattern is not None:
            return self._patterns
        return self._literals.setdefault(group.filter.topic, {})

    def _changed(self, group: TopicGroup, change: int) -> None:
        """Notes that a group came or went: topics that may have it are compared again."""
        pattern = group.filter.pattern
        if pattern is not None:
            self._changes += 1
            self._unknown_us += change * cost_us(pattern)
            return
        for each in self._topics.get(group.filter.topic, {}).values():
            each.changes = -1

    # -- whom a topic reaches ----------------------------------------------------------------
    def audience(self, topic: bytes, message_type: bytes) -> TopicAudience:
        """Returns the groups that want messages of this topic and type."""
        types = self._topics.get(topic)
        known = None if types is None else types.get(message_type)
        if known is None or known.changes != self._changes:
            known = self._compared(topic, message_type, known)
        return known.audience

    def unknown_us(self, topic: bytes, message_type: bytes) -> int:
        """Returns an estimate of the time that `audience` takes for this topic and type, in
        microseconds."""
        known = self._topics.get(topic, {}).get(message_type)
        if known is None:
            return self._unknown_us
        if known.changes == self._changes:
            return 0
        return min(self._unknown_us, (self._number - known.seen) * PATTERN_US)

    def weight(self, topic: bytes, message_type: bytes, each_weight: int = 0) -> int:
        """Returns the cost of a topic's messages, as a multiple of the usual cost of a message; 0:
        no subscription wants them.

        Args:
            each_weight: cost of a message besides the filters.
        """
        if self.unknown_us(topic, message_type) > COMPARED_US_MAX:
            # The costly part is to find out which groups want the topic: until then, all groups
            # count.
            return 1 + len(self) // OTHERS_IN_WEIGHT
        audience = self.audience(topic, message_type)
        return audience.weight + each_weight if audience else 0

    def filters_of(self, audience: TopicAudience) -> MessageFilters:
        """Returns the filters for messages of an audience, valid until a subscription comes or
        goes."""
        joined = audience.joined
        if joined is not None:
            return joined
        if audience.has_paid:
            self._join(audience)
            assert audience.joined is not None
            return audience.joined
        return audience

    def _compared(self, topic: bytes, message_type: bytes, known: _Topic | None) -> _Topic:
        if self._places >= GROUPS_KEPT_MAX or (
            known is None and self._topic_count >= TOPIC_CACHE_MAX
        ):
            self._forget()
            known = None
        if known is None:
            known = _Topic(self._audience_of(()))
            known.audience.topics += 1
            self._topics.setdefault(topic, {})[message_type] = known
            self._topic_count += 1
        before = known.audience
        groups = [group for group in before.groups if len(group)]
        fresh = sorted(self._fresh(topic, message_type, known.seen), key=lambda each: each.number)
        known.audience = self._audience_of((*groups, *fresh))
        known.audience.topics += 1
        before.topics -= 1
        if not before.topics:
            self._drop(before)
        known.seen, known.changes = self._number, self._changes
        return known

    def _fresh(self, topic: bytes, message_type: bytes, seen: int) -> Iterator[AudienceGroup]:
        """Yields the groups that want the topic and are newer than group number `seen`."""
        for groups in (self._literals.get(topic, {}), self._patterns):
            for group in reversed(groups):
                if group.number <= seen:
                    break
                if group.filter.judges(topic, message_type):
                    yield group
                elif self._use is not None and group.filter.is_limited:
                    limit = group.filter.limits(topic, message_type, self._use)
                    if limit is not None:
                        yield group.limited(limit)

    def _audience_of(self, groups: tuple[AudienceGroup, ...]) -> TopicAudience:
        found = self._audiences.get(groups)
        if found is None:
            found = self._audiences[groups] = TopicAudience(groups)
            self._places += len(groups)
        return found

    def _drop(self, audience: TopicAudience) -> None:
        del self._audiences[audience.groups]
        self._places -= len(audience.groups)
        self._joined_count -= audience.joined_count
        for group in audience.groups:
            group.joined_in.pop(audience, None)

    def _forget(self) -> None:
        for audience in list(self._audiences.values()):
            self._drop(audience)
        self._topics.clear()
        self._topic_count = 0

    # -- joined filters ----------------------------------------------------------------------
    def _join(self, audience: TopicAudience) -> None:
        audience.join()
        if self._joined_count + audience.joined_count > JOINED_FILTERS_MAX:
            for each in self._audiences.values():
                if each is not audience:
                    each.part()
            self._joined_count = 0
        self._joined_count += audience.joined_count
        for group in audience.groups:
            group.joined_in[audience] = None

    def _part(self, group: TopicGroup) -> None:
        """Drops joined indexes that have a group's filters, because one of them came or went."""
        for audience in group.joined_in:
            self._joined_count -= audience.joined_count
            audience.part()
        group.joined_in.clear()


def group_key_of(subscription: LiveSubscription) -> GroupKey:
    """Returns the topics that a subscription wants, as a value that is equal for all that want the
    same."""
    wanted = subscription.filter
    is_pattern = wanted.pattern is not None
    # The readable topics depend on the session.
    session = subscription.session if is_pattern and wanted.readable is not None else -1
    return wanted.topic, wanted.message_types, is_pattern, wanted.reserved, session
