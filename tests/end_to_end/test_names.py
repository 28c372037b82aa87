"""Two running instances of one name, of files that nobody checked together."""

from __future__ import annotations

from pathlib import Path

import pytest
from support.instance_processes import Client, Server, Servers, free_ports

from raylay.services.config.instance import DestinationConfig, InstanceConfig
from raylay.services.config.transport import TransportConfig


def replicating(name: str, own: int, other: str, port: int) -> InstanceConfig:
    destination = DestinationConfig(
        other, "group", True, (f"127.0.0.1:{port}",), pass_through=".*", retry_ms_max=100
    )
    return InstanceConfig(
        name,
        "group",
        destinations=(destination,),
        replication_transports=(TransportConfig("replication", own),),
        first=True,
    )


@pytest.mark.covers("The replication chapters", "unique names, in one set of files and among")
def test_two_of_one_name_are_found_when_they_meet(servers: Servers, tmp_path: Path) -> None:
    ports = free_ports(4)
    for number, config in enumerate(
        (
            replicating("A", ports[0], "B", ports[1]),
            replicating("B", ports[1], "A", ports[0]),
            replicating("B", ports[2], "A", ports[0]),
            replicating("A", ports[3], "A", ports[0]),
        )
    ):
        servers.append(Server(tmp_path / str(number), config))
        if number == 1:
            servers[0].wait_for("link_caught_up")
            servers[1].wait_for("link_caught_up")
    a, b, second_b, second_a = servers
    # Both sides say which two.
    for server in (a, second_b):
        server.wait_for("B is the name of two instances")
        assert f"127.0.0.1:{ports[1]}" in server.log and f"127.0.0.1:{ports[2]}" in server.log
    for server in (a, second_a):
        server.wait_for("A is the name of two instances: of this one")
    # Those that were there first go on.
    client = Client(a.address, "publisher")
    client.publish(range(1, 11))
    client.persisted(10)
    b.kill()
    assert [sequence for _, sequence in b.journal()] == list(range(1, 11))
    assert second_b.journal() == []
    # With the first one gone the name is free.
    a.wait_for("upstream_connected peer=B", 2)
