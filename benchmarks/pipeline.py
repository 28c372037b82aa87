"""Spark over journals: scan, stream and archive of one of a million messages and the audit of six
of two million each, without a running instance; the audit beside a pair that is published to.

    python benchmarks/pipeline.py DIRECTORY     audits a fabric's directory until its input ends
"""

from __future__ import annotations

import asyncio
import os
import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from context import Bench, Figure, body

from raylay.services.configuration.builder import FabricBuilder
from raylay.services.fabric.plan import FabricRecord
from raylay.services.messages.records import Flag, RecordBuilder, Run, publisher_id
from raylay.storage.lmdb_journal import LmdbJournal
from raylay.storage.state import LmdbStateStore

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

MESSAGES = 1_000_000
BODY_BYTES = 128
RUN_RECORDS = 1_000
TOPICS = ("bench/one", "bench/two")
START_US = 1_767_225_600_000_000
RUNS = 3
WRITE_TIMEOUT_S = 300
AUDITED = 6
AUDITED_MESSAGES = 2_000_000
"""At each instance: 12 million copies. Two million in all take a fourth of the time."""
BESIDE_S = 8.0
BESIDE_MESSAGES = 500_000
"""In the pair's journals before it is audited."""
BURST = 1_000


def write_journal(directory: Path, messages: int = MESSAGES, path: tuple[int, ...] = (1,)) -> None:
    """A journal of so many messages, as an instance would have written it: a run and a commit each
    thousand."""
    directory.mkdir(parents=True)
    journal = LmdbJournal(directory)
    written = threading.Event()
    failures: list[Exception] = []

    def committed(last_txid: int, commit_ns: int) -> None:
        if last_txid >= messages:
            written.set()

    def failed(first_txid: int, error: Exception) -> None:
        failures.append(error)
        written.set()

    journal.start(committed, failed)
    publisher = publisher_id("bench")
    builders = [RecordBuilder(publisher, topic, "json") for topic in TOPICS]
    for first in range(1, messages + 1, RUN_RECORDS):
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
                path=path,
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


# -- the audit -----------------------------------------------------------------------------------
def write_audited(place: Path) -> str:
    """The directory of a fabric of `AUDITED` instances, all in one region: one journal as where it
    was published, the others as where it came to."""
    names = [f"instance-{number}" for number in range(1, AUDITED + 1)]
    builder = FabricBuilder("audited")
    builder.region("bench", names)
    settings = builder.settings()
    FabricRecord(settings.name, str(place), settings.to_json()).save()
    homes = [place / name for name in names]
    write_journal(homes[0] / "journal", AUDITED_MESSAGES, ())
    write_journal(homes[1] / "journal", AUDITED_MESSAGES)
    for home in homes[2:]:
        shutil.copytree(homes[1], home)
    for incarnation, home in enumerate(homes, 1):
        state = LmdbStateStore(home / "state.lmdb")
        state.put({"incarnation": incarnation.to_bytes(8, "big")})
        state.close()
    return str(place)


def audited(place: Path) -> list[Figure]:
    """The audit of six journals: the faster of two behind a cold one of a small journal."""
    from raylay.services.pipeline import session
    from raylay.services.pipeline.audit import audit, audit_source, expected_everywhere
    from raylay.services.pipeline.journals import places

    source = write_audited(place / "audited")
    found = places(path=source)
    write_journal(place / "small" / "journal", RUN_RECORDS)
    spark = session(app="raylay bench")
    try:
        audit(spark, places(path=str(place / "small")), expected_everywhere())
        took_s = []
        for _ in range(2):
            started_s = time.perf_counter()
            result = audit_source(spark, source, found)
            took_s.append(time.perf_counter() - started_s)
            assert result.valid and result.messages == AUDITED * AUDITED_MESSAGES
            assert not result.missing and not result.unknown_origin
    finally:
        spark.stop()
        shutil.rmtree(place / "audited")
    return [
        Figure("pipeline_audit", AUDITED * AUDITED_MESSAGES / min(took_s), "messages/s"),
        Figure("pipeline_audit_s", min(took_s), "s"),
    ]


async def pipeline_audit(bench: Bench) -> list[Figure]:
    """The audit of six instances with two million messages at each."""
    return await asyncio.to_thread(audited, bench.directory)


