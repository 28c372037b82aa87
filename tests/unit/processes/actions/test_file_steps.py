"""services/processes/actions/file_steps.py: which files actions compress and remove, and which they
leave."""

from __future__ import annotations

import gzip
import os
from pathlib import Path

import pytest

from raylay.services.errors import ConfigurationError, StorageError
from raylay.services.processes.actions.file_steps import FileChoice, FileSteps, used_percent

pytestmark = pytest.mark.covers("Actions", "Manage Files")


@pytest.fixture
def data(tmp_path: Path) -> Path:
    """The data directory of an instance."""
    directory = tmp_path / "data"
    (directory / "journal").mkdir(parents=True)
    for name in ("instance.json", "lock", "state.lmdb", "journal/1.live", "north-7.log"):
        (directory / name).write_text("x")
    return directory


@pytest.fixture
def place(tmp_path: Path) -> Path:
    """A directory with four old files, `a.0` the oldest."""
    directory = tmp_path / "place"
    directory.mkdir()
    for number in range(4):
        make(directory / f"a.{number}", number)
    return directory


def make(path: Path, changed_s: int = 0) -> None:
    """Makes a file that was changed at a time."""
    path.write_text(path.name)
    os.utime(path, (changed_s, changed_s))


def left(place: Path) -> list[str]:
    """Returns the names of the files that are there."""
    return sorted(each.name for each in place.iterdir())


def test_the_newest_are_kept_and_the_oldest_come_first(data: Path, place: Path) -> None:
    steps = FileSteps(data)
    assert steps.remove(FileChoice(f"{place}/a.*", keep=1, count_max=2)).done == 2
    assert left(place) == ["a.2", "a.3"]
    assert str(steps.remove(FileChoice(f"{place}/a.*", keep=1))) == "1 files"
    assert left(place) == ["a.3"]


def test_young_files_are_left(data: Path, place: Path) -> None:
    (place / "a.new").write_text("new")
    assert FileSteps(data).remove(FileChoice(f"{place}/a.*", age_s=3_600)).done == 4
    assert left(place) == ["a.new"]


def test_links_directories_and_what_lies_deeper_are_left(
    data: Path, place: Path, tmp_path: Path
) -> None:
    target = tmp_path / "target"
    make(target)
    (place / "a.link").symlink_to(target)
    (place / "a.folder").mkdir()
    make(place / "a.folder" / "a.deep")
    assert FileSteps(data).remove(FileChoice(f"{place}/*")).done == 4
    assert left(place) == ["a.folder", "a.link"]
    assert target.exists()
    with pytest.raises(ConfigurationError, match="directories are not searched"):
        FileSteps(data).remove(FileChoice(f"{place}/**"))


def test_files_that_a_process_has_open_are_left(data: Path, place: Path) -> None:
    with (place / "a.1").open("rb"):
        outcome = FileSteps(data).remove(FileChoice(f"{place}/a.*"))
    assert (outcome.done, outcome.open) == (3, 1)
    assert str(outcome) == "3 files; 1 left, in use"
    assert left(place) == ["a.1"]


@pytest.mark.parametrize("pattern", ["*", "*/*", "journal/*.live", "state.*", "../data/inst*"])
def test_a_data_directory_keeps_all_but_its_old_logs(data: Path, pattern: str) -> None:
    steps = FileSteps(data, [data / "journal"])
    before = {each for each in data.rglob("*") if each.suffix != ".log"}
    # A data directory, whether this instance's or another one's.
    for each in (steps, FileSteps(data.parent / "other")):
        try:
            each.remove(FileChoice(str(data / pattern)))
        except ConfigurationError as error:
            assert "all of them an instance's own" in str(error)
    assert before == {each for each in data.rglob("*") if each.suffix != ".log"}
    assert (data / "north-7.log").exists() == (pattern != "*")


def test_own_directories_elsewhere_are_left_whole(data: Path, tmp_path: Path) -> None:
    archive = tmp_path / "archive"
    archive.mkdir()
    make(archive / "1-9.zst")
    make(archive / "old.log")
    with pytest.raises(ConfigurationError, match="2 files, all of them an instance's own"):
        FileSteps(data, [archive]).remove(FileChoice(f"{archive}/*"))
    # By another name of the directory, too.
    (tmp_path / "name").symlink_to(archive)
    with pytest.raises(ConfigurationError, match="2 files, all of them an instance's own"):
        FileSteps(data, [archive]).remove(FileChoice(f"{tmp_path}/name/*"))
    assert left(archive) == ["1-9.zst", "old.log"]


@pytest.mark.parametrize(
    "name",
    [
        *("1.journal", "orders.lmdb", "statistics.db", "links.sock", "orders.lmdb-lock"),
        *("journal-0000000000000001.zst", "journal-0000000000000001.live.damaged", "front-0"),
        *("front-end", "fabric.json", "up.lock", "maintenance.lock", "removable"),
    ],
)
def test_what_holds_messages_or_state_is_left_wherever_it_lies(
    data: Path, place: Path, name: str
) -> None:
    make(place / name)
    assert FileSteps(data).remove(FileChoice(f"{place}/*")).own == 1
    assert left(place) == [name]


def test_a_relative_pattern_begins_at_the_data_directory(data: Path) -> None:
    assert FileSteps(data).remove(FileChoice("*.log")).done == 1
    assert not (data / "north-7.log").exists()


@pytest.mark.parametrize("pattern", ["", "  ", "a\0b"])
def test_an_empty_pattern_is_refused(data: Path, pattern: str) -> None:
    with pytest.raises(ConfigurationError, match="the pattern is empty"):
        FileSteps(data).remove(FileChoice(pattern))


def test_files_are_compressed_once_and_keep_time_and_mode(data: Path, place: Path) -> None:
    (place / "a.1").chmod(0o640)
    steps = FileSteps(data)
    assert steps.compress(FileChoice(f"{place}/a.*")).done == 4
    assert left(place) == ["a.0.gz", "a.1.gz", "a.2.gz", "a.3.gz"]
    packed = place / "a.1.gz"
    assert gzip.decompress(packed.read_bytes()) == b"a.1"
    assert (packed.stat().st_mtime, packed.stat().st_mode & 0o777) == (1, 0o640)
    assert steps.compress(FileChoice(f"{place}/a.*")).done == 0


def test_a_file_that_cannot_be_compressed_stays_as_it_was(data: Path, place: Path) -> None:
    make(place / "a.1.gz")
    with pytest.raises(StorageError, match=r"a\.1 cannot be compressed: .* is there already"):
        FileSteps(data).compress(FileChoice(f"{place}/a.1"))
    assert (place / "a.1").read_text() == "a.1"
    assert (place / "a.1.gz").read_text() == "a.1.gz"


def test_a_file_that_cannot_be_removed_is_named(
    data: Path, place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(path: Path) -> None:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(Path, "unlink", fail)
    with pytest.raises(StorageError, match=r"a\.0 cannot be removed: Permission denied"):
        FileSteps(data).remove(FileChoice(f"{place}/a.0"))


def test_the_use_of_a_file_system_is_between_nothing_and_all(tmp_path: Path) -> None:
    assert 0 <= used_percent(str(tmp_path)) <= 100
    with pytest.raises(StorageError, match="cannot be read: No such file"):
        used_percent(str(tmp_path / "nowhere"))
