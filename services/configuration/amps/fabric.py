"""Translation of the AMPSConfig files of several instances to the settings of one fabric.

An address of a Destination is that of an instance of the set where the set's replication transports
and the Destination's Name say so; else it is kept as host:port, of another fabric's instance.
"""

from __future__ import annotations

import posixpath
from collections.abc import Iterable
from dataclasses import asdict
from pathlib import PurePath
from typing import Any, NamedTuple

from raylay.services.configuration.amps.actions import MILLISECOND_NS, actions_of
from raylay.services.configuration.amps.load import Document, Path
from raylay.services.configuration.amps.message_types import definitions
from raylay.services.configuration.amps.model import (
    JOURNAL_BYTES_MIN,
    AmpsConfig,
    BootstrapStanza,
    Capacity,
    DestinationStanza,
    IncomingTransport,
    TransactionLog,
)
from raylay.services.configuration.amps.modules import (
    admin_settings,
    authenticators,
    instance_modules,
    transport_modules,
    waiting_authenticator,
)
from raylay.services.configuration.amps.queues import queue_settings
from raylay.services.configuration.amps.sow import SowStanza
from raylay.services.configuration.amps.sow_topics import not_running, settings_of
from raylay.services.configuration.amps.support import ElementFinding, findings, runs_for_clients
from raylay.services.configuration.amps.tls import dialling_settings, tls_settings
from raylay.services.configuration.amps.types import split_listen_address
from raylay.services.configuration.amps.views import running_views
from raylay.services.configuration.builder import FabricBuilder, Origins
from raylay.services.configuration.model import FabricSettings
from raylay.services.errors import ConfigurationError

NAME_DEFAULT = "fabric"
_EVERYWHERE = ("0.0.0.0", "::", "*")
_LOOPBACK = ("localhost", "127.0.0.1", "::1")
_OTHERS: dict[str, Any] = {"name": ".*", "journaled": False}
"""Topics that no TransactionLog takes: their messages are delivered to live subscribers only."""


class LinkListener(NamedTuple):
    """The address at which an instance of the set waits for other instances."""

    name: str
    group: str
    host: str
    port: int


UNSUPPORTED_REMEDY = "leave these out, or give --ignore-unsupported to start without"


def fabric_of(
    documents: Iterable[Document],
    name: str = "",
    *,
    ignore_unsupported: bool = False,
    origins: Origins | None = None,
) -> FabricSettings:
    """Returns the settings of the fabric that the AMPSConfig files of its instances describe.

    Args:
        name: name of the fabric. Empty: the group, where all are of one; else the name of the
            folder that holds the first file, or `fabric`.
        ignore_unsupported: leave out what does not run yet, instead of refusing it.
        origins: is filled with the place where each instance and destination is declared.

    Raises:
        ConfigurationError: one line for each thing that does not run yet or does not fit together.
    """
    documents = list(documents)
    if not ignore_unsupported:
        found = [finding for each in documents for finding in findings(each) if finding.refuses]
        if found:
            raise ConfigurationError(refusal(found))
    try:
        builder = FabricBuilder(
            name or _name(documents),
            topics=_topics(documents),
            # By the documentation, everybody may log on where no Authentication is named.
            unauthenticated="allowed",
        )
    except ConfigurationError as error:
        raise ConfigurationError(f"{error}; --name gives the fabric another name") from None
    listeners = [listener for each in documents for listener in _listener(each.config)]
    errors = _clashes(documents)
    for document in documents:
        try:
            builder.instance(
                document.config.name,
                document.config.group,
                origin=document.origin(("Name",)),
                **_instance(document.config),
            )
        except ConfigurationError as error:
            errors += _at(document.origin(("Name",)), error)
    for document in documents if not errors else ():
        if document.config.bootstrap is not None:
            origin = document.origin(("Bootstrap",))
            options = _bootstrap(document.config, document.config.bootstrap, listeners)
            try:
                builder.instance(document.config.name, bootstrap=options, origin=origin)
            except ConfigurationError as error:
                errors += _at(origin, error)
        for number, destination in enumerate(document.config.destinations()):
            origin = document.origin(("Replication", "Destination", number))
            try:
                _add_destination(
                    builder, document.config, destination, documents, listeners, origin
                )
            except ConfigurationError as error:
                errors += _at(origin, error)
    if errors:
        raise ConfigurationError("\n".join(errors))
    if origins is not None:
        origins.update(builder.origins)
    return builder.settings()


