"""Rates: never more than they give, never much less, whoever asks when."""

from __future__ import annotations

import random

import pytest

from raylay.services.messages.rates import (
    Rate,
)
from raylay.services.messages.records import RecordBuilder, Run, run_of, scan
from raylay.services.subscriptions.delivery import prefix_of
from raylay.services.subscriptions.pacing import (
    BURST_US,
    Pacer,
)

pytestmark = pytest.mark.covers("Clients and protocol", "`rate` in messages")

SECOND_US = 1_000_000


def run(count: int, body_bytes: int = 40, receive_time_us: int = 0) -> Run:
    builder = RecordBuilder(1, "a", "json")
    payload = b"".join(builder.build(n, b"x" * body_bytes, 1) for n in range(1, count + 1))
    made = run_of(scan(payload)[0], payload)
    made.first_txid, made.receive_time_us = 1, receive_time_us
    return made


def drive(rate: Rate, until_us: int, chance: random.Random) -> list[tuple[int, int, int]]:
    """(time, messages, bytes) of what goes out to one who always wants more, and is woken late."""
    pacer = Pacer(rate, 0)
    whole = run(50, 30)
    found: list[tuple[int, int, int]] = []
    now_us = 0
    while now_us < until_us:
        count = pacer.allowed(whole, now_us)
        if count:
            part = prefix_of(whole, count)
            pacer.sent(part, count, len(part.payload), now_us)
            found.append((now_us, count, len(part.payload)))
        else:
            assert pacer.due_us is not None and pacer.due_us > now_us
            now_us = pacer.due_us + chance.choice((0, 100, 2_000, 30_000))
    return found


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("per_s", [0.5, 3, 100, 4_000, 60_000])
def test_messages_a_second(per_s: float, seed: int) -> None:
    until_us = 20 * SECOND_US if per_s < 10 else 2 * SECOND_US
    found = drive(Rate("messages", per_s), until_us, random.Random(seed))
    _check_bound([(at, count) for at, count, _ in found], per_s, 1)
    total = sum(count for _, count, _ in found)
    assert total >= per_s * (until_us - 2 * BURST_US) / SECOND_US * 0.95 - 1


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("per_s", [200, 20_000, 3_000_000])
def test_bytes_a_second(per_s: float, seed: int) -> None:
    found = drive(Rate("bytes", per_s), 10 * SECOND_US, random.Random(seed))
    record_bytes = len(run(1, 30).payload)
    _check_bound([(at, size) for at, _, size in found], per_s, record_bytes)
    assert sum(size for _, _, size in found) >= per_s * 9.5


def _check_bound(sent: list[tuple[int, int]], per_s: float, one: int) -> None:
    """Between any two instants."""
    slack = max(per_s * BURST_US / SECOND_US, one) + one
    for i in range(0, len(sent), max(1, len(sent) // 60)):
        total = 0
        for at_us, amount in sent[i:]:
            total += amount
            assert total <= per_s * (at_us - sent[i][0]) / SECOND_US + slack


def test_what_was_not_taken_for_long_lapses() -> None:
    pacer = Pacer(Rate("messages", 100), 0)
    whole = run(500)
    assert pacer.allowed(whole, 0) == 1
    pacer.sent(whole, 1, 0, 0)
    assert pacer.allowed(whole, 3_600 * SECOND_US) == 10, "100 ms worth, not an hour's"


def timeline(rate: Rate, received_us: list[int], late_us: int = 0) -> list[int]:
    """When each run goes out, asked at the times that the pacer names."""
    pacer = Pacer(rate, 0)
    now_us = 0
    found = []
    for time_us in received_us:
        one = run(1, receive_time_us=time_us)
        while not pacer.allowed(one, now_us):
            assert pacer.due_us is not None and pacer.due_us > now_us
            now_us = pacer.due_us + late_us
        pacer.sent(one, 1, 0, now_us)
        found.append(now_us)
    return found


def test_multiples_of_the_original_speed() -> None:
    received_us = [1_000_000, 1_000_000, 1_400_000, 3_400_000]
    assert timeline(Rate("speed", 1), received_us) == [0, 0, 400_000, 2_400_000]
    assert timeline(Rate("speed", 2), received_us) == [0, 0, 200_000, 1_200_000]
    assert timeline(Rate("speed", 0.5), received_us) == [0, 0, 800_000, 4_800_000]


def test_the_longest_idle_is_bounded() -> None:
    received_us = [0, 100_000, 86_400_000_000, 86_400_100_000]
    assert timeline(Rate("speed", 1, 500_000), received_us) == [0, 100_000, 600_000, 700_000]


def test_late_wake_ups_do_not_add_up() -> None:
    received_us = [i * 10_000 for i in range(1_000)]
    assert timeline(Rate("speed", 1), received_us, late_us=4_000)[-1] == 9_990_000 + 4_000


def test_a_clock_that_went_back_is_no_gap() -> None:
    assert timeline(Rate("speed", 1), [5_000, 2_000, 6_000]) == [0, 0, 1_000]


def test_a_stalled_subscriber_is_not_given_the_rest_at_once() -> None:
    pacer = Pacer(Rate("speed", 1), 0)
    first, second = run(1, receive_time_us=0), run(1, receive_time_us=SECOND_US)
    third = run(1, receive_time_us=2 * SECOND_US)
    pacer.sent(first, 1, 0, 0)
    assert pacer.allowed(second, 10 * SECOND_US)
    pacer.sent(second, 1, 0, 10 * SECOND_US)
    assert not pacer.allowed(third, 10 * SECOND_US)
    assert pacer.due_us == 11 * SECOND_US - BURST_US
