"""The model of a fabric: what is declared, checked and completed. Immutable.

Names in files have no units (`segment_size: 64MiB`), attributes have them (`segment_bytes`).
The checks that need the whole fabric are in `topology.py`.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import PurePath
from typing import Annotated, Any, Literal, Self

from pydantic import (
    AfterValidator,
    Field,
    model_validator,
)

from raylay.services.actions.model import ActionDefinition
from raylay.services.config.journal import JournalConfig
from raylay.services.configuration.actions import ActionSettings, definitions
from raylay.services.configuration.admin import MODULES as ADMIN_MODULES
from raylay.services.configuration.admin import AdminSettings
from raylay.services.configuration.fields import (
    MESSAGE_TYPE_LENGTH_MAX,
    MessageType,
    Name,
    Pattern,
    Port,
    Section,
    TopicName,
    refusals,
)
from raylay.services.configuration.message_types import check_types
from raylay.services.configuration.queues import QueueSettings
from raylay.services.configuration.security import Module
from raylay.services.configuration.sow_topics import SowTopicSettings
from raylay.services.configuration.transports import (
    Capacity,
    FirstReplicationSettings,
    FirstTransportSettings,
    ReplicationTransportSettings,
    Tls,
    TlsChoice,
    TransportSettings,
)
from raylay.services.configuration.views import ConflatedTopicSettings, ViewSettings
from raylay.services.errors import ConfigurationError
from raylay.services.messages.spelling import did_you_mean
from raylay.services.messages.topics import (
    TopicMatcher,
    TopicRule,
)
from raylay.services.messages.types.definitions import TypeDefinition
from raylay.services.messages.units import Bytes, Milliseconds
from raylay.services.queues.definition import QueueDefinition
from raylay.services.replication.downgrade import DowngradePolicy
from raylay.services.replication.membership.validation import ALWAYS_CHECKED, CHECKS
from raylay.services.sow.definition import SowTopicDefinition
from raylay.services.telemetry.log_options import (
    FILE_TARGETS,
    ROTATION_BYTES_DEFAULT,
    SYSLOG_SOCKET,
    LogTarget,
)
from raylay.services.views.definition import ConflatedTopicDefinition, ViewDefinition


def _checks(value: tuple[str, ...]) -> tuple[str, ...]:
    for name in value:
        if name not in CHECKS:
            raise ValueError(f"no check is called {name!r}: the checks are {', '.join(CHECKS)}")
    return value


def _excludable_checks(value: tuple[str, ...]) -> tuple[str, ...]:
    for name in _checks(value):
        if name in ALWAYS_CHECKED:
            raise ValueError(f"the check {name} cannot be excluded: take it out")
    return value


Checks = Annotated[tuple[str, ...], AfterValidator(_checks)]
SowStatsInterval = Annotated[Milliseconds, Field(ge=100)]
"""Milliseconds between two counts of the records in SOW topics (docs/events.md)."""
ExcludableChecks = Annotated[tuple[str, ...], AfterValidator(_excludable_checks)]


class TopicSettings(Section):
    """A topic, or with a regular expression several, and whether they are journaled.

    What only entries that are not journaled match is delivered, but neither stored nor replicated;
    a publish to anything else is refused.
    """

    name: TopicName
    message_type: MessageType = "*"
    journaled: bool = True
    filter: str = ""
    """Content filter of a destination's topic (docs/filters.md): only messages that pass it are
    sent to the destination."""
    include_validation: Checks | None = None
    """Checks of a destination's topic when a link connects. None: all checks."""
    exclude_validation: ExcludableChecks | None = None
    """Checks that are left out for a destination's topic. None: the checks that the destination
    leaves out."""

    def rule(self) -> TopicRule:
        """Returns the name and message type as an instance compares them."""
        return TopicRule(self.name, self.message_type)

    @model_validator(mode="before")
    @classmethod
    def _from_text(cls, value: Any) -> Any:
        return {"name": value} if isinstance(value, str) else value


def _named(value: TypeDefinition) -> TypeDefinition:
    if not 0 < len(value.name) <= MESSAGE_TYPE_LENGTH_MAX:
        raise ValueError(f"expected a name of 1 to {MESSAGE_TYPE_LENGTH_MAX} characters")
    if not value.kind:
        raise ValueError("expected a kind, such as fix")
    return value


def _usable(value: tuple[TypeDefinition, ...]) -> tuple[TypeDefinition, ...]:
    try:
        check_types(value)
    except ConfigurationError as error:
        raise ValueError(str(error)) from None
    return value


