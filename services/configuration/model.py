"""The model of a fabric: what is declared, checked and completed. Immutable.

Names in files have no units (`segment_size: 64MiB`), attributes have them (`segment_bytes`).
The checks that need the whole fabric are in `topology.py`.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Annotated, Any, Literal

from pydantic import (
    AfterValidator,
    Field,
    model_validator,
)

from raylay.services.config.journal import JournalConfig
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
from raylay.services.configuration.security import AdminSettings, Module
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
from raylay.services.errors import ConfigurationError
from raylay.services.messages.topics import (
    TopicMatcher,
    TopicRule,
)
from raylay.services.messages.types.definitions import TypeDefinition
from raylay.services.messages.units import (
    Milliseconds,
)
from raylay.services.queues.definition import QueueDefinition
from raylay.services.replication.downgrade import DowngradePolicy
from raylay.services.replication.membership.validation import ALWAYS_CHECKED, CHECKS
from raylay.services.sow.definition import SowTopicDefinition


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
    """Content filter of a destination's topic (docs/filters.md): only what passes goes there."""
    include_validation: Checks | None = None
    """Checks of a destination's topic when a link connects. None: all."""
    exclude_validation: ExcludableChecks | None = None
    """Checks that are left out for a destination's topic. None: as the destination says."""

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
    """The policy that the values of a file's section `downgrade` make."""
    return _DowngradeSection.model_validate({"downgrade": values}).downgrade


class DestinationChoices(Section):
    """The settings of a destination that a script and a link of a file share."""

    topics: tuple[TopicSettings, ...] = (TopicSettings(name=".*"),)
    pass_through: Pattern | None = None
    """Pattern for the group of the direct sender. None: only what clients published here goes
    there."""
    own_group_only: bool = False
    """Only what was published in the instance's own group, whatever PassThrough lets on beyond."""
    exclude_validation: ExcludableChecks | None = None
    """Checks that are left out when a link connects, of topics that say nothing of it. None: those
    that the fabric's shape makes impossible (exclusions.py)."""
    resync_pass_through: Pattern | None = None
    """Lets on in addition, while the link catches up after a connect."""
    compression: bool = False
    compression_type: Literal["zstd", "zlib"] = "zstd"
    reconnect_timeout_ms: tuple[Milliseconds, ...] = ()
    """Time for which an address is tried before the next: none, one for all, or one for each."""
    ack_conflation_ms: Milliseconds = 0
    dial: bool = True
    """False: it waits until one of its instances connects to this one, and pushes over that
    connection."""
    share_connection: bool = False
    """A connection that one of its instances made is used before any is dialled."""
    wide_ip: bool | None = None
    """Whether several servers may answer at one of its addresses. None: they may where one is an
    address of another fabric, whose instances are not known."""
    waits: bool = False
    """Whether it also waits, beside dialling, for a server of the group that it does not dial, and
    pushes over the connection that this one makes."""
    waits_for: tuple[Name, ...] = ()
    """Names of these; empty: the one that bears the destination's name, else any of the group that
    no other destination names."""
    tls: TlsChoice = None
    """TLS of its dialling. None: as the instance, where whom it dials has TLS."""
    authenticator: Module | None = None
    """Module that makes its link's credentials. None: as the instance does."""


class _To(Section):
    name: Name
    group: str
    to: tuple[str, ...]
    """Instances in order of priority: names of this fabric, or `host:port` of another one. None, of
    a destination that does not dial: any instance of the group."""
    sync: bool = False


class DestinationSettings(DestinationChoices, _To):
    """One destination of an instance."""

    authenticators: tuple[Module | None, ...] = ()
    """Authenticators for each server of `to`, where they differ. Empty: `authenticator`."""


class LogSettings(Section):
    """The logs of the fabric's processes: level, target and format."""

    level: Literal["debug", "info", "warning", "error", "off"] = "info"
    target: Literal["stderr", "file", "none"] = "stderr"
    directory: str = ""
    format: Literal["text", "json"] = "text"


class BootstrapSettings(Section):
    """The sources from which an instance copies its log before it serves, when its data directory
    is empty."""

    sources: Annotated[tuple[str, ...], Field(min_length=1)]
    """Sources in order of priority: names of this fabric, or `host:port` of replication
    transports."""
    topics: tuple[TopicSettings, ...] = ()
    """Topics that are copied, of those that it journals; none: all."""
    tls: TlsChoice = None
    """TLS of its dialling. None: as the instance, where whom it dials has TLS."""
    authenticator: Module | None = None
    """Module that makes its credentials. None: as the instance does."""
    authenticators: tuple[Module | None, ...] = ()
    """Authenticators for each of the sources, where they differ. Empty: `authenticator`."""


