"""services/processes/actions/function_calls.py: Python functions as steps of actions."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Coroutine
from typing import Any

import pytest

from raylay.services.errors import ConfigurationError, FabricError
from raylay.services.processes.actions.function_calls import FunctionCalls, function_of

pytestmark = pytest.mark.covers("Actions", "a function of Python as a step")
RELEASE = threading.Event()
RETURNED = threading.Event()


def upper(variables: dict[str, str]) -> dict[str, str]:
    """Returns the variables in capitals."""
    return {name: text.upper() for name, text in variables.items()}


def nothing(variables: dict[str, str]) -> None:
    """Sets no variable."""


def wrong(variables: dict[str, str]) -> list[int]:
    """Returns what is no mapping of texts."""
    return [7]


def fails(variables: dict[str, str]) -> None:
    """Raises."""
    raise TimeoutError("too slow")


def leaves(variables: dict[str, str]) -> None:
    """Raises what would end a program."""
    raise SystemExit(3)


def hangs(variables: dict[str, str]) -> None:
    """Waits until the test goes on."""
    RELEASE.wait()
    RETURNED.set()


def run(work: Coroutine[Any, Any, Any]) -> Any:
    """Runs a coroutine."""
    return asyncio.run(work)


def call(name: str, **variables: str) -> dict[str, str]:
    """Calls a function of this file."""
    found: dict[str, str] = run(FunctionCalls().call(f"{__name__}:{name}", variables))
    return found


def test_a_function_gets_variables_and_returns_variables() -> None:
    assert call("upper", A="x") == {"A": "X"}
    assert call("nothing") == {}


def test_what_a_function_raises_fails_the_step() -> None:
    with pytest.raises(TimeoutError, match="too slow"):
        call("fails")
    with pytest.raises(FabricError, match=r"leaves raised SystemExit\(3\)"):
        call("leaves")
    with pytest.raises(ConfigurationError, match="returned a list: give a mapping of texts"):
        call("wrong")


@pytest.mark.parametrize(
    ("name", "why"),
    [
        ("upper", "names no function"),
        (":upper", "names no function"),
        ("nowhere.at_all:upper", "cannot be imported"),
        ("os:nothing_of_this_name", "cannot be imported"),
        ("os:curdir", "is no function"),
    ],
)
def test_a_name_of_no_function_is_refused(name: str, why: str) -> None:
    with pytest.raises(ConfigurationError, match=why):
        function_of(name)


def test_a_method_of_a_class_is_a_function_too() -> None:
    assert function_of("asyncio:Event.set") is asyncio.Event.set


def test_a_function_that_hangs_is_called_again_only_when_it_has_returned() -> None:
    async def work() -> None:
        calls = FunctionCalls(seconds_max=0.05)
        name = f"{__name__}:hangs"
        with pytest.raises(FabricError, match=r"has not returned within 0\.05 s"):
            await calls.call(name, {})
        with pytest.raises(FabricError, match="has not returned from an earlier call"):
            await calls.call(name, {})
        RELEASE.set()
        await asyncio.to_thread(RETURNED.wait)
        while True:
            try:
                assert await calls.call(name, {}) == {}
                return
            except FabricError:  # its end is on its way
                await asyncio.sleep(0.01)

    run(work())
