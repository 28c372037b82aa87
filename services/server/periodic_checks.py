"""Periodic work of an instance: ages, schedules, heartbeats and slow clients.

The checks run once a check interval while there is any activity. Without activity, twice a second
is enough: on a laptop most instances are idle most of the time, and each time that a process wakes
up it finds cold caches. New activity ends the longer pause at once (`InstanceRuntime.hurry`).
"""

from __future__ import annotations

from contextlib import suppress

from raylay.services.core.commit_cycle import CommitCycle
from raylay.services.errors import RaylayError
from raylay.services.messages.readable import UNREADABLE
from raylay.services.replication.instance.tick_policy import TickPolicy
from raylay.services.server.clients.costly_filters import CostlyFilters
from raylay.services.server.clients.replay import ReplayPump
from raylay.services.server.clients.sessions import ClientSessions
from raylay.services.server.data.data_files import AGING_KEY, name_key
from raylay.services.server.data.maintenance import Maintenance
from raylay.services.server.links.control import Links
from raylay.services.server.links.upstream_connection import ConnectedUpstreams
from raylay.services.server.queues.manager import QueueManager
from raylay.services.server.recovered_instance import RecoveredInstance
from raylay.services.server.runtime import InstanceRuntime
from raylay.services.server.sow.manager import SowManager

REST_S = 0.5
"""Time between two checks of an idle instance, in seconds. A publish that begins meanwhile is
looked at one check interval later, and a change of the wall clock is noticed half a second
later."""

CLOCK_SET_US = 1_000_000
"""Jump of the wall clock, in microseconds, from which an event reports that the clock was set."""

GAPS_KEY = "gaps/"
"""Prefix of the entries of the state store that hold the users of publishers with gaps."""

NAMES_WRITTEN_AT_ONCE = 4_096

BEHIND_US = 60_000_000
"""Change of the aging clock's lag, in microseconds, from which the lag is written to the state."""

TELL_UNREADABLE_S = 60.0
"""Time, in seconds, in which at most one event reports unreadable runs."""


