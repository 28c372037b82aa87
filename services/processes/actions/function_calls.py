"""Python functions as steps of actions.

A function runs on a thread of its own, because it may block; nothing can end one that hangs. Its
step fails then, and the function is not called again before it has returned, so that hanging calls
do not pile up.
"""

from __future__ import annotations

import asyncio
import importlib
import threading
from collections.abc import Callable, Mapping
from typing import Any

from raylay.services.errors import ConfigurationError, FabricError

CALL_S_MAX = 10.0
"""Time, in seconds, that a function has."""


class FunctionCalls:
    """See the file's docstring. Owner: the process's event loop.

    Args:
        seconds_max: seconds that a function has.
    """

    def __init__(self, seconds_max: float = CALL_S_MAX) -> None:
        self._seconds_max = seconds_max
        self._late: set[str] = set()
        """Functions that have not returned in time."""

    async def call(self, name: str, variables: dict[str, str]) -> dict[str, str]:
        """Calls a function with variables. Returns the variables that it sets.

        Args:
            name: `package.module:function`.

        Raises:
            ConfigurationError: there is no such function, or its result is no mapping of texts.
            FabricError: it did not return in time, or an earlier call has not returned yet.
            Exception: whatever the function raises.
        """
        if name in self._late:
            raise FabricError(
                f"{name} has not returned from an earlier call: it is not called before that"
            )
        loop = asyncio.get_running_loop()
        answer: asyncio.Future[Any] = loop.create_future()
        is_late = False

        def settle(result: Any, error: BaseException | None) -> None:
            if is_late:
                self._late.discard(name)
            if answer.done():
                return
            if error is None:
                answer.set_result(result)
            else:
                answer.set_exception(error)

        def work() -> None:
            result, failure = None, None
            try:
                result = function_of(name)(variables)
            except Exception as error:
                failure = error
            except BaseException as error:  # such as SystemExit, which must not pass for a result
                failure = FabricError(f"{name} raised {error!r}")
            loop.call_soon_threadsafe(settle, result, failure)

        threading.Thread(target=work, name=f"raylay-{name}", daemon=True).start()
        try:
            async with asyncio.timeout(self._seconds_max):
                result = await asyncio.shield(answer)
        except TimeoutError:
            if answer.done():  # the function's own error
                raise
            answer.cancel()
            is_late = True
            self._late.add(name)
            raise FabricError(
                f"{name} has not returned within {self._seconds_max:g} s; it goes on, and is not "
                "called again before it has returned"
            ) from None
        return _texts(name, result)


def function_of(name: str) -> Callable[[Mapping[str, str]], Any]:
    """Returns the function of this name.

    Raises:
        ConfigurationError: there is no such function; the text has the reason.
    """
    module, colon, path = name.partition(":")
    if not colon or not module or not path:
        raise ConfigurationError(f"{name!r} names no function: give `package.module:function`")
    try:
        found: Any = importlib.import_module(module)
        for step in path.split("."):
            found = getattr(found, step)
    except (ImportError, AttributeError) as error:
        raise ConfigurationError(
            f"{name} cannot be imported where the actions run: {error}"
        ) from None
    if not callable(found):
        raise ConfigurationError(f"{name} is no function: name something that can be called")
    return found  # type: ignore[no-any-return]


def _texts(name: str, result: Any) -> dict[str, str]:
    if result is None:
        return {}
    if not isinstance(result, Mapping) or not all(
        isinstance(key, str) and isinstance(value, str) for key, value in result.items()
    ):
        raise ConfigurationError(
            f"{name} returned a {type(result).__name__}: give a mapping of texts, or None"
        )
    return dict(result)
