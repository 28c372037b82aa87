"""The search: what it finds in fabrics small enough to know it, and how little it visits in large
ones. That it is exact is compared with every order of arrivals and with the simulator in
tests/sim/test_topology_simulated.py."""

from __future__ import annotations

from dataclasses import replace

from raylay.services.replication.routing import Destination
from raylay.services.topology.members import ALL, Member, topic_classes
from raylay.services.topology.reach import Routes, Scenario, Survey, bits


def to(*names: str, group: str, passing: str | None = ".*", sync: bool = True) -> Destination:
    return Destination(names[0], group, sync, ALL, passing, names)


def survey(members: list[Member]) -> Survey:
    (topic,) = topic_classes(members)
    return Survey(Routes(members, topic))


def names(found: Survey, mask: int) -> set[str]:
    return {found.routes.members[i].name for i in bits(mask)}


RACE = [
    Member("p", "P", (to("a", group="A"), to("b", group="B"))),
    Member("a", "A", (to("b", group="B"),)),
    Member("b", "B", (to("c", group="C", passing="^A$"),)),
    Member("c", "C"),
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
        Member("b", "B", (to("c", group="C", passing="^A$"), to("d", group="D", passing="^P$"))),
        Member("c", "C"),
        Member("d", "D", (to("c", group="C"),)),
    ]
    found = survey(members)
    assert names(found, found.nominal[0].certain) == {"p", "a", "b", "c"}
    # By one pass it cannot be seen, and is searched again.
    assert not found.alive(0)[3] & 1


def test_a_message_does_not_come_back() -> None:
    members = [Member("a", "A", (to("b", group="B"),)), Member("b", "B", (to("a", group="A"),))]
    found = survey(members)
    assert found.all_senders(0) == {1: [(0, True)]}
    assert len(found.nominal[0].chains) == 2


def test_links_move_to_the_next_server_that_is_up_and_share_none() -> None:
    members = [
        Member(
            "p",
            "P",
            (
                to("b1", "b2", group="B", sync=False),
                Destination("x", "B", True, ALL, None, ("b1",)),
            ),
        ),
        Member("b1", "B"),
        Member("b2", "B"),
    ]
    found = survey(members)
    places = [found.placement(s).servers[0] for s, _ in enumerate(found.scenarios)]
    assert [s.name for s in found.scenarios] == ["", "p", "b1", "b2", "B", "2"]
    assert places == [[2, 1], [2, 1], [2, -1], [-1, 1], [-1, -1], [2, 1]]


def test_a_link_that_waits_is_where_a_link_of_its_servers_has_come() -> None:
    """B dials the first of A1 and A2 that is up; the other one has no link to B meanwhile."""
    waits = replace(to("B", group="gb", sync=False), dials=False)
    members = [
        Member("A1", "ga", (to("A2", group="ga"), waits)),
        Member("A2", "ga", (to("A1", group="ga"), waits)),
        Member("B", "gb", (to("A1", "A2", group="ga", sync=False),)),
    ]
    routes = Routes(members, topic_classes(members)[0])
    usual = routes.placement(Scenario("all up", ""))
    assert usual.servers == [[1, 2], [0, -1], [0]]
    assert routes.placement(Scenario("instance", "A1", 1)).servers[1:] == [[-1, 2], [1]]
    found = survey(members)
    assert names(found, found.nominal[1].certain) == {"A1", "A2", "B"}
    silent = [replace(member, destinations=member.destinations[:1]) for member in members[:2]]
    alone = survey([*silent, replace(members[2], destinations=())])
    assert names(alone, alone.nominal[0].possible) == {"A1", "A2"}


def test_sync_links_and_what_is_acknowledged() -> None:
    members = [
        Member("a1", "A", (to("a2", group="A"), to("b", group="B", sync=False))),
        Member("a2", "A", (to("a1", group="A", sync=False),)),
        Member("b", "B"),
    ]
    found = survey(members)
    assert names(found, found.durable(0)) == {"a1", "a2"}
    assert names(found, found.durable(1)) == {"a2"}
    # What a1 acknowledged and did not send to b before it went down: a2 cannot send it there.
    assert names(found, found.stranded(0)) == {"b"}
    assert found.stranded(1) == 0


def regions(count: int, size: int) -> list[Member]:
    found = []
    for region in range(count):
        for i in range(size):
            mates = tuple(to(f"{region}-{j}", group=f"r{region}") for j in range(size) if j != i)
            others = tuple(
                Destination(
                    f"r{other}",
                    f"r{other}",
                    False,
                    ALL,
                    f"^r{region}$",
                    tuple(f"{other}-{j}" for j in range(size)),
                    own_group_only=True,
                )
                for other in range(count)
                if other != region
            )
            found.append(Member(f"{region}-{i}", f"r{region}", mates + others))
    return found


def test_two_hundred_instances_take_few_states() -> None:
    """Two searches for each publisher, of a few states an instance: every scenario is decided by
    the one pass, none is searched again."""
    found = survey(regions(100, 2))
    assert found.missing() == {}
    assert [p for p in found.publishers if found.stranded(p)] == []
    assert found.undecided == 0
    assert found.routes.searches == 2 * 200
    assert found.routes.states_visited <= 2 * 200 * 200 * 2
    assert found.routes.chains_dropped == 0


def test_a_hub_is_searched_again_only_for_the_hub() -> None:
    spokes = 60
    members = [Member("hub", "H", tuple(to(f"s{i}", group=f"S{i}") for i in range(spokes)))]
    members += [Member(f"s{i}", f"S{i}", (to("hub", group="H"),)) for i in range(spokes)]
    found = survey(members)
    missing = found.missing()
    assert [found.scenarios[s].name for s in missing] == ["hub"]
    assert found.routes.searches == 2 * (spokes + 1) + spokes
