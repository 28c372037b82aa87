"""docs/coverage.md names what is there: tests in full and in short forms, planted mistakes, laws of
the checkers, steps of the simulator and targets of make."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import pytest
from sim import mistakes, nemesis

from raylay.services.verification import checkers

TESTS = Path(__file__).parents[1]
PAGE = TESTS.parent / "docs" / "coverage.md"
CHAPTERS = "## The replication chapters, paragraph by paragraph"
SCENARIOS = "sim/test_scenarios.py"
KINDS = ("checker", "mistake", "scenario", "simulator")
"""The words that say of what kind the names behind them are; without one they are tests."""
RULE = "rule"
FORGETS = re.compile(r"[;:.]")
"""What ends the reach of such a word."""


@cache
def names_in(path: str) -> tuple[str, ...]:
    """The tests of a file or of all files of a folder, without their `test_`."""
    place = TESTS / path
    files = sorted(place.rglob("test_*.py")) if place.is_dir() else [place] * place.is_file()
    return tuple(
        name
        for file in files
        for name in re.findall(
            r"^(?:async )?def test_(\w+)\(", file.read_text(encoding="utf-8"), re.MULTILINE
        )
    )


@cache
def named(kind: str) -> tuple[str, ...]:
    """All that there is of a kind."""
    if kind == "checker":
        laws = Path(checkers.__file__).parent.rglob("*.py")
        texts = [path.read_text(encoding="utf-8") for path in sorted(laws)]
        found = (re.findall(r"^def (\w+)\(history: RunHistory\)", t, re.MULTILINE) for t in texts)
        return tuple(name for names in found for name in names)
    if kind == "make":
        text = (TESTS.parent / "Makefile").read_text(encoding="utf-8")
        return tuple(re.findall(r"^([a-z-]+):", text, re.MULTILINE))
    return {
        "mistake": lambda: (*mistakes.MISTAKES, *mistakes.SHOWN_BY_A_SCENARIO),
        "scenario": lambda: names_in(SCENARIOS),
        "simulator": lambda: tuple(nemesis._ACTIONS),
    }[kind]()


def is_one_of(name: str, names: tuple[str, ...]) -> bool:
    """A name, or a beginning with `…` behind it that is of one of them alone."""
    if name.endswith("…"):
        return sum(each.startswith(name[:-1]) for each in names) == 1
    return name in names


@dataclass
class Reader:
    """Reads the names of a cell, from the left: each may lean on what stands before it.

    Attributes:
        place: the file or folder of the tests that are named without one.
        kind: of what is named now (`KINDS`); empty: tests.
    """

    place: str
    kind: str

    def unknown(self, cell: str) -> Iterator[str]:
        """The names that name nothing."""
        usual = self.kind
        for prose, name in re.findall(r"([^`]*)`([^`]*)`", cell):
            said = [word for word in KINDS if re.search(rf"\b{word}s?\b", prose)]
            if said or FORGETS.search(prose):
                self.kind = said[-1] if said else usual
            if not self._is_there(name):
                yield name

    def _is_there(self, name: str) -> bool:
        file, _, test = name.partition("::")
        if name.startswith("make "):
            return is_one_of(name.split()[1], named("make"))
        if file.endswith(".py"):
            folder = self.place.partition("/")[0]
            self.place, self.kind = (file if "/" in file else f"{folder}/{file}"), ""
            there = (TESTS / self.place).is_file()
            return there and (not test or is_one_of(test, names_in(self.place)))
        if "/" not in name and (TESTS / name).is_dir():
            self.place, self.kind = name, ""
            return True
        if self.kind:
            return is_one_of(name, named(self.kind))
        return bool(self.place) and is_one_of(name, names_in(self.place))


def unknown(page: str) -> Iterator[str]:
    """Each name in the cells of a page's tables that names nothing, behind its row's first cell.
    The first column and those of rules name none. A cell may refer to the one above it: `the
    same`."""
    usual: list[Reader] = []
    above: list[Reader] = []
    for line in page.splitlines():
        if not line.startswith("|"):
            usual, above = [], []
            continue
        rule, *cells = (cell.strip() for cell in line.strip("|").split("|"))
        if not usual:
            # What a column is of may stand in its heading.
            usual = [_of_heading(cell) for cell in cells]
        elif set(rule) != {"-"}:
            found = [
                Reader(before.place if cell.startswith("the same") else common.place, common.kind)
                for cell, common, before in zip(cells, usual, above or usual, strict=True)
            ]
            for cell, reader in zip(cells, found, strict=True):
                if reader.kind == RULE:
                    continue
                yield from (f"{rule}: `{name}`" for name in reader.unknown(cell))
            above = found


def _of_heading(cell: str) -> Reader:
    folder = re.search(r"`tests/(\w+)`", cell)
    kind = next((word for word in (*KINDS, RULE) if cell.startswith(word)), "")
    return Reader(folder[1] if folder else "", kind)


def test_every_name_of_the_page_is_there() -> None:
    assert list(unknown(PAGE.read_text(encoding="utf-8"))) == []


@pytest.mark.parametrize(
    ("cell", "wrong"),
    [
        ("`unit/test_coverage.py::a_name_that_is_not_there_is_found`", []),
        ("`unit/test_coverage.py::nobody_wrote_it`", ["unit/test_coverage.py::nobody_wrote_it"]),
        ("`unit/test_nothing.py`", ["unit/test_nothing.py"]),
        ("`unit/test_nothing.py::x`, `y`", ["unit/test_nothing.py::x", "y"]),
        ("`unit/test_coverage.py` `a_name_that_…`, `every_name_of_…`", []),
        ("`unit/test_coverage.py` `every_…`", ["every_…"]),
        (
            "`unit` `a_name_that_is_not_there_is_found`; "
            "`test_version_floors.py` `a_floor_that_is_too_low_is_found`",
            [],
        ),
        (
            "`unit` `nobody_wrote_it`, `test_coverage.py` `nor_this`",
            ["nobody_wrote_it", "nor_this"],
        ),
        ("`sim`: `a_failing_seed_is_told_…`, `nothing_of_this_…`", ["nothing_of_this_…"]),
        ("checkers `once`, `twice`; mistakes `prefix acks`, `none`", ["twice", "none"]),
        ("scenario `one_link_from_an_instance_to_an_instance`, `two_links`", ["two_links"]),
        ("simulator `lose_disk`; `make sim`, `make gold`", ["make gold"]),
        ("scenarios `nothing`; `unit/commands/test_cli.py` `nothing`", ["nothing", "nothing"]),
        ("`bare_name`", ["bare_name"]),
    ],
)
def test_a_name_that_is_not_there_is_found(cell: str, wrong: list[str]) -> None:
    page = f"# Page\n\n| rule | test |\n|---|---|\n| `r` | {cell} |\n"
    assert list(unknown(page)) == [f"`r`: `{name}`" for name in wrong]


def test_a_name_leans_on_its_table_and_on_the_row_above() -> None:
    page = (
        "| rule | test (`tests/unit`) | checker |\n|---|---|---|\n"
        "| one | `every_name_of_the_page_is_there` | `once` |\n"
        "| two | `test_version_floors.py` `a_floor_that_is_too_low_is_found` | `never` |\n"
        "| three | the same, `versions` | |\n\n"
        "| chapter | rule | tests |\n|---|---|---|\n| c | `anything` | `version` |\n"
    )
    assert list(unknown(page)) == ["two: `never`", "three: `versions`", "c: `version`"]


def test_every_rule_of_the_chapters_names_a_test() -> None:
    rows = [
        line
        for line in PAGE.read_text(encoding="utf-8").split(CHAPTERS)[1].splitlines()
        if line.startswith("|") and not line.startswith(("| chapter |", "|---|"))
    ]
    assert len(rows) >= 50
    assert [row for row in rows if ".py::" not in row.rsplit("|", 2)[1]] == []
