"""Bookmark subscriptions that are replayed together, with one reading of the log for all of them
(behaviour.md 2.5, "pause, resume").

A replay has one member, or several that were resumed in one command. Members get their records run
by run, so that their deliveries are in the order of the log across members, too. A member that is
behind the others gets what it lacks first. A rate limits all of them together.

`fully_durable` stops the reading at the first message that is not durable here. This is checked run
by run, and never for a message that was passed.

A rate counts deliveries: records that a content filter leaves out do not count.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from typing import NamedTuple

from raylay.services.messages.ranges import SequenceSet
from raylay.services.messages.rates import Rate
from raylay.services.messages.records import Flag, Kind, Run
from raylay.services.subscriptions.bookmark import BookmarkSubscription
from raylay.services.subscriptions.delivery import DeliveryContent, prefix_of
from raylay.services.subscriptions.durability import DurabilityView, first_pending_in
from raylay.services.subscriptions.pacing import Pacer

PIECE_RECORDS = 256
PIECE_BYTES = 64 * 1024
"""Bytes that content filters judge in one turn of the loop: about a millisecond."""
TAKEN_US = 4_000
"""Approximate limit on the time that one turn takes to give runs to members, in microseconds,
except for a single run."""

_HEAD = struct.Struct("<I32xQ")
"""Fields of a record: its length and its sequence (services/messages/records.py)."""


class ReplayTerms(NamedTuple):
    """The options that subscriptions must share to be replayed together."""

    bookmark: str
    rate: Rate | None
    fully_durable: bool


Deliveries = list[tuple[BookmarkSubscription, DeliveryContent]]


class ReplayGroup:
    """One reading of the log for one subscription or several.

    Invariants: deliveries from `take` are in the order of the log, run by run; no member gets a
    message twice; with `fully_durable`, only messages that are durable at that moment.

    Owner: the server's replay pump. Lifecycle: until the group has no members.
    """

    __slots__ = ("_blocked", "members", "pacer", "terms")

    def __init__(
        self, members: Iterable[BookmarkSubscription], terms: ReplayTerms, now_us: int
    ) -> None:
        self.members = list(members)
        self.terms = terms
        self.pacer = Pacer(terms.rate, now_us) if terms.rate is not None else None
        self._blocked: tuple[int, int] | None = None

    @property
    def cursor(self) -> int:
        """Returns the transaction id up to which every member that has not ended has taken
        everything."""
        members = self.members
        if len(members) == 1:
            return members[0].cursor
        return min(
            (member.cursor for member in members if not member.ended),
            default=max((member.cursor for member in members), default=0),
        )

    @property
    def judges(self) -> bool:
        """Returns whether a member has a content filter, or is conflated: then messages are parsed,
        and one call of `take` should get only a short turn's worth."""
        return any(
            member.content is not None or member.conflation is not None for member in self.members
        )

    @property
    def ended(self) -> bool:
        """Returns whether no member wants more."""
        return all(member.ended for member in self.members)

    @property
    def due_us(self) -> int | None:
        """Returns the time at which the group's rate allows more; None: nothing is held back."""
        return self.pacer.due_us if self.pacer is not None else None

    def is_blocked(self, durability: DurabilityView) -> bool:
        """Returns whether the message that stopped the reading last time is still not durable."""
        blocked = self._blocked
        if blocked is None:
            return False
        publisher, sequence = blocked
        if durability.first_pending(publisher, sequence, sequence) is None:
            self._blocked = None
            return False
        return True

    def take(
        self, runs: Iterable[Run], limit_txid: int, now_us: int, durability: DurabilityView
    ) -> Deliveries:
        """Takes runs read behind `cursor`, in order, up to `limit_txid`; returns the deliveries of
        each member."""
        if len(self.members) == 1 and self.pacer is None and not self.terms.fully_durable:
            member = self.members[0]
            return [(member, delivery) for delivery in member.take(runs, limit_txid)]
        found: Deliveries = []
        if self.terms.fully_durable and self.is_blocked(durability):
            return found
        for run in runs:
            rest: Run | None = run.after(self.cursor)
            if rest is None:
                continue
            if rest.first_txid > limit_txid or self.ended:
                break
            rest = prefix_of(rest, limit_txid - rest.first_txid + 1)
            if self.terms.fully_durable:
                rest = self._durable_part(rest, durability)
            while rest is not None and not self.ended:
                part = self._allowed_part(rest, now_us)
                if part is None:
                    return found
                self._give(part, found, now_us)
                rest = rest.after(part.last_txid)
            if self._blocked is not None:
                break
        return found

    def turn_of(self, runs: Iterable[Run], limit_txid: int) -> tuple[list[Run], int]:
        """Returns the runs in pieces, and the transaction id up to which they are judged in this
        turn."""
        found = list(pieces(runs))
        judged = judged_bytes = 0
        for run in found:
            if run.first_txid > limit_txid:
                break
            if any(member.wants(run) for member in self.members):
                judged += run.count
                judged_bytes += len(run.payload)
                if judged >= PIECE_RECORDS or judged_bytes >= PIECE_BYTES:
                    return found, min(limit_txid, run.last_txid)
        return found, limit_txid

    def affordable(self, runs: Sequence[Run]) -> int:
        """Returns how many of these runs are taken in one turn, at least one: each run is given to
        each member, and a new topic is matched against each pattern."""
        members, left_us = self.members, TAKEN_US
        if len(members) == 1 and members[0].filter.pattern is None:
            return len(runs)
        filters = [member.filter for member in members if member.filter.pattern is not None]
        for count, run in enumerate(runs, 1):
            left_us -= len(members)
            for each in filters:
                if left_us <= 0:
                    return count
                left_us -= each.unknown_us(run.topic)
            if left_us <= 0:
                return count
        return len(runs)

    def _durable_part(self, run: Run, durability: DurabilityView) -> Run | None:
        """Returns the run up to its first message that is not durable; None: the first one is
        not."""
        if run.kind != Kind.RECORDS:
            return run
        publisher, first, last = run.publisher, run.first_sequence, run.last_sequence
        if durability.first_pending(publisher, first, last) is None:
            return run
        ranges = run.ranges()
        pending = first_pending_in(durability, publisher, ranges)
        if pending is None:
            # That sequence is in a gap of this run: another run has it.
            return run
        sequence, at = pending
        self._blocked = (publisher, sequence)
        count = sum(b - a + 1 for a, b in ranges[:at]) + sequence - ranges[at][0]
        return prefix_of(run, count) if count else None

    def _allowed_part(self, run: Run, now_us: int) -> Run | None:
        """Returns the part of the run that the rate allows now; None: nothing."""
        if self.pacer is None:
            return run
        wanting = [member for member in self.members if member.wants(run)]
        contents = [member.content for member in wanting if member.content is not None]
        if not wanting:
            return run
        if len(contents) < len(wanting):
            count = self.pacer.allowed(run, now_us)
            return prefix_of(run, count) if count else None
        # Only records that pass count for the rate.
        places = sorted({place for content in contents for place in content.passing(run)})
        passing = run.select(list(SequenceSet((place[3], place[3]) for place in places)))
        if passing is None:
            return run
        count = self.pacer.allowed(passing, now_us)
        if count >= len(places):
            return run
        return prefix_of(run, places[count][0]) if count else None

    def _give(self, run: Run, found: Deliveries, now_us: int) -> None:
        messages = size_bytes = 0
        for member in self.members:
            if member.cursor >= run.last_txid:
                continue
            for delivery in member.take((run,), run.last_txid):
                messages += delivery.count
                size_bytes += delivery.size_bytes
                if found and found[-1][0] is member and found[-1][1].joins(delivery):
                    found[-1][1].join(delivery)
                else:
                    found.append((member, delivery))
        if messages and self.pacer is not None:
            self.pacer.sent(run, messages, size_bytes, now_us)


