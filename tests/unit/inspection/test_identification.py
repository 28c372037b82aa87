"""services/inspection/identification.py: every file of a data directory, and what is none."""

from __future__ import annotations

import gzip
import os
import random
import socket
from contextlib import closing
from pathlib import Path

import pytest
from support.journal_cases import StepJournal, a_run

from raylay.services.config.instance import InstanceConfig
from raylay.services.inspection.file_kinds import KINDS, LOSSES, kind_by_name
from raylay.services.inspection.identification import identify, identify_all
from raylay.storage.archive import take_archive
from raylay.storage.front_entries import FILE_BYTES, FrontEntry, encode
from raylay.storage.offline import LmdbOfflineStore
from raylay.storage.queue import LmdbQueueStore, StoredQueue, store_path
from raylay.storage.sow import LmdbSowStore
from raylay.storage.state import LmdbStateStore
from raylay.storage.statistics import StatisticsStore

LOG = b"2026-01-02T03:04:05.123456Z info Chicago-1 instance 21-0002 link_connected\n"


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    """A data directory with each kind of file, of a stopped instance."""
    home = tmp_path / "solo"
    InstanceConfig("solo", "g").save(home)
    journal = StepJournal(home / "journal", front_log=True)
    journal.stage(a_run(1, range(1, 40)))
    journal.commit()
    journal.close()
    state = LmdbStateStore(home / "state.lmdb")
    state.put({"incarnation": bytes(7) + b"\x05"})
    state.close()
    sow = LmdbSowStore(home / "sow.lmdb")
    sow.commit({"json/prices": ({b"va": b"1"}, 5)})
    sow.close()
    queue = LmdbQueueStore(store_path(home, "json/work"))
    queue.save(StoredQueue(3, b"[]", b"x"))
    queue.close()
    links = LmdbStateStore(home / "journal" / "verdicts-0123456789abcdef")
    links.put({"rules": b"12345678"})
    links.close()
    with closing(StatisticsStore(home / "statistics.db")) as statistics:
        statistics.append(1_700_000_000_000_000, [("IMEMORY", "", {"rss": 5})])
    (home / "solo-17.log").write_bytes(LOG)
    (home / "solo-16.log.gz").write_bytes(gzip.compress(LOG))
    (home / "bootstrap.unfinished").write_bytes(b"")
    return home


@pytest.mark.covers("Utilities", "Identify Type of AMPS File")
def test_every_file_of_a_data_directory_is_known_and_sound(directory: Path) -> None:
    found = {each.path: each for each in identify_all(directory)}
    assert {each.problem for each in found.values()} == {""}
    kinds = {Path(path).name: each.kind for path, each in found.items()}
    assert "unknown" not in kinds.values() and "lmdb" not in kinds.values(), kinds
    assert kinds["solo"] == "data_directory" and kinds["instance.json"] == "instance_file"
    assert kinds["state.lmdb"] == "state_store" and kinds["sow.lmdb"] == "sow_store"
    assert kinds["journal-0000000000000001.live"] == "segment"
    assert kinds["front-0"] == "front_log" and kinds["front-end"] == "front_end"
    assert kinds["verdicts-0123456789abcdef"] == "filtered_out_store"
    assert kinds["statistics.db"] == "statistics"
    assert kinds["solo-17.log"] == kinds["solo-16.log.gz"] == "log"
    of_sow = identify(directory / "sow.lmdb")
    assert of_sow.details["topics"] == ["json/prices"]
    assert identify(directory).details["name"] == "solo"
    assert identify(directory / "state.lmdb").details["incarnation"] == "0000000000000005"
    assert identify(directory / "statistics.db").details["first_time"] == (
        "2023-11-14T22:13:20.000000Z"
    )


def test_looking_makes_no_file_and_changes_none(directory: Path) -> None:
    def state() -> dict[str, tuple[int, int]]:
        return {
            str(path): (path.stat().st_mtime_ns, path.stat().st_size)
            for path in directory.rglob("*")
        }

    before = state()
    list(identify_all(directory))
    assert state() == before


@pytest.mark.parametrize("name", ["sow.lmdb", "state.lmdb", "statistics.db"])
def test_contents_tell_what_a_renamed_file_is(directory: Path, name: str, tmp_path: Path) -> None:
    kind = identify(directory / name).kind
    found = identify((directory / name).rename(tmp_path / "copy"))
    assert (found.kind, found.problem) == (kind, "")


def test_a_front_log_is_told_by_its_first_commit(tmp_path: Path) -> None:
    entry = encode(FrontEntry(3, 1, 7, 9, b"block"))
    (tmp_path / "copy").write_bytes(entry.ljust(FILE_BYTES, b"\0"))
    found = identify(tmp_path / "copy")
    assert found.kind == "front_log" and found.problem == ""
    assert found.details == {"commits": 1, "generation": 3, "last_txid": 9}


def test_a_wrong_name_is_a_problem(directory: Path) -> None:
    wrong = (directory / "sow.lmdb").rename(directory / "state.lmdb")
    found = identify(wrong)
    assert found.kind == "sow_store" and "that of another kind of file" in found.problem
    segment = directory / "journal" / "journal-0000000000000001.live"
    moved = segment.rename(segment.with_name("journal-00000000000000ff.live"))
    assert "begins with transaction 1, not" in identify(moved).problem
    aside = (directory / "state.lmdb").rename(directory / "sow.lmdb.damaged")
    found = identify(aside)
    assert (found.kind, found.note) == ("sow_store", "put aside because it was damaged")