DefinedTypes = Annotated[
    tuple[Annotated[TypeDefinition, AfterValidator(_named)], ...], AfterValidator(_usable)
]


def _downgrade(value: DowngradePolicy) -> DowngradePolicy:
    with refusals():
        value.check()
    return value


Downgrade = Annotated[DowngradePolicy, AfterValidator(_downgrade)]
"""The conditions under which a sync destination is treated as async, so that publishers are
answered without it."""


class _DowngradeSection(Section):
    downgrade: Downgrade


def downgrade_of(values: Mapping[str, Any]) -> DowngradePolicy:
    """Returns the policy that the values in the section `downgrade` of a file make."""
    return _DowngradeSection.model_validate({"downgrade": values}).downgrade


class DestinationChoices(Section):
    """The settings of a destination that a script and a link of a file share."""

    topics: tuple[TopicSettings, ...] = (TopicSettings(name=".*"),)
    pass_through: Pattern | None = None
    """Pattern for the group of the direct sender. None: only messages that clients published at
    this instance are sent."""
    own_group_only: bool = False
    """Whether only messages that were published in the instance's own group are sent, even where
    PassThrough matches other groups."""
    exclude_validation: ExcludableChecks | None = None
    """Checks that are left out when a link connects, for topics that name none themselves. None:
    the checks that the fabric's shape makes impossible (exclusions.py)."""
    resync_pass_through: Pattern | None = None
    """Pattern for groups whose messages are passed on in addition while the link catches up after a
    connect. None: no others."""
    compression: bool = False
    compression_type: Literal["zstd", "zlib"] = "zstd"
    reconnect_timeout_ms: tuple[Milliseconds, ...] = ()
    """Time for which an address is tried before the next: none, one for all, or one for each."""
    ack_conflation_ms: Milliseconds = 0
    dial: bool = True
    """Whether the link dials. False: it waits until one of the destination's instances connects to
    this one, and pushes over that connection."""
    share_connection: bool = False
    """Whether the link uses a connection that one of the destination's instances made, if there is
    one, before it dials."""
    wide_ip: bool | None = None
    """Whether several servers may answer at one of the destination's addresses. None: they may
    where one is an address of another fabric, whose instances are not known."""
    waits: bool = False
    """Whether the link, besides dialling, also waits for a server of the group that it does not
    dial, and pushes over the connection that this server makes."""
    waits_for: tuple[Name, ...] = ()
    """Names of the servers that `waits` waits for. Empty: the server with the destination's name,
    else any server of the group that no other destination names."""
    tls: TlsChoice = None
    """TLS settings of the connections that the link dials. None: the instance's settings, if the
    server that is dialled has TLS."""
    authenticator: Module | None = None
    """Module that makes the link's credentials. None: the instance's module."""


class _To(Section):
    name: Name
    group: str
    to: tuple[str, ...]
    """Instances in order of priority: names of this fabric, or `host:port` of another one. Empty,
    for a destination that does not dial: any instance of the group."""
    sync: bool = False


class DestinationSettings(DestinationChoices, _To):
    """One destination of an instance."""

    authenticators: tuple[Module | None, ...] = ()
    """Authenticators for each server of `to`, where they differ. Empty: `authenticator` for all."""


class LogTargetSettings(Section):
    """A target of logs, and the events that go there (docs/logging.md)."""

    level: str = "info"
    target: str = "stderr"
    directory: str = ""
    """Directory of the target's files, below the fabric's. Empty: `logs`."""
    format: str = "text"
    rotation_bytes: Bytes = ROTATION_BYTES_DEFAULT
    """Size of a file after which the next one begins; 0: never."""
    kept_bytes: Bytes | None = None
    """Size of all files of a process, above which the oldest are removed; 0: none is removed. None:
    four times `rotation`."""
    file_name: str = ""
    """Mask of the files' names. Empty: `PROCESS-PID.log`."""
    levels: tuple[str, ...] = ()
    include: tuple[str, ...] = ()
    exclude: tuple[str, ...] = ()
    ident: str = ""
    options: tuple[str, ...] = ()
    facility: str = "LOG_USER"
    socket: str = SYSLOG_SOCKET

    def target_in(self, directory: str) -> LogTarget:
        """Returns the target of a process.

        Args:
            directory: the fabric's.

        Raises:
            ConfigurationError: a value is wrong.
        """
        folder = self.directory or ("logs" if self.target in FILE_TARGETS else "")
        place = str(PurePath(directory) / folder) if folder else ""
        return LogTarget(**self.shared_with(LogTarget) | {"directory": place})

    @model_validator(mode="after")
    def _fits(self) -> Self:
        try:
            self.target_in(".")
        except ConfigurationError as error:
            raise ValueError(str(error)) from None
        return self


