"""Replays: in order, once, at the speed that is asked for, wherever they are killed."""

from __future__ import annotations

import datetime as dt
import json
import os
import re
import signal
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from support import replay_child
from support.pipeline_cases import (
    PUBLISHERS,
    START_US,
    journaled,
    made_by,
    message_run,
    write_log,
)
from support.replay_child import CHUNK_ROWS, Numbers

from raylay.services import cli
from raylay.services.errors import CommandFailed, ConfigurationError, ConnectionLost, StorageError
from raylay.services.messages.records import decode_record
from raylay.services.pipeline.archive import archive
from raylay.services.pipeline.journals import places
from raylay.services.pipeline.publishing.sink import WriteOptions
from raylay.services.pipeline.publishing.staged_rows import PendingWrite, read_batches
from raylay.services.pipeline.publishing.staging import StagedFile, stage
from raylay.services.pipeline.replay.job import REPLAYED, LogChunk, ReplayPlan, replay
from raylay.services.pipeline.replay.pacing import Schedule, ready
from raylay.services.pipeline.replay.source import ReplaySelection, SparkSource, cut
from raylay.services.pipeline.replay.store import PacedRows
from raylay.services.pipeline.selection import parse_range, parse_speed
from raylay.storage.files import FAULT_VARIABLE

CHILD = Path(replay_child.__file__)
CHILD_TIMEOUT_S = 300
NOWHERE = "127.0.0.1:9"


def times(*values: int) -> Any:
    return np.array(values, np.int64)


# -- pacing --------------------------------------------------------------------------------------
@pytest.mark.covers("Data pipeline", "at the speed that is asked for")
@pytest.mark.parametrize(
    ("speed", "gap_max_us", "due"),
    [
        (1.0, 0, [0, 100, 100, 150, 5150]),
        (10.0, 0, [0, 10, 10, 15, 515]),
        (0.5, 0, [0, 200, 200, 300, 10300]),
        (1.0, 60, [0, 60, 60, 110, 170]),
        (0.0, 0, [0, 0, 0, 0, 0]),
    ],
)
def test_when_messages_are_due(speed: float, gap_max_us: int, due: list[int]) -> None:
    # The third was published before the second, and stands behind it in the log.
    original = times(1000, 1100, 1050, 1150, 6150)
    assert Schedule(speed, gap_max_us).take(original).tolist() == due
    # In pieces it is the same.
    pieces = Schedule(speed, gap_max_us)
    assert [each for at in range(5) for each in pieces.take(original[at : at + 1])] == due
    assert not len(pieces.take(times()))


def test_how_many_may_be_sent() -> None:
    due = times(0, 10, 10, 20)
    assert [ready(due, 0, now) for now in (-1, 0, 9, 10, 19, 20, 99)] == [0, 1, 1, 3, 3, 4, 4]
    assert ready(due, 2, 10) == 1 and ready(due, 3, 0) == 0


# -- the store -----------------------------------------------------------------------------------
def pending(directory: Path, first: int, bodies: list[bytes]) -> PendingWrite:
    rows = [{"topic": "t", "message_type": "json", "body": body, "time_us": 0} for body in bodies]
    made = pa.RecordBatch.from_pylist(rows, REPLAYED)
    file = stage(directory / f"run-{first}", 0, [made], REPLAYED)
    return PendingWrite(f"batch-{first}", first, file.rows, 7, [file.path])


def bodies_of(store: PacedRows, first: int = 0) -> list[tuple[int, bytes]]:
    return [(sequence, decode_record(record).body) for sequence, record in store.replay(first)]


def test_rows_are_given_out_in_order(tmp_path: Path) -> None:
    store = PacedRows("p", pending(tmp_path, 1, [b"a", b"b", b"c"]))
    # A client that nobody knows begins with the first row, not with the clock.
    assert (store.lowest, store.highest, store.messages) == (1, 1, 1)
    store.advance(1)
    assert bodies_of(store) == [(1, b"a")] and store.known_rows == 0
    (record,) = (r for s, r in PacedRows("p", store._rows.pending).replay() if s == 1)
    store.put(2, record)
    assert [sequence for sequence, _ in store.replay()] == [1, 2]
    with pytest.raises(StorageError, match="4 does not follow 2"):
        store.put(4, record)
    store.acknowledge(2)
    assert (store.lowest, store.messages, store.full) == (3, 0, False)
    store.put(3, record)
    store.acknowledge(3)
    assert store.lowest == 0
    with pytest.raises(StorageError, match="sequence 9 does not follow 3"):
        store.take(pending(tmp_path, 9, [b"x"]))
    store.take(pending(tmp_path, 4, [b"d", b"e"]))
    assert (store.lowest, store.highest, store.messages) == (4, 3, 0)
    # What is durable of the write before says nothing of this one.
    store.put(4, record)
    assert (store.lowest, store.highest, store.messages) == (4, 4, 1)
    store.acknowledge(4)
    assert (store.lowest, store.messages) == (5, 0)


