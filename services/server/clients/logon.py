"""The logon of a client: whether it is let in, by whom it is known and what it may do."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Protocol

from raylay.services.protocol.client.commands import Logon
from raylay.services.replication.instance.publishers import Judge
from raylay.services.replication.values import LogonAnswer
from raylay.services.security.connection_shares import ShareHolder
from raylay.services.security.credentials import (
    Challenge,
    Credentials,
    LogonDenied,
)
from raylay.services.security.logon_turns import is_local, network_of
from raylay.services.security.permissions import Permissions
from raylay.services.server.access import (
    AUTH,
    BUSY,
    NOT_LET_IN,
    AccessCheck,
    ShownCertificate,
    verified,
)
from raylay.services.server.clients.sessions import ClientSession, ClientSessions
from raylay.services.server.clients.transport import ClientTransport


class LogonConnection(ClientSession, Protocol):
    """A connection that logs on (`ClientConnection`)."""

    came_by: ClientTransport
    is_open: bool
    judge: Judge | None

    @property
    def peer_certificate(self) -> ShownCertificate | None:
        """The certificate of the other side; None: it showed none."""

    def failed(self, error: Exception) -> None:
        """Ends the connection: there is a fault in what was done for it."""

    def logged_on(self, logon: Logon, answer: LogonAnswer) -> None:
        """Lets the client in."""


class ClientLogon:
    """See the file's docstring. Owner: the connection. Lifecycle: until it is let in.

    Args:
        flush: writes what was sent: what comes from a module comes in a turn of its own.
    """

    __slots__ = ("_clients", "_connection", "_flush", "_is_asking", "_round")

    def __init__(
        self, connection: LogonConnection, clients: ClientSessions, flush: Callable[[], None]
    ) -> None:
        self._connection = connection
        self._clients = clients
        self._flush = flush
        self._is_asking = False
        self._round = 0

    def ask(self, logon: Logon) -> None:
        """Lets it in, or tells it why not, now or when the modules have answered."""
        connection, clients = self._connection, self._clients
        if connection.client_name:
            connection.end("bad_command", "a logon came behind the one that let it in")
            return
        if self._is_asking:
            connection.end("bad_command", "a logon came before the one before it was answered")
            return
        gate = connection.came_by.gate
        if gate is None:
            self._let_in(logon)
            return
        refusal = clients.admission.refusal()
        if refusal is not None:
            self._turn_down(logon, *refusal)
            return
        self._is_asking = True
        clients.runtime.spawn(self._pass_gate(gate, logon), connection.failed)

    def _turn_down(self, logon: Logon, reason: str, text: str) -> None:
        connection = self._connection
        connection.send(
            connection.codec.acknowledgment("processed", logon.command_id, reason, text)
        )
        connection.close(text)

    async def _pass_gate(self, gate: AccessCheck, logon: Logon) -> None:
        connection = self._connection
        found = await gate.ask(
            Credentials(
                logon.client_name,
                logon.user_id,
                logon.password,
                connection.peer,
                connection.came_by.name,
                verified(connection.peer_certificate),
                round=self._round,
                still_waits=lambda: connection.is_open,
            )
        )
        self._is_asking = False
        self._round += 1
        if not connection.is_open:
            return
        if isinstance(found, LogonDenied):
            self._turn_down(logon, *(BUSY if found.is_busy else (AUTH, NOT_LET_IN)))
        elif isinstance(found, Challenge):
            connection.send(
                connection.codec.acknowledgment(
                    "processed",
                    logon.command_id,
                    "retry",
                    "log on again with the answer to the challenge",
                    user_id=found.user_id,
                    pw=found.password,
                )
            )
        else:
            # Whoever it said it is: it is this one.
            self._let_in(replace(logon, user_id=found.user, password=""), found.permissions)
        self._flush()

    def _name_refusal(self, logon: Logon) -> tuple[str, str] | None:
        """Returns why nobody may log on by this name, if nobody may."""
        runtime, connection = self._clients.runtime, self._connection
        refused = runtime.machine.name_refusal(logon.client_name)
        if refused is not None:
            reason, text = refused
            runtime.report(
                reason,
                client=logon.client_name[:200],
                user=logon.user_id[:200],
                peer=connection.peer,
                text=text,
            )
        return refused

    def _let_in(self, logon: Logon, permissions: Permissions | None = None) -> None:
        connection, clients = self._connection, self._clients
        came_by = connection.came_by
        # Without a module anybody may say any name: that counts for nobody.
        user = "" if came_by.gate is None else logon.user_id
        holder = ShareHolder(user, network_of(connection.peer))
        refusal = (
            clients.admission.refusal()
            or self._name_refusal(logon)
            or clients.share_refusal(logon, connection, holder, came_by)
            or clients.take_name(logon, connection, holder)
        )
        if refusal is not None:
            self._turn_down(logon, *refusal)
            return
        clients.count_in(connection, holder, came_by)
        judge = None
        if permissions is not None:
            judge = clients.judge(permissions, logon.user_id, logon.client_name, connection.peer)
            connection.permissions, connection.judge = permissions, judge
        connection.client_name, connection.user_id = logon.client_name, logon.user_id
        machine = clients.runtime.machine
        connection.logged_on(
            logon,
            machine.client_logged_on(
                connection.number,
                logon.client_name,
                logon.low,
                judge,
                takes_unused=logon.takes_unused,
                user=_owner_of_gaps(holder),
            ),
        )


def _owner_of_gaps(holder: ShareHolder) -> str:
    """Returns who the gaps of a client's publishers count for: its user; its address where nobody
    asks for users, but for this host, where a proxy has everybody behind it. Empty: nobody."""
    if holder.user or is_local(holder.network):
        return holder.user
    return f"address {holder.network}"
