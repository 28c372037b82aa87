"""The runs that were committed last."""

from __future__ import annotations

from support.journal_cases import a_run

from raylay.services.messages.records import Run
from raylay.services.subscriptions.recent import RecentRuns

SIZE_BYTES = len(a_run(1, [1]).payload)


def run(first: int, last: int) -> Run:
    return a_run(first, range(first, last + 1))


def spans(runs: list[Run]) -> list[tuple[int, int]]:
    return [(run.first_txid, run.last_txid) for run in runs]


def test_gives_what_is_behind_or_nothing() -> None:
    recent = RecentRuns(1 << 20)
    assert recent.behind(0, 1 << 20) == []
    recent.add([run(5, 6), run(7, 7)])
    recent.add([run(8, 10)])
    assert recent.behind(3, 1 << 20) == [], "4 is not here"
    assert spans(recent.behind(4, 1 << 20)) == [(5, 6), (7, 7), (8, 10)]
    assert spans(recent.behind(5, 1 << 20)) == [(5, 6), (7, 7), (8, 10)]
    assert spans(recent.behind(6, 1 << 20)) == [(7, 7), (8, 10)]
    assert spans(recent.behind(9, 1 << 20)) == [(8, 10)]
    assert recent.behind(10, 1 << 20) == []
    assert spans(recent.behind(4, 1)) == [(5, 6)]


def test_keeps_what_it_may_and_the_newest_in_any_case() -> None:
    recent = RecentRuns(3 * SIZE_BYTES)
    recent.add([run(1, 1), run(2, 2), run(3, 3)])
    assert len(recent) == 3
    recent.add([run(4, 4)])
    assert recent.behind(0, 1) == [] and spans(recent.behind(1, 1)) == [(2, 2)]
    recent.add([run(5, 9)])
    assert spans(recent.behind(4, 1 << 20)) == [(5, 9)] and recent.behind(3, 1) == []


def test_what_was_left_out_is_no_hole() -> None:
    recent = RecentRuns(1 << 20)
    recent.add([run(1, 1)])
    recent.add([run(3, 3)])
    assert recent.behind(0, 1 << 20) == [] and spans(recent.behind(2, 1)) == [(3, 3)]
    recent.clear()
    assert recent.behind(2, 1) == []
