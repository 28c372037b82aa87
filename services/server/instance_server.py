"""The shell around InstanceMachine: sockets, journal, clock, links (design.md 2 to 6).

The shell decides nothing: it passes every input to the machine and performs the machine's effects
in order. This module puts the shell's parts together, starts them and stops them.
"""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

import msgpack

from raylay.services.config.admin_interface import AdminProcessConfig
from raylay.services.config.buffer import SlowClientBufferConfig
from raylay.services.config.instance import (
    DestinationConfig,
    InstanceConfig,
    LinkConfig,
    QueueOwnerConfig,
    reachable,
)
from raylay.services.core.compose import folding
from raylay.services.core.fold_backlog import FoldBacklog
from raylay.services.errors import ConfigurationError, RaylayError, StorageError
from raylay.services.net.tls_config import TlsConfig
from raylay.services.queues.definition import QueueDefinition as DeclaredQueue
from raylay.services.replication.effects import InstanceRetirement, StaleCopyDetected
from raylay.services.replication.instance import Identity
from raylay.services.replication.link.routing import SYNC_DESTINATIONS_MAX
from raylay.services.security.connection_shares import ConnectionShares
from raylay.services.server.admin_interface import AdminInterface
from raylay.services.server.children.supervisor import ChildHandle, ChildStart, no_children
from raylay.services.server.clients.admission import ClientAdmission
from raylay.services.server.clients.connection_limit import (
    ConnectionLimit,
    SessionShares,
    connections_max,
    shares_of_files,
)
from raylay.services.server.clients.replay import ReplayPump
from raylay.services.server.clients.sessions import ClientSession, ClientSessions
from raylay.services.server.clients.slow_clients import ClientPools
from raylay.services.server.commits import Commits, SlowedPublishers
from raylay.services.server.control import ControlAccess
from raylay.services.server.control_calls import ControlCalls
from raylay.services.server.data.data_directory import GENERATION_KEY
from raylay.services.server.data.data_files import (
    AGING_KEY,
    JOURNAL_DIRECTORY,
    STATE_FILE,
    open_journal,
)
from raylay.services.server.data.disk_watch import DiskClock, DiskWatch
from raylay.services.server.data.held_digest import HeldDigest
from raylay.services.server.data.journal_reads import JournalReads
from raylay.services.server.data.maintenance import Maintenance
from raylay.services.server.data.recovery import InstanceRecovery
from raylay.services.server.data.state_thread import StateThread
from raylay.services.server.effect_handlers import EffectHandlers
from raylay.services.server.fault_injection import FaultInjection
from raylay.services.server.links.announcer import Announcer
from raylay.services.server.links.bootstrap import BootstrapRun
from raylay.services.server.links.control import LinkControl, Links
from raylay.services.server.links.destination_addresses import resolve_addresses
from raylay.services.server.links.node_address import following
from raylay.services.server.links.placements import PlacementKeeper
from raylay.services.server.links.upstream_connection import ConnectedUpstreams
from raylay.services.server.listening import InstanceListeners
from raylay.services.server.periodic_checks import PeriodicChecks
from raylay.services.server.queues.deliveries import QueueDeliveries
from raylay.services.server.queues.manager import QueueManager
from raylay.services.server.queues.request_router import QueueRequestRouter
from raylay.services.server.runtime import InstanceRuntime
from raylay.services.server.sow.manager import SowManager
from raylay.services.server.status import InstanceStatus
from raylay.services.telemetry.metrics import Metrics
from raylay.services.telemetry.tracing import start_tracing
from raylay.storage.exposure import exposed
from raylay.storage.files import make_directory
from raylay.storage.queue import store_path
from raylay.storage.state import LmdbStateStore

POINT_INTERVAL_S = 3.0
"""Time between two recovery points."""
CLOSING_ORDER = ("journal", "sow", "state", "metrics", "tracing")
"""Order in which the opened parts are closed. The last recovery point, which is written to the
state, covers the last commit of the journal."""


