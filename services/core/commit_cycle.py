"""The order of a commit, from the run that is staged to the folds of what is on the disk.

1. A run is *staged*: what it will wake is noted before the journal has the run.
2. At the end of its turn the event loop commits what was staged in it, or hands it to the journal's
   writer thread (services/replication/commit_thread.py).
3. Where the loop commits and the disk can be left to write meanwhile, the machine takes the commit
   already, and what is said of it is made and *held*. Once the disk has it, all of that is
   written. Where the disk fails behind that, the machine is ahead of the disk: the instance ends
   with nothing said, and begins again from its disk.
4. The commit is on the disk: the links of sync destinations that wait for it are woken, on the
   thread that made it.
5. The loop takes it: the machine's effects are performed (other links are told, then acks go out),
   they are written, and only then the features fold it (services/core/effect_loop.py).
6. Nothing that a link reports is taken before the commits that it may be about: `take_report`,
   `catch_up`.

A commit that fails goes the same way: the machine undoes what was staged, publishers are told, and
the features hear of it last.

The server and the simulator both run this class; what differs between them is the disk, the loop
and the network, which are handed in. What decides is in services/replication.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Protocol

from raylay.services.core.feature import FeatureRegistry
from raylay.services.errors import StorageFull
from raylay.services.messages.records import Flag, Run
from raylay.services.replication.acknowledgment import DestinationLedger
from raylay.services.replication.commit_notifications import CommitNotifications
from raylay.services.replication.commit_thread import CommitThread, CommitThreadPolicy
from raylay.services.replication.effects import (
    Effect,
    LinkAnswered,
    LinkLacks,
    LinkReport,
    RunsCommitted,
)
from raylay.services.replication.instance import InstanceMachine

PROBE_S = 0.5
"""Seconds for which publishes are refused after a failed commit; then the next publish tries
again."""


class StagedJournal(Protocol):
    """The journal, as far as a commit uses it (storage/journal.py)."""

    def keep(self, run: Run) -> None:
        """Takes a run without giving it to the writer thread."""

    def hand_over(self) -> None:
        """Gives the kept runs to the writer thread."""

    @property
    def is_thread_idle(self) -> bool:
        """Returns whether the writer thread has nothing to commit, and nothing to drop."""

    def commit_here(self, ahead: CommitCycle | None = None) -> None:
        """Commits the kept runs on this thread. Calls `prepare` and `durable` of `ahead` where work
        can be done while the disk writes, and `on_disk` or `failed` before it returns."""


class EventLoop(Protocol):
    """The event loop of the instance."""

    def call_soon(self, work: Callable[[], None], /) -> object:
        """Schedules a call at the end of this turn."""

    def call_soon_threadsafe(self, work: Callable[..., None], /, *arguments: Any) -> object:
        """Schedules a call in another turn, from any thread.

        Raises:
            RuntimeError: the loop is closed.
        """

    def call_later(self, delay_s: float, work: Callable[[], None], /) -> object:
        """Schedules a call after a number of seconds."""


class CommitOutbox(Protocol):
    """Collects the data to be written to clients and links."""

    @property
    def is_held(self) -> bool:
        """Returns whether writes are held."""

    def hold(self) -> None:
        """Holds all writes until `release`, or `drop`."""

    def release(self) -> None:
        """Writes the held data."""

    def await_flush(self) -> None:
        """Announces that the caller calls `flush` before it returns."""

    def flush(self) -> None:
        """Writes all collected data, unless it is held."""


class StepPerformer(Protocol):
    """Performs the machine's effects (`EffectLoop`)."""

    def perform(self, effects: list[Effect], /) -> None:
        """Performs a step's effects in order, and folds the runs that it committed."""

    def perform_ahead(self, effects: list[Effect], /) -> None:
        """Performs the effects of a commit that the disk is still writing."""

    def catch_up(self) -> None:
        """Folds the runs that are not folded yet."""


class CommitRuntime(Protocol):
    """The process of an instance, as far as a commit uses it (`InstanceRuntime`)."""

    @property
    def loop(self) -> EventLoop:
        """Returns the event loop of the instance."""

    @property
    def outbox(self) -> CommitOutbox:
        """Returns the outbox, which collects the data to be written."""

    def steady_us(self) -> int:
        """Returns the time by the steady clock, in microseconds; ages are measured by it."""

    def report(self, event: str) -> None:
        """Reports an event."""

    def freeze(self) -> None:
        """Ends the cycle: nothing is sent, performed or folded any more."""


