"""services/server/action_runner.py: the instance's end of the process that runs its actions. Here
the test is that process."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from raylay.services.actions.model import ActionDefinition, ActionModule
from raylay.services.client import Client
from raylay.services.config.actions import ActionRunnerConfig, client_name
from raylay.services.config.instance import InstanceConfig
from raylay.services.errors import ConfigurationError, FabricError, RaylayError
from raylay.services.protocol.child import action_control as protocol
from raylay.services.protocol.child import admin_control
from raylay.services.protocol.frames import Frame, FrameReader
from raylay.services.server import action_runner
from raylay.services.server.instance_server import InstanceServer
from raylay.services.telemetry.logs import LogOptions

pytestmark = pytest.mark.covers("Actions", "the process beside the instance")
NOTHING = (ActionModule("do", "nothing"),)
DEADLINE_S = 60.0


def config(*on: ActionModule) -> InstanceConfig:
    """Returns the configuration of an instance with an action."""
    return InstanceConfig(
        "north",
        "main",
        first=True,
        actions=(ActionDefinition("tidy", on, NOTHING),),
        log=LogOptions(target="none"),
    )


CONNECTS = ActionModule("on", "connect-client")
MESSAGES = ActionModule("on", "publish-message", (("Topic", "orders"), ("MessageType", "json")))


class Child:
    """The process, which the test stands for.

    Attributes:
        starts: the configurations with which it was started.
    """

    def __init__(self) -> None:
        self.starts: list[ActionRunnerConfig] = []

    def __call__(self, config: Any) -> Child:
        self.starts.append(config)
        return self

    def kill(self) -> None:
        """Does nothing: there is no process."""


class Connection:
    """A connection of the process to its instance."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader, self._writer = reader, writer
        self._frames = FrameReader()
        self._read: list[Frame] = []

    async def next(self, kind: str) -> Frame:
        """Returns the next frame of a kind; others are passed over."""
        while True:
            while self._read:
                found = self._read.pop(0)
                if found.header["c"] == kind:
                    return found
            data = await self._reader.read(1 << 20)
            if not data:
                raise EOFError
            self._read += self._frames.feed(data)

    def say(self, frame: bytes) -> None:
        """Sends a frame."""
        self._writer.write(frame)

    async def call(self, call: str, **arguments: Any) -> Any:
        """Makes a control call and returns its result."""
        self.say(protocol.call(1, protocol.ActionCall(call, arguments, "tidy")))
        return admin_control.read_answer((await self.next("answer")).body)

    async def close(self) -> None:
        """Ends the connection."""
        self._writer.close()
        await self._writer.wait_closed()


async def connected(server: InstanceServer, child: Child, starts: int = 1) -> Connection:
    """Connects as the process of the last start."""
    while len(child.starts) < starts:
        await asyncio.sleep(0.01)
    config = child.starts[-1]
    found = Connection(*await asyncio.open_unix_connection(server.runtime.unix_path))
    found.say(protocol.hello(config.instance, config.start_number, 77))
    while server.status()["actions"]["pid"] != 77:
        await asyncio.sleep(0.01)
    return found


def run(
    directory: Path,
    config: InstanceConfig,
    work: Callable[[InstanceServer, Child], Awaitable[None]],
) -> None:
    """Runs an instance while some work is done."""

    async def serve() -> None:
        child = Child()
        server = InstanceServer(config, directory, child)
        await server.start()
        try:
            async with asyncio.timeout(DEADLINE_S):
                await work(server, child)
        finally:
            await server.stop()

    asyncio.run(serve())


def connects(server: InstanceServer, *names: str) -> None:
    """Tells that clients connect."""
    for name in names:
        server.runtime.occurrences.tell("connect-client", {"AMPS_CLIENT_NAME": name})


def names_of(frame: Frame) -> list[str]:
    """Returns the clients that a batch of occurrences names."""
    return [each.variables["AMPS_CLIENT_NAME"] for each in protocol.read_occurred(frame.body)]


def events(server: InstanceServer, name: str) -> list[dict[str, Any]]:
    """Returns the events of a name."""
    return [each for each in server.events() if each["event"] == name]


def test_occurrences_wait_for_the_process_and_come_in_batches(tmp_path: Path) -> None:
    async def work(server: InstanceServer, child: Child) -> None:
        connects(server, "early", client_name("north"))
        process = await connected(server, child)
        assert names_of(await process.next("occurred")) == ["early"]
        connects(server, "a", "b", "c")
        assert names_of(await process.next("occurred")) == ["a", "b", "c"]
        assert server.status()["actions"]["waiting"] == 4
        process.say(protocol.taken(4))
        while server.status()["actions"]["waiting"]:
            await asyncio.sleep(0.01)
        await process.close()

    run(tmp_path, config(CONNECTS), work)


def test_what_waits_is_bounded_dropped_and_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(action_runner, "WAITING_MAX", 3)
    monkeypatch.setattr(action_runner, "UNTAKEN_MAX", 2)

    async def work(server: InstanceServer, child: Child) -> None:
        connects(server, *"abcdefg")
        assert server.status()["actions"]["dropped"] == 4
        process = await connected(server, child)
        assert names_of(await process.next("occurred")) == ["a", "b"]
        process.say(protocol.taken(2))
        assert names_of(await process.next("occurred")) == ["c"]
        while not (told := events(server, "action_occurrences_dropped")):
            await asyncio.sleep(0.01)
        assert told[0]["occurrences"] == 4
        monkeypatch.setattr(action_runner, "WAITING_BYTES_MAX", 10)
        connects(server, "x" * 11)
        assert server.status()["actions"]["dropped"] == 5
        await process.close()

    run(tmp_path, config(CONNECTS), work)


