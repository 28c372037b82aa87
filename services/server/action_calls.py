"""The control calls that the steps of actions make. They are the instance's own: its configuration
says what its actions do, and no user is asked about.

Besides the calls that users may make (control_calls.py) there are those that only an action makes.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Mapping
from functools import partial
from typing import Any

from raylay.services.errors import ConfigurationError
from raylay.services.protocol.child.control import ROTATE
from raylay.services.protocol.frames import LOGON_TIMEOUT_S
from raylay.services.security.control import NAME_SHOWN_MAX
from raylay.services.server.access import AccessCheck
from raylay.services.server.children.supervisor import Supervisor
from raylay.services.server.clients.sessions import ClientSessions
from raylay.services.server.control_calls import ControlCalls
from raylay.services.server.data.maintenance import Maintenance
from raylay.services.server.links.upstream_connection import ConnectedUpstreams
from raylay.services.server.listening import InstanceListeners
from raylay.services.server.recovered_instance import RecoveredInstance
from raylay.services.server.runtime import InstanceRuntime
from raylay.services.telemetry import logs

USERS_CALLS = (
    *("compact", "disable_proxied", "enable_proxied"),
    *("reset_authentication", "reset_entitlement"),
)
"""Calls of users that actions make as they are."""


class ActionCalls:
    """See the file's docstring. Owner: the instance's event loop.

    Args:
        calls: the calls that users may make.
        children: returns the processes beside the instance.
        truncate_statistics: removes samples of the statistics that are older than some
            milliseconds. Returns a sentence.
        shut_down: begins the end of the instance, for the reason that is given.
    """

    def __init__(
        self,
        runtime: InstanceRuntime,
        instance: RecoveredInstance,
        calls: ControlCalls,
        *,
        children: Callable[[], Iterable[Supervisor]],
        clients: ClientSessions,
        listening: InstanceListeners,
        maintenance: Maintenance,
        truncate_statistics: Callable[[int], Awaitable[str]],
        shut_down: Callable[[str], None],
        upstreams: ConnectedUpstreams,
    ) -> None:
        self._runtime = runtime
        self._instance = instance
        self._children = children
        self._clients = clients
        self._listening = listening
        self._maintenance = maintenance
        self._shut_down = shut_down
        self._upstreams = upstreams
        self._off_us: dict[str, int] = {}
        """Time at which each kind of module was disabled; a kind that is enabled is missing."""
        self.table: Mapping[str, Callable[..., Awaitable[Any]]] = {
            **{name: calls.table[name] for name in USERS_CALLS},
            "enable_authentication": partial(self.switch_security, "authentication", on=True),
            "disable_authentication": partial(self.switch_security, "authentication", on=False),
            "enable_entitlement": partial(self.switch_security, "entitlement", on=True),
            "disable_entitlement": partial(self.switch_security, "entitlement", on=False),
            "enable_transport": partial(self.switch_transports, on=True),
            "disable_transport": partial(self.switch_transports, on=False),
            "compact_all": self.compact_all,
            "downgrade_by_age": self.downgrade_by_age,
            "upgrade_by_age": self.upgrade_by_age,
            "compress": partial(self._tend, "compress"),
            "archive": partial(self._tend, "archive"),
            "remove": partial(self._tend, "remove"),
            "publishers": self.publishers,
            "rotate_logs": self.rotate_logs,
            "truncate_statistics": truncate_statistics,
            "shut_down": self.shut_down,
        }

    async def perform(self, call: str, arguments: Mapping[str, Any], action: str) -> Any:
        """Performs a call and returns its result.

        Raises:
            ConfigurationError: there is no such call.
            RaylayError: the call's own error; see its method.
        """
        perform = self.table.get(call)
        if perform is None:
            raise ConfigurationError(
                f"{call[:NAME_SHOWN_MAX]!r} is no call that an action makes; nothing was changed"
            )
        if call != "publishers":  # the only one that changes nothing
            self._runtime.report("action_call", action=action[:NAME_SHOWN_MAX], call=call)
        return await perform(**arguments)

    # -- security --------------------------------------------------------------------------------
    def _checks(self) -> list[AccessCheck]:
        found = (each.access_check for each in self._listening.transports.values())
        return [each for each in found if each is not None]

    async def switch_security(self, kind: str, *, on: bool) -> str:
        """Has the transports ask their modules of one kind, or ask them no more, until the next
        start. Where they are asked again, the sessions that were let in meanwhile end. Control
        calls are judged all the while. Returns a sentence.

        Args:
            kind: `authentication` or `entitlement`.
        """
        name = self._runtime.config.name
        for check in self._checks():
            if kind == "authentication":
                check.authenticates = on
            else:
                check.entitles = on
        if not on:
            self._off_us.setdefault(kind, self._runtime.now_us())
            self._runtime.report("security_switched", text=f"{kind} is off")
            return f"{kind} of {name} is off, until it is enabled or the instance restarts"
        off_us = self._off_us.pop(kind, None)
        self._runtime.report("security_switched", text=f"{kind} is on")
        ended = 0
        if off_us is not None:
            # A connection that was open already may have logged on later.
            since_us = off_us - round(LOGON_TIMEOUT_S * 1e6)
            ended = self._clients.reset_since(since_us) + self._upstreams.reset_entitlement()
        return f"{kind} of {name} is on: {ended:,} sessions of the time without it ended"

    async def switch_transports(self, transport: str = "", *, on: bool) -> str:
        """Enables or disables one transport, or all where the name is empty. Returns a sentence.

        Raises:
            ConfigurationError: there is no such transport, or its address cannot be listened on.
        """
        names = [transport] if transport else list(self._listening.transports)
        return "; ".join([await self._listening.switch(each, on=on) for each in names])

    # -- data ------------------------------------------------------------------------------------
    async def compact_all(self) -> str:
        """Rewrites the file of the SOW topics. Returns a sentence."""
        # They share a file, which is rewritten for all of them.
        topics = [each.stored_as for each in self._runtime.config.sow if not each.transient]
        if not topics:
            return f"{self._runtime.config.name} has no SOW topic with a file: nothing to compact"
        return str(await self.table["compact"](topic=topics[0]))

    async def _tend(self, do: str, age_ms: int) -> str:
        """Performs `compress`, `archive` or `remove` on the full journals older than `age_ms`.
        Returns a sentence.

        Raises:
            StorageError: a file cannot be changed; the log stays whole.
        """
        outcomes = await self._maintenance.perform_by_age(do, age_ms)
        return "; ".join(each["outcome"] for each in outcomes) or "no journal is that old"

    async def downgrade_by_age(self, age_ms: int) -> None:
        """Downgrades each sync destination whose oldest unanswered message is older than
        `age_ms`."""
        self._look_at_ages(age_ms, None)

    async def upgrade_by_age(self, age_ms: int) -> None:
        """Upgrades each downgraded destination whose oldest unanswered message is younger than
        `age_ms`."""
        self._look_at_ages(None, age_ms)

    def _look_at_ages(
        self, downgrade_age_ms: int | None, upgrade_age_ms: int | None, *, is_second: bool = False
    ) -> None:
        runtime = self._runtime
        if not runtime.is_serving:
            return
        machine = self._instance.machine
        self._instance.perform(
            machine.tick(runtime.steady_us(), (downgrade_age_ms, upgrade_age_ms))
        )
        if not is_second:
            # Where the fault lies further on, the first look waits for the instance nearest to it.
            runtime.loop.call_later(
                runtime.config.policy.check_interval_ms / 1000,
                partial(self._look_at_ages, downgrade_age_ms, upgrade_age_ms, is_second=True),
            )

    async def publishers(self, publishers: list[int]) -> dict[int, str]:
        """Returns the names of the clients of these publishers, as far as they are connected
        here."""
        wanted = set(publishers)
        return {
            each.publisher: each.client_name
            for each in self._clients.sessions.values()
            if each.publisher in wanted
        }

    # -- the process -----------------------------------------------------------------------------
    async def rotate_logs(self) -> str:
        """Begins new log files, of the instance and of the processes beside it. Returns a
        sentence."""
        for child in self._children():
            child.say(ROTATE)
        self._runtime.outbox.flush()
        files = await self._runtime.in_thread(logs.rotate)
        return f"{len(files):,} log files of {self._runtime.config.name} itself were rotated"

    async def shut_down(self, why: str) -> str:
        """Begins the end of the instance, which stays down until it is started again. Returns a
        sentence."""
        self._shut_down(why)
        return f"{self._runtime.config.name} shuts down"