def refusal(found: Iterable[ElementFinding]) -> str:
    """Returns the error text of a start: a line for each thing that does not run yet."""
    lines = [f"{finding.origin}: {finding.text}" for finding in found]
    return "\n".join([*lines, UNSUPPORTED_REMEDY])


def _name(documents: list[Document]) -> str:
    groups = {document.config.group for document in documents}
    if len(groups) == 1:
        return groups.pop()
    folder = PurePath(documents[0].file).parent.name
    return NAME_DEFAULT if folder in ("", "..") else folder


def _at(origin: str, error: ConfigurationError) -> list[str]:
    return [f"{origin}: {line}" for line in str(error).splitlines()]


def _topics(documents: list[Document]) -> list[dict[str, Any]]:
    every = [topic for each in documents for topic in _recorded(each.config)]
    named = [dict(pairs) for pairs in dict.fromkeys(tuple(topic.items()) for topic in every)]
    return [*named, _OTHERS]


def _recorded(config: AmpsConfig) -> list[dict[str, str]]:
    log = config.transaction_log
    return [
        {"name": topic.name, "message_type": topic.message_type}
        for topic in (log.topics if log else ())
    ]


def _listener(config: AmpsConfig) -> list[LinkListener]:
    transport = config.replication_transport()
    if transport is None or transport.inet_address is None:
        return []
    host, port = split_listen_address(transport.inet_address)
    return [LinkListener(config.name, config.group, host, port)]


def _clashes(documents: list[Document]) -> list[str]:
    # Relative directories lie in a folder of the instance's own, so that files of several hosts
    # run on one machine; an absolute one is taken as it is.
    taken: dict[str, str] = {}
    errors = []
    for document in documents:
        log = document.config.transaction_log
        if log is None or not PurePath(log.journal_directory).is_absolute():
            continue
        path: Path = ("TransactionLog", "JournalDirectory")
        place = str(PurePath(log.journal_directory))
        first = taken.setdefault(place, document.origin(path))
        if first != document.origin(path):
            errors.append(
                f"{document.origin(path)}: JournalDirectory {place} is taken at {first}: "
                "give each instance one of its own"
            )
    return errors


