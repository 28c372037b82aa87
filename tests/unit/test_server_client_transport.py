"""Transports for clients: who is let in, and how one is opened and shut while its instance runs."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from raylay.services.client import Client
from raylay.services.client.events import Disconnected
from raylay.services.errors import ConfigurationError
from raylay.services.messages.topics import TopicRule
from raylay.services.server.client_transport import ClientTransport
from raylay.services.server.config import ClientTransportConfig, InstanceConfig, split_address
from raylay.services.server.instance_server import InstanceServer
from raylay.services.telemetry.logs import LogOptions

CONFIG = InstanceConfig(
    "solo", "g", first=True, topics=(TopicRule(".*"),), log=LogOptions(target="none"),
    client_transports=(
        ClientTransportConfig("few", connections_max=2),
        ClientTransportConfig("shut", is_enabled=False),
    ),
)  # fmt: skip
DEADLINE_S = 30.0


def in_instance(
    directory: Path, visit: Callable[[InstanceServer], Awaitable[None]], config: InstanceConfig
) -> None:
    async def run() -> None:
        server = InstanceServer(config, directory)
        await server.start()
        try:
            async with asyncio.timeout(DEADLINE_S):
                await visit(server)
        finally:
            await server.stop()

    asyncio.run(run())


def transports(server: InstanceServer) -> dict[str, dict[str, Any]]:
    return {each["name"]: each for each in server.status()["transports"]}


async def can_connect(address: str) -> bool:
    try:
        _, writer = await asyncio.open_connection(*split_address(address))
    except ConnectionRefusedError:
        return False
    writer.close()
    return True


def test_a_disabled_transport_ends_its_sessions_and_they_go_on_elsewhere(tmp_path: Path) -> None:
    async def visit(server: InstanceServer) -> None:
        few = transports(server)["few"]["address"]
        own = server.status()["client_address"]
        events: list[Any] = []
        moved = asyncio.Event()

        def told(event: Any) -> None:
            events.append(event)
            if isinstance(event, Disconnected):
                moved.set()

        async with (
            Client("mover", servers=[few, own], on_event=told, failover="any") as mover,
            Client("other", servers=[own]) as other,
        ):
            await mover.publish("orders", b"{}")
            await mover.flush()
            assert transports(server)["few"]["connections"] == 1
            assert transports(server)["client"]["connections"] == 1
            said = await server.switch_transport("few", on=False)
            assert said.startswith("transport few of solo is disabled until") and "1 conn" in said
            await moved.wait()
            assert any("transport_disabled" in repr(event) for event in events)
            # What is published meanwhile goes on by the other transport.
            await mover.publish("orders", b"{}")
            await mover.flush()
            shown = transports(server)
            assert not shown["few"]["enabled"] and shown["few"]["connections"] == 0
            assert shown["client"]["connections"] == 2
            assert not await can_connect(few)
            assert "disabled already" in await server.switch_transport("few", on=False)
            # Enabled, it listens where it did.
            assert few in await server.switch_transport("few", on=True)
            assert "enabled already" in await server.switch_transport("few", on=True)
            assert transports(server)["few"]["address"] == few and await can_connect(few)
            assert other.instance == "solo"
        named = [(each["event"], each.get("transport")) for each in server.events()]
        assert ("transport_disabled", "few") in named and ("transport_enabled", "few") in named

    in_instance(tmp_path / "solo", visit, CONFIG)


def test_one_that_is_shut_at_the_start_can_be_opened(tmp_path: Path) -> None:
    async def visit(server: InstanceServer) -> None:
        assert transports(server)["shut"] == {
            "name": "shut", "kind": "client", "address": "127.0.0.1:0", "enabled": False,
            "connections": 0, "connections_max": None, "message_types": [], "tls": False,
            "tls_refused": 0,
        }  # fmt: skip
        await server.switch_transport("shut", on=True)
        async with Client("c", servers=[transports(server)["shut"]["address"]]) as client:
            assert client.instance == "solo"
        with pytest.raises(ConfigurationError, match="it has client, few, shut, replication"):
            await server.switch_transport("none", on=False)

    in_instance(tmp_path / "solo", visit, CONFIG)


def test_one_whose_port_is_taken_stays_shut(tmp_path: Path) -> None:
    async def visit(server: InstanceServer) -> None:
        address = transports(server)["few"]["address"]
        await server.switch_transport("few", on=False)
        await asyncio.sleep(0)
        with socket.create_server(split_address(address), reuse_port=False):
            # A port that was chosen freely may be another one; one that was given may not.
            await server.switch_transport("few", on=True)
            assert transports(server)["few"]["address"] != address
            own = ClientTransportConfig("own", split_address(address)[1])
            server._listening._kept["shut"] = own, "client/shut"
            with pytest.raises(ConfigurationError, match="is the port in use"):
                await server.switch_transport("shut", on=True)
        assert not transports(server)["shut"]["enabled"]

    in_instance(tmp_path / "solo", visit, CONFIG)


class Visitor:
    """A connection that knows why it was ended."""

    def __init__(self, transport: ClientTransport) -> None:
        self.transport, self.why = transport, ""

    def end(self, reason: str, text: str) -> None:
        self.why = f"{reason}: {text}"
        self.transport.left(self)

    def turn_away(self, text: str) -> None:
        self.end("too_many", text)


def test_one_too_many_is_turned_away() -> None:
    transport = ClientTransport("few", connections_max=2)
    known, first, second = (Visitor(transport) for _ in range(3))
    transport.came(known)
    transport.admitted(known)
    transport.came(first)
    transport.came(second)
    assert first.why.startswith("too_many: 2 connections are open here, as many as transport few")
    assert not known.why and not second.why and transport.connections == {known, second}
    transport.left(first)
    assert transport.status()["connections"] == 2, "one that is gone is not counted again"
    third = Visitor(transport)
    transport.came(third)
    assert second.why and not third.why


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        (InstanceConfig("i", "g", client_transports=(ClientTransportConfig("client"),)),
         "'client', 'client'"),
        (InstanceConfig("i", "g", client_terms=ClientTransportConfig("a", connections_max=0)),
         "'a' admits 0 connections"),
    ],
)  # fmt: skip
def test_wrong_terms_are_refused(wrong: InstanceConfig, words: str) -> None:
    with pytest.raises(ConfigurationError, match=words):
        wrong.check()


def test_what_the_release_before_does_not_know_is_written_where_it_is_used() -> None:
    plain = InstanceConfig("i", "g", client_transports=(ClientTransportConfig("more", 9007),))
    assert "client_terms" not in plain.to_json() and "is_enabled" not in plain.to_json()
    for config in (CONFIG, plain, InstanceConfig("i", "g", client_terms=CONFIG.for_clients()[1])):
        assert InstanceConfig.from_json(config.to_json()) == config
