"""Journals for the pipeline's tests: small fabrics on disk, with every kind of segment."""

from __future__ import annotations

import datetime as dt
import json
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import lmdb

from raylay.services.config.instance import InstanceConfig
from raylay.services.configuration.builder import FabricBuilder
from raylay.services.fabric.plan import FabricRecord, InstancePorts
from raylay.services.messages.records import (
    FLAG_NAMES,
    Command,
    Flag,
    Kind,
    RecordBuilder,
    Run,
    iterate_records,
    publisher_id,
)
from raylay.storage.journal_reader import LmdbJournalReader
from raylay.storage.maintenance import SegmentMaintenance
from raylay.storage.state import LmdbStateStore
from support import forked
from support.journal_cases import StepJournal, a_note

START_US = 1_767_225_600_000_000
"""2026-01-01, when the first message of a log is received."""
RUN_US = 1_000_000
"""From one run to the next."""
SEGMENT_BYTES = 12 * 1024
INCARNATION = 0xA1B2C3D4E5F60718
PUBLISHERS = (publisher_id("desk"), publisher_id("airport"))
TRACE = bytes(range(24)) + b"\x01"


def flight(number: int) -> bytes:
    """A body."""
    return json.dumps({"number": number, "carrier": "UA" if number % 3 else "DL"}).encode()


def message_run(
    first_txid: int,
    publisher: int,
    first_sequence: int,
    count: int,
    topic: str = "flights/EWR",
    flags: int = Flag.AWAITED,
    *,
    time_us: int | None = None,
    special: bool = False,
    group: str = "Chicago",
) -> Run:
    """A run; `special` gives its messages keys, correlation ids, expirations, traces, and makes
    every fifth one a delete."""
    builder = RecordBuilder(publisher, topic, "json")
    parts = []
    for number in range(first_sequence, first_sequence + count):
        options: dict[str, Any] = {}
        body = flight(number)
        if special:
            options = {
                "key": b"key-%d" % number if number % 2 else b"",
                "correlation": b"c%d" % number if number % 3 else b"",
                "expiration_s": number % 4,
                "command": Command.PUBLISH if number % 5 else Command.DELETE,
                "trace": TRACE if number % 7 == 0 else b"",
            }
            body += b" " * (number % 11)
        parts.append(builder.build(number, body, START_US + number, **options))
    return Run(
        publisher,
        first_sequence,
        first_sequence + count - 1,
        count,
        b"".join(parts),
        topic.encode(),
        b"json",
        path=(0xA1, 0xB2),
        group=group,
        flags=flags | Flag.CONTIGUOUS | (Flag.TRACED if special else 0),
        first_txid=first_txid,
        receive_time_us=START_US + first_txid * 1000 if time_us is None else time_us,
    )


@dataclass(slots=True)
class Log:
    """One journal on disk, and what was written into it."""

    directory: Path
    """The instance's data directory."""
    last_txid: int

    @property
    def journal(self) -> Path:
        """The journal's directory."""
        return self.directory / "journal"


def write_log(directory: Path, runs: list[Run], segment_bytes: int = SEGMENT_BYTES) -> Log:
    """Writes runs, one commit each, into the journal of a data directory, and closes it."""
    log = Log(directory, 0)
    log.journal.mkdir(parents=True, exist_ok=True)
    journal = StepJournal(log.journal, segment_bytes=segment_bytes)
    try:
        for run in runs:
            journal.stage(run)
            log.last_txid = journal.commit()
    finally:
        journal.close()
    return log


def mixed_runs(count: int = 60, records: int = 20) -> list[Run]:
    """Runs of two publishers on three topics, with notes between them. The topic of the first
    half is `flights/EWR`, then it is `flights/JFK`; `orders` stands in one run."""
    runs: list[Run] = []
    txid, sequences = 1, [1, 1]
    for number in range(count):
        if number % 10 == 9:
            runs.append(a_note(txid))
            runs[-1].receive_time_us = START_US + number * RUN_US
            txid += 1
            continue
        which = 1 if number % 4 == 3 else 0
        topic = "flights/EWR" if number < count // 2 else "flights/JFK"
        flags = Flag.AWAITED if number % 3 else Flag.LATE | Flag.CROSSED
        runs.append(
            message_run(
                txid,
                PUBLISHERS[which],
                sequences[which],
                records,
                "orders" if number == 5 else topic,
                flags,
                time_us=START_US + number * RUN_US,
                special=number % 2 == 0,
                group="London" if number % 5 == 0 else "Chicago",
            )
        )
        txid += records
        sequences[which] += records
    return runs


