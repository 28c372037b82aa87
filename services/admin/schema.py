"""The schema of the resource tree as XML, in RELAX NG compact syntax: `/amps.rnc` (behaviour.md
9.2)."""

from __future__ import annotations

from collections.abc import Iterator

from raylay.services.admin.tree import Branch, Collection, Node

_LEAF = "{ text }"


def schema_of(root: str, tree: Branch) -> str:
    """Returns the schema of a tree: its elements as they are now. Each may be absent in another
    state of the instance, and a collection without an entry says nothing of its entries."""
    return "\n".join(["start =", *_element(root, tree, 1)]) + "\n"


def _element(name: str, node: Node, depth: int, ending: str = "") -> Iterator[str]:
    indent = "  " * depth
    if isinstance(node, Collection):
        yield f"{indent}element {name} {{"
        form: Branch = {}
        for branch in node.branches.values():
            form = {**branch, **form}
        yield f"{indent}  element {node.entry} {{"
        yield f"{indent}    attribute id {_LEAF}{' &' if form else ''}"
        yield from _members(form, depth + 2)
        yield f"{indent}  }}*"
        yield f"{indent}}}{ending}"
    elif isinstance(node, dict):
        if not node:
            yield f"{indent}element {name} {{ empty }}{ending}"
            return
        yield f"{indent}element {name} {{"
        yield from _members(node, depth + 1)
        yield f"{indent}}}{ending}"
    else:
        yield f"{indent}element {name} {_LEAF}{ending}"


def _members(branch: Branch, depth: int) -> Iterator[str]:
    for at, (name, node) in enumerate(branch.items(), 1):
        yield from _element(name, node, depth, "?" if at == len(branch) else "? &")
