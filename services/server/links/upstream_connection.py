"""A link of another instance, connected to a replication transport of this one."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from functools import partial
from typing import Protocol

from raylay.services.core.connection_order import UpstreamCycle
from raylay.services.core.fold_backlog import another_turn
from raylay.services.errors import CorruptRecord, RaylayError, RemoteProtocolError, StorageError
from raylay.services.messages.records import RUN_BYTES_MAX, Kind, Run
from raylay.services.net.liveness import SilenceDetector, host_answers, why_lost
from raylay.services.net.tls_files import PeerCertificate
from raylay.services.net.tunnel import TunnelHost, TunnelStream
from raylay.services.protocol.child import queue_requests
from raylay.services.protocol.child.queue_requests import QueueRequest
from raylay.services.protocol.client.compression import Decompressor
from raylay.services.protocol.frames import (
    LOGON_TIMEOUT_S,
    FrameReader,
    Header,
)
from raylay.services.protocol.link.bootstrap import REQUEST
from raylay.services.protocol.link.description import LINK_LOGON_BYTES_MAX, unpack_description
from raylay.services.protocol.link.link_credentials import read_said
from raylay.services.protocol.link.proof import is_proven
from raylay.services.protocol.link.replication import (
    AWAITED_RANGES_MAX,
    BEAT,
    REPLICATION_FRAME_BYTES_MAX,
    LinkAccepted,
    LinkBatch,
    UpstreamLogon,
    exchange_frames,
    placed,
    read_batch,
    read_lacks,
    read_link_logon,
    read_placed,
    refusal,
)
from raylay.services.replication.batch_room import BatchRoom
from raylay.services.replication.effects import AckUpstream
from raylay.services.replication.inbound_queue import InboundQueue
from raylay.services.replication.journal_lookup import LookupRequest, LookupResult
from raylay.services.replication.link.outbound import WINDOW_BYTES_DEFAULT
from raylay.services.replication.link_batch_parts import (
    SLICE_BYTES,
    LinkBatchParts,
    decode_replicated_runs,
    is_long,
)
from raylay.services.replication.membership.admission import (
    EPOCH_KEYS,
    LinkAdmitted,
    LinkRefused,
    StoredEpochs,
    UnprovenLinks,
    counts,
    epoch_key,
    proven_keys,
)
from raylay.services.replication.membership.connection_sharing import SharedConnection
from raylay.services.replication.membership.placement import InstancePlacement
from raylay.services.replication.membership.validation import DestinationTerms, check, told
from raylay.services.replication.values import UpstreamAnswer
from raylay.services.security.connection_shares import (
    ConnectionShares,
    ShareHolder,
    ShareRefusal,
)
from raylay.services.security.incomplete_frames import (
    TOO_MANY,
    IncompleteFrame,
    IncompleteFrames,
    incomplete_bytes_max,
)
from raylay.services.security.logon_turns import network_of
from raylay.services.security.permissions import Permissions
from raylay.services.server.access import AccessCheck
from raylay.services.server.clients.admission import ClientAdmission
from raylay.services.server.clients.connection_limit import ConnectionLimit
from raylay.services.server.clients.sessions import ENTITLEMENT_RESET
from raylay.services.server.clients.slow_clients import memory_of_process
from raylay.services.server.clients.transport import ClientTransport
from raylay.services.server.commits import LINKS_TIMES, Commits, SlowedPublishers
from raylay.services.server.cooperative import yield_between
from raylay.services.server.data.held_digest import HeldDigest
from raylay.services.server.data.journal_reads import JournalReads
from raylay.services.server.describe import describe
from raylay.services.server.links.access import NOT_ENTITLED, LinkAccess, first_kept_out
from raylay.services.server.links.ack_sender import CONFLATION_MS_MAX, AckSender
from raylay.services.server.links.bootstrap_source import BootstrapSource
from raylay.services.server.links.link_occurrences import tell_upstream
from raylay.services.server.links.placements import PlacementKeeper
from raylay.services.server.queues.manager import QueueManager
from raylay.services.server.read_backpressure import ReadBackpressure
from raylay.services.server.recovered_instance import RecoveredInstance
from raylay.services.server.runtime import InstanceRuntime
from raylay.services.server.sow.manager import SowManager

BEAT_S = 1.0
SILENCE_S_MAX = 5.0
AWAITED_BYTES_MAX, UNPROVEN_RANGES_MAX = 4 * 1024 * 1024, 220_000
"""Limits of one frame's questions, in bytes and in ranges, for a link without a proof where the
fabric has a key."""
BLOCK_BYTES_MAX = 2 * RUN_BYTES_MAX
"""Limit on the bytes of a batch's runs after decompression: a link sends about 1 MiB, or one
run."""
WAITING_BYTES_MAX = 2 * WINDOW_BYTES_DEFAULT
"""Bytes of batches that wait for a look into the journal: more than a link's window allows on the
way. Beyond them the connection is not read, and neither are its beats and the stream that it
carries: the pause ends by itself, as it waits for nothing from the other side."""


class SharedConnectionUser(Protocol):
    """A link that may use a connection that the other side made (`LinkControl`)."""

    def offer_incoming(self) -> None:
        """Offers the link an incoming connection that it may use, if that is another one than
        before."""


class ConnectedUpstreams:
    """The upstream links that are connected, and the parts of the instance that all of them need.

    Owner: the instance's event loop.

    Args:
        links: the links of this instance, by destination.
    """

    def __init__(
        self,
        runtime: InstanceRuntime,
        instance: RecoveredInstance,
        links: Mapping[str, SharedConnectionUser],
        *,
        admission: ClientAdmission,
        commits: Commits,
        digest: HeldDigest,
        connection_limit: ConnectionLimit,
        access_check: AccessCheck | None,
        placements: PlacementKeeper,
        queues: QueueManager,
        reading: JournalReads,
        shares: ConnectionShares,
        slowed: SlowedPublishers,
        sow: SowManager,
    ) -> None:
        self.runtime = runtime
        self.instance = instance
        self.shares = shares
        """Shares of the instance's connections that one user, and one address, may have."""
        self.incomplete = IncompleteFrames(
            "links", incomplete_bytes_max(memory_of_process(), REPLICATION_FRAME_BYTES_MAX)
        )
        """Bytes of incomplete frames that the links' connections hold."""
        self._rooms = BatchRoom(), BatchRoom()
        self.admission = admission
        self.commits = commits
        self.digest = digest
        self.connection_limit = connection_limit
        self.placements = placements
        self.queues = queues
        """Queues of the instance, which are told the instance names of incarnations before their
        first record, and the requests of other instances."""
        self.reading = reading
        self.slowed = slowed
        self.sow = sow
        self.access_check = access_check
        """Access check of links that come over this instance's own links' connections; None: all
        are let in."""
        self.connected: dict[int, UpstreamConnection] = {}
        """Connections by number, from the moment when they open."""
        self.unproven = UnprovenLinks()
        self.stored_epochs = StoredEpochs(
            lambda: [key for key, _ in self.instance.state.items(EPOCH_KEYS)]
        )
        self._links = links
        self.cycle = UpstreamCycle(runtime, instance, commits.cycle, queues, self.changed)
        """Order in which links are let in and their messages are taken."""

    def room(self, upstream: UpstreamConnection) -> BatchRoom:
        """Returns the room for a link's long batches. Links that prove to be of the fabric do not
        wait for others."""
        logon = upstream.logon
        return self._rooms[logon is not None and logon.proven]

    def gone(self, upstream: UpstreamConnection, why: str) -> None:
        self.connected.pop(upstream.number, None)
        if upstream.is_accepted and upstream.logon is not None:
            self.instance.machine.upstream_left(upstream.number)
            self.runtime.report("upstream_disconnected", peer=upstream.logon.name, why=why)
            tell_upstream(self.runtime.occurrences, upstream.logon, upstream.peer, why)
            self.changed()

    def changed(self) -> None:
        """Offers links another incoming connection, after an instance connected or left, or a
        link's use of its connection changed."""
        if self.runtime.is_serving:
            for link in self._links.values():
                link.offer_incoming()

    def reset_entitlement(self, user: str = "", transport: str = "") -> int:
        """Ends links of a user, at a transport (empty: any); they log on anew. Returns how many."""
        let_in = [each for each in self.connected.values() if each.user is not None]
        let_in = [each for each in let_in if user in ("", each.user)]
        found = [each for each in let_in if transport in ("", each.transport_name)]
        for each in found:
            each.refuse(ENTITLEMENT_RESET, "what it may bring is asked anew: log on again")
        return len(found)

    def leaving(self, incarnation: int) -> tuple[ShareHolder, tuple[ConnectionShares, ...]] | None:
        """Returns the holder and the shares of the accepted connection of this incarnation, which a
        newer one of it replaces; None: there is none."""
        for each in self.connected.values():
            logon = each.logon
            if each.is_accepted and logon is not None and logon.incarnation == incarnation:
                return each.counted_for
        return None

    def epoch_keys(self) -> frozenset[str]:
        """The keys of the epochs of links that are connected."""
        logons = (each.logon for each in self.connected.values() if each.is_accepted)
        return frozenset(epoch_key(logon) for logon in logons if logon is not None)

    def incoming(self, destination: str) -> list[SharedConnection]:
        """The connections that may carry a stream for the link to that destination."""
        offered = (upstream.as_incoming(destination) for upstream in self.connected.values())
        return [each for each in offered if each is not None]


