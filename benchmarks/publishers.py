"""What many publishers cost: one message each, of 1,000, 10,000 and 100,000 of them.

A sync pair without Ray. All that can be long with many publishers happens while one client goes on
publishing: the link connects to an instance that has nothing, to one that has the same, to one that
has less; what a restart needs is written down every few seconds; a new segment is opened.
"""

from __future__ import annotations

import asyncio
import json
import pickle
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

from context import Bench, Figure, body
from memory import anonymous_mb

from raylay.services.client import Client
from raylay.services.config.instance import DestinationConfig, InstanceConfig
from raylay.services.config.journal import JournalConfig
from raylay.services.config.transport import TransportConfig
from raylay.services.messages.records import Flag, RecordBuilder, publisher_id, run_of, scan
from raylay.services.messages.topics import TopicRule
from raylay.services.protocol.link.replication import LinkAccepted, exchange_frames
from raylay.services.replication.acknowledgment import RootedRanges
from raylay.services.server.data.data_files import JOURNAL_DIRECTORY
from raylay.storage.lmdb_journal import LmdbJournal

COUNTS = (1_000, 10_000, 100_000)
SEGMENT_BYTES = 16 * 1024 * 1024
RUNS_IN_STAGE = 2_000
HINTS_S = 8.0
"""Two or three recovery points are written in it."""
WAIT_S = 180.0
PAUSE_S = 0.005
POLL_S = 0.2
"""A status counts all that waits: asked for too often, it would be what is measured."""
LARGE_BYTES = 512 * 1024
PREFIXES = {count: f"publishers_{count // 1000}k" for count in COUNTS}
NAMES = tuple(
    f"{prefix}_{name}"
    for prefix in PREFIXES.values()
    for name in (
        "start_s",
        "connect_s",
        "logon_bytes",
        "logon_frame_bytes",
        "turn_ms",
        "turn_processor_ms",
        "connect_turn_ms",
        "connect_turn_processor_ms",
        "segment_ack_ms",
        "memory_bytes",
    )
)


