"""The configuration of an instance and its links: plain values, kept in the data directory.

`instance.json` lies in the data directory, so that a restart needs no driver. Everything here is
checked when the instance starts; a wrong value is a ConfigurationError that names it.
"""

from __future__ import annotations

from dataclasses import dataclass, field, fields
from pathlib import Path

from raylay.services.capacity.config import CapacityConfig
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
from raylay.storage.files import make_directory, write_durably

INSTANCE_FILE = "instance.json"
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
        addresses: `host:port` of replication transports, in priority order. None: it does not dial,
            and waits until one of its servers connects.
        client_addresses: `host:port` for clients of the same servers, told to clients as peers
            until the connected server has named its own.
        server_names: names of the same servers; empty: they are not known.
        window_bytes: sent and not yet stored there, at most.
        heartbeat_ms, timeout_ms: a beat when nothing else was sent for so long; the connection
            ends when nothing came for so long. The other side beats each second
            (`upstream_connection.BEAT_S`): with a shorter time-out none lasts that is idle.
        compression_type: `zstd` or `zlib`, of batches that are sent compressed.
        reconnect_timeout_ms: how long an address is tried before the next: none, one for all, or
            one for each.
        share_connection: a connection that one of the servers made is used before any is dialled.
        wide_ip: whether several servers may answer at one of the addresses. None: they may where
            the names of the servers are not known.
        waits, waits_for: beside dialling it takes a connection that a server made which it does not
            dial: one of these names; none: the one that bears its name, else any of the group that
            no other destination names.
        retry_ms_min, retry_ms_max: pause after all addresses failed; doubles up to the maximum.
        tls: how it is dialled; None: without TLS.
        authenticator: what its link says of itself there; None: as the instance does.
        authenticators: What its link says at each of the addresses, where they differ: one for each
            address, None for an address at which it says nothing. `authenticator` then is what it
            says over a connection that the other side made.
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

    def authenticator_of(self, server: int) -> ModuleConfig | None:
        """Returns the link's credentials for one of the servers, by its place in `addresses`."""
        return self.authenticators[server] if self.authenticators else self.authenticator

    def reconnect_timeouts_s(self) -> tuple[float | None, ...]:
        """Time for which each address is tried; None: until the attempt ends by itself."""
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
    """One instance. Ports of 0 take any free one at the first start and keep it from then on.

    Attributes:
        topics: which topics are in the transaction log.
        unjournaled: which are declared as being in none: they are delivered to live subscribers.
            A publish to any other topic is refused. None: all others are delivered so.
        sow: topics whose last message of each key is kept, in the order in which a name is looked
            for.
        queue_definitions: the queues that it runs.
        type_definitions: message types of names of their own.
        client_transports: its transports for clients, at least one.
        replication_transports: its transports for other instances. Without one it listens nowhere
            for links, and replicates to others only.
        first: an empty data directory admits clients at once, without a peer to catch up with.
        direct_links: whether links that have caught up hand it their connections.
        client_buffer_bytes_max: that the rows of one query in order may take in memory.
        staged_bytes_max: bytes waiting for the disk, then publishers are read no further.
        metrics_port: Prometheus port, 0: any free one, None: off.
        bootstrap: where an empty data directory is filled from before the instance serves.
        generation: how often the instance was moved (replication/membership/placement.py).
        placements: of instances that were moved, as far as the fabric's record knows: name,
            generation, replication address and client address each.
        announce_to: replication addresses that are told where this instance lives now, if it was
            moved or has another address than its configuration says.
        node_address: its node's, where it listens there; where the node comes back with another
            one, the instance follows (services/server/links/node_address.py). Empty: it was given
            its hosts.
        drills: whether drills may break it (docs/drills.md).
        authentication: the module that says who a client is; None: everybody is let in.
        entitlement: the module that says what he may do; None: everything.
        admin: who may control the instance; None: whoever can call it.
        announce_tls: how `announce_to` is dialled; None: without TLS.
        capacity: what waits for clients that do not read; None: the defaults.
        replication_authentication, replication_entitlement: of replication transports.
        authenticator: what the instance and its links say of themselves to others; None: nothing.
        fabric_key: that proves to other instances that this one is of their fabric
            (protocol/link/proof.py); empty: it cannot, and believes nobody that connects to it.
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
    fabric_key: str = ""
    direct_links: bool = True
    unjournaled: tuple[TopicRule, ...] | None = None
    type_definitions: tuple[TypeDefinition, ...] = ()
    sow: tuple[SowTopicDefinition, ...] = ()
    queue_definitions: tuple[RunQueue, ...] = ()
    capacity: CapacityConfig | None = None

    @property
    def transports(self) -> tuple[TransportConfig, ...]:
        """All its transports, those for clients first."""
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
        self.policy.check()
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
        """The modules that say who controls it, and what he may do: its `admin`'s, else those of
        its clients. Nobody asks them where there is no `admin`."""
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
        """Reads `instance.json`.

        Raises:
            ConfigurationError: there is none, or it is wrong.
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
        start_number: of this start, never used twice; the instance talks to the link of the last
            start only.
        address: where others reach the instance's replication transport; empty: not known.
        drills: whether its line to the destination can be made a bad one.
        type_definitions: message types of names of their own, that content filters read.
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
        """The name of the process in logs, traces and status: `Instance→Destination` without the
        arrow."""
        return f"{self.instance}.{self.destination.name}"


@dataclass(slots=True)
class QueueOwnerConfig(JsonText):
    """The values that an instance gives to one start of a queue's owner.

    Attributes:
        life: of the instance's process: random bits.
        start_number: of this start, never used twice in that life; the instance talks to the owner
            of the last start only.
        store_path: the file that it keeps its state in.
        type_definitions: message types of names of their own, that filters read.
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
        """The name of the process in logs, traces and status."""
        return f"{self.instance}.{self.definition.name}"


def reachable(address: str) -> str:
    """Returns an address if others can dial it; empty where there is none, and for a server that
    listens on every address of its host."""
    if not address:
        return ""
    host, _ = split_address(address)
    return "" if host in ("0.0.0.0", "::", "*") else address


def split_address(address: str) -> tuple[str, int]:
    """Host and port of `host:port`; an IPv6 host stands in brackets.

    Raises:
        ConfigurationError: it is none.
    """
    host, colon, port = address.rpartition(":")
    if not colon or not port.isdigit() or not 0 <= int(port) < 65536:
        raise ConfigurationError(f"address {address!r} is not of the form host:port")
    return host.strip("[]") or "127.0.0.1", int(port)
