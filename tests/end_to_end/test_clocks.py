"""An instance, its queue's owner and a client whose wall clocks are set forward and back.

`set_clock.c` is loaded into their processes, so that a test sets the clocks while they run.
"""

from __future__ import annotations

import json
import os
import select
import shutil
import struct
import subprocess
import sys
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest
from end_to_end.test_queues import Consumer
from support.instance_processes import DEADLINE_S, Client, Server

from raylay.services.config.instance import InstanceConfig
from raylay.services.messages.records import RecordBuilder, iterate_records
from raylay.services.messages.topics import TopicRule
from raylay.services.queues.definition import QueueDefinition
from raylay.services.sow.definition import SowTopicDefinition
from raylay.services.sow.state import SowRules

pytestmark = pytest.mark.covers("Replication", "a wall clock that is set both ways")

SOURCE = Path(__file__).parents[1] / "support" / "set_clock.c"
HOUR_US = 3_600_000_000
LEASE_US = 1_500_000
WORK = QueueDefinition("work", "json", underlying="orders", lease_us=LEASE_US)
STATE = SowTopicDefinition("state", "json", keys=("/id",), last_writer=True)
SHORT = SowTopicDefinition(
    "short", "json", keys=("/id",), rules=SowRules(expires=True, lifetime_us=HOUR_US)
)
CLIENT = """
import sys
from raylay import SyncClient
from raylay.services.errors import CommandFailed

with SyncClient("desk", servers=[sys.argv[1]]) as client:
    for line in sys.stdin:
        client.publish("state", line.strip().encode())
        try:
            client.flush(20)
            print("taken", flush=True)
        except CommandFailed as error:
            print(error.reason, flush=True)
"""


class Clock:
    """A wall clock that a test sets."""

    def __init__(self, library: Path, file: Path) -> None:
        self._file = file
        self.set(0)
        self.environment = {
            **os.environ,
            "LD_PRELOAD": str(library),
            "RAYLAY_CLOCK_FILE": str(file),
        }

    def set(self, ahead_us: int) -> None:
        with open(self._file, "r+b" if self._file.exists() else "wb") as file:
            file.write(struct.pack("=q", ahead_us))


class ClockServer(Server):
    """An instance, and the children that it starts, under a clock."""

    def __init__(self, directory: Path, config: InstanceConfig, clock: Clock) -> None:
        self.clock = clock
        super().__init__(directory, config)

    def begin_start(self) -> None:
        """Not forked: a library is loaded at the start of a program."""
        opened = partial(subprocess.Popen, env=self.clock.environment)
        self.popen = opened  # type: ignore[assignment, misc]
        super().begin_start()


@pytest.fixture
def library(tmp_path: Path) -> Path:
    assert shutil.which("cc"), "install a C compiler: apt-get install gcc libc6-dev"
    made = tmp_path / "set_clock.so"
    command = ["cc", "-O1", "-Wall", "-Werror", "-shared", "-fPIC", "-o", made, SOURCE]
    subprocess.run(command, check=True, timeout=DEADLINE_S)
    return made


@pytest.fixture
def server(tmp_path: Path, library: Path) -> Iterator[ClockServer]:
    config = InstanceConfig(
        "solo",
        "g",
        first=True,
        topics=(TopicRule(".*", "json"),),
        queue_definitions=(WORK,),
        sow=(STATE, SHORT),
    )
    made = ClockServer(tmp_path / "solo", config, Clock(library, tmp_path / "clock"))
    yield made
    if made.process.poll() is None:
        made.kill()


def set_clock(server: ClockServer, ahead_us: int, times: int) -> None:
    """Sets the instance's clock, and waits until it has noticed."""
    server.clock.set(ahead_us)
    server.wait_for("clock_set", times)


