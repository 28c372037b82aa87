"""Links between instances over TLS: real sockets, the links in this process."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Awaitable, Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from support.tls_files import tls_files
from support.waiting import until
from unit.test_counted_calls import links_here

from raylay.services.client import Client
from raylay.services.config.bootstrap import BootstrapConfig
from raylay.services.config.instance import (
    DestinationConfig,
    InstanceConfig,
    split_address,
)
from raylay.services.config.transport import TransportConfig
from raylay.services.messages.topics import TopicRule
from raylay.services.net.tls_config import TlsConfig
from raylay.services.plugins.authenticators import DEFAULT
from raylay.services.protocol.frames import FrameReader
from raylay.services.replication.membership.placement import InstancePlacement
from raylay.services.security.modules import ModuleConfig
from raylay.services.server.instance_server import InstanceServer
from raylay.services.server.links.announcer import Announcer
from raylay.services.telemetry.logs import LogOptions

DEADLINE_S = 30.0
TOPICS = (TopicRule("orders", exclude_validation=("replicate",)),)
PLAIN = InstanceConfig("A", "g", topics=TOPICS, first=True, log=LogOptions(target="none"))


def to(name: str, address: str, tls: TlsConfig | None, **more: Any) -> DestinationConfig:
    return DestinationConfig(
        name, "g", True, (address,), TOPICS, server_names=(name,), tls=tls,
        retry_ms_min=10, retry_ms_max=50, **more,
    )  # fmt: skip


def serving(**more: Any) -> TransportConfig:
    """The first replication transport: with client certificates."""
    made = tls_files()
    tls = made.serving(verify_client=True, ca_file=made.ours.file)
    return TransportConfig("links", tls=tls, **more)


class Fabric:
    """Instances in this process."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._servers: list[InstanceServer] = []

    async def start(self, config: InstanceConfig) -> InstanceServer:
        factory = links_here(asyncio.get_running_loop())
        server = InstanceServer(config, self._directory / config.name, factory)
        self._servers.append(server)
        await server.start()
        return server

    async def stop(self) -> None:
        for server in reversed(self._servers):
            await server.stop()


def run(directory: Path, work: Callable[[Fabric], Awaitable[None]]) -> None:
    async def visit() -> None:
        fabric = Fabric(directory)
        try:
            async with asyncio.timeout(DEADLINE_S):
                await work(fabric)
        finally:
            await fabric.stop()

    asyncio.run(visit())


def link(server: InstanceServer, name: str) -> dict[str, Any]:
    return dict(server.status()["destinations"][name])


async def publish(server: InstanceServer, count: int = 3) -> None:
    async with Client("p", servers=[server.runtime.client_address]) as client:
        for _ in range(count):
            await client.publish("orders", b"{}")
        await client.flush()


def replication(server: InstanceServer, name: str) -> dict[str, Any]:
    (found,) = (each for each in server.status()["transports"] if each["name"] == name)
    return dict(found)


@pytest.mark.covers("Configuration", "TLS between instances")
def test_a_link_with_its_certificate_and_one_that_is_never_handed_over(tmp_path: Path) -> None:
    made = tls_files()

    async def work(fabric: Fabric) -> None:
        b = await fabric.start(replace(PLAIN, name="B", replication_transports=(serving(),)))
        where = b.runtime.replication_address
        a = await fabric.start(
            replace(PLAIN, destinations=(to("B", where, made.dialling(made.client)),))
        )
        await publish(a)
        assert link(a, "B")["persisted"] >= 3 and b.status()["replicated_in"] == 3
        (upstream,) = b.parts.upstreams.connected.values()
        assert upstream.peer_certificate is not None
        assert upstream.peer_certificate.common_name == "desk"
        assert replication(b, "links")["connections"] == 1
        # Asked for its connection, it keeps it for good.
        control = a.parts.links.controls["B"].direct_link
        policy: Any = control._policy  # type: ignore[attr-defined]
        await until(lambda: not policy._is_allowed)
        assert not link(a, "B")["direct"]
        # A transport that is shut ends the link; it comes back when it is opened.
        await b.parts.calls.switch_transport("links", on=False)
        await until(lambda: not link(a, "B")["connected"])
        refused = ("transport_disabled", "Connect call failed", "efused")
        await until(lambda: any(word in link(a, "B")["why"] for word in refused))
        assert replication(b, "links") == {
            **replication(b, "links"), "enabled": False, "connections": 0, "kind": "replication",
        }  # fmt: skip
        await b.parts.calls.switch_transport("links", on=True)
        await until(lambda: link(a, "B")["caught_up"])
        await publish(a)

    run(tmp_path, work)


