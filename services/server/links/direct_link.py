"""The connections that the links of an instance hand over to it; replication/link/direct_link.py
decides which."""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
from collections.abc import Mapping
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
from raylay.services.server.runtime import InstanceRuntime
from raylay.services.telemetry.link_traces import LinkTraces
from raylay.storage.files import bind_private

DATAGRAM_BYTES_MAX = 4096
TELLS_US = 1_000_000
"""Time between two reports to a link of what the filters left out of what its instance sends."""


class DescriptorReceiver:
    """The socket to which the links' processes send the descriptors of their connections.

    Owner: the instance's event loop. Lifecycle: `open`, `close`.
    """

    def __init__(self) -> None:
        self._socket: socket.socket | None = None
        self._came: dict[str, tuple[int, socket.socket]] = {}
        """Sockets, by destination, that a link's process has sent and not told of yet, each with
        the number of that process."""

    def open(self, path: str) -> None:
        """Takes them at this path, which only this user may write to.

        Raises:
            OSError: it cannot be made.
        """
        taker = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        taker.setblocking(False)
        bind_private(taker, path)
        self._socket = taker

    def close(self) -> None:
        """Takes none any more."""
        for destination in list(self._came):
            self.forget(destination)
        if self._socket is not None:
            self._socket.close()

    def take(self, destination: str, start_number: int) -> socket.socket | None:
        """Returns what the link's process of this start has sent; it does before it tells of it.
        What other links have sent meanwhile is kept for them."""
        self._read()
        number, found = self._came.pop(destination, (0, None))
        if found is not None and number != start_number:
            found.close()
            return None
        return found

    def forget(self, destination: str) -> None:
        """Closes what a link that has gone, or dials again, sent and did not tell of."""
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
        """Takes what the destination answered."""

    def wakeable_changed(self) -> None:
        """Tells the writer thread whether to wake the link."""


