"""The staged log finds runs by their sequences, and forgets them as it is emptied."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from raylay.services.messages.records import Run
from raylay.services.replication.staged import BatchStaged, RunStaged, StagedLog

RUNS = st.lists(
    st.tuples(st.integers(1, 3), st.integers(1, 60), st.integers(0, 12)), min_size=1, max_size=40
)


@given(RUNS, st.data())
def test_it_finds_what_a_walk_over_everything_finds(
    drawn: list[tuple[int, int, int]], data: st.DataObject
) -> None:
    log = StagedLog()
    left: list[Run] = []
    for at, (publisher, first, span) in enumerate(drawn):
        run = Run(publisher, first, first + span, span + 1, b"")
        log.append(RunStaged(at, run, 0, 0))
        left.append(run)
        if at % 5 == 4:
            log.append(BatchStaged(at, 1, at, {}, False))
        if data.draw(st.booleans()):
            entry = log.popleft()
            while not isinstance(entry, RunStaged):
                entry = log.popleft()
            assert entry.run is left.pop(0)
        publisher = data.draw(st.integers(1, 3))
        low = data.draw(st.integers(1, 75))
        high = data.draw(st.integers(low, 80))
        expected = [
            run
            for run in left
            if run.publisher == publisher
            and run.first_sequence <= high
            and run.last_sequence >= low
        ]
        found = log.runs(publisher, low, high)
        assert sorted(map(id, found)) == sorted(map(id, expected))
    log.clear()
    assert not len(log) and log.oldest_txid() == 0 and not log.runs(1, 1, 100)
