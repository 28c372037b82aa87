"""An instance's commits: at the end of a turn on its loop, or by the journal's writer thread; whom
they wake, what their failure does, and publishers that outrun the disk.

While the disk writes what is committed on the loop, the machine takes it already, and all that is
to be said of it is made, but held. Once the disk has it, all is said at once. Where the disk could
not write it, and the store could not either, the instance ends with nothing said, and begins again
from its disk.

What decides is in services/replication: where a commit is made (commit_thread.py), and what the
thread has told that the loop has not taken yet (commit_notifications.py).
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping
from typing import Any, Protocol

from raylay.services.core.feature import FeatureRegistry
from raylay.services.errors import StorageFull
from raylay.services.messages.records import Flag, Run
from raylay.services.replication.commit_notifications import CommitNotifications
from raylay.services.replication.commit_thread import CommitThread, CommitThreadPolicy
from raylay.services.server.data.disk_watch import DiskWatch
from raylay.services.server.runtime import InstanceRuntime
from raylay.services.telemetry.metrics import LatencyHistogram
from raylay.storage.journal import Journal

PROBE_S = 0.5
"""After a failed commit publishers are refused for so long; then the next publish tries again."""
UNFOLDED_BYTES_MAX = 4 * 1024 * 1024
"""A publisher is not read while more than this is committed and not folded."""
STAGED_RUNS_MAX = 1_000
"""While more are staged, no next part of a long batch is taken: what the disk has is taken at once,
in some microseconds a run."""


class WakeableLink(Protocol):
    """A link that can be woken on any thread (`LinkControl`).

    Attributes:
        woken_txid: what it was woken for last.
    """

    woken_txid: int

    @property
    def is_wakeable(self) -> bool:
        """Returns whether it can be now."""

    def wake(self, last_txid: int) -> bool:
        """Tells the link of a commit. False: it cannot."""

    def told(self, last_txid: int) -> None:
        """Tells it by a frame; on the loop."""


class PublishingClient(Protocol):
    """A publisher's connection (`ClientConnection`)."""

    def pause_reading(self, why: str) -> None:
        """Reads no more for now."""

    def resume_reading(self, why: str) -> None:
        """This is no reason any more."""


class ReadPause(Protocol):
    """Says of whom a frame was taken just now for how long it is not to be read (`Queues`)."""

    def __call__(self, *, is_link: bool) -> float:
        """In seconds; 0: it goes on."""


