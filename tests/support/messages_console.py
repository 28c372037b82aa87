"""The console's message pages before a whole instance: the fabric is generated, its instance
NewYork-1 is real, and so are its messages, its trace files and the routes that read them."""

from __future__ import annotations

import asyncio
import json
import tempfile
from collections.abc import Coroutine
from pathlib import Path
from typing import Any

from aiohttp import web
from unit.test_counted_calls import links_here

from raylay.services.client import Client
from raylay.services.config.instance import InstanceConfig
from raylay.services.messages.records import publisher_id
from raylay.services.messages.topics import TopicRule
from raylay.services.processes.admin.message_clients import MessageClients
from raylay.services.processes.admin.messages_routes import MessagesRoutes
from raylay.services.processes.admin.viewers import Viewer
from raylay.services.security.control import NOBODY
from raylay.services.server.instance_server import InstanceServer
from raylay.services.sow.definition import SowTopicDefinition
from raylay.services.telemetry.logs import LogOptions
from support.console_browser import ServerThread
from support.generated_fabric import GeneratedFabric, GeneratedServer, serving

NAME = "NewYork-1"
CONFIG = InstanceConfig(
    NAME, "NewYork", first=True, log=LogOptions(target="none"),
    sow=(SowTopicDefinition("orders", "json", keys=("/id",)),), topics=(TopicRule(".*"),),
)  # fmt: skip
PUBLISHER = publisher_id("desk")


class MessagesServer(GeneratedServer):
    """Answers for the message pages with the product's routes, for all else as generated."""

    routes: MessagesRoutes

    @web.middleware
    async def _guard(self, request: web.Request, handler: Any) -> web.StreamResponse:
        if request.path.startswith("/raylay/trace/"):
            request.match_info["bookmark"] = request.path.rpartition("/")[2]
            handler = self.routes._trace
        return await super()._guard(request, handler)

    async def _peer(self, request: web.Request) -> web.StreamResponse:
        steps = request.match_info["rest"].split("/")
        routes = self.routes
        if steps[0] != "raylay" or steps[1] not in ("messages", "message", "publish"):
            return await super()._peer(request)
        if len(steps) > 2:
            request.match_info["bookmark"] = steps[2]
        try:
            if steps[1] == "messages":
                return await routes._messages(request)
            if steps[1] == "publish":
                return await routes._publish(request)
            return await (routes._body if steps[3:] == ["body"] else routes._message)(request)
        except web.HTTPException:
            raise
        except Exception as error:
            return web.json_response({"error": str(error)}, status=400)


class MessagesThread(ServerThread):
    """Runs the instance and the interface in one thread."""

    def __init__(self, fabric: GeneratedFabric) -> None:
        super().__init__(fabric)
        self.server: MessagesServer = MessagesServer(fabric)
        self.client: Client
        self.traces: Path

    async def _serve(self) -> None:
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder)
            self.traces = path / "traces"
            self.traces.mkdir()
            server = InstanceServer(CONFIG, path / "data", links_here(self._loop))
            await server.start()
            address = server.runtime.client_address

            async def viewer(_: web.Request) -> Viewer:
                return Viewer("anna", NOBODY, None)

            self.server.routes = MessagesRoutes(
                MessageClients(NAME, lambda: address),
                viewer,
                lambda _: None,
                trace_directory=self.traces,
                peers=lambda: [NAME, "London-1", "Tokyo-1"],
            )
            try:
                async with (
                    Client("desk", [address]) as self.client,
                    serving(self.server) as self.port,
                ):
                    self._ready.set()
                    await self._end.wait()
            finally:
                await server.stop()

    def run(self, work: Coroutine[Any, Any, Any]) -> Any:
        """Runs something on the thread's loop, and returns its result."""
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(60)

    def publish(self, topic: str, *bodies: bytes, kind: str = "json", **more: Any) -> list[str]:
        """Returns the bookmarks of messages, once they are durable."""

        async def run() -> list[str]:
            found = [await self.client.publish(topic, each, kind, **more) for each in bodies]
            await self.client.flush()
            return [f"{PUBLISHER}|{each}|" for each in found]

        found: list[str] = self.run(run())
        return found

    def trace(self, bookmark: str, spans: list[tuple[Any, ...]], begin_ns: int = 10**18) -> None:
        """Writes spans of a message: id, parent, name, process, begin and end in ms, attributes."""
        with (self.traces / "all-1.jsonl").open("a") as file:
            for name, parent, what, process, begin, end, attributes in spans:
                line = {
                    "trace_id": "7b" * 16, "span_id": name * 16, "parent_id": parent * 16 or None,
                    "name": what, "process": process, "start_ns": begin_ns + round(begin * 1e6),
                    "end_ns": begin_ns + round(end * 1e6),
                    "attributes": {"bookmark": bookmark, "topic": "orders", **attributes},
                }  # fmt: skip
                file.write(json.dumps(line) + "\n")


def way(ahead_ms: float = 0.0) -> list[tuple[Any, ...]]:
    """Returns the spans of a message that London-1 acknowledges and Tokyo-1 gets later."""
    a, b, c = NAME, "London-1", "Tokyo-1"
    late = ahead_ms
    return [
        ("1", "", "publish", "desk", 0, 8, {"client": "desk", "outcome": "persisted"}),
        ("2", "1", "commit", a, 0.6, 1.7, {"instance": a, "txid": 17}),
        ("3", "2", "link send", f"{a}.London", 1.8, 7.0, {"instance": a, "destination": b}),
        ("4", "3", "remote commit", b, 3 - late, 4.6 - late, {"instance": b, "upstream": a}),
        ("5", "3", "persisted ack", b, 4.7 - late, 4.8 - late, {"instance": b, "upstream": a}),
        ("6", "3", "persisted ack", a, 6.5, 7, {"instance": a, "upstream": b}),
        ("7", "1", "persisted ack", a, 7, 7.6, {"instance": a, "client": "desk"}),
        ("8", "2", "link send", f"{a}.Tokyo", 1.9, 6.4, {"instance": a, "destination": c}),
        ("9", "8", "remote commit", c, 4.2, 5.4, {"instance": c, "upstream": a}),
        ("a", "4", "delivery", "blotter", 4.8, 5.9, {"instance": b, "client": "blotter"}),
    ]
