"""The start and end of a child program: the Unix socket to the instance, whose closing ends the
program, and the handling of faults. (A link has the instance's socket for its threads as well:
link/runtime.py.)"""

from __future__ import annotations

import asyncio
from typing import Any

from raylay.services.errors import RaylayError
from raylay.services.net.framed import FramedConnection, WriteQueue
from raylay.services.protocol.child.control import CONTROL_FRAME_BYTES_MAX, PONG
from raylay.services.protocol.frames import FrameReader, Header


class ChildProgram:
    """A child program of an instance, from its start to its end.

    Owner: the program's actor. Lifecycle: `begin`, then until `gone` is done.
    """

    loop: asyncio.AbstractEventLoop
    gone: asyncio.Future[str]
    """Done with the reason why the program is over."""

    def begin(self) -> asyncio.AbstractEventLoop:
        """Takes the loop that runs."""
        loop = self.loop = asyncio.get_running_loop()
        loop.set_exception_handler(self.loop_exception)
        self.gone = loop.create_future()
        return loop

    def instance_said(self, header: Header, body: bytes) -> None:
        """A frame of the instance's."""
        raise NotImplementedError

    def instance_lost(self, why: str) -> None:
        """The instance's socket closed, or it is over for another reason."""
        if not self.gone.done():
            self.gone.set_result(why)

    def loop_exception(self, loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        """A callback of the loop raised. A socket's error ends its connection and no more. With
        anything else the process ends, and the instance starts another one."""
        error = context.get("exception")
        if error is None or isinstance(error, OSError | asyncio.CancelledError):
            return
        if not isinstance(error, RaylayError):
            loop.default_exception_handler(context)
        self.failed(str(error) or repr(error))
        self.instance_lost(f"a fault: {error!r}")

    def failed(self, text: str) -> None:
        """A fault ends it: who is to know is told."""


class InstanceSocket(FramedConnection):
    """The Unix socket to the program's own instance. Owner: the program."""

    def __init__(
        self, program: ChildProgram, outbox: WriteQueue, loop: asyncio.AbstractEventLoop
    ) -> None:
        super().__init__(outbox, loop, FrameReader(frame_bytes_max=CONTROL_FRAME_BYTES_MAX))
        self._program = program

    def frame_received(self, header: Header, body: bytes) -> None:
        """A frame of the instance's."""
        if header["c"] == "ping":
            self.send(PONG)
        else:
            self._program.instance_said(header, body)

    def ended(self, why: str) -> None:
        """The instance is gone."""
        self._program.instance_lost(why)
