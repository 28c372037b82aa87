"""A repair that is named rights the finding when it is done."""

from __future__ import annotations

from dataclasses import replace

import pytest

from raylay.services.messages.topics import TopicRule
from raylay.services.replication.link.routing import DestinationRoute
from raylay.services.topology import repair
from raylay.services.topology.check import check
from raylay.services.topology.members import ALL, TopologyMember

pytestmark = pytest.mark.covers("Topology check", "a repair that is named rights the finding")


def to(*names: str, group: str, passing: str | None = ".*", sync: bool = True) -> DestinationRoute:
    return DestinationRoute(names[0], group, sync, ALL, passing, names)


def chain(passing: str | None) -> list[TopologyMember]:
    return [
        TopologyMember("a", "A", (to("b", group="B"),)),
        TopologyMember("b", "B", (to("c", group="C", passing=passing),), publishes=False),
        TopologyMember("c", "C", publishes=False),
    ]


def repairs(members: list[TopologyMember], kind: str) -> list[str]:
    return [finding.repair for finding in check(members).findings if finding.kind == kind]


def test_a_wider_rule_comes_before_a_new_link() -> None:
    assert repairs(chain(None), "unreachable") == ["write PassThrough '.*' at destination c of b"]
    assert repairs(chain(".*"), "unreachable") == []


def test_a_new_link_where_there_is_none() -> None:
    members = chain(".*")
    members[1] = replace(members[1], destinations=())
    (text,) = repairs(members, "unreachable")
    assert text == "give a a destination to c, async, PassThrough '^A$'"
    members[0] = replace(
        members[0],
        destinations=(*members[0].destinations, to("c", group="C", passing="^A$", sync=False)),
    )
    assert repairs(members, "unreachable") == []


def test_own_group_only_is_taken_away_where_it_stops_what_is_meant_to_pass() -> None:
    members = chain(".*")
    stopping = replace(members[1].destinations[0], own_group_only=True)
    members[1] = replace(members[1], destinations=(stopping,))
    assert repairs(members, "unreachable") == ["remove own_group_only at destination c of b"]


def test_a_topic_is_added() -> None:
    members = chain(".*")
    narrow = replace(members[1].destinations[0], topics=(TopicRule("trades"),))
    members[1] = replace(members[1], destinations=(narrow,))
    members = [replace(member, journaled=(TopicRule("orders"),)) for member in members]
    assert repairs(members, "unreachable") == ["add topic orders to destination c of b"]


def test_a_failover_pair_is_made_safe() -> None:
    members = [
        TopologyMember("a", "G", (to("b", group="G", sync=False),)),
        TopologyMember("b", "G", (to("a", group="G"),)),
    ]
    assert repairs(members, "unsafe_failover") == ["make destination b of a sync"]


def test_the_closest_name() -> None:
    assert repair.closest("Chcago", ["London", "Chicago"]) == "Chicago"
    assert repair.closest("x", ["London"]) == ".*"
