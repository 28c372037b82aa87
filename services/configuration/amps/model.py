"""The published AMPSConfig as a model: every documented element, its default and its synonyms
(behaviour.md 1, 2, 7 to 10). What of it runs is in `support.py`.

The checks that need more than one stanza are in `checks.py`.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal, Self

from pydantic import AfterValidator, BeforeValidator, model_validator

from raylay.services.configuration.amps.sow import SowStanza
from raylay.services.configuration.amps.types import (
    Count,
    DialAddress,
    FileMask,
    InstanceName,
    ListenAddress,
    ModuleUse,
    Nanoseconds,
    NanosecondsList,
    Options,
    Percent,
    Regex,
    SizeBytes,
    Stanza,
    Switch,
    Text,
    Topic,
    Truth,
    TypeName,
    Words,
    at_least,
    between,
    element,
)
from raylay.services.errors import ConfigurationError
from raylay.services.replication.membership.validation import CHECKS
from raylay.services.telemetry.log_options import FILE_TARGETS, LogTarget

NOT_EXCLUDABLE = ("queue", "queue_underlying")
JOURNAL_BYTES_MIN = 10_000_000
JOURNAL_BYTES_DEFAULT = 1_000_000_000
REPLICATION_TYPES = ("amps-replication", "amps-replication-secure")


def _checks(values: tuple[str, ...]) -> tuple[str, ...]:
    for value in values:
        if value not in CHECKS:
            raise ValueError(f"{value!r} is no check: expected some of {', '.join(CHECKS)}")
    return values


def _excludable(values: tuple[str, ...]) -> tuple[str, ...]:
    for value in _checks(values):
        if value in NOT_EXCLUDABLE:
            raise ValueError(f"the check {value} cannot be excluded: take it out of the list")
    return values


def _min_sync(value: Any) -> Any:
    if isinstance(value, str) and not value.strip().isdigit():
        raise ValueError(
            f"expected a number of destinations, such as 1, got {value!r}; a published sample "
            "shows a name here by mistake: the element limits how many stay sync, not which"
        )
    return value


class Capacity(Stanza):
    """Limits for slow clients, of an instance or of one transport; None of a transport: those of
    the instance, whose memory it then shares."""

    message_memory_bytes_max: SizeBytes | None = element("MessageMemoryLimit", None)
    """Most bytes of memory for messages that wait for clients. None, for an instance: the lower of
    10 % of the host's memory and of `ulimit -m`."""
    message_disk_bytes_max: SizeBytes | None = element("MessageDiskLimit", None)
    """Most bytes of disk for messages that wait for clients. None, for an instance: the higher of 1
    GB and MessageMemoryLimit."""
    message_disk_path: str | None = element("MessageDiskPath", None)
    client_message_age_ns_max: Nanoseconds | None = element("ClientMessageAgeLimit", None)
    client_capacity_percent_max: Percent | None = element("ClientMaxCapacity", None)


class TlsStanza(Stanza):
    """The TLS settings of a transport."""

    certificate: str | None = element("Certificate", None)
    private_key: str | None = element("PrivateKey", None)
    ciphers: str | None = element("Ciphers", None)
    secure_socket_protocols: str = element("SecureSocketProtocols", "TLSv1.1 TLSv1.2 TLSv1.3")
    verify_client: Truth = element("VerifyClient", False)
    ca_file: str | None = element("CAFile", None)
    ca_path: str | None = element("CAPath", None)

    @model_validator(mode="after")
    def _tls_fits(self) -> Self:
        secure = getattr(self, "type", "") in ("tcps", "amps-replication-secure")
        if secure and not (self.certificate and self.private_key):
            raise ValueError(f"Type {getattr(self, 'type', '')} needs Certificate and PrivateKey")
        # One alone would be passed over, and the transport speak without TLS.
        if bool(self.certificate) != bool(self.private_key):
            raise ValueError("Certificate and PrivateKey go together: give both, or neither")
        if self.verify_client and not self.certificate:
            raise ValueError("VerifyClient needs TLS: give Certificate and PrivateKey")
        if self.verify_client and not (self.ca_file or self.ca_path):
            raise ValueError("VerifyClient needs CAFile or CAPath")
        return self


