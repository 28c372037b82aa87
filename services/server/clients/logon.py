"""The logon of a client: whether it is let in, its user's name and its permissions."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Protocol

from raylay.services.config.actions import ACTIONS_TRANSPORT, client_name
from raylay.services.core.connection_order import ClientIdentity, log_client_on
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
    verified,
)
from raylay.services.server.clients.sessions import ClientSession, ClientSessions
from raylay.services.server.clients.transport import ClientTransport


class LogonConnection(ClientSession, Protocol):
    """A connection that logs on (`ClientConnection`)."""

    accepted_by: ClientTransport
    end_reason: str
    """Reason for which the connection ends, once it does."""
    is_open: bool
    judge: Judge | None

    def failed(self, error: Exception) -> None:
        """Ends the connection after a fault in performing its logon."""

    def logged_on(self, logon: Logon, answer: LogonAnswer) -> None:
        """Lets the client in."""


class ClientLogon:
    """See the file's docstring. Owner: the connection. Lifecycle: until the client is let in.

    Args:
        flush: writes the frames sent so far: a module's answer arrives in a turn of its own.
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
        """Lets the client in or refuses it, at once or when the modules have answered."""
        connection, clients = self._connection, self._clients
        if connection.client_name:
            connection.end("bad_command", "a logon came behind the one that let it in")
            return
        if self._is_asking:
            connection.end("bad_command", "a logon came before the one before it was answered")
            return
        access_check = connection.accepted_by.access_check
        if access_check is None:
            self._let_in(logon)
            return
        refusal = clients.admission.refusal()
        if refusal is not None:
            self.turn_down(logon, *refusal)
            return
        self._is_asking = True
        clients.runtime.spawn(self._check_access(access_check, logon), connection.failed)

    def turn_down(self, logon: Logon, reason: str, text: str) -> None:
        """Tells the client why it is refused, and ends the connection."""
        connection = self._connection
        connection.end_reason = reason
        connection.send(
            connection.codec.acknowledgment("processed", logon.command_id, reason, text)
        )
        connection.close(text)

    async def _check_access(self, access_check: AccessCheck, logon: Logon) -> None:
        connection = self._connection
        found = await access_check.ask(
            Credentials(
                logon.client_name,
                logon.user_id,
                logon.password,
                connection.peer,
                connection.accepted_by.name,
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
            if not found.is_busy:
                self._clients.occurrences.refused_logon(
                    connection, logon.client_name, logon.user_id, entitled=found.is_entitled
                )
            self.turn_down(logon, *(BUSY if found.is_busy else (AUTH, NOT_LET_IN)))
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
            # The module's name of the user replaces the one that the client claims.
            self._let_in(replace(logon, user_id=found.user, password=""), found.permissions)
        self._flush()

    def name_refusal(self, logon: Logon) -> tuple[str, str] | None:
        """Returns the reason and the sentence with which this client name is refused to everybody;
        None: it may be used."""
        runtime, connection = self._clients.runtime, self._connection
        if (
            runtime.config.actions
            and logon.client_name == client_name(runtime.config.name)
            and connection.accepted_by.name != ACTIONS_TRANSPORT
        ):
            return "name_reserved", f"{logon.client_name} is the name of the actions' own client"
        refused = self._clients.instance.machine.name_refusal(logon.client_name)
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
        # Without a module the claimed user is not verified, so connections are not counted for
        # it.
        user = "" if connection.accepted_by.access_check is None else logon.user_id
        holder = ShareHolder(user, network_of(connection.peer))
        log_client_on(
            clients.instance.machine,
            LoggingOnClient(self, connection, clients, logon, permissions, holder),
            ClientIdentity(
                logon.client_name, logon.low, logon.takes_unused, _owner_of_gaps(holder)
            ),
        )


class LoggingOnClient:
    """A client whose user the modules have identified, in the form that the logon order takes
    (`EnteringClient`).

    Owner: the connection. Lifecycle: one turn of the loop.

    Args:
        holder: the user or address that the connection is counted for.
    """

    __slots__ = ("_clients", "_connection", "_holder", "_logon", "_permissions", "_said", "number")

    def __init__(
        self,
        logon: ClientLogon,
        connection: LogonConnection,
        clients: ClientSessions,
        said: Logon,
        permissions: Permissions | None,
        holder: ShareHolder,
    ) -> None:
        self._logon = logon
        self._connection = connection
        self._clients = clients
        self._said = said
        self._permissions = permissions
        self._holder = holder
        self.number = connection.number

    def refusal(self) -> tuple[str, str] | None:
        """Returns why the instance admits no client now, or not this one; None: it is admitted."""
        connection, clients = self._connection, self._clients
        return (
            clients.admission.refusal(connection.accepted_by.name)
            or self._logon.name_refusal(self._said)
            or clients.share_refusal(self._said, connection, self._holder, connection.accepted_by)
        )

    def displace(self) -> tuple[str, str] | None:
        return self._clients.take_name(self._said, self._connection, self._holder)

    def turn_down(self, reason: str, text: str) -> None:
        """Tells the client why it is refused, and ends the connection."""
        self._logon.turn_down(self._said, reason, text)

    def enter(self) -> Judge | None:
        """Counts the connection, and sets its client name and permissions."""
        connection, clients, said = self._connection, self._clients, self._said
        clients.count_in(connection, self._holder, connection.accepted_by)
        judge = None
        if self._permissions is not None:
            judge = clients.judge(
                self._permissions, said.user_id, said.client_name, connection.peer
            )
            connection.permissions, connection.judge = self._permissions, judge
        connection.client_name, connection.user_id = said.client_name, said.user_id
        return judge

    def logged_on(self, answer: LogonAnswer) -> None:
        self._connection.logged_on(self._said, answer)


def _owner_of_gaps(holder: ShareHolder) -> str:
    """Returns the owner of the gaps of a client's publishers: its user, or its address where no
    module identifies users. Empty, for none, at an address of this host, where a proxy may stand
    for everybody."""
    if holder.user or is_local(holder.network):
        return holder.user
    return f"address {holder.network}"
