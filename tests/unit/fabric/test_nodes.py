"""Where instances are put: by labels, evenly, and then always there."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from raylay.services.configuration.builder import FabricBuilder
from raylay.services.configuration.model import FabricSettings
from raylay.services.errors import FabricError
from raylay.services.fabric.checks.check import check_settings, shared_hosts
from raylay.services.fabric.cluster.nodes import ClusterNode, NodePlace, followed, labelled, placed
from raylay.services.fabric.plan import (
    FabricChanges,
    FabricRecord,
    bring_up_to_date,
    changes,
    instance_config,
    record_of,
)


def settings(instances: int = 2) -> FabricSettings:
    made = FabricBuilder("flights").region("Chicago", instances).region("London", instances)
    return labelled(made.connect_regions("async").settings(), "region")


NODES = [
    ClusterNode("10.0.1.2", {"region": "Chicago", "host": "c2", "ray.io/node-id": "f"}),
    ClusterNode("10.0.1.1", {"region": "Chicago", "host": "c1"}),
    ClusterNode("10.0.2.1", {"region": "London", "host": "l1"}),
    ClusterNode("10.0.0.1", {"host": "head"}),
]


@pytest.mark.covers("Deployment", "an instance is put where its labels say")
def test_instances_go_to_the_nodes_of_their_region_evenly() -> None:
    found, places = placed(settings(), {}, NODES)
    assert {name: place.address for name, place in places.items()} == {
        "Chicago-1": "10.0.1.1",
        "Chicago-2": "10.0.1.2",
        "London-1": "10.0.2.1",
        "London-2": "10.0.2.1",
    }
    chicago = found.instance("Chicago-2")
    assert chicago.host == "10.0.1.2"
    assert chicago.node_labels == {"region": "Chicago", "host": "c2"}


@pytest.mark.covers("Deployment", "an instance is put where its labels say")
def test_what_was_placed_stays_and_follows_its_node_to_another_address() -> None:
    _, places = placed(settings(), {}, NODES)
    moved = [node._replace(address="10.9.9.9") if "c1" in node.labels.values() else node
             for node in NODES]  # fmt: skip
    found, again = placed(settings(3), places, moved)
    assert again["Chicago-1"] == NodePlace({"region": "Chicago", "host": "c1"}, "10.9.9.9")
    assert found.instance("Chicago-1").host == "10.9.9.9"
    assert again["Chicago-2"] == places["Chicago-2"]


def test_one_that_was_moved_follows_its_node_as_well() -> None:
    """Its host is its node's address, not loopback, when it is placed again."""
    found, places = placed(settings(), {}, NODES)
    chicago = found.instance("Chicago-1").model_copy(update={"replication_host": "10.0.1.1"})
    others = tuple(each for each in found.instances if each.name != "Chicago-1")
    before = found.model_copy(update={"instances": (chicago, *others)})
    later = [node._replace(address=node.address.replace("10.0", "10.9")) for node in NODES]
    again, _ = placed(before, places, later)
    instance = again.instance("Chicago-1")
    assert (instance.host, instance.replication_host) == ("10.9.1.1", "10.9.1.1")
    assert again.instance("London-1").host == "10.9.2.1"


def test_addresses_are_renewed_also_while_another_node_is_away() -> None:
    before, places = placed(settings(), {}, NODES)
    living = [node._replace(address="10.9.9.9") for node in NODES if node.labels["host"] == "c1"]
    found, again = followed(before, places, living)
    assert found.instance("Chicago-1").host == again["Chicago-1"].address == "10.9.9.9"
    for name in ("Chicago-2", "London-1"):
        assert found.instance(name) == before.instance(name)
        assert again[name] == places[name]
    assert followed(before, places, NODES) == (before, places)


def test_placing_what_is_placed_changes_nothing() -> None:
    first, places = placed(settings(), {}, NODES)
    assert placed(first, places, NODES) == (first, places)


def test_an_address_that_is_given_stays() -> None:
    made = FabricBuilder("f").instance("A", "g", host="10.5.5.5", node_labels={"host": "c1"})
    found, _ = placed(made.settings(), {}, NODES)
    assert found.instance("A").host == "10.5.5.5"


def test_without_labels_nothing_is_placed() -> None:
    made = FabricBuilder("f").region("Chicago", 2).settings()
    assert placed(made, {}, []) == (made, {})