@pytest.mark.covers("Configuration", "TLS between instances")
def test_what_is_wrong_with_a_link_is_said(tmp_path: Path) -> None:
    made = tls_files()

    async def work(fabric: Fabric) -> None:
        more = (TransportConfig("open"), TransportConfig("shut", enabled=False))
        b = await fabric.start(replace(PLAIN, name="B", replication_transports=(serving(), *more)))
        where = b.runtime.replication_address
        unsecured = str(replication(b, "open")["address"])
        assert not replication(b, "shut")["enabled"]
        gone = TlsConfig(ca_file="/no/such.pem")
        cases: list[tuple[str, TlsConfig | None, str]] = [
            (where, None, "this transport speaks TLS, and nothing else"),
            (where, made.dialling(), "wants a client certificate"),
            (where, made.dialling(made.stranger), "does not know the CA"),
            (where, TlsConfig(ca_file=made.other.file), "a CA that is not known here"),
            (where, made.dialling(server_name="b.example"), "is not for 'b.example'"),
            (where, gone, "the CA file /no/such.pem cannot be read"),
            (unsecured, made.dialling(), "it speaks no TLS: connect without"),
            (unsecured, None, ""),
        ]
        for number, (address, tls, words) in enumerate(cases):
            a = await fabric.start(
                replace(PLAIN, name=f"A{number}", destinations=(to("B", address, tls),))
            )
            await until(
                lambda a=a, words=words: (
                    words in link(a, "B")["why"]  # type: ignore[misc]
                    and (words or link(a, "B")["caught_up"])
                )
            )
            await a.stop()

    run(tmp_path, work)


def test_the_line_of_a_drill_lies_above_tls(tmp_path: Path) -> None:
    """What a drill drops or cuts are frames, as without TLS: the link comes back."""
    made = tls_files()

    async def work(fabric: Fabric) -> None:
        b = await fabric.start(replace(PLAIN, name="B", replication_transports=(serving(),)))
        there = to("B", b.runtime.replication_address, made.dialling(made.client))
        a = await fabric.start(replace(PLAIN, destinations=(there,), drills=True))
        await until(lambda: link(a, "B")["caught_up"])
        await a.parts.calls.inject("line", 0.3, {"destination": "B", "mode": "cut"})
        await until(lambda: not link(a, "B")["connected"])
        await until(lambda: link(a, "B")["caught_up"])
        await publish(a)
        assert b.status()["replicated_in"] == 3

    run(tmp_path, work)


@pytest.mark.covers("Configuration", "TLS between instances")
def test_a_shared_connection_carries_both_directions_over_tls(tmp_path: Path) -> None:
    made = tls_files()

    async def work(fabric: Fabric) -> None:
        back = replace(to("A", "", None, share_connection=True), addresses=())
        b = await fabric.start(
            replace(PLAIN, name="B", replication_transports=(serving(),), destinations=(back,))
        )
        there = to("B", b.runtime.replication_address, made.dialling(made.client))
        a = await fabric.start(replace(PLAIN, destinations=(there,)))
        await until(lambda: link(b, "A")["caught_up"])
        assert link(b, "A")["address"] == "over A's connection"
        await publish(b)
        assert a.status()["replicated_in"] == 3

    run(tmp_path, work)