class CommittingInstance(Protocol):
    """One life of an instance, as far as a commit uses it (`RecoveredInstance`)."""

    @property
    def journal(self) -> StagedJournal:
        """Returns the journal that commits the runs."""

    @property
    def machine(self) -> InstanceMachine:
        """Returns the machine, which decides what a commit means."""

    @property
    def steps(self) -> StepPerformer:
        """Returns the performer of the machine's effects."""


class WakeableLink(Protocol):
    """A link that can be woken on any thread.

    Attributes:
        woken_txid: the last transaction for which the link was woken.
    """

    woken_txid: int

    @property
    def is_wakeable(self) -> bool:
        """Returns whether the link can be woken now."""

    def wake(self, last_txid: int) -> bool:
        """Wakes the link for a commit, on the thread that made the commit. Returns False where it
        could not."""

    def told(self, last_txid: int) -> None:
        """Notifies the link of a commit by a frame, on the loop."""


class DirectLinkFeed(Protocol):
    """Feeds a link whose connection the instance writes itself."""

    def committed(self, runs: list[Run]) -> bool:
        """Sends the committed runs. Returns False where the link must be notified instead."""


class NotifiedLink(WakeableLink, Protocol):
    """A link that the loop tells of a commit."""

    @property
    def is_connected(self) -> bool:
        """Returns whether the link's destination is connected."""

    @property
    def direct_link(self) -> DirectLinkFeed:
        """Returns the feed of a direct link."""

    def told_later(self, last_txid: int) -> None:
        """Notifies the link soon."""


class CommitWatch(Protocol):
    """A listener that is told when the disk writes."""

    def begins(self) -> None:
        """Notes that the disk begins to write."""

    def ends(self, *, writes_more: bool = False) -> None:
        """Notes that a commit is on the disk, or has failed; `writes_more`: the next one
        follows."""


