"""Plan of a fabric: from its settings to what each instance is started with: ports, directories,
addresses.

`fabric.json` in the fabric's directory keeps what was chosen at the first start, so that later
starts, and other processes, find the same fabric.
"""

from __future__ import annotations

import errno
import os
import secrets
import socket
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from raylay.services.client.credentials import credentials
from raylay.services.client.failover import Server
from raylay.services.config import json_text
from raylay.services.config.bootstrap import BootstrapConfig
from raylay.services.config.instance import (
    DestinationConfig,
    InstanceConfig,
)
from raylay.services.configuration.actions import divided
from raylay.services.configuration.exclusions import exclusions, server_names, topic_rules
from raylay.services.configuration.model import (
    DestinationSettings,
    FabricSettings,
    InstanceSettings,
)
from raylay.services.configuration.reserved import with_drill_topic
from raylay.services.errors import ConfigurationError, FabricError
from raylay.services.fabric.cluster.nodes import NodePlace
from raylay.services.fabric.files import write_private_text
from raylay.services.fabric.observability import log_options, tracing_options
from raylay.services.fabric.planned_stop import links_at_rest
from raylay.services.fabric.records.record import OrphanedDirectory, RecordedMove
from raylay.services.fabric.records.registry import FABRIC_FILE as FABRIC_FILE
from raylay.services.fabric.transports import TransportPlanner, client_tls, module, modules
from raylay.services.messages.digests import digest
from raylay.services.messages.topics import TopicRule
from raylay.services.net.tls_config import TlsConfig

_CONFIG_PURPOSE = b"raylay-config"
FREE_PORT_MIN = 20_000
EPHEMERAL_PORT_MIN_DEFAULT = 32_768
PORTS_TRIED_MAX = 4_000


@dataclass(slots=True)
class InstancePorts:
    """The ports of one instance. `metrics` is None for an instance that serves no metrics, `admin`
    for one without the administrator's interface."""

    client: int
    replication: int
    metrics: int | None = None
    admin: int | None = None


@dataclass(slots=True)
class FabricRecord:
    """The record of a fabric that is kept between starts.

    Attributes:
        settings: the fabric's settings, as JSON.
        ports: ports by instance.
        settled: instances that have been ready once: from then on an empty data directory means a
            lost disk, and the instance catches up with a peer before it admits clients.
        restarting: instances that are to be restarted with these settings, each with the digest of
            the configuration with which it runs until then (`config_digest`); empty: it may run
            with that one or a later one.
        nodes: the nodes on which instances with node labels were put, and where they stay.
        node_label: label of nodes whose value is a group's name, for instances that name no node.
        moves: moves of the instances that no longer live where they began.
        left_over: former data directories of instances that were moved.
        number: number of times that the record was written: of several records, the one with the
            highest number counts.
        starting: instances that were declared while the fabric ran and have not come up yet.
        key: key by which the fabric's instances know one another (services/protocol/link/proof.py).
        stopped: instances that `raylay stop` has stopped: they stay so until `raylay start`, or
            until the fabric is started again.
        drained: stopped instances of which the others have every message.
    """

    name: str
    directory: str
    settings: str
    ports: dict[str, InstancePorts] = field(default_factory=dict)
    settled: list[str] = field(default_factory=list)
    restarting: dict[str, str] = field(default_factory=dict)
    nodes: dict[str, NodePlace] = field(default_factory=dict)
    node_label: str = ""
    moves: dict[str, RecordedMove] = field(default_factory=dict)
    left_over: list[OrphanedDirectory] = field(default_factory=list)
    number: int = 0
    starting: list[str] = field(default_factory=list)
    key: str = ""
    stopped: list[str] = field(default_factory=list)
    drained: list[str] = field(default_factory=list)

    def save(self, directory: Path | None = None) -> None:
        """Writes the record into the fabric's directory, or as a copy into another directory, whole
        or not at all.

        Raises:
            FabricError: the disk does not take it.
        """
        write_private_text((directory or Path(self.directory)) / FABRIC_FILE, self.to_json())

    def to_json(self) -> str:
        """Returns the record as JSON that `from_json` reads."""
        return json_text.written(self)

    @classmethod
    def from_json(cls, text: str, where: str) -> FabricRecord:
        """Returns the record that `to_json` wrote.

        Raises:
            FabricError: it is something else, or of another version.
        """
        try:
            return json_text.read(cls, text, where, "use the release that wrote it")
        except ConfigurationError as error:
            raise FabricError(str(error)) from None

    @classmethod
    def load(cls, directory: str | Path) -> FabricRecord | None:
        """Returns the record in a directory; None: the directory has none.

        Raises:
            FabricError: it cannot be read.
        """
        path = Path(directory) / FABRIC_FILE
        try:
            text = path.read_text(encoding="utf-8")
        except FileNotFoundError:
            return None
        except OSError as error:
            raise FabricError(f"{path} cannot be read: {error.strerror}") from None
        return cls.from_json(text, str(path))


