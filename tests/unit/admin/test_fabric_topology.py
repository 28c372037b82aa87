"""services/admin/fabric_topology.py: names and addresses."""

from __future__ import annotations

from raylay.services.admin.fabric_topology import (
    ConfiguredInstance,
    ConfiguredLink,
    FabricTopology,
    alone,
)
from raylay.services.config import json_text


def test_an_interface_has_an_address() -> None:
    assert ConfiguredInstance("a", "A", "h:1").url == "http://h:1"
    assert ConfiguredInstance("a", "A", "h:1", is_tls=True).url == "https://h:1"
    assert ConfiguredInstance("a", "A").url == ""


def test_an_instance_is_found_by_its_name() -> None:
    found = alone("a", "A")
    assert found.instance("a") == ConfiguredInstance("a", "A")
    assert found.instance("b") is None
    assert ConfiguredLink("a", "L", ("b",), "L", True).id == "a~L"


def test_it_is_read_as_it_was_written() -> None:
    made = FabricTopology(
        "flights",
        (ConfiguredInstance("a", "A", "h:1", ("h",)),),
        (ConfiguredLink("a", "L", ("b",), "L", True),),
        checked_us=5,
    )
    assert json_text.read(FabricTopology, json_text.written(made), "a file", "") == made