class LogSettings(LogTargetSettings):
    """The logs of the fabric's processes: the options of one target, and further targets; or a list
    of targets."""

    also: tuple[LogTargetSettings, ...] = ()

    @model_validator(mode="before")
    @classmethod
    def _from_list(cls, value: Any) -> Any:
        if not isinstance(value, list | tuple):
            return value
        if not value:
            return {"target": "none"}
        first, *others = value
        if not isinstance(first, Mapping):
            raise ValueError("expected a list of targets, each with its options")
        return {**first, "also": others}

    @property
    def targets(self) -> tuple[LogTargetSettings, ...]:
        """Returns every target of the log: this one, then those of `also`."""
        return (self, *self.also)


def _of_all_instances(logs: LogSettings) -> LogSettings:
    for target in logs.targets:
        if target.file_name and "%p" not in target.file_name:
            raise ValueError(
                f"{target.file_name} would be the file of all instances: write %p where the "
                "process's name belongs"
            )
    return logs


class BootstrapSettings(Section):
    """The sources from which an instance copies its log before it serves, when its data directory
    is empty."""

    sources: Annotated[tuple[str, ...], Field(min_length=1)]
    """Sources in order of priority: names of this fabric, or `host:port` of replication
    transports."""
    topics: tuple[TopicSettings, ...] = ()
    """Topics that are copied, of those that the instance journals. Empty: all of them."""
    tls: TlsChoice = None
    """TLS settings of the connections that the bootstrap dials. None: the instance's settings, if
    the server that is dialled has TLS."""
    authenticator: Module | None = None
    """Module that makes the bootstrap's credentials. None: the instance's module."""
    authenticators: tuple[Module | None, ...] = ()
    """Authenticators for each of the sources, where they differ. Empty: `authenticator` for all."""


class InstanceChoices(Section):
    """The settings of an instance that a script and a file share."""

    host: Annotated[str, Field(min_length=1)] = "127.0.0.1"
    client_port: Port = 0
    replication_port: Port = 0
    accepts_links: bool = True
    """Whether other instances may connect. False: the instance has no replication transport, and
    listens nowhere for links."""
    message_types: tuple[MessageType, ...] = ()
    """Message types that `client_port` takes; messages of other types are refused there. Empty: any
    type."""
    tls: TlsChoice = None
    """TLS settings of the instance's transports and of the connections that it dials, unless they
    have their own. None: the fabric's settings."""
    replication_transport: FirstReplicationSettings | None = None
    """Further settings of the transport of `replication_port`."""
    client_transport: FirstTransportSettings | None = None
    """Further settings of the transport of `client_port`."""
    transports: tuple[TransportSettings, ...] = ()
    """Transports for clients, besides the one of `client_port`."""
    replication_transports: tuple[ReplicationTransportSettings, ...] = ()
    """Transports for other instances, besides the one of `replication_port`."""
    metrics_port: Port | None = None
    """Port at which Prometheus reads the instance's metrics. None: a free one is chosen if the
    fabric's metrics are enabled."""
    directory: str = ""
    """Data directory of the instance. Empty: a folder with the instance's name in the fabric's
    directory."""
    node_labels: dict[str, str] = Field(default={})
    """Labels of the Ray node that holds the instance's data. Empty: any node."""
    journal: JournalConfig | None = None
    downgrade: Downgrade | None = None
    topics: tuple[TopicSettings, ...] | None = None
    """Topics in the instance's transaction log. None: the fabric's topics."""
    replication_host: str = ""
    """Host to which other instances connect; empty: `host`."""
    logs: LogSettings | None = None
    authentication: Module | None = None
    """Module that decides which clients the instance's transports let in. None: the fabric's
    module."""
    entitlement: Module | None = None
    """Module that decides what clients may do. None: the fabric's module."""
    replication_authentication: Module | None = None
    """Module that decides which links the instance's replication transports let in. None: the
    fabric's module."""
    replication_entitlement: Module | None = None
    """Module that decides which messages links may bring. None: the fabric's module."""
    authenticator: Module | None = None
    """Module that makes the credentials of the instance and its links. None: the fabric's
    module."""
    admin: AdminSettings | None = None
    """The administrator's access to the instance. What it leaves out is the fabric's."""
    capacity: Capacity | None = None
    """Limits on the messages that wait for the instance's clients. A limit that is left out is the
    fabric's."""
    bootstrap: BootstrapSettings | None = None
    sow_topics: tuple[SowTopicSettings, ...] | None = None
    """SOW topics of the instance. None: the fabric's SOW topics."""
    views: tuple[ViewSettings, ...] | None = None
    """Views of the instance. None: the fabric's views."""
    conflated_topics: tuple[ConflatedTopicSettings, ...] | None = None
    """Conflated topics of the instance. None: the fabric's conflated topics."""
    queues: tuple[QueueSettings, ...] | None = None
    """Queues of the instance. None: the fabric's queues."""
    actions: tuple[ActionSettings, ...] | None = None
    """Actions of the instance. None: the fabric's actions."""
    sow_stats_interval_ms: SowStatsInterval | None = None
    """Milliseconds between two messages about each SOW topic on `/AMPS/SOWStats`. None: as the
    fabric says."""


