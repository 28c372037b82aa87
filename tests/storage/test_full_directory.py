"""The documented way to free a full disk, on a real one with 0 bytes free."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from support.journal_cases import StepJournal, numbered_run
from support.small_disk import small_disk_at
from typer.testing import CliRunner

from raylay.services.commands.journal import journal_app
from raylay.storage.archive import archive_of
from raylay.storage.journal_reader import LmdbJournalReader
from raylay.storage.maintenance import FLOOR_FILE, read_floor, write_floor

pytestmark = pytest.mark.covers("Journal", "the documented way frees a full disk")


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Path]:
    with small_disk_at(tmp_path / "disk", 16) as disk:
        yield disk


@pytest.fixture
def copying_disk(tmp_path: Path) -> Iterator[Path]:
    """A btrfs, which copies a page where others overwrite it."""
    image, path = tmp_path / "image", tmp_path / "btrfs"
    path.mkdir()
    image.touch()
    os.truncate(image, 160 << 20)
    maker = shutil.which("mkfs.btrfs", path=f"{os.environ['PATH']}:/usr/sbin:/sbin")
    if maker is None:
        pytest.skip("no mkfs.btrfs here")
    for command in ([maker, "-q", "-m", "single", image], ["mount", "-o", "loop", image, path]):
        if subprocess.run(command, capture_output=True, check=False).returncode:
            pytest.skip("no btrfs can be made and mounted here: root can")
    yield path
    subprocess.run(["umount", "-l", str(path)], check=False, capture_output=True)


COMMITS = """
import os, sys
from pathlib import Path
from support.journal_cases import StepJournal, numbered_run
from raylay.services.errors import StorageError
from raylay.storage.lmdb_journal import LmdbJournal
from raylay.storage.state import LmdbStateStore

disk = Path(sys.argv[1])
journal = StepJournal(disk / "journal", segment_bytes=1 << 20)
state = LmdbStateStore(disk / "journal" / "state.lmdb")


def commit(last):
    journal.stage(numbered_run(last + 1))
    return journal.commit()


last = 0
for _ in range(20):
    last = commit(last)
for size in (1 << 20, 4096):
    try:
        descriptor = os.open(disk / f"ballast{size}", os.O_WRONLY | os.O_CREAT)
        while True:
            os.write(descriptor, os.urandom(size))
    except OSError:
        pass
os.sync()
print("full", os.statvfs(disk).f_bavail, flush=True)
refused = 0
for number in range(2_000):
    try:
        last = commit(last)
        state.put({f"key{number}": bytes(1_000)})
    except StorageError:
        refused += 1
        if refused > 20:
            break
print("refused", refused, flush=True)
os._exit(0)
"""


@pytest.mark.covers("Journal", "a full disk ends no process where the file system copies")
def test_a_full_disk_that_copies_on_each_write_ends_no_process(copying_disk: Path) -> None:
    """LMDB notes readers and the writer through a mapping: SIGBUS where that needed space."""
    command = [sys.executable, "-c", COMMITS, str(copying_disk)]
    paths = os.pathsep.join(map(str, filter(None, sys.path)))
    environment = {**os.environ, "PYTHONPATH": paths}
    done = subprocess.run(command, capture_output=True, text=True, env=environment, timeout=120)
    assert done.returncode == 0, f"{done.returncode}: {done.stdout}{done.stderr}"
    assert done.stdout.startswith("full 0"), done.stdout
    # What was durable can be read there, by another process.
    with LmdbJournalReader(copying_disk / "journal") as reader:
        assert reader.last_txid >= 20 and reader.read(0, 1)[0].first_txid == 1


def _full(disk: Path) -> tuple[Path, int]:
    """A journal of several segments on a disk without a free byte, and its last id."""
    journal = StepJournal(disk / "journal", segment_bytes=1 << 20)
    last = 0
    while len(journal.segments()) < 4:
        run = numbered_run(last + 1)
        journal.stage(run)
        last = journal.commit()
    journal.close()
    descriptor = os.open(disk / "ballast", os.O_WRONLY | os.O_CREAT)
    try:
        while True:
            os.write(descriptor, bytes(4096))
    except OSError:
        os.close(descriptor)
    assert os.statvfs(disk).f_bavail == 0
    return journal.directory, last


def test_a_full_disk_is_freed_by_archiving(disk: Path, tmp_path: Path) -> None:
    journal, last = _full(disk)
    archive = tmp_path / "archive"
    done = CliRunner().invoke(journal_app, ["archive", str(journal), "--archive", str(archive)])
    assert done.exit_code == 0, done.output
    assert os.statvfs(disk).f_bavail > 0
    assert archive_of(journal) == archive
    with LmdbJournalReader(journal) as reader:
        assert reader.last_txid == last
        assert reader.read(0, 1)[0].first_txid == 1
    assert not list(disk.rglob("*.aside")) and not list(archive.rglob("*.aside"))


def test_compressing_on_a_full_disk_names_the_file_and_leaves_nothing(disk: Path) -> None:
    journal, _ = _full(disk)
    before = sorted(path.name for path in journal.iterdir())
    done = CliRunner().invoke(journal_app, ["compress", str(journal)])
    assert done.exit_code == 1
    assert f"{journal}/journal-" in done.output and "No space left on device" in done.output
    assert sorted(path.name for path in journal.iterdir()) == before


def test_what_may_be_removed_is_told_to_tools_on_a_full_disk(disk: Path) -> None:
    """`raylay journal remove` frees it, and asks there."""
    journal, last = _full(disk)
    write_floor(journal, 0)
    for floor_txid in (2, last + 1):
        write_floor(journal, floor_txid)
        assert read_floor(journal) == floor_txid
    assert not list(disk.rglob("*.aside")) and not list(disk.rglob(".*.aside"))
    done = CliRunner().invoke(journal_app, ["remove", str(journal), "--before", str(last)])
    assert done.exit_code == 0 and "removed" in done.output, done.output
    assert os.statvfs(disk).f_bavail > 0
    write_floor(journal, 7)
    assert read_floor(journal) == 7 and not (journal / FLOOR_FILE).is_symlink()
    write_floor(journal, 0)
    assert read_floor(journal) == 0 and not os.path.lexists(journal / FLOOR_FILE)
