"""The connection of a link: the address that it dials and when, the connection that it uses
instead, its logon, and the start that its instance decides."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Awaitable, Callable, Coroutine
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from raylay.services.config.instance import DestinationConfig, split_address
from raylay.services.errors import ConfigurationError, RemoteProtocolError
from raylay.services.net.dialling import Answer, answer_of, connect
from raylay.services.net.impaired import ImpairedLine, Impairment
from raylay.services.net.liveness import SilenceDetector, why_lost
from raylay.services.net.tls_files import PeerCertificate
from raylay.services.net.tunnel import TunnelStream
from raylay.services.plugins.own_credentials import OwnCredentials
from raylay.services.processes.link.downstream import Downstream
from raylay.services.processes.link.pump import Pump
from raylay.services.processes.link.runtime import LinkRuntime
from raylay.services.protocol.child import control
from raylay.services.protocol.frames import Header, encode_frame
from raylay.services.protocol.link.replication import (
    BEAT,
    UpstreamLogon,
    link_logon,
    placed,
)
from raylay.services.replication.membership.connection_sharing import (
    awaits_dial,
    gives_way,
    uses_incoming,
)
from raylay.services.replication.membership.placement import InstancePlacement, from_wire

CONNECT_TIMEOUT_S = 3.0
ANSWER_TIMEOUT_S = 10.0
CHALLENGES_MAX = 8
"""The number of challenges that one logon may meet."""
DISABLED = "transport_disabled:"
"""Beginning of the reason of a destination that disables its transport: its process lives, and its
address refuses connections from then on."""
ANSWER_OF_ADDRESS_S = 0.25
"""The time, in seconds, within which an address has to refuse a connection to be evidence."""
ADDRESS_TRIES = 5
"""The number of times that the addresses of a server that connected by itself are tried, where they
neither accept nor refuse a connection."""
AWAITS_DIAL_S = 0.5
"""The time, in seconds, for which the side that would give way, where connections are shared, lets
the other side dial first. It is about what an instance needs to start a killed link again."""


@dataclass(frozen=True, slots=True)
class OfferedConnection:
    """A connection that the other side made, as the instance announces it."""

    upstream: int
    name: str
    incarnation: int
    proven: bool


class LinkDialler:
    """See the file's docstring. Owner: the link's event loop. Lifecycle: `connect_forever` once."""

    def __init__(self, runtime: LinkRuntime, pump: Pump) -> None:
        self._runtime = runtime
        self._pump = pump
        self._line: ImpairedLine | None = None
        """The line over which connections go in a fabric for drills, so that a drill can impair
        them."""
        self._epoch_answer: asyncio.Future[tuple[Header, bytes]] | None = None
        self._start_answer: asyncio.Future[None] | None = None
        self._lost = asyncio.Event()
        self._beginning = control.StartReader()
        self._shares = uses_incoming(runtime.config.destination.destination())
        self._incoming: OfferedConnection | None = None
        self._arrival = asyncio.Event()
        self._bringing: set[asyncio.Task[None]] = set()
        self._failed_upstream = 0
        """The incoming connection over which the last attempt failed; 0: none."""
        self._credentials: dict[int | None, OwnCredentials] = {}
        """The credentials of the link, by the position of the server in the list; None: for a
        server that has connected to the instance."""
        self._missing = ""
        """The error text about credentials that are missing for a logon; empty: nothing is
        missing."""
        self._is_kept_out = False
        """Whether the last connection ended with a refusal that the next one will meet, too."""
        self._is_looking = False
        """Whether the process at the other end of the last connection has ended if all addresses
        refuse connections: it accepted connections there."""
        self._trying: asyncio.Task[None] | None = None
        """Finds out whether a server that has connected by itself accepts connections, too."""
        self._last_carried: bool | None = None
        """Whether the last connection went over a connection of the other side; None: there was
        none yet."""

    def open_line(self) -> None:
        """Makes further connections go over a line that a drill can impair."""
        self._line = ImpairedLine(self._runtime.loop)

    # -- what the instance says --------------------------------------------------------------
    def epoch_given(self, header: Header, description: bytes) -> None:
        """Takes the instance's answer to `dial`, which has the epoch of the new connection."""
        if self._epoch_answer is not None and not self._epoch_answer.done():
            self._epoch_answer.set_result((header, description))

    def part(self, header: Header, body: bytes) -> None:
        """Takes a part of the instance's orders for the beginning of the link."""
        self._beginning.take(header, body)

    def impair(self, state: dict[str, Any], seconds: float) -> None:
        """Impairs the line for so many seconds, for a drill."""
        if self._line is not None:
            self._line.set(Impairment(**state), seconds)

    # -- moved instances ---------------------------------------------------------------------
    def epoch_refused(self, downstream: Downstream) -> None:
        """Tells the instance that the destination has seen a higher epoch from it than this
        connection's, which is the latest that the instance has issued."""
        if downstream is self._pump.downstream:
            self._runtime.tell(encode_frame({"c": "stale"}))

    def placed(self, placements: dict[str, InstancePlacement]) -> None:
        if placements:
            self._runtime.tell(control.placed(placements))

    def aim(self, addresses: tuple[str, ...], news: dict[str, InstancePlacement]) -> None:
        """Takes new addresses, after instances were moved. The other side is told of the moves. If
        it is the former copy of a moved instance, the connection is closed."""
        self._runtime.config.destination = replace(
            self._runtime.config.destination, addresses=addresses
        )
        downstream = self._pump.downstream
        accepted = downstream.accepted if downstream is not None else None
        if downstream is not None and accepted is not None:
            if downstream.is_open:
                downstream.send(placed(news))
            moved = news.get(accepted.name)
            if moved is not None and accepted.generation < moved.generation:
                self.abandon(f"{accepted.name} was moved to {moved.address or 'another host'}")
        # An attempt at the new addresses is worthwhile at once.
        self._arrival.set()

    def abandon(self, why: str) -> None:
        downstream = self._pump.downstream
        if downstream is not None and downstream.is_open:
            downstream.why = why
            downstream.close(why)

    # -- connecting --------------------------------------------------------------------------
    async def connect_forever(self) -> None:
        """Connects, stays until the connection is lost, and connects again."""
        destination = self._runtime.config.destination
        pause_ms = destination.retry_ms_min
        while True:
            await self._await_incoming()
            self._arrival.clear()
            failures: list[str] = []
            has_connected = await self._connect_once(failures)
            if has_connected and not self._is_kept_out:
                pause_ms = destination.retry_ms_min
            self._runtime.tell(
                encode_frame({"c": "disconnected", "why": "; ".join(failures)[:2000]})
            )
            await self._look_for_process()
            # A connection that the other side made meanwhile is a reason to try at once.
            await self._arrives_within(pause_ms / 1000)
            pause_ms = min(2 * pause_ms, destination.retry_ms_max)

    async def _connect_once(self, failures: list[str]) -> bool:
        """Tries every way once, in order, until one has connected and that connection is lost
        again. Returns whether any way connected; adds the errors to `failures`."""
        destination = self._runtime.config.destination
        incoming = self._incoming
        if incoming is not None:
            over = f"over {incoming.name}'s connection"
            if await self._connected_by(over, self._join(incoming, over), None, failures):
                return True
            self._failed_upstream = incoming.upstream
        ways = zip(destination.addresses, destination.reconnect_timeouts_s(), strict=True)
        for server, (address, timeout_s) in enumerate(ways):
            connecting = self._connect(address, server)
            if await self._connected_by(address, connecting, timeout_s, failures):
                return True
        return False

    async def _look_for_process(self) -> None:
        """Tells the instance that the process at the other end of the last connection has ended, if
        all of its addresses refuse connections: behind each attempt to connect, since the instance
        may not act yet. Silence and any other error say nothing."""
        addresses = self._runtime.config.destination.addresses
        if not self._is_looking:
            return
        for address in addresses:
            if await self._answer_of(address) is not Answer.REFUSED:
                return
        why = f"its process has ended: {' and '.join(addresses)[:500]} refuses connections"
        self._runtime.tell(encode_frame({"c": "ended", "why": why}))

    async def _answer_of(self, address: str) -> Answer:
        return await answer_of(self._runtime.loop, *split_address(address), ANSWER_OF_ADDRESS_S)

    async def _try_addresses(self) -> None:
        """Looks from now on for the process of a server that has connected by itself, if all of its
        addresses accept connections. Where a firewall refuses them, or there is none, a refusal
        later says nothing."""
        destination = self._runtime.config.destination
        if destination.waits or not destination.addresses:
            return  # It may have an address that is not among these.
        for _ in range(ADDRESS_TRIES):
            answers = {await self._answer_of(address) for address in destination.addresses}
            self._is_looking = answers == {Answer.ACCEPTED}
            if self._is_looking or Answer.REFUSED in answers:
                return
            await asyncio.sleep(destination.retry_ms_max / 1000)

    def _begin_looking(self, downstream: Downstream | None) -> None:
        """Notes whether refusals will say something of the process at the other end."""
        self._is_looking = downstream is not None and not downstream.is_carried
        if downstream is not None and downstream.is_carried:
            self._trying = self._runtime.loop.create_task(self._try_addresses())

    def _end_looking(self) -> None:
        """Takes a refusal for no evidence if the other side said that it disables its transport."""
        if self._trying is not None:
            self._trying.cancel()
            self._trying = None
        self._is_looking = self._is_looking and not self._why_lost().startswith(DISABLED)

    def _credentials_for(self, server: int | None) -> OwnCredentials:
        found = self._credentials.get(server)
        if found is None:
            config = self._runtime.config
            own = config.destination
            found = self._credentials[server] = OwnCredentials(
                own.authenticator if server is None else own.authenticator_of(server),
                f"{config.instance}: destination {own.name}",
            )
        return found

    async def _connected_by(
        self, way: str, connecting: Awaitable[None], timeout_s: float | None, failures: list[str]
    ) -> bool:
        """Connects by this way, and waits until that connection is lost. Returns whether it
        connected."""
        try:
            async with asyncio.timeout(timeout_s):
                await connecting
        except (OSError, RemoteProtocolError, ConfigurationError, TimeoutError) as error:
            # An error without a text says nothing, but its kind does.
            failures.append(f"{way}: {str(error) or type(error).__name__}")
            self._tell_missing(str(error) if isinstance(error, ConfigurationError) else "")
            self._drop()
            return False
        downstream = self._pump.downstream
        self._last_carried = downstream is not None and downstream.is_carried
        self._begin_looking(downstream)
        self._give_way()
        await self._stay()
        self._is_kept_out = downstream is not None and downstream.refused == "not_entitled"
        self._end_looking()
        failures[:] = [f"{way}: {self._why_lost()}"]
        self._drop()
        return True

    def _tell_missing(self, text: str) -> None:
        """Reports once that credentials for the logon are missing."""
        if text and text != self._missing:
            self._runtime.event("link_credentials_missing", text=text)
        self._missing = text

    async def _await_incoming(self) -> None:
        """Waits for the other side to connect: without limit if there is no address to dial, and
        for a moment if the other side is to dial first. That is the side whose connection was used
        last; the first time a rule decides."""
        destination = self._runtime.config.destination
        if not self._shares or self._incoming is not None:
            return
        if destination.addresses:
            awaits = self._last_carried
            if awaits is None:
                awaits = awaits_dial(self._runtime.config.instance, destination.server_names)
            if awaits:
                await self._arrives_within(AWAITS_DIAL_S)
            return
        while self._incoming is None:
            why = f"waits for {_waited_for(destination)} to connect"
            self._runtime.tell(encode_frame({"c": "waits", "why": why}))
            self._arrival.clear()
            await self._arrival.wait()

    async def _arrives_within(self, timeout_s: float) -> None:
        try:
            async with asyncio.timeout(timeout_s):
                await self._arrival.wait()
        except TimeoutError:
            pass

    def offered(self, header: Header) -> None:
        """Takes the instance's announcement of a connection that the other side made, or that there
        is none."""
        if header["upstream"]:
            self._incoming = OfferedConnection(
                header["upstream"], header["name"], header["incarnation"], header["proven"]
            )
            self._arrival.set()
            self._give_way()
        else:
            self._incoming = None

    def _give_way(self) -> None:
        """Gives up the dialled connection if both sides have dialled and the other side's is to be
        used."""
        incoming, downstream = self._incoming, self._pump.downstream
        if incoming is None or downstream is None or downstream.is_carried:
            return
        if not self._pump.is_started or incoming.upstream == self._failed_upstream:
            return
        accepted = downstream.accepted
        config = self._runtime.config
        if accepted is None or accepted.incarnation != incoming.incarnation:
            return
        if gives_way(config.instance, config.incarnation, incoming.name, incoming.incarnation):
            downstream.why = f"{incoming.name} has connected: its connection is used"
            downstream.abort(downstream.why)

    # -- one connection ----------------------------------------------------------------------
    def _why_lost(self) -> str:
        downstream = self._pump.downstream
        return downstream.why if downstream is not None else "connection lost"

    def _drop(self) -> None:
        downstream = self._pump.drop()
        if downstream is not None and downstream.is_open:
            downstream.abort("dropped")

    async def _connect(self, address: str, server: int) -> None:
        """Dials every address that the name resolves to, logs on, exchanges ranges, starts."""
        host, port = split_address(address)
        resolved = await self._runtime.loop.getaddrinfo(host, port, type=socket.SOCK_STREAM)
        problem: Exception = OSError(f"{host} resolves to nothing")
        for *_, target in dict.fromkeys(resolved):
            try:
                await self._connect_to(str(target[0]), int(target[1]), address, server)
            except (OSError, RemoteProtocolError, ConfigurationError, TimeoutError) as error:
                problem = error
                self._drop()
            else:
                return
        raise problem

    async def _connect_to(self, host: str, port: int, address: str, server: int) -> None:
        tls, name = self._runtime.config.destination.tls, split_address(address)[0]
        await self._log_on(
            self._opened(lambda make: connect(make, host, port, tls, name=name), None),
            address,
            self._credentials_for(server),
            proves=bool(self._runtime.config.destination.server_names),
        )

    def _opened(
        self,
        connect: Callable[[Callable[[], Any]], Coroutine[Any, Any, Any]],
        incoming: OfferedConnection | None,
    ) -> Coroutine[Any, Any, tuple[asyncio.Transport, Downstream]]:
        """Opens a connection by this way, over the line that a drill can impair if there is one."""

        def make() -> Downstream:
            if incoming is None:
                return Downstream(self._runtime, self, self._pump, carried=False)
            return Downstream(self._runtime, self, self._pump, carried=True, proven=incoming.proven)

        return self._line.open(make, connect) if self._line is not None else connect(make)

    async def _join(self, incoming: OfferedConnection, over: str) -> None:
        config = self._runtime.config
        names = config.destination.server_names if config.destination.addresses else ()
        front = control.carry(config.destination.name, config.start_number, incoming.upstream)
        await self._log_on(
            self._opened(
                lambda make: self._runtime.loop.create_unix_connection(make, config.unix_path),
                incoming,
            ),
            over,
            self._credentials_for(names.index(incoming.name) if incoming.name in names else None),
            front,
            proves=incoming.proven,
        )

    async def _log_on(
        self,
        connecting: Coroutine[Any, Any, tuple[asyncio.Transport, Downstream]],
        address: str,
        credentials: OwnCredentials,
        front: bytes = b"",
        *,
        proves: bool,
    ) -> None:
        """Logs on, exchanges ranges, and starts sending.

        Args:
            proves: whether the logon carries the proof that the instance belongs to the fabric.
                Only a server of the same fabric is sent it: another one could pass the proof on,
                and pass for this instance.
        """
        self._lost.clear()
        async with asyncio.timeout(CONNECT_TIMEOUT_S):
            _, downstream = await connecting
        self._pump.downstream = downstream
        if front:
            downstream.send(front)
        said = await credentials.say()
        # Requested only now that there is a peer to log on to, because each epoch is a write to the
        # instance's disk.
        self._epoch_answer = self._runtime.loop.create_future()
        self._runtime.tell(encode_frame({"c": "dial", "address": address}))
        self._beginning = control.StartReader()
        header, description = await self._epoch_answer
        self._pump.epoch = header["epoch"]
        config = self._runtime.config
        destination = config.destination
        logon = UpstreamLogon(
            config.instance,
            config.group,
            config.incarnation,
            destination.group,
            destination.name,
            self._pump.epoch,
            header["digest"],
            destination.ack_conflation_ms,
            description,
            None if downstream.is_carried else config.address,
            generation=header["generation"],
            placements=from_wire(header["placements"]),
            proof=header["proof"] if proves else b"",
        )
        await self._say(downstream, logon, said, credentials)
        accepted = downstream.accepted
        assert accepted is not None
        if accepted.group != destination.group:
            raise RemoteProtocolError(
                f"{accepted.name} is of group {accepted.group!r}, Destination "
                f"{destination.name!r} expects {destination.group!r}",
                "group",
            )
        self._pump.peer = accepted.name
        self._start_answer = self._runtime.loop.create_future()
        self._runtime.tell(
            control.connected(
                accepted.incarnation,
                accepted.name,
                accepted.client,
                address,
                epoch=self._pump.epoch,
                same=accepted.same,
                generation=accepted.generation,
                placements={} if downstream.is_carried else accepted.placements,
                names=accepted.names,
            )
        )
        await self._started_or_lost(downstream, self._start_answer)
        if not self._pump.is_started:
            raise ConnectionError(downstream.why or "connection lost")

    async def _say(
        self,
        downstream: Downstream,
        logon: UpstreamLogon,
        said: tuple[str, str],
        credentials: OwnCredentials,
    ) -> None:
        """Sends the logon, again for each challenge, and waits for the whole answer."""
        for _ in range(CHALLENGES_MAX + 1):
            downstream.send(link_logon(replace(logon, user_id=said[0], password=said[1])))
            challenge = await downstream.answered(ANSWER_TIMEOUT_S)
            if challenge is None:
                return
            said = await credentials.say(challenge)
        raise RemoteProtocolError(f"it challenges {CHALLENGES_MAX} times and more", "auth")

    async def _started_or_lost(self, downstream: Downstream, started: asyncio.Future[None]) -> None:
        """Waits until the instance has said how to start, which takes a while with very many
        publishers. Sends beats meanwhile, so that the other side does not take the connection for
        dead."""
        heartbeat_s = self._runtime.config.destination.heartbeat_ms / 1000
        lost = self._runtime.loop.create_task(self._lost.wait())
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
        """Passes to the instance a part of the destination's held or awaited messages."""
        self._runtime.tell(control.part_of_logon(command, root, body))

    def start(self, header: Header) -> None:
        """Takes the instance's answer to `connected`, and starts sending. Done at once, not in a
        task, because the next frame of the instance already belongs to this connection."""
        downstream = self._pump.downstream
        if self._start_answer is None or self._start_answer.done() or downstream is None:
            return
        if not downstream.is_open or downstream.accepted is None:
            return
        start = self._beginning.started(header)
        held = downstream.held if downstream.held is not None else self._beginning.held
        self._beginning = control.StartReader()
        downstream.held = None
        self._pump.begin(downstream, held, start)
        self._start_answer.set_result(None)

    async def _stay(self) -> None:
        """Sends beats until the connection is lost."""
        destination = self._runtime.config.destination
        heartbeat_s = destination.heartbeat_ms / 1000
        timeout_s = destination.timeout_ms / 1000
        silence = SilenceDetector()
        while not self._lost.is_set():
            downstream = self._pump.downstream
            if downstream is None:
                return
            if self._pump.is_direct:
                # The instance has the connection, and sends beats and listens itself.
                await self._lost.wait()
                return
            now_s = self._runtime.loop.time()
            heard_s = downstream.received_at_s
            silent_s = now_s - heard_s
            if silence.is_lost(
                silent_s, heard_s, timeout_s, partial(downstream.host_answers, timeout_s)
            ):
                downstream.why = why_lost(silent_s, timeout_s)
                downstream.abort(downstream.why)
                return
            if now_s - downstream.sent_at_s >= heartbeat_s:
                downstream.send(BEAT)
            try:
                async with asyncio.timeout(heartbeat_s / 2):
                    await self._lost.wait()
            except TimeoutError:
                pass

    def lost(self, downstream: Downstream) -> None:
        if downstream is self._pump.downstream:
            self._pump.stop()
            self._lost.set()

    # -- streams over it ---------------------------------------------------------------------
    def bring(self, stream: TunnelStream) -> None:
        """Connects to the instance a stream over this connection, which is the destination's link
        to the instance."""
        task = self._runtime.loop.create_task(self._bring(stream))
        self._bringing.add(task)
        task.add_done_callback(self._bringing.discard)

    def stream_front(self, certificate: PeerCertificate | None) -> bytes:
        """Returns the first frame of such a stream, which tells the instance of the stream and the
        other side."""
        config = self._runtime.config
        shown = None if certificate is None else certificate.to_wire()
        return control.carried(config.destination.name, config.start_number, shown)

    async def _bring(self, stream: TunnelStream) -> None:
        config = self._runtime.config
        try:
            await self._runtime.loop.create_unix_connection(lambda: stream, config.unix_path)
        except OSError as error:
            stream.end(f"{config.instance} cannot be reached: {error}", tell=True)


def _waited_for(destination: DestinationConfig) -> str:
    return " or ".join(destination.server_names) or destination.group
