"""The search: what it finds in fabrics small enough to know it, and how little it visits in large
ones. That it is exact is compared with every order of arrivals and with the simulator in
tests/sim/test_topology_simulated.py."""

from __future__ import annotations

from dataclasses import replace

import pytest

from raylay.services.replication.link.routing import DestinationRoute
from raylay.services.topology.failure_analysis import FailureAnalysis
from raylay.services.topology.members import ALL, TopologyMember, topic_classes
from raylay.services.topology.reach import FailureScenario, Routes, bits

pytestmark = pytest.mark.covers("Topology check", "who sent first decides")


def to(*names: str, group: str, passing: str | None = ".*", sync: bool = True) -> DestinationRoute:
    return DestinationRoute(names[0], group, sync, ALL, passing, names)


def survey(members: list[TopologyMember]) -> FailureAnalysis:
    (topic,) = topic_classes(members)
    return FailureAnalysis(Routes(members, topic))


def names(found: FailureAnalysis, mask: int) -> set[str]:
    return {found.routes.members[i].name for i in bits(mask)}


RACE = [
    TopologyMember("p", "P", (to("a", group="A"), to("b", group="B"))),
    TopologyMember("a", "A", (to("b", group="B"),)),
    TopologyMember("b", "B", (to("c", group="C", passing="^A$"),)),
    TopologyMember("c", "C"),
]
"""`b` passes to `c` what it got from `a`, not what it got from `p` itself."""


def test_who_sent_first_decides() -> None:
    found = survey(RACE)
    flow = found.nominal[0]
    assert names(found, flow.possible) == {"p", "a", "b", "c"}
    assert names(found, flow.certain) == {"p", "a", "b"}
    assert found.all_senders(0) == {1: [(0, True)], 2: [(0, True), (1, True)], 3: [(2, False)]}
    assert [found.routes.members[i].name for i in found.route(0, 3)] == ["p", "a", "b", "c"]
    assert found.hops(0) == {0: 0, 1: 1, 2: 1, 3: 3}
    assert found.route(3, 0) == []


def test_one_of_two_ways_is_always_there() -> None:
    """`b` passes to `c` what comes from `a`, and to `d`, who passes it on, what comes from `p`."""
    members = [
        *RACE[:2],
        TopologyMember(
            "b", "B", (to("c", group="C", passing="^A$"), to("d", group="D", passing="^P$"))
        ),
        TopologyMember("c", "C"),
        TopologyMember("d", "D", (to("c", group="C"),)),
    ]
    found = survey(members)
    assert names(found, found.nominal[0].certain) == {"p", "a", "b", "c"}
    # By one pass it cannot be seen, and is searched again.
    assert not found.alive(0)[3] & 1


def test_a_message_does_not_come_back() -> None:
    members = [
        TopologyMember("a", "A", (to("b", group="B"),)),
        TopologyMember("b", "B", (to("a", group="A"),)),
    ]
    found = survey(members)
    assert found.all_senders(0) == {1: [(0, True)]}
    assert len(found.nominal[0].chains) == 2


def test_links_move_to_the_next_server_that_is_up_and_share_none() -> None:
    members = [
        TopologyMember(
            "p",
            "P",
            (
                to("b1", "b2", group="B", sync=False),
                DestinationRoute("x", "B", True, ALL, None, ("b1",)),
            ),
        ),
        TopologyMember("b1", "B"),
        TopologyMember("b2", "B"),
    ]
    found = survey(members)
    places = [found.placement(s).servers[0] for s, _ in enumerate(found.scenarios)]
    assert [s.name for s in found.scenarios] == ["", "p", "b1", "b2", "B", "2"]
    assert places == [[2, 1], [2, 1], [2, -1], [-1, 1], [-1, -1], [2, 1]]


@pytest.mark.covers("Topology check", "a link that does not dial is where a server's own link")
def test_a_link_that_waits_is_where_a_link_of_its_servers_has_come() -> None:
    """B dials the first of A1 and A2 that is up; the other one has no link to B meanwhile."""
    waits = replace(to("B", group="gb", sync=False), dials=False)
    members = [
        TopologyMember("A1", "ga", (to("A2", group="ga"), waits)),
        TopologyMember("A2", "ga", (to("A1", group="ga"), waits)),
        TopologyMember("B", "gb", (to("A1", "A2", group="ga", sync=False),)),
    ]
    routes = Routes(members, topic_classes(members)[0])
    usual = routes.placement(FailureScenario("all up", ""))
    assert usual.servers == [[1, 2], [0, -1], [0]]
    assert routes.placement(FailureScenario("instance", "A1", 1)).servers[1:] == [[-1, 2], [1]]
    found = survey(members)
    assert names(found, found.nominal[1].certain) == {"A1", "A2", "B"}
    silent = [replace(member, destinations=member.destinations[:1]) for member in members[:2]]
    alone = survey([*silent, replace(members[2], destinations=())])
    assert names(alone, alone.nominal[0].possible) == {"A1", "A2"}