class UpstreamConnection(TunnelHost, ReadBackpressure):
    """One upstream link. Owner: the instance's event loop. Lifecycle: one connection.

    Args:
        carried_over: the destination whose link's connection carries this one; empty: this one was
            accepted at a replication transport.
        accepted_by: the transport that accepted the connection.
        certificate: the certificate of the other side of the carrying connection, as the link
            reports it.
    """

    urgency = 0
    """Rank of its frames in the outbox: first, as publishers wait for these acks; this instance's
    own links are told of commits later."""

    def __init__(
        self,
        upstreams: ConnectedUpstreams,
        carried_over: str = "",
        accepted_by: ClientTransport | None = None,
        certificate: object = None,
    ) -> None:
        self._incomplete = IncompleteFrame(self._holds_too_much)
        holds = partial(upstreams.incomplete.holds, self._incomplete)
        reader = FrameReader(frame_bytes_max=LINK_LOGON_BYTES_MAX, holds=holds)
        runtime = upstreams.runtime
        super().__init__(runtime.outbox, runtime.loop, reader)
        self._unread = IncompleteFrame(self._holds_too_much)
        """Bytes that wait for the reader of the stream that the connection carries."""
        self._waiting = IncompleteFrame(self._holds_too_much)
        """Bytes of a long batch that waits for room."""
        self._wanted_bytes = 0
        """Bytes of room that the next batch waits for; 0: it needs none."""
        self._counted: tuple[ShareHolder, tuple[ConnectionShares, ...]] | None = None
        """Holder that the connection is counted for, and the shares that count it; None: it is not
        counted."""
        self._upstreams = upstreams
        self._runtime = runtime
        self._instance = upstreams.instance
        self.number = upstreams.connection_limit.next_number()
        self._accepted_by = accepted_by
        self.logon: UpstreamLogon | None = None
        self.is_accepted = False
        self.transport_name = "replication" if accepted_by is None else accepted_by.name
        self._access = LinkAccess(self, runtime)
        self.permissions: Permissions | None = None
        """Permissions to replicate messages; None: everything."""
        self.user: str | None = None
        """User as whom the link was let in; None: there is no access check."""
        self.carried_over = carried_over
        self.carried_certificate = PeerCertificate.from_wire(certificate)
        self._copied: BootstrapSource | None = None
        self._doubted = False
        self._doubts: set[str] = set()
        """Events that have reported a statement of the link which is not believed."""
        self._acks = AckSender(self)
        self._answer_bytes = 0
        """Bytes of the answer to the logon that were sent."""
        self._logon_timer: asyncio.TimerHandle | None = None
        self.arrivals = InboundQueue(self._take)
        self._decompressor = Decompressor(BLOCK_BYTES_MAX)
        self._silence = SilenceDetector()

    def opened(self) -> None:
        """Starts the time limit for the logon."""
        self._upstreams.connected[self.number] = self
        for held in (self._incomplete, self._unread, self._waiting):
            self._upstreams.incomplete.belongs(held, ShareHolder("", network_of(self.peer)))
        self._upstreams.connection_limit.came(self)
        if self.is_open and self._accepted_by is not None:
            self._accepted_by.came(self)
        if not self.is_open:
            return
        self._logon_timer = self.loop.call_later(
            LOGON_TIMEOUT_S,
            lambda: self.refuse("logon_timeout", f"no logon within {LOGON_TIMEOUT_S:g} s"),
        )

    def turn_away(self, text: str) -> None:
        self.refuse(TOO_MANY, text)

    def _holds_too_much(self, refusal: ShareRefusal) -> None:
        """Ends the connection: of all links with incomplete frames it holds the most bytes."""
        self._over_share("frames", refusal.text)
        self.refuse(TOO_MANY, refusal.text)

    def _over_share(self, limit: str, text: str) -> None:
        self._runtime.over_share(
            "replication",
            limit,
            peer=self.said_by[:400],
            user=(self.user or "")[:200],
            transport=self.transport_name,
            text=text,
        )

    def _is_over_share(self, incarnation: int, is_proven: bool) -> bool:
        """Returns whether the link's user, or its address, has too many connections: the link is
        then refused. Links that prove to be of the fabric are not counted, as all of its instances
        may use one user.

        Args:
            incarnation: the incarnation of the other side's instance: an older connection of it
                makes room.
        """
        holder = ShareHolder(self.user or "", network_of(self.peer))
        for held in (self._incomplete, self._unread, self._waiting):
            self._upstreams.incomplete.belongs(held, holder)
        accepted_by = self._accepted_by
        if accepted_by is None or is_proven:
            return False
        counted = self._upstreams.shares, accepted_by.shares
        leaving = self._upstreams.leaving(incarnation)
        for shares in counted:
            refused = shares.refusal(holder)
            if refused is not None and leaving is not None and shares in leaving[1]:
                refused = shares.refusal(holder, leaving[0])
            if refused is not None:
                self._over_share(refused.limit, refused.text)
                self.refuse(TOO_MANY, refused.text)
                return True
        for shares in counted:
            shares.admitted(holder)
        self._counted = holder, counted
        return False

    @property
    def counted_for(self) -> tuple[ShareHolder, tuple[ConnectionShares, ...]] | None:
        """The holder that the connection is counted for, and the shares that count it; None: it is
        not counted."""
        return self._counted

    def end(self, reason: str, text: str) -> None:
        self.refuse(reason, text)

    def frame_received(self, header: Header, body: bytes) -> None:
        if self.is_accepted:
            command = header["c"]
            if command == "batch" or command == "lacks":
                fetch = self.arrivals.came((header, body), len(body))
                if fetch is not None:
                    self._upstreams.reading.read_for(self, fetch)
                elif self.arrivals.waiting_bytes > WAITING_BYTES_MAX:
                    self.pause_reading("journal")
            elif command == "placed":
                self._told(read_placed(header))
            elif command == "names":
                self._names_told(body)
            elif command == queue_requests.COMMAND:
                self._queue_requested(queue_requests.read_queue_request(header, body))
            elif command != "beat" and not self.stream_frame(header, body):
                self.refuse("unknown_command", f"command {command[:64]!r} of a link is unknown")
            return
        if self.logon is not None or self._copied is not None or self._access.is_asking:
            if not (self._access.is_asking and header["c"] == "beat"):
                self.refuse("bad_command", "a link goes on before its logon is answered")
            return
        accepted_by = self._accepted_by
        check = (self._upstreams if accepted_by is None else accepted_by).access_check
        if header["c"] == REQUEST:
            copied = BootstrapSource(self, self._upstreams, header, body)
            said = read_said(header)
            self._access.ask(check, copied.asked_by, said, lambda: self._copy(copied))
            return
        logon = read_link_logon(header, body)
        said = logon.user_id, logon.password
        self._access.ask(check, logon.name, said, lambda: self._let_in(logon))

    def _copy(self, copied: BootstrapSource) -> None:
        if self._is_over_share(0, False):
            return
        self._copied = copied
        self._upstreams.connection_limit.admitted(self)
        if self._accepted_by is not None:
            self._accepted_by.admitted(self)
        if self._logon_timer is not None:
            self._logon_timer.cancel()
        self._runtime.spawn(copied.run(), self.failed)

    def _let_in(self, logon: UpstreamLogon) -> None:
        logon.password = ""
        logon.proven = is_proven(self._runtime.config.fabric_key, logon)
        if self._is_over_share(logon.incarnation, logon.proven):
            return
        self.logon = logon
        self._runtime.spawn(
            self._announced(logon) if logon.announces else self._log_on(logon), self.failed
        )

    def _names_told(self, body: bytes) -> None:
        """Takes the names of publisher ids, with proof only: else anybody could claim the ids of
        all clients."""
        if self.logon is None or not self.logon.proven:
            self.refuse("bad_command", "names of publishers count from instances of the fabric")
        else:
            self._instance.perform(self._instance.machine.names_told(body, self.logon.name))

    def _queue_requested(self, request: QueueRequest) -> None:
        """Passes a request for messages on. Ignores a request of a link that may not replicate the
        queue's records, and, in a fabric with a key, of a link that does not prove to be of it."""
        if not self._is_believed:
            return
        if self.permissions is None or self.permissions.replicates(request.queue.encode()):
            self._upstreams.queues.requested(request)

    def _is_kept_out(self, permissions: Permissions, runs: list[Run]) -> bool:
        """Returns whether any of the runs is of a topic that the link may not replicate: the whole
        batch is then refused."""
        topic = first_kept_out(permissions, [run.topic for run in runs if run.kind == Kind.RECORDS])
        if topic is None or self.logon is None:
            return False
        name = topic.decode("utf-8", "replace")
        text = (
            f"{self.logon.name} may not replicate topic {name!r} to {self._runtime.config.name}: "
            "nothing of its batch was taken, and its link goes no further; allow it in "
            "`replicated-topics` of its user, or take the topic out of the destination"
        )
        self._runtime.report("upstream_not_entitled", peer=self.logon.name, topic=name, text=text)
        self.refuse(NOT_ENTITLED, text)
        return True

    @property
    def takes_parts(self) -> bool:
        """True where the next part of a long batch may be taken."""
        return self._upstreams.commits.takes_parts

    def waits_for(self, go_on: Callable[[], None]) -> bool:
        """Returns whether the next batch waits for room: then `go_on` is called when there may be
        some."""
        if not self._wanted_bytes:
            return False
        if not self._upstreams.room(self).enter(self, self._wanted_bytes, go_on):
            return True
        self._wanted_bytes = 0
        self._upstreams.incomplete.holds(self._waiting, 0)
        return False

    def went_on(self, is_waiting: bool) -> None:
        """Goes on after a batch that waited for the journal was taken; `is_waiting`: another one
        waits for it."""
        if self.arrivals.waiting_bytes <= WAITING_BYTES_MAX // 2:
            self.resume_reading("journal")

    def unreadable(self, error: StorageError) -> None:
        self.refuse("storage_error", str(error))

    def writable(self) -> None:
        super().writable()
        if self._copied is not None:
            self._copied.writable()

    def broken(self, error: RemoteProtocolError) -> None:
        self.refuse(error.reason, str(error))

    def failed(self, error: Exception) -> None:
        self._instance.contain(error, self.said_by, self.refuse)

    @property
    def said_by(self) -> str:
        """The other side in events and errors: the instance's name and address."""
        name = self.logon.name if self.logon is not None else ""
        return f"{name} at {self.peer}" if name else self.peer

    def refuse(self, reason: str, text: str) -> None:
        if self.is_open:
            told = self._upstreams.placements.known() if reason in ("retired", "moved") else None
            self.send(refusal(reason, text, told))
            self.close(text)

    def placed(self, news: Mapping[str, InstancePlacement]) -> None:
        if self.is_accepted:
            self.send(placed(news))

    def _told(self, placements: Mapping[str, InstancePlacement]) -> None:
        """Takes placements that arrive on an open connection."""
        if self._counts(placements):
            self._runtime.spawn(self._upstreams.placements.learn_quietly(placements), self.failed)

    def _counts(self, placements: Mapping[str, InstancePlacement]) -> bool:
        """Returns whether the link's placements are believed: only those of this instance's fabric
        are."""
        logon, runtime = self.logon, self._runtime
        if logon is not None and logon.proven:
            return True
        if not self._doubted and self._instance.machine.placements.news(placements):
            self._doubted = True
            runtime.report(
                "placements_unproven",
                peer=logon.name if logon is not None else self.peer,
                text=f"it says where {', '.join(sorted(placements)[:4])} live, and does not prove "
                f"that it is of the fabric of {runtime.config.name}: not believed",
            )
        return False

    async def _announced(self, logon: UpstreamLogon) -> None:
        """Takes the new placement of a moved instance, which then disconnects."""
        runtime = self._runtime
        if not runtime.is_serving:
            self.refuse("not_ready", f"{runtime.config.name} is {runtime.phase}")
            return
        if not self._counts(logon.placements):
            self.refuse(
                "unproven",
                f"{logon.name} tells where instances live and does not prove that it is of the "
                f"fabric of {runtime.config.name}: `fabric_key` has to be the same in the "
                "configurations of both; until then nothing of it is believed",
            )
            return
        try:
            await self._upstreams.placements.learn(logon.placements)
        except RaylayError as error:
            self.refuse("storage_error", str(error))
            return
        if self.is_open:
            self.send(placed(self._instance.machine.placements.items()))
            self.outbox.flush()
            self.close("told")

    def ended(self, why: str) -> None:
        self._upstreams.connection_limit.left(self)
        if self._accepted_by is not None:
            self._accepted_by.left(self)
        if self._logon_timer is not None:
            self._logon_timer.cancel()
        if self._copied is not None:
            self._copied.writable()
        self.arrivals.clear()
        self.reader.clear()
        self._upstreams.room(self).leave(self)
        for held in (self._incomplete, self._unread, self._waiting):
            self._upstreams.incomplete.left(held)
        if self._counted is not None:
            holder, counted = self._counted
            for shares in counted:
                shares.left(holder)
        self.carrier_ended(why)
        self._upstreams.gone(self, why)

    async def _log_on(self, logon: UpstreamLogon) -> None:
        runtime = self._runtime
        if not runtime.is_serving:
            self.refuse("not_ready", f"{runtime.config.name} is {runtime.phase}")
            return
        cycle = self._upstreams.cycle
        try:
            if self._counts(logon.placements):
                await self._upstreams.placements.learn(logon.placements)
            decided: LinkAdmitted | LinkRefused | None = cycle.refusal(logon)
            if decided is None and not logon.salvages:
                decided = await runtime.in_thread(self._validate, logon)
            if decided is None:
                connected = self._upstreams.epoch_keys()
                seen, is_anothers = await self._instance.state.run(
                    lambda: self._take_epoch(logon, connected)
                )
                decided = cycle.admit(self, logon, seen, is_anothers=is_anothers)
        except RaylayError as error:
            self.refuse("storage_error", str(error))
            return
        if decided is None or not self.is_open:
            return
        if isinstance(decided, LinkRefused):
            reason, text = decided.reason, decided.text
            runtime.report("upstream_refused", peer=logon.name, reason=reason, text=text)
            self.refuse(reason, text)
            return
        await self._answer(logon, decided.answer)

    @property
    def tells_names(self) -> bool:
        if self._is_believed or self.logon is None:
            return True
        return self._upstreams.unproven.may_name(self.logon.incarnation)

    def accepted(self) -> None:
        """Marks the link as let in: its acks wait for the answer to its logon from now on."""
        if self._logon_timer is not None:
            self._logon_timer.cancel()
        self.is_accepted = True
        self._upstreams.connection_limit.admitted(self)
        if self._accepted_by is not None:
            self._accepted_by.admitted(self)
        assert self.logon is not None
        self._acks.conflation_s = min(self.logon.ack_conflation_ms, CONFLATION_MS_MAX) / 1000
        self.reader.frame_bytes_max = REPLICATION_FRAME_BYTES_MAX
        self._acks.answer()
        tell_upstream(self._runtime.occurrences, self.logon, self.peer)

    def answered(self) -> None:
        """Sends the acks that waited, as the answer to the logon has been sent."""
        self._acks.answered(self._answer_bytes)

    async def _answer(self, logon: UpstreamLogon, answer: UpstreamAnswer) -> None:
        same = await self._upstreams.digest.of(answer.held) == logon.digest
        identity = self._instance.identity
        accepted = LinkAccepted(
            identity.name,
            identity.group,
            identity.incarnation,
            self._runtime.client_address,
            same,
            identity.generation,
            self._instance.machine.placements.items(),
            self._instance.machine.publisher_names.digest
            if logon.proven and not logon.salvages
            else b"",
        )
        async for frame in yield_between(
            exchange_frames(accepted, None if same else answer.held, answer.waited)
        ):
            if not self.is_open:
                return
            self.send(frame)
            self._answer_bytes += len(frame)
        self._upstreams.cycle.answered(self)

    def as_incoming(self, destination: str) -> SharedConnection | None:
        """Returns the description of this connection for a link of this instance; None: it cannot
        carry that link's stream."""
        logon = self.logon
        if not self.is_accepted or not self.is_open or self.carried_over or logon is None:
            return None
        if self._acks.is_answering:
            return None
        if (
            logon.address is None
            or logon.salvages
            or (self.carried and self.carried.user != destination)
        ):
            return None
        return SharedConnection(
            self.number,
            logon.name,
            logon.group,
            logon.incarnation,
            logon.address,
            logon.proven or not self._instance.identity.in_fabric,
        )

    def carry(self, destination: str) -> TunnelStream:
        """Begins a stream for the link to a destination; an earlier stream of it ends."""
        if self.carried is not None:
            self.carried.end("its link connects again", tell=True)
        return self.begin_stream(destination)

    def stream_holds(self, unread_bytes: int) -> None:
        """Counts the stream's unread bytes with the link's incomplete frames, unless the connection
        has ended."""
        if self.is_open or not unread_bytes:
            self._upstreams.incomplete.holds(self._unread, unread_bytes)

    def stream_ended(self, stream: TunnelStream) -> None:
        """Ends the stream: another destination may use the connection."""
        super().stream_ended(stream)
        self._upstreams.changed()

    def _validate(self, logon: UpstreamLogon) -> LinkRefused | None:
        """Returns why the link is refused, if its description is invalid or a check of its
        Destination fails. A logon that `salvages` is not validated: its data directory is retired,
        and its configuration need not fit any more. Runs in a thread, as it searches topics with
        regular expressions of the other side."""
        terms = DestinationTerms(logon.destination, logon.expect, ())
        try:
            upstream = unpack_description(logon.name, logon.group, terms, logon.description)
        except RemoteProtocolError as error:
            return LinkRefused(error.reason, str(error))
        failures = check(upstream.destinations[0], upstream, describe(self._runtime.config))
        return LinkRefused("validation", told(failures)) if failures else None

    def _take_epoch(self, logon: UpstreamLogon, connected: frozenset[str]) -> tuple[int, bool]:
        """Returns the highest epoch seen before, and stores this one if it is higher, so that of
        two connections with one epoch only the first is accepted. Also returns whether the epoch
        belongs to a link that has proved to be of the fabric while this one has not. In a fabric
        with a key nothing is stored for a link without a proof. Runs on the state's thread.

        Args:
            connected: the epoch keys of the links that are connected.
        """
        state = self._instance.state
        if self._instance.identity.in_fabric:
            proven = {each: state.get_number(each) for each in proven_keys(logon)}
            if not logon.proven:
                if any(proven.values()):
                    return 0, True
                return self._upstreams.unproven.take_epoch(logon), False
            for each, is_known in proven.items():
                if not is_known:
                    state.put_number(each, 1)
        key = epoch_key(logon)
        seen = state.get_number(key)
        if counts(logon.epoch, seen):
            state.put_number(key, logon.epoch)
            if not self._instance.identity.in_fabric:
                forgotten = self._upstreams.stored_epochs.used(key, connected)
                if forgotten:
                    state.put_now(dict.fromkeys(forgotten))
        return seen, False

    def _take(self, frame: tuple[Header, bytes], answers: LookupResult) -> LookupRequest | None:
        if not self.is_open:
            return None
        header, body = frame
        if header["c"] == "batch":
            return self._batch(header, body, answers)
        lacks, whole = read_lacks(header, body)
        if not self._speaks_of_all("lacks_unproven", "what is lacking for good"):
            return None
        self._upstreams.cycle.take_lacks(self, lacks, whole)
        return None

    def _batch(self, header: Header, body: bytes, answers: LookupResult) -> LookupRequest | None:
        if self._upstreams.commits.cycle.failure is not None:
            self.refuse(*self._upstreams.commits.cycle.failure)
            return None
        if answers.decoded is not None:
            batch, runs = answers.decoded
            if isinstance(runs, LinkBatchParts):
                return self._go_on(batch, runs, answers)
        else:
            batch = read_batch(header, body, *(self._awaited_max if "w" in header else ()))
            block = batch.block
            checks = self.logon is None or not self.logon.proven
            if self._needs_room(batch):
                if checks:
                    self._upstreams.incomplete.holds(self._waiting, len(body))
                return another_turn()
            if batch.compression and block:
                block = self._decompressor.decompress(batch.compression, block)
            if is_long(block, batch.awaited):
                return self._go_on(batch, LinkBatchParts(block, batch.awaited, checks), answers)
            try:
                runs = decode_replicated_runs(block, checks=checks)
            except CorruptRecord as error:
                self._refuse_records(error)
                return None
            if self.permissions is not None and self._is_kept_out(self.permissions, runs):
                return None
        questions = self._upstreams.cycle.take_batch(self, batch, runs, batch.awaited, answers)
        if questions:
            answers.decoded = batch, runs
            return questions
        self._check_pace()
        return None

    def _needs_room(self, batch: LinkBatch) -> bool:
        """Returns whether a batch has to wait until there is room for it.

        Raises:
            RemoteProtocolError: the batch is longer than any that a link sends, with reason
                `bad_record`.
        """
        block, size_bytes = batch.block, len(batch.block)
        if batch.compression and block:
            size_bytes = self._decompressor.size_max(batch.compression, block)
        if size_bytes > BLOCK_BYTES_MAX:
            raise RemoteProtocolError(
                f"a batch has {size_bytes:,} bytes of records: at most {BLOCK_BYTES_MAX:,}",
                "bad_record",
            )
        if size_bytes <= SLICE_BYTES or self in self._upstreams.room(self):
            return False
        self._wanted_bytes = size_bytes
        return True

    def _go_on(
        self, batch: LinkBatch, parts: LinkBatchParts, answers: LookupResult
    ) -> LookupRequest | None:
        """Decodes a slice of a long batch, or takes a part of it; the next one follows in another
        turn."""
        answers.decoded = batch, parts
        if not parts.is_decoded:
            try:
                parts.decode()
            except CorruptRecord as error:
                self._refuse_records(error)
                return None
            if not parts.is_decoded:
                return another_turn()
            if self.permissions is not None and self._is_kept_out(self.permissions, parts.runs):
                return None
        runs, awaited = parts.part
        is_part = not parts.is_last
        cycle = self._upstreams.cycle
        questions = cycle.take_batch(self, batch, runs, awaited, answers, is_part)
        if questions:
            return questions
        self._check_pace()
        if parts.is_last or not self.is_open:
            self._upstreams.room(self).leave(self)
            return None
        # Look-ups for this part are not reused for the next one.
        answers.close()
        answers.clear()
        batch.yours = {}
        parts.go_on()
        return another_turn()

    def shows_old_copy(self) -> bool:
        """Returns whether the link is believed when it reports an older copy of this instance."""
        return self._speaks_of_all("old_copy_unproven", "what is in an old copy")

    def _check_pace(self) -> None:
        """Pauses reading while the link outruns the disk, the folds or the queues."""
        self._upstreams.commits.check_staged(self, LINKS_TIMES)
        self._upstreams.slowed.check(self, is_link=True)

    def _refuse_records(self, error: CorruptRecord) -> None:
        """Ends the connection for a batch that cannot be taken at all."""
        text = f"{self.said_by} sent a batch of which nothing was taken: {error}"
        self._runtime.report("upstream_refused", peer=self.said_by, reason="bad_record", text=text)
        self.refuse("bad_record", text)

    def _speaks_of_all(self, event: str, what: str) -> bool:
        """Returns whether the link may make a statement about sequences that names no topics: a
        link that may replicate only some topics may not. The first such refusal is reported."""
        permissions, logon = self.permissions, self.logon
        if permissions is None or permissions.replicates_all or (logon and logon.proven):
            return True
        if event not in self._doubts:
            self._doubts.add(event)
            name = self._runtime.config.name
            self._runtime.report(
                event,
                peer=logon.name if logon is not None else self.peer,
                text=f"{self.said_by} says {what} at {name}, and may not replicate every topic to "
                "it: not believed; where it should be, begin the `replicated-topics` of its user "
                "with `.*`, or give both the fabric's key",
            )
        return False

    @property
    def _is_believed(self) -> bool:
        """Returns whether the link is believed in more than the messages that it sends."""
        logon = self.logon
        return not self._instance.identity.in_fabric or (logon is not None and logon.proven)

    @property
    def _awaited_max(self) -> tuple[int, int]:
        """The limits on the awaited messages that a batch names, in bytes and in ranges."""
        if self._is_believed:
            return REPLICATION_FRAME_BYTES_MAX, AWAITED_RANGES_MAX
        return AWAITED_BYTES_MAX, UNPROVEN_RANGES_MAX

    def acknowledge(self, ack: AckUpstream) -> None:
        """Sends an ack, or holds it back for as long as the link's Destination allows."""
        self._acks.acknowledge(ack)

    def beat(self, now_s: float) -> None:
        """Called regularly. Sends heartbeats, and ends the connection when the other side is
        silent."""
        if not self.is_accepted or not self.is_open:
            return
        if self._acks.is_answering:
            return  # The link is silent until it is answered.
        silent_s = now_s - self.received_at_s
        if self.reading and self._silence.is_lost(
            silent_s, self.received_at_s, SILENCE_S_MAX, self._host_answers
        ):
            self.close(why_lost(silent_s, SILENCE_S_MAX))
        elif now_s - self.sent_at_s >= BEAT_S:
            self.send(BEAT)

    def _host_answers(self) -> bool:
        # This instance's own link watches the connection that carries this one, and ends both.
        return bool(self.carried_over) or host_answers(self.transport, SILENCE_S_MAX)
