"""The policy by which an instance takes over the connection of one of its links, and the link's
machine at the instance.

Each message that goes through a link wakes the link's process, and its answer does once more. So
where a link has caught up, it hands over its connection: the instance sends what it commits, and
takes the acks, on the loop that has both anyway. The link goes on owning the destination. Whatever
a journal has to be read for, and whoever reads too slowly, ends the connection; the link dials
again and sends what is missing. That is correct at any moment, so nothing else is needed to take it
back.
"""

from __future__ import annotations

from raylay.services.messages.records import Kind, Run
from raylay.services.replication.effects import LinkEffect, Ranges, Rooted
from raylay.services.replication.link.outbound import OutboundLink

PAUSE_US_MIN = 500_000
PAUSE_US_MAX = 60_000_000
LASTING_US = 60_000_000
"""A connection that was taken over for so long was worth it: the next one is taken over as soon."""
BEHIND_BYTES_MAX = 4 * 1024 * 1024
BEHIND_RUNS_MAX = 4_096
"""Runs that are committed and not sent yet: a link has more in a file, an instance in memory."""
BATCH_BYTES = 512 * 1024

_UNAVAILABLE = int(Kind.UNAVAILABLE)


class DirectLinkPolicy:
    """Decides when to ask a link for its connection, and keeps what was committed since it was
    asked.

    Invariant: what `taken` gives follows, without a gap, what the link has sent.
    Owner: the instance, for each of its links. Lifecycle: as long as the link's supervisor;
    `ended` with each connection.

    Args:
        is_allowed: False: never.
        pause_us_min: how long a link is caught up before it is asked; longer after each failure.
    """

    __slots__ = (
        "_direct_since_us",
        "_due_us",
        "_from_txid",
        "_is_allowed",
        "_is_asked",
        "_kept",
        "_kept_bytes",
        "_pause_us",
        "_pause_us_min",
    )

    def __init__(self, *, is_allowed: bool, pause_us_min: int = PAUSE_US_MIN) -> None:
        self._is_allowed = is_allowed
        self._pause_us_min = self._pause_us = pause_us_min
        self._due_us: int | None = None
        self._is_asked = False
        self._from_txid = 0
        self._kept: list[Run] | None = None
        self._kept_bytes = 0
        self._direct_since_us: int | None = None

    def asks(self, *, caught_up: bool, committed_txid: int, now_us: int) -> bool:
        """Called regularly: whether the link is to be asked now."""
        if not self._is_allowed or self._is_asked or self._direct_since_us is not None:
            return False
        if not caught_up:
            self._due_us = None
            return False
        if self._due_us is None:
            self._due_us = now_us + self._pause_us
        if now_us < self._due_us:
            return False
        self._is_asked = True
        self._from_txid = committed_txid
        self._kept, self._kept_bytes = [], 0
        return True

    def committed(self, runs: list[Run]) -> None:
        """Takes runs that are on disk. What comes while the link is asked is kept for `taken`."""
        if self._kept is None:
            return
        self._kept += runs
        self._kept_bytes += sum(len(run.payload) for run in runs)
        if self._kept_bytes > BEHIND_BYTES_MAX or len(self._kept) > BEHIND_RUNS_MAX:
            self._kept = None

    def said(self) -> None:
        """The link is told something else: it may have handed over its connection before it hears
        that."""
        self._kept = None

    def kept(self, now_us: int, *, for_good: bool) -> None:
        """The link keeps its connection: it is busy, or cannot hand over one of this kind."""
        self._is_asked = False
        self._kept = None
        self._later(now_us)
        if for_good:
            self._due_us = None
            self._is_allowed = False

    def taken(self, cursor: int, now_us: int) -> list[Run] | None:
        """The link hands over its connection, and has sent everything up to `cursor`.

        Returns:
            what is committed behind that. None: the connection cannot be gone on with.
        """
        kept, self._kept = self._kept, None
        # Until it has `ended` the link is not asked again: it has no connection to hand over.
        if kept is None or cursor < self._from_txid:
            return None
        behind = [run for run in kept if run.last_txid > cursor]
        if behind and behind[0].first_txid > cursor + 1:
            return None
        self._is_asked = False
        self._direct_since_us = now_us
        return behind

    def ended(self, now_us: int) -> None:
        """The connection is over, whoever had it."""
        direct_since_us, self._direct_since_us = self._direct_since_us, None
        was_asked, self._is_asked = self._is_asked, False
        self._kept = self._due_us = None
        if direct_since_us is not None and now_us - direct_since_us >= LASTING_US:
            self._pause_us = self._pause_us_min
        elif direct_since_us is not None or was_asked:
            self._pause_us = min(2 * self._pause_us, PAUSE_US_MAX)

    def _later(self, now_us: int) -> None:
        self._pause_us = min(2 * self._pause_us, PAUSE_US_MAX)
        self._due_us = now_us + self._pause_us