class Process:
    """An instance in a process of its own."""

    def __init__(self, directory: Path, config: InstanceConfig) -> None:
        directory.mkdir(parents=True, exist_ok=True)
        configuration = directory.with_suffix(".config")
        configuration.write_bytes(pickle.dumps(config))
        program = Path(__file__).with_name("publishers_instance.py")
        self._process = subprocess.Popen(
            [sys.executable, str(program), str(directory), str(configuration)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        self.pid = self._process.pid

    def ask(self) -> dict[str, Any]:
        """What it says, once it serves."""
        assert self._process.stdin is not None and self._process.stdout is not None
        self._process.stdin.write("\n")
        self._process.stdin.flush()
        found: dict[str, Any] = json.loads(self._process.stdout.readline())
        return found

    def stop(self) -> None:
        """Ends it in order; once more does nothing."""
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait(WAIT_S)


def fill(directory: Path, publishers: int) -> int:
    """A journal of one message of each publisher, published here. Returns the last id."""
    journal = LmdbJournal(directory / JOURNAL_DIRECTORY, segment_bytes=SEGMENT_BYTES)
    done = threading.Event()
    last_txid = publishers

    def committed(txid: int, _: int) -> None:
        if txid >= last_txid:
            done.set()

    journal.start(committed, lambda *_: None)
    for number in range(publishers):
        record = RecordBuilder(publisher_id(f"p{number}"), "bench/many", "json").build(
            1, b"{}", time.time_ns() // 1000
        )
        run = run_of(scan(record)[0], record)
        run.first_txid = number + 1
        run.receive_time_us = time.time_ns() // 1000
        run.flags |= Flag.AWAITED
        journal.stage(run)
        if number % RUNS_IN_STAGE == 0:
            time.sleep(0.01)
    assert done.wait(WAIT_S)
    journal.close()
    return last_txid


async def until(found: Callable[[], Any]) -> Any:
    """Waits for something."""
    deadline_s = time.monotonic() + WAIT_S
    while not (answer := found()):
        assert time.monotonic() < deadline_s, "it takes too long"
        await asyncio.sleep(POLL_S)
    return answer


async def publish_on(client: Client, stop: asyncio.Event) -> None:
    """One message after the other, each with its ack."""
    while not stop.is_set():
        await client.publish("bench/many", body(128))
        await asyncio.sleep(PAUSE_S)


class Pair:
    """A and B of which each is one process; A replicates to B, sync."""

    def __init__(self, directory: Path, count: int) -> None:
        self.directory = directory
        self.last_txid = fill(directory / "A", count)
        self.b = Process(directory / "B", config("B"))
        address = self.b.ask()["status"]["replication_address"]
        self.idle_mb = anonymous_mb(self.b.pid)
        to_b = DestinationConfig(
            "B",
            "g",
            True,
            (address,),
            (TopicRule(".*", exclude_validation=("replicate",)),),
            server_names=("B",),
            retry_ms_max=100,
        )
        self.config_a = replace(config("A"), destinations=(to_b,))
        self.config_b = replace(
            config("B"),
            replication_transports=(
                TransportConfig("replication", int(address.rpartition(":")[2])),
            ),
        )
        self.a = Process(directory / "A", self.config_a)

    async def caught_up(self) -> dict[str, float]:
        """The longest turns of A until B has all that A has."""
        turns: list[dict[str, Any]] = []

        def is_caught_up() -> bool:
            turns.append(self.a.ask())
            to_b = turns[-1]["status"]["destinations"]["B"]
            return bool(to_b["caught_up"] and to_b["stored_txid"] >= self.last_txid)

        await until(is_caught_up)
        return longest(turns)

    async def restart_a(self) -> float:
        """Seconds until it serves again."""
        self.a.stop()
        self.a = Process(self.directory / "A", self.config_a)
        found: float = self.a.ask()["start_s"]
        await self.caught_up()
        return found

    async def restart_b(self) -> tuple[float, dict[str, float]]:
        """Seconds from when it serves until it has caught up, and the longest turns of both."""
        self.b.stop()
        self.a.ask()
        self.b = Process(self.directory / "B", self.config_b)
        self.b.ask()
        began_s = time.perf_counter()
        turns = [await self.caught_up()]
        connect_s = time.perf_counter() - began_s
        await asyncio.sleep(1.0)
        return connect_s, longest([*turns, self.a.ask(), self.b.ask()])

    def stop(self) -> None:
        """Ends both."""
        self.a.stop()
        self.b.stop()


def config(name: str) -> InstanceConfig:
    """Of one of the pair."""
    return InstanceConfig(name, "g", first=True, journal=JournalConfig(segment_bytes=SEGMENT_BYTES))


def longest(turns: list[dict[str, Any]]) -> dict[str, float]:
    """Of all these."""
    return {name: max(each[name] for each in turns) for name in ("turn_ms", "turn_processor_ms")}


async def measured(directory: Path, count: int) -> dict[str, float]:
    """The figures for so many publishers."""
    pair = Pair(directory, count)
    try:
        # The first start reads the journal; the second one finds what was written down.
        await pair.caught_up()
        start_s = await pair.restart_a()
        address = pair.a.ask()["status"]["client_address"]
        stop = asyncio.Event()
        async with Client("bench", servers=[address]) as client:
            publishing = asyncio.create_task(publish_on(client, stop))
            pair.b.ask()
            await asyncio.sleep(HINTS_S)
            steady = longest([pair.a.ask(), pair.b.ask()])
            connect_s, connecting = await pair.restart_b()
            loaded_mb = anonymous_mb(pair.b.pid)
            stop.set()
            await publishing
            await client.flush()
            segment_ack_ms = await ack_across_segments(client)
    finally:
        pair.stop()
    frames = logon_frames(directory / "A")
    return {
        "start_s": start_s,
        "connect_s": connect_s,
        "logon_bytes": float(sum(frames)),
        "logon_frame_bytes": float(max(frames)),
        "turn_ms": steady["turn_ms"],
        "turn_processor_ms": steady["turn_processor_ms"],
        "connect_turn_ms": connecting["turn_ms"],
        "connect_turn_processor_ms": connecting["turn_processor_ms"],
        "segment_ack_ms": segment_ack_ms,
        "memory_bytes": (loaded_mb - pair.idle_mb) * 1e6 / count,
    }


async def ack_across_segments(client: Client) -> float:
    """The longest time to an ack while segments are filled and new ones opened."""
    longest_s = 0.0
    for _ in range(2 * SEGMENT_BYTES // LARGE_BYTES):
        began_s = time.perf_counter()
        await client.publish("bench/large", body(LARGE_BYTES))
        await client.flush()
        longest_s = max(longest_s, time.perf_counter() - began_s)
    return longest_s * 1000


def logon_frames(directory: Path) -> list[int]:
    """Bytes of the frames that tell a link what is held."""
    journal = LmdbJournal(directory / JOURNAL_DIRECTORY, segment_bytes=SEGMENT_BYTES)
    held = journal.recovered.held
    journal.close()
    return [
        len(f) for f in exchange_frames(LinkAccepted("A", "g", 1, "", False), held, RootedRanges())
    ]


async def many_publishers(bench: Bench) -> list[Figure]:
    """What each of so many publishers costs."""
    units = {"s": "s", "bytes": "bytes", "ms": "ms"}
    figures = []
    for count in COUNTS:
        found = await measured(bench.directory / PREFIXES[count], count)
        figures += [
            Figure(f"{PREFIXES[count]}_{name}", value, units[name.rpartition("_")[2]])
            for name, value in found.items()
        ]
    return figures
