"""The part that all child programs of an instance have in common: the loop that they run on, the
Unix socket to the instance, whose closing ends the program, and the handling of faults."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any, Protocol

from raylay.services.errors import RaylayError
from raylay.services.net.framed import FramedConnection, WriteQueue
from raylay.services.protocol.child.control import CONTROL_FRAME_BYTES_MAX, PONG
from raylay.services.protocol.frames import FrameReader, Header
from raylay.services.telemetry import logs


def _no_turn() -> None:
    """Does nothing after the frames of one read."""


class ChildHandler(Protocol):
    """The handler of a child program: what each program does with the frames of its instance."""

    def instance_said(self, header: Header, body: bytes) -> None:
        """Takes a frame from the instance."""

    def failed(self, text: str) -> None:
        """Reports a fault that ends the program."""


class ChildProgram:
    """A child program of an instance, from its start to its end.

    Owner: its handler. Lifecycle: `begin`, `connect`, `run`, once each.

    Args:
        handler: the receiver of the instance's frames.
        turn: a function that is called once after all frames of a read, and when the socket takes
            more again.
    """

    loop: asyncio.AbstractEventLoop
    outbox: WriteQueue
    gone: asyncio.Future[str]
    """Completes with the reason why the program ends."""

    def __init__(self, handler: ChildHandler, turn: Callable[[], None] = _no_turn) -> None:
        self._handler = handler
        self._turn = turn

    def begin(self) -> asyncio.AbstractEventLoop:
        loop = self.loop = asyncio.get_running_loop()
        loop.set_exception_handler(self._loop_exception)
        self.outbox = WriteQueue(loop)
        self.gone = loop.create_future()
        return loop

    async def connect(self, unix_path: str, hello: bytes) -> InstanceSocket:
        """Connects to the instance, and tells it which program this is.

        Raises:
            OSError: the instance's socket cannot be connected.
        """
        _, socket = await self.loop.create_unix_connection(
            lambda: InstanceSocket(self, self._handler, self._turn), unix_path
        )
        socket.send(hello)
        return socket

    async def run(self, *works: Coroutine[Any, Any, None]) -> str:
        """Runs until the program ends. Returns the reason.

        Args:
            works: coroutines that run as long as the program. If one raises, the process ends, and
                the instance starts another one.
        """
        tasks = [self.loop.create_task(work) for work in works]
        try:
            over: list[asyncio.Future[Any]] = [*tasks, self.gone]
            await asyncio.wait(over, return_when=asyncio.FIRST_COMPLETED)
            for task in tasks:
                if task.done():
                    await task
            return await self.gone
        finally:
            for task in tasks:
                task.cancel()

    def end(self, why: str) -> None:
        """Ends the program, because the instance's socket has closed or for another reason."""
        if not self.gone.done():
            self.gone.set_result(why)

    def _loop_exception(self, loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        """Handles an error in a callback of the loop. An error of a socket ends only its
        connection. Any other error ends the process, and the instance starts another one."""
        error = context.get("exception")
        if error is None or isinstance(error, OSError | asyncio.CancelledError):
            return
        if not isinstance(error, RaylayError):
            loop.default_exception_handler(context)
        self._handler.failed(str(error) or repr(error))
        self.end(f"a fault: {error!r}")


class InstanceSocket(FramedConnection):
    """The Unix socket to the instance that started the program. Owner: the program."""

    def __init__(
        self, program: ChildProgram, handler: ChildHandler, turn: Callable[[], None]
    ) -> None:
        reader = FrameReader(frame_bytes_max=CONTROL_FRAME_BYTES_MAX)
        super().__init__(program.outbox, program.loop, reader)
        self._program = program
        self._handler = handler
        self._turn = turn

    def data_received(self, data: bytes) -> None:
        """Takes frames. What they change is acted upon once for all frames of a read."""
        super().data_received(data)
        self._turn()

    def frame_received(self, header: Header, body: bytes) -> None:
        if header["c"] == "ping":
            self.send(PONG)
        elif header["c"] == "rotate":
            logs.rotate()
        else:
            self._handler.instance_said(header, body)

    def writable(self) -> None:
        self._turn()

    def ended(self, why: str) -> None:
        self._program.end(why)
