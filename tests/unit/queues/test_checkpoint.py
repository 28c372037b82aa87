"""services/queues/checkpoint.py: from where a queue can be made again, and with what."""

from __future__ import annotations

import random

import pytest

from raylay.services.errors import CorruptRecord
from raylay.services.queues.checkpoint import (
    ARRIVALS_MAX,
    JOINED_MAX,
    JOINED_US,
    USED_MAX,
    Arrival,
    ArrivalLog,
    QueueCheckpoint,
)
from raylay.services.queues.transfer.ownership import Ownership

P, OTHER = 7, 8


class Fed:
    """A history that messages come to, one run after another."""

    def __init__(self) -> None:
        self.history = ArrivalLog(QueueCheckpoint(), 0)
        self.txid = 0
        self.sequence = {P: 0, OTHER: 0}

    def come(self, count: int = 1, publisher: int = P, at_us: int = 0, live: int = -1) -> Arrival:
        """A run of one publisher, of which so many are in the queue; none said: all."""
        first = self.sequence[publisher] + 1
        self.sequence[publisher] += count
        begin, self.txid = self.txid + 1, self.txid + count
        arrival = self.history.arrived(
            publisher, [(first, first + count - 1)], begin, self.txid, at_us
        )
        arrival.live += count if live < 0 else live
        self.history.folded_txid = self.txid
        return arrival

    def held_then(self) -> dict[int, list[tuple[int, int]]]:
        """What a queue made again begins with."""
        held = QueueCheckpoint.from_bytes(self.history.snapshot({}).to_bytes()).held
        return {publisher: list(ranges) for publisher, ranges in held.sets.items()}


@pytest.mark.covers("Queues", "a restarted owner begins at its floor")
def test_the_floor_is_before_the_oldest_message_and_knows_what_was_held_there() -> None:
    fed = Fed()
    first, second = fed.come(3), fed.come(2, OTHER, JOINED_US)
    fed.history.advance()
    assert (fed.history.floor_txid, fed.held_then()) == (0, {})
    second.live -= 2
    fed.history.advance()
    assert fed.history.floor_txid == 0
    first.live -= 2
    fed.history.advance()
    assert fed.history.floor_txid == 0
    third = fed.come(1, at_us=2 * JOINED_US)
    first.live -= 1
    fed.history.advance()
    assert fed.history.oldest is third
    assert fed.history.floor_txid == 5
    assert fed.held_then() == {P: [(1, 3)], OTHER: [(1, 2)]}
    third.live -= 1
    fed.history.advance()
    assert fed.history.floor_txid == 6
    fed.history.folded_txid = 9  # nothing of the queue came behind
    fed.history.advance()
    assert (fed.history.floor_txid, fed.history.oldest) == (9, None)


def test_messages_that_never_entered_are_held_all_the_same() -> None:
    fed = Fed()
    fed.come(3, live=0)
    fed.history.advance()
    assert fed.history.floor_txid == 3
    assert fed.held_then() == {P: [(1, 3)]}
    assert fed.history.held.covers(P, [(1, 3)])


def test_early_entries_are_those_of_the_floor() -> None:
    fed = Fed()
    early = fed.history.early
    early.moved(OTHER, [(1, 1)], Ownership(1, "B"), 0)
    oldest = fed.come(1)
    fed.history.advance()
    early.arrived(OTHER, [(1, 1)], 0)
    fed.come(1, OTHER, JOINED_US, live=0)
    fed.history.advance()
    snapshot = fed.history.snapshot({5: "B"})
    assert (snapshot.after_txid, snapshot.folded_txid) == (0, 2)
    again = ArrivalLog(QueueCheckpoint.from_bytes(snapshot.to_bytes()), 0)
    assert again.early.arrived(OTHER, [(1, 1)], 0)[1] == [(1, 1, Ownership(1, "B"))]
    oldest.live = 0
    fed.history.advance()
    assert not fed.history.snapshot({}).early["moves"]


def parts(arrival: Arrival) -> list[tuple[int, tuple[int, int]]]:
    """What came."""
    return [(publisher, each) for publisher, ranges in arrival.parts() for each in ranges]


def test_runs_that_follow_one_another_soon_are_one_arrival() -> None:
    fed = Fed()
    first = fed.come(1)
    assert fed.come(1, at_us=JOINED_US - 1) is first
    assert fed.come(2, OTHER) is first
    assert fed.come(1) is first
    assert parts(first) == [(P, (1, 2)), (OTHER, (1, 2)), (P, (3, 3))]
    assert (first.first_txid, first.last_txid, first.live) == (1, 5, 5)
    last = fed.come(1, at_us=JOINED_US)
    assert last is not first
    assert fed.come(JOINED_MAX - 1, at_us=JOINED_US) is last
    assert fed.come(1, at_us=JOINED_US) is not last
    # Nothing of it is left: the floor may pass it at any time.
    gone = fed.come(1, OTHER, at_us=9 * JOINED_US, live=0)
    assert fed.come(1, OTHER, at_us=9 * JOINED_US) is not gone


def test_the_floor_is_before_the_first_of_an_arrival_of_several_publishers() -> None:
    fed = Fed()
    fed.come(1, live=0)
    fed.history.advance()
    fed.come(1, OTHER)
    arrival = fed.come(2)
    arrival.live = 1
    fed.history.advance()
    assert (fed.history.floor_txid, fed.held_then()) == (1, {P: [(1, 1)]})
    arrival.live = 0
    fed.history.advance()
    assert fed.history.floor_txid == 4
    assert fed.held_then() == {P: [(1, 3)], OTHER: [(1, 1)]}


