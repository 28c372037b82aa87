"""A network that can be broken without root: TCP relays in a process of their own.

A *route* is a port in front of one target. What passes through it can be

    cut          every connection is reset, and each new one at once
    stalled      connections stay open and nothing passes; later everything does, in order
    swallowed    what comes is thrown away, in both directions or only on the way back; whoever lost
                 something that way is reset when the route heals, as by a router that was replaced
    slow         each piece of what passes waits, and only so many bytes a second go through

    relay = Relay()
    address = relay.route("Trio-1>Trio-2", "127.0.0.1:20001")
    relay.set(["Trio-1>Trio-2"], "cut")
    relay.heal(["Trio-1>Trio-2"])

Run as a program it is the process; its standard input has one JSON order a line, each answered by
a line, and its end ends it.
"""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
import threading
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any, Self

OPEN = "open"
CUT = "cut"
STALLED = "stalled"
SWALLOWED = "swallowed"
SWALLOWED_BACK = "swallowed_back"
"""Only what the target says; what it is told still arrives."""
SLOW = "slow"
MODES = (OPEN, CUT, STALLED, SWALLOWED, SWALLOWED_BACK, SLOW)
CHUNK_BYTES = 65_536
CONNECT_S_MAX = 5.0


# -- the driver's side -------------------------------------------------------------------------
class Relay:
    """The process, asked from any thread. Owner: the driver. Lifecycle: until `close`."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._addresses: dict[str, str] = {}
        self._process = subprocess.Popen(
            [sys.executable, str(Path(__file__))],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    @property
    def routes(self) -> list[str]:
        """All names, in the order in which they were made."""
        return list(self._addresses)

    def route(self, name: str, target: str) -> str:
        """The address in front of `target`; made when the name is new."""
        if name not in self._addresses:
            port = self._ask({"do": "route", "name": name, "target": target})["port"]
            self._addresses[name] = f"127.0.0.1:{port}"
        return self._addresses[name]

    def set(
        self,
        names: Iterable[str],
        mode: str,
        *,
        delay_ms: float = 0.0,
        bytes_per_s: float = 0.0,
    ) -> int:
        """From now on these routes are like that. Returns how many connections they have.

        Args:
            delay_ms, bytes_per_s: of `slow`; 0 bytes a second: as many as come.
        """
        if mode not in MODES:
            raise ValueError(f"a route is one of {', '.join(MODES)}, not {mode!r}")
        order = {"do": "set", "names": list(names), "mode": mode}
        return int(
            self._ask({**order, "delay_ms": delay_ms, "bytes_per_s": bytes_per_s})["connections"]
        )

    def heal(self, names: Iterable[str]) -> int:
        """Everything passes again."""
        return self.set(names, OPEN)

    def _ask(self, order: dict[str, Any]) -> dict[str, Any]:
        process = self._process
        assert process.stdin is not None and process.stdout is not None
        with self._lock:
            process.stdin.write(json.dumps(order) + "\n")
            process.stdin.flush()
            line = process.stdout.readline()
        if not line:
            raise RuntimeError(f"the relay ended with {process.poll()}")
        answer: dict[str, Any] = json.loads(line)
        if "error" in answer:
            raise RuntimeError(f"relay: {answer['error']}")
        return answer

    def close(self) -> None:
        """Ends the process, and with it every connection."""
        process = self._process
        if process.stdin is not None:
            process.stdin.close()
        process.wait()
        if process.stdout is not None:
            process.stdout.close()


# -- the process -------------------------------------------------------------------------------
@dataclass(eq=False)
class _Route:
    """A port in front of a target."""

    host: str
    port: int
    mode: str = OPEN
    delay_s: float = 0.0
    bytes_per_s: float = 0.0
    pairs: set[_Pair] = field(default_factory=set)
    passable: asyncio.Event = field(default_factory=asyncio.Event)

    def set(self, mode: str, delay_s: float, bytes_per_s: float) -> int:
        """What passes from now on."""
        self.mode, self.delay_s, self.bytes_per_s = mode, delay_s, bytes_per_s
        if mode == STALLED:
            self.passable.clear()
        else:
            self.passable.set()
        connections = len(self.pairs)
        for pair in list(self.pairs):
            if mode == CUT or (mode == OPEN and pair.lost_something):
                pair.abort()
        return connections

    async def accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Somebody dials."""
        if self.mode == CUT:
            writer.transport.abort()
            return
        pair = _Pair(self, [writer])
        self.pairs.add(pair)
        try:
            await pair.carry(reader)
        finally:
            self.pairs.discard(pair)
            pair.abort()


@dataclass(eq=False)
class _Pair:
    """One connection through a route: the dialler's half, and the target's once it is made."""

    route: _Route
    writers: list[asyncio.StreamWriter]
    lost_something: bool = False

    async def carry(self, reader: asyncio.StreamReader) -> None:
        """Passes bytes on until either side ends."""
        route = self.route
        try:
            there, to_target = await asyncio.wait_for(
                asyncio.open_connection(route.host, route.port), CONNECT_S_MAX
            )
        except (OSError, TimeoutError):
            return
        self.writers.append(to_target)
        if route.mode == CUT:
            return
        ways = [
            asyncio.ensure_future(self._pass(reader, to_target, back=False)),
            asyncio.ensure_future(self._pass(there, self.writers[0], back=True)),
        ]
        await asyncio.wait(ways, return_when=asyncio.FIRST_COMPLETED)
        for way in ways:
            way.cancel()
        await asyncio.gather(*ways, return_exceptions=True)
        for writer in self.writers:
            # What came before the end still arrives.
            writer.close()

    async def _pass(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, *, back: bool
    ) -> None:
        route = self.route
        try:
            while data := await reader.read(CHUNK_BYTES):
                await route.passable.wait()
                if route.mode == SWALLOWED or (back and route.mode == SWALLOWED_BACK):
                    self.lost_something = True
                if self.lost_something:
                    # With a hole in it nothing of the stream makes sense any more.
                    continue
                if route.mode == SLOW:
                    wait_s = route.delay_s
                    if route.bytes_per_s:
                        wait_s += len(data) / route.bytes_per_s
                    await asyncio.sleep(wait_s)
                writer.write(data)
                await writer.drain()
        except OSError:
            return

    def abort(self) -> None:
        """Resets both halves."""
        for writer in self.writers:
            if not writer.transport.is_closing():
                writer.transport.abort()


async def _serve() -> None:
    routes: dict[str, _Route] = {}
    servers: list[asyncio.AbstractServer] = []

    async def perform(order: dict[str, Any]) -> dict[str, Any]:
        if order["do"] == "route":
            host, _, port = order["target"].rpartition(":")
            route = routes[order["name"]] = _Route(host, int(port))
            route.passable.set()
            server = await asyncio.start_server(route.accept, "127.0.0.1", 0)
            servers.append(server)
            return {"port": server.sockets[0].getsockname()[1]}
        delay_s = order["delay_ms"] / 1000
        return {
            "connections": sum(
                routes[name].set(order["mode"], delay_s, order["bytes_per_s"])
                for name in order["names"]
            )
        }

    loop = asyncio.get_running_loop()
    orders = asyncio.StreamReader()
    await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(orders), sys.stdin)
    while line := await orders.readline():
        try:
            answer = await perform(json.loads(line))
        except (KeyError, ValueError, OSError) as error:
            answer = {"error": repr(error)}
        sys.stdout.write(json.dumps(answer) + "\n")
        sys.stdout.flush()


if __name__ == "__main__":
    asyncio.run(_serve())