class CommitCycle:
    """Takes runs through a commit, in the order that the module docstring gives.

    Invariant: nothing is told of a run before the journal's `committed` has named it, or `durable`
    was called for it.
    Owner: the instance's loop. Threads: `on_disk` and `failed` are called on the one that made the
    commit, all else on the loop. Lifecycle: one life of the instance.

    Args:
        links: the links, by destination.
        folds: the features, which are called when staged runs could not be written.
        clock_ns: clock in nanoseconds, which measures how long the disk takes.
        took: called with the nanoseconds of each commit, on the thread that made it.
        undone: called before publishers are told that a commit failed.
        watch: is called when the disk writes; None: no part needs that.

    Attributes:
        failure: reason and sentence while no publish is taken: the journal's, or that of `hold`.
        staged_bytes: payload bytes that are staged and not committed.
    """

    def __init__(
        self,
        runtime: CommitRuntime,
        instance: CommittingInstance,
        links: Mapping[str, WakeableLink],
        folds: FeatureRegistry,
        *,
        clock_ns: Callable[[], int],
        took: Callable[[int], None],
        undone: Callable[[], None],
        watch: CommitWatch | None = None,
        notifications: CommitNotifications | None = None,
        policy: CommitThreadPolicy | None = None,
    ) -> None:
        self._runtime = runtime
        self._instance = instance
        self._links = links
        self._folds = folds
        self._clock_ns = clock_ns
        self._took = took
        self._undone = undone
        self._notifications = notifications or CommitNotifications()
        self._policy = policy or CommitThreadPolicy()
        self.failure: tuple[str, str] | None = None
        self._own: tuple[str, str] | None = None
        self._held: tuple[str, str] | None = None
        self.staged_bytes = 0
        self._watch = watch
        self._handed_txid = 0
        """The last transaction that was given to the writer thread."""
        self._is_due = False
        """Whether the end of this turn commits the staged runs, or hands them over."""
        self._is_here = False
        """Whether the current commit is made on the loop."""
        self._is_traced = False
        """Whether a sampled message is staged: its trace records when it was on disk, so nothing is
        done ahead of the disk."""
        self._is_prepared = False
        """Whether the machine has already taken the commit that the disk is writing."""
        self._fault: Exception | None = None
        """Error for which the work done ahead of the disk must not be sent."""
        self._untold: Exception | None = None
        """Error in sending what is on the disk: the loop raises it at the end of the turn."""
        self._not_disk_ns = 0
        """Nanoseconds of a commit that were spent on other work."""

    def hold(self, why: tuple[str, str] | None) -> None:
        """Refuses publishes as long as another part than the journal has no room.

        Args:
            why: reason and sentence; None: publishes are taken again.
        """
        self._held = why
        self.failure = self._own or why

    # -- staging, and the end of a turn --------------------------------------------------------
    def stage(self, run: Run) -> None:
        """Stages a run, to be committed with the others of this turn."""
        runtime = self._runtime
        size_bytes = len(run.payload)
        self.staged_bytes += size_bytes
        if self._notifications.wakeable:
            self._notifications.staged(run, self._instance.machine.destinations)
        self._instance.journal.keep(run)
        self._policy.staged(size_bytes)
        if run.flags & Flag.TRACED:
            self._is_traced = True
        if not self._is_due:
            self._is_due = True
            runtime.loop.call_soon(self._end_turn)

    def _end_turn(self) -> None:
        self._is_due = False
        if self._fault is not None:
            return
        machine, journal = self._instance.machine, self._instance.journal
        place = self._policy.choose(
            thread_idle=journal.is_thread_idle, pending=bool(machine.waiters)
        )
        watch = self._watch
        if watch is not None:
            watch.begins()
        if place is CommitThread.THREAD:
            self._is_traced = False
            self._handed_txid = machine.next_txid - 1
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

    # -- while the disk writes -----------------------------------------------------------------
    def prepare(self, last_txid: int) -> None:
        """Takes a commit that the disk is still writing: its effects are performed, and everything
        to be sent is held."""
        runtime = self._runtime
        began_ns = self._clock_ns()
        self._is_prepared = True
        runtime.outbox.hold()
        for name in self._notifications.due(last_txid):
            # These links are about to be woken, or, where they cannot be, notified: nothing else
            # needs to notify them.
            self._links[name].woken_txid = last_txid
        try:
            self._instance.steps.perform_ahead(
                self._instance.machine.committed(last_txid, runtime.steady_us())
            )
        except BaseException as error:
            fault = RuntimeError(f"what the disk writes was not taken: {error!r}")
            fault.__cause__ = error
            self._give_up(fault)
        self._not_disk_ns = self._clock_ns() - began_ns

    def durable(self) -> None:
        """Sends the held data, because the disk has the prepared commit."""
        if self._is_prepared and self._fault is None and self._runtime.outbox.is_held:
            began_ns = self._clock_ns()
            try:
                self._runtime.outbox.release()
            except Exception as error:
                self._untold = error
            self._not_disk_ns += self._clock_ns() - began_ns

    def _give_up(self, error: Exception) -> None:
        """Ends the instance at the end of this turn, because the machine is ahead of the disk.
        Nothing was sent, and the instance begins again from its disk."""
        self._fault = error
        self._runtime.freeze()

    # -- called by the journal, on the thread that commits ----------------------------------------
    def on_disk(self, last_txid: int, commit_ns: int) -> None:
        """Notes that everything up to this transaction id is committed."""
        if self._is_prepared:
            commit_ns = max(0, commit_ns - self._not_disk_ns)
        self._took(commit_ns)
        self._policy.took(commit_ns)
        if self._watch is not None and not self._is_here:
            self._watch.ends(writes_more=last_txid < self._handed_txid)
        calls, woken = self._notifications.committed(last_txid)
        if calls and not self._is_here:
            self._call(self._take)
        # While this process's own loop is still waking up, or before it does anything else.
        for name in sorted(woken):
            link = self._links[name]
            if not link.wake(last_txid) and self._is_prepared:
                link.told(last_txid)
        if self._is_here:
            self._take()

    def failed(self, first_txid: int, error: Exception) -> None:
        """Notes that no run from this transaction id on is committed, or ever will be."""
        if self._watch is not None:
            self._watch.ends()
        if self._is_prepared:
            if self._fault is None:
                self._give_up(error)
        elif self._is_here:
            self._take_failed(first_txid, error)
        else:
            self._call(self._take_failed, first_txid, error)

    def _call(self, work: Callable[..., None], *arguments: Any) -> None:
        try:
            self._runtime.loop.call_soon_threadsafe(work, *arguments)
        except RuntimeError:
            pass  # the loop is closed, so nothing can be told

    # -- on the loop ---------------------------------------------------------------------------
    def wakeable_changed(self) -> None:
        """Notes that a link can be woken on any thread from now on, or cannot any more."""
        links = self._links
        wakeable = tuple(name for name, link in links.items() if link.is_wakeable)
        self._notifications.wakeable = wakeable

    @property
    def is_behind(self) -> bool:
        """Returns whether the machine has not taken all commits yet."""
        return self._notifications.is_ahead(self._instance.machine.committed_txid)

    def take_report(
        self,
        destination: str,
        report: LinkReport,
        *,
        is_direct: bool = False,
    ) -> None:
        """Takes a link's report about its destination, after the commits to which it may refer.

        Args:
            is_direct: whether the report comes over a direct link, which only got runs that this
                loop has taken. It may come in the middle of a step, so no further commit is taken
                before it.
        """
        machine = self._instance.machine
        if not is_direct and self._notifications.is_ahead(machine.committed_txid):
            self._take()
        effects: list[Effect]
        if isinstance(report, LinkAnswered):
            effects = machine.link_answered(destination, report.persisted, report.conflicts)
        elif isinstance(report, LinkLacks):
            effects = machine.link_lacks(destination, report.ranges)
        else:
            effects = machine.link_progressed(
                destination,
                report.stored_txid,
                report.resending,
                report.caught_up,
                report.skipped,
                self._runtime.steady_us(),
            )
        self._instance.steps.perform(effects)

    def catch_up(self) -> None:
        """Takes all commits, before anything is taken that may refer to them."""
        if self._notifications.is_ahead(self._instance.machine.committed_txid):
            self._take()

    def _take(self) -> None:
        runtime = self._runtime
        last_txid = self._notifications.take(self._instance.machine.committed_txid)
        if self._is_prepared:
            if self._fault is None:
                # Where the store took a commit that the front log could not, nothing was released
                # before.
                if runtime.outbox.is_held:
                    self.durable()
                self._is_prepared = False
                runtime.outbox.await_flush()
                try:
                    self._instance.steps.catch_up()
                finally:
                    runtime.outbox.flush()
            return
        if not last_txid:
            return
        if self._own is not None:
            self._probe()
            runtime.report("storage_recovered")
        runtime.outbox.await_flush()
        try:
            self._instance.steps.perform(
                self._instance.machine.committed(last_txid, runtime.steady_us())
            )
        finally:
            runtime.outbox.flush()

    def _take_failed(self, first_txid: int, error: Exception) -> None:
        runtime = self._runtime
        reason = "storage_full" if isinstance(error, StorageFull) else "storage_error"
        self.failure = self._own = reason, str(error)
        self._notifications.failed()
        self._undone()
        machine, now_us = self._instance.machine, runtime.steady_us()
        self._instance.steps.perform(machine.append_failed(first_txid, reason, str(error), now_us))
        self.staged_bytes = 0
        self._folds.failed(machine.committed_txid)
        runtime.outbox.flush()
        runtime.loop.call_later(PROBE_S, self._probe)

    def _probe(self) -> None:
        """Accepts publishes again: the next one shows whether there is space."""
        self._own = None
        self.failure = self._held


def notify_links(
    links: Mapping[str, NotifiedLink],
    ledgers: Mapping[str, DestinationLedger],
    effect: RunsCommitted,
) -> None:
    """Notifies links of a commit that the loop took, each in one of four ways. A direct link sends
    the runs at once. A link that was woken for the commit knows it already. A link to whose
    destination nothing of it is routed only needs to move on, so that the journal can be removed,
    and is notified soon: each notification wakes a process. All others are notified now."""
    runs, last_txid = effect.runs, effect.last_txid
    for name, link in links.items():
        if not link.is_connected or link.direct_link.committed(runs):
            continue
        if link.woken_txid >= runs[-1].last_txid:
            continue
        routed, incarnation = ledgers[name].router.routed, ledgers[name].incarnation
        for run in runs:
            if routed(run, incarnation):
                link.told(last_txid)
                break
        else:
            link.told_later(last_txid)
