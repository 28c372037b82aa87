"""Conflated bookmark subscriptions: gives what is due at the end of the log, by the clock
(subscriptions/replay_conflation.py). Before the end, each message that is read gives what is due
before it."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from raylay.services.errors import RemoteProtocolError
from raylay.services.plugins.filters import conflated_replay
from raylay.services.protocol.client.commands import Subscribe
from raylay.services.server.clients.replay_members import ReplayMember
from raylay.services.server.runtime import InstanceRuntime
from raylay.services.server.sow.stored_topics import StoredSowTopics
from raylay.services.subscriptions.bookmark import BookmarkSubscription
from raylay.services.subscriptions.follow_terms import FollowTerms
from raylay.services.subscriptions.matching import TopicFilter

if TYPE_CHECKING:
    # Most instances have no conflated replays, and need not load the parsers.
    from raylay.services.subscriptions.replay_conflation import ReplayConflation


class ConflatedReplays:
    """The timers of conflated replays. Owner: the instance's event loop. Lifecycle: one life of the
    instance.

    Args:
        sow: the SOW topics of the instance.
    """

    def __init__(self, runtime: InstanceRuntime, sow: StoredSowTopics) -> None:
        self._runtime = runtime
        self._sow = sow
        self._timers: dict[BookmarkSubscription, asyncio.TimerHandle] = {}
        self._charged: dict[BookmarkSubscription, tuple[ReplayMember, int]] = {}
        """Bytes that the client of each subscription is charged for what is pending."""
        self.delivered = 0
        """Number of messages given here in this life of the instance."""

    def check(self, command: Subscribe, wanted: TopicFilter) -> None:
        """Checks the conflation that a bookmark subscription asks for.

        Raises:
            RemoteProtocolError: it cannot be conflated like this.
        """
        if command.conflation is not None and command.live:
            raise RemoteProtocolError(
                "live delivers messages as they come, and conflation holds them back: give one of "
                "them",
                "bad_command",
            )
        self.made(command, wanted)

    def made(self, command: Subscribe, wanted: TopicFilter) -> ReplayConflation | None:
        """Returns the conflation of a bookmark subscription; None: it is not conflated.

        Raises:
            RemoteProtocolError: as of `check`.
        """
        if command.conflation is None:
            return None
        feature, config = self._sow.feature, self._runtime.config
        return conflated_replay(
            config.type_definitions,
            None if feature is None else feature.book,
            config.name,
            wanted,
            FollowTerms(conflation=command.conflation),
            self._runtime.steady_us,
            bool(command.have),
        )

    def give(self, member: ReplayMember, limit_txid: int) -> None:
        """Gives what is due of a replay at the end of the log, and all of one that has ended.

        Args:
            limit_txid: last transaction that may be replayed.
        """
        subscription, connection = member.subscription, member.connection
        conflation = subscription.conflation
        assert conflation is not None
        if subscription.ended:
            found = conflation.all()
        elif subscription.cursor >= limit_txid and connection.takes_replays:
            found = conflation.due(self._runtime.now_us())
            self._wait(member, limit_txid)
        else:
            found = []
        for delivery in found:
            connection.sink.deliver(subscription.id, delivery)
            subscription.delivered += delivery.count
            self.delivered += delivery.count
        _, charged = self._charged.get(subscription, (member, 0))
        if conflation.pending_bytes != charged:
            self._charged[subscription] = member, conflation.pending_bytes
            connection.charge(conflation.pending_bytes - charged)

    def _wait(self, member: ReplayMember, limit_txid: int) -> None:
        """Sets the timer of a replay at the end of the log."""
        subscription = member.subscription
        before = self._timers.pop(subscription, None)
        if before is not None:
            before.cancel()
        conflation = subscription.conflation
        assert conflation is not None
        wait_us = conflation.wait_us
        if wait_us is None:
            return

        def due() -> None:
            self._timers.pop(subscription, None)
            if not (member.is_paused or member.is_behind) and self._runtime.is_serving:
                self.give(member, limit_txid)
                self._runtime.outbox.flush()

        self._timers[subscription] = self._runtime.loop.call_later(wait_us / 1e6, due)

    def left(self, subscription: BookmarkSubscription) -> None:
        """Forgets a subscription that has ended."""
        timer = self._timers.pop(subscription, None)
        if timer is not None:
            timer.cancel()
        found = self._charged.pop(subscription, None)
        if found is not None:
            member, charged = found
            member.connection.charge(-charged)