class IncomingTransport(TlsStanza, Capacity):
    """An address at which an instance listens, for clients or for other instances."""

    name: Text = element("Name")
    type: Literal["tcp", "tcps", "amps-replication", "amps-replication-secure", "amps-unix"] = (
        element("Type")
    )
    protocol: str = element("Protocol", "amps")
    inet_address: ListenAddress | None = element("InetAddr", None)
    message_types: tuple[TypeName, ...] = element("MessageType", (), many=True)
    initial_state: Switch = element("InitialState", True)
    filters: tuple[ModuleUse, ...] = element("TransportFilter", (), many=True)
    file_name: str | None = element("FileName", None)
    file_mask: FileMask | None = element("FileMask", None)
    per_message_deflate: Switch = element("PerMessageDeflate", True)
    http_headers: tuple[Text, ...] = element("HTTPHeader", (), many=True)
    authentication: ModuleUse | None = element("Authentication", None)
    entitlement: ModuleUse | None = element("Entitlement", None)

    @model_validator(mode="after")
    def _fits(self) -> Self:
        if self.type == "amps-unix":
            if self.file_name is None:
                raise ValueError(f"transport {self.name} of Type amps-unix needs a FileName")
        elif self.inet_address is None:
            raise ValueError(f"transport {self.name} has no InetAddr: give the port it listens on")
        return self

    @property
    def is_replication(self) -> bool:
        """Returns whether other instances connect here, and no client."""
        return self.type in REPLICATION_TYPES


class TransportsStanza(Stanza):
    """The addresses at which the instance listens."""

    transports: tuple[IncomingTransport, ...] = element("Transport", (), many=True)


class LogTopic(Stanza):
    """Topics that are recorded in the transaction log."""

    name: Topic = element("Name", synonyms=("Topic",))
    message_type: TypeName = element("MessageType")
    filter: str | None = element("Filter", None)


class TransactionLog(Stanza):
    """The journal and the topics that are recorded in it."""

    journal_directory: Text = element("JournalDirectory")
    archive_directory: str | None = element("JournalArchiveDirectory", None)
    preallocated_files: Annotated[Count, AfterValidator(at_least(1))] = element(
        "PreallocatedJournalFiles", 2
    )
    journal_bytes: SizeBytes = element(
        "JournalSize", JOURNAL_BYTES_DEFAULT, synonyms=("MinJournalSize",)
    )
    """Size of a journal file, in bytes; less than 10 MB counts as 10 MB."""
    topics: tuple[LogTopic, ...] = element("Topic", (), many=True)
    flush_interval_ns: Annotated[Nanoseconds, AfterValidator(between("1us", "1000ms"))] = element(
        "FlushInterval", 100_000_000
    )
    o_direct: Switch = element("O_DIRECT", True)
    inactive_client_expiration_ns: Nanoseconds | None = element("InactiveClientAckExpiration", None)
    compressed_cache_bytes_max: SizeBytes | None = element(
        "CompressedJournalCacheMemoryLimit", None
    )


class DestinationTopic(Stanza):
    """Topics that go to a destination, and the checks that are made for them at connect."""

    name: Topic = element("Name", ".*", synonyms=("Topic",))
    message_type: TypeName = element("MessageType")
    filter: str | None = element("Filter", None)
    include_validation: Annotated[Words, AfterValidator(_checks)] | None = element(
        "IncludeValidation", None, text=True
    )
    """Checks that are made for the topic. None: all checks."""
    exclude_validation: Annotated[Words, AfterValidator(_excludable)] = element(
        "ExcludeValidation", (), text=True
    )

    def checks(self) -> tuple[str, ...]:
        """Returns the checks that are made for the topic: those included, without those
        excluded."""
        included = CHECKS if self.include_validation is None else self.include_validation
        kept = set(included).difference(self.exclude_validation).union(NOT_EXCLUDABLE)
        return tuple(check for check in CHECKS if check in kept)


class OutgoingTransport(TlsStanza):
    """The addresses of a destination's servers, in order of priority."""

    name: str | None = element("Name", None)
    type: Literal["amps-replication", "amps-replication-secure"] = element("Type")
    inet_addresses: tuple[DialAddress, ...] = element("InetAddr", (), many=True)
    """Addresses to dial. Empty: the other side connects, and its connection is used."""
    reconnect_timeouts_ns: NanosecondsList = element("ReconnectTimeout", (), text=True)
    ip_protocol: Literal["v4", "v6"] = element("IpProtocolPrefer", "v4")
    authenticator: ModuleUse | None = element("Authenticator", None)
    authentication: ModuleUse | None = element("Authentication", None)
    entitlement: ModuleUse | None = element("Entitlement", None)

    @model_validator(mode="after")
    def _fits(self) -> Self:
        given = len(self.reconnect_timeouts_ns)
        if given not in (0, 1, len(self.inet_addresses)):
            raise ValueError(
                f"ReconnectTimeout has {given} intervals for {len(self.inet_addresses)} InetAddr: "
                "give one, or one for each"
            )
        return self


