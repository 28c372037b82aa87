"""Commands of the shell in processes of their own, in a directory that has its own registry."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

RAYLAY = [sys.executable, "-m", "raylay.services.cli"]


def attempt(*command: str, cwd: Path, text: str = "") -> subprocess.CompletedProcess[str]:
    """Runs a command, whatever its exit code."""
    return subprocess.run(
        command,
        input=text,
        capture_output=True,
        text=True,
        timeout=240,
        cwd=cwd,
        env={**os.environ, "RAYLAY_RUNTIME_DIR": str(cwd)},
    )


def run(*command: str, cwd: Path, text: str = "") -> subprocess.CompletedProcess[str]:
    """Runs a command that is to succeed."""
    done = attempt(*command, cwd=cwd, text=text)
    assert done.returncode == 0, done.stderr + done.stdout
    return done
