"""services/server/children/supervisor.py: a child that ends, or never comes, is started again."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from raylay.services.config.instance import DestinationConfig, InstanceConfig, LinkConfig
from raylay.services.errors import ConfigurationError
from raylay.services.server.children import supervisor
from raylay.services.server.children.supervisor import Supervisor, no_children
from raylay.services.server.runtime import InstanceRuntime

DEADLINE_S = 30.0


class Children:
    """Starts children, and notes what becomes of them."""

    def __init__(self, directory: Path) -> None:
        runtime = InstanceRuntime(InstanceConfig("A", "G"), directory)
        runtime.begin()
        runtime.report = self.note  # type: ignore[method-assign]
        self.started: list[int] = []
        self.killed: list[int] = []
        self.told: list[str] = []
        self.said: list[Any] = []
        self.connection: Any = SimpleNamespace(send=self.said.append, close=self.said.append)
        self.events: list[tuple[str, dict[str, Any]]] = []
        self.refuses = False
        self.cannot_be_killed = False
        self._changed = asyncio.Event()
        self._loop = runtime.loop
        self.supervisor = Supervisor(
            runtime, self.start, self.tell, kill_failed="child_kill_failed", of={"child": "one"}
        )

    def greet(self) -> None:
        """The child of the last start connects."""
        number = self.supervisor.number
        assert self.supervisor.greeted(self.connection, {"start": number, "pid": 7})
        assert not self.supervisor.greeted(self.connection, {"start": number}), "it is there"

    def lose(self) -> None:
        """Its socket closes."""
        assert not self.supervisor.lost(SimpleNamespace())  # type: ignore[arg-type]
        assert self.supervisor.lost(self.connection) and not self.supervisor.pid

    def start(self, number: int) -> Child:
        self.started.append(number)
        self._loop.call_soon_threadsafe(self._changed.set)
        if self.refuses:
            raise OSError("no memory")
        return Child(self, number)

    def note(self, event: str, **details: Any) -> None:
        self.events.append((event, details))
        self._changed.set()

    def tell(self, why: str) -> None:
        self.told.append(why)
        self._changed.set()

    async def until(self, reached: Callable[[], bool]) -> None:
        async with asyncio.timeout(DEADLINE_S):
            while not reached():
                self._changed.clear()
                await self._changed.wait()


class Child:
    def __init__(self, children: Children, number: int) -> None:
        self._children = children
        self._number = number

    def kill(self) -> None:
        self._children.killed.append(self._number)
        if self._children.cannot_be_killed:
            raise OSError("no such process")


@pytest.fixture(autouse=True)
def short_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(supervisor, "RESTART_S_MIN", 0.001)
    monkeypatch.setattr(supervisor, "RESTART_S_MAX", 0.002)


def run(directory: Path, work: Callable[[Children], Awaitable[None]]) -> None:
    async def main() -> None:
        children = Children(directory)
        children.supervisor.run()
        try:
            await work(children)
        finally:
            await children.supervisor.stop()

    asyncio.run(main())


def test_one_that_ends_is_killed_and_another_one_started_with_another_number(
    tmp_path: Path,
) -> None:
    async def work(children: Children) -> None:
        for starts in (1, 2, 3):
            await children.until(lambda: len(children.started) == starts)  # noqa: B023
            assert children.supervisor.number == children.started[-1]
            earlier = {"start": children.supervisor.number - 1}
            assert not children.supervisor.greeted(children.connection, earlier)
            assert children.killed == children.started[:-1], "never two at once"
            children.greet()
            children.lose()
        await children.until(lambda: len(children.told) >= 3)
        assert set(children.told) == {""}, "each was there"
        first, *others = children.started
        assert others[:2] == [first + 1, first + 2]

    run(tmp_path, work)


def test_one_that_never_comes_is_killed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(supervisor, "HELLO_TIMEOUT_S", 0.001)

    async def work(children: Children) -> None:
        await children.until(lambda: len(children.started) == 2)
        assert children.told[0] == "its process did not connect within 0.001 s"
        assert children.killed[0] == children.started[0]

    run(tmp_path, work)


def test_that_the_one_before_had_come_says_nothing_of_the_next(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def work(children: Children) -> None:
        await children.until(lambda: len(children.started) == 1)
        children.greet()
        monkeypatch.setattr(supervisor, "HELLO_TIMEOUT_S", 0.001)
        children.lose()
        await children.until(lambda: len(children.told) >= 2)
        assert children.told[:2] == ["", "its process did not connect within 0.001 s"]

    run(tmp_path, work)


def test_one_that_cannot_be_started_is_tried_again(tmp_path: Path) -> None:
    async def work(children: Children) -> None:
        children.refuses = True
        await children.until(lambda: len(children.told) == 2)
        assert children.told == ["its process cannot be started: no memory"] * 2
        assert not children.killed

    run(tmp_path, work)


@pytest.mark.parametrize(
    ("steady_s", "pauses"), [(1e9, [0.001, 0.002, 0.002]), (-1.0, [0.001, 0.001, 0.001])]
)
def test_the_pause_grows_until_one_has_lived_for_a_while(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, steady_s: float, pauses: list[float]
) -> None:
    monkeypatch.setattr(supervisor, "STEADY_S", steady_s)
    slept: list[float] = []
    sleep = asyncio.sleep

    async def noted(pause_s: float) -> None:
        slept.append(pause_s)
        await sleep(0)

    monkeypatch.setattr(asyncio, "sleep", noted)

    async def work(children: Children) -> None:
        children.refuses = True
        await children.until(lambda: len(children.started) > 3)

    run(tmp_path, work)
    assert slept[:3] == pauses


def test_one_that_cannot_be_killed_is_told_of_and_forgotten(tmp_path: Path) -> None:
    async def work(children: Children) -> None:
        children.cannot_be_killed = True
        await children.until(lambda: len(children.started) == 1)
        children.greet()
        children.lose()
        await children.until(lambda: len(children.started) == 2)
        assert children.told == [""]
        (killed,) = children.events
        assert killed == ("child_kill_failed", {"child": "one", "why": "no such process"})

    run(tmp_path, work)


def test_once_stopped_it_starts_none_and_leaves_the_last_to_be_killed(tmp_path: Path) -> None:
    async def work(children: Children) -> None:
        async with asyncio.timeout(DEADLINE_S):
            while children.supervisor._handle is None:
                await asyncio.sleep(0)
        children.greet()
        await children.supervisor.stop()
        assert not children.killed
        await children.supervisor.kill()
        assert children.killed == children.started and len(children.started) == 1
        await children.supervisor.kill()
        assert len(children.killed) == 1

    run(tmp_path, work)


@pytest.mark.parametrize("leaves", [True, False])
def test_one_that_is_ended_is_told_and_has_time_to_leave(tmp_path: Path, leaves: bool) -> None:
    async def work(children: Children) -> None:
        async with asyncio.timeout(DEADLINE_S):
            while children.supervisor._handle is None:
                await asyncio.sleep(0)
        children.greet()
        ending = asyncio.create_task(children.supervisor.end(b"stop", DEADLINE_S if leaves else 0))
        if leaves:
            while not children.said:
                await asyncio.sleep(0)
            children.lose()
        await ending
        assert children.said == [b"stop", *([] if leaves else ["the instance stops"])]
        assert children.killed == children.started

    run(tmp_path, work)


def test_an_instance_that_was_given_no_start_of_children_says_which_it_lacks() -> None:
    to = DestinationConfig("B", "pair", True, ("127.0.0.1:1",))
    with pytest.raises(ConfigurationError, match=r"A\.B is to run beside .*: give start_child"):
        no_children(LinkConfig("A", "pair", 1, 1, "", "", None, to))
