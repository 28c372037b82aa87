"""The access check of a link, or of an instance that asks for a copy, before any of its frames
counts."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from raylay.services.net.framed import WriteQueue
from raylay.services.protocol.link.link_credentials import retry
from raylay.services.security.credentials import Challenge, Credentials, LogonDenied
from raylay.services.security.permissions import Permissions
from raylay.services.server.access import AUTH, BUSY, AccessCheck, ShownCertificate, verified
from raylay.services.server.runtime import InstanceRuntime

NOT_ENTITLED = "not_entitled"
"""Reason of the end of a connection whose messages are of a topic that its user may not
replicate."""


class AccessSubject(Protocol):
    """The connection that is checked (`UpstreamConnection`)."""

    is_open: bool
    peer: str
    transport_name: str
    permissions: Permissions | None
    user: str | None
    outbox: WriteQueue

    @property
    def peer_certificate(self) -> ShownCertificate | None:
        """The certificate of the other side; None: the other side showed none."""

    def send(self, frame: bytes) -> None:
        """Sends a frame."""

    def refuse(self, reason: str, text: str) -> None:
        """Ends the connection and tells the other side why."""

    def failed(self, error: Exception) -> None:
        """Ends the connection after a fault in its access check."""


class LinkAccess:
    """See the file's docstring. Owner: the connection. Lifecycle: until the link is let in."""

    __slots__ = ("_connection", "_round", "_runtime", "is_asking")

    def __init__(self, connection: AccessSubject, runtime: InstanceRuntime) -> None:
        self._connection = connection
        self._runtime = runtime
        self._round = 0
        self.is_asking = False
        """Whether the modules have not answered yet: no frame is accepted meanwhile."""

    def ask(
        self,
        access_check: AccessCheck | None,
        name: str,
        said: tuple[str, str],
        let_in: Callable[[], None],
    ) -> None:
        """Calls `let_in`, at once or when the modules have answered, or ends the connection.

        Args:
            access_check: the access check of the transport; None: everybody is let in.
            name: the name of the other side's instance.
            said: the user id and the password that the other side has sent.
        """
        if access_check is None:
            let_in()
            return
        self.is_asking = True
        self._runtime.spawn(self._pass(access_check, name, said, let_in), self._connection.failed)

    async def _pass(
        self,
        access_check: AccessCheck,
        name: str,
        said: tuple[str, str],
        let_in: Callable[[], None],
    ) -> None:
        connection = self._connection
        found = await access_check.ask(
            Credentials(
                name,
                *said,
                connection.peer,
                connection.transport_name,
                verified(connection.peer_certificate),
                round=self._round,
                is_replication=True,
                still_waits=lambda: connection.is_open,
            )
        )
        self.is_asking = False
        self._round += 1
        if not connection.is_open:
            return
        if isinstance(found, LogonDenied):
            connection.refuse(*(BUSY if found.is_busy else (AUTH, self._not_let_in(name))))
        elif isinstance(found, Challenge):
            connection.send(retry(found.user_id, found.password))
        else:
            connection.user, connection.permissions = found.user, found.permissions
            let_in()
        connection.outbox.flush()

    def _not_let_in(self, name: str) -> str:
        return (
            f"{self._runtime.config.name} does not let {name} in: user name, password or "
            "certificate do not do, or its user has no replication-logon: correct the "
            "`authenticator` of the link, or what is known of its user there"
        )


def first_kept_out(permissions: Permissions, topics: list[bytes]) -> bytes | None:
    """The first topic whose messages a link may not replicate; None: all are allowed."""
    replicates = permissions.replicates
    return next((topic for topic in topics if not replicates(topic)), None)
