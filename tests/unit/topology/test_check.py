"""Findings beyond the published table, and how they are put together."""

from __future__ import annotations

from dataclasses import replace

import pytest

from raylay.services.messages.topics import TopicRule
from raylay.services.replication.link.routing import DestinationRoute
from raylay.services.topology.check import TopologyFinding, check, listed
from raylay.services.topology.members import ALL, TopologyMember


def to(
    *names: str, group: str, passing: str | None = ".*", sync: bool = True, name: str = ""
) -> DestinationRoute:
    return DestinationRoute(name or names[0], group, sync, ALL, passing, names)


def kinds(members: list[TopologyMember]) -> dict[str, TopologyFinding]:
    return {finding.kind: finding for finding in check(members).findings}


PAIR = [
    TopologyMember("a", "G", (to("b", group="G"),)),
    TopologyMember("b", "G", (to("a", group="G"),)),
]


def test_a_hot_hot_pair_is_clean() -> None:
    assert check(PAIR).findings == []


@pytest.mark.covers("The replication chapters", "a part only: whether all still reaches")
def test_what_depends_on_who_sent_first_is_an_error() -> None:
    found = kinds(
        [
            TopologyMember("p", "P", (to("a", group="A"), to("b", group="B"))),
            TopologyMember("a", "A", (to("b", group="B"),), publishes=False),
            TopologyMember("b", "B", (to("c", group="C", passing="^A$"),), publishes=False),
            TopologyMember("c", "C", publishes=False),
        ]
    )
    finding = found["depends_on_order"]
    assert (finding.severity, finding.instances) == ("error", ("c",))
    assert finding.repair == "write PassThrough '.*' at destination c of b"


def test_a_site_that_others_need_is_named_once() -> None:
    members = [
        TopologyMember("a", "A", (to("h1", "h2", group="H", name="H"),)),
        TopologyMember("h1", "H", (to("h2", group="H"), to("b", group="B"))),
        TopologyMember("h2", "H", (to("h1", group="H"), to("b", group="B"))),
        TopologyMember("b", "B", (to("h1", "h2", group="H", name="H"),)),
    ]
    members[1] = replace(members[1], destinations=(*members[1].destinations, to("a", group="A")))
    members[2] = replace(members[2], destinations=(*members[2].destinations, to("a", group="A")))
    findings = [f for f in check(members).findings if f.kind.endswith("_down")]
    assert {(f.kind, f.instances) for f in findings} == {("site_down", ("h1", "h2"))}


def test_topics_of_one_finding_are_told_together() -> None:
    orders = DestinationRoute("b", "G", True, (TopicRule("orders"),), ".*", ("b",))
    members = [replace(PAIR[0], destinations=(orders,)), PAIR[1]]
    journaled = tuple(TopicRule(name) for name in ("orders", "trades", "quotes"))
    members = [replace(member, journaled=journaled) for member in members]
    found = kinds(members)
    assert found["unreachable"].topic == "trades, quotes"
    assert found["unreachable"].instances == ("b",)


def test_an_instance_that_does_not_journal_a_topic_is_not_meant_to_get_it() -> None:
    quiet = TopologyMember("c", "C", (to("a", group="G"),), (TopicRule("other"),))
    members = [replace(m, journaled=(TopicRule("orders"),)) for m in PAIR]
    assert "unreachable" not in kinds([*members, quiet])


def test_pass_through_that_matches_more_than_it_names() -> None:
    far = [TopologyMember("a", "York", (to("b", group="NewYork", passing="York"),))]
    far.append(TopologyMember("b", "NewYork", (to("a", group="York", passing="^NewYork$"),)))
    finding = kinds(far)["pass_through"]
    assert finding.instances == ("a",)
    assert finding.repair == "write PassThrough '^York$' at destination b of a"


def test_names_in_a_sentence() -> None:
    assert listed([]) == "nobody"
    assert listed(["a"]) == "a"
    assert listed("abc") == "a, b and c"
    assert listed("abcdefgh") == "a, b, c, d, e, f and 2 more"
