"""The connections that an instance accepts before it has recovered. Each is refused with the
reason: an instance that waits for this one learns what it waits for, and a client goes on to
another instance.

A connection that was accepted here and logs on only after the recovery is refused, too, and comes
again.
"""

from __future__ import annotations

from functools import partial

from raylay.services.errors import RemoteProtocolError
from raylay.services.net.framed import FramedConnection
from raylay.services.protocol.client.codec import NativeCodec
from raylay.services.protocol.client.commands import Logon
from raylay.services.protocol.frames import (
    FRAME_BYTES_MAX,
    LOGON_TIMEOUT_S,
    FrameReader,
    Header,
)
from raylay.services.protocol.link.bootstrap import REQUEST, read_request
from raylay.services.protocol.link.description import LINK_LOGON_BYTES_MAX
from raylay.services.protocol.link.link_credentials import read_said
from raylay.services.protocol.link.replication import (
    REPLICATION_FRAME_BYTES_MAX,
    read_link_logon,
    refusal,
)
from raylay.services.security.connection_shares import ShareHolder, ShareRefusal
from raylay.services.security.incomplete_frames import (
    TOO_MANY,
    IncompleteFrame,
    IncompleteFrames,
    incomplete_bytes_max,
)
from raylay.services.security.logon_turns import network_of
from raylay.services.security.permissions import Permissions
from raylay.services.server.admin_interface import AdminInterface
from raylay.services.server.children.child_connection import ChildConnection
from raylay.services.server.clients.admission import unserved
from raylay.services.server.clients.connection_limit import ConnectionLimit
from raylay.services.server.clients.slow_clients import memory_of_process
from raylay.services.server.clients.transport import ClientTransport
from raylay.services.server.links.access import LinkAccess
from raylay.services.server.runtime import InstanceRuntime


class StartingConnections:
    """The connections of an instance that has not recovered.

    Owner: the instance's event loop. Lifecycle: until `close`.

    Args:
        connection_limit: the limit on the instance's connections.
        admin: the administrator's interface.
        copies_from: the sources of the instance's bootstrap; empty: there is none.
    """

    def __init__(
        self,
        runtime: InstanceRuntime,
        connection_limit: ConnectionLimit,
        admin: AdminInterface,
        copies_from: tuple[str, ...],
    ) -> None:
        self.runtime = runtime
        self._admin = admin
        self.connection_limit = connection_limit
        self.copies_from = copies_from
        memory_bytes = memory_of_process()
        self.clients = IncompleteFrames(
            "clients", incomplete_bytes_max(memory_bytes, FRAME_BYTES_MAX)
        )
        """Bytes of incomplete frames that the clients' connections hold."""
        self.links = IncompleteFrames(
            "links", incomplete_bytes_max(memory_bytes, REPLICATION_FRAME_BYTES_MAX)
        )
        """Bytes of incomplete frames that the links' connections hold."""
        self.connected: set[StartingConnection] = set()

    def client(self, transport: ClientTransport) -> StartingClient:
        """Returns the protocol of a connection that was accepted at a client transport."""
        return StartingClient(self, transport)

    def upstream(self, transport: ClientTransport) -> StartingUpstream:
        """Returns the protocol of a connection that was accepted at a replication transport."""
        return StartingUpstream(self, transport)

    def child(self) -> ChildConnection:
        """Returns the protocol of a connection of the administrator's interface, the only child
        process that runs before the recovery."""
        return ChildConnection(self.runtime, self._admin, None)

    def refusal(self) -> tuple[str, str]:
        """Returns the reason and the sentence with which everybody is refused."""
        runtime = self.runtime
        if runtime.is_serving:
            name = runtime.config.name
            return "not_ready", f"{name} was starting when this connection came: connect again"
        return unserved(runtime)

    def copy_refusal(self, asks: str) -> tuple[str, str]:
        """Returns the reason and the sentence with which an instance that would copy from here is
        refused.

        Args:
            asks: the name of that instance.
        """
        runtime = self.runtime
        if runtime.is_serving or not self.copies_from:
            return self.refusal()
        return "bootstrapping", (
            f"{runtime.config.name} is itself empty and waits to copy from "
            f"{', '.join(self.copies_from)}: where that is {asks}, both wait for ever; start one "
            "of them without Bootstrap first"
        )

    def close(self, why: str) -> None:
        """Ends the connections."""
        for each in list(self.connected):
            each.close(why)


