"""A fabric from a driver script: declare, start, attach, ask, break, stop.

    fabric = Fabric("flights", topics=[Topic("flights/.*", "json")], downgrade_age="5s")
    for city in ("Chicago", "NewYork", "London"):
        fabric.region(city, instances=2)        # a sync pair inside
    fabric.connect_regions("async")             # every instance to every other region
    with fabric.start():
        print(fabric.status())

Every method blocks; an asyncio program calls those that ask Ray through `asyncio.to_thread`.
Messages never pass through here: clients talk to instances, whose addresses `servers` gives.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Literal, Self

from raylay.services.capacity.config import CapacityConfig
from raylay.services.client import Client, Server, SyncClient
from raylay.services.config.instance import InstanceConfig
from raylay.services.config.journal import JournalConfig
from raylay.services.configuration.actions import Action
from raylay.services.configuration.admin import AdminSettings
from raylay.services.configuration.builder import FabricBuilder, Mode, Topic, TopicLike
from raylay.services.configuration.model import (
    ClientSettings,
    FabricSettings,
    LogSettings,
    MetricsSettings,
    TracingSettings,
)
from raylay.services.configuration.queues import QueueSettings
from raylay.services.configuration.security import ModuleLike
from raylay.services.configuration.sow_topics import SowTopicSettings
from raylay.services.configuration.views import ConflatedTopicSettings, ViewSettings
from raylay.services.errors import FabricError
from raylay.services.fabric import plan
from raylay.services.fabric.clients import FabricClients
from raylay.services.fabric.cluster.node_calls import NodeCalls
from raylay.services.fabric.cluster.ray_access import (
    START_TIMEOUT_S_DEFAULT,
    STATUS_TIMEOUT_S,
    STOP_TIMEOUT_S_DEFAULT,
)
from raylay.services.fabric.control import ControlClient
from raylay.services.fabric.handle import FabricHandle
from raylay.services.fabric.instances import InstanceHandles
from raylay.services.fabric.lifecycle import FabricLifecycle, running_record
from raylay.services.fabric.maintenance import FabricMaintenance
from raylay.services.fabric.plan import FabricChanges
from raylay.services.fabric.records.record import OrphanedDirectory
from raylay.services.fabric.relocation import Relocation
from raylay.services.fabric.relocator import Relocator
from raylay.services.fabric.rollout import Progress, Rollout
from raylay.services.messages.types.definitions import TypeDefinition
from raylay.services.net.tls_config import TlsConfig
from raylay.services.replication.downgrade import DowngradePolicy

__all__ = ["Fabric", "Topic"]


class Fabric:
    """The declaration of a fabric, and once it is started or attached to, its remote control.

    Args:
        name: name of the fabric, by which other processes attach to it.
        topics: journaled topics: names or regular expressions; default is every topic.
        journal, downgrade, tracing, metrics, logs, client: sections as in the file.
        drills: whether drills may break it while it runs; default: refused.
        unauthenticated: whether transports may admit clients and links of other hosts without
            authentication; default: refused.
        direct_links: whether links that have caught up hand over their connections (default: yes).
        relocate_after: time, such as `10m`, for which the host of an instance may be away before
            `raylay watch` moves the instance; default: it never does.
        message_types: further message types, each with `name`, `kind` and `options`
            (docs/message-types.md).
        sow_topics: topics of which the last message of each key is kept, each with `name`,
            `message_type`, `keys` and so on (docs/sow-topics.md).
        views, conflated_topics: topics that each instance computes from others (docs/views.md).
        queues: queues, each of whose messages goes to one consumer (docs/queues.md).
        actions: actions of each instance: steps that it performs when something happens
            (docs/actions.md).
        sow_stats_interval: time, such as `5s`, between two messages about each SOW topic on
            `/AMPS/SOWStats` (docs/events.md); default: there are none.
        tls: TLS settings of all transports, and of the clients and links that connect to them
            (docs/security.md).
        downgrade_age: short for `downgrade={"age": …}`.
        authentication, entitlement: modules that decide which users are let in and what each may
            do: a name, or `module` and `options` (docs/security.md); default: every user may do
            everything.
        replication_authentication, replication_entitlement: the same for links of instances.
        authenticator: module that gives the credentials with which a link logs on; default: links
            log on without credentials.
        admin: `authentication` and `entitlement` of control calls, default: none is asked; and the
            interface over HTTP with its console (`{"enabled": True}`; docs/administration.md).
        capacity: limits on the data that waits for slow clients (docs/capacity.md).

    Raises:
        ConfigurationError: a value is wrong.
    """

    def __init__(
        self,
        name: str,
        *,
        topics: Iterable[TopicLike] = (".*",),
        journal: JournalConfig | Mapping[str, Any] | None = None,
        downgrade: DowngradePolicy | Mapping[str, Any] | None = None,
        tracing: TracingSettings | Mapping[str, Any] | None = None,
        metrics: MetricsSettings | Mapping[str, Any] | None = None,
        logs: LogSettings | Mapping[str, Any] | Sequence[Mapping[str, Any]] | None = None,
        client: ClientSettings | Mapping[str, Any] | None = None,
        drills: Literal["refused", "allowed"] | None = None,
        unauthenticated: Literal["refused", "allowed"] | None = None,
        direct_links: bool | None = None,
        relocate_after: str | int | None = None,
        message_types: Iterable[TypeDefinition | Mapping[str, Any]] | None = None,
        sow_topics: Iterable[SowTopicSettings | Mapping[str, Any]] | None = None,
        views: Iterable[ViewSettings | Mapping[str, Any]] | None = None,
        conflated_topics: Iterable[ConflatedTopicSettings | Mapping[str, Any]] | None = None,
        queues: Iterable[QueueSettings | Mapping[str, Any]] | None = None,
        actions: Iterable[Action | Mapping[str, Any]] | None = None,
        sow_stats_interval: str | None = None,
        tls: TlsConfig | Mapping[str, Any] | None = None,
        downgrade_age: str | None = None,
        authentication: ModuleLike | None = None,
        entitlement: ModuleLike | None = None,
        replication_authentication: ModuleLike | None = None,
        replication_entitlement: ModuleLike | None = None,
        authenticator: ModuleLike | None = None,
        admin: AdminSettings | Mapping[str, Any] | None = None,
        capacity: CapacityConfig | Mapping[str, Any] | None = None,
    ) -> None:
        self.name = name
        self._builder = FabricBuilder(
            name,
            topics=topics,
            journal=journal,
            downgrade=downgrade,
            tracing=tracing,
            metrics=metrics,
            logs=logs,
            client=client,
            drills=drills,
            unauthenticated=unauthenticated,
            direct_links=direct_links,
            relocate_after=relocate_after,
            message_types=message_types,
            sow_topics=sow_topics,
            views=views,
            conflated_topics=conflated_topics,
            queues=queues,
            actions=actions,
            sow_stats_interval=sow_stats_interval,
            tls=tls,
            downgrade_age=downgrade_age,
            authentication=authentication,
            entitlement=entitlement,
            replication_authentication=replication_authentication,
            replication_entitlement=replication_entitlement,
            authenticator=authenticator,
            admin=admin,
            capacity=capacity,
        )
        self.handle = handle = FabricHandle(name, self._builder.settings)
        """Settings, record and actors as this process knows them, for drills and inspection."""
        self._control = control = ControlClient(handle)
        self.instances = instances = InstanceHandles(handle, control)
        """The actors of the instances, for drills and inspection."""
        self._clients = FabricClients(handle)
        self._lifecycle = FabricLifecycle(handle, control, instances, self._clients)
        self.maintenance = FabricMaintenance(handle, control, instances)
        """Stops single instances on purpose, and starts them again."""
        self._rollout = Rollout(handle, control, instances, self.maintenance)
        self._relocator = Relocator(handle, control, instances)
        self._nodes = NodeCalls(handle)

    # -- where fabrics come from -------------------------------------------------------------
    @classmethod
    def load(
        cls,
        *paths: str | Path,
        defines: Mapping[str, str] | None = None,
        name: str = "",
        ignore_unsupported: bool = False,
    ) -> Fabric:
        """Returns the fabric that one YAML file declares, or the AMPSConfig files of its instances.

        Args:
            defines: values of `${VAR}` in AMPSConfig files, before those of the environment.
            name: name of the fabric, for AMPSConfig files.
            ignore_unsupported: leave out what does not run yet, instead of refusing it.

        Raises:
            ConfigurationError: a file is wrong; names file and line.
        """
        from raylay.services.configuration.files import load_fabric  # late: all of AMPSConfig

        return cls.of(
            load_fabric(paths, defines=defines, name=name, ignore_unsupported=ignore_unsupported)
        )

    @classmethod
    def of(cls, settings: FabricSettings) -> Self:
        """Returns a fabric with settings that were checked before."""
        fabric = cls(settings.name)
        fabric.handle.settings = settings
        return fabric

    @classmethod
    def attach(
        cls, name: str, address: str | None = None, *, user_id: str = "", password: str = ""
    ) -> Fabric:
        """Returns a fabric that another process has started and that runs, even if that process has
        left.

        Args:
            name: name of the fabric.
            address: address of the fabric's Ray; not needed on the host that started it, for the
                same user.
            user_id, password: the user that controls the fabric, as in `act_as`; empty: the user
                that the environment names.

        Raises:
            FabricError: no such fabric runs.
        """
        record, started_ray = running_record(name, address)
        fabric = cls.of(FabricSettings.from_json(record.settings))
        fabric._lifecycle.adopt(record, started_ray)
        if user_id or password:
            fabric.act_as(user_id, password)
        return fabric

    # -- declaring ---------------------------------------------------------------------------
    def region(
        self,
        name: str,
        instances: int | Sequence[str] = 2,
        *,
        links: Mode | None = "sync",
        origin: str = "",
        **options: Any,
    ) -> Self:
        """Declares a group of instances. Each is linked to each other one with PassThrough `.*`.

        Args:
            name: name of the region, which is the group of its instances.
            instances: number of instances, which are then called `name-1`, `name-2`, …, or their
                names.
            links: mode of the links between the instances: `sync`, `async`, or None for no links.
            options: options of every instance, as in `instance`.

        Raises:
            ConfigurationError: a value is wrong or a name is taken.
        """
        self._builder.region(name, instances, links=links, origin=origin, **options)
        return self

    def connect_regions(
        self,
        mode: Mode = "async",
        *,
        origin: str = "",
        pass_through: str | None = "own",
        **options: Any,
    ) -> Self:
        """Declares a destination from every instance of every region to every other region. Each is
        a failover list of that region's instances, and is sent only messages that were published in
        the sender's region. So each message crosses once, and comes in its publisher's order by
        whichever link it comes.

        Args:
            mode: `async` or `sync`.
            pass_through: `own`: only messages that were published in the own region (PassThrough
                the own group and `own_group_only`); else as in `destination`.
            options: options of each destination, as in `destination`.

        Raises:
            ConfigurationError: fewer than two regions, or a wrong value.
        """
        self._builder.connect_regions(mode, origin=origin, pass_through=pass_through, **options)
        return self

    def instance(
        self, name: str, group: str | None = None, *, origin: str = "", **options: Any
    ) -> Self:
        """Declares one instance, or adds options to one that a region declared.

        Args:
            group: group of a new instance; by default its name.
            options: fields of `InstanceSettings`: host, client_port, replication_port,
                metrics_port, directory, node_labels, journal, downgrade, bootstrap, topics,
                sow_topics, views, conflated_topics, queues, sow_stats_interval, actions, tls,
                transports, admin, capacity.

        Raises:
            ConfigurationError: a value is wrong, or the name is taken in another group.
        """
        self._builder.instance(name, group, origin=origin, **options)
        return self

    def destination(
        self,
        source: str,
        to: str | Sequence[str],
        *,
        sync: bool = False,
        pass_through: str | None = None,
        topics: Iterable[TopicLike] = (".*",),
        name: str = "",
        group: str = "",
        origin: str = "",
        **options: Any,
    ) -> Self:
        """Declares a destination of an instance.

        Args:
            source: the instance that sends.
            to: instances in order of priority, or `host:port` of another fabric's.
            sync: whether publishers' acks wait for the destination.
            pass_through: regular expression for the group that a message came from; None: only
                messages that clients published at `source` are sent.
            topics: topics whose messages are sent.
            name: name of the destination; by default the instance's name, or the group of several
                instances.
            group: group of the instances; needed only for another fabric's.
            options: compression, ack_conflation, own_group_only, exclude_validation (checks that
                are left out; None: those that the shape of the fabric makes impossible), dial
                (False: it waits for one of `to` to connect), share_connection (a connection that
                one of them made is used before any is dialled), wide_ip (whether several servers
                may answer at one address; None: they may where it is one of another fabric), tls,
                authenticator, waits and waits_for (beside dialling it takes a connection that
                another server of the group made).

        Raises:
            ConfigurationError: a value is wrong.
        """
        self._builder.destination(
            source,
            to,
            sync=sync,
            pass_through=pass_through,
            topics=topics,
            name=name,
            group=group,
            origin=origin,
            **options,
        )
        return self

    def settings(self) -> FabricSettings:
        """Returns the declaration so far, checked.

        Raises:
            ConfigurationError: with one line for each thing that is wrong.
        """
        return self._builder.settings()

    @property
    def declared(self) -> FabricSettings:
        """Returns the checked settings. While the fabric runs, they are those that it runs with."""
        return self.handle.declared

    @property
    def directory(self) -> Path:
        """Returns the fabric's directory."""
        return Path(self.handle.known()[1].directory)

    def data_directory(self, name: str) -> Path:
        """Returns an instance's data directory."""
        settings, record = self.handle.known()
        return plan.data_directory(record, settings.instance(name))

    def instance_config(self, name: str) -> InstanceConfig:
        """Returns the configuration with which an instance is started.

        Raises:
            FabricError: the fabric is not started.
        """
        settings, record = self.handle.known()
        return plan.instance_config(settings, record, settings.instance(name))

    # -- life --------------------------------------------------------------------------------
    def start(
        self,
        directory: str | Path | None = None,
        *,
        address: str | None = None,
        node_label: str = "",
        timeout_s: float = START_TIMEOUT_S_DEFAULT,
        progress: Callable[[str], None] | None = None,
    ) -> Self:
        """Starts every instance and returns when all are ready, and the links within each group and
        the links that acks wait for have caught up: from then on publishers are answered at once,
        and may fail over. A link that has not caught up within 30 s is logged as a warning, with
        the reason.

        Args:
            directory: directory for data, ports and logs; its content is used again. None: a
                temporary one, which `stop` removes.
            address: address of a running Ray, or `auto`; None: the Ray that this process is
                connected to, else one that is started here and ends with this process.
            node_label: instances that name no node go to those whose label of this name, `region`
                say, is their group.
            timeout_s: seconds that the whole start may take.
            progress: called with a few words at each step.

        Raises:
            ConfigurationError: the declaration is wrong.
            FabricError: an instance did not become ready, or no node has the labels that it wants;
                the error names it and the reason. Nothing of the fabric is left running then.
        """
        self._lifecycle.start(
            directory,
            address=address,
            node_label=node_label,
            timeout_s=timeout_s,
            progress=progress,
        )
        return self

    def stop(self, timeout_s: float = STOP_TIMEOUT_S_DEFAULT) -> None:
        """Stops every instance, which first commits and sends the messages that it has received. A
        second call does nothing.

        Raises:
            FabricError: an instance refuses: nothing is stopped.
            HeadSilent: Ray's head does not answer, and the Ray is another one's: nothing is
                stopped. One that was begun here ends all the same.
        """
        self._lifecycle.stop(timeout_s)

    def leave(self) -> None:
        """Disconnects from the fabric and lets it run on."""
        self._lifecycle.leave()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Stops a fabric that was started here; leaves one that was attached to."""
        if self._lifecycle.owns:
            self.stop()
        else:
            self.leave()

    # -- clients -----------------------------------------------------------------------------
    def servers(self, group: str | None = None) -> list[Server]:
        """Returns the addresses for clients of one group, or of all instances, in the order
        declared.

        Raises:
            ConfigurationError: there is no such group.
        """
        settings, record = self.handle.known()
        return plan.servers(settings, record, group)

    def consoles(self) -> list[str]:
        """Returns the URLs of the instances' consoles, in the order declared; each shows the whole
        fabric. Empty: no instance has an administrator's interface (`admin={"enabled": True}`).

        Raises:
            FabricError: the fabric is not started.
        """
        return plan.consoles(*self.handle.known())

    def client(self, name: str, *, group: str | None = None, **options: Any) -> Client:
        """Returns a client of one group's instances, not connected yet: use it with `async with`.

        Args:
            group: group whose instances the client uses; may be left out if the fabric has only
                one.
            options: options of `Client`. Options that are not given come from the fabric's client
                section.

        Raises:
            ConfigurationError: there is no such group, or it has to be named.
        """
        return Client(name, **self._clients.options(name, group, options))

    def sync_client(self, name: str, *, group: str | None = None, **options: Any) -> SyncClient:
        """Returns a client for scripts without an event loop; it connects at once."""
        return SyncClient(name, **self._clients.options(name, group, options))

    def client_options(self, name: str, *, group: str | None = None) -> dict[str, Any]:
        """Returns the arguments of a `Client` of the fabric, without the name: servers, group, the
        client section of the settings, tracing.

        Raises:
            ConfigurationError: there is no such group, or it has to be named.
        """
        return self._clients.options(name, group)

    # -- asking ------------------------------------------------------------------------------
    def status(self, only: Collection[str] | None = None) -> dict[str, Any]:
        """Returns the `status` of each instance, or of `only` these, or why it cannot be asked."""
        return self.instances.status(only)

    def events(
        self, *, follow: bool = False, after_us: int = 0, stop: Callable[[], bool] | None = None
    ) -> Iterator[dict[str, Any]]:
        """Yields the events of all instances, oldest first: connects, downgrades, resyncs,
        conflicts, …

        Each has `instance`, `time_us` (microseconds since 1970), `event` and its details. An
        instance keeps its last 10,000 events since its process started.

        Args:
            follow: whether to go on with new events for ever.
            after_us: time, in microseconds since 1970, after which events are yielded.
            stop: called between rounds of `follow`; true ends it.
        """
        return self.instances.events(follow=follow, after_us=after_us, stop=stop)

    def ask(
        self, name: str, verb: str, *arguments: Any, timeout_s: float = STATUS_TIMEOUT_S
    ) -> Any:
        """Returns one instance's answer to a call that changes nothing: `status`, `events`, …

        Raises:
            FabricError: it does not run, does not answer in time, or refuses.
        """
        return self._control.ask(name, verb, *arguments, timeout_s=timeout_s)

    def wait_ready(
        self, name: str | None = None, timeout_s: float = START_TIMEOUT_S_DEFAULT
    ) -> None:
        """Waits until one instance, or each of them, admits clients.

        Raises:
            FabricError: an instance did not within `timeout_s`; the error names it and its reason.
        """
        self.instances.wait_ready(name, timeout_s)

    def wait_connected(
        self,
        timeout_s: float = START_TIMEOUT_S_DEFAULT,
        *,
        only: Collection[tuple[str, str]] | None = None,
    ) -> None:
        """Waits until every destination has caught up: from then on clients may fail over.

        Args:
            only: (instance, destination) of each destination to wait for; None: all.

        Raises:
            FabricError: a destination has not within `timeout_s`; the error names it and its
                reason.
        """
        self.instances.wait_connected(timeout_s, only=only)

    def shared_hosts(self) -> list[str]:
        """Says which members of a sync pair keep their data on the same host of the cluster, and
        what to do about it. Empty on a cluster of one host, where they cannot do otherwise.

        Raises:
            FabricError: The fabric was not started.
            HeadSilent: Ray's head does not answer.
        """
        return self.instances.shared_hosts()

    # -- who controls it ---------------------------------------------------------------------
    def act_as(self, user_id: str, password: str = "") -> None:
        """Makes this handle control instances as this user from now on, where they have `admin`.
        Without this call the environment names the user: `RAYLAY_USER`, and `RAYLAY_PASSWORD_FILE`
        or `RAYLAY_PASSWORD`.

        Args:
            password: password or token of the user, which is kept in memory only.
        """
        self._control.act_as(user_id, password)

    def authorize(self, names: Iterable[str], call: str, **details: Any) -> None:
        """Asks instances whether this handle's user may make a call. Instances that have no
        `admin`, or cannot be asked now, are left out.

        Args:
            call: name of a call in `raylay.services.security.control.PATHS`.
            details: the names in its path.

        Raises:
            FabricError: some instances refuse; the error has a line for each.
            ConfigurationError: the user's name or password in the environment cannot be read.
        """
        self._control.authorize(names, call, **details)

    # -- breaking and mending ----------------------------------------------------------------
    def control(
        self, name: str, call: str, *, timeout_s: float | None = None, **arguments: Any
    ) -> Any:
        """Makes a control call of one instance, and returns its result. The methods below make the
        calls that people need.

        Args:
            call: name of a call in `raylay.services.security.control.PATHS` that the instance
                itself performs.
            timeout_s: seconds to wait; None: the time that the instance needs where it asks a
                module whether the user may make the call.
            arguments: arguments of the call, which `raylay.services.server.control_calls` lists.

        Raises:
            FabricError: it does not run, does not answer in time, or refuses.
        """
        return self._control.control(name, call, timeout_s=timeout_s, **arguments)

    def pid(self, name: str) -> int:
        """Returns the process id of an instance; 0: the instance has no process."""
        return self.instances.pid(name)

    def kill(self, name: str, *, restart: bool = True) -> int:
        """Sends SIGKILL to the process of an instance. Returns the process id.

        Args:
            restart: Ray starts it again at once; else it stays away until `restart(name)`.

        Raises:
            FabricError: it does not run, or refuses.
        """
        return self.instances.kill(name, restart=restart)

    def kill_link(self, name: str, destination: str) -> int:
        """SIGKILL to the process of one link. Returns its pid.

        Raises:
            FabricError: there is no such link, its process is not known, or the instance refuses.
        """
        return self.instances.kill_link(name, destination)

    def restart(
        self, name: str, timeout_s: float = START_TIMEOUT_S_DEFAULT, *, graceful: bool = False
    ) -> None:
        """Ends an instance's process, if it has one, and returns when it is ready again.

        An instance whose data directory is gone starts empty and catches up with a peer of its
        group before it is ready.

        Args:
            graceful: whether the instance first commits and sends the messages that it has
                received, and tells its clients that it ends.

        Raises:
            FabricError: it did not become ready within `timeout_s`, or refuses.
        """
        self.handle.refresh()
        self._control.authorize([name], "restart")
        caller = self._control.caller_for(name)
        self.instances.restart(name, timeout_s, graceful=graceful, caller=caller)

    def downgrade(self, name: str, destination: str, *, force: bool = False) -> None:
        """Lets acks of instance `name` no longer wait for this destination from now on.

        Args:
            force: whether to do so even where fewer than MinSyncDestinations are left.

        Raises:
            FabricError: there is no such destination, the instance cannot be asked, or it refuses.
        """
        self._switch_sync(name, "downgrade", destination, force=force)

    def upgrade(self, name: str, destination: str) -> None:
        """Back to the configured sync.

        Raises:
            FabricError: there is no such destination, or the instance cannot be asked.
        """
        self._switch_sync(name, "upgrade", destination)

    def admit(self, name: str, *, force: bool = False) -> None:
        """Lets an instance with a new disk admit clients although no peer of its group has brought
        the messages that it holds. For a group that does not come back.

        Args:
            force: whether to do so even where a peer may hold messages that the instance lacks.
                They are lost to its clients unless that peer comes back.

        Raises:
            FabricError: the instance cannot be asked, or it refuses and says what may be missing.
        """
        senders = self.declared.replicating_to(name)
        self._control.control(name, "admit", f"admit {name}", senders=senders, force=force)

    def inject(self, name: str, kind: str, seconds: float, **options: Any) -> None:
        """Breaks something inside an instance for a drill, for so long; 0 seconds mend it. What can
        be broken says `raylay.services.server.fault_injection`.

        Raises:
            FabricError: the fabric is not marked for drills, there is no such fault, or the
                instance cannot be asked.
        """
        self.declared.instance(name)
        what = f"inject into {name}"
        self._control.control(name, "drill", what, kind=kind, seconds=seconds, options=options)

    def proxied(self, name: str, queue: str, *, on: bool = True) -> str:
        """Lets a queue of an instance take over messages of instances that it is not connected to,
        or no more. An instance that is only cut off may deliver them too: turn it on at one, and
        let no consumers use the others meanwhile. It holds over restarts of the instance.

        Returns:
            A sentence for people, with that risk.

        Raises:
            FabricError: there is no such queue, it is local, or the instance cannot be asked.
        """
        self.declared.instance(name)
        what = f"proxied transfer of {queue} at {name}"
        call = "enable_proxied" if on else "disable_proxied"
        return str(self._control.control(name, call, what, queue=queue))

    def switch_transport(self, name: str, transport: str, *, on: bool) -> str:
        """Enables or disables a transport for clients of an instance, until the instance is
        restarted: then its configuration decides again. The connections of a disabled transport end
        with the reason `transport_disabled`, and clients fail over.

        Returns:
            A sentence for people.

        Raises:
            FabricError: there is no such transport, its address cannot be listened on, or the
                instance cannot be asked: nothing was changed.
        """
        self.declared.instance(name)
        what = f"transport {transport} of {name}"
        call = "enable_transport" if on else "disable_transport"
        return str(self._control.control(name, call, what, transport=transport))

    def reset_entitlement(self, name: str, user: str = "") -> int:
        """Makes an instance ask its modules anew for the permissions of a user; without a user, of
        all users whose permissions came from a module. Their sessions end, and their clients log on
        again.

        Returns:
            How many sessions ended.

        Raises:
            FabricError: the instance cannot be asked.
        """
        self.declared.instance(name)
        what = f"entitlement at {name}"
        return int(self._control.control(name, "reset_entitlement", what, of_user=user))

    def _switch_sync(self, name: str, call: str, destination: str, **options: bool) -> None:
        instance = self.declared.instance(name)
        if destination not in {known.name for known in instance.destinations}:
            raise FabricError(f"instance {name} has no destination {destination}")
        what = f"{call} of {destination} at {name}"
        self._control.control(name, call, what, destination=destination, **options)

    # -- changing what runs ------------------------------------------------------------------
    def apply(
        self,
        declared: Fabric | FabricSettings,
        timeout_s: float = START_TIMEOUT_S_DEFAULT,
        *,
        force: bool = False,
        dry_run: bool = False,
        progress: Progress | None = None,
    ) -> FabricChanges:
        """Changes this running fabric to a new declaration of it. First it stops the instances that
        are gone, each when the others have all of its messages; their data directories are kept.
        Then it starts the new instances, and waits until each has a process. Then it restarts the
        instances whose configuration changes, one after the other, each when the links between
        those that are done have caught up again; a new one then copies what its group has.

        Args:
            timeout_s: limit on the time for each instance.
            force: whether to remove instances of which the others may lack messages.
            dry_run: whether to change nothing, and return what would be done.
            progress: filled step by step, for a caller that is interrupted.

        Raises:
            ConfigurationError: the declaration is wrong; nothing is changed.
            FabricError: others may lack messages of one that is gone, data would lie elsewhere, an
                instance refuses or a new one has no process (no change); or one did not come back:
                those behind it run as before, and the same call goes on with them.
        """
        settings = declared.declared if isinstance(declared, Fabric) else declared
        return self._rollout.apply(
            settings, timeout_s, force=force, dry_run=dry_run, progress=progress
        )

    def rolling_restart(
        self,
        names: Iterable[str] = (),
        timeout_s: float = START_TIMEOUT_S_DEFAULT,
        *,
        progress: Progress | None = None,
    ) -> None:
        """Restarts instances one after the other, each when every link has caught up behind the one
        before: so a release that was installed meanwhile comes into use, while clients go on. Those
        that are named and not ready go first: links that wait for them are no reason to refuse.

        Args:
            names: names of the instances, in the order of the restarts; empty: all that are not
                stopped, in the order of the declaration.
            timeout_s: seconds that each instance may take.
            progress: filled step by step, for a caller that is interrupted.

        Raises:
            ConfigurationError: there is no such instance; nothing was restarted.
            FabricError: links had not caught up, before the first one or behind another: those that
                follow run as before; or the host of one is away, or one refuses: then nothing was
                restarted.
        """
        self._rollout.restart(names, timeout_s, progress=progress)

    # -- instances on another node -------------------------------------------------------------
    def relocate(
        self,
        name: str,
        to: Mapping[str, str] | None = None,
        *,
        force: bool = False,
        timeout_s: float = START_TIMEOUT_S_DEFAULT,
        moved: Callable[[Relocation], None] = lambda done: None,
    ) -> Relocation:
        """Moves an instance whose host is lost to another node of its region: under its name, with
        a new incarnation, filled from its group. The former incarnation is retired for good: the
        other instances are told of it at once, or when they are back. Its data directory is left as
        it is.

        Args:
            to: labels of the node; None: the node of its region with the fewest instances.
            force: whether to move it even where another instance or a client still sees it alive
                (it is then stopped first), or where no member of its group is ready to fill it.
            timeout_s: seconds within which it must be ready.
            moved: called with the move once it is written down, before the instance is started.

        Raises:
            FabricError: the instance is not moved, and the error says why (an instance may refuse
                the move); or it was moved and did not become ready in time.
        """
        return self._relocator.relocate(name, to, force=force, timeout_s=timeout_s, moved=moved)

    def relocate_due(
        self, moved: Callable[[Relocation], None] = lambda done: None
    ) -> list[Relocation]:
        """Moves the instances whose host is away for longer than `relocate_after` of the settings.
        `raylay watch` calls it again and again.

        Args:
            moved: called with each move, as in `relocate`.

        Raises:
            FabricError: some instances cannot be moved; the error says why, a line for each. The
                others were moved.
        """
        return self._relocator.relocate_due(moved)

    def note_salvage(
        self, name: str, generation: int, *, salvaged: bool, lacking: int | None
    ) -> bool:
        """Records the result of a salvage of a left-over directory, so that the status shows it on
        every host.

        Args:
            name: name of the instance whose directory it was, at the time of this generation.
            salvaged: whether the fabric has all messages of the directory.
            lacking: number of the directory's messages that the fabric lacks; None: not known.

        Returns:
            whether the fabric's record has such a directory.

        Raises:
            FabricError: the record cannot be written now, and why, or an instance refuses.
        """
        return self._relocator.note_salvage(name, generation, salvaged=salvaged, lacking=lacking)

    def forget_left_over(self, directory: str) -> OrphanedDirectory:
        """Leaves a left-over directory that was removed out of the status from now on.

        Raises:
            FabricError: it is still there, the fabric knows of none, its record cannot be written
                now, or an instance refuses.
        """
        return self._relocator.forget_left_over(directory)

    def on_node_of(
        self, name: str, function: Callable[..., Any], *arguments: Any, timeout_s: float = 60.0
    ) -> Any:
        """Calls a function on the node of an instance and returns its result: here where that is
        this node, else by an actor there, which is started at the first call and needs no head for
        the next.

        Raises:
            FabricError: the node did not answer.
        """
        return self._nodes.run(name, function, *arguments, timeout_s=timeout_s)

    def end_errands(self) -> None:
        """Ends what `on_node_of` began on other nodes; without a head it ends with this driver."""
        self._nodes.end()