@pytest.mark.covers("Configuration", "a link over a shared connection is known")
@pytest.mark.parametrize(
    ("name", "who", "lets_in"),
    [("AlternativeName", "localhost", True), ("CommonName", "server", True),
     ("CommonName", "desk", False)],
)  # fmt: skip
def test_a_link_over_the_connection_of_the_other_side_is_known_by_that_ones_certificate(
    tmp_path: Path, name: str, who: str, lets_in: bool
) -> None:
    """A dialled B, and saw its certificate: B's link comes to A over that connection."""
    made = tls_files()

    async def work(fabric: Fabric) -> None:
        back = replace(
            to("A", "", None, share_connection=True),
            addresses=(),
            authenticator=ModuleConfig(DEFAULT, {"User": who, "Password": "x"}),
        )
        b = await fabric.start(
            replace(PLAIN, name="B", replication_transports=(serving(),), destinations=(back,))
        )
        there = to("B", b.runtime.replication_address, made.dialling(made.client))
        asks = ModuleConfig("certificates", {"Name": name})
        a = await fabric.start(
            replace(PLAIN, destinations=(there,), replication_authentication=asks)
        )
        if lets_in:
            await until(lambda: link(b, "A")["caught_up"])
            (carried,) = [
                each for each in a.parts.upstreams.connected.values() if each.carried_over
            ]
            assert carried.user == who
        else:
            await until(lambda: any(e["event"] == "logon_denied" for e in a.events()))
            (denied, *_) = [e for e in a.events() if e["event"] == "logon_denied"]
            assert "its certificate bears another name" in denied["text"]

    run(tmp_path, work)


@pytest.mark.covers("Configuration", "TLS between instances")
def test_an_empty_instance_copies_over_tls(tmp_path: Path) -> None:
    made = tls_files()

    async def work(fabric: Fabric) -> None:
        b = await fabric.start(replace(PLAIN, name="B", replication_transports=(serving(),)))
        await publish(b)
        copied = BootstrapConfig((b.runtime.replication_address,), tls=made.dialling(made.client))
        c = await fabric.start(replace(PLAIN, name="C", bootstrap=copied))
        assert c.status()["messages"] == 3

    run(tmp_path, work)


@pytest.mark.covers("Configuration", "TLS between instances")
def test_a_moved_instance_says_so_over_tls(tmp_path: Path) -> None:
    made = tls_files()

    async def work(fabric: Fabric) -> None:
        key = "the key of a fabric"
        config = replace(PLAIN, name="B", replication_transports=(serving(),), fabric_key=key)
        b = await fabric.start(config)
        a = await fabric.start(
            replace(PLAIN, fabric_key=key, announce_tls=made.dialling(made.client))
        )
        await a.parts.placements.learn({"Z": InstancePlacement(1, "z:1", "z:2")})
        announcer = Announcer(a.runtime, a.parts.placements, (b.runtime.replication_address,))
        await announcer.run()
        assert b.parts.placements.known()["Z"] == InstancePlacement(1, "z:1", "z:2")

    run(tmp_path, work)


@pytest.mark.parametrize("said", [b"\x00\x00\x00\x09\x00 plain", b"GET / HTTP/1.1\r\n\r\n"])
def test_who_speaks_no_tls_to_a_replication_port_is_told(tmp_path: Path, said: bytes) -> None:
    async def work(fabric: Fabric) -> None:
        b = await fabric.start(replace(PLAIN, name="B", replication_transports=(serving(),)))
        where = split_address(b.runtime.replication_address)
        reader, writer = await asyncio.open_connection(*where)
        writer.write(said)
        ((header, _),) = FrameReader().feed(await reader.read())
        assert header["reason"] == "tls_required"
        # And a process that ends within its first words is nobody's loss.
        with socket.create_connection(where) as other:
            other.sendall(b"\x16")
        await until(lambda: replication(b, "links")["tls_refused"] == 2)
        assert replication(b, "links")["connections"] == 0
        writer.close()

    run(tmp_path, work)
