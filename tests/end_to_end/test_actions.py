"""The actions of an instance: the real process beside it performs their steps."""

from __future__ import annotations

import asyncio
import gzip
import json
import os
import signal
import time
from collections.abc import Awaitable, Callable, Iterable
from pathlib import Path
from typing import Any

import pytest
from argon2 import PasswordHasher

from raylay.services.actions.model import ActionDefinition, ActionModule
from raylay.services.client import Client
from raylay.services.client.events import Disconnected
from raylay.services.config.actions import client_name
from raylay.services.config.admin_interface import AdminInterfaceConfig
from raylay.services.config.instance import DestinationConfig, InstanceConfig
from raylay.services.errors import LogonRefused, RaylayError
from raylay.services.fabric.plan import free_port
from raylay.services.messages.topics import TopicRule
from raylay.services.queues.definition import QueueDefinition
from raylay.services.security.modules import ModuleConfig
from raylay.services.server.children.subprocess import ChildSubprocess
from raylay.services.server.instance_server import InstanceServer
from raylay.services.sow.definition import SowTopicDefinition
from raylay.services.telemetry import logs
from raylay.services.telemetry.logs import LogOptions

DEADLINE_S = 120.0
CHEAP = PasswordHasher(time_cost=1, memory_cost=8, parallelism=1)
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


@pytest.mark.covers("Actions", "Publish a Message")
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


@pytest.mark.covers("Actions", "the process beside the instance")
@pytest.mark.covers("Actions", "Run a System Command")
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
    while is_alive(pids[0]):  # the signal is on its way
        time.sleep(0.02)


@pytest.mark.slow
@pytest.mark.covers("Actions", "the process beside the instance")
def test_what_waits_for_a_slow_action_is_bounded_and_the_rest_is_told(tmp_path: Path) -> None:
    slow = action("slow", published("orders"), ("execute-system", {"Command": "sleep 600"}))

    async def work(server: InstanceServer) -> None:
        await subscribed(server)
        async with client(server) as desk:
            for number in range(1_500):
                await desk.publish("orders", b'{"n": %d}' % number)
            await desk.flush()
        await until(lambda: events(server, "action_runs_dropped"))

        def counted() -> int:
            found = told(server, "slow")
            counts = [found[each] for each in ("runs", "waiting", "dropped")]
            return sum(counts) + bool(found["step"])

        # Each is performed, waits or was dropped: a command that does not end is killed by and by.
        await until(lambda: counted() == 1_500)
        assert told(server, "slow")["waiting"] <= 1_000

    run(tmp_path, config(slow), work)


@pytest.mark.covers("Actions", "the process beside the instance")
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


@pytest.mark.covers("Actions", "Shut Down AMPS")
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


@pytest.mark.covers("Actions", "Run a System Command")
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


@pytest.mark.slow
@pytest.mark.covers("Actions", "Query a SOW Topic")
@pytest.mark.covers("Actions", "Publish a Message")
def test_records_are_read_deleted_and_compacted(tmp_path: Path) -> None:
    orders = SowTopicDefinition("orders", "json", keys=("/id",))
    topic = {"Topic": "orders", "MessageType": "json"}
    query = action(
        "query",
        asked("query"),
        (
            "query-sow",
            {
                **topic,
                "Filter": "/n >= {{LEAST}}",
                "OrderBy": "/n DESC",
                "CaptureData": "ROW",
                "DefaultData": "none",
                "Options": "skip_n=1",
            },
        ),
        publish("found", "{{ROW}}"),
    )
    delete = action("delete", asked("delete"), ("delete-sow", {**topic, "Filter": "/n < 3"}))
    compact = action("compact", asked("compact"), ("compact-sow", {}), ("compact-sow", topic))
    change = action(
        "change",
        asked("change"),
        publish("orders", '{"id": "4", "more": true}'),
        publish("orders", '{"id": "5"}', Delta="false"),
    )

    async def work(server: InstanceServer) -> None:
        await subscribed(server, 0)
        async with client(server) as desk:
            found = await desk.subscribe("found")
            for number in range(5):
                await desk.publish("orders", b'{"id": "%d", "n": %d}' % (number, number))
            await desk.flush()
            ask(server, "query", LEAST="1")
            assert (await anext(found)).body == b'{"id": "3", "n": 3}'
            ask(server, "query", LEAST="7")
            assert (await anext(found)).body == b"none"
            ask(server, "delete")
            await done(server, "delete")
            ask(server, "change")
            await done(server, "change")
            rows = [row.body async for row in desk.sow("orders", order_by="/id")]
            assert rows[0] == b'{"id": "3", "n": 3}'
            assert (json.loads(rows[1])["n"], json.loads(rows[1])["more"]) == (4, True)
            assert rows[2] == b'{"id": "5"}'
        ask(server, "compact")
        await done(server, "compact")
        assert len(events(server, "sow_compacted")) == 2

    run(tmp_path, config(query, delete, compact, change, sow=(orders,)), work)


