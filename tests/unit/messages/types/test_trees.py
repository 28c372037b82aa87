"""services/messages/types/trees.py: fields by path, merging, what changed."""

from __future__ import annotations

from typing import Any

import pytest

from raylay.services.errors import MessageTypeError
from raylay.services.messages.types.trees import (
    ABSENT,
    FieldPath,
    TreeTooDeep,
    changes,
    check_depth,
    field_path,
    leaves,
    merged,
    same,
    value_at,
)

pytestmark = [
    pytest.mark.covers("Message types", "deltas: what is lacking stays"),
    pytest.mark.covers("SOW", "`delta_publish`"),
]


@pytest.mark.parametrize(
    ("identifier", "path"),
    [
        ("/a", ("a",)),
        ("/order/@id", ("order", "@id")),
        ("/55", ("55",)),
        ("/a b", ("a b",)),
        ("[/a b/c]", ("a b", "c")),
    ],
)
def test_an_identifier_is_a_path(identifier: str, path: FieldPath) -> None:
    assert field_path(identifier) == path


@pytest.mark.parametrize("identifier", ["", "/", "a", "a/b", "/a/", "//a", "[a]", "[/a"])
def test_what_names_no_field_is_refused(identifier: str) -> None:
    with pytest.raises(MessageTypeError, match="names no field"):
        field_path(identifier)


@pytest.mark.parametrize(
    ("path", "value"),
    [
        (("a",), 1),
        (("b", "c"), None),
        (("b", "d"), ABSENT),
        (("a", "c"), ABSENT),
        (("l", "x"), 5),
        (("e", "x"), ABSENT),
        (("n",), ABSENT),
    ],
)
def test_the_value_of_a_field(path: FieldPath, value: object) -> None:
    tree = {"a": 1, "b": {"c": None}, "l": [{"x": 5}, {"x": 6}], "e": []}
    assert value_at(tree, path) is value or value_at(tree, path) == value


@pytest.mark.parametrize(
    ("stored", "delta", "result"),
    [
        ({"a": 1}, {}, {"a": 1}),
        ({}, {"a": 1}, {"a": 1}),
        ({"a": 1, "b": 2}, {"b": 3, "c": 4}, {"a": 1, "b": 3, "c": 4}),
        ({"a": {"x": 1, "y": 2}}, {"a": {"y": 3}}, {"a": {"x": 1, "y": 3}}),
        ({"a": [1, 2, 3]}, {"a": [9]}, {"a": [9]}),
        ({"a": [{"x": 1}]}, {"a": [{"y": 1}]}, {"a": [{"y": 1}]}),
        ({"a": {"x": 1}}, {"a": 5}, {"a": 5}),
        ({"a": 5}, {"a": {"x": 1}}, {"a": {"x": 1}}),
        ({"a": 5}, {"a": None}, {"a": None}),
        ({"a": {"x": 1}}, {"a": {}}, {"a": {"x": 1}}),
    ],
)
def test_merging(stored: dict[str, Any], delta: dict[str, Any], result: dict[str, Any]) -> None:
    before = repr((stored, delta))
    assert merged(stored, delta) == result
    assert repr((stored, delta)) == before


@pytest.mark.parametrize(
    ("before", "after", "keys", "delta"),
    [
        ({"k": 1, "a": 1}, {"k": 1, "a": 1}, [], {}),
        ({"k": 1, "a": 1}, {"k": 1, "a": 1}, [("k",)], {"k": 1}),
        ({"k": 1, "a": 1}, {"k": 1, "a": 2}, [("k",)], {"k": 1, "a": 2}),
        ({"a": 1}, {"a": 1.0}, [], {"a": 1.0}),
        ({"a": 1}, {"a": True}, [], {"a": True}),
        ({"a": [1, 2]}, {"a": [1, 3]}, [], {"a": [1, 3]}),
        ({"a": [1, 2]}, {"a": [1, 2]}, [], {}),
        ({"a": {"x": 1, "y": 1}}, {"a": {"x": 1, "y": 2}}, [("a", "x")], {"a": {"x": 1, "y": 2}}),
        ({"a": {"x": 1, "y": 1}}, {"a": {"x": 1, "y": 2}}, [], {"a": {"y": 2}}),
        ({"a": {"x": 1}}, {"a": {"x": 1}}, [("a",)], {"a": {"x": 1}}),
        ({"a": 1, "b": 1}, {"a": 1}, [], {"b": "gone"}),
        ({"a": {"x": 1, "y": 2}}, {"a": {"y": 2}}, [], {"a": {"x": "gone"}}),
        ({"a": {"x": 1}}, {"a": 1}, [], {"a": 1}),
        ({"a": 1}, {"a": {}}, [], {"a": {}}),
        ({}, {"a": {"x": 1}}, [("z",)], {"a": {"x": 1}}),
    ],
)
def test_what_changed(
    before: dict[str, Any],
    after: dict[str, Any],
    keys: list[FieldPath],
    delta: dict[str, Any],
) -> None:
    assert changes(before, after, keys, "gone") == delta
    assert "gone" not in repr(changes(before, after, keys, ...))


@pytest.mark.parametrize(
    ("one", "other", "equal"),
    [
        (1, 1, True),
        (1, 1.0, False),
        (True, 1, False),
        ("", None, False),
        ([1, [2]], [1, [2]], True),
        ([1], [1, 1], False),
        ({"a": 1, "b": 2}, {"b": 2, "a": 1}, True),
        ({"a": 1}, {"a": 1.0}, False),
        (float("nan"), float("nan"), False),
    ],
)
def test_what_is_the_same(one: object, other: object, equal: bool) -> None:
    assert same(one, other) is equal


def test_a_tree_is_measured_without_a_call_for_each_level() -> None:
    deep: Any = {}
    for _ in range(50_000):
        deep = {"a": [deep]}
    with pytest.raises(TreeTooDeep):
        check_depth(deep, 100_000)
    while deep:  # as long a way back: what is freed at once calls itself
        deep = deep["a"].pop()
    check_depth({"a": [{"b": 1}]}, 3)
    with pytest.raises(TreeTooDeep):
        check_depth({"a": [{"b": 1}]}, 2)


def test_leaves_in_order() -> None:
    tree = {"b": {"x": 1, "y": {}}, "a": [1]}
    assert list(leaves(tree)) == [(("b", "x"), 1), (("b", "y"), {}), (("a",), [1])]
