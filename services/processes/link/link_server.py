"""The shell around OutboundLink: one destination of an instance, in a process of its own.

It holds the Unix socket to its instance, the TCP connection downstream and a cursor over the
instance's journal. The link ends when the instance's socket closes. This file puts the link
together, takes the instance's frames and ends the link; dialling.py connects, pump.py sends.
"""

from __future__ import annotations

import asyncio
import os
from typing import Any, cast

from raylay.services.config.instance import LinkConfig
from raylay.services.processes.child_program import ChildProgram
from raylay.services.processes.link.dialling import LinkDialler
from raylay.services.processes.link.pump import Pump
from raylay.services.processes.link.runtime import LinkRuntime
from raylay.services.protocol.child import control
from raylay.services.protocol.frames import Header, encode_frame
from raylay.services.replication.membership.placement import from_wire
from raylay.services.telemetry import logs

COUNTS_S = 0.5
COUNTS_DIRECT_S = 2.0
"""The pause between two looks at the counts, in seconds, while the instance sends by itself. The
link has nothing to count then, and each look wakes its process."""


class _WakeSocket(asyncio.Protocol):
    """The second connection to the instance, over which its writer thread tells of commits."""

    def __init__(self, pump: Pump) -> None:
        self._pump = pump
        self._rest = b""
        self._transport: asyncio.Transport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Keeps the transport."""
        self._transport = cast(asyncio.Transport, transport)

    def say(self, frame: bytes) -> None:
        """Sends the frame that says which link this is."""
        if self._transport is not None:
            self._transport.write(frame)

    def data_received(self, data: bytes) -> None:
        """Takes the transaction ids of commits, of which only the last one counts."""
        data = self._rest + data
        whole = len(data) - len(data) % control.WAKE.size
        self._rest = data[whole:]
        if whole:
            last_txid = control.WAKE.unpack_from(data, whole - control.WAKE.size)[0]
            self._pump.machine.told(last_txid)
            self._pump.pump()


class LinkServer:
    """One running link. Owner: the DestinationLink actor. Lifecycle: `run` until the instance is
    gone or says stop."""

    def __init__(self, config: LinkConfig) -> None:
        self.runtime = LinkRuntime(config)
        self.pump = Pump(self.runtime)
        self.dialling = LinkDialler(self.runtime, self.pump)
        self._program = ChildProgram(self, self.pump.pump)

    async def run(self) -> str:
        """Runs until the instance is gone. Returns the reason.

        Raises:
            OSError: the instance's socket cannot be connected.
            StorageError: the journal cannot be opened.
        """
        runtime, pump = self.runtime, self.pump
        config = runtime.config
        program = self._program
        loop = runtime.loop = program.begin()
        runtime.outbox = program.outbox
        if config.drills:
            self.dialling.open_line()
        pump.open()
        hello = control.hello(config.destination.name, config.start_number, os.getpid())
        instance = runtime.instance = await program.connect(config.unix_path, hello)
        _, waking = await loop.create_unix_connection(lambda: _WakeSocket(pump), config.unix_path)
        waking.say(control.wake(config.destination.name, config.start_number))
        try:
            return await program.run(self.dialling.connect_forever(), self._count_forever())
        finally:
            if pump.downstream is not None:
                pump.downstream.abort("the link ends")
            if instance.is_open:
                instance.abort("the link ends")
            pump.close()

    def failed(self, text: str) -> None:
        """Logs the fault that ends the link. The link that the instance starts next begins with
        what the two sides have."""
        config = self.runtime.config
        logs.get("link").error("link_failed", name=config.process_name, text=text)

    def instance_said(self, header: Header, body: bytes) -> None:
        """Takes a frame of the instance. `pump` is called after the last one of a read."""
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
            self._program.end("the instance said stop")

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
