"""`spark.readStream.format("raylay")`: every record once, across restarts, and live."""

from __future__ import annotations

import json
import shutil
import statistics
import threading
import time
from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import PySparkException, StreamingQueryException
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadMaxRows
from pyspark.sql.types import LongType, StructField, StructType
from support.journal_cases import a_note
from support.pipeline_cases import (
    INCARNATION,
    PUBLISHERS,
    Log,
    made_by,
    message_run,
    mixed_runs,
    write_log,
)

from raylay.services.client import SyncClient
from raylay.services.errors import ConfigurationError, StorageError
from raylay.services.pipeline.session import one_line
from raylay.services.pipeline.tables.source import ReadOptions, StreamReader, shares
from raylay.storage.maintenance import SegmentMaintenance

TXID = StructType([StructField("txid", LongType())])
LIVE_MESSAGES = 2_000
LIVE_TIMEOUT_S = 120
LIVE_LAG_S_MAX = 30.0
"""Of half of the messages, on a machine with other work: a micro-batch takes a second."""


def reader_of(log: Log, **options: str) -> StreamReader:
    return StreamReader(ReadOptions.of({"path": str(log.directory), **options}), TXID)


def txids(reader: StreamReader, start: dict[str, Any], end: dict[str, Any]) -> list[int]:
    return [
        txid
        for partition in reader.partitions(start, end)
        for batch in reader.read(partition)
        for txid in batch["txid"].to_pylist()
    ]


@pytest.mark.parametrize(
    ("starting", "txid"),
    [
        ("0", 0),
        ("0|1|", 1086),
        (f"{PUBLISHERS[0]}|20|", 20),
        ("20260101T000055Z", 1005),
        ("2026-01-01T00:00:55", 1005),
        ("2026-01-01 01:00:55+01:00", 1005),
        ("1767225655", 1005),
        ("1767225655000", 1005),
        ("1767225655000000", 1005),
        ("2025-12-31", 0),
        ("1900-01-01", 0),
        ('{"Chicago-1": 7}', 7),
    ],
)
def test_where_a_stream_begins(mixed: Log, starting: str, txid: int) -> None:
    reader = reader_of(mixed, starting=starting)
    found = reader.initialOffset()["Chicago-1"]
    assert (found["incarnation"], found["txid"]) == ("", txid)
    # A note is told by its number, a message by what it is; before the first there is nothing.
    assert (found["record"] or [0])[0] == txid


@pytest.mark.covers("Data pipeline", "every record once")
def test_offsets_by_limits(mixed: Log) -> None:
    reader = reader_of(mixed, max_records_per_trigger="300")
    assert reader.getDefaultReadLimit() == ReadMaxRows(300)
    assert reader_of(mixed).getDefaultReadLimit() == ReadAllAvailable()
    found: list[int] = []
    at = reader.initialOffset()
    while (end := reader.latestOffset(at, ReadMaxRows(300))) != at:
        read = txids(reader, at, end)
        assert len(read) <= 300
        assert read == txids(reader_of(mixed), at, end), "an offset means the same rows for ever"
        found += read
        at = end
    assert at == reader.latestOffset(at, ReadAllAvailable())
    reported = reader.reportLatestOffset()
    assert reported is not None and reported["Chicago-1"]["txid"] == mixed.last_txid
    first = reader.initialOffset()
    assert found == txids(reader, first, reader.latestOffset(first, ReadAllAvailable()))
    assert len(found) == len(set(found)) == 1080


@pytest.mark.parametrize(
    ("backlogs", "wanted", "expected"),
    [
        ({"a": 100, "b": 300}, 40, {"a": 10, "b": 30}),
        ({"a": 1, "b": 1, "c": 1}, 2, {"a": 0, "b": 1, "c": 1}),
        ({"a": 5, "b": 0}, 5, {"a": 5, "b": 0}),
        ({"a": 0}, 0, {"a": 0}),
        ({}, 0, {}),
    ],
)
def test_shares(backlogs: dict[str, int], wanted: int, expected: dict[str, int]) -> None:
    assert shares(backlogs, wanted) == expected


@pytest.mark.covers("Data pipeline", "data that was replaced or removed is told")
def test_data_that_was_replaced_or_removed(tmp_path: Path) -> None:
    runs = [message_run(first, 7, first, 20) for first in range(1, 401, 20)]
    log = write_log(tmp_path / "a", runs, segment_bytes=8 * 1024)
    made_by(log, INCARNATION)
    reader = reader_of(log)
    start = reader.initialOffset()
    assert start == {"a": {"incarnation": f"{INCARNATION:016x}", "txid": 0, "record": None}}
    end = reader.latestOffset(start, ReadMaxRows(40))
    # Segments go before they were read.
    assert any(e.done for e in SegmentMaintenance(log.journal).remove(200, force=True))
    last = reader.latestOffset(end, ReadAllAvailable())
    with pytest.raises(StorageError, match=r"segments were removed before they were read; begin"):
        reader.partitions(end, last)
    going_on = reader_of(log, on_data_loss="go_on")
    left = txids(going_on, end, last)
    assert left == list(range(left[0], 401)) and 41 < left[0] <= 201
    # The instance lost its disk and began anew.
    shutil.rmtree(log.directory)
    log = write_log(tmp_path / "a", runs[:2])
    made_by(log, INCARNATION + 1)
    with pytest.raises(StorageError, match=f"the query read incarnation {INCARNATION:016x}"):
        reader_of(log).latestOffset(last, ReadAllAvailable())
    anew = going_on.latestOffset(last, ReadAllAvailable())
    assert txids(going_on, last, anew) == list(range(1, 41))


