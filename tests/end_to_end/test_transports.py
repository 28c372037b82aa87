"""Transports for clients: more than one, and message types that one is for; and a destination that
dials as well as waits to be connected to."""

from __future__ import annotations

import socket
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from support.instance_processes import DEADLINE_S, Client, Server, Servers, free_ports, single

from raylay.services.config.instance import (
    DestinationConfig,
    InstanceConfig,
    TransportConfig,
)
from raylay.services.messages.records import RecordBuilder, iterate_records

TYPES = TransportConfig("typed", message_types=("fix", "nvfix"))


def publish(client: Client, sequence: int, message_type: str) -> None:
    builder = RecordBuilder(client.answer["publisher"], "orders", message_type)
    record = builder.build(sequence, message_type.encode(), time.time_ns() // 1000)
    client.send({"c": "pb", "n": 1}, record)


def subscribed(client: Client, **options: Any) -> dict[str, Any]:
    client.send({"c": "subscribe", "sub": "s", "t": "orders", "cid": "s"} | options)
    return dict(client.ack(cid="s").header)


@pytest.mark.covers("Configuration", "more transports for clients")
def test_a_transport_takes_messages_of_its_types_only(servers: Servers, tmp_path: Path) -> None:
    server = single(
        servers,
        tmp_path,
        client_transports=(
            TransportConfig("client"),
            TYPES,
        ),
    )
    typed = server.status["client_transports"]["typed"]
    assert typed != server.address
    # Everything, by the transport for all types.
    everything = Client(server.address, "all")
    for number, kind in enumerate(("json", "fix", "xml", "nvfix"), 1):
        publish(everything, number, kind)
    everything.persisted(4)
    # What a batch holds beside is not taken either.
    client = Client(typed, "typed")
    builder = RecordBuilder(client.answer["publisher"], "orders", "fix")
    good = builder.build(1, b"fix", time.time_ns() // 1000)
    other = RecordBuilder(client.answer["publisher"], "orders", "json")
    client.send({"c": "pb", "n": 2}, good + other.build(2, b"no", time.time_ns() // 1000))
    refused = client.ack(status="failure").header
    assert refused["reason"] == "bad_message_type"
    assert "fix, nvfix only" in refused["text"] and "'json'" in refused["text"]
    assert client.closed()
    # One message for itself: the next one goes on.
    client = Client(typed, "typed")
    assert client.answer["highest"] == 0
    for sequence, kind in ((1, "json"), (2, "nvfix")):
        client.send({"c": "p", "t": "orders", "mt": kind, "s": sequence, "a": "persisted"}, b"1")
    assert client.ack(s=1).header["reason"] == "bad_message_type"
    assert client.ack(s=2).header["status"] == "success"
    # Subscribers there get nothing else, whether they name a type or not.
    assert subscribed(client, mt="json")["reason"] == "bad_message_type"
    assert subscribed(client, bm="0")["status"] == "success"
    assert client.receive(3) == ["fix", "nvfix", "1"]
    live = Client(typed, "live")
    assert subscribed(live)["status"] == "success"
    publish(everything, 5, "json")
    publish(everything, 6, "fix")
    frame = live.next(lambda frame: frame.header["c"] == "p")
    assert [record.body for record in iterate_records(frame.body)] == [b"fix"]
    server.kill()
    server.start()
    # A free port is kept.
    assert server.status["client_transports"]["typed"] == typed


def test_a_port_in_use_is_named_with_its_transport(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        config = InstanceConfig(
            "solo",
            "group",
            client_transports=(
                TransportConfig("client"),
                TransportConfig("second", port),
            ),
        )
        config.save(tmp_path)
        command = [sys.executable, "-m", "raylay.services.server.run_instance", str(tmp_path)]
        found = subprocess.run(command, capture_output=True, text=True, timeout=DEADLINE_S)
    assert found.returncode == 1
    assert f"the client/second transport cannot listen on 127.0.0.1:{port}" in found.stderr


@pytest.mark.covers("Configuration", "more transports for clients")
def test_a_destination_dials_one_server_and_waits_for_another(
    servers: Servers, tmp_path: Path
) -> None:
    """The one that it dials is down: what is acknowledged is at the other, which connected."""
    ports = dict(zip("ABC", free_ports(3), strict=True))
    to_group = DestinationConfig(
        "B",
        "group-b",
        True,
        (f"127.0.0.1:{ports['C']}",),
        waits=True,
        pass_through=".*",
        retry_ms_max=100,
    )
    back = DestinationConfig(
        "A", "group-a", True, (f"127.0.0.1:{ports['A']}",), pass_through=".*", retry_ms_max=100
    )
    for name, group, destination in (("A", "group-a", to_group), ("B", "group-b", back)):
        config = InstanceConfig(
            name,
            group,
            destinations=(destination,),
            replication_transports=(TransportConfig("replication", ports[name]),),
            first=True,
        )
        servers.append(Server(tmp_path / name, config))
    a, b = servers
    a.wait_for("link_caught_up")
    client = Client(a.address, "publisher")
    client.publish(range(1, 101))
    client.persisted(100)
    b.kill()
    assert [sequence for _, sequence in b.journal()] == list(range(1, 101))
    # The one that is dialled comes up: the link goes on there.
    back_c = InstanceConfig(
        "C",
        "group-b",
        destinations=(back,),
        replication_transports=(TransportConfig("replication", ports["C"]),),
        first=True,
    )
    servers.append(Server(tmp_path / "C", back_c))
    a.wait_for("link_caught_up", 2)
    client.publish(range(101, 201))
    client.persisted(200)
    c = servers[-1]
    c.kill()
    assert [sequence for _, sequence in c.journal()] == list(range(1, 201))
