"""Bookmark subscriptions at work: the journal read for each, in turns, as fast as its socket takes.

Fair and bounded: one read for one subscriber at a time, in a circle, at most `TURN_S` in one turn
of the event loop; publishers, links and other clients come in between. A subscriber whose socket is
full is left out until it takes more.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from typing import TYPE_CHECKING

from raylay.services.errors import StorageError
from raylay.services.messages.records import Run
from raylay.services.protocol.session import Subscribe, acknowledgment, ranges_ack
from raylay.services.server.framed import WRITE_HIGH_BYTES
from raylay.services.subscriptions.bookmark import BookmarkSubscription
from raylay.services.subscriptions.delivery import Delivery

if TYPE_CHECKING:
    from raylay.services.server.client_connection import ClientConnection
    from raylay.services.server.instance_server import InstanceServer

TURN_S = 0.002
READ_BYTES = 256 * 1024
HEADERS_IN_STEP = 1024
PERSISTED_MS_DEFAULT = 100


class _Replay:
    __slots__ = (
        "acks",
        "command_id",
        "connection",
        "is_queued",
        "persisted_due_s",
        "persisted_s",
        "removed",
        "subscription",
        "told_end",
    )

    def __init__(
        self, connection: ClientConnection, subscription: BookmarkSubscription, command: Subscribe
    ) -> None:
        self.connection = connection
        self.subscription = subscription
        self.acks = command.acks
        self.command_id = command.command_id
        self.is_queued = False
        self.removed = False
        self.told_end = False
        self.persisted_s = (command.persisted_ms or PERSISTED_MS_DEFAULT) / 1000
        self.persisted_due_s = 0.0


class ReplayPump:
    """All bookmark subscriptions of an instance. Owner: its event loop."""

    def __init__(self, server: InstanceServer) -> None:
        self._server = server
        self._loop: asyncio.AbstractEventLoop = server.loop
        self._replays: dict[BookmarkSubscription, _Replay] = {}
        self._queue: deque[_Replay] = deque()
        self._scheduled = False
        self._any_fully_durable = False

    def __len__(self) -> int:
        return len(self._replays)

    def add(
        self, connection: ClientConnection, subscription: BookmarkSubscription, command: Subscribe
    ) -> None:
        """Begins one. Its `processed` ack goes out when its start is known."""
        replay = _Replay(connection, subscription, command)
        self._replays[subscription] = replay
        self._any_fully_durable = self._any_fully_durable or subscription.fully_durable
        if subscription.prepared:
            self._accept(replay)
        self._kick(replay)

    def remove(self, subscription: BookmarkSubscription) -> None:
        """Ends one."""
        replay = self._replays.pop(subscription, None)
        if replay is not None:
            replay.removed = True

    def connection_writable(self, connection: ClientConnection) -> None:
        """A subscriber's socket takes more."""
        for subscription in connection.subscriptions.values():
            if isinstance(subscription, BookmarkSubscription):
                replay = self._replays.get(subscription)
                if replay is not None:
                    self._kick(replay)

    def committed(self, runs: list[Run]) -> None:
        """These runs were committed: who is at the end of the log gets them from memory."""
        if not self._replays or not runs:
            return
        before_txid = runs[0].first_txid - 1
        for replay in list(self._replays.values()):
            if replay.is_queued:
                continue
            subscription = replay.subscription
            if (
                subscription.cursor >= before_txid
                and subscription.prepared
                and replay.connection.may_write
            ):
                self._send(replay, subscription.take(runs, self._limit_txid(subscription)))
                if subscription.cursor < self._limit_txid(subscription):
                    self._kick(replay)
            else:
                self._kick(replay)

    def durable_moved(self) -> None:
        """More is durable: fully durable subscriptions may go on."""
        if self._any_fully_durable:
            for replay in self._replays.values():
                if replay.subscription.fully_durable:
                    self._kick(replay)

    def tick(self, now_s: float, now_us: int) -> None:
        """Persisted acks that are due, and ranges whose end time has passed."""
        if not self._replays:
            return
        durable_txid = self._server.machine.fully_durable_txid()
        for replay in list(self._replays.values()):
            subscription = replay.subscription
            if subscription.fully_durable and not replay.is_queued:
                self._kick(replay)
            if not subscription.prepared:
                continue
            if subscription.cursor >= self._limit_txid(subscription):
                subscription.end_by_time(now_us)
                self._send(replay, [])
            if "persisted" in replay.acks and now_s >= replay.persisted_due_s:
                fresh = subscription.take_persisted(durable_txid)
                if fresh is not None:
                    replay.persisted_due_s = now_s + replay.persisted_s
                    replay.connection.send(ranges_ack("persisted", subscription.id, fresh))

    # -- turns -------------------------------------------------------------------------------
    def _limit_txid(self, subscription: BookmarkSubscription) -> int:
        machine = self._server.machine
        if subscription.fully_durable:
            return machine.fully_durable_txid()
        return machine.committed_txid

    def _kick(self, replay: _Replay) -> None:
        if not replay.is_queued and not replay.removed:
            replay.is_queued = True
            self._queue.append(replay)
            if not self._scheduled:
                self._scheduled = True
                self._loop.call_soon(self._turn)

    def _turn(self) -> None:
        self._scheduled = False
        queue = self._queue
        until_s = time.perf_counter() + TURN_S
        while queue:
            replay = queue.popleft()
            if replay.removed or not self._step(replay):
                replay.is_queued = False
            else:
                queue.append(replay)
            if time.perf_counter() >= until_s:
                break
        if queue:
            self._scheduled = True
            self._loop.call_soon(self._turn)

    def _step(self, replay: _Replay) -> bool:
        """One read for one subscriber. Whether it has more to do now."""
        connection, subscription = replay.connection, replay.subscription
        if not connection.may_write:
            return False
        try:
            if not subscription.prepared:
                self._prepare(replay)
                return True
            if connection.unsent_bytes > WRITE_HIGH_BYTES:
                # It is written at the end of this turn; then the socket says whether it takes more.
                return True
            limit_txid = self._limit_txid(subscription)
            if subscription.cursor >= limit_txid or subscription.ended:
                self._send(replay, [])
                return False
            runs = self._server.journal.read(subscription.cursor, READ_BYTES)
            if not runs:
                return False
            before_txid = subscription.cursor
            self._send(replay, subscription.take(runs, limit_txid))
            return subscription.cursor > before_txid and not subscription.ended
        except StorageError as error:
            self._fail(replay, error)
            return False

    def _prepare(self, replay: _Replay) -> None:
        subscription = replay.subscription
        journal = self._server.journal
        if subscription.wants_summaries:
            subscription.skip_segments(journal.segment_summaries())
            return
        subscription.prepare(journal.read_headers(subscription.prepare_after_txid, HEADERS_IN_STEP))
        if subscription.prepared:
            self._accept(replay)

    def _accept(self, replay: _Replay) -> None:
        subscription = replay.subscription
        if "processed" in replay.acks or not replay.acks:
            replay.connection.send(
                ranges_ack("processed", subscription.id, subscription.base, replay.command_id)
            )

    def _send(self, replay: _Replay, deliveries: list[Delivery]) -> None:
        subscription = replay.subscription
        connection = replay.connection
        for delivery in deliveries:
            connection.deliver(subscription.id, delivery)
            self._server.delivered += delivery.count
        if subscription.take_completed():
            self._complete(replay)

    def _complete(self, replay: _Replay) -> None:
        subscription = replay.subscription
        if "stats" in replay.acks:
            replay.connection.send(
                acknowledgment(
                    "stats",
                    replay.command_id,
                    sub=subscription.id,
                    matches=subscription.delivered,
                    topic_matches=subscription.considered,
                )
            )
        if "completed" in replay.acks:
            replay.connection.send(
                acknowledgment("completed", replay.command_id, sub=subscription.id)
            )

    def _fail(self, replay: _Replay, error: StorageError) -> None:
        """The log cannot be read where this subscriber is: it is told, nobody else notices."""
        subscription = replay.subscription
        self._server.report(
            "replay_failed",
            client=replay.connection.client_name,
            subscription=subscription.id,
            text=str(error),
        )
        replay.connection.subscriptions.pop(subscription.id, None)
        self.remove(subscription)
        replay.connection.send(
            acknowledgment(
                "processed",
                replay.command_id,
                "storage_error",
                f"the log cannot be read behind transaction id {subscription.cursor}: {error}",
                sub=subscription.id,
            )
        )