def test_a_clock_is_set_while_its_process_runs(library: Path, tmp_path: Path) -> None:
    clock = Clock(library, tmp_path / "clock")
    code = (
        "import sys, time\n"
        "for _ in sys.stdin:\n"
        "    time.sleep(0.01)\n"
        "    print(time.time_ns() // 1000, time.monotonic_ns() // 1000, flush=True)\n"
    )
    process = subprocess.Popen(
        [sys.executable, "-c", code],
        env=clock.environment,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdin is not None and process.stdout is not None
    with process:
        for ahead_us in (0, HOUR_US, -HOUR_US):
            clock.set(ahead_us)
            process.stdin.write("\n")
            process.stdin.flush()
            wall_us, steady_us = map(int, process.stdout.readline().split())
            assert abs(wall_us - time.time_ns() // 1000 - ahead_us) < 60_000_000
            assert abs(steady_us - time.monotonic_ns() // 1000) < 60_000_000
        process.stdin.close()


@pytest.mark.slow
def test_leases_end_and_no_sooner_while_the_clock_jumps_both_ways(server: ClockServer) -> None:
    publisher = Client(server.address, "pub")
    ann, bob = (Consumer(server.address, name) for name in ("ann", "bob"))
    for number, ahead_us in enumerate((-HOUR_US, HOUR_US, 0), 1):
        publisher.publish(range(number, number + 1))
        publisher.persisted(number)
        began_s = time.monotonic()
        ready, _, _ = select.select((ann.socket, bob.socket), (), (), DEADLINE_S)
        holder, other = (ann, bob) if ann.socket in ready else (bob, ann)
        assert [body for _, body in holder.take()] == [f"m{number}"]
        set_clock(server, ahead_us, number)
        ((key, body),) = other.take()
        waited_s = time.monotonic() - began_s
        assert body == f"m{number}" and waited_s > LEASE_US / 1e6 / 2
        assert 0 < other.header["lp"] <= LEASE_US // 1000
        status = other.status()["json/work"]
        assert 0 <= status["age_of_oldest_lease_us"] < 60_000_000
        other.persisted(other.done([key]))


def rows(client: Client, topic: str) -> list[bytes]:
    """The bodies of a SOW topic's records."""
    client.send({"c": "sow", "sub": "w", "t": topic, "mt": "json", "cid": "w", "o": {}})
    found: list[bytes] = []
    while True:
        frame = client.next(lambda frame: frame.header["c"] in ("sow", "group_end"))
        if frame.header["c"] == "group_end":
            return found
        found += [record.body for record in iterate_records(frame.body)]


@pytest.mark.slow
def test_a_clock_that_is_set_forward_deletes_no_record_for_good(server: ClockServer) -> None:
    client = Client(server.address, "pub")
    builder = RecordBuilder(client.answer["publisher"], "short", "json")
    record = builder.build(1, b'{"id": 1}', time.time_ns() // 1000)
    client.send({"c": "pb", "n": 1}, record)
    client.persisted(1)
    (row,) = rows(client, "short")
    set_clock(server, 2 * HOUR_US, 1)
    # What is due by then is looked for each second.
    deadline_s = time.monotonic() + 2.5
    while time.monotonic() < deadline_s:
        assert rows(client, "short") == [], "its time is over by this clock"
        time.sleep(0.2)
    # A restart meanwhile changes nothing of that.
    server.stop()
    server.start()
    client = Client(server.address, "pub")
    deadline_s = time.monotonic() + 2.5
    while time.monotonic() < deadline_s:
        assert rows(client, "short") == []
        time.sleep(0.2)
    set_clock(server, 0, 2)
    assert rows(client, "short") == [row]


def test_a_client_whose_clock_was_ahead_once_is_taken_again(
    server: ClockServer, library: Path, tmp_path: Path
) -> None:
    clock = Clock(library, tmp_path / "clients-clock")
    process = subprocess.Popen(
        [sys.executable, "-c", CLIENT, server.address],
        env=clock.environment,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdin is not None and process.stdout is not None
    with process:
        found: list[str] = []
        for number, ahead_us in enumerate((0, HOUR_US, 0, -HOUR_US, 0)):
            clock.set(ahead_us)
            process.stdin.write(json.dumps({"id": 1, "n": number}) + "\n")
            process.stdin.flush()
            found.append(process.stdout.readline().strip())
        process.stdin.close()
    assert found == ["taken", "clock_ahead", "taken", "taken", "taken"]
    assert [json.loads(row)["n"] for row in rows(Client(server.address, "r"), "state")] == [4]
