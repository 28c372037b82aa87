"""A bad network for one link, inside its own process: what a drill puts between a link and its
destination (docs/drills.md). Needs no root and no relay.

    cut       connections are reset, and new ones refused
    dropped   nothing passes, in one direction or both, and nobody is told; what was sent arrives
              when it heals, as TCP would send it again
    slow      everything comes later; lost segments hold up what is behind them for a round trip

Each link connection of a fabric that is marked for drills has an `ImpairedProtocol` from its
beginning, which passes everything on while nothing is injected. Links of other fabrics have none.
"""

from __future__ import annotations

import asyncio
import math
import random
from collections import deque
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any, Literal, TypeVar, cast

SEGMENT_BYTES = 1448
"""Bytes that one TCP segment carries on Ethernet."""
MATHIS = math.sqrt(1.5)
"""Factor of TCP's throughput under loss, which is this times segment / (round trip * √loss): M.
Mathis et al., "The Macroscopic Behavior of the TCP Congestion Avoidance Algorithm", 1997."""
MODES = ("open", "cut", "dropped", "slow")

Inner = TypeVar("Inner", bound=asyncio.Protocol)


@dataclass(frozen=True, slots=True)
class Impairment:
    """The state of a line.

    Attributes:
        out, back: whether sent data, and whether received data, is dropped; for `dropped`.
        delay_ms: delay in each direction, in milliseconds; for `slow`.
        loss: share of segments that are lost and sent again; for `slow`.
        bytes_per_s: rate in each direction, for `slow`; 0: the rate that TCP reaches with this
            delay and loss, or unlimited.
    """

    mode: Literal["open", "cut", "dropped", "slow"] = "open"
    out: bool = True
    back: bool = True
    delay_ms: float = 0.0
    loss: float = 0.0
    bytes_per_s: float = 0.0

    @property
    def rate_bytes_per_s(self) -> float:
        """Returns the bytes per second that pass in one direction; 0: unlimited."""
        if self.bytes_per_s or not (self.loss and self.delay_ms):
            return self.bytes_per_s
        round_trip_s = 2 * self.delay_ms / 1000
        return MATHIS * SEGMENT_BYTES / (round_trip_s * math.sqrt(self.loss))


OPEN = Impairment()