def processor_s(pid: int) -> float:
    """Processor time of a process and all its descendants so far, ended ones that were waited for
    included."""
    children: dict[int, list[int]] = {}
    ticks: dict[int, int] = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                fields = (entry / "stat").read_text().rpartition(")")[2].split()
            except OSError:
                continue  # it ended meanwhile
            children.setdefault(int(fields[1]), []).append(int(entry.name))
            ticks[int(entry.name)] = sum(map(int, fields[11:15]))
    found, left = 0, [pid]
    while left:
        one = left.pop()
        found += ticks.get(one, 0)
        left += children.get(one, [])
    return found / os.sysconf("SC_CLK_TCK")


@contextmanager
def audits_going_on(directory: Path) -> Iterator[int]:
    """Audits of a fabric's directory, one after the other, in a process of their own from its first
    result on; its process id."""
    child = subprocess.Popen(
        [sys.executable, __file__, str(directory)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert child.stdin is not None and child.stdout is not None
    try:
        assert child.stdout.readline().startswith("messages"), "the audit failed"
        yield child.pid
    finally:
        child.stdin.close()
        child.stdout.close()
        if child.wait(WRITE_TIMEOUT_S):
            raise AssertionError("an audit beside the fabric failed")


def keep_auditing(directory: str) -> None:
    """Audits until the standard input ends, a line each."""
    from raylay.services.pipeline import session
    from raylay.services.pipeline.audit import audit_source
    from raylay.services.pipeline.journals import places

    ended = threading.Event()
    threading.Thread(target=lambda: (sys.stdin.read(), ended.set()), daemon=True).start()
    spark = session(app="raylay bench")
    try:
        while not ended.is_set():
            found = audit_source(spark, directory, places(path=directory))
            assert found.valid, found.faults()
            try:
                print(f"messages {found.messages}", flush=True)
            except BrokenPipeError:
                os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
    finally:
        spark.stop()


async def pipeline_audit_beside(bench: Bench) -> list[Figure]:
    """What audits that go on beside a sync pair take from it: its publish throughput as a share of
    that without them, their share of the machine's processor time, and the messages for a second of
    processor time of client and pair, again as a share. The last is 1 where the audits take
    nothing but processor time."""
    fabric = bench.pair()
    message = body(BODY_BYTES)

    async def rate(duration_s: float, audit_pid: int = 0, at_least: int = 0) -> _Rate:
        async with bench.client(fabric) as client:
            published = 0
            audit_s, all_s = _processor(audit_pid)
            started_s = time.perf_counter()
            while time.perf_counter() - started_s < duration_s or published < at_least:
                for _ in range(BURST):
                    await client.publish("bench/audited", message)
                published += BURST
            await client.flush()
            took_s = time.perf_counter() - started_s
            audit_now_s, all_now_s = _processor(audit_pid)
            audit_s, all_s = audit_now_s - audit_s, all_now_s - all_s
            machine_s = took_s * len(os.sched_getaffinity(0))
            return _Rate(published / took_s, audit_s / machine_s, published / (all_s - audit_s))

    await rate(0, at_least=BESIDE_MESSAGES)
    before = await rate(BESIDE_S)
    with audits_going_on(fabric.directory) as pid:
        beside = await rate(BESIDE_S, pid)
    behind = await rate(BESIDE_S)
    alone = (before.messages_s + behind.messages_s) / 2
    work = (before.messages_processor_s + behind.messages_processor_s) / 2
    return [
        Figure("pipeline_audit_beside", beside.messages_s / alone, "of that without"),
        Figure("pipeline_audit_beside_processor", beside.audit_share, "of the machine"),
        Figure("pipeline_audit_beside_work", beside.messages_processor_s / work, "of that without"),
    ]


class _Rate(NamedTuple):
    """Messages a second, the audits' share of the machine, messages for a second of processor time
    of everything else that this process started, itself included."""

    messages_s: float
    audit_share: float
    messages_processor_s: float


def _processor(audit_pid: int) -> tuple[float, float]:
    return processor_s(audit_pid) if audit_pid else 0.0, processor_s(os.getpid())


if __name__ == "__main__":
    keep_auditing(sys.argv[1])
