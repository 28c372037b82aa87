"""docs/coverage.md names tests that are there."""

from __future__ import annotations

import re
from pathlib import Path

TESTS = Path(__file__).parents[1]
PAGE = TESTS.parent / "docs" / "coverage.md"
CHAPTERS = "## The replication chapters, paragraph by paragraph"


def named() -> list[tuple[str, str]]:
    """(file, test) of each `file::test` of the page."""
    return re.findall(r"`([\w/]+\.py)::(\w+)`", PAGE.read_text(encoding="utf-8"))


def test_every_test_that_the_page_names_is_there() -> None:
    texts = {name: (TESTS / name).read_text(encoding="utf-8") for name, _ in named()}
    assert [
        f"{name}::{test}"
        for name, test in named()
        if not re.search(rf"^(async )?def test_{test}\(", texts[name], re.MULTILINE)
    ] == []


def test_every_rule_of_the_chapters_names_a_test() -> None:
    rows = [
        line
        for line in PAGE.read_text(encoding="utf-8").split(CHAPTERS)[1].splitlines()
        if line.startswith("|") and not line.startswith(("| chapter |", "|---|"))
    ]
    assert len(rows) >= 50
    assert [row for row in rows if ".py::" not in row.rsplit("|", 2)[1]] == []
