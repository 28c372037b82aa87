"""Commands that look at a fabric whose disk is full: a real one, a small file system in memory."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from raylay.services.fabric import Fabric
from raylay.services.fabric.plan import FabricRecord
from raylay.services.fabric.records import registry

pytestmark = [pytest.mark.cluster, pytest.mark.slow]
RAYLAY = [sys.executable, "-m", "raylay.services.cli"]


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    place = tmp_path / "disk"
    place.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=256k", "raylay-test", str(place)]
    if os.getuid() or subprocess.run(mount, capture_output=True).returncode:
        pytest.skip("a file system can be mounted by root alone")
    try:
        yield place
    finally:
        subprocess.run(["umount", "-l", str(place)], check=True)


def fill(disk: Path) -> None:
    with pytest.raises(OSError, match="No space left"), (disk / "full").open("wb", 0) as file:
        while True:
            file.write(bytes(4096))


def test_who_only_looks_needs_no_room_and_who_changes_says_where_there_is_none(
    whole: Fabric, small_disk: Path, runtime_directory: Path
) -> None:
    """The fabric's directory, as this host knows it, and its registry are on the full disk, and
    what is there is older than what Ray's head has: whoever attaches would write it anew."""
    entry = registry.find(whole.name)
    record = FabricRecord.load(whole.directory)
    assert entry is not None and record is not None
    here = small_disk / "fabric"
    replace(record, directory=str(here), number=record.number - 1).save()
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(registry.REGISTRY_VARIABLE, str(small_disk / "runtime"))
        registry.register(replace(entry, directory=str(here)))
    fill(small_disk)

    def run(*arguments: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [*RAYLAY, *arguments],
            capture_output=True,
            text=True,
            timeout=60,
            env={**os.environ, registry.REGISTRY_VARIABLE: str(small_disk / "runtime")},
        )

    status = run("status")
    assert (status.returncode, status.stderr) == (0, ""), status.stderr
    assert "near-1" in status.stdout
    events = run("events")
    assert (events.returncode, events.stderr) == (0, ""), events.stderr
    up = ("up", str(file_of(whole)), "--directory", str(small_disk / "new"))
    for refused in (run(*up), run(*up, "--detach")):
        assert refused.returncode == 1
        (line,) = refused.stderr.splitlines()
        assert line.startswith("raylay: ") and "No space left" in line


def file_of(fabric: Fabric) -> Path:
    """A fabric's file that is like no running one."""
    path = Path(fabric.directory).parent / "another.yaml"
    path.write_text("fabric: another\ntopics: [notes]\nregions: {here: 1}\n")
    return path
