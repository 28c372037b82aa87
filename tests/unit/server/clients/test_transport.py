"""Transports for clients: who is let in, and how one is opened and shut while its instance runs."""

from __future__ import annotations

import asyncio
import socket
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from support.one_instance import events, in_instance, transports
from support.waiting import until

from raylay.services.capacity import outstanding
from raylay.services.client import Client
from raylay.services.client.events import Disconnected
from raylay.services.config.instance import (
    DestinationConfig,
    InstanceConfig,
    split_address,
)
from raylay.services.config.transport import TransportConfig
from raylay.services.errors import ConfigurationError
from raylay.services.messages.topics import TopicRule
from raylay.services.protocol.frames import encode_frame
from raylay.services.server.clients.transport import ClientTransport
from raylay.services.server.instance_server import InstanceServer
from raylay.services.telemetry.logs import LogOptions

CONFIG = InstanceConfig(
    "solo", "g", first=True, topics=(TopicRule(".*"),), log=LogOptions(target="none"),
    client_transports=(TransportConfig("client"),
        TransportConfig("few", connections_max=2),
        TransportConfig("shut", enabled=False, outstanding_publishes_max=7),
    ),
)  # fmt: skip
READ_BYTES_MAX = 256 * 1024
"""That asyncio reads at once."""


def connections(server: InstanceServer) -> list[Any]:
    return list(server.parts.clients.sessions.values())


async def can_connect(address: str) -> bool:
    try:
        _, writer = await asyncio.open_connection(*split_address(address))
    except ConnectionRefusedError:
        return False
    writer.close()
    return True


@pytest.mark.covers("Configuration", "`InitialState`")
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
            said = await server.parts.calls.switch_transport("few", on=False)
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
            assert "disabled already" in await server.parts.calls.switch_transport("few", on=False)
            # Enabled, it listens where it did.
            assert few in await server.parts.calls.switch_transport("few", on=True)
            assert "enabled already" in await server.parts.calls.switch_transport("few", on=True)
            assert transports(server)["few"]["address"] == few and await can_connect(few)
            assert other.instance == "solo"
        named = [(each["event"], each.get("transport")) for each in server.events()]
        assert ("transport_disabled", "few") in named and ("transport_enabled", "few") in named

    in_instance(tmp_path / "solo", visit, CONFIG)


@pytest.mark.covers("Configuration", "`InitialState`")
def test_one_that_is_shut_at_the_start_can_be_opened(tmp_path: Path) -> None:
    async def visit(server: InstanceServer) -> None:
        assert transports(server)["shut"] == {
            "name": "shut", "kind": "client", "address": "127.0.0.1:0", "enabled": False,
            "connections": 0, "connections_max": None, "message_types": [], "tls": False,
            "tls_refused": 0, "outstanding_publishes_max": 7, "problem": "",
            "connections_per_user_max": None, "connections_per_address_max": None,
        }  # fmt: skip
        await server.parts.calls.switch_transport("shut", on=True)
        async with Client("c", servers=[transports(server)["shut"]["address"]]) as client:
            assert client.instance == "solo"
        with pytest.raises(ConfigurationError, match="it has client, few, shut, replication"):
            await server.parts.calls.switch_transport("none", on=False)

    in_instance(tmp_path / "solo", visit, CONFIG)


def test_one_whose_port_is_taken_stays_shut(tmp_path: Path) -> None:
    async def visit(server: InstanceServer) -> None:
        address = transports(server)["few"]["address"]
        await server.parts.calls.switch_transport("few", on=False)
        await asyncio.sleep(0)
        with socket.create_server(split_address(address), reuse_port=False):
            # A port that was chosen freely may be another one; one that was given may not.
            await server.parts.calls.switch_transport("few", on=True)
            assert transports(server)["few"]["address"] != address
            own = TransportConfig("own", split_address(address)[1])
            server.parts.listening._kept["shut"] = own, "client/shut"
            with pytest.raises(ConfigurationError, match="is the port in use"):
                await server.parts.calls.switch_transport("shut", on=True)
        assert not transports(server)["shut"]["enabled"]

    in_instance(tmp_path / "solo", visit, CONFIG)


MOST = 100
WAITING = replace(
    CONFIG,
    destinations=(DestinationConfig("away", "g", addresses=("127.0.0.1:1",), retry_ms_min=5_000),),
    client_transports=(
        TransportConfig("client"),
        TransportConfig("slow", outstanding_publishes_max=MOST),
    ),
)


