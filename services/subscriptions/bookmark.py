"""Bookmark subscriptions: where each starts, what it delivers, and when it ends (docs/protocol.md).

A bookmark subscription is a cursor over the journal. First, `prepare` reads headers until the
messages before the resolved start are known. Then runs read behind `cursor` are given to `take`, in
order, and come back as deliveries. Replay and live delivery work the same.

Invariants: the cursor only falls by `take_back`; every matching record behind the start, not in
`have` and not behind the end, is in exactly one delivery; `take_persisted` names only messages that
were delivered or passed over and are durable here.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Literal, Protocol

from raylay.services.errors import RemoteProtocolError
from raylay.services.messages.bookmarks import Point, Position
from raylay.services.messages.ranges import PublisherRanges, Range, SequenceSet
from raylay.services.messages.readable import readable_records
from raylay.services.messages.records import Flag, Kind, Record, Run, decode_record
from raylay.services.subscriptions.delivery import DeliveryContent, deliveries_of, prefix_of
from raylay.services.subscriptions.durability import DurabilityView, first_pending_in
from raylay.services.subscriptions.matching import TopicFilter

PASSED_TOGETHER = 4096
"""Number of transactions whose messages a conflated subscription tells of together, at most."""


class LogLookup(Protocol):
    """The look-ups in the log that a position needs; storage's readers implement them."""

    @property
    def first_txid(self) -> int:
        """Returns the oldest transaction id in the log."""

    def find_sequence(self, publisher: int, sequence: int) -> int | None:
        """Returns a message's transaction id; None: the log lacks the message."""

    def find_time(self, time_us: int) -> int:
        """Returns the first transaction id that was received at or after this time."""


class RememberedLookup:
    """Look-ups in a log whose answers are kept: the points of a long list are looked up in slices,
    before the position is resolved. Not thread-safe: one call at a time."""

    __slots__ = ("_log", "_sequences", "_times")

    def __init__(self, log: LogLookup) -> None:
        self._log = log
        self._sequences: dict[tuple[int, int], int | None] = {}
        self._times: dict[int, int] = {}

    @property
    def first_txid(self) -> int:
        return self._log.first_txid

    def find_sequence(self, publisher: int, sequence: int) -> int | None:
        key = publisher, sequence
        if key not in self._sequences:
            self._sequences[key] = self._log.find_sequence(publisher, sequence)
        return self._sequences[key]

    def find_time(self, time_us: int) -> int:
        if time_us not in self._times:
            self._times[time_us] = self._log.find_time(time_us)
        return self._times[time_us]

    def look_up(self, points: Iterable[Point], position: Position) -> None:
        for point in points:
            _begin_of(point, position.includes(point), self, 0)


class ReplayedConflation(Protocol):
    """The pending messages of a conflated replay (replay_conflation.py)."""

    @property
    def pending_bytes(self) -> int:
        """Returns the memory of all that is pending."""

    @property
    def oldest_txid(self) -> int | None:
        """Returns the transaction before which no message is pending; None: none is at all."""

    def take(self, run: Run, records: Iterable[tuple[Record, bool]]) -> list[DeliveryContent]:
        """Takes messages of a run, each with whether the client has it already. Returns the
        deliveries of what became due before them."""

    def due(self, wall_us: int) -> list[DeliveryContent]:
        """Returns the deliveries of what is due at the end of the log, a limited number."""

    @property
    def wait_us(self) -> int | None:
        """Returns how long it takes until more is due; None: nothing is pending."""

    def all(self) -> list[DeliveryContent]:
        """Returns the deliveries of all that is pending."""


class ReplayContent(Protocol):
    """A content filter for replays (replay_filters.py)."""

    @property
    def text(self) -> str:
        """Returns the text of the filter as written."""

    @property
    def has_given_up(self) -> bool:
        """Returns whether the filter was stopped for using too much work, so that for some message
        its verdict is unknown."""

    def admits(self, run: Run) -> bool:
        """Returns whether records of the run's topic may pass although the client may read only
        some of them: the content filter then has the client's row filter."""

    def passing(self, run: Run) -> Iterable[tuple[int, int, int, int]]:
        """Returns, for each record of the run that passes, in order: the number of records before
        it, the offsets of its begin and end, and its sequence."""


