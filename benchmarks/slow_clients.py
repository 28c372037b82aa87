"""How fast the disk takes what slow clients do not, and gives it back."""

from __future__ import annotations

import asyncio
import tempfile
import time

from context import Bench, Figure

from raylay.storage.offline import LmdbOfflineStore

OFFLINE = ("offline_write", "offline_drain")
MIB = 1024 * 1024
STORED_BYTES = 256 * MIB


async def offline_store(bench: Bench) -> list[Figure]:
    """Frames of 1 kB in batches of 1 MB, for one client; then all of it in parts of 1 MiB."""
    return await asyncio.to_thread(_store, bench)


def _store(bench: Bench) -> list[Figure]:
    with tempfile.TemporaryDirectory(dir=bench.directory) as directory:
        store = LmdbOfflineStore(f"{directory}/pool.lmdb", STORED_BYTES)
        batch = [(1, bytes(1000)) for _ in range(1000)]
        began_s = time.perf_counter()
        while store.held_bytes < STORED_BYTES - MIB:
            store.put(batch)
        held, wrote_s = store.held_bytes, time.perf_counter()
        while store.take(1, MIB):
            pass
        drained_s = time.perf_counter()
        store.close()
    return [
        Figure("offline_write", held / 1e6 / (wrote_s - began_s), "MB/s"),
        Figure("offline_drain", held / 1e6 / (drained_s - wrote_s), "MB/s"),
    ]
