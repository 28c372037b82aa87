"""services/admin/tree.py: nodes by path, and the formats in which they are served."""

from __future__ import annotations

import json
from xml.etree import ElementTree

import pytest

from raylay.services.admin.tree import Branch, Collection, as_text, node_at, pruned, to_json, to_xml

BIG = (1 << 63) + 1
TREE: Branch = {
    "instance": {
        "name": "north",
        "clients": Collection(
            "client",
            {
                "7": {"client_name": "<script>", "bytes_in": BIG, "share": 0.5},
                "8": {"client_name": "billing", "bytes_in": None, "share": 1.0},
            },
        ),
        "memory": {"rss": 5, "is_low": False},
    }
}


def test_a_node_is_found_by_its_path() -> None:
    assert node_at(TREE, ()) is TREE
    assert node_at(TREE, ("instance", "name")) == "north"
    assert node_at(TREE, ("instance", "clients", "7", "bytes_in")) == BIG


@pytest.mark.parametrize(
    ("path", "wrong"),
    [
        ("host", "host"),
        ("instance/clients/9", "9"),
        ("instance/clients/7/bytes", "bytes"),
        ("instance/name/more", "more"),
    ],
)
def test_the_step_that_leads_nowhere_is_named(path: str, wrong: str) -> None:
    for find in (node_at, pruned):
        with pytest.raises(KeyError) as found:
            find(TREE, path.split("/"))
        assert found.value.args == (wrong,)


def test_an_answer_says_where_its_node_stands() -> None:
    found = pruned(TREE, ("instance", "clients", "8", "client_name"))
    assert json.loads(to_json(found)) == {
        "instance": {"clients": [{"id": "8", "client_name": "billing"}]}
    }


@pytest.mark.covers("Administration", "the documented tree, as JSON with texts, as XML, as")
def test_json_has_every_value_as_text() -> None:
    found = json.loads(to_json(TREE))
    first, second = found["instance"]["clients"]
    assert first == {
        "id": "7",
        "client_name": "<script>",
        "bytes_in": str(BIG),
        "share": "0.5",
    }
    assert second["bytes_in"] == ""
    assert found["instance"]["memory"] == {"rss": "5", "is_low": "false"}


@pytest.mark.covers("Administration", "the documented tree, as JSON with texts, as XML, as")
def test_xml_has_an_element_for_each_entry() -> None:
    root = ElementTree.fromstring(to_xml("amps", TREE))
    assert root.tag == "amps"
    entries = root.findall("instance/clients/client")
    assert [each.get("id") for each in entries] == ["7", "8"]
    assert entries[0].findtext("client_name") == "<script>"


@pytest.mark.parametrize("text", ["\x00\x1b", "\ufffe", "\ud800"])
def test_what_xml_cannot_hold_is_replaced(text: str) -> None:
    tree = {"clients": Collection("client", {text: {"name": text}})}
    entry = ElementTree.fromstring(to_xml("amps", tree)).find("clients/client")
    assert entry is not None
    assert entry.get("id") == entry.findtext("name") == "\ufffd" * len(text)


def test_json_survives_what_utf_8_cannot_hold() -> None:
    assert json.loads(to_json({"name": "\ud800"}))["name"] == "\ud800"


@pytest.mark.parametrize(
    ("value", "text"), [(None, ""), (True, "true"), (False, "false"), (0, "0"), (1.5, "1.5")]
)
def test_values_as_text(value: float | None, text: str) -> None:
    assert as_text(value) == text