class StartingConnection(FramedConnection):
    """A connection that is to be refused. It is counted, and limited in time and in bytes, as any
    connection that has not logged on.

    Owner: the instance's event loop. Lifecycle: one connection.
    """

    def __init__(
        self,
        start: StartingConnections,
        accepted_by: ClientTransport,
        frames: IncompleteFrames,
        reader_bytes_max: int,
    ) -> None:
        self._incomplete = IncompleteFrame(self._holds_too_much)
        self._frames = frames
        self.holds = partial(frames.holds, self._incomplete)
        runtime = start.runtime
        reader = FrameReader(frame_bytes_max=reader_bytes_max, holds=self.holds)
        super().__init__(runtime.outbox, runtime.loop, reader)
        self.start = start
        self.accepted_by = accepted_by
        self._logon_timer = runtime.loop.call_later(LOGON_TIMEOUT_S, self._logon_late)

    def opened(self) -> None:
        """Counts the connection."""
        self.start.connected.add(self)
        self._frames.belongs(self._incomplete, ShareHolder("", network_of(self.peer)))
        self.start.connection_limit.came(self)
        if self.is_open:
            self.accepted_by.came(self)

    def refuse(self, reason: str, text: str) -> None:
        """Tells the other side why it is refused, and ends the connection. For subclasses."""
        raise NotImplementedError

    def turn_away(self, text: str) -> None:
        self.refuse(TOO_MANY, text)

    def end(self, reason: str, text: str) -> None:
        self.refuse(reason, text)

    def _holds_too_much(self, refusal: ShareRefusal) -> None:
        """Ends the connection: of all connections with incomplete frames it holds the most
        bytes."""
        self.start.runtime.over_share(
            self.accepted_by.kind,
            "frames",
            peer=self.peer,
            transport=self.accepted_by.name,
            text=refusal.text,
        )
        self.refuse(TOO_MANY, refusal.text)

    def _logon_late(self) -> None:
        self.refuse("logon_timeout", f"no logon within {LOGON_TIMEOUT_S:g} s")

    def broken(self, error: RemoteProtocolError) -> None:
        self.refuse(error.reason, str(error))

    def failed(self, error: Exception) -> None:
        """Ends the connection after a fault in handling its frame."""
        self.start.runtime.contain(error, self.peer, self.refuse)

    def ended(self, why: str) -> None:
        self.start.connected.discard(self)
        self.start.connection_limit.left(self)
        self.accepted_by.left(self)
        self._frames.left(self._incomplete)
        self._logon_timer.cancel()


class StartingClient(StartingConnection):
    """A client's connection, refused at its first command."""

    def __init__(self, start: StartingConnections, accepted_by: ClientTransport) -> None:
        super().__init__(start, accepted_by, start.clients, FRAME_BYTES_MAX)
        self._codec = NativeCodec(self.holds)

    def data_received(self, data: bytes) -> None:
        """Takes bytes, and refuses the client when they complete a command."""
        self.received_at_s = self.loop.time()
        if not self.is_open:
            return
        try:
            commands = self._codec.receive(data)
        except RemoteProtocolError as error:
            self.broken(error)
            return
        except Exception as error:
            self.failed(error)
            return
        if commands and self.is_open:
            first = commands[0]
            self._refuse(
                first.command_id if isinstance(first, Logon) else "", *self.start.refusal()
            )

    def refuse(self, reason: str, text: str) -> None:
        """Tells the client why it is refused, and ends the connection."""
        self._refuse("", reason, text)

    def _refuse(self, command_id: str, reason: str, text: str) -> None:
        self.send(self._codec.acknowledgment("processed", command_id, reason, text))
        self.close(text)

    def ended(self, why: str) -> None:
        self._codec.closed()
        super().ended(why)


class StartingUpstream(StartingConnection):
    """The connection of another instance's link, or of an instance that would copy from this one.
    It is refused when its user is known, so that no other caller learns of a bootstrap's
    sources."""

    def __init__(self, start: StartingConnections, accepted_by: ClientTransport) -> None:
        super().__init__(start, accepted_by, start.links, LINK_LOGON_BYTES_MAX)
        self.transport_name = accepted_by.name
        self.permissions: Permissions | None = None
        self.user: str | None = None
        self._access = LinkAccess(self, start.runtime)

    def frame_received(self, header: Header, body: bytes) -> None:
        """Takes a logon, or a request for a copy."""
        if self._access.is_asking:
            if header["c"] != "beat":
                self.refuse("bad_command", "a link goes on before its logon is answered")
            return
        start, access_check = self.start, self.accepted_by.access_check
        if header["c"] == REQUEST:
            asks = read_request(header).name
            self._access.ask(access_check, asks, read_said(header), lambda: self._refuse_copy(asks))
            return
        logon = read_link_logon(header, body)
        said = logon.user_id, logon.password
        self._access.ask(access_check, logon.name, said, lambda: self.refuse(*start.refusal()))

    def _refuse_copy(self, asks: str) -> None:
        reason, text = self.start.copy_refusal(asks)
        self.start.runtime.report("bootstrap_refused", peer=asks, text=text)
        self.refuse(reason, text)

    def refuse(self, reason: str, text: str) -> None:
        """Tells the other side why it is refused, and ends the connection."""
        self.send(refusal(reason, text, None))
        self.close(text)
