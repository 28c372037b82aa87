"""The instance's side of its links: it starts them, talks to them, starts them again.

The instance is the only one that starts a link again (Ray restarts none): a link that dies closes
its Unix socket, and that is what the instance acts upon, whether or not Ray's head is there.
"""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any, Protocol

import msgpack

from raylay.services.errors import RaylayError, RemoteProtocolError
from raylay.services.messages.ranges import PublisherRanges
from raylay.services.protocol import control
from raylay.services.protocol.description import pack_description
from raylay.services.protocol.frames import FrameReader, Header, encode_frame, first_frame
from raylay.services.protocol.replication import read_part
from raylay.services.replication.acknowledgment import RootedRanges
from raylay.services.replication.commit_news import TOLD_LATER_RECORDS, TOLD_LATER_US
from raylay.services.replication.connecting import LinkPlan
from raylay.services.replication.effects import Rooted
from raylay.services.replication.incoming import Incoming, choose, uses_incoming
from raylay.services.replication.placement import Placement, from_wire, to_wire
from raylay.services.server.config import (
    DestinationConfig,
    LinkConfig,
    aimed_at,
    client_name,
)
from raylay.services.server.describe import describe
from raylay.services.server.turns import in_turns
from raylay.services.server.upstream_connection import UpstreamConnection
from raylay.services.transports.framed import FramedConnection

if TYPE_CHECKING:
    from raylay.services.server.instance_server import InstanceServer

HELLO_TIMEOUT_S = 60.0
"""A link's process must have connected by then, or it is killed and another one started."""
RESTART_S_MIN = 0.05
RESTART_S_MAX = 5.0
FIRST_FRAME_BYTES_MAX = 64 * 1024
STEADY_S = 10.0
"""A link that lived for so long is started again with the shortest pause."""


class LinkHandle(Protocol):
    """A started link."""

    def kill(self) -> None:
        """Ends it at once if it still runs. Called in a thread; may block."""


class LinkFactory(Protocol):
    """Starts a link: an actor, a subprocess, or in tests something else."""

    def __call__(self, config: LinkConfig) -> LinkHandle:
        """Starts one. Called in a thread; may block; may raise: it is then tried again."""


class LinkConnection(FramedConnection):
    """The Unix socket connection of a link's process."""

    def __init__(self, server: InstanceServer) -> None:
        reader = FrameReader(frame_bytes_max=control.CONTROL_FRAME_BYTES_MAX)
        super().__init__(server.outbox, server.loop, reader)
        self.server = server
        self.link: LinkControl | None = None
        self._wakes: LinkControl | None = None
        self._front = b""

    def data_received(self, data: bytes) -> None:
        """Frames came; the acks that they release are written without waiting for the turn's end:
        somebody's publisher waits for them."""
        if self.link is None and self._wakes is None:
            self._begin(self._front + data)
            return
        super().data_received(data)
        self.outbox.flush()

    def _begin(self, data: bytes) -> None:
        """The first frame says what the connection is for."""
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
        """What follows is no frames of ours: the socket is given to whoever reads it."""
        link = self.server.links.get(str(header.get("destination")))
        transport = self.transport
        if link is None or transport is None or not link.is_of_last_start(header):
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
        """A frame of the link's."""
        if self.link is not None:
            self.link.frame_received(header, body)
            return
        link = self.server.links.get(str(header.get("destination")))
        if header["c"] == "wake":
            if link is not None and link.wakes_by(self, header):
                self._wakes = link
            else:
                self.close("not the link of the last start")
            return
        if header["c"] != "hello" or link is None or not link.greeted(self, header):
            # A link of an earlier start, or none of ours.
            self.send(encode_frame({"c": "stop"}))
            self.close("not the link of the last start")
            return
        self.link = link

    def broken(self, error: RemoteProtocolError) -> None:
        """The link's process talks nonsense: it is ended."""
        self.abort(str(error))

    def ended(self, why: str) -> None:
        """The link's process ended."""
        if self.link is not None:
            self.link.lost(self, why)
        if self._wakes is not None:
            self._wakes.wakes_no_more(self)


