"""Keeps one child process of an instance running.

The instance is the only one that starts a child again (Ray restarts none): a child that dies closes
its Unix socket, and the instance acts on that, whether or not Ray's head can be reached.
"""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import struct
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Protocol

from raylay.services.config.actions import ActionRunnerConfig
from raylay.services.config.admin_interface import AdminProcessConfig
from raylay.services.config.buffer import SlowClientBufferConfig
from raylay.services.config.instance import LinkConfig, QueueOwnerConfig
from raylay.services.errors import ConfigurationError
from raylay.services.net.framed import FramedConnection
from raylay.services.protocol.child.control import PING
from raylay.services.protocol.frames import Header
from raylay.services.server.children.liveness import ChildLiveness
from raylay.services.server.runtime import InstanceRuntime

HELLO_TIMEOUT_S = 60.0
"""Time, in seconds, in which a started child must connect. After that it is killed and another one
is started."""
OTHERS_WAIT_S = 10.0
RESTART_S_MIN = 0.05
RESTART_S_MAX = 5.0
STEADY_S = 10.0
"""Life of a child, in seconds, after which its successor is started with the shortest pause."""
_CREDENTIALS = struct.Struct("=3i")


class ChildHandle(Protocol):
    """A started child."""

    def kill(self) -> None:
        """Ends the child at once if it still runs. Called in a thread; may block."""


ChildConfig = (
    LinkConfig | QueueOwnerConfig | SlowClientBufferConfig | AdminProcessConfig | ActionRunnerConfig
)
"""Configuration that a child is started with: that of a link, a queue's owner, the buffer of a
pool, the administrator's interface, or the process that runs actions."""


class ChildStart(Protocol):
    """Starts a child: an actor, a subprocess, or in tests something else."""

    def __call__(self, config: ChildConfig) -> ChildHandle:
        """Starts a child. Called in a thread; may block; may raise: the start is then tried
        again."""


def no_children(config: ChildConfig) -> ChildHandle:
    """Refuses to start a child, for an instance that must not need any.

    Raises:
        ConfigurationError: always.
    """
    raise ConfigurationError(
        f"{config.process_name} is to run beside its instance, which was given nothing to start "
        "it with: give start_child"
    )