class DestinationStanza(Stanza):
    """A destination of an instance's replication."""

    name: InstanceName = element("Name")
    group: Text = element("Group")
    topics: tuple[DestinationTopic, ...] = element("Topic", many=True)
    sync_type: Literal["sync", "async"] = element("SyncType")
    transports: tuple[OutgoingTransport, ...] = element("Transport", many=True)
    pass_through: Regex | None = element("PassThrough", None)
    resync_pass_through: Regex | None = element("ResyncPassThrough", None)
    """Pattern of groups whose messages are passed on while the link catches up. None:
    PassThrough."""
    compression: Switch = element("Compression", False)
    compression_type: Literal["zlib", "zstd"] = element("CompressionType", "zlib")
    ack_conflation_ns: Annotated[Nanoseconds, AfterValidator(between("0", "1s"))] = element(
        "AckConflationInterval", 1_000_000_000
    )

    @model_validator(mode="before")
    @classmethod
    def _name_or_group(cls, values: Any) -> Any:
        if not isinstance(values, dict):
            return values
        known = values.get("Name") or values.get("Group")
        if not known:
            raise ValueError("Destination has neither Name nor Group: give one of them")
        return {"Name": known, "Group": known, **values}


class Replication(Stanza):
    """The destinations of the instance's replication."""

    destinations: tuple[DestinationStanza, ...] = element("Destination", many=True)


class BootstrapTopic(Stanza):
    """A topic that is copied from the source."""

    name: Topic = element("Name", synonyms=("Topic",))
    message_type: TypeName = element("MessageType")


class BootstrapStanza(Stanza):
    """The source from which an empty instance copies everything before its transports open."""

    transports: tuple[OutgoingTransport, ...] = element("Transport", many=True)
    topics: tuple[BootstrapTopic, ...] = element("Topic", (), many=True)
    kind: Literal["all", "transaction-log", "sow"] = element("Type", "all")
    """The public text does not name this element."""


class TriggerStanza(ModuleUse):
    """The trigger of an action."""


class ConditionStanza(ModuleUse):
    """A condition that must hold for the action to go on."""


class DoStanza(ModuleUse):
    """The work that an action does."""


class ActionStanza(Stanza):
    """Work that is done when a trigger fires; the If and Do elements are taken in their order."""

    on: tuple[TriggerStanza, ...] = element("On", many=True)
    conditions: tuple[ConditionStanza, ...] = element("If", (), many=True)
    steps: tuple[DoStanza, ...] = element("Do", many=True)

    def ordered_steps(self) -> list[tuple[Literal["If", "Do"], ModuleUse]]:
        """Returns the conditions and the work with their tags, in the order of the file: what is
        behind a condition is not done where that does not hold."""
        found: list[tuple[Literal["If", "Do"], ModuleUse]] = [
            *(("If", each) for each in self.conditions),
            *(("Do", each) for each in self.steps),
        ]
        return sorted(found, key=lambda pair: pair[1].position)


class Actions(Stanza):
    """The actions of the instance."""

    actions: tuple[ActionStanza, ...] = element("Action", (), many=True)


class Numa(Stanza):
    """Placement on processors."""

    enabled: Switch = element("Enabled", True)


class ReplicationTuning(Stanza):
    """A limit of downgrades."""

    min_sync_destinations: Annotated[Count, BeforeValidator(_min_sync)] | None = element(
        "MinSyncDestinations", None
    )


class QueueTuning(Stanza):
    """The time for which a delivery from a queue waits for others."""

    delivery_flush_ns: Annotated[Nanoseconds, AfterValidator(between("1us"))] = element(
        "QueueDeliveryFlushInterval", 250_000
    )


class Indexing(Stanza):
    """Settings of the statistics' index."""

    enabled: Switch | None = element("Enabled", None)


class Statistics(Stanza):
    """Settings of the administrator interface's statistics."""

    indexing: Indexing | None = element("Indexing", None)


