"""The keys by which messages are conflated (services/subscriptions/conflation_keys.py)."""

from __future__ import annotations

from typing import Any

import pytest

from raylay.services.messages.types.trees import field_path
from raylay.services.subscriptions.conflation_keys import conflation_key, key_in

pytestmark = pytest.mark.covers("Views", "conflated subscriptions")

PATHS = tuple(map(field_path, ("/a", "/b/c")))


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ({"a": 1}, {"a": 1.0}),
        ({"a": 1}, {"a": "1"}),
        ({"a": None}, {"b": {}}),
        ({"a": "", "b": 5}, {"a": None}),
        ({"a": [1, 2], "b": {"c": True}}, {"a": 1, "b": {"c": 1}}),
    ],
)
@pytest.mark.covers("Views and conflation, title by title", "`conflation_key`")
def test_equal_values_make_one_key(one: Any, other: Any) -> None:
    assert conflation_key(one, PATHS) == conflation_key(other, PATHS)


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ({"a": 1}, {"a": 2}),
        ({"a": 1}, {"b": {"c": 1}}),
        ({"a": "x", "b": {"c": "y"}}, {"a": "xy"}),
        ({"a": "\ud800"}, {"a": "\ud801"}),
    ],
)
def test_other_values_make_another_key(one: Any, other: Any) -> None:
    assert conflation_key(one, PATHS) != conflation_key(other, PATHS)


def test_topics_have_their_own_keys() -> None:
    assert len({key_in(b"a", b"json", b"k"), key_in(b"b", b"json", b"k"), b"k"}) == 3
