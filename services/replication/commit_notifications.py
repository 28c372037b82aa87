"""Commits of the journal's writer thread that the instance's loop has not heard of yet.

The thread tells the loop of each commit, and it wakes the links of sync destinations itself: their
answer is what a publisher waits for, and the loop may take a while to wake up. So a link may send
what is committed before this instance's machine knows that it is, and answers may come as early:
the loop takes what is committed before it takes anything that a link says.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping

from raylay.services.messages.records import Run
from raylay.services.replication.acknowledgment import DestinationLedger

TOLD_LATER_US = 500_000
"""Time after which a link is told of commits of which nothing is routed there. Each telling wakes
the link, its answer the instance, and on a fabric most of what is committed is routed to few of the
links."""
TOLD_LATER_RECORDS = 4_096
"""Records that a link has not been told of: more would hold up what is routed there behind them."""


class CommitNotifications:
    """See the file's docstring.

    Invariants: a link is woken for what is committed only; of what the thread committed, the loop
    is sure to be called once more.
    Owner: the instance. Threads: `committed` on the journal's writer thread, all else on the loop.

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
        """A run is about to be staged; call it before the journal has the run."""
        for name in self.wakeable:
            ledger = ledgers[name]
            if ledger.sync and ledger.router.routed(run, ledger.incarnation):
                self._due.append((run.last_txid, name))

    def due(self, last_txid: int) -> set[str]:
        """The destinations whose links are to be woken when everything up to here is on disk; while
        no other thread commits."""
        return {name for due_txid, name in self._due if due_txid <= last_txid}

    def committed(self, last_txid: int) -> tuple[bool, set[str]]:
        """Everything up to this transaction id is on disk.

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
                break  # Cleared by the loop: the commit behind failed.
        return calls, names

    def take(self, taken_txid: int) -> int:
        """Up to where all is committed, if that is beyond `taken_txid`; else 0."""
        # Before the id is read: a commit after it has the loop called again.
        self._called = False
        last_txid = self._committed_txid
        return last_txid if last_txid > taken_txid else 0

    def is_ahead(self, taken_txid: int) -> bool:
        """Returns whether something beyond is committed."""
        return self._committed_txid > taken_txid

    def failed(self) -> None:
        """Forgets what is staged and not committed: it never will be, under these transaction
        ids."""
        self._due.clear()
