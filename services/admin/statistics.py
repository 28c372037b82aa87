"""The rows of the statistics database that a resource tree gives, the row in which a leaf's history
lies, and the tree that the rows of an earlier sample give (behaviour.md 9.4).

A collection has a table named after its path: `/instance/clients` is `ICLIENTS`, with a row for
each client and sample. A branch with leaves of its own has one, too (`IMEMORY`); the leaves right
below `/instance` are in `IGLOBALS`. Texts change seldom and are kept once for each row's id;
numbers are kept for each sample. What does not change, such as a journal segment, has no history.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import islice
from typing import NamedTuple

from raylay.services.admin.requests import format_time
from raylay.services.admin.tree import Branch, Collection, Node, Value

PREFIXES: Mapping[str, str] = {"instance": "I", "host": "H"}
GLOBALS = "GLOBALS"
ID_SEPARATOR = "/"
ROWS_MAX = 1_000
"""Limit on the rows of one collection in a sample; further entries have no history."""
TABLES: Mapping[tuple[str, ...], str] = {
    ("instance", "cpu"): "ICPUS",
    ("instance", "replication"): "IREPLICATIONS",
    ("instance", "transaction_log", "write_latency"): "ITRANSACTION_WRITE_LATENCY",
    ("instance", "transaction_log", "write_size"): "ITRANSACTION_WRITE_SIZE",
    ("host", "network"): "HNET",
}
"""Tables that are documented under another name than that of their path."""
WITHOUT_HISTORY = frozenset(
    (
        ("instance", "config"),
        ("instance", "environment"),
        ("instance", "lifetimes"),
        ("instance", "message_types"),
        ("instance", "queries", "raylay", "queries"),
        ("instance", "timestamp"),
        ("instance", "transaction_log", "journals"),
    )
)


class Row(NamedTuple):
    """One thing in one sample.

    Attributes:
        table: name of the table in upper case, without `_STATIC` or `_DYNAMIC`.
        id: id of the thing; for a thing inside another one, the ids of both. Empty: the table is
            about one thing.
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
    for name in PREFIXES:
        branch = tree.get(name)
        if isinstance(branch, Mapping):
            yield from _rows(branch, (name,), "")


def _rows(branch: Branch, path: tuple[str, ...], key: str) -> Iterator[Row]:
    values: dict[str, Value] = {}
    yield from _below(branch, path, "", key, values)
    if values:
        yield Row(_table(path), key, values)


def _below(
    branch: Branch, path: tuple[str, ...], column: str, key: str, values: dict[str, Value]
) -> Iterator[Row]:
    """Adds the leaves of a branch to the values of its row, and yields the rows of what has a table
    of its own."""
    for name, node in branch.items():
        inner = (*path, name)
        if inner in WITHOUT_HISTORY:
            continue
        if isinstance(node, Collection):
            for entry, below in islice(node.branches.items(), ROWS_MAX):
                yield from _rows(below, inner, _joined(key, entry))
        elif isinstance(node, Mapping):
            if _has_table(inner):
                yield from _rows(node, inner, key)
            else:
                yield from _below(node, inner, f"{column}{name}_", key, values)
        else:
            values[f"{column}{name}"] = node


def _has_table(path: tuple[str, ...]) -> bool:
    """Returns whether a branch that is in no collection has a table of its own."""
    return len(path) == 2 or path in TABLES


def _table(path: Sequence[str]) -> str:
    found = TABLES.get(tuple(path))
    return found or PREFIXES[path[0]] + ("_".join(path[1:]).upper() or GLOBALS)


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
    if not steps or steps[0] not in PREFIXES:
        raise KeyError(steps[0] if steps else "")
    node: Node = tree[steps[0]]
    names: list[str] = [steps[0]]
    """Steps of the path that are no ids; the table's name is made of them."""
    table: tuple[str, ...] = (steps[0],)
    key = ""
    column: list[str] = []
    for step in steps[1:]:
        if isinstance(node, Collection):
            node, key = node.branches[step], _joined(key, step)
            table, column = tuple(names), []
            continue
        if not isinstance(node, Mapping):
            raise KeyError(step)
        node = node[step]
        names.append(step)
        column.append(step)
        if tuple(names) in WITHOUT_HISTORY:
            raise KeyError(step)
        if isinstance(node, Mapping) and not key and _has_table(tuple(names)):
            table, column = tuple(names), []
    if isinstance(node, Mapping | Collection):
        raise KeyError(steps[-1])
    return Place(_table(table), key, "_".join(column))


Sample = Mapping[str, Mapping[str, Mapping[str, Value]]]
"""The values of one sample, by table, id and column."""


def past_tree(tree: Branch, sample: Sample, time_us: int) -> Branch:
    """Returns the tree of an earlier sample, in the form of the present one. Values without a
    history are left out; nodes that have left the tree since then are in it again.

    Args:
        tree: the present one, or the part of it that is wanted.
        time_us: time of the sample, in microseconds since 1970.
    """
    found = {
        name: _past(branch, (name,), "", "", sample, _row(sample, (name,), ""))
        for name, branch in tree.items()
        if name in PREFIXES and isinstance(branch, Mapping)
    }
    if "instance" in found:
        found["instance"] = {"timestamp": format_time(time_us), **found["instance"]}
    return found


def _row(sample: Sample, path: Sequence[str], key: str) -> Mapping[str, Value]:
    return sample.get(_table(path), {}).get(key, {})


def _past(
    branch: Branch,
    path: tuple[str, ...],
    column: str,
    key: str,
    sample: Sample,
    row: Mapping[str, Value],
) -> Branch:
    found: dict[str, Node] = {}
    for name, node in branch.items():
        inner = (*path, name)
        if inner in WITHOUT_HISTORY:
            continue
        if isinstance(node, Collection):
            found[name] = _past_collection(node, inner, key, sample)
        elif isinstance(node, Mapping):
            if not key and _has_table(inner):
                found[name] = _past(node, inner, "", key, sample, _row(sample, inner, key))
            else:
                found[name] = _past(node, inner, f"{column}{name}_", key, sample, row)
        elif f"{column}{name}" in row:
            value = row[f"{column}{name}"]
            found[name] = bool(value) if isinstance(node, bool) and value in (0, 1) else value
    return found


def _past_collection(
    node: Collection, path: tuple[str, ...], outer: str, sample: Sample
) -> Collection:
    template: Branch = next(iter(node.branches.values()), {})
    start = f"{outer}{ID_SEPARATOR}" if outer else ""
    branches: dict[str, Branch] = {}
    for key, row in sample.get(_table(path), {}).items():
        if key.startswith(start):
            entry = key.removeprefix(start)
            form = node.branches.get(entry, template)
            branches[entry] = _past(form, path, "", key, sample, row) or dict(row)
    return Collection(node.entry, branches)
