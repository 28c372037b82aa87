"""The shell around InstanceMachine: sockets, journal, clock, links (design.md 2 to 6).

It decides nothing: what comes in goes to the machine, what the machine answers is performed, in
order. One event loop; commits.py tells of the journal's writer thread.
"""

from __future__ import annotations

import asyncio
import hashlib
import itertools
import os
import secrets
import tempfile
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from pathlib import Path
from typing import Any, TypeVar

import msgpack

from raylay.services.core.compose import Composition, compose
from raylay.services.errors import (
    ConfigurationError,
    RaylayError,
    StorageError,
)
from raylay.services.messages.ranges import PublisherRanges
from raylay.services.messages.records import Flag, Kind, Run
from raylay.services.messages.topic_book import TopicBook
from raylay.services.replication.acknowledgment import RootedRanges
from raylay.services.replication.commit_news import Tell, how_to_tell
from raylay.services.replication.effects import (
    AckClient,
    AckUpstream,
    Append,
    BecameReady,
    CloseSession,
    CloseUpstream,
    Committed,
    Effect,
    NotifyLink,
    PlacementsChanged,
    RefuseClient,
    Removable,
    Report,
    Retired,
    SafetyChanged,
    SetLinkMode,
    WentBack,
)
from raylay.services.replication.instance import Identity, InstanceMachine
from raylay.services.replication.recovery import RecoveryLog, RecoveryPoint
from raylay.services.replication.routing import SYNC_DESTINATIONS_MAX
from raylay.services.replication.staged import RECENT_BYTES_MAX
from raylay.services.replication.timetable import JournalAction, JournalSchedule
from raylay.services.server.admission import Admission
from raylay.services.server.announcer import Announcer
from raylay.services.server.bootstrap import Bootstrap
from raylay.services.server.client_connection import ClientConnection
from raylay.services.server.clients import Clients
from raylay.services.server.commits import Commits
from raylay.services.server.config import (
    DestinationConfig,
    InstanceConfig,
    LinkConfig,
    aimed_at,
    reachable,
)
from raylay.services.server.data_directory import (
    FORMER_KEY,
    GENERATION_KEY,
    RESTORED_KEY,
    DataDirectory,
)
from raylay.services.server.doorway import Doorway, connections_max
from raylay.services.server.held_digest import HeldDigest
from raylay.services.server.injected import Injections
from raylay.services.server.link_connection import LinkConnection
from raylay.services.server.link_control import (
    LinkControl,
    LinkFactory,
    LinkHandle,
    Links,
)
from raylay.services.server.node_address import following, listen_advice
from raylay.services.server.opening import JOURNAL_DIRECTORY, STATE_FILE, open_journal
from raylay.services.server.placements import PlacementKeeper
from raylay.services.server.reading import JournalReading
from raylay.services.server.replay import ReplayPump
from raylay.services.server.state_thread import StateThread
from raylay.services.server.surroundings import Surroundings
from raylay.services.server.upstream_connection import UpstreamConnection, Upstreams
from raylay.services.telemetry.metrics import Metrics
from raylay.services.telemetry.tracing import Outstanding, Tracing, start_tracing, traced
from raylay.storage.files import make_directory
from raylay.storage.journal import written_before
from raylay.storage.state import LmdbStateStore

HINT_INTERVAL_S = 3.0
SNAPSHOT_WAIT_S = 1.0
_TRACED = int(Flag.TRACED)
_RECORDS = int(Kind.RECORDS)
UNIX_PATH_BYTES_MAX = 100
"""A Unix socket's address ends at 108 bytes."""
EXAMPLES_MAX = 3
"""Ranges that a status names of what a destination owes."""
RANGES_SHOWN_MAX = 100
"""Of what is unavailable, in the status."""

Result = TypeVar("Result")


def _no_links(config: LinkConfig) -> LinkHandle:
    raise ConfigurationError(
        f"{config.instance} has Destination {config.destination.name!r} but was given no "
        "link_factory to start its link with"
    )


