"""When an instance looks for what is to be downgraded or upgraded, and what forbids it."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from raylay.services.errors import ConfigurationError
from raylay.services.replication.downgrade import (
    FIRST_CONNECT_US_MAX,
    DowngradePolicy,
    DowngradeSchedule,
    age_counts_from,
)

pytestmark = pytest.mark.covers("Replication", "schedule of downgrade and upgrade")

MS = 1000


def looks(policy: DowngradePolicy, *times_ms: int) -> list[tuple[int | None, int | None]]:
    schedule = DowngradeSchedule(policy)
    return [schedule.due(time_ms * MS) for time_ms in times_ms]


def test_without_a_schedule_each_tick_is_a_look() -> None:
    assert looks(DowngradePolicy(100), 0, 1, 2) == [(100, 50)] * 3


def test_without_ages_nothing_is_ever_due() -> None:
    assert looks(DowngradePolicy(), 0, 1) == [(None, None)] * 2


@pytest.mark.covers("The replication chapters", "by schedule and age")
def test_an_interval_lies_between_two_looks() -> None:
    found = looks(DowngradePolicy(100, every_ms=20), 0, 10, 20, 30, 39, 40)
    assert [downgrade is not None for downgrade, _ in found] == [
        False,
        False,
        True,
        False,
        False,
        True,
    ]


def test_the_two_have_intervals_of_their_own() -> None:
    policy = DowngradePolicy(100, 10, every_ms=40, upgrade_every_ms=20)
    assert looks(policy, 0, 20, 40, 60) == [(None, None), (None, 10), (100, 10), (None, 10)]


def test_in_the_grace_period_nobody_looks() -> None:
    policy = DowngradePolicy(100, every_ms=10, grace_period_ms=50)
    assert looks(policy, 0, 10, 49, 50, 60) == [*[(None, None)] * 3, *[(100, 50)] * 2]


@pytest.mark.covers("The replication chapters", "by schedule and age")
def test_the_two_have_grace_periods_of_their_own() -> None:
    policy = DowngradePolicy(100, 10, grace_period_ms=50, upgrade_grace_period_ms=0)
    assert looks(policy, 0, 50) == [(None, 10), (100, 10)]


def test_an_upgrade_age_of_nothing_is_never_by_age() -> None:
    assert looks(DowngradePolicy(100, 0), 0) == [(100, None)]


def test_a_late_look_is_not_made_up_for() -> None:
    found = looks(DowngradePolicy(100, every_ms=10), 0, 95, 96, 105)
    assert [downgrade for downgrade, _ in found] == [None, 100, None, 100]


@pytest.mark.covers("The replication chapters", "by schedule and age")
@given(st.lists(st.integers(0, 10_000), min_size=2, max_size=60), st.integers(0, 500))
def test_a_clock_that_jumps_stops_nothing(times_ms: list[int], every_ms: int) -> None:
    """Whatever the clock did before, once it goes on there is a look within two intervals."""
    schedule = DowngradeSchedule(DowngradePolicy(100, every_ms=every_ms))
    for time_ms in times_ms:
        schedule.due(time_ms * MS)
    now_ms = times_ms[-1]
    later = [schedule.due((now_ms + step * max(1, every_ms)) * MS)[0] for step in (1, 2)]
    assert 100 in later


def test_the_minimum_refuses_and_says_how_to_go_on() -> None:
    schedule = DowngradeSchedule(DowngradePolicy(100, None, 2))
    assert schedule.refusal("B", 3) == ""
    text = schedule.refusal("B", 2)
    assert "B is not downgraded" in text and "MinSyncDestinations is 2" in text and "force" in text


@pytest.mark.parametrize(
    ("policy", "named"),
    [
        (DowngradePolicy(100, 200), "upgrade age 200 ms"),
        (DowngradePolicy(-1), "age_ms"),
        (DowngradePolicy(100, every_ms=-5), "every_ms"),
        (DowngradePolicy(100, min_sync_destinations=-1), "min_sync_destinations"),
    ],
)
def test_values_that_do_not_fit_are_refused(policy: DowngradePolicy, named: str) -> None:
    with pytest.raises(ConfigurationError, match=named):
        policy.check()


def test_values_that_fit() -> None:
    DowngradePolicy(300_000, 10_000, 1, 15_000, None, 60_000, None).check()


@pytest.mark.covers("Replication", "downgraded at once on evidence")
@pytest.mark.parametrize(
    ("policy", "at_ms", "acts"),
    [
        (DowngradePolicy(100), 0, True),
        (DowngradePolicy(), 0, False),
        (DowngradePolicy(100, by_evidence=False), 0, False),
        (DowngradePolicy(100, grace_period_ms=50), 49, False),
        (DowngradePolicy(100, grace_period_ms=50), 50, True),
    ],
)
def test_evidence_counts_where_an_age_does(policy: DowngradePolicy, at_ms: int, acts: bool) -> None:
    schedule = DowngradeSchedule(policy)
    schedule.due(0)
    assert schedule.acts_by_evidence(at_ms * MS) is acts


@pytest.mark.parametrize(
    ("oldest_ms", "connected_ms", "age_ms", "from_ms"),
    [
        (7_000, 6_000, 900, 7_000),  # it came before the message
        (6_000, 7_000, 900, 7_000),  # the message came before it
        (6_000, None, 100, 6_000),  # it does not come: ten times a short age behind the start
        (5_500, None, 100, 6_000),
        (6_000, None, 60_000, 10_000),  # and five seconds at most
        (6_000, 14_000, 60_000, 10_000),  # it came later than that
    ],
)
def test_from_when_an_age_counts(
    oldest_ms: int, connected_ms: int | None, age_ms: int, from_ms: int
) -> None:
    began_us = 5_000 * MS
    assert FIRST_CONNECT_US_MAX == 5_000 * MS
    connected_us = None if connected_ms is None else connected_ms * MS
    found = age_counts_from(oldest_ms * MS, began_us, connected_us, age_ms)
    assert found == from_ms * MS
