"""deploy/vendor_console: the browser libraries in the tree are those that it records."""

from __future__ import annotations

import runpy
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
SCRIPT = ROOT / "deploy" / "vendor_console"


def test_the_vendored_files_are_as_recorded() -> None:
    done = subprocess.run(
        [sys.executable, str(SCRIPT), "--check"], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr


def test_a_changed_file_is_found(tmp_path: Path) -> None:
    script = runpy.run_path(str(SCRIPT), run_name="vendor_console")
    folder = tmp_path / "vendor"
    shutil.copytree(script["VENDOR"], folder)
    script["differences"].__globals__["ROOT"] = tmp_path
    assert script["differences"](folder) == []
    (folder / "htm.js").write_text("changed")
    (folder / "new.js").write_text("nobody knows it")
    (folder / "preact.js").unlink()
    found = "\n".join(script["differences"](folder))
    assert all(name in found for name in ("htm.js", "new.js", "preact.js"))


def test_every_library_has_its_licence() -> None:
    script = runpy.run_path(str(SCRIPT), run_name="vendor_console")
    for packages, folder in ((script["CONSOLE"], "VENDOR"), (script["TESTS"], "AXE")):
        for package in packages:
            short = package.rpartition("@")[0].removeprefix("@").replace("/", "-")
            assert (script[folder] / "licences" / f"{short}.txt").stat().st_size > 500


@pytest.mark.parametrize(
    ("text", "adapted"),
    [
        ('import{h}from"preact";', 'import{h}from"./preact.js";'),
        ("import { d } from 'd3-drag'\n", "import { d } from './d3-drag.js'\n"),
        ('import "./utils.js";', 'import "./utils.js";'),
        ('process.env.NODE_ENV !== "x"', '"production" !== "x"'),
        ("a;\n//# sourceMappingURL=a.js.map\n", "a;\n"),
    ],
)
def test_imports_become_relative(text: str, adapted: str) -> None:
    script = runpy.run_path(str(SCRIPT), run_name="vendor_console")
    assert script["adapted"](text, "any.js") == adapted
