"""The check of a topology before it runs: the findings of `raylay fabric check`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from raylay.services.config.compared_terms import queue_terms, sow_terms
from raylay.services.configuration.exclusions import exclusions, server_names, topic_rules
from raylay.services.configuration.model import (
    DestinationSettings,
    FabricSettings,
    InstanceSettings,
)
from raylay.services.configuration.topology import shares, takes, waited_for
from raylay.services.errors import ConfigurationError
from raylay.services.fabric.cluster.nodes import HOST_LABEL
from raylay.services.fabric.transports import TransportPlanner
from raylay.services.messages.topics import TopicRule
from raylay.services.replication.link.routing import DestinationRoute
from raylay.services.replication.membership.validation import (
    DestinationTerms,
    InstanceDescription,
)
from raylay.services.security.modules import ASKS_NOTHING
from raylay.services.topology.check import SEVERITIES, CheckResult, TopologyFinding, check, listed
from raylay.services.topology.link_validation import validate_links
from raylay.services.topology.members import TopologyMember


def members_of(settings: FabricSettings) -> list[TopologyMember]:
    """Returns the instances of a fabric as the check sees them. A destination's address that is one
    of this fabric's replication ports stands for the instance with that port."""
    by_address = _by_address(settings)
    return [
        TopologyMember(
            instance.name,
            instance.group,
            tuple(
                DestinationRoute(
                    destination.name,
                    destination.group,
                    destination.sync,
                    tuple(TopicRule(t.name, t.message_type) for t in destination.topics),
                    destination.pass_through,
                    _servers(settings, instance, destination, by_address),
                    own_group_only=destination.own_group_only,
                    dials=destination.dial,
                )
                for destination in instance.destinations
            ),
            _shared_log(settings, instance),
            one_way=frozenset(
                destination.name for destination in instance.destinations if _one_way(destination)
            ),
            local=tuple(name for name, _ in _local_queues(settings, instance)),
        )
        for instance in settings.instances
    ]


def _local_queues(settings: FabricSettings, instance: InstanceSettings) -> list[tuple[str, str]]:
    """Returns (name, message type) of the queues that the instance shares with no other."""
    found = settings.queues_of(instance)
    return [(each.name, each.message_type) for each in found if not each.is_distributed]


def _shared_log(settings: FabricSettings, instance: InstanceSettings) -> tuple[TopicRule, ...]:
    """Returns the topics in an instance's log that other instances are to get: all but those of the
    queues that it shares with no other."""
    own = _local_queues(settings, instance)
    names = {name for name, _ in own}
    return tuple(
        rule
        for rule in settings.journaled_of(instance)
        if (rule.name, rule.message_type) not in own
        and (rule.message_type != "*" or rule.name not in names)
    )


def _by_address(settings: FabricSettings) -> dict[str, str]:
    return {
        f"{instance.host}:{instance.replication_port}": instance.name
        for instance in settings.instances
        if instance.replication_port
    }


def descriptions_of(settings: FabricSettings) -> dict[str, InstanceDescription]:
    """Returns the description that each instance will give when links connect
    (`services/server/describe.py`)."""
    excluded = exclusions(settings)
    return {
        instance.name: InstanceDescription(
            instance.name,
            instance.group,
            settings.journaled_of(instance),
            tuple(
                DestinationTerms(
                    each.name,
                    each.group,
                    topic_rules(settings, instance, each, excluded[instance.name, each.name]),
                    each.pass_through,
                    server_names(each),
                )
                for each in instance.destinations
            ),
            sow_terms(settings.sow_of(instance)),
            queue_terms(settings.queues_of(instance)),
        )
        for instance in settings.instances
    }


def _refused(settings: FabricSettings) -> list[TopologyFinding]:
    descriptions = descriptions_of(settings)
    by_address = _by_address(settings)
    return validate_links(
        descriptions,
        (
            (instance.name, terms, _servers(settings, instance, destination, by_address))
            for instance in settings.instances
            for destination, terms in zip(
                instance.destinations, descriptions[instance.name].destinations, strict=True
            )
        ),
    )


def _copies_in_circles(settings: FabricSettings) -> list[TopologyFinding]:
    """Finds instances that would wait for each other if all of them were empty, because each copies
    its log from another of them."""
    by_address = _by_address(settings)
    sources = {
        instance.name: {by_address.get(each, each) for each in instance.bootstrap.sources}
        for instance in settings.instances
        if instance.bootstrap is not None
    }
    waiting = set(sources)
    while starting := {name for name in waiting if not sources[name] <= waiting}:
        waiting -= starting
    if not waiting:
        return []
    names = tuple(sorted(waiting))
    return [
        TopologyFinding(
            "warning",
            "bootstrap_circle",
            names,
            "",
            f"{', '.join(names)} have no source but each other: where all are empty, as at a first "
            "start, none of them ever starts",
            f"take bootstrap from {names[0]}, or give it another source",
        )
    ]


