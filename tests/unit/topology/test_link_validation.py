"""Links that validation would refuse are found before anything runs."""

from __future__ import annotations

from dataclasses import replace

import pytest
from unit.configuration.amps.test_fabric import regional_defines, regional_files
from unit.configuration.test_exclusions import failures, record

from raylay.services.configuration.builder import FabricBuilder
from raylay.services.configuration.files import load_fabric
from raylay.services.configuration.yaml_file import parse
from raylay.services.fabric.checks.check import check_settings, descriptions_of
from raylay.services.fabric.plan import instance_config
from raylay.services.messages.topics import TopicRule
from raylay.services.replication.membership.validation import (
    CHECKS,
    DestinationTerms,
    InstanceDescription,
    QueueTerms,
    SowTerms,
)
from raylay.services.server.describe import describe
from raylay.services.topology.check import TopologyFinding
from raylay.services.topology.link_validation import validate_links

pytestmark = pytest.mark.covers(
    "Topology check", "a link that validation would refuse is found before"
)

ORDERS = TopicRule("orders", "json")
QUEUE = QueueTerms("orders", "json")


def to(name: str, topic: TopicRule = ORDERS, passing: str | None = ".*") -> DestinationTerms:
    return DestinationTerms(name, "G", (topic,), passing, (name,))


def instance(name: str, *links: DestinationTerms) -> InstanceDescription:
    return InstanceDescription(name, "G", (ORDERS,), links)


def found(*members: InstanceDescription) -> list[TopologyFinding]:
    return validate_links(
        {member.name: member for member in members},
        ((m.name, terms, terms.servers) for m in members for terms in m.destinations),
    )


A, B = instance("a", to("b")), instance("b", to("a"))
FILTERED = replace(ORDERS, filter="/x = 1")
RELAXED = replace(ORDERS, exclude_validation=("sow",))
KEYED = SowTerms("orders", "json", ("/id",))
CASES = {
    "txlog": (A, replace(B, log=(TopicRule("other"),))),
    "replicate": (A, instance("b")),
    "sow": (replace(A, sow=(KEYED,)), B),
    "cascade": (A, instance("b", to("a", RELAXED))),
    "queue": (replace(A, queues=(QUEUE,)), B),
    "keys": (replace(A, sow=(KEYED,)), replace(B, sow=(replace(KEYED, keys=("/key",)),))),
    "replicate_filter": (instance("a", to("b", FILTERED)), B),
    "queue_passthrough": (
        replace(A, queues=(QUEUE,)),
        replace(instance("b", to("a"), to("c", passing=None)), queues=(QUEUE,)),
    ),
    "queue_underlying": (
        replace(A, queues=(QUEUE,)),
        replace(B, queues=(replace(QUEUE, underlying="other"),)),
    ),
}


def test_a_pair_without_fault() -> None:
    assert found(A, B) == []


@pytest.mark.parametrize("name", CHECKS)
def test_each_check_is_made(name: str) -> None:
    told = [f for f in found(*CASES[name]) if f"check {name} fails" in f.explanation]
    assert ("a", "b") in [finding.instances for finding in told]
    for finding in told:
        assert (finding.severity, finding.kind, finding.topic) == ("error", "refused", "orders")
        assert finding.repair


def test_servers_that_fail_alike_are_one_finding() -> None:
    servers = ("b1", "b2", "another:7000")
    (finding,) = found(
        instance("a", DestinationTerms("b", "G", (ORDERS,), None, servers)),
        instance("b1"),
        instance("b2"),
    )
    assert finding.instances == ("a", "b1", "b2")
    assert finding.repair.startswith("give b1 a Destination to Group 'G'")
    assert finding.repair.endswith(" (so with b2)")


def test_a_list_that_lacks_the_server_is_to_be_completed() -> None:
    back = DestinationTerms("back", "G", (ORDERS,), ".*", ("c",))
    (finding,) = (f for f in found(A, instance("b", back)) if f.instances == ("a", "b"))
    assert finding.repair.startswith("add a to the servers of Destination 'back' of b, or exclude")


def test_what_is_not_found_at_one_is_looked_for_at_another_all_the_same() -> None:
    """Only what looks alike to every check is looked at once."""
    clean = instance("c", to("a"))
    hub = instance("a", to("c"), to("b"))
    assert {f.instances for f in found(hub, clean, instance("b"))} == {("a", "b")}
    wrong = replace(B, log=())
    assert ("a", "b") in {f.instances for f in found(hub, clean, wrong)}


def test_it_asks_what_the_instances_will_tell() -> None:
    made = FabricBuilder("f").region("C", 2).region("L", 2).connect_regions()
    made.instance("Audit").destination("C-1", "Audit")
    for settings in (
        made.settings(),
        load_fabric(regional_files(), defines=regional_defines(), name="regions"),
    ):
        kept = record(settings)
        assert descriptions_of(settings) == {
            each.name: describe(instance_config(settings, kept, each))
            for each in settings.instances
        }
        assert failures(settings) == []
        assert not [f for f in check_settings(settings).findings if f.kind == "refused"]


def test_who_waits_for_a_group_goes_by_the_checks_of_who_connects() -> None:
    """`out` waits for whoever of a group connects; between those, checks are left out, and so
    `cascade` has to be on the way from `out` to them."""
    settings = parse(
        """
fabric: dmz
instances: {in-1: {group: inside}, in-2: {group: inside}, audit: {}, out: {group: outside}}
links:
  - {from: in-1, to: [in-2], mode: sync, pass_through: .*}
  - {from: in-2, to: [in-1], mode: sync, pass_through: .*}
  - {from: in-1, to: [audit], pass_through: .*}
  - {from: in-1, to: [out], pass_through: .*}
  - {from: in-2, to: [out], pass_through: .*}
  - {from: out, to: [], group: inside, name: back, pass_through: .*, dial: false}
"""
    )
    terms = {
        (name, terms.name): terms.topics[0].exclude_validation
        for name, member in descriptions_of(settings).items()
        for terms in member.destinations
    }
    assert terms["in-1", "audit"] == ("cascade", "replicate")
    assert terms["in-1", "out"] == terms["out", "back"] == ("cascade",)
    assert not [f for f in check_settings(settings).findings if f.kind == "refused"]
