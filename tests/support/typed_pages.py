"""Pages that are typed as they stand, from above to below, against one instance: the commands of
console blocks, and the scripts of python blocks, whose output a text block below shows."""

from __future__ import annotations

import contextlib
import io
import shlex
from pathlib import Path
from typing import Any

import pytest
from markdown_it import MarkdownIt
from markdown_it.token import Token
from typer.testing import CliRunner

from raylay.services.cli import app
from raylay.services.commands.shared.error_messages import error_line
from support import transcripts

DOCS = Path(__file__).parents[2] / "docs"
SERVER = "host-a:9007"
"""The address of the instance on the pages."""


def fences(page: str) -> list[Token]:
    """The blocks of a page of docs/."""
    text = (DOCS / page).read_text(encoding="utf-8")
    return [each for each in MarkdownIt("commonmark").parse(text) if each.type == "fence"]


def blocks(page: str, language: str) -> list[str]:
    """Returns the texts of its blocks of a language."""
    return [each.content for each in fences(page) if each.info == language]


def typed(command: str) -> str:
    """Returns what a terminal shows of it, with the error."""
    found = CliRunner().invoke(app, shlex.split(command.removeprefix("raylay ")))
    line = error_line(found.exception) if isinstance(found.exception, Exception) else None
    return found.output + (f"{line}\n" if line else "")


class Typist:
    """Types a page in order: each answer is of what was done before it.

    Args:
        page: its name in docs/.
        address: of the instance, for the commands and the scripts.
        directory: where the fabrics of its user stand: none.
        left_out: how commands begin that are not for one instance.
    """

    def __init__(
        self,
        page: str,
        address: str,
        directory: Path,
        monkeypatch: pytest.MonkeyPatch,
        left_out: tuple[str, ...],
    ) -> None:
        monkeypatch.setenv("RAYLAY_SERVER", address)
        monkeypatch.setenv("RAYLAY_RUNTIME_DIR", str(directory))
        self._page = page
        self._address = address
        self._left_out = left_out
        self._names: dict[str, Any] = {}
        self.compared = 0
        """Answers that were as the page shows them."""

    def type(self) -> None:
        """Types all of it."""
        printed = ""
        for fence in fences(self._page):
            if fence.info == "console":
                self._console(fence.content)
            elif fence.info == "python":
                printed = self._script(fence.content)
            elif fence.info == "text":
                assert transcripts.matches(fence.content, printed), printed
                self.compared += 1

    def _console(self, shown: str) -> None:
        for step in transcripts.read(f"```console\n{shown}```\n").steps:
            if not step.command.startswith(self._left_out):
                came = typed(step.command)
                assert transcripts.matches(step.answer, came), (step.command, came)
                self.compared += 1

    def _script(self, text: str) -> str:
        assert SERVER in text
        out = io.StringIO()
        with contextlib.redirect_stdout(out):
            exec(text.replace(SERVER, self._address), self._names)
        return out.getvalue()
