"""The configuration of an instance and its links: plain values, kept in the data directory.

`instance.json` lies in the data directory, so that a restart needs no driver. Everything here is
checked when the instance starts; a wrong value is a ConfigurationError that names it.
"""

from __future__ import annotations

from dataclasses import dataclass, field, fields
from pathlib import Path

from raylay.services.actions.model import ActionDefinition
from raylay.services.capacity.config import CapacityConfig
from raylay.services.config.admin_interface import AdminInterfaceConfig
from raylay.services.config.bootstrap import BootstrapConfig
from raylay.services.config.journal import JournalConfig
from raylay.services.config.json_text import JsonText
from raylay.services.config.transport import (
    CLIENT_TRANSPORT,
    REPLICATION_TRANSPORT,
    TransportConfig,
)
from raylay.services.errors import ConfigurationError
from raylay.services.messages.topics import (
    TopicMatcher,
    TopicRule,
)
from raylay.services.messages.types.definitions import TypeDefinition
from raylay.services.net.tls_config import TlsConfig
from raylay.services.protocol.client.compression import COMPRESSION_TYPES, ZSTD
from raylay.services.queues.definition import QueueDefinition as RunQueue
from raylay.services.replication.downgrade import DowngradePolicy
from raylay.services.replication.link.routing import DestinationRoute
from raylay.services.replication.membership.validation import check_rule
from raylay.services.security.control import AdminConfig, check_admin
from raylay.services.security.modules import ModuleConfig
from raylay.services.sow.definition import SowTopicDefinition
from raylay.services.telemetry.logs import LogOptions
from raylay.services.telemetry.tracing import TracingOptions
from raylay.services.views.definition import ConflatedTopicDefinition, ViewDefinition
from raylay.storage.files import make_directory, write_durably

INSTANCE_FILE = "instance.json"
MOVED_ASIDE = ".before-"
"""Part of the name of a data directory that `raylay restore` has moved aside, in front of the
time."""
CLIENT_BUFFER_BYTES_MAX_DEFAULT = 64 * 1024 * 1024
STAGED_BYTES_MAX_DEFAULT = 32 * 1024 * 1024
LINK_HEARTBEAT_MS_DEFAULT = 1_000
LINK_TIMEOUT_MS_DEFAULT = 5_000
RETRY_MS_MIN_DEFAULT = 50
RETRY_MS_MAX_DEFAULT = 5_000


