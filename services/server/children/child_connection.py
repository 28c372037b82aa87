"""The Unix socket on which the processes of an instance's links, the owners of its queues, the
buffers of its slow clients, its administrator's interface and the runner of its actions connect
to it.
"""

from __future__ import annotations

import asyncio
from typing import NamedTuple

from raylay.services.errors import RemoteProtocolError
from raylay.services.net.framed import FramedConnection
from raylay.services.protocol.child import control
from raylay.services.protocol.frames import FrameReader, Header, encode_frame, first_frame
from raylay.services.server.action_runner import ActionControl
from raylay.services.server.admin_interface import AdminInterface
from raylay.services.server.clients.slow_clients import BufferControl, ClientPools
from raylay.services.server.links.control import LinkControl, Links
from raylay.services.server.queues.manager import QueueControl, QueueManager
from raylay.services.server.runtime import InstanceRuntime

FIRST_FRAME_BYTES_MAX = 64 * 1024
ChildHost = LinkControl | QueueControl | BufferControl | AdminInterface | ActionControl
"""The instance's end of one of its child processes."""


class ChildHosts(NamedTuple):
    """The parts of a serving instance that its child processes connect to.

    Attributes:
        links: the links, each with a process.
        queues: the queues, each with an owner.
        pools: the pools of slow clients, each with a buffer.
        actions: the actions, which one process runs.
    """

    links: Links
    queues: QueueManager
    pools: ClientPools
    actions: ActionControl


class ChildConnection(FramedConnection):
    """The Unix socket connection of a link's process, of a queue's owner, of a pool's buffer, of
    the administrator's interface, or of the runner of actions.

    Args:
        admin: the administrator's interface.
        hosts: the parts of the instance to which its other processes connect; None: the instance
            has not recovered, and has started no other process.
    """

    def __init__(
        self, runtime: InstanceRuntime, admin: AdminInterface, hosts: ChildHosts | None
    ) -> None:
        reader = FrameReader(frame_bytes_max=control.CONTROL_FRAME_BYTES_MAX)
        super().__init__(runtime.outbox, runtime.loop, reader)
        self._runtime = runtime
        self._hosts = hosts
        self._admin = admin
        self.link: ChildHost | None = None
        self._wakes: LinkControl | None = None
        self._front = b""

    def data_received(self, data: bytes) -> None:
        """Takes frames. Acks that they release are written at once and not at the end of the turn,
        because publishers wait for them."""
        if self.link is None and self._wakes is None:
            self._begin(self._front + data)
            return
        super().data_received(data)
        self.outbox.flush()

    def _begin(self, data: bytes) -> None:
        """Takes the first frame, which says which process has connected and for what purpose."""
        try:
            found = first_frame(data, FIRST_FRAME_BYTES_MAX)
        except RemoteProtocolError as error:
            self.broken(error)
            return
        if found is None:
            self._front = data
            return
        self._front = b""
        (header, _), rest = found
        if header["c"] in ("carry", "carried"):
            self._become_stream(header, rest)
        elif header["c"] == "logon":
            self._become_client(header, data)
        else:
            super().data_received(data)
            self.outbox.flush()

    def _become_stream(self, header: Header, rest: bytes) -> None:
        """Passes the socket to the protocol of a stream: the bytes that follow are no frames."""
        link = self._link_of(header)
        transport = self.transport
        if link is None or transport is None or not link.process.is_of_last_start(header):
            self.abort("not the link of the last start")
            return
        protocol = link.stream_of(header)
        if protocol is None:
            self.close("that connection is gone")
            return
        self._pass_to(protocol, transport, rest)

    def _become_client(self, header: Header, data: bytes) -> None:
        """Passes the socket to the protocol of a client, if it is that of the runner of actions."""
        client = None if self._hosts is None else self._hosts.actions.client_of(header)
        transport = self.transport
        if client is None or transport is None:
            self.abort("not the client of the actions")
            return
        self._pass_to(client, transport, data)

    def _pass_to(
        self, protocol: asyncio.Protocol, transport: asyncio.Transport, data: bytes
    ) -> None:
        self.is_open = False
        transport.set_protocol(protocol)
        protocol.connection_made(transport)
        if data:
            protocol.data_received(data)

    def _link_of(self, header: Header) -> LinkControl | None:
        """Returns the link that a process says to be of; None: there is none."""
        if self._hosts is None:
            return None
        return self._hosts.links.controls.get(str(header.get("destination")))

    def frame_received(self, header: Header, body: bytes) -> None:
        if self.link is not None:
            self.link.frame_received(header, body)
            return
        link = self._link_of(header)
        if header["c"] == "wake":
            if link is not None and link.wakes_by(self, header):
                self._wakes = link
            else:
                self.close("not the link of the last start")
            return
        self.link = self._greeted(header, link) if header["c"] == "hello" else None
        if self.link is None:
            # A process of an earlier start of the instance, or one that is none of its children.
            self.send(encode_frame({"c": "stop"}))
            self.close("not the process of the last start")

    def _greeted(self, header: Header, link: LinkControl | None) -> ChildHost | None:
        """Returns the control of the process that begins; None: it is not of the last start."""
        hosts = self._hosts
        if "admin" in header:
            return self._admin if self._admin.greeted(self, header) else None
        if hosts is None:
            return None
        if "actions" in header:
            return hosts.actions if hosts.actions.greeted(self, header) else None
        if "queue" in header:
            return hosts.queues.greeted(self, header)
        if "buffer" in header:
            return hosts.pools.greeted(self, header)
        return link if link is not None and link.greeted(self, header) else None

    def broken(self, error: RemoteProtocolError) -> None:
        self.abort(str(error))

    def failed(self, error: Exception) -> None:
        """Ends the connection after a fault in handling a frame of the child, which may have been
        caused by a peer's data."""
        who = self.link.name if self.link is not None else "a process of ours"
        if self._hosts is None:
            self._runtime.contain(error, who, lambda _, text: self.abort(text))
        else:
            self._hosts.links.instance.contain(error, who, lambda _, text: self.abort(text))

    def ended(self, why: str) -> None:
        if self.link is not None:
            self.link.lost(self, why)
        if self._wakes is not None:
            self._wakes.wakes_no_more(self)