class Supervisor:
    """See the file's docstring.

    Invariant: the instance talks to at most one child, that of the last start: `number` tells it
    from all earlier ones, those of earlier lives of the instance included.
    Owner: the instance's event loop. Lifecycle: `run` once, `stop` once.

    Args:
        start: starts the child with the number that it is given. Called in a thread; may block; may
            raise: the start is then tried again.
        ended: called each time when a child has ended; with the reason if it never connected.
        kill_failed: the name of the event that reports a child which could not be killed.
        of: the details that identify the child in each event.
    """

    def __init__(
        self,
        runtime: InstanceRuntime,
        start: Callable[[int], ChildHandle],
        ended: Callable[[str], None],
        *,
        kill_failed: str,
        of: dict[str, str],
    ) -> None:
        self._runtime = runtime
        self._start = start
        self._told_ended = ended
        self._kill_failed = kill_failed
        self._of = of
        self.connection: FramedConnection | None = None
        """Connection of the child of the last start; None: the child is not connected."""
        self.pid = 0
        self.starts = 0
        # Random, so that a child that an earlier life of this instance started is not mistaken for
        # one of this life.
        self._first = int.from_bytes(os.urandom(6), "big") << 8
        self._handle: ChildHandle | None = None
        self._task: asyncio.Task[None] | None = None
        self._ended = asyncio.Event()
        self._greeted = asyncio.Event()
        self._answering = ChildLiveness()

    @property
    def number(self) -> int:
        """The number of the last start."""
        return self._first + self.starts

    def run(self) -> None:
        """Starts the child and keeps one running from now on."""
        self._task = self._runtime.loop.create_task(self._run())

    def is_of_last_start(self, header: Header) -> bool:
        """Returns whether a child's frame names the number of the last start."""
        return bool(header.get("start") == self.number)

    def greeted(self, connection: FramedConnection, header: Header) -> bool:
        """Takes the connection of a child. Returns whether the child is that of the last start; the
        socket of an earlier one is to be closed."""
        if not self.is_of_last_start(header) or self.connection is not None:
            return False
        self._ended.clear()
        self.connection = connection
        self.pid = int(header.get("pid") or 0)
        self._greeted.set()
        return True

    async def came(self) -> None:
        """Waits until the child of the last start has connected."""
        await self._greeted.wait()

    def lost(self, connection: FramedConnection) -> bool:
        """Notes that a child's socket closed. Returns whether the child was that of the last
        start."""
        if self.connection is not connection:
            return False
        self.connection = None
        self.pid = 0
        self._ended.set()
        return True

    def say(self, frame: bytes) -> None:
        if self.connection is not None:
            self.connection.send(frame)

    def look(self, now_s: float) -> None:
        """Called now and then. Asks a silent child for a sign of life, and ends one that does not
        answer: its connection, and its process, wherever that hangs."""
        connection = self.connection
        if connection is None or not connection.is_open:
            return
        found = self._answering.look(now_s, connection.received_at_s)
        if found == "ask":
            connection.send(PING)
        elif found == "hung":
            pid = _pid_of(connection)
            silent_s = round(self._answering.silent_s)
            self._answering = ChildLiveness()
            self._runtime.report("child_hung", **self._of, pid=pid, silent_s=silent_s)
            if pid:
                with suppress(OSError):
                    os.kill(pid, signal.SIGKILL)
            connection.abort(f"its process did not answer for {silent_s} s, and was ended")

    async def _run(self) -> None:
        runtime = self._runtime
        pause_s = RESTART_S_MIN
        while True:
            self._greeted.clear()
            self.starts += 1
            began_s = runtime.loop.time()
            why = ""
            try:
                self._handle = await runtime.in_thread(self._start, self.number)
                # `wait_for` loses a cancellation that comes in the same turn as the child's
                # greeting.
                async with asyncio.timeout(HELLO_TIMEOUT_S):
                    await self._greeted.wait()
                await self._ended.wait()
            except TimeoutError:
                why = f"its process did not connect within {HELLO_TIMEOUT_S:g} s"
            except Exception as error:  # the start is tried again, whatever it raises
                why = f"its process cannot be started: {error}"
            self._told_ended(why)
            await self.kill()
            if runtime.loop.time() - began_s > STEADY_S:
                pause_s = RESTART_S_MIN
            await asyncio.sleep(pause_s)
            pause_s = min(2 * pause_s, RESTART_S_MAX)

    async def stop(self) -> None:
        """Starts no child any more. A child that runs goes on, until `end` tells it to stop or
        kills it."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    async def end(self, stop: bytes, leave_s: float = 0.0) -> None:
        """Ends the child for good.

        Args:
            stop: the frame that tells the child to stop.
            leave_s: seconds in which the child may close its socket by itself.
        """
        await self.stop()
        self.say(stop)
        if leave_s and self.connection is not None:
            with suppress(TimeoutError):
                async with asyncio.timeout(leave_s):
                    await self._ended.wait()
        if self.connection is not None:
            self.connection.close("the instance stops")
        await self.kill()

    async def kill(self) -> None:
        handle, self._handle = self._handle, None
        if handle is not None:
            try:
                await self._runtime.in_thread(handle.kill)
            except Exception as error:  # a child that cannot be killed counts as ended
                self._runtime.report(self._kill_failed, **self._of, why=str(error))


def _pid_of(connection: FramedConnection) -> int:
    """Returns the id of the process at the other end of a Unix socket; 0: the system does not
    tell."""
    transport = connection.transport
    found = None if transport is None else transport.get_extra_info("socket")
    if found is None or found.family != socket.AF_UNIX:
        return 0
    data = found.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
    pid: int = _CREDENTIALS.unpack(data)[0]
    return pid


async def run_in_order(first: Sequence[Supervisor], others: Sequence[Supervisor]) -> None:
    """Starts the first children, and the others when the first have connected, or after
    OTHERS_WAIT_S if one of the first cannot be started."""
    for child in first:
        child.run()
    try:
        async with asyncio.timeout(OTHERS_WAIT_S):
            for child in first:
                await child.came()
    except TimeoutError:
        pass
    for child in others:
        child.run()