class DirectLink:
    """A link's machine at its instance: fed with what is committed, not with a journal.

    Invariant: what it has not sent yet follows its machine's cursor without a gap.
    Owner: the instance. Lifecycle: one connection; useless once `trouble` says why.

    Args:
        machine: that has taken over the connection.
    """

    __slots__ = ("_unsent", "_unsent_bytes", "machine", "trouble")

    def __init__(self, machine: OutboundLink) -> None:
        self.machine = machine
        self.trouble = ""
        """Reason why the connection is to be ended; empty: it is not."""
        self._unsent: list[Run] = []
        self._unsent_bytes = 0

    @property
    def due_us(self) -> int | None:
        """The time at which `look_again` is to be called; None: nothing waits."""
        return self.machine.due_us

    def committed(self, runs: list[Run], now_us: int) -> list[LinkEffect]:
        """Takes runs that are on disk, all that was committed since the last call."""
        if runs:
            if not self._unsent:
                effects = self.machine.pass_by(runs)
                if effects is not None:
                    return effects
            self.machine.told(runs[-1].last_txid)
            self._unsent += runs
            for run in runs:
                self._unsent_bytes += len(run.payload)
        return self.go_on(now_us)

    def acked(
        self, number: int, held: Ranges, persisted: Rooted, conflicts: Ranges, now_us: int
    ) -> list[LinkEffect]:
        """An ack came; see OutboundLink.acked.

        Raises:
            RemoteProtocolError: it is of a batch that was not sent.
        """
        return self.machine.acked(number, held, persisted, conflicts) + self.go_on(now_us)

    def notice(self, awaited: Rooted, last_txid: int, now_us: int) -> list[LinkEffect]:
        """The destination is to be asked; see OutboundLink.notice."""
        return self.machine.notice(awaited, last_txid) + self.go_on(now_us)

    def look_again(self, now_us: int) -> list[LinkEffect]:
        """Sends what has waited long enough for another path, if `due_us` is past."""
        due_us = self.machine.due_us
        if due_us is not None and due_us <= now_us:
            self.machine.look_again()
        return self.go_on(now_us)

    def go_on(self, now_us: int) -> list[LinkEffect]:
        """Sends what may be sent."""
        machine, effects = self.machine, []
        while self._unsent and machine.wants and not self.trouble:
            taken = self._next() if self._unsent_bytes >= BATCH_BYTES else self._unsent.copy()
            before = machine.cursor
            if taken[0].first_txid > before + 1 or _UNAVAILABLE in [run.kind for run in taken]:
                self.trouble = "what it is to be told next is in the journal only"
                break
            effects += machine.take(taken, now_us)
            self._forget(machine.cursor)
            if machine.cursor == before:
                break
        if self._unsent_bytes > BEHIND_BYTES_MAX or len(self._unsent) > BEHIND_RUNS_MAX:
            self.trouble = "it does not take what is sent as fast as it is committed"
        return effects

    def _next(self) -> list[Run]:
        size_bytes = 0
        for at, run in enumerate(self._unsent):
            size_bytes += len(run.payload)
            if size_bytes >= BATCH_BYTES:
                return self._unsent[: at + 1]
        return self._unsent.copy()

    def _forget(self, cursor: int) -> None:
        if self._unsent[-1].last_txid <= cursor:
            self._unsent.clear()
            self._unsent_bytes = 0
            return
        sent = 0
        for run in self._unsent:
            if run.last_txid > cursor:
                break
            sent += 1
            self._unsent_bytes -= len(run.payload)
        del self._unsent[:sent]
