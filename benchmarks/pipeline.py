"""Spark over one journal of a million messages: scan, stream, archive. No instance runs."""

from __future__ import annotations

import asyncio
import shutil
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from context import Bench, Figure

from raylay.services.messages.records import Flag, RecordBuilder, Run, publisher_id
from raylay.storage.lmdb_journal import LmdbJournal

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

MESSAGES = 1_000_000
BODY_BYTES = 128
RUN_RECORDS = 1_000
TOPICS = ("bench/one", "bench/two")
START_US = 1_767_225_600_000_000
RUNS = 3
WRITE_TIMEOUT_S = 300


def write_journal(directory: Path) -> None:
    """A journal of `MESSAGES`, as an instance would have written it: a run and a commit each
    thousand."""
    directory.mkdir(parents=True)
    journal = LmdbJournal(directory)
    written = threading.Event()
    failures: list[Exception] = []

    def committed(last_txid: int, commit_ns: int) -> None:
        if last_txid >= MESSAGES:
            written.set()

    def failed(first_txid: int, error: Exception) -> None:
        failures.append(error)
        written.set()

    journal.start(committed, failed)
    publisher = publisher_id("bench")
    builders = [RecordBuilder(publisher, topic, "json") for topic in TOPICS]
    for first in range(1, MESSAGES + 1, RUN_RECORDS):
        which = first // RUN_RECORDS % len(TOPICS)
        last = first + RUN_RECORDS - 1
        payload = b"".join(
            builders[which].build(
                number, (b'{"n": %d}' % number).ljust(BODY_BYTES), START_US + number
            )
            for number in range(first, last + 1)
        )
        journal.stage(
            Run(
                publisher,
                first,
                last,
                RUN_RECORDS,
                payload,
                TOPICS[which].encode(),
                b"json",
                path=(1,),
                group="bench",
                flags=Flag.CONTIGUOUS | Flag.AWAITED,
                first_txid=first,
                receive_time_us=START_US + first,
            )
        )
    assert written.wait(WRITE_TIMEOUT_S) and not failures, failures
    journal.close()


def best_rate(work: Callable[[], Any]) -> float:
    """Records a second of the fastest of `RUNS` runs behind a first, cold one."""
    work()
    fastest_s = float("inf")
    for _ in range(RUNS):
        started_s = time.perf_counter()
        work()
        fastest_s = min(fastest_s, time.perf_counter() - started_s)
    return MESSAGES / fastest_s


def scans(spark: SparkSession, journal: str) -> list[Figure]:
    """Count and a small aggregate, of three columns and of all."""
    from pyspark.sql import functions as F

    def scan(columns: str) -> None:
        read = spark.read.format("raylay")
        rows = (read.option("columns", columns) if columns else read).load(journal)
        found = (
            rows.groupBy("topic")
            .agg(F.count(F.lit(1)).alias("rows"), F.max("receive_time"), F.max("txid"))
            .collect()
        )
        assert sum(row["rows"] for row in found) == MESSAGES

    return [
        Figure("pipeline_scan", best_rate(lambda: scan("topic,txid,receive_time")), "records/s"),
        Figure("pipeline_scan_all", best_rate(lambda: scan("")), "records/s"),
    ]


def streamed(spark: SparkSession, journal: str, place: Path) -> Figure:
    """A stream from the first record to the end of the written log, bodies included."""

    def run() -> None:
        checkpoint = place / f"checkpoint-{time.monotonic_ns()}"
        query = (
            spark.readStream.format("raylay")
            .options(columns="topic,txid,body", max_records_per_trigger="500000")
            .load(journal)
            .writeStream.format("noop")
            .option("checkpointLocation", checkpoint.as_uri())
            .trigger(availableNow=True)
            .start()
        )
        query.awaitTermination()
        assert sum(each["numInputRows"] for each in query.recentProgress) == MESSAGES

    return Figure("pipeline_stream", best_rate(run), "records/s")


def archived(spark: SparkSession, journal: str, place: Path) -> Figure:
    """The archive job, verification included."""
    from raylay.services.pipeline.archive import archive
    from raylay.services.pipeline.journals import places

    def run() -> None:
        lake = place / f"lake-{time.monotonic_ns()}"
        (summary,) = archive(spark, lake, places(path=journal))
        assert summary.archived_records == MESSAGES
        shutil.rmtree(lake)

    return Figure("pipeline_archive", best_rate(run), "records/s")


def measured(place: Path) -> list[Figure]:
    """All of them, in one session."""
    from raylay.services.pipeline import session

    journal = str(place / "pipeline" / "journal")
    write_journal(Path(journal))
    spark = session(app="raylay bench")
    try:
        return [
            *scans(spark, journal),
            streamed(spark, journal, place),
            archived(spark, journal, place),
        ]
    finally:
        spark.stop()


async def pipeline(bench: Bench) -> list[Figure]:
    """Scan, stream and archive of a written log."""
    return await asyncio.to_thread(measured, bench.directory)
