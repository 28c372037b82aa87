"""The connections that an instance takes over from its links; replication/link/direct_link.py
decides which."""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
from collections.abc import Mapping, Sequence
from typing import Any, Protocol

from raylay.services.config.instance import DestinationConfig
from raylay.services.errors import RemoteProtocolError
from raylay.services.messages.records import Run
from raylay.services.net.framed import FramedConnection
from raylay.services.net.liveness import SilenceDetector, host_answers, why_lost
from raylay.services.protocol.child import control
from raylay.services.protocol.frames import FrameReader, Header, encode_frame, first_frame
from raylay.services.protocol.link.replication import (
    BEAT,
    NAME_BYTES_MAX,
    REFUSAL_CHARACTERS_MAX,
    REPLICATION_FRAME_BYTES_MAX,
    batch_front,
    pack_rooted,
    read_ack,
    sent_at_ns,
)
from raylay.services.replication.effects import (
    LinkAnswered,
    LinkEffect,
    LinkLacks,
    LinkProgress,
    LinkReport,
    Rooted,
    SendBatch,
)
from raylay.services.replication.link.direct_link import DirectLink, DirectLinkPolicy
from raylay.services.replication.link.outbound import OutboundLink
from raylay.services.replication.link.report_coalescer import ReportCoalescer
from raylay.services.replication.values import DirectLinkState
from raylay.services.server.children.supervisor import Supervisor
from raylay.services.server.recovered_instance import RecoveredInstance
from raylay.services.server.runtime import InstanceRuntime
from raylay.services.telemetry.link_traces import LinkTraces
from raylay.storage.files import bind_private

DATAGRAM_BYTES_MAX = 4096
TELLS_US = 1_000_000
"""Time, in microseconds, between two reports to a link of the messages that filters left out of a
direct link."""


class DescriptorReceiver:
    """The socket to which the links' processes send the descriptors of their connections.

    Owner: the instance's event loop. Lifecycle: `open`, `close`.
    """

    def __init__(self) -> None:
        self._socket: socket.socket | None = None
        self._came: dict[str, tuple[int, socket.socket]] = {}
        """Sockets that a link's process has sent and not announced yet, by destination, each with
        the number of that process."""

    def open(self, path: str) -> None:
        """Opens the socket at this path, which only this user may write to.

        Raises:
            OSError: the socket cannot be made.
        """
        taker = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        taker.setblocking(False)
        bind_private(taker, path)
        self._socket = taker

    def close(self) -> None:
        """Closes the socket and the connections that were not taken."""
        for destination in list(self._came):
            self.forget(destination)
        if self._socket is not None:
            self._socket.close()

    def take(self, destination: str, start_number: int) -> socket.socket | None:
        """Returns the connection that the link's process of this start has sent, which it does
        before it announces it. Connections of other links are kept for them."""
        self._read()
        number, found = self._came.pop(destination, (0, None))
        if found is not None and number != start_number:
            found.close()
            return None
        return found

    def forget(self, destination: str) -> None:
        """Closes the connection that a link sent and did not announce, after the link has gone or
        dials again."""
        self._read()
        _, found = self._came.pop(destination, (0, None))
        if found is not None:
            found.close()

    def _read(self) -> None:
        while self._socket is not None:
            try:
                data, descriptors, _, _ = socket.recv_fds(self._socket, DATAGRAM_BYTES_MAX, 4)
            except OSError:
                return
            given = [socket.socket(fileno=descriptor) for descriptor in descriptors]
            with contextlib.suppress(RemoteProtocolError):
                frame = first_frame(data, DATAGRAM_BYTES_MAX)
                if frame is not None and given:
                    header = frame[0].header
                    came = header["start"], given.pop(0)
                    _, before = self._came.pop(header["destination"], (0, None))
                    self._came[header["destination"]] = came
                    if before is not None:
                        before.close()
            for each in given:
                each.close()


class LinkHost(Protocol):
    """The link that hands over its connection (`LinkControl`)."""

    name: str
    config: DestinationConfig
    process: Supervisor

    def take_report(self, told: LinkReport) -> None:
        """Takes a report of the destination."""

    def wakeable_changed(self) -> None:
        """Tells the writer thread whether to wake the link."""


