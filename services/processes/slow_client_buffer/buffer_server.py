"""The buffer of one capacity pool. It stores the frames that its instance puts into it, and gives
them back.

The buffer decides nothing. It holds the Unix socket to its instance and one file. When the socket
closes, the buffer ends and the file is removed. Frames are written in batches, and always before
frames are taken.
"""

from __future__ import annotations

import asyncio
import os

from raylay.services.config.buffer import SlowClientBufferConfig
from raylay.services.errors import StorageError, StorageFull
from raylay.services.processes.child_program import ChildProgram, InstanceSocket
from raylay.services.protocol.child import buffer_control as control
from raylay.services.protocol.frames import Header
from raylay.services.telemetry import logs
from raylay.storage.offline import LmdbOfflineStore, OfflineStore

BATCH_BYTES = 1024 * 1024
BATCH_S = 0.02
"""The time, in seconds, for which frames wait to be written together, unless there are BATCH_BYTES
earlier."""


class BufferServer:
    """One running buffer. Owner: the SlowClientBuffer actor. Lifecycle: `run` until the instance is
    gone or says stop."""

    def __init__(self, config: SlowClientBufferConfig) -> None:
        self._config = config
        self._puts: list[tuple[int, bytes]] = []
        self._puts_bytes = 0
        self._seen: dict[int, int] = {}
        """The number of the last frame of each client."""
        self._unsaid: dict[int, int] = {}
        """The number of the last stored frame of each client that the instance has not been told
        of."""
        self._timer: asyncio.TimerHandle | None = None
        self._program = ChildProgram(self)
        self._loop: asyncio.AbstractEventLoop
        self._store: OfflineStore
        self._instance: InstanceSocket

    async def run(self) -> str:
        """Runs until the instance is gone. Returns the reason.

        Raises:
            OSError: the instance's socket cannot be connected.
            StorageError: the file cannot be used; names it.
        """
        config = self._config
        program = self._program
        self._loop = program.begin()
        self._store = LmdbOfflineStore(config.path, config.disk_bytes_max)
        try:
            hello = control.hello(config.pool, config.start_number, os.getpid())
            self._instance = await program.connect(config.unix_path, hello)
            return await program.run()
        finally:
            self._store.close()

    def failed(self, text: str) -> None:
        """Ends the buffer after a fault. The instance then disconnects the clients whose frames the
        buffer held."""
        logs.get("slow_client_buffer").error(
            "buffer_failed", name=self._config.process_name, text=text
        )
        self._program.end(f"a fault: {text}")
        self._instance.abort("a fault of the buffer")

    # -- what the instance says ----------------------------------------------------------------
    def instance_said(self, header: Header, body: bytes) -> None:
        command = header["c"]
        if command == "put":
            client = control.whole(header, "k")
            self._puts.append((client, body))
            self._puts_bytes += len(body)
            self._seen[client] = self._unsaid[client] = control.whole(header, "n")
            if self._puts_bytes >= BATCH_BYTES:
                self._write()
            elif self._timer is None:
                self._timer = self._loop.call_later(BATCH_S, self._write)
        elif command == "take":
            self._write()
            self._take(control.whole(header, "k"), control.whole(header, "max"))
        elif command == "drop":
            client = control.whole(header, "k")
            self._puts = [each for each in self._puts if each[0] != client]
            self._seen.pop(client, None)
            self._unsaid.pop(client, None)
            self._store.drop(client)
        elif command == "stop":
            self._program.end("the instance said stop")

    def _write(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        puts, self._puts, self._puts_bytes = self._puts, [], 0
        if not puts:
            return
        try:
            self._store.put(puts)
        except StorageFull as error:
            for client in {client for client, _ in puts}:
                self._lose(client, error)
            return
        unsaid, self._unsaid = self._unsaid, {}
        self._instance.send(control.stored(unsaid))

    def _lose(self, client: int, error: StorageError) -> None:
        """Drops a client's frames, of which some are lost, and tells the instance."""
        self._seen.pop(client, None)
        self._unsaid.pop(client, None)
        self._store.drop(client)
        self._instance.send(control.lost(client, str(error)))

    def _take(self, client: int, bytes_max: int) -> None:
        pieces = self._store.take(client, bytes_max)
        size_bytes = sum(map(len, pieces))
        front = control.taken(
            client,
            self._seen.get(client, 0),
            size_bytes,
            is_empty=not self._store.bytes_of(client),
        )
        self._instance.send_parts([front, *pieces], len(front) + size_bytes)
