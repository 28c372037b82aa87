"""Figures of the machine and the journal alone: what everything else is measured against."""

from __future__ import annotations

import asyncio
import threading
import time
from itertools import count

import lmdb
from context import Bench, Figure, best_of, body

from raylay.services.hosts.latency import quantile
from raylay.services.messages.records import RecordBuilder, Run, publisher_id
from raylay.storage.lmdb_journal import LmdbJournal

RECORDS_A_COMMIT = 1_000
COMMITS = 300
ECHOES = 5_000
SYNC_PAIRS = 400


async def log_append_fsync(bench: Bench) -> list[Figure]:
    """128-byte messages a second into the journal, 1,000 a synced commit."""
    publisher = publisher_id("bench")
    builder = RecordBuilder(publisher, "bench/log", "json")
    message = body(128)
    runs = []
    for number in range(COMMITS):
        first = number * RECORDS_A_COMMIT + 1
        last = first + RECORDS_A_COMMIT - 1
        payload = b"".join(builder.build(n, message, 1) for n in range(first, last + 1))
        runs.append(
            Run(publisher, first, last, RECORDS_A_COMMIT, payload, b"bench/log", b"json",
                first_txid=first, receive_time_us=1)
        )  # fmt: skip

    async def append_all(number: int) -> float:
        committed = threading.Semaphore(0)
        journal = LmdbJournal(bench.directory / f"log-append-{number}")

        def on_committed(_last_txid: int, _commit_ns: int) -> None:
            committed.release()

        def on_failed(_first_txid: int, error: Exception) -> None:
            raise error

        journal.start(on_committed, on_failed)
        started_s = time.perf_counter()
        for run in runs:
            journal.stage(run)
            committed.acquire()
        seconds = time.perf_counter() - started_s
        journal.close()
        return COMMITS * RECORDS_A_COMMIT / seconds

    numbers = count()
    value = await best_of(3, lambda: append_all(next(numbers)))
    return [Figure("log_append_fsync", value, "messages/s")]


async def socket_echo(bench: Bench) -> list[Figure]:
    """Round trips a second of 128 bytes over a loopback socket, one at a time, in one process."""

    async def echo(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while data := await reader.read(65_536):
            writer.write(data)
        writer.close()

    server = await asyncio.start_server(echo, "127.0.0.1", 0)
    reader, writer = await asyncio.open_connection(*server.sockets[0].getsockname()[:2])
    message = b"x" * 128

    async def run() -> float:
        started_s = time.perf_counter()
        for _ in range(ECHOES):
            writer.write(message)
            await reader.readexactly(len(message))
        return ECHOES / (time.perf_counter() - started_s)

    value = await best_of(3, run)
    writer.close()
    server.close()
    return [Figure("socket_echo", value, "round trips/s")]


async def two_fsyncs_ms(bench: Bench) -> list[Figure]:
    """Two LMDB commits of one 128-byte record, one after the other."""
    place = bench.directory / "two-fsyncs"
    place.mkdir()
    environments = [
        lmdb.open(str(place / name), map_size=1 << 26, subdir=False) for name in ("a", "b")
    ]
    took_ms = []
    for number in range(SYNC_PAIRS):
        started_s = time.perf_counter()
        for environment in environments:
            with environment.begin(write=True) as transaction:
                transaction.put(number.to_bytes(8, "big"), b"x" * 128)
        took_ms.append((time.perf_counter() - started_s) * 1000)
    for environment in environments:
        environment.close()
    return [Figure("two_fsyncs_ms", quantile(took_ms, 0.5), "ms")]