class _Member(Section):
    name: Name
    group: Name


class InstanceSettings(InstanceChoices, _Member):
    """The settings of one instance."""

    defined_types: DefinedTypes | None = None
    """Message types that are defined for the instance. None: the fabric's."""
    destinations: tuple[DestinationSettings, ...] = ()

    def for_clients(self) -> tuple[TransportSettings, ...]:
        """Returns all transports for clients, the one of `client_port` first."""
        # Its values were validated: to build another validator would take 5 ms.
        own = self.client_transport or FirstTransportSettings.model_construct()
        first = TransportSettings.model_construct(
            **dict(own), port=self.client_port, message_types=self.message_types
        )
        return tuple(each.listening_at(self.host) for each in (first, *self.transports))

    def for_instances(self) -> tuple[ReplicationTransportSettings, ...]:
        """Returns all transports for other instances, the one of `replication_port` first; none
        where the instance accepts no links."""
        if not self.accepts_links:
            return ()
        own = self.replication_transport or FirstReplicationSettings.model_construct()
        first = ReplicationTransportSettings.model_construct(
            **dict(own), port=self.replication_port
        )
        host = self.replication_host or self.host
        return tuple(each.listening_at(host) for each in (first, *self.replication_transports))


class TracingSettings(Section):
    """Traces of sampled messages; without an exporter nothing is traced."""

    sampling_ratio: Annotated[float, Field(ge=0.0, le=1.0)] = 0.001
    otlp_endpoint: str = ""
    console: bool = False
    directory: str = ""
    """Directory of trace files. A relative path is taken from the fabric's directory."""


class MetricsSettings(Section):
    """The settings of the metrics for Prometheus. Each instance has a port of its own."""

    enabled: bool = False
    """Whether every instance offers metrics. Free ports are chosen for instances that name none."""


class ClientSettings(Section):
    """The initial settings of clients made by `Fabric.client`."""

    heartbeat_ms: Milliseconds = 5_000
    ack_conflation_ms: Milliseconds = 0
    publish_timeout_ms: Milliseconds = 30_000
    tls: TlsChoice = None
    """TLS settings of clients. None: TLS with the CA of the fabric's `tls`, if the fabric has
    one."""


