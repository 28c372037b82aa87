"""Actions that begin with what happens at a real instance: the process of its actions performs
their steps, and the owner of its queue tells of the messages that expire."""

from __future__ import annotations

import asyncio
import os
import signal
from pathlib import Path
from typing import Any

import orjson
import pytest
from aiohttp import ClientSession
from end_to_end.test_actions import Module, action, client, config, publish, run, subscribed

from raylay.services.client import Client
from raylay.services.config.actions import client_name
from raylay.services.config.admin_interface import AdminInterfaceConfig
from raylay.services.messages.topics import TopicRule
from raylay.services.queues.definition import QueueDefinition
from raylay.services.server.instance_server import InstanceServer
from raylay.services.sow.definition import SowTopicDefinition

TOLD = "told"
STATE = SowTopicDefinition("state", "json", keys=("/id",))
WORK = QueueDefinition("work", "json", underlying="jobs", subscription_backlog_max=2, cancels_max=1)


def tells(kind: str, *variables: str, **options: str) -> Any:
    """Returns the action that publishes what has happened, with some of its variables."""
    shown = ", ".join(f'"{each}": "{{{{{each}}}}}"' for each in variables)
    data = f'{{"on": "{kind}", {shown}}}' if shown else f'{{"on": "{kind}"}}'
    return action(kind, [(kind, options)], publish(TOLD, data))


class Told:
    """The messages that the actions publish. Actions run side by side: a message of one may
    overtake a message of another one that was begun before."""

    def __init__(self, messages: Any) -> None:
        self._messages = messages
        self._passed: list[dict[str, str]] = []

    async def until(self, kind: str, **wanted: str) -> dict[str, str]:
        """Returns the first message of this kind that has these values, and was not returned
        before."""
        wanted = {"on": kind, **wanted}
        for found in self._passed:
            if wanted.items() <= found.items():
                self._passed.remove(found)
                return found
        async for message in self._messages:
            found = orjson.loads(message.body)
            if wanted.items() <= found.items():
                return found
            self._passed.append(found)
        raise AssertionError("the subscription ended")


async def listening(server: InstanceServer) -> tuple[Client, Told]:
    """Returns a client that reads what the actions publish, and what it reads. The actions' client
    has connected."""
    await subscribed(server, 0)
    reader = client(server, "reader")
    await reader.connect()
    return reader, Told(await reader.subscribe(TOLD))


def test_clients_begin_actions(tmp_path: Path) -> None:
    name, auth = "AMPS_CLIENT_NAME", "AMPS_AUTHENTICATION_ID"
    topics = {"Topic": "^orders", "MessageType": "json"}
    of_subscription = (name, "AMPS_TOPIC", "AMPS_FILTER")
    actions = (
        tells("connect-client", name, "AMPS_CONNECTION_NAME"),
        tells("logon-client", name, auth),
        tells("disconnect-client", name, auth),
        tells("subscribe", *of_subscription, **topics),
        tells("unsubscribe", *of_subscription, **topics),
    )

    async def work(server: InstanceServer) -> None:
        reader, told = await listening(server)
        async with client(server, "desk") as desk:
            connected = await told.until("connect-client")
            assert connected["AMPS_CLIENT_NAME"] == connected["AMPS_CONNECTION_NAME"]
            await told.until("logon-client", AMPS_CLIENT_NAME="desk")
            await desk.subscribe("others", message_type="json")
            orders = await desk.subscribe("orders/x", message_type="json", filter="/id > 1")
            found = await told.until("subscribe", AMPS_CLIENT_NAME="desk")
            assert (found["AMPS_TOPIC"], found["AMPS_FILTER"]) == ("orders/x", "/id > 1")
            orders.unsubscribe()
            await told.until("unsubscribe", AMPS_TOPIC="orders/x")
            await desk.subscribe("orders/y", message_type="json")
        gone = await told.until("disconnect-client", AMPS_CLIENT_NAME="desk")
        assert gone["AMPS_CLIENT_NAME"] == "desk"
        await told.until("unsubscribe", AMPS_TOPIC="orders/y")
        await reader.close()

    run(tmp_path, config(*actions, topics=(TopicRule(".*"),)), work)


@pytest.mark.covers("Actions", "On SOW Message Expiration")
@pytest.mark.covers("Actions", "On SOW Message Delete")
def test_records_and_messages_that_leave_begin_actions(tmp_path: Path) -> None:
    """A dead letter is such an action: a queued message that nobody can handle."""
    data = ("AMPS_TOPIC", "AMPS_REASON", "AMPS_DATA_LENGTH")
    letter = action(
        "dead letter",
        [("sow-expire-message", {"Topic": "work", "MessageType": "json"})],
        publish("dead", '{"why": "{{AMPS_REASON}}", "message": {{AMPS_DATA}}}'),
    )
    actions = (
        letter,
        tells("sow-delete-message", *data, Topic="state", MessageType="json"),
    )

    async def work(server: InstanceServer) -> None:
        reader, told = await listening(server)
        dead = await reader.subscribe("dead")
        async with client(server, "desk") as desk:
            await desk.publish("state", b'{"id": 1}')
            await desk.sow_delete("state", filter="/id = 1")
            found = await told.until("sow-delete-message")
            assert (found["AMPS_TOPIC"], found["AMPS_DATA_LENGTH"]) == ("state", "9")
            await desk.publish("jobs", b'{"id": 7}')
            await desk.publish("jobs", b'{"id": 8}')
            async with desk.queue("work", backlog=2, ack="manual") as queue:
                first, second = await anext(queue), await anext(queue)
                first.cancel()
                second.expire()
                letters = [orjson.loads((await anext(dead)).body) for _ in range(2)]
        assert sorted(letters, key=lambda each: each["message"]["id"]) == [
            {"why": "max_cancels", "message": {"id": 7}},
            {"why": "forced_expire", "message": {"id": 8}},
        ]
        await reader.close()

    whole = config(*actions, topics=(TopicRule(".*"),), sow=(STATE,), queue_definitions=(WORK,))
    run(tmp_path, whole, work)