def test_what_servers_have_of_a_write(tmp_path: Path) -> None:
    store = PacedRows("p", pending(tmp_path, 11, [b"%d" % n for n in range(5)]))
    assert store.highest == 10
    store.drop([(1, 11), (13, 13)])
    store.advance(14)
    store.check()
    assert store.known_rows == 2 and bodies_of(store, store.lowest) == [(12, b"1"), (14, b"3")]
    store.advance(99)
    assert store.highest == 15, "there is no row behind the last"
    with pytest.raises(ConfigurationError, match="a server knows sequence 99"):
        store.check()


# -- killed at every step ------------------------------------------------------------------------
@pytest.mark.covers("Data pipeline", "in order, once")
@pytest.mark.parametrize(
    "point",
    [
        "replay.put:700",
        *(
            pytest.param(point, marks=pytest.mark.slow)
            for point in ("replay.planned", "staging.pending:2", "staging.published:2")
        ),
    ],
)
def test_a_replay_killed_at_any_point(instance: Any, tmp_path: Path, point: str) -> None:
    topic = f"replay/{point}"

    def run(**environment: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, str(CHILD), str(tmp_path), instance.address, topic, "1000"],
            env=os.environ | environment,
            timeout=CHILD_TIMEOUT_S,
            check=False,
            stdout=subprocess.PIPE,
            text=True,
        )

    assert run(**{FAULT_VARIABLE: point}).returncode == -signal.SIGKILL
    known = len(journaled(instance, topic))
    summary = json.loads(run().stdout)
    assert summary["messages"] == summary["published"] + summary["published_before"] == 1000
    assert summary["published"] <= 1000 - known // CHUNK_ROWS * CHUNK_ROWS
    found = journaled(instance, topic)
    assert [(sequence, int(body)) for _, sequence, body in found] == [
        (number, number) for number in range(1, 1001)
    ]
    assert len({publisher for publisher, _, _ in found}) == 1


@pytest.mark.covers("Data pipeline", "at the speed that is asked for")
def test_a_replay_keeps_its_times(instance: Any, tmp_path: Path) -> None:
    target = WriteOptions.of({"servers": instance.address})
    lines: list[str] = []
    source = Numbers("replay/times", 600)
    # 600 ms at twice the speed; in three chunks.
    first = replay(source, target, tmp_path, "a", speed=2.0, chunk_rows=200, progress=lines.append)
    assert first.published == 600 and first.seconds >= 0.2995
    assert 0 <= first.behind_mean_ms <= first.behind_max_ms
    assert lines[-1].startswith("numbers: 600 of 600 published")
    again = replay(source, target, tmp_path, "a", speed=2.0)
    assert (again.published, again.published_before) == (0, 600)
    with pytest.raises(ConfigurationError, match="job a was begun with another value of count:"):
        replay(Numbers("replay/times", 9), target, tmp_path, "a")
    assert len(journaled(instance, "replay/times")) == 600


class OddRefused(Numbers):
    """The numbers, where a SOW topic by `/id` takes only the even ones."""

    def stage(self, chunk: LogChunk, run: Path) -> StagedFile:
        file = super().stage(chunk, run)
        rows = [row for batch in read_batches(file.path) for row in batch.to_pylist()]
        for row in rows:
            if int(row["body"]) % 2 == 0:
                row["body"] = b'{"id": %s}' % row["body"]
        return stage(run, 0, [pa.RecordBatch.from_pylist(rows, REPLAYED)], REPLAYED)


@pytest.mark.covers("Data pipeline", "rows that are refused")
def test_a_replay_of_messages_that_are_refused(stateful: Any, tmp_path: Path) -> None:
    target = WriteOptions.of({"servers": stateful.address})
    source = OddRefused("board/replayed", 60)
    for _ in range(2):
        with pytest.raises(CommandFailed, match="row 1 of 20 of batch-0 on board/replayed was ref"):
            replay(source, target, tmp_path, "job", speed=0, chunk_rows=20)
    dead = tmp_path / "dead"
    settled = replace(target, dead_letters=str(dead))
    done = replay(source, settled, tmp_path, "job", speed=0)
    assert (done.published, done.published_before, done.refused) == (20, 10, 30)
    again = replay(source, settled, tmp_path, "job", speed=0)
    assert (again.published, again.refused) == (0, 0)
    found = [json.loads(body)["id"] for _, _, body in journaled(stateful, "board/replayed")]
    assert found == list(range(2, 61, 2))
    refused = [row["body"] for row in pq.read_table(dead).to_pylist()]
    assert sorted(int(body) for body in refused) == list(range(1, 61, 2))