def _wide_ip(settings: FabricSettings) -> list[TopologyFinding]:
    """Addresses of which the files do not say whether one instance answers there."""
    by_address = _by_address(settings)
    found = []
    for instance in settings.instances:
        for destination in instance.destinations:
            if destination.wide_ip is not None or not destination.dial:
                continue
            unknown = [each for each in destination.to if ":" in each and each not in by_address]
            if not unknown:
                continue
            where = f"destination {destination.name} of {instance.name}"
            found.append(
                TopologyFinding(
                    "note",
                    "wide_ip",
                    (instance.name,),
                    "",
                    f"{listed(unknown)} of {where} is of no instance of the files: several servers "
                    "may answer there (wide IP), so the journal is kept until what was sent is "
                    "persisted there, and not only stored",
                    f"write wide_ip at {where}: false where one instance answers, true where "
                    "several do",
                    (instance.name, destination.name),
                )
            )
    return found


def _unsaid(settings: FabricSettings) -> list[TopologyFinding]:
    """Finds links that send no credentials to an instance that asks links for credentials."""
    by_address = _by_address(settings)
    found = []
    for instance in settings.instances:
        for destination in instance.destinations:
            if destination.authenticator or instance.authenticator or settings.authenticator:
                continue
            asking = [
                name
                for name in _servers(settings, instance, destination, by_address)
                if _asks(settings, name)
            ]
            if not asking:
                continue
            where = f"destination {destination.name} of {instance.name}"
            found.append(
                TopologyFinding(
                    "warning",
                    "no_authenticator",
                    (instance.name, *asking),
                    "",
                    f"{where} has no authenticator, and {listed(asking)} asks links who they are: "
                    "it is not let in",
                    f"write authenticator at {where}, at {instance.name} or at the fabric",
                    (instance.name, destination.name),
                )
            )
    return found


def _plain_passwords(settings: FabricSettings) -> list[TopologyFinding]:
    """Finds links that would say a password, or a token, on a line that anybody can read."""
    found = []
    for instance in settings.instances:
        dialling = TransportPlanner(settings, "", instance)
        for destination in instance.destinations:
            if not destination.dial or dialling.dialling(destination.tls, destination.to):
                continue
            own = destination.authenticators or (destination.authenticator,) * len(destination.to)
            spoken = [
                target
                for target, each in zip(destination.to, own, strict=True)
                if (each or instance.authenticator or settings.authenticator)
                and not _is_on_this_host(settings, target)
            ]
            if spoken:
                where = f"destination {destination.name} of {instance.name}"
                found.append(
                    TopologyFinding(
                        "warning",
                        "plain_password",
                        (instance.name,),
                        "",
                        f"{where} has an authenticator and dials {listed(spoken)} without TLS: "
                        "whoever sees the network reads the password",
                        f"give {where} tls, or {listed(spoken)} a transport with TLS",
                        (instance.name, destination.name),
                    )
                )
    return found


def _is_on_this_host(settings: FabricSettings, target: str) -> bool:
    """Returns whether an address, or an instance of the fabric, is reached by loopback."""
    if ":" in target:
        host = target.rpartition(":")[0].strip("[]")
    else:
        other = settings.instance(target)
        if other.node_labels:
            return False  # it listens on the address of its node
        host = other.replication_host or other.host
    return host in ("localhost", "::1") or host.startswith("127.")


def _ownerless(settings: FabricSettings) -> list[TopologyFinding]:
    """Group-local queues whose messages begin at an instance that is none of theirs."""
    found = []
    sharing: dict[tuple[str, str, str, str], list[str]] = {}
    for instance in settings.instances:
        for queue in queue_terms(settings.queues_of(instance)):
            if queue.kind == "group_local":
                domain = queue.domain or instance.group
                key = (queue.name, queue.message_type, domain, queue.initial_owner)
                sharing.setdefault(key, []).append(instance.name)
    for (name, message_type, domain, owner), names in sharing.items():
        if owner not in names:
            found.append(
                TopologyFinding(
                    "warning",
                    "no_initial_owner",
                    tuple(names),
                    "",
                    f"messages of queue {name} ({message_type}) begin at {owner}, and of the "
                    f"files only {listed(names)} are of its domain {domain}: nobody there is given "
                    "them",
                    f"write as the initial owner one of {listed(names)}, or a domain that {owner} "
                    "is in",
                )
            )
    return found


def _one_way_queues(settings: FabricSettings) -> list[TopologyFinding]:
    """Finds queues that a link brings to an instance from which no link leads back: acknowledgments
    and requests that are made there reach no other instance."""
    by_address = _by_address(settings)
    found = []
    for instance in settings.instances:
        for queue in settings.queues_of(instance):
            if not queue.is_distributed:
                continue
            leads = {
                each.name: {
                    name
                    for destination in each.destinations
                    if takes(destination, queue.name, queue.message_type)
                    for name in _servers(settings, each, destination, by_address)
                }
                for each in settings.instances
            }
            for name in sorted(leads[instance.name]):
                if not shares(settings, instance, queue, name):
                    continue
                if instance.name in _reached(leads, name):
                    continue
                found.append(
                    TopologyFinding(
                        "error",
                        "one_way_queue",
                        (instance.name, name),
                        queue.name,
                        f"queue {queue.name} ({queue.message_type}) is of {instance.name} and "
                        f"{name}, and no link brings what {name} says of it back to "
                        f"{instance.name}: consumers at {name} are given nothing",
                        f"give {name} a destination to {instance.name} that takes topics "
                        f"{queue.topic} and {queue.name}, or let {name} have no such queue "
                        "(queues: [])",
                    )
                )
    return found