@pytest.mark.covers("Actions", "Manage Transports")
def test_transports_are_disabled_and_enabled(tmp_path: Path) -> None:
    off = action("off", asked("off"), ("disable-transport", {"Transport": "client"}))
    on = action("on", asked("on"), ("enable-transport", {}))

    async def work(server: InstanceServer) -> None:
        ask(server, "off")
        await done(server, "off")
        assert not server.status()["transports"][0]["enabled"]
        ask(server, "on")
        await done(server, "on")
        assert all(each["enabled"] for each in server.status()["transports"])

    run(tmp_path, config(off, on), work)


@pytest.mark.slow
@pytest.mark.covers("Actions", "Manage Security")
def test_security_is_switched_off_and_on_and_who_came_meanwhile_logs_on_again(
    tmp_path: Path,
) -> None:
    passwords, permissions = tmp_path / "passwords", tmp_path / "permissions"
    passwords.write_text(f"amy:{CHEAP.hash('secret')}\n")
    permissions.write_text('{"amy": {"logon": true, "topic": [{"topic": "orders", "read": true}]}}')
    guarded = config(
        action("off", asked("off"), ("disable-authentication", {}), ("disable-entitlement", {})),
        action("on", asked("on"), ("enable-authentication", {}), ("enable-entitlement", {})),
        action("reset", asked("reset"), ("reset-entitlement", {"AuthenticationId": "amy"})),
        action("elsewhere", asked("elsewhere"), ("reset-entitlement", {"Transport": "none"})),
        authentication=ModuleConfig("passwords", {"File": str(passwords)}),
        entitlement=ModuleConfig("permissions", {"File": str(permissions)}),
    )

    async def denied(server: InstanceServer) -> None:
        stranger = client(server, "stranger")
        try:
            with pytest.raises(LogonRefused):
                await stranger.connect()
        finally:
            await stranger.close(flush=False)

    async def work(server: InstanceServer) -> None:
        # The actions' own client is let in without a password.
        await subscribed(server, 0)
        await denied(server)
        ask(server, "off")
        await done(server, "off")
        ended: list[str] = []
        stranger = Client(
            "stranger",
            [server.runtime.client_address],
            on_event=lambda event: (
                ended.append(event.reason) if isinstance(event, Disconnected) else None
            ),
        )
        await stranger.connect()
        await stranger.publish("anything", b"{}")
        await stranger.flush()
        ask(server, "on")
        await done(server, "on")
        await until(lambda: ended)
        await stranger.close(flush=False)
        await denied(server)
        amy = Client(
            "amy",
            [server.runtime.client_address],
            user_id="amy",
            password="secret",
            on_event=lambda event: (
                ended.append(event.reason) if isinstance(event, Disconnected) else None
            ),
        )
        async with amy:
            before = len(ended)
            ask(server, "elsewhere")
            await done(server, "elsewhere")
            assert len(ended) == before
            ask(server, "reset")
            await done(server, "reset")
            await until(lambda: len(ended) > before)

    run(tmp_path / "data", guarded, work)


@pytest.mark.covers("Actions", "its client")
def test_nobody_else_has_the_name_of_the_actions_client(tmp_path: Path) -> None:
    idle = action("idle", asked(), ("nothing", {}))

    async def work(server: InstanceServer) -> None:
        await subscribed(server, 0)
        false = client(server, client_name("north"))
        with pytest.raises(LogonRefused, match="name of the actions' own client"):
            await false.connect()
        await false.close(flush=False)
        # Nor is the socket of the processes open to a client that does not know the secret.
        stranger = Client(
            "stranger", [f"unix:{server.runtime.unix_path}"], password="x", connect_wait_s=0.5
        )
        with pytest.raises(RaylayError):
            await stranger.connect()
        await stranger.close(flush=False)
        names = [each.client_name for each in server.parts.clients.sessions.values()]
        assert names == [client_name("north")]

    run(tmp_path, config(idle), work)