@pytest.mark.covers("Clients and protocol", "outstanding publishes are limited")
def test_a_publisher_over_its_limit_is_slowed_and_not_killed_and_others_go_on(
    tmp_path: Path,
) -> None:
    """Its sync destination is away: nothing that it publishes is answered."""
    body, count = b'"' + b"x" * 4096 + b'"', 5_000

    async def visit(server: InstanceServer) -> None:
        slow, own = transports(server)["slow"]["address"], server.runtime.client_address
        async with (
            Client("fast", servers=[slow], heartbeat_s=5.0) as fast,
            Client("other", servers=[own]) as other,
        ):
            for _ in range(count):
                fast.publish_nowait("orders", body)
            await until(lambda: bool(events(server, "publisher_slowed")))
            (told,) = events(server, "publisher_slowed")
            assert (told["client"], told["transport"]) == ("fast", "slow")
            assert told["outstanding"] > MOST
            (held,) = [each for each in connections(server) if each.client_name == "fast"]
            taken = server.parts.instance.machine.counters.published
            # What was read when it was found out is taken; all else waits outside of the instance.
            assert MOST < taken < MOST + 2 * READ_BYTES_MAX // len(body)
            assert not held.reading
            # It is not heard, and that is no silence of its own.
            held.received_at_s -= 60.0
            held._beat()
            assert held.is_open
            subscription = await other.subscribe("news")
            await other.publish("news", b"1")
            assert (await anext(aiter(subscription))).body == b"1"
            assert server.parts.instance.machine.counters.published == taken + 1 and held.is_open
            # Its acks come: it is read again, and all of it is durable.
            await server.parts.calls.downgrade("away", force=True)
            await fast.flush()
            assert server.parts.instance.machine.counters.published == count + 1
            assert not held._acks.outstanding
        assert len(events(server, "publisher_slowed")) == 1

    in_instance(tmp_path / "solo", visit, WAITING)


@pytest.mark.covers("Clients and protocol", "outstanding publishes are limited")
def test_who_numbers_nothing_is_slowed_without_any_setting(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(outstanding, "UNNUMBERED_MAX", MOST)

    async def visit(server: InstanceServer) -> None:
        _, writer = await asyncio.open_connection(*split_address(server.runtime.client_address))
        writer.write(encode_frame({"c": "logon", "v": 1, "client_name": "raw", "cid": "l"}))
        await until(lambda: bool(connections(server)))
        frame = encode_frame({"c": "p", "t": "orders", "mt": "json"}, b'"' + b"x" * 9000 + b'"')
        writer.write(frame * 2_000)
        await until(lambda: bool(events(server, "publisher_slowed")))
        (held,) = connections(server)
        assert MOST < len(held._acks.outstanding) < MOST + 2 * READ_BYTES_MAX // len(frame)
        await server.parts.calls.downgrade("away", force=True)
        await until(lambda: server.parts.instance.machine.counters.published == 2_000)
        await until(lambda: not held._acks.outstanding)
        assert held.is_open
        writer.close()

    in_instance(tmp_path / "solo", visit, WAITING)


class Visitor:
    """A connection that knows why it was ended."""

    def __init__(self, transport: ClientTransport) -> None:
        self.transport, self.why = transport, ""

    def end(self, reason: str, text: str) -> None:
        self.why = f"{reason}: {text}"
        self.transport.left(self)

    def turn_away(self, text: str) -> None:
        self.end("too_many", text)


@pytest.mark.covers("Configuration", "`InitialState`")
def test_one_too_many_is_turned_away() -> None:
    transport = ClientTransport(TransportConfig("few", connections_max=2))
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
        (InstanceConfig("i", "g", client_transports=(TransportConfig("client"),) * 2),
         "'client', 'client'"),
        (InstanceConfig("i", "g", client_transports=()), "i has no transport for clients"),
        (InstanceConfig("i", "g", client_transports=(TransportConfig("a", connections_max=0),)),
         "'a' admits 0 connections"),
        (
            InstanceConfig(
                "i", "g", client_transports=(TransportConfig("a", outstanding_publishes_max=0),)
            ),
            "'a' takes 0 publishes",
        ),
        (
            InstanceConfig(
                "i", "g", client_transports=(TransportConfig("a", connections_per_user_max=0),)
            ),
            "'a' admits 0 connections of one user",
        ),
        (
            InstanceConfig(
                "i", "g", client_transports=(TransportConfig("a", connections_per_address_max=0),)
            ),
            "'a' admits 0 connections of one address",
        ),
    ],
)  # fmt: skip
def test_wrong_terms_are_refused(wrong: InstanceConfig, words: str) -> None:
    with pytest.raises(ConfigurationError, match=words):
        wrong.check()


def test_terms_of_transports_survive_the_file() -> None:
    plain = InstanceConfig(
        "i",
        "g",
        client_transports=(
            TransportConfig("client"),
            TransportConfig("more", 9007),
        ),
    )
    for config in (
        CONFIG,
        plain,
        InstanceConfig("i", "g", client_transports=(CONFIG.client_transports[1],)),
    ):
        assert InstanceConfig.from_json(config.to_json()) == config
