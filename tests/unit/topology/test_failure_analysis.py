"""What a check asks of the routes, in how many searches."""

from __future__ import annotations

import pytest
from unit.topology.test_reach import names, survey, to

from raylay.services.replication.link.routing import DestinationRoute
from raylay.services.topology.members import ALL, TopologyMember


@pytest.mark.covers("Topology check", "a group's failover pairs are joined by sync links")
def test_sync_links_and_what_is_acknowledged() -> None:
    members = [
        TopologyMember("a1", "A", (to("a2", group="A"), to("b", group="B", sync=False))),
        TopologyMember("a2", "A", (to("a1", group="A", sync=False),)),
        TopologyMember("b", "B"),
    ]
    found = survey(members)
    assert names(found, found.durable(0)) == {"a1", "a2"}
    assert names(found, found.durable(1)) == {"a2"}
    # What a1 acknowledged and did not send to b before it went down: a2 cannot send it there.
    assert names(found, found.stranded(0)) == {"b"}
    assert found.stranded(1) == 0


def regions(count: int, size: int) -> list[TopologyMember]:
    found = []
    for region in range(count):
        for i in range(size):
            mates = tuple(to(f"{region}-{j}", group=f"r{region}") for j in range(size) if j != i)
            others = tuple(
                DestinationRoute(
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
            found.append(TopologyMember(f"{region}-{i}", f"r{region}", mates + others))
    return found


@pytest.mark.covers("Topology check", "200 instances: states visited")
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
    members = [TopologyMember("hub", "H", tuple(to(f"s{i}", group=f"S{i}") for i in range(spokes)))]
    members += [TopologyMember(f"s{i}", f"S{i}", (to("hub", group="H"),)) for i in range(spokes)]
    found = survey(members)
    missing = found.missing()
    assert [found.scenarios[s].name for s in missing] == ["hub"]
    assert found.routes.searches == 2 * (spokes + 1) + spokes
