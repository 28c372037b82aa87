"""The smallest change that repairs a finding. Each candidate is tried on a copy of the fabric,
which is checked again; a wider rule of an existing destination is tried before a new
destination."""

from __future__ import annotations

import difflib
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from itertools import islice

from raylay.services.messages.topics import TopicRule, all_but
from raylay.services.replication.link.routing import DestinationRoute
from raylay.services.topology.failure_analysis import FailureAnalysis
from raylay.services.topology.members import TopologyMember
from raylay.services.topology.reach import Routes, bits

TRIED_MAX = 48
TRIED_OF_A_KIND_MAX = 12
PUBLISHERS_TRIED_MAX = 4
TARGETS_TRIED_MAX = 8

Change = tuple[str, int, tuple[DestinationRoute, ...]]
"""A repair: the change in words, the number of the instance, and its destinations afterwards."""


def closest(name: str, names: Sequence[str]) -> str:
    """Returns the most similar of several names; `.*`, which matches all, where there is none."""
    found = difflib.get_close_matches(name, names, 1)
    return found[0] if found else ".*"


def to_reach(survey: FailureAnalysis, publishers: int, targets: int, scenario: int = 0) -> str:
    """Returns a repair after which these targets surely get the messages published at an instance,
    in a scenario."""
    some = list(bits(publishers))[:PUBLISHERS_TRIED_MAX]
    wanted = sum(1 << i for i in list(bits(targets))[:TARGETS_TRIED_MAX])
    full = sum((wanted & ~(1 << i)).bit_count() for i in some)
    best, best_text = 0, ""
    for number, (text, at, destinations) in enumerate(_candidates(survey, some, wanted, scenario)):
        if number == TRIED_MAX:
            break
        routes = Routes(_with(survey, at, destinations), survey.routes.topic)
        placed = routes.placement(survey.scenarios[scenario])
        righted = 0
        for publisher in some:
            start = [routes.published(publisher)]
            flow = routes.flow(start, placed, survey.scenarios[scenario].down)
            routes.decide(flow, placed, 1 << publisher)
            righted += (flow.certain & wanted & ~(1 << publisher)).bit_count()
        if righted > best:
            best, best_text = righted, text
        if righted == full:
            return text
    if best_text:
        return f"{best_text}; that repairs a part of it, then check again"
    members = survey.routes.members
    target, source = next(bits(wanted)), some[0]
    return (
        f"give {members[source].name} a destination to {members[target].name}"
        f"{topics_clause(members[source])}"
    )


def _with(
    survey: FailureAnalysis, at: int, destinations: tuple[DestinationRoute, ...]
) -> list[TopologyMember]:
    members = list(survey.routes.members)
    members[at] = replace(members[at], destinations=destinations)
    return members


def _instead(
    member: TopologyMember, place: int, made: DestinationRoute
) -> tuple[DestinationRoute, ...]:
    return (*member.destinations[:place], made, *member.destinations[place + 1 :])


def _candidates(
    survey: FailureAnalysis, publishers: list[int], wanted: int, scenario: int
) -> Iterator[Change]:
    """Yields changes to try, the smallest first; of equal ones first those that lead to the
    targets."""
    routes = survey.routes
    has = certain = 0
    for publisher in publishers:
        flow = survey.exact(publisher, scenario) if scenario else survey.nominal[publisher]
        has |= flow.possible
        certain |= flow.certain
    lacking = ~certain | wanted
    links = [
        link
        for at in bits(has)
        for link in routes.links[at]
        if any(lacking >> server & 1 for server in link.servers)
    ]
    links.sort(key=lambda link: not any(wanted >> server & 1 for server in link.servers))
    lists = list(islice(_longer_lists(survey, has, wanted), TRIED_OF_A_KIND_MAX))
    if scenario:
        yield from lists
    for link in links[:TRIED_OF_A_KIND_MAX]:
        member, destination = routes.members[link.source], link.destination
        for text, made in _wider(survey, member, destination):
            where = f"destination {destination.name} of {member.name}"
            yield text.format(where), link.source, _instead(member, link.place, made)
    if not scenario:
        yield from lists
    yield from _new(survey, publishers, has, certain, wanted)


