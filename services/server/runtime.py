"""The runtime that all parts of an instance's server share: its loop and outbox, clocks, threads
and tasks, and its reports. It is complete when it is made, before any file is opened; the opened
stores and the machine are in recovered_instance.py.

A part is handed the runtime and the parts that it calls, never the server that put them together.
"""

from __future__ import annotations

import asyncio
import time
import traceback
from collections import Counter
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any, TypeVar

from raylay.services.config.instance import InstanceConfig
from raylay.services.errors import StorageError, UnfinishedStep
from raylay.services.messages.aging_clock import AgingClock
from raylay.services.net.framed import WriteQueue
from raylay.services.server.event_log import EventLog
from raylay.services.server.occurrences import Occurrences
from raylay.services.telemetry import logs

Result = TypeVar("Result")
FAULT_CHARACTERS_MAX = 500
"""Length to which the text of a fault is cut: it may contain a peer's data."""
PLACES_TOLD = 3
"""Number of calls that led to a fault which are reported with it."""
_TREE = f"{Path(__file__).parents[2]}/"

READING_US = 50
"""Longest time, in microseconds, between two readings that count as close together."""
READINGS_MAX = 20
"""Most times that two clocks are read to find readings that are close together."""


class RecurringTask:
    """Work that is repeated at multiples of an interval since the instance began.

    Owner: the instance's runtime. Lifecycle: made on the loop; until `cancel`.

    Attributes:
        is_pausing: whether the next time is more than an interval away.
    """

    def __init__(
        self,
        runtime: InstanceRuntime,
        began_s: float,
        interval_s: float,
        work: Callable[[], None],
        pause: Callable[[], int],
    ) -> None:
        self._runtime = runtime
        self._began_s = began_s
        self._interval_s = interval_s
        self._work = work
        self._pause = pause
        self.is_pausing = False
        self._set(self._passed() + 1)

    def _passed(self) -> int:
        return int((self._runtime.loop.time() - self._began_s) / self._interval_s)

    def _set(self, times: int) -> None:
        self._times = times
        self._timer = self._runtime.loop.call_at(
            self._began_s + times * self._interval_s, self._again
        )

    def _again(self) -> None:
        runtime = self._runtime
        if runtime.is_stopping:
            return
        # A timer may be early; missed times are not made up for.
        passed = max(self._times, self._passed())
        # The work may report an event, and an event makes `hurry` set a timer for each task that
        # pauses. The timer of this task has just fired, so `hurry` could not cancel it, and the
        # task would have two timers for as long as the instance lives.
        self.is_pausing = False
        try:
            self._work()
        finally:
            # Asked after the work, which has found whether there is any activity.
            intervals = self._pause()
            self.is_pausing = intervals > 1
            if self.is_pausing != runtime.is_resting:
                runtime.pauses_changed()
            self._set((passed // intervals + 1) * intervals)

    def hurry(self) -> None:
        if self.is_pausing:
            self.is_pausing = False
            self._timer.cancel()
            self._set(self._passed() + 1)

    def cancel(self) -> None:
        """Cancels the task: its work is not repeated any more."""
        self._timer.cancel()


def clock_difference_us(one_us: Callable[[], int], other_us: Callable[[], int]) -> int:
    """Returns the microseconds by which one clock is ahead of another one.

    The process may lose the processor for a second between two readings, and that second would
    count as a difference. The clocks are therefore read again until two readings are close
    together; after `READINGS_MAX` attempts the closest two count.
    """
    closest_us, found_us = 1 << 62, 0
    for _ in range(READINGS_MAX):
        before_us = other_us()
        value_us = one_us()
        took_us = other_us() - before_us
        if took_us < closest_us:
            closest_us, found_us = took_us, value_us - before_us - took_us // 2
        if took_us <= READING_US:
            break
    return found_us


def _monotonic_us() -> int:
    return time.monotonic_ns() // 1000


class InstanceRuntime:
    """See the file's docstring. Its values are plain attributes, so that reading them costs no call
    on the path of a message.

    Owner: the instance's event loop, on which it is made; `now_us`, `steady_us` and `in_thread`'s
    work run on any thread. Lifecycle: one life of the instance; `cancel_timers` and `cancel_tasks`
    at the end.

    Args:
        config: the instance's name and configuration.
        directory: the instance's data directory.
    """

    def __init__(self, config: InstanceConfig, directory: str | Path) -> None:
        self.config = config
        self.directory = Path(directory).absolute()
        self.loop = asyncio.get_running_loop()
        self.outbox = WriteQueue(self.loop)
        self.client_address = ""
        self.replication_address = ""
        self.unix_path = ""
        """Path at which the instance's child processes connect; empty: it does not listen yet."""
        self.is_serving = False
        self.is_stopping = False
        self.phase = "not started"
        """Present phase of the instance's work, for people."""
        self.retirement = ""
        """Reason why the data directory is retired; empty: it is not."""
        self.events_log = EventLog(logs.get("instance"))
        self.occurrences = Occurrences()
        self.faults_contained = 0
        """Number of faults in the handler of a frame that ended only the frame's connection."""
        self.shares_reached: Counter[str] = Counter()
        """Number of connections, by limit, that were refused or ended because one user, one address
        or all together exceeded a share."""
        self.clock_offset_us = 0
        """Offset by which a drill has set the clock."""
        self._ended: asyncio.Future[None] = self.loop.create_future()
        self.is_resting = False
        """Whether a recurring task is in a longer pause, because there is no activity (`every`)."""
        self._recurring: list[RecurringTask] = []
        self._stopped_by_fault: list[Callable[[], None]] = []
        self._began_s = self.loop.time()
        self._tasks: set[asyncio.Task[Any]] = set()
        self.steady_base_us = clock_difference_us(self.now_us, _monotonic_us)
        """Lead of `steady_us` over the monotonic clock of the host."""
        # The wall clock shows the same time: the steady clock has just been set by it.
        begun_us = self.steady_us()
        self.aging = AgingClock(begun_us, begun_us)

    def begin(self) -> None:
        """Takes over the handling of errors on the loop."""
        self.loop.set_exception_handler(self._loop_exception)

    def at_fault(self, stop: Callable[[], None]) -> None:
        """Has a function called when a fault freezes the instance."""
        self._stopped_by_fault.append(stop)

    def report(self, event: str, **details: Any) -> None:
        self.events_log.add(event, details)
        if self.is_resting:
            self.hurry()

    def over_share(self, kind: str, limit: str, **details: Any) -> None:
        """Counts and reports a connection that was refused, or ended, because it exceeded a share.

        Args:
            kind: the kind of its transport, `client` or `replication`.
        """
        self.shares_reached[f"{kind}_{limit}"] += 1
        event = "client_over_share" if kind == "client" else "upstream_over_share"
        self.report(event, limit=limit, **details)

    # -- time --------------------------------------------------------------------------------
    def now_us(self) -> int:
        """The wall clock's time, in microseconds since 1970."""
        return time.time_ns() // 1000 + self.clock_offset_us

    def steady_us(self) -> int:
        """Microseconds since 1970 by a clock that was set only at the start of this process. Ages
        are measured by it, so that a change of the wall clock downgrades no destination."""
        return self.steady_base_us + _monotonic_us()

    def wall_offset_us(self) -> int:
        """Microseconds by which the wall clock is ahead of `steady_us` now."""
        return clock_difference_us(self.now_us, self.steady_us)

    def aging_us(self) -> int:
        """Microseconds since 1970 by the clock that stored data ages by: see `AgingClock`. To be
        called on the event loop only."""
        return self.aging.now_us(self.now_us(), self.steady_us())

    def every(
        self, interval_s: float, work: Callable[[], None], pause: Callable[[], int] = lambda: 1
    ) -> None:
        """Repeats some work until the instance stops. Work that is due each second coincides with
        work that is due ten times a second, so that an idle process wakes up once for both.

        Args:
            pause: returns the number of intervals until the next time; called after each one.
        """
        self._recurring.append(RecurringTask(self, self._began_s, interval_s, work, pause))

    def pauses_changed(self) -> None:
        """Notes that a recurring task has begun or ended a longer pause."""
        self.is_resting = any(each.is_pausing for each in self._recurring)

    def hurry(self) -> None:
        """Ends the longer pauses of recurring tasks at their next interval, as there is activity
        again."""
        self.is_resting = False
        for each in self._recurring:
            each.hurry()

    def freeze(self) -> None:
        """Stops all effects after a fault: the machine is half way through a step, or ahead of its
        disk. Work that the loop still does before the instance has ended, such as overdue timers,
        must neither send nor store anything: nothing more is performed, folded, repeated or
        answered."""
        self.is_serving = False
        self.outbox.drop()
        self.cancel_timers()
        for stop in self._stopped_by_fault:
            stop()

    def cancel_timers(self) -> None:
        for each in self._recurring:
            each.cancel()

    # -- threads and tasks -------------------------------------------------------------------
    async def in_thread(self, work: Callable[..., Result], *arguments: Any) -> Result:
        """Runs blocking work in a thread."""
        return await self.loop.run_in_executor(None, work, *arguments)

    def spawn(
        self, work: Coroutine[Any, Any, None], failed: Callable[[Exception], None] | None = None
    ) -> None:
        """Runs a coroutine as a task.

        Args:
            failed: called with an error of the task; None: the loop's handler takes it.
        """
        task = self.loop.create_task(work if failed is None else _watched(work, failed))
        self._tasks.add(task)
        task.add_done_callback(self._task_done)

    @property
    def tasks_running(self) -> int:
        return len(self._tasks)

    def cancel_tasks(self) -> None:
        for task in list(self._tasks):
            task.cancel()

    def _task_done(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and task.exception() is not None:
            self._loop_exception(
                self.loop, {"message": "a task failed", "exception": task.exception()}
            )

    # -- the end -----------------------------------------------------------------------------
    @property
    def has_ended(self) -> bool:
        """Returns whether the instance was stopped, or was ended by a fault."""
        return self._ended.done()

    @property
    def fault(self) -> BaseException | None:
        """The error that ended the instance; None: it runs, or was stopped."""
        return self._ended.exception() if self._ended.done() else None

    async def finished(self) -> None:
        """Waits until the instance was stopped; raises the error that ended it otherwise."""
        await asyncio.shield(self._ended)

    def end(self, error: BaseException | None = None) -> None:
        if self._ended.done():
            return
        if error is None:
            self._ended.set_result(None)
            return
        self._ended.set_exception(error)
        # Marks the error as retrieved, as nothing may be waiting for it yet.
        self._ended.exception()

    def contain(
        self,
        error: Exception,
        peer: str,
        end: Callable[[str, str], None],
        *,
        is_half_done: bool = False,
    ) -> None:
        """Handles an unforeseen fault in the handler of a frame. Normally only the frame's
        connection ends, because the shared state changes in steps, after the last check of a frame.
        If the fault came in the middle of a step, or from the disk, going on could acknowledge
        messages that are not journaled: the instance ends.

        Args:
            peer: the sender of the frame.
            end: ends the connection, with a reason and a sentence.
            is_half_done: whether the machine is in the middle of a step.
        """
        if self.has_ended:
            return
        where = _place(error)
        if isinstance(error, StorageError) or is_half_done:
            fatal = UnfinishedStep(f"{self.config.name}: {error!r} at {where}, by {peer}")
            fatal.__cause__ = error
            context = {"message": "a frame was half taken", "exception": fatal}
            self._loop_exception(self.loop, context)
            return
        self.faults_contained += 1
        self.report(
            "connection_fault", peer=peer, text=f"{error!r}"[:FAULT_CHARACTERS_MAX], at=where
        )
        end(
            "internal_error",
            f"{self.config.name} has a fault in what it does with this: its event "
            "`connection_fault` says where; please report it",
        )
        self.outbox.flush()

    def _loop_exception(self, loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        """Handles an error in a callback of the loop. A socket's error is only reported. Any other
        error may have left the machine half way through a step: going on could acknowledge messages
        that are not journaled, so the instance ends and is started again from its disk."""
        error = context.get("exception")
        text = f"{context.get('message')}: {error!r}"
        if error is None or isinstance(error, OSError | asyncio.CancelledError):
            self.report("connection_error", text=text)
            return
        self.freeze()
        self.report("fatal", text=text)
        loop.default_exception_handler(context)
        self.end(error)


async def _watched(work: Coroutine[Any, Any, None], failed: Callable[[Exception], None]) -> None:
    try:
        await work
    except Exception as error:
        failed(error)


def _place(error: Exception) -> str:
    """The place of a fault: file, line and function of the calls that led to it, the innermost
    first."""
    frames = traceback.extract_tb(error.__traceback__)[-PLACES_TOLD:]
    return " < ".join(
        f"{each.filename.removeprefix(_TREE)}:{each.lineno} {each.name}"
        for each in reversed(frames)
    )
