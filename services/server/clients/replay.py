"""Bookmark subscriptions: the journal is read for each in turns, as fast as its client's socket
takes.

Fair and bounded: one read for one replay at a time, in a circle, at most `TURN_S` in one turn of
the event loop; publishers, links and other clients come in between. Messages that were just
committed are delivered from memory, all others are read in the reading thread: the loop never waits
for the disk. A subscriber whose socket is full is left out until the socket takes more, one with a
rate until its rate allows more, a paused one until it is resumed. Subscriptions that were resumed
together are one replay.

A subscription that retention overtakes, because it is paused or its socket takes less than is
published, ends, and its client is told so. Nothing behind the gap is delivered, so that a client
which subscribes again with its bookmarks is told what is missing, as after any reconnect: `resolve`
alone reports that.

A `live` subscription that has come to the end of the log is given staged messages, before they are
on disk. If they never reach the disk, the subscription goes back to the last committed one.

Content filters are evaluated on the loop, a piece of the log a step: to parse and to evaluate holds
the interpreter's lock in any thread, and a thread that holds it lets go only after 5 ms.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable

from raylay.services.core.feature import CommitBatch, FeatureRegistry
from raylay.services.errors import RemoteProtocolError, StorageError
from raylay.services.messages.bookmarks import Position
from raylay.services.messages.ranges import PublisherRanges
from raylay.services.messages.records import Run
from raylay.services.net.framed import WRITE_HIGH_BYTES
from raylay.services.protocol.client.answers import OVERTAKEN
from raylay.services.protocol.client.commands import Subscribe
from raylay.services.security.retained_bytes import RetainedClaim
from raylay.services.server.clients.conflated_replays import ConflatedReplays
from raylay.services.server.clients.connection_limit import SessionShares
from raylay.services.server.clients.replay_members import Replay, ReplayClient, ReplayMember
from raylay.services.server.data.journal_reads import JournalReads
from raylay.services.server.recovered_instance import RecoveredInstance
from raylay.services.server.runtime import InstanceRuntime
from raylay.services.subscriptions.bookmark import (
    BookmarkSubscription,
    RememberedLookup,
    ReplayContent,
    ReplayStart,
    resolve,
)
from raylay.services.subscriptions.costly import (
    FILTER_TOO_COSTLY,
    SHOWN_CHARACTERS_MAX,
    TOO_COSTLY,
)
from raylay.services.subscriptions.durability import PendingMessages
from raylay.services.subscriptions.matching import TopicFilter
from raylay.services.subscriptions.recent import RecentRuns
from raylay.services.subscriptions.replay_group import Deliveries, ReplayTerms, groups_of

TICK_S = 0.05
TURN_S = 0.002
READ_BYTES = 512 * 1024
RECENT_BYTES_MAX = 1024 * 1024
"""Bytes of the latest commits that are kept for replays which have almost caught up."""
HEADERS_IN_STEP = 4096
KEPT_BYTES_MAX = 32 * 1024 * 1024
"""Bytes that were read for replays and not delivered yet, all replays together. A replay that would
exceed them keeps nothing, and reads again, `READ_LITTLE_BYTES` at a time."""
READ_LITTLE_BYTES = 16 * 1024
POINTS_AT_ONCE = 64
"""Bookmarks of a list that the reading thread looks up at once, which takes some 10 ms."""


class ReplayPump:
    """The bookmark subscriptions of an instance, and the reads for them. Owner: the instance's
    event loop.

    Args:
        folds: the registry in which the pump enlists while there is any replay.
        counted: the user or connection that each subscription is counted for.
        conflated: the conflated ones of the subscriptions.
    """

    name = "replays"
    may_be_ahead = False

    def __init__(
        self,
        runtime: InstanceRuntime,
        instance: RecoveredInstance,
        reading: JournalReads,
        folds: FeatureRegistry,
        counted: SessionShares,
        conflated: ConflatedReplays,
    ) -> None:
        self._runtime = runtime
        self._instance = instance
        self._folds = folds
        self._reading = reading
        self.delivered = 0
        """Number of messages delivered in this life of the instance."""
        self._members: dict[BookmarkSubscription, ReplayMember] = {}
        self._is_ticking = False
        self._replays: dict[Replay, None] = {}
        self.live: dict[Replay, None] = {}
        """Replays that may be given staged messages."""
        self._fully_durable: dict[Replay, None] = {}
        self._queue: deque[Replay] = deque()
        self._scheduled = False
        self._recent = RecentRuns(RECENT_BYTES_MAX)
        self.kept_bytes = 0
        """Bytes that were read for replays and not delivered yet."""
        self._live_until_s = 0.0
        """Time at which this turn's share for `live` replays of staged messages ends; 0: the share
        has not begun."""
        self._durability: PendingMessages | None = None
        self._counted = counted
        self.conflated = conflated

    def options_of(self, subscription: BookmarkSubscription) -> str:
        """Returns the options of a subscription as a client would write them; empty: it has
        ended."""
        member = self._members.get(subscription)
        if member is None:
            return ""
        terms, rate = member.terms, member.terms.rate
        found = [f"bookmark={terms.bookmark}"]
        if rate is not None:
            found.append(f"rate={rate.per_s:g} {rate.unit}/s")
        if member.conflation is not None:
            found.append(member.conflation.text)
        for option, is_set in (
            ("live", member.is_live),
            ("fully_durable", terms.fully_durable),
            ("pause", member.is_paused),
        ):
            if is_set:
                found.append(option)
        return ",".join(found)

    def __len__(self) -> int:
        return len(self._members)

    def open(
        self,
        connection: ReplayClient,
        command: Subscribe,
        topic_filter: TopicFilter,
        position: Position,
        content: ReplayContent | None = None,
        claim: RetainedClaim | None = None,
    ) -> None:
        """Begins a bookmark subscription. Its `processed` ack is sent when its start is known.

        Args:
            claim: the claim on memory for the ranges that the client has; released when the
                subscription ends.
        """
        connection.resolving[command.subscription] = command
        machine = self._instance.machine
        # Both values are of this moment: messages that are held, and not in the log behind the
        # start, lie before it.
        self._runtime.spawn(
            self._open(
                connection,
                command,
                topic_filter,
                position,
                machine.committed_txid,
                machine.held(),
                content,
                claim,
            )
        )

    async def _open(
        self,
        connection: ReplayClient,
        command: Subscribe,
        topic_filter: TopicFilter,
        position: Position,
        committed_txid: int,
        held: PublisherRanges,
        content: ReplayContent | None,
        claim: RetainedClaim | None,
    ) -> None:
        name = command.subscription
        reader = self._reading.reader
        log = RememberedLookup(reader)

        def look_up() -> tuple[ReplayStart, int]:
            # Read first: if retention removes more from here on, the gap shows in the replay.
            first_txid = reader.first_txid
            found = resolve(
                position,
                command.bookmark_not_found,
                log,
                committed_txid,
                removed=reader.removed(),
                have=command.have,
            )
            return found, first_txid

        try:
            await self.look_up(connection, position, log)
            start, first_txid = await self._reading.run(look_up, of=self._owner_of(connection))
        except (RemoteProtocolError, StorageError) as error:
            if claim is not None:
                claim.release()
            if connection.resolving.get(name) is not command:
                return
            del connection.resolving[name]
            reason = error.reason if isinstance(error, RemoteProtocolError) else "storage_error"
            connection.send(
                connection.codec.acknowledgment(
                    "processed", command.command_id, reason, str(error), sub=name
                )
            )
            return
        # The subscription may have been ended meanwhile, and another one of its id begun.
        if not connection.is_open or connection.resolving.get(name) is not command:
            if claim is not None:
                claim.release()
            return
        del connection.resolving[name]
        subscription = BookmarkSubscription(
            connection.number,
            name,
            topic_filter,
            start,
            first_txid=first_txid,
            committed_txid=committed_txid,
            held=held,
            have=command.have,
            content=content,
            conflation=self.conflated.made(command, topic_filter),
        )
        member = ReplayMember(connection, subscription, command, claim=claim)
        self._admit(member)
        if subscription.prepared:
            self._accept(member)

    async def look_up(
        self, connection: ReplayClient, position: Position, log: RememberedLookup
    ) -> None:
        """Looks up a long list of bookmarks, a part at a time, so that other reads come in between.

        Raises:
            StorageError: the log cannot be read.
        """
        points = (*position.begin, *position.end)
        if len(points) <= POINTS_AT_ONCE:
            return
        owner = self._owner_of(connection)
        for at in range(0, len(points), POINTS_AT_ONCE):
            if not connection.is_open:
                return
            part = points[at : at + POINTS_AT_ONCE]
            await self._reading.run(log.look_up, part, position, of=owner)

    def _owner_of(self, connection: ReplayClient) -> str:
        return self._counted.user_of(connection.number)

    def _admit(self, member: ReplayMember) -> None:
        subscription = member.subscription
        member.connection.subscriptions[subscription.id] = subscription
        self._members[subscription] = member
        member.connection.began(subscription)
        user = self._counted.user_of(subscription.session)
        self._counted.subscriptions.add(subscription, user, subscription.filter.pattern)
        self._runtime.hurry()
        self._kick(self._add([member], member.terms))

    def begin_behind(
        self,
        connection: ReplayClient,
        command: Subscribe,
        topic_filter: TopicFilter,
        start: ReplayStart,
        content: ReplayContent | None,
        ready: Callable[[], None],
    ) -> BookmarkSubscription:
        """Begins a bookmark subscription behind the rows of a query: nothing is delivered before
        `release`.

        Args:
            ready: called when the subscription is `prepared`, if it is not at once, and when it
                fails before.
        """
        machine = self._instance.machine
        subscription = BookmarkSubscription(
            connection.number,
            command.subscription,
            topic_filter,
            start,
            # The rows also stand for messages from before the log, unless the replay starts at its
            # beginning.
            first_txid=0 if start.after_txid else 1,
            committed_txid=machine.committed_txid,
            held=machine.held(),
            content=content,
            conflation=self.conflated.made(command, topic_filter),
        )
        self._admit(ReplayMember(connection, subscription, command, ready))
        return subscription

    def release(self, subscription: BookmarkSubscription) -> None:
        """Starts the deliveries of a subscription whose rows were sent."""
        member = self._members.get(subscription)
        if member is not None:
            member.is_behind = False
            self._kick(member.replay)

    def _add(self, members: list[ReplayMember], terms: ReplayTerms) -> Replay:
        replay = Replay(members, terms, self._now_us())
        self._replays[replay] = None
        self._folds.enlist(self, True)
        if terms.fully_durable:
            self._fully_durable[replay] = None
            self._folds.follow(self, True)
        if replay.is_live:
            self.live[replay] = None
        return replay

    def remove(self, subscription: BookmarkSubscription) -> None:
        member = self._members.pop(subscription, None)
        if subscription.conflation is not None:
            self.conflated.left(subscription)
        self._counted.subscriptions.remove(subscription)
        if member is not None and member.claim is not None:
            member.claim.release()
        if member is not None:
            self._leave(member)

    def _leave(self, member: ReplayMember) -> None:
        """Takes a member out of its replay, and ends the replay with its last member."""
        replay = member.replay
        del replay.members[member.subscription]
        replay.plan.members.remove(member.subscription)
        if not replay.members:
            self._keep(replay, [])
            replay.end()
            for kind in (self._replays, self._fully_durable, self.live):
                kind.pop(replay, None)
            self._folds.follow(self, bool(self._fully_durable))
            if not self._replays:
                self._folds.enlist(self, False)
                self._recent.clear()

    def pause(self, subscriptions: list[BookmarkSubscription]) -> None:
        """Delivers no more of these subscriptions; the others of their replays go on.

        Raises:
            RemoteProtocolError: one is `live`; nothing was changed.
        """
        members = [self._members[subscription] for subscription in subscriptions]
        for member in members:
            if member.is_live:
                raise RemoteProtocolError(
                    f"subscription {member.subscription.id[:200]!r} is live, which cannot be "
                    "paused: unsubscribe it",
                    "bad_command",
                )
        for member in members:
            if not member.is_paused:
                member.is_paused = True
                self._leave(member)
                # A replay of its own, so that its start goes on being looked for.
                self._kick(self._add([member], member.terms))

    def resume(self, subscriptions: list[BookmarkSubscription]) -> None:
        """Resumes these subscriptions, in one replay for all that have the same bookmark and rate.

        Raises:
            RemoteProtocolError: one is not paused; nothing was changed.
        """
        members = [self._members[subscription] for subscription in subscriptions]
        for member in members:
            if not member.is_paused:
                raise RemoteProtocolError(
                    f"subscription {member.subscription.id[:200]!r} is not paused: subscribe it "
                    "with the option pause, or pause it, to resume it with others",
                    "bad_command",
                )
        for terms, together in groups_of((member.subscription, member.terms) for member in members):
            found = [self._members[subscription] for subscription in together]
            for member in found:
                member.is_paused = False
                self._leave(member)
            self._kick(self._add(found, terms))

    def connection_writable(self, connection: ReplayClient) -> None:
        for subscription in connection.subscriptions.values():
            if isinstance(subscription, BookmarkSubscription):
                member = self._members.get(subscription)
                if member is not None:
                    self._kick(member.replay)

    def fold(self, batch: CommitBatch) -> None:
        """Delivers committed runs from memory to replays at the end of the log."""
        runs = batch.runs
        if not runs:
            # The batch only tells of expired records: nothing was committed.
            return
        self._recent.add(runs)
        before_txid = runs[0].first_txid - 1
        clock = time.perf_counter
        until_s = clock() + TURN_S
        for replay in list(self._replays):
            if replay.is_queued or replay.timer is not None or replay.is_paused:
                continue
            plan = replay.plan
            if (
                plan.cursor >= before_txid
                and replay.unprepared is None
                and replay.connection.takes_replays
                and not plan.judges
                # A replay that does not fit into this turn is given the runs in a later one.
                and clock() < until_s
            ):
                self._take(replay, runs)
                if plan.cursor < self._limit_txid():
                    self._kick(replay)
                elif replay.is_live:
                    self._catch_up_live(replay)
            else:
                self._kick(replay)

    def staged(self, run: Run) -> None:
        """Delivers a run that is on its way to the disk to `live` replays at the end of the log, as
        many as a turn has time for. The others catch up when the run is committed."""
        if not self.live:
            return
        clock = time.perf_counter
        if not self._live_until_s:
            self._live_until_s = clock() + TURN_S
            self._runtime.loop.call_soon(self._end_live_turn)
        for replay in list(self.live):
            if clock() >= self._live_until_s:
                return
            if replay.plan.cursor == run.first_txid - 1 and replay.unprepared is None:
                self._deliver_live(replay, [run], run.last_txid)

    def _end_live_turn(self) -> None:
        self._live_until_s = 0.0

    def failed(self, committed_txid: int) -> None:
        """Takes back staged deliveries that never reached the disk."""
        for replay in self.live:
            for subscription in replay.members:
                subscription.take_back(committed_txid)

    def _deliver_live(self, replay: Replay, runs: list[Run], limit_txid: int) -> None:
        found = replay.plan.take(runs, limit_txid, self._now_us(), self._pending())
        self._send(replay, self._judged(replay, found))

    def stepped(self) -> None:
        """Wakes fully durable replays: more messages may be durable, after a commit, an ack or a
        downgrade."""
        committed_txid = self._instance.machine.committed_txid
        for replay in self._fully_durable:
            if replay.plan.cursor < committed_txid:
                self._kick(replay)

    def keep_ticking(self) -> None:
        """Called now and then. Schedules `tick` while there are subscriptions, so that an idle
        instance is not woken for it."""
        if self._members and not self._is_ticking:
            self._is_ticking = True
            self._tick_on()

    def _tick_on(self) -> None:
        self._is_ticking = bool(self._members) and self._runtime.is_serving
        if self._is_ticking:
            self.tick(self._runtime.loop.time(), self._runtime.now_us())
            self._runtime.loop.call_later(TICK_S, self._tick_on)

    def tick(self, now_s: float, now_us: int) -> None:
        """Sends persisted acks that are due, and ends ranges whose end time has passed."""
        if not self._replays:
            return
        committed_txid = self._instance.machine.committed_txid
        for replay in list(self._replays):
            if replay.unprepared is not None or replay.is_paused or replay.timer is not None:
                continue
            if replay.plan.cursor >= committed_txid:
                for subscription in replay.members:
                    subscription.end_by_time(now_us)
                self._send(replay, [])
            elif not replay.plan.ended and replay.connection.takes_replays:
                # A read may have found nothing while a segment was being replaced: it is tried
                # again.
                self._kick(replay)
        for member in list(self._members.values()):
            subscription = member.subscription
            if (
                "persisted" in member.acks
                and now_s >= member.persisted_due_s
                and subscription.prepared
            ):
                fresh = subscription.take_persisted(self._pending())
                if fresh is not None:
                    member.persisted_due_s = now_s + member.persisted_s
                    member.connection.send(
                        member.connection.codec.ranges_ack("persisted", subscription.id, fresh)
                    )

    # -- turns -------------------------------------------------------------------------------
    def _now_us(self) -> int:
        """The time of the loop's clock, in microseconds. It never goes back, as the rates need
        it."""
        return int(self._runtime.loop.time() * 1e6)

    def _limit_txid(self) -> int:
        """The last transaction that may be replayed: the last one that was folded, so that no
        replay overtakes the live subscriptions."""
        return self._folds.folded_txid(self._instance.machine.committed_txid)

    def _pending(self) -> PendingMessages:
        if self._durability is None:
            self._durability = PendingMessages(self._instance.machine.pending)
        return self._durability

    def _kick(self, replay: Replay) -> None:
        if not replay.is_queued and not replay.removed and replay.timer is None:
            replay.is_queued = True
            self._queue.append(replay)
            if not self._scheduled:
                self._scheduled = True
                self._runtime.loop.call_soon(self._turn)

    def _wait(self, replay: Replay, due_us: int) -> None:
        """Leaves a replay out until its rate allows more."""

        def due() -> None:
            replay.timer = None
            self._kick(replay)

        if replay.timer is None and not replay.removed:
            replay.timer = self._runtime.loop.call_at(due_us / 1e6, due)

    def _turn(self) -> None:
        queue = self._queue
        until_s = time.perf_counter() + TURN_S
        while queue:
            replay = queue.popleft()
            if replay.removed or not self._step(replay):
                # A replay whose read is in the thread stays marked as queued until that is done.
                replay.is_queued = replay.is_aside
            else:
                queue.append(replay)
            if time.perf_counter() >= until_s:
                break
        # The mark of a scheduled turn is removed only here, so that no second turn is scheduled.
        self._scheduled = bool(queue)
        if queue:
            self._runtime.loop.call_soon(self._turn)

    def _step(self, replay: Replay) -> bool:
        """Performs one read for one replay. Returns whether the replay has more to do now."""
        connection, plan = replay.connection, replay.plan
        unprepared = replay.unprepared
        # A full socket does not stop a replay behind rows: the end of the rows waits for its start.
        if not connection.takes_replays and (unprepared is None or not unprepared.is_behind):
            self._keep(replay, [])
            return False
        if unprepared is not None:
            return self._read_aside(replay, self._prepare)
        if replay.is_paused or plan.is_blocked(self._pending()):
            return False
        if connection.unsent_bytes > WRITE_HIGH_BYTES:
            # The socket says whether it takes more only after the frames are written.
            connection.write_collected()
            return connection.takes_replays
        cursor = plan.cursor
        limit_txid = self._limit_txid()
        if cursor >= limit_txid or plan.ended:
            self._send(replay, [])
            if replay.is_live and not plan.ended:
                self._catch_up_live(replay)
            return False
        if replay.read and replay.read[0].first_txid <= cursor + 1 <= replay.read[-1].last_txid:
            return self._take(replay, replay.read)
        recent = self._recent.behind(cursor, READ_BYTES)
        if recent:
            return self._take(replay, recent)
        return self._read_aside(replay, self._read_on)

    def _catch_up_live(self, replay: Replay) -> None:
        """Gives staged messages to a replay that has read all that is on disk. If that takes long,
        the rest is delivered when it is committed."""
        until_s = time.perf_counter() + TURN_S
        for run in self._instance.machine.staged_runs():
            if time.perf_counter() >= until_s:
                break
            if run.first_txid == replay.plan.cursor + 1:
                self._deliver_live(replay, [run], run.last_txid)

    def _take(self, replay: Replay, runs: list[Run]) -> bool:
        plan = replay.plan
        before_txid = plan.cursor
        limit_txid = self._limit_txid()
        count = plan.affordable(runs)
        is_cut = count < len(runs)
        if is_cut:
            limit_txid = min(limit_txid, runs[count - 1].last_txid)
        if plan.judges:
            runs, limit_txid = plan.turn_of(runs, limit_txid)
        found = plan.take(runs, limit_txid, self._now_us(), self._pending())
        self._send(replay, self._judged(replay, found))
        if replay.removed:
            return False
        if plan.pacer is not None or plan.judges or is_cut:
            cursor = plan.cursor
            self._keep(replay, [run for run in runs if run.last_txid > cursor])
            if plan.due_us is not None:
                self._wait(replay, plan.due_us)
                return False
        elif replay.read:
            self._keep(replay, [])
        return plan.cursor > before_txid and not plan.ended

    def _keep(self, replay: Replay, runs: list[Run]) -> None:
        """Keeps runs that were read for a replay, in place of those kept before, if there is
        room."""
        size_bytes = sum([len(run.payload) for run in runs])
        self.kept_bytes -= replay.read_bytes
        if self.kept_bytes + size_bytes > KEPT_BYTES_MAX:
            runs, size_bytes = [], 0
        self.kept_bytes += size_bytes
        replay.read, replay.read_bytes = runs, size_bytes

    def _read_aside(self, replay: Replay, read: Callable[[Replay], Callable[[], bool]]) -> bool:
        """Has the reading thread read what may have to come from the disk. The replay stays out of
        the queue, though marked as queued, until that is done."""
        replay.is_aside = True
        self._runtime.spawn(self._aside(replay, read))
        return False

    async def _aside(self, replay: Replay, read: Callable[[Replay], Callable[[], bool]]) -> None:
        more = False
        try:
            finish = await self._reading.run(read, replay, of=self._owner_of(replay.connection))
            if not replay.removed and replay.connection.is_open:
                # A member may have been paused meanwhile.
                more = finish()
        except StorageError as error:
            if not replay.removed:
                self._fail(replay, error)
        replay.is_aside = replay.is_queued = False
        if more:
            self._kick(replay)

    def _read_on(self, replay: Replay) -> Callable[[], bool]:
        """Reads, in the reading thread, runs that are not in memory any more."""
        after_txid = replay.plan.cursor
        has_room = self.kept_bytes + READ_BYTES <= KEPT_BYTES_MAX
        size_bytes = READ_BYTES if has_room or replay.plan.pacer is None else READ_LITTLE_BYTES
        runs = self._reading.reader.read(after_txid, size_bytes)

        def finish() -> bool:
            if replay.is_paused:
                return False
            if replay.plan.cursor < after_txid:
                # A commit failed, and its transaction ids are given to other messages
                # (`take_back`).
                return True
            if runs and runs[0].first_txid > after_txid + 1:
                self._end_overtaken(replay, runs[0].first_txid)
            return not replay.removed and self._take(replay, runs)

        return finish

    def _prepare(self, replay: Replay) -> Callable[[], bool]:
        """Makes, in the reading thread, one step towards the start of a member."""
        member = replay.unprepared
        if member is None:
            return lambda: True
        subscription = member.subscription
        reader = self._reading.reader
        if subscription.wants_summaries:
            summaries = reader.segment_summaries()

            def skip() -> bool:
                subscription.skip_segments(summaries)
                return True

            return skip
        after_txid = subscription.prepare_after_txid
        headers = reader.read_headers(after_txid, HEADERS_IN_STEP)

        def finish() -> bool:
            if headers and headers[0].first_txid > after_txid + 1:
                # Removed messages would be counted as messages before the start.
                self._overtake(member, headers[0].first_txid)
                return not replay.removed
            subscription.prepare(headers[: replay.plan.affordable(headers)])
            if subscription.prepared:
                self._accept(member)
            return True

        return finish

    def _accept(self, member: ReplayMember) -> None:
        if member.ready is not None:
            member.ready()
        elif "processed" in member.acks or not member.acks:
            subscription = member.subscription
            member.connection.send(
                member.connection.codec.ranges_ack(
                    "processed",
                    subscription.id,
                    subscription.base,
                    member.command_id,
                    subscription.missing,
                )
            )

    def _send(self, replay: Replay, deliveries: Deliveries) -> None:
        connection = replay.connection
        for subscription, delivery in deliveries:
            connection.sink.deliver(subscription.id, delivery)
            self.delivered += delivery.count
        for member in replay.members.values():
            if member.subscription.conflation is not None:
                self.conflated.give(member, self._limit_txid())
            if member.subscription.take_completed():
                self._complete(member)

    def _complete(self, member: ReplayMember) -> None:
        subscription = member.subscription
        if "stats" in member.acks:
            matches, considered = subscription.delivered, subscription.considered
            # The number of skipped messages would tell of messages that may not be read.
            is_kept_back = member.connection.keeps_back(subscription.filter)
            member.connection.send(
                member.connection.codec.acknowledgment(
                    "stats",
                    member.command_id,
                    sub=subscription.id,
                    matches=matches,
                    topic_matches=matches if is_kept_back else considered,
                )
            )
        if "completed" in member.acks:
            member.connection.send(
                member.connection.codec.acknowledgment(
                    "completed", member.command_id, sub=subscription.id
                )
            )

    def _judged(self, replay: Replay, found: Deliveries) -> Deliveries:
        """Returns the deliveries without those of subscriptions whose filter gave up on a message.
        These subscriptions end here, so that nothing behind that message is delivered to them."""
        if not replay.plan.judges:
            return found
        ended = set()
        for member in list(replay.members.values()):
            content = member.subscription.content
            if content is not None and content.has_given_up:
                ended.add(member.subscription)
                self._runtime.report(
                    FILTER_TOO_COSTLY,
                    client=member.connection.client_name,
                    subscription=member.subscription.id,
                    filter=content.text[:SHOWN_CHARACTERS_MAX],
                )
                self._end(member, FILTER_TOO_COSTLY, TOO_COSTLY)
        return [each for each in found if each[0] not in ended] if ended else found

    def _fail(self, replay: Replay, error: StorageError) -> None:
        """Ends the subscriptions of a replay where the log cannot be read, and tells their clients.
        Other replays go on."""
        text = f"the log cannot be read behind transaction id {replay.plan.cursor}: {error}"
        for member in list(replay.members.values()):
            self._runtime.report(
                "replay_failed",
                client=member.connection.client_name,
                subscription=member.subscription.id,
                text=str(error),
            )
            self._end(member, "storage_error", text)

    def _end_overtaken(self, replay: Replay, first_txid: int) -> None:
        """Ends the subscriptions that retention has overtaken: they lack messages before this
        transaction, the oldest one that is left."""
        for member in list(replay.members.values()):
            if member.subscription.is_overtaken(first_txid):
                self._overtake(member, first_txid)

    def _overtake(self, member: ReplayMember, first_txid: int) -> None:
        cursor = member.subscription.cursor
        self._runtime.report(
            "subscription_overtaken",
            client=member.connection.client_name,
            subscription=member.subscription.id,
            after_txid=cursor,
            first_txid=first_txid,
        )
        self._end(
            member,
            OVERTAKEN,
            f"retention removed transactions {cursor + 1:,} to {first_txid - 1:,} from the log of "
            "this instance before this subscription was sent them: subscribe again with what you "
            "have, to be told what is missing and to get what is left",
        )

    def _end(self, member: ReplayMember, reason: str, text: str) -> None:
        connection, subscription = member.connection, member.subscription
        connection.stopped(subscription, reason)
        connection.subscriptions.pop(subscription.id, None)
        self.remove(subscription)
        connection.send(
            connection.codec.acknowledgment(
                "processed", member.command_id, reason, text, sub=subscription.id
            )
        )
        if member.ready is not None:
            member.ready()
