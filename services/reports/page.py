"""A report as a page: parts are added in order, and `html` returns one file."""

from __future__ import annotations

import html
import importlib.util
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from raylay.services.errors import ConfigurationError
from raylay.services.messages.plain_text import plain_lines

Tone = Literal["good", "bad", "warn", ""]
TEMPLATE = "page.html"
_CODE = re.compile(r"`([^`]+)`")
ROWS_OPEN_MAX = 40
"""Most rows of a table that is shown open; a longer one is folded."""


@dataclass(frozen=True, slots=True)
class Cell:
    """A cell of a table with a colour, or in a fixed-width font."""

    value: Any
    tone: Tone = ""
    code: bool = False


def check_reports() -> None:
    """Checks that the packages of the extra `reports` are installed.

    Raises:
        ConfigurationError: one is missing; the error says what to install.
    """
    for name in ("jinja2", "matplotlib"):
        if importlib.util.find_spec(name) is None:
            raise ConfigurationError(f"a report needs {name}: pip install 'raylay[reports]'")


@dataclass(slots=True)
class Page:
    """A report. In sentences and notes, what stands between two backticks is shown as code.

    Attributes:
        title: the title, in a few words.
        subtitle: the fabric and the time.
        footer: the command that makes the report again.
    """

    title: str
    subtitle: str = ""
    footer: str = ""
    parts: list[dict[str, Any]] = field(default_factory=list)

    @property
    def headings(self) -> list[tuple[int, str]]:
        """Returns (number of the part, heading) of the parts that have a heading."""
        return [(at, part["heading"]) for at, part in enumerate(self.parts, 1) if part["heading"]]

    def verdict(self, good: bool, text: str, *, word: str = "") -> None:
        """Adds the verdict in one sentence.

        Args:
            word: the word before it; default: `Clean.` or `Failed.`
        """
        self._add(
            "verdict",
            tone="good" if good else "bad",
            word=word or ("Clean." if good else "Failed."),
            text=text,
        )

    def figures(self, items: Iterable[tuple[str, Any, str]], heading: str = "") -> None:
        self._add("figures", heading, tiles=[(label, show(v), note) for label, v, note in items])

    def text(self, heading: str, *paragraphs: str) -> None:
        self._add("text", heading, paragraphs=paragraphs)

    def table(
        self,
        heading: str,
        columns: Sequence[str],
        rows: Iterable[Sequence[Any]],
        note: str = "",
        *,
        folded: bool | None = None,
    ) -> None:
        """Adds a table of values and `Cell`s. A column with a number is aligned to the right.

        Args:
            folded: whether the reader has to open the table; default: whether it is long.
        """
        cells = [[each if isinstance(each, Cell) else Cell(each) for each in row] for row in rows]
        numeric = [
            any(isinstance(row[at].value, int | float) for row in cells)
            for at in range(len(columns))
        ]
        shown = [
            [
                {"text": show(cell.value), "css": _css(cell, numeric[at])}
                for at, cell in enumerate(row)
            ]
            for row in cells
        ]
        self._add(
            "table",
            heading,
            columns=columns,
            rows=shown,
            numeric=numeric,
            note=note,
            folded=len(shown) > ROWS_OPEN_MAX if folded is None else folded,
        )

    def chart(self, heading: str, svg: str, note: str = "") -> None:
        """Adds a chart that `charts` made."""
        self._add("chart", heading, svg=svg, note=note)

    def html(self) -> str:
        """Returns the page as HTML.

        Raises:
            ConfigurationError: the extra `reports` is not installed.
        """
        check_reports()
        from jinja2 import Environment, FileSystemLoader, StrictUndefined

        environment = Environment(
            loader=FileSystemLoader(Path(__file__).parent),
            autoescape=True,
            undefined=StrictUndefined,
            finalize=_shown,
            trim_blocks=True,
            lstrip_blocks=True,
        )
        environment.filters["with_code"] = _with_code
        return environment.get_template(TEMPLATE).render(page=self)

    def _add(self, kind: str, heading: str = "", **values: Any) -> None:
        self.parts.append({"kind": kind, "heading": heading, "note": "", **values})


def _shown(value: Any) -> Any:
    # A chart is markup, which is a kind of `str`.
    return plain_lines(value) if type(value) is str else value


def _with_code(text: str) -> str:
    """Returns a text as HTML, in which what stands between two backticks is code."""
    return _CODE.sub(r"<code>\1</code>", html.escape(plain_lines(text)))


def _css(cell: Cell, numeric: bool) -> str:
    names = [cell.tone, "number" if numeric else "", "code" if cell.code else ""]
    return " ".join(name for name in names if name)


def show(value: Any) -> str:
    """Formats a value for readers: with separators of thousands, and three digits of a fraction."""
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, int):
        return f"{value:,}"
    if isinstance(value, float):
        return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.3g}"
    return "" if value is None else str(value)
