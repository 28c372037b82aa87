"""A link that has caught up hands its connection over to its instance: real sockets, real
SIGKILL."""

from __future__ import annotations

import os
import signal
import subprocess
from pathlib import Path

import pytest
from support.instance_processes import (
    Client,
    Server,
    Servers,
    free_ports,
    impatient_pair,
    is_given_up_and_found_again,
    pair,
)
from support.instance_processes import servers as servers

from raylay.services.config.instance import DestinationConfig, InstanceConfig
from raylay.services.config.transport import TransportConfig
from raylay.services.messages.records import publisher_id
from raylay.services.replication.link.direct_link import BEHIND_BYTES_MAX

MESSAGES = 100


def link_of(server: Server) -> int:
    """The process of its only link."""
    children = subprocess.run(
        ["ps", "-ww", "--ppid", str(server.process.pid), "-o", "pid=,args="],
        capture_output=True,
        text=True,
        check=True,
    ).stdout.splitlines()
    (found,) = [int(line.split()[0]) for line in children if "run_link" in line]
    return found


def slept(pid: int) -> int:
    """The number of times that its threads slept, which is how often they were woken."""
    total = 0
    for thread in Path(f"/proc/{pid}/task").iterdir():
        status = (thread / "status").read_text(encoding="ascii")
        total += int(status.partition("\nvoluntary_ctxt_switches:")[2].split(maxsplit=1)[0])
    return total


def one_by_one(client: Client, sequences: range) -> None:
    for sequence in sequences:
        client.publish(range(sequence, sequence + 1))
        client.persisted(sequence)


def test_messages_wake_no_link_that_has_handed_over_its_connection(
    servers: Servers, tmp_path: Path
) -> None:
    first, second = pair(servers, tmp_path)
    client = Client(first.address, "publisher")
    for server in (first, second):
        server.wait_for("link_direct")
    links = [link_of(first), link_of(second)]
    before = sum(map(slept, links))
    one_by_one(client, range(1, MESSAGES + 1))
    # A link that sends is woken twice a message; one that looks after itself, a few times a second.
    assert sum(map(slept, links)) - before < MESSAGES
    assert second.journal() == [(publisher_id("publisher"), n) for n in range(1, MESSAGES + 1)]
    assert not first.events("link_disconnected"), first.log


@pytest.mark.slow
def test_a_link_that_has_handed_over_its_connection_is_killed(
    servers: Servers, tmp_path: Path
) -> None:
    first, second = pair(servers, tmp_path)
    client = Client(first.address, "publisher")
    for times in range(1, 3):
        first.wait_for_behind("link_direct", "link_process_ended", times - 1)
        sequences = range(MESSAGES * (times - 1) + 1, MESSAGES * times + 1)
        client.publish(sequences)
        os.kill(link_of(first), signal.SIGKILL)
        client.persisted(sequences[-1])
        first.wait_for("link_process_ended", times)
    total = 2 * MESSAGES
    assert second.journal() == [(publisher_id("publisher"), n) for n in range(1, total + 1)]


@pytest.mark.slow
def test_an_instance_at_either_end_of_a_direct_connection_is_killed(
    servers: Servers, tmp_path: Path
) -> None:
    first, second = pair(servers, tmp_path)
    client = Client(first.address, "publisher")
    for server in (first, second):
        server.wait_for("link_direct")
    second.kill()
    client.publish(range(1, MESSAGES + 1))
    second.start()
    client.persisted(MESSAGES)
    first.wait_for_behind("link_direct", "link_disconnected", 1)
    first.kill()
    first.start()
    client = Client(first.address, "publisher", low=MESSAGES + 1)
    client.publish(range(MESSAGES + 1, 2 * MESSAGES + 1))
    client.persisted(2 * MESSAGES)
    wanted = [(publisher_id("publisher"), n) for n in range(1, 2 * MESSAGES + 1)]
    assert first.journal() == second.journal() == wanted


@pytest.mark.slow
def test_a_silent_destination_of_a_direct_connection_is_given_up_and_found_again(
    servers: Servers, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, second = impatient_pair(servers, tmp_path, monkeypatch)
    client = Client(first.address, "publisher")
    first.wait_for("link_direct")
    is_given_up_and_found_again(first, second, client)


def test_who_takes_a_direct_connection_too_slowly_gets_the_rest_from_the_link(
    servers: Servers, tmp_path: Path
) -> None:
    first, second = pair(servers, tmp_path, window_bytes=64 * 1024)
    client = Client(first.address, "publisher")
    first.wait_for("link_direct")
    count = BEHIND_BYTES_MAX // 100_000 + 10
    second.process.send_signal(signal.SIGSTOP)
    try:
        # More than the instance keeps in memory for it.
        for sequence in range(1, count + 1):
            client.publish(range(sequence, sequence + 1), text="m" * 100_000)
        first.wait_for("it takes messages more slowly than they are committed")
    finally:
        second.process.send_signal(signal.SIGCONT)
    client.persisted(count)
    assert second.journal() == [(publisher_id("publisher"), n) for n in range(1, count + 1)]


@pytest.mark.parametrize("compression, direct", [(False, False), (True, True)])
def test_nothing_is_handed_over_where_it_is_switched_off_or_batches_are_compressed(
    servers: Servers, tmp_path: Path, compression: bool, direct: bool
) -> None:
    ports = free_ports(2)
    for at, name in enumerate("AB"):
        address = f"127.0.0.1:{ports[1 - at]}"
        destination = DestinationConfig(
            f"to-{'BA'[at]}", "group", True, (address,), compression=compression, retry_ms_max=200
        )
        config = InstanceConfig(
            name,
            "group",
            destinations=(destination,),
            replication_transports=(TransportConfig("replication", ports[at]),),
            first=True,
            direct_links=direct,
        )
        servers.append(Server(tmp_path / name, config))
    first, second = servers
    for server in servers:
        server.wait_for("link_caught_up")
    client = Client(first.address, "publisher")
    link = link_of(first)
    before = slept(link)
    one_by_one(client, range(1, MESSAGES + 1))
    assert slept(link) - before >= MESSAGES, "the link sends each of them"
    assert len(second.journal()) == MESSAGES
    assert not first.events("link_direct")
