"""Commits of the journal's writer thread that the instance's loop has not heard of yet.

The thread notifies the loop of each commit, and wakes the links of sync destinations itself,
because a publisher waits for their answer and the loop may take a while to wake up. So a link may
send a committed message before this instance's machine knows of the commit, and the answer may
arrive as early. The loop therefore takes all commits before it takes anything that a link reports.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping

from raylay.services.messages.records import Run
from raylay.services.replication.acknowledgment import DestinationLedger

TOLD_LATER_US = 500_000
"""Time after which a link is told of commits that are not routed to its destination. Each
notification wakes the link, and the link's answer wakes the instance; on a fabric, most commits are
routed to few of the links."""
TOLD_LATER_RECORDS = 4_096
"""Number of records of which a link may be left untold: more would delay the records behind them
that are routed to its destination."""


class CommitNotifications:
    """Notifies the loop and the links of commits that the writer thread made (see the module
    docstring).

    Invariants: a link is woken only for committed records; after each commit of the thread, the
    loop is certain to be called once more.
    Owner: the instance.
    Threads: `committed` runs on the journal's writer thread, all else on the loop.

    Attributes:
        wakeable: destinations whose links the thread can wake.
    """

    __slots__ = ("_called", "_committed_txid", "_due", "wakeable")

    def __init__(self) -> None:
        self.wakeable: tuple[str, ...] = ()
        self._committed_txid = 0
        self._called = False
        self._due: deque[tuple[int, str]] = deque()

    def staged(self, run: Run, ledgers: Mapping[str, DestinationLedger]) -> None:
        """Notes a run that is about to be staged. To be called before the journal has the run."""
        for name in self.wakeable:
            ledger = ledgers[name]
            if ledger.sync and ledger.router.routed(run, ledger.incarnation):
                self._due.append((run.last_txid, name))

    def due(self, last_txid: int) -> set[str]:
        """Returns the destinations whose links are to be woken when everything up to this
        transaction id is on disk. To be called only while no other thread commits."""
        if not self._due:
            return set()
        return {name for due_txid, name in self._due if due_txid <= last_txid}

    def committed(self, last_txid: int) -> tuple[bool, set[str]]:
        """Notes that everything up to this transaction id is on disk.

        Returns:
            whether the loop must be called to `take` it, and the destinations whose links are to
            be woken.
        """
        self._committed_txid = last_txid
        calls = not self._called
        self._called = True
        due = self._due
        names: set[str] = set()
        while due and due[0][0] <= last_txid:
            try:
                names.add(due.popleft()[1])
            except IndexError:
                break  # The loop cleared this entry: the commit behind it failed.
        return calls, names

    def take(self, taken_txid: int) -> int:
        """Returns the transaction id up to which everything is committed, if that is above
        `taken_txid`; else 0."""
        # Cleared before the id is read, so that a commit after the read calls the loop again.
        self._called = False
        last_txid = self._committed_txid
        return last_txid if last_txid > taken_txid else 0

    def is_ahead(self, taken_txid: int) -> bool:
        return self._committed_txid > taken_txid

    def failed(self) -> None:
        """Forgets runs that were staged and not committed: their commit failed, so their
        transaction ids are given to others."""
        self._due.clear()
