"""The last committed runs, in memory: a reader near the end of the log needs no disk."""

from __future__ import annotations

from bisect import bisect_right

from raylay.services.messages.records import Run


class RecentRuns:
    """The last committed runs. Invariant: consecutive transaction ids, the newest last; at most
    `bytes_max` of payload, except for a single larger run.

    Owner: the part that replays the log. Lifecycle: `add` with each commit; `clear` where one is
    left out.
    """

    __slots__ = ("_bytes", "_bytes_max", "_runs")

    def __init__(self, bytes_max: int) -> None:
        self._bytes_max = bytes_max
        self._runs: list[Run] = []
        self._bytes = 0

    def __len__(self) -> int:
        return len(self._runs)

    def add(self, runs: list[Run]) -> None:
        kept = self._runs
        if kept and runs and kept[-1].last_txid + 1 != runs[0].first_txid:
            self.clear()
        kept += runs
        self._bytes += sum(len(run.payload) for run in runs)
        gone = 0
        while self._bytes > self._bytes_max and gone < len(kept) - 1:
            self._bytes -= len(kept[gone].payload)
            gone += 1
        del kept[:gone]

    def clear(self) -> None:
        self._runs.clear()
        self._bytes = 0

    def behind(self, txid: int, bytes_max: int) -> list[Run]:
        """Returns the runs behind a transaction id, about `bytes_max` bytes of them; the first one
        may begin before it. None where the next transaction is not in memory."""
        runs = self._runs
        if not runs or runs[0].first_txid > txid + 1:
            return []
        found: list[Run] = []
        taken_bytes = 0
        for at in range(bisect_right(runs, txid, key=_last_txid), len(runs)):
            run = runs[at]
            found.append(run)
            taken_bytes += len(run.payload)
            if taken_bytes >= bytes_max:
                break
        return found


def _last_txid(run: Run) -> int:
    return run.last_txid
