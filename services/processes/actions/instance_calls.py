"""The control calls that steps make at their instance, over its Unix socket."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Callable
from typing import Any

from raylay.services.errors import FabricError, RaylayError
from raylay.services.protocol.child import action_control as protocol
from raylay.services.protocol.child import admin_control
from raylay.services.protocol.frames import Header

ANSWER_S_MAX = 300.0
"""Time, in seconds, that the instance has for a call: compressing old journals takes a while."""


class InstanceCalls:
    """See the file's docstring. Owner: the process's event loop.

    Args:
        instance: the instance's name, for errors.
        send: sends a frame to the instance.
    """

    def __init__(self, instance: str, send: Callable[[bytes], None]) -> None:
        self._instance = instance
        self._send = send
        self._numbers = itertools.count(1)
        self._waiting: dict[int, asyncio.Future[Any]] = {}

    def answered(self, header: Header, body: bytes) -> None:
        """Takes an answer of the instance."""
        waiting = self._waiting.get(int(header["n"]))
        if waiting is None or waiting.done():
            return  # nobody waits any more
        try:
            waiting.set_result(admin_control.read_answer(body))
        except RaylayError as error:
            waiting.set_exception(error)

    async def call(self, action: str, call: str, **arguments: Any) -> Any:
        """Has the instance perform a control call for an action; returns its result.

        Raises:
            FabricError: the instance does not answer.
            RaylayError: the call's own error.
        """
        number = next(self._numbers)
        waiting = self._waiting[number] = asyncio.get_running_loop().create_future()
        self._send(protocol.call(number, protocol.ActionCall(call, arguments, action)))
        try:
            async with asyncio.timeout(ANSWER_S_MAX):
                return await waiting
        except TimeoutError:
            raise FabricError(
                f"{self._instance} has not performed {call} within {ANSWER_S_MAX:g} s; it may "
                "still go on"
            ) from None
        finally:
            del self._waiting[number]