@pytest.mark.parametrize(
    ("kept", "nodes", "said"),
    [
        ({}, [], "no node has region=Chicago; there are none"),
        ({}, [ClusterNode("10.0.0.1", {"host": "head"})], "there are 10.0.0.1 (host=head)"),
        (
            {},
            [
                ClusterNode("10.0.1.1", {"region": "Chicago"}),
                ClusterNode("10.0.1.2", {"region": "Chicago"}),
            ],
            "2 nodes have region=Chicago, and nothing tells them apart",
        ),
        (
            {"Chicago-1": NodePlace({"region": "Chicago", "host": "gone"}, "10.0.1.9")},
            NODES,
            "the node that holds its data, host=gone, region=Chicago, is not in the cluster",
        ),
        (
            {"Chicago-1": NodePlace({"region": "London", "host": "l1"}, "10.0.2.1")},
            NODES,
            "its data is on the node with host=l1, region=London",
        ),
    ],
    ids=["none", "other", "alike", "away", "moved"],
)
def test_what_cannot_be_placed_is_refused(
    kept: dict[str, NodePlace], nodes: list[ClusterNode], said: str
) -> None:
    with pytest.raises(FabricError) as raised:
        placed(settings(), kept, nodes)
    assert said in str(raised.value)


def test_a_placed_fabric_listens_and_links_by_the_nodes_addresses(tmp_path: Path) -> None:
    found, places = placed(settings(), {}, NODES)
    record = record_of(found, tmp_path)
    record.nodes = places
    config = instance_config(found, record, found.instance("Chicago-1"))
    ports = record.ports
    assert config.client_transports[0].advertised == f"10.0.1.1:{ports['Chicago-1'].client}"
    assert config.replication_transports[0].host == "10.0.1.1"
    to = {destination.name: destination.addresses for destination in config.destinations}
    assert (f"10.0.1.2:{ports['Chicago-2'].replication}",) in to.values()
    assert FabricRecord.from_json(record.to_json(), "it").nodes == places
    assert config.node_address == "10.0.1.1", "which it follows"
    assert set(config.announce_to) == {
        f"{found.instance(name).host}:{record.ports[name].replication}"
        for name in ("Chicago-2", "London-1", "London-2")
    }


def test_one_that_was_given_its_host_follows_nobody(tmp_path: Path) -> None:
    made = FabricBuilder("f").instance("A", "g", host="10.5.5.5", node_labels={"host": "c1"})
    found, places = placed(made.settings(), {}, NODES)
    record = record_of(found, tmp_path)
    record.nodes = places
    config = instance_config(found, record, found.instance("A"))
    assert config.node_address == "" and config.announce_to == ()


def test_a_new_instance_restarts_only_those_that_have_links_to_it(tmp_path: Path) -> None:
    """Although the others would tell it, too, where they live."""
    made = FabricBuilder("f")
    for name in ("A", "B"):
        made.instance(name, name, node_labels={"host": "c1"})
    found, places = placed(made.settings(), {}, NODES)
    running = record_of(found, tmp_path)
    running.nodes = places
    made.instance("C", "C", node_labels={"host": "c1"})
    wanted = replace(running)
    grown, wanted.nodes = placed(made.settings(), places, NODES)
    bring_up_to_date(wanted, grown)
    assert changes(running, wanted) == FabricChanges(started=("C",))


def test_members_of_a_sync_pair_on_one_host_are_named() -> None:
    """The published table on one host a region, and with one of its pairs apart."""
    found, places = placed(settings(), {}, [each for each in NODES if each.address != "10.0.1.2"])
    host_of = {name: place.address for name, place in places.items()}
    chicago, london = shared_hosts(found, host_of)
    assert (chicago.kind, chicago.severity) == ("shared_host", "warning")
    assert chicago.instances == ("Chicago-1", "Chicago-2")
    assert "the same host, 10.0.1.1" in chicago.explanation
    assert london.instances == ("London-1", "London-2")
    _, places = placed(settings(), {}, NODES)
    host_of = {name: place.address for name, place in places.items()}
    assert [each.instances for each in shared_hosts(found, host_of)] == [("London-1", "London-2")]


def test_instances_that_do_not_wait_for_each_other_may_share_a_host() -> None:
    made = FabricBuilder("flights").region("Chicago", 1).region("London", 1)
    assert shared_hosts(
        made.connect_regions("async").settings(), {"Chicago-1": "a", "London-1": "a"}
    ) == []  # fmt: skip


def test_the_check_of_a_file_names_pairs_that_it_pins_to_one_host() -> None:
    def pinned(*hosts: str) -> list[tuple[str, ...]]:
        made = FabricBuilder("flights").region("Chicago", 2).settings()
        instances = tuple(
            instance.model_copy(update={"node_labels": {"host": host}})
            for instance, host in zip(made.instances, hosts, strict=True)
        )
        findings = check_settings(made.model_copy(update={"instances": instances})).findings
        return [each.instances for each in findings if each.kind == "shared_host"]

    assert pinned("c1", "c1") == [("Chicago-1", "Chicago-2")]
    assert pinned("c1", "c2") == []
