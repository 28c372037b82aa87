"""The staged log finds runs by their sequences, and forgets them as it is emptied: those that were
committed last, a little later."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from raylay.services.messages.records import Run
from raylay.services.replication import staged
from raylay.services.replication.staged import BatchStaged, RunStaged, StagedLog

pytestmark = pytest.mark.covers("Journal", "what was committed a moment ago is compared in memory")

LAST_TXID = 1 << 62
RUNS = st.lists(
    st.tuples(st.integers(1, 3), st.integers(1, 60), st.integers(0, 12)), min_size=1, max_size=40
)


@given(RUNS, st.sampled_from([0, 40, 1_000]), st.data())
def test_it_finds_what_a_walk_over_everything_finds(
    drawn: list[tuple[int, int, int]], recent_bytes_max: int, data: st.DataObject
) -> None:
    log = StagedLog(recent_bytes_max)
    recent: list[Run] = []
    left: list[Run] = []
    for at, (publisher, first, span) in enumerate(drawn):
        run = Run(publisher, first, first + span, span + 1, b"x" * 10)
        log.append(RunStaged(at, run, 0, 0))
        left.append(run)
        if at % 5 == 4:
            log.append(BatchStaged(at, 1, at, {}, False))
        if data.draw(st.booleans()):
            entry = log.committed(LAST_TXID)
            while not isinstance(entry, RunStaged):
                assert entry is not None
                entry = log.committed(LAST_TXID)
            assert entry.run is left.pop(0)
            recent = [*recent, entry.run][-(recent_bytes_max // 10) :] if recent_bytes_max else []
        publisher = data.draw(st.integers(1, 3))
        low = data.draw(st.integers(1, 75))
        high = data.draw(st.integers(low, 80))
        expected = [
            run
            for run in recent + left
            if run.publisher == publisher
            and run.first_sequence <= high
            and run.last_sequence >= low
        ]
        found = log.runs(publisher, low, high)
        assert sorted(map(id, found)) == sorted(map(id, expected))
    log.clear()
    assert not len(log) and log.committed(LAST_TXID) is None and not log.runs(1, 1, 100)


def test_what_was_committed_last_is_forgotten_with_what_is_staged() -> None:
    log = StagedLog(1_000)
    log.append(RunStaged(1, Run(7, 1, 1, 1, b"x"), 0, 0))
    log.committed(LAST_TXID)
    assert log.runs(7, 1, 1) and not len(log)
    log.clear()
    assert not log.runs(7, 1, 1)


def test_nothing_is_taken_out_before_all_of_it_is_committed() -> None:
    log = StagedLog()
    first, second = RunStaged(3, Run(7, 1, 3, 3, b""), 0, 0), BatchStaged(3, 1, 1, {}, False)
    log.append(first)
    log.append(second)
    assert log.committed(2) is None and len(log) == 2
    assert [log.committed(3), log.committed(3), log.committed(3)] == [first, second, None]


def test_of_small_runs_a_bounded_number_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(staged, "RECENT_RUNS_MAX", 3)
    log = StagedLog(1_000)
    for sequence in range(1, 11):
        log.append(RunStaged(sequence, Run(7, sequence, sequence, 1, b""), 0, 0))
        log.committed(LAST_TXID)
    assert [run.first_sequence for run in log.runs(7, 1, 10)] == [8, 9, 10]


def test_a_wide_run_does_not_make_each_search_long_for_ever(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(staged, "RECENT_RUNS_MAX", 3)
    log = StagedLog(1_000)
    for txid, (first, last) in enumerate([(1, 900), *((at, at) for at in range(2, 12))]):
        log.append(RunStaged(txid, Run(7, first, last, 2, b""), 0, 0))
        log.committed(LAST_TXID)
    assert log._spans == {7: 0}
