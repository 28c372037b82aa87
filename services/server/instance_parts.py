"""The parts of a serving instance, put together: each is handed the parts that it calls, so that
an earlier part knows no later one.

They are made when the instance has recovered, so that all that they need exists.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import msgpack

from raylay.services.security.connection_shares import ConnectionShares
from raylay.services.server.action_calls import ActionCalls
from raylay.services.server.action_runner import ActionControl
from raylay.services.server.admin_interface import AdminInterface
from raylay.services.server.admin_snapshot import AdminSnapshots
from raylay.services.server.certificate_watch import CertificateWatch
from raylay.services.server.children.child_connection import ChildConnection, ChildHosts
from raylay.services.server.children.starts import ChildStarts
from raylay.services.server.children.supervisor import Supervisor
from raylay.services.server.clients.admission import ClientAdmission
from raylay.services.server.clients.conflated_replays import ConflatedReplays
from raylay.services.server.clients.connection import ClientConnection
from raylay.services.server.clients.connection_limit import (
    ConnectionLimit,
    SessionShares,
    shares_of_files,
)
from raylay.services.server.clients.named_readers import CHECK_INTERVAL_S, ReaderHolds
from raylay.services.server.clients.replay import ReplayPump
from raylay.services.server.clients.sessions import ClientSession, ClientSessions
from raylay.services.server.clients.slow_clients import ClientPools
from raylay.services.server.clients.transport import ClientTransport
from raylay.services.server.commits import Commits, SlowedPublishers
from raylay.services.server.control import ControlAccess
from raylay.services.server.control_calls import ControlCalls
from raylay.services.server.data.data_directory import DataDirectory
from raylay.services.server.data.disk_watch import DiskClock, DiskWatch
from raylay.services.server.data.held_digest import HeldDigest
from raylay.services.server.data.journal_reads import JournalReads
from raylay.services.server.data.maintenance import Maintenance
from raylay.services.server.data.recovery import RecoveredState, RecoveryPoints
from raylay.services.server.effect_handlers import EffectHandlers
from raylay.services.server.fault_injection import FaultInjection
from raylay.services.server.links.announcer import Announcer
from raylay.services.server.links.control import LinkControl, Links
from raylay.services.server.links.destination_addresses import resolve_addresses
from raylay.services.server.links.direct_link import DescriptorReceiver
from raylay.services.server.links.placements import PlacementKeeper
from raylay.services.server.links.upstream_connection import ConnectedUpstreams, UpstreamConnection
from raylay.services.server.listening import InstanceListeners
from raylay.services.server.periodic_checks import PeriodicChecks
from raylay.services.server.queues.deliveries import QueueDeliveries
from raylay.services.server.queues.manager import QueueManager
from raylay.services.server.queues.request_router import QueueRequestRouter
from raylay.services.server.recovered_instance import RecoveredInstance
from raylay.services.server.runtime import InstanceRuntime
from raylay.services.server.sow.manager import SowManager
from raylay.services.server.status import InstanceStatus, StartStatus

POINT_INTERVAL_S = 3.0
"""Time between two recovery points."""


@dataclass(frozen=True, slots=True)
class SharedTables:
    """Values shared by parts that call one another. They are made before all parts, so that each
    part is complete when it is made.

    Attributes:
        links: the links by destination; filled when the instance begins to serve.
        sessions: the clients that have logged on, by number of the connection.
        counted: the user or connection that each session is counted for.
        digest: the digest of the messages that the instance holds.
        disk: the time for which the disk has been writing.
    """

    links: dict[str, LinkControl] = field(default_factory=dict)
    sessions: dict[int, ClientSession] = field(default_factory=dict)
    counted: SessionShares = field(default_factory=SessionShares)
    digest: HeldDigest = field(default_factory=HeldDigest)
    disk: DiskClock = field(default_factory=DiskClock)


class InstanceParts:
    """The parts of a serving instance. They accept its connections (`AcceptedConnections`).

    Owner: the instance's event loop. Lifecycle: `begin`, `run` and `stop`, once each.

    Args:
        instance: the recovered instance.
        recovered: the further values that were recovered.
        directory: the entries of the state store about the data directory.
        admin: the administrator's interface.
        control: decides which users may make control calls.
        descriptors: takes the descriptors that links hand over.
        connection_limit: the limit on the instance's connections.
        listening: the listening sockets.
        reading: the thread that reads the journal.
        start: the part of the status that exists already.
        starts: starts the instance's child processes.
        endings: performs the effects that end the instance.
        shut_down: begins the end of the instance, for a reason that an action gives.
    """

    def __init__(
        self,
        runtime: InstanceRuntime,
        instance: RecoveredInstance,
        recovered: RecoveredState,
        directory: DataDirectory,
        *,
        admin: AdminInterface,
        control: ControlAccess,
        descriptors: DescriptorReceiver,
        connection_limit: ConnectionLimit,
        listening: InstanceListeners,
        reading: JournalReads,
        start: StartStatus,
        starts: ChildStarts,
        endings: Mapping[type, Callable[[Any], None]],
        shut_down: Callable[[str], None],
    ) -> None:
        self._runtime = runtime
        self.instance = instance
        self._admin = admin
        self._control = control
        self.listening = listening
        self.reading = reading
        config, folds, tables = runtime.config, instance.folds, SharedTables()
        shares = shares_of_files(config.name, connection_limit.most)
        pools = ClientPools(runtime, starts.buffer)
        self.injections = FaultInjection(runtime, tables.links, pools.narrow)
        self.placements = PlacementKeeper(runtime, instance)
        self.replays = ReplayPump(
            runtime,
            instance,
            reading,
            folds,
            tables.counted,
            ConflatedReplays(runtime, recovered.sow),
        )
        self.commits = commits = Commits(
            runtime, instance, tables.links, folds, config.staged_bytes_max, tables.disk
        )
        self.admission = ClientAdmission(
            runtime, instance, commits.cycle, is_restored=recovered.is_restored
        )
        deliveries = QueueDeliveries(runtime, instance, tables.sessions)
        self.queues = queues = self._made_queues(recovered, tables, starts, deliveries)
        slowed = SlowedPublishers(runtime, queues)
        self.reader_holds = ReaderHolds(runtime, instance, queues.removable)
        self.certificates = CertificateWatch(runtime, tables.sessions)
        self.maintenance = Maintenance(runtime, instance, reading, self.reader_holds)
        self.sow = self._made_sow(recovered)
        self.recovery = RecoveryPoints(runtime, instance, recovered.log, directory)
        self.upstreams = self._made_upstreams(tables, connection_limit, shares, slowed)
        self.links = self._made_links(tables, starts, descriptors)
        self.clients = ClientSessions(
            runtime,
            instance,
            admission=self.admission,
            commits=commits,
            counted=tables.counted,
            connection_limit=connection_limit,
            deliveries=deliveries,
            folds=folds,
            peer_book=self.links.peer_book,
            pools=pools,
            queues=queues,
            reader_holds=self.reader_holds,
            reading=reading,
            replays=self.replays,
            sessions=tables.sessions,
            shares=shares,
            slowed=slowed,
            sow=self.sow,
        )
        self.disk_watch = DiskWatch(
            runtime,
            tables.disk,
            config.journal.disk_timeout_ms / 1000,
            lambda text: self.clients.end("not_ready", text),
            self.clients.descriptors,
        )
        self.status = self._made_status(deliveries, start)
        self.admin_snapshots = AdminSnapshots(
            runtime,
            instance,
            self.status,
            clients=self.clients,
            commits=commits,
            deliveries=deliveries,
            replays=self.replays,
        )
        self.calls = self._made_calls()
        self.actions = self._made_actions(starts, shut_down)
        EffectHandlers(
            runtime,
            instance,
            clients=self.clients,
            commits=commits,
            links=self.links,
            queues=queues,
            recovery=self.recovery,
            replays=self.replays,
            sow=self.sow,
            upstreams=self.upstreams,
            endings=endings,
        )

    def _made_queues(
        self,
        recovered: RecoveredState,
        tables: SharedTables,
        starts: ChildStarts,
        deliveries: QueueDeliveries,
    ) -> QueueManager:
        instance = self.instance
        return QueueManager(
            self._runtime,
            instance,
            recovered.queues,
            recovered.queue_controls,
            instance.folds,
            self.commits,
            partial(starts.queue_owner, instance.identity),
            links=tables.links,
            requests=QueueRequestRouter(self._runtime.config.group, tables.links),
            deliveries=deliveries,
            sources=recovered.sow.sources,
            changed=lambda changes: self.sow.take_changes(changes),
        )

    def _made_sow(self, recovered: RecoveredState) -> SowManager:
        instance = self.instance
        return SowManager(
            self._runtime,
            instance,
            recovered.sow,
            instance.folds,
            self.commits.cycle.hold,
            self.reader_holds.removable,
            self.queues,
        )

    def _made_upstreams(
        self,
        tables: SharedTables,
        connection_limit: ConnectionLimit,
        shares: ConnectionShares,
        slowed: SlowedPublishers,
    ) -> ConnectedUpstreams:
        return ConnectedUpstreams(
            self._runtime,
            self.instance,
            tables.links,
            admission=self.admission,
            commits=self.commits,
            digest=tables.digest,
            connection_limit=connection_limit,
            access_check=self.listening.replication_access_check,
            placements=self.placements,
            queues=self.queues,
            reading=self.reading,
            shares=shares,
            slowed=slowed,
            sow=self.sow,
        )

    def _made_links(
        self, tables: SharedTables, starts: ChildStarts, descriptors: DescriptorReceiver
    ) -> Links:
        return Links(
            self._runtime,
            self.instance,
            tables.links,
            commits=self.commits.cycle,
            descriptors=descriptors,
            digest=tables.digest,
            placements=self.placements,
            upstreams=self.upstreams,
            start=partial(starts.link, self.instance.identity),
            greeted=self.injections.tell_link,
            keep_refused=self.recovery.keep_refused,
        )

    def _made_calls(self) -> ControlCalls:
        return ControlCalls(
            self._runtime,
            self.instance,
            self._control,
            clients=self.clients,
            injections=self.injections,
            links=self.links,
            listening=self.listening,
            maintenance=self.maintenance,
            placements=self.placements,
            queues=self.queues,
            readers=self.reader_holds,
            sow=self.sow,
            status=self.status,
            upstreams=self.upstreams,
        )

    def _made_actions(self, starts: ChildStarts, shut_down: Callable[[str], None]) -> ActionControl:
        calls = ActionCalls(
            self._runtime,
            self.instance,
            self.calls,
            children=self._children,
            clients=self.clients,
            listening=self.listening,
            maintenance=self.maintenance,
            truncate_statistics=self._admin.truncate_statistics,
            shut_down=shut_down,
            upstreams=self.upstreams,
        )
        return ActionControl(
            self._runtime,
            starts.actions,
            perform=calls.perform,
            client=self.client,
            admission=self.admission,
        )

    def _made_status(self, deliveries: QueueDeliveries, start: StartStatus) -> InstanceStatus:
        return InstanceStatus(
            self._runtime,
            self.instance,
            admission=self.admission,
            certificates=self.certificates,
            clients=self.clients,
            commits=self.commits,
            deliveries=deliveries,
            links=self.links,
            queues=self.queues,
            reader_holds=self.reader_holds,
            reading=self.reading,
            replays=self.replays,
            sow=self.sow,
            start=start,
        )

    def _checks(self) -> PeriodicChecks:
        return PeriodicChecks(
            self._runtime,
            self.instance,
            clients=self.clients,
            commits=self.commits.cycle,
            links=self.links,
            maintenance=self.maintenance,
            queues=self.queues,
            replays=self.replays,
            sow=self.sow,
            upstreams=self.upstreams,
        )

    def _children(self) -> Iterator[Supervisor]:
        """Yields the processes beside the instance."""
        yield from (each.process for each in self.links.controls.values())
        yield from (each.process for each in self.queues.controls.values())
        yield from (each.buffer.process for each in self.clients.pools.all)
        yield from (self._admin.process, self.actions.process)

    # -- connections -------------------------------------------------------------------------
    def client(self, transport: ClientTransport) -> ClientConnection:
        """Returns the protocol of a connection that was accepted at a client transport."""
        return ClientConnection(self.clients, transport)

    def upstream(self, transport: ClientTransport) -> UpstreamConnection:
        """Returns the protocol of a connection that was accepted at a replication transport."""
        return UpstreamConnection(self.upstreams, accepted_by=transport)

    def child(self) -> ChildConnection:
        """Returns the protocol of a connection of one of the instance's child processes."""
        hosts = ChildHosts(self.links, self.queues, self.clients.pools, self.actions)
        return ChildConnection(self._runtime, self._admin, hosts)

    # -- beginning ---------------------------------------------------------------------------
    def begin(self) -> None:
        """Begins to commit, and adds the links; connections are served from then on."""
        instance = self.instance
        self.clients.pools.begin()
        self.sow.serve(self.clients.live.follows, self.clients.live.needs_changes)
        self.commits.start()
        self.disk_watch.start()
        moved = instance.machine.placements.items()
        for destination in self._runtime.config.destinations:
            link = self.links.add(resolve_addresses(destination, moved))
            known = instance.state.get(f"peer/{destination.name}")
            if known is not None:
                link.remember(*msgpack.unpackb(known))
        self.links.peer_book.moved(moved)
        self.listening.serve(self)

    def run(self) -> None:
        """Starts the child processes, and the periodic work."""
        runtime = self._runtime
        # Queues ask whether anybody listens to what they tell.
        self.actions.run()
        self.links.run()
        self.queues.run()
        self._checks().begin()
        self.clients.events.begin()
        runtime.every(1.0, self._each_second)
        runtime.every(POINT_INTERVAL_S, self.recovery.write_point)
        self.certificates.begin()
        self.reader_holds.check()
        runtime.every(CHECK_INTERVAL_S, self.reader_holds.check)
        config = runtime.config
        if config.announce_to and config.name in self.placements.known():
            runtime.spawn(Announcer(runtime, self.placements, config.announce_to).run())

    def _each_second(self) -> None:
        self.commits.look_at_front_log()
        self.listening.keep_looking()
        self._control.keep_looking()
        self.reading.keep_tidy()
        self.maintenance.look_at_retention()
        self.status.measure()

    # -- the end -----------------------------------------------------------------------------
    async def stop(self) -> None:
        """Ends the child processes and all connections."""
        self.disk_watch.stop()
        self._runtime.cancel_timers()
        await self.actions.stop()
        await self.links.stop()
        await self.queues.stop()
        for connection in list(self.upstreams.connected.values()):
            connection.close("the instance stops")
        self.clients.close("the instance stops")
        await self.clients.pools.stop()


__all__ = ["InstanceParts", "SharedTables"]
