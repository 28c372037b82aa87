"""Children of an instance that stand still, their sockets open: they are ended and replaced."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from pathlib import Path

import pytest
from end_to_end.test_queues import Consumer
from end_to_end.test_slow_clients import LIMITS, Stream, stalled, subscribe, written
from support.instance_processes import Client, Server, Servers, pair, single
from support.instance_processes import servers as servers

from raylay.services.messages.topics import TopicRule
from raylay.services.queues.definition import QueueDefinition

pytestmark = pytest.mark.covers("Filters by content", "a child process that hangs is asked")

HUNG_S = "4"


@pytest.fixture(autouse=True)
def soon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RAYLAY_TEST_HUNG_S", HUNG_S)


def child_of(server: Server, program: str) -> int:
    """Its process that runs a program, which is forked or started anew."""
    listed = subprocess.run(
        ["ps", "-ww", "--ppid", str(server.process.pid), "-o", "pid=,args="],
        capture_output=True,
        text=True,
        check=True,
    ).stdout.splitlines()
    (found,) = [int(line.split()[0]) for line in listed if program in line]
    return found


def hang(server: Server, program: str) -> int:
    """Stops the child, and waits until it was ended; its process."""
    pid = child_of(server, program)
    os.kill(pid, signal.SIGSTOP)
    server.wait_for("child_hung")
    assert f"pid={pid}" in server.log
    return pid


@pytest.mark.slow
def test_a_link_that_hangs_is_replaced(servers: Servers, tmp_path: Path) -> None:
    """The pair is sync: an ack behind it says that the new one works."""
    first, second = pair(servers, tmp_path)
    client = Client(first.address, "publisher")
    client.publish(range(1, 11))
    client.persisted(10)
    pid = child_of(first, "run_link")
    os.kill(pid, signal.SIGSTOP)
    client.publish(range(11, 21))
    first.wait_for("child_hung")
    client.persisted(20)
    assert child_of(first, "run_link") != pid and first.events("link_process_ended") == 1
    assert [sequence for _, sequence in second.journal()] == list(range(1, 21))
    assert first.events("child_hung") == 1 and not second.events("child_hung")


@pytest.mark.slow
def test_an_owner_of_a_queue_that_hangs_is_replaced(servers: Servers, tmp_path: Path) -> None:
    server = single(
        servers,
        tmp_path,
        first=True,
        topics=(TopicRule(".*", "json"),),
        queue_definitions=(
            QueueDefinition("work", "json", underlying="orders", subscription_backlog_max=100),
        ),
    )
    publisher = Client(server.address, "pub")
    consumer = Consumer(server.address, "ann", max_backlog=100)
    publisher.publish(range(1, 11))
    taken = []
    while len(taken) < 10:
        taken += consumer.take()
    pid = child_of(server, "run_queue_owner")
    os.kill(pid, signal.SIGSTOP)
    publisher.publish(range(11, 21))
    server.wait_for("child_hung")
    while len(taken) < 20:
        taken += consumer.take()
    assert [key[1] for key, _ in taken] == list(range(1, 21)), "each once"
    assert child_of(server, "run_queue_owner") != pid
    consumer.persisted(consumer.done([key for key, _ in taken]))


@pytest.mark.slow
def test_a_buffer_that_hangs_is_ended_and_those_that_it_held_are_told(
    servers: Servers, tmp_path: Path
) -> None:
    server = single(servers, tmp_path, capacity=LIMITS)
    slow, stream = Client(server.address, "slow"), Stream(server)
    subscribe(slow)
    written(stalled(server, stream), stream)
    pid = hang(server, "run_slow_client_buffer")
    server.wait_for("slow_client_buffer_ended")
    server.wait_for("limit=buffer")
    # Somebody goes offline again, to another process.
    slow = Client(server.address, "slow")
    subscribe(slow)
    before = server.events("client_offline")
    while server.events("client_offline") == before:
        stream.publish(50)
    assert child_of(server, "run_slow_client_buffer") != pid


@pytest.mark.slow
def test_nobody_is_ended_because_the_instance_itself_stood_still(
    servers: Servers, tmp_path: Path
) -> None:
    first, _ = pair(servers, tmp_path)
    client = Client(first.address, "publisher")
    client.publish(range(1, 11))
    client.persisted(10)
    pid = child_of(first, "run_link")
    os.kill(first.process.pid, signal.SIGSTOP)
    time.sleep(2 * float(HUNG_S))  # The time itself is what matters: nothing happens in it.
    os.kill(first.process.pid, signal.SIGCONT)
    client.publish(range(11, 21))
    client.persisted(20)
    assert child_of(first, "run_link") == pid and not first.events("child_hung")
