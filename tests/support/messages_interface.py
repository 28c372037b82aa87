"""The message routes of the administrator's interface in front of a whole instance, over sockets,
for tests that ask it by HTTP."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from aiohttp import ClientSession, web
from aiohttp.test_utils import BaseTestServer, TestServer

from raylay.services.client import Client
from raylay.services.config.instance import InstanceConfig
from raylay.services.messages.topics import TopicRule
from raylay.services.processes.admin.action_routes import check_origin
from raylay.services.processes.admin.guard import InterfaceSettings, RequestGuard
from raylay.services.processes.admin.message_clients import MessageClients
from raylay.services.processes.admin.messages_routes import MessagesRoutes
from raylay.services.processes.admin.viewers import Viewer
from raylay.services.security.control import NOBODY, Caller
from raylay.services.server.instance_server import InstanceServer
from raylay.services.sow.definition import SowTopicDefinition
from raylay.services.telemetry.logs import LogOptions
from support.one_instance import in_instance

HEADER = {"X-Raylay": "1"}
ORDERS = SowTopicDefinition("orders", "json", keys=("/id",))
CONFIG = InstanceConfig(
    "solo", "g", first=True, log=LogOptions(target="none"), sow=(ORDERS,),
    topics=(TopicRule("orders.*|trades|odd|packed"),), unjournaled=(TopicRule("ticks"),),
)  # fmt: skip


class Interface:
    """An instance, its client and its HTTP interface."""

    def __init__(
        self,
        server: InstanceServer,
        http: BaseTestServer,
        session: ClientSession,
        client: Client,
    ) -> None:
        self.server, self.http, self.session, self.client = server, http, session, client
        self.routes: MessagesRoutes

    async def lines(self, path: str, **more: Any) -> list[dict[str, Any]]:
        """Returns the lines of an answer that ends."""
        async with self.session.get(self.http.make_url(path), **more) as found:
            assert found.status == 200, await found.text()
            return [json.loads(line) for line in (await found.read()).splitlines()]

    async def rows(self, path: str) -> list[dict[str, Any]]:
        return [each["row"] for each in await self.lines(path) if "row" in each]

    async def json(self, path: str, **more: Any) -> tuple[int, Any]:
        async with self.session.get(self.http.make_url(path), **more) as found:
            return found.status, json.loads(await found.read())

    async def post(self, path: str, told: Any, **more: Any) -> tuple[int, Any]:
        more.setdefault("headers", HEADER)
        async with self.session.post(self.http.make_url(path), json=told, **more) as found:
            return found.status, json.loads(await found.read())

    @asynccontextmanager
    async def stream(self, path: str) -> AsyncIterator[Callable[[str], Awaitable[dict[str, Any]]]]:
        """Yields a function that returns the next line with a name in it."""
        async with self.session.get(self.http.make_url(path)) as found:
            assert found.status == 200, await found.text()

            async def following(name: str) -> dict[str, Any]:
                while line := await found.content.readline():
                    told: dict[str, Any] = json.loads(line)
                    if "error" in told and name != "error":
                        raise AssertionError(told)
                    if name in told:
                        return told
                raise AssertionError(f"the stream ended without {name}")

            yield following

    async def publish(self, topic: str, *bodies: bytes, kind: str = "json") -> list[str]:
        """Returns the bookmarks, once all are durable."""
        sequences = [await self.client.publish(topic, body, kind) for body in bodies]
        await self.client.flush()
        from raylay.services.messages.records import publisher_id

        return [f"{publisher_id(self.client.name)}|{each}|" for each in sequences]


def with_interface(
    directory: Path,
    act: Callable[[Interface], Awaitable[None]],
    config: InstanceConfig = CONFIG,
    caller: Caller = NOBODY,
    **more: Any,
) -> None:
    """Starts an instance and its interface, and has a test visit them.

    Args:
        more: attributes of the routes.
    """

    async def visit(server: InstanceServer) -> None:
        async def viewer(_: web.Request) -> Viewer:
            return Viewer(caller.user_id, caller, None)

        nothing: Any = None
        app = RequestGuard(InterfaceSettings(config.name), nothing).build()
        clients = MessageClients(config.name, lambda: server.runtime.client_address)
        routes = MessagesRoutes(clients, viewer, check_origin, **more)
        routes.add_routes(app.router)
        async with (
            TestServer(app) as http,
            ClientSession() as session,
            Client(
                "desk", [server.runtime.client_address], user_id=caller.user_id,
                password=caller.password,
            ) as client,
        ):  # fmt: skip
            at = Interface(server, http, session, client)
            at.routes = routes
            await act(at)

    in_instance(directory, visit, config)


def told(lines: list[dict[str, Any]], name: str) -> Mapping[str, Any]:
    """Returns the last line's values of a name."""
    found: Mapping[str, Any] = [each[name] for each in lines if name in each][-1]
    return found


async def until(true: Callable[[], bool]) -> None:
    """Waits until something that the loop does is done."""
    while not true():
        await asyncio.sleep(0)
