"""The elements of an AMPSConfig by support: those that run, those that need nothing here, and those
that do not run yet.

What is in none of the tables does not run yet: an element that is new in the model is refused by
`start` until it is put here, with a test that its value changes behaviour.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

from raylay.services.configuration.amps.actions import actions_of
from raylay.services.configuration.amps.load import Document, Path, slots
from raylay.services.configuration.amps.message_types import unsupported
from raylay.services.configuration.amps.model import Capacity, IncomingTransport
from raylay.services.configuration.amps.modules import (
    does_not_run,
    our_name,
    uses,
)
from raylay.services.configuration.amps.sow_topics import not_running, size_note
from raylay.services.configuration.amps.tls import mixed, old_protocols
from raylay.services.configuration.amps.types import ModuleUse, Stanza
from raylay.services.configuration.amps.views import not_running_views
from raylay.services.messages.records import RECORD_BYTES_MAX

_DESTINATION = "Replication/Destination"
_OUTGOING = f"{_DESTINATION}/Transport"
_INCOMING = "Transports/Transport"
_SOW = "SOW/Topic"
_QUEUES = ("SOW/Queue", "SOW/LocalQueue", "SOW/GroupLocalQueue")
_OF_TLS = (
    "Certificate",
    "PrivateKey",
    "CAFile",
    "CAPath",
    "Ciphers",
)
_OF_QUEUES = (
    "Name",
    "MessageType",
    "UnderlyingTopic",
    "DefaultPublishTarget",
    "Filter",
    "Semantics",
    "LeasePeriod",
    "MaxBacklog",
    "MaxPerSubscriptionBacklog",
    "Expiration",
    "ExpirationModel",
    "RecoveryPoint",
    "FairnessModel",
    "Leasing",
    "MaxDeliveries",
    "MaxCancels",
    "Priority",
    "BarrierExpression",
    "TargetQueueDepth",
    "DeferredAckExpiration",
)

_OF_SLOW_CLIENTS = (
    "MessageMemoryLimit",
    "MessageDiskLimit",
    "MessageDiskPath",
    "ClientMessageAgeLimit",
    "ClientMaxCapacity",
)

_OF_ADMIN = (
    *("InetAddr", "ExternalInetAddr", "FileName", "Interval", "AnonymousPaths", "Header"),
    *("AccessControlAllowOrigin", "SessionOptions", "Galvanometer"),
    *("Certificate", "PrivateKey", "Ciphers"),
)
_OF_LOGGING = (
    *("Protocol", "Level", "Levels", "IncludeErrors", "ExcludeErrors", "FileName"),
    *("RotationThreshold", "Ident", "Options", "Facility"),
)
RUNS = frozenset(
    (
        *(f"Admin/{element}" for element in _OF_ADMIN),
        *_OF_SLOW_CLIENTS,
        *(f"{_INCOMING}/{element}" for element in _OF_SLOW_CLIENTS),
        *(f"{place}/{element}" for place in (_INCOMING, _OUTGOING) for element in _OF_TLS),
        *(f"Bootstrap/Transport/{element}" for element in _OF_TLS),
        f"{_INCOMING}/VerifyClient",
        *(f"{queue}/{element}" for queue in _QUEUES for element in _OF_QUEUES),
        "SOW/GroupLocalQueue/InitialOwner",
        "SOW/GroupLocalQueue/GroupLocalQueueDomain",
        "Name",
        "Group",
        "RequiredMinimumVersion",
        "SOWStatisticsInterval",
        "Tuning/Replication/MinSyncDestinations",
        f"{_INCOMING}/Name",
        f"{_INCOMING}/InetAddr",
        f"{_INCOMING}/MessageType",
        f"{_INCOMING}/InitialState",
        "TransactionLog/JournalDirectory",
        "TransactionLog/JournalArchiveDirectory",
        "TransactionLog/JournalSize",
        "TransactionLog/FlushInterval",
        "TransactionLog/Topic/Name",
        "TransactionLog/Topic/MessageType",
        f"{_DESTINATION}/Name",
        f"{_DESTINATION}/Group",
        f"{_DESTINATION}/SyncType",
        f"{_DESTINATION}/PassThrough",
        f"{_DESTINATION}/ResyncPassThrough",
        f"{_DESTINATION}/Compression",
        f"{_DESTINATION}/CompressionType",
        f"{_DESTINATION}/AckConflationInterval",
        f"{_DESTINATION}/Topic/Name",
        f"{_DESTINATION}/Topic/MessageType",
        f"{_DESTINATION}/Topic/IncludeValidation",
        f"{_DESTINATION}/Topic/ExcludeValidation",
        f"{_DESTINATION}/Topic/Filter",
        "MessageTypes/MessageType/Name",
        "MessageTypes/MessageType/Module",
        "MessageTypes/MessageType/Options",
        f"{_SOW}/Name",
        f"{_SOW}/MessageType",
        f"{_SOW}/Durability",
        f"{_SOW}/RecoveryPoint",
        f"{_SOW}/Expiration",
        f"{_SOW}/Key",
        f"{_SOW}/KeyDomain",
        f"{_SOW}/KeyGenerator",
        f"{_SOW}/HashIndex",
        f"{_SOW}/History",
        f"{_SOW}/Preprocessing",
        f"{_SOW}/Enrichment",
        f"{_SOW}/Pattern",
        *(
            f"SOW/View/{name}"
            for name in (
                *("Name", "MessageType", "UnderlyingTopic", "Projection", "Grouping", "KeyDomain"),
                *("Conflation", "Filter", "HashIndex", "JoinNullEquivalency"),
            )
        ),
        *(
            f"SOW/ConflatedTopic/{name}"
            for name in (
                *("Name", "UnderlyingTopic", "MessageType", "Interval", "Filter", "HashIndex"),
                *("Enrichment", "TopicFormat"),
            )
        ),
        "Bootstrap/Topic/Name",
        "Bootstrap/Topic/MessageType",
        "Bootstrap/Transport/InetAddr",
        f"{_OUTGOING}/InetAddr",
        f"{_OUTGOING}/ReconnectTimeout",
        *(f"Logging/Target/{name}" for name in _OF_LOGGING),
    )
)
NEEDS_NOTHING = {
    "ProcessName": "processes are named after instances",
    "Description": "it is for people",
    "Environment": "it is for people",
    "SuggestedMinimumVersion": "it is a suggestion",
    "MiniDumpDirectory": "there are no minidumps",
    "MiniDumpFileMask": "there are no minidumps",
    "ConfigValidation": "the file is always checked",
    "ConfigIncludeCommentDefault": "comments are not kept",
    "ConfigCycleDetectionThreshold": "circles are found by name",
    "Externals": "the libraries of Python are used",
    "Tuning/NUMA": "processors are the system's affair",
    "TransactionLog/PreallocatedJournalFiles": "preallocating brings LMDB no speed",
    "TransactionLog/O_DIRECT": "LMDB maps its files",
    "TransactionLog/CompressedJournalCacheMemoryLimit": "compressed journal is not cached",
    f"{_SOW}/FileName": "where state lies is the instance's affair",
    "SOW/View/FileName": "a view is in memory",
    f"{_SOW}/InitialSlabCount": "the store grows as it has to",
    f"{_SOW}/Index": "a query without a HashIndex reads every record",
    f"{_SOW}/ExpectedKeyCountHint": "the store grows as it has to",
    **{f"{queue}/FileBackedMetadata": "it is always kept in files" for queue in _QUEUES},
    f"{_OUTGOING}/Name": "it is for people",
    "Bootstrap/Transport/Name": "it is for people",
    "Bootstrap/Type": "state is made from the transaction log, so both are copied",
    "Bootstrap/Transport/IpProtocolPrefer": "every address of a name is tried",
    "Bootstrap/Transport/ReconnectTimeout": "an address is tried for 5 s",
    f"{_OUTGOING}/VerifyClient": "whom one connects to is always verified",
    "Bootstrap/Transport/VerifyClient": "whom one connects to is always verified",
    f"{_OUTGOING}/IpProtocolPrefer": "every address of a name is tried",
    "Admin/SQLTransport": "the console queries and subscribes by the interface itself",
    "Admin/SQLTransportInetAddr": "the console queries and subscribes by the interface itself",
    "MessageTypes/MessageType/AMPSVersionCompliance": "messages are read as by the last version",
}
_MODULES = frozenset(
    (
        *("Authentication", "Entitlement"),
        *(f"{_INCOMING}/Authentication", f"{_INCOMING}/Entitlement"),
        *(f"{_OUTGOING}/Authenticator", "Bootstrap/Transport/Authenticator"),
        *("Admin/Authentication", "Admin/Entitlement"),
    )
)
"""Elements that name a module, which runs where there is one of ours or an installed one."""
_ANYONE = {
    "Authentication": "amps-default-authentication-module",
    "Entitlement": "amps-default-entitlement-module",
    "Authenticator": "amps-default-authenticator-module",
}
"""Built-in modules that may stand in other elements: they ask for nothing and give no more than a
name."""


class ElementFinding(NamedTuple):
    """An element that does not do what it says.

    Attributes:
        origin: file:line.
        refuses: whether `start` refuses it, unless told to ignore it.
    """

    origin: str
    text: str
    refuses: bool


def findings(document: Document) -> list[ElementFinding]:
    """Returns the parts of a configuration that do not run yet (`refuses`), and those that need
    nothing here."""
    found = list(_walk(document, document.config, (), ""))
    config = document.config
    for number, topic in enumerate(config.sow.topics if config.sow else ()):
        why = not_running(topic, config)
        if why:
            found.append(ElementFinding(document.origin(("SOW", "Topic", number)), why, True))
    for place, why in not_running_views(config):
        found.append(ElementFinding(document.origin(("SOW", *place)), why, True))
    actions = actions_of(config)
    for places, refuses in ((actions.left, True), (actions.needless, False)):
        found += [ElementFinding(document.origin(path), text, refuses) for path, text in places]
    for number, transport in enumerate(config.transports.transports):
        of_clients = set(Capacity.model_fields) - set(Stanza.model_fields)
        given = of_clients & transport.model_fields_set
        if transport.is_replication and given:
            found.append(
                ElementFinding(
                    document.origin(("Transports", "Transport", number)),
                    f"limits of slow clients need nothing at {transport.name}: it is for other "
                    "instances",
                    False,
                )
            )
    if not config.client_transports():
        found.append(
            ElementFinding(
                document.origin(("Transports",)),
                f"{config.name} has no transport for clients: a free port is taken for them",
                False,
            )
        )
    return found


def _walk(document: Document, stanza: Stanza, path: Path, tags: str) -> Iterator[ElementFinding]:
    for name, info in type(stanza).model_fields.items():
        tag = info.alias
        if tag is None or name not in stanza.model_fields_set:
            continue
        value = getattr(stanza, name)
        below = f"{tags}/{tag}" if tags else tag
        default = None if info.is_required() or info.default_factory else info.default
        if below in RUNS or below == "Actions" or value is None:
            continue
        many = slots(type(stanza))[tag].many
        for number, item in enumerate(value if many else (value,)):
            here: Path = (*path, tag, number) if many else (*path, tag)
            yield from _one(document, item, here, below, value == default)


def _one(
    document: Document, item: Any, path: Path, tags: str, is_default: bool
) -> Iterator[ElementFinding]:
    origin = document.origin(path)
    shown = path[-1] if isinstance(path[-1], str) else path[-2]
    special = _SPECIAL.get(tags)
    if tags in NEEDS_NOTHING:
        if not is_default:
            yield ElementFinding(
                origin, f"{shown} needs nothing here: {NEEDS_NOTHING[tags]}", False
            )
    elif tags == f"{_SOW}/SlabSize":
        yield ElementFinding(origin, size_note(item), item > RECORD_BYTES_MAX)
    elif tags == "Modules":
        yield from _modules(document, item, path)
    elif special is not None:
        why = special(item, path)
        if why:
            yield ElementFinding(origin, why, True)
        elif isinstance(item, Stanza):
            yield from _walk(document, item, path, tags)
    elif tags in _MODULES and isinstance(item, ModuleUse):
        why = does_not_run(str(shown), item, document.config)
        if why:
            yield ElementFinding(origin, why, True)
    elif isinstance(item, ModuleUse):
        if _ANYONE.get(str(shown)) != item.module or item.options.entries:
            yield ElementFinding(origin, f"{shown} with {item.module} does not run yet", True)
    elif isinstance(item, Stanza):
        if any(known.startswith(f"{tags}/") for known in (*RUNS, *NEEDS_NOTHING, *_SPECIAL)):
            yield from _walk(document, item, path, tags)
        else:
            of = " of SOW" if tags.startswith("SOW/") else ""
            yield ElementFinding(origin, f"{_named(shown, item)}{of} does not run yet", True)
    elif not is_default:
        yield ElementFinding(origin, f"{shown} does not run yet", True)


def _modules(document: Document, modules: Any, path: Path) -> Iterator[ElementFinding]:
    sow = document.config.sow
    generators = {
        topic.key_generator.module for topic in (sow.topics if sow else ()) if topic.key_generator
    }
    running = [
        (use.module, our_name(kind, use, document.config)) for kind, use in uses(document.config)
    ]
    for number, module in enumerate(modules.modules):
        origin = document.origin((*path, "Module", number))
        named = {our for use, our in running if use == module.name}
        if module.name in generators:
            what = "the installed key generator of its name is taken, not its Library"
            yield ElementFinding(origin, f"Module {module.name} needs nothing here: {what}", False)
        elif named and "" not in named:
            what = f"the module {' and '.join(sorted(named))} is taken, not its Library"
            yield ElementFinding(origin, f"Module {module.name} needs nothing here: {what}", False)
        else:
            yield ElementFinding(origin, f"Module {module.name} does not run yet", True)


def _named(tag: Any, item: Any) -> str:
    name = getattr(item, "name", "")
    return f"{tag} {name}" if name else str(tag)


def runs_for_clients(transport: IncomingTransport) -> bool:
    """Returns whether a transport for clients runs."""
    return not _transport_type(transport.type, ()) and not _protocol(transport.protocol, ())


# -- elements of which some values run ---------------------------------------------------------
def _transport_type(value: str, path: Path) -> str:
    return f"Type {value} does not run yet" if value == "amps-unix" else ""


def _protocol(value: str, path: Path) -> str:
    # What clients speak is Raylay's own protocol; `amps` and `json` are the names for it.
    return "" if value in ("amps", "json") else f"Protocol {value} does not run yet"


def _admin(item: Any, path: Path) -> str:
    # An empty section must not mean that no module is asked.
    given = item.model_fields_set - set(Stanza.model_fields)
    runs = item.inet_address or given & {"authentication", "entitlement"}
    return "" if runs else "Admin without InetAddr, Authentication or Entitlement does nothing"


def _www_authenticate(value: str, path: Path) -> str:
    return "" if value.startswith("Basic") else f"WWWAuthenticate {value} does not run: give Basic"


_SPECIAL: dict[str, Callable[[Any, Path], str]] = {
    _DESTINATION: lambda item, path: mixed(f"Destination {item.name}", item.transports),
    "Bootstrap": lambda item, path: mixed("Bootstrap", item.transports),
    **{
        f"{place}/SecureSocketProtocols": lambda item, path: old_protocols(item)
        for place in (_INCOMING, _OUTGOING, "Bootstrap/Transport")
    },
    f"{_INCOMING}/Type": _transport_type,
    f"{_INCOMING}/Protocol": _protocol,
    f"{_OUTGOING}/Type": _transport_type,
    "Bootstrap/Transport/Type": _transport_type,
    "Admin": _admin,
    "Admin/WWWAuthenticate": _www_authenticate,
    "MessageTypes/MessageType": lambda item, path: unsupported(item),
}