class InstanceChoices(Section):
    """The settings of an instance that a script and a file share."""

    host: Annotated[str, Field(min_length=1)] = "127.0.0.1"
    client_port: Port = 0
    replication_port: Port = 0
    accepts_links: bool = True
    """Whether other instances may connect. False: it has no replication transport, and listens
    nowhere for links."""
    message_types: tuple[MessageType, ...] = ()
    """Message types of `client_port`: other messages are refused there. None: any."""
    tls: TlsChoice = None
    """TLS of all its transports that say nothing else, and of what it dials. None: the fabric's."""
    replication_transport: FirstReplicationSettings | None = None
    """More about that of `replication_port`."""
    client_transport: FirstTransportSettings | None = None
    """More about that of `client_port`."""
    transports: tuple[TransportSettings, ...] = ()
    """More for clients."""
    replication_transports: tuple[ReplicationTransportSettings, ...] = ()
    """More for other instances."""
    metrics_port: Port | None = None
    """Port for Prometheus. None: as the fabric says."""
    directory: str = ""
    """Data directory of the instance. Empty: a folder of its name in the fabric's directory."""
    node_labels: dict[str, str] = Field(default={})
    """Labels of the Ray node that holds its data; empty: any node."""
    journal: JournalConfig | None = None
    downgrade: Downgrade | None = None
    topics: tuple[TopicSettings, ...] | None = None
    """Topics in its transaction log. None: as the fabric says."""
    replication_host: str = ""
    """Host to which other instances connect; empty: `host`."""
    logs: LogSettings | None = None
    authentication: Module | None = None
    """Module that decides who is let in by its transports for clients. None: as the fabric says."""
    entitlement: Module | None = None
    """The entitlement module. None: as the fabric says."""
    replication_authentication: Module | None = None
    """Module that decides which links are let in by its replication transports. None: as the fabric
    says."""
    replication_entitlement: Module | None = None
    """Module that decides what links may bring. None: as the fabric says."""
    authenticator: Module | None = None
    """Module that makes the credentials of the instance and its links. None: as the fabric says."""
    admin: AdminSettings | None = None
    """Modules that decide who may control it. None: as the fabric says."""
    capacity: Capacity | None = None
    """Limits on what waits for its clients. A value that it leaves out is as the fabric says."""
    bootstrap: BootstrapSettings | None = None
    sow_topics: tuple[SowTopicSettings, ...] | None = None
    """Topics with state. None: as the fabric says."""
    queues: tuple[QueueSettings, ...] | None = None
    """None: as the fabric says."""


class _Member(Section):
    name: Name
    group: Name


class InstanceSettings(InstanceChoices, _Member):
    """One instance."""

    defined_types: DefinedTypes | None = None
    """Message types of names of their own. None: as the fabric says."""
    destinations: tuple[DestinationSettings, ...] = ()

    def for_clients(self) -> tuple[TransportSettings, ...]:
        """All its transports for clients, that of `client_port` first."""
        # Its values were validated: to build another validator would take 5 ms.
        own = self.client_transport or FirstTransportSettings.model_construct()
        first = TransportSettings.model_construct(
            **dict(own), port=self.client_port, message_types=self.message_types
        )
        return tuple(each.listening_at(self.host) for each in (first, *self.transports))

    def for_instances(self) -> tuple[ReplicationTransportSettings, ...]:
        """All its transports for other instances, that of `replication_port` first; none where it
        accepts no links."""
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
    """Metrics for Prometheus, one port an instance."""

    enabled: bool = False
    """Free ports are chosen for instances that name none."""


class ClientSettings(Section):
    """The initial settings of clients made by `Fabric.client`."""

    heartbeat_ms: Milliseconds = 5_000
    ack_conflation_ms: Milliseconds = 0
    publish_timeout_ms: Milliseconds = 30_000
    tls: TlsChoice = None
    """None: by the CA of the fabric's `tls`, where it has one."""


