"""The shell around OutboundLink: one destination of an instance, in a process of its own.

It holds the Unix socket to its instance, the TCP connection downstream and a cursor over the
instance's journal. The instance's socket closing ends it.
"""

from __future__ import annotations

import asyncio
import os
import socket
import time
from collections import deque
from collections.abc import Awaitable, Callable, Coroutine
from dataclasses import dataclass, replace
from typing import Any, cast

from raylay.services.errors import RemoteProtocolError, StorageError
from raylay.services.messages.ranges import PublisherRanges
from raylay.services.messages.records import Flag, Run
from raylay.services.programs.link.telling import Telling
from raylay.services.protocol import control
from raylay.services.protocol.compression import compressor
from raylay.services.protocol.frames import FrameReader, Header, encode_frame
from raylay.services.protocol.replication import (
    BEAT,
    NAME_BYTES_MAX,
    REFUSAL_CHARACTERS_MAX,
    REPLICATION_FRAME_BYTES_MAX,
    REPLICATION_VERSION_MIN,
    Accepted,
    UpstreamLogon,
    batch_front,
    lacks_frames,
    link_logon,
    pack_rooted,
    placed,
    read_accepted,
    read_ack,
    read_part,
    read_placed,
    root_of,
    sent_at_ns,
)
from raylay.services.replication.effects import (
    LinkAnswered,
    LinkEffect,
    LinkLacks,
    LinkProgress,
    Ranges,
    Report,
    Rooted,
    SendBatch,
)
from raylay.services.replication.incoming import awaits_dial, gives_way, uses_incoming
from raylay.services.replication.outbound import OutboundLink
from raylay.services.replication.placement import Placement, from_wire
from raylay.services.server.config import DestinationConfig, LinkConfig, split_address
from raylay.services.telemetry import logs
from raylay.services.telemetry.tracing import Outstanding, Traced, start_tracing, traced
from raylay.services.transports.carried import CarriedStream, Carrier
from raylay.services.transports.framed import FramedConnection, Outbox
from raylay.services.transports.impaired import Impairment, Line
from raylay.storage.journal_reader import LmdbJournalReader

READ_BYTES = 512 * 1024
HEADERS_IN_STEP = 1024
CONNECT_TIMEOUT_S = 3.0
ANSWER_TIMEOUT_S = 10.0
COUNTS_S = 0.5
COMPRESSED_BYTES_MIN = 256
_TRACED = int(Flag.TRACED)
EARLY_ACKS_MAX = 16_384
"""Acks that are kept while the instance is asked how to begin: a few milliseconds, some seconds
where there are very many publishers."""
REREAD_S = 0.002
"""A reader that does not see yet what its instance told of is asked again so soon."""
AWAITS_DIAL_S = 0.5
"""Where connections are shared, the side that would give way lets the other one dial first for so
long: about what an instance needs to start a link again that was killed."""


@dataclass(frozen=True, slots=True)
class _Incoming:
    """A connection that the other side made, as the instance tells of it."""

    upstream: int
    name: str
    incarnation: int
    proven: bool


Ack = tuple[int, Ranges, Rooted, Ranges, int]
"""What `read_ack` gives, and when it was sent."""