def newest(*records: FabricRecord | None) -> FabricRecord | None:
    """Returns the record that was written last, and of several such the first; None: there is
    none."""
    found = [each for each in records if each is not None]
    return max(found, key=lambda each: each.number) if found else None


def record_of(
    settings: FabricSettings, directory: Path, before: FabricRecord | None = None
) -> FabricRecord:
    """Returns the record for a start: `before`, or else the record in the directory, either brought
    up to date, or else a new one.

    Ports of the settings go before kept ones; for the others free ones are chosen.

    Raises:
        FabricError: the directory holds another fabric, or too few ports are free.
    """
    record = before or FabricRecord.load(directory)
    if record is None:
        key = secrets.token_hex(16)
        record = FabricRecord(settings.name, str(directory), settings.to_json(), key=key)
    elif record.name != settings.name:
        raise FabricError(
            f"{directory} holds fabric {record.name}, not {settings.name}: give another directory"
        )
    record.directory = str(directory)
    bring_up_to_date(record, settings)
    return record


def bring_up_to_date(record: FabricRecord, settings: FabricSettings) -> None:
    """Gives a record other settings, and ports to the instances that have none yet.

    Raises:
        FabricError: too few ports are free.
    """
    record.settings = settings.to_json()
    chosen = {
        port
        for instance in settings.instances
        for port in (
            instance.metrics_port,
            settings.interface_of(instance).port,
            *(each.port for each in (*instance.for_clients(), *instance.for_instances())),
        )
        if port
    }
    ports: dict[str, InstancePorts] = {}
    for instance in settings.instances:
        kept = record.ports.get(instance.name)
        interface = settings.interface_of(instance)
        wants_metrics = settings.metrics.enabled or instance.metrics_port is not None
        ports[instance.name] = InstancePorts(
            instance.client_port or _kept(kept.client if kept else None, chosen, instance.host),
            instance.replication_port
            or _kept(
                kept.replication if kept else None,
                chosen,
                instance.replication_host or instance.host,
            ),
            (instance.metrics_port or _kept(kept.metrics if kept else None, chosen, instance.host))
            if wants_metrics
            else None,
            (
                interface.port
                or _kept(kept.admin if kept else None, chosen, interface.host or instance.host)
            )
            if interface.serves
            else None,
        )
    record.ports = ports


@dataclass(frozen=True, slots=True)
class FabricChanges:
    """The changes that make a running fabric match a declaration.

    Attributes:
        started: instances that are new, or have not come up yet.
        restarted: instances whose new configuration differs from the one that they run with.
        removed: instances that the declaration has no more.
        directories: data directories of these, which are kept, in the same order.
    """

    started: tuple[str, ...] = ()
    restarted: tuple[str, ...] = ()
    removed: tuple[str, ...] = ()
    directories: tuple[str, ...] = ()


def config_digest(config: InstanceConfig) -> str:
    """Returns a digest of the part of a configuration for which a running instance is restarted
    when it changes."""
    # `announce_to` matters at the next start only: a new instance must restart no other one.
    text = replace(config, announce_to=()).to_json()
    return digest(text.encode(), _CONFIG_PURPOSE).hex()


