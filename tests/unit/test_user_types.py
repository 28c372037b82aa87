"""Type checkers find `raylay` in an environment of `make setup`, and check the script of a user:
right ones have no error, as strictly as they are read, wrong ones exactly those that their lines
name."""

from __future__ import annotations

import importlib.util
import json
import re
import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path

import pytest

import raylay

pytestmark = pytest.mark.covers("Clients and protocol", "an editor checks the script of a user")

ROOT = Path(__file__).parents[2]
SCRIPTS = ROOT / "tests" / "fixtures" / "user_scripts"
EXPECTED = re.compile(r"  # ([a-z-]+), (report\w+)$")
Problems = set[tuple[str, int, str]]
"""File, number of the line, and the tool's name of the error."""


def run(tool: str, *arguments: str, cwd: Path) -> str:
    """Runs a tool of this environment, outside of the tree: its configuration is not the user's."""
    done = subprocess.run(
        [sys.executable, "-m", tool, *arguments],
        cwd=cwd,
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )
    assert done.returncode in (0, 1), f"{done.stdout}{done.stderr}"
    return done.stdout


def expected(number: int) -> Problems:
    """Returns the errors that the scripts name; `number`: 1 for mypy, 2 for Pyright."""
    found = {
        (path.name, line, match[number])
        for path in SCRIPTS.glob("*.py")
        for line, text in enumerate(path.read_text(encoding="utf-8").splitlines(), start=1)
        if (match := EXPECTED.search(text))
    }
    assert {name for name, _, _ in found} == {"wrong.py"}
    return found


@pytest.fixture
def scripts(tmp_path: Path) -> Path:
    """Returns a folder outside of the tree with the scripts, as a user has them."""
    return Path(shutil.copytree(SCRIPTS, tmp_path / "scripts"))


def test_mypy_checks_the_script_of_a_user(scripts: Path) -> None:
    options = (
        "--strict",
        "--config-file=",
        "--no-error-summary",
        "--no-pretty",
        "--no-incremental",
    )
    shown = run("mypy", *options, *sorted(path.name for path in scripts.glob("*.py")), cwd=scripts)
    found = set(re.findall(r"(\w+\.py):(\d+): error: .*  \[([a-z-]+)\]$", shown, re.MULTILINE))
    assert {(name, int(line), code) for name, line, code in found} == expected(1), shown
    assert shown.count(": error: ") == len(found), shown


@pytest.mark.skipif(
    not importlib.util.find_spec("pyright"), reason="no pyright: make setup installs it"
)
def test_pyright_checks_the_script_of_a_user(scripts: Path) -> None:
    # A wrong line makes what follows unknown, which only strict checks report.
    settings = {"typeCheckingMode": "standard", "strict": ["right_*.py"]}
    (scripts / "pyrightconfig.json").write_text(json.dumps(settings), encoding="utf-8")
    shown = run("pyright", "--outputjson", "--pythonpath", sys.executable, cwd=scripts)
    problems = json.loads(shown)["generalDiagnostics"]
    found = [
        (Path(each["file"]).name, each["range"]["start"]["line"] + 1, each.get("rule", ""))
        for each in problems
    ]
    assert set(found) == expected(2), problems
    assert len(found) == len(set(found))


def test_the_links_of_the_type_checkers_move_nothing_that_runs() -> None:
    site = Path(sysconfig.get_path("purelib"))
    assert raylay.__file__ == str(ROOT / "services" / "api" / "__init__.py")
    assert (site / "raylay-stubs" / "services").resolve() == ROOT / "services"
    assert not (site / "raylay-stubs" / "services").readlink().is_absolute()
    assert not [each for each in sys.path if Path(each) == site / "raylay-stubs"]
