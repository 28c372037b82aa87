"""The clock by which a queue's messages age, while the wall clock of the instance is set."""

from __future__ import annotations

from raylay.services.queues.clock_steps import STEP_US, STEPS_MAX, ClockSteps

HOUR_US = 3_600_000_000
NOW_US = 10 * HOUR_US


def test_a_receive_time_counts_by_the_offset_that_it_was_written_with() -> None:
    steps = ClockSteps()
    assert steps.note(10, HOUR_US)
    assert steps.note(20, -HOUR_US)
    for at, (txid, offset_us) in enumerate(((10, 0), (11, HOUR_US), (20, HOUR_US), (21, -HOUR_US))):
        assert steps.steady_us(txid, 7 + at + offset_us, NOW_US) == 7 + at


def test_what_is_not_a_step_is_not_noted() -> None:
    steps = ClockSteps()
    assert not steps.note(5, STEP_US - 1)
    assert steps.note(6, STEP_US)
    assert not steps.note(7, 1)
    assert steps.all() == [(6, STEP_US)]


def test_nothing_was_received_in_the_future() -> None:
    assert ClockSteps().steady_us(3, NOW_US + HOUR_US, NOW_US) == NOW_US


def test_two_steps_behind_one_transaction_leave_the_last() -> None:
    steps = ClockSteps()
    steps.note(5, HOUR_US)
    steps.note(5, 2 * HOUR_US)
    assert steps.steady_us(6, 2 * HOUR_US + 1, NOW_US) == 1


def test_the_steps_are_bounded_and_another_process_takes_them_over() -> None:
    steps, other = ClockSteps(), ClockSteps()
    for at in range(1, STEPS_MAX + 10):
        steps.note(at, at * HOUR_US)
    assert len(steps.all()) < STEPS_MAX
    for step in steps.all():
        other.add(*step)
    assert other.all() == steps.all()
    last = STEPS_MAX + 9
    assert other.steady_us(last + 1, last * HOUR_US + 7, NOW_US) == 7
    # They agree about what is older than the steps that are left, too.
    for txid in (1, 5, 10, 11, 12, last):
        latest = [ClockSteps(steps.all()), ClockSteps()]
        for at in range(1, STEPS_MAX + 10):
            latest[1].note(at, at * HOUR_US)
        received_us = last * HOUR_US
        assert len({each.steady_us(txid, received_us, 2 * received_us) for each in latest}) == 1, (
            txid
        )


def test_transaction_ids_that_are_given_again_have_the_latest_offset() -> None:
    steps = ClockSteps()
    steps.note(5, HOUR_US)
    steps.note(20, 0)
    steps.failed(10)
    assert steps.all() == [(5, HOUR_US), (10, 0)]
    assert steps.steady_us(10, HOUR_US + 7, NOW_US) == 7
    assert steps.steady_us(11, 8, NOW_US) == 8


def test_nothing_was_received_before_what_is_before_it_in_the_journal() -> None:
    """The clock of an earlier life was behind, and nobody knows since when."""
    steps = ClockSteps()
    assert steps.steady_us(3, 2 * HOUR_US, NOW_US) == 2 * HOUR_US
    assert steps.steady_us(4, HOUR_US, NOW_US) == 2 * HOUR_US


def test_the_next_life_begins_behind_by_what_the_clock_was_set_forward_and_never_ahead() -> None:
    """Ahead, it would end what is young, where the wall clock was set right while it was down."""
    steps = ClockSteps()
    assert steps.behind_us == 0
    steps.note(5, HOUR_US)
    assert steps.behind_us == HOUR_US
    steps.note(9, -HOUR_US)
    assert steps.behind_us == 0
