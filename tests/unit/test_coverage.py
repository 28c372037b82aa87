"""docs/coverage.md is what the markers in the tests say, and what it names besides tests is there:
planted mistakes, laws of the checkers, steps of the simulator and targets of make."""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest
from sim import mistakes, nemesis
from support.coverage_page import PAGE, TESTS, Claim, all_claims, claims_of, rows_of, written

from raylay.services.verification import checkers

CHAPTERS = "The replication chapters, paragraph by paragraph"
KINDS = ("checker", "mistake", "simulator")
"""The words that say of what kind the names behind them are, up to the next semicolon."""


@cache
def named(kind: str) -> tuple[str, ...]:
    """All that there is of a kind; without one, the folders of tests."""
    if kind == "checker":
        laws = Path(checkers.__file__).parent.rglob("*.py")
        texts = [path.read_text(encoding="utf-8") for path in sorted(laws)]
        found = (re.findall(r"^def (\w+)\(history: RunHistory\)", t, re.MULTILINE) for t in texts)
        return tuple(name for names in found for name in names)
    if kind == "make":
        text = (TESTS.parent / "Makefile").read_text(encoding="utf-8")
        return tuple(f"make {target}" for target in re.findall(r"^([a-z-]+):", text, re.MULTILINE))
    if kind == "mistake":
        return (*mistakes.MISTAKES, *mistakes.SHOWN_BY_A_SCENARIO)
    if kind == "simulator":
        return tuple(nemesis._ACTIONS)
    return tuple(path.name for path in TESTS.iterdir() if path.is_dir())


def unknown(page: str) -> Iterator[str]:
    """The names behind the column of tests that name nothing."""
    for row in rows_of(page.splitlines()):
        for cell in row.cells[row.column + 1 :]:
            kind = ""
            for prose, name in re.findall(r"([^`]*)`([^`]*)`", cell):
                said = [word for word in KINDS if re.search(rf"\b{word}s?\b", prose)]
                if said or ";" in prose:
                    kind = said[-1] if said else ""
                target = " ".join(name.split()[:2]) if name.startswith("make ") else ""
                if (target or name) not in named("make" if target else kind):
                    yield f"{row.text}: `{name}`"


def test_the_page_is_what_the_markers_say() -> None:
    text = PAGE.read_text(encoding="utf-8")
    page, faults = written(text, all_claims())
    assert faults == []
    assert page == text, "docs/coverage.md is stale: make coverage-page"


def test_every_name_besides_the_tests_is_there() -> None:
    assert list(unknown(PAGE.read_text(encoding="utf-8"))) == []


def test_every_rule_of_the_chapters_names_a_test() -> None:
    rows = [
        row
        for row in rows_of(PAGE.read_text(encoding="utf-8").splitlines())
        if row.chapter == CHAPTERS
    ]
    assert len(rows) >= 50
    assert [row.text for row in rows if not row.cells[row.column]] == []


@pytest.mark.parametrize(
    ("cell", "wrong"),
    [
        ("checkers `once`, `twice`; mistakes `prefix acks`, `none`", ["twice", "none"]),
        ("in a fifth of the seeds; checker `never`", ["never"]),
        ("simulator `lose_disk`; `make sim`, `make gold`", ["make gold"]),
        ("`make bench ONLY=one`; on real processes `cluster`, `clusters`", ["clusters"]),
        ("mistake `prefix acks`; `prefix acks`", ["prefix acks"]),
    ],
)
def test_a_name_that_is_not_there_is_found(cell: str, wrong: list[str]) -> None:
    page = f"# Page\n\n| rule | tests | besides |\n|---|---|---|\n| `r` | | {cell} |\n"
    assert list(unknown(page)) == [f"`r`: `{name}`" for name in wrong]


SOURCE = """
pytestmark = [pytest.mark.slow, pytest.mark.covers("Life", "it begins")]

@pytest.mark.covers("Life", "it ends", note="on real processes")
@pytest.mark.covers("Life", "it goes on")
async def test_a_life() -> None: ...

@pytest.mark.covers("Life", "it goes on")
def test_another() -> None: ...
"""
TABLE = """# Page
## Life, in short
| | rule | tests | besides |
|---|---|---|---|
| x | it begins: once | `stale.py` | |
| | it goes on | | checker `once` |
| | it goes on and on | | checker `once` |
| | it ends | | |
"""


def test_a_row_has_the_tests_that_are_marked_for_it() -> None:
    page, faults = written(TABLE, list(claims_of("unit/test_it.py", SOURCE)))
    assert faults == []
    assert page == TABLE.replace("`stale.py`", "`unit/test_it.py`").replace(
        "goes on | |", "goes on | `unit/test_it.py::a_life`, `another` |"
    ).replace("| it ends | |", "| it ends | on real processes: `unit/test_it.py::a_life` |")


@pytest.mark.parametrize(
    ("chapter", "row", "fault"),
    [
        ("Life", "it begins twice", "names 0 rows"),
        ("Life", "it goes on and", ""),
        ("Life", "it", "names 4 rows"),
        ("Death", "it begins", "names 0 chapters"),
    ],
)
def test_a_marker_that_names_no_row_or_several_is_a_fault(
    chapter: str, row: str, fault: str
) -> None:
    claims = [Claim("", "a.py", 1, "b", "Life", name) for name in ("it begins", "it ends")]
    _, faults = written(TABLE, [*claims, Claim("", "a.py", 1, "b", chapter, row)])
    assert faults == [f"a.py::b: covers({chapter!r}, {row!r}) {fault}"] * bool(fault)


def test_a_row_without_a_test_is_a_fault() -> None:
    _, faults = written(TABLE, [Claim("", "a.py", 1, "b", "Life", "it begins")])
    assert faults == ["Life, in short: no test is marked for the row: it ends"]