class AdminTuning(Stanza):
    """Settings of the administrator's interface."""

    statistics: Statistics | None = element("Statistics", None)


class Tuning(Stanza):
    """Values for special cases."""

    numa: Numa | None = element("NUMA", None)
    replication: ReplicationTuning | None = element("Replication", None)
    queue: QueueTuning | None = element("Queue", None)
    admin: AdminTuning | None = element("Admin", None)


class Admin(Stanza):
    """The administrator's interface over HTTP."""

    inet_address: ListenAddress | None = element("InetAddr", None)
    file_name: str = element("FileName", ":memory:")
    interval_ns: Annotated[Nanoseconds, AfterValidator(between("1s"))] = element(
        "Interval", 10_000_000_000
    )
    www_authenticate: str = element("WWWAuthenticate", "Negotiate")
    authentication: ModuleUse | None = element("Authentication", None)
    entitlement: ModuleUse | None = element("Entitlement", None)
    anonymous_paths: Regex | None = element("AnonymousPaths", None)
    headers: tuple[Text, ...] = element("Header", (), many=True)
    external_inet_address: DialAddress | None = element("ExternalInetAddr", None)
    access_control_allow_origin: str | None = element("AccessControlAllowOrigin", None)
    session_options: str = element("SessionOptions", "max-age=86400; path=/; HttpOnly")
    sql_transport: str | None = element("SQLTransport", None)
    sql_transport_inet_address: str | None = element("SQLTransportInetAddr", None)
    galvanometer: Switch = element("Galvanometer", False)
    certificate: str | None = element("Certificate", None)
    private_key: str | None = element("PrivateKey", None)
    ciphers: str | None = element("Ciphers", None)


class LogTargetStanza(Stanza):
    """A place to which the log is written."""

    protocol: Literal["stdout", "stderr", "file", "gzip", "syslog"] = element("Protocol")
    level: str | None = element("Level", None)
    levels: Words = element("Levels", (), text=True)
    include_errors: Words = element("IncludeErrors", (), text=True)
    exclude_errors: Words = element("ExcludeErrors", (), text=True)
    file_name: str | None = element("FileName", None)
    rotation_bytes: SizeBytes | None = element("RotationThreshold", None)
    ident: str | None = element("Ident", None)
    options: Words = element("Options", (), text=True)
    facility: str = element("Facility", "LOG_USER")

    @model_validator(mode="after")
    def _fits(self) -> Self:
        if self.protocol in FILE_TARGETS and self.file_name is None:
            raise ValueError(f"a Target of Protocol {self.protocol} needs a FileName")
        if self.level is None and not self.levels and not self.include_errors:
            raise ValueError("a Target needs one of Level, Levels and IncludeErrors")
        try:
            LogTarget(**self.settings() | {"directory": "."})
        except ConfigurationError as error:
            raise ValueError(str(error)) from None
        return self

    def settings(self) -> dict[str, Any]:
        """Returns the target as the fabric's settings have it."""
        found: dict[str, Any] = {
            "target": self.protocol,
            "level": _level(self.level or "none"),
            "levels": tuple(map(_level, self.levels)),
            "include": self.include_errors,
            "exclude": self.exclude_errors,
            "options": self.options,
            "facility": self.facility,
            "ident": self.ident or "",
        }
        if self.file_name is not None and self.protocol in FILE_TARGETS:
            folder, slash, name = self.file_name.rpartition("/")
            if "%" in folder:  # a mask as well
                folder, name = ".", self.file_name
            found |= {"directory": folder or slash or ".", "file_name": name}
        if self.rotation_bytes is not None:
            # The documentation leaves the removal of rotated files to the operator.
            found |= {"rotation_bytes": self.rotation_bytes, "kept_bytes": 0}
        return found


def _level(name: str) -> str:
    # Documented: a level `debug` of older files means info.
    return "info" if name == "debug" else name


class Logging(Stanza):
    """The log, and its targets."""

    targets: tuple[LogTargetStanza, ...] = element("Target", many=True)


class Module(Stanza):
    """A library that is loaded, to which other elements refer by its name."""

    name: Text = element("Name")
    library: Text = element("Library")
    options: Options = element("Options", Options())


class Modules(Stanza):
    """Libraries that are loaded."""

    modules: tuple[Module, ...] = element("Module", (), many=True)


