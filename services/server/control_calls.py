"""The control calls that an instance performs: one entry, and a table of what each call does.

A call is named after its path in `raylay.services.security.control.PATHS`, and takes the names in
that path among its arguments. Permission for the path is permission for the call, so that neither
the actor, nor its thread, nor the driver checks or lists calls of its own.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from functools import partial
from typing import Any

from raylay.services.actions.requests import actions_at
from raylay.services.errors import ConfigurationError, FabricError, StorageError
from raylay.services.replication.membership.placement import from_wire
from raylay.services.security.control import NAME_SHOWN_MAX, Caller
from raylay.services.server.clients.named_readers import ReaderHolds
from raylay.services.server.clients.sessions import ClientSessions
from raylay.services.server.control import ControlAccess
from raylay.services.server.data.maintenance import Maintenance
from raylay.services.server.diagnostics import diagnostic_lines
from raylay.services.server.fault_injection import FaultInjection
from raylay.services.server.links.control import Links
from raylay.services.server.links.placements import PlacementKeeper
from raylay.services.server.links.upstream_connection import ConnectedUpstreams
from raylay.services.server.listening import InstanceListeners
from raylay.services.server.occurrences import ADMIN
from raylay.services.server.queues.manager import QueueManager
from raylay.services.server.recovered_instance import RecoveredInstance
from raylay.services.server.runtime import InstanceRuntime
from raylay.services.server.sow.manager import SowManager
from raylay.services.server.status import InstanceStatus

ALL_SEGMENTS = "all"
NAMES_SHOWN_MAX = 20


class ControlCalls:
    """The table of the control calls, and the calls that need more than one part of the server.

    Owner: the instance's event loop.

    Args:
        access: decides whether a user may make a call, and reports each call.
    """

    def __init__(
        self,
        runtime: InstanceRuntime,
        instance: RecoveredInstance,
        access: ControlAccess,
        *,
        clients: ClientSessions,
        injections: FaultInjection,
        links: Links,
        listening: InstanceListeners,
        maintenance: Maintenance,
        placements: PlacementKeeper,
        queues: QueueManager,
        readers: ReaderHolds,
        sow: SowManager,
        status: InstanceStatus,
        upstreams: ConnectedUpstreams,
    ) -> None:
        self._runtime = runtime
        self._instance = instance
        self._access = access
        self._clients = clients
        self._injections = injections
        self._links = links
        self._listening = listening
        self._maintenance = maintenance
        self._placements = placements
        self._status = status
        self._upstreams = upstreams
        self.table: Mapping[str, Callable[..., Awaitable[Any]]] = {
            "downgrade": self.downgrade,
            "upgrade": self.upgrade,
            "reconnect": self.reconnect,
            "disconnect": self.disconnect,
            "drop_reader": readers.drop,
            "compact": sow.compact,
            "dump": self.dump,
            "enable_proxied": partial(queues.proxied, on=True),
            "disable_proxied": partial(queues.proxied, on=False),
            "enable_transport": partial(self.switch_transport, on=True),
            "disable_transport": partial(self.switch_transport, on=False),
            "reset_authentication": self.reset_authentication,
            "reset_entitlement": self.reset_entitlement,
            "compress": partial(self.maintain, "compress"),
            "archive": partial(self.maintain, "archive"),
            "remove": partial(self.maintain, "remove"),
            "admit": self.admit,
            "run_action": self.run_action,
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
        self._instance.perform(
            self._instance.machine.downgrade(
                destination, runtime.steady_us(), "by hand", force=force
            )
        )

    async def upgrade(self, destination: str) -> None:
        """Has persisted acks wait for this destination again, if it is configured sync.

        Raises:
            ConfigurationError: there is no such destination.
        """
        self._check_destination(destination)
        runtime = self._runtime
        self._instance.perform(
            self._instance.machine.upgrade(destination, runtime.steady_us(), "by hand")
        )

    async def reconnect(self, destination: str) -> str:
        """Ends the process of a link, so that a new one dials the destination. Returns a sentence.

        Raises:
            ConfigurationError: there is no such destination.
        """
        self._check_destination(destination)
        link = self._links.controls[destination]
        connection = link.process.connection
        where = f"the link of {self._runtime.config.name} to {destination}"
        if connection is None:
            return f"{where} is beginning already: {link.why or 'its process starts'}"
        connection.abort("reconnected by hand")
        return f"{where} begins again; what it owes is sent when it is connected"

    async def disconnect(self, client: str) -> str:
        """Ends a client's connection. The client may connect again. Returns a sentence.

        Args:
            client: the number of the connection, or the client's name.

        Raises:
            ConfigurationError: no such client is connected.
        """
        name = self._runtime.config.name
        sessions = self._clients.sessions
        found = sessions.get(int(client)) if client.isdecimal() and len(client) < 19 else None
        if found is None:
            found = next((each for each in sessions.values() if each.client_name == client), None)
        if found is None:
            raise ConfigurationError(
                f"no client {client[:NAME_SHOWN_MAX]!r} is connected to {name}; give the number of "
                "its connection, or its name"
            )
        found.end("disconnected", f"{name} ended the connection by hand: connect again if you may")
        return f"{found.client_name} at {found.peer} is disconnected from {name}"

    async def dump(self) -> list[str]:
        """Writes the state of queues, links, clients and the rest to the log, a line each, and
        returns the lines."""
        lines = diagnostic_lines(self._status.status())
        for line in lines:
            self._runtime.events_log.write("diagnostics", {"text": line})
        self._runtime.report("diagnostics_dumped", lines=len(lines))
        return lines

    def _check_destination(self, destination: str) -> None:
        destinations = self._instance.machine.destinations
        if destination not in destinations:
            known = ", ".join(list(destinations)[:NAMES_SHOWN_MAX])
            raise ConfigurationError(
                f"{self._runtime.config.name} has no Destination "
                f"{destination[:NAME_SHOWN_MAX]!r}: it has {known or 'none'}"
            )

    async def admit(self, senders: Sequence[str] | None = None, force: bool = False) -> None:
        """Admits clients although no peer of the group has sent its messages yet.

        Args:
            senders: the other instances of the group that replicate to this one. None: those of
                the group that this one replicates to.

        Raises:
            AdmissionRefused: messages may be missing here, and `force` is not set.
        """
        config = self._runtime.config
        if senders is None:
            senders = [
                name
                for each in config.destinations
                if each.group == config.group
                for name in each.server_names or (each.name,)
            ]
        self._instance.perform(self._instance.machine.admit(senders, force=force))

    async def run_action(self, action: str, parameters: Mapping[str, str] | None = None) -> str:
        """Begins the actions of the configuration that a path names. Returns a sentence.

        Args:
            action: the last step of the path.
            parameters: variables for the actions, as the request gave them.

        Raises:
            ConfigurationError: no action has this path, or one lacks a parameter: none begins.
            FabricError: the instance performs no actions now.
        """
        runtime, given = self._runtime, dict(parameters or {})
        name = runtime.config.name
        begins = actions_at(runtime.config.actions, action, given, name)
        if not runtime.occurrences.wanted(ADMIN):
            raise FabricError(f"{name} performs no actions now: try again")
        runtime.occurrences.tell(ADMIN, {**given, "AMPS_ADMIN_PATH": action})
        return f"{name} begins {', '.join(begins)}"

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

    async def reset_authentication(self, of_user: str = "", transport: str = "") -> int:
        """Ends the sessions of a user, or all whose user a module has identified, so that they
        authenticate themselves anew. Returns their number.

        Args:
            transport: only those of this transport; empty: of all.
        """
        self._access.forget(of_user)
        clients = self._clients.reset_authentication(of_user, transport)
        return clients + self._upstreams.reset_entitlement(of_user, transport)

    async def reset_entitlement(self, of_user: str = "", transport: str = "") -> int:
        """Ends the sessions of a user, or all whose permissions a module gave, so that the modules
        are asked anew at the next logon. Returns their number.

        Args:
            transport: only those of this transport; empty: of all.
        """
        self._access.forget(of_user)
        clients = self._clients.reset_entitlement(of_user, transport)
        return clients + self._upstreams.reset_entitlement(of_user, transport)

    async def maintain(
        self, action: str, segments: int | str, force: bool = False
    ) -> list[dict[str, Any]]:
        """Performs `compress`, `archive` or `remove`; see `Maintenance.perform`.

        Args:
            segments: the id of a full journal, which is its first transaction id: it and all older
                ones are treated. Or `ALL_SEGMENTS`.

        Raises:
            ConfigurationError: there is no such journal, or it is being written.
            StorageError: nothing could be done, and why; the log stays whole.
        """
        if segments == ALL_SEGMENTS:
            return await self._maintenance.perform(action, force=force)
        before_txid = await self._maintenance.end_of(str(segments))
        outcomes = await self._maintenance.perform(action, before_txid, force=force)
        if outcomes and not any(each["done"] for each in outcomes):
            raise StorageError(
                f"{self._runtime.config.name}: nothing was done to journal {segments} and older "
                f"ones: {outcomes[0]['first_txid']}: {outcomes[0]['note']}"
            )
        return outcomes

    async def place(self, moved: str, generation: int, address: str, client_address: str) -> None:
        """Takes the new address of a moved instance.

        Raises:
            RemoteProtocolError: a value is wrong.
            StorageError: the address cannot be written to disk; nothing has changed.
        """
        await self._placements.learn(from_wire([[moved, generation, address, client_address]]))