def _all_of(member: TopologyMember) -> tuple[TopicRule, ...]:
    """Returns all topics that a destination of an instance may take."""
    return (TopicRule(all_but(member.local) if member.local else ".*"),)


def topics_clause(member: TopologyMember) -> str:
    """Returns the clause of an advice about the topics that a new destination of an instance must
    leave out."""
    return f", topics '{all_but(member.local)}'" if member.local else ""


def _shown(routes: Routes, member: TopologyMember) -> str:
    """Returns the topics to be added to a destination of an instance."""
    if member.local and ".*" in routes.topic.names:
        return all_but(member.local)
    return routes.topic.shown


def _wider(
    survey: FailureAnalysis, member: TopologyMember, destination: DestinationRoute
) -> Iterator[tuple[str, DestinationRoute]]:
    routes = survey.routes
    rule = TopicRule(routes.topic.topic, routes.topic.message_type)
    local = routes.passes_topic(destination)
    if not local:
        made = replace(destination, topics=(*destination.topics, rule))
        yield f"add topic {_shown(routes, member)} to {{}}", made
        made = replace(made, pass_through=".*")
        yield f"add topic {_shown(routes, member)} and PassThrough '.*' to {{}}", made
        return
    if destination.pass_through != ".*":
        yield "write PassThrough '.*' at {}", replace(destination, pass_through=".*")
    if destination.own_group_only:
        made = replace(destination, own_group_only=False)
        yield "remove own_group_only at {}", made
        if destination.pass_through != ".*":
            made = replace(made, pass_through=".*")
            yield "write PassThrough '.*' at {} and remove own_group_only there", made


def _longer_lists(survey: FailureAnalysis, has: int, wanted: int) -> Iterator[Change]:
    routes = survey.routes
    for at in bits(has):
        member = routes.members[at]
        taken = {server for link in routes.links[at] for server in link.servers}
        for link in routes.links[at]:
            if not link.destination.dials:
                continue
            for target in bits(wanted):
                other = routes.members[target]
                if other.group != link.destination.group or target in taken or target == at:
                    continue
                if other.group == member.group:
                    continue  # Its own group is reached one by one, not by a list.
                made = replace(
                    link.destination, addresses=(*link.destination.addresses, other.name)
                )
                yield (
                    f"add {other.name} to the servers of destination {link.destination.name} of "
                    f"{member.name}",
                    at,
                    _instead(member, link.place, made),
                )


def _new(
    survey: FailureAnalysis, publishers: list[int], has: int, certain: int, wanted: int
) -> Iterator[Change]:
    routes = survey.routes
    for target in bits(wanted):
        other = routes.members[target]
        mates = routes.group_mask[routes.group_of[target]]
        # Instances of its own group come first, then those that messages are published at.
        order = [*bits(certain & mates), *publishers, *bits(has & mates), *bits(certain)]
        for at in dict.fromkeys(order):
            member = routes.members[at]
            if at == target or any(target in link.servers for link in routes.links[at]):
                continue
            inside = member.group == other.group
            passing = ".*" if inside else f"^{re.escape(member.group)}$"
            made = DestinationRoute(
                other.name, other.group, inside, _all_of(member), passing, (other.name,)
            )
            yield (
                f"give {member.name} a destination to {other.name}, "
                f"{'sync' if inside else 'async'}, PassThrough '{passing}'" + topics_clause(member),
                at,
                (*member.destinations, made),
            )


