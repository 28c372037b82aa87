"""services/fabric/admin_topology.py: what the administrator's interface of an instance is told of
the fabric."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from raylay.services.admin.fabric_topology import TOPOLOGY_FILE, FabricTopology
from raylay.services.config import json_text
from raylay.services.configuration.yaml_file import parse
from raylay.services.fabric.admin_topology import (
    admin_topology,
    configured_topology,
    save_topology,
    topology_text,
)
from raylay.services.fabric.plan import FabricRecord, record_of

FILE = """
fabric: flights
regions: {Chicago: 2, London: 1}
connect_regions: async
topics: [{name: ".*", message_type: json}]
queues: [{name: work, message_type: json}]
admin: {enabled: true, host_names: [console.example]}
"""


def record(directory: Path, text: str = FILE) -> FabricRecord:
    return record_of(parse(text, "a file"), directory)


def made(directory: Path, text: str = FILE, name: str = "Chicago-1") -> FabricTopology | None:
    settings = parse(text, "a file")
    return admin_topology(settings, record(directory, text), settings.instance(name))


def test_every_instance_link_and_queue_is_named(tmp_path: Path) -> None:
    kept = record(tmp_path)
    kept.save()
    found = made(tmp_path)
    assert found is not None and found.fabric == "flights"
    assert [(each.name, each.group) for each in found.instances] == [
        ("Chicago-1", "Chicago"),
        ("Chicago-2", "Chicago"),
        ("London-1", "London"),
    ]
    ports = [kept.ports[each.name].admin for each in found.instances]
    assert [each.admin_address for each in found.instances] == [f"127.0.0.1:{p}" for p in ports]
    assert found.instances[0].host_names == ("console.example",)
    links = {each.id: each for each in found.links}
    assert links["Chicago-1~Chicago-2"].sync and links["Chicago-1~Chicago-2"].to == ("Chicago-2",)
    assert {each.instance for each in found.links} == {"Chicago-1", "Chicago-2", "London-1"}
    over = [each for each in found.links if each.instance == "London-1"]
    assert over and all(each.to_group == "Chicago" and not each.sync for each in over)
    (queue,) = [each for each in found.queues if each.name == "work"]
    assert queue.instances == ("Chicago-1", "Chicago-2", "London-1") and queue.shared
    assert found.checked_us and found.drills_directories[0] == str(tmp_path / "drills")


def test_findings_of_the_check_go_along(tmp_path: Path) -> None:
    lonely = FILE.replace("connect_regions: async", "")
    found = made(tmp_path, lonely)
    assert found is not None
    assert any(each.level == "error" and "London-1" in each.where for each in found.findings)
    assert all(each.text and each.what_to_do for each in found.findings)


def test_an_instance_without_an_interface_is_told_nothing(tmp_path: Path) -> None:
    assert made(tmp_path, FILE.replace("enabled: true", "enabled: false")) is None
    settings = parse(FILE.replace("enabled: true", "enabled: false"), "a file")
    text = topology_text(settings, record_of(settings, tmp_path), settings.instances[0])
    save_topology(text, tmp_path)
    assert not (tmp_path / TOPOLOGY_FILE).exists()


def test_the_file_is_read_as_it_was_written(tmp_path: Path) -> None:
    settings, kept = parse(FILE, "a file"), record(tmp_path)
    save_topology(topology_text(settings, kept, settings.instances[0]), tmp_path)
    path = tmp_path / TOPOLOGY_FILE
    assert path.stat().st_mode & 0o077 == 0
    text = path.read_text(encoding="utf-8")
    found = json_text.read(FabricTopology, text, str(path), "")
    expected = admin_topology(settings, kept, settings.instances[0])
    assert expected is not None and found == replace(expected, checked_us=found.checked_us)


def test_a_stopped_instance_is_marked_and_links_that_rest_are_left_out(tmp_path: Path) -> None:
    settings, kept = parse(FILE, "a file"), record(tmp_path)
    before = configured_topology(settings, kept)
    kept.stopped = ["Chicago-2"]
    found = configured_topology(settings, kept)
    assert [each.name for each in found.instances if each.is_stopped] == ["Chicago-2"]
    gone = {each.id for each in before.links} - {each.id for each in found.links}
    own = {each.id for each in before.links if each.instance == "Chicago-2"}
    assert gone == {*own, "Chicago-1~Chicago-2"}
