"""Compaction and expiry of a lake: what it holds stays the same, wherever a job is killed."""

from __future__ import annotations

import datetime as dt
import shutil
from pathlib import Path
from typing import Any

import pytest
from support.pipeline_cases import START_US, message_run, write_log

from raylay.services import cli
from raylay.services.errors import CorruptRecord, StorageError
from raylay.services.pipeline import archive as job
from raylay.services.pipeline.archive import Lake, archive, compact, expire, read_lake
from raylay.services.pipeline.journals import places

DAY_US = 24 * 3600 * 1_000_000
POINTS = ("archive.written", "archive.pending", "archive.moved", "archive.manifest")


class Killed(BaseException):
    """Takes the place of SIGKILL."""


def kill_at(monkeypatch: pytest.MonkeyPatch, point: str) -> None:
    def die(name: str) -> None:
        if name == point:
            raise Killed

    monkeypatch.setattr(job, "fault_point", die)


def days_log(directory: Path) -> list[Any]:
    """A journal of three days on two topics."""
    runs, txid = [], 1
    for number in range(12):
        topic = "orders" if number % 2 else "a topic/of=it"
        time_us = START_US + number // 4 * DAY_US + number
        runs.append(message_run(txid, 7, txid, 10, topic, time_us=time_us))
        txid += 10
    write_log(directory, runs)
    return places(path=str(directory))


def held(spark: Any, lake: Path) -> list[Any]:
    return [tuple(row) for row in read_lake(spark, lake).orderBy("txid").collect()]


@pytest.mark.slow
@pytest.mark.covers("Data pipeline", "a lake that is compacted")
def test_a_lake_that_is_compacted_and_expires(
    spark: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    journal, lake = days_log(tmp_path / "Chicago-1"), tmp_path / "lake"
    archive(spark, lake, journal, chunk_records=20)
    before = held(spark, lake)
    assert len(before) == 120
    files = Lake.opened(lake).files
    whole = Lake.opened(lake).stretches
    early = read_lake(spark, lake)  # a reader that began before
    for point in POINTS:
        killed = tmp_path / point
        shutil.copytree(lake, killed)
        kill_at(monkeypatch, point)
        with pytest.raises(Killed):
            compact(spark, killed)
        monkeypatch.undo()
        assert held(spark, killed) == before, point
        opened = Lake.opened(killed)
        assert len(opened.files) == (len(files) if point == "archive.written" else 6)
        assert held(spark, killed) == before, point
    summary = compact(spark, lake)
    assert len(Lake.opened(lake).files) == 6, "one for each topic and day"
    assert summary.files == 6 and summary.removed_files == 0
    assert held(spark, lake) == before
    assert early.count() == 120
    ((key, (merged,)),) = Lake.opened(lake).stretches.items()
    assert merged.rows == 120 and merged.end == whole[key][-1].end
    fingerprint = job._fingerprint(job._of_files(spark, lake, merged.files))
    assert fingerprint == (merged.rows, merged.checksum)
    # The archive goes on behind it.
    (again,) = archive(spark, lake, journal)
    assert (again.archived_records, again.last_txid) == (0, 120)
    done = compact(spark, lake, keep_s=0)
    assert (done.records, done.removed_files) == (0, len(files))
    there = {path.relative_to(lake / "messages").as_posix() for path in lake.rglob("*.parquet")}
    assert there == set(Lake.opened(lake).files)
    # Two days go.
    kill_at(monkeypatch, "archive.manifest")
    with pytest.raises(Killed):
        expire(spark, lake, dt.date(2026, 1, 3))
    monkeypatch.undo()
    gone = expire(spark, lake, dt.date(2026, 1, 3), keep_s=0)
    assert held(spark, lake) == before[80:]
    assert gone.files == 2 and len([*lake.rglob("*.parquet")]) == 2
    assert not [path for path in lake.rglob("date=*") if not [*path.iterdir()]]
    ((_, (left,)),) = Lake.opened(lake).stretches.items()
    assert job._fingerprint(job._of_files(spark, lake, left.files)) == (left.rows, left.checksum)
    (again,) = archive(spark, lake, journal)
    assert again.archived_records == 0, "what has expired does not come back"


@pytest.mark.slow
@pytest.mark.covers("Data pipeline", "a lake that is compacted")
def test_files_that_differ_are_not_taken(
    spark: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    journal, lake = days_log(tmp_path / "Chicago-1"), tmp_path / "lake"
    archive(spark, lake, journal, chunk_records=20)
    files = Lake.opened(lake).files
    with monkeypatch.context() as patched:
        write = job._written
        patched.setattr(job, "_written", lambda rows, out: (write(rows, out)[0], 2))
        with pytest.raises(CorruptRecord, match=r"files of Chicago-1/.* but the written files"):
            compact(spark, lake)
    assert Lake.opened(lake).files == files
    (lake / "messages" / files[0]).unlink()
    with pytest.raises(StorageError, match=r"lacks instance=.*; nothing was changed"):
        compact(spark, lake)
    with pytest.raises(StorageError, match="holds no archived messages"):
        compact(spark, tmp_path / "nothing")


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (["compact", "{}"], "holds no archived messages"),
        (["expire", "{}", "--before", "soon"], "give a day such as 2026-01-02"),
        (["compact", "{}", "--keep", "5"], "--keep"),
        (["compact", "{}", "--small", "few"], "--small"),
    ],
)
def test_commands_that_cannot_begin(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    spark: Any,
    arguments: list[str],
    text: str,
) -> None:
    monkeypatch.setattr("raylay.services.pipeline.commands.session", lambda *_, **__: _Kept(spark))
    filled = [each.replace("{}", str(tmp_path)) for each in arguments]
    monkeypatch.setattr("sys.argv", ["raylay", "pipeline", *filled])
    with pytest.raises(SystemExit) as raised:
        cli.main()
    assert raised.value.code == 1
    assert text in capsys.readouterr().err


class _Kept:
    """The session of all tests, which a command does not stop."""

    def __init__(self, spark: Any) -> None:
        self.read, self.sparkContext = spark.read, spark.sparkContext

    def stop(self) -> None:
        """Keeps it."""