@pytest.mark.parametrize(
    ("count", "of", "told"),
    [
        (2, 7, r"ends at transaction id 40, but the query read 100"),
        (20, 8, r"has another record at transaction id 100 than the query read"),
    ],
    ids=["put back", "another"],
)
@pytest.mark.parametrize("incarnation", [0, INCARNATION], ids=["bare", "of an instance"])
def test_a_journal_that_was_replaced_under_its_name(
    tmp_path: Path, count: int, of: int, told: str, incarnation: int
) -> None:
    """Nothing of the other journal is taken for what the query planned to read, or goes on at."""

    def written(count: int, publisher: int) -> Log:
        runs = [message_run(first, publisher, first, 20) for first in range(1, 20 * count, 20)]
        log = write_log(tmp_path / "a", runs)
        if incarnation:
            made_by(log, incarnation)
        return log

    log = written(20, 7)
    start = reader_of(log).initialOffset()
    middle = reader_of(log).latestOffset(start, ReadMaxRows(90))
    end = reader_of(log).latestOffset(middle, ReadMaxRows(10))
    assert end["a"]["txid"] == 100
    # A checkpoint of before there were records in offsets goes on.
    old = {"a": {key: value for key, value in end["a"].items() if key != "record"}}
    assert reader_of(log).latestOffset(old, ReadMaxRows(10))["a"]["txid"] == 110
    shutil.rmtree(log.directory)
    log = written(count, of)
    with pytest.raises(StorageError, match=told):
        reader_of(log).latestOffset(end, ReadAllAvailable())
    with pytest.raises(StorageError, match=told):
        reader_of(log).partitions(middle, end)
    going_on = reader_of(log, on_data_loss="go_on")
    assert txids(going_on, middle, end) == []
    last = going_on.latestOffset(end, ReadAllAvailable())
    assert txids(going_on, end, last) == list(range(1, 20 * count + 1))


def test_a_note_tells_a_journal_as_a_message_does(tmp_path: Path) -> None:
    def written(more_us: int) -> Log:
        shutil.rmtree(tmp_path / "a", ignore_errors=True)
        runs = [message_run(1, 7, 1, 20), a_note(21)]
        runs[-1].receive_time_us += more_us
        return write_log(tmp_path / "a", [*runs, message_run(22, 7, 21, 20)])

    log = written(0)
    end = reader_of(log).latestOffset(reader_of(log).initialOffset(), ReadMaxRows(21))
    assert end["a"]["txid"] == 21
    assert written(0) and reader_of(log).latestOffset(end, ReadAllAvailable())["a"]["txid"] == 41
    assert written(1)
    with pytest.raises(StorageError, match="another record at transaction id 21"):
        reader_of(log).latestOffset(end, ReadAllAvailable())


def test_a_stream_may_begin_where_nothing_is_yet(mixed: Log) -> None:
    reader = reader_of(mixed, starting='{"*": 5000}')
    start = reader.initialOffset()
    assert start["Chicago-1"] == {"incarnation": "", "txid": 5000, "record": None}
    assert reader.latestOffset(start, ReadAllAvailable()) == start
    assert txids(reader, start, start) == []


@pytest.mark.covers("Data pipeline", "every record once")
def test_a_stream_from_now_that_is_killed_in_its_first_micro_batch_loses_nothing(
    instance: Any,
) -> None:
    topic = "flights/first"

    def publish(numbers: range) -> None:
        with SyncClient("first-desk", servers=[instance.address]) as client:
            for number in numbers:
                client.publish(topic, b"%d" % number)
            client.flush()

    def reader() -> StreamReader:
        given = {"path": str(instance.directory), "topic": topic, "starting": "0|1|"}
        return StreamReader(ReadOptions.of(given), TXID)

    publish(range(5))
    killed, again = reader(), reader()
    start = killed.initialOffset()
    publish(range(5, 15))
    end = killed.latestOffset(start, ReadAllAvailable())
    # Spark kept the end, and asks for the begin again.
    publish(range(15, 25))
    found = txids(again, again.initialOffset(), end)
    found += txids(again, end, again.latestOffset(end, ReadAllAvailable()))
    assert len(found) == len(set(found)) == 20
    assert min(found) > start[instance.directory.name]["txid"]


def test_a_stream_has_no_ending(mixed: Log) -> None:
    with pytest.raises(ConfigurationError, match="a stream takes no option `ending`"):
        reader_of(mixed, ending="0")


