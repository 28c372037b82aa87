"""The shell around OutboundLink: one destination of an instance, in a process of its own.

It holds the Unix socket to its instance, the TCP connection downstream and a cursor over the
instance's journal. The instance's socket closing ends it. Here it is put together, told by its
instance, and ended; dialling.py connects, pump.py sends.
"""

from __future__ import annotations

import asyncio
import os
from typing import Any, cast

from raylay.services.config.instance import LinkConfig
from raylay.services.net.framed import FramedConnection, WriteQueue
from raylay.services.processes.link.dialling import LinkDialler
from raylay.services.processes.link.pump import Pump
from raylay.services.processes.link.runtime import LinkRuntime
from raylay.services.protocol.child import control
from raylay.services.protocol.frames import FrameReader, Header, encode_frame
from raylay.services.replication.membership.placement import from_wire

COUNTS_S = 0.5
COUNTS_DIRECT_S = 2.0
"""While the instance sends, a link has nothing to count; each look wakes its process."""


class _InstanceSocket(FramedConnection):
    """The Unix socket to the link's own instance."""

    def __init__(self, link: LinkServer) -> None:
        runtime = link.runtime
        reader = FrameReader(frame_bytes_max=control.CONTROL_FRAME_BYTES_MAX)
        super().__init__(runtime.outbox, runtime.loop, reader)
        self.link = link

    def data_received(self, data: bytes) -> None:
        """Frames came; what they brought is read and sent once for all of them."""
        super().data_received(data)
        self.link.pump.pump()

    def frame_received(self, header: Header, body: bytes) -> None:
        """A frame of the instance's."""
        if header["c"] == "ping":
            self.send(control.PONG)
        else:
            self.link.instance_said(header, body)

    def ended(self, why: str) -> None:
        """The instance is gone."""
        self.link.instance_lost(why)


class _WakeSocket(asyncio.Protocol):
    """The second connection to the instance: its writer thread tells of commits over it."""

    def __init__(self, pump: Pump) -> None:
        self._pump = pump
        self._rest = b""
        self._transport: asyncio.Transport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """The socket is connected."""
        self._transport = cast(asyncio.Transport, transport)

    def say(self, frame: bytes) -> None:
        """Says which link this is."""
        if self._transport is not None:
            self._transport.write(frame)

    def data_received(self, data: bytes) -> None:
        """Commits: the last one counts."""
        data = self._rest + data
        whole = len(data) - len(data) % control.WAKE.size
        self._rest = data[whole:]
        if whole:
            last_txid = control.WAKE.unpack_from(data, whole - control.WAKE.size)[0]
            self._pump.machine.told(last_txid)
            self._pump.pump()


class LinkServer:
    """One link, running. Owner: the DestinationLink actor. Lifecycle: `run` until the instance is
    gone or says stop."""

    def __init__(self, config: LinkConfig) -> None:
        self.runtime = LinkRuntime(config)
        self.pump = Pump(self.runtime)
        self.dialling = LinkDialler(self.runtime, self.pump)
        self._instance_gone: asyncio.Future[str]

    async def run(self) -> str:
        """Runs until the instance is gone; returns why.

        Raises:
            OSError: the instance's socket cannot be connected.
            StorageError: the journal cannot be opened.
        """
        runtime, pump = self.runtime, self.pump
        config = runtime.config
        loop = runtime.loop = asyncio.get_running_loop()
        loop.set_exception_handler(self._loop_exception)
        runtime.outbox = WriteQueue(loop)
        if config.drills:
            self.dialling.open_line()
        self._instance_gone = loop.create_future()
        pump.open()
        _, instance = await loop.create_unix_connection(
            lambda: _InstanceSocket(self), config.unix_path
        )
        runtime.instance = instance
        runtime.tell(control.hello(config.destination.name, config.start_number, os.getpid()))
        _, waking = await loop.create_unix_connection(lambda: _WakeSocket(pump), config.unix_path)
        waking.say(control.wake(config.destination.name, config.start_number))
        dialling = loop.create_task(self.dialling.connect_forever())
        counting = loop.create_task(self._count_forever())
        try:
            await asyncio.wait(
                (dialling, counting, self._instance_gone), return_when=asyncio.FIRST_COMPLETED
            )
            for task in (dialling, counting):
                if task.done():
                    # A fault of ours: the process ends, the instance starts another one.
                    await task
            return await self._instance_gone
        finally:
            for task in (dialling, counting):
                task.cancel()
            if pump.downstream is not None:
                pump.downstream.abort("the link ends")
            if instance.is_open:
                instance.abort("the link ends")
            pump.close()

    def _loop_exception(self, loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        """A callback of the loop raised. A socket's error ends its connection and no more; with
        anything else the link ends, and the instance starts another one, which begins with what the
        two sides have."""
        error = context.get("exception")
        if error is not None and not isinstance(error, OSError | asyncio.CancelledError):
            loop.default_exception_handler(context)
            self.instance_lost(f"a fault of the link: {error!r}")

    def instance_lost(self, why: str) -> None:
        """The instance's socket closed."""
        if not self._instance_gone.done():
            self._instance_gone.set_result(why)

    def instance_said(self, header: Header, body: bytes) -> None:
        """A frame of the instance's. `pump` is called behind the last one of a read."""
        command = header["c"]
        dialling, pump = self.dialling, self.pump
        if command == "told":
            pump.machine.told(header["tx"])
        elif command == "notice":
            if pump.is_started:
                pump.notice(control.read_notice(body), header["tx"])
        elif command == "mode":
            pump.machine.set_mode(header["sync"])
        elif command == "incoming":
            dialling.offered(header)
        elif command == "epoch":
            dialling.epoch_given(header, body)
        elif command == "aim":
            dialling.aim(tuple(header["addresses"]), from_wire(header["placements"]))
        elif command == "refuse":
            dialling.abandon(header["why"])
        elif command == "part":
            dialling.part(header, body)
        elif command == "start":
            dialling.start(header)
        elif command == "take_over":
            pump.machine.told(header["tx"])
            pump.hand_over()
        elif command == "beside":
            pump.judged(*control.read_beside(header, body))
        elif command == "queue":
            pump.pass_on(body)
        elif command == "names":
            pump.tell_names(body)
        elif command == "returned":
            pump.returned(header["why"])
        elif command == "impair":
            dialling.impair(header["state"], header["seconds"])
        elif command == "stop":
            self.instance_lost("the instance said stop")

    async def _count_forever(self) -> None:
        before: dict[str, Any] = {}
        while True:
            await asyncio.sleep(COUNTS_DIRECT_S if self.pump.is_direct else COUNTS_S)
            self.pump.reader.tidy()
            self.pump.remember()
            counts = self.pump.counts()
            if counts != before:
                before = counts
                self.runtime.tell(encode_frame({"c": "counts", "counts": counts}))
