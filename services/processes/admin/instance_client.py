"""The process's end of the Unix socket to its instance: questions and answers."""

from __future__ import annotations

import asyncio
import itertools
from collections import deque
from collections.abc import Callable, Mapping
from typing import Any

from raylay.services.admin.resources import Snapshot
from raylay.services.errors import FabricError
from raylay.services.protocol.child import admin_control as protocol
from raylay.services.protocol.frames import Header
from raylay.services.security.control import Caller
from raylay.services.security.permissions import Permissions, read_permissions

ANSWER_S_MAX = 20.0
"""Time, in seconds, that the instance has for an answer."""
EVENTS_MAX = 10_000
"""Number of the instance's latest events that are kept."""


class InstanceClient:
    """Asks the instance, as an `InstanceSource`, and keeps its latest events.

    Owner: the process's event loop.

    Args:
        instance: the instance's name, for errors.
        send: sends a frame to the instance.
    """

    def __init__(self, instance: str, send: Callable[[bytes], None]) -> None:
        self._instance = instance
        self._send = send
        self._numbers = itertools.count(1)
        self._waiting: dict[int, asyncio.Future[Any]] = {}
        self.events: deque[dict[str, Any]] = deque(maxlen=EVENTS_MAX)
        """The latest events of the instance, as of the last snapshot, oldest first."""
        self._last_event = 0

    def answered(self, header: Header, body: bytes) -> None:
        """Takes an answer of the instance."""
        waiting = self._waiting.pop(int(header["n"]), None)
        if waiting is None or waiting.done():
            return  # nobody waits any more
        try:
            waiting.set_result(protocol.read_answer(body))
        except Exception as error:
            waiting.set_exception(error)

    async def snapshot(self) -> Snapshot:
        """Returns the instance's values now.

        Raises:
            FabricError: the instance does not answer.
        """
        found: dict[str, Any] = await self._ask("snapshot", {"events_after": self._last_event})
        for event in found.pop("events"):
            self.events.append(event)
            self._last_event = event["number"]
        return found

    async def status(self, events_after: int | None) -> dict[str, Any]:
        """Returns the instance's own status, as `raylay status` shows it.

        Args:
            events_after: `events` are those behind this number; None: it has none.

        Raises:
            FabricError: the instance does not answer.
        """
        found: dict[str, Any] = await self._ask("status", {"events_after": events_after})
        return found

    async def identify(self, caller: Caller, address: str) -> tuple[str, Permissions | None]:
        """Returns the user's name and permissions; None: everything is allowed.

        Raises:
            ControlRefused: this caller is not let in.
            FabricError: the instance does not answer.
        """
        found = await self._ask("identify", {**_credentials(caller), "address": address})
        entries = found["admin"]
        if entries is None:
            return found["user"], None
        admin = [{"topic": topic, "read": may} for topic, may in entries]
        return found["user"], read_permissions({"admin": admin}, self._instance)

    async def perform(self, call: str, caller: Caller, arguments: Mapping[str, Any]) -> Any:
        """Has the instance authorize and perform a control call; returns its result.

        Raises:
            ControlRefused: the caller may not make this call.
            ConfigurationError: there is nothing of that name.
            RaylayError: it could not be done.
        """
        return await self._ask(
            "perform",
            {**_credentials(caller), "call": call, "details": dict(arguments)},
            silent=f"{call} may still go on: its events tell how it ends. If it does nothing, it",
        )

    async def _ask(self, what: str, arguments: Mapping[str, Any], silent: str = "it") -> Any:
        number = next(self._numbers)
        waiting = self._waiting[number] = asyncio.get_running_loop().create_future()
        self._send(protocol.ask(number, what, arguments))
        try:
            async with asyncio.timeout(ANSWER_S_MAX):
                return await waiting
        except TimeoutError:
            raise FabricError(
                f"{self._instance} has not answered within {ANSWER_S_MAX:g} s: {silent} is busy, "
                "or it hangs; `raylay status` and its log say more"
            ) from None
        finally:
            self._waiting.pop(number, None)


def _credentials(caller: Caller) -> dict[str, str]:
    return {"user": caller.user_id, "password": caller.password}
