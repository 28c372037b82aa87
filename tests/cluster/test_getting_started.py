"""docs/getting-started.md, typed as it stands there: the same commands in one shell, the same
files, and the answers that it shows."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest
import transcripts

pytestmark = pytest.mark.cluster

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "getting-started.md"
ENVIRONMENT = Path(sys.prefix)


class Shell:
    """One shell for the whole page, as a newcomer has one: nothing but it activates `.venv`."""

    def __init__(self, directory: Path) -> None:
        places = os.environ["PATH"].split(os.pathsep)
        kept = {name: value for name, value in os.environ.items() if name != "VIRTUAL_ENV"}
        kept["PATH"] = os.pathsep.join(p for p in places if Path(p) != ENVIRONMENT / "bin")
        kept["RAYLAY_RUNTIME_DIR"] = str(directory)
        self._process = subprocess.Popen(
            ["bash", "--norc"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            cwd=directory,
            env=kept,
        )

    def type(self, command: str) -> tuple[str, int]:
        """What the terminal answers, and the exit code."""
        process, mark = self._process, uuid.uuid4().hex
        assert process.stdin is not None and process.stdout is not None
        process.stdin.write(f"{command}\nprintf '{mark} %d\\n' $?\n")
        process.stdin.flush()
        answer = ""
        for line in process.stdout:
            text, marked, code = line.partition(mark)
            answer += text
            if marked:
                return answer, int(code)
        raise AssertionError(f"{command!r} ended the shell: {answer}")

    def close(self) -> None:
        """Ends it, and what was left running."""
        self.type(f"{ENVIRONMENT}/bin/raylay down")
        self._process.communicate(timeout=30)


@pytest.fixture
def shell(tmp_path: Path) -> Iterator[Shell]:
    """In a checkout whose environment is there: it takes minutes to fetch."""
    for name in ("Makefile", "pyproject.toml"):
        shutil.copy(ROOT / name, tmp_path)
    made = tmp_path / ".venv"
    made.mkdir()
    for each in ENVIRONMENT.iterdir():
        if not each.name.startswith("."):
            (made / each.name).symlink_to(each)
    (made / ".raylay-installed").touch()
    opened = Shell(tmp_path)
    yield opened
    opened.close()


def test_the_page_as_a_newcomer_types_it(shell: Shell, tmp_path: Path) -> None:
    for step in transcripts.read(PAGE.read_text(encoding="utf-8")).steps:
        if step.file:
            (tmp_path / step.file).write_text(step.text, encoding="utf-8")
            continue
        came, code = shell.type(step.command)
        assert code == 0, f"{step.command}: {came}"
        assert transcripts.matches(step.answer, came), (
            f"$ {step.command}\nthe page shows:\n{step.answer}\nbut it answers:\n{came}"
        )