@dataclass(slots=True)
class DestinationConfig:
    """One Destination of an instance.

    Attributes:
        addresses: addresses `host:port` of replication transports, in priority order. Empty: the
            link does not dial, and waits until one of the destination's servers connects.
        client_addresses: addresses `host:port` at which clients reach the same servers. Clients are
            told them as peers until the connected server has named its own.
        server_names: names of the same servers; empty: their names are not known.
        window_bytes: most bytes that are sent and not yet stored at the destination.
        heartbeat_ms, timeout_ms: a beat when nothing else was sent for so long; the connection
            ends when nothing came for so long. The other side beats each second
            (`upstream_connection.BEAT_S`): with a shorter time-out none lasts that is idle.
        compression_type: algorithm for batches that are sent compressed: `zstd` or `zlib`.
        reconnect_timeout_ms: milliseconds for which an address is tried before the next: none, one
            for all, or one for each.
        share_connection: whether the link uses a connection that one of the servers made, if there
            is one, before it dials.
        wide_ip: whether several servers may answer at one of the addresses. None: they may where
            the names of the servers are not known.
        waits, waits_for: beside dialling it takes a connection that a server made which it does not
            dial: one of these names; none: the one that bears its name, else any of the group that
            no other destination names.
        retry_ms_min, retry_ms_max: pause after all addresses failed; doubles up to the maximum.
        tls: TLS settings of the connections that the link dials; None: it dials without TLS.
        authenticator: module that makes the link's credentials for the destination; None: the
            instance's module.
        authenticators: modules that make the link's credentials at each of the addresses, where
            they differ: one for each address, None for an address at which the link sends none.
            `authenticator` is then for a connection that the other side made.
        starts_downgraded: whether the instance begins with this destination downgraded by hand,
            because the servers of the destination are stopped on purpose.
    """

    name: str
    group: str
    sync: bool = True
    addresses: tuple[str, ...] = ()
    topics: tuple[TopicRule, ...] = (TopicRule(".*"),)
    pass_through: str | None = None
    compression: bool = False
    ack_conflation_ms: int = 0
    client_addresses: tuple[str, ...] = ()
    window_bytes: int = 8 * 1024 * 1024
    heartbeat_ms: int = LINK_HEARTBEAT_MS_DEFAULT
    timeout_ms: int = LINK_TIMEOUT_MS_DEFAULT
    retry_ms_min: int = RETRY_MS_MIN_DEFAULT
    retry_ms_max: int = RETRY_MS_MAX_DEFAULT
    own_group_only: bool = False
    server_names: tuple[str, ...] = ()
    compression_type: str = ZSTD
    resync_pass_through: str | None = None
    reconnect_timeout_ms: tuple[int, ...] = ()
    share_connection: bool = False
    wide_ip: bool | None = None
    waits: bool = False
    waits_for: tuple[str, ...] = ()
    tls: TlsConfig | None = None
    authenticator: ModuleConfig | None = None
    authenticators: tuple[ModuleConfig | None, ...] = ()
    starts_downgraded: bool = False

    def authenticator_of(self, server: int) -> ModuleConfig | None:
        """Returns the link's credentials for one of the servers, by its place in `addresses`."""
        return self.authenticators[server] if self.authenticators else self.authenticator

    def reconnect_timeouts_s(self) -> tuple[float | None, ...]:
        """Returns the seconds for which each address is tried; None: until the attempt ends by
        itself."""
        given = self.reconnect_timeout_ms
        if len(given) == 1:
            given = given * len(self.addresses)
        return tuple(ms / 1000 for ms in given) or (None,) * len(self.addresses)

    def destination(self) -> DestinationRoute:
        derived = {
            "addresses": self.addresses or self.server_names,
            "dials": bool(self.addresses),
            "wide_ip": not self.server_names if self.wide_ip is None else self.wide_ip,
        }
        names = [each.name for each in fields(DestinationRoute) if each.name not in derived]
        return DestinationRoute(**{name: getattr(self, name) for name in names} | derived)

    def check(self, where: str) -> None:
        """Raises ConfigurationError where values do not fit together."""
        where = f"{where}: Destination {self.name!r}"
        if self.tls is not None:
            self.tls.check(where, serves=False)
        if self.compression_type not in COMPRESSION_TYPES:
            raise ConfigurationError(
                f"{where}: no CompressionType {self.compression_type!r}: give zstd or zlib"
            )
        timeouts, count = self.reconnect_timeout_ms, len(self.addresses)
        if len(timeouts) not in (0, 1, count) or min(timeouts, default=1) < 1:
            raise ConfigurationError(
                f"{where}: ReconnectTimeout {timeouts}: give one positive time, or one for each of "
                f"{count} addresses"
            )
        for rule in self.topics:
            check_rule(rule, where)
        for address in (*self.addresses, *self.client_addresses):
            split_address(address)


