"""Findings on a topology (seeds: "Geographic Replication with High Availability", "PassThrough
Replication", "Sync vs Async Acknowledgment").

Intent, where the files do not say it: every instance takes publishes; every instance that journals
a topic is meant to get it from all of them; a destination that excludes the `replicate` check is
meant to be one-way; the members of a group are each other's failover partners. Requirements of
queues come with those.

    unreachable           error    publishes of one instance never arrive at another one
    depends_on_order      error    they arrive or not, depending on which copy comes first
    list_position         error    they do not arrive while links are at a later server of lists
    unsafe_failover       error    a member of a group may lack what another one acknowledged
    refused               error    a link fails a check of validation when it connects
    (link_validation.py) clash                 error    names, ports, groups: such a fabric does not
    start instance_down         warning  they do not arrive while one instance is down
    site_down             warning  they do not arrive while one site is down
    stranded              warning  what is acknowledged waits for its instance to come back
    no_sync_destination   warning  an instance acknowledges what nobody else has
    group_differs         warning  members of a group that are not configured alike
    pass_through          warning  PassThrough matches no group, or more groups than it names
    overlap               warning  two destinations of an instance may claim the same server
    bootstrap_circle      warning  instances that have no source to copy from but each other
    no_authenticator      warning  a link says nothing to a server that asks it
    (fabric/checks) plain_password        warning  a link says a password without TLS
    (fabric/checks) no_initial_owner      warning  messages of a queue begin at who has it
    not (fabric/checks) one_way_queue         error    nothing comes back from an instance
    that shares a queue shared_host           warning  members of a sync pair keep their data on one
    host exposed               warning  others may read or change data or secrets
    (fabric/checks) late_arrivals         note     a message may come behind a later one
    of its publisher wide_ip               note     several servers may answer at an address
    (fabric/checks)

A note is of what the documented rules bring with them and loses nothing: never an error.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal

from raylay.services.replication.link.routing import DestinationRoute
from raylay.services.topology import repair
from raylay.services.topology.failure_analysis import FailureAnalysis
from raylay.services.topology.members import TopologyMember, topic_classes
from raylay.services.topology.reach import Routes, bits

Severity = Literal["error", "warning", "note"]
SEVERITIES: tuple[Severity, ...] = ("error", "warning", "note")
"""Severities of findings, the worst first."""
NAMES_SHOWN = 6


@dataclass(frozen=True, slots=True)
class TopologyFinding:
    """One fault of a topology.

    Attributes:
        kind: a word from the list at the top of this file.
        instances: the instances that are affected; `repair` names those to be changed.
        topic: names or expressions of the topics concerned; empty: all topics.
        repair: the smallest change that repairs it.
        subject: an instance and a destination of it that the files declare; empty: the finding has
            no single place.
    """

    severity: Severity
    kind: str
    instances: tuple[str, ...]
    topic: str
    explanation: str
    repair: str
    subject: tuple[str, ...] = ()

    def at(self, origins: Mapping[tuple[str, ...], str]) -> TopologyFinding:
        """Returns the finding with its place in the files before the explanation, where that is
        known."""
        place = origins.get(self.subject)
        return replace(self, explanation=f"{place}: {self.explanation}") if place else self


@dataclass(slots=True)
class CheckResult:
    """The result of a check.

    Attributes:
        surveys: the routes of messages, for each class of topics.
    """

    members: tuple[TopologyMember, ...]
    findings: list[TopologyFinding] = field(default_factory=list)
    surveys: list[FailureAnalysis] = field(default_factory=list)

    @property
    def errors(self) -> int:
        return sum(finding.severity == "error" for finding in self.findings)

    @property
    def warnings(self) -> int:
        return sum(finding.severity == "warning" for finding in self.findings)

    @property
    def notes(self) -> int:
        return len(self.findings) - self.errors - self.warnings


def check(members: Sequence[TopologyMember]) -> CheckResult:
    """Returns all findings on a topology, errors first."""
    checked = CheckResult(tuple(members))
    for topic in topic_classes(members):
        survey = FailureAnalysis(Routes(members, topic))
        checked.surveys.append(survey)
    found = _per_topic(checked.surveys, _reach)
    found += _per_topic(checked.surveys, _down)
    found += _per_topic(checked.surveys, _failover)
    found += _per_topic(checked.surveys, _stranded)
    # A late message is reported only where every message arrives.
    found += _per_topic([s for s in checked.surveys if _arrives(s)], _late)
    for rule in (_alone, _differing, _pass_through, _overlap):
        found += rule(checked.members)
    checked.findings = sorted(found, key=lambda finding: SEVERITIES.index(finding.severity))
    return checked


def _per_topic(
    surveys: Iterable[FailureAnalysis], rule: Callable[[FailureAnalysis], Iterator[TopologyFinding]]
) -> list[TopologyFinding]:
    """Returns the findings of a rule. A finding that several classes of topics share is returned
    once."""
    topics: dict[TopologyFinding, list[str]] = {}
    for survey in surveys:
        for finding in rule(survey):
            topics.setdefault(finding, []).append(survey.routes.topic.shown)
    return [
        TopologyFinding(f.severity, f.kind, f.instances, ", ".join(names), f.explanation, f.repair)
        for f, names in topics.items()
    ]


def listed(names: Iterable[str]) -> str:
    """Lists names for a sentence, the first few of many."""
    every = list(names)
    shown = every[:NAMES_SHOWN]
    if len(every) > len(shown):
        return f"{', '.join(shown)} and {len(every) - len(shown)} more"
    return " and ".join(filter(None, (", ".join(shown[:-1]), shown[-1]))) if shown else "nobody"


def _names(survey: FailureAnalysis, mask: int) -> tuple[str, ...]:
    return tuple(survey.routes.members[i].name for i in bits(mask))


def _gathered(missing: dict[int, int]) -> dict[int, int]:
    """Inverts a map of publishers to targets: groups the targets that lack the same publishers."""
    publishers: dict[int, int] = {}
    for publisher, targets in missing.items():
        for target in bits(targets):
            publishers[target] = publishers.get(target, 0) | 1 << publisher
    found: dict[int, int] = {}
    for target, mask in publishers.items():
        found[mask] = found.get(mask, 0) | 1 << target
    return {targets: mask for mask, targets in found.items()}


# -- where messages arrive ---------------------------------------------------------------------
def _reach(survey: FailureAnalysis) -> Iterator[TopologyFinding]:
    never = {p: survey.wanted(p) & ~flow.possible for p, flow in survey.nominal.items()}
    # What is meant to be one-way and comes all the same must come surely, too.
    unsure = {p: flow.possible & ~flow.certain for p, flow in survey.nominal.items()}
    for targets, publishers in _gathered(never).items():
        yield TopologyFinding(
            "error",
            "unreachable",
            _names(survey, targets),
            "",
            f"messages published at {listed(_names(survey, publishers))} never arrive at "
            f"{listed(_names(survey, targets))}",
            repair.to_reach(survey, publishers, targets),
        )
    for targets, publishers in _gathered(unsure).items():
        yield TopologyFinding(
            "error",
            "depends_on_order",
            _names(survey, targets),
            "",
            f"whether a message published at {listed(_names(survey, publishers))} arrives at "
            f"{listed(_names(survey, targets))} depends on which copy arrives first on the way, "
            "because PassThrough depends on the sender of that copy",
            repair.to_reach(survey, publishers, targets),
        )


def _arrives(survey: FailureAnalysis) -> bool:
    return all(not survey.wanted(p) & ~flow.certain for p, flow in survey.nominal.items())


def _down(survey: FailureAnalysis) -> Iterator[TopologyFinding]:
    told: dict[int, int] = {}
    missing = survey.missing()
    # Instances first: what one instance explains is not told again of its site.
    for s, lost in missing.items():
        scenario = survey.scenarios[s]
        if scenario.kind == "site":
            lost = {p: mask & ~told.get(p, 0) for p, mask in lost.items()}
        elif scenario.kind == "instance":
            for publisher, mask in lost.items():
                told[publisher] = told.get(publisher, 0) | mask
        for targets, publishers in _gathered(lost).items():
            who = listed(_names(survey, targets))
            whose = listed(_names(survey, publishers))
            if scenario.kind == "lists":
                yield TopologyFinding(
                    "error",
                    "list_position",
                    _names(survey, targets),
                    "",
                    f"while links with several servers are at number {scenario.name} of their "
                    f"lists, messages published at {whose} do not arrive at {who}: the servers "
                    "of a list do not pass on the same messages",
                    repair.to_reach(survey, publishers, targets, s),
                )
            else:
                what = "site " if scenario.kind == "site" else ""
                yield TopologyFinding(
                    "warning",
                    f"{scenario.kind}_down",
                    (scenario.name,)
                    if scenario.kind == "instance"
                    else _names(survey, scenario.down),
                    "",
                    f"while {what}{scenario.name} is down, messages published at {whose} do not "
                    f"arrive at {who}",
                    repair.to_reach(survey, publishers, targets, s),
                )


def _stranded(survey: FailureAnalysis) -> Iterator[TopologyFinding]:
    lost = {publisher: survey.stranded(publisher) for publisher in survey.publishers}
    by_targets: dict[int, int] = {}
    for publisher, targets in lost.items():
        if targets:
            by_targets[targets] = by_targets.get(targets, 0) | 1 << publisher
    for targets, publishers in by_targets.items():
        yield TopologyFinding(
            "warning",
            "stranded",
            _names(survey, publishers),
            "",
            f"messages that {listed(_names(survey, publishers))} acknowledged just before going "
            f"down do not reach {listed(_names(survey, targets))} until it is back: its sync "
            "destinations have them and do not pass them on",
            repair.to_pass_on(survey, publishers, targets),
        )


def _failover(survey: FailureAnalysis) -> Iterator[TopologyFinding]:
    routes = survey.routes
    for publisher in survey.publishers:
        mates = routes.group_mask[routes.group_of[publisher]] & routes.journaling
        unsafe = mates & ~survey.durable(publisher) & survey.nominal[publisher].possible
        name = routes.members[publisher].name
        for mate in bits(unsafe):
            other = routes.members[mate].name
            link = next((k for k in routes.links[publisher] if mate in k.servers), None)
            direct = link is not None and not link.destination.sync
            yield TopologyFinding(
                "error",
                "unsafe_failover",
                (name, other),
                "",
                f"a client may not fail over from {name} to {other}, though both are in group "
                f"{routes.members[mate].group}: "
                + (
                    "the link between them is async, so"
                    if direct
                    else "no sync link surely brings the messages there, so"
                )
                + f" {other} may lack what {name} acknowledged",
                repair.to_be_safe(survey, publisher, mate),
            )


def _late(survey: FailureAnalysis) -> Iterator[TopologyFinding]:
    routes = survey.routes
    late = 0
    links: dict[tuple[int, int], int] = {}
    groups = []
    for number, group in enumerate(routes.groups):
        found = survey.partly(number)
        if found:
            groups.append(group)
        for target, partial in found.items():
            late |= 1 << target
            for link in partial:
                links[link.source, link.place] = links.get((link.source, link.place), 0) | 1
    if not late:
        return
    shown = [
        f"{routes.members[at].name} to {routes.links[at][place].destination.name}"
        for at, place in sorted(links)
    ]
    yield TopologyFinding(
        "note",
        "late_arrivals",
        _names(survey, late),
        "",
        f"at {listed(_names(survey, late))} a message of {listed(groups)} may come behind a later "
        f"one of its publisher, and is journaled as late: {listed(shown)} bring a part of what "
        "other links bring, which part depends on which copy came first",
        repair.to_be_in_order(survey, list(links)),
    )


# -- configuration -----------------------------------------------------------------------------
def _alone(members: tuple[TopologyMember, ...]) -> list[TopologyFinding]:
    found = []
    for member in members:
        if not member.publishes or any(d.sync for d in member.destinations):
            continue
        mates = [m.name for m in members if m.group == member.group and m is not member]
        inside = [d.name for d in member.destinations if set(mates) & set(d.addresses)]
        if inside:
            change = f"make destination {inside[0]} of {member.name} sync"
        elif mates:
            change = f"give {member.name} a sync destination to {mates[0]}"
            change += repair.topics_clause(member)
        elif member.destinations:
            change = (
                f"add a second instance to {member.group} with sync links both ways, or make "
                f"{member.name}'s destination {member.destinations[0].name} sync"
            )
        else:
            change = f"give {member.name} a sync destination, or keep clients from publishing there"
        found.append(
            TopologyFinding(
                "warning",
                "no_sync_destination",
                (member.name,),
                "",
                f"{member.name} takes publishes and has no sync destination: messages that it "
                "acknowledges are on its own disk only",
                change,
            )
        )
    return found


def _differing(members: tuple[TopologyMember, ...]) -> list[TopologyFinding]:
    groups: dict[str, list[TopologyMember]] = {}
    for member in members:
        groups.setdefault(member.group, []).append(member)
    common = Counter(_relative(member, d) for member in members for d in member.destinations)
    found = []
    for group, inside in groups.items():
        names = {member.name for member in inside}
        kinds: dict[tuple[frozenset[str], frozenset[str]], list[TopologyMember]] = {}
        for member in inside:
            journaled = frozenset(f"journals {_rules([rule])}" for rule in member.journaled)
            outward = frozenset(_described(d, names) for d in member.destinations)
            kinds.setdefault((journaled, outward), []).append(member)
        if len(kinds) < 2:
            continue
        # What most members have is taken for intended, of equals what is common elsewhere.
        usual = max(
            kinds,
            key=lambda kind: (
                len(kinds[kind]),
                sum(common[_relative(kinds[kind][0], d)] for d in kinds[kind][0].destinations),
            ),
        )
        for kind, differing in kinds.items():
            if kind == usual:
                continue
            has = sorted((kind[0] | kind[1]) - (usual[0] | usual[1]))
            lacks = sorted((usual[0] | usual[1]) - (kind[0] | kind[1]))
            who = listed(member.name for member in differing)
            pattern = listed(member.name for member in kinds[usual])
            parts = [f"{who} {text}" for text in has] + [f"{pattern} {text}" for text in lacks]
            found.append(
                TopologyFinding(
                    "warning",
                    "group_differs",
                    tuple(member.name for member in differing),
                    "",
                    f"the members of group {group} are meant to be equal: {'; '.join(parts)}",
                    f"configure {who} as {pattern}",
                )
            )
    return found


def _rules(topics: Iterable[object]) -> str:
    return ", ".join(
        f"{getattr(t, 'name', t)}"
        + ("" if getattr(t, "message_type", "*") == "*" else f" ({getattr(t, 'message_type', '')})")
        for t in topics
    )


def _described(destination: DestinationRoute, names: set[str]) -> str:
    """Describes a destination in a way that is equal for equal members of a group."""
    inside = bool(names & set(destination.addresses))
    to = "its own group" if inside else f"[{', '.join(sorted(destination.addresses))}]"
    mode = "sync" if destination.sync else "async"
    passing = destination.pass_through if destination.pass_through is not None else "nothing"
    own = ", own_group_only" if destination.own_group_only else ""
    return (
        f"replicates {_rules(sorted(destination.topics, key=str))} to {to} {mode} with "
        f"PassThrough {passing}{own}"
    )


def _relative(member: TopologyMember, destination: DestinationRoute) -> tuple[object, ...]:
    """Returns a destination relative to its member, so that equal members of a group compare
    equal."""
    pattern = destination.pass_through
    own = pattern is not None and pattern.strip("^$").replace("\\", "") == member.group
    return (
        destination.group == member.group,
        len(destination.addresses),
        destination.sync,
        "own" if own else pattern,
        destination.own_group_only,
        destination.topics,
    )


def _pass_through(members: tuple[TopologyMember, ...]) -> list[TopologyFinding]:
    groups = list(dict.fromkeys(member.group for member in members))
    matches: dict[str, list[str]] = {}
    found = []
    for member in members:
        for destination in member.destinations:
            pattern = destination.pass_through
            if pattern is None:
                continue
            where = f"destination {destination.name} of {member.name}"
            if pattern not in matches:
                matches[pattern] = [group for group in groups if re.search(pattern, group)]
            matched = matches[pattern]
            named = pattern.strip("^$").replace("\\", "")
            if not matched:
                close = repair.closest(named, groups)
                found.append(
                    TopologyFinding(
                        "warning",
                        "pass_through",
                        (member.name,),
                        "",
                        f"PassThrough {pattern!r} of {where} matches no group of the fabric "
                        f"({listed(groups)}): no message that comes by replication is passed on",
                        f"write PassThrough '{close}' at {where}",
                    )
                )
            elif named in groups and set(matched) != {named}:
                also = [group for group in matched if group != named]
                found.append(
                    TopologyFinding(
                        "warning",
                        "pass_through",
                        (member.name,),
                        "",
                        f"PassThrough {pattern!r} of {where} matches {listed(also)} beside "
                        f"{named}: it may match anywhere in a name",
                        f"write PassThrough '^{re.escape(named)}$' at {where}",
                    )
                )
    return found


def _overlap(members: tuple[TopologyMember, ...]) -> list[TopologyFinding]:
    found = []
    for member in members:
        claimed: dict[str, DestinationRoute] = {}
        for destination in member.destinations:
            for address in destination.addresses:
                other = claimed.setdefault(address, destination)
                if other is destination:
                    continue
                found.append(
                    TopologyFinding(
                        "warning",
                        "overlap",
                        (member.name, address),
                        "",
                        f"destinations {other.name} and {destination.name} of {member.name} both "
                        f"name {address}: there is one link from an instance to an instance, so "
                        "whichever connects first keeps the other one away",
                        f"remove {address} from destination "
                        f"{(destination if len(destination.addresses) > 1 else other).name} of "
                        f"{member.name}, or join the two",
                    )
                )
    return found
