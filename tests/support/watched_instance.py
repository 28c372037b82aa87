"""`run_instance` with eyes on its event loop, as the tests of this folder run it.

Whatever looks into the journal while an event loop runs in its thread is told on stderr, with its
stack: READ_ON_THE_LOOP. SIGUSR1 has the longest turn of the loop since the last such signal told,
and the most memory of its own that the process has had since then: a line of JSON.

SIGUSR2 makes a look into the journal on the loop, so that a test sees that it is told.

Where `hold` in the data directory is a pipe, the reading thread stops there until somebody has
written to it. RAYLAY_TEST_READ_MS makes each look-up that reads the log take as long, as on a disk
that is busy. RAYLAY_TEST_RECENT=none has nothing compared with what was committed a moment ago and
is in memory still. RAYLAY_TEST_READS=on-the-loop brings back what was before there was that thread.
RAYLAY_TEST_LOGON_S is how long a client may take to log on, RAYLAY_TEST_BEAT_S when the links of
others that are up hear a beat, RAYLAY_TEST_HUNG_S when a child that says nothing is ended.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
import time
import traceback
from collections.abc import Callable
from functools import wraps
from pathlib import Path
from typing import Any

from raylay.services.replication.run_lookup import RunLookup
from raylay.services.server import run_instance
from raylay.services.server.children import liveness
from raylay.services.server.clients import connection
from raylay.services.server.data import recovery
from raylay.services.server.data.journal_reads import JournalReads
from raylay.services.server.instance_server import InstanceServer
from raylay.services.server.links import upstream_connection
from raylay.storage.front import Front
from raylay.storage.journal_reader import LmdbJournalReader
from raylay.storage.lmdb_journal import LmdbJournal
from raylay.storage.segments import CompressedSegment, EnvironmentSegment

READ_ON_THE_LOOP = "journal read on the event loop"
HELD = "the reading thread is held"
PROBE_S = 0.001

read_s = float(os.environ.get("RAYLAY_TEST_READ_MS", "0")) / 1e3
on_the_loop = os.environ.get("RAYLAY_TEST_READS") == "on-the-loop"


def watched(call: Callable[..., Any]) -> Callable[..., Any]:
    @wraps(call)
    def watching(*arguments: Any, **named: Any) -> Any:
        if asyncio._get_running_loop() is not None and not on_the_loop:
            stack = "".join(traceback.format_stack(limit=8))
            print(f"{READ_ON_THE_LOOP}: {call.__qualname__}\n{stack}", file=sys.stderr, flush=True)
        return call(*arguments, **named)

    return watching


def watch() -> None:
    for kind in (EnvironmentSegment, CompressedSegment):
        for name in ("blocks", "entries", "last_txid"):
            setattr(kind, name, watched(getattr(kind, name)))
    LmdbJournalReader._list = watched(LmdbJournalReader._list)  # type: ignore[method-assign]


def hold(directory: Path) -> None:
    pipe = directory / "hold"
    part = RunLookup.part

    def held(lookup: RunLookup, *arguments: Any) -> Any:
        if pipe.exists():
            print(HELD, file=sys.stderr, flush=True)
            pipe.read_bytes()
            pipe.unlink()
        return part(lookup, *arguments)

    RunLookup.part = held  # type: ignore[method-assign]


def hang(directory: Path) -> None:
    """Where `hang` in the data directory is a pipe, the next write of the journal waits for it."""
    pipe = directory / "hang"

    def waiting(write: Callable[..., Any]) -> Callable[..., Any]:
        def wait(*given: Any) -> Any:
            if pipe.exists():
                pipe.read_bytes()
                pipe.unlink()
            return write(*given)

        return wait

    Front.append = waiting(Front.append)  # type: ignore[method-assign]
    LmdbJournal._put = waiting(LmdbJournal._put)  # type: ignore[method-assign]


def own_memory_mb() -> float:
    """Without what of files is mapped, as the journal is."""
    with open("/proc/self/status") as lines:
        found = next(line for line in lines if line.startswith("RssAnon"))
    return round(int(found.split()[1]) / 1024, 1)


def slow_down() -> None:
    stretch_at = RunLookup._stretch_at

    def slowly(lookup: RunLookup, *arguments: Any) -> Any:
        time.sleep(read_s)
        return stretch_at(lookup, *arguments)

    RunLookup._stretch_at = slowly  # type: ignore[method-assign]


class Stalls:
    """The longest turn of the loop, as something notes that is due every millisecond."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._longest_s = 0.0
        self._memory_mb = 0.0
        self._looks = 0
        self._due()
        loop.add_signal_handler(signal.SIGUSR1, self._tell)

    def _due(self) -> None:
        self._called_s = time.perf_counter()
        self._loop.call_later(PROBE_S, self._look)

    def _look(self) -> None:
        self._longest_s = max(self._longest_s, time.perf_counter() - self._called_s - PROBE_S)
        self._looks += 1
        if self._looks % 10 == 0:
            self._memory_mb = max(self._memory_mb, own_memory_mb())
        self._due()

    def _tell(self) -> None:
        told = {
            "longest_ms": round(self._longest_s * 1e3, 1),
            "memory_mb": max(self._memory_mb, own_memory_mb()),
        }
        print(json.dumps(told), file=sys.stderr, flush=True)
        self._longest_s = self._memory_mb = 0.0


async def run_on_the_loop(self: JournalReads, work: Any, *arguments: Any, of: Any = None) -> Any:
    return work(*arguments)


class WatchedServer(InstanceServer):
    async def start(self) -> None:
        await super().start()
        loop = asyncio.get_running_loop()
        self.stalls = Stalls(loop)
        loop.add_signal_handler(signal.SIGUSR2, lambda: self.parts.instance.journal.read(0))


if __name__ == "__main__":
    watch()
    hold(Path(sys.argv[1]))
    hang(Path(sys.argv[1]))
    slow_down()
    if on_the_loop:
        JournalReads.run = run_on_the_loop  # type: ignore[method-assign]
    if os.environ.get("RAYLAY_TEST_RECENT") == "none":
        recovery.RECENT_BYTES_MAX = 0
    if logon_s := os.environ.get("RAYLAY_TEST_LOGON_S"):
        connection.LOGON_TIMEOUT_S = float(logon_s)
    if beat_s := os.environ.get("RAYLAY_TEST_BEAT_S"):
        upstream_connection.BEAT_S = float(beat_s)
    if hung_s := os.environ.get("RAYLAY_TEST_HUNG_S"):
        liveness.ASK_S, liveness.HUNG_S = float(hung_s) / 4, float(hung_s)
    run_instance.InstanceServer = WatchedServer  # type: ignore[attr-defined]
    sys.exit(run_instance.main())
