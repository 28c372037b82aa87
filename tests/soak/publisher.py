"""A publisher as a process of its own, to be killed with SIGKILL: it owns an LMDB publish store.

    python publisher.py '{"name": …, "servers": [[address, instance, group], …], "group": …,
                          "store": path, "topic": …, "rate_per_s": 500, "life": 0}'

It publishes until its standard input has a line or ends, then flushes. Without a `store` it keeps
one in memory. A `life` above 0 stands in every body. With `record` it also tells what it is told
(services/drills/history_builder.py), in lines `{"said": […]}`. It tells what is so, one JSON line a
time:

    {"first": …, "published": …, "persisted": …, "settled": false, "instance": …}

`first` is the lowest sequence of this life, or of what an earlier life left in the store.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
import time
from typing import Any

from raylay.services.client import Client, Server
from raylay.storage.stores import LmdbPublishStore, MemoryPublishStore

TELL_S = 0.1
TURN_S = 0.02
FLUSH_S_MAX = 90.0


def body_of(publisher: int, sequence: int, life: int = 0) -> bytes:
    """What a publisher says under a sequence: any place can check it."""
    if life:
        return b'{"p": %d, "n": %d, "life": %d}' % (publisher, sequence, life)
    return b'{"p": %d, "n": %d}' % (publisher, sequence)


async def run(options: dict[str, Any]) -> None:
    """See the top of this file."""
    path, life = options.get("store", ""), int(options.get("life", 0))
    store = LmdbPublishStore(path) if path else MemoryPublishStore()
    kept = store.lowest

    def write(told: dict[str, Any]) -> None:
        # One write a line: a killed process leaves a whole line or none.
        os.write(sys.stdout.fileno(), json.dumps(told).encode() + b"\n")

    recorder = None
    if options.get("record"):
        from raylay.services.drills.history_builder import ClientRecorder

        recorder = ClientRecorder(lambda said: write({"said": [said]}))
    client = Client(
        options["name"],
        [Server(*server) for server in options["servers"]],
        group=options["group"],
        publish_store=store,
        heartbeat_s=1.5,
        connect_wait_s=FLUSH_S_MAX,
        publish_timeout_s=FLUSH_S_MAX,
        on_event=recorder.event if recorder else None,
        on_persisted=recorder.persisted if recorder else None,
    )
    if recorder is not None:
        recorder.machine = client.machine
    told_s = 0.0

    def tell(settled: bool = False) -> None:
        line = {
            "first": kept or first,
            "published": client.last_sequence,
            "persisted": client.persisted_sequence,
            "settled": settled,
            "instance": client.instance,
        }
        write(line)

    loop = asyncio.get_running_loop()
    asked_to_end = loop.run_in_executor(None, sys.stdin.readline)
    async with client:
        first = client.last_sequence + 1
        a_turn = max(1, int(options["rate_per_s"] * TURN_S))
        while not asked_to_end.done():
            for _ in range(a_turn):
                sequence = client.machine.outbox.next_sequence
                await client.publish(options["topic"], body_of(client.publisher, sequence, life))
            if time.monotonic() - told_s >= TELL_S:
                told_s = time.monotonic()
                tell()
            await asyncio.sleep(TURN_S)
        await client.flush(FLUSH_S_MAX)
        tell(True)
    store.close()


if __name__ == "__main__":
    asyncio.run(run(json.loads(sys.argv[1])))
