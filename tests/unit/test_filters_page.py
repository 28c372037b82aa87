"""docs/filters.md: what it shows is typed, and each row of its tables is evaluated."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import orjson
import pytest
from markdown_it import MarkdownIt
from markdown_it.token import Token
from support.expressions_given import value
from typer.testing import CliRunner

from raylay.services.cli import app
from raylay.services.configuration.files import load_fabric
from raylay.services.expressions.explain import shown_value
from raylay.services.expressions.expression import REPLICATION, expression
from raylay.services.expressions.functions import BUILT_IN
from raylay.services.expressions.functions.registry import NO_CONTEXT, EvalContext

pytestmark = pytest.mark.covers("Filters by content", "`raylay filter`")

PAGE = Path(__file__).parents[2] / "docs" / "filters.md"
TEXT = PAGE.read_text(encoding="utf-8")
TOKENS: list[Token] = MarkdownIt("commonmark").enable("table").parse(TEXT)
ORDERS = next(each.content for each in TOKENS if each.type == "fence" and each.info == "json")
CONSOLE = [each.content for each in TOKENS if each.type == "fence" and each.info == "console"]


def rows() -> list[tuple[str, str]]:
    """The example and what it gives, of each row that ends with two spans of code."""
    found = []
    cells: list[str] = []
    inside = False
    for token in TOKENS:
        if token.type == "tr_open":
            cells = []
        elif token.type == "td_open":
            inside = True
        elif token.type == "inline" and inside:
            cells.append(token.content)
            inside = False
        elif token.type == "tr_close" and len(cells) > 1:
            code = [re.fullmatch(r"`([^`]+)`", cell) for cell in cells[-2:]]
            if all(code):
                found.append((code[0][1], code[1][1]))  # type: ignore[index]
    return found


def test_the_tables_have_rows() -> None:
    assert len(rows()) > 60


@pytest.mark.parametrize(("example", "gives"), rows())
def test_each_row_gives_what_it_says(example: str, gives: str) -> None:
    line = ORDERS.splitlines()[0]
    around = EvalContext(size_bytes=len(line), now_s=1.0, random_bytes=bytes)
    assert shown_value(value(example, orjson.loads(line), around)) == gives


@pytest.mark.parametrize("shown", CONSOLE, ids=range(len(CONSOLE)))
def test_what_is_typed_answers_so(
    shown: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "orders.json").write_text(ORDERS, encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    command, _, answer = shown.partition("\n")
    given = ORDERS.splitlines()[0] if "head -1" in command else ""
    arguments = shlex.split(command.rpartition("raylay ")[2])
    found = CliRunner().invoke(app, arguments, input=given)
    assert found.stdout + found.stderr == answer


@pytest.mark.covers("Filters by content", "a filter of a destination")
def test_the_fabric_with_region_tags_is_one(tmp_path: Path) -> None:
    (shown,) = (each.content for each in TOKENS if each.type == "fence" and each.info == "yaml")
    file = tmp_path / "trading.yaml"
    file.write_text(shown, encoding="utf-8")
    settings = load_fabric([file])
    filters = [link.topics[0].filter for _, link in settings.links()]
    message = {"for": "NewYork"}
    passing = [expression(each, REPLICATION).matches(message, NO_CONTEXT) for each in filters]
    assert passing == [True, False]


def test_every_function_is_on_the_page() -> None:
    spans = (child for token in TOKENS for child in token.children or [])
    code = " ".join(each.content for each in spans if each.type == "code_inline")
    missing = [name for name in BUILT_IN if not re.search(rf"\b{name}\b", code)]
    assert missing == []
