"""services/admin/configuration_tree.py: the configuration as JSON and XML."""

from __future__ import annotations

from xml.etree import ElementTree

from raylay.services.admin.configuration_tree import configuration_branch
from raylay.services.admin.tree import to_json, to_xml

CONFIGURATION = {
    "name": "north",
    "first": True,
    "admin": None,
    "policy": {"age_ms": 5},
    "topics": [".*", {"name": "orders"}, [1, 2]],
    "options": {"X y": "1", "<b>": {"c": 2}},
}


def test_lists_and_names_that_are_no_elements_become_entries() -> None:
    document = to_xml("config", configuration_branch(CONFIGURATION)).decode()
    root = ElementTree.fromstring(document)
    assert root.findtext("name") == "north" and root.findtext("policy/age_ms") == "5"
    items = root.findall("topics/item")
    assert [each.get("id") for each in items] == ["1", "2", "3"]
    assert (items[0].findtext("value"), items[1].findtext("name")) == (".*", "orders")
    assert [each.findtext("value") for each in items[2].findall("value/item")] == ["1", "2"]
    entries = {each.get("id"): each for each in root.findall("options/entry")}
    assert entries["X y"].findtext("value") == "1" and entries["<b>"].findtext("c") == "2"
    assert b'"first":"true"' in to_json(configuration_branch(CONFIGURATION))
