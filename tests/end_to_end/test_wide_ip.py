"""Two servers behind one address, with real processes: the journal waits for what is persisted."""

from __future__ import annotations

import socket
import threading
import time
from contextlib import suppress
from pathlib import Path

import pytest
from support.instance_processes import DEADLINE_S, Client, Server, Servers, free_ports

from raylay.services.config.instance import DestinationConfig, InstanceConfig
from raylay.services.config.journal import JournalConfig, RetentionConfig
from raylay.services.config.transport import TransportConfig
from raylay.services.messages.records import publisher_id
from raylay.services.messages.topics import TopicRule

BATCH = 200
MESSAGES = 20 * BATCH


class Address:
    """One address for several servers: each connection goes to whichever answers now."""

    def __init__(self, port: int) -> None:
        self.port = port
        """Of the server that answers."""
        self._listening = socket.create_server(("127.0.0.1", 0))
        self.text = f"127.0.0.1:{self._listening.getsockname()[1]}"
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        with suppress(OSError):
            while True:
                here, _ = self._listening.accept()
                try:
                    there = socket.create_connection(("127.0.0.1", self.port), 2)
                except OSError:
                    here.close()
                    continue
                for ends in ((here, there), (there, here)):
                    threading.Thread(target=_pass_on, args=ends, daemon=True).start()

    def close(self) -> None:
        self._listening.close()


def _pass_on(source: socket.socket, target: socket.socket) -> None:
    with suppress(OSError):
        while data := source.recv(1 << 16):
            target.sendall(data)
    for each in (source, target):
        with suppress(OSError):
            each.shutdown(socket.SHUT_RDWR)


ONE_WAY = (TopicRule(".*", exclude_validation=("replicate", "cascade")),)


def _wait_for_messages(server: Server, count: int) -> None:
    deadline_s = time.monotonic() + DEADLINE_S
    while len(server.journal()) < count and time.monotonic() < deadline_s:
        time.sleep(0.05)


def to(name: str, group: str, address: str, *, sync: bool) -> DestinationConfig:
    return DestinationConfig(
        name, group, sync, (address,), ONE_WAY, ".*", retry_ms_max=200, server_names=(name,)
    )


@pytest.mark.slow
@pytest.mark.covers("The replication chapters", "wide IP: several servers behind one address")
def test_what_only_the_first_of_two_servers_has_is_not_removed(
    servers: Servers, tmp_path: Path
) -> None:
    """A replicates to an address behind which X answers. X has stored everything, its partner Y is
    down. X is lost with its disk, Y answers at the address: it gets all of it."""
    port_x, port_y = free_ports(2)
    wide = Address(port_x)
    x = InstanceConfig(
        "X",
        "far",
        destinations=(to("Y", "far", f"127.0.0.1:{port_y}", sync=True),),
        replication_transports=(TransportConfig("replication", port_x),),
        first=True,
    )
    y = InstanceConfig(
        "Y", "far", replication_transports=(TransportConfig("replication", port_y),), first=True
    )
    destination = to("far", "far", wide.text, sync=False)
    # Nobody says that there are two: the names of the servers are not known.
    destination.server_names = ()
    a = InstanceConfig(
        "A",
        "near",
        destinations=(destination,),
        journal=JournalConfig(segment_bytes=32 * 1024, retention=RetentionConfig(age_ms=1)),
    )
    servers.append(Server(tmp_path / "X", x))
    servers.append(Server(tmp_path / "A", a))
    stored, source = servers
    source.wait_for("link_caught_up")
    client = Client(source.address, "publisher")
    publisher = publisher_id("publisher")
    for first in range(1, MESSAGES + 1, BATCH):
        client.publish(range(first, first + BATCH))
        client.persisted(first + BATCH - 1)
    _wait_for_messages(stored, MESSAGES)
    # Retention looks when a segment is sealed, by what it was told within the last second.
    until_s = time.monotonic() + 2.5
    last = MESSAGES
    while time.monotonic() < until_s:
        client.publish(range(last + 1, last + BATCH + 1))
        last += BATCH
        client.persisted(last)
        time.sleep(0.1)
    stored.kill()
    wide.port = port_y
    servers.append(Server(tmp_path / "Y", y))
    servers[-1].wait_for("upstream_caught_up")
    # The link may have been told of the last ones behind that.
    _wait_for_messages(servers[-1], last)
    wide.close()
    assert servers[-1].journal() == [(publisher, number) for number in range(1, last + 1)]
