"""When something with a schedule is due."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from datetime import UTC, datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st

from raylay.services.errors import ConfigurationError
from raylay.services.replication.downgrade import AgeCheck, DowngradePolicy, DowngradeSchedule
from raylay.services.replication.timetable import (
    DAY_MS,
    LATE_US_MAX,
    WEEK_MS,
    JournalAction,
    JournalSchedule,
    Occasion,
    Timetable,
    next_us,
)

S = 1_000_000
HOUR = 3_600 * S
DAY = 24 * HOUR


def us(text: str) -> int:
    """Of a moment in UTC."""
    return round(datetime.fromisoformat(text).replace(tzinfo=UTC).timestamp()) * S


@pytest.fixture
def berlin() -> Iterator[None]:
    """A host an hour, in summer two hours, ahead of UTC."""
    before = os.environ.get("TZ")
    os.environ["TZ"] = "CET-1CEST,M3.5.0,M10.5.0/3"
    time.tzset()
    yield
    if before is None:
        del os.environ["TZ"]
    else:
        os.environ["TZ"] = before
    time.tzset()


@pytest.mark.covers("Configuration", "Actions: journal is compressed")
@pytest.mark.parametrize(
    ("at", "now", "due"),
    [
        ("00:32Z", "2026-11-22T00:31:59", "2026-11-22T00:32:00"),
        ("00:32Z", "2026-11-22T00:32:00", "2026-11-23T00:32:00"),
        ("00:32:15Z", "2026-11-22T00:32:00", "2026-11-22T00:32:15"),
        ("Saturday at 11:00Z", "2026-11-22T12:00:00", "2026-11-28T11:00:00"),
        ("sunday at 11:00Z", "2026-11-22T10:00:00", "2026-11-22T11:00:00"),
        ("Sunday at 11:00Z", "2026-11-22T11:00:00", "2026-11-29T11:00:00"),
        ("00:30", "2026-11-22T23:00:00", "2026-11-22T23:30:00"),
        ("00:30", "2026-07-22T22:00:00", "2026-07-22T22:30:00"),
        ("Monday at 00:30", "2026-11-22T12:00:00", "2026-11-22T23:30:00"),
        # Summer time begins: 02:30 is left out, and comes an hour later.
        ("02:30", "2026-03-29T00:30:00", "2026-03-29T01:30:00"),
        # It ends: 02:30 comes twice, and is the first one; then that of the next day.
        ("02:30", "2026-10-24T23:00:00", "2026-10-25T00:30:00"),
        ("02:30", "2026-10-25T00:30:00", "2026-10-26T01:30:00"),
    ],
)
def test_the_next_moment(berlin: None, at: str, now: str, due: str) -> None:
    assert next_us(at, us(now)) == us(due)


@given(st.integers(0, 80 * 365 * DAY), st.sampled_from(("00:00", "23:59:59Z", "Friday at 5:07")))
def test_the_next_moment_lies_ahead_and_within_its_interval(now_us: int, at: str) -> None:
    wait_us = next_us(at, now_us) - now_us
    assert 0 < wait_us <= Occasion(at=at).between_ms() * 1000 + HOUR


def due_at(table: Timetable, *walls_us: int, now_us: int = 0) -> list[bool]:
    """Whether it is due at each of these moments; the first one is the start."""
    return [table.is_due(now_us + wall_us - walls_us[0], wall_us) for wall_us in walls_us]


def test_a_time_of_the_day_is_due_once_a_day_and_not_at_the_start() -> None:
    start = us("2026-11-22T00:31:00")
    table = Timetable(Occasion(at="00:32Z"))
    walls = (start, start + 59 * S, start + 60 * S, start + 61 * S, start + 60 * S + DAY)
    assert due_at(table, *walls) == [False, False, True, False, True]


def test_what_was_due_while_nobody_looked_for_long_is_not_made_up_for() -> None:
    start = us("2026-11-22T00:31:00")
    table = Timetable(Occasion(at="00:32Z"))
    late = start + 60 * S + LATE_US_MAX
    assert due_at(table, start, late + 1, start + DAY, start + DAY + 60 * S) == [
        False,
        False,
        False,
        True,
    ]
    assert due_at(Timetable(Occasion(at="00:32Z")), start, late) == [False, True]


def test_a_clock_that_is_set_back_brings_the_next_one_on_its_own_day() -> None:
    start = us("2026-11-22T00:31:00")
    table = Timetable(Occasion(at="00:32Z"))
    # Half a year wrong when the instance started; then somebody sets it.
    walls = (start + 180 * DAY, start, start + 60 * S, start + DAY, start + DAY + 60 * S)
    assert [table.is_due(n * S, wall) for n, wall in enumerate(walls)] == [
        False,
        False,
        True,
        False,
        True,
    ]


def test_a_clock_that_leaps_over_a_moment_does_nothing_for_it() -> None:
    start = us("1970-01-01T00:00:00")
    table = Timetable(Occasion(at="00:32Z"))
    assert due_at(table, start, us("2026-11-22T12:00:00"), us("2026-11-23T00:32:00")) == [
        False,
        False,
        True,
    ]


def test_a_grace_period_holds_for_a_time_of_the_day_too() -> None:
    start = us("2026-11-22T00:31:00")
    table = Timetable(Occasion(at="00:32Z"), grace_period_ms=120_000)
    assert due_at(table, start, start + 60 * S, start + DAY + 60 * S) == [False, False, True]


@pytest.mark.covers("Configuration", "Actions: journal is compressed")
def test_several_actions_are_due_in_their_order_each_by_its_own_schedule() -> None:
    archive = JournalAction("archive", 0, (Occasion(20_000), Occasion(at="00:00:30Z")))
    remove = JournalAction("remove", 0, (Occasion(at="00:00:40Z"),))
    compress = JournalAction("compress", 0, (Occasion(20_000),))
    schedule = JournalSchedule((archive, remove, compress))
    found = [schedule.due(second * S, second * S) for second in (0, 19, 20, 30, 39, 40, 41)]
    assert found == [
        [],
        [],
        [archive, compress],
        [archive],
        [],
        [archive, remove, compress],
        [],
    ]


def test_what_is_due_by_two_of_its_schedules_at_once_is_done_once() -> None:
    archive = JournalAction("archive", 0, (Occasion(20_000), Occasion(at="00:00:20Z")))
    schedule = JournalSchedule((archive,))
    found = [schedule.due(second * S, second * S) for second in (0, 20, 21, 40)]
    assert found == [[], [archive], [], [archive]]


def test_a_look_at_a_time_of_the_day_is_followed_by_a_second_one() -> None:
    """Where all is stored there but not persisted, the first look waits for the instance that is
    nearest to the fault: not for a day."""
    policy = DowngradePolicy(looks=(AgeCheck(100, None, (Occasion(at="00:00:30Z"),)),))
    schedule = DowngradeSchedule(policy)
    found = [schedule.due(second * S) for second in (0, 29, 30, 31, 32)]
    assert found == [(None, None), (None, None), (100, None), (100, None), (None, None)]


def test_of_several_looks_the_strictest_counts() -> None:
    every = (Occasion(10_000),)
    policy = DowngradePolicy(
        200, 20, every_ms=10_000, looks=(AgeCheck(100, None, every), AgeCheck(None, 50, every))
    )
    schedule = DowngradeSchedule(policy)
    assert [schedule.due(0), schedule.due(10 * S)] == [(None, None), (100, 50)]


@pytest.mark.parametrize(
    ("policy", "words"),
    [
        (DowngradePolicy(looks=(AgeCheck(100),)), "has no schedule"),
        (DowngradePolicy(looks=(AgeCheck(100, None, (Occasion(),)),)), "has no schedule"),
        (DowngradePolicy(looks=(AgeCheck(-1, None, (Occasion(1),)),)), "age_ms is -1"),
        (DowngradePolicy(looks=(AgeCheck(1, None, (Occasion(at="25:00"),)),)), "at is '25:00'"),
        (DowngradePolicy(100, looks=(AgeCheck(None, 200, (Occasion(1),)),)), "upgrade age 200 ms"),
    ],
)
def test_what_is_no_schedule_is_refused(policy: DowngradePolicy, words: str) -> None:
    with pytest.raises(ConfigurationError, match=words):
        policy.check()


@pytest.mark.parametrize(
    ("action", "words"),
    [
        (JournalAction("burn", 0, (Occasion(1),)), "give compress, archive or remove"),
        (JournalAction("remove", -1, (Occasion(1),)), "age_ms is -1"),
        (JournalAction("remove", 0, ()), "has no schedule"),
        (JournalAction("remove", 0, (Occasion(at="noon"),)), "at is 'noon'"),
    ],
)
def test_a_journal_action_that_is_none_is_refused(action: JournalAction, words: str) -> None:
    with pytest.raises(ConfigurationError, match=words):
        action.check("A-1")


def test_the_time_between_two() -> None:
    assert Occasion(at="00:32Z").between_ms() == DAY_MS
    assert Occasion(at="Saturday at 11:00").between_ms() == WEEK_MS
    assert Occasion(15_000).between_ms() == 15_000


def test_the_time_that_is_left_until_a_task_is_due() -> None:
    often = Timetable(Occasion(every_ms=1_000))
    assert often.remaining_us(5, 0) == 0
    often.is_due(0, 0)
    assert often.remaining_us(400_000, 0) == 600_000
    assert often.remaining_us(2_000_000, 0) == 0
    daily = Timetable(Occasion(at="12:00Z"))
    daily.is_due(0, us("2024-03-01T11:00"))
    assert daily.remaining_us(0, us("2024-03-01T11:59")) == 60_000_000
