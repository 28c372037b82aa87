"""What checks at connect and compression cost a publisher: two sync pairs measured in turn."""

from __future__ import annotations

import os
import time
from pathlib import Path

from context import Bench, Figure, body, publish_all

from raylay.services.client import Client
from raylay.services.hosts.latency import quantile

ROUNDS = 5
THROUGHPUT_MESSAGES = 200_000
WINDOW_1_MESSAGES = 400
WARM_UP = 20_000


async def _window_1_ms(client: Client, message: bytes) -> list[float]:
    took_ms = []
    for _ in range(WINDOW_1_MESSAGES):
        started_s = time.perf_counter()
        await client.publish("bench/checks", message)
        await client.flush()
        took_ms.append((time.perf_counter() - started_s) * 1000)
    return took_ms


def _processor_s(pid: int) -> float:
    """Processor time that a process has used, in seconds."""
    fields = Path(f"/proc/{pid}/stat").read_text(encoding="ascii").rpartition(")")[2].split()
    # utime and stime are the 14th and 15th field; two are before the bracket.
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


async def publish_checks(bench: Bench) -> list[Figure]:
    """All checks and zstd on the links, against neither of them: throughput (best of five rounds
    each), window-1 latency (median of all rounds), and processor time of the instance that takes
    the publishes (all throughput rounds). The pairs take turns, so that both meet the same machine.
    1: they cost nothing."""
    message = body(128)
    best = {False: 0.0, True: 0.0}
    used_s = {False: 0.0, True: 0.0}
    took_ms: dict[bool, list[float]] = {False: [], True: []}
    async with (
        bench.client(bench.checked_pair(checked=False)) as plain,
        bench.client(bench.checked_pair(checked=True)) as checked,
    ):
        clients = {False: plain, True: checked}
        pids = {
            which: bench.checked_pair(checked=which).pid(client.instance)
            for which, client in clients.items()
        }
        for client in clients.values():
            await publish_all(client, "bench/checks", message, WARM_UP)
        for number in range(ROUNDS):
            # Who goes first changes, so that neither always follows the other's writes.
            for which in (False, True) if number % 2 else (True, False):
                took_ms[which] += await _window_1_ms(clients[which], message)
        for number in range(ROUNDS):
            for which in (False, True) if number % 2 else (True, False):
                before_s = _processor_s(pids[which])
                seconds = await publish_all(
                    clients[which], "bench/checks", message, THROUGHPUT_MESSAGES
                )
                used_s[which] += _processor_s(pids[which]) - before_s
                best[which] = max(best[which], THROUGHPUT_MESSAGES / seconds)
    bench.stop("checked")
    medians_ms = {which: quantile(values, 0.5) for which, values in took_ms.items()}
    return [
        Figure("publish_checks_throughput", best[True] / best[False], "ratio"),
        Figure("publish_checks_window1", medians_ms[True] / medians_ms[False], "ratio"),
        Figure("publish_checks_processor", used_s[True] / used_s[False], "ratio"),
    ]