def changes(running: FabricRecord, wanted: FabricRecord) -> FabricChanges:
    """Compares a running fabric with its new declaration.

    Args:
        running: record of the running fabric.
        wanted: the same record with the new settings.

    Raises:
        FabricError: an instance's data would lie elsewhere, because no change of settings moves
            data; or only new instances would be left of a group, and nobody could fill them.
    """
    before = FabricSettings.from_json(running.settings)
    settings = FabricSettings.from_json(wanted.settings)
    if settings.name != before.name:
        raise FabricError(f"fabric {before.name} runs, these are settings of {settings.name}")
    names = {instance.name for instance in settings.instances}
    gone = [instance for instance in before.instances if instance.name not in names]
    for group in {instance.group for instance in gone} & set(settings.groups()):
        if not any(each.name in names for each in before.group(group)):
            raise FabricError(
                f"of group {group} only new instances would be left, and nobody could fill them: "
                "apply a file that has the former ones, too, and then one without them"
            )
    known = {instance.name: instance for instance in before.instances}
    started, restarted = [], []
    for instance in settings.instances:
        old = known.get(instance.name)
        if old is None or instance.name in running.starting:
            started.append(instance.name)
            continue
        for key in ("directory", "node_labels"):
            if getattr(old, key) != getattr(instance, key):
                raise FabricError(
                    f"instance {instance.name}: {key} would change, and its data would stay where "
                    "it is: stop the fabric and move the data first"
                )
        runs_with = running.restarting.get(instance.name)
        if runs_with is None:
            runs_with = config_digest(instance_config(before, running, old))
        # A stopped one is given its configuration when it is started.
        is_changed = config_digest(instance_config(settings, wanted, instance)) != runs_with
        if is_changed and instance.name not in running.stopped:
            restarted.append(instance.name)
    return FabricChanges(
        tuple(started),
        tuple(restarted),
        tuple(instance.name for instance in gone),
        tuple(str(data_directory(running, instance)) for instance in gone),
    )


def _kept(port: int | None, chosen: set[int], host: str) -> int:
    if port and port not in chosen:
        chosen.add(port)
        return port
    return free_port(chosen, host)


def free_port(chosen: set[int], host: str = "127.0.0.1") -> int:
    """Returns a port that no process listens on and that is not in `chosen`, and adds it to
    `chosen`.

    Taken below the ports that the kernel gives to outgoing connections: an instance must find its
    port free again when it restarts, and a link that dials a dead peer's port must not be given
    that very port as its own and meet itself.

    Raises:
        FabricError: none was found.
    """
    ports = ports_to_give()
    # Fabrics that start at the same time begin at different places.
    start = int.from_bytes(os.urandom(4), "little") % len(ports)
    for at in range(start, start + min(len(ports), PORTS_TRIED_MAX)):
        port = ports[at % len(ports)]
        if port in chosen:
            continue
        try:
            family = socket.AF_INET6 if ":" in host else socket.AF_INET
            with socket.socket(family, socket.SOCK_STREAM) as probe:
                probe.bind((host, port))
        except OSError as error:
            if isinstance(error, socket.gaierror):
                raise FabricError(f"host {host} is not known: {error.strerror}") from None
            if error.errno != errno.EADDRNOTAVAIL:  # else another machine's: only it can tell
                continue
        chosen.add(port)
        return port
    raise FabricError(f"no free port on {host} between {ports.start} and {ports.stop}")


def ports_to_give() -> range:
    """Returns the range of ports in which `free_port` looks."""
    return range(FREE_PORT_MIN, max(FREE_PORT_MIN + 1_000, _ephemeral_port_min()))


def _ephemeral_port_min() -> int:
    try:
        return int(Path("/proc/sys/net/ipv4/ip_local_port_range").read_text("ascii").split()[0])
    except (OSError, ValueError, IndexError):
        return EPHEMERAL_PORT_MIN_DEFAULT


# -- configurations ----------------------------------------------------------------------------
def data_directory(record: FabricRecord, instance: InstanceSettings) -> Path:
    """Returns the data directory of an instance."""
    move = record.moves.get(instance.name)
    directory = move.directory if move is not None else instance.directory or instance.name
    return Path(record.directory) / directory


def client_address(record: FabricRecord, instance: InstanceSettings) -> str:
    """Returns the address `host:port` at which clients reach an instance."""
    return f"{_shown(instance.host)}:{record.ports[instance.name].client}"


def replication_address(record: FabricRecord, instance: InstanceSettings) -> str:
    """Returns the address `host:port` at which links reach an instance."""
    host = instance.replication_host or instance.host
    return f"{_shown(host)}:{record.ports[instance.name].replication}"


def admin_address(
    settings: FabricSettings, record: FabricRecord, instance: InstanceSettings
) -> str:
    """Returns the address `host:port` at which people and other instances reach an instance's
    administrator's interface; empty: it has none."""
    port = record.ports[instance.name].admin
    if port is None:
        return ""
    declared = settings.interface_of(instance)
    return declared.advertised or f"{_shown(declared.host or instance.host)}:{port}"