class InstanceServer(Surroundings):
    """One instance, serving. Everything but `__init__` and `snapshot_from_thread` runs on one
    event loop.

    Owner: the Instance actor. Lifecycle: `start` once, `stop` once; `finished` tells of the end.

    Args:
        config: who it is and what it does.
        directory: its data directory, made when it is missing.
        link_factory: starts the links' processes.
        node_address: of the node that it runs on, now; empty: it is not known.
    """

    data_directory: DataDirectory
    begins_anew = False
    """Whether it is to be started again in this process, when it has stopped."""

    def __init__(
        self,
        config: InstanceConfig,
        directory: str | Path,
        link_factory: LinkFactory = _no_links,
        node_address: str = "",
    ) -> None:
        super().__init__(config, directory)
        self.link_factory = link_factory
        self.node_address = node_address
        self.tracing: Tracing
        self.placements = PlacementKeeper(self)
        self.bootstrap: Bootstrap | None = None
        """Where an empty instance is or was filled from, in this life."""
        self.doorway = Doorway(connections_max())
        self.more_client_addresses: dict[str, str] = {}
        """Of the other transports for clients, by name."""
        self.unix_path = ""
        self._servers: list[asyncio.AbstractServer] = []
        self.reading = JournalReading(self)
        self.replays = ReplayPump(self, self.reading)
        self._outstanding = Outstanding()
        self._traced_txids = False
        self._rates: dict[str, float] = {}
        self._rates_before: tuple[float, int, int, int] = (0.0, 0, 0, 0)
        self._hinted = (-1, -1)
        """Where the machine was when the recovery point was last written."""
        self._recovery: RecoveryLog
        self._journal_schedule = JournalSchedule(config.journal_actions)
        self._tending = asyncio.Lock()
        self._retiring: asyncio.Task[None] | None = None
        self._metrics: Metrics | None = None
        self._started_s = time.time()
        self.links: dict[str, LinkControl] = {}
        self.commits = Commits(self, config.staged_bytes_max)
        self.injections = Injections(self, self.links)
        self.admission = Admission(self, self.commits)
        digest = HeldDigest()
        self.upstreams = Upstreams(
            self,
            self.links,
            admission=self.admission,
            commits=self.commits,
            digest=digest,
            doorway=self.doorway,
            placements=self.placements,
            reading=self.reading,
        )
        self.link_controls = Links(
            self,
            self.links,
            commits=self.commits,
            digest=digest,
            placements=self.placements,
            upstreams=self.upstreams,
            start=self._start_link,
            greeted=self.injections.tell_link,
            keep_refused=self.keep_refused,
        )
        self.clients = Clients(
            self,
            admission=self.admission,
            commits=self.commits,
            doorway=self.doorway,
            peer_book=self.link_controls.peer_book,
            reading=self.reading,
            replays=self.replays,
        )
        self.perform = self._perform
        self._performers: dict[type, Callable[[Any], None]] = {
            Append: self._append,
            Committed: self._committed,
            AckClient: self._ack_client,
            RefuseClient: self._refuse_client,
            AckUpstream: self._ack_upstream,
            CloseUpstream: self._close_upstream,
            CloseSession: self._close_session,
            NotifyLink: self._notify_link,
            SetLinkMode: self._set_link_mode,
            SafetyChanged: self._safety_changed,
            Removable: self._removable,
            PlacementsChanged: self._placements_changed,
            Retired: self._retired,
            WentBack: self._went_back,
            BecameReady: self._became_ready,
            Report: self._report_effect,
        }

    # -- start -------------------------------------------------------------------------------
    async def start(self) -> None:
        """Opens the transports, recovers, serves.

        Raises:
            ConfigurationError: a value is wrong, a port is in use.
            StorageLocked: another process owns the directory.
            StorageError: the journal or the state cannot be used; names the file.
        """
        self.begin()
        self.config.check()
        syncs = sum(1 for destination in self.config.destinations if destination.sync)
        if syncs > SYNC_DESTINATIONS_MAX:
            raise ConfigurationError(
                f"{self.config.name} has {syncs} sync destinations: at most {SYNC_DESTINATIONS_MAX}"
            )
        try:
            await self._open()
        except BaseException:
            await self._close_everything()
            raise
        self.is_serving = True
        self.phase = "serving" if self.machine.ready else "waiting to catch up with a peer"
        self.report("started", incarnation=f"{self.identity.incarnation:016x}")
        for link in self.links.values():
            link.start()
        self.every(self.config.check_interval_ms / 1000, self._check)
        self.every(1.0, self._each_second)
        self.every(HINT_INTERVAL_S, self._write_hint)
        if self.config.announce_to and self.config.name in self.placements.known():
            self.spawn(Announcer(self, self.placements, self.config.announce_to).run())

    async def _open(self) -> None:
        given = self.config
        config = self.config = following(given, self.node_address)
        self.phase = "opening the journal"
        await self.in_thread(make_directory, self.directory)
        # The journal first: its lock on the directory admits one process.
        self.journal = await self.in_thread(open_journal, config, self.directory)
        store = await self.in_thread(LmdbStateStore, self.directory / STATE_FILE)
        self.state = StateThread(store)
        self.data_directory = DataDirectory(self.state, self.directory / STATE_FILE)
        self.tracing = start_tracing(config.name, config.tracing)
        self.placements.check()
        bootstrap = Bootstrap(self, config.bootstrap) if config.bootstrap is not None else None
        copies = bootstrap is not None and await bootstrap.is_due()
        if copies:
            # Of what this directory was before, nothing is left.
            keys = "incarnation", "ready", RESTORED_KEY, FORMER_KEY
            self.state.put_now(dict.fromkeys((*keys, *self.data_directory.hints())))
        self.identity = Identity(
            config.name,
            config.group,
            self._incarnation(),
            self.state.get_number(GENERATION_KEY),
            in_fabric=bool(config.fabric_key),
            life=secrets.randbits(64),
        )
        if bootstrap is not None and copies:
            self.bootstrap = bootstrap
            self.upstreams.copies_from = bootstrap.config.sources
        await self._listen()
        if config is not given:
            self.report(
                "address_changed",
                former=given.node_address,
                address=self.replication_address,
                client=self.client_address,
            )
        self.placements.settle(follows=config is not given)
        if self.bootstrap is not None:
            await self.bootstrap.run()
            self.upstreams.copies_from = ()
        await self.reading.open()
        self.phase = "recovering"
        self.machine = await self.in_thread(self._recover)
        self.commits.start()
        moved = self.machine.placements.items()
        for destination in config.destinations:
            link = self.link_controls.add(aimed_at(destination, moved))
            known = self.state.get(f"peer/{destination.name}")
            if known is not None:
                link.remember(*msgpack.unpackb(known))
        self.link_controls.peer_book.moved(moved)
        if config.metrics_port is not None:
            self._metrics = Metrics(config.name, self.snapshot_from_thread)
            self._metrics.start(config.metrics_port, config.metrics_host)

    def _incarnation(self) -> int:
        """Made with the data directory; anew where that is not what it was made with."""
        directory, state = self.data_directory, self.state
        found = directory.incarnation
        if not found:
            generation = max(self.config.generation, state.get_number(GENERATION_KEY))
            return directory.begin({GENERATION_KEY: generation.to_bytes(8, "big")})
        last_txid = self.journal.recovered.next_txid - 1
        why = directory.why_another(last_txid)
        if why:
            directory.begin_anew(last_txid)
            self.report(
                "data_directory_copied",
                former=f"{found:016x}",
                text=f"{self.directory} {why}: {self.config.name} begins anew as another "
                "incarnation and takes from its peers what it lacks",
            )
        return directory.incarnation

    def _placements_changed(self, effect: PlacementsChanged) -> None:
        self.link_controls.aim(effect.news)
        for upstream in list(self.upstreams.connected.values()):
            upstream.placed(effect.news)
        # With the addresses of the peers as they are now.
        self._safety_changed(SafetyChanged())

    def _retired(self, effect: Retired) -> None:
        self.retirement = effect.text
        if self._retiring is None:
            self._retiring = self.loop.create_task(self.stop())

    def _went_back(self, effect: WentBack) -> None:
        self.phase = "beginning anew"
        if self._retiring is None:
            self._retiring = self.loop.create_task(self._begin_anew())

    async def _begin_anew(self) -> None:
        self.begins_anew = True
        try:
            await self.state.run(self.data_directory.begin_anew)
        except RaylayError as error:
            # It is found again, and tried again, in the next life.
            self.report("state_failed", text=str(error))
        await self.stop()

    def _recover(self) -> InstanceMachine:
        """Builds the machine from the journal, behind the floor that was last written down."""
        config = self.config
        peers: dict[str, int] = {}
        servers: dict[str, list[str]] = {}
        for destination in config.destinations:
            known = self.state.get(f"peer/{destination.name}")
            if known is not None:
                peers[destination.name], *names = msgpack.unpackb(known)[:2]
                met = self.state.get(f"servers/{destination.name}")
                servers[destination.name] = names if met is None else msgpack.unpackb(met)
        self.admission.is_restored = self.data_directory.is_restored
        alone = not any(item.group == config.group for item in config.destinations)
        composition = Composition(
            self.identity,
            [item.destination() for item in config.destinations],
            TopicBook(config.topics, f"{config.name} Topic", config.unjournaled, config.name),
            peers=peers,
            servers=servers,
            placements=self.placements.found,
            former=self.data_directory.former,
            ready=alone
            or (config.first and not self.admission.is_restored)
            or self.state.get("ready") is not None,
            policy=config.policy,
            recent_bytes_max=RECENT_BYTES_MAX,
        )
        hints = self.data_directory.hints()
        machine, self._recovery = compose(
            composition, self.journal, self.reading.lookup, hints, self.steady_us()
        )
        if machine.ready and self.state.get("ready") is None:
            self.state.put_now({"ready": b"1", RESTORED_KEY: None})
        return machine

    async def _listen(self) -> None:
        config = self.config
        loop = self.loop
        client = await self._bind(
            self._for_clients(config.client_message_types),
            config.client_host,
            config.client_port,
            "client",
        )
        for transport in config.client_transports:
            bound = await self._bind(
                self._for_clients(transport.message_types),
                transport.host or config.client_host,
                transport.port,
                f"client/{transport.name}",
            )
            self.more_client_addresses[transport.name] = transport.advertised or bound
        replication = await self._bind(
            lambda: UpstreamConnection(self.upstreams),
            config.replication_host,
            config.replication_port,
            "replication",
        )
        self.client_address = config.client_advertised or client
        self.replication_address = config.replication_advertised or replication
        self.unix_path = self._unix_socket_path()
        if os.path.exists(self.unix_path):
            os.unlink(self.unix_path)
        self._servers.append(
            await loop.create_unix_server(
                lambda: LinkConnection(self.link_controls), self.unix_path
            )
        )
        os.chmod(self.unix_path, 0o600)

    def _for_clients(self, message_types: tuple[str, ...]) -> Callable[[], ClientConnection]:
        types = frozenset(kind.encode() for kind in message_types)
        return lambda: ClientConnection(self.clients, types)

    async def _bind(
        self, make: Callable[[], asyncio.Protocol], host: str, port: int, transport: str
    ) -> str:
        key = f"port/{transport}"
        kept = self.state.get_number(key) if not port else 0
        for attempt in dict.fromkeys((port or kept, port)):
            try:
                server = await self.loop.create_server(make, host, attempt)
            except OSError as error:
                if attempt and attempt == kept and not port:
                    continue  # somebody took the free port meanwhile: take another one
                raise ConfigurationError(
                    f"{self.config.name}: the {transport} transport cannot listen on "
                    f"{host}:{attempt}: {error.strerror or error}; {listen_advice(error)}"
                ) from None
            self._servers.append(server)
            bound = server.sockets[0].getsockname()[1]
            if not port and bound != kept:
                self.state.put_number(key, bound)
            shown = f"[{host}]" if ":" in host else host
            return f"{shown}:{bound}"
        raise AssertionError("no port was tried")

    def _unix_socket_path(self) -> str:
        path = str(self.directory / "links.sock")
        if len(os.fsencode(path)) <= UNIX_PATH_BYTES_MAX:
            return path
        name = hashlib.sha256(os.fsencode(path)).hexdigest()[:16]
        return str(Path(tempfile.gettempdir()) / f"raylay-{name}.sock")

    def _start_link(self, destination: DestinationConfig, start_number: int) -> LinkHandle:
        config = self.config
        return self.link_factory(
            LinkConfig(
                config.name,
                config.group,
                self.identity.incarnation,
                start_number,
                self.unix_path,
                str(self.directory / JOURNAL_DIRECTORY),
                config.archive_directory,
                destination,
                config.tracing,
                config.log,
                reachable(self.replication_address),
                config.drills,
            )
        )

    # -- the end -----------------------------------------------------------------------------

    async def stop(self) -> None:
        """Stops: clients are told, what is staged is committed, links end, files are closed."""
        if self.is_stopping:
            return await self.finished()
        self.is_stopping = True
        self.phase = "stopping"
        reason, text = "shutting_down", f"{self.config.name} stops"
        if self.retirement:
            reason, text = "retired", self.retirement
        self.clients.end(reason, text)
        self.outbox.flush()
        await self._close_everything()
        self.phase = "retired" if self.retirement else "stopped"
        self.end()

    async def _close_everything(self) -> None:
        self.is_serving = False
        for server in self._servers:
            server.close()
        self.cancel_timers()
        await self.link_controls.stop()
        for connection in list(self.upstreams.connected.values()):
            connection.close("the instance stops")
        self.clients.close("the instance stops")
        self.cancel_tasks()
        await self.reading.close()
        if hasattr(self, "journal"):
            self.journal.hand_over()
            await self.in_thread(self.journal.close)
            # What the last commit brought: the hint may then cover all of it.
            await asyncio.sleep(0)
        if hasattr(self, "state"):
            if hasattr(self, "machine"):
                try:
                    await self.state.run(self._writes(self.machine.recovery_point()))
                except RaylayError as error:
                    self.report("state_failed", text=str(error))
            await self.in_thread(self.state.close)
        if self._metrics is not None:
            await self.in_thread(self._metrics.stop)
        if hasattr(self, "tracing"):
            await self.in_thread(self.tracing.close)
        if self.unix_path and os.path.exists(self.unix_path):
            os.unlink(self.unix_path)

    # -- what is due -------------------------------------------------------------------------

    def _check(self) -> None:
        # Ages are asked for: what is on disk and not taken yet is not owed yet.
        self.commits.catch_up()
        self.machine.wall_offset_us = self.now_us() - self.steady_us()
        self.perform(self.machine.tick(self.steady_us()))
        due = self._journal_schedule.due(self.steady_us(), self.now_us())
        if due:
            self.spawn(self._tend_journal(due))
        now_s = self.loop.time()
        for upstream in list(self.upstreams.connected.values()):
            upstream.beat(now_s)
        self.replays.keep_ticking()

    def _each_second(self) -> None:
        self.spawn(self.reading.tidy())
        counters = self.machine.counters
        now_s = self.loop.time()
        before_s, published, persisted, delivered = self._rates_before
        spent_s = now_s - before_s
        if before_s:
            self._rates = {
                "published_per_s": round((counters.published - published) / spent_s, 1),
                "persisted_per_s": round((counters.persisted - persisted) / spent_s, 1),
                "delivered_per_s": round((self.delivered - delivered) / spent_s, 1),
            }
        self._rates_before = (now_s, counters.published, counters.persisted, self.delivered)

    def keep_refused(self) -> None:
        """Something was refused for good: that must not be forgotten once the recovery point moves
        beyond it, so both are written together."""
        self._hinted = (-1, -1)
        self._write_hint()

    def _write_hint(self) -> None:
        now = self.machine.committed_txid, self.machine.settlements
        if now == self._hinted:
            return
        self._hinted = now
        self.spawn(self._write_point(self.machine.recovery_point()))

    async def _write_point(self, point: RecoveryPoint) -> None:
        if await self._write_quietly(self._writes(point)) and self.is_serving:
            self.perform(self.machine.recovery_written(point))

    def _writes(self, point: RecoveryPoint) -> Callable[[], None]:
        """What the state's thread does to write a recovery point down."""

        def write() -> None:
            self.state.put_now(self._recovery.changes(point))
            self._recovery.written(point)

        return write

    async def _write_quietly(self, write: Callable[[], None]) -> bool:
        """Whether it is on disk now."""
        try:
            await self.state.run(write)
        except RaylayError as error:
            # A hint only: a restart reads more of the journal.
            self._hinted = (-1, -1)
            self.report("state_failed", text=str(error))
            return False
        return True

    # -- effects -----------------------------------------------------------------------------
    def _perform(self, effects: list[Effect]) -> None:
        """Performs what a machine asked for, in order."""
        performers = self._performers
        for effect in effects:
            performers[type(effect)](effect)
        if self.replays.any_fully_durable:
            # Whatever came may have made something durable: a commit, an answer, a downgrade.
            self.replays.durable_moved()

    def _append(self, effect: Append) -> None:
        self.commits.stage(effect.run)
        if self.replays.any_live:
            self.replays.staged(effect.run)

    def _committed(self, effect: Committed) -> None:
        runs = effect.runs
        for name, link in self.links.items():
            if link.is_connected:
                tell = how_to_tell(link.woken_txid, self.machine.destinations[name], runs)
                if tell is Tell.NOW:
                    link.told(effect.last_txid)
                elif tell is Tell.LATER:
                    link.told_later(effect.last_txid)
        self.commits.taken(runs)
        if self.tracing.enabled:
            for run in runs:
                if run.flags & _TRACED and run.kind == _RECORDS:
                    self._trace_commit(run)
        if len(self.clients.live):
            self.clients.deliver_live(runs)
        self.replays.committed(runs)

    def _ack_client(self, effect: AckClient) -> None:
        client = self.clients.sessions.get(effect.session)
        if client is not None:
            client.persisted(effect)
            if self._outstanding:
                self._trace_client_ack(client.publisher, effect.sequence)

    def _refuse_client(self, effect: RefuseClient) -> None:
        client = self.clients.sessions.get(effect.session)
        if client is not None:
            client.refused(effect)

    def _ack_upstream(self, effect: AckUpstream) -> None:
        upstream = self.upstreams.connected.get(effect.connection)
        if upstream is not None:
            upstream.acknowledge(effect)

    def _close_upstream(self, effect: CloseUpstream) -> None:
        upstream = self.upstreams.connected.get(effect.connection)
        if upstream is not None:
            upstream.refuse(effect.reason, effect.text)

    def _close_session(self, effect: CloseSession) -> None:
        client = self.clients.sessions.get(effect.session)
        if client is not None:
            client.end(effect.reason, effect.text)

    def _notify_link(self, effect: NotifyLink) -> None:
        self.links[effect.destination].notice(effect.awaited, effect.last_txid)

    def _set_link_mode(self, effect: SetLinkMode) -> None:
        self.links[effect.destination].mode(effect.sync)

    def _safety_changed(self, _: SafetyChanged) -> None:
        self.clients.safety_changed()

    def _removable(self, effect: Removable) -> None:
        if self.is_serving:
            # Links that end because this instance does take back nothing of what it released.
            self.journal.removable(effect.before_txid)

    def _became_ready(self, _: BecameReady) -> None:
        self.phase = "serving"
        self.spawn(self._note_ready())

    async def _note_ready(self) -> None:
        """A restart with its data need not catch up again before it admits clients."""
        await self._write_quietly(lambda: self.state.put_now({"ready": b"1", RESTORED_KEY: None}))
        self.report("ready")

    def _report_effect(self, effect: Report) -> None:
        self.events_log.add(effect.event, effect.details)

    # -- clients -----------------------------------------------------------------------------

    # -- tracing -----------------------------------------------------------------------------
    def _trace_commit(self, run: Run) -> None:
        if not self.tracing.enabled:
            return
        messages = traced(run.payload)
        now_ns = time.time_ns()
        upstream, epoch = "", 0
        if run.path:
            for connection in self.upstreams.connected.values():
                logon = connection.logon
                if logon is not None and logon.incarnation == run.path[-1]:
                    upstream, epoch = logon.name, logon.epoch
        else:
            self._outstanding.add(messages, now_ns)
        self.tracing.commit(
            messages,
            run.receive_time_us * 1000,
            now_ns,
            instance=self.identity.name,
            upstream=upstream,
            epoch=epoch,
            txid=run.first_txid,
        )

    def _trace_client_ack(self, publisher: int, sequence: int) -> None:
        taken = self._outstanding.take(publisher, [(0, sequence)])
        if taken:
            now_ns = time.time_ns()
            self.tracing.persisted_ack(
                [message for message, _ in taken], now_ns, now_ns, instance=self.identity.name
            )

    @property
    def delivered(self) -> int:
        """Messages that subscribers were sent, in this life."""
        return self.clients.delivered + self.replays.delivered

    # -- control -----------------------------------------------------------------------------
    async def downgrade(
        self, destination: str, why: str = "by hand", *, force: bool = False
    ) -> None:
        """Persisted acks wait no more for this destination.

        Raises:
            ConfigurationError: there is no such destination.
            DowngradeRefused: too few would use sync acknowledgment, and it is not forced.
        """
        self._known(destination)
        self.perform(self.machine.downgrade(destination, self.steady_us(), why, force=force))

    async def upgrade(self, destination: str, why: str = "by hand") -> None:
        """Persisted acks wait for this destination again, if it is configured sync.

        Raises:
            ConfigurationError: there is no such destination.
        """
        self._known(destination)
        self.perform(self.machine.upgrade(destination, self.steady_us(), why))

    async def inject(self, kind: str, seconds: float, options: dict[str, Any]) -> None:
        """Breaks something for a drill; see `Injections.inject`.

        Raises:
            ConfigurationError: the fabric is not marked for drills, or there is no such fault.
        """
        self.injections.inject(kind, seconds, options)

    async def admit(self, senders: Sequence[str], *, force: bool = False) -> None:
        """Admits clients although no peer of the group has brought what it has.

        Args:
            senders: the other instances of the group that replicate to this one.

        Raises:
            AdmissionRefused: something may be missing here, and it is not forced.
        """
        self.perform(self.machine.admit(senders, force=force))

    def _known(self, destination: str) -> None:
        if destination not in self.machine.destinations:
            raise ConfigurationError(
                f"{self.config.name} has no Destination {destination!r}: "
                f"it has {', '.join(self.machine.destinations) or 'none'}"
            )

    async def maintenance(
        self, action: str, before_txid: int | None = None, *, force: bool = False
    ) -> list[dict[str, Any]]:
        """`compress`, `archive` or `remove` of sealed segments below `before_txid` (None: all).

        Raises:
            ConfigurationError: no such action.
            StorageError: a file cannot be changed; the log stays whole.
        """
        journal = self.journal
        if action == "compress":
            outcomes = await self.in_thread(journal.compress, before_txid)
        elif action == "archive":
            outcomes = await self.in_thread(journal.archive, before_txid)
        elif action == "remove":
            limit_txid = self.machine.next_txid if before_txid is None else before_txid
            outcomes = await self.in_thread(lambda: journal.remove(limit_txid, force=force))
        else:
            raise ConfigurationError(f"no maintenance {action!r}: compress, archive or remove")
        await self.reading.tidy()
        return [{"outcome": str(outcome)} for outcome in outcomes]

    async def _tend_journal(self, due: list[JournalAction]) -> None:
        """Does to old segments what its schedule says, one after the other."""
        async with self._tending:
            for action in due:
                before_us = self.now_us() - action.age_ms * 1000
                try:
                    before_txid = written_before(
                        await self.in_thread(self.journal.segments), before_us
                    )
                    outcomes = await self.maintenance(action.do, before_txid)
                except RaylayError as error:
                    self.report("journal_action_failed", action=action.do, text=str(error))
                    continue
                self.report(
                    "journal_action", action=action.do, outcomes=[o["outcome"] for o in outcomes]
                )

    def events(self, after: int = 0, limit: int = 1000) -> list[dict[str, Any]]:
        """The last events behind number `after`."""
        return self.events_log.after(after, limit)

    def status(self) -> dict[str, Any]:
        """What it is and how it goes."""
        config = self.config
        found: dict[str, Any] = {
            "name": config.name,
            "group": config.group,
            "state": self._state(),
            "phase": self.phase,
            "reason": self.admission.reason(),
            "ready": False,
            "pid": os.getpid(),
            "uptime_s": round(time.time() - self._started_s, 1),
            "client_address": self.client_address,
            "client_transports": self.more_client_addresses,
            "replication_address": self.replication_address,
            "last_event": self.events_log.last_number,
        }
        if self.bootstrap is not None:
            found["bootstrap"] = self.bootstrap.status()
        if not self.is_serving:
            return found
        machine = self.machine
        counters = machine.counters
        messages = machine.intake.messages_on_disk
        found.update(
            ready=machine.ready,
            incarnation=f"{self.identity.incarnation:016x}",
            generation=self.identity.generation,
            moved=[
                {"name": name, **placement._asdict()}
                for name, placement in machine.placements.items().items()
            ],
            first_txid=self.reading.first_txid,
            committed_txid=machine.committed_txid,
            messages=messages,
            notes=machine.committed_txid - messages,
            next_txid=machine.next_txid,
            durable_txid=machine.fully_durable_txid(),
            pending=len(machine.pending),
            published=counters.published,
            replicated_in=counters.replicated_in,
            duplicates=counters.duplicates,
            late=counters.late,
            conflicts=counters.conflicts,
            unavailable=len(machine.missing.ranges),
            unavailable_ranges=[
                [publisher, first, last]
                for publisher, (first, last) in itertools.islice(
                    machine.missing.ranges.items(), RANGES_SHOWN_MAX
                )
            ],
            commits=counters.commits,
            persisted=counters.persisted,
            delivered=self.delivered,
            commit_ms_p50=self.commits.latency.percentile_ms(0.5),
            commit_ms_p99=self.commits.latency.percentile_ms(0.99),
            staged_bytes=self.commits.staged_bytes,
            storage_failure=self.commits.failure[1] if self.commits.failure else "",
            sessions=len(self.clients.sessions),
            clients=[client.client_name for client in self.clients.sessions.values()],
            subscriptions=len(self.clients.live),
            bookmark_subscriptions=len(self.replays),
            upstreams=[
                {"name": name, "group": group, "incarnation": f"{incarnation:016x}"}
                for name, group, incarnation in machine.upstreams()
            ],
            rates=self._rates,
            destinations={name: self._destination_status(name) for name in self.links},
        )
        return found

    def _state(self) -> str:
        if self.retirement:
            return "retired"
        if not self.is_serving:
            return "stopping" if self.is_stopping else "recovering"
        if not self.machine.ready:
            return "catching_up"
        return "ready" if self.commits.failure is None else "failed"

    def _destination_status(self, name: str) -> dict[str, Any]:
        ledger = self.machine.destinations[name]
        link = self.links[name]
        oldest = ledger.oldest_owed()
        age_ms = 0 if oldest is None else max(0, self.steady_us() - oldest[0]) // 1000
        return {
            "peer": link.peer_name,
            "group": ledger.destination.group,
            "connected": ledger.connected,
            "caught_up": ledger.caught_up,
            "sync": ledger.sync,
            "configured_sync": ledger.destination.sync,
            "downgraded": ledger.destination.sync and not ledger.sync,
            "safe": ledger.safe,
            "why_unsafe": ledger.why_unsafe,
            "owed": len(ledger.owed),
            "owed_examples": _examples(ledger.owed),
            "age_ms": age_ms,
            "stored_txid": ledger.stored_txid,
            "lag": max(0, self.machine.committed_txid - ledger.stored_txid),
            "skipped": ledger.skipped,
            "persisted": ledger.persisted,
            "address": link.address,
            "client_name": link.client_name,
            "incarnation": f"{ledger.incarnation:016x}",
            "pid": link.pid,
            "starts": link.starts,
            "why": link.why,
            **link.counts,
        }

    def snapshot_from_thread(self) -> dict[str, Any]:
        """`snapshot` for another thread than the loop's: the loop takes it, between two turns.

        Raises:
            RuntimeError: the loop is closed, or so busy that it did not answer in time.
        """
        if not self.is_serving:
            return {}
        answer: Future[tuple[dict[str, Any], PublisherRanges]] = Future()

        def take() -> None:
            try:
                answer.set_result((self.snapshot(), self.machine.known.copy()))
            except Exception as error:
                answer.set_exception(error)

        self.loop.call_soon_threadsafe(take)
        try:
            found, held = answer.result(SNAPSHOT_WAIT_S)
        except TimeoutError:
            raise RuntimeError(f"the loop gave no snapshot in {SNAPSHOT_WAIT_S} s") from None
        # Of very many publishers that takes a while, which is this thread's.
        return found and {**found, "ranges_held": sum(1 for _ in held.items())}

    def snapshot(self) -> dict[str, Any]:
        """For metrics (services/telemetry/metrics.py), but for `ranges_held`. Only reads."""
        if not self.is_serving:
            return {}
        machine = self.machine
        counters = machine.counters
        destinations = {}
        for name in self.links:
            status = self._destination_status(name)
            destinations[name] = {
                "sent": status.get("sent_records", 0),
                "persisted_sent": status["persisted"],
                "ack_age_ms": status["age_ms"],
                "lag_messages": status["lag"],
                "connected": status["connected"],
                "sync": status["sync"],
            }
        return {
            "published": counters.published,
            "persisted": counters.persisted,
            "delivered": self.delivered,
            "commits": counters.commits,
            "late_records": counters.late,
            "unavailable_records": len(machine.missing.ranges),
            "conflicting_records": counters.conflicts,
            "duplicates_skipped": counters.duplicates,
            "buffer_bytes": sum(client.unsent_bytes for client in self.clients.sessions.values()),
            "clients": len(self.clients.sessions),
            "subscriptions": len(self.clients.live) + len(self.replays),
            "commit_latency": self.commits.latency,
            "destinations": destinations,
        }


def _examples(rooted: RootedRanges) -> list[str]:
    """A few of the ranges, for people: the first and the last message of each."""
    return [
        f"{publisher}|{first}| to {publisher}|{last}|"
        for ranges in rooted.roots.values()
        for publisher, (first, last) in itertools.islice(ranges.items(), EXAMPLES_MAX)
    ][:EXAMPLES_MAX]


__all__ = ["InstanceServer", "StorageError"]
