"""The actions of an instance: the real process beside it performs their steps."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Awaitable, Callable, Iterable
from pathlib import Path
from typing import Any

from raylay.services.actions.model import ActionDefinition, ActionModule
from raylay.services.client import Client
from raylay.services.config.actions import client_name
from raylay.services.config.instance import InstanceConfig
from raylay.services.server.children.subprocess import ChildSubprocess
from raylay.services.server.instance_server import InstanceServer
from raylay.services.telemetry import logs

DEADLINE_S = 120.0
Options = dict[str, str]
Module = tuple[str, Options]


def action(name: str, on: Iterable[Module], *steps: Module) -> ActionDefinition:
    """Returns an action; steps whose names begin with `if-` are conditions."""

    def module(kind: Any, each: Module) -> ActionModule:
        return ActionModule(kind, each[0], tuple(each[1].items()))

    return ActionDefinition(
        name,
        tuple(module("on", each) for each in on),
        tuple(
            module("if", (each[0].removeprefix("if-"), each[1]))
            if each[0].startswith("if-")
            else module("do", each)
            for each in steps
        ),
    )


def published(topic: str, **options: str) -> list[Module]:
    """Returns the `on` module of messages that are published to a topic."""
    return [("publish-message", {"Topic": topic, "MessageType": "json", **options})]


def publish(topic: str, data: str, **options: str) -> Module:
    """Returns the step that publishes."""
    return "publish-message", {"Topic": topic, "MessageType": "json", "Data": data, **options}


def config(*actions: ActionDefinition, **options: Any) -> InstanceConfig:
    """Returns the configuration of a lone instance."""
    return InstanceConfig("north", "main", first=True, actions=actions, **options)


def run(
    directory: Path,
    config: InstanceConfig,
    work: Callable[[InstanceServer], Awaitable[None]],
) -> None:
    """Runs an instance with child processes while some work is done."""

    async def serve() -> None:
        logs.configure(config.name, config.log)
        server = InstanceServer(config, directory, ChildSubprocess)
        await server.start()
        try:
            async with asyncio.timeout(DEADLINE_S):
                await work(server)
        finally:
            await server.stop()

    asyncio.run(serve())


def events(server: InstanceServer, name: str) -> list[dict[str, Any]]:
    """Returns the events of a name, oldest first."""
    return [each for each in server.events() if each["event"] == name]


async def until(condition: Callable[[], Any]) -> Any:
    """Waits until a condition is true; returns its value."""
    while not (found := condition()):
        await asyncio.sleep(0.02)
    return found


async def subscribed(server: InstanceServer, count: int = 1) -> None:
    """Waits until the actions have made their subscriptions."""
    parts = server.parts

    def has() -> bool:
        for each in parts.clients.sessions.values():
            if each.client_name == client_name("north"):
                return len(each.subscriptions) >= count  # type: ignore[attr-defined]
        return False

    await until(has)


def client(server: InstanceServer, name: str = "desk") -> Client:
    """Returns a client of the instance."""
    return Client(name, [server.runtime.client_address])


def test_a_message_starts_an_action_that_publishes_what_it_read(tmp_path: Path) -> None:
    copy = action(
        "copy",
        published("orders", Filter="/price > 10"),
        (
            "extract-values",
            {"MessageType": "json", "Value": "ID=/id", "Data": "{{AMPS_DATA}}"},
        ),
        ("if-condition", {"Condition": "'{{AMPS_CLIENT_NAME}}' = 'desk'"}),
        publish("copies", '{"of": "{{ID}}", "at": "{{AMPS_INSTANCE_NAME}}"}'),
    )

    async def work(server: InstanceServer) -> None:
        await subscribed(server)
        async with client(server) as desk:
            copies = await desk.subscribe("copies")
            await desk.publish("orders", b'{"id": "a", "price": 5}')
            await desk.publish("orders", b'{"id": "b", "price": 15}')
            message = await anext(copies)
            assert message.body == b'{"of": "b", "at": "north"}'
        await until(lambda: server.status()["actions"]["actions"].get("copy", {}).get("runs") == 1)

    run(tmp_path, config(copy), work)


def asked(path: str = "go") -> list[Module]:
    """Returns the `on` module of a request, which tests make by `ask`."""
    return [("admin", {"Path": path})]


def ask(server: InstanceServer, path: str = "go", **variables: str) -> None:
    """Makes a request for actions."""
    server.runtime.occurrences.tell("admin", {"AMPS_ADMIN_PATH": path, **variables})


def told(server: InstanceServer, name: str) -> dict[str, Any]:
    """Returns the status of an action as the instance was told last."""
    found: dict[str, Any] = server.status()["actions"]["actions"].get(name, {})
    return found


async def performed(server: InstanceServer, name: str, runs: int = 1) -> dict[str, Any]:
    """Waits until an action has run, and returns its status."""
    await until(lambda: told(server, name).get("runs", 0) >= runs)
    return told(server, name)


async def done(server: InstanceServer, name: str, runs: int = 1) -> None:
    """Waits until an action has run, without a failure."""
    status = await performed(server, name, runs)
    assert status["failures"] == 0, status["last_error"]


def is_alive(pid: int) -> bool:
    """Returns whether a process runs."""
    try:
        return " Z " not in Path(f"/proc/{pid}/stat").read_text("utf-8")
    except OSError:
        return False


def test_a_command_that_hangs_holds_up_nothing_and_does_not_outlive_the_actions(
    tmp_path: Path,
) -> None:
    hangs = action(
        "hangs", asked(), ("execute-system", {"Command": f"echo $$ > {tmp_path}/pid; sleep 600"})
    )
    copy = action("copy", published("orders"), publish("copies", "{{AMPS_DATA}}"))
    pids: list[int] = []

    async def work(server: InstanceServer) -> None:
        await subscribed(server)
        ask(server)
        file = tmp_path / "pid"
        await until(lambda: file.exists() and file.read_text("ascii").strip())
        pids.append(int(file.read_text("ascii")))
        async with client(server) as desk:
            copies = await desk.subscribe("copies")
            for number in range(10):
                await desk.publish("orders", b'{"n": %d}' % number)
                assert (await anext(copies)).body == b'{"n": %d}' % number
            await desk.flush()

    run(tmp_path / "data", config(hangs, copy), work)
    assert not is_alive(pids[0])


def test_what_waits_for_a_slow_action_is_bounded_and_the_rest_is_told(tmp_path: Path) -> None:
    slow = action("slow", published("orders"), ("execute-system", {"Command": "sleep 600"}))

    async def work(server: InstanceServer) -> None:
        await subscribed(server)
        async with client(server) as desk:
            for number in range(1_500):
                await desk.publish("orders", b'{"n": %d}' % number)
            await desk.flush()
        await until(lambda: events(server, "action_runs_dropped"))
        status = await until(lambda: (it := told(server, "slow")).get("dropped") == 499 and it)
        assert (status["waiting"], status["step"]) == (1_000, "execute-system")

    run(tmp_path, config(slow), work)


def test_actions_that_are_killed_run_again(tmp_path: Path) -> None:
    copy = action("copy", published("orders"), publish("copies", "{{AMPS_DATA}}"))

    async def work(server: InstanceServer) -> None:
        await subscribed(server)
        first = server.status()["actions"]["pid"]
        async with client(server) as desk:
            copies = await desk.subscribe("copies")
            os.kill(first, signal.SIGKILL)
            ended = await until(lambda: events(server, "action_runner_ended"))
            assert ended[0]["text"] == "its process ended"
            await until(lambda: server.status()["actions"]["pid"] not in (0, first))
            await subscribed(server)
            await desk.publish("orders", b'{"n": 1}')
            assert (await anext(copies)).body == b'{"n": 1}'
        assert server.status()["actions"]["starts"] == 2

    run(tmp_path, config(copy), work)


def test_an_action_shuts_the_instance_down_and_one_on_the_shutdown_is_performed(
    tmp_path: Path,
) -> None:
    stop = action("stop", asked(), ("shutdown", {}))
    last = action(
        "last",
        [("shutdown", {})],
        publish("log", '{"id": 1}'),
        ("execute-system", {"Command": f"echo done > {tmp_path}/last"}),
    )

    async def work(server: InstanceServer) -> None:
        await subscribed(server, 0)
        async with client(server) as desk:
            log = await desk.subscribe("log")
            ask(server)
            assert (await anext(log)).body == b'{"id": 1}'
            await server.finished()
        assert (tmp_path / "last").exists()
        assert events(server, "shut_down_by_action")
        assert server.runtime.phase == "stopped"
        assert server.runtime.fault is None

    run(tmp_path / "data", config(stop, last), work)


def test_a_failing_step_ends_its_run_and_is_told(tmp_path: Path) -> None:
    fails = action(
        "fails",
        asked(),
        ("execute-system", {"Command": "echo why it failed; exit 3"}),
        publish("never", "{}"),
    )

    async def work(server: InstanceServer) -> None:
        ask(server)
        failed = await until(lambda: events(server, "action_failed"))
        assert failed[0]["action"] == "fails"
        assert "ended with 3" in failed[0]["text"]
        assert "it wrote: why it failed" in failed[0]["text"]
        assert (await performed(server, "fails"))["failures"] == 1
        assert "never" not in {each["topic"] for each in server.status()["topics"]}

    run(tmp_path, config(fails), work)