def consoles(settings: FabricSettings, record: FabricRecord) -> list[str]:
    """Returns the URLs of the instances' consoles, in the order declared."""
    found = []
    for instance in settings.instances:
        address = admin_address(settings, record, instance)
        interface = instance_config(settings, record, instance).interface
        if address and interface is not None:
            found.append(f"{'https' if interface.tls else 'http'}://{address}/")
    return found


def servers_of(record: FabricRecord, group: str, client: str) -> dict[str, Any]:
    """`servers` and `group` for a Client, in the order declared.

    Args:
        group: may be empty where the fabric has only one.
        client: the client's name, for the error.

    Raises:
        ConfigurationError: there is no such group, or it has to be named.
    """
    settings = FabricSettings.from_json(record.settings)
    groups = settings.groups()
    if not group:
        if len(groups) > 1:
            raise ConfigurationError(
                f"client {client}: name one group of {', '.join(groups)} with --group (in Python "
                "group=…): a client uses one group"
            )
        group = groups[0]
    return {"servers": servers(settings, record, group), "group": group}


def client_options(
    settings: FabricSettings, record: FabricRecord, group: str, client: str
) -> dict[str, Any]:
    """Arguments of a Client of the fabric: servers, group, the settings' client section, and the
    user, where the environment names one.

    Raises:
        ConfigurationError: there is no such group, or it has to be named.
    """
    wanted = settings.client
    return {
        **credentials(),
        **servers_of(record, group, client),
        "heartbeat_s": wanted.heartbeat_ms / 1000,
        "ack_conflation_ms": wanted.ack_conflation_ms,
        "publish_timeout_s": wanted.publish_timeout_ms / 1000,
        "tls": client_tls(settings, record.directory),
    }


def servers(settings: FabricSettings, record: FabricRecord, group: str | None) -> list[Server]:
    """Addresses for clients, of one group or (None) of all instances, in the order declared.

    Raises:
        ConfigurationError: there is no such group.
    """
    members = settings.group(group) if group is not None else settings.instances
    return [
        Server(client_address(record, instance), instance.name, instance.group)
        for instance in members
    ]


def _shown(host: str) -> str:
    # A server that listens everywhere is reached here by loopback.
    if host in ("0.0.0.0", "*", "::"):
        return "127.0.0.1"
    return f"[{host}]" if ":" in host else host


def instance_config(
    settings: FabricSettings, record: FabricRecord, instance: InstanceSettings
) -> InstanceConfig:
    """Returns the configuration with which one instance is started.

    Raises:
        ConfigurationError: a value is wrong.
    """
    settings = with_drill_topic(settings)
    instance = settings.instance(instance.name)
    journal = settings.journal_of(instance)
    actions, policy = divided(settings.actions_of(instance)), settings.downgrade_of(instance)
    ports = record.ports[instance.name]
    transports = TransportPlanner(settings, record.directory, instance)
    excluded = exclusions(settings)
    declared = {each.name for each in settings.instances}
    # As soon as the instance runs, its acks wait for its peers, also if it was stopped before.
    at_rest = links_at_rest(settings, [each for each in record.stopped if each != instance.name])
    config = InstanceConfig(
        name=instance.name,
        group=instance.group,
        topics=settings.journaled_of(instance),
        unjournaled=settings.unjournaled_of(instance),
        destinations=tuple(
            _destination_config(
                settings,
                record,
                instance,
                destination,
                excluded[instance.name, destination.name],
                transports.dialling(destination.tls, destination.to),
                is_at_rest=(instance.name, destination.name) in at_rest,
            )
            for destination in instance.destinations
        ),
        sow=settings.sow_of(instance),
        views=settings.views_of(instance),
        conflated_topics=settings.conflated_of(instance),
        type_definitions=settings.types_of(instance),
        queue_definitions=settings.queues_of(instance),
        actions=actions.running,
        sow_stats_interval_ms=settings.sow_stats_interval_ms_of(instance),
        client_transports=transports.for_clients(ports.client, client_address(record, instance)),
        replication_transports=transports.for_instances(
            ports.replication, replication_address(record, instance)
        ),
        **modules(settings, record.directory, instance),
        interface=None if ports.admin is None else transports.interface(ports.admin),
        capacity=transports.capacity(),
        announce_tls=transports.dialling(None, declared),
        first=instance.name not in record.settled,
        journal=replace(
            journal,
            archive_directory=_archive_directory(record, instance, journal.archive_directory),
            actions=journal.actions + actions.journal,
        ),
        policy=replace(policy, looks=policy.looks + actions.age_checks),
        tracing=tracing_options(settings, record.directory),
        log=log_options(settings.logs_of(instance), record.directory, instance.name),
        metrics_port=ports.metrics,
        metrics_host=instance.host,
        bootstrap=_bootstrap_config(settings, record, instance),
        generation=_generation(record, instance.name),
        placements=tuple(
            (name, move.generation, *addresses_of(record, settings.instance(name)))
            for name, move in sorted(record.moves.items())
            if name in declared  # else it was moved, and later taken out of the fabric
        ),
        announce_to=_announce_to(settings, record, instance),
        node_address=_node_address(record, instance),
        fabric_key=record.key,
        drills=settings.drills == "allowed",
        direct_links=settings.direct_links,
    )
    config.check()
    return config


