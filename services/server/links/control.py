"""The instance's side of its links: the frames to and from their processes. children/supervisor.py
keeps the processes running."""

from __future__ import annotations

import asyncio
import contextlib
import os
import threading
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import msgpack

from raylay.services.config.instance import DestinationConfig
from raylay.services.core.commit_cycle import CommitCycle
from raylay.services.core.connection_order import LinkSetup, ReachedServer
from raylay.services.errors import RaylayError
from raylay.services.messages.ranges import PublisherRanges
from raylay.services.net.framed import FramedConnection
from raylay.services.protocol.child import control
from raylay.services.protocol.frames import Header, encode_frame
from raylay.services.protocol.link.description import pack_description
from raylay.services.protocol.link.replication import names_frame, read_part
from raylay.services.replication.acknowledgment import RootedRanges
from raylay.services.replication.commit_notifications import TOLD_LATER_RECORDS, TOLD_LATER_US
from raylay.services.replication.effects import LinkAnswered, LinkLacks, LinkReport, Rooted
from raylay.services.replication.link.resync_plan import ResyncPlan
from raylay.services.replication.membership.connection_sharing import (
    SharedConnection,
    choose,
    uses_incoming,
)
from raylay.services.replication.membership.peers import PeerBook
from raylay.services.replication.membership.placement import InstancePlacement, from_wire, to_wire
from raylay.services.replication.publisher_names import NamesTold
from raylay.services.replication.values import LinkStart
from raylay.services.server.children.supervisor import ChildHandle, Supervisor, run_in_order
from raylay.services.server.cooperative import yield_between
from raylay.services.server.data.held_digest import HeldDigest
from raylay.services.server.describe import describe
from raylay.services.server.links.destination_addresses import client_name, resolve_addresses
from raylay.services.server.links.direct_link import DescriptorReceiver, DirectLinkControl
from raylay.services.server.links.link_occurrences import CONNECT, DISCONNECT, tell_link
from raylay.services.server.links.placements import PlacementKeeper
from raylay.services.server.links.upstream_connection import ConnectedUpstreams, UpstreamConnection
from raylay.services.server.recovered_instance import RecoveredInstance
from raylay.services.server.runtime import InstanceRuntime


class Links:
    """The links of an instance, and the parts of the instance that all of them need.

    Owner: the instance's event loop.

    Args:
        controls: the links by destination; filled by `add`.
        start: starts a link's process with a number that tells it from earlier ones. Called in a
            thread; may block; may raise: the start is then tried again.
        greeted: called when a link's process has connected.
        keep_refused: called when a destination has refused messages for good.
    """

    def __init__(
        self,
        runtime: InstanceRuntime,
        instance: RecoveredInstance,
        controls: dict[str, LinkControl],
        *,
        commits: CommitCycle,
        descriptors: DescriptorReceiver,
        digest: HeldDigest,
        placements: PlacementKeeper,
        upstreams: ConnectedUpstreams,
        start: Callable[[DestinationConfig, int], ChildHandle],
        greeted: Callable[[str], None],
        keep_refused: Callable[[], None],
    ) -> None:
        self.runtime = runtime
        self.instance = instance
        self.controls = controls
        self.commits = commits
        self.digest = digest
        self.placements = placements
        self.upstreams = upstreams
        self.start = start
        self.greeted = greeted
        self.keep_refused = keep_refused
        self.peer_book = PeerBook()
        self.descriptors = descriptors
        self._starting: asyncio.Task[None] | None = None

    def add(self, config: DestinationConfig) -> LinkControl:
        link = self.controls[config.name] = LinkControl(self, config)
        self.peer_book.add(config.name, config.server_names, config.client_addresses)
        return link

    def aim(self, news: Mapping[str, InstancePlacement]) -> None:
        self.peer_book.moved(news)
        for link in self.controls.values():
            link.aim(news)

    def run(self) -> None:
        """Starts the links: first those to the group and those that acks wait for. On few
        processors, the processes of a fabric take seconds to start, and clients wait for these."""
        first: list[Supervisor] = []
        others: list[Supervisor] = []
        for link in self.controls.values():
            needed = link.config.sync or link.config.group == self.runtime.config.group
            (first if needed else others).append(link.process)
        self._starting = self.runtime.loop.create_task(run_in_order(first, others))

    async def stop(self) -> None:
        if self._starting is not None:
            self._starting.cancel()
        await asyncio.gather(
            *(link.stop() for link in self.controls.values()), return_exceptions=True
        )


