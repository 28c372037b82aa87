"""Bookmark subscriptions that are replayed together: one reading of the log for all of them
(behaviour.md 2.5, "pause, resume").

A replay has one member, or several that were resumed in one command. Its members are given what is
theirs run by run, so that what they get stands in the order of the log across them too. A member
that is behind the others gets what it lacks first; a rate holds for all of them together.

`fully_durable` holds the reading at the first message that is not durable here, which is asked of
the instance run by run and never of a message that was passed.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from raylay.services.messages.rates import Rate
from raylay.services.messages.records import Kind, Run
from raylay.services.subscriptions.bookmark import BookmarkSubscription
from raylay.services.subscriptions.delivery import Delivery, prefix_of
from raylay.services.subscriptions.durability import Durability, first_pending_in
from raylay.services.subscriptions.pacing import Pacer


class Terms(NamedTuple):
    """What subscriptions must have in common to be replayed together."""

    bookmark: str
    rate: Rate | None
    fully_durable: bool


Deliveries = list[tuple[BookmarkSubscription, Delivery]]


class CombinedReplay:
    """One reading of the log for one subscription or several; see the file's docstring.

    Invariants: what `take` returns stands in the order of the log, run by run; no member is given
    what it was given before; with `fully_durable`, nothing that is not durable at that moment.

    Owner: the server's replay pump. Lifecycle: until it has no members.
    """

    __slots__ = ("_blocked", "members", "pacer", "terms")

    def __init__(self, members: Iterable[BookmarkSubscription], terms: Terms, now_us: int) -> None:
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
    def ended(self) -> bool:
        """Whether no member wants more."""
        return all(member.ended for member in self.members)

    @property
    def due_us(self) -> int | None:
        """When its rate lets more out; None: it does not hold anything back now."""
        return self.pacer.due_us if self.pacer is not None else None

    def is_blocked(self, durability: Durability) -> bool:
        """Whether the message that held it up the last time is still not durable."""
        blocked = self._blocked
        if blocked is None:
            return False
        publisher, sequence = blocked
        if durability.first_pending(publisher, sequence, sequence) is None:
            self._blocked = None
            return False
        return True

    def take(
        self, runs: Iterable[Run], limit_txid: int, now_us: int, durability: Durability
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

    def _durable_part(self, run: Run, durability: Durability) -> Run | None:
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
        """What of the run the rate lets through now; None: nothing."""
        if self.pacer is None or not any(member.wants(run) for member in self.members):
            return run
        count = self.pacer.allowed(run, now_us)
        return prefix_of(run, count) if count else None

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
    members: Iterable[tuple[BookmarkSubscription, Terms]],
) -> list[tuple[Terms, list[BookmarkSubscription]]]:
    """Subscriptions resumed in one command, as the replays they make: those with the same terms
    are one."""
    found: dict[Terms, list[BookmarkSubscription]] = {}
    for member, terms in members:
        found.setdefault(terms, []).append(member)
    return list(found.items())
