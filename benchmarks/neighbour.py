"""Measures how much a hostile client with one topic's permission delays a victim's acks.

An instance without Ray that asks passwords and permissions, the victim in this process, the
attacker in a third (neighbour_attacker.py), which runs the scripts of support/attacker.py one after
the other. The attacker says one thing at a time and waits for its answer, so that what is measured
is how the instance divides its time, and not who takes more of two processors; instance and victim
have real-time scheduling where that is allowed. Slices of a second with the attacker and without it
come in turn: compared are the medians of the slices' p99, which one stall of the machine does not
reach.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from argon2 import PasswordHasher
from context import Bench, Figure, body
from publishers import Process
from slow_beside import give_precedence

from raylay.services.client import Client
from raylay.services.hosts.latency import quantile

sys.path.append(str(Path(__file__).parents[1] / "tests"))

from support.attacker import PASSWORD, SCRIPTS, VICTIM, VICTIMS_TOPIC, guarded

SLICE_S = 1.0
SLICES = 8
"""The slices without the attacker, and as many with it, for each script."""
RATE = 250
"""Messages a second of the victim, one at a time."""
NAMES = tuple(
    f"neighbour_{script}_{what}"
    for script in SCRIPTS
    for what in ("alone_ms_p99", "ms_p99", "p99", "turn_processor_ms", "said")
)


class Attacker:
    """The attacker's process."""

    def __init__(self, address: str) -> None:
        program = Path(__file__).with_name("neighbour_attacker.py")
        self._process = subprocess.Popen(
            [sys.executable, str(program), address],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    async def tell(self, line: str) -> str:
        """Tells it something; its answer."""
        process = self._process
        assert process.stdin is not None and process.stdout is not None
        process.stdin.write(f"{line}\n")
        process.stdin.flush()
        answer = await asyncio.to_thread(process.stdout.readline)
        if not answer:
            raise RuntimeError(f"the attacker ended at {line!r}")
        return answer.strip()

    def stop(self) -> None:
        """Ends it."""
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait()


@dataclass
class Beside:
    """The measurements beside one script, an entry for each slice."""

    alone_ms: list[float] = field(default_factory=list)
    beside_ms: list[float] = field(default_factory=list)
    turn_ms: float = 0.0
    said: int = 0


async def _slice(client: Client) -> float:
    """The p99 of one."""
    message, took_ms = body(128), []
    due_s = time.perf_counter()
    ends_s = due_s + SLICE_S
    while (now_s := time.perf_counter()) < ends_s:
        if due_s > now_s:
            await asyncio.sleep(due_s - now_s)
        started_s = time.perf_counter()
        await client.publish(VICTIMS_TOPIC, message)
        await client.flush()
        took_ms.append((time.perf_counter() - started_s) * 1000)
        # Who waits for an ack says nothing meanwhile: what was due then is not made up for.
        due_s = max(due_s + 1 / RATE, time.perf_counter())
    return quantile(took_ms, 0.99)


async def _measure(script: str, instance: Process, attacker: Attacker, client: Client) -> Beside:
    found = Beside()
    assert await attacker.tell(script) == script
    await _slice(client)
    for number in range(2 * SLICES):
        if number % 4 in (0, 3):  # none of the two always comes behind the other
            found.alone_ms.append(await _slice(client))
            continue
        await _ask(instance)
        await attacker.tell("on")
        found.beside_ms.append(await _slice(client))
        found.said += int(await attacker.tell("off"))
        found.turn_ms = max(found.turn_ms, (await _ask(instance))["turn_processor_ms"])
    return found


async def _ask(instance: Process) -> dict[str, Any]:
    return await asyncio.to_thread(instance.ask)


@contextlib.contextmanager
def _precedence(pid: int) -> Iterator[None]:
    before = os.sched_getscheduler(0), os.sched_getparam(0)
    give_precedence(pid)
    give_precedence(os.getpid())
    try:
        yield
    finally:
        with contextlib.suppress(PermissionError):
            os.sched_setscheduler(0, *before)


async def neighbour(bench: Bench, scripts: tuple[str, ...] = tuple(SCRIPTS)) -> list[Figure]:
    """The victim's p99 beside each script against that without it, and the longest turn."""
    figures: list[Figure] = []
    memory = Path("/dev/shm")
    place = memory if os.access(memory, os.W_OK) else bench.directory
    with tempfile.TemporaryDirectory(dir=place) as directory:
        instance = Process(Path(directory) / "solo", guarded(Path(directory), PasswordHasher()))
        address = instance.ask()["status"]["client_address"]
        attacker = Attacker(address)
        try:
            with _precedence(instance.pid):
                client = Client(VICTIM, servers=[address], user_id=VICTIM, password=PASSWORD)
                async with client:
                    for script in scripts:
                        found = await _measure(script, instance, attacker, client)
                        figures += _figures(script, found)
        finally:
            attacker.stop()
            instance.stop()
    return figures


def _figures(script: str, found: Beside) -> list[Figure]:
    alone, beside = (quantile(each, 0.5) for each in (found.alone_ms, found.beside_ms))
    values = (
        (alone, "ms"),
        (beside, "ms"),
        (beside / alone, "ratio"),
        (found.turn_ms, "ms"),
        (found.said / (SLICES * SLICE_S), "a second"),
    )
    names = [name for name in NAMES if name.startswith(f"neighbour_{script}_")]
    return [Figure(name, *value) for name, value in zip(names, values, strict=True)]