class LinkControl:
    """One destination's link: its process, its connection, its state.

    Invariant: at most one link process is talked to, that of the last start.
    Owner: the instance's event loop. Lifecycle: as long as the instance.
    """

    def __init__(self, server: InstanceServer, config: DestinationConfig) -> None:
        self.config = config
        self.name = config.name
        self.connection: LinkConnection | None = None
        self.is_connected = False
        self.peer_name = ""
        self._peer_client_address = ""
        self.address = ""
        self.client_name = client_name(server.config.name, config)
        self.pid = 0
        self.why = "starting"
        self.counts: dict[str, Any] = {}
        self.starts = 0
        # Random, so that a link that an earlier life of this instance started is not mistaken for
        # one of this life.
        self._first_start = int.from_bytes(os.urandom(6), "big") << 8
        self._server = server
        self._description = pack_description(describe(server.config, config.name))
        self.wake_fd = -1
        """Where `wake` writes to; -1 while there is none."""
        self.woken_txid = 0
        self._wake_lock = threading.Lock()
        self._wake_connection: LinkConnection | None = None
        self._handle: LinkHandle | None = None
        self._task: asyncio.Task[None] | None = None
        self._ended = asyncio.Event()
        self._greeted = asyncio.Event()
        self._held_at_dial = PublisherRanges()
        self._epoch = 0
        """That the link was given last, with the digest of `_held_at_dial`."""
        self._parts: list[tuple[str, int, bytes]] = []
        """Of what the destination holds and waits for: (which, root, bytes)."""
        self._behind_start: list[bytes] | None = None
        """Frames for the link that follow the one that says how it begins; None: that is out."""
        self._dial_number = 0
        self._told_later = 0
        """Up to where it is told in a moment; 0: nothing is."""
        self._told_txid = 0
        self._told_timer = False
        self._destination = config.destination()
        self._started_with = config.addresses
        """What the last process was started with: whoever moves before it has come is not there."""
        self._offered = 0
        """Number of the incoming connection that the link was last told of."""

    # -- the process -------------------------------------------------------------------------
    def start(self) -> None:
        """Starts the link and keeps one running from now on."""
        self._task = self._server.loop.create_task(self._supervise())

    @property
    def _start_number(self) -> int:
        return self._first_start + self.starts

    async def _supervise(self) -> None:
        pause_s = RESTART_S_MIN
        while True:
            self._ended.clear()
            self._greeted.clear()
            self.starts += 1
            began_s = self._server.loop.time()
            self._started_with = self.config.addresses
            try:
                self._handle = await self._server.in_thread(
                    self._server.link_factory,
                    self._server.link_config(self.config, self._start_number),
                )
                await asyncio.wait_for(self._greeted.wait(), HELLO_TIMEOUT_S)
                await self._ended.wait()
            except TimeoutError:
                self.why = f"its process did not connect within {HELLO_TIMEOUT_S:g} s"
            except Exception as error:  # whatever a factory raises, it is tried again
                self.why = f"its process cannot be started: {error}"
            self._server.report("link_process_ended", destination=self.name, why=self.why)
            await self._kill()
            if self._server.loop.time() - began_s > STEADY_S:
                pause_s = RESTART_S_MIN
            await asyncio.sleep(pause_s)
            pause_s = min(2 * pause_s, RESTART_S_MAX)

    async def _kill(self) -> None:
        handle, self._handle = self._handle, None
        if handle is not None:
            try:
                await self._server.in_thread(handle.kill)
            except Exception as error:  # it is gone as far as anybody can tell
                self._server.report("link_kill_failed", destination=self.name, why=str(error))

    async def stop(self) -> None:
        """Ends the link for good."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
        if self.connection is not None:
            self.connection.send(encode_frame({"c": "stop"}))
            self.connection.close("the instance stops")
        await self._kill()

    def greeted(self, connection: LinkConnection, header: Header) -> bool:
        """A link process connected. Whether it is the right one."""
        if not self.is_of_last_start(header) or self.connection is not None:
            return False
        self.connection = connection
        self._offered = 0
        self.pid = int(header.get("pid") or 0)
        self.why = "connecting"
        self._greeted.set()
        self._server.injections.tell_link(self.name)
        if self.config.addresses != self._started_with:
            connection.send(control.aim(self.config.addresses, {}))
        self.offer_incoming()
        return True

    def impair(self, state: dict[str, Any], seconds: float) -> None:
        """For a drill: how the line to the destination is, for so long."""
        if self.connection is not None:
            self.connection.send(encode_frame({"c": "impair", "state": state, "seconds": seconds}))

    def is_of_last_start(self, header: Header) -> bool:
        """Whether the process that says this is the one that was last started."""
        return bool(header.get("start") == self._start_number)

    def lost(self, connection: LinkConnection, why: str) -> None:
        """The link process is gone."""
        if self.connection is connection:
            self.connection = None
            self.pid = 0
            self._disconnected(f"link process ended: {why}")
            self._ended.set()

    # -- what the link says ------------------------------------------------------------------
    def frame_received(self, header: Header, body: bytes) -> None:
        """A frame of the link's."""
        server = self._server
        command = header["c"]
        server.commits.catch_up()
        if command == "answered":
            persisted, conflicts = control.read_answered(body)
            server.perform(server.machine.link_answered(self.name, persisted, conflicts))
            if conflicts:
                server.keep_refused()
        elif command == "lacks":
            server.perform(server.machine.link_lacks(self.name, control.read_lacks(body)))
        elif command == "progress":
            progress = control.read_progress(header, body)
            server.perform(
                server.machine.link_progressed(
                    self.name,
                    progress.stored_txid,
                    progress.resending,
                    progress.caught_up,
                    progress.skipped,
                    server.steady_us(),
                )
            )
        elif command == "dial":
            self._server.spawn(self._dial())
        elif command in ("held", "waited"):
            self._parts.append((command, header["root"], body))
        elif command == "connected":
            parts, self._parts = self._parts, []
            self._server.spawn(self._connected(header, parts))
        elif command == "placed":
            server.spawn(server.placements.learn_quietly(from_wire(header["placements"])))
        elif command == "disconnected":
            self._disconnected(header["why"])
        elif command == "waits":
            self.why = header["why"]
        elif command == "stale":
            server.perform(server.machine.epoch_refused(self.name))
        elif command == "counts":
            self.counts = header["counts"]
        elif command == "event":
            server.report(header["event"], **{"destination": self.name, **header["details"]})

    async def _dial(self) -> None:
        connection = self.connection
        self._dial_number += 1
        dial_number = self._dial_number
        self._parts = []
        try:
            epoch = await self._server.state.run(self._next_epoch)
        except RaylayError as error:
            self.why = str(error)
            if connection is not None:
                connection.abort(str(error))
            return
        held = self._server.machine.held()
        digest = await self._server.digest_of(held)
        if connection is None or connection is not self.connection:
            return
        if dial_number == self._dial_number:
            self._held_at_dial, self._epoch = held, epoch
            logon = self._server.placements.logon_words(self.name, epoch)
            header = {
                "c": "epoch",
                "epoch": epoch,
                "digest": digest,
                "generation": logon.generation,
                "placements": to_wire(logon.placements),
                "proof": logon.proof,
            }
            connection.send(encode_frame(header, self._description))

    def _next_epoch(self) -> int:
        """On disk before it is used: no connection of an earlier life has a higher one."""
        state = self._server.state
        epoch = state.get_number("link_epoch") + 1
        state.put_number("link_epoch", epoch)
        return epoch

    def _is_refused(self, header: Header) -> bool:
        """Whether the link may not go on with the server that it has reached; it is told why."""
        server = self._server
        refused = server.machine.refuse_downstream(
            self.name,
            header["name"],
            header["incarnation"],
            header["generation"],
            header["address"],
        )
        if not refused and server.is_serving:
            return False
        if self.connection is not None:
            self.connection.send(control.refuse(refused))
        return True

    async def _connected(self, header: Header, parts: list[tuple[str, int, bytes]]) -> None:
        server = self._server
        connection = self.connection
        dial_number = self._dial_number
        theirs, waited = self._held_at_dial, RootedRanges()
        if header["epoch"] != self._epoch:
            # It gave an attempt up before it had the answer, and logged on with that now: what was
            # held at the next one is not what it told the digest of.
            if connection is not None:
                connection.send(control.refuse("it logged on with an epoch of an earlier attempt"))
            return
        if not header["same"]:
            theirs = PublisherRanges()
        async for command, root, part in in_turns(parts):
            read_part(part, theirs if command == "held" else waited.of(root))
        incarnation = header["incarnation"]
        await server.placements.learn_quietly(from_wire(header["placements"]))
        if self._is_refused(header):
            return
        ledger = server.machine.destinations[self.name]
        is_new = header["name"] not in ledger.servers
        if (
            ledger.incarnation != incarnation
            or self._peer_client_address != header["client"]
            or is_new
        ):
            values = {
                f"peer/{self.name}": msgpack.packb([incarnation, header["name"], header["client"]])
            }
            if is_new:
                servers = sorted({*ledger.servers, header["name"]})
                values[f"servers/{self.name}"] = msgpack.packb(servers)
            try:
                await server.state.put(values)
            except RaylayError as error:
                self.why = str(error)
                if connection is not None:
                    connection.abort(str(error))
                return
        if not await self._removal_is_held():
            return
        plan, more = LinkPlan(theirs, waited), True
        while more:
            if connection is None or connection is not self.connection:
                return
            if dial_number != self._dial_number:
                return  # It has lost what it had reached.
            effects, more = server.machine.compare(self.name, plan)
            server.perform(effects)
            await asyncio.sleep(0)
        if connection is not self.connection or dial_number != self._dial_number:
            return
        assert connection is not None
        if self._is_refused(header):
            return  # It was learnt meanwhile that this one was moved.
        self.is_connected = True
        self.remember(incarnation, header["name"], header["client"])
        self.address = header["address"]
        self.why = ""
        server.report(
            "link_logged_on",
            destination=self.name,
            client=self.client_name,
            peer=self.peer_name,
            address=self.address,
        )
        # Else the resync would end before what is on disk, and who is ready by it would lack that.
        server.commits.catch_up()
        effects, start = server.machine.link_connected(
            self.name,
            incarnation,
            plan,
            server.steady_us(),
            header["name"],
            generation=header["generation"],
            address=header["address"],
        )
        self._behind_start = []
        server.perform(effects)
        # What is left of the incoming connections is for other links; and of two connections that
        # were dialled both ways, one side gives up its own.
        server.incoming_changed()
        await self._tell_start(control.start_frames(start, theirs if header["same"] else None))

    async def _tell_start(self, frames: Iterator[bytes]) -> None:
        connection, dial_number = self.connection, self._dial_number
        assert connection is not None
        async for frame in in_turns(frames):
            if connection is not self.connection or dial_number != self._dial_number:
                return
            connection.send(frame)
        if dial_number == self._dial_number and self._behind_start is not None:
            behind, self._behind_start = self._behind_start, None
            for frame in behind:
                connection.send(frame)

    async def _removal_is_held(self) -> bool:
        """What the other side lacks, no tool in another process may remove from now on: on disk
        before the link begins. False where that cannot be written: the link dials again."""
        server = self._server
        if server.journal.floor_is_written:
            return True
        connection = self.connection
        try:
            await server.in_thread(server.journal.write_floor)
        except RaylayError as error:
            self.why = str(error)
            if connection is not None:
                connection.abort(str(error))
            return False
        return True

    def remember(self, incarnation: int, name: str, client_address: str) -> None:
        """This is the server that it connected to, now or last."""
        self.peer_name = name
        self._peer_client_address = client_address
        self._server.peer_book.reached(self.name, incarnation, name, client_address)

    def aim(self, news: Mapping[str, Placement]) -> None:
        """Instances were moved: they are dialled, and clients are sent, where they live now."""
        self.config = aimed_at(self.config, news)
        self._destination = self.config.destination()
        if self.connection is not None:
            self.connection.send(control.aim(self.config.addresses, news))

    def _disconnected(self, why: str) -> None:
        self._dial_number += 1
        self._behind_start = None
        self.is_connected = False
        self.address = ""
        self.why = why
        self._server.perform(self._server.machine.link_disconnected(self.name, why))
        self._server.incoming_changed()

    # -- over the connection that the other side made ----------------------------------------
    def _incoming(self) -> Incoming | None:
        """The incoming connection that the link may use."""
        server = self._server
        machine = server.machine
        others = [link for link in server.links.values() if link is not self]
        incoming = [
            found
            for upstream in server.upstreams_connected.values()
            if (found := upstream.as_incoming(self.name)) is not None
        ]
        if self.is_connected:
            # Only a connection of the same server is of use then.
            mine = machine.destinations[self.name].incarnation
            incoming = [each for each in incoming if each.incarnation == mine]
        return choose(
            self._destination,
            incoming,
            {machine.destinations[o.name].incarnation for o in others if o.is_connected},
            {other.name for other in others},
        )

    def offer_incoming(self) -> None:
        """Tells the link of the incoming connection that it may use, where that is another one."""
        if self.connection is None or not uses_incoming(self._destination):
            return
        found = self._incoming()
        number = found.number if found is not None else 0
        if number == self._offered:
            return
        self._offered = number
        if found is None:
            self.connection.send(control.incoming(0, "", 0))
        else:
            self.connection.send(
                control.incoming(number, found.name, found.incarnation, proven=found.proven)
            )

    def stream_of(self, header: Header) -> asyncio.Protocol | None:
        """Who is to have a socket of the link's process: the other end of a stream. None: there is
        none any more."""
        server = self._server
        if header["c"] == "carried":
            return UpstreamConnection(server, self.name)
        number = header.get("upstream")
        upstream = server.upstreams_connected.get(number) if type(number) is int else None
        if upstream is None or upstream.as_incoming(self.name) is None:
            return None
        return upstream.carry(self.name)

    # -- what the link is told ---------------------------------------------------------------
    def told(self, last_txid: int) -> None:
        """Tells of a commit."""
        self._told_later, self._told_txid = 0, last_txid
        if self.connection is not None and self.is_connected:
            self.connection.send(encode_frame({"c": "told", "tx": last_txid}))

    def told_later(self, last_txid: int) -> None:
        """Tells of a commit of which nothing is routed there; see `Tell.LATER`."""
        if last_txid - max(self._told_txid, self.woken_txid) >= TOLD_LATER_RECORDS:
            self.told(last_txid)
            return
        if not self._told_timer:
            self._told_timer = True
            self._server.loop.call_later(TOLD_LATER_US / 1e6, self._told_due)
        self._told_later = last_txid

    def _told_due(self) -> None:
        self._told_timer = False
        self._tell_late()

    def _tell_late(self) -> None:
        if self._told_later:
            self.told(self._told_later)

    def wakes_by(self, connection: LinkConnection, header: Header) -> bool:
        """The second connection of the link's process: only commits are told over it, by the writer
        thread. False when it is not the link of the last start."""
        transport = connection.transport
        if not self.is_of_last_start(header) or transport is None:
            return False
        self.wakes_no_more(self._wake_connection)
        with self._wake_lock:
            self.wake_fd = os.dup(transport.get_extra_info("socket").fileno())
            self.woken_txid = 0
        self._wake_connection = connection
        self._server.commits.wakeable_changed()
        return True

    def wakes_no_more(self, connection: LinkConnection | None) -> None:
        """That connection is gone."""
        if connection is None or connection is not self._wake_connection:
            return
        self._wake_connection = None
        with self._wake_lock:
            os.close(self.wake_fd)
            self.wake_fd = -1
            self.woken_txid = 0
        self._server.commits.wakeable_changed()

    def wake(self, last_txid: int) -> None:
        """Tells the link of a commit; called on the journal's writer thread. Where the socket is
        full or gone, the loop's own frame tells it."""
        if not self.is_connected:
            return
        with self._wake_lock:
            if self.wake_fd >= 0:
                try:
                    os.write(self.wake_fd, control.WAKE.pack(last_txid))
                except OSError:
                    return
                self.woken_txid = last_txid

    def notice(self, awaited: Rooted, last_txid: int) -> None:
        """Asks the destination."""
        # It must have read all that it is asked about.
        self._tell_late()
        self._say(control.notice(awaited, last_txid))

    def mode(self, sync: bool) -> None:
        """Changes what sent messages are marked with."""
        self._say(encode_frame({"c": "mode", "sync": sync}))

    def _say(self, frame: bytes) -> None:
        """Tells a link that has begun; one that begins, behind what it begins with."""
        if self.connection is None or not self.is_connected:
            return
        if self._behind_start is not None:
            self._behind_start.append(frame)
        else:
            self.connection.send(frame)
