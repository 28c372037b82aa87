"""Subscriptions without a bookmark: they get the messages that are committed while they exist."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Protocol

from raylay.services.core.feature import CommitBatch, Feature
from raylay.services.core.fold_backlog import RECORD_US, Weigh
from raylay.services.messages.records import Flag, Run
from raylay.services.subscriptions.delivery import (
    DeliveryContent,
    Given,
    deliveries_of,
    live_deliveries,
)
from raylay.services.subscriptions.follow_terms import FollowKind
from raylay.services.subscriptions.matching import (
    PATTERN_US,
    LiveSubscription,
    SubscriptionTable,
)
from raylay.services.subscriptions.shares import SubscriptionShares

if TYPE_CHECKING:
    # Most instances have no filters, and need not load their language.
    from raylay.services.sow.topic import SowChange
    from raylay.services.subscriptions.costly import Efforts
    from raylay.services.subscriptions.filtered import FilteredSubscriptions

AHEAD_SUBSCRIPTIONS_MAX = 8
"""Number of subscriptions up to which deliveries are made while the disk writes: more would delay
acks."""

Deliver = Callable[[tuple[LiveSubscription, ...], DeliveryContent], None]
Tell = Callable[[LiveSubscription, str, DeliveryContent], None]
Filtered = Callable[[], "FilteredSubscriptions"]
SLICED_US = 1_000
"""Time to find the subscribers of a new topic, above which commits are folded in slices."""


class FollowerTable(Protocol):
    """The subscriptions of one kind that follow records rather than messages (`FollowKind`)."""

    def __len__(self) -> int:
        """Returns the number of subscriptions."""

    def __contains__(self, subscription: LiveSubscription) -> bool:
        """Returns whether the table has a subscription."""

    def add(self, subscription: LiveSubscription) -> None:
        """Adds a subscription with its options.

        Raises:
            RemoteProtocolError: an option cannot be used, with reason `bad_filter`, `bad_select` or
                another.
        """

    def remove(self, subscription: LiveSubscription) -> None:
        """Takes out a subscription."""

    def with_efforts(self, efforts: Efforts) -> set[LiveSubscription]:
        """Returns the subscriptions whose filter has one of these work accounts."""

    def unknown_us(self, topic: bytes, message_type: bytes) -> int:
        """Returns an estimate of the time to find the subscriptions for this topic and type, in
        microseconds."""

    def weight(self, topic: bytes, message_type: bytes) -> int:
        """Returns the cost of a topic's messages, as a multiple of the usual cost of a message; 0:
        no subscription follows the topic."""

    def deliveries(
        self, runs: Iterable[Run], changed: Sequence[SowChange] = (), *, journaled: bool = True
    ) -> Iterator[Given]:
        """Yields the deliveries of a commit, each subscription's in the order of the log.

        Args:
            changed: the changes that the commit made to records of SOW topics, and expired records.
            journaled: whether the topics are journaled.
        """


Followers = Mapping[FollowKind, Callable[[], FollowerTable]]


class LiveSubscriptions:
    """The live subscriptions of an instance. Enlisted while there is any.

    Owner: the instance's loop. Lifecycle: one life of the instance.

    Args:
        deliver: gives a delivery to all of these subscriptions, each once.
        enlist: enlists the feature, or ends that.
        filtered: makes the table of filtered subscriptions, when the first one comes.
        followers: make the tables of subscriptions that follow records, by kind, each when the
            first subscription of the kind comes.
        tell: gives one subscription a notice of records that left its focus, with the reason.
        weighed: called once, with the weights of commits and of publishes, when subscriptions make
            each record costly, or are so many that a new topic may take long.
        shares: limit on the subscriptions of one user; None: no limit.
        user: returns the user of a session, for that limit.
        watch: called with each subscription to event topics that was added (True) or is removed.
    """

    name = "live"

    __slots__ = (
        "_deliver",
        "_enlist",
        "_filtered",
        "_followers",
        "_has_looked_on",
        "_make_filtered",
        "_make_followers",
        "_shares",
        "_table",
        "_tell",
        "_user",
        "_watch",
        "_weighed",
    )

    def __init__(
        self,
        deliver: Deliver,
        enlist: Callable[[Feature, bool], None],
        filtered: Filtered,
        followers: Followers | None = None,
        tell: Tell = lambda subscription, reason, left: None,
        weighed: Callable[[Weigh, Weigh], None] | None = None,
        shares: SubscriptionShares | None = None,
        user: Callable[[int], str] = str,
        watch: Callable[[LiveSubscription, bool], None] = lambda subscription, is_added: None,
    ) -> None:
        self._deliver = deliver
        self._enlist = enlist
        self._table = SubscriptionTable()
        self._make_filtered = filtered
        self._filtered: FilteredSubscriptions | None = None
        self._make_followers = followers or {}
        self._followers: dict[FollowKind, FollowerTable] = {}
        self._tell = tell
        self._weighed = weighed
        self._has_looked_on = False
        """Whether a table of followers ever made something before its subscription came."""
        self._shares = shares
        self._user = user
        self._watch = watch

    def __len__(self) -> int:
        return len(self._table) + sum(map(len, self._others()))

    def _others(self) -> list[FilteredSubscriptions | FollowerTable]:
        """Returns the tables whose subscriptions need more than a look-up of the topic."""
        filtered = () if self._filtered is None else (self._filtered,)
        return [*filtered, *self._followers.values()]

    @property
    def may_be_ahead(self) -> bool:
        """Returns whether deliveries are so few that they may be made while the disk writes; many
        would delay the acks."""
        return len(self._table) <= AHEAD_SUBSCRIPTIONS_MAX and len(self) == len(self._table)

    def add(self, subscription: LiveSubscription) -> None:
        """Adds a subscription, which gets its messages from the next commit on.

        Raises:
            RemoteProtocolError: its content filter is none; with reason `bad_filter`. Or its
                select list: `bad_select`. Or those of its user need too much: `too_many`.
        """
        shares = self._shares
        if shares is None:
            self._add(subscription)
        else:
            user, pattern = self._user(subscription.session), subscription.filter.pattern
            shares.check(user, pattern)
            self._add(subscription)
            shares.add(subscription, user, pattern)
        if subscription.filter.events:
            self._watch(subscription, True)
        self._enlist(self, True)
        if self._weighed is not None and (
            self._most_us() > SLICED_US or len(self) > len(self._table)
        ):
            weighed, self._weighed = self._weighed, None
            # Messages that are not journaled are delivered where they are prepared.
            weighed(self.weigh, self.weigh)

    def _add(self, subscription: LiveSubscription) -> None:
        if subscription.following is not None:
            self.followers(subscription.following.kind).add(subscription)
        elif subscription.content or subscription.filter.is_limited:
            if self._filtered is None:
                self._filtered = self._make_filtered()
            self._filtered.add(subscription)
        else:
            self._table.add(subscription)

    def _most_us(self) -> int:
        """Returns an estimate of the longest time that an unknown topic takes, in microseconds."""
        return self._table.cost_us + PATTERN_US * (len(self) - len(self._table))

    def weigh(self, run: Run) -> int:
        """Returns the weight of a run's records, because filters are applied to them or their topic
        is new to the subscriptions; 0: neither. See `FoldBacklog`."""
        topic, message_type = run.topic, run.message_type
        found = self._table.unknown_us(topic, message_type)
        weight = 0
        for each in self._others():
            if not len(each):
                continue
            found += each.unknown_us(topic, message_type)
            if not run.flags & Flag.COMMANDS:
                weight += each.weight(topic, message_type)
        if found > RECORD_US:
            weight += -(-found // (RECORD_US * run.count))
        return weight

    def follows(self, topic: bytes, message_type: bytes) -> bool:
        """Returns whether a subscription follows the records of a topic; may be True where none
        does."""
        return any(each.weight(topic, message_type) for each in self._followers.values())

    def needs_changes(self, topic: bytes, message_type: bytes) -> bool:
        """Returns whether the changes of the records of a topic are needed; may be True where they
        are not."""
        return self._has_looked_on or self.follows(topic, message_type)

    def followers(self, kind: FollowKind) -> FollowerTable:
        """Returns the table of a kind of subscriptions that follow records."""
        found = self._followers.get(kind)
        if found is None:
            found = self._followers[kind] = self._make_followers[kind]()
        return found

    def look_on(self, kind: FollowKind) -> None:
        """Notes that a table of followers has begun to make what a later subscription needs, or has
        dropped it: it gets the changes of each commit meanwhile."""
        self._has_looked_on = True
        self.followers(kind)
        self._enlist(self, bool(len(self)))

    def remove(self, subscription: LiveSubscription) -> None:
        if self._shares is not None:
            self._shares.remove(subscription)
        if subscription.filter.events:
            self._watch(subscription, False)
        if subscription.release is not None:
            subscription.release()
        if subscription.following is not None:
            self.followers(subscription.following.kind).remove(subscription)
        elif self._filtered is not None and subscription in self._filtered:
            self._filtered.remove(subscription)
        else:
            self._table.remove(subscription)
        if not len(self):
            self._enlist(self, False)

    def with_efforts(self, efforts: Efforts) -> set[LiveSubscription]:
        """Returns the subscriptions whose filter has one of these work accounts
        (services/expressions/work.py)."""
        found: set[LiveSubscription] = set()
        for each in self._others():
            found |= each.with_efforts(efforts)
        return found

    def fold(self, batch: CommitBatch) -> None:
        deliver = self._deliver
        for subscribers, delivery in live_deliveries(batch.runs, self._table):
            deliver(subscribers, delivery)
        if self._filtered is not None:
            for subscriber, delivery in self._filtered.deliveries(batch.runs):
                deliver((subscriber,), delivery)
        for table in self._followers.values():
            self.give(table.deliveries(batch.runs, batch.changes))

    def give(self, given: Iterable[Given]) -> None:
        """Gives deliveries and out-of-focus notices to their subscriptions."""
        for subscriber, reason, delivery in given:
            if reason:
                self._tell(subscriber, reason, delivery)
            else:
                self._deliver((subscriber,), delivery)

    def failed(self, committed_txid: int) -> None:
        """Does nothing: only committed messages were delivered."""

    def transient(self, runs: Sequence[Run], *, kept: bool = False) -> None:
        """Delivers messages of topics that are not journaled.

        Args:
            kept: whether a SOW topic keeps them. Subscriptions that follow its records then get
                the changes, by a fold.
        """
        if self._filtered is not None:
            for subscriber, delivery in self._filtered.deliveries(runs, journaled=False):
                self._deliver((subscriber,), delivery)
        if not kept:
            for table in self._followers.values():
                self.give(table.deliveries(runs, (), journaled=False))
        for run in runs:
            if run.flags & Flag.COMMANDS:
                continue
            subscribers = self._table.matching(run.topic, run.message_type)
            if subscribers:
                for delivery in deliveries_of(run, journaled=False):
                    self._deliver(subscribers, delivery)