class _Downstream(Carrier):
    """The connection to the destination.

    Args:
        carried: it goes over a connection that the other side made.
        proven: it counts when it says that the link's instance is an old copy of itself.
    """

    def __init__(self, link: LinkServer, *, carried: bool, proven: bool = True) -> None:
        reader = FrameReader(frame_bytes_max=REPLICATION_FRAME_BYTES_MAX)
        super().__init__(link.outbox, link.loop, reader)
        self.link = link
        self.is_carried = carried
        self._is_proven = proven
        self.accepted: Accepted | None = None
        self.held: PublisherRanges | None = None
        self.early: list[Ack] = []
        """Acks that came before the instance said how to begin: their answers come once."""
        self.answer: asyncio.Future[None] = link.loop.create_future()
        self.why = ""

    def frame_received(self, header: Header, body: bytes) -> None:
        """A frame of the destination's."""
        command = header["c"]
        if command == "ack":
            if self.answer.done():
                self.link.acked(self, header, body)
        elif command == "placed":
            self._told(read_placed(header))
        elif command == "refused":
            self._told(read_placed(header))
            reason = str(header.get("reason") or "refused")[:NAME_BYTES_MAX]
            text = str(header.get("text") or "it gives no reason")[:REFUSAL_CHARACTERS_MAX]
            self.why = f"{reason}: {text}"
            if reason == "stale_epoch" and self._is_proven:
                self.link.epoch_refused(self)
            self.link.event("link_refused", reason=reason, text=text)
            self.close(self.why)
        elif command == "accepted":
            if self.accepted is not None:
                raise RemoteProtocolError("accepted came a second time", "bad_command")
            self.accepted = read_accepted(header)
            if not self.accepted.same:
                self.held = PublisherRanges()
        elif command == "held" and self.held is not None and not self.answer.done():
            read_part(body, self.held)
            self.link.relay("held", 0, body)
        elif command == "waited" and self.accepted is not None and not self.answer.done():
            # The instance trusts what its link relays: what is no ranges ends this connection.
            read_part(body, PublisherRanges())
            self.link.relay("waited", root_of(header), body)
            if not header.get("more"):
                self.answer.set_result(None)
        elif command == "carry_begin":
            if self.is_carried:
                raise RemoteProtocolError("a carried stream carries none", "bad_command")
            self.link.bring(self.take_stream(header, self.link.stream_front()))
        elif not self.stream_frame(header, body) and command not in ("beat", "held", "waited"):
            raise RemoteProtocolError(
                f"command {command[:64]!r} of a destination is unknown", "unknown_command"
            )

    def _told(self, placements: dict[str, Placement]) -> None:
        """Of moved instances. Where the other side dialled, that may have been anybody; what it has
        to tell, its own logon told."""
        if not self.is_carried:
            self.link.placed(placements)

    def writable(self) -> None:
        """There is room to write again."""
        super().writable()
        self.link.pump()

    def broken(self, error: RemoteProtocolError) -> None:
        """The destination broke the protocol."""
        self.close(f"{error.reason}: {error}")

    def ended(self, why: str) -> None:
        """The connection is gone."""
        self.why = self.why or why
        if not self.answer.done():
            self.answer.set_exception(ConnectionError(self.why))
            # Read here already: the one who waits for it may have given up before.
            self.answer.exception()
        self.carrier_ended(self.why)
        self.link.downstream_lost(self)


class _Instance(FramedConnection):
    """The Unix socket to the link's own instance."""

    def __init__(self, link: LinkServer) -> None:
        reader = FrameReader(frame_bytes_max=control.CONTROL_FRAME_BYTES_MAX)
        super().__init__(link.outbox, link.loop, reader)
        self.link = link

    def data_received(self, data: bytes) -> None:
        """Frames came; what they brought is read and sent once for all of them."""
        super().data_received(data)
        self.link.pump()

    def frame_received(self, header: Header, body: bytes) -> None:
        """A frame of the instance's."""
        self.link.instance_said(header, body)

    def ended(self, why: str) -> None:
        """The instance is gone."""
        self.link.instance_lost(why)


class _Waking(asyncio.Protocol):
    """The second connection to the instance: its writer thread tells of commits over it."""

    def __init__(self, link: LinkServer) -> None:
        self.link = link
        self._rest = b""
        self._transport: asyncio.Transport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """The socket is connected."""
        self._transport = cast(asyncio.Transport, transport)

    def say(self, frame: bytes) -> None:
        """Says which link this is."""
        if self._transport is not None:
            self._transport.write(frame)

    def data_received(self, data: bytes) -> None:
        """Commits: the last one counts."""
        data = self._rest + data
        whole = len(data) - len(data) % control.WAKE.size
        self._rest = data[whole:]
        if whole:
            last_txid = control.WAKE.unpack_from(data, whole - control.WAKE.size)[0]
            self.link.machine.told(last_txid)
            self.link.pump()