@dataclass(slots=True)
class ReplayStart:
    """The resolved start and end of a bookmark subscription.

    Attributes:
        after_txid: transaction id behind which deliveries begin.
        end_txid: last transaction id to deliver; None: no such end.
        end_time_us: receive time before which messages are delivered; None: no such end.
        end_time_included: whether messages received exactly at the end time are delivered.
        missing: messages behind the subscriber's own, or behind its bookmark, that retention
            removed here. Their topics are not known any more.
        is_removed: whether retention removed a bookmark's message, so that the whole removed part
            counts as before the start.
        removed: messages that the log once held and no longer holds: all of them are before the
            start.
    """

    after_txid: int
    end_txid: int | None = None
    end_time_us: int | None = None
    end_time_included: bool = False
    missing: PublisherRanges = field(default_factory=PublisherRanges)
    is_removed: bool = False
    removed: PublisherRanges = field(default_factory=PublisherRanges)


def _begin_of(point: Point, included: bool, log: LogLookup, committed_txid: int) -> int | None:
    """Returns the transaction id behind which deliveries begin; None where the message is not in
    the log."""
    if point.kind == "epoch":
        return log.first_txid - 1
    if point.kind == "now":
        return committed_txid
    if point.kind == "time":
        # An excluded begin excludes exactly that microsecond.
        return log.find_time(point.time_us if included else point.time_us + 1) - 1
    txid = log.find_sequence(point.publisher, point.sequence)
    if txid is None or txid > committed_txid:
        return None
    return txid - 1 if included else txid


def resolve(
    position: Position,
    not_found: Literal["now", "epoch", "fail"] | str,
    log: LogLookup,
    committed_txid: int,
    *,
    removed: PublisherRanges | None = None,
    have: PublisherRanges | None = None,
) -> ReplayStart:
    """Resolves a position in this log.

    Bookmarks of a list that the log lacks are passed over; where it lacks all, `not_found` says
    what happens. A bookmark that retention removed begins with the oldest message in the log.

    Args:
        removed: messages that this log once held and no longer holds.
        have: messages that the subscriber has. With it the begin of the position is not used.

    Raises:
        RemoteProtocolError: with reason `bookmark_not_found`.
    """
    removed = removed or PublisherRanges()
    missing = PublisherRanges() if have is None else removed_behind(have, removed)
    begins: list[int] = []
    is_removed = False
    for point in position.begin if have is None else ():
        included = position.includes(point)
        found = _begin_of(point, included, log, committed_txid)
        if found is not None:
            begins.append(found)
            continue
        sequences = removed.get(point.publisher)
        if sequences is not None and point.sequence in sequences:
            # Retention removes the front of the log: everything left is behind the bookmark.
            begins.append(log.first_txid - 1)
            is_removed = True
            last = sequences.last()
            assert last is not None
            first = point.sequence if included else point.sequence + 1
            missing.add_ranges(point.publisher, sequences.within(first, last))
            if not_found == "fail":
                raise RemoteProtocolError(
                    f"retention removed the message of bookmark {point.publisher}|"
                    f"{point.sequence}| from the log of this instance: subscribe from the epoch, "
                    "or without bookmark_not_found=fail, to get what is left",
                    "bookmark_not_found",
                )
    if missing and not_found == "fail":
        count = missing.count
        raise RemoteProtocolError(
            f"retention removed {count:,} messages from the log of this instance that the "
            "subscriber has not received: subscribe without bookmark_not_found=fail to get what "
            "is left",
            "bookmark_not_found",
        )
    start = _resolved(position, not_found, log, committed_txid, begins, have is not None)
    start.missing = missing
    start.is_removed = is_removed
    start.removed = removed
    return start


def removed_behind(have: PublisherRanges, removed: PublisherRanges) -> PublisherRanges:
    """Returns the part of `removed` that is above the first message of its publisher in `have`, and
    not in `have`.

    Lower ones may have been removed before the subscription began, so they do not count.
    """
    found = PublisherRanges()
    for publisher, held in have.sets.items():
        gone = removed.get(publisher)
        first, last = held.first(), None if gone is None else gone.last()
        if gone is None or first is None or last is None or last < first:
            continue
        pieces = [piece for a, b in gone.within(first, last) for piece in held.missing(a, b)]
        if pieces:
            found.add_ranges(publisher, pieces)
    return found


def _resolved(
    position: Position,
    not_found: str,
    log: LogLookup,
    committed_txid: int,
    begins: list[int],
    resumes: bool,
) -> ReplayStart:
    if resumes:
        after_txid = log.first_txid - 1
    elif begins:
        after_txid = min(begins)
    elif not_found == "fail":
        raise RemoteProtocolError(
            "none of the bookmarks is in the log of this instance", "bookmark_not_found"
        )
    else:
        after_txid = committed_txid if not_found == "now" else log.first_txid - 1
    if not position.bounded:
        return ReplayStart(after_txid)
    return _with_end(after_txid, position, not_found, log, committed_txid)