class Commits:
    """See the file's docstring.

    Invariant: nothing is told of a run before the journal's `committed` has named it, or `durable`
    was called for it.
    Owner: the instance's loop. Threads: `on_disk` and `failed` are called on the one that made the
    commit, all else on the loop.

    Args:
        links: by destination.
        folds: who hears that what was staged never came to be.
        staged_bytes_max: a publisher is not read while more is staged.
    """

    def __init__(
        self,
        here: InstanceRuntime,
        links: Mapping[str, WakeableLink],
        folds: FeatureRegistry,
        staged_bytes_max: int,
    ) -> None:
        self._here = here
        self._links = links
        self._folds = folds
        self._staged_bytes_max = staged_bytes_max
        self.latency = LatencyHistogram()
        self.failure: tuple[str, str] | None = None
        """Reason and sentence while nothing is taken: the journal's, or `hold`'s."""
        self._own: tuple[str, str] | None = None
        self._held: tuple[str, str] | None = None
        self.staged_bytes = 0
        self._front_log_failure = ""
        self._paused: list[PublishingClient] = []
        self.slowed_s: ReadPause | None = None
        """None: nobody is ever slowed."""
        self._slowed: dict[PublishingClient, asyncio.TimerHandle] = {}
        self._news = CommitNotifications()
        self._place = CommitThreadPolicy()
        self.watch: DiskWatch | None = None
        """Told when the disk writes; None: nobody is."""
        self._handed_txid = 0
        """The last transaction that the writer thread was given."""
        self._is_due = False
        """Whether the end of this turn commits, or hands over, what was staged in it."""
        self._is_here = False
        """Whether the commit that is being told of is made on the loop."""
        self._is_traced = False
        """Whether a sampled message is staged: its trace says when the disk had it, so nothing is
        done ahead of that."""
        self._is_prepared = False
        """Whether the machine has taken the commit that the disk is writing."""
        self._fault: Exception | None = None
        """Why what was done ahead of the disk must not come to be known."""
        self._untold: Exception | None = None
        """What came of saying what the disk has: the loop's affair, at the end of the turn."""
        self._not_disk_ns = 0
        """Of a commit's time what was spent on other work."""

    def start(self) -> None:
        """Starts the journal's threads."""
        self._journal.start(self.on_disk, self.failed)

    @property
    def _journal(self) -> Journal:
        journal: Journal = self._here.journal
        return journal

    def hold(self, why: tuple[str, str] | None) -> None:
        """Something else than the journal can take no more: nothing is taken until that is over.

        Args:
            why: reason and sentence; None: it is over.
        """
        self._held = why
        self.failure = self._own or why

    def look_at_front_log(self) -> None:
        """Reports where the front log cannot be used, or can be again. Now and then."""
        failure = self._journal.front_log_failure
        if failure == self._front_log_failure:
            return
        self._front_log_failure = failure
        if failure:
            self._here.report("front_log_failed", text=failure)
        else:
            self._here.report("front_log_recovered")

    def status(self) -> dict[str, Any]:
        """For the instance's status."""
        return {
            "commit_ms_p50": self.latency.percentile_ms(0.5),
            "commit_ms_p99": self.latency.percentile_ms(0.99),
            "staged_bytes": self.staged_bytes,
            "storage_failure": self.failure[1] if self.failure else "",
            "front_log_failure": self._journal.front_log_failure,
            "retention_held": self._journal.retention_held,
        }

    # -- staging -----------------------------------------------------------------------------
    def stage(self, run: Run) -> None:
        """Has a run committed, with what else is staged in this turn."""
        here = self._here
        size_bytes = len(run.payload)
        self.staged_bytes += size_bytes
        self._news.staged(run, here.machine.destinations)
        here.journal.keep(run)
        self._place.staged(size_bytes)
        if run.flags & Flag.TRACED:
            self._is_traced = True
        if not self._is_due:
            self._is_due = True
            here.loop.call_soon(self._end_turn)
            if here.is_resting:
                here.hurry()

    def _end_turn(self) -> None:
        self._is_due = False
        if self._fault is not None:
            return
        journal = self._here.journal
        place = self._place.choose(
            thread_idle=journal.is_thread_idle, pending=bool(self._here.machine.waiters)
        )
        watch = self.watch
        if watch is not None:
            watch.begins()
        if place is CommitThread.THREAD:
            self._is_traced = False
            self._handed_txid = self._here.machine.next_txid - 1
            journal.hand_over()
            return
        waits = self._is_traced or self.failure is not None
        self._is_here, self._is_traced = True, False
        try:
            journal.commit_here(None if waits else self)
        finally:
            self._is_here = False
            if watch is not None:
                watch.ends()
        untold, self._untold = self._untold, None
        if (error := self._fault or untold) is not None:
            raise error

    # -- while the disk writes ----------------------------------------------------------------
    def prepare(self, last_txid: int) -> None:
        """See `Ahead.prepare`: what is said of the commit is made, and held."""
        here = self._here
        began_ns = time.perf_counter_ns()
        self._is_prepared = True
        here.outbox.hold()
        for name in self._news.due(last_txid):
            # It is about to be, or, where that cannot be, told: nobody else need tell it.
            self._links[name].woken_txid = last_txid
        try:
            here.steps.perform_ahead(here.machine.committed(last_txid, here.steady_us()))
        except BaseException as error:
            fault = RuntimeError(f"what the disk writes was not taken: {error!r}")
            fault.__cause__ = error
            self._give_up(fault)
        self._not_disk_ns = time.perf_counter_ns() - began_ns

    def durable(self) -> None:
        """See `Ahead.durable`: what was held is said."""
        if self._is_prepared and self._fault is None and self._here.outbox.is_held:
            began_ns = time.perf_counter_ns()
            try:
                self._here.outbox.release()
            except Exception as error:
                self._untold = error
            self._not_disk_ns += time.perf_counter_ns() - began_ns

    def _give_up(self, error: Exception) -> None:
        """The machine is ahead of the disk, or half way there, and nobody was told anything: the
        loop ends the instance at the end of this turn, and it begins again from its disk."""
        self._fault = error
        self._here.freeze()

    def check_staged(self, client: PublishingClient) -> None:
        """Reads no more from a publisher that outruns the disk, or the folds."""
        unfolded = self._folds.unfolded
        if self.staged_bytes > self._staged_bytes_max or (
            unfolded and unfolded.waiting_bytes > UNFOLDED_BYTES_MAX
        ):
            client.pause_reading("staged")
            self._paused.append(client)
        self.check_slowed(client, is_link=False)

    def check_slowed(self, connection: PublishingClient, *, is_link: bool) -> None:
        """Reads no more for a while from who has brought what waits in memory for long."""
        if self.slowed_s is None or not (wait_s := self.slowed_s(is_link=is_link)):
            return
        if connection in self._slowed:
            self._slowed.pop(connection).cancel()
        else:
            connection.pause_reading("slowed")
        again = self._here.loop.call_later(wait_s, self._read_again, connection)
        self._slowed[connection] = again

    def _read_again(self, connection: PublishingClient) -> None:
        del self._slowed[connection]
        connection.resume_reading("slowed")

    @property
    def takes_parts(self) -> bool:
        """True where the next part of a long batch may be taken."""
        return len(self._here.machine.intake.staged) <= STAGED_RUNS_MAX

    @property
    def disk_waits_ms(self) -> int:
        """Time for which the disk has not answered by now."""
        return 0 if self.watch is None else int(1000 * self.watch.waits_s)

    # -- what the journal says ---------------------------------------------------------------
    def on_disk(self, last_txid: int, commit_ns: int) -> None:
        """Everything up to here is committed."""
        if self._is_prepared:
            commit_ns = max(0, commit_ns - self._not_disk_ns)
        self.latency.record(commit_ns)
        self._place.took(commit_ns)
        if self.watch is not None and not self._is_here:
            self.watch.ends(writes_more=last_txid < self._handed_txid)
        calls, woken = self._news.committed(last_txid)
        if calls and not self._is_here:
            self._call(self._take)
        # While this process's own loop is still waking up, or before it does anything else.
        for name in woken:
            link = self._links[name]
            if not link.wake(last_txid) and self._is_prepared:
                link.told(last_txid)
        if self._is_here:
            self._take()

    def failed(self, first_txid: int, error: Exception) -> None:
        """Nothing from here on is, or will be, committed under these transaction ids."""
        if self.watch is not None:
            self.watch.ends()
        if self._is_prepared:
            if self._fault is None:
                self._give_up(error)
        elif self._is_here:
            self._take_failed(first_txid, error)
        else:
            self._call(self._take_failed, first_txid, error)

    def _call(self, work: Any, *arguments: Any) -> None:
        try:
            self._here.loop.call_soon_threadsafe(work, *arguments)
        except RuntimeError:
            pass  # the loop is closed: nobody is left to be told

    # -- on the loop -------------------------------------------------------------------------
    def wakeable_changed(self) -> None:
        """A link can be woken on any thread now, or no more."""
        links = self._links
        self._news.wakeable = tuple(name for name, link in links.items() if link.is_wakeable)

    def catch_up(self) -> None:
        """Before a link's answer is taken: it may be for a commit that this loop has not taken."""
        if self._news.is_ahead(self._here.machine.committed_txid):
            self._take()

    def _take(self) -> None:
        here = self._here
        last_txid = self._news.take(here.machine.committed_txid)
        if self._is_prepared:
            if self._fault is None:
                # Where the store took what the front could not, nothing was released before.
                self.durable()
                self._is_prepared = False
                here.outbox.await_flush()
                try:
                    here.steps.catch_up()
                finally:
                    here.outbox.flush()
            return
        if not last_txid:
            return
        if self._own is not None:
            self._probe()
            here.report("storage_recovered")
        here.outbox.await_flush()
        try:
            here.perform(here.machine.committed(last_txid, here.steady_us()))
        finally:
            here.outbox.flush()

    def taken(self, runs: list[Run]) -> None:
        """These are staged no more."""
        for run in runs:
            self.staged_bytes -= len(run.payload)
        if self._paused:
            self.folded()

    def folded(self) -> None:
        """More is folded: who was not read may be again."""
        if not self._paused or self.staged_bytes >= self._staged_bytes_max // 2:
            return
        unfolded = self._folds.unfolded
        if not unfolded or unfolded.waiting_bytes < UNFOLDED_BYTES_MAX // 2:
            self._resume()

    def _resume(self) -> None:
        paused, self._paused = self._paused, []
        for client in paused:
            client.resume_reading("staged")

    def _take_failed(self, first_txid: int, error: Exception) -> None:
        here = self._here
        reason = "storage_full" if isinstance(error, StorageFull) else "storage_error"
        self.failure = self._own = reason, str(error)
        self._news.failed()
        self._resume()
        now_us = here.steady_us()
        here.perform(here.machine.append_failed(first_txid, reason, str(error), now_us))
        self.staged_bytes = 0
        self._folds.failed(here.machine.committed_txid)
        here.outbox.flush()
        here.loop.call_later(PROBE_S, self._probe)

    def _probe(self) -> None:
        """Lets publishes through again: the next one shows whether there is space."""
        self._own = None
        self.failure = self._held