class LinkServer:
    """One link, running. Owner: the DestinationLink actor. Lifecycle: `run` until the instance is
    gone or says stop."""

    def __init__(self, config: LinkConfig) -> None:
        self.config = config
        self.loop: asyncio.AbstractEventLoop
        self.outbox: Outbox
        self.machine = OutboundLink(
            config.destination.destination(), config.destination.window_bytes, self._removed
        )
        self._log = logs.get("link")
        self._line: Line | None = None
        self._reader: LmdbJournalReader
        self._instance: _Instance | None = None
        self._downstream: _Downstream | None = None
        self._instance_gone: asyncio.Future[str]
        self._epoch_answer: asyncio.Future[tuple[Header, bytes]] | None = None
        self._start_answer: asyncio.Future[None] | None = None
        self._lost = asyncio.Event()
        self._started = False
        self._seeking = False
        self._beginning = control.StartReader()
        self._pump_scheduled = False
        self._epoch = 0
        self._peer = ""
        self._compression = (
            config.destination.compression_type if config.destination.compression else ""
        )
        self._compress = compressor(self._compression) if self._compression else None
        self._tracing = start_tracing(config.process_name, config.tracing)
        self._sends: deque[tuple[int, int, list[Traced]]] = deque()
        self._outstanding = Outstanding()
        self._sent_wire_bytes = 0
        self._telling = Telling(
            self._tell,
            lambda delay_s, call: self.loop.call_later(delay_s, call),
            waited_for=config.destination.sync,
        )
        self._unsent: list[Run] = []
        """Read, and not taken by the machine yet."""
        self._due_timer: asyncio.TimerHandle | None = None
        self._shares = uses_incoming(config.destination.destination())
        self._incoming: _Incoming | None = None
        self._arrival = asyncio.Event()
        self._bringing: set[asyncio.Task[None]] = set()
        self._failed_upstream = 0
        """The incoming connection over which the last attempt failed."""
        self._last_carried: bool | None = None
        """Whether it was last connected over a connection of the other side; None: not yet."""

    # -- life --------------------------------------------------------------------------------
    async def run(self) -> str:
        """Runs until the instance is gone; returns why.

        Raises:
            OSError: the instance's socket cannot be connected.
            StorageError: the journal cannot be opened.
        """
        self.loop = asyncio.get_running_loop()
        self.loop.set_exception_handler(self._loop_exception)
        self.outbox = Outbox(self.loop)
        self._line = Line(self.loop) if self.config.drills else None
        self._instance_gone = self.loop.create_future()
        config = self.config
        self._reader = LmdbJournalReader(config.journal_directory, config.archive_directory)
        _, self._instance = await self.loop.create_unix_connection(
            lambda: _Instance(self), config.unix_path
        )
        self._tell(control.hello(config.destination.name, config.start_number, os.getpid()))
        _, waking = await self.loop.create_unix_connection(lambda: _Waking(self), config.unix_path)
        waking.say(control.wake(config.destination.name, config.start_number))
        dialing = self.loop.create_task(self._connect_forever())
        counting = self.loop.create_task(self._count_forever())
        try:
            await asyncio.wait(
                (dialing, counting, self._instance_gone), return_when=asyncio.FIRST_COMPLETED
            )
            for task in (dialing, counting):
                if task.done():
                    # A fault of ours: the process ends, the instance starts another one.
                    await task
            return await self._instance_gone
        finally:
            for task in (dialing, counting):
                task.cancel()
            if self._downstream is not None:
                self._downstream.abort("the link ends")
            if self._instance.is_open:
                self._instance.abort("the link ends")
            self._reader.close()
            self._tracing.close()

    def _loop_exception(self, loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        """A callback of the loop raised. A socket's error ends its connection and no more; with
        anything else the link ends, and the instance starts another one, which begins with what the
        two sides have."""
        error = context.get("exception")
        if error is not None and not isinstance(error, OSError | asyncio.CancelledError):
            loop.default_exception_handler(context)
            self.instance_lost(f"a fault of the link: {error!r}")

    def _tell(self, frame: bytes) -> None:
        if self._instance is not None:
            self._instance.send(frame)

    def event(self, event: str, **details: Any) -> None:
        """Something that people may want to know: it becomes an event of the instance."""
        self._tell(encode_frame({"c": "event", "event": event, "details": details}))

    def instance_lost(self, why: str) -> None:
        """The instance's socket closed."""
        if not self._instance_gone.done():
            self._instance_gone.set_result(why)

    def instance_said(self, header: Header, body: bytes) -> None:
        """A frame of the instance's. `pump` is called behind the last one of a read."""
        command = header["c"]
        machine = self.machine
        if command == "told":
            machine.told(header["tx"])
        elif command == "notice":
            if self._started:
                self._perform(machine.notice(control.read_notice(body), header["tx"]))
        elif command == "mode":
            machine.set_mode(header["sync"])
        elif command == "incoming":
            self._offered(header)
        elif command == "epoch":
            if self._epoch_answer is not None and not self._epoch_answer.done():
                self._epoch_answer.set_result((header, body))
        elif command == "aim":
            self._aim(tuple(header["addresses"]), from_wire(header["placements"]))
        elif command == "refuse":
            self._abandon(header["why"])
        elif command == "part":
            self._beginning.take(header, body)
        elif command == "start":
            self._start(header)
        elif command == "impair":
            if self._line is not None:
                self._line.set(Impairment(**header["state"]), header["seconds"])
        elif command == "stop":
            self.instance_lost("the instance said stop")

    def epoch_refused(self, downstream: _Downstream) -> None:
        """The destination has seen a higher epoch of our instance than this connection's, the last
        one that it gave out."""
        if downstream is self._downstream:
            self._tell(encode_frame({"c": "stale"}))

    # -- moved instances ---------------------------------------------------------------------
    def placed(self, placements: dict[str, Placement]) -> None:
        """The destination tells of instances that were moved."""
        if placements:
            self._tell(control.placed(placements))

    def _aim(self, addresses: tuple[str, ...], news: dict[str, Placement]) -> None:
        """Instances were moved: the other side is told, and left where it is what one was."""
        self.config.destination = replace(self.config.destination, addresses=addresses)
        downstream = self._downstream
        accepted = downstream.accepted if downstream is not None else None
        if downstream is not None and accepted is not None:
            if accepted.version > REPLICATION_VERSION_MIN and downstream.is_open:
                downstream.send(placed(news))
            moved = news.get(accepted.name)
            if moved is not None and accepted.generation < moved.generation:
                self._abandon(f"{accepted.name} was moved to {moved.address or 'another host'}")
        # What is dialled now is worth trying at once.
        self._arrival.set()

    def _abandon(self, why: str) -> None:
        """Leaves the server that it has reached."""
        downstream = self._downstream
        if downstream is not None and downstream.is_open:
            downstream.why = why
            downstream.close(why)

    # -- connecting --------------------------------------------------------------------------
    async def _connect_forever(self) -> None:
        destination = self.config.destination
        pause_ms = destination.retry_ms_min
        while True:
            await self._await_incoming()
            self._arrival.clear()
            failures: list[str] = []
            if await self._connect_once(failures):
                pause_ms = destination.retry_ms_min
            self._tell(encode_frame({"c": "disconnected", "why": "; ".join(failures)[:2000]}))
            # A connection that the other side made meanwhile is a reason to try at once.
            await self._arrives_within(pause_ms / 1000)
            pause_ms = min(2 * pause_ms, destination.retry_ms_max)

    async def _connect_once(self, failures: list[str]) -> bool:
        """Tries every way once, in their order, until one has connected and that connection is lost
        again. Whether one had; `failures` gets what went wrong."""
        destination = self.config.destination
        incoming = self._incoming
        if incoming is not None:
            over = f"over {incoming.name}'s connection"
            if await self._connected_by(over, self._join(incoming, over), None, failures):
                return True
            self._failed_upstream = incoming.upstream
        for address, timeout_s in zip(
            destination.addresses, destination.reconnect_timeouts_s(), strict=True
        ):
            if await self._connected_by(address, self._connect(address), timeout_s, failures):
                return True
        return False

    async def _connected_by(
        self, way: str, connecting: Awaitable[None], timeout_s: float | None, failures: list[str]
    ) -> bool:
        """Whether this way it was connected; then that connection is lost again."""
        try:
            async with asyncio.timeout(timeout_s):
                await connecting
        except (OSError, RemoteProtocolError, TimeoutError) as error:
            # An error without words tells nothing: its kind does.
            failures.append(f"{way}: {str(error) or type(error).__name__}")
            self._drop()
            return False
        self._last_carried = self._downstream is not None and self._downstream.is_carried
        self._give_way()
        await self._stay()
        failures[:] = [f"{way}: {self._why_lost()}"]
        self._drop()
        return True

    async def _await_incoming(self) -> None:
        """Waits for the other side to connect: where there is nothing to dial as long as it takes,
        and for a moment where it is for the other side to dial: who dialled last time dials again,
        the first time a rule decides."""
        destination = self.config.destination
        if not self._shares or self._incoming is not None:
            return
        if destination.addresses:
            awaits = self._last_carried
            if awaits is None:
                awaits = awaits_dial(self.config.instance, destination.server_names)
            if awaits:
                await self._arrives_within(AWAITS_DIAL_S)
            return
        while self._incoming is None:
            why = f"waits for {_waited_for(destination)} to connect"
            self._tell(encode_frame({"c": "waits", "why": why}))
            self._arrival.clear()
            await self._arrival.wait()

    async def _arrives_within(self, timeout_s: float) -> None:
        try:
            await asyncio.wait_for(self._arrival.wait(), timeout_s)
        except TimeoutError:
            pass

    def _offered(self, header: Header) -> None:
        """The instance tells of a connection that the other side made, or that there is none."""
        if header["upstream"]:
            self._incoming = _Incoming(
                header["upstream"], header["name"], header["incarnation"], header["proven"]
            )
            self._arrival.set()
            self._give_way()
        else:
            self._incoming = None

    def _give_way(self) -> None:
        """Where both sides dialled, the connection of one of them is enough."""
        incoming, downstream = self._incoming, self._downstream
        if incoming is None or downstream is None or downstream.is_carried or not self._started:
            return
        if incoming.upstream == self._failed_upstream:
            return
        accepted = downstream.accepted
        config = self.config
        if accepted is None or accepted.incarnation != incoming.incarnation:
            return
        if gives_way(config.instance, config.incarnation, incoming.name, incoming.incarnation):
            downstream.why = f"{incoming.name} has connected: its connection is used"
            downstream.abort(downstream.why)

    def bring(self, stream: CarriedStream) -> None:
        """The destination's link to our instance comes over our connection: it is brought there."""
        task = self.loop.create_task(self._bring(stream))
        self._bringing.add(task)
        task.add_done_callback(self._bringing.discard)

    def stream_front(self) -> bytes:
        """What our instance is told of a stream that is brought to it."""
        return control.carried(self.config.destination.name, self.config.start_number)

    async def _bring(self, stream: CarriedStream) -> None:
        config = self.config
        try:
            await self.loop.create_unix_connection(lambda: stream, config.unix_path)
        except OSError as error:
            stream.end(f"{config.instance} cannot be reached: {error}", tell=True)

    def _why_lost(self) -> str:
        return self._downstream.why if self._downstream is not None else "connection lost"

    def _drop(self) -> None:
        downstream, self._downstream = self._downstream, None
        self._disconnected()
        self._sends.clear()
        if downstream is not None and downstream.is_open:
            downstream.abort("dropped")

    async def _connect(self, address: str) -> None:
        """Dials every address that the name resolves to, logs on, exchanges ranges, starts."""
        host, port = split_address(address)
        resolved = await self.loop.getaddrinfo(host, port, type=socket.SOCK_STREAM)
        problem: Exception = OSError(f"{host} resolves to nothing")
        for *_, target in dict.fromkeys(resolved):
            try:
                await self._connect_to(str(target[0]), int(target[1]), address)
            except (OSError, RemoteProtocolError, TimeoutError) as error:
                problem = error
                self._drop()
            else:
                return
        raise problem

    async def _connect_to(self, host: str, port: int, address: str) -> None:
        await self._log_on(
            self._opened(lambda make: self.loop.create_connection(make, host, port), None),
            address,
        )

    def _opened(
        self,
        connect: Callable[[Callable[[], Any]], Coroutine[Any, Any, Any]],
        incoming: _Incoming | None,
    ) -> Coroutine[Any, Any, tuple[asyncio.Transport, _Downstream]]:
        """A connection by this way, over the line that a drill can make a bad one."""

        def make() -> _Downstream:
            if incoming is None:
                return _Downstream(self, carried=False)
            return _Downstream(self, carried=True, proven=incoming.proven)

        return self._line.open(make, connect) if self._line is not None else connect(make)

    async def _join(self, incoming: _Incoming, over: str) -> None:
        """Connects over a connection that the other side made."""
        config = self.config
        front = control.carry(config.destination.name, config.start_number, incoming.upstream)
        await self._log_on(
            self._opened(
                lambda make: self.loop.create_unix_connection(make, config.unix_path), incoming
            ),
            over,
            front,
        )

    async def _log_on(
        self,
        connecting: Coroutine[Any, Any, tuple[asyncio.Transport, _Downstream]],
        address: str,
        front: bytes = b"",
    ) -> None:
        """Logs on, exchanges ranges, starts."""
        self._lost.clear()
        _, downstream = await asyncio.wait_for(connecting, CONNECT_TIMEOUT_S)
        self._downstream = downstream
        if front:
            downstream.send(front)
        # Asked for when there is somebody to log on to: each is a write to the instance's disk.
        self._epoch_answer = self.loop.create_future()
        self._tell(encode_frame({"c": "dial", "address": address}))
        self._beginning = control.StartReader()
        header, description = await self._epoch_answer
        self._epoch = header["epoch"]
        config = self.config
        destination = config.destination
        downstream.send(
            link_logon(
                UpstreamLogon(
                    config.instance,
                    config.group,
                    config.incarnation,
                    destination.group,
                    destination.name,
                    self._epoch,
                    header["digest"],
                    destination.ack_conflation_ms,
                    description,
                    None if downstream.is_carried else config.address,
                    generation=header["generation"],
                    placements=from_wire(header["placements"]),
                    proof=header["proof"],
                )
            )
        )
        await asyncio.wait_for(downstream.answer, ANSWER_TIMEOUT_S)
        accepted = downstream.accepted
        assert accepted is not None
        if accepted.group != destination.group:
            raise RemoteProtocolError(
                f"{accepted.name} is of group {accepted.group!r}, Destination "
                f"{destination.name!r} expects {destination.group!r}",
                "group",
            )
        if not accepted.validated:
            self.event("link_not_validated", text=f"{accepted.name} does not check links")
        self._peer = accepted.name
        self._start_answer = self.loop.create_future()
        self._tell(
            control.connected(
                accepted.incarnation,
                accepted.name,
                accepted.client,
                address,
                epoch=self._epoch,
                same=accepted.same,
                generation=accepted.generation,
                placements={} if downstream.is_carried else accepted.placements,
            )
        )
        await self._started_or_lost(downstream, self._start_answer)
        if not self._started:
            raise ConnectionError(downstream.why or "connection lost")

    async def _started_or_lost(
        self, downstream: _Downstream, started: asyncio.Future[None]
    ) -> None:
        """Waits for how to begin, which takes a while where there are very many publishers: the
        other side is not to think that nobody is here."""
        heartbeat_s = self.config.destination.heartbeat_ms / 1000
        lost = self.loop.create_task(self._lost.wait())
        try:
            while not started.done() and not lost.done():
                await asyncio.wait(
                    (started, lost), timeout=heartbeat_s, return_when=asyncio.FIRST_COMPLETED
                )
                if not started.done():
                    downstream.send(BEAT)
        finally:
            lost.cancel()

    def relay(self, command: str, root: int, body: bytes) -> None:
        """A part of what the destination holds, or waits for: the instance is to know it."""
        self._tell(control.part_of_logon(command, root, body))

    def _start(self, header: Header) -> None:
        """The instance's answer to `connected`. Done at once, not in a task: what it says next
        belongs to this connection already."""
        downstream = self._downstream
        if self._start_answer is None or self._start_answer.done() or downstream is None:
            return
        if not downstream.is_open or downstream.accepted is None:
            return
        start = self._beginning.started(header)
        held = downstream.held if downstream.held is not None else self._beginning.held
        self._beginning = control.StartReader()
        downstream.held = None
        self._started = self._seeking = True
        self._unsent = []
        self._outstanding = Outstanding()
        self._perform(
            self.machine.connected(
                downstream.accepted.incarnation, held, start, self._reader.first_txid
            )
        )
        early, downstream.early = downstream.early, []
        for ack in early:
            self._take_ack(ack)
        self._start_answer.set_result(None)

    async def _stay(self) -> None:
        """Beats until the connection is lost."""
        destination = self.config.destination
        heartbeat_s = destination.heartbeat_ms / 1000
        timeout_s = destination.timeout_ms / 1000
        while not self._lost.is_set():
            downstream = self._downstream
            if downstream is None:
                return
            now_s = self.loop.time()
            if now_s - downstream.received_at_s > timeout_s:
                downstream.why = f"nothing came for {timeout_s:g} s"
                downstream.abort(downstream.why)
                return
            if now_s - downstream.sent_at_s >= heartbeat_s:
                downstream.send(BEAT)
            try:
                await asyncio.wait_for(self._lost.wait(), heartbeat_s / 2)
            except TimeoutError:
                pass

    def _disconnected(self) -> None:
        self._started = False
        self._telling.disconnected()
        self.machine.disconnected()

    def downstream_lost(self, downstream: _Downstream) -> None:
        """The connection downstream ended."""
        if downstream is self._downstream:
            self._disconnected()
            self._lost.set()

    # -- the data path -----------------------------------------------------------------------
    def pump(self) -> None:
        """Reads what the destination is to be sent, one batch, and sends it."""
        if not self._started or not self.machine.wants:
            return
        downstream = self._downstream
        if downstream is not None and downstream.carried is not None and not downstream.may_write:
            # What the stream carries, acknowledgments, must not stand behind a window of data.
            return
        if self._seeking and self._seek():
            self._pump_soon()
            return
        machine = self.machine
        if machine.cursor < machine.told_txid:
            try:
                runs = self._read()
            except StorageError as error:
                self._cannot_read(error)
                return
            if not runs:
                self.loop.call_later(REREAD_S, self.pump)
                return
        else:
            runs = []
        sent_before = machine.sent_records
        self._perform(machine.take(runs, self._now_us()))
        if runs and runs[-1].last_txid > machine.cursor:
            self._unsent = runs
            self._wait_until_due()
        if machine.resyncing and machine.sent_records == sent_before:
            # All of it was there already: headers are enough to look further.
            self._seeking = True
        self.outbox.flush()
        if machine.wants:
            self._pump_soon()

    def _pump_soon(self) -> None:
        """Goes on in the next turn of the loop, so that acks and beats come in between."""
        if not self._pump_scheduled:
            self._pump_scheduled = True
            self.loop.call_soon(self._pump_scheduled_now)

    def _pump_scheduled_now(self) -> None:
        self._pump_scheduled = False
        self.pump()

    def _now_us(self) -> int:
        return int(self.loop.time() * 1e6)

    def _wait_until_due(self) -> None:
        """A message waits for another way."""
        due_us = self.machine.due_us
        if due_us is not None and self._due_timer is None:
            delay_s = max(0, due_us - self._now_us()) / 1e6
            self._due_timer = self.loop.call_later(delay_s, self._look_again)

    def _look_again(self) -> None:
        self._due_timer = None
        due_us = self.machine.due_us
        if due_us is None:
            return
        if due_us > self._now_us():
            # Others were shown meanwhile.
            self._wait_until_due()
            return
        self.machine.look_again()
        self.pump()

    def _read(self) -> list[Run]:
        machine = self.machine
        unsent, self._unsent = self._unsent, []
        rest = [run for run in unsent if run.last_txid > machine.cursor]
        if rest:
            # Read before, and not taken: it waits, or waited, for another way.
            return rest
        runs = self._reader.read(machine.cursor, READ_BYTES)
        told_txid = machine.told_txid
        # The journal may be ahead of what the instance told of.
        while runs and runs[-1].last_txid > told_txid:
            runs.pop()
        return runs

    def _seek(self) -> bool:
        """One step over what the destination has already. Whether to go on like that."""
        machine = self.machine
        if not machine.resyncing:
            self._seeking = False
            return False
        before_txid = machine.cursor
        try:
            machine.skip_segments(self._reader.segment_summaries())
            headers = self._reader.read_headers(machine.cursor, HEADERS_IN_STEP)
        except StorageError as error:
            self._cannot_read(error)
            return True
        told_txid = machine.told_txid
        headers = [run for run in headers if run.last_txid <= told_txid]
        if not headers or not machine.skip_headers(headers) or machine.cursor == before_txid:
            self._seeking = False
        return self._seeking

    def _removed(self) -> PublisherRanges:
        try:
            return self._reader.removed()
        except StorageError as error:
            self._cannot_read(error)
            return PublisherRanges()

    def _cannot_read(self, error: StorageError) -> None:
        """The journal cannot be read: said aloud, and tried again with a new connection."""
        self.event("link_cannot_read", text=str(error))
        if self._downstream is not None:
            self._downstream.why = str(error)
            self._downstream.abort(str(error))

    def acked(self, downstream: _Downstream, header: Header, body: bytes) -> None:
        """An ack came.

        Raises:
            RemoteProtocolError: it is none, or of something that was not sent, or too many came
                before the link could begin.
        """
        if downstream is not self._downstream:
            return
        ack = *read_ack(header, body), sent_at_ns(header)
        if self._started:
            self._take_ack(ack)
        elif len(downstream.early) < EARLY_ACKS_MAX and not ack[0]:
            downstream.early.append(ack)
        else:
            raise RemoteProtocolError(
                f"more than {EARLY_ACKS_MAX} acks, or one of batch {ack[0]}, came before anything "
                "was sent",
                "bad_command",
            )

    def _take_ack(self, ack: Ack) -> None:
        number, held, persisted, conflicts, at_ns = ack
        if self._sends or self._outstanding:
            self._trace_ack(number, persisted, at_ns)
        for effect in self.machine.acked(number, held, persisted, conflicts):
            self._perform_one(effect, at_ns)
        self.outbox.flush()
        self.pump()

    def _perform(self, effects: list[LinkEffect]) -> None:
        for effect in effects:
            self._perform_one(effect, 0)

    def _perform_one(self, effect: LinkEffect, at_ns: int) -> None:
        if isinstance(effect, SendBatch):
            self._send(effect)
        elif isinstance(effect, LinkAnswered):
            self._telling.answered(effect, at_ns)
        elif isinstance(effect, LinkProgress):
            self._telling.progress(effect)
        elif isinstance(effect, LinkLacks):
            self._telling.lacks(effect)
        elif isinstance(effect, Report):
            self.event(effect.event, **effect.details)

    def _send(self, batch: SendBatch) -> None:
        downstream = self._downstream
        if downstream is None:
            return
        if batch.lacks is not None:
            for frame in lacks_frames(batch.lacks, batch.whole):
                downstream.send(frame)
        awaited = pack_rooted(batch.awaited)
        parts = [run.raw if run.raw is not None else run.encode() for run in batch.runs]
        size_bytes = sum(map(len, parts))
        compression = ""
        if self._compress is not None and size_bytes > COMPRESSED_BYTES_MIN:
            compression = self._compression
            parts = [self._compress(b"".join(parts))]
            size_bytes = len(parts[0])
        front = batch_front(
            batch.number,
            batch.marked,
            batch.caught_up,
            awaited,
            compression,
            size_bytes,
            batch.yours,
        )
        self._sent_wire_bytes += len(front) + size_bytes
        downstream.send_parts((front, *parts), len(front) + size_bytes)
        if self._tracing.enabled:
            found = [m for run in batch.runs if run.flags & _TRACED for m in traced(run.payload)]
            if found:
                self._sends.append((batch.number, time.time_ns(), found))

    # -- tracing -----------------------------------------------------------------------------
    def _trace_ack(self, number: int, persisted: Rooted, at_ns: int) -> None:
        now_ns = time.time_ns()
        config = self.config
        while self._sends and self._sends[0][0] <= number:
            _, sent_ns, messages = self._sends.popleft()
            self._tracing.link_send(
                messages,
                sent_ns,
                now_ns,
                instance=config.instance,
                destination=self._peer,
                epoch=self._epoch,
            )
            self._outstanding.add(messages, sent_ns)
        if not self._outstanding:
            return
        for answered in persisted.values():
            for publisher, ranges in answered.items():
                taken = self._outstanding.take(publisher, ranges)
                if taken:
                    self._tracing.persisted_ack(
                        [message for message, _ in taken],
                        at_ns or now_ns,
                        now_ns,
                        instance=self._peer,
                        upstream=config.instance,
                        epoch=self._epoch,
                    )

    # -- counts ------------------------------------------------------------------------------
    async def _count_forever(self) -> None:
        before: dict[str, Any] = {}
        while True:
            await asyncio.sleep(COUNTS_S)
            self._reader.tidy()
            machine = self.machine
            counts = {
                "cursor_txid": machine.cursor,
                "sent_records": machine.sent_records,
                "sent_bytes": machine.sent_bytes,
                "sent_wire_bytes": self._sent_wire_bytes,
                "epoch": self._epoch,
            }
            if counts != before:
                before = counts
                self._tell(encode_frame({"c": "counts", "counts": counts}))


def _waited_for(destination: DestinationConfig) -> str:
    return " or ".join(destination.server_names) or destination.group
