"""The runtime of a simulated instance's commits: the turns of its loop, what it says to others,
and its disk. The order in which these are used is that of production (`CommitCycle`)."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from raylay.services.core.commit_cycle import CommitCycle
from raylay.services.errors import StorageError
from raylay.services.messages.records import Run
from raylay.services.replication.instance import InstanceMachine
from sim import queues

if TYPE_CHECKING:
    from sim.instance import Instance

TURN_US = 50
"""Turn of a loop that commits itself, from the first message staged in it to its end."""
BUSY_CHANCE = 0.1
"""Chance of an instance's loop being busy with something else when it is called."""


class SimLoop:
    """The event loop of an instance: nothing of it happens once the instance is dead."""

    def __init__(self, instance: Instance) -> None:
        self._instance = instance
        self._world = instance.world
        self._called_us = 0
        self.calls = 0
        """Calls of other threads that are on their way."""

    def call_soon(self, work: Callable[[], None]) -> None:
        """The end of a turn."""
        self._world.after(TURN_US if self._world.slow_commit_ns else 0, self._turn_ends, work)

    def _turn_ends(self, work: Callable[[], None]) -> None:
        if self._instance.alive:
            try:
                work()
            except StorageError:
                # What the loop does with it: the instance ends, which `freeze` did.
                if self._instance.alive:
                    raise

    def call_soon_threadsafe(self, work: Callable[..., None], *arguments: Any) -> None:
        """The writer thread's callback reaches the loop a little later, in order; where the loop
        is busy, behind other commits."""
        world = self._world
        delay_us = world.drawn(world.timing.local_us)
        if world.rng.random() < BUSY_CHANCE and not world.healed:
            delay_us += world.drawn(world.timing.busy_us)
        self._called_us = max(self._called_us, world.now_us + delay_us)
        self.calls += 1
        world.at(self._called_us, self._called, work, arguments)

    def _called(self, work: Callable[..., None], arguments: tuple[Any, ...]) -> None:
        self.calls -= 1
        if self._instance.alive:
            work(*arguments)

    def call_later(self, delay_s: float, work: Callable[[], None]) -> None:
        """A timer."""
        self._world.after(int(delay_s * 1e6), self._due, work)

    def _due(self, work: Callable[[], None]) -> None:
        if self._instance.alive:
            work()


class SimOutbox:
    """The outbox of an instance: what it says to others is said at once, unless it is held."""

    def __init__(self) -> None:
        self.is_held = False
        self._held: list[tuple[Callable[[Any], None], Any]] = []

    def saying(self, perform: Callable[[Any], None]) -> Callable[[Any], None]:
        """Keeps what an effect says until it may be said."""

        def say(effect: Any) -> None:
            if self.is_held:
                self._held.append((perform, effect))
            else:
                perform(effect)

        return say

    def hold(self) -> None:
        """Collects all that is said from now on."""
        self.is_held = True

    def release(self) -> None:
        """Says what was held, in its order."""
        self.is_held = False
        held, self._held = self._held, []
        for perform, effect in held:
            perform(effect)

    def drop(self) -> None:
        """Says nothing of what was held, and nothing any more."""
        self.is_held = True
        self._held.clear()

    def await_flush(self) -> None:
        """The network has its own delays."""

    def flush(self) -> None:
        """Does nothing: all that is not held was said at once."""


