"""The link's machine: what one destination has, and what it must be sent next (design.md 4).

Pure. The shell reads the journal behind `cursor`, up to `told_txid`, gives the runs to `take`,
sends the batches, and passes the downstream's acks to `acked`.

Invariants: stored_txid <= cursor <= told_txid; each batch's number is one above the last one's; a
message that the destination holds, or that is on its way there, is never sent again in this
connection; the window counts bytes that are not stored yet, never those that are not persisted (in
the simulator, a window that waits for persisted deadlocks).

Where several instances reach one destination, each message that one of them sends on is sent there
by the others too, an instant apart. An async link therefore defers messages that the destination
was seen to get by another path: the publisher's own instance, or an instance nearer to it, goes
first. While the destination continues to show that it gets such messages, they are skipped. When it
stops, they are sent after a moment, and the link takes longer to trust that path again. Order is
kept: the messages behind a deferred one wait as well. Nothing is skipped unless the destination
showed that it has it.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

from raylay.services.errors import RemoteProtocolError
from raylay.services.messages.ranges import PublisherRanges, Range, SequenceSet
from raylay.services.messages.records import Flag, Kind, Run
from raylay.services.replication.acknowledgment import UNAWAITED, RootedRanges
from raylay.services.replication.awaited_marks import clear_awaited, move_marks
from raylay.services.replication.effects import (
    LinkAnswered,
    LinkEffect,
    LinkLacks,
    LinkProgress,
    Ranges,
    Rooted,
    SendBatch,
    ranges_of,
    rooted_of,
)
from raylay.services.replication.link.alternate_path import DEFERRED_US_MAX, AlternatePath
from raylay.services.replication.link.content import DestinationFilters, FilterLanguage
from raylay.services.replication.link.filtered_out import FilteredOut
from raylay.services.replication.link.routing import DestinationRoute, Router, came_from
from raylay.services.replication.unavailable import decode_unavailable
from raylay.services.replication.values import DirectLinkState, LinkStart

WINDOW_BYTES_DEFAULT = 8 * 1024 * 1024
WINDOW_BATCHES_MAX = 256
YOURS_SHOWN_MAX = 16
"""Number of ranges shown to the destination in one connection as passing through it and missing
there: one range is enough evidence."""
CONFLATION_MS_MAX = 1_000
"""Longest ack conflation of a destination, in milliseconds, with which messages are deferred; with
a longer one nothing waits for another path."""
WAYS_MAX = 10_000
_RECORDS = int(Kind.RECORDS)

Way = tuple[tuple[int, ...], bytes]
"""Path and topic of messages: messages with the same way arrive over the same links."""


_NOTHING_AWAITED = RootedRanges()
"""No awaited messages of a batch; never changed."""


class OutboundLink:
    """Decides what one destination is sent (see the module docstring). Owner: the link's process,
    or the instance for a direct link. Lifecycle: as long as the owner; `connected` begins a
    connection anew."""

    def __init__(
        self,
        destination: DestinationRoute,
        window_bytes: int = WINDOW_BYTES_DEFAULT,
        removed: Callable[[], PublisherRanges] = PublisherRanges,
        filters: FilterLanguage | None = None,
    ) -> None:
        """
        Args:
            removed: returns the messages that the journal once held and holds no more. Changes
                nothing; called on rare paths.
            filters: the language of the content filters; None: content filters do not run.
        """
        self._removed = removed
        self._unavailable = PublisherRanges()
        self._whole = False
        self.beside = FilteredOut()
        self.destination = destination
        self.router = Router(destination, DestinationFilters(destination.topics, filters))
        self.window_bytes = window_bytes
        self.told_txid = 0
        self.cursor = 0
        self.resync_to = 0
        self.is_connected = False
        self.sync = destination.sync
        self.sent_records = 0
        self.sent_bytes = 0
        self.skipped = 0
        self.deferrals_ended = 0
        """Number of deferred messages that were sent after all."""
        self._elsewhere: dict[Way, AlternatePath] = {}
        self._ways: dict[int, Way] = {}
        """Path and topic, by publisher, of its last message that came here from another
        instance."""
        self.may_defer = not destination.sync and destination.ack_conflation_ms <= CONFLATION_MS_MAX
        """Whether a message may ever wait for another path."""
        self._deferred: Way | None = None
        """Path and topic of the deferred message; None: no message is deferred."""
        self._deferred_txid = 0
        self._deferred_us = 0
        self._shown_upto: dict[int, int] = {}
        """Highest sequence, by publisher, that the destination showed to have got by another path.
        A message below it will not come that way any more, since each path keeps a publisher's
        order."""
        self._news_us = 0
        self._has_news = False
        self._jitter = 0
        """Addition to each wait for another path, in 32nds of the wait."""
        self._downstream = 0
        self._number = 0
        self._held = PublisherRanges()
        self._at_connect: PublisherRanges | None = None
        self._came_from_there = PublisherRanges()
        self._yours: Ranges = {}
        self._yours_shown = 0
        self._own_root = 0
        self._mark = RootedRanges()
        self._once_more = PublisherRanges()
        """Messages that the destination holds and that are marked nevertheless: the resync sends
        them once more, as far as they are still in the journal."""
        self._looked_for = PublisherRanges()
        self._looked_to_txid = 0
        """Transaction id up to which the journal is read for marked messages. A message that is
        still marked when the cursor gets there is not in the journal any more."""
        self._notices = RootedRanges()
        self._named = RootedRanges()
        """Messages that were asked for by identity and that the destination may lack. They are
        asked for again when the destination shows that it has them."""
        # (number, last txid before the batch, bytes)
        self._in_flight: deque[tuple[int, int, int]] = deque()
        self._bytes_in_flight = 0
        self._caught_up_number = 0
        self._told_stored = 0

    # -- connection --------------------------------------------------------------------------
    def connected(
        self, downstream: int, held: PublisherRanges, start: LinkStart, first_txid: int
    ) -> list[LinkEffect]:
        """Begins a connection, after both sides have exchanged the ranges that they hold and the
        instance was asked for the start state.

        Args:
            downstream: incarnation of the connected server.
            held: the messages that are stored there.
            first_txid: the oldest transaction id in the journal.
        """
        self.is_connected = True
        self._downstream = downstream
        self._held = held
        self._at_connect = held.copy()
        self._came_from_there = PublisherRanges()
        self._yours, self._yours_shown = {}, 0
        self._own_root = start.own_root
        self._unavailable, self._whole = start.unavailable.copy(), start.whole
        self._mark = start.mark.copy()
        self._once_more, self._looked_for = PublisherRanges(), PublisherRanges()
        self._looked_to_txid = start.last_txid
        self._notices, self._named = RootedRanges(), RootedRanges()
        for marks in self._mark.roots.values():
            self._looked_for.update(marks)
        for root, asked in start.notice.roots.items():
            for publisher, ranges in asked.sets.items():
                # The destination holds these messages and has not answered for them. They are sent
                # once more, instead of being named only, so that the destination compares the
                # contents before it answers.
                self._mark.of(root).add_ranges(publisher, ranges)
                self._once_more.add_ranges(publisher, ranges)
                self._looked_for.add_ranges(publisher, ranges)
                self._held.remove_ranges(publisher, ranges)
                self._at_connect.remove_ranges(publisher, ranges)
        self.sync = start.sync
        self._deferred, self._deferred_txid = None, 0
        self._shown_upto.clear()
        self._jitter = (start.own_root ^ downstream) % 16
        self._number = 0
        self._in_flight.clear()
        self._bytes_in_flight = 0
        self._caught_up_number = 0
        self._told_stored = 0
        self.beside.forget(first_txid)
        self.cursor = max(0, first_txid - 1)
        self.resync_to = start.last_txid
        self.told_txid = max(self.told_txid, start.last_txid)
        return self.flush_notices()

    def disconnected(self) -> None:
        self.is_connected = False

    def hand_over(self) -> DirectLinkState | None:
        """Returns the state with which another machine continues this connection, which ends for
        this machine. None: not possible now, because something is to be sent, in flight, or asked
        for."""
        if (
            not self.is_connected
            or self._at_connect is not None
            or self.cursor < self.told_txid
            or self._in_flight
            or self._caught_up_number
            or self._deferred is not None
            or any((self._notices, self._mark, self._named, self._yours))
        ):
            return None
        self.is_connected = False
        there = self._downstream, self._held, self.cursor, self._number
        return DirectLinkState(*there, self._own_root, self.sync, self._unavailable, self._whole)

    def take_over(self, state: DirectLinkState) -> None:
        """Continues a connection that another machine handed over. To be called on a new
        machine."""
        self.is_connected = True
        self._downstream, self._own_root = state.downstream, state.own_root
        self._jitter = (state.own_root ^ state.downstream) % 16
        self._held, self._number, self.sync = state.held, state.number, state.sync
        self._unavailable, self._whole = state.unavailable, state.whole
        self.cursor = self.told_txid = self.resync_to = state.cursor
        self._looked_to_txid = self._told_stored = state.cursor

    def told(self, last_txid: int) -> None:
        """Notes that the instance committed everything up to this transaction id."""
        self.told_txid = max(self.told_txid, last_txid)

    def set_mode(self, sync: bool) -> None:
        """Sets whether messages sent from now on are marked as awaited."""
        self.sync = sync

    def notice(self, awaited: Rooted, last_txid: int) -> list[LinkEffect]:
        """Asks the destination for the answers of these messages, which are committed up to
        `last_txid`: the instance became awaited for them, or the link was upgraded. Messages that
        the destination may lack are marked when they are read, or asked for by identity when the
        journal has them no more."""
        if not self.is_connected:
            return []
        for root, asked in awaited.items():
            for publisher, ranges in asked.items():
                held = self._held.get(publisher)
                for a, b in ranges:
                    there = held.within(a, b) if held is not None else []
                    absent = held.missing(a, b) if held is not None else [(a, b)]
                    if there:
                        self._notices.of(root).add_ranges(publisher, there)
                    if absent:
                        self._mark.of(root).add_ranges(publisher, absent)
                        self._looked_for.add_ranges(publisher, absent)
        self._looked_to_txid = max(self._looked_to_txid, last_txid)
        self._name_what_is_gone()
        return self.flush_notices()

    def flush_notices(self) -> list[LinkEffect]:
        """Sends waiting notices at once: notices do not wait for the window."""
        if not self.is_connected or not self._notices:
            return []
        return [self._batch([], RootedRanges(), 0)]

    # -- the journal -------------------------------------------------------------------------
    @property
    def resyncing(self) -> bool:
        """Returns whether the cursor is still in the part of the journal that existed when the
        connection began."""
        return self.is_connected and self._at_connect is not None

    @property
    def wants(self) -> bool:
        """Returns whether the shell should read the journal behind the cursor and call `take`."""
        return (
            self.is_connected
            and (self.cursor < self.told_txid or self._at_connect is not None)
            and self._bytes_in_flight < self.window_bytes
            and len(self._in_flight) < WINDOW_BATCHES_MAX
            and self._deferred is None
        )

    @property
    def due_us(self) -> int | None:
        """Returns the time at which the deferred message has waited long enough, and the shell
        calls `look_again`; None: no message is deferred."""
        elsewhere = self._elsewhere.get(self._deferred) if self._deferred is not None else None
        if elsewhere is None:
            return None
        patience_us = elsewhere.patience_us
        patience_us += patience_us * self._jitter // 32
        patience_us += 1_000 * self.destination.ack_conflation_ms
        since_us = self._deferred_us
        # After a wait in vain, other messages of the path say nothing about this one.
        if not elsewhere.misses:
            since_us = max(since_us, self._news_us)
        return min(since_us + patience_us, self._deferred_us + DEFERRED_US_MAX)

    def look_again(self) -> None:
        """Lets `take` decide again about the deferred message."""
        self._deferred = None

    def skip_segments(self, summaries: list[tuple[int, int, PublisherRanges]]) -> None:
        """Moves the cursor over sealed segments (oldest first) that the destination held whole when
        the connection began. Messages that it was seen to hold since then are left to `take`,
        because their answers must still be asked for."""
        held = self._at_connect
        if held is None:
            return
        for first, last, content in summaries:
            if last <= self.cursor:
                continue
            if first > self.cursor + 1 or last > self.resync_to:
                break
            if not all(
                self.beside.settles(held, first, last, *each) for each in content.sets.items()
            ):
                break
            self.cursor = last

    def skip_headers(self, runs: list[Run]) -> bool:
        """Moves the cursor, during a resync, over runs that need not be sent. Returns True when all
        of `runs` were skipped, so that the shell reads on; False when it must read from the cursor
        with payloads, for `take`."""
        for run in runs:
            if run.last_txid <= self.cursor:
                continue
            if run.first_txid > self.resync_to:
                return False
            if run.kind == Kind.RECORDS and self._routed(run):
                if not self.beside.settles_run(self._at_connect, run):
                    return False
            elif run.kind == Kind.RECORDS:
                if self._downstream in run.path and not (run.contiguous or run.payload):
                    return False  # Only the records say which sequences the run holds.
                self._ask_where_it_came_from(run)
            self.cursor = run.last_txid
        return True

    def take(self, runs: list[Run], now_us: int = 0) -> list[LinkEffect]:
        """Takes committed runs that were read behind the cursor, in order, and returns one batch of
        the records that must be sent. Without runs, ends a resync that has nothing left to send.

        Args:
            now_us: time by a clock that never goes backwards; 0: no message is deferred.
        """
        before = self.cursor
        # Transaction ids have no gaps: the records between were removed by force before they could
        # be sent.
        gap = bool(runs) and runs[0].first_txid > before + 1
        may_defer = self.may_defer and now_us > 0 and not gap and not self.sync
        if self._has_news:
            self._news_us, self._has_news = now_us, False
        batch: list[Run] = []
        settled: list[tuple[int, list[Range]]] = []
        awaited = RootedRanges()
        resending: Ranges = {}
        answered = PublisherRanges()
        skipped = 0
        size = 0
        for run in runs:
            last_txid = run.first_txid + run.count - 1
            if last_txid <= self.cursor:
                continue
            if run.kind != _RECORDS:
                self.cursor = last_txid
                if run.kind == Kind.UNAVAILABLE and run.first_txid > self.resync_to:
                    # Found to be unavailable since the connect: the destination is to be told, too.
                    self._unavailable.update(decode_unavailable(run))
                    gap = True
                continue
            if not self._routed(run):
                self.cursor = last_txid
                self._ask_where_it_came_from(run)
                continue
            part, surplus = self._missing_part(run)
            if may_defer and run.path and self._defers(run, part, now_us):
                break
            self.cursor = last_txid
            if surplus:
                skipped += self._skip(run, surplus, answered, resending)
            if part is None:
                continue
            batch.append(part)
            size += len(part.payload)
            self.sent_records += part.count
            ranges = part.ranges()
            self._held.add_ranges(part.publisher, ranges)
            if run.first_txid <= self.resync_to:
                resending.setdefault(part.publisher, []).extend(ranges)
                if self.sync and part.flags & Flag.AWAITED:
                    waits = self._flagged_and_unacked(part, ranges)
                    if sum(b - a + 1 for a, b in waits) < part.count:
                        settled.append((len(batch) - 1, waits))
            if self.sync and self._mark:
                self._take_marks(run, ranges, awaited)
        effects: list[LinkEffect] = []
        self.skipped += skipped
        if resending:
            effects.append(LinkProgress(self._told_stored, resending, False, 0))
        if answered.sets:
            effects.append(LinkAnswered({UNAWAITED: ranges_of(answered)}, {}))
        ends = self._at_connect is not None and self.cursor >= self.resync_to
        if ends and self._came_from_there:
            effects.append(LinkAnswered({UNAWAITED: ranges_of(self._came_from_there)}, {}))
            self._came_from_there = PublisherRanges()
        self._name_what_is_gone()
        if batch or awaited or self._notices or ends or gap or self._yours:
            marked = self.sync
            if settled:
                marked = len(settled) < len(batch) or any(waits for _, waits in settled)
                if marked:
                    batch = clear_awaited(batch, settled)
            sent = self._batch(batch, awaited, size, before, ends, marked)
            if ends or (gap and self._at_connect is None):
                effects += self._tell_lacks(sent)
            effects.append(sent)
            if ends:
                self._at_connect = None
                self._caught_up_number = self._number
        if skipped or not self._in_flight:
            effects.extend(self._progress(skipped))
        return effects

    def pass_by(self, runs: list[Run]) -> list[LinkEffect] | None:
        """Moves the cursor over committed runs that all came from the destination itself, where
        nothing needs to be sent. With a pair of instances this is the common case, and `take` would
        reach the same result more slowly. Returns None where `take` must decide, and then moves
        nothing."""
        asks = self._mark.roots or self._notices.roots or self._looked_for.sets or self._yours
        waits = self._at_connect is not None or self._deferred is not None or self._has_news
        if asks or waits or not self.is_connected or self.cursor != self.told_txid:
            return None
        upto = came_from(runs, self._downstream, self.cursor)
        if not upto:
            return None
        self.cursor = self.told_txid = upto
        return [] if self._in_flight else self._progress(0)

    def send_new(self, run: Run) -> list[LinkEffect] | None:
        """Sends a committed run of which the destination has nothing and for which it is waited,
        where nothing else is to be done: the common case of a message that was published here.
        `take` would reach the same result more slowly. Returns None where `take` must decide, and
        then changes nothing."""
        asks = self._mark.roots or self._notices.roots or self._looked_for.sets or self._yours
        if (
            asks
            or not self.sync
            or self.may_defer
            or run.path
            or run.kind != _RECORDS
            or self.cursor != self.told_txid
            or run.first_txid != self.cursor + 1
            or run.first_txid <= self.resync_to
            or self._at_connect is not None
            or self.router.has_filter
            or not self.is_connected
            or self._bytes_in_flight >= self.window_bytes
            or len(self._in_flight) >= WINDOW_BATCHES_MAX
            or not self.router.routed(run, self._downstream)
        ):
            return None
        there = self._held.get(run.publisher)
        if there is not None and there.touches(run.first_sequence, run.last_sequence):
            return None
        held, before = self._held.of(run.publisher), self.cursor
        self.cursor = self.told_txid = before + run.count
        self.sent_records += run.count
        for first, last in run.ranges():
            held.add(first, last)
        return [self._batch([run], _NOTHING_AWAITED, len(run.payload), before)]

    def _defers(self, run: Run, part: Run | None, now_us: int) -> bool:
        """Returns whether the missing part of a run that others brought here is deferred, because
        the destination may get it by another path."""
        way = (run.path, run.topic)
        if len(self._ways) >= WAYS_MAX:
            self._ways.clear()
            self._shown_upto.clear()
        self._ways[run.publisher] = way
        elsewhere = self._elsewhere.get(way)
        if part is None and elsewhere is not None and self._deferred_txid == run.first_txid:
            elsewhere.came(now_us - self._deferred_us)
        if part is None or elsewhere is None or not elsewhere.is_believed:
            return False
        if self._deferred_txid != run.first_txid:
            self._deferred_txid, self._deferred_us = run.first_txid, now_us
        self._deferred = way
        due_us = self.due_us
        assert due_us is not None
        if now_us < due_us and self._shown_upto.get(part.publisher, 0) <= part.last_sequence:
            return True
        self._deferred = None
        self.deferrals_ended += 1
        elsewhere.missed()
        return False

    def _shown_elsewhere(self, held: Ranges) -> None:
        """Notes that the destination got messages of these publishers by other paths."""
        for publisher, ranges in held.items():
            way = self._ways.get(publisher)
            if way is None:
                continue
            elsewhere = self._elsewhere.get(way)
            if elsewhere is None:
                if len(self._elsewhere) >= WAYS_MAX:
                    self._elsewhere.clear()
                elsewhere = self._elsewhere[way] = AlternatePath()
            elsewhere.shown += 1
            if way == self._deferred:
                self._has_news = True
            last = ranges[-1][1]
            if last > self._shown_upto.get(publisher, 0):
                self._shown_upto[publisher] = last
        if self._has_news:
            self._deferred = None

    def _tell_lacks(self, batch: SendBatch) -> list[LinkEffect]:
        """Adds to the batch the messages that the destination lacks and cannot get from here."""
        lacks = self._removed()
        lacks.update(self._unavailable)
        for publisher in list(lacks.sets):
            held = self._held.get(publisher)
            if held is not None:
                lacks.of(publisher).difference_update(held)
        if not lacks:
            return []
        batch.lacks, batch.whole = lacks, self._whole
        return [LinkLacks(ranges_of(lacks))]

    def _name_what_is_gone(self) -> None:
        """Asks by identity for awaited messages that the journal no longer has, once all of the
        journal is read: they cannot be sent, and the destination may hold them."""
        if not self._looked_for.sets or self.cursor < self._looked_to_txid:
            return
        for root, marks in self._mark.roots.items():
            for publisher, ranges in self._looked_for.sets.items():
                marked = marks.get(publisher)
                gone = ranges.intersection(marked) if marked is not None else SequenceSet()
                if not gone:
                    continue
                marks.remove_ranges(publisher, list(gone))
                if self.sync:
                    self._notices.of(root).of(publisher).update(gone)
                    held = self._held.get(publisher)
                    absent = gone.copy()
                    if held is not None:
                        absent.difference_update(gone.intersection(held))
                    if absent:
                        self._named.of(root).of(publisher).update(absent)
                once_more = self._once_more.get(publisher)
                if once_more is not None:
                    self._held.of(publisher).update(gone.intersection(once_more))
        self._once_more, self._looked_for = PublisherRanges(), PublisherRanges()

    def _ask_where_it_came_from(self, run: Run) -> None:
        """Asks for the answers of a run that came from the destination. Such a run is never sent
        back, but may be unacknowledged, because its origin was not known when it was recorded. A
        notice asks for the answer where one is awaited; otherwise the run counts as answered
        because it was there."""
        if self._downstream not in run.path:
            return
        at_connect = self._at_connect
        if at_connect is not None and run.last_txid <= self.resync_to:
            held = at_connect.get(run.publisher)
            if held is None or not held.covers(run.first_sequence, run.last_sequence):
                # The run either arrived between the destination's account of what it holds and this
                # connect, or the destination was restored from an old copy of its data: it must
                # check which.
                self._came_from_there.add_ranges(run.publisher, run.ranges())
                self._show(run, held)
        elif run.path[-1] != self._downstream:
            self._show_what_came_round(run)
        if self.sync and self._mark:
            for root, marks in self._mark.roots.items():
                found = marks.get(run.publisher)
                if found is not None:
                    theirs = [piece for a, b in run.ranges() for piece in found.within(a, b)]
                    if theirs:
                        self._notices.of(root).add_ranges(run.publisher, theirs)
                        marks.remove_ranges(run.publisher, theirs)

    def _show(self, run: Run, held: SequenceSet | None) -> None:
        room = YOURS_SHOWN_MAX - self._yours_shown
        if room <= 0:
            return
        lacking = _lacking(run, held)[:room]
        if lacking:
            self._yours_shown += len(lacking)
            self._yours.setdefault(run.publisher, []).extend(lacking)

    def _show_what_came_round(self, run: Run) -> None:
        """Shows the destination a run that once passed through it and came here by others since the
        connect. If the destination has lost it, by going back to an older copy of its data, there
        may be nobody else to tell it."""
        shown = _lacking(run, self._held.get(run.publisher))
        if shown:
            self._yours.setdefault(run.publisher, []).extend(shown)

    def _routed(self, run: Run) -> bool:
        if self._at_connect is not None and run.first_txid <= self.resync_to:
            return self.router.routed_in_resync(run, self._downstream)
        return self.router.routed(run, self._downstream)

    def _missing_part(self, run: Run) -> tuple[Run | None, list[Range]]:
        """Returns (the part to send, the ranges held at the destination already) of a routed run,
        within what passes the filters."""
        held = self._held.get(run.publisher)
        if held is None or not held.touches(run.first_sequence, run.last_sequence):
            if not self.router.has_filter:
                return run, []
            held = SequenceSet()
        every = run.ranges()
        ranges = self.router.passing(run, every)
        if ranges is not every:
            self.beside.add(run, every, ranges)
        surplus = [piece for a, b in ranges for piece in held.within(a, b)]
        missing = [piece for a, b in ranges for piece in held.missing(a, b)]
        if surplus and (compared := self._to_compare(run, surplus)):
            settled = SequenceSet(surplus)
            settled.difference_update(SequenceSet(compared))
            missing, surplus = list(SequenceSet([*missing, *compared])), list(settled)
        return (run.select(missing) if missing else None), surplus

    def _to_compare(self, run: Run, surplus: list[Range]) -> list[Range]:
        """Returns the part of a run that is sent although the destination holds it: a client that
        published it here waits for it, and the destination has it from elsewhere, from a client
        that failed over or from another one of the same name. Contents are compared only where the
        records meet, and a message with other content must never be acknowledged."""
        if not self.sync or run.path or not run.flags & Flag.AWAITED:
            return []
        return (
            surplus if run.first_txid > self.resync_to else self._flagged_and_unacked(run, surplus)
        )

    def _skip(
        self, run: Run, surplus: list[Range], answered: PublisherRanges, resending: Ranges
    ) -> int:
        """Skips messages that the destination holds, but still obtains their answers: a notice
        asks where this instance is awaited for them; the others count as answered because they
        are held."""
        if self._at_connect is not None and run.last_txid <= self.resync_to:
            known = self._at_connect.get(run.publisher)
            if known is not None:
                # The instance has taken care of messages that were held when the connection began.
                surplus = [piece for a, b in surplus for piece in known.missing(a, b)]
        if not surplus:
            return 0
        count = sum(b - a + 1 for a, b in surplus)
        if self.sync:
            asked = SequenceSet()
            if self._mark:
                asked = self._take_marks(run, surplus, self._notices)
            root = self._root_of(run)
            if root != UNAWAITED:
                self._notices.of(root).add_ranges(run.publisher, surplus)
                if self._at_connect is not None and run.first_txid <= self.resync_to:
                    resending.setdefault(run.publisher, []).extend(surplus)
                return count
            surplus = [piece for a, b in surplus for piece in asked.missing(a, b)]
        if surplus:
            answered.add_ranges(run.publisher, surplus)
        return count

    def _flagged_and_unacked(self, run: Run, ranges: list[Range]) -> list[Range]:
        """Returns the part of a run's ranges that was flagged as awaited and for which somebody
        still waits.

        The rest was settled before, with a server that lost its disk since or by a downgrade. If it
        were marked again, this instance, which has answered already, would become the destination's
        waiter, and the real waiter would be answered too early.
        """
        marks = self._mark.roots.get(self._root_of(run))
        found = marks.get(run.publisher) if marks is not None else None
        if found is None:
            return []
        return [piece for a, b in ranges for piece in found.within(a, b)]

    def _root_of(self, run: Run) -> int:
        if not run.flags & Flag.AWAITED:
            return UNAWAITED
        return run.path[0] if run.path else self._own_root

    def _take_marks(self, run: Run, ranges: list[Range], into: RootedRanges) -> SequenceSet:
        return move_marks(self._mark, self._root_of(run), run.publisher, ranges, into)

    def _batch(
        self,
        runs: list[Run],
        awaited: RootedRanges,
        size: int,
        before: int | None = None,
        ends: bool = False,
        marked: bool | None = None,
    ) -> SendBatch:
        self._number += 1
        if self._notices:
            for root, ranges in self._notices.roots.items():
                awaited.of(root).update(ranges)
            self._notices = RootedRanges()
        self._in_flight.append((self._number, self.cursor if before is None else before, size))
        self._bytes_in_flight += size
        self.sent_bytes += size
        marked = self.sync if marked is None else marked
        yours, self._yours = self._yours, {}
        asked = rooted_of(awaited.roots) if awaited.roots else {}
        return SendBatch(self._number, runs, marked, asked, ends, yours=yours)

    # -- acknowledgments ---------------------------------------------------------------------
    def acked(
        self, number: int, held: Ranges, persisted: Rooted, conflicts: Ranges
    ) -> list[LinkEffect]:
        """Takes an ack: batches up to `number` are stored. `AckUpstream` explains the other values.

        Raises:
            RemoteProtocolError: it is of a batch that was not sent: journal would be freed by it.
        """
        if number > self._number:
            raise RemoteProtocolError(
                f"an ack of batch {number} came, and {self._number} is the last that was sent",
                "bad_command",
            )
        in_flight = self._in_flight
        caught_up = bool(self._caught_up_number and number >= self._caught_up_number)
        while in_flight and in_flight[0][0] <= number:
            self._bytes_in_flight -= in_flight.popleft()[2]
        for publisher, ranges in held.items():
            self._held.add_ranges(publisher, ranges)
        if held and self.may_defer:
            self._shown_elsewhere(held)
        effects: list[LinkEffect] = []
        if persisted or conflicts:
            effects.append(LinkAnswered(persisted, conflicts))
        if caught_up:
            self._caught_up_number = 0
        effects.extend(self._progress(0, caught_up))
        if held and self._named.roots:
            self._ask_for_what_is_shown(held)
            effects.extend(self.flush_notices())
        return effects

    def _ask_for_what_is_shown(self, held: Ranges) -> None:
        """Asks again for the answers of messages that the destination has since got by another
        path. It did not know them when it was first asked for them by identity, so the first
        request had no effect."""
        for root, named in self._named.roots.items():
            for publisher, ranges in held.items():
                sought = named.get(publisher)
                found = (
                    [piece for a, b in ranges for piece in sought.within(a, b)] if sought else []
                )
                if found:
                    named.remove_ranges(publisher, found)
                    if self.sync:
                        self._notices.of(root).add_ranges(publisher, found)

    @property
    def stored_txid(self) -> int:
        """Returns the transaction id up to which everything routed is on disk at the connected
        server."""
        return self._in_flight[0][1] if self._in_flight else self.cursor

    def _progress(self, skipped: int, caught_up: bool = False) -> list[LinkEffect]:
        stored = self.stored_txid
        if stored > self._told_stored or caught_up or skipped:
            self._told_stored = stored
            return [LinkProgress(stored, {}, caught_up, skipped)]
        return []


def _lacking(run: Run, held: SequenceSet | None) -> list[Range]:
    ranges = run.ranges()
    return ranges if held is None else [piece for a, b in ranges for piece in held.missing(a, b)]
