"""A client without a publish store lives again and again: what that costs an instance."""

from __future__ import annotations

import resource
from collections.abc import Iterator
from itertools import count, pairwise

import pytest
from support.fake_stores import DictPublishStore
from support.held_runs import HeldRuns

from raylay.services.client.publishing.outbox import PublishOutbox
from raylay.services.messages.records import publisher_id
from raylay.services.messages.topic_book import TopicBook
from raylay.services.messages.topics import TopicRule
from raylay.services.replication.instance import Identity, InstanceMachine
from raylay.services.replication.journal_lookup import LookupResult
from raylay.services.replication.unused_sequences import UnusedSequences

P = publisher_id("p")
BEGAN_US = 1_700_000_000_000_000
EVERY_US = 60_000_000
"""A life a minute, as cron would have it, of so long:"""
LASTS_US = 30_000
FRAME_BYTES = 1 << 20


class Instance:
    """One whose clock is that of the lives."""

    def __init__(self) -> None:
        self.now_us = BEGAN_US
        self._sessions = count(1)
        rule = TopicRule("orders")
        self.machine = InstanceMachine(
            Identity("own", "g", 1), [], TopicBook((rule,)), lookup=HeldRuns()
        )

    def live(self, messages: int = 1, *, takes_over: bool = True) -> list[int]:
        """One life of the client. Returns what it numbered."""
        machine, session = self.machine, next(self._sessions)
        outbox = PublishOutbox("p", DictPublishStore(), self.now_us, takes_over=takes_over)
        asks = outbox.asks_for_unused
        answer = machine.client_logged_on(session, "p", 0, takes_unused=asks)
        header = {"durable": [], "highest": answer.highest}
        if answer.unused is not None:
            header["unused"] = list(answer.unused)
        outbox.take_durable(header)
        outbox.sending = True
        given = [outbox.publish("orders", b"x", "json", self.now_us) for _ in range(messages)]
        while (batch := outbox.next_batch(FRAME_BYTES)) is not None:
            runs = machine.client_runs(session, b"".join(batch.records))
            machine.client_published(session, runs, self.now_us, LookupResult())
        machine.committed(machine.next_txid - 1, self.now_us)
        self.now_us += LASTS_US
        unused = outbox.unused(self.now_us)
        if unused is not None:
            machine.client_logged_off(session, unused, self.now_us)
        machine.client_left(session)
        self.now_us += EVERY_US
        return given

    @property
    def pieces(self) -> int:
        return self.machine.known.of(P).pieces

    @property
    def snapshot_bytes(self) -> int:
        """What stands at the head of each segment."""
        return len(self.machine.known.of(P).to_bytes())


def numbers(instance: Instance, lives: int, messages: int = 1) -> Iterator[int]:
    for _ in range(lives):
        yield from instance.live(messages)


def test_lives_go_on_where_the_last_one_ended() -> None:
    instance = Instance()
    given = list(numbers(instance, 1_000))
    assert given == list(range(BEGAN_US, BEGAN_US + 1_000))
    assert instance.machine.known.of(P).ranges() == [(given[0], given[-1])]


def test_a_life_by_the_clock_is_a_range_of_its_own() -> None:
    """What it was for all of them."""
    instance = Instance()
    for _ in range(100):
        instance.live(takes_over=False)
    assert instance.pieces == len(instance.machine.known.of(P).ranges()) == 100


def test_what_a_life_lasted_is_used_up_before_the_next_range_begins() -> None:
    instance, messages = Instance(), 7_000
    given = list(numbers(instance, 100, messages))
    assert all(a < b for a, b in pairwise(given))
    # Each range is as many sequences as a life lasts microseconds, and a message is never split.
    ranges = instance.machine.known.of(P).ranges()
    assert len(ranges) == pytest.approx(100 * messages / LASTS_US, abs=1)


def test_a_restart_and_a_life_that_was_killed_cost_one_range_each() -> None:
    instance = Instance()
    first = instance.live()[0]
    instance.machine._publishers.parted()
    second = instance.live()[0]
    assert second == first + EVERY_US + LASTS_US, "by the clock"
    assert instance.live() == [second + 1]


@pytest.mark.covers("Clients and protocol", "lives without a publish store")
@pytest.mark.slow
def test_a_million_lives_cost_what_a_hundred_cost() -> None:
    """By the clock they were a million ranges: 600 MB, and refused from the 250,001st on."""
    instance = Instance()
    for _ in numbers(instance, 1_000):
        pass
    before_kb = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    for _ in numbers(instance, 1_000_000):
        pass
    grown_kb = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before_kb
    machine = instance.machine
    # A life leaves 30,000 sequences.
    assert machine.known.of(P).count == 1_001_000
    assert len(machine.known.of(P).ranges()) == 34
    # A range is whole chunks of sequences, and what it begins and ends with.
    assert instance.pieces <= 3 * 34 and instance.snapshot_bytes < 3_000
    assert grown_kb < 20_000, "it held 0.6 KB of each life"
    awaited = machine.recovery_point().awaited.get(machine.own_root, P)
    assert awaited is None or awaited.pieces <= 3 * 34
    assert machine.sessions() == 0 and len(machine._publishers._unused) == 1


# -- what an instance keeps ----------------------------------------------------------------------
def test_what_is_left_is_taken_once_and_only_of_who_published() -> None:
    left = UnusedSequences()
    left.hand_over(1, (10, 20), 0, 100)
    assert len(left) == 0, "it never published here: it is no publisher"
    left.hand_over(1, (10, 20), 9, 100)
    assert left.take(1, 9) == (10, 20) and left.take(1, 9) is None
    left.hand_over(1, (10, 20), 9, 100)
    left.clear()
    assert left.take(1, 9) is None


@pytest.mark.parametrize("highest", [10, 15, 21])
def test_what_came_meanwhile_voids_what_is_left(highest: int) -> None:
    left = UnusedSequences()
    left.hand_over(1, (10, 20), highest, 100)
    assert len(left) == 0
    left.hand_over(1, (10, 20), 9, 100)
    assert left.take(1, highest) is None and len(left) == 0


def test_what_lies_ahead_of_the_clock_here_is_not_taken() -> None:
    left = UnusedSequences()
    left.hand_over(1, (10, 1 << 60), 9, 100)
    assert left.take(1, 9) == (10, 100)
    left.hand_over(1, (101, 200), 9, 100)
    assert len(left) == 0