class ImpairedLine:
    """The line between one link and its destination. Owner: the link's event loop."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.loop = loop
        self.state = OPEN
        self.chance = random.Random()
        self._connections: set[ImpairedProtocol] = set()
        self._changed = asyncio.Event()
        self._expiry: asyncio.TimerHandle | None = None

    def set(self, state: Impairment, seconds: float) -> None:
        """Sets the state of the line, for `seconds`; then it is open again, even if the caller is
        gone."""
        if self._expiry is not None:
            self._expiry.cancel()
            self._expiry = None
        if state.mode != "open":
            self._expiry = self.loop.call_later(seconds, self.set, OPEN, 0.0)
        if state == self.state:
            return
        self.state = state
        self._changed.set()
        self._changed = asyncio.Event()
        for connection in list(self._connections):
            connection.line_changed()

    async def open(
        self,
        make: Callable[[], Inner],
        connect: Callable[
            [Callable[[], ImpairedProtocol]], Awaitable[tuple[Any, ImpairedProtocol]]
        ],
    ) -> tuple[asyncio.Transport, Inner]:
        """Opens a connection over this line, like the loop's own function.

        Raises:
            ConnectionRefusedError: the line is cut.
            OSError: no process answers at the address.
        """
        while self.state.mode == "dropped":
            await self._changed.wait()
        if self.state.mode == "cut":
            raise ConnectionRefusedError("cut by a drill")
        if self.state.mode == "slow":
            await asyncio.sleep(2 * self.state.delay_ms / 1000)
        inner = make()
        await connect(lambda: ImpairedProtocol(self, inner))
        transport = getattr(inner, "transport", None)
        if transport is None:
            raise ConnectionResetError("cut by a drill")
        return cast(asyncio.Transport, transport), inner

    def opened(self, connection: ImpairedProtocol) -> None:
        self._connections.add(connection)

    def closed(self, connection: ImpairedProtocol) -> None:
        self._connections.discard(connection)


class _Way:
    """One direction of a connection: the data that waits to be passed on, in order."""

    def __init__(self, line: ImpairedLine, hand_on: Callable[[bytes], None]) -> None:
        self._line = line
        self._hand_on = hand_on
        self._waiting: deque[tuple[float, bytes]] = deque()
        self._free_s = 0.0
        self._timer: asyncio.TimerHandle | None = None
        self.dropped = False
        self.bytes = 0

    def pass_on(self, data: bytes) -> None:
        """Takes data, and passes it on when the line allows."""
        state = self._line.state
        if state.mode == "open" and not self._waiting:
            self._hand_on(data)
            return
        self._waiting.append((self._due_s(state, len(data)), data))
        self.bytes += len(data)
        self._schedule()

    def _due_s(self, state: Impairment, size_bytes: int) -> float:
        now_s = self._line.loop.time()
        if state.mode != "slow":
            return now_s
        wait_s = state.delay_ms / 1000
        segments = -(-size_bytes // SEGMENT_BYTES)
        if state.loss and self._line.chance.random() > (1 - state.loss) ** segments:
            wait_s += 2 * state.delay_ms / 1000
        rate = state.rate_bytes_per_s
        begins_s = max(now_s, self._free_s)
        self._free_s = begins_s + (size_bytes / rate if rate else 0.0)
        behind_s = self._waiting[-1][0] if self._waiting else 0.0
        return max(self._free_s + wait_s, behind_s)

    def _schedule(self) -> None:
        if self._timer is None and self._waiting and not self.dropped:
            self._timer = self._line.loop.call_at(self._waiting[0][0], self._due)

    def _due(self) -> None:
        self._timer = None
        now_s = self._line.loop.time()
        while self._waiting and not self.dropped and self._waiting[0][0] <= now_s + 1e-4:
            self._hand_on(self._next())
        self._schedule()

    def _next(self) -> bytes:
        _, data = self._waiting.popleft()
        self.bytes -= len(data)
        return data

    def changed(self, dropped: bool) -> None:
        self.dropped = dropped
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._line.state.mode == "open":
            self._free_s = 0.0
            while self._waiting:
                self._hand_on(self._next())
        self._schedule()

    def flush(self) -> None:
        """Passes on all waiting data, unless data in this direction is dropped."""
        while self._waiting and not self.dropped:
            self._hand_on(self._next())

    def forget(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self._waiting.clear()
        self.bytes = 0


class ImpairedProtocol(asyncio.Protocol):
    """The layer between a socket and its protocol. Owner: its `ImpairedLine`."""

    def __init__(self, line: ImpairedLine, inner: asyncio.Protocol) -> None:
        self.line = line
        self.inner = inner
        self.transport: asyncio.Transport
        self.out = _Way(line, self._write)
        self.back = _Way(line, self._deliver)
        self._told_end = False
        self._lost: BaseException | Literal[False] | None = False
        """Reason why the connection was lost while received data is dropped; False: it was not
        lost."""
        self._abandoned = False

    # -- calls from the socket ---------------------------------------------------------------------
    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Notes that the socket is connected."""
        self.transport = cast(asyncio.Transport, transport)
        self.line.opened(self)
        self._take_over()
        self.inner.connection_made(ImpairedTransport(self))
        if self.line.state.mode == "cut":
            self.transport.abort()

    def _take_over(self) -> None:
        state = self.line.state
        is_dropped = state.mode == "dropped"
        self.out.changed(is_dropped and state.out)
        self.back.changed(is_dropped and state.back)

    def data_received(self, data: bytes) -> None:
        """Takes bytes from the socket."""
        self.back.pass_on(data)

    def eof_received(self) -> bool | None:
        """Notes that the other side has stopped writing: `connection_lost` follows."""
        return None

    def connection_lost(self, exc: Exception | None) -> None:
        """Notes that the socket is closed. The protocol is not told while received data is
        dropped."""
        if self.back.dropped and not self._told_end:
            self._lost = exc
            return
        self.back.flush()
        self._end(exc)

    def pause_writing(self) -> None:
        """Notes that the socket's buffer is full."""
        if not self._told_end:
            self.inner.pause_writing()

    def resume_writing(self) -> None:
        """Notes that the socket's buffer has room again."""
        if not self._told_end:
            self.inner.resume_writing()

    # -- calls from the line
    # -------------------------------------------------------------------------
    def line_changed(self) -> None:
        """Applies the new state of the line to the connection."""
        if self.line.state.mode == "cut":
            self.transport.abort()
            return
        self._take_over()
        if self._lost is not False and not self.back.dropped:
            lost, self._lost = self._lost, False
            self._end(cast("Exception | None", lost))
        elif self._abandoned and not self.out.dropped:
            self.transport.abort()

    def _write(self, data: bytes) -> None:
        if not self.transport.is_closing():
            self.transport.write(data)

    def _deliver(self, data: bytes) -> None:
        if not self._told_end:
            self.inner.data_received(data)

    def _end(self, exc: Exception | None) -> None:
        self.line.closed(self)
        self.out.forget()
        self.back.forget()
        if not self._told_end:
            self._told_end = True
            self.inner.connection_lost(exc)

    # -- calls from the protocol
    # ---------------------------------------------------------------------
    def finish(self, *, at_once: bool) -> None:
        """Ends the connection for the protocol. While sent data is dropped, the other side does not
        notice."""
        if self.out.dropped:
            self._abandoned = True
            if not self._told_end:
                self._told_end = True
                self.line.loop.call_soon(self.inner.connection_lost, None)
        elif at_once:
            self.transport.abort()
        else:
            self.out.flush()
            self.transport.close()

    @property
    def is_finished(self) -> bool:
        """Returns whether the protocol has ended the connection, or knows of its end."""
        return self._abandoned or self._told_end or self.transport.is_closing()


class ImpairedTransport(asyncio.Transport):
    """The transport that the protocol uses in place of the socket's."""

    def __init__(self, connection: ImpairedProtocol) -> None:
        super().__init__()
        self._connection = connection

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        """Returns extra information of the socket; `is_impaired` is True, so that callers do not
        trust its TCP information."""
        if name == "is_impaired":
            return True
        return self._connection.transport.get_extra_info(name, default)

    def write(self, data: bytes | bytearray | memoryview) -> None:
        self._connection.out.pass_on(bytes(data))

    def writelines(self, list_of_data: Any) -> None:
        self._connection.out.pass_on(b"".join(list_of_data))

    def close(self) -> None:
        """Ends the connection after all sent data."""
        self._connection.finish(at_once=False)

    def abort(self) -> None:
        """Ends the connection at once."""
        self._connection.finish(at_once=True)

    def is_closing(self) -> bool:
        return self._connection.is_finished

    def get_write_buffer_size(self) -> int:
        """Returns the bytes that were written and have not reached the other side's socket."""
        return self._connection.out.bytes + self._connection.transport.get_write_buffer_size()

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        self._connection.transport.set_write_buffer_limits(high, low)

    def pause_reading(self) -> None:
        self._connection.transport.pause_reading()

    def resume_reading(self) -> None:
        self._connection.transport.resume_reading()
