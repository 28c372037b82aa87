"""The control calls that an instance performs: one entry, and a table of what each call does.

A call is named after its path in `raylay.services.security.control.PATHS`, and takes the names in
that path among its arguments. Permission for the path is permission for the call, so that neither
the actor, nor its thread, nor the driver checks or lists calls of its own.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from functools import partial
from typing import Any

from raylay.services.errors import ConfigurationError
from raylay.services.replication.membership.placement import from_wire
from raylay.services.security.control import NAME_SHOWN_MAX, Caller
from raylay.services.server.clients.sessions import ClientSessions
from raylay.services.server.control import ControlAccess
from raylay.services.server.data.maintenance import Maintenance
from raylay.services.server.fault_injection import FaultInjection
from raylay.services.server.links.placements import PlacementKeeper
from raylay.services.server.links.upstream_connection import ConnectedUpstreams
from raylay.services.server.listening import InstanceListeners
from raylay.services.server.queues.manager import QueueManager
from raylay.services.server.runtime import InstanceRuntime

ALL_SEGMENTS = "all"


class ControlCalls:
    """The table of the control calls, and the calls that need more than one part of the server.

    Owner: the instance's event loop.

    Args:
        access: decides who may make a call, and reports each call.
    """

    def __init__(
        self,
        runtime: InstanceRuntime,
        access: ControlAccess,
        *,
        clients: ClientSessions,
        injections: FaultInjection,
        listening: InstanceListeners,
        maintenance: Maintenance,
        placements: PlacementKeeper,
        queues: QueueManager,
        upstreams: ConnectedUpstreams,
    ) -> None:
        self._runtime = runtime
        self._access = access
        self._clients = clients
        self._injections = injections
        self._listening = listening
        self._maintenance = maintenance
        self._placements = placements
        self._upstreams = upstreams
        self.table: Mapping[str, Callable[..., Awaitable[Any]]] = {
            "downgrade": self.downgrade,
            "upgrade": self.upgrade,
            "enable_proxied": partial(queues.proxied, on=True),
            "disable_proxied": partial(queues.proxied, on=False),
            "enable_transport": partial(self.switch_transport, on=True),
            "disable_transport": partial(self.switch_transport, on=False),
            "reset_entitlement": self.reset_entitlement,
            "compress": partial(self.maintain, "compress"),
            "archive": partial(self.maintain, "archive"),
            "remove": partial(self.maintain, "remove"),
            "admit": self.admit,
            "drill": self.inject,
            "place": self.place,
        }

    async def perform(self, call: str, arguments: Mapping[str, Any], caller: Caller | None) -> Any:
        """Performs a call if its caller may make it, and returns its result.

        Raises:
            ControlRefused: the caller may not make the call.
            ConfigurationError: there is no such call, or a module cannot be used.
            RaylayError: the call's own error; see its method.
        """
        perform = self.table.get(call)
        if perform is None:
            raise ConfigurationError(
                f"{call[:NAME_SHOWN_MAX]!r} is no call that {self._runtime.config.name} performs; "
                f"nothing was changed: give one of {', '.join(self.table)}"
            )
        await self._access.allow(call, caller, **arguments)
        return await perform(**arguments)

    async def downgrade(self, destination: str, force: bool = False) -> None:
        """Stops persisted acks from waiting for this destination.

        Raises:
            ConfigurationError: there is no such destination.
            DowngradeRefused: too few destinations would remain sync, and `force` is not set.
        """
        self._check_destination(destination)
        runtime = self._runtime
        runtime.perform(
            runtime.machine.downgrade(destination, runtime.steady_us(), "by hand", force=force)
        )

    async def upgrade(self, destination: str) -> None:
        """Has persisted acks wait for this destination again, if it is configured sync.

        Raises:
            ConfigurationError: there is no such destination.
        """
        self._check_destination(destination)
        runtime = self._runtime
        runtime.perform(runtime.machine.upgrade(destination, runtime.steady_us(), "by hand"))

    def _check_destination(self, destination: str) -> None:
        destinations = self._runtime.machine.destinations
        if destination not in destinations:
            raise ConfigurationError(
                f"{self._runtime.config.name} has no Destination {destination!r}: "
                f"it has {', '.join(destinations) or 'none'}"
            )

    async def admit(self, senders: Sequence[str], force: bool = False) -> None:
        """Admits clients although no peer of the group has sent its messages yet.

        Args:
            senders: the other instances of the group that replicate to this one.

        Raises:
            AdmissionRefused: messages may be missing here, and `force` is not set.
        """
        self._runtime.perform(self._runtime.machine.admit(senders, force=force))

    async def inject(self, kind: str, seconds: float, options: dict[str, Any]) -> None:
        """Injects a fault for a drill; see `FaultInjection.inject`.

        Raises:
            ConfigurationError: the fabric is not marked for drills, or there is no such fault.
        """
        self._injections.inject(kind, seconds, options)

    async def switch_transport(self, transport: str, *, on: bool) -> str:
        """Enables or disables a transport for clients, until the next start. Returns a sentence.

        Raises:
            ConfigurationError: there is no such transport, or its address cannot be listened on:
                nothing was changed.
        """
        return await self._listening.switch(transport, on=on)

    async def reset_entitlement(self, of_user: str = "") -> int:
        """Ends the sessions of a user, or all whose permissions a module gave, so that the modules
        are asked anew at the next logon. Returns their number."""
        self._access.forget()
        return self._clients.reset_entitlement(of_user) + self._upstreams.reset_entitlement(of_user)

    async def maintain(
        self, action: str, segments: int | str, force: bool = False
    ) -> list[dict[str, Any]]:
        """Performs `compress`, `archive` or `remove`; see `Maintenance.perform`.

        Args:
            segments: the transaction id below which segments are treated, or `ALL_SEGMENTS`.

        Raises:
            StorageError: a file cannot be changed; the log stays whole.
        """
        before_txid = None if segments == ALL_SEGMENTS else int(segments)
        return await self._maintenance.perform(action, before_txid, force=force)

    async def place(self, moved: str, generation: int, address: str, client_address: str) -> None:
        """Takes the new address of a moved instance.

        Raises:
            RemoteProtocolError: a value is wrong.
            StorageError: the address cannot be written to disk; nothing has changed.
        """
        await self._placements.learn(from_wire([[moved, generation, address, client_address]]))
