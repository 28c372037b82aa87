"""services/sow/query/as_of.py: what a history with a granularity lacks is replayed, not left
out."""

from __future__ import annotations

import random

import pytest

from raylay.services.messages.records import Run
from raylay.services.sow.query.as_of import AsOf, past_of
from raylay.services.sow.state import SowRecord, SowRules, SowState

pytestmark = pytest.mark.covers("SOW", "`sow_and_subscribe` of the past")


def run_of(first_txid: int, count: int, time_us: int) -> Run:
    last = first_txid + count - 1
    return Run(7, first_txid, last, count, b"", first_txid=first_txid, receive_time_us=time_us)


class Log:
    """Runs of (transactions, time), from a transaction on."""

    def __init__(self, runs: list[tuple[int, int]], first_txid: int = 1) -> None:
        self.first_txid = txid = first_txid
        self.runs: list[Run] = []
        for count, time_us in runs:
            self.runs.append(run_of(txid, count, time_us))
            txid += count
        self.next_txid = txid

    def find_time(self, time_us: int) -> int:
        late = (each.first_txid for each in self.runs if each.receive_time_us >= time_us)
        return next(late, self.next_txid)

    def read_headers(self, after_txid: int, runs_max: int = 4096) -> list[Run]:
        return [each for each in self.runs if each.last_txid > after_txid][:runs_max]


LOG = Log([(2, 100), (1, 105), (3, 112), (1, 118), (1, 131)])


@pytest.mark.parametrize(
    ("after_txid", "granularities_us", "past"),
    [
        (2, (), AsOf(2, 104)),
        (2, (0, 0), AsOf(2, 104)),
        (1, (0,), AsOf(1, 99)),  # in the midst of what was received at once
        (3, (10,), AsOf(3, 111)),  # where an interval begins nothing is lacking
        (6, (10,), AsOf(3, 111)),
        (5, (10,), AsOf(3, 111)),
        (7, (10,), AsOf(7, 130)),
        (8, (10,), AsOf(7, 130)),  # behind the last one: an interval that goes on
        (2, (10,), AsOf(0, 99)),
        (6, (0, 10), AsOf(3, 111)),
        (6, (50, 10), AsOf(0, 99)),
        (6, (1_000,), AsOf(0, 99)),  # never before the log
        (7, (20,), AsOf(7, 130)),
        (6, (20,), AsOf(0, 99)),
    ],
)
def test_the_last_state_that_is_there_in_full(
    after_txid: int, granularities_us: tuple[int, ...], past: AsOf
) -> None:
    assert past_of(after_txid, granularities_us, LOG, 134) == past


def test_of_a_log_that_lost_its_begin_no_earlier_state_is_said() -> None:
    log = Log([(2, 105), (2, 107)], first_txid=50)
    assert past_of(51, (10,), log, 200) == AsOf(49, 104)
    assert past_of(49, (), log, 200) == AsOf(49, 104)


@pytest.mark.parametrize("seed", range(20))
def test_histories_have_the_state_that_is_said(seed: int) -> None:
    """Of whatever transaction: what the history gives is what there was, deletions too."""
    random_ = random.Random(seed)
    granularities_us = [random_.choice((0, 7, 20, 33)) for _ in range(2)]
    states = [SowState(SowRules(window_us=10**6, granularity_us=each)) for each in granularities_us]
    then: list[list[dict[bytes, bytes | None]]] = [[{}, {}]]
    runs, time_us, txid = [], 1_000, 1
    for _ in range(60):
        # Several may be received at once, also where an interval ends.
        time_us += random_.choice((0, 0, 1, 1, 3, 15))
        runs.append((1, time_us))
        which, key = random_.randrange(2), random_.choice((b"a", b"b", b"c"))
        now = [dict(each) for each in then[-1]]
        if random_.random() < 0.2:
            states[which].delete(key, txid, time_us)
            now[which].pop(key, None)
        else:
            body = b"%d" % txid
            states[which].put(SowRecord(key, txid, 9, txid, time_us, 0, body, 1))
            now[which][key] = body
        then.append(now)
        txid += 1
    log, now_us = Log(runs), time_us + 1
    for after_txid in range(txid):
        past = past_of(after_txid, granularities_us, log, now_us)
        assert past.txid is not None and past.txid <= after_txid
        if not any(granularities_us):
            assert past.txid == after_txid
        for state, expected in zip(states, then[past.txid], strict=True):
            found = {r.key: r.body for r in state.as_of(past.time_us, now_us, past.txid)}
            assert found == expected, (after_txid, past)