class DirectLinkControl:
    """An instance's control of the connection of one of its links.

    Owner: the instance's event loop. Lifecycle: as long as its LinkControl.
    """

    def __init__(
        self,
        runtime: InstanceRuntime,
        instance: RecoveredInstance,
        link: LinkHost,
        descriptors: DescriptorReceiver,
    ) -> None:
        self._runtime = runtime
        self._instance = instance
        self._link = link
        self._descriptors = descriptors
        self._policy = DirectLinkPolicy(
            is_allowed=runtime.config.direct_links and not runtime.config.drills
        )
        self._socket: DirectLinkSocket | None = None
        self._counts: dict[str, int] = {}
        """Counts of the direct connections that have ended."""
        self._tells_us = 0

    @property
    def is_direct(self) -> bool:
        return self._socket is not None

    def counts(self, counts: Mapping[str, Any]) -> dict[str, Any]:
        """Adds the counts of the direct connections to those of the link."""
        found = dict(counts)
        for mine in (self._counts, self._socket.counts() if self._socket is not None else {}):
            for name, count in mine.items():
                found[name] = found.get(name, 0) + count
        if self._socket is not None:
            found["cursor_txid"] = self._socket.direct.machine.cursor
        return found

    def tick(self, *, caught_up: bool) -> None:
        """Called regularly. Asks the link for its connection, or keeps a direct connection
        alive."""
        runtime, connection = self._runtime, self._link.process.connection
        if self._socket is not None:
            self._socket.tick()
            if self._socket is not None and runtime.steady_us() >= self._tells_us:
                self._tells_us = runtime.steady_us() + TELLS_US
                self._tell_beside(self._socket)
        elif connection is not None and self._policy.asks(
            caught_up=caught_up,
            committed_txid=self._instance.machine.committed_txid,
            now_us=runtime.steady_us(),
        ):
            connection.send(
                encode_frame({"c": "take_over", "tx": self._instance.machine.committed_txid})
            )

    def committed(self, runs: list[Run]) -> bool:
        """Sends committed runs over a direct connection. Returns whether that is done: the link
        need not be told."""
        if self._socket is None:
            self._policy.committed(runs)
            return False
        self._socket.committed(runs)
        return True

    def notice(self, awaited: Rooted, last_txid: int) -> bool:
        """Asks the destination over a direct connection for its answers. Returns whether that is
        done."""
        if self._socket is None:
            self._policy.said()
            return False
        self._socket.notice(awaited, last_txid)
        return True

    def queue_request(self, frame: bytes) -> bool:
        """Asks for messages of a queue over a direct connection. Returns whether that is done."""
        if self._socket is None:
            return False
        self._socket.queue_request(frame)
        return True

    def names(self, frame: bytes) -> bool | None:
        """Sends names of publishers over a direct connection. Returns whether they went out; None:
        the link is to send them. They wait for a link that was asked for its connection: new
        clients come all the time, and a frame to the link would end the take-over."""
        if self._socket is None:
            return False if self._policy.is_asked else None
        return self._socket.names(frame)

    def mode(self, sync: bool) -> bool:
        """Sets whether messages sent from now on are marked as awaited. Returns whether a direct
        connection sends them."""
        if self._socket is None:
            self._policy.said()
            return False
        self._socket.direct.machine.set_mode(sync)
        return True

    # -- frames from the link ----------------------------------------------------------------
    def kept(self, header: Header) -> None:
        """Notes that the link does not hand over its connection."""
        self._policy.kept(self._runtime.steady_us(), for_good=header["for_good"])

    def given(self, header: Header, body: bytes, start_number: int) -> None:
        """Takes over the link's connection. All commits have been handled before."""
        runtime, link = self._runtime, self._link
        state = control.read_hand_over(header, body)
        behind = self._policy.taken(state.cursor, runtime.steady_us())
        found = self._descriptors.take(link.name, start_number)
        if behind is None or found is None:
            if found is not None:
                found.close()
            self._say_over("the instance cannot go on with it")
            return
        self._socket = DirectLinkSocket(runtime, self._instance, self, link, state, header)
        link.wakeable_changed()
        self._socket.committed(behind)
        runtime.spawn(self._socket.connect(found))

    def return_it(self, why: str) -> None:
        """Ends the direct connection; the link dials again."""
        if self._socket is not None:
            self._socket.abort(why)
        else:
            self._policy.said()

    def over(self, direct_socket: DirectLinkSocket, why: str) -> None:
        if self._socket is not direct_socket:
            return
        for name, count in direct_socket.counts().items():
            self._counts[name] = self._counts.get(name, 0) + count
        self._tell_beside(direct_socket)
        self._socket = None
        self._link.wakeable_changed()
        self._say_over(why)

    def _tell_beside(self, direct_socket: DirectLinkSocket) -> None:
        """Reports to the link the messages that the filters left out, so that it need not read them
        again."""
        connection, beside = self._link.process.connection, direct_socket.direct.machine.beside
        if beside and connection is not None:
            for stretch, ranges in beside.taken().items():
                connection.send(control.beside(stretch, ranges))

    def _say_over(self, why: str) -> None:
        self._link.process.say(encode_frame({"c": "returned", "why": why}))

    def ended(self, why: str) -> None:
        if self._socket is not None:
            self._socket.abort(why)
        self._descriptors.forget(self._link.name)
        self._policy.ended(self._runtime.steady_us())