def mixed_log(directory: Path, *, archive: bool = True) -> Log:
    """A log whose oldest segments are archived, the next compressed, then sealed, then live."""
    log = write_log(directory, mixed_runs())
    closed = SegmentMaintenance(log.journal).closed_segments()
    assert len(closed) >= 5, "the log is divided into too few segments"
    if archive:
        SegmentMaintenance(log.journal, directory / "archive").archive(closed[2][0].first_txid)
    SegmentMaintenance(log.journal).compress(closed[4][0].first_txid)
    return log


def write_fabric(
    directory: Path,
    names: tuple[str, ...] = ("Chicago-1", "Chicago-2"),
    fabric: str = "flights",
    **options: Any,
) -> Path:
    """The record of a fabric whose instances' data lies in folders of their names."""
    builder = FabricBuilder(fabric, **options)
    builder.region("Chicago", list(names))
    settings = builder.settings()
    FabricRecord(
        settings.name,
        str(directory),
        settings.to_json(),
        {name: InstancePorts(20_001 + 2 * at, 20_002 + 2 * at) for at, name in enumerate(names)},
    ).save()
    return directory


def expected_rows(log: Log, instance: str) -> Iterator[dict[str, Any]]:
    """What a read of the whole log must give, made record by record by the journal's reader."""
    with LmdbJournalReader(log.journal) as reader:
        after = 0
        firsts = [segment.first_txid for segment in reader.segments()]
        while runs := reader.read(after):
            for run in runs:
                if run.kind != Kind.RECORDS:
                    continue
                for txid, record in enumerate(iterate_records(run.payload), run.first_txid):
                    yield {
                        "instance": instance,
                        "segment": max(first for first in firsts if first <= txid),
                        "txid": txid,
                        "publisher": record.publisher,
                        "sequence": record.sequence,
                        "bookmark": record.bookmark,
                        "topic": record.topic,
                        "message_type": record.message_type,
                        "command": Command(record.command).name.lower(),
                        "origin_time": record.origin_time_us,
                        "receive_time": run.receive_time_us,
                        "path": [f"{each:016x}" for each in run.path],
                        "group": run.group,
                        **{
                            name: bool(run.flags & flag)
                            for flag, name in FLAG_NAMES.items()
                            if name in ("awaited", "late", "crossed")
                        },
                        "traced": bool(record.trace),
                        "digest": record.digest - ((record.digest >> 63) << 64),
                        "key": record.key or None,
                        "correlation_id": record.correlation or None,
                        "expiration_s": record.expiration_s or None,
                        "trace_id": record.trace[:16].hex() or None,
                        "span_id": record.trace[16:24].hex() or None,
                        "body": record.body,
                    }
            after = runs[-1].last_txid


def plain(row: Any) -> dict[str, Any]:
    """A row of Spark as `expected_rows` writes it."""
    made: dict[str, Any] = row.asDict()
    for name in ("origin_time", "receive_time"):
        # Spark hands out local times without a zone.
        made[name] = round(made[name].astimezone(dt.UTC).timestamp() * 1_000_000)
    made["publisher"] = int(made["publisher"])
    for name in ("key", "correlation_id", "body"):
        made[name] = None if made[name] is None else bytes(made[name])
    return made


def made_by(log: Log, incarnation: int) -> None:
    """Gives a data directory the state of an instance of this incarnation."""
    state = LmdbStateStore(log.directory / "state.lmdb")
    state.put({"incarnation": incarnation.to_bytes(8, "big")})
    state.close()


def journaled(instance: Any, topic: str) -> list[tuple[int, int, bytes]]:
    """(publisher, sequence, body) of a topic's messages, in the order of the log."""
    found = []
    with LmdbJournalReader(instance.directory / "journal") as reader:
        after = 0
        while runs := reader.read(after):
            found += [
                (record.publisher, record.sequence, record.body)
                for run in runs
                for record in iterate_records(run.payload)
                if record.topic == topic
            ]
            after = runs[-1].last_txid
    return found


def change_block(path: Path, txid: int, change: Callable[[bytearray], None]) -> None:
    """Changes a block of a segment on disk."""
    with (
        lmdb.open(str(path), subdir=False, max_dbs=0, map_size=1 << 26) as env,
        env.begin(write=True) as written,
    ):
        block = bytearray(written.get(txid.to_bytes(8, "big")))
        change(block)
        written.put(txid.to_bytes(8, "big"), bytes(block))


class RunningInstance:
    """One instance in a process of its own, and its data directory."""

    def __init__(self, directory: Path, **settings: Any) -> None:
        self.directory = directory
        InstanceConfig(directory.name, "Chicago", **settings).save(directory)
        self.start()

    def start(self) -> None:
        """Starts it; returns once it serves."""
        self.process = forked.Popen(
            [sys.executable, "-m", "raylay.services.server.run_instance", str(self.directory)],
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
        )
        assert self.process.stdout is not None
        self.address: str = json.loads(self.process.stdout.readline())["client_address"]

    def stop(self) -> None:
        """Ends it."""
        self.process.terminate()
        self.process.wait(60)
