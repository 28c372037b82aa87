"""What an evaluation may work, and a client's filter in the long run."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from raylay.services.expressions import work
from raylay.services.expressions.compiler import compiled_value
from raylay.services.expressions.expression import REPLICATION, SUBSCRIPTION, expression
from raylay.services.expressions.functions import BUILT_IN
from raylay.services.expressions.functions.registry import NO_CONTEXT
from raylay.services.expressions.parser import parse
from raylay.services.expressions.values import LATELY_MAX
from raylay.services.expressions.work import (
    NEWS,
    NOTED_STEPS,
    TOLD_MAX,
    WORK_MAX,
    EvaluationAccount,
    charge,
)

MIB = 1 << 20


@pytest.fixture(autouse=True)
def nothing_before() -> Iterator[None]:
    """What other tests worked is not told here, nor the other way round."""
    forget()
    yield
    forget()


def forget() -> None:
    NEWS.take()


def steps_of(text: str, message: dict[str, Any]) -> int:
    """What a filter takes for a message: as it notes, of little work nothing."""
    found = expression(text, REPLICATION, BUILT_IN)
    before = found.effort.steps
    found.matches(message, NO_CONTEXT)
    return found.effort.steps - before


def nested(call: str, inner: str, depth: int) -> str:
    for _ in range(depth):
        inner = call.replace("…", inner)
    return inner


ARRAY = list(range(65_536))
MANY = {f"a{n}": list(range(7_000)) for n in range(LATELY_MAX + 1)}
NESTED = {f"a{n}": [[] for _ in range(7_000)] for n in range(LATELY_MAX + 1)}
COSTLY: list[tuple[str, dict[str, Any]]] = [
    (nested("REGEXP_REPLACE(…, 'a', 'aa')", "/t", 20) + " = 'x'", {"t": "a" * 20}),
    (
        " OR ".join(nested("REPLACE(…, 'a', 'aa')", "/t", 19) + f" = '{n}'" for n in range(5)),
        {"t": "a" * 20},
    ),
    (nested("CONCAT(…, /t)", "/t", 40) + " = 'x'", {"t": "a" * MIB}),
    (" AND ".join(f"ARRAY_SUM(/a) != {n}" for n in range(100)), {"a": ARRAY}),
    (" OR ".join(f"ARRAY_TO_STRING(/a, ',', '') = '{n}'" for n in range(100)), {"a": ARRAY}),
    (" OR ".join(f"/a LIKE 'x{n}'" for n in range(100)), {"a": ["y" * 20] * 65_536}),
    (" OR ".join(f"/a BEGINS WITH ('x{n}')" for n in range(400)), {"a": ["y"] * 65_536}),
    (" OR ".join(f"/a IN ('x{n}', 'y{n}')" for n in range(200)), {"a": ["z"] * 65_536}),
    (" OR ".join(f"/a BETWEEN 'x{n}' AND 'y{n}'" for n in range(100)), {"a": ["a"] * 65_536}),
    (
        " OR ".join(f"/a{n % (LATELY_MAX + 1)} < -{n}" for n in range(1, 400))
        + "".join(f" OR ARRAY_COUNT(/a{n % (LATELY_MAX + 1)}) = {n}" for n in range(9)),
        MANY,
    ),
    (" OR ".join(f"/a{n % (LATELY_MAX + 1)} + 1 = {n}" for n in range(300)), NESTED),
    (" OR ".join(f"/a{n % (LATELY_MAX + 1)} IS NAN" for n in range(450)), NESTED),
    ("/t LIKE '[^y]{500}z'", {"t": "x" * MIB}),
    ("REGEXP_MATCH(/t, '[^y]{500}z') = 'x'", {"t": "x" * MIB}),
    ("REGEXP_REPLACE(/t, 'x', 'y') = 'x'", {"t": "x" * MIB}),
    ("CRC32(/t) = 1 OR CRC64(/t) = 2", {"t": "x" * (MIB // 4)}),
    (" OR ".join(f"UPPER(/t) = '{n}'" for n in range(100)), {"t": "x" * MIB}),
    (
        " OR ".join(f"/t = /u AND {n} = 1000" for n in range(100)),
        {"t": "x" * 8 * MIB, "u": "x" * 8 * MIB},
    ),
    (" OR ".join(f"/b = '{n}' OR /b < '{n}'" for n in range(200)), {"b": b"y" * MIB}),
    (" OR ".join(f"/a = '{n}'" for n in range(30)), {"a": [b"\xff" * 15 * MIB]}),
    (" OR ".join(f"/a = '{n}'" for n in range(30)), {"a": {"#text": b"\xff" * 15 * MIB}}),
    *(
        (" OR ".join(part.format(n=n) for n in range(count)), {"a": array})
        for array in ([None] * 65_000, [[-1] * 65_000], [[[] for _ in range(65_000)]])
        for part, count in (
            ("/a LIKE 'x{n}'", 300),
            ("/a IN ('{n}', 'b')", 300),
            ("/a BEGINS WITH ('x{n}')", 300),
            ("/a BETWEEN 'x{n}' AND 'y{n}'", 200),
            ("/a/x{n} = 1", 300),
            ("ARRAY_COUNT(/a) = -{n}", 300),
        )
    ),
    (
        " OR ".join(f"/a + 1 = {n} AND NOT /a IS NULL" for n in range(120)),
        {"a": [[[] for _ in range(65_000)]]},
    ),
    (" OR ".join(f"/a/x{n} = 1" for n in range(300)), {"a": [[0] * 1_000] * 64}),
    ("REGEXP_REPLACE(/t, 'x', /u) = 'y'", {"t": "x" * 1_000, "u": "\\1" * 10_000}),
    ("REGEXP_REPLACE(/t, 'x', /u) = 'y'", {"t": "x", "u": "\\1" * 6_000_000}),
    ("REGEXP_MATCH(/t, '((a)|(b))*c') = 'y'", {"t": "ab" * 2 * MIB}),
    (
        " OR ".join(f"STRPTIME(/t, '%Y-%m-%dT%H:%M:%S.%f {n}') = 1" for n in range(300)),
        {"t": "2026-11-28T01:02:03.123456"},
    ),
]


@pytest.mark.parametrize(
    "text, message", COSTLY, ids=[f"{n}: {each[0][:40]}" for n, each in enumerate(COSTLY)]
)
def test_what_takes_seconds_is_given_up_and_false(text: str, message: dict[str, Any]) -> None:
    found = expression(text, SUBSCRIPTION, BUILT_IN).own()
    before = found.effort.given_up
    assert found.matches(message, NO_CONTEXT) is False
    assert found.effort.given_up == before + 1
    assert NEWS.take() == {text: 1}
    negated = expression(f"NOT ({text})", REPLICATION, BUILT_IN)
    assert negated.matches(message, NO_CONTEXT) is False, "it is given up, not false in a part"


@pytest.mark.parametrize(
    "text, message",
    [
        ("/t LIKE 'abc'", {"t": "x" * 16 * MIB + "abc"}),
        ("/t LIKE '^x+$'", {"t": "x" * MIB}),
        ("/t LIKE '(?i)(desk|book)-[0-9]{1,6}'", {"t": "y" * 100_000 + "Desk-12"}),
        ("LENGTH(/t) > 1", {"t": "x" * 16 * MIB}),
        ("UPPER(/t) = /u", {"t": "x" * MIB, "u": "X" * MIB}),
        ("ARRAY_SUM(/a) > 1", {"a": ARRAY}),
        ("/a LIKE '9$'", {"a": ARRAY}),
        (" AND ".join(f"/a > {n}" for n in range(400)), {"a": ARRAY}),
        (" AND ".join(f"/d/p > {n}" for n in range(400)), {"d": [{"p": n} for n in range(30_000)]}),
        ("CRC32(/t) != 1", {"t": "x" * 200_000}),
    ],
    ids=lambda each: str(each)[:40],
)
def test_a_look_or_two_at_a_large_message_is_no_costly_filter(
    text: str, message: dict[str, Any]
) -> None:
    found = expression(text, SUBSCRIPTION, BUILT_IN)
    assert found.matches(message, NO_CONTEXT) is True
    assert not found.effort.given_up and not NEWS.take()


def test_little_work_is_not_noted() -> None:
    message = {"a": 1, "t": "x" * 500, "l": list(range(100)), "n": {"m": "y"}}
    text = "/a = 1 AND /t LIKE 'x{3}' AND LENGTH(/t) = 500 AND /l > 98 AND /n/m != 'z'"
    found = expression(text, SUBSCRIPTION, BUILT_IN)
    assert found.matches(message, NO_CONTEXT) is True
    assert not found.effort.steps


def test_the_same_message_takes_as_many_steps_whatever_was_asked_before() -> None:
    text = "/a > 70000 OR /d/p > 70000 OR ARRAY_SUM(/a) < 0"
    message = {"a": list(range(20_000)), "d": [{"p": n} for n in range(20_000)]}
    first = steps_of(text, message)
    assert first == steps_of(text, message) > work.NOTED_STEPS
    other = {"a": list(range(20_000)), "d": [{"p": n} for n in range(20_000)]}
    for name in range(2 * LATELY_MAX):
        steps_of("/b > 1", {"b": [name] * 20_000})
    assert steps_of(text, other) == first


def test_a_value_that_takes_too_much_is_null() -> None:
    node = parse("COALESCE(" + nested("REGEXP_REPLACE(…, 'a', 'aa')", "/t", 20) + ", 1)", BUILT_IN)
    assert compiled_value(node)({"t": "a"}, NO_CONTEXT) is None
    assert NEWS.count


def test_a_function_that_somebody_installed_is_not_to_hide_it() -> None:
    """What a function raises is NULL, but for this: the whole evaluation is over."""
    text = "COALESCE(CRC32(/t), CRC64(/t), CRC32(/t), 1) = 1"
    found = expression(text, SUBSCRIPTION, BUILT_IN)
    assert found.matches({"t": "x" * (MIB // 4)}, NO_CONTEXT) is False
    assert found.effort.given_up == 1


def test_what_was_little_until_now_counts_with_what_makes_it_much() -> None:
    effort = EvaluationAccount("costly")
    meter: list[Any] = [0, effort, None]
    part = NOTED_STEPS * 3 // 4
    charge(meter, part)
    assert effort.steps == 0
    for times in (2, 3):
        charge(meter, part)
        assert effort.steps == times * part


def test_what_is_given_up_counts_once() -> None:
    text = " OR ".join(f"ARRAY_SUM(/a) = -{n}" for n in range(9))
    found = expression(text, SUBSCRIPTION, BUILT_IN).own()
    for number in range(1, 4):
        assert not found.matches({"a": ARRAY}, NO_CONTEXT)
        assert found.effort.steps == number * WORK_MAX


def test_only_so_many_filters_are_told_of() -> None:
    for number in range(2 * TOLD_MAX):
        for _ in range(2):
            NEWS.gave_up(EvaluationAccount(f"filter {number}"))
    told = NEWS.take()
    assert told == {f"filter {number}": 2 for number in range(TOLD_MAX)}
    assert NEWS.take() == {}