@dataclass(slots=True)
class InstanceConfig(JsonText):
    """The configuration of one instance. A port of 0 stands for any free port, chosen at the first
    start and kept from then on.

    Attributes:
        topics: topics that are in the transaction log.
        unjournaled: topics that are declared as not journaled: their messages are delivered to live
            subscribers, and a publish to a topic that is neither journaled nor declared is refused.
            None: messages of all topics that are not journaled are delivered to live subscribers.
        sow: SOW topics, in the order in which a name is looked up.
        views: views over them, each behind those that it is over.
        conflated_topics: conflated topics over both, each behind those that it is over.
        queue_definitions: queues that the instance runs.
        type_definitions: message types that are defined besides the built-in ones.
        client_transports: transports for clients, at least one.
        replication_transports: transports for other instances. Empty: the instance listens nowhere
            for links, and only replicates to others.
        first: whether an instance with an empty data directory admits clients at once, without a
            peer to catch up with.
        direct_links: whether links that have caught up hand their connections over to the instance.
        client_buffer_bytes_max: most bytes of memory for the rows of one query that asks for an
            order.
        staged_bytes_max: bytes waiting for the disk beyond which the instance reads no more from
            publishers.
        metrics_port: port at which Prometheus reads metrics; 0: any free one; None: no metrics.
        bootstrap: sources from which an empty data directory is filled before the instance serves.
        generation: number of times that the instance was moved
            (replication/membership/placement.py).
        placements: places of instances that were moved, as far as the fabric's record knows them:
            name, generation, replication address and client address of each.
        announce_to: replication addresses that are told where this instance lives now, if it was
            moved or has another address than its configuration says.
        node_address: address of the instance's node, where the instance listens on it; if the node
            comes back with another address, the instance listens on that one
            (services/server/links/node_address.py). Empty: its hosts are configured.
        drills: whether drills may break the instance (docs/drills.md).
        authentication: module that decides which clients are let in; None: all clients are.
        entitlement: module that decides what clients may do; None: they may do everything.
        admin: modules that decide which users may control the instance; None: every user that can
            call it.
        interface: settings of the administrator's interface over HTTP; None: the instance has none.
        announce_tls: TLS settings with which the addresses of `announce_to` are dialled; None:
            without TLS.
        capacity: limits on the messages that wait for clients that do not read; None: the default
            limits.
        replication_authentication, replication_entitlement: the same modules for links, on
            replication transports.
        authenticator: module that makes the credentials of the instance and its links; None: they
            send none.
        sow_stats_interval_ms: milliseconds between two counts of the records in its SOW topics on
            `/AMPS/SOWStats`; 0: they are not counted.
        fabric_key: key by which the instance proves to other instances that it is of their fabric
            (protocol/link/proof.py); empty: it cannot prove that, and accepts no such proof from an
            instance that connects to it.
        actions: actions of the instance, in the order of the file, which a process beside it
            performs. Schedules of downgrades and of old journal are in `policy` and `journal`.
    """

    name: str
    group: str
    topics: tuple[TopicRule, ...] = (TopicRule(".*"),)
    destinations: tuple[DestinationConfig, ...] = ()
    client_transports: tuple[TransportConfig, ...] = (TransportConfig(CLIENT_TRANSPORT),)
    replication_transports: tuple[TransportConfig, ...] = (TransportConfig(REPLICATION_TRANSPORT),)
    first: bool = False
    journal: JournalConfig = field(default_factory=JournalConfig)
    storage_bytes_max: int | None = None
    policy: DowngradePolicy = field(default_factory=DowngradePolicy)
    client_buffer_bytes_max: int = CLIENT_BUFFER_BYTES_MAX_DEFAULT
    staged_bytes_max: int = STAGED_BYTES_MAX_DEFAULT
    tracing: TracingOptions = field(default_factory=TracingOptions)
    log: LogOptions = field(default_factory=LogOptions)
    metrics_port: int | None = None
    metrics_host: str = "127.0.0.1"
    bootstrap: BootstrapConfig | None = None
    generation: int = 0
    placements: tuple[tuple[str, int, str, str], ...] = ()
    announce_to: tuple[str, ...] = ()
    drills: bool = False
    node_address: str = ""
    authentication: ModuleConfig | None = None
    entitlement: ModuleConfig | None = None
    announce_tls: TlsConfig | None = None
    replication_authentication: ModuleConfig | None = None
    replication_entitlement: ModuleConfig | None = None
    authenticator: ModuleConfig | None = None
    admin: AdminConfig | None = None
    interface: AdminInterfaceConfig | None = None
    fabric_key: str = ""
    direct_links: bool = True
    unjournaled: tuple[TopicRule, ...] | None = None
    type_definitions: tuple[TypeDefinition, ...] = ()
    sow: tuple[SowTopicDefinition, ...] = ()
    views: tuple[ViewDefinition, ...] = ()
    conflated_topics: tuple[ConflatedTopicDefinition, ...] = ()
    queue_definitions: tuple[RunQueue, ...] = ()
    capacity: CapacityConfig | None = None
    actions: tuple[ActionDefinition, ...] = ()
    sow_stats_interval_ms: int = 0

    def computed_topics(self) -> tuple[TopicRule, ...]:
        """Returns the topics whose records the instance computes, and to which nobody publishes."""
        names = [(each.name, each.message_type) for each in self.views]
        names += [(each.name, each.message_type) for each in self.conflated_topics]
        names += [
            (each.pattern, each.message_type) for each in self.conflated_topics if each.pattern
        ]
        return tuple(TopicRule(*each) for each in names)

    @property
    def transports(self) -> tuple[TransportConfig, ...]:
        """Returns all transports of the instance, those for clients first."""
        return self.client_transports + self.replication_transports

    def check(self) -> None:
        """Raises ConfigurationError where values do not fit together."""
        if not self.name:
            raise ConfigurationError("an instance needs a name")
        self.journal.check(self.name)
        names = [destination.name for destination in self.destinations]
        for name in names:
            if names.count(name) > 1:
                raise ConfigurationError(f"{self.name}: two destinations are called {name!r}")
        if not self.client_transports:
            raise ConfigurationError(f"{self.name} has no transport for clients: give it one")
        transports = [each.name for each in self.transports]
        for name in transports:
            if not name or transports.count(name) > 1:
                raise ConfigurationError(
                    f"{self.name}: transports are called {', '.join(map(repr, transports))}:"
                    " give each a name of its own"
                )
        for transport in self.transports:
            transport.check(self.name)
        if self.capacity is not None:
            self.capacity.check(self.name)
        if self.admin is not None:
            check_admin(*self.for_control(), self.name)
        if self.interface is not None:
            self.interface.check(self.name)
        self.policy.check()
        if self.actions:
            # Without actions, the table of modules is not loaded: most instances have none.
            from raylay.services.actions.checks import check_actions

            check_actions(self.actions, self.name)
        if self.bootstrap is not None:
            if not self.bootstrap.sources:
                raise ConfigurationError(
                    f"{self.name}: Bootstrap names no source: give at least one address"
                )
            for source in self.bootstrap.sources:
                split_address(source)
            TopicMatcher(self.bootstrap.topics, f"{self.name}: Bootstrap Topic")
        for destination in self.destinations:
            destination.check(self.name)

    def for_control(self) -> tuple[ModuleConfig | None, ModuleConfig | None]:
        """Returns the authentication and the entitlement module for users that control the
        instance: those of `admin`, or else those for clients. They are not asked if the instance
        has no `admin`."""
        admin = self.admin or AdminConfig()
        return (
            admin.authentication or self.authentication,
            admin.entitlement or self.entitlement,
        )

    def dialled_at(self, address: str) -> tuple[TlsConfig | None, ModuleConfig | None]:
        """Returns the TLS settings and the authenticator for dialling a replication transport:
        those of the destination whose address it is, else the instance's own.

        Returns:
            TLS (None: without) and the authenticator (None: nothing is said).
        """
        for each in self.destinations:
            if address in each.addresses:
                own = each.authenticator_of(each.addresses.index(address))
                return each.tls, own or self.authenticator
        return self.announce_tls, self.authenticator

    def save(self, directory: Path) -> None:
        """Writes `instance.json`, whole or not at all; it is on the disk when this returns."""
        make_directory(directory)
        # Its owner alone may read it: it has the key of the fabric.
        write_durably(directory / INSTANCE_FILE, self.to_json().encode("utf-8"))

    @classmethod
    def load(cls, directory: Path) -> InstanceConfig:
        """Reads `instance.json` in a data directory.

        Raises:
            ConfigurationError: the file does not exist, or its content is wrong.
        """
        path = directory / INSTANCE_FILE
        try:
            text = path.read_text(encoding="utf-8")
        except OSError as error:
            raise ConfigurationError(f"{path} cannot be read: {error.strerror}") from None
        return cls.from_json(text, str(path))


