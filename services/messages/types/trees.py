"""The tree of a message, whatever its type: fields by path, and the changes between two trees.

The rules of merging are those of behaviour.md 4.7: a field that the delta lacks stays; dicts are
merged field by field; a list, and any value in place of one of another form, is replaced as a
whole.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from raylay.services.errors import MessageTypeError

Tree = dict[str, Any]
FieldPath = tuple[str, ...]
"""The names on the way to a field: `("order", "@id")` for `/order/@id`."""


class TreeTooDeep(Exception):
    """A tree is nested deeper than it may be."""


class _Absent:
    """The absence of a value; not None, which is a value."""


ABSENT: Any = _Absent()


def field_path(identifier: str) -> FieldPath:
    """Returns the path of an identifier that names one field, such as `/order/@id`, `/55` or `[/a
    b]`.

    Raises:
        MessageTypeError: it is none.
    """
    bracketed = identifier.startswith("[") and identifier.endswith("]")
    names = (identifier[1:-1] if bracketed else identifier).split("/")
    if len(names) < 2 or names[0] or "" in names[1:]:
        raise MessageTypeError(
            f"{identifier!r} names no field: write /name, or /name/name for one within another"
        )
    return tuple(names[1:])


def value_at(tree: Tree, path: FieldPath) -> Any:
    """Returns the value of a field; `ABSENT` where the tree has none. Where a list is on the way,
    its first element is used."""
    value: Any = tree
    for name in path:
        while type(value) is list:
            value = value[0] if value else ABSENT
        if type(value) is not dict:
            return ABSENT
        value = value.get(name, ABSENT)
    return value


def with_value(tree: Tree, path: FieldPath, value: Any) -> Tree:
    """Returns the tree with a value at a path; a value in the way is replaced. The argument is not
    changed."""
    first, *rest = path
    if rest:
        below = tree.get(first)
        value = with_value(below if isinstance(below, dict) else {}, tuple(rest), value)
    return {**tree, first: value}


def check_depth(tree: Any, depth_max: int) -> None:
    """Checks how deeply a tree is nested, level by level, without recursion.

    Raises:
        TreeTooDeep: more than `depth_max` levels of dicts and lists.
    """
    level = [tree]
    for _ in range(depth_max):
        level = [
            value
            for each in level
            for value in (each.values() if isinstance(each, dict) else each)
            if isinstance(value, dict | list)
        ]
        if not level:
            return
    raise TreeTooDeep


def merged(stored: Tree, delta: Tree) -> Tree:
    """Returns a tree with the fields of a delta merged into it. Neither argument is changed."""
    result = dict(stored)
    for name, value in delta.items():
        before = result.get(name)
        if type(value) is dict and type(before) is dict:
            value = merged(before, value)
        result[name] = value
    return result


def same(one: Any, other: Any) -> bool:
    """Returns whether two values are equal and of the same form: 1, 1.0 and True differ."""
    if type(one) is not type(other):
        return False
    if type(one) is dict:
        return one.keys() == other.keys() and all(same(one[name], other[name]) for name in one)
    if type(one) is list:
        return len(one) == len(other) and all(map(same, one, other))
    return bool(one == other)


def changes(before: Tree, after: Tree, keys: Sequence[FieldPath], empty: Any) -> Tree:
    """Returns the changes that lead from one tree to another, in the order of the second.

    Args:
        keys: fields of `after` that the result has in any case.
        empty: value for fields that `after` lacks; `...`: they are left out.
    """
    result: Tree = {}
    always: dict[str, list[FieldPath]] = {}
    for path in keys:
        always.setdefault(path[0], []).append(path[1:])
    for name, value in after.items():
        previous = before.get(name, ABSENT)
        wanted = always.get(name, ())
        if type(value) is dict and type(previous) is dict and () not in wanted:
            inner = changes(previous, value, wanted, empty)
            if inner:
                result[name] = inner
        elif wanted or not same(previous, value):
            result[name] = value
    if empty is not ...:
        for name in before:
            if name not in after:
                result[name] = empty
    return result


def leaves(tree: Tree, path: FieldPath = ()) -> Iterable[tuple[FieldPath, Any]]:
    """Yields (path, value) of every field that is no dict, in order; an empty dict counts as a
    field."""
    for name, value in tree.items():
        if type(value) is dict and value:
            yield from leaves(value, (*path, name))
        else:
            yield (*path, name), value
