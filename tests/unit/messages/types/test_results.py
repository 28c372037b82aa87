"""services/messages/types/results.py: what the code of an installed type may return."""

from __future__ import annotations

from typing import Any

import pytest

from raylay.services.messages.types.results import (
    INTEGER_BITS_MAX,
    WrongResult,
    checked_body,
    checked_tree,
)
from raylay.services.messages.types.trees import TreeTooDeep


class Text(str):
    """A text of another type."""


class Count(int):
    """A number of another type."""


def test_each_value_is_of_exactly_one_type() -> None:
    tree = checked_tree({Text("a"): Text("x"), "b": (Count(7), 2.5, b"y", True, None)}, 100)
    assert tree == {"a": "x", "b": [7, 2.5, b"y", True, None]}
    assert [type(each) for each in (*tree, tree["a"], tree["b"], tree["b"][0])] == [
        str, str, str, list, int
    ]  # fmt: skip


def test_depth_counts_the_tree_itself() -> None:
    assert checked_tree({"a": {"b": [1]}}, 3) == {"a": {"b": [1]}}
    with pytest.raises(TreeTooDeep):
        checked_tree({"a": {"b": [1]}}, 2)


@pytest.mark.parametrize("found", [None, [1], {1: 2}, {"a": {1}}, {"a": [1j]}])
def test_what_is_no_tree(found: Any) -> None:
    with pytest.raises(WrongResult):
        checked_tree(found, 100)


def test_a_number_can_be_written() -> None:
    most = (1 << INTEGER_BITS_MAX) - 1
    assert str(checked_tree({"a": most}, 100)["a"])
    with pytest.raises(WrongResult, match="digits"):
        checked_tree({"a": most + 1}, 100)


def test_a_body_is_bytes() -> None:
    assert checked_body(b"x") == b"x"
    with pytest.raises(WrongResult, match="came as str"):
        checked_body("x")
