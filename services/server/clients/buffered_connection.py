"""A connection whose other side may read more slowly than it is sent.

Frames that the socket does not take wait here, in memory; once the client is offline, in the buffer
of its pool. Answers, messages and rows reach the socket in the order in which they were sent.
Nothing is measured while the socket takes all that it is given.

    direct      frames go to the socket
    behind      frames go to the socket, behind those that wait here
    offline     frames go to the buffer, and from there to the socket as it takes them
    returning   the buffer has nothing left but what is on its way to it: new frames wait here,
        until the last of those has come back; the client is direct again when its socket has taken
        them

Waiting frames are gathered to chunks. The buffer is given a chunk at a time, and only a bounded
number of bytes that it has not stored yet: however much a client holds when it goes offline, and
however small its messages are, no turn of the event loop takes long, and no single message costs a
write of its own.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Sequence
from typing import Protocol

from raylay.services.capacity.offline import OfflineFrames
from raylay.services.capacity.pool import ClientHolding, Policy
from raylay.services.net.framed import (
    WRITE_HIGH_BYTES,
    FramedConnection,
    WriteQueue,
)
from raylay.services.protocol.frames import FrameReader
from raylay.services.subscriptions.deferred_deliveries import DeferredDeliveries

UNWEIGHED_BYTES = 16 * 1024
"""Unwritten bytes in a client's socket up to which the client is not weighed in a turn, where its
pool has no limit of age."""
CHUNK_BYTES = 60 * 1024
"""Approximate size, in bytes, of a chunk of waiting frames: most chunks are one piece on disk."""
SMALL_BYTES = 4096
"""Average size of the pieces of a chunk, in bytes, below which they are joined: each piece costs
memory of its own that is not counted. Larger pieces are shared with other clients."""
FRAME_BYTES = 1024 * 1024
"""Approximate number of bytes that go to the buffer at once."""
MOVING_BYTES = 2 * 1024 * 1024
"""Approximate number of bytes of one client on their way to the buffer's disk."""


class OfflineBuffer(Protocol):
    """The buffer for the frames that an offline client does not take (`BufferControl`)."""

    def put(self, client: int, number: int, parts: Sequence[bytes], size_bytes: int) -> None:
        """Stores one frame of a client."""

    def take(self, client: int, bytes_max: int) -> None:
        """Asks for the oldest stored bytes of a client; the client's `came` is called with them."""

    def drop(self, client: int) -> None:
        """Forgets a client and all that is stored for it."""


class ConnectionPool(Protocol):
    """The part of `ClientPool` that a connection uses: the pool that limits what its clients
    hold."""

    def weigh(self, connection: BufferedConnection) -> None:
        """Checks the limits for a connection that holds more than before."""

    def has_room(self, connection: BufferedConnection) -> bool:
        """Returns whether a connection that is offline can come online without exceeding a
        limit."""

    def came_back(self, connection: BufferedConnection) -> None:
        """Notes that a connection is online again."""

    def left(self, connection: BufferedConnection) -> None:
        """Notes that a connection ended."""


