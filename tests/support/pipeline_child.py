"""One job in a process of its own, with a Spark of its own, which a test has killed.

    python pipeline_child.py archive|parquet|topic|aggregate|replay SOURCE PLACE [ADDRESS TOPIC]
    python pipeline_child.py network SOURCE_TOPIC PLACE ADDRESS TOPIC

Prints `ready` when Spark is up and `done` at the end.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from raylay.services.pipeline import session
from raylay.services.pipeline.aggregate import Windows, aggregate
from raylay.services.pipeline.archive import archive
from raylay.services.pipeline.journals import places
from raylay.services.pipeline.publishing.sink import WriteOptions
from raylay.services.pipeline.replay.job import replay
from raylay.services.pipeline.replay.source import ReplaySelection, SparkSource

FOR_SMALL_QUERIES = {
    "spark.sql.shuffle.partitions": "2",
    # Compiling takes longer than what is compiled runs.
    "spark.sql.codegen.wholeStage": "false",
    "spark.sql.adaptive.enabled": "false",
    "spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC",
}
FOR_A_CLUSTER = {
    "spark.driver.host": "127.0.0.1",
    "spark.speculation": "true",
    "spark.speculation.interval": "100ms",
    "spark.speculation.multiplier": "1.1",
    "spark.speculation.quantile": "0.1",
}
MASTER_VARIABLE = "PIPELINE_MASTER"
CHUNK_RECORDS = 150
REPLAY_JOB = "again"
RECORDS_PER_BATCH = 150
TWIN_S_MAX = 120.0
TWIN, MET = "twin", "met"
"""Files that the twin of the first task makes, and that task when it sees it."""
WINDOWS = Windows(
    topic="^flights/EWR$",
    schema="number INT, carrier STRING",
    by=("carrier",),
    values=("number",),
    time="receive_time",
    window_ms=4_000,
    watermark_ms=0,
)


def run_archive(spark: Any, source: Path, place: Path) -> None:
    """Journals to a lake."""
    archive(spark, place, places(path=str(source)), chunk_records=CHUNK_RECORDS)


def run_stream(spark: Any, source: Path, place: Path, target: str, **options: str) -> None:
    """A stream up to what is committed, into files or a topic."""
    query = (
        spark.readStream.format("raylay")
        .options(columns="txid,body", max_records_per_trigger=str(RECORDS_PER_BATCH))
        .load(str(source))
        .selectExpr("txid" if target == "parquet" else "CAST(txid AS STRING) AS body")
        .writeStream.format(target)
        .option("checkpointLocation", str(place / "checkpoint"))
        .options(**options)
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()


def run_network(spark: Any, topic: str, place: Path, address: str, into: str) -> None:
    """A stream over the network into another topic, whose first task gets a speculative twin."""
    query = (
        spark.readStream.format("raylay")
        .options(servers=address, topic=topic, columns="body", readers="2")
        .load()
        .mapInArrow(awaiting_twin(place), "body BINARY")
        .writeStream.format("raylay")
        .option("checkpointLocation", str(place / "checkpoint"))
        .options(servers=address, topic=into)
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()


def awaiting_twin(place: Path) -> Any:
    """Passes rows on. The first task holds its end back until it has a twin, which has then to be
    read and staged at the same time."""

    def passing(batches: Iterator[Any]) -> Iterator[Any]:
        from pyspark import TaskContext

        context = TaskContext.get()
        assert context is not None
        if context.partitionId() == 0 and context.attemptNumber():
            (place / TWIN).touch()
        yield from batches
        deadline_s = time.monotonic() + TWIN_S_MAX
        while context.partitionId() == 0 and not (place / TWIN).exists():
            assert time.monotonic() < deadline_s, "no twin came"
            time.sleep(0.05)
        if context.partitionId() == 0 and not context.attemptNumber():
            (place / MET).touch()

    return passing


def run_aggregate(spark: Any, source: Path, place: Path, address: str, topic: str) -> Any:
    """Windows of the flights, each once."""
    return aggregate(
        spark,
        places(path=str(source))[0],
        WINDOWS,
        topic,
        {"servers": address},
        place / "checkpoint",
        until_caught_up=True,
        records_per_batch=RECORDS_PER_BATCH,
    )


def run_replay(spark: Any, source: Path, place: Path, address: str, topic: str) -> Any:
    """All messages, in several chunks, as fast as it goes."""
    return replay(
        SparkSource(spark, str(source), ReplaySelection(to_topic=topic)),
        WriteOptions.of({"servers": address}),
        place,
        REPLAY_JOB,
        speed=0.0,
        chunk_rows=CHUNK_RECORDS,
    )


def run(spark: Any, job: str, source: Path, place: Path, *where: str) -> None:
    """One of the jobs."""
    if job == "archive":
        run_archive(spark, source, place)
    elif job == "parquet":
        run_stream(spark, source, place, "parquet", path=str(place / "table"))
    elif job == "topic":
        run_stream(spark, source, place, "raylay", servers=where[0], topic=where[1])
    elif job == "network":
        run_network(spark, str(source), place, *where)
    elif job == "replay":
        run_replay(spark, source, place, *where)
    else:
        run_aggregate(spark, source, place, *where)


def main() -> None:
    """The command."""
    job, source, place, *where = sys.argv[1:]
    master = os.environ.get(MASTER_VARIABLE, "local[2,3]")
    more = {} if master.startswith("local[") else FOR_A_CLUSTER
    spark = session(master, "killed", log_level="OFF", **FOR_SMALL_QUERIES, **more)
    print("ready", flush=True)
    run(spark, job, Path(source), Path(place), *where)
    print("done", flush=True)


if __name__ == "__main__":
    main()
