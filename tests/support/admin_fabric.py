"""Interfaces of several instances in one process, on real ports, for tests: healthy ones, and such
as are silent or lie."""

from __future__ import annotations

import asyncio
import base64
import json
import socket
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

from aiohttp import ClientSession, web

from raylay.services.admin.fabric_topology import (
    TOPOLOGY_FILE,
    CheckFinding,
    ConfiguredInstance,
    ConfiguredLink,
    ConfiguredQueue,
    FabricTopology,
)
from raylay.services.config import json_text
from raylay.services.errors import ControlRefused, FabricError
from raylay.services.processes.admin.action_routes import ActionRoutes, check_origin
from raylay.services.processes.admin.event_stream import EventStreams
from raylay.services.processes.admin.fabric_routes import FabricRoutes
from raylay.services.processes.admin.guard import InterfaceSettings, RequestGuard
from raylay.services.processes.admin.resource_routes import ResourceRoutes
from raylay.services.processes.admin.sampler import Sampler
from raylay.services.processes.admin.statistics_thread import StatisticsThread
from raylay.services.processes.admin.viewers import Viewers
from raylay.services.security.control import Caller
from raylay.services.security.permissions import Permissions, read_permissions
from raylay.storage.statistics import StatisticsStore

POST = {"X-Raylay": "1"}
READS_INSTANCE = {"admin": [{"topic": "/amps/.*", "read": True}]}


class FakeInstance:
    """Stands for an instance behind its socket.

    Attributes:
        changed: values of its snapshot that tests set.
        events: of its log.
        release: where it is set, snapshots wait for it.
    """

    def __init__(self, name: str, group: str, others: tuple[str, ...]) -> None:
        self.name, self.group, self.others = name, group, others
        self.changed: dict[str, Any] = {}
        self.events: list[dict[str, Any]] = []
        self.performed: list[tuple[str, str, dict[str, Any]]] = []
        self.identified: list[str] = []
        self.release: asyncio.Event | None = None
        self.is_away = False

    def happens(self, event: str, **details: Any) -> None:
        number = len(self.events) + 1
        self.events.append(
            {"number": number, "time_us": 10**15 + number, "event": event, **details}
        )

    async def snapshot(self) -> dict[str, Any]:
        if self.release is not None:
            await self.release.wait()
        if self.is_away:
            raise FabricError(f"{self.name} does not answer")
        return {
            "name": self.name,
            "group": self.group,
            "pid": 7,
            "state": "ready",
            "uptime_s": 5.0,
            "sessions": 2,
            "subscriptions": 1,
            "bookmark_subscriptions": 0,
            "pending": 0,
            "rates": {"published_per_s": 10.0, "persisted_per_s": 10.0, "delivered_per_s": 20.0},
            "destinations": {other: destination(other) for other in self.others},
            "upstreams": [{"name": other, "group": "", "incarnation": ""} for other in self.others],
            "last_event": len(self.events),
            **self.changed,
        }

    async def identify(self, caller: Caller, address: str) -> tuple[str, Permissions | None]:
        self.identified.append(caller.user_id)
        if caller.password != "right":
            raise ControlRefused("no")
        if caller.user_id == "root":
            return "root", None
        granted = READS_INSTANCE if caller.user_id == "reader" else {"admin": []}
        return caller.user_id, read_permissions(granted, "test")

    async def status(self, events_after: int | None) -> dict[str, Any]:
        return {"name": self.name, "ready": True}

    async def perform(self, call: str, caller: Caller, arguments: Mapping[str, Any]) -> Any:
        self.performed.append((call, caller.user_id, dict(arguments)))
        return None


def destination(other: str, **changed: Any) -> dict[str, Any]:
    """A healthy sync destination, as an instance's status has it."""
    return {
        "peer": other, "group": "", "client_name": "c", "connected": True, "sync": True,
        "configured_sync": True, "downgraded": False, "downgraded_by_hand": False,
        "caught_up": True, "safe": True, "why_unsafe": "", "why": "", "unacked": 0, "age_ms": 0,
        "lag": 0, "address": "127.0.0.1:1", "pid": 8, "starts": 1, "sent_records": 9, **changed,
    }  # fmt: skip


Reply = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


