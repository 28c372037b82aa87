"""What operators do with values, as behaviour.md 5.1 and 5.2 tabulate it: one test an operator."""

from __future__ import annotations

import random
import time
from typing import Any

import pytest
from support.expressions_given import NAN, gives, is_true

from raylay.services.expressions import values

ARRAYS = {"data": [1, 2, 3, "zebra", 5], "other": [14, 34, 23, 5], "empty": [], "nulls": [None, 1]}
ORDER = {
    "id": 7,
    "none": None,
    "text": "",
    "flag": True,
    "number": "2.0",
    "word": "pear",
    "outer": {"compound": {"C": [{"C1": 1}, {"C1": [2, 3]}, {"D": 4}, [{"C1": 5}]]}},
    "xml": {"@currency": "EUR", "#text": "12.5"},
    "raw": b"pear",
    "first": [{"x": "a"}, {"x": "b"}],
    "big": 1 << 63,
    "spaced name": 1,
}


@pytest.mark.covers("Filters by content", "`=` `!=` `< <= > >=` `BETWEEN` `IN` `BEGINS WITH`")
@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ("/data = 1", True),
        ("/data = 'zebra'", True),
        ("/data = 42", False),
        ("/data = /other", True),
        ("/empty = 1", False),
        ("2 = 2.0", True),
        ("/number = 2", True),
        ("/number = '2'", False),
        ("2 == '2.0'", True),
        ("/word = 2", False),
        ("'' = ''", False),
        ("/none = /none", False),
        ("/raw = 'pear'", True),
        ("/xml = 12.5", True),
        ("/flag = 1", True),
        ("/big = 9223372036854775808", True),
        ("NAN_VALUE() = NAN_VALUE()", False),
    ],
)
def test_equal(text: str, wanted: bool) -> None:
    assert is_true(text, {**ARRAYS, **ORDER}) is wanted


@pytest.mark.covers("Filters by content", "`=` `!=` `< <= > >=` `BETWEEN` `IN` `BEGINS WITH`")
@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ("/data != 'zebra'", True),
        ("'2.000' <> '2.0'", True),
        ("/number != '2'", True),
        ("/number <> 2", False),
        ("/word != 2", True),
        ("/none != 1", False),
        ("/text != 'x'", False),
        ("'x' != /text", False),
        ("/empty != 1", False),
        ("/other != /other", True),
        ("/raw != 'pear'", False),
        ("NAN_VALUE() != 1", True),
    ],
)
def test_unequal(text: str, wanted: bool) -> None:
    assert is_true(text, {**ARRAYS, **ORDER}) is wanted


@pytest.mark.covers("Filters by content", "`=` `!=` `< <= > >=` `BETWEEN` `IN` `BEGINS WITH`")
@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ("1 < 2", True),
        ("2 <= 2.0", True),
        ("10 < '2'", False),
        ("10 < 'Crank'", True),
        ("10 > 'Crank'", False),
        ("10 < ''", False),
        ("10 > ''", False),
        ("'Crank' >= 10", True),
        ("'10' < '9'", True),
        ("/other > 30", True),
        ("/other > 50", False),
        ("/other < /data", True),
        ("/data >= /other", True),
        ("/other[1] <= 34", True),
        ("/none < 1", False),
        ("/none >= 0", False),
        ("/word < 'pears'", True),
        ("NAN_VALUE() < 1", False),
        ("NAN_VALUE() >= 1", False),
    ],
)
def test_less_and_greater(text: str, wanted: bool) -> None:
    assert is_true(text, {**ARRAYS, **ORDER}) is wanted


@pytest.mark.covers("Filters by content", "`=` `!=` `< <= > >=` `BETWEEN` `IN` `BEGINS WITH`")
@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ("/id BETWEEN 7 AND 9", True),
        ("/id BETWEEN 1 AND 6", False),
        ("/id NOT BETWEEN 1 AND 6", True),
        ("/none BETWEEN 1 AND 6", False),
        ("/none NOT BETWEEN 1 AND 6", True),
        ("/other BETWEEN 20 AND 30", True),
        ("/other BETWEEN 24 AND 33", False),
        ("/word BETWEEN 'a' AND 'z'", True),
    ],
)
def test_between(text: str, wanted: bool) -> None:
    assert is_true(text, {**ARRAYS, **ORDER}) is wanted


