"""A moved instance with real processes: two data directories are its two hosts."""

from __future__ import annotations

import json
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from end_to_end.test_bootstrap import Empty
from support import forked
from support.instance_processes import Client, Server, Servers, free_ports

from raylay.services.config.bootstrap import BootstrapConfig
from raylay.services.config.instance import DestinationConfig, InstanceConfig
from raylay.services.config.transport import TransportConfig
from raylay.services.messages.records import publisher_id
from raylay.services.replication.downgrade import DowngradePolicy

pytestmark = [
    pytest.mark.covers("Moved instances", "what only a retired directory held comes back"),
    pytest.mark.covers("Moved instances", "with real processes"),
]

AGE_MS = 300
COMMAND = (sys.executable, "-m", "raylay.services.cli", "journal", "salvage")


def to(name: str, port: int) -> DestinationConfig:
    address = f"127.0.0.1:{port}"
    return DestinationConfig(
        name, "group", True, (address,), retry_ms_max=200, server_names=(name,)
    )


def instance(name: str, other: DestinationConfig, port: int) -> InstanceConfig:
    return InstanceConfig(
        name,
        "group",
        destinations=(other,),
        replication_transports=(TransportConfig("replication", port),),
        first=True,
        policy=DowngradePolicy(AGE_MS),
        fabric_key="the key of a fabric",
    )


def salvage(directory: Path, *options: str) -> tuple[int, dict[str, Any]]:
    done = forked.run(
        [*COMMAND, str(directory), "--json", *options],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.stdout, done.stderr
    return done.returncode, json.loads(done.stdout)


def sequences(server: Server) -> list[int]:
    publisher = publisher_id("publisher")
    return [sequence for found, sequence in server.journal() if found == publisher]


@pytest.mark.slow
def test_a_moved_instance_its_retired_directory_and_what_only_that_held(
    servers: Servers, tmp_path: Path
) -> None:
    """A and B are a pair. B is away, so A acknowledges alone; A's host is lost, A is moved to
    another one and filled from B. A's host comes back: it is over. Its journal is salvaged."""
    port_a, port_b, port_new = free_ports(3)
    a = Empty(tmp_path / "A", instance("A", to("B", port_b), port_a))
    b = Server(tmp_path / "B", instance("B", to("A", port_a), port_b))
    servers += [a, b]
    a.serves()
    a.wait_for("link_caught_up")
    client = Client(a.address, "publisher")
    client.publish(range(1, 101))
    client.persisted(100)
    b.kill()
    a.wait_for("link_disconnected")
    client.publish(range(101, 111))
    client.persisted(110)
    a.wait_for("downgraded")
    a.kill()
    b.start()

    moved = Empty(
        tmp_path / "A.g1",
        replace(
            instance("A", to("B", port_b), port_new),
            first=False,
            generation=1,
            bootstrap=BootstrapConfig((f"127.0.0.1:{port_b}",)),
            announce_to=(f"127.0.0.1:{port_a}", f"127.0.0.1:{port_b}"),
        ),
    )
    servers.append(moved)
    moved.serves()
    moved.wait_for("ready")
    # B's link finds it where it lives now, without a new configuration.
    b.wait_for("instance_moved")
    b.wait_for("link_caught_up")
    b.wait_for(f"address=127.0.0.1:{port_new}")
    client = Client(moved.address, "publisher")
    assert client.answer["highest"] == 100, "what the lost host acknowledged alone is at risk"
    client.publish(range(201, 206))
    client.persisted(205)

    # Its host is back: it may connect to nobody, and ends.
    a.start()
    assert a.process.wait(60) == 1
    a.wait_for("salvage` with this directory")
    a.start()
    assert a.process.wait(60) == 1, "for good"

    status, found = salvage(a.directory, "--check")
    assert status == 1 and found["sent"] == {"B": 10, "successor": 10}
    b_before = b.events("upstream_connected")
    status, found = salvage(a.directory)
    assert status == 0 and found["done"] and found["messages"] == 110
    # Whichever came first may have passed them on to the other one.
    assert 10 <= sum(found["sent"].values()) <= 20 and found["conflicts"] == 0
    assert found["servers"] == {"B": "B", "successor": "A"}
    b.wait_for("upstream_connected", times=b_before + 1)
    status, found = salvage(a.directory)
    assert status == 0 and found["sent"] == {"B": 0, "successor": 0}, "nothing twice"

    # A directory that is not retired is left alone.
    b.kill()
    done = forked.run(
        [*COMMAND, str(b.directory)],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 1 and "is not retired" in done.stderr
    assert sequences(b) == [*range(1, 101), *range(201, 206), *range(101, 111)]
    moved.stop()
    assert sorted(sequences(moved)) == [*range(1, 111), *range(201, 206)]
