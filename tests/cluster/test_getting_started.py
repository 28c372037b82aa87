"""Pages of docs (getting-started, coming-from, order-service), typed as they stand there:
the same commands in one shell, the same files, and the answers that they show."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import threading
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest
from support import transcripts

pytestmark = pytest.mark.cluster

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
ENVIRONMENT = Path(sys.prefix)
NOT_A_NEWCOMERS = frozenset(("VIRTUAL_ENV", "MAKEFLAGS", "MAKELEVEL", "MFLAGS"))
"""Of the environment: under `make test` the page's own make would say that it is a second one."""
COMMAND_S_MAX = 90.0


class Shell:
    """One shell for the whole page, as a newcomer has one: nothing but it activates `.venv`."""

    def __init__(self, directory: Path) -> None:
        places = os.environ["PATH"].split(os.pathsep)
        kept = {name: value for name, value in os.environ.items() if name not in NOT_A_NEWCOMERS}
        kept["PATH"] = os.pathsep.join(p for p in places if Path(p) != ENVIRONMENT / "bin")
        kept["RAYLAY_RUNTIME_DIR"] = str(directory)
        kept["XDG_CONFIG_HOME"] = str(directory / "config")
        self._process = subprocess.Popen(
            ["bash", "--norc"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            cwd=directory,
            env=kept,
            start_new_session=True,
        )
        self._directory = directory
        self._environment = kept

    def type(self, command: str) -> tuple[str, int]:
        """What the terminal answers, and the exit code."""
        process, mark = self._process, uuid.uuid4().hex
        assert process.stdin is not None
        process.stdin.write(f"{command}\nprintf '{mark} %d\\n' $?\n")
        process.stdin.flush()
        late = threading.Timer(COMMAND_S_MAX, os.killpg, (process.pid, signal.SIGKILL))
        late.start()
        try:
            return self._answer(mark)
        finally:
            late.cancel()

    def _answer(self, mark: str) -> tuple[str, int]:
        assert self._process.stdout is not None
        answer = ""
        for line in self._process.stdout:
            text, marked, code = line.partition(mark)
            answer += text
            if marked:
                return answer, int(code)
        raise AssertionError(f"the shell ended, or was ended after {COMMAND_S_MAX} s: {answer}")

    def close(self) -> None:
        """Ends it, and what was left running."""
        self._process.communicate()
        subprocess.run(
            [ENVIRONMENT / "bin" / "raylay", "down"],
            cwd=self._directory,
            env=self._environment,
            capture_output=True,
            timeout=COMMAND_S_MAX,
            check=False,
        )


@pytest.fixture
def shell(tmp_path: Path) -> Iterator[Shell]:
    """In a checkout whose environment is there: it takes minutes to fetch."""
    (tmp_path / "deploy").mkdir()
    for name in ("Makefile", "pyproject.toml", "deploy/type_links.py"):
        shutil.copy(ROOT / name, tmp_path / name)
    made = tmp_path / ".venv"
    made.mkdir()
    for each in ENVIRONMENT.iterdir():
        if not each.name.startswith("."):
            (made / each.name).symlink_to(each)
    (made / ".raylay-installed").touch()
    opened = Shell(tmp_path)
    yield opened
    opened.close()


def play(shell: Shell, directory: Path, steps: list[transcripts.Step]) -> None:
    """Does what a page says, and compares."""
    for step in steps:
        if step.file:
            (directory / step.file).write_text(step.text, encoding="utf-8")
            continue
        came, code = shell.type(step.command)
        assert code == 0, f"{step.command}: {came}"
        assert transcripts.matches(step.answer, came), (
            f"$ {step.command}\nthe page shows:\n{step.answer}\nbut it answers:\n{came}"
        )


def steps_of(page: str) -> list[transcripts.Step]:
    return transcripts.read((DOCS / page).read_text(encoding="utf-8")).steps


@pytest.mark.slow
def test_getting_started_as_a_newcomer_types_it(shell: Shell, tmp_path: Path) -> None:
    play(shell, tmp_path, steps_of("getting-started.md"))


@pytest.mark.slow
def test_the_page_for_who_knows_another_broker(shell: Shell, tmp_path: Path) -> None:
    """It needs the fabric of Getting started, before that is down."""
    *before, last = steps_of("getting-started.md")
    assert last.command == "raylay down"
    play(shell, tmp_path, before)
    play(shell, tmp_path, steps_of("coming-from.md"))
    play(shell, tmp_path, [last])


@pytest.mark.slow
def test_the_order_service_as_a_reader_builds_it(shell: Shell, tmp_path: Path) -> None:
    shell.type(". .venv/bin/activate")
    play(shell, tmp_path, steps_of("order-service.md"))