class LinkControl:
    """The link to one destination: its process, its connection, its state.

    Invariant: the instance talks to at most one link process, that of the last start.
    Owner: the instance's event loop. Lifecycle: as long as the instance.
    """

    def __init__(self, links: Links, config: DestinationConfig) -> None:
        self.config = config
        self.name = config.name
        self.group = config.group
        self.is_connected = False
        self.connected_us = self.disconnected_us = 0
        """Times of the last connection and of its end, in microseconds since 1970; 0: none yet."""
        self.disconnects = 0
        """Number of connections that ended in this life of the instance."""
        self.peer_name = ""
        self._peer_client_address = ""
        self.address = ""
        self.client_name = client_name(links.runtime.config.name, config)
        self.why = "starting"
        self.counts: dict[str, Any] = {}
        self._links = links
        self._runtime = links.runtime
        self._instance = links.instance
        self.process = Supervisor(
            links.runtime,
            self._start,
            self._process_ended,
            kill_failed="link_kill_failed",
            of={"destination": config.name},
        )
        self._description = pack_description(describe(links.runtime.config, config.name))
        self.wake_fd = -1
        """Descriptor that `wake` writes to; -1: there is none."""
        self.woken_txid = 0
        self.direct_link = DirectLinkControl(links.runtime, links.instance, self, links.descriptors)
        self._wake_lock = threading.Lock()
        self._wake_connection: FramedConnection | None = None
        self._held_at_dial = PublisherRanges()
        self._epoch = 0
        """The epoch last given to the link, together with the digest of `_held_at_dial`."""
        self._parts: list[tuple[str, int, bytes]] = []
        """Parts of the ranges that the destination holds and waits for: (which, root, bytes)."""
        self._behind_start: list[bytes] | None = None
        """Frames for the link that must follow the frame with its start; None: the start has been
        sent."""
        self._dial_number = 0
        self._told_later = 0
        """Transaction id up to which the link is told of commits in a moment; 0: none."""
        self._told_txid = 0
        self._told_timer = False
        self._destination = config.destination()
        self._started_with = config.addresses
        """Addresses that the last process was started with. An instance that moves before the
        process connects is not among them."""
        self._offered = 0
        """Number of the incoming connection that was last offered to the link; 0: none."""
        self._names_told = NamesTold(links.instance.machine.publisher_names)

    # -- the process -------------------------------------------------------------------------
    def _start(self, number: int) -> ChildHandle:
        """Starts the link's process. Called in a thread."""
        config = self.config
        self._started_with = config.addresses
        return self._links.start(config, number)

    def _process_ended(self, why: str) -> None:
        self.why = why or self.why
        self._runtime.report("link_process_ended", destination=self.name, why=self.why)

    async def stop(self) -> None:
        await self.process.end(encode_frame({"c": "stop"}))

    def greeted(self, connection: FramedConnection, header: Header) -> bool:
        """Takes the connection of a link process. Returns whether the process is that of the last
        start."""
        if not self.process.greeted(connection, header):
            return False
        self._offered = 0
        self.why = "connecting"
        self._links.greeted(self.name)
        if self.config.addresses != self._started_with:
            connection.send(control.aim(self.config.addresses, {}))
        self.offer_incoming()
        return True

    def impair(self, state: dict[str, Any], seconds: float) -> None:
        """Sets the state of the line to the destination for a time, for a drill."""
        self.process.say(encode_frame({"c": "impair", "state": state, "seconds": seconds}))

    def lost(self, connection: FramedConnection, why: str) -> None:
        if self.process.lost(connection):
            self._disconnected(f"link process ended: {why}")

    # -- frames from the link ----------------------------------------------------------------
    def frame_received(self, header: Header, body: bytes) -> None:
        command = header["c"]
        if command == "answered":
            self._pass_report(LinkAnswered(*control.read_answered(body)))
        elif command == "lacks":
            self._pass_report(LinkLacks(control.read_lacks(body)))
        elif command == "progress":
            self._pass_report(control.read_progress(header, body))
        else:
            self._links.commits.catch_up()
            self._said(command, header, body)

    def _said(self, command: str, header: Header, body: bytes) -> None:
        runtime = self._runtime
        if command == "hand_over":
            self.direct_link.given(header, body, self.process.number)
        elif command == "keeps":
            self.direct_link.kept(header)
        elif command == "dial":
            self._runtime.spawn(self._dial())
        elif command in ("held", "waited"):
            self._parts.append((command, header["root"], body))
        elif command == "connected":
            parts, self._parts = self._parts, []
            self._runtime.spawn(self._connected(header, parts))
        elif command == "placed":
            runtime.spawn(self._links.placements.learn_quietly(from_wire(header["placements"])))
        elif command == "disconnected":
            self._disconnected(header["why"])
        elif command == "ended":
            machine, now_us = self._instance.machine, runtime.steady_us()
            self._instance.perform(machine.process_ended(self.name, now_us, header["why"]))
        elif command == "waits":
            self.why = header["why"]
        elif command == "stale":
            self._instance.perform(self._instance.machine.epoch_refused(self.name))
        elif command == "counts":
            self.counts = header["counts"]
        elif command == "event":
            runtime.report(header["event"], **{"destination": self.name, **header["details"]})

    def take_report(self, told: LinkReport) -> None:
        """Takes a report of the destination over a direct link: the messages that it answered, has
        stored, or will never have."""
        self._pass_report(told, is_direct=True)

    def _pass_report(self, report: LinkReport, *, is_direct: bool = False) -> None:
        self._links.commits.take_report(self.name, report, is_direct=is_direct)
        if isinstance(report, LinkAnswered) and report.conflicts:
            self._links.keep_refused()

    async def _dial(self) -> None:
        connection = self.process.connection
        self._dial_number += 1
        dial_number = self._dial_number
        self._parts = []
        try:
            epoch = await self._instance.state.run(self._next_epoch)
        except RaylayError as error:
            self.why = str(error)
            if connection is not None:
                connection.abort(str(error))
            return
        held = self._instance.machine.held()
        digest = await self._links.digest.of(held)
        if connection is None or connection is not self.process.connection:
            return
        if dial_number == self._dial_number:
            self._held_at_dial, self._epoch = held, epoch
            logon = self._links.placements.logon_words(self.name, epoch)
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
        """Returns the next epoch, which is on disk before it is used, so that no connection of an
        earlier life has a higher one."""
        state = self._instance.state
        epoch = state.get_number("link_epoch") + 1
        state.put_number("link_epoch", epoch)
        return epoch

    @property
    def is_served(self) -> bool:
        """Returns whether the instance serves, so that links may begin."""
        return self._runtime.is_serving

    def refuse(self, why: str) -> None:
        """Tells the link why it must leave the server that it has reached."""
        self.process.say(control.refuse(why))

    def reached(self, server: ReachedServer) -> None:
        """Marks the link as connected to this server: from now on it is told of commits."""
        self.is_connected = True
        self.connected_us = self._runtime.now_us()
        self._names_told.connected(server.names)
        self.remember(server.incarnation, server.name, server.client_address)
        self.address = server.address
        self.why = ""
        self._runtime.report(
            "link_logged_on",
            destination=self.name,
            client=self.client_name,
            peer=self.peer_name,
            address=self.address,
        )
        tell_link(self._runtime.occurrences, CONNECT, self)

    def begins(self, start: LinkStart) -> None:
        """Holds back frames for the link until `_connected` has sent it the frames of its start, in
        turns."""
        self._behind_start = []

    async def _connected(self, header: Header, parts: list[tuple[str, int, bytes]]) -> None:
        runtime = self._runtime
        connection = self.process.connection
        dial_number = self._dial_number
        theirs, waited = self._held_at_dial, RootedRanges()
        if header["epoch"] != self._epoch:
            # The link gave up an attempt before the epoch came, and logged on with it in the next
            # attempt: the held messages of that attempt do not match the digest that it sent.
            if connection is not None:
                connection.send(control.refuse("it logged on with an epoch of an earlier attempt"))
            return
        if not header["same"]:
            theirs = PublisherRanges()
        async for command, root, part in yield_between(parts):
            read_part(part, theirs if command == "held" else waited.of(root))
        incarnation = header["incarnation"]
        await self._links.placements.learn_quietly(from_wire(header["placements"]))
        plan = ResyncPlan(theirs, waited)
        server = ReachedServer(
            header["name"],
            incarnation,
            header["generation"],
            header["address"],
            header["client"],
            header["names"],
        )
        setup = LinkSetup(runtime, self._instance, self._links.commits, self, server, plan)
        if not setup.goes_on():
            return
        ledger = self._instance.machine.destinations[self.name]
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
                await self._instance.state.put(values)
            except RaylayError as error:
                self.why = str(error)
                if connection is not None:
                    connection.abort(str(error))
                return
        if not await self._removal_is_held():
            return
        more = True
        while more:
            if connection is None or connection is not self.process.connection:
                return
            if dial_number != self._dial_number:
                return  # The link has lost its server.
            more = setup.compare()
            await asyncio.sleep(0)
        if connection is not self.process.connection or dial_number != self._dial_number:
            return
        assert connection is not None
        start = setup.begin()
        if start is None:
            return
        # Offers the remaining incoming connections to other links. Of two connections that were
        # dialled both ways, one side gives up its own.
        self._links.upstreams.changed()
        await self._tell_start(control.start_frames(start, theirs if header["same"] else None))

    async def _tell_start(self, frames: Iterator[bytes]) -> None:
        connection, dial_number = self.process.connection, self._dial_number
        assert connection is not None
        async for frame in yield_between(frames):
            if connection is not self.process.connection or dial_number != self._dial_number:
                return
            connection.send(frame)
        if dial_number == self._dial_number and self._behind_start is not None:
            behind, self._behind_start = self._behind_start, None
            for frame in behind:
                connection.send(frame)

    async def _removal_is_held(self) -> bool:
        """Keeps tools in other processes from removing messages that the destination lacks: the
        floor is on disk before the link begins. Returns False if it cannot be written: the link
        then dials again."""
        runtime = self._runtime
        if self._instance.journal.floor_is_written:
            return True
        connection = self.process.connection
        try:
            await runtime.in_thread(self._instance.journal.write_floor)
        except RaylayError as error:
            self.why = str(error)
            if connection is not None:
                connection.abort(str(error))
            return False
        return True

    def remember(self, incarnation: int, name: str, client_address: str) -> None:
        """Remembers the server that the link is, or was last, connected to."""
        self.peer_name = name
        self._peer_client_address = client_address
        self._links.peer_book.reached(self.name, incarnation, name, client_address)

    def aim(self, news: Mapping[str, InstancePlacement]) -> None:
        """Dials moved instances at their new addresses, and sends clients there."""
        self.config = resolve_addresses(self.config, news)
        self._destination = self.config.destination()
        self.direct_link.return_it("instances were moved")
        self.process.say(control.aim(self.config.addresses, news))

    def _disconnected(self, why: str) -> None:
        self._dial_number += 1
        self._behind_start = None
        was_connected = self.is_connected
        if was_connected:
            self.disconnects += 1
            self.disconnected_us = self._runtime.now_us()
        self.is_connected = False
        self._names_told.disconnected()
        self.direct_link.ended(why)
        if was_connected:
            tell_link(self._runtime.occurrences, DISCONNECT, self, why)
        self.address = ""
        self.why = why
        self._instance.perform(self._instance.machine.link_disconnected(self.name, why))
        self._links.upstreams.changed()

    # -- incoming connections ----------------------------------------------------------------
    def _incoming(self) -> SharedConnection | None:
        machine = self._instance.machine
        others = [link for link in self._links.controls.values() if link is not self]
        incoming = self._links.upstreams.incoming(self.name)
        if self.is_connected:
            # While the link is connected, only a connection of the same server is of use.
            mine = machine.destinations[self.name].incarnation
            incoming = [each for each in incoming if each.incarnation == mine]
        return choose(
            self._destination,
            incoming,
            {machine.destinations[o.name].incarnation for o in others if o.is_connected},
            {other.name for other in others},
        )

    def offer_incoming(self) -> None:
        """Offers the link an incoming connection that it may use, if that is another one than
        before."""
        if self.process.connection is None or not uses_incoming(self._destination):
            return
        found = self._incoming()
        number = found.number if found is not None else 0
        if number == self._offered:
            return
        self._offered = number
        if found is None:
            self.process.connection.send(control.incoming(0, "", 0))
        else:
            self.process.connection.send(
                control.incoming(number, found.name, found.incarnation, proven=found.proven)
            )

    def stream_of(self, header: Header) -> asyncio.Protocol | None:
        """Returns the protocol of a stream that begins on a socket of the link's process; None: the
        connection that it needs is gone."""
        upstreams = self._links.upstreams
        if header["c"] == "carried":
            return UpstreamConnection(upstreams, self.name, certificate=header.get("certificate"))
        number = header.get("upstream")
        upstream = upstreams.connected.get(number) if type(number) is int else None
        if upstream is None or upstream.as_incoming(self.name) is None:
            return None
        return upstream.carry(self.name)

    # -- frames to the link ------------------------------------------------------------------
    def told(self, last_txid: int) -> None:
        self._told_later, self._told_txid = 0, last_txid
        if self.process.connection is not None and self.is_connected:
            self.process.connection.send(encode_frame({"c": "told", "tx": last_txid}))

    def told_later(self, last_txid: int) -> None:
        """Tells the link, a little later, of a commit of which nothing is routed to it; see
        `Tell.LATER`."""
        if last_txid - max(self._told_txid, self.woken_txid) >= TOLD_LATER_RECORDS:
            self.told(last_txid)
            return
        if not self._told_timer:
            self._told_timer = True
            self._runtime.loop.call_later(TOLD_LATER_US / 1e6, self._told_due)
        self._told_later = last_txid

    def _told_due(self) -> None:
        self._told_timer = False
        self._tell_late()

    def _tell_late(self) -> None:
        if self._told_later:
            self.told(self._told_later)

    @property
    def is_wakeable(self) -> bool:
        """Returns whether the writer thread wakes the link."""
        return self.wake_fd >= 0 and not self.direct_link.is_direct

    def wakeable_changed(self) -> None:
        """Tells the writer thread whether to wake the link."""
        self._links.commits.wakeable_changed()

    def wakes_by(self, connection: FramedConnection, header: Header) -> bool:
        """Takes the second connection of the link's process, over which the writer thread tells it
        of commits. Returns False if the process is not that of the last start."""
        transport = connection.transport
        if not self.process.is_of_last_start(header) or transport is None:
            return False
        self.wakes_no_more(self._wake_connection)
        with self._wake_lock:
            self.wake_fd = os.dup(transport.get_extra_info("socket").fileno())
            self.woken_txid = 0
        self._wake_connection = connection
        self._links.commits.wakeable_changed()
        return True

    def wakes_no_more(self, connection: FramedConnection | None) -> None:
        if connection is None or connection is not self._wake_connection:
            return
        self._wake_connection = None
        with self._wake_lock:
            os.close(self.wake_fd)
            self.wake_fd = -1
            self.woken_txid = 0
        self._links.commits.wakeable_changed()

    def wake(self, last_txid: int) -> bool:
        """Tells the link of a commit; called on the thread that made it. Returns False where the
        socket is full or gone, so that a frame of the loop tells the link."""
        if not self.is_connected or self.direct_link.is_direct:
            return True
        with self._wake_lock, contextlib.suppress(OSError):
            if self.wake_fd >= 0:
                os.write(self.wake_fd, control.WAKE.pack(last_txid))
                self.woken_txid = last_txid
                return True
        return False

    def notice(self, awaited: Rooted, last_txid: int) -> None:
        # The link must know all commits that the question is about.
        self._tell_late()
        if not self.direct_link.notice(awaited, last_txid):
            self._say(control.notice(awaited, last_txid))

    def queue_request(self, frame: bytes) -> None:
        """Asks the destination for messages of a queue. Nothing is repeated here: the owner asks
        again."""
        if not self.direct_link.queue_request(frame):
            self._say(control.queue(frame))

    def tell_names(self) -> None:
        """Sends the destination some of the publisher names that it lacks, if there are any."""
        if self._names_told.is_behind:
            self._names_told.go_on(self._say_names)

    def _say_names(self, part: bytes) -> bool:
        frame = names_frame(part)
        went_out = self.direct_link.names(frame)
        if went_out is None:
            self._say(control.names(frame))
        return went_out is not False

    def mode(self, sync: bool) -> None:
        if not self.direct_link.mode(sync):
            self._say(encode_frame({"c": "mode", "sync": sync}))

    def _say(self, frame: bytes) -> None:
        """Sends a frame to a link that has begun. While a link begins, its frames wait for the
        start."""
        if self.process.connection is None or not self.is_connected:
            return
        if self._behind_start is not None:
            self._behind_start.append(frame)
        else:
            self.process.connection.send(frame)
