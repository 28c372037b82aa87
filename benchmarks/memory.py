"""Anonymous resident memory of processes; mapped journal pages do not count."""

from __future__ import annotations

from pathlib import Path

from context import Bench, Figure, body, publish_all

from raylay.actors.fork_server import TITLE

MESSAGES = 1_000_000


def anonymous_mb(pid: int) -> float:
    """Anonymous resident memory of a process, in units of 1,000,000 bytes. Of a page that several
    processes share since a fork, each has its part."""
    for line in Path(f"/proc/{pid}/smaps_rollup").read_text(encoding="ascii").splitlines():
        if line.startswith("Pss_Anon:"):
            return int(line.split()[1]) * 1024 / 1e6
    raise LookupError(f"/proc/{pid}/smaps_rollup has no Pss_Anon")


def forked_from(pids: list[int]) -> list[int]:
    """The process that workers of Ray are forked from, where one of these is."""
    parents = {
        int(Path(f"/proc/{pid}/stat").read_text("utf-8").rpartition(")")[2].split()[1])
        for pid in pids
    }
    return [
        pid
        for pid in sorted(parents)
        if Path(f"/proc/{pid}/cmdline").read_bytes().startswith(TITLE.encode())
    ]


async def instance_memory_mb(bench: Bench) -> list[Figure]:
    """Of the instance that clients talk to: before any message, and after a million."""
    fabric = bench.fabric("memory", 2)
    name = fabric.servers()[0].instance
    pid = fabric.pid(name)
    idle_mb = anonymous_mb(pid)
    async with bench.client(fabric) as client:
        assert client.instance == name
        await publish_all(client, "bench/memory", body(128), MESSAGES)
        loaded_mb = anonymous_mb(pid)
    bench.stop("memory")
    return [
        Figure("instance_memory_idle_mb", idle_mb, "MB"),
        Figure("instance_memory_1M_mb", loaded_mb, "MB"),
    ]
