"""Bounds on the HTTP connections of the administrator's interface: whoever reaches the port can
connect, so a connection costs little, says something now and then, or gives way."""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Callable
from typing import cast

CONNECTIONS_MAX = 256
"""Limit on the connections; with more, the one that has been silent for longest ends."""
UNSENT_BYTES_MAX = 64 * 1024 * 1024
"""Bytes of answers that wait for all readers together; with more, the slowest reader gives way."""
SILENCE_S_MAX = 30.0
"""Time, in seconds, without a byte in either direction after which a connection ends."""


class BoundedConnections:
    """The protocol factory of a listener: each connection is handed on to one of another factory.

    Owner: the process's event loop. Lifecycle: as long as the listener; `close` ends its timer.

    Args:
        factory: makes the protocol that reads HTTP.
        connections_max: most connections of all addresses together.
        silence_s: the limit that is `SILENCE_S_MAX` by default.
        unsent_bytes_max: the limit that is `UNSENT_BYTES_MAX` by default.
    """

    def __init__(
        self,
        factory: Callable[[], asyncio.Protocol],
        connections_max: int = CONNECTIONS_MAX,
        silence_s: float = SILENCE_S_MAX,
        unsent_bytes_max: int = UNSENT_BYTES_MAX,
    ) -> None:
        self._factory = factory
        self._connections_max = connections_max
        self._silence_s = silence_s
        self._unsent_bytes_max = unsent_bytes_max
        self._open: OrderedDict[BoundedConnection, float] = OrderedDict()
        """The open connections, each with the time of its last byte; the longest silent first."""
        self._timer: asyncio.TimerHandle | None = None

    def __call__(self) -> BoundedConnection:
        return BoundedConnection(self._factory(), self)

    def __len__(self) -> int:
        return len(self._open)

    def heard(self, connection: BoundedConnection) -> None:
        """Notes that a connection is made, or that bytes went over it."""
        loop = asyncio.get_running_loop()
        self._open[connection] = loop.time()
        self._open.move_to_end(connection)
        if len(self._open) > self._connections_max:
            silent, _ = self._open.popitem(last=False)
            silent.abort()
        if self._timer is None:
            self._timer = loop.call_later(self._silence_s, self._look)

    def fell_behind(self, connection: BoundedConnection) -> None:
        """Notes that a reader has not taken what was written to it. The one that has taken nothing
        for longest gives way if too much waits for all of them; one alone never does."""
        waiting = {each: size for each in self._open if (size := each.unsent_bytes)}
        total = sum(waiting.values())
        for each, size in waiting.items():
            if total <= self._unsent_bytes_max:
                return
            if each is not connection:
                del self._open[each]
                each.abort()
                total -= size

    def left(self, connection: BoundedConnection) -> None:
        """Notes that a connection has ended."""
        self._open.pop(connection, None)

    def close(self) -> None:
        """Stops looking for silent connections."""
        if self._timer is not None:
            self._timer.cancel()

    def _look(self) -> None:
        self._timer = None
        loop = asyncio.get_running_loop()
        while self._open:
            connection, heard_s = next(iter(self._open.items()))
            wait_s = heard_s + self._silence_s - loop.time()
            if wait_s > 0:
                self._timer = loop.call_later(wait_s, self._look)
                return
            del self._open[connection]
            connection.abort()


class BoundedConnection(asyncio.Protocol):
    """One connection. Lifecycle: `connection_made` to `connection_lost`."""

    def __init__(self, inner: asyncio.Protocol, connections: BoundedConnections) -> None:
        self._inner = inner
        self._connections = connections
        self._transport: asyncio.WriteTransport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # uvloop's transports are of no class of asyncio: they cannot be asked what they are.
        self._transport = cast("asyncio.WriteTransport", transport)
        self._connections.heard(self)
        self._inner.connection_made(transport)

    def data_received(self, data: bytes) -> None:
        self._connections.heard(self)
        self._inner.data_received(data)

    def eof_received(self) -> bool | None:
        return self._inner.eof_received()

    def pause_writing(self) -> None:
        self._inner.pause_writing()
        self._connections.fell_behind(self)

    def resume_writing(self) -> None:
        self._connections.heard(self)
        self._inner.resume_writing()

    def connection_lost(self, exc: Exception | None) -> None:
        self._connections.left(self)
        self._inner.connection_lost(exc)

    @property
    def unsent_bytes(self) -> int:
        """Bytes that were written and that the other side has not taken."""
        return 0 if self._transport is None else self._transport.get_write_buffer_size()

    def abort(self) -> None:
        """Ends the connection at once."""
        if self._transport is not None:
            self._transport.abort()
