"""What the pages tell people to type is there: every command and option of `raylay`, every target
of make. And what docs/troubleshooting.md shows is said by the code."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import typer
from markdown_it import MarkdownIt

from raylay.services.cli import app

# In one process of those that run the tests: each that has one of these reads all of the code.
pytestmark = pytest.mark.xdist_group("pages_commands")

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md")), ROOT / "deploy" / "README.md"]
SYMPTOMS = ROOT / "docs" / "troubleshooting.md"
TYPED = re.compile(r"(?<!from )(?<![\w-])raylay (?!raylay\b)(?=[a-z])([^`#]*)")
LITERAL_MIN = 10
"""A sentence with fewer letters of its own is too much like any other."""


def snippets(page: Path) -> Iterator[str]:
    """Its code: each span, and each line of a block, with what a backslash continues."""
    for token in MarkdownIt("commonmark").enable("table").parse(page.read_text(encoding="utf-8")):
        if token.type in ("fence", "code_block") and token.info in ("", "console", "bash", "sh"):
            lines = token.content.replace("\\\n", " ").splitlines()
            yield from (each for each in lines if token.info != "console" or each[:2] == "$ ")
        yield from (child.content for child in token.children or [] if child.type == "code_inline")


def wrong(snippet: str) -> Iterator[str]:
    """What of a snippet `raylay` does not know."""
    for found in TYPED.finditer(re.sub(r"\s#\s.*", "", snippet)):
        group: Any = typer.main.get_command(app)
        words = re.split(r"[|;&]| -- | > ", found[1])[0].split()
        taken = []
        while words and hasattr(group, "commands") and re.fullmatch(r"[a-z]+(\|[a-z]+)*", words[0]):
            taken.append(words.pop(0))
            below = group.get_command(None, taken[-1])
            if below is None:
                yield f"raylay {' '.join(taken)}: no such command"
                return
            group = below
        group = getattr(group, "alone", group)  # `raylay sow TOPIC`
        known = {option for each in group.params for option in (*each.opts, *each.secondary_opts)}
        for word in words:
            option = re.match(r"--?[a-z][a-z0-9-]*", word)
            if option and option[0] not in {*known, "--help", "--version"}:
                yield f"raylay {' '.join(taken)} has no option {option[0]}"


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_what_people_are_told_to_type_is_there(page: Path) -> None:
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    for snippet in snippets(page):
        assert list(wrong(snippet)) == [], snippet
        for target in re.findall(r"(?:^\$? *|&& |[`=\d] )make ([a-z-]+)", snippet):
            assert target in targets, snippet


@pytest.mark.parametrize(
    ("snippet", "why"),
    [
        ("raylay status --json", []),
        ("raylay statsu", ["raylay statsu: no such command"]),
        ("raylay status --jsn", ["raylay status has no option --jsn"]),
        ("$ raylay journal dump data/x -n 10 | head -5", []),
        ("raylay journal dumps data/x", ["raylay journal dumps: no such command"]),
        ("tail -f log | raylay publish orders --fsync", ["raylay publish has no option --fsync"]),
        (".venv/bin/raylay up FILE --detatch", ["raylay up has no option --detatch"]),
        ("import raylay", []),
        ("from raylay import Client", []),
        ("sudo systemctl edit raylay@orders   # where raylay is", []),
        ("docker run --name raylay --volume x raylay", []),
        ("docker exec raylay raylay stats", ["raylay stats: no such command"]),
    ],
)
def test_what_is_not_there_is_found(snippet: str, why: list[str]) -> None:
    assert list(wrong(snippet)) == why


@cache
def texts() -> list[tuple[str, ...]]:
    """Every text of the code: what stands between its values."""
    found: set[tuple[str, ...]] = set()
    for path in [*(ROOT / "services").rglob("*.py"), *(ROOT / "storage").rglob("*.py")]:
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.JoinedStr):
                parts = [each.value for each in node.values if isinstance(each, ast.Constant)]
                found.add(tuple(map(str, parts)))
            elif isinstance(node, ast.Constant) and isinstance(node.value, str):
                found.add((node.value,))
    return sorted(found)


def says(parts: tuple[str, ...], shown: str) -> bool:
    """Whether a text with any values is what a page shows. `…` stands for anything, at its end for
    the rest of the sentence."""
    text, place, same = shown.removesuffix("…").rstrip(), 0, 0
    enough = max(LITERAL_MIN, len(text) // 3)
    for part in parts:
        at = text.find(part, place)
        if at >= 0:
            place, same = at + len(part), same + len(part)
            continue
        if text == shown:
            return False
        begun = (n for n in range(len(part), 0, -1) if text.endswith(part[:n].rstrip()))
        return same + next(begun, 0) >= enough
    return same >= enough


def is_said(shown: str) -> bool:
    """Whether some text of the code is what a page shows; of a word or two, whether it has them."""
    if "…" not in shown and len(shown.split()) < 4:
        return any(shown in part for parts in texts() for part in parts)
    return any(says(parts, shown) for parts in texts())


def shown_symptoms() -> list[str]:
    """The code in the first cells of the page's tables, without commands and places in files."""
    rows = re.findall(r"^\| (.*?) \|", SYMPTOMS.read_text(encoding="utf-8"), re.MULTILINE)
    found = [span for row in rows for span in re.findall(r"`([^`]+)`", row)]
    return [each for each in found if not re.match(r"raylay|kill|fabric\.yaml:3: …", each)]


@pytest.mark.parametrize("shown", shown_symptoms())
def test_what_the_page_of_symptoms_shows_is_said_by_the_code(shown: str) -> None:
    assert is_said(shown)


def test_what_nothing_says_is_found() -> None:
    assert len(shown_symptoms()) > 50
    assert is_said("no fabric orders runs here; there are …")
    assert not is_said("no fabric orders was found; start it …")
    assert not is_said("instance here-1 was lost by the fabric")
    assert not is_said("storage_filled")
