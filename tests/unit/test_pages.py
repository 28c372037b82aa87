"""The pages that people read: every link leads somewhere, and `make docs` builds the site."""

from __future__ import annotations

import itertools
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from markdown_it import MarkdownIt
from markdown_it.token import Token

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
PAGES = sorted([*ROOT.glob("*.md"), *DOCS.glob("*.md"), *ROOT.glob("*/README.md")])
ELSEWHERE = ("http://", "https://", "mailto:")
FOR_USERS = (
    "README.md",
    "docs/index.md",
    "docs/glossary.md",
    "docs/getting-started.md",
    "docs/coming-from.md",
    "docs/scenarios.md",
    "docs/queues.md",
    "docs/clients.md",
    "docs/fabric.md",
    "docs/topology.md",
    "docs/configuration.md",
    "docs/troubleshooting.md",
    "docs/operations.md",
    "docs/journal.md",
    "docs/drills.md",
)
SENTENCE_WORDS_MAX = 34
"""Of a page for users. It may only fall."""
PAGE_NAME = re.compile(r"(?:docs/)?([a-z][\w-]*\.md)\b")


def tokens(page: Path) -> list[Token]:
    return MarkdownIt("commonmark").enable("table").parse(page.read_text(encoding="utf-8"))


def targets(page: Path) -> Iterator[str]:
    """Where its links and pictures lead."""
    for token in tokens(page):
        for child in token.children or []:
            if child.type in ("link_open", "image"):
                yield str(child.attrGet("href") or child.attrGet("src"))


def anchors(page: Path) -> set[str]:
    """Of its headings, as the site and the usual readers of Markdown name them."""
    found: set[str] = set()
    parsed = tokens(page)
    for heading, inline in itertools.pairwise(parsed):
        if heading.type == "heading_open":
            text = "".join(child.content for child in inline.children or [])
            name = re.sub(r"[^\w\- ]", "", text.strip().lower()).replace(" ", "-")
            assert name not in found, f"{page.name} has two headings {text!r}"
            found.add(name)
    return found


def broken(page: Path) -> Iterator[str]:
    for target in targets(page):
        if target.startswith(ELSEWHERE):
            continue
        path, _, anchor = target.partition("#")
        file = (page.parent / path).resolve() if path else page
        if not file.exists():
            yield f"{target}: no such file"
        elif page.parent == DOCS and not file.is_relative_to(DOCS):
            yield f"{target}: the site has only what is in docs/; name the file as code"
        elif anchor and anchor not in anchors(file):
            yield f"{target}: no such heading"


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_lead_somewhere(page: Path) -> None:
    assert not list(broken(page))