class AdminFabric:
    """The interfaces, by the names of their instances, and a visitor's connections."""

    def __init__(self, directory: Path, session: ClientSession) -> None:
        self.directory, self.session = directory, session
        self.instances: dict[str, FakeInstance] = {}
        self.addresses: dict[str, str] = {}
        self.topology = FabricTopology("", ())
        self.has_tls = False

    def url(self, path: str, name: str = "") -> str:
        return f"http://{self.addresses[name or next(iter(self.instances))]}{path}"

    async def get(self, path: str, name: str = "", **more: Any) -> tuple[int, Any]:
        return await self.ask("GET", path, name, **more)

    async def ask(self, method: str, path: str, name: str = "", **more: Any) -> tuple[int, Any]:
        async with self.session.request(method, self.url(path, name), **more) as found:
            body = await found.read()
            is_json = found.content_type == "application/json"
            return found.status, json.loads(body) if is_json else body

    async def view(self, name: str = "", **more: Any) -> dict[str, Any]:
        status, found = await self.get("/raylay/fabric.json", name, **more)
        assert status == 200, found
        return dict(found)

    async def until(
        self, holds: Callable[[dict[str, Any]], bool], name: str = "", **more: Any
    ) -> dict[str, Any]:
        """Asks for the view until the topology is read and a condition holds."""
        while True:
            found = await self.view(name, **more)
            if found["fabric"] == self.topology.fabric and holds(found):
                return found
            await asyncio.sleep(0.05)

    def write(self, **changed: Any) -> None:
        """Writes the topology for all instances."""
        names = list(self.addresses)
        self.topology = FabricTopology(
            "flights",
            tuple(
                ConfiguredInstance(
                    each, "North", self.addresses[each], is_tls=self.has_tls and each != names[0]
                )
                for each in names
            ),
            tuple(
                ConfiguredLink(each, other, (other,), "North", True)
                for each in self.instances
                for other in self.instances[each].others
            ),
            (ConfiguredQueue("work", "json", tuple(self.instances)),),
            **{
                "findings": (CheckFinding("warning", "site down", "North", "add a link"),),
                "checked_us": 5,
                **changed,
            },
        )
        for name in self.instances:
            path = self.directory / name.replace("/", "_") / TOPOLOGY_FILE
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(json_text.written(self.topology), encoding="utf-8")


def basic(user: str, password: str = "right") -> dict[str, str]:
    return {"Authorization": "Basic " + base64.b64encode(f"{user}:{password}".encode()).decode()}


@asynccontextmanager
async def admin_fabric(
    directory: Path,
    names: tuple[str, ...] = ("north-1", "north-2"),
    replies: Mapping[str, Reply] | None = None,
    streams: Callable[[], EventStreams] = EventStreams,
    writes: bool = True,
    topology: Mapping[str, Any] | None = None,
    tls: ssl.SSLContext | None = None,
    **settings: Any,
) -> AsyncIterator[AdminFabric]:
    """Runs the interfaces.

    Args:
        replies: further peers, each with what it does with a connection.
        writes: whether the topology is written.
        topology: changed values of it.
        tls: settings of the interfaces but the first, which speaks plain HTTP.
        settings: of each interface.
    """
    async with AsyncExitStack() as stack:
        session = await stack.enter_async_context(ClientSession())
        made = AdminFabric(directory, session)
        made.has_tls = tls is not None
        every = (*names, *(replies or {}))
        sockets = {name: socket.create_server(("127.0.0.1", 0)) for name in every}
        for name, listening in sockets.items():
            made.addresses[name] = f"127.0.0.1:{listening.getsockname()[1]}"
        for name in names:
            others = tuple(other for other in every if other != name)
            made.instances[name] = FakeInstance(name, "North", others)
        if writes:
            made.write(**(topology or {}))
        for name, instance in made.instances.items():
            app = await _interface(stack, directory, instance, streams, settings)
            runner = web.AppRunner(app, handler_cancellation=True, shutdown_timeout=1.0)
            await runner.setup()
            stack.push_async_callback(runner.cleanup)
            context = None if name == names[0] else tls
            await web.SockSite(runner, sockets[name], ssl_context=context).start()
        for name, reply in (replies or {}).items():
            await _raw(stack, reply, sockets[name])
        yield made


async def _interface(
    stack: AsyncExitStack,
    directory: Path,
    instance: FakeInstance,
    streams: Callable[[], EventStreams],
    settings: Mapping[str, Any],
) -> web.Application:
    sampler = Sampler(instance, lambda: {})
    statistics = StatisticsThread(StatisticsStore)
    await statistics.open()
    stack.push_async_callback(statistics.close)
    viewers = Viewers(instance)
    guard = RequestGuard(InterfaceSettings(instance.name, **settings), viewers)
    fabric = FabricRoutes(
        instance.name,
        instance.group,
        directory / instance.name.replace("/", "_"),
        sampler,
        lambda: instance.events,
        guard.viewer,
        check_origin,
        guarded=bool(settings.get("guarded")),
        streams=streams(),
    )
    actions = ActionRoutes(
        instance.name,
        instance,
        sampler,
        viewers,
        get_actions=False,
        head=lambda: fabric.head.sight,
    )
    app = guard.build()
    ResourceRoutes(guard, sampler, statistics, actions).add_routes(app.router)
    fabric.add_routes(app.router)
    app.on_startup.append(fabric.start_up)
    app.on_shutdown.append(fabric.shut_down)
    return app


async def _raw(stack: AsyncExitStack, reply: Reply, listening: socket.socket) -> None:
    """Answers every connection of a port by a function."""
    tasks: set[asyncio.Task[None]] = set()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        tasks.add(task)
        try:
            await reply(reader, writer)
        except (ConnectionError, asyncio.CancelledError):
            pass
        finally:
            tasks.discard(task)
            writer.close()

    server = await asyncio.start_server(serve, sock=listening)

    async def close() -> None:
        server.close()
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    stack.push_async_callback(close)


def says(data: bytes) -> Reply:
    """Answers each connection with these bytes once a request has come."""

    async def reply(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(data)
        await writer.drain()

    return reply


def http(body: bytes, status: str = "200 OK", headers: str = "") -> bytes:
    """Returns an answer over HTTP."""
    return (
        f"HTTP/1.1 {status}\r\nContent-Type: application/json\r\nContent-Length: {len(body)}\r\n"
        f"Connection: close\r\n{headers}\r\n"
    ).encode() + body