class FabricChoices(Section):
    """The settings of a whole fabric that a script and a file share."""

    topics: tuple[TopicSettings, ...] = (TopicSettings(name=".*"),)
    message_types: DefinedTypes = ()
    """Message types that are defined for the fabric, besides the built-in ones."""
    sow_topics: tuple[SowTopicSettings, ...] = ()
    """SOW topics, in the order in which patterns and names are looked up."""
    views: tuple[ViewSettings, ...] = ()
    """Views, each behind those that it is over."""
    conflated_topics: tuple[ConflatedTopicSettings, ...] = ()
    """Conflated topics, each behind those that it is over."""
    queues: tuple[QueueSettings, ...] = ()
    actions: tuple[ActionSettings, ...] = ()
    """Actions: the steps that each instance performs by itself when something happens
    (docs/actions.md)."""
    sow_stats_interval_ms: SowStatsInterval | None = None
    """Milliseconds between two messages about each SOW topic on `/AMPS/SOWStats`. None: there are
    no such messages."""
    journal: JournalConfig = JournalConfig()
    downgrade: Downgrade = DowngradePolicy()
    tracing: TracingSettings = TracingSettings()
    metrics: MetricsSettings = MetricsSettings()
    logs: Annotated[LogSettings, AfterValidator(_of_all_instances)] = LogSettings()
    client: ClientSettings = ClientSettings()
    tls: Tls | None = None
    """TLS settings of all instances that have none of their own. `{instance}` in a path is the
    instance's name."""
    drills: Literal["refused", "allowed"] = "refused"
    """Whether drills may break the fabric while it runs (docs/drills.md)."""
    unauthenticated: Literal["refused", "allowed"] = "refused"
    """Whether a transport that other hosts can reach may let in every client or link."""
    authentication: Module | None = None
    """Module that decides which clients are let in. None: all clients."""
    entitlement: Module | None = None
    """Module that decides what clients may do. None: clients may do everything."""
    replication_authentication: Module | None = None
    """Module that decides which links are let in. None: all links."""
    replication_entitlement: Module | None = None
    """Module that decides which messages links may bring. None: all messages."""
    authenticator: Module | None = None
    """Module that makes the credentials of instances and their links. None: no module."""
    admin: AdminSettings | None = None
    """The administrator's access to instances: modules that decide which users may control them,
    and the interface over HTTP. None: every user that can call the instances may control them, and
    they have no interface."""
    capacity: Capacity | None = None
    """Limits on the messages that wait for the clients of an instance. None: the default limits."""
    direct_links: bool = True
    """Whether links that have caught up hand their connections over to their instances."""
    relocate_after_ms: Annotated[Milliseconds, Field(gt=0)] | None = Field(
        default=None, alias="relocate_after"
    )
    """Milliseconds for which an instance's host must be away until `raylay watch` moves the
    instance. None: instances are moved by hand only."""


class _NamedSection(Section):
    name: Name