@pytest.mark.slow
@pytest.mark.covers("Actions", "Manage Files")
def test_files_are_compressed_and_removed_but_never_the_instances_own(tmp_path: Path) -> None:
    data, place = tmp_path / "data", tmp_path / "logs"
    place.mkdir()
    for number in range(4):
        (place / f"app.{number}.log").write_text("line\n" * 1_000)
        os.utime(place / f"app.{number}.log", (number, number))
    pattern = {"Pattern": f"{place}/app.*.log", "Age": "1d"}
    compress = action("compress", asked("compress"), ("compress-files", {**pattern, "Keep": "1"}))
    remove = action(
        "remove", asked("remove"), ("remove-files", {"Pattern": f"{place}/*.gz", "Age": "1d"})
    )
    wrong = action(
        "wrong", asked("wrong"), ("remove-files", {"Pattern": f"{data}/*/*", "Age": "0s"})
    )

    async def work(server: InstanceServer) -> None:
        ask(server, "compress")
        await done(server, "compress")
        packed = sorted(each.name for each in place.iterdir())
        assert packed == ["app.0.log.gz", "app.1.log.gz", "app.2.log.gz", "app.3.log"]
        assert gzip.decompress((place / packed[0]).read_bytes()) == b"line\n" * 1_000
        ask(server, "remove")
        await done(server, "remove")
        assert [each.name for each in place.iterdir()] == ["app.3.log"]
        ask(server, "wrong")
        status = await performed(server, "wrong")
        assert "all of them an instance's own" in status["last_error"]

    run(data, config(compress, remove, wrong), work)


@pytest.mark.slow
@pytest.mark.covers("Actions", "Manage the Statistics Database")
@pytest.mark.covers("Actions", "Manage Replication")
def test_old_journals_statistics_and_destinations_are_tended(tmp_path: Path) -> None:
    actions = (
        action("journal", asked("journal"), ("compress-journal", {"Age": "0s"})),
        action("samples", asked("samples"), ("truncate-statistics", {"Age": "0s"})),
        action("down", asked("down"), ("downgrade-replication", {"Age": "0s"})),
        action(
            "grace", asked("grace"), ("downgrade-replication", {"Age": "0s", "GracePeriod": "1d"})
        ),
        action("up", asked("up"), ("upgrade-replication", {"Age": "1d"})),
    )
    nobody = f"127.0.0.1:{free_port(set())}"
    lonely = config(
        *actions,
        destinations=(DestinationConfig("south", "main", True, (nobody,)),),
        interface=AdminInterfaceConfig(interval_ms=1_000),
    )

    async def work(server: InstanceServer) -> None:
        await subscribed(server, 0)
        async with client(server) as desk:
            await desk.publish("orders", b"{}")
            ask(server, "grace")
            await done(server, "grace")
            south = server.status()["destinations"]["south"]
            assert not south["downgraded"]
            ask(server, "down")
            await done(server, "down")
            await until(lambda: server.status()["destinations"]["south"]["downgraded"])
            await desk.flush()
        ask(server, "up")
        await done(server, "up")
        ask(server, "journal")
        await done(server, "journal")
        await until(lambda: server.status()["admin_interface"]["address"])
        ask(server, "samples")
        await done(server, "samples")

    run(tmp_path, lonely, work)


@pytest.mark.covers("Actions", "a function of Python as a step")
def test_a_function_gets_the_variables_and_sets_others(tmp_path: Path) -> None:
    call = action(
        "call",
        asked("call"),
        ("call-function", {"Function": "raylay_test_functions:double"}),
        publish("doubled", '{"n": {{DOUBLE}}}'),
    )
    fails = action("fails", asked("fails"), ("call-function", {"Function": "nowhere:nothing"}))
    (tmp_path / "raylay_test_functions.py").write_text(
        "def double(variables):\n    return {'DOUBLE': str(2 * int(variables['N']))}\n"
    )

    async def work(server: InstanceServer) -> None:
        async with client(server) as desk:
            doubled = await desk.subscribe("doubled")
            ask(server, "call", N="21")
            assert (await anext(doubled)).body == b'{"n": 42}'
        ask(server, "fails")
        assert "cannot be imported" in (await performed(server, "fails"))["last_error"]

    path = os.environ.get("PYTHONPATH")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", str(tmp_path) + (f":{path}" if path else ""))
        run(tmp_path / "data", config(call, fails), work)


