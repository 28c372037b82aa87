"""The policy by which an instance takes over the connection of one of its links, and the link's
machine at the instance.

Each message that goes through a link wakes the link's process, and each answer does so again. So
where a link has caught up, it hands over its connection: the instance then sends what it commits,
and takes the acks, on the event loop that handles both anyway. The link still owns the destination.
When a journal must be read, or the destination reads too slowly, the connection is closed; the link
dials again and sends what is missing. That is correct at any moment, so there is no other way of
handing a connection back.
"""

from __future__ import annotations

from raylay.services.messages.records import Kind, Run
from raylay.services.replication.effects import LinkEffect, Ranges, Rooted
from raylay.services.replication.link.outbound import OutboundLink

PAUSE_US_MIN = 500_000
PAUSE_US_MAX = 60_000_000
LASTING_US = 60_000_000
"""Time in microseconds after which a taken-over connection was worth it: the next one is taken over
without a longer pause."""
BEHIND_BYTES_MAX = 16 * 1024 * 1024
BEHIND_RUNS_MAX = 16_384
"""Number of runs that are committed and not sent yet, at most: a link keeps its backlog in the
journal, an instance would keep it in memory."""
BATCH_BYTES = 512 * 1024

_UNAVAILABLE = int(Kind.UNAVAILABLE)


class DirectLinkPolicy:
    """Decides when to ask a link for its connection, and keeps the runs that are committed while it
    is asked.

    Invariant: the runs that `taken` returns follow, without a gap, those that the link has sent.
    Owner: the instance, for each of its links. Lifecycle: as long as the link's supervisor; `ended`
    is called with each connection's end.

    Args:
        is_allowed: False: the link is never asked.
        pause_us_min: microseconds for which a link must be caught up before it is asked; doubled
            after each failure.
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
        """Returns whether the link is to be asked for its connection now. To be called
        regularly."""
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
        """Takes committed runs: while the link is being asked, they are kept for `taken`."""
        if self._kept is None:
            return
        self._kept += runs
        self._kept_bytes += sum(len(run.payload) for run in runs)
        if self._kept_bytes > BEHIND_BYTES_MAX or len(self._kept) > BEHIND_RUNS_MAX:
            self._kept = None

    @property
    def is_asked(self) -> bool:
        """Returns whether the link was asked, and has not answered: it may have handed over its
        connection before it hears what it is told."""
        return self._is_asked

    def said(self) -> None:
        """Notes that the instance tells the link something else meanwhile: the link may hand over
        its connection before it takes that, so this hand-over must fail."""
        self._kept = None

    def kept(self, now_us: int, *, for_good: bool) -> None:
        """Notes that the link keeps its connection: it is busy, or (`for_good`) cannot hand over a
        connection of this kind."""
        self._is_asked = False
        self._kept = None
        self._later(now_us)
        if for_good:
            self._due_us = None
            self._is_allowed = False

    def taken(self, cursor: int, now_us: int) -> list[Run] | None:
        """Takes the connection that the link hands over, after the link has sent everything up to
        `cursor`.

        Returns:
            the runs that are committed behind `cursor`. None: the connection cannot be used
                further.
        """
        kept, self._kept = self._kept, None
        # Until `ended`, the link is not asked again: it has no connection to hand over.
        if kept is None or cursor < self._from_txid:
            return None
        behind = [run for run in kept if run.last_txid > cursor]
        if behind and behind[0].first_txid > cursor + 1:
            return None
        self._is_asked = False
        self._direct_since_us = now_us
        return behind

    def ended(self, now_us: int) -> None:
        """Notes that the connection has ended, at the link or at the instance."""
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
    """A link's machine at its instance: it is fed with committed runs instead of reading a journal.

    Invariant: the runs that are not sent yet follow the machine's cursor without a gap.
    Owner: the instance. Lifecycle: one connection; useless once `trouble` names a reason.

    Args:
        machine: the machine that has taken over the connection.
    """

    __slots__ = ("_unsent", "_unsent_bytes", "machine", "trouble")

    def __init__(self, machine: OutboundLink) -> None:
        self.machine = machine
        self.trouble = ""
        """Reason why the connection must be closed; empty while there is none."""
        self._unsent: list[Run] = []
        self._unsent_bytes = 0

    @property
    def due_us(self) -> int | None:
        """Returns the time at which `look_again` is to be called; None: nothing waits."""
        return self.machine.due_us

    def committed(self, runs: list[Run], now_us: int) -> list[LinkEffect]:
        """Takes all runs that were committed since the last call."""
        if runs:
            if not self._unsent and not self.trouble:
                if runs[0].path:
                    effects = self.machine.pass_by(runs)
                else:
                    effects = self.machine.send_new(runs[0]) if len(runs) == 1 else None
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
        """Takes an ack; see `OutboundLink.acked`.

        Raises:
            RemoteProtocolError: it is of a batch that was not sent.
        """
        effects = self.machine.acked(number, held, persisted, conflicts)
        return effects + self.go_on(now_us) if self._unsent else effects

    def notice(self, awaited: Rooted, last_txid: int, now_us: int) -> list[LinkEffect]:
        """Asks the destination about messages; see `OutboundLink.notice`."""
        return self.machine.notice(awaited, last_txid) + self.go_on(now_us)

    def look_again(self, now_us: int) -> list[LinkEffect]:
        """Sends messages that have waited long enough for another path, if `due_us` is past."""
        due_us = self.machine.due_us
        if due_us is not None and due_us <= now_us:
            self.machine.look_again()
        return self.go_on(now_us)

    def go_on(self, now_us: int) -> list[LinkEffect]:
        machine, effects = self.machine, []
        while self._unsent and machine.wants and not self.trouble:
            taken = self._next() if self._unsent_bytes >= BATCH_BYTES else self._unsent.copy()
            before = machine.cursor
            if taken[0].first_txid > before + 1 or _UNAVAILABLE in [run.kind for run in taken]:
                self.trouble = "the next messages are in the journal only"
                break
            effects += machine.take(taken, now_us)
            self._forget(machine.cursor)
            if machine.cursor == before:
                break
        if self._unsent_bytes > BEHIND_BYTES_MAX or len(self._unsent) > BEHIND_RUNS_MAX:
            self.trouble = "it takes messages more slowly than they are committed"
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