def test_what_a_process_that_ends_had_in_hand_is_not_begun_again(tmp_path: Path) -> None:
    async def work(server: InstanceServer, child: Child) -> None:
        process = await connected(server, child)
        connects(server, "a")
        await process.next("occurred")
        await process.close()
        while not events(server, "action_runner_ended"):
            await asyncio.sleep(0.01)
        connects(server, "b")
        process = await connected(server, child, 2)
        assert names_of(await process.next("occurred")) == ["b"]
        assert server.status()["actions"]["dropped"] == 1
        first, second = child.starts[:2]
        assert first.secret != second.secret and first.start_number != second.start_number
        await process.close()

    run(tmp_path, config(CONNECTS), work)


def test_a_process_of_an_earlier_start_is_not_listened_to(tmp_path: Path) -> None:
    async def work(server: InstanceServer, child: Child) -> None:
        process = await connected(server, child)
        other = Connection(*await asyncio.open_unix_connection(server.runtime.unix_path))
        other.say(protocol.hello("north", child.starts[0].start_number - 1, 78))
        await other.next("stop")
        await process.close()

    run(tmp_path, config(CONNECTS), work)


def test_calls_of_actions_are_performed_or_refused(tmp_path: Path) -> None:
    async def work(server: InstanceServer, child: Child) -> None:
        process = await connected(server, child)
        assert await process.call("disable_transport", transport="client")
        assert not server.status()["transports"][0]["enabled"]
        assert events(server, "action_call")[-1]["call"] == "disable_transport"
        with pytest.raises(ConfigurationError, match="is no call that an action makes"):
            await process.call("drill")
        with pytest.raises(ConfigurationError, match="cannot perform compact"):
            await process.call("compact", nothing=1)
        with pytest.raises(RaylayError, match="keeps no statistics"):
            await process.call("truncate_statistics", age_ms=1)
        assert "nothing to compact" in await process.call("compact_all")
        await process.close()

    run(tmp_path, config(CONNECTS), work)


def test_only_so_many_calls_are_performed_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(action_runner, "CALLS_MAX", 0)

    async def work(server: InstanceServer, child: Child) -> None:
        process = await connected(server, child)
        with pytest.raises(FabricError, match="north is busy"):
            await process.call("compact_all")
        await process.close()

    run(tmp_path, config(CONNECTS), work)


def test_the_process_reports_events_of_actions_and_no_others(tmp_path: Path) -> None:
    async def work(server: InstanceServer, child: Child) -> None:
        process = await connected(server, child)
        process.say(protocol.report("fatal", {"text": "forged"}))
        process.say(protocol.report("action_message", {"action": "tidy", "text": "hello"}))
        process.say(protocol.status({"tidy": {"runs": 3}}))
        while server.status()["actions"]["actions"] != {"tidy": {"runs": 3}}:
            await asyncio.sleep(0.01)
        assert events(server, "action_message")[0]["text"] == "hello"
        assert not events(server, "fatal")
        await process.close()

    run(tmp_path, config(CONNECTS), work)


def test_clients_wait_until_the_actions_have_subscribed(tmp_path: Path) -> None:
    async def work(server: InstanceServer, child: Child) -> None:
        process = await connected(server, child)
        assert "waits until its actions have subscribed" in server.status()["reason"]
        own = Client(
            client_name("north"),
            [f"unix:{server.runtime.unix_path}"],
            password=child.starts[0].secret,
        )
        async with own:
            early = Client("early", [server.runtime.client_address])
            connecting = asyncio.create_task(early.connect())
            process.say(protocol.READY)
            await connecting
            await early.close()
        assert server.status()["reason"] == ""
        await process.close()

    run(tmp_path, config(MESSAGES), work)


def test_clients_wait_only_so_long(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(action_runner, "READY_S_MAX", 0)

    async def work(server: InstanceServer, child: Child) -> None:
        while not events(server, "actions_late"):
            await asyncio.sleep(0.01)
        assert server.status()["reason"] == ""

    run(tmp_path, config(MESSAGES), work)


def test_the_end_waits_for_actions_only_so_long(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(action_runner, "SETTLE_S", 0.1)
    monkeypatch.setattr(action_runner, "LEAVE_S", 0.1)

    async def work(server: InstanceServer, child: Child) -> None:
        process = await connected(server, child)
        ending = asyncio.create_task(server.stop())
        (told,) = protocol.read_occurred((await process.next("occurred")).body)
        assert told.kind == "shutdown"
        await process.next("settle")
        await ending
        assert "have not ended within 0.1 s" in events(server, "action_failed")[0]["text"]
        with pytest.raises(EOFError):
            await process.next("nothing")

    run(tmp_path, config(ActionModule("on", "shutdown")), work)


def test_without_actions_there_is_no_process_and_nobody_listens(tmp_path: Path) -> None:
    async def work(server: InstanceServer, child: Child) -> None:
        assert "actions" not in server.status()
        assert not server.runtime.occurrences.wanted("connect-client")
        assert child.starts == []

    bare = InstanceConfig("north", "main", first=True, log=LogOptions(target="none"))
    run(tmp_path, bare, work)
