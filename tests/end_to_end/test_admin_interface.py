"""An instance that serves its administrator's interface: the real process beside it, over HTTP."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Awaitable, Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from aiohttp import ClientSession, encode_basic_auth

from raylay.services.client import Client
from raylay.services.config.admin_interface import AdminInterfaceConfig
from raylay.services.config.instance import DestinationConfig, InstanceConfig
from raylay.services.fabric.plan import free_port
from raylay.services.messages.topics import TopicRule
from raylay.services.plugins.authentication import hasher
from raylay.services.queues.definition import QueueDefinition
from raylay.services.security.control import AdminConfig
from raylay.services.security.modules import ModuleConfig
from raylay.services.server.children import liveness
from raylay.services.server.children.subprocess import ChildSubprocess
from raylay.services.server.instance_server import InstanceServer
from raylay.services.telemetry import logs
from raylay.services.telemetry.tracing import TracingOptions

DEADLINE_S = 120.0
POST = {"X-Raylay": "1"}


def config(**options: Any) -> InstanceConfig:
    """Returns the configuration of an instance with the interface and a link that finds nobody."""
    nobody = f"127.0.0.1:{free_port(set())}"
    return InstanceConfig(
        "north",
        "main",
        destinations=(DestinationConfig("south", "main", True, (nobody,)),),
        first=True,
        interface=AdminInterfaceConfig(interval_ms=1_000),
        **options,
    )


def visit(
    directory: Path,
    config: InstanceConfig,
    work: Callable[[InstanceServer, ClientSession], Awaitable[None]],
) -> None:
    """Runs an instance with child processes, and visits its interface."""

    async def run() -> None:
        logs.configure(config.name, config.log)
        server = InstanceServer(config, directory, ChildSubprocess)
        await server.start()
        try:
            async with asyncio.timeout(DEADLINE_S):
                await listening(server)
                async with ClientSession(f"http://{address(server)}") as session:
                    await work(server, session)
        finally:
            await server.stop()

    asyncio.run(run())


def address(server: InstanceServer) -> str:
    """Returns the address that the interface listens on; empty: it does not yet."""
    return str(server.status()["admin_interface"]["address"])


async def listening(server: InstanceServer) -> None:
    """Waits until the interface listens."""
    while not address(server):
        await asyncio.sleep(0.05)


@pytest.mark.covers("Administration", "administrator's actions: each is the control call th")
def test_the_interface_tells_the_instance_and_downgrades_a_link(tmp_path: Path) -> None:
    async def work(server: InstanceServer, session: ClientSession) -> None:
        async with session.get("/amps/instance/replication/south.json") as response:
            assert response.status == 200
            found = (await response.json())["amps"]["instance"]["replication"][0]
        assert found["replication_type"] == "sync" and found["is_connected"] == "false"
        path = "/amps/administrator/replication/south/downgrade"
        async with session.post(path) as response:
            assert response.status == 403, "a page of another site could have sent it"
        # One sync destination is the minimum: the refusal of the instance comes back as it is.
        async with session.post(path, headers=POST) as response:
            text = await response.text()
        assert response.status in (200, 409), text
        events = [each["event"] for each in server.events()]
        assert ("downgraded" if response.status == 200 else "downgrade_refused") in events

    visit(tmp_path, config(), work)


@pytest.mark.covers("Administration", "the interface's process: killed or hung, it is start")
def test_a_process_that_is_killed_is_started_again_on_the_same_port(tmp_path: Path) -> None:
    port = free_port(set())

    async def work(server: InstanceServer, session: ClientSession) -> None:
        first = server.status()["admin_interface"]["pid"]
        os.kill(first, signal.SIGKILL)
        while server.status()["admin_interface"]["pid"] in (0, first) or not address(server):
            await asyncio.sleep(0.05)
        async with session.get("/amps/instance/name.json") as response:
            assert (await response.json()) == {"amps": {"instance": {"name": "north"}}}

    made = config()
    made.interface = AdminInterfaceConfig(port=port, interval_ms=1_000)
    visit(tmp_path, made, work)


@pytest.mark.slow
@pytest.mark.covers("Administration", "the interface's process: killed or hung, it is start")
def test_a_process_that_hangs_is_ended_and_started_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(liveness, "ASK_S", 0.5)
    monkeypatch.setattr(liveness, "HUNG_S", 2.0)

    async def work(server: InstanceServer, session: ClientSession) -> None:
        first = server.status()["admin_interface"]["pid"]
        os.kill(first, signal.SIGSTOP)
        while server.status()["admin_interface"]["pid"] in (0, first) or not address(server):
            await asyncio.sleep(0.05)
        assert "child_hung" in [each["event"] for each in server.events()]

    visit(tmp_path, config(), work)


@pytest.mark.covers("Administration", "authentication, entitlement and sessions of the inte")
def test_modules_say_who_may_read_and_act(tmp_path: Path) -> None:
    passwords, permissions = tmp_path / "passwords.yaml", tmp_path / "permissions.yaml"
    hashes = {user: hasher().hash(word) for user, word in (("anna", "one"), ("bert", "two"))}
    passwords.write_text("".join(f"{user}:{each}\n" for user, each in hashes.items()), "utf-8")
    permissions.write_text(
        "anna: {admin: [{topic: /amps/.*, read: true}]}\n"
        "bert: {admin: [{topic: /amps/instance.*, read: true}]}\n",
        encoding="utf-8",
    )
    for each in (passwords, permissions):
        each.chmod(0o600)
    admin = AdminConfig(
        ModuleConfig("passwords", {"File": str(passwords)}),
        ModuleConfig("permissions", {"File": str(permissions)}),
    )

    async def work(server: InstanceServer, session: ClientSession) -> None:
        async with session.get("/amps/instance/name.json") as response:
            assert response.status == 401 and "WWW-Authenticate" in response.headers
        anna = {"Authorization": encode_basic_auth("anna", "one")}
        bert = {"Authorization": encode_basic_auth("bert", "two")}
        async with session.get("/amps/instance/name.json", headers=bert) as response:
            assert response.status == 200
        session.cookie_jar.clear()
        path = "/amps/administrator/replication/south/upgrade"
        async with session.post(path, headers={**bert, **POST}) as response:
            assert response.status == 403 and "bert may not use" in await response.text()
        session.cookie_jar.clear()
        async with session.post(path, headers={**anna, **POST}) as response:
            assert response.status == 200, await response.text()
            cookie = {"Cookie": f"raylay-session={response.cookies['raylay-session'].value}"}
        told = [each for each in server.events() if each["event"] == "control"]
        assert told[-1]["user"] == "anna" and told[-1]["path"] == path
        # A session begun by a password that is reset elsewhere is of no use here, either.
        async with session.get("/amps/instance/name.json", headers=cookie) as response:
            assert response.status == 200, "the cookie stands for anna's password"
        server.control.forget("anna")
        while True:
            async with session.get("/amps/instance/name.json", headers=cookie) as response:
                if response.status == 401:
                    break

    visit(tmp_path / "data", config(admin=admin), work)


def test_messages_are_published_read_and_traced_with_the_permissions_of_their_user(
    tmp_path: Path,
) -> None:
    passwords, permissions = tmp_path / "passwords.yaml", tmp_path / "permissions.yaml"
    passwords.write_text(f"anna:{hasher().hash('one')}\n", "utf-8")
    permissions.write_text(
        "anna: {logon: true, topic: [{topic: orders, read: true, write: true}], "
        "admin: [{topic: /raylay/trace, read: true}]}\n",
        encoding="utf-8",
    )
    for each in (passwords, permissions):
        each.chmod(0o600)
    modules = (
        ModuleConfig("passwords", {"File": str(passwords)}),
        ModuleConfig("permissions", {"File": str(permissions)}),
    )
    made = config(
        admin=AdminConfig(*modules),
        topics=(TopicRule(".*"),),
        tracing=TracingOptions(0.0, file_directory=str(tmp_path / "traces")),
        authentication=modules[0],
        entitlement=modules[1],
    )
    made = replace(made, destinations=())

    async def work(server: InstanceServer, session: ClientSession) -> None:
        anna = {"Authorization": encode_basic_auth("anna", "one")}
        message = {"topic": "orders", "body": '{"id": 1}'}
        async with session.post("/raylay/publish", json=message, headers=POST) as response:
            assert response.status == 401
        send = {**anna, **POST}
        async with session.post("/raylay/publish", json=message, headers=send) as response:
            published = await response.json()
            assert response.status == 200, published
        async with session.get("/raylay/messages?topic=orders", headers=anna) as response:
            assert published["bookmark"] in await response.text()
        async with session.get("/raylay/messages?topic=secrets", headers=anna) as response:
            assert response.status == 403, await response.text()
        other = {**message, "topic": "secrets"}
        async with session.post("/raylay/publish", json=other, headers=send) as response:
            assert response.status == 403, await response.text()
        lanes: list[Any] = []
        while len(lanes) < 2:
            path = f"/raylay/trace/{published['bookmark']}"
            async with session.get(path, headers=anna) as response:
                lanes = (await response.json())["lanes"]
        assert [each["process"] for each in lanes] == ["north.admin", "north"]

    visit(tmp_path / "data", made, work)


def test_whoever_looks_at_a_queue_takes_nothing_from_it(tmp_path: Path) -> None:
    made = config(
        topics=(TopicRule(".*"),),
        queue_definitions=(QueueDefinition("work", "json", underlying="orders"),),
    )
    made = replace(made, destinations=())

    async def work(server: InstanceServer, session: ClientSession) -> None:
        async with (
            Client("desk", [server.runtime.client_address]) as client,
            session.get("/raylay/messages?topic=work&source=live") as live,
        ):
            assert b"progress" in await live.content.readline()
            for number in range(3):
                await client.publish("orders", b'{"id": %d}' % number)
            await client.flush()
            seen = 0
            while seen < 3:
                seen += b'"row"' in await live.content.readline()
            async with session.get("/raylay/messages?topic=work") as response:
                assert (await response.text()).count('"row"') == 3
            taken = []
            async with client.queue("work", backlog=10) as queue:
                async for message in queue:
                    taken.append(message.sequence)
                    if len(taken) == 3:
                        break
        assert len(set(taken)) == 3

    visit(tmp_path, made, work)
