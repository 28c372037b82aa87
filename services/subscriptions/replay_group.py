"""Bookmark subscriptions that are replayed together: one reading of the log for all of them
(behaviour.md 2.5, "pause, resume").

A replay has one member, or several that were resumed in one command. Its members are given what is
theirs run by run, so that what they get stands in the order of the log across them too. A member
that is behind the others gets what it lacks first; a rate holds for all of them together.

`fully_durable` holds the reading at the first message that is not durable here, which is asked of
the instance run by run and never of a message that was passed.

A rate counts what is delivered: what a content filter leaves out goes by as fast as it is judged.
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
"""Bytes that content filters judge in one turn: about a millisecond of it."""
TAKEN_US = 4_000
"""Approximate time that one turn takes at most to give runs to members, but for a single run."""

_HEAD = struct.Struct("<I32xQ")
"""Fields of a record: its length, and its sequence (services/messages/records.py)."""


class ReplayTerms(NamedTuple):
    """The terms that subscriptions must share to be replayed together."""

    bookmark: str
    rate: Rate | None
    fully_durable: bool


Deliveries = list[tuple[BookmarkSubscription, DeliveryContent]]


class ReplayGroup:
    """One reading of the log for one subscription or several; see the file's docstring.

    Invariants: what `take` returns stands in the order of the log, run by run; no member is given
    what it was given before; with `fully_durable`, nothing that is not durable at that moment.

    Owner: the server's replay pump. Lifecycle: until it has no members.
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
        """Everything up to here was taken by every member that has not ended."""
        members = self.members
        if len(members) == 1:
            return members[0].cursor
        return min(
            (member.cursor for member in members if not member.ended),
            default=max((member.cursor for member in members), default=0),
        )

    @property
    def judges(self) -> bool:
        """Returns whether a member has a content filter: then messages are parsed, and what is
        given to `take` is to be a short turn of it."""
        return any(member.content is not None for member in self.members)

    @property
    def ended(self) -> bool:
        """Returns whether no member wants more."""
        return all(member.ended for member in self.members)

    @property
    def due_us(self) -> int | None:
        """The time at which its rate lets more out; None: it does not hold anything back now."""
        return self.pacer.due_us if self.pacer is not None else None

    def is_blocked(self, durability: DurabilityView) -> bool:
        """Returns whether the message that held it up the last time is still not durable."""
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
        """Takes runs read behind `cursor`, in order, up to `limit_txid`; what each member gets."""
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
        """Returns the runs in pieces, and the transaction id up to which they are judged in one
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
        """Counts these runs, one at least, that are taken in one turn: each is given to each
        member, and a topic that is new is asked of each pattern."""
        members, left_us = self.members, TAKEN_US
        if len(members) == 1 and members[0].filter.pattern is None:
            return len(runs)
        filters = [each.filter for each in members if each.filter.pattern is not None]
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
        """The run up to its first message that is not durable."""
        if run.kind != Kind.RECORDS:
            return run
        publisher, first, last = run.publisher, run.first_sequence, run.last_sequence
        if durability.first_pending(publisher, first, last) is None:
            return run
        ranges = run.ranges()
        pending = first_pending_in(durability, publisher, ranges)
        if pending is None:
            # It lies in a gap of this run: another run has it.
            return run
        sequence, at = pending
        self._blocked = (publisher, sequence)
        count = sum(b - a + 1 for a, b in ranges[:at]) + sequence - ranges[at][0]
        return prefix_of(run, count) if count else None

    def _allowed_part(self, run: Run, now_us: int) -> Run | None:
        """Returns the part of the run that the rate lets through now; None: nothing."""
        if self.pacer is None:
            return run
        wanting = [member for member in self.members if member.wants(run)]
        contents = [member.content for member in wanting if member.content is not None]
        if not wanting:
            return run
        if len(contents) < len(wanting):
            count = self.pacer.allowed(run, now_us)
            return prefix_of(run, count) if count else None
        # Only what passes is paid for.
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
    """Subscriptions resumed in one command, as the replays they make: those with the same terms
    are one."""
    found: dict[ReplayTerms, list[BookmarkSubscription]] = {}
    for member, terms in members:
        found.setdefault(terms, []).append(member)
    return list(found.items())


def pieces(runs: Iterable[Run]) -> Iterator[Run]:
    """Divides runs into runs with the same messages that are judged in one turn each, but for a
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