class DirectLinkControl:
    """An instance's control of the connection of one of its links.

    Owner: the instance's event loop. Lifecycle: as long as its LinkControl.
    """

    def __init__(
        self, runtime: InstanceRuntime, link: LinkHost, descriptors: DescriptorReceiver
    ) -> None:
        self._runtime = runtime
        self._link = link
        self._descriptors = descriptors
        self._policy = DirectLinkPolicy(
            is_allowed=runtime.config.direct_links and not runtime.config.drills
        )
        self._socket: DirectLinkSocket | None = None
        self._counts: dict[str, int] = {}
        """Counts of the connections that are over."""
        self._tells_us = 0

    @property
    def is_direct(self) -> bool:
        return self._socket is not None

    def counts(self, counts: Mapping[str, Any]) -> dict[str, Any]:
        """Returns what the link counted, and what went over the connections that it handed over."""
        found = dict(counts)
        for mine in (self._counts, self._socket.counts() if self._socket is not None else {}):
            for name, count in mine.items():
                found[name] = found.get(name, 0) + count
        if self._socket is not None:
            found["cursor_txid"] = self._socket.direct.machine.cursor
        return found

    def tick(self, *, caught_up: bool) -> None:
        """Called regularly: asks for the connection, or keeps it alive."""
        runtime, connection = self._runtime, self._link.process.connection
        if self._socket is not None:
            self._socket.tick()
            if self._socket is not None and runtime.steady_us() >= self._tells_us:
                self._tells_us = runtime.steady_us() + TELLS_US
                self._tell_beside(self._socket)
        elif connection is not None and self._policy.asks(
            caught_up=caught_up,
            committed_txid=runtime.machine.committed_txid,
            now_us=runtime.steady_us(),
        ):
            connection.send(encode_frame({"c": "take_over", "tx": runtime.machine.committed_txid}))

    def committed(self, runs: list[Run]) -> bool:
        """Takes runs that are on disk. Returns whether the link need not be told."""
        if self._socket is None:
            self._policy.committed(runs)
            return False
        self._socket.committed(runs)
        return True

    def notice(self, awaited: Rooted, last_txid: int) -> bool:
        """The destination is to be asked. Whether that is done."""
        if self._socket is None:
            self._policy.said()
            return False
        self._socket.notice(awaited, last_txid)
        return True

    def queue_request(self, frame: bytes) -> bool:
        """Asks for messages of a queue. Whether the link need not do so."""
        if self._socket is None:
            return False
        self._socket.queue_request(frame)
        return True

    def names(self, frame: bytes) -> bool | None:
        """Tells names of publishers. Whether they went out; None: the link is to do so. They wait
        for a link that was asked for its connection: clients come all the time, and what it was
        told would end that."""
        if self._socket is None:
            return False if self._policy.is_asked else None
        return self._socket.names(frame)

    def mode(self, sync: bool) -> bool:
        """Sets whether what is sent from now on is marked. Returns whether that is done."""
        if self._socket is None:
            self._policy.said()
            return False
        self._socket.direct.machine.set_mode(sync)
        return True

    # -- what the link says ------------------------------------------------------------------
    def kept(self, header: Header) -> None:
        """The link does not hand over its connection."""
        self._policy.kept(self._runtime.steady_us(), for_good=header["for_good"])

    def given(self, header: Header, body: bytes, start_number: int) -> None:
        """The link hands it over. All that is committed is taken already."""
        runtime, link = self._runtime, self._link
        state = control.read_hand_over(header, body)
        behind = self._policy.taken(state.cursor, runtime.steady_us())
        found = self._descriptors.take(link.name, start_number)
        if behind is None or found is None:
            if found is not None:
                found.close()
            self._say_over("the instance cannot go on with it")
            return
        self._socket = DirectLinkSocket(runtime, self, link, state, header)
        link.wakeable_changed()
        self._socket.committed(behind)
        runtime.spawn(self._socket.connect(found))

    def return_it(self, why: str) -> None:
        """Ends the connection; the link dials again."""
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
        """Tells the link what the filters left out, which it need not read again."""
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
    """A connection that a link has handed over. Owner: the instance's event loop. Lifecycle: to its
    end, which the link hears of."""

    urgency = 0
    """Somebody's publisher waits for the answer."""

    def __init__(
        self,
        runtime: InstanceRuntime,
        owner: DirectLinkControl,
        link: LinkHost,
        state: DirectLinkState,
        header: Header,
    ) -> None:
        reader = FrameReader(frame_bytes_max=REPLICATION_FRAME_BYTES_MAX)
        super().__init__(runtime.outbox, runtime.loop, reader)
        self._runtime = runtime
        self._owner = owner
        self._link = link
        destination = link.config.destination()
        machine = OutboundLink(destination, link.config.window_bytes, filters=self._runtime.filters)
        machine.take_over(state)
        self.direct = DirectLink(machine)
        self._telling = ReportCoalescer(
            lambda told, _: link.take_report(told),
            lambda *_: None,
            waited_for=destination.sync,
        )
        self._traces = LinkTraces(
            runtime.tracing, runtime.config.name, header["peer"], header["epoch"]
        )
        self._sent_wire_bytes = 0
        self._due_timer: asyncio.TimerHandle | None = None
        self._behind: list[Run] = []
        """Committed before it is connected here."""
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
        """Ends it at once, for the link's process, too, which has the descriptor as well."""
        self._why = why
        if self.transport is not None and not self.transport.is_closing():
            # What uvloop gives for it cannot be shut down. Where no descriptor is left for another
            # one, the link ends it: it hears that it is over.
            with contextlib.suppress(OSError):
                fileno = os.dup(self.transport.get_extra_info("socket").fileno())
                with socket.socket(fileno=fileno) as found:
                    found.shutdown(socket.SHUT_RDWR)
        super().abort(why)

    def close(self, why: str) -> None:
        """Closes the socket as `abort` does: what was not sent, the link sends."""
        self.abort(why)

    def counts(self) -> dict[str, int]:
        machine = self.direct.machine
        return {
            "sent_records": machine.sent_records,
            "sent_bytes": machine.sent_bytes,
            "sent_wire_bytes": self._sent_wire_bytes,
        }

    def tick(self) -> None:
        """Beats, ends what is silent, and tells what is to be told soon."""
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

    # -- what goes out -----------------------------------------------------------------------
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
        """Asks for messages of a queue, where that can be written at once."""
        if self.is_open and not self.unsent_bytes:
            self.send(frame)

    def names(self, frame: bytes) -> bool:
        if self.is_open:
            self.send(frame)
        return self.is_open

    def _now_us(self) -> int:
        return int(self.loop.time() * 1e6)

    def _perform(self, effects: list[LinkEffect], at_ns: int = 0) -> None:
        # Batches first: who is told of an answer may ask for something at once, and that goes out
        # in the batch behind these.
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
        elif self.direct.due_us is not None:
            self._wait_until_due(self.direct.due_us)

    def _send(self, batch: SendBatch) -> None:
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

    # -- what comes in -----------------------------------------------------------------------
    def data_received(self, data: bytes) -> None:
        """Acks came; those of publishers that they release are written at once."""
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
            # Still refused, or instances were moved: the link is told when it dials.
            self.abort(f"{header['c'][:64]} came")

    def failed(self, error: Exception) -> None:
        """Ends the connection: what is done with a frame of the destination's has a fault."""
        self._runtime.contain(error, self._link.name, lambda _, text: self.abort(text))

    def broken(self, error: RemoteProtocolError) -> None:
        self.abort(f"{error.reason}: {error}")

    def ended(self, why: str) -> None:
        self._telling.flush()
        if self._due_timer is not None:
            self._due_timer.cancel()
        self._owner.over(self, why)