@pytest.mark.covers("Actions", "On AMPS Startup or Shutdown")
def test_a_start_is_told_when_the_actions_run(tmp_path: Path) -> None:
    began: list[Module] = [("startup", {})]
    start = action("start", began, publish("state", '{"id": "{{AMPS_INSTANCE_NAME}}"}'))

    async def work(server: InstanceServer) -> None:
        await subscribed(server, 0)
        async with client(server) as desk:
            state = await desk.sow_and_subscribe("state")
            async for message in state:
                if message.body:
                    assert message.body == b'{"id": "north"}'
                    break

    run(tmp_path, config(start, sow=(STATE,), topics=(TopicRule(".*"),)), work)


@pytest.mark.slow
def test_the_actions_own_client_begins_none(tmp_path: Path) -> None:
    async def work(server: InstanceServer) -> None:
        reader, told = await listening(server)
        async with client(server, "desk"):
            found = await told.until("logon-client")
            while found["AMPS_CLIENT_NAME"] != "desk":
                assert found["AMPS_CLIENT_NAME"] != client_name("north")
                found = await told.until("logon-client")
        await reader.close()

    run(tmp_path, config(tells("logon-client", "AMPS_CLIENT_NAME")), work)


@pytest.mark.covers("Actions", "On a Linux Signal")
def test_a_signal_begins_an_action_of_a_process_without_ray(tmp_path: Path) -> None:
    from support.instance_processes import Server

    on: list[Module] = [("signal", {"Signal": "SIGUSR1"})]
    told = action("told", on, publish("state", '{"id": "{{AMPS_SIGNAL}}"}'))
    server = Server(tmp_path, config(told, sow=(STATE,), topics=(TopicRule(".*"),)))

    async def work() -> None:
        async with Client("desk", [server.address]) as desk:
            async with asyncio.timeout(60):
                state = await desk.subscribe("state")
                os.kill(server.process.pid, signal.SIGUSR1)
                assert (await anext(state)).body == b'{"id": "SIGUSR1"}'

    try:
        asyncio.run(work())
        assert server.process.poll() is None, "the signal did not end it"
    finally:
        server.kill()


@pytest.mark.covers("Actions", "On Message Delivered to Subscriber")
def test_deliveries_begin_actions(tmp_path: Path) -> None:
    names = ("AMPS_TOPIC", "AMPS_CLIENT_NAME", "AMPS_DATA_LENGTH")
    live = tells("deliver-message", *names, Topic="^(jobs|work)$", MessageType="json")

    async def work(server: InstanceServer) -> None:
        reader, told = await listening(server)
        async with client(server, "desk") as desk:
            await desk.subscribe("jobs")
            await desk.subscribe("others")
            await desk.publish("others", b"{}")
            await desk.publish("jobs", b'{"id": 7}')
            found = await told.until("deliver-message")
            assert [found[name] for name in names] == ["jobs", "desk", "9"]
            async with desk.queue("work") as queue:
                await anext(queue)
                found = await told.until("deliver-message")
                assert [found[name] for name in names] == ["work", "desk", "9"]
        await reader.close()

    run(tmp_path, config(live, topics=(TopicRule(".*"),), queue_definitions=(WORK,)), work)


@pytest.mark.covers("Actions", "On a REST Request")
def test_requests_begin_actions(tmp_path: Path) -> None:
    options = {"Path": "again", "RequiredParameter": "who"}
    again = tells("admin", "who", "why", **options)
    path, post = "/amps/administrator/actions/again", {"X-Raylay": "1"}

    async def work(server: InstanceServer) -> None:
        reader, told = await listening(server)
        while not (address := server.status()["admin_interface"]["address"]):
            await asyncio.sleep(0.02)
        async with ClientSession(f"http://{address}") as session:
            async with session.post(path, params={"who": "amy", "why": "x y"}, headers=post) as got:
                assert got.status == 200 and (await got.json())["result"] == "north begins admin"
            assert await told.until("admin") == {"on": "admin", "who": "amy", "why": "x y"}
            async with session.post(path, headers=post) as got:
                assert got.status == 400 and "needs the parameter 'who'" in await got.text()
            async with session.post("/amps/administrator/actions/else", headers=post) as got:
                assert got.status == 400 and "it has again" in await got.text()
            async with session.get("/amps/administrator/actions.json") as got:
                shown = (await got.json())["amps"]["administrator"]
        assert shown == {"actions": {"again": "true"}}
        await reader.close()

    interface = AdminInterfaceConfig(interval_ms=1_000)
    run(tmp_path, config(again, interface=interface, topics=(TopicRule(".*"),)), work)
