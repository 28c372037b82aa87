"""Whether a topology is right, before it runs: what `raylay fabric check` tells."""

from __future__ import annotations

from dataclasses import replace

from raylay.services.configuration.exclusions import exclusions, server_names, topic_rule
from raylay.services.configuration.model import (
    DestinationSettings,
    FabricSettings,
    InstanceSettings,
)
from raylay.services.configuration.topology import waited_for
from raylay.services.errors import ConfigurationError
from raylay.services.messages.topics import TopicRule
from raylay.services.replication.routing import Destination
from raylay.services.replication.validation import (
    Description,
    DestinationTerms,
)
from raylay.services.security.modules import ASKS_NOTHING
from raylay.services.topology.check import SEVERITIES, Checked, Finding, check, listed
from raylay.services.topology.members import Member
from raylay.services.topology.refused import refused_links


def members_of(settings: FabricSettings) -> list[Member]:
    """The instances of a fabric as the check sees them. An address of this fabric's replication
    ports is that instance."""
    by_address = _by_address(settings)
    return [
        Member(
            instance.name,
            instance.group,
            tuple(
                Destination(
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
            settings.journaled_of(instance),
            one_way=frozenset(
                destination.name for destination in instance.destinations if _one_way(destination)
            ),
        )
        for instance in settings.instances
    ]


def _by_address(settings: FabricSettings) -> dict[str, str]:
    return {
        f"{instance.host}:{instance.replication_port}": instance.name
        for instance in settings.instances
        if instance.replication_port
    }


def descriptions_of(settings: FabricSettings) -> dict[str, Description]:
    """What each instance will tell of itself when links connect (`services/server/describe.py`)."""
    excluded = exclusions(settings)
    return {
        instance.name: Description(
            instance.name,
            instance.group,
            settings.journaled_of(instance),
            tuple(
                DestinationTerms(
                    each.name,
                    each.group,
                    tuple(
                        topic_rule(topic, excluded[instance.name, each.name])
                        for topic in each.topics
                    ),
                    each.pass_through,
                    server_names(each),
                )
                for each in instance.destinations
            ),
            settings.sow_terms_of(instance),
            settings.queue_terms_of(instance),
        )
        for instance in settings.instances
    }


def _refused(settings: FabricSettings) -> list[Finding]:
    descriptions = descriptions_of(settings)
    by_address = _by_address(settings)
    return refused_links(
        descriptions,
        (
            (instance.name, terms, _servers(settings, instance, destination, by_address))
            for instance in settings.instances
            for destination, terms in zip(
                instance.destinations, descriptions[instance.name].destinations, strict=True
            )
        ),
    )


def _copies_in_circles(settings: FabricSettings) -> list[Finding]:
    """Instances that, all of them empty, would wait for each other to copy from."""
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
        Finding(
            "warning",
            "bootstrap_circle",
            names,
            "",
            f"{', '.join(names)} have no source but each other: where all are empty, as at a first "
            "start, none of them ever starts",
            f"take bootstrap from {names[0]}, or give it another source",
        )
    ]


def _wide_ip(settings: FabricSettings) -> list[Finding]:
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
                Finding(
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


def _unsaid(settings: FabricSettings) -> list[Finding]:
    """Links that say nothing of themselves to an instance that asks who they are."""
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
                Finding(
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


def _ownerless(settings: FabricSettings) -> list[Finding]:
    """Group-local queues whose messages begin at an instance that is none of theirs."""
    found = []
    sharing: dict[tuple[str, str, str, str], list[str]] = {}
    for instance in settings.instances:
        for queue in settings.queue_terms_of(instance):
            if queue.kind == "group_local":
                domain = queue.domain or instance.group
                key = (queue.name, queue.message_type, domain, queue.initial_owner)
                sharing.setdefault(key, []).append(instance.name)
    for (name, message_type, domain, owner), names in sharing.items():
        if owner not in names:
            found.append(
                Finding(
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


def _asks(settings: FabricSettings, name: str) -> bool:
    """Whether an instance of this fabric wants a password or token of links."""
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
    """The instances that a destination may reach. One that does not dial reaches those that connect
    to it."""
    if destination.dial:
        dialled = [by_address.get(target, target) for target in destination.to]
        return tuple(dict.fromkeys((*dialled, *destination.waits_for)))
    return waited_for(settings, instance, destination)


def _one_way(destination: DestinationSettings) -> bool:
    """Whether a destination says of all its topics that they need not come back."""
    usual = destination.exclude_validation or ()
    return all(
        "replicate" in (usual if topic.exclude_validation is None else topic.exclude_validation)
        for topic in destination.topics
    )


def check_settings(settings: FabricSettings, publishing: tuple[str, ...] = ()) -> Checked:
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
            *_ownerless(settings),
        ],
        key=lambda finding: SEVERITIES.index(finding.severity),
    )
    return checked


def impossible(error: ConfigurationError) -> Checked:
    """What keeps a file from being loaded, as findings: a line says what to do at its end."""
    findings = []
    for line in str(error).splitlines():
        what, _, todo = line.rpartition(": ")
        findings.append(Finding("error", "clash", (), "", line, todo if what else line))
    return Checked((), findings)
