"""The column `tests` of docs/coverage.md, written from markers in the tests (`make coverage-page`).

A marker stands at a test, or in `pytestmark` for all tests of a file:

    @pytest.mark.covers("Replication", "a killed link is started again", note="on a real fabric")

Chapter and row are named by the beginning of their text, which no other may share. Tests with the
same note stand together behind it. The other columns of the page are written by hand.
"""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path

TESTS = Path(__file__).parents[1]
PAGE = TESTS.parent / "docs" / "coverage.md"
COLUMN = "tests"
MARKER = "covers"


@dataclass(frozen=True, slots=True, order=True)
class Claim:
    """One marker.

    Attributes:
        note: what the marker adds about its test; empty in most.
        file: below `tests/`.
        line: of the test; 0 where the marker is of the whole file.
        test: its name without `test_`; empty where the marker is of the whole file.
        chapter: the beginning of a chapter's title.
        row: the beginning of a row's text.
    """

    note: str
    file: str
    line: int
    test: str
    chapter: str
    row: str


@dataclass(frozen=True, slots=True)
class Row:
    """One row of the page.

    Attributes:
        at: the index of its line.
        cells: all of them, stripped.
        column: the index of the one with the tests. The one before it is the row's text.
    """

    at: int
    chapter: str
    cells: list[str]
    column: int

    @property
    def text(self) -> str:
        """The text of the row, without its tests."""
        return self.cells[self.column - 1]


def claims_of(file: str, source: str) -> Iterator[Claim]:
    """The markers of one file of tests."""
    if f"mark.{MARKER}(" not in source:
        return
    for node in ast.parse(source).body:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            line, test, marked = node.lineno, node.name.removeprefix("test_"), node.decorator_list
        elif isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "pytestmark":
            line, test, marked = 0, "", getattr(node.value, "elts", [node.value])
        else:
            continue
        for call in marked:
            if isinstance(call, ast.Call) and ast.unparse(call.func) == f"pytest.mark.{MARKER}":
                chapter, row = (ast.literal_eval(argument) for argument in call.args)
                note = "".join(ast.literal_eval(word.value) for word in call.keywords)
                yield Claim(note, file, line, test, chapter, row)


def all_claims() -> list[Claim]:
    """The markers of all tests."""
    return [
        claim
        for path in sorted(TESTS.rglob("test_*.py"))
        for claim in claims_of(str(path.relative_to(TESTS)), path.read_text(encoding="utf-8"))
    ]


def rows_of(lines: list[str]) -> Iterator[Row]:
    """The rows of the tables that have a column of tests."""
    chapter, column = "", 0
    for at, line in enumerate(lines):
        if line.startswith("#"):
            chapter = line.strip("# ")
        cells = [cell.strip() for cell in line.strip("|").split("|")]
        if not line.startswith("|"):
            column = 0
        elif column and set(cells[0]) != {"-"}:
            yield Row(at, chapter, cells, column)
        elif COLUMN in cells:
            column = cells.index(COLUMN)


def _begins_one(beginning: str, texts: list[str]) -> list[str]:
    return [beginning] if beginning in texts else [t for t in texts if t.startswith(beginning)]


def _cell(claims: list[Claim]) -> str:
    parts = []
    for note, of_note in groupby(sorted(claims), key=lambda claim: claim.note):
        names: list[str] = []
        for file, of_file in groupby(of_note, key=lambda claim: claim.file):
            tests = [claim.test for claim in of_file]
            names.append(f"`{file}::{tests[0]}`" if tests[0] else f"`{file}`")
            names += [f"`{test}`" for test in tests[1:]]
        parts.append((f"{note}: " if note else "") + ", ".join(names))
    return "; ".join(parts)


def written(page: str, claims: list[Claim]) -> tuple[str, list[str]]:
    """The page with the tests of these markers in it, and what is wrong with rows and markers."""
    lines = page.splitlines()
    rows = list(rows_of(lines))
    chapters = list(dict.fromkeys(row.chapter for row in rows))
    of_row: dict[int, list[Claim]] = {row.at: [] for row in rows}
    faults = []
    for claim in claims:
        chapter = _begins_one(claim.chapter, chapters)
        named = [row for row in rows if chapter == [row.chapter]]
        texts = _begins_one(claim.row, [row.text for row in named])
        if len(texts) == 1:
            of_row[next(row.at for row in named if row.text in texts)].append(claim)
        else:
            where = f"{claim.file}::{claim.test or 'pytestmark'}"
            found = f"{len(texts)} rows" if named else f"{len(chapter)} chapters"
            faults.append(f"{where}: covers({claim.chapter!r}, {claim.row!r}) names {found}")
    for row in rows:
        row.cells[row.column] = _cell(of_row[row.at])
        if not any(row.cells[row.column :]):
            faults.append(f"{row.chapter}: no test is marked for the row: {row.text}")
        lines[row.at] = "".join(f"| {cell} " if cell else "| " for cell in row.cells) + "|"
    return "\n".join(lines) + "\n", faults


def main() -> int:
    """Writes the page, or says what keeps it from being written."""
    page, faults = written(PAGE.read_text(encoding="utf-8"), all_claims())
    for fault in faults:
        print(fault, file=sys.stderr)
    if not faults:
        PAGE.write_text(page, encoding="utf-8")
    return bool(faults)


if __name__ == "__main__":
    sys.exit(main())
