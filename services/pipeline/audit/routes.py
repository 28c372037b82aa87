"""The routes that a fabric's configuration guarantees, and the reasons where it does not.

It uses the routes of the topology check (services/topology/reach.py) with all instances up. A
message that does not surely arrive at an instance has one of the reasons below. An instance before
it lost its data, or was moved, counts as an instance of its own to which nothing leads; the later
one gets its messages as far as others bring them.

    not_journaled   the topic is not in its transaction log
    filter          it would for certain, but for a destination's content filter
    undecided       PassThrough lets it on or not, by which copy came first
    pass_through    PassThrough (or `own_group_only`) keeps it
    topic           destinations lead there, and one on each way does not take the topic
    not_connected   no destinations lead there
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace

from raylay.services.configuration.model import FabricSettings
from raylay.services.configuration.reserved import with_drill_topic
from raylay.services.fabric.checks.check import members_of
from raylay.services.messages.topics import (
    TopicMatcher,
    TopicRule,
)
from raylay.services.pipeline.audit.judgement import Expectation
from raylay.services.replication.link.routing import DestinationRoute
from raylay.services.topology.members import TopicClass, TopologyMember
from raylay.services.topology.reach import FailureScenario, MessageFlow, Routes, bits

ALL = (TopicRule(".*"),)
FORMER = "\0"
"""Suffix of an instance's name that stands for the instance before it lost its data or was
moved."""
UNDISTURBED = FailureScenario("all up", "")
REASON_TEXTS = {
    "not_journaled": "the topic is not in its transaction log",
    "filter": "a destination's content filter",
    "undecided": "PassThrough, which depends on the copy that arrives first",
    "pass_through": "PassThrough",
    "topic": "the topic is not replicated there",
    "not_connected": "no destination leads there",
}


class ConfiguredRoutes:
    """The routes of one fabric. Topics that all its rules treat alike are looked at once."""

    def __init__(self, settings: FabricSettings) -> None:
        settings = with_drill_topic(settings)
        self._members = members_of(settings)
        self._numbers = {member.name: at for at, member in enumerate(self._members)}
        self._filtering = {
            (instance.name, destination.name): tuple(
                TopicRule(topic.name, topic.message_type)
                for topic in destination.topics
                if not topic.filter
            )
            for instance in settings.instances
            for destination in instance.destinations
            if any(topic.filter for topic in destination.topics)
        }
        sets = [member.journaled for member in self._members]
        sets += [each.topics for member in self._members for each in member.destinations]
        sets += self._filtering.values()
        self._matchers = [TopicMatcher(rules) for rules in dict.fromkeys(sets)]
        self._answers: dict[tuple[tuple[bool, ...], int, bool], dict[str, str]] = {}

    def why(
        self, origin: str, topic: str, message_type: str, former: bool = False
    ) -> Mapping[str, str] | None:
        start = self._numbers.get(origin)
        if start is None:
            return None
        names = topic.encode(), message_type.encode()
        key = tuple(matcher.matches(*names) for matcher in self._matchers), start, former
        found = self._answers.get(key)
        if found is None:
            members = self._members
            if former:
                was = members[start]
                start, members = len(members), [*members, replace(was, name=was.name + FORMER)]
            asked = TopicClass(topic, message_type, (topic,))
            found = self._answers[key] = self._why(members, start, asked)
        return found

    def _why(
        self, members: Sequence[TopologyMember], start: int, topic: TopicClass
    ) -> dict[str, str]:
        plain = Routes(members, topic)
        arrives = _flow(plain, start)
        surely = arrives.certain
        if self._filtering:
            unfiltered = _changed(members, self._unfiltered)
            surely &= _flow(Routes(unfiltered, topic), start).certain
        free = _flow(Routes(_changed(members, _passing_on), topic), start).possible
        everything = [replace(member, journaled=ALL) for member in members]
        linked = _flow(Routes(_changed(everything, _taking_all), topic), start).possible
        reasons = (
            (~plain.journaling, "not_journaled"),
            (arrives.certain, "filter"),
            (arrives.possible, "undecided"),
            (free, "pass_through"),
            (linked, "topic"),
            (-1, "not_connected"),
        )
        lacking = ~(surely | 1 << start) & ((1 << len(members)) - 1)
        return {
            members[at].name: next(reason for mask, reason in reasons if mask >> at & 1)
            for at in bits(lacking)
        }

    def _unfiltered(
        self, member: TopologyMember, destination: DestinationRoute
    ) -> DestinationRoute:
        name = member.name.removesuffix(FORMER)
        topics = self._filtering.get((name, destination.name), destination.topics)
        return replace(destination, topics=topics)


def _flow(routes: Routes, start: int) -> MessageFlow:
    if not routes.journaling >> start & 1:
        # What is not journaled is not replicated.
        return MessageFlow({}, 1 << start, 1 << start)
    placed = routes.placement(UNDISTURBED)
    return routes.decide(routes.flow([routes.published(start)], placed), placed, 1 << start)


def _passing_on(member: TopologyMember, destination: DestinationRoute) -> DestinationRoute:
    return replace(destination, pass_through=".*", own_group_only=False)


def _taking_all(member: TopologyMember, destination: DestinationRoute) -> DestinationRoute:
    return replace(_passing_on(member, destination), topics=ALL)


def _changed(
    members: Iterable[TopologyMember],
    change: Callable[[TopologyMember, DestinationRoute], DestinationRoute],
) -> list[TopologyMember]:
    return [
        replace(
            member,
            destinations=tuple(change(member, destination) for destination in member.destinations),
        )
        for member in members
    ]


def expected_by(settings: FabricSettings) -> Expectation:
    """Returns the deliveries that a fabric's configuration guarantees with all instances up."""
    return ConfiguredRoutes(settings).why


def expected_everywhere() -> Expectation:
    """Returns an expectation of every message at every instance, for journals without a
    configuration."""
    return lambda origin, topic, message_type, former=False: {}