class BufferedConnection(FramedConnection):
    """See the file's docstring.

    Invariant: `may_write` is true while the connection is direct and its socket takes more.
    Owner: the event loop. Lifecycle: one connection.

    Args:
        pool: the pool that counts the connection's memory.
        policy: the limits of this connection in the pool.
    """

    number: int
    """Number of the connection, in the life of its instance."""
    client_name: str

    def __init__(
        self,
        outbox: WriteQueue,
        loop: asyncio.AbstractEventLoop,
        reader: FrameReader,
        pool: ConnectionPool,
        policy: Policy,
    ) -> None:
        super().__init__(outbox, loop, reader)
        self.pool = pool
        self.policy = policy
        self._unweighed_bytes = UNWEIGHED_BYTES if policy.message_age_ms_max is None else 0
        self.is_leaving = False
        """Whether the end of the connection has been decided."""
        self.behind: DeferredDeliveries | None = None
        """Holder of the connection's deliveries while a query of its client runs."""
        self._kept: deque[tuple[list[bytes], int]] = deque()
        """The chunks that wait here, each with its size."""
        self._gathered: list[bytes] = []
        """Frames behind the chunks that do not make a chunk yet."""
        self._gathered_bytes = 0
        self._kept_bytes = 0
        """Bytes in the chunks and in the frames behind them."""
        self._handed_bytes = 0
        self._shared_bytes = 0
        """The connection's share of memory that its subscriptions have together with others."""
        self._is_paused = False
        self._buffer: OfflineBuffer
        self._frames: OfflineFrames | None = None
        self._is_returning = False

    # -- held bytes ----------------------------------------------------------------------------
    @property
    def is_offline(self) -> bool:
        """Returns whether frames that the socket does not take go to the disk."""
        return self._frames is not None

    def _in_socket(self) -> int:
        transport = self.transport
        return 0 if transport is None else transport.get_write_buffer_size()

    def holding(self) -> ClientHolding:
        collected_bytes, frames, behind = self._collected_bytes, self._frames, self.behind
        here_bytes = collected_bytes + self._in_socket() + self._kept_bytes
        sent_bytes = self._handed_bytes + collected_bytes
        query_bytes = self._shared_bytes
        if behind is not None:
            here_bytes += behind.held_bytes
            sent_bytes += behind.held_bytes
            query_bytes += behind.query_bytes
        if frames is None:
            return ClientHolding(here_bytes + query_bytes, 0, here_bytes, sent_bytes)
        return ClientHolding(
            here_bytes + query_bytes + frames.moving_bytes,
            frames.disk_bytes,
            here_bytes + frames.disk_bytes,
            sent_bytes,
        )

    @property
    def unsent_bytes(self) -> int:
        """The bytes sent to the client that its socket has not taken, in memory or on disk, and
        those that wait behind a query."""
        return self.holding().unsent_bytes

    @property
    def takes_rows(self) -> bool:
        """Returns whether more rows of a query may be sent now, to the socket or to the disk."""
        frames = self._frames
        if frames is None:
            return self.may_write
        return frames.moving_bytes + self._kept_bytes < WRITE_HIGH_BYTES

    @property
    def takes_all(self) -> bool:
        """Returns whether the other side takes all that it is sent, and no query's rows go
        first."""
        return self.may_write and self.behind is None and self._in_socket() <= UNWEIGHED_BYTES

    def charge(self, difference_bytes: int) -> None:
        """Changes the connection's share of memory that its subscriptions have together with
        others."""
        self._shared_bytes += difference_bytes
        if difference_bytes > 0:
            self.weigh()

    def weigh(self) -> None:
        """Has the pool count the connection anew, after more has been kept for it elsewhere."""
        self.pool.weigh(self)

    # -- writing -------------------------------------------------------------------------------
    def write_collected(self) -> None:
        """Hands the frames collected in this turn to the socket, or to the frames that wait."""
        collected = self._collected
        if not collected or self.outbox.is_held:
            return
        size_bytes = self._collected_bytes
        self._collected = []
        self._collected_bytes = 0
        transport = self.transport
        if transport is None or transport.is_closing():
            return
        self._handed_bytes += size_bytes
        if self.may_write:
            # Bytes written now may be sent at once: only those left from before make it slow.
            is_behind = transport.get_write_buffer_size()
            if len(collected) == 1:
                transport.write(collected[0])
            else:
                transport.writelines(collected)
            if is_behind > self._unweighed_bytes:
                self.pool.weigh(self)
            return
        self._keep(collected, size_bytes)
        if self._frames is not None:
            self._hand_over()
        self.pool.weigh(self)

    def _keep(self, parts: list[bytes], size_bytes: int) -> None:
        """Keeps the parts behind all those that wait here."""
        self._kept_bytes += size_bytes
        if self._gathered_bytes + size_bytes < 2 * CHUNK_BYTES:
            self._gathered += parts
            self._gathered_bytes += size_bytes
            if self._gathered_bytes >= CHUNK_BYTES:
                self._end_chunk()
            return
        # One turn may have collected any amount of small pieces: no chunk has all of them.
        for part in parts:
            self._gathered.append(part)
            self._gathered_bytes += len(part)
            if self._gathered_bytes >= CHUNK_BYTES:
                self._end_chunk()

    def _end_chunk(self) -> None:
        parts, size_bytes = self._gathered, self._gathered_bytes
        if size_bytes < SMALL_BYTES * len(parts):
            parts = [b"".join(parts)]
        self._kept.append((parts, size_bytes))
        self._gathered, self._gathered_bytes = [], 0

    def pause_writing(self) -> None:
        self._is_paused = True
        self.may_write = False
        self.pool.weigh(self)

    def resume_writing(self) -> None:
        self._is_paused = False
        if self._frames is not None:
            self._take()
        else:
            self._write_kept()

    def _write_kept(self) -> None:
        """Writes the waiting chunks; when none are left the connection is direct again."""
        kept, transport = self._kept, self.transport
        if transport is None or transport.is_closing() or self._frames is not None:
            return
        if self._gathered:
            self._end_chunk()
        while kept and not self._is_paused:
            parts, size_bytes = kept.popleft()
            self._kept_bytes -= size_bytes
            transport.writelines(parts)
        if not kept and not self._is_paused:
            self.may_write = True
            self.writable()

    # -- offline -------------------------------------------------------------------------------
    def go_offline(self, buffer: OfflineBuffer) -> None:
        """Sends new frames to the buffer from now on, behind what is already written to the
        socket."""
        self._buffer = buffer
        self._frames = OfflineFrames()
        self._is_returning = False
        self.may_write = False
        self._hand_over()
        if not self._is_paused:
            self._take()
        self.room()

    def came_online(self) -> None:
        """Called when the other side has been sent all that the buffer held for it."""

    def room(self) -> None:
        """Called when there is room for further rows of queries."""

    def _hand_over(self) -> None:
        """Gives the buffer the waiting chunks, as far as bytes may be on their way to it. Frames
        that do not make a chunk yet stay: they are written behind what comes back, or become
        one."""
        frames, kept = self._frames, self._kept
        assert frames is not None
        if self._is_returning:
            if self._kept_bytes < WRITE_HIGH_BYTES:
                return
            self._is_returning = False
        while kept and frames.moving_bytes < MOVING_BYTES:
            parts, size_bytes = kept.popleft()
            self._kept_bytes -= size_bytes
            self._put(parts)
        if frames.disk_bytes and not self._is_paused:
            self._take()

    def _put(self, parts: list[bytes]) -> None:
        frames = self._frames
        assert frames is not None
        begin = size_bytes = 0
        for at, part in enumerate(parts):
            if size_bytes and size_bytes + len(part) > FRAME_BYTES:
                number = frames.put(size_bytes)
                self._buffer.put(self.number, number, parts[begin:at], size_bytes)
                begin, size_bytes = at, 0
            size_bytes += len(part)
        if size_bytes:
            number = frames.put(size_bytes)
            self._buffer.put(self.number, number, parts[begin:], size_bytes)

    def _take(self) -> None:
        frames = self._frames
        if frames is not None and not frames.is_asked:
            frames.is_asked = True
            self._buffer.take(self.number, WRITE_HIGH_BYTES)

    def stored(self, number: int) -> None:
        """Notes that the buffer has all frames up to that number on its disk."""
        frames = self._frames
        if frames is None:
            return
        was_full = not self.takes_rows
        frames.stored(number)
        self._hand_over()
        if was_full and self.takes_rows:
            self.room()

    def came(self, data: bytes, empty_upto: int | None) -> None:
        """Takes bytes that the buffer was asked for.

        Args:
            empty_upto: the number of the last frame that the buffer has seen, where it has none
                left.
        """
        frames, transport = self._frames, self.transport
        if frames is None or transport is None or transport.is_closing():
            return
        if self.is_leaving:
            # The connection ends in this turn. Where the buffer has lost frames, these stand
            # behind a gap: a client that took them would count the lost ones as received.
            return
        is_empty = frames.taken(len(data), empty_upto)
        if data:
            transport.write(data)
        if is_empty and self._has_read:
            self._frames = None
            self._is_returning = False
            self._buffer.drop(self.number)
            self._write_kept()
            # Last: the frames kept meanwhile may take the client above a limit, and offline
            # again.
            self.pool.came_back(self)
            if self._frames is None:
                self.came_online()
            return
        if empty_upto is not None:
            self._is_returning = True
        if not (is_empty or self._is_paused):
            self._take()

    @property
    def _has_read(self) -> bool:
        """Returns whether the client has stopped being slow. With much data in its socket it could
        be above the limit again at once, and would go offline and come back for ever. So would one
        whose share of common memory has no room: the disk does not make that any smaller."""
        if self.behind is not None or self._in_socket() > UNWEIGHED_BYTES:
            return False
        return not self._shared_bytes or self.pool.has_room(self)

    def look(self) -> None:
        """Called now and then. Fetches what the buffer holds if the client has read enough to come
        online."""
        if self._frames is not None and not self._is_paused and self._has_read:
            self._take()

    # -- the end -------------------------------------------------------------------------------
    def end(self, reason: str, text: str) -> None:
        raise NotImplementedError

    def close(self, why: str) -> None:
        """Ends the connection after the frames that wait here are written. An offline connection
        ends at once: the frames on disk are not waited for, and no later one may overtake them."""
        if not self.is_open:
            return
        if self.outbox.is_held:
            self._close_held(why)
            return
        self.write_collected()
        if self._frames is not None:
            self.abort(why)
            return
        transport = self.transport
        assert transport is not None
        if self._gathered:
            self._end_chunk()
        while self._kept:
            transport.writelines(self._kept.popleft()[0])
        self._kept_bytes = 0
        super().close(why)

    def _end(self, why: str) -> None:
        is_first = not self._gone
        if is_first and self._frames is not None:
            self._frames = None
            self._buffer.drop(self.number)
        self._kept, self._gathered = deque(), []
        self._kept_bytes = self._gathered_bytes = 0
        super()._end(why)
        if is_first:
            self.pool.left(self)
