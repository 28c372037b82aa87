"""Limits of slow clients in a fabric's file and in Python."""

from __future__ import annotations

from pathlib import Path

import pytest

from raylay.services.capacity.config import CapacityConfig
from raylay.services.config.instance import InstanceConfig
from raylay.services.configuration.builder import FabricBuilder
from raylay.services.configuration.model import FabricSettings
from raylay.services.configuration.yaml_file import load
from raylay.services.errors import ConfigurationError
from raylay.services.fabric.plan import FabricRecord, InstancePorts, instance_config

pytestmark = pytest.mark.covers("Configuration", "Slow Client Management")

FILE = """\
fabric: f
capacity: {memory: 2GiB, disk_path: offline, client_share: 100%}
instances:
  A-1:
    capacity: {disk: 0, message_age: 30s}
    client_transport: {capacity: {client_share: 0.25}}
    transports:
      - {name: low, capacity: {memory: 1MiB, client_share: 10%}}
  A-2: {}
"""


def config_of(settings: FabricSettings, name: str) -> InstanceConfig:
    settings = FabricSettings.from_json(settings.to_json())
    ports = {each.name: InstancePorts(1, 2) for each in settings.instances}
    record = FabricRecord(settings.name, "/data", settings.to_json(), ports)
    return instance_config(settings, record, settings.instance(name))


def test_a_file_says_it_of_all_of_one_and_of_a_transport(tmp_path: Path) -> None:
    path = tmp_path / "f.yaml"
    path.write_text(FILE)
    settings = load(path)
    first, second = config_of(settings, "A-1"), config_of(settings, "A-2")
    assert first.capacity == CapacityConfig(1 << 31, 0, "/data/offline", 30_000, 1.0)
    assert second.capacity == CapacityConfig(1 << 31, None, "/data/offline", None, 1.0)
    assert [each.capacity for each in first.client_transports] == [
        CapacityConfig(client_share=0.25),
        CapacityConfig(1 << 20, client_share=0.1),
    ]
    assert InstanceConfig.from_json(first.to_json()) == first


def test_python_says_it_likewise_and_nothing_where_nothing_is_said() -> None:
    builder = FabricBuilder("f", capacity={"memory": "1GB", "client_share": 0.3})
    builder.instance("A", capacity={"message_age": "1m"}).instance("B")
    settings = builder.settings()
    assert config_of(settings, "A").capacity == CapacityConfig(10**9, None, None, 60_000, 0.3)
    assert config_of(settings, "B").capacity == CapacityConfig(10**9, client_share=0.3)
    plain = FabricBuilder("f").instance("A").settings()
    assert config_of(plain, "A").capacity is None


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("memory: 0", r"f.yaml:2: capacity: memory_bytes_max \(MessageMemoryLimit\) is 0: give at"),
        ("memory: lots", "capacity.memory: expected a size such as 64MiB"),
        ("message_age: 30", "capacity.message_age: expected a time such as 500ms or 10s"),
        ("client_share: 0%", r"client_share \(ClientMaxCapacity\) is 0.0: give more than 0"),
        ("client_share: 150%", "at most 1, which is 100%"),
        ("client_share: half", "expected a share such as 50% or 0.5, got 'half'"),
        ("ram: 1GB", "capacity.ram: this key is unknown here: expected memory, disk, disk_path, "),
        ("memroy: 1GB", r"f.yaml:2: capacity.memroy: .*: did you mean memory\?"),
    ],
)
def test_a_limit_that_is_none_is_refused_with_its_place(
    tmp_path: Path, text: str, problem: str
) -> None:
    path = tmp_path / "f.yaml"
    path.write_text(f"fabric: f\ncapacity: {{{text}}}\ninstances: {{A: {{}}}}\n")
    with pytest.raises(ConfigurationError, match=problem):
        load(path)