class PeriodicChecks:
    """See the top of this file. Owner: the instance. Lifecycle: `begin` once, when the instance
    serves."""

    def __init__(
        self,
        runtime: InstanceRuntime,
        instance: RecoveredInstance,
        clients: ClientSessions,
        commits: CommitCycle,
        links: Links,
        maintenance: Maintenance,
        queues: QueueManager,
        replays: ReplayPump,
        sow: SowManager,
        upstreams: ConnectedUpstreams,
    ) -> None:
        self._runtime = runtime
        self._instance = instance
        self._clients = clients
        self._commits = commits
        self._links = links
        self._maintenance = maintenance
        self._queues = queues
        self._replays = replays
        self._sow = sow
        self._upstreams = upstreams
        self._filters = CostlyFilters(runtime, clients)
        self._tell_unreadable_s = 0.0
        self._writes_names = False
        self._names_failed = False
        self._looking = TickPolicy(instance.machine)
        self._resting_intervals = 1
        self._behind_us = 0
        """Lag of the aging clock when it was last written to the state."""
        self._offset_us = 0
        """Lead of the wall clock over the steady one at the last check."""

    def begin(self) -> None:
        """Begins the checks, which go on until the instance stops."""
        config = self._runtime.config
        self._behind_us = self._instance.state.get_number(AGING_KEY)
        users = {
            int(key.removeprefix(GAPS_KEY), 16): user.decode("utf-8", "surrogatepass")
            for key, user in self._instance.state.items(GAPS_KEY)
        }
        self._instance.machine.user_gaps.recall(users, self._instance.machine.known)
        # No heartbeat is to be late by more than half of the time between two.
        rest_ms = min([1000 * REST_S, *(each.heartbeat_ms / 2 for each in config.destinations)])
        interval_ms = config.policy.check_interval_ms
        self._resting_intervals = max(1, int(rest_ms / interval_ms))
        self._runtime.every(interval_ms / 1000, self.check, self.pause_intervals)

    def check(self) -> None:
        """Performs one check."""
        runtime = self._runtime
        # Commits on disk are taken first, so that ages are measured with all of them.
        self._commits.catch_up()
        now_us = runtime.steady_us()
        self._instance.machine.wall_offset_us = offset_us = runtime.wall_offset_us()
        self._queues.clock_is(offset_us)
        self._say_if_set(offset_us)
        self._keep_aging()
        self._keep_user_gaps()
        self._keep_names()
        if self._looking.is_due(now_us):
            self._instance.perform(self._instance.machine.tick(now_us))
            self._maintenance.check()
        self._sow.check()
        for session, difference_bytes in self._sow.aggregation_charges():
            self._clients.charge(session, difference_bytes)
        for topic in self._sow.newly_refused():
            ended = self._clients.end_followers(topic)
            runtime.report(
                "view_full",
                topic=topic.definition.stored_as,
                subscriptions=ended,
                text=topic.refusal,
            )
        self._queues.check()
        self._clients.queries.check()
        self._filters.check()
        self._tell_unreadable()
        self._clients.pools.check()
        now_s = runtime.loop.time()
        for upstream in list(self._upstreams.connected.values()):
            upstream.beat(now_s)
        self._look_at_children(now_s)
        for name, link in self._links.controls.items():
            link.tell_names()
            link.direct_link.tick(caught_up=self._instance.machine.destinations[name].caught_up)
        self._replays.keep_ticking()

    def _tell_unreadable(self) -> None:
        now_s = self._runtime.loop.time()
        text = UNREADABLE.take() if now_s >= self._tell_unreadable_s else ""
        if text:
            self._tell_unreadable_s = now_s + TELL_UNREADABLE_S
            self._runtime.report(
                "run_unreadable",
                text=f"{text}; they are passed over by all that reads them; `raylay journal verify`"
                " looks at the whole journal, runs_unreadable of the status counts",
            )

    def _keep_user_gaps(self) -> None:
        """Writes the users of publishers with gaps to the state, for the next life of the
        instance."""
        unwritten = self._instance.machine.user_gaps.unwritten
        if unwritten:
            self._runtime.spawn(self._write_user_gaps(dict(unwritten)))
            unwritten.clear()

    async def _write_user_gaps(self, users: dict[int, str]) -> None:
        # A user that is not written is known again at the next logon of that client.
        with suppress(RaylayError):
            await self._instance.state.put(
                {
                    f"{GAPS_KEY}{publisher:016x}": user.encode("utf-8", "surrogatepass")
                    if user
                    else None
                    for publisher, user in users.items()
                }
            )

    def _keep_names(self) -> None:
        unwritten = self._instance.machine.publisher_names.unwritten
        if unwritten and not self._writes_names:
            self._writes_names = True
            self._runtime.spawn(self._write_names(unwritten[:NAMES_WRITTEN_AT_ONCE]))

    async def _write_names(self, publishers: list[int]) -> None:
        runtime = self._runtime
        names = self._instance.machine.publisher_names
        try:
            await self._instance.state.put({name_key(each): names.get(each) for each in publishers})
            del names.unwritten[: len(publishers)]
        except RaylayError as error:
            # The write is tried again at the next check.
            if not self._names_failed:
                runtime.report("state_failed", text=str(error))
            self._names_failed = True
        else:
            self._names_failed = False
        finally:
            self._writes_names = False

    def _look_at_children(self, now_s: float) -> None:
        for link in self._links.controls.values():
            link.process.look(now_s)
        for queue in self._queues.controls.values():
            queue.process.look(now_s)
        for pool in self._clients.pools.all:
            pool.buffer.process.look(now_s)

    def _say_if_set(self, offset_us: int) -> None:
        by_us, self._offset_us = offset_us - self._offset_us, offset_us
        if abs(by_us) >= CLOCK_SET_US:
            self._runtime.report("clock_set", by_s=round(by_us / 1e6, 1))

    def _keep_aging(self) -> None:
        """Writes the aging clock's lag, so that data does not age by a jump of the wall clock after
        a restart."""
        runtime = self._runtime
        behind_us = max(runtime.now_us() - runtime.aging_us(), 0)
        if abs(behind_us - self._behind_us) >= BEHIND_US:
            self._behind_us = behind_us
            runtime.spawn(self._remember(behind_us))

    async def _remember(self, behind_us: int) -> None:
        # A failed write is made up for by a later one.
        with suppress(RaylayError):
            await self._instance.state.put({AGING_KEY: behind_us.to_bytes(8, "big")})

    def pause_intervals(self) -> int:
        """Returns the number of check intervals until the next check, after each one. An instance
        without SOW topics has no queries either."""
        rests = (
            self._looking.is_quiet
            and self._sow.feature is None
            and self._queues.queues is None
            and self._clients.pools.is_idle
        )
        return self._resting_intervals if rests else 1