def groups_of(
    members: Iterable[tuple[BookmarkSubscription, ReplayTerms]],
) -> list[tuple[ReplayTerms, list[BookmarkSubscription]]]:
    """Returns the replays of subscriptions that are resumed in one command: those with the same
    options share one."""
    found: dict[ReplayTerms, list[BookmarkSubscription]] = {}
    for member, terms in members:
        found.setdefault(terms, []).append(member)
    return list(found.items())


def pieces(runs: Iterable[Run]) -> Iterator[Run]:
    """Yields the same messages in runs that are small enough to be judged in one turn, except for a
    large message."""
    for run in runs:
        payload = run.payload
        if run.kind != Kind.RECORDS or (run.count <= PIECE_RECORDS and len(payload) <= PIECE_BYTES):
            yield run
            continue
        txid, offset, end = run.first_txid, 0, len(payload)
        while offset < end:
            start, count, first = offset, 0, 0
            while offset < end and count < PIECE_RECORDS:
                length, sequence = _HEAD.unpack_from(payload, offset)
                if count and offset + length - start > PIECE_BYTES:
                    break
                first = first or sequence
                last = sequence
                offset += length
                count += 1
            yield replace(
                run,
                first_sequence=first,
                last_sequence=last,
                count=count,
                payload=payload[start:offset],
                flags=run.flags & ~Flag.CONTIGUOUS
                | (Flag.CONTIGUOUS if last - first + 1 == count else 0),
                first_txid=txid,
                payload_checksum=0,
                raw=None,
            )
            txid += count
