"""The rows of the statistics database that a resource tree gives, and the row in which a leaf's
history lies (behaviour.md 9.4).

A collection has a table named after its path: `/instance/clients` is `ICLIENTS`, with a row for
each client and sample. A branch with leaves of its own has one, too (`IMEMORY`); the leaves right
below `/instance` are in `IGLOBALS`. Texts change seldom and are kept once for each row's id;
numbers are kept for each sample.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

from raylay.services.admin.tree import Branch, Collection, Node, Value

PREFIXES: Mapping[str, str] = {"instance": "I", "host": "H"}
GLOBALS = "GLOBALS"
ID_SEPARATOR = "/"


class Row(NamedTuple):
    """One thing in one sample.

    Attributes:
        table: upper case, without `_STATIC` or `_DYNAMIC`.
        id: empty in a table of one thing; of a thing inside another one both ids.
    """

    table: str
    id: str
    values: Mapping[str, Value]


class Place(NamedTuple):
    """The column and row in which a leaf's history lies."""

    table: str
    id: str
    column: str


def rows_of(tree: Branch) -> Iterator[Row]:
    """Yields the rows of a sample of `/instance` and `/host`."""
    for name, prefix in PREFIXES.items():
        branch = tree.get(name)
        if isinstance(branch, Mapping):
            yield from _rows(branch, prefix, (), "")


def _rows(branch: Branch, prefix: str, path: tuple[str, ...], key: str) -> Iterator[Row]:
    values: dict[str, Value] = {}
    for name, node in branch.items():
        if isinstance(node, Collection):
            for entry, below in node.branches.items():
                yield from _rows(below, prefix, (*path, name), _joined(key, entry))
        elif isinstance(node, Mapping) and not path:
            yield from _rows(node, prefix, (name,), key)
        else:
            values.update(_flat(name, node))
    if values:
        yield Row(_table(prefix, path), key, values)


def _flat(name: str, node: Node) -> Iterator[tuple[str, Value]]:
    if isinstance(node, Mapping):
        for each, below in node.items():
            yield from _flat(f"{name}_{each}", below)
    elif not isinstance(node, Collection):
        yield name, node


def _table(prefix: str, path: Sequence[str]) -> str:
    return prefix + ("_".join(path).upper() or GLOBALS)


def _joined(key: str, entry: str) -> str:
    return f"{key}{ID_SEPARATOR}{entry}" if key else entry


def place_of(tree: Branch, steps: Sequence[str]) -> Place:
    """Returns where a leaf's history lies.

    Args:
        tree: the present one: its collections tell an id from a name. What has left it since has
            no history that a path could name.

    Raises:
        KeyError: no leaf with a history is there.
    """
    node: Node = tree
    path: list[str] = []
    key = ""
    column: list[str] = []
    for depth, step in enumerate(steps):
        if isinstance(node, Collection):
            node, key = node.branches[step], _joined(key, step)
            path += column
            column = []
        elif isinstance(node, Mapping):
            node = node[step]
            if depth:
                column.append(step)
        else:
            raise KeyError(step)
    if not steps or steps[0] not in PREFIXES or isinstance(node, Mapping | Collection):
        raise KeyError(steps[-1] if steps else "")
    if not key and len(column) > 1:
        path, column = column[:1], column[1:]
    return Place(_table(PREFIXES[steps[0]], path), key, "_".join(column))