class Protocol(Stanza):
    """A protocol of clients."""

    name: Text = element("Name")
    module: Text = element("Module")
    options: Options = element("Options", Options())


class Protocols(Stanza):
    """Protocols of clients beside the built-in ones."""

    protocols: tuple[Protocol, ...] = element("Protocol", (), many=True)


class MessageTypeStanza(Stanza):
    """A message type that the configuration defines."""

    name: Text = element("Name")
    module: Text = element("Module")
    compliance: Annotated[Count, AfterValidator(at_least(2, 5))] = element(
        "AMPSVersionCompliance", 4
    )
    options: Options = element("Options", Options())


class MessageTypesStanza(Stanza):
    """Message types beside the built-in ones."""

    message_types: tuple[MessageTypeStanza, ...] = element("MessageType", (), many=True)


class UserFunction(Stanza):
    """A function of a loaded library, for filters."""

    name: Text = element("Name")
    module: Text = element("Module")
    symbol: Text = element("Symbol")
    parameter_count: Count | None = element("ParameterCount", None)


class UserFunctions(Stanza):
    """Functions of loaded libraries."""

    functions: tuple[UserFunction, ...] = element("Function", (), many=True)


class External(Stanza):
    """A library of the system."""

    library: Text = element("Library")


class Externals(Stanza):
    """Libraries of the system that are used."""

    ssl: External | None = element("SSL", None)
    crypto: External | None = element("Crypto", None)
    curl: External | None = element("Curl", None)


class AmpsConfig(Capacity):
    """The configuration of one instance, as its AMPSConfig describes it."""

    name: InstanceName = element("Name")
    group: Text = element("Group", "")
    """Group of the instance. Empty: the instance's Name."""
    message_disk_path: str = element("MessageDiskPath", "/var/tmp")
    client_capacity_percent_max: Percent = element("ClientMaxCapacity", 50)
    process_name: str | None = element("ProcessName", None)
    description: str | None = element("Description", None)
    environment: str | None = element("Environment", None)
    suggested_version: str | None = element("SuggestedMinimumVersion", None)
    required_version: str | None = element("RequiredMinimumVersion", None)
    functions: UserFunctions | None = element("UserDefinedFunctions", None)
    mini_dump_directory: str = element("MiniDumpDirectory", "/tmp")
    mini_dump_file_mask: FileMask = element("MiniDumpFileMask", "0640")
    sow_statistics_interval_ns: Nanoseconds | None = element(
        "SOWStatisticsInterval", None, synonyms=("SOWStatsInterval",)
    )
    regex_topics: Truth = element("RegexTopicSupport", True)
    validation: Switch = element("ConfigValidation", True)
    include_comment: Truth = element("ConfigIncludeCommentDefault", False)
    cycle_detection_bytes: SizeBytes = element("ConfigCycleDetectionThreshold", 5_000_000)
    tuning: Tuning | None = element("Tuning", None)
    externals: Externals | None = element("Externals", None)
    authentication: ModuleUse | None = element("Authentication", None)
    entitlement: ModuleUse | None = element("Entitlement", None)
    modules: Modules | None = element("Modules", None)
    transports: TransportsStanza = element("Transports", TransportsStanza())
    protocols: Protocols | None = element("Protocols", None)
    message_types: MessageTypesStanza | None = element("MessageTypes", None)
    sow: SowStanza | None = element("SOW", None)
    transaction_log: TransactionLog | None = element("TransactionLog", None)
    replication: Replication | None = element("Replication", None)
    admin: Admin | None = element("Admin", None)
    logging: Logging | None = element("Logging", None)
    actions: Actions | None = element("Actions", None)
    bootstrap: BootstrapStanza | None = element("Bootstrap", None)

    @model_validator(mode="before")
    @classmethod
    def _group_is_name(cls, values: Any) -> Any:
        if isinstance(values, dict) and "Name" in values:
            return {"Group": values["Name"], **values}
        return values

    def replication_transport(self) -> IncomingTransport | None:
        """Returns the transport for other instances; None: they cannot connect."""
        return next((t for t in self.transports.transports if t.is_replication), None)

    def client_transports(self) -> list[IncomingTransport]:
        """Returns the transports for clients, in their order."""
        return [t for t in self.transports.transports if not t.is_replication]

    def destinations(self) -> tuple[DestinationStanza, ...]:
        """Returns the destinations of the instance's replication."""
        return self.replication.destinations if self.replication is not None else ()
