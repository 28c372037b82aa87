"""How often an instance looks at ages: at each interval where something is owed."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, cast

import pytest
from unit.replication.instance.test_destinations import OWN, Bench

from raylay.services.messages.ranges import PublisherRanges
from raylay.services.replication.instance import InstanceMachine
from raylay.services.replication.instance.tick_policy import QUIET_LOOK_US, TickPolicy
from raylay.services.replication.unavailable import UnavailableMessages

INTERVAL_US = 100_000


@dataclass
class Machine:
    """What `TickPolicy` asks of one: the real ledgers, and what may be missing."""

    bench: Bench = field(default_factory=Bench)
    missing: UnavailableMessages = field(
        default_factory=lambda: UnavailableMessages(PublisherRanges(), PublisherRanges())
    )

    @property
    def destinations(self) -> Any:
        return self.bench.links.ledgers


class Watch:
    """A machine that is looked at, interval by interval."""

    def __init__(self) -> None:
        self.machine = Machine()
        self.looking = TickPolicy(cast(InstanceMachine, self.machine))
        self.now_us = 1_700_000_000_000_000

    def looks(self, intervals: int) -> list[bool]:
        found = []
        for _ in range(intervals):
            found.append(self.looking.is_due(self.now_us))
            self.now_us += INTERVAL_US
        return found


def test_a_quiet_instance_looks_twice_a_second() -> None:
    watch = Watch()
    # The first look may find what was left, the next one knows that it did not.
    assert watch.looks(1) == [True]
    assert watch.looks(15) == [False, False, False, False, True] * 3
    assert 4 * INTERVAL_US < QUIET_LOOK_US < 5 * INTERVAL_US, "timers may be early"


def test_from_a_commit_on_until_all_is_answered_each_interval_has_a_look() -> None:
    watch = Watch()
    bench = watch.machine.bench
    watch.looks(3)
    bench.commit(1, 2, 1)
    assert watch.looks(20) == [True] * 20
    bench.answer(OWN, 1, 1)
    assert watch.looks(2) == [True] * 2, "one is owed yet"
    bench.answer(OWN, 2, 2)
    # One look finds that nothing is owed any more.
    assert watch.looks(6) == [True, False, False, False, False, True]


def test_a_sync_destination_that_is_not_waited_for_is_looked_at() -> None:
    watch = Watch()
    bench = watch.machine.bench
    assert bench.links.downgrade("b", 0, "by hand", force=True)
    assert watch.looks(10) == [True] * 10
    bench.links.upgrade("b", 0, "by hand")
    assert watch.looks(3) == [True, False, False]


def test_what_may_be_missing_is_looked_at() -> None:
    watch = Watch()
    lacking = PublisherRanges()
    lacking.add(7, 1, 1)
    watch.machine.missing.upstream_lacks("c", 1, lacking, whole=True)
    assert watch.machine.missing.is_judging
    assert watch.looks(10) == [True] * 10


@pytest.mark.parametrize("hours", [-1, 1])
def test_a_clock_that_jumps_makes_a_look_due(hours: int) -> None:
    watch = Watch()
    assert watch.looks(2) == [True, False]
    watch.now_us += hours * 3_600_000_000
    assert watch.looks(2) == [True, False]
