"""The Unix socket on which the processes of an instance's links, the owners of its queues, the
buffers of its slow clients and its administrator's interface connect to it.
"""

from __future__ import annotations

from raylay.services.errors import RemoteProtocolError
from raylay.services.net.framed import FramedConnection
from raylay.services.protocol.child import control
from raylay.services.protocol.frames import FrameReader, Header, encode_frame, first_frame
from raylay.services.server.admin_interface import AdminInterface
from raylay.services.server.clients.slow_clients import BufferControl, ClientPools
from raylay.services.server.links.control import LinkControl, Links
from raylay.services.server.queues.manager import QueueControl, QueueManager

FIRST_FRAME_BYTES_MAX = 64 * 1024


class ChildConnection(FramedConnection):
    """The Unix socket connection of a link's process, of a queue's owner, of a pool's buffer, or of
    the administrator's interface."""

    def __init__(
        self, links: Links, queues: QueueManager, pools: ClientPools, admin: AdminInterface
    ) -> None:
        reader = FrameReader(frame_bytes_max=control.CONTROL_FRAME_BYTES_MAX)
        super().__init__(links.runtime.outbox, links.runtime.loop, reader)
        self._links = links
        self._queues = queues
        self._pools = pools
        self._admin = admin
        self.link: LinkControl | QueueControl | BufferControl | AdminInterface | None = None
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
        """Takes the first frame, which says what the connection is for."""
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
        else:
            super().data_received(data)
            self.outbox.flush()

    def _become_stream(self, header: Header, rest: bytes) -> None:
        """Passes the socket to the protocol of a stream: the bytes that follow are no frames."""
        link = self._links.controls.get(str(header.get("destination")))
        transport = self.transport
        if link is None or transport is None or not link.process.is_of_last_start(header):
            self.abort("not the link of the last start")
            return
        protocol = link.stream_of(header)
        if protocol is None:
            self.close("that connection is gone")
            return
        self.is_open = False
        transport.set_protocol(protocol)
        protocol.connection_made(transport)
        if rest:
            protocol.data_received(rest)

    def frame_received(self, header: Header, body: bytes) -> None:
        if self.link is not None:
            self.link.frame_received(header, body)
            return
        if header["c"] == "hello" and "queue" in header:
            self.link = self._queues.greeted(self, header)
            if self.link is None:
                self.send(encode_frame({"c": "stop"}))
                self.close("not the queue's owner of the last start")
            return
        if header["c"] == "hello" and "buffer" in header:
            self.link = self._pools.greeted(self, header)
            if self.link is None:
                self.send(encode_frame({"c": "stop"}))
                self.close("not the buffer of the last start")
            return
        if header["c"] == "hello" and "admin" in header:
            if not self._admin.greeted(self, header):
                self.send(encode_frame({"c": "stop"}))
                self.close("not the administrator's interface of the last start")
                return
            self.link = self._admin
            return
        link = self._links.controls.get(str(header.get("destination")))
        if header["c"] == "wake":
            if link is not None and link.wakes_by(self, header):
                self._wakes = link
            else:
                self.close("not the link of the last start")
            return
        if header["c"] != "hello" or link is None or not link.greeted(self, header):
            # A link of an earlier start of the instance, or a process that is none of its
            # children.
            self.send(encode_frame({"c": "stop"}))
            self.close("not the link of the last start")
            return
        self.link = link

    def broken(self, error: RemoteProtocolError) -> None:
        self.abort(str(error))

    def failed(self, error: Exception) -> None:
        """Ends the connection after a fault in handling a frame of the child, which may have been
        caused by a peer's data."""
        who = self.link.name if self.link is not None else "a process of ours"
        self._links.runtime.contain(error, who, lambda _, text: self.abort(text))

    def ended(self, why: str) -> None:
        if self.link is not None:
            self.link.lost(self, why)
        if self._wakes is not None:
            self._wakes.wakes_no_more(self)