class SimJournal:
    """The disk as an instance sees it: the writer thread takes its time, and the history hears of
    all that is on the disk, before anybody else does."""

    def __init__(self, instance: Instance) -> None:
        self._instance = instance
        self._world = instance.world
        self._journal = instance.journal
        self._is_here = False
        """Whether the loop commits."""
        self._is_due = False
        """Whether the writer thread is about to commit."""
        self._took_us = 0
        self.staged: deque[Run] = deque()
        """Runs that are not on the disk."""

    def start(self) -> None:
        """Its commits are told of."""
        self._journal.start(self._on_disk, self._failed)

    def keep(self, run: Run) -> None:
        """See `Journal.keep`."""
        self._journal.keep(run)
        self.staged.append(run)

    @property
    def is_thread_idle(self) -> bool:
        """See `Journal.is_thread_idle`."""
        return self._journal.is_thread_idle

    def hand_over(self) -> None:
        """The writer thread comes to it a little later."""
        world = self._world
        world.probes["commit handed to the writer thread"] += 1
        self._journal.hand_over()
        if not self._is_due:
            self._is_due = True
            self._took_us = world.drawn(world.timing.commit_us)
            world.after(self._took_us, self._commit)

    def _commit(self) -> None:
        self._is_due = False
        if not self._instance.alive:
            return
        if self._world.has_letters and not self._journal.is_thread_idle:
            # The thread may take what is handed over while it is.
            self._journal.commit(runs_max=1)
            if not self._journal.is_thread_idle:
                self._is_due = True
                self._world.after(self._took_us, self._commit)
            return
        self._journal.commit()

    def commit_here(self, ahead: CommitCycle | None = None) -> None:
        """The loop commits itself."""
        self._world.probes["commit at the end of the turn"] += 1
        self._is_here = True
        self._journal.commit_here(None if ahead is None else _DiskWait(self, ahead))
        self._is_here = False

    def log_up_to(self, last_txid: int) -> None:
        """Tells the history of what is on the disk."""
        run = None
        while self.staged and self.staged[0].last_txid <= last_txid:
            run = self.staged.popleft()
            self._instance.log_on_disk(run)
        if run is not None and self._world.has_letters:
            queues.log_committed(self._instance, run)

    def _on_disk(self, last_txid: int, _: int) -> None:
        self.log_up_to(last_txid)
        took_us = 0 if self._is_here else self._took_us
        self._instance.commits.on_disk(last_txid, 1000 * took_us)

    def _failed(self, first_txid: int, error: Exception) -> None:
        world, commits = self._world, self._instance.commits
        world.probes["commit failure"] += 1
        if self._instance.runtime.outbox.is_held:
            world.probes["commit failure ahead of the disk"] += 1
        else:
            if commits.is_behind:
                world.probes["commit failure behind a commit that is not taken"] += 1
            if self._is_here:
                world.probes["commit failure at the end of a turn"] += 1
        self.staged.clear()
        commits.failed(first_txid, error)


class _DiskWait:
    """The work done while the disk writes a commit: the history hears first that it is on the
    disk."""

    def __init__(self, journal: SimJournal, ahead: CommitCycle) -> None:
        self._journal = journal
        self._ahead = ahead
        self._last_txid = 0

    def prepare(self, last_txid: int) -> None:
        """The disk writes."""
        self._last_txid = last_txid
        self._ahead.prepare(last_txid)

    def durable(self) -> None:
        """The disk has it."""
        self._journal.log_up_to(self._last_txid)
        self._ahead.durable()


class SimRuntime:
    """One life of an instance, as far as its commits go (`CommitRuntime`)."""

    def __init__(self, instance: Instance) -> None:
        self._instance = instance
        self.journal = SimJournal(instance)
        self.loop = SimLoop(instance)
        self.outbox = SimOutbox()

    @property
    def machine(self) -> InstanceMachine:
        """Decides what a commit means."""
        return self._instance.machine

    @property
    def steps(self) -> Instance:
        """Performs what the machine asks for."""
        return self._instance

    def steady_us(self) -> int:
        """The steady clock of this life."""
        return self._instance.now_us

    def report(self, event: str) -> None:
        """Tells people."""
        self._instance.world.probes[event.replace("_", " ")] += 1

    def freeze(self) -> None:
        """The machine is ahead of the disk: the instance ends, with nothing said, and is started
        again."""
        self.outbox.drop()
        world = self._instance.world
        world.crash(self._instance.name, down_us=world.timing.dial_us)