@pytest.mark.covers("Filters by content", "`=` `!=` `< <= > >=` `BETWEEN` `IN` `BEGINS WITH`")
@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ("/id IN (1, 7)", True),
        ("/id IN ('7.0')", True),
        ("/id IN ('x', '')", False),
        ("/id NOT IN (1, 2)", True),
        ("/number IN (2)", True),
        ("/number IN ('2')", False),
        ("/none IN (1, '')", False),
        ("/none NOT IN (1)", True),
        ("/data IN (3, 99)", True),
        ("/data IN (98, 99)", False),
        ("/data IN (/other)", True),
        ("/id IN (1, /none, /id)", True),
        ("1 IN (/data, /nothing)", True),
        ("/empty IN (1)", False),
    ],
)
def test_in(text: str, wanted: bool) -> None:
    assert is_true(text, {**ARRAYS, **ORDER}) is wanted


@pytest.mark.covers("Filters by content", "`=` `!=` `< <= > >=` `BETWEEN` `IN` `BEGINS WITH`")
@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ("/word BEGINS WITH ('pe')", True),
        ("/word BEGINS WITH ('x', 'pear')", True),
        ("/word BEGINS WITH ('ear')", False),
        ("/word NOT BEGINS WITH ('x')", True),
        ("/data BEGINS WITH ('zeb')", True),
        ("/id BEGINS WITH (7)", True),
        ("/none BEGINS WITH ('')", False),
        ("/word BEGINS WITH (/none)", False),
        ("/none NOT BEGINS WITH ('x')", True),
    ],
)
def test_begins_with(text: str, wanted: bool) -> None:
    assert is_true(text, {**ARRAYS, **ORDER}) is wanted


@pytest.mark.covers("Filters by content", "`=` `!=` `< <= > >=` `BETWEEN` `IN` `BEGINS WITH`")
@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ("/word ENDS WITH ('ear')", True),
        ("/word ENDS WITH ('gif', 'r')", True),
        ("/word ENDS WITH ('pe')", False),
        ("/word NOT ENDS WITH ('pe')", True),
        ("/data ENDS WITH ('bra')", True),
    ],
)
def test_ends_with(text: str, wanted: bool) -> None:
    assert is_true(text, {**ARRAYS, **ORDER}) is wanted


@pytest.mark.covers("Filters by content", "`=` `!=` `< <= > >=` `BETWEEN` `IN` `BEGINS WITH`")
@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ("'' IS NULL", True),
        ("/none IS NULL", True),
        ("/nothing/at/all IS NULL", True),
        ("/id IS NULL", False),
        ("/id IS NOT NULL", True),
        ("NOT /id IS NULL", True),
        ("/empty IS NULL", True),
        ("/nulls IS NULL", True),
        ("/outer IS NULL", True),
        ("/flag IS NULL", False),
    ],
)
def test_is_null(text: str, wanted: bool) -> None:
    assert is_true(text, {**ARRAYS, **ORDER}) is wanted


@pytest.mark.covers("Filters by content", "`=` `!=` `< <= > >=` `BETWEEN` `IN` `BEGINS WITH`")
@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ("/word + 1 IS NAN", True),
        ("/id IS NAN", False),
        ("/none IS NAN", False),
        ("NAN_VALUE() IS NOT NAN", False),
    ],
)
def test_is_nan(text: str, wanted: bool) -> None:
    assert is_true(text, ORDER) is wanted


@pytest.mark.covers("Filters by content", "`+ - *` `/` `%` `AND OR` `NOT` `IF`")
@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ("1 + 2", 3),
        ("1 + 2.5", 3.5),
        ("'3' + 1", 4),
        ("/id + /none", None),
        ("/word + 1", NAN),
        ("/data + 1", 2),
        ("/nulls + 1", None),
        ("9223372036854775807 * 3", 9223372036854775807 * 3.0),
        ("18446744073709551615 + 1", 18446744073709551616.0),
        ("5 - 7", -2),
        ("-273", -273),
        ("- /id", -7),
        ("- /none", None),
        ("- '2.5'", -2.5),
        ("2 * /flag", 2),
    ],
)
def test_plus_minus_and_times(text: str, wanted: Any) -> None:
    gives(text, wanted, {**ARRAYS, **ORDER})


