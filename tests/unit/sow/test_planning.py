"""What of a filter an index can be asked for; that the answer is right: test_indexes.py."""

from __future__ import annotations

from typing import Any

import pytest

from raylay.services.expressions.expression import expression
from raylay.services.sow.query.planning import QUERY, equalities

pytestmark = pytest.mark.covers("SOW", "an index, and the key as one")


@pytest.mark.parametrize(
    ("text", "wanted", "keys"),
    [
        ("/a = 1 AND (/b = 'x' AND 2 = /c)", {("a",): (1,), ("b",): ("x",), ("c",): (2,)}, None),
        ("/a IN (1, 2) AND /a = 2", {("a",): (2,)}, None),
        ("NOT /a = 1", {}, None),
        ("/a = /b", {}, None),
        ("SOW_KEY() IN ('x', 'y') AND /a = 1", {("a",): (1,)}, ("x", "y")),
    ],
)
def test_what_a_filter_must_find_equal(text: str, wanted: Any, keys: Any) -> None:
    assert equalities(expression(text, QUERY).tree) == (wanted, keys)
