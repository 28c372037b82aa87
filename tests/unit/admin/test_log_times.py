"""services/admin/log_times.py: how many seconds a transaction is behind the last one."""

from __future__ import annotations

import pytest

from raylay.services.admin.log_times import MARKS_MAX, LogTimes, SegmentSpan

S = 1_000_000


def sampled(*marks: tuple[int, int]) -> LogTimes:
    """Times of samples: transaction, seconds."""
    times = LogTimes()
    for txid, at_s in marks:
        times.sampled(txid, at_s * S)
    return times


@pytest.mark.parametrize(
    ("txid", "behind"), [(30, 0), (31, 0), (20, 10), (25, 5), (10, 20), (5, 20)]
)
def test_times_between_samples_are_interpolated(txid: int, behind: int) -> None:
    times = sampled((10, 100), (20, 110), (30, 120))
    assert times.seconds_behind(txid, 30) == behind


def test_less_than_a_second_is_none() -> None:
    times = LogTimes()
    times.sampled(10, 0)
    times.sampled(20, S - 1)
    assert times.seconds_behind(10, 20) == 0


def test_a_transaction_keeps_the_time_when_it_was_first_the_last_one() -> None:
    times = sampled((10, 100), (20, 110), (20, 500))
    assert times.seconds_behind(10, 20) == 10


def test_older_times_come_from_the_segments() -> None:
    times = sampled((1000, 500), (1100, 510))
    times.listed(
        [
            SegmentSpan(1, 100 * S, 400, 200 * S),
            SegmentSpan(401, 200 * S, 800, 300 * S),
            SegmentSpan(801, 0, 0, 0),
        ]
    )
    assert times.seconds_behind(1, 1100) == 410
    assert times.seconds_behind(400, 1100) == 310
    assert times.seconds_behind(600, 1100) == 260
    assert times.seconds_behind(900, 1100) == 110, "between the last segment and the first sample"


def test_segments_alone_are_enough_and_nothing_is_unknown() -> None:
    times = LogTimes()
    assert times.seconds_behind(5, 10) is None
    times.listed([SegmentSpan(1, 10 * S, 100, 20 * S)])
    assert times.seconds_behind(1, 100) == 10
    assert times.seconds_behind(1, 200) == 10


def test_a_journal_that_begins_anew_begins_the_times_anew() -> None:
    times = sampled((1000, 500), (10, 600), (20, 605))
    assert times.seconds_behind(10, 20) == 5


def test_samples_are_bounded_and_the_older_ones_become_coarser() -> None:
    times = sampled(*((each, each) for each in range(1, 3 * MARKS_MAX)))
    assert len(times._txids) <= MARKS_MAX
    assert times._txids == sorted(times._txids)
    last = 3 * MARKS_MAX - 1
    assert times.seconds_behind(last - 5, last) == 5
    assert times.seconds_behind(1, last) == last - 1