@pytest.mark.covers("Filters by content", "`+ - *` `/` `%` `AND OR` `NOT` `IF`")
@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ("1 / 5", 0),
        ("-7 / 2", -3),
        ("7 / -2", -3),
        ("7 / 2.0", 3.5),
        ("1 / 0", NAN),
        ("1 / 0.0", float("inf")),
        ("-1 / 0.0", float("-inf")),
        ("0.0 / 0", NAN),
        ("/id / /none", None),
    ],
)
def test_divided(text: str, wanted: Any) -> None:
    gives(text, wanted, ORDER)


@pytest.mark.covers("Filters by content", "`+ - *` `/` `%` `AND OR` `NOT` `IF`")
@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ("7 % 3", 1),
        ("-7 % 3", -1),
        ("7 MOD -3", 1),
        ("-7.5 % 2", -1.5),
        ("7 % 0", NAN),
        ("7.0 % 0", NAN),
        ("/none % 2", None),
    ],
)
def test_modulo(text: str, wanted: Any) -> None:
    gives(text, wanted, ORDER)


NULL_TABLE = [
    ("TRUE", "AND", "NULL", None),
    ("FALSE", "AND", "NULL", False),
    ("NULL", "AND", "FALSE", None),
    ("NULL", "AND", "TRUE", None),
    ("NULL", "AND", "NULL", None),
    ("TRUE", "OR", "NULL", True),
    ("FALSE", "OR", "NULL", None),
    ("NULL", "OR", "TRUE", None),
    ("NULL", "OR", "FALSE", None),
    ("NULL", "OR", "NULL", None),
    ("TRUE", "AND", "TRUE", True),
    ("TRUE", "AND", "FALSE", False),
    ("FALSE", "AND", "TRUE", False),
    ("FALSE", "OR", "TRUE", True),
    ("FALSE", "OR", "FALSE", False),
]


@pytest.mark.covers("Filters by content", "`+ - *` `/` `%` `AND OR` `NOT` `IF`")
@pytest.mark.parametrize(("left", "operator", "right", "wanted"), NULL_TABLE)
def test_and_and_or(left: str, operator: str, right: str, wanted: bool | None) -> None:
    written = {"TRUE": "/yes", "FALSE": "/no", "NULL": "/nothing"}
    given = {"yes": True, "no": 0}
    gives(f"{written[left]} {operator} {written[right]}", wanted, given)
    same = "1 = 1 AND" if operator == "AND" else "1 = 2 OR"
    gives(
        f"{same} {written[left]} {operator} {written[right]} {operator} /nothing",
        wanted if left != "NULL" and wanted is not (operator == "AND") else None,
        given,
    )


@pytest.mark.covers("Filters by content", "`+ - *` `/` `%` `AND OR` `NOT` `IF`")
@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ("NOT 1 = 2", True),
        ("NOT /nothing", None),
        ("NOT NOT 1 = 1", True),
        ("NOT /flag", False),
        ("NOT 'x'", True),
        ("NOT (1 = 1 AND /nothing)", None),
    ],
)
def test_not(text: str, wanted: bool | None) -> None:
    gives(text, wanted, ORDER)


@pytest.mark.covers("Filters by content", "`+ - *` `/` `%` `AND OR` `NOT` `IF`")
@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ("IF(/id > 3, 'much', 'little')", "much"),
        ("IF(/id > 9, 'much', 'little')", "little"),
        ("IF(/nothing, 1, 2)", 2),
        ("IF(/nothing OR 1 = 1, 1, 2)", 2),
        ("IF(1 = 1, /nothing, 2)", None),
    ],
)
def test_if(text: str, wanted: Any) -> None:
    gives(text, wanted, ORDER)


@pytest.mark.parametrize(
    ("value", "wanted"),
    [
        (True, True),
        (0, False),
        (2.5, True),
        (NAN, False),
        ("", None),
        (None, None),
        ("2", True),
        ("0.0", False),
        ("yes", False),
        ([0, 3], True),
        ([0, None], False),
        ([], None),
        ({"a": 1}, None),
        ({"#text": "1"}, True),
        (b"1", True),
    ],
)
def test_values_as_conditions(value: Any, wanted: bool | None) -> None:
    assert values.truth(value) is wanted