def _reached(leads: Mapping[str, set[str]], start: str) -> set[str]:
    """Returns the instances that links lead to from `start`, directly or through other
    instances."""
    reached: set[str] = set()
    left = [start]
    while left:
        for name in leads.get(left.pop(), ()):
            if name not in reached:
                reached.add(name)
                left.append(name)
    return reached


def shared_hosts(settings: FabricSettings, host_of: Mapping[str, str]) -> list[TopologyFinding]:
    """Finds hosts on which members of a sync pair keep their data.

    Args:
        host_of: The host of an instance, by the instance's name. An instance without a known host
            is in no finding.
    """
    by_address = _by_address(settings)
    sharing: dict[str, set[str]] = {}
    for instance in settings.instances:
        host = host_of.get(instance.name)
        for destination in instance.destinations if host else ():
            servers = _servers(settings, instance, destination, by_address)
            beside = {name for name in servers if host_of.get(name) == host} - {instance.name}
            if destination.sync and beside:
                sharing.setdefault(host or "", set()).update(beside, (instance.name,))
    return [
        TopologyFinding(
            "warning",
            "shared_host",
            tuple(sorted(names)),
            "",
            f"{listed(sorted(names))} acknowledge for each other and keep their data on the same "
            f"host, {host}: the loss of that host loses every copy of an acknowledged message",
            "put each of them on a host of its own (node_labels, or one more host with the label "
            "of their group)",
        )
        for host, names in sorted(sharing.items())
    ]


def _pinned(settings: FabricSettings) -> list[TopologyFinding]:
    """Finds members of a sync pair whose `node_labels` name the same host."""
    return shared_hosts(
        settings,
        {
            instance.name: instance.node_labels[HOST_LABEL]
            for instance in settings.instances
            if HOST_LABEL in instance.node_labels
        },
    )


def _asks(settings: FabricSettings, name: str) -> bool:
    """Returns whether an instance of this fabric asks links for a password or token."""
    for each in settings.instances:
        if each.name == name:
            first = each.replication_transport
            module = (
                (first.authentication if first is not None else None)
                or each.replication_authentication
                or settings.replication_authentication
            )
            return module is not None and module.module not in ASKS_NOTHING
    return False


def _servers(
    settings: FabricSettings,
    instance: InstanceSettings,
    destination: DestinationSettings,
    by_address: dict[str, str],
) -> tuple[str, ...]:
    """Returns the instances that a destination may reach. A destination that does not dial reaches
    the instances that connect to it."""
    if destination.dial:
        dialled = [by_address.get(target, target) for target in destination.to]
        return tuple(dict.fromkeys((*dialled, *destination.waits_for)))
    return waited_for(settings, instance, destination)


def _one_way(destination: DestinationSettings) -> bool:
    """Returns whether a destination leaves out, for each of its topics, the check that messages are
    replicated back."""
    usual = destination.exclude_validation or ()
    return all(
        "replicate" in (usual if topic.exclude_validation is None else topic.exclude_validation)
        for topic in destination.topics
    )


def check_settings(settings: FabricSettings, publishing: tuple[str, ...] = ()) -> CheckResult:
    """Checks a fabric.

    Args:
        publishing: instances and groups where clients publish; empty: at every instance.

    Raises:
        ConfigurationError: there is no instance or group of such a name.
    """
    members = members_of(settings)
    names = {member.name for member in members} | {member.group for member in members}
    for name in publishing:
        if name not in names:
            raise ConfigurationError(
                f"--publishes {name}: fabric {settings.name} has no instance or group of that "
                f"name; there are {', '.join(sorted(names))}"
            )
    if publishing:
        members = [
            replace(member, publishes=member.name in publishing or member.group in publishing)
            for member in members
        ]
    checked = check(members)
    checked.findings = sorted(
        [
            *checked.findings,
            *_refused(settings),
            *_copies_in_circles(settings),
            *_wide_ip(settings),
            *_unsaid(settings),
            *_plain_passwords(settings),
            *_ownerless(settings),
            *_one_way_queues(settings),
            *_pinned(settings),
        ],
        key=lambda finding: SEVERITIES.index(finding.severity),
    )
    return checked


def impossible(error: ConfigurationError) -> CheckResult:
    """Returns the reasons why a file cannot be loaded, as findings: a line says what to do at its
    end."""
    findings = []
    for line in str(error).splitlines():
        what, _, todo = line.rpartition(": ")
        findings.append(TopologyFinding("error", "clash", (), "", line, todo if what else line))
    return CheckResult((), findings)
