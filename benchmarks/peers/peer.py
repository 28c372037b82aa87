"""What the loads ask of a broker, and what brokers share: processes, ports, processor time."""

from __future__ import annotations

import asyncio
import ctypes
import os
import signal
import socket
import subprocess
import time
from abc import ABC, abstractmethod
from collections.abc import Callable
from pathlib import Path

WINDOW = 1_000
KEY = slice(7, 15)
"""The key of a record in its body, as `loads.record` makes it."""
START_S_MAX = 60.0
STOP_S_MAX = 10.0
POLL_S = 0.05
_DIE_WITH_PARENT = 1
_PROCESS_CLOCK = 2
_LIBC = ctypes.CDLL(None)

Bodies = Callable[[list[bytes]], None]


class Publisher(ABC):
    """One connection that publishes to one topic; `told` is called with how many more messages are
    acknowledged, oldest first."""

    def __init__(self) -> None:
        self.sent = self.acked = self.highest_acked = 0
        self.told: Callable[[int], None] | None = None
        self._room = asyncio.Event()

    @property
    def waiting(self) -> int:
        """Messages without an acknowledgment."""
        return self.sent - self.acked

    def count_acked(self, messages: int, number: int = 0) -> None:
        """For the broker's own part: the oldest so many are acknowledged, or the one of this
        number, where a broker answers in another order; the first one's is 1."""
        self.acked += messages
        self.highest_acked = max(self.highest_acked, number or self.acked)
        self._room.set()
        if self.told is not None:
            self.told(messages)

    async def until_waiting(self, messages: int) -> None:
        """Waits until no more than so many are without an acknowledgment."""
        while self.waiting > messages:
            self._room.clear()
            await self._room.wait()

    async def one(self, body: bytes) -> None:
        """Publishes one and waits for its acknowledgment."""
        await self.publish(body)
        await self.until_waiting(0)

    @abstractmethod
    async def publish(self, body: bytes) -> None:
        """Hands one message over."""

    @abstractmethod
    async def close(self) -> None:
        """Ends the connection."""


class Reader(ABC):
    """One connection that asks for records by their keys."""

    @abstractmethod
    async def get(self, key: str) -> bytes:
        """Returns the latest body of a key."""

    @abstractmethod
    async def close(self) -> None:
        """Ends the connection."""


class QueueConsumer(ABC):
    """One connection that takes messages of a queue, and acknowledges each."""

    @abstractmethod
    async def settle(self) -> None:
        """Waits until the server has its acknowledgments, where a broker answers them."""

    @abstractmethod
    async def close(self) -> None:
        """Ends the connection."""


