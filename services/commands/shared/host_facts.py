"""Facts of this host that several checks gather, and the lines in which they print findings."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

from raylay.services.hosts.check import HostFacts, HostFinding

MARKS = {"ok": "ok", "change": "change", "wrong": "WRONG"}


def lines_of(finding: HostFinding) -> list[str]:
    """Formats a finding: one line, and two more where something should be changed."""
    lines = [f"{MARKS[finding.level]:<6} {finding.what}: {finding.found} (wanted {finding.wanted})"]
    if finding.level != "ok":
        lines += [f"       why: {finding.why}", f"       do:  {finding.change}"]
    return lines


def place_of(directory: Path) -> Path:
    """Returns a directory, or the nearest existing one above it: the directory would be made on
    that disk."""
    place = directory.absolute()
    while not place.exists() and place != place.parent:
        place = place.parent
    return place


def gather_file_system(facts: HostFacts, place: Path) -> None:
    """Notes the free space and the type of the file system that holds a path.

    Raises:
        OSError: the system does not tell them.
    """
    facts.disk_free_bytes = shutil.disk_usage(place).free
    facts.file_system = _file_system(place)


def _file_system(place: Path) -> str:
    """Returns the type of the file system that holds a path, from /proc/self/mountinfo."""
    device = place.stat().st_dev
    wanted = f"{os.major(device)}:{os.minor(device)}"
    for line in (read_text(Path("/proc/self/mountinfo")) or "").splitlines():
        fields, _, source = line.partition(" - ")
        if fields.split()[2] == wanted:
            return source.split()[0]
    return ""


def read_text(path: Path) -> str | None:
    """Returns the text of a file of the kernel; None: there is none."""
    try:
        return path.read_text(encoding="ascii").strip()
    except (OSError, UnicodeDecodeError):
        return None
