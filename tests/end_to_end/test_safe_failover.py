"""Where a client goes when its instance dies: nowhere that may lack what it was acknowledged.

X replicates sync to a list of two servers. A1 dies, X goes on to A2, A1 comes back and knows
nothing of what was acknowledged meanwhile. Then X dies.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from support.instance_processes import Server, Servers, free_ports

from raylay.services.client import Client
from raylay.services.client import Server as Listed
from raylay.services.client.events import (
    ClientEvent,
    Connected,
    PeerBecameSafe,
    WaitingForSafeInstance,
)
from raylay.services.config.instance import DestinationConfig, InstanceConfig
from raylay.services.config.transport import TransportConfig
from raylay.services.messages.records import publisher_id
from raylay.services.messages.topics import TopicRule
from raylay.storage.stores import LmdbPublishStore

pytestmark = pytest.mark.covers(
    "Clients and protocol", "safe failover; what is unsafe is remembered"
)

DEADLINE_S = 30.0


class Fabric:
    """X and its list. `named`: whether X's configuration says who the servers of the list are."""

    def __init__(self, made: Servers, path: Path, *, named: bool) -> None:
        ports = free_ports(6)
        self.of: dict[str, Server] = {}
        self.addresses: dict[str, str] = {}
        topics = (TopicRule(".*", exclude_validation=("replicate",)),)
        to_list = DestinationConfig(
            "list", "group", True,
            tuple(f"127.0.0.1:{port}" for port in ports[:2]),
            topics=topics,
            server_names=("A1", "A2") if named else (),
            client_addresses=tuple(f"127.0.0.1:{port}" for port in ports[3:5]) if named else (),
            retry_ms_max=200,
        )  # fmt: skip
        for name, port, client_port in zip(("A1", "A2", "X"), ports[:3], ports[3:], strict=True):
            config = InstanceConfig(
                name, "group",
                destinations=(to_list,) if name == "X" else (),
                client_transports=(TransportConfig("client", client_port),),
                replication_transports=(TransportConfig("replication", port),),
                first=True,
            )  # fmt: skip
            self.of[name] = Server(path / name, config)
            made.append(self.of[name])
            self.addresses[name] = f"127.0.0.1:{client_port}"

    def client(self, watching: Watching, **options: Any) -> Client:
        # A1 is what the client would like best.
        listed = [Listed(self.addresses[name]) for name in ("X", "A1", "A2")]
        return Client("desk", listed, on_event=watching, pause_max_ms=200, **options)


class Watching:
    """What a client tells of itself, and waiting for it."""

    def __init__(self) -> None:
        self.events: list[ClientEvent] = []
        self._came = asyncio.Event()

    def __call__(self, event: ClientEvent) -> None:
        self.events.append(event)
        self._came.set()

    async def until(self, wanted: Callable[[ClientEvent], bool], since: int = 0) -> ClientEvent:
        async with asyncio.timeout(DEADLINE_S):
            while True:
                for event in self.events[since:]:
                    if wanted(event):
                        return event
                self._came.clear()
                await self._came.wait()

    async def safe(self, name: str) -> None:
        await self.until(lambda event: event == PeerBecameSafe(name, "X"))

    async def connected(self, since: int) -> str:
        event = await self.until(lambda event: isinstance(event, Connected), since)
        assert isinstance(event, Connected)
        return event.instance

    async def waits(self, since: int) -> dict[str, str]:
        event = await self.until(lambda event: isinstance(event, WaitingForSafeInstance), since)
        assert isinstance(event, WaitingForSafeInstance)
        return dict(event.refused)


async def publish(client: Client, first: int, last: int) -> None:
    for number in range(first, last + 1):
        await client.publish("orders", b"%d" % number)
    await client.flush(timeout_s=DEADLINE_S)


async def second_server(fabric: Fabric, client: Client, watching: Watching) -> None:
    """A1 dies after ten messages and comes back when A2 has twenty."""
    await publish(client, 1, 10)
    await watching.safe("A1")
    await asyncio.to_thread(fabric.of["A1"].kill)
    await publish(client, 11, 20)
    await watching.safe("A2")
    await asyncio.to_thread(fabric.of["A1"].start)


def journal(server: Server) -> int:
    found = server.journal()
    assert len(set(found)) == len(found) and {publisher for publisher, _ in found} <= {
        publisher_id("desk")
    }
    return len(found)


@pytest.mark.parametrize("named", [False, True])
def test_a_server_of_a_list_that_was_left_is_not_failed_over_to(
    servers: Servers, tmp_path: Path, named: bool
) -> None:
    asyncio.run(_left(servers, tmp_path, named))


async def _left(servers: Servers, tmp_path: Path, named: bool) -> None:
    fabric = await asyncio.to_thread(Fabric, servers, tmp_path, named=named)
    watching = Watching()
    async with fabric.client(watching) as client:
        await second_server(fabric, client, watching)
        assert await asyncio.to_thread(journal, fabric.of["A1"]) == 10
        since = len(watching.events)
        fabric.of["X"].kill()
        assert await watching.connected(since) == "A2"
        await publish(client, 21, 30)
        assert await asyncio.to_thread(journal, fabric.of["A2"]) == 30


def test_where_no_safe_instance_is_left_a_client_waits_and_says_for_whom(
    servers: Servers, tmp_path: Path
) -> None:
    """Also one that was started again with its store."""
    asyncio.run(_waits(servers, tmp_path))


async def _waits(servers: Servers, tmp_path: Path) -> None:
    fabric = await asyncio.to_thread(Fabric, servers, tmp_path, named=False)
    for life in range(2):
        watching = Watching()
        store = LmdbPublishStore(tmp_path / "store.lmdb")
        client = fabric.client(watching, publish_store=store)
        connecting = asyncio.create_task(client.connect())
        try:
            if life == 0:
                await connecting
                await second_server(fabric, client, watching)
                fabric.of["A2"].kill()
                fabric.of["X"].kill()
            refused = await watching.waits(0)
            assert refused.keys() == {"A1"} and "safe to fail over to" in refused["A1"]
            if life == 1:
                since = len(watching.events)
                await asyncio.to_thread(fabric.of["A2"].start)
                assert await watching.connected(since) == "A2"
                await connecting
                await publish(client, 21, 30)
        finally:
            connecting.cancel()
            await client.close(flush=life == 1)
            store.close()
    assert await asyncio.to_thread(journal, fabric.of["A2"]) == 30
