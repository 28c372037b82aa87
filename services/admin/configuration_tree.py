"""An instance's running configuration as a branch of the resource tree: the documented
`/amps/instance/config.xml`, and `config.json`."""

from __future__ import annotations

import re
from typing import Any

from raylay.services.admin.tree import Branch, Collection, Node

_ELEMENT = re.compile(r"[A-Za-z_][A-Za-z0-9_.-]*\Z")


def configuration_branch(configuration: dict[str, Any]) -> Branch:
    """Returns a configuration of maps, lists and plain values as a branch."""
    return {name: _node(value) for name, value in configuration.items()}


def _node(value: Any) -> Node:
    if isinstance(value, dict):
        if all(_ELEMENT.match(name) for name in value):
            return {name: _node(each) for name, each in value.items()}
        # Names that users chose, such as those of a module's options, may be no XML elements.
        return Collection("entry", {name: _entry(each) for name, each in value.items()})
    if isinstance(value, list):
        return Collection("item", {str(at): _entry(each) for at, each in enumerate(value, 1)})
    found: Node = value
    return found


def _entry(value: Any) -> Branch:
    node = _node(value)
    return node if isinstance(node, dict) else {"value": node}