@dataclass(slots=True)
class LinkConfig(JsonText):
    """The values that an instance gives to one start of a link.

    Attributes:
        start_number: number of this start, never used twice; the instance talks to the link of the
            last start only.
        address: address at which other instances reach this instance's replication transport;
            empty: not known.
        drills: whether drills may disturb the link's connection to the destination.
        type_definitions: message types besides the built-in ones, which content filters read.
    """

    instance: str
    group: str
    incarnation: int
    start_number: int
    unix_path: str
    journal_directory: str
    archive_directory: str | None
    destination: DestinationConfig
    tracing: TracingOptions = field(default_factory=TracingOptions)
    log: LogOptions = field(default_factory=LogOptions)
    address: str = ""
    drills: bool = False
    type_definitions: tuple[TypeDefinition, ...] = ()

    @property
    def process_name(self) -> str:
        """Returns the name of the process in logs, traces and status: `Instance→Destination`, with
        a dot in place of the arrow."""
        return f"{self.instance}.{self.destination.name}"


@dataclass(slots=True)
class QueueOwnerConfig(JsonText):
    """The values that an instance gives to one start of a queue's owner.

    Attributes:
        life: random bits that tell one life of the instance's process from another.
        start_number: number of this start, never used twice in that life; the instance talks to the
            owner of the last start only.
        store_path: file in which the owner keeps its state.
        type_definitions: message types besides the built-in ones, which filters read.
    """

    instance: str
    group: str
    incarnation: int
    life: int
    start_number: int
    unix_path: str
    journal_directory: str
    archive_directory: str | None
    store_path: str
    definition: RunQueue
    tracing: TracingOptions = field(default_factory=TracingOptions)
    log: LogOptions = field(default_factory=LogOptions)
    type_definitions: tuple[TypeDefinition, ...] = ()

    @property
    def process_name(self) -> str:
        """Returns the name of the process in logs, traces and status."""
        return f"{self.instance}.{self.definition.name}"


def reachable(address: str) -> str:
    """Returns an address if others can dial it; empty where there is none, and for a server that
    listens on every address of its host."""
    if not address:
        return ""
    host, _ = split_address(address)
    return "" if host in ("0.0.0.0", "::", "*") else address


def split_address(address: str) -> tuple[str, int]:
    """Returns the host and the port of `host:port`; an IPv6 host stands in brackets.

    Raises:
        ConfigurationError: the text is no such address.
    """
    host, colon, port = address.rpartition(":")
    if not colon or not port.isdigit() or not 0 <= int(port) < 65536:
        raise ConfigurationError(f"address {address!r} is not of the form host:port")
    return host.strip("[]") or "127.0.0.1", int(port)
