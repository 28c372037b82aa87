"""What the Tab key gives in a shell that has sourced the script of `raylay --show-completion`."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import typer

from raylay.services.cli import COMMANDS, app

pytestmark = pytest.mark.covers("Filters by content", "bash and zsh complete")

LINES = [
    ("raylay jour", {"journal"}),
    ("raylay journal ", {"dump", "grep", "verify", "repair", "compress", "archive", "remove"}),
    ("raylay journal remove --bef", {"--before"}),
    ("raylay sow --ord", {"--order-by"}),
    ("raylay status --js", {"--json"}),
]
BASH = """
source "$1"
COMP_WORDS=("${@:2}")
COMP_CWORD=$((${#COMP_WORDS[@]} - 1))
_raylay_completion raylay "${COMP_WORDS[COMP_CWORD]}"
printf '%s\\n' "${COMPREPLY[@]}"
"""
# Outside of a terminal nothing asks for a completion: `_arguments` shows what would be offered.
ZSH = """
compdef() { : }
_arguments() { print -r -- "$@" }
_files() { : }
source "$1"
words=("${@:2}")
CURRENT=${#words}
_raylay_completion
"""


@pytest.fixture(scope="module")
def environment(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """A home of its own, with a `raylay` in the path."""
    home = tmp_path_factory.mktemp("home")
    program = home / "raylay"
    program.write_text(
        f"#!{sys.executable}\nimport sys\nfrom raylay.services.cli import main\n"
        'sys.argv[0] = "raylay"\nmain()\n'
    )
    program.chmod(0o755)
    kept = {name: value for name, value in os.environ.items() if "COMPLETE" not in name}
    return {**kept, "HOME": str(home), "PATH": f"{home}:{os.environ['PATH']}"}


def _run(environment: dict[str, str], *arguments: str) -> str:
    done = subprocess.run(
        arguments, env=environment, capture_output=True, text=True, timeout=60, cwd="/"
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def _installed(environment: dict[str, str], shell: str, path: str) -> Path:
    """The script that `--install-completion` puts in the home when that shell calls it."""
    if shutil.which(shell) is None:
        pytest.skip(f"no {shell} here")
    # Not the last command: a shell replaces itself with that, and is not found.
    _run(environment, shell, "-c", "raylay --install-completion && true")
    return Path(environment["HOME"], path)


@pytest.fixture(scope="module")
def bash_script(environment: dict[str, str]) -> Path:
    """For a bash to source; its start file says so."""
    script = _installed(environment, "bash", ".bash_completions/raylay.sh")
    assert str(script) in Path(environment["HOME"], ".bashrc").read_text()
    return script


@pytest.fixture(scope="module")
def zsh_script(environment: dict[str, str]) -> Path:
    """A function in a directory that zsh looks for functions in; its start file says so."""
    script = _installed(environment, "zsh", ".zfunc/_raylay")
    assert ".zfunc" in Path(environment["HOME"], ".zshrc").read_text()
    return script


@pytest.mark.parametrize(("line", "wanted"), LINES)
def test_bash_completes_what_is_installed(
    environment: dict[str, str], bash_script: Path, line: str, wanted: set[str]
) -> None:
    told = _run(environment, "bash", "-c", BASH, "bash", str(bash_script), *line.split(" "))
    assert wanted <= set(told.split())
    if len(wanted) == 1:
        assert set(told.split()) == wanted


@pytest.mark.parametrize(("line", "wanted"), LINES)
def test_zsh_completes_what_is_installed(
    environment: dict[str, str], zsh_script: Path, line: str, wanted: set[str]
) -> None:
    told = _run(environment, "zsh", "-fc", ZSH, "zsh", str(zsh_script), *line.split(" "))
    offered = set(re.findall(r'^"?\*: :|"([^"]+)":"', told))
    assert wanted <= offered, told


def test_no_command_installs_a_completion_of_its_own() -> None:
    """It would be one for `raylay`, and take the place of the right one."""
    root = typer.main.get_command(app)
    assert any("--install-completion" in parameter.opts for parameter in root.params)
    context = typer.Context(root)
    for name in COMMANDS:
        command = root.get_command(context, name)  # type: ignore[attr-defined]
        assert not any("--install-completion" in parameter.opts for parameter in command.params)