# -- from lakes -----------------------------------------------------------------------------------
@pytest.mark.covers("Data pipeline", "in order, once")
@pytest.mark.slow
def test_a_lake_of_an_instance_that_began_anew(spark: Any, tmp_path: Path) -> None:
    """What it got back after it lost its data is replayed once."""
    lake = tmp_path / "lake"
    desk = PUBLISHERS[0]
    # The second life got 21 to 60 back from a peer, then went on; 11 to 20 nobody had any more.
    for life, runs in enumerate(([(1, 60)], [(1, 10), (21, 40), (61, 20)])):
        made, txid = [], 1
        for first, count in runs:
            made.append(message_run(txid, desk, first, count))
            made[-1].receive_time_us = START_US + life * 1_000_000 + txid * 1000
            txid += count
        log = write_log(tmp_path / f"{life}" / "Chicago-1", made)
        made_by(log, 0xF0 - life)
        archive(spark, lake, places(path=str(log.directory)))
    source = SparkSource(spark, str(lake), ReplaySelection())
    plan = source.plan(1000)
    assert source.is_lake and len(plan.incarnations) == 2 and plan.rows == 80
    found = []
    for number, chunk in enumerate(plan.chunks):
        file = source.stage(chunk, tmp_path / f"run-{number}")
        with pa.memory_map(file.path) as opened:
            table = pa.ipc.open_file(opened).read_all()
        assert table.num_rows == chunk.rows == file.rows
        found += [json.loads(body)["number"] for body in table["body"].to_pylist()]
    assert found == list(range(1, 81))


@pytest.mark.slow
def test_a_lake_of_bare_journals_of_one_name(spark: Any, tmp_path: Path) -> None:
    """Each is a log of its own: what both hold is replayed once, and each in its order."""
    lake = tmp_path / "lake"
    for place, counts in (("east", [(1, 60)]), ("west", [(1, 60), (61, 20)])):
        made, txid = [], 1
        for first, count in counts:
            made.append(message_run(txid, PUBLISHERS[0], first, count))
            made[-1].receive_time_us = START_US + (place == "west") * 1_000_000 + txid * 1000
            txid += count
        log = write_log(tmp_path / place / "same", made)
        archive(spark, lake, places(path=str(log.directory)))
    source = SparkSource(spark, str(lake), ReplaySelection())
    plan = source.plan(1000)
    assert len(plan.incarnations) == 2 and plan.rows == 80
    assert all(re.fullmatch("at-[0-9a-f]{16}", each) for each in plan.incarnations)
    found = []
    for number, chunk in enumerate(plan.chunks):
        file = source.stage(chunk, tmp_path / f"run-{number}")
        with pa.memory_map(file.path) as opened:
            table = pa.ipc.open_file(opened).read_all()
        found += [json.loads(body)["number"] for body in table["body"].to_pylist()]
    assert found == list(range(1, 81))


def test_chunks() -> None:
    grains = {(0, 0): (6, 9_000), (0, 1): (4, 19_999), (0, 3): (1, 30_500), (1, 0): (2, 7)}
    assert cut(grains, 10_000, 10) == [
        LogChunk(0, 0, 19_999, 10),
        LogChunk(0, 30_000, 30_500, 1),
        LogChunk(1, 0, 7, 2),
    ]


# -- what cannot be replayed ---------------------------------------------------------------------
def test_times_and_speeds() -> None:
    first, last = parse_range("2026-01-02", "20260102T030405Z")
    assert first == dt.datetime(2026, 1, 2, tzinfo=dt.UTC)
    assert last == dt.datetime(2026, 1, 2, 3, 4, 5, tzinfo=dt.UTC)
    assert parse_range("", "") == (None, None)
    for until in ("2026-01-02", "2026-01-01"):
        with pytest.raises(ConfigurationError, match="no message lies between them"):
            parse_range("2026-01-02", until)
    assert (parse_speed("full"), parse_speed("0.5")) == (0.0, 0.5)


def test_a_job_that_cannot_begin(tmp_path: Path) -> None:
    down = WriteOptions.of({"servers": NOWHERE, "connect_wait_s": "0.2"})
    with pytest.raises(ConnectionLost, match="found no server"):
        replay(Numbers("t", 3), down, tmp_path, "job")
    with pytest.raises(ConfigurationError, match="is not allowed as the name of a job"):
        replay(Numbers("t", 3), down, tmp_path, "../job")
    assert not list(tmp_path.iterdir())
    (tmp_path / "replay.json").write_text('{"version": 1}')
    with pytest.raises(StorageError, match=r"replay.json is damaged"):
        ReplayPlan.load(tmp_path / "replay.json")
    spark: Any = None
    with pytest.raises(StorageError, match=r"neither a lake \(it has no _raylay.manifest.json\)"):
        SparkSource(spark, str(tmp_path), ReplaySelection())


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (["--from", "soon"], "--from is 'soon': give a UTC time such as"),
        (["--from", "2026-01-02", "--to", "2026-01-01"], "--from 2026-01-02 is not before"),
        (["--speed", "quick"], "--speed is 'quick': give 1 for the original speed"),
        (["--job", "x"], "give --staging"),
        ([], "give either `servers`"),
    ],
)
def test_commands_that_cannot_begin(
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    arguments: list[str],
    text: str,
) -> None:
    monkeypatch.setattr("sys.argv", ["raylay", "pipeline", "replay", "somewhere", *arguments])
    with pytest.raises(SystemExit) as raised:
        cli.main()
    assert raised.value.code == 1
    out, err = capsys.readouterr()
    assert text in err and err.count("\n") == 1 and not out