def _with_end(
    after_txid: int, position: Position, not_found: str, log: LogLookup, committed_txid: int
) -> ReplayStart:
    start = ReplayStart(after_txid)
    ends: list[int] = []
    for point in position.end:
        if point.kind == "now":
            ends.append(committed_txid)
        elif point.kind == "epoch":
            ends.append(log.first_txid - 1)
        elif point.kind == "time":
            start.end_time_us = max(start.end_time_us or 0, point.time_us)
            start.end_time_included = position.end_included
        else:
            txid = log.find_sequence(point.publisher, point.sequence)
            if txid is not None and txid <= committed_txid:
                ends.append(txid if position.end_included else txid - 1)
    if ends:
        start.end_txid = max(ends)
    elif start.end_time_us is None:
        if not_found == "fail":
            raise RemoteProtocolError(
                "none of the bookmarks that end the range is in the log of this instance",
                "bookmark_not_found",
            )
        # An end that the log lacks is never met: the range ends at the present end of the log.
        start.end_txid = committed_txid
    return start


class BookmarkSubscription:
    """A bookmark subscription as a cursor over the journal.

    Owner: the client's connection. Lifecycle: `prepare` until it says that it is prepared, then
    `take` until `ended`, or the session ends.

    Args:
        have: messages that the client has: they are skipped wherever they occur. With it the start
            is the earliest matching message that is not in it, and only the end of `start` counts.
        held: messages that are committed here when the command arrives.
        committed_txid: last committed transaction id at that time.
        content: the content filter. Messages that do not pass count as passed over, like those of
            other topics; None: all pass.
        conflation: the pending messages, where the subscription is conflated; None: it is not.
    """

    __slots__ = (
        "_base",
        "_before",
        "_have",
        "_passed",
        "_start",
        "_summaries",
        "completed",
        "conflation",
        "considered",
        "content",
        "cursor",
        "delivered",
        "ended",
        "filter",
        "id",
        "prepared",
        "replay_to",
        "session",
    )

    def __init__(
        self,
        session: int,
        subscription_id: str,
        topic_filter: TopicFilter,
        start: ReplayStart,
        *,
        first_txid: int,
        committed_txid: int,
        held: PublisherRanges,
        have: PublisherRanges | None = None,
        content: ReplayContent | None = None,
        conflation: ReplayedConflation | None = None,
    ) -> None:
        self.session = session
        self.id = subscription_id
        self.filter = topic_filter
        self.content = content
        self.conflation = conflation
        self.replay_to = committed_txid
        self.completed = False
        self.ended = False
        self.delivered = 0
        self.considered = 0
        self._start = start
        self._have = have
        self._summaries = have is not None
        # (last txid, publisher, ranges) that were delivered or passed over, and are not known to be
        # durable
        self._passed: deque[tuple[int, int, list[Range]]] = deque()
        self._base: PublisherRanges | None = None
        if have is not None:
            self.cursor = first_txid - 1
            self._before = self.cursor
            self.prepared = False
        else:
            self.cursor = start.after_txid
            self._before = start.after_txid
            # From the beginning of the log, no message is before the start.
            from_beginning = self.cursor < first_txid and not start.is_removed
            self.prepared = from_beginning or self.cursor >= committed_txid
            if not from_beginning:
                self._base = held
        if start.end_txid is not None and self.cursor >= start.end_txid and have is None:
            self.ended = True

    # -- preparation -------------------------------------------------------------------------
    @property
    def base(self) -> PublisherRanges | None:
        """Returns the messages before the start, once prepared; None where the client knows them
        already."""
        return self._base

    @property
    def prepare_after_txid(self) -> int:
        """Returns the transaction id behind which headers are to be read for the next `prepare`."""
        return self._before

    @property
    def missing(self) -> PublisherRanges:
        """Returns the messages that the subscriber lacks and retention removed (`ReplayStart`)."""
        return self._start.missing

    @property
    def wants_summaries(self) -> bool:
        """Returns whether `skip_segments` may save reading headers."""
        return self._summaries

    def skip_segments(self, summaries: Iterable[tuple[int, int, PublisherRanges]]) -> None:
        """Moves the cursor over sealed segments (oldest first) that the client has completely."""
        self._summaries = False
        assert self._have is not None
        for first, last, content in summaries:
            if last <= self.cursor:
                continue
            if first > self.cursor + 1 or last > self.replay_to:
                break
            if not all(self._have.covers(key, value) for key, value in content.sets.items()):
                break
            self.cursor = last
        self._before = self.cursor

    def prepare(self, headers: list[Run]) -> None:
        """Takes headers read behind `prepare_after_txid`, until `prepared` is True."""
        if self._have is not None:
            self._skip_headers(headers)
            return
        assert self._base is not None
        for run in headers:
            if run.first_txid > self.replay_to:
                break
            self._before = run.last_txid
            if run.kind != Kind.RECORDS:
                continue
            if run.contiguous:
                ranges = [(run.first_sequence, run.last_sequence)]
            else:
                ranges = self._base.of(run.publisher).within(run.first_sequence, run.last_sequence)
            # A run with gaps removes some messages that are before the start: another instance
            # would deliver them once more, and the client drops them.
            self._base.remove_ranges(run.publisher, ranges)
        if not headers or self._before >= self.replay_to:
            # In the gaps there may be some that retention removed, and that a client which counts
            # what is left would miss.
            self._base.update(self._start.removed)
            self.prepared = True

    def _skip_headers(self, headers: list[Run]) -> None:
        have = self._have
        assert have is not None
        for run in headers:
            if run.last_txid <= self.cursor:
                continue
            if run.kind == Kind.RECORDS and self._is_wanted(run):
                held = have.get(run.publisher)
                if held is None or not held.covers(run.first_sequence, run.last_sequence):
                    self.prepared = True
                    return
            if run.first_txid > self.replay_to:
                self.prepared = True
                return
            self._pass(run)
            self.cursor = self._before = run.last_txid
        if not headers:
            self.prepared = True
            end_txid = self._start.end_txid
            if end_txid is not None and self.cursor >= end_txid:
                # The client's own messages reach the end: there is nothing to take.
                self.ended = True

    # -- delivery ----------------------------------------------------------------------------
    def take(self, runs: Iterable[Run], limit_txid: int) -> list[DeliveryContent]:
        """Takes runs read behind `cursor`, in order, up to `limit_txid`; returns the deliveries."""
        found: list[DeliveryContent] = []
        end_txid = self._start.end_txid
        if end_txid is not None and self.cursor >= end_txid:
            # The client's own messages already reach the end.
            self.ended = True
        if self.ended:
            return found
        for run in runs:
            if run.last_txid <= self.cursor:
                continue
            if run.first_txid > limit_txid or self._is_behind_end(run):
                break
            if run.first_txid <= self.cursor:
                rest = run.after(self.cursor)
                assert rest is not None
                run = rest
            if run.last_txid > limit_txid:
                run = prefix_of(run, limit_txid - run.first_txid + 1)
            if end_txid is not None and run.last_txid > end_txid:
                run = prefix_of(run, end_txid - run.first_txid + 1)
            self.cursor = run.last_txid
            self._deliver(run, found)
            if end_txid is not None and self.cursor >= end_txid:
                self.ended = True
                break
        return found

    def is_overtaken(self, first_txid: int) -> bool:
        """Returns whether a message was removed before this subscription could deliver it, if the
        oldest transaction left behind `cursor` is `first_txid`."""
        end_txid = self._start.end_txid
        last_txid = first_txid - 1 if end_txid is None else min(first_txid - 1, end_txid)
        return not self.ended and self.cursor < last_txid

    def wants(self, run: Run) -> bool:
        """Returns whether the subscription may deliver any record of this run."""
        return (
            not self.ended
            and run.kind == Kind.RECORDS
            and run.last_txid > self.cursor
            and self._is_wanted(run)
        )

    def _is_wanted(self, run: Run) -> bool:
        """Returns whether these records are messages of the subscription's topics. Others are
        passed over."""
        if run.flags & Flag.COMMANDS:
            return False
        if self.filter.matches(run.topic, run.message_type):
            return True
        return self.content is not None and self.content.admits(run)

    def take_back(self, committed_txid: int) -> None:
        """Takes back runs behind this transaction id that were delivered before their commit, which
        failed (`live`)."""
        if self.cursor > committed_txid:
            self.cursor = committed_txid
            passed = self._passed
            while passed and passed[-1][0] > committed_txid:
                passed.pop()

    def _is_behind_end(self, run: Run) -> bool:
        start = self._start
        if start.end_txid is not None and run.first_txid > start.end_txid:
            self.ended = True
        if start.end_time_us is not None and (
            run.receive_time_us > start.end_time_us
            or (run.receive_time_us == start.end_time_us and not start.end_time_included)
        ):
            self.ended = True
        return self.ended

    def _deliver(self, run: Run, found: list[DeliveryContent]) -> None:
        if run.kind != Kind.RECORDS:
            return
        self._pass(run)
        if not self._is_wanted(run):
            return
        self.considered += run.count
        held = self._have.get(run.publisher) if self._have is not None else None
        if self.conflation is not None:
            for delivery in self.conflation.take(run, self._passing(run, held)):
                self.delivered += delivery.count
                found.append(delivery)
            return
        if self.content is not None:
            self._deliver_passing(self.content, run, held, found)
            return
        if held is not None and held.touches(run.first_sequence, run.last_sequence):
            keep = [piece for a, b in run.ranges() for piece in held.missing(a, b)]
            part = run.select(keep) if keep else None
            if part is None:
                return
            run = part
        self.delivered += run.count
        if found and found[-1].takes(run):
            found[-1].add(run)
        else:
            found.extend(deliveries_of(run))

    def _deliver_passing(
        self,
        content: ReplayContent,
        run: Run,
        held: SequenceSet | None,
        found: list[DeliveryContent],
    ) -> None:
        payload, traced = run.payload, bool(run.flags & Flag.TRACED)
        for before, begin, end, sequence in content.passing(run):
            if held is not None and sequence in held:
                continue
            self.delivered += 1
            txid = run.first_txid + before
            if not found or not found[-1].takes_one(txid, end - begin):
                found.append(DeliveryContent(txid, run.receive_time_us))
            found[-1].add_one(payload[begin:end], traced)

    def _passing(self, run: Run, held: SequenceSet | None) -> Iterator[tuple[Record, bool]]:
        """Yields the records of a run that pass, each with whether the client has it."""
        if self.content is None:
            for _, record in readable_records(run):
                yield record, held is not None and record.sequence in held
            return
        for _, begin, _, sequence in self.content.passing(run):
            record = decode_record(run.payload, begin, verify=False)
            yield record, held is not None and sequence in held

    def _pass(self, run: Run) -> None:
        if run.kind != Kind.RECORDS:
            return
        if run.contiguous:
            ranges = [(run.first_sequence, run.last_sequence)]
        elif run.payload:
            ranges = run.ranges()
        else:
            # Only headers were read, because the client has all of these: it need not be told.
            return
        passed = self._passed
        if passed and passed[-1][1] == run.publisher:
            # A publisher's stream stays one entry, however long the ack takes.
            last_txid, publisher, before = passed[-1]
            first, last = before[-1]
            # Messages of a conflated subscription wait: an entry is told only as a whole.
            is_far = (
                self.conflation is not None
                and run.last_txid // PASSED_TOGETHER != last_txid // PASSED_TOGETHER
            )
            if ranges[0][0] == last + 1 and run.last_txid - last_txid < 4096 and not is_far:
                before[-1] = (first, ranges[0][1])
                before.extend(ranges[1:])
                passed[-1] = (run.last_txid, publisher, before)
                return
        passed.append((run.last_txid, run.publisher, ranges))

    def end_by_time(self, now_us: int) -> None:
        """Ends a range whose end time has passed without anything received before it."""
        end_time_us = self._start.end_time_us
        if end_time_us is not None and now_us > end_time_us:
            self.ended = True

    def take_completed(self) -> bool:
        """Returns whether the replay has become complete since the last call."""
        if self.completed or not self.prepared:
            return False
        if self.ended or (self._start_unbounded and self.cursor >= self.replay_to):
            self.completed = True
            return True
        return False

    @property
    def _start_unbounded(self) -> bool:
        return self._start.end_txid is None and self._start.end_time_us is None

    def take_persisted(self, durability: DurabilityView) -> PublisherRanges | None:
        """Returns the messages that became durable since the last call, among those delivered or
        passed over, up to the first one that is not durable; None: there are none."""
        passed = self._passed
        found = PublisherRanges()
        waits_txid = None if self.conflation is None else self.conflation.oldest_txid
        while passed:
            last_txid, publisher, ranges = passed[0]
            if waits_txid is not None and last_txid >= waits_txid:
                # A message that a later one replaces is seen once that one was given.
                break
            pending = first_pending_in(durability, publisher, ranges)
            if pending is None:
                found.add_ranges(publisher, ranges)
                passed.popleft()
                continue
            # A stream that never pauses has no end of its entry: its durable part is told as it
            # goes.
            sequence, at = pending
            first, last = ranges[at]
            found.add_ranges(publisher, ranges[:at])
            if sequence > first:
                found.add(publisher, first, sequence - 1)
            passed[0] = (last_txid, publisher, [(sequence, last), *ranges[at + 1 :]])
            break
        return found if found else None
