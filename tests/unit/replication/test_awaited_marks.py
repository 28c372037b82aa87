"""Which runs of a batch stay marked."""

from __future__ import annotations

from unit.replication.link.test_outbound import run

from raylay.services.messages.records import Flag, Run
from raylay.services.replication.awaited_marks import clear_awaited


def marks(runs: list[Run]) -> list[tuple[list[tuple[int, int]], bool]]:
    return [(each.ranges(), bool(each.flags & Flag.AWAITED)) for each in runs]


def test_a_run_is_cut_where_only_a_part_of_it_is_waited_for() -> None:
    batch = [run(1, 1), run(2, 2, 3, 4, 5), run(6, 6)]
    found = marks(clear_awaited(batch, [(1, [(3, 4)])]))
    assert sorted(found) == [
        ([(1, 1)], True),
        ([(2, 2)], False),
        ([(3, 4)], True),
        ([(5, 5)], False),
        ([(6, 6)], True),
    ]


def test_nobody_waits_for_a_run() -> None:
    assert marks(clear_awaited([run(1, 1)], [(0, [])])) == [([(1, 1)], False)]
