"""The instance's end of its administrator's interface: it keeps the process running, and answers
its questions.

The process serves HTTP beside the instance's loop (services/processes/admin). The instance answers
at most once a second with its values, judges each caller, and performs the control calls.
"""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

from raylay.services.errors import ConfigurationError, FabricError, RaylayError
from raylay.services.net.framed import FramedConnection
from raylay.services.protocol.child import admin_control as protocol
from raylay.services.protocol.frames import Header
from raylay.services.security.control import Caller
from raylay.services.server.children.supervisor import ChildHandle, Supervisor
from raylay.services.server.control import ControlAccess
from raylay.services.server.runtime import InstanceRuntime

QUESTIONS_MAX = 64
"""Number of questions that are answered at the same time."""
EVENTS_MAX = 1_000
"""Number of events that one answer holds."""
TRUNCATE_S_MAX = 60.0
"""Time, in seconds, in which samples of the statistics are removed."""

AdminStart = Callable[[int], ChildHandle]
"""Function that starts the process, with the number of the start."""


class AdminInterface:
    """See the file's docstring.

    Owner: the instance's event loop. Lifecycle: `run` and `stop` once, if the instance has the
    interface.

    Args:
        start: starts the process.
        status: returns the status of the instance, in any state.
        snapshot: returns its values for the resource tree, in any state (admin_snapshot.py).
        access: identifies callers.
        perform: performs a control call of a caller, with its arguments.
    """

    def __init__(
        self,
        runtime: InstanceRuntime,
        start: AdminStart,
        *,
        status: Callable[[], dict[str, Any]],
        snapshot: Callable[[], Awaitable[dict[str, Any]]],
        access: ControlAccess,
        perform: Callable[[str, Mapping[str, Any], Caller | None], Awaitable[Any]],
    ) -> None:
        self._runtime = runtime
        self._status = status
        self._take_snapshot = snapshot
        self._access = access
        access.follow(self._forget)
        self._perform = perform
        self._answering = 0
        self._numbers = itertools.count(1)
        self._truncating: dict[int, asyncio.Future[Any]] = {}
        self.name = "the administrator's interface"
        self.address = ""
        """Address `host:port` that the interface listens on; empty: it does not listen."""
        self.why = ""
        """Reason why the interface does not listen, as a sentence for people; empty: it does."""
        self.process = Supervisor(
            runtime,
            start,
            self._process_ended,
            kill_failed="admin_interface_kill_failed",
            of={"instance": runtime.config.name},
        )

    @property
    def is_configured(self) -> bool:
        return self._runtime.config.interface is not None

    def run(self) -> None:
        """Starts the process, if the instance is configured to have one."""
        if self.is_configured:
            self.process.run()

    async def stop(self) -> None:
        """Ends the process."""
        if self.is_configured:
            await self.process.end(protocol.STOP)

    def status(self) -> dict[str, Any]:
        return {
            "address": self.address,
            "why": self.why,
            "pid": self.process.pid,
            "starts": self.process.starts,
        }

    def _process_ended(self, why: str) -> None:
        self.address = ""
        self.why = why or self.why or "its process ended"
        if not self._runtime.is_stopping:
            self._runtime.report("admin_interface_ended", text=self.why)

    def _forget(self, user: str) -> None:
        # However the reset came: by this interface, by Ray, or by another one.
        self.process.say(protocol.forget(user))

    async def truncate_statistics(self, age_ms: int) -> str:
        """Has the process remove the samples that are older than `age_ms`. Returns a sentence.

        Raises:
            ConfigurationError: the instance has no interface, and keeps no statistics.
            FabricError: the process does not answer.
            StorageError: the samples cannot be removed.
        """
        name = self._runtime.config.name
        if not self.is_configured:
            raise ConfigurationError(f"{name} keeps no statistics: it has no `admin`")
        number = next(self._numbers)
        waiting = self._truncating[number] = self._runtime.loop.create_future()
        before_us = self._runtime.now_us() - age_ms * 1000
        self.process.say(protocol.truncate(number, before_us))
        self._runtime.outbox.flush()
        try:
            async with asyncio.timeout(TRUNCATE_S_MAX):
                return str(await waiting)
        except TimeoutError:
            raise FabricError(
                f"the administrator's interface of {name} has not removed statistics within "
                f"{TRUNCATE_S_MAX:g} s: {self.why or 'it is busy'}"
            ) from None
        finally:
            del self._truncating[number]

    # -- the connection of the process -----------------------------------------------------------
    def greeted(self, connection: FramedConnection, header: Header) -> bool:
        """Takes the connection of the process. Returns whether it is that of the last start."""
        return self.process.greeted(connection, header)

    def lost(self, connection: FramedConnection, why: str) -> None:
        """Notes that the process's socket has closed."""
        self.process.lost(connection)

    def frame_received(self, header: Header, body: bytes) -> None:
        if header["c"] == "listens":
            self.address, self.why = str(header["address"]), str(header.get("why", ""))
            if self.address:
                self._runtime.report("admin_interface_serves", address=self.address)
            else:
                self._runtime.report("admin_interface_failed", text=self.why)
        elif header["c"] == "truncated":
            self._truncated(int(header["n"]), body)
        elif header["c"] == "ask":
            self._asked(int(header["n"]), str(header["what"]), protocol.read_map(body))

    def _truncated(self, number: int, body: bytes) -> None:
        waiting = self._truncating.get(number)
        if waiting is None or waiting.done():
            return  # nobody waits any more
        try:
            waiting.set_result(protocol.read_answer(body))
        except RaylayError as error:
            waiting.set_exception(error)

    def _asked(self, number: int, what: str, arguments: Mapping[str, Any]) -> None:
        if what == "status":
            self.process.say(protocol.answer(number, self._told(**arguments)))
            return
        if self._answering >= QUESTIONS_MAX:
            busy = FabricError(f"{self._runtime.config.name} is busy: try again a little later")
            self.process.say(protocol.refusal(number, busy))
            return
        self._answering += 1
        self._runtime.spawn(self._answer(number, what, arguments))

    async def _snapshot(self, events_after: int = 0) -> dict[str, Any]:
        found = await self._take_snapshot()
        events = self._runtime.events_log.after(events_after, EVENTS_MAX)
        return {**found, "events": events}

    def _told(self, events_after: int | None = None) -> dict[str, Any]:
        """Returns the instance's own status, and the events behind a number; None: no events."""
        found = self._status()
        if events_after is not None:
            found["events"] = self._runtime.events_log.after(events_after, EVENTS_MAX)
        return found

    async def _answer(self, number: int, what: str, arguments: Mapping[str, Any]) -> None:
        try:
            result = await self._result(what, arguments)
            frame = protocol.answer(number, result)
        except RaylayError as error:
            frame = protocol.refusal(number, error)
        except TypeError as error:  # a call without one of its arguments, or with another one
            text = f"{self._runtime.config.name} cannot perform this: {error}"
            frame = protocol.refusal(number, FabricError(text))
        finally:
            self._answering -= 1
        self.process.say(frame)
        self._runtime.outbox.flush()

    async def _result(self, what: str, arguments: Mapping[str, Any]) -> Any:
        if what == "snapshot":
            return await self._snapshot(**arguments)
        user, password = str(arguments["user"]), str(arguments["password"])
        caller = Caller(user, password)
        if what == "identify":
            return await self._access.identify(caller, str(arguments["address"]))
        if not self._runtime.is_serving:
            raise FabricError(f"{self._runtime.config.name} does not serve: {self._runtime.phase}")
        return await self._perform(str(arguments["call"]), arguments["details"], caller)
