"""The nodes of the administrator's resource tree, and the three formats in which they are served
(behaviour.md 9.2): JSON and XML for every node, CSV for the history of a leaf.

    {"amps": {"instance": {"clients": [{"id": "7", "client_name": "billing", "bytes_in": "512"}]}}}
    <amps><instance><clients><client id="7"><client_name>billing</client_name>…

Every value is served as text, as documented, so that no reader rounds a 64-bit number.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias
from xml.etree import ElementTree

Value: TypeAlias = str | int | float | bool | None
"""The value of a leaf; None: not known now, which is served as an empty text."""


@dataclass(frozen=True, slots=True)
class Collection:
    """A node with one branch for each of several things: clients, queues, destinations.

    Attributes:
        entry: the XML element of one of them (`client`); the collection's own name is the plural.
        branches: by id, in the order in which they are served.
    """

    entry: str
    branches: Mapping[str, Branch]


Node: TypeAlias = "Value | Branch | Collection"
Branch: TypeAlias = Mapping[str, "Node"]


def node_at(tree: Branch, steps: Sequence[str]) -> Node:
    """Returns the node at a path.

    Args:
        steps: the names from the root on, decoded; none: the root itself.

    Raises:
        KeyError: nothing is there; its argument is the first step that leads nowhere.
    """
    node: Node = tree
    for step in steps:
        node = _child(node, step)
    return node


def _child(node: Node, step: str) -> Node:
    if isinstance(node, Collection):
        return node.branches[step]
    if isinstance(node, Mapping):
        return node[step]
    raise KeyError(step)  # a leaf has nothing below it


def pruned(node: Node, steps: Sequence[str]) -> Node:
    """Returns a tree without the nodes beside a path: an answer says where its node stands.

    Raises:
        KeyError: nothing is at the path; as of `node_at`.
    """
    if not steps:
        return node
    below = pruned(_child(node, steps[0]), steps[1:])
    if isinstance(node, Collection):
        assert isinstance(below, Mapping), "a collection has branches"
        return Collection(node.entry, {steps[0]: below})
    return {steps[0]: below}


def as_text(value: Value) -> str:
    """Returns a leaf's value as it is served: `true`, `0.5`, or an empty text for None."""
    if value is None:
        return ""
    if isinstance(value, bool):
        return "true" if value else "false"
    return str(value)


def to_json(tree: Node) -> bytes:
    """Returns a tree as JSON in UTF-8."""
    return json.dumps(_plain(tree), ensure_ascii=False, separators=(",", ":")).encode(
        "utf-8", "backslashreplace"
    )


def _plain(node: Node) -> object:
    if isinstance(node, Collection):
        return [{"id": key, **_members(branch)} for key, branch in node.branches.items()]
    if isinstance(node, Mapping):
        return _members(node)
    return as_text(node)


def _members(branch: Branch) -> dict[str, object]:
    return {name: _plain(node) for name, node in branch.items()}


def to_xml(name: str, root: Node) -> bytes:
    """Returns a tree under a root element of this name as an XML document in UTF-8. Characters that
    XML cannot hold are served as U+FFFD."""
    found: bytes = ElementTree.tostring(_element(name, root), "utf-8", xml_declaration=True)
    return found


def _element(name: str, node: Node) -> ElementTree.Element:
    element = ElementTree.Element(name)
    if isinstance(node, Collection):
        for key, branch in node.branches.items():
            entry = ElementTree.SubElement(element, node.entry, {"id": _xml_text(key)})
            entry.extend(_element(each, child) for each, child in branch.items())
    elif isinstance(node, Mapping):
        element.extend(_element(each, child) for each, child in node.items())
    else:
        element.text = _xml_text(as_text(node))
    return element


def _xml_text(text: str) -> str:
    return "".join(each if _is_xml(ord(each)) else "\ufffd" for each in text)


def _is_xml(code: int) -> bool:
    """Returns whether XML 1.0 allows this character."""
    return (
        code in (0x9, 0xA, 0xD)
        or 0x20 <= code <= 0xD7FF
        or 0xE000 <= code <= 0xFFFD
        or code >= 0x10000
    )
