"""What is shown of an expression and of its values."""

from __future__ import annotations

from typing import Any

import pytest

from raylay.services.expressions.explain import explained, shown_value
from raylay.services.expressions.expression import expression


@pytest.mark.parametrize(
    ("value", "shown"),
    [
        (None, "NULL"),
        ("", "''"),
        (True, "TRUE"),
        (False, "FALSE"),
        (float("nan"), "NaN"),
        (2.0, "2.0"),
        ("it's\n", "'it\\'s\\n'"),
        ("\udcff", "'\\udcff'"),
        ([1, "a"], "[1, 'a']"),
        (list(range(9)), "[0, 1, 2, 3, 4, 5, 6, 7, …]"),
        ({"a": 1}, "an object of 1 fields"),
    ],
)
def test_values(value: Any, shown: str) -> None:
    assert shown_value(value) == shown


def test_an_empty_text_is_told_from_a_field_that_is_not_there() -> None:
    found = expression("/empty = '' OR /none IS NULL OR /list = 1")
    told = list(explained(found.tree, {"empty": "", "list": ["", None]}))
    assert told == [
        (0, "((/empty = '') OR (/none IS NULL) OR (/list = 1))", "TRUE"),
        (1, "(/empty = '')", "FALSE"),
        (2, "/empty", "''"),
        (1, "(/none IS NULL)", "TRUE"),
        (2, "/none", "NULL"),
        (1, "(/list = 1)", "FALSE"),
        (2, "/list", "['', NULL]"),
    ]


def test_each_part_is_told_with_what_it_gave() -> None:
    found = expression("/price * 2 > 100 AND /name LIKE 'x'")
    told = list(explained(found.tree, {"price": 51, "name": "y" * 200}))
    assert told[:-1] == [
        (0, "(((/price * 2) > 100) AND (/name LIKE 'x'))", "FALSE"),
        (1, "((/price * 2) > 100)", "TRUE"),
        (2, "(/price * 2)", "102"),
        (3, "/price", "51"),
        (1, "(/name LIKE 'x')", "FALSE"),
    ]
    assert told[-1][:2] == (2, "/name")
    assert told[-1][2].endswith("…")