# -- with Spark ----------------------------------------------------------------------------------
@pytest.mark.covers("Data pipeline", "a topic that nobody journals, a fabric that is down")
@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({"ending": "0"}, "a stream takes no option `ending`"),
        ({"inferSchema": "true"}, "a stream takes no option inferSchema"),
        ({"topic": "flights/("}, "flights/("),
        ({"schema": "id INT, id INT"}, "the schema has the field id twice"),
        ({"path": ""}, "give either `path`"),
        ({"path": "no-such-directory"}, "no-such-directory does not exist"),
        ({"path": "", "servers": "localhost:9", "ending": "0|1|"}, "takes no option `ending`"),
        ({"path": "", "fabric": "no-such", "network": "true"}, "no-such"),
        ({"path": "", "servers": "localhost:9", "changes": "true", "topic": "orders"}, "state"),
    ],
)
def test_a_refused_stream_gives_its_reason(
    spark: Any, mixed: Log, options: dict[str, str], reason: str
) -> None:
    wanted = {"path": str(mixed.directory), "columns": "topic"} | options
    if not wanted["path"]:
        del wanted["path"]
    if "changes" in wanted:
        del wanted["columns"]
    for trigger in ({"availableNow": True}, {"processingTime": "1 second"}):
        with pytest.raises(PySparkException) as refused:
            stream = spark.readStream.format("raylay").options(**wanted).load()
            stream.writeStream.format("noop").trigger(**trigger).start().awaitTermination(60)
        assert reason in one_line(refused.value)


def run_until_read(spark: Any, log: Log, place: Path, **options: str) -> Any:
    """One run of a query that ends at what is committed; it appends to a table of files."""
    query = (
        spark.readStream.format("raylay")
        .options(columns="txid,bookmark", **options)
        .load(str(log.directory))
        .writeStream.format("parquet")
        .option("checkpointLocation", str(place / "checkpoint"))
        .option("path", str(place / "table"))
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()
    return query


@pytest.mark.slow
@pytest.mark.covers("Data pipeline", "every record once")
def test_every_record_once_across_restarts(spark: Any, tmp_path: Path) -> None:
    runs = mixed_runs(24)
    log = write_log(tmp_path / "a", runs[:16])
    query = run_until_read(spark, log, tmp_path, max_records_per_trigger="200")
    assert [each["numInputRows"] > 0 for each in query.recentProgress].count(True) == 2
    write_log(tmp_path / "a", runs[16:])
    SegmentMaintenance(log.journal).compress()
    # The last batch was planned and not finished: the restarted query does it again.
    newest = max((tmp_path / "checkpoint" / "commits").glob("[0-9]*"), key=lambda p: int(p.name))
    newest.unlink()
    newest.with_name(f".{newest.name}.crc").unlink()
    run_until_read(spark, log, tmp_path, max_records_per_trigger="200")
    rows = [row["txid"] for row in spark.read.parquet(str(tmp_path / "table")).collect()]
    expected = [
        txid for run in runs for txid in range(run.first_txid, run.last_txid + 1) if run.publisher
    ]
    assert sorted(rows) == expected
    made_by(log, INCARNATION)
    with pytest.raises(StreamingQueryException, match="the instance's data was replaced"):
        run_until_read(spark, log, tmp_path)


def test_live_beside_the_running_instance(spark: Any, instance: Any, tmp_path: Path) -> None:
    seen: dict[int, float] = {}
    published: dict[int, float] = {}
    done = threading.Event()

    def take(rows: Any, _: int) -> None:
        now_s = time.monotonic()
        for row in rows.collect():
            seen.setdefault(row["value"]["n"], now_s)
        if len(seen) == LIVE_MESSAGES:
            done.set()

    query = (
        spark.readStream.format("raylay")
        .options(columns="topic", schema="n INT", starting="0|1|")
        .load(str(instance.directory))
        .where("topic = 'stream/live'")
        .writeStream.foreachBatch(take)
        .option("checkpointLocation", str(tmp_path / "checkpoint"))
        .start()
    )
    try:
        deadline_s = time.monotonic() + LIVE_TIMEOUT_S
        while query.lastProgress is None and time.monotonic() < deadline_s:
            assert query.exception() is None
            query.processAllAvailable()
        with SyncClient("stream-live", servers=[instance.address]) as client:
            for number in range(LIVE_MESSAGES):
                published[number] = time.monotonic()
                client.publish("stream/live", json.dumps({"n": number}).encode())
                if number % 200 == 199:
                    client.flush()
        assert done.wait(LIVE_TIMEOUT_S), f"{len(seen)} of {LIVE_MESSAGES} came"
        query.processAllAvailable()
        (told,) = query.lastProgress["sources"]
        ends = [json.loads(told[name]) for name in ("endOffset", "latestOffset")]
        read, newest = (each[instance.directory.name]["txid"] for each in ends)
        assert LIVE_MESSAGES <= read <= newest
    finally:
        query.stop()
    assert seen.keys() == published.keys()
    # Each with the micro-batch behind it, not when the query ends; how fast that is on a quiet
    # machine is measured in benchmarks/pipeline_lag.py.
    lags_s = [seen[number] - published[number] for number in seen]
    assert min(lags_s) >= 0.0 and statistics.median(lags_s) < LIVE_LAG_S_MAX