def test_one_message_that_stays_does_not_keep_what_came_behind_it() -> None:
    fed = Fed()
    oldest = fed.come(1)
    for _ in range(5 * ARRIVALS_MAX):
        for publisher in (OTHER, P):
            fed.come(1, publisher, JOINED_US, live=0)
        fed.history.advance()
    assert len(fed.history._arrivals) <= ARRIVALS_MAX + 2
    assert fed.history.floor_txid == 0
    assert fed.held_then() == {}
    oldest.live = 0
    fed.history.advance()
    assert fed.history.floor_txid == fed.txid
    assert fed.held_then() == {publisher: [(1, last)] for publisher, last in fed.sequence.items()}


@pytest.mark.covers("Queues", "`DeferredAckExpiration`")
def test_one_message_that_stays_does_not_keep_what_was_acknowledged_before_it_came() -> None:
    fed = Fed()
    oldest = fed.come(1)
    early = fed.history.early
    for _ in range(4 * USED_MAX):
        coming = [(fed.sequence[P] + 1, fed.sequence[P] + 1)]
        fed.txid += 1
        early.removed(P, coming, fed.txid, 0)
        assert early.arrived(P, coming, 0)[0] == coming
        fed.come(1, P, live=0)
        fed.history.advance()
    assert early.removals_waiting == 0
    assert early.size <= 2 * USED_MAX
    oldest.live = 0
    fed.history.advance()
    assert early.size == 0


class Drawn:
    """A history that goes by drawn steps, and forgets what is used or does not."""

    def __init__(self, seed: int, *, forgets: bool) -> None:
        self.rng = random.Random(seed)
        self.forgets = forgets
        self.history = ArrivalLog(QueueCheckpoint(), 0)
        self.to_come = list(range(1, 61))
        self.live: list[Arrival] = []
        self.forgotten = self.txid = 0

    def some(self, most: int) -> tuple[int, int]:
        """Of what has not come, a few side by side."""
        first = self.rng.choice(self.to_come[:20])
        last = first
        while last - first + 1 < most and last + 1 in self.to_come and self.rng.random() < 0.6:
            last += 1
        return first, last

    def come(self) -> None:
        early, (first, last) = self.history.early, self.some(4)
        del self.to_come[self.to_come.index(first) : self.to_come.index(last) + 1]
        gone, moved, since_txid = early.arrived(P, [(first, last)], 0)
        begin, self.txid = self.txid + 1, self.txid + last - first + 1
        arrival = self.history.arrived(P, [(first, last)], begin, self.txid, self.txid * JOINED_US)
        if moved:
            self.history.reaches_back(arrival, since_txid)
        count = last - first + 1 - sum(b - a + 1 for a, b in gone)
        arrival.live += count
        self.live += [arrival] * count

    def step(self) -> bytes:
        """What a queue made again begins with."""
        drawn = self.rng.random()
        if self.to_come and drawn < 0.35:
            self.come()
        elif self.to_come and drawn < 0.75:
            self.txid += 1
            if drawn < 0.6:
                self.history.early.removed(P, [self.some(3)], self.txid, 0)
            else:
                self.history.early.moved(P, [self.some(3)], Ownership(1, "B"), self.txid)
        elif self.live:
            self.live.pop(self.rng.randrange(len(self.live))).live -= 1
        self.history.folded_txid = self.txid
        self.history.advance()
        if self.forgets:
            size = len(self.history.early._came)
            self.history._forget_used()
            self.forgotten += size - len(self.history.early._came)
        return self.history.snapshot({}).to_bytes()


@pytest.mark.covers("Queues", "`DeferredAckExpiration`")
def test_what_is_forgotten_no_floor_asks_for() -> None:
    forgotten = 0
    for seed in range(40):
        one, other = Drawn(seed, forgets=True), Drawn(seed, forgets=False)
        for _ in range(120):
            assert one.step() == other.step(), seed
        forgotten += one.forgotten
    assert forgotten > 150


def test_a_snapshot_is_read_as_it_was_written() -> None:
    fed = Fed()
    fed.come(3, live=0)
    fed.history.early.removed(P, [(9, 9)], 3, 40)
    fed.history.advance()
    made = QueueCheckpoint.from_bytes(fed.history.snapshot({5: "B"}).to_bytes())
    assert made.names == {5: "B"}
    assert made.early == {"removals": [[P, 9, 9, 40]], "moves": []}
    again = ArrivalLog(made, 0)
    assert again.floor_txid == again.folded_txid == 3
    assert again.early.arrived(P, [(9, 9)], 40)[0] == [(9, 9)]


@pytest.mark.parametrize("stored", [b"", b"\x80", b"\xc1", QueueCheckpoint().to_bytes()[:-1]])
def test_bytes_that_are_no_snapshot_are_refused(stored: bytes) -> None:
    with pytest.raises(CorruptRecord, match="no snapshot of a queue"):
        QueueCheckpoint.from_bytes(stored)


def test_an_arrival_may_begin_at_what_was_said_of_it_before() -> None:
    fed = Fed()
    first = fed.come()
    fed.history.advance()
    fed.txid += 2
    second = fed.come(at_us=JOINED_US)
    assert fed.history.reaches_back(second, 2) and second.first_txid == 2
    assert fed.history.reaches_back(second, 3)
    assert not fed.history.reaches_back(second, 1), "a message of another arrival is there"
    first.live = 0
    fed.history.advance()
    assert fed.history.floor_txid == 1
    second.live = 0
    fed.history.folded_txid = fed.txid = 9
    fed.history.advance()
    fed.txid += 1
    third = fed.come()
    assert not fed.history.reaches_back(third, 9), "it may be removed"
    assert fed.history.reaches_back(third, 10)