def _archive_directory(
    record: FabricRecord, instance: InstanceSettings, directory: str | None
) -> str | None:
    return str(data_directory(record, instance) / directory) if directory else None


def _generation(record: FabricRecord, name: str) -> int:
    return record.moves[name].generation if name in record.moves else 0


def addresses_of(record: FabricRecord, instance: InstanceSettings) -> tuple[str, str]:
    """Returns the replication address and the client address of an instance."""
    return replication_address(record, instance), client_address(record, instance)


def _announce_to(
    settings: FabricSettings, record: FabricRecord, instance: InstanceSettings
) -> tuple[str, ...]:
    """Returns the replication addresses to which an instance announces where it lives now, if it
    was
    moved or its node has another address: those of the others, and its own former ones."""
    if instance.name not in record.moves and not _node_address(record, instance):
        return ()
    others = [each for each in settings.instances if each.name != instance.name]
    formers = [each.address for each in record.left_over if each.name == instance.name]
    return (*(replication_address(record, other) for other in others), *formers)


def _node_address(record: FabricRecord, instance: InstanceSettings) -> str:
    """Returns the address of the instance's node, where it listens there."""
    place = record.nodes.get(instance.name)
    hosts = (instance.host, instance.replication_host)
    return place.address if place is not None and place.address in hosts else ""


def _bootstrap_config(
    settings: FabricSettings, record: FabricRecord, instance: InstanceSettings
) -> BootstrapConfig | None:
    wanted = instance.bootstrap
    move = record.moves.get(instance.name)
    # Who filled it may have been taken out of the fabric since.
    declared = {each.name: each for each in settings.instances}
    fillers = [declared[name] for name in move.filled_by if name in declared] if move else []
    if fillers:
        tls = TransportPlanner(settings, record.directory, instance).dialling(
            None, [each.name for each in fillers]
        )
        return BootstrapConfig(
            tuple(replication_address(record, each) for each in fillers), tls=tls
        )
    if wanted is None:
        return None
    return BootstrapConfig(
        tuple(
            source if ":" in source else replication_address(record, settings.instance(source))
            for source in wanted.sources
        ),
        tuple(TopicRule(topic.name, topic.message_type) for topic in wanted.topics),
        tls=TransportPlanner(settings, record.directory, instance).dialling(
            wanted.tls, wanted.sources
        ),
        authenticator=module(wanted.authenticator, record.directory),
        authenticators=tuple(module(each, record.directory) for each in wanted.authenticators),
    )


def _destination_config(
    settings: FabricSettings,
    record: FabricRecord,
    instance: InstanceSettings,
    destination: DestinationSettings,
    excluded: frozenset[str],
    tls: TlsConfig | None,
    *,
    is_at_rest: bool,
) -> DestinationConfig:
    addresses: list[str] = []
    clients: list[str] = []
    for target in destination.to:
        if ":" in target:
            addresses.append(target)
            continue
        other = settings.instance(target)
        if destination.dial:
            addresses.append(replication_address(record, other))
        clients.append(client_address(record, other))
    clients += [client_address(record, settings.instance(name)) for name in destination.waits_for]
    shared = destination.shared_with(DestinationConfig)
    return DestinationConfig(
        **shared
        | {
            "addresses": tuple(addresses),
            "client_addresses": tuple(clients),
            "server_names": server_names(destination),
            "topics": topic_rules(settings, instance, destination, excluded),
            "tls": tls,
            "starts_downgraded": is_at_rest,
            "authenticator": module(destination.authenticator, record.directory),
            "authenticators": tuple(
                module(each, record.directory) for each in destination.authenticators
            ),
        }
    )