def to_be_safe(survey: FailureAnalysis, publisher: int, mate: int) -> str:
    """Returns a repair after which a client may fail over from one instance to the other."""
    routes = survey.routes
    member, other = routes.members[publisher], routes.members[mate]
    for place, destination in enumerate(member.destinations):
        if other.name not in destination.addresses:
            continue
        if not destination.sync:
            return f"make destination {destination.name} of {member.name} sync"
        if not routes.passes_topic(destination):
            return (
                f"add topic {_shown(routes, member)} to destination {destination.name} of "
                f"{member.name}"
            )
        rest = tuple(a for a in destination.addresses if a != other.name)
        return (
            f"give {member.name} a destination of its own to {other.name}, sync, and leave "
            f"{', '.join(rest)} to destination {member.destinations[place].name}"
        )
    return (
        f"give {member.name} a destination to {other.name}, sync, PassThrough '.*'"
        f"{topics_clause(member)}"
    )


def to_pass_on(survey: FailureAnalysis, publishers: int, targets: int) -> str:
    """Returns a repair after which the sync destinations of instances pass on the messages that
    these instances acknowledged."""
    routes = survey.routes
    publisher = next(bits(publishers))
    group = routes.members[publisher].group
    first = ""
    for link in routes.links[publisher]:
        if not link.destination.sync or not link.servers:
            continue
        mate = routes.members[link.servers[0]]
        for there in routes.links[link.servers[0]]:
            if publisher in there.servers or there.destination.pass_through == ".*":
                continue
            pattern = there.destination.pass_through
            where = f"destination {there.destination.name} of {mate.name}"
            passing = f"^{re.escape(group)}$"
            if not routes.passes_topic(there.destination):
                rule = TopicRule(routes.topic.topic, routes.topic.message_type)
                made = replace(there.destination, topics=(*there.destination.topics, rule))
                text = f"add topic {_shown(routes, mate)} to {where}"
            else:
                other = pattern and any(re.search(pattern, name) for name in routes.groups)
                if other and not there.destination.own_group_only:
                    passing = f"{pattern}|{passing}"
                made = replace(there.destination, pass_through=passing)
                text = f"write PassThrough '{passing}' at {where}"
            first = first or text
            members = _with(survey, link.servers[0], _instead(mate, there.place, made))
            alone = [
                replace(m, publishes=m.name == routes.members[publisher].name) for m in members
            ]
            again = FailureAnalysis(Routes(alone, routes.topic))
            if not again.stranded(publisher) & targets:
                return text
    if first:
        return f"{first}; that repairs a part of it, then check again"
    return (
        f"let the sync destinations of {routes.members[publisher].name} replicate to "
        f"{routes.members[next(bits(targets))].name}, with a PassThrough that matches {group}"
    )


def to_be_in_order(survey: FailureAnalysis, links: Sequence[tuple[int, int]]) -> str:
    """Returns a repair after which every link brings the same part.

    Args:
        links: (instance, place of the destination) of the links that bring a part.
    """
    routes = survey.routes
    before = {p: flow.certain for p, flow in survey.nominal.items()}
    names = sorted({routes.members[at].name for at, _ in links})
    ways: tuple[tuple[str, Callable[[TopologyMember, DestinationRoute], DestinationRoute]], ...] = (
        (
            "set own_group_only on the destinations to other groups of ",
            lambda _, d: replace(d, own_group_only=True),
        ),
        (
            "write the own group as PassThrough at the destinations to other groups of ",
            lambda m, d: replace(d, pass_through=f"^{re.escape(m.group)}$"),
        ),
        (
            "write PassThrough '.*', without own_group_only, at destinations of ",
            lambda _, d: replace(d, pass_through=".*", own_group_only=False),
        ),
    )
    for text, change in ways:
        members = list(routes.members)
        for at, place in links:
            made = change(members[at], members[at].destinations[place])
            members[at] = replace(members[at], destinations=_instead(members[at], place, made))
        again = FailureAnalysis(Routes(members, routes.topic))
        if all(
            flow.certain & before[p] == before[p] for p, flow in again.nominal.items()
        ) and not any(again.partly(number) for number in range(len(routes.groups))):
            return text + ", ".join(names)
    return (
        "give every link that brings these instances the topic the same topics and a PassThrough "
        f"that passes everything on; those of {', '.join(names)} pass on a part"
    )