# -- an instance -----------------------------------------------------------------------------
def _instance(config: AmpsConfig) -> dict[str, Any]:
    options: dict[str, Any] = {"topics": [*_recorded(config), _OTHERS]}
    clients = config.client_transports()
    replication = config.replication_transport()
    if replication is not None and replication.inet_address is not None:
        host, options["replication_port"] = split_listen_address(replication.inet_address)
        options["replication_host"] = options["host"] = host
    if clients and clients[0].inet_address is not None:
        options["host"], options["client_port"] = split_listen_address(clients[0].inet_address)
        options["message_types"] = clients[0].message_types
        options["client_transport"] = {"name": clients[0].name, **_terms(clients[0], config)}
    # No transport, no port: what the file does not name is open nowhere.
    options["accepts_links"] = replication is not None
    if replication is not None:
        options["replication_transport"] = {"name": replication.name, **_terms(replication, config)}
    options["replication_transports"] = tuple(
        _more_replication(each, config)
        for each in config.transports.transports
        if each.is_replication and each is not replication
    )
    options["transports"] = tuple(
        _transport(each, config) for each in clients[1:] if runs_for_clients(each)
    )
    options |= instance_modules(config) | admin_settings(config)
    if config.sow_statistics_interval_ns:
        interval_ms = -(-config.sow_statistics_interval_ns // 1_000_000)
        options["sow_stats_interval"] = f"{interval_ms}ms"
    limits = _capacity(config)
    if limits:
        options["capacity"] = limits
    options["defined_types"] = [asdict(each) for each in definitions(config)]
    if config.sow is not None:
        options |= _definitions(config, config.sow)
    actions = actions_of(config)
    if actions.any_downgrade:
        options["downgrade"] = actions.downgrade_settings()
    if actions.running:
        options["actions"] = tuple(actions.running)
    log = config.transaction_log
    if log is not None:
        directory = PurePath(log.journal_directory)
        options["directory"] = str(
            directory if directory.is_absolute() else PurePath(config.name) / directory
        )
        options["journal"] = _journal(log, actions.journal)
    if config.logging is not None:
        options["logs"] = [each.settings() for each in config.logging.targets]
    return options


def _transport(transport: IncomingTransport, config: AmpsConfig) -> dict[str, Any]:
    assert transport.inet_address is not None, "clients come over TCP"
    host, port = split_listen_address(transport.inet_address)
    return {
        "name": transport.name,
        "host": host,
        "port": port,
        "message_types": transport.message_types,
        **_terms(transport, config),
    }


def _more_replication(transport: IncomingTransport, config: AmpsConfig) -> dict[str, Any]:
    assert transport.inet_address is not None, "links come over TCP"
    host, port = split_listen_address(transport.inet_address)
    return {"name": transport.name, "host": host, "port": port, **_terms(transport, config)}


def _terms(transport: IncomingTransport, config: AmpsConfig) -> dict[str, Any]:
    terms = {
        "enabled": transport.initial_state,
        "tls": tls_settings(transport),
        **transport_modules(transport, config),
    }
    limits = {} if transport.is_replication else _capacity(transport)
    return terms | ({"capacity": limits} if limits else {})


DEFAULT_PERCENT = 50


def _capacity(limits: Capacity) -> dict[str, Any]:
    """Returns a file's limits on slow clients; docs/capacity.md has those that it leaves out."""
    age_ns, percent = limits.client_message_age_ns_max, limits.client_capacity_percent_max
    values = {
        "message_memory_bytes_max": ("memory", limits.message_memory_bytes_max),
        "message_disk_bytes_max": ("disk", limits.message_disk_bytes_max),
        "message_disk_path": ("disk_path", limits.message_disk_path),
        "client_message_age_ns_max": (
            "message_age_ms_max",
            None if age_ns is None else f"{-(-age_ns // 1_000_000)}ms",
        ),
        "client_capacity_percent_max": ("client_share", None if percent is None else percent / 100),
    }
    default = None if isinstance(limits, IncomingTransport) else DEFAULT_PERCENT
    return {
        name: value
        for field, (name, value) in values.items()
        if field in limits.model_fields_set
        and value is not None
        # A default is left out, so that a file with its defaults filled in gives the same.
        and not (field == "client_capacity_percent_max" and percent == default)
    }


def _bootstrap(
    config: AmpsConfig, bootstrap: BootstrapStanza, listeners: list[LinkListener]
) -> dict[str, Any]:
    """Returns the sources from which its log is copied."""
    others = [listener for listener in listeners if listener.name != config.name]
    return {
        "sources": tuple(
            resolve(address, None, others)
            for transport in bootstrap.transports
            for address in transport.inet_addresses
        ),
        "tls": dialling_settings(bootstrap.transports),
        "authenticators": authenticators(bootstrap.transports, config),
        "topics": tuple(
            {"name": topic.name, "message_type": topic.message_type} for topic in bootstrap.topics
        ),
    }


def _definitions(config: AmpsConfig, sow: SowStanza) -> dict[str, Any]:
    """Returns the settings of the SOW topics, views and conflated topics that run, and of the
    queues."""
    queues = [queue_settings(queue) for queue in sow.all_queues]
    topics = [settings_of(topic) for topic in sow.topics if not not_running(topic, config)]
    return {"sow_topics": topics, **running_views(config), "queues": queues}


def _journal(log: TransactionLog, actions: list[dict[str, Any]]) -> dict[str, Any]:
    made: dict[str, Any] = {}
    if log.archive_directory is not None:
        # Beside the journal as the file has it; from there in the settings.
        made["archive_directory"] = (
            log.archive_directory
            if PurePath(log.archive_directory).is_absolute()
            or PurePath(log.journal_directory).is_absolute()
            else posixpath.relpath(log.archive_directory, log.journal_directory)
        )
    if "journal_bytes" in log.model_fields_set:
        # The documented floor. Where no size is given, Raylay's own is taken: its segments are not
        # preallocated, and small ones are removed sooner.
        made["segment_bytes"] = max(log.journal_bytes, JOURNAL_BYTES_MIN)
    if "flush_interval_ns" in log.model_fields_set:
        made["durability"] = "interval"
        made["flush_interval"] = _time(max(MILLISECOND_NS, log.flush_interval_ns))
    if actions:
        made["actions"] = tuple(actions)
    return made


def _time(value_ns: int) -> str:
    # Whole milliseconds, in the form that settings have in files.
    return f"{value_ns // MILLISECOND_NS}ms"


# -- its destinations ------------------------------------------------------------------------
def _add_destination(
    builder: FabricBuilder,
    config: AmpsConfig,
    destination: DestinationStanza,
    documents: list[Document],
    listeners: list[LinkListener],
    origin: str,
) -> None:
    addresses = [
        (address, timeout_ns)
        for transport in destination.transports
        for address, timeout_ns in zip(
            transport.inet_addresses,
            _timeouts(transport.reconnect_timeouts_ns, len(transport.inet_addresses)),
            strict=True,
        )
    ]
    # The documented system prefers one connection for both directions.
    waits = any(not transport.inet_addresses for transport in destination.transports)
    options: dict[str, Any] = {"dial": bool(addresses), "share_connection": True}
    if addresses and waits:
        options["waits"] = True
        options["waits_for"] = tuple(waited_for(config, destination, documents, listeners))
    if any(timeout_ns for _, timeout_ns in addresses):
        longest_ns = max(timeout_ns for _, timeout_ns in addresses)
        options["reconnect_timeout_ms"] = tuple(
            _time(max(MILLISECOND_NS, timeout_ns or longest_ns)) for _, timeout_ns in addresses
        )
    options["tls"] = dialling_settings(destination.transports)
    options["authenticator"] = waiting_authenticator(destination.transports, config)
    options["authenticators"] = authenticators(destination.transports, config)
    if "ack_conflation_ns" in destination.model_fields_set:
        options["ack_conflation_ms"] = _time(destination.ack_conflation_ns)
    others = [listener for listener in listeners if listener.name != config.name]
    targets = [resolve(address, destination, others) for address, _ in addresses]
    builder.destination(
        config.name,
        targets if addresses else waited_for(config, destination, documents, listeners),
        sync=destination.sync_type == "sync",
        pass_through=destination.pass_through,
        resync_pass_through=destination.resync_pass_through,
        topics=[
            {
                "name": topic.name,
                "message_type": topic.message_type,
                "filter": topic.filter or "",
                "include_validation": topic.include_validation,
                "exclude_validation": topic.exclude_validation,
            }
            for topic in destination.topics
        ],
        # The documented rule: every check that no Topic excludes, whatever the fabric's shape.
        exclude_validation=(),
        name=destination.name,
        group=destination.group,
        compression=destination.compression,
        compression_type=destination.compression_type,
        origin=origin,
        **options,
    )


def waited_for(
    config: AmpsConfig,
    destination: DestinationStanza,
    documents: Iterable[Document],
    listeners: Iterable[LinkListener],
) -> list[str]:
    """Returns the instances of the set that a Destination without InetAddr waits for: the one with
    the Destination's Name, or else those of its Group that dial this instance. Empty: any instance
    of the Group that connects."""
    found = []
    for other in (document.config for document in documents):
        if other.name == config.name or other.group != destination.group:
            continue
        if other.name == destination.name:
            return [other.name]
        theirs = [listener for listener in listeners if listener.name != other.name]
        if any(
            resolve(address, back, theirs) == config.name
            for back in other.destinations()
            for transport in back.transports
            for address in transport.inet_addresses
        ):
            found.append(other.name)
    return found


def _timeouts(given_ns: tuple[int, ...], count: int) -> tuple[int, ...]:
    if not given_ns:
        return (0,) * count
    return given_ns if len(given_ns) == count else given_ns * count


def resolve(
    address: str, destination: DestinationStanza | None, listeners: Iterable[LinkListener]
) -> str:
    """Returns the name of the instance that listens at an address; the address itself, where
    none of `listeners` is certainly meant.

    An instance that listens on the address's port is meant where the host is its own, or is named
    like it (`amps-2`, `amps-2.example.com`), or the Destination is, and where no other instance
    fits as well. A guess beyond that could join instances that have nothing to do with each other.
    """
    host, port = split_listen_address(address)
    candidates = [
        listener for listener in listeners if listener.port == port and _may_be(host, listener.host)
    ]
    for fits in (
        [each for each in candidates if each.host == host],
        [each for each in candidates if host.split(".")[0].lower() == each.name.lower()],
        [each for each in candidates if destination and each.name == destination.name],
        [each for each in candidates if host in _LOOPBACK],
        [
            each
            for each in candidates
            if destination and each.group == destination.group == destination.name
        ],
    ):
        if len(fits) == 1:
            return fits[0].name
    return address


def _may_be(host: str, listens_on: str) -> bool:
    # An address given to listen on is one of the machine; names may stand for it.
    if listens_on in _EVERYWHERE or listens_on == host:
        return True
    if listens_on in _LOOPBACK:
        return host in _LOOPBACK
    return not host.replace(".", "").isdigit()