class FabricChoices(Section):
    """The settings of a whole fabric that a script and a file share."""

    topics: tuple[TopicSettings, ...] = (TopicSettings(name=".*"),)
    message_types: DefinedTypes = ()
    """Message types with names of their own, beside those that are built in."""
    sow_topics: tuple[SowTopicSettings, ...] = ()
    """Topics with state, in the order in which a pattern and a name are looked for."""
    queues: tuple[QueueSettings, ...] = ()
    journal: JournalConfig = JournalConfig()
    downgrade: Downgrade = DowngradePolicy()
    tracing: TracingSettings = TracingSettings()
    metrics: MetricsSettings = MetricsSettings()
    logs: LogSettings = LogSettings()
    client: ClientSettings = ClientSettings()
    tls: Tls | None = None
    """TLS of all instances that say nothing else. `{instance}` in a path is the instance's name."""
    drills: Literal["refused", "allowed"] = "refused"
    """Whether drills may break it while it runs (docs/drills.md)."""
    unauthenticated: Literal["refused", "allowed"] = "refused"
    """Whether everybody may be let in by a transport that is reached from other hosts."""
    authentication: Module | None = None
    """Module that decides who is let in as a client. None: everybody."""
    entitlement: Module | None = None
    """The entitlement module. None: everything."""
    replication_authentication: Module | None = None
    """Module that decides which links are let in. None: all."""
    replication_entitlement: Module | None = None
    """Module that decides what links may bring. None: everything."""
    authenticator: Module | None = None
    """Module that makes the credentials of instances and their links. None: none."""
    admin: AdminSettings | None = None
    """Modules that decide who may control instances. None: whoever can call them."""
    capacity: Capacity | None = None
    """Limits on what waits for the clients of an instance. None: the defaults."""
    direct_links: bool = True
    """Whether links that have caught up hand their connections over to their instances."""
    relocate_after_ms: Annotated[Milliseconds, Field(gt=0)] | None = Field(
        default=None, alias="relocate_after"
    )
    """An instance whose host is away for so long is moved by `raylay watch`. None: by hand."""


class _NamedSection(Section):
    name: Name


class FabricSettings(FabricChoices, _NamedSection):
    """A whole fabric."""

    instances: tuple[InstanceSettings, ...] = ()

    def replicating_to(self, name: str) -> list[str]:
        """The other instances of its group that may replicate to this one, by name.

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
        """The instance of this name.

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
        """The instances of a group, in the order declared.

        Raises:
            ConfigurationError: there are none; names the groups there are.
        """
        found = [instance for instance in self.instances if instance.group == name]
        if not found:
            raise ConfigurationError(
                f"fabric {self.name} has no group {name}; "
                f"it has {', '.join(self.groups()) or 'none'}"
            )
        return found

    def groups(self) -> list[str]:
        """The names of the groups, in the order declared."""
        return list(dict.fromkeys(instance.group for instance in self.instances))

    def links(self) -> Iterator[tuple[InstanceSettings, DestinationSettings]]:
        """Every destination with its instance."""
        for instance in self.instances:
            for destination in instance.destinations:
                yield instance, destination

    def journal_of(self, instance: InstanceSettings) -> JournalConfig:
        """The instance's own journal settings, or the fabric's."""
        return instance.journal or self.journal

    def topics_of(self, instance: InstanceSettings) -> tuple[TopicSettings, ...]:
        """The instance's own topics, or the fabric's."""
        return self.topics if instance.topics is None else instance.topics

    def journaled_of(self, instance: InstanceSettings) -> tuple[TopicRule, ...]:
        """The topics that are in the instance's transaction log, with those of the queues that it
        has: what is said of their messages is on them."""
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
        """The queues of the instance's own, or the fabric's."""
        own = instance.queues
        return tuple(each.definition() for each in (self.queues if own is None else own))

    def unjournaled_of(self, instance: InstanceSettings) -> tuple[TopicRule, ...] | None:
        """The topics that are declared as not journaled, by the instance or for the whole fabric.
        None where its transaction log takes all that there are."""
        if TopicRule(".*") in self.journaled_of(instance):
            return None
        declared = dict.fromkeys((*self.topics_of(instance), *self.topics))
        return tuple(topic.rule() for topic in declared if not topic.journaled)

    def sow_of(self, instance: InstanceSettings) -> tuple[SowTopicDefinition, ...]:
        """The topics with state of the instance's own, or the fabric's."""
        own = instance.sow_topics
        return tuple(each.definition() for each in (self.sow_topics if own is None else own))

    def types_of(self, instance: InstanceSettings) -> tuple[TypeDefinition, ...]:
        """The message types that are defined for the instance, or for the whole fabric."""
        own = instance.defined_types
        return self.message_types if own is None else own

    def controlled(self) -> list[str]:
        """The instances that have `admin`, of their own or the fabric's, by name."""
        return [
            each.name for each in self.instances if each.admin is not None or self.admin is not None
        ]

    def logs_of(self, instance: InstanceSettings) -> LogSettings:
        """The instance's own log settings, or the fabric's."""
        return instance.logs or self.logs

    def downgrade_of(self, instance: InstanceSettings) -> DowngradePolicy:
        """The instance's own downgrade settings, or the fabric's."""
        return instance.downgrade or self.downgrade

    def to_json(self) -> str:
        """The inverse of `from_json`."""
        return json.dumps(self.model_dump(mode="json", by_alias=True, exclude_defaults=True))

    @classmethod
    def from_json(cls, text: str) -> FabricSettings:
        """Settings that `to_json` wrote.

        Raises:
            ConfigurationError: the text is no such JSON.
        """
        try:
            return cls.model_validate_json(text)
        except ValueError as error:
            raise ConfigurationError(f"these are no fabric settings: {error}") from None