@pytest.mark.covers("Actions", "If: File System Usage")
def test_a_full_disk_shows_and_echoes_are_in_the_events(tmp_path: Path) -> None:
    usage = action(
        "usage",
        asked(),
        ("if-file-system-usage", {"Path": "/", "GreaterThan": "0%"}),
        ("echo-message", {"Message": "more than {{LEAST}} is used"}),
        ("if-file-system-usage", {"Path": "/", "GreaterThan": "100%"}),
        ("echo-message", {"Message": "never"}),
    )

    async def work(server: InstanceServer) -> None:
        ask(server, LEAST="nothing")
        await done(server, "usage")
        texts = [each["text"] for each in events(server, "action_message")]
        assert texts == ["more than nothing is used"]

    run(tmp_path, config(usage), work)


@pytest.mark.covers("Actions", "Manage Queue Transfers")
def test_messages_of_clients_here_and_of_other_instances_are_told_apart(tmp_path: Path) -> None:
    def copy(source: str) -> ActionDefinition:
        return action(
            source,
            published("orders", MessageSource=source),
            publish("copies", f"{source} {{{{AMPS_CLIENT_NAME}}}} {{{{AMPS_DATA}}}}"),
        )

    actions = (copy("local"), copy("replicated"))
    near = config(*actions, unjournaled=(TopicRule("copies"),), topics=(TopicRule("orders"),))

    async def work(server: InstanceServer) -> None:
        here = server.runtime.replication_address
        orders = TopicRule("orders", exclude_validation=("replicate",))
        far = InstanceConfig(
            "far",
            "main",
            first=True,
            destinations=(DestinationConfig("north", "main", True, (here,), (orders,)),),
            topics=(TopicRule("orders"),),
        )
        other = InstanceServer(far, tmp_path / "far", ChildSubprocess)
        await other.start()
        try:
            async with client(server, "here") as desk, client(other, "there") as away:
                copies = await desk.subscribe("copies")
                await desk.publish("orders", b"1")
                assert (await anext(copies)).body == b"local here 1"
                await away.publish("orders", b"2")
                assert (await anext(copies)).body == b"replicated  2"
        finally:
            await other.stop()

    run(tmp_path / "near", near, work)


@pytest.mark.covers("Actions", "Rotate Error/Event Log")
def test_logs_of_the_instance_and_its_processes_are_rotated(tmp_path: Path) -> None:
    rotate = action("rotate", asked(), ("rotate-logs", {}))
    logged = LogOptions(target="file", directory=str(tmp_path / "logs"))

    async def work(server: InstanceServer) -> None:
        place = tmp_path / "logs"
        await subscribed(server, 0)
        before = {each.name for each in place.iterdir()}
        ask(server)
        await done(server, "rotate")
        server.runtime.report("diagnostics_dumped", lines=0)
        await until(lambda: {each.name for each in place.iterdir()} > before)

    run(tmp_path / "data", config(rotate, log=logged), work)


def test_a_queue_gets_proxied_transfers(tmp_path: Path) -> None:
    topic = {"Topic": "work", "MessageType": "json"}
    off = action("off", asked(), ("disable-proxied-transfer", topic))
    queue = QueueDefinition("work", "json", underlying="orders")

    async def work(server: InstanceServer) -> None:
        ask(server)
        await done(server, "off")

    run(tmp_path, config(off, queue_definitions=(queue,)), work)


def test_a_schedule_rings_and_a_loop_over_topics_ends(tmp_path: Path) -> None:
    often = action(
        "often",
        [("schedule", {"Every": "50ms"})],
        ("increment-counter", {"Key": "n", "Value": "N"}),
    )
    loop = action("loop", published("a", Filter="1=1"), publish("a", "{{AMPS_DATA}}"))

    async def work(server: InstanceServer) -> None:
        await subscribed(server)
        await until(lambda: told(server, "often").get("runs", 0) >= 3)
        async with client(server) as desk:
            await desk.publish("a", b"{}")
            await desk.flush()
            stopped = await until(lambda: events(server, "action_chain_stopped"))
        assert stopped[0]["action"] == "loop"
        assert (await performed(server, "loop", 8))["runs"] == 8

    run(tmp_path, config(often, loop), work)