def test_pages_that_are_only_named_are_there() -> None:
    known = {page.name for page in [*PAGES, *ROOT.rglob("CONTRIBUTING.md")]} | {"behaviour.md"}
    for page in [ROOT / "README.md", *DOCS.glob("*.md")]:
        named = set(PAGE_NAME.findall(page.read_text(encoding="utf-8")))
        assert named <= known | {"design.md"}, page.name


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("[a](nowhere.md)", "nowhere.md: no such file"),
        ("![a](nowhere.svg)", "nowhere.svg: no such file"),
        ("# Two `words`, and\n[a](#two-words-and)", ""),
        ("# Two words\n[a](#three)", "#three: no such heading"),
        ("`[a](nowhere.md)`\n\n```\n[b](nowhere.md)\n```", ""),
        ("[a](https://example.com)", ""),
    ],
)
def test_a_broken_link_is_found(text: str, why: str, tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text(text, encoding="utf-8")
    assert list(broken(page)) == ([why] if why else [])


def sentences(page: Path) -> Iterator[str]:
    """Of the prose, the lists and the cells of tables; code is one word. Semicolons and colons end
    one, too: what is behind them is read by itself."""
    for token in tokens(page):
        if token.type == "inline":
            parts = [
                "code" if each.type == "code_inline" else each.content or " "
                for each in token.children or []
            ]
            yield from re.split(r"(?<=[.!?:;])\s+", "".join(parts))


@pytest.mark.parametrize("name", FOR_USERS)
def test_sentences_are_short(name: str) -> None:
    found = [(len(sentence.split()), sentence) for sentence in sentences(ROOT / name)]
    assert [each for each in found if each[0] > SENTENCE_WORDS_MAX] == []


def test_a_long_sentence_is_found(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text("One `two three` four.\n\n| a | b |\n|---|---|\n| c | d e: f |\n", "utf-8")
    assert [len(each.split()) for each in sentences(page)] == [3, 1, 1, 1, 2, 1]


def test_every_page_has_a_place_in_the_site() -> None:
    chapters = re.findall(r'"([\w-]+)"', (DOCS / "conf.py").read_text().split("CHAPTERS = ")[1])
    first = set(targets(DOCS / "index.md"))
    for page in DOCS.glob("*.md"):
        if page.name != "index.md":
            assert page.stem in chapters, f"docs/conf.py leaves out {page.name}"
            assert page.name in first, f"docs/index.md leaves out {page.name}"


def build(source: Path, out: Path) -> subprocess.CompletedProcess[str]:
    """As `make docs` does."""
    recipe = (ROOT / "Makefile").read_text().split("\ndocs:")[1].split("\n")[1]
    assert recipe.strip().startswith("$(PY) -m sphinx ") and recipe.endswith(" docs build/site")
    options = recipe.split("-m sphinx ")[1].removesuffix(" docs build/site").split()
    return subprocess.run(
        [sys.executable, "-m", "sphinx", *options, str(source), str(out)],
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )


@pytest.mark.slow
def test_the_site_is_built_with_a_search_and_asks_nobody(tmp_path: Path) -> None:
    done = build(DOCS, tmp_path / "site")
    assert done.returncode == 0, done.stderr
    site = {page.stem: page.read_text() for page in (tmp_path / "site").glob("*.html")}
    assert {page.stem for page in DOCS.glob("*.md")} < set(site)
    assert "downgrad" in (tmp_path / "site" / "searchindex.js").read_text()
    fetched = re.compile(r"<(?:script|img|iframe)[^>]*src=\"?(?:https?:)?//")
    styles = re.compile(r"<link[^>]*rel=\"?(?:stylesheet|preload)[^>]*href=\"?(?:https?:)?//")
    for name, text in site.items():
        assert not fetched.search(text) and not styles.search(text), name
    for style in (tmp_path / "site" / "_static").rglob("*.css"):
        assert not re.search(r"(?:url\(|@import)[\s\"']*(?:https?:)?//", style.read_text()), style


@pytest.mark.slow
def test_a_site_with_a_broken_link_is_not_built(tmp_path: Path) -> None:
    (tmp_path / "conf.py").write_text((DOCS / "conf.py").read_text().split("CHAPTERS")[0])
    (tmp_path / "index.md").write_text("# Here\n\n[there](there.md)\n")
    done = build(tmp_path, tmp_path / "site")
    assert done.returncode != 0
    assert "there.md" in done.stderr


def test_each_word_of_the_glossary_stands_once_and_leads_to_its_page() -> None:
    text = (DOCS / "glossary.md").read_text(encoding="utf-8")
    rows = [
        row for row in re.findall(r"^\| (.+) \| (.+) \| (.+) \|$", text, re.M) if row[0] != "term"
    ]
    terms = [term for row in rows for term in row[0].split(", ")]
    assert len(terms) == len(set(terms)) and len(rows) < 70, "the words that matter, no more"
    for term, meaning, page in rows:
        assert re.fullmatch(r"\[[^]]+\]\([\w.#-]+\)", page), f"{term} leads to no page"
        assert meaning.endswith("."), f"{term} has no sentence"