@pytest.mark.covers("Filters by content", "identifiers: nested")
@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ("/id", 7),
        ("/outer/compound/C/C1", [1, 2, 3, 5]),
        ("/outer/compound/C[1]/C1[0]", 2),
        ("/outer/compound/C/C1[3]", 5),
        ("/outer/compound/C/C1[9]", None),
        ("/outer/compound/C/Z", None),
        ("/xml/@currency", "EUR"),
        ("/xml/#text", "12.5"),
        ("/first/x", ["a", "b"]),
        ("/first[1]/x", "b"),
        ("/id[0]", 7),
        ("/id[1]", None),
        ("/id/below", None),
        ("/none/below/that", None),
        ("[/spaced name]", 1),
        ("/none[0]", None),
    ],
)
def test_identifiers(text: str, wanted: Any) -> None:
    gives(text, wanted, ORDER)


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ("42", 42),
        ("-3", -3),
        ("+3.5", 3.5),
        (".5e1", 5.0),
        ("1.", 1.0),
        ("18446744073709551616", 18446744073709551616.0),
        ("", NAN),
        ("x", NAN),
        ("1_000", NAN),
        (" 1", NAN),
        ("nan", NAN),
        ("inf", NAN),
        ("0x10", NAN),
        ("\u0663", NAN),
        ("1" * 1000, NAN),
    ],
)
def test_numbers_in_texts(text: str, wanted: float) -> None:
    found = values.parsed(text)
    assert (type(found), repr(found)) == (type(wanted), repr(wanted))


@pytest.mark.covers("Filters by content", "no message makes a filter long")
def test_arrays_are_compared_in_linear_time() -> None:
    many, others = list(range(20_000)), [str(-each - 1) for each in range(20_000)]
    deep: list[Any] = []
    for _ in range(100_000):
        deep = [deep]
    begin = time.thread_time()
    for asked in values.COMPARISONS.values():
        asked(many, others)
    assert not values.equal(many, others)
    assert values.less(others, many)
    assert values.scalar(deep) is None
    assert values.follow([deep], ("a",)) is None
    assert time.thread_time() - begin < 10
    while deep:
        deep = deep.pop()


@pytest.mark.parametrize(
    ("left", "right", "wanted"),
    [
        ([NAN, 5], 5, True),
        ([5, 5], 5, False),
        ([NAN], NAN, True),
        ([NAN, NAN], [5], True),
        ([5], [NAN, 5], True),
    ],
)
def test_nan_in_an_array_is_unequal_to_everything(left: Any, right: Any, wanted: bool) -> None:
    assert values.unequal(left, right) is wanted
    assert values.unequal(right, left) is wanted


ELEMENTS = (
    None,
    "",
    True,
    False,
    0,
    1,
    2,
    2.5,
    -1,
    NAN,
    "a",
    "b",
    "2",
    "02",
    "x2",
    b"a",
    {"#text": 1},
)


@pytest.mark.covers("Filters by content", "a body has 65,536 values at most where it is read")
@pytest.mark.parametrize("name", values.COMPARISONS)
@pytest.mark.parametrize("seed", range(30))
def test_long_arrays_compare_as_their_elements_do(name: str, seed: int) -> None:
    """Also where the same array is asked time and again, as by many filters."""
    rng = random.Random(seed)
    some = rng.sample(ELEMENTS, rng.randint(1, 4))
    long = [rng.choice(some) for _ in range(values.LONG_ARRAY + rng.randrange(9))]
    compare = values.COMPARISONS[name]
    others: list[Any] = [*ELEMENTS, rng.choices(ELEMENTS, k=5), rng.choices(ELEMENTS, k=99)]
    for _ in range(2):
        for other in others:
            each = other if isinstance(other, list) else [other]
            assert compare(long, other) is any(compare(a, b) for a in long for b in each)
            assert compare(other, long) is any(compare(b, a) for a in long for b in each)


def test_a_field_of_long_arrays_is_looked_for_once_and_of_each_array_apart() -> None:
    arrays = [[{"x": n + at, "y": -n} for n in range(100)] for at in range(2 * values.LATELY_MAX)]
    for _ in range(2):
        for at, array in enumerate(arrays):
            tree = {"a": array}
            found = values.follow(tree, ("a", "x"))
            assert found == [n + at for n in range(100)]
            assert values.follow(tree, ("a", "x")) is found
            assert values.follow(tree, ("a", "y")) == [-n for n in range(100)]
            assert values.follow(tree, ("a", "z")) is None