def test_compressed_segments_and_archives(directory: Path, tmp_path: Path) -> None:
    journal = StepJournal(directory / "more", segment_bytes=64 * 1024)
    at = 1
    while len(journal.compress()) < 1:
        journal.stage(a_run(at, range(at, at + 100), body_bytes=200))
        at = journal.commit() + 1
    journal.close()
    (segment,) = (directory / "more").glob("*.zst")
    found = identify(segment)
    assert (found.kind, found.problem) == ("compressed_segment", "")
    assert found.details["first_txid"] == 1
    segment.write_bytes(segment.read_bytes()[:-9])
    assert "torn" in identify(segment).problem
    archive = tmp_path / "archive"
    archive.mkdir()
    take_archive(directory / "journal", archive, holds_segments=False)
    assert identify(archive).kind == "archive_directory"
    assert identify(directory / "journal" / "archive.json").problem == ""


def test_what_waits_for_slow_clients(tmp_path: Path) -> None:
    store = LmdbOfflineStore(tmp_path / "offline" / "solo.lmdb", 1 << 20)
    store.put([(1, b"frame")])
    assert identify(tmp_path / "offline" / "solo.lmdb").kind == "offline_store"
    store.close()


@pytest.mark.timeout(60)
@pytest.mark.covers("Utilities", "sockets, pipes, sparse and random files")
def test_nothing_is_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "state.lmdb", 0o600)
    with socket.socket(socket.AF_UNIX) as bound:
        bound.bind(str(tmp_path / "links.sock"))
    for name in ("sow.lmdb", "huge.log", "front-0", "journal-0000000000000001.sealed"):
        with open(tmp_path / name, "wb") as file:
            file.truncate(10 * 1024**3)
    (tmp_path / "loop").symlink_to(tmp_path)
    (tmp_path / "removable").symlink_to('{"before_txid": 5}')
    (tmp_path / "gone.log").symlink_to(tmp_path / "nowhere")
    found = {Path(each.path).name: each for each in identify_all(tmp_path)}
    assert found["state.lmdb"].kind == "fifo" and found["links.sock"].kind == "socket"
    for name in ("sow.lmdb", "huge.log", "front-0", "journal-0000000000000001.sealed"):
        assert found[name].problem, name
        assert found[name].size_bytes == 10 * 1024**3
        assert found[name].disk_bytes is not None and found[name].disk_bytes < 1024**2
    assert found["removable"].details == {"text": '{"before_txid": 5}'}
    assert "does not exist" in found["gone.log"].problem
    assert identify(tmp_path / "nothing").kind == "missing"
    assert identify(Path("/dev/null")).kind == "device"


@pytest.mark.parametrize("seed", range(30))
def test_any_bytes_under_any_name(tmp_path: Path, seed: int) -> None:
    rng = random.Random(seed)
    names = ["sow.lmdb", "statistics.db", "front-end", "x.log", "y.log.gz", "fabric.json", "z"]
    names += ["journal-0000000000000001.live", "journal-0000000000000001.zst", "archive.json"]
    starts = [b"", b"RAYLAYZ\0", b"RAYFRNT1", b"SQLite format 3\0", b"\x1f\x8b", b"{", b"[" * 9000]
    path = tmp_path / rng.choice(names)
    path.write_bytes(rng.choice(starts) + rng.randbytes(rng.randrange(9_000)))
    found = identify(path)
    assert found.kind in KINDS and found.as_object()["loss"] in LOSSES


@pytest.mark.parametrize(
    ("content", "kind"),
    [
        (b"", "empty"),
        (b"hello\n", "text"),
        (b"\xff\xfe", "unknown"),
        (LOG, "log"),
        (LOG + b"\xff\n", "log"),
        (b'{"time":"x","level":"info","event":"y"}\n', "log"),
        (b'{"resourceSpans":[]}', "traces"),
        (b"[1]", "json"),
        (b"-----BEGIN CERTIFICATE-----\n", "certificate"),
        (b"-----BEGIN EC PRIVATE KEY-----\n", "private_key"),
        (b"<?xml version='1.0'?>\n<AMPSConfig>", "ampsconfig"),
        (b"<?xml version='1.0'?>\n<x>", "text"),
        (b"name: orders\ninstances: 2\n", "fabric_settings"),
        (gzip.compress(b"x", mtime=0), "unknown"),
        (b"a\0b", "unknown"),
    ],
)
def test_other_files(tmp_path: Path, content: bytes, kind: str) -> None:
    path = tmp_path / "file"
    path.write_bytes(content)
    found = identify(path)
    assert (found.kind, found.problem) == (kind, "")


@pytest.mark.parametrize(
    ("name", "content", "problem"),
    [
        ("instance.json", b"{", "no JSON object"),
        ("instance.json", b"", "it is empty"),
        ("x.log", b"\0\0\0", "not text"),
        ("x.log.gz", b"\x1f\x8b" + bytes(20), "it is damaged"),
        ("statistics.db", b"SQLite format 3\0" + bytes(5000), "it cannot be read"),
        ("front-end", b"x", "it has 1 bytes"),
        ("sow.lmdb", b"text", "it is damaged"),
    ],
)
def test_damage_is_a_problem(tmp_path: Path, name: str, content: bytes, problem: str) -> None:
    path = tmp_path / name
    path.write_bytes(content)
    assert problem in identify(path).problem


def test_names_that_are_known() -> None:
    assert kind_by_name("journal-00000000000000a1.sealed") == ("segment", "")
    assert kind_by_name(".x.17.99.aside")[0] == "aside"
    assert kind_by_name("anything") == ("", "")