class FabricSettings(FabricChoices, _NamedSection):
    """The settings of a whole fabric."""

    instances: tuple[InstanceSettings, ...] = ()

    def replicating_to(self, name: str) -> list[str]:
        """Returns the other instances of the instance's group that may replicate to it, by name.

        Raises:
            ConfigurationError: there is no such instance.
        """
        group = self.instance(name).group
        return [
            other.name
            for other in self.instances
            if other.name != name
            and other.group == group
            and any(
                name in each.to or (not each.to and each.group == group)
                for each in other.destinations
            )
        ]

    def instance(self, name: str) -> InstanceSettings:
        """Returns the instance with this name.

        Raises:
            ConfigurationError: there is none; names those there are.
        """
        for instance in self.instances:
            if instance.name == name:
                return instance
        raise ConfigurationError(
            f"fabric {self.name} has no instance {name}; it has "
            f"{', '.join(other.name for other in self.instances) or 'none'}"
        )

    def group(self, name: str) -> list[InstanceSettings]:
        """Returns the instances of a group, in the order declared.

        Raises:
            ConfigurationError: there are none; names the groups there are.
        """
        found = [instance for instance in self.instances if instance.group == name]
        if not found:
            hint = did_you_mean(name, self.groups())
            raise ConfigurationError(
                f"fabric {self.name} has no group {name}; "
                + (hint or f"it has {', '.join(self.groups()) or 'none'}")
            )
        return found

    def groups(self) -> list[str]:
        """Returns the names of the groups, in the order declared."""
        return list(dict.fromkeys(instance.group for instance in self.instances))

    def links(self) -> Iterator[tuple[InstanceSettings, DestinationSettings]]:
        """Yields every destination with its instance."""
        for instance in self.instances:
            for destination in instance.destinations:
                yield instance, destination

    def journal_of(self, instance: InstanceSettings) -> JournalConfig:
        """Returns the instance's own journal settings, or else the fabric's."""
        return instance.journal or self.journal

    def topics_of(self, instance: InstanceSettings) -> tuple[TopicSettings, ...]:
        """Returns the instance's own topics, or else the fabric's."""
        return self.topics if instance.topics is None else instance.topics

    def journaled_of(self, instance: InstanceSettings) -> tuple[TopicRule, ...]:
        """Returns the topics that are in the instance's transaction log. The topics of its queues
        are among them, since the records about a queue's messages are logged on the queue's
        topic."""
        found = tuple(topic.rule() for topic in self.topics_of(instance) if topic.journaled)
        queues = self.queues_of(instance)
        if not queues or not found:
            return found
        journaled = TopicMatcher(found)
        return found + tuple(
            TopicRule(each.name, each.message_type)
            for each in queues
            if not journaled.matches(each.name.encode(), each.message_type.encode())
        )

    def queues_of(self, instance: InstanceSettings) -> tuple[QueueDefinition, ...]:
        """Returns the instance's own queues, or else the fabric's."""
        own = instance.queues
        return tuple(each.definition() for each in (self.queues if own is None else own))

    def actions_of(self, instance: InstanceSettings) -> tuple[ActionDefinition, ...]:
        """Returns the instance's own actions, or else the fabric's."""
        own = instance.actions
        return definitions(self.actions if own is None else own)

    def unjournaled_of(self, instance: InstanceSettings) -> tuple[TopicRule, ...] | None:
        """Returns the topics that the instance or the fabric declares as not journaled. None: the
        instance's transaction log takes every topic."""
        if TopicRule(".*") in self.journaled_of(instance):
            return None
        declared = dict.fromkeys((*self.topics_of(instance), *self.topics))
        return tuple(topic.rule() for topic in declared if not topic.journaled)

    def sow_of(self, instance: InstanceSettings) -> tuple[SowTopicDefinition, ...]:
        """Returns the instance's own SOW topics, or else the fabric's."""
        own = instance.sow_topics
        return tuple(each.definition() for each in (self.sow_topics if own is None else own))

    def sow_stats_interval_ms_of(self, instance: InstanceSettings) -> int:
        """Returns the milliseconds between two counts of the instance's SOW topics; 0: they are not
        counted."""
        return instance.sow_stats_interval_ms or self.sow_stats_interval_ms or 0

    def views_of(self, instance: InstanceSettings) -> tuple[ViewDefinition, ...]:
        """Returns the instance's own views, or else the fabric's."""
        own = instance.views
        return tuple(each.definition() for each in (self.views if own is None else own))

    def conflated_of(self, instance: InstanceSettings) -> tuple[ConflatedTopicDefinition, ...]:
        """Returns the instance's own conflated topics, or else the fabric's."""
        own = instance.conflated_topics
        return tuple(each.definition() for each in (self.conflated_topics if own is None else own))

    def types_of(self, instance: InstanceSettings) -> tuple[TypeDefinition, ...]:
        """Returns the message types that are defined for the instance, or else the fabric's."""
        own = instance.defined_types
        return self.message_types if own is None else own

    def controlled(self) -> list[str]:
        """Returns the names of the instances that ask modules who may control them."""
        return [each.name for each in self.instances if self.control_of(each) is not None]

    def control_of(self, instance: InstanceSettings) -> AdminSettings | None:
        """Returns the section whose modules authorize control calls of an instance: the nearest
        that names one. Without one, a section means the modules of the instance's clients. None:
        everybody who can call the instance may control it."""
        sections = [each for each in (instance.admin, self.admin) if each is not None]
        for section in sections:
            if section.names_module:
                return section
        asks_clients = any(
            getattr(each, name) for each in (instance, self) for name in ADMIN_MODULES
        )
        interface = self.interface_of(instance)
        # A section without anything in it must not mean that nobody is asked: it is refused later.
        is_empty = interface.enabled is None and interface.port is None
        return sections[0] if sections and (asks_clients or is_empty) else None

    def interface_of(self, instance: InstanceSettings) -> AdminSettings:
        """Returns the settings of the instance's administrator's interface: its own, and for those
        that it leaves out the fabric's."""
        found: dict[str, Any] = {}
        for section in (self.admin, instance.admin):
            if section is not None:
                found |= section.interface_values()
        return AdminSettings.model_construct(**found)

    def logs_of(self, instance: InstanceSettings) -> LogSettings:
        """Returns the instance's own log settings, or else the fabric's."""
        return instance.logs or self.logs

    def downgrade_of(self, instance: InstanceSettings) -> DowngradePolicy:
        """Returns the instance's own downgrade settings, or else the fabric's."""
        return instance.downgrade or self.downgrade

    def to_json(self) -> str:
        """Returns the settings as JSON that `from_json` reads."""
        return json.dumps(self.model_dump(mode="json", by_alias=True, exclude_defaults=True))

    @classmethod
    def from_json(cls, text: str) -> FabricSettings:
        """Returns the settings that `to_json` wrote.

        Raises:
            ConfigurationError: the text is no such JSON.
        """
        try:
            return cls.model_validate_json(text)
        except ValueError as error:
            raise ConfigurationError(f"these are no fabric settings: {error}") from None
