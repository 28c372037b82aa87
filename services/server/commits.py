"""Backpressure on publishers that outrun the disk or the folds of an instance, and the status of
its commits.

The order of a commit itself is a pure part that the simulator runs, too:
services/core/commit_cycle.py.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Protocol

from raylay.services.core.commit_cycle import CommitCycle, WakeableLink
from raylay.services.core.feature import FeatureRegistry
from raylay.services.messages.records import Run
from raylay.services.server.data.disk_watch import DiskClock
from raylay.services.server.recovered_instance import RecoveredInstance
from raylay.services.server.runtime import InstanceRuntime
from raylay.services.telemetry.metrics import SIZE_BOUNDS, LatencyHistogram, ValueHistogram
from raylay.storage.journal import Journal

if TYPE_CHECKING:
    # Most instances have no queues.
    from raylay.services.core.queues import Queues

UNFOLDED_BYTES_MAX = 4 * 1024 * 1024
"""Bytes that are committed and not folded above which a publisher is not read."""
LINKS_TIMES = 4
"""Factor by which the limits of staged and unfolded bytes are higher for links than for publishers.
A link waits for acks behind its window anyway, if it keeps to it."""
STAGED_RUNS_MAX = 1_000
"""Number of staged runs above which no next part of a long batch is taken: the runs of a commit are
marked as taken all at once, some microseconds each."""


class PublishingClient(Protocol):
    """A publisher's connection (`ClientConnection`)."""

    def pause_reading(self, why: str) -> None:
        """Stops reading from the connection for this reason."""

    def resume_reading(self, why: str) -> None:
        """Takes back one reason not to read."""


class QueuePressure(Protocol):
    """The queues of the instance (`QueueManager`)."""

    @property
    def queues(self) -> Queues | None:
        """The queues; None: the instance has none."""


class Commits:
    """See the file's docstring.

    Owner: the instance's event loop.

    Args:
        links: the links by destination.
        folds: the features, with the commits that are not folded yet.
        staged_bytes_max: staged bytes above which a publisher is not read.
        clock: the clock that measures how long the disk writes.

    Attributes:
        cycle: the order in which runs are staged, committed and reported.
    """

    def __init__(
        self,
        runtime: InstanceRuntime,
        instance: RecoveredInstance,
        links: Mapping[str, WakeableLink],
        folds: FeatureRegistry,
        staged_bytes_max: int,
        clock: DiskClock,
    ) -> None:
        self._runtime = runtime
        self._instance = instance
        self._folds = folds
        self._staged_bytes_max = staged_bytes_max
        self.latency = LatencyHistogram()
        self.ack_latency = LatencyHistogram()
        """Times from a publish to its persisted ack, of a sample."""
        self.sizes = ValueHistogram(SIZE_BOUNDS)
        """Sizes of commits, in bytes of payload, as the loop takes them: one that waited for the
        loop is counted with the next."""
        self.cycle = CommitCycle(
            runtime,
            instance,
            links,
            folds,
            clock_ns=time.perf_counter_ns,
            took=self.latency.record,
            undone=self._resume,
            watch=clock,
        )
        self._front_log_failure = ""
        self._paused: list[PublishingClient] = []
        self._clock = clock

    def start(self) -> None:
        self._journal.start(self.cycle.on_disk, self.cycle.failed)

    @property
    def _journal(self) -> Journal:
        journal: Journal = self._instance.journal
        return journal

    def look_at_front_log(self) -> None:
        """Called now and then. Reports that the front log cannot be used, or that it can be used
        again."""
        failure = self._journal.front_log_failure
        if failure == self._front_log_failure:
            return
        self._front_log_failure = failure
        if failure:
            self._runtime.report("front_log_failed", text=failure)
        else:
            self._runtime.report("front_log_recovered")

    def status(self) -> dict[str, Any]:
        failure = self.cycle.failure
        return {
            "commit_ms_p50": self.latency.percentile_ms(0.5),
            "commit_ms_p99": self.latency.percentile_ms(0.99),
            "staged_bytes": self.cycle.staged_bytes,
            "storage_failure": failure[1] if failure else "",
            "front_log_failure": self._journal.front_log_failure,
        }

    # -- publishers that outrun the disk, or the folds -------------------------------------------
    def check_staged(self, publisher: PublishingClient, times: int = 1) -> None:
        """Stops reading from a publisher that outruns the disk or the folds, or from a link that
        does so whatever its window.

        Args:
            times: the factor by which the limits are higher (`LINKS_TIMES`).
        """
        unfolded = self._folds.unfolded
        if self.cycle.staged_bytes > times * self._staged_bytes_max or (
            unfolded is not None and unfolded.waiting_bytes > times * UNFOLDED_BYTES_MAX
        ):
            publisher.pause_reading("staged")
            self._paused.append(publisher)

    @property
    def takes_parts(self) -> bool:
        """True where the next part of a long batch may be taken."""
        if self.cycle.staged_bytes > LINKS_TIMES * self._staged_bytes_max:
            return False
        return len(self._instance.machine.intake.staged) <= STAGED_RUNS_MAX

    def taken(self, runs: list[Run]) -> None:
        """Subtracts these runs from the staged bytes."""
        size_bytes = 0
        for run in runs:
            size_bytes += len(run.payload)
        self.cycle.staged_bytes -= size_bytes
        self.sizes.record(size_bytes)
        if self._paused:
            self.folded()

    def folded(self) -> None:
        """Resumes the paused publishers and links, if enough has been committed and folded."""
        if not self._paused or self.cycle.staged_bytes >= self._staged_bytes_max // 2:
            return
        unfolded = self._folds.unfolded
        if not unfolded or unfolded.waiting_bytes < UNFOLDED_BYTES_MAX // 2:
            self._resume()

    def _resume(self) -> None:
        paused, self._paused = self._paused, []
        for client in paused:
            client.resume_reading("staged")

    @property
    def disk_waits_ms(self) -> int:
        """Time for which the disk has not answered until now, in milliseconds."""
        return int(1000 * self._clock.waits_s)


class SlowedPublishers:
    """The publishers and links that are not read for a while, because they have just sent
    acknowledgments of queue messages that have not arrived here: those wait in memory for long.

    Owner: the instance's event loop. Lifecycle: one life of the instance.
    """

    def __init__(self, runtime: InstanceRuntime, queues: QueuePressure) -> None:
        self._runtime = runtime
        self._queues = queues
        self._slowed: dict[PublishingClient, asyncio.TimerHandle] = {}

    def check(self, connection: PublishingClient, *, is_link: bool) -> None:
        """Stops reading for a while from a connection that has just sent something, if the queues
        demand it."""
        queues = self._queues.queues
        if queues is None or not (wait_s := queues.slowed_s(is_link=is_link)):
            return
        if connection in self._slowed:
            self._slowed.pop(connection).cancel()
        else:
            connection.pause_reading("slowed")
        again = self._runtime.loop.call_later(wait_s, self._read_again, connection)
        self._slowed[connection] = again

    def _read_again(self, connection: PublishingClient) -> None:
        del self._slowed[connection]
        connection.resume_reading("slowed")
