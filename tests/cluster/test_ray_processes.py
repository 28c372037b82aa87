"""The processes of a Ray that a fabric begins: no more than it needs."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from raylay.services.fabric import Fabric

pytestmark = pytest.mark.cluster


def children() -> list[str]:
    """The command lines of this process's children."""
    found = []
    for place in Path("/proc").iterdir():
        if place.name.isdigit():
            try:
                fields = (place / "stat").read_text().rpartition(")")[2].split()
                line = (place / "cmdline").read_bytes().replace(b"\0", b" ").decode()
            except OSError:
                continue
            if int(fields[1]) == os.getpid():
                found.append(line)
    return found


def test_nothing_watches_for_drivers_that_print_and_clusters_that_grow(fabric: Fabric) -> None:
    found = children()
    assert any("raylet" in line for line in found), found
    assert not [line for line in found if "log_monitor.py" in line or "monitor.py" in line], found
