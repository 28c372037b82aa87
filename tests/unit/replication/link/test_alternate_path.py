"""A way is believed when it has shown enough, for as long as it goes on to."""

from __future__ import annotations

from raylay.services.replication.link.alternate_path import (
    DEFERRED_US_MAX,
    MISSES_MAX,
    PATIENCE_US,
    SHOWN_NEEDED,
    SHOWN_NEEDED_MAX,
    AlternatePath,
)


def missed(way: AlternatePath, times: int) -> None:
    for _ in range(times):
        way.missed()


def test_a_way_is_believed_when_it_has_shown_enough() -> None:
    way = AlternatePath()
    way.shown = SHOWN_NEEDED - 1
    assert not way.is_believed
    way.shown += 1
    assert way.is_believed


def test_patience_is_three_times_what_others_waited_and_halved_by_each_in_vain() -> None:
    way = AlternatePath()
    assert way.patience_us == PATIENCE_US
    way.came(PATIENCE_US)
    assert way.patience_us == 3 * PATIENCE_US
    way.missed()
    assert way.patience_us == 3 * PATIENCE_US // 2
    way.came(DEFERRED_US_MAX)
    assert way.patience_us == DEFERRED_US_MAX, "one that came ends the misses"


def test_a_slow_one_is_forgotten_little_by_little() -> None:
    way = AlternatePath()
    way.came(800)
    way.came(0)
    assert way.usual_us == 700


def test_one_that_shows_no_more_is_believed_later_each_time() -> None:
    way = AlternatePath()
    way.shown = SHOWN_NEEDED
    missed(way, MISSES_MAX)
    assert way.is_believed
    way.missed()
    assert not way.is_believed and way.needed == 4 * SHOWN_NEEDED
    missed(way, 100 * (MISSES_MAX + 1))
    assert way.needed == SHOWN_NEEDED_MAX