class Peer(ABC):
    """A broker with the copies that it acknowledges on different disks, started by the benchmark.

    Attributes:
        name: as it is asked for.
        copies: what an acknowledged message is on.
        lacks: loads for which the broker has nothing.
    """

    name: str
    copies: str
    lacks: frozenset[str] = frozenset()

    @staticmethod
    @abstractmethod
    def missing() -> str:
        """Why it cannot run here and what installs it; empty: it can."""

    @abstractmethod
    async def start(self, directory: Path) -> None:
        """Starts the servers, with their data below the directory."""

    @abstractmethod
    async def stop(self) -> None:
        """Ends every process that `start` made."""

    @abstractmethod
    def pids(self) -> list[int]:
        """The processes of the servers."""

    @abstractmethod
    async def make_topic(self, topic: str, *, readable_again: bool = False) -> None:
        """Prepares a topic; `readable_again`: several read it, or from its beginning."""

    @abstractmethod
    async def drop_topic(self, topic: str) -> None:
        """Frees what a topic holds, where that can be done."""

    @abstractmethod
    async def held(self, topic: str) -> list[int]:
        """Messages of a topic that each server holds."""

    @abstractmethod
    async def publisher(self, topic: str) -> Publisher:
        """A new connection that publishes."""

    @abstractmethod
    async def subscribe(self, topic: str, bodies: Bodies) -> Callable[[], object]:
        """A new connection that is sent what is published from now on. Returns what ends it."""

    @abstractmethod
    async def replay(self, topic: str, count: int) -> int:
        """Reads a topic from its beginning, every body. Returns how many bytes they had."""

    @abstractmethod
    async def fail(self, topic: str) -> Callable[[], object]:
        """Finds the server that publishers of this topic talk to. Returns what ends it by SIGKILL.
        A publisher goes on by itself; `mend` is called behind it."""

    @abstractmethod
    async def mend(self) -> None:
        """Brings the killed server back and waits until it has everything."""

    # -- failover without evidence -----------------------------------------------------------
    async def leave_to_age(self) -> None:
        """Makes failovers wait for the silence of a killed server, as nothing else tells of it."""
        raise NotImplementedError

    # -- the latest record of each key -------------------------------------------------------
    async def make_state(self, topic: str) -> None:
        """Prepares a topic of which each server holds the latest record of each key."""
        raise NotImplementedError

    async def drop_state(self, topic: str) -> None:
        """Frees what such a topic holds, where that can be done."""
        raise NotImplementedError

    async def keys_held(self, topic: str) -> list[int]:
        """Keys of which each server holds a record."""
        raise NotImplementedError

    async def state_publisher(self, topic: str, *, watched: bool) -> Publisher:
        """A new connection that publishes records; `watched`: somebody is sent them."""
        raise NotImplementedError

    async def reader(self, topic: str) -> Reader:
        """A new connection that asks for records."""
        raise NotImplementedError

    async def watch(self, topic: str, bodies: Bodies) -> Callable[[], object]:
        """A new connection that is sent all changes from now on. Returns what ends it."""
        raise NotImplementedError

    # -- queues ------------------------------------------------------------------------------
    async def make_queue(self, topic: str) -> str:
        """Prepares a queue. Returns the topic to publish to."""
        raise NotImplementedError

    async def drop_queue(self, topic: str) -> None:
        """Removes a queue, where that can be done."""
        await self.drop_topic(topic)

    async def consumer(
        self, topic: str, backlog: int, took: Callable[[int], None]
    ) -> QueueConsumer:
        """A new connection that takes messages, at most so many without an acknowledgment, and
        calls `took` with how many it has taken."""
        raise NotImplementedError

    async def left(self, topic: str) -> int:
        """Messages of a queue that are not acknowledged, when nobody takes any more."""
        raise NotImplementedError


class Server:
    """A server process that ends with this one."""

    def __init__(self, command: list[str], log: Path, environment: dict[str, str] | None = None):
        log.parent.mkdir(parents=True, exist_ok=True)
        self.command, self.log, self.environment = command, log, environment
        with log.open("ab") as output:
            self.process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                env={**os.environ, **(environment or {})},
                start_new_session=True,
                preexec_fn=_end_with_parent,
            )

    @property
    def pid(self) -> int:
        """Of the process."""
        return self.process.pid

    def kill(self) -> None:
        """SIGKILL, to what it started as well."""
        if self.process.poll() is None:
            os.killpg(self.pid, signal.SIGKILL)
            self.process.wait()

    def again(self) -> Server:
        """The same, started once more."""
        return Server(self.command, self.log, self.environment)

    def stop(self) -> None:
        """SIGTERM, and SIGKILL where that is not enough."""
        if self.process.poll() is None:
            self.process.terminate()
            try:
                self.process.wait(STOP_S_MAX)
            except subprocess.TimeoutExpired:
                pass
        self.kill()


def _end_with_parent() -> None:
    _LIBC.prctl(_DIE_WITH_PARENT, signal.SIGKILL)


def free_ports(count: int) -> list[int]:
    """Ports of loopback that nobody uses now."""
    sockets = [socket.socket() for _ in range(count)]
    try:
        for each in sockets:
            each.bind(("127.0.0.1", 0))
        return [each.getsockname()[1] for each in sockets]
    finally:
        for each in sockets:
            each.close()


async def until(found: Callable[[], object], what: str) -> None:
    """Waits for something that a server does in its own time.

    Raises:
        TimeoutError: it did not.
    """
    deadline_s = time.monotonic() + START_S_MAX
    while True:
        try:
            answer = found()
            if asyncio.iscoroutine(answer):
                answer = await answer
            if answer:
                return
        except (OSError, LookupError):
            pass
        if time.monotonic() > deadline_s:
            raise TimeoutError(f"{what} takes more than {START_S_MAX:.0f} s")
        await asyncio.sleep(POLL_S)


def processor_s(pids: list[int]) -> float:
    """Processor time that these processes have used."""
    # The clock of a process, as clock_getcpuclockid(3) names it; /proc counts in ticks of 10 ms.
    return sum(time.clock_gettime(~pid << 3 | _PROCESS_CLOCK) for pid in pids)
