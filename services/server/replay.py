"""Bookmark subscriptions at work: the journal read for each, in turns, as fast as its socket takes.

Fair and bounded: one read for one subscriber at a time, in a circle, at most `TURN_S` in one turn
of the event loop; publishers, links and other clients come in between. A subscriber whose socket is
full is left out until it takes more.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING

from raylay.services.errors import RemoteProtocolError, StorageError
from raylay.services.messages.bookmarks import Position
from raylay.services.messages.records import Run
from raylay.services.protocol.session import Subscribe, acknowledgment, ranges_ack
from raylay.services.replication.ranges import PublisherRanges
from raylay.services.server.framed import WRITE_HIGH_BYTES
from raylay.services.subscriptions.bookmark import BookmarkSubscription, Start, resolve
from raylay.services.subscriptions.delivery import Delivery
from raylay.services.subscriptions.matching import TopicFilter

if TYPE_CHECKING:
    from raylay.services.server.client_connection import ClientConnection
    from raylay.services.server.instance_server import InstanceServer

TURN_S = 0.002
READ_BYTES = 256 * 1024
READ_FAR_BYTES = 512 * 1024
NEAR_TXIDS = 50_000
"""Who is nearer than this to the end of the log is served from pages that were just written."""
HEADERS_IN_STEP = 4096
PERSISTED_MS_DEFAULT = 100


class _Replay:
    __slots__ = (
        "acks",
        "command_id",
        "connection",
        "is_aside",
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
        self.is_aside = False
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

    def open(
        self,
        connection: ClientConnection,
        command: Subscribe,
        topic_filter: TopicFilter,
        position: Position,
    ) -> None:
        """Begins one. Its `processed` ack goes out when its start is known."""
        connection.resolving.add(command.subscription)
        machine = self._server.machine
        # Both of this moment: what is held and not in the log behind the start lies before it.
        self._server.spawn(
            self._open(
                connection, command, topic_filter, position, machine.committed_txid, machine.held()
            )
        )

    async def _open(
        self,
        connection: ClientConnection,
        command: Subscribe,
        topic_filter: TopicFilter,
        position: Position,
        committed_txid: int,
        held: PublisherRanges,
    ) -> None:
        name = command.subscription
        reader = self._server.reader

        def look_up() -> tuple[Start, int]:
            found = resolve(position, command.bookmark_not_found, reader, committed_txid)
            return found, reader.first_txid

        try:
            start, first_txid = await self._server.in_reading_thread(look_up)
        except (RemoteProtocolError, StorageError) as error:
            connection.resolving.discard(name)
            reason = error.reason if isinstance(error, RemoteProtocolError) else "storage_error"
            connection.send(
                acknowledgment("processed", command.command_id, reason, str(error), sub=name)
            )
            return
        if not connection.is_open or name not in connection.resolving:
            return
        connection.resolving.discard(name)
        subscription = BookmarkSubscription(
            connection.number,
            name,
            topic_filter,
            start,
            first_txid=first_txid,
            committed_txid=committed_txid,
            held=held,
            have=command.have,
            fully_durable=command.fully_durable,
        )
        connection.subscriptions[name] = subscription
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
            if not subscription.prepared:
                continue
            if subscription.cursor >= self._limit_txid(subscription):
                subscription.end_by_time(now_us)
                self._send(replay, [])
            elif not subscription.ended and replay.connection.may_write:
                # A read found nothing, as while a segment was being replaced: it is tried again.
                self._kick(replay)
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
                # One that is read aside is marked as queued until that is done.
                replay.is_queued = replay.is_aside
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
        if not subscription.prepared:
            return self._read_aside(replay, self._prepare)
        if connection.unsent_bytes > WRITE_HIGH_BYTES:
            # Only when it is written does the socket say whether it takes more.
            connection.write_collected()
            return connection.may_write
        limit_txid = self._limit_txid(subscription)
        if subscription.cursor >= limit_txid or subscription.ended:
            self._send(replay, [])
            return False
        if limit_txid - subscription.cursor > NEAR_TXIDS:
            return self._read_aside(replay, self._read_far)
        try:
            runs = self._server.journal.read(subscription.cursor, READ_BYTES)
        except StorageError as error:
            self._fail(replay, error)
            return False
        return self._take(replay, runs)

    def _take(self, replay: _Replay, runs: list[Run]) -> bool:
        subscription = replay.subscription
        before_txid = subscription.cursor
        self._send(replay, subscription.take(runs, self._limit_txid(subscription)))
        return subscription.cursor > before_txid and not subscription.ended

    def _read_aside(self, replay: _Replay, read: Callable[[_Replay], Callable[[], bool]]) -> bool:
        """Reads what may have to come from the disk, in the reading thread. The subscriber stays
        out of the queue, and marked as in it, until that is done."""
        replay.is_aside = True
        self._server.spawn(self._aside(replay, read))
        return False

    async def _aside(self, replay: _Replay, read: Callable[[_Replay], Callable[[], bool]]) -> None:
        more = False
        try:
            finish = await self._server.in_reading_thread(read, replay)
            if not replay.removed and replay.connection.is_open:
                more = finish()
        except StorageError as error:
            self._fail(replay, error)
        replay.is_aside = replay.is_queued = False
        if more:
            self._kick(replay)

    def _read_far(self, replay: _Replay) -> Callable[[], bool]:
        """In the reading thread: reads far behind the end of the log."""
        runs = self._server.reader.read(replay.subscription.cursor, READ_FAR_BYTES)
        return lambda: self._take(replay, runs)

    def _prepare(self, replay: _Replay) -> Callable[[], bool]:
        """In the reading thread: one step towards the start."""
        subscription = replay.subscription
        reader = self._server.reader
        if subscription.wants_summaries:
            summaries = reader.segment_summaries()

            def skip() -> bool:
                subscription.skip_segments(summaries)
                return True

            return skip
        headers = reader.read_headers(subscription.prepare_after_txid, HEADERS_IN_STEP)

        def finish() -> bool:
            subscription.prepare(headers)
            if subscription.prepared:
                self._accept(replay)
            return True

        return finish

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
