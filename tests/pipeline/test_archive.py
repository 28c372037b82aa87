"""The archive job: what a lake holds, and that it holds it once wherever the job is killed."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from pyspark.errors import PySparkException
from pyspark.sql import functions as F
from support.journal_cases import a_note
from support.pipeline_cases import (
    INCARNATION,
    PUBLISHERS,
    Log,
    change_block,
    expected_rows,
    made_by,
    message_run,
    mixed_runs,
    plain,
    write_log,
)

from raylay.services import cli
from raylay.services.errors import (
    ConfigurationError,
    CorruptRecord,
    StorageError,
    StorageLocked,
)
from raylay.services.messages.records import Run
from raylay.services.pipeline import archive as job
from raylay.services.pipeline.archive import ArchivedStretch, Lake, archive, read_lake
from raylay.services.pipeline.journals import places
from raylay.services.pipeline.tables.columns import COLUMNS
from raylay.storage.files import FileLock
from raylay.storage.maintenance import SegmentMaintenance


class Killed(BaseException):
    """Takes the place of SIGKILL."""


def kill_at(monkeypatch: pytest.MonkeyPatch, point: str, reached: int = 1) -> None:
    """Ends the job at a point; undone by `monkeypatch.undo`."""
    left = [reached]

    def die(name: str) -> None:
        if name == point:
            left[0] -= 1
            if not left[0]:
                raise Killed

    monkeypatch.setattr(job, "fault_point", die)


def content(lake: Path) -> set[str]:
    return {
        path.relative_to(lake / "messages").as_posix()
        for path in (lake / "messages").rglob("*.parquet")
    }


def stage(lake: Lake) -> tuple[ArchivedStretch, list[list[str]]]:
    """Two files written aside."""
    moves = []
    for number in range(2):
        (lake.staging / "out").mkdir(parents=True, exist_ok=True)
        (lake.staging / "out" / f"{number}.parquet").write_bytes(b"%d" % number)
        moves.append([f"out/{number}.parquet", f"instance=A/topic=t{number}/x.parquet"])
    return ArchivedStretch(1, 10, 10, -5, [target for _, target in moves]), moves


@pytest.mark.covers("Data pipeline", "a stretch is verified and taken whole")
@pytest.mark.parametrize(
    ("point", "reached", "taken"),
    [
        ("archive.pending", 1, True),
        ("archive.moved", 1, True),
        ("archive.moved", 2, True),
        ("archive.manifest", 1, True),
        ("none", 1, True),
    ],
)
def test_a_lake_takes_a_stretch_whole(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, point: str, reached: int, taken: bool
) -> None:
    lake = Lake.opened(tmp_path)
    stretch, moves = stage(lake)
    kill_at(monkeypatch, point, reached)
    if point == "none":
        lake.take("A/1", stretch, moves)
    else:
        with pytest.raises(Killed):
            lake.take("A/1", stretch, moves)
    monkeypatch.undo()
    again = Lake.opened(tmp_path)
    assert again.archived_upto("A/1") == (10 if taken else 0)
    assert again.stretches == {"A/1": [stretch]}
    assert content(tmp_path) == set(stretch.files)
    assert not (tmp_path / "_raylay" / "pending.json").exists()
    assert not again.staging.exists()
    assert Lake.opened(tmp_path).stretches == again.stretches


def test_what_was_only_written_aside_is_forgotten(tmp_path: Path) -> None:
    lake = Lake.opened(tmp_path)
    stage(lake)
    assert Lake.opened(tmp_path).stretches == {}
    assert not lake.staging.exists()


def test_a_lake_that_cannot_be_used(tmp_path: Path) -> None:
    lake = Lake.opened(tmp_path)
    (lake.meta / "manifest.json").write_text('{"version": 9}')
    with pytest.raises(StorageError, match="has version 9, this software reads 2"):
        Lake.opened(tmp_path)
    (lake.meta / "manifest.json").write_text("{")
    with pytest.raises(StorageError, match=r"manifest.json cannot be read"):
        Lake.opened(tmp_path)
    spark: Any = None
    with (
        FileLock(lake.meta / "lock"),
        pytest.raises(StorageLocked, match="in use by another process"),
    ):
        archive(spark, tmp_path, [])
    with pytest.raises(StorageError, match="holds no archived messages"):
        read_lake(spark, tmp_path / "nothing")


@pytest.mark.covers("Data pipeline", "a stretch is verified and taken whole")
@pytest.mark.slow
def test_a_lake_holds_what_the_journal_held(
    spark: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    runs = mixed_runs(40)
    log = write_log(tmp_path / "Chicago-1", runs[:20])
    made_by(log, INCARNATION)
    lake = tmp_path / "lake"
    lines: list[str] = []

    def run(chunk_records: int = 100_000) -> Any:
        found = places(path=str(log.directory))
        return archive(spark, lake, found, chunk_records=chunk_records, progress=lines.append)[0]

    # Killed when all is written and nothing is verified: nothing is in the lake.
    kill_at(monkeypatch, "archive.written")
    with pytest.raises(Killed):
        run()
    monkeypatch.undo()
    assert not content(lake)
    first = run(200)
    assert first.archived_records == 360 and first.stretches == 2
    assert lines[-1] == "Chicago-1: 362 of 362, 360 records archived"
    assert 1 < first.removable_before <= 363
    files = content(lake)
    assert run().archived_records == 0 and content(lake) == files
    write_log(log.directory, runs[20:])
    assert run().archived_records == 360
    rows = read_lake(spark, lake).drop("date").collect()
    expected = list(expected_rows(log, "Chicago-1"))
    # The segments were others when the lake took what they held.
    for row in expected:
        row.pop("segment")
    found = sorted(map(plain, rows), key=lambda row: row["txid"])
    for row in found:
        row.pop("segment")
    assert found == expected
    manifest = json.loads((lake / "_raylay" / "manifest.json").read_text())
    assert list(manifest["stretches"]) == [f"Chicago-1/{INCARNATION:016x}"]


@pytest.mark.slow
def test_bare_journals_of_one_name(spark: Any, tmp_path: Path) -> None:
    """What of one of them is in a lake says nothing of the other."""
    logs = [write_log(tmp_path / region / "same", mixed_runs(20)) for region in ("east", "west")]
    lake = tmp_path / "lake"
    first, second = (
        archive(spark, lake, places(path=str(log.directory)), chunk_records=10**9)[0]
        for log in logs
    )
    assert first.archived_records == second.archived_records == 360
    assert read_lake(spark, lake).count() == 720
    assert archive(spark, lake, places(path=str(logs[0].directory)))[0].archived_records == 0
    both = ",".join(str(log.directory) for log in logs)
    with pytest.raises(ConfigurationError, match="lie in directories of the same name"):
        archive(spark, lake, places(path=both))


def rewritten(log: Log, upto: int, kept: int, *, bare: bool = False) -> None:
    """The journal anew: the desk's messages up to a transaction id, then the airport's."""
    shutil.rmtree(log.directory, ignore_errors=True)
    firsts = range(1, upto, 20)
    runs = [message_run(at, PUBLISHERS[at > kept], at, 20, "orders") for at in firsts]
    write_log(log.directory, runs)
    if not bare:
        made_by(log, INCARNATION)


def forget_ends(lake: Path) -> None:
    """Makes of a manifest one of before."""
    manifest = lake / "_raylay" / "manifest.json"
    found = json.loads(manifest.read_text())
    ends = [each.pop("end") for stretches in found["stretches"].values() for each in stretches]
    assert all(ends)
    manifest.write_text(json.dumps(found))


@pytest.mark.slow
@pytest.mark.parametrize("older", [False, True])
def test_a_journal_that_does_not_hold_what_is_archived(
    spark: Any, tmp_path: Path, older: bool
) -> None:
    """Nothing is passed over, and nothing is called removable."""
    log, bare = Log(tmp_path / "a", 0), Log(tmp_path / "b", 0)
    lake = tmp_path / "lake"

    def run(log: Log) -> Any:
        return archive(spark, lake, places(path=str(log.directory)), chunk_records=250)[0]

    rewritten(log, 500, 500)
    rewritten(bare, 200, 200, bare=True)
    assert run(log).archived_records == 500 and run(bare).archived_records == 200
    if older:
        forget_ends(lake)
    manifest = lake / "_raylay" / "manifest.json"
    before = content(lake), manifest.read_bytes()
    # Put back as it was at 300, it went on with others.
    rewritten(log, 400, 300)
    with pytest.raises(StorageError, match=r"ends at transaction id 400, but 500 is archived"):
        run(log)
    rewritten(log, 800, 300)
    with pytest.raises(StorageError, match=r"id 500 is not the record .*into a new lake"):
        run(log)
    rewritten(bare, 200, 0, bare=True)
    with pytest.raises(StorageError, match="id 200 is not the record that was archived"):
        run(bare)
    assert (content(lake), manifest.read_bytes()) == before
    # The same again, and more of it.
    rewritten(log, 800, 800)
    summary = run(log)
    assert summary.archived_records == 300 and summary.removable_before > 500


@pytest.mark.slow
@pytest.mark.parametrize("older", [False, True])
def test_a_lake_that_went_on_with_another_journal(spark: Any, tmp_path: Path, older: bool) -> None:
    """An older stretch is compared as well as the last, as long as its segment is there."""
    log = Log(tmp_path / "a", 0)
    lake = tmp_path / "lake"

    def run() -> Any:
        return archive(spark, lake, places(path=str(log.directory)))[0]

    rewritten(log, 500, 500)
    run()
    rewritten(log, 800, 500)
    run()
    if older:
        forget_ends(lake)
    rewritten(log, 800, 400)
    with pytest.raises(StorageError, match="id 500 is not the record that was archived"):
        run()
    files = places(path=str(log.directory))[0].files()
    behind = next(file.first_txid for file in files if file.first_txid > 500)
    SegmentMaintenance(log.journal).remove(behind, force=True)
    assert places(path=str(log.directory))[0].files()[0].first_txid == behind
    assert run().archived_records == 0
    # What cannot be read says nothing.
    live = places(path=str(log.directory))[0].files()[-1]

    def turn_a_bit(block: bytearray) -> None:
        block[-4] ^= 1

    change_block(live.path, 781, turn_a_bit)
    found = archive(spark, lake, places(path=str(log.directory)), on_corrupt="skip")[0]
    assert found.archived_records == 0 and found.last_txid == 800


@pytest.mark.slow
@pytest.mark.parametrize("chunk_records", [480, 500], ids=["notes alone", "notes at the end"])
def test_notes_tell_a_journal_as_messages_do(
    spark: Any, tmp_path: Path, chunk_records: int
) -> None:
    """It was put back as it was before them, and went on with messages, or with other notes."""
    messages = [message_run(at, PUBLISHERS[0], at, 20) for at in range(1, 480, 20)]
    notes = [a_note(at) for at in range(481, 501)]
    others = [message_run(at, PUBLISHERS[1], at, 20) for at in range(481, 800, 20)]
    later = [message_run(at, PUBLISHERS[1], at, 20) for at in range(501, 800, 20)]
    lake = tmp_path / "lake"

    def run(runs: list[Run]) -> Any:
        shutil.rmtree(tmp_path / "a", ignore_errors=True)
        made_by(write_log(tmp_path / "a", runs), INCARNATION)
        return archive(spark, lake, places(path=str(tmp_path / "a")), chunk_records=chunk_records)[
            0
        ]

    assert run([*messages, *notes]).last_txid == 500
    with pytest.raises(StorageError, match="id 500 is not the record that was archived"):
        run([*messages, *others])
    for note in notes:
        note.receive_time_us += 1
    with pytest.raises(StorageError, match="id 500 is not the record that was archived"):
        run([*messages, *notes, *later])
    for note in notes:
        note.receive_time_us -= 1
    assert run([*messages, *notes, *later]).archived_records == 300


@pytest.mark.slow
def test_a_lake_whose_files_are_gone(spark: Any, tmp_path: Path) -> None:
    log = Log(tmp_path / "a", 0)
    lake = tmp_path / "lake"
    rewritten(log, 200, 200)
    assert archive(spark, lake, places(path=str(log.directory)))[0].removable_before > 0
    files = content(lake)
    name = min(files)
    rewritten(log, 400, 400)
    path = lake / "messages" / name
    others = pq.read_table(path).slice(1)
    for harm, told in (
        (lambda: path.write_bytes(path.read_bytes()[:-9]), f"{re.escape(name)} cannot be read: .*"),
        (
            lambda: pq.write_table(others, path),
            "of .* ids 1 to 200 199 messages, but 200 were archived",
        ),
        (lambda: path.write_bytes(b""), f"{re.escape(name)} is named .*, but is missing or empty"),
        (path.unlink, f"{re.escape(name)} is named .*, but is missing or empty"),
    ):
        harm()
        with pytest.raises(StorageError, match=f"{told}; restore it, or") as raised:
            archive(spark, lake, places(path=str(log.directory)))
        assert "none of its segments may be removed" in str(raised.value)
        assert content(lake) | {name} == files


@pytest.mark.slow
def test_topics_that_are_too_long_for_a_directory(spark: Any, tmp_path: Path) -> None:
    topics = [
        "007",
        "x" * 249,
        "x" * 250,
        "x" * 250 + "y",
        "a/b=c:" * 40,
        "a/b=c:" * 40 + "d",
        "ü" * 500,
        "𝄞" * 256,
        "__HIVE_DEFAULT_PARTITION__",
        "börse/a",
    ]
    runs, txid = [], 1
    for number, topic in enumerate(topics):
        runs.append(message_run(txid, 7, 100 * number + 1, 5, topic))
        txid += 5
    log = write_log(tmp_path / "a", runs)
    lake = tmp_path / "a lake, 50% ü"
    assert archive(spark, lake, places(path=str(log.directory)))[0].archived_records == 50
    rows = read_lake(spark, lake)
    assert rows.columns == [*COLUMNS, "date"]
    assert sorted(row["topic"] for row in rows.collect()) == sorted(topics * 5)
    assert rows.where(F.col("topic") == topics[3]).count() == 5
    folders = [path.name for path in (lake / "messages" / "instance=a").iterdir()]
    assert len(folders) == len(topics) and f"topic={'x' * 249}" in folders
    assert any(re.fullmatch("topic=x{48}~[0-9a-f]{16}", name) for name in folders)


@pytest.mark.slow
def test_topics_that_the_locale_of_java_cannot_name(
    spark: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(job, "_names_any_file", lambda _: False)
    topics = ["börse/a", "börse/ä", "plain"]
    runs = [message_run(at * 5 + 1, 7, at * 100, 5, topic) for at, topic in enumerate(topics)]
    log = write_log(tmp_path / "a", runs)
    lake = tmp_path / "lake"
    assert archive(spark, lake, places(path=str(log.directory)))[0].archived_records == 15
    rows = read_lake(spark, lake).collect()
    assert sorted(row["topic"] for row in rows) == sorted(topics * 5)
    folders = [path.name for path in (lake / "messages" / "instance=a").iterdir()]
    assert len(folders) == 3 and all(name.isascii() for name in folders)


def test_an_instance_that_spark_takes_for_a_null(tmp_path: Path) -> None:
    log = write_log(tmp_path / job.NULL_PARTITION, [message_run(1, 7, 1, 5)])
    spark: Any = None
    with pytest.raises(ConfigurationError, match="takes for a null: rename its directory"):
        archive(spark, tmp_path / "lake", places(path=str(log.directory)))


@pytest.mark.slow
def test_what_is_skipped_is_never_removable(spark: Any, tmp_path: Path) -> None:
    """Nor its segment, now or later, nor what stands behind it."""
    log = write_log(tmp_path / "a", mixed_runs(40))
    made_by(log, INCARNATION)
    lake = tmp_path / "lake"
    firsts = [file.first_txid for file in places(path=str(log.directory))[0].files()]
    assert len(firsts) >= 4
    hurt = firsts[1]

    def turn_a_bit(block: bytearray) -> None:
        block[-4] ^= 1

    path = log.journal / f"journal-{hurt:016x}.sealed"
    change_block(path, hurt, turn_a_bit)

    def run(**options: Any) -> Any:
        found = places(path=str(log.directory))
        return archive(spark, lake, found, chunk_records=300, **options)[0]

    with pytest.raises(PySparkException, match="fails its checksum"):
        run()
    lines: list[str] = []
    found = run(on_corrupt="skip", progress=lines.append)
    (told,) = found.damaged
    assert str(path) in told and f"block {hurt}" in told and f"left out: {told}" in lines
    assert found.archived_records == 700 and found.last_txid == log.last_txid
    assert found.removable_before == hurt
    assert read_lake(spark, lake).count() == found.archived_records
    again = run()
    assert again.archived_records == 0 and again.removable_before == hurt


@pytest.mark.slow
def test_a_record_that_reads_one_time_and_not_another(
    spark: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = write_log(tmp_path / "a", mixed_runs(2))
    monkeypatch.setattr(job, "_looked_at", lambda *_: (39, [], []))
    with pytest.raises(
        CorruptRecord, match=("40 records were read at first, and 39 at a second read")
    ):
        archive(spark, tmp_path / "lake", places(path=str(log.directory)), on_corrupt="skip")
    assert not content(tmp_path / "lake")


@pytest.mark.slow
def test_reading_a_lake_leaves_the_session_as_it_is(spark: Any, tmp_path: Path) -> None:
    log = write_log(tmp_path / "0012", [message_run(1, 7, 1, 5, "007")])
    archive(spark, tmp_path / "lake", places(path=str(log.directory)))
    option = "spark.sql.sources.partitionColumnTypeInference.enabled"
    before = spark.conf.get(option)
    (row,) = read_lake(spark, tmp_path / "lake").select("instance", "topic").distinct().collect()
    assert (row["instance"], row["topic"]) == ("0012", "007")
    assert spark.conf.get(option) == before == "true"


def test_a_lake_that_cannot_be_written(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    spark: Any = None
    with pytest.raises(StorageError, match=r"file/lake\S* cannot be written: Not a directory"):
        archive(spark, tmp_path / "file" / "lake", [])
    with pytest.raises(StorageError, match=r"file\S* cannot be written: "):
        archive(spark, tmp_path / "file", [])


@pytest.mark.slow
@pytest.mark.covers("Data pipeline", "a stretch is verified and taken whole")
def test_what_is_not_what_was_written_is_not_taken(
    spark: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = write_log(tmp_path / "a", mixed_runs(2))
    read_back: Callable[[Any], tuple[int, int]] = job._fingerprint

    def one_row_less(rows: Any) -> tuple[int, int]:
        return read_back(rows.limit(39))

    monkeypatch.setattr(job, "_fingerprint", one_row_less)
    with pytest.raises(CorruptRecord, match="nothing was archived; check the disk"):
        archive(spark, tmp_path / "lake", places(path=str(log.directory)))
    assert not content(tmp_path / "lake")
    assert [path.name for path in (tmp_path / "lake" / "_raylay").iterdir()] == ["lock"]


@pytest.mark.covers("Data pipeline", "a topic that nobody journals, a fabric that is down")
@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (["archive", "{}", "--lake", "{}/lake"], "is not a journal"),
        (
            ["archive", "nowhere", "--lake", "{}/lake"],
            "nowhere is neither a file nor a directory",
        ),
        (["publish", "{}", "--server", "127.0.0.1:9"], "is not a staging directory"),
        (["publish", "{}"], "give either `servers`"),
    ],
)
def test_commands_that_cannot_begin(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    arguments: list[str],
    text: str,
) -> None:
    filled = [each.replace("{}", str(tmp_path)) for each in arguments]
    monkeypatch.setattr("sys.argv", ["raylay", "pipeline", *filled])
    with pytest.raises(SystemExit) as raised:
        cli.main()
    assert raised.value.code == 1
    out, err = capsys.readouterr()
    assert text in err and err.count("\n") == 1 and not out
    assert not (tmp_path / "lake").exists()


@pytest.mark.slow
@pytest.mark.covers("Data pipeline", "a topic that nobody journals, a fabric that is down")
def test_sigterm_to_the_whole_process_group_is_one_line(tmp_path: Path) -> None:
    log = write_log(tmp_path / "Chicago-1", mixed_runs(400))
    job = ["archive", str(log.directory), "--lake", str(tmp_path / "lake"), "--chunk", "150"]
    program = [sys.executable, "-m", "raylay.services.entry", "pipeline"]
    with subprocess.Popen(
        [*program, *job, "--master", "local[2]"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    ) as process:
        assert process.stderr is not None
        assert "records archived" in process.stderr.readline()
        os.killpg(process.pid, signal.SIGTERM)  # Java, too, as service managers do
        out, err = process.communicate(timeout=120)
    lines = [line for line in err.splitlines() if "records archived" not in line]
    assert (process.returncode, out) == (130, "")
    assert lines == ["raylay: interrupted: ending archive"]
