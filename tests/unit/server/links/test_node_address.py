"""An instance whose node came back with another address listens there, and is found."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from support.waiting import until

from raylay.services.config.instance import DestinationConfig, InstanceConfig
from raylay.services.config.transport import TransportConfig
from raylay.services.errors import ConfigurationError
from raylay.services.fabric.plan import free_port
from raylay.services.server.children.subprocess import ChildSubprocess
from raylay.services.server.instance_server import InstanceServer
from raylay.services.server.links.node_address import following, is_own
from raylay.services.telemetry.logs import LogOptions

FORMER = "192.0.2.1"
"""For documentation: this machine has it not."""
HERE = "127.0.0.1"
CONFIG = InstanceConfig(
    "A",
    "g",
    client_transports=(TransportConfig("client", 7, FORMER, advertised=f"{FORMER}:7"),),
    replication_transports=(TransportConfig("replication", 8, FORMER, advertised=f"{FORMER}:8"),),
    metrics_host=FORMER,
    node_address=FORMER,
    log=LogOptions(target="none"),
    fabric_key="the key of a fabric",
)


def test_a_machine_has_its_own_addresses() -> None:
    assert is_own(HERE) and is_own("0.0.0.0") and is_own("::1")
    assert not is_own(FORMER)
    assert is_own("no.such.name.invalid"), "who binds it says what is wrong"


@pytest.mark.parametrize(("address", "shown"), [(HERE, HERE), ("::1", "[::1]")])
def test_hosts_that_are_the_nodes_follow_it(address: str, shown: str) -> None:
    found = following(CONFIG, address)
    assert {found.metrics_host, *(each.host for each in found.transports)} == {address}
    assert [each.advertised for each in found.transports] == [f"{shown}:7", f"{shown}:8"]


def test_what_the_operator_gave_stays() -> None:
    given = TransportConfig("client", 7, "0.0.0.0", advertised="public:7")
    nameless = TransportConfig("more", 9, FORMER)
    found = following(replace(CONFIG, client_transports=(given, nameless)), HERE)
    assert found.client_transports == (given, replace(nameless, host=HERE))
    assert found.replication_transports[0].host == HERE


@pytest.mark.parametrize(
    ("config", "address"),
    [
        (CONFIG, ""),
        (CONFIG, FORMER),
        (replace(CONFIG, node_address=""), HERE),
        (replace(CONFIG, node_address="127.0.0.2"), HERE),
    ],
    ids=["no-ray", "same", "given", "still-here"],
)
def test_nothing_is_to_be_followed(config: InstanceConfig, address: str) -> None:
    assert following(config, address) is config


def event(server: InstanceServer, name: str) -> dict[str, Any] | None:
    return next((each for each in server.events() if each["event"] == name), None)


def port_of(address: str) -> int:
    return int(address.rpartition(":")[2])


def caught_up(server: InstanceServer, name: str) -> dict[str, Any] | None:
    found: dict[str, Any] = server.status()["destinations"][name]
    return found if found["caught_up"] else None


def test_a_host_that_the_machine_has_not_is_named(tmp_path: Path) -> None:
    async def run() -> None:
        server = InstanceServer(replace(CONFIG, node_address=""), tmp_path)
        with pytest.raises(ConfigurationError, match="this machine has no such address: correct"):
            await server.start()

    asyncio.run(run())


def test_links_and_clients_find_it_where_its_node_is_now(tmp_path: Path) -> None:
    """B is configured for its former address, and it dials nobody whom a logon could tell."""

    async def run() -> None:
        to_a = DestinationConfig(
            "A", "g", False, (f"{FORMER}:8",), server_names=("A",),
            client_addresses=(f"{FORMER}:7",), retry_ms_max=200, reconnect_timeout_ms=(200,),
        )  # fmt: skip
        config = InstanceConfig(
            "B", "g", destinations=(to_a,), first=True, log=CONFIG.log, fabric_key=CONFIG.fabric_key
        )
        b = InstanceServer(config, tmp_path / "B", ChildSubprocess)
        await b.start()
        to_b = DestinationConfig("B", "g", False, server_names=("B",))
        moving = replace(
            CONFIG,
            destinations=(to_b,),
            client_transports=(TransportConfig("client", host=FORMER),),
            replication_transports=(TransportConfig("replication", host=FORMER),),
            announce_to=(b.runtime.replication_address,),
        )  # fmt: skip
        a = InstanceServer(moving, tmp_path / "A", ChildSubprocess, HERE)
        await a.start()
        changed = event(a, "address_changed")
        assert changed is not None and changed["former"] == FORMER
        found = await until(lambda: caught_up(b, "A"))
        assert found["address"] == a.runtime.replication_address
        assert await until(lambda: event(a, "move_announced"))
        told = event(b, "instance_readdressed")
        assert told is not None and told["address"] == a.runtime.replication_address
        (peer,) = b.parts.clients.peers()
        assert peer["addresses"] == [a.runtime.client_address]
        known = b.parts.placements.known()["A"]
        assert known[:3] == (0, a.runtime.replication_address, a.runtime.client_address)

        # It starts again there: nothing is new.
        incarnation = a.parts.instance.identity.incarnation
        await a.stop()
        a = InstanceServer(moving, tmp_path / "A", ChildSubprocess, HERE)
        await a.start()
        assert (
            a.parts.placements.known()["A"] == known
            and a.parts.instance.identity.incarnation == incarnation
        )
        # Its port is another one: of one generation the last counts, at B as well.
        await a.stop()
        a = InstanceServer(
            replace(
                moving,
                replication_transports=(TransportConfig("replication", free_port(set()), FORMER),),
            ),
            tmp_path / "A", ChildSubprocess, HERE,
        )  # fmt: skip
        await a.start()
        await until(
            lambda: b.parts.placements.known()["A"].address == a.runtime.replication_address
        )
        await until(lambda: caught_up(b, "A"))
        # Its disk is lost, and its driver knows the present address: what it hears of its former
        # life it tells better.
        await a.stop()
        port_b = port_of(b.runtime.replication_address)
        to_b = replace(to_b, addresses=(f"{HERE}:{port_b}",))
        a = InstanceServer(
            replace(
                moving,
                client_transports=(TransportConfig("client"),),
                replication_transports=(TransportConfig("replication"),),
                metrics_host=HERE, node_address=HERE, announce_to=(), destinations=(to_b,),
            ),
            tmp_path / "A2", ChildSubprocess, HERE,
        )  # fmt: skip
        await a.start()
        assert a.parts.placements.known() == {}
        await until(
            lambda: b.parts.placements.known()["A"].address == a.runtime.replication_address
        )
        await until(lambda: caught_up(b, "A"))
        assert not a.runtime.retirement and not b.runtime.retirement
        await a.stop()
        await b.stop()

    asyncio.run(run())