@dataclass(frozen=True, slots=True)
class SharedTables:
    """Values shared by parts that call one another. They are made before all parts, so that each
    part is complete when it is made.

    Attributes:
        links: the links by destination; filled when the instance starts.
        sessions: the clients that have logged on, by number of the connection.
        counted: the user or connection that each session is counted for.
        doorway: the limit on the instance's connections.
        digest: the digest of the messages that the instance holds.
        disk: the time for which the disk has been writing.
    """

    links: dict[str, LinkControl] = field(default_factory=dict)
    sessions: dict[int, ClientSession] = field(default_factory=dict)
    counted: SessionShares = field(default_factory=SessionShares)
    doorway: ConnectionLimit = field(default_factory=lambda: ConnectionLimit(connections_max()))
    digest: HeldDigest = field(default_factory=HeldDigest)
    disk: DiskClock = field(default_factory=DiskClock)


class InstanceServer:
    """One instance, serving. All methods run on one event loop, except `__init__` and the status's
    `snapshot_from_thread`.

    Owner: the Instance actor. Lifecycle: `start` once, `stop` once; `finished` waits for the end.

    Args:
        config: the instance's name and configuration.
        directory: the instance's data directory, made when it is missing.
        node_address: the present address of the instance's node; empty: it is not known.
        start_child: starts the processes of the instance's links, its queues' owners, its slow
            clients' buffers and its administrator's interface.
    """

    begins_anew = False
    """Whether the instance is to be started again in this process after it has stopped."""

    def __init__(
        self,
        config: InstanceConfig,
        directory: str | Path,
        start_child: ChildStart = no_children,
        node_address: str = "",
    ) -> None:
        self._start_child = start_child
        self._node_address = node_address
        self._ending: asyncio.Task[None] | None = None
        self._closing: dict[str, Callable[[], Awaitable[None]]] = {}
        # Each part is handed the parts that it calls: an earlier part knows no later one.
        folds, tables = folding(unfolded=FoldBacklog()), SharedTables()
        runtime = self.runtime = InstanceRuntime(config, directory, folds)
        shares = shares_of_files(config.name, tables.doorway.most)
        pools = ClientPools(runtime, self._start_buffer)
        self.control = ControlAccess(runtime)
        self.injections = FaultInjection(runtime, tables.links, pools.narrow)
        self.placements = PlacementKeeper(runtime)
        self.reading = reading = JournalReads(runtime)
        self._maintenance = Maintenance(runtime, reading)
        self._replays = ReplayPump(runtime, reading, folds, tables.counted)
        self.commits = commits = Commits(
            runtime, tables.links, folds, config.staged_bytes_max, tables.disk
        )
        self._admission = ClientAdmission(runtime, commits.cycle)
        deliveries = QueueDeliveries(runtime, tables.sessions)
        self._queues = queues = QueueManager(
            runtime,
            folds,
            commits,
            self._start_queue_owner,
            links=tables.links,
            requests=QueueRequestRouter(config.group, tables.links),
            deliveries=deliveries,
        )
        slowed = SlowedPublishers(runtime, queues)
        self._sow = SowManager(runtime, folds, commits.cycle.hold, queues.removable)
        self._recovery = InstanceRecovery(
            runtime,
            admission=self._admission,
            placements=self.placements,
            queues=queues,
            reading=reading,
            sow=self._sow,
        )
        self.upstreams = self._made_upstreams(tables, shares, slowed)
        self.links = self._made_links(tables)
        self.clients = ClientSessions(
            runtime,
            admission=self._admission,
            commits=commits,
            counted=tables.counted,
            doorway=tables.doorway,
            deliveries=deliveries,
            folds=folds,
            peer_book=self.links.peer_book,
            pools=pools,
            queues=queues,
            reading=reading,
            replays=self._replays,
            sessions=tables.sessions,
            shares=shares,
            slowed=slowed,
            sow=self._sow,
        )
        self.disk_watch = DiskWatch(
            runtime,
            tables.disk,
            config.journal.disk_timeout_ms / 1000,
            lambda text: self.clients.end("not_ready", text),
            self.clients.descriptors,
        )
        self._listening = InstanceListeners(
            runtime, clients=self.clients, links=self.links, queues=queues, upstreams=self.upstreams
        )
        self._status = self._made_status(deliveries)
        self.calls = self._made_calls()
        self.admin = AdminInterface(
            runtime,
            self._start_admin,
            status=self.status,
            access=self.control,
            perform=self.calls.perform,
        )
        self._bind_effects()

    def _made_upstreams(
        self, tables: SharedTables, shares: ConnectionShares, slowed: SlowedPublishers
    ) -> ConnectedUpstreams:
        return ConnectedUpstreams(
            self.runtime,
            tables.links,
            admission=self._admission,
            commits=self.commits,
            digest=tables.digest,
            doorway=tables.doorway,
            placements=self.placements,
            queues=self._queues,
            reading=self.reading,
            shares=shares,
            slowed=slowed,
            sow=self._sow,
        )

    def _made_links(self, tables: SharedTables) -> Links:
        return Links(
            self.runtime,
            tables.links,
            commits=self.commits.cycle,
            digest=tables.digest,
            placements=self.placements,
            upstreams=self.upstreams,
            start=self._start_link,
            greeted=self.injections.tell_link,
            keep_refused=self._recovery.keep_refused,
        )

    def _made_status(self, deliveries: QueueDeliveries) -> InstanceStatus:
        return InstanceStatus(
            self.runtime,
            admission=self._admission,
            clients=self.clients,
            commits=self.commits,
            control=self.control,
            deliveries=deliveries,
            links=self.links,
            listening=self._listening,
            queues=self._queues,
            reading=self.reading,
            replays=self._replays,
            sow=self._sow,
        )

    def _bind_effects(self) -> None:
        """Binds the handlers of effects. Parts perform effects, and effects call parts: so the
        runtime has the table from the beginning, and the table is filled when all parts exist."""
        EffectHandlers(
            self.runtime,
            clients=self.clients,
            commits=self.commits,
            links=self.links,
            queues=self._queues,
            recovery=self._recovery,
            replays=self._replays,
            sow=self._sow,
            upstreams=self.upstreams,
            endings={InstanceRetirement: self._retired, StaleCopyDetected: self._went_back},
        )

    def _made_calls(self) -> ControlCalls:
        return ControlCalls(
            self.runtime,
            self.control,
            clients=self.clients,
            injections=self.injections,
            links=self.links,
            listening=self._listening,
            maintenance=self._maintenance,
            placements=self.placements,
            queues=self._queues,
            sow=self._sow,
            status=self._status,
            upstreams=self.upstreams,
        )

    def _checks(self) -> PeriodicChecks:
        return PeriodicChecks(
            self.runtime,
            clients=self.clients,
            commits=self.commits.cycle,
            links=self.links,
            maintenance=self._maintenance,
            queues=self._queues,
            replays=self._replays,
            sow=self._sow,
            upstreams=self.upstreams,
        )

    # -- start -------------------------------------------------------------------------------
    async def start(self) -> None:
        """Opens the transports, recovers, and serves.

        Raises:
            ConfigurationError: a value is wrong, or a port is in use.
            StorageLocked: another process owns the directory.
            StorageError: the journal or the state cannot be used; the error names the file.
        """
        runtime = self.runtime
        runtime.begin()
        config = runtime.config
        config.check()
        syncs = sum(1 for destination in config.destinations if destination.sync)
        if syncs > SYNC_DESTINATIONS_MAX:
            raise ConfigurationError(
                f"{config.name} has {syncs} sync destinations: at most {SYNC_DESTINATIONS_MAX}"
            )
        try:
            await self._open()
        except BaseException:
            await self._close_everything()
            raise
        config = runtime.config
        runtime.is_serving = True
        runtime.phase = "serving" if runtime.machine.ready else "waiting to catch up with a peer"
        runtime.report("started", incarnation=f"{runtime.identity.incarnation:016x}")
        self.links.run()
        self._queues.run()
        self._checks().begin()
        runtime.every(1.0, self._each_second)
        runtime.every(POINT_INTERVAL_S, self._recovery.write_point)
        if config.announce_to and config.name in self.placements.known():
            runtime.spawn(Announcer(runtime, self.placements, config.announce_to).run())

    async def _open(self) -> None:
        runtime = self.runtime
        given = runtime.config
        config = runtime.config = following(given, self._node_address)
        runtime.phase = "opening the journal"
        await runtime.in_thread(make_directory, runtime.directory)
        for place in {
            runtime.directory,
            Path(config.journal.archive_directory or runtime.directory),
        }:
            for each in await runtime.in_thread(exposed, place):
                runtime.report("data_exposed", text=f"{each.text}: {each.change}")
        # The journal first: its lock on the directory admits one process.
        runtime.journal = await runtime.in_thread(open_journal, config, runtime.directory)
        self._closing["journal"] = self._close_journal
        runtime.state = StateThread(
            await runtime.in_thread(LmdbStateStore, runtime.directory / STATE_FILE)
        )
        self._closing["state"] = self._close_state
        behind_us = runtime.state.get_number(AGING_KEY)
        runtime.aging.resume(behind_us)
        runtime.journal.age_behind(behind_us)
        self._recovery.open()
        runtime.tracing = start_tracing(config.name, config.tracing)
        self._closing["tracing"] = partial(runtime.in_thread, runtime.tracing.close)
        self.placements.check()
        bootstrap = (
            BootstrapRun(runtime, config.bootstrap) if config.bootstrap is not None else None
        )
        if bootstrap is not None and not await bootstrap.is_due():
            bootstrap = None
        if bootstrap is not None:
            self._recovery.forget()
        runtime.identity = Identity(
            config.name,
            config.group,
            self._recovery.incarnation(),
            runtime.state.get_number(GENERATION_KEY),
            in_fabric=bool(config.fabric_key),
            life=secrets.randbits(64),
        )
        if bootstrap is not None:
            self._status.bootstrap = bootstrap
            self.upstreams.copies_from = bootstrap.config.sources
        self.control.open()
        self.clients.pools.begin()
        await self._listening.begin(self.admin)
        self.admin.run()
        if config is not given:
            runtime.report(
                "address_changed",
                former=given.node_address,
                address=runtime.replication_address,
                client=runtime.client_address,
            )
        self.placements.settle(follows=config is not given)
        if bootstrap is not None:
            await bootstrap.run()
            self.upstreams.copies_from = ()
        await self.reading.open()
        runtime.phase = "recovering"
        runtime.recovered(await runtime.in_thread(self._recovery.recover))
        self._sow.serve()
        self._queues.serve()
        self.commits.start()
        self.disk_watch.start()
        moved = runtime.machine.placements.items()
        for destination in config.destinations:
            link = self.links.add(resolve_addresses(destination, moved))
            known = runtime.state.get(f"peer/{destination.name}")
            if known is not None:
                link.remember(*msgpack.unpackb(known))
        self.links.peer_book.moved(moved)
        if config.metrics_port is not None:
            metrics = Metrics(config.name, self._status.snapshot_from_thread)
            self._closing["metrics"] = partial(runtime.in_thread, metrics.stop)
            metrics.start(config.metrics_port, config.metrics_host)

    def _start_link(self, destination: DestinationConfig, start_number: int) -> ChildHandle:
        runtime = self.runtime
        config = runtime.config
        return self._start_child(
            LinkConfig(
                config.name,
                config.group,
                runtime.identity.incarnation,
                start_number,
                self._listening.unix_path,
                str(runtime.directory / JOURNAL_DIRECTORY),
                config.journal.archive_directory,
                replace(
                    destination,
                    authenticator=destination.authenticator or config.authenticator,
                    authenticators=tuple(
                        each or config.authenticator for each in destination.authenticators
                    ),
                ),
                config.tracing,
                config.log,
                reachable(runtime.replication_address),
                config.drills,
                config.type_definitions,
            )
        )

    def _start_queue_owner(self, definition: DeclaredQueue, start_number: int) -> ChildHandle:
        runtime = self.runtime
        config = runtime.config
        return self._start_child(
            QueueOwnerConfig(
                config.name,
                config.group,
                runtime.identity.incarnation,
                runtime.identity.life,
                start_number,
                self._listening.unix_path,
                str(runtime.directory / JOURNAL_DIRECTORY),
                config.journal.archive_directory,
                str(store_path(runtime.directory, definition.stored_as)),
                definition,
                config.tracing,
                config.log,
                config.type_definitions,
            )
        )

    def _start_buffer(
        self, pool: str, start_number: int, path: str, disk_bytes_max: int
    ) -> ChildHandle:
        runtime = self.runtime
        config = runtime.config
        return self._start_child(
            SlowClientBufferConfig(
                config.name,
                pool,
                start_number,
                self._listening.unix_path,
                path,
                disk_bytes_max,
                config.log,
            )
        )

    def _start_admin(self, start_number: int) -> ChildHandle:
        runtime = self.runtime
        config = runtime.config
        assert config.interface is not None, "the process is started where it is configured"
        return self._start_child(
            AdminProcessConfig(
                config.name,
                config.group,
                start_number,
                self._listening.unix_path,
                str(runtime.directory),
                config.interface,
                guarded=config.admin is not None,
                client_address=runtime.client_address,
                client_tls=_dialling(config.client_transports[0].tls),
                type_definitions=config.type_definitions,
                trace_directory=config.tracing.file_directory or "",
                log=config.log,
            )
        )

    # -- periodic work -----------------------------------------------------------------------
    def _each_second(self) -> None:
        self.admin.process.look(self.runtime.loop.time())
        self.commits.look_at_front_log()
        self._listening.keep_looking()
        self.control.keep_looking()
        self.reading.keep_tidy()
        self._maintenance.look_at_retention()
        self._status.measure()

    # -- the end -----------------------------------------------------------------------------
    async def finished(self) -> None:
        """Waits until the instance was stopped; raises the error that ended it otherwise."""
        await self.runtime.finished()

    async def stop(self) -> None:
        """Stops: tells the clients, commits what is staged, ends the links, and closes the files.

        Raises:
            StorageError: a file could not be closed, for example because the directory was removed.
                The instance has ended all the same.
        """
        runtime = self.runtime
        if runtime.is_stopping:
            return await runtime.finished()
        runtime.is_stopping = True
        runtime.phase = "stopping"
        reason, text = "shutting_down", f"{runtime.config.name} stops"
        if runtime.retirement:
            reason, text = "retired", runtime.retirement
        self.clients.end(reason, text)
        runtime.outbox.flush()
        try:
            await self._close_everything()
        except BaseException as error:
            runtime.phase = "stopped"
            runtime.end(error)
            raise
        runtime.phase = "retired" if runtime.retirement else "stopped"
        runtime.end()

    async def _close_everything(self) -> None:
        runtime = self.runtime
        runtime.is_serving = False
        self.disk_watch.stop()
        await self.admin.stop()
        self._listening.close()
        runtime.cancel_timers()
        await self.links.stop()
        await self._queues.stop()
        for connection in list(self.upstreams.connected.values()):
            connection.close("the instance stops")
        self.clients.close("the instance stops")
        await self.clients.pools.stop()
        runtime.cancel_tasks()
        await self.reading.close()
        self._closing["sow"] = self._sow.close
        for part in CLOSING_ORDER:
            close = self._closing.pop(part, None)
            if close is not None:
                await close()
        self._recovery.close()
        self._listening.remove()

    async def _close_journal(self) -> None:
        runtime = self.runtime
        runtime.journal.hand_over()
        await runtime.in_thread(runtime.journal.close)
        # Takes the last commit, so that the recovery point covers it.
        await asyncio.sleep(0)

    async def _close_state(self) -> None:
        runtime = self.runtime
        # After a fault the machine may be half way through a step, or ahead of the disk.
        if runtime.is_recovered and runtime.fault is None:
            try:
                await self._recovery.write_last_point()
            except RaylayError as error:
                runtime.report("state_failed", text=str(error))
        await runtime.in_thread(runtime.state.close)

    def _retired(self, effect: InstanceRetirement) -> None:
        self.runtime.retirement = effect.text
        if self._ending is None:
            self._ending = self.runtime.loop.create_task(self.stop())

    def _went_back(self, _: StaleCopyDetected) -> None:
        self.runtime.phase = "beginning anew"
        if self._ending is None:
            self._ending = self.runtime.loop.create_task(self._begin_anew())

    async def _begin_anew(self) -> None:
        self.begins_anew = True
        await self._recovery.begin_anew()
        await self.stop()

    # -- events ------------------------------------------------------------------------------
    def events(self, after: int = 0, limit: int = 1000) -> list[dict[str, Any]]:
        """The latest events behind number `after`."""
        return self.runtime.events_log.after(after, limit)

    def status(self) -> dict[str, Any]:
        found = self._status.status()
        if self.admin.is_configured:
            found["admin_interface"] = self.admin.status()
        return found


def _dialling(serving: TlsConfig | None) -> TlsConfig | None:
    """Returns the TLS settings with which a process of this host connects to a transport; None: the
    transport has no TLS."""
    if serving is None:
        return None
    # The process dials an address of its own host, for which the certificate need not be valid.
    own = replace(serving, verify_client=False, verify_name=False)
    return own if own.ca_file else replace(own, ca_file=own.certificate)


__all__ = ["InstanceServer", "StorageError"]
