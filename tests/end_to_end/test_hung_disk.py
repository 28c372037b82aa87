"""A disk that hangs holds the event loop: it is told of all the same, clients are sent away."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from support.instance_processes import Client, Server, Servers, single
from support.instance_processes import servers as servers

from raylay.services.config.journal import JournalConfig

pytestmark = pytest.mark.covers("Filters by content", "a disk that hangs is told of")


class Hung:
    """The next write of a server's front log hangs until `goes_on`."""

    def __init__(self, server: Server) -> None:
        self.pipe = server.directory / "hang"
        os.mkfifo(self.pipe)

    def goes_on(self) -> None:
        self.pipe.write_bytes(b".")


@pytest.mark.slow
def test_it_is_told_clients_are_sent_away_and_nothing_is_lost(
    servers: Servers, tmp_path: Path
) -> None:
    server = single(servers, tmp_path, journal=JournalConfig(disk_timeout_ms=2_000))
    client, other = Client(server.address, "publisher"), Client(server.address, "other")
    client.publish(range(1, 4))
    client.persisted(3)
    hung = Hung(server)
    client.publish(range(4, 7))
    server.wait_for("disk_hangs")
    server.wait_for("clients_sent_away")
    for each in (client, other):
        each.socket.settimeout(20)
        while each.socket.recv(1 << 16):
            pass  # until its end
    hung.goes_on()
    server.wait_for("disk_answers")
    again = Client(server.address, "publisher")
    assert again.answer["highest"] == 6, "what it wrote is there"
    again.publish(range(7, 9))
    again.persisted(8)
    assert [sequence for _, sequence in server.journal()] == list(range(1, 9))
    assert server.events("disk_hangs") == 1


@pytest.mark.slow
def test_who_waits_for_less_is_not_sent_away(servers: Servers, tmp_path: Path) -> None:
    server = single(servers, tmp_path, journal=JournalConfig(disk_timeout_ms=600_000))
    client = Client(server.address, "publisher")
    hung = Hung(server)
    client.publish(range(1, 4))
    server.wait_for("disk_hangs")
    hung.goes_on()
    client.persisted(3)
    server.wait_for("disk_answers")
    assert not server.events("clients_sent_away")
