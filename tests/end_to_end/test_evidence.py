"""Downgrades by evidence on real processes: what is evidence that a process has ended, what is not,
and that evidence that is wrong loses nothing."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from end_to_end.test_clocks import HOUR_US, Clock, ClockServer, set_clock
from end_to_end.test_clocks import library as library
from end_to_end.test_hung_children import child_of
from end_to_end.test_hung_disk import Hung
from end_to_end.test_shared_connection import Pair
from support.gateway import Gateway
from support.instance_processes import Client, Server, Servers, free_ports, pair, single

from raylay.services.config.instance import DestinationConfig, InstanceConfig
from raylay.services.config.journal import JournalConfig
from raylay.services.config.transport import TransportConfig
from raylay.services.messages.topics import TopicRule
from raylay.services.protocol.frames import Frame
from raylay.services.replication.downgrade import DowngradePolicy

pytestmark = [
    pytest.mark.covers("Replication", "downgraded at once on evidence"),
    pytest.mark.slow,
]

NEVER_MS = 3_600_000
"""A downgrade age that no test reaches."""
BY_EVIDENCE = DowngradePolicy(NEVER_MS)
DOWNGRADED = " downgraded "
ROUNDS = 8
"""Number of times that a link is let look for a process before a test says that it found none."""


@pytest.fixture
def gateways() -> Iterator[list[Gateway]]:
    made: list[Gateway] = []
    yield made
    for gateway in made:
        gateway.close()


def destination(name: str, *addresses: str, group: str = "group") -> DestinationConfig:
    return DestinationConfig(
        f"to-{name}", group, True, addresses, pass_through=".*", retry_ms_max=100
    )


def behind_gateways(
    servers: Servers,
    gateways: list[Gateway],
    path: Path,
    count: int = 1,
    **values: Any,
) -> tuple[Server, list[Server]]:
    """`A`, and so many servers of its one destination, each behind a gateway, with no way back.

    Args:
        values: More values of the destination.
    """
    ports = free_ports(count)
    gateways += [Gateway(port) for port in ports]
    theirs = [
        Server(
            path / f"B{number}",
            InstanceConfig(
                f"B{number}",
                "there",
                replication_transports=(TransportConfig("replication", port),),
                first=True,
            ),
        )
        for number, port in enumerate(ports, 1)
    ]
    servers += theirs
    one_way = TopicRule(".*", exclude_validation=("replicate",))
    to = DestinationConfig(
        "to-B",
        "there",
        True,
        tuple(gateway.address for gateway in gateways[-count:]),
        topics=(one_way,),
        pass_through=".*",
        retry_ms_max=100,
        **values,
    )
    made = InstanceConfig("A", "group", destinations=(to,), first=True, policy=BY_EVIDENCE)
    first = Server(path / "A", made)
    servers.append(first)
    first.wait_for("link_caught_up")
    return first, theirs


def is_unsafe(frame: Frame) -> bool:
    return frame.header["c"] == "safety" and not frame.header["peers"][0]["safe"]


def numbers(server: Server) -> list[int]:
    """The sequences in its journal."""
    return [sequence for _, sequence in server.journal()]


# -- what is no evidence ---------------------------------------------------------------------------
def test_a_frozen_process_is_no_evidence(
    servers: Servers, gateways: list[Gateway], tmp_path: Path
) -> None:
    """Its host answers for it: connections are accepted, and nothing comes."""
    first, (second,) = behind_gateways(
        servers, gateways, tmp_path, heartbeat_ms=100, timeout_ms=1_000
    )
    (gateway,) = gateways
    client = Client(first.address, "publisher")
    before = gateway.accepted
    second.process.send_signal(signal.SIGSTOP)
    try:
        client.publish(range(1, 11))
        first.wait_for("link_disconnected")
        # It looks whether the address refuses, and dials again.
        gateway.dialled(2, before)
        assert not first.events(DOWNGRADED)
    finally:
        second.process.send_signal(signal.SIGCONT)
    client.persisted(10)
    assert numbers(first) == numbers(second) == list(range(1, 11))
    assert not first.events(DOWNGRADED)


def test_silence_leaves_a_destination_to_its_age(servers: Servers, tmp_path: Path) -> None:
    first, second = pair(servers, tmp_path, DowngradePolicy(300))
    client = Client(first.address, "publisher")
    second.process.send_signal(signal.SIGSTOP)
    try:
        client.publish(range(1, 11))
        client.persisted(10)
    finally:
        second.process.send_signal(signal.SIGCONT)
    first.wait_for(DOWNGRADED)
    assert "oldest is" in first.log.partition(DOWNGRADED)[2].partition("\n")[0]
    first.wait_for("upgraded")
    client.publish(range(11, 21))
    client.persisted(20)
    assert {*numbers(first)} == {*numbers(second)} == {*range(1, 21)}


def test_a_killed_link_says_nothing_about_an_instance(servers: Servers, tmp_path: Path) -> None:
    first, second = pair(servers, tmp_path, BY_EVIDENCE)
    client = Client(first.address, "publisher")
    for times, server in enumerate((first, second, first), 1):
        os.kill(child_of(server, "run_link"), signal.SIGKILL)
        server.wait_for_behind("link_caught_up", "link_process_ended", (times + 1) // 2)
        client.publish(range(10 * times - 9, 10 * times + 1))
        client.persisted(10 * times)
    assert not first.events(DOWNGRADED) and not second.events(DOWNGRADED)
    assert numbers(first) == numbers(second) == list(range(1, 31))


@pytest.mark.parametrize("other", ["hangs up", "speaks another protocol", "is another instance"])
def test_a_port_that_another_program_has_taken_is_left_to_the_age(
    servers: Servers, gateways: list[Gateway], tmp_path: Path, other: str
) -> None:
    first, (second,) = behind_gateways(servers, gateways, tmp_path)
    (gateway,) = gateways
    client = Client(first.address, "publisher")
    client.publish(range(1, 11))
    client.persisted(10)
    if other == "hangs up":
        gateway.hangs_up()
    elif other == "speaks another protocol":
        gateway.answers(b"HTTP/1.1 400 Bad Request\r\n\r\n")
    else:
        # An instance that lives and refuses the logon: it is of another group.
        stranger = single(servers, tmp_path)
        gateway.relays(int(stranger.status["replication_address"].rpartition(":")[2]))
    second.kill()
    gateway.cut()
    client.publish(range(11, 21))
    gateway.dialled(ROUNDS)
    assert not first.events(DOWNGRADED)
    second.start()
    gateway.relays(second.config.replication_transports[0].port)
    client.persisted(20)
    assert not first.events(DOWNGRADED)
    assert numbers(first) == numbers(second) == list(range(1, 21))


def test_one_server_of_a_list_that_refuses_is_no_evidence(
    servers: Servers, gateways: list[Gateway], tmp_path: Path
) -> None:
    """Evidence is that of all of them."""
    first, theirs = behind_gateways(servers, gateways, tmp_path, 2)
    client = Client(first.address, "publisher")
    client.publish(range(1, 11))
    client.persisted(10)
    theirs[0].kill()
    gateways[0].refuses()
    client.publish(range(11, 21))
    client.persisted(20)
    assert not first.events(DOWNGRADED)
    assert set(range(11, 21)) <= set(numbers(theirs[1]))
    # The other one is silent, as a host is that hangs: connections are accepted, nothing comes.
    gateways[1].hangs_up()
    gateways[1].cut()
    client.publish(range(21, 31))
    gateways[1].dialled(ROUNDS)
    assert not first.events(DOWNGRADED)
    theirs[1].kill()
    gateways[1].refuses()
    assert is_unsafe(
        client.next(lambda frame: is_unsafe(frame) or frame.header.get("s", 0) >= 30)
    ), "the ack came before the notice"
    client.persisted(30)


# -- evidence, right and wrong ---------------------------------------------------------------------
def test_a_gateway_that_refuses_for_a_living_instance_loses_nothing(
    servers: Servers, gateways: list[Gateway], tmp_path: Path
) -> None:
    """The false downgrade heals, and only events tell of it."""
    first, (second,) = behind_gateways(servers, gateways, tmp_path)
    (gateway,) = gateways
    client = Client(first.address, "publisher")
    for times in range(1, 4):
        gateway.refuses()
        last = 200 * times
        client.publish(range(last - 199, last - 99))
        first.wait_for(DOWNGRADED, times)
        client.persisted(last - 100)
        client.publish(range(last - 99, last + 1))
        gateway.relays()
        first.wait_for("upgraded", times)
        client.persisted(last)
        assert numbers(first) == numbers(second) == list(range(1, last + 1))
    assert "its process has ended: 127.0.0.1" in first.log
    assert first.events(DOWNGRADED) == first.events("upgraded") == 3


def test_an_instance_that_restarts_at_once_loses_nothing(servers: Servers, tmp_path: Path) -> None:
    """The evidence may be out of date when it is told."""
    first, second = pair(servers, tmp_path, BY_EVIDENCE, retry_ms_min=1)
    client = Client(first.address, "publisher")
    for times in range(1, 4):
        client.publish(range(100 * times - 99, 100 * times - 49))
        second.kill()
        client.publish(range(100 * times - 49, 100 * times + 1))
        second.begin_start()
        client.persisted(100 * times)
        second.await_start()
        first.wait_for_behind("link_caught_up", "link_disconnected", times)
    first.wait_for("upgraded", first.events(DOWNGRADED))
    client.publish(range(301, 302))
    client.persisted(301)
    assert numbers(first) == numbers(second) == list(range(1, 302))


@pytest.mark.parametrize("dialling", ["AB", "B"])
def test_shared_connections(servers: Servers, tmp_path: Path, dialling: str) -> None:
    """Evidence is that of an address: who has none waits for the age."""
    both = Pair(servers, tmp_path, dialling, share=dialling == "AB", policy=BY_EVIDENCE)
    both.heals()
    for dead, survivor in ((both.a, both.b), (both.b, both.a)):
        before = survivor.events(DOWNGRADED)
        dead.kill()
        if survivor.config.name in dialling:
            survivor.wait_for(DOWNGRADED, before + 1)
        else:
            survivor.wait_for_behind("link_disconnected", "link_caught_up", 1)
        dead.start()
        survivor.wait_for("upgraded", survivor.events(DOWNGRADED))
        both.heals()
    assert both.a.events(DOWNGRADED) == ("A" in dialling)
    assert both.b.events(DOWNGRADED) == 1


def test_an_address_that_is_not_the_lost_servers_is_no_evidence(
    servers: Servers, tmp_path: Path
) -> None:
    """B connects by itself, and what A dials refuses: each connection of B's that was lost
    downgraded B, which lives."""
    a, b, refusing = free_ports(3)
    for name, port, to in (
        ("A", a, replace(destination("B", f"127.0.0.1:{refusing}"), name="B", waits=True)),
        ("B", b, destination("A", f"127.0.0.1:{a}")),
    ):
        made = InstanceConfig(
            name,
            "group",
            destinations=(to,),
            replication_transports=(TransportConfig("replication", port),),
            first=True,
            policy=BY_EVIDENCE,
        )
        servers.append(Server(tmp_path / name, made))
    first, second = servers
    client = Client(first.address, "publisher")
    for times in range(1, 4):
        client.publish(range(10 * times - 9, 10 * times + 1))
        client.persisted(10 * times)
        first.wait_for("link_caught_up", times)
        os.kill(child_of(second, "run_link"), signal.SIGKILL)
        first.wait_for("link_disconnected", times)
    client.publish(range(31, 41))
    client.persisted(40)
    assert not first.events(DOWNGRADED) and not second.events(DOWNGRADED)
    assert numbers(first) == numbers(second) == list(range(1, 41))


def test_a_disk_that_hangs_while_evidence_comes(servers: Servers, tmp_path: Path) -> None:
    """Nobody is told more than is on the disk, and safety is told first."""
    patient = {"journal": JournalConfig(disk_timeout_ms=600_000)}
    first, second = pair(servers, tmp_path, BY_EVIDENCE, of_each=patient)
    client = Client(first.address, "publisher")
    client.publish(range(1, 11))
    client.persisted(10)
    hung = Hung(first)
    client.publish(range(11, 21))
    first.wait_for("disk_hangs")
    second.kill()
    hung.goes_on()
    assert is_unsafe(
        client.next(lambda frame: is_unsafe(frame) or frame.header.get("s", 0) >= 20)
    ), "the ack came before the notice"
    client.persisted(20)
    second.start()
    first.wait_for("upgraded")
    client.publish(range(21, 31))
    client.persisted(30)
    assert numbers(first) == numbers(second) == list(range(1, 31))


def test_a_clock_that_jumps_is_no_evidence_and_holds_up_none(
    servers: Servers, library: Path, tmp_path: Path
) -> None:
    ports = dict(zip("AB", free_ports(2), strict=True))
    configs = [
        InstanceConfig(
            name,
            "group",
            destinations=(destination(other, f"127.0.0.1:{ports[other]}"),),
            replication_transports=(TransportConfig("replication", ports[name]),),
            first=True,
            policy=BY_EVIDENCE,
        )
        for name, other in ("AB", "BA")
    ]
    second = Server(tmp_path / "B", configs[1])
    servers.append(second)
    first = ClockServer(tmp_path / "A", configs[0], Clock(library, tmp_path / "clock"))
    servers.append(first)
    first.wait_for("link_caught_up")
    client = Client(first.address, "publisher")
    second.process.send_signal(signal.SIGSTOP)
    try:
        client.publish(range(1, 11))
        set_clock(first, 2 * HOUR_US, 1)
        set_clock(first, -2 * HOUR_US, 2)
        assert not first.events(DOWNGRADED)
    finally:
        second.process.send_signal(signal.SIGCONT)
    client.persisted(10)
    second.kill()
    client.publish(range(11, 21))
    client.persisted(20)
    first.wait_for(DOWNGRADED)
    set_clock(first, 2 * HOUR_US, 3)
    second.start()
    first.wait_for("upgraded")
    client.publish(range(21, 31))
    client.persisted(30)
    assert numbers(first) == numbers(second) == list(range(1, 31))