class DirectLinkSocket(FramedConnection):
    """A connection that a link has handed over. Owner: the instance's event loop. Lifecycle: until
    its end, which is reported to the link."""

    urgency = 0
    """Rank of its frames in the outbox: first, as publishers wait for the acks."""

    def __init__(
        self,
        runtime: InstanceRuntime,
        instance: RecoveredInstance,
        owner: DirectLinkControl,
        link: LinkHost,
        state: DirectLinkState,
        header: Header,
    ) -> None:
        reader = FrameReader(frame_bytes_max=REPLICATION_FRAME_BYTES_MAX)
        super().__init__(runtime.outbox, runtime.loop, reader)
        self._runtime = runtime
        self._instance = instance
        self._owner = owner
        self._link = link
        destination = link.config.destination()
        machine = OutboundLink(
            destination, link.config.window_bytes, filters=self._instance.filters
        )
        machine.take_over(state)
        self._may_defer = machine.may_defer
        self.direct = DirectLink(machine)
        self._telling = ReportCoalescer(
            lambda told, _: link.take_report(told),
            lambda *_: None,
            waited_for=destination.sync,
        )
        self._traces = LinkTraces(
            self._instance.tracing, runtime.config.name, header["peer"], header["epoch"]
        )
        self._sent_wire_bytes = 0
        self._due_timer: asyncio.TimerHandle | None = None
        self._behind: list[Run] = []
        """Runs that were committed before the socket was open here."""
        self._why = ""
        self._silence = SilenceDetector()

    async def connect(self, found: socket.socket) -> None:
        try:
            if self._why:
                found.close()
            else:
                await self.loop.connect_accepted_socket(lambda: self, found)
        except OSError as error:
            self._end(str(error))

    def opened(self) -> None:
        if self._why:
            self.abort(self._why)
            return
        self._runtime.report("link_direct", destination=self._link.name)
        behind, self._behind = self._behind, []
        self.committed(behind)

    def abort(self, why: str) -> None:
        """Ends the connection at once, also for the link's process, which holds a duplicate of the
        descriptor."""
        self._why = why
        if self.transport is not None and not self.transport.is_closing():
            # uvloop's socket object cannot be shut down, so a duplicate is. Where no descriptor is
            # free for it, the link ends the connection when it is told of the end.
            with contextlib.suppress(OSError):
                fileno = os.dup(self.transport.get_extra_info("socket").fileno())
                with socket.socket(fileno=fileno) as found:
                    found.shutdown(socket.SHUT_RDWR)
        super().abort(why)

    def close(self, why: str) -> None:
        """Ends the connection as `abort` does: the link sends what was not sent."""
        self.abort(why)

    def counts(self) -> dict[str, int]:
        machine = self.direct.machine
        return {
            "sent_records": machine.sent_records,
            "sent_bytes": machine.sent_bytes,
            "sent_wire_bytes": self._sent_wire_bytes,
        }

    def tick(self) -> None:
        """Sends heartbeats, ends a silent connection, and passes on delayed reports."""
        if not self.is_open:
            return
        config = self._link.config
        now_s = self.loop.time()
        timeout_s, heard_s = config.timeout_ms / 1000, self.received_at_s
        if self._silence.is_lost(
            now_s - heard_s, heard_s, timeout_s, lambda: host_answers(self.transport, timeout_s)
        ):
            self.abort(why_lost(now_s - heard_s, timeout_s))
            return
        if now_s - self.sent_at_s >= config.heartbeat_ms / 1000:
            self.send(BEAT)
        self._telling.flush()

    # -- outgoing frames ---------------------------------------------------------------------
    def committed(self, runs: list[Run]) -> None:
        if self.is_open:
            self._perform(self.direct.committed(runs, self._now_us()))
        else:
            self._behind += runs

    def notice(self, awaited: Rooted, last_txid: int) -> None:
        if self.is_open:
            self._perform(self.direct.notice(awaited, last_txid, self._now_us()))
        else:
            self.abort("it was to be asked before it was open")

    def queue_request(self, frame: bytes) -> None:
        """Asks for messages of a queue, if the frame can be written at once."""
        if self.is_open and not self.unsent_bytes:
            self.send(frame)

    def names(self, frame: bytes) -> bool:
        if self.is_open:
            self.send(frame)
        return self.is_open

    def _now_us(self) -> int:
        return int(self.loop.time() * 1e6)

    def _perform(self, effects: list[LinkEffect], at_ns: int = 0) -> None:
        # Batches first: a report may cause a question at once, which is sent in a later batch.
        for effect in effects:
            if isinstance(effect, SendBatch):
                self._send(effect)
        for effect in effects:
            if isinstance(effect, LinkAnswered):
                self._telling.answered(effect, at_ns)
            elif isinstance(effect, LinkProgress):
                self._telling.progress(effect)
            elif isinstance(effect, LinkLacks):
                self._telling.lacks(effect)
        if self.direct.trouble:
            self.abort(self.direct.trouble)
        elif self._may_defer and self.direct.due_us is not None:
            self._wait_until_due(self.direct.due_us)

    def _send(self, batch: SendBatch) -> None:
        if len(batch.runs) == 1:
            parts: Sequence[bytes] = batch.runs[0].pieces()
        else:
            parts = [piece for run in batch.runs for piece in run.pieces()]
        size_bytes = sum(map(len, parts))
        front = batch_front(
            batch.number,
            batch.marked,
            batch.caught_up,
            pack_rooted(batch.awaited),
            "",
            size_bytes,
            batch.yours,
        )
        self._sent_wire_bytes += len(front) + size_bytes
        self.send_parts((front, *parts), len(front) + size_bytes)
        self._traces.sent(batch.number, batch.runs)

    def _wait_until_due(self, due_us: int) -> None:
        if self._due_timer is None:
            delay_s = max(0, due_us - self._now_us()) / 1e6
            self._due_timer = self.loop.call_later(delay_s, self._look_again)

    def _look_again(self) -> None:
        self._due_timer = None
        if self.is_open:
            self._perform(self.direct.look_again(self._now_us()))
            self.outbox.flush()

    # -- incoming frames ---------------------------------------------------------------------
    def data_received(self, data: bytes) -> None:
        """Takes acks. The acks of publishers that they release are written at once."""
        self.outbox.await_flush()
        try:
            super().data_received(data)
        finally:
            self.outbox.flush()

    def frame_received(self, header: Header, body: bytes) -> None:
        if header["c"] == "ack":
            number, held, persisted, conflicts = read_ack(header, body)
            at_ns = sent_at_ns(header)
            self._traces.acked(number, persisted, at_ns)
            acked = self.direct.acked(number, held, persisted, conflicts, self._now_us())
            self._perform(acked, at_ns)
        elif header["c"] == "refused":
            reason = str(header.get("reason") or "refused")[:NAME_BYTES_MAX]
            text = str(header.get("text") or "it gives no reason")[:REFUSAL_CHARACTERS_MAX]
            self._runtime.report(
                "link_refused", destination=self._link.name, reason=reason, text=text
            )
            self.abort(f"{reason}: {text}")
        elif header["c"] != "beat":
            # A refusal or a move: the link hears the same when it dials.
            self.abort(f"{header['c'][:64]} came")

    def failed(self, error: Exception) -> None:
        """Ends the connection after a fault in handling a frame of the destination."""
        self._instance.contain(error, self._link.name, lambda _, text: self.abort(text))

    def broken(self, error: RemoteProtocolError) -> None:
        self.abort(f"{error.reason}: {error}")

    def ended(self, why: str) -> None:
        self._telling.flush()
        if self._due_timer is not None:
            self._due_timer.cancel()
        self._owner.over(self, why)
