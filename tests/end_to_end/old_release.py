"""An earlier commit of this repository as an installed wheel, to run beside the present one."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


def install(commit: str, directory: Path) -> dict[str, str]:
    """Builds the wheel of a commit and unpacks it in a folder of its own. Returns the environment
    in which Python runs that release. Skips where the history is not there."""
    source, wheels, site = (directory / name for name in ("source", "wheels", "site"))
    source.mkdir(parents=True)
    archive = subprocess.run(
        ["git", "-C", str(ROOT), "archive", commit], capture_output=True, check=False
    )
    if archive.returncode:
        pytest.skip(f"the history of this checkout does not go back to {commit}")
    subprocess.run(["tar", "-x", "-C", str(source)], input=archive.stdout, check=True)
    pip = [sys.executable, "-m", "pip", "--quiet", "--disable-pip-version-check"]
    build = ["wheel", "--no-deps", "--no-build-isolation", "--wheel-dir", str(wheels), str(source)]
    subprocess.run([*pip, *build], check=True)
    (wheel,) = wheels.glob("*.whl")
    subprocess.run([*pip, "install", "--no-deps", "--target", str(site), str(wheel)], check=True)
    environment = {**os.environ, "PYTHONPATH": str(site)}
    told = subprocess.run(
        [sys.executable, "-c", "import raylay.services.cli as cli; print(cli.__file__)"],
        env=environment,
        capture_output=True,
        text=True,
        check=True,
    )
    assert told.stdout.startswith(str(site)), "the earlier release is what runs"
    return environment
